//! The composition root: opens everything in order, then drives the reconciler.
//!
//! Start: lock → store → reconciler → engine (sweeps what is nobody's) → publisher → news → API → watch of `jobs.d` →
//! mount. SIGTERM ends the daemon and nothing else: tasks and the mount go on and are taken over by the next start. SIGHUP has it
//! read its configuration again. The service manager is told when all is open, what there is to do, and that the loop turns.

mod configuration;
mod disk;
mod lock;
mod mounting;
mod storage;
mod works;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::alerts;
use crate::api::health::MountAsker;
use crate::api::images::{AskInUse, ByJobFiles, ImageService, PruneMore};
use crate::api::logs::Growth;
use crate::api::looks::Looks;
use crate::api::measures::Measures;
use crate::api::rates::Rates;
use crate::api::sessions::Sessions;
use crate::api::tls::Credentials;
use crate::api::tokens::Tokens;
use crate::api::{drain, server};
use crate::assets::{self, enforced};
use crate::backup::{self, BackupError};
use crate::config::{AlertConfig, Config, InForce, JobFiles, Listen, Paths};
use crate::contract::Identity;
use crate::engine::local::{Delivered, LocalEngine, Means};
use crate::gpu::{self, Gpus};
use crate::ids::{AssetName, HomeName, JobKey, TaskId, Timestamp, WorkspaceName};
use crate::images::{Images, InUse, Limits, Sources};
use crate::intake::{Intake, IntakeError};
use crate::plan::Amount;
use crate::reconcile::{Event, Past, Reconciler, Request, Settings, Work};
use crate::store::fault::{Fault, FaultStore};
use crate::store::redb::{Reader, RedbStore};
use crate::store::{Store, StoreError};
use crate::sys::file::create_dir;
use crate::sys::lock::wait_until_free;
use crate::sys::process::SealedProgram;
use crate::sys::{bell, cgroup, service};
use crate::workspace::publish::Publisher;
use configuration::Heed;

use disk::{Disks, Watch};
use storage::Storage;

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("a daemon runs already for {root} (process {pid}); `trainyard --root {root} ps` talks to it")]
    AlreadyRunning { root: PathBuf, pid: i32 },
    #[error(
        "Trainyard needs root, since it makes containers, mounts and networks: start it with sudo, or as the service"
    )]
    NotRoot,
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot serve the API at {address}; see [[listen]] in trainyard.toml")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(
        "something is full that cannot be seen: there is room in {places}, so look for a quota, or for another disk; `trainyard doctor disk` helps"
    )]
    NoRoom {
        places: String,
        #[source]
        source: Box<DaemonError>,
    },
    #[error("cannot make the directory {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Intake(#[from] IntakeError),
    #[error(transparent)]
    Anew(#[from] BackupError),
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::Io { what, source }
}

/// Threads for works: enough to start tasks side by side, few enough for a small machine.
const WORK_THREADS: usize = 16;
/// Most events taken in before a round; a burst becomes one commit.
const BURST: usize = 1024;
/// Where nobody asks whether we live.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often images that nobody uses are looked for.
const PRUNE_EVERY: Duration = Duration::from_secs(6 * 3600);
/// How often what a burst has left free is handed back: the heap keeps it else, for good.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(30);

/// Runs the daemon until it is told to end. `fault` is for tests alone.
pub fn run(config: &Config, fault: Option<Fault>) -> Result<(), DaemonError> {
    config.tell_warnings();
    start_and_serve(config, fault).map_err(|error| disk::wait_if_full(error, &config.paths))
}

fn start_and_serve(config: &Config, fault: Option<Fault>) -> Result<(), DaemonError> {
    if !nix::unistd::Uid::effective().is_root() {
        return Err(DaemonError::NotRoot);
    }
    make_directories(config)?;
    // Held to the last: whoever waits for the lock finds no process of ours.
    std::mem::forget(lock::take(&config.paths.daemon_lock(), config.paths.root())?);
    crate::sys::signals::ignore_lease_breaks().map_err(failed("ignore SIGIO"))?;
    crate::sys::process::raise_open_files().map_err(failed("raise the limit on open files"))?;
    crate::sys::process::have_one_heap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .max_blocking_threads(WORK_THREADS)
        .build()
        .map_err(failed("start the runtime"))?;
    wait_for_store(&config.paths.store_file()).map_err(failed("wait for the store"))?;
    let left = backup::begin_anew(&config.paths, crate::sys::now())?;
    if left > 0 {
        tracing::warn!(
            jobs = left,
            "the state was lost: it is begun anew, and runs go on counting from what is on the disk"
        );
    }
    let store = RedbStore::open(&config.paths.store_file())?;
    let reader = store.reader();
    let served = match fault {
        None => runtime.block_on(serve(config, store, reader)),
        Some(fault) => runtime.block_on(serve(config, FaultStore::new(store, fault), reader)),
    };
    runtime.shutdown_background();
    served
}

/// Where it has a quota, a new directory is made so that the kernel can hold it.
fn prepare(config: &Config, home: &HomeName) -> io::Result<()> {
    config.storage_of(home).map_or(Ok(()), |_| enforced::prepare(&config.paths.home(home)))
}

fn make_directories(config: &Config) -> Result<(), DaemonError> {
    let paths = &config.paths;
    // Who may look into workspaces does so through the mount.
    let own =
        [(paths.jobs_d(), 0o755), (paths.state_dir(), 0o700), (paths.run_dir(), 0o755), (paths.workspaces(), 0o755)];
    for (path, mode) in own {
        create_dir(&path, mode).map_err(|source| DaemonError::Directory { path, source })?;
    }
    for workspace in workspaces(paths) {
        let path = paths.workspace(&workspace);
        let kept = prepare(config, &HomeName::from(&workspace));
        let made = kept.and_then(|()| assets::make_home(paths, &workspace));
        made.map_err(|source| DaemonError::Directory { path, source })?;
    }
    for shared in assets::SHARED.into_iter().filter_map(|shared| shared.parse::<HomeName>().ok()) {
        prepare(config, &shared).map_err(|source| DaemonError::Directory { path: paths.home(&shared), source })?;
    }
    let path = paths.workspaces();
    assets::make_shared(&path).map_err(|source| DaemonError::Directory { path, source })?;
    clear_removed(paths);
    let path = paths.mount_point();
    create_mount_point(&path).map_err(|source| DaemonError::Directory { path, source })
}

/// What of models and datasets was being removed when the daemon was killed goes, whatever else the daemon does: they may be large.
fn clear_removed(paths: &Paths) {
    let workspaces = paths.workspaces();
    let clear = move || {
        let shelf = assets::Shelf::open(&workspaces);
        let homes = shelf.and_then(|shelf| Ok((shelf.names(Path::new(""))?, shelf)));
        let Ok((names, shelf)) = homes.inspect_err(|error| tracing::warn!(%error, "{REMOVED_LEFT}")) else { return };
        let own = names.iter().filter(|name| !assets::SHARED.contains(&name.as_str()));
        for name in own.filter(|name| workspaces.join(name).join("models").is_dir()) {
            if let Err(error) = assets::models::clear_all(&shelf, name) {
                tracing::warn!(workspace = %name, %error, "{REMOVED_LEFT}");
            }
        }
        for name in names.iter().filter(|name| workspaces.join(name).join("datasets").is_dir()) {
            if let Err(error) = assets::removal::clear_all(&shelf, name) {
                tracing::warn!(workspace = %name, %error, "{REMOVED_LEFT}");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("removals".to_owned()).spawn(clear) {
        tracing::warn!(%error, "{REMOVED_LEFT}");
    }
}

const REMOVED_LEFT: &str = "cannot remove what is left of models and datasets, the next start tries again";

/// Those that have a directory for job files; one that somebody else has made is none.
fn workspaces(paths: &Paths) -> Vec<WorkspaceName> {
    let entries = std::fs::read_dir(paths.jobs_d()).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named = directories.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // `NAME.toml.d` holds a job's overrides.
    let named = named.filter(|name: &WorkspaceName| !name.as_str().ends_with(".d"));
    let is_open = |name: &WorkspaceName| JobFiles::are_open(&paths.jobs_d(), name);
    let other = named.filter(|name| *name != WorkspaceName::default_workspace()).filter(is_open);
    other.chain([WorkspaceName::default_workspace()]).collect()
}

/// What is there already is not looked at: it may be a mount whose process is dead, or hangs. The mount process sees to it.
fn create_mount_point(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        create_dir(parent, 0o755)?;
    }
    match std::fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The daemon before us is gone, but what it was starting when it was killed holds the store until it is executed.
fn wait_for_store(path: &Path) -> io::Result<()> {
    match std::fs::File::open(path) {
        Ok(store) => wait_until_free(store),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// What the machine can give, or the part of it that the configuration allows.
fn inventory(config: &Config) -> io::Result<Amount> {
    let cores = std::thread::available_parallelism()?.get() as f64;
    let info = nix::sys::sysinfo::sysinfo()?;
    Ok(Amount {
        // Cards are not handed out yet.
        gpu: 0,
        cpu: (config.limits.cpu.unwrap_or(cores) * 1000.0) as u64,
        memory: config.limits.memory.unwrap_or(info.ram_total()),
    })
}

/// What the configuration allows of this machine.
fn settings(config: &Config) -> io::Result<Settings> {
    Ok(Settings {
        inventory: inventory(config)?,
        addresses: config.network.range,
        stop_grace: config.limits.stop_grace,
        half_life: config.queue.half_life,
        usage_keep: config.usage.keep,
        quotas: config.quotas.clone(),
        min_free: config.limits.min_free,
    })
}

async fn serve<S: Store + 'static>(config: &Config, store: S, reader: Reader) -> Result<(), DaemonError> {
    let (events, inbox) = unbounded_channel();
    let settings = settings(config).map_err(failed("look at the machine"))?;
    let inventory = settings.inventory;
    let mut reconciler = Reconciler::open(store, settings.clone(), crate::sys::now())?;
    let boot = crate::sys::boot_id().map_err(failed("tell this start of the machine from others"))?;
    let now = crate::sys::now();
    reconciler.clock(&boot, crate::sys::clock_lead(now), now);
    let in_force = InForce::new(config.clone());
    let (storage, mut opened) =
        Storage::open(in_force.clone(), settings, events.clone()).map_err(failed("keep the quotas of workspaces"))?;
    // Before anything is started.
    reconciler.handle(Event::Full(opened.full()), crate::sys::now());
    let disks = Disks::of(&config.paths);
    disks.least_free().into_iter().for_each(|free| reconciler.handle(Event::Free(free), crate::sys::now()));
    let disks = Watch::start(disks, in_force.clone(), events.clone()).map_err(failed("watch the disks"))?;
    let drained = drain::ordered(&config.paths).map_err(failed("see whether the machine is drained"))?;
    reconciler.handle(Event::Drain(drained), crate::sys::now());
    let images = Arc::new(open_images(config)?);
    let tasks_group = cgroup::prepare_tasks_group(&format!("/trainyard-{}", config.paths.instance()))
        .map_err(failed("make a control group for tasks"))?;
    let gpus = Arc::new(watch_gpus(config, &tasks_group, events.clone()).map_err(failed("watch the GPUs"))?);
    let means = Means { images: images.clone(), gpus: gpus.clone(), runtime: Handle::current(), tasks_group };
    let engine = open_engine(&in_force, means, &events)?;
    engine.sweep(&reconciler.live_attempts()).map_err(failed("clean up after earlier attempts"))?;
    engine.resume_deliveries(&reconciler.open_runs()).map_err(failed("go on copying output to stores"))?;
    let (publisher, publishing) = Publisher::start(config.paths.clone()).map_err(failed("start publishing"))?;
    let publications = reconciler.all_publications()?;
    opened.begin_with(&publications);
    let (alerted, alerts) = watch::channel(config.alerts.clone());
    opened.run(heed(images.clone(), alerted)).map_err(failed("keep the quotas of workspaces"))?;
    publisher.publish(publications);
    listen_for_news(config, events.clone()).map_err(failed("listen for news of tasks"))?;
    let (rounds, heard) = watch::channel(0);
    let listener = server::bind(&config.paths.api_socket()).map_err(failed("open the API's socket"))?;
    let (pruning, asking) = (engine.clone(), events.clone());
    let prune_more: PruneMore = Arc::new(move |unused| pruning.prune(unused, &|| open_runs(&asking)));
    let image_service = ImageService::new(images, images_in_use(&engine, &events), prune_more, config.paths.jobs_d());
    tokio::spawn(image_service.clone().prune_for_ever(PRUNE_EVERY));
    tokio::spawn(give_memory_back_for_ever());
    let measures = Arc::new(Measures::default());
    let (mount_away, mount) = watch::channel(Some("the mount process was not started yet".to_owned()));
    let context = server::Context {
        paths: config.paths.clone(),
        engine: engine.clone(),
        events: events.clone(),
        rounds: heard,
        images: image_service,
        sessions: Sessions::in_tasks(),
        counts: Sessions::counts(),
        connections: Sessions::connections(),
        network: Sessions::network(),
        rates: Arc::new(Rates::default()),
        tokens: Tokens::open(&config.paths.tokens()).map_err(failed("watch the tokens"))?,
        storage: Arc::new(storage.clone()),
        gpus: gpus.clone(),
        growth: Growth::start().map_err(failed("watch logs"))?,
        measures: measures.clone(),
        config: in_force.clone(),
        mount,
        mount_asker: Arc::new(tokio::sync::Mutex::new(MountAsker::of(config.paths.root()))),
        disks: Arc::default(),
        past: Past::new(events.clone(), reader.clone()),
        state: reader,
        looks: Looks::default(),
    };
    for listen in &config.listen {
        let (listener, identity) = open_listener(listen).await?;
        tokio::spawn(server::serve_network(listener, identity, context.clone()));
    }
    alerts::start(alerts, &config.paths, context.past.clone(), context.rounds.clone())
        .await
        .map_err(failed("prepare the alerts"))?;
    tokio::spawn(server::serve(listener, context));
    watch_files(&in_force, &reconciler, events.clone(), storage.clone())?;
    let mount = mounting::Keeper::start(config, mount_away).map_err(failed("keep the mount"))?;
    tracing::info!(root = %config.paths.root().display(), inventory = %inventory, "ready");
    let summary = reconciler.summary();
    service::ready(&summary);
    let driver = Driver {
        reconciler,
        engine: engine.clone(),
        gpus,
        publisher,
        rounds,
        storage,
        disks,
        measures,
        events,
        inbox,
        boot,
        told: summary,
    };
    let end = driver.run().await?;
    service::stopping(match end {
        End::Signalled => "ended; tasks and the mount go on",
        End::Drained => "everything is stopped",
    });
    // The publisher ended with the driver: what was published last is written before we go.
    if tokio::task::spawn_blocking(move || publishing.join()).await.is_err() {
        tracing::warn!("the last status may not have been published; the next start does it");
    }
    if end == End::Drained {
        mount.end().await.map_err(failed("unmount"))?;
        engine.close().map_err(failed("take down the network"))?;
        tracing::info!("everything is stopped");
    }
    Ok(())
}

/// An address of the configuration, before the daemon says that it is ready.
async fn open_listener(listen: &Listen) -> Result<(tokio::net::TcpListener, Option<Credentials>), DaemonError> {
    let failed = |source| DaemonError::Listen { address: listen.address, source };
    let pair = listen.tls.as_ref();
    let identity = pair.map(|(certificate, key)| Credentials::open(certificate, key)).transpose().map_err(failed)?;
    let listener = tokio::net::TcpListener::bind(listen.address).await.map_err(failed)?;
    tracing::info!(address = %listen.address, encrypted = identity.is_some(), "the API listens");
    Ok((listener, identity))
}

fn watch_gpus(config: &Config, tasks_group: &str, events: UnboundedSender<Event>) -> io::Result<Gpus> {
    let settings = gpu::Settings {
        library: config.gpu.library.clone(),
        xids: Some(config.paths.xids()),
        keeps_xids: true,
        tasks_group: Some(tasks_group.to_owned()),
        ignore: config.gpu.ignore.clone(),
        maker: Some(config.gpu.modprobe.clone()).filter(|program| !program.is_empty()),
        ..gpu::Settings::default()
    };
    // The receiver is gone only when the daemon ends.
    Gpus::start(settings, move |seen| drop(events.send(Event::Gpus(seen))))
}

fn open_images(config: &Config) -> Result<Images, DaemonError> {
    let sources = Sources {
        default_registry: config.images.default_registry.clone(),
        plain_http: config.images.plain_http.clone(),
        secrets: config.paths.secrets(),
        program: Arc::new(SealedProgram::of_this_program().map_err(failed("copy this program"))?),
        runtime: Handle::current(),
    };
    let by = Arc::new(ByJobFiles(config.paths.clone()));
    Images::open(&config.paths.images(), limits_of_images(config), sources, by).map_err(failed("open the image store"))
}

fn limits_of_images(config: &Config) -> Limits {
    Limits {
        layer_bytes: config.images.layer_bytes,
        layer_entries: config.images.layer_entries,
        unused_after: config.images.unused_after,
        store_bytes: config.images.store_bytes,
    }
}

/// Who is told of an edited configuration, beside those that look at what is in force.
fn heed(images: Arc<Images>, alerts: watch::Sender<BTreeMap<AssetName, AlertConfig>>) -> Heed {
    Box::new(move |config| {
        let registries = &config.images;
        images.configure(limits_of_images(config), &registries.default_registry, &registries.plain_http);
        alerts.send_if_modified(|alerts| {
            let is_new = *alerts != config.alerts;
            alerts.clone_from(&config.alerts);
            is_new
        });
    })
}

/// What of the store tasks have, and runs that are not over will have. Blocks.
fn images_in_use(engine: &Arc<LocalEngine>, events: &UnboundedSender<Event>) -> AskInUse {
    let (engine, events) = (engine.clone(), events.clone());
    Arc::new(move || {
        let runs = open_runs(&events)?;
        Ok(InUse { layers: engine.layers_in_use()?, images: engine.images_of(&runs)? })
    })
}

/// Runs that are not over. Blocks.
fn open_runs(events: &UnboundedSender<Event>) -> io::Result<Vec<Identity>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let answer = Box::new(move |runs| drop(sender.send(runs)));
    let ending = || io::Error::other("the daemon is ending");
    events.send(Event::Request(Request::OpenRuns { answer })).map_err(|_| ending())?;
    receiver.recv().map_err(|_| ending())?.map_err(io::Error::other)
}

fn open_engine(
    config: &InForce,
    means: Means,
    events: &UnboundedSender<Event>,
) -> Result<Arc<LocalEngine>, DaemonError> {
    let news = events.clone();
    // The receiver is gone only when the daemon ends.
    let notify = Box::new(move |task: TaskId| drop(news.send(Event::News(task))));
    let deliveries = events.clone();
    let deliveries = Box::new(move |key: &JobKey, run, Delivered { state, note }| {
        drop(deliveries.send(Event::Delivering { key: key.clone(), run, state, note }));
    });
    let engine = LocalEngine::open(config, means, notify, deliveries);
    let engine = engine.map_err(failed("prepare the machine for containers"))?;
    if let Err(reason) = engine.reaches_out() {
        tracing::warn!(%reason, "tasks cannot reach beyond this machine");
    }
    Ok(Arc::new(engine))
}

/// Shims tell of their tasks by datagrams; what is not heard is seen when the shim ends.
fn listen_for_news(config: &Config, events: UnboundedSender<Event>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let path = config.paths.news_socket();
    crate::sys::file::remove_if_there(&path)?;
    let socket = tokio::net::UnixDatagram::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        while let Ok(count) = socket.recv(&mut buffer).await {
            let text = std::str::from_utf8(buffer.get(..count).unwrap_or_default()).unwrap_or_default();
            if let Ok(task) = text.parse()
                && events.send(Event::News(task)).is_err()
            {
                return;
            }
        }
    });
    Ok(())
}

fn watch_files<S: Store>(
    config: &InForce,
    reconciler: &Reconciler<S>,
    events: UnboundedSender<Event>,
    storage: Storage,
) -> Result<(), DaemonError> {
    let paths = config.now().paths.clone();
    let config = config.clone();
    let specs = Box::new(move || config.now().specs.clone());
    let intake = Intake::open(&paths.jobs_d(), reconciler.known_files(), specs)?;
    let watch = move || {
        let open = |workspace: &WorkspaceName| open(&paths, &storage, workspace);
        intake.run(|arrivals| events.send(Event::Files(arrivals)).is_ok(), open);
    };
    let thread = std::thread::Builder::new().name("intake".to_owned()).spawn(watch);
    thread.map(drop).map_err(failed("watch the job files"))
}

/// A workspace is open to those who may go to its job files.
fn open(paths: &Paths, storage: &Storage, workspace: &WorkspaceName) -> bool {
    let made = storage.prepare_home(paths, &HomeName::from(workspace));
    let made = made.and_then(|()| assets::make_home(paths, workspace));
    storage.workspaces_may_have_come();
    let failed = |error: &io::Error| {
        tracing::warn!(%workspace, %error, "a workspace has not the rights of its job files, will be tried again");
    };
    // Its code is to be shown.
    bell::ring(&paths.direct_bell());
    made.inspect_err(failed).is_ok()
}

async fn give_memory_back_for_ever() {
    let mut every = tokio::time::interval(GIVE_BACK_EVERY);
    loop {
        every.tick().await;
        // Beside the loop: it looks through all of the heap.
        if let Err(error) = tokio::task::spawn_blocking(crate::sys::process::give_memory_back).await {
            tracing::debug!(%error, "no memory was handed back");
        }
    }
}

/// Why the loop has ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The daemon goes; everything else stays.
    Signalled,
    /// Everything was stopped.
    Drained,
}

struct Driver<S> {
    reconciler: Reconciler<S>,
    engine: Arc<LocalEngine>,
    gpus: Arc<Gpus>,
    publisher: Publisher,
    rounds: watch::Sender<u64>,
    storage: Storage,
    disks: Watch,
    measures: Arc<Measures>,
    events: UnboundedSender<Event>,
    inbox: UnboundedReceiver<Event>,
    /// This start of the machine.
    boot: String,
    /// What the service manager was told last.
    told: String,
}

impl<S: Store> Driver<S> {
    async fn run(mut self) -> Result<End, DaemonError> {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed("take signals"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("take signals"))?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed("take signals"))?;
        let silence = service::watchdog();
        let mut alive = tokio::time::interval(silence.map_or(NEVER, |silence| silence / 3));
        loop {
            let wake_at = self.round()?;
            self.tell_summary();
            if self.reconciler.is_drained() {
                return Ok(End::Drained);
            }
            let timer = sleep_until(wake_at);
            tokio::select! {
                event = self.inbox.recv() => self.take(event),
                () = timer => self.take(Some(Event::Tick)),
                _ = terminate.recv() => return Ok(End::Signalled),
                _ = interrupt.recv() => return Ok(End::Signalled),
                _ = hangup.recv() => self.storage.reload(),
                // From this loop, so that one that no longer turns is seen.
                _ = alive.tick(), if silence.is_some() => service::alive(),
            }
        }
    }

    fn tell_summary(&mut self) {
        let summary = self.reconciler.summary();
        if summary != self.told {
            service::status(&summary);
            self.told = summary;
        }
    }

    /// The time, once it is known whether somebody has set the clock.
    fn now(&mut self) -> Timestamp {
        let now = crate::sys::now();
        self.reconciler.clock(&self.boot, crate::sys::clock_lead(now), now);
        now
    }

    fn take(&mut self, first: Option<Event>) {
        let now = self.now();
        self.reconciler.handle(Event::Tick, now);
        if let Some(event) = first {
            self.reconciler.handle(event, now);
        }
        for _ in 0..BURST {
            match self.inbox.try_recv() {
                Ok(event) => self.reconciler.handle(event, now),
                Err(_) => return,
            }
        }
    }

    /// Plans, commits, hands out the works; returns when to plan again at the latest.
    fn round(&mut self) -> Result<Option<Timestamp>, DaemonError> {
        let begun = Instant::now();
        let now = self.now();
        let round = tokio::task::block_in_place(|| self.reconciler.pass(now))?;
        self.measures.round(begun.elapsed());
        if !round.works.is_empty() {
            self.disks.ring();
        }
        for work in round.works {
            let (engine, events) = (self.engine.clone(), self.events.clone());
            match work {
                Work::LookAtCards => works::look_at_cards(self.gpus.clone(), events),
                Work::Measure { tasks } => works::measure(self.gpus.clone(), engine, tasks, events),
                work if works::is_long(&work) => drop(tokio::spawn(works::spawn_long(work, engine, events))),
                work => works::spawn(work, engine, events),
            }
        }
        if !round.published.is_empty() {
            self.storage.jobs_changed(storage::sights(&round.published));
            self.publisher.publish(round.published);
            // Only now: an answered question is no news, or followers would ask for ever.
            self.rounds.send_modify(|rounds| *rounds += 1);
        }
        Ok(round.wake_at)
    }
}

async fn sleep_until(wake_at: Option<Timestamp>) {
    match wake_at {
        // Wall-clock deadlines are looked at again at least once a minute: the clock may be set.
        Some(at) => {
            let left = Duration::from_millis(at.0.saturating_sub(crate::sys::now().0));
            tokio::time::sleep(left.min(Duration::from_secs(60))).await;
        }
        None => std::future::pending().await,
    }
}
