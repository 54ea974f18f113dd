//! What happens to jobs, as a stream over all of them, from a serial number on.

use hyper::Response;

use super::error::ApiError;
use super::flow::Flow;
use super::jobs;
use super::query::Values;
use super::server::{Body, Context, stream};
use super::sight;
use super::wire::HappeningView;
use crate::ids::Timestamp;
use crate::reconcile::{Caller, Happened, Refusal};

/// Events that are asked for at once.
const BATCH: usize = 500;

/// Whose events are wanted.
struct Wanted {
    workspace: Option<String>,
    job: Option<String>,
    since: Timestamp,
    until: Timestamp,
    after: u64,
    follow: bool,
    /// The caller could enter that workspace when it was looked at last.
    is_entered: bool,
    /// So many at most.
    left: u64,
}

pub(super) fn send(context: &Context, caller: Caller, values: &Values) -> Result<Response<Body>, ApiError> {
    let wanted = Wanted {
        workspace: values.owned("workspace"),
        job: values.owned("job"),
        since: values.time("since").unwrap_or(Timestamp(0)),
        until: values.time("until").unwrap_or(Timestamp(u64::MAX)),
        after: values.number("after").unwrap_or(0),
        follow: values.flag("follow"),
        is_entered: false,
        left: values.number("limit").unwrap_or(u64::MAX),
    };
    let (flow, body) = Flow::new(2);
    tokio::spawn(follow(context.clone(), caller, wanted, flow));
    stream(body, "application/x-ndjson")
}

async fn follow(context: Context, caller: Caller, mut wanted: Wanted, mut flow: Flow) {
    let mut rounds = context.rounds.clone();
    loop {
        rounds.mark_unchanged();
        // As it is now: a right that is taken away is gone at once.
        let seen_by = match sight::everywhere(&context, caller.clone()).await {
            Ok(caller) => caller,
            Err(error) => return flow.cut(error.to_string()),
        };
        if wanted.is_lost(&context, &caller, &seen_by).await {
            return flow.end_by(&wanted.revoked()).await;
        }
        let happened = match context.past.happened(&seen_by, wanted.after, BATCH).await {
            Some(Ok(happened)) => happened,
            Some(Err(refusal)) => return break_off(flow, wanted.after, &refusal),
            None => return flow.cut(ApiError::Ending.to_string()),
        };
        // Fails when nobody listens any more, also when there is nothing to tell.
        let is_more = happened.is_more;
        if flow.send(wanted.lines(happened)).await.is_err() {
            return;
        }
        if wanted.left == 0 {
            return flow.end();
        }
        if is_more {
            continue;
        }
        if !wanted.follow {
            return flow.end();
        }
        if rounds.changed().await.is_err() {
            return flow.cut(ApiError::Ending.to_string());
        }
    }
}

/// What cannot be read must not look like the end of what there is.
fn break_off(flow: Flow, after: u64, refusal: &Refusal) {
    tracing::error!(after, error = %refusal, "a stream of events breaks off behind this serial number");
    flow.cut(refusal.to_string());
}

impl Wanted {
    /// Whether what is asked for by name was the caller's to see and is not any more: no event would ever say so. A job of
    /// their own that they have named they go on to see.
    async fn is_lost(&mut self, context: &Context, caller: &Caller, seen_by: &Caller) -> bool {
        let Some((workspace, beside)) = self.workspace.as_ref().zip(seen_by.beside.as_ref()) else { return false };
        let is_entered = beside.enters.iter().any(|name| name.as_str() == workspace);
        if !std::mem::replace(&mut self.is_entered, is_entered) || is_entered {
            return false;
        }
        match self.job.as_ref().map(|job| jobs::key(workspace, job)) {
            Some(Ok(key)) => jobs::show(context, caller.clone(), key, None).await.is_err(),
            _ => true,
        }
    }

    fn revoked(&self) -> ApiError {
        let workspace = self.workspace.as_deref().unwrap_or_default();
        ApiError::Revoked(match &self.job {
            Some(job) => format!("job {workspace}/{job}"),
            None => format!("workspace {workspace}"),
        })
    }

    fn lines(&mut self, happened: Happened) -> Vec<u8> {
        let mut out = Vec::new();
        self.after = happened.upto;
        for (key, event) in happened.events {
            let of_workspace = self.workspace.as_ref().is_none_or(|name| name == key.workspace.as_str());
            let of_job = self.job.as_ref().is_none_or(|name| name == key.job.as_str());
            let of_time = (self.since..=self.until).contains(&event.at);
            if of_workspace && of_job && of_time && self.left > 0 {
                self.left -= 1;
                let view = HappeningView::of(&key, event);
                out.extend(serde_json::to_vec(&view).expect("an event is text and numbers"));
                out.push(b'\n');
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::tests::told;
    use super::*;

    #[tokio::test]
    async fn a_stream_of_events_that_cannot_be_read_on_does_not_look_like_a_whole_one() {
        let gone = Refusal::Store("the disk is gone".to_owned());
        assert!(!told(|flow| break_off(flow, 7, &gone)).await.1);
    }
}
