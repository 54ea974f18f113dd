//! `[sweep]`: one job file, a job for each combination of values.
//!
//! A combination lies on top of the files: it is checked and merged as an override is, and what is wrong with it is told where the
//! value stands in its list. Its name is made of its values, so that a file that gets more of them only adds jobs.

use std::collections::{BTreeSet, HashSet};

use sha2::{Digest, Sha256};

use super::diagnostic::Diagnostic;
use super::job::JobSpec;
use super::keys;
use super::layers::Layer;
use super::sort;
use super::template::error;
use super::tree::{self, Entry, Node, Origin, Value, written};
use crate::ids::{JobName, NameError};

/// Most jobs of a sweep.
pub const SWEEP_MAX: usize = 256;
/// Between the name of a sweep and the values of one of its jobs.
pub const SEPARATOR: char = '~';
const BETWEEN: &str = "~";
/// Of the hash behind values that are not as they were written.
const DIGITS: usize = 6;
/// Keys that say which jobs there are, so that no job can have its own.
const NOT_SWEPT: [&str; 2] = ["sweep", "template"];

/// One job of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Combination {
    pub name: JobName,
    /// The keys as they are written in the sweep, and their values.
    pub values: Vec<(String, String)>,
    pub(super) chosen: Chosen,
}

/// The values of a combination as keys of a job file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chosen {
    /// As files are called, for who reads what was put together.
    pub(super) told: String,
    /// Each comes from where it stands in its list.
    pub(super) entries: Vec<Entry>,
}

/// A key of the sweep and the values that it takes.
struct Axis<'e> {
    /// As written in the sweep.
    label: String,
    at: Origin,
    /// As a job file has it.
    path: Vec<String>,
    values: &'e [Node],
}

/// Jobs of a sweep whose output would be copied to one place of a store: each would write over the other's.
pub fn in_each_other_s_way<'a>(
    file: &str,
    jobs: impl Iterator<Item = (&'a JobName, &'a JobSpec)>,
) -> Option<Diagnostic> {
    let mut places = BTreeSet::new();
    let places = |(name, spec): (&JobName, &'a JobSpec)| {
        let remote = spec.copied_out()?;
        let place = (&remote.kind, &remote.pool, remote.prefix_of(name, 1));
        (!places.insert(place)).then(|| remote.to_string())
    };
    let place = { jobs }.find_map(places)?;
    let message =
        format!("`mounts`: several jobs of the sweep would copy their output to {place}; put {{job}} into it");
    Some(Diagnostic { key: Some("mounts".to_owned()), ..Diagnostic::of_file(file, message) })
}

/// What was found in the combinations, each mistake once: that of one value is found wherever it stands beside others.
pub fn told_once(found: impl IntoIterator<Item = Diagnostic>) -> Vec<Diagnostic> {
    let mut told: Vec<Diagnostic> = Vec::new();
    let mut seen = HashSet::new();
    for found in found {
        if seen.insert((found.file.clone(), found.line, found.column, found.message.clone())) {
            told.push(found);
        }
    }
    sort(&mut told);
    told
}

/// All combinations, the last key's values changing first.
pub(super) fn combinations(
    sweep: &Entry,
    job: &JobName,
    layers: &[&Layer],
) -> Result<Vec<Combination>, Vec<Diagnostic>> {
    let mut reader = Reader { layers, found: Vec::new(), axes: Vec::new() };
    reader.table(&mut Vec::new(), sweep.node.entries());
    if reader.axes.is_empty() && reader.found.is_empty() {
        reader.error(sweep.at, "`sweep` names nothing to sweep; write lists into it, such as lr = [0.1, 0.01]");
    }
    let count = reader.axes.iter().try_fold(1usize, |product, axis| product.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > SWEEP_MAX) {
        let sizes: Vec<String> = reader.axes.iter().map(|axis| axis.values.len().to_string()).collect();
        let message = format!(
            "`sweep`: {} combinations are more than {SWEEP_MAX}; split it into several files",
            sizes.join(" × ")
        );
        reader.error(sweep.at, message);
    }
    if !reader.found.is_empty() {
        return Err(reader.found);
    }
    let file = layers.first().map_or("", |layer| layer.file.as_str());
    let chosen = (0..count.unwrap_or(0)).map(|number| choose(&reader.axes, number)).collect::<Vec<_>>();
    let names = names(job, &chosen).map_err(|message| vec![error(layers, sweep.at, "sweep", message)])?;
    Ok(chosen.iter().zip(names).map(|(values, name)| combination(file, &reader.axes, values, name)).collect())
}

struct Reader<'e, 'l> {
    layers: &'l [&'l Layer],
    found: Vec<Diagnostic>,
    axes: Vec<Axis<'e>>,
}

impl<'e> Reader<'e, '_> {
    fn error(&mut self, at: Origin, message: impl Into<String>) {
        self.found.push(error(self.layers, at, "sweep", message));
    }

    /// Lists in tables of tables: `env.SEED = [1, 2]`.
    fn table(&mut self, path: &mut Vec<String>, entries: &'e [Entry]) {
        for entry in entries {
            path.push(entry.name.clone());
            match &entry.node.value {
                Value::Table(entries) => self.table(path, entries),
                Value::Array(values) => self.axis(path, entry, values),
                Value::Scalar(_) => {
                    let label = path.join(".");
                    let message =
                        format!("`sweep.{label}` is a single value; write a list, or `{label}` outside of `sweep`");
                    self.error(entry.node.at, message);
                }
            }
            path.pop();
        }
    }

    fn axis(&mut self, path: &[String], entry: &'e Entry, values: &'e [Node]) {
        let label = path.join(".");
        let first = path.first().map_or("", String::as_str);
        if NOT_SWEPT.contains(&first) {
            return self.error(entry.at, format!("`sweep.{label}`: `{first}` cannot be swept"));
        }
        if values.is_empty() {
            return self
                .error(entry.node.at, format!("`sweep.{label}` is an empty list: there would be no job at all"));
        }
        if values.len() > SWEEP_MAX {
            let message =
                format!("`sweep.{label}` holds {} values, more than the {SWEEP_MAX} jobs of a sweep", values.len());
            return self.error(entry.node.at, message);
        }
        let table = values.iter().find(|node| matches!(node.value, Value::Table(_)));
        if let Some(node) = table {
            return self.error(node.at, format!("`sweep.{label}` holds a table; name the keys in it, one list each"));
        }
        let again = |(place, node): (usize, &'e Node)| {
            values[..place].iter().find(|other| same(other, node)).map(|other| (other, node))
        };
        if let Some((other, node)) = values.iter().enumerate().find_map(again) {
            let (one, two) = (written(other), written(node));
            let message = match one == two {
                true => format!("`sweep.{label}` holds {two} twice"),
                false => {
                    format!("`sweep.{label}` holds {one} and {two}, whose jobs would have one name; leave one out")
                }
            };
            return self.error(node.at, message);
        }
        // What is no key of a job file is an argument.
        let is_argument = path.len() == 1 && keys::lookup(first).is_none();
        let path = is_argument.then(|| "params".to_owned()).into_iter().chain(path.iter().cloned()).collect();
        self.axes.push(Axis { label, at: entry.at, path, values });
    }
}

/// Also of numbers and texts that stand alike in a name, such as `1` and `"1"`.
fn same(one: &Node, other: &Node) -> bool {
    let are_scalars = one.scalar().is_some() && other.scalar().is_some();
    written(one) == written(other) || are_scalars && shown(one) == shown(other)
}

/// As it stands in a command line; lists by commas.
fn shown(node: &Node) -> String {
    match &node.value {
        Value::Scalar(scalar) => scalar.within_text(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(","),
        Value::Table(_) => String::new(),
    }
}

/// One value of each axis.
fn choose<'e>(axes: &[Axis<'e>], mut number: usize) -> Vec<&'e Node> {
    let mut chosen: Vec<&Node> = axes
        .iter()
        .rev()
        .filter_map(|axis| {
            let value = axis.values.get(number % axis.values.len());
            number /= axis.values.len();
            value
        })
        .collect();
    chosen.reverse();
    chosen
}

fn combination(file: &str, axes: &[Axis<'_>], chosen: &[&Node], name: JobName) -> Combination {
    let values: Vec<(String, String)> =
        axes.iter().zip(chosen).map(|(axis, node)| (axis.label.clone(), shown(node))).collect();
    let told: Vec<String> = values.iter().map(|(label, value)| format!("{label} = {value}")).collect();
    let told = told.join(", ").replace(char::is_control, "?");
    let mut entries = Vec::new();
    for (axis, node) in axes.iter().zip(chosen) {
        let entry = Entry::at_path(&axis.path, axis.at, (*node).clone());
        tree::overlay(&mut entries, entry.into_iter().collect());
    }
    Combination { name, values, chosen: Chosen { told: format!("{file} (sweep, {told})"), entries } }
}

/// `JOB~0.1~64`, by its own values alone: what else is in the lists gives no job another name.
fn names(job: &JobName, chosen: &[Vec<&Node>]) -> Result<Vec<JobName>, String> {
    let names: Result<Vec<JobName>, _> = chosen.iter().map(|values| name(job, values)).collect();
    let names =
        names.map_err(|error| format!("the name of this file leaves no room for the jobs of a sweep: {error}"))?;
    let mut taken = BTreeSet::new();
    let twice = names.iter().find(|name| !taken.insert(*name)).map(ToString::to_string);
    match twice {
        Some(name) => {
            Err(format!("`sweep`: two of its jobs would be called {name}; write one of their values otherwise"))
        }
        None => Ok(names),
    }
}

/// Values of which a letter was replaced have digits of a hash behind them; those that are too long, all of it in their place.
fn name(job: &JobName, values: &[&Node]) -> Result<JobName, NameError> {
    let (words, hash) = (words(values), hash(values));
    let is_whole = words == values.iter().map(|node| shown(node)).collect::<Vec<_>>().join(BETWEEN);
    let digits = hash.get(..DIGITS).filter(|_| !is_whole).map(|digits| format!("-{digits}")).unwrap_or_default();
    let readable: Result<JobName, NameError> = format!("{job}{BETWEEN}{words}{digits}").parse();
    readable.or_else(|_| format!("{job}{BETWEEN}{hash}").parse())
}

fn words(values: &[&Node]) -> String {
    let word = |node: &&Node| shown(node).replace(|c: char| !c.is_alphanumeric() && !"-_.".contains(c), "-");
    values.iter().map(word).collect::<Vec<_>>().join(BETWEEN)
}

fn hash(values: &[&Node]) -> String {
    let text = values.iter().map(|node| written(node)).collect::<Vec<_>>().join("\0");
    Sha256::digest(text.as_bytes()).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
