//! Networks of attempts: a bridge, and for each task a namespace with an address on it. A task that is alone in its
//! attempt needs no bridge: the machine's end of its veth pair is its gateway.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;

use super::netlink::{Netlink, index_of, names};
use crate::config::{AddressRange, NetworkConfig};
use crate::contract::{Placement, TaskPlace};
use crate::ids::{AttemptId, TaskId};
use crate::plan::address::{gateway, of_task};
use crate::spec::{JobSpec, Network, Port};
use crate::store::record::AddressBlock;
use crate::sys::netns;
use crate::sys::process::run_tool;

/// Ports that are allotted inside of a namespace of the attempt's own start here.
const FIRST_PORT: u16 = 20_000;

/// Whether a task has others to talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peers {
    Alone,
    Some,
}

impl Peers {
    pub(super) fn of(spec: &JobSpec) -> Self {
        if spec.tasks().nth(1).is_some() { Self::Some } else { Self::Alone }
    }
}

/// Links of this installation; their names begin with it so that a crash leaves nothing unknown.
#[derive(Debug)]
pub(super) struct Networks {
    /// Four hexadecimal digits: a link's name has 15 characters at most.
    instance: String,
    masquerade: Result<(), String>,
}

impl Networks {
    pub(super) fn open(instance: &str, config: &NetworkConfig) -> io::Result<Self> {
        let instance: String = instance.chars().take(4).collect();
        let masquerade = match config.masquerade {
            true => masquerade(&instance, config.range),
            false => Err("network.masquerade is off".to_owned()),
        };
        Ok(Self { instance, masquerade })
    }

    pub(super) fn reaches_out(&self) -> Result<(), String> {
        self.masquerade.clone()
    }

    /// Leads ports of the machine to tasks; again is no harm.
    pub(super) fn publish(&self, ports: &[(u16, Ipv4Addr, u16)]) -> io::Result<()> {
        self.change_published("add", ports)
    }

    /// No longer.
    pub(super) fn unpublish(&self, ports: &[(u16, Ipv4Addr, u16)]) -> io::Result<()> {
        // What is not there (a daemon has started anew meanwhile) cannot be deleted: put there first.
        self.publish(ports)?;
        self.change_published("delete", ports)
    }

    fn change_published(&self, verb: &str, ports: &[(u16, Ipv4Addr, u16)]) -> io::Result<()> {
        if ports.is_empty() || self.masquerade.is_err() {
            return Ok(());
        }
        let one = |(outside, address, inside): &(u16, Ipv4Addr, u16)| format!("{outside} : {address} . {inside}");
        let elements: Vec<String> = ports.iter().map(one).collect();
        let rule = format!("{verb} element ip {} published {{ {} }}\n", table(&self.instance), elements.join(", "));
        let output = run_tool("nft", &["-f", "-"], &rule)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    fn bridge(&self, attempt: AttemptId) -> String {
        format!("ty{}{}", self.instance, base36(attempt.0))
    }

    fn veth(&self, attempt: AttemptId, ordinal: u32) -> String {
        format!("tv{}{}.{}", self.instance, base36(attempt.0), base36(u64::from(ordinal)))
    }

    /// Makes the attempt's bridge with the block's gateway address; one that is there stays.
    pub(super) fn make_bridge(&self, attempt: AttemptId, block: AddressBlock) -> io::Result<()> {
        let netlink = Netlink::open()?;
        let name = self.bridge(attempt);
        // Each step may have been done by a daemon that died, or by the start of another task of the attempt.
        if index_of(&name)?.is_none() {
            netlink.add_bridge(&name)?;
        }
        let index = index_of(&name)?.ok_or_else(|| io::Error::other("the bridge vanished"))?;
        match netlink.add_address(index, gateway(block), block.prefix) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        netlink.set_up(index)
    }

    /// Makes the namespace of a task at `path`, with `lo` up and `eth0` on the bridge or, alone, on the gateway itself.
    pub(super) fn attach(&self, task: TaskId, peers: Peers, block: AddressBlock, path: &Path) -> io::Result<()> {
        let outside = Netlink::open()?;
        let TaskId { attempt, ordinal } = task;
        let veth = self.veth(attempt, ordinal);
        let bridge = match peers {
            Peers::Alone => None,
            Peers::Some => index_of(&self.bridge(attempt))?,
        };
        // What an interrupted start has left.
        netns::remove(path)?;
        self.delete_link(&veth)?;
        netns::create(path, || {
            let inside = Netlink::open()?;
            let own = File::open("/proc/thread-self/ns/net")?;
            outside.add_veth(&veth, bridge, "eth0", own.as_fd())?;
            inside.set_up(loopback()?)?;
            open_to_users()?;
            let eth0 = index_of("eth0")?.ok_or_else(|| io::Error::other("eth0 did not arrive"))?;
            inside.add_address(eth0, of_task(block, ordinal), block.prefix)?;
            inside.set_up(eth0)?;
            let address = self.address6(of_task(block, ordinal));
            without_ipv6_is_well(inside.add_address6(eth0, address, 96 + block.prefix))?;
            inside.add_default_route(gateway(block))
        })?;
        match bridge {
            Some(_) => Ok(()),
            None => {
                let gate = index_of(&veth)?.ok_or_else(|| io::Error::other("the veth pair vanished"))?;
                outside.add_address(gate, gateway(block), block.prefix)
            }
        }
    }

    /// A unique local address (RFC 4193) that ends in the IPv4 address.
    fn address6(&self, address: Ipv4Addr) -> Ipv6Addr {
        let site = u16::from_str_radix(&self.instance, 16).unwrap_or(0);
        let address = u32::from(address).to_be_bytes();
        let [a, b, c, d] = address;
        Ipv6Addr::new(0xfd7a, site, 0, 0, 0, 0, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// Removes the attempt's bridge; its veth pairs go with their namespaces. The kernel takes tens of milliseconds for
    /// it, for which nobody waits; what a crash leaves is swept at the next start.
    pub(super) fn remove(&self, attempt: AttemptId) -> io::Result<()> {
        let name = self.bridge(attempt);
        let Some(index) = index_of(&name)? else { return Ok(()) };
        let netlink = Netlink::open()?;
        let delete = move || {
            if let Err(error) = netlink.delete(index) {
                tracing::warn!(%name, %error, "a bridge stays until the next start");
            }
        };
        std::thread::Builder::new().name("unbridge".to_owned()).spawn(delete).map(drop)
    }

    fn delete_link(&self, name: &str) -> io::Result<()> {
        match index_of(name)? {
            Some(index) => gone_is_well(Netlink::open()?.delete(index)),
            None => Ok(()),
        }
    }

    /// Removes the links of attempts other than `live`.
    pub(super) fn sweep(&self, live: &BTreeSet<AttemptId>) -> io::Result<()> {
        let keep: BTreeSet<String> = live.iter().map(|attempt| base36(attempt.0)).collect();
        for name in names()? {
            let ours = ["ty", "tv"].iter().find_map(|kind| name.strip_prefix(&format!("{kind}{}", self.instance)));
            let Some(rest) = ours else { continue };
            if !keep.contains(rest.split('.').next().unwrap_or(rest)) {
                self.delete_link(&name)?;
            }
        }
        Ok(())
    }

    pub(super) fn close(&self) -> io::Result<()> {
        self.sweep(&BTreeSet::new())?;
        if self.masquerade.is_ok() {
            run_tool("nft", &["delete", "table", "ip", &table(&self.instance)], "")?;
        }
        Ok(())
    }
}

/// The kernel may have no IPv6, or it is switched off.
fn without_ipv6_is_well(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(nix::libc::EOPNOTSUPP | nix::libc::EAFNOSUPPORT | nix::libc::EACCES | nix::libc::EPERM)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// It may go by itself between the look and the deed.
fn gone_is_well(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => Ok(()),
        other => other,
    }
}

fn base36(mut number: u64) -> String {
    let mut out = Vec::new();
    loop {
        out.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(number % 36).unwrap_or(0)]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    out.iter().rev().map(|byte| char::from(*byte)).collect()
}

fn loopback() -> io::Result<u32> {
    index_of("lo")?.ok_or_else(|| io::Error::other("a network namespace without lo"))
}

fn table(instance: &str) -> String {
    format!("trainyard_{instance}")
}

/// Lets the range reach out through the machine's address, and keeps jobs from reaching each other through it.
fn masquerade(instance: &str, range: AddressRange) -> Result<(), String> {
    let net = format!("{}/{}", Ipv4Addr::from(range.base), range.prefix);
    let table = table(instance);
    let rules = format!(
        "table ip {table}\ndelete table ip {table}\ntable ip {table} {{\n\
           chain out {{ type nat hook postrouting priority 100; ip saddr {net} ip daddr != {net} masquerade; }}\n\
           chain between {{ type filter hook forward priority 0;\n\
             ip saddr {net} ip daddr {net} fib daddr . iif oif missing drop; }}\n\
           map published {{ type inet_service : ipv4_addr . inet_service; }}\n\
           chain arriving {{ type nat hook prerouting priority -100;\n\
             fib daddr type local dnat ip to tcp dport map @published; }}\n\
           chain leaving {{ type nat hook output priority -100;\n\
             fib daddr type local ip daddr != 127.0.0.0/8 dnat ip to tcp dport map @published; }}\n}}\n"
    );
    let output = match run_tool("nft", &["-f", "-"], &rules) {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err("nft is not installed".to_owned()),
        Err(error) => return Err(format!("nft cannot be run: {error}")),
    };
    if !output.status.success() {
        return Err(format!("nft refused the rules: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| format!("cannot turn on forwarding: {error}"))
}

/// A task has no rights over its network, which belongs to the machine: let it listen on any port and ping all the same.
fn open_to_users() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
    fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")
}

/// A namespace for a whole attempt: nothing but `lo`.
pub(super) fn make_shared(path: &Path) -> io::Result<()> {
    netns::remove(path)?;
    netns::create(path, || Netlink::open()?.set_up(loopback()?).and_then(|()| open_to_users()))
}

/// Addresses and ports of every task of an attempt. `taken` are ports of the machine that other attempts have.
pub(super) fn place(spec: &JobSpec, block: Option<AddressBlock>, taken: BTreeSet<u16>) -> io::Result<Placement> {
    let fixed = spec.fixed_ports();
    let mut allotter = Allotter { network: spec.network, next: FIRST_PORT, taken, reserved: Vec::new() };
    allotter.taken.extend(fixed);
    let mut tasks = Vec::new();
    for ((role, index), ordinal) in spec.tasks().zip(0..) {
        let address = block.map_or(Ipv4Addr::LOCALHOST, |block| of_task(block, ordinal));
        let mut place = TaskPlace { address, ports: Vec::new(), published: Vec::new(), cores: Vec::new() };
        for port in &role.ports {
            let numbers = allotter.allot(port, &role.ports)?;
            if spec.network == Network::Task {
                // What the file names is the same number for each task of a role: outside they lie one after another.
                let shift = port.begin.map_or(0, |_| index.saturating_mul(u32::from(port.count)));
                let outside = numbers.iter().filter_map(|number| u16::try_from(u32::from(*number) + shift).ok());
                place.published.push((port.label.clone(), outside.collect()));
            }
            place.ports.push((port.label.clone(), numbers));
        }
        tasks.push(place);
    }
    Ok(Placement { tasks })
}

/// Ports of the machine that lead to tasks: each with the address and the port behind it.
pub(super) fn published(placement: &Placement) -> Vec<(u16, Ipv4Addr, u16)> {
    let of_task = |task: &TaskPlace| {
        let inside: Vec<u16> = task.ports.iter().flat_map(|(_, numbers)| numbers.clone()).collect();
        let outside: Vec<u16> = task.published.iter().flat_map(|(_, numbers)| numbers.clone()).collect();
        let address = task.address;
        outside.into_iter().zip(inside).map(move |(outside, inside)| (outside, address, inside)).collect::<Vec<_>>()
    };
    placement.tasks.iter().flat_map(of_task).collect()
}

/// Whether a program of this machine listens on the port: leading it elsewhere would cut that off.
pub(super) fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err()
}

struct Allotter {
    network: Network,
    next: u16,
    /// Ports of the machine that somebody has.
    taken: BTreeSet<u16>,
    /// Held while choosing on the machine's own network, so that no port is chosen twice.
    reserved: Vec<TcpListener>,
}

impl Allotter {
    fn allot(&mut self, port: &Port, all: &[Port]) -> io::Result<Vec<u16>> {
        if let Some(begin) = port.begin {
            return Ok((0..port.count).map(|offset| begin.saturating_add(offset)).collect());
        }
        let fixed = |number: u16| {
            all.iter().any(|other| {
                other.begin.is_some_and(|begin| (begin..begin.saturating_add(other.count)).contains(&number))
            })
        };
        (0..port.count)
            .map(|_| if self.network == Network::Host { self.free_port() } else { self.next_port(fixed) })
            .collect()
    }

    /// The next port that no task of any attempt has, nor, where it is to be reached from elsewhere, a stranger.
    fn next_port(&mut self, fixed: impl Fn(u16) -> bool) -> io::Result<u16> {
        loop {
            let port = self.next;
            self.next = port.checked_add(1).ok_or_else(|| io::Error::other("there are no free ports left"))?;
            let is_strangers = || self.network == Network::Task && is_taken(port);
            if !fixed(port) && !self.taken.contains(&port) && !is_strangers() {
                self.taken.insert(port);
                return Ok(port);
            }
        }
    }

    fn free_port(&mut self) -> io::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let port = listener.local_addr()?.port();
        self.reserved.push(listener);
        Ok(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(network: &str, taken: &[u16]) -> Placement {
        let text = format!(
            "network = \"{network}\"\n[roles.w]\ncount = 2\nports = {{ a = 2, b = {{ begin = 20001 }}, c = 1 }}"
        );
        let spec = crate::spec::parse("x.toml", &text).0.unwrap();
        place(&spec, None, taken.iter().copied().collect()).unwrap()
    }

    fn ports(network: &str) -> Vec<Vec<u16>> {
        let tasks = placed(network, &[]).tasks;
        tasks.iter().map(|task| task.ports.iter().flat_map(|(_, ports)| ports.clone()).collect()).collect()
    }

    #[test]
    fn no_two_tasks_have_the_same_port_of_the_machine_and_nobody_s_is_taken() {
        let taken = [20_000, 20_003];
        let placement = placed("task", &taken);
        let outside: Vec<u16> = published(&placement).iter().map(|(outside, ..)| *outside).collect();
        let all: BTreeSet<u16> = outside.iter().copied().collect();
        assert_eq!((outside.len(), all.len()), (8, 8), "{outside:?}");
        assert!(taken.iter().all(|port| !all.contains(port)));
        let inside: Vec<u16> = published(&placement).iter().map(|(.., inside)| *inside).collect();
        assert_eq!(inside.iter().filter(|port| **port == 20_001).count(), 2, "as the file says, in both");
        assert!(all.contains(&20_001) && all.contains(&20_002), "one after another outside");
    }

    #[test]
    fn three_roles_with_twenty_ports_each_all_differ() {
        let text =
            "[roles.a]\ncount = 4\nports = { x = 20 }\n[roles.b]\nports = { x = 20 }\n[roles.c]\nports = { x = 20 }";
        let spec = crate::spec::parse("x.toml", text).0.unwrap();
        let all: Vec<_> = published(&place(&spec, None, BTreeSet::new()).unwrap());
        let outside: BTreeSet<u16> = all.iter().map(|(outside, ..)| *outside).collect();
        assert_eq!((all.len(), outside.len()), (120, 120));
    }

    #[test]
    fn tasks_that_share_a_network_get_different_ports() {
        let job = ports("job").concat();
        assert_eq!(job.iter().filter(|port| **port == 20_001).count(), 2);
        for network in ["job", "host"] {
            let mut all = ports(network).concat();
            all.retain(|port| *port != 20_001);
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
        }
    }

    #[test]
    fn link_names_fit_the_kernel() {
        let networks = Networks { instance: "abcd".into(), masquerade: Err(String::new()) };
        assert!(networks.veth(AttemptId(36u64.pow(6) - 1), 999).len() <= 15);
        assert_eq!(networks.bridge(AttemptId(36)), "tyabcd10");
    }
}
