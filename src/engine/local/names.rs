//! How tasks resolve names: as the machine does, with what it says in its `resolv.conf`. A resolver that listens on the
//! machine's loopback is reached through the task's gateway, from where a rule of [`super::network`] leads on to it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// What systemd-resolved itself asks; its own resolver answers nobody beyond the loopback device.
const UPSTREAM_OF_RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// The resolver on the loopback that tasks are to be led to.
pub(super) fn to_be_led_to(resolv_conf: &Path) -> Option<Ipv4Addr> {
    let own = fs::read_to_string(resolv_conf).ok()?;
    let is_resolved = Path::new(UPSTREAM_OF_RESOLVED).exists();
    own_loopback(&own).filter(|_| !is_resolved)
}

/// The content of a task's `/etc/resolv.conf`. `gateway`: the task's, where it leads to the machine's resolver. The
/// machine's file is often a link into /run, which the task does not see.
pub(super) fn for_task(resolv_conf: &Path, gateway: Option<Ipv4Addr>) -> Option<String> {
    let own = fs::read_to_string(resolv_conf).ok()?;
    if !is_loopback_only(&own) {
        return Some(own);
    }
    if let Ok(upstream) = fs::read_to_string(UPSTREAM_OF_RESOLVED) {
        return Some(upstream);
    }
    Some(gateway.map_or(own.clone(), |gateway| through(&own, gateway)))
}

/// The same search list and options, another server.
fn through(text: &str, gateway: Ipv4Addr) -> String {
    let rest = text.lines().filter(|line| server(line).is_none());
    let lines = std::iter::once(format!("nameserver {gateway}")).chain(rest.map(str::to_owned));
    lines.map(|line| line + "\n").collect()
}

fn server(line: &str) -> Option<&str> {
    line.strip_prefix("nameserver").filter(|rest| rest.starts_with([' ', '\t'])).map(str::trim)
}

fn is_loopback(server: &str) -> bool {
    server.starts_with("127.") || server == "::1"
}

fn is_loopback_only(text: &str) -> bool {
    let mut servers = text.lines().filter_map(server).peekable();
    servers.peek().is_some() && servers.all(is_loopback)
}

fn own_loopback(text: &str) -> Option<Ipv4Addr> {
    let first = || text.lines().filter_map(server).find_map(|server| server.parse().ok());
    is_loopback_only(text).then(first).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_on_the_loopback_alone_is_seen_through() {
        assert!(is_loopback_only("# stub\nnameserver 127.0.0.53\noptions edns0\n"));
        assert!(!is_loopback_only("nameserver 127.0.0.53\nnameserver 10.0.0.1\n"));
        assert!(!is_loopback_only("search lab\n"));
        assert_eq!(own_loopback("nameserver ::1\nnameserver\t127.0.0.2\n"), Some(Ipv4Addr::new(127, 0, 0, 2)));
        assert_eq!(own_loopback("nameserver 10.0.0.1\n"), None);
        let text = through("search lab\nnameserver 127.0.0.1\noptions ndots:2\n", Ipv4Addr::new(10, 1, 0, 1));
        assert_eq!(text, "nameserver 10.1.0.1\nsearch lab\noptions ndots:2\n");
    }
}
