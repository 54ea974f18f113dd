//! The directories of a draft that an import writes into. Others may write there as well, and whoever calls may be root: they are
//! held open, no link that lies there is followed, and nothing is written to that is not the caller's own and there alone.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, mkdirat, openat, readlinkat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::sys::file::copy_user_attributes;

/// Ends the name of what has come of a file that is still coming.
const PART: &str = ".trainyard-part";
/// Beside it: which state of the source it is of.
const MARK: &str = ".trainyard-mark";
/// A state is told in a line, by us or by a server.
const STATE_MAX: u64 = 64 << 10;

/// Whether `name` is that of something which has not come whole.
pub(super) fn is_unfinished(name: &OsStr) -> bool {
    [PART, MARK].iter().any(|end| name.as_encoded_bytes().ends_with(end.as_bytes()))
}

pub(super) struct Directory {
    held: OwnedFd,
    /// As people know it.
    shown: PathBuf,
}

impl Directory {
    /// One that is the daemon's own, as are those above it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let held = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { held, shown: path.to_owned() })
    }

    pub(super) fn shown(&self, name: impl AsRef<Path>) -> PathBuf {
        self.shown.join(name)
    }

    /// The directory `name`, which must be there.
    pub(super) fn existing(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.held, name, flags, Mode::empty()) {
            Ok(held) => Ok(Self { held, shown: self.shown(name) }),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(io::Error::other(
                "there is a link or a file of that name, where a directory is to be; move it away",
            )),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The directory `name`, made if it is missing.
    pub(super) fn made(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        self.made_with(name, 0o777)
    }

    /// As [`Self::made`], for its owner alone until it is [given its mode](Self::set_mode).
    pub(super) fn made_private(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        self.made_with(name, 0o700)
    }

    fn made_with(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Self> {
        match mkdirat(&self.held, name.as_ref(), Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.existing(name),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.held, Mode::from_raw_mode(mode))?)
    }

    /// Those of people's own.
    pub(super) fn take_attributes(&self, of: impl AsFd) -> io::Result<()> {
        copy_user_attributes(of, &self.held)
    }

    /// Takes away the directory `name` if nothing is in it.
    pub(super) fn remove_empty(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.held, name.as_ref(), AtFlags::REMOVEDIR)?)
    }

    pub(super) fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.held, from.as_ref(), &self.held, to.as_ref())?)
    }

    /// Makes `name` a link that leads where it is said, if it is none yet.
    pub(super) fn link(&self, name: &OsStr, leads: &OsStr) -> io::Result<()> {
        match readlinkat(&self.held, name, Vec::new()) {
            Ok(there) if there.as_bytes() == leads.as_encoded_bytes() => Ok(()),
            _ => Ok(symlinkat(leads, &self.held, name)?),
        }
    }

    /// Whether `name` is a file of that size and time.
    pub(super) fn has(&self, name: &OsStr, size: u64, time: SystemTime) -> bool {
        let handle = openat(&self.held, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let there = handle.map_err(io::Error::from).and_then(|handle| File::from(handle).metadata());
        there.is_ok_and(|there| {
            there.is_file() && there.len() == size && there.modified().is_ok_and(|there| there == time)
        })
    }

    /// The file that is to be called `name`, with what an earlier call has brought of it.
    pub(super) fn coming(&self, name: &OsStr) -> Coming<'_> {
        let (part, mark) = (beside(name, PART), beside(name, MARK));
        let state = self.own(&mark).and_then(|file| {
            let mut state = String::new();
            file.take(STATE_MAX).read_to_string(&mut state).ok().map(|_| state)
        });
        let has = self.own(&part);
        Coming { directory: self, name: name.to_owned(), part, mark, has, state: state.unwrap_or_default() }
    }

    /// Says that not all has come here of what is called `source`, until it is [taken away](Unfinished::forget).
    pub(super) fn unfinished(&self, source: &str) -> io::Result<Unfinished<'_>> {
        let (hash, name) = (Sha256::digest(source), source.rsplit('/').next().unwrap_or_default());
        let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let mark = beside(OsStr::new(&format!("import-{hash}-{name}")), MARK);
        if self.own(&mark).is_none() {
            self.make(&mark, 0o600)?.write_all(source.as_bytes())?;
        }
        Ok(Unfinished { directory: self, mark })
    }

    /// Whether nothing else lies here.
    fn holds_only(&self, name: &OsStr) -> io::Result<bool> {
        for entry in Dir::read_from(&self.held)? {
            let entry = entry?.file_name().to_bytes().to_owned();
            if ![&b"."[..], b"..", name.as_encoded_bytes()].contains(&entry.as_slice()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A file of the caller's that has no other name, to which somebody might have led us.
    fn own(&self, name: &OsStr) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.held, name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        let is_own = metadata.uid() == nix::unistd::geteuid().as_raw();
        (metadata.is_file() && metadata.nlink() == 1 && is_own).then_some(file)
    }

    fn make(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        self.remove(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.held, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&self.held, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The mark of something that has not come whole.
pub(super) struct Unfinished<'a> {
    directory: &'a Directory,
    mark: OsString,
}

impl Unfinished<'_> {
    /// It is whole, or nothing of it has come.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.directory.remove(&self.mark)
    }

    /// As [`Self::forget`], if nothing has come.
    pub(super) fn forget_if_alone(&self) -> io::Result<()> {
        if self.directory.holds_only(&self.mark)? { self.forget() } else { Ok(()) }
    }
}

/// A file of which a part may have come.
pub(super) struct Coming<'a> {
    directory: &'a Directory,
    name: OsString,
    part: OsString,
    mark: OsString,
    has: Option<File>,
    /// Which state of the source the part is of; empty when that is not known.
    pub(super) state: String,
}

impl Coming<'_> {
    /// So many bytes are there.
    pub(super) fn length(&self) -> u64 {
        self.has.as_ref().and_then(|part| part.metadata().ok()).map_or(0, |metadata| metadata.len())
    }

    /// What is to be written from byte `begins` on, of that state of the source. What is begun anew has that mode.
    pub(super) fn begin(&mut self, begins: u64, state: &str, mode: u32) -> io::Result<File> {
        let mut file = match self.has.take() {
            Some(part) if begins > 0 => part,
            _ => self.directory.make(&self.part, mode)?,
        };
        file.set_len(begins)?;
        self.directory.make(&self.mark, 0o600)?.write_all(state.as_bytes())?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(begins))?;
        Ok(file)
    }

    /// It is whole: it gets its name, in place of whatever had it.
    pub(super) fn finish(self) -> io::Result<()> {
        self.directory.rename(&self.part, &self.name)?;
        self.forget()
    }

    /// What is there will be begun anew.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.directory.remove(&self.mark)
    }
}

/// Permissions for people, without what would lend somebody the owner's.
pub(super) fn plain_mode(permissions: &Permissions) -> u32 {
    permissions.mode() & 0o777
}

/// Longest name of a file, bytes.
const NAME_MAX: usize = 255;

/// A hidden name of its own for each name: where there is no room for all of it, by its hash.
fn beside(name: &OsStr, end: &str) -> OsString {
    let mut beside = OsString::from(".");
    if name.len() + end.len() < NAME_MAX {
        beside.push(name);
    } else {
        let hash = Sha256::digest(name.as_encoded_bytes());
        beside.push(hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    beside.push(end);
    beside
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_has_come_is_gone_on_with_under_the_longest_name_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        for length in [1, 238, 239, 240, 255] {
            let name = OsString::from("n".repeat(length));
            let mut coming = directory.coming(&name);
            assert_eq!((coming.length(), coming.state.as_str()), (0, ""));
            coming.begin(0, "one", 0o600).unwrap().write_all(b"abcd").unwrap();
            let mut coming = directory.coming(&name);
            assert_eq!((coming.length(), coming.state.as_str()), (4, "one"));
            coming.begin(3, "two", 0o600).unwrap().write_all(b"D").unwrap();
            assert!(fs::read_dir(dir.path()).unwrap().any(|entry| is_unfinished(&entry.unwrap().file_name())));
            coming.finish().unwrap();
            assert_eq!(fs::read_to_string(dir.path().join(&name)).unwrap(), "abcD");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
    }

    #[test]
    fn nothing_is_written_through_links_that_somebody_has_made() {
        let dir = tempfile::tempdir().unwrap();
        let (draft, victim) = (dir.path().join("draft"), dir.path().join("victim"));
        fs::create_dir(&draft).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), "kept").unwrap();
        let directory = Directory::open(dir.path()).unwrap().existing("draft").unwrap();
        symlink(&victim, draft.join("sub")).unwrap();
        symlink("nowhere", draft.join("gone")).unwrap();
        for name in ["sub", "gone"] {
            let Err(error) = directory.made(name) else { panic!("{name}") };
            assert!(error.to_string().contains("move it away"), "{error}");
        }
        symlink(victim.join("file"), draft.join(".a.trainyard-part")).unwrap();
        fs::hard_link(victim.join("file"), draft.join(".a.trainyard-mark")).unwrap();
        fs::hard_link(victim.join("file"), draft.join(".b.trainyard-part")).unwrap();
        symlink(victim.join("file"), draft.join("a")).unwrap();
        for name in ["a", "b"] {
            let mut coming = directory.coming(OsStr::new(name));
            assert_eq!((coming.length(), coming.state.as_str()), (0, ""), "{name}");
            coming.begin(0, "state", 0o600).unwrap().write_all(b"new").unwrap();
            coming.finish().unwrap();
            assert_eq!(fs::read_to_string(draft.join(name)).unwrap(), "new");
        }
        assert_eq!(fs::read_to_string(victim.join("file")).unwrap(), "kept");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    }
}
