//! Whether what is mounted somewhere answers. A process of its own asks: whose question has been taken and is not answered the kernel
//! does not let go, killed or not, with all that it has open.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::process::{PidFd, ProcessEnd, file_in_memory, start_to_write};

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All that was asked has answered.
    All,
    /// This has not, in time.
    Awaited { place: String },
    /// This has, by an error.
    Refused { place: String, error: String },
}

impl Answer {
    /// What is wrong, and what to do, where the process `server` serves what was asked for `patience`.
    pub fn trouble(&self, patience: Duration, server: Option<i32>) -> Option<(String, String)> {
        let pid = server.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        match self {
            Self::All => None,
            Self::Refused { place, error } => {
                Some((format!("{place} does not answer: {error}"), "see what its disk and the journal tell".to_owned()))
            }
            Self::Awaited { place } if server.is_some_and(is_stopped) => Some((
                format!("{place} has not answered for {} s: the mount process {pid} is stopped", patience.as_secs()),
                format!("`kill -CONT {pid}` has it go on"),
            )),
            Self::Awaited { place } => Some((
                format!(
                    "{place} has not answered for {} s: its disk hangs, or the mount process {pid} does",
                    patience.as_secs()
                ),
                format!(
                    "see whether the disk answers; if it does, `kill -9 {pid}` has the daemon mount anew, and what is open there is lost"
                ),
            )),
        }
    }
}

/// Asks the mount of a root, one question at a time. A process that does not end stays as the only one: until it has, nothing answers.
#[derive(Debug)]
pub struct Asker {
    arguments: Vec<OsString>,
    left: Option<(PidFd, String)>,
}

/// How long one that is killed may take to end, ms: who waits for it asks for something that was not taken yet.
const KILLED_WITHIN_MS: u16 = 200;
/// Before what could not be asked.
const ERROR: char = '\t';

impl Asker {
    pub fn of(root: &Path) -> Self {
        Self { arguments: ["mount".into(), "--answers".into(), "--root".into(), root.into()].into(), left: None }
    }

    /// By this program, which [`tell`]s. Blocks for so long at most, and a moment.
    pub fn ask(&mut self, patience: Duration) -> io::Result<Answer> {
        if let Some((process, place)) = self.left.take_if(|(process, _)| !matches!(process.has_ended(0), Ok(true))) {
            let answer = Answer::Awaited { place: place.clone() };
            self.left = Some((process, place));
            return Ok(answer);
        }
        self.left.take().map(|(process, _)| process.reap()).transpose()?;
        let mut told = file_in_memory("answers")?;
        let process = start_to_write(self.arguments.clone(), told.try_clone()?)?;
        let in_time = process.has_ended(u16::try_from(patience.as_millis()).unwrap_or(u16::MAX))?;
        let end = if in_time { process.reap()? } else { None };
        let (place, error) = last(&mut told)?;
        match (end, error) {
            (Some(ProcessEnd::Exited(0)), _) => Ok(Answer::All),
            (Some(_), Some(error)) => Ok(Answer::Refused { place, error }),
            (Some(end), None) => Err(io::Error::other(format!("what asks the mount has ended with {end:?}"))),
            (None, _) => {
                self.give_up(process, place.clone())?;
                Ok(Answer::Awaited { place })
            }
        }
    }

    fn give_up(&mut self, process: PidFd, place: String) -> io::Result<()> {
        process.signal(Signal::SIGKILL)?;
        match process.has_ended(KILLED_WITHIN_MS)? {
            true => drop(process.reap()?),
            false => self.left = Some((process, place)),
        }
        Ok(())
    }
}

/// What was asked last, and its error.
fn last(told: &mut File) -> io::Result<(String, Option<String>)> {
    let mut bytes = Vec::new();
    told.rewind()?;
    told.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let place = text.lines().rfind(|line| !line.starts_with(ERROR)).unwrap_or_default().to_owned();
    let error = text.lines().next_back().and_then(|line| line.strip_prefix(ERROR)).map(str::to_owned);
    Ok((place, error))
}

/// Asks the mount at `root`, each directory in it and all that lies in those, in this process, and writes to `told` which is asked
/// before it is: who reads that knows what hangs.
pub fn tell(root: &Path, told: &mut impl Write) -> io::Result<()> {
    let parts = asked(told, root, |root| {
        rustix::fs::statfs(root)?;
        entries(root)
    })?;
    for part in parts {
        for place in asked(told, &part, entries)? {
            asked(told, &place, |place| {
                // Also of one of which the kernel knows.
                statx(CWD, place, AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
                Ok(Vec::new())
            })?;
        }
    }
    Ok(())
}

/// What has gone meanwhile has answered.
fn asked(
    told: &mut impl Write,
    place: &Path,
    ask: impl Fn(&Path) -> io::Result<Vec<PathBuf>>,
) -> io::Result<Vec<PathBuf>> {
    writeln!(told, "{}", place.display().to_string().replace(char::is_control, "?"))?;
    match ask(place) {
        Ok(found) => Ok(found),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => {
            writeln!(told, "{ERROR}{error}")?;
            Err(error)
        }
    }
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

/// Whether a signal has stopped the process, so that it answers nothing until another one has it go on.
fn is_stopped(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_told_before_and_what_refuses_with_its_error() {
        let root = tempfile::tempdir().unwrap();
        for place in ["a/datasets", "a/code", "b"] {
            std::fs::create_dir_all(root.path().join(place)).unwrap();
        }
        std::fs::write(root.path().join("file"), "").unwrap();
        let mut told = Vec::new();
        tell(root.path(), &mut told).unwrap();
        let text = String::from_utf8(told).unwrap();
        let wanted = ["", "/a", "/a/code", "/a/datasets", "/b", "/file"];
        assert_eq!(text.lines().collect::<Vec<_>>(), wanted.map(|place| format!("{}{place}", root.path().display())));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(format!("{text}{ERROR}it is broken\n").as_bytes()).unwrap();
        let place = format!("{}/file", root.path().display());
        assert_eq!(last(&mut file).unwrap(), (place, Some("it is broken".to_owned())));
    }
}
