//! Where there is no room: workspaces that have none left by their quota, whose owners are told, and a disk on which less is
//! free than new runs need. Nothing is started there.

use std::collections::BTreeMap;

use super::world::{Job, NoRoom, Run};
use super::{Free, Reconciler, Work};
use crate::ids::{Bytes, JobKey, WorkspaceName};
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

    /// What is free now.
    pub(super) fn free(&mut self, free: Free) {
        let floor = self.settings.min_free;
        let was_low = self.low.is_some();
        let is_low = free.is_low(floor, was_low);
        let (place, bytes) = (free.place.display().to_string(), Bytes(free.bytes));
        self.low = is_low.then_some(free);
        if is_low == was_low {
            return;
        }
        match is_low {
            true => {
                tracing::warn!(place, free = %bytes, min_free = %Bytes(floor), "little room on the disk: nothing is started until there is")
            }
            false => tracing::info!(place, free = %bytes, "there is room on the disk again"),
        }
        self.put_off_preparations();
        self.queue_changed = true;
        let put_off = self.jobs.iter().filter(|(_, job)| job.record.aside.is_some()).map(|(key, _)| key.clone());
        put_off.collect::<Vec<_>>().iter().for_each(|key| self.set_aside(key));
        let waiting = self.jobs.iter().filter(|(key, job)| job.open_run().is_some() && !self.live.contains(*key));
        for key in waiting.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let now = self.now;
            let is_due = |run: &Run| run.is_unprepared() && run.backs_off_until(now).is_none();
            if self.jobs.get(&key).and_then(Job::open_run).is_some_and(is_due) {
                self.prepare(&key);
            }
            self.see_room(&key);
        }
    }

    /// What is said of the disk is the same for all that wait, and comes and goes: it is shown, and nothing of it is recorded.
    fn see_room(&mut self, key: &JobKey) {
        self.await_room(key);
        self.wait_for_its_time(key);
        self.queue_in(key);
        self.shown.insert(key.clone());
    }

    /// Those that were not handed out yet, where there is little room.
    fn put_off_preparations(&mut self) {
        if !self.is_low_on_disk() {
            return;
        }
        for work in self.works.extract_if(.., |work| matches!(work, Work::Prepare { .. })) {
            let Work::Prepare { key, .. } = work else { continue };
            if let Some(run) = self.jobs.get_mut(&key).and_then(Job::open_run_mut) {
                run.preparation = None;
            }
        }
    }

    pub(super) fn is_low_on_disk(&self) -> bool {
        self.low.is_some()
    }

    /// What runs goes on, and may fail where it writes.
    fn tell_those_that_run(&mut self, key: &JobKey, was_told: bool) {
        self.shown.insert(key.clone());
        if let Some(said) = self.full.get(&key.workspace).filter(|_| !was_told) {
            self.alarm(key, &format!("no room: {said}"));
        }
    }

    /// Looks whether there is room for what the run may write. That its workspace has none is an event of it.
    pub(super) fn await_room(&mut self, key: &JobKey) {
        let of_workspace = self.full.get(&key.workspace).cloned().map(NoRoom::Workspace);
        let no_room = of_workspace.or_else(|| self.low.as_ref().map(|_| NoRoom::Disk));
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_held = job.desired() == DesiredState::Held;
        let Some(run) = job.open_run_mut() else { return };
        let is_event = |no_room: &Option<NoRoom>| matches!(no_room, Some(NoRoom::Workspace(_)));
        let was_told = is_event(&run.no_room);
        run.no_room = no_room;
        if is_event(&run.no_room) && !was_told && run.live_attempt().is_none() && !is_held {
            let why = self.why_no_room(key).unwrap_or_default();
            self.note(key, why);
        }
    }

    /// Why a run does not start, and what helps.
    pub(super) fn why_no_room(&self, key: &JobKey) -> Option<String> {
        let workspace = &key.workspace;
        Some(match self.jobs.get(key)?.open_run()?.no_room.as_ref()? {
            NoRoom::Disk => {
                let low = self.why_low()?;
                format!(
                    "waits for room: {low}; remove what is not needed (`trainyard workspace {workspace}` tells what is \
                     large, `trainyard image prune` removes images)"
                )
            }
            NoRoom::Workspace(said) => format!(
                "waits for room: {said}; remove what is not needed (`trainyard workspace {workspace}` tells what is large), \
                 or have `workspaces.{workspace}.storage` raised in trainyard.toml"
            ),
        })
    }

    /// For whoever looks at the machine as a whole.
    pub(super) fn why_nothing_is_begun(&self) -> Option<String> {
        match self.unrecorded {
            Some(_) => Some(UNRECORDED.to_owned()),
            None => self.why_low().map(|low| format!("nothing starts: {low}")),
        }
    }

    fn why_low(&self) -> Option<String> {
        let Free { place, bytes } = self.low.as_ref()?;
        let (free, floor) = (Bytes(*bytes).roughly(), Bytes(self.settings.min_free));
        Some(format!(
            "{free} are free on the disk of {}, and new runs start from {floor} on (limits.min_free)",
            place.display()
        ))
    }

    /// What is said of those that run, where the disk has no more to give.
    pub(super) fn held_up_by_the_disk(&self) -> Option<String> {
        let Free { place, bytes } = self.low.as_ref().filter(|low| low.bytes < OUTPUT_MIN)?;
        let free = Bytes(*bytes).roughly();
        Some(format!(
            "no room: {free} are free on the disk of {}: its output waits until there is more, and what it writes fails",
            place.display()
        ))
    }
}

const UNRECORDED: &str = "full: what is decided waits for room to be recorded, and nothing is begun or stopped before";

/// With less, bytes, logs are not written any more, or soon not.
const OUTPUT_MIN: u64 = 1 << 20;
