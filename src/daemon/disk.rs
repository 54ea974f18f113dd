//! What is free where the daemon and its jobs write, and a start that meets a full disk.
//!
//! Nobody tells when a disk becomes full or has room again: what is free is looked at before each round, which costs a few system
//! calls, and from time to time while it is too little.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::DaemonError;
use crate::config::Paths;
use crate::reconcile::Free;
use crate::sys::file::{free_for_all_and_root, has_no_room, has_room_for_root};
use crate::sys::process::begin_anew;
use crate::sys::service;

/// Where state, images and workspaces lie, which may be one disk or three.
pub(super) struct Disks(Vec<PathBuf>);

impl Disks {
    pub(super) fn of(paths: &Paths) -> Self {
        Self(vec![paths.state_dir(), paths.images(), paths.workspaces()])
    }

    /// The one with the least room. Of what cannot be looked at nothing is known, and nothing is held up.
    pub(super) fn least_free(&self) -> Option<Free> {
        let free = |place: &PathBuf| {
            let (bytes, _) = free_for_all_and_root(place).ok()??;
            Some(Free { place: place.clone(), bytes })
        };
        self.0.iter().filter_map(free).min_by_key(|free| free.bytes)
    }
}

/// From one look for room to the next, while the daemon cannot start.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A start writes some files; with less free, bytes, it is not tried again.
const START_MIN: u64 = 256 << 10;

/// A start that has met a full disk waits for room and begins anew, as another program in the same process: the service manager,
/// and whoever has started us, see one daemon. Other errors are handed back.
pub(super) fn wait_if_full(error: DaemonError, paths: &Paths) -> DaemonError {
    if !is_no_room(&error) {
        return error;
    }
    let place = paths.state_dir();
    let said = crate::sys::told(&error);
    tracing::error!(error = said, "the disk is full: the daemon starts when there is room; tasks go on");
    loop {
        service::status("waiting for room on the disk");
        service::starts_within(LOOK_EVERY * 30);
        std::thread::sleep(LOOK_EVERY);
        if has_room_for_root(&place, START_MIN) {
            let source = begin_anew();
            return DaemonError::Io { what: "begin anew", source };
        }
    }
}

fn is_no_room(error: &DaemonError) -> bool {
    if let DaemonError::Store(error) = error {
        return error.is_no_room();
    }
    let causes = std::iter::successors(error.source(), |cause| Error::source(*cause));
    causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).any(has_no_room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    #[test]
    fn the_place_with_the_least_room_counts_and_what_is_not_there_counts_for_nothing() {
        let disks = Disks(vec![PathBuf::from("/not/there"), std::env::temp_dir()]);
        assert_eq!(disks.least_free().unwrap().place, std::env::temp_dir());
        assert_eq!(Disks(vec![PathBuf::from("/not/there")]).least_free(), None);
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors_of_a_start() {
        let of = |kind: io::ErrorKind| DaemonError::Io { what: "x", source: kind.into() };
        assert!(is_no_room(&of(io::ErrorKind::StorageFull)) && is_no_room(&of(io::ErrorKind::QuotaExceeded)));
        assert!(!is_no_room(&of(io::ErrorKind::PermissionDenied)) && !is_no_room(&StoreError::Injected.into()));
        assert!(is_no_room(&StoreError::NoRoom { source: "x".into() }.into()));
    }
}
