//! What the disk under the state directory can do, and the mount.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use trainyard_fs::{Content, MountOptions, RelPath, Rule, Tree};

use super::{Machine, Verdict, failure, needs_root, ok, warning};
use crate::config::ROOM_MIN;
use crate::ids::Bytes;
use crate::sys::file::remove_tree;
use crate::sys::mounts::{self, Overlay};
use crate::sys::{btrfs, projects};

/// Where the state is or will be.
fn place(machine: &Machine) -> PathBuf {
    nearest(&machine.paths.state_dir())
}

/// A directory on the disk of the state; it goes when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(machine: &Machine, what: &str) -> io::Result<Self> {
        let path = place(machine).join(format!(".doctor-{what}-{}", std::process::id()));
        remove_tree(&path)?;
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Of the disk that is looked at it is told above what is wrong with it.
        let _ = remove_tree(&self.0);
    }
}

/// On a thread that alone sees what is mounted meanwhile.
fn apart<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            mounts::enter_private_namespace()?;
            work()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the check has panicked")))
    })
}

pub(super) fn id_map(machine: &Machine) -> Verdict {
    if !machine.is_root {
        return needs_root();
    }
    let images = machine.paths.images();
    let place = if images.is_dir() { images } else { place(machine) };
    match mounts::can_map_ids(&place) {
        Ok(true) => ok("layers of images are shown with the right owners"),
        Ok(false) => warning(
            format!("the file system at {} maps no ids: a layer is copied for each owner", place.display()),
            "put the state on ext4, XFS or btrfs, with Linux 5.19 or newer",
        ),
        Err(error) => failure(format!("cannot try it at {}: {error}", place.display()), "see user-namespaces"),
    }
}

pub(super) fn overlay(machine: &Machine) -> Verdict {
    if !machine.is_root {
        return needs_root();
    }
    match apart(|| try_overlay(machine)) {
        Ok(()) => ok(format!("an overlay can be mounted at {}", place(machine).display())),
        Err(error) => failure(
            format!("no overlay can be mounted at {}: {error}", place(machine).display()),
            "load the kernel module overlay, and put the state on ext4, XFS (ftype=1) or btrfs, not on an overlay itself",
        ),
    }
}

/// Mounts one and writes through it.
fn try_overlay(machine: &Machine) -> io::Result<()> {
    let scratch = Scratch::make(machine, "overlay")?;
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| scratch.directory(name));
    let (lower, upper, work, merged) = (lower?, upper?, work?, merged?);
    fs::write(lower.join("file"), "below")?;
    mounts::mount_overlay(&Overlay { lower: &[lower], upper: &upper, work: &work }, &merged)?;
    let written = fs::write(merged.join("file"), "above");
    mounts::detach(&merged)?;
    written?;
    match fs::read(upper.join("file"))? == b"above" {
        true => Ok(()),
        false => Err(io::Error::other("what is written in it does not come to its upper layer")),
    }
}

/// A mount that shows a directory as it is.
struct AsItIs;

impl Tree for AsItIs {
    fn rule(&self, _: &RelPath) -> Rule {
        Rule::ReadOnly
    }

    fn attr_ttl(&self, _: &RelPath) -> Duration {
        Duration::ZERO
    }

    fn generated(&self, _: &RelPath) -> Vec<std::ffi::OsString> {
        Vec::new()
    }

    fn open_generated(&self, _: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        Ok(None)
    }
}

pub(super) fn fuse(machine: &Machine) -> Verdict {
    if !machine.is_root {
        return needs_root();
    }
    let abilities = match apart(|| try_mount(machine)) {
        Ok(abilities) => abilities,
        Err(error) => {
            return failure(
                format!("nothing can be mounted by FUSE: {error}"),
                "load the kernel module fuse; in a container, give it /dev/fuse",
            );
        }
    };
    match (abilities.passes_through, abilities.can_be_handed_over) {
        (true, true) => ok("FUSE, with passthrough; an upgrade takes the mount over"),
        (false, true) => warning(
            "FUSE without passthrough: files of the mount are read through the mount process",
            "Linux 6.9 or newer with CONFIG_FUSE_PASSTHROUGH reads them at the disk's speed",
        ),
        (_, false) => warning(
            "FUSE that cannot be handed over: after an upgrade the mount is served on by the old program",
            "Linux 6.9 or newer lets an upgrade take it over",
        ),
    }
}

/// Mounts a directory and has the kernel agree with us.
fn try_mount(machine: &Machine) -> io::Result<trainyard_fs::Abilities> {
    let scratch = Scratch::make(machine, "fuse")?;
    let (backing, target) = (scratch.directory("backing")?, scratch.directory("mount")?);
    let options = MountOptions { fs_name: "trainyard-doctor".to_owned(), threads: 1 };
    let mounted = trainyard_fs::mount(&backing, &target, AsItIs, &options).map_err(io::Error::other)?;
    // Its answer comes after the two have agreed.
    fs::metadata(&target)?;
    let abilities = mounted.abilities();
    mounted.unmount()?;
    Ok(abilities)
}

pub(super) fn quota(machine: &Machine) -> Verdict {
    let workspaces = machine.paths.workspaces();
    let place = if workspaces.is_dir() { workspaces } else { place(machine) };
    let kept = File::open(&place).and_then(|disk| Ok((btrfs::is_btrfs(&disk)?, projects::are_kept(&disk))));
    match kept {
        Ok((true, _)) => ok("storage quotas are kept by btrfs"),
        Ok((false, true)) => ok("storage quotas are kept by quotas of projects"),
        Ok((false, false)) => warning(
            format!(
                "{} keeps no quotas: what workspaces keep is counted, and jobs may go beyond for some seconds",
                place.display()
            ),
            "mount ext4 or XFS with prjquota, or use btrfs; without [workspaces.NAME] storage it makes no difference",
        ),
        Err(error) => warning(format!("cannot look at {}: {error}", place.display()), "ask again with sudo"),
    }
}

const LITTLE: u64 = 20 << 30;
const FEW_FILES: u64 = 100_000;

/// Of the disks that the daemon looks at, by the worst of them; of those that are as well as each other, the one with the least room.
pub(super) fn disk(machine: &Machine) -> Verdict {
    let floor = machine.config.limits.min_free;
    let looked = machine.paths.disks().map(|place| of_disk(&nearest(&place), floor));
    let worst = looked.into_iter().max_by_key(|(free, verdict)| (verdict.level, Reverse(*free)));
    worst.map_or_else(|| ok("no disk is needed"), |(_, verdict)| verdict)
}

/// Where there is no such directory yet, the one in which it will be made.
fn nearest(place: &Path) -> PathBuf {
    place.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn of_disk(place: &Path, floor: u64) -> (u64, Verdict) {
    match statvfs(place) {
        // It does not count.
        Ok(status) if status.blocks() == 0 => (u64::MAX, ok(format!("{} knows no end", place.display()))),
        Ok(status) => {
            let free = status.blocks_available() * status.fragment_size();
            (free, of_space(place, free, status.files_free(), floor))
        }
        Err(errno) => {
            let found = format!("cannot look at {}: {errno}", place.display());
            (0, failure(found, "see whether its disk answers"))
        }
    }
}

fn of_space(place: &Path, free: u64, files: u64, floor: u64) -> Verdict {
    let found = format!("{} free at {}", Bytes(free).roughly(), place.display());
    let advice = "remove images that nobody needs (`trainyard image prune`) and runs (`trainyard workspace NAME` tells what is large)";
    match free {
        _ if free < floor => {
            let floor = Bytes(floor).roughly();
            failure(format!("{found}: nothing starts with less than {floor} (limits.min_free)"), advice)
        }
        0..ROOM_MIN => failure(format!("{found}: what is decided may find no room to be recorded"), advice),
        _ if files > 0 && files < FEW_FILES => warning(format!("{files} more files at {}", place.display()), advice),
        ROOM_MIN..LITTLE => warning(found, advice),
        _ => ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_disk_is_judged_by_what_is_left() {
        let level = |free, files, floor| of_space(Path::new("/x"), free, files, floor).level;
        assert_eq!(level(1 << 20, 0, 0), Level::Failed, "the state itself has no room");
        assert_eq!(level(2 << 30, 0, 0), Level::Warning);
        assert_eq!(
            (level(1 << 40, 1_000_000, 1 << 30), level(1 << 40, 1_000_000, 2 << 40)),
            (Level::Ok, Level::Failed)
        );
        assert_eq!(level(1 << 40, 10, 0), Level::Warning);
    }
}
