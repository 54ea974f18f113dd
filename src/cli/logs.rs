//! `trainyard logs [-f] [-n N] [--since 10m] [ROLE-I] JOB`

use std::time::Duration;

use anyhow::Context;

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::api::wire::{LogLine, LogQuery};
use crate::ids::{JobKey, parse_duration};

pub(super) struct Request {
    /// `[TASK] JOB`.
    pub(super) target: Vec<String>,
    pub(super) follow: bool,
    pub(super) lines: Option<u64>,
    pub(super) since: Option<String>,
    pub(super) run: Option<u32>,
}

pub(super) async fn run(client: &Client, request: Request, format: Format) -> anyhow::Result<Exit> {
    let (task, job) = match request.target.as_slice() {
        [task, job] => (Some(task.clone()), job),
        [job] => (None, job),
        _ => anyhow::bail!("name one job, or a task and a job"),
    };
    let key: JobKey = job.parse().with_context(|| format!("{job:?} cannot be a job"))?;
    let since = request.since.as_deref().map(parse_duration).transpose()?.map(from);
    let several = task.is_none();
    let query = LogQuery { task, run: request.run, follow: request.follow, lines: request.lines, since };
    let mut failed = None;
    let printed = client.logs(&key, &query, |line| {
        failed = print(&line, several, format).err();
        failed.is_none()
    });
    printed.await?;
    failed.map_or(Ok(Exit::Success), Err)
}

/// A time before now, ms since 1970.
fn from(ago: Duration) -> u64 {
    crate::sys::now().0.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))
}

fn print(line: &LogLine, several: bool, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(line),
        Format::People if several => {
            output::line(&format!("{} {}", output::paint("2", &format!("{} |", line.task)), line.text))
        }
        Format::People => output::line(&line.text),
    }
}
