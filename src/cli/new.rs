//! `trainyard new JOB --template T -p K=V…`, `trainyard new JOB --from FILE` and `trainyard clone JOB NEW`: job files from
//! what there is; `trainyard new JOB` asks.

mod ask;

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::json;

use super::output::{self, Format};
use super::shelf::{Made, Shelf, tell};
use super::{Exit, WrongArgument, check, unreadable};
use crate::api::client::Client;
use crate::ids::JobKey;
use crate::import::Loss;
use crate::import::own::Keys;
use crate::spec::template::Template;
use crate::spec::{Diagnostic, Layer, Stack};

/// What a new job file is made of: a template with values, or a file with all of it.
pub(super) struct From<'a> {
    pub(super) template: Option<&'a str>,
    pub(super) file: Option<&'a Path>,
    pub(super) values: &'a [String],
}

pub(super) use ask::Depth;

/// Whether somebody sits there who can be asked for what is not given.
pub(super) fn can_ask(from: &From<'_>, format: Format) -> bool {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    from.file.is_none() && from.values.is_empty() && format == Format::People && is_terminal
}

/// Asks for it all.
pub(super) async fn ask(
    client: &Client,
    root: &Path,
    job: &JobKey,
    template: Option<&str>,
    depth: Depth,
    over: bool,
) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    let path = shelf.job(job)?;
    let input = std::io::stdin().lock();
    let questions =
        ask::Questions { client, shelf: &shelf, job, path: &path, input, text: String::new(), template: None };
    questions.run(template, depth, over, Format::People).await
}

/// What becomes of the file that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    New,
    Over,
    /// It is printed; `over` says whether one that is there would be written over.
    Nothing {
        over: bool,
    },
}

impl Writes {
    pub(super) fn of(over: bool, dry_run: bool) -> Self {
        match (dry_run, over) {
            (true, over) => Self::Nothing { over },
            (false, true) => Self::Over,
            (false, false) => Self::New,
        }
    }
}

pub(super) async fn new(
    client: &Client,
    root: &Path,
    job: &JobKey,
    from: &From<'_>,
    writes: Writes,
    format: Format,
) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    let path = shelf.job(job)?;
    let given = match from.file {
        Some(_) if !from.values.is_empty() => {
            bail!("-p gives values to a template; in the file they are keys of [with]")
        }
        Some(file) => Some(keys(file)?),
        None => None,
    };
    let template = match &given {
        Some(given) => template_of(&given.text),
        None => from.template.map(str::to_owned),
    };
    let text = given.as_ref().map(|given| given.text.clone()).unwrap_or_default();
    let layer = template.as_deref().map(|name| shelf.find_template(&job.workspace, name)).transpose()?;
    let text = match (&layer, template) {
        (Some(layer), Some(name)) if from.file.is_none() => match Template::read(layer) {
            Ok(read) => job_file(&name, &read, from.values)?,
            Err(found) => {
                tell(&found);
                return Ok(Exit::Failure);
            }
        },
        _ => text,
    };
    let named = given.as_ref().map_or_else(|| path.display().to_string(), |given| given.shown.clone());
    let mut stack = Stack::of(Layer::new(&named, &text));
    stack.template = layer;
    shelf.offer(&mut stack, &path)?;
    let mut found = check::judge(client, &shelf, &path, &stack, &job.job).await;
    if let Some(Given { keys: Some(keys), .. }) = &given {
        // Lines are those of what it became.
        found.iter_mut().filter(|found| found.file == named).for_each(|found| put_back(found, keys));
        let told = |loss: &Loss| output::aside(&output::plain(&format!("{named}:{}: {loss}", loss.line)));
        keys.losses.iter().for_each(told);
    }
    if !is_good(&found) {
        return Ok(Exit::Failure);
    }
    match writes {
        Writes::Over if path.exists() => shelf.replace(&path, &text)?,
        Writes::New if path.exists() => bail!(
            "{} is there already; nothing was written: take another name, or write over it with --replace",
            path.display()
        ),
        Writes::Over | Writes::New => shelf.put(&path, &text)?,
        Writes::Nothing { over } => {
            may_write(&shelf, &path, over)?;
            return would_write(job, &path, &text, format);
        }
    }
    written(job, &path, format)
}

/// Tells what was found; whether nothing of it keeps the job from being made.
fn is_good(found: &[Diagnostic]) -> bool {
    if found.iter().any(Diagnostic::is_error) {
        tell(found);
        return false;
    }
    found.iter().for_each(|warning| output::aside(&output::plain(&warning.to_string())));
    true
}

/// What is refused when it is written is refused before.
fn may_write(shelf: &Shelf, path: &Path, over: bool) -> anyhow::Result<()> {
    if !over && path.symlink_metadata().is_ok() {
        bail!("{} is there already; nothing would be written without --replace", path.display());
    }
    shelf.would_write(path)
}

fn would_write(job: &JobKey, path: &Path, text: &str, format: Format) -> anyhow::Result<Exit> {
    let is_there = path.exists();
    match format {
        Format::Json => {
            output::json(&json!({ "job": job.to_string(), "would_write": path, "over": is_there, "text": text }))?
        }
        Format::People => {
            output::aside(&format!("would {}: {}", if is_there { "write over" } else { "write" }, path.display()));
            output::line(text.trim_end())?;
        }
    }
    Ok(Exit::Success)
}

/// To the place in the JSON of the key that it is about.
fn put_back(found: &mut Diagnostic, keys: &Keys) {
    let place = found.key.as_deref().and_then(|key| keys.place(key));
    (found.line, found.column) = place.unwrap_or_default();
}

/// Longest text that is taken, bytes: that of a job file.
const TEXT_MAX: u64 = 256 << 10;

/// What was given for a job file.
struct Given {
    /// How people are told of it.
    shown: String,
    text: String,
    /// Where it was JSON.
    keys: Option<Keys>,
}

/// The text of a job file; what is one object of JSON becomes TOML, in the same order.
fn keys(file: &Path) -> anyhow::Result<Given> {
    let shown = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(TEXT_MAX + 1).read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|file| file.take(TEXT_MAX + 1).read_to_string(&mut text)),
    };
    if read.map_err(|error| unreadable(Path::new(&shown), error))? as u64 > TEXT_MAX {
        bail!("{shown} is larger than {TEXT_MAX} bytes, which is the most that a job file may have");
    }
    if text.trim().is_empty() {
        // It would be a job that sleeps; what was to write its keys has failed.
        bail!("{shown} is empty; nothing was written");
    }
    if !text.trim_start().starts_with('{') {
        return Ok(Given { shown, text, keys: None });
    }
    // Its errors tell line and column.
    let keys = Keys::read(&text).with_context(|| format!("{shown} is no JSON of a job's keys"))?;
    Ok(Given { shown, text: keys.toml.clone(), keys: Some(keys) })
}

/// Of text that may be wrong, which is told later.
fn template_of(text: &str) -> Option<String> {
    text.parse::<toml::Table>().ok()?.get("template")?.as_str().map(str::to_owned)
}

fn job_file(name: &str, template: &Template, values: &[String]) -> anyhow::Result<String> {
    let description = template.description.replace(char::is_control, " ");
    let comment = if description.is_empty() { String::new() } else { format!("# {description}\n") };
    let mut text = format!("{comment}template = {}\n", toml::Value::String(name.to_owned()));
    let mut seen: Vec<&str> = Vec::new();
    for value in values {
        let wrong = || WrongArgument(format!("{value:?} is not written as NAME=VALUE"));
        let (key, value) = value.split_once('=').ok_or_else(wrong)?;
        let known: Vec<&str> = template.params.iter().map(|param| param.name.as_str()).collect();
        let Some(param) = template.params.iter().find(|param| param.name == key) else {
            let known =
                if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
            return Err(WrongArgument(format!("template {name} has no parameter {key:?}; {known}")).into());
        };
        if seen.contains(&key) {
            return Err(WrongArgument(format!("{key} is given twice")).into());
        }
        if seen.is_empty() {
            text.push_str("\n[with]\n");
        }
        text.push_str(&format!("{key} = {}\n", param.kind.literal(value)));
        seen.push(key);
    }
    Ok(text)
}

/// The job file and its overrides as they are, under another name; of a job of a sweep what it comes to.
pub(super) async fn clone(
    client: &Client,
    root: &Path,
    from: &JobKey,
    to: &JobKey,
    held: bool,
    format: Format,
) -> anyhow::Result<Exit> {
    let shelf = Shelf::open(root)?;
    let target = shelf.job(to)?;
    let made = shelf.stack_of(from)?;
    if target.exists() {
        bail!("{} is there already; nothing was written: take another name", target.display());
    }
    let text = match &made {
        Made::ByFile(stack, _) => stack.job.text.clone(),
        Made::BySweep(stack) => stack.expand().text,
    };
    let comes_to = match &made {
        Made::ByFile(stack, _) | Made::BySweep(stack) => stack.expand().text,
    };
    let text = if held { self::held(&text, &comes_to)? } else { text };
    let overrides = match &made {
        Made::ByFile(stack, _) => stack.overrides.clone(),
        Made::BySweep(_) => Vec::new(),
    };
    let stack = shelf.stack_on(Layer::new(&target.display().to_string(), &text), overrides, &target)?;
    if !is_good(&check::judge(client, &shelf, &target, &stack, &to.job).await) {
        return Ok(Exit::Failure);
    }
    if let Made::ByFile(_, source) = &made {
        // Before the file: without it they are nobody's.
        shelf.copy_overrides(source, &target)?;
    }
    shelf.put(&target, &text)?;
    written(to, &target, format)
}

/// The text with a word that keeps the job from starting, and everything else as it is.
fn held(text: &str, comes_to: &str) -> anyhow::Result<String> {
    let says = |text: &str| -> anyhow::Result<bool> { Ok(text.parse::<toml::Table>()?.contains_key("state")) };
    if says(text)? || says(comes_to)? {
        bail!("its file or its overrides say what its state is: take that out first");
    }
    Ok(format!("state = \"held\"\n{text}"))
}

fn written(job: &JobKey, path: &Path, format: Format) -> anyhow::Result<Exit> {
    match format {
        Format::Json => output::json(&json!({ "job": job.to_string(), "file": path }))?,
        Format::People => output::line(&format!("{job}: {}", path.display()))?,
    }
    Ok(Exit::Success)
}
