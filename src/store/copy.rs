//! The whole store as lines of JSON, for backups: as it was at one instant, whatever is committed meanwhile.
//!
//! Each line is a record with its key and version; the last one counts them, so that a part is never taken for the whole.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use super::record::{Counters, EventRecord, JobRecord, RunRecord, UsageRecord, UsageSum, VERSION, Versioned};
use super::{Batch, StoreError};
use crate::ids::JobKey;

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write the copy of the state")]
    Write(#[source] io::Error),
    #[error("cannot read the copy of the state")]
    Read(#[source] io::Error),
    #[error("line {line} of the copy of the state is damaged: {what}")]
    Damaged { line: u64, what: String },
    #[error(
        "the copy of the state ends after {lines} lines without saying that this is all: it was cut short; use another"
    )]
    Cut { lines: u64 },
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Counters(Counters),
    Job(String, Box<JobRecord>),
    Run(String, Box<RunRecord>),
    Event(String, Box<EventRecord>),
    Usage(Box<UsageRecord>),
    UsageSum(Box<UsageSum>),
    /// The last one: how many came before.
    End(u64),
}

pub(super) struct LineWriter<'a> {
    out: &'a mut dyn Write,
    count: u64,
}

impl<'a> LineWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, count: 0 }
    }

    pub(super) fn put(&mut self, line: Line) -> Result<(), CopyError> {
        let mut bytes =
            serde_json::to_vec(&Versioned { v: VERSION, r: line }).map_err(|error| CopyError::Write(error.into()))?;
        bytes.push(b'\n');
        self.count += 1;
        self.out.write_all(&bytes).map_err(CopyError::Write)
    }

    pub(super) fn end(mut self) -> Result<(), CopyError> {
        self.put(Line::End(self.count))?;
        self.out.flush().map_err(CopyError::Write)
    }
}

/// Reads a whole copy.
pub fn read(from: impl BufRead) -> Result<Batch, CopyError> {
    let mut batch = Batch::default();
    let mut count = 0;
    for (line, text) in (1..).zip(from.lines()) {
        let text = text.map_err(CopyError::Read)?;
        match super::redb::decode(&format!("of line {line}"), text.as_bytes())? {
            Line::End(lines) if lines == count => return Ok(batch),
            Line::End(lines) => {
                return Err(CopyError::Damaged { line, what: format!("{lines} lines should stand before it") });
            }
            other => take(&mut batch, other).map_err(|what| CopyError::Damaged { line, what })?,
        }
        count += 1;
    }
    Err(CopyError::Cut { lines: count })
}

fn take(batch: &mut Batch, line: Line) -> Result<(), String> {
    let key = |text: String| text.parse::<JobKey>().map_err(|error| format!("{text:?} is no job: {error}"));
    match line {
        Line::Counters(counters) => batch.counters = Some(counters),
        Line::Job(job, record) => drop(batch.jobs.insert(key(job)?, *record)),
        Line::Run(job, record) => drop(batch.runs.insert((key(job)?, record.number), *record)),
        Line::Event(job, record) => batch.events.push((key(job)?, *record)),
        Line::Usage(record) => batch.usage.push(*record),
        Line::UsageSum(sum) => batch.usage_sums.push(*sum),
        Line::End(_) => {}
    }
    Ok(())
}
