#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]
//! Random operations on a real kernel mount against a model in memory. Needs root and /dev/fuse; without them it says
//! `SKIPPED`.

#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use proptest::prelude::*;
use support::Bench;

/// Few names, so that they meet.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Debug, Clone)]
enum Op {
    Create(String),
    Write {
        path: String,
        at: u16,
        length: u16,
        byte: u8,
    },
    Append {
        path: String,
        length: u16,
        byte: u8,
    },
    Truncate {
        path: String,
        length: u16,
    },
    Remove(String),
    MakeDirectory(String),
    RemoveDirectory(String),
    Rename(String, String),
    Link(String, String),
    /// Opens a file and keeps it, whatever becomes of its name.
    Hold(String),
    WriteHeld {
        at: u16,
        byte: u8,
    },
}

fn path() -> impl Strategy<Value = String> {
    let name = || proptest::sample::select(&NAMES[..]);
    prop_oneof![
        name().prop_map(str::to_owned),
        (name(), name()).prop_map(|(one, two)| format!("{one}/{two}")),
        (name(), name(), name()).prop_map(|(one, two, three)| format!("{one}/{two}/{three}")),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let at = || 0..20_000u16;
    prop_oneof![
        3 => path().prop_map(Op::Create),
        3 => (path(), at(), at(), any::<u8>()).prop_map(|(path, at, length, byte)| Op::Write { path, at, length, byte }),
        2 => (path(), at(), any::<u8>()).prop_map(|(path, length, byte)| Op::Append { path, length, byte }),
        2 => (path(), at()).prop_map(|(path, length)| Op::Truncate { path, length }),
        2 => path().prop_map(Op::Remove),
        3 => path().prop_map(Op::MakeDirectory),
        1 => path().prop_map(Op::RemoveDirectory),
        3 => (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => (path(), path()).prop_map(|(from, to)| Op::Link(from, to)),
        1 => path().prop_map(Op::Hold),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Op::WriteHeld { at, byte }),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Directory,
    File(usize),
}

/// What should be there; a path's parts are separated by `/`, and the top is not named.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, Node>,
    /// By their numbers; a file may have several names, or none any more.
    files: Vec<Vec<u8>>,
    held: Option<usize>,
}

type Done = Result<(), Errno>;

impl Model {
    fn check_parent(&self, path: &str) -> Done {
        let mut above = String::new();
        for part in path.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev() {
            above = if above.is_empty() { part.to_owned() } else { format!("{above}/{part}") };
            match self.names.get(&above) {
                Some(Node::Directory) => {}
                Some(Node::File(_)) => return Err(Errno::ENOTDIR),
                None => return Err(Errno::ENOENT),
            }
        }
        Ok(())
    }

    fn node(&self, path: &str) -> Result<Node, Errno> {
        self.check_parent(path)?;
        self.names.get(path).copied().ok_or(Errno::ENOENT)
    }

    fn file(&self, path: &str) -> Result<usize, Errno> {
        match self.node(path)? {
            Node::File(number) => Ok(number),
            Node::Directory => Err(Errno::EISDIR),
        }
    }

    fn is_empty(&self, directory: &str) -> bool {
        !self.names.keys().any(|path| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')))
    }

    fn write(&mut self, number: usize, at: usize, bytes: &[u8]) {
        let file = &mut self.files[number];
        if file.len() < at + bytes.len() && !bytes.is_empty() {
            file.resize(at + bytes.len(), 0);
        }
        if !bytes.is_empty() {
            file[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn run(&mut self, op: &Op) -> Done {
        match op {
            Op::Create(path) => match self.node(path) {
                Ok(_) => Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {
                    self.check_parent(path)?;
                    self.files.push(Vec::new());
                    self.names.insert(path.clone(), Node::File(self.files.len() - 1));
                    Ok(())
                }
                Err(errno) => Err(errno),
            },
            Op::Write { path, at, length, byte } => {
                let number = self.file(path)?;
                self.write(number, usize::from(*at), &vec![*byte; usize::from(*length)]);
                Ok(())
            }
            Op::Append { path, length, byte } => {
                let number = self.file(path)?;
                let end = self.files[number].len();
                self.write(number, end, &vec![*byte; usize::from(*length)]);
                Ok(())
            }
            Op::Truncate { path, length } => {
                let number = self.file(path)?;
                self.files[number].resize(usize::from(*length), 0);
                Ok(())
            }
            Op::Remove(path) => {
                self.file(path)?;
                self.names.remove(path);
                Ok(())
            }
            Op::MakeDirectory(path) => match self.node(path) {
                Ok(_) => Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {
                    self.check_parent(path)?;
                    self.names.insert(path.clone(), Node::Directory);
                    Ok(())
                }
                Err(errno) => Err(errno),
            },
            Op::RemoveDirectory(path) => match self.node(path)? {
                Node::File(_) => Err(Errno::ENOTDIR),
                Node::Directory if !self.is_empty(path) => Err(Errno::ENOTEMPTY),
                Node::Directory => {
                    self.names.remove(path);
                    Ok(())
                }
            },
            Op::Rename(from, to) => self.rename(from, to),
            Op::Link(from, to) => {
                let node = self.node(from)?;
                self.check_parent(to)?;
                if self.names.contains_key(to) {
                    return Err(Errno::EEXIST);
                }
                if node == Node::Directory {
                    return Err(Errno::EPERM);
                }
                self.names.insert(to.clone(), node);
                Ok(())
            }
            Op::Hold(path) => {
                self.held = Some(self.file(path)?);
                Ok(())
            }
            Op::WriteHeld { at, byte } => {
                if let Some(number) = self.held {
                    self.write(number, usize::from(*at), &[*byte; 100]);
                }
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> Done {
        // The kernel finds both parents first, then looks at what lies within what.
        self.check_parent(from)?;
        self.check_parent(to)?;
        let node = self.names.get(from).copied();
        let within = |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
        let node = node.ok_or(Errno::ENOENT)?;
        if node == Node::Directory && within(from, to) {
            return Err(Errno::EINVAL);
        }
        if within(to, from) {
            return Err(Errno::ENOTEMPTY);
        }
        let there = self.names.get(to).copied();
        if from == to || (matches!(node, Node::File(_)) && there == Some(node)) {
            return Ok(());
        }
        match (node, there) {
            (Node::File(_), Some(Node::Directory)) => return Err(Errno::EISDIR),
            (Node::Directory, Some(Node::File(_))) => return Err(Errno::ENOTDIR),
            (Node::Directory, Some(Node::Directory)) if !self.is_empty(to) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let moved: Vec<String> =
            self.names.keys().filter(|path| *path == from || within(from, path)).cloned().collect();
        for path in moved {
            let node = self.names.remove(&path).unwrap();
            self.names.insert(format!("{to}{}", &path[from.len()..]), node);
        }
        Ok(())
    }

    /// Size and number of names of each file, and its content; by path.
    fn tree(&self) -> BTreeMap<String, Option<(usize, Vec<u8>)>> {
        let names = |number: usize| self.names.values().filter(|node| **node == Node::File(number)).count();
        let shown = |node: &Node| match node {
            Node::Directory => None,
            Node::File(number) => Some((names(*number), self.files[*number].clone())),
        };
        self.names.iter().map(|(path, node)| (path.clone(), shown(node))).collect()
    }
}

/// The mount.
struct Real {
    top: PathBuf,
    held: Option<File>,
}

impl Real {
    fn run(&mut self, op: &Op) -> io::Result<()> {
        let at = |path: &String| self.top.join(path);
        let writable = |path: &String| OpenOptions::new().write(true).open(at(path));
        match op {
            Op::Create(path) => File::create_new(at(path)).map(drop),
            Op::Write { path, at: offset, length, byte } => {
                writable(path)?.write_all_at(&vec![*byte; usize::from(*length)], u64::from(*offset))
            }
            Op::Append { path, length, byte } => {
                let mut file = OpenOptions::new().append(true).open(at(path))?;
                io::Write::write_all(&mut file, &vec![*byte; usize::from(*length)])
            }
            Op::Truncate { path, length } => writable(path)?.set_len(u64::from(*length)),
            Op::Remove(path) => fs::remove_file(at(path)),
            Op::MakeDirectory(path) => fs::create_dir(at(path)),
            Op::RemoveDirectory(path) => fs::remove_dir(at(path)),
            Op::Rename(from, to) => fs::rename(at(from), at(to)),
            Op::Link(from, to) => fs::hard_link(at(from), at(to)),
            Op::Hold(path) => {
                self.held = Some(writable(path)?);
                Ok(())
            }
            Op::WriteHeld { at, byte } => {
                self.held.as_ref().map_or(Ok(()), |file| file.write_all_at(&[*byte; 100], u64::from(*at)))
            }
        }
    }
}

fn tree(top: &Path) -> BTreeMap<String, Option<(usize, Vec<u8>)>> {
    let mut found = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                found.insert(name, None);
                open.push(path);
            } else {
                let content = fs::read(&path).unwrap();
                assert_eq!(metadata.len(), content.len() as u64, "{name}");
                found.insert(name, Some((metadata.nlink() as usize, content)));
            }
        }
    }
    found
}

#[test]
fn random_operations_do_what_a_model_does() {
    let Some(bench) = Bench::new("random_operations_do_what_a_model_does") else { return };
    let rounds = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(ops in proptest::collection::vec(op(), 1..80))| {
        let round = rounds.get() + 1;
        rounds.set(round);
        let (shown, stored) = (bench.at(&format!("rw/{round}")), bench.stored(&format!("rw/{round}")));
        fs::create_dir(&shown).unwrap();
        let (mut model, mut real) = (Model::default(), Real { top: shown.clone(), held: None });
        for op in &ops {
            let expected = model.run(op).map_err(|errno| errno as i32);
            let got = real.run(op).map_err(|error| error.raw_os_error().unwrap());
            prop_assert_eq!(got, expected, "{:?} of {:?}", op, ops);
        }
        let expected = model.tree();
        prop_assert_eq!(&tree(&shown), &expected, "seen by the mount after {:?}", ops);
        prop_assert_eq!(&tree(&stored), &expected, "on disk after {:?}", ops);
    });
}
