//! Kubeflow's jobs of the training operator (v1) and the MPI operator (v1, v2beta1): one table of kinds.

use super::draft::{Draft, DraftRole, Holds};
use super::fields::{Fate, Fates, Fields};
use super::node::Node;
use super::{ImportError, Imported, Loss, pod};
use crate::spec::Main;

struct Kind {
    name: &'static str,
    replicas: &'static str,
    framework: &'static str,
    /// How the container is called that the operator takes for the task's.
    container: &'static str,
    /// Of a port of that container tasks are told, where it has this name.
    port: Option<Port>,
    /// Roles that decide how the job ends, the first one that there is.
    deciding: &'static [&'static str],
    /// Roles that the job does not wait for.
    serving: &'static [&'static str],
    /// The `restartPolicy` that the operator fills in (defaults of training-operator v1.9, MXJob's of v1.7).
    restarts: &'static str,
}

struct Port {
    name: &'static str,
    /// What the operator fills in, and what tasks here are told.
    number: u16,
    /// The variable that tells of it.
    variable: &'static str,
}

const fn port(name: &'static str, number: u16, variable: &'static str) -> Option<Port> {
    Some(Port { name, number, variable })
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "TFJob",
        replicas: "tfReplicaSpecs",
        framework: "tensorflow",
        container: "tensorflow",
        port: port("tfjob-port", 2222, "TF_CONFIG"),
        deciding: &["chief", "master"],
        serving: &["ps", "evaluator"],
        restarts: "Never",
    },
    Kind {
        name: "PyTorchJob",
        replicas: "pytorchReplicaSpecs",
        framework: "pytorch",
        container: "pytorch",
        port: port("pytorchjob-port", 23456, "MASTER_PORT"),
        deciding: &["master"],
        serving: &[],
        restarts: "OnFailure",
    },
    Kind {
        name: "MXJob",
        replicas: "mxReplicaSpecs",
        framework: "mxnet",
        container: "mxnet",
        port: port("mxjob-port", 9091, "MX_CONFIG"),
        deciding: &[],
        serving: &["scheduler", "server"],
        restarts: "Never",
    },
    Kind {
        name: "XGBoostJob",
        replicas: "xgbReplicaSpecs",
        framework: "xgboost",
        container: "xgboost",
        port: port("xgboostjob-port", 9999, "MASTER_PORT and WORKER_PORT"),
        deciding: &["master"],
        serving: &[],
        restarts: "Never",
    },
    Kind {
        name: "PaddleJob",
        replicas: "paddleReplicaSpecs",
        framework: "paddle",
        container: "paddle",
        port: port("master", 36543, "PADDLE_MASTER"),
        deciding: &["master"],
        serving: &[],
        restarts: "OnFailure",
    },
    Kind {
        name: "JAXJob",
        replicas: "jaxReplicaSpecs",
        framework: "jax",
        container: "jax",
        port: port("jaxjob-port", 6666, "COORDINATOR_PORT"),
        deciding: &[],
        serving: &[],
        restarts: "Never",
    },
    Kind {
        name: "MPIJob",
        replicas: "mpiReplicaSpecs",
        framework: "mpi",
        container: "mpi",
        port: None,
        deciding: &["launcher"],
        serving: &["worker"],
        restarts: "Never",
    },
];

/// The launcher of MPIJob v2beta1 is a Job of Kubernetes, which starts it again so often by itself.
const LAUNCHER_RESTARTS: u32 = 6;

const DOCUMENT: &Fates = &[
    ("apiVersion", Fate::Nothing("says the format")),
    ("kind", Fate::Nothing("says the format")),
    ("status", Fate::Nothing("written by the operator")),
];

const SPEC: &Fates = &[
    (
        "elasticPolicy",
        Fate::Lost("the number of tasks is fixed here: the replicas; start torchrun with --nnodes of the same number"),
    ),
    ("enableDynamicWorker", Fate::Lost("the number of tasks is fixed here")),
    ("sshAuthMountPath", Fate::Nothing("ranks are started without ssh")),
    ("mpiImplementation", Fate::Lost("the hostfile is written for all of them; see docs/CONTRACTS.md, MPI")),
    (
        "launcherCreationPolicy",
        Fate::Lost("all tasks of a job start together here; let the launcher wait for the workers"),
    ),
    ("runLauncherAsWorker", Fate::Lost("the launcher only launches")),
];

const POLICY: &Fates = &[
    ("ttlSecondsAfterFinished", Fate::Lost("records stay until `trainyard rm`")),
    (
        "schedulingPolicy",
        Fate::Lost("all tasks of a job start together here; write priority for its place in the queue"),
    ),
    ("managedBy", Fate::Lost("there is one controller")),
];

pub(super) fn knows(kind: &str) -> bool {
    KINDS.iter().any(|known| known.name == kind)
}

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut document = Fields::of(document, "")?;
    let name = document.text("kind")?.unwrap_or_default();
    let Some(kind) = KINDS.iter().find(|known| known.name == name) else {
        return Err(document.refuse("kind", "is no kind of Kubeflow that is known here"));
    };
    let mut metadata = document.object("metadata")?;
    let mut draft = Draft::new("a job of Kubeflow", pod::name(&mut metadata)?, "kubeflow");
    draft.framework = Some(kind.framework);
    pod::keep_metadata(metadata, &mut draft)?;
    let mut spec = document.object("spec")?;
    let launches_by_job = document.text("apiVersion")?.is_some_and(|version| version.ends_with("/v2beta1"));
    document.leave(DOCUMENT, &mut draft.losses);
    let policy = spec.object("runPolicy")?;
    let is_bound = run_policy(policy, &mut draft)?;
    // Older forms have the same fields in the spec itself.
    let is_bound = run_policy_here(&mut spec, &mut draft)? || is_bound;
    processes(&mut spec, &mut draft)?;
    let slots = spec.number("slotsPerWorker", 1)?.unwrap_or(1);
    let main_container = spec.text("mainContainer")?;
    // The MPI operator itself takes the first one, whatever it is called.
    let container = main_container.as_deref().or((!launches_by_job).then_some(kind.container));
    let shape = Shape {
        kind,
        slots: Some(slots).filter(|_| kind.framework == "mpi"),
        most: is_bound.then_some(draft.retries),
        launches_by_job,
        container,
    };
    shape.roles(spec.object(kind.replicas)?, &mut draft)?;
    draft.came_from(&spec, &[("roles", &[kind.replicas])]);
    decide(kind, &mut spec, &mut draft)?;
    let mode = spec.text("jobMode")?;
    if let Some(mode) = mode.filter(|mode| mode != "MXTrain") {
        draft.losses.push(spec.loss("jobMode", format!("{mode}: only training is known here")));
    }
    spec.leave(SPEC, &mut draft.losses);
    draft.finish()
}

fn run_policy(mut policy: Fields, draft: &mut Draft) -> Result<bool, ImportError> {
    let is_bound = run_policy_here(&mut policy, draft)?;
    policy.leave(POLICY, &mut draft.losses);
    Ok(is_bound)
}

/// Whether `backoffLimit` bounds restarts.
fn run_policy_here(policy: &mut Fields, draft: &mut Draft) -> Result<bool, ImportError> {
    // What is left when a job has ended is stopped; its record and logs stay.
    policy.take("cleanPodPolicy");
    if policy.flag("suspend")? == Some(true) {
        draft.state = Some("held".to_owned());
    }
    if let Some(seconds) = policy.number("activeDeadlineSeconds", 1)? {
        draft.max_duration_s = Some(seconds.unsigned_abs());
    }
    let limit = policy.number("backoffLimit", 0)?;
    if let Some(count) = limit {
        draft.retry("backoffLimit", count);
    }
    for name in ["ttlSecondsAfterFinished", "schedulingPolicy"] {
        if policy.take(name).is_some() {
            let why = POLICY.iter().find_map(|(known, fate)| match fate {
                Fate::Lost(why) if *known == name => Some(*why),
                _ => None,
            });
            draft.losses.push(policy.loss(name, why.unwrap_or_default()));
        }
    }
    Ok(limit.is_some())
}

/// Processes of a node.
fn processes(spec: &mut Fields, draft: &mut Draft) -> Result<(), ImportError> {
    if let Some(count) = spec.text("nprocPerNode")? {
        draft.env.push(("PET_NPROC_PER_NODE".to_owned(), count));
    }
    Ok(())
}

/// What a job says of all its roles.
struct Shape<'s> {
    kind: &'static Kind,
    /// How the container is called that does the work, where that is not just the first.
    container: Option<&'s str>,
    /// Of a worker, where ranks are launched.
    slots: Option<i64>,
    /// How often containers are started again, where something bounds it.
    most: Option<u32>,
    /// The launcher is a Job of Kubernetes.
    launches_by_job: bool,
}

impl Shape<'_> {
    /// Replica types are the names of the fields.
    fn roles(&self, specs: Fields, draft: &mut Draft) -> Result<(), ImportError> {
        let path = specs.path().to_owned();
        let mut met = Vec::new();
        for (name, node) in specs.rest() {
            let mut fields = Fields::of(node, &format!("{path}.{name}"))?;
            let serves = self.kind.serving.contains(&name.to_lowercase().as_str());
            let waits = serves && self.slots.is_some();
            // Both operators of MPI fill in no worker.
            let count = fields.number("replicas", 0)?.unwrap_or(if waits { 0 } else { 1 });
            let count = u32::try_from(count).map_err(|_| fields.refuse("replicas", "is too large"))?;
            if count == 0 {
                draft.losses.push(fields.loss("replicas", "is 0, so the role is left out"));
                continue;
            }
            let mut role = DraftRole::new(name.to_lowercase(), count);
            role.came_from(&fields, &[("count", &["replicas"])]);
            role.holds_open(if serves { Holds::No } else { Holds::Yes });
            let meeting = self.restarts_and_pod(&mut fields, &mut role, draft)?;
            met.extend(meeting.map(|meeting| (role.name.clone(), meeting)));
            if let Some(slots) = self.slots.filter(|_| serves) {
                // The operator's workers run sshd; here Trainyard's own agent starts the ranks.
                role.waits_for_ranks(&mut draft.losses);
                role.own.push(("slots".to_owned(), slots.to_string()));
            }
            fields.leave(&[], &mut draft.losses);
            draft.roles.push(role);
        }
        if draft.roles.iter().any(DraftRole::tries_again) {
            // It bounds how often these tasks are started again; the job is not beside that.
            draft.retries = 0;
        }
        if let Some(port) = &self.kind.port {
            meet(port, met, draft);
        }
        Ok(())
    }

    /// The operator writes its own `restartPolicy`, said or not, over the pod's; `backoffLimit` bounds it.
    fn restarts_and_pod(
        &self,
        fields: &mut Fields,
        role: &mut DraftRole,
        draft: &mut Draft,
    ) -> Result<Option<pod::Meeting>, ImportError> {
        let by_job = self.launches_by_job && role.name == "launcher";
        let filled_in = if by_job { "OnFailure" } else { self.kind.restarts };
        let restarts = pod::Restarts::take(fields)?.unwrap_or_else(|| pod::Restarts::filled_in(fields, filled_in));
        let most = self.most.or_else(|| by_job.then_some(LAUNCHER_RESTARTS));
        restarts.apply(most, role, &mut draft.losses);
        let names = pod::Names { container: self.container, port: self.kind.port.as_ref().map(|port| port.name) };
        pod::read(fields.object("template")?, &names, role, draft).map(|pod| pod.meeting)
    }
}

/// Ports of roles that are not what the operator fills in: PyTorch's tasks are told that of the one that leads.
fn meet(known: &Port, met: Vec<(String, pod::Meeting)>, draft: &mut Draft) {
    let has_master = draft.roles.iter().any(|role| role.name == "master");
    for (role, meeting) in met.into_iter().filter(|(_, meeting)| meeting.port != known.number) {
        if draft.framework != Some("pytorch") {
            let why = format!(
                "{}: the operator tells tasks of it in {}, which here names {}; let the command listen there",
                meeting.port, known.variable, known.number
            );
            draft.losses.push(Loss { field: meeting.field, line: meeting.line, why });
        } else if role == "master" || !has_master {
            // What `torchrun` reads as well.
            let both = ["MASTER_PORT", "PET_MASTER_PORT"].map(|name| (name.to_owned(), meeting.port.to_string()));
            draft.env.extend(both);
        }
    }
}

/// Who decides how the job ends: `main` where there are others.
fn decide(kind: &Kind, spec: &mut Fields, draft: &mut Draft) -> Result<(), ImportError> {
    let all_workers = spec.text("successPolicy")?.as_deref() == Some("AllWorkers");
    let several = draft.roles.len() > 1;
    let decider = kind.deciding.iter().find(|name| draft.roles.iter().any(|role| role.name == **name));
    if let Some(decider) = decider.filter(|_| several && !all_workers) {
        draft.roles.iter_mut().filter(|role| role.name == **decider).for_each(|role| role.main = Main::Role);
    }
    // The contract has worker 0 decide where nobody else does.
    if kind.framework == "tensorflow" && all_workers {
        draft.roles.iter_mut().filter(|role| role.name == "worker").for_each(|role| role.says_not_main = true);
    }
    Ok(())
}
