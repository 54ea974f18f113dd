//! Blocks of the private range, one for each attempt whose tasks have addresses of their own.

use std::net::Ipv4Addr;

use crate::config::AddressRange;
use crate::store::record::AddressBlock;

/// The smallest free block with room for `tasks`, a gateway, the network's own address and the broadcast address.
pub fn allocate(range: AddressRange, used: &[AddressBlock], tasks: u32) -> Option<AddressBlock> {
    let size = tasks.checked_add(3)?.next_power_of_two();
    if size > range.size() {
        return None;
    }
    let prefix = 32 - u8::try_from(size.trailing_zeros()).ok()?;
    let mut taken: Vec<(u64, u64)> = used.iter().map(bounds).collect();
    taken.sort_unstable();
    let (start, end) = (u64::from(range.base), u64::from(range.base) + u64::from(range.size()));
    let size = u64::from(size);
    let mut candidate = start;
    for (from, to) in taken {
        if candidate + size <= from {
            break;
        }
        // Blocks lie at multiples of their size.
        candidate = candidate.max(to.next_multiple_of(size));
    }
    if candidate + size > end {
        return None;
    }
    Some(AddressBlock { base: Ipv4Addr::from(u32::try_from(candidate).ok()?), prefix })
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
