//! `trainyard workspace`

use anyhow::anyhow;

use super::Exit;
use super::output::{self, Format};
use crate::api::client::Client;
use crate::api::storage::{PartView, WorkspaceView};
use crate::ids::{Bytes, WorkspaceName};

/// So many of the largest things are named of each part.
const LARGEST: usize = 5;

pub(super) async fn run(client: &Client, name: Option<&WorkspaceName>, format: Format) -> anyhow::Result<Exit> {
    match name {
        Some(name) => one(client, name, format).await?,
        None => all(client, format).await?,
    }
    Ok(Exit::Success)
}

async fn all(client: &Client, format: Format) -> anyhow::Result<()> {
    let workspaces = client.workspaces().await?;
    if format == Format::Json {
        return output::json(&workspaces);
    }
    if workspaces.is_empty() {
        return Err(anyhow!("there is no workspace that you may enter"));
    }
    print(&workspaces)
}

async fn one(client: &Client, name: &WorkspaceName, format: Format) -> anyhow::Result<()> {
    let detail = client.workspace(name).await?;
    if format == Format::Json {
        return output::json(&detail);
    }
    print(std::slice::from_ref(&detail.workspace))?;
    output::line("")?;
    let rows: Vec<_> = detail.parts.iter().flat_map(part).collect();
    output::table(&["PART", "SIZE", "LARGEST"], &rows)
}

fn print(workspaces: &[WorkspaceView]) -> anyhow::Result<()> {
    let rows: Vec<_> = workspaces.iter().map(row).collect();
    output::table(&["WORKSPACE", "USED", "QUOTA", "USE%", "HELD BY", "RUNNING", "WAITING"], &rows)?;
    let noted = workspaces.iter().filter_map(|view| Some((&view.storage.workspace, view.storage.note.as_ref()?)));
    for (workspace, note) in noted {
        output::line(&format!("{workspace}: {note}"))?;
    }
    Ok(())
}

fn row(view: &WorkspaceView) -> Vec<String> {
    let storage = &view.storage;
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).roughly());
    let part = storage.used.zip(storage.quota).map(|(used, quota)| used.saturating_mul(100).div_ceil(quota.max(1)));
    vec![
        storage.workspace.to_string(),
        size(storage.used),
        size(storage.quota),
        part.map_or("-".to_owned(), |part| format!("{part}%")),
        match storage.held.as_deref() {
            Some("counted") => "Trainyard".to_owned(),
            Some(kernel) => kernel.to_owned(),
            None => "-".to_owned(),
        },
        view.running.to_string(),
        view.waiting.to_string(),
    ]
}

fn part(part: &PartView) -> Vec<Vec<String>> {
    let named = part.entries.iter().take(LARGEST).filter(|entry| entry.bytes > 0);
    let largest: Vec<_> = named.map(|entry| format!("{} {}", entry.name, Bytes(entry.bytes).roughly())).collect();
    vec![vec![part.part.clone(), Bytes(part.bytes).roughly(), crate::sys::terminal::escape(&largest.join(", "))]]
}
