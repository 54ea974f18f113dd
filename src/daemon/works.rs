//! Carries works to threads and their outcomes back.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;

use crate::engine::{Engine, Launched};
use crate::reconcile::{Event, Outcome, Work};

pub(super) fn spawn<E: Engine>(work: Work, engine: Arc<E>, events: UnboundedSender<Event>) {
    if let Work::Prepare { key, prepare, .. } = &work
        && prepare.may_take_long()
    {
        // Not on a thread that stops and looks are waiting for.
        let name = format!("prepare-{}", key.job);
        let started = std::thread::Builder::new().name(name).spawn({
            let (work, engine, events) = (work.clone(), engine.clone(), events.clone());
            move || drop(events.send(Event::Done(carry_out(work, engine.as_ref(), &events))))
        });
        if started.is_ok() {
            return;
        }
    }
    tokio::task::spawn_blocking(move || {
        let outcome = carry_out(work, engine.as_ref(), &events);
        // The receiver is gone only when the daemon ends; the next one does the work again.
        let _ = events.send(Event::Done(outcome));
    });
}

/// Does one work, whatever it is, and says what came of it.
fn carry_out<E: Engine>(work: Work, engine: &E, events: &UnboundedSender<Event>) -> Outcome {
    match work {
        Work::Prepare { key, run, prepare } => {
            let tell = |what| drop(events.send(Event::Preparing { key: key.clone(), run, what }));
            let result = engine.prepare(&prepare, &tell);
            Outcome::Prepared { key, run, result }
        }
        Work::Launch(launch) => match engine.launch(&launch) {
            Launched::Tried(failures) => Outcome::Launched { attempt: launch.attempt, failures },
            Launched::NotYet { reason } => {
                Outcome::NotYet { attempt: launch.attempt, ordinals: launch.ordinals, reason }
            }
        },
        Work::Stop { task, cause } => Outcome::Stopped { task, result: engine.stop(task, &cause) },
        Work::Look { task, after } => Outcome::Looked { task, after, result: engine.look(task) },
        Work::Release { key, release } => {
            Outcome::Released { key, attempt: release.attempt, result: engine.release(&release) }
        }
    }
}
