//! Who is told when a log grows.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use crate::sys::watch::is_change;

/// Directories of logs, watched by one watcher of the kernel's for all who follow: of those a user may have few.
#[derive(Debug, Clone)]
pub struct Growth {
    followers: Arc<Mutex<Followers>>,
    watcher: Arc<Mutex<RecommendedWatcher>>,
}

#[derive(Debug, Default)]
struct Followers {
    by_directory: BTreeMap<PathBuf, BTreeMap<u64, Arc<Notify>>>,
    next: u64,
}

/// One of them, until it is dropped.
pub(super) struct Following {
    growth: Growth,
    directory: PathBuf,
    number: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Growth {
    pub fn start() -> io::Result<Self> {
        let followers = Arc::new(Mutex::new(Followers::default()));
        let told = followers.clone();
        let seen = move |event: notify::Result<notify::Event>| {
            // Each follower opens what all others follow.
            if event.as_ref().map_or(true, is_change) {
                lock(&told).tell(event.ok().as_ref());
            }
        };
        let watcher = notify::recommended_watcher(seen).map_err(io::Error::other)?;
        Ok(Self { followers, watcher: Arc::new(Mutex::new(watcher)) })
    }

    /// `grown` is told of everything that changes in the directory.
    pub(super) fn follow(&self, directory: &Path, grown: &Arc<Notify>) -> io::Result<Following> {
        // The watcher is locked throughout: who comes must not meet who goes.
        let mut watcher = lock(&self.watcher);
        let number = {
            let mut followers = lock(&self.followers);
            followers.next += 1;
            let number = followers.next;
            followers.by_directory.entry(directory.to_owned()).or_default().insert(number, grown.clone());
            number
        };
        let following = Following { growth: self.clone(), directory: directory.to_owned(), number };
        let is_first = lock(&self.followers).by_directory.get(directory).is_some_and(|all| all.len() == 1);
        let watched = if is_first { watcher.watch(directory, RecursiveMode::NonRecursive) } else { Ok(()) };
        drop(watcher);
        watched.map(|()| following).map_err(io::Error::other)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut watcher = lock(&self.growth.watcher);
        let is_last = lock(&self.growth.followers).leave(&self.directory, self.number);
        if is_last {
            // The directory may be gone, and the watch with it.
            let _ = watcher.unwatch(&self.directory);
        }
    }
}

impl Followers {
    /// Everybody, when it is not known whom it concerns.
    fn tell(&self, event: Option<&notify::Event>) {
        let known = event.filter(|event| !event.need_rescan() && !event.paths.is_empty());
        match known {
            None => self.by_directory.values().flat_map(BTreeMap::values).for_each(|grown| grown.notify_one()),
            Some(event) => {
                for path in &event.paths {
                    let concerned = [Some(path.as_path()), path.parent()].into_iter().flatten();
                    let all = concerned.filter_map(|directory| self.by_directory.get(directory));
                    all.flat_map(BTreeMap::values).for_each(|grown| grown.notify_one());
                }
            }
        }
    }

    /// True when nobody is left.
    fn leave(&mut self, directory: &Path, number: u64) -> bool {
        let Some(all) = self.by_directory.get_mut(directory) else { return false };
        all.remove(&number);
        let is_empty = all.is_empty();
        if is_empty {
            self.by_directory.remove(directory);
        }
        is_empty
    }
}
