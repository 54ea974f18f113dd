//! `trainyard events [JOB]`

use super::Exit;
use super::output::{self, Format};
use crate::api::client::{Client, Follow};
use crate::api::wire::HappeningView;
use crate::ids::JobKey;

/// Of one job: the last `lines`, or all.
pub(super) async fn run(client: &Client, key: &JobKey, lines: Option<usize>, format: Format) -> anyhow::Result<Exit> {
    let events = client.job(key).await?.events;
    let skipped = events.len().saturating_sub(lines.unwrap_or(usize::MAX));
    for event in events.into_iter().skip(skipped) {
        match format {
            Format::Json => output::json(&event)?,
            Format::People => {
                output::line(&format!(
                    "{}  run {}  {:<9}  {}",
                    event.at,
                    event.run,
                    event.state,
                    output::plain(&event.message)
                ))?;
            }
        }
    }
    Ok(Exit::Success)
}

/// Of all jobs.
pub(super) async fn run_all(client: &Client, after: u64, follow: Follow, format: Format) -> anyhow::Result<Exit> {
    let mut failed = None;
    let told = client.events(after, follow, |event| {
        failed = print(&event, format).err();
        failed.is_none()
    });
    told.await?;
    failed.map_or(Ok(Exit::Success), Err)
}

fn print(happened: &HappeningView, format: Format) -> anyhow::Result<()> {
    let HappeningView { workspace, job, event, .. } = happened;
    match format {
        Format::Json => output::json(happened),
        Format::People => output::line(&format!(
            "{}  {workspace}/{job}  run {}  {:<9}  {}",
            event.at,
            event.run,
            event.state,
            output::plain(&event.message)
        )),
    }
}
