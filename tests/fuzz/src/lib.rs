//! What the targets assert of all that the readers let through, whatever the target.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use trainyard::cli::{self, Cli, Verb};
use trainyard::contract::{self, Sample, Task, advice};
use trainyard::ids::JobName;
use trainyard::spec::{Diagnostic, JobSpec, Layer, Stack, parse};

/// Largest job whose tasks are looked at: each of them looks at all others, and so does what shows them.
pub const TASKS_MAX: usize = 64;
/// What a job that is too large with its template and overrides is told; it concerns no place.
pub const TOO_LARGE: &str = "with its template and overrides the job has more than";
/// What a file is told that has no key, so that it is no job, whether its letters are right or not.
pub const NO_KEY: &str = "has no key, only blanks or comments";

/// Every finding stands at a place of one of the files, and there is a job exactly when none is an error.
pub fn assert_placed(spec: Option<&JobSpec>, found: &[Diagnostic], layers: &[&Layer]) {
    assert_eq!(spec.is_none(), found.iter().any(Diagnostic::is_error), "{found:?}");
    let is_of_whole = |told: &&Diagnostic| [TOO_LARGE, NO_KEY].iter().any(|begin| told.message.starts_with(begin));
    for diagnostic in found.iter().filter(|told| !is_of_whole(told)) {
        let layer = layers.iter().find(|layer| layer.file == diagnostic.file);
        let layer = layer.unwrap_or_else(|| panic!("of no file: {diagnostic:?}"));
        assert_in_text(&layer.text, diagnostic.line, diagnostic.column, diagnostic);
        assert!(!diagnostic.message.is_empty(), "{diagnostic:?}");
    }
}

/// Line and column count from 1 and lie in the text, or right behind its line.
pub fn assert_in_text(text: &str, line: usize, column: usize, what: &dyn std::fmt::Debug) {
    let written = line.checked_sub(1).and_then(|line| text.split('\n').nth(line));
    let written = written.unwrap_or_else(|| panic!("no such line: {what:?}"));
    assert!((1..=written.chars().count() + 1).contains(&column), "no such column: {what:?}");
}

/// Two readings came to the same job. Not by `==`: notes may hold a NaN.
#[track_caller]
pub fn assert_same(one: &JobSpec, other: &JobSpec, texts: &[&str]) {
    let (one, other) = (format!("{one:?}"), format!("{other:?}"));
    assert!(one == other, "{one}\n{other}\n{}", texts.join("\n----\n"));
}

/// A job that may run: what is made of it until a container starts can be made.
pub fn assert_usable(layer: &Layer, spec: &JobSpec) {
    let tasks = spec.tasks().count();
    assert!(tasks > 0);
    assert!(!spec.meaning().is_empty());
    let _ = spec.fixed_ports();
    if tasks > TASKS_MAX {
        return;
    }
    let name: JobName = "job".parse().expect("a plain word is a name");
    let _ = advice::diagnostics(&Stack::of(layer.clone()), &name, spec);
    let sample = Sample::of(&layer.file, spec);
    for task in sample.tasks(spec) {
        assert_starts(&task);
    }
    if let Some(task) = sample.tasks(spec).next() {
        let _ = contract::callable(spec, task.identity, task.placement);
    }
}

/// The kernel takes what the task is given.
fn assert_starts(task: &Task<'_>) {
    let view = contract::view(task);
    assert!(view.args.first().is_some_and(|program| !program.is_empty()), "{:?}", view.args);
    assert!(!view.args.iter().any(|word| word.contains('\0')), "{:?}", view.args);
    for (name, value) in &view.env {
        assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'), "{name:?} = {value:?}");
    }
    let paths = view.files.iter().map(|file| &file.path).chain(&view.directories).chain([&view.working_directory]);
    for path in paths {
        assert!(path.starts_with('/') && !path.contains('\0'), "{path:?}");
    }
    let _ = contract::command::display(&view.args);
}

/// The verbs that need no daemon, on a file with this text. What they print is dropped.
pub fn assert_shown(text: &str, spec: &JobSpec) {
    if spec.tasks().count() > TASKS_MAX {
        return;
    }
    let directory = tempfile::tempdir().expect("there is room for one file");
    let path = directory.path().join("job.toml");
    fs::write(&path, text).expect("there is room for one file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let run = |json, verb| cli::run(Cli { root: directory.path().to_owned(), json, no_color: true, verb });
    for json in [false, true] {
        let shown = run(json, Verb::Show { job: path.display().to_string(), effective: true, file: true });
        assert_eq!(shown.expect("it was read").code(), 0, "{text}");
        run(json, Verb::Check { files: vec![path.clone()], effective: true }).expect("it was read");
    }
}

/// Standard output goes nowhere; what libFuzzer tells goes to standard error.
pub fn silence() {
    let nowhere = fs::OpenOptions::new().write(true).open(Path::new("/dev/null")).expect("every machine has it");
    rustix::stdio::dup2_stdout(nowhere).expect("standard output can be replaced");
}

/// The job as its files put it together means what it meant, and does so when it is read again.
pub fn assert_rereads(stack: &Stack, spec: &JobSpec) {
    let expanded = stack.expand();
    let (again, found) = parse(&stack.job.file, &expanded.text);
    let again = again.unwrap_or_else(|| panic!("{found:?}\n{}", expanded.text));
    assert_same(spec, &again, &[&stack.job.text, &expanded.text]);
    assert_eq!(spec.meaning(), again.meaning());
}
