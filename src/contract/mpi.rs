//! MPI: the host file and the variables of the launchers that read it (Open MPI, Intel MPI, MPICH), and the platforms that
//! are little more: NVIDIA's Base Command, Intel's Nauta. Ranks are started without ssh, by [`AGENT`].

use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, host, join, parameters};
use crate::spec::{Framework, Platform, Profile};

/// Where tasks find what stands for ssh.
pub const AGENT: &str = "/run/trainyard/rsh";
const HOSTFILE: &str = "/etc/mpi/hostfile";

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    parameters::with_equals(&task.role.params)
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let slots = topology::mpi_hosts(task).first().map_or(1, topology::slots);
    let mut out = vec![
        pair("OMPI_MCA_orte_default_hostfile", HOSTFILE),
        pair("OMPI_MCA_orte_keep_fqdn_hostnames", true),
        pair("OMPI_MCA_orte_set_default_slots", slots),
        pair("OMPI_MCA_plm_rsh_agent", AGENT),
        // Open MPI 5 reads its runtime's variables by this name.
        pair("PRTE_MCA_prte_default_hostfile", HOSTFILE),
        pair("PRTE_MCA_plm_ssh_agent", AGENT),
        // Not as root on the machine: as the owner of the job.
        pair("OMPI_ALLOW_RUN_AS_ROOT", 1),
        pair("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", 1),
        pair("PRTE_ALLOW_RUN_AS_ROOT", 1),
        pair("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", 1),
        pair("I_MPI_HYDRA_HOST_FILE", HOSTFILE),
        pair("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
        pair("I_MPI_HYDRA_BOOTSTRAP_EXEC", AGENT),
        pair("I_MPI_PERHOST", slots),
        pair("HYDRA_HOST_FILE", HOSTFILE),
        pair("HYDRA_LAUNCHER", "rsh"),
        pair("HYDRA_LAUNCHER_EXEC", AGENT),
        pair("HOROVOD_SSH_COMMAND", AGENT),
        pair("K_MPI_JOB_ROLE", if task.leads() || task.peers().len() == 1 { "launcher" } else { "worker" }),
    ];
    out.extend(of_profile(task));
    out
}

fn of_profile(task: &Task<'_>) -> Pairs {
    let nodes = topology::mpi_hosts(task);
    match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::Mpi, Profile::Bcp) => {
            let index = nodes.iter().position(|node| node.ordinal == task.ordinal).unwrap_or(0);
            let first = nodes.first().map(host::primary).unwrap_or_default();
            vec![
                pair("NGC_ARRAY_SIZE", nodes.len()),
                pair("NGC_ARRAY_INDEX", index),
                pair("NGC_MASTER_ADDR", first),
                pair("NGC_GPUS_PER_NODE", task.role.resources.gpu),
                pair("NGC_JOB_ID", &task.identity.key.job),
                pair("NGC_ARRAY_TYPE", "MPIJob"),
            ]
        }
        (Platform::Mpi, Profile::Nauta) => {
            let mut out = vec![
                pair("NAUTA_EXPERIMENT_NAME", &task.identity.key.job),
                pair("NAUTA_USERNAME", &task.identity.user),
                pair("RUN_NAME", format!("{}-{}", task.identity.key.job, task.identity.run)),
            ];
            if task.spec.framework == Some(Framework::TensorFlow) {
                out.extend(topology::tf_config(task, topology::TF_PLAIN).map(|config| pair("TF_CONFIG", config)));
            }
            out
        }
        _ => Vec::new(),
    }
}

/// Open MPI's form of the host file, which MPICH's launchers read as well when there is one slot.
pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let hosts = topology::mpi_hosts(task);
    let lines: Vec<String> =
        hosts.iter().map(|node| format!("{} slots={}\n", name(node), topology::slots(node))).collect();
    let discover = format!("#!/bin/sh\n{}", join(hosts.iter().map(|node| format!("echo {}\n", name(node))), ""));
    let hydra = hosts.iter().map(|node| format!("{}:{}\n", name(node), topology::slots(node)));
    vec![
        SeenFile::new(HOSTFILE, lines.concat()),
        SeenFile::new("/etc/mpi/hostfile.hydra", join(hydra, "")),
        SeenFile::new("/etc/mpi/discover_hosts.sh", discover),
        SeenFile::new("/job/hostfile", lines.concat()),
    ]
}

/// Where all share one network, hosts are told apart by name only.
fn name(task: &Task<'_>) -> String {
    host::primary(task)
}
