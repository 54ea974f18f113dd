//! Log files of a task: `stdout.log` and `stderr.log` as the program wrote them, and an index of when each part came.
//!
//! The shim writes, everyone else reads: the merged `log` of the mount, `trainyard logs`, `--since`.
//! Bytes are written before the index tells of them, so what the index names can always be read.
//!
//! Index: records of 32 bytes, little endian: time (ms since 1970, u64), offset in the merged log (u64),
//! offset in the stream's own file (u64), length (u32), stream (u32: 1 stdout, 2 stderr).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::ids::Timestamp;

pub const INDEX_FILE: &str = ".log.index";
const RECORD: usize = 32;
/// Output that follows within this time goes into the same record.
const COALESCE_MS: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    pub fn file_name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout.log",
            Stream::Stderr => "stderr.log",
        }
    }

    fn number(self) -> u32 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    fn slot(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }
}

/// One part of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub time: Timestamp,
    /// Where the part begins in the merged log.
    pub merged: u64,
    /// Where it begins in its stream's file.
    pub offset: u64,
    /// Bytes, never 0.
    pub length: u32,
    pub stream: Stream,
}

impl Record {
    fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[0..8].copy_from_slice(&self.time.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.merged.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..28].copy_from_slice(&self.length.to_le_bytes());
        out[28..32].copy_from_slice(&self.stream.number().to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let long = |at: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(part)
        };
        let tail = long(24);
        let stream = match tail >> 32 {
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            _ => return None,
        };
        let length = u32::try_from(tail & u64::from(u32::MAX)).ok()?;
        Some(Self { time: Timestamp(long(0)), merged: long(8), offset: long(16), length, stream })
    }

    pub fn end(&self) -> u64 {
        self.merged + u64::from(self.length)
    }
}

/// The writing side; one a task.
#[derive(Debug)]
pub struct LogWriter {
    streams: [File; 2],
    offsets: [u64; 2],
    index: File,
    records: u64,
    last: Option<Record>,
    merged: u64,
}

impl LogWriter {
    /// Opens the logs in `dir`, going on after what is there.
    pub fn open(dir: &Path) -> io::Result<Self> {
        // Not in append mode: a write that failed half-way is repeated at the same place.
        let owner = std::fs::metadata(dir)?;
        let open = |name: &str| {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .read(true)
                .mode(0o640)
                .custom_flags(nix::libc::O_NOFOLLOW)
                .open(dir.join(name))?;
            // Logs belong to whom their directory belongs to: the job's owner.
            std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
            Ok::<_, io::Error>(file)
        };
        let streams = [open(Stream::Stdout.file_name())?, open(Stream::Stderr.file_name())?];
        let offsets = [streams[0].metadata()?.len(), streams[1].metadata()?.len()];
        let index = open(INDEX_FILE)?;
        let records = index.metadata()?.len() / RECORD as u64;
        let last = match records.checked_sub(1) {
            Some(number) => read_record(&index, number)?,
            None => None,
        };
        Ok(Self { streams, offsets, index, records, last, merged: last.map_or(0, |record| record.end()) })
    }

    /// Adds output of `stream` that was read at `now`. After an error the same call may be made again.
    pub fn append(&mut self, stream: Stream, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let Ok(length) = u32::try_from(bytes.len()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than 4 GiB of output at once"));
        };
        if length == 0 {
            return Ok(());
        }
        let slot = stream.slot();
        self.streams[slot].write_all_at(bytes, self.offsets[slot])?;
        let record = self.grown(stream, length, now).unwrap_or(Record {
            time: now,
            merged: self.merged,
            offset: self.offsets[slot],
            length,
            stream,
        });
        let number =
            if self.last.is_some_and(|last| last.merged == record.merged) { self.records - 1 } else { self.records };
        self.index.write_all_at(&record.encode(), number * RECORD as u64)?;
        self.records = number + 1;
        self.merged = record.end();
        self.offsets[slot] += u64::from(length);
        self.last = Some(record);
        Ok(())
    }

    /// The last record with `length` more bytes, when they belong to it.
    fn grown(&self, stream: Stream, length: u32, now: Timestamp) -> Option<Record> {
        let last = self.last.filter(|last| last.stream == stream)?;
        let adjoins = last.offset + u64::from(last.length) == self.offsets[stream.slot()];
        let soon = now.0.saturating_sub(last.time.0) <= COALESCE_MS;
        let length = last.length.checked_add(length).filter(|_| adjoins && soon)?;
        Some(Record { length, ..last })
    }

    /// Makes what was written outlive the machine.
    pub fn sync(&self) -> io::Result<()> {
        self.streams.iter().try_for_each(File::sync_data)?;
        self.index.sync_data()
    }
}

fn read_record(index: &File, number: u64) -> io::Result<Option<Record>> {
    let mut bytes = [0; RECORD];
    match index.read_exact_at(&mut bytes, number * RECORD as u64) {
        Ok(()) => Ok(Record::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// The reading side: both streams merged in the order in which they came.
#[derive(Debug)]
pub struct LogReader {
    dir: PathBuf,
    index: File,
    streams: [Option<File>; 2],
}

impl LogReader {
    /// Opens the logs in `dir`; fails with `NotFound` before the task's first start.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let open = |name: &str| OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(dir.join(name));
        let index = open(INDEX_FILE)?;
        let streams = Stream::BOTH.map(|stream| open(stream.file_name()).ok());
        Ok(Self { dir: dir.to_owned(), index, streams })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn records(&self) -> io::Result<u64> {
        Ok(self.index.metadata()?.len() / RECORD as u64)
    }

    /// Bytes of the merged log so far.
    pub fn len(&self) -> io::Result<u64> {
        match self.records()?.checked_sub(1) {
            Some(last) => Ok(read_record(&self.index, last)?.map_or(0, |record| record.end())),
            None => Ok(0),
        }
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Time of the last output.
    pub fn modified(&self) -> io::Result<Option<Timestamp>> {
        match self.records()?.checked_sub(1) {
            Some(last) => Ok(read_record(&self.index, last)?.map(|record| record.time)),
            None => Ok(None),
        }
    }

    /// The part that holds byte `offset` of the merged log; `None` at its end.
    pub fn part_at(&self, offset: u64) -> io::Result<Option<Record>> {
        let after = |record: &Record| record.end() > offset;
        Ok(self.search(after)?.filter(|record| record.merged <= offset))
    }

    /// Where in the merged log output from `time` on begins.
    pub fn offset_since(&self, time: Timestamp) -> io::Result<u64> {
        match self.search(|record| record.time >= time)? {
            Some(record) => Ok(record.merged),
            None => self.len(),
        }
    }

    /// The first record for which `holds` is true; `holds` must be false, then true along the log.
    fn search(&self, holds: impl Fn(&Record) -> bool) -> io::Result<Option<Record>> {
        let (mut low, mut high) = (0, self.records()?);
        while low < high {
            let middle = low + (high - low) / 2;
            match read_record(&self.index, middle)? {
                Some(record) if !holds(&record) => low = middle + 1,
                _ => high = middle,
            }
        }
        if low < self.records()? { read_record(&self.index, low) } else { Ok(None) }
    }

    /// Fills `buffer` from byte `offset` of the merged log; fewer bytes only at its end.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            let Some(part) = self.part_at(at)? else { break };
            let count = self.read_part(&part, at, &mut buffer[filled..])?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        Ok(filled)
    }

    /// Reads from byte `at` of the merged log, not beyond the end of `part`.
    pub fn read_part(&self, part: &Record, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let skip = at.saturating_sub(part.merged);
        let left = usize::try_from(u64::from(part.length).saturating_sub(skip)).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let Some(file) = &self.streams[part.stream.slot()] else { return Ok(0) };
        file.read_at(&mut buffer[..wanted], part.offset + skip)
    }

    /// Where the last `lines` lines of the merged log begin.
    pub fn offset_of_last_lines(&self, lines: u64) -> io::Result<u64> {
        let mut end = self.len()?;
        if lines == 0 {
            return Ok(end);
        }
        let mut missing = lines;
        let mut buffer = vec![0; 64 << 10];
        let mut at_end = true;
        while end > 0 {
            let start = end.saturating_sub(buffer.len() as u64);
            let wanted = usize::try_from(end - start).unwrap_or(buffer.len());
            let count = self.read_at(start, &mut buffer[..wanted])?;
            for index in (0..count).rev() {
                let last_byte = std::mem::take(&mut at_end);
                if buffer[index] != b'\n' || last_byte {
                    continue;
                }
                missing = missing.saturating_sub(1);
                if missing == 0 {
                    return Ok(start + index as u64 + 1);
                }
            }
            end = start;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn merged(reader: &LogReader) -> Vec<u8> {
        let mut out = vec![0; usize::try_from(reader.len().unwrap()).unwrap()];
        assert_eq!(reader.read_at(0, &mut out).unwrap(), out.len());
        out
    }

    proptest! {
        #[test]
        fn the_merged_log_is_what_was_appended(
            parts in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40), 0u64..60), 0..40),
            reopen in 0usize..40,
            probe in 0u64..500,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = LogWriter::open(dir.path()).unwrap();
            let (mut model, mut streams, mut now, mut since) = (Vec::<u8>::new(), [Vec::<u8>::new(), Vec::new()], 1000, None);
            for (number, (is_out, bytes, step)) in parts.iter().enumerate() {
                if number == reopen {
                    writer = LogWriter::open(dir.path()).unwrap();
                }
                now += step + 1;
                if number == reopen { since = Some((Timestamp(now), model.len())); }
                let stream = if *is_out { Stream::Stdout } else { Stream::Stderr };
                writer.append(stream, bytes, Timestamp(now)).unwrap();
                streams[stream.slot()].extend(bytes);
                model.extend(bytes);
            }
            let reader = LogReader::open(dir.path()).unwrap();
            prop_assert_eq!(&merged(&reader), &model);
            for stream in Stream::BOTH {
                prop_assert_eq!(std::fs::read(dir.path().join(stream.file_name())).unwrap(), &streams[stream.slot()][..]);
            }
            let mut tail = vec![0; 64];
            let from = usize::try_from(probe).unwrap().min(model.len());
            let count = reader.read_at(probe, &mut tail).unwrap();
            prop_assert_eq!(&tail[..count], &model[from..(from + 64).min(model.len())]);
            if let Some((time, offset)) = since {
                prop_assert!(reader.offset_since(time).unwrap() >= offset as u64);
            }
        }
    }

    #[test]
    fn the_last_lines_are_found_with_and_without_a_final_newline() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::open(dir.path()).unwrap();
        writer.append(Stream::Stdout, b"a\nb\n", Timestamp(1)).unwrap();
        writer.append(Stream::Stderr, b"c\n", Timestamp(2)).unwrap();
        let reader = LogReader::open(dir.path()).unwrap();
        let last = |lines| reader.offset_of_last_lines(lines).unwrap();
        assert_eq!((last(0), last(1), last(2), last(9)), (6, 4, 2, 0));
        writer.append(Stream::Stdout, b"d", Timestamp(3)).unwrap();
        assert_eq!(reader.offset_of_last_lines(2).unwrap(), 4);
    }
}
