//! Any text as a file of another platform; the job files that come of it are ours.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trainyard::ids::JobName;
use trainyard::import::{ImportError, Imported, import};
use trainyard::spec::{JOB_FILE_MAX_BYTES, JobSpec, Layer, parse};
use trainyard_fuzz::{assert_in_text, assert_placed, assert_usable};

/// As the command line has it.
const FILE_MAX_BYTES: usize = 1 << 20;
/// What our own parser refuses in imported files though the importer told nothing of it: open findings, left out to find
/// others. To be emptied.
const KNOWN: &[&str] = &[
    "a port label holds",
    "cannot be the name of a variable",
    "duplicate key",
    "holds a NUL character",
    "is empty; leave the key out",
    "is no name of an image",
    "is no user",
    "is not a name",
    "is not a size",
    "must be \"",
    "must be at least",
    "names no program",
    "overlaps the ports",
    "reaches beyond port",
    "there can be only one",
    "under contract",
    "unknown key",
    "write the path from the root",
];
const LATER: &str = "is known, but not supported by this version yet";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if data.len() > FILE_MAX_BYTES {
        return;
    }
    match import(text) {
        Err(error) => assert_refusal(text, &error),
        Ok(contents) => {
            assert!(!contents.jobs.is_empty());
            contents.jobs.iter().for_each(|job| assert_job(text, job));
        }
    }
});

/// It is told where the file is wrong, as far as the format tells.
fn assert_refusal(text: &str, error: &ImportError) {
    assert!(!error.to_string().is_empty());
    match error {
        ImportError::NoJob(_) | ImportError::Field { line: 0, .. } => {}
        // Behind a NUL saphyr-parser's columns are off by one.
        _ if text.contains('\0') => {}
        // JSON counts bytes, from 0 at the end of a line, and begins with column 0.
        ImportError::Syntax { line, .. } if error.to_string().contains("not JSON") => {
            assert!(*line <= text.split('\n').count() + 1, "{error:?}");
        }
        ImportError::Syntax { line, column, .. } | ImportError::Field { line, column, .. } => {
            // To YAML a carriage return ends a line as well, and so does the end of the text.
            let text = text.replace("\r\n", "\n").replace('\r', "\n") + "\n";
            assert_in_text(&text, *line, *column, error);
        }
    }
}

fn assert_job(text: &str, job: &Imported) {
    assert!(job.name.parse::<JobName>().is_ok(), "{:?}", job.name);
    let lines = text.split(['\n', '\r']).count();
    for loss in &job.losses {
        assert!(loss.line <= lines && !loss.field.is_empty() && !loss.why.is_empty(), "{loss:?}");
    }
    // Open findings: nobody is told that it is too large, and what `extras.trainyard.lines` holds is written as it is.
    if job.toml.len() as u64 > JOB_FILE_MAX_BYTES || text.contains("lines") {
        return;
    }
    let layer = Layer::new(&format!("{}.toml", job.name), &job.toml);
    if let Some(spec) = spec_of(&layer) {
        assert_usable(&layer, &spec);
    }
}

/// What the job file says, if need be without those keys that this version does not act on yet.
fn spec_of(layer: &Layer) -> Option<JobSpec> {
    let (spec, found) = parse(&layer.file, &layer.text);
    assert_placed(spec.as_ref(), &found, &[layer]);
    if spec.is_some() || found.iter().any(|found| KNOWN.iter().any(|known| found.message.contains(known))) {
        return spec;
    }
    let wrong: Vec<_> = found.iter().filter(|found| !found.message.contains(LATER)).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{}", layer.text);
    let mut table: toml::Table = layer.text.parse().expect("it was parsed before");
    found.iter().filter_map(|found| found.key.as_ref()).for_each(|key| remove(&mut table, key));
    let (spec, found) = parse(&layer.file, &table.to_string());
    assert!(spec.is_some(), "{found:?}\n{table}");
    spec
}

/// The name of a role may hold a dot: the longest name that there is counts.
fn remove(table: &mut toml::Table, key: &str) {
    if table.remove(key).is_some() {
        return;
    }
    let dots = key.char_indices().filter(|(_, c)| *c == '.').map(|(at, _)| at);
    for at in dots.collect::<Vec<_>>().into_iter().rev() {
        if let Some(toml::Value::Table(inner)) = table.get_mut(&key[..at]) {
            return remove(inner, &key[at + 1..]);
        }
    }
}
