//! Access lists (`setfacl`) of files and directories. In the stream they are records of our own, in hexadecimal digits: readers
//! of archives divide records at line ends, which the kernel's form may hold.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use rustix::fs::{Mode, XattrFlags, fchmod, fsetxattr, fstat, getxattr};
use rustix::io::Errno;

/// The kernel's names, and those in the stream.
const NAMES: [(&str, &str); 2] =
    [("system.posix_acl_access", "TRAINYARD.acl.access"), ("system.posix_acl_default", "TRAINYARD.acl.default")];
/// The place of the first.
const ACCESS: usize = 0;
/// Tags of a list's entries.
const NAMED_USER: u16 = 2;
const OWN_GROUP: u16 = 4;
const NAMED_GROUP: u16 = 8;
/// The kernel's limit of an attribute, bytes.
const LONGEST: usize = 64 << 10;

/// The lists of one file, in the kernel's form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AccessLists(Vec<(usize, Vec<u8>)>);

impl AccessLists {
    /// `object` may be open by `O_PATH`.
    pub(super) fn of(object: impl AsFd) -> io::Result<Self> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", object.as_fd().as_raw_fd()));
        let mut lists = Vec::new();
        for (number, (name, _)) in NAMES.iter().enumerate() {
            let mut list = vec![0; LONGEST];
            match getxattr(&path, *name, list.as_mut_slice()) {
                Ok(length) => {
                    list.truncate(length);
                    lists.push((number, list));
                }
                // There is none, or there are none on this file system, or of such a thing.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Self(lists))
    }

    /// Names and values for the stream.
    pub(super) fn records(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().map(|(number, list)| (NAMES[*number].1, list.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Takes a record of the stream, if it is one of a list.
    pub(super) fn take(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let Some(number) = NAMES.iter().position(|(_, known)| known.as_bytes() == name) else { return Ok(()) };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
        let list: Option<Vec<u8>> = value.chunks(2).map(byte).collect();
        let list = list.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an access list is damaged"))?;
        self.0.push((number, list));
        Ok(())
    }

    /// Gives them to a file that has its mode already, of which they are a part. False where the file system has none: they are
    /// left out then, and nobody may more by the mode than by them.
    pub(super) fn give(&self, file: impl AsFd) -> io::Result<bool> {
        let mut are_taken = true;
        for (number, list) in &self.0 {
            match fsetxattr(file.as_fd(), NAMES[*number].0, list, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => {
                    are_taken = false;
                    if *number == ACCESS {
                        let mode = fstat(file.as_fd())?.st_mode;
                        fchmod(file.as_fd(), Mode::from_raw_mode(narrowed(mode, list)))?;
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(are_taken)
    }
}

/// The mode's bits of the group are, with a list, those of everybody whom it names: without it the group gets its own alone, and
/// nobody what the list keeps from somebody who is named.
fn narrowed(mode: u32, list: &[u8]) -> u32 {
    // Behind the version, each has a tag, rights and an id.
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8);
    entries.fold(mode, |mode, entry| {
        let rights = u32::from(entry[2] & 7);
        match u16::from_le_bytes([entry[0], entry[1]]) {
            OWN_GROUP => mode & !(0o070 & !(rights << 3)),
            NAMED_USER | NAMED_GROUP => mode & !0o077 | mode & (rights << 3 | rights),
            _ => mode,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::Path;

    use crate::transfer::{Tree, append, pack};

    /// Version 2; the owner, a user, the group, the mask and all others, with their rights.
    fn list(user: u32) -> Vec<u8> {
        let entries =
            [(1u16, 7u16, u32::MAX), (2, 5, user), (4, 0, u32::MAX), (0x10, 5, u32::MAX), (0x20, 0, u32::MAX)];
        let entry = |(tag, rights, id): (u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
        };
        [vec![2, 0, 0, 0], entries.into_iter().flat_map(entry).collect()].concat()
    }

    fn lists(path: &Path) -> AccessLists {
        AccessLists::of(File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn a_backup_keeps_access_lists_and_a_copy_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("job.toml"), "x").unwrap();
        // One with a line end in it, the number 10.
        assert!(AccessLists(vec![(0, list(1000)), (1, list(10))]).give(File::open(&from).unwrap()).unwrap());
        assert!(AccessLists(vec![(0, list(10))]).give(File::open(from.join("job.toml")).unwrap()).unwrap());
        let mut builder = tar::Builder::new(Vec::new());
        append(&mut builder, &from, Path::new("etc"), &mut |_, _| true, &mut |note| panic!("{note}")).unwrap();
        let bytes = builder.into_inner().unwrap();
        let to = dir.path().join("to");
        fs::create_dir(&to).unwrap();
        let mut tree = Tree::below(&to).unwrap();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().into_owned();
            tree.put(&path, &mut entry).unwrap();
        }
        assert_eq!(tree.finish().unwrap(), Vec::<PathBuf>::new());
        for (name, count) in [("", 2), ("job.toml", 1)] {
            let (was, is) = (lists(&from.join(name)), lists(&to.join("etc").join(name)));
            assert_eq!((is.0.len(), &is), (count, &was), "{name:?}");
        }
        let mut stream = Vec::new();
        pack(&from, &mut stream, &mut |note| panic!("{note}")).unwrap();
        let told = String::from_utf8_lossy(&stream).contains("TRAINYARD.acl");
        assert!(!told, "whoever unpacks it decides");
    }

    #[test]
    fn what_can_have_no_list_goes_without_and_nobody_may_more() {
        // Pipes have a mode and take no list.
        let (pipe, _other) = io::pipe().unwrap();
        let lists = AccessLists(vec![(0, list(1000)), (1, list(10))]);
        fchmod(&pipe, Mode::from_raw_mode(0o754)).unwrap();
        assert!(!lists.give(&pipe).unwrap());
        let mode = fstat(&pipe).unwrap().st_mode & 0o7777;
        assert_eq!(mode, 0o704, "the group has nothing, user 1000 had more than others");
        let denied = [&[2, 0, 0, 0][..], &[2, 0, 0, 0, 9, 0, 0, 0]].concat();
        assert_eq!(narrowed(0o100_775, &denied), 0o100_700, "user 9 is one of the group or of others now");
        assert_eq!(narrowed(0o755, b"short"), 0o755);
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let mut lists = AccessLists::default();
        lists.take(b"mtime", b"1.5").unwrap();
        assert_eq!(lists, AccessLists::default());
        for damaged in [&b"0"[..], b"zz", b"+1", b"\xff\xff"] {
            assert!(lists.take(b"TRAINYARD.acl.access", damaged).is_err(), "{damaged:?}");
        }
    }
}
