//! The devices by which a task reaches its cards.
//!
//! Tasks of one attempt that share a network may open each other's cards: NCCL reaches a peer's memory by its device, and is a
//! hundred times slower where it cannot. Which cards a task uses it is told by variables. The boundary between jobs is hard:
//! what is not an attempt's own its tasks cannot open.

use std::io;
use std::path::{Path, PathBuf};

use super::{LocalEngine, told};
use crate::contract::Task;
use crate::contract::gpus::{Told, Visible, visible};
use crate::engine::{EngineError, Launch};
use crate::gpu::Measured;
use crate::ids::{GpuUuid, TaskId};
use crate::rundir::{CardUsage, GpuUsage};
use crate::spec::Network;
use crate::store::record::GpuLease;
use crate::sys::devices::Device;

/// Those that belong to no card and without which none is of use, and what makes each.
const REQUIRED: [(&str, &str); 2] =
    [("/dev/nvidiactl", "nvidia-modprobe -c 255"), ("/dev/nvidia-uvm", "nvidia-modprobe -c 0 -u")];
/// Some drivers do not have them.
const OPTIONAL: [&str; 2] = ["/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

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
    pub fn tell_gpu_usage(&self, task: TaskId, cards: &[GpuUuid], measured: &Measured) -> Result<(), EngineError> {
        let of_card = |uuid: &GpuUuid| {
            let sample = measured.cards.get(uuid).copied().unwrap_or_default();
            CardUsage { utilisation: sample.utilisation, memory: sample.memory, power: sample.power }
        };
        let usage = GpuUsage { at: measured.at, cards: cards.iter().map(of_card).collect() };
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
    /// Those of the whole attempt, where tasks may open each other's.
    all: Option<&'a [Vec<GpuLease>]>,
    attempt: String,
    visible: Visible,
}

impl<'a> Cards<'a> {
    pub(super) fn of(launch: &'a Launch, task: &Task<'_>) -> Self {
        let holders = launch.gpus.iter().filter(|cards| !cards.is_empty()).count();
        let shares = holders > 1 && launch.spec.network != Network::Task;
        Self {
            own: launch.gpus.get(task.ordinal as usize).map_or(&[], Vec::as_slice),
            all: shares.then_some(launch.gpus.as_slice()),
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
            Visible::Cards if self.own.is_empty() => Vec::new(),
            Visible::Cards => self.all.map_or_else(|| self.own.to_vec(), <[Vec<GpuLease>]>::concat),
            Visible::DriverAlone | Visible::Nothing => Vec::new(),
        }
    }

    pub(super) fn told(&self) -> Told<'a> {
        let shared = self.all.map(|_| format!("trainyard-{}", self.attempt));
        let own = if self.visible == Visible::Cards { self.own } else { &[] };
        Told { own: own.iter().map(|lease| &lease.uuid).collect(), shared }
    }

    pub(super) fn devices(&self) -> Result<Vec<PathBuf>, EngineError> {
        match self.openable() {
            leases if leases.is_empty() => Ok(Vec::new()),
            leases => nodes(&leases, Device::of),
        }
    }
}

/// The devices for these cards, if `look` finds all that are needed.
fn nodes(leases: &[GpuLease], look: impl Fn(&Path) -> io::Result<Device>) -> Result<Vec<PathBuf>, EngineError> {
    let mut found = Vec::new();
    for lease in leases {
        found.push(of_card(lease, &look)?);
    }
    for (path, maker) in REQUIRED {
        look(Path::new(path)).map_err(|error| absent(path, "which every card needs", &error, maker))?;
        found.push(path.into());
    }
    found.extend(OPTIONAL.iter().map(PathBuf::from).filter(|path| look(path).is_ok()));
    Ok(found)
}

fn of_card(lease: &GpuLease, look: impl Fn(&Path) -> io::Result<Device>) -> Result<PathBuf, EngineError> {
    let GpuLease { uuid, minor } = lease;
    let (path, maker) = (format!("/dev/nvidia{minor}"), format!("nvidia-modprobe -c {minor}"));
    let device =
        look(Path::new(&path)).map_err(|error| absent(&path, &format!("the device of {uuid}"), &error, &maker))?;
    match device.minor {
        Some(found) if found == *minor => Ok(path.into()),
        found => {
            let found = found.map_or("no".to_owned(), |found| found.to_string());
            Err(EngineError(format!(
                "{path} has minor number {found}, and would open another card than {uuid}; remove it, `{maker}` makes it anew"
            )))
        }
    }
}

fn absent(path: &str, what: &str, error: &io::Error, maker: &str) -> EngineError {
    match error.kind() {
        io::ErrorKind::NotFound => EngineError(format!("{path} is missing, {what}; `{maker}` makes it")),
        _ => EngineError(format!("{path}, {what}, cannot be used: {error}; remove it, `{maker}` makes it anew")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of cards 3 and 5, on a machine whose devices are these.
    fn found(there: &[(&str, u32)]) -> Result<Vec<String>, String> {
        let lease = |minor| GpuLease { uuid: format!("GPU-{minor}").parse().unwrap(), minor };
        let look = |path: &Path| {
            let found = there.iter().find(|(known, _)| Path::new(known) == path);
            let device = found.map(|(_, minor)| Device { major: 195, minor: Some(*minor) });
            device.ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        let found = nodes(&[lease(3), lease(5)], look).map_err(|error| error.0)?;
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
    fn a_device_that_is_that_of_another_card_is_refused() {
        let swapped = [("/dev/nvidia3", 3), ("/dev/nvidia5", 4), ("/dev/nvidiactl", 255), ("/dev/nvidia-uvm", 0)];
        let said = "/dev/nvidia5 has minor number 4, and would open another card than GPU-5; remove it, \
                    `nvidia-modprobe -c 5` makes it anew";
        assert_eq!(found(&swapped), Err(said.to_owned()));
    }
}
