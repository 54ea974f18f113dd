//! Names of images: whose they are and what they stand for.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::registry::Reference;
use crate::ids::{Timestamp, WorkspaceName};
use crate::sys::file::{Durability, create_dir, optional, remove_if_there, remove_temporaries, write_whole};
use crate::sys::process::name_of;

/// Who sees an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One workspace.
    Mine { workspace: String },
    /// Every workspace; put there by a user.
    Public,
    /// Every workspace; put there by the administrator.
    Preset,
}

impl Kind {
    pub fn is_seen_in(&self, workspace: &str) -> bool {
        match self {
            Kind::Mine { workspace: own } => own == workspace,
            Kind::Public | Kind::Preset => true,
        }
    }

    pub fn is_mine(&self) -> bool {
        matches!(self, Kind::Mine { .. })
    }

    fn directory(&self) -> String {
        match self {
            Kind::Mine { workspace } => format!("workspace-{}", file_name(workspace)),
            Kind::Public => "public".to_owned(),
            Kind::Preset => "preset".to_owned(),
        }
    }
}

/// One name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    pub name: String,
    pub kind: Kind,
    pub digest: Digest,
    /// Who gave it.
    pub uid: u32,
    /// It came from the registry by this name, so that it is what the name says, whoever had it brought.
    #[serde(default)]
    pub pulled: bool,
    pub at: Timestamp,
}

impl NameRecord {
    /// Why the jobs of others do not find it, and what helps.
    pub fn passed_over(&self) -> String {
        format!(
            "the {} image {} of {} is passed over: the name does not begin with a workspace in which they may submit jobs; they can \
             give it such a name, or root can give this one",
            if self.kind.is_mine() { "workspace's" } else { "public" },
            self.name,
            name_of(self.uid)
        )
    }

    /// Whether it is what user `uid` may mean by its name, whatever others may do.
    pub(super) fn is_vouched_for(&self, uid: u32) -> bool {
        self.pulled || [0, uid].contains(&self.uid)
    }
}

#[derive(Debug)]
pub(super) struct Names(PathBuf);

impl Names {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    fn path(&self, kind: &Kind, name: &str) -> PathBuf {
        self.0.join(kind.directory()).join(format!("{}.json", file_name(name)))
    }

    pub(super) fn get(&self, kind: &Kind, name: &str) -> io::Result<Option<NameRecord>> {
        read(&self.path(kind, name))
    }

    /// Removes what a killed daemon was just writing.
    pub(super) fn tidy(&self) -> io::Result<()> {
        fs::read_dir(&self.0)?.try_for_each(|kind| remove_temporaries(&kind?.path()))
    }

    /// Every name with the time of its last use.
    pub(super) fn all(&self) -> io::Result<Vec<(NameRecord, Timestamp)>> {
        let mut out = Vec::new();
        for kind in fs::read_dir(&self.0)? {
            for entry in fs::read_dir(kind?.path())? {
                let entry = entry?;
                // A name that is just being written.
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                // It may go meanwhile.
                if let Some(record) = read(&entry.path())?
                    && let Some(used) = optional(used(&entry.path()))?
                {
                    out.push((record, used));
                }
            }
        }
        out.sort_by(|(a, _), (b, _)| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        Ok(out)
    }

    /// A name that is given again to the same image has been used; it stays as old as it is, and its giver's. But what root
    /// gives is root's from then on, and what a registry has given by it is known to be the registry's.
    pub(super) fn write(&self, record: &NameRecord) -> io::Result<()> {
        let there = self.get(&record.kind, &record.name)?.filter(|there| there.digest == record.digest);
        let record = &match there {
            Some(there) if record.uid == 0 && there.uid != 0 => {
                NameRecord { uid: 0, pulled: there.pulled || record.pulled, ..there }
            }
            Some(there) if record.pulled && !there.pulled => NameRecord { pulled: true, ..there },
            Some(_) => return self.touch(record),
            None => record.clone(),
        };
        let path = self.path(&record.kind, &record.name);
        create_dir(path.parent().unwrap_or(&self.0), 0o700)?;
        let bytes = serde_json::to_vec_pretty(record)?;
        write_whole(&path, &bytes, 0o600, Durability::Machine)
    }

    pub(super) fn remove(&self, record: &NameRecord) -> io::Result<()> {
        remove_if_there(&self.path(&record.kind, &record.name))
    }

    pub(super) fn touch(&self, record: &NameRecord) -> io::Result<()> {
        File::open(self.path(&record.kind, &record.name))?.set_modified(SystemTime::now())
    }
}

/// The workspace with which a name begins that has no registry: `vision` of `vision/torch:2`.
pub(super) fn workspace_of(name: &str, default_registry: &str) -> Option<WorkspaceName> {
    let of = |name: &str| Reference::parse(name, default_registry).ok();
    let (named, plain) = (of(name)?, of("x")?);
    let (first, _) = named.repository().split_once('/')?;
    // Docker's own images lie in `library`, and have no such part as people write them.
    let is_plain = plain.repository().strip_suffix("/x") == Some(first);
    if named.registry() != plain.registry() || is_plain { None } else { first.parse().ok() }
}

fn read(path: &Path) -> io::Result<Option<NameRecord>> {
    match fs::read(path) {
        // Half a file cannot be there; what an older version wrote otherwise is as good as absent.
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn used(path: &Path) -> io::Result<Timestamp> {
    let modified = fs::metadata(path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Timestamp(u64::try_from(modified.as_millis()).unwrap_or(u64::MAX)))
}

/// A name as one part of a path: what is not a plain letter or digit is written as its number. Long ones are cut and
/// told apart by their digest.
fn file_name(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let escape = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") };
    let full: String = name.bytes().map(escape).collect();
    match full.get(..150) {
        Some(start) => format!("{start}-{}", Digest::of(name.as_bytes()).short()),
        None => full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, kind: Kind) -> NameRecord {
        NameRecord {
            name: name.to_owned(),
            digest: Digest::of(name.as_bytes()),
            kind,
            uid: 0,
            pulled: false,
            at: Timestamp(1),
        }
    }

    #[test]
    fn each_kind_has_names_of_its_own_and_what_is_being_written_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(dir.path().to_owned());
        let mine = Kind::Mine { workspace: "vision".into() };
        for (name, kind) in [("torch:2", mine.clone()), ("torch:2", Kind::Preset), ("only/mine:1", mine.clone())] {
            names.write(&record(name, kind)).unwrap();
        }
        fs::copy(names.path(&Kind::Preset, "torch:2"), dir.path().join("preset/.torch.1-2.tmp")).unwrap();
        let has = |kind: &Kind, name| names.get(kind, name).unwrap().is_some_and(|found| found.kind == *kind);
        assert!(has(&mine, "torch:2") && has(&Kind::Preset, "torch:2") && has(&mine, "only/mine:1"));
        assert!(!has(&Kind::Public, "torch:2") && !has(&Kind::Mine { workspace: "nlp".into() }, "only/mine:1"));
        assert_eq!(names.all().unwrap().len(), 3);
    }

    #[test]
    fn a_public_name_begins_with_a_workspace_as_people_write_it() {
        let of = |name: &str, registry: &str| workspace_of(name, registry).map(|workspace| workspace.to_string());
        let is = |name: &str, workspace: &str| assert_eq!(of(name, "docker.io").as_deref(), Some(workspace), "{name}");
        is("vision/torch:2", "vision");
        is("docker.io/vision/lab/torch:2", "vision");
        for name in ["python:3.11", "library/python:3.11", "docker.io/library/python", "ghcr.io/vision/torch:2", "a b"]
        {
            assert_eq!(of(name, "docker.io"), None, "{name}");
        }
        // Of a registry that has no such part.
        assert_eq!(of("python:3.11", "registry.lab:5000"), None);
        assert_eq!(of("registry.lab:5000/vision/torch:2", "registry.lab:5000").as_deref(), Some("vision"));
        assert_eq!(of("docker.io/vision/torch:2", "registry.lab:5000"), None);
    }

    #[test]
    fn file_names_are_one_plain_part_each() {
        let long = "x/".repeat(200);
        for name in ["..", "../../etc/passwd", "a/b:c@sha256:0", "", &long] {
            let file = file_name(name);
            assert!(!file.contains('/') && file != ".." && file.len() < 200, "{file}");
        }
        assert_ne!(file_name(&long), file_name(&format!("{long}y")));
    }
}
