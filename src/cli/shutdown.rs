//! `trainyard shutdown`: everything stops, nothing is left behind.

use std::fs::File;
use std::io;

use anyhow::{Context, anyhow};

use super::Exit;
use super::change;
use super::confirm::{Bulk, some_of};
use super::output::{self, Format};
use crate::api::client::Client;
use crate::config::Paths;
use crate::sys::lock::wait_until_free;

pub(super) async fn run(client: &Client, paths: &Paths, bulk: Bulk, format: Format) -> anyhow::Result<Exit> {
    if bulk == Bulk::Say {
        change::say(&change::open_jobs(client).await?, "would be stopped", format)?;
        return Ok(Exit::Success);
    }
    if !agreed(client, bulk).await? {
        output::error("nothing was stopped");
        return Ok(Exit::Failure);
    }
    // Opened before, so that the right lock is waited for.
    let lock = File::open(paths.daemon_lock()).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => anyhow!("only root may end the daemon: use sudo"),
        _ => anyhow::Error::new(error).context("cannot see the daemon's lock"),
    })?;
    client.shutdown().await?;
    wait_until_free(lock).context("cannot wait for the daemon")?;
    match format {
        Format::Json => output::json(&serde_json::json!({ "stopped": true }))?,
        Format::People => output::line("Trainyard has stopped: no task, mount or network is left")?,
    }
    Ok(Exit::Success)
}

/// A daemon in which nothing runs is nobody's work.
async fn agreed(client: &Client, bulk: Bulk) -> anyhow::Result<bool> {
    if !bulk.asks() {
        return Ok(true);
    }
    let open = change::open_jobs(client).await?;
    let names: Vec<String> = open.iter().map(ToString::to_string).collect();
    let question =
        format!("Stop {} job(s), {}, and take mount, networks and the daemon away?", open.len(), some_of(&names));
    Ok(open.is_empty() || bulk.agreed(&question)?)
}
