//! One file that others write, watched by way of its directory, since whoever writes it whole replaces it.

use std::io;
use std::path::Path;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

/// What has become of a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    Written,
    /// It may be about to be replaced.
    Gone,
}

/// A file is watched until this is dropped.
#[derive(Debug)]
pub struct FileWatch {
    _watcher: RecommendedWatcher,
}

/// Tells of a file in a directory that is there.
pub fn watch(file: &Path, tell: impl Fn(Sign) + Send + 'static) -> io::Result<FileWatch> {
    let path = file.to_owned();
    let seen = move |event: notify::Result<notify::Event>| match event {
        Ok(event) if event.need_rescan() => tell(Sign::Written),
        Ok(event) if event.paths.contains(&path) => sign_of(&event.kind).into_iter().for_each(&tell),
        Ok(_) => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot watch"),
    };
    let mut watcher = notify::recommended_watcher(seen).map_err(io::Error::other)?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    watcher.watch(directory, RecursiveMode::NonRecursive).map_err(io::Error::other)?;
    Ok(FileWatch { _watcher: watcher })
}

/// Whether something may be another now: the kernel tells of everybody who opens something as well, whoever watches it among them.
pub fn is_change(event: &notify::Event) -> bool {
    !matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

/// Not of a file that somebody still writes.
fn sign_of(kind: &EventKind) -> Option<Sign> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(Sign::Written),
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Some(Sign::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_told_of_when_it_is_whole_or_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("file"), dir.path().join("aside"));
        let (sender, signs) = channel();
        let _watch = watch(&path, move |sign| sender.send(sign).unwrap()).unwrap();
        let next = || signs.recv_timeout(Duration::from_secs(60)).unwrap();
        fs::write(&path, "whole").unwrap();
        assert_eq!(next(), Sign::Written);
        fs::write(&aside, "another").unwrap();
        fs::rename(&aside, &path).unwrap();
        assert_eq!(next(), Sign::Written);
        fs::remove_file(&path).unwrap();
        assert_eq!(next(), Sign::Gone);
    }

    #[test]
    fn to_open_and_to_read_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let (path, end) = (dir.path().join("file"), dir.path().join("end"));
        fs::write(&path, "whole").unwrap();
        let (sender, events) = channel();
        let mut watcher = notify::recommended_watcher(move |event| sender.send(event).unwrap()).unwrap();
        watcher.watch(dir.path(), RecursiveMode::NonRecursive).unwrap();
        let seen_until = |last: &Path| {
            let next = || -> notify::Event { events.recv_timeout(Duration::from_secs(60)).unwrap().unwrap() };
            let mut seen = Vec::new();
            while !seen.last().is_some_and(|event: &notify::Event| event.paths.contains(&last.to_owned())) {
                seen.push(next());
            }
            seen
        };
        fs::read(&path).unwrap();
        fs::read_dir(dir.path()).unwrap();
        fs::create_dir(&end).unwrap();
        let mut seen = seen_until(&path);
        seen.extend(seen_until(&end));
        let (last, before) = seen.split_last().unwrap();
        assert!(is_change(last) && before.iter().all(|event| !is_change(event)), "{seen:?}");
        fs::remove_dir(&end).unwrap();
        assert!(is_change(seen_until(&end).last().unwrap()));
    }
}
