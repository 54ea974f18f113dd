//! Which processor cores a task is kept to. A task that asks for whole cores gets some for itself, as long as there are
//! any: its caches stay warm, and a gang does not chase itself over the machine. A task with graphics cards is kept to cores that
//! are near to them, which reach them without a way through another socket; but never to fewer than it asks for. Others run
//! anywhere.
//!
//! Memory is left to the kernel, which takes it from the node of the core that asks first. Kept to a node by `cpuset.mems`, a task
//! would be killed, or swap, when that node is full while the machine has memory left, and its limit is the machine's, not a node's.

use std::collections::BTreeSet;

use crate::ids::Cpu;
use crate::spec::JobSpec;

const MILLIS: u64 = 1000;

/// Cores of this machine that are ours to give.
#[derive(Debug, Clone, Default)]
pub(super) struct Cores {
    /// None where tasks cannot be kept to cores.
    pub(super) all: BTreeSet<u32>,
    /// No task has them for itself.
    pub(super) free: BTreeSet<u32>,
}

/// What one task is kept to; anything when both are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Nobody else's.
    pub(super) own: Vec<u32>,
    /// Near to its cards, for others as well.
    pub(super) near: Vec<u32>,
    /// What its owner should know: it has cards, and cores that are not near to them.
    pub(super) remark: Option<String>,
}

/// For each task, in order. `near` are, by the task, the cores near to its cards; empty, or absent, where that is not known, or it
/// has none. A task that asks for parts of a core, or for more than are left, has none for itself.
pub(super) fn assign(spec: &JobSpec, near: &[BTreeSet<u32>], mut cores: Cores) -> Vec<Kept> {
    let nowhere = BTreeSet::new();
    let of_task = |(ordinal, cpu): (usize, Cpu)| {
        let near: BTreeSet<u32> = near.get(ordinal).unwrap_or(&nowhere).intersection(&cores.all).copied().collect();
        let own = own(cpu, &near, &cores.free);
        cores.free.retain(|core| !own.contains(core));
        let wanted = usize::try_from(cpu.0.div_ceil(MILLIS)).unwrap_or(usize::MAX);
        // Beside those who have cores for themselves it would wait for them, while others are free farther away.
        let open: Vec<u32> = near.intersection(&cores.free).copied().collect();
        let suffices = open.len() >= wanted;
        let had = if own.is_empty() { open.len() } else { own.iter().filter(|core| near.contains(core)).count() };
        let shared = if own.is_empty() && suffices { open } else { Vec::new() };
        let is_near = if own.is_empty() { suffices } else { own.iter().all(|core| near.contains(core)) };
        let remark = (!near.is_empty() && !is_near).then(|| remark(wanted, had, &own));
        Kept { own, near: shared, remark }
    };
    spec.tasks().map(|(role, _)| role.resources.cpu).enumerate().map(of_task).collect()
}

/// Whole cores for itself, those near to its cards first; none where it asks for parts of one, or where there are too few.
fn own(cpu: Cpu, near: &BTreeSet<u32>, free: &BTreeSet<u32>) -> Vec<u32> {
    let wanted = usize::try_from(cpu.0 / MILLIS).unwrap_or(usize::MAX);
    if !cpu.0.is_multiple_of(MILLIS) || wanted > free.len() {
        return Vec::new();
    }
    let (close, far): (BTreeSet<u32>, BTreeSet<u32>) = free.iter().partition(|core| near.contains(core));
    let mut cores = neighbours(&close, wanted.min(close.len()));
    cores.extend(neighbours(&far, wanted - cores.len()));
    cores.sort_unstable();
    cores
}

fn remark(wanted: usize, had: usize, own: &[u32]) -> String {
    let has = if own.is_empty() { "it may run on any" } else { "the others are farther away" };
    format!(
        "asks for {wanted} core(s), and {had} near to its GPUs can be had: {has}, by which data takes longer to a card"
    )
}

/// The first run of `wanted` consecutive cores or, where there is none, the first ones: neighbours share caches.
fn neighbours(free: &BTreeSet<u32>, wanted: usize) -> Vec<u32> {
    let all: Vec<u32> = free.iter().copied().collect();
    let is_run = |run: &&[u32]| run.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let run = all.windows(wanted.max(1)).find(is_run);
    run.and_then(|run| run.get(..wanted)).unwrap_or(all.get(..wanted).unwrap_or_default()).to_vec()
}

/// Cores as the kernel writes them in lists.
pub(super) fn list(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(text: &str) -> JobSpec {
        crate::spec::parse("x.toml", text).0.unwrap()
    }

    fn assigned(text: &str, free: impl IntoIterator<Item = u32>) -> Vec<Vec<u32>> {
        let free: BTreeSet<u32> = free.into_iter().collect();
        let assigned = assign(&spec(text), &[], Cores { all: free.clone(), free });
        assert!(assigned.iter().all(|kept| kept.near.is_empty() && kept.remark.is_none()));
        assigned.into_iter().map(|kept| kept.own).collect()
    }

    #[test]
    fn whole_cores_are_neighbours_and_nobody_else_s() {
        assert_eq!(assigned("resources.cpu = 2", [0, 2, 3, 5]), [[2, 3]]);
        assert_eq!(assigned("resources.cpu = 2", [0, 2, 5]), [[0, 2]], "no neighbours left");
        let gang = "[roles.w]\ncount = 3\nresources.cpu = 2";
        assert_eq!(assigned(gang, 0..5), [vec![0, 1], vec![2, 3], vec![]], "the last one runs anywhere");
    }

    #[test]
    fn parts_of_a_core_and_too_many_run_anywhere() {
        let nowhere: Vec<Vec<u32>> = vec![vec![]];
        assert_eq!(assigned("resources.cpu = 1.5", 0..8), nowhere);
        assert_eq!(assigned("resources.cpu = 9", 0..8), nowhere);
        assert_eq!(list(&[0, 1, 7]), "0,1,7");
    }

    /// Of a task, near to whose cards are these of 8 cores.
    fn near(text: &str, near: &[u32], free: impl IntoIterator<Item = u32>) -> Kept {
        let near = [near.iter().copied().collect()];
        let cores = Cores { all: (0..8).collect(), free: free.into_iter().collect() };
        assign(&spec(text), &near, cores).remove(0)
    }

    #[test]
    fn a_task_with_cards_is_kept_near_to_them_but_never_to_fewer_cores_than_it_asks_for() {
        let kept = near("resources.cpu = 2", &[4, 5, 6, 7], 0..8);
        assert_eq!((kept.own, kept.remark), (vec![4, 5], None));
        let parts = near("resources.cpu = 1.5", &[4, 5, 6, 7, 99], 0..8);
        assert_eq!((parts.own, parts.near, parts.remark), (vec![], vec![4, 5, 6, 7], None));
        let busy = near("resources.cpu = 4", &[4, 5, 6, 7], [1, 2, 3, 6, 7]);
        assert_eq!((busy.own.as_slice(), busy.near.as_slice()), (&[1, 2, 6, 7][..], &[][..]));
        assert!(
            busy.remark.unwrap().starts_with("asks for 4 core(s), and 2 near to its GPUs can be had: the others are")
        );
        // Others have some for themselves.
        let shared = near("resources.cpu = 1.5", &[4, 5, 6, 7], [1, 6, 7]);
        assert_eq!((shared.own, shared.near, shared.remark), (vec![], vec![6, 7], None));
        let taken = near("resources.cpu = 1.5", &[4, 5, 6, 7], [1, 7]);
        assert_eq!((taken.own.as_slice(), taken.near.as_slice(), taken.remark.is_some()), (&[][..], &[][..], true));
        let widened = near("resources.cpu = 4.5", &[4, 5], 0..8);
        assert_eq!((widened.own.as_slice(), widened.near.as_slice()), (&[][..], &[][..]));
        assert!(
            widened
                .remark
                .unwrap()
                .contains("asks for 5 core(s), and 2 near to its GPUs can be had: it may run on any")
        );
        // Those of a part of the machine that is not ours are as if they were not known.
        assert_eq!(near("resources.cpu = 1.5", &[64, 65], 0..8), Kept::default());
    }

    proptest! {
        #[test]
        fn nobody_is_kept_to_fewer_cores_than_asked_for_nor_to_those_of_others(
            cpu in prop::collection::vec(1..60u32, 1..5),
            near in prop::collection::vec(prop::collection::btree_set(0..20u32, 0..10), 0..5),
            free in prop::collection::btree_set(0..16u32, 0..16),
        ) {
            let roles = cpu.iter().enumerate().map(|(at, tenths)| {
                format!("[roles.r{at}]\nresources.cpu = {}\n", f64::from(*tenths) / 10.0)
            });
            let all: BTreeSet<u32> = (0..16).collect();
            let kept = assign(&spec(&roles.collect::<String>()), &near, Cores { all: all.clone(), free: free.clone() });
            let mut given = BTreeSet::new();
            for (at, (kept, tenths)) in kept.iter().zip(&cpu).enumerate() {
                let wanted = tenths.div_ceil(10) as usize;
                prop_assert!(kept.own.is_empty() || kept.near.is_empty());
                prop_assert!(kept.own.is_empty() || kept.own.len() == wanted);
                prop_assert!(kept.near.is_empty() || kept.near.len() >= wanted);
                prop_assert!(kept.own.iter().all(|core| free.contains(core) && given.insert(*core)));
                let known: BTreeSet<u32> =
                    near.get(at).map(|near| near.intersection(&all).copied().collect()).unwrap_or_default();
                prop_assert!(kept.near.iter().all(|core| known.contains(core) && free.contains(core) && !given.contains(core)));
                let strays = kept.own.iter().any(|core| !known.contains(core))
                    || (kept.own.is_empty() && kept.near.is_empty());
                prop_assert_eq!(kept.remark.is_some(), !known.is_empty() && strays);
                // Far ones are taken only when no near one is left.
                let is_far = kept.own.iter().any(|core| !known.contains(core));
                prop_assert!(!is_far || known.iter().all(|core| !free.contains(core) || given.contains(core)));
            }
        }
    }
}
