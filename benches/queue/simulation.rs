//! Jobs that come and go in simulated time, as a scheduler decides.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// When a job comes, and how long it takes, ms.
pub(super) trait Timed {
    fn arrives(&self) -> u64;
    fn takes(&self) -> u64;
}

/// One to compare, with its name.
pub(super) type Named<Job, Given> = (&'static str, Box<dyn Scheduler<Job, Given>>);

/// Decides which of the jobs that wait start now, and what they are given. Jobs are known by their numbers.
pub(super) trait Scheduler<Job, Given> {
    fn arrives(&mut self, number: usize, job: &Job);
    fn ends(&mut self, number: usize, now: u64);
    /// Those that start.
    fn decide(&mut self, now: u64) -> Vec<(usize, Given)>;
}

/// Keeps account of what is held, whatever the scheduler believes.
pub(super) trait Machine<Job, Given> {
    /// Panics where it has no room for it.
    fn start(&mut self, number: usize, job: &Job, given: Given);
    fn end(&mut self, number: usize, job: &Job);
    /// So much is held.
    fn held(&self) -> u64;
    /// Of so much.
    fn all(&self) -> u64;
}

pub(super) struct Outcome {
    pub(super) decisions_per_s: f64,
    pub(super) utilisation: f64,
    /// How long each has waited, ms.
    pub(super) waits: Vec<u64>,
}

impl Outcome {
    pub(super) fn mean_wait(&self) -> Duration {
        Duration::from_millis(self.waits.iter().sum::<u64>() / self.waits.len() as u64)
    }
}

pub(super) fn simulate<Job: Timed, Given>(
    jobs: &[Job],
    scheduler: &mut dyn Scheduler<Job, Given>,
    machine: &mut dyn Machine<Job, Given>,
) -> Outcome {
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut arriving = jobs.iter().enumerate().peekable();
    let mut waits = vec![None; jobs.len()];
    let (mut busy, mut last, mut deciding) = (0u128, 0u64, Duration::ZERO);
    // What is busy while jobs arrive: the end, when the queue runs dry, says nothing of a scheduler.
    let closes = jobs.last().map_or(0, Timed::arrives);
    loop {
        let next_end = ends.peek().map(|Reverse((end, _))| *end);
        let next_arrival = arriving.peek().map(|(_, job)| job.arrives());
        let Some(now) = next_end.into_iter().chain(next_arrival).min() else { break };
        busy += u128::from(machine.held()) * u128::from(now.min(closes).saturating_sub(last.min(closes)));
        last = now;
        while let Some(Reverse((_, number))) = ends.peek().copied().filter(|Reverse((end, _))| *end == now) {
            ends.pop();
            machine.end(number, &jobs[number]);
            scheduler.ends(number, now);
        }
        while let Some((number, job)) = arriving.next_if(|(_, job)| job.arrives() == now) {
            scheduler.arrives(number, job);
        }
        let from = Instant::now();
        let started = scheduler.decide(now);
        deciding += from.elapsed();
        for (number, given) in started {
            let job = &jobs[number];
            machine.start(number, job, given);
            waits[number] = Some(now - job.arrives());
            ends.push(Reverse((now + job.takes(), number)));
        }
    }
    Outcome {
        decisions_per_s: jobs.len() as f64 / deciding.as_secs_f64(),
        utilisation: busy as f64 / (machine.all() as f64 * closes as f64),
        waits: waits.into_iter().map(|wait| wait.expect("all have started")).collect(),
    }
}
