//! What an attempt is given of the machine beside its network: addresses, ports, cores. Chosen once and written down in
//! `placement.json`; what other attempts have is found in theirs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::cores::Cores;
use super::network::{Publishing, is_taken};
use super::ports::{Outside, of_the_machine, place, published};
use super::{LocalEngine, cores, failed, lock, told};
use crate::contract::{Placement, TaskPlace};
use crate::engine::{EngineError, Launch, ListeningPort, Prepare};
use crate::ids::{AttemptId, TaskName};
use crate::rundir::{read_json, write_json};
use crate::spec::{JobSpec, Network};
use crate::sys::cgroup;
use crate::sys::file::{Durability, remove_if_there};

/// Ports from here on may be had by everybody, as on the machine itself.
const FIRST_OPEN_PORT: u16 = 1024;

impl LocalEngine {
    /// Addresses, ports and cores, chosen once: tasks that already run must not be told others. With what is to be told of the
    /// choice.
    pub(super) fn placement(&self, launch: &Launch) -> Result<(Placement, Vec<String>), EngineError> {
        let _one_at_a_time = lock(&self.placing);
        if let Some(placement) = self.read_placement(launch.attempt) {
            return Ok((placement, Vec::new()));
        }
        let taken = self.taken_ports().map_err(failed("look at the ports of other attempts"))?;
        let outside = Outside { taken, publishing: self.networks.publishing() };
        let mut placement = place(&launch.spec, launch.block, outside).map_err(failed("allot ports"))?;
        let cores = self.cores().map_err(failed("look at the cores of other attempts"))?;
        let mut remarks = Vec::new();
        let assigned = cores::assign(&launch.spec, &launch.near, cores);
        for ((place, kept), (role, index)) in placement.tasks.iter_mut().zip(assigned).zip(launch.spec.tasks()) {
            let task = TaskName { role: role.name.clone(), index };
            remarks.extend(kept.remark.map(|remark| format!("{task} {remark}")));
            (place.cores, place.near) = (kept.own, kept.near);
        }
        let path = self.placement_file(launch.attempt);
        write_json(&path, &placement, Durability::Process).map_err(told)?;
        self.publish(&placement).map_err(|error| {
            // It is not true yet; another start is to try again.
            let _ = remove_if_there(&path);
            failed("publish the task's ports")(error)
        })?;
        Ok((placement, remarks))
    }

    fn placement_file(&self, attempt: AttemptId) -> PathBuf {
        self.paths.attempt(attempt).join("placement.json")
    }

    /// A file that cannot be read must hold up neither the attempt's end nor the daemon's start: it counts as none.
    fn read_placement(&self, attempt: AttemptId) -> Option<Placement> {
        read_json(&self.placement_file(attempt)).unwrap_or_else(|error| {
            tracing::warn!(%attempt, error = %told(error), "an attempt's addresses and ports are not known");
            None
        })
    }

    fn placements(&self) -> io::Result<Vec<(AttemptId, Placement)>> {
        let mut out = Vec::new();
        for entry in fs::read_dir(self.paths.attempts())? {
            let Ok(attempt) = entry?.file_name().to_string_lossy().parse::<AttemptId>() else { continue };
            out.extend(self.read_placement(attempt).map(|placement| (attempt, placement)));
        }
        Ok(out)
    }

    fn publish(&self, placement: &Placement) -> io::Result<()> {
        let ports = published(placement);
        let Err(error) = self.networks.publish(&ports) else { return Ok(()) };
        tracing::warn!(%error, "making the rules of the tasks' networks anew");
        self.networks.renew()?;
        for (attempt, placement) in self.placements()? {
            self.publish_or_warn(attempt, &placement);
        }
        // Told when it is still not so.
        self.networks.publish(&ports)
    }

    /// Leads ports to the tasks of live attempts again, after the rules were made anew.
    pub(super) fn publish_all(&self, live: &BTreeSet<AttemptId>) -> io::Result<()> {
        for (attempt, placement) in self.placements()?.iter().filter(|(attempt, _)| live.contains(attempt)) {
            self.publish_or_warn(*attempt, placement);
        }
        Ok(())
    }

    fn publish_or_warn(&self, attempt: AttemptId, placement: &Placement) {
        if let Err(error) = self.networks.publish(&published(placement)) {
            tracing::warn!(%attempt, %error, "the ports of an attempt cannot be reached from elsewhere");
        }
    }

    /// Nothing leads to the attempt's tasks any more, and others may have its ports and cores.
    pub(super) fn take_back_ports(&self, attempt: AttemptId) -> io::Result<()> {
        let _one_at_a_time = lock(&self.placing);
        let Some(placement) = self.read_placement(attempt) else { return Ok(()) };
        if let Err(error) = self.networks.unpublish(&published(&placement)) {
            // They lead nowhere, and the rules are made anew when somebody is given one of them.
            tracing::warn!(%attempt, %error, "the ports of an attempt stay");
        }
        remove_if_there(&self.placement_file(attempt))
    }

    /// Cores of this machine, as far as they are ours, and those of them that no other attempt has for itself.
    fn cores(&self) -> io::Result<Cores> {
        if !cgroup::knows_cores(&self.tasks_group) {
            return Ok(Cores::default());
        }
        let all = crate::sys::process::own_cores()?;
        let mut free = all.clone();
        for (_, placement) in self.placements()? {
            let taken = placement.tasks.iter().flat_map(|task| &task.cores);
            for core in taken {
                free.remove(core);
            }
        }
        Ok(Cores { all, free })
    }

    /// Ports of the machine that tasks of other attempts have, or that lead to them.
    fn taken_ports(&self) -> io::Result<BTreeSet<u16>> {
        let all = self.placements()?;
        Ok(all.iter().flat_map(|(_, placement)| of_the_machine(placement)).collect())
    }

    /// Whoever is in the machine's network reaches what listens on its loopback.
    pub(super) fn check_network(&self, run: &Prepare) -> Result<(), EngineError> {
        let workspace = run.identity.key.workspace.as_str();
        let allowed =
            run.owner.uid == 0 || self.config.now().network.host_workspaces.iter().any(|allowed| allowed == workspace);
        let low = self.ports_of_the_machine(&run.spec).into_iter().find(|port| *port < FIRST_OPEN_PORT);
        if let Some(port) = low.filter(|_| run.owner.uid != 0) {
            return Err(EngineError(format!(
                "port {port} cannot be asked for: ports below {FIRST_OPEN_PORT} lead to this machine's own services, and are \
                 for jobs of root alone; use a higher one, or leave `begin` out"
            )));
        }
        match run.spec.network == Network::Host && !allowed {
            true => Err(EngineError(format!(
                "network = \"host\" is not allowed in workspace {workspace}; the administrator can allow it: \
                 host_workspaces = [\"{workspace}\"] under [network] in trainyard.toml"
            ))),
            false => Ok(()),
        }
    }

    /// Those that the file names. Where nothing is published, the ports of a task with a network of its own are nobody else's
    /// business.
    fn ports_of_the_machine(&self, spec: &JobSpec) -> Vec<u16> {
        match (spec.network, self.networks.publishing()) {
            (Network::Task, Publishing::Off) => Vec::new(),
            _ => spec.fixed_ports(),
        }
    }

    /// Ports that the tasks of an attempt have, while it has not been cleaned up after.
    pub fn listening(&self, attempt: AttemptId) -> Vec<ListeningPort> {
        let Some(placement) = self.read_placement(attempt) else { return Vec::new() };
        let on_machine = placement.on_machine;
        (0..).zip(&placement.tasks).flat_map(|(ordinal, place)| ports_of(ordinal, place, on_machine)).collect()
    }

    /// Why a port that the file names cannot be had now. Only asked before the attempt has anything: what runs has its own.
    pub(super) fn port_in_use(&self, launch: &Launch) -> Option<String> {
        let ports = self.ports_of_the_machine(&launch.spec);
        if ports.is_empty() || self.placement_file(launch.attempt).exists() {
            return None;
        }
        let taken = self.taken_ports().unwrap_or_default();
        let allotted =
            ports.iter().find(|port| taken.contains(port)).map(|port| (port, "is given to a task of another job"));
        let foreign = || ports.iter().find(|port| is_taken(**port)).map(|port| (port, "is in use by another program"));
        let (port, why) = allotted.or_else(foreign)?;
        Some(format!("waits for port {port} of this machine, which {why}; leave `begin` out to be given a free one"))
    }
}

fn ports_of(ordinal: u32, place: &TaskPlace, on_machine: bool) -> Vec<ListeningPort> {
    let published = |label: &str, at: usize| {
        let numbers = place.published.iter().find(|(other, _)| other == label);
        numbers.and_then(|(_, numbers)| numbers.get(at)).copied()
    };
    let of_label = |(label, numbers): &(String, Vec<u16>)| {
        let port = |(at, port): (usize, &u16)| ListeningPort {
            ordinal,
            label: label.clone(),
            address: place.address,
            port: *port,
            published: if on_machine { Some(*port) } else { published(label, at) },
        };
        numbers.iter().enumerate().map(port).collect::<Vec<_>>()
    };
    place.ports.iter().flat_map(of_label).collect()
}
