//! Wakes whoever polls a generated file when there is more to read.
//!
//! The kernel asks once what a file is ready for, and then wants to be told. One thread waits for changes of the files with
//! which the generated ones grow; whoever is told asks again, so that once too often does no harm.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::PollNotifier;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tracing::debug;

#[derive(Debug)]
pub(crate) struct Growth {
    shared: Arc<Shared>,
    /// Of what never changes: that it is taken away is an event, by which the thread ends.
    end: WatchDescriptor,
}

#[derive(Debug)]
struct Shared {
    inotify: Inotify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Who waits for a change of what is watched, by the kernel's number of the open file.
    waiting: HashMap<WatchDescriptor, HashMap<u64, PollNotifier>>,
    over: bool,
}

impl Growth {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared { inotify: Inotify::init(InitFlags::IN_CLOEXEC)?, state: Mutex::default() });
        let end = shared.inotify.add_watch(Path::new("/"), AddWatchFlags::IN_DELETE_SELF)?;
        let work = {
            let shared = shared.clone();
            move || shared.work()
        };
        std::thread::Builder::new().name("growth".into()).spawn(work)?;
        Ok(Self { shared, end })
    }

    /// From now on a change at `path` is told to `who`.
    pub(super) fn wait(&self, path: &Path, who: PollNotifier) -> io::Result<()> {
        let changes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF;
        // Under the lock, so that it is not told before it waits.
        let mut state = self.shared.lock();
        let watched = self.shared.inotify.add_watch(path, changes)?;
        state.waiting.entry(watched).or_default().insert(who.handle().0, who);
        Ok(())
    }

    /// Tells everybody: they ask whoever serves next.
    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = {
            let mut state = self.shared.lock();
            state.waiting.drain().map(|(watched, all)| self.shared.forget(watched, all)).collect()
        };
        all.into_iter().for_each(tell);
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.forget(self.end, ());
    }
}

impl Shared {
    fn work(&self) {
        while !self.lock().over {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EINTR) => continue,
                Err(error) => return debug!(%error, "nobody who polls is told any more"),
            };
            for event in events {
                // Under the lock, so that nobody begins to wait for what is just forgotten.
                let told = {
                    let mut state = self.lock();
                    state.waiting.remove(&event.wd).map(|all| self.forget(event.wd, all))
                };
                told.into_iter().for_each(tell);
            }
        }
    }

    /// Watches it no more, for those who have waited.
    fn forget<W>(&self, watched: WatchDescriptor, who: W) -> W {
        // It may be gone by itself.
        let _ = self.inotify.rm_watch(watched);
        who
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(all: HashMap<u64, PollNotifier>) {
    for who in all.into_values() {
        if let Err(error) = who.notify() {
            debug!(%error, "cannot wake who polls");
        }
    }
}
