//! A tree in the order of a manifest: the entries of each directory by their bytes, what lies in one right after it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

/// Most directories within each other: each takes some of the stack, and an open file.
const DEPTH: usize = 256;

/// One entry of a tree.
#[expect(missing_debug_implementations, reason = "the kernel's status has none")]
pub struct Item<'a> {
    /// From the top of the tree.
    pub path: &'a Path,
    /// The directory that holds it.
    pub directory: &'a File,
    pub name: &'a OsStr,
    pub status: FileStat,
    /// A directory with nothing in it.
    pub is_empty: bool,
}

impl Item<'_> {
    pub fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.status.st_mode & SFlag::S_IFMT.bits())
    }
}

/// Calls `visit` for every entry below `top`, following no link.
pub fn walk(top: &File, visit: &mut dyn FnMut(&Item<'_>) -> io::Result<()>) -> io::Result<()> {
    walk_what_can_be(top, visit, &mut |_, error| Err(error))
}

/// As [`walk`], in a tree that others change meanwhile: what has gone is left out, and what cannot be looked at is told to
/// `refused`, whose errors end it.
pub fn walk_what_can_be(
    top: &File,
    visit: &mut dyn FnMut(&Item<'_>) -> io::Result<()>,
    refused: &mut dyn FnMut(&Path, io::Error) -> io::Result<()>,
) -> io::Result<()> {
    below(top, &mut OsString::new(), 0, &mut Visitor { visit, refused })
}

struct Visitor<'v> {
    visit: &'v mut dyn FnMut(&Item<'_>) -> io::Result<()>,
    refused: &'v mut dyn FnMut(&Path, io::Error) -> io::Result<()>,
}

fn below(directory: &File, path: &mut OsString, depth: usize, visitor: &mut Visitor<'_>) -> io::Result<()> {
    if depth > DEPTH {
        let why = format!("it has more than {DEPTH} directories within each other");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let length = path.len();
    for name in names(directory)? {
        let name = OsStr::from_bytes(name.to_bytes());
        if length > 0 {
            path.push("/");
        }
        path.push(name);
        if let Err(error) = one(directory, name, path, depth, visitor) {
            (visitor.refused)(Path::new(&path), error)?;
        }
        *path = OsStr::from_bytes(path.as_bytes().get(..length).unwrap_or_default()).to_owned();
    }
    Ok(())
}

/// An entry, and what lies in it. What `visit` says is an end, not something that can be left out.
fn one(directory: &File, name: &OsStr, path: &mut OsString, depth: usize, visitor: &mut Visitor<'_>) -> io::Result<()> {
    super::pause::point();
    let status = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    // Not by the list's own word: not every file system tells a kind there.
    let inner = is_directory(&status).then(|| open(directory, name, OFlag::O_DIRECTORY)).transpose()?;
    let is_empty = inner.as_ref().map_or(Ok(false), |inner| names(inner).map(|names| names.is_empty()))?;
    (visitor.visit)(&Item { path: Path::new(&path), directory, name, status, is_empty })?;
    inner.map_or(Ok(()), |inner| below(&inner, path, depth + 1, visitor))
}

/// Without following a link, and without waiting for a pipe.
pub fn open(directory: &File, name: &OsStr, flags: OFlag) -> io::Result<File> {
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(openat(directory, name, flags, Mode::empty())?.into())
}

fn is_directory(status: &FileStat) -> bool {
    SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

fn names(directory: &File) -> io::Result<Vec<CString>> {
    // A descriptor of its own: two lists of one share their place.
    let again = open(directory, OsStr::new("."), OFlag::O_DIRECTORY)?;
    let mut list = Dir::from_fd(again.into())?;
    let mut names = Vec::new();
    for entry in list.iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    Ok(names)
}
