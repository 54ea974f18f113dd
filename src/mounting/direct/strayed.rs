//! Who writes past the mount where a quota has come: whoever was in `code/` before, while it was shown directly, still is there
//! when that is taken away. What they write is not refused; it is counted, and so refused to the others.

use std::collections::BTreeSet;

use crate::config::Paths;
use crate::ids::HomeName;
use crate::sys::mounts::attached::Attached;
use crate::sys::mounts::writes::Writes;
use crate::workspace::quota::{self, Strays};

pub(super) struct Strayed {
    paths: Paths,
    pub(super) watched: Vec<(HomeName, Writes)>,
    told: Strays,
    /// As it is to be told.
    numbers: Strays,
}

impl Strayed {
    pub(super) fn open(paths: &Paths) -> Self {
        // Whatever they are, the next ones are others.
        let told: Strays = quota::read(&quota::strays_file(paths)).unwrap_or_default();
        Self { paths: paths.clone(), watched: Vec::new(), numbers: told.clone(), told }
    }

    /// Before the mount is taken away: what is written by way of it until its last user has gone is heard of, if it says so.
    pub(super) fn watch(&mut self, home: &HomeName, mount: &Attached) -> bool {
        // What was written until now.
        *self.numbers.entry(home.clone()).or_default() += 1;
        let writes = Writes::by(mount).inspect_err(|error| {
            tracing::warn!(
                workspace = %home,
                %error,
                "what is written to code/ by who is there already is not counted until the mount is started anew"
            );
        });
        let is_heard = writes.is_ok();
        self.watched.extend(writes.map(|writes| (home.clone(), writes)));
        is_heard
    }

    /// Those that have no quota any more are nobody's business.
    pub(super) fn watch_no_more_but(&mut self, limited: &BTreeSet<HomeName>) {
        self.watched.retain(|(home, _)| limited.contains(home));
        self.numbers.retain(|home, _| limited.contains(home));
    }

    pub(super) fn note(&mut self) {
        for (home, writes) in &self.watched {
            if writes.take() {
                *self.numbers.entry(home.clone()).or_default() += 1;
            }
        }
        self.tell();
    }

    pub(super) fn tell(&mut self) {
        if self.numbers == self.told {
            return;
        }
        match quota::write(&quota::strays_file(&self.paths), &self.numbers) {
            Ok(()) => self.told = self.numbers.clone(),
            Err(error) => tracing::warn!(%error, "cannot tell who writes past the mount, the next write tries again"),
        }
    }
}
