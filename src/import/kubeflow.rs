//! Kubeflow's jobs of the training operator (v1) and the MPI operator (v1, v2beta1): one table of kinds.

use super::draft::{Draft, DraftRole, Holds};
use super::fields::{Fate, Fates, Fields};
use super::node::Node;
use super::{ImportError, Imported, pod};
use crate::spec::Main;

struct Kind {
    name: &'static str,
    replicas: &'static str,
    framework: &'static str,
    /// Roles that decide how the job ends, the first one that there is.
    deciding: &'static [&'static str],
    /// Roles that the job does not wait for.
    serving: &'static [&'static str],
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "TFJob",
        replicas: "tfReplicaSpecs",
        framework: "tensorflow",
        deciding: &["chief", "master"],
        serving: &["ps", "evaluator"],
    },
    Kind {
        name: "PyTorchJob",
        replicas: "pytorchReplicaSpecs",
        framework: "pytorch",
        deciding: &["master"],
        serving: &[],
    },
    Kind {
        name: "MXJob",
        replicas: "mxReplicaSpecs",
        framework: "mxnet",
        deciding: &[],
        serving: &["scheduler", "server"],
    },
    Kind { name: "XGBoostJob", replicas: "xgbReplicaSpecs", framework: "xgboost", deciding: &["master"], serving: &[] },
    Kind {
        name: "PaddleJob",
        replicas: "paddleReplicaSpecs",
        framework: "paddle",
        deciding: &["master"],
        serving: &[],
    },
    Kind { name: "JAXJob", replicas: "jaxReplicaSpecs", framework: "jax", deciding: &[], serving: &[] },
    Kind {
        name: "MPIJob",
        replicas: "mpiReplicaSpecs",
        framework: "mpi",
        deciding: &["launcher"],
        serving: &["worker"],
    },
];

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
    ("mpiImplementation", Fate::Lost("the hostfile is written for all of them; see docs/JOBS.md")),
    (
        "launcherCreationPolicy",
        Fate::Lost("all tasks of a job start together here; let the launcher wait for the workers"),
    ),
    ("runLauncherAsWorker", Fate::Lost("the launcher only launches")),
    ("mainContainer", Fate::Nothing("a task has one container")),
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
    document.leave(DOCUMENT, &mut draft.losses);
    let policy = spec.object("runPolicy")?;
    run_policy(policy, &mut draft)?;
    // Older forms have the same fields in the spec itself.
    run_policy_here(&mut spec, &mut draft)?;
    processes(&mut spec, &mut draft)?;
    let slots = spec.number("slotsPerWorker", 1)?.unwrap_or(1);
    let slots = Some(slots).filter(|_| kind.framework == "mpi");
    roles(kind, spec.object(kind.replicas)?, slots, &mut draft)?;
    decide(kind, &mut spec, &mut draft)?;
    let mode = spec.text("jobMode")?;
    if let Some(mode) = mode.filter(|mode| mode != "MXTrain") {
        draft.losses.push(spec.loss("jobMode", format!("{mode}: only training is known here")));
    }
    spec.leave(SPEC, &mut draft.losses);
    draft.finish()
}

fn run_policy(mut policy: Fields, draft: &mut Draft) -> Result<(), ImportError> {
    run_policy_here(&mut policy, draft)?;
    policy.leave(POLICY, &mut draft.losses);
    Ok(())
}

fn run_policy_here(policy: &mut Fields, draft: &mut Draft) -> Result<(), ImportError> {
    // What is left when a job has ended is stopped; its record and logs stay.
    policy.take("cleanPodPolicy");
    if policy.flag("suspend")? == Some(true) {
        draft.state = Some("held".to_owned());
    }
    if let Some(seconds) = policy.number("activeDeadlineSeconds", 1)? {
        draft.max_duration_s = Some(seconds.unsigned_abs());
    }
    if let Some(count) = policy.number("backoffLimit", 0)? {
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
    Ok(())
}

/// Processes of a node.
fn processes(spec: &mut Fields, draft: &mut Draft) -> Result<(), ImportError> {
    if let Some(count) = spec.text("nprocPerNode")? {
        draft.env.push(("PET_NPROC_PER_NODE".to_owned(), count));
    }
    Ok(())
}

/// Replica types are the names of the fields.
fn roles(kind: &Kind, specs: Fields, slots: Option<i64>, draft: &mut Draft) -> Result<(), ImportError> {
    let path = specs.path().to_owned();
    for (name, node) in specs.rest() {
        let mut fields = Fields::of(node, &format!("{path}.{name}"))?;
        let count = fields.number("replicas", 0)?.unwrap_or(1);
        let count = u32::try_from(count).map_err(|_| fields.refuse("replicas", "is too large"))?;
        if count == 0 {
            draft.losses.push(fields.loss("replicas", "is 0, so the role is left out"));
            continue;
        }
        let mut role = DraftRole::new(name.to_lowercase(), count);
        let serves = kind.serving.contains(&role.name.as_str());
        role.holds_open(if serves { Holds::No } else { Holds::Yes });
        restarts_and_pod(&mut fields, &mut role, draft)?;
        if let Some(slots) = slots.filter(|_| serves) {
            // The operator's workers run sshd; here Trainyard's own agent starts the ranks.
            role.waits_for_ranks();
            role.own.push(("slots".to_owned(), slots.to_string()));
        }
        fields.leave(&[], &mut draft.losses);
        draft.roles.push(role);
    }
    if draft.roles.iter().any(DraftRole::tries_again) {
        // It bounds how often these tasks are started again; the job is not beside that.
        draft.retries = 0;
    }
    Ok(())
}

/// The operator writes its own `restartPolicy` over the pod's; `backoffLimit` bounds it.
fn restarts_and_pod(fields: &mut Fields, role: &mut DraftRole, draft: &mut Draft) -> Result<(), ImportError> {
    let most = Some(draft.retries).filter(|count| *count > 0);
    let own = pod::Restarts::take(fields)?;
    let is_own = own.is_some();
    own.into_iter().for_each(|own| own.apply(most, role, &mut draft.losses));
    let of_pod = pod::read(fields.object("template")?, role, draft)?.filter(|_| !is_own);
    of_pod.into_iter().for_each(|of_pod| of_pod.apply(most, role, &mut draft.losses));
    Ok(())
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
