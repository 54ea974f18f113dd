//! The pod template that Volcano and Kubeflow jobs hold: the container that its operator means, or else the first, becomes a task.

use super::draft::{Draft, DraftRole};
use super::extras::to_toml;
use super::fields::{Fate, Fates, Fields, LOGIN};
use super::node::Node;
use super::quantity::{bytes, quantity};
use super::{ImportError, Loss, command};
use crate::ids::Bytes;

const CLUSTER: Fate = Fate::Nothing("where and how a cluster runs a pod");
const PROBE: Fate = Fate::Lost("nothing asks a running task how it is; its end counts");

const METADATA: &Fates = &[
    ("labels", Fate::Nothing("only selectors of Kubernetes read them on a pod")),
    ("annotations", Fate::Nothing("only controllers of Kubernetes read them on a pod")),
    ("name", Fate::Nothing("the controller names the pods")),
    ("creationTimestamp", Fate::Nothing("written by Kubernetes")),
    ("namespace", Fate::Nothing("the job's own counts")),
];

const TEMPLATE: &Fates =
    &[("apiVersion", Fate::Nothing("a template is a pod's")), ("kind", Fate::Nothing("a template is a pod's"))];

const POD: &Fates = &[
    ("schedulerName", CLUSTER),
    ("dnsPolicy", CLUSTER),
    ("tolerations", CLUSTER),
    ("affinity", Fate::Lost("one machine: tasks cannot be placed")),
    ("imagePullSecrets", LOGIN),
    ("initContainers", Fate::Lost("do it at the beginning of the command")),
    ("serviceAccountName", Fate::Lost("there is no API of Kubernetes here")),
    ("serviceAccount", Fate::Lost("there is no API of Kubernetes here")),
    ("automountServiceAccountToken", CLUSTER),
    ("enableServiceLinks", CLUSTER),
    ("priorityClassName", Fate::Lost("write priority = \"low\", \"normal\" or \"high\"")),
    ("priorityClass", Fate::Lost("write priority = \"low\", \"normal\" or \"high\"")),
    ("activeDeadlineSeconds", Fate::Lost("write max_duration, which counts for the whole job")),
    ("terminationGracePeriodSeconds", Fate::Lost("write stop_grace, which counts for the whole job")),
    ("hostPID", Fate::Lost("tasks do not see the machine's processes")),
    ("hostIPC", Fate::Lost("tasks have a /dev/shm of their own; network = \"job\" lets them share one")),
    ("runtimeClassName", CLUSTER),
];

const CONTAINER: &Fates = &[
    ("name", Fate::Nothing("the task is named by its role")),
    ("imagePullPolicy", Fate::Nothing("an image that is not here is brought")),
    ("terminationMessagePath", CLUSTER),
    ("terminationMessagePolicy", CLUSTER),
    ("stdin", CLUSTER),
    ("tty", CLUSTER),
    ("envFrom", Fate::Lost("write these variables into [env], secrets into files")),
    ("lifecycle", Fate::Lost("do it in the command")),
    ("livenessProbe", PROBE),
    ("readinessProbe", PROBE),
    ("startupProbe", PROBE),
];

const PORT: &Fates = &[
    ("containerPort", Fate::Nothing("a task has an address of its own: what it listens on need not be declared")),
    ("name", Fate::Nothing("as containerPort")),
    ("protocol", Fate::Nothing("as containerPort")),
];

/// What starts failed containers again: `restartPolicy`, with the field that says it.
pub(super) struct Restarts {
    field: String,
    policy: String,
    /// The policy as people are told of it.
    told: String,
}

impl Restarts {
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, ImportError> {
        let field = fields.at("restartPolicy");
        Ok(fields.text("restartPolicy")?.map(|policy| Self { field, told: policy.clone(), policy }))
    }

    /// What the controller takes where the file says nothing.
    pub(super) fn filled_in(fields: &Fields, policy: &str) -> Self {
        let told = format!("{policy}, which the operator fills in,");
        Self { field: fields.at("restartPolicy"), policy: policy.to_owned(), told }
    }

    pub(super) fn is_never(&self) -> bool {
        self.policy == "Never"
    }

    /// Tasks of the role are started again as containers are there, `most` times if something bounds it.
    pub(super) fn apply(self, most: Option<u32>, role: &mut DraftRole, losses: &mut Vec<Loss>) {
        let Self { field, policy, told } = self;
        let key = format!("retries of roles.{}", role.name);
        let why = match (policy.as_str(), most) {
            ("Never", _) | (_, Some(0)) => return,
            (_, None) => {
                format!("{told} starts a failed container again without an end; {key} is an upper bound: set it")
            }
            ("Always", Some(_)) => format!("Always starts a container that succeeded again as well; {key} does not"),
            ("ExitCode", Some(_)) => {
                format!("ExitCode starts a container again after codes from 128 on; {key} after any failure")
            }
            (_, Some(most)) => return role.try_again(most),
        };
        most.into_iter().for_each(|most| role.try_again(most));
        losses.push(Loss { field, line: 0, why });
    }
}

/// What an operator looks for in a pod by its name.
#[derive(Default)]
pub(super) struct Names<'n> {
    /// Of the container that does the work.
    pub(super) container: Option<&'n str>,
    /// Of the port at which tasks are told to meet.
    pub(super) port: Option<&'n str>,
}

/// What is left to the caller.
pub(super) struct Pod {
    /// What starts its container again.
    pub(super) restarts: Option<Restarts>,
    pub(super) meeting: Option<Meeting>,
}

/// The port that an operator tells tasks of.
pub(super) struct Meeting {
    pub(super) port: u16,
    pub(super) field: String,
    pub(super) line: usize,
}

/// Reads `template` and fills in what the role runs and may use.
pub(super) fn read(
    mut template: Fields,
    names: &Names<'_>,
    role: &mut DraftRole,
    draft: &mut Draft,
) -> Result<Pod, ImportError> {
    template.object("metadata")?.leave(METADATA, &mut draft.losses);
    let mut pod = template.object("spec")?;
    template.leave(TEMPLATE, &mut draft.losses);
    let restarts = Restarts::take(&mut pod)?;
    if pod.flag("hostNetwork")? == Some(true) {
        draft.network = Some("host".to_owned());
    }
    let mut containers = pod.objects("containers")?;
    if containers.is_empty() {
        return Err(pod.refuse("containers", "is missing"));
    }
    // Others may be put before it: proxies and the like.
    let is_meant = |container: &Fields| names.container.is_some_and(|name| container.says("name", name));
    let mut container = containers.remove(containers.iter().position(is_meant).unwrap_or(0));
    for other in containers {
        draft.losses.push(other.loss("name", "a task has one container; what this one does belongs into the command"));
    }
    let security = [pod.object("securityContext")?, container.object("securityContext")?];
    security.into_iter().try_for_each(|security| user(security, role, &mut draft.losses))?;
    volumes(&mut pod, &mut container, role, &mut draft.losses)?;
    let mut selector = pod.object("nodeSelector")?;
    let product = selector.text(PRODUCT)?;
    for name in selector.names() {
        draft.losses.push(selector.loss(&name, "one machine: tasks cannot be placed"));
    }
    pod.leave(POD, &mut draft.losses);
    let meeting = read_container(container, names, role, &mut draft.losses)?;
    role.resources.gpu_type = product.filter(|_| role.resources.gpu.is_some_and(|count| count > 0));
    Ok(Pod { restarts, meeting })
}

/// What a container or a trainer runs: `image`, `command`, `args`, `env`, `workingDir`.
pub(super) fn runs(container: &mut Fields, role: &mut DraftRole, losses: &mut Vec<Loss>) -> Result<(), ImportError> {
    role.image = container.text("image")?;
    let elsewhere = environment(container, role, losses)?;
    command::read(container, elsewhere, role, losses)
}

fn read_container(
    mut container: Fields,
    names: &Names<'_>,
    role: &mut DraftRole,
    losses: &mut Vec<Loss>,
) -> Result<Option<Meeting>, ImportError> {
    runs(&mut container, role, losses)?;
    let mut meeting = None;
    for mut port in container.objects("ports")? {
        if port.has("hostPort") {
            losses.push(port.loss("hostPort", "write ports with begin for a port of the machine"));
        }
        port.take("hostPort");
        if names.port.is_some_and(|name| port.says("name", name)) {
            meeting = meets_at(&mut port)?;
        }
        port.leave(PORT, losses);
    }
    let asked = container.object("resources")?;
    resources(asked, role, losses)?;
    container.leave(CONTAINER, losses);
    Ok(meeting)
}

fn meets_at(port: &mut Fields) -> Result<Option<Meeting>, ImportError> {
    let Some(number) = port.number("containerPort", 1)? else { return Ok(None) };
    let number =
        u16::try_from(number).map_err(|_| port.refuse("containerPort", format!("is {number}, which is no port")))?;
    let (field, line) = (port.at("containerPort"), port.place_of("containerPort").line);
    Ok(Some(Meeting { port: number, field, line }))
}

fn user(mut security: Fields, role: &mut DraftRole, losses: &mut Vec<Loss>) -> Result<(), ImportError> {
    let group = security.whole("runAsGroup")?;
    match (security.whole("runAsUser")?, group) {
        (Some(user), Some(group)) => role.user = Some(format!("{user}:{group}")),
        (Some(user), None) => role.user = Some(user.to_string()),
        (None, Some(_)) => losses.push(security.loss("runAsGroup", "write user = \"USER:GROUP\"")),
        (None, None) => {}
    }
    for name in security.names() {
        losses.push(security.loss(&name, "what tasks may do is the same for all of them"));
    }
    Ok(())
}

/// Returns the names of variables that Kubernetes fills in.
fn environment(
    container: &mut Fields,
    role: &mut DraftRole,
    losses: &mut Vec<Loss>,
) -> Result<Vec<String>, ImportError> {
    let (mut elsewhere, mut room) = (Vec::new(), command::ROOM);
    for mut entry in container.objects("env")? {
        let name = entry.needed("name")?;
        if entry.has("valueFrom") {
            let why = from(&name, entry.take("valueFrom"));
            losses.push(entry.loss("valueFrom", why));
            role.env.retain(|(known, _)| *known != name);
            elsewhere.push(name);
        } else {
            let text = entry.text("value")?.unwrap_or_default();
            let (value, missing) = command::value(&text, &role.env, &mut room);
            for other in missing {
                let why = match elsewhere.contains(&other) {
                    true => format!("{other} comes from elsewhere in the cluster; write what it stands for"),
                    false => {
                        "no variable that is set before has that name, or the value would grow too long".to_owned()
                    }
                };
                losses.push(entry.loss("value", format!("$({other}) in it stays as it is: {why}")));
            }
            // Of two that are called alike Kubernetes takes the last.
            role.env.retain(|(known, _)| *known != name);
            elsewhere.retain(|known| *known != name);
            role.env.push((name, value));
        }
        entry.leave(&[], losses);
    }
    Ok(elsewhere)
}

fn from(name: &str, source: Option<Node>) -> String {
    let secret = source.is_some_and(|node| node.get("secretKeyRef").is_some());
    match secret {
        true => format!("{name} comes from a secret; keep it in a file and read that in the command"),
        false => format!("{name} is filled in by Kubernetes; set it in [env] or in the command"),
    }
}

/// As NVIDIA's feature discovery labels a node: the name of its cards, with "-" for " ".
const PRODUCT: &str = "nvidia.com/gpu.product";
/// As NVIDIA's device plugin names slices: `nvidia.com/mig-1g.10gb`.
const SLICES: &str = "nvidia.com/mig-";
/// As HAMi and Volcano name shares of a card's memory, in MiB.
const SHARES: [&str; 2] = ["nvidia.com/gpumem", "volcano.sh/vgpu-memory"];

/// Limits are what a task gets; requests count where there is no limit.
pub(super) fn resources(mut asked: Fields, role: &mut DraftRole, losses: &mut Vec<Loss>) -> Result<(), ImportError> {
    let mut limits = asked.object("limits")?;
    let mut requests = asked.object("requests")?;
    let slices = limits.names().into_iter().chain(requests.names()).find(|name| name.starts_with(SLICES));
    let mut one = |name: &str, losses: &mut Vec<Loss>| -> Result<Option<String>, ImportError> {
        let (limit, request) = (limits.text(name)?, requests.text(name)?);
        if let (Some(limit), Some(request)) = (&limit, &request)
            && quantity(limit) != quantity(request)
        {
            losses.push(requests.loss(name, format!("{request}; a task here has its limit, {limit}, for itself")));
        }
        Ok(limit.or(request))
    };
    let cpu = one("cpu", losses)?;
    let memory = one("memory", losses)?;
    let gpu = one("nvidia.com/gpu", losses)?;
    let shares = SHARES.iter().map(|name| one(name, losses)).collect::<Result<Vec<_>, _>>()?;
    let share = SHARES.iter().zip(shares).find_map(|(name, text)| Some((*name, text?)));
    let sliced = slices.as_deref().map(|name| one(name, losses)).transpose()?.flatten();
    let bad = |name: &str, text: &str| {
        let of = if limits.is_known(name) { &limits } else { &requests };
        of.refuse(name, format!("{text:?} is no quantity of Kubernetes"))
    };
    let number =
        |name: &str, text: Option<String>| text.map(|text| quantity(&text).ok_or_else(|| bad(name, &text))).transpose();
    role.resources.cpu = number("cpu", cpu)?;
    // Kubernetes itself takes no parts of such a resource.
    let whole = |name: &str, text: Option<String>| match number(name, text)? {
        Some(count) if count.fract() != 0.0 => {
            let of = if limits.is_known(name) { &limits } else { &requests };
            Err(of.refuse(name, format!("is {count}, and only whole numbers of it can be had{}", part_of(name))))
        }
        count => Ok(count.map(|count| count as u64)),
    };
    role.resources.gpu = whole("nvidia.com/gpu", gpu)?;
    if let (Some(name), Some(text)) = (&slices, sliced) {
        role.resources.gpu = whole(name, Some(text))?;
        // Where a profile has a "+", a name of a resource has a ".".
        role.resources.mig = Some(name.replacen(SLICES, "", 1).replace(".me", "+me"));
    }
    if let Some((name, text)) = share {
        role.resources.gpu_memory = whole(name, Some(text))?.map(Bytes::mib);
    }
    role.resources.memory = memory.map(|text| bytes(&text).ok_or_else(|| bad("memory", &text))).transpose()?;
    if role.resources.memory.is_none() {
        losses.push(asked.loss(
            "limits.memory",
            "none is set, so there was no limit; a task gets 1GiB here unless resources.memory says more",
        ));
    }
    if role.resources.cpu.is_none() {
        losses.push(asked.loss(
            "limits.cpu",
            "none is set, so there was no limit; a task gets 1 core here unless resources.cpu says more",
        ));
    }
    for name in limits.names() {
        losses.push(limits.loss(&name, "there is no such resource here"));
    }
    let fresh: Vec<String> = requests.names().into_iter().filter(|name| !limits.has(name)).collect();
    for name in fresh {
        losses.push(requests.loss(&name, "there is no such resource here"));
    }
    let limited = [("resources.cpu", "cpu"), ("resources.memory", "memory"), ("resources.gpu", "nvidia.com/gpu")];
    for (key, name) in limited {
        let of = if limits.is_known(name) { &limits } else { &requests };
        role.came_from(of, &[(key, &[name])]);
    }
    asked.leave(&[], losses);
    Ok(())
}

/// What to write instead, where there is something.
fn part_of(name: &str) -> &'static str {
    match name {
        "nvidia.com/gpu" => {
            "; a part of one card is asked for by its memory, nvidia.com/gpumem, or by a slice, nvidia.com/mig-…"
        }
        _ => "",
    }
}

/// What volumes of a kind become.
const VOLUMES: [(&str, &str); 5] = [
    ("emptyDir", "is empty at the start; /tmp and the container's own disk do for that"),
    ("configMap", "put these files into the workspace's code/NAME and write code = \"NAME\""),
    ("secret", "put these files where only the job's owner reads them"),
    (
        "hostPath",
        "put the files into the workspace's datasets/NAME and write datasets = [\"NAME\"], or results into /output",
    ),
    ("nfs", "mount it on the machine, put it into datasets/NAME and write datasets = [\"NAME\"]"),
];
const VOLUME: &str =
    "put the files into the workspace's datasets/NAME and write datasets = [\"NAME\"], or results into /output";

fn volumes(
    pod: &mut Fields,
    container: &mut Fields,
    role: &mut DraftRole,
    losses: &mut Vec<Loss>,
) -> Result<(), ImportError> {
    let mut mounts = Vec::new();
    for mut mount in container.objects("volumeMounts")? {
        mounts.push((mount.needed("name")?, mount.text("mountPath")?.unwrap_or_default()));
    }
    let mut declared = Vec::new();
    for mut volume in pod.objects("volumes")? {
        let name = volume.needed("name")?;
        declared.push(name.clone());
        let paths: Vec<String> = mounts.iter().filter(|(of, _)| *of == name).map(|(_, path)| path.clone()).collect();
        let memory = volume.object("emptyDir")?;
        // Only others see what this container does not mount, and these are told themselves.
        if is_shm(memory, &paths, role)? || paths.is_empty() {
            continue;
        }
        let kind = volume.names().into_iter().next().unwrap_or_else(|| "emptyDir".to_owned());
        let advice = VOLUMES.iter().find(|(known, _)| *known == kind).map_or(VOLUME, |(_, advice)| advice);
        losses.push(volume.loss(&kind, format!("{name:?}, mounted at {}: {advice}", paths.join(", "))));
    }
    for (name, path) in mounts.iter().filter(|(name, _)| !declared.contains(name)) {
        losses.push(
            container.loss("volumeMounts", format!("{name:?}, mounted at {path}, is no volume of this file: {VOLUME}")),
        );
    }
    Ok(())
}

/// The usual way to a larger `/dev/shm`.
fn is_shm(mut volume: Fields, paths: &[String], role: &mut DraftRole) -> Result<bool, ImportError> {
    let memory = volume.text("medium")?.as_deref() == Some("Memory");
    if !memory || paths != ["/dev/shm"] {
        return Ok(false);
    }
    if let Some(limit) = volume.text("sizeLimit")? {
        let size = bytes(&limit).ok_or_else(|| volume.refuse("sizeLimit", "is no quantity of Kubernetes"))?;
        role.resources.shm = Some(size);
    }
    Ok(true)
}

/// `metadata` of a job: its name; labels and annotations go to `extras`.
pub(super) fn name(metadata: &mut Fields) -> Result<String, ImportError> {
    if metadata.has("name") {
        return metadata.needed("name");
    }
    match metadata.text("generateName")? {
        Some(prefix) => Ok(prefix.trim_end_matches('-').to_owned()),
        None => Err(metadata.refuse("name", "is missing")),
    }
}

const JOB_METADATA: &Fates = &[
    ("creationTimestamp", Fate::Nothing("written by Kubernetes")),
    ("resourceVersion", Fate::Nothing("written by Kubernetes")),
    ("uid", Fate::Nothing("written by Kubernetes")),
    ("selfLink", Fate::Nothing("written by Kubernetes")),
    ("generation", Fate::Nothing("written by Kubernetes")),
    ("managedFields", Fate::Nothing("written by Kubernetes")),
    ("generateName", Fate::Lost("no letters are added to a job's name")),
];

/// The object once more, which `kubectl apply` leaves for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(super) fn keep_metadata(mut metadata: Fields, draft: &mut Draft) -> Result<(), ImportError> {
    if let Some(space) = metadata.text("namespace")?.filter(|space| space != "default") {
        draft.losses.push(metadata.loss("namespace", format!("{space:?}: put the job file into jobs.d/WORKSPACE/")));
    }
    for name in ["labels", "annotations"] {
        let path = metadata.at(name);
        let mut value = metadata.take(name).and_then(|node| to_toml(&node, &path, &mut draft.losses));
        if let Some(toml::Value::Table(entries)) = &mut value {
            entries.remove(LAST_APPLIED);
            value = value.filter(|value| value.as_table().is_none_or(|entries| !entries.is_empty()));
        }
        draft.extras.extend(value.map(|value| (name.to_owned(), value)));
    }
    metadata.leave(JOB_METADATA, &mut draft.losses);
    Ok(())
}
