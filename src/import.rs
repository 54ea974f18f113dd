//! Job files of other platforms → job files of ours. Pure: text in, text out.
//!
//! Each reader takes the fields that it carries out of the document; what is left over is known to mean nothing here
//! or is named as lost ([`fields`]). All of them fill the same [`draft`], which [`write`] prints. [`openpai_export`] goes the
//! other way; [`own`] reads jobs of ours as JSON. Called by the command line only; reads no file and asks no daemon.

mod command;
mod draft;
mod extras;
mod fields;
mod framework;
mod indent;
mod json;
mod kubeflow;
mod node;
pub mod openpai_export;
pub mod openpai_lacks;
mod openpai_tasks;
mod openpai_v1;
mod openpai_v2;
pub mod own;
mod pod;
mod quantity;
mod tags;
mod trainjob;
mod volcano;
mod write;

use std::fmt;

use node::{Node, Place};

/// A job of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Can name a job.
    pub name: String,
    pub toml: String,
    /// What the job file does not say, in the order of the source.
    pub losses: Vec<Loss>,
}

/// A field that could not be carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// As in `taskRoles.worker.commands`.
    pub field: String,
    /// From 1; 0 where it is not known.
    pub line: usize,
    /// Why, or what to do.
    pub why: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.why)
    }
}

/// What a file holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub jobs: Vec<Imported>,
    /// Objects that are no jobs, by kind and name.
    pub skipped: Vec<String>,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It is not JSON or YAML.
    #[error("line {line}, column {column}: {message}")]
    Syntax { line: usize, column: usize, message: String },
    /// A field says what its own platform would refuse, or what cannot be a job here.
    #[error("{place}`{field}` {message}", place = at(*line, *column))]
    Field { field: String, line: usize, column: usize, message: String },
    /// Nothing in it is a job of a platform that is known.
    #[error("no job of OpenPAI, FrameworkController, Volcano or Kubeflow is in it{0}; {advice}", advice = NO_IMPORT)]
    NoJob(String),
}

/// What is in every job that is read.
const OF_JOBS: [&str; 6] = ["kind:", "\"kind\"", "jobName", "taskRoles", "protocolVersion", "protocol_version"];

/// Where the way of other systems' jobs is told.
const NO_IMPORT: &str = "docs/IMPORT.md lists what is read, and docs/from/ (slurm, docker, octopus) and docs/CONTRACTS.md tell how jobs of other systems are written here";

fn at(line: usize, column: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}, column {column}: ") }
}

impl ImportError {
    fn syntax(place: Place, message: impl Into<String>) -> Self {
        Self::Syntax { line: place.line, column: place.column, message: message.into() }
    }

    fn field(field: &str, place: Place, message: impl Into<String>) -> Self {
        Self::Field { field: field.to_owned(), line: place.line, column: place.column, message: message.into() }
    }

    /// A script, and what has nothing of a job that is read, is of another system.
    fn advised(self, text: &str) -> Self {
        let is_of_others = text.starts_with("#!") || !OF_JOBS.iter().any(|word| text.contains(word));
        match self {
            Self::Syntax { line, column, message } if is_of_others => {
                Self::Syntax { line, column, message: format!("{message}; {NO_IMPORT}") }
            }
            other => other,
        }
    }

    /// What is about the whole job stands where its document does.
    fn or_at(self, place: Place) -> Self {
        match self {
            Self::Field { field, line: 0, message, .. } => Self::field(&field, place, message),
            other => other,
        }
    }
}

#[derive(Clone, Copy)]
enum Reader {
    Alone(fn(Node) -> Result<Imported, ImportError>),
    /// The runtimes of the file say something of it.
    Run(fn(Node, &[Node]) -> Result<Imported, ImportError>),
}

impl Reader {
    fn read(self, document: Node, runtimes: &[Node]) -> Result<Imported, ImportError> {
        match self {
            Self::Alone(read) => read(document),
            Self::Run(read) => read(document, runtimes),
        }
    }
}

/// Reads the jobs of a file; every one must be right.
pub fn import(text: &str) -> Result<Contents, ImportError> {
    let mut contents = Contents::default();
    let documents = node::documents(text).map_err(|error| error.advised(text))?;
    let documents: Vec<Node> = documents.into_iter().flat_map(objects).collect();
    let is_used = |runtime: &Node| documents.iter().any(|job| trainjob::uses(job, runtime));
    let used: Vec<bool> = documents.iter().map(is_used).collect();
    let (runtimes, documents): (Vec<_>, Vec<_>) = documents.into_iter().zip(used).partition(|(_, used)| *used);
    let runtimes: Vec<Node> = runtimes.into_iter().map(|(runtime, _)| runtime).collect();
    for (document, _) in documents {
        if document.is_null() {
            continue;
        }
        match reader_of(&document) {
            Some(reader) => {
                let place = document.place;
                contents.jobs.push(reader.read(document, &runtimes).map_err(|error| error.or_at(place))?);
            }
            None => contents.skipped.push(description(&document)),
        }
    }
    if !contents.jobs.is_empty() {
        return Ok(contents);
    }
    let found =
        if contents.skipped.is_empty() { String::new() } else { format!(", only {}", contents.skipped.join(", ")) };
    Err(ImportError::NoJob(found))
}

/// What `kubectl get -o yaml` prints of several objects is a list of them.
fn objects(document: Node) -> Vec<Node> {
    let is_list = document.get("kind").and_then(Node::scalar).as_deref() == Some("List");
    match document.get("items").map(|items| &items.value) {
        Some(node::Value::List(items)) if is_list => items.clone(),
        _ => vec![document],
    }
}

/// Formats are told apart by what only they have.
fn reader_of(document: &Node) -> Option<Reader> {
    let word = |name: &str| document.get(name).and_then(Node::scalar).unwrap_or_default();
    let (version, kind) = (word("apiVersion"), word("kind"));
    if version.starts_with("batch.volcano.sh/") && kind == "Job" {
        return Some(Reader::Alone(volcano::read));
    }
    if version.starts_with("kubeflow.org/") && kubeflow::knows(&kind) {
        return Some(Reader::Alone(kubeflow::read));
    }
    if framework::knows(&version, &kind) {
        return Some(Reader::Alone(framework::read));
    }
    if version.starts_with("trainer.kubeflow.org/") && kind == "TrainJob" {
        return Some(Reader::Run(trainjob::read));
    }
    if openpai_tasks::knows(document) {
        return Some(Reader::Alone(openpai_tasks::read));
    }
    if document.get("protocolVersion").is_some() {
        return (word("type") == "job").then_some(Reader::Alone(openpai_v2::read));
    }
    let is_first = document.get("jobName").is_some() || document.get("taskRoles").is_some();
    is_first.then_some(Reader::Alone(openpai_v1::read))
}

fn description(document: &Node) -> String {
    let word = |name: &str| document.get(name).and_then(Node::scalar);
    if document.get("protocol_version").is_some() {
        return "an object in the form that OpenPAI had before its protocol v2".to_owned();
    }
    let kind = word("kind").or_else(|| word("type")).unwrap_or_else(|| "an object of no known kind".to_owned());
    let named = document.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Node::scalar);
    match named.or_else(|| word("name")) {
        Some(name) => format!("{kind} {name:?}"),
        None => kind,
    }
}

#[cfg(test)]
mod tests;
