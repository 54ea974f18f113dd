//! What tasks are called on each platform. Every name is in the hosts file of every task, so all of them resolve.

use std::net::Ipv4Addr;

use super::{Task, naming, topology};
use crate::spec::{Platform, Profile};

/// The name, or the address, by which a platform's variables speak of a task.
pub(super) fn primary(task: &Task<'_>) -> String {
    let contract = task.spec.contract;
    match (contract.platform, contract.profile) {
        (Platform::OpenPai | Platform::Paddle | Platform::AzureMl | Platform::Uai, _)
        | (Platform::Volcano, Profile::Octopus) => address(task).to_string(),
        _ => names(task).into_iter().next().unwrap_or_default(),
    }
}

/// All names of a task beside its own host name, the one that is used first.
pub(super) fn names(task: &Task<'_>) -> Vec<String> {
    let (job, role, index) = (job(task), dns(task.role.name.as_str()), task.index);
    let space = dns(task.identity.key.workspace.as_str());
    let plain = format!("{job}-{role}-{index}");
    let contract = task.spec.contract;
    match (contract.platform, contract.profile) {
        (
            Platform::Native
            | Platform::OpenPai
            | Platform::Paddle
            | Platform::AzureMl
            | Platform::Tione
            | Platform::Uai,
            _,
        ) => {
            vec![format!("{}-{index}", task.role.name)]
        }
        (Platform::SageMaker, _) => vec![algo(node_number(task))],
        (Platform::Volcano, Profile::Octopus) => {
            super::volcano::replica(task).into_iter().chain([format!("{plain}.{job}"), plain]).collect()
        }
        (Platform::Volcano, _) => vec![format!("{plain}.{job}"), plain],
        // Whatever its role is called: scripts build the address of a node from its number. What is none comes behind, if it is called so.
        (Platform::ModelArts, _) => {
            let number = topology::rank(task).or_else(|| (role == "worker").then(|| node_number(task)));
            let plain = number.map_or(plain, |number| format!("{job}-worker-{number}"));
            vec![format!("{plain}.{job}"), plain]
        }
        (Platform::Pai, Profile::Dlc) => vec![format!("dlc{plain}.{space}.svc"), format!("dlc{plain}")],
        (Platform::Pai, _) => vec![plain],
        (Platform::Google, Profile::Vertex) => {
            let (pool, index) = super::google::pool(task);
            vec![format!("cmle-training-workerpool{pool}-{job}-{index}")]
        }
        (Platform::Google, _) => vec![format!("cmle-training-{role}-{job}-{index}")],
        // The first task of `ps1` is not the eleventh of `ps`.
        (Platform::Kubeflow, Profile::Swarm) if role.ends_with(|c: char| c.is_ascii_digit()) => {
            vec![format!("{role}-{index}")]
        }
        (Platform::Kubeflow, Profile::Swarm) => vec![format!("{role}{index}")],
        (Platform::Kubeflow, _) => vec![format!("{plain}.{space}.svc"), plain],
        (Platform::Mpi, _) => vec![format!("{plain}.{job}.{space}.svc"), plain],
    }
}

/// The node of this number, from 0, as SageMaker calls it.
pub(super) fn algo(number: usize) -> String {
    format!("algo-{}", number + 1)
}

/// Computing nodes first, so that the first of them is the first of all.
fn node_number(task: &Task<'_>) -> usize {
    let nodes = topology::nodes(task);
    let is_node = |peer: &Task<'_>| nodes.iter().any(|node| node.ordinal == peer.ordinal);
    let behind =
        || nodes.len() + task.peers().iter().filter(|peer| !is_node(peer) && peer.ordinal < task.ordinal).count();
    topology::rank(task).unwrap_or_else(behind)
}

/// The last and shortest name.
pub(super) fn short(task: &Task<'_>) -> String {
    names(task).pop().unwrap_or_default()
}

pub(super) fn address(task: &Task<'_>) -> Ipv4Addr {
    task.place().map_or(Ipv4Addr::LOCALHOST, |place| place.address)
}

/// The job as a label of a domain name, which no other job has: others may come to the same where its name cannot be one.
pub(super) fn job(task: &Task<'_>) -> String {
    let name = task.identity.key.job.as_str();
    match label(name) {
        Some(label) if label != name => format!("{label}-{}", naming::hash(name)),
        _ => dns(name),
    }
}

/// A label of a domain name, and where nothing is left of the text a number of its own.
fn dns(text: &str) -> String {
    label(text).unwrap_or_else(|| format!("j{}", naming::hash(text)))
}

/// The text with `-` where it has what cannot be in a label.
fn label(text: &str) -> Option<String> {
    let label: String = text.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let label = label.trim_matches('-');
    (text.is_ascii() && !label.is_empty() && label.len() <= 40).then(|| label.to_owned())
}
