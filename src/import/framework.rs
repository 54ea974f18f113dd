//! Jobs of FrameworkController, which is OpenPAI's own controller on Kubernetes: kind `Framework`.

use std::collections::BTreeSet;

use super::draft::{Draft, DraftRole, Holds, RETRIES_MAX};
use super::fields::{Fate, Fates, Fields};
use super::node::Node;
use super::openpai_v1::{MIN_FAILED, bound, check_bounds, ends_at_once, set_policy, tell_of_tolerated};
use super::{ImportError, Imported, Loss, pod};
use crate::spec::Command;

const DOCUMENT: &Fates = &[
    ("apiVersion", Fate::Nothing("says the format")),
    ("kind", Fate::Nothing("says the format")),
    ("status", Fate::Nothing("written by the controller")),
];

const TASK: &Fates =
    &[("podGracefulDeletionTimeoutSec", Fate::Lost("write stop_grace, which counts for the whole job"))];

/// What tasks are told here as well, counted as the controller counts.
const GIVEN: [&str; 5] =
    ["FC_FRAMEWORK_NAME", "FC_TASKROLE_NAME", "FC_TASK_INDEX", "FC_FRAMEWORK_ATTEMPT_ID", "FC_TASK_ATTEMPT_ID"];

/// What else the controller tells its tasks.
const VARIABLES: [(&str, &str); 2] = [
    ("FC_", "there is no such variable here; see the table of variables in docs/JOBS.md"),
    ("FB_", "addresses are in $TRAINYARD_<ROLE>_HOSTS and need no waiting: all tasks of a job start together here"),
];

/// Older controllers call themselves a launcher; their jobs are alike.
pub(super) fn knows(version: &str, kind: &str) -> bool {
    let group = version.split('/').next().unwrap_or_default();
    kind == "Framework" && ["frameworkcontroller.microsoft.com", "launcher.microsoft.com"].contains(&group)
}

pub(super) fn read(document: Node) -> Result<Imported, ImportError> {
    let mut document = Fields::of(document, "")?;
    let mut metadata = document.object("metadata")?;
    let mut draft = Draft::new("a job of FrameworkController", pod::name(&mut metadata)?, "");
    pod::keep_metadata(metadata, &mut draft)?;
    let mut spec = document.object("spec")?;
    document.leave(DOCUMENT, &mut draft.losses);
    draft.description = spec.text("description")?.unwrap_or_default();
    draft.state = execution(&mut spec)?;
    let (field, count) = retries(&mut spec, &mut draft.losses)?;
    draft.retry(&field, count);
    for mut fields in spec.objects("taskRoles")? {
        let role = read_role(&mut fields, &mut draft)?;
        fields.leave(&[], &mut draft.losses);
        draft.roles.push(role);
    }
    draft.came_from(&spec, &[("roles", &["taskRoles"])]);
    ends_at_once(&mut draft.roles, &mut draft.losses);
    spec.leave(&[], &mut draft.losses);
    draft.finish()
}

/// The value of `state`, where it is not "run".
fn execution(spec: &mut Fields) -> Result<Option<String>, ImportError> {
    match spec.text("executionType")?.as_deref() {
        None | Some("Start") => Ok(None),
        Some("Create") => Ok(Some("held".to_owned())),
        Some("Stop") => Ok(Some("stopped".to_owned())),
        Some(other) => Err(spec.refuse("executionType", format!("is {other:?}, must be Start, Create or Stop"))),
    }
}

/// How often is tried again, and the field that says it.
fn retries(fields: &mut Fields, losses: &mut Vec<Loss>) -> Result<(String, i64), ImportError> {
    let mut policy = fields.object("retryPolicy")?;
    if policy.flag("fancyRetryPolicy")? == Some(true) {
        let why = "failures that may pass were tried again without being counted, others not at all; retry.on says which kinds are here";
        losses.push(policy.loss("fancyRetryPolicy", why));
    }
    let count = policy.number("maxRetryCount", -2)?.unwrap_or(0);
    let field = policy.at("maxRetryCount");
    policy.leave(&[], losses);
    Ok((field, count))
}

fn read_role(fields: &mut Fields, draft: &mut Draft) -> Result<DraftRole, ImportError> {
    let count = fields.number("taskNumber", 1)?.unwrap_or(1);
    let count = u32::try_from(count).map_err(|_| fields.refuse("taskNumber", "is too large"))?;
    let mut role = DraftRole::new(fields.needed("name")?, count);
    role.came_from(fields, &[("count", &["taskNumber"])]);
    role.holds_open(Holds::Yes);
    completion(&mut role, fields.object("frameworkAttemptCompletionPolicy")?, &mut draft.losses)?;
    let mut task = fields.object("task")?;
    let (field, count) = retries(&mut task, &mut draft.losses)?;
    match u32::try_from(count) {
        Ok(0) => {}
        Ok(count) if count <= RETRIES_MAX => role.try_again(count),
        _ => {
            let why =
                format!("{count} is no bound that retries of roles.{} can be: from 0 to {RETRIES_MAX}", role.name);
            draft.lose(field, why);
        }
    }
    let pod = pod::read(task.object("pod")?, &pod::Names::default(), &mut role, draft)?;
    if let Some(restarts) = pod.restarts {
        restarts.apply(None, &mut role, &mut draft.losses);
    }
    variables(&role, draft);
    task.leave(TASK, &mut draft.losses);
    Ok(role)
}

/// -1 is never; absent is what the controller's documents call the default.
fn completion(role: &mut DraftRole, mut fields: Fields, losses: &mut Vec<Loss>) -> Result<(), ImportError> {
    let failed = if fields.has("minFailedTaskCount") { bound(&mut fields, "minFailedTaskCount")? } else { Some(1) };
    set_policy(role, failed, bound(&mut fields, "minSucceededTaskCount")?);
    role.came_from(&fields, &[(MIN_FAILED, &["minFailedTaskCount"])]);
    check_bounds(role, &fields)?;
    tell_of_tolerated(role, fields.at("minFailedTaskCount"), losses);
    fields.leave(&[], losses);
    Ok(())
}

/// Tells what a command asks for and is not told here.
fn variables(role: &DraftRole, draft: &mut Draft) {
    let mut text = match &role.command {
        Command::Shell(text) => text.clone(),
        Command::Exec(words) => words.join(" "),
        Command::Default => String::new(),
    };
    text.push_str(&format!(" {}", role.arguments.join(" ")));
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("FC_") || word.starts_with("FB_")).collect();
    for name in asked {
        if GIVEN.contains(&name) || role.env.iter().any(|(known, _)| known == name) {
            continue;
        }
        let is_meant = |(begin, _): &&(&str, &str)| name.starts_with(begin);
        let advice = VARIABLES.iter().find(is_meant).map_or("", |(_, advice)| advice);
        let why = format!("its command asks for {name}: {advice}");
        draft.lose(format!("spec.taskRoles.{}.task.pod.spec.containers", role.name), why);
    }
}
