//! The file: a tar archive, compressed by Zstandard with a sum over all of it.
//!
//! `manifest.json` · `state.jsonl` · `subordinate-ids` · `etc/…` (what lies in `etc/trainyard`, with owners and modes)

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, Entry, EntryType, Header};

use super::swap::Drafts;
use super::{BackupError, LACKS, Told, failed};
use crate::config::Paths;
use crate::ids::Timestamp;
use crate::store::{Batch, copy};
use crate::sys::file::{Durability, optional, write_whole};
use crate::transfer::{self, Counted, Tree};

/// The format that is written; older ones are read.
const FORMAT: u32 = 1;
/// Zstandard's own default: more costs time and saves little.
const LEVEL: i32 = 3;
/// Largest member that is read into memory, bytes.
const SMALL_MAX: u64 = 16 << 20;

/// Largest file of `jobs.d` that is taken, bytes; job files are far smaller.
const JOB_FILE_MAX: u64 = 16 << 20;
/// Most that is taken of one workspace's directory there, bytes.
const WORKSPACE_MAX: u64 = 256 << 20;
/// What an entry takes beside its content, bytes.
const ENTRY: u64 = 1024;
/// So much of what is left out is named.
const NAMED_MAX: usize = 20;

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

pub(super) fn write(
    paths: &Paths,
    state: &File,
    out: &File,
    now: Timestamp,
    told: Told<'_>,
) -> Result<Vec<String>, BackupError> {
    let writing = |error| failed("write", Path::new("the backup"))(error);
    let mut encoder = zstd::Encoder::new(BufWriter::new(Counted::new(out, told)), LEVEL).map_err(writing)?;
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
    let (mut room, mut left_out) = (Room::default(), LeftOut::default());
    transfer::append(
        &mut builder,
        &paths.config_dir(),
        Path::new("etc"),
        &mut |member, status| room.admits(member, status),
        &mut |note| left_out.add(note),
    )?;
    let encoder = builder.into_inner().map_err(writing)?;
    encoder.finish().and_then(|mut buffer| buffer.flush()).map_err(writing)?;
    Ok(left_out.told())
}

/// Who may write job files must not fill a disk with what is backed up of them: sparse files are as long as they like to be. What
/// root alone writes is taken as it is.
#[derive(Default)]
struct Room {
    /// How much has been taken of each directory of a workspace that root has made; under no name, of all else in `jobs.d`.
    taken: BTreeMap<OsString, u64>,
}

impl Room {
    fn admits(&mut self, member: &Path, status: &Metadata) -> bool {
        let Ok(inside) = member.strip_prefix("etc/jobs.d") else { return true };
        let mut parts = inside.components().map(|part| part.as_os_str());
        match (parts.next(), parts.next()) {
            (Some(workspace), None) if status.is_dir() && status.uid() == 0 => {
                self.taken.insert(workspace.to_owned(), 0);
                true
            }
            (Some(workspace), Some(_)) if self.taken.contains_key(workspace) => self.has_room(workspace, status),
            (Some(_), _) => self.has_room("".as_ref(), status),
            (None, _) => true,
        }
    }

    fn has_room(&mut self, workspace: &OsStr, status: &Metadata) -> bool {
        let length = if status.is_file() { status.len() } else { 0 };
        let taken = self.taken.entry(workspace.to_owned()).or_default();
        let then = taken.saturating_add(length).saturating_add(ENTRY);
        let has_room = length <= JOB_FILE_MAX && then <= WORKSPACE_MAX;
        if has_room {
            *taken = then;
        }
        has_room
    }
}

/// What is not in it, one line each, as far as that is told.
#[derive(Default)]
struct LeftOut {
    notes: Vec<String>,
    more: u64,
}

impl LeftOut {
    fn add(&mut self, note: String) {
        match self.notes.len() < NAMED_MAX {
            true => self.notes.push(note),
            false => self.more += 1,
        }
    }

    fn told(mut self) -> Vec<String> {
        if self.more > 0 {
            self.notes.push(format!("and {} more like these", self.more));
        }
        self.notes
    }
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
    /// What has come without its access lists, one line each, as far as that is told.
    pub(super) without_lists: Vec<String>,
}

/// Reads all of the backup, its files into `drafts`.
pub(super) fn read(from: &Path, drafts: &Drafts, told: Told<'_>) -> Result<Content, BackupError> {
    let damaged = |what: String| BackupError::Damaged { path: from.to_owned(), what };
    let broken = |error: io::Error| damaged(error.to_string());
    let file = File::open(from).map_err(failed("open", from))?;
    let mut archive = Archive::new(zstd::Decoder::new(Counted::new(file, told)).map_err(broken)?);
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
    let mut without_lists = LeftOut::default();
    for path in tree.finish()? {
        // Where it will be.
        let place = drafts.config().with_file_name("").join(path);
        without_lists.add(format!(
            "{} has come without its access list (setfacl): the file system here has none; look who may use it",
            place.display()
        ));
    }
    match (manifest, state, has_config) {
        (Some(manifest), Some(state), true) => Ok(Content { manifest, state, without_lists: without_lists.told() }),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_job_files_take_the_room_of_others_and_what_is_named_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let status = |name: &str, length: u64| {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_len(length).unwrap();
            file.metadata().unwrap()
        };
        // Root's, whoever runs this.
        let (directory, large) = (Path::new("/").metadata().unwrap(), status("large", JOB_FILE_MAX));
        let (small, huge) = (status("small", 9), status("huge", JOB_FILE_MAX + 1));
        let mut room = Room::default();
        let mut admits = |member: &str, status: &Metadata| room.admits(Path::new(member), status);
        assert!(admits("etc/jobs.d", &directory) && admits("etc/jobs.d/lab", &directory));
        assert!(!admits("etc/jobs.d/lab/huge.toml", &huge) && !admits("etc/jobs.d/huge.toml", &huge));
        let taken = (0..60).filter(|number| admits(&format!("etc/jobs.d/lab/{number}.toml"), &large)).count();
        assert_eq!(taken, 15, "as much as one workspace may have");
        assert!(admits("etc/jobs.d/a.toml", &large) && admits("etc/jobs.d/vision", &directory));
        assert!(admits("etc/jobs.d/vision/a.toml", &large) && !admits("etc/jobs.d/lab/z.toml", &large));
        // Many names alone are bounded as well.
        let names = (0..1_000_000).take_while(|number| admits(&format!("etc/jobs.d/vision/{number}"), &small)).count();
        assert!((200_000..1_000_000).contains(&names), "{names}");
        // Root's own.
        assert!(admits("etc/trainyard.toml", &huge) && admits("etc/secrets/x", &huge));
        let mut left_out = LeftOut::default();
        (0..50).for_each(|number| left_out.add(number.to_string()));
        let told = left_out.told();
        assert_eq!((told.len(), told[19].as_str(), told[20].as_str()), (21, "19", "and 30 more like these"));
    }
}
