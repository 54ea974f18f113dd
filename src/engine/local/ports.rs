//! Which ports the tasks of an attempt have, and which ports of the machine lead to them. Asks the machine only whether
//! somebody listens there.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;

use super::network::{Published, Publishing, is_taken};
use crate::contract::{Placement, TaskPlace};
use crate::plan::address::of_task;
use crate::spec::{JobSpec, Network, OutsidePort, Port, Role};
use crate::store::record::AddressBlock;

/// Ports that are allotted inside of a namespace of the attempt's own start here.
const FIRST_PORT: u16 = 20_000;

/// Ports of the machine.
#[derive(Debug)]
pub(super) struct Outside {
    /// Those that other attempts have.
    pub(super) taken: BTreeSet<u16>,
    pub(super) publishing: Publishing,
}

/// Addresses and ports of every task of an attempt. No port of the machine leads to two tasks: where the file names the same
/// for several, all but the first get another one outside.
pub(super) fn place(spec: &JobSpec, block: Option<AddressBlock>, outside: Outside) -> io::Result<Placement> {
    let own = block.filter(|_| spec.network == Network::Task);
    let named = spec.roles.iter().flat_map(named_ports).collect();
    let mut allotter = Allotter { network: spec.network, next: FIRST_PORT, named, outside };
    let mut tasks = Vec::new();
    for ((role, index), ordinal) in spec.tasks().zip(0..) {
        let address = own.map_or(Ipv4Addr::LOCALHOST, |block| of_task(block, ordinal));
        tasks.push(allotter.task(role, index, address)?);
    }
    let shared = block.filter(|_| spec.network == Network::Job);
    Ok(Placement {
        tasks,
        on_machine: spec.network == Network::Host,
        shared_address: shared.map(|block| of_task(block, 0)),
    })
}

/// Ports of the machine that an attempt has.
pub(super) fn of_the_machine(placement: &Placement) -> Vec<u16> {
    match placement.on_machine {
        true => placement.tasks.iter().flat_map(|task| &task.ports).flat_map(|(_, ports)| ports).copied().collect(),
        false => published(placement).into_iter().map(|(outside, ..)| outside).collect(),
    }
}

/// All that the file names for the tasks of a role, inside or outside.
fn named_ports(role: &Role) -> impl Iterator<Item = u16> {
    let of = |port: &Port| {
        let begin = u32::from(port.begin?);
        Some(begin..begin.saturating_add(role.count.saturating_mul(u32::from(port.count))))
    };
    role.ports.iter().filter_map(of).flatten().filter_map(|port| u16::try_from(port).ok())
}

/// Ports of the machine that lead to tasks.
pub(super) fn published(placement: &Placement) -> Vec<Published> {
    let of_task = |task: &TaskPlace| {
        let pairs = task.published.iter().flat_map(|(label, outside)| {
            let inside = task.ports.iter().find(|(other, _)| other == label);
            let inside = inside.map(|(_, numbers)| numbers.as_slice()).unwrap_or_default();
            outside.iter().zip(inside)
        });
        let address = placement.shared_address.unwrap_or(task.address);
        pairs.map(|(outside, inside)| (*outside, address, *inside)).collect::<Vec<_>>()
    };
    placement.tasks.iter().flat_map(of_task).collect()
}

struct Allotter {
    network: Network,
    next: u16,
    /// Ports that the file names for some task, inside or outside: allotted to none.
    named: BTreeSet<u16>,
    outside: Outside,
}

impl Allotter {
    fn task(&mut self, role: &Role, index: u32, address: Ipv4Addr) -> io::Result<TaskPlace> {
        let mut place =
            TaskPlace { address, ports: Vec::new(), published: Vec::new(), cores: Vec::new(), near: Vec::new() };
        for port in &role.ports {
            let numbers = self.inside(port, index)?;
            if self.publishes(port) {
                place.published.push((port.label.clone(), self.outside(port, index, &numbers)?));
            }
            place.ports.push((port.label.clone(), numbers));
        }
        Ok(place)
    }

    /// Tasks that share a network are for each other alone, but for what people look at.
    fn publishes(&self, port: &Port) -> bool {
        let is_led_to = match self.network {
            Network::Task => true,
            Network::Job => port.outside == OutsidePort::Any,
            Network::Host => false,
        };
        is_led_to && self.outside.publishing == Publishing::On
    }

    /// Whether ports of the machine are handed out.
    fn takes_from_machine(&self) -> bool {
        self.network == Network::Host || self.outside.publishing == Publishing::On
    }

    fn inside(&mut self, port: &Port, index: u32) -> io::Result<Vec<u16>> {
        let Some(begin) = port.begin else { return (0..port.count).map(|_| self.next_port()).collect() };
        // Tasks that share a network cannot have the same.
        let step = if self.network == Network::Task { 0 } else { index };
        let first = u32::from(begin).saturating_add(step.saturating_mul(u32::from(port.count)));
        let beyond = || io::Error::other(format!("the ports of {} reach beyond 65535", port.label));
        let numbers = (0..u32::from(port.count)).map(|offset| u16::try_from(first.saturating_add(offset)));
        numbers.collect::<Result<_, _>>().map_err(|_| beyond())
    }

    /// What was allotted is the same outside. What the file names is the same for each task of a role: outside they lie one
    /// after another, as far as nobody has these.
    fn outside(&mut self, port: &Port, index: u32, inside: &[u16]) -> io::Result<Vec<u16>> {
        if port.begin.is_none() {
            return Ok(inside.to_vec());
        }
        if port.outside == OutsidePort::Any {
            return inside.iter().map(|_| self.next_port()).collect();
        }
        let shift = index.saturating_mul(u32::from(port.count));
        let one = |inside: &u16| {
            let wanted = u16::try_from(u32::from(*inside).saturating_add(shift)).ok();
            match wanted.filter(|wanted| !is_taken(*wanted) && self.outside.taken.insert(*wanted)) {
                Some(wanted) => Ok(wanted),
                None => self.next_port(),
            }
        };
        inside.iter().map(one).collect()
    }

    /// The next port that no task of any attempt has, nor, where it is to be reached from elsewhere, a stranger.
    fn next_port(&mut self) -> io::Result<u16> {
        loop {
            let port = self.next;
            self.next = port.checked_add(1).ok_or_else(|| io::Error::other("there are no free ports left"))?;
            let is_strangers = || self.takes_from_machine() && is_taken(port);
            if !self.named.contains(&port) && !self.outside.taken.contains(&port) && !is_strangers() {
                self.outside.taken.insert(port);
                return Ok(port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::contract::catalogue::{Example, example};
    use crate::contract::{Identity, Inside, Task, Unspeakable, view};

    fn placed(text: &str, taken: &[u16], publishing: Publishing) -> Placement {
        let spec = crate::spec::parse("x.toml", text).0.unwrap();
        place(&spec, None, Outside { taken: taken.iter().copied().collect(), publishing }).unwrap()
    }

    #[test]
    fn what_is_shown_of_a_contract_has_the_names_that_a_placed_task_has() {
        for (name, ..) in crate::spec::platform::CONTRACTS {
            let Example { spec, sample, .. } = example(name.parse().unwrap());
            let outside = Outside { taken: BTreeSet::new(), publishing: Publishing::Off };
            let placement = place(&spec, None, outside).unwrap();
            let identity = Identity { key: "j".parse().unwrap(), run: 1, attempt: 1, user: "u".into(), uid: 1 };
            let inside = Inside { home: "/root".into(), ..Inside::default() };
            let unspeakable = Unspeakable::of(&spec, &identity, &placement);
            let placed = Task::all(&spec, &identity, &placement, &inside, &unspeakable);
            // With whether there is anything in them.
            let of = |task: &Task<'_>| -> BTreeMap<String, bool> {
                view(task).env.into_iter().map(|(name, value)| (name, value.is_empty())).collect()
            };
            for (shown, placed) in sample.tasks(&spec).zip(&placed) {
                assert_eq!(of(&shown), of(placed), "{name}, {}-{}", placed.role.name, placed.index);
            }
            assert_eq!(sample.tasks(&spec).count(), placed.len());
        }
    }

    fn two_tasks(network: &str, taken: &[u16]) -> Placement {
        let text = format!(
            "network = \"{network}\"\n[roles.w]\ncount = 2\nports = {{ a = 2, b = {{ begin = 20001 }}, c = 1 }}"
        );
        placed(&text, taken, Publishing::On)
    }

    fn ports(network: &str) -> Vec<Vec<u16>> {
        let tasks = two_tasks(network, &[]).tasks;
        tasks.iter().map(|task| task.ports.iter().flat_map(|(_, ports)| ports.clone()).collect()).collect()
    }

    fn outside(placement: &Placement) -> Vec<u16> {
        published(placement).iter().map(|(outside, ..)| *outside).collect()
    }

    #[test]
    fn no_two_tasks_have_the_same_port_of_the_machine_and_nobody_s_is_taken() {
        let taken = [20_000, 20_003];
        let placement = two_tasks("task", &taken);
        let all: BTreeSet<u16> = outside(&placement).into_iter().collect();
        assert_eq!((outside(&placement).len(), all.len()), (8, 8), "{all:?}");
        assert!(taken.iter().all(|port| !all.contains(port)));
        let inside: Vec<u16> = published(&placement).iter().map(|(.., inside)| *inside).collect();
        assert_eq!(inside.iter().filter(|port| **port == 20_001).count(), 2, "as the file says, in both");
        assert!(all.contains(&20_001) && all.contains(&20_002), "one after another outside");
    }

    #[test]
    fn ports_that_two_roles_name_differ_outside() {
        let same =
            "[roles.a]\nports = { x = { begin = 21000, count = 2 } }\n[roles.b]\nports = { x = { begin = 21001 } }";
        let placement = placed(same, &[21_000], Publishing::On);
        let all: Vec<(u16, u16)> =
            published(&placement).iter().map(|(outside, _, inside)| (*outside, *inside)).collect();
        // The first is another attempt's, the last was given to the first role: both get the next free ones.
        assert_eq!(all, [(20_000, 21_000), (21_001, 21_001), (20_001, 21_001)]);
    }

    #[test]
    fn three_roles_with_twenty_ports_each_all_differ() {
        let text =
            "[roles.a]\ncount = 4\nports = { x = 20 }\n[roles.b]\nports = { x = 20 }\n[roles.c]\nports = { x = 20 }";
        let all = outside(&placed(text, &[], Publishing::On));
        assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (120, 120));
    }

    #[test]
    fn tasks_that_share_a_network_get_different_ports() {
        for network in ["job", "host"] {
            let mut all = ports(network).concat();
            assert!(all.contains(&20_001) && all.contains(&20_002), "the second has the next stretch: {all:?}");
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
            assert!(published(&two_tasks(network, &[])).is_empty());
        }
        // On the machine they are nobody else's either, and nobody else's are taken.
        let host = two_tasks("host", &[20_000]);
        assert_eq!(of_the_machine(&host).len(), 8);
        assert!(!of_the_machine(&host).contains(&20_000) && of_the_machine(&two_tasks("job", &[])).is_empty());
    }

    #[test]
    fn services_are_reached_also_where_all_tasks_share_a_network() {
        let text = "network = \"job\"\nroles.w = { count = 2, ports = { a = 1 } }\n\
                    [services.x]\ncommand = \"x\"\nport = 80\n[services.y]\ncommand = \"y\"\nport = 20000\n";
        let spec = crate::spec::parse("x.toml", text).0.unwrap();
        let block = AddressBlock { base: Ipv4Addr::new(10, 0, 0, 0), prefix: 30 };
        let outside = || Outside { taken: BTreeSet::from([20_003]), publishing: Publishing::On };
        let placement = place(&spec, Some(block), outside()).unwrap();
        let shared = Ipv4Addr::new(10, 0, 0, 2);
        // Not the tasks' own ports, which the first two are, nor another attempt's.
        assert_eq!(published(&placement), [(20_004, shared, 80), (20_005, shared, 20_000)]);
        assert!(placement.tasks.iter().all(|task| task.address == Ipv4Addr::LOCALHOST), "they talk over the loopback");
        let off = place(&spec, Some(block), Outside { publishing: Publishing::Off, ..outside() }).unwrap();
        assert!(published(&off).is_empty());
    }

    #[test]
    fn where_nothing_is_published_nothing_is_said_to_be() {
        let placement = placed("[roles.w]\nports = { a = 2, b = { begin = 22 } }", &[], Publishing::Off);
        assert!(placement.tasks[0].published.is_empty() && published(&placement).is_empty());
        assert_eq!(placement.tasks[0].ports.len(), 2);
    }
}
