//! Templates: job files with parameters. `${NAME}` of a declared parameter in a string stands for its value; whatever
//! else is written so, such as `${HOME}`, stays for the shell.

use super::check::{self, Language};
use super::diagnostic::{Diagnostic, Source};
use super::layers::Layer;
use super::tree::{self, Entry, Node, Origin, Plain, Scalar, Value};
use super::{JOB_FILE_MAX_BYTES, sort};
use crate::ids::{Bytes, parse_duration};

/// A template that may be used.
#[derive(Debug)]
pub struct Template {
    pub description: String,
    /// In the order of the file.
    pub params: Vec<Param>,
    /// The job in it.
    pub(super) body: Vec<Entry>,
}

#[derive(Debug)]
pub struct Param {
    pub name: String,
    pub kind: ParamKind,
    pub help: String,
    default: Option<Node>,
    min: Option<Scalar>,
    max: Option<Scalar>,
    choices: Vec<Scalar>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    String,
    Integer,
    Number,
    Bool,
    Size,
    Duration,
}

const KINDS: [(&str, ParamKind); 6] = [
    ("string", ParamKind::String),
    ("integer", ParamKind::Integer),
    ("number", ParamKind::Number),
    ("bool", ParamKind::Bool),
    ("size", ParamKind::Size),
    ("duration", ParamKind::Duration),
];

/// Keys that are the job's own to say: they act at once, and an edited template acts on later runs only.
/// Most parameters of a template.
const PARAMS_MAX: usize = 100;
/// Longest name of one that is looked for in a string, bytes.
const NAME_MAX: usize = 200;
const NOT_IN_TEMPLATES: [&str; 4] = ["state", "rerun", "with", "sweep"];

impl ParamKind {
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// A value given on a command line, as TOML has it.
    pub fn literal(self, text: &str) -> String {
        match self {
            ParamKind::String | ParamKind::Size | ParamKind::Duration => {
                toml::Value::String(text.to_owned()).to_string()
            }
            ParamKind::Integer | ParamKind::Number | ParamKind::Bool => {
                // What is no such value is told when the file is checked; it must not become other keys.
                let is_plain =
                    text.chars().all(|c| c.is_ascii_alphanumeric() || "+-._".contains(c)) && !text.is_empty();
                if is_plain && tree::read(&format!("x = {text}"), 0).is_some() {
                    text.to_owned()
                } else {
                    toml::Value::String(text.to_owned()).to_string()
                }
            }
        }
    }
}

/// A value that can be more or less than another.
#[derive(Debug, PartialEq, PartialOrd)]
enum Amount {
    Whole(i128),
    Real(f64),
}

impl Param {
    pub fn default(&self) -> Option<&str> {
        self.default.as_ref().and_then(Node::scalar).map(|scalar| scalar.written.as_str())
    }

    /// What values there are, in words; empty for all of its type.
    pub fn bounds(&self) -> String {
        let part =
            |word: &str, scalar: &Option<Scalar>| scalar.as_ref().map(|scalar| format!("{word} {}", scalar.written));
        let choices: Vec<&str> = self.choices.iter().map(|choice| choice.written.as_str()).collect();
        let choices = (!choices.is_empty()).then(|| choices.join(" or "));
        [part("at least", &self.min), part("at most", &self.max), choices]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
    }

    pub(super) fn has_default(&self) -> bool {
        self.default.is_some()
    }

    /// Where its default stands in the template, and as it is written there.
    pub(super) fn default_written(&self) -> Option<(usize, &str)> {
        let node = self.default.as_ref()?;
        Some((node.at.start, &node.scalar()?.written))
    }

    pub(super) fn is_named_in(&self, text: &str) -> bool {
        names_any(text, std::slice::from_ref(&self.name))
    }

    /// Why this cannot be its value, if it cannot.
    fn problem(&self, value: &Scalar) -> Option<String> {
        let amount = match measure(self.kind, value) {
            Ok(amount) => amount,
            Err(problem) => return Some(problem),
        };
        let beyond = |bound: &Option<Scalar>, is_beyond: fn(&Amount, &Amount) -> bool| {
            let bound = bound.as_ref()?;
            let limit = measure(self.kind, bound).ok()??;
            is_beyond(amount.as_ref()?, &limit).then(|| bound.written.clone())
        };
        if let Some(min) = beyond(&self.min, |amount, limit| amount < limit) {
            return Some(format!("is {}, must be at least {min}", value.written));
        }
        if let Some(max) = beyond(&self.max, |amount, limit| amount > limit) {
            return Some(format!("is {}, must be at most {max}", value.written));
        }
        let is_choice = |choice: &Scalar| match &amount {
            Some(amount) => measure(self.kind, choice).ok().flatten().as_ref() == Some(amount),
            None => choice.plain == value.plain,
        };
        let none = !self.choices.is_empty() && !self.choices.iter().any(is_choice);
        none.then(|| format!("is {}, must be {}", value.written, self.bounds()))
    }
}

/// The amount that a value is, if it is one; why it is not of the type.
fn measure(kind: ParamKind, value: &Scalar) -> Result<Option<Amount>, String> {
    match (kind, &value.plain) {
        (ParamKind::String, Plain::Text(_)) | (ParamKind::Bool, Plain::Bool(_)) => Ok(None),
        (ParamKind::Integer, Plain::Integer(number)) => Ok(Some(Amount::Whole(i128::from(*number)))),
        (ParamKind::Number, Plain::Integer(number)) => Ok(Some(Amount::Real(*number as f64))),
        (ParamKind::Number, Plain::Number(number)) if number.is_finite() => Ok(Some(Amount::Real(*number))),
        (ParamKind::Size, Plain::Text(text)) => {
            let size: Bytes = text.parse().map_err(|error: crate::ids::QuantityError| error.to_string())?;
            Ok(Some(Amount::Whole(i128::from(size.0))))
        }
        (ParamKind::Duration, Plain::Text(text)) => {
            let duration = parse_duration(text).map_err(|error| error.to_string())?;
            Ok(Some(Amount::Whole(i128::try_from(duration.as_millis()).unwrap_or(i128::MAX))))
        }
        _ => Err(format!("is {}, but takes {}", value.written, described(kind))),
    }
}

pub(super) fn described(kind: ParamKind) -> &'static str {
    match kind {
        ParamKind::String => "a string",
        ParamKind::Integer => "an integer",
        ParamKind::Number => "a number",
        ParamKind::Bool => "true or false",
        ParamKind::Size => "a size, as in \"4GiB\"",
        ParamKind::Duration => "a duration, as in \"2h\"",
    }
}

impl Template {
    /// Reads a template file.
    pub fn read(layer: &Layer) -> Result<Self, Vec<Diagnostic>> {
        Self::read_as(layer, 0)
    }

    /// As [`Self::read`]; the file is layer `number` of a job.
    pub(super) fn read_as(layer: &Layer, number: usize) -> Result<Self, Vec<Diagnostic>> {
        let source = Source::new(&layer.file, &layer.text);
        let mut body = tree::read(&layer.text, number).unwrap_or_default();
        let declared = tree::get(&body, "template").and_then(|head| tree::get(head.node.entries(), "params"));
        let names: Vec<String> =
            declared.map_or(&[][..], |params| params.node.entries()).iter().map(|param| param.name.clone()).collect();
        let mut found = forbidden(&body, &source);
        named_by_params(&body, &names, &source, &mut found);
        if layer.says_nothing() {
            found.push(Diagnostic::of_file(&layer.file, super::layers::NOTHING.to_owned()));
        }
        if let Some(more) = declared.and_then(|params| params.node.entries().get(PARAMS_MAX)) {
            let message = format!("a template has {PARAMS_MAX} parameters at most, this one {}", names.len());
            found.push(source.error(more.at.start..more.at.start, "template.params", message));
        }
        if found.is_empty() {
            found = check::check(&source, Language::Template { params: &names });
        }
        let place = body.iter().position(|entry| entry.name == "template");
        let head = place.map(|place| body.remove(place).node);
        let head = head.as_ref().map_or(&[][..], Node::entries);
        let params = params(head, &source, &mut found);
        if !found.is_empty() {
            sort(&mut found);
            return Err(found);
        }
        let description = tree::get(head, "description").and_then(|entry| entry.node.as_text());
        Ok(Self { description: description.unwrap_or_default().to_owned(), params, body })
    }

    /// Keys whose values are parameters of a type that they do not take, whatever a job says; `layer` is what was read. A job may lie
    /// on top with values of its own, so it is not asked for when one is made.
    pub fn misfits(&self, layer: &Layer) -> Vec<Diagnostic> {
        let mut found =
            check::check(&Source::new(&layer.file, &layer.text), Language::Fitting { params: &self.params });
        sort(&mut found);
        found
    }

    /// The job in it, with each parameter's given or default value; `with` is what was given, in the file `source`.
    pub(super) fn fill(self, with: &Given<'_>) -> Result<Vec<Entry>, Vec<Diagnostic>> {
        let mut found = Vec::new();
        let unknown = with.entries.iter().filter(|given| !self.params.iter().any(|param| param.name == given.name));
        for given in unknown {
            let names: Vec<&str> = self.params.iter().map(|param| param.name.as_str()).collect();
            let known =
                if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
            let message = format!("template {:?} has no parameter `{}`; {known}", with.template, given.name);
            found.push(with.error(given.at, &given.name, message));
        }
        let mut values = Vec::new();
        for param in &self.params {
            match with.value(param) {
                Ok(node) => values.push((param.name.as_str(), node)),
                Err(diagnostic) => found.push(*diagnostic),
            }
        }
        if !found.is_empty() {
            return Err(found);
        }
        let mut body = self.body;
        let mut filling = Filling { values: &values, room: JOB_FILE_MAX_BYTES };
        match body.iter_mut().try_for_each(|entry| filling.node(&mut entry.node)) {
            Ok(()) => Ok(body),
            Err(TooLarge) => Err(vec![with.error(with.at, "", too_large())]),
        }
    }
}

pub(super) fn too_large() -> String {
    format!("with its template and overrides the job has more than {} KiB", JOB_FILE_MAX_BYTES >> 10)
}

/// Keys that a template cannot have.
fn forbidden(body: &[Entry], source: &Source<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for entry in body {
        let at = entry.at.start..entry.at.start;
        if NOT_IN_TEMPLATES.contains(&entry.name.as_str()) {
            let message = format!("`{}` is for job files; a template cannot have it", entry.name);
            found.push(source.error(at, &entry.name, message));
        } else if entry.name == "template" && entry.node.scalar().is_some() {
            let message = "a template cannot lie on top of another one; `[template]` is a table here";
            found.push(source.error(at, "template", message));
        }
    }
    found
}

/// Keys that hold a parameter, which stands for values alone.
fn named_by_params(entries: &[Entry], params: &[String], source: &Source<'_>, found: &mut Vec<Diagnostic>) {
    for entry in entries {
        if names_any(&entry.name, params) {
            let message = format!("`{}`: a parameter stands for a value, it cannot be part of a key", entry.name);
            found.push(source.error(entry.at.start..entry.at.start, &entry.name, message));
        }
        named_by_params(entry.node.entries(), params, source, found);
    }
}

fn params(head: &[Entry], source: &Source<'_>, found: &mut Vec<Diagnostic>) -> Vec<Param> {
    let declared = tree::get(head, "params").map_or(&[][..], |params| params.node.entries());
    let mut params = Vec::new();
    for entry in declared {
        let param = param(entry);
        let key = format!("template.params.{}", entry.name);
        let mut error = |at: Origin, message: String| found.push(source.error(at.start..at.start, &key, message));
        if !is_param_name(&entry.name) {
            error(
                entry.at,
                format!("{:?} cannot be a parameter: it holds letters A–Z and a–z, digits, '-' and '_'", entry.name),
            );
        }
        let values =
            entry.node.entries().iter().filter(|value| ["default", "min", "max"].contains(&value.name.as_str()));
        for value in values {
            let Some(scalar) = value.node.scalar() else { continue };
            let problem = match value.name.as_str() {
                "default" => param.problem(scalar),
                _ if ["string", "bool"].contains(&param.kind.name()) => Some("is for amounts".to_owned()),
                _ => measure(param.kind, scalar).err(),
            };
            if let Some(problem) = problem {
                error(value.node.at, format!("`{key}.{}`: {problem}", value.name));
            }
        }
        let choices = tree::get(entry.node.entries(), "choices").map(|choices| &choices.node);
        if let Some(none) = choices.filter(|choices| matches!(&choices.value, Value::Array(items) if items.is_empty()))
        {
            error(
                none.at,
                format!("`{key}.choices` is empty: nothing could be given; leave it out, or write values into it"),
            );
        }
        if let Some(problem) = param.choices.iter().find_map(|choice| measure(param.kind, choice).err()) {
            error(entry.at, format!("`{key}.choices`: {problem}"));
        }
        params.push(param);
    }
    params
}

fn param(entry: &Entry) -> Param {
    let node = |name: &str| tree::get(entry.node.entries(), name).map(|entry| &entry.node);
    let scalar = |name: &str| node(name).and_then(Node::scalar).cloned();
    let word = node("type").and_then(Node::as_text);
    let told = KINDS.iter().find(|(name, _)| Some(*name) == word).map(|(_, kind)| *kind);
    let default = node("default");
    Param {
        name: entry.name.clone(),
        kind: told.unwrap_or_else(|| match default.and_then(Node::scalar).map(|scalar| &scalar.plain) {
            Some(Plain::Integer(_)) => ParamKind::Integer,
            Some(Plain::Number(_)) => ParamKind::Number,
            Some(Plain::Bool(_)) => ParamKind::Bool,
            _ => ParamKind::String,
        }),
        help: node("help").and_then(Node::as_text).unwrap_or_default().to_owned(),
        default: default.cloned(),
        min: scalar("min"),
        max: scalar("max"),
        choices: match node("choices").map(|node| &node.value) {
            Some(Value::Array(items)) => items.iter().filter_map(Node::scalar).cloned().collect(),
            _ => Vec::new(),
        },
    }
}

fn is_param_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

/// What a job gives to its template.
pub(super) struct Given<'a> {
    pub(super) template: &'a str,
    /// Where the job names its template.
    pub(super) at: Origin,
    pub(super) entries: &'a [Entry],
    pub(super) layers: &'a [&'a Layer],
}

impl Given<'_> {
    pub(super) fn error(&self, at: Origin, name: &str, message: String) -> Diagnostic {
        let key = if name.is_empty() { "template".to_owned() } else { format!("with.{name}") };
        error(self.layers, at, &key, message)
    }

    fn value(&self, param: &Param) -> Result<Node, Box<Diagnostic>> {
        let Some(given) = tree::get(self.entries, &param.name) else {
            let needs = || {
                let help = if param.help.is_empty() { String::new() } else { format!(" ({})", param.help) };
                let message = format!("template {:?} needs `with.{}`{help}", self.template, param.name);
                Box::new(self.error(self.at, &param.name, message))
            };
            return param.default.clone().ok_or_else(needs);
        };
        let problem = given.node.scalar().and_then(|scalar| param.problem(scalar));
        match problem {
            Some(problem) => {
                Err(Box::new(self.error(given.node.at, &param.name, format!("`with.{}`: {problem}", param.name))))
            }
            None => Ok(given.node.clone()),
        }
    }
}

/// An error at a place of one of the layers.
pub(super) fn error(layers: &[&Layer], at: Origin, key: &str, message: impl Into<String>) -> Diagnostic {
    match layers.get(at.layer) {
        Some(layer) => Source::new(&layer.file, &layer.text).error(at.start..at.start, key, message),
        None => Diagnostic::of_file("", message),
    }
}

/// What is put in would make the job larger than a job file may be.
struct TooLarge;

struct Filling<'a> {
    values: &'a [(&'a str, Node)],
    /// Bytes that may still be put in.
    room: u64,
}

impl Filling<'_> {
    fn node(&mut self, node: &mut Node) -> Result<(), TooLarge> {
        match &mut node.value {
            Value::Array(items) => return items.iter_mut().try_for_each(|item| self.node(item)),
            Value::Table(entries) => return entries.iter_mut().try_for_each(|entry| self.node(&mut entry.node)),
            Value::Scalar(_) => {}
        }
        let Some(text) = node.as_text() else { return Ok(()) };
        let whole = self.values.iter().find(|(name, _)| whole_name(text) == Some(name));
        if let Some((_, value)) = whole {
            self.take(value)?;
            *node = value.clone();
            return Ok(());
        }
        if let Some(filled) = self.text(text)? {
            node.value = Value::Scalar(Scalar::text(filled));
        }
        Ok(())
    }

    fn take(&mut self, value: &Node) -> Result<(), TooLarge> {
        let size = value.scalar().map_or(0, |scalar| scalar.written.len() as u64);
        self.room = self.room.checked_sub(size).ok_or(TooLarge)?;
        Ok(())
    }

    /// The text with values put in; `None` when there is nothing to put in.
    fn text(&mut self, text: &str) -> Result<Option<String>, TooLarge> {
        let mut out = String::new();
        let mut rest = text;
        let mut is_changed = false;
        while let Some((before, name, after)) = next_hole(rest) {
            out.push_str(before);
            match self.values.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => {
                    self.take(value)?;
                    out.push_str(&value.scalar().map(Scalar::within_text).unwrap_or_default());
                    rest = after;
                    is_changed = true;
                }
                None => {
                    out.push_str("${");
                    rest = rest.get(before.len() + 2..).unwrap_or_default();
                }
            }
        }
        out.push_str(rest);
        Ok(is_changed.then_some(out))
    }
}

/// The name in a string that is `${NAME}` and nothing else.
pub(super) fn whole_name(text: &str) -> Option<&str> {
    text.strip_prefix("${")?.strip_suffix('}')
}

/// What stands before the next `${NAME}`, the name, and what stands behind it.
fn next_hole(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("${")?;
    let end = rest.bytes().take(NAME_MAX).position(|byte| byte == b'}');
    let (name, after) = end.map_or(("", rest), |end| (&rest[..end], &rest[end + 1..]));
    Some((before, name, after))
}

/// Whether a string names one of these parameters.
pub(super) fn names_any(text: &str, params: &[String]) -> bool {
    text.split("${")
        .skip(1)
        .filter_map(|rest| rest.split('}').next())
        .any(|name| params.iter().any(|param| param == name))
}
