//! `trainyard wait JOB`

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::api::wire::LogQuery;
use crate::ids::JobKey;
use crate::status::State;

pub(super) async fn run(client: &Client, key: &JobKey, format: Format) -> anyhow::Result<Exit> {
    // Following the logs ends with the run: the daemon tells, nothing is asked again and again.
    let query = LogQuery { follow: true, lines: Some(0), ..LogQuery::default() };
    let report = loop {
        let report = client.job(key).await?.report;
        if report.state.is_terminal() {
            break report;
        }
        client.logs(key, &query, |_| true).await?;
    };
    match format {
        Format::Json => output::json(&report)?,
        Format::People => output::line(&format!("{key}: {} – {}", output::state(report.state), report.reason))?,
    }
    Ok(match report.state {
        State::Succeeded => Exit::Success,
        State::Stopped => Exit::JobStopped,
        _ => Exit::JobFailed,
    })
}
