//! The reading side: both streams merged in the order in which they came, as stamped lines or piece by piece.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Stream;
use super::index::{Header, Index, Record, stamp};
use super::parts::{self, Parts};
use crate::ids::Timestamp;

/// Records that are read at once.
const BATCH: usize = 128;

/// Output that is no longer kept, or that was dropped before it could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    pub stream: Stream,
    pub bytes: u64,
    /// When the last of it was dropped.
    pub at: Timestamp,
}

impl Dropped {
    /// As the log says it.
    pub fn text(&self) -> String {
        format!("--- {} bytes of older {} were dropped ---", self.bytes, self.stream.name())
    }
}

/// How far somebody has read, piece by piece.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    record: u64,
    /// Bytes of it that were read.
    skip: u64,
}

/// The log as it was at its last rotation, and what was added since. It does not change when the log is rotated again:
/// [`Self::is_replaced`] tells, and its user decides when to go on to the next.
#[derive(Debug)]
pub struct LogReader {
    dir: PathBuf,
    index: Index,
    header: Header,
    /// Lines on dropped output, at the head of the stamped view.
    markers: Vec<u8>,
    parts: Parts,
    piece: Vec<u8>,
}

impl LogReader {
    /// Opens the logs in `dir` to ask for sizes and times; fails with `NotFound` before the task's first start.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let index = Index::open(dir)?;
        let header = index.header()?;
        Ok(Self::of(dir, index, header, Parts::default()))
    }

    /// Opens the logs to read them: with all their files, so that what is dropped later can still be read.
    pub fn open_whole(dir: &Path) -> io::Result<Self> {
        let (index, header, parts) = parts::open(dir)?;
        Ok(Self::of(dir, index, header, parts))
    }

    fn of(dir: &Path, index: Index, header: Header, parts: Parts) -> Self {
        let mut reader = Self { dir: dir.to_owned(), index, header, markers: Vec::new(), parts, piece: Vec::new() };
        for dropped in reader.dropped() {
            reader.markers.extend(stamp(dropped.at, "log", '|'));
            reader.markers.extend(dropped.text().into_bytes());
            reader.markers.push(b'\n');
        }
        reader
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is no longer kept of each stream.
    pub fn dropped(&self) -> Vec<Dropped> {
        let each = Stream::BOTH.into_iter().map(|stream| {
            let list = self.header.of(stream);
            Dropped { stream, bytes: list.oldest(), at: list.dropped_at }
        });
        each.filter(|dropped| dropped.bytes > 0).collect()
    }

    /// Device and inode of its index: another one after each rotation.
    pub fn identity(&self) -> (u64, u64) {
        self.index.identity()
    }

    /// The log was rotated since this was opened.
    pub fn is_replaced(&self) -> io::Result<bool> {
        self.index.is_replaced(&self.dir)
    }

    /// Bytes of the stamped view so far.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.markers.len() as u64 + self.index.last()?.map_or(0, |record| record.view_end()))
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Time of the last output.
    pub fn modified(&self) -> io::Result<Option<Timestamp>> {
        let dropped = self.header.streams.iter().map(|list| list.dropped_at).max().filter(|time| time.0 > 0);
        Ok(self.index.last()?.map(|record| record.time).max(dropped))
    }

    /// Fills `buffer` from byte `offset` of the stamped view; fewer bytes only at its end.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let head = self.markers.len() as u64;
        let mut window = Window { skip: offset, buffer, filled: 0 };
        if offset < head {
            window.push(&self.markers);
        }
        let at = offset.saturating_sub(head);
        // The last of them may still grow, so that what comes later does not follow on what is read of it here.
        let end = self.index.records()?;
        let mut number = self.index.search(|record| record.view_end() > at)?;
        while number < end && !window.is_full() {
            let count = usize::try_from(end - number).unwrap_or(BATCH).min(BATCH);
            let records = self.index.some_records(number, count)?;
            if records.is_empty() {
                break;
            }
            number += records.len() as u64;
            for record in &records {
                window.skip = at.saturating_sub(record.view);
                self.render(record, &mut window)?;
                if window.is_full() {
                    break;
                }
            }
        }
        Ok(window.filled)
    }

    fn render(&mut self, record: &Record, window: &mut Window<'_>) -> io::Result<()> {
        if record.breaks {
            window.push(b"\n");
        }
        if record.stamped {
            window.push(&record.stamp(true));
        }
        if record.inner_lines() == 0 {
            return self.render_unbroken(record, window);
        }
        let mut piece = std::mem::take(&mut self.piece);
        piece.resize(record.length as usize, 0);
        let read = self.read_piece(record, 0, &mut piece);
        let stamp = record.stamp(false);
        for (number, line) in piece.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                window.push(&stamp);
            }
            window.push(line);
            if window.is_full() {
                break;
            }
        }
        self.piece = piece;
        read
    }

    /// Bytes that no stamp comes between, straight into the window.
    fn render_unbroken(&mut self, record: &Record, window: &mut Window<'_>) -> io::Result<()> {
        let left = u64::from(record.length).saturating_sub(window.skip);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(window.buffer.len() - window.filled);
        let skip = window.skip;
        window.skip = window.skip.saturating_sub(u64::from(record.length));
        let (from, to) = (window.filled, window.filled + count);
        window.filled = to;
        self.read_piece(record, skip, &mut window.buffer[from..to])
    }

    /// Fills `buffer` from byte `skip` of the piece; what somebody has removed from the files reads as NUL.
    fn read_piece(&mut self, record: &Record, skip: u64, buffer: &mut [u8]) -> io::Result<()> {
        let base = self.header.of(record.stream).base_of(record.offset);
        let mut filled = 0;
        while let Some(file) = self.file(record.stream, base).filter(|_| filled < buffer.len()) {
            let at = record.offset - base + skip + filled as u64;
            match file.read_at(&mut buffer[filled..], at) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buffer[filled..].fill(0);
        Ok(())
    }

    fn file(&self, stream: Stream, base: u64) -> Option<&File> {
        self.parts[stream.slot()].iter().find(|(known, _)| *known == base).map(|(_, file)| file)
    }

    /// Goes on to the log as it is since it was rotated; answers where what was not yet read, and is still kept, begins in its
    /// view.
    pub fn follow_view(&mut self) -> io::Result<u64> {
        let mut cursor = Cursor { record: self.index.records()?, skip: 0 };
        self.follow(&mut cursor)?;
        let first = self.index.record(cursor.record)?;
        let view = first.map_or_else(
            || self.index.last().map(|last| last.map_or(0, |last| last.view_end())),
            |record| Ok(record.view),
        )?;
        Ok(self.markers.len() as u64 + view)
    }

    /// Goes on to the log as it is since it was rotated, if it was; tells what was dropped unread.
    pub fn follow(&mut self, cursor: &mut Cursor) -> io::Result<Vec<Dropped>> {
        let mut lost = Vec::new();
        if !self.is_replaced()? {
            return Ok(lost);
        }
        let mut read = self.offsets_at(cursor)?;
        *self = Self::open_whole(&self.dir)?;
        for (stream, read) in Stream::BOTH.into_iter().zip(&mut read) {
            let list = self.header.of(stream);
            let bytes = list.oldest().saturating_sub(*read);
            if bytes > 0 {
                lost.push(Dropped { stream, bytes, at: list.dropped_at });
            }
            *read = list.oldest().max(*read);
        }
        let record = self.index.search(|record| record.end() > read[record.stream.slot()])?;
        let begun =
            self.index.record(record)?.map_or(0, |first| read[first.stream.slot()].saturating_sub(first.offset));
        *cursor = Cursor { record, skip: begun };
        Ok(lost)
    }

    /// How far `cursor` has come in each stream. Looks back until it finds a piece of both.
    fn offsets_at(&self, cursor: &Cursor) -> io::Result<[u64; 2]> {
        let mut found = [None, None];
        if let Some(begun) = self.index.record(cursor.record)?.filter(|_| cursor.skip > 0) {
            found[begun.stream.slot()] = Some(begun.offset + cursor.skip);
        }
        let mut end = cursor.record;
        while end > 0 && found.contains(&None) {
            let start = end.saturating_sub(BATCH as u64);
            let records = self.index.some_records(start, usize::try_from(end - start).unwrap_or(BATCH))?;
            for record in records.iter().rev() {
                found[record.stream.slot()].get_or_insert(record.end());
            }
            end = start;
        }
        let [out, err] = found;
        let oldest = |stream| self.header.of(stream).oldest();
        Ok([out.unwrap_or_else(|| oldest(Stream::Stdout)), err.unwrap_or_else(|| oldest(Stream::Stderr))])
    }

    /// How far the log goes by now. What comes later lies behind it, also where that makes the last piece longer.
    pub fn end(&self) -> io::Result<Cursor> {
        loop {
            let Some(number) = self.index.records()?.checked_sub(1) else { return Ok(Cursor::default()) };
            if let Some(last) = self.index.record(number)? {
                return Ok(Cursor { record: number, skip: u64::from(last.length) });
            }
        }
    }

    /// As [`Self::piece_at`], of what lies before `end`.
    pub fn piece_before(&self, end: Cursor, cursor: &mut Cursor) -> io::Result<Option<Record>> {
        let Some(record) = self.piece_at(cursor)?.filter(|_| *cursor < end) else { return Ok(None) };
        let most = if cursor.record == end.record { u32::try_from(end.skip).unwrap_or(u32::MAX) } else { u32::MAX };
        Ok(Some(Record { length: record.length.min(most), ..record }))
    }

    /// The piece at `cursor`; `None` at the end of what there is so far.
    pub fn piece_at(&self, cursor: &mut Cursor) -> io::Result<Option<Record>> {
        loop {
            let Some(record) = self.index.record(cursor.record)? else { return Ok(None) };
            if cursor.skip < u64::from(record.length) {
                return Ok(Some(record));
            }
            // It may still grow, as long as none comes after it; and it may have grown before that one came.
            if self.index.record(cursor.record + 1)?.is_none() {
                return Ok(None);
            }
            if self.index.record(cursor.record)? != Some(record) {
                continue;
            }
            *cursor = Cursor { record: cursor.record + 1, skip: 0 };
        }
    }

    /// Reads on at `cursor`, which is in `record`, and moves it.
    pub fn read_on(&mut self, record: &Record, cursor: &mut Cursor, buffer: &mut [u8]) -> io::Result<usize> {
        let left = u64::from(record.length).saturating_sub(cursor.skip);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        self.read_piece(record, cursor.skip, &mut buffer[..count])?;
        cursor.skip += count as u64;
        Ok(count)
    }

    /// Where output from `time` on begins.
    pub fn since(&self, time: Timestamp) -> io::Result<Cursor> {
        Ok(Cursor { record: self.index.search(|record| record.time >= time)?, skip: 0 })
    }

    /// Where the last `lines` lines begin.
    pub fn last_lines(&mut self, lines: u64) -> io::Result<Cursor> {
        let records = self.index.records()?;
        let (mut end, mut missing) = (records, lines);
        if lines == 0 {
            return Ok(Cursor { record: end, skip: 0 });
        }
        while end > 0 {
            let start = end.saturating_sub(BATCH as u64);
            let batch = self.index.some_records(start, usize::try_from(end - start).unwrap_or(BATCH))?;
            for (place, record) in batch.iter().enumerate().rev() {
                let number = start + place as u64;
                let newlines = self.newlines_to_count(record, number + 1 == records)?;
                if newlines >= missing {
                    return Ok(Cursor { record: number, skip: self.after_newline(record, newlines - missing)? });
                }
                missing -= newlines;
            }
            end = start;
        }
        Ok(Cursor::default())
    }

    /// The newline at the very end ends the last line and begins none.
    fn newlines_to_count(&mut self, record: &Record, is_last: bool) -> io::Result<u64> {
        if !record.plain {
            return Ok(u64::from(record.newlines) - u64::from(is_last && record.ends_line));
        }
        let piece = self.whole(record)?;
        let counted = if is_last { piece.len().saturating_sub(1) } else { piece.len() };
        Ok(piece.iter().take(counted).filter(|byte| **byte == b'\n').count() as u64)
    }

    /// Bytes of the piece up to and with its newline number `number`, from 0.
    fn after_newline(&mut self, record: &Record, number: u64) -> io::Result<u64> {
        let piece = self.whole(record)?;
        let ends = piece.iter().zip(1..).filter(|(byte, _)| **byte == b'\n').map(|(_, end)| end);
        Ok(ends.zip(0..).find(|(_, counted)| *counted == number).map_or(0, |(end, _)| end))
    }

    fn whole(&mut self, record: &Record) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; record.length as usize];
        self.read_piece(record, 0, &mut piece)?;
        Ok(piece)
    }
}

/// A part of the view that somebody wants to read.
struct Window<'a> {
    /// Bytes before it that are still to come.
    skip: u64,
    buffer: &'a mut [u8],
    filled: usize,
}

impl Window<'_> {
    fn is_full(&self) -> bool {
        self.filled == self.buffer.len()
    }

    /// Takes what of `bytes` is to be seen.
    fn push(&mut self, bytes: &[u8]) {
        let skipped = bytes.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.skip -= skipped as u64;
        let seen = &bytes[skipped..];
        let count = seen.len().min(self.buffer.len() - self.filled);
        self.buffer[self.filled..self.filled + count].copy_from_slice(&seen[..count]);
        self.filled += count;
    }
}
