//! `trainyard events [JOB]`

use super::Exit;
use super::listing::{self, Form};
use super::output;
use super::ps::shown;
use super::times::{seconds, when};
use crate::api::client::{Client, Follow};
use crate::api::wire::{EventQuery, EventView, HappeningView};
use crate::ids::{JobKey, Timestamp};

/// Which events are printed.
pub(super) struct Wanted {
    query: EventQuery,
    /// Only the last of them.
    lines: Option<usize>,
}

/// Whose.
pub(super) enum Of {
    Job(JobKey),
    /// Of all that may be seen where none is named.
    Workspace(Option<String>),
}

impl Wanted {
    /// `times`: from one on, and up to the other.
    pub(super) fn new(
        of: Of,
        follow: Follow,
        after: u64,
        lines: Option<usize>,
        times: [Option<String>; 2],
    ) -> anyhow::Result<Self> {
        let [since, until] = times.map(|time| time.as_deref().map(when).transpose());
        let (job, workspace) = match of {
            Of::Job(job) => (Some(job), None),
            Of::Workspace(workspace) => (None, workspace),
        };
        let query = EventQuery { after, follow: follow == Follow::Yes, job, workspace, since: since?, until: until? };
        Ok(Self { query, lines })
    }
}

const HEADS: [&str; 6] = ["AT", "WORKSPACE", "JOB", "RUN", "STATE", "MESSAGE"];

pub(super) async fn run(client: &Client, wanted: Wanted, form: Form) -> anyhow::Result<Exit> {
    if form == Form::Csv {
        output::line(&listing::csv(&HEADS.map(str::to_lowercase)))?;
    }
    let is_stream = wanted.query.follow || wanted.query.after > 0;
    let count = match &wanted.query.job {
        Some(key) if !is_stream => of_job(client, key, &wanted, form).await?,
        job => {
            if let Some(key) = job {
                // One that there is not has no events, which looks like one to which nothing happens.
                client.job(key).await?;
            }
            of_all(client, &wanted.query, form).await?
        }
    };
    if count == 0 && matches!(form, Form::Table | Form::Wide) {
        let is_all = (wanted.query.since, wanted.query.until, wanted.query.after) == (None, None, 0);
        output::aside(if is_all { "nothing has happened yet" } else { "nothing has happened in that time" });
    }
    Ok(Exit::Success)
}

/// Also what is older than the events of all jobs that are kept. How many there were.
async fn of_job(client: &Client, key: &JobKey, wanted: &Wanted, form: Form) -> anyhow::Result<usize> {
    let written = |time: Option<u64>| time.map(|time| Timestamp(time).to_string());
    let (since, until) = (written(wanted.query.since), written(wanted.query.until));
    let mut events = client.job_events(key).await?;
    // Times are written so that they sort as text does.
    events.retain(|event| since.as_ref().is_none_or(|since| event.at >= *since));
    events.retain(|event| until.as_ref().is_none_or(|until| event.at <= *until));
    let skipped = events.len().saturating_sub(wanted.lines.unwrap_or(usize::MAX));
    let mut told = events.iter().skip(skipped);
    told.try_for_each(|event| match form {
        Form::Json => output::json(event),
        Form::Table | Form::Wide => output::line(&sentence(&event.at, None, event)),
        _ => print(&key.workspace.to_string(), key.job.as_str(), event, form),
    })?;
    Ok(events.len() - skipped)
}

/// How many there were.
async fn of_all(client: &Client, query: &EventQuery, form: Form) -> anyhow::Result<usize> {
    let (mut failed, mut count) = (None, 0);
    let told = client.events(query, |happened| {
        let HappeningView { workspace, job, event, .. } = &happened;
        let printed = match form {
            Form::Json => output::json(&happened),
            _ => print(workspace, job, event, form),
        };
        failed = printed.err();
        count += 1;
        failed.is_none()
    });
    told.await?;
    failed.map_or(Ok(count), Err)
}

fn print(workspace: &str, job: &str, event: &EventView, form: Form) -> anyhow::Result<()> {
    match form {
        Form::Names => output::line(&format!("{workspace}/{job}")),
        Form::Csv => {
            let EventView { at, run, state, message, .. } = event;
            let cells = [at.as_str(), workspace, job, &run.to_string(), state, message];
            output::line(&listing::csv(&cells.map(output::plain)))
        }
        _ => output::line(&sentence(&seconds(&event.at), Some(&shown(workspace, job)), event)),
    }
}

/// Below each other as far as that goes where nobody knows what comes: jobs have a quarter of a terminal.
fn sentence(at: &str, job: Option<&str>, event: &EventView) -> String {
    let wide = output::columns().map(|columns| columns / 4);
    let fitted = |job| {
        let job = output::cut(job, wide.unwrap_or(usize::MAX));
        output::padded(&job, wide.unwrap_or(JOB)) + "  "
    };
    let begin = format!("{at}  {}run {:<2}  {:<9}  ", job.map(fitted).unwrap_or_default(), event.run, event.state);
    output::folded(&begin, at.len() + 2, &output::plain(&event.message))
}

/// How wide a job is where no terminal says how wide all may be.
const JOB: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_name_of_any_length_stands_apart_from_what_comes_behind_it() {
        let event: EventView = serde_json::from_value(json!({
            "number": 0, "at": "2026-11-30T02:00:00.000Z", "run": 1, "state": "running", "message": "m"
        }))
        .unwrap();
        for job in ["short", "resnet50-imagenet-lr0.1-batch256", &"训练".repeat(32)] {
            let told = sentence("AT", Some(job), &event);
            let begin = told.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
            assert_eq!(begin, format!("AT {job} run 1"), "{told}");
        }
    }
}
