//! The private directory of one task, which the daemon and its shim share.
//!
//! ```text
//! attempts/a17/placement.json   addresses and ports of the attempt, chosen once
//! attempts/a17/holder/          see `holder`
//! attempts/a17/3/task.json      what the shim is to do                    daemon, before the start
//!               config.json     the OCI configuration                     daemon
//!               rootfs/ upper/ work/                                      put together by the shim, in its own namespace
//!               lock            held from before the start of the shim until it ends
//!               init.pid        the container's first process, for `enter` to find   shim, right after the creation
//!               started         exists once the command may have run      shim
//!               stop            why the task is to stop                   daemon, then SIGTERM to the shim
//!               kept.json       how the command ended, whose container stays for a while          shim
//!               exit.json       how the task ended                        shim, whole and synced, before it ends
//!               shim.log        what the shim and libcontainer say
//! ```
//! A held lock means a live shim. A free lock with `exit.json` is an end; a free lock with `started` alone is a lost
//! task; a free lock with neither has never run anything and may be started.

pub mod entry;
pub mod holder;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ids::{LogLimits, TaskId, Timestamp};
use crate::status::{EndRecord, StopCause};
use crate::sys::file::{Durability, has_no_room, write_whole};
use crate::sys::idmap::IdMap;
use crate::sys::lock::HeldLock;

#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is damaged")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot lock {path}")]
    Lock {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} was written by a later Trainyard (version {found}, this one knows {LAUNCH_VERSION}); install that one again, or let \
         its jobs end first"
    )]
    Newer { path: PathBuf, found: u32 },
}

impl RunDirError {
    /// The disk is full: it can be written when there is room.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Self::Write { source, .. } if has_no_room(source))
    }
}

/// Of [`LaunchRecord`], and of what shim and daemon write beside it. A field is only ever added with a default, and a cause of stopping
/// (which a shim that does not know it takes as [`StopCause::Newer`]); anything else raises it. A daemon goes on with tasks of every
/// earlier version.
pub const LAUNCH_VERSION: u32 = 1;

fn first_version() -> u32 {
    1
}

/// What a shim is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchRecord {
    #[serde(default = "first_version")]
    pub version: u32,
    pub task: TaskId,
    /// Job and task as people write them, for the process list and messages.
    pub title: String,
    /// Cgroup below the hierarchy's root, as libcontainer takes it.
    pub cgroup: String,
    /// Where the logs go.
    pub log_dir: PathBuf,
    pub root: Root,
    /// Users and groups of the container's user namespace.
    pub ids: IdMap,
    /// The network namespace to enter; the machine's own when absent.
    pub network: Option<PathBuf>,
    /// The holder's directory, where the user and the process namespace are those that tasks of the attempt share.
    #[serde(default)]
    pub holder: Option<PathBuf>,
    /// Sent to the command when the task is to stop.
    pub stop_signal: i32,
    /// When the command fails its container stays so long, ms, to be looked into.
    #[serde(default)]
    pub keep_failed_ms: Option<u64>,
    /// Whether our own process is the container's first one, or the command itself.
    pub init: Init,
    /// Python packages that are to be installed first.
    #[serde(default)]
    pub requirements: Option<Requirements>,
    /// Where its platform's scripts say why they failed, and look for a word of success: a directory of the run's.
    #[serde(default)]
    pub end_files: Option<PathBuf>,
    /// Where its scalars are to be found.
    #[serde(default)]
    pub scalars: Option<ScalarsRecord>,
    /// How many graphics cards it has.
    #[serde(default)]
    pub gpus: usize,
    /// How much of its output is kept.
    #[serde(default)]
    pub logs: LogLimits,
    /// Bytes; told when the task runs out of memory.
    pub memory: u64,
    /// From SIGTERM to SIGKILL, ms.
    pub stop_grace_ms: u64,
    /// Datagram socket of the daemon.
    pub news_socket: PathBuf,
}

/// What the cards of a task did when the daemon measured them last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUsage {
    pub at: Timestamp,
    /// In the order in which the task counts them.
    pub cards: Vec<CardUsage>,
}

/// What one of them did; what it does not tell is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CardUsage {
    /// Percent.
    pub utilisation: Option<u32>,
    /// Bytes in use.
    pub memory: Option<u64>,
    /// Thousandths of a watt.
    pub power: Option<u32>,
}

/// Where scalars of a task are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalarsRecord {
    /// Of event files.
    pub log_dir: Option<ScalarsPlace>,
    /// A regular expression for lines of output.
    pub lines: Option<String>,
    /// Host names that are in the names of its own event files; all but those of `others` when empty.
    pub own: Vec<String>,
    pub others: Vec<String>,
}

/// A directory that is its owner's to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalarsPlace {
    /// Of the run, made by the daemon.
    pub root: PathBuf,
    pub below: PathBuf,
}

impl ScalarsRecord {
    /// Whether a file with this name is one that this task reads: with `mark` in its name, and its own.
    pub fn is_own(&self, name: &[u8], mark: &[u8]) -> bool {
        let has = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
        let names = |hosts: &[String]| hosts.iter().any(|host| has(format!(".{host}.").as_bytes()));
        has(mark) && if self.own.is_empty() { !names(&self.others) } else { names(&self.own) }
    }
}

/// A list of Python packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// Where the task sees the list.
    pub list: Option<String>,
    /// And the code, where that is a package to install.
    #[serde(default)]
    pub package: Option<String>,
    /// For messages.
    pub name: String,
    /// Where the task sees the place that they are installed into.
    pub place: String,
    /// And where pip may keep what it has built and fetched.
    pub wheels: String,
}

impl Requirements {
    /// The file in their place that is there once all of them are installed.
    pub const COMPLETE: &str = "complete";
}

/// What the container's first process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Ours, which starts the command, passes signals on and reaps.
    Ours,
    /// The command.
    Command,
}

/// The task's root file system, put together by the shim in a mount namespace of its own, in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// A directory of the machine that the shim covers in its own mount namespace, to put the root together there:
    /// every user of a container can pass to it, as they cannot to the directory of the task.
    pub holder: PathBuf,
    pub overlays: Vec<Overlay>,
    pub lower: Lower,
    pub mounts: Vec<Mount>,
    /// Nodes in `/dev` that the task may open, beside those that every task has.
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    /// What of the driver of its cards is shown in an image, which lacks it.
    #[serde(default)]
    pub driver: Option<Driver>,
    pub shm: Shm,
    /// The task's own files, such as `/etc/hosts`.
    pub files: Vec<OwnFile>,
    /// Made if they are missing, for the task's user: where the task begins, what its platform promises, and the image's volumes.
    pub directories: Vec<PathBuf>,
    /// The task's user and group, inside.
    #[serde(default)]
    pub user: (u32, u32),
}

impl Root {
    /// Where the root comes to lie.
    pub fn place(holder: &Path) -> PathBuf {
        holder.join("root")
    }

    /// Where the container's user namespace is found.
    pub fn user_namespace(holder: &Path) -> PathBuf {
        holder.join("user")
    }

    /// And its process namespace, where it is not the container's own.
    pub fn process_namespace(holder: &Path) -> PathBuf {
        holder.join("processes")
    }
}

/// Layers below a scratch layer of the task's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Of the scratch layer in `upper/` and `work/`.
    pub name: String,
    /// Top first.
    pub lower: Vec<PathBuf>,
    /// Below the root; empty for the root itself.
    pub target: PathBuf,
}

/// Whether layers are shown with their owners as the container's user namespace has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lower {
    /// By id-mapped mounts.
    Mapped,
    /// Copies with the right owners; or the machine's own files, which seem to be nobody's but for those of the job's owner:
    /// what not everybody may read stays closed.
    AsTheyAre,
}

/// A file or directory of the machine that the task sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// No link leads there.
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// The scratch layer in `upper/` and `work/` that takes the task's changes, where it may make some of its own.
    #[serde(default)]
    pub scratch: Option<String>,
    /// It is a place of the machine that the job asked to see: nothing is made in it but by the task.
    #[serde(default)]
    pub is_of_machine: bool,
}

/// Files of a driver, and how programs in an image find them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    pub version: String,
    pub files: Vec<DriverFile>,
    pub links: Vec<DriverLink>,
    /// Names of libraries, and where the loader is to find them.
    pub libraries: Vec<(String, PathBuf)>,
}

/// A file, directory or socket of the machine, which is seen read-only, whatever the image has there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFile {
    /// No link leads there.
    pub source: PathBuf,
    pub target: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverLink {
    pub path: PathBuf,
    pub leads_to: PathBuf,
}

/// The task's `/dev/shm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shm {
    /// One of its own, bytes.
    Own { size: u64 },
    /// The attempt's.
    Shared { source: PathBuf },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnFile {
    pub path: PathBuf,
    pub content: String,
    #[serde(default = "plain")]
    pub mode: u32,
}

fn plain() -> u32 {
    0o644
}

/// A failed task whose container is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptRecord {
    pub end: EndRecord,
    pub until: Timestamp,
}

/// What a task directory says about its task.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// Nothing of it ever ran.
    NeverStarted,
    /// Its shim lives; `running` once the command was started.
    Alive {
        shim: Option<i32>,
        running: bool,
    },
    /// The command has failed; its shim lives, and its container is kept to be looked into.
    Kept {
        shim: Option<i32>,
        kept: KeptRecord,
    },
    Ended(EndRecord),
    /// The command was started, the shim is gone and left no word.
    Lost(Loss),
}

/// How it is told that a task has ended with the machine.
pub const MACHINE_RESTARTED: &str = "the machine restarted";

/// What took a shim away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It was started before the machine was.
    MachineRestarted,
    /// It was killed.
    Shim,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDir(PathBuf);

impl TaskDir {
    pub fn new(attempt: &Path, task: TaskId) -> Self {
        Self(attempt.join(task.within_attempt()))
    }

    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn rootfs(&self) -> PathBuf {
        self.0.join("rootfs")
    }

    pub fn upper(&self, layer: &str) -> PathBuf {
        self.0.join("upper").join(layer)
    }

    pub fn work(&self, layer: &str) -> PathBuf {
        self.0.join("work").join(layer)
    }

    pub fn oci_config(&self) -> PathBuf {
        self.0.join("config.json")
    }

    pub fn container_state(&self) -> PathBuf {
        self.0.join("state")
    }

    pub fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn started_file(&self) -> PathBuf {
        self.0.join("started")
    }

    fn stop_file(&self) -> PathBuf {
        self.0.join("stop")
    }

    fn exit_file(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    fn kept_file(&self) -> PathBuf {
        self.0.join("kept.json")
    }

    pub fn write_kept(&self, kept: &KeptRecord) -> Result<(), RunDirError> {
        write_json(&self.kept_file(), kept, Durability::Machine)
    }

    fn gpu_usage_file(&self) -> PathBuf {
        self.0.join("gpus.json")
    }

    /// For the shim, which knows no cards.
    pub fn write_gpu_usage(&self, usage: &GpuUsage) -> Result<(), RunDirError> {
        write_json(&self.gpu_usage_file(), usage, Durability::Process)
    }

    pub fn read_gpu_usage(&self) -> Result<Option<GpuUsage>, RunDirError> {
        read_json(&self.gpu_usage_file())
    }

    fn init_file(&self) -> PathBuf {
        self.0.join("init.pid")
    }

    fn launch_file(&self) -> PathBuf {
        self.0.join("task.json")
    }

    /// Takes the lock that proves the shim's life; `None` when a shim holds it.
    pub fn try_lock(&self) -> Result<Option<HeldLock>, RunDirError> {
        let path = self.lock_file();
        HeldLock::try_take(&path).map_err(|source| RunDirError::Lock { path, source })
    }

    pub fn write_launch(&self, record: &LaunchRecord) -> Result<(), RunDirError> {
        write_json(&self.launch_file(), record, Durability::Process)
    }

    pub fn read_launch(&self) -> Result<LaunchRecord, RunDirError> {
        let path = self.launch_file();
        let record: LaunchRecord = read_json(&path)?
            .ok_or_else(|| RunDirError::Read { path: path.clone(), source: io::ErrorKind::NotFound.into() })?;
        match record.version {
            found if found > LAUNCH_VERSION => Err(RunDirError::Newer { path, found }),
            _ => Ok(record),
        }
    }

    /// Notes which process is the container's first one.
    pub fn write_init(&self, pid: i32) -> Result<(), RunDirError> {
        write_json(&self.init_file(), &pid, Durability::Process)
    }

    /// The container's first process by number, which may be another's by now; `None` before the container is there.
    pub fn read_init(&self) -> Result<Option<i32>, RunDirError> {
        read_json(&self.init_file())
    }

    /// Marks that the command is about to run: from here on a vanished shim means a lost task.
    pub fn mark_started(&self) -> Result<(), RunDirError> {
        write_json(&self.started_file(), &boot()?, Durability::Process)
    }

    /// Of a task that was started and whose shim is gone.
    fn loss(&self) -> Result<Loss, RunDirError> {
        match read_json::<Option<String>>(&self.started_file()) {
            Ok(Some(Some(begun))) if begun == boot()? => Ok(Loss::Shim),
            // Earlier versions have not written when the machine was started.
            Ok(None | Some(None)) => Ok(Loss::Shim),
            // It is not synced: a machine that goes down may leave it empty.
            Ok(Some(Some(_))) | Err(RunDirError::Damaged { .. }) => Ok(Loss::MachineRestarted),
            Err(error) => Err(error),
        }
    }

    pub fn write_stop(&self, cause: &StopCause) -> Result<(), RunDirError> {
        write_json(&self.stop_file(), cause, Durability::Process)
    }

    pub fn read_stop(&self) -> Result<Option<StopCause>, RunDirError> {
        read_json(&self.stop_file())
    }

    pub fn write_end(&self, end: &EndRecord) -> Result<(), RunDirError> {
        write_json(&self.exit_file(), end, Durability::Machine)
    }

    pub fn read_end(&self) -> Result<Option<EndRecord>, RunDirError> {
        read_json(&self.exit_file())
    }

    /// Judges the directory; the order of the looks closes every race with a shim that is just ending.
    pub fn look(&self) -> Result<Found, RunDirError> {
        if !self.0.exists() {
            return Ok(Found::NeverStarted);
        }
        let lock = self.try_lock()?;
        let running = self.started_file().exists();
        if lock.is_none() {
            let path = self.lock_file();
            let shim = crate::sys::lock::pid_in(&path).map_err(|source| RunDirError::Read { path, source })?;
            let kept = read_json(&self.kept_file())?;
            return Ok(kept.map_or(Found::Alive { shim, running }, |kept| Found::Kept { shim, kept }));
        }
        match self.read_end()? {
            Some(end) => Ok(Found::Ended(end)),
            // Its end was told before the shim went away.
            None if self.kept_file().exists() => {
                let kept: Option<KeptRecord> = read_json(&self.kept_file())?;
                kept.map_or_else(|| Ok(Found::Lost(self.loss()?)), |kept| Ok(Found::Ended(kept.end)))
            }
            None if running => Ok(Found::Lost(self.loss()?)),
            None => Ok(Found::NeverStarted),
        }
    }
}

/// Tells this start of the machine from others.
fn boot() -> Result<String, RunDirError> {
    crate::sys::boot_id().map_err(|source| RunDirError::Read { path: crate::sys::BOOT_ID.into(), source })
}

pub fn write_json<T: Serialize>(path: &Path, value: &T, durability: Durability) -> Result<(), RunDirError> {
    let bytes = serde_json::to_vec(value).map_err(|source| RunDirError::Damaged { path: path.to_owned(), source })?;
    write_whole(path, &bytes, 0o600, durability).map_err(|source| RunDirError::Write { path: path.to_owned(), source })
}

pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, RunDirError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RunDirError::Read { path: path.to_owned(), source }),
    };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|source| RunDirError::Damaged { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AttemptId;
    use crate::status::TaskEnd;

    #[test]
    fn a_directory_tells_never_started_alive_lost_and_ended_apart() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskDir::new(dir.path(), TaskId::first(AttemptId(1), 0));
        assert_eq!(task.look().unwrap(), Found::NeverStarted);
        crate::sys::file::create_dir(task.path(), 0o700).unwrap();
        assert_eq!(task.look().unwrap(), Found::NeverStarted);
        let mut lock = task.try_lock().unwrap().unwrap();
        assert_eq!(task.look().unwrap(), Found::Alive { shim: None, running: false });
        lock.write_pid(7).unwrap();
        task.mark_started().unwrap();
        assert_eq!(task.look().unwrap(), Found::Alive { shim: Some(7), running: true });
        drop(lock);
        assert_eq!(task.look().unwrap(), Found::Lost(Loss::Shim));
        // The machine was started anew since; what an earlier version has written does not tell.
        for (begun, loss) in
            [("\"another start\"", Loss::MachineRestarted), ("", Loss::MachineRestarted), ("null", Loss::Shim)]
        {
            fs::write(task.started_file(), begun).unwrap();
            assert_eq!(task.look().unwrap(), Found::Lost(loss));
        }
        let end = EndRecord { end: TaskEnd::Exited { code: 3 }, at: Timestamp(5), memory_peak: None, note: None };
        task.write_end(&end).unwrap();
        assert_eq!(task.look().unwrap(), Found::Ended(end));
    }

    /// A task that an earlier version has started may live for weeks: this text is what version 1 wrote first, before it had a number.
    const FIRST: &str = r#"{"task":{"attempt":1,"ordinal":0,"again":0},"title":"one/main-0","cgroup":"/trainyard-764af09b/a1-0",
        "log_dir":"/w/default/jobs/one/runs/1/attempts/1/main-0","root":{"holder":"/mnt","overlays":[{"name":"usr","lower":["/usr"],
        "target":"usr"}],"lower":"as_they_are","mounts":[{"source":"/w/output","target":"/output","read_only":false,"scratch":null,
        "is_of_machine":false}],"devices":[],"shm":{"own":{"size":33554432}},"files":[{"path":"/etc/hostname","content":"main-0\n",
        "mode":420}],"directories":["/output"]},"ids":{"users":[{"inside":0,"outside":0,"count":1}],"groups":[{"inside":0,"outside":0,
        "count":1}]},"network":"/run/trainyard/attempts/a1/net-0","stop_signal":15,"init":"ours","memory":67108864,"stop_grace_ms":30000,
        "news_socket":"/run/trainyard/news.sock"}"#;

    #[test]
    fn a_shim_that_does_not_know_why_it_is_to_stop_stops() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskDir::at(dir.path().to_owned());
        fs::write(task.stop_file(), r#"{"by":"full_moon","phase":3}"#).unwrap();
        assert_eq!(task.read_stop().unwrap(), Some(StopCause::Newer));
    }

    #[test]
    fn an_order_to_a_shim_is_read_as_version_1_wrote_it_and_refused_by_name_when_it_is_newer() {
        let dir = tempfile::tempdir().unwrap();
        let task = TaskDir::at(dir.path().to_owned());
        fs::write(task.launch_file(), FIRST).unwrap();
        let record = task.read_launch().unwrap();
        assert_eq!((record.version, record.title.as_str(), record.keep_failed_ms), (1, "one/main-0", None));
        let newer = FIRST.replacen('{', "{\"version\":99,", 1);
        fs::write(task.launch_file(), newer).unwrap();
        let error = task.read_launch().unwrap_err().to_string();
        assert!(error.contains("a later Trainyard (version 99, this one knows 1); install that one again"), "{error}");
    }
}
