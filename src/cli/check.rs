//! `trainyard check FILE…`: what the daemon would say, without a daemon.

use std::path::{Path, PathBuf};

use super::Exit;
use super::output::{self, Format};
use crate::ids::JobName;
use crate::spec::{Diagnostic, JOB_FILE_MAX_BYTES, parse_bytes};
use crate::sys::file::read_limited;

pub(super) fn run(files: &[PathBuf], format: Format) -> anyhow::Result<Exit> {
    let mut exit = Exit::Success;
    for path in files {
        let found = check(path);
        if found.iter().any(Diagnostic::is_error) {
            exit = Exit::Failure;
        }
        for diagnostic in &found {
            match format {
                Format::Json => output::json(diagnostic)?,
                Format::People => output::line(&diagnostic.to_string())?,
            }
        }
        if found.is_empty() && format == Format::People {
            output::line(&format!("{}: ok", path.display()))?;
        }
    }
    Ok(exit)
}

fn check(path: &Path) -> Vec<Diagnostic> {
    let file = path.display().to_string();
    let stem = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".toml"));
    let mut found = match stem.map(str::parse::<JobName>) {
        Some(Ok(_)) => Vec::new(),
        Some(Err(error)) => vec![Diagnostic::of_file(&file, format!("the file's name cannot name a job: {error}"))],
        None => vec![Diagnostic::of_file(&file, "the name of a job file ends with .toml")],
    };
    match read_limited(path, JOB_FILE_MAX_BYTES) {
        Ok((_, bytes)) => found.extend(parse_bytes(&file, &bytes).1),
        Err(error) => found.push(Diagnostic::of_file(&file, format!("cannot be read: {error}"))),
    }
    found
}
