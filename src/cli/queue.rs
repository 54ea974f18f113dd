//! `trainyard queue`: who waits, in the order in which they start, and for what.

use super::Exit;
use super::output::{self, Format};
use super::ps::{name, seconds};
use crate::api::client::Client;
use crate::api::wire::JobQuery;
use crate::report::{JobReport, WaitReport};

pub(super) async fn run(client: &Client, workspace: Option<&str>, format: Format) -> anyhow::Result<Exit> {
    let mut jobs = client.jobs(&JobQuery::default()).await?.jobs;
    let places = jobs.iter().filter_map(|job| job.waiting.as_ref()).map(|waiting| waiting.of);
    let (all, told) = (places.clone().max().unwrap_or(0), places.count());
    jobs.retain(|job| job.waiting.is_some() && workspace.is_none_or(|workspace| workspace == job.workspace));
    jobs.sort_by_key(|job| job.waiting.as_ref().map(|waiting| waiting.place));
    if format == Format::Json {
        jobs.iter().try_for_each(output::json)?;
        return Ok(Exit::Success);
    }
    let rows: Vec<_> = jobs.iter().filter_map(|job| Some(row(job, job.waiting.as_ref()?))).collect();
    match rows.is_empty() {
        true => output::line("nothing waits for its turn; `trainyard ps` lists all jobs")?,
        false => output::table(&["PLACE", "JOB", "STARTS BY", "NEEDS", "FOR WHAT"], &rows)?,
    }
    // Places of many are not reckoned for a list.
    let behind = all.saturating_sub(told);
    if behind > 0 {
        output::aside(&format!(
            "and {behind} behind them, or not yours; `trainyard status JOB` tells the place of one"
        ));
    }
    Ok(Exit::Success)
}

fn row(job: &JobReport, waiting: &WaitReport) -> Vec<String> {
    let start = waiting.starts_by.as_deref().map_or("-".to_owned(), seconds);
    let needs = waiting.needs.to_string();
    vec![waiting.place.to_string(), name(job), start, needs, job.reason.clone()]
}
