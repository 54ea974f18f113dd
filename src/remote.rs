//! Copies between stores of other machines and a directory of this one.
//!
//! It is done by a process of its own, `trainyard carry`, for each copy: what comes from a network is read with the rights of
//! the job's owner, in a bounded memory, and nobody but the daemon sees the keys. The order comes by standard input, which
//! stays open for as long as the result is wanted; news go to standard output, one JSON object a line.

mod access;
mod bring;
mod send;
mod webhdfs;

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sys::process::{Kept, become_user};
pub use access::Access;

/// What is to be done, in the directory that is inherited.
#[derive(Serialize, Deserialize)]
#[expect(missing_debug_implementations, reason = "it holds keys")]
pub struct Order {
    pub access: Access,
    pub rights: Rights,
    pub errand: Errand,
}

/// With whose rights files are read and written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Root without the rights of root, but that to read: for a store that is reached by another program, in whose memory and
    /// files its user could look for the keys.
    pub is_apart: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Errand {
    /// Copies all that lies at a prefix into a snapshot below the directory.
    Bring { prefix: String },
    /// Copies the directory's files to a prefix, but for those that are there already.
    Send { prefix: String, sent: BTreeMap<PathBuf, Mark> },
}

/// By what one state of a file is told from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub size: u64,
    pub modified_ns: i64,
    pub inode: u64,
}

/// One line of news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    Progress(Progress),
    /// A file is in the store.
    Sent {
        path: PathBuf,
        mark: Mark,
    },
    /// It lives, and has nothing else to tell.
    Alive,
    /// The store has not answered, or not as it should: it is asked again.
    Again {
        why: String,
    },
    /// All that was to be brought is in this directory of the snapshots, below `tree/`.
    Brought {
        snapshot: String,
        progress: Progress,
    },
    /// All was sent that could be.
    AllSent {
        progress: Progress,
        left: Left,
        /// Files that were changed while they were sent.
        changed: u64,
    },
    Failed {
        message: String,
        /// The same may work later.
        is_temporary: bool,
    },
}

/// What cannot be sent, however often it is tried.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The first few, and why.
    pub named: Vec<(String, String)>,
    /// How many there are beside them.
    pub more: u64,
}

impl Left {
    const NAMED_MAX: usize = 5;
    const LONGEST: usize = 200;

    fn add(&mut self, path: &std::path::Path, why: &str) {
        if self.named.len() == Self::NAMED_MAX {
            self.more += 1;
            return;
        }
        self.named.push((path.display().to_string().chars().take(Self::LONGEST).collect(), why.to_owned()));
    }
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.named.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = self.named.iter().map(|(path, why)| format!("{path} ({why})")).collect();
        write!(f, "; not sent: {}", named.join(", "))?;
        if self.more > 0 { write!(f, " and {} more", self.more) } else { Ok(()) }
    }
}

/// How far a copy has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub files: u64,
    pub of_files: u64,
    pub bytes: u64,
    pub of_bytes: u64,
}

/// Where a snapshot has its files.
pub const TREE: &str = "tree";

/// Address space of the process: listings of a million files fit.
const MEMORY_MAX: u64 = 4 << 30;
/// Most files of one copy.
const FILES_MAX: usize = 2_000_000;
const TOLD_EVERY: Duration = Duration::from_millis(500);
/// How often it says that it lives, at least.
pub const ALIVE_EVERY: Duration = Duration::from_secs(30);

/// The role `trainyard carry`: carries out the order that comes by standard input.
pub fn run(directory: OwnedFd) -> io::Result<()> {
    let mut line = String::new();
    let mut stdin = io::BufReader::new(io::stdin());
    stdin.read_line(&mut line)?;
    // Its own message would quote what it has read.
    let order: Order = serde_json::from_str(&line).map_err(|_| io::Error::other("the order cannot be read"))?;
    line.clear();
    let Rights { uid, gid, groups, is_apart } = &order.rights;
    if *is_apart {
        // What the other program leaves in the background ends with us.
        crate::sys::process::go_on_in_own_processes()?;
        keep_to(&order.access.known_host().unwrap_or_default())?;
    }
    let kept = if *is_apart { Kept::Reading } else { Kept::Nothing };
    become_user(*uid, *gid, groups, MEMORY_MAX, kept)?;
    nix::unistd::fchdir(&directory)?;
    // What is copied in is read by whoever the task runs as.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let end_with = move || {
        let _ = stdin.read_to_end(&mut Vec::new());
        // Nobody wants it any more; what is done so far is kept.
        crate::sys::process::exit_now(1);
    };
    std::thread::Builder::new().name("wanted".to_owned()).spawn(end_with)?;
    std::thread::Builder::new().name("alive".to_owned()).spawn(say_alive)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let teller = Teller::default();
    let secrets = order.access.secrets();
    let done = runtime.block_on(carry_out(order, &teller));
    teller.tell(&done.unwrap_or_else(|failure| failure.without(&secrets).news()))
}

/// Somebody who has stopped the process, and could hold up others by that, is seen so.
fn say_alive() {
    let teller = Teller::default();
    while teller.tell(&News::Alive).is_ok() {
        std::thread::park_timeout(ALIVE_EVERY);
    }
}

/// Hides what the machine's `ssh` is set to, and lets it know one host alone.
fn keep_to(known_host: &str) -> io::Result<()> {
    const SETTINGS: &str = "/etc/ssh";
    const ALONE: &str =
        "IdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile none\nProxyCommand none\nBatchMode yes\n";
    let told = |error: io::Error| io::Error::new(error.kind(), format!("{SETTINGS}: {error}; is ssh installed?"));
    crate::sys::mounts::enter_private_namespace()?;
    crate::sys::mounts::mount_small(std::path::Path::new(SETTINGS)).map_err(told)?;
    std::fs::write(format!("{SETTINGS}/ssh_known_hosts"), known_host).map_err(told)?;
    std::fs::write(format!("{SETTINGS}/ssh_config"), ALONE).map_err(told)?;
    // Root's own keys, hosts and settings count for nothing; where ssh keeps its sockets goes with us.
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(0))? {
        Some(root) if root.dir.is_dir() => crate::sys::mounts::mount_small(&root.dir),
        _ => Ok(()),
    }
}

async fn carry_out(order: Order, teller: &Teller) -> Result<News, Failure> {
    let operator = access::open(&order.access, matches!(order.errand, Errand::Send { .. }))?;
    match order.errand {
        Errand::Bring { prefix } => bring::bring(&operator, &prefix, teller).await,
        Errand::Send { prefix, sent } => {
            let target = send::Target { operator, webhdfs: access::webhdfs(&order.access)? };
            send::send(&target, &prefix, &sent, teller).await
        }
    }
}

/// Why a copy did not come to its end.
#[derive(Debug)]
struct Failure {
    message: String,
    is_temporary: bool,
}

impl Failure {
    fn for_good(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_temporary: false }
    }

    fn for_now(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_temporary: true }
    }

    /// What a store has said of `what`; its answers may be long, and hold addresses with signatures.
    fn of_store(what: &str, error: &opendal::Error) -> Self {
        use opendal::ErrorKind;
        let is_temporary = !error.is_permanent()
            || !matches!(
                error.kind(),
                ErrorKind::NotFound
                    | ErrorKind::PermissionDenied
                    | ErrorKind::Unsupported
                    | ErrorKind::ConfigInvalid
                    | ErrorKind::IsADirectory
                    | ErrorKind::NotADirectory
            );
        let why = match error.kind() {
            ErrorKind::NotFound => "it is not there".to_owned(),
            ErrorKind::PermissionDenied => {
                "the store does not let us; the pool's `secret` must have keys that may".to_owned()
            }
            ErrorKind::RateLimited => "the store asks for less haste".to_owned(),
            ErrorKind::ConditionNotMatch => "it was changed in the store while it was copied".to_owned(),
            _ => short(error),
        };
        Self { message: format!("{what}: {why}"), is_temporary }
    }

    fn of_disk(what: &str, error: &io::Error) -> Self {
        Self::for_good(format!("{what}: {error}"))
    }

    /// What a store says may repeat what it was asked with.
    fn without(mut self, secrets: &[String]) -> Self {
        for secret in secrets {
            self.message = self.message.replace(secret.as_str(), "******");
        }
        self
    }

    /// Of a request that is made again.
    fn again(error: &opendal::Error, secrets: &[String]) -> News {
        News::Again { why: Self::of_store("the store is asked again", error).without(secrets).message }
    }

    fn news(self) -> News {
        News::Failed { message: self.message, is_temporary: self.is_temporary }
    }
}

/// The innermost reason of an error, in one bounded line.
fn short(error: &opendal::Error) -> String {
    const LONGEST: usize = 300;
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    let text = if std::ptr::addr_eq(inner, error) { error.message().to_owned() } else { inner.to_string() };
    // Addresses may hold tokens.
    let text = text.split(" for url (").next().unwrap_or_default();
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    match (line.trim(), status_of(error)) {
        ("", Some(status)) => format!("the store answers with status {status}"),
        ("", None) => format!("the store answers with an error ({})", error.kind()),
        (line, Some(status)) => format!("{line} (status {status})"),
        (line, None) => line.to_owned(),
    }
}

/// It has no other way to tell.
fn status_of(error: &opendal::Error) -> Option<u16> {
    let text = error.to_string();
    let (_, rest) = text.split_once("status: ")?;
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// Writes news, progress not more often than people can read it.
#[derive(Debug, Default)]
struct Teller {
    told: Mutex<Option<Instant>>,
}

impl Teller {
    fn tell(&self, news: &News) -> io::Result<()> {
        let mut line = serde_json::to_vec(news)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }

    fn progress(&self, progress: Progress) {
        self.now_and_then(|| News::Progress(progress));
    }

    fn now_and_then(&self, news: impl FnOnce() -> News) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            *told = Some(Instant::now());
            // Who does not listen has closed standard input as well.
            let _ = self.tell(&news());
        }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = |bytes| crate::ids::Bytes(bytes).to_string();
        write!(f, "{} of {} files, {} of {}", self.files, self.of_files, size(self.bytes), size(self.of_bytes))
    }
}
