//! Samples what a task uses into `metrics.csv` beside its logs: every 5 s, and once at the end.
//!
//! What its graphics cards do the daemon measures, and leaves in the task's directory: of that each row has what is known, unless
//! it is old. While there is no daemon these fields are empty, and the others are not.
//!
//! A figure that the kernel does not tell is an empty field. A sample that cannot be written is dropped: the file holds
//! whole rows only, and a task is never held up by it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ids::Timestamp;
use crate::logs;
use crate::rundir::{CardUsage, LaunchRecord, TaskDir};
use crate::sys::cgroup::{Usage, usage};
use crate::sys::signals::Deadline;

const FILE: &str = "metrics.csv";
const EVERY: Duration = Duration::from_secs(5);
const HEADER: &str =
    "time,elapsed_s,cpu_s,cpu_percent,memory_bytes,memory_peak_bytes,io_read_bytes,io_written_bytes,pids";
/// For each card, by its number in the task.
const OF_CARD: [&str; 3] = ["percent", "memory_bytes", "power_w"];
/// What was measured so long ago, ms, is not what the card does now: two periods, since those of the daemon are others than ours.
const GPU_FRESH_MS: u64 = 10_000;

/// Readable when a sample is due.
pub(super) struct Sampler {
    dir: PathBuf,
    group: String,
    timer: Deadline,
    started: Instant,
    /// Periods that have begun.
    periods: u32,
    previous: (Instant, Option<u64>),
    /// Where the daemon leaves what the task's cards do, and how many it has.
    task: TaskDir,
    gpus: usize,
    /// Opened with the first sample.
    file: Option<Table>,
}

/// The file.
struct Table {
    file: File,
    /// So much of it is whole rows.
    written: u64,
    /// In each row. An earlier program may have begun the file, with fewer.
    columns: usize,
}

impl Sampler {
    /// To be called when the command has just been started.
    pub(super) fn start(launch: &LaunchRecord, task: &TaskDir) -> io::Result<Self> {
        let started = Instant::now();
        let mut sampler = Self {
            dir: launch.log_dir.clone(),
            group: launch.cgroup.clone(),
            timer: Deadline::unset()?,
            started,
            periods: 0,
            previous: (started, usage(&launch.cgroup).cpu_usec),
            task: task.clone(),
            gpus: launch.gpus,
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
            gpus: self.gpu_usage(now),
        };
        self.previous = (taken, used.cpu_usec);
        if let Err(error) = self.write(&sample.row()) {
            tracing::warn!(%error, "a sample of what the task uses is dropped");
        }
    }

    /// For each card; nothing of one that was not measured lately.
    fn gpu_usage(&self, now: Timestamp) -> Vec<CardUsage> {
        let mut cards = Vec::new();
        if self.gpus > 0 {
            let told = self.task.read_gpu_usage().unwrap_or_else(|error| {
                tracing::warn!(%error, "what the cards do cannot be read");
                None
            });
            let fresh = told.filter(|told| now.0.abs_diff(told.at.0) <= GPU_FRESH_MS);
            cards = fresh.map(|told| told.cards).unwrap_or_default();
        }
        cards.resize(self.gpus, CardUsage::default());
        cards
    }

    fn write(&mut self, row: &[String]) -> io::Result<()> {
        let table = match &mut self.file {
            Some(open) => open,
            none => none.insert(Table::open(&self.dir, self.gpus)?),
        };
        table.write(row)
    }
}

impl Table {
    fn open(dir: &Path, gpus: usize) -> io::Result<Self> {
        let (file, written) = logs::open_beside(dir, FILE)?;
        let mut table = Self { file, written, columns: header(gpus).split(',').count() };
        if written > 0 {
            table.columns = table.columns.min(table.columns_there()?);
        } else {
            table.append(&format!("{}\n", header(gpus)))?;
        }
        Ok(table)
    }

    fn columns_there(&self) -> io::Result<usize> {
        // Longer than the header for as many cards as a task may have.
        let mut start = vec![0; 8 << 10];
        let length = self.file.read_at(&mut start, 0)?;
        let first = start.get(..length).unwrap_or_default().split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(first.split(|byte| *byte == b',').count())
    }

    fn write(&mut self, row: &[String]) -> io::Result<()> {
        let row = row.get(..self.columns).unwrap_or(row);
        self.append(&format!("{}\n", row.join(",")))
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(text.as_bytes(), self.written) {
            // The part of a row that had room.
            self.file.set_len(self.written)?;
            return Err(error);
        }
        self.written += text.len() as u64;
        Ok(())
    }
}

fn header(gpus: usize) -> String {
    let of_cards = (0..gpus).flat_map(|gpu| OF_CARD.map(|figure| format!(",gpu{gpu}_{figure}")));
    format!("{HEADER}{}", of_cards.collect::<String>())
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
    gpus: Vec<CardUsage>,
}

impl Sample {
    fn row(&self) -> Vec<String> {
        let used = &self.used;
        let decimals = |value: Option<f64>, places: usize| value.map(|value| format!("{value:.places$}"));
        let cpu = [decimals(used.cpu_usec.map(|usec| usec as f64 / 1e6), 3), decimals(self.cpu_percent(), 1)];
        let counts = [used.memory, used.memory_peak, used.io_read, used.io_written, used.pids];
        let counts = counts.map(|count| count.map(|count| count.to_string()));
        let of_card = |card: &CardUsage| {
            let watts = card.power.map(|milliwatts| f64::from(milliwatts) / 1e3);
            [
                card.utilisation.map(|percent| percent.to_string()),
                card.memory.map(|bytes| bytes.to_string()),
                decimals(watts, 1),
            ]
        };
        let begin = [Some(self.time.to_string()), Some(format!("{:.3}", self.elapsed.as_secs_f64()))];
        let figures = begin.into_iter().chain(cpu).chain(counts).chain(self.gpus.iter().flat_map(of_card));
        figures.map(Option::unwrap_or_default).collect()
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
    use super::*;
    use crate::rundir::GpuUsage;

    fn sampler(dir: &Path) -> Sampler {
        let started = Instant::now();
        Sampler {
            dir: dir.to_owned(),
            group: "/trainyard-there-is-no-such-group".to_owned(),
            timer: Deadline::unset().unwrap(),
            started,
            periods: 0,
            previous: (started, None),
            task: TaskDir::at(dir.join("task")),
            gpus: 0,
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
            gpus: vec![CardUsage { utilisation: Some(97), memory: None, power: Some(71_250) }, CardUsage::default()],
        };
        assert_eq!(sample.row().join(","), "2026-11-28T06:05:48.123Z,5.000,7.500,100.0,4096,,,,0,97,,71.2,,,");
        assert_eq!(sample.row().len(), header(2).split(',').count());
        let unknown = Sample { used: Usage::default(), gpus: Vec::new(), ..sample };
        assert_eq!(unknown.row().join(","), "2026-11-28T06:05:48.123Z,5.000,,,,,,,");
    }

    #[test]
    fn what_cards_do_stands_in_the_rows_while_it_is_known_and_a_file_without_it_keeps_its_columns() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Sampler { gpus: 2, ..sampler(dir.path()) };
        std::fs::create_dir(first.task.path()).unwrap();
        first.sample(Timestamp(1_000_000));
        let card = CardUsage { utilisation: Some(3), memory: Some(7), power: Some(1000) };
        first.task.write_gpu_usage(&GpuUsage { at: Timestamp(1_004_000), cards: vec![card] }).unwrap();
        // While there is no daemon it grows old.
        for at in [1_005_000, 1_014_000, 1_014_001, 994_000] {
            first.sample(Timestamp(at));
        }
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        let of_cards: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').skip(9).collect()).collect();
        let known = ["3", "7", "1.0", "", "", ""];
        let [header, rows @ ..] = of_cards.as_slice() else { panic!("{text}") };
        assert_eq!(
            header,
            &["gpu0_percent", "gpu0_memory_bytes", "gpu0_power_w", "gpu1_percent", "gpu1_memory_bytes", "gpu1_power_w"]
        );
        assert_eq!(rows, [[""; 6], known, known, [""; 6], known], "{text}");
        // Begun by a program that knew no cards.
        std::fs::write(dir.path().join(FILE), format!("{HEADER}\n")).unwrap();
        let mut again = Sampler { gpus: 2, ..sampler(dir.path()) };
        again.sample(Timestamp(1_005_000));
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.split(',').count() == 9), "{text}");
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
