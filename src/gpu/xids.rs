//! XIDs that were heard, by card. NVML tells each once, so they are kept in a file that outlives the daemon, but not the
//! machine: a reboot brings the cards back as well as it can.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Xid;
use crate::ids::{GpuUuid, Timestamp};
use crate::sys::file::{Durability, write_whole};

pub(super) struct Xids {
    file: PathBuf,
    of: BTreeMap<GpuUuid, BTreeMap<u64, Timestamp>>,
}

impl Xids {
    /// What was heard before; nothing where the file is not there, or was not written by us.
    pub(super) fn open(file: &Path) -> Self {
        let text = std::fs::read(file).unwrap_or_default();
        Self { file: file.to_owned(), of: serde_json::from_slice(&text).unwrap_or_default() }
    }

    pub(super) fn of(&self, uuid: &GpuUuid) -> Vec<Xid> {
        let found = self.of.get(uuid).into_iter().flatten();
        found.map(|(number, at)| Xid { number: *number, at: *at }).collect()
    }

    pub(super) fn heard(&mut self, uuid: &GpuUuid, number: u64, at: Timestamp) {
        self.of.entry(uuid.clone()).or_default().insert(number, at);
        self.keep();
    }

    /// The card has been away, or the driver has been loaded anew: it was reset.
    pub(super) fn forget(&mut self, uuid: &GpuUuid) {
        if self.of.remove(uuid).is_some() {
            self.keep();
        }
    }

    fn keep(&self) {
        let text = serde_json::to_vec(&self.of).unwrap_or_default();
        // Until the next one is heard it is known to this daemon alone.
        if let Err(error) = write_whole(&self.file, &text, 0o644, Durability::Process) {
            tracing::warn!(path = %self.file.display(), %error, "errors of cards cannot be kept for the next daemon");
        }
    }
}
