//! YAML as Kubernetes and Python read it: what lies in brackets or in quotes may stand at any column. By YAML's own rules,
//! which our parser keeps, it stands deeper than what it belongs to. So lines are moved to the right where the parser
//! minds: there, blanks at the beginning of a line mean nothing.

use std::collections::BTreeSet;

use super::node::Place;

/// What the parser minds, by how its words begin.
const IN_BRACKETS: &str = "invalid indentation";
const IN_QUOTES: &str = "invalid indentation in quoted scalar";
/// Blanks at the beginning of a line beyond which nobody has written a job.
const BLANKS_MAX: usize = 1000;
/// Each bracket may want a column more than what it lies in.
const BRACKETS_MAX: usize = 64;
/// So many bytes may be read again in all: each line that is moved is a reading of the file.
const READ_AGAIN_MAX: usize = 16 << 20;

/// A file, with lines moved to the right.
pub(super) struct Indented {
    text: String,
    /// Numbers from 1.
    moved: BTreeSet<usize>,
    /// By so many blanks.
    by: usize,
    read_again: usize,
}

impl Indented {
    pub(super) fn new(text: &str) -> Self {
        let blanks = text.lines().map(|line| line.len() - line.trim_start().len()).max().unwrap_or(0);
        Self { text: text.to_owned(), moved: BTreeSet::new(), by: blanks.min(BLANKS_MAX) + BRACKETS_MAX, read_again: 0 }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Where something stands in the file itself; lines and columns from 1.
    pub(super) fn place(&self, line: usize, column: usize) -> Place {
        let by = if self.moved.contains(&line) { self.by } else { 0 };
        Place { line, column: column.saturating_sub(by).max(1) }
    }

    /// Moves what the parser has minded, in its words, at a line and column of the text; whether reading again may help.
    pub(super) fn moves(&mut self, minded: &str, line: usize, column: usize) -> bool {
        self.read_again = self.read_again.saturating_add(self.text.len());
        // Where a carriage return ends lines, its lines are not ours.
        let has_other_lines = self.text.replace("\r\n", "\n").contains('\r');
        if self.read_again > READ_AGAIN_MAX || has_other_lines {
            return false;
        }
        let rest = if minded == IN_QUOTES { self.lines_of_quoted(line, column) } else { Vec::new() };
        let mut fresh: BTreeSet<usize> = rest.into_iter().filter(|line| !self.moved.contains(line)).collect();
        // Outside of brackets nothing begins too far to the left: there it would be another field.
        if fresh.is_empty() && minded.starts_with(IN_BRACKETS) && self.begins(line, column) {
            fresh = BTreeSet::from([line]);
        }
        let moved_before = self.moved.len();
        self.moved.extend(&fresh);
        if self.moved.len() == moved_before {
            return false;
        }
        let blanks = " ".repeat(self.by);
        let line = |(number, line): (usize, &str)| match fresh.contains(&(number + 1)) {
            true => format!("{blanks}{line}"),
            false => line.to_owned(),
        };
        self.text = self.text.split_inclusive('\n').enumerate().map(line).collect();
        true
    }

    /// Nothing but blanks stands before it.
    fn begins(&self, line: usize, column: usize) -> bool {
        let line = self.text.lines().nth(line.saturating_sub(1));
        line.is_some_and(|line| line.chars().take(column.saturating_sub(1)).all(|c| c == ' '))
    }

    /// The lines of a text in quotes behind its first one.
    fn lines_of_quoted(&self, line: usize, column: usize) -> Vec<usize> {
        let rest: String = self.text.split_inclusive('\n').skip(line.saturating_sub(1)).collect();
        let mut letters = rest.chars().skip(column.saturating_sub(1)).peekable();
        let quote = letters.next();
        let mut number = line;
        let mut lines = Vec::new();
        while let Some(letter) = letters.next() {
            match letter {
                '\n' => {
                    number += 1;
                    lines.push(number);
                }
                // What is escaped ends nothing; an escaped end of a line is one all the same.
                '\\' if quote == Some('"') && letters.peek() != Some(&'\n') => drop(letters.next()),
                // Two of them in '…' stand for one.
                '\'' if quote == Some('\'') && letters.peek() == Some(&'\'') => drop(letters.next()),
                letter if Some(letter) == quote => return lines,
                _ => {}
            }
        }
        lines
    }
}
