//! Tells others of what happens to jobs: by webhook, by a program, by e-mail, as `[alerts.NAME]` in `trainyard.toml` says.
//!
//! ```text
//! events of all jobs ─► those that it wants ─► its queue, a file ─► delivery, tried again with back-off
//! ```
//! The `daemon` starts it. It follows the same numbered events as the API; each queue remembers the last number that it has
//! taken in, so that a daemon that is killed at any moment leaves no event out and puts none in twice. A delivery that was
//! on its way then is made again: receivers know it by its number. Where it leads is the administrator's to say alone:
//! nothing of a job file decides on an address or a program, no redirect is followed, and of an answer only the status counts.

mod deliver;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::config::{AlertConfig, AlertOn, Paths};
use crate::ids::{AssetName, JobKey};
use crate::reconcile::{Caller, Happened, Past};
use crate::status::State;
use crate::store::record::EventRecord;
use deliver::Delivery;
use queue::{Notice, Queue};

/// Events that are asked for at once.
const BATCH: usize = 500;
/// From the first to the last wait between two tries.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(600);

/// Who is told, with what waits for them.
struct Sink {
    name: AssetName,
    config: AlertConfig,
    queue: Queue,
    grown: Arc<Notify>,
}

/// Starts what the configuration names; it goes on until the daemon ends.
pub fn start(
    alerts: &BTreeMap<AssetName, AlertConfig>,
    paths: &Paths,
    past: Past,
    rounds: watch::Receiver<u64>,
) -> std::io::Result<()> {
    let mut sinks = Vec::new();
    for (name, config) in alerts {
        let queue = Queue::open(&paths.alerts(), name)?;
        let delivery = Delivery::new(name, config, paths)?;
        let grown = Arc::new(Notify::new());
        tokio::spawn(deliver_for_ever(name.clone(), queue.clone(), delivery, grown.clone()));
        sinks.push(Sink { name: name.clone(), config: config.clone(), queue, grown });
    }
    if !sinks.is_empty() {
        tokio::spawn(take_in(sinks, past, rounds));
    }
    Ok(())
}

/// Sorts events into the queues, from where each of them was.
async fn take_in(sinks: Vec<Sink>, past: Past, mut rounds: watch::Receiver<u64>) {
    // From the beginning once: an event is a change by the state that the job had before.
    let (mut states, mut after) = (BTreeMap::new(), 0);
    let mut is_first_look = true;
    loop {
        rounds.mark_unchanged();
        let Some(happened) = ask(&past, after).await else { return };
        let is_more = happened.is_more;
        after = happened.upto;
        for (key, event) in &happened.events {
            let before = states.insert(key.clone(), event.state);
            let wanted = sinks.iter().filter(|sink| sink.config.wants(key, event, before));
            wanted.for_each(|sink| sink.put(key, event));
        }
        if is_more {
            continue;
        }
        if std::mem::take(&mut is_first_look) {
            // A queue that is new does not begin with what was.
            sinks.iter().for_each(|sink| sink.report(sink.queue.begin_behind(after)));
        }
        if rounds.changed().await.is_err() {
            return;
        }
    }
}

async fn ask(past: &Past, after: u64) -> Option<Happened> {
    match past.happened(&Caller::root(), after, BATCH).await? {
        Ok(happened) => Some(happened),
        Err(error) => {
            tracing::error!(%error, "alerts cannot read what happened and end");
            None
        }
    }
}

impl AlertConfig {
    fn wants(&self, key: &JobKey, event: &EventRecord, before: Option<State>) -> bool {
        let of_workspace = self.workspaces.is_empty() || self.workspaces.contains(&key.workspace);
        of_workspace
            && match &self.on {
                AlertOn::All => true,
                AlertOn::States(states) => before != Some(event.state) && states.contains(event.state.name()),
            }
    }
}

impl Sink {
    fn put(&self, key: &JobKey, event: &EventRecord) {
        self.report(self.queue.put(Notice::of(key, event)));
        self.grown.notify_one();
    }

    fn report(&self, kept: std::io::Result<()>) {
        if let Err(error) = kept {
            tracing::error!(alert = %self.name, %error, "an alert cannot be kept; it is lost if the daemon ends now");
        }
    }
}

/// Delivers what is in the queue, the oldest first.
async fn deliver_for_ever(name: AssetName, queue: Queue, delivery: Delivery, grown: Arc<Notify>) {
    let mut tries = 0;
    loop {
        let Some(notice) = queue.first() else {
            grown.notified().await;
            continue;
        };
        match delivery.deliver(&notice).await {
            Ok(()) => {
                tries = 0;
                if let Err(error) = queue.delivered(notice.serial) {
                    tracing::warn!(alert = %name, %error, "a delivered alert cannot be taken off its queue");
                }
            }
            Err(error) => {
                let wait = wait_after(tries);
                tries += 1;
                tracing::warn!(alert = %name, serial = notice.serial, %error, tries, "an alert was not delivered, will be tried again");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Twice as long each time.
fn wait_after(tries: u32) -> Duration {
    FIRST_WAIT.saturating_mul(2_u32.saturating_pow(tries)).min(LAST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AlertTo;
    use crate::ids::Timestamp;

    #[test]
    fn the_waits_double_up_to_ten_minutes() {
        let waits: Vec<u64> = (0..12).map(|tries| wait_after(tries).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!(wait_after(u32::MAX), LAST_WAIT);
    }

    #[test]
    fn a_state_is_told_when_it_is_come_to_and_not_again_with_each_remark() {
        let config = |on, workspaces: &[&str]| AlertConfig {
            on,
            workspaces: workspaces.iter().map(|name| name.parse().unwrap()).collect(),
            to: AlertTo::Command(vec!["/bin/true".to_owned()]),
        };
        let failed = config(AlertOn::States(["failed".to_owned()].into()), &[]);
        let key: JobKey = "vision/a".parse().unwrap();
        let event =
            |state| EventRecord { number: 1, serial: 2, at: Timestamp(3), run: 1, state, message: String::new() };
        assert!(failed.wants(&key, &event(State::Failed), Some(State::Running)));
        assert!(failed.wants(&key, &event(State::Failed), None));
        assert!(!failed.wants(&key, &event(State::Failed), Some(State::Failed)));
        assert!(!failed.wants(&key, &event(State::Running), Some(State::Starting)));
        assert!(config(AlertOn::All, &["vision"]).wants(&key, &event(State::Running), Some(State::Running)));
        assert!(!config(AlertOn::All, &["other"]).wants(&key, &event(State::Running), None));
    }
}
