//! Networks of attempts: a bridge, and for each task a namespace with an address on it. A task that is alone in its
//! attempt needs no bridge: the machine's end of its veth pair is its gateway.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;

use super::names;
use super::netlink::{self, Netlink, index_of};
use crate::config::{AddressRange, NetworkConfig};
use crate::ids::{AttemptId, TaskId};
use crate::plan::address::{gateway, of_task};
use crate::spec::JobSpec;
use crate::store::record::AddressBlock;
use crate::sys::netns;
use crate::sys::process::run_tool;

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
    /// What makes the table of rules, or why there is none.
    rules: Result<String, String>,
    /// The machine's resolver on its loopback, to which the tasks' gateways lead.
    resolver: Option<Ipv4Addr>,
}

/// Whether ports of the machine lead to tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Publishing {
    On,
    Off,
}

/// A port of the machine, with the address and the port that it leads to.
pub(super) type Published = (u16, Ipv4Addr, u16);

impl Networks {
    pub(super) fn open(instance: &str, config: &NetworkConfig) -> io::Result<Self> {
        let instance: String = instance.chars().take(4).collect();
        let resolver = names::to_be_led_to(&config.resolv_conf);
        let rules = match config.masquerade {
            true => masquerade(&instance, config.range, resolver),
            false => {
                separate(&instance, config.range)?;
                Err("network.masquerade is off".to_owned())
            }
        };
        Ok(Self { instance, rules, resolver })
    }

    pub(super) fn reaches_out(&self) -> Result<(), String> {
        self.rules.clone().map(drop)
    }

    /// Whether what asks a gateway for a name reaches the machine's resolver.
    pub(super) fn leads_to_resolver(&self) -> bool {
        self.resolver.is_some() && self.rules.is_ok()
    }

    pub(super) fn publishing(&self) -> Publishing {
        if self.rules.is_ok() { Publishing::On } else { Publishing::Off }
    }

    /// Leads ports of the machine to tasks; again is no harm. Fails where the table is gone or leads one of them elsewhere:
    /// see [`Self::renew`].
    pub(super) fn publish(&self, ports: &[Published]) -> io::Result<()> {
        self.change_published(&["add"], ports)
    }

    /// No longer.
    pub(super) fn unpublish(&self, ports: &[Published]) -> io::Result<()> {
        // What is not there (a daemon has started anew meanwhile) cannot be deleted: put there first.
        match self.change_published(&["add", "delete"], ports) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Makes the rules anew, with no port published: somebody may have flushed them.
    pub(super) fn renew(&self) -> io::Result<()> {
        match &self.rules {
            Ok(rules) => nft(rules),
            Err(_) => Ok(()),
        }
    }

    fn change_published(&self, verbs: &[&str], ports: &[Published]) -> io::Result<()> {
        if ports.is_empty() || self.rules.is_err() {
            return Ok(());
        }
        let one = |(outside, address, inside): &Published| format!("{outside} : {address} . {inside}");
        let elements = ports.iter().map(one).collect::<Vec<_>>().join(", ");
        let table = table(&self.instance);
        let rule = |verb: &&str| format!("{verb} element ip {table} published {{ {elements} }}\n");
        nft(&verbs.iter().map(rule).collect::<String>())
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
        self.let_in(&name)?;
        netlink.set_up(index)
    }

    /// Lets what is led from the loopback to a task, and what a task asks the resolver there, pass by a link; [`aloof`]
    /// keeps everything else from the loopback.
    fn let_in(&self, link: &str) -> io::Result<()> {
        match self.rules.is_ok() {
            true => fs::write(format!("/proc/sys/net/ipv4/conf/{link}/route_localnet"), "1"),
            false => Ok(()),
        }
    }

    /// Makes the namespace of a task at `path`, with `lo` up and `eth0` on the bridge or, alone, on the gateway itself.
    pub(super) fn attach(&self, task: TaskId, peers: Peers, block: AddressBlock, path: &Path) -> io::Result<()> {
        let outside = Netlink::open()?;
        let TaskId { attempt, ordinal, .. } = task;
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
            None => self.open_gate(task, block),
        }
    }

    /// The machine's end of the pair of a namespace that is alone; again is no harm.
    pub(super) fn open_gate(&self, task: TaskId, block: AddressBlock) -> io::Result<()> {
        let veth = self.veth(task.attempt, task.ordinal);
        let gate = index_of(&veth)?.ok_or_else(|| io::Error::other("the veth pair vanished"))?;
        self.let_in(&veth)?;
        match Netlink::open()?.add_address(gate, gateway(block), block.prefix) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
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
        for name in netlink::names()? {
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
        remove_rules(&self.instance);
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

/// Keeps jobs from reaching each other through the machine, whoever lets it forward.
fn between(range: AddressRange) -> String {
    let net = net(range);
    format!(
        "chain between {{ type filter hook forward priority 0;\n\
           ip saddr {net} ip daddr {net} fib daddr . iif oif missing drop; }}\n"
    )
}

fn net(range: AddressRange) -> String {
    format!("{}/{}", Ipv4Addr::from(range.base), range.prefix)
}

/// Jobs are kept apart, and nothing else: what an earlier start has let through is let through no more.
fn separate(instance: &str, range: AddressRange) -> io::Result<()> {
    let rules = format!("{}table ip {} {{\n{}}}\n", no_rules(instance), table(instance), between(range));
    match nft(&rules) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            warn_if_forwarding(&error);
            Ok(())
        }
        other => other,
    }
}

fn warn_if_forwarding(reason: &io::Error) {
    if fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|on| on.trim() == "1") {
        tracing::warn!(%reason, "this machine forwards (net.ipv4.ip_forward = 1), so jobs can reach each other's networks");
    }
}

/// What comes from tasks to the loopback, or as if from there, is dropped.
fn aloof(instance: &str) -> String {
    let drop = |(link, side)| format!("iifname \"{link}{instance}*\" ip {side} 127.0.0.0/8 drop;\n");
    let rules = [("ty", "daddr"), ("ty", "saddr"), ("tv", "daddr"), ("tv", "saddr")].map(drop).concat();
    format!("chain aloof {{ type filter hook prerouting priority raw;\n{rules}}}\n")
}

/// Leads questions for names, put to a gateway, to the resolver on the loopback, for which they come from the machine
/// itself.
fn resolving(net: &str, resolver: Option<Ipv4Addr>) -> String {
    let Some(resolver) = resolver else { return String::new() };
    format!(
        "chain asking {{ type nat hook prerouting priority -101;\n\
           ip saddr {net} ip daddr {net} fib daddr type local meta l4proto {{ tcp, udp }} th dport 53 dnat to {resolver}; }}\n\
         chain asked {{ type nat hook input priority 100; ip saddr {net} ip daddr {resolver} snat to 127.0.0.1; }}\n"
    )
}

/// Lets the range reach out through the machine's address, and keeps jobs from reaching each other through it. Published
/// ports are reached by any address of the machine, `localhost` as well, for which a task sees its gateway.
fn masquerade(instance: &str, range: AddressRange, resolver: Option<Ipv4Addr>) -> Result<String, String> {
    let rules = masquerading(instance, range, resolver);
    nft(&rules).map_err(|error| {
        warn_if_forwarding(&error);
        error.to_string()
    })?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| format!("cannot turn on forwarding: {error}"))?;
    Ok(rules)
}

/// Has nft and the kernel look at the rules of an installation, and changes nothing.
pub fn try_rules(instance: &str, config: &NetworkConfig) -> io::Result<()> {
    let instance: String = instance.chars().take(4).collect();
    run_nft(&["-c", "-f", "-"], &masquerading(&instance, config.range, names::to_be_led_to(&config.resolv_conf)))
}

fn masquerading(instance: &str, range: AddressRange, resolver: Option<Ipv4Addr>) -> String {
    let (net, table) = (net(range), table(instance));
    format!(
        "{}table ip {table} {{\n{}{}{}\
           chain out {{ type nat hook postrouting priority 100;\n\
             ip saddr {net} ip daddr != {net} masquerade;\n\
             ip saddr 127.0.0.0/8 ip daddr {net} masquerade; }}\n\
           map published {{ type inet_service : ipv4_addr . inet_service; }}\n\
           chain arriving {{ type nat hook prerouting priority -100;\n\
             fib daddr type local dnat ip to tcp dport map @published; }}\n\
           chain leaving {{ type nat hook output priority -100;\n\
             fib daddr type local dnat ip to tcp dport map @published; }}\n}}\n",
        no_rules(instance),
        between(range),
        aloof(instance),
        resolving(&net, resolver)
    )
}

/// Takes the table away, whether or not it is there.
fn no_rules(instance: &str) -> String {
    let table = table(instance);
    format!("table ip {table}\ndelete table ip {table}\n")
}

/// Those of an earlier start, too. Where there is no `nft`, there are none.
fn remove_rules(instance: &str) {
    match nft(&no_rules(instance)) {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => {
            tracing::warn!(%error, "the rules of the tasks' networks stay");
        }
        _ => {}
    }
}

/// Carries out nft's commands, all or none. `NotFound`: what they name is not there; `Unsupported`: there is no nft.
fn nft(commands: &str) -> io::Result<()> {
    run_nft(&["-f", "-"], commands)
}

fn run_nft(arguments: &[&str], commands: &str) -> io::Result<()> {
    let output = run_tool("nft", arguments, commands).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::Unsupported, "nft is not installed"),
        kind => io::Error::new(kind, format!("nft cannot be run: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let is_missing = said.contains("No such file or directory");
    let kind = if is_missing { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, format!("nft refused the rules: {}", said.trim())))
}

/// A task has no rights over its network, which belongs to the machine: let it listen on any port and ping all the same.
fn open_to_users() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")?;
    fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")
}

/// A namespace with nothing but `lo`.
pub(super) fn make_shared(path: &Path) -> io::Result<()> {
    netns::remove(path)?;
    netns::create(path, || Netlink::open()?.set_up(loopback()?).and_then(|()| open_to_users()))
}

/// Whether a program of this machine listens on the port: leading it elsewhere would cut that off.
pub(super) fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_fit_the_kernel() {
        let networks = Networks { instance: "abcd".into(), rules: Err(String::new()), resolver: None };
        assert!(networks.veth(AttemptId(36u64.pow(6) - 1), 999).len() <= 15);
        assert_eq!(networks.bridge(AttemptId(36)), "tyabcd10");
    }

    #[test]
    fn a_gate_that_a_kill_left_closed_is_opened() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let networks = Networks { instance: "abcd".into(), rules: Err(String::new()), resolver: None };
        let (task, path) = (TaskId::first(AttemptId(1), 0), dir.path().join("net"));
        let block = AddressBlock { base: Ipv4Addr::new(10, 0, 0, 0), prefix: 30 };
        let addresses = || {
            let name = networks.veth(task.attempt, 0);
            let said = run_tool("ip", &["-o", "-4", "addr", "show", "dev", &name], "").unwrap();
            String::from_utf8(said.stdout).unwrap().matches("inet 10.0.0.").count()
        };
        // In a network namespace of its own, like a machine that nobody else uses.
        let outside = dir.path().join("machine");
        netns::create(&outside, || {
            networks.attach(task, Peers::Alone, block, &path)?;
            assert_eq!(addresses(), 1);
            run_tool("ip", &["addr", "flush", "dev", &networks.veth(task.attempt, 0)], "").unwrap();
            assert_eq!(addresses(), 0, "as after a kill between the two");
            networks.open_gate(task, block)?;
            networks.open_gate(task, block)?;
            assert_eq!(addresses(), 1);
            netns::remove(&path)
        })
        .unwrap();
        netns::remove(&outside).unwrap();
    }
}
