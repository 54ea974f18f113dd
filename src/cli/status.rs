//! `trainyard status JOB`

use serde::Serialize;

use super::output::{self, Format};
use super::{Exit, NotFound};
use crate::api::client::Client;
use crate::api::tasks::TaskUsage;
use crate::api::wire::{JobView, PortView, RunView};
use crate::ids::{Bytes, JobKey, format_duration};
use crate::report::{GpuReport, JobReport, TaskReport, WaitReport};

/// So many earlier attempts are listed, the newest ones.
const EARLIER: usize = 10;

pub(super) async fn run(client: &Client, key: &JobKey, run: Option<u32>, format: Format) -> anyhow::Result<Exit> {
    let view = match run {
        Some(number) => client.job_with_run(key, number).await?,
        None => client.job(key).await?,
    };
    if let Some(number) = run {
        let Some(run) = view.runs.first() else {
            return Err(NotFound(format!("job {key} has no run {number}; its newest is {}", view.report.run)).into());
        };
        if format == Format::People {
            return print_run(key, &view, run).map(|()| Exit::Success);
        }
    }
    match format {
        Format::Json => {
            let JobView { report, ports, gpus, usage, runs, .. } = &view;
            output::json(&Shown { report, ports, gpus, usage, runs })?;
        }
        Format::People => print(key, &view)?,
    }
    Ok(Exit::Success)
}

/// The report, where its tasks listen, and its runs with their attempts.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    report: &'a JobReport,
    ports: &'a [PortView],
    gpus: &'a [GpuReport],
    usage: &'a [TaskUsage],
    runs: &'a [RunView],
}

/// One run, with all its attempts.
fn print_run(key: &JobKey, view: &JobView, run: &RunView) -> anyhow::Result<()> {
    let verdict = run.verdict.as_deref().map_or_else(|| "not over yet".to_owned(), output::plain);
    output::line(&format!("{key}: run {} – {verdict}", run.run))?;
    for attempt in &run.attempts {
        let verdict = attempt.verdict.as_deref().map_or_else(|| "not over yet".to_owned(), output::plain);
        output::line(&format!("\nattempt {}, {} – {verdict}", attempt.attempt, attempt.started))?;
        let is_newest = (run.run, attempt.attempt) == (view.report.run, view.report.attempt);
        let usage = if is_newest { view.usage.as_slice() } else { &[] };
        output::table(&TASK_HEADS, &tasks(&attempt.tasks, usage))?;
    }
    Ok(())
}

/// What came before the newest attempt.
fn print_earlier(report: &JobReport, runs: &[RunView]) -> anyhow::Result<()> {
    let newest = |run: u32, attempt: u32| (run, attempt) == (report.run, report.attempt);
    let attempts = runs.iter().flat_map(|run| run.attempts.iter().map(move |attempt| (run.run, attempt)));
    let rows: Vec<_> = attempts
        .filter(|(run, attempt)| !newest(*run, attempt.attempt))
        .map(|(run, attempt)| {
            let verdict = attempt.verdict.clone().unwrap_or_default();
            vec![run.to_string(), attempt.attempt.to_string(), attempt.started.clone(), verdict]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let from = rows.len().saturating_sub(EARLIER);
    output::table(&["RUN", "ATTEMPT", "STARTED", "HOW IT ENDED"], rows.get(from..).unwrap_or_default())
}

/// What a task uses while it runs, and the most memory that one which has ended had.
const TASK_HEADS: [&str; 5] = ["TASK", "PHASE", "CPU", "MEMORY", "HOW IT ENDED"];

fn print(key: &JobKey, view: &JobView) -> anyhow::Result<()> {
    let report = &view.report;
    output::line(&format!("{key}: {} – {}", output::state(report.state), output::plain(&report.reason)))?;
    if !report.description.is_empty() {
        output::line(&format!("  {}", output::plain(&report.description)))?;
    }
    if !report.sweep.is_empty() {
        let values: Vec<String> = report.sweep.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        output::line(&format!("  {}", output::plain(&values.join(", "))))?;
    }
    for (label, value) in facts(report) {
        output::line(&format!("  {label:<9} {value}"))?;
    }
    if let Some(limit) = &report.limit {
        output::line(&format!("  {:<9} {limit}", "limit"))?;
    }
    for (label, value) in report.waiting.iter().flat_map(WaitReport::facts) {
        output::line(&format!("  {label:<9} {}", output::plain(&value)))?;
    }
    for sending in &report.sending {
        output::line(&format!("  {:<9} {}", "sending", output::plain(&sending.to_string())))?;
    }
    if !report.tasks.is_empty() {
        output::line("")?;
        output::table(&TASK_HEADS, &tasks(&report.tasks, &view.usage))?;
    }
    if !view.ports.is_empty() {
        output::line("")?;
        let rows: Vec<_> = view.ports.iter().map(port).collect();
        output::table(&["TASK", "PORT", "INSIDE", "AT"], &rows)?;
    }
    if !view.gpus.is_empty() {
        output::line("")?;
        let rows: Vec<_> = view.gpus.iter().map(gpu).collect();
        output::table(&["TASK", "GPU", "USE", "MEMORY", "POWER"], &rows)?;
    }
    print_earlier(report, &view.runs)?;
    let found: Vec<String> = report.diagnostics.iter().map(ToString::to_string).collect();
    // The only one is the reason, which is said above.
    for diagnostic in found.iter().filter(|one| found.len() > 1 || **one != report.reason) {
        output::line("")?;
        output::line(diagnostic)?;
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

fn gpu(gpu: &GpuReport) -> Vec<String> {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        gpu.task.clone(),
        gpu.gpu.clone(),
        or_none(gpu.utilisation.map(|percent| format!("{percent}%"))),
        or_none(gpu.memory.map(|bytes| Bytes(bytes).roughly())),
        or_none(gpu.power.map(|milliwatts| format!("{}W", milliwatts / 1000))),
    ]
}

fn tasks(tasks: &[TaskReport], usage: &[TaskUsage]) -> Vec<Vec<String>> {
    tasks.iter().map(|task| row(task, usage.iter().find(|usage| usage.task == task.task))).collect()
}

fn row(task: &TaskReport, usage: Option<&TaskUsage>) -> Vec<String> {
    let cpu = usage.and_then(|usage| usage.cpu_percent).map(|percent| format!("{percent:.0}%"));
    let now = usage.and_then(|usage| usage.memory).map(|bytes| Bytes(bytes).roughly());
    let most = task.memory_peak.map(|peak| Bytes(peak).roughly());
    let memory = now.or(most).unwrap_or_default();
    vec![task.task.clone(), task.phase.clone(), cpu.unwrap_or_default(), memory, task.reason.clone()]
}
