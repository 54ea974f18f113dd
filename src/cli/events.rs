//! `trainyard events JOB`

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::ids::JobKey;

pub(super) async fn run(client: &Client, key: &JobKey, format: Format) -> anyhow::Result<Exit> {
    for event in client.job(key).await?.events {
        match format {
            Format::Json => output::json(&event)?,
            Format::People => {
                output::line(&format!("{}  run {}  {:<9}  {}", event.at, event.run, event.state, event.message))?;
            }
        }
    }
    Ok(Exit::Success)
}
