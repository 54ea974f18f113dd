//! What the tasks of an attempt have in common: a network, `/dev/shm`, what of the machine and of each other they see.

use std::path::PathBuf;

use super::network::{self, Peers};
use super::processes::SharedProcesses;
use super::{LocalEngine, failed, gpus, lock, peers, shown};
use crate::contract::Placement;
use crate::contract::mpi::PEERS;
use crate::engine::{EngineError, Launch, Prepare};
use crate::ids::TaskId;
use crate::rundir::{Mount, Shm};
use crate::spec::{Image, Network, Role};
use crate::sys::file::create_dir;
use crate::sys::mounts;

/// What the tasks of an attempt have in common.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) namespace: Option<PathBuf>,
    shm: Option<PathBuf>,
    /// By which its tasks start processes on each other.
    peers: Option<PathBuf>,
    /// Of those with cards, where each task has a network of its own.
    pub(super) processes: Option<SharedProcesses>,
    /// What else of the machine they see.
    shown: Vec<Mount>,
}

impl Shared {
    pub(super) fn mounts(&self) -> impl Iterator<Item = Mount> {
        let peers = |source: &PathBuf| Mount {
            source: source.clone(),
            target: PathBuf::from(PEERS),
            read_only: false,
            scratch: None,
            is_of_machine: false,
        };
        self.shown.iter().cloned().chain(self.peers.iter().map(peers))
    }

    pub(super) fn shm(&self, role: &Role) -> Shm {
        match &self.shm {
            Some(source) => Shm::Shared { source: source.clone() },
            None => Shm::Own { size: role.resources.shm.0 },
        }
    }
}

impl LocalEngine {
    /// Everything of an attempt that is not one task's own.
    pub(super) fn make_common(
        &self,
        run: &Prepare,
        launch: &Launch,
    ) -> Result<(Shared, Placement, Vec<String>), EngineError> {
        // After a restart the tasks of one attempt may be started one by one, side by side.
        let _one_at_a_time = lock(&self.sharing);
        self.prepare_here(run, &|_| ())?;
        let (mut shared, (placement, remarks)) = (self.share(launch)?, self.placement(launch)?);
        shared.shown = shown::mounts(run, &self.paths, self.config.now().mounts_below.as_deref())?;
        shared.shown.extend(self.carrier.mounts(run)?);
        // What lies in another one comes after it.
        shared.shown.sort_by(|a, b| a.target.cmp(&b.target));
        self.outbox.post(launch)?;
        if launch.spec.is_launched() {
            let peers = peers::make(&self.kernel_objects(launch.attempt), launch, &placement);
            shared.peers = Some(peers.map_err(failed("make what the tasks start each other's processes by"))?);
        }
        Ok((shared, placement, remarks))
    }

    /// What the tasks of the attempt share, made before the first of them starts.
    fn share(&self, launch: &Launch) -> Result<Shared, EngineError> {
        if launch.owner.uid == 0 && launch.spec.roles.iter().any(|role| role.image == Image::Host) {
            self.host.refresh().map_err(failed("look for what of /etc is to be hidden"))?;
        }
        let objects = self.kernel_objects(launch.attempt);
        create_dir(&objects, 0o700).map_err(failed("make the attempt's directory"))?;
        create_dir(&self.paths.attempt(launch.attempt), 0o700).map_err(failed("make the attempt's directory"))?;
        let mut shared = Shared::default();
        match launch.spec.network {
            Network::Task if Peers::of(&launch.spec) == Peers::Alone => {}
            Network::Task => {
                let block = launch.block.ok_or_else(|| EngineError("the attempt has no addresses".to_owned()))?;
                self.networks.make_bridge(launch.attempt, block).map_err(failed("make the job's bridge"))?;
            }
            Network::Job => {
                let namespace = objects.join("net");
                // A daemon may have died between making the place and mounting there.
                let is_made = mounts::is_mounted(&namespace).map_err(failed("look at the mounts"))?;
                let only = TaskId::first(launch.attempt, 0);
                let made = match launch.block {
                    Some(block) if is_made => self.networks.open_gate(only, block),
                    Some(block) => self.networks.attach(only, Peers::Alone, block, &namespace),
                    // It was begun by an earlier program.
                    None if is_made => Ok(()),
                    None => network::make_shared(&namespace),
                };
                made.map_err(failed("make the attempt's network"))?;
                let shm = self.shared_memory_of_all(launch)?;
                shared = Shared { namespace: Some(namespace), shm: Some(shm), ..Shared::default() };
            }
            // By files in it NCCL finds its peers.
            Network::Host if gpus::holders(launch) > 1 => {
                shared.shm = Some(self.shared_memory_of_all(launch)?);
            }
            Network::Host => {}
        }
        Ok(shared)
    }
}
