//! A task's root file system: its layers, what of the workspace is seen in it, and who is who inside.

use std::fs;
use std::path::{Path, PathBuf};

use super::failed;
use super::host::HostImage;
use super::owners::{Accounts, InsideUser, Subordinates, topmost_file};
use crate::contract::{FileKind, Inside, View};
use crate::engine::EngineError;
use crate::images::{Image, Images};
use crate::rundir::{Driver, Lower, Mount, Overlay, OwnFile, Root, Shm, TaskDir};
use crate::store::record::Owner;
use crate::sys::file::create_dir_for;
use crate::sys::idmap::{IdMap, outside};
use crate::sys::rooted::Ids;

/// Where the shim may put a root file system together: the first of these that is there and holds nothing of ours.
const HOLDERS: [&str; 5] = ["/mnt", "/media", "/srv", "/home", "/opt"];

pub(super) fn holder(installation: &Path) -> PathBuf {
    let usable = |path: &&Path| path.is_dir() && (installation == Path::new("/") || !installation.starts_with(path));
    let found = HOLDERS.iter().map(Path::new).find(usable);
    found.unwrap_or(Path::new("/mnt")).to_owned()
}

/// What tasks of an attempt are made from.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) kind: Kind,
    pub(super) user: InsideUser,
    pub(super) ids: IdMap,
    pub(super) inside: Inside,
    /// From the image; SIGTERM otherwise.
    pub(super) stop_signal: i32,
    pub(super) lower: Lower,
}

#[derive(Debug)]
pub(super) enum Kind {
    Host,
    Image(Box<Image>),
}

/// Whose task it is, and whom it asks to run as.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whom<'a> {
    pub(super) owner: Owner,
    /// The owner's further groups.
    pub(super) further: &'a [u32],
    /// The image's choice when absent.
    pub(super) user: Option<&'a str>,
}

/// What one task sees that others do not.
#[derive(Debug)]
pub(super) struct Own<'a> {
    pub(super) view: &'a View,
    /// How it resolves names.
    pub(super) resolv_conf: Option<String>,
    pub(super) shm: Shm,
    /// What it sees of the workspace.
    pub(super) workspace: Vec<Mount>,
    /// Of the machine.
    pub(super) devices: Vec<PathBuf>,
    pub(super) driver: Option<Driver>,
}

impl Base {
    /// This machine's own directories.
    pub(super) fn of_host(host: &HostImage, subordinates: &Subordinates, whom: Whom<'_>) -> Result<Self, EngineError> {
        let (layers, etc) = host.accounts();
        let accounts = Accounts::read(&layers, etc).map_err(failed("read the machine's accounts"))?;
        let user = accounts.user(whom.user.unwrap_or_default())?;
        let home = if user.uid == 0 { "/root".to_owned() } else { "/tmp".to_owned() };
        Ok(Self {
            kind: Kind::Host,
            ids: subordinates.map(whom.owner, whom.further, &user)?,
            inside: Inside { home, bash: bash_in(&[PathBuf::from("/")]), ..Inside::default() },
            user,
            stop_signal: nix::libc::SIGTERM,
            // Mapped, root's own files would be those of root inside, which is whoever has dropped the job.
            lower: Lower::AsTheyAre,
        })
    }

    /// `maps_ids` tells whether layers can be shown with other owners; else they are copied.
    pub(super) fn of_image(
        images: &Images,
        mut image: Image,
        maps_ids: bool,
        subordinates: &Subordinates,
        whom: Whom<'_>,
    ) -> Result<Self, EngineError> {
        let accounts = Accounts::read(&image.layers, Path::new("etc")).map_err(failed("read the image's accounts"))?;
        let config = &image.record.config;
        let user = accounts.user(whom.user.unwrap_or(&config.user))?;
        let ids = subordinates.map(whom.owner, whom.further, &user)?;
        let inside = Inside {
            env: config.env.clone(),
            command: config.full_command(),
            working_directory: config.working_directory.clone(),
            home: user.home.clone(),
            bash: bash_in(&image.layers),
        };
        let stop_signal = config.stop_signal_number();
        if !maps_ids {
            image.layers = images.shifted(&image, &ids).map_err(super::told)?;
        }
        let lower = if maps_ids { Lower::Mapped } else { Lower::AsTheyAre };
        Ok(Self { ids, inside, user, stop_signal, lower, kind: Kind::Image(Box::new(image)) })
    }

    /// Who owns what is root's inside.
    pub(super) fn root_ids(&self) -> Ids {
        self.ids_of(0, 0)
    }

    fn ids_of(&self, user: u32, group: u32) -> Ids {
        // Every map covers 0 and the task's user.
        Ids {
            uid: outside(&self.ids.users, user).unwrap_or_default(),
            gid: outside(&self.ids.groups, group).unwrap_or_default(),
        }
    }

    /// Fills the task's directory and tells the shim what to make of it.
    pub(super) fn lay(
        &self,
        host: &HostImage,
        dir: &TaskDir,
        holder: &Path,
        own: Own<'_>,
    ) -> Result<Root, EngineError> {
        let root = self.root_ids();
        let (mut overlays, mut mounts) = (Vec::new(), Vec::new());
        let told = "make the task's root file system";
        match &self.kind {
            Kind::Host => host.fill(dir, root, &mut overlays, &mut mounts).map_err(failed(told))?,
            Kind::Image(image) => {
                // Overlayfs wants one layer at least.
                create_dir_for(&dir.rootfs(), 0o755, root.uid, root.gid).map_err(failed(told))?;
                let lower = if image.layers.is_empty() { vec![dir.rootfs()] } else { image.layers.clone() };
                overlays.push(Overlay { name: "root".to_owned(), lower, target: PathBuf::new() });
            }
        }
        for overlay in &overlays {
            let top = overlay.lower.first().map(fs::metadata).transpose().map_err(failed(told))?;
            let mode = top.as_ref().map_or(0o755, |top| std::os::unix::fs::MetadataExt::mode(top) & 0o7777);
            scratch(dir, &overlay.name, mode, root).map_err(failed(told))?;
        }
        for name in own.workspace.iter().filter_map(|mount| mount.scratch.as_ref()) {
            // A script writes beside its code, whoever it runs as.
            scratch(dir, name, 0o755, self.ids_of(self.user.uid, self.user.gid)).map_err(failed(told))?;
        }
        mounts.extend(own.workspace);
        Ok(Root {
            holder: holder.to_owned(),
            overlays,
            lower: self.lower,
            mounts,
            devices: own.devices,
            driver: own.driver,
            shm: own.shm,
            files: own_files(own.view, own.resolv_conf),
            directories: directories(own.view).chain(self.volumes()).collect(),
            user: (self.user.uid, self.user.gid),
        })
    }

    fn volumes(&self) -> Vec<PathBuf> {
        match &self.kind {
            Kind::Host => Vec::new(),
            Kind::Image(image) => image.record.config.volumes.iter().map(PathBuf::from).collect(),
        }
    }
}

/// Where layers, top first, have a bash; where that cannot be seen, there is none.
fn bash_in(layers: &[PathBuf]) -> Option<String> {
    let is_there = |path: &&str| matches!(topmost_file(layers, Path::new(path), 1), Ok(Some(_)));
    ["bin/bash", "usr/bin/bash"].into_iter().find(is_there).map(|path| format!("/{path}"))
}

/// A scratch layer; its top shows through as the top of the whole.
fn scratch(dir: &TaskDir, name: &str, mode: u32, owner: Ids) -> std::io::Result<()> {
    create_dir_for(&dir.upper(name), mode, owner.uid, owner.gid)?;
    create_dir_for(&dir.work(name), 0o700, owner.uid, owner.gid)
}

fn directories(view: &View) -> impl Iterator<Item = PathBuf> {
    std::iter::once(&view.working_directory).chain(&view.directories).map(PathBuf::from)
}

/// What is the task's own in `/etc`.
fn own_files(view: &View, resolv_conf: Option<String>) -> Vec<OwnFile> {
    let file = |path: &str, content: String| OwnFile { path: PathBuf::from(path), content, mode: 0o644 };
    let mut files =
        vec![file("/etc/hosts", view.hosts.clone()), file("/etc/hostname", format!("{}\n", view.host_name))];
    files.extend(resolv_conf.map(|content| file("/etc/resolv.conf", content)));
    files.extend(view.files.iter().map(|seen| OwnFile {
        mode: if seen.kind == FileKind::Program { 0o755 } else { 0o644 },
        ..file(&seen.path, seen.content.clone())
    }));
    files
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_bash_that_a_higher_layer_hides_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let layers = ["upper", "lower"].map(|name| dir.path().join(name));
        let shown = || bash_in(&layers);
        fs::create_dir_all(layers[0].join("usr/bin")).unwrap();
        fs::create_dir_all(layers[1].join("usr/bin")).unwrap();
        assert_eq!(shown(), None);
        fs::write(layers[1].join("usr/bin/bash"), "").unwrap();
        assert_eq!(shown().as_deref(), Some("/usr/bin/bash"));
        let hidden = rustix::fs::setxattr(
            layers[0].join("usr/bin"),
            "trusted.overlay.opaque",
            b"y",
            rustix::fs::XattrFlags::empty(),
        );
        match hidden {
            Ok(()) => assert_eq!(shown(), None),
            Err(errno) => assert!(!nix::unistd::Uid::effective().is_root(), "{errno}"),
        }
    }
}
