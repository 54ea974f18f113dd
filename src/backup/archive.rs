//! The file: a tar archive, compressed by Zstandard with a sum over all of it.
//!
//! `manifest.json` · `state.jsonl` · `subordinate-ids` · `etc/…` (what lies in `etc/trainyard`, with owners and modes)

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, Entry, EntryType, Header};

use super::swap::Drafts;
use super::{BackupError, LACKS, failed};
use crate::config::Paths;
use crate::ids::Timestamp;
use crate::store::{Batch, copy};
use crate::sys::file::{Durability, optional, write_whole};
use crate::transfer::{self, Tree};

/// The format that is written; older ones are read.
const FORMAT: u32 = 1;
/// Zstandard's own default: more costs time and saves little.
const LEVEL: i32 = 3;
/// Largest member that is read into memory, bytes.
const SMALL_MAX: u64 = 16 << 20;

/// What a backup says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The version of Trainyard that took it.
    pub program: String,
    pub taken: Timestamp,
    pub host: String,
    /// The installation's directory.
    pub root: String,
    /// What is not in it, for people.
    pub lacks: String,
}

pub(super) fn write(paths: &Paths, state: &File, out: &File, now: Timestamp) -> Result<Vec<String>, BackupError> {
    let writing = |error| failed("write", Path::new("the backup"))(error);
    let mut encoder = zstd::Encoder::new(BufWriter::new(out), LEVEL).map_err(writing)?;
    encoder.include_checksum(true).map_err(writing)?;
    let mut builder = Builder::new(encoder);
    let manifest = Manifest {
        format: FORMAT,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        taken: now,
        host: nix::unistd::gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned()),
        root: paths.root().display().to_string(),
        lacks: LACKS.to_owned(),
    };
    let manifest = serde_json::to_vec_pretty(&manifest).map_err(|error| writing(error.into()))?;
    member(&mut builder, "manifest.json", manifest.len() as u64, &*manifest, now).map_err(writing)?;
    let size = state.metadata().map_err(writing)?.len();
    member(&mut builder, "state.jsonl", size, BufReader::new(state), now).map_err(writing)?;
    let subordinates = paths.subordinate_ids();
    if let Some(text) = optional(std::fs::read(&subordinates)).map_err(failed("read", &subordinates))? {
        member(&mut builder, "subordinate-ids", text.len() as u64, &*text, now).map_err(writing)?;
    }
    let mut left_out = Vec::new();
    transfer::append(&mut builder, &paths.config_dir(), Path::new("etc"), &mut |note| left_out.push(note))?;
    let encoder = builder.into_inner().map_err(writing)?;
    encoder.finish().and_then(|mut buffer| buffer.flush()).map_err(writing)?;
    Ok(left_out)
}

fn member(
    builder: &mut Builder<impl Write>,
    name: &str,
    size: u64,
    content: impl Read,
    now: Timestamp,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o600);
    header.set_mtime(now.0 / 1000);
    header.set_size(size);
    builder.append_data(&mut header, name, content)
}

/// A backup that was read to its end.
pub(super) struct Content {
    pub(super) manifest: Manifest,
    pub(super) state: Batch,
}

/// Reads all of the backup, its files into `drafts`.
pub(super) fn read(from: &Path, drafts: &Drafts) -> Result<Content, BackupError> {
    let damaged = |what: String| BackupError::Damaged { path: from.to_owned(), what };
    let broken = |error: io::Error| damaged(error.to_string());
    let file = File::open(from).map_err(failed("open", from))?;
    let mut archive = Archive::new(zstd::Decoder::new(file).map_err(broken)?);
    let mut tree = Tree::below(&drafts.config())?;
    let (mut manifest, mut state, mut has_config) = (None, None, false);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        match path.to_str() {
            Some("manifest.json") => manifest = Some(manifest_in(from, &small(&mut entry).map_err(broken)?)?),
            // It says what the rest means.
            _ if manifest.is_none() => return Err(damaged("it does not begin with its manifest".to_owned())),
            Some("state.jsonl") => state = Some(copy::read(BufReader::new(&mut entry))?),
            Some("subordinate-ids") => {
                let text = small(&mut entry).map_err(broken)?;
                let path = drafts.subordinates();
                write_whole(&path, &text, 0o644, Durability::Machine).map_err(failed("write", &path))?;
            }
            _ => {
                let mut parts = path.components();
                if parts.next() != Some(Component::Normal("etc".as_ref())) {
                    return Err(damaged(format!("{:?} has no place in it", path.display())));
                }
                // The directory itself is below its draft, so that its owner and mode are put on it as on all others.
                has_config |= tree.put(&Path::new("trainyard").join(parts.as_path()), &mut entry).map(|()| true)?;
            }
        }
    }
    // Its sum comes last.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(broken)?;
    tree.finish()?;
    match (manifest, state, has_config) {
        (Some(manifest), Some(state), true) => Ok(Content { manifest, state }),
        _ => Err(damaged("a part of it is missing".to_owned())),
    }
}

fn small(entry: &mut Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(SMALL_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn manifest_in(from: &Path, bytes: &[u8]) -> Result<Manifest, BackupError> {
    #[derive(Deserialize)]
    struct FormatOnly {
        format: u32,
    }
    let damaged = |error: serde_json::Error| BackupError::Damaged { path: from.to_owned(), what: error.to_string() };
    let FormatOnly { format } = serde_json::from_slice(bytes).map_err(damaged)?;
    if format > FORMAT {
        return Err(BackupError::Newer { path: from.to_owned(), found: format, known: FORMAT });
    }
    serde_json::from_slice(bytes).map_err(damaged)
}
