//! What of the machine is handed out, and how long things take: `[limits]`.

use std::time::Duration;

use serde::Deserialize;

use super::BadValue;
use crate::ids::{Bytes, parse_duration};
use crate::spec::keys::STOP_GRACE_MAX_MS;

#[derive(Debug, Clone)]
pub struct Limits {
    /// Cores to hand out; those of the machine when absent.
    pub cpu: Option<f64>,
    /// Bytes of memory to hand out; the machine's when absent.
    pub memory: Option<u64>,
    /// From SIGTERM to SIGKILL.
    pub stop_grace: Duration,
    /// How long the container of a failed task is kept with `debug`.
    pub debug_keep: Duration,
    /// With less, bytes, free on the disk new runs wait.
    pub min_free: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[limits]` begins one")]
pub(super) struct WireLimits {
    cpu: Option<f64>,
    memory: Option<String>,
    stop_grace: Option<String>,
    debug_keep: Option<String>,
    min_free: Option<String>,
    /// For [`super::storage`].
    pub(super) workspace_storage: Option<String>,
    pub(super) public_storage: Option<String>,
    pub(super) preset_storage: Option<String>,
}

const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(30);
const STOP_GRACE_MAX: Duration = Duration::from_millis(STOP_GRACE_MAX_MS);
const DEFAULT_MIN_FREE: u64 = 512 << 20;
/// With less, bytes, the next commit of the state may fail, whatever `min_free` says.
pub const ROOM_MIN: u64 = 64 << 20;
const DEBUG_KEEP_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Earlier versions knew no bound of it, and a daemon is to start after an upgrade.
pub(super) fn warnings(wire: &WireLimits) -> Vec<String> {
    let is_too_long = |text: &&String| parse_duration(text).is_ok_and(|grace| grace > STOP_GRACE_MAX);
    let grace = wire.stop_grace.as_ref().filter(is_too_long);
    grace.map(|text| format!("limits.stop_grace is {text:?} and is taken as 1h, the most")).into_iter().collect()
}

pub(super) fn read(wire: &WireLimits) -> Result<Limits, BadValue> {
    if wire.cpu.is_some_and(|cpu| !(0.1..=100_000.0).contains(&cpu)) {
        return Err(("limits.cpu", "must be at least 0.1".to_owned()));
    }
    let memory = wire.memory.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let free = wire.min_free.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let grace = wire.stop_grace.as_ref().map(|text| parse_duration(text)).transpose();
    let keep = wire.debug_keep.as_ref().map(|text| parse_duration(text)).transpose();
    let debug_keep = keep.map_err(|error| ("limits.debug_keep", error.to_string()))?.unwrap_or(DEBUG_KEEP_MAX);
    if debug_keep.is_zero() || debug_keep > DEBUG_KEEP_MAX {
        return Err(("limits.debug_keep", "must be more than nothing and at most 7d".to_owned()));
    }
    Ok(Limits {
        cpu: wire.cpu,
        memory: memory.map_err(|error| ("limits.memory", error.to_string()))?.map(|bytes| bytes.0),
        stop_grace: grace
            .map_err(|error| ("limits.stop_grace", error.to_string()))?
            .map_or(DEFAULT_STOP_GRACE, |grace| grace.min(STOP_GRACE_MAX)),
        debug_keep,
        min_free: free
            .map_err(|error| ("limits.min_free", error.to_string()))?
            .map_or(DEFAULT_MIN_FREE, |bytes| bytes.0),
    })
}
