//! What this machine can and cannot do for Trainyard, and what to do about it: `trainyard doctor`.
//!
//! Each check asks by the same code as the daemon and the mount, so that what it says is what they will find. It changes nothing that
//! stays: what it mounts is in a mount namespace of its own, what it writes goes with it. It knows no daemon, and works while there
//! is none.

mod alerts;
mod kernel;
mod mount;
mod resources;
mod storage;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;

use crate::config::{Config, ConfigError, Paths};
use crate::gpu::Inventory;
use crate::ids::WorkspaceName;
use crate::sys::lock::{is_held, pid_in};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Something is slower than it could be, or missing for some jobs.
    Warning,
    /// Jobs cannot run, or not as they should.
    Failed,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    /// One line.
    pub found: String,
    /// What to do; where all is well there is none.
    pub advice: Option<String>,
}

/// What a check says, without its name.
struct Verdict {
    level: Level,
    found: String,
    advice: Option<String>,
}

fn ok(found: impl Into<String>) -> Verdict {
    Verdict { level: Level::Ok, found: found.into(), advice: None }
}

fn warning(found: impl Into<String>, advice: impl Into<String>) -> Verdict {
    Verdict { level: Level::Warning, found: found.into(), advice: Some(advice.into()) }
}

fn failure(found: impl Into<String>, advice: impl Into<String>) -> Verdict {
    Verdict { level: Level::Failed, found: found.into(), advice: Some(advice.into()) }
}

/// What the checks look at.
struct Machine {
    paths: Paths,
    /// As it would be with the file as it is; the defaults where that cannot be used.
    config: Config,
    wrong: Option<ConfigError>,
    is_root: bool,
    /// As the first check that asked found them; else a driver that hangs would be waited for by each.
    cards: OnceLock<Result<Inventory, String>>,
}

type Check = fn(&Machine) -> Verdict;

/// How long a check may take: nothing that it asks takes seconds, unless it hangs.
pub const BOUND: Duration = Duration::from_secs(30);

/// In the order in which they are told: what everything needs comes first.
const CHECKS: [(&str, Check); 20] = [
    ("config", config),
    ("root", root),
    ("kernel", kernel::version),
    ("seccomp", kernel::seccomp),
    ("cgroup", kernel::cgroup),
    ("delegation", kernel::delegation),
    ("user-namespaces", kernel::user_namespaces),
    ("id-map", storage::id_map),
    ("overlay", storage::overlay),
    ("fuse", storage::fuse),
    ("quota", storage::quota),
    ("disk", storage::disk),
    ("mount", mount::mount),
    ("nftables", kernel::nftables),
    ("driver", resources::driver),
    ("driver-files", resources::driver_files),
    ("inotify", resources::inotify),
    ("open-files", resources::open_files),
    ("time", resources::time),
    ("alerts", alerts::alerts),
];

/// The names of all checks.
pub fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

/// Looks; only at what `chosen` names, unless it names nothing, and at each for so long at most, from 1 s on.
pub fn examine(root: &Path, chosen: &[String], bound: Duration) -> Result<Vec<Finding>, ConfigError> {
    let paths = Paths::new(root)?;
    let (config, wrong) = match Config::load(root) {
        Ok(config) => (config, None),
        Err(error) => (Config::defaults(paths.clone())?, Some(error)),
    };
    let machine =
        Machine { paths, config, wrong, is_root: nix::unistd::Uid::effective().is_root(), cards: OnceLock::new() };
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
    let machine = Arc::new(machine);
    let look = |(check, look): &(&'static str, Check)| {
        let Verdict { level, found, advice } = within_bound(*look, &machine, bound);
        Finding { check, level, found, advice }
    };
    Ok(CHECKS.iter().filter(|(name, _)| is_chosen(name)).map(look).collect())
}

/// What asks a disk that hangs is left to itself, and the next check is made. Its thread is of this process, which has told all then,
/// and does not end before the kernel lets that go.
fn within_bound(check: Check, machine: &Arc<Machine>, bound: Duration) -> Verdict {
    let ((sender, receiver), machine) = (channel(), machine.clone());
    let looks = move || drop(sender.send(check(&machine)));
    let looked = std::thread::Builder::new().name("check".to_owned()).spawn(looks);
    match looked.map(|_| receiver.recv_timeout(bound)) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(RecvTimeoutError::Timeout)) => failure(
            format!("not known: no answer for {} s", bound.as_secs()),
            "see whether the disks of the machine answer (`dmesg`), and ask again",
        ),
        Ok(Err(RecvTimeoutError::Disconnected)) => {
            failure("the check has panicked", "this is a mistake in Trainyard: tell it")
        }
        Err(error) => failure(format!("cannot start a thread: {error}"), "ask again when the machine has room for one"),
    }
}

fn config(machine: &Machine) -> Verdict {
    let path = machine.paths.config_file();
    match &machine.wrong {
        Some(error) => failure(
            crate::sys::told(error),
            "correct it; until then a daemon that runs goes on with what was in force, and none can be started",
        ),
        None if !machine.config.warnings.is_empty() => {
            let found = format!("{}: {}", path.display(), machine.config.warnings.join("; "));
            warning(found, "write what is meant; the daemon goes by what is said here")
        }
        None if !without_directory(machine).is_empty() => warning(
            format!(
                "{} speaks of workspaces that there are not: {}",
                path.display(),
                without_directory(machine).join(", ")
            ),
            "write the name that is meant, or make its directory in jobs.d",
        ),
        None if path.exists() && machine.config.is_blank() => warning(
            format!("{} is empty: everything has its default", path.display()),
            "put back what it said; a daemon that runs goes on with that, and its next start takes the defaults",
        ),
        None if path.exists() => ok(format!("{} is right", path.display())),
        None => ok(format!("{} is not there: everything has its default", path.display())),
    }
}

/// Workspaces of the configuration that there are not.
fn without_directory(machine: &Machine) -> Vec<String> {
    let config = &machine.config;
    let named: BTreeSet<String> =
        config.named_workspaces.iter().chain(&config.network.host_workspaces).cloned().collect();
    let is_there = |name: &String| {
        let name: Option<WorkspaceName> = name.parse().ok();
        name.is_some_and(|name| machine.paths.has_workspace(&name))
    };
    named.into_iter().filter(|name| !is_there(name)).collect()
}

fn root(machine: &Machine) -> Verdict {
    match machine.is_root {
        true => ok("asked by root"),
        false => warning("asked by another user than root", "ask again with sudo: some checks need root's rights"),
    }
}

/// What `/proc/PID/NAME` says of the daemon, if one runs; which one that is, root alone may read.
fn daemons(machine: &Machine, name: &str) -> Result<Option<String>, Verdict> {
    let lock = machine.paths.daemon_lock();
    let found = is_held(&lock).and_then(|is_held| if is_held { pid_in(&lock) } else { Ok(None) });
    // It may end meanwhile.
    let read = found.map(|pid| std::fs::read_to_string(format!("/proc/{}/{name}", pid?)).ok());
    match read {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(needs_root()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(warning(
            format!("cannot look for the daemon: {}: {error}", lock.display()),
            "see whether its disk answers",
        )),
        read => Ok(read.ok().flatten()),
    }
}

fn needs_root() -> Verdict {
    warning("not looked at", "ask again with sudo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_is_named_is_the_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let found = examine(dir.path(), &["config".to_owned()], BOUND).unwrap();
        assert_eq!(
            found.iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>(),
            [("config", Level::Ok)]
        );
        let place = dir.path().join("etc/trainyard");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("trainyard.toml"), "[limits]\ncpus = 1\n").unwrap();
        let found = examine(dir.path(), &["config".to_owned(), "disk".to_owned()], BOUND).unwrap();
        assert_eq!((found.len(), found[0].level), (2, Level::Failed));
        assert!(found[0].found.contains("unknown field `cpus`"), "{found:?}");
        std::fs::write(place.join("trainyard.toml"), "[limits]\nstop_grace = \"2h\"\n").unwrap();
        let found = examine(dir.path(), &["config".to_owned()], BOUND).unwrap();
        assert_eq!(found[0].level, Level::Warning);
        assert!(found[0].found.contains("limits.stop_grace"), "{found:?}");
        std::fs::create_dir_all(place.join("jobs.d/lab")).unwrap();
        std::fs::write(place.join("trainyard.toml"), "[workspaces.lab]\ncpu = 1\n[workspaces.lob]\ncpu = 1\n").unwrap();
        let found = examine(dir.path(), &["config".to_owned()], BOUND).unwrap();
        assert_eq!(found[0].level, Level::Warning);
        assert!(found[0].found.ends_with("speaks of workspaces that there are not: lob"), "{found:?}");
    }
}
