//! What a run is to see that cannot begin yet, as it was when the run was wanted, beside the directories of runs:
//!
//! ```text
//! runs/.N.aside-NUMBER/    code, code.ROLE, code.commit: what is in the run's directory when it has begun
//!                          data, models: which versions it sees, then `.N.data` and `.N.models`
//! ```
//!
//! Of an output, and of a model of the job itself, the newest is that of the run before, which is chosen when the run begins.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{failed, models, workdirs};
use crate::assets::{ASIDE_DATA, ASIDE_MODELS, aside_name, aside_of};
use crate::config::Paths;
use crate::engine::{EngineError, Prepare};
use crate::ids::JobKey;
use crate::spec::{DataSource, Dataset};
use crate::sys::file::{create_dir, remove_tree};

fn place(paths: &Paths, key: &JobKey, run: u32, number: u64) -> PathBuf {
    paths.job(key).join("runs").join(aside_name(run, number))
}

/// Whole, or not at all; done again it does nothing.
pub(super) fn set(paths: &Paths, run: &Prepare, number: u64) -> Result<(), EngineError> {
    let key = &run.identity.key;
    let place = place(paths, key, run.identity.run, number);
    if place.exists() {
        return Ok(());
    }
    let told = || failed("set code and data aside");
    workdirs::make_workspace(paths, run).map_err(told())?;
    create_dir(&paths.job(key), 0o755).map_err(told())?;
    create_dir(&paths.job(key).join("runs"), 0o755).map_err(told())?;
    let draft = place.with_extension(format!("aside-{number}.new"));
    remove_tree(&draft).map_err(told())?;
    create_dir(&draft, 0o700).map_err(told())?;
    let is_others = |dataset: &Dataset| {
        dataset.source == DataSource::Model && dataset.name.as_str() != run.identity.key.job.as_str()
    };
    let choose = |place: &Path| {
        workdirs::choose_datasets(paths, run, &place.join(ASIDE_DATA))?;
        workdirs::choose_left(paths, run, &place.join(ASIDE_MODELS), &is_others)
    };
    let filled = workdirs::snapshots(paths, run, &draft)
        .and_then(|()| choose(&draft))
        .and_then(|()| fs::rename(&draft, &place).map_err(told()))
        // From now on nobody removes what was chosen: it is still there.
        .and_then(|()| choose(&place));
    if filled.is_err() {
        remove_tree(&draft).and_then(|()| remove_tree(&place)).map_err(told())?;
    }
    sweep(paths, key, (run.identity.run, number)).map_err(told())?;
    filled
}

/// Makes it the run's own. What is there already was put there by an earlier try.
pub(super) fn adopt(paths: &Paths, run: &Prepare, directory: &Path) -> Result<(), EngineError> {
    let Some(number) = run.aside else { return Ok(()) };
    let place = place(paths, &run.identity.key, run.identity.run, number);
    let told = || failed("take what was set aside for the run");
    let entries = match fs::read_dir(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(told())?,
    };
    for entry in entries {
        let name = entry.map_err(told())?.file_name();
        let target = match name.to_str() {
            Some(ASIDE_DATA) => workdirs::seen_file(paths, &run.identity),
            Some(ASIDE_MODELS) => models::chosen_file(paths, &run.identity),
            _ => directory.join(&name),
        };
        if fs::symlink_metadata(&target).is_err() {
            fs::rename(place.join(&name), &target).map_err(told())?;
        }
    }
    sweep(paths, &run.identity.key, (run.identity.run, number + 1)).map_err(told())
}

pub(super) fn remove(paths: &Paths, key: &JobKey, run: u32, number: u64) -> Result<(), EngineError> {
    remove_tree(&place(paths, key, run, number)).map_err(failed("remove what was set aside"))
}

/// Removes what was set aside before, also by a daemon that was killed before it could say that nobody wants it any more.
fn sweep(paths: &Paths, key: &JobKey, before: (u32, u64)) -> io::Result<()> {
    let runs = paths.job(key).join("runs");
    for entry in fs::read_dir(&runs)? {
        let name = entry?.file_name();
        if name.to_str().and_then(begun_for).is_some_and(|aside| aside < before) {
            remove_tree(&runs.join(&name))?;
        }
    }
    Ok(())
}

/// Also of what is not whole, and of what is being fetched for it.
fn begun_for(name: &str) -> Option<(u32, u64)> {
    let draft = name.strip_suffix(".fetch").and_then(|name| name.strip_prefix('.')).unwrap_or(name);
    aside_of(draft.strip_suffix(".new").unwrap_or(draft))
}
