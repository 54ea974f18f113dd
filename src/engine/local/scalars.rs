//! Where the shim of a task finds the numbers of its training.

use crate::config::Paths;
use crate::contract::layout::in_run;
use crate::contract::{Place, Task, native};
use crate::engine::Launch;
use crate::rundir::{ScalarsPlace, ScalarsRecord};

/// Where the numbers of a task's training are found: event files by its name, and those of nobody by the first task.
pub(super) fn record(launch: &Launch, task: &Task<'_>, places: &[Place], paths: &Paths) -> Option<ScalarsRecord> {
    let scalars = launch.spec.scalars.as_ref().filter(|_| !task.role.is_service)?;
    let run = paths.run(&launch.identity.key, launch.identity.run);
    let log_dir = scalars.log_dir.as_ref().and_then(|path| {
        let below = in_run(places, path);
        if below.is_none() {
            tracing::warn!(job = %launch.identity.key, path, "scalars.log_dir is not below the output or the model: nothing is collected there");
        }
        Some(ScalarsPlace { root: run, below: below? })
    });
    let all = task.attempt();
    let names =
        all.iter().filter(|other| !other.role.is_service).map(|other| (other.ordinal, native::host_name(other)));
    let (own, others): (Vec<_>, Vec<_>) = names.partition(|(ordinal, _)| *ordinal == task.ordinal);
    let is_first = others.iter().all(|(ordinal, _)| *ordinal > task.ordinal);
    let names = |list: Vec<(u32, String)>| list.into_iter().map(|(_, name)| name).collect();
    let own = if is_first { Vec::new() } else { names(own) };
    Some(ScalarsRecord { log_dir, lines: scalars.lines.clone(), own, others: names(others) })
}
