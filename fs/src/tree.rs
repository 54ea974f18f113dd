//! The seam to the user of this crate: paths, the rules over them, and generated files.
//!
//! Everything here is called from several serving threads at once, possibly while a client waits in a
//! system call: an implementation must not block for long, and must never touch the mountpoint.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;

use crate::behind::Behind;
use crate::usage::{Account, Quota};

/// A path below the root of the tree: components separated by one `/`, no leading `/`, none of them
/// empty, `.` or `..`. Components are bytes and may be no UTF-8. The empty path is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(OsString);

/// Why bytes are no [`RelPath`] or no name in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    #[error("a path below the root does not begin with a slash")]
    Absolute,
    #[error("a component is empty, `.` or `..`")]
    Component,
    #[error("a name holds a slash or a NUL byte")]
    Byte,
}

impl RelPath {
    /// The root of the tree.
    pub fn root() -> Self {
        Self::default()
    }

    /// Checks `path`; the empty path is the root.
    pub fn new(path: impl AsRef<OsStr>) -> Result<Self, BadPath> {
        let path = path.as_ref();
        if path.as_bytes().first() == Some(&b'/') {
            return Err(BadPath::Absolute);
        }
        if path.is_empty() {
            return Ok(Self::root());
        }
        let names = path.as_bytes().split(|&byte| byte == b'/');
        names.map(OsStr::from_bytes).try_for_each(check_name)?;
        Ok(Self(path.to_os_string()))
    }

    /// The path of the entry `name` in this directory.
    pub fn join(&self, name: impl AsRef<OsStr>) -> Result<Self, BadPath> {
        let name = name.as_ref();
        check_name(name)?;
        let mut path = self.0.clone();
        if !self.is_root() {
            path.push("/");
        }
        path.push(name);
        Ok(Self(path))
    }

    /// The directory that holds this entry; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        self.split().map(|(parent, _)| parent)
    }

    /// The last component; `None` for the root.
    pub fn name(&self) -> Option<&OsStr> {
        self.components().last()
    }

    /// The components from the root down; none for the root.
    pub fn components(&self) -> impl Iterator<Item = &OsStr> {
        let bytes = self.0.as_bytes();
        let names = bytes.split(|&byte| byte == b'/').map(OsStr::from_bytes);
        names.filter(|name| !name.is_empty())
    }

    /// The same path for use with `std`; relative, empty for the root.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Directory and name; `None` for the root.
    pub(crate) fn split(&self) -> Option<(Self, &OsStr)> {
        let bytes = self.0.as_bytes();
        let name = self.name()?;
        let parent = bytes.get(..bytes.len() - name.len())?;
        let parent = parent.strip_suffix(b"/").unwrap_or(parent);
        Some((Self(OsStr::from_bytes(parent).to_os_string()), name))
    }
}

fn check_name(name: &OsStr) -> Result<(), BadPath> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(BadPath::Component),
        bytes if bytes.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(BadPath::Byte),
        _ => Ok(()),
    }
}

/// What may be done with what is at a path, by anyone, root included. Mode bits restrict further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every change is refused with `EROFS`. Not `EACCES` or `EPERM`: those tell a user to try as root
    /// or to change mode bits, and neither would help; programs treat `EROFS` as a property of the place.
    ReadOnly,
    /// Changes go to the backing directory.
    ReadWrite,
    /// Not listed, and `ENOENT` to whoever names it. Making an entry there is refused with `EROFS`.
    Hidden,
}

/// How a removal is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `EROFS`: it never goes.
    ReadOnly,
    /// `EBUSY`: somebody uses it now.
    Busy,
}

/// The caller's say over the backing directory.
pub trait Tree: Send + Sync + 'static {
    /// The rule at `path`. A change to a directory's entries (create, remove, rename) asks the rule of
    /// the entry's own path, not the directory's. Asked again for every write, so a file whose path
    /// becomes read-only while open takes no more bytes.
    fn rule(&self, path: &RelPath) -> Rule;

    /// Whether the rule is [`Rule::Hidden`]; asked for each row of a listing, so to be told without much ado.
    fn is_hidden(&self, path: &RelPath) -> bool {
        self.rule(path) == Rule::Hidden
    }

    /// Whether anything in `dir` may be hidden. Asked once for a listing, of which no row is asked about where nothing is.
    fn may_hide_in(&self, _dir: &RelPath) -> bool {
        true
    }

    /// Whether directories in `dir` are listed for those alone who may go into them. Who names one is still told that it
    /// is there: names are shared by all who have asked for them.
    fn lists_what_may_be_entered(&self, _dir: &RelPath) -> bool {
        false
    }

    /// May refuse to give the entry `from` the name `to`, which the rules allow, by an error with an errno; or note that it
    /// will have it. `by` is the user who renames. Called while no name below the root changes. An exchange asks both ways.
    fn renaming(&self, _from: &RelPath, _to: &RelPath, _by: u32) -> io::Result<()> {
        Ok(())
    }

    /// Whether nothing goes from one place to the other by its name, nor has names in both (`EXDEV`): who holds it open has
    /// rights there that it is not to take along.
    fn are_apart(&self, _one: &RelPath, _other: &RelPath) -> bool {
        false
    }

    /// Whether what is at `path` may go by a copy where it cannot go by its name (`EXDEV`); else nobody is led to begin one (`EPERM`).
    fn may_be_copied(&self, _path: &RelPath) -> bool {
        true
    }

    /// Whether what lies in `from` can be changed no more when it is called `to`.
    fn freezes(&self, _from: &RelPath, _to: &RelPath) -> bool {
        false
    }

    /// Whether the kernel may read and write what is at `path` by itself: then the rule is not asked at each write, so the place
    /// must become read-only by a rename that [freezes](Self::freezes) it and in no other way. That is refused (`EBUSY`) as long as
    /// somebody can write so.
    fn passes_writes(&self, _path: &RelPath) -> bool {
        false
    }

    /// What [`renaming`](Self::renaming) agreed to has been done, or failed.
    fn renamed(&self, _from: &RelPath, _to: &RelPath, _done: bool) {}

    /// Who may do what at `path` has been changed.
    fn rights_changed(&self, _path: &RelPath) {}

    /// The errno for whoever wants to remove or rename what is at `path`, where the rule is [`Rule::ReadOnly`].
    fn refusal(&self, _path: &RelPath) -> Refusal {
        Refusal::ReadOnly
    }

    /// Names of the generated files in directory `dir`; a stored entry of the same name wins.
    fn generated(&self, dir: &RelPath) -> Vec<OsString>;

    /// Opens the generated file at `path`; `None` if there is none. Called for every name that is looked up and
    /// not stored, and for every `stat` of a generated file, so it must be cheap.
    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>>;

    /// As [`open_generated`](Self::open_generated), in a process that goes on for another one, where its content was open at
    /// `place` ([`Content::place`]).
    fn open_again(&self, path: &RelPath, _place: &[u8]) -> io::Result<Option<Box<dyn Content>>> {
        self.open_generated(path)
    }

    /// Whether the names of one file that lie here are shown as one inode. Where a name is given another file behind the mount, that
    /// must be [told](Self::behind): the kernel would take what it knows by one name for the other for as long as it keeps names.
    fn shares_links(&self, _path: &RelPath) -> bool {
        true
    }

    /// Who pays for what lies at `path`, where that is counted here. Asked at every change, so to be told without much ado.
    /// Nothing is moved into an account from elsewhere (`EXDEV`), so it must be the same for a tree as for what lies in it.
    fn account(&self, _path: &RelPath) -> Option<Arc<Account>> {
        None
    }

    /// How much may be kept at `path`, whoever counts it; for `statfs`.
    fn quota(&self, path: &RelPath) -> Option<Quota> {
        self.account(path).map(|account| account.quota())
    }

    /// How long the kernel may keep the attributes and the name of what is at `path`: zero for what
    /// others change behind the mount (live logs). A change behind the mount shows after this long, unless it is
    /// [told](Self::behind).
    fn attr_ttl(&self, path: &RelPath) -> Duration;

    /// By whom changes behind the mount are told.
    fn behind(&self) -> Behind {
        Behind::default()
    }
}

/// The bytes of one generated file as one open sees them; they may grow while it is open.
pub trait Content: Send + Sync {
    fn metadata(&self) -> io::Result<ContentMetadata>;

    /// Fills `buf` from byte `offset` and returns how many bytes; 0 at the end. May return fewer than there are.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// The file of the disk that changes when there is more to read: who polls is woken then. `None`: it is told that there always
    /// is something to read, as of any stored file.
    fn grows_with(&self) -> Option<PathBuf> {
        None
    }

    /// What [`Tree::open_again`] needs to go on for whoever has it open.
    fn place(&self) -> Vec<u8> {
        Vec::new()
    }

    /// It takes what is written to it.
    fn is_writable(&self) -> bool {
        false
    }

    /// Takes the whole of `data`, which the user `uid` has written by one call, wherever in the file.
    fn write(&self, _uid: u32, _data: &[u8]) -> io::Result<()> {
        Err(Errno::EROFS.into())
    }
}

/// What `stat` shows of a generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentMetadata {
    /// Bytes. Must be true: `tail` believes it and stops at a size of zero.
    pub size: u64,
    pub mtime: SystemTime,
    pub uid: u32,
    pub gid: u32,
    /// Permission bits, such as `0o640`; others are ignored.
    pub mode: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_plain_relative_paths() {
        assert!(RelPath::new("").unwrap().is_root());
        assert!(RelPath::new("a/b.c/..d").is_ok());
        assert!(RelPath::new(OsStr::from_bytes(b"\xff/\xfe")).is_ok());
        for bad in ["a//b", "a/", ".", "a/..", "../a", "a/./b"] {
            assert_eq!(RelPath::new(bad), Err(BadPath::Component), "{bad}");
        }
        assert_eq!(RelPath::new("/a"), Err(BadPath::Absolute));
        assert_eq!(RelPath::new("a\0"), Err(BadPath::Byte));
    }

    #[test]
    fn joins_and_splits() {
        let path = RelPath::root().join("a").unwrap().join("b").unwrap();
        assert_eq!(path.as_path(), Path::new("a/b"));
        assert_eq!(path.components().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(path.name(), Some(OsStr::new("b")));
        assert_eq!(path.parent(), Some(RelPath::new("a").unwrap()));
        assert_eq!(path.parent().unwrap().parent(), Some(RelPath::root()));
        assert_eq!(RelPath::root().parent(), None);
        assert_eq!(RelPath::root().name(), None);
        assert_eq!(path.join("c/d"), Err(BadPath::Byte));
        assert_eq!(path.join(".."), Err(BadPath::Component));
    }
}
