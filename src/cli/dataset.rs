//! `trainyard dataset ls|show|import|publish|verify|rm`
//!
//! All but `rm` work on the mounted tree, with the rights of whoever calls.

mod draft;
mod fetch;
mod import;

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use self::draft::Directory;
use super::change;
use super::complete::Named;
use super::listing::{Form, Listed, Listing};
use super::output::{self, Format};
use super::progress::Progress;
use super::whose::{self, Whose};
use super::{Exit, NotFound, WrongArgument};
use crate::api::client::Client;
use crate::assets::manifest::{self, Difference, Reader, State, Totals, shown, verify};
use crate::assets::{DRAFT, LATEST, MANIFEST, SHARED, flag, freeze::may_be_version};
use crate::ids::{AssetName, Bytes, WorkspaceName};
use crate::sys::process;

#[derive(Debug, Subcommand)]
pub enum DatasetVerb {
    /// List datasets that jobs of the workspace may name, with their versions
    Ls {
        /// Only those whose name has this text in it
        text: Option<String>,
        /// Those that this workspace sees
        #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
        workspace: WorkspaceName,
        #[command(flatten)]
        listed: Listed,
    },
    /// Show a dataset's versions: how large, when, by whom
    Show {
        /// The name of the dataset
        #[arg(add = Named::Datasets.completer())]
        name: AssetName,
        #[command(flatten)]
        home: Whose,
    },
    /// Bring files into a draft: a directory's content, a file, or what an http(s) address gives; goes on where it broke off
    Import {
        /// A path or an address
        source: String,
        /// The name of the dataset
        #[arg(add = Named::Datasets.completer())]
        name: AssetName,
        #[command(flatten)]
        home: Whose,
    },
    /// Make a version of the draft: nobody can change it any more
    Publish {
        /// The name of the dataset
        #[arg(add = Named::Datasets.completer())]
        name: AssetName,
        /// What to call the version
        version: AssetName,
        #[command(flatten)]
        home: Whose,
    },
    /// Read a version and compare it with its manifest
    Verify {
        /// NAME[@VERSION]; the newest version when absent
        #[arg(add = Named::Versions.completer())]
        dataset: String,
        #[command(flatten)]
        home: Whose,
    },
    /// Remove published versions that no job uses
    Rm {
        /// NAME@VERSION
        #[arg(required = true, add = Named::Versions.completer())]
        datasets: Vec<String>,
        #[command(flatten)]
        home: Whose,
    },
}

/// The one that jobs would find; where there is none, where it would be.
fn dataset_of(root: &Path, home: &Whose, name: &AssetName) -> anyhow::Result<PathBuf> {
    let places = home.homes().map(|home| Ok(datasets(root, home)?.join(name.as_str())));
    let mut places = places.collect::<anyhow::Result<Vec<PathBuf>>>()?;
    let found = places.iter().position(|place| place.symlink_metadata().is_ok()).unwrap_or(0);
    Ok(places.swap_remove(found))
}

/// In the mounted tree.
fn datasets(root: &Path, home: &str) -> anyhow::Result<PathBuf> {
    whose::place(root, home, "datasets")
}

pub(super) async fn run(
    root: &Path,
    client: impl FnOnce() -> anyhow::Result<Client>,
    verb: DatasetVerb,
    format: Format,
) -> anyhow::Result<Exit> {
    match verb {
        DatasetVerb::Ls { text, workspace, listed } => {
            list(root, &workspace, text.as_deref().unwrap_or_default(), listed.form(format))
        }
        DatasetVerb::Show { name, home } => show(&dataset_of(root, &home, &name)?, &name, &flag(home.home()), format),
        DatasetVerb::Import { source, name, home } => {
            import::import(&datasets(root, home.home())?, &name, &source, format).await
        }
        DatasetVerb::Publish { name, version, home } => {
            let dataset = datasets(root, home.home())?.join(name.as_str());
            // What has no directory has no draft either.
            found(&dataset, &name, &flag(home.home()))?;
            publish(&datasets(root, home.home())?, &name, (&version, &flag(home.home())), format)
        }
        DatasetVerb::Verify { dataset, home } => {
            let (name, version) = split(&dataset)?;
            check(&dataset_of(root, &home, &name)?, &name, (version.as_ref(), &flag(home.home())), format)
        }
        DatasetVerb::Rm { datasets, home } => {
            let client = client()?;
            let named = datasets.iter().map(|dataset| match split(dataset)? {
                (name, Some(version)) if version.as_str() == LATEST => Err(WrongArgument(format!(
                    "{dataset}: say which version, as in {name}@v1; `latest` leads to another one when that has gone"
                ))),
                (name, Some(version)) => Ok((name, version)),
                (name, None) => Err(WrongArgument(format!("{name}: say which version, as in {name}@v1"))),
            });
            let named = named.collect::<Result<Vec<_>, _>>()?;
            let mut exit = Exit::Success;
            for (name, version) in named {
                let done = client.dataset_remove(home.home(), name.as_str(), version.as_str()).await;
                let what = json!({ "dataset": name, "version": version, "done": "remove" });
                change::tell(done, &what, format, &mut exit)?;
            }
            Ok(exit)
        }
    }
}

fn tell(message: &str, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(&json!({ "message": message })),
        Format::People => output::line(message),
    }
}

/// NAME[@VERSION]
fn split(dataset: &str) -> Result<(AssetName, Option<AssetName>), WrongArgument> {
    let (name, version) = dataset.split_once('@').map_or((dataset, None), |(name, version)| (name, Some(version)));
    let parse = |text: &str| {
        let named = text.parse::<AssetName>();
        named.map_err(|error| WrongArgument(format!("{text:?} is no name of a dataset or version: {error}")))
    };
    Ok((parse(name)?, version.map(parse).transpose()?))
}

/// Whether a job could name it: where all may write, anything may lie.
fn is_name(text: &str) -> bool {
    text.parse::<AssetName>().is_ok()
}

/// What a dataset's directory holds.
struct Found {
    versions: Vec<String>,
    latest: Option<String>,
    has_draft: bool,
}

fn look(dataset: &Path) -> io::Result<Found> {
    let names = fs::read_dir(dataset)?.map(|entry| entry.map(|entry| entry.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let text = names.iter().filter_map(|name| name.to_str());
    let versions = text.filter_map(|name| name.strip_suffix(MANIFEST)).filter(|version| is_name(version));
    let mut versions: Vec<_> = versions.map(str::to_owned).collect();
    versions.sort();
    let latest = fs::read_link(dataset.join(LATEST)).ok().and_then(|latest| latest.to_str().map(str::to_owned));
    Ok(Found { versions, latest, has_draft: names.iter().any(|name| name == DRAFT) })
}

fn list(root: &Path, workspace: &WorkspaceName, text: &str, form: Form) -> anyhow::Result<Exit> {
    let mut rows = Vec::new();
    for home in [workspace.as_str()].into_iter().chain(SHARED) {
        let place = datasets(root, home)?;
        let entries = fs::read_dir(&place)?.map(|entry| entry.map(|entry| entry.file_name()));
        let mut names = entries.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        let texts = names.iter().filter_map(|name| name.to_str()).filter(|name| name.contains(text));
        for name in texts.filter(|name| is_name(name)) {
            let kind = if home == workspace.as_str() { "mine" } else { home };
            // Somebody's own that others may not look into, or just a file.
            let Ok(found) = look(&place.join(name)) else { continue };
            rows.push(Kept { name: name.to_owned(), kind: kind.to_owned(), found });
        }
    }
    let listing = Listing {
        heads: &["NAME", "KIND", "LATEST", "VERSIONS"],
        wide: &[],
        cells: Kept::cells,
        name: |kept: &Kept| kept.name.clone(),
        json: |Kept { name, kind, found }| {
            let Found { versions, latest, has_draft } = found;
            Ok(json!({ "name": name, "kind": kind, "versions": versions, "latest": latest, "draft": has_draft }))
        },
        nothing: match text.is_empty() {
            true => "no datasets; `trainyard dataset import PATH NAME` brings one in",
            false => "no such datasets; `trainyard dataset ls` lists all",
        },
    };
    listing.print(&rows, form)?;
    Ok(Exit::Success)
}

/// A dataset that jobs may name.
struct Kept {
    name: String,
    kind: String,
    found: Found,
}

impl Kept {
    fn cells(&self) -> Vec<String> {
        let mut versions = self.found.versions.clone();
        versions.extend(self.found.has_draft.then(|| DRAFT.to_owned()));
        let versions = if versions.is_empty() { "(a directory)".to_owned() } else { versions.join(" ") };
        vec![self.name.clone(), self.kind.clone(), self.found.latest.clone().unwrap_or_default(), versions]
    }
}

fn manifest_path(dataset: &Path, version: &str) -> PathBuf {
    dataset.join(format!("{version}{MANIFEST}"))
}

fn open_manifest(dataset: &Path, version: &str) -> io::Result<BufReader<File>> {
    Ok(BufReader::new(File::open(manifest_path(dataset, version))?))
}

/// `of` is what says on the command line whose it is.
fn found(dataset: &Path, name: &AssetName, of: &str) -> anyhow::Result<Found> {
    match look(dataset) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A list has those that all share as well.
            let of = if of.starts_with(" -w") { of } else { "" };
            let listed = format!("`trainyard dataset ls{of}` lists them");
            Err(NotFound(format!("there is no dataset {name} at {}; {listed}", dataset.display())).into())
        }
        found => found.with_context(|| format!("cannot look into {}", dataset.display())),
    }
}

fn show(dataset: &Path, name: &AssetName, of: &str, format: Format) -> anyhow::Result<Exit> {
    let found = found(dataset, name, of)?;
    let mut rows = Vec::new();
    for version in &found.versions {
        let (mut totals, mut published) = (None, "is being published".to_owned());
        if state_of(dataset, version)? == State::Complete {
            let reader = Reader::new(open_manifest(dataset, version)?)?;
            published = reader.published().to_owned();
            totals = Some(reader.count().with_context(|| format!("the manifest of {version} is damaged"))?);
        }
        rows.push((version, totals, published));
    }
    if format == Format::Json {
        for (version, totals, published) in rows {
            let totals = totals.map(|Totals { files, bytes }| json!({ "files": files, "bytes": bytes }));
            output::json(
                &json!({ "name": name, "version": version, "latest": found.latest.as_ref() == Some(version), "published": published, "holds": totals }),
            )?;
        }
        return Ok(Exit::Success);
    }
    let rows = rows.into_iter().map(|(version, totals, published)| {
        let mark = if found.latest.as_ref() == Some(version) { format!("{version} (latest)") } else { version.clone() };
        let size = totals.map_or(String::new(), |totals| Bytes(totals.bytes).to_string());
        vec![mark, totals.map_or(String::new(), |totals| totals.files.to_string()), size, published]
    });
    match found.versions.is_empty() {
        true => output::line(&unpublished(name, of))?,
        false => output::table(&["VERSION", "FILES", "SIZE", "PUBLISHED"], &rows.collect::<Vec<_>>())?,
    }
    if found.has_draft {
        output::line(&format!("and a draft: `trainyard dataset publish {name} VERSION{of}` makes a version of it"))?;
    }
    Ok(Exit::Success)
}

/// The manifest is put in place whole, so a reader may meet one that has just been replaced.
fn state_of(dataset: &Path, version: &str) -> anyhow::Result<State> {
    let open = || open_manifest(dataset, version).and_then(manifest::state);
    open().or_else(|_| open()).with_context(|| format!("cannot read {}", manifest_path(dataset, version).display()))
}

/// How often the manifest is asked how far it is: what is changed behind a mount nobody is told of.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How many of those that write to a draft are named.
const TOLD_WRITERS: usize = 3;

fn publish(
    datasets: &Path,
    name: &AssetName,
    (version, of): (&AssetName, &str),
    format: Format,
) -> anyhow::Result<Exit> {
    let dataset = &datasets.join(name.as_str());
    let (draft, target) = (dataset.join(DRAFT), dataset.join(version.as_str()));
    if !may_be_version(version.as_str()) {
        let why = format!("a version cannot be called {version}, which has a meaning here: take another name, as v1");
        return Err(WrongArgument(why).into());
    }
    if fs::symlink_metadata(&target).is_ok() {
        bail!("{name} has a version {version} already; what is published is not replaced: take another name");
    }
    if !fs::symlink_metadata(&draft).is_ok_and(|metadata| metadata.is_dir()) {
        bail!("{name} has no draft: put files into {}, or `trainyard dataset import PATH {name}{of}`", draft.display());
    }
    if fs::read_dir(&draft)?.next().is_none() {
        bail!("the draft of {name} is empty: put files into {}", draft.display());
    }
    if let Some(part) = broken_off(&draft)? {
        bail!("{} has not come whole: call `trainyard dataset import` again, or remove it", part.display());
    }
    // Whoever may write beside it does not lead us elsewhere by a link.
    let held = Directory::open(datasets).and_then(|datasets| datasets.existing(name.as_str()));
    let renamed = held.and_then(|dataset| dataset.rename(DRAFT, version.as_str()));
    if renamed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
        bail!("{name} is not published half-written: {}; close it and try again", written_in(&draft));
    }
    renamed.with_context(|| format!("cannot publish {name}: {} to {}", draft.display(), target.display()))?;
    let (mut line, told_as) = (Progress::new(format), format!("{name}@{version}"));
    loop {
        match state_of(dataset, version.as_str())? {
            State::Complete => break,
            State::Failing(why) => {
                line.end();
                bail!(
                    "{name}@{version} is frozen, but its manifest cannot be made now: {why}; it is tried again every minute"
                );
            }
            State::Pending { done, of } => {
                line.set(&told_as, || format!("frozen, {} of {} read", Bytes(done).roughly(), Bytes(of).roughly()));
            }
        }
        std::thread::park_timeout(ASK_EVERY);
    }
    line.end();
    let totals = Reader::new(open_manifest(dataset, version.as_str())?)?.count()?;
    let told = format!("published {name}@{version}: {} file(s), {}", totals.files, Bytes(totals.bytes));
    let what = json!({
        "dataset": name, "version": version, "done": "publish", "files": totals.files, "bytes": totals.bytes, "message": told,
    });
    match format {
        Format::Json => output::json(&what)?,
        Format::People => output::line(&told)?,
    }
    Ok(Exit::Success)
}

/// What is being written there, and by whom, as far as the caller may see that.
fn written_in(draft: &Path) -> String {
    // `/proc` tells paths without links in them.
    let writers = draft.canonicalize().map(|draft| process::writers_below(&draft)).unwrap_or_default();
    let told = writers.iter().take(TOLD_WRITERS).map(|writer| {
        format!("{} is open to be written by {} (pid {})", writer.path.display(), writer.program, writer.pid)
    });
    match writers.is_empty() {
        true => format!(
            "a file in {} is open to be written, or mapped so, by a process that cannot be seen from here (another user's, or a task's)",
            draft.display()
        ),
        false => told.collect::<Vec<_>>().join(", "),
    }
}

fn unpublished(name: &AssetName, of: &str) -> String {
    format!("{name} has no published version; `trainyard dataset publish {name} VERSION{of}` makes one of its draft")
}

fn check(
    dataset: &Path,
    name: &AssetName,
    (version, of): (Option<&AssetName>, &str),
    format: Format,
) -> anyhow::Result<Exit> {
    let found = found(dataset, name, of)?;
    let version = match version.map(AssetName::as_str).filter(|version| *version != LATEST) {
        Some(version) => version.to_owned(),
        // Of several that are all still being published each says so.
        None => {
            found.latest.or_else(|| found.versions.last().cloned()).ok_or_else(|| NotFound(unpublished(name, of)))?
        }
    };
    if !found.versions.contains(&version) {
        return Err(NotFound(format!(
            "there is no published version {version} of {name}; `trainyard dataset show {name}{of}` lists what there is"
        ))
        .into());
    }
    let manifest = open_manifest(dataset, &version)
        .with_context(|| format!("cannot read {}", manifest_path(dataset, &version).display()))?;
    let tree = dataset.join(&version);
    let tree = File::open(&tree).with_context(|| format!("cannot open {}", tree.display()))?;
    let (mut line, mut read, mut wrong) = (Progress::new(format), 0, 0_u64);
    let told_as = format!("{name}@{version}");
    let mut told = Ok(());
    let totals = verify(
        &tree,
        manifest,
        &mut |count| {
            read += count;
            line.set(&told_as, || format!("{} read", Bytes(read).roughly()));
        },
        &mut |difference| {
            wrong += 1;
            let (what, path) = match &difference {
                Difference::Changed(path) => ("changed", path),
                Difference::Missing(path) => ("missing", path),
                Difference::Extra(path) => ("extra", path),
            };
            let one = match format {
                Format::Json => output::json(&json!({ "difference": what, "path": path.to_string_lossy() })),
                Format::People => output::line(&format!("{what}: {}", shown(path))),
            };
            told = std::mem::replace(&mut told, Ok(())).and(one);
        },
    );
    line.end();
    told?;
    let totals = totals.with_context(|| format!("cannot compare {name}@{version} with its manifest"))?;
    if wrong > 0 {
        output::error(&format!(
            "{name}@{version} is not what was published: {wrong} difference(s); put the right files into the draft and \
             `trainyard dataset publish {name} NEW-VERSION{of}`: nothing damaged is taken over from {version}"
        ));
        return Ok(Exit::Failure);
    }
    tell(
        &format!("{name}@{version} is as it was published: {} file(s), {}", totals.files, Bytes(totals.bytes)),
        format,
    )?;
    Ok(Exit::Success)
}

/// A file below `directory` of which only a part has come.
fn broken_off(directory: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if draft::is_unfinished(&entry.file_name()) {
            return Ok(Some(entry.path()));
        }
        if entry.file_type()?.is_dir()
            && let Some(found) = broken_off(&entry.path())?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_job_can_name_is_no_version() {
        let dataset = tempfile::tempdir().unwrap();
        for version in ["v1", "a\u{1b}[2Jb", "$(x)"] {
            fs::write(manifest_path(dataset.path(), version), "").unwrap();
        }
        assert_eq!(look(dataset.path()).unwrap().versions, ["v1"]);
    }
}
