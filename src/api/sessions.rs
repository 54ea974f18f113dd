//! How many commands and copies are carried into tasks at once: each takes a process and descriptors of the daemon's, which
//! all users share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most of one user.
const USER_MAX: usize = 64;
/// Most of all users together.
const TOTAL_MAX: usize = 256;

/// Those that are under way, by user.
#[derive(Debug, Clone, Default)]
pub struct Sessions(Arc<Mutex<BTreeMap<u32, usize>>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Session {
    sessions: Sessions,
    uid: u32,
}

impl Sessions {
    /// Refuses with a sentence that names the bound.
    pub(super) fn begin(&self, uid: u32) -> Result<Session, String> {
        let mut counts = self.lock();
        let (own, all) = (counts.get(&uid).copied().unwrap_or(0), counts.values().sum::<usize>());
        if own >= USER_MAX {
            return Err(format!(
                "you have {own} commands and copies in tasks under way, and may have {USER_MAX} at once"
            ));
        }
        if all >= TOTAL_MAX {
            return Err(format!("{all} commands and copies in tasks are under way, as many as there may be at once"));
        }
        *counts.entry(uid).or_default() += 1;
        Ok(Session { sessions: self.clone(), uid })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut counts = self.sessions.lock();
        let left = counts.get(&self.uid).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => drop(counts.remove(&self.uid)),
            _ => drop(counts.insert(self.uid, left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_all_together_are_bounded_and_what_ends_makes_room() {
        let sessions = Sessions::default();
        let mut open: Vec<Session> = (0..USER_MAX).map(|_| sessions.begin(7).unwrap()).collect();
        let refused = sessions.begin(7).unwrap_err();
        assert!(refused.contains("64"), "{refused}");
        for number in USER_MAX..TOTAL_MAX {
            open.push(sessions.begin(100 + u32::try_from(number).unwrap()).unwrap());
        }
        let refused = sessions.begin(8).unwrap_err();
        assert!(refused.contains("256"), "{refused}");
        open.remove(0);
        open.push(sessions.begin(7).unwrap());
        drop(open);
        assert!(sessions.lock().is_empty());
    }
}
