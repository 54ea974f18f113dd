//! Kubeflow Trainer v2: `TrainJob`. Of its runtime image, nodes and framework are carried where it stands in the same file; else it is
//! an object of the cluster, known by name alone.

use super::draft::{Draft, DraftRole};
use super::fields::{Fate, Fates, Fields};
use super::node::Node;
use super::{ImportError, Imported, Loss, pod};

/// The runtimes that Kubeflow ships, by the beginnings of their names.
const RUNTIMES: [(&str, &str); 5] =
    [("torch", "pytorch"), ("deepspeed", "mpi"), ("mpi", "mpi"), ("jax", "jax"), ("xgboost", "xgboost")];

const DOCUMENT: &Fates = &[
    ("apiVersion", Fate::Nothing("says the format")),
    ("kind", Fate::Nothing("says the format")),
    ("status", Fate::Nothing("written by the controller")),
];

const OF_TEMPLATE: &str = "the template of the runtime is not carried; write what this changes in it";

const SPEC: &Fates = &[
    ("initializer", Fate::Lost("put the data into datasets/NAME and the model into the workspace beforehand")),
    ("managedBy", Fate::Lost("there is one controller")),
    ("podTemplateOverrides", Fate::Lost(OF_TEMPLATE)),
    ("podSpecOverrides", Fate::Lost(OF_TEMPLATE)),
    ("runtimePatches", Fate::Lost(OF_TEMPLATE)),
    ("labels", Fate::Lost("only selectors of Kubernetes read them")),
    ("annotations", Fate::Lost("only controllers of Kubernetes read them")),
];

const RUNTIME: &Fates = &[
    ("apiGroup", Fate::Nothing("kind and name say enough")),
    ("kind", Fate::Nothing("says with the name which runtime of the file it is")),
];

const RUNTIME_SPEC: &Fates = &[("podGroupPolicy", Fate::Nothing("all tasks of a job start together here"))];

const OF_RUNTIME: &str = "the runtime's: write it into the job file";

const CONTAINER: &Fates = &[
    ("name", Fate::Nothing("a task has one container")),
    ("command", Fate::Lost(OF_RUNTIME)),
    ("args", Fate::Lost(OF_RUNTIME)),
    ("env", Fate::Lost(OF_RUNTIME)),
    ("resources", Fate::Lost(OF_RUNTIME)),
];

/// What a runtime gives to its jobs.
#[derive(Debug, Default)]
struct Runtime {
    framework: Option<&'static str>,
    nodes: Option<i64>,
    image: Option<String>,
}

/// Whether a job runs by this runtime.
pub(super) fn uses(job: &Node, runtime: &Node) -> bool {
    let text =
        |node: &Node, path: &[&str]| path.iter().try_fold(node, |node, name| node.get(name)).and_then(Node::scalar);
    // A job that names no kind means the cluster's, even where a namespace has a runtime of the same name.
    let wanted = text(job, &["spec", "runtimeRef", "kind"]).unwrap_or_else(|| "ClusterTrainingRuntime".to_owned());
    ["TrainingRuntime", "ClusterTrainingRuntime"].contains(&wanted.as_str())
        && text(runtime, &["kind"]) == Some(wanted)
        && text(job, &["kind"]).as_deref() == Some("TrainJob")
        && text(job, &["spec", "runtimeRef", "name"])
            .is_some_and(|name| Some(name) == text(runtime, &["metadata", "name"]))
}

/// `runtimes` are those of the same file.
pub(super) fn read(document: Node, runtimes: &[Node]) -> Result<Imported, ImportError> {
    let own = runtimes.iter().find(|runtime| uses(&document, runtime));
    let mut document = Fields::of(document, "")?;
    let mut metadata = document.object("metadata")?;
    let mut draft = Draft::new("a TrainJob of Kubeflow", pod::name(&mut metadata)?, "kubeflow");
    pod::keep_metadata(metadata, &mut draft)?;
    let mut spec = document.object("spec")?;
    document.leave(DOCUMENT, &mut draft.losses);
    let runtime = runtime(&mut spec, &mut draft, own)?;
    if spec.flag("suspend")? == Some(true) {
        draft.state = Some("held".to_owned());
    }
    if let Some(seconds) = spec.number("activeDeadlineSeconds", 1)? {
        draft.max_duration_s = Some(seconds.unsigned_abs());
    }
    let mut trainer = spec.object("trainer")?;
    let nodes = trainer.number("numNodes", 1)?.or(runtime.nodes);
    if nodes.is_none() {
        let why = match own {
            Some(_) => "neither the job nor its runtime in this file says how many; it is 1 here",
            None => "the runtime says how many, which is not part of this file; it is 1 here",
        };
        draft.losses.push(trainer.loss("numNodes", why));
    }
    let count = u32::try_from(nodes.unwrap_or(1)).map_err(|_| trainer.refuse("numNodes", "is too large"))?;
    let mut role = DraftRole::new("node".to_owned(), count);
    role.came_from(&trainer, &[("count", &["numNodes"])]);
    if let Some(count) = trainer.text("numProcPerNode")? {
        draft.env.push(("PET_NPROC_PER_NODE".to_owned(), count));
    }
    pod::resources(trainer.object("resourcesPerNode")?, &mut role, &mut draft.losses)?;
    if !trainer.has("image") && runtime.image.is_none() {
        let why = match own {
            Some(_) => "neither the job nor its runtime in this file names one; write image",
            None => "the runtime names it, which is not part of this file; write image",
        };
        draft.losses.push(trainer.loss("image", why));
    }
    pod::runs(&mut trainer, &mut role, &mut draft.losses)?;
    role.image = role.image.or(runtime.image);
    trainer.leave(&[], &mut draft.losses);
    draft.roles.push(role);
    spec.leave(SPEC, &mut draft.losses);
    draft.finish()
}

fn runtime(spec: &mut Fields, draft: &mut Draft, own: Option<&Node>) -> Result<Runtime, ImportError> {
    let mut reference = spec.object("runtimeRef")?;
    let name = reference.text("name")?.unwrap_or_default();
    let runtime = match own {
        Some(node) => of_file(node, &mut draft.losses)?,
        None => {
            let framework = framework_of(&name);
            let why = match framework {
                Some(framework) => {
                    format!("{name:?} is not part of this file; framework = {framework:?} stands for it")
                }
                None => {
                    format!("{name:?} is not part of this file, and no runtime of that name is known; write framework")
                }
            };
            draft.losses.push(reference.loss("name", why));
            Runtime { framework, ..Runtime::default() }
        }
    };
    draft.framework = runtime.framework;
    reference.leave(RUNTIME, &mut draft.losses);
    Ok(runtime)
}

fn framework_of(name: &str) -> Option<&'static str> {
    RUNTIMES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, framework)| *framework)
}

/// A runtime that stands in the file.
fn of_file(node: &Node, losses: &mut Vec<Loss>) -> Result<Runtime, ImportError> {
    let mut document = Fields::of(node.clone(), "")?;
    let name = document.object("metadata")?.text("name")?.unwrap_or_default();
    let mut spec = document.object("spec")?;
    let mut policy = spec.object("mlPolicy")?;
    let nodes = policy.number("numNodes", 1)?;
    let framework = policy.names().iter().find_map(|kind| framework_of(kind)).or_else(|| framework_of(&name));
    policy.leave(&[], losses);
    let mut template = spec.object("template")?;
    let mut jobs = template.object("spec")?;
    let mut image = None;
    for mut job in jobs.objects("replicatedJobs")? {
        match job.text("name")?.as_deref() {
            Some("node") => image = trained_in(job, losses)?,
            _ => losses.push(job.loss("name", "what runs before the training belongs into the command")),
        }
    }
    [jobs, template].into_iter().for_each(|rest| rest.leave(&[], losses));
    spec.leave(RUNTIME_SPEC, losses);
    Ok(Runtime { framework, nodes, image })
}

/// The image of the job that trains; all else of it is named.
fn trained_in(mut job: Fields, losses: &mut Vec<Loss>) -> Result<Option<String>, ImportError> {
    let mut template = job.object("template")?;
    let mut spec = template.object("spec")?;
    let mut inner = spec.object("template")?;
    let mut pod = inner.object("spec")?;
    let mut image = None;
    for mut container in pod.objects("containers")? {
        image = image.or(container.text("image")?);
        container.leave(CONTAINER, losses);
    }
    let labels: &Fates = &[("metadata", Fate::Nothing("says which step it is"))];
    [inner, template].into_iter().for_each(|rest| rest.leave(labels, losses));
    [pod, spec].into_iter().for_each(|rest| rest.leave(&[], losses));
    job.leave(&[("dependsOn", Fate::Nothing("on what is named as lost"))], losses);
    Ok(image)
}
