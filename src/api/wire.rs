//! What goes over the socket; one set of types for both ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::images::ImageRecord;
use crate::report::TaskReport;
use crate::report::{GpuReport, JobReport};
pub use crate::rundir::entry::OWN_FAILURE;
use crate::rundir::entry::{Order, Terminal};
use crate::spec::Diagnostic;
use crate::store::record::{EventRecord, RunRecord};

/// The header by which root asks in the place of another user, by number.
pub const FOR_USER: &str = "trainyard-for-user";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobList {
    pub jobs: Vec<JobReport>,
    /// Files in `jobs.d` that cannot be anybody's job; root alone is told.
    pub strays: Vec<Diagnostic>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub report: JobReport,
    pub events: Vec<EventView>,
    pub runs: Vec<RunView>,
    /// The last good version of the job file.
    pub spec: Option<String>,
    /// Ports that its tasks listen on while they run.
    #[serde(default)]
    pub ports: Vec<PortView>,
    /// What the cards of its tasks do while they run.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// `ROLE-I`.
    pub task: String,
    pub label: String,
    /// Where the task itself listens.
    pub address: String,
    pub port: u16,
    /// The port of the machine that leads there, if one does.
    pub published: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    pub number: u64,
    pub at: String,
    pub run: u32,
    pub state: String,
    pub message: String,
}

impl From<EventRecord> for EventView {
    fn from(event: EventRecord) -> Self {
        Self {
            number: event.number,
            at: event.at.to_string(),
            run: event.run,
            state: event.state.to_string(),
            message: event.message,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    pub run: u32,
    pub created: String,
    pub ended: Option<String>,
    /// How it ended.
    pub verdict: Option<String>,
    pub attempts: Vec<AttemptView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    pub attempt: u32,
    pub tasks: Vec<TaskReport>,
    pub started: String,
    pub ended: Option<String>,
    /// How it ended.
    pub verdict: Option<String>,
}

impl From<&RunRecord> for RunView {
    fn from(run: &RunRecord) -> Self {
        let attempts = run.attempts.iter().map(|attempt| AttemptView {
            attempt: attempt.number,
            tasks: crate::report::tasks(attempt),
            started: attempt.created.to_string(),
            ended: attempt.ended.map(|at| at.to_string()),
            verdict: attempt.verdict.as_ref().map(ToString::to_string),
        });
        Self {
            run: run.number,
            created: run.created.to_string(),
            ended: run.ended.as_ref().map(|end| end.at.to_string()),
            verdict: run.ended.as_ref().map(|end| end.verdict.to_string()),
            attempts: attempts.collect(),
        }
    }
}

/// One line of a task's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub task: String,
    pub attempt: u32,
    /// stdout or stderr; log for what Trainyard says of output that was dropped.
    pub stream: String,
    pub time: String,
    /// Without its newline; bytes that are not UTF-8 are replaced.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
}

/// What is to be done in a running task; the body of `…/exec`. One of `command`, `read` and `write`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecRequest {
    /// `ROLE-I`; the only running task when absent.
    pub task: Option<String>,
    /// The program and its arguments.
    pub command: Option<Vec<String>>,
    /// The command gets a terminal, of this size and kind.
    pub tty: bool,
    pub rows: u16,
    pub columns: u16,
    pub term: Option<String>,
    /// A path in the task, to come as a tar stream on standard output.
    pub read: Option<String>,
    /// A path in the task, to which a tar stream on standard input goes.
    pub write: Option<String>,
}

impl ExecRequest {
    pub fn order(&self) -> Result<Order, String> {
        match (&self.command, &self.read, &self.write) {
            (Some(command), None, None) if command.is_empty() => Err("command is empty".to_owned()),
            (Some(command), None, None) => Ok(Order::Run { command: command.clone(), terminal: self.terminal() }),
            (None, Some(path), None) if !self.tty => Ok(Order::Read(path.clone())),
            (None, None, Some(path)) if !self.tty => Ok(Order::Write(path.clone())),
            _ => Err("exec wants one of command, read and write, and a terminal only for a command".to_owned()),
        }
    }

    fn terminal(&self) -> Option<Terminal> {
        let kind = self.term.clone().unwrap_or_else(|| "xterm-256color".to_owned());
        self.tty.then_some(Terminal { rows: self.rows, columns: self.columns, kind })
    }
}

/// What of a job's logs is wanted; the query of `…/logs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogQuery {
    /// `ROLE-I`; all tasks when absent.
    pub task: Option<String>,
    pub run: Option<u32>,
    /// Absent: the newest one's; all, when a run is named or followed.
    pub attempt: Option<u32>,
    /// Stay until the run has ended.
    pub follow: bool,
    /// Only the last lines of each task.
    pub lines: Option<u64>,
    /// Only what came from then on, ms since 1970.
    pub since: Option<u64>,
}

impl LogQuery {
    /// As it stands in the address; names hold no character that would have to be escaped but UTF-8, which is.
    pub fn encode(&self) -> String {
        let mut parts = Vec::new();
        if let Some(task) = &self.task {
            parts.push(format!("task={}", escape(task)));
        }
        let (run, attempt) = (self.run.map(u64::from), self.attempt.map(u64::from));
        for (name, value) in [("run", run), ("attempt", attempt), ("lines", self.lines), ("since", self.since)] {
            parts.extend(value.map(|value| format!("{name}={value}")));
        }
        if self.follow {
            parts.push("follow=1".to_owned());
        }
        parts.join("&")
    }

    pub fn decode(query: &str) -> Result<Self, String> {
        let mut out = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || value.parse::<u64>().map_err(|_| format!("{name}={value}: not a number"));
            match name {
                "task" => out.task = Some(unescape(value).ok_or_else(|| format!("{name}: not text"))?),
                "run" => out.run = Some(u32::try_from(number()?).map_err(|_| "run: too large".to_owned())?),
                "attempt" => {
                    out.attempt = Some(u32::try_from(number()?).map_err(|_| "attempt: too large".to_owned())?);
                }
                "lines" => out.lines = Some(number()?),
                "since" => out.since = Some(number()?),
                "follow" => out.follow = value == "1",
                _ => return Err(format!("unknown parameter {name:?}")),
            }
        }
        Ok(out)
    }
}

/// An image by its name, in a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameQuery {
    #[serde(default)]
    pub name: String,
    pub workspace: Option<String>,
    /// mine (when absent), public or preset.
    pub kind: Option<String>,
}

impl NameQuery {
    pub fn encode(&self) -> String {
        let parts = [("name", Some(&self.name)), ("workspace", self.workspace.as_ref()), ("kind", self.kind.as_ref())];
        let parts = parts.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", escape(value?))));
        parts.collect::<Vec<_>>().join("&")
    }

    /// The parameters of an address; others than these are handed back.
    pub fn decode(query: &str) -> Result<(Self, BTreeMap<String, String>), String> {
        let (mut out, mut rest) = (Self::default(), BTreeMap::new());
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = unescape(value).ok_or_else(|| format!("{key}: not text"))?;
            match key {
                "name" => out.name = value,
                "workspace" => out.workspace = Some(value),
                "kind" => out.kind = Some(value),
                _ => drop(rest.insert(key.to_owned(), value)),
            }
        }
        Ok((out, rest))
    }
}

/// What to call an archive that is sent, and which image of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportQuery {
    pub name: NameQuery,
    pub tag: Option<String>,
    /// `oci-archive` or `docker-archive`; seen from the archive itself when absent.
    pub format: Option<String>,
}

/// How far a pull or an import has come; the last one has a name and a digest, or an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageStep {
    pub layers: u64,
    pub layers_done: u64,
    pub bytes: u64,
    pub bytes_done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One name of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    pub name: String,
    /// mine, public or preset.
    pub kind: String,
    pub workspace: Option<String>,
    pub digest: String,
    /// Bytes of its files.
    pub size: u64,
    pub layers: usize,
    pub brought: String,
    pub used: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageDetail {
    pub image: ImageView,
    pub record: ImageRecord,
}

pub use crate::ids::escape_in_address as escape;

/// The reverse of [`escape`]; `None` for broken escapes and what is not UTF-8.
pub fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let pair = [bytes.next()?, bytes.next()?];
        out.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_names_of_any_script_read_back() {
        let query = LogQuery {
            task: Some("训练-0".into()),
            run: Some(3),
            attempt: Some(2),
            follow: true,
            lines: Some(5),
            since: Some(7),
        };
        assert_eq!(LogQuery::decode(&query.encode()), Ok(query));
        assert!(LogQuery::decode("lines=x").is_err());
        assert!(LogQuery::decode("colour=red").is_err());
        assert_eq!(unescape("%zz"), None);
    }
}
