//! `trainyard status JOB`

use serde::Serialize;

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::api::wire::{JobView, PortView};
use crate::ids::{Bytes, JobKey, format_duration};
use crate::report::{JobReport, TaskReport};

pub(super) async fn run(client: &Client, key: &JobKey, format: Format) -> anyhow::Result<Exit> {
    let view = client.job(key).await?;
    if format == Format::Json {
        output::json(&Shown { report: &view.report, ports: &view.ports })?;
        return Ok(Exit::Success);
    }
    print(key, &view)?;
    Ok(Exit::Success)
}

/// The report, and where its tasks listen.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    report: &'a JobReport,
    ports: &'a [PortView],
}

fn print(key: &JobKey, view: &JobView) -> anyhow::Result<()> {
    let report = &view.report;
    output::line(&format!("{key}: {} – {}", output::state(report.state), report.reason))?;
    if !report.description.is_empty() {
        output::line(&format!("  {}", report.description))?;
    }
    if !report.sweep.is_empty() {
        let values: Vec<String> = report.sweep.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        output::line(&format!("  {}", values.join(", ")))?;
    }
    for (label, value) in facts(report) {
        output::line(&format!("  {label:<9} {value}"))?;
    }
    if !report.tasks.is_empty() {
        output::line("")?;
        let rows: Vec<_> = report.tasks.iter().map(task).collect();
        output::table(&["TASK", "PHASE", "MEMORY", "HOW IT ENDED"], &rows)?;
    }
    if !view.ports.is_empty() {
        output::line("")?;
        let rows: Vec<_> = view.ports.iter().map(port).collect();
        output::table(&["TASK", "PORT", "INSIDE", "AT"], &rows)?;
    }
    for diagnostic in &report.diagnostics {
        output::line("")?;
        output::line(&diagnostic.to_string())?;
    }
    Ok(())
}

fn facts(report: &JobReport) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    if report.run > 0 {
        out.push(("run", format!("{}, attempt {}", report.run, report.attempt)));
    }
    for (label, time) in [("started", &report.started), ("ended", &report.ended)] {
        out.extend(time.clone().map(|time| (label, time)));
    }
    let duration = report.duration_ms.map(std::time::Duration::from_millis);
    out.extend(duration.map(|duration| ("time", format_duration(duration))));
    out
}

/// Where people reach it: by the machine's name, or by its address on the machine itself.
fn port(port: &PortView) -> Vec<String> {
    let machine = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let at = match port.published {
        Some(published) => format!("{}:{published}", machine.as_deref().unwrap_or("localhost")),
        None => format!("{}:{}", port.address, port.port),
    };
    let at = if port.label == "http" { format!("http://{at}/") } else { at };
    let only = if port.published.is_none() { " (from this machine)" } else { "" };
    let at = format!("{at}{only}");
    vec![port.task.clone(), port.label.clone(), port.port.to_string(), at]
}

fn task(task: &TaskReport) -> Vec<String> {
    let memory = task.memory_peak.map(|peak| Bytes(peak).to_string()).unwrap_or_default();
    vec![task.task.clone(), task.phase.clone(), memory, task.reason.clone()]
}
