//! `trainyard logs [-f] [-n N] [--since 10m] [--run N] [--attempt N] [--exit-code] [ROLE-I] JOB`

use super::output::{self, Format};
use super::times::when;
use super::wait::{self, Code};
use super::{Exit, job_key};
use crate::api::client::Client;
use crate::api::wire::{LogLine, LogQuery};
use crate::config::Paths;
use crate::ids::JobKey;
use crate::report::JobReport;
use crate::status::State;

pub(super) struct Request {
    /// `JOB`, `TASK JOB`, or `JOB TASK`.
    pub(super) first: String,
    pub(super) second: Option<String>,
    pub(super) follow: bool,
    pub(super) lines: Option<u64>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    pub(super) run: Option<u32>,
    pub(super) attempt: Option<u32>,
    /// Ends as the job did.
    pub(super) exit_code: bool,
}

pub(super) async fn run(client: &Client, paths: &Paths, request: Request, format: Format) -> anyhow::Result<Exit> {
    let (task, key) = match &request.second {
        Some(second) => which(client, &request.first, second).await?,
        None => (None, job_key(&request.first)?),
    };
    if request.follow {
        wait::until_known(client, paths, &key).await?;
        if let Some(exit) = silent(&client.job(&key).await?.report, &key, request.exit_code) {
            return Ok(exit);
        }
    }
    let since = request.since.as_deref().map(when).transpose()?;
    let until = request.until.as_deref().map(when).transpose()?;
    let several = task.is_none();
    let Request { follow, lines, run, attempt, exit_code, .. } = request;
    let query = LogQuery { task, run, attempt, follow, lines, since, until, ..LogQuery::default() };
    let mut failed = None;
    let mut newest = None;
    let printed = client.logs(&key, &query, |line| {
        if format == Format::People && newest.replace(line.attempt).is_some_and(|before| before != line.attempt) {
            output::aside(&format!("--- attempt {} ---", line.attempt));
        }
        failed = print(&line, several, format).err();
        failed.is_none()
    });
    printed.await?;
    let is_all = !follow && query == LogQuery { task: query.task.clone(), ..LogQuery::default() };
    if is_all && newest.is_none() && format == Format::People {
        let report = client.job(&key).await?.report;
        output::aside(&output::plain(&format!("no output; {key}: {} – {}", report.state, report.reason)));
    }
    match failed {
        Some(error) => Err(error),
        None if exit_code => Ok(wait::exit_of(&client.job(&key).await?.report, Code::Command)),
        None => Ok(Exit::Success),
    }
}

/// Says why nothing comes of a job; the exit code where nothing ever will, as long as its file is as it is.
fn silent(report: &JobReport, key: &JobKey, exit_code: bool) -> Option<Exit> {
    match report.state {
        State::Invalid if report.run == 0 => {
            output::error(&format!("{key} is invalid, so there is nothing to follow: {}", report.reason));
            Some(if exit_code { Exit::JobFailed } else { Exit::Failure })
        }
        State::Held | State::Waiting => {
            output::aside(&output::plain(&format!("{key}: {} – {}", report.state, report.reason)));
            None
        }
        _ => None,
    }
}

/// The task before the job, as in what is printed; or behind it, as with `exec`.
async fn which(client: &Client, first: &str, second: &str) -> anyhow::Result<(Option<String>, JobKey)> {
    let (last, other) = (job_key(second)?, first.parse::<JobKey>());
    if let Ok(other) = other
        && client.job(&last).await.is_err()
        && client.job(&other).await.is_ok()
    {
        return Ok((Some(second.to_owned()), other));
    }
    Ok((Some(first.to_owned()), last))
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
