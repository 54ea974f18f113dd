//! `trainyard workspace`

use anyhow::anyhow;

use super::Exit;
use super::listing::{Form, Listing, whole};
use super::output;
use crate::api::client::Client;
use crate::api::storage::{PartView, WorkspaceView};
use crate::ids::{Bytes, HomeName};

/// So many of the largest things are named of each part.
const LARGEST: usize = 5;

pub(super) async fn run(client: &Client, name: Option<&HomeName>, form: Form) -> anyhow::Result<Exit> {
    match name {
        Some(name) => one(client, name, form).await?,
        None => all(client, form).await?,
    }
    Ok(Exit::Success)
}

async fn all(client: &Client, form: Form) -> anyhow::Result<()> {
    let workspaces = client.workspaces().await?;
    if form == Form::Json {
        return output::json(&workspaces);
    }
    if workspaces.is_empty() {
        return Err(anyhow!(
            "there is no workspace that you may enter; an administrator makes one, and its directory in jobs.d says by its group who may"
        ));
    }
    print(&workspaces, form)
}

async fn one(client: &Client, name: &HomeName, form: Form) -> anyhow::Result<()> {
    let detail = client.workspace(name).await?;
    if form == Form::Json {
        return output::json(&detail);
    }
    print(std::slice::from_ref(&detail.workspace), form)?;
    if matches!(form, Form::Names | Form::Csv) {
        return Ok(());
    }
    output::line("")?;
    let rows: Vec<_> = detail.parts.iter().flat_map(part).collect();
    output::table(&["PART", "SIZE", "LARGEST"], &rows)?;
    let (storage, of_parts) = (&detail.workspace.storage, detail.parts.iter().map(|part| part.bytes).sum::<u64>());
    match storage.used.filter(|_| storage.held.as_deref() == Some("btrfs")) {
        Some(used) if used < of_parts => output::line(SHARED_BLOCKS),
        _ => Ok(()),
    }
}

const SHARED_BLOCKS: &str = "\nThe parts come to more than USED: blocks that files share (copies on btrfs) lie on the disk once, and count in each of them.";

fn print(workspaces: &[WorkspaceView], form: Form) -> anyhow::Result<()> {
    let listing = Listing {
        heads: &["WORKSPACE", "USED", "QUOTA", "USE%", "HELD BY", "RUNNING", "WAITING"],
        wide: &[],
        cells: row,
        name: |view| view.storage.workspace.to_string(),
        json: whole,
        nothing: "no workspaces",
    };
    listing.print(workspaces, form)?;
    if matches!(form, Form::Names | Form::Csv) {
        return Ok(());
    }
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
