//! Whether the daemon lives, and whether it does its work.

use std::path::Path;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::server::{Context, ask};
use crate::config::{Paths, ROOM_MIN};
use crate::ids::Bytes;
use crate::reconcile::{Caller, Request};
use crate::sys::answering::Asker;
use crate::sys::file::free_for_all_and_root;
use crate::sys::lock::pid_in;
use crate::sys::mounts;

/// How long the loop, a disk and the mount may take to answer before they are told to hang; a round that writes takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer than the mount is asked: who waits for the answer to somebody else has it then.
const MOUNT_PATIENCE: Duration = Duration::from_secs(6);
/// So long an answer of the mount is also good for who comes after it.
const FRESH: Duration = Duration::from_secs(1);

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
    /// `loop`: decides; `drain`: jobs may start; `disk`: has room for what the daemon keeps and for new runs;
    /// `mount`: the workspaces are shown, and answer.
    pub check: String,
    pub ok: bool,
    /// What it found, one line.
    pub says: String,
}

pub(super) fn health() -> Health {
    Health { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// All are asked at once: what hangs holds up the answer about nothing else.
pub(super) async fn readiness(context: &Context, caller: &Caller) -> Readiness {
    let ([the_loop, drain], disk, mount) = tokio::join!(loop_and_drain(context), disk(context), mount(context, caller));
    let checks = vec![the_loop, drain, disk, mount];
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
    let asked = ask(context, |answer| Request::NoRoom { answer });
    let (asked, looked) =
        tokio::join!(tokio::time::timeout(PATIENCE, asked), tokio::time::timeout(PATIENCE, look_for_room(context)));
    let found = match (asked, looked) {
        (Ok(Ok(Some(says))), _) => Err(says),
        (_, Ok(found)) => found,
        (_, Err(_)) => Err(format!(
            "has not answered for {} s: a disk hangs that the state, images or workspaces are on",
            PATIENCE.as_secs()
        )),
    };
    CheckView { check: "disk".to_owned(), ok: found.is_ok(), says: found.unwrap_or_else(|why| why) }
}

/// One at a time: what hangs takes one thread, however many ask.
async fn look_for_room(context: &Context) -> Result<String, String> {
    let turn = context.disks.clone().lock_owned().await;
    let paths = context.paths.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let found = room(&paths);
        drop(turn);
        found
    });
    looked.await.unwrap_or_else(|_| Err(ApiError::Ending.to_string()))
}

async fn mount(context: &Context, caller: &Caller) -> CheckView {
    let away = context.mount.borrow().clone();
    let place = context.paths.mount_point();
    let found = match away {
        Some(why) => Err(format!("{} is away: {why}", place.display())),
        None => tokio::time::timeout(MOUNT_PATIENCE, ask_mount(context)).await.unwrap_or_else(|_| {
            Err(format!("who asks {} has not come back for {} s", place.display(), MOUNT_PATIENCE.as_secs()))
        }),
    };
    let found = told_to(caller, found);
    CheckView { check: "mount".to_owned(), ok: found.is_ok(), says: found.unwrap_or_else(|why| why) }
}

/// Everybody may ask for this: workspaces and processes are named to those of this machine.
fn told_to(caller: &Caller, found: Result<String, String>) -> Result<String, String> {
    let withheld = |why| match caller.is_nobody() {
        true => "the mount is away or hangs; ask `trainyard doctor mount`".to_owned(),
        false => why,
    };
    found.map_err(withheld)
}

async fn ask_mount(context: &Context) -> Result<String, String> {
    let came = Instant::now();
    let mut mount = context.mount_asker.clone().lock_owned().await;
    let paths = context.paths.clone();
    // This process never looks at the mount itself, which may hang.
    let looked = tokio::task::spawn_blocking(move || mount.answer(&paths, came)).await;
    looked.unwrap_or_else(|_| Err(ApiError::Ending.to_string()))
}

/// Asks the mount by a process, one at a time, whose answer is for all who wait for it.
#[derive(Debug)]
pub struct MountAsker {
    asker: Asker,
    last: Option<(Instant, Result<String, String>)>,
}

impl MountAsker {
    pub fn of(root: &Path) -> Self {
        Self { asker: Asker::of(root), last: None }
    }

    /// For who has come at `came`.
    fn answer(&mut self, paths: &Paths, came: Instant) -> Result<String, String> {
        if let Some((told, found)) = &self.last
            && is_fresh(*told, came)
        {
            return found.clone();
        }
        let found = is_served(paths, &mut self.asker);
        self.last = Some((Instant::now(), found.clone()));
        found
    }
}

/// Whether what was told then is good for who has come at `came`: since then, or just before.
fn is_fresh(told: Instant, came: Instant) -> bool {
    came.saturating_duration_since(told) <= FRESH
}

fn is_served(paths: &Paths, asker: &mut Asker) -> Result<String, String> {
    let says = is_mounted(paths)?;
    let answer = asker.ask(PATIENCE).map_err(|error| format!("cannot ask the mount: {error}"))?;
    let trouble = answer.trouble(PATIENCE, pid_in(&paths.mount_lock()).ok().flatten());
    trouble.map_or(Ok(says), |(found, advice)| Err(format!("{found}; {advice}")))
}

fn is_mounted(paths: &Paths) -> Result<String, String> {
    let place = paths.mount_point();
    let mounts = mounts::list().map_err(|error| format!("cannot look for the mount: {error}"))?;
    let is_ours = |mount: &mounts::MountPoint| mount.target == place && mount.source == paths.mount_source();
    match mounts.iter().any(is_ours) {
        true => Ok(format!("the workspaces are shown at {}", place.display())),
        false => Err(format!(
            "{} is not mounted; it is tried again and again, and the journal tells why it fails",
            place.display()
        )),
    }
}

/// Of the disk with the least room. Where new runs begin with less than the state needs, the next commit may fail.
fn room(paths: &Paths) -> Result<String, String> {
    let free = paths.disks().into_iter().filter_map(|place| Some((free_for_all_and_root(&place).ok()??.0, place)));
    let Some((free, place)) = free.min() else { return Ok("how much is free cannot be seen".to_owned()) };
    let says = format!("{} free below {}", Bytes(free).roughly(), place.display());
    if free < ROOM_MIN { Err(format!("only {says}")) } else { Ok(says) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_named_to_users_of_this_machine_alone() {
        let found = Err("/srv/trainyard/secret has not answered for 5 s; `kill -9 7` has it mounted anew".to_owned());
        assert_eq!(told_to(&Caller::root(), found.clone()), found);
        let user = Caller::named(4321, "ann".to_owned());
        assert_eq!(told_to(&user, found.clone()), found);
        let told = told_to(&Caller::nobody(), found).unwrap_err();
        assert_eq!(told, "the mount is away or hangs; ask `trainyard doctor mount`");
    }

    #[test]
    fn an_answer_is_for_all_who_waited_for_it_and_who_comes_within_a_second() {
        let told = Instant::now();
        assert!(is_fresh(told, told - Duration::from_secs(5)));
        assert!(is_fresh(told, told + FRESH));
        assert!(!is_fresh(told, told + FRESH + Duration::from_millis(1)));
    }
}
