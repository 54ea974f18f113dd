//! `trainyard check FILE…`: what the daemon would say. None is needed; one that answers says as well what the machine and the
//! workspace have no room for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::Exit;
use super::output::{self, Format};
use super::shelf::Shelf;
use super::show;
use crate::api::client::{Client, ClientError};
use crate::contract::advice;
use crate::ids::{JobKey, JobName};
use crate::intake::sources::{TEMPLATE_SUFFIX, Unread, is_mask};
use crate::spec::sweep::{in_each_other_s_way, told_once};
use crate::spec::{Diagnostic, JobSpec, Stack};

/// How long a daemon may take to say what it would.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

pub(super) async fn run(
    client: &Client,
    files: &[PathBuf],
    shelf: &Shelf,
    effective: bool,
    format: Format,
) -> anyhow::Result<Exit> {
    let (mut exit, mut answers) = (Exit::Success, true);
    for path in files {
        if is_mask(path) && !is_template(path) {
            tell_masked(path, format)?;
            continue;
        }
        if path.is_dir() {
            let check = || format!("is a directory; check its files: `trainyard check {}/*.toml`", path.display());
            let told = shelf.why_no_workspace(path).unwrap_or_else(check);
            output::error(&format!("{} {told}", path.display()));
            exit = Exit::Failure;
            continue;
        }
        let (mut found, jobs) = check(path, shelf);
        let is_good = !found.iter().any(Diagnostic::is_error);
        if answers && is_good {
            if let Err(why) = said_by_daemon(client, shelf, path, &jobs, &mut found).await {
                answers = false;
                output::aside(&output::plain(&unanswered(&why)));
            }
            found.dedup();
        }
        let is_refused = found.iter().any(Diagnostic::is_error);
        if is_refused {
            exit = Exit::Failure;
        }
        for diagnostic in &found {
            match format {
                Format::Json => output::json(diagnostic)?,
                Format::People => output::line(&diagnostic.to_string())?,
            }
        }
        // Where only the daemon has no room for it, there is something to run all the same.
        if is_good && format == Format::Json {
            output::json(&as_json(path, &jobs, effective))?;
        } else if is_good {
            let told = match (is_refused, found.is_empty()) {
                (true, _) => "is right by itself, but cannot run here as it is",
                (false, true) => "ok",
                (false, false) => "runs",
            };
            let sweep = if jobs.len() > 1 { format!(", a sweep of {} jobs", jobs.len()) } else { String::new() };
            output::line(&format!("{}: {told}{sweep}", path.display()))?;
            for Made { name, spec, .. } in &jobs {
                // The directory of the file may be that of a workspace.
                let file = path.with_file_name(format!("{name}.toml")).display().to_string();
                let lines = if effective { show::effective(&file, spec) } else { show::command_lines(&file, spec) };
                let head = if jobs.len() > 1 { format!("{name}\n") } else { String::new() };
                output::line(&format!("{head}{}", lines.trim_end()))?;
            }
        }
    }
    Ok(exit)
}

/// A good file and the jobs that it makes: what their tasks run, or all that they come to.
fn as_json(path: &Path, jobs: &[Made], effective: bool) -> Value {
    let job = |Made { name, spec, .. }: &Made| {
        let file = path.with_file_name(format!("{name}.toml")).display().to_string();
        let of = if effective { "spec" } else { "runs" };
        let told =
            if effective { show::effective_as_json(&file, spec) } else { show::command_lines_as_json(&file, spec) };
        json!({ "job": name, of: told })
    };
    json!({ "file": path, "jobs": jobs.iter().map(job).collect::<Vec<_>>() })
}

pub(super) fn is_template(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(TEMPLATE_SUFFIX))
}

/// Nothing is wrong with it, so there is no finding for programs.
fn tell_masked(path: &Path, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => Ok(()),
        Format::People => output::line(&format!("{}: masked by its link to /dev/null: no job runs", path.display())),
    }
}

/// A job that a file makes.
struct Made {
    name: JobName,
    /// All that it is made of, as one file.
    text: String,
    spec: JobSpec,
}

impl Made {
    /// Whether the machine has room for both or for none.
    fn takes_as_much_as(&self, other: &Self) -> bool {
        let wants = |made: &Self| -> Vec<_> {
            made.spec.roles.iter().map(|role| (role.count, role.resources.clone())).collect()
        };
        self.spec.network == other.spec.network && wants(self) == wants(other)
    }
}

/// Adds what a daemon refuses that is good by itself: it knows the machine, and what the workspace may have. Of a sweep one job is
/// asked about for each size. An error is why it does not answer, or no longer.
async fn said_by_daemon(
    client: &Client,
    shelf: &Shelf,
    path: &Path,
    jobs: &[Made],
    found: &mut Vec<Diagnostic>,
) -> Result<(), String> {
    let file = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
    let Some(key) = file.map(|job| JobKey::new(shelf.workspace_of(path), job)) else { return Ok(()) };
    for (number, made) in jobs.iter().enumerate() {
        if jobs[..number].iter().any(|other| made.takes_as_much_as(other)) {
            continue;
        }
        let said = match tokio::time::timeout(ANSWERS_WITHIN, client.check(&key, &made.text)).await {
            Ok(Ok(checked)) => checked.diagnostics,
            Ok(Err(ClientError::NotRunning { .. })) => return Ok(()),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("it has not answered within {} s", ANSWERS_WITHIN.as_secs())),
        };
        let errors = said.into_iter().filter(Diagnostic::is_error);
        found.extend(errors.map(|error| Diagnostic { file: path.display().to_string(), ..error }));
    }
    Ok(())
}

/// All that is to be said of what is to become the job file at `path`, by the daemon as well where one answers.
pub(super) async fn judge(
    client: &Client,
    shelf: &Shelf,
    path: &Path,
    stack: &Stack,
    name: &JobName,
) -> Vec<Diagnostic> {
    let (mut found, jobs) = check_stack(stack, name);
    if found.iter().any(Diagnostic::is_error) {
        return found;
    }
    if let Err(why) = said_by_daemon(client, shelf, path, &jobs, &mut found).await {
        output::aside(&output::plain(&unanswered(&why)));
    }
    found.dedup();
    found
}

fn unanswered(why: &str) -> String {
    format!("whether the machine has room for what follows the daemon does not say: {why}")
}

/// What there is to say, and the jobs that the file makes by their names.
fn check(path: &Path, shelf: &Shelf) -> (Vec<Diagnostic>, Vec<Made>) {
    let mut jobs = Vec::new();
    let file = path.display().to_string();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(TEMPLATE_SUFFIX).or_else(|| name.strip_suffix(".toml"));
    let job = stem.map(str::parse::<JobName>);
    let unread = shelf.why_unread(path).filter(|_| job.is_some());
    let mut found = match &job {
        _ if unread.is_some() => unread.iter().map(|why| Diagnostic::of_file(&file, why)).collect(),
        Some(Ok(_)) => Vec::new(),
        Some(Err(error)) => vec![Diagnostic::of_file(&file, format!("the file's name cannot name a job: {error}"))],
        None => vec![Diagnostic::of_file(&file, "the name of a job file ends with .toml")],
    };
    let unoffered = |error: anyhow::Error| Unread::Bad(vec![Diagnostic::of_file(&file, format!("{error:#}"))]);
    let read = if is_template(path) {
        shelf.reader(path).layer(path).and_then(|(layer, _)| {
            let mut stack = Stack::of_template(layer);
            shelf.offer(&mut stack, path).map_err(unoffered)?;
            Ok(stack.problems_of_template())
        })
    } else {
        let name = job.and_then(Result::ok).or_else(|| "job".parse().ok()).expect("a plain word is a name");
        shelf.reader(path).stack(path, &shelf.templates_of(path)).and_then(|(mut stack, _)| {
            shelf.offer(&mut stack, path).map_err(unoffered)?;
            let (found, made) = check_stack(&stack, &name);
            jobs = made;
            Ok(found)
        })
    };
    match read {
        Ok(more) | Err(Unread::Bad(more)) => found.extend(more),
        Err(Unread::Missing) => found.push(Diagnostic::of_file(
            &file,
            "cannot be read: there is no such file; `trainyard check` takes paths, of job files and templates",
        )),
        Err(Unread::Unfinished) => found.push(Diagnostic::of_file(&file, "is still being written")),
    }
    (found, jobs)
}

fn check_stack(stack: &Stack, name: &JobName) -> (Vec<Diagnostic>, Vec<Made>) {
    let one = |stack: &Stack, job: &JobName| {
        let expanded = stack.expand();
        let mut told = expanded.diagnostics;
        if let Some(good) = &expanded.spec {
            told.extend(advice::diagnostics(stack, name, good));
            told.extend(stack.awaits_itself(&[name, job], good));
        }
        (told, expanded.spec.map(|spec| Made { name: job.clone(), text: expanded.text, spec }))
    };
    let combinations = match stack.combinations(name) {
        Err(found) => return (found, Vec::new()),
        Ok(None) => {
            let (found, job) = one(stack, name);
            return (found, job.into_iter().collect());
        }
        Ok(Some(combinations)) => combinations,
    };
    let made = combinations.iter().map(|combination| one(&stack.with(combination), &combination.name));
    let (found, jobs): (Vec<_>, Vec<_>) = made.unzip();
    let mut found = told_once(found.into_iter().flatten());
    let named = combinations.iter().map(|combination| &combination.name).zip(&jobs);
    let named = named.filter_map(|(name, job)| Some((name, &job.as_ref()?.spec)));
    found.extend(in_each_other_s_way(&stack.job.file, named));
    (found, jobs.into_iter().flatten().collect())
}
