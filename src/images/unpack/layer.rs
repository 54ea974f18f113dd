//! The directory a layer is unpacked into. Every path is resolved as if that directory were the root of the file system,
//! so whatever links the archive makes, nothing is reached outside; last parts of paths are never followed.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};

use super::name::split;
use super::remembered::Remembered;

/// As the kernel.
const MOST_LINKS: usize = 40;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Where an entry is made: its path in the archive, and its directory, opened.
pub(super) struct Place {
    pub(super) path: Vec<u8>,
    pub(super) parent: Rc<OwnedFd>,
}

impl Place {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(split(&self.path).1)
    }
}

pub(super) struct Layer {
    root: Rc<OwnedFd>,
    /// The directory of the last entry, which most often is that of the next.
    last: Option<(Vec<u8>, Rc<OwnedFd>)>,
    pub(super) remembered: Remembered,
}

impl Layer {
    pub(super) fn open(path: &Path) -> nix::Result<Self> {
        let root = open(path, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?;
        Ok(Self { root: Rc::new(root), last: None, remembered: Remembered::default() })
    }

    pub(super) fn root(&self) -> Rc<OwnedFd> {
        Rc::clone(&self.root)
    }

    /// The place of `path`; directories that are missing above it are made and remembered as implied.
    pub(super) fn place(&mut self, path: Vec<u8>) -> nix::Result<Place> {
        let parent = self.directory(split(&path).0)?;
        Ok(Place { path, parent })
    }

    /// The place of something that is to be there already.
    pub(super) fn existing_place(&mut self, path: Vec<u8>) -> nix::Result<Place> {
        let parent = self.existing_directory(split(&path).0)?;
        Ok(Place { path, parent })
    }

    /// The directory that `path` leads to, made where it is missing.
    pub(super) fn directory(&mut self, path: &[u8]) -> nix::Result<Rc<OwnedFd>> {
        match self.existing_directory(path) {
            Err(Errno::ENOENT) => {
                let made = Rc::new(self.make_directories(path)?);
                self.last = Some((path.to_vec(), Rc::clone(&made)));
                Ok(made)
            }
            other => other,
        }
    }

    fn existing_directory(&mut self, path: &[u8]) -> nix::Result<Rc<OwnedFd>> {
        if path.is_empty() {
            return Ok(Rc::clone(&self.root));
        }
        if let Some((_, directory)) = self.last.as_ref().filter(|(last, _)| last == path) {
            return Ok(Rc::clone(directory));
        }
        let directory = Rc::new(self.resolve(path, DIRECTORY)?);
        self.last = Some((path.to_vec(), Rc::clone(&directory)));
        Ok(directory)
    }

    /// The directory at `path` itself, if it is one and no link.
    pub(super) fn directory_itself(&self, path: &[u8]) -> nix::Result<Option<OwnedFd>> {
        absent(self.resolve(path, DIRECTORY | OFlag::O_NOFOLLOW))
    }

    fn resolve(&self, path: &[u8], flags: OFlag) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let path = if path.is_empty() { b"." } else { path };
        loop {
            match openat2(&self.root, OsStr::from_bytes(path), how) {
                // Something somewhere was renamed while a `..` was followed.
                Err(Errno::EAGAIN) => {}
                other => return other,
            }
        }
    }

    /// Walks part by part as the kernel would, following links inside the root, and makes what is missing: a link may
    /// lead to a directory that only lower layers have.
    fn make_directories(&mut self, path: &[u8]) -> nix::Result<OwnedFd> {
        let mut ahead: VecDeque<Vec<u8>> = parts(path).collect();
        let (mut at, mut links) = (Vec::new(), 0);
        let mut here = self.resolve(&at, DIRECTORY)?;
        while let Some(part) = ahead.pop_front() {
            if part == b".." {
                at.truncate(split(&at).0.len());
                here = self.resolve(&at, DIRECTORY)?;
                continue;
            }
            let name = OsStr::from_bytes(&part);
            match open_child(&here, name) {
                Ok(child) => here = child,
                Err(Errno::ENOENT) => {
                    here = make_directory(&here, name)?;
                    self.remembered.implied(&joined(&at, &part));
                }
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    links += 1;
                    let target = follow(&here, name, links)?;
                    if target.starts_with(b"/") {
                        at.clear();
                        here = self.resolve(&at, DIRECTORY)?;
                    }
                    parts(&target).rev().for_each(|part| ahead.push_front(part));
                    continue;
                }
                Err(errno) => return Err(errno),
            }
            at = joined(&at, &part);
        }
        Ok(here)
    }

    /// Removes whatever is at `place`, with all below it.
    pub(super) fn remove(&mut self, place: &Place) -> nix::Result<()> {
        // The way to the last directory may have led through it.
        self.last = None;
        self.remembered.forget(&place.path);
        match unlinkat(&*place.parent, place.name(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => remove_tree(&place.parent, place.name()),
            other => other,
        }
    }

    /// Makes the directory at `place`, or opens it if there is one; anything else there is replaced.
    pub(super) fn claim_directory(&mut self, place: &Place) -> nix::Result<Rc<OwnedFd>> {
        let directory = match mkdirat(&*place.parent, place.name(), Mode::S_IRWXU) {
            Ok(()) => open_child(&place.parent, place.name())?,
            Err(Errno::EEXIST) => match absent(open_child(&place.parent, place.name()))? {
                Some(directory) => directory,
                None => {
                    self.remove(place)?;
                    mkdirat(&*place.parent, place.name(), Mode::S_IRWXU)?;
                    open_child(&place.parent, place.name())?
                }
            },
            Err(errno) => return Err(errno),
        };
        let directory = Rc::new(directory);
        self.last = Some((place.path.clone(), Rc::clone(&directory)));
        Ok(directory)
    }
}

/// What is no directory is as good as nothing.
fn absent(opened: nix::Result<OwnedFd>) -> nix::Result<Option<OwnedFd>> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec)
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

fn follow(directory: &OwnedFd, name: &OsStr, links: usize) -> nix::Result<Vec<u8>> {
    match readlinkat(directory, name) {
        Ok(_) if links > MOST_LINKS => Err(Errno::ELOOP),
        Ok(target) => Ok(target.as_bytes().to_vec()),
        Err(Errno::EINVAL) => Err(Errno::ENOTDIR),
        Err(errno) => Err(errno),
    }
}

fn open_child<P: ?Sized + nix::NixPath>(directory: impl AsFd, name: &P) -> nix::Result<OwnedFd> {
    openat(directory, name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())
}

fn make_directory(parent: &OwnedFd, name: &OsStr) -> nix::Result<OwnedFd> {
    mkdirat(parent, name, Mode::S_IRWXU)?;
    let made = open_child(parent, name)?;
    fchown(&made, Some(Uid::from_raw(0)), Some(Gid::from_raw(0)))?;
    fchmod(&made, Mode::from_bits_truncate(0o755))?;
    Ok(made)
}

/// Removes a tree of any depth with two descriptors and no recursion. Going back by `..` is safe since nobody else has a
/// layer that is not finished.
fn remove_tree(parent: &OwnedFd, name: &OsStr) -> nix::Result<()> {
    let mut here = open_child(parent, name)?;
    let mut way: Vec<CString> = Vec::new();
    loop {
        if let Some(child) = remove_content(&here)? {
            here = open_child(&here, child.as_c_str())?;
            way.push(child);
        } else if let Some(name) = way.pop() {
            here = open_child(&here, "..")?;
            unlinkat(&here, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
        } else {
            return unlinkat(parent, name, UnlinkatFlags::RemoveDir);
        }
    }
}

/// Removes all but directories that are not empty, and tells the first of these.
fn remove_content(directory: &OwnedFd) -> nix::Result<Option<CString>> {
    loop {
        let mut was_empty = true;
        for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            was_empty = false;
            match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
                Err(Errno::EISDIR) => match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
                    Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(Some(name.to_owned())),
                    other => other?,
                },
                other => other?,
            }
        }
        // A directory that changes while it is read may skip names.
        if was_empty {
            return Ok(None);
        }
    }
}
