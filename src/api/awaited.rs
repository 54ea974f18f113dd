//! Data that jobs will have which have not chosen theirs yet.

use std::io;

use tokio::sync::{mpsc, oneshot};

use crate::ids::JobKey;
use crate::reconcile::{Event, Request};
use crate::spec::Dataset;

/// Asks the reconciler, on a thread that may wait.
pub(super) struct Awaited(mpsc::UnboundedSender<Event>);

impl Awaited {
    pub(super) fn new(events: &mpsc::UnboundedSender<Event>) -> Self {
        Self(events.clone())
    }

    /// The first job that will have what `is_it` says.
    pub(super) fn by(&self, is_it: impl Fn(&JobKey, &Dataset) -> bool) -> io::Result<Option<JobKey>> {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move |result| drop(sender.send(result)));
        let ending = || io::Error::other("the daemon is ending");
        self.0.send(Event::Request(Request::AwaitedData { answer })).map_err(|_| ending())?;
        let awaited = receiver.blocking_recv().map_err(|_| ending())?.map_err(io::Error::other)?;
        Ok(awaited.into_iter().find(|(key, dataset)| is_it(key, dataset)).map(|(key, _)| key))
    }
}
