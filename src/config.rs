//! The appliance's own file, `trainyard.toml`, and where everything lies.

mod alerts;
mod in_force;
mod listen;
mod pools;
mod quotas;
mod specs;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::ids::{AssetName, AttemptId, Bytes, JobKey, LogLimits, TaskName, WorkspaceName, parse_duration};
use alerts::WireAlert;
pub use alerts::{ALARM, AlertConfig, AlertOn, AlertTo, Given, check_address};
pub use in_force::InForce;
pub use listen::Listen;
use listen::WireListen;
pub use pools::Pool;
use pools::WirePool;
pub use quotas::{QueueConfig, Quota, Quotas, UsageConfig};
use quotas::{WireQueue, WireUsage};
use specs::WireSpec;

use crate::spec::ResourceSpecs;
use crate::spec::keys::STOP_GRACE_MAX_MS;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a valid configuration: {message}")]
    Syntax { path: PathBuf, message: String },
    #[error("{path}: {key}: {message}")]
    Value { path: PathBuf, key: String, message: String },
    #[error(
        "{path} is empty or gone, and what it said would be lifted; put it back (a line with a remark is enough where everything is to have \
         its default), or restart the daemon to go by the defaults"
    )]
    Emptied { path: PathBuf },
    #[error("the root {path} cannot be used")]
    Root {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Everything a role of the binary needs to know of this installation.
#[derive(Debug, Clone)]
pub struct Config {
    pub paths: Paths,
    pub limits: Limits,
    pub network: NetworkConfig,
    pub images: ImagesConfig,
    pub logs: LogLimits,
    /// Places of the machine of which jobs may see something by `mounts`; all when absent.
    pub mounts_below: Option<Vec<PathBuf>>,
    /// Stores of other machines, by the names that job files call them.
    pub pools: BTreeMap<AssetName, Pool>,
    /// What of the mount is shown by mounts of its directories.
    pub direct: Direct,
    pub storage: StorageConfig,
    pub gpu: GpuConfig,
    /// Sizes of tasks that jobs may name.
    pub specs: ResourceSpecs,
    pub queue: QueueConfig,
    pub usage: UsageConfig,
    /// Where the API is reached over the network.
    pub listen: Vec<Listen>,
    /// Who is told of what happens, by name.
    pub alerts: BTreeMap<AssetName, AlertConfig>,
    /// How much of the machine workspaces may have.
    pub quotas: Quotas,
    /// What is not taken as the file says it, each by its key.
    pub warnings: Vec<String>,
    /// What the file says of that which acts after a restart only, to tell whether it was edited.
    until_restart: BTreeMap<&'static str, toml::Value>,
    /// There is no file, or nothing in it, as a copy onto a full disk leaves it.
    is_blank: bool,
}

/// How much workspaces may keep on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageConfig {
    /// By workspace, bytes; `None` for as much as there is room for.
    of: BTreeMap<WorkspaceName, Option<u64>>,
    /// Of all others.
    others: Option<u64>,
}

impl StorageConfig {
    /// Bytes that the workspace may keep; as much as there is room for when `None`.
    pub fn of(&self, workspace: &WorkspaceName) -> Option<u64> {
        self.of.get(workspace).copied().unwrap_or(self.others)
    }
}

/// Graphics cards.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// NVIDIA's library; it is looked for when absent.
    pub library: Option<PathBuf>,
    /// Where descriptions of the cards for containers (CDI) lie; a later place goes before.
    pub cdi: Vec<PathBuf>,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self { library: None, cdi: ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from).to_vec() }
    }
}

/// Published versions and `code/` that are shown by mounts of their directories. The machine's table of mounts, with their
/// names, is everybody's.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direct {
    /// Those that everybody may go to.
    #[default]
    Open,
    All,
    None,
}

impl Direct {
    /// As the file says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::All => "all",
            Self::None => "none",
        }
    }
}

impl FromStr for Direct {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Open, Self::All, Self::None].into_iter().find(|direct| direct.name() == text);
        found.ok_or_else(|| format!("{text:?} is neither open, all nor none"))
    }
}

#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// Where names without a registry are pulled from.
    pub default_registry: String,
    /// Registries that may be spoken to without encryption, HOST:PORT.
    pub plain_http: Vec<String>,
    /// Bytes of the files of one layer.
    pub layer_bytes: u64,
    /// Files and directories of one layer.
    pub layer_entries: u64,
    /// Images of a workspace that nobody has used for so long are removed.
    pub unused_after: Duration,
    /// And, beyond so many bytes of files in the store, those that were used longest ago.
    pub store_bytes: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Limits {
    /// Cores to hand out; those of the machine when absent.
    pub cpu: Option<f64>,
    /// Bytes of memory to hand out; the machine's when absent.
    pub memory: Option<u64>,
    /// From SIGTERM to SIGKILL.
    pub stop_grace: Duration,
    /// How long the container of a failed task is kept with `debug`.
    pub debug_keep: Duration,
    /// With less, bytes, free on the disk new runs wait.
    pub min_free: u64,
}

#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Addresses for tasks; cut into one block an attempt.
    pub range: AddressRange,
    /// Let tasks reach out through the machine's address (needs nft).
    pub masquerade: bool,
    /// Workspaces whose jobs may use the machine's own network.
    pub host_workspaces: Vec<String>,
    /// How tasks resolve names, as resolv.conf(5) has it.
    pub resolv_conf: PathBuf,
}

/// A private IPv4 range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    pub base: u32,
    /// Length of the prefix, 8 to 24.
    pub prefix: u8,
}

impl AddressRange {
    pub fn size(self) -> u32 {
        1 << (32 - u32::from(self.prefix))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').ok_or("write it as ADDRESS/PREFIX")?;
        let address: Ipv4Addr = address.parse().map_err(|_| format!("{address:?} is not an IPv4 address"))?;
        let prefix: u8 = prefix.parse().map_err(|_| format!("{prefix:?} is not a prefix length"))?;
        if !address.is_private() || !(8..=24).contains(&prefix) {
            return Err("must be a private range with a prefix from 8 to 24".to_owned());
        }
        let mask = u32::MAX << (32 - u32::from(prefix));
        Ok(Self { base: u32::from(address) & mask, prefix })
    }
}

/// Where things lie; all below one root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WireConfig {
    limits: WireLimits,
    network: WireNetwork,
    images: WireImages,
    logs: WireLogs,
    mounts: WireMounts,
    pools: BTreeMap<String, WirePool>,
    mount: WireMount,
    gpu: GpuConfig,
    workspaces: BTreeMap<String, WireWorkspace>,
    specs: BTreeMap<String, WireSpec>,
    queue: WireQueue,
    usage: WireUsage,
    listen: Vec<WireListen>,
    alerts: BTreeMap<String, WireAlert>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[mount]` begins one")]
struct WireMount {
    direct: Direct,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[workspaces.NAME]` begins one")]
struct WireWorkspace {
    storage: Option<String>,
    gpu: Option<u64>,
    cpu: Option<f64>,
    memory: Option<String>,
    running: Option<u64>,
    waiting: Option<u64>,
    specs: BTreeMap<String, WireSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[mounts]` begins one")]
struct WireMounts {
    below: Option<Vec<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[images]` begins one")]
struct WireImages {
    default_registry: Option<String>,
    plain_http: Vec<String>,
    max_layer_size: Option<String>,
    max_layer_files: Option<u64>,
    unused_after: Option<String>,
    max_store_size: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[limits]` begins one")]
struct WireLimits {
    cpu: Option<f64>,
    memory: Option<String>,
    stop_grace: Option<String>,
    debug_keep: Option<String>,
    min_free: Option<String>,
    workspace_storage: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[network]` begins one")]
struct WireNetwork {
    range: Option<String>,
    masquerade: Option<bool>,
    host_workspaces: Vec<String>,
    resolv_conf: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[logs]` begins one")]
struct WireLogs {
    max_size: Option<String>,
    parts: Option<u32>,
}

const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(30);
const DEFAULT_MIN_FREE: u64 = 512 << 20;
/// With less, bytes, the next commit of the state may fail, whatever `min_free` says.
pub const ROOM_MIN: u64 = 64 << 20;
const DEBUG_KEEP_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl Config {
    /// Without a file.
    pub fn defaults(paths: Paths) -> Result<Self, ConfigError> {
        Self::read(paths, "")
    }

    /// Reads `trainyard.toml` below `root` (`/` for the installed service); absent means all defaults.
    pub fn load(root: &Path) -> Result<Self, ConfigError> {
        let paths = Paths::new(root)?;
        let path = paths.config_file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        Self::read(paths, &text)
    }

    fn read(paths: Paths, text: &str) -> Result<Self, ConfigError> {
        let path = paths.config_file();
        let wire: WireConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { path: path.clone(), message: error.to_string() })?;
        fn value(path: &Path, key: impl Into<String>, message: String) -> ConfigError {
            ConfigError::Value { path: path.to_owned(), key: key.into(), message }
        }
        Ok(Self {
            warnings: warnings(&wire.limits),
            limits: limits(&wire.limits).map_err(|(key, message)| value(&path, key, message))?,
            network: network(&wire.network, &paths).map_err(|(key, message)| value(&path, key, message))?,
            images: images(&wire.images).map_err(|(key, message)| value(&path, key, message))?,
            logs: logs(&wire.logs).map_err(|(key, message)| value(&path, key, message))?,
            storage: storage(&wire).map_err(|(key, message)| value(&path, key, message))?,
            mounts_below: mounts_below(wire.mounts.below).map_err(|(key, message)| value(&path, key, message))?,
            direct: wire.mount.direct,
            gpu: gpu(wire.gpu).map_err(|(key, message)| value(&path, key, message))?,
            specs: specs::read(&wire.specs, &wire.workspaces).map_err(|(key, message)| value(&path, key, message))?,
            queue: quotas::queue(&wire.queue).map_err(|(key, message)| value(&path, key, message))?,
            usage: quotas::usage(&wire.usage).map_err(|(key, message)| value(&path, key, message))?,
            quotas: quotas::quotas(&wire.workspaces).map_err(|(key, message)| value(&path, key, message))?,
            alerts: alerts::read(wire.alerts).map_err(|(key, message)| value(&path, key, message))?,
            listen: listen::read(wire.listen).map_err(|(key, message)| value(&path, key, message))?,
            pools: pools::read(wire.pools).map_err(|(key, message)| value(&path, key, message))?,
            until_restart: until_restart(text),
            is_blank: text.trim().is_empty(),
            paths,
        })
    }

    /// Reads the file again; what it said is not given up because it is gone, or was cut short to nothing.
    pub fn load_again(&self) -> Result<Self, ConfigError> {
        let config = Self::load(self.paths.root())?;
        match config.is_blank && !self.is_blank {
            true => Err(ConfigError::Emptied { path: self.paths.config_file() }),
            false => Ok(config),
        }
    }

    /// Whether the file says nothing at all, or is not there.
    pub fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// For the journal.
    pub fn tell_warnings(&self) {
        let path = self.paths.config_file().display().to_string();
        self.warnings.iter().for_each(|warning| tracing::warn!(path, "{warning}"));
    }

    /// Bytes that the workspace may keep on the disk; as much as there is room for when `None`.
    pub fn storage_of(&self, workspace: &WorkspaceName) -> Option<u64> {
        self.storage.of(workspace)
    }

    /// The keys in which two versions of the file differ and that act after a restart only.
    pub fn edited_until_restart(&self, begun: &Self) -> Vec<&'static str> {
        let is_edited = |key: &&str| self.until_restart.get(key) != begun.until_restart.get(key);
        UNTIL_RESTART.into_iter().filter(is_edited).collect()
    }
}

/// What is asked once, when the daemon starts; all else acts as soon as the file is saved.
const UNTIL_RESTART: [&str; 6] =
    ["network.range", "network.masquerade", "network.resolv_conf", "mount", "gpu", "listen"];

/// What the file says of it, by key.
fn until_restart(text: &str) -> BTreeMap<&'static str, toml::Value> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let said = |key: &'static str| {
        let found = match key.split_once('.') {
            Some((section, key)) => table.get(section).and_then(|section| section.get(key)),
            None => table.get(key),
        };
        Some((key, found?.clone()))
    };
    UNTIL_RESTART.into_iter().filter_map(said).collect()
}

/// Less would not hold what Trainyard itself writes of a few jobs.
const STORAGE_MIN: u64 = 1 << 20;

fn storage(wire: &WireConfig) -> Result<StorageConfig, (String, String)> {
    let mut of = BTreeMap::new();
    for (name, keys) in &wire.workspaces {
        let workspace: WorkspaceName = name.parse().map_err(|error: crate::ids::NameError| {
            (format!("workspaces.{name}"), format!("{error}; a quota is of a workspace"))
        })?;
        if let Some(text) = &keys.storage {
            let key = format!("workspaces.{name}.storage");
            of.insert(workspace, quota(text).map_err(|message| (key, message))?);
        }
    }
    let others = wire.limits.workspace_storage.as_ref().map(|text| quota(text)).transpose();
    let others = others.map_err(|message| ("limits.workspace_storage".to_owned(), message))?.flatten();
    Ok(StorageConfig { of, others })
}

/// A size, or `unlimited`.
fn quota(text: &str) -> Result<Option<u64>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    let bytes: Bytes = text.parse().map_err(|error: crate::ids::QuantityError| format!("{error}, or \"unlimited\""))?;
    if bytes.0 < STORAGE_MIN {
        return Err(format!("must be at least {}, or \"unlimited\"", Bytes(STORAGE_MIN)));
    }
    Ok(Some(bytes.0))
}

type BadValue = (&'static str, String);

fn mounts_below(places: Option<Vec<PathBuf>>) -> Result<Option<Vec<PathBuf>>, BadValue> {
    if let Some(bad) = places.iter().flatten().find(|place| !place.is_absolute()) {
        return Err(("mounts.below", format!("{} is not an absolute path", bad.display())));
    }
    // What is shown is compared by where it really lies.
    Ok(places.map(|places| places.into_iter().map(|place| place.canonicalize().unwrap_or(place)).collect()))
}

fn gpu(gpu: GpuConfig) -> Result<GpuConfig, BadValue> {
    let is_relative = |path: &&PathBuf| !path.is_absolute();
    let wrong = |key, path: &PathBuf| Err((key, format!("{} is not an absolute path", path.display())));
    match (gpu.library.iter().find(is_relative), gpu.cdi.iter().find(is_relative)) {
        (Some(path), _) => wrong("gpu.library", path),
        (None, Some(path)) => wrong("gpu.cdi", path),
        (None, None) => Ok(gpu),
    }
}

const STOP_GRACE_MAX: Duration = Duration::from_millis(STOP_GRACE_MAX_MS);

/// Earlier versions knew no bound of it, and a daemon is to start after an upgrade.
fn warnings(wire: &WireLimits) -> Vec<String> {
    let is_too_long = |text: &&String| parse_duration(text).is_ok_and(|grace| grace > STOP_GRACE_MAX);
    let grace = wire.stop_grace.as_ref().filter(is_too_long);
    grace.map(|text| format!("limits.stop_grace is {text:?} and is taken as 1h, the most")).into_iter().collect()
}

fn limits(wire: &WireLimits) -> Result<Limits, BadValue> {
    if wire.cpu.is_some_and(|cpu| !(0.1..=100_000.0).contains(&cpu)) {
        return Err(("limits.cpu", "must be at least 0.1".to_owned()));
    }
    let memory = wire.memory.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let free = wire.min_free.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let grace = wire.stop_grace.as_ref().map(|text| parse_duration(text)).transpose();
    let keep = wire.debug_keep.as_ref().map(|text| parse_duration(text)).transpose();
    let debug_keep = keep.map_err(|error| ("limits.debug_keep", error.to_string()))?.unwrap_or(DEBUG_KEEP_MAX);
    if debug_keep.is_zero() || debug_keep > DEBUG_KEEP_MAX {
        return Err(("limits.debug_keep", "must be more than nothing and at most 7d".to_owned()));
    }
    Ok(Limits {
        cpu: wire.cpu,
        memory: memory.map_err(|error| ("limits.memory", error.to_string()))?.map(|bytes| bytes.0),
        stop_grace: grace
            .map_err(|error| ("limits.stop_grace", error.to_string()))?
            .map_or(DEFAULT_STOP_GRACE, |grace| grace.min(STOP_GRACE_MAX)),
        debug_keep,
        min_free: free
            .map_err(|error| ("limits.min_free", error.to_string()))?
            .map_or(DEFAULT_MIN_FREE, |bytes| bytes.0),
    })
}

/// A layer's files may take so much, unless the configuration says otherwise; the largest in public use have some 20 GiB.
const DEFAULT_LAYER_BYTES: u64 = 128 << 30;
const DEFAULT_LAYER_ENTRIES: u64 = 10_000_000;
const DEFAULT_UNUSED_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

fn images(wire: &WireImages) -> Result<ImagesConfig, BadValue> {
    let size = wire.max_layer_size.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let unused = wire.unused_after.as_ref().map(|text| parse_duration(text)).transpose();
    if let Some(bad) = wire.plain_http.iter().find(|registry| registry.contains('/') || registry.is_empty()) {
        return Err(("images.plain_http", format!("{bad:?} must be written as HOST:PORT")));
    }
    let size = size.map_err(|error| ("images.max_layer_size", error.to_string()))?;
    let store = wire.max_store_size.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let store = store.map_err(|error| ("images.max_store_size", error.to_string()))?;
    Ok(ImagesConfig {
        default_registry: wire.default_registry.clone().unwrap_or_else(|| "docker.io".to_owned()),
        plain_http: wire.plain_http.clone(),
        layer_bytes: size.map_or(DEFAULT_LAYER_BYTES, |bytes| bytes.0),
        layer_entries: wire.max_layer_files.unwrap_or(DEFAULT_LAYER_ENTRIES),
        store_bytes: store.map(|bytes| bytes.0),
        unused_after: unused
            .map_err(|error| ("images.unused_after", error.to_string()))?
            .unwrap_or(DEFAULT_UNUSED_AFTER),
    })
}

fn network(wire: &WireNetwork, paths: &Paths) -> Result<NetworkConfig, BadValue> {
    let default = paths.default_range();
    let resolv_conf = wire.resolv_conf.clone().unwrap_or_else(|| PathBuf::from("/etc/resolv.conf"));
    if !resolv_conf.is_absolute() {
        return Err(("network.resolv_conf", "must be an absolute path".to_owned()));
    }
    let range = AddressRange::parse(wire.range.as_ref().unwrap_or(&default));
    Ok(NetworkConfig {
        range: range.map_err(|message| ("network.range", message))?,
        masquerade: wire.masquerade.unwrap_or(true),
        host_workspaces: wire.host_workspaces.clone(),
        resolv_conf,
    })
}

fn logs(wire: &WireLogs) -> Result<LogLimits, BadValue> {
    let default = LogLimits::default();
    let size = wire.max_size.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let part_size =
        size.map_err(|error| ("logs.max_size", error.to_string()))?.map_or(default.part_size, |size| size.0);
    let parts = wire.parts.unwrap_or(default.parts);
    if part_size < LogLimits::PART_SIZE_MIN {
        return Err(("logs.max_size", format!("must be at least {}", Bytes(LogLimits::PART_SIZE_MIN))));
    }
    if !(2..=LogLimits::PARTS_MAX).contains(&parts) {
        return Err(("logs.parts", format!("must be from 2 to {}", LogLimits::PARTS_MAX)));
    }
    Ok(LogLimits { part_size, parts })
}

/// Without links, also as far as it is not there yet: an installation has one name from the first start on.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(canonical(parent)?.join(name))
        }
        (result, ..) => result,
    }
}

impl Paths {
    pub fn new(root: &Path) -> Result<Self, ConfigError> {
        let root = std::path::absolute(root)
            .and_then(|path| canonical(&path))
            .map_err(|source| ConfigError::Root { path: root.to_owned(), source })?;
        Ok(Self { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Eight hexadecimal digits that tell this installation's bridges and cgroups from another's on the machine.
    pub fn instance(&self) -> String {
        use std::os::unix::ffi::OsStrExt;
        let digest = Sha256::digest(self.root.as_os_str().as_bytes());
        digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    /// 10.213.0.0/16 for the service; an installation elsewhere gets a range of its own, since two of one range on a
    /// machine would lead to each other's tasks.
    fn default_range(&self) -> String {
        let digit = u8::from_str_radix(self.instance().get(..2).unwrap_or("0"), 16).unwrap_or(0);
        let second = if self.root == Path::new("/") { 213 } else { 100 + digit % 100 };
        format!("10.{second}.0.0/16")
    }

    /// The configuration, job files and secrets.
    pub fn config_dir(&self) -> PathBuf {
        self.root.join("etc/trainyard")
    }

    pub fn config_file(&self) -> PathBuf {
        self.root.join("etc/trainyard/trainyard.toml")
    }

    pub fn jobs_d(&self) -> PathBuf {
        self.root.join("etc/trainyard/jobs.d")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/trainyard")
    }

    /// Where the job files of a workspace lie; those of `default` are in `jobs.d` itself.
    pub fn job_files(&self, workspace: &WorkspaceName) -> PathBuf {
        if *workspace == WorkspaceName::default_workspace() {
            self.jobs_d()
        } else {
            self.jobs_d().join(workspace.as_str())
        }
    }

    pub fn store_file(&self) -> PathBuf {
        self.state_dir().join("state.redb")
    }

    /// One private directory for each attempt that is not yet cleaned up.
    pub fn attempts(&self) -> PathBuf {
        self.state_dir().join("attempts")
    }

    pub fn attempt(&self, attempt: AttemptId) -> PathBuf {
        self.attempts().join(attempt.to_string())
    }

    /// Which subordinate user ids each owner has.
    pub fn subordinate_ids(&self) -> PathBuf {
        self.state_dir().join("subordinate-ids")
    }

    /// What workspaces log in with; root alone may read there.
    pub fn secrets(&self) -> PathBuf {
        self.root.join("etc/trainyard/secrets")
    }

    /// Who may come over the network; root alone may read there.
    pub fn tokens(&self) -> PathBuf {
        self.root.join("etc/trainyard/tokens")
    }

    /// What is still to be told to others.
    pub fn alerts(&self) -> PathBuf {
        self.state_dir().join("alerts")
    }

    /// Images and their layers.
    pub fn images(&self) -> PathBuf {
        self.state_dir().join("images")
    }

    pub fn host_layer(&self) -> PathBuf {
        self.state_dir().join("images/host")
    }

    /// Python packages that were installed for jobs.
    pub fn requirements(&self) -> PathBuf {
        self.state_dir().join("requirements")
    }

    /// What was copied in from stores of other machines.
    pub fn remote(&self) -> PathBuf {
        self.state_dir().join("remote")
    }

    /// Runs whose output is still to be copied to stores of other machines.
    pub fn outbox(&self) -> PathBuf {
        self.state_dir().join("outbox")
    }

    /// What the mount shows.
    /// What is to be known of what workspaces keep when the machine is started.
    pub fn storage(&self) -> PathBuf {
        self.state_dir().join("storage")
    }

    pub fn workspaces(&self) -> PathBuf {
        self.state_dir().join("workspaces")
    }

    pub fn workspace(&self, workspace: &WorkspaceName) -> PathBuf {
        self.workspaces().join(workspace.as_str())
    }

    pub fn job(&self, key: &JobKey) -> PathBuf {
        self.workspace(&key.workspace).join("jobs").join(key.job.as_str())
    }

    pub fn run(&self, key: &JobKey, run: u32) -> PathBuf {
        self.job(key).join("runs").join(run.to_string())
    }

    /// Where a task's logs and status lie.
    pub fn task(&self, key: &JobKey, run: u32, attempt: u32, task: &TaskName) -> PathBuf {
        self.run(key, run).join("attempts").join(attempt.to_string()).join(task.to_string())
    }

    pub fn model(&self, key: &JobKey, run: u32) -> PathBuf {
        self.workspace(&key.workspace).join("models").join(key.job.as_str()).join(run.to_string())
    }

    /// Where state, images and workspaces lie, which may be one disk or three.
    pub fn disks(&self) -> [PathBuf; 3] {
        [self.state_dir(), self.images(), self.workspaces()]
    }

    pub fn run_dir(&self) -> PathBuf {
        self.root.join("run/trainyard")
    }

    pub fn api_socket(&self) -> PathBuf {
        self.run_dir().join("api.sock")
    }

    /// Where shims tell that something changed.
    pub fn news_socket(&self) -> PathBuf {
        self.run_dir().join("news.sock")
    }

    /// The bell of whoever shows directories directly.
    pub fn direct_bell(&self) -> PathBuf {
        self.run_dir().join("direct.sock")
    }

    /// What errors the driver has reported of cards since the machine was started.
    pub fn xids(&self) -> PathBuf {
        self.run_dir().join("xids.json")
    }

    pub fn daemon_lock(&self) -> PathBuf {
        self.run_dir().join("daemon.lock")
    }

    /// Who has drained the machine; it is over when the machine is started anew.
    pub fn drain_file(&self) -> PathBuf {
        self.run_dir().join("drained.json")
    }

    pub fn mount_lock(&self) -> PathBuf {
        self.run_dir().join("mount.lock")
    }

    /// Why the mount process does not go on as the daemon's program; it tells the daemon by that.
    pub fn mount_refusal(&self) -> PathBuf {
        self.run_dir().join("mount.refusal")
    }

    /// Network namespaces and shared memory of attempts; gone after a reboot, as they are.
    pub fn kernel_objects(&self) -> PathBuf {
        self.run_dir().join("attempts")
    }

    /// By which the mount is known in the machine's table of mounts.
    pub fn mount_source(&self) -> String {
        format!("trainyard-{}", self.instance())
    }

    pub fn mount_point(&self) -> PathBuf {
        self.root.join("srv/trainyard")
    }
}

#[cfg(test)]
mod tests;
