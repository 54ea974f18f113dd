//! Removes what was copied in from stores and nobody uses any more.
//!
//! Who copies notes what the run has while it holds the place, and who removes asks what runs have while it does: what is made
//! or taken up between the two is never taken for unused, however short the time is after which it would be.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Carrier, below};
use crate::sys::file::remove_tree;

impl Carrier {
    /// Removes copies that no run has used for so long; `used` tells the places that tasks and runs that are not over have.
    pub(in super::super) fn prune(
        &self,
        unused: Duration,
        used: &dyn Fn() -> io::Result<Vec<PathBuf>>,
    ) -> io::Result<()> {
        for place in below(&self.paths.remote(), 3)? {
            if !place.is_dir() {
                continue;
            }
            // Where something is being copied, the next look is soon enough.
            let Some(_held) = self.try_place(&place.with_extension("lock"))? else { continue };
            prune_place(&place, unused, used)?;
        }
        Ok(())
    }
}

/// Of one place, which is held.
fn prune_place(place: &Path, unused: Duration, used: &dyn Fn() -> io::Result<Vec<PathBuf>>) -> io::Result<()> {
    let mut old = Vec::new();
    for snapshot in below(place, 1)? {
        let age = fs::symlink_metadata(&snapshot)?.modified()?.elapsed().unwrap_or_default();
        old.extend((age >= unused).then_some(snapshot));
    }
    if !old.is_empty() {
        let used = used()?;
        old.retain(|snapshot| !used.iter().any(|mount| mount.starts_with(snapshot)));
        old.iter().try_for_each(|snapshot| remove_tree(snapshot))?;
    }
    // What is left says when the machine was started.
    match below(place, 1)?.iter().all(|left| left.is_file()) {
        true => remove_tree(place),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::config::{Config, InForce, Paths};
    use crate::sys::lock::HeldLock;
    use crate::sys::process::SealedProgram;

    #[test]
    fn what_is_used_is_asked_while_the_place_is_held_and_stays_however_short_the_time_is() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path()).unwrap();
        let place = paths.remote().join("default/1000/place");
        let (used, unused) = (place.join("a"), place.join("b"));
        [&used, &unused].iter().for_each(|snapshot| fs::create_dir_all(snapshot).unwrap());
        let program = Arc::new(SealedProgram::of_this_program().unwrap());
        let config = InForce::new(Config::defaults(paths.clone()).unwrap());
        let carrier = Carrier::new(program, paths, config);
        let lock = place.with_extension("lock");
        // Whoever copies has noted it by now, or comes when this is over.
        let told = || {
            assert!(HeldLock::try_take(&lock)?.is_none(), "nobody copies meanwhile");
            Ok(vec![used.join("tree")])
        };
        carrier.prune(Duration::ZERO, &told).unwrap();
        assert!(used.is_dir() && !unused.exists());
        let failed = || Err(io::ErrorKind::Other.into());
        assert!(carrier.prune(Duration::ZERO, &failed).is_err() && used.is_dir(), "not known is not unused");
        carrier.prune(Duration::from_secs(3600), &failed).expect("nothing is old enough");
        let held = HeldLock::try_take(&lock).unwrap().unwrap();
        carrier.prune(Duration::ZERO, &|| Ok(Vec::new())).unwrap();
        assert!(used.is_dir(), "something is being copied");
        drop(held);
        carrier.prune(Duration::ZERO, &|| Ok(Vec::new())).unwrap();
        assert!(!place.exists());
    }
}
