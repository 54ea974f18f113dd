//! Collects scalars into `scalars.csv` beside the task's logs: from event files in the declared directory, each read on from
//! where it was left, and from lines of output.
//!
//! Everything that is read is the job's own, and not trusted: files are opened beneath the run's directory, what is damaged
//! ends the reading of its file, and what is larger than a scalar's record is passed over.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ids::Timestamp;
use crate::logs;
use crate::rundir::ScalarsRecord;
use crate::scalars::events::{self, FOOT, HEAD};
use crate::scalars::lines::{Lines, pattern};
use crate::scalars::{HEADER, Scalar};
use crate::sys::file::optional;
use crate::sys::rooted::Rooted;

const FILE: &str = "scalars.csv";
/// Part of the name of every event file.
const MARK: &[u8] = b"tfevents";
/// Longest record that is looked into, bytes: pictures and graphs have longer ones.
const RECORD_MAX: u64 = 256 << 10;
/// Most bytes that are looked at in one turn, so that the output goes on meanwhile.
const TURN_MAX: u64 = 8 << 20;
/// Longest that is read on at the end: the task's resources are held meanwhile.
const AT_END: Duration = Duration::from_secs(10);
/// Scalars that are written down at once.
const FOUND_MAX: usize = 10_000;
/// Most files that are followed, and entries that are looked at for them.
const FILES_MAX: usize = 1000;
const ENTRIES_MAX: usize = 10_000;
/// Most directories within each other.
const DEPTH_MAX: usize = 16;
/// Most bytes of `scalars.csv`.
const SIZE_MAX: u64 = 256 << 20;

pub(super) struct Scalars {
    record: ScalarsRecord,
    /// By path below the directory: how far each was read, or that it is damaged there.
    files: BTreeMap<PathBuf, Position>,
    /// What is there by now was told before.
    passes_over: bool,
    lines: Option<[Lines; 2]>,
    found: Vec<Scalar>,
    /// That there are more entries than are looked at.
    is_told: bool,
    out: Out,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    At(u64),
    Damaged,
}

struct Out {
    dir: PathBuf,
    /// Opened with the first row, and how much of it is whole rows.
    file: Option<(File, u64)>,
}

impl Scalars {
    pub(super) fn new(record: &ScalarsRecord, log_dir: &Path) -> Self {
        // The job file's reader has tried it.
        let lines = record.lines.as_deref().and_then(|text| pattern(text).ok());
        let mut scalars = Self {
            record: record.clone(),
            files: BTreeMap::new(),
            passes_over: false,
            lines: lines.map(|pattern| [Lines::new(pattern.clone()), Lines::new(pattern)]),
            found: Vec::new(),
            is_told: false,
            out: Out { dir: log_dir.to_owned(), file: None },
        };
        // A task that is started again in its place goes on where the one before it has ended.
        if std::fs::symlink_metadata(log_dir.join(FILE)).is_ok() {
            scalars.passes_over = true;
            scalars.collect();
            scalars.passes_over = false;
        }
        scalars
    }

    /// What the program has written to a stream.
    pub(super) fn hear(&mut self, stream: logs::Stream, bytes: &[u8], now: Timestamp) {
        if let Some(lines) = &mut self.lines {
            let [out, err] = lines;
            let lines = if stream == logs::Stream::Stdout { out } else { err };
            lines.feed(bytes, now, &mut self.found);
        }
        if self.found.len() > FOUND_MAX {
            self.write();
        }
    }

    /// Reads on in the event files for a turn, and writes down what was found. Returns whether more is there.
    pub(super) fn collect(&mut self) -> bool {
        let more = self.read_files().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for event files");
            false
        });
        self.write();
        more
    }

    /// The task is over.
    pub(super) fn end(&mut self, now: Timestamp) {
        if let Some(lines) = &mut self.lines {
            lines.iter_mut().for_each(|lines| lines.end(now, &mut self.found));
        }
        let begun = Instant::now();
        while self.collect() && begun.elapsed() < AT_END {}
    }

    fn write(&mut self) {
        let rows: String = self.found.drain(..).map(|scalar| scalar.row()).collect();
        if let Err(error) = self.out.write(&rows) {
            tracing::warn!(%error, "scalars are dropped");
        }
    }

    fn read_files(&mut self) -> io::Result<bool> {
        let Some(place) = &self.record.log_dir else { return Ok(false) };
        let top = Rooted::open(&place.root).and_then(|root| root.directory_for_reading(&place.below));
        let Some(top) = optional(top)? else { return Ok(false) };
        let passes_over = self.passes_over;
        let mut turn = Turn { left: TURN_MAX, entries: 0, passes_over, files: &mut self.files, found: &mut self.found };
        turn.look_into(&top, Path::new(""), &self.record, 0)?;
        let (left, entries) = (turn.left, turn.entries);
        if entries > ENTRIES_MAX && !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!("only the first {ENTRIES_MAX} entries below scalars.log_dir are looked at for event files");
        }
        Ok(left == 0)
    }
}

/// One look at all event files.
struct Turn<'a> {
    /// Bytes that may still be looked at, and entries that were.
    left: u64,
    entries: usize,
    passes_over: bool,
    files: &'a mut BTreeMap<PathBuf, Position>,
    found: &'a mut Vec<Scalar>,
}

impl Turn<'_> {
    /// Entry by entry, and following no link: a job may have made as many as it likes.
    fn look_into(&mut self, top: &File, below: &Path, record: &ScalarsRecord, depth: usize) -> io::Result<()> {
        use nix::dir::{Dir, Type};
        let mut directory = Dir::from_fd(top.try_clone()?.into())?;
        for entry in directory.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            self.entries += 1;
            if self.entries > ENTRIES_MAX || self.left == 0 {
                return Ok(());
            }
            let is_event_file = record.is_own(name.as_bytes(), MARK);
            let may_be_directory = matches!(entry.file_type(), None | Some(Type::Directory)) && depth < DEPTH_MAX;
            if !is_event_file && !may_be_directory {
                continue;
            }
            // What goes while it is looked at is not there.
            let Ok(opened) = crate::sys::walk::open(top, name, nix::fcntl::OFlag::empty()) else { continue };
            let (metadata, path) = (opened.metadata()?, below.join(name));
            if metadata.is_dir() && depth < DEPTH_MAX {
                self.look_into(&opened, &path, record, depth + 1)?;
            } else if metadata.is_file() && is_event_file {
                self.read_on(&opened, metadata.len(), path)?;
            }
        }
        Ok(())
    }

    /// Reads the whole records that a file has by now.
    fn read_on(&mut self, file: &File, size: u64, path: PathBuf) -> io::Result<()> {
        let known = self.files.get(&path).copied();
        if known.is_none() && self.files.len() >= FILES_MAX {
            return Ok(());
        }
        if self.passes_over {
            self.files.insert(path, Position::At(size));
            return Ok(());
        }
        let Position::At(mut at) = known.unwrap_or(Position::At(0)) else { return Ok(()) };
        let mut position = Position::At(at);
        let mut content = Vec::new();
        while self.left > 0 && size >= at + HEAD as u64 {
            let mut head = [0; HEAD];
            // Cut meanwhile: what was read before it counts.
            if file.read_exact_at(&mut head, at).is_err() {
                break;
            }
            let Some(length) = events::content_length(&head) else {
                position = damaged(&path, at);
                break;
            };
            let end = (at + HEAD as u64).checked_add(length).and_then(|end| end.checked_add(FOOT as u64));
            let Some(end) = end.filter(|end| *end <= size) else { break };
            if length <= RECORD_MAX {
                content.resize(usize::try_from(length).unwrap_or(0), 0);
                let mut foot = [0; FOOT];
                let read = file.read_exact_at(&mut content, at + HEAD as u64);
                if read.and_then(|()| file.read_exact_at(&mut foot, end - FOOT as u64)).is_err() {
                    break;
                }
                let Some(scalars) = events::scalars(&content, foot) else {
                    position = damaged(&path, at);
                    break;
                };
                self.found.extend(scalars);
            }
            self.left = self.left.saturating_sub(length.min(RECORD_MAX) + (HEAD + FOOT) as u64);
            at = end;
            position = Position::At(at);
            if self.found.len() > FOUND_MAX {
                self.left = 0;
            }
        }
        self.files.insert(path, position);
        Ok(())
    }
}

fn damaged(path: &Path, at: u64) -> Position {
    tracing::warn!(file = %path.display(), at, "the event file is damaged; what follows is not read");
    Position::Damaged
}

impl Out {
    fn write(&mut self, rows: &str) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (file, written) = match &mut self.file {
            Some(open) => open,
            none => none.insert(logs::open_beside(&self.dir, FILE)?),
        };
        if *written >= SIZE_MAX {
            return Ok(());
        }
        let text = if *written == 0 { format!("{HEADER}{rows}") } else { rows.to_owned() };
        if let Err(error) = file.write_all_at(text.as_bytes(), *written) {
            // The part of a row that had room.
            file.set_len(*written)?;
            return Err(error);
        }
        *written += text.len() as u64;
        if *written >= SIZE_MAX {
            tracing::warn!("scalars.csv is full: later scalars are dropped");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rundir::ScalarsPlace;
    use crate::scalars::events::{event, record};

    fn scalars(dir: &Path, own: &[&str], others: &[&str]) -> Scalars {
        let place = ScalarsPlace { root: dir.to_owned(), below: "output/tb".into() };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let record = ScalarsRecord { log_dir: Some(place), lines: None, own: names(own), others: names(others) };
        Scalars::new(&record, dir)
    }

    fn text(dir: &Path) -> String {
        std::fs::read_to_string(dir.join(FILE)).unwrap_or_default()
    }

    #[test]
    fn event_files_are_read_on_as_they_grow() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("output/tb/run");
        let mut scalars = scalars(dir.path(), &[], &[]);
        assert!(!scalars.collect(), "nothing is there yet");
        std::fs::create_dir_all(&logs).unwrap();
        let path = logs.join("events.out.tfevents.1.worker-0.7");
        let whole: Vec<u8> = (1..4).flat_map(|step| record(&event(step, "loss", 0.5))).collect();
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            scalars.collect();
        }
        let line = |step: i64| format!("{step},loss,0.5,1970-01-01T00:00:01.500Z\n");
        assert_eq!(text(dir.path()), format!("{HEADER}{}{}{}", line(1), line(2), line(3)));
        // A long record is passed over, a damaged one is the end.
        let mut more = whole.clone();
        more.extend(record(&vec![0; 300 << 10]));
        more.extend(record(&event(4, "loss", 0.5)));
        let end = more.len();
        more.extend(record(&event(5, "loss", 0.5)));
        more[end + HEAD] ^= 1;
        more.extend(record(&event(6, "loss", 0.5)));
        std::fs::write(&path, &more).unwrap();
        scalars.end(Timestamp(0));
        assert!(text(dir.path()).ends_with(&line(4)), "{}", text(dir.path()));
        // Other files are none, and links lead nowhere.
        std::fs::write(logs.join("other"), record(&event(9, "loss", 0.5))).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", logs.join("x.tfevents")).unwrap();
        scalars.end(Timestamp(0));
        assert!(text(dir.path()).ends_with(&line(4)));
    }

    #[test]
    fn each_task_takes_its_own_files_and_the_first_one_nobody_s() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("output/tb");
        std::fs::create_dir_all(&logs).unwrap();
        for (number, host) in ["worker-0", "worker-1", "elsewhere"].into_iter().enumerate() {
            let step = i64::try_from(number).unwrap();
            std::fs::write(logs.join(format!("events.out.tfevents.1.{host}.7")), record(&event(step, "a", 1.0)))
                .unwrap();
        }
        let steps = |own: &[&str], others: &[&str]| {
            let _ = std::fs::remove_file(dir.path().join(FILE));
            scalars(dir.path(), own, others).end(Timestamp(0));
            text(dir.path())
                .lines()
                .skip(1)
                .filter_map(|line| line.split(',').next()?.parse().ok())
                .collect::<Vec<i64>>()
        };
        let mut of_the_first = steps(&[], &["worker-1"]);
        of_the_first.sort_unstable();
        assert_eq!(of_the_first, [0, 2]);
        assert_eq!(steps(&["worker-1"], &[]), [1]);
        // One that is started again in its place tells nothing twice.
        scalars(dir.path(), &["worker-1"], &[]).end(Timestamp(0));
        assert_eq!(text(dir.path()).lines().count(), 2);
    }
}
