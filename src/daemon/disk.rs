//! What is free where the daemon and its jobs write, and a start that meets a full disk.
//!
//! Nobody tells when a disk becomes full or has room again: a thread looks, since a file system may hang.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::DaemonError;
use crate::backup::BackupError;
use crate::config::{InForce, Paths};
use crate::reconcile::{Event, Free};
use crate::sys::file::{free_for_all_and_root, has_files_for_root, has_no_room, has_room_for_root};
use crate::sys::process::begin_anew;
use crate::sys::service;

/// Where what the daemon and its jobs keep lies.
pub(super) struct Disks(Vec<PathBuf>);

impl Disks {
    pub(super) fn of(paths: &Paths) -> Self {
        Self(paths.disks().to_vec())
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

/// From one look to the next, if nothing is begun before.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// Tells the loop what is free, which goes by what it was told last.
pub(super) struct Watch(SyncSender<()>);

impl Watch {
    pub(super) fn start(disks: Disks, config: InForce, events: UnboundedSender<Event>) -> io::Result<Self> {
        let (ring, rung) = sync_channel(1);
        let watch = move || {
            let mut news = News { was_low: true };
            while rung.recv_timeout(WATCH_EVERY) != Err(RecvTimeoutError::Disconnected) {
                let free = disks.least_free().filter(|free| news.is(free, config.now().limits.min_free));
                if free.is_some_and(|free| events.send(Event::Free(free)).is_err()) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("disks".to_owned()).spawn(watch)?;
        Ok(Self(ring))
    }

    /// Something is begun, which may write: looks at once.
    pub(super) fn ring(&self) {
        // It is rung already, or the daemon ends.
        let _ = self.0.try_send(());
    }
}

/// Whether the loop is to be woken: while there is little room, and once when there is enough.
struct News {
    was_low: bool,
}

impl News {
    fn is(&mut self, free: &Free, floor: u64) -> bool {
        let is_low = free.is_low(floor, true);
        std::mem::replace(&mut self.was_low, is_low) || is_low
    }
}

/// From one look for room to the next, while the daemon cannot start.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A start writes some files; with less free, bytes, or with fewer that may be made, it is not tried again.
const START_MIN: u64 = 256 << 10;
const START_FILES_MIN: u64 = 64;

/// A start that has met a full disk waits for room and begins anew, as another program in the same process: the service manager,
/// and whoever has started us, see one daemon. Other errors are handed back, also of a place where no room is missing that can be
/// seen (a quota, another disk): who has started us tries again as often as is good.
#[expect(clippy::disallowed_methods, reason = "nothing tells that there is room on a disk again")]
pub(super) fn wait_if_full(error: DaemonError, paths: &Paths) -> DaemonError {
    if !is_no_room(&error) {
        return error;
    }
    let places = [Disks::of(paths).0, vec![paths.run_dir()]].concat();
    let Some(place) = without_room(&places) else {
        let places = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        return DaemonError::NoRoom { places, source: Box::new(error) };
    };
    let (said, place) = (crate::sys::told(&error), place.display());
    tracing::error!(error = said, %place, "the disk is full: the daemon starts when there is room; tasks go on");
    while let Some(place) = without_room(&places) {
        service::status(&format!("waiting for room on the disk of {}", place.display()));
        service::starts_within(LOOK_EVERY * 30);
        std::thread::sleep(LOOK_EVERY);
    }
    DaemonError::Io { what: "begin anew", source: begin_anew() }
}

/// The first of these places in which a start cannot write.
fn without_room(places: &[PathBuf]) -> Option<&Path> {
    let has_room = |place: &Path| has_room_for_root(place, START_MIN) && has_files_for_root(place, START_FILES_MIN);
    places.iter().map(PathBuf::as_path).find(|place| !has_room(place))
}

fn is_no_room(error: &DaemonError) -> bool {
    if let DaemonError::Store(error) | DaemonError::Anew(BackupError::Store(error)) = error {
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
    fn the_loop_is_woken_while_there_is_little_room_and_once_when_there_is_enough() {
        let mut news = News { was_low: true };
        let mut is_news = |bytes, floor| news.is(&Free { place: "/".into(), bytes }, floor);
        assert!(is_news(9, 8), "as it begins");
        assert!(!is_news(9, 8) && !is_news(90, 8));
        assert!(is_news(8, 8) && is_news(0, 8) && is_news(0, 8) && is_news(9, 8) && !is_news(9, 8));
        assert!(is_news(9, 80) && is_news(9, 8) && !is_news(9, 8), "it was edited");
    }

    #[test]
    fn a_start_waits_for_the_place_that_has_neither_bytes_nor_files_left_and_for_no_other() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!(
                "skipped: a_start_waits_for_the_place_that_has_neither_bytes_nor_files_left_and_for_no_other needs root"
            );
            return;
        }
        let (dir, tasks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let there = || {
            crate::sys::mounts::enter_private_namespace().unwrap();
            let place = dir.path().to_owned();
            let places = [tasks.path().to_owned(), place.clone()];
            let mut found = Vec::new();
            for options in ["size=1m", "size=128k", "size=1m,nr_inodes=8"] {
                let (flags, target) = (nix::mount::MsFlags::empty(), place.as_path());
                nix::mount::mount(Some("small"), target, Some("tmpfs"), flags, Some(options)).unwrap();
                found.push(without_room(&places).map(Path::to_owned));
                nix::mount::umount(target).unwrap();
            }
            assert_eq!(found, [None, Some(place.clone()), Some(place)]);
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap());
        let full = DaemonError::Io { what: "x", source: io::ErrorKind::StorageFull.into() };
        let told = wait_if_full(full, &Paths::new(dir.path()).unwrap());
        assert!(crate::sys::told(&told).contains(&dir.path().display().to_string()), "{told:?}");
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors_of_a_start() {
        let of = |kind: io::ErrorKind| DaemonError::Io { what: "x", source: kind.into() };
        assert!(is_no_room(&of(io::ErrorKind::StorageFull)) && is_no_room(&of(io::ErrorKind::QuotaExceeded)));
        assert!(!is_no_room(&of(io::ErrorKind::PermissionDenied)) && !is_no_room(&StoreError::Injected.into()));
        assert!(is_no_room(&StoreError::NoRoom { source: "x".into() }.into()));
    }
}
