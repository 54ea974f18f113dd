//! How things are printed: tables for people, JSON for programs. A closed pipe is success.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

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
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => crate::sys::process::exit_now(0),
        other => Ok(other?),
    }
}

pub(super) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
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

/// A table with columns as wide as their widest cell; the last one is not padded.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    lines_of(header, rows).iter().try_for_each(|text| line(text))
}

fn lines_of(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let column = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell));
        cells.chain(header.get(column).map(|name| width(name))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(column).collect();
    let padded = |(cell, wanted): (&str, &usize)| format!("{cell}{}", " ".repeat(wanted.saturating_sub(width(cell))));
    let joined = |cells: &mut dyn Iterator<Item = &str>| {
        cells.zip(&widths).map(padded).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = joined(&mut header.iter().copied());
    let rows = rows.iter().map(|row| joined(&mut row.iter().map(String::as_str)));
    std::iter::once(head).chain(rows).collect()
}

/// Columns that a terminal shows a text in. Letters of some scripts take two, colours none.
fn width(text: &str) -> usize {
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
    let plain = !io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some();
    if plain { text.to_owned() } else { format!("\x1b[{colour}m{text}\x1b[0m") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
