//! `trainyard check FILE…`: what the daemon would say, without a daemon.

use std::path::{Path, PathBuf};

use super::Exit;
use super::output::{self, Format};
use super::shelf::Shelf;
use super::show;
use crate::contract::advice;
use crate::ids::JobName;
use crate::intake::sources::{Reader, TEMPLATE_SUFFIX, Unread};
use crate::spec::template::Template;
use crate::spec::{Diagnostic, JobSpec};

pub(super) fn run(files: &[PathBuf], shelf: &Shelf, format: Format) -> anyhow::Result<Exit> {
    let mut exit = Exit::Success;
    for path in files {
        let (found, spec) = check(path, shelf);
        if found.iter().any(Diagnostic::is_error) {
            exit = Exit::Failure;
        }
        for diagnostic in &found {
            match format {
                Format::Json => output::json(diagnostic)?,
                Format::People => output::line(&diagnostic.to_string())?,
            }
        }
        if !found.iter().any(Diagnostic::is_error) && format == Format::People {
            let told = if found.is_empty() { "ok" } else { "runs" };
            output::line(&format!("{}: {told}", path.display()))?;
            spec.iter()
                .try_for_each(|spec| output::line(show::command_lines(&path.to_string_lossy(), spec).trim_end()))?;
        }
    }
    Ok(exit)
}

fn check(path: &Path, shelf: &Shelf) -> (Vec<Diagnostic>, Option<JobSpec>) {
    let mut spec = None;
    let file = path.display().to_string();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(TEMPLATE_SUFFIX).or_else(|| name.strip_suffix(".toml"));
    let mut found = match stem.map(str::parse::<JobName>) {
        Some(Ok(_)) => Vec::new(),
        Some(Err(error)) => vec![Diagnostic::of_file(&file, format!("the file's name cannot name a job: {error}"))],
        None => vec![Diagnostic::of_file(&file, "the name of a job file ends with .toml")],
    };
    let read = if name.ends_with(TEMPLATE_SUFFIX) {
        Reader::Looking.layer(path, None).map(|(layer, _)| Template::read(&layer).err().unwrap_or_default())
    } else {
        Reader::Looking.stack(path, &shelf.templates_of(path)).map(|(stack, _)| {
            let expanded = stack.expand();
            let mut told = expanded.diagnostics;
            if let (Some(good), Some(Ok(name))) = (&expanded.spec, stem.map(str::parse::<JobName>)) {
                told.extend(advice::diagnostics(&stack.job.file, &stack.job.text, &name, good));
            }
            spec = expanded.spec;
            told
        })
    };
    match read {
        Ok(more) | Err(Unread::Bad(more)) => found.extend(more),
        Err(Unread::Missing) => found.push(Diagnostic::of_file(&file, "cannot be read: there is no such file")),
        Err(Unread::Unfinished) => found.push(Diagnostic::of_file(&file, "is still being written")),
    }
    (found, spec)
}
