//! MPI: the host file and the variables of the launchers that read it (Open MPI, Intel MPI, MPICH), and the platforms that
//! are little more: NVIDIA's Base Command, Intel's Nauta.
//!
//! Ranks are started without ssh. The tasks of an attempt share a directory ([`PEERS`]) in which each has an `inbox`, a named
//! pipe, and is found by any of its names. [`RSH`] stands for ssh: it lays the command down there, tells the inbox, and
//! copies what comes back. The agent (`crate::spec::strategy::AGENT`), which idle tasks run, starts it. Both are shell
//! scripts, since nothing else is there in every image that has MPI.

use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, host, join, parameters, shells};
use crate::spec::strategy::AGENT;
use crate::spec::{Framework, Platform, Profile, Strategy};

/// Where tasks find what stands for ssh.
const RSH: &str = "/run/trainyard/rsh";
/// What the tasks of an attempt share.
pub const PEERS: &str = "/run/trainyard/peers";

/// Where programs that know no other name find it as `ssh`, before the image's own: `horovodrun`, `pdsh`.
const SSH: &str = "/run/trainyard/bin/ssh";
/// First among the places where a task's programs are looked for.
pub(super) const SSH_PLACE: &str = "/run/trainyard/bin";

/// Passes over options of ssh, none of which means anything here, up to the first word that is none.
const OPTIONS: &str = r#"    while :; do
        case "$1" in
            -[bBcDEeFIiJLlmOopPQRSWw]) shift 2 ;;
            -*) shift ;;
            *) break ;;
        esac
    done
"#;

/// `rsh HOST COMMAND…`, as ssh has it; Horovod says more options after the host. No standard input is passed on.
fn rsh_script() -> String {
    format!(
        r#"#!/bin/sh
{OPTIONS}host=${{1##*@}}
shift
{OPTIONS}{RSH_SCRIPT}"#
    )
}

const RSH_SCRIPT: &str = r#"place=/run/trainyard/peers/$host
if [ ! -p "$place/inbox" ]; then
    echo "trainyard: no task of this job is called $host" >&2
    exit 255
fi
call=$(mktemp -d "$place/call.XXXXXX") || exit 255
name=${call##*/}
mkfifo "$call/out" "$call/err" "$call/end" || exit 255
printf '%s' "$*" > "$call/command"
trap 'echo "stop $name" > "$place/inbox"' HUP INT TERM
echo "start $name" > "$place/inbox"
cat "$call/err" >&2 &
cat "$call/out" &
# A signal interrupts a wait, and nothing else.
while :; do
    wait
    [ $? -gt 128 ] || break
done
read -r code < "$call/end"
rm -r "$call"
exit "${code:-255}"
"#;

/// As [`rsh_script`]; what is no task of the job is left to the image's own.
fn ssh_script() -> String {
    format!(
        r#"#!/bin/sh
host() {{
{OPTIONS}    echo "${{1##*@}}"
}}
{SSH_SCRIPT}"#
    )
}

const SSH_SCRIPT: &str = r#"host=$(host "$@")
if [ -p "/run/trainyard/peers/$host/inbox" ]; then
    exec /run/trainyard/rsh "$@"
fi
IFS=:
for place in $PATH; do
    [ "$place" != /run/trainyard/bin ] && [ -x "$place/ssh" ] && exec "$place/ssh" "$@"
done
echo "trainyard: no task of this job is called $host, and the image has no ssh of its own" >&2
exit 255
"#;

/// Runs what peers lay into this task's directory, each in a process group of its own.
const AGENT_SCRIPT: &str = r#"#!/bin/sh
place=/run/trainyard/peers/$TRAINYARD_ROLE-$TRAINYARD_TASK_INDEX
run() {
    setsid /bin/sh -c 'echo $$ > "$1/pid"; exec /bin/sh -c "$(cat "$1/command")"' sh "$1" \
        < /dev/null > "$1/out" 2> "$1/err"
    echo $? > "$1/end"
}
exec 3<> "$place/inbox"
while read -r verb name <&3; do
    case "$verb" in
        start) run "$place/$name" 3>&- & ;;
        stop) kill -TERM -"$(cat "$place/$name/pid")" 2> /dev/null ;;
    esac
done
"#;

/// What starts processes on other tasks, and what they run.
pub(super) fn programs(task: &Task<'_>) -> Vec<SeenFile> {
    let mut out = vec![SeenFile::program(RSH, rsh_script()), SeenFile::program(SSH, ssh_script())];
    if task.is_idle() {
        // What it starts has its environment.
        out.push(SeenFile::program(AGENT, AGENT_SCRIPT.replace(shells::SH, shells::of_task(task))));
    }
    out
}
/// As Open MPI reads it.
const HOSTFILE: &str = "/etc/mpi/hostfile";
/// As Intel MPI and MPICH read it.
const HYDRA_HOSTFILE: &str = "/etc/mpi/hostfile.hydra";

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    parameters::with_equals(&task.role.params)
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let slots = topology::mpi_hosts(task).first().map_or(1, topology::slots);
    let mut out = if task.spec.is_launched() { of_launchers(slots) } else { Vec::new() };
    // Roles of another framework are no ranks'.
    if task.spec.framework.is_none() || task.spec.strategy == Some(Strategy::Launcher) {
        let waits = if task.spec.is_launched() { task.is_idle() } else { !task.leads() };
        out.push(pair("K_MPI_JOB_ROLE", if waits { "worker" } else { "launcher" }));
    }
    out.extend(of_profile(task));
    out
}

/// How launchers find the tasks, and what they are to use in the place of ssh.
fn of_launchers(slots: u64) -> Pairs {
    vec![
        pair("OMPI_MCA_orte_default_hostfile", HOSTFILE),
        pair("OMPI_MCA_orte_keep_fqdn_hostnames", true),
        pair("OMPI_MCA_orte_set_default_slots", slots),
        pair("OMPI_MCA_plm_rsh_agent", RSH),
        // Open MPI 5 reads its runtime's variables by this name.
        pair("PRTE_MCA_prte_default_hostfile", HOSTFILE),
        pair("PRTE_MCA_plm_ssh_agent", RSH),
        // Not as root on the machine: as the owner of the job.
        pair("OMPI_ALLOW_RUN_AS_ROOT", 1),
        pair("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", 1),
        pair("PRTE_ALLOW_RUN_AS_ROOT", 1),
        pair("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", 1),
        pair("I_MPI_HYDRA_HOST_FILE", HYDRA_HOSTFILE),
        pair("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
        pair("I_MPI_HYDRA_BOOTSTRAP_EXEC", RSH),
        pair("I_MPI_PERHOST", slots),
        pair("HYDRA_HOST_FILE", HYDRA_HOSTFILE),
        pair("HYDRA_LAUNCHER", "rsh"),
        pair("HYDRA_LAUNCHER_EXEC", RSH),
    ]
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

/// The host files, and the list of hosts for those that ask a program.
pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let hosts = topology::mpi_hosts(task);
    let lines: Vec<String> =
        hosts.iter().map(|node| format!("{} slots={}\n", name(node), topology::slots(node))).collect();
    let discover = format!("#!/bin/sh\n{}", join(hosts.iter().map(|node| format!("echo {}\n", name(node))), ""));
    let hydra = hosts.iter().map(|node| format!("{}:{}\n", name(node), topology::slots(node)));
    vec![
        SeenFile::new(HOSTFILE, lines.concat()),
        SeenFile::new(HYDRA_HOSTFILE, join(hydra, "")),
        SeenFile::program("/etc/mpi/discover_hosts.sh", discover),
        SeenFile::new("/job/hostfile", lines.concat()),
    ]
}

/// Where all share one network, hosts are told apart by name only.
fn name(task: &Task<'_>) -> String {
    host::primary(task)
}
