//! The sending end.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::{TransferError, failed};

/// Writes what lies at `source` to `out`. `note` is told of what is left out.
///
/// A link is sent as a link unless `source` ends in `/`; with `/.` at its end it is the content of a directory.
pub fn pack(source: &Path, out: impl Write, note: &mut dyn FnMut(String)) -> Result<(), TransferError> {
    let (name, status) = first(source).map_err(failed("read", source))?;
    let mut packer = Packer { out: Builder::new(out), note };
    let mut open = vec![(source.to_owned(), name, status)];
    while let Some((path, name, status)) = open.pop() {
        packer.add(&path, &name, &status)?;
        if status.is_dir() {
            let mut children = children(&path, &name).map_err(failed("read", &path))?;
            children.reverse();
            open.append(&mut children);
        }
    }
    packer.out.into_inner().and_then(|mut out| out.flush()).map_err(failed("send", source))
}

type Found = (PathBuf, PathBuf, Metadata);

/// The name of the first member, and what it is.
fn first(source: &Path) -> io::Result<(PathBuf, Metadata)> {
    let bytes = source.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if bytes == b"." || bytes.ends_with(b"/.") {
        let status = fs::metadata(source)?;
        return Ok((PathBuf::from("."), status));
    }
    let status = if bytes.ends_with(b"/") { fs::metadata(source) } else { fs::symlink_metadata(source) }?;
    let name = match source.file_name() {
        Some(name) => PathBuf::from(name),
        // `..`, or the root.
        None => source.canonicalize()?.file_name().map_or(PathBuf::from("."), PathBuf::from),
    };
    Ok((name, status))
}

/// In the order of their names.
fn children(path: &Path, name: &Path) -> io::Result<Vec<Found>> {
    let mut names: Vec<_> =
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort_unstable();
    let one = |child: &OsStr| {
        let below = if name == Path::new(".") { PathBuf::from(child) } else { name.join(child) };
        match fs::symlink_metadata(path.join(child)) {
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            status => Ok(Some((path.join(child), below, status?))),
        }
    };
    names.iter().filter_map(|child| one(child).transpose()).collect()
}

struct Packer<'a, W: Write> {
    out: Builder<W>,
    note: &'a mut dyn FnMut(String),
}

impl<W: Write> Packer<'_, W> {
    fn add(&mut self, path: &Path, name: &Path, status: &Metadata) -> Result<(), TransferError> {
        let kind = status.file_type();
        if kind.is_dir() {
            let name = if name == Path::new(".") { PathBuf::from("./") } else { name.to_owned() };
            self.member(status, EntryType::Directory)
                .and_then(|mut header| self.out.append_data(&mut header, name, io::empty()))
                .map_err(failed("send", path))
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(failed("read the link", path))?;
            self.member(status, EntryType::Symlink)
                .and_then(|mut header| self.out.append_link(&mut header, name, target))
                .map_err(failed("send", path))
        } else if kind.is_file() {
            self.file(path, name)
        } else {
            (self.note)(format!("{} is left out: it is neither file, directory nor link", path.display()));
            Ok(())
        }
    }

    fn file(&mut self, path: &Path, name: &Path) -> Result<(), TransferError> {
        // Not waiting for a pipe that was put there meanwhile.
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed("read", path))?;
        let status = file.metadata().map_err(failed("read", path))?;
        if !status.is_file() {
            (self.note)(format!("{} is left out: it became something else", path.display()));
            return Ok(());
        }
        let mut header = self.member(&status, EntryType::Regular).map_err(failed("send", path))?;
        header.set_size(status.len());
        let mut content = Exactly { file, left: status.len(), short: false };
        self.out.append_data(&mut header, name, &mut content).map_err(failed("send", path))?;
        if content.short {
            (self.note)(format!("{} became shorter while it was read; its end is zeros", path.display()));
        }
        Ok(())
    }

    /// The header, after an extension that holds the part of the time that it has no room for.
    fn member(&mut self, status: &Metadata, kind: EntryType) -> io::Result<Header> {
        if status.mtime_nsec() != 0 && status.mtime() >= 0 {
            let time = format!("{}.{:09}", status.mtime(), status.mtime_nsec());
            self.out.append_pax_extensions([("mtime", time.as_bytes())])?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(status.mode() & 0o777);
        header.set_mtime(u64::try_from(status.mtime()).unwrap_or(0));
        header.set_uid(0);
        header.set_gid(0);
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
