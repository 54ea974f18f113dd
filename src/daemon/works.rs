//! Carries works to threads and their outcomes back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::engine::local::LocalEngine;
use crate::engine::{Engine, EngineError, Launched, Told};
use crate::gpu::{Gpus, Held};
use crate::ids::TaskId;
use crate::reconcile::{Event, Look, Outcome, PREPARES, Work};

/// Preparations that may wait for registries and disks at once; more wait for their turn.
const AT_ONCE: usize = 32;
static PREPARING: Semaphore = Semaphore::const_new(AT_ONCE);

pub(super) fn spawn<E: Engine>(work: Work, engine: Arc<E>, events: UnboundedSender<Event>) {
    // The receiver is gone only when the daemon ends; the next one does the work again.
    let carry = move || {
        carry_out(work, engine.as_ref(), &events).into_iter().for_each(|done| drop(events.send(Event::Done(done))));
    };
    tokio::task::spawn_blocking(carry);
}

/// How long NVML may take to tell what uses the cards; after that they are as they were.
const CARDS_PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn look_at_cards(gpus: Arc<Gpus>, events: UnboundedSender<Event>) {
    let look = move || {
        // The receiver is gone only when the daemon ends.
        drop(events.send(Event::Gpus(gpus.look(CARDS_PATIENCE))));
        drop(events.send(Event::Done(Outcome::LookedAtCards)));
    };
    tokio::task::spawn_blocking(look);
}

/// What leased cards do is known within this time, or this time not.
const SAMPLE_PATIENCE: Duration = Duration::from_secs(4);

/// Measures the cards of these tasks, for their shims and for the loop.
pub(super) fn measure(
    gpus: Arc<Gpus>,
    engine: Arc<LocalEngine>,
    tasks: Vec<(TaskId, Vec<Held>)>,
    events: UnboundedSender<Event>,
) {
    let measure = move || {
        let wanted = tasks.iter().flat_map(|(task, held)| held.iter().map(|held| (*task, held.clone()))).collect();
        let measured = gpus.measure(wanted, SAMPLE_PATIENCE);
        for (task, held) in &tasks {
            if let Err(error) = engine.tell_gpu_usage(*task, held, &measured) {
                tracing::warn!(%task, %error, "what the task's cards do is missing in its metrics");
            }
        }
        // The receiver is gone only when the daemon ends.
        drop(events.send(Event::Measured(Arc::new(measured))));
    };
    tokio::task::spawn_blocking(measure);
}

/// As [`spawn`], for what may take hours: not on a thread that stops and looks are waiting for.
pub(super) async fn spawn_long<E: Engine>(work: Work, engine: Arc<E>, events: UnboundedSender<Event>) {
    let Some(turn) = turn(&work, &events).await else { return };
    let carry = {
        let (work, engine, events) = (work.clone(), engine.clone(), events.clone());
        move || {
            carry_out(work, engine.as_ref(), &events).into_iter().for_each(|done| drop(events.send(Event::Done(done))));
            drop(turn);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("prepare".to_owned()).spawn(carry) {
        let error = EngineError(format!("cannot start a thread: {error}"));
        failed(work, &error).into_iter().for_each(|done| drop(events.send(Event::Done(done))));
    }
}

/// Waits for a turn, and says so; whoever is no longer wanted needs none to find that out.
async fn turn(work: &Work, events: &UnboundedSender<Event>) -> Option<Option<SemaphorePermit<'static>>> {
    if let Ok(turn) = PREPARING.try_acquire() {
        return Some(Some(turn));
    }
    let (Work::Prepare { prepare, .. } | Work::SetAside { prepare, .. }) = work else {
        return PREPARING.acquire().await.ok().map(Some);
    };
    if let Work::Prepare { key, run, .. } = work {
        let what = format!("waits for its turn: what {AT_ONCE} other runs need is being fetched");
        drop(events.send(Event::Preparing { key: key.clone(), run: *run, told: Told::State(what) }));
    }
    let (tell, given_up) = oneshot::channel();
    let _ending = prepare.given_up.ending(move || {
        // Who has got a turn meanwhile does not listen.
        let _ = tell.send(());
    });
    tokio::select! {
        turn = PREPARING.acquire() => {
            if let Work::Prepare { key, run, .. } = work {
                drop(events.send(Event::Preparing { key: key.clone(), run: *run, told: Told::State(PREPARES.to_owned()) }));
            }
            turn.ok().map(Some)
        }
        _ = given_up => Some(None),
    }
}

/// Whether a work may take hours.
pub(super) fn is_long(work: &Work) -> bool {
    match work {
        Work::Prepare { prepare, .. } => prepare.may_take_long(),
        // Of any number of jobs at once, and of code of any size.
        Work::SetAside { .. } => true,
        _ => false,
    }
}

/// Does one work, whatever it is, and says what came of it. An error of our own in it ends no more than this work.
fn carry_out<E: Engine>(work: Work, engine: &E, events: &UnboundedSender<Event>) -> Vec<Outcome> {
    let done = catch_unwind(AssertUnwindSafe(|| attempt(work.clone(), engine, events)));
    let error = "an error of Trainyard's own (a panic; the journal has it); please report it";
    done.map_or_else(|_| failed(work, &EngineError(error.to_owned())), |outcome| vec![outcome])
}

fn attempt<E: Engine>(work: Work, engine: &E, events: &UnboundedSender<Event>) -> Outcome {
    match work {
        Work::Prepare { key, run, prepare } => {
            let tell = |told| drop(events.send(Event::Preparing { key: key.clone(), run, told }));
            let result = engine.prepare(&prepare, &tell);
            Outcome::Prepared { key, run, result }
        }
        Work::SetAside { key, number, prepare } => {
            let result = engine.set_aside(&prepare, number);
            Outcome::SetAside { key, run: prepare.identity.run, number, result }
        }
        Work::DropAside { key, run, number } => {
            if let Err(error) = engine.drop_aside(&key, run, number) {
                tracing::warn!(job = %key, run, %error, "what was set aside for a run stays until the job is removed");
            }
            Outcome::Told
        }
        Work::Launch(launch) => match engine.launch(&launch) {
            Launched::Tried { failures, remarks } => {
                let attempt = launch.attempt;
                remarks.into_iter().for_each(|remark| drop(events.send(Event::Remark { attempt, remark })));
                Outcome::Launched { attempt, failures }
            }
            Launched::NotYet { reason } => Outcome::NotYet { attempt: launch.attempt, tasks: launch.tasks, reason },
        },
        Work::Stop { task, cause, how } => Outcome::Stopped { task, result: engine.stop(task, &cause, how) },
        Work::Look { task, after } => Outcome::Looked { task, after, result: engine.look(task) },
        Work::Release { key, release } => {
            Outcome::Released { key, attempt: release.attempt, result: engine.release(&release) }
        }
        Work::Deliver { key, run, how } => {
            engine.deliver(&key, run, how);
            Outcome::Told
        }
        // Needs no engine: `look_at_cards` does it.
        Work::LookAtCards => Outcome::LookedAtCards,
        // As `measure` does this.
        Work::Measure { .. } => Outcome::Told,
        Work::GiveUp(preparation) => {
            engine.give_up(&preparation);
            Outcome::Told
        }
    }
}

/// What is said of a work that was not done, or not to its end.
fn failed(work: Work, error: &EngineError) -> Vec<Outcome> {
    let result = Err(error.clone());
    match work {
        Work::Prepare { key, run, .. } => vec![Outcome::Prepared { key, run, result }],
        Work::SetAside { key, number, prepare } => {
            vec![Outcome::SetAside { key, run: prepare.identity.run, number, result }]
        }
        Work::Stop { task, .. } => vec![Outcome::Stopped { task, result }],
        Work::Release { key, release } => vec![Outcome::Released { key, attempt: release.attempt, result }],
        Work::Look { task, after } => vec![Outcome::Looked { task, after, result: Err(error.clone()) }],
        Work::LookAtCards => vec![Outcome::LookedAtCards],
        Work::Deliver { .. } | Work::GiveUp(_) | Work::Measure { .. } | Work::DropAside { .. } => Vec::new(),
        // How far it came is seen by looking: what runs is gone on with, what does not has failed to start.
        Work::Launch(launch) => {
            let looked = |task: TaskId| Outcome::Looked { task, after: Look::Sign, result: Err(error.clone()) };
            launch.tasks.into_iter().map(looked).collect()
        }
    }
}
