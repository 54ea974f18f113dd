//! One job from several files: a template, the job file on top of it, and overrides on top of that.
//!
//! Each file is checked by itself. Tables merge, everything else is replaced; the result is read as a job file is, and
//! what is wrong with it is told at the place in the file that said it. A job of one file is that file, untouched.
//! The values of one job of a sweep lie on top of all. The numbers of specs that `resources` name are put in
//! last.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::check::{self, Language};
use super::diagnostic::{self, Diagnostic, Severity, Source};
use super::job::JobSpec;
use super::near::nearest;
use super::resource_specs::{self, Filled, Offer, Price};
use super::sweep::{self, Chosen, Combination};
use super::template::{Given, Param, Template, error, too_large};
use super::tree::{self, Entry, Origin, take};
use super::{JOB_FILE_MAX_BYTES, parse, parse_source, sort};
use crate::ids::JobName;

/// Most overrides of a job.
pub const OVERRIDES_MAX: usize = 64;
pub(super) const NOTHING: &str = "has no key, only blanks or comments: was it written half? Write it whole, with a `command` or any other key, or remove it";
pub(super) const WITH_ALONE: &str = "`with` gives values to a template, but no `template` is named";
/// Keys that make no new run: what [`JobSpec::meaning`] leaves out.
const LIVE: [&str; 11] = [
    "alerts",
    "description",
    "expected_duration",
    "extras",
    "max_duration",
    "on_edit",
    "on_gpu_failure",
    "on_overrun",
    "priority",
    "rerun",
    "state",
];

/// The mode of a file that nobody else reads.
pub const OWNER_ALONE: u32 = 0o600;

/// A file with its name for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub file: String,
    pub text: String,
    /// Who may read it, as mode of a file that is the job's owner's and has the group of the job file: `0600` to `0644`.
    pub read_by: u32,
}

impl Layer {
    pub fn new(file: &str, text: &str) -> Self {
        Self { file: file.to_owned(), text: text.to_owned(), read_by: OWNER_ALONE }
    }

    /// Whether it has no key.
    pub(super) fn says_nothing(&self) -> bool {
        let is_nothing = |line: &str| line.is_empty() || line.starts_with('#');
        self.text.trim_start_matches('\u{feff}').lines().map(str::trim).all(is_nothing)
    }

    /// Text that is not UTF-8 is a diagnostic like any other.
    pub fn from_bytes(file: &str, bytes: Vec<u8>) -> Result<Self, Diagnostic> {
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { file: file.to_owned(), text, read_by: OWNER_ALONE }),
            Err(error) => Err(diagnostic::not_text(file, error.as_bytes(), error.utf8_error().valid_up_to())),
        }
    }
}

/// The files that make up a job, as far as they have been read.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    pub job: Layer,
    /// In the order in which they lie on top of each other.
    pub overrides: Vec<Layer>,
    /// The template that [`Stack::wanted`] names, if it is there.
    pub template: Option<Layer>,
    /// Templates that it might have meant by one that is not there.
    pub templates: Vec<String>,
    /// What was left aside of its files, as warnings.
    pub passed_over: Vec<Diagnostic>,
    /// Sizes that `resources` may name.
    pub specs: Offer,
    /// The values of one job of a sweep.
    combination: Option<Chosen>,
}

/// What a job says beside what it takes from elsewhere: its template, and specs.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateUse {
    /// None where it names specs alone.
    pub name: Option<String>,
    /// A hash of what it says.
    pub own: String,
    /// Which keys that act at once it says itself.
    pub own_live: BTreeSet<String>,
    /// Of an hour of its tasks, by the specs that it names.
    pub price: Option<Price>,
}

/// What the files come to.
#[derive(Debug)]
pub struct Expanded {
    pub spec: Option<JobSpec>,
    /// A job file that means the same; the file itself if there is only one.
    pub text: String,
    pub template: Option<TemplateUse>,
    pub diagnostics: Vec<Diagnostic>,
}

impl Stack {
    pub fn of(job: Layer) -> Self {
        Self {
            job,
            overrides: Vec::new(),
            template: None,
            templates: Vec::new(),
            passed_over: Vec::new(),
            specs: Offer::new(),
            combination: None,
        }
    }

    /// A job that says nothing but what template it is made of.
    pub fn of_template(template: Layer) -> Self {
        let job = Layer::new(&template.file, "template = \"of-itself\"");
        Self { template: Some(template), ..Self::of(job) }
    }

    /// What is wrong with its template, with parameters that do not fit their keys and, where each has a default, with the job that
    /// these make.
    pub fn problems_of_template(&self) -> Vec<Diagnostic> {
        let Some(layer) = &self.template else { return Vec::new() };
        match Template::read(layer) {
            Err(found) => return found,
            Ok(template) => {
                let misfits = template.misfits(layer);
                if !misfits.is_empty() || !template.params.iter().all(Param::has_default) {
                    return misfits;
                }
            }
        }
        let found = self.expand().diagnostics.into_iter().filter(Diagnostic::is_error);
        let told = |found: Diagnostic| Diagnostic {
            message: format!("as a job of the template's defaults: {}", found.message),
            ..found
        };
        found.map(told).collect()
    }

    /// The name of the template that the job lies on top of.
    pub fn wanted(&self) -> Option<String> {
        let named = self.own_layers().rev().filter(|layer| layer.text.contains("template")).find_map(|layer| {
            let entries = tree::read(&layer.text, 0)?;
            Some(tree::get(&entries, "template")?.node.as_text().map(str::to_owned))
        });
        named.flatten()
    }

    fn own_layers(&self) -> impl DoubleEndedIterator<Item = &Layer> {
        std::iter::once(&self.job).chain(&self.overrides)
    }

    /// The job file is all that there is.
    fn is_alone(&self) -> bool {
        self.overrides.is_empty() && self.combination.is_none()
    }

    fn is_plain(&self) -> bool {
        let says = |word| self.job.text.contains(word);
        self.is_alone() && !["template", "with", "spec"].into_iter().any(says)
    }

    /// Whether one of the files may name a spec.
    pub fn may_name_specs(&self) -> bool {
        let is_key = |rest: &str| rest.trim_start_matches(['"', '\'', ' ', '\t']).starts_with('=');
        let names = |layer: &Layer| layer.text.split("spec").skip(1).any(is_key);
        self.own_layers().chain(&self.template).any(names)
    }

    /// The jobs that the files make of themselves, if they are a sweep.
    pub fn combinations(&self, job: &JobName) -> Result<Option<Vec<Combination>>, Vec<Diagnostic>> {
        if !self.own_layers().any(|layer| layer.text.contains("sweep")) {
            return Ok(None);
        }
        // What is wrong with the files beside that is told when they are read.
        let Ok(own) = self.own() else { return Ok(None) };
        let sweep = tree::get(&own, "sweep");
        sweep.map(|sweep| sweep::combinations(sweep, job, &self.layers())).transpose()
    }

    /// One of the jobs.
    pub fn with(&self, combination: &Combination) -> Self {
        Self { combination: Some(combination.chosen.clone()), ..self.clone() }
    }

    /// Who may read all that it is made of; as of a [`Layer`].
    pub fn read_by(&self) -> u32 {
        self.layers().iter().fold(self.job.read_by, |all, layer| all & layer.read_by)
    }

    /// Puts the files together and reads the job.
    pub fn expand(&self) -> Expanded {
        let mut expanded = self.put_together();
        expanded.diagnostics.extend(self.passed_over.iter().cloned());
        expanded
    }

    fn put_together(&self) -> Expanded {
        // What was written half must not run as a job that only sleeps.
        if self.own_layers().all(Layer::says_nothing) {
            let diagnostics = vec![Diagnostic::of_file(&self.job.file, NOTHING.to_owned())];
            return Expanded { spec: None, text: String::new(), template: None, diagnostics };
        }
        if self.is_plain() {
            return plain(&self.job);
        }
        let merged = self.merge().and_then(|mut merged| {
            let filled = resource_specs::fill(&mut merged.entries, &self.specs, &self.layers())?;
            Ok((merged, filled))
        });
        match merged {
            Ok((Merged { own: TemplateUse { name: None, .. }, .. }, Filled::No)) if self.is_alone() => plain(&self.job),
            Ok((merged, filled)) => self.read(merged, filled),
            Err(mut diagnostics) => {
                sort(&mut diagnostics);
                Expanded { spec: None, text: String::new(), template: None, diagnostics }
            }
        }
    }

    fn read(&self, merged: Merged, filled: Filled) -> Expanded {
        let (text, origins) = tree::write(&self.head(), &merged.entries, self.layers());
        if text.len() as u64 > JOB_FILE_MAX_BYTES {
            let diagnostics = vec![Diagnostic::of_file(&self.job.file, too_large())];
            return Expanded { spec: None, text: String::new(), template: None, diagnostics };
        }
        let (spec, diagnostics) = parse_source(&Source::merged(&self.job.file, &text, &origins), None);
        let price = match (&filled, &spec) {
            (Filled::Yes(prices), Some(spec)) => prices.hourly(spec),
            _ => None,
        };
        let takes_from_elsewhere = merged.own.name.is_some() || filled != Filled::No;
        let template = takes_from_elsewhere.then_some(TemplateUse { price, ..merged.own });
        Expanded { spec, template, diagnostics, text }
    }

    fn layers(&self) -> Vec<&Layer> {
        self.own_layers().chain(&self.template).collect()
    }

    /// A first line that says what was put together.
    fn head(&self) -> String {
        let files = self.template.iter().chain(self.own_layers()).map(|layer| layer.file.as_str());
        let files: Vec<&str> = files.chain(self.combination.iter().map(|chosen| chosen.told.as_str())).collect();
        format!("# Put together from {}\n", files.join(", ").replace(char::is_control, "?"))
    }

    fn merge(&self) -> Result<Merged, Vec<Diagnostic>> {
        let mut own = self.own()?;
        if self.combination.is_some() {
            take(&mut own, "sweep");
        }
        let mut said = TemplateUse { name: None, own: hash(&own), own_live: BTreeSet::new(), price: None };
        said.own_live = LIVE.iter().filter(|key| tree::get(&own, key).is_some()).map(|key| (*key).to_owned()).collect();
        let (name, with) = (take(&mut own, "template"), take(&mut own, "with"));
        let layers = self.layers();
        let Some(name) = name else {
            let alone = |with: Entry| Err(vec![error(&layers, with.at, "with", WITH_ALONE)]);
            return with.map_or(Ok(Merged { entries: own, own: said }), alone);
        };
        let template = name.node.as_text().unwrap_or_default();
        let entries = with.as_ref().map_or(&[][..], |with| with.node.entries());
        let given = Given { template, at: name.node.at, entries, layers: &layers };
        let Some(layer) = &self.template else {
            let near = nearest(template, self.templates.iter().map(String::as_str));
            let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
            let message = format!("there is no template {template:?} in this workspace or in the default one{near}");
            return Err(vec![given.error(name.node.at, "", message)]);
        };
        let mut entries = Template::read_as(layer, layers.len() - 1)?.fill(&given)?;
        tree::overlay(&mut entries, own);
        said.name = Some(template.to_owned());
        Ok(Merged { entries, own: said })
    }

    /// The job file with its overrides and the values of a combination.
    fn own(&self) -> Result<Vec<Entry>, Vec<Diagnostic>> {
        let check = |layer: &Layer| check::check(&Source::new(&layer.file, &layer.text), Language::Job);
        let mut found: Vec<Diagnostic> = self.own_layers().flat_map(check).collect();
        if let Some(chosen) = &self.combination {
            let (text, origins) = tree::write("", &chosen.entries, self.layers());
            found.extend(check::check(&Source::merged(&self.job.file, &text, &origins), Language::Job));
        }
        if !found.is_empty() {
            return Err(found);
        }
        let mut own = Vec::new();
        for (number, layer) in self.own_layers().enumerate() {
            tree::overlay(&mut own, tree::read(&layer.text, number).unwrap_or_default());
        }
        if let Some(chosen) = &self.combination {
            tree::overlay(&mut own, chosen.entries.clone());
        }
        Ok(own)
    }

    /// Whether a job waits for itself: for one of `names`, its own and that of its file, which may be a sweep's.
    pub fn awaits_itself(&self, names: &[&JobName], spec: &JobSpec) -> Option<Diagnostic> {
        let itself = spec.after.iter().find(|name| names.contains(name))?;
        let message = format!("`after` names the job itself ({itself}), which could never start; name others");
        Some(self.finding(Severity::Error, &["after".to_owned()], message))
    }

    /// What is found of the job that the files come to, told where they have the key `path`, or the innermost part of it.
    pub fn finding(&self, severity: Severity, path: &[String], message: String) -> Diagnostic {
        let entries = self.merge().map(|merged| merged.entries).unwrap_or_default();
        let whole = Found::of(&entries, path);
        // A role has from the job what it does not say itself.
        let of_job = path.get(2..).filter(|rest| !rest.is_empty()).map(|rest| Found::of(&entries, rest));
        let is_better = |of_job: &Found| of_job.depth > 0 && of_job.depth + 2 > whole.depth;
        let found = of_job.filter(is_better).unwrap_or(whole);
        let layers = self.layers();
        let Some((layer, at)) = found.at.and_then(|at| Some((layers.get(at.layer)?, at))) else {
            return Diagnostic { severity, key: Some(path.join(".")), ..Diagnostic::of_file(&self.job.file, message) };
        };
        let told = Source::new(&layer.file, &layer.text).error(at.start..at.start, &found.key, message);
        Diagnostic { severity, ..told }
    }

    /// The job as a template: what it comes to, without what is a job's alone.
    pub fn as_template(&self, description: &str) -> Result<String, Vec<Diagnostic>> {
        let mut entries = self.merge()?.entries;
        entries.retain(|entry| !["state", "rerun"].contains(&entry.name.as_str()));
        let (text, _) = tree::write("", &entries, self.layers());
        let description = toml::Value::String(description.to_owned());
        Ok(format!("{text}\n[template]\ndescription = {description}\n"))
    }
}

/// How far a path leads into the files, and where its end stands.
#[derive(Default)]
struct Found {
    depth: usize,
    key: String,
    at: Option<Origin>,
}

impl Found {
    fn of(entries: &[Entry], path: &[String]) -> Self {
        let (mut found, mut entries) = (Self::default(), entries);
        while let Some(entry) = path.get(found.depth).and_then(|name| tree::get(entries, name)) {
            let depth = found.depth + 1;
            let key = path.get(..depth).unwrap_or_default().join(".");
            (found, entries) = (Self { depth, key, at: Some(entry.at) }, entry.node.entries());
        }
        found
    }
}

struct Merged {
    entries: Vec<Entry>,
    own: TemplateUse,
}

fn plain(job: &Layer) -> Expanded {
    let (spec, diagnostics) = parse(&job.file, &job.text);
    Expanded { spec, text: job.text.clone(), template: None, diagnostics }
}

/// Stored with runs: another way to make it would run every job of a template again.
fn hash(own: &[Entry]) -> String {
    let lasting: Vec<Entry> = own.iter().filter(|entry| !LIVE.contains(&entry.name.as_str())).cloned().collect();
    let digest = Sha256::digest(tree::canonical(&lasting).as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
