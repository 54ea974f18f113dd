//! What a run is to see that cannot begin yet, as it was when the run was wanted, beside the directories of runs:
//!
//! ```text
//! runs/.N.aside-NUMBER/    code, code.ROLE, code.commit: what is in the run's directory when it has begun
//!                          data, models: which versions it sees, then `.N.data` and `.N.models`
//!                          told: what is to be told of the choice when the run begins, JSON
//! ```
//!
//! Of an output, and of a model of the job itself, the newest is that of the run before, which is chosen when the run begins.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{failed, models, workdirs};
use crate::assets::{ASIDE_DATA, ASIDE_MODELS, aside_begun, aside_name};
use crate::config::Paths;
use crate::engine::{EngineError, Prepare, Told};
use crate::ids::JobKey;
use crate::rundir::{read_json, write_json};
use crate::spec::{DataSource, Dataset};
use crate::sys::file::{Durability, create_dir, optional, remove_tree};

const TOLD: &str = "told";

fn place(paths: &Paths, key: &JobKey, run: u32, number: u64) -> PathBuf {
    paths.job(key).join("runs").join(aside_name(run, number))
}

/// Whole, or not at all; done again it does nothing.
pub(super) fn set(paths: &Paths, run: &Prepare, number: u64) -> Result<(), EngineError> {
    run.given_up.check().map_err(failed("set code and data aside"))?;
    let key = &run.identity.key;
    let place = place(paths, key, run.identity.run, number);
    if place.exists() {
        return Ok(());
    }
    let told = || failed("set code and data aside");
    workdirs::make_workspace(paths, run).map_err(told())?;
    let draft = place.with_extension(format!("aside-{number}.new"));
    remove_tree(&draft).map_err(told())?;
    let make = || {
        create_dir(&paths.job(key), 0o755)?;
        create_dir(&paths.job(key).join("runs"), 0o755)?;
        create_dir(&draft, 0o700)
    };
    workdirs::again_if_gone(make).map_err(told())?;
    let is_others = |dataset: &Dataset| {
        dataset.source == DataSource::Model && dataset.name.as_str() != run.identity.key.job.as_str()
    };
    let noted = RefCell::new(Vec::new());
    let note = |told| {
        if let Told::Noted(what) = told {
            noted.borrow_mut().push(what);
        }
    };
    let choose = |place: &Path| {
        workdirs::choose_datasets(paths, run, &place.join(ASIDE_DATA), &note)?;
        workdirs::choose_left(paths, run, &place.join(ASIDE_MODELS), &is_others)
    };
    let keep = || write_json(&draft.join(TOLD), &*noted.borrow(), Durability::Machine).map_err(super::told);
    let filled = workdirs::snapshots(paths, run, &draft, &note)
        .and_then(|()| choose(&draft))
        .and_then(|()| keep())
        .and_then(|()| fs::rename(&draft, &place).map_err(told()))
        // From now on nobody removes what was chosen: it is still there.
        .and_then(|()| choose(&place));
    if filled.is_err() {
        remove_tree(&draft).and_then(|()| remove_tree(&place)).map_err(told())?;
    }
    // What was set aside for the run before may be taken at this moment.
    let (next, of_next) = (run.identity.run, number);
    sweep(paths, key, |run, number| run == next && number < of_next).map_err(told())?;
    filled
}

/// Makes it the run's own. What is there already was put there by an earlier try.
pub(super) fn adopt(paths: &Paths, run: &Prepare, directory: &Path, tell: &dyn Fn(Told)) -> Result<(), EngineError> {
    let Some(number) = run.aside else { return Ok(()) };
    let place = place(paths, &run.identity.key, run.identity.run, number);
    let told = || failed("take what was set aside for the run");
    for entry in optional(fs::read_dir(&place)).map_err(told())?.into_iter().flatten() {
        let name = entry.map_err(told())?.file_name();
        let target = match name.to_str() {
            Some(TOLD) => {
                let noted: Vec<String> = read_json(&place.join(TOLD)).map_err(super::told)?.unwrap_or_default();
                noted.into_iter().for_each(|what| tell(Told::Noted(what)));
                continue;
            }
            Some(ASIDE_DATA) => workdirs::seen_file(paths, &run.identity),
            Some(ASIDE_MODELS) => models::chosen_file(paths, &run.identity),
            _ => directory.join(&name),
        };
        if fs::symlink_metadata(&target).is_err() {
            fs::rename(place.join(&name), &target).map_err(told())?;
        }
    }
    let begun = (run.identity.run, number);
    sweep(paths, &run.identity.key, |run, number| (run, number) <= begun).map_err(told())
}

pub(super) fn remove(paths: &Paths, key: &JobKey, run: u32, number: u64) -> Result<(), EngineError> {
    let job = paths.job(key);
    let removed = remove_tree(&place(paths, key, run, number)).and_then(|()| {
        if job.join("status").try_exists()? {
            return Ok(());
        }
        // The job was removed while this was under way; not empty where one of its name has come since.
        let _ = fs::remove_dir(job.join("runs"));
        let _ = fs::remove_dir(&job);
        Ok(())
    });
    removed.map_err(failed("remove what was set aside"))
}

/// Removes what was set aside before, also by a daemon that was killed before it could say that nobody wants it any more.
fn sweep(paths: &Paths, key: &JobKey, goes: impl Fn(u32, u64) -> bool) -> io::Result<()> {
    let runs = paths.job(key).join("runs");
    for entry in fs::read_dir(&runs)? {
        let name = entry?.file_name();
        if name.to_str().and_then(aside_begun).is_some_and(|(run, number)| goes(run, number)) {
            remove_tree(&runs.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_swept_is_whole_or_not_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let (paths, key) = (Paths::new(root.path()).unwrap(), "default/job".parse().unwrap());
        let runs = paths.job(&key).join("runs");
        let left = |goes: &dyn Fn(u32, u64) -> bool| {
            for name in
                ["1", ".1.data", ".2.fetch", ".1.aside-4", ".2.aside-5", ".2.aside-6.new", "..2.aside-6.new.fetch"]
            {
                fs::create_dir_all(runs.join(name).join("code")).unwrap();
            }
            sweep(&paths, &key, goes).unwrap();
            let names = fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert_eq!(
            left(&|run, number| run == 2 && number < 6),
            ["..2.aside-6.new.fetch", ".1.aside-4", ".1.data", ".2.aside-6.new", ".2.fetch", "1"]
        );
        assert_eq!(left(&|run, number| (run, number) <= (2, 6)), [".1.data", ".2.fetch", "1"]);
    }
}
