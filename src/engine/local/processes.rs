//! The process namespace and the `/dev/shm` that tasks with cards share where each has a network of its own: CUDA opens a peer's
//! memory by the number of the process that has it, and NCCL finds its peers by files in `/dev/shm`.
//!
//! Kept by `trainyard hold`, in a control group of the attempt. Its directory says whether it lives (`rundir/holder.rs`), so it is
//! found again by whatever daemon starts a task of the attempt once more; where it has ended, so have all tasks in there.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

use super::gpus::are_whole;
use super::{Bases, LocalEngine, failed, lock, told};
use crate::contract::Task;
use crate::engine::{EngineError, Launch};
use crate::ids::AttemptId;
use crate::rundir::holder::{HolderDir, HolderRecord};
use crate::spec::Network;
use crate::sys::file::create_dir;
use crate::sys::idmap::IdMap;
use crate::sys::lock::{HeldLock, wait_until_free};
use crate::sys::process::{EndedOnDrop, ProcessEnd, SealedProgram, Streams};
use crate::sys::{cgroup, mounts};

/// How long making namespaces may take, ms.
const PATIENCE: u16 = 30_000;

/// What tasks with cards share.
#[derive(Debug)]
pub(super) struct SharedProcesses {
    pub(super) holder: PathBuf,
    /// As they were when the attempt's first task was started.
    pub(super) ids: IdMap,
    pub(super) shm: PathBuf,
}

/// The tasks that share, where there are several with whole cards, each in a network of its own, and they have the same users and groups:
/// a process namespace belongs to one user namespace.
fn sharing<'a>(launch: &Launch, tasks: &'a [Task<'a>], bases: &'a Bases<'_>) -> Option<(Vec<&'a Task<'a>>, &'a IdMap)> {
    let has_cards = |task: &&Task<'_>| launch.gpus.get(task.ordinal as usize).is_some_and(|cards| are_whole(cards));
    let sharers: Vec<_> = tasks.iter().filter(has_cards).collect();
    let ids = &bases.of_role(sharers.first()?.role).ids;
    let is_alike = sharers.iter().all(|task| bases.of_role(task.role).ids == *ids);
    (launch.spec.network == Network::Task && sharers.len() > 1 && is_alike).then_some((sharers, ids))
}

impl LocalEngine {
    /// Made before the first of them starts, and found again by the others.
    pub(super) fn share_processes(
        &self,
        launch: &Launch,
        tasks: &[Task<'_>],
        bases: &Bases<'_>,
    ) -> Result<Option<SharedProcesses>, EngineError> {
        let Some((sharers, ids)) = sharing(launch, tasks, bases) else { return Ok(None) };
        let _one_at_a_time = lock(&self.sharing);
        let size = sharers.iter().map(|task| task.role.resources.shm.0).sum();
        let shm = self.shared_memory(launch.attempt, size)?;
        let dir = HolderDir::of(&self.paths.attempt(launch.attempt));
        let record =
            HolderRecord { ids: ids.clone(), cgroup: self.group_of_holder(launch.attempt), place: self.holder.clone() };
        let record = hold(&self.program, &dir, record)?;
        Ok(Some(SharedProcesses { holder: dir.path().to_owned(), ids: record.ids, shm }))
    }

    /// Ends what holds the processes of an attempt, if something does; nothing of its tasks may be left.
    pub(super) fn let_go_of_processes(&self, attempt: AttemptId) -> Result<(), EngineError> {
        let dir = HolderDir::of(&self.paths.attempt(attempt));
        // It may have been made by a daemon that lived elsewhere.
        let group = recorded_group(&dir).unwrap_or_else(|| self.group_of_holder(attempt));
        cgroup::remove(&group).map_err(failed("end what holds the attempt's processes"))
    }

    fn group_of_holder(&self, attempt: AttemptId) -> String {
        format!("{}/{attempt}-holder", self.tasks_group)
    }

    /// The attempt's `/dev/shm` where all of its tasks share it.
    pub(super) fn shared_memory_of_all(&self, launch: &Launch) -> Result<PathBuf, EngineError> {
        let size = launch.spec.roles.iter().map(|role| role.resources.shm.0 * u64::from(role.count)).sum();
        self.shared_memory(launch.attempt, size)
    }

    /// The attempt's `/dev/shm`; one that is there stays.
    fn shared_memory(&self, attempt: AttemptId, size: u64) -> Result<PathBuf, EngineError> {
        let shm = self.kernel_objects(attempt).join("shm");
        if !mounts::is_mounted(&shm).map_err(failed("look at the mounts"))? {
            create_dir(&shm, 0o1777)
                .and_then(|()| mounts::mount_shm(&shm, size))
                .map_err(failed("make the attempt's shared memory"))?;
        }
        Ok(shm)
    }
}

fn recorded_group(dir: &HolderDir) -> Option<String> {
    // One that cannot be read is of before the machine was started: of that nothing lives.
    Some(dir.read().ok()??.cgroup)
}

/// What the living holder was told, or `wanted`, which is what a new one is told.
fn hold(program: &SealedProgram, dir: &HolderDir, wanted: HolderRecord) -> Result<HolderRecord, EngineError> {
    let what = "make the process namespace that tasks with GPUs share";
    if dir.held().map_err(failed("look for what holds the attempt's processes"))?.is_some() {
        let missing =
            || EngineError(format!("{} says nothing, though its holder lives; stop the job", dir.path().display()));
        return dir.read().map_err(told)?.ok_or_else(missing);
    }
    create_dir(dir.path(), 0o700).map_err(failed(what))?;
    let lock = lock_of_dead(dir, &wanted.cgroup).map_err(failed("end an earlier holder of the attempt's processes"))?;
    // The number of an earlier one would mislead.
    lock.file().set_len(0).map_err(failed(what))?;
    dir.write(&wanted).map_err(told)?;
    start(program, dir, &lock).map_err(failed(what))?;
    Ok(wanted)
}

/// An earlier daemon may have died while it started one, in which nothing was started yet: that ends by itself, but not before it
/// has seen it.
fn lock_of_dead(dir: &HolderDir, group: &str) -> io::Result<HeldLock> {
    let groups: Vec<String> = recorded_group(dir).into_iter().chain([group.to_owned()]).collect();
    loop {
        groups.iter().try_for_each(|group| cgroup::kill_all(group))?;
        match dir.try_lock()? {
            Some(lock) => return Ok(lock),
            None => wait_until_free(File::open(dir.lock_file())?)?,
        }
    }
}

fn start(program: &SealedProgram, dir: &HolderDir, lock: &HeldLock) -> io::Result<()> {
    let (stdin, mut tell_to_stay) = io::pipe()?;
    let (told, stdout) = io::pipe()?;
    let streams = Streams { stdin: stdin.into(), stdout: stdout.try_clone()?.into(), stderr: stdout.into() };
    // By their numbers: who shares the namespace reads its command line.
    let opened = File::open(dir.path())?;
    let [dir_fd, lock_fd] = [&opened, lock.file()].map(|file| file.as_raw_fd().to_string());
    let arguments = ["hold".to_owned(), "--dir-fd".to_owned(), dir_fd, "--lock-fd".to_owned(), lock_fd];
    let inherited = [opened.as_fd(), lock.file().as_fd()];
    let maker =
        program.spawn_with_streams(arguments.map(OsString::from).into(), Vec::new(), &inherited, Some(streams))?;
    let end = EndedOnDrop(Arc::new(maker.pidfd)).end(PATIENCE)?;
    let mut told = BufReader::new(told);
    if end != Some(ProcessEnd::Exited(0)) {
        // What it has made ends by that, so that all it says comes to an end.
        drop(tell_to_stay);
        let mut said = String::new();
        told.read_to_string(&mut said)?;
        let end = end.map_or("it took too long".to_owned(), |end| format!("{end:?}"));
        return Err(io::Error::other(format!("trainyard hold: {end}: {}", said.trim())));
    }
    let mut number = String::new();
    told.read_line(&mut number)?;
    tell_to_stay.write_all(number.trim().as_bytes())?;
    drop(tell_to_stay);
    told.read_to_string(&mut String::new())?;
    match dir.held()? {
        Some(_) => Ok(()),
        None => Err(io::Error::other("what was to hold it has ended at once")),
    }
}
