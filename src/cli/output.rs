//! How things are printed: tables for people, JSON for programs. A closed pipe is success.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::status::State;
use crate::sys::terminal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    People,
    Json,
}

impl Format {
    pub(super) fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::People }
    }
}

/// Prints a line; the end of the reader is the end of the printing.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    written(format!("{}{text}\n", clearing()).as_bytes())
}

fn written(bytes: &[u8]) -> anyhow::Result<()> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => crate::sys::process::exit_now(0),
        other => Ok(other?),
    }
}

pub(super) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

static CLEARS_NEXT: AtomicBool = AtomicBool::new(false);

/// What is printed next takes the place of what the terminal shows, together with which it goes; what was scrolled away stays.
pub(super) fn clear_with_next() {
    CLEARS_NEXT.store(clears(), Ordering::Relaxed);
}

/// Where nothing has come since then.
pub(super) fn clear_if_nothing_came() -> anyhow::Result<()> {
    written(clearing().as_bytes()).and_then(|()| Ok(io::stdout().flush()?))
}

/// Once for each time that it is asked for.
fn clearing() -> &'static str {
    if CLEARS_NEXT.swap(false, Ordering::Relaxed) { "\x1b[H\x1b[2J" } else { "" }
}

/// What is said beside what is printed, so that this can be taken as it is.
pub(super) fn aside(text: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// May tell names that others have given.
pub(super) fn error(text: &str) {
    let lines: Vec<String> = text.lines().map(terminal::escape).collect();
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "trainyard: {}", lines.join("\n"));
}

/// Words of others, in one line that gives no orders to the terminal.
pub(super) fn plain(text: &str) -> String {
    terminal::escape(text)
}

/// Colours that this program paints.
const COLOURS: [&str; 5] = ["2", "31", "32", "33", "34"];

/// A cell without a colour of ours.
pub(super) fn unpainted(text: &str) -> String {
    inner(text).map_or(text, |(_, inner)| inner).to_owned()
}

/// Our own colour, and what is painted in it.
fn inner(text: &str) -> Option<(&str, &str)> {
    let painted = text.strip_prefix("\x1b[").and_then(|rest| rest.strip_suffix("\x1b[0m")?.split_once('m'));
    painted.filter(|(colour, _)| COLOURS.contains(colour))
}

/// A cell of a table, in which others may have written: our own colours stay.
fn cell(text: &str) -> String {
    match inner(text) {
        Some((colour, inner)) => format!("\x1b[{colour}m{}\x1b[0m", plain(inner)),
        None => plain(text),
    }
}

/// A table with columns as wide as their widest cell; the last one is not padded, and on a terminal cut where that ends.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let most = columns().unwrap_or(usize::MAX);
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    let lines: Vec<String> = lines_of(header, &rows).into_iter().map(|text| cut(text, most)).collect();
    // At once: a write for each of thousands of lines takes longer than all else.
    line(&lines.join("\n"))
}

/// How wide what is printed may be: the terminal, or `COLUMNS`; as wide as it is where neither says.
pub(super) fn columns() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    said.or_else(|| terminal::size(io::stdout()).map(|(_, columns)| columns.into()).filter(|columns| *columns > 0))
}

/// No wider than `most` columns; what is cut off is told by a dot of three. Colours are left whole.
fn cut(text: String, most: usize) -> String {
    if most == usize::MAX || width(&text) <= most {
        return text;
    }
    let (mut out, mut used, mut in_colour, mut painted) = (String::new(), 0, false, false);
    for letter in text.chars() {
        if letter == '\x1b' || in_colour {
            in_colour = letter != 'm';
            painted = true;
        } else {
            used += letter.width().unwrap_or(0);
            if used + 1 > most {
                break;
            }
        }
        out.push(letter);
    }
    out.push('…');
    if painted { out + "\x1b[0m" } else { out }
}

fn lines_of(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let column = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell));
        cells.chain(header.get(column).map(|name| width(name))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(column).collect();
    let joined = |cells: &mut dyn Iterator<Item = &str>| {
        let mut out = String::new();
        for (cell, wanted) in cells.zip(&widths) {
            out.push_str(cell);
            out.extend(std::iter::repeat_n(' ', wanted.saturating_sub(width(cell)) + 2));
        }
        out.truncate(out.trim_end().len());
        out
    };
    let head = joined(&mut header.iter().copied());
    let rows = rows.iter().map(|row| joined(&mut row.iter().map(String::as_str)));
    std::iter::once(head).chain(rows).collect()
}

/// Columns that a terminal shows a text in. Letters of some scripts take two, colours none.
fn width(text: &str) -> usize {
    // Most cells, of thousands, are so.
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return text.len();
    }
    let mut parts = text.split("\x1b[");
    let plain = parts.next().unwrap_or_default().width();
    plain + parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest).width()).sum::<usize>()
}

/// The state's name, in its colour on a terminal.
pub(super) fn state(state: State) -> String {
    let colour = match state {
        State::Running | State::Starting => "34",
        State::Succeeded => "32",
        State::Failed | State::Invalid => "31",
        State::Waiting | State::Held | State::Stopping => "33",
        State::Stopped => "2",
    };
    paint(colour, state.name())
}

/// Coloured if standard output is a terminal and nobody asked for plain text (`NO_COLOR`).
pub(super) fn paint(colour: &str, text: &str) -> String {
    if wants_colours() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Standard error is a terminal on which a line can be drawn anew, as progress is.
pub(super) fn draws() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// Standard output is a terminal that can be cleared.
pub(super) fn clears() -> bool {
    io::stdout().is_terminal() && !is_dumb()
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

static PLAIN: AtomicBool = AtomicBool::new(false);

/// As `NO_COLOR` has it.
pub(super) fn paint_nothing() {
    PLAIN.store(true, Ordering::Relaxed);
}

pub(super) fn wants_colours() -> bool {
    if PLAIN.load(Ordering::Relaxed) {
        return false;
    }
    // Asked once: a table has thousands of cells.
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let says = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        io::stdout().is_terminal() && !says("NO_COLOR") && !is_dumb()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_wide_is_cut_between_letters_and_colours() {
        assert_eq!(cut("训练任务".to_owned(), 8), "训练任务");
        assert_eq!(cut("训练任务".to_owned(), 7), "训练任…");
        assert_eq!(cut("训练任务".to_owned(), 6), "训练…");
        assert_eq!(cut("plain text".to_owned(), 6), "plain…");
        assert_eq!(cut("\x1b[34mrunning\x1b[0m for long".to_owned(), 10), "\x1b[34mrunning\x1b[0m f…\x1b[0m");
        for most in 1..12 {
            assert!(width(&cut("a训b练\x1b[2mc\x1b[0md任e".to_owned(), most)) <= most);
        }
    }

    #[test]
    fn a_cell_of_others_gives_the_terminal_no_orders_and_stays_in_its_row() {
        assert_eq!(cell("\x1b[31mfailed\x1b[0m"), "\x1b[31mfailed\x1b[0m");
        assert_eq!(cell("\x1b[31ma\x1b]0;t\x07\x1b[0m"), "\x1b[31ma\\u{1b}]0;t\\u{7}\x1b[0m");
        assert_eq!(cell("\x1b[8mhidden\x1b[0m"), "\\u{1b}[8mhidden\\u{1b}[0m");
        assert_eq!(cell("why\nJOB  running"), "why\\nJOB  running");
    }

    #[test]
    fn columns_are_as_wide_as_a_terminal_shows_them() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["训练", "\x1b[34mrunning\x1b[0m", "a"]),
            row(["e\u{301}té", "\x1b[2mheld\x1b[0m", ""]),
            row(["", "", "b"]),
        ];
        let wanted = [
            "JOB   STATE    WHY",
            "训练  \x1b[34mrunning\x1b[0m  a",
            "e\u{301}té   \x1b[2mheld\x1b[0m",
            "               b",
        ];
        assert_eq!(lines_of(&["JOB", "STATE", "WHY"], &rows), wanted);
    }
}
