//! What may be asked in the query of an address.

/// A parameter of the query.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
    pub does: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// Of a job, a workspace, a token: as [`crate::ids`] has them.
    Name,
    /// `next` of a list.
    Cursor,
    /// From and to.
    Number(u64, u64),
    /// Milliseconds since 1970, or as answers write times: `2026-01-31T08:00:00Z`.
    Time,
    /// `1` or `true`, `0` or `false`.
    Flag,
    OneOf(&'static [&'static str]),
    /// Several, with commas between them.
    AnyOf(&'static [&'static str]),
}

pub(super) const fn param(name: &'static str, kind: Kind, does: &'static str) -> Param {
    Param { name, kind, required: false, does }
}

pub(super) const fn needed(name: &'static str, kind: Kind, does: &'static str) -> Param {
    Param { name, kind, required: true, does }
}

/// Only what came no earlier, or no later.
macro_rules! since {
    ($what:literal) => {
        param("since", Kind::Time, concat!("Only ", $what, " then or later."))
    };
}
macro_rules! until {
    ($what:literal) => {
        param("until", Kind::Time, concat!("Only ", $what, " then or earlier."))
    };
}

/// The parameter that has an answer wait for what it tells.
pub const WAIT: &str = "wait";
/// Most of a list in one answer, and how many where nobody says.
pub const PAGE_MAX: u64 = 10_000;
pub const PAGE: u64 = 1_000;

const STATES: &[&str] =
    &["invalid", "held", "waiting", "starting", "running", "stopping", "succeeded", "failed", "stopped"];
pub const SORTS: &[&str] =
    &["name", "-name", "created", "-created", "state", "-state", "user", "-user", "duration", "-duration", "nearest"];

const TEXT: Param = param("text", Kind::Text, "Only those with this in their name or description, whatever the case.");
const NEAR: Param = param(
    "name",
    Kind::Text,
    "Only those whose name is near this one: part of it, its letters in their order, or a slip of the keys away.",
);
const USER: Param = param("user", Kind::Text, "Only those of this user, by name or number.");
const LIMIT: Param = param("limit", Kind::Number(1, PAGE_MAX), "So many at most; 1000 when absent.");
const AFTER: Param =
    param("after", Kind::Cursor, "Go on behind this: `next` of the answer before, with the same other parameters.");

const fn sort(by: &'static [&'static str]) -> Param {
    param(
        "sort",
        Kind::OneOf(by),
        "By what they are sorted, with - the other way round; name when absent, nearest with `name`.",
    )
}

pub(super) const LIST: &[Param] = &[
    param("state", Kind::AnyOf(STATES), "Only jobs in one of these states."),
    param("user", Kind::Text, "Only jobs of this user, by name or number."),
    param("workspace", Kind::Name, "Only jobs of this workspace."),
    since!("jobs that were created"),
    until!("jobs that were created"),
    param("text", Kind::Text, "Only jobs with this in their name, workspace or description, whatever the case."),
    NEAR,
    sort(SORTS),
    LIMIT,
    AFTER,
];
pub(super) const IMAGES: &[Param] = &[
    param("workspace", Kind::Name, "Those that jobs of this workspace find."),
    since!("those that were brought"),
    until!("those that were brought"),
    TEXT,
    NEAR,
    sort(&["name", "-name", "brought", "-brought", "used", "-used", "size", "-size", "nearest"]),
    LIMIT,
    AFTER,
];
const BY_NAME: Param = sort(&["name", "-name", "nearest"]);
pub(super) const OF_WORKSPACE: &[Param] = &[WORKSPACE, TEXT, NEAR, BY_NAME, LIMIT, AFTER];
pub(super) const NAMED: &[Param] = &[TEXT, NEAR, BY_NAME, LIMIT, AFTER];
pub(super) const WORKSPACES: &[Param] =
    &[TEXT, NEAR, sort(&["name", "-name", "used", "-used", "nearest"]), LIMIT, AFTER];
pub(super) const TEMPLATES: &[Param] = &[
    param("workspace", Kind::Name, "Only of this workspace."),
    USER,
    since!("those that were changed"),
    until!("those that were changed"),
    TEXT,
    NEAR,
    sort(&["name", "-name", "changed", "-changed", "user", "-user", "nearest"]),
    LIMIT,
    AFTER,
];
pub(super) const TOKENS: &[Param] = &[
    USER,
    since!("those that were made"),
    until!("those that were made"),
    TEXT,
    NEAR,
    sort(&["name", "-name", "created", "-created", "user", "-user", "nearest"]),
    LIMIT,
    AFTER,
];
pub(super) const USAGE: &[Param] = &[
    param("by", Kind::OneOf(&["user", "workspace", "job"]), "By what; workspace when absent."),
    param("workspace", Kind::Name, "Only what was used in this workspace."),
    param("since", Kind::Time, "Since then; from the beginning when absent."),
    TEXT,
    NEAR,
    param(
        "sort",
        Kind::OneOf(&["-hours", "hours", "name", "-name", "nearest"]),
        "By what they are sorted, with - the other way round; -hours when absent, nearest with `name`.",
    ),
    LIMIT,
    AFTER,
];

pub(super) const LOGS: &[Param] = &[
    param("task", Kind::Text, "ROLE-I; all tasks when absent."),
    param("run", Kind::Number(0, u32::MAX as u64), "This run; the newest when absent."),
    param(
        "attempt",
        Kind::Number(0, u32::MAX as u64),
        "This attempt; the newest when absent, all of them when a run is named or followed.",
    ),
    param("follow", Kind::Flag, "Stay until the run has ended."),
    param("lines", Kind::Number(0, u64::MAX), "Only so many of the last lines of each task."),
    since!("what came"),
    until!("what came"),
    param(
        "format",
        Kind::OneOf(&["json", "text"]),
        "`json`: a line of JSON for each line (when absent); `text`: one file of the tasks' lines, by ranges of bytes as well.",
    ),
];

pub(super) const EVENTS: &[Param] = &[
    param("after", Kind::Number(0, u64::MAX), "Only events behind this serial number; all that are kept when absent."),
    param("follow", Kind::Flag, "Stay, and tell of what happens."),
    param("workspace", Kind::Name, "Only of jobs of this workspace."),
    param("job", Kind::Name, "Only of the job of this name."),
    since!("what came"),
    until!("what came"),
    param("limit", Kind::Number(1, u64::MAX), "So many at most."),
];
pub(super) const METRICS: &[Param] = &[
    needed("task", Kind::Text, "ROLE-I."),
    param("run", Kind::Number(1, u32::MAX as u64), "This run; the newest when absent."),
    param("attempt", Kind::Number(1, u32::MAX as u64), "This attempt; the newest when absent."),
];
pub(super) const JOB: &[Param] = &[
    param(
        "known",
        Kind::OneOf(&["wait"]),
        "`wait`: of a job whose file was just written, wait until the daemon has read it, 30 s at most.",
    ),
    param("run", Kind::Number(1, u32::MAX as u64), "Of its runs this one alone; the newest 100 when absent."),
    param(
        "events_from",
        Kind::Number(0, u64::MAX),
        "Of its events those from this number on, 1,000 at most; the newest 1,000 when absent.",
    ),
];
pub(super) const STOP: &[Param] = &[param("now", Kind::Flag, "Kill what runs, also in the middle of its grace.")];
pub(super) const CLONE: &[Param] = &[
    needed("as", Kind::Name, "The name of the new job."),
    param("to", Kind::Name, "Its workspace; that of the job when absent."),
];
pub(super) const CHECK: &[Param] = &[
    WORKSPACE,
    param("job", Kind::Name, "The name that the job is to have; job when absent."),
    param("whole", Kind::Flag, "The text is all of the job: no overrides of its name are put on top."),
];
pub(super) const PUT: &[Param] = &[param("new", Kind::Flag, "Only if there is no such file yet.")];
const NAME: Param = needed("name", Kind::Text, "The image's name.");
const WORKSPACE: Param = param("workspace", Kind::Name, "Of this workspace; default when absent.");
const WHOSE: Param = param("kind", Kind::OneOf(&["mine", "public", "preset"]), "Whose it is.");
pub(super) const IMAGE: &[Param] = &[NAME, WORKSPACE, WHOSE];
pub(super) const TAG: &[Param] = &[NAME, WORKSPACE, WHOSE, needed("new", Kind::Text, "The further name.")];
pub(super) const IMPORT: &[Param] = &[
    param("name", Kind::Text, "What to call it; as the archive does when absent."),
    WORKSPACE,
    WHOSE,
    param("tag", Kind::Text, "Which image of the archive."),
    param("format", Kind::OneOf(&["oci-archive", "docker-archive"]), "Seen from the archive when absent."),
];
