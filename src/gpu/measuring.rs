//! What leased cards do, and what tasks do that have a part of one. It is asked every 5 s, so each card is asked as little as will do.
//!
//! Of a card that several share NVML tells by processes: which task each is of says its control group. What it does not tell of a
//! task is absent, and never what the whole card does; the card's power, of which it tells no parts, is divided (`power`).

mod power;
mod slices;

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::nvml::{self, Placed};
use super::{Held, Measured, Process, Sample};
use crate::ids::{GpuUuid, TaskId, Timestamp};
use power::{Part, divided};
use slices::CutUp;

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
    let mut cut_up = Vec::new();
    for uuid in wanted.iter().map(|(_, held)| held.card()).collect::<BTreeSet<_>>() {
        let device = by_uuid.get(uuid).and_then(|index| nvml.device_by_index(*index).ok());
        let Some(device) = device else { continue };
        let has = |is_so: fn(&Held) -> bool| wanted.iter().any(|(_, held)| held.card() == uuid && is_so(held));
        if has(|held| matches!(held, Held::Whole(_))) {
            measured.cards.insert(uuid.clone(), of_card(&device));
        }
        if has(|held| matches!(held, Held::Share(_))) {
            let share = Held::Share(uuid.clone());
            let holders: BTreeSet<TaskId> = wanted.iter().filter(|(_, held)| *held == share).map(|one| one.0).collect();
            let samples = Shared::of(&device, tasks, at).samples(&holders, device.power_usage().ok());
            measured.parts.extend(samples.into_iter().map(|(task, sample)| ((task, share.clone()), sample)));
        }
        if has(|held| matches!(held, Held::Slice { .. })) {
            cut_up.push(CutUp::begin(device));
        }
    }
    slices::count(&cut_up);
    measured.parts.extend(of_slices(cut_up, wanted));
    measured
}

pub(super) fn of_card(device: &Device<'_>) -> Sample {
    Sample {
        memory: device.memory_info().ok().map(|memory| memory.used),
        utilisation: device.utilization_rates().ok().map(|rates| rates.gpu),
        power: device.power_usage().ok(),
    }
}

fn of_slices(cut_up: Vec<CutUp<'_>>, wanted: &[(TaskId, Held)]) -> BTreeMap<(TaskId, Held), Sample> {
    let slice = |held: &'_ Held| match held {
        Held::Slice { slice, .. } => Some(slice.clone()),
        Held::Whole(_) | Held::Share(_) => None,
    };
    let held: BTreeSet<GpuUuid> = wanted.iter().filter_map(|(_, held)| slice(held)).collect();
    let samples: BTreeMap<GpuUuid, Sample> = cut_up.into_iter().flat_map(|card| card.end(&held)).collect();
    let own = |(task, held): &(TaskId, Held)| Some(((*task, held.clone()), *samples.get(&slice(held)?)?));
    wanted.iter().filter_map(own).collect()
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

    /// Of all tasks that have a share of it.
    fn samples(&self, holders: &BTreeSet<TaskId>, power: Option<u32>) -> Vec<(TaskId, Sample)> {
        let mut samples: Vec<(TaskId, Sample)> = holders.iter().map(|task| (*task, self.sample(*task))).collect();
        let part = |busy| Part { size: 1, busy };
        let parts = samples.iter().map(|(_, sample)| sample.utilisation.map(part)).collect::<Option<Vec<_>>>();
        // Where of one nothing is told, it may be the one that works.
        let taken =
            power.zip(parts).map(|(power, parts)| divided(power, &parts, &[part(self.busy_of_others(holders))]));
        for ((_, sample), power) in samples.iter_mut().zip(taken.into_iter().flatten()) {
            sample.power = Some(power);
        }
        samples
    }

    /// Percent of the card that processes keep busy which are of none of these tasks.
    fn busy_of_others(&self, holders: &BTreeSet<TaskId>) -> u32 {
        let is_own = |process: &&Process| process.task.is_some_and(|task| holders.contains(&task));
        let own: BTreeSet<u32> = self.processes.iter().flatten().filter(is_own).map(|process| process.pid).collect();
        let others = self.busy.iter().flatten().filter(|(pid, _)| !own.contains(pid));
        others.map(|(_, percent)| *percent).sum()
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
