//! Names that a shell completes, from the daemon as it runs: `source <(COMPLETE=bash trainyard)`, also zsh and fish.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;

use super::ps::name;
use crate::api::client::Client;
use crate::api::wire::JobQuery;
use crate::config::Paths;

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
    let socket = Paths::new(&root()).ok()?.api_socket();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let client = Client::new(&socket);
    let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, client.jobs(&JobQuery::default())).await });
    let jobs = asked.ok()?.ok()?.jobs;
    Some(jobs.iter().map(|job| (name(job), job.state.name().to_owned())).collect())
}

/// What `--root` says in the line that is being typed: it is not parsed yet.
fn root() -> PathBuf {
    let said = said_root(std::env::args_os().skip_while(|word| word != "--").skip(1));
    said.or_else(|| std::env::var_os("TRAINYARD_ROOT")).map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// `--root DIR`, `--root=DIR`, or the latter in the three words that bash makes of it.
fn said_root(mut words: impl Iterator<Item = OsString>) -> Option<OsString> {
    let word = words.find(|word| word.as_encoded_bytes().starts_with(b"--root"))?;
    match word.as_encoded_bytes().strip_prefix(b"--root=") {
        Some(directory) => Some(OsStr::from_bytes(directory).to_owned()),
        None => words.find(|word| word != "="),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_however_it_is_typed() {
        let said = |line: &str| said_root(line.split(' ').map(OsString::from));
        for line in ["trainyard --root /r stop", "trainyard stop --root=/r", "trainyard --root = /r stop"] {
            assert_eq!(said(line), Some(OsString::from("/r")), "{line}");
        }
        assert_eq!(said("trainyard stop"), None);
    }
}
