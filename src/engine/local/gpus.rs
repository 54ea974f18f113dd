//! The devices by which a task reaches its cards.
//!
//! Tasks of one attempt that share a network or a process namespace may open each other's cards: NCCL reaches a peer's memory by its
//! device, and is a hundred times slower where it cannot. Which cards a task uses it is told by variables. The boundary between
//! jobs is hard: what is not an attempt's own its tasks cannot open.

use std::io;
use std::path::{Path, PathBuf};

use super::processes::SharedProcesses;
use super::{LocalEngine, told};
use crate::contract::Task;
use crate::contract::gpus::{Common, Shared, Told, Visible, visible};
use crate::engine::{EngineError, Launch};
use crate::gpu::nodes::{Missing, Places, look, of_all, of_card, of_slice};
use crate::gpu::{Held, Instances, Measured};
use crate::ids::TaskId;
use crate::rundir::{CardUsage, GpuUsage};
use crate::spec::{Network, Role};
use crate::store::record::{GpuLease, GpuPartLease};
use crate::sys::devices::Device;

/// Some drivers do not have them.
const OPTIONAL: [&str; 2] = ["nvidia-uvm-tools", "nvidia-modeset"];

/// Lets a task find the driver's libraries and programs where the loader may not know them.
pub(super) fn reach(env: &mut Vec<(String, String)>) {
    for folder in crate::gpu::driver_folders() {
        put_before(env, "LD_LIBRARY_PATH", &folder);
        let programs = folder.with_file_name("bin");
        if programs.join("nvidia-smi").exists() {
            put_before(env, "PATH", &programs);
        }
    }
}

/// Puts a folder before all others of a variable that lists some.
pub(super) fn put_before(env: &mut Vec<(String, String)>, name: &str, first: &Path) {
    match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, value)) if !value.is_empty() => *value = format!("{}:{value}", first.display()),
        Some((_, value)) => *value = first.display().to_string(),
        None => env.push((name.to_owned(), first.display().to_string())),
    }
}

impl LocalEngine {
    /// Tells a task's shim what its cards did, for its metrics.
    pub fn tell_gpu_usage(&self, task: TaskId, held: &[Held], measured: &Measured) -> Result<(), EngineError> {
        let of_card = |held: &Held| {
            let sample = measured.of(task, held).unwrap_or_default();
            CardUsage { utilisation: sample.utilisation, memory: sample.memory, power: sample.power }
        };
        let usage = GpuUsage { at: measured.at, cards: held.iter().map(of_card).collect() };
        let dir = self.task_dir(task);
        match dir.write_gpu_usage(&usage) {
            // It has just been cleaned up after.
            Err(_) if !dir.path().exists() => Ok(()),
            result => result.map_err(told),
        }
    }
}

pub(super) struct Cards<'a> {
    own: &'a [GpuLease],
    /// Those of the whole attempt, where tasks may open each other's, and why they may.
    all: Option<(&'a [Vec<GpuLease>], Reach<'a>)>,
    attempt: String,
    visible: Visible,
}

/// How tasks reach each other's cards.
#[derive(Debug, Clone, Copy)]
enum Reach<'a> {
    Network,
    Processes(&'a SharedProcesses),
}

impl<'a> Cards<'a> {
    /// `processes` are what tasks with whole cards share where each has a network of its own.
    pub(super) fn of(launch: &'a Launch, task: &Task<'_>, processes: Option<&'a SharedProcesses>) -> Self {
        let own = launch.gpus.get(task.ordinal as usize).map_or(&[] as &[_], Vec::as_slice);
        let reach = match launch.spec.network {
            _ if own.is_empty() => None,
            Network::Task => processes.filter(|_| are_whole(own)).map(Reach::Processes),
            Network::Job | Network::Host => (holders(launch) > 1).then_some(Reach::Network),
        };
        Self {
            own,
            all: reach.map(|reach| (launch.gpus.as_slice(), reach)),
            attempt: launch.attempt.to_string(),
            visible: visible(&task.role.env),
        }
    }

    /// Whether the task is to see the driver's files.
    pub(super) fn have_driver(&self) -> bool {
        !self.own.is_empty() && self.visible != Visible::Nothing
    }

    /// Those that the task can open.
    pub(super) fn openable(&self) -> Vec<GpuLease> {
        match self.visible {
            Visible::Cards => match self.all.filter(|_| are_whole(self.own)) {
                // Parts of cards do not reach each other, and what a task uses of one that is another's share would be nobody's.
                None => self.own.to_vec(),
                Some((all, _)) => all.iter().filter(|cards| are_whole(cards)).flatten().cloned().collect(),
            },
            Visible::DriverAlone | Visible::Nothing => Vec::new(),
        }
    }

    pub(super) fn told(&self) -> Told<'a> {
        let shared = self.all.map(|(_, reach)| Shared {
            host: format!("trainyard-{}", self.attempt),
            common: match reach {
                Reach::Network => Common::Network,
                Reach::Processes(_) => Common::Processes,
            },
        });
        let own = if self.visible == Visible::Cards { self.own } else { &[] };
        let share = own.iter().find_map(|lease| match lease.part {
            Some(GpuPartLease::Share { bytes, .. }) => Some(bytes),
            _ => None,
        });
        let are_slices = own.iter().any(|lease| matches!(lease.part, Some(GpuPartLease::Slice { .. })));
        Told { own: own.iter().map(GpuLease::device).collect(), share, are_slices, shared }
    }

    /// What it shares with other tasks that have cards.
    pub(super) fn processes(&self) -> Option<&'a SharedProcesses> {
        match self.all {
            Some((_, Reach::Processes(processes))) => Some(processes),
            Some((_, Reach::Network)) | None => None,
        }
    }

    pub(super) fn devices(&self) -> Result<Vec<PathBuf>, EngineError> {
        match self.openable() {
            leases if leases.is_empty() => Ok(Vec::new()),
            leases => nodes(&leases, Places::default(), look),
        }
    }
}

/// Why the devices of an attempt's cards are not all there, though they were when it was given these: that is none of its failures.
pub(super) fn not_there(launch: &Launch) -> Option<String> {
    let is_shown = |(_, role): &(u32, &Role)| visible(&role.env) == Visible::Cards;
    let roles = (0..).zip(launch.spec.tasks().map(|(role, _)| role));
    let leases: Vec<GpuLease> = roles
        .filter(is_shown)
        .filter_map(|(ordinal, _)| launch.gpus.get(ordinal as usize))
        .flatten()
        .cloned()
        .collect();
    if leases.is_empty() {
        return None;
    }
    let why = nodes(&leases, Places::default(), look).err()?;
    Some(format!("waits for the devices of its GPUs: no-device: {why}"))
}

/// How many tasks of the attempt have cards.
pub(super) fn holders(launch: &Launch) -> usize {
    launch.gpus.iter().filter(|cards| !cards.is_empty()).count()
}

/// These are cards, none of them in parts: only whole ones reach each other.
pub(super) fn are_whole(cards: &[GpuLease]) -> bool {
    !cards.is_empty() && cards.iter().all(|lease| lease.part.is_none())
}

/// The devices for these cards and slices, if `look` finds all that are needed.
fn nodes(
    leases: &[GpuLease],
    places: Places<'_>,
    look: impl Fn(&Path) -> io::Result<Device>,
) -> Result<Vec<PathBuf>, EngineError> {
    let missing = |missing: Missing| EngineError(missing.says);
    let mut found: Vec<PathBuf> = Vec::new();
    for lease in leases {
        let mut own = vec![of_card(places, &lease.uuid, lease.minor)];
        if let Some(GpuPartLease::Slice { gpu_instance, compute_instance, .. }) = &lease.part {
            let instances = Instances { gpu: *gpu_instance, compute: *compute_instance };
            own.extend(of_slice(places, lease.device(), lease.minor, instances).map_err(missing)?);
        }
        own.iter().try_for_each(|node| node.check(&look)).map_err(missing)?;
        // Slices of one card have its device in common, and so have shares.
        own.retain(|node| !found.contains(&node.path));
        found.extend(own.into_iter().map(|node| node.path));
    }
    for node in of_all(places) {
        node.check(&look).map_err(missing)?;
        found.push(node.path);
    }
    found.extend(OPTIONAL.iter().map(|name| places.devices.join(name)).filter(|path| look(path).is_ok()));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of cards 3 and 5, on a machine whose devices are these.
    fn found(there: &[(&str, u32)]) -> Result<Vec<String>, String> {
        let lease = |minor| GpuLease { uuid: format!("GPU-{minor}").parse().unwrap(), minor, part: None };
        let look = |path: &Path| {
            let found = there.iter().find(|(known, _)| Path::new(known) == path);
            let device = found.map(|(_, minor)| Device { major: 195, minor: Some(*minor) });
            device.ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let found = nodes(&[lease(3), lease(5)], Places { driver: Path::new("/nowhere"), ..Places::default() }, look)
            .map_err(|error| error.0)?;
        Ok(found.iter().map(|path| path.display().to_string()).collect())
    }

    #[test]
    fn a_task_gets_all_devices_that_its_cards_need_or_none() {
        let all = [("/dev/nvidia3", 3), ("/dev/nvidia5", 5), ("/dev/nvidiactl", 255), ("/dev/nvidia-uvm", 0)];
        assert_eq!(found(&all).unwrap(), all.map(|(path, _)| path));
        let more = [all.as_slice(), &[("/dev/nvidia-uvm-tools", 1), ("/dev/nvidia-modeset", 254)]].concat();
        assert_eq!(found(&more).unwrap().len(), 6);
        for (without, said) in [
            (0, "/dev/nvidia3 is missing, the device of GPU-3; `nvidia-modprobe -c 3` makes it"),
            (1, "/dev/nvidia5 is missing, the device of GPU-5; `nvidia-modprobe -c 5` makes it"),
            (2, "/dev/nvidiactl is missing, which every card needs; `nvidia-modprobe -c 255` makes it"),
            (3, "/dev/nvidia-uvm is missing, which every card needs; `nvidia-modprobe -c 0 -u` makes it"),
        ] {
            let rest: Vec<_> = all.iter().enumerate().filter(|(at, _)| *at != without).map(|(_, one)| *one).collect();
            assert_eq!(found(&rest), Err(said.to_owned()));
        }
    }

    #[test]
    fn parts_of_cards_are_opened_by_their_own_tasks_alone_which_open_no_others() {
        let lease = |minor, part| GpuLease { uuid: format!("GPU-{minor}").parse().unwrap(), minor, part };
        let share = GpuPartLease::Share { bytes: 1, of: 2 };
        let all = [vec![lease(0, None)], vec![lease(1, None)], vec![lease(2, Some(share))]];
        let opened = [0, 1, 2].map(|task: usize| {
            let reach = Some((all.as_slice(), Reach::Network));
            let cards = Cards { own: &all[task], all: reach, attempt: String::new(), visible: Visible::Cards };
            cards.openable().iter().map(|lease| lease.minor).collect::<Vec<_>>()
        });
        assert_eq!(opened, [vec![0, 1], vec![0, 1], vec![2]]);
    }

    #[test]
    fn a_device_that_is_that_of_another_card_is_refused() {
        let swapped = [("/dev/nvidia3", 3), ("/dev/nvidia5", 4), ("/dev/nvidiactl", 255), ("/dev/nvidia-uvm", 0)];
        let said = "/dev/nvidia5 has minor number 4, and is not the device of GPU-5; remove it, \
                    `nvidia-modprobe -c 5` makes it anew";
        assert_eq!(found(&swapped), Err(said.to_owned()));
    }

    #[test]
    fn slices_are_reached_by_their_card_and_the_devices_of_their_instances() {
        let directory = tempfile::tempdir().unwrap();
        let capability = |access: &str, minor: u32| {
            let path = directory.path().join(access);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
            std::fs::write(path, text).unwrap();
        };
        for (access, minor) in [("gi7", 66), ("gi7/ci0", 67), ("gi9", 84), ("gi9/ci1", 86)] {
            capability(&format!("capabilities/gpu3/mig/{access}/access"), minor);
        }
        let slice = |gpu_instance, compute_instance| {
            let (uuid, profile) = (format!("MIG-{gpu_instance}").parse().unwrap(), "1g.10gb".to_owned());
            let part = Some(GpuPartLease::Slice { uuid, profile, gpu_instance, compute_instance });
            GpuLease { uuid: "GPU-3".parse().unwrap(), minor: 3, part }
        };
        let found = |leases: &[GpuLease], swapped: Option<u32>| {
            let look = |path: &Path| {
                let name = path.display().to_string();
                let digits: String = name.chars().rev().take_while(char::is_ascii_digit).collect();
                let minor = digits.chars().rev().collect::<String>().parse().unwrap_or(255);
                let minor = if Some(minor) == swapped { 1 } else { minor };
                let is_optional = OPTIONAL.iter().any(|path| name == format!("/dev/{path}"));
                if is_optional {
                    Err(io::ErrorKind::NotFound.into())
                } else {
                    Ok(Device { major: 195, minor: Some(minor) })
                }
            };
            let places = Places { driver: directory.path(), ..Places::default() };
            let found = nodes(leases, places, look).map_err(|error| error.0)?;
            Ok::<_, String>(found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>())
        };
        let of_card = "/dev/nvidia3";
        let caps = |minors: &[u32]| {
            minors.iter().map(|minor| format!("/dev/nvidia-caps/nvidia-cap{minor}")).collect::<Vec<_>>()
        };
        let all = |minors: &[u32]| {
            let common = ["/dev/nvidiactl", "/dev/nvidia-uvm"].map(str::to_owned);
            [vec![of_card.to_owned()], caps(minors), common.to_vec()].concat()
        };
        assert_eq!(found(&[slice(7, 0)], None).unwrap(), all(&[66, 67]));
        assert_eq!(found(&[slice(7, 0), slice(9, 1)], None).unwrap(), all(&[66, 67, 84, 86]));
        let gone = found(&[slice(8, 0)], None).unwrap_err();
        assert!(gone.contains("gpu3/mig/gi8/access, by which slice MIG-8 is reached, cannot be read"), "{gone}");
        let other = found(&[slice(7, 0)], Some(67)).unwrap_err();
        assert!(
            other.starts_with(
                "/dev/nvidia-caps/nvidia-cap67 has minor number 1, and is not by which slice MIG-7 is reached"
            ),
            "{other}"
        );
    }
}
