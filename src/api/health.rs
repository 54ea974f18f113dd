//! Whether the daemon lives, and whether it does its work.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::server::{Context, ask};
use crate::reconcile::Request;
use crate::sys::file::free_space;

/// How long the loop may take to answer before it is told to hang; a round that writes takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Less room than this on the disk of the state, and the next commit may fail.
const ROOM_MIN: u64 = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Always `ok`: who answers lives.
    pub status: String,
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Readiness {
    pub ready: bool,
    pub checks: Vec<CheckView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckView {
    /// `loop`: decides; `drain`: jobs may start; `disk`: has room for what the daemon keeps.
    pub check: String,
    pub ok: bool,
    /// What it found, one line.
    pub says: String,
}

pub(super) fn health() -> Health {
    Health { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

pub(super) async fn readiness(context: &Context) -> Readiness {
    let [the_loop, drain] = loop_and_drain(context).await;
    let checks = vec![the_loop, drain, disk(context).await];
    Readiness { ready: checks.iter().all(|check| check.ok), checks }
}

/// By one question, which the loop answers; whether jobs may start is known only if it does.
async fn loop_and_drain(context: &Context) -> [CheckView; 2] {
    let asked = ask(context, |answer| Request::Drain { answer });
    let found = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(report)) => Ok(report.order),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("has not answered for {} s", PATIENCE.as_secs())),
    };
    let (drain_ok, drain_says) = match &found {
        Ok(None) => (true, "jobs may start".to_owned()),
        // Everybody may ask for this: who has drained it is for those who may see that.
        Ok(Some(order)) => (false, format!("nothing starts: the machine is drained since {}", order.since)),
        Err(_) => (false, "unknown: the loop does not answer".to_owned()),
    };
    let the_loop = CheckView {
        check: "loop".to_owned(),
        ok: found.is_ok(),
        says: found.map_or_else(|why| why, |_| "jobs are taken in and decided on".to_owned()),
    };
    [the_loop, CheckView { check: "drain".to_owned(), ok: drain_ok, says: drain_says }]
}

async fn disk(context: &Context) -> CheckView {
    let asked = ask(context, |answer| Request::Unrecorded { answer });
    if let Ok(Ok(true)) = tokio::time::timeout(PATIENCE, asked).await {
        let says =
            "full: what is decided waits for room to be recorded, and nothing is begun or stopped before".to_owned();
        return CheckView { check: "disk".to_owned(), ok: false, says };
    }
    let path = context.paths.state_dir();
    let looked = tokio::task::spawn_blocking(move || {
        let free = free_space(&path).map_err(|error| format!("cannot look at {}: {error}", path.display()))?;
        let says = format!("{} free below {}", crate::ids::Bytes(free).roughly(), path.display());
        if free < ROOM_MIN { Err(format!("only {says}")) } else { Ok(says) }
    });
    let found = looked.await.unwrap_or_else(|_| Err(ApiError::Ending.to_string()));
    CheckView { check: "disk".to_owned(), ok: found.is_ok(), says: found.unwrap_or_else(|why| why) }
}
