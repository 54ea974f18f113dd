//! What is wrong with a job file, and where.

use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tree::Origins;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file runs, but probably not as meant.
    Warning,
}

/// One finding, printed as `FILE:LINE:COLUMN: MESSAGE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    pub severity: Severity,
    pub file: String,
    /// From 1; 0 when the finding concerns the whole file.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The key it is about, dotted (`roles.worker.count`).
    pub key: Option<String>,
    /// What is wrong and what to do, lower case, without a full stop.
    pub message: String,
}

impl Diagnostic {
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// A finding about the file as a whole, such as its name or its permissions.
    pub fn of_file(file: &str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            file: file.to_owned(),
            line: 0,
            column: 0,
            key: None,
            message: message.into(),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        let label = if self.is_error() { "" } else { "warning: " };
        write!(f, ": {label}{}", self.message)
    }
}

/// A file's text under its name, to turn byte spans into places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    file: &'a str,
    text: &'a str,
    /// Where a text that was put together of several files has its parts from.
    origins: Option<&'a Origins<'a>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, origins: None }
    }

    /// What is found in `text` is told of where its parts were written.
    pub(super) fn merged(file: &'a str, text: &'a str, origins: &'a Origins<'a>) -> Self {
        Self { file, text, origins: Some(origins) }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// The text at a span, as written.
    pub(super) fn slice(&self, span: Range<usize>) -> &'a str {
        self.text.get(span).unwrap_or_default()
    }

    pub(super) fn error(&self, span: Range<usize>, key: &str, message: impl Into<String>) -> Diagnostic {
        self.finding(Severity::Error, span, Some(key.to_owned()), message.into())
    }

    pub(super) fn warning(&self, span: Range<usize>, key: &str, message: impl Into<String>) -> Diagnostic {
        self.finding(Severity::Warning, span, Some(key.to_owned()), message.into())
    }

    pub(super) fn syntax(&self, error: &toml::de::Error) -> Diagnostic {
        if let Some((span, name)) = doubled(error, self.text) {
            let message = format!("`{}` stands here a second time", name.key);
            return self.error(span, &name.key, message);
        }
        let mut message = error.message().replace('\n', ", ");
        let stands = error.span().and_then(|span| self.text.get(span.start..)).and_then(|rest| rest.chars().next());
        if stands.is_some_and(char::is_alphanumeric) && message.contains("invalid unquoted key") {
            message.push_str("; put a name in other letters than A–Z and a–z in quotes, as in [roles.\"训练\"]");
        }
        self.finding(Severity::Error, error.span().unwrap_or(0..0), None, message)
    }

    fn finding(&self, severity: Severity, span: Range<usize>, key: Option<String>, message: String) -> Diagnostic {
        let written = self.origins.and_then(|origins| origins.find(span.start));
        let (file, text, offset) = written.unwrap_or((self.file, self.text, span.start));
        let (line, column) = place(text.as_bytes(), offset);
        let key = key.map(|key| printable(&key));
        Diagnostic { severity, file: file.to_owned(), line, column, key, message: printable(&message) }
    }
}

/// A key that stands in a file twice, as far as its line says it.
pub(super) struct Doubled {
    pub(super) key: String,
    /// It is the name of a `[table]`.
    pub(super) is_table: bool,
}

/// The parser tells where the second one is, not what it is called.
pub(super) fn doubled(error: &toml::de::Error, text: &str) -> Option<(Range<usize>, Doubled)> {
    let span = error.span().filter(|_| error.message() == "duplicate key")?;
    let begin = text.get(..span.start)?.rfind('\n').map_or(0, |end| end + 1);
    let (before, key) = (text.get(begin..span.start)?.trim_start(), text.get(span.clone())?);
    // In an inline table the line begins with other keys.
    let before = if before.contains(['=', '{', '\'', '"']) { "" } else { before };
    let key = format!("{}{key}", before.trim_start_matches(['[', ' ', '\t']));
    Some((span, Doubled { key, is_table: before.starts_with('[') }))
}

/// One line, whatever the file has put into it.
fn printable(text: &str) -> String {
    let one = |letter: char| if letter.is_control() { letter.escape_debug().to_string() } else { letter.to_string() };
    if text.contains(char::is_control) { text.chars().map(one).collect() } else { text.to_owned() }
}

/// The diagnostic for bytes that are not UTF-8 from `offset` on.
pub(super) fn not_text(file: &str, bytes: &[u8], offset: usize) -> Diagnostic {
    let (line, column) = place(bytes, offset);
    Diagnostic { line, column, ..Diagnostic::of_file(file, "not UTF-8 text, so not a job file") }
}

/// Line and column (in characters) of a byte offset, both from 1.
fn place(text: &[u8], offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let column = String::from_utf8_lossy(before.get(start..).unwrap_or_default()).chars().count() + 1;
    (line, column)
}
