//! The appliance's own file, `trainyard.toml`, and where everything lies.

mod alerts;
mod images;
mod in_force;
mod job_files;
mod limits;
mod listen;
mod network;
mod paths;
mod pools;
mod quotas;
mod specs;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use crate::ids::{AssetName, Bytes, HomeName, LogLimits};
use alerts::WireAlert;
pub use alerts::{ALARM, AlertConfig, AlertOn, AlertTo, Given, check_address};
pub use images::ImagesConfig;
use images::WireImages;
pub use in_force::InForce;
pub use job_files::JobFiles;
use limits::WireLimits;
pub use limits::{Limits, ROOM_MIN};
pub use listen::Listen;
use listen::WireListen;
use network::WireNetwork;
pub use network::{AddressRange, NetworkConfig};
pub use paths::Paths;
pub use pools::Pool;
use pools::WirePool;
pub use quotas::{QueueConfig, Quota, Quotas, UsageConfig};
use quotas::{WireQueue, WireUsage};
use specs::WireSpec;
pub use storage::StorageConfig;

use crate::spec::ResourceSpecs;

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
    /// Those that have a table.
    pub named_workspaces: BTreeSet<String>,
    /// How much of the machine workspaces may have.
    pub quotas: Quotas,
    /// What is not taken as the file says it, each by its key.
    pub warnings: Vec<String>,
    /// What the file says of that which acts after a restart only, to tell whether it was edited.
    until_restart: BTreeMap<&'static str, toml::Value>,
    /// There is no file, or nothing in it, as a copy onto a full disk leaves it.
    is_blank: bool,
}

/// Graphics cards.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// NVIDIA's library; it is looked for when absent.
    pub library: Option<PathBuf>,
    /// Where descriptions of the cards for containers (CDI) lie; a later place goes before.
    pub cdi: Vec<PathBuf>,
    /// Programs that keep nobody from a card on which they are, by the names of their files.
    pub ignore: Vec<String>,
    /// The program that makes nodes of devices that are missing; nobody does where it is empty.
    pub modprobe: String,
}

/// What shows a desktop.
const DISPLAY_SERVERS: [&str; 5] = ["Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11"];

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            library: None,
            cdi: ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from).to_vec(),
            ignore: DISPLAY_SERVERS.map(str::to_owned).to_vec(),
            modprobe: "nvidia-modprobe".to_owned(),
        }
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
#[serde(deny_unknown_fields, default, expecting = "a table, as `[logs]` begins one")]
struct WireLogs {
    max_size: Option<String>,
    parts: Option<u32>,
}

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
            warnings: limits::warnings(&wire.limits),
            limits: limits::read(&wire.limits).map_err(|(key, message)| value(&path, key, message))?,
            network: network::read(&wire.network, &paths).map_err(|(key, message)| value(&path, key, message))?,
            images: images::read(&wire.images).map_err(|(key, message)| value(&path, key, message))?,
            logs: logs(&wire.logs).map_err(|(key, message)| value(&path, key, message))?,
            storage: storage::read(&wire.limits, &wire.workspaces)
                .map_err(|(key, message)| value(&path, key, message))?,
            mounts_below: mounts_below(wire.mounts.below).map_err(|(key, message)| value(&path, key, message))?,
            direct: wire.mount.direct,
            gpu: gpu(wire.gpu).map_err(|(key, message)| value(&path, key, message))?,
            specs: specs::read(&wire.specs, &wire.workspaces).map_err(|(key, message)| value(&path, key, message))?,
            queue: quotas::queue(&wire.queue).map_err(|(key, message)| value(&path, key, message))?,
            usage: quotas::usage(&wire.usage).map_err(|(key, message)| value(&path, key, message))?,
            named_workspaces: wire.workspaces.keys().cloned().collect(),
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

    /// Bytes that the workspace, or what all see, may keep on the disk; as much as there is room for when `None`.
    pub fn storage_of(&self, home: &HomeName) -> Option<u64> {
        self.storage.of(home)
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
    if let Some(name) = gpu.ignore.iter().find(|name| name.is_empty() || name.contains('/')) {
        return Err((
            "gpu.ignore",
            format!("{name:?} is not the name of a program's file; write it without its directory"),
        ));
    }
    let is_name = !gpu.modprobe.contains('/');
    if !is_name && !Path::new(&gpu.modprobe).is_absolute() {
        return Err(("gpu.modprobe", format!("{} is neither a name nor an absolute path", gpu.modprobe)));
    }
    let wrong = |key, path: &PathBuf| Err((key, format!("{} is not an absolute path", path.display())));
    match (gpu.library.iter().find(is_relative), gpu.cdi.iter().find(is_relative)) {
        (Some(path), _) => wrong("gpu.library", path),
        (None, Some(path)) => wrong("gpu.cdi", path),
        (None, None) => Ok(gpu),
    }
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

#[cfg(test)]
mod tests;
