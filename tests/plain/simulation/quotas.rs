//! What jobs hold and how many wait, against what their workspace may: by what is recorded, in all histories.

use std::sync::LazyLock;

use super::*;
use trainyard::spec::{GpuPart, Role};
use trainyard::store::record::AttemptRecord;

/// Absent is as much as there is. What a job can never have by it is refused, and the others go on.
pub(super) fn any() -> impl Strategy<Value = Quota> {
    let some = |range| prop::option::weighted(0.4, range);
    let (cores, gib) = (some(1u64..5), some(1u64..5));
    (some(1u64..4), cores, gib, some(1u64..3), some(1u64..3)).prop_map(|(gpu, cores, gib, running, waiting)| Quota {
        gpu,
        cpu: cores.map(|cores| cores * 1000),
        memory: gib.map(|gib| gib << 30),
        running,
        waiting,
    })
}

/// Cards in thousandths, cores and memory.
type Asked = [u64; 3];

/// What the jobs of [`SPECS`] ask for, by their texts.
static ASKED: LazyLock<BTreeMap<&str, Asked>> =
    LazyLock::new(|| SPECS.iter().map(|text| (*text, asked(text))).collect());

fn asked(text: &str) -> Asked {
    let (_, spec) = source(text.to_owned(), 0);
    let of_role = |role: &Role| {
        let each = &role.resources;
        let card = match &each.gpu_part {
            GpuPart::Whole => 1000,
            GpuPart::Share { memory, .. } => memory.0 * 1000 / MEMORY,
            GpuPart::Slice(_) => 142,
        };
        [u64::from(each.gpu) * card, each.cpu.0, each.memory.0].map(|one| one * u64::from(role.count))
    };
    let sum = |a: Asked, b: Asked| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
    spec.roles.iter().map(of_role).fold([0; 3], sum)
}

/// In thousandths of a card, as docs/JOBS.md says: a share is the part of the memory that it is, a slice its sevenths.
fn weight(lease: &GpuLease) -> u64 {
    match &lease.part {
        None => 1000,
        Some(GpuPartLease::Share { bytes, .. }) => bytes * 1000 / MEMORY,
        Some(GpuPartLease::Slice { .. }) => 142,
    }
}

fn held(run: &RunRecord) -> Option<&AttemptRecord> {
    run.attempts.last().filter(|attempt| attempt.ended.is_none())
}

impl World {
    pub(super) fn check_quota(&self) {
        let Some(quota) = self.quotas.values().next() else { return };
        let contents = self.store.load().unwrap();
        let open: Vec<_> = contents.runs.values().filter(|run| run.ended.is_none()).collect();
        let running: Vec<_> = open.iter().filter_map(|run| Some((held(run)?, run.source.text.as_str()))).collect();
        let within = |most: Option<u64>, has: u64| most.is_none_or(|most| has <= most);
        assert!(within(quota.running, running.len() as u64), "{} run of {quota:?}", running.len());
        // What is given back is free, though its run is not over.
        let holding: Vec<_> = running.iter().filter(|(attempt, _)| !attempt.released).collect();
        let leases = holding.iter().flat_map(|(attempt, _)| attempt.tasks.iter().flat_map(|task| &task.gpus));
        let cards: u64 = leases.map(weight).sum();
        assert!(within(quota.gpu.map(|cards| cards * 1000), cards), "{cards} thousandths of {quota:?}");
        let asked = || holding.iter().map(|(_, text)| ASKED[text]);
        assert!(within(quota.cpu, asked().map(|[_, cpu, _]| cpu).sum()), "cores of {quota:?}");
        assert!(within(quota.memory, asked().map(|[.., memory]| memory).sum()), "memory of {quota:?}");
        // A run that tries again waits as well, without being a new one: after a failure, or since a stranger was in its way.
        let waiting = open.iter().filter(|run| run.attempts.is_empty()).count() as u64;
        assert!(self.stranger_came || within(quota.waiting, waiting), "{waiting} wait of {quota:?}");
    }

    /// The run is over, or asks for more than its workspace may ever have.
    pub(super) fn is_over_or_beyond_quota(&self, run: &RunRecord) -> bool {
        let quota = self.quotas.values().next().copied().unwrap_or_default();
        let may = [quota.gpu.map(|cards| cards * 1000), quota.cpu, quota.memory];
        let asked = ASKED[run.source.text.as_str()];
        let is_beyond = may.iter().zip(asked).any(|(most, asked)| most.is_some_and(|most| asked > most));
        run.ended.is_some() || (is_beyond && held(run).is_none())
    }
}
