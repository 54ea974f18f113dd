//! What else of the machine tasks see.

use std::path::{Component, Path, PathBuf};

use toml::Spanned;

use super::Reader;
use crate::spec::job::HostMount;
use crate::spec::wire::WireMount;

/// Places of the kernel: what tasks see there is theirs alone.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Places in tasks that are the run's own.
const OWN: [&str; 3] = ["/output", "/model", "/code"];
/// Where ours lies in tasks.
const OURS: &str = "/run/trainyard";
const MOUNTS_MAX: usize = 64;

impl Reader<'_> {
    pub(super) fn mounts(&mut self, wire: &[Spanned<WireMount>]) -> Vec<HostMount> {
        if let Some(more) = wire.get(MOUNTS_MAX) {
            self.error(more.span(), "mounts", format!("`mounts`: {MOUNTS_MAX} are possible, not {}", wire.len()));
        }
        let mut out: Vec<HostMount> = Vec::new();
        for mount in wire.iter().take(MOUNTS_MAX) {
            let (span, mount) = (mount.span(), mount.get_ref());
            let read =
                source(mount.source.as_deref()).and_then(|source| Ok((source, target(mount.target.as_deref())?)));
            match read {
                Err((key, message)) => self.error(span, key, format!("`{key}`: {message}")),
                Ok((_, target)) if out.iter().any(|other| other.target == target) => {
                    self.error(span, "mounts", format!("`mounts` has two for {}", target.display()));
                }
                Ok((source, target)) => out.push(HostMount { source, target, read_only: mount.read_only }),
            }
        }
        // What lies in another one comes after it.
        out.sort_by(|a, b| a.target.cmp(&b.target));
        out
    }
}

type Wrong = (&'static str, String);

fn source(text: Option<&str>) -> Result<PathBuf, Wrong> {
    let wrong = |message: String| Err(("mounts.source", message));
    let Some(text) = text else { return wrong("a mount needs the place on this machine".to_owned()) };
    let store = text.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| !scheme.contains('/'));
    if let Some(store) = store {
        return wrong(format!(
            "stores such as {store}: are not supported by this version; copy the data into datasets/"
        ));
    }
    match plain(text) {
        None => wrong(format!("{text:?} is not the absolute path of a place on this machine")),
        Some(path) if path == Path::new("/") => wrong("the whole machine cannot be shown; name a directory".to_owned()),
        Some(path) if is_below(&path, &KERNEL) => wrong(format!("{text} is the kernel's; tasks have their own")),
        Some(path) => Ok(path),
    }
}

fn target(text: Option<&str>) -> Result<PathBuf, Wrong> {
    let wrong = |message: String| Err(("mounts.target", message));
    let Some(text) = text else { return wrong("a mount needs the place at which tasks see it".to_owned()) };
    match plain(text) {
        None => wrong(format!("{text:?} is not an absolute path")),
        Some(path) if path == Path::new("/") => wrong("the root is the image's; name a directory".to_owned()),
        Some(path) if is_below(&path, &KERNEL) || path.starts_with(OURS) => {
            wrong(format!("nothing can be put at {text}"))
        }
        Some(path) if OWN.iter().any(|own| path == Path::new(own)) => wrong(format!("{text} is the run's own")),
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
