//! What happens to jobs, as a stream over all of them, from a serial number on.

use std::convert::Infallible;

use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::Response;
use hyper::body::Bytes;

use super::error::ApiError;
use super::query::Values;
use super::server::{Body, Context, stream};
use super::wire::HappeningView;
use crate::reconcile::{Caller, Happened};

/// Events that are asked for at once.
const BATCH: usize = 500;

/// Whose events are wanted.
struct Wanted {
    workspace: Option<String>,
    job: Option<String>,
    after: u64,
    follow: bool,
    /// So many at most.
    left: u64,
}

pub(super) fn send(context: &Context, caller: Caller, values: &Values) -> Result<Response<Body>, ApiError> {
    let wanted = Wanted {
        workspace: values.owned("workspace"),
        job: values.owned("job"),
        after: values.number("after").unwrap_or(0),
        follow: values.flag("follow"),
        left: values.number("limit").unwrap_or(u64::MAX),
    };
    let (sender, channel) = Channel::<Bytes, Infallible>::new(2);
    tokio::spawn(follow(context.clone(), caller, wanted, sender));
    stream(channel.boxed(), "application/x-ndjson")
}

async fn follow(context: Context, caller: Caller, mut wanted: Wanted, mut sender: Sender<Bytes, Infallible>) {
    let mut rounds = context.rounds.clone();
    loop {
        rounds.mark_unchanged();
        let Some(Ok(happened)) = context.past.happened(&caller, wanted.after, BATCH).await else { return };
        // Fails when nobody listens any more, also when there is nothing to tell.
        let is_more = happened.is_more;
        if sender.send_data(wanted.lines(happened).into()).await.is_err() || wanted.left == 0 {
            return;
        }
        if is_more {
            continue;
        }
        if !wanted.follow || rounds.changed().await.is_err() {
            return;
        }
    }
}

impl Wanted {
    fn lines(&mut self, happened: Happened) -> Vec<u8> {
        let mut out = Vec::new();
        self.after = happened.upto;
        for (key, event) in happened.events {
            let of_workspace = self.workspace.as_ref().is_none_or(|name| name == key.workspace.as_str());
            let of_job = self.job.as_ref().is_none_or(|name| name == key.job.as_str());
            if of_workspace && of_job && self.left > 0 {
                self.left -= 1;
                let view = HappeningView::of(&key, event);
                out.extend(serde_json::to_vec(&view).expect("an event is text and numbers"));
                out.push(b'\n');
            }
        }
        out
    }
}
