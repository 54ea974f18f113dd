//! Unpacks one layer of an OCI image into an empty directory, in the form that overlayfs reads.
//!
//! ```text
//! blob ─ Hashing ─ decompress ─ ReadAhead ┃ Hashing ─ Input ─ Archive ─ Writer ─ Layer ─ files
//!        digest                 thread ┃ diff id
//! ```
//! Called by whoever pulls images, once a layer; the caller makes the directory, verifies both sums after
//! [`Hashing::finish`], and throws the directory away when anything fails. Archives are hostile: nothing outside the
//! directory is reached whatever is in them, memory and disk stay within limits, and nothing panics.
//!
//! Never does: read other layers, run anything, look up users by name, or believe a header.

mod archive;
mod error;
mod header;
mod input;
mod layer;
mod name;
mod pax;
mod remembered;
mod skipped;
mod sparse;
mod stream;
mod write;

use std::io::Read;
use std::path::{Path, PathBuf};

use archive::Archive;
use input::Input;
use layer::Layer;
use write::Writer;

pub use error::UnpackError;
pub use stream::{Compression, Hashing, ReadAhead, Sum, Tally, decompress};

/// What a layer may have at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of the content of all files, holes included.
    pub bytes: u64,
    pub entries: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Members of the archive, white-outs and what was skipped included.
    pub entries: u64,
    /// Of the content of all files, holes included.
    pub bytes: u64,
    /// Directories that were made since something lies in them, though the archive has no entry for them: `0755`, root's.
    /// Relative to the layer, sorted. What they look like is for a lower layer to say.
    pub implied_directories: Vec<PathBuf>,
    /// The layer hides all layers below it. Overlayfs does not look at this mark on a root: leave them out.
    pub opaque_root: bool,
    /// What was left out and why, for people; at most 65 lines.
    pub skipped: Vec<String>,
}

/// Unpacks the archive into `into`, an empty directory that nobody else uses, and leaves what follows the archive unread.
///
/// Needs root. White-outs become character devices 0:0, opaque directories get `trusted.overlay.opaque`. On an error the
/// directory holds a part of the layer.
pub fn unpack(mut tar: impl Read, into: &Path, limits: &Limits) -> Result<Unpacked, UnpackError> {
    let layer = Layer::open(into);
    let layer = layer.map_err(|errno| UnpackError::Target { path: into.to_owned(), source: errno.into() })?;
    let mut writer = Writer::new(layer);
    let mut archive = Archive::new(Input::new(&mut tar), limits);
    while let Some(member) = archive.next()? {
        writer.put(&member, &mut archive)?;
    }
    let finished = writer.finish()?;
    Ok(Unpacked {
        entries: archive.entries(),
        bytes: archive.bytes(),
        implied_directories: finished.implied_directories,
        opaque_root: finished.opaque_root,
        skipped: finished.skipped,
    })
}
