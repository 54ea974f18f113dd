//! What goes over the socket; one set of types for both ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::query::Values;
use super::tasks::TaskUsage;
use crate::ids::JobKey;
use crate::images::ImageRecord;
use crate::reconcile::Sight;
use crate::report::TaskReport;
use crate::report::{GpuReport, JobReport};
pub use crate::rundir::entry::OWN_FAILURE;
use crate::rundir::entry::{Order, Terminal};
use crate::spec::Diagnostic;
use crate::store::record::{EventRecord, RunRecord};

/// The header by which root asks in the place of another user, by number.
pub const FOR_USER: &str = "trainyard-for-user";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{J}List")]
pub struct JobList<J = JobReport> {
    pub jobs: Vec<J>,
    /// Files in `jobs.d` that cannot be anybody's job; root alone is told.
    pub strays: Vec<Diagnostic>,
    /// So many jobs are as was asked for, on this page and others.
    #[serde(default)]
    pub total: usize,
    /// There is more: ask again with it as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What came up to this serial number of events is in it: `/v1/events?after=` it tells what comes.
    #[serde(default)]
    pub serial: u64,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// So many are as was asked for, on this page and others.
    pub total: usize,
    /// There is more: ask again with it as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobView {
    pub report: JobReport,
    pub events: Vec<EventView>,
    pub runs: Vec<RunView>,
    /// The last good version of the job file, where all of the job is the caller's to see.
    pub spec: Option<String>,
    #[serde(default)]
    pub seen: Seen,
    /// Ports that its tasks listen on while they run.
    #[serde(default)]
    pub ports: Vec<PortView>,
    /// What the cards of its tasks do while they run.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
    /// What its tasks use of processors and memory while they run.
    #[serde(default)]
    pub usage: Vec<TaskUsage>,
}

/// How much of a job the caller sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Seen {
    /// What everybody in its workspace is told: how it is, and what has happened.
    Told,
    /// And logs and figures of the run, which are for the group of its file.
    Shared,
    /// All of it, as its owner and root.
    #[default]
    Own,
}

impl From<Sight> for Seen {
    fn from(sight: Sight) -> Self {
        match sight {
            Sight::Told => Self::Told,
            Sight::Shared => Self::Shared,
            Sight::Own => Self::Own,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// An event among those of all jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HappeningView {
    /// Its place among the events of all jobs: go on with `after`.
    pub serial: u64,
    pub workspace: String,
    pub job: String,
    #[serde(flatten)]
    pub event: EventView,
}

impl HappeningView {
    pub fn of(key: &JobKey, event: EventRecord) -> Self {
        let (workspace, job) = (key.workspace.to_string(), key.job.to_string());
        Self { serial: event.serial, workspace, job, event: event.into() }
    }
}

/// What was found in a job file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    /// The daemon would take it.
    pub valid: bool,
    pub diagnostics: Vec<Diagnostic>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    pub run: u32,
    pub created: String,
    pub ended: Option<String>,
    /// How it ended.
    pub verdict: Option<String>,
    pub attempts: Vec<AttemptView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    pub task: String,
    pub attempt: u32,
    /// stdout or stderr; log for what Trainyard says of output that was dropped.
    pub stream: String,
    pub time: String,
    /// Without its newline; bytes that are not UTF-8 are replaced.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Which kind of refusal it is, for programs; `docs/API.md` lists them. Absent from daemons of before.
    #[serde(default)]
    pub code: String,
    /// Why, and what to do: a sentence.
    pub error: String,
    /// What is wrong with a job file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
}

/// What is to be done in a running task; the body of `…/exec`. One of `command`, `read` and `write`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// Which jobs are wanted; the query of `/v1/jobs`, which says what each means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobQuery {
    pub states: Vec<String>,
    pub user: Option<String>,
    pub workspace: Option<String>,
    /// ms since 1970.
    pub since: Option<u64>,
    pub until: Option<u64>,
    pub text: Option<String>,
    pub name: Option<String>,
    pub sort: Option<String>,
    pub limit: Option<u64>,
    pub after: Option<String>,
}

impl JobQuery {
    pub fn encode(&self) -> String {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let states = (!self.states.is_empty()).then(|| self.states.join(","));
        encode([
            ("state", states),
            ("user", self.user.clone()),
            ("workspace", self.workspace.clone()),
            ("since", number(self.since)),
            ("until", number(self.until)),
            ("text", self.text.clone()),
            ("name", self.name.clone()),
            ("sort", self.sort.clone()),
            ("limit", number(self.limit)),
            ("after", self.after.clone()),
        ])
    }
}

/// Those that have a value, as they stand in an address.
fn encode<const N: usize>(pairs: [(&str, Option<String>); N]) -> String {
    let parts = pairs.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(&value?))));
    parts.collect::<Vec<_>>().join("&")
}

/// Which events are told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Only those behind this serial number.
    pub after: u64,
    /// Stay, and tell of what happens.
    pub follow: bool,
    /// Only those of this job.
    pub job: Option<JobKey>,
    /// Only those of jobs of this workspace; that of the job where one is named.
    pub workspace: Option<String>,
    /// Only those that came then or later, ms since 1970.
    pub since: Option<u64>,
    /// Only those that came then or earlier.
    pub until: Option<u64>,
}

impl EventQuery {
    pub fn encode(&self) -> String {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        encode([
            ("after", Some(self.after.to_string())),
            ("follow", self.follow.then(|| "1".to_owned())),
            ("workspace", self.job.as_ref().map(|key| key.workspace.to_string()).or_else(|| self.workspace.clone())),
            ("job", self.job.as_ref().map(|key| key.job.to_string())),
            ("since", number(self.since)),
            ("until", number(self.until)),
        ])
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// Only what came until then.
    pub until: Option<u64>,
    /// The tasks' lines as they are, not in JSON.
    pub as_text: bool,
}

impl LogQuery {
    pub fn encode(&self) -> String {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let (run, attempt) = (self.run.map(u64::from), self.attempt.map(u64::from));
        encode([
            ("task", self.task.clone()),
            ("run", number(run)),
            ("attempt", number(attempt)),
            ("lines", number(self.lines)),
            ("since", number(self.since)),
            ("until", number(self.until)),
            ("follow", self.follow.then(|| "1".to_owned())),
            ("format", self.as_text.then(|| "text".to_owned())),
        ])
    }

    pub fn read(values: &Values) -> Self {
        let small = |name| values.number(name).and_then(|number| u32::try_from(number).ok());
        Self {
            task: values.owned("task"),
            run: small("run"),
            attempt: small("attempt"),
            follow: values.flag("follow"),
            lines: values.number("lines"),
            since: values.time("since").map(|time| time.0),
            until: values.time("until").map(|time| time.0),
            as_text: values.text("format") == Some("text"),
        }
    }
}

/// An image by its name, in a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameQuery {
    pub name: String,
    pub workspace: Option<String>,
    /// mine (when absent), public or preset.
    pub kind: Option<String>,
}

impl NameQuery {
    pub fn encode(&self) -> String {
        let name = (!self.name.is_empty()).then(|| self.name.clone());
        encode([("name", name), ("workspace", self.workspace.clone()), ("kind", self.kind.clone())])
    }

    pub fn read(values: &Values) -> Self {
        Self {
            name: values.owned("name").unwrap_or_default(),
            workspace: values.owned("workspace"),
            kind: values.owned("kind"),
        }
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    use crate::api::routes::{Action, ROUTES};

    #[test]
    fn queries_and_names_of_any_script_read_back() {
        let query = LogQuery {
            task: Some("训练-0".into()),
            run: Some(3),
            attempt: Some(2),
            follow: true,
            lines: Some(5),
            since: Some(7),
            until: Some(9),
            as_text: true,
        };
        let route = |action| ROUTES.iter().find(|route| route.action == action).unwrap();
        let values = Values::read(&query.encode(), route(Action::Logs).query).unwrap();
        assert_eq!(LogQuery::read(&values), query);
        let query = NameQuery { name: "a b/c:d".into(), workspace: Some("训".into()), kind: Some("public".into()) };
        let values = Values::read(&query.encode(), route(Action::Image).query).unwrap();
        assert_eq!(NameQuery::read(&values), query);
        let query = JobQuery { states: vec!["failed".into(), "held".into()], limit: Some(3), ..JobQuery::default() };
        assert_eq!(Values::read(&query.encode(), route(Action::Jobs).query).unwrap().each("state").count(), 2);
        assert_eq!(unescape("%zz"), None);
    }
}
