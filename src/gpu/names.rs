//! Names of the users whose processes use cards. A machine may ask for them over a network, which may hang: a thread of its own does,
//! and cards are told of without a name until it has one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use nix::unistd::{Uid, User};

/// So long the first look at a user's process waits for the name.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Names {
    look: fn(u32) -> String,
    /// `None` while it is asked for.
    known: Arc<Mutex<BTreeMap<u32, Option<String>>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { look: ask, known: Arc::default() }
    }
}

impl Names {
    /// `None` where it is not known yet.
    pub(super) fn of(&self, uid: u32) -> Option<String> {
        if let Some(known) = lock(&self.known).get(&uid) {
            return known.clone();
        }
        lock(&self.known).insert(uid, None);
        let (look, known) = (self.look, self.known.clone());
        let (found, heard) = mpsc::channel();
        let asked = move || {
            let name = look(uid);
            lock(&known).insert(uid, Some(name.clone()));
            // Nobody may wait for it any more.
            drop(found.send(name));
        };
        if let Err(error) = std::thread::Builder::new().name("names".into()).spawn(asked) {
            tracing::debug!(%error, uid, "cannot ask for a user's name");
            lock(&self.known).remove(&uid);
        }
        heard.recv_timeout(PATIENCE).ok()
    }
}

fn ask(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

fn lock(known: &Mutex<BTreeMap<u32, Option<String>>>) -> MutexGuard<'_, BTreeMap<u32, Option<String>>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_come_holds_nobody_up_and_is_asked_for_once() {
        static GATE: Mutex<()> = Mutex::new(());
        let look = |uid| match uid {
            0 => "root".to_owned(),
            _ => {
                drop(GATE.lock());
                format!("late {uid}")
            }
        };
        let names = Names { look, ..Names::default() };
        assert_eq!(names.of(0).as_deref(), Some("root"));
        let closed = GATE.lock().unwrap();
        assert_eq!([names.of(7), names.of(7)], [None, None]);
        drop(closed);
        while names.of(7).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(names.of(7).as_deref(), Some("late 7"));
    }
}
