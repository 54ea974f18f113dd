//! Any text as a file of another platform; the job files that come of it are ours.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trainyard::ids::JobName;
use trainyard::import::{ImportError, Imported, import};
use trainyard::spec::{JOB_FILE_MAX_BYTES, Layer, parse};
use trainyard_fuzz::{assert_in_text, assert_placed, assert_usable};

/// As the command line has it.
const FILE_MAX_BYTES: usize = 1 << 20;

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
    // Nobody is told that it is too large until it is read: a job file is what the daemon takes, and an import writes a text.
    if job.toml.len() as u64 > JOB_FILE_MAX_BYTES {
        return;
    }
    let layer = Layer::new(&format!("{}.toml", job.name), &job.toml);
    let (spec, found) = parse(&layer.file, &layer.text);
    assert_placed(spec.as_ref(), &found, &[&layer]);
    let spec = spec.unwrap_or_else(|| panic!("{found:?}\n{}", layer.text));
    assert_usable(&layer, &spec);
}
