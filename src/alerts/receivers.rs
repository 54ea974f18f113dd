//! Who is told, as `trainyard.toml` has it now: those that are new begin with what happens from then on, those that have changed go on
//! with what waits for them, and what waits for those that are gone stays, for when they are back.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::deliver::Delivery;
use super::queue::Queue;
use super::{Courier, PACE, Sink, take_in, tell_what_is_missing};
use crate::config::{AlertConfig, Paths};
use crate::ids::AssetName;
use crate::reconcile::Past;

type Wanted = BTreeMap<AssetName, AlertConfig>;

/// Starts what the configuration names, and follows it until the daemon ends.
pub async fn start(
    mut wanted: watch::Receiver<Wanted>,
    paths: &Paths,
    past: Past,
    rounds: watch::Receiver<u64>,
) -> io::Result<()> {
    let mut receivers = Receivers::new(paths.clone(), past, rounds);
    let first = wanted.borrow_and_update().clone();
    receivers.become_those(&first).await?;
    tokio::spawn(async move {
        while wanted.changed().await.is_ok() {
            let now = wanted.borrow_and_update().clone();
            match receivers.become_those(&now).await {
                Ok(()) => tracing::info!(count = now.len(), "the alerts of trainyard.toml act as they are now"),
                Err(error) => {
                    tracing::error!(%error, "the alerts of trainyard.toml cannot be used; those that were in force stay");
                }
            }
        }
    });
    Ok(())
}

pub(super) struct Receivers {
    paths: Paths,
    past: Past,
    rounds: watch::Receiver<u64>,
    /// Of all that there ever were: a file has one queue.
    pub(super) queues: BTreeMap<AssetName, Queue>,
    told: BTreeMap<AssetName, Told>,
    /// Those that end when what they are delivering has arrived, or not.
    leaving: BTreeMap<AssetName, JoinHandle<()>>,
    /// Sorts events into the queues.
    sorting: Option<JoinHandle<()>>,
}

struct Told {
    config: AlertConfig,
    grown: Arc<Notify>,
    /// As long as it is there, its courier goes on.
    goes_on: watch::Sender<()>,
    courier: JoinHandle<()>,
}

impl Receivers {
    pub(super) fn new(paths: Paths, past: Past, rounds: watch::Receiver<u64>) -> Self {
        let (queues, told, leaving) = Default::default();
        Self { paths, past, rounds, queues, told, leaving, sorting: None }
    }

    /// On an error nothing has changed.
    pub(super) async fn become_those(&mut self, wanted: &Wanted) -> io::Result<()> {
        let is_same =
            |name: &AssetName, config: &AlertConfig| self.told.get(name).is_some_and(|told| told.config == *config);
        let mut new = Vec::new();
        for (name, config) in wanted.iter().filter(|(name, config)| !is_same(name, config)) {
            let queue = match self.queues.get(name) {
                Some(queue) => queue.clone(),
                None => Queue::open(&self.paths.alerts(), name)?,
            };
            let delivery = Delivery::new(name, config, &self.paths)?;
            new.push((config.clone(), Courier { name: name.clone(), queue, delivery, pace: PACE }));
        }
        self.stop_sorting().await;
        self.leave(|name, config| wanted.get(name) == Some(config));
        new.into_iter().for_each(|(config, courier)| self.begin(config, courier));
        self.sort();
        Ok(())
    }

    async fn stop_sorting(&mut self) {
        if let Some(sorting) = self.sorting.take() {
            sorting.abort();
            // It fails with that it was aborted. What it had not come to, the next one begins with.
            let _ = sorting.await;
        }
    }

    fn leave(&mut self, stays: impl Fn(&AssetName, &AlertConfig) -> bool) {
        let (stay, leave) =
            std::mem::take(&mut self.told).into_iter().partition(|(name, told)| stays(name, &told.config));
        self.told = stay;
        let leave: BTreeMap<AssetName, Told> = leave;
        self.leaving.retain(|_, courier| !courier.is_finished());
        let end = |(name, Told { goes_on, courier, .. })| {
            drop(goes_on);
            (name, courier)
        };
        self.leaving.extend(leave.into_iter().map(end));
    }

    fn begin(&mut self, config: AlertConfig, courier: Courier) {
        tell_what_is_missing(&courier.name, &config, &self.paths);
        let (name, grown) = (courier.name.clone(), Arc::new(Notify::new()));
        self.queues.insert(name.clone(), courier.queue.clone());
        let ((goes_on, end), before) = (watch::channel(()), self.leaving.remove(&name));
        let delivering = courier.deliver(grown.clone(), end);
        let courier = tokio::spawn(async move {
            // Nothing is delivered by two.
            if let Some(before) = before {
                let _ = before.await;
            }
            delivering.await;
        });
        self.told.insert(name, Told { config, grown, goes_on, courier });
    }

    fn sort(&mut self) {
        let sink = |(name, told): (&AssetName, &Told)| {
            let (name, config, grown) = (name.clone(), told.config.clone(), told.grown.clone());
            Some(Sink { queue: self.queues.get(&name)?.clone(), name, config, grown })
        };
        let sinks: Vec<Sink> = self.told.iter().filter_map(sink).collect();
        // What came into a queue just before the sorting was stopped may not have been told to its courier.
        sinks.iter().for_each(|sink| sink.grown.notify_one());
        if !sinks.is_empty() {
            self.sorting = Some(tokio::spawn(take_in(sinks, self.past.clone(), self.rounds.clone())));
        }
    }
}
