//! Writes what the mount shows of jobs: `status`, `status.json`, `spec.toml`, `error`, `events`, `latest`, and the
//! links below `by-state/` and `by-user/`.
//!
//! All of it is derived from the store and written whole; what a crash left old is written again at the next start.
//! A thread of its own takes publications in order and skips what a later one overtakes, so a burst of changes costs
//! one write a job.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::assets;
use crate::config::Paths;
use crate::ids::{AssetName, JobKey};
use crate::report::{Change, Gone, JobReport, Publication};
use crate::status::State;
use crate::store::record::EventRecord;
use crate::sys::file::{
    Durability, create_dir, has_no_room, ignore_missing, optional, remove_if_there, remove_tree, replace_symlink,
    write_whole,
};

/// A job and what becomes of its files.
pub type Changed = (JobKey, Change);

/// Hands publications to the writing thread.
#[derive(Debug, Clone)]
pub struct Publisher(Sender<Vec<Changed>>);

impl Publisher {
    /// Starts the writing thread; it ends when the last publisher is dropped.
    pub fn start(paths: Paths) -> io::Result<(Self, std::thread::JoinHandle<()>)> {
        let (sender, receiver) = channel();
        let mut writer = Writer { paths, faces: BTreeMap::new(), unwritten: BTreeMap::new() };
        let thread = std::thread::Builder::new().name("publish".to_owned()).spawn(move || writer.run(&receiver))?;
        Ok((Self(sender), thread))
    }

    pub fn publish(&self, changes: Vec<Changed>) {
        // The thread ends only with us.
        let _ = self.0.send(changes);
    }
}

/// Nobody tells when a disk has room again.
const RETRY_EVERY: Duration = Duration::from_secs(2);

struct Writer {
    paths: Paths,
    /// What is known to be on disk.
    faces: BTreeMap<JobKey, Face>,
    /// What waits for room on the disk.
    unwritten: BTreeMap<JobKey, Wanted>,
}

#[derive(Debug, Default)]
struct Face {
    state: Option<State>,
    user: Option<String>,
    /// The number of the next event that goes into the file.
    events: Option<u64>,
}

impl Writer {
    fn run(&mut self, receiver: &Receiver<Vec<Changed>>) {
        loop {
            let first = match self.unwritten.is_empty() {
                true => receiver.recv().map_err(RecvTimeoutError::from),
                false => receiver.recv_timeout(RETRY_EVERY),
            };
            let mut latest = std::mem::take(&mut self.unwritten);
            let waited = !latest.is_empty();
            match first {
                Ok(first) => merge(&mut latest, first),
                Err(RecvTimeoutError::Timeout) => {}
                // The next start publishes everything.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(more) = receiver.try_recv() {
                merge(&mut latest, more);
            }
            self.write_all(latest);
            match (waited, self.unwritten.is_empty()) {
                (false, false) => tracing::warn!(
                    "no room on the disk to publish the status of jobs; it is tried again until there is"
                ),
                (true, true) => tracing::info!("the status of all jobs is published again"),
                _ => {}
            }
        }
    }

    fn write_all(&mut self, latest: BTreeMap<JobKey, Wanted>) {
        for (key, wanted) in latest {
            let removed = wanted.removed.as_ref().map_or(Ok(()), |gone| self.remove(&key, gone));
            let face = wanted.published.as_ref();
            let Err(error) = removed.and_then(|()| face.map_or(Ok(()), |face| self.write(&key, face))) else {
                continue;
            };
            if has_no_room(&error) {
                // How much of the events was written is seen when they are looked at again.
                self.faces.remove(&key);
                self.unwritten.insert(key, wanted);
            } else {
                tracing::warn!(job = %key, %error, "cannot publish a job's status; the next change tries again");
            }
        }
    }

    fn write(&mut self, key: &JobKey, publication: &Publication) -> io::Result<()> {
        let job = self.paths.job(key);
        if !job.is_dir() {
            assets::make_home(&self.paths, &key.workspace)?;
            create_dir(&job, 0o755)?;
        }
        let report = &publication.report;
        write_if_new(&job.join("status"), report.toml().as_bytes(), 0o644)?;
        let mut json = serde_json::to_vec_pretty(report).map_err(io::Error::other)?;
        json.push(b'\n');
        write_if_new(&job.join("status.json"), &json, 0o644)?;
        write_error(&job, publication)?;
        write_source(&job, publication)?;
        write_awaited(&job, publication)?;
        self.append_events(key, &job, publication)?;
        if report.run > 0 {
            let run = Path::new("runs").join(report.run.to_string());
            // Not before the run has a directory.
            if job.join(&run).is_dir() {
                replace_symlink(&run, &job.join("latest"))?;
                write_run(&job.join(&run), report)?;
            }
        }
        for old in &publication.retired {
            write_run(&job.join("runs").join(old.run.to_string()), old)?;
        }
        self.link_user(key, report.owner)?;
        self.link_state(key, report.state)
    }

    /// Moves the job's link to the directory of its owner.
    fn link_user(&mut self, key: &JobKey, uid: u32) -> io::Result<()> {
        let by_user = self.paths.workspace(&key.workspace).join("jobs/by-user");
        let (user, face) = (user_name(uid), self.faces.entry(key.clone()).or_default());
        if face.user.as_ref() == Some(&user) {
            return Ok(());
        }
        create_dir(&by_user.join(&user), 0o755)?;
        unlink_user(&by_user, key, Some(&user))?;
        replace_symlink(&Path::new("../..").join(key.job.as_str()), &by_user.join(&user).join(key.job.as_str()))?;
        face.user = Some(user);
        Ok(())
    }

    fn append_events(&mut self, key: &JobKey, job: &Path, publication: &Publication) -> io::Result<()> {
        let path = job.join("events");
        let face = self.faces.entry(key.clone()).or_default();
        let written = match face.events {
            Some(written) => written,
            None => publication.first_event + count_lines(&path)?,
        };
        let mut text = String::new();
        let mut next = written;
        for event in publication.events.iter().filter(|event| event.number >= written) {
            text.push_str(&event_line(event));
            next = event.number + 1;
        }
        if !text.is_empty() {
            let mut file = OpenOptions::new().create(true).append(true).mode(0o644).open(&path)?;
            file.write_all(text.as_bytes())?;
        }
        face.events = Some(next);
        Ok(())
    }

    /// Moves the job's link to the directory of its state.
    fn link_state(&mut self, key: &JobKey, state: State) -> io::Result<()> {
        let by_state = self.paths.workspace(&key.workspace).join("jobs/by-state");
        let face = self.faces.entry(key.clone()).or_default();
        if face.state == Some(state) {
            return Ok(());
        }
        for other in State::ALL.into_iter().filter(|other| *other != state) {
            let stale = face.state.is_none_or(|known| known == other);
            if stale {
                remove_if_there(&by_state.join(other.name()).join(key.job.as_str()))?;
            }
        }
        for each in State::ALL {
            create_dir(&by_state.join(each.name()), 0o755)?;
        }
        let target = Path::new("../..").join(key.job.as_str());
        replace_symlink(&target, &by_state.join(state.name()).join(key.job.as_str()))?;
        face.state = Some(state);
        Ok(())
    }

    /// Removes what was published of a job and of its runs, and what was set aside for it; what a job of the same name has
    /// since is left alone.
    fn remove(&mut self, key: &JobKey, gone: &Gone) -> io::Result<()> {
        self.faces.remove(key);
        let by_state = self.paths.workspace(&key.workspace).join("jobs/by-state");
        for state in State::ALL {
            remove_if_there(&by_state.join(state.name()).join(key.job.as_str()))?;
        }
        unlink_user(&self.paths.workspace(&key.workspace).join("jobs/by-user"), key, None)?;
        let job = self.paths.job(key);
        for name in ["status", "status.json", "spec.toml", "error", "events", "latest", assets::AWAITED] {
            remove_if_there(&job.join(name))?;
        }
        let runs = match fs::read_dir(job.join("runs")) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        for run in runs {
            // Beside the directory of a run lies which images and models it had.
            let name = run.file_name();
            let name = name.to_str().unwrap_or_default();
            let beside = name.strip_prefix('.').and_then(|name| name.split_once('.')).map(|(number, _)| number);
            let plain = beside.unwrap_or(name);
            let is_old = match assets::aside_begun(name) {
                // Also for a run that has never begun.
                Some((_, number)) => number <= gone.last_aside,
                None => plain.parse::<u32>().is_ok_and(|number| gone.runs.contains(&number)),
            };
            if is_old {
                remove_tree(&run.path())?;
            }
        }
        // Not empty when there is a newer run.
        let _ = fs::remove_dir(job.join("runs"));
        let _ = fs::remove_dir(&job);
        Ok(())
    }
}

/// As a directory can be called; the number where the machine knows no such name.
fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    let name = user.map(|user| user.name).filter(|name| name.parse::<AssetName>().is_ok());
    name.unwrap_or_else(|| uid.to_string())
}

/// Takes the job's link away from all users but `keep`, and directories that are empty with it.
fn unlink_user(by_user: &Path, key: &JobKey, keep: Option<&str>) -> io::Result<()> {
    for entry in optional(fs::read_dir(by_user))?.into_iter().flatten() {
        let entry = entry?;
        if entry.file_name().to_str() == keep {
            continue;
        }
        remove_if_there(&entry.path().join(key.job.as_str()))?;
        // Not empty while the user has other jobs.
        let _ = fs::remove_dir(entry.path());
    }
    Ok(())
}

/// What is still to be done for a job: a removal, then what came after it.
#[derive(Default)]
struct Wanted {
    removed: Option<Gone>,
    published: Option<Box<Publication>>,
}

/// Later publications win, but no event and no last word of a run is dropped.
fn merge(latest: &mut BTreeMap<JobKey, Wanted>, changes: Vec<Changed>) {
    for (key, change) in changes {
        let wanted = latest.entry(key).or_default();
        match change {
            Change::Removed(gone) => *wanted = Wanted { removed: Some(gone), published: None },
            Change::Published(mut publication) => {
                if let Some(earlier) = wanted.published.take() {
                    publication.events.splice(0..0, earlier.events);
                    publication.retired.splice(0..0, earlier.retired);
                }
                wanted.published = Some(publication);
            }
        }
    }
}

/// One event as people read it.
pub fn event_line(event: &EventRecord) -> String {
    let message = event.message.replace('\n', " ");
    format!("{} run {} {:<9} {message}\n", event.at, event.run, event.state.name())
}

/// Complete lines in the file; a part of one that a crash left is cut off.
fn count_lines(path: &Path) -> io::Result<u64> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let (mut lines, mut bytes) = (0, 0);
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            break;
        }
        lines += 1;
        bytes += count as u64;
    }
    file.set_len(bytes)?;
    Ok(lines)
}

fn write_error(job: &Path, publication: &Publication) -> io::Result<()> {
    let path = job.join("error");
    let text: String = publication.report.diagnostics.iter().map(|diagnostic| format!("{diagnostic}\n")).collect();
    match text.is_empty() {
        true => remove_if_there(&path),
        false => write_if_new(&path, text.as_bytes(), 0o644),
    }
}

/// The job file may hold secrets in `env`: for its owner only.
fn write_source(job: &Path, publication: &Publication) -> io::Result<()> {
    let Some(source) = &publication.source else { return Ok(()) };
    let path = job.join("spec.toml");
    write_if_new(&path, source.as_bytes(), 0o600)?;
    chown(&path, Some(publication.owner.0), Some(publication.owner.1))
}

/// For who moves a dataset while the daemon is away, or is asked too much.
fn write_awaited(job: &Path, publication: &Publication) -> io::Result<()> {
    let path = job.join(assets::AWAITED);
    let names: String = publication.awaited.iter().map(|name| format!("{name}\n")).collect();
    if names.is_empty() { remove_if_there(&path) } else { write_if_new(&path, names.as_bytes(), 0o600) }
}

/// The run's own status comes last: that a run has ended by it means that nothing is written there any more.
fn write_run(run: &Path, report: &JobReport) -> io::Result<()> {
    let attempt = run.join("attempts").join(report.attempt.to_string());
    for task in &report.tasks {
        let directory = attempt.join(&task.task);
        if directory.is_dir() {
            write_if_new(&directory.join("status"), task.toml().as_bytes(), 0o644)?;
        }
    }
    write_if_new(&run.join("status"), report.toml().as_bytes(), 0o644)
}

fn write_if_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    match fs::read(path) {
        Ok(old) if old == content => Ok(()),
        _ => ignore_missing(write_whole(path, content, mode, Durability::Process)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Timestamp;

    #[test]
    fn a_torn_event_line_is_cut_off_and_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let event = |number| EventRecord {
            number,
            serial: number + 1,
            at: Timestamp(number),
            run: 1,
            state: State::Waiting,
            message: format!("two\nlines {number}"),
        };
        fs::write(&path, format!("{}{}", event_line(&event(0)), "torn")).unwrap();
        assert_eq!(count_lines(&path).unwrap(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), event_line(&event(0)));
        assert_eq!(event_line(&event(1)).lines().count(), 1);
    }
}
