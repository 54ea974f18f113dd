//! What the disk shows of runs, whatever the state says: numbers that are taken, and how runs have ended.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::restored::Left;
use crate::config::Paths;
use crate::ids::JobKey;
use crate::status::{State, StopCause, Verdict};
use crate::store::Batch;
use crate::sys::file::read_limited;

/// Longest `status` of a run that is read, bytes.
const STATUS_MAX: u64 = 4 << 20;

pub(super) fn left_in(paths: &Paths, state: &Batch) -> io::Result<Left> {
    let mut left = Left { attempt: highest(&paths.attempts(), "a")?, ..Left::default() };
    for workspace in entries(&paths.workspaces())? {
        for place in ["jobs", "models"] {
            for job in entries(&workspace.join(place))? {
                let names = [&workspace, &job].map(|path| path.file_name().and_then(|name| name.to_str()));
                let [Some(workspace), Some(name)] = names else { continue };
                let Ok(key) = format!("{workspace}/{name}").parse::<JobKey>() else { continue };
                let runs = if place == "jobs" { job.join("runs") } else { job.clone() };
                let run = u32::try_from(highest(&runs, "")?).unwrap_or(u32::MAX);
                let attempts = runs.join(run.to_string()).join("attempts");
                let attempt = u32::try_from(highest(&attempts, "")?).unwrap_or(u32::MAX);
                let known = left.jobs.entry(key).or_default();
                if run >= known.run {
                    (known.run, known.attempt) = (run, attempt.max(known.attempt));
                }
                if place == "jobs" {
                    known.events = lines(&job.join("events"))?;
                }
            }
        }
    }
    left.jobs.retain(|_, job| job.run > 0 || job.events > 0);
    find_ends(paths, state, &mut left);
    Ok(left)
}

/// Of the runs whose end the state does not know: those that were not over, and the newest.
fn find_ends(paths: &Paths, state: &Batch, left: &mut Left) {
    let open =
        state.runs.iter().filter(|(_, run)| run.ended.is_none()).map(|((key, number), _)| (key.clone(), *number));
    let newest = left.jobs.iter().map(|(key, job)| (key.clone(), job.run));
    let ends = open.chain(newest).filter(|run| state.runs.get(run).is_none_or(|run| run.ended.is_none()));
    left.ends = ends.filter_map(|(key, run)| Some(((key.clone(), run), end_of(paths, &key, run)?))).collect();
}

/// A model is published only when its run has succeeded, and stays; else the run's `status` tells, if it is there and was final.
fn end_of(paths: &Paths, key: &JobKey, run: u32) -> Option<Verdict> {
    let is_published = paths.model(key, run).symlink_metadata().is_ok_and(|model| model.is_dir());
    if is_published {
        return Some(Verdict::Succeeded { tolerated: 0 });
    }
    let (_, bytes) = read_limited(&paths.run(key, run).join("status"), STATUS_MAX).ok()?;
    end_in(std::str::from_utf8(&bytes).ok()?)
}

fn end_in(status: &str) -> Option<Verdict> {
    #[derive(Deserialize)]
    struct Status {
        state: State,
        reason: String,
    }
    let Status { state, reason } = toml::from_str(status).ok()?;
    match state {
        State::Succeeded => Some(Verdict::Succeeded { tolerated: 0 }),
        State::Failed => Some(Verdict::Failed { reason }),
        State::Stopped => Some(stopped(reason)),
        _ => None,
    }
}

/// The cause by its words, where these are enough for it.
fn stopped(reason: String) -> Verdict {
    let known = [StopCause::File, StopCause::FileRemoved, StopCause::Replaced, StopCause::Shutdown];
    if let Some(cause) = known.into_iter().find(|cause| cause.to_string() == reason) {
        return Verdict::Stopped { cause };
    }
    match reason.strip_prefix("stopped by ") {
        Some(name) => Verdict::Stopped { cause: StopCause::User { name: name.to_owned() } },
        None => Verdict::Failed { reason },
    }
}

/// What lies in a directory; nothing where there is none.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// How many there are in the file, a last one without its end left out.
fn lines(path: &Path) -> io::Result<u64> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let (mut lines, mut part) = (0, vec![0; 1 << 16]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(lines),
            count => lines += part.iter().take(count).filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

/// The highest of the numbers that entries are called by, behind `prefix`; 0 where there is none.
fn highest(directory: &Path, prefix: &str) -> io::Result<u64> {
    let names = entries(directory)?.into_iter();
    let numbers = names.filter_map(|path| path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok());
    Ok(numbers.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_an_end_only_when_it_is_one() {
        let end = |state: &str, reason: &str| end_in(&format!("state = \"{state}\"\nreason = {reason:?}\nrun = 2\n"));
        assert_eq!(end("running", "main-0 runs"), None);
        assert_eq!(end("waiting", "exit code 1; tried again"), None);
        assert_eq!(end("succeeded", "all"), Some(Verdict::Succeeded { tolerated: 0 }));
        assert_eq!(end("failed", "exit code 3"), Some(Verdict::Failed { reason: "exit code 3".to_owned() }));
        for cause in [StopCause::FileRemoved, StopCause::Shutdown, StopCause::User { name: "ada".to_owned() }] {
            assert_eq!(end("stopped", &cause.to_string()), Some(Verdict::Stopped { cause }));
        }
        let timed_out = StopCause::TimedOut { limit_ms: 1000 }.to_string();
        assert_eq!(end("stopped", &timed_out), Some(Verdict::Failed { reason: timed_out.clone() }));
        assert_eq!((end_in("state = 1"), end_in("torn"), end("better", "")), (None, None, None));
    }
}
