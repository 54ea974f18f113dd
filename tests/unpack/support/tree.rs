//! A layer between things that must not change, and trees as values.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use trainyard::images::unpack::{Limits, UnpackError, Unpacked, unpack};

const DEEP: &str = "1/2/3/4/5/6";

pub(crate) const LIMITS: Limits = Limits { bytes: 64 << 20, entries: 10_000 };

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) device: u64,
    pub(crate) links: u64,
    pub(crate) mtime: (i64, i64),
    pub(crate) size: u64,
    /// The target of a link or the hash of a file.
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl Node {
    pub(crate) fn is(&self, kind: u32) -> bool {
        self.mode & nix::libc::S_IFMT == kind
    }

    pub(crate) fn is_white_out(&self) -> bool {
        self.is(nix::libc::S_IFCHR) && self.device == 0
    }

    pub(crate) fn is_opaque(&self) -> bool {
        self.xattrs.get(OsStr::new("trusted.overlay.opaque")).is_some_and(|value| value == b"y")
    }
}

pub(crate) type Tree = BTreeMap<PathBuf, Node>;

pub(crate) fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut ahead = vec![root.to_owned()];
    while let Some(path) = ahead.pop() {
        let node = node(&path);
        if node.is(nix::libc::S_IFDIR) {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        tree.insert(path.strip_prefix(root).unwrap().to_owned(), node);
    }
    tree
}

pub(crate) fn node(path: &Path) -> Node {
    let status = fs::symlink_metadata(path).unwrap();
    let content = match status.mode() & nix::libc::S_IFMT {
        nix::libc::S_IFREG => Sha256::digest(fs::read(path).unwrap()).to_vec(),
        nix::libc::S_IFLNK => fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    Node {
        mode: status.mode(),
        owner: (status.uid(), status.gid()),
        device: status.rdev(),
        links: status.nlink(),
        mtime: (status.mtime(), status.mtime_nsec()),
        size: if status.is_dir() { 0 } else { status.size() },
        content,
        xattrs: xattrs(path),
    }
}

fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, names.as_mut_slice()).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).unwrap();
            value.truncate(length);
            (OsStr::from_bytes(name).to_owned(), value)
        })
        .collect()
}

/// `layer` to unpack into, beside `outside` that nothing may touch.
///
/// Both lie so deep in a directory of their own that links upwards, if they were followed, would not lead out of it: these
/// tests run as root, also when what they test is broken.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    before: Tree,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join(DEEP).join("layer")).unwrap();
        let outside = directory.path().join(DEEP).join("outside");
        fs::create_dir_all(outside.join("sub")).unwrap();
        fs::write(outside.join("secret"), "untouched").unwrap();
        fs::set_permissions(outside.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(outside.join("sub/file"), "untouched too").unwrap();
        symlink("secret", outside.join("link")).unwrap();
        let before = tree(&outside);
        Self { directory, before }
    }

    pub(crate) fn layer(&self) -> PathBuf {
        self.directory.path().join(DEEP).join("layer")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.directory.path().join(DEEP).join("outside")
    }

    pub(crate) fn unpack(&self, tar: &[u8]) -> Result<Unpacked, UnpackError> {
        self.unpack_within(tar, &LIMITS)
    }

    pub(crate) fn unpack_within(&self, tar: impl std::io::Read, limits: &Limits) -> Result<Unpacked, UnpackError> {
        let result = unpack(tar, &self.layer(), limits);
        assert_eq!(tree(&self.outside()), self.before, "something outside of the layer was touched");
        self.assert_nothing_beside();
        result
    }

    fn assert_nothing_beside(&self) {
        let top = self.directory.path();
        for above in Path::new(DEEP).ancestors() {
            let names = fs::read_dir(top.join(above)).unwrap().map(|entry| entry.unwrap().file_name());
            let others = names.filter(|name| above != Path::new(DEEP) || (name != "layer" && name != "outside"));
            let others: Vec<_> = others.filter(|name| !Path::new(DEEP).starts_with(above.join(name))).collect();
            assert!(others.is_empty(), "something was made beside the layer, in {above:?}: {others:?}");
        }
    }

    pub(crate) fn tree(&self) -> Tree {
        tree(&self.layer())
    }

    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.layer().join(path)).unwrap()
    }
}

/// The error and all its causes as one line.
pub(crate) fn told(error: &UnpackError) -> String {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    line
}
