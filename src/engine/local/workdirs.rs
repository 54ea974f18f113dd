//! Directories of a workspace that runs read and write: the snapshot of the code, datasets, output and model.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{aside, code_limits, failed, models};
use crate::assets::enforced::Enforcer;
use crate::assets::{self, Chosen, MissingError, Named, Part, Shelf};
use crate::config::Paths;
use crate::contract::{Access, Content, Identity, Place, Task, pai};
use crate::engine::{EngineError, Prepare, Told};
use crate::ids::{AssetName, JobName};
use crate::images::Digest;
use crate::rundir::{Mount, read_json, write_json};
use crate::secrets::Secrets;
use crate::spec::{Code, DataSource, Dataset, GitCode, Image, Platform};
use crate::store::record::Owner;

use crate::sys::file::{Durability, copy_tree, create_dir, create_dir_for, remove_tree, write_whole, write_whole_for};
use crate::sys::process::with_file_rights;
use crate::sys::rooted::{Ids, Rooted};

/// So often directories that are made may be taken away before there is something in them.
const GONE: usize = 8;

/// Makes `runs/N` with the job file, the snapshot of the code, `output/` and `model/`.
pub(super) fn prepare(paths: &Paths, run: &Prepare, tell: &dyn Fn(Told)) -> Result<(), EngineError> {
    let Owner { uid, gid } = run.owner;
    let key = &run.identity.key;
    make_workspace(paths, run).map_err(failed("make the workspace's directories"))?;
    let directory = paths.run(key, run.identity.run);
    let make = || {
        create_dir(&paths.job(key), 0o755)?;
        create_dir(&paths.job(key).join("runs"), 0o755)?;
        create_dir_for(&directory, 0o750, uid, gid)
    };
    again_if_gone(make).map_err(failed("make the run's directory"))?;
    aside::adopt(paths, run, &directory, tell)?;
    resume(paths, run, &directory.join("output"))?;
    for name in ["output", "model"] {
        if fs::symlink_metadata(directory.join(name)).is_ok_and(|metadata| metadata.is_symlink()) {
            // The model has been published already.
            continue;
        }
        make_counted(paths, run, &directory.join(name)).map_err(failed("make the run's directory"))?;
    }
    let spec = directory.join("spec.toml");
    let written = write_whole_for(&spec, run.text.as_bytes(), (0o600, uid, gid), Durability::Process);
    written.map_err(failed("write the run's job file"))?;
    snapshots(paths, run, &directory, tell)?;
    choose_datasets(paths, run, &seen_file(paths, &run.identity), tell)?;
    choose_left(paths, run, &models::chosen_file(paths, &run.identity), &|_| true)
}

/// Who takes away what a removed job has left takes empty directories with it, also one that was just made.
pub(super) fn again_if_gone(make: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..GONE {
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            made => return made,
        }
    }
    make()
}

/// Takes them into `directory`, of all code but what lies in a store: that is brought later.
pub(super) fn snapshots(
    paths: &Paths,
    run: &Prepare,
    directory: &Path,
    tell: &dyn Fn(Told),
) -> Result<(), EngineError> {
    let mut codes = run.spec.codes().into_iter().filter(|(code, _)| code.stored().is_none());
    codes.try_for_each(|(code, name)| snapshot(paths, run, code, &directory.join(name), tell))
}

/// Makes a directory of what jobs write: where the kernel counts that of the workspace, with the rest of it.
fn make_counted(paths: &Paths, run: &Prepare, path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_err()
        && let Some(enforcer) = Enforcer::of(&paths.workspace(&run.identity.key.workspace))?
    {
        enforcer.make_directory(path)?;
    }
    create_dir_for(path, 0o750, run.owner.uid, run.owner.gid)
}

/// What runs have left: it is there, and the owner's to see. What a job is still to leave which comes first is chosen when that is
/// over.
pub(super) fn choose_left(
    paths: &Paths,
    run: &Prepare,
    file: &Path,
    which: &dyn Fn(&Dataset) -> bool,
) -> Result<(), EngineError> {
    let shelf = open_shelf(paths)?;
    let is_awaited = |dataset: &Dataset| {
        let name = dataset.name.as_str();
        // Of a sweep all jobs are awaited by its name.
        let is_of = |job: &JobName| name == job.as_str() || name.starts_with(&format!("{job}~"));
        run.identity.attempt == 0 && run.spec.after.iter().any(is_of)
    };
    let left = run.spec.datasets.iter().filter(|dataset| dataset.source != DataSource::Dataset);
    left.filter(|dataset| !is_awaited(dataset) && which(dataset))
        .try_for_each(|dataset| check_rights(&shelf, run, "datasets", &left_path(file, paths, &run.identity, dataset)?))
}

/// Where a job goes on with what the last one has left, as the file or its platform says: the same of the newest run before this one, of the same
/// owner.
fn resume(paths: &Paths, run: &Prepare, output: &Path) -> Result<(), EngineError> {
    const LOOKED_AT: usize = 100;
    let Some(part) = run.spec.resumed().filter(|_| !output.exists()) else { return Ok(()) };
    let before = (1..run.identity.run).rev().take(LOOKED_AT).find_map(|number| {
        let directory = paths.run(&run.identity.key, number);
        let is_own = fs::symlink_metadata(&directory).is_ok_and(|metadata| metadata.uid() == run.owner.uid);
        // It is its owner's: what of it is a link leads nowhere else.
        let before = Rooted::open(&directory).and_then(|run| run.handle(&Path::new("output").join(part)));
        before.ok().filter(|_| is_own)
    });
    let Some(before) = before else { return Ok(()) };
    // Beside the run's directory, as in `fetch`.
    let draft = paths.run(&run.identity.key, run.identity.run).with_file_name(format!(".{}.output", run.identity.run));
    let told = failed("take over what the last run has left");
    let copied = || -> io::Result<()> {
        remove_tree(&draft)?;
        let target = draft.join(part);
        make_counted(paths, run, &draft)?;
        // A file of that name is not what is gone on with.
        match copy_tree(&PathBuf::from(format!("/proc/self/fd/{}/.", before.as_raw_fd())), &target, &run.given_up) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => remove_tree(&draft),
            copied => copied.and_then(|()| fs::rename(&draft, output)),
        }
    };
    let copied = copied();
    if copied.is_err() {
        // As in [`take`].
        let _ = remove_tree(&draft);
    }
    copied.map_err(told)
}

pub(super) fn make_workspace(paths: &Paths, run: &Prepare) -> io::Result<()> {
    assets::make_home(paths, &run.identity.key.workspace)
}

/// Copies the code aside, then puts it in place: a crash leaves no half of it.
fn snapshot(paths: &Paths, run: &Prepare, code: &Code, target: &Path, tell: &dyn Fn(Told)) -> Result<(), EngineError> {
    if target.exists() {
        return Ok(());
    }
    let (whose, name, version) = match code {
        Code::Named { whose, name, version } => (*whose, name, version.as_ref()),
        Code::Git(code) => {
            tell(Told::State(format!("fetches its code from {}", code.url)));
            return fetch(paths, run, code, target);
        }
        Code::Stored(_) => return Ok(()),
    };
    let shelf = open_shelf(paths)?;
    let named = Named { workspace: &run.identity.key.workspace, whose, name };
    let found = shelf.code(named, version, run.owner.uid).map_err(|error| missing("code", &error, &run.identity));
    let source = heard("code", found?, tell).path(Part::Code);
    check_rights(&shelf, run, "code", &source)?;
    take(run, code, &paths.workspaces().join(source), target)
}

/// Where it lies; tells of what was passed over for it.
fn heard(key: &str, chosen: Chosen, tell: &dyn Fn(Told)) -> assets::Place {
    chosen.passed_over.into_iter().for_each(|passed_over| tell(Told::Noted(format!("{key}: {passed_over}"))));
    chosen.place
}

/// Copies what lies at `source`, and shows it whole.
pub(super) fn take(run: &Prepare, code: &Code, source: &Path, target: &Path) -> Result<(), EngineError> {
    let (draft, told) = (target.with_file_name(".code.tmp"), || failed("take a snapshot of the code"));
    remove_tree(&draft).map_err(told())?;
    let taken = copy_tree(source, &draft, &run.given_up)
        .map_err(told())
        .and_then(|()| code_limits::refuse_large(&draft, &code.to_string(), run.spec.contract))
        .and_then(|()| fs::rename(&draft, target).map_err(told()));
    if taken.is_err() {
        // No try may come after this one. The reason counts, not that its remains may stay.
        let _ = remove_tree(&draft);
    }
    taken
}

/// As [`snapshot`], of a repository; which commit it was is told beside it.
fn fetch(paths: &Paths, run: &Prepare, code: &GitCode, target: &Path) -> Result<(), EngineError> {
    let missing = || EngineError("fetch the code: it has no place".to_owned());
    let directory = target.parent().ok_or_else(missing)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(directory.file_name().ok_or_else(missing)?);
    name.push(".fetch");
    // Beside the run's directory, which is its owner's: what is done there by name nobody else can lead elsewhere.
    let place = directory.with_file_name(name);
    remove_tree(&place).map_err(failed("fetch the code"))?;
    create_dir(&place, 0o755).map_err(failed("fetch the code"))?;
    let secret = code.password.as_ref().map(|name| secret(paths, run, name)).transpose()?;
    let fetched = super::git::fetch(code, secret.as_deref(), &place, run.owner, &run.given_up);
    let kept = fetched.and_then(|commit| {
        code_limits::refuse_large(&place.join("code"), &code.url, run.spec.contract)?;
        note(target, ".commit", &commit)?;
        fs::rename(place.join("code"), target).map_err(failed("fetch the code"))
    });
    remove_tree(&place).map_err(failed("clean up after fetching the code"))?;
    kept
}

/// Tells beside a snapshot what it is of.
pub(super) fn note(target: &Path, end: &str, what: &str) -> Result<(), EngineError> {
    let mut path = target.as_os_str().to_owned();
    path.push(end);
    let written = write_whole(Path::new(&path), format!("{what}\n").as_bytes(), 0o644, Durability::Process);
    written.map_err(failed("note what the code is of"))
}

/// A secret of the run's workspace, without the end of its line.
fn secret(paths: &Paths, run: &Prepare, name: &AssetName) -> Result<String, EngineError> {
    let (secrets, workspace) = (Secrets::new(paths.secrets()), &run.identity.key.workspace);
    let path = secrets.path(workspace, name);
    if matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound) {
        return Err(EngineError(format!(
            "code: workspace {workspace} has no secret {name}; root stores one: `trainyard secret set {name} -w {workspace} < FILE`"
        )));
    }
    let read = secrets.read(workspace, name);
    let bytes = read.map_err(failed(format!("read the secret {name} ({})", path.display())))?;
    let text = String::from_utf8(bytes).map_err(|_| EngineError(format!("the secret {name} is not text")))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Which directories a run sees as its datasets: chosen once, so that all its attempts see the same, and told to whoever
/// wants to remove one. The file lies beside the run's directory, which is the owner's.
pub(super) fn seen_file(paths: &Paths, identity: &Identity) -> PathBuf {
    paths.job(&identity.key).join("runs").join(assets::seen_file(identity.run))
}

type Seen = BTreeMap<String, assets::Place>;

/// As `file` tells, or as they are now.
pub(super) fn choose_datasets(
    paths: &Paths,
    run: &Prepare,
    file: &Path,
    tell: &dyn Fn(Told),
) -> Result<(), EngineError> {
    let shelf = open_shelf(paths)?;
    let chosen = match read_json::<Seen>(file).map_err(super::told)? {
        Some(chosen) => chosen,
        None => choose(&shelf, file, run, tell)?,
    };
    // Now that nobody removes them: they are still there, and the owner's to see, at every attempt.
    chosen.values().try_for_each(|place| check_rights(&shelf, run, "datasets", &place.path(Part::Datasets)))
}

fn choose(shelf: &Shelf, file: &Path, run: &Prepare, tell: &dyn Fn(Told)) -> Result<Seen, EngineError> {
    let chosen = run.spec.datasets.iter().filter(|dataset| dataset.source == DataSource::Dataset);
    let one = |dataset: &Dataset| {
        let found = find_dataset(shelf, &run.identity, run.owner, dataset)?;
        Ok((dataset.to_string(), heard("datasets", found, tell)))
    };
    let chosen: Seen = chosen.map(one).collect::<Result<_, EngineError>>()?;
    if !chosen.is_empty() {
        write_json(file, &chosen, Durability::Machine).map_err(super::told)?;
    }
    Ok(chosen)
}

fn open_shelf(paths: &Paths) -> Result<Shelf, EngineError> {
    Shelf::open(&paths.workspaces()).map_err(failed("open the workspaces"))
}

fn find_dataset(shelf: &Shelf, identity: &Identity, owner: Owner, dataset: &Dataset) -> Result<Chosen, EngineError> {
    let named = Named { workspace: &identity.key.workspace, whose: dataset.whose, name: &dataset.name };
    let found = shelf.dataset(named, dataset.version.as_ref(), owner.uid);
    found.map_err(|error| missing("datasets", &error, identity))
}

fn missing(key: &str, error: &MissingError, identity: &Identity) -> EngineError {
    use std::error::Error as _;
    let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    EngineError(format!("{key}: {error}{why}; when that is put right, `trainyard rerun {}`", identity.key))
}

/// A bind mount shows a directory whatever lies above it: who may not go there by themselves does not by a job.
fn check_rights(shelf: &Shelf, run: &Prepare, key: &str, path: &Path) -> Result<(), EngineError> {
    let Owner { uid, gid } = run.owner;
    let may = groups_of(run.owner).and_then(|groups| with_file_rights(uid, gid, &groups, || shelf.may_enter(path)));
    match may.and_then(|may| may).map_err(failed("look at code and data with the owner's rights"))? {
        true => Ok(()),
        false => Err(missing(key, &MissingError::Rights(path.to_owned()), &run.identity)),
    }
}

/// Where the run sees the dataset from, below `workspaces/`.
fn dataset_path(paths: &Paths, identity: &Identity, owner: Owner, dataset: &Dataset) -> Result<PathBuf, EngineError> {
    match dataset.source {
        DataSource::Dataset => Ok(seen_as(paths, identity, owner, dataset)?.path(Part::Datasets)),
        _ => left_path(&models::chosen_file(paths, identity), paths, identity, dataset),
    }
}

/// The same of what runs have left.
fn left_path(file: &Path, paths: &Paths, identity: &Identity, dataset: &Dataset) -> Result<PathBuf, EngineError> {
    let place = models::place_by(file, paths, identity, dataset)?.0;
    let path = Path::new(identity.key.workspace.as_str()).join(place);
    match open_shelf(paths)?.directory(&path) {
        Ok(_) => Ok(path),
        Err(error) => Err(EngineError(format!(
            "datasets: {dataset}: {} cannot be had: {error}; put it right, then `trainyard rerun {}`",
            path.display(),
            identity.key
        ))),
    }
}

/// What a dataset of the job file, of that owner, was when the run was accepted.
pub(super) fn seen_as(
    paths: &Paths,
    identity: &Identity,
    owner: Owner,
    dataset: &Dataset,
) -> Result<assets::Place, EngineError> {
    let seen: Option<Seen> = read_json(&seen_file(paths, identity)).map_err(super::told)?;
    match seen.and_then(|mut seen| seen.remove(&dataset.to_string())) {
        Some(place) => Ok(place),
        // A run of an earlier program.
        None => Ok(find_dataset(&open_shelf(paths)?, identity, owner, dataset)?.place),
    }
}

/// Which image the tasks of a run are made of: asked once, so that all its attempts are alike. The file lies beside the
/// run's directory, which is the owner's.
fn image_file(paths: &Paths, identity: &Identity) -> PathBuf {
    paths.job(&identity.key).join("runs").join(format!(".{}.image", identity.run))
}

/// What a run has been given.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Given {
    /// As it was written when all roles had one.
    One(Digest),
    /// By the images as the job file names them.
    Each(BTreeMap<String, Digest>),
}

pub(super) fn given(paths: &Paths, identity: &Identity) -> Result<Option<Given>, EngineError> {
    read_json(&image_file(paths, identity)).map_err(super::told)
}

pub(super) fn keep_image(
    paths: &Paths,
    identity: &Identity,
    image: &Image,
    digest: &Digest,
) -> Result<(), EngineError> {
    let mut each = match given(paths, identity)? {
        Some(Given::Each(each)) => each,
        Some(Given::One(_)) | None => BTreeMap::new(),
    };
    each.insert(image.to_string(), digest.clone());
    // The run counts as prepared, also after the machine went down.
    write_json(&image_file(paths, identity), &Given::Each(each), Durability::Machine).map_err(super::told)
}

pub(super) fn images_given(paths: &Paths, identity: &Identity) -> Result<Vec<Digest>, EngineError> {
    Ok(match given(paths, identity)? {
        None => Vec::new(),
        Some(Given::One(digest)) => vec![digest],
        Some(Given::Each(each)) => each.into_values().collect(),
    })
}

pub(super) fn image_of(paths: &Paths, identity: &Identity, image: &Image) -> Result<Digest, EngineError> {
    let found = match given(paths, identity)? {
        Some(Given::One(digest)) => Some(digest),
        Some(Given::Each(mut each)) => each.remove(&image.to_string()),
        None => None,
    };
    found.ok_or_else(|| EngineError("the run has no image; `trainyard rerun` gets it again".to_owned()))
}

/// What of the workspace a task sees, and where. Sources are named without the links that lead to the workspace: the shim
/// follows none.
pub(super) fn mounts(
    paths: &Paths,
    owner: Owner,
    task: &Task<'_>,
    places: &[Place],
) -> Result<Vec<Mount>, EngineError> {
    let identity = task.identity;
    let run = paths.run(&identity.key, identity.run);
    let workspaces = paths.workspaces();
    let real = workspaces.canonicalize().map_err(failed("find the workspaces' directory"))?;
    let real = |source: PathBuf| source.strip_prefix(&workspaces).map(|below| real.join(below)).unwrap_or(source);
    let one = |place: &Place| {
        let source = match &place.content {
            Content::Output => run.join("output"),
            Content::OutputPart(part) => run.join("output").join(part),
            Content::Model => run.join("model"),
            Content::Code => run.join(code_name(task)),
            Content::Dataset(name) => {
                let dataset = task.spec.datasets.iter().find(|dataset| dataset.seen_as() == name);
                let unknown = || EngineError(format!("datasets: {name} is not one of the job's"));
                workspaces.join(dataset_path(paths, identity, owner, dataset.ok_or_else(unknown)?)?)
            }
        };
        // One scratch layer for each place: two would be two views of one.
        let scratch = (place.access == Access::Scratch).then(|| format!("at{}", place.path.replace('/', "-")));
        let read_only = place.access == Access::ReadOnly;
        Ok(Mount { source: real(source), target: PathBuf::from(&place.path), read_only, scratch, is_of_machine: false })
    };
    places.iter().map(one).collect()
}

/// The directory of the run that holds the code of a task.
pub(super) fn code_name(task: &Task<'_>) -> String {
    let codes = task.spec.codes();
    let own = codes.into_iter().find(|(code, _)| task.role.code.as_ref() == Some(*code));
    own.map_or_else(|| "code".to_owned(), |(_, name)| name)
}

/// Makes the parts of the output that the places ask for.
pub(super) fn make_parts(paths: &Paths, launch: &Identity, owner: Owner, places: &[Place]) -> Result<(), EngineError> {
    // The run's directory is its owner's: what of it is a link leads nowhere else.
    let run = Rooted::open(&paths.run(&launch.key, launch.run)).map_err(failed("open the run's directory"))?;
    let ids = Ids { uid: owner.uid, gid: owner.gid };
    let parts = places.iter().filter_map(|place| match place.content {
        Content::OutputPart(part) => Some(part),
        _ => None,
    });
    let mut made = parts.map(|part| run.directory(&Path::new("output").join(part), ids).map(drop));
    made.try_for_each(|made| made).map_err(failed("make a directory of the run's output"))
}

/// Tells a channel by its only file, where the platform does so.
pub(super) fn name_single_files(
    paths: &Paths,
    owner: Owner,
    task: &Task<'_>,
    env: &mut Vec<(String, String)>,
) -> Result<(), EngineError> {
    if task.spec.contract.platform != Platform::Pai {
        return Ok(());
    }
    let shelf = open_shelf(paths)?;
    for dataset in &task.spec.datasets {
        let path = dataset_path(paths, task.identity, owner, dataset)?;
        if let Some(file) = only_file(&shelf, &path).map_err(failed("look into a dataset"))? {
            pai::name_single_file(env, dataset, &file);
        }
    }
    Ok(())
}

fn only_file(shelf: &Shelf, path: &Path) -> io::Result<Option<String>> {
    let directory = shelf.directory(path)?;
    let mut entries = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let (Some(first), None) = (entries.next().transpose()?, entries.next()) else { return Ok(None) };
    Ok(first.file_name().into_string().ok().filter(|_| first.file_type().is_ok_and(|kind| kind.is_file())))
}

/// Further groups of the owner, so that what a group may read its members' jobs may read.
pub(super) fn groups_of(owner: Owner) -> io::Result<Vec<u32>> {
    let groups = crate::sys::process::groups_of(owner.uid)?;
    Ok(groups.into_iter().filter(|gid| *gid != owner.gid).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::sys::given_up::GivenUp;

    /// Far more than are copied until somebody says so.
    const FILES: usize = 20_000;

    #[test]
    fn a_copy_ends_in_its_midst_where_nobody_wants_it_any_more() {
        let (dir, given_up) = (tempfile::tempdir().unwrap(), GivenUp::default());
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("0"), "").unwrap();
        (1..FILES).for_each(|file| fs::hard_link(from.join("0"), from.join(file.to_string())).unwrap());
        let copied = || fs::read_dir(&to).map_or(0, Iterator::count);
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| copy_tree(&from, &to, &given_up));
            while copied() == 0 && !copying.is_finished() {
                std::thread::yield_now();
            }
            given_up.set();
            assert_eq!(copying.join().unwrap().unwrap_err().to_string(), "nobody wants it any more");
        });
        assert!(copied() < FILES, "{} of {FILES}", copied());
    }

    #[test]
    fn what_is_taken_away_while_it_is_made_is_made_again_and_not_for_ever() {
        let tries = Cell::new(0);
        let gone_until = |last: usize| {
            tries.set(0);
            again_if_gone(|| {
                tries.set(tries.get() + 1);
                if tries.get() < last { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
            })
        };
        assert!(gone_until(3).is_ok() && tries.get() == 3);
        assert!(gone_until(usize::MAX).is_err() && tries.get() == GONE + 1);
        assert_eq!(
            again_if_gone(|| Err(io::ErrorKind::StorageFull.into())).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
    }
}
