//! Members of an archive as files of a layer: each made fresh, so that nothing is written through what was there before.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{
    FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, fstatat, futimens, makedev, mknodat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, ftruncate, linkat, symlinkat};
use rustix::fs::{XattrFlags, fsetxattr, lsetxattr};

use super::archive::{Archive, Kind, Member};
use super::error::{UnpackError, shown};
use super::layer::{Layer, Place};
use super::name::{self, Name};
use super::remembered::{MOST_NAMES, Mark, Remembered};
use super::skipped::Skipped;
use super::sparse::Segment;

/// Zeros are left out in whole blocks of this size: that of pages and of most file systems.
const HOLE: usize = 4096;
static ZEROS: [u8; HOLE] = [0; HOLE];
const OPAQUE: &str = "trusted.overlay.opaque";
/// What `mknod` takes: a number beyond is cut by it, and could become the 0:0 of a white-out.
const MOST_MAJOR: u64 = 0xfff;
const MOST_MINOR: u64 = 0xf_ffff;

pub(super) struct Writer {
    layer: Layer,
    skipped: Skipped,
}

/// What [`Writer::finish`] found.
pub(super) struct Finished {
    pub(super) implied_directories: Vec<PathBuf>,
    pub(super) opaque_root: bool,
    pub(super) skipped: Vec<String>,
}

impl Writer {
    pub(super) fn new(layer: Layer) -> Self {
        Self { layer, skipped: Skipped::default() }
    }

    pub(super) fn put(&mut self, member: &Member, archive: &mut Archive) -> Result<(), UnpackError> {
        let name = name::read(&member.path);
        match name.map_err(|why| UnpackError::Name { path: shown(&member.path), why })? {
            Name::Ignored => {}
            Name::Opaque(directory) => {
                self.layer.directory(&directory).map_err(|errno| no_parent(&member.path, errno))?;
                self.layer.remembered.mark(&directory, Mark::Opaque);
            }
            Name::WhiteOut(hidden) => {
                let place = self.layer.place(hidden).map_err(|errno| no_parent(&member.path, errno))?;
                self.layer.remembered.mark(&place.path, Mark::WhiteOut);
            }
            Name::Place(path) if path.is_empty() => self.root(member)?,
            Name::Place(path) => {
                let place = self.layer.place(path).map_err(|errno| no_parent(&member.path, errno))?;
                self.make(&place, member, archive)?;
            }
        }
        if self.layer.remembered.is_full() {
            return Err(UnpackError::TooManyNames { path: shown(&member.path), limit: MOST_NAMES });
        }
        Ok(())
    }

    fn make(&mut self, place: &Place, member: &Member, archive: &mut Archive) -> Result<(), UnpackError> {
        match member.kind {
            Kind::File => self.file(place, member, archive),
            Kind::Directory => self.directory(place, member),
            Kind::Symlink => self.symlink(place, member),
            Kind::HardLink => self.hard_link(place, member),
            Kind::Fifo => self.node(place, member, SFlag::S_IFIFO),
            Kind::Block => self.node(place, member, SFlag::S_IFBLK),
            Kind::Character if member.device == (0, 0) => {
                self.skipped.note(&place.path, "a character device 0:0, which would hide a file of lower layers");
                Ok(())
            }
            Kind::Character => self.node(place, member, SFlag::S_IFCHR),
        }
    }

    /// Runs `make`, which fails on what exists, and does so again once that is removed.
    fn fresh<T>(
        &mut self,
        place: &Place,
        action: &'static str,
        make: impl Fn() -> nix::Result<T>,
    ) -> Result<T, UnpackError> {
        let made = match make() {
            Err(Errno::EEXIST) => {
                self.layer.remove(place).map_err(|errno| UnpackError::on(&place.path, "replace", errno))?;
                make()
            }
            other => other,
        };
        made.map_err(|errno| UnpackError::on(&place.path, action, errno))
    }

    fn file(&mut self, place: &Place, member: &Member, archive: &mut Archive) -> Result<(), UnpackError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let open = || openat(&*place.parent, place.name(), flags, mode);
        let file = File::from(self.fresh(place, "create the file of", open)?);
        let mut end = 0;
        for segment in &member.segments {
            end = pour(archive, &file, *segment, &place.path)?.unwrap_or(end);
        }
        if end != member.size {
            let size = i64::try_from(member.size).map_err(|_| UnpackError::on(&place.path, "extend", Errno::EFBIG))?;
            ftruncate(&file, size).map_err(|errno| UnpackError::on(&place.path, "extend", errno))?;
        }
        self.dress(&file, &place.path, member)?;
        let set = futimens(&file, &TimeSpec::UTIME_OMIT, &member.mtime);
        set.map_err(|errno| UnpackError::on(&place.path, "set the time of", errno))
    }

    fn directory(&mut self, place: &Place, member: &Member) -> Result<(), UnpackError> {
        let claimed = self.layer.claim_directory(place);
        let directory = claimed.map_err(|errno| UnpackError::on(&place.path, "create the directory of", errno))?;
        self.dress(&directory, &place.path, member)?;
        self.layer.remembered.directory(&place.path, member.mtime);
        Ok(())
    }

    fn root(&mut self, member: &Member) -> Result<(), UnpackError> {
        if member.kind != Kind::Directory {
            let why = "it would replace the root directory";
            return Err(UnpackError::Name { path: shown(&member.path), why });
        }
        let root = self.layer.root();
        self.dress(&root, b".", member)?;
        self.layer.remembered.directory(b"", member.mtime);
        Ok(())
    }

    fn symlink(&mut self, place: &Place, member: &Member) -> Result<(), UnpackError> {
        if member.link.is_empty() || member.link.contains(&0) {
            return Err(UnpackError::Name { path: shown(&member.path), why: "it is a link to no name" });
        }
        let target = OsStr::from_bytes(&member.link);
        self.fresh(place, "create the link of", || symlinkat(target, &*place.parent, place.name()))?;
        self.dress_beside(place, member)
    }

    fn hard_link(&mut self, place: &Place, member: &Member) -> Result<(), UnpackError> {
        let cannot = |errno: Errno| match UnpackError::on(&place.path, "link", errno) {
            UnpackError::Write { path, source, .. } => {
                UnpackError::HardLink { path, target: shown(&member.link), source }
            }
            full => full,
        };
        let target = name::clean(&member.link).map_err(|why| UnpackError::Name { path: shown(&member.link), why })?;
        let target = self.layer.existing_place(target).map_err(cannot)?;
        if target.path.is_empty() {
            return Err(cannot(Errno::EISDIR));
        }
        let link = || linkat(&*target.parent, target.name(), &*place.parent, place.name(), AtFlags::empty());
        match link() {
            Err(Errno::EEXIST) if is_same(&target, place).map_err(cannot)? => Ok(()),
            Err(Errno::EEXIST) => {
                self.layer.remove(place).map_err(|errno| UnpackError::on(&place.path, "replace", errno))?;
                link().map_err(cannot)
            }
            other => other.map_err(cannot),
        }
    }

    fn node(&mut self, place: &Place, member: &Member, kind: SFlag) -> Result<(), UnpackError> {
        let (major, minor) = member.device;
        if major > MOST_MAJOR || minor > MOST_MINOR {
            return Err(UnpackError::damaged(&member.path, "a device's number is out of range"));
        }
        let device = makedev(major, minor);
        let make = || mknodat(&*place.parent, place.name(), kind, Mode::S_IRUSR | Mode::S_IWUSR, device);
        self.fresh(place, "create the node of", make)?;
        self.dress_beside(place, member)
    }

    /// Owner, mode and attributes of something opened. The owner first: a change of it takes away setuid and capabilities.
    fn dress(&mut self, opened: impl AsFd, path: &[u8], member: &Member) -> Result<(), UnpackError> {
        fchown(&opened, Some(Uid::from_raw(member.uid)), Some(Gid::from_raw(member.gid)))
            .map_err(|errno| UnpackError::on(path, "set the owner of", errno))?;
        fchmod(&opened, Mode::from_bits_truncate(member.mode))
            .map_err(|errno| UnpackError::on(path, "set the mode of", errno))?;
        self.attributes(path, member, |name, value| fsetxattr(&opened, name, value, XattrFlags::empty()))
    }

    /// The same, and the time, of something that is not to be opened: opening a device has effects, and a link cannot be.
    fn dress_beside(&mut self, place: &Place, member: &Member) -> Result<(), UnpackError> {
        let (parent, name) = (&*place.parent, place.name());
        let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
        fchownat(parent, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| UnpackError::on(&place.path, "set the owner of", errno))?;
        if member.kind != Kind::Symlink {
            fchmodat(parent, name, Mode::from_bits_truncate(member.mode), FchmodatFlags::NoFollowSymlink)
                .map_err(|errno| UnpackError::on(&place.path, "set the mode of", errno))?;
        }
        // There is no call yet that takes a directory and a name; the link in /proc is ours and leads to our descriptor.
        let path = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name);
        self.attributes(&place.path, member, |name, value| lsetxattr(&path, name, value, XattrFlags::empty()))?;
        utimensat(parent, name, &TimeSpec::UTIME_OMIT, &member.mtime, UtimensatFlags::NoFollowSymlink)
            .map_err(|errno| UnpackError::on(&place.path, "set the time of", errno))
    }

    fn attributes(
        &mut self,
        path: &[u8],
        member: &Member,
        set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
    ) -> Result<(), UnpackError> {
        for (name, value) in &member.xattrs {
            match admission(name) {
                Admission::Set => {}
                Admission::Silent => continue,
                Admission::Told => {
                    self.skipped.attribute(path, name, "it is not for images to set");
                    continue;
                }
            }
            match set(name, value).map_err(|errno| Errno::from_raw(errno.raw_os_error())) {
                Ok(()) => {}
                Err(Errno::EOPNOTSUPP) => self.skipped.attribute(path, name, "the file system does not support it"),
                // Attributes of users are for files and directories only.
                Err(Errno::EPERM) if !matches!(member.kind, Kind::File | Kind::Directory) => {
                    self.skipped.attribute(path, name, "it cannot be set on such an entry");
                }
                Err(errno) => return Err(UnpackError::on(path, "set an extended attribute of", errno)),
            }
        }
        Ok(())
    }

    /// Marks, then times, which marks would change.
    pub(super) fn finish(mut self) -> Result<Finished, UnpackError> {
        let Remembered { times, marks, implied, .. } = std::mem::take(&mut self.layer.remembered);
        let opaque_root = marks.contains_key(b"".as_slice());
        for (path, mark) in marks {
            self.apply(mark, &path)?;
        }
        for (path, time) in times {
            self.set_time(&path, &time).map_err(|errno| UnpackError::on(&path, "set the time of", errno))?;
        }
        let implied_directories = implied.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
        Ok(Finished { implied_directories, opaque_root, skipped: self.skipped.into_lines() })
    }

    fn apply(&mut self, mark: Mark, path: &[u8]) -> Result<(), UnpackError> {
        if mark == Mark::WhiteOut && self.white_out(path).map_err(|errno| UnpackError::on(path, "hide", errno))? {
            return Ok(());
        }
        let opened = self.layer.directory_itself(path);
        let opened = opened.map_err(|errno| UnpackError::on(path, "open the directory of", errno))?;
        let Some(directory) = opened else { return Ok(()) };
        fsetxattr(&directory, OPAQUE, b"y", XattrFlags::empty())
            .map_err(|errno| UnpackError::on(path, "make opaque", Errno::from_raw(errno.raw_os_error())))
    }

    /// Whether the mark is made; it is not where this layer itself has something.
    fn white_out(&mut self, path: &[u8]) -> nix::Result<bool> {
        let place = match self.layer.existing_place(path.to_vec()) {
            // The directory was replaced since, and hides what is below it anyway.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(true),
            other => other?,
        };
        match mknodat(&*place.parent, place.name(), SFlag::S_IFCHR, Mode::empty(), makedev(0, 0)) {
            Err(Errno::EEXIST) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn set_time(&self, path: &[u8], time: &TimeSpec) -> nix::Result<()> {
        match self.layer.directory_itself(path)? {
            Some(directory) => futimens(&directory, &TimeSpec::UTIME_OMIT, time),
            None => Ok(()),
        }
    }
}

fn no_parent(path: &[u8], errno: Errno) -> UnpackError {
    match errno {
        Errno::ENOTDIR => UnpackError::BelowFile { path: shown(path) },
        errno => UnpackError::on(path, "open the directory above", errno),
    }
}

fn is_same(one: &Place, other: &Place) -> nix::Result<bool> {
    let one = fstatat(&*one.parent, one.name(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let other = fstatat(&*other.parent, other.name(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

enum Admission {
    Set,
    /// Every image built under SELinux has it, and the host labels by its own policy.
    Silent,
    /// What steers overlayfs, or is meant for the host alone.
    Told,
}

fn admission(name: &[u8]) -> Admission {
    match name {
        b"security.selinux" => Admission::Silent,
        _ if name.starts_with(b"trusted.") || name.starts_with(b"user.overlay.") => Admission::Told,
        _ => Admission::Set,
    }
}

/// Writes one segment and returns where the last byte written ends; `None` if it was all holes.
fn pour(archive: &mut Archive, file: &File, segment: Segment, path: &[u8]) -> Result<Option<u64>, UnpackError> {
    let (mut at, mut left, mut end) = (segment.offset, segment.length, None);
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX);
        let content = archive.content(wanted.min(HOLE))?;
        let content = &content[..content.len().min(wanted)];
        // Whole blocks, so that the next content starts at one; there is always at least one block's end in it.
        let past = if content.len() == wanted { 0 } else { (at + content.len() as u64) % HOLE as u64 };
        let content = &content[..content.len() - past as usize];
        let written = write_without_holes(file, content, at)
            .map_err(|error| UnpackError::on(path, "write the content of", errno_of(&error)))?;
        end = written.or(end);
        let count = content.len();
        archive.consume(count);
        at += count as u64;
        left -= count as u64;
    }
    Ok(end)
}

fn write_without_holes(file: &File, content: &[u8], at: u64) -> io::Result<Option<u64>> {
    let (mut start, mut next, mut end) = (0, 0, None);
    let mut write = |from: usize, to: usize| -> io::Result<()> {
        if from < to {
            file.write_all_at(&content[from..to], at + from as u64)?;
            end = Some(at + to as u64);
        }
        Ok(())
    };
    while next < content.len() {
        let in_block = ((at + next as u64) % HOLE as u64) as usize;
        let block_end = (next + HOLE - in_block).min(content.len());
        if content[next..block_end] == ZEROS {
            write(start, next)?;
            start = block_end;
        }
        next = block_end;
    }
    write(start, content.len())?;
    Ok(end)
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
