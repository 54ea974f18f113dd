//! How things are printed: tables for people, JSON for programs. A closed pipe is success.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

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
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header.get(column).map_or(0, |name| name.chars().count())]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    print(&mut header.iter().copied())?;
    rows.iter().try_for_each(|row| print(&mut row.iter().map(String::as_str)))
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
