//! `trainyard wait [--any] [--exit-code] [--timeout TIME] JOB…`

use std::time::Duration;

use super::listing::LOOKED_FOR;
use super::output::{self, Format};
use super::pulse::AWAY;
use super::{Exit, explain_failure};
use crate::api::client::{Client, ClientError};
use crate::api::wire::{EventQuery, HappeningView, JobQuery, LogQuery};
use crate::config::{JobFiles, Paths};
use crate::ids::{JobKey, format_duration};
use crate::report::JobReport;
use crate::status::State;

/// What the end of a job is told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// One for each way to end.
    Verdict,
    /// The command's own, where it has failed with one.
    Command,
}

/// Who has just dropped a file need not wait for the daemon to read it before asking what comes of it.
pub(super) async fn until_known(client: &Client, paths: &Paths, key: &JobKey) -> Result<(), ClientError> {
    if may_have_file(paths, key) { client.job_when_known(key).await.map(drop) } else { Ok(()) }
}

/// Whether there is a file of it: one of a sweep has the sweep's, whose name is what stands before one of the `~`.
fn may_have_file(paths: &Paths, key: &JobKey) -> bool {
    if !JobFiles::are_open(&paths.jobs_d(), &key.workspace) {
        return false;
    }
    let (directory, name) = (paths.job_files(&key.workspace), key.job.as_str());
    let ends = name.match_indices('~').map(|(end, _)| end).chain([name.len()]);
    ends.filter_map(|end| name.get(..end)).any(|file| directory.join(format!("{file}.toml")).exists())
}

/// How many of them are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    All,
    Any,
}

pub(super) struct Wanted {
    pub(super) jobs: Vec<JobKey>,
    pub(super) code: Code,
    pub(super) until: Until,
    /// No longer than this.
    pub(super) most: Option<Duration>,
}

/// Waits for all, and ends as the one whose code is the highest; or for the first, and ends as that.
pub(super) async fn run(client: &Client, paths: &Paths, wanted: &Wanted, format: Format) -> anyhow::Result<Exit> {
    let waiting = async {
        let jobs = each_of(client, paths, &wanted.jobs).await;
        match wanted.until {
            Until::All => all(client, &jobs, wanted.code, format).await,
            Until::Any => any(client, jobs, wanted.code, format).await,
        }
    };
    let Some(most) = wanted.most else { return waiting.await };
    tokio::time::timeout(most, waiting).await.unwrap_or_else(|_| {
        let jobs = wanted.jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        output::error(&format!("not over after {}, and going on: {jobs}", format_duration(most)));
        Ok(Exit::Failure)
    })
}

/// The jobs; of a sweep those that its file makes. What is neither is found out when it is waited for.
async fn each_of(client: &Client, paths: &Paths, keys: &[JobKey]) -> Vec<JobKey> {
    let mut all = Vec::new();
    for key in keys {
        if until_known(client, paths, key).await.is_ok() && client.job(key).await.is_ok() {
            all.push(key.clone());
            continue;
        }
        let made = of_sweep(client, key).await.unwrap_or_default();
        if made.is_empty() { all.push(key.clone()) } else { all.extend(made) }
    }
    all
}

/// What the file of a sweep has made; nothing of what is none.
pub(super) async fn of_sweep(client: &Client, sweep: &JobKey) -> Result<Vec<JobKey>, ClientError> {
    let query = JobQuery { workspace: Some(sweep.workspace.to_string()), ..JobQuery::default() };
    let prefix = format!("{}~", sweep.job);
    let jobs = client.jobs(&query).await?.jobs.into_iter();
    let made = jobs.filter(|job| !job.sweep.is_empty() && job.job.starts_with(&prefix));
    Ok(made.filter_map(|job| Some(JobKey::new(sweep.workspace.clone(), job.job.parse().ok()?))).collect())
}

/// One that cannot be waited for is told, and keeps nobody from hearing of the others.
async fn all(client: &Client, jobs: &[JobKey], code: Code, format: Format) -> anyhow::Result<Exit> {
    let mut highest = Exit::Success;
    for key in jobs {
        let exit = told(one(client, key, code, format).await);
        highest = if exit.code() > highest.code() { exit } else { highest };
    }
    Ok(highest)
}

/// One that cannot be waited for counts as one that has ended: it never will.
async fn any(client: &Client, jobs: Vec<JobKey>, code: Code, format: Format) -> anyhow::Result<Exit> {
    let waits = jobs.iter().map(|key| Box::pin(one(client, key, code, format)));
    let (first, ..) = futures_util::future::select_all(waits).await;
    Ok(told(first))
}

fn told(waited: anyhow::Result<Exit>) -> Exit {
    let explained = waited.or_else(explain_failure);
    explained.unwrap_or_else(|error| {
        output::error(&format!("{error:#}"));
        Exit::Failure
    })
}

async fn one(client: &Client, key: &JobKey, code: Code, format: Format) -> anyhow::Result<Exit> {
    let (mut seen, mut missed) = (0, None);
    let report = loop {
        match followed(client, key, &mut seen, &mut missed).await {
            Ok(report) if report.state.is_terminal() => break report,
            Ok(_) => {}
            // The daemon is restarted, and the job goes on.
            Err(error) if error.is_away() && missed.or(was_there(&error)).is_some_and(|missed| missed < LOOKED_FOR) => {
                missed = Some(missed.unwrap_or(0) + 1);
                tokio::time::sleep(AWAY).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    match format {
        Format::Json => output::json(&report)?,
        Format::People => {
            output::line(&format!("{key}: {} – {}", output::state(report.state), output::plain(&report.reason)))?
        }
    }
    Ok(exit_of(&report, code))
}

/// A connection that broke off was one.
fn was_there(error: &ClientError) -> Option<u32> {
    (!matches!(error, ClientError::NotRunning { .. })).then_some(0)
}

/// How it was, and then until its run may have ended; how often nobody has answered since it was last heard of is none then.
async fn followed(
    client: &Client,
    key: &JobKey,
    seen: &mut u64,
    missed: &mut Option<u32>,
) -> Result<JobReport, ClientError> {
    let report = client.job(key).await?.report;
    *missed = Some(0);
    if report.state.is_terminal() {
        return Ok(report);
    }
    // Following the logs ends with the run: the daemon tells, nothing is asked again and again.
    let query = LogQuery { follow: true, lines: Some(0), ..LogQuery::default() };
    match client.logs(key, &query, |_| true).await {
        // They are not for everybody who may know how it is.
        Err(ClientError::Refused { status: 403, .. } | ClientError::Revoked(_)) => {
            until_an_end(client, key, seen).await?;
        }
        followed => followed?,
    }
    Ok(report)
}

const ENDS: [State; 4] = [State::Succeeded, State::Failed, State::Stopped, State::Invalid];

/// By its events behind those that were `seen`.
async fn until_an_end(client: &Client, key: &JobKey, seen: &mut u64) -> Result<(), ClientError> {
    let query = EventQuery { after: *seen, follow: true, job: Some(key.clone()), ..EventQuery::default() };
    let each = |happened: HappeningView| {
        *seen = happened.serial;
        !ENDS.iter().any(|end| end.to_string() == happened.event.state)
    };
    client.events(&query, each).await
}

/// How a job that is over has ended; of the first task that failed, where the command's own code is asked for.
pub(super) fn exit_of(report: &JobReport, code: Code) -> Exit {
    let failed = report.tasks.iter().filter(|task| task.exit_code.is_some_and(|code| code != 0));
    let first = failed.min_by(|one, other| one.ended.cmp(&other.ended)).and_then(|task| task.exit_code);
    match (report.state, first.and_then(|code| u8::try_from(code).ok())) {
        (State::Succeeded, _) => Exit::Success,
        (State::Stopped, _) => Exit::JobStopped,
        (_, Some(own)) if code == Code::Command => Exit::Command(own),
        _ => Exit::JobFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_may_have_the_file_of_a_sweep_whatever_their_names() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        std::fs::create_dir_all(paths.jobs_d()).unwrap();
        for file in ["grid.toml", "my~grid.toml"] {
            std::fs::write(paths.jobs_d().join(file), "").unwrap();
        }
        let with = ["grid", "grid~1", "my~grid", "my~grid~1~2"].map(|job| (job, true));
        for (job, may) in with.into_iter().chain([("my", false), ("my~1", false)]) {
            assert_eq!(may_have_file(&paths, &job.parse().unwrap()), may, "{job}");
        }
    }

    fn ended(state: &str, codes: &[(Option<i32>, &str)]) -> JobReport {
        let tasks: Vec<_> = codes
            .iter()
            .map(|(code, ended)| {
                serde_json::json!({ "task": "main-0", "phase": "ended", "reason": "", "exit_code": code,
                    "started": null, "ended": ended, "memory_peak": null })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "workspace": "default", "job": "j", "state": state, "reason": "", "description": "", "owner": 0, "run": 1,
            "attempt": 1, "created": "", "started": null, "ended": null, "duration_ms": null, "tasks": tasks,
            "diagnostics": []
        }))
        .unwrap()
    }

    #[test]
    fn the_command_s_own_code_is_that_of_the_first_task_that_failed() {
        let two = ended("failed", &[(Some(0), "1"), (Some(9), "3"), (Some(137), "2")]);
        assert_eq!(exit_of(&two, Code::Command), Exit::Command(137));
        assert_eq!(exit_of(&two, Code::Verdict), Exit::JobFailed);
        assert_eq!(exit_of(&ended("failed", &[(None, "1")]), Code::Command), Exit::JobFailed);
        assert_eq!(exit_of(&ended("succeeded", &[(Some(3), "1")]), Code::Command), Exit::Success);
        assert_eq!(exit_of(&ended("stopped", &[(Some(143), "1")]), Code::Command), Exit::JobStopped);
    }
}
