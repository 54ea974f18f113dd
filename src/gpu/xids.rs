//! XIDs that were heard, by card. NVML tells each once, so they are kept in a file that outlives the daemon, but neither the
//! machine nor the load of the driver: both bring the cards back as well as they can.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Xid;
use crate::ids::{GpuUuid, Timestamp};
use crate::sys::file::{Durability, write_whole};

pub(super) struct Xids {
    /// Where nobody is to know them later there is none.
    file: Option<PathBuf>,
    /// The file is another one's, and only read.
    is_read_only: bool,
    kept: Kept,
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    /// The load of the driver that told them, where that is known.
    driver: Option<u64>,
    of: BTreeMap<GpuUuid, BTreeMap<u64, Timestamp>>,
}

impl Xids {
    /// What was heard before; nothing where the file is not there, or cannot be read, of which the log tells.
    pub(super) fn open(file: Option<&Path>) -> Self {
        Self { file: file.map(Path::to_owned), is_read_only: false, kept: file.map(read).unwrap_or_default() }
    }

    /// As it was heard by another one, who keeps the file.
    pub(super) fn of_another(file: Option<&Path>) -> Self {
        let text = file.and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let kept = serde_json::from_slice(&text).unwrap_or_default();
        Self { file: file.map(Path::to_owned), is_read_only: true, kept }
    }

    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(super) fn of(&self, uuid: &GpuUuid) -> Vec<Xid> {
        let found = self.kept.of.get(uuid).into_iter().flatten();
        found.map(|(number, at)| Xid { number: *number, at: *at }).collect()
    }

    pub(super) fn heard(&mut self, uuid: &GpuUuid, number: u64, at: Timestamp) {
        self.kept.of.entry(uuid.clone()).or_default().insert(number, at);
        self.keep();
    }

    /// The card has been away: it was reset.
    pub(super) fn forget(&mut self, uuid: &GpuUuid) {
        if self.kept.of.remove(uuid).is_some() {
            self.keep();
        }
    }

    /// Which load of the driver tells from now on; what another one has told is over. Where that is not known all is kept.
    pub(super) fn driver_is(&mut self, load: Option<u64>) {
        if load.is_none() || load == self.kept.driver {
            return;
        }
        if self.kept.driver.is_some() {
            self.kept.of.clear();
        }
        self.kept.driver = load;
        self.keep();
    }

    fn keep(&self) {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_read_only) else { return };
        // People change entries.
        let text = serde_json::to_vec_pretty(&self.kept).unwrap_or_default();
        // Until the next one is heard it is known to this daemon alone.
        if let Err(error) = write_whole(file, &text, 0o644, Durability::Process) {
            tracing::warn!(path = %file.display(), %error, "errors of cards cannot be kept for the next daemon");
        }
    }
}

/// One that is damaged is put aside: who administers the machine may still read in it which cards have failed.
fn read(file: &Path) -> Kept {
    let text = match std::fs::read(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Kept::default(),
        Err(error) => {
            tracing::warn!(path = %file.display(), %error, "errors of cards that were told before are not known: cards that have failed may be used");
            return Kept::default();
        }
        Ok(text) => text,
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        let aside = file.with_extension("json.damaged");
        tracing::warn!(path = %file.display(), %error, "the file of errors of cards is damaged: cards that have failed may be used");
        match std::fs::rename(file, &aside) {
            Ok(()) => tracing::warn!(path = %aside.display(), "what it held is put aside"),
            Err(error) => tracing::warn!(path = %aside.display(), %error, "what it held cannot be put aside, and will be written over"),
        }
        Kept::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_taken_out_as_people_are_told_to_and_the_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("xids.json");
        let uuids: [GpuUuid; 3] = ["GPU-1", "GPU-2", "GPU-3"].map(|uuid| uuid.parse().unwrap());
        let mut xids = Xids::open(Some(&file));
        uuids.iter().for_each(|uuid| xids.heard(uuid, 79, Timestamp(1)));
        for (at, uuid) in uuids.iter().enumerate() {
            let text = std::fs::read_to_string(&file).unwrap();
            let begin = text.find(&format!("\"{uuid}\": ")).unwrap() + uuid.to_string().len() + 4;
            let end = begin + text[begin..].find('}').unwrap() + 1;
            std::fs::write(&file, format!("{}{{}}{}", &text[..begin], &text[end..])).unwrap();
            let xids = Xids::open(Some(&file));
            let known: Vec<_> = uuids.iter().map(|uuid| xids.of(uuid).len()).collect();
            assert_eq!(known, (0..3).map(|other| usize::from(other > at)).collect::<Vec<_>>(), "{uuid}");
        }
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_the_next_one_goes_on_without_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("xids.json");
        let damaged = "{\"driver\":7,\"of\":{\"GPU-1\":{\"79\":1}";
        std::fs::write(&file, damaged).unwrap();
        let uuid: GpuUuid = "GPU-1".parse().unwrap();
        let mut xids = Xids::open(Some(&file));
        assert_eq!((xids.of(&uuid).len(), file.exists()), (0, false));
        xids.heard(&uuid, 48, Timestamp(1));
        assert_eq!(Xids::open(Some(&file)).of(&uuid).len(), 1);
        let aside = std::fs::read_to_string(directory.path().join("xids.json.damaged")).unwrap();
        assert_eq!(aside, damaged, "it can still be read what was in it");
    }

    #[test]
    fn an_entry_stands_on_lines_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("xids.json");
        let mut xids = Xids::open(Some(&file));
        ["GPU-1", "GPU-2"].iter().for_each(|uuid| xids.heard(&uuid.parse().unwrap(), 79, Timestamp(1)));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.lines().any(|line| line.trim() == "\"GPU-1\": {"), "{text}");
    }

    #[test]
    fn what_another_load_of_the_driver_has_told_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("xids.json");
        let uuid: GpuUuid = "GPU-1".parse().unwrap();
        let mut xids = Xids::open(Some(&file));
        xids.heard(&uuid, 79, Timestamp(1));
        // Known later, and not known for a while: neither says that the driver was loaded anew.
        for (load, kept) in [(None, 1), (Some(7), 1), (None, 1), (Some(7), 1), (Some(8), 0)] {
            let mut next = Xids::open(Some(&file));
            next.driver_is(load);
            assert_eq!((next.of(&uuid).len(), Xids::open(Some(&file)).of(&uuid).len()), (kept, kept), "{load:?}");
        }
    }

    #[test]
    fn who_only_reads_the_file_changes_nothing_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("xids.json");
        let uuid: GpuUuid = "GPU-1".parse().unwrap();
        assert_eq!(Xids::of_another(Some(&file)).of(&uuid), []);
        Xids::open(Some(&file)).heard(&uuid, 79, Timestamp(1));
        for text in [std::fs::read(&file).unwrap(), b"{\"driver\":7".to_vec()] {
            std::fs::write(&file, &text).unwrap();
            let mut reads = Xids::of_another(Some(&file));
            assert_eq!(reads.of(&uuid).len(), usize::from(text.ends_with(b"}")));
            reads.driver_is(Some(8));
            reads.heard(&uuid, 48, Timestamp(2));
            reads.forget(&uuid);
            assert_eq!(std::fs::read(&file).unwrap(), text);
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        }
    }
}
