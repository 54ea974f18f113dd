//! Volcano's jobs: `batch.volcano.sh/v1alpha1`, kind `Job`.

use std::collections::BTreeSet;

use super::draft::{Draft, DraftRole, Holds, RETRIES_MAX};
use super::fields::{Fate, Fates, Fields};
use super::node::Node;
use super::{ImportError, Imported, Loss, pod};
use crate::spec::{Main, MinSucceeded};

/// How often Volcano starts a job anew without `maxRetry`.
const MAX_RETRY: i64 = 3;
/// `MASTER_PORT` of the plugin `pytorch`, here as well.
const TORCH_PORT: &str = "23456";
const TOGETHER: &str = "all tasks of a job start together here";

const DOCUMENT: &Fates = &[
    ("apiVersion", Fate::Nothing("says the format")),
    ("kind", Fate::Nothing("says the format")),
    ("status", Fate::Nothing("written by Volcano")),
];

const SPEC: &Fates = &[
    ("schedulerName", Fate::Nothing("there is one scheduler")),
    (
        "queue",
        Fate::Lost("one machine has one queue; the job file's directory says which workspace, priority which place"),
    ),
    ("priorityClassName", Fate::Lost("write priority = \"low\", \"normal\" or \"high\"")),
    ("ttlSecondsAfterFinished", Fate::Lost("records stay until `trainyard rm`")),
    (
        "volumes",
        Fate::Lost(
            "put the files into the workspace's datasets/NAME and write datasets = [\"NAME\"], or results into /output",
        ),
    ),
    ("runningEstimate", Fate::Lost("write expected_duration")),
    ("networkTopology", Fate::Lost("one machine: there is nothing to choose")),
];

const TASK: &Fates = &[
    ("topologyPolicy", Fate::Lost("one machine: there is nothing to choose")),
    ("dependsOn", Fate::Lost("all tasks of a job start together here; let the command wait for the others")),
];

/// Plugins by what becomes of them.
const PLUGINS: [(&str, Plugin); 7] = [
    ("env", Plugin::Contract),
    ("svc", Plugin::Contract),
    ("pytorch", Plugin::Framework("pytorch")),
    ("tensorflow", Plugin::Framework("tensorflow")),
    ("mpi", Plugin::Framework("mpi")),
    ("ssh", Plugin::Lost("no keys are made: tasks cannot log in to each other unless the image brings that")),
    ("ray", Plugin::Lost("start Ray in the commands; the head is at $VC_HEAD_HOSTS")),
];

#[derive(Clone, Copy)]
enum Plugin {
    /// Its variables are those of `contract = "volcano"`.
    Contract,
    Framework(&'static str),
    Lost(&'static str),
}

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut document = Fields::of(document, "")?;
    let mut metadata = document.object("metadata")?;
    let mut draft = Draft::new("a job of Volcano", pod::name(&mut metadata)?, "volcano");
    pod::keep_metadata(metadata, &mut draft)?;
    let mut spec = document.object("spec")?;
    document.leave(DOCUMENT, &mut draft.losses);
    // What Volcano makes of 0 is what it makes of nothing.
    let retry = spec.number("maxRetry", 0)?.filter(|retry| *retry > 0);
    let policies = policies(&mut spec)?;
    let ranks = plugins(&mut spec, &mut draft)?;
    let anew = tasks(&mut spec, &policies, &mut draft)?;
    draft.came_from(&spec, &[("roles", &["tasks"]), ("retries", &["maxRetry"])]);
    retries(retry, &anew, &spec, &mut draft);
    ranks.order(&mut draft);
    for policy in policies {
        apply(policy, &mut draft.roles, &mut draft.losses);
    }
    availability(&mut spec, &mut draft)?;
    spec.leave(SPEC, &mut draft.losses);
    draft.finish()
}

struct Policy {
    events: Vec<String>,
    action: String,
    field: String,
}

/// What follows where a task fails: the first rule of its own that is about it, or else of the job.
fn on_failure<'p>(own: &'p [Policy], of_job: &'p [Policy]) -> Option<&'p str> {
    let is_about = |policy: &&Policy| policy.events.iter().any(|event| event == "PodFailed" || event == "*");
    own.iter().chain(of_job).find(is_about).map(|policy| policy.action.as_str())
}

/// `maxRetry` counts where the failure of a task starts the job anew; `anew` says of which it does.
fn retries(most: Option<i64>, anew: &[(String, bool)], spec: &Fields, draft: &mut Draft) {
    let others: Vec<&str> = anew.iter().filter(|(_, anew)| !anew).map(|(name, _)| name.as_str()).collect();
    if others.len() == anew.len() {
        let why = "no policy starts the job anew when a task fails; write retries if that is wanted";
        draft.losses.extend(most.map(|most| spec.loss("maxRetry", format!("{most}: {why}"))));
        return;
    }
    draft.retry("spec.maxRetry", most.unwrap_or(MAX_RETRY));
    if !others.is_empty() {
        let why = format!(
            "RestartJob when a task fails, but not one of {}: retries starts the job anew whichever fails",
            others.join(", ")
        );
        draft.losses.push(spec.loss("tasks", why));
    }
}

/// One event has one action, as Volcano's own admission wants it.
fn policies(fields: &mut Fields) -> Result<Vec<Policy>, ImportError> {
    let mut seen = BTreeSet::new();
    let mut policies = Vec::new();
    for mut policy in fields.objects("policies")? {
        let mut events = policy.texts("events")?;
        events.extend(policy.text("event")?);
        events.extend(policy.text("exitCode")?.map(|code| format!("exit code {code}")));
        if let Some(twice) = events.iter().find(|event| !seen.insert((*event).clone())) {
            return Err(policy.refuse("event", format!("{twice} has an action already")));
        }
        let action = policy.needed("action")?;
        let field = policy.path().to_owned();
        if let Some(timeout) = policy.text("timeout")? {
            events.push(format!("after {timeout}"));
        }
        policies.push(Policy { events, action, field });
    }
    Ok(policies)
}

/// What a policy comes to for the roles that it is about.
fn apply(policy: Policy, roles: &mut [DraftRole], losses: &mut Vec<Loss>) {
    let Policy { events, action, field } = policy;
    if events == ["*"] && ["RestartJob", "AbortJob", "TerminateJob"].contains(&action.as_str()) {
        let why = format!("* → {action} is so here for tasks that fail; when one completes, the job goes on");
        losses.push(Loss { field, line: 0, why });
        return;
    }
    let mut strange = Vec::new();
    for event in events {
        match (event.as_str(), action.as_str()) {
            ("TaskCompleted", "CompleteJob") => roles.iter_mut().for_each(|role| role.main = Main::Role),
            // A failed task ends the attempt by itself, and retries starts the job anew.
            ("PodFailed" | "TaskFailed", "AbortJob" | "TerminateJob") | ("PodFailed", "RestartJob") => {}
            // Nothing evicts tasks here; what the machine has lost is tried again.
            ("PodEvicted", "RestartJob" | "RestartTask" | "RestartPod") => {}
            _ => strange.push(event),
        }
    }
    if !strange.is_empty() {
        let why = format!(
            "{} → {action}: there is no such rule here; see min_failed, min_succeeded and retries",
            strange.join(", ")
        );
        losses.push(Loss { field, line: 0, why });
    }
}

fn plugins(spec: &mut Fields, draft: &mut Draft) -> Result<Ranks, ImportError> {
    let mut plugins = spec.object("plugins")?;
    let mut ranks = Ranks::default();
    let starts_ranks = plugins.names().iter().any(|name| name == "mpi");
    for name in plugins.names() {
        let mut arguments = plugins.texts(&name)?;
        if name == "pytorch" {
            ranks.master = take_flag(&mut arguments, "master");
            ranks.worker = take_flag(&mut arguments, "worker");
            let port = take_flag(&mut arguments, "port").filter(|port| port != TORCH_PORT);
            draft.env.extend(port.map(|port| ("MASTER_PORT".to_owned(), port)));
        }
        match PLUGINS.iter().find(|(known, _)| *known == name).map(|(_, plugin)| *plugin) {
            Some(Plugin::Contract) => {}
            Some(Plugin::Framework(framework)) => draft.framework = Some(framework),
            // Ranks are started without it.
            Some(Plugin::Lost(_)) if name == "ssh" && starts_ranks => {}
            Some(Plugin::Lost(why)) => draft.losses.push(plugins.loss(&name, why)),
            None => draft.losses.push(plugins.loss(&name, "there is no such plugin here")),
        }
        if !arguments.is_empty() {
            draft.losses.push(plugins.loss(&name, format!("its arguments: {}", arguments.join(" "))));
        }
    }
    Ok(ranks)
}

/// A flag of a plugin, as Go reads it: one dash or two, the value behind `=` or by itself.
fn take_flag(arguments: &mut Vec<String>, name: &str) -> Option<String> {
    let named = |argument: &String| argument.trim_start_matches('-').split('=').next() == Some(name);
    let place = arguments.iter().position(|argument| argument.starts_with('-') && named(argument))?;
    let flag = arguments.remove(place);
    match flag.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => (place < arguments.len()).then(|| arguments.remove(place)),
    }
}

/// The tasks that the plugin `pytorch` counts ranks of, where it is told their names.
#[derive(Default)]
struct Ranks {
    master: Option<String>,
    worker: Option<String>,
}

impl Ranks {
    /// Ranks are counted in the order of the roles, so the one that leads stands first.
    fn order(self, draft: &mut Draft) {
        let place = |draft: &Draft, name: &str| draft.roles.iter().position(|role| role.name == name);
        for (flag, name) in [("master", &self.master), ("worker", &self.worker)] {
            if let Some(name) = name.as_ref().filter(|name| place(draft, name).is_none()) {
                draft.lose("spec.plugins.pytorch", format!("its argument --{flag}={name} names no task of this job"));
            }
        }
        if let Some(place) = self.master.and_then(|name| place(draft, &name)) {
            draft.roles[..=place].rotate_right(1);
        }
    }
}

/// Returns the names of the tasks, with whether their failure starts the job anew.
fn tasks(spec: &mut Fields, of_job: &[Policy], draft: &mut Draft) -> Result<Vec<(String, bool)>, ImportError> {
    let mut anew = Vec::new();
    for (index, mut task) in spec.objects("tasks")?.into_iter().enumerate() {
        let name = task.text("name")?.unwrap_or_else(|| format!("default{index}"));
        if draft.roles.iter().any(|role| role.name == name) {
            return Err(task.refuse("name", format!("{name:?} is the name of another task of this job")));
        }
        let replicas = task.number("replicas", 1)?.unwrap_or(1);
        let count = u32::try_from(replicas).map_err(|_| task.refuse("replicas", "is too large"))?;
        let mut role = DraftRole::new(name, count);
        role.came_from(&task, &[("count", &["replicas"])]);
        role.holds_open(Holds::Yes);
        if let Some(least) = task.number("minAvailable", 0)? {
            if least > replicas {
                return Err(task.refuse("minAvailable", format!("is {least}, more than its {replicas} replicas")));
            }
            if least < replicas {
                draft.losses.push(task.loss("minAvailable", TOGETHER));
            }
        }
        let own = policies(&mut task)?;
        let most = task.number("maxRetry", -1)?;
        let pod = pod::read(task.object("template")?, &pod::Names::default(), &mut role, draft)?;
        again(pod.restarts, most, &task, &mut role, &mut draft.losses);
        anew.push((role.name.clone(), on_failure(&own, of_job) == Some("RestartJob")));
        for policy in own {
            apply(policy, std::slice::from_mut(&mut role), &mut draft.losses);
        }
        task.leave(TASK, &mut draft.losses);
        if draft.framework == Some("mpi") {
            role.waits_for_ranks(&mut draft.losses);
        }
        draft.roles.push(role);
    }
    Ok(anew)
}

/// `maxRetry` bounds how often containers of the task are started again, which `restartPolicy: Never` forbids.
fn again(
    restarts: Option<pod::Restarts>,
    most: Option<i64>,
    task: &Fields,
    role: &mut DraftRole,
    losses: &mut Vec<Loss>,
) {
    let bound = match most {
        // What Volcano makes of 0.
        Some(0) => Some(MAX_RETRY),
        most => most.filter(|most| *most > 0),
    };
    let bound = bound.map(|bound| u32::try_from(bound).unwrap_or(u32::MAX));
    let key = format!("retries of roles.{}", role.name);
    let why = match (&restarts, bound) {
        (Some(restarts), Some(_)) if restarts.is_never() => {
            Some(format!("with restartPolicy Never no container is started again; write {key} if that is wanted"))
        }
        (_, Some(bound)) if bound > RETRIES_MAX => Some(format!("is {bound}; {key} is {RETRIES_MAX} at most")),
        (None, None) if most.is_some() => Some(format!("is without an end; {key} is an upper bound: set it")),
        _ => None,
    };
    losses.extend(why.map(|why| task.loss("maxRetry", why)));
    let bound = bound.map(|bound| bound.min(RETRIES_MAX));
    match restarts {
        Some(restarts) => restarts.apply(bound, role, losses),
        None => bound.into_iter().for_each(|bound| role.try_again(bound)),
    }
}

fn availability(spec: &mut Fields, draft: &mut Draft) -> Result<(), ImportError> {
    let total: i64 = draft.roles.iter().map(|role| i64::from(role.count)).sum();
    if let Some(least) = spec.number("minAvailable", 0)? {
        if least > total {
            return Err(spec.refuse("minAvailable", format!("is {least}, more than the {total} replicas of all tasks")));
        }
        if least < total {
            draft.losses.push(spec.loss("minAvailable", format!("{least} of {total} would do to start; {TOGETHER}")));
        }
    }
    let Some(least) = spec.number("minSuccess", 1)? else { return Ok(()) };
    match (draft.roles.as_mut_slice(), u32::try_from(least)) {
        ([role], Ok(least)) => role.min_succeeded = MinSucceeded::Count(least),
        _ => draft.losses.push(
            spec.loss("minSuccess", format!("{least} of all tasks; write min_succeeded for the role that decides")),
        ),
    }
    Ok(())
}
