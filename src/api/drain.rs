//! A machine on which nothing starts: `trainyard drain`.
//!
//! The order lies in the run directory, so that it outlives the daemon, also an upgrade, but not the machine's next start: where that
//! directory stays (`--root`), it names the start in which it was given.

use std::io;

use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::server::{Context, ask};
use crate::config::Paths;
use crate::reconcile::{Caller, Event, Request};
use crate::report::{DrainOrder, DrainReport};
use crate::sys::boot_id;
use crate::sys::file::{Durability, optional, remove_if_there, write_whole};

/// As it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    order: DrainOrder,
    /// The start of the machine in which it was given; this one where an earlier version has not written it.
    boot: Option<String>,
}

/// Who has drained the machine since it was started, if anybody.
pub fn ordered(paths: &Paths) -> io::Result<Option<DrainOrder>> {
    let Some(bytes) = optional(std::fs::read(paths.drain_file()))? else { return Ok(None) };
    let Stored { order, boot } = serde_json::from_slice(&bytes)?;
    let is_of_now = match boot {
        Some(boot) => boot == boot_id()?,
        None => true,
    };
    Ok(is_of_now.then_some(order))
}

fn write(paths: &Paths, order: &DrainOrder) -> io::Result<()> {
    let bytes = serde_json::to_vec(&Stored { order: order.clone(), boot: Some(boot_id()?) })?;
    write_whole(&paths.drain_file(), &bytes, 0o644, Durability::Process)
}

/// Nothing starts any more; again is no harm.
pub(super) async fn begin(context: &Context, caller: Caller) -> Result<DrainReport, ApiError> {
    let order = match ordered(&context.paths).map_err(|error| failed("read", &error))? {
        Some(order) => order,
        None => DrainOrder { by: caller.name, since: crate::sys::now().to_seconds() },
    };
    write(&context.paths, &order).map_err(|error| failed("write", &error))?;
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
