//! From a blob to a tar stream: what it is compressed with, what passes through, and a thread that works ahead.

use std::fmt::{self, Display};
use std::io::{self, BufReader, Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use sha2::{Digest, Sha256};

const BUFFER: usize = 256 << 10;
/// Buffers between the two threads.
const AHEAD: usize = 4;
/// The memory that a zstd frame may ask for, as a power of two: 128 MiB, what the `zstd` tool accepts.
const ZSTD_WINDOW: u32 = 27;
/// What may follow the end of an archive; tools pad to their records, which have kilobytes.
const MOST_TRAILING: u64 = 64 << 20;

/// What a stream says it is by its first bytes; the media type of a layer is often wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    /// By the first four bytes, or all there are.
    pub fn sniff(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // A frame, or one to be skipped before it.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

/// The content of a blob, whatever it is compressed with: gzip of any number of members, zstd of any number of frames.
///
/// Errors of broken input are none of the system: their `raw_os_error` is `None`.
pub fn decompress(mut reader: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut start = Vec::with_capacity(4);
    reader.by_ref().take(4).read_to_end(&mut start)?;
    let compression = Compression::sniff(&start);
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(reader));
    match compression {
        Compression::Plain => Ok(Box::new(whole)),
        Compression::Gzip => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(whole))),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
            decoder.window_log_max(ZSTD_WINDOW)?;
            Ok(Box::new(decoder))
        }
    }
}

/// The sha256 and the length of what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    pub sha256: [u8; 32],
    pub bytes: u64,
}

/// The digest as manifests write it.
impl Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.sha256.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The sum of a [`Hashing`] reader, for whoever gave the reader away.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<(Sha256, u64)>>);

impl Tally {
    /// Of what was read so far: of the whole only after the stream was read to its end.
    pub fn sum(&self) -> Sum {
        let (hash, bytes) = &*self.locked();
        Sum { sha256: hash.clone().finalize().into(), bytes: *bytes }
    }

    fn add(&self, part: &[u8]) {
        let (hash, bytes) = &mut *self.locked();
        hash.update(part);
        *bytes += part.len() as u64;
    }

    fn locked(&self) -> MutexGuard<'_, (Sha256, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sums up what passes through.
pub struct Hashing<R> {
    reader: R,
    tally: Tally,
}

impl<R: Read> Hashing<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, tally: Tally::default() }
    }

    pub fn tally(&self) -> Tally {
        self.tally.clone()
    }

    /// Reads to the end and tells the sum of all.
    pub fn finish(mut self) -> io::Result<Sum> {
        drain(&mut self)?;
        Ok(self.tally.sum())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(into)?;
        self.tally.add(&into[..count]);
        Ok(count)
    }
}

/// Reads what is left, within reason: a bomb behind the archive must not keep us busy.
fn drain(reader: &mut impl Read) -> io::Result<()> {
    let rest = io::copy(&mut reader.take(MOST_TRAILING + 1), &mut io::sink())?;
    if rest > MOST_TRAILING {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too much follows the end of the archive"));
    }
    Ok(())
}

/// Reads on a thread of its own, a bounded way ahead of whoever reads here. When the end has been read here, all tallies
/// on the other side know the whole.
pub struct ReadAhead {
    full: Receiver<io::Result<Vec<u8>>>,
    /// Buffers go back, so that none is made per part.
    empty: Sender<Vec<u8>>,
    part: Vec<u8>,
    at: usize,
    ended: bool,
}

impl ReadAhead {
    pub fn new(reader: impl Read + Send + 'static) -> io::Result<Self> {
        let (to_us, full) = sync_channel(AHEAD);
        let (empty, to_worker) = channel();
        Builder::new().name("unpack-read".into()).spawn(move || work(reader, &to_us, &to_worker))?;
        Ok(Self { full, empty, part: Vec::new(), at: 0, ended: false })
    }

    fn next_part(&mut self) -> io::Result<()> {
        // It fails only where the worker has ended, and then needs none.
        let _ = self.empty.send(std::mem::take(&mut self.part));
        self.at = 0;
        // A worker that is gone without an end has panicked: what came so far is not the whole.
        let part = self.full.recv().map_err(|_| io::Error::other("the thread that reads the layer panicked"))?;
        self.part = part.inspect_err(|_| self.ended = true)?;
        self.ended = self.part.is_empty();
        Ok(())
    }
}

impl Read for ReadAhead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.part.len() && !self.ended {
            self.next_part()?;
        }
        let rest = &self.part[self.at..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// Ends with an empty part, with an error, or when nobody listens any more.
fn work(mut reader: impl Read, full: &SyncSender<io::Result<Vec<u8>>>, empty: &Receiver<Vec<u8>>) {
    loop {
        let mut part = empty.try_recv().unwrap_or_default();
        let read = fill(&mut reader, &mut part);
        let is_last = !matches!(read, Ok(1..));
        if full.send(read.map(|_| part)).is_err() || is_last {
            return;
        }
    }
}

/// Fills a whole buffer where it can: each handing over costs a switch of threads.
fn fill(reader: &mut impl Read, part: &mut Vec<u8>) -> io::Result<usize> {
    part.resize(BUFFER, 0);
    let mut filled = 0;
    while filled < BUFFER {
        match reader.read(&mut part[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    part.truncate(filled);
    Ok(filled)
}
