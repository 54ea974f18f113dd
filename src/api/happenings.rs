//! What happens to jobs, as a stream over all of them, from a serial number on.

use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::Response;
use hyper::body::Bytes;

use super::error::ApiError;
use super::query::Values;
use super::server::{Body, Context, Cut, stream};
use super::wire::HappeningView;
use crate::reconcile::{Caller, Happened, Refusal};

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
    let (sender, channel) = Channel::<Bytes, Cut>::new(2);
    tokio::spawn(follow(context.clone(), caller, wanted, sender));
    stream(channel.boxed(), "application/x-ndjson")
}

async fn follow(context: Context, caller: Caller, mut wanted: Wanted, mut sender: Sender<Bytes, Cut>) {
    let mut rounds = context.rounds.clone();
    loop {
        rounds.mark_unchanged();
        let happened = match context.past.happened(&caller, wanted.after, BATCH).await {
            Some(Ok(happened)) => happened,
            Some(Err(refusal)) => return break_off(sender, wanted.after, &refusal),
            // The daemon ends.
            None => return,
        };
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

/// What cannot be read must not look like the end of what there is.
fn break_off(sender: Sender<Bytes, Cut>, after: u64, refusal: &Refusal) {
    tracing::error!(after, error = %refusal, "a stream of events breaks off behind this serial number");
    sender.abort(Cut(refusal.to_string()));
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_stream_of_events_that_cannot_be_read_on_does_not_look_like_a_whole_one() {
        for breaks_off in [false, true] {
            let (mut sender, channel) = Channel::<Bytes, Cut>::new(2);
            sender.send_data("{}\n".into()).await.unwrap();
            let answer = Mutex::new(Some(stream(channel.boxed(), "application/x-ndjson").unwrap()));
            let (mut client, server) = tokio::io::duplex(4096);
            let service = service_fn(|_| std::future::ready(answer.lock().unwrap().take().ok_or("asked twice")));
            let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut told = String::new();
            let reads = async {
                while !told.contains("{}\n") {
                    told.push(client.read_u8().await.unwrap().into());
                }
                match breaks_off {
                    true => break_off(sender, 7, &Refusal::Store("the disk is gone".to_owned())),
                    false => drop(sender),
                }
                client.read_to_string(&mut told).await.unwrap();
            };
            let (served, ()) = tokio::join!(served, reads);
            assert_eq!(told.ends_with("\r\n0\r\n\r\n"), !breaks_off, "{told}");
            assert_eq!(served.is_err(), breaks_off);
        }
    }
}
