//! Puts a task's root file system together, in a mount namespace of the shim's own: it vanishes with the shim, whatever
//! happens to it.
//!
//! ```text
//! HOLDER/layers/0…   the layers, shown with the owners of the container's user namespace
//! HOLDER/scratch     the task's directory: upper/, work/, rootfs/
//! HOLDER/root        the whole, as the container gets it
//! HOLDER/user        the user namespace, for libcontainer to enter
//! HOLDER/processes   the process namespace, where tasks of the attempt share one
//! ```
//! What lies in `root` comes from an image and is not trusted: paths in it are resolved inside of it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;

use super::{HOLDER_HAS_ENDED, driver};
use crate::rundir::holder::{Held, HolderDir};
use crate::rundir::{LaunchRecord, Lower, Mount, Overlay, Root, Shm, TaskDir};
use crate::sys::idmap::outside;
use crate::sys::mounts::{self, Access, Depth, Detached};
use crate::sys::rooted::{Ids, Rooted};

/// What could not be mounted, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot mount {what} for the task: {source}")]
pub(super) struct MountError {
    what: String,
    #[source]
    source: io::Error,
}

pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> MountError {
    move |source| MountError { what: what.into(), source }
}

/// Enters a mount namespace of our own and makes the root there; returns a handle of `/dev/shm`.
pub(super) fn make(dir: &TaskDir, launch: &LaunchRecord) -> Result<OwnedFd, MountError> {
    mounts::enter_private_namespace().map_err(failed("anything"))?;
    let root = &launch.root;
    // All that comes from the machine is taken hold of before a part of it is covered.
    let (namespace, processes) = namespaces(launch).map_err(failed("the user namespace"))?;
    let layers = layers(root, &namespace)?;
    let binds = binds(&root.mounts)?;
    let devices = devices(&root.devices)?;
    let of_driver = root.driver.as_ref().map(driver::take).transpose()?;
    let shm = shared_memory(&root.shm)?;
    let scratch = Detached::copy(dir.path(), Depth::One).map_err(failed("the scratch layer"))?;
    mounts::let_go_of_attempts().map_err(failed("nothing of other attempts"))?;
    let places = Places::make(root, &layers, &namespace, processes.as_ref())
        .map_err(failed(root.holder.display().to_string()))?;
    scratch
        .attach(&open(&places.scratch).map_err(failed("the scratch layer"))?)
        .map_err(failed("the scratch layer"))?;
    places.overlays(root, layers)?;
    let of = |(user, group)| Ids {
        uid: outside(&launch.ids.users, user).unwrap_or_default(),
        gid: outside(&launch.ids.groups, group).unwrap_or_default(),
    };
    let ids = of((0, 0));
    let inside = Rooted::open(&places.root).map_err(failed("the root"))?;
    kernel_files(&inside, ids, &root.shm, shm)?;
    let own = root.overlays.iter().map(|overlay| overlay.target.as_path());
    for place in own.chain(["", "/dev", "/dev/shm"].map(Path::new)) {
        let allowed = inside.handle(place).and_then(|place| inside.allow_making_on(place));
        allowed.map_err(failed(place.display().to_string()))?;
    }
    let is_in_mount = |path: &PathBuf| root.mounts.iter().any(|mount| path.starts_with(&mount.target));
    // Before what is mounted below them: the way to a mount, where it is missing, is made as root's.
    for directory in root.directories.iter().filter(|path| !is_in_mount(path)) {
        match inside.directory(directory, of(root.user)) {
            // Behind a link that may lead into one of them; it is judged when they are there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            made => drop(made.map_err(failed(directory.display().to_string()))?),
        }
    }
    // The way to a mount is root's, but for what of it comes to lie among the owner's files.
    let of_way = |mount: &Mount| {
        let lies_in = |other: &Mount| other.target != mount.target && mount.target.starts_with(&other.target);
        if root.mounts.iter().any(lies_in) { of(root.user) } else { ids }
    };
    for (mount, detached) in root.mounts.iter().zip(binds) {
        let ids = of_way(mount);
        let placed = match &mount.scratch {
            None => place(&inside, mount, &detached, ids),
            Some(name) => {
                places.scratched(name, &detached, &inside.directory(&mount.target, ids).map_err(failed("a directory"))?)
            }
        };
        // We are root: in a place of the machine that would be done which its owner may not do.
        let allowed = placed.and_then(|()| match mount.is_of_machine {
            true => Ok(()),
            false => inside.handle(&mount.target).and_then(|place| inside.allow_making_on(place)),
        });
        allowed.map_err(failed(mount.target.display().to_string()))?;
    }
    for (path, device) in root.devices.iter().zip(devices) {
        let placed = inside.file(path, ids).and_then(|place| device.attach(place));
        placed.map_err(failed(path.display().to_string()))?;
    }
    if let Some((driver, taken)) = root.driver.as_ref().zip(of_driver) {
        driver::show(&inside, driver, taken, ids)?;
    }
    for file in &root.files {
        inside
            .write(&file.path, file.content.as_bytes(), file.mode, ids)
            .map_err(failed(file.path.display().to_string()))?;
    }
    for directory in &root.directories {
        inside.directory(directory, of(root.user)).map_err(failed(directory.display().to_string()))?;
    }
    inside.handle(Path::new("/dev/shm")).map_err(failed("/dev/shm"))
}

/// The user namespace, and the process namespace where it is not to be the task's own.
fn namespaces(launch: &LaunchRecord) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let Some(holder) = &launch.holder else { return Ok((launch.ids.namespace()?, None)) };
    match HolderDir::at(holder.clone()).held()? {
        Some(Held { user, processes }) => Ok((user, Some(processes))),
        None => Err(io::Error::other(HOLDER_HAS_ENDED)),
    }
}

/// The layers of every overlay, top first, with the owners that they are to show.
fn layers(root: &Root, namespace: &OwnedFd) -> Result<Vec<Vec<Detached>>, MountError> {
    let layer = |path: &PathBuf| {
        let layer = Detached::copy(path, Depth::One)?;
        match root.lower {
            Lower::AsTheyAre => Ok(layer),
            Lower::Mapped => layer.map_ids(namespace.as_fd()).map(|()| layer),
        }
    };
    let one = |path: &PathBuf| layer(path).map_err(failed(format!("the layer {}", path.display())));
    root.overlays.iter().map(|overlay| overlay.lower.iter().map(one).collect()).collect()
}

/// The daemon has looked at their sources, and names them without links; people may have put some there since.
fn binds(wanted: &[Mount]) -> Result<Vec<Detached>, MountError> {
    let one = |mount: &Mount| {
        let detached = Detached::copy_without_links(&mount.source, Depth::All)?;
        let is_changed = !mount.read_only && mount.scratch.is_none();
        detached.restrict(if is_changed { Access::ReadWrite } else { Access::ReadOnly })?;
        Ok(detached)
    };
    let told = |mount: &Mount| format!("{} as {}", mount.source.display(), mount.target.display());
    wanted.iter().map(|mount| one(mount).map_err(failed(told(mount)))).collect()
}

fn devices(wanted: &[PathBuf]) -> Result<Vec<Detached>, MountError> {
    let one = |path: &PathBuf| {
        let detached = Detached::copy_without_links(path, Depth::One)?;
        detached.restrict(Access::Device)?;
        Ok(detached)
    };
    wanted.iter().map(|path| one(path).map_err(failed(path.display().to_string()))).collect()
}

fn shared_memory(shm: &Shm) -> Result<Option<Detached>, MountError> {
    match shm {
        Shm::Own { .. } => Ok(None),
        Shm::Shared { source } => Detached::copy(source, Depth::One).map(Some).map_err(failed("/dev/shm")),
    }
}

/// Mount points in the holder.
struct Places {
    layers: PathBuf,
    scratch: PathBuf,
    root: PathBuf,
}

impl Places {
    fn make(root: &Root, layers: &[Vec<Detached>], user: &OwnedFd, processes: Option<&OwnedFd>) -> io::Result<Self> {
        mounts::mount_holder(&root.holder)?;
        let places = Self {
            layers: root.holder.join("layers"),
            scratch: root.holder.join("scratch"),
            root: Root::place(&root.holder),
        };
        for path in [&places.layers, &places.scratch, &places.root] {
            fs::create_dir(path)?;
        }
        for number in 0..layers.iter().flatten().count() {
            fs::create_dir(places.layers.join(number.to_string()))?;
        }
        keep(user, &Root::user_namespace(&root.holder))?;
        if let Some(processes) = processes {
            keep(processes, &Root::process_namespace(&root.holder))?;
        }
        Ok(places)
    }

    /// Mounts the overlays; where none is the root itself, that is a directory of the task.
    fn overlays(&self, root: &Root, layers: Vec<Vec<Detached>>) -> Result<(), MountError> {
        if !root.overlays.iter().any(|overlay| overlay.target.as_os_str().is_empty()) {
            self.plain_root().map_err(failed("the root"))?;
        }
        let mut number = 0;
        for (overlay, layers) in root.overlays.iter().zip(layers) {
            let mut lower = Vec::new();
            for layer in layers {
                let place = self.layers.join(number.to_string());
                open(&place).and_then(|handle| layer.attach(handle)).map_err(failed("a layer"))?;
                lower.push(place);
                number += 1;
            }
            self.overlay(overlay, &lower).map_err(failed(format!("/{}", overlay.target.display())))?;
        }
        Ok(())
    }

    /// Shows a directory with a scratch layer of the task's own over it.
    fn scratched(&self, name: &str, below: &Detached, target: &OwnedFd) -> io::Result<()> {
        let place = self.layers.join(name);
        fs::create_dir(&place)?;
        below.attach(&open(&place)?)?;
        let (upper, work) = (self.scratch.join("upper").join(name), self.scratch.join("work").join(name));
        let lower = [place];
        mounts::mount_overlay(&mounts::Overlay { lower: &lower, upper: &upper, work: &work }, &mounts::path_of(target))
    }

    fn plain_root(&self) -> io::Result<()> {
        let root = Detached::copy(&self.scratch.join("rootfs"), Depth::One)?;
        root.restrict(Access::ReadWrite)?;
        root.attach(&open(&self.root)?)
    }

    fn overlay(&self, overlay: &Overlay, lower: &[PathBuf]) -> io::Result<()> {
        let (upper, work) =
            (self.scratch.join("upper").join(&overlay.name), self.scratch.join("work").join(&overlay.name));
        let target = self.root.join(&overlay.target);
        mounts::mount_overlay(&mounts::Overlay { lower, upper: &upper, work: &work }, &target)
    }
}

fn keep(namespace: &OwnedFd, place: &Path) -> io::Result<()> {
    fs::File::create(place)?;
    mounts::keep_namespace(namespace, place)
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Rooted::open(path)?.handle(Path::new(""))
}

/// `/sys`, of the network namespace that the shim is in, `/dev` and `/dev/shm`.
fn kernel_files(inside: &Rooted, ids: Ids, shm: &Shm, shared: Option<Detached>) -> Result<(), MountError> {
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    let kernel = |kind: &str, target: &str, flags, options: &str| {
        let handle = inside.directory(Path::new(target), ids)?;
        mounts::mount_kernel(kind, &mounts::path_of(&handle), flags, options)
    };
    let Ids { uid, gid } = ids;
    kernel("sysfs", "/sys", quiet | MsFlags::MS_RDONLY, "").map_err(failed("/sys"))?;
    let options = format!("mode=755,size=65536k,uid={uid},gid={gid}");
    kernel("tmpfs", "/dev", MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME, &options).map_err(failed("/dev"))?;
    match (shm, shared) {
        (Shm::Own { size }, _) => {
            kernel("tmpfs", "/dev/shm", quiet, &format!("mode=1777,size={size},uid={uid},gid={gid}"))
        }
        (Shm::Shared { .. }, Some(shared)) => {
            inside.directory(Path::new("/dev/shm"), ids).and_then(|handle| shared.attach(handle))
        }
        (Shm::Shared { .. }, None) => Ok(()),
    }
    .map_err(failed("/dev/shm"))
}

fn place(inside: &Rooted, mount: &Mount, detached: &Detached, ids: Ids) -> io::Result<()> {
    let target = match detached.is_directory()? {
        true => inside.directory(&mount.target, ids)?,
        false => inside.file(&mount.target, ids)?,
    };
    detached.attach(target)
}
