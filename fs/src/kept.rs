//! What one process of a mount keeps for the next one, which goes on with the same connection to the kernel.
//!
//! The kernel goes on with the numbers that it was told: of entries, of open files and directories, of backing files. So
//! all of them are kept, with the descriptors that they stand for, which the next program inherits by their numbers: what
//! was removed while it is open, and positions, locks and append modes, need not be made again.
//!
//! ```text
//! 8 bytes "TYMOUNT\n" | version, 4 bytes, little endian | `Kept` as postcard writes it | `Vec<KeptPayer>` likewise |
//! numbers of the files that are written past the kernel's cache | of those that are frozen | what may be mapped, likewise
//! ```
//! What comes last may be missing, and a reader leaves alone what it does not know there: so programs of before and after it
//! go on with each other.
//! A version that is not ours is not read: [`VERSION`] rises with any change of these types, and of what was agreed with the
//! kernel that the handlers count on.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::attr::Kind;
use crate::caller::Caller;
use crate::inode::Identity;
use crate::sys;

const MAGIC: &[u8; 8] = b"TYMOUNT\n";
/// Of the state that is written here.
pub const VERSION: u32 = 1;
/// What a program says of the states that it reads, for one that is to be followed by it.
pub const STATES_READ: &str = "states of a mount: 1\n";

#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    #[error("cannot read what the process before has kept")]
    Read(#[source] io::Error),
    #[error("what the process before has kept is not the state of a mount")]
    Foreign,
    #[error("the process before has kept version {found} of the state, this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("what the process before has kept cannot be understood")]
    Garbled(#[source] postcard::Error),
    #[error("descriptor {number} was not inherited")]
    Descriptor {
        number: RawFd,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// The connection.
    pub device: RawFd,
    /// Device number of the mount.
    pub place: String,
    pub agreed: Agreed,
    pub modes: Vec<KeptMode>,
    pub ops: KeptOps,
    #[serde(skip)]
    pub payers: Vec<KeptPayer>,
    /// Changed by nobody any more when they have no name.
    #[serde(skip)]
    pub frozen: Vec<u64>,
    /// Perhaps mapped past the process.
    #[serde(skip)]
    pub mapped: Vec<(u64, Mapping)>,
}

/// How a file may be mapped; to be written is more than to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Mapping {
    Read,
    Written,
}

/// Who pays for what has lost its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptPayer {
    pub ino: u64,
    /// Where it was.
    pub place: Vec<u8>,
    /// What is paid for it, if that was its last name.
    pub bytes: Option<i64>,
}

/// What numbers stand for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptOps {
    pub inodes: KeptInodes,
    /// What has lost its name, and is known.
    pub orphans: Vec<(u64, RawFd)>,
    pub files: KeptHandles<KeptFile>,
    pub directories: KeptHandles<KeptDirectory>,
}

/// What was agreed with the kernel when the mount was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agreed {
    /// It reads and writes backing files by itself.
    pub passthrough: bool,
    /// It does not ask for `security.capability` before every write.
    pub keeps_xattrs: bool,
    /// It asks again, when told to, what was asked and not answered.
    pub asks_again: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptInodes {
    pub next: u64,
    pub nodes: Vec<KeptNode>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptNode {
    pub ino: u64,
    pub identity: Identity,
    pub lookups: u64,
    /// Parents and names, the one that was looked up last at the end.
    pub places: Vec<(u64, Vec<u8>)>,
    /// Other names of the same file lead here.
    pub shared: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptHandles<T> {
    pub next: u64,
    pub open: Vec<(u64, T)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptFile {
    pub ino: u64,
    pub read_to: u64,
    pub source: KeptSource,
    #[serde(skip)]
    pub past_cache: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum KeptSource {
    Stored { file: RawFd, append: Option<RawFd> },
    Generated { place: Vec<u8> },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptDirectory {
    pub ino: u64,
    pub by: Caller,
    pub begun: bool,
    pub rows: Vec<(Vec<u8>, Kind, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptMode {
    pub ino: u64,
    pub backing: Option<u32>,
    pub handles: u64,
}

impl Kept {
    pub(crate) fn write(&self, file: &File) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        file.write_all(MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        postcard::to_io(self, &mut file).map_err(io::Error::other)?;
        postcard::to_io(&self.payers, &mut file).map_err(io::Error::other)?;
        let files = self.ops.files.open.iter().filter(|(_, file)| file.past_cache);
        let past_cache: BTreeSet<u64> = files.map(|(fh, _)| *fh).collect();
        postcard::to_io(&past_cache, &mut file).map_err(io::Error::other)?;
        postcard::to_io(&self.frozen, &mut file).map_err(io::Error::other)?;
        postcard::to_io(&self.mapped, &mut file).map_err(io::Error::other)?.flush()
    }

    fn read(mut file: File) -> Result<Self, KeptError> {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(KeptError::Read)?;
        let (version, kept) =
            bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk()).ok_or(KeptError::Foreign)?;
        match u32::from_le_bytes(*version) {
            VERSION => Self::understand(kept).map_err(KeptError::Garbled),
            found => Err(KeptError::Version { found }),
        }
    }

    fn understand(bytes: &[u8]) -> Result<Self, postcard::Error> {
        let (mut kept, mut rest) = postcard::take_from_bytes::<Self>(bytes)?;
        if !rest.is_empty() {
            (kept.payers, rest) = postcard::take_from_bytes(rest)?;
        }
        // Of a program that did not tell all may be: what is on disk twice is no harm.
        let mut past_cache: Option<BTreeSet<u64>> = None;
        if !rest.is_empty() {
            let (told, more) = postcard::take_from_bytes(rest)?;
            (past_cache, rest) = (Some(told), more);
        }
        if !rest.is_empty() {
            (kept.frozen, rest) = postcard::take_from_bytes(rest)?;
        }
        if !rest.is_empty() {
            kept.mapped = postcard::from_bytes(rest)?;
        }
        for (fh, file) in &mut kept.ops.files.open {
            file.past_cache = past_cache.as_ref().is_none_or(|past_cache| past_cache.contains(fh));
        }
        Ok(kept)
    }

    /// Those that the next program must inherit.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let files = self.ops.files.open.iter().flat_map(|(_, file)| match file.source {
            KeptSource::Stored { file, append } => vec![Some(file), append],
            KeptSource::Generated { .. } => Vec::new(),
        });
        let orphans = self.ops.orphans.iter().map(|(_, pin)| Some(*pin));
        std::iter::once(Some(self.device)).chain(files).chain(orphans).flatten().collect()
    }
}

/// What the process before has kept, with all that was inherited from it. Dropping it ends the connection.
#[derive(Debug)]
pub struct Handed {
    pub(crate) kept: Kept,
    pub(crate) inherited: Inherited,
}

/// Descriptors of the process before, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Inherited(HashMap<RawFd, OwnedFd>);

impl Inherited {
    /// Each is there once.
    pub(crate) fn take(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        self.0.remove(&number).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Handed {
    /// Reads what [`crate::Paused::keep`] has written, in the program that was executed then. On an error the descriptors stay
    /// open, and with them a connection that nobody serves: the process must end.
    pub fn read(file: File) -> Result<Self, KeptError> {
        let kept = Kept::read(file)?;
        let mut inherited = Inherited::default();
        for number in kept.descriptors() {
            let taken = sys::take_inherited(number).map_err(|source| KeptError::Descriptor { number, source })?;
            inherited.0.insert(number, taken);
        }
        Ok(Self { kept, inherited })
    }

    /// Entries that the kernel knows, and files that are open.
    pub fn counts(&self) -> (usize, usize) {
        (self.kept.ops.inodes.nodes.len(), self.kept.ops.files.open.len())
    }
}

#[cfg(test)]
impl Inherited {
    /// What the next process would inherit, opened once more in this one.
    pub(crate) fn reopened(kept: &KeptOps) -> Self {
        use std::os::unix::fs::OpenOptionsExt;
        let again = |number: RawFd, flags: nix::fcntl::OFlag| {
            let path = format!("/proc/self/fd/{number}");
            let access = flags & nix::fcntl::OFlag::O_ACCMODE;
            let writes = access == nix::fcntl::OFlag::O_RDWR;
            let file = File::options().read(true).write(writes).custom_flags(flags.bits()).open(path).unwrap();
            (number, OwnedFd::from(file))
        };
        let orphans = kept.orphans.iter().map(|(_, number)| again(*number, nix::fcntl::OFlag::O_PATH));
        let files = kept.files.open.iter().filter_map(|(_, file)| match file.source {
            KeptSource::Stored { file, .. } => Some(again(file, nix::fcntl::OFlag::O_RDWR)),
            KeptSource::Generated { .. } => None,
        });
        Self(orphans.chain(files).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(payers: Vec<KeptPayer>) -> Kept {
        let none = || KeptHandles { next: 1, open: Vec::new() };
        let inodes = KeptInodes { next: 2, nodes: Vec::new() };
        let ops = KeptOps {
            inodes,
            orphans: Vec::new(),
            files: none(),
            directories: KeptHandles { next: 7, open: Vec::new() },
        };
        Kept {
            device: 9,
            place: "0:77".to_owned(),
            agreed: Agreed::default(),
            modes: Vec::new(),
            ops,
            payers,
            frozen: vec![3],
            mapped: vec![(4, Mapping::Written)],
        }
    }

    #[test]
    fn what_is_written_past_the_cache_is_kept_and_taken_for_granted_where_that_was_not_told() {
        let file = tempfile::tempfile().unwrap();
        let mut written = kept(Vec::new());
        let open = |past_cache| KeptFile {
            ino: 5,
            read_to: 0,
            source: KeptSource::Generated { place: Vec::new() },
            past_cache,
        };
        written.ops.files.open = vec![(3, open(true)), (4, open(false))];
        written.write(&file).unwrap();
        let read = || -> Vec<bool> {
            let read = Kept::read(file.try_clone().unwrap()).unwrap();
            read.ops.files.open.iter().map(|(_, file)| file.past_cache).collect()
        };
        assert_eq!(read(), [true, false]);
        let of_before = postcard::to_allocvec(&written).unwrap();
        let payers = postcard::to_allocvec(&written.payers).unwrap();
        file.set_len((MAGIC.len() + 4 + of_before.len() + payers.len()) as u64).unwrap();
        assert_eq!(read(), [true, true]);
    }

    #[test]
    fn who_pays_is_read_where_it_was_told_and_left_alone_by_whoever_does_not_know_it() {
        let payers = vec![KeptPayer { ino: 5, place: b"default/code/f".to_vec(), bytes: Some(4096) }];
        let file = tempfile::tempfile().unwrap();
        let written = kept(payers.clone());
        written.write(&file).unwrap();
        let length = file.metadata().unwrap().len();
        let read = Kept::read(file.try_clone().unwrap()).unwrap();
        assert_eq!((read.payers, read.frozen, read.ops.directories.next), (payers, vec![3], 7));
        assert_eq!(read.mapped, [(4, Mapping::Written)]);
        // As a program of before has written it.
        let of_before = postcard::to_allocvec(&written).unwrap();
        let head = (MAGIC.len() + 4 + of_before.len()) as u64;
        assert!(head < length);
        file.set_len(head).unwrap();
        let read = Kept::read(file).unwrap();
        assert_eq!((read.payers.len(), read.device, read.ops.directories.next), (0, 9, 7));
        // As a program of before reads it.
        let all = [of_before, postcard::to_allocvec(&kept(Vec::new()).payers).unwrap()].concat();
        assert!(postcard::from_bytes::<Kept>(&all).is_ok());
    }
}
