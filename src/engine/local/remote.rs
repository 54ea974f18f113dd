//! Stores of other machines: who may use which, what is copied in before a run starts, and the process that copies.
//!
//! ```text
//! remote/WORKSPACE/UID/PLACE/      what was copied in from one place of a store (crate::remote says how it lies there)
//! remote/WORKSPACE/UID/PLACE.lock  held while something is
//! jobs/JOB/runs/.N.remote          which snapshots the run sees, in all its attempts
//! jobs/JOB/runs/N/code.state       which state of a store the code is, by the hash of its listing
//! ```

mod prune;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use sha2::{Digest as _, Sha256};

use super::workdirs::{self, groups_of};
use super::{failed, told};
use crate::config::{InForce, Paths, Pool};
use crate::contract::Identity;
use crate::engine::{EngineError, Prepare, Told};
use crate::ids::{StoreKind, WorkspaceName};
use crate::remote::{ALIVE_EVERY, Access, Errand, News, Order, Rights, TREE};
use crate::rundir::{Mount, read_json, write_json};
use crate::spec::RemoteMount;
use crate::store::record::Owner;
use crate::sys::file::{Durability, create_dir, create_dir_for, read_limited};
use crate::sys::given_up::GivenUp;
use crate::sys::lock::HeldLock;
use crate::sys::process::{EndedOnDrop, PidFd, ProcessEnd, SealedProgram, Streams};
use crate::sys::rooted::Rooted;

/// Longest file of keys, bytes.
const SECRET_MAX: u64 = 64 << 10;

/// Starts the processes that copy.
pub(super) struct Carrier {
    program: Arc<SealedProgram>,
    paths: Paths,
    /// What is in force.
    config: InForce,
    /// What is being copied in, or waits for that.
    bringing: Mutex<Vec<Bringing>>,
    /// A place is free again, or somebody no longer waits for one.
    changed: Condvar,
}

/// The copy of a run that is made ready.
struct Bringing {
    given_up: GivenUp,
    process: Option<Arc<PidFd>>,
}

/// For each target, and each directory of code in the run, the snapshot, below `remote/`.
type Seen = BTreeMap<String, PathBuf>;

impl Carrier {
    pub(super) fn new(program: Arc<SealedProgram>, paths: Paths, config: InForce) -> Self {
        Self { program, paths, config, bringing: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether the run may use the stores that it names.
    pub(super) fn check(&self, run: &Prepare) -> Result<(), EngineError> {
        run.spec.stores().try_for_each(|remote| self.pool(remote, &run.identity.key.workspace).map(drop))
    }

    fn pool(&self, remote: &RemoteMount, workspace: &WorkspaceName) -> Result<Pool, EngineError> {
        let config = self.config.now();
        let may = |pool: &Pool| pool.workspaces.as_ref().is_none_or(|all| all.contains(workspace));
        let refused = |why: String| Err(EngineError(format!("{}: {remote}: {why}", remote.key())));
        let name = &remote.pool;
        match config.pools.get(name) {
            None => {
                let known = config.pools.iter().filter(|(_, pool)| may(pool));
                let known: Vec<String> = known.map(|(name, pool)| format!("{}:{name}", pool.kind.name())).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                refused(format!(
                    "this machine knows no pool {name} (workspace {workspace} may use: {known}); its administrator names it \
                     by [pools.{name}] in trainyard.toml"
                ))
            }
            Some(pool) if !may(pool) => {
                refused(format!("workspace {workspace} may not use it; `workspaces` of [pools.{name}] names who may"))
            }
            Some(pool) if StoreKind::parse(&remote.kind) != Some(pool.kind) => {
                let kind = pool.kind.name();
                refused(format!("the pool {name} is of kind {kind}; write {kind}:{name}/…"))
            }
            Some(pool) if pool.read_only && remote.sync.is_some() => {
                refused(format!("nothing may be copied to the pool {name} (read_only in trainyard.toml, or kind http)"))
            }
            Some(pool) => Ok(pool.clone()),
        }
    }

    fn access(&self, pool: &Pool) -> Result<Access, EngineError> {
        let secret = match &pool.secret {
            None => None,
            Some(name) => {
                let path = self.paths.secrets().join(name.as_str());
                let told = |why: String| EngineError(format!("the pool's secret {}: {why}", path.display()));
                let (file, bytes) = read_limited(&path, SECRET_MAX).map_err(|error| told(error.to_string()))?;
                let mode = file.metadata().map_err(|error| told(error.to_string()))?.mode();
                if mode & 0o077 != 0 {
                    return Err(told("others than root may read it; `chmod 600` it".to_owned()));
                }
                Some(String::from_utf8(bytes).map_err(|_| told("is not text".to_owned()))?)
            }
        };
        let made = Access::of(pool, secret.as_deref());
        made.map_err(|why| EngineError(format!("the pool's secret {why}")))
    }

    /// Carries out an errand at a store, in a process with the owner's rights, and hears what it tells. Ends with its last
    /// word. `begun` is given the process.
    pub(super) fn carry(
        &self,
        remote: &RemoteMount,
        whom: (&WorkspaceName, Owner),
        (directory, errand): (&File, Errand),
        begun: &dyn Fn(Arc<PidFd>),
        hear: &mut dyn FnMut(&News),
    ) -> Result<News, EngineError> {
        let (workspace, owner) = whom;
        let pool = self.pool(remote, workspace)?;
        let order = Order { access: self.access(&pool)?, rights: rights(&pool, owner)?, errand };
        self.run(directory, &order, begun, hear)
            .map_err(|error| EngineError(format!("the process that copies: {error}")))
    }

    fn run(
        &self,
        directory: &File,
        order: &Order,
        begun: &dyn Fn(Arc<PidFd>),
        hear: &mut dyn FnMut(&News),
    ) -> io::Result<News> {
        let (stdin, mut orders) = io::pipe()?;
        let (news, stdout) = io::pipe()?;
        let streams =
            Streams { stdin: stdin.into(), stdout: stdout.into(), stderr: io::stderr().as_fd().try_clone_to_owned()? };
        // A copy: the number that the child is told must be no other's.
        let directory: OwnedFd = directory.as_fd().try_clone_to_owned()?;
        let number = directory.as_raw_fd().to_string();
        let arguments = vec!["carry".into(), "--directory-fd".into(), number.into()];
        let child = self.program.spawn_with_streams(arguments, Vec::new(), &[directory.as_fd()], Some(streams))?;
        let child = EndedOnDrop(Arc::new(child.pidfd));
        begun(child.0.clone());
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        orders.write_all(&line)?;
        // The other end of `orders` stays open for as long as the copy is wanted.
        let last = listen(news, hear)?;
        drop(orders);
        match (last, child.end(FAREWELL_MS)?) {
            (Some(last @ (News::Brought { .. } | News::AllSent { .. } | News::Failed { .. })), _) => Ok(last),
            (_, Some(ProcessEnd::Signalled { signal, .. })) => {
                Err(io::Error::other(format!("it was ended by signal {signal}")))
            }
            _ => Err(io::Error::other("it ended without a word; the journal may tell more")),
        }
    }

    /// Copies in what the run's job file names, and keeps which state of it the run has.
    pub(super) fn bring(&self, run: &Prepare, tell: &(dyn Fn(Told) + Sync)) -> Result<(), EngineError> {
        if run.spec.stores().all(|place| place.sync.is_some()) {
            return Ok(());
        }
        self.bringing().push(Bringing { given_up: run.given_up.clone(), process: None });
        let brought = self.bring_all(run, tell).and_then(|()| self.bring_code(run, tell));
        self.bringing().retain(|bringing| !bringing.given_up.is_of(&run.given_up));
        brought
    }

    /// Ends the copy, and the wait for one, of a run that is no longer wanted.
    pub(super) fn give_up(&self, run: &GivenUp) {
        let bringing = self.bringing();
        run.set();
        for process in
            bringing.iter().filter(|bringing| bringing.given_up.is_of(run)).filter_map(|it| it.process.as_ref())
        {
            // It has ended where that fails.
            let _ = process.signal(Signal::SIGKILL);
        }
        self.changed.notify_all();
    }

    fn bringing(&self) -> MutexGuard<'_, Vec<Bringing>> {
        self.bringing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's copy is made by this process; by none when absent.
    fn set_process(&self, run: &GivenUp, process: Option<Arc<PidFd>>) {
        let mut bringing = self.bringing();
        if let (true, Some(process)) = (run.is_set(), &process) {
            // It was given up while the process was started.
            let _ = process.signal(Signal::SIGKILL);
        }
        if let Some(own) = bringing.iter_mut().find(|bringing| bringing.given_up.is_of(run)) {
            own.process = process;
        }
    }

    fn bring_all(&self, run: &Prepare, tell: &(dyn Fn(Told) + Sync)) -> Result<(), EngineError> {
        let seen = seen(&self.paths, &run.identity)?;
        let is_there = |target: &str| seen.get(target).is_some_and(|at| self.paths.remote().join(at).exists());
        for remote in run.spec.copied_in() {
            let target = remote.target.display().to_string();
            if !is_there(&target) {
                self.bring_one(run, remote, target, tell)?;
            }
        }
        Ok(())
    }

    /// As long as the run is not over nobody takes its snapshot for unused, also after the machine went down.
    fn note_seen(&self, run: &Prepare, name: String, snapshot: &Path) -> Result<(), EngineError> {
        let mut seen = seen(&self.paths, &run.identity)?;
        seen.insert(name, snapshot.to_owned());
        write_json(&seen_file(&self.paths, &run.identity), &seen, Durability::Machine).map_err(told)
    }

    /// What lies in a store becomes the run's snapshot as a directory of `code/` does; which state it is of is told beside it.
    fn bring_code(&self, run: &Prepare, tell: &(dyn Fn(Told) + Sync)) -> Result<(), EngineError> {
        let directory = self.paths.run(&run.identity.key, run.identity.run);
        for (code, name) in run.spec.codes() {
            let Some(place) = code.stored().filter(|_| !directory.join(&name).exists()) else { continue };
            let snapshot = self.bring_one(run, place, name.clone(), tell)?;
            let state = snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // It is its owner's: what of it is a link leads nowhere else.
            let root = Rooted::open(&self.paths.remote()).and_then(|root| root.handle(&snapshot.join(TREE)));
            let root = root.map_err(failed("open the copy of the code"))?;
            let source = PathBuf::from(format!("/proc/self/fd/{}/.", root.as_raw_fd()));
            let target = directory.join(&name);
            workdirs::note(&target, ".state", &state)?;
            workdirs::take(run, code, &source, &target)?;
        }
        Ok(())
    }

    /// Notes the snapshot as what the run has under `name` before the place is free: who looks for what nobody uses comes
    /// after that.
    fn bring_one(
        &self,
        run: &Prepare,
        remote: &RemoteMount,
        name: String,
        tell: &(dyn Fn(Told) + Sync),
    ) -> Result<PathBuf, EngineError> {
        let told = |why: String| EngineError(format!("{}: {remote}: {why}", remote.key()));
        let Prepare { identity, owner, .. } = run;
        let prefix = remote.prefix_of(&identity.key.job, identity.run);
        let pool = self.pool(remote, &identity.key.workspace)?;
        let below = Path::new(identity.key.workspace.as_str()).join(owner.uid.to_string()).join(place(&pool, &prefix));
        let directory = self.paths.remote().join(&below);
        let waits = || tell(Told::State(format!("waits for another copy of {remote}")));
        let opened = self.open_place(&directory, &rights(&pool, *owner)?, &run.given_up, &waits);
        let (directory, _place) = opened.map_err(|error| told(format!("cannot make the copy's directory: {error}")))?;
        let mut hear = |news: &News| match news {
            News::Progress(progress) => tell(Told::State(format!("copies in {remote}: {progress}"))),
            News::Again { why } => tell(Told::State(format!("copies in {remote}: {why}"))),
            _ => {}
        };
        tell(Told::State(format!("copies in {remote}")));
        let whom = (&identity.key.workspace, *owner);
        let begun = |process| self.set_process(&run.given_up, Some(process));
        let carried = self.carry(remote, whom, (&directory, Errand::Bring { prefix }), &begun, &mut hear);
        self.set_process(&run.given_up, None);
        match carried? {
            News::Brought { snapshot, .. } if is_snapshot(&snapshot) => {
                let snapshot = below.join(snapshot);
                self.note_seen(run, name, &snapshot)?;
                Ok(snapshot)
            }
            News::Failed { message, .. } => Err(told(message)),
            _ => Err(told("it was not copied".to_owned())),
        }
    }

    /// The directory, and the lock by which one copies at a time.
    fn open_place(
        &self,
        directory: &Path,
        rights: &Rights,
        given_up: &GivenUp,
        waits: &dyn Fn(),
    ) -> io::Result<(File, Place<'_>)> {
        let parents = directory.ancestors().skip(1).take(3).collect::<Vec<_>>();
        parents.into_iter().rev().try_for_each(|parent| create_dir(parent, 0o700))?;
        let path = directory.with_extension("lock");
        let place = match self.try_place(&path)? {
            Some(place) => place,
            None => {
                waits();
                self.wait_for_place(&path, given_up)?
            }
        };
        create_dir_for(directory, 0o700, rights.uid, rights.gid)?;
        Ok((File::open(directory)?, place))
    }

    fn try_place(&self, path: &Path) -> io::Result<Option<Place<'_>>> {
        Ok(HeldLock::try_take(path)?.map(|lock| Place { lock: Some(lock), carrier: self }))
    }

    /// Until the place is ours; nobody but this process takes these locks.
    fn wait_for_place(&self, path: &Path, given_up: &GivenUp) -> io::Result<Place<'_>> {
        let mut bringing = self.bringing();
        loop {
            given_up.check()?;
            if let Some(place) = self.try_place(path)? {
                return Ok(place);
            }
            bringing = self.changed.wait(bringing).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the run sees of what was copied in.
    pub(super) fn mounts(&self, run: &Prepare) -> Result<Vec<Mount>, EngineError> {
        let seen = seen(&self.paths, &run.identity)?;
        let shown = |remote: &RemoteMount| {
            let snapshot = seen.get(&remote.target.display().to_string()).ok_or_else(|| {
                EngineError(format!("mounts: {remote} was not copied in; `trainyard rerun {}` does", run.identity.key))
            })?;
            let source = self.paths.remote().join(snapshot);
            // When it was used last, for those who look for what nobody uses.
            let opened = File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&source);
            opened.and_then(|file| file.set_modified(SystemTime::now())).map_err(failed("open the copy"))?;
            let (source, target) = (source.join(TREE), remote.target.clone());
            Ok(Mount { source, target, read_only: true, scratch: None, is_of_machine: false })
        };
        run.spec.copied_in().map(shown).collect()
    }

    /// Snapshots that these runs have.
    pub(super) fn snapshots_of(&self, runs: &[Identity]) -> io::Result<Vec<PathBuf>> {
        let mut snapshots = Vec::new();
        for run in runs {
            snapshots.extend(seen(&self.paths, run).map_err(io::Error::other)?.into_values());
        }
        Ok(snapshots.into_iter().map(|snapshot| self.paths.remote().join(snapshot)).collect())
    }
}

/// A place of a store that is held: who waits for it hears when it is free again.
struct Place<'a> {
    lock: Option<HeldLock>,
    carrier: &'a Carrier,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Between a look at the lock and the wait nobody lets it go unheard.
        let _bringing = self.carrier.bringing();
        self.lock = None;
        self.carrier.changed.notify_all();
    }
}

/// How long it may take to end after its last word, ms.
const FAREWELL_MS: u16 = 60_000;
/// Without a word for so long it was stopped, or hangs.
const SILENT_MAX: Duration = Duration::from_secs(4 * ALIVE_EVERY.as_secs());
/// Longest line that it tells, bytes.
const LINE_MAX: u64 = 1 << 20;

/// Hears everything up to the end; the last news.
fn listen(news: io::PipeReader, hear: &mut dyn FnMut(&News)) -> io::Result<Option<News>> {
    let mut last = None;
    let mut reader = io::BufReader::new(news);
    loop {
        if reader.buffer().is_empty() && !has_something(reader.get_ref())? {
            let silent = crate::ids::format_duration(SILENT_MAX);
            return Err(io::Error::other(format!("it has said nothing for {silent}; it was stopped, or hangs")));
        }
        let mut line = Vec::new();
        reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(last);
        }
        let told: News = serde_json::from_slice(&line)?;
        if told != News::Alive {
            hear(&told);
            last = Some(told);
        }
    }
}

fn has_something(news: &io::PipeReader) -> io::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let timeout = PollTimeout::try_from(SILENT_MAX).map_err(io::Error::other)?;
    Ok(poll(&mut [PollFd::new(news.as_fd(), PollFlags::POLLIN)], timeout)? > 0)
}

/// What a process with the owner's rights calls its snapshot: nothing but a name of ours.
fn is_snapshot(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// What lies so many levels below a directory.
fn below(directory: &Path, levels: u32) -> io::Result<Vec<PathBuf>> {
    let mut all = vec![directory.to_owned()];
    for _ in 0..levels {
        let mut next = Vec::new();
        for place in all.iter().filter(|place| place.is_dir()) {
            for entry in fs::read_dir(place)? {
                next.push(entry?.path());
            }
        }
        all = next;
    }
    Ok(all.into_iter().filter(|path| path.extension() != Some(OsStr::new("lock"))).collect())
}

fn seen_file(paths: &Paths, identity: &Identity) -> PathBuf {
    paths.job(&identity.key).join("runs").join(format!(".{}.remote", identity.run))
}

fn seen(paths: &Paths, identity: &Identity) -> Result<Seen, EngineError> {
    Ok(read_json(&seen_file(paths, identity)).map_err(told)?.unwrap_or_default())
}

/// SFTP is spoken by `ssh`, whose memory the owner's other processes could read.
fn rights(pool: &Pool, owner: Owner) -> Result<Rights, EngineError> {
    if pool.kind == StoreKind::Sftp {
        return Ok(Rights { uid: 0, gid: 0, groups: Vec::new(), is_apart: true });
    }
    let groups = groups_of(owner).map_err(failed("take the owner's rights"))?;
    Ok(Rights { uid: owner.uid, gid: owner.gid, groups, is_apart: false })
}

/// One name for one place of a store, whatever a pool is called.
fn place(pool: &Pool, prefix: &str) -> String {
    let bucket = pool.bucket.as_deref().unwrap_or_default();
    let text = format!("{}\n{}\n{bucket}\n{}\n{prefix}", pool.kind.name(), pool.endpoint, pool.root);
    Sha256::digest(text.as_bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
