//! What one process of a mount keeps for the next one, which goes on with the same connection to the kernel.
//!
//! The kernel goes on with the numbers that it was told: of entries, of open files and directories, of backing files. So
//! all of them are kept, with the descriptors that they stand for, which the next program inherits by their numbers: what
//! was removed while it is open, and positions, locks and append modes, need not be made again.
//!
//! ```text
//! 8 bytes "TYMOUNT\n" | version, 4 bytes, little endian | `Kept` as postcard writes it
//! ```
//! A version that is not ours is not read: [`VERSION`] rises with any change of these types, and of what was agreed with the
//! kernel that the handlers count on.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::attr::Kind;
use crate::caller::Caller;
use crate::inode::Identity;
use crate::sys;

const MAGIC: &[u8; 8] = b"TYMOUNT\n";
const VERSION: u32 = 1;

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
        postcard::to_io(self, &mut file).map_err(io::Error::other)?.flush()?;
        Ok(())
    }

    fn read(mut file: File) -> Result<Self, KeptError> {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(KeptError::Read)?;
        let (version, kept) =
            bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk()).ok_or(KeptError::Foreign)?;
        match u32::from_le_bytes(*version) {
            VERSION => postcard::from_bytes(kept).map_err(KeptError::Garbled),
            found => Err(KeptError::Version { found }),
        }
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
