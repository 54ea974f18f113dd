//! Which processor cores a task is kept to. A task that asks for whole cores gets some for itself, as long as there are
//! any: its caches stay warm, and a gang does not chase itself over the machine. Others run anywhere.

use std::collections::BTreeSet;

use crate::ids::Cpu;
use crate::spec::JobSpec;

const MILLIS: u64 = 1000;

/// Cores for each task, in order, out of `free`; none for a task that asks for parts of a core, or for more than are left.
pub(super) fn assign(spec: &JobSpec, mut free: BTreeSet<u32>) -> Vec<Vec<u32>> {
    let of_task = |cpu: Cpu| {
        let wanted = usize::try_from(cpu.0 / MILLIS).unwrap_or(usize::MAX);
        if !cpu.0.is_multiple_of(MILLIS) || wanted > free.len() {
            return Vec::new();
        }
        let cores = neighbours(&free, wanted);
        free.retain(|core| !cores.contains(core));
        cores
    };
    spec.tasks().map(|(role, _)| role.resources.cpu).map(of_task).collect()
}

/// The first run of `wanted` consecutive cores or, where there is none, the first ones: neighbours share caches.
fn neighbours(free: &BTreeSet<u32>, wanted: usize) -> Vec<u32> {
    let all: Vec<u32> = free.iter().copied().collect();
    let is_run = |run: &&[u32]| run.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let run = all.windows(wanted.max(1)).find(is_run);
    run.unwrap_or(all.get(..wanted).unwrap_or_default()).to_vec()
}

/// Cores as the kernel writes them in lists.
pub(super) fn list(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(text: &str, free: impl IntoIterator<Item = u32>) -> Vec<Vec<u32>> {
        let spec = crate::spec::parse("x.toml", text).0.unwrap();
        assign(&spec, free.into_iter().collect())
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
}
