//! `trainyard template ls|show|save|copy|rm`

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::output::{self, Format};
use super::shelf::{Made, Shelf, lines, put, tell};
use super::{Exit, ps};
use crate::ids::{JobKey, Timestamp};
use crate::spec::template::{Param, Template};

#[derive(Debug, Subcommand)]
pub enum TemplateVerb {
    /// List templates
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// Show whose they are and when they were changed
        #[arg(short, long)]
        long: bool,
    },
    /// Show a template: what it is for, its parameters, its file
    Show {
        /// TEMPLATE, or WORKSPACE/TEMPLATE
        template: JobKey,
    },
    /// Make a template of a job file, with its own template and overrides in it
    Save {
        /// JOB, also one of a sweep
        job: JobKey,
        /// The name of the template
        name: JobKey,
    },
    /// Copy a template
    Copy {
        /// TEMPLATE, or WORKSPACE/TEMPLATE
        from: JobKey,
        /// The name of the copy
        to: JobKey,
    },
    /// Remove templates; jobs that were started from them go on
    Rm {
        /// TEMPLATE, or WORKSPACE/TEMPLATE
        #[arg(required = true)]
        templates: Vec<JobKey>,
    },
}

/// Which templates are listed: those that all of it is true of.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only those with this in their name or description, whatever the case
    text: Option<String>,
    #[command(flatten)]
    origin: ps::Origin,
}

impl Filter {
    fn apply(&self, all: &mut Vec<Listed>) -> anyhow::Result<()> {
        all.retain(|listed| self.text.as_ref().is_none_or(|text| matches(listed, text)));
        self.origin.retain(all, |listed| (listed.owner, listed.changed.to_string()))
    }
}

pub(super) fn run(root: &Path, verb: TemplateVerb, format: Format) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    match verb {
        TemplateVerb::Ls { filter, long } => list(&shelf, &filter, long, format),
        TemplateVerb::Show { template } => show(&shelf, &template, format),
        TemplateVerb::Save { job, name } => save(&shelf, &job, &name, format),
        TemplateVerb::Copy { from, to } => {
            put(&shelf.template(&to), &shelf.read_template(&from)?.text)?;
            done(&to, "copied", format)
        }
        TemplateVerb::Rm { templates } => remove(&shelf, &templates, format),
    }
}

fn done(key: &JobKey, what: &str, format: Format) -> anyhow::Result<Exit> {
    match format {
        Format::Json => output::json(&json!({ "template": key.to_string(), "done": what }))?,
        Format::People => output::line(&format!("{key}: {what}"))?,
    }
    Ok(Exit::Success)
}

/// A template in a list: it may be broken.
struct Listed {
    key: JobKey,
    description: String,
    params: Vec<Param>,
    owner: u32,
    changed: Timestamp,
    error: Option<String>,
}

/// None where its file has gone meanwhile.
fn listed(shelf: &Shelf, key: JobKey) -> Option<Listed> {
    let file = fs::symlink_metadata(shelf.template(&key)).ok()?;
    let changed = u64::try_from(file.mtime() * 1000 + file.mtime_nsec() / 1_000_000).unwrap_or(0);
    let read = shelf.read_template(&key).map_err(|error| error.to_string());
    let read = read.and_then(|layer| Template::read(&layer).map_err(|found| lines(&found)));
    let (description, params, error) = match read {
        Ok(template) => (template.description, template.params, None),
        Err(error) => (String::new(), Vec::new(), Some(error)),
    };
    Some(Listed { key, description, params, owner: file.uid(), changed: Timestamp(changed), error })
}

fn list(shelf: &Shelf, filter: &Filter, long: bool, format: Format) -> anyhow::Result<Exit> {
    let all = shelf.list_templates()?.into_iter();
    let mut found: Vec<Listed> = all.filter_map(|key| listed(shelf, key)).collect();
    let is_empty = found.is_empty();
    filter.apply(&mut found)?;
    if format == Format::Json {
        found.iter().try_for_each(|listed| output::json(&as_json(listed)))?;
        return Ok(Exit::Success);
    }
    if found.is_empty() {
        output::line(match is_empty {
            true => "no templates; `trainyard template save JOB NAME` makes one of a job",
            false => "no such templates; `trainyard template ls` lists all",
        })?;
        return Ok(Exit::Success);
    }
    let heads: &[&str] = match long {
        true => &["TEMPLATE", "CHANGED", "USER", "PARAMETERS", "DESCRIPTION"],
        false => &["TEMPLATE", "PARAMETERS", "DESCRIPTION"],
    };
    output::table(heads, &found.iter().map(|listed| row(listed, long)).collect::<Vec<_>>())?;
    Ok(Exit::Success)
}

fn row(listed: &Listed, long: bool) -> Vec<String> {
    let params: Vec<&str> = listed.params.iter().map(|param| param.name.as_str()).collect();
    let about = match &listed.error {
        Some(error) => format!("invalid: {}", error.lines().next().unwrap_or_default()),
        None => listed.description.clone(),
    };
    let mut row = vec![listed.key.to_string()];
    if long {
        row.extend([ps::seconds(&listed.changed.to_string()), ps::user_name(listed.owner)]);
    }
    row.extend([params.join(" "), about]);
    row
}

/// A part of name or description, or letters of the name in their order.
fn matches(listed: &Listed, text: &str) -> bool {
    let (text, name) = (text.to_lowercase(), listed.key.to_string().to_lowercase());
    let mut letters = name.chars();
    let is_near = text.chars().all(|wanted| letters.any(|letter| letter == wanted));
    is_near || listed.description.to_lowercase().contains(&text)
}

fn as_json(listed: &Listed) -> Value {
    let params = listed.params.iter().map(|param| {
        json!({
            "name": param.name, "type": param.kind.name(), "default": param.default(), "bounds": param.bounds(),
            "help": param.help,
        })
    });
    json!({
        "template": listed.key.to_string(), "description": listed.description, "params": params.collect::<Vec<_>>(),
        "owner": listed.owner, "changed": listed.changed.to_string(), "error": listed.error,
    })
}

fn show(shelf: &Shelf, key: &JobKey, format: Format) -> anyhow::Result<Exit> {
    let layer = shelf.read_template(key)?;
    let listed = listed(shelf, key.clone()).with_context(|| format!("template {key} has gone"))?;
    if format == Format::Json {
        let mut value = as_json(&listed);
        value["text"] = json!(layer.text);
        output::json(&value)?;
        return Ok(Exit::Success);
    }
    if let Some(error) = &listed.error {
        output::error(error);
    }
    let row = |param: &Param| {
        let default = param.default().map_or("(must be given)".to_owned(), str::to_owned);
        vec![param.name.clone(), param.kind.name().to_owned(), default, param.bounds(), param.help.clone()]
    };
    output::line(&format!("{key}: {}\n", listed.description))?;
    if !listed.params.is_empty() {
        let rows: Vec<_> = listed.params.iter().map(row).collect();
        output::table(&["PARAMETER", "TYPE", "DEFAULT", "BOUNDS", ""], &rows)?;
        output::line("")?;
    }
    output::line(layer.text.trim_end())?;
    Ok(if listed.error.is_some() { Exit::Failure } else { Exit::Success })
}

fn save(shelf: &Shelf, job: &JobKey, name: &JobKey, format: Format) -> anyhow::Result<Exit> {
    let (Made::ByFile(stack, _) | Made::BySweep(stack)) = shelf.stack_of(job)?;
    let expanded = stack.expand();
    let Some(spec) = expanded.spec else {
        tell(&expanded.diagnostics);
        return Ok(Exit::Failure);
    };
    let description = if spec.description.is_empty() { format!("from job {job}") } else { spec.description };
    match stack.as_template(&description) {
        Ok(text) => put(&shelf.template(name), &text)?,
        Err(found) => {
            tell(&found);
            return Ok(Exit::Failure);
        }
    }
    done(name, "saved", format)
}

/// Each is judged by itself, and every refusal is told.
fn remove(shelf: &Shelf, templates: &[JobKey], format: Format) -> anyhow::Result<Exit> {
    let mut exit = Exit::Success;
    for key in templates {
        let removed = shelf.read_template(key).and_then(|_| {
            fs::remove_file(shelf.template(key)).with_context(|| format!("template {key} cannot be removed"))
        });
        match removed {
            Ok(()) => drop(done(key, "removed", format)?),
            Err(error) => {
                output::error(&format!("{error:#}"));
                exit = Exit::Failure;
            }
        }
    }
    Ok(exit)
}
