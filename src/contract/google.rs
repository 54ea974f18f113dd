//! Google AI Platform Training and Vertex AI: `TF_CONFIG`, `CLUSTER_SPEC`, `AIP_*`. What would lie in a bucket lies below
//! `/gcs`.

use serde_json::{Map, Value, json};

use super::topology::{self, Alone, Evaluator, Pairs, TfConfig, pair};
use super::{Task, parameters};
use crate::spec::Profile;

/// Where a bucket's place is mounted; scripts of Vertex put it in front of what follows `gs://`.
const JOB: &str = "/gcs/job";
/// Of the platform's own numbers nothing is published; those of tasks that share a network do not meet.
const OPEN_PORT: u16 = 3333;
const HANDLER_PORT: u16 = 4444;
const PROFILER_PORT: u16 = 5555;

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let mut out = parameters::with_equals(&task.role.params);
    let says_where = task.role.params.iter().any(|(key, _)| key == "job-dir");
    if task.spec.contract.profile == Profile::Plain && !says_where {
        out.extend(["--job-dir".to_owned(), JOB.to_owned()]);
    }
    out
}

const STYLE: TfConfig = TfConfig {
    chief: Some("chief"),
    alone: Alone::Told,
    evaluator: Evaluator::Apart,
    first_leads: true,
    ..topology::TF_PLAIN
};

/// The cluster file as [`topology`] writes it, with what this platform adds to it.
fn tf_config(task: &Task<'_>) -> Option<Value> {
    let text = topology::tf_config(task, STYLE)?;
    let mut config: Value = serde_json::from_str(&text).ok()?;
    let id = task.identity.key.job.as_str();
    let own = config.get_mut("task").and_then(Value::as_object_mut)?;
    own.insert("cloud".to_owned(), json!(id));
    own.insert("trial".to_owned(), json!("1"));
    let whole = config.as_object_mut()?;
    whole.insert("job".to_owned(), json!({ "args": arguments(task), "job_dir": JOB }));
    Some(config)
}

/// The pool of a task and its place there: the first node is the primary alone, then the workers, those that serve, and
/// the evaluator.
pub(super) fn pool(task: &Task<'_>) -> (usize, usize) {
    let evaluates = |peer: &Task<'_>| peer.role.name.as_str().eq_ignore_ascii_case("evaluator");
    match topology::rank(task) {
        Some(0) => (0, 0),
        Some(rank) => (1, rank - 1),
        None => {
            let alike = |peer: &&Task<'_>| peer.role.serves && evaluates(peer) == evaluates(task);
            let peers = task.peers();
            let place = peers.iter().filter(alike).position(|peer| peer.ordinal == task.ordinal).unwrap_or(0);
            (if evaluates(task) { 3 } else { 2 }, place)
        }
    }
}

fn cluster_spec(task: &Task<'_>) -> Value {
    let mut pools: [Vec<(usize, String)>; 4] = Default::default();
    for peer in task.peers() {
        let (number, place) = pool(&peer);
        if let Some(members) = pools.get_mut(number) {
            members.push((place, topology::endpoint(&peer, 2222)));
        }
    }
    let is_alone = task.peers().len() == 1;
    let kind = |pool: usize| if is_alone { "chief".to_owned() } else { format!("workerpool{pool}") };
    let mut cluster = Map::new();
    for (number, mut members) in pools.into_iter().enumerate().filter(|(_, members)| !members.is_empty()) {
        members.sort();
        let members: Vec<String> = members.into_iter().map(|(_, endpoint)| endpoint).collect();
        cluster.insert(kind(number), json!(members));
    }
    let (own, place) = pool(task);
    json!({
        "cluster": cluster, "environment": "cloud",
        "task": { "type": kind(own), "index": place, "trial": "1" },
        "open_ports": [topology::port(task, OPEN_PORT)],
    })
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let mut out = vec![pair("CLOUD_ML_JOB_ID", &task.identity.key.job), pair("CLOUD_ML_TRIAL_ID", 1)];
    out.extend(tf_config(task).map(|config| pair("TF_CONFIG", parameters::compact(&config))));
    match task.spec.contract.profile {
        Profile::Vertex => {
            out.push(pair("CLUSTER_SPEC", parameters::compact(&cluster_spec(task))));
            let below = |name: &str| format!("{JOB}/{name}/");
            out.extend([
                pair("AIP_MODEL_DIR", below("model")),
                pair("AIP_CHECKPOINT_DIR", below("checkpoints")),
                pair("AIP_TENSORBOARD_LOG_DIR", below("logs")),
                // What a script serves its profile by.
                pair("AIP_HTTP_HANDLER_PORT", topology::port(task, HANDLER_PORT)),
                pair("AIP_TF_PROFILER_PORT", topology::port(task, PROFILER_PORT)),
            ]);
            if let Some(dataset) = task.spec.datasets.first() {
                let name = dataset.seen_as();
                out.extend([
                    pair("AIP_DATA_FORMAT", "csv"),
                    pair("AIP_TRAINING_DATA_URI", format!("/gcs/{name}/training-*")),
                    pair("AIP_VALIDATION_DATA_URI", format!("/gcs/{name}/validation-*")),
                    pair("AIP_TEST_DATA_URI", format!("/gcs/{name}/test-*")),
                ]);
            }
        }
        _ => out.extend(tf_config(task).map(|config| pair("CLUSTER_SPEC", parameters::compact(&config)))),
    }
    out
}
