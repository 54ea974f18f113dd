//! Names that a shell completes, from the daemon as it runs: `source <(COMPLETE=bash trainyard)`, also zsh and fish.

use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::ps::name;
use super::shelf::Shelf;
use crate::api::client::{Client, ClientError};
use crate::api::wire::JobQuery;
use crate::assets::{DRAFT, MANIFEST, SHARED};
use crate::config::Paths;
use crate::ids::{AssetName, JobKey, JobName, WorkspaceName};
use crate::report::JobReport;
use crate::secrets::Secrets;

/// A shell must not hang at a daemon that does.
const PATIENCE: Duration = Duration::from_secs(2);

/// What may stand in a place of the line. None where nobody answers: a shell shows no errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// Jobs, with what each is up to.
    Jobs,
    /// Jobs and, once one is named, its tasks.
    Targets,
    /// Jobs, and tasks of the job that is typed, each with the colon that a path in it follows.
    Places,
    Workspaces,
    Templates,
    /// Also those that everybody sees.
    Datasets,
    /// With `@VERSION`.
    Versions,
    Models,
    Images,
    Secrets,
    Tokens,
}

impl Named {
    pub(super) fn completer(self) -> ArgValueCompleter {
        ArgValueCompleter::new(move |typed: &OsStr| self.candidates(typed))
    }

    fn candidates(self, typed: &OsStr) -> Vec<CompletionCandidate> {
        let Some(typed) = typed.to_str() else { return Vec::new() };
        let all = self.all(&Line::typed(), typed).unwrap_or_default().into_iter();
        let fitting = all.filter(|(name, _)| name.starts_with(typed) && is_plain_word(name));
        fitting.map(|(name, help)| CompletionCandidate::new(name).help(help.map(Into::into))).collect()
    }

    /// Names, with a word on each where there is one.
    fn all(self, line: &Line, typed: &str) -> Option<Vec<(String, Option<String>)>> {
        let plain = |names: Vec<String>| names.into_iter().map(|name| (name, None)).collect();
        Some(match self {
            Self::Jobs => jobs(line)?.iter().map(with_state).collect(),
            Self::Targets => targets(&jobs(line)?, &line.words),
            Self::Places => places(&jobs(line)?, typed),
            Self::Workspaces => {
                let found = line.ask(|client| async move { client.workspaces().await })?;
                plain(found.iter().map(|view| view.storage.workspace.to_string()).collect())
            }
            Self::Templates => {
                plain(Shelf::open(&line.root).ok()?.list_templates().ok()?.iter().map(template_name).collect())
            }
            Self::Datasets => plain(line.datasets(false)),
            Self::Versions => plain(line.datasets(true)),
            Self::Models => plain(line.models()?),
            Self::Images => {
                let workspace = line.workspace.clone();
                let found = line.ask(|client| async move { client.images(workspace.as_deref()).await })?;
                plain(found.into_iter().map(|image| image.name).collect())
            }
            Self::Secrets => {
                let all = Secrets::new(Paths::new(&line.root).ok()?.secrets()).list(Some(&line.home()?)).ok()?;
                plain(all.into_iter().map(|(_, name)| name.to_string()).collect())
            }
            Self::Tokens => {
                let found = line.ask(|client| async move { client.tokens().await })?;
                plain(found.into_iter().map(|token| token.name).collect())
            }
        })
    }
}

/// Bash takes what is offered into its line as it stands: what others have named must not be code there.
fn is_plain_word(name: &str) -> bool {
    let is_plain =
        |letter: char| !letter.is_ascii() || letter.is_ascii_alphanumeric() || "-_.~/:@+,=%".contains(letter);
    name.chars().all(is_plain) && !name.chars().any(|letter| letter.is_control() || letter.is_whitespace())
}

type Candidates = Vec<(String, Option<String>)>;

fn jobs(line: &Line) -> Option<Vec<JobReport>> {
    Some(line.ask(|client| async move { client.jobs(&JobQuery::default()).await })?.jobs)
}

fn with_state(job: &JobReport) -> (String, Option<String>) {
    (name(job), Some(job.state.name().to_owned()))
}

fn tasks(job: &JobReport) -> impl Iterator<Item = (String, Option<String>)> {
    job.tasks.iter().map(|task| (task.task.to_string(), Some(task.phase.to_string())))
}

/// A word before the one that is typed may name a job already.
fn targets(jobs: &[JobReport], words: &[String]) -> Candidates {
    match jobs.iter().find(|job| words.contains(&name(job))) {
        Some(job) => tasks(job).collect(),
        None => jobs.iter().map(with_state).collect(),
    }
}

fn places(jobs: &[JobReport], typed: &str) -> Candidates {
    let place = |(name, help): (String, Option<String>)| (format!("{name}:"), help);
    let mut all: Candidates = jobs.iter().map(|job| place(with_state(job))).collect();
    for job in jobs.iter().filter(|job| typed.starts_with(&format!("{}/", name(job)))) {
        all.extend(tasks(job).map(|(task, help)| place((format!("{}/{task}", name(job)), help))));
    }
    all
}

/// As verbs take it.
fn template_name(key: &JobKey) -> String {
    match key.workspace == WorkspaceName::default_workspace() {
        true => key.job.to_string(),
        false => key.to_string(),
    }
}

/// What is typed so far: it is not parsed yet.
struct Line {
    root: PathBuf,
    workspace: Option<String>,
    /// But for the one that is completed.
    words: Vec<String>,
}

impl Line {
    fn typed() -> Self {
        let words = || std::env::args_os().skip_while(|word| word != "--").skip(1);
        let mut texts: Vec<String> = words().filter_map(|word| word.into_string().ok()).collect();
        // Some shells tell what is behind it as well, and where it is.
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
        texts.truncate(index.unwrap_or(texts.len().saturating_sub(1)));
        Self {
            root: root(),
            workspace: said(words(), &["--workspace", "-w"]).and_then(|name| name.into_string().ok()),
            words: texts,
        }
    }

    fn ask<T, F: Future<Output = Result<T, ClientError>>>(&self, what: impl FnOnce(Client) -> F) -> Option<T> {
        let client = Client::new(&Paths::new(&self.root).ok()?.api_socket());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async { tokio::time::timeout(PATIENCE, what(client)).await }).ok()?.ok()
    }

    fn home(&self) -> Option<WorkspaceName> {
        self.workspace.as_deref().map_or(Some(WorkspaceName::default_workspace()), |name| name.parse().ok())
    }

    /// In the mounted tree, of the workspace that is named and of all.
    fn datasets(&self, with_versions: bool) -> Vec<String> {
        let (Some(home), Ok(paths)) = (self.home(), Paths::new(&self.root)) else { return Vec::new() };
        let mut found = Vec::new();
        for home in [home.as_str()].into_iter().chain(SHARED) {
            let place = paths.mount_point().join(home).join("datasets");
            for name in entries(&place).into_iter().filter(|name| is_name(name)) {
                let versions = entries(&place.join(&name));
                if with_versions {
                    let versions = versions.iter().filter_map(|entry| entry.strip_suffix(MANIFEST));
                    found.extend(
                        versions
                            .filter(|version| *version != DRAFT && is_name(version))
                            .map(|version| format!("{name}@{version}")),
                    );
                }
                found.push(name);
            }
        }
        found
    }

    fn models(&self) -> Option<Vec<String>> {
        let place = Paths::new(&self.root).ok()?.mount_point().join(self.home()?.as_str()).join("models");
        let of_job = |job: String| {
            let runs = entries(&place.join(&job)).into_iter().filter(|run| run.parse::<u32>().is_ok());
            runs.map(|run| format!("{job}@{run}")).chain([job.clone()]).collect::<Vec<_>>()
        };
        let jobs = entries(&place).into_iter().filter(|job| job.parse::<JobName>().is_ok());
        Some(jobs.flat_map(of_job).collect())
    }
}

/// Of a dataset, or a version: in what all may write to, anything may lie.
fn is_name(text: &str) -> bool {
    text.parse::<AssetName>().is_ok()
}

/// Names in a directory; none where it cannot be read.
fn entries(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// What `--root` says in the line that is being typed.
fn root() -> PathBuf {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let said = said(words, &["--root"]);
    said.or_else(|| std::env::var_os("TRAINYARD_ROOT")).map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// `--root DIR`, `--root=DIR`, or the latter in the three words that bash makes of it.
fn said(mut words: impl Iterator<Item = OsString>, flags: &[&str]) -> Option<OsString> {
    let value = |word: &OsString| {
        let rest = flags.iter().find_map(|flag| word.as_encoded_bytes().strip_prefix(flag.as_bytes()))?;
        match rest.split_first() {
            None => Some(None),
            Some((b'=', value)) => Some(Some(OsStr::from_bytes(value).to_owned())),
            Some(_) => None,
        }
    };
    match words.find_map(|word| value(&word))? {
        Some(value) => Some(value),
        None => words.find(|word| word != "="),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_however_it_is_typed() {
        let said = |line: &str, flags: &[&str]| said(line.split(' ').map(OsString::from), flags);
        for line in ["trainyard --root /r stop", "trainyard stop --root=/r", "trainyard --root = /r stop"] {
            assert_eq!(said(line, &["--root"]), Some(OsString::from("/r")), "{line}");
        }
        assert_eq!(said("trainyard stop --roots x", &["--root"]), None);
        assert_eq!(said("trainyard model show -w vision", &["--workspace", "-w"]), Some(OsString::from("vision")));
    }

    fn job(name: &str, tasks: &[&str]) -> JobReport {
        let task = |task: &&str| {
            serde_json::json!({ "task": task, "phase": "running", "reason": "", "exit_code": null, "started": null, "ended": null,
                "memory_peak": null })
        };
        serde_json::from_value(serde_json::json!({
            "workspace": "default", "job": name, "state": "running", "reason": "", "description": "", "owner": 0, "run": 1,
            "attempt": 1, "created": "", "started": null, "ended": null, "duration_ms": null,
            "tasks": tasks.iter().map(task).collect::<Vec<_>>(), "diagnostics": []
        }))
        .unwrap()
    }

    #[test]
    fn tasks_are_those_of_the_job_that_is_named() {
        let jobs = [job("digits", &["main-0"]), job("ps", &["ps-0", "worker-0"])];
        let names = |found: Candidates| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(names(targets(&jobs, &words("trainyard logs"))), "digits ps");
        assert_eq!(names(targets(&jobs, &words("trainyard exec ps"))), "ps-0 worker-0");
        assert_eq!(names(places(&jobs, "p")), "digits: ps:");
        assert_eq!(names(places(&jobs, "ps/w")), "digits: ps: ps/ps-0: ps/worker-0:");
    }

    #[test]
    fn nothing_that_is_offered_is_code_for_a_shell() {
        for plain in ["digits", "训练/a-0:", "ghcr.io/o/r:1.0@sha256:ab", "mnist@v1", "हिन्दी", "1.5~b"] {
            assert!(is_plain_word(plain), "{plain}");
        }
        for code in
            ["a$(x)", "a`x`", "a;x", "a b", "a\nb", "a\u{9b}b", "a\u{a0}b", "a'b", "a&b", "a>b", "{a,b}", "a*", "a\\b"]
        {
            assert!(!is_plain_word(code), "{code:?}");
        }
    }

    #[test]
    fn datasets_and_models_are_found_where_they_are_mounted() {
        let root = tempfile::tempdir().unwrap();
        let mount = Paths::new(root.path()).unwrap().mount_point();
        let evil = "a$(touch${IFS}pwned)";
        for place in ["default/datasets/mnist/v1", "public/datasets/words", "vision/models/net/3"] {
            std::fs::create_dir_all(mount.join(place)).unwrap();
        }
        for place in ["public/datasets", "vision/models", "vision/models/net"] {
            std::fs::create_dir_all(mount.join(place).join(evil)).unwrap();
        }
        for version in ["v1", evil] {
            std::fs::write(mount.join(format!("default/datasets/mnist/{version}{MANIFEST}")), "").unwrap();
        }
        let line = |workspace: Option<&str>| Line {
            root: root.path().to_owned(),
            workspace: workspace.map(str::to_owned),
            words: Vec::new(),
        };
        assert_eq!(line(None).datasets(false), ["mnist", "words"]);
        assert_eq!(line(None).datasets(true), ["mnist@v1", "mnist", "words"]);
        assert_eq!(line(Some("vision")).models().unwrap(), ["net@3", "net"]);
    }
}
