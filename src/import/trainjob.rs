//! Kubeflow Trainer v2: `TrainJob`. Its runtime, an object of the cluster, is known by name alone.

use super::draft::{Draft, DraftRole};
use super::fields::{Fate, Fates, Fields};
use super::node::Node;
use super::{ImportError, Imported, pod};

/// The runtimes that Kubeflow ships, by the beginnings of their names.
const RUNTIMES: [(&str, &str); 5] =
    [("torch", "pytorch"), ("deepspeed", "mpi"), ("mpi", "mpi"), ("jax", "jax"), ("xgboost", "xgboost")];

const DOCUMENT: &Fates = &[
    ("apiVersion", Fate::Nothing("says the format")),
    ("kind", Fate::Nothing("says the format")),
    ("status", Fate::Nothing("written by the controller")),
];

const SPEC: &Fates = &[
    ("initializer", Fate::Lost("put the data into datasets/NAME and the model into the workspace beforehand")),
    ("managedBy", Fate::Lost("there is one controller")),
    ("podTemplateOverrides", Fate::Lost("the runtime is not part of this file; write what it changes")),
    ("podSpecOverrides", Fate::Lost("the runtime is not part of this file; write what it changes")),
    ("runtimePatches", Fate::Lost("the runtime is not part of this file; write what it changes")),
    ("labels", Fate::Lost("only selectors of Kubernetes read them")),
    ("annotations", Fate::Lost("only controllers of Kubernetes read them")),
];

const RUNTIME: &Fates =
    &[("apiGroup", Fate::Nothing("the name says enough")), ("kind", Fate::Nothing("the name says enough"))];

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut document = Fields::of(document, "")?;
    let mut metadata = document.object("metadata")?;
    let mut draft = Draft::new("a TrainJob of Kubeflow", pod::name(&mut metadata)?, "kubeflow");
    pod::keep_metadata(metadata, &mut draft)?;
    let mut spec = document.object("spec")?;
    document.leave(DOCUMENT, &mut draft.losses);
    runtime(&mut spec, &mut draft)?;
    if spec.flag("suspend")? == Some(true) {
        draft.state = Some("held".to_owned());
    }
    if let Some(seconds) = spec.number("activeDeadlineSeconds", 1)? {
        draft.max_duration_s = Some(seconds.unsigned_abs());
    }
    let mut trainer = spec.object("trainer")?;
    let nodes = trainer.number("numNodes", 1)?;
    if nodes.is_none() {
        draft
            .losses
            .push(trainer.loss("numNodes", "the runtime says how many, which is not part of this file; it is 1 here"));
    }
    let count = u32::try_from(nodes.unwrap_or(1)).map_err(|_| trainer.refuse("numNodes", "is too large"))?;
    let mut role = DraftRole::new("node".to_owned(), count);
    role.came_from(&trainer, &[("count", &["numNodes"])]);
    if let Some(count) = trainer.text("numProcPerNode")? {
        draft.env.push(("PET_NPROC_PER_NODE".to_owned(), count));
    }
    pod::resources(trainer.object("resourcesPerNode")?, &mut role, &mut draft.losses)?;
    if !trainer.has("image") {
        draft.losses.push(trainer.loss("image", "the runtime names it, which is not part of this file; write image"));
    }
    pod::runs(&mut trainer, &mut role, &mut draft.losses)?;
    trainer.leave(&[], &mut draft.losses);
    draft.roles.push(role);
    spec.leave(SPEC, &mut draft.losses);
    draft.finish()
}

fn runtime(spec: &mut Fields, draft: &mut Draft) -> Result<(), ImportError> {
    let mut runtime = spec.object("runtimeRef")?;
    let name = runtime.text("name")?.unwrap_or_default();
    draft.framework = RUNTIMES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, framework)| *framework);
    let why = match draft.framework {
        Some(framework) => format!("{name:?} is not part of this file; framework = {framework:?} stands for it"),
        None => format!("{name:?} is not part of this file, and no runtime of that name is known; write framework"),
    };
    draft.losses.push(runtime.loss("name", why));
    runtime.leave(RUNTIME, &mut draft.losses);
    Ok(())
}
