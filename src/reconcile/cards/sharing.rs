//! Who has a share of a card, and uses more of its memory than that. Nothing of the card holds them to it, so it is looked at
//! as often as all cards are, and only while somebody has a share.
//!
//! ```text
//! within ──more than the share──► over: told ──still over a minute later──► stopped, unless only to be told
//!    ▲───95 % of the share or less──┘
//! ```
//!
//! It is kept in the record of the task, so that a daemon that is killed tells it no second time and lets the minute go on.
//! A process of which the driver tells no memory cannot be watched; its job is told so, once for each attempt and card.

use std::collections::BTreeMap;

use crate::gpu::Process;
use crate::ids::{AttemptId, Bytes, GpuUuid, JobKey, TaskId, TaskName, Timestamp};
use crate::reconcile::Reconciler;
use crate::spec::{GpuPart, JobSpec, ShareOver};
use crate::status::StopCause;
use crate::store::Store;
use crate::store::record::{GpuPartLease, OverShare};

/// How often shares are looked at, ms: as often as all cards are.
const LOOK_EVERY_MS: u64 = 10_000;
/// How long a task may use more than its share before its job is stopped, ms.
const PATIENCE_MS: u64 = 60_000;
/// Looks that lie further apart than this say nothing of what was between them, ms.
const GAP_MS: u64 = 3 * LOOK_EVERY_MS;
/// Of its share, percent, that it must be within before it is told again.
const WITHIN: u64 = 95;

/// Who is to be stopped; who uses more than their share is in the records of their tasks.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    causes: BTreeMap<TaskId, StopCause>,
}

impl Sharing {
    /// Why the attempt is to be stopped.
    pub(super) fn cause(&self, attempt: AttemptId) -> Option<StopCause> {
        self.causes.iter().find(|(task, _)| task.attempt == attempt).map(|(_, cause)| cause.clone())
    }
}

/// What is known of who uses so much of a share, as it was seen then; nothing of who keeps to it.
fn seen_over(before: Option<OverShare>, used: u64, share: u64, at: Timestamp) -> Option<OverShare> {
    if used <= share {
        let is_within = u128::from(used) * 100 <= u128::from(share) * u128::from(WITHIN);
        return before.filter(|_| !is_within).map(|over| OverShare { since: None, ..over });
    }
    // Nobody knows what was between looks that lie far apart, nor what a clock that was set says.
    let goes_on = before.filter(|over| at >= over.last && at.0 - over.last.0 <= GAP_MS);
    let since = goes_on.and_then(|over| over.since).unwrap_or(at);
    Some(OverShare { since: Some(since), last: at })
}

/// What a task has of a card, and what it uses of it.
struct Share {
    job: JobKey,
    id: TaskId,
    task: TaskName,
    gpu: GpuUuid,
    bytes: u64,
    over: ShareOver,
    /// By what is told.
    used: u64,
    /// A process of which the driver tells no memory.
    untold: Option<u32>,
}

impl<S: Store> Reconciler<S> {
    /// The shares of tasks that are not over, with what is used of each, as far as the driver says.
    fn shares_in_use(&self) -> Vec<Share> {
        let mut found = Vec::new();
        for key in &self.live {
            let Some(run) = self.jobs.get(key).and_then(|job| job.open_run()) else { continue };
            let Some(attempt) = run.live_attempt().filter(|attempt| !attempt.released) else { continue };
            for (ordinal, task) in (0..).zip(&attempt.tasks).filter(|(_, task)| task.phase.end().is_none()) {
                let id = attempt.task_id(ordinal);
                for lease in &task.gpus {
                    let Some(GpuPartLease::Share { bytes, .. }) = lease.part else { continue };
                    found.push(Share {
                        job: key.clone(),
                        id,
                        task: task.name(),
                        gpu: lease.uuid.clone(),
                        bytes,
                        over: word_of(&run.spec, &task.name()),
                        used: self.on_card(&lease.uuid, id).filter_map(|process| process.memory).sum(),
                        untold: self.on_card(&lease.uuid, id).find(|it| it.memory.is_none()).map(|it| it.pid),
                    });
                }
            }
        }
        found
    }

    fn answers(&self, gpu: &GpuUuid) -> bool {
        self.cards.seen.cards.iter().any(|card| card.facts.uuid == *gpu && card.signs.lost.is_none())
    }

    /// Processes of a task.
    fn on_card(&self, gpu: &GpuUuid, task: TaskId) -> impl Iterator<Item = &Process> {
        let users = self.cards.users.get(gpu);
        let processes = users.and_then(|users| users.processes.as_ref()).into_iter().flatten();
        processes.filter(move |process: &&Process| process.task == Some(task))
    }

    /// They were looked at.
    pub(super) fn watch_shares(&mut self) {
        let shares = self.shares_in_use();
        self.cards.sharing.causes.retain(|task, _| shares.iter().any(|share| share.id == *task));
        for share in shares {
            self.tell_unwatched(&share);
            self.watch_share(share);
        }
    }

    fn watch_share(&mut self, share: Share) {
        let Some(at) = self.cards.users.get(&share.gpu).map(|users| users.at) else { return };
        let ordinal = share.id.ordinal as usize;
        let record = self.live_attempt(&share.job).and_then(|attempt| attempt.tasks.get(ordinal));
        let before = record.and_then(|record| record.over_share);
        let over = seen_over(before, share.used, share.bytes, at);
        if over != before {
            let record = self.attempt_mut(&share.job).and_then(|attempt| attempt.tasks.get_mut(ordinal));
            record.into_iter().for_each(|record| record.over_share = over);
        }
        let is_long = over.and_then(|over| over.since).is_some_and(|since| at.0.saturating_sub(since.0) >= PATIENCE_MS);
        if is_long && share.over == ShareOver::Stop {
            let (task, used, share_of, id) = (share.task.clone(), share.used, share.bytes, share.id);
            let cause = StopCause::OverShare { task, used, share: share_of };
            self.cards.sharing.causes.entry(id).or_insert(cause);
        }
        if before.is_none() && over.is_some() {
            self.tell_over(&share);
        }
    }

    fn tell_over(&mut self, share: &Share) {
        let then = match share.over {
            ShareOver::Alert => "",
            ShareOver::Stop => "; the job is stopped if it is still so in a minute (resources.gpu_memory_over)",
        };
        let (used, of, card) = (Bytes(share.used).roughly(), Bytes(share.bytes), self.name_of(&share.gpu));
        let task = &share.task;
        self.alarm(&share.job, &format!("{task} uses {used} of {card}, more than its share of {of}{then}"));
    }

    fn tell_unwatched(&mut self, share: &Share) {
        let Some(pid) = share.untold else { return };
        if self.live_attempt(&share.job).is_none_or(|attempt| attempt.unwatched_gpus.contains(&share.gpu)) {
            return;
        }
        self.attempt_mut(&share.job)
            .into_iter()
            .for_each(|attempt| _ = attempt.unwatched_gpus.insert(share.gpu.clone()));
        let (task, of, card) = (&share.task, Bytes(share.bytes), self.name_of(&share.gpu));
        self.alarm(
            &share.job,
            &format!(
                "the driver does not tell how much memory of {card} process {pid} of {task} uses: that its share of {of} is \
                 enough is not watched, but of processes that are told of"
            ),
        );
    }

    /// Whether it is time to look at them; if not yet, that is seen to.
    pub(super) fn shares_are_to_be_looked_at(&mut self) -> bool {
        let seen: Vec<Option<Timestamp>> = {
            let shares = self.live.iter().flat_map(|key| self.held_by(key));
            let shares = shares.filter(|lease| matches!(lease.part, Some(GpuPartLease::Share { .. })));
            // Of a card that does not answer nothing new is told, however often it is looked at.
            let shares = shares.filter(|lease| self.answers(&lease.uuid));
            shares.map(|lease| self.cards.users.get(&lease.uuid).map(|users| users.at)).collect()
        };
        let Some(oldest) = seen.into_iter().min() else { return false };
        // Where the clock was set back, nothing was seen since.
        let oldest = oldest.filter(|at| *at <= self.now);
        let due = oldest.map_or(0, |at| (at.0 + LOOK_EVERY_MS).saturating_sub(self.now.0));
        if due > 0 {
            self.retry_within(due);
        }
        due == 0
    }
}

/// What is to be done about a task, by its role.
fn word_of(spec: &JobSpec, task: &TaskName) -> ShareOver {
    let role = spec.roles.iter().find(|role| role.name == task.role);
    match role.map(|role| &role.resources.gpu_part) {
        Some(GpuPart::Share { over, .. }) => *over,
        _ => ShareOver::Alert,
    }
}
