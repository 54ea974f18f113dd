//! What leased cards do, and what tasks do that have a part of one. It is asked every 5 s, so each card is asked as little as will do.
//!
//! Of a card that several share NVML tells by processes: which task each is of says its control group. What it does not tell of a
//! task is absent, and never what the whole card does.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::nvml::{self, Placed};
use super::{Held, Measured, Process, Sample};
use crate::ids::{GpuUuid, TaskId, Timestamp};

/// What processes did so long ago, µs, is asked for: as long as it is between two samples.
const WINDOW_USEC: u64 = 5_000_000;

/// Tasks have their control groups below `tasks`.
pub(super) fn measure(
    nvml: &Nvml,
    cards: &[Placed],
    wanted: &[(TaskId, Held)],
    tasks: Option<&str>,
    at: Timestamp,
) -> Measured {
    let mut measured = Measured::nothing(at);
    let by_uuid: BTreeMap<&GpuUuid, u32> = cards.iter().map(|(index, facts)| (&facts.uuid, *index)).collect();
    for uuid in wanted.iter().map(|(_, held)| held.card()).collect::<BTreeSet<_>>() {
        let device = by_uuid.get(uuid).and_then(|index| nvml.device_by_index(*index).ok());
        let Some(device) = device else { continue };
        let of_card: Vec<_> = wanted.iter().filter(|(_, held)| held.card() == uuid).collect();
        if of_card.iter().any(|(_, held)| matches!(held, Held::Whole(_))) {
            measured.cards.insert(uuid.clone(), self::of_card(&device));
        }
        if of_card.iter().any(|(_, held)| matches!(held, Held::Share(_))) {
            let shared = Shared::of(&device, tasks, at);
            let shares = of_card.iter().filter(|(_, held)| matches!(held, Held::Share(_)));
            measured.parts.extend(shares.map(|(task, held)| ((*task, held.clone()), shared.sample(*task))));
        }
        if of_card.iter().any(|(_, held)| matches!(held, Held::Slice { .. })) {
            let slices = of_slices(&device);
            let own = of_card.into_iter().filter_map(|(task, held)| match held {
                Held::Slice { slice, .. } => Some(((*task, held.clone()), *slices.get(slice)?)),
                Held::Whole(_) | Held::Share(_) => None,
            });
            measured.parts.extend(own);
        }
    }
    measured
}

pub(super) fn of_card(device: &Device<'_>) -> Sample {
    Sample {
        memory: device.memory_info().ok().map(|memory| memory.used),
        utilisation: device.utilization_rates().ok().map(|rates| rates.gpu),
        power: device.power_usage().ok(),
    }
}

/// Slices tell their memory, and neither how busy they are nor what power they take.
fn of_slices(device: &Device<'_>) -> BTreeMap<GpuUuid, Sample> {
    let of_slice = |(slice, device): (super::Slice, Device<'_>)| {
        let memory = device.memory_info().ok().map(|memory| memory.used);
        (slice.uuid, Sample { memory, ..Sample::default() })
    };
    nvml::slices(device).into_iter().map(of_slice).collect()
}

/// What runs on a card that several tasks have.
struct Shared {
    /// With their tasks; absent if the driver does not say all of them.
    processes: Option<Vec<Process>>,
    /// Percent by process; those that did nothing are left out. Absent if the driver does not say.
    busy: Option<BTreeMap<u32, u32>>,
    /// Nothing ran on the card at all, whoever is asked.
    is_still: bool,
}

impl Shared {
    fn of(device: &Device<'_>, tasks: Option<&str>, at: Timestamp) -> Self {
        Self {
            processes: nvml::processes(device, None).map(|found| nvml::with_tasks(found, tasks)),
            busy: busy(device, at),
            is_still: device.utilization_rates().is_ok_and(|rates| rates.gpu == 0),
        }
    }

    fn sample(&self, task: TaskId) -> Sample {
        let own = |process: &&Process| process.task == Some(task);
        let processes = self.processes.as_ref();
        // One that does not tell may have any amount.
        let memory = processes.and_then(|all| all.iter().filter(own).map(|process| process.memory).sum());
        let busy = processes.zip(self.busy.as_ref()).map(|(all, busy)| {
            let all = all.iter().filter(own).filter_map(|process| busy.get(&process.pid));
            all.sum::<u32>().min(100)
        });
        Sample { memory, utilisation: busy.or(self.is_still.then_some(0)), power: None }
    }
}

/// What each process did last, in percent of the card.
fn busy(device: &Device<'_>, at: Timestamp) -> Option<BTreeMap<u32, u32>> {
    let since = at.0.saturating_mul(1000).saturating_sub(WINDOW_USEC);
    let samples = match device.process_utilization_stats(since) {
        Ok(samples) => samples,
        // None of them has done anything since.
        Err(NvmlError::NotFound) => Vec::new(),
        Err(_) => return None,
    };
    let mut newest: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    // Drivers fill up their lists with entries of no process, of before, and of more than all.
    for sample in samples.iter().filter(|sample| sample.pid > 0 && sample.timestamp > since && sample.sm_util <= 100) {
        let known = newest.entry(sample.pid).or_default();
        *known = (*known).max((sample.timestamp, sample.sm_util));
    }
    Some(newest.into_iter().map(|(pid, (_, percent))| (pid, percent)).collect())
}
