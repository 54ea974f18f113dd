//! The writing side; one a task, in its shim.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Stream;
use super::index::{Header, INDEX_FILE, Index, PIECE_MAX, RECORD, Record};
use super::parts::{self, step};
use crate::ids::{LogLimits, Timestamp};

/// Output that follows within this time goes into the same record.
const COALESCE_MS: u64 = 20;
/// Records of the index that are copied at once.
const COPIED: usize = 1024;

#[derive(Debug)]
pub struct LogWriter {
    dir: PathBuf,
    owner: (u32, u32),
    limits: LogLimits,
    index: Index,
    header: Header,
    records: u64,
    last: Option<Record>,
    /// The last record may still grow; not after its index was copied, since readers know it by its end.
    grows: bool,
    streams: [Newest; 2],
}

/// The newest part of a stream.
#[derive(Debug)]
struct Newest {
    file: File,
    size: u64,
    /// Of it in the index.
    records: u64,
    /// The stream's last byte is not a newline.
    in_line: bool,
    /// A rotation failed: the next is tried when the part is as full as this.
    not_before: u64,
}

impl Newest {
    fn new(file: File, size: u64, in_line: bool) -> Self {
        Self { file, size, records: 0, in_line, not_before: 0 }
    }

    /// Bytes, or those in the index if they are more, so that tiny pieces cannot fill the disk with records.
    fn fullness(&self) -> u64 {
        self.size.max(self.records * RECORD as u64)
    }

    fn is_full(&self, part_size: u64) -> bool {
        let full = self.fullness();
        let at_line_end = full >= part_size && !self.in_line;
        full >= self.not_before && (at_line_end || full >= part_size.saturating_mul(2))
    }

    /// How many of `bytes` go into this part at once: to the line end that completes it, or to its hard limit.
    fn takes(&self, bytes: &[u8], part_size: u64) -> usize {
        let most = bytes.len().min(PIECE_MAX);
        let room = |limit: u64| usize::try_from(limit.saturating_sub(self.size)).unwrap_or(usize::MAX);
        let from = room(part_size).saturating_sub(1);
        let line_end = bytes.iter().take(most).skip(from).position(|byte| *byte == b'\n').map(|at| from + at + 1);
        match (line_end, room(part_size.saturating_mul(2))) {
            (Some(count), _) => count,
            // It could not be rotated.
            (None, 0) => most,
            (None, left) => most.min(left),
        }
    }
}

impl LogWriter {
    /// Opens the logs in `dir`, going on after what is there.
    pub fn open(dir: &Path, limits: LogLimits) -> io::Result<Self> {
        let about = fs::metadata(dir)?;
        let owner = (about.uid(), about.gid());
        let open = |name: &str| parts::open_to_write(&dir.join(name), owner);
        let mut streams = [open(Stream::Stdout.file_name())?, open(Stream::Stderr.file_name())?]
            .map(|file| Newest::new(file, 0, false));
        let index = open_index(dir, owner)?;
        let mut header = index.header()?;
        if let Some(stream) = header.rotating {
            streams[stream.slot()].file = parts::finish(dir, stream, header.of(stream), owner)?;
            index.clear_rotating()?;
            header.rotating = None;
        }
        for newest in &mut streams {
            newest.size = newest.file.metadata()?.len();
            newest.in_line = ends_within_line(&newest.file, newest.size)?;
        }
        let (records, last) = (index.records()?, index.last()?);
        Ok(Self { dir: dir.to_owned(), owner, limits, index, header, records, last, grows: false, streams })
    }

    /// Adds output of `stream` that was read at `now`, and takes from `bytes` what was written. After an error the
    /// same call may be made again.
    pub fn append(&mut self, stream: Stream, bytes: &mut &[u8], now: Timestamp) -> io::Result<()> {
        while !bytes.is_empty() {
            self.make_room(stream, now)?;
            let count = self.streams[stream.slot()].takes(bytes, self.limits.part_size);
            let (piece, rest) = bytes.split_at(count);
            self.write_piece(stream, piece, now)?;
            *bytes = rest;
        }
        Ok(())
    }

    fn write_piece(&mut self, stream: Stream, piece: &[u8], now: Timestamp) -> io::Result<()> {
        let newest = &self.streams[stream.slot()];
        step()?;
        newest.file.write_all_at(piece, newest.size)?;
        let (record, number) = match self.grown(stream, piece, now) {
            Some(record) => (record, self.records - 1),
            None => (self.new_record(stream, piece, now), self.records),
        };
        step()?;
        self.index.write_record(number, &record)?;
        let newest = &mut self.streams[stream.slot()];
        newest.size += piece.len() as u64;
        newest.in_line = !record.ends_line;
        newest.records += number + 1 - self.records;
        (self.records, self.last, self.grows) = (number + 1, Some(record), true);
        Ok(())
    }

    fn new_record(&self, stream: Stream, piece: &[u8], now: Timestamp) -> Record {
        let newest = &self.streams[stream.slot()];
        let record = Record {
            time: now,
            stream,
            offset: self.header.of(stream).newest() + newest.size,
            length: length(piece),
            newlines: newlines(piece),
            view: 0,
            ends_line: piece.ends_with(b"\n"),
            continues: newest.in_line,
            breaks: false,
            stamped: false,
            plain: false,
        };
        record.placed_after(self.last.as_ref())
    }

    /// The last record with `piece` added, when it belongs to it.
    fn grown(&self, stream: Stream, piece: &[u8], now: Timestamp) -> Option<Record> {
        let last = self.last.filter(|last| self.grows && last.stream == stream)?;
        let list = self.header.of(stream);
        let adjoins = last.end() == list.newest() + self.streams[stream.slot()].size && last.offset >= list.newest();
        let soon = now.0.saturating_sub(last.time.0) <= COALESCE_MS;
        let length = last.length.checked_add(length(piece)).filter(|length| *length as usize <= PIECE_MAX);
        let length = length.filter(|_| adjoins && soon)?;
        let ends_line = piece.ends_with(b"\n");
        Some(Record { length, newlines: last.newlines + newlines(piece), ends_line, ..last })
    }

    /// Begins another part when the newest is full.
    fn make_room(&mut self, stream: Stream, now: Timestamp) -> io::Result<()> {
        if self.header.rotating.is_some() {
            self.finish()?;
        }
        if !self.streams[stream.slot()].is_full(self.limits.part_size) {
            return Ok(());
        }
        match self.rotate(stream, now) {
            // Nothing has changed yet: a part that is too large is better than a program that waits.
            Err(error) if self.header.rotating.is_none() && error.kind() != io::ErrorKind::StorageFull => {
                tracing::warn!(%error, "cannot begin another part of the log, this one goes on growing");
                let newest = &mut self.streams[stream.slot()];
                newest.not_before = newest.fullness() + self.limits.part_size / 4;
                Ok(())
            }
            other => other,
        }
    }

    fn rotate(&mut self, stream: Stream, now: Timestamp) -> io::Result<()> {
        let mut header = self.header.clone();
        let list = &mut header.streams[stream.slot()];
        list.bases.push(list.newest() + self.streams[stream.slot()].size);
        let kept = self.limits.parts.clamp(2, LogLimits::PARTS_MAX) as usize;
        if let Some(surplus) = list.bases.len().checked_sub(kept).filter(|surplus| *surplus > 0) {
            list.bases.drain(..surplus);
            list.dropped_at = now;
        }
        header.rotating = Some(stream);
        parts::make_next(&self.dir, stream, self.owner)?;
        let next = self.dir.join(format!("{INDEX_FILE}.next"));
        let (index, records, last) = self.copy_index(&next, &header)?;
        // Else the machine's end could leave an empty one in the place of all that the old one told.
        index.sync()?;
        step()?;
        fs::rename(&next, self.dir.join(INDEX_FILE))?;
        (self.index, self.header, self.records, self.last, self.grows) = (index, header, records, last, false);
        self.finish()
    }

    /// Takes the files to where the index has them.
    fn finish(&mut self) -> io::Result<()> {
        let Some(stream) = self.header.rotating else { return Ok(()) };
        let file = parts::finish(&self.dir, stream, self.header.of(stream), self.owner)?;
        step()?;
        self.index.clear_rotating()?;
        self.header.rotating = None;
        let newest = &mut self.streams[stream.slot()];
        *newest = Newest::new(file, 0, newest.in_line);
        Ok(())
    }

    /// Writes the index under another name, without what `header` drops. Returns it with its size and last record.
    fn copy_index(&self, path: &Path, header: &Header) -> io::Result<(Index, u64, Option<Record>)> {
        step()?;
        let file = parts::create(path, self.owner)?;
        // As an empty file it would be one of the present layout as well.
        let index = Index::of(file)?;
        step()?;
        index.write_header(header)?;
        let (mut from, mut to, mut last) = (0, 0, None);
        while from < self.records {
            let mut records = self.index.some_records(from, COPIED)?;
            if records.is_empty() {
                break;
            }
            from += records.len() as u64;
            records.retain(|record| record.offset >= header.of(record.stream).oldest());
            for record in &mut records {
                *record = record.placed_after(last.as_ref());
                last = Some(*record);
            }
            step()?;
            index.write_records(to, &records)?;
            to += records.len() as u64;
        }
        Ok((index, to, last))
    }

    /// Makes what was written outlive the machine.
    pub fn sync(&self) -> io::Result<()> {
        for stream in Stream::BOTH {
            for number in 1..self.header.of(stream).bases.len() {
                match File::open(parts::part_file(&self.dir, stream, number)) {
                    Ok(file) => file.sync_data()?,
                    // Removed by its owner.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.streams.iter().try_for_each(|newest| newest.file.sync_data())?;
        self.index.sync()?;
        File::open(&self.dir)?.sync_all()
    }
}

/// One from before stamps is begun anew: its pieces have no count of lines.
fn open_index(dir: &Path, owner: (u32, u32)) -> io::Result<Index> {
    let path = dir.join(INDEX_FILE);
    let file = parts::open_to_write(&path, owner)?;
    let index = Index::of(file)?;
    let size = fs::metadata(&path)?.len();
    if !index.is_old() && size >= super::index::HEADER as u64 {
        return Ok(index);
    }
    let index = Index::of(parts::create(&path, owner)?)?;
    index.write_header(&Header::new())?;
    Ok(index)
}

fn ends_within_line(file: &File, size: u64) -> io::Result<bool> {
    let Some(last) = size.checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}

fn length(piece: &[u8]) -> u32 {
    u32::try_from(piece.len()).expect("a piece has at most 64 KiB")
}

fn newlines(piece: &[u8]) -> u32 {
    let count = piece.iter().filter(|byte| **byte == b'\n').count();
    u32::try_from(count).expect("a piece has at most 64 KiB")
}
