//! `trainyard new JOB --template T -p K=V…` and `trainyard clone JOB NEW`: job files from what there is.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::json;

use super::Exit;
use super::output::{self, Format};
use super::shelf::{Shelf, copy_overrides, put, tell};
use crate::ids::JobKey;
use crate::spec::template::Template;
use crate::spec::{Diagnostic, Layer, Stack};

pub(super) fn new(
    root: &Path,
    job: &JobKey,
    template: &str,
    values: &[String],
    format: Format,
) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    let path = shelf.job(job)?;
    let layer = shelf.find_template(&job.workspace, template)?;
    let read = match Template::read(&layer) {
        Ok(read) => read,
        Err(found) => {
            tell(&found);
            return Ok(Exit::Failure);
        }
    };
    let text = job_file(template, &read, values)?;
    let mut stack = Stack::of(Layer::new(&path.display().to_string(), &text));
    stack.template = Some(layer);
    let found = stack.expand().diagnostics;
    if found.iter().any(Diagnostic::is_error) {
        tell(&found);
        return Ok(Exit::Failure);
    }
    put(&path, &text)?;
    written(job, &path, format)
}

fn job_file(name: &str, template: &Template, values: &[String]) -> anyhow::Result<String> {
    let description = template.description.replace(char::is_control, " ");
    let comment = if description.is_empty() { String::new() } else { format!("# {description}\n") };
    let mut text = format!("{comment}template = {}\n", toml::Value::String(name.to_owned()));
    let mut seen: Vec<&str> = Vec::new();
    for value in values {
        let (key, value) = value.split_once('=').with_context(|| format!("{value:?} is not written as NAME=VALUE"))?;
        let known: Vec<&str> = template.params.iter().map(|param| param.name.as_str()).collect();
        let Some(param) = template.params.iter().find(|param| param.name == key) else {
            let known =
                if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
            bail!("template {name} has no parameter {key:?}; {known}");
        };
        if seen.contains(&key) {
            bail!("{key} is given twice");
        }
        if seen.is_empty() {
            text.push_str("\n[with]\n");
        }
        text.push_str(&format!("{key} = {}\n", param.kind.literal(value)));
        seen.push(key);
    }
    Ok(text)
}

/// The job file and its overrides as they are, under another name.
pub(super) fn clone(root: &Path, from: &JobKey, to: &JobKey, format: Format) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    let (source, target) = (shelf.job(from)?, shelf.job(to)?);
    let stack = shelf.stack(&source)?;
    if target.exists() {
        bail!("{} is there already; nothing was written", target.display());
    }
    // Before the file: without it they are nobody's.
    copy_overrides(&source, &target)?;
    put(&target, &stack.job.text)?;
    written(to, &target, format)
}

fn written(job: &JobKey, path: &Path, format: Format) -> anyhow::Result<Exit> {
    match format {
        Format::Json => output::json(&json!({ "job": job.to_string(), "file": path }))?,
        Format::People => output::line(&format!("{job}: {}", path.display()))?,
    }
    Ok(Exit::Success)
}
