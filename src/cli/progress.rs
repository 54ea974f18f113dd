//! How far long work has come: one line on the terminal that is written over, and nothing elsewhere.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::output::{self, Format};
use crate::ids::Bytes;
use crate::sys::terminal;

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

    /// Of what it is told how far it is, by figures.
    pub(super) fn set(&mut self, what: &str, figures: impl FnOnce() -> String) {
        if self.is_shown && self.told.is_none_or(|told| told.elapsed() > EVERY) {
            self.told = Some(Instant::now());
            let columns = terminal::size(io::stderr()).map_or(0, |(_, columns)| columns.into());
            // Nobody is left to tell when standard error is closed.
            let _ = write!(io::stderr(), "\r\x1b[K{}", in_one_line(what, &figures(), columns));
        }
    }

    /// How many bytes of how many, where that is known, and how fast.
    pub(super) fn bytes(&mut self, what: &str, done: u64, of: Option<u64>) {
        let rate = self.rate(done);
        self.set(what, || told_of_bytes(done, of, rate));
    }

    /// So many bytes a second, where so many have come since it has begun.
    pub(super) fn rate(&self, done: u64) -> u64 {
        (done as f64 / self.begun.elapsed().max(Duration::from_millis(1)).as_secs_f64()) as u64
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

/// What is wider than the terminal is folded by it, and only its last line would be written over: the name gives way, which whoever has
/// typed it knows. A terminal of no columns does not say how wide it is.
fn in_one_line(what: &str, figures: &str, columns: usize) -> String {
    let most = if columns == 0 { usize::MAX } else { columns };
    let name = output::cut(&output::plain(what), most.saturating_sub(figures.len() + 2).max(1)).into_owned();
    output::cut(&format!("{name}: {figures}"), most).into_owned()
}

fn told_of_bytes(done: u64, of: Option<u64>, rate: u64) -> String {
    let of = of.map(|of| format!(" of {}", Bytes(of).roughly())).unwrap_or_default();
    format!("{}{of}, {}/s", Bytes(done).roughly(), Bytes(rate).roughly())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_is_said_in_sizes_that_people_read() {
        assert_eq!(told_of_bytes(3 << 29, Some(3 << 30), 80 << 20), "1536MiB of 3GiB, 80MiB/s");
        assert_eq!(told_of_bytes(1500, None, 0), "1500B, 0B/s");
    }

    #[test]
    fn a_long_name_gives_way_to_the_figures_and_gives_the_terminal_no_orders() {
        assert_eq!(in_one_line("训练数据/图像", "1GiB, 8MiB/s", 24), "训练数据/…: 1GiB, 8MiB/s");
        assert_eq!(in_one_line("a\x1b[2J", "1B, 0B/s", 80), "a\\u{1b}[2J: 1B, 0B/s");
        assert_eq!(in_one_line(&"x".repeat(200), "1B", 0).len(), 204, "of unknown width");
        for columns in 1..40 {
            let line = in_one_line(&"训练".repeat(30), "12 file(s), 1GiB", columns);
            assert!(unicode_width::UnicodeWidthStr::width(&*line) <= columns, "{columns}: {line}");
        }
    }

    #[test]
    fn programs_are_told_nothing() {
        let mut progress = Progress::new(Format::Json);
        progress.set("", || unreachable!("it is asked for where it is shown alone"));
    }
}
