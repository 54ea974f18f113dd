//! Servers of parameters that some platforms start beside the script on each node, so that scripts know nothing of them.

use super::command::quote;
use super::{SeenFile, Task, shells, topology};
use crate::spec::strategy::starts_servers;
use crate::spec::{Framework, Platform, Strategy};

const PROGRAM: &str = "/run/trainyard/servers";

/// By what `TF_CONFIG` says of the cluster, without the node's cards.
const TENSORFLOW: &str = "import json, os, sys\nimport tensorflow as tf\n\
    cluster = json.loads(os.environ['TF_CONFIG'])['cluster']\n\
    tf.distribute.Server(cluster, 'ps', int(sys.argv[1])).join()\n";
/// MXNet becomes what `DMLC_ROLE` says when it is brought in.
const MXNET: &str = "import mxnet";

/// The nodes that have one beside the script: none where the file has servers itself.
pub(super) fn nodes<'a>(task: &Task<'a>) -> Vec<Task<'a>> {
    let spec = task.spec;
    let mut nodes = topology::nodes(task);
    let has_own = !topology::called(task, topology::SERVERS).is_empty();
    if !starts_servers(spec.contract) || spec.strategy != Some(Strategy::Ps) || nodes.len() < 2 || has_own {
        return Vec::new();
    }
    if spec.contract.platform == Platform::Tione && spec.framework == Some(Framework::TensorFlow) {
        nodes.truncate(1);
    }
    nodes
}

/// Starts the servers, then the command: they end with it.
pub(super) fn program(task: &Task<'_>) -> Option<SeenFile> {
    let index = nodes(task).iter().position(|node| node.ordinal == task.ordinal)?;
    let starts = Some(starts(task, index)).filter(|starts| !starts.is_empty())?;
    Some(SeenFile::program(PROGRAM, format!("#!{}\n{starts}exec \"$@\"\n", shells::of_task(task))))
}

/// The command as it is started where there is such a [`program`].
pub(super) fn beside(task: &Task<'_>, words: Vec<String>) -> Vec<String> {
    program(task).map(|program| program.path).into_iter().chain(words).collect()
}

fn starts(task: &Task<'_>, index: usize) -> String {
    let mxnet = |role: &str| format!("DMLC_ROLE={role} python3 -c {} &\n", quote(MXNET));
    match task.spec.framework {
        Some(Framework::TensorFlow) => format!("CUDA_VISIBLE_DEVICES= python3 -c {} {index} &\n", quote(TENSORFLOW)),
        Some(Framework::MxNet) if index == 0 => format!("{}{}", mxnet("scheduler"), mxnet("server")),
        Some(Framework::MxNet) => mxnet("server"),
        _ => String::new(),
    }
}
