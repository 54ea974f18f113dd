//! The receiving end. What comes is not trusted: nothing outside of the target is reached whatever it says.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, ResolveFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, fchmod, fstatat, futimens, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, symlinkat, unlinkat};
use tar::{Archive, Entry, EntryType};

use super::access_lists::AccessLists;
use super::{TransferError, failed, name_of, parent, shown};
use crate::sys::rooted::open_resolved;

/// Said of devices, pipes and sockets.
const NO_FILE: &str = "it is neither file nor directory, and stays as it is; \
    to pass content to a device or pipe, use `trainyard exec JOB -- cat PATH > TARGET`";
/// Names that are tried for what is not whole yet.
const ASIDE_MAX: u32 = 1000;

/// What may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked<'a> {
    Anything,
    /// What lies at this path at the other end: it may not come under another name, which it would get here as well.
    Source(&'a Path),
}

/// Unpacks a stream of [`super::pack`]: into `target` where that is a directory, else as `target`.
pub fn unpack(stream: impl Read, target: &Path, asked: Asked<'_>) -> Result<(), TransferError> {
    let mut archive = Archive::new(stream);
    let mut place = None;
    let entries = archive.entries().map_err(failed("read what is to become", target))?;
    for entry in entries {
        let mut entry = entry.map_err(failed("read what is to become", target))?;
        let member = Member::of(&mut entry).map_err(failed("read what is to become", target))?;
        let place = match &mut place {
            Some(place) => place,
            None => {
                member.must_be(asked).map_err(failed("write", target))?;
                place.insert(Place::choose(target, &member)?)
            }
        };
        place.put(&member, &mut entry)?;
    }
    match place {
        // Streams of `pack` have no lists.
        Some(place) => place.finish().map(drop),
        None => Err(failed("write", target)(io::Error::new(io::ErrorKind::UnexpectedEof, "nothing came"))),
    }
}

/// Writes members of an archive of [`super::append`] below a directory, with their owners.
pub struct Tree(Place);

impl Tree {
    /// `directory` must be there.
    pub fn below(directory: &Path) -> Result<Self, TransferError> {
        Place::at(directory, directory, None).map(Self)
    }

    /// Writes a member as `path`, which leads nowhere but below the directory.
    pub fn put(&mut self, path: &Path, entry: &mut Entry<'_, impl Read>) -> Result<(), TransferError> {
        let read = |error| failed("read what is to become", &self.0.shown)(error);
        let mut member = Member::of(entry).map_err(read)?;
        member.path = plain(path).map_err(read)?;
        member.owner = Some(Owner::of(entry).map_err(read)?);
        member.mode = Mode::from_bits_truncate(entry.header().mode().map_err(read)? & 0o7777);
        member.lists = lists(entry).map_err(read)?;
        self.0.put(&member, entry)
    }

    /// Directories get their owners, permissions and times; nothing may be put after that. Tells whose access lists were left out,
    /// by their paths below the directory.
    pub fn finish(self) -> Result<Vec<PathBuf>, TransferError> {
        self.0.finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    uid: Uid,
    gid: Gid,
}

impl Owner {
    fn of<R: Read>(entry: &Entry<'_, R>) -> io::Result<Self> {
        let number = |number: u64| u32::try_from(number).map_err(|_| io::Error::other("no number of a user or group"));
        let header = entry.header();
        Ok(Self { uid: Uid::from_raw(number(header.uid()?)?), gid: Gid::from_raw(number(header.gid()?)?) })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link,
}

struct Member {
    /// Plain names, one below the other; none for the directory whose content is sent.
    path: PathBuf,
    kind: Kind,
    mode: Mode,
    time: TimeSpec,
    size: u64,
    link: Option<PathBuf>,
    /// Whose it becomes, if not the unpacker's.
    owner: Option<Owner>,
    lists: AccessLists,
}

impl Member {
    fn of<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Self> {
        let path = plain(Path::new(OsStr::from_bytes(&entry.path_bytes())))?;
        let kind = match entry.header().entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Regular => Kind::File,
            EntryType::Symlink => Kind::Link,
            other => return Err(io::Error::other(format!("{}: unexpected kind {other:?}", shown(&path)))),
        };
        let time = precise_time(entry)?;
        let header = entry.header();
        let link = entry.link_name_bytes().map(|link| PathBuf::from(OsStr::from_bytes(&link)));
        Ok(Self {
            mode: Mode::from_bits_truncate(header.mode()? & 0o777),
            size: header.entry_size()?,
            path,
            kind,
            time,
            link,
            owner: None,
            lists: AccessLists::default(),
        })
    }

    fn must_be(&self, asked: Asked<'_>) -> io::Result<()> {
        let Asked::Source(source) = asked else { return Ok(()) };
        let expected = name_of(source).map(Path::new).unwrap_or(Path::new(""));
        if self.path == expected {
            return Ok(());
        }
        let why = format!("{:?} was asked for, and {:?} came", shown(expected), shown(&self.path));
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

fn plain(path: &Path) -> io::Result<PathBuf> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("{} leads out of it", shown(path)));
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| if let Component::Normal(name) = part { Ok(name) } else { Err(bad()) }).collect()
}

fn precise_time<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<TimeSpec> {
    let seconds = i64::try_from(entry.header().mtime()?).unwrap_or(0);
    let Some(extensions) = entry.pax_extensions()? else { return Ok(TimeSpec::new(seconds, 0)) };
    let mtime = extensions.filter_map(Result::ok).find(|extension| extension.key_bytes() == b"mtime");
    let nanoseconds = mtime.and_then(|extension| extension.value().ok()?.split_once('.')?.1.get(..9)?.parse().ok());
    Ok(TimeSpec::new(seconds, nanoseconds.unwrap_or(0)))
}

fn lists<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<AccessLists> {
    let mut lists = AccessLists::default();
    for record in entry.pax_extensions()?.into_iter().flatten() {
        let record = record?;
        lists.take(record.key_bytes(), record.value_bytes())?;
    }
    Ok(lists)
}

/// Where it all goes.
struct Place {
    /// What all names are looked up below.
    base: OwnedFd,
    /// As the user named it, for messages.
    shown: PathBuf,
    /// What the first part of every name becomes; `None` when the content of a directory comes.
    renamed: Option<(OsString, OsString)>,
    /// Directories get their permissions and times when nothing more comes into them.
    made: Vec<Made>,
    /// What has no access lists now, and had.
    without_lists: Vec<PathBuf>,
}

struct Made {
    path: PathBuf,
    mode: Mode,
    time: TimeSpec,
    owner: Option<Owner>,
    lists: AccessLists,
}

impl Made {
    fn of(member: &Member, path: &Path) -> Self {
        let Member { mode, time, owner, .. } = *member;
        Self { path: path.to_owned(), mode, time, owner, lists: member.lists.clone() }
    }
}

impl Place {
    fn choose(target: &Path, first: &Member) -> Result<Self, TransferError> {
        let bytes = target.as_os_str().as_bytes();
        let wants_directory = bytes.ends_with(b"/") || bytes.ends_with(b"/.") || bytes == b".";
        let found = look(target).map_err(failed("write", target))?;
        let refused = |why: &str| Err(failed("write", target)(io::Error::other(why.to_owned())));
        let name = first.path.components().next().map(|part| part.as_os_str().to_owned());
        match (found, first.kind, name) {
            (Some(true), _, Some(name)) => Self::at(target, target, Some((name.clone(), name))),
            (Some(true), _, None) => Self::at(target, target, None),
            (Some(false), Kind::Directory, _) => refused("it is a file, and a directory is to be copied"),
            (Some(false), ..) if wants_directory => refused("it is a file, no directory"),
            (None, Kind::File | Kind::Link, _) if wants_directory => refused("there is no such directory"),
            (None, Kind::Directory, None) => {
                let Some(new) = target.file_name() else { return refused("it has no name") };
                let above = Self::at(target, parent(target), None)?;
                let made =
                    make_directory(&above.base, new).and_then(|_| above.directory(Path::new(new), OFlag::O_PATH));
                // The one that was made, whatever has its name by now.
                let base = made.map_err(failed("make the directory", target))?;
                let mut place = Self { base, shown: target.to_owned(), ..above };
                place.made.push(Made::of(first, Path::new(".")));
                Ok(place)
            }
            (_, _, Some(name)) => {
                let Some(new) = target.file_name() else { return refused("it has no name") };
                Self::at(target, parent(target), Some((name, new.to_owned())))
            }
            (_, _, None) => refused("what is to be copied has no name"),
        }
    }

    fn at(target: &Path, base: &Path, renamed: Option<(OsString, OsString)>) -> Result<Self, TransferError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let opened = open_resolved(AT_FDCWD, base, flags, Mode::empty(), ResolveFlag::empty());
        let base_fd = opened.map_err(failed("write", target))?;
        Ok(Self { base: base_fd, shown: base.to_owned(), renamed, made: Vec::new(), without_lists: Vec::new() })
    }

    fn put<R: Read>(&mut self, member: &Member, content: &mut Entry<'_, R>) -> Result<(), TransferError> {
        let path = self.place_of(&member.path).map_err(failed("write", &self.shown))?;
        let shown = self.shown.join(&path);
        let told = |error| failed("write", &shown)(error);
        // The directory whose content this is.
        let Some(name) = path.file_name() else { return Ok(()) };
        let parent = self.directory(path.parent().unwrap_or(Path::new("")), OFlag::O_PATH).map_err(told)?;
        match member.kind {
            Kind::Directory => {
                if make_directory(&parent, name).map_err(told)? {
                    self.made.push(Made::of(member, &path));
                }
                Ok(())
            }
            Kind::File => {
                if !write_file(&parent, name, member, content).map_err(told)? {
                    self.without_lists.push(path);
                }
                Ok(())
            }
            Kind::Link => write_link(&parent, name, member).map_err(told),
        }
    }

    fn place_of(&self, path: &Path) -> io::Result<PathBuf> {
        let Some((old, new)) = &self.renamed else { return Ok(path.to_owned()) };
        let rest = path.strip_prefix(old);
        let rest =
            rest.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{} lies elsewhere", shown(path))))?;
        // Joining nothing would add a slash.
        Ok(if rest.as_os_str().is_empty() { PathBuf::from(new) } else { Path::new(new).join(rest) })
    }

    fn directory(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        open_resolved(&self.base, path, flags | OFlag::O_DIRECTORY, Mode::empty(), resolve)
    }

    fn finish(mut self) -> Result<Vec<PathBuf>, TransferError> {
        for made in std::mem::take(&mut self.made).into_iter().rev() {
            let set = || {
                let directory = self.directory(&made.path, OFlag::O_RDONLY)?;
                give(&directory, made.owner)?;
                futimens(&directory, &made.time, &made.time)?;
                fchmod(&directory, made.mode)?;
                made.lists.give(&directory)
            };
            if !set().map_err(failed("set the permissions of", &self.shown.join(&made.path)))? {
                self.without_lists.push(made.path);
            }
        }
        Ok(self.without_lists)
    }
}

/// Whether a directory (true) or a file lies at the target.
fn look(target: &Path) -> io::Result<Option<bool>> {
    let status = match open_resolved(AT_FDCWD, target, OFlag::O_PATH, Mode::empty(), ResolveFlag::empty()) {
        Ok(handle) => File::from(handle).metadata()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match (status.is_dir(), status.is_file()) {
        (true, _) => Ok(Some(true)),
        (_, true) => Ok(Some(false)),
        _ => Err(io::Error::other(NO_FILE)),
    }
}

/// True if it was not there before.
fn make_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) if kind_of(parent, name)? == Some(SFlag::S_IFDIR) => Ok(false),
        Err(Errno::EEXIST) => Err(io::Error::other("a directory is to be copied, and something else is there")),
        Err(errno) => Err(errno.into()),
    }
}

fn kind_of(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<SFlag>> {
    match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits()))),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Puts in the place of a file or link what `make` makes under another name, so that what was there stays when nothing whole
/// comes. Directories stay, and so do devices, pipes and sockets.
fn replace(parent: &OwnedFd, name: &OsStr, make: impl FnOnce(&OsStr) -> io::Result<()>) -> io::Result<()> {
    match kind_of(parent, name)? {
        None | Some(SFlag::S_IFREG | SFlag::S_IFLNK) => {}
        Some(SFlag::S_IFDIR) => return Err(io::Error::other("a directory is there, and a file is to be copied")),
        Some(_) => return Err(io::Error::other(NO_FILE)),
    }
    let aside = free_name(parent)?;
    let put = make(&aside).and_then(|()| Ok(renameat(parent, aside.as_os_str(), parent, name)?));
    // Unless somebody else has taken the name since; the first error tells more.
    if put.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
        let _ = unlinkat(parent, aside.as_os_str(), UnlinkatFlags::NoRemoveDir);
    }
    put
}

/// A name that nothing has; whoever takes it must fail if it was taken since.
fn free_name(parent: &OwnedFd) -> io::Result<OsString> {
    let own = std::process::id();
    for number in 0..ASIDE_MAX {
        let name = OsString::from(format!(".trainyard-cp-{own}-{number}"));
        if kind_of(parent, &name)?.is_none() {
            return Ok(name);
        }
    }
    Err(io::Error::other("copies that were cut off have left too many files named .trainyard-cp-… there"))
}

fn give(file: impl AsFd, owner: Option<Owner>) -> io::Result<()> {
    owner.map_or(Ok(()), |Owner { uid, gid }| Ok(fchown(file, Some(uid), Some(gid))?))
}

/// False when its access lists were left out.
fn write_file(parent: &OwnedFd, name: &OsStr, member: &Member, content: &mut impl Read) -> io::Result<bool> {
    let mut has_lists = true;
    replace(parent, name, |aside| {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(parent, aside, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        if io::copy(content, &mut file)? != member.size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its end did not come"));
        }
        // Before the mode: a change of the owner takes bits of it away.
        give(&file, member.owner)?;
        fchmod(&file, member.mode)?;
        has_lists = member.lists.give(&file)?;
        Ok(futimens(&file, &member.time, &member.time)?)
    })?;
    Ok(has_lists)
}

fn write_link(parent: &OwnedFd, name: &OsStr, member: &Member) -> io::Result<()> {
    let target = member.link.as_ref().ok_or_else(|| io::Error::other("the link leads nowhere"))?;
    replace(parent, name, |aside| {
        symlinkat(target.as_path(), parent, aside)?;
        if let Some(Owner { uid, gid }) = member.owner {
            fchownat(parent, aside, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(utimensat(parent, aside, &member.time, &member.time, UtimensatFlags::NoFollowSymlink)?)
    })
}
