//! Samples what a task uses into `metrics.csv` beside its logs: every 5 s, and once at the end.
//!
//! A figure that the kernel does not tell is an empty field. A sample that cannot be written is dropped: the file holds
//! whole rows only, and a task is never held up by it.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::ids::Timestamp;
use crate::logs;
use crate::rundir::LaunchRecord;
use crate::sys::cgroup::{Usage, usage};
use crate::sys::signals::Deadline;

const FILE: &str = "metrics.csv";
const EVERY: Duration = Duration::from_secs(5);
const HEADER: &str =
    "time,elapsed_s,cpu_s,cpu_percent,memory_bytes,memory_peak_bytes,io_read_bytes,io_written_bytes,pids\n";

/// Readable when a sample is due.
pub(super) struct Sampler {
    dir: PathBuf,
    group: String,
    timer: Deadline,
    started: Instant,
    /// Periods that have begun.
    periods: u32,
    previous: (Instant, Option<u64>),
    /// Opened with the first sample, and how much of it is whole rows.
    file: Option<(File, u64)>,
}

impl Sampler {
    /// To be called when the command has just been started.
    pub(super) fn start(launch: &LaunchRecord) -> io::Result<Self> {
        let started = Instant::now();
        let mut sampler = Self {
            dir: launch.log_dir.clone(),
            group: launch.cgroup.clone(),
            timer: Deadline::unset()?,
            started,
            periods: 0,
            previous: (started, usage(&launch.cgroup).cpu_usec),
            file: None,
        };
        sampler.wait_for_next()?;
        Ok(sampler)
    }

    /// Sets the timer to the next whole period since the start.
    pub(super) fn wait_for_next(&mut self) -> io::Result<()> {
        let elapsed = self.started.elapsed();
        self.periods = begun(self.periods, elapsed);
        self.timer.set((EVERY * self.periods).saturating_sub(elapsed))
    }

    /// Takes a sample; what goes wrong with it goes into the shim's log.
    pub(super) fn sample(&mut self, now: Timestamp) {
        let (taken, used) = (Instant::now(), usage(&self.group));
        let sample = Sample {
            time: now,
            elapsed: taken.duration_since(self.started),
            since: taken.duration_since(self.previous.0),
            cpu_before: self.previous.1,
            used,
        };
        self.previous = (taken, used.cpu_usec);
        if let Err(error) = self.write(&sample.row()) {
            tracing::warn!(%error, "a sample of what the task uses is dropped");
        }
    }

    fn write(&mut self, row: &str) -> io::Result<()> {
        let (file, written) = match &mut self.file {
            Some(open) => open,
            none => none.insert(logs::open_beside(&self.dir, FILE)?),
        };
        let text = if *written == 0 { format!("{HEADER}{row}") } else { row.to_owned() };
        if let Err(error) = file.write_all_at(text.as_bytes(), *written) {
            // The part of a row that had room.
            file.set_len(*written)?;
            return Err(error);
        }
        *written += text.len() as u64;
        Ok(())
    }
}

impl AsFd for Sampler {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Periods that have begun after that time.
fn begun(mut periods: u32, elapsed: Duration) -> u32 {
    while EVERY * periods <= elapsed {
        periods += 1;
    }
    periods
}

struct Sample {
    time: Timestamp,
    elapsed: Duration,
    /// Time and processor time of the sample before.
    since: Duration,
    cpu_before: Option<u64>,
    used: Usage,
}

impl Sample {
    fn row(&self) -> String {
        let mut row = format!("{},{:.3},", self.time, self.elapsed.as_secs_f64());
        if let Some(usec) = self.used.cpu_usec {
            let _ = write!(row, "{:.3}", usec as f64 / 1e6);
        }
        row.push(',');
        if let Some(percent) = self.cpu_percent() {
            let _ = write!(row, "{percent:.1}");
        }
        let used = &self.used;
        for figure in [used.memory, used.memory_peak, used.io_read, used.io_written, used.pids] {
            row.push(',');
            if let Some(figure) = figure {
                let _ = write!(row, "{figure}");
            }
        }
        row.push('\n');
        row
    }

    /// Of one core.
    fn cpu_percent(&self) -> Option<f64> {
        let spent = self.used.cpu_usec?.saturating_sub(self.cpu_before?);
        let since = self.since.as_secs_f64();
        (since > 0.0).then(|| spent as f64 / 1e4 / since)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sampler(dir: &Path) -> Sampler {
        let started = Instant::now();
        Sampler {
            dir: dir.to_owned(),
            group: "/trainyard-there-is-no-such-group".to_owned(),
            timer: Deadline::unset().unwrap(),
            started,
            periods: 0,
            previous: (started, None),
            file: None,
        }
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_an_empty_field() {
        let used = Usage { cpu_usec: Some(7_500_000), memory: Some(4096), pids: Some(0), ..Usage::default() };
        let sample = Sample {
            time: Timestamp(1_795_845_948_123),
            elapsed: Duration::from_millis(5000),
            since: Duration::from_millis(5000),
            cpu_before: Some(2_500_000),
            used,
        };
        assert_eq!(sample.row(), "2026-11-28T06:05:48.123Z,5.000,7.500,100.0,4096,,,,0\n");
        assert_eq!(sample.row().split(',').count(), HEADER.split(',').count());
        let unknown = Sample { used: Usage::default(), ..sample };
        assert_eq!(unknown.row(), "2026-11-28T06:05:48.123Z,5.000,,,,,,,\n");
    }

    #[test]
    fn a_metrics_file_is_gone_on_with_and_a_dropped_sample_leaves_whole_rows() {
        let dir = tempfile::tempdir().unwrap();
        sampler(dir.path()).sample(Timestamp(1));
        let mut again = sampler(dir.path());
        again.sample(Timestamp(2));
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(text.starts_with(HEADER) && text.lines().count() == 3, "{text}");
        // A directory that is gone stands for a disk that is full.
        let gone = dir.path().join("gone");
        let mut without = sampler(&gone);
        without.sample(Timestamp(3));
        std::fs::create_dir(&gone).unwrap();
        without.sample(Timestamp(4));
        assert_eq!(std::fs::read_to_string(gone.join(FILE)).unwrap().lines().count(), 2);
    }

    #[test]
    fn samples_are_due_at_whole_periods_since_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let mut sampler = sampler(dir.path());
        sampler.wait_for_next().unwrap();
        assert_eq!(sampler.periods, 1);
        let brief = Duration::from_millis(1);
        let periods = [EVERY - brief, EVERY, EVERY + brief, EVERY * 3].map(|elapsed| begun(1, elapsed));
        assert_eq!(periods, [1, 2, 2, 4]);
    }
}
