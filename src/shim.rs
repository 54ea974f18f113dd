//! `trainyard shim DIR`: one process a task, single-threaded, in its own session; it outlives the daemon.
//!
//! It makes the task's container, pumps its output to the logs, samples what it uses, passes on a stop,
//! and writes how the task ended.
//! Tasks that share a process namespace have it from [`hold`].
//! What to do at each event is decided by the pure [`step`]; libcontainer is driven by [`container`] alone.
//!
//! **Invariant:** a shim that ends has written `exit.json`, unless it was killed.

mod confine;
mod container;
mod driver;
pub mod enter;
pub mod hold;
mod init;
mod metrics;
mod pump;
mod requirements;
mod rootfs;
mod scalars;
pub mod step;
mod words;

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::ids::Timestamp;
use crate::logs::Stream;
use crate::rundir::holder::HolderDir;
use crate::rundir::{Init, KeptRecord, LaunchRecord, MACHINE_RESTARTED, RunDirError, Shm, TaskDir};
use crate::status::{EndRecord, StopCause, TaskEnd};
use crate::sys::cgroup;
use crate::sys::file::optional;
use crate::sys::process::{ProcessEnd, close_all_but};
use crate::sys::rooted::{Ids, Rooted};
use crate::sys::signals::{Deadline, SignalQueue};
use container::{Container, CreateError};
use metrics::Sampler;
use pump::Pumps;
use scalars::Scalars;
use step::{Action, CommandEnd, Event, InitReport, MemoryWant, Progress};

#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> ShimError {
    move |source| ShimError::Io { what, source }
}

/// Most that is read of our own log, bytes.
const SHIM_LOG_MAX: u64 = 1 << 20;

/// Why tasks of an attempt end together.
const HOLDER_HAS_ENDED: &str = "the process that held the process namespace of this job's tasks with GPUs (trainyard hold) has ended, \
                                and the kernel has ended all of them with it";

/// Runs the task of `dir` to its end. `lock` is the inherited descriptor that proves our life to the daemon.
pub fn run(dir: PathBuf, lock: OwnedFd) -> Result<(), ShimError> {
    use std::os::fd::AsRawFd;
    // libcontainer leaves those of its caller in place where a task is to have none.
    nix::unistd::setgroups(&[]).map_err(|errno| failed("leave the daemon's groups")(errno.into()))?;
    close_all_but(&[lock.as_raw_fd()]).map_err(failed("close inherited descriptors"))?;
    let dir = TaskDir::at(dir);
    log_to(&dir.shim_log()).map_err(failed("open the shim's log"))?;
    // Blocked from here on, so that a stop during the start waits in the queue.
    let signals = SignalQueue::open(&[Signal::SIGTERM, Signal::SIGINT]).map_err(failed("take signals"))?;
    let launch = dir.read_launch()?;
    crate::sys::lock::write_own_pid(&lock).map_err(failed("write the lock file"))?;
    let task = Task { dir, launch, signals };
    let end = task.run()?;
    task.write_end(&end)?;
    // No news: the daemon is told by our end, when our lock is free and our mounts are gone.
    drop(lock);
    Ok(())
}

/// A machine that goes down ends the task's processes and us: that is no failure of the task's.
fn with_the_machine(end: EndRecord, is_going_down: bool) -> EndRecord {
    match is_going_down && end.end.is_failure() {
        true => EndRecord { end: TaskEnd::Lost { reason: MACHINE_RESTARTED.to_owned() }, ..end },
        false => end,
    }
}

/// Most characters that are taken of a script's word on its failure, and bytes that they may take.
const FAILURE_MAX: usize = 1024;
const FAILURE_BYTES: u64 = 4 * FAILURE_MAX as u64;

/// What was written there since `since`: before, it was an earlier attempt's.
fn failure(output: &Path, since: std::time::SystemTime) -> io::Result<Option<String>> {
    let Some(file) = optional(Rooted::open(output)?.file_for_reading(Path::new("failure")))? else { return Ok(None) };
    if file.metadata()?.modified()? < since {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(FAILURE_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).trim().replace(|c: char| c.is_control(), " ");
    let text: String = text.chars().take(FAILURE_MAX).collect();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn success(output: &Path) -> io::Result<()> {
    let owner = std::fs::symlink_metadata(output)?;
    Rooted::open(output)?.write(Path::new("success"), b"", 0o644, Ids { uid: owner.uid(), gid: owner.gid() })
}

/// libcontainer says more in its log lines than in its errors; they must never reach the container's output.
fn log_to(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // libcgroups warns of every controller that a machine lacks, for every container.
    let filter = tracing_subscriber::EnvFilter::new("warn,libcgroups=error,libcontainer=error");
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        // A full disk must not end a task: told on standard error, it would be by a macro that panics.
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::sync::Mutex::new(file))
        .finish();
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)
}

struct Task {
    dir: TaskDir,
    launch: LaunchRecord,
    signals: SignalQueue,
}

impl Task {
    fn run(&self) -> Result<EndRecord, ShimError> {
        let (container, mut pumps) = match self.create() {
            Ok(created) => created,
            Err(error) => return Ok(self.not_started(self.with_libcontainer_s_words(error))),
        };
        let end = self.start_and_watch(&container, &mut pumps);
        let peak = cgroup::memory_peak(&self.launch.cgroup);
        container.delete();
        if let Err(error) = crate::sys::file::remove_tree(&self.dir.container_state()) {
            tracing::warn!(%error, "the container's state stays");
        }
        let end = with_the_machine(EndRecord { memory_peak: peak, ..end? }, crate::sys::is_going_down());
        Ok(EndRecord { note: self.with_platform_s_words(&end), ..end })
    }

    /// What the script has said of its failure where its platform looks for that, and the platform's word of success.
    fn with_platform_s_words(&self, end: &EndRecord) -> Option<String> {
        let Some(output) = &self.launch.end_files else { return end.note.clone() };
        let said = match end.end {
            TaskEnd::Exited { code: 0 } => success(output).map(|()| None),
            // Its container's configuration was written just before it began.
            _ if end.end.is_failure() => {
                let began = std::fs::metadata(self.dir.oci_config()).and_then(|metadata| metadata.modified());
                began.and_then(|began| failure(output, began))
            }
            _ => return end.note.clone(),
        };
        let said = said.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for the script's own words on its end");
            None
        });
        let said = said.map(|text| format!("it says in output/failure: {text}"));
        let all: Vec<String> = end.note.clone().into_iter().chain(said).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// A full disk must not cost the exit status: waits until it can be written.
    fn write_end(&self, end: &EndRecord) -> Result<(), ShimError> {
        while written(self.dir.write_end(end))?.is_none() {
            tracing::error!("the disk is full, the exit record waits");
            poll(&mut [], pump::RETRY_MS).map_err(|errno| failed("wait for the disk")(errno.into()))?;
        }
        Ok(())
    }

    fn not_started(&self, reason: String) -> EndRecord {
        if let Err(error) = cgroup::remove(&self.launch.cgroup) {
            tracing::warn!(%error, "the control group stays");
        }
        EndRecord { end: TaskEnd::FailedToStart { reason }, at: crate::sys::now(), memory_peak: None, note: None }
    }

    fn with_libcontainer_s_words(&self, error: CreateError) -> String {
        let CreateError::Container(text) = &error else { return error.to_string() };
        // In a namespace whose first process has ended the kernel makes no others.
        if self.has_lost_its_holder() {
            return format!("cannot make the container: {HOLDER_HAS_ENDED}");
        }
        let log = crate::sys::file::read_limited(&self.dir.shim_log(), SHIM_LOG_MAX).map(|(_, log)| log);
        let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
        format!("cannot make the container: {}", words::explained(text, &log))
    }

    fn create(&self) -> Result<(Container, Pumps), CreateError> {
        let (pumps, ends) = Pumps::open(&self.launch.log_dir, self.launch.logs).map_err(CreateError::Logs)?;
        let container = Container::create(&self.dir, &self.launch, ends)?;
        Ok((container, pumps))
    }

    fn start_and_watch(&self, container: &Container, pumps: &mut Pumps) -> Result<EndRecord, ShimError> {
        if let Some(cause) = self.stop_cause()? {
            return Ok(EndRecord { end: cause.judge(None), at: crate::sys::now(), memory_peak: None, note: None });
        }
        // What is there was told before the command begins.
        let scalars = self.launch.scalars.as_ref().map(|record| Scalars::new(record, &self.launch.log_dir));
        self.dir.mark_started()?;
        if let Err(error) = container.start() {
            return Ok(self.not_started(error.to_string()));
        }
        let mut watch = Watch {
            grace: Deadline::unset().map_err(failed("make a timer"))?,
            sampler: Sampler::start(&self.launch, &self.dir).map_err(failed("make a timer"))?,
            scalars,
            untold: None,
            hanging: None,
            shm_was_full: false,
        };
        self.tell_news();
        crate::sys::process::give_memory_back();
        let end = self.watch(container, pumps, &mut watch);
        // The control group is there until the container is deleted.
        watch.sampler.sample(crate::sys::now());
        if let Some(scalars) = &mut watch.scalars {
            scalars.end(crate::sys::now());
        }
        end
    }

    /// Polls until the container and its output have ended.
    fn watch(&self, container: &Container, pumps: &mut Pumps, watch: &mut Watch) -> Result<EndRecord, ShimError> {
        let mut progress = Progress::running(pumps.open_streams());
        let mut report = None;
        let mut ended_at = None;
        loop {
            let mut events = VecDeque::from(self.wait(container, pumps, watch, &progress, &mut report)?);
            while let Some(event) = events.pop_front() {
                if matches!(event, Event::InitEnded(_)) {
                    ended_at = Some(crate::sys::now());
                }
                let (next, actions) = step::step(progress, event);
                progress = next;
                for action in actions {
                    events.extend(self.act(&action, container, watch, &report)?);
                }
            }
            self.tell_kept(watch)?;
            if let Some(end) = progress.ended() {
                // Of what hangs, the end of the output is not waited for.
                watch.pump(pumps);
                if let Err(error) = pumps.sync() {
                    // The end itself must be told all the same.
                    tracing::error!(%error, "the last of the output may not be on the disk");
                }
                let report = report.or_else(|| container.report());
                let end = step::judge_end(end, report, progress.cause(), self.memory_want());
                let note = self.remarks(&end, container, watch);
                return Ok(EndRecord { end, at: ended_at.unwrap_or_else(crate::sys::now), memory_peak: None, note });
            }
        }
    }

    fn wait(
        &self,
        container: &Container,
        pumps: &mut Pumps,
        watch: &mut Watch,
        progress: &Progress,
        report: &mut Option<InitReport>,
    ) -> Result<Vec<Event>, ShimError> {
        let watches_report = self.launch.keep_failed_ms.is_some() && report.is_none() && progress.init_lives();
        let (signalled, grace_over, sample_due, init_ready, reported) = {
            let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = vec![watched(self.signals.as_fd()), watched(watch.grace.as_fd())];
            fds.push(watched(watch.sampler.as_fd()));
            if progress.init_lives() {
                fds.push(watched(container.init().as_fd()));
            }
            if watches_report {
                fds.push(watched(container.report_pipe().as_fd()));
            }
            let fixed = fds.len();
            fds.extend(pumps.descriptors().map(watched));
            let kept_retry = watch.untold.as_ref().map(|_| pump::RETRY_MS);
            let timeout = pumps.retry_after().or(kept_retry).map_or(PollTimeout::NONE, PollTimeout::from);
            match poll(&mut fds, timeout) {
                Err(nix::errno::Errno::EINTR) => return Ok(Vec::new()),
                other => other.map_err(|errno| failed("wait for the task")(errno.into()))?,
            };
            let ready = |at: usize| at < fixed && fds.get(at).is_some_and(|fd| fd.any() == Some(true));
            let init_ready = progress.init_lives() && ready(3);
            (ready(0), ready(1), ready(2), init_ready, watches_report && ready(4))
        };
        let mut events = Vec::new();
        for _closed in watch.pump(pumps) {
            events.push(Event::StreamClosed);
        }
        if reported {
            *report = container.report();
            let failed = !matches!(report, Some(InitReport::Ended(CommandEnd::Exited(0))) | None);
            events.extend((failed && progress.cause().is_none()).then_some(Event::Kept));
        }
        if signalled {
            events.extend(self.stop_requested()?);
        }
        if sample_due {
            watch.sampler.sample(crate::sys::now());
            // What is more than a turn comes with the next sample, or at the end.
            watch.scalars.as_mut().map(Scalars::collect);
            watch.shm_was_full |= container.shm_is_full().unwrap_or(false);
            watch.sampler.wait_for_next().map_err(failed("set a timer"))?;
        }
        if grace_over {
            watch.grace.clear().map_err(failed("reset a timer"))?;
            events.push(Event::GraceOver);
        }
        if init_ready && let Some(end) = container.init().reap().map_err(failed("reap the container"))? {
            events.push(Event::InitEnded(end));
        }
        Ok(events)
    }

    fn stop_requested(&self) -> Result<Option<Event>, ShimError> {
        Ok(self.stop_cause()?.map(Event::StopRequested))
    }

    /// A stop is a signal, and a file that says why; a signal without the file came from elsewhere.
    fn stop_cause(&self) -> Result<Option<StopCause>, ShimError> {
        let mut signalled = false;
        while self.signals.next().map_err(failed("take a signal"))?.is_some() {
            signalled = true;
        }
        let told = self.dir.read_stop()?;
        Ok(told.or_else(|| signalled.then_some(StopCause::ShimSignalled)))
    }

    fn memory_want(&self) -> MemoryWant {
        MemoryWant {
            limit: self.launch.memory,
            peak: cgroup::memory_peak(&self.launch.cgroup),
            kills: cgroup::oom_kills(&self.launch.cgroup).unwrap_or(0),
        }
    }

    /// What else was seen that may explain the end: a full `/dev/shm` (writing past its end is SIGBUS, or an error that a
    /// program may swallow), processes killed for want of memory though the command went on, and those that do not go.
    fn remarks(&self, end: &TaskEnd, container: &Container, watch: &mut Watch) -> Option<String> {
        let memory = self.memory_want();
        let killed = (memory.kills > 0 && !matches!(end, TaskEnd::Oom { .. })).then(|| {
            let limit = crate::ids::Bytes(memory.limit);
            let peak = memory.peak.map_or(String::new(), |peak| format!(", peak {}", crate::ids::Bytes(peak)));
            format!(
                "{} process(es) of it were killed since it needed more than resources.memory = \"{limit}\"{peak}",
                memory.kills
            )
        });
        let full = match self.launch.root.shm {
            _ if !end.is_failure() || !(watch.shm_was_full || container.shm_is_full().unwrap_or(false)) => None,
            Shm::Own { size } => {
                let size = crate::ids::Bytes(size);
                Some(format!("its /dev/shm of {size} was full: ask for more by resources.shm"))
            }
            Shm::Shared { .. } => {
                Some("the /dev/shm that the tasks share was full: ask for more by resources.shm".to_owned())
            }
        };
        let unheld = (end.is_failure() && self.has_lost_its_holder()).then(|| HOLDER_HAS_ENDED.to_owned());
        let remarks: Vec<String> = killed.into_iter().chain(full).chain(unheld).chain(watch.hanging.take()).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    /// Whether what held the process namespace that it shares with others is gone.
    fn has_lost_its_holder(&self) -> bool {
        let held = self.launch.holder.clone().map(|holder| HolderDir::at(holder).held());
        held.is_some_and(|held| {
            held.unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot look for what holds the tasks' process namespace");
                None
            })
            .is_none()
        })
    }

    /// Ours knows which signal the command is to get.
    fn stop_signal(&self) -> i32 {
        match self.launch.init {
            Init::Ours => Signal::SIGTERM as i32,
            Init::Command => self.launch.stop_signal,
        }
    }

    /// The end of the command is told now, while its container stays.
    fn keep(&self, container: &Container, report: &Option<InitReport>, watch: &mut Watch) -> Result<(), ShimError> {
        let unknown = ProcessEnd::Exited(0);
        let end = step::judge_end(unknown, report.clone(), None, self.memory_want());
        let note = self.remarks(&end, container, watch);
        let now = crate::sys::now();
        let kept_ms = self.launch.keep_failed_ms.unwrap_or(0);
        let until = Timestamp(now.0.saturating_add(kept_ms));
        let end = EndRecord { end, at: now, memory_peak: cgroup::memory_peak(&self.launch.cgroup), note };
        watch.untold = Some(KeptRecord { end, until });
        watch.grace.set(Duration::from_millis(kept_ms)).map_err(failed("set a timer"))
    }

    /// Writes down what is kept; when the disk is full, another time, so that a stop is still heard.
    fn tell_kept(&self, watch: &mut Watch) -> Result<(), ShimError> {
        let Some(kept) = &watch.untold else { return Ok(()) };
        if written(self.dir.write_kept(kept))?.is_some() {
            watch.untold = None;
            self.tell_news();
        }
        Ok(())
    }

    fn act(
        &self,
        action: &Action,
        container: &Container,
        watch: &mut Watch,
        report: &Option<InitReport>,
    ) -> Result<Option<Event>, ShimError> {
        match action {
            Action::Keep => self.keep(container, report, watch)?,
            Action::Terminate => match container.init().signal_number(self.stop_signal()) {
                Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => {
                    return Err(failed("end the container")(error));
                }
                _ => {}
            },
            Action::SetGrace => {
                watch.grace.set(Duration::from_millis(self.launch.stop_grace_ms)).map_err(failed("set a timer"))?;
            }
            Action::KillAll => return Ok(self.kill_all(watch)),
        }
        Ok(None)
    }

    fn kill_all(&self, watch: &mut Watch) -> Option<Event> {
        let error = cgroup::kill_all(&self.launch.cgroup).err()?;
        tracing::error!(%error, "cannot empty the control group");
        (error.kind() == io::ErrorKind::TimedOut).then(|| {
            watch.hanging = Some(error.to_string());
            Event::Hanging
        })
    }

    /// Best effort: a daemon that is not there looks for itself when it starts.
    fn tell_news(&self) {
        let sent = UnixDatagram::unbound()
            .and_then(|socket| socket.send_to(self.launch.task.to_string().as_bytes(), &self.launch.news_socket));
        if let Err(error) = sent {
            tracing::debug!(%error, "the daemon is not there");
        }
    }
}

/// What a running task is watched with.
struct Watch {
    /// From SIGTERM to SIGKILL.
    grace: Deadline,
    sampler: Sampler,
    scalars: Option<Scalars>,
    /// That the container is kept, while the disk is too full to say so.
    untold: Option<KeptRecord>,
    /// What does not go though it was killed.
    hanging: Option<String>,
    /// It may be empty again when the task has ended.
    shm_was_full: bool,
}

impl Watch {
    fn pump(&mut self, pumps: &mut Pumps) -> Vec<Stream> {
        let now = crate::sys::now();
        pumps.pump(now, &mut |stream, bytes| {
            if let Some(scalars) = &mut self.scalars {
                scalars.hear(stream, bytes, now);
            }
        })
    }
}

/// `None` when there is no room on the disk for now.
fn written(result: Result<(), RunDirError>) -> Result<Option<()>, RunDirError> {
    match result {
        Err(error) if error.is_no_room() => Ok(None),
        other => other.map(Some),
    }
}

/// The streams whose writing ends the container gets.
pub(super) struct StreamEnds {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}
