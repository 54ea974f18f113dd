//! Names that a shell completes, from the daemon as it runs: `source <(COMPLETE=bash trainyard)`, also zsh and fish.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;

use super::ps::name;
use crate::api::client::Client;
use crate::api::wire::JobQuery;
use crate::config::Config;

/// A shell must not hang at a daemon that does.
const PATIENCE: Duration = Duration::from_secs(2);

/// Jobs that begin with what is typed, with what each is up to. None where nobody answers: a shell shows no errors.
pub fn jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let list = ask().unwrap_or_default().into_iter();
    let candidates = list.filter(|(job, _)| job.starts_with(typed));
    candidates.map(|(job, state)| CompletionCandidate::new(job).help(Some(state.into()))).collect()
}

/// As [`jobs`], each with the colon that a path in it follows.
pub fn places(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let list = ask().unwrap_or_default().into_iter();
    let candidates = list.filter(|(job, _)| job.starts_with(typed));
    candidates.map(|(job, state)| CompletionCandidate::new(format!("{job}:")).help(Some(state.into()))).collect()
}

fn ask() -> Option<Vec<(String, String)>> {
    let config = Config::load(&root()).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let client = Client::new(&config.paths.api_socket());
    let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, client.jobs(&JobQuery::default())).await });
    let jobs = asked.ok()?.ok()?.jobs;
    Some(jobs.iter().map(|job| (name(job), job.state.name().to_owned())).collect())
}

/// What `--root` says in the line that is being typed: it is not parsed yet.
fn root() -> PathBuf {
    let mut words = std::env::args_os().skip_while(|word| word != "--root").skip(1);
    let said = words.next().or_else(|| std::env::var_os("TRAINYARD_ROOT"));
    said.map_or_else(|| PathBuf::from("/"), PathBuf::from)
}
