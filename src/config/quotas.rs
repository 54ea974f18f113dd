//! How much of the machine workspaces may have at a time, and how fast it is forgotten who has used it: `[workspaces.NAME]`,
//! `[queue]` and `[usage]`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::WireWorkspace;
use crate::ids::{Bytes, WorkspaceName, parse_duration};

/// What a workspace may have at a time; as much as there is of what is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Cards.
    pub gpu: Option<u64>,
    /// Thousandths of a core.
    pub cpu: Option<u64>,
    /// Bytes.
    pub memory: Option<u64>,
    /// Jobs that have something of the machine.
    pub running: Option<u64>,
    /// Jobs that wait; one at least.
    pub waiting: Option<u64>,
}

/// By workspace; one without a row has no limit but the machine.
pub type Quotas = BTreeMap<WorkspaceName, Quota>;

/// How waiting jobs are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// After this time what a workspace has used counts half.
    pub half_life: Duration,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { half_life: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// What becomes of records of what was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageConfig {
    /// For so long there is one of each attempt; then sums by day.
    pub keep: Duration,
}

impl Default for UsageConfig {
    fn default() -> Self {
        Self { keep: Duration::from_secs(400 * 24 * 3600) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[usage]` begins one")]
pub(super) struct WireUsage {
    keep: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[queue]` begins one")]
pub(super) struct WireQueue {
    half_life: Option<String>,
}

type BadValue = (String, String);

/// Less would forget a job while it runs, more would never forget.
const HALF_LIFE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) fn queue(wire: &WireQueue) -> Result<QueueConfig, BadValue> {
    let Some(text) = &wire.half_life else { return Ok(QueueConfig::default()) };
    let at = |message: String| ("queue.half_life".to_owned(), message);
    let half_life = parse_duration(text).map_err(|error| at(error.to_string()))?;
    match HALF_LIFE.contains(&half_life) {
        true => Ok(QueueConfig { half_life }),
        false => Err(at("must be from 1m to 3650d".to_owned())),
    }
}

const KEEP: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(24 * 3600)..=Duration::from_secs(100 * 365 * 24 * 3600);

pub(super) fn usage(wire: &WireUsage) -> Result<UsageConfig, BadValue> {
    let Some(text) = &wire.keep else { return Ok(UsageConfig::default()) };
    let at = |message: String| ("usage.keep".to_owned(), message);
    let keep = parse_duration(text).map_err(|error| at(error.to_string()))?;
    match KEEP.contains(&keep) {
        true => Ok(UsageConfig { keep }),
        false => Err(at("must be from 1d to 36500d".to_owned())),
    }
}

pub(super) fn quotas(workspaces: &BTreeMap<String, WireWorkspace>) -> Result<Quotas, BadValue> {
    let mut out = Quotas::new();
    for (name, keys) in workspaces {
        let at = |key: &str, message: String| (format!("workspaces.{name}.{key}"), message);
        let workspace: WorkspaceName =
            name.parse().map_err(|error: crate::ids::NameError| (format!("workspaces.{name}"), error.to_string()))?;
        let memory = keys.memory.as_ref().map(|text| text.parse::<Bytes>()).transpose();
        if keys.cpu.is_some_and(|cpu| !(0.0..=1e6).contains(&cpu)) {
            return Err(at("cpu", "must be a number of cores from 0 on".to_owned()));
        }
        if keys.waiting == Some(0) {
            let message = "must be 1 or more, since a job waits before it starts; running = 0 lets none start";
            return Err(at("waiting", message.to_owned()));
        }
        let quota = Quota {
            gpu: keys.gpu,
            cpu: keys.cpu.map(|cores| (cores * 1000.0).round() as u64),
            memory: memory.map_err(|error| at("memory", error.to_string()))?.map(|bytes| bytes.0),
            running: keys.running,
            waiting: keys.waiting,
        };
        if quota != Quota::default() {
            out.insert(workspace, quota);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use super::*;

    #[test]
    fn quotas_are_of_the_workspaces_that_have_one() {
        let config = load(
            "[workspaces.vision]\ngpu = 4\ncpu = 2.5\nmemory = \"64GiB\"\nrunning = 0\nwaiting = 100\n[workspaces.free]\n\
             [workspaces.disk]\nstorage = \"1GiB\"\n[queue]\nhalf_life = \"2d\"\n[usage]\nkeep = \"30d\"",
        )
        .unwrap();
        let vision =
            Quota { gpu: Some(4), cpu: Some(2500), memory: Some(64 << 30), running: Some(0), waiting: Some(100) };
        assert_eq!(config.quotas, Quotas::from([("vision".parse().unwrap(), vision)]));
        assert_eq!(config.queue.half_life, Duration::from_secs(2 * 24 * 3600));
        assert_eq!(config.usage.keep, Duration::from_secs(30 * 24 * 3600));
        assert_eq!(load("").unwrap().queue.half_life, Duration::from_secs(7 * 24 * 3600));
    }

    #[test]
    fn wrong_quotas_are_told_with_their_key() {
        for (text, word) in [
            ("[workspaces.v]\ngpu = -1", "gpu"),
            ("[workspaces.v]\ncpu = -1", "workspaces.v.cpu: must be"),
            ("[workspaces.v]\nmemory = \"much\"", "workspaces.v.memory: "),
            ("[workspaces.v]\nwaiting = 0", "workspaces.v.waiting: must be 1 or more"),
            ("[workspaces.\"a/b\"]\ngpu = 1", "workspaces.a/b: "),
            ("[queue]\nhalf_life = \"1s\"", "queue.half_life: must be from"),
            ("[usage]\nkeep = \"1h\"", "usage.keep: must be from"),
            ("[queue]\nhalf_life = \"soon\"", "queue.half_life: "),
            ("[queue]\nhalflife = \"1d\"", "halflife"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
