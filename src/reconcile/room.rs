//! Workspaces that have no room left by their quota: their owners are told, and nothing is started there.

use std::collections::BTreeMap;

use super::Reconciler;
use crate::ids::{JobKey, WorkspaceName};
use crate::spec::DesiredState;
use crate::store::Store;

impl<S: Store> Reconciler<S> {
    pub(super) fn full(&mut self, full: BTreeMap<WorkspaceName, String>) {
        let before = std::mem::replace(&mut self.full, full);
        let is_touched = |key: &JobKey| before.get(&key.workspace) != self.full.get(&key.workspace);
        let open = self.jobs.iter().filter(|(key, job)| is_touched(key) && job.open_run().is_some());
        for key in open.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            match self.live.contains(&key) {
                true => self.tell_those_that_run(&key, before.contains_key(&key.workspace)),
                false => self.settle(&key),
            }
        }
    }

    /// What runs goes on, and may fail where it writes.
    fn tell_those_that_run(&mut self, key: &JobKey, was_told: bool) {
        self.shown.insert(key.clone());
        if let Some(said) = self.full.get(&key.workspace).filter(|_| !was_told) {
            self.note(key, format!("alarm: no room: {said}"));
        }
    }

    /// Looks whether there is room for what the run may write.
    pub(super) fn await_room(&mut self, key: &JobKey) {
        let said = self.full.get(&key.workspace).cloned();
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_held = job.desired() == DesiredState::Held;
        let Some(run) = job.open_run_mut() else { return };
        let was_told = run.no_room.is_some();
        run.no_room = said;
        if run.no_room.is_some() && !was_told && run.live_attempt().is_none() && !is_held {
            let why = self.why_no_room(key).unwrap_or_default();
            self.note(key, why);
        }
    }

    /// Why a run does not start, and what helps.
    pub(super) fn why_no_room(&self, key: &JobKey) -> Option<String> {
        let said = self.jobs.get(key)?.open_run()?.no_room.as_ref()?;
        let workspace = &key.workspace;
        Some(format!(
            "waits for room: {said}; remove what is not needed (`trainyard workspace {workspace}` tells what is large), or \
             have `workspaces.{workspace}.storage` raised in trainyard.toml"
        ))
    }
}
