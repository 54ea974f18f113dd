//! How far long work has come: one line on the terminal that is written over, and nothing elsewhere.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::output::{self, Format};
use crate::ids::Bytes;

/// So often it is written anew.
const EVERY: Duration = Duration::from_millis(100);

pub(super) struct Progress {
    is_shown: bool,
    begun: Instant,
    told: Option<Instant>,
}

impl Progress {
    /// On standard error, where a person looks at it.
    pub(super) fn new(format: Format) -> Self {
        Self { is_shown: format == Format::People && output::draws(), begun: Instant::now(), told: None }
    }

    pub(super) fn set(&mut self, text: impl FnOnce() -> String) {
        if self.is_shown && self.told.is_none_or(|told| told.elapsed() > EVERY) {
            self.told = Some(Instant::now());
            // Nobody is left to tell when standard error is closed.
            let _ = write!(io::stderr(), "\r\x1b[K{}", text());
        }
    }

    /// How many bytes of how many, where that is known, and how fast.
    pub(super) fn bytes(&mut self, what: &str, done: u64, of: Option<u64>) {
        let begun = self.begun;
        self.set(|| {
            let seconds = begun.elapsed().max(Duration::from_millis(1)).as_secs_f64();
            told_of_bytes(what, done, of, (done as f64 / seconds) as u64)
        });
    }

    /// Takes the line away.
    pub(super) fn end(&mut self) {
        if self.told.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// What is printed next has a line of its own, however the work has ended.
impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

fn told_of_bytes(what: &str, done: u64, of: Option<u64>, rate: u64) -> String {
    let of = of.map(|of| format!(" of {}", Bytes(of).roughly())).unwrap_or_default();
    format!("{what}: {}{of}, {}/s", Bytes(done).roughly(), Bytes(rate).roughly())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_is_said_in_sizes_that_people_read() {
        assert_eq!(told_of_bytes("restore", 3 << 29, Some(3 << 30), 80 << 20), "restore: 1536MiB of 3GiB, 80MiB/s");
        assert_eq!(told_of_bytes("a.bin", 1500, None, 0), "a.bin: 1500B, 0B/s");
    }

    #[test]
    fn programs_are_told_nothing() {
        let mut progress = Progress::new(Format::Json);
        progress.set(|| unreachable!("it is asked for where it is shown alone"));
    }
}
