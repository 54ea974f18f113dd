//! A machine on which nothing starts: `trainyard drain`.
//!
//! The order lies in the run directory, so that it outlives the daemon, also an upgrade, but not the machine's next start.

use std::io;

use super::error::ApiError;
use super::server::{Context, ask};
use crate::config::Paths;
use crate::reconcile::{Caller, Event, Request};
use crate::report::{DrainOrder, DrainReport};
use crate::sys::file::{Durability, optional, remove_if_there, write_whole};

/// Who has drained the machine, if anybody.
pub fn ordered(paths: &Paths) -> io::Result<Option<DrainOrder>> {
    let Some(bytes) = optional(std::fs::read(paths.drain_file()))? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Nothing starts any more; again is no harm.
pub(super) async fn begin(context: &Context, caller: Caller) -> Result<DrainReport, ApiError> {
    let order = match ordered(&context.paths).map_err(|error| failed("read", &error))? {
        Some(order) => order,
        None => DrainOrder { by: caller.name, since: crate::sys::now().to_seconds() },
    };
    let bytes = serde_json::to_vec(&order).map_err(|error| failed("write", &error))?;
    write_whole(&context.paths.drain_file(), &bytes, 0o644, Durability::Process)
        .map_err(|error| failed("write", &error))?;
    context.events.send(Event::Drain(Some(order))).map_err(|_| ApiError::Ending)?;
    report(context).await
}

/// Jobs start again.
pub(super) async fn undo(context: &Context) -> Result<DrainReport, ApiError> {
    remove_if_there(&context.paths.drain_file()).map_err(|error| failed("remove", &error))?;
    context.events.send(Event::Drain(None)).map_err(|_| ApiError::Ending)?;
    report(context).await
}

/// How far it is; with `wait` when nothing runs any more, or jobs may start again.
pub(super) async fn look(context: &Context, wait: bool) -> Result<DrainReport, ApiError> {
    let mut rounds = context.rounds.clone();
    loop {
        rounds.mark_unchanged();
        let report = report(context).await?;
        if !wait || report.running.is_empty() || report.order.is_none() {
            return Ok(report);
        }
        rounds.changed().await.map_err(|_| ApiError::Ending)?;
    }
}

async fn report(context: &Context) -> Result<DrainReport, ApiError> {
    ask(context, |answer| Request::Drain { answer }).await
}

fn failed(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::Failed(format!("cannot {what} the order to drain in the run directory: {error}"))
}
