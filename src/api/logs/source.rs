//! One task's log in one attempt, on its way to whoever asked for it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use super::growth::{Following, Growth};
use crate::api::wire::{LogLine, LogQuery};
use crate::ids::{AttemptId, TaskName, Timestamp};
use crate::logs::{Cursor, Dropped, LogReader, Record, Stream};

/// Bytes read of one task at once.
const CHUNK: usize = 32 << 10;
/// A line that is longer is sent in parts, so that a task without newlines is seen as well.
const LINE_MAX: usize = 64 << 10;

/// How lines are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A [`LogLine`] each.
    Json,
    /// Byte by byte; each with an end, whether it had one or not.
    Text,
}

pub(super) struct Source {
    task: TaskName,
    attempt: u32,
    id: AttemptId,
    dir: PathBuf,
    reader: Option<LogReader>,
    following: Option<Following>,
    at: Place,
    /// How far it went when it was opened: what comes later is not waited for. Absent when following.
    end: Option<Cursor>,
    /// Why it cannot be read on.
    failed: Option<io::Error>,
}

/// How far it has been sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    cursor: Cursor,
    /// To be sent before anything else: what was dropped.
    markers: Vec<Dropped>,
    /// Begun lines of both streams.
    partial: [Vec<u8>; 2],
}

impl Source {
    pub(super) fn new(id: AttemptId, attempt: u32, task: TaskName, dir: PathBuf) -> Self {
        Self { task, attempt, id, dir, reader: None, following: None, at: Place::default(), end: None, failed: None }
    }

    pub(super) fn is_of(&self, attempt: u32, task: &TaskName) -> bool {
        self.attempt == attempt && self.task == *task
    }

    pub(super) fn is_open(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether there is a log: there is none before the task's first start.
    pub(super) fn open(&mut self, query: &LogQuery) -> bool {
        let opened = self.try_open(query);
        if let Err(error) = opened {
            self.failed = (error.kind() != io::ErrorKind::NotFound).then_some(error);
            return false;
        }
        true
    }

    /// Why something of it cannot be read, if it cannot.
    pub(super) fn unread(&self) -> Option<String> {
        self.failed.as_ref().map(|error| format!("the log of task {} cannot be read: {error}", self.task))
    }

    fn try_open(&mut self, query: &LogQuery) -> io::Result<()> {
        let mut reader = LogReader::open_whole(&self.dir)?;
        self.at.cursor = start(&mut reader, query).unwrap_or_default();
        if self.at.cursor == Cursor::default() {
            self.at.markers = reader.dropped();
        }
        // A program may write faster than anybody reads.
        self.end = (!query.follow).then(|| reader.end().unwrap_or_default());
        self.reader = Some(reader);
        Ok(())
    }

    pub(super) fn watch(&mut self, growth: &Growth, grown: &Arc<Notify>) -> io::Result<()> {
        self.following = Some(growth.follow(&self.dir, grown)?);
        Ok(())
    }

    pub(super) fn place(&self) -> &Place {
        &self.at
    }

    pub(super) fn go_to(&mut self, place: Place) {
        self.at = place;
    }

    /// What tells it from every other log, and from itself with more in it.
    pub(super) fn sign(&self) -> String {
        let identity = self.reader.as_ref().map(LogReader::identity);
        format!("{} {} {:?} {:?} {:?}\n", self.id, self.task, identity, self.at.cursor, self.end)
    }

    /// Puts what has to be said before the next piece; goes on to the next log when this one was rotated.
    pub(super) fn put_markers(&mut self, out: &mut Vec<u8>, form: Form) {
        for dropped in std::mem::take(&mut self.at.markers) {
            self.put_marker(out, form, &dropped);
        }
        let Some(reader) = self.reader.as_mut().filter(|_| self.end.is_none()) else { return };
        // Fails when the log was removed meanwhile: what is open is read to its end.
        let lost = reader.follow(&mut self.at.cursor).unwrap_or_default();
        for dropped in lost {
            let begun = std::mem::take(&mut self.at.partial[dropped.stream.slot()]);
            if !begun.is_empty() {
                self.put(out, form, dropped.stream.name(), dropped.at, &begun);
            }
            self.put_marker(out, form, &dropped);
        }
    }

    fn put_marker(&self, out: &mut Vec<u8>, form: Form, dropped: &Dropped) {
        self.put(out, form, "log", dropped.at, dropped.text().as_bytes());
    }

    /// What comes next, as far as it is to be sent.
    pub(super) fn next_piece(&mut self) -> Option<Record> {
        let reader = self.reader.as_ref().filter(|_| self.failed.is_none())?;
        let piece = match self.end {
            Some(end) => reader.piece_before(end, &mut self.at.cursor),
            None => reader.piece_at(&mut self.at.cursor),
        };
        piece.unwrap_or_else(|error| {
            self.failed = Some(error);
            None
        })
    }

    /// Reads on within `part`, and puts lines that are complete. `None` when nothing can be read.
    pub(super) fn put_lines(&mut self, out: &mut Vec<u8>, form: Form, part: &Record) -> Option<()> {
        let mut buffer = vec![0; CHUNK];
        let count = match self.reader.as_mut()?.read_on(part, &mut self.at.cursor, &mut buffer) {
            Ok(count) => count,
            Err(error) => {
                self.failed = Some(error);
                return None;
            }
        };
        if count == 0 {
            return None;
        }
        let slot = part.stream.slot();
        let mut begun = std::mem::take(&mut self.at.partial[slot]);
        begun.extend_from_slice(&buffer[..count]);
        let complete = match begun.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if begun.len() > LINE_MAX => begun.len(),
            None => 0,
        };
        self.at.partial[slot] = begun.split_off(complete);
        let text = begun.strip_suffix(b"\n").unwrap_or(&begun);
        if complete > 0 {
            let lines = text.split(|byte| *byte == b'\n');
            lines.for_each(|line| self.put(out, form, part.stream.name(), part.time, line));
        }
        Some(())
    }

    /// Puts what was begun and never ended with a newline.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>, form: Form) {
        let now = self.reader.as_ref().and_then(|reader| reader.modified().ok().flatten());
        let partial = std::mem::take(&mut self.at.partial);
        for (stream, text) in Stream::BOTH.into_iter().zip(&partial).filter(|(_, text)| !text.is_empty()) {
            self.put(out, form, stream.name(), now.unwrap_or(Timestamp(0)), text);
        }
    }

    fn put(&self, out: &mut Vec<u8>, form: Form, stream: &str, time: Timestamp, text: &[u8]) {
        match form {
            Form::Text => out.extend(text),
            Form::Json => {
                let line = LogLine {
                    task: self.task.to_string(),
                    attempt: self.attempt,
                    stream: stream.to_owned(),
                    time: time.to_string(),
                    text: String::from_utf8_lossy(text).into_owned(),
                };
                out.extend(serde_json::to_vec(&line).expect("a line is text and numbers"));
            }
        }
        out.push(b'\n');
    }
}

fn start(reader: &mut LogReader, query: &LogQuery) -> io::Result<Cursor> {
    let since = query.since.map(|since| reader.since(Timestamp(since))).transpose()?.unwrap_or_default();
    let lines = query.lines.map(|lines| reader.last_lines(lines)).transpose()?.unwrap_or_default();
    Ok(since.max(lines))
}
