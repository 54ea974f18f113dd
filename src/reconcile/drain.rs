//! A drained machine: what runs goes on, nothing else starts, until somebody undoes it. One that ends: nothing runs on. And settings that are changed while we run.

use std::time::Duration;

use super::{Reconciler, Settings, shares};
use crate::ids::JobKey;
use crate::report::{DrainOrder, DrainReport};
use crate::status::StopCause;
use crate::store::Store;

impl<S: Store> Reconciler<S> {
    /// `None`: jobs may start again.
    pub(super) fn set_drain(&mut self, order: Option<DrainOrder>) {
        if self.drain == order {
            return;
        }
        match &order {
            Some(order) => tracing::info!(by = %order.by, "drained: no job starts until that is undone"),
            None => tracing::info!("jobs may start again"),
        }
        self.drain = order;
        self.tell_those_that_wait();
    }

    pub(super) fn drain_report(&self) -> DrainReport {
        let running = self.live.iter().map(ToString::to_string).collect();
        DrainReport { order: self.drain.clone(), running, waiting: self.queue.len() as u64 }
    }

    /// Nothing is to be started.
    pub(super) fn starts_nothing(&self) -> bool {
        self.ending || self.drain.is_some()
    }

    pub(super) fn why_drained(&self) -> Option<String> {
        let DrainOrder { by, since } = self.drain.as_ref()?;
        Some(format!(
            "nothing starts: {by} has drained this machine on {since}; `trainyard drain --undo` lets jobs start again"
        ))
    }

    /// What there is to do, one line.
    pub fn summary(&self) -> String {
        let drained = if self.drain.is_some() { "; drained, nothing starts" } else { "" };
        let full = match (&self.unrecorded, &self.low) {
            (Some(_), _) => "; the disk is full, nothing is begun or stopped until there is room",
            (None, Some(_)) => "; little room on the disk, nothing starts",
            (None, None) => "",
        };
        format!("{} running, {} waiting{drained}{full}", self.live.len(), self.queue.len())
    }

    /// Nothing runs any more and nothing will be started.
    pub fn is_drained(&self) -> bool {
        self.ending && self.live.is_empty()
    }

    pub(super) fn stop_everything(&mut self) {
        self.ending = true;
        let live: Vec<JobKey> = self.live.iter().cloned().collect();
        for key in live {
            self.want_stop(&key, StopCause::Shutdown);
        }
    }

    /// Other settings act from now on, but for the range of addresses: blocks of it are handed out.
    pub(super) fn configure(&mut self, settings: Settings) {
        let before = std::mem::replace(&mut self.settings, settings);
        self.settings.addresses = before.addresses;
        if self.settings.half_life != before.half_life {
            self.count_shares_anew(before.half_life);
        }
        tracing::info!(inventory = %self.settings.inventory, "limits and quotas of trainyard.toml act as they are now");
        self.tell_those_that_wait();
    }

    fn count_shares_anew(&mut self, before: Duration) {
        match shares(&self.store, self.settings.half_life, self.now) {
            Ok(mut shares) => {
                // Over since the last commit.
                self.usage.iter().for_each(|used| shares.account(used, self.now));
                self.shares = shares;
            }
            Err(error) => {
                self.settings.half_life = before;
                tracing::error!(%error, "cannot read what was used; queue.half_life stays what it was until the daemon is restarted");
            }
        }
    }

    fn tell_those_that_wait(&mut self) {
        let waits = |key: &&JobKey| !self.live.contains(*key);
        let open = self.jobs.iter().filter(|(_, job)| job.open_run().is_some()).map(|(key, _)| key);
        for key in open.filter(waits).cloned().collect::<Vec<_>>() {
            self.settle(&key);
        }
        self.queue_changed = true;
    }
}
