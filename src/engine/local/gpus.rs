//! The devices by which a task reaches its cards.
//!
//! Tasks of one attempt that share a network may open each other's cards: NCCL reaches a peer's memory by its device, and is a
//! hundred times slower where it cannot. Which cards a task uses it is told by variables. The boundary between jobs is hard:
//! what is not an attempt's own its tasks cannot open.

use std::path::{Path, PathBuf};

use crate::contract::Task;
use crate::contract::gpus::Told;
use crate::engine::{EngineError, Launch};
use crate::spec::Network;
use crate::store::record::GpuLease;

/// Those that belong to no card; some drivers have no more than the first two.
const COMMON: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// Lets a task find the driver's libraries and programs where the loader may not know them.
pub(super) fn reach(env: &mut Vec<(String, String)>) {
    let mut before = |name: &str, first: &Path| match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, value)) if !value.is_empty() => *value = format!("{}:{value}", first.display()),
        Some((_, value)) => *value = first.display().to_string(),
        None => env.push((name.to_owned(), first.display().to_string())),
    };
    for folder in crate::gpu::driver_folders() {
        before("LD_LIBRARY_PATH", &folder);
        let programs = folder.with_file_name("bin");
        if programs.join("nvidia-smi").exists() {
            before("PATH", &programs);
        }
    }
}

pub(super) struct Cards<'a> {
    own: &'a [GpuLease],
    /// Those of the whole attempt, where tasks may open each other's.
    all: Option<&'a [Vec<GpuLease>]>,
    attempt: String,
}

impl<'a> Cards<'a> {
    pub(super) fn of(launch: &'a Launch, task: &Task<'_>) -> Self {
        let holders = launch.gpus.iter().filter(|cards| !cards.is_empty()).count();
        let shares = holders > 1 && launch.spec.network != Network::Task;
        Self {
            own: launch.gpus.get(task.ordinal as usize).map_or(&[], Vec::as_slice),
            all: shares.then_some(launch.gpus.as_slice()),
            attempt: launch.attempt.to_string(),
        }
    }

    pub(super) fn told(&self) -> Told<'a> {
        let shared = self.all.map(|_| format!("trainyard-{}", self.attempt));
        Told { own: self.own.iter().map(|lease| &lease.uuid).collect(), shared }
    }

    pub(super) fn devices(&self) -> Result<Vec<PathBuf>, EngineError> {
        if self.own.is_empty() {
            return Ok(Vec::new());
        }
        let leases = self.all.map_or_else(|| self.own.to_vec(), <[Vec<GpuLease>]>::concat);
        let nodes: Vec<PathBuf> = leases.iter().map(|lease| format!("/dev/nvidia{}", lease.minor).into()).collect();
        if let Some(missing) = nodes.iter().find(|node| !node.exists()) {
            let missing = missing.display();
            return Err(EngineError(format!(
                "{missing} is missing, the device of a card; `nvidia-modprobe -c 0 -u` makes it"
            )));
        }
        let common = COMMON.iter().map(Path::new).filter(|path| path.exists()).map(Path::to_owned);
        Ok(nodes.into_iter().chain(common).collect())
    }
}
