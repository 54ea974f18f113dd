//! The sending end. The tree is walked by descriptors: what takes the place of a directory meanwhile is not followed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AT_FDCWD, OFlag, ResolveFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use tar::{Builder, EntryType, Header};

use super::access_lists::AccessLists;
use super::{TransferError, failed, name_of, shown};
use crate::sys::rooted::open_resolved;

/// Up to this size a file is read before it is sent, and is as long as it then is: what the kernel makes up, as in `/proc`
/// and `/sys`, has another length than it tells.
const WHOLE_MAX: u64 = 4 << 20;

/// Writes what lies at `source` to `out`. `note` is told of what is left out.
///
/// A link is sent as a link unless `source` ends in `/`; without a name of its own (`.`, `..`, `/`, `DIR/.`) it is the content
/// of a directory. Takes as many descriptors as the tree is deep.
pub fn pack(source: &Path, out: impl Write, note: &mut dyn FnMut(String)) -> Result<(), TransferError> {
    let mut out = Builder::new(out);
    let member = name_of(source).map_or(PathBuf::from("."), PathBuf::from);
    walk(source, member, &mut Packer { out: &mut out, owners: Owners::Dropped, admit: &mut |_, _| true, note })?;
    out.into_inner().and_then(|mut out| out.flush()).map_err(failed("send", source))
}

/// As [`pack`], but into an archive that has more members, with the owners, all bits of the mode and access lists, as `member`.
/// What `admit` says no to, by its name there and what it is, is left out, with all that is in it.
pub fn append(
    out: &mut Builder<impl Write>,
    source: &Path,
    member: &Path,
    admit: &mut dyn FnMut(&Path, &Metadata) -> bool,
    note: &mut dyn FnMut(String),
) -> Result<(), TransferError> {
    walk(source, member.to_owned(), &mut Packer { out, owners: Owners::Kept, admit, note })
}

/// Whether it is told whose what is packed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owners {
    Dropped,
    Kept,
}

fn walk<W: Write>(source: &Path, member: PathBuf, packer: &mut Packer<'_, W>) -> Result<(), TransferError> {
    let (parent, name) = parent_of(source).map_err(failed("read", source))?;
    let first = Place { path: source.to_owned(), member };
    let handle = open_at(&parent, &name, OFlag::O_PATH).map_err(failed("read", source))?;
    let mut levels: Vec<Level> = packer.add(&parent, &name, handle, first)?.into_iter().collect();
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            levels.pop();
            continue;
        };
        let place = level.place.below(&name);
        let entered = match open_at(&level.directory, &name, OFlag::O_PATH) {
            Ok(handle) => packer.add(&level.directory, &name, handle, place)?,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read", &place.path)(error)),
        };
        levels.extend(entered);
    }
    Ok(())
}

/// The directory that `source` lies in, and its name there.
fn parent_of(source: &Path) -> io::Result<(OwnedFd, OsString)> {
    let bytes = source.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (directory, name) = match name_of(source) {
        Some(name) if !bytes.ends_with(b"/") => (super::parent(source), name),
        _ => (source, OsStr::new(".")),
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let opened = open_resolved(AT_FDCWD, directory, flags, Mode::empty(), ResolveFlag::empty());
    Ok((opened?, name.to_owned()))
}

/// Follows no link.
fn open_at(directory: impl AsFd, name: &OsStr, flags: OFlag) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Where something is found, and where it goes.
struct Place {
    /// As the user named it, for messages.
    path: PathBuf,
    /// Its name in the stream.
    member: PathBuf,
}

impl Place {
    fn below(&self, name: &OsStr) -> Self {
        let is_content = self.member == Path::new(".");
        let member = if is_content { PathBuf::from(name) } else { self.member.join(name) };
        Self { path: self.path.join(name), member }
    }
}

/// An open directory.
struct Level {
    directory: OwnedFd,
    place: Place,
    /// What of it is still to be sent, the next one last.
    names: Vec<OsString>,
}

impl Level {
    fn enter(directory: OwnedFd, place: Place) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in Dir::from_fd(directory.try_clone()?)?.iter() {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Self { directory, place, names })
    }
}

/// What is told of a file beside its content.
struct Seen {
    data: Metadata,
    lists: AccessLists,
}

struct Packer<'a, W: Write> {
    out: &'a mut Builder<W>,
    owners: Owners,
    admit: &'a mut dyn FnMut(&Path, &Metadata) -> bool,
    note: &'a mut dyn FnMut(String),
}

impl<W: Write> Packer<'_, W> {
    /// Sends what `handle` (`O_PATH`) stands for, which is called `name` in `parent`; a directory is then to be gone through.
    fn add(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        handle: OwnedFd,
        place: Place,
    ) -> Result<Option<Level>, TransferError> {
        let read = |error: io::Error| failed("read", &place.path)(error);
        let handle = File::from(handle);
        let status = self.look(&handle).map_err(read)?;
        let kind = status.data.file_type();
        if (kind.is_dir() || kind.is_symlink()) && !self.admits(&place, &status.data) {
            return Ok(None);
        }
        if kind.is_dir() {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
            let directory = open_at(&handle, OsStr::new("."), flags).map_err(read)?;
            let member = if place.member == Path::new(".") { Path::new("./") } else { &place.member };
            self.member(&status, EntryType::Directory)
                .and_then(|mut header| self.out.append_data(&mut header, member, io::empty()))
                .map_err(failed("send", &place.path))?;
            let path = place.path.clone();
            return Level::enter(directory, place).map(Some).map_err(failed("read", &path));
        }
        if kind.is_symlink() {
            let target = readlinkat(&handle, "").map_err(|errno| read(errno.into()))?;
            self.member(&status, EntryType::Symlink)
                .and_then(|mut header| self.out.append_link(&mut header, &place.member, Path::new(&target)))
                .map_err(failed("send", &place.path))?;
        } else if kind.is_file() {
            // Not waiting for a pipe that was put there meanwhile.
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            self.file(open_at(parent, name, flags).map_err(read)?.into(), &place)?;
        } else {
            (self.note)(format!("{} is left out: it is neither file, directory nor link", shown(&place.path)));
        }
        Ok(None)
    }

    fn admits(&mut self, place: &Place, status: &Metadata) -> bool {
        let is_admitted = (self.admit)(&place.member, status);
        if !is_admitted {
            (self.note)(format!(
                "{} is left out: it is too large, or too much with what is beside it",
                shown(&place.path)
            ));
        }
        is_admitted
    }

    fn file(&mut self, file: File, place: &Place) -> Result<(), TransferError> {
        let seen = self.look(&file).map_err(failed("read", &place.path))?;
        let status = &seen.data;
        if !status.is_file() {
            (self.note)(format!("{} is left out: it became something else", shown(&place.path)));
            return Ok(());
        }
        if !self.admits(place, status) {
            return Ok(());
        }
        if status.len() <= WHOLE_MAX {
            return self.whole_file(&file, &seen, place);
        }
        let mut content = Exactly { file, left: status.len(), short: false };
        self.content(&seen, status.len(), &mut content, place)?;
        if content.short {
            (self.note)(format!("{} became shorter while it was read; its end is zeros", shown(&place.path)));
        }
        Ok(())
    }

    fn whole_file(&mut self, file: &File, seen: &Seen, place: &Place) -> Result<(), TransferError> {
        let mut content = Vec::new();
        file.take(WHOLE_MAX + 1).read_to_end(&mut content).map_err(failed("read", &place.path))?;
        if content.len() as u64 > WHOLE_MAX {
            content.pop();
            (self.note)(format!(
                "{} is longer than it says; only its first {WHOLE_MAX} bytes are sent",
                shown(&place.path)
            ));
        }
        self.content(seen, content.len() as u64, &mut content.as_slice(), place)
    }

    fn content(&mut self, seen: &Seen, size: u64, content: &mut dyn Read, place: &Place) -> Result<(), TransferError> {
        let mut header = self.member(seen, EntryType::Regular).map_err(failed("send", &place.path))?;
        header.set_size(size);
        self.out.append_data(&mut header, &place.member, content).map_err(failed("send", &place.path))
    }

    /// `file` may be open by `O_PATH`.
    fn look(&self, file: &File) -> io::Result<Seen> {
        let lists = match self.owners {
            Owners::Dropped => AccessLists::default(),
            Owners::Kept => AccessLists::of(file)?,
        };
        Ok(Seen { data: file.metadata()?, lists })
    }

    /// The header, after an extension that holds what it has no room for: a part of the time, and access lists.
    fn member(&mut self, Seen { data: status, lists }: &Seen, kind: EntryType) -> io::Result<Header> {
        let mut records: Vec<_> = lists.records().collect();
        if status.mtime_nsec() != 0 && status.mtime() >= 0 {
            records.push(("mtime", format!("{}.{:09}", status.mtime(), status.mtime_nsec())));
        }
        if !records.is_empty() {
            self.out.append_pax_extensions(records.iter().map(|(name, value)| (*name, value.as_bytes())))?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        let (mode, uid, gid) = match self.owners {
            Owners::Dropped => (0o777, 0, 0),
            Owners::Kept => (0o7777, status.uid(), status.gid()),
        };
        header.set_mode(status.mode() & mode);
        header.set_mtime(u64::try_from(status.mtime()).unwrap_or(0));
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_size(0);
        Ok(header)
    }
}

/// As many bytes as were promised: a file may grow or shrink while it is read.
struct Exactly {
    file: File,
    left: u64,
    short: bool,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most) else { return Ok(0) };
        let mut count = if self.short { 0 } else { self.file.read(buffer)? };
        if count == 0 && most > 0 {
            self.short = true;
            buffer.fill(0);
            count = most;
        }
        self.left -= count as u64;
        Ok(count)
    }
}
