//! Drafts become what counts, by renames that may be cut short anywhere.
//!
//! ```text
//!   drafts ─► restore.json ─► for each place: what is there ─► aside, draft ─► place ─► restore.json is removed
//! ```
//! Before `restore.json` is there all is as it was; after it only forward: a draft that is gone has been put in place.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{BackupError, failed, remove_drafts, subordinates};
use crate::config::Paths;
use crate::ids::Timestamp;
use crate::sys::file::{Durability, create_dir, optional, remove_if_there, write_whole};
use crate::sys::mounts;

/// What is written when all drafts are whole.
#[derive(Debug, Serialize, Deserialize)]
struct Intent {
    /// In the names of what is set aside.
    id: String,
}

pub(super) struct Drafts {
    state: PathBuf,
    config: PathBuf,
}

fn intent_file(paths: &Paths) -> PathBuf {
    paths.state_dir().join("restore.json")
}

/// Whether a restore was cut short when all of it was ready.
pub(super) fn is_unfinished(paths: &Paths) -> bool {
    intent_file(paths).exists()
}

impl Drafts {
    /// Where drafts lie: beside what they replace, so that a rename is enough.
    fn of(paths: &Paths) -> Self {
        let beside = paths.config_dir().with_file_name(".trainyard-restore");
        Self { state: paths.state_dir().join(".restore"), config: beside }
    }

    pub(super) fn make(paths: &Paths) -> Result<Self, BackupError> {
        let drafts = Self::of(paths);
        for path in [&drafts.state, &drafts.config] {
            remove_drafts(path)?;
            create_dir(path, 0o700).map_err(failed("make the directory", path))?;
        }
        Ok(drafts)
    }

    pub(super) fn store(&self) -> PathBuf {
        self.state.join("state.redb")
    }

    pub(super) fn subordinates(&self) -> PathBuf {
        self.state.join("subordinate-ids")
    }

    /// The directory in which the configuration's lies, under its own name.
    pub(super) fn config(&self) -> PathBuf {
        self.config.clone()
    }

    /// The tokens of the API in it.
    pub(super) fn tokens(&self) -> PathBuf {
        self.config.join("trainyard/tokens")
    }

    /// Puts both machines' lines together; what of this one's has made way is told.
    pub(super) fn merge_subordinates(&self, paths: &Paths) -> Result<Vec<String>, BackupError> {
        let (draft, here) = (self.subordinates(), paths.subordinate_ids());
        let read = |path: &Path| optional(fs::read_to_string(path)).map_err(failed("read", path));
        let Some(backup) = read(&draft)? else { return Ok(Vec::new()) };
        let merged = subordinates::merge(paths, &backup, &read(&here)?.unwrap_or_default())?;
        write_whole(&draft, merged.text.as_bytes(), 0o644, Durability::Machine).map_err(failed("write", &draft))?;
        Ok(merged.gone)
    }

    /// From here on only forward. Returns what was set aside.
    pub(super) fn put_in_place(&self, paths: &Paths, now: Timestamp) -> Result<Vec<PathBuf>, BackupError> {
        // As a name: no colons, and a moment of its own.
        let id = now.to_string().replace([':', '.'], "-");
        let swaps = swaps(paths, &id);
        let aside = swaps.iter().filter(|swap| swap.place.exists()).map(|swap| swap.aside.clone()).collect();
        let (file, intent) = (intent_file(paths), serde_json::json!(Intent { id }).to_string());
        write_whole(&file, intent.as_bytes(), 0o600, Durability::Machine).map_err(failed("write", &file))?;
        finish(paths)?;
        Ok(aside)
    }
}

/// What a rename cannot replace, or would take a file system with it that is mounted again at the next start of the machine.
pub(super) fn refuse_mount_points(paths: &Paths) -> Result<(), BackupError> {
    let mounts = mounts::list().map_err(failed("read", Path::new("/proc/self/mountinfo")))?;
    for Swap { place, .. } in swaps(paths, "") {
        if let Some(mount) = mounts.iter().find(|mount| mount.target.starts_with(&place)) {
            return Err(BackupError::MountPoint { mount: mount.target.clone(), place });
        }
    }
    Ok(())
}

struct Swap {
    draft: PathBuf,
    place: PathBuf,
    aside: PathBuf,
}

fn swaps(paths: &Paths, id: &str) -> Vec<Swap> {
    let drafts = Drafts::of(paths);
    let aside = |place: &Path| {
        let mut name = place.file_name().unwrap_or_default().to_owned();
        name.push(format!(".before-restore-{id}"));
        place.with_file_name(name)
    };
    let pairs = [
        (drafts.config().join("trainyard"), paths.config_dir()),
        (drafts.subordinates(), paths.subordinate_ids()),
        (drafts.store(), paths.store_file()),
    ];
    pairs.map(|(draft, place)| Swap { aside: aside(&place), draft, place }).into()
}

impl Swap {
    /// The renames that are left to do, in their order.
    fn renames(&self) -> Vec<(&Path, &Path)> {
        let is_there = |path: &Path| path.symlink_metadata().is_ok();
        if !is_there(&self.draft) {
            return Vec::new();
        }
        let away = is_there(&self.place).then_some((self.place.as_path(), self.aside.as_path()));
        away.into_iter().chain([(self.draft.as_path(), self.place.as_path())]).collect()
    }
}

/// Goes on where a restore was cut short, or removes what one has left that was not ready.
pub(super) fn finish(paths: &Paths) -> Result<(), BackupError> {
    let file = intent_file(paths);
    if let Some(bytes) = optional(fs::read(&file)).map_err(failed("read", &file))? {
        let damaged = |error: serde_json::Error| BackupError::Damaged { path: file.clone(), what: error.to_string() };
        let intent: Intent = serde_json::from_slice(&bytes).map_err(damaged)?;
        for swap in swaps(paths, &intent.id) {
            for (from, to) in swap.renames() {
                rename(from, to).map_err(failed("put in place", to))?;
            }
        }
        remove_if_there(&file).map_err(failed("remove", &file))?;
        sync_parent(&file).map_err(failed("sync", &file))?;
    }
    discard_drafts(paths)
}

/// Removes what has secrets in it and comes to nothing; not what is about to take its place.
pub(super) fn discard_drafts(paths: &Paths) -> Result<(), BackupError> {
    let file = intent_file(paths);
    if file.try_exists().map_err(failed("look for", &file))? {
        return Ok(());
    }
    let drafts = Drafts::of(paths);
    remove_drafts(&drafts.state)?;
    remove_drafts(&drafts.config)
}

/// Durable before the next one: their order is what makes them safe.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(from)?;
    sync_parent(to)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(root: &Path) -> Paths {
        let paths = Paths::new(root).unwrap();
        for (path, text) in
            [(paths.config_file(), "old"), (paths.store_file(), "old"), (paths.subordinate_ids(), "1:0:1")]
        {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        paths
    }

    fn drafts(paths: &Paths) -> Drafts {
        let drafts = Drafts::make(paths).unwrap();
        fs::create_dir(drafts.config().join("trainyard")).unwrap();
        fs::write(drafts.config().join("trainyard/trainyard.toml"), "new").unwrap();
        fs::write(drafts.store(), "new").unwrap();
        fs::write(drafts.subordinates(), "new").unwrap();
        drafts
    }

    fn content(paths: &Paths) -> [String; 3] {
        [paths.config_file(), paths.store_file(), paths.subordinate_ids()].map(|path| fs::read_to_string(path).unwrap())
    }

    #[test]
    fn a_swap_that_is_cut_short_anywhere_goes_on_to_its_end() {
        let mut done = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let paths = tree(dir.path());
            drafts(&paths);
            fs::write(intent_file(&paths), "{\"id\":\"T\"}").unwrap();
            let renames = swaps(&paths, "T");
            let renames: Vec<_> = renames.iter().flat_map(Swap::renames).collect();
            renames.iter().take(done).for_each(|(from, to)| fs::rename(from, to).unwrap());
            finish(&paths).unwrap();
            assert_eq!(content(&paths), ["new", "new", "new"], "after {done} renames");
            let aside = swaps(&paths, "T").into_iter().map(|swap| swap.aside).collect::<Vec<_>>();
            assert_eq!(fs::read_to_string(aside[0].join("trainyard.toml")).unwrap(), "old");
            assert_eq!(fs::read_to_string(&aside[2]).unwrap(), "old");
            assert!(!is_unfinished(&paths) && !Drafts::of(&paths).config().exists());
            if done == renames.len() {
                assert_eq!(done, 6);
                break;
            }
            done += 1;
        }
    }

    #[test]
    fn drafts_that_are_not_ready_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let paths = tree(dir.path());
        drafts(&paths);
        finish(&paths).unwrap();
        assert_eq!(content(&paths), ["old", "old", "1:0:1"]);
        assert!(!Drafts::of(&paths).config().exists() && !Drafts::of(&paths).store().exists());
    }
}
