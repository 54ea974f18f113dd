//! Why a request gets no other answer: a status, a code that stays the same, and a sentence for people.

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_RANGE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};

use super::server::{Body, json};
use super::wire::Failure;
use crate::reconcile::Refusal;
use crate::spec::Diagnostic;

#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Bad(String),
    /// There is nothing of that name.
    #[error("{0}")]
    NotFound(String),
    #[error("there is nothing at {0}; /openapi.json lists what there is")]
    NoRoute(String),
    #[error("{path} takes {allowed} only")]
    Method { path: String, allowed: String },
    #[error("{0}")]
    Unauthorized(String),
    #[error("{0}")]
    Forbidden(String),
    /// What was followed is not theirs to see any more.
    #[error(
        "you may not see {0} any more: the right to it was taken away while it was followed; ask its owner or root"
    )]
    Revoked(String),
    #[error("{0}")]
    Conflict(String),
    /// A job file that the daemon would not take.
    #[error("the job file is not valid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InvalidJob(Vec<Diagnostic>),
    /// A template of which no job can be made.
    #[error("the template is not valid: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InvalidTemplate(Vec<Diagnostic>),
    /// More than a caller may have at once.
    #[error("{0}")]
    TooMany(String),
    #[error("more requests than one caller may make; come back in {after_s} s")]
    TooFast { after_s: u64 },
    #[error("the request's body is longer than {0} bytes, the most that is taken here")]
    TooLarge(usize),
    #[error("there are {total} bytes, and none of those that are asked for")]
    NoSuchRange { total: u64 },
    #[error("the request's body did not arrive in time")]
    Slow,
    /// The machine or the daemon lacks something.
    #[error("{0}")]
    Failed(String),
    #[error("it took longer than it may; try again, and look at the daemon's journal if that goes on")]
    TimedOut,
    #[error("only root may do that: use sudo, or ask the administrator")]
    NotRoot,
    #[error("the daemon is ending")]
    Ending,
}

/// The codes with their statuses; `docs/API.md` has them, a test compares.
pub const CODES: [(&str, u16); 35] = [
    ("bad_request", 400),
    ("unauthorized", 401),
    ("forbidden", 403),
    ("not_yours", 403),
    ("root_only", 403),
    ("revoked", 403),
    ("not_found", 404),
    ("no_such_job", 404),
    ("no_such_path", 404),
    ("method_not_allowed", 405),
    ("body_timeout", 408),
    ("conflict", 409),
    ("several", 409),
    ("sweep", 409),
    ("not_running", 409),
    ("still_running", 409),
    ("file_still_there", 409),
    ("unsent_output", 409),
    ("nothing_to_send", 409),
    ("no_time_limit", 409),
    ("ending_already", 409),
    ("no_such_extension", 409),
    ("no_job_file", 409),
    ("stopped_by_file", 409),
    ("never_valid", 409),
    ("refused_now", 409),
    ("body_too_large", 413),
    ("range_not_satisfiable", 416),
    ("invalid_job", 422),
    ("invalid_template", 422),
    ("too_many_requests", 429),
    ("internal", 500),
    ("shutting_down", 503),
    ("timeout", 503),
    ("no_room", 507),
];

impl ApiError {
    /// Which kind of refusal it is: programs go by it, it never changes.
    pub(super) fn code(&self) -> &'static str {
        match self {
            ApiError::Refused(refusal) => refusal_code(refusal),
            ApiError::Bad(_) => "bad_request",
            ApiError::NotFound(_) => "not_found",
            ApiError::NoRoute(_) => "no_such_path",
            ApiError::Method { .. } => "method_not_allowed",
            ApiError::Unauthorized(_) => "unauthorized",
            ApiError::Forbidden(_) => "forbidden",
            ApiError::Revoked(_) => "revoked",
            ApiError::Conflict(_) => "conflict",
            ApiError::InvalidJob(_) => "invalid_job",
            ApiError::InvalidTemplate(_) => "invalid_template",
            ApiError::TooMany(_) | ApiError::TooFast { .. } => "too_many_requests",
            ApiError::TooLarge(_) => "body_too_large",
            ApiError::NoSuchRange { .. } => "range_not_satisfiable",
            ApiError::Slow => "body_timeout",
            ApiError::Failed(_) => "internal",
            ApiError::TimedOut => "timeout",
            ApiError::NotRoot => "root_only",
            ApiError::Ending => "shutting_down",
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        let found = CODES.iter().find(|(code, _)| *code == self.code());
        let status = found.and_then(|(_, status)| StatusCode::from_u16(*status).ok());
        status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn failure(&self) -> Failure {
        let diagnostics = match self {
            ApiError::InvalidJob(found) | ApiError::InvalidTemplate(found) => found.clone(),
            _ => Vec::new(),
        };
        Failure { code: self.code().to_owned(), error: self.to_string(), diagnostics }
    }

    /// The last line of a stream of lines that was to be longer: whoever reads it knows that it is not whole.
    pub(super) fn last_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self.failure()).expect("a failure is text and numbers");
        line.push(b'\n');
        line
    }

    pub(super) fn response(&self) -> hyper::Response<Body> {
        let mut response = json(self.status(), &self.failure());
        let headers = response.headers_mut();
        match self {
            ApiError::Method { allowed, .. } => {
                HeaderValue::from_str(allowed).ok().and_then(|allowed| headers.insert(ALLOW, allowed));
            }
            ApiError::NoSuchRange { total } => {
                let total = HeaderValue::from_str(&format!("bytes */{total}"));
                total.ok().and_then(|total| headers.insert(CONTENT_RANGE, total));
            }
            ApiError::TooFast { after_s } => drop(headers.insert(RETRY_AFTER, HeaderValue::from(*after_s))),
            ApiError::Unauthorized(_) => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"trainyard\""));
            }
            _ => {}
        }
        response.map(|body| body.boxed())
    }
}

fn refusal_code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Unknown(_) => "no_such_job",
        Refusal::Sweep { .. } => "sweep",
        Refusal::NotYours { .. } | Refusal::NotYourRuns { .. } | Refusal::UnknownRuns { .. } => "not_yours",
        Refusal::NotRunning { .. } => "not_running",
        Refusal::StillRunning { .. } => "still_running",
        Refusal::FileStillThere { .. } => "file_still_there",
        Refusal::Unsent { .. } => "unsent_output",
        Refusal::NothingToSend { .. } => "nothing_to_send",
        Refusal::NoLimit { .. } => "no_time_limit",
        Refusal::Ending { .. } => "ending_already",
        Refusal::NoSuchExtension { .. } => "no_such_extension",
        Refusal::NoFile { .. } => "no_job_file",
        Refusal::StoppedByFile { .. } => "stopped_by_file",
        Refusal::NeverValid { .. } => "never_valid",
        Refusal::RefusedNow { .. } => "refused_now",
        // Of several jobs: what all of them are refused for.
        Refusal::Each(each) => {
            let mut codes = each.iter().map(refusal_code);
            let first = codes.next().unwrap_or("several");
            if codes.all(|code| code == first) { first } else { "several" }
        }
        Refusal::NoRoom { .. } => "no_room",
        Refusal::Store(_) => "internal",
    }
}
