//! Models: what a run leaves in `/model`, published whole when it has succeeded, and seen by other jobs.
//!
//! ```text
//! runs/N/model/            while the run goes on, from attempt to attempt
//!     success ─▶ models/JOB/N/   with MODEL.toml; `latest` leads to it; runs/N/model is a link to it
//!     else    ─▶ runs/N/model.partial/
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use super::failed;
use super::workdirs::{Given, given, groups_of, seen_as};
use crate::assets::models::{models_file, newest_of, one_of};
use crate::config::Paths;
use crate::contract::{Identity, Sample, command};
use crate::engine::{EngineError, Release};
use crate::rundir::{read_json, write_json};
use crate::scalars::Scalar;
use crate::spec::{DataSource, Dataset, GpuPart, Role};
use crate::status::Verdict;
use crate::store::record::Owner;
use crate::sys::file::{Durability, create_dir, create_dir_for, remove_tree, replace_symlink, write_whole_for};
use crate::sys::process::with_file_rights;
use crate::sys::rooted::Rooted;

const TOLD: &str = "publish the model";
/// Of a task's usage, so much of the end is looked at for its last row, bytes.
const ROW_MAX: u64 = 4096;
/// And of its scalars, bytes: some hundred tags.
const SCALARS_MAX: u64 = 64 << 10;

/// Moves what the run has left to where it belongs. Done again it does nothing.
pub(super) fn publish(paths: &Paths, attempt: &Release) -> Result<(), EngineError> {
    let identity = &attempt.identity;
    let model = paths.run(&identity.key, identity.run).join("model");
    let is_there = fs::symlink_metadata(&model).is_ok_and(|metadata| metadata.is_dir());
    match attempt.verdict {
        Verdict::Succeeded { .. } => publish_whole(paths, attempt, &model, is_there),
        _ if attempt.is_last && is_there => {
            set_aside(&model).map_err(failed("set aside the model of a run that failed"))
        }
        _ => Ok(()),
    }
}

/// What a run that did not succeed has left is no model.
fn set_aside(model: &Path) -> io::Result<()> {
    if fs::read_dir(model)?.next().is_none() {
        return Ok(());
    }
    let partial = model.with_file_name("model.partial");
    remove_tree(&partial)?;
    fs::rename(model, partial)
}

fn publish_whole(paths: &Paths, attempt: &Release, model: &Path, is_there: bool) -> Result<(), EngineError> {
    let identity = &attempt.identity;
    let target = paths.model(&identity.key, identity.run);
    if is_there && !target.exists() {
        if fs::read_dir(model).map_err(failed(TOLD))?.next().is_none() {
            return Ok(());
        }
        let about_file = model.join("MODEL.toml");
        if fs::symlink_metadata(&about_file).is_ok_and(|metadata| metadata.is_dir()) {
            // The name is ours, whatever the job has put there.
            remove_tree(&about_file).map_err(failed(TOLD))?;
        }
        let about = about(paths, attempt)?;
        let (Owner { uid, gid }, mode) = (attempt.owner, attempt.read_by);
        let write = |file: &Path| write_whole_for(file, about.as_bytes(), (mode, uid, gid), Durability::Process);
        match write(&about_file) {
            // The workspace has no room, where the kernel holds it to that: a model is not kept back for it.
            Err(error) if is_no_room(&error) => {
                write(&model.with_file_name("MODEL.toml")).map_err(failed(TOLD))?;
            }
            written => written.map_err(failed(TOLD))?,
        }
        if let Some(parent) = target.parent() {
            create_dir_for(parent, 0o755, attempt.owner.uid, attempt.owner.gid).map_err(failed(TOLD))?;
        }
        fs::rename(model, &target).map_err(failed(TOLD))?;
    }
    if !target.exists() || fs::symlink_metadata(model).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    let number = identity.run.to_string();
    replace_symlink(Path::new(&number), &target.with_file_name("latest")).map_err(failed(TOLD))?;
    // Who looks into the run finds it as well.
    let up = Path::new("../../../../models").join(identity.key.job.as_str()).join(number);
    replace_symlink(&up, model).map_err(failed(TOLD))
}

/// By the quota: XFS says of a directory's that the disk is full, and others that a quota is.
fn is_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EDQUOT | nix::libc::ENOSPC))
}

/// `MODEL.toml`: where the model comes from.
fn about(paths: &Paths, attempt: &Release) -> Result<String, EngineError> {
    let Identity { key, run, attempt: number, user, .. } = &attempt.identity;
    let mut table = Table::new();
    let mut set = |name: &str, value: Value| drop(table.insert(name.to_owned(), value));
    set("workspace", key.workspace.as_str().into());
    set("job", key.job.as_str().into());
    set("run", i64::from(*run).into());
    set("attempt", i64::from(*number).into());
    set("owner", user.as_str().into());
    set("started", attempt.started.to_string().into());
    set("ended", attempt.ended.to_string().into());
    let gpus = attempt.gpus.iter().map(|uuid| Value::from(uuid.as_str()));
    set("gpus", Value::Array(gpus.collect()));
    let datasets = attempt.spec.datasets.iter().map(|dataset| resolved(paths, attempt, dataset));
    set("datasets", datasets.collect::<Result<Vec<_>, _>>()?.into());
    set("images", images(paths, attempt)?.into());
    set("code", code(paths, attempt).map_err(failed("describe the model's code"))?.into());
    set("metrics", metrics(paths, attempt).into());
    set("scalars", scalars(paths, attempt).into());
    set("effective", effective(attempt).into());
    set("spec", attempt.text.as_str().into());
    Ok(format!(
        "# Where this model comes from. `spec` is the job file as it was run, with its template and overrides; `effective` is\n\
         # what each role came to by it, by defaults and by the contract.\n{table}"
    ))
}

/// What each role came to. Only an address in a command line may be another one than it was, or a shell where an image has no bash.
fn effective(attempt: &Release) -> Table {
    let spec = &attempt.spec;
    let sample = Sample::of(&attempt.identity.key.to_string(), spec);
    let mut table = Table::new();
    table.insert("contract".to_owned(), spec.contract.to_string().into());
    table.extend(spec.framework.map(|framework| ("framework".to_owned(), framework.to_string().into())));
    table.extend(spec.strategy.map(|strategy| ("strategy".to_owned(), strategy.to_string().into())));
    table.insert("retries".to_owned(), i64::from(spec.retries).into());
    let role = |role: &Role| {
        let resources = &role.resources;
        let first = sample.tasks(spec).find(|task| task.role.name == role.name);
        let line = first.map(|task| command::display(&command::line(&task))).unwrap_or_default();
        let part = match &resources.gpu_part {
            GpuPart::Whole => None,
            GpuPart::Share { memory, .. } => Some(("gpu_memory".to_owned(), memory.to_string().into())),
            GpuPart::Slice(profile) => Some(("mig".to_owned(), profile.clone().into())),
        };
        let kind = resources.gpu_type.as_ref().map(|kind| ("gpu_type".to_owned(), kind.clone().into()));
        let mut table = Table::from_iter([
            ("count".to_owned(), Value::from(i64::from(role.count))),
            ("image".to_owned(), role.image.to_string().into()),
            ("command".to_owned(), line.into()),
            ("cpu".to_owned(), (resources.cpu.0 as f64 / 1000.0).into()),
            ("memory".to_owned(), resources.memory.to_string().into()),
            ("shm".to_owned(), resources.shm.to_string().into()),
            ("gpu".to_owned(), i64::from(resources.gpu).into()),
        ]);
        table.extend(kind.into_iter().chain(part));
        table
    };
    let roles: Table = spec.roles.iter().map(|of| (of.name.to_string(), role(of).into())).collect();
    table.insert("roles".to_owned(), roles.into());
    table
}

/// By the names in the job file.
fn images(paths: &Paths, attempt: &Release) -> Result<Table, EngineError> {
    let given = given(paths, &attempt.identity)?;
    let digest = |name: &str| match &given {
        Some(Given::One(digest)) => digest.to_string(),
        Some(Given::Each(each)) => each.get(name).map(ToString::to_string).unwrap_or_default(),
        None => String::new(),
    };
    let names = attempt.spec.images().into_iter().map(ToString::to_string);
    Ok(names.map(|name| (name.clone(), Value::from(digest(&name)))).collect())
}

/// For each code, by the name of its directory in the run: what it is, and its commit or a hash of its files.
fn code(paths: &Paths, attempt: &Release) -> io::Result<Table> {
    let run = paths.run(&attempt.identity.key, attempt.identity.run);
    let root = Rooted::open(&run)?;
    let mut all = Table::new();
    for (code, name) in attempt.spec.codes() {
        let mut table = Table::new();
        table.insert("source".to_owned(), code.to_string().into());
        table.extend(noted(&root, &name, "state")?.map(|state| ("state".to_owned(), state.into())));
        match noted(&root, &name, "commit")? {
            Some(commit) => table.insert("commit".to_owned(), commit.into()),
            // With the owner's rights: what lies there is the owner's, and a hash tells of what it is made from.
            None => {
                let (owner, groups) = (attempt.owner, groups_of(attempt.owner)?);
                // By a handle: the daemon's own directories, which lie above, are closed to the owner.
                let handle = root.handle(Path::new(&name))?;
                let place = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
                let hash = with_file_rights(owner.uid, owner.gid, &groups, || tree(&place))??;
                table.insert("tree".to_owned(), hash.into())
            }
        };
        all.insert(name, table.into());
    }
    Ok(all)
}

/// The commit, or the state of a store, that a run's code is. Its owner may have put something else there since.
fn noted(run: &Rooted, code: &str, what: &str) -> io::Result<Option<String>> {
    let bytes = run.read(Path::new(&format!("{code}.{what}")), 128)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    let is_hash = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    Ok(is_hash.then_some(text))
}

/// A hash of the names, kinds, x bits and contents of all that lies in a snapshot: the same for the same code.
fn tree(directory: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    add_tree(directory, Path::new(""), &mut hash)?;
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{digits}"))
}

fn add_tree(root: &Path, below: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut names: Vec<_> =
        fs::read_dir(root.join(below))?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort();
    for name in names {
        let (inner, path) = (below.join(&name), root.join(below).join(&name));
        let metadata = fs::symlink_metadata(&path)?;
        let kind = metadata.file_type();
        let executable = kind.is_file() && metadata.permissions().mode() & 0o111 != 0;
        add(hash, inner.as_os_str().as_encoded_bytes());
        add(hash, &[u8::from(kind.is_dir()), u8::from(kind.is_symlink()), u8::from(executable)]);
        if kind.is_dir() {
            add_tree(root, &inner, hash)?;
        } else if kind.is_symlink() {
            add(hash, fs::read_link(&path)?.as_os_str().as_encoded_bytes());
        } else if kind.is_file() {
            hash.update(metadata.len().to_le_bytes());
            add_file(&path, hash)?;
        }
    }
    Ok(())
}

fn add_file(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => hash.update(buffer.get(..count).unwrap_or_default()),
        }
    }
}

fn add(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_le_bytes());
    hash.update(part);
}

/// The last row of each task's `metrics.csv`, as far as it is told.
fn metrics(paths: &Paths, attempt: &Release) -> Table {
    of_tasks(paths, attempt, "metrics.csv", last_row)
}

/// The last step and value of each tag in each task's `scalars.csv`.
fn scalars(paths: &Paths, attempt: &Release) -> Table {
    of_tasks(paths, attempt, "scalars.csv", last_scalars)
}

/// What is read of a file that the tasks of the attempt have beside their logs, by task.
fn of_tasks(paths: &Paths, attempt: &Release, name: &str, read: impl Fn(File) -> io::Result<Option<Table>>) -> Table {
    let Identity { key, run, attempt: number, .. } = &attempt.identity;
    let Ok(root) = Rooted::open(&paths.run(key, *run)) else { return Table::new() };
    let one = |task: String| {
        let file = root.file_for_reading(&Path::new("attempts").join(number.to_string()).join(&task).join(name));
        Some((task, Value::Table(read(file.ok()?).ok()??)))
    };
    attempt.spec.tasks().filter_map(|(role, index)| one(format!("{}-{index}", role.name))).collect()
}

fn last_scalars(mut file: File) -> io::Result<Option<Table>> {
    let end = file.seek(SeekFrom::End(0))?;
    let begin = end.saturating_sub(SCALARS_MAX);
    file.seek(SeekFrom::Start(begin))?;
    let mut tail = Vec::new();
    file.take(SCALARS_MAX).read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail).into_owned();
    let mut last = Table::new();
    // The first line is the head of the file, or not whole.
    for (step, tag, value) in tail.lines().skip(1).filter_map(Scalar::parse) {
        last.insert(
            tag,
            Table::from_iter([("step".to_owned(), Value::from(step)), ("value".to_owned(), value.into())]).into(),
        );
    }
    Ok((!last.is_empty()).then_some(last))
}

fn last_row(mut file: File) -> io::Result<Option<Table>> {
    let mut head = vec![0; ROW_MAX as usize];
    let count = file.read(&mut head)?;
    let head = String::from_utf8_lossy(&head[..count]).into_owned();
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(ROW_MAX)))?;
    let mut tail = Vec::new();
    file.take(ROW_MAX).read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail).into_owned();
    let (Some(names), Some(row)) = (head.lines().next(), tail.lines().next_back().filter(|row| !head.starts_with(row)))
    else {
        return Ok(None);
    };
    let value = |text: &str| text.parse::<f64>().map_or_else(|_| Value::from(text), Value::from);
    let pairs = names.split(',').zip(row.split(',')).filter(|(_, text)| !text.is_empty());
    Ok(Some(pairs.map(|(name, text)| (name.to_owned(), value(text))).collect()))
}

/// Which runs' models and outputs a run sees, by the jobs: chosen once, so that all its attempts see the same. The file lies beside the
/// run's directory, which is the owner's.
pub(super) fn chosen_file(paths: &Paths, identity: &Identity) -> PathBuf {
    paths.job(&identity.key).join("runs").join(models_file(identity.run))
}

/// Where the model or the output lies below the workspace, and of which run it is.
pub(super) fn place(paths: &Paths, identity: &Identity, dataset: &Dataset) -> Result<(PathBuf, String), EngineError> {
    place_by(&chosen_file(paths, identity), paths, identity, dataset)
}

/// The same, by what is written in `file`, or now is.
pub(super) fn place_by(
    file: &Path,
    paths: &Paths,
    identity: &Identity,
    dataset: &Dataset,
) -> Result<(PathBuf, String), EngineError> {
    let number = match dataset.version.as_ref().map(|version| version.as_str()) {
        Some(number) if number != "latest" => {
            keep_named(file, dataset, number)?;
            number.to_owned()
        }
        _ => newest(file, paths, identity, dataset)?.to_string(),
    };
    Ok((lies_at(identity, dataset, &number), number))
}

/// Whoever removes models looks there: one that the job file names is used as well as one that was the newest.
fn keep_named(file: &Path, dataset: &Dataset, number: &str) -> Result<(), EngineError> {
    let Some(run) = number.parse::<u32>().ok().filter(|_| dataset.source == DataSource::Model) else { return Ok(()) };
    let mut chosen: BTreeMap<String, u32> = read_json(file).map_err(super::told)?.unwrap_or_default();
    match chosen.insert(one_of(dataset.name.as_str(), run), run) {
        Some(_) => Ok(()),
        None => write_json(file, &chosen, Durability::Machine).map_err(super::told),
    }
}

/// Of the job's own output before its first run: a place where nothing lies.
const BEFORE_THE_FIRST: u32 = 0;

fn lies_at(identity: &Identity, dataset: &Dataset, number: &str) -> PathBuf {
    let job = dataset.name.as_str();
    match dataset.source {
        DataSource::Output if number == BEFORE_THE_FIRST.to_string() => nothing_before(identity),
        DataSource::Output => Path::new("jobs").join(job).join("runs").join(number).join("output"),
        DataSource::Model | DataSource::Dataset => Path::new("models").join(job).join(number),
    }
}

fn nothing_before(identity: &Identity) -> PathBuf {
    Path::new("jobs").join(identity.key.job.as_str()).join("runs").join(format!(".{}.before", identity.run))
}

fn newest(file: &Path, paths: &Paths, identity: &Identity, dataset: &Dataset) -> Result<u32, EngineError> {
    let (source, job) = (dataset.source, dataset.name.as_str());
    let is_own_output = source == DataSource::Output && job == identity.key.job.as_str();
    // As older programs wrote it for models.
    let key = if source == DataSource::Model { newest_of(job) } else { format!("{}{job}", source.prefix()) };
    let mut chosen: BTreeMap<String, u32> = read_json(file).map_err(super::told)?.unwrap_or_default();
    if let Some(number) = chosen.get(&key) {
        return Ok(*number);
    }
    let workspace = paths.workspace(&identity.key.workspace);
    let runs = if source == DataSource::Output {
        Path::new("jobs").join(job).join("runs")
    } else {
        Path::new("models").join(job)
    };
    let entries = fs::read_dir(workspace.join(runs)).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A run that never began has an empty output, which nobody goes on with.
    let has_content = |number: &u32| {
        let place = workspace.join(lies_at(identity, dataset, &number.to_string()));
        source == DataSource::Model || fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_some())
    };
    let mut earlier: Vec<u32> = numbers.filter(|number| !is_own_output || *number < identity.run).collect();
    earlier.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
    let newest = match earlier.iter().copied().find(has_content).or(earlier.first().copied().filter(|_| !is_own_output))
    {
        Some(newest) => newest,
        None if is_own_output => {
            create_dir(&workspace.join(nothing_before(identity)), 0o755).map_err(failed("make an empty directory"))?;
            BEFORE_THE_FIRST
        }
        None => {
            let what = source.prefix().trim_end_matches(':');
            return Err(EngineError(format!(
                "datasets: job {job} of this workspace has left no {what} yet; `after = [\"{job}\"]` waits for it, or `trainyard rerun {}` once it has",
                identity.key
            )));
        }
    };
    chosen.insert(key, newest);
    write_json(file, &chosen, Durability::Machine).map_err(super::told)?;
    Ok(newest)
}

/// As the job names it, with the version that it was.
fn resolved(paths: &Paths, attempt: &Release, dataset: &Dataset) -> Result<String, EngineError> {
    let identity = &attempt.identity;
    if dataset.source == DataSource::Dataset {
        return Ok(seen_as(paths, identity, attempt.owner, dataset)?.told(&identity.key.workspace));
    }
    let (_, number) = place(paths, identity, dataset)?;
    if number == BEFORE_THE_FIRST.to_string() {
        return Ok(format!("{}{} (nothing yet)", dataset.source.prefix(), dataset.name));
    }
    Ok(format!("{}{}@{number}", dataset.source.prefix(), dataset.name))
}
