//! Any bytes as a job file, all the way to what its tasks run.

#![no_main]

use std::collections::{BTreeMap, HashSet};

use libfuzzer_sys::fuzz_target;
use toml::{Table, Value};
use trainyard::ids::JobName;
use trainyard::import::openpai_export::export;
use trainyard::import::{Loss, import};
use trainyard::spec::template::Template;
use trainyard::spec::{Diagnostic, JOB_FILE_MAX_BYTES, JobSpec, Layer, Role, Stack, parse, parse_bytes};
use trainyard_fuzz::{
    NO_KEY, TASKS_MAX, TOO_LARGE, assert_in_text, assert_placed, assert_rereads, assert_same, assert_shown, assert_usable,
    silence,
};

/// Most jobs of a sweep.
const SWEEP_MAX: usize = 256;
/// What of a sweep is looked at, in bytes of the file times jobs: each of them reads the whole file.
const SWEPT_MAX_BYTES: usize = 1 << 18;

fuzz_target!(
    init: silence(),
    |data: &[u8]| {
        if data.len() as u64 <= JOB_FILE_MAX_BYTES {
            read(data);
        }
    }
);

fn read(data: &[u8]) {
    let (spec, found) = parse_bytes("job.toml", data);
    let layer = match Layer::from_bytes("job.toml", data.to_vec()) {
        Ok(layer) => layer,
        Err(diagnostic) => {
            assert_eq!(found, [diagnostic]);
            let lossy = Layer::new("job.toml", &String::from_utf8_lossy(data));
            return assert_placed(None, &found, &[&lossy]);
        }
    };
    assert_placed(spec.as_ref(), &found, &[&layer]);
    // As the daemon reads it.
    let stack = Stack::of(layer.clone());
    let expanded = stack.expand();
    if expanded.diagnostics.iter().any(|told| told.message.starts_with(NO_KEY)) {
        return assert!(expanded.spec.is_none() && spec.is_none_or(|spec| spec.description.is_empty()));
    }
    assert_placed(expanded.spec.as_ref(), &expanded.diagnostics, &[&layer]);
    assert_eq!(spec.is_some(), expanded.spec.is_some(), "{found:?}\n{:?}", expanded.diagnostics);
    assert_sweep(&stack, &layer);
    let Some(spec) = spec else { return };
    assert_rereads(&stack, &spec);
    assert_layers(&layer, &spec);
    assert_template(&stack, &spec);
    assert_usable(&layer, &spec);
    assert_shown(&layer.text, &spec);
    assert_export(&layer, &spec);
}

/// Each job of a sweep is one like any other. What is wrong with one is told where the file says it.
fn assert_sweep(stack: &Stack, layer: &Layer) {
    let job: JobName = "job".parse().expect("a plain word is a name");
    let combinations = match stack.combinations(&job) {
        Ok(None) => return,
        Ok(Some(combinations)) => combinations,
        Err(found) => return assert_placed(None, &found, &[layer]),
    };
    assert!((1..=SWEEP_MAX).contains(&combinations.len()), "{}", combinations.len());
    let names: HashSet<_> = combinations.iter().map(|combination| combination.name.as_str()).collect();
    assert_eq!(names.len(), combinations.len(), "{names:?}");
    let reads = (SWEPT_MAX_BYTES / layer.text.len().max(1)).max(1);
    let mut room = TASKS_MAX;
    for combination in combinations.iter().take(reads) {
        let stack = stack.with(combination);
        let expanded = stack.expand();
        for told in &expanded.diagnostics {
            assert!(told.file == layer.file && !told.message.is_empty(), "{told:?}");
        }
        for told in expanded.diagnostics.iter().filter(|told| !told.message.starts_with(TOO_LARGE)) {
            assert_in_text(&layer.text, told.line, told.column, told);
        }
        assert_eq!(expanded.spec.is_none(), expanded.diagnostics.iter().any(Diagnostic::is_error), "{expanded:?}");
        let Some(spec) = expanded.spec else { continue };
        assert_rereads(&stack, &spec);
        let tasks = spec.tasks().count();
        if tasks <= room {
            room -= tasks;
            assert_usable(&Layer::new("job.toml", &expanded.text), &spec);
        }
    }
}

/// An override that says nothing changes nothing, though all is written anew; and writing that again changes no letter.
fn assert_layers(layer: &Layer, spec: &JobSpec) {
    let nothing = Layer::new("nothing.toml", "");
    let over = |text: &str| {
        let mut stack = Stack::of(Layer::new(&layer.file, text));
        stack.overrides.push(nothing.clone());
        stack
    };
    let once = over(&layer.text).expand();
    assert_placed(once.spec.as_ref(), &once.diagnostics, &[layer, &nothing]);
    if once.diagnostics.iter().any(|told| told.message.starts_with(TOO_LARGE)) {
        return;
    }
    let same = once.spec.unwrap_or_else(|| panic!("{:?}\n{}\n----\n{}", once.diagnostics, layer.text, once.text));
    assert_same(spec, &same, &[&layer.text, &once.text]);
    let twice = over(&once.text).expand();
    assert!(once.text == twice.text, "{}\n----\n{}", once.text, twice.text);
}

/// A template that was made of the job gives the job, but for what is a job's alone.
fn assert_template(stack: &Stack, spec: &JobSpec) {
    let text = stack.as_template("saved \"here\"").unwrap_or_else(|found| panic!("{found:?}"));
    if text.len() as u64 > JOB_FILE_MAX_BYTES {
        return;
    }
    let layer = Layer::new("saved.template.toml", &text);
    let read = Template::read(&layer).unwrap_or_else(|found| panic!("{found:?}\n{text}"));
    assert_eq!(read.description, "saved \"here\"");
    let mut user = Stack::of(Layer::new("job.toml", "template = 'saved'\n"));
    user.template = Some(layer);
    let expanded = user.expand();
    if expanded.diagnostics.iter().any(|told| told.message.starts_with(TOO_LARGE)) {
        return;
    }
    let found = expanded.diagnostics;
    let same = expanded.spec.unwrap_or_else(|| panic!("{found:?}\n{text}\n----\n{}", expanded.text));
    let same = JobSpec { state: spec.state, rerun: spec.rerun, ..same };
    assert_same(spec, &same, &[&stack.job.text, &text]);
}

/// What is exported is imported again as it was. Only a note that is no number cannot be, which is told: JSON has none.
fn assert_export(layer: &Layer, spec: &JobSpec) {
    if spec.tasks().count() > TASKS_MAX {
        return;
    }
    let document = export("job", spec).to_string();
    let contents = import(&document).unwrap_or_else(|error| panic!("{error}\n{document}"));
    let [job] = contents.jobs.as_slice() else { panic!("{contents:?}") };
    let (again, found) = parse("job.toml", &job.toml);
    let again = again.unwrap_or_else(|| panic!("{found:?}\n{document}\n----\n{}", job.toml));
    let is_no_number = |loss: &Loss| loss.field.starts_with("extras") && loss.why.contains("is null");
    if !job.losses.iter().any(is_no_number) {
        assert_same(&in_order(spec), &in_order(&again), &[&layer.text, &document, &job.toml]);
    }
}

/// Variables that all roles have alike come first, as the job's; so do they once more when they come back. A role's own
/// stand behind them, wherever they stood before. The order has no meaning: no variable sees another. Nor has that of notes,
/// which JSON does not keep.
fn in_order(spec: &JobSpec) -> JobSpec {
    let mut spec = spec.clone();
    let members: Vec<Role> = spec.members().cloned().collect();
    let is_shared = |pair: &(String, String)| members.iter().all(|role| role.env.contains(pair));
    let first: Vec<(String, String)> = members.first().map(|role| role.env.clone()).unwrap_or_default();
    let place = |pair: &(String, String)| first.iter().position(|known| known == pair);
    // OpenPAI's own `isDebug` is never the job's.
    let key = |pair: &(String, String)| {
        let is_first = is_shared(pair) && pair.0 != "isDebug";
        place(pair).filter(|_| is_first).unwrap_or(usize::MAX)
    };
    spec.roles.iter_mut().for_each(|role| role.env.sort_by_key(key));
    spec.extras = sorted(spec.extras);
    spec
}

fn sorted(notes: Table) -> Table {
    let by_name: BTreeMap<String, Value> = notes.into_iter().map(|(name, note)| (name, with_sorted(note))).collect();
    by_name.into_iter().collect()
}

fn with_sorted(note: Value) -> Value {
    match note {
        Value::Table(notes) => Value::Table(sorted(notes)),
        Value::Array(items) => Value::Array(items.into_iter().map(with_sorted).collect()),
        plain => plain,
    }
}
