//! What else tasks see, of the machine and of stores elsewhere.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::Reader;
use crate::ids::{AssetName, StoreKind, parse_duration};
use crate::spec::job::{HostMount, RemoteMount, SyncAt};
use crate::spec::stores::ForeignStore;
use crate::spec::wire::WireMount;

/// Places of the kernel: what tasks see there is theirs alone.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Places in tasks that are the run's own.
const OWN: [&str; 3] = [OUTPUT, "/model", "/code"];
const OUTPUT: &str = "/output";
/// Where the workspaces are mounted: what it serves is there no more when its process ends.
const WORKSPACES: &str = "/srv/trainyard";
/// Where ours lies in tasks.
const OURS: &str = "/run/trainyard";
const MOUNTS_MAX: usize = 64;
/// Who copies more often does little else.
const SYNC_MIN: Duration = Duration::from_secs(10);
const SYNC_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

enum Read {
    Host(HostMount),
    Remote(RemoteMount),
}

impl Read {
    fn target(&self) -> &Path {
        match self {
            Self::Host(mount) => &mount.target,
            Self::Remote(mount) => &mount.target,
        }
    }
}

impl Reader<'_> {
    pub(super) fn mounts(&mut self, wire: &[Spanned<WireMount>]) -> (Vec<HostMount>, Vec<RemoteMount>) {
        if let Some(more) = wire.get(MOUNTS_MAX) {
            self.error(more.span(), "mounts", format!("`mounts`: {MOUNTS_MAX} are possible, not {}", wire.len()));
        }
        let mut out: Vec<Read> = Vec::new();
        for mount in wire.iter().take(MOUNTS_MAX) {
            let (span, mount) = (mount.span(), mount.get_ref());
            match read(mount) {
                Err((key, message)) => self.error(span, key, format!("`{key}`: {message}")),
                Ok(read) if out.iter().any(|other| other.target() == read.target()) => {
                    self.error(span, "mounts", format!("`mounts` has two for {}", read.target().display()));
                }
                Ok(read) => out.push(read),
            }
        }
        // What lies in another one comes after it.
        out.sort_by(|a, b| a.target().cmp(b.target()));
        let (mut hosts, mut remotes) = (Vec::new(), Vec::new());
        for read in out {
            match read {
                Read::Host(mount) => hosts.push(mount),
                Read::Remote(mount) => remotes.push(mount),
            }
        }
        (hosts, remotes)
    }
}

type Wrong = (&'static str, String);

fn read(mount: &WireMount) -> Result<Read, Wrong> {
    let source = mount.source.as_deref();
    if let Some((kind, rest)) = source.and_then(store_of) {
        return remote(kind, rest, mount).map(Read::Remote);
    }
    if mount.sync.is_some() {
        return Err(("mounts.sync", "is for stores of other machines: source = \"s3:POOL/PREFIX\"".to_owned()));
    }
    let (source, target) = (host_source(source)?, target(mount.target.as_deref(), &OWN)?);
    Ok(Read::Host(HostMount { source, target, read_only: mount.read_only }))
}

/// The kind of store that a source names, and where in it.
pub(super) fn store_of(source: &str) -> Option<(&str, &str)> {
    source.split_once(':').filter(|(kind, _)| !kind.contains('/'))
}

/// Code that lies in a store.
pub(super) fn code(source: &str) -> Result<RemoteMount, String> {
    let (kind, rest) = store_of(source).unwrap_or_default();
    if kind == "ssh" || kind.contains('@') {
        return Err(format!(
            "{source:?} is reached by ssh, which is not supported: of a repository it is code = {{ git = \"https://…\" }}, with \
             user and password = \"secret:NAME\" if it is private"
        ));
    }
    if let Some(store) = ForeignStore::of(source) {
        let way = store.place().map_or_else(
            || "put the code into code/".to_owned(),
            |place| format!("write code = \"{place}\", with a pool of trainyard.toml"),
        );
        return Err(format!("{source:?} is an address in {}: {way}", store.name));
    }
    if rest.starts_with("//") {
        return Err(format!("{source:?} is an address; of a repository it is code = {{ git = {source:?} }}"));
    }
    let (pool, prefix) = place(kind, rest)?;
    Ok(RemoteMount { kind: kind.to_owned(), pool, prefix, target: RemoteMount::CODE.into(), sync: None })
}

/// The pool and the prefix.
fn place(kind: &str, rest: &str) -> Result<(AssetName, String), String> {
    if StoreKind::parse(kind).is_none() {
        let all = StoreKind::ALL.map(StoreKind::name).join(", ");
        return Err(format!(
            "{kind}: is no kind of store; there are {all}, of which s3 is also that of UFile, OBS, COS and MinIO"
        ));
    }
    let (pool, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let pool = pool.parse().map_err(|error| {
        format!("{kind}:{rest} names no pool ({error}); write {kind}:POOL/PREFIX, with a pool of trainyard.toml")
    })?;
    let prefix = prefix.trim_matches('/');
    if !prefix.is_empty()
        && !prefix.split('/').all(|part| !matches!(part.trim(), "" | "." | "..") && part == part.trim())
    {
        return Err(format!("{prefix:?} is no path in a store: it has an empty part, `.`, `..` or outer spaces"));
    }
    if prefix.contains(['\0', '\n', '\r']) {
        return Err("a path in a store is one line of text".to_owned());
    }
    Ok((pool, prefix.to_owned()))
}

fn remote(kind: &str, rest: &str, mount: &WireMount) -> Result<RemoteMount, Wrong> {
    let (pool, prefix) = place(kind, rest).map_err(|message| ("mounts.source", message))?;
    let target = target(mount.target.as_deref(), &OWN[1..])?;
    let is_output = target == Path::new(OUTPUT);
    let sync = match mount.sync.as_deref() {
        Some(_) if !is_output => {
            return Err(("mounts.sync", format!("what is copied back is the output: target = \"{OUTPUT}\"")));
        }
        None if !is_output => None,
        None | Some("end") => Some(SyncAt::End),
        Some(text) => Some(SyncAt::Every(every(text)?)),
    };
    if sync.is_some() && mount.read_only {
        return Err(("mounts.read_only", "the output is copied there; leave it out".to_owned()));
    }
    Ok(RemoteMount { kind: kind.to_owned(), pool, prefix, target, sync })
}

fn every(text: &str) -> Result<Duration, Wrong> {
    match parse_duration(text) {
        Ok(every) if (SYNC_MIN..=SYNC_MAX).contains(&every) => Ok(every),
        Ok(every) if every < SYNC_MIN => Err(("mounts.sync", format!("{text:?} is too often; 10s is the least"))),
        Ok(_) => Err(("mounts.sync", format!("{text:?} is too seldom; 30d is the most"))),
        Err(error) => {
            Err(("mounts.sync", format!("{text:?} is neither \"end\" nor a duration such as \"5m\": {error}")))
        }
    }
}

fn host_source(text: Option<&str>) -> Result<PathBuf, Wrong> {
    let wrong = |message: String| Err(("mounts.source", message));
    let Some(text) = text else { return wrong("a mount needs the place on this machine".to_owned()) };
    match plain(text) {
        None => wrong(format!("{text:?} is not the absolute path of a place on this machine")),
        Some(path) if path == Path::new("/") => wrong("the whole machine cannot be shown; name a directory".to_owned()),
        Some(path) if is_below(&path, &KERNEL) => wrong(format!("{text} is the kernel's; tasks have their own")),
        Some(path) if path.starts_with(WORKSPACES) => {
            wrong(format!("{text} is Trainyard's own; jobs see workspaces by `code` and `datasets`"))
        }
        Some(path) => Ok(path),
    }
}

/// `own` are those that stay the run's.
fn target(text: Option<&str>, own: &[&str]) -> Result<PathBuf, Wrong> {
    let wrong = |message: String| Err(("mounts.target", message));
    let Some(text) = text else { return wrong("a mount needs the place at which tasks see it".to_owned()) };
    match plain(text) {
        None => wrong(format!("{text:?} is not an absolute path")),
        Some(path) if path == Path::new("/") => wrong("the root is the image's; name a directory".to_owned()),
        Some(path) if is_below(&path, &KERNEL) || path.starts_with(OURS) => {
            wrong(format!("nothing can be put at {text}"))
        }
        Some(path) if own.iter().any(|own| path == Path::new(own)) => wrong(format!("{text} is the run's own")),
        Some(path) => Ok(path),
    }
}

/// An absolute path that leads nowhere but down.
fn plain(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    (path.is_absolute() && is_plain && !text.contains('\0')).then(|| path.components().collect())
}

fn is_below(path: &Path, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}
