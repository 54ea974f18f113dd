//! Tells others of what happens to jobs: by webhook, by a program, by e-mail, as `[alerts.NAME]` in `trainyard.toml` says.
//!
//! ```text
//! events of all jobs ─► those that it wants ─► its queue, a file ─► delivery, tried again with back-off
//! ```
//! The `daemon` starts it. It follows the same numbered events as the API; each queue remembers the last number that it has
//! taken in, so that a daemon that is killed at any moment leaves no event out and puts none in twice. A delivery that was
//! on its way then is made again: receivers know it by its number. Receivers do not wait for each other; for each of them the
//! order stays, and what one refuses for ever is set aside. Where it leads is the administrator's to say alone: nothing of a job
//! file decides on an address or a program, no redirect is followed, and of an answer only the status counts.

mod deliver;
mod queue;
mod receivers;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::config::{ALARM, AlertConfig, AlertOn, AlertTo, Given, Paths, check_address};
use crate::ids::{AssetName, JobKey};
use crate::reconcile::{Caller, Happened, Past, Refusal, StatesAt};
use crate::status::State;
use crate::store::record::EventRecord;
use crate::sys::file::read_limited;
use deliver::{Delivery, DeliveryError, SECRET_MAX};
use queue::{Notice, Queue};
pub use receivers::start;

/// Events that are asked for at once.
const BATCH: usize = 500;

/// When it is tried again, and how often.
#[derive(Debug, Clone, Copy)]
struct Pace {
    first_wait: Duration,
    last_wait: Duration,
    /// So often what is refused is tried, in case that its receiver is only wrongly set up: for half an hour.
    refusals: u32,
}

const PACE: Pace = Pace { first_wait: Duration::from_secs(1), last_wait: Duration::from_secs(600), refusals: 12 };

/// Who is told, with what waits for them.
struct Sink {
    name: AssetName,
    config: AlertConfig,
    queue: Queue,
    grown: Arc<Notify>,
}

/// As soon as it is configured: the first delivery may be a long time off.
fn tell_what_is_missing(name: &AssetName, config: &AlertConfig, paths: &Paths) {
    for (found, advice) in wrong_with_secrets(config, paths) {
        tracing::error!(alert = %name, found, advice, "a secret of an alert is not as it must be; what happens may have to wait for it");
    }
}

/// Where lies what the receivers of an alert have refused for ever.
pub fn set_aside(paths: &Paths, name: &AssetName) -> PathBuf {
    queue::aside_of(&paths.alerts(), name)
}

/// How many of them are in that file.
pub fn count_set_aside(path: &Path) -> io::Result<usize> {
    queue::count_aside(path)
}

/// What is found of the secrets that it needs, with what to do; nothing of what is in them.
pub fn wrong_with_secrets(config: &AlertConfig, paths: &Paths) -> Vec<(String, &'static str)> {
    let place = |name: &AssetName| paths.secrets().join(name.as_str());
    let mut wrong: Vec<_> = config.secrets().into_iter().filter_map(|name| wrong_with_secret(&place(name))).collect();
    if let AlertTo::Webhook { url: Given::Secret(name), .. } = &config.to {
        wrong.extend(wrong_with_address(&place(name)));
    }
    wrong
}

fn wrong_with_secret(path: &Path) -> Option<(String, &'static str)> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(error) => {
            Some((format!("the secret {shown} cannot be read: {error}"), "put it there with `install -m 600`"))
        }
        // A link would not be followed.
        Ok(file) if !file.is_file() => Some((format!("the secret {shown} is no file"), "put a file there")),
        Ok(file) if file.len() == 0 => Some((format!("the secret {shown} is empty"), "write it into the file")),
        Ok(file) if file.len() > SECRET_MAX => {
            Some((format!("the secret {shown} is longer than {SECRET_MAX} bytes"), "put a shorter one there"))
        }
        Ok(file) if file.mode() & 0o077 != 0 => {
            Some((format!("others than root may read the secret {shown}"), "`chmod 600` it"))
        }
        Ok(_) => None,
    }
}

/// Where it can be read: else something else is wrong with it.
fn wrong_with_address(path: &Path) -> Option<(String, &'static str)> {
    let (_, bytes) = read_limited(path, SECRET_MAX).ok().filter(|(_, bytes)| !bytes.is_empty())?;
    let why = match std::str::from_utf8(bytes.trim_ascii()) {
        Ok(address) => check_address(address).err()?,
        Err(_) => "is not text",
    };
    Some((format!("the address in the secret {} {why}", path.display()), "write another one into it"))
}

/// Sorts events into the queues, from where each of them was.
async fn take_in(sinks: Vec<Sink>, past: Past, mut rounds: watch::Receiver<u64>) {
    let Some((mut states, mut after)) = begin(&sinks, &past).await else { return };
    loop {
        rounds.mark_unchanged();
        let Some(happened) = or_told(past.happened(&Caller::root(), after, BATCH).await) else { return };
        after = happened.upto;
        sort_in(&sinks, &happened, &mut states).await;
        if !happened.is_more && rounds.changed().await.is_err() {
            return;
        }
    }
}

/// What jobs had come to by the event that all queues are behind of, and its number.
async fn begin(sinks: &[Sink], past: &Past) -> Option<(BTreeMap<JobKey, State>, u64)> {
    let seen = sinks.iter().filter_map(|sink| sink.queue.seen()).min().unwrap_or(u64::MAX);
    let StatesAt { states, last } = or_told(past.states_at(seen).await)?;
    for sink in sinks {
        sink.report(sink.queue.begin(last).await);
    }
    Some((states, seen.min(last)))
}

async fn sort_in(sinks: &[Sink], happened: &Happened, states: &mut BTreeMap<JobKey, State>) {
    let mut notices = vec![Vec::new(); sinks.len()];
    for (key, event) in &happened.events {
        // An event is a change by the state that the job had before.
        let before = states.insert(key.clone(), event.state);
        for (sink, notices) in sinks.iter().zip(&mut notices) {
            if sink.config.wants(key, event, before) {
                notices.push(Notice::of(key, event));
            }
        }
    }
    for (sink, notices) in sinks.iter().zip(notices) {
        let has_come = !notices.is_empty();
        sink.report(sink.queue.take_in(notices, happened.upto).await);
        if has_come {
            sink.grown.notify_one();
        }
    }
}

fn or_told<T>(answered: Option<Result<T, Refusal>>) -> Option<T> {
    match answered? {
        Ok(answer) => Some(answer),
        Err(error) => {
            tracing::error!(%error, "alerts cannot read what happened and end; restart the daemon when the store can be read");
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
                AlertOn::Named(names) if event.is_alarm() => names.contains(ALARM),
                AlertOn::Named(names) => has_come_to(event.state, before) && names.contains(event.state.name()),
            }
    }
}

/// Whether an event is a change to that state. A job of which nothing ever waited or ran is not stopped by a file that says so.
fn has_come_to(state: State, before: Option<State>) -> bool {
    let was_nothing = matches!(before, None | Some(State::Invalid));
    before != Some(state) && !(state == State::Stopped && was_nothing)
}

impl Sink {
    fn report(&self, kept: io::Result<()>) {
        if let Err(error) = kept {
            tracing::error!(alert = %self.name, %error, "an alert cannot be kept; it is lost if the daemon ends now");
        }
    }
}

/// Delivers what is in one queue, the oldest first.
struct Courier {
    name: AssetName,
    queue: Queue,
    delivery: Delivery,
    pace: Pace,
}

/// How often one notice has been tried.
#[derive(Default)]
struct Tries {
    serial: u64,
    failed: u32,
    refused: u32,
}

impl Courier {
    /// Until nobody holds the other side of `end` any more; what is on its way by then is delivered.
    async fn deliver(self, grown: Arc<Notify>, mut end: watch::Receiver<()>) {
        let mut tries = Tries::default();
        while end.has_changed().is_ok() {
            let Some(notice) = self.queue.first() else {
                tokio::select! {
                    () = grown.notified() => {}
                    _ = end.changed() => {}
                }
                continue;
            };
            if tries.serial != notice.serial {
                tries = Tries { serial: notice.serial, ..Tries::default() };
            }
            match self.delivery.deliver(&notice).await {
                Ok(()) => self.report(self.queue.delivered(&notice).await),
                Err(error) => tokio::select! {
                    () = self.failed(&notice, error, &mut tries) => {}
                    _ = end.changed() => return,
                },
            }
        }
    }

    async fn failed(&self, notice: &Notice, error: DeliveryError, tries: &mut Tries) {
        tries.failed += 1;
        tries.refused += u32::from(error.is_refusal());
        let serial = notice.serial;
        if tries.refused >= self.pace.refusals {
            let (job, path) = (format!("{}/{}", notice.workspace, notice.job), self.queue.aside().display());
            tracing::error!(alert = %self.name, serial, job, %error, tries = tries.failed, path = %path, "an alert is refused for ever and set aside; those behind it go on");
            return self.report(self.queue.set_aside(notice, error.to_string()).await);
        }
        tracing::warn!(alert = %self.name, serial, %error, tries = tries.failed, "an alert was not delivered, will be tried again");
        tokio::time::sleep(self.pace.wait_after(tries.failed - 1)).await;
    }

    fn report(&self, kept: io::Result<()>) {
        if let Err(error) = kept {
            tracing::warn!(alert = %self.name, %error, "an alert cannot be taken off its queue; it is delivered again if the daemon ends now");
        }
    }
}

impl Pace {
    /// Twice as long each time.
    fn wait_after(&self, tries: u32) -> Duration {
        self.first_wait.saturating_mul(2_u32.saturating_pow(tries)).min(self.last_wait)
    }
}

#[cfg(test)]
mod tests;
