//! What a task is told of its cards, by the variables that NVIDIA's programs read.

use crate::ids::GpuUuid;

/// The cards of a task among those of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told<'a> {
    pub own: Vec<&'a GpuUuid>,
    /// It can open those of other tasks as well, by which NCCL reaches their memory; the name that all of these tasks have in common.
    pub shared: Option<String>,
}

/// A task without cards is told nothing: it can open none.
pub fn tell(env: &mut Vec<(String, String)>, told: &Told<'_>) {
    if told.own.is_empty() {
        return;
    }
    let own = told.own.iter().map(|uuid| uuid.as_str()).collect::<Vec<_>>().join(",");
    // What an image says of cards is meant for others.
    env.retain(|(name, _)| name != "NVIDIA_VISIBLE_DEVICES");
    env.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), own.clone()));
    let mut unless_said = |name: &str, value: String| {
        if env.iter().all(|(known, _)| known != name) {
            env.push((name.to_owned(), value));
        }
    };
    // So that CUDA counts them as `nvidia-smi` does.
    unless_said("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    if let Some(name) = &told.shared {
        unless_said("CUDA_VISIBLE_DEVICES", own);
        // Tasks have host names of their own, by which NCCL would take them for different machines.
        unless_said("NCCL_HOSTID", name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(own: &[&GpuUuid], shared: Option<&str>, before: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut env: Vec<_> = before.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        tell(&mut env, &Told { own: own.to_vec(), shared: shared.map(str::to_owned) });
        env
    }

    #[test]
    fn a_task_is_told_of_its_own_cards_alone() {
        let (a, b): (GpuUuid, GpuUuid) = ("GPU-a".parse().unwrap(), "GPU-b".parse().unwrap());
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(told(&[], Some("a7"), &[("X", "1")]), pairs(&[("X", "1")]));
        let alone = [("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
        assert_eq!(told(&[&a, &b], None, &[("NVIDIA_VISIBLE_DEVICES", "all")]), pairs(&alone));
        let order = ("CUDA_DEVICE_ORDER", "FASTEST_FIRST");
        let shared = [
            order,
            ("NVIDIA_VISIBLE_DEVICES", "GPU-b"),
            ("CUDA_VISIBLE_DEVICES", "GPU-b"),
            ("NCCL_HOSTID", "trainyard-a7"),
        ];
        assert_eq!(told(&[&b], Some("trainyard-a7"), &[order]), pairs(&shared));
    }
}
