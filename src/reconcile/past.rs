//! What happened to all jobs, for those who ask: from the loop that owns the state what it has in memory, else from the store,
//! which is read on a thread of its own. Only who may see what is asked of the loop then.

use std::collections::BTreeSet;

use tokio::sync::{mpsc, oneshot};

use super::happenings::Recent;
use super::{Answer, Caller, Event, Happened, Refusal, Request, StatesAt};
use crate::store::redb::{Page, Reader};

/// Where it is asked for.
#[derive(Debug, Clone)]
pub struct Past {
    events: mpsc::UnboundedSender<Event>,
    store: Reader,
}

impl Past {
    pub fn new(events: mpsc::UnboundedSender<Event>, store: Reader) -> Self {
        Self { events, store }
    }

    /// Events behind a serial number that the caller may see, so many at most. None where the daemon ends.
    pub async fn happened(&self, caller: &Caller, after: u64, limit: usize) -> Option<Result<Happened, Refusal>> {
        let by = caller.clone();
        match self.ask(|answer| Request::Events { caller: by, after, limit, answer }).await? {
            Ok(Recent::Told(happened)) => Some(Ok(happened)),
            Ok(Recent::Stored { upto }) => match self.read(after, limit).await? {
                Ok(page) => self.seen_of(caller, page, upto.max(after)).await,
                Err(refusal) => Some(Err(refusal)),
            },
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// What all jobs had come to by a serial number. None where the daemon ends.
    pub async fn states_at(&self, serial: u64) -> Option<Result<StatesAt, Refusal>> {
        self.ask(|answer| Request::StatesAt { serial, answer }).await
    }

    async fn ask<T: Send + 'static>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<Result<T, Refusal>> {
        let (sender, receiver) = oneshot::channel();
        // Whoever asked may have gone away meanwhile.
        let answer = Box::new(move |result| drop(sender.send(result)));
        self.events.send(Event::Request(request(answer))).ok()?;
        receiver.await.ok()
    }

    async fn read(&self, after: u64, limit: usize) -> Option<Result<Page, Refusal>> {
        let store = self.store.clone();
        let read = tokio::task::spawn_blocking(move || store.events_behind(after, limit));
        Some(read.await.ok()?.map_err(|error| Refusal::Store(error.to_string())))
    }

    /// What of a page the caller may see. Where it is the last one, all is known up to that serial number.
    async fn seen_of(&self, caller: &Caller, page: Page, upto: u64) -> Option<Result<Happened, Refusal>> {
        let Page { mut events, next } = page;
        let jobs: BTreeSet<_> = events.iter().map(|(key, _)| key.clone()).collect();
        let by = caller.clone();
        let asked = self.ask(|answer| Request::FirstEvents { caller: by, jobs, answer }).await?;
        Some(asked.map(|first| {
            events.retain(|(key, event)| first.get(key).is_some_and(|first| event.number >= *first));
            let last = events.last().map_or(0, |(_, event)| event.serial);
            Happened { events, upto: next.unwrap_or(upto.max(last)), is_more: true }
        }))
    }
}
