//! `trainyard dataset ls|show|import|publish|verify|rm`
//!
//! All but `rm` work on the mounted tree, with the rights of whoever calls.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::change;
use super::complete::Named;
use super::fetch;
use super::listing::{Form, Listed, Listing};
use super::output::{self, Format};
use super::progress::Progress;
use super::whose::{self, Whose};
use super::{Exit, NotFound};
use crate::api::client::Client;
use crate::assets::manifest::{self, Difference, Reader, State, Totals, shown, verify};
use crate::assets::{DRAFT, LATEST, MANIFEST, SHARED, freeze::may_be_version};
use crate::config::Paths;
use crate::ids::{AssetName, Bytes, WorkspaceName};

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

fn dataset_of(root: &Path, home: &Whose, name: &AssetName) -> anyhow::Result<PathBuf> {
    Ok(datasets(root, home.home())?.join(name.as_str()))
}

/// In the mounted tree.
fn datasets(root: &Path, home: &str) -> anyhow::Result<PathBuf> {
    whose::known(root, home)?;
    let place = Paths::new(root)?.mount_point().join(home).join("datasets");
    fs::metadata(&place).with_context(|| format!("cannot look into {}: is the daemon running?", place.display()))?;
    Ok(place)
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
        DatasetVerb::Show { name, home } => show(&dataset_of(root, &home, &name)?, &name, format),
        DatasetVerb::Import { source, name, home } => import(&dataset_of(root, &home, &name)?, &source, format).await,
        DatasetVerb::Publish { name, version, home } => {
            publish(&dataset_of(root, &home, &name)?, &name, &version, format)
        }
        DatasetVerb::Verify { dataset, home } => {
            let (name, version) = split(&dataset)?;
            check(&dataset_of(root, &home, &name)?, &name, version.as_ref(), format)
        }
        DatasetVerb::Rm { datasets, home } => {
            let client = client()?;
            let named = datasets.iter().map(|dataset| match split(dataset)? {
                (name, Some(version)) => Ok((name, version)),
                (name, None) => bail!("{name}: say which version, as in {name}@v1"),
            });
            let named = named.collect::<anyhow::Result<Vec<_>>>()?;
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
fn split(dataset: &str) -> anyhow::Result<(AssetName, Option<AssetName>)> {
    let (name, version) = dataset.split_once('@').map_or((dataset, None), |(name, version)| (name, Some(version)));
    let parse = |text: &str| text.parse::<AssetName>().with_context(|| format!("{text:?} is no name"));
    Ok((parse(name)?, version.map(parse).transpose()?))
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
    let mut versions: Vec<_> = text.filter_map(|name| name.strip_suffix(MANIFEST)).map(str::to_owned).collect();
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
        for name in names.iter().filter_map(|name| name.to_str()).filter(|name| name.contains(text)) {
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
        nothing: "no datasets; `trainyard dataset import PATH NAME` brings one in",
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

fn show(dataset: &Path, name: &AssetName, format: Format) -> anyhow::Result<Exit> {
    let missing = || NotFound(format!("there is no dataset {name} at {}", dataset.display()));
    let found = match look(dataset) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing().into()),
        found => found.with_context(|| format!("cannot look into {}", dataset.display()))?,
    };
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
    output::table(&["VERSION", "FILES", "SIZE", "PUBLISHED"], &rows.collect::<Vec<_>>())?;
    if found.has_draft {
        output::line(&format!("and a draft: `trainyard dataset publish {name} VERSION` makes a version of it"))?;
    }
    Ok(Exit::Success)
}

/// The manifest is put in place whole, so a reader may meet one that has just been replaced.
fn state_of(dataset: &Path, version: &str) -> anyhow::Result<State> {
    let open = || open_manifest(dataset, version).and_then(manifest::state);
    Ok(open().or_else(|_| open())?)
}

/// How often the manifest is asked how far it is: what is changed behind a mount nobody is told of.
const ASK_EVERY: Duration = Duration::from_millis(100);

fn publish(dataset: &Path, name: &AssetName, version: &AssetName, format: Format) -> anyhow::Result<Exit> {
    let (draft, target) = (dataset.join(DRAFT), dataset.join(version.as_str()));
    if !may_be_version(version.as_str()) {
        bail!("a version cannot be called {version}");
    }
    if fs::symlink_metadata(&target).is_ok() {
        bail!("{name} has a version {version} already; what is published is not replaced: take another name");
    }
    if !fs::symlink_metadata(&draft).is_ok_and(|metadata| metadata.is_dir()) {
        bail!("{name} has no draft: put files into {}, or `trainyard dataset import PATH {name}`", draft.display());
    }
    if fs::read_dir(&draft)?.next().is_none() {
        bail!("the draft of {name} is empty: put files into {}", draft.display());
    }
    if let Some(part) = broken_off(&draft)? {
        bail!("{} has not come whole: call `trainyard dataset import` again, or remove it", part.display());
    }
    fs::rename(&draft, &target)
        .with_context(|| format!("cannot publish {name}: {} to {}", draft.display(), target.display()))?;
    let mut line = Progress::new(format);
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
                line.set(|| format!("{name}@{version} is frozen; reading {} of {}", Bytes(done), Bytes(of)));
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

fn check(dataset: &Path, name: &AssetName, version: Option<&AssetName>, format: Format) -> anyhow::Result<Exit> {
    let version = match version {
        Some(version) => version.to_string(),
        None => look(dataset)?.latest.with_context(|| format!("{name} has no published version"))?,
    };
    let manifest = open_manifest(dataset, &version)
        .with_context(|| format!("there is no published version {version} of {name}"))?;
    let tree = File::open(dataset.join(&version))?;
    let (mut line, mut read, mut wrong) = (Progress::new(format), 0, 0_u64);
    let mut told = Ok(());
    let totals = verify(
        &tree,
        manifest,
        &mut |count| {
            read += count;
            line.set(|| format!("{name}@{version}: {} read", Bytes(read)));
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
        output::error(&format!("{name}@{version} is not what was published: {wrong} difference(s)"));
        return Ok(Exit::Failure);
    }
    tell(
        &format!("{name}@{version} is as it was published: {} file(s), {}", totals.files, Bytes(totals.bytes)),
        format,
    )?;
    Ok(Exit::Success)
}

async fn import(dataset: &Path, source: &str, format: Format) -> anyhow::Result<Exit> {
    let draft = dataset.join(DRAFT);
    fs::create_dir_all(&draft).with_context(|| format!("cannot make {}", draft.display()))?;
    let mut line = Progress::new(format);
    let mut brought = Brought::default();
    let is_address = ["http://", "https://"].iter().any(|scheme| source.starts_with(scheme));
    let mut told = |brought: &Brought| line.set(|| format!("{} file(s), {}", brought.files, Bytes(brought.bytes)));
    let done = match is_address {
        true => fetch::fetch(source, &draft, &mut brought, &mut told).await,
        false => bring(Path::new(source), &draft, &mut brought, &mut told),
    };
    line.end();
    if done.is_err() {
        // Nothing has come: no dataset is left behind. What is not empty stays.
        let _ = fs::remove_dir(&draft).and_then(|()| fs::remove_dir(dataset));
    }
    done?;
    let left = if brought.kept > 0 { format!(", {} were there already", brought.kept) } else { String::new() };
    let skipped = if brought.skipped > 0 {
        format!(", {} left out that are neither files, links nor directories", brought.skipped)
    } else {
        String::new()
    };
    tell(
        &format!("{} file(s), {} brought into {}{left}{skipped}", brought.files, Bytes(brought.bytes), draft.display()),
        format,
    )?;
    Ok(Exit::Success)
}

/// What has come.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// There already, of the same size and time.
    kept: u64,
    skipped: u64,
}

const PART: &str = ".trainyard-part";
/// Beside it: which state of the source it is of.
const MARK: &str = ".trainyard-mark";

/// A file below `directory` of which only a part has come.
fn broken_off(directory: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if [PART, MARK].iter().any(|end| entry.file_name().as_encoded_bytes().ends_with(end.as_bytes())) {
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

/// What is there of a file that is still coming.
pub(super) fn part_of(target: &Path) -> PathBuf {
    beside(target, PART)
}

/// Which state of its source the part is of.
pub(super) fn mark_of(target: &Path) -> PathBuf {
    beside(target, MARK)
}

fn beside(target: &Path, end: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(end);
    target.with_file_name(name)
}

fn bring(source: &Path, draft: &Path, brought: &mut Brought, told: &mut dyn FnMut(&Brought)) -> anyhow::Result<()> {
    let metadata = fs::metadata(source).with_context(|| format!("cannot read {}", source.display()))?;
    if metadata.is_dir() {
        return bring_below(source, draft, brought, told);
    }
    let name = source.file_name().with_context(|| format!("{} has no name", source.display()))?;
    bring_file(source, &draft.join(name), brought, told)
}

fn bring_below(
    source: &Path,
    target: &Path,
    brought: &mut Brought,
    told: &mut dyn FnMut(&Brought),
) -> anyhow::Result<()> {
    let at = |path: &Path| format!("cannot bring {}", path.display());
    for entry in fs::read_dir(source).with_context(|| at(source))? {
        let entry = entry.with_context(|| at(source))?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        let metadata = entry.metadata().with_context(|| at(&from))?;
        if metadata.is_dir() {
            match fs::create_dir(&to) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| at(&to));
                }
                _ => {}
            }
            bring_below(&from, &to, brought, told)?;
            fs::set_permissions(&to, metadata.permissions()).with_context(|| at(&to))?;
        } else if metadata.is_symlink() {
            let leads = fs::read_link(&from).with_context(|| at(&from))?;
            if fs::read_link(&to).ok().as_ref() != Some(&leads) {
                std::os::unix::fs::symlink(&leads, &to).with_context(|| at(&to))?;
            }
        } else if metadata.is_file() {
            bring_file(&from, &to, brought, told)?;
        } else {
            brought.skipped += 1;
        }
    }
    Ok(())
}

/// A file of the same size and time is there already; of one that broke off, what is there is kept.
fn bring_file(
    source: &Path,
    target: &Path,
    brought: &mut Brought,
    told: &mut dyn FnMut(&Brought),
) -> anyhow::Result<()> {
    let mut copy = || -> io::Result<Option<()>> {
        let mut from = File::open(source)?;
        let metadata = from.metadata()?;
        let time = metadata.modified()?;
        if fs::symlink_metadata(target).is_ok_and(|there| {
            there.is_file() && there.len() == metadata.len() && there.modified().is_ok_and(|there| there == time)
        }) {
            // A call may have been killed at its very end.
            crate::sys::file::remove_if_there(&mark_of(target))?;
            return Ok(None);
        }
        let (part, mark) = (part_of(target), mark_of(target));
        let state = format!("{} {} {} {:?}", metadata.dev(), metadata.ino(), metadata.len(), time);
        let mut to = File::options().create(true).truncate(false).write(true).open(&part)?;
        // A part of another file, or of another state of it, is begun anew.
        let is_known = fs::read_to_string(&mark).is_ok_and(|known| known == state);
        let has = if is_known { to.metadata()?.len().min(metadata.len()) } else { 0 };
        to.set_len(has)?;
        fs::write(&mark, &state)?;
        io::Seek::seek(&mut from, io::SeekFrom::Start(has))?;
        io::Seek::seek(&mut to, io::SeekFrom::Start(has))?;
        brought.bytes += has;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = io::Read::read(&mut from, &mut buffer)?;
            if count == 0 {
                break;
            }
            to.write_all(buffer.get(..count).unwrap_or_default())?;
            brought.bytes += count as u64;
            told(brought);
        }
        to.set_permissions(metadata.permissions())?;
        to.set_modified(time)?;
        fs::rename(&part, target)?;
        fs::remove_file(&mark)?;
        Ok(Some(()))
    };
    let done = copy().with_context(|| format!("cannot bring {} to {}", source.display(), target.display()))?;
    match done {
        Some(()) => brought.files += 1,
        None => brought.kept += 1,
    }
    Ok(())
}
