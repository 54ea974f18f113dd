//! `trainyard queue`: who waits, in the order in which they start, and for what.

use super::listing::{Form, Listing, whole};
use super::output;
use super::ps::{name, seconds, user_name};
use crate::api::client::Client;
use crate::api::wire::{JobList, JobQuery};
use crate::report::JobReport;
use crate::status::State;

/// Tells up to which event it has looked.
pub(super) async fn run(client: &Client, workspace: Option<&str>, form: Form) -> anyhow::Result<u64> {
    let JobList { mut jobs, serial, .. } = client.jobs(&JobQuery::default()).await?;
    let places = jobs.iter().filter_map(|job| job.waiting.as_ref()).map(|waiting| waiting.of);
    let (all, told) = (places.clone().max().unwrap_or(0), places.count());
    // A machine that starts nothing has no queue, but some who wait.
    jobs.retain(|job| job.waiting.is_some() || (told == 0 && job.state == State::Waiting));
    jobs.retain(|job| workspace.is_none_or(|workspace| workspace == job.workspace));
    jobs.sort_by_key(|job| job.waiting.as_ref().map(|waiting| waiting.place));
    let listing = Listing {
        heads: &["PLACE", "JOB", "STARTS BY", "SINCE", "USER", "NEEDS", "FOR WHAT"],
        wide: &["SINCE", "USER", "NEEDS"],
        cells: row,
        name,
        json: whole,
        nothing: "no job that you may see waits for its turn; `trainyard ps` lists them all",
    };
    listing.print(&jobs, form)?;
    // Places of many are not reckoned for a list.
    let behind = all.saturating_sub(told);
    if behind > 0 && matches!(form, Form::Table | Form::Wide) {
        output::aside(&format!(
            "and {behind} behind them, or not yours; `trainyard status JOB` tells the place of one"
        ));
    }
    Ok(serial)
}

fn row(job: &JobReport) -> Vec<String> {
    let waiting = job.waiting.as_ref();
    let start = waiting.and_then(|waiting| waiting.starts_by.as_deref()).map_or("-".to_owned(), seconds);
    let (place, needs) = (waiting.map(|waiting| waiting.place), waiting.map(|waiting| waiting.needs.to_string()));
    vec![
        place.map_or("-".to_owned(), |place| place.to_string()),
        name(job),
        start,
        seconds(&job.created),
        user_name(job.owner),
        needs.unwrap_or_default(),
        job.reason.clone(),
    ]
}
