//! How things are printed: tables for people, JSON for programs. A closed pipe is success.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
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
        other => other.context("cannot write to standard output"),
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

/// A table with columns as wide as their widest cell; the last one is not padded. On a terminal that is too narrow the widest cells are
/// cut.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    // At once: a write for each of thousands of lines takes longer than all else.
    line(&lines_of(header, &rows, columns().unwrap_or(usize::MAX)).join("\n"))
}

/// How wide what is printed may be: the terminal, or `COLUMNS`; as wide as it is where neither says.
pub(super) fn columns() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    said.or_else(|| terminal::size(io::stdout()).map(|(_, columns)| columns.into()).filter(|columns| *columns > 0))
}

/// No wider than `most` columns; what is cut off is told by a dot of three. Colours are left whole.
pub(super) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if most == usize::MAX || width(text) <= most {
        return Cow::Borrowed(text);
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
    Cow::Owned(if painted { out + "\x1b[0m" } else { out })
}

/// At least so wide.
pub(super) fn padded(text: &str, least: usize) -> String {
    format!("{text}{:1$}", "", least.saturating_sub(width(text)))
}

/// `begin`, which may be painted, and prose behind it, folded at words where the terminal is narrower; what does not fit begins below
/// `indent` columns. Words stay whole: they may be paths and commands.
pub(super) fn folded(begin: &str, indent: usize, prose: &str) -> String {
    fold(begin, indent, prose, columns())
}

/// Where it is known, or not, how wide the terminal is.
pub(super) fn fold(begin: &str, indent: usize, prose: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns.filter(|_| !prose.is_empty()) else {
        return format!("{begin}{prose}").trim_end().to_owned();
    };
    let below = " ".repeat(indent);
    let options = textwrap::Options::new(columns).initial_indent(begin).subsequent_indent(&below).break_words(false);
    let lines = textwrap::wrap(prose, options.word_splitter(textwrap::WordSplitter::NoHyphenation));
    // Where nothing fits behind the beginning it stands alone.
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Between columns.
const GAP: usize = 2;

fn lines_of(header: &[&str], rows: &[Vec<String>], most: usize) -> Vec<String> {
    let column = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell));
        cells.chain(header.get(column).map(|name| width(name))).max().unwrap_or(0)
    };
    let widths = fitting((0..header.len()).map(column).collect(), most);
    let joined = |cells: &mut dyn Iterator<Item = &str>| {
        let mut out = String::new();
        for (text, wanted) in cells.zip(&widths) {
            out.push_str(&padded(&cut(text, *wanted), *wanted + GAP));
        }
        out.truncate(out.trim_end().len());
        // Of many columns not all have room, however narrow they are.
        cut(&out, most).into_owned()
    };
    let head = joined(&mut header.iter().copied());
    let rows = rows.iter().map(|row| joined(&mut row.iter().map(String::as_str)));
    std::iter::once(head).chain(rows).collect()
}

/// How wide columns are where there is room for `most` in all. The last one, which mostly says why, keeps a third if it needs it; of the
/// others the widest give way, so that what is narrow, as states are, stays whole whatever others have named their jobs.
fn fitting(mut widths: Vec<usize>, most: usize) -> Vec<usize> {
    let Some((last, others)) = widths.split_last_mut() else { return widths };
    let room = most.saturating_sub(GAP * others.len());
    let left = room.saturating_sub((*last).min(room / 3));
    let widest = others.iter().copied().max().unwrap_or(0);
    let fits = |bound: &usize| others.iter().map(|width| width.min(bound)).sum::<usize>() <= left;
    let bound = (1..=widest).rev().find(fits).unwrap_or(1);
    others.iter_mut().for_each(|width| *width = (*width).min(bound));
    *last = (*last).min(room.saturating_sub(others.iter().sum())).max(1);
    widths
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
        assert_eq!(cut("训练任务", 8), "训练任务");
        assert_eq!(cut("训练任务", 7), "训练任…");
        assert_eq!(cut("训练任务", 6), "训练…");
        assert_eq!(cut("plain text", 6), "plain…");
        assert_eq!(cut("\x1b[34mrunning\x1b[0m for long", 10), "\x1b[34mrunning\x1b[0m f…\x1b[0m");
        for most in 1..12 {
            assert!(width(&cut("a训b练\x1b[2mc\x1b[0md任e", most)) <= most);
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
        assert_eq!(lines_of(&["JOB", "STATE", "WHY"], &rows, usize::MAX), wanted);
    }

    #[test]
    fn columns_that_are_too_wide_give_way_and_leave_the_narrow_ones_whole() {
        assert_eq!(fitting(vec![128, 9, 3, 4, 100], 80), [32, 9, 3, 4, 24]);
        assert_eq!(fitting(vec![128, 9, 3, 4, 5], 80), [51, 9, 3, 4, 5]);
        assert_eq!(fitting(vec![20, 9, 3, 4, 200], 80), [20, 9, 3, 4, 36]);
        assert_eq!(fitting(vec![60, 50, 40], 80), [25, 25, 26]);
        assert_eq!(fitting(vec![5, 6, 7], usize::MAX), [5, 6, 7]);
        assert_eq!(fitting(vec![9, 9, 9, 9], 3), [1, 1, 1, 1]);
        let rows = [["训练".repeat(32), "\x1b[34mrunning\x1b[0m".to_owned(), "2 of 2 tasks run".to_owned()].to_vec()];
        for most in 1..200 {
            let lines = lines_of(&["JOB", "STATE", "WHY"], &rows, most);
            assert!(lines.iter().all(|line| width(line) <= most), "{most}: {lines:?}");
            assert!(most < 30 || lines[1].contains("\x1b[34mrunning\x1b[0m"), "{most}: {lines:?}");
        }
    }

    #[test]
    fn prose_is_folded_at_words_below_where_it_begins_or_is_told() {
        let prose = "a path /etc/trainyard/jobs.d and --some-option stay whole";
        let begin = "time  \x1b[33mwarning\x1b[0m  ";
        let wanted =
            "time  \x1b[33mwarning\x1b[0m  a path\n    /etc/trainyard/jobs.d\n    and --some-option\n    stay whole";
        assert_eq!(fold(begin, 4, prose, Some(24)), wanted);
        assert_eq!(fold(begin, 4, prose, None), format!("{begin}{prose}"));
        assert_eq!(fold("nothing  ", 4, "", Some(24)), "nothing");
    }
}
