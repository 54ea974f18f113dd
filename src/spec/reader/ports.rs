//! The ports of tasks, and which of them would meet on one network.

use std::ops::Range;

use super::{Reader, in_file_order};
use crate::ids::label_variable;
use crate::spec::job::{Network, OutsidePort, Port, Role};
use crate::spec::platform::Platform;
use crate::spec::wire::{WireMap, WirePort};

/// Ports that every task has there, one of each.
const OPENPAI_PORTS: [&str; 2] = ["http", "ssh"];

impl Reader<'_> {
    pub(super) fn with_ports_of_platform(&mut self, ports: &WireMap<WirePort>, tasks: u32, key: &str) -> Vec<Port> {
        let mut ports = self.ports(ports, tasks, key);
        if self.kinds.contract.platform == Platform::OpenPai {
            let missing = OPENPAI_PORTS
                .iter()
                .filter(|label| ports.iter().all(|port| label_variable(&port.label) != label_variable(label)));
            let one =
                |label: &&str| Port { label: (*label).to_owned(), count: 1, begin: None, outside: OutsidePort::Same };
            let missing: Vec<Port> = missing.map(one).collect();
            ports.extend(missing);
        }
        ports
    }

    pub(super) fn ports(&mut self, ports: &WireMap<WirePort>, tasks: u32, key: &str) -> Vec<Port> {
        let mut out: Vec<Port> = Vec::new();
        for (label, port) in in_file_order(ports) {
            let key = format!("{key}.ports.{}", label.get_ref());
            let (count, begin) = match port.get_ref() {
                WirePort::Count(count) => (*count, None),
                WirePort::Table { count, begin } => (count.unwrap_or(1), begin.filter(|begin| *begin > 0)),
            };
            if !is_label(label.get_ref()) {
                self.error(label.span(), &key, "a port label holds letters A–Z and a–z, digits, '-', '_', '.' and '~'");
            }
            // Each task of the role has its own stretch: on the machine or, sharing a network, inside.
            let stretches = u64::from(tasks.max(1));
            if begin.is_some_and(|begin| u64::from(begin) + u64::from(count) * stretches > 65_536) {
                let of =
                    if stretches > 1 { format!(" for {stretches} tasks, one after another,") } else { String::new() };
                self.error(port.span(), &key, format!("`{key}`{of} reaches beyond port 65535"));
            }
            if let Some(other) =
                out.iter().find(|other| label_variable(&other.label) == label_variable(label.get_ref()))
            {
                let message = format!(
                    "the ports {:?} and {:?} would both be {} in the environment; rename one",
                    other.label,
                    label.get_ref(),
                    label_variable(label.get_ref())
                );
                self.error(label.span(), &key, message);
            }
            let taken = out.iter().find(|other| overlaps(other, begin, count));
            if let Some(other) = taken {
                let message = format!("`{key}` overlaps the ports of {:?}", other.label);
                self.error(port.span(), &key, message);
            }
            out.push(Port { label: label.get_ref().clone(), count, begin, outside: OutsidePort::Same });
        }
        out
    }

    /// Tasks that share a network cannot listen on the same port.
    pub(super) fn colliding_ports(&mut self, roles: &[(Role, Range<usize>)]) {
        if self.network == Network::Task {
            return;
        }
        let mut seen: Vec<(String, Range<u32>)> = Vec::new();
        for (role, span) in roles {
            for (label, ports) in named_ports(role) {
                let name = match role.is_service {
                    true => format!("services.{}.port", role.name),
                    false => format!("roles.{}.ports.{label}", role.name),
                };
                let meets = |(_, other): &&(String, Range<u32>)| ports.start < other.end && other.start < ports.end;
                if let Some((other, _)) = seen.iter().find(meets) {
                    let message = format!(
                        "`{name}` and `{other}` name the same ports, and their tasks share one network; a role's task I has \
                         those from begin + I × count on; network = \"task\" gives each task a network of its own"
                    );
                    self.error(span.clone(), &name, message);
                }
                seen.push((name, ports));
            }
        }
    }
}

/// Ports of a network that a role names, from the first to behind the last.
fn named_ports(role: &Role) -> impl Iterator<Item = (&str, Range<u32>)> {
    let all = |port: &Port| {
        let begin = u32::from(port.begin?);
        Some(begin..begin.saturating_add(u32::from(port.count).saturating_mul(role.count)))
    };
    role.ports.iter().filter_map(move |port| Some((port.label.as_str(), all(port)?)))
}

fn overlaps(other: &Port, begin: Option<u16>, count: u16) -> bool {
    match (other.begin, begin) {
        (Some(a), Some(b)) => {
            let (a, b) = (u32::from(a), u32::from(b));
            a < b + u32::from(count) && b < a + u32::from(other.count)
        }
        _ => false,
    }
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.~".contains(c))
}
