//! Log files of a task: `stdout.log` and `stderr.log` as the program wrote them, and an index of when each piece came.
//!
//! The shim writes, everyone else reads: the merged, time-stamped `log` of the mount, `trainyard logs`, `--since`.
//!
//! A stream is cut into parts: `stdout.log` is the newest, `stdout.log.1` the one before. A place in a stream is
//! counted from the stream's beginning, also when parts were dropped since. The index is written anew, and renamed into
//! place, at each rotation: that rename is the rotation, and what follows only moves files to where the index says.
//!
//! ```text
//! steady ──new index renamed──► rotating ──unlink, rename…, flag cleared──► steady
//! ```
//! Killed in between, the files tell how far it came ([`parts`]), so a reader finds each byte in every state.
//! Bytes are written before the index tells of them, so what the index names can always be read.

mod index;
mod parts;
mod read;
mod write;

#[cfg(test)]
mod tests;

pub use index::{INDEX_FILE, Record};
pub use parts::{open_beside, open_to_write};
pub use read::{Cursor, Dropped, LogReader};
pub use write::LogWriter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const BOTH: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }

    /// Of its newest part.
    pub fn file_name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout.log",
            Stream::Stderr => "stderr.log",
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Stream::Stdout),
            2 => Some(Stream::Stderr),
            _ => None,
        }
    }

    fn number(self) -> u64 {
        self.slot() as u64 + 1
    }

    /// Its place in pairs of both.
    pub fn slot(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }
}
