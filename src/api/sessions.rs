//! How much of one kind goes on at once, for each caller and for all: connections, commands that are carried into tasks,
//! each of which takes a process, and logs that are read to be counted. Descriptors of the daemon's are shared by all users.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rates::Who;

/// What is bounded, and by how much.
#[derive(Debug)]
struct Bounds {
    what: &'static str,
    each: usize,
    total: usize,
}

/// Commands and copies in tasks.
const IN_TASKS: Bounds = Bounds { what: "commands and copies in tasks", each: 64, total: 256 };
/// Connections to the API: many of them may follow a log each.
const CONNECTIONS: Bounds = Bounds { what: "connections", each: 2048, total: 8192 };
/// The same over the network, by address: strangers take no place of who is on the machine.
const NETWORK: Bounds = Bounds { what: "connections over the network", each: 256, total: 4096 };
/// Logs that are read to know how long they are; most of them wait for their turn.
const COUNTS: Bounds = Bounds { what: "requests for a part or the length of a log", each: 1, total: 64 };

/// Those that are under way, by caller.
#[derive(Debug, Clone)]
pub struct Sessions {
    bounds: &'static Bounds,
    counts: Arc<Mutex<BTreeMap<Who, usize>>>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Session {
    sessions: Sessions,
    who: Who,
}

impl Sessions {
    pub fn in_tasks() -> Self {
        Self { bounds: &IN_TASKS, counts: Arc::default() }
    }

    pub fn counts() -> Self {
        Self { bounds: &COUNTS, counts: Arc::default() }
    }

    pub fn connections() -> Self {
        Self { bounds: &CONNECTIONS, counts: Arc::default() }
    }

    pub fn network() -> Self {
        Self { bounds: &NETWORK, counts: Arc::default() }
    }

    /// Refuses with a sentence that names the bound. Root is the machine itself, and the mount asks as root.
    pub(super) fn begin(&self, who: Who) -> Result<Session, String> {
        let Bounds { what, each, total } = self.bounds;
        let mut counts = self.lock();
        let (own, all) = (counts.get(&who).copied().unwrap_or(0), counts.values().sum::<usize>());
        if who != Who::User(0) && own >= *each {
            return Err(format!("you have {own} {what} under way, and may have {each} at once"));
        }
        if who != Who::User(0) && all >= *total {
            return Err(format!("{all} {what} are under way, as many as there may be at once"));
        }
        *counts.entry(who).or_default() += 1;
        Ok(Session { sessions: self.clone(), who })
    }

    pub(super) fn count(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Who, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut counts = self.sessions.lock();
        let left = counts.get(&self.who).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => drop(counts.remove(&self.who)),
            _ => drop(counts.insert(self.who, left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_all_together_are_bounded_and_what_ends_makes_room() {
        let sessions = Sessions::in_tasks();
        let mut open: Vec<Session> = (0..IN_TASKS.each).map(|_| sessions.begin(Who::User(7)).unwrap()).collect();
        let refused = sessions.begin(Who::User(7)).unwrap_err();
        assert!(refused.contains("64"), "{refused}");
        for number in IN_TASKS.each..IN_TASKS.total {
            open.push(sessions.begin(Who::User(100 + u32::try_from(number).unwrap())).unwrap());
        }
        let refused = sessions.begin(Who::User(8)).unwrap_err();
        assert!(refused.contains("256"), "{refused}");
        open.remove(0);
        open.push(sessions.begin(Who::User(7)).unwrap());
        drop(open);
        assert!(sessions.lock().is_empty());
        let counts = Sessions::counts();
        let one = counts.begin(Who::User(7)).unwrap();
        counts.begin(Who::User(7)).unwrap_err();
        counts.begin(Who::User(8)).unwrap();
        drop(one);
        counts.begin(Who::User(7)).unwrap();
    }
}
