//! `trainyard template ls|show|save|copy|rm`

use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::complete::Named;
use super::listing::{Form, Listed, Listing, whole};
use super::output::{self, Format};
use super::shelf::{Made, Shelf, tell};
use super::{Exit, NotFound, ps, times};
use crate::api::templates::{ParamView, TemplateDetail, TemplateView};
use crate::ids::JobKey;

#[derive(Debug, Subcommand)]
pub enum TemplateVerb {
    /// List templates
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// Show whose they are and when they were changed
        #[arg(short, long)]
        long: bool,
        #[command(flatten)]
        listed: Listed,
    },
    /// Show a template: what it is for, its parameters, its file
    Show {
        /// TEMPLATE, or WORKSPACE/TEMPLATE
        #[arg(add = Named::Templates.completer())]
        template: JobKey,
    },
    /// Make a template of a job file, with its own template and overrides in it
    Save {
        /// JOB, also one of a sweep
        #[arg(add = Named::Jobs.completer())]
        job: JobKey,
        /// The name of the template
        name: JobKey,
    },
    /// Copy a template
    Copy {
        /// TEMPLATE, or WORKSPACE/TEMPLATE
        #[arg(add = Named::Templates.completer())]
        from: JobKey,
        /// The name of the copy
        to: JobKey,
    },
    /// Remove templates; jobs that were started from them go on
    Rm {
        /// TEMPLATE, or WORKSPACE/TEMPLATE
        #[arg(required = true, add = Named::Templates.completer())]
        templates: Vec<JobKey>,
    },
}

/// Which templates are listed: those that all of it is true of.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only those with this in their name or description, whatever the case
    text: Option<String>,
    /// Only those of this workspace; those of `default` are for jobs of all
    #[arg(short, long, add = Named::Workspaces.completer())]
    workspace: Option<String>,
    #[command(flatten)]
    origin: ps::Origin,
}

impl Filter {
    fn apply(&self, all: &mut Vec<TemplateView>) -> anyhow::Result<()> {
        all.retain(|listed| self.text.as_ref().is_none_or(|text| matches(listed, text)));
        self.origin.retain(all, |listed| (listed.owner, listed.changed.clone()))
    }
}

impl TemplateVerb {
    /// The one that it names beside templates.
    pub(super) fn workspace(&self) -> Option<&str> {
        match self {
            Self::Ls { filter, .. } => filter.workspace.as_deref(),
            _ => None,
        }
    }
}

pub(super) fn run(root: &Path, verb: TemplateVerb, format: Format) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    match verb {
        TemplateVerb::Ls { filter, long, listed } => list(&shelf, &filter, listed.or_wide(long, format)),
        TemplateVerb::Show { template } => show(&shelf, &template, format),
        TemplateVerb::Save { job, name } => save(&shelf, &job, &name, format),
        TemplateVerb::Copy { from, to } => {
            shelf.put(&shelf.template(&to), &shelf.read_template(&from)?.text)?;
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

/// None where its file has gone meanwhile.
fn listed(shelf: &Shelf, key: &JobKey) -> Option<TemplateView> {
    TemplateDetail::read(&shelf.template(key), key).map(|detail| detail.template)
}

fn list(shelf: &Shelf, filter: &Filter, form: Form) -> anyhow::Result<Exit> {
    let all = shelf.list_templates()?.into_iter();
    let of = filter.workspace.as_deref();
    let all = all.filter(|key| of.is_none_or(|workspace| workspace == key.workspace.as_str()));
    let mut found: Vec<TemplateView> = all.filter_map(|key| listed(shelf, &key)).collect();
    let is_empty = found.is_empty();
    filter.apply(&mut found)?;
    let listing = Listing {
        heads: &["TEMPLATE", "CHANGED", "USER", "PARAMETERS", "DESCRIPTION"],
        wide: &["CHANGED", "USER"],
        cells: row,
        name: |listed| listed.template.clone(),
        json: whole,
        nothing: match is_empty {
            true => "no templates; `trainyard template save JOB NAME` makes one of a job",
            false => "no such templates; `trainyard template ls` lists all",
        },
    };
    listing.print(&found, form)?;
    Ok(Exit::Success)
}

fn row(listed: &TemplateView) -> Vec<String> {
    let params: Vec<&str> = listed.params.iter().map(|param| param.name.as_str()).collect();
    let about = match &listed.error {
        Some(error) => format!("invalid: {}", error.lines().next().unwrap_or_default()),
        None => listed.description.clone(),
    };
    let (changed, user) = (times::seconds(&listed.changed), ps::user_name(listed.owner));
    vec![listed.template.clone(), changed, user, params.join(" "), about]
}

/// A part of name or description, or letters of the name in their order.
fn matches(listed: &TemplateView, text: &str) -> bool {
    let (text, name) = (text.to_lowercase(), listed.template.to_lowercase());
    let mut letters = name.chars();
    let is_near = text.chars().all(|wanted| letters.any(|letter| letter == wanted));
    is_near || listed.description.to_lowercase().contains(&text)
}

fn show(shelf: &Shelf, key: &JobKey, format: Format) -> anyhow::Result<Exit> {
    let layer = shelf.read_template(key)?;
    let listed = listed(shelf, key).with_context(|| format!("template {key} has gone"))?;
    if format == Format::Json {
        output::json(&TemplateDetail { template: listed, text: layer.text })?;
        return Ok(Exit::Success);
    }
    if let Some(error) = &listed.error {
        output::error(error);
    }
    let row = |param: &ParamView| {
        let default = param.default.clone().unwrap_or_else(|| "(must be given)".to_owned());
        vec![param.name.clone(), param.kind.clone(), default, param.bounds.clone(), param.help.clone()]
    };
    output::line(&format!("{key}: {}\n", output::plain(&listed.description)))?;
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
        Ok(text) => shelf.put(&shelf.template(name), &text)?,
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
        let removed = shelf.read_template(key).and_then(|_| shelf.remove_template(key));
        match removed {
            Ok(()) => drop(done(key, "removed", format)?),
            Err(error) => {
                output::error(&format!("{error:#}"));
                exit = if error.downcast_ref::<NotFound>().is_some() { Exit::NotFound } else { Exit::Failure };
            }
        }
    }
    Ok(exit)
}
