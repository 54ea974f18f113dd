//! The engine of this machine: containers through the shim, one process a task.
//!
//! `launch` prepares what the attempt shares (addresses, network, `/dev/shm`), fills a directory for each task, and
//! executes `trainyard shim DIR` with the task's lock held across the exec. `release` takes all of it away again.

mod acquire;
mod aside;
mod bases;
mod bundle;
mod code_limits;
mod cores;
mod driver;
mod entry;
mod git;
mod gpus;
mod host;
mod in_use;
mod models;
mod names;
mod netlink;
mod network;
mod outbox;
mod owners;
mod peers;
mod placing;
mod ports;
mod processes;
mod remote;
mod requirements;
mod root;
mod scalars;
mod sharing;
mod shown;
mod watching;
mod workdirs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::Signal;

use super::{Delivery, Engine, EngineError, Launch, Launched, Prepare, Release, Told};
use crate::config::{InForce, Paths};
use crate::contract::{Identity, Inside, Task, TaskPlace, Unspeakable, shells, view};
use crate::gpu::Gpus;
use crate::ids::{AttemptId, JobKey, TaskId, TaskName};
use crate::images::Images;
use crate::plan::address::gateway;
use crate::rundir::{Found, Init, LAUNCH_VERSION, LaunchRecord, Shm, TaskDir};
use crate::spec::Network;
use crate::status::{StopCause, StopHow};
use crate::sys::file::{Durability, create_dir, create_dir_for, remove_tree};
use crate::sys::given_up::GivenUp;
use crate::sys::lock::HeldLock;
use crate::sys::process::{Child, Launch as Spawn, PidFd, SealedProgram};
use crate::sys::{cgroup, mounts};
use bases::Bases;
use driver::DriverFinder;
use host::HostImage;
use network::{Networks, Peers};
use outbox::Outbox;
use owners::Subordinates;
use remote::Carrier;
use root::Base;
use sharing::Shared;

pub use entry::{Ends, Entered, Pipes};
pub use network::try_rules;
pub use outbox::{Delivered, Deliveries};

/// Called with a task whose directory has something new to say; from any thread.
pub type Notify = Box<dyn Fn(TaskId) + Send + Sync>;

pub struct LocalEngine {
    paths: Paths,
    program: Arc<SealedProgram>,
    host: HostImage,
    images: Arc<Images>,
    /// Layers of images can be shown with other owners.
    maps_ids: bool,
    subordinates: Subordinates,
    /// Where shims put root file systems together.
    holder: PathBuf,
    /// What is in force.
    config: InForce,
    driver: DriverFinder,
    carrier: Arc<Carrier>,
    outbox: Arc<Outbox>,
    networks: Networks,
    /// What tells tasks how to resolve names.
    resolv_conf: PathBuf,
    /// Below it each task has its control group.
    tasks_group: String,
    runtime: tokio::runtime::Handle,
    notify: Arc<Notify>,
    /// Held while what the tasks of an attempt have in common is made.
    sharing: Mutex<()>,
    /// Held while ports and cores are given or taken back.
    placing: Mutex<()>,
    /// Live shims that are watched.
    shims: Arc<Mutex<BTreeMap<TaskId, Arc<PidFd>>>>,
}

/// Gives an I/O error the words that its reader needs.
fn failed(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> EngineError {
    move |error| EngineError(format!("cannot {what}: {error}"))
}

/// What the engine uses of the daemon.
pub struct Means {
    pub images: Arc<Images>,
    pub gpus: Arc<Gpus>,
    pub runtime: tokio::runtime::Handle,
    /// The control group below which tasks have theirs.
    pub tasks_group: String,
}

impl LocalEngine {
    /// Takes hold of what the engine needs of the machine.
    pub fn open(
        in_force: &InForce,
        Means { images, gpus, runtime, tasks_group }: Means,
        notify: Notify,
        deliveries: Deliveries,
    ) -> io::Result<Self> {
        let config = in_force.now();
        let paths = config.paths.clone();
        let instance = paths.instance();
        create_dir(&paths.attempts(), 0o700)?;
        create_dir(&paths.kernel_objects(), 0o700)?;
        create_dir(&paths.remote(), 0o700)?;
        let program = images.program();
        let carrier = Arc::new(Carrier::new(program.clone(), paths.clone(), in_force.clone()));
        Ok(Self {
            program,
            outbox: Outbox::open(carrier.clone(), paths.clone(), deliveries)?,
            carrier,
            host: HostImage::prepare(&paths)?,
            images,
            maps_ids: mounts::can_map_ids(&paths.images())?,
            subordinates: Subordinates::open(paths.subordinate_ids())?,
            holder: root::holder(paths.root()),
            config: in_force.clone(),
            driver: DriverFinder::new(&config.gpu, gpus),
            networks: Networks::open(&instance, &config.network)?,
            resolv_conf: config.network.resolv_conf.clone(),
            tasks_group,
            paths,
            runtime,
            notify: Arc::new(notify),
            sharing: Mutex::new(()),
            placing: Mutex::new(()),
            shims: Arc::default(),
        })
    }

    /// Removes what attempts other than `live` have left behind: processes, networks, directories. What does not go now stays
    /// until the next start: nothing of a past attempt may keep the daemon from starting.
    pub fn sweep(&self, live: &BTreeSet<AttemptId>) -> io::Result<()> {
        let is_live = |name: &str| name.parse::<AttemptId>().is_ok_and(|attempt| live.contains(&attempt));
        for group in cgroup::children(&self.tasks_group)? {
            let owner = group.split('-').next().unwrap_or_default();
            if owner.starts_with('a') && !is_live(owner) {
                tracing::warn!(%group, "removing the processes of an attempt that nobody knows");
                or_warn("a control group stays", cgroup::remove(&format!("{}/{group}", self.tasks_group)));
            }
        }
        for directory in [self.paths.kernel_objects(), self.paths.attempts()] {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                if !is_live(&entry.file_name().to_string_lossy()) {
                    let removed = remove_kernel_objects(&entry.path()).and_then(|()| remove_tree(&entry.path()));
                    or_warn("the directory of an attempt stays", removed);
                }
            }
        }
        // The rules were made anew with the daemon.
        self.publish_all(live)?;
        self.networks.sweep(live)
    }

    /// Goes on with output that an earlier daemon has not copied out; `open` are the runs that are not over.
    pub fn resume_deliveries(&self, open: &[Identity]) -> io::Result<()> {
        self.outbox.resume(open)
    }

    /// Takes back what the engine itself holds of the machine, once nothing runs any more.
    pub fn close(&self) -> io::Result<()> {
        self.networks.close()?;
        cgroup::remove(&self.tasks_group)
    }

    /// Whether tasks can reach beyond the machine.
    pub fn reaches_out(&self) -> Result<(), String> {
        self.networks.reaches_out()
    }

    fn task_dir(&self, task: TaskId) -> TaskDir {
        TaskDir::new(&self.paths.attempt(task.attempt), task)
    }

    fn kernel_objects(&self, attempt: AttemptId) -> PathBuf {
        self.paths.kernel_objects().join(attempt.to_string())
    }

    /// The group in which a task was started, which may have been by a daemon that lived elsewhere.
    fn group_of(&self, task: TaskId) -> String {
        self.task_dir(task).read_launch().map_or_else(|_| self.cgroup_of(task), |launch| launch.cgroup)
    }

    /// Kills what runs of a task: it ends as stopped, since its shim was told so before. Of one whose command is not begun there is
    /// nothing to kill: its shim sees the stop before that or, later, is told again.
    fn kill(&self, task: TaskId, dir: &TaskDir) -> Result<(), EngineError> {
        match dir.look().map_err(told)? {
            Found::Alive { running: true, .. } | Found::Kept { .. } => {}
            _ => return Ok(()),
        }
        match cgroup::kill_all(&self.group_of(task)) {
            // It has ended just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(failed("kill the task")),
        }
    }

    fn cgroup_of(&self, task: TaskId) -> String {
        format!("{}/{task}", self.tasks_group)
    }

    fn log_dir(&self, identity: &Identity, task: &TaskName) -> PathBuf {
        self.paths.task(&identity.key, identity.run, identity.attempt, task)
    }

    fn launch_task(
        &self,
        launch: &Launch,
        id: TaskId,
        task: &Task<'_>,
        base: &Base,
        shared: &Shared,
    ) -> Result<(), EngineError> {
        let dir = self.task_dir(id);
        create_dir(dir.path(), 0o700).map_err(failed("make the task's directory"))?;
        let Some(lock) = dir.try_lock().map_err(told)? else {
            // An earlier start got as far as this: its shim lives.
            return Ok(());
        };
        // The number of an earlier shim would mislead.
        lock.file().set_len(0).map_err(failed("reset the task's lock file"))?;
        let name = TaskName { role: task.role.name.clone(), index: task.index };
        let log_dir = self.log_dir(&launch.identity, &name);
        make_log_dir(&self.paths, launch, &log_dir)?;
        let namespace = self.network_namespace(launch, task, shared)?;
        let mut view = view(task);
        workdirs::make_parts(&self.paths, &launch.identity, launch.owner, &view.places)?;
        let mut workspace = workdirs::mounts(&self.paths, launch.owner, task, &view.places)?;
        workdirs::name_single_files(&self.paths, launch.owner, task, &mut view.env)?;
        workspace.extend(shared.mounts());
        let mut install = None;
        // A command that is the first process itself has nobody to install them.
        if let Some(provided) = requirements::provide(&self.paths, launch, task, base)?.filter(|_| launch.spec.init) {
            crate::contract::requirements::reach(&mut view.env);
            workspace.extend(provided.mounts);
            install = provided.install;
        }
        let cards = gpus::Cards::of(launch, task, shared.processes.as_ref());
        let common = cards.processes();
        crate::contract::gpus::tell(&mut view.env, &cards.told());
        let (devices, driver) = self.driver.reach(&cards, base, &mut view.env)?;
        let own = root::Own {
            devices,
            driver,
            view: &view,
            resolv_conf: names::for_task(&self.resolv_conf, self.resolving_gateway(launch)),
            shm: common.map_or_else(|| shared.shm(task.role), |common| Shm::Shared { source: common.shm.clone() }),
            workspace,
        };
        let ids = common.map_or(&base.ids, |common| &common.ids);
        let scalars = scalars::record(launch, task, &view.places, &self.paths);
        let root = base.lay(&self.host, &dir, &self.holder, own)?;
        // Only the last one's: the next one needs what it would hold.
        let is_last = launch.identity.attempt > launch.spec.retries && id.again >= task.role.retries;
        let keep_failed = launch.spec.debug && is_last;
        let bundle = bundle::Bundle {
            resources: task.role.resources.clone(),
            view: &view,
            user: &base.user,
            ids,
            holder: &self.holder,
            shares_processes: common.is_some(),
            keep_failed,
            cores: task.place().map_or(&[], TaskPlace::kept_to),
            group: &self.cgroup_of(id),
            hidden: self.hidden(base),
        };
        let config = bundle::config(&bundle);
        let written = crate::sys::file::write_whole(&dir.oci_config(), &config, 0o600, Durability::Process);
        written.map_err(failed("write the container's configuration"))?;
        let in_force = self.config.now();
        dir.write_launch(&LaunchRecord {
            version: LAUNCH_VERSION,
            task: id,
            title: format!("{}/{name}", launch.identity.key),
            cgroup: self.cgroup_of(id),
            log_dir,
            root,
            ids: ids.clone(),
            network: namespace,
            holder: common.map(|common| common.holder.clone()),
            stop_signal: base.stop_signal,
            keep_failed_ms: keep_failed
                .then(|| u64::try_from(in_force.limits.debug_keep.as_millis()).unwrap_or(u64::MAX)),
            init: if launch.spec.init { Init::Ours } else { Init::Command },
            requirements: install,
            end_files: crate::contract::layout::has_end_files(launch.spec.contract)
                .then(|| self.paths.run(&launch.identity.key, launch.identity.run).join("output")),
            scalars,
            gpus: launch.gpus.get(task.ordinal as usize).map_or(0, Vec::len),
            logs: in_force.logs,
            memory: task.role.resources.memory.0,
            stop_grace_ms: u64::try_from(launch.stop_grace.as_millis()).unwrap_or(u64::MAX),
            news_socket: self.paths.news_socket(),
        })
        .map_err(told)?;
        let child =
            self.spawn_shim(&dir, &lock, id, &launch.identity, &name).map_err(failed("start the task's shim"))?;
        self.watch(id, child.pidfd).map_err(failed("watch the task's shim"))
    }

    /// An installation below a system directory would be seen with it.
    fn hidden(&self, base: &Base) -> Vec<PathBuf> {
        let root = self.paths.root();
        let seen = matches!(base.kind, root::Kind::Host) && root != Path::new("/") && self.host.shows(root);
        seen.then(|| root.to_owned()).into_iter().collect()
    }

    fn spawn_shim(
        &self,
        dir: &TaskDir,
        lock: &HeldLock,
        id: TaskId,
        job: &Identity,
        task: &TaskName,
    ) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(dir.shim_log())?;
        self.program.spawn(Spawn {
            arguments: vec![
                "shim".into(),
                dir.path().into(),
                "--lock-fd".into(),
                lock.file().as_raw_fd().to_string().into(),
                // For whoever looks at the process list.
                "--title".into(),
                format!("{id}:{}/{task}", job.key).into(),
            ],
            environment: Vec::new(),
            inherit: vec![lock.file().as_fd()],
            log: &log,
        })
    }

    fn network_namespace(
        &self,
        launch: &Launch,
        task: &Task<'_>,
        shared: &Shared,
    ) -> Result<Option<PathBuf>, EngineError> {
        match launch.spec.network {
            Network::Host => Ok(None),
            Network::Job => Ok(shared.namespace.clone()),
            Network::Task => {
                let path = self.kernel_objects(launch.attempt).join(format!("net-{}", task.ordinal));
                let block = launch.block.ok_or_else(|| EngineError("the attempt has no addresses".to_owned()))?;
                let id = TaskId::first(launch.attempt, task.ordinal);
                let attached = self.networks.attach(id, Peers::of(&launch.spec), block, &path);
                attached.map_err(failed("make the task's network"))?;
                Ok(Some(path))
            }
        }
    }

    /// The tasks' gateway, where it leads to the machine's resolver.
    fn resolving_gateway(&self, launch: &Launch) -> Option<Ipv4Addr> {
        let block = launch.block?;
        self.networks.leads_to_resolver().then(|| gateway(block))
    }

    /// All of the preparation but what is copied in from stores, which is there before a run is queued.
    fn prepare_here(&self, run: &Prepare, tell: &(dyn Fn(Told) + Sync)) -> Result<(), EngineError> {
        self.check_network(run)?;
        self.carrier.check(run)?;
        workdirs::prepare(&self.paths, run, tell)?;
        acquire::images(&self.paths, &self.images, run, tell)?;
        // An unknown user is told now, and copies of layers, where they are needed, are made before it is queued.
        shown::mounts(run, &self.paths, self.config.now().mounts_below.as_deref())?;
        let bases = Bases::of(self, run)?;
        run.spec.roles.iter().try_for_each(|role| self.driver.check(role, bases.of_role(role)))
    }
}

fn or_warn(what: &'static str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn told(error: impl std::error::Error) -> EngineError {
    EngineError(crate::sys::told(&error))
}

/// `attempts/K/ROLE-I`, readable by the job's owner.
fn make_log_dir(paths: &Paths, launch: &Launch, log_dir: &Path) -> Result<(), EngineError> {
    let owner = launch.owner;
    let run = paths.run(&launch.identity.key, launch.identity.run);
    let attempts = run.join("attempts");
    let attempt = attempts.join(launch.identity.attempt.to_string());
    [attempts.as_path(), attempt.as_path(), log_dir]
        .into_iter()
        .try_for_each(|path| create_dir_for(path, 0o750, owner.uid, owner.gid))
        .map_err(failed("make the task's log directory"))
}

/// Most bytes of a shim's log that go into the journal.
const SHIM_LOG_TOLD: u64 = 4 << 10;

/// What shims had to say goes into the journal before their directories go.
fn tell_of_shims(directory: &Path, tasks: &[TaskId]) {
    for task in tasks {
        let path = TaskDir::new(directory, *task).shim_log();
        let mut text = String::new();
        let read = File::open(&path)
            .and_then(|file| io::Read::read_to_string(&mut io::Read::take(file, SHIM_LOG_TOLD), &mut text));
        if read.is_ok() && !text.trim().is_empty() {
            tracing::warn!(path = %path.display(), said = text.trim(), "a shim reported trouble");
        }
    }
}

/// Every task that was begun, with those that were started again.
fn tasks_in(directory: &Path, attempt: AttemptId) -> io::Result<Vec<TaskId>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_, _>>()?;
    Ok(names.iter().filter_map(|name| format!("{attempt}-{name}").parse().ok()).collect())
}

/// Detaches every namespace and mount kept in an attempt's run directory.
fn remove_kernel_objects(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        mounts::detach(&entry?.path())?;
    }
    Ok(())
}

impl Engine for LocalEngine {
    fn prepare(&self, run: &Prepare, tell: &(dyn Fn(Told) + Sync)) -> Result<(), EngineError> {
        run.given_up.check().map_err(failed("make the run ready"))?;
        self.prepare_here(run, tell)?;
        self.carrier.bring(run, tell)
    }

    fn set_aside(&self, run: &Prepare, number: u64) -> Result<(), EngineError> {
        aside::set(&self.paths, run, number)
    }

    fn drop_aside(&self, key: &JobKey, run: u32, number: u64) -> Result<(), EngineError> {
        aside::remove(&self.paths, key, run, number)
    }

    fn give_up(&self, preparation: &GivenUp) {
        self.carrier.give_up(preparation);
    }

    fn launch(&self, attempt: &Launch) -> Launched {
        if let Some(reason) = self.port_in_use(attempt) {
            return Launched::NotYet { reason };
        }
        if let Some(reason) = gpus::not_there(attempt) {
            return Launched::NotYet { reason };
        }
        let run = Prepare {
            identity: attempt.identity.clone(),
            owner: attempt.owner,
            spec: attempt.spec.clone(),
            text: attempt.text.clone(),
            given_up: GivenUp::default(),
            aside: None,
        };
        let everyone = |error: EngineError| Launched::Tried {
            failures: attempt.tasks.iter().map(|task| (*task, error.clone())).collect(),
            remarks: Vec::new(),
        };
        let common = self.make_common(&run, attempt).and_then(|common| Ok((common, Bases::of(self, &run)?)));
        let ((mut shared, placement, mut remarks), bases) = match common {
            Ok(common) => common,
            Err(error) => return everyone(error),
        };
        // What is inside is a role's own, and of no interest to its peers.
        let inside = Inside::default();
        let unspeakable = Unspeakable::of(&attempt.spec, &attempt.identity, &placement);
        let tasks = Task::all(&attempt.spec, &attempt.identity, &placement, &inside, &unspeakable);
        shared.processes = match self.share_processes(attempt, &tasks, &bases) {
            Ok(processes) => processes,
            Err(error) => return everyone(error),
        };
        let wanted = attempt.tasks.iter().filter_map(|id| Some((*id, tasks.get(id.ordinal as usize)?)));
        let launched = wanted.map(|(id, task)| {
            let base = bases.of_role(task.role);
            let task = Task { inside: &base.inside, again: id.again, ..*task };
            // A role's tasks are alike.
            remarks.extend(shells::remark(&task).filter(|_| task.index == 0 && task.again == 0));
            (id, self.launch_task(attempt, id, &task, base, &shared))
        });
        let failures = launched.filter_map(|(id, result)| Some((id, result.err()?))).collect();
        Launched::Tried { failures, remarks }
    }

    fn stop(&self, task: TaskId, cause: &StopCause, how: StopHow) -> Result<(), EngineError> {
        let dir = self.task_dir(task);
        if !dir.path().exists() {
            return Ok(());
        }
        let shim = lock(&self.shims).get(&task).cloned();
        match dir.write_stop(cause) {
            // Why it is stopped is in the attempt's record as well, so that a full disk keeps nothing from being stopped.
            Err(error) if error.is_no_room() && shim.is_some() => {}
            written => written.map_err(told)?,
        }
        match shim.map(|shim| shim.signal(Signal::SIGTERM)) {
            Some(Err(error)) if error.raw_os_error() != Some(nix::libc::ESRCH) => Err(failed("stop the task")(error)),
            _ if how == StopHow::AtOnce => self.kill(task, &dir),
            _ => Ok(()),
        }
    }

    fn look(&self, task: TaskId) -> Result<Found, EngineError> {
        let dir = self.task_dir(task);
        let mut found = dir.look().map_err(told)?;
        if let Found::Alive { shim, .. } | Found::Kept { shim, .. } = found
            && let Err(error) = self.adopt(task, &dir, shim)
        {
            found = dir.look().map_err(told)?;
            if matches!(found, Found::Alive { .. } | Found::Kept { .. }) {
                return Err(error);
            }
        }
        match found {
            // Without its shim nobody watches over what may still run.
            Found::Lost(_) | Found::NeverStarted => {
                cgroup::remove(&self.group_of(task)).map_err(failed("empty the task's control group"))?;
            }
            Found::Ended(_) | Found::Alive { .. } | Found::Kept { .. } => {}
        }
        Ok(found)
    }

    fn deliver(&self, key: &JobKey, run: u32, how: Delivery) {
        self.outbox.deliver(key, run, how);
    }

    fn release(&self, attempt: &Release) -> Result<(), EngineError> {
        let directory = self.paths.attempt(attempt.attempt);
        let tasks = tasks_in(&directory, attempt.attempt).map_err(failed("list the attempt's tasks"))?;
        for task in &tasks {
            cgroup::remove(&self.group_of(*task)).map_err(failed("empty the task's control group"))?;
        }
        self.let_go_of_processes(attempt.attempt)?;
        tell_of_shims(&directory, &tasks);
        let objects = self.kernel_objects(attempt.attempt);
        remove_kernel_objects(&objects).map_err(failed("let go of the attempt's network"))?;
        remove_tree(&objects).map_err(failed("remove the attempt's network"))?;
        self.take_back_ports(attempt.attempt).map_err(failed("take back the attempt's ports"))?;
        self.networks.remove(attempt.attempt).map_err(failed("remove the job's bridge"))?;
        models::publish(&self.paths, attempt)?;
        remove_tree(&directory).map_err(failed("remove the attempt's scratch space"))
    }
}
