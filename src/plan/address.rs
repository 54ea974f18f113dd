//! Blocks of the private range, one for each attempt whose tasks have addresses of their own.

use std::net::Ipv4Addr;

use crate::config::AddressRange;
use crate::store::record::AddressBlock;

/// A free block with room for `tasks`, a gateway, the network's own address and the broadcast address: the first one
/// after `last`, the block that was handed out before, so that a network that is just going is not met by a new one.
pub fn allocate(
    range: AddressRange,
    used: &[AddressBlock],
    last: Option<AddressBlock>,
    tasks: u32,
) -> Option<AddressBlock> {
    let size = block_size(tasks).filter(|size| *size <= range.size())?;
    let prefix = 32 - u8::try_from(size.trailing_zeros()).ok()?;
    let (start, end) = (u64::from(range.base), u64::from(range.base) + u64::from(range.size()));
    let after = last.map_or(start, |last| bounds(&last).1);
    let mut taken: Vec<(u64, u64)> = used.iter().map(bounds).collect();
    taken.sort_unstable();
    let size = u64::from(size);
    let base = first_fit(&taken, (after.max(start), end), size).or_else(|| first_fit(&taken, (start, end), size))?;
    Some(AddressBlock { base: Ipv4Addr::from(u32::try_from(base).ok()?), prefix })
}

/// Why an attempt of a job that needs so many addresses can never start, whatever ends; 0 where it needs none.
pub fn never_fits(range: AddressRange, addresses: u32) -> Option<String> {
    let size = block_size(addresses);
    let is_too_big = addresses > 0 && size.is_none_or(|size| size > range.size());
    is_too_big.then(|| {
        format!(
            "the job needs addresses for {addresses} task(s), more than all of network.range ({} addresses) has; ask for fewer \
             tasks (`count`), or let them share an address with network = \"job\"",
            range.size()
        )
    })
}

/// With a gateway, the network's own address and the broadcast address.
fn block_size(addresses: u32) -> Option<u32> {
    addresses.checked_add(3)?.checked_next_power_of_two()
}

/// Whether so many tasks can have an address of it each.
pub fn has_room(block: AddressBlock, tasks: u32) -> bool {
    let (start, end) = bounds(&block);
    block_size(tasks).is_some_and(|size| u64::from(size) <= end - start)
}

/// The first free stretch of `size` within the bounds; blocks lie at multiples of their size.
fn first_fit(taken: &[(u64, u64)], (start, end): (u64, u64), size: u64) -> Option<u64> {
    let mut candidate = start.next_multiple_of(size);
    for (from, to) in taken.iter().filter(|(_, to)| *to > start) {
        if candidate + size <= *from {
            break;
        }
        candidate = candidate.max(to.next_multiple_of(size));
    }
    (candidate + size <= end).then_some(candidate)
}

fn bounds(block: &AddressBlock) -> (u64, u64) {
    let base = u64::from(u32::from(block.base));
    (base, base + (1 << (32 - u32::from(block.prefix))))
}

/// The address of the bridge: the first of the block.
pub fn gateway(block: AddressBlock) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(block.base).saturating_add(1))
}

/// The address of the task with this ordinal.
pub fn of_task(block: AddressBlock, ordinal: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(block.base).saturating_add(2).saturating_add(ordinal))
}
