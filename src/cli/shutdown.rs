//! `trainyard shutdown`: everything stops, nothing is left behind.

use std::fs::File;

use anyhow::Context;

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::config::Paths;
use crate::sys::lock::wait_until_free;

pub(super) async fn run(client: &Client, paths: &Paths, format: Format) -> anyhow::Result<Exit> {
    // Opened before, so that the right lock is waited for.
    let lock = File::open(paths.daemon_lock()).context("cannot see the daemon's lock; are you root?")?;
    client.shutdown().await?;
    wait_until_free(lock).context("cannot wait for the daemon")?;
    match format {
        Format::Json => output::json(&serde_json::json!({ "stopped": true }))?,
        Format::People => output::line("Trainyard has stopped: no task, mount or network is left")?,
    }
    Ok(Exit::Success)
}
