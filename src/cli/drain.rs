//! `trainyard drain`: nothing starts any more; what runs goes on.

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::report::DrainReport;

#[derive(Debug, Clone, Copy)]
pub(super) enum Drain {
    Begin,
    /// And wait until nothing runs any more.
    Wait,
    Undo,
    /// Nothing is changed.
    Look,
}

pub(super) async fn run(client: &Client, drain: Drain, format: Format) -> anyhow::Result<Exit> {
    let report = match drain {
        Drain::Begin => client.drain().await?,
        Drain::Undo => client.undo_drain().await?,
        Drain::Look => client.drain_report().await?,
        Drain::Wait => {
            let begun = client.drain().await?;
            if format == Format::People && !begun.running.is_empty() {
                output::aside(&sentence(&begun));
            }
            client.drained().await?
        }
    };
    match format {
        Format::Json => output::json(&report)?,
        Format::People if matches!(drain, Drain::Look) => output::line(&would(&report))?,
        Format::People => output::line(&sentence(&report))?,
    }
    // Somebody else has let jobs start again meanwhile.
    let is_done = !matches!(drain, Drain::Wait) || report.order.is_some();
    Ok(if is_done { Exit::Success } else { Exit::Failure })
}

/// What a drain would do now.
fn would(report: &DrainReport) -> String {
    let runs = match report.running.as_slice() {
        [] => "nothing runs".to_owned(),
        running => format!("{} would run on: {}", running.len(), running.join(", ")),
    };
    match &report.order {
        Some(order) => {
            format!("drained already, by {} since {}: {runs}; {} waiting", order.by, order.since, report.waiting)
        }
        None => format!("would start nothing any more: {runs}; {} waiting would wait on", report.waiting),
    }
}

fn sentence(report: &DrainReport) -> String {
    if report.order.is_none() {
        return format!("jobs start; {} running, {} waiting", report.running.len(), report.waiting);
    }
    let runs = match report.running.as_slice() {
        [] => "nothing runs".to_owned(),
        [one] => format!("1 job runs on: {one}"),
        several => format!("{} jobs run on: {}", several.len(), several.join(", ")),
    };
    format!(
        "drained: nothing starts until `trainyard drain --undo`, or until the machine restarts; {runs}; {} waiting",
        report.waiting
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::DrainOrder;

    #[test]
    fn what_still_runs_is_named() {
        let order = Some(DrainOrder { by: "root".to_owned(), since: "now".to_owned() });
        let report = |order, running: &[&str]| DrainReport {
            order,
            running: running.iter().map(|job| (*job).to_owned()).collect(),
            waiting: 3,
        };
        for (report, said) in [
            (report(None, &["default/a"]), "jobs start; 1 running, 3 waiting"),
            (report(order.clone(), &[]), "restarts; nothing runs; 3 waiting"),
            (report(order.clone(), &["default/a"]), "1 job runs on: default/a; 3 waiting"),
            (report(order, &["default/a", "v/b"]), "2 jobs run on: default/a, v/b; 3 waiting"),
        ] {
            assert!(sentence(&report).contains(said), "{}", sentence(&report));
        }
        let order = DrainOrder { by: "root".to_owned(), since: "now".to_owned() };
        assert!(would(&report(Some(order), &[])).starts_with("drained already, by root since now: nothing runs"));
        assert!(would(&report(None, &["default/a"])).contains("1 would run on: default/a; 3 waiting would wait on"));
    }
}
