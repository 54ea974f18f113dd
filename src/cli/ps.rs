//! `trainyard ps`

use anyhow::bail;

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::ids::format_duration;
use crate::report::JobReport;
use crate::status::State;

pub(super) async fn run(client: &Client, wanted: Option<&str>, format: Format) -> anyhow::Result<Exit> {
    let mut list = client.jobs().await?;
    if let Some(wanted) = wanted {
        let Some(state) = State::ALL.into_iter().find(|state| state.name() == wanted) else {
            let names = State::ALL.map(State::name).join(", ");
            bail!("there is no state {wanted:?}; the states are {names}");
        };
        list.jobs.retain(|job| job.state == state);
    }
    if format == Format::Json {
        output::json(&list)?;
        return Ok(Exit::Success);
    }
    if list.jobs.is_empty() && list.strays.is_empty() {
        output::line("no jobs; drop a job file into jobs.d to begin")?;
        return Ok(Exit::Success);
    }
    let rows: Vec<_> = list.jobs.iter().map(row).collect();
    output::table(&["JOB", "STATE", "RUN", "TIME", "WHY"], &rows)?;
    for stray in &list.strays {
        output::error(&format!("ignored: {stray}"));
    }
    Ok(Exit::Success)
}

fn row(job: &JobReport) -> Vec<String> {
    let name = if job.workspace == "default" { job.job.clone() } else { format!("{}/{}", job.workspace, job.job) };
    let time = job.duration_ms.map(|ms| format_duration(std::time::Duration::from_millis(ms))).unwrap_or_default();
    let broken = job.diagnostics.iter().any(crate::spec::Diagnostic::is_error) && job.state != State::Invalid;
    let why = if broken { format!("{} (its file is invalid now)", job.reason) } else { job.reason.clone() };
    vec![name, output::state(job.state), job.run.to_string(), time, why]
}
