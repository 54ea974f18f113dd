//! `trainyard queue`: who waits, in the order in which they start, and for what.

use super::listing::{Form, Listing, whole};
use super::output;
use super::ps::{name, user_name, wide_of};
use super::times::seconds;
use crate::api::client::Client;
use crate::api::wire::{JobList, JobQuery};
use crate::report::{JobReport, WaitReport};
use crate::status::State;

/// Tells up to which event it has looked.
pub(super) async fn run(client: &Client, workspace: Option<&str>, form: Form) -> anyhow::Result<u64> {
    let waiting = [State::Waiting.name().to_owned()].into();
    let query = JobQuery { states: waiting, workspace: workspace.map(str::to_owned), ..JobQuery::default() };
    let JobList { mut jobs, serial, .. } = client.jobs(&query).await?;
    // Who has no place waits for something else than its turn, or behind so many that places of a list are not reckoned so far.
    jobs.sort_by_key(|job| job.waiting.as_ref().map_or(usize::MAX, |waiting| waiting.place));
    let listing = Listing {
        heads: &["PLACE", "JOB", "STARTS BY", "SINCE", "USER", "NEEDS", "FOR WHAT"],
        wide: &wide_of(&["SINCE", "USER", "NEEDS"], jobs.iter().map(|job| job.owner)),
        cells: row,
        name,
        json: whole,
        nothing: "no job that you may see waits; `trainyard ps` lists them all",
    };
    listing.print(&jobs, form)?;
    let placed: Vec<_> = jobs.iter().filter_map(|job| job.waiting.as_ref()).collect();
    let queued = placed.first().map_or(0, |waiting| waiting.of);
    if placed.len() < queued.min(jobs.len()) && matches!(form, Form::Table | Form::Wide) {
        output::aside(&format!(
            "{queued} wait for their turn; of who is far behind `trainyard status JOB` alone tells the place"
        ));
    }
    Ok(serial)
}

/// With a mark where it is told about when alone.
fn start(waiting: &WaitReport) -> Option<String> {
    let about = || Some(format!("~{}", seconds(waiting.starts_about.as_deref()?)));
    waiting.starts_by.as_deref().map(seconds).or_else(about)
}

fn row(job: &JobReport) -> Vec<String> {
    let waiting = job.waiting.as_ref();
    let start = waiting.and_then(start).unwrap_or("-".to_owned());
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_start_that_is_told_about_when_alone_has_a_mark() {
        let none = json!({ "cpu": 0.0, "memory": 0, "gpu": 0.0 });
        let waiting = |told: serde_json::Value| -> WaitReport {
            let mut report = json!({
                "cause": "turn", "place": 1, "of": 7, "needs": none, "free": none, "holders": [], "starts_by": null,
                "as_of": "2026-11-30T02:00:00.000Z"
            });
            report.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
            serde_json::from_value(report).unwrap()
        };
        let at = "2026-11-30T04:00:03.000Z";
        assert_eq!(start(&waiting(json!({ "starts_by": at }))).unwrap(), seconds(at));
        assert_eq!(start(&waiting(json!({ "starts_about": at }))).unwrap(), format!("~{}", seconds(at)));
        assert_eq!(start(&waiting(json!({}))), None);
    }
}
