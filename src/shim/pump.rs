//! Moves a container's output from its pipes to the log files, without losing a byte.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::StreamEnds;
use crate::ids::{LogLimits, Timestamp};
use crate::logs::{LogWriter, Stream};

/// Most bytes moved at once; a pipe holds as many.
const CHUNK: usize = 64 << 10;
/// Chunks of a stream that are moved in one turn: more than any pipe holds, so that what was written before an end is all
/// there, and few enough that stops and timers have theirs beside a program that writes without pause.
const TURN: usize = 32;
/// When the disk was full: how long until the next try, ms. Until then the program waits at its full pipe.
pub(super) const RETRY_MS: u16 = 500;

/// Both streams of a container and its logs.
#[derive(Debug)]
pub(super) struct Pumps {
    writer: LogWriter,
    pumps: Vec<Pump>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Pump {
    stream: Stream,
    pipe: io::PipeReader,
    /// Read, but not yet written: the disk was full.
    unwritten: Vec<u8>,
}

impl Pumps {
    /// Opens the logs in `log_dir` and makes the pipes; the writing ends are the container's.
    pub(super) fn open(log_dir: &Path, limits: LogLimits) -> io::Result<(Self, StreamEnds)> {
        let writer = LogWriter::open(log_dir, limits)?;
        let (out, stdout) = io::pipe()?;
        let (err, stderr) = io::pipe()?;
        let mut pumps = Vec::new();
        for (stream, pipe) in [(Stream::Stdout, out), (Stream::Stderr, err)] {
            nix::fcntl::fcntl(&pipe, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
            pumps.push(Pump { stream, pipe, unwritten: Vec::new() });
        }
        let ends = StreamEnds { stdout: stdout.into(), stderr: stderr.into() };
        Ok((Self { writer, pumps, buffer: vec![0; CHUNK] }, ends))
    }

    pub(super) fn open_streams(&self) -> usize {
        self.pumps.len()
    }

    /// What to poll: streams that are open and not waiting for the disk.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pumps.iter().filter(|pump| pump.unwritten.is_empty()).map(|pump| pump.pipe.as_fd())
    }

    /// Milliseconds until [`Self::pump`] should be called even if nothing is readable.
    pub(super) fn retry_after(&self) -> Option<u16> {
        self.pumps.iter().any(|pump| !pump.unwritten.is_empty()).then_some(RETRY_MS)
    }

    /// Moves what is there, and lets `hear` have it as well; returns the streams that have come to their end.
    pub(super) fn pump(&mut self, now: Timestamp, hear: &mut dyn FnMut(Stream, &[u8])) -> Vec<Stream> {
        let mut closed = Vec::new();
        for pump in &mut self.pumps {
            if pump.drain(&mut self.writer, &mut self.buffer, now, hear) {
                closed.push(pump.stream);
            }
        }
        self.pumps.retain(|pump| !closed.contains(&pump.stream));
        closed
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.writer.sync()
    }
}

impl Pump {
    /// Reads until the pipe is empty; true at its end.
    fn drain(
        &mut self,
        writer: &mut LogWriter,
        buffer: &mut [u8],
        now: Timestamp,
        hear: &mut dyn FnMut(Stream, &[u8]),
    ) -> bool {
        for _ in 0..TURN {
            if !self.unwritten.is_empty() {
                let mut rest = self.unwritten.as_slice();
                let result = writer.append(self.stream, &mut rest, now);
                let written = self.unwritten.len() - rest.len();
                self.unwritten.drain(..written);
                if let Err(error) = result {
                    tracing::warn!(%error, "cannot write the log, will try again");
                    return false;
                }
            }
            match self.pipe.read(buffer) {
                Ok(0) => return true,
                Ok(count) => {
                    self.unwritten.extend_from_slice(&buffer[..count]);
                    hear(self.stream, &buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => {
                    tracing::error!(%error, "cannot read the output");
                    return true;
                }
            }
        }
        // There may be more, which the next poll tells.
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_byte_arrives_and_the_end_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (mut pumps, ends) = Pumps::open(dir.path(), LogLimits::default()).unwrap();
        let (mut out, err) = (std::fs::File::from(ends.stdout), ends.stderr);
        let (mut sent, mut heard) = (Vec::new(), Vec::new());
        for round in 0..5u8 {
            let part = vec![round; 30_000];
            out.write_all(&part).unwrap();
            sent.extend(part);
            assert!(pumps.pump(Timestamp(u64::from(round)), &mut |_, bytes| heard.extend_from_slice(bytes)).is_empty());
        }
        drop(out);
        assert_eq!(pumps.pump(Timestamp(9), &mut |_, _| {}), [Stream::Stdout]);
        drop(err);
        assert_eq!(pumps.pump(Timestamp(9), &mut |_, _| {}), [Stream::Stderr]);
        assert_eq!(std::fs::read(dir.path().join("stdout.log")).unwrap(), sent);
        assert_eq!(heard, sent);
    }
}
