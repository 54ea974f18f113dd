//! What the API has: one row a route. The router, the checks of parameters and bodies, the OpenAPI document and the table in
//! `docs/API.md` all come from here.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::assets::{DatasetView, ModelView};
use super::gpus::GpuList;
use super::health::{Health, Readiness};
use super::params::{
    CHECK, CLONE, EVENTS, IMAGE, IMAGES, IMPORT, JOB, Kind, LIST, LOGS, METRICS, NAMED, OF_WORKSPACE, PUT, Param, STOP,
    TAG, TEMPLATES, TOKENS, USAGE, WAIT, WORKSPACES, needed, param,
};
use super::secrets::SecretView;
use super::storage::{WorkspaceDetail, WorkspaceView};
use super::templates::{TemplateDetail, TemplateView};
use super::tokens::{NewToken, TokenRequest, TokenView};
use super::usage::UsageView;
use super::wire::{
    Checked, Done, ExecRequest, HappeningView, ImageDetail, ImageStep, ImageView, JobList, JobView, LogLine, Page,
};
use crate::images::Pruned;
use crate::report::{DrainReport, JobLine};
use crate::secrets::SECRET_MAX;
use crate::spec::JOB_FILE_MAX_BYTES;

/// What is to be done; the router has an arm for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Health,
    Ready,
    Metrics,
    OpenApi,
    Jobs,
    JobLines,
    Job,
    Logs,
    Exec,
    Stop,
    Rerun,
    Restart,
    Extend,
    Send,
    KeepUnsent,
    Remove,
    Images,
    Image,
    PullImage,
    ImportImage,
    TagImage,
    PruneImages,
    RemoveImage,
    RemoveDataset,
    RemoveModel,
    Gpus,
    Usage,
    Workspaces,
    Workspace,
    State,
    Drain,
    BeginDrain,
    UndoDrain,
    Shutdown,
    JobFile,
    PutJobFile,
    RemoveJobFile,
    CloneJob,
    Check,
    TaskMetrics,
    TaskScalars,
    Events,
    Datasets,
    Models,
    Templates,
    Template,
    PutTemplate,
    RemoveTemplate,
    Secrets,
    PutSecret,
    RemoveSecret,
    Tokens,
    NewToken,
    RemoveToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }
}

/// Who may ask at all; what of it they may see and do is decided job by job, by who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Everybody who reaches the daemon.
    Anyone,
    /// A local user, or a token that may `read`.
    Read,
    /// A local user, or a token that may change `jobs`.
    Jobs,
    /// Root, or a token of root's that may `admin`.
    Admin,
    /// Root, or a token that may see `metrics`.
    Metrics,
    /// A local user by the socket; no token.
    Local,
}

impl Right {
    pub fn name(self) -> &'static str {
        match self {
            Right::Anyone => "anyone",
            Right::Read => "read",
            Right::Jobs => "jobs",
            Right::Admin => "admin",
            Right::Metrics => "metrics",
            Right::Local => "local",
        }
    }
}

/// What a request carries.
#[derive(Clone, Copy)]
pub enum Takes {
    Nothing,
    /// At most so many bytes.
    Json(fn(&mut SchemaGenerator) -> Schema, usize),
    /// Text, at most so many bytes.
    Text(&'static str, usize),
    /// Whatever its length; the handler has its own bound.
    Stream(&'static str),
}

/// What a success looks like.
#[derive(Clone, Copy)]
pub enum Answers {
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// A line of JSON for each, as they come.
    Lines(fn(&mut SchemaGenerator) -> Schema),
    Text(&'static str),
    /// Another protocol on the same connection.
    Upgrade,
}

#[derive(Clone, Copy)]
pub struct Route {
    pub action: Action,
    pub verb: Verb,
    /// With `{name}` for what differs.
    pub path: &'static str,
    /// One sentence.
    pub does: &'static str,
    pub query: &'static [Param],
    pub takes: Takes,
    pub answers: Answers,
    pub may: Right,
    /// Of a success.
    pub status: u16,
    pub parts: Parts,
}

/// Whether an answer can be had in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    No,
    /// As one file, by ranges of bytes (`Range`, `If-Range`).
    AsText,
}

impl Route {
    /// Those of the path, in their order.
    pub fn places(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Whether it ends by itself soon; a stream, and what waits for something, may stay as long as both sides want.
    pub fn is_short(&self) -> bool {
        matches!(self.answers, Answers::Json(_) | Answers::Text(_))
            && !matches!(self.takes, Takes::Stream(_))
            && !self.query.iter().any(|param| param.name == WAIT)
    }
}

const fn route(action: Action, verb: Verb, path: &'static str, may: Right, answers: Answers) -> Route {
    Route {
        action,
        verb,
        path,
        does: "",
        query: &[],
        takes: Takes::Nothing,
        answers,
        may,
        status: 200,
        parts: Parts::No,
    }
}

impl Route {
    const fn does(self, does: &'static str) -> Self {
        Self { does, ..self }
    }

    const fn asks(self, query: &'static [Param]) -> Self {
        Self { query, ..self }
    }

    const fn takes(self, takes: Takes) -> Self {
        Self { takes, ..self }
    }

    const fn in_parts(self) -> Self {
        Self { parts: Parts::AsText, ..self }
    }

    const fn answers_with(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const JOB_FILE: Takes = Takes::Text("application/toml", JOB_FILE_MAX_BYTES as usize);
/// Longest command line that a kernel takes, and some.
const EXEC_MAX: usize = 4 << 20;
/// All of them.
pub static ROUTES: &[Route] = &[
    route(Action::Health, Verb::Get, "/healthz", Right::Anyone, Answers::Json(of::<Health>))
        .does("Tells that the daemon answers."),
    route(Action::Ready, Verb::Get, "/readyz", Right::Anyone, Answers::Json(of::<Readiness>))
        .does("Tells whether the daemon takes and runs jobs; 503 while it does not."),
    route(Action::Metrics, Verb::Get, "/metrics", Right::Metrics, Answers::Text("text/plain; version=0.0.4"))
        .does("Numbers for Prometheus."),
    route(Action::OpenApi, Verb::Get, "/openapi.json", Right::Anyone, Answers::Json(of::<serde_json::Value>))
        .does("This description."),
    route(Action::Jobs, Verb::Get, "/v1/jobs", Right::Read, Answers::Json(of::<JobList>))
        .does("Lists the jobs that the caller may see, page by page.")
        .asks(LIST),
    route(Action::JobLines, Verb::Get, "/v1/jobs/lines", Right::Read, Answers::Json(of::<JobList<JobLine>>))
        .does("Lists the same jobs, of each what a line of a table tells: of thousands it comes much sooner.")
        .asks(LIST),
    route(Action::Job, Verb::Get, "/v1/jobs/{workspace}/{job}", Right::Read, Answers::Json(of::<JobView>))
        .does("Shows a job with its runs, its events and its file.")
        .asks(JOB),
    route(Action::Remove, Verb::Delete, "/v1/jobs/{workspace}/{job}", Right::Jobs, Answers::Json(of::<Done>))
        .does("Removes the record of a job that is over and whose file is gone, or with its file.")
        .asks(&[
            param("file", Kind::Flag, "Remove the job's file as well."),
            param("dry_run", Kind::Flag, "Say what would be removed or is refused, and remove nothing."),
        ]),
    route(Action::Logs, Verb::Get, "/v1/jobs/{workspace}/{job}/logs", Right::Read, Answers::Lines(of::<LogLine>))
        .does("Sends what the tasks printed, merged by time.")
        .asks(LOGS)
        .in_parts(),
    route(Action::Exec, Verb::Post, "/v1/jobs/{workspace}/{job}/exec", Right::Jobs, Answers::Upgrade)
        .does("Runs a command in a running task, or copies files, over the upgraded connection.")
        .takes(Takes::Json(of::<ExecRequest>, EXEC_MAX))
        .answers_with(101),
    route(Action::Stop, Verb::Post, "/v1/jobs/{workspace}/{job}/stop", Right::Jobs, Answers::Json(of::<Done>))
        .does("Stops what runs of a job, or takes it from the queue.")
        .asks(STOP),
    route(Action::Rerun, Verb::Post, "/v1/jobs/{workspace}/{job}/rerun", Right::Jobs, Answers::Json(of::<Done>))
        .does("Runs a job once more, after what runs of it."),
    route(Action::Restart, Verb::Post, "/v1/jobs/{workspace}/{job}/restart", Right::Jobs, Answers::Json(of::<Done>))
        .does("Stops what runs of a job, then runs it once more."),
    route(Action::Extend, Verb::Post, "/v1/jobs/{workspace}/{job}/extend", Right::Jobs, Answers::Json(of::<Done>))
        .does("Lets the newest run take longer.")
        .asks(&[needed("by_ms", Kind::Number(1, u64::MAX), "By so many milliseconds.")]),
    route(Action::Send, Verb::Post, "/v1/jobs/{workspace}/{job}/send", Right::Jobs, Answers::Json(of::<Done>))
        .does("Copies what there is of the output to its store now."),
    route(Action::KeepUnsent, Verb::Delete, "/v1/jobs/{workspace}/{job}/send", Right::Jobs, Answers::Json(of::<Done>))
        .does("Gives up the copy of the output to its store."),
    route(Action::Images, Verb::Get, "/v1/images", Right::Read, Answers::Json(of::<Page<ImageView>>))
        .does("Lists images that the caller may use, page by page.")
        .asks(IMAGES),
    route(Action::RemoveImage, Verb::Delete, "/v1/images", Right::Jobs, Answers::Json(of::<Done>))
        .does("Removes a name of an image.")
        .asks(IMAGE),
    route(Action::Image, Verb::Get, "/v1/images/show", Right::Read, Answers::Json(of::<ImageDetail>))
        .does("Shows an image.")
        .asks(IMAGE),
    route(Action::TagImage, Verb::Post, "/v1/images/tag", Right::Jobs, Answers::Json(of::<Done>))
        .does("Gives an image a further name.")
        .asks(TAG),
    route(Action::PullImage, Verb::Post, "/v1/images/pull", Right::Jobs, Answers::Lines(of::<ImageStep>))
        .does("Brings an image in from its registry.")
        .asks(IMAGE),
    route(Action::ImportImage, Verb::Post, "/v1/images/import", Right::Jobs, Answers::Lines(of::<ImageStep>))
        .does("Brings an image in from an archive.")
        .asks(IMPORT)
        .takes(Takes::Stream("application/x-tar")),
    route(Action::PruneImages, Verb::Post, "/v1/images/prune", Right::Admin, Answers::Json(of::<Pruned>))
        .does("Removes what of images nobody needs.")
        .asks(&[param("unused_s", Kind::Number(0, u64::MAX), "Also images that nobody has used for so many seconds.")]),
    route(
        Action::RemoveDataset,
        Verb::Delete,
        "/v1/datasets/{home}/{dataset}/{version}",
        Right::Jobs,
        Answers::Json(of::<Done>),
    )
    .does("Removes a published version of a dataset."),
    route(
        Action::RemoveModel,
        Verb::Delete,
        "/v1/models/{workspace}/{job}/{run}",
        Right::Jobs,
        Answers::Json(of::<Done>),
    )
    .does("Removes the model that a run has left."),
    route(Action::Gpus, Verb::Get, "/v1/gpus", Right::Read, Answers::Json(of::<GpuList>))
        .does("Shows the graphics cards: health, use, holders."),
    route(Action::Usage, Verb::Get, "/v1/usage", Right::Read, Answers::Json(of::<Page<UsageView>>))
        .does("Adds up what was used of the machine, page by page.")
        .asks(USAGE),
    route(Action::Workspaces, Verb::Get, "/v1/workspaces", Right::Read, Answers::Json(of::<Page<WorkspaceView>>))
        .does("Lists the workspaces that the caller may enter, with their storage, page by page.")
        .asks(WORKSPACES),
    route(
        Action::Workspace,
        Verb::Get,
        "/v1/workspaces/{workspace}",
        Right::Read,
        Answers::Json(of::<WorkspaceDetail>),
    )
    .does("Shows a workspace, with what takes the room."),
    route(Action::JobFile, Verb::Get, "/v1/jobs/{workspace}/{job}/file", Right::Read, Answers::Text("application/toml"))
        .does("Sends the job's file as it is."),
    route(Action::PutJobFile, Verb::Put, "/v1/jobs/{workspace}/{job}/file", Right::Jobs, Answers::Json(of::<Done>))
        .does("Writes the job's file, whole, as the caller's, if it is valid; answers when the daemon has taken it in. 201 for a new one.")
        .asks(PUT)
        .takes(JOB_FILE),
    route(Action::RemoveJobFile, Verb::Delete, "/v1/jobs/{workspace}/{job}/file", Right::Jobs, Answers::Json(of::<Done>))
        .does("Removes the job's file with its overrides, as its owner's `rm` would; the record stays."),
    route(Action::CloneJob, Verb::Post, "/v1/jobs/{workspace}/{job}/clone", Right::Jobs, Answers::Json(of::<Done>))
        .does("Writes the file of a new job that is like this one.")
        .asks(CLONE)
        .answers_with(201),
    route(Action::Check, Verb::Post, "/v1/check", Right::Read, Answers::Json(of::<Checked>))
        .does("Tells what the daemon would say of a job file, without writing it.")
        .asks(CHECK)
        .takes(JOB_FILE),
    route(Action::TaskMetrics, Verb::Get, "/v1/jobs/{workspace}/{job}/metrics", Right::Read, Answers::Text("text/csv"))
        .does("Sends what a task has used of the machine, a row for every 5 s.")
        .asks(METRICS),
    route(Action::TaskScalars, Verb::Get, "/v1/jobs/{workspace}/{job}/scalars", Right::Read, Answers::Text("text/csv"))
        .does("Sends the numbers that a task has told of its training, a row for each.")
        .asks(METRICS),
    route(Action::Events, Verb::Get, "/v1/events", Right::Read, Answers::Lines(of::<HappeningView>))
        .does("Tells what happened to all jobs that the caller may see, in order, and goes on.")
        .asks(EVENTS),
    route(Action::Datasets, Verb::Get, "/v1/datasets", Right::Read, Answers::Json(of::<Page<DatasetView>>))
        .does("Lists the datasets that jobs of a workspace may name, page by page.")
        .asks(OF_WORKSPACE),
    route(Action::Models, Verb::Get, "/v1/models", Right::Read, Answers::Json(of::<Page<ModelView>>))
        .does("Lists the models of a workspace, page by page.")
        .asks(OF_WORKSPACE),
    route(Action::Templates, Verb::Get, "/v1/templates", Right::Read, Answers::Json(of::<Page<TemplateView>>))
        .does("Lists the templates that the caller may read, page by page.")
        .asks(TEMPLATES),
    route(
        Action::Template,
        Verb::Get,
        "/v1/templates/{workspace}/{template}",
        Right::Read,
        Answers::Json(of::<TemplateDetail>),
    )
    .does("Shows a template with its parameters and its file."),
    route(
        Action::PutTemplate,
        Verb::Put,
        "/v1/templates/{workspace}/{template}",
        Right::Jobs,
        Answers::Json(of::<Done>),
    )
    .does("Writes a template, whole, as the caller's, if jobs can be made of it. 201 for a new one.")
    .asks(PUT)
    .takes(JOB_FILE),
    route(
        Action::RemoveTemplate,
        Verb::Delete,
        "/v1/templates/{workspace}/{template}",
        Right::Jobs,
        Answers::Json(of::<Done>),
    )
    .does("Removes a template, as its owner's `rm` would; jobs that were made of it go on."),
    route(Action::Secrets, Verb::Get, "/v1/secrets/{workspace}", Right::Admin, Answers::Json(of::<Page<SecretView>>))
        .does("Lists the names of a workspace's secrets, page by page; what is in them is never told.")
        .asks(NAMED),
    route(Action::PutSecret, Verb::Put, "/v1/secrets/{workspace}/{secret}", Right::Admin, Answers::Json(of::<Done>))
        .does("Writes a secret of a workspace.")
        .takes(Takes::Text("application/octet-stream", SECRET_MAX)),
    route(
        Action::RemoveSecret,
        Verb::Delete,
        "/v1/secrets/{workspace}/{secret}",
        Right::Admin,
        Answers::Json(of::<Done>),
    )
    .does("Removes a secret of a workspace."),
    route(Action::Tokens, Verb::Get, "/v1/tokens", Right::Local, Answers::Json(of::<Page<TokenView>>))
        .does("Lists the caller's tokens, page by page; root's list has all.")
        .asks(TOKENS),
    route(Action::NewToken, Verb::Post, "/v1/tokens", Right::Local, Answers::Json(of::<NewToken>))
        .does("Makes a token; its secret is told this once.")
        .takes(Takes::Json(of::<TokenRequest>, 64 << 10))
        .answers_with(201),
    route(Action::RemoveToken, Verb::Delete, "/v1/tokens/{token}", Right::Local, Answers::Json(of::<Done>))
        .does("Revokes a token, at once.")
        .asks(&[param("user", Kind::Text, "Whose it is, by name or number; root may revoke those of others. The caller's own when absent.")]),
    route(Action::State, Verb::Get, "/v1/state", Right::Local, Answers::Lines(of::<serde_json::Value>))
        .does("Sends the whole state as it is at one instant, for backups; to root alone."),
    route(Action::Drain, Verb::Get, "/v1/drain", Right::Admin, Answers::Json(of::<DrainReport>))
        .does("Tells whether jobs may start, and what still runs.")
        .asks(&[param(WAIT, Kind::Flag, "Answer when nothing runs any more, or jobs may start.")]),
    route(Action::BeginDrain, Verb::Post, "/v1/drain", Right::Admin, Answers::Json(of::<DrainReport>))
        .does("Starts nothing any more; what runs goes on."),
    route(Action::UndoDrain, Verb::Delete, "/v1/drain", Right::Admin, Answers::Json(of::<DrainReport>))
        .does("Lets jobs start again."),
    route(Action::Shutdown, Verb::Post, "/v1/shutdown", Right::Admin, Answers::Json(of::<Done>))
        .does("Stops all jobs, then ends the daemon.")
        .answers_with(202),
];

/// Which route a request is for.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// By its place in the table, with what the path names.
    Route(usize, Vec<String>),
    /// The path is there, for these methods.
    Other(String),
    Nothing,
    /// The path is no text.
    Malformed,
}

/// Looks a request up. The path is as it came, percent-encoded.
pub fn find(method: &str, path: &str) -> Found {
    let parts: Option<Vec<String>> = path.trim_matches('/').split('/').map(super::wire::unescape).collect();
    let Some(parts) = parts else { return Found::Malformed };
    let mut allowed: Vec<&str> = Vec::new();
    for (index, route) in ROUTES.iter().enumerate() {
        let Some(values) = matched(route.path, &parts) else { continue };
        // What can be read can be asked about: the answer is sent without its body.
        let is_head = method == "HEAD" && route.verb == Verb::Get;
        if route.verb.name() == method || is_head {
            return Found::Route(index, values);
        }
        allowed.push(route.verb.name());
        allowed.extend((route.verb == Verb::Get).then_some("HEAD"));
    }
    if allowed.is_empty() { Found::Nothing } else { Found::Other(allowed.join(", ")) }
}

fn matched(path: &str, parts: &[String]) -> Option<Vec<String>> {
    let wanted: Vec<&str> = path.trim_matches('/').split('/').collect();
    let fits = wanted.len() == parts.len()
        && wanted.iter().zip(parts).all(|(wanted, part)| wanted.starts_with('{') && !part.is_empty() || wanted == part);
    fits.then(|| {
        let pairs = wanted.iter().zip(parts);
        pairs.filter(|(wanted, _)| wanted.starts_with('{')).map(|(_, part)| part.clone()).collect()
    })
}

/// The table of `docs/API.md`.
pub fn markdown() -> String {
    let mut out = "| request | does | may |\n|---|---|---|\n".to_owned();
    for route in ROUTES {
        let names: Vec<String> = route.query.iter().map(|param| format!("`{}`", param.name)).collect();
        let asks = if names.is_empty() { String::new() } else { format!(" Parameters: {}.", names.join(", ")) };
        out += &format!("| `{} {}` | {}{asks} | {} |\n", route.verb.name(), route.path, route.does, route.may.name());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_by_their_parts_and_methods_are_told() {
        let found = find("GET", "/v1/jobs/default/%E8%AE%AD%E7%BB%83/logs");
        let Found::Route(index, values) = found else { panic!("{found:?}") };
        assert_eq!((ROUTES[index].action, values), (Action::Logs, vec!["default".to_owned(), "训练".to_owned()]));
        assert_eq!(find("PATCH", "/v1/jobs"), Found::Other("GET, HEAD".to_owned()));
        assert_eq!(find("HEAD", "/v1/jobs"), find("GET", "/v1/jobs"));
        assert_eq!(find("HEAD", "/v1/check"), Found::Other("POST".to_owned()));
        assert_eq!(find("GET", "/v1/jobs/default//logs"), Found::Nothing);
        assert_eq!(find("GET", "/v2/jobs"), Found::Nothing);
        assert_eq!(find("GET", "/v1/jobs/a/%ff"), Found::Malformed);
    }

    #[test]
    fn whatever_programs_do_with_jobs_has_a_route() {
        for asked in [
            "GET /v1/jobs?state&user&workspace&since&until&text&name&sort&limit&after",
            "GET /v1/jobs/{workspace}/{job}",
            "PUT /v1/jobs/{workspace}/{job}/file?new",
            "DELETE /v1/jobs/{workspace}/{job}/file",
            "DELETE /v1/jobs/{workspace}/{job}?file",
            "POST /v1/jobs/{workspace}/{job}/stop",
            "POST /v1/jobs/{workspace}/{job}/rerun",
            "POST /v1/jobs/{workspace}/{job}/clone?as&to",
            "GET /v1/jobs/{workspace}/{job}/logs?since&until&lines&task&run&attempt&follow&format",
            "GET /v1/events?after&follow&workspace&job&since&until&limit",
            "GET /v1/jobs/{workspace}/{job}/metrics?task",
            "POST /v1/jobs/{workspace}/{job}/exec",
            "GET /v1/gpus",
            "GET /v1/usage?by&workspace&since&text&name&sort&limit&after",
            "GET /v1/templates?workspace&user&since&until&text&name&sort&limit&after",
            "PUT /v1/templates/{workspace}/{template}?new",
            "DELETE /v1/templates/{workspace}/{template}",
            "GET /v1/datasets?workspace&text&name&sort&limit&after",
            "GET /v1/workspaces?text&name&sort&limit&after",
            "GET /v1/secrets/{workspace}?text&name&sort&limit&after",
            "GET /v1/tokens?user&since&until&text&name&sort&limit&after",
            "GET /v1/models?workspace&text&name&sort&limit&after",
            "GET /v1/images?workspace&since&until&text&name&sort&limit&after",
            "PUT /v1/secrets/{workspace}/{secret}",
            "DELETE /v1/secrets/{workspace}/{secret}",
        ] {
            let (verb, path) = asked.split_once(' ').unwrap();
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let route = ROUTES.iter().find(|route| route.verb.name() == verb && route.path == path);
            let route = route.unwrap_or_else(|| panic!("{asked}"));
            let takes = |name: &str| route.query.iter().any(|param| param.name == name);
            assert!(query.split('&').filter(|name| !name.is_empty()).all(takes), "{asked}");
        }
    }

    #[test]
    fn every_route_says_what_it_does_and_is_there_once() {
        for (index, route) in ROUTES.iter().enumerate() {
            assert!(route.does.ends_with('.'), "{}", route.path);
            assert!(route.query.iter().all(|param| param.does.ends_with('.')), "{}", route.path);
            let again = ROUTES.iter().skip(index + 1).any(|other| other.path == route.path && other.verb == route.verb);
            assert!(!again, "{}", route.path);
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_in_an_address_makes_the_daemon_panic(path in "(/[a-z0-9{}%/]{0,9}){0,6}|.{0,40}", query in ".{0,60}|([a-z]{1,6}=[^&]{0,9}&){0,4}") {
            if let Found::Route(index, places) = find("GET", &path) {
                proptest::prop_assert_eq!(ROUTES[index].places().count(), places.len());
            }
            for route in ROUTES {
                let _ = super::super::query::Values::read(&query, route.query);
            }
            let _ = super::super::tokens::of_header(query.as_bytes()).and_then(super::super::tokens::parse);
        }
    }
}
