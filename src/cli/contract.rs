//! `trainyard contract ls|show NAME`: what a script written for another platform will find, what of it is certain, and
//! what is our reading.

use std::fmt::Write;

use anyhow::bail;
use serde_json::{Value, json};

use super::listing::{Form, Listing};
use super::output::{self, Format};
use super::{Exit, NotFound};
use crate::contract::catalogue::{ABOUT, About, Example, example, of};
use crate::contract::layout::in_run;
use crate::contract::requirements::{self, Wanted};
use crate::contract::{Access, View, command, view};
use crate::spec::Contract;

pub(super) fn list(form: Form) -> anyhow::Result<Exit> {
    let listing = Listing {
        heads: &["CONTRACT", "SERVES"],
        wide: &[],
        cells: |about: &About| vec![about.name.to_owned(), about.serves.to_owned()],
        name: |about| about.name.to_owned(),
        json: |about| Ok(as_json(about)),
        nothing: "no contracts",
    };
    listing.print(ABOUT, form)?;
    Ok(Exit::Success)
}

fn as_json(about: &About) -> Value {
    json!({ "contract": about.name, "serves": about.serves, "certain": about.certain, "reading": about.reading })
}

pub(super) fn show(name: &str, format: Format) -> anyhow::Result<Exit> {
    let contract: Contract = name.parse().map_err(NotFound)?;
    let Some(about) = of(name) else { bail!("nothing is known of contract {name}") };
    let Example { spec, sample, shown, about: kind } = example(contract);
    let Some(task) = sample.tasks(&spec).nth(shown) else { bail!("contract {name} has no example") };
    let seen = view(&task);
    let installs = requirements::wanted(&task);
    let task = format!("{}-{}", task.role.name, task.index);
    match format {
        Format::Json => {
            let mut all = as_json(about);
            let env: serde_json::Map<String, Value> = of_platform(&seen).map(|(k, v)| (k.clone(), json!(v))).collect();
            if let Some(all) = all.as_object_mut() {
                all.insert(
                    "example".to_owned(),
                    json!({
                        "task": task, "installs": installs.map(|wanted| wanted.file),
                        "installs_code_with": installs.and_then(|wanted| wanted.package).map(|_| requirements::SETUP), "args": seen.args, "env": env, "directory": seen.working_directory,
                        "places": seen.places.iter().map(|place| &place.path).collect::<Vec<_>>(),
                        "directories": seen.directories,
                        "files": seen.files.iter().map(|file| json!([file.path, file.content])).collect::<Vec<_>>(),
                    }),
                );
            }
            output::json(&all)?;
        }
        Format::People => output::line(as_text(about, (&task, kind), &seen, installs).trim_end())?,
    }
    Ok(Exit::Success)
}

/// Without what every task has, whatever its contract.
fn of_platform(seen: &View) -> impl Iterator<Item = &(String, String)> {
    const OWN: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"];
    seen.env.iter().filter(|(name, _)| !OWN.contains(&name.as_str()) && !name.starts_with("TRAINYARD_"))
}

fn as_text(about: &About, (task, kind): (&str, &str), seen: &View, installs: Option<Wanted>) -> String {
    let mut out = format!("contract = {:?}\n  serves   {}\n", about.name, about.serves);
    for (title, text) in [("certain", about.certain), ("reading", about.reading)] {
        if !text.is_empty() {
            let _ = writeln!(out, "  {title:8} {text}");
        }
    }
    let _ =
        writeln!(out, "\nTask {task} of a job with {kind}, datasets = [\"train=mnist\"], params = {{ epochs = 3 }}");
    let _ = writeln!(out, "\n  runs     {}\n  starts in {}", command::display(&seen.args), seen.working_directory);
    if let Some(Wanted { file, package, .. }) = installs {
        let _ = writeln!(out, "  installs the Python packages of {file} in the code's root, if there is one");
        if package.is_some() {
            let _ = writeln!(out, "           and the code itself, if there is a {} in its root", requirements::SETUP);
        }
    }
    out.push_str("\nSees\n");
    for place in &seen.places {
        let access = match place.access {
            Access::ReadOnly => "read-only",
            Access::ReadWrite => "kept",
            Access::Scratch => "changes are the task's own",
        };
        let _ = writeln!(out, "  {:44} {}, {access}", place.path, place.content);
    }
    for path in &seen.directories {
        let kept = if in_run(&seen.places, path).is_some() { "kept" } else { "goes with the task" };
        let _ = writeln!(out, "  {path:44} a directory, {kept}");
    }
    for file in &seen.files {
        let _ = writeln!(out, "  {}", file.path);
        file.content.lines().for_each(|line| {
            let _ = writeln!(out, "    {line}");
        });
    }
    out.push_str("\nVariables, beside TRAINYARD_*\n");
    for (name, value) in of_platform(seen) {
        let _ = writeln!(out, "  {name}={value}");
    }
    out
}
