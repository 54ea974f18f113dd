//! The index: which piece of which stream came when, and where it stands in the stamped view.
//!
//! A header of 1 KiB, then records of 32 bytes in the order in which the output came; little endian.
//!
//! Header, of u64: magic; stream that is just being rotated (0 none, 1 stdout, 2 stderr; the only field that is changed
//! in place); for each stream: when a part was last dropped (ms since 1970), count of parts, where each part begins,
//! the oldest first. What is before the oldest was dropped.
//!
//! Record, of u64: time (ms since 1970), offset in the stamped view, offset in the stream; then length (24 bits),
//! newlines (24 bits), flags (16 bits) in one word, so that a piece that grows changes one word only.
//!
//! The stamped view of a piece is its bytes, with a stamp of 30 bytes before each line, such as
//! `2026-11-28T06:05:48.123Z out| `. A line that the other stream interrupts is ended, and goes on with `out+ `.
//!
//! An index without the magic is of the time before stamps: records alone, shown without stamps.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::Stream;
use crate::ids::{LogLimits, Timestamp};

pub const INDEX_FILE: &str = ".log.index";
pub(super) const RECORD: usize = 32;
pub(super) const HEADER: usize = 1024;
const MAGIC: u64 = u64::from_le_bytes(*b"TYLOGS2\n");
/// Where the header names the stream that is being rotated.
const ROTATING_AT: usize = 8;
/// Bytes of the header that each stream has.
const SLOT: usize = 16 + 8 * (LogLimits::PARTS_MAX as usize + 1);
const _: () = assert!(16 + 2 * SLOT <= HEADER);
/// Most bytes of output in one record; also what a read may have to look through.
pub(super) const PIECE_MAX: usize = 64 << 10;
/// Bytes of the stamp before each line.
pub(super) const STAMP: usize = 30;

const ENDS_LINE: u64 = 4;
const BREAKS: u64 = 8;
const STAMPED: u64 = 16;
const CONTINUES: u64 = 32;

/// One piece of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub time: Timestamp,
    pub stream: Stream,
    /// Where it begins in its stream.
    pub offset: u64,
    /// Bytes, never 0.
    pub length: u32,
    pub(super) newlines: u32,
    /// Where it begins in the stamped view, the lines on dropped output not counted.
    pub(super) view: u64,
    /// Its last byte is a newline.
    pub(super) ends_line: bool,
    /// It begins within a line of its stream.
    pub(super) continues: bool,
    /// The view ends a line of the other stream before it.
    pub(super) breaks: bool,
    /// The view begins a line with it.
    pub(super) stamped: bool,
    /// Of an index from before stamps.
    pub(super) plain: bool,
}

impl Record {
    /// Where it ends in its stream.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// How many lines begin within the piece, after its first byte.
    pub(super) fn inner_lines(&self) -> u64 {
        if self.plain { 0 } else { u64::from(self.newlines).saturating_sub(u64::from(self.ends_line)) }
    }

    /// Where it ends in the stamped view.
    pub(super) fn view_end(&self) -> u64 {
        let stamps = self.inner_lines() + u64::from(self.stamped);
        self.view + u64::from(self.breaks) + stamps * STAMP as u64 + u64::from(self.length)
    }

    /// The same piece in a view where it follows `previous`.
    pub(super) fn placed_after(self, previous: Option<&Record>) -> Self {
        let Some(previous) = previous else { return Self { view: 0, breaks: false, stamped: true, ..self } };
        let other = previous.stream != self.stream;
        Self {
            view: previous.view_end(),
            breaks: other && !previous.ends_line,
            stamped: other || previous.ends_line,
            ..self
        }
    }

    /// The stamp of its lines; of the first one, where it goes on with a line, another.
    pub(super) fn stamp(&self, first: bool) -> [u8; STAMP] {
        let name = if self.stream == Stream::Stdout { "out" } else { "err" };
        let mark = if first && self.continues { '+' } else { '|' };
        stamp(self.time, name, mark)
    }

    fn encode(&self) -> [u8; RECORD] {
        let flag = |is: bool, bit: u64| if is { bit } else { 0 };
        let flags = self.stream.number()
            | flag(self.ends_line, ENDS_LINE)
            | flag(self.breaks, BREAKS)
            | flag(self.stamped, STAMPED)
            | flag(self.continues, CONTINUES);
        let last = u64::from(self.length) | u64::from(self.newlines) << 24 | flags << 48;
        let mut out = [0; RECORD];
        for (place, word) in out.chunks_exact_mut(8).zip([self.time.0, self.view, self.offset, last]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let last = word(bytes, 24);
        let flags = last >> 48;
        let low = |bits: u64| u32::try_from(bits & 0xff_ffff).ok();
        Some(Self {
            time: Timestamp(word(bytes, 0)),
            view: word(bytes, 8),
            offset: word(bytes, 16),
            length: low(last)?,
            newlines: low(last >> 24)?,
            stream: Stream::from_number(flags & 3)?,
            ends_line: flags & ENDS_LINE != 0,
            breaks: flags & BREAKS != 0,
            stamped: flags & STAMPED != 0,
            continues: flags & CONTINUES != 0,
            plain: false,
        })
    }

    /// From before stamps: time, offset in the merged log, offset in the stream, length (u32), stream (u32).
    fn decode_old(bytes: &[u8; RECORD]) -> Option<Self> {
        let last = word(bytes, 24);
        Some(Self {
            time: Timestamp(word(bytes, 0)),
            view: word(bytes, 8),
            offset: word(bytes, 16),
            length: u32::try_from(last & u64::from(u32::MAX)).ok()?,
            newlines: 0,
            stream: Stream::from_number(last >> 32)?,
            ends_line: false,
            breaks: false,
            stamped: false,
            continues: false,
            plain: true,
        })
    }
}

/// `TIME NAME| `, always of the same length.
pub(super) fn stamp(time: Timestamp, name: &str, mark: char) -> [u8; STAMP] {
    let text = format!("{:<24.24} {name:.3}{mark} ", time.to_string());
    let mut out = [b' '; STAMP];
    for (to, from) in out.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    out
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut part = [0; 8];
    part.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(part)
}

/// The parts of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartList {
    /// Where each begins in the stream, the oldest first; never empty.
    pub(super) bases: Vec<u64>,
    pub(super) dropped_at: Timestamp,
}

impl PartList {
    /// Where the oldest part begins: as much was dropped.
    pub(super) fn oldest(&self) -> u64 {
        self.bases.first().copied().unwrap_or(0)
    }

    /// Where the newest part begins.
    pub(super) fn newest(&self) -> u64 {
        self.bases.last().copied().unwrap_or(0)
    }

    /// Where the part begins that holds byte `offset`.
    pub(super) fn base_of(&self, offset: u64) -> u64 {
        let after = self.bases.partition_point(|base| *base <= offset);
        after.checked_sub(1).and_then(|at| self.bases.get(at)).copied().unwrap_or(0)
    }
}

/// What the index says of the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// The newest part of this stream has just ended; its file may still have the old name.
    pub(super) rotating: Option<Stream>,
    pub(super) streams: [PartList; 2],
}

impl Header {
    pub(super) fn new() -> Self {
        let list = || PartList { bases: vec![0], dropped_at: Timestamp(0) };
        Self { rotating: None, streams: [list(), list()] }
    }

    pub(super) fn of(&self, stream: Stream) -> &PartList {
        &self.streams[stream.slot()]
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER);
        let mut put = |value: u64| out.extend(value.to_le_bytes());
        put(MAGIC);
        put(self.rotating.map_or(0, Stream::number));
        for list in &self.streams {
            put(list.dropped_at.0);
            put(list.bases.len() as u64);
            (0..SLOT / 8 - 2).for_each(|at| put(list.bases.get(at).copied().unwrap_or(0)));
        }
        out.resize(HEADER, 0);
        out
    }

    /// `None` when it is of the time before stamps.
    fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        if word(bytes, 0) != MAGIC {
            return None;
        }
        let list = |slot: usize| {
            let at = 16 + slot * SLOT;
            let count = usize::try_from(word(bytes, at + 8)).unwrap_or(0).clamp(1, SLOT / 8 - 2);
            let bases = (0..count).map(|part| word(bytes, at + 16 + 8 * part)).collect();
            PartList { bases, dropped_at: Timestamp(word(bytes, at)) }
        };
        Some(Self { rotating: Stream::from_number(word(bytes, ROTATING_AT)), streams: [list(0), list(1)] })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Current,
    Old,
}

/// An open index; it stays the one that was opened when another takes its name.
#[derive(Debug)]
pub(super) struct Index {
    file: File,
    layout: Layout,
    /// Device and inode.
    identity: (u64, u64),
}

impl Index {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(dir.join(INDEX_FILE))?;
        Self::of(file)
    }

    pub(super) fn of(file: File) -> io::Result<Self> {
        let mut magic = [0; 8];
        let is_old = match file.read_exact_at(&mut magic, 0) {
            Ok(()) => u64::from_le_bytes(magic) != MAGIC,
            // Just being made.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error),
        };
        let about = file.metadata()?;
        let layout = if is_old { Layout::Old } else { Layout::Current };
        Ok(Self { file, layout, identity: (about.dev(), about.ino()) })
    }

    pub(super) fn is_old(&self) -> bool {
        self.layout == Layout::Old
    }

    pub(super) fn header(&self) -> io::Result<Header> {
        let mut bytes = [0; HEADER];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(Header::decode(&bytes).unwrap_or_else(Header::new)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Header::new()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write_header(&self, header: &Header) -> io::Result<()> {
        self.file.write_all_at(&header.encode(), 0)
    }

    pub(super) fn clear_rotating(&self) -> io::Result<()> {
        self.file.write_all_at(&[0; 8], ROTATING_AT as u64)
    }

    /// Another index has its name in `dir`.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    pub(super) fn is_replaced(&self, dir: &Path) -> io::Result<bool> {
        let about = std::fs::symlink_metadata(dir.join(INDEX_FILE))?;
        Ok((about.dev(), about.ino()) != self.identity)
    }

    fn start(&self) -> u64 {
        if self.is_old() { 0 } else { HEADER as u64 }
    }

    pub(super) fn records(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().saturating_sub(self.start()) / RECORD as u64)
    }

    pub(super) fn record(&self, number: u64) -> io::Result<Option<Record>> {
        Ok(self.some_records(number, 1)?.first().copied())
    }

    pub(super) fn last(&self) -> io::Result<Option<Record>> {
        self.records()?.checked_sub(1).map_or(Ok(None), |last| self.record(last))
    }

    /// At most `count` records from `number` on; none at the end.
    pub(super) fn some_records(&self, number: u64, count: usize) -> io::Result<Vec<Record>> {
        let left = usize::try_from(self.records()?.saturating_sub(number)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; count.min(left) * RECORD];
        self.file.read_exact_at(&mut bytes, self.start() + number * RECORD as u64)?;
        let (records, _) = bytes.as_chunks::<RECORD>();
        let decode = if self.is_old() { Record::decode_old } else { Record::decode };
        Ok(records.iter().map_while(decode).collect())
    }

    pub(super) fn write_record(&self, number: u64, record: &Record) -> io::Result<()> {
        self.file.write_all_at(&record.encode(), self.start() + number * RECORD as u64)
    }

    pub(super) fn write_records(&self, number: u64, records: &[Record]) -> io::Result<()> {
        let bytes: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        self.file.write_all_at(&bytes, self.start() + number * RECORD as u64)
    }

    /// Number of the first record for which `holds` is true; `holds` must be false, then true along the index.
    pub(super) fn search(&self, holds: impl Fn(&Record) -> bool) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.records()?);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.record(middle)? {
                Some(record) if !holds(&record) => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
