//! `VERSION.MANIFEST`: what a published version of a dataset holds, as `sha256sum -c` reads it.
//!
//! ```text
//! # trainyard manifest 1
//! # state complete
//! # published 2026-11-28T20:01:02.003Z by alice
//! # size 1024
//! 9f86d081884c7d65…  train/images.bin
//! # link train/again
//! # target images.bin
//! # directory empty
//! # total 1 files, 1024 bytes
//! ```
//! Names are bytes as they are; a line feed or backslash in one is escaped as `sha256sum` does it. Lines are in the order
//! of a walk: by bytes within each directory, what lies in a directory right after it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::SFlag;
use sha2::{Digest as _, Sha256};

use crate::sys::walk::{Item, open, walk};

const HEAD: &str = "# trainyard manifest 1";
const PENDING: &str = "# state pending";
const FAILING: &str = "# cannot be read now: ";
const BY: &str = "# by user ";
const COMPLETE: &str = "# state complete";

/// The SHA-256 of a file's bytes.
pub type Hash = [u8; 32];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File {
        /// Bytes.
        size: u64,
        hash: Hash,
    },
    Link {
        target: Vec<u8>,
    },
    /// With nothing in it; others are told by what they hold.
    Directory,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: Kind,
}

/// How far a manifest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It cannot be made, for this reason; it is tried again.
    Failing(String),
    Pending {
        /// Bytes read, and to be read.
        done: u64,
        of: u64,
    },
    Complete,
}

/// The text of a manifest that is being made.
pub(super) fn pending(done: u64, of: u64) -> String {
    format!("{HEAD}\n{PENDING}\n# read {done} of {of} bytes\n")
}

/// As [`pending`], of one that cannot be made now.
pub(super) fn failing(why: &str) -> String {
    format!("{HEAD}\n{PENDING}\n{FAILING}{}\n", why.replace(['\n', '\r'], " "))
}

/// Follows what [`pending`] and [`failing`] tell: the number of whoever has published it.
pub(super) fn by_line(publisher: Option<u32>) -> String {
    publisher.map(|uid| format!("{BY}{uid}\n")).unwrap_or_default()
}

/// Whom the manifest of a version that is not complete names, the fourth line; older ones name nobody.
pub(super) fn publisher(reader: impl BufRead) -> io::Result<Option<u32>> {
    let mut text = String::new();
    reader.take(64 << 10).read_to_string(&mut text)?;
    Ok(text.lines().nth(3).and_then(|line| line.strip_prefix(BY)?.parse().ok()))
}

/// What the first lines of a manifest tell.
pub fn state(mut reader: impl BufRead) -> io::Result<State> {
    let mut line = || -> io::Result<String> {
        let mut line = String::new();
        reader.by_ref().take(1024).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    if line()? != HEAD {
        return Err(invalid("it is no manifest of Trainyard"));
    }
    match line()?.as_str() {
        COMPLETE => Ok(State::Complete),
        PENDING => {
            let numbers = line()?;
            if let Some(why) = numbers.strip_prefix(FAILING) {
                return Ok(State::Failing(why.to_owned()));
            }
            let mut numbers = numbers.split(' ').filter_map(|word| word.parse().ok());
            Ok(State::Pending { done: numbers.next().unwrap_or(0), of: numbers.next().unwrap_or(0) })
        }
        _ => Err(invalid("it is no manifest of Trainyard")),
    }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// What has been counted of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub files: u64,
    pub bytes: u64,
}

pub(super) struct Writer<W: Write> {
    out: W,
    totals: Totals,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut out: W, published: &str) -> io::Result<Self> {
        write!(out, "{HEAD}\n{COMPLETE}\n# published {published}\n")?;
        Ok(Self { out, totals: Totals::default() })
    }

    pub(super) fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let (name, escaped) = escape(entry.path.as_os_str().as_bytes());
        match &entry.kind {
            Kind::File { size, hash } => {
                self.totals.files += 1;
                self.totals.bytes += size;
                let mark = if escaped { "\\" } else { "" };
                write!(self.out, "# size {size}\n{mark}{}  ", hex(hash))?;
                self.out.write_all(&name)?;
            }
            Kind::Link { target } => {
                self.out.write_all(b"# link ")?;
                self.out.write_all(&name)?;
                self.out.write_all(b"\n# target ")?;
                self.out.write_all(&escape(target).0)?;
            }
            Kind::Directory => {
                self.out.write_all(b"# directory ")?;
                self.out.write_all(&name)?;
            }
        }
        self.out.write_all(b"\n")
    }

    pub(super) fn end(mut self) -> io::Result<W> {
        writeln!(self.out, "# total {} files, {} bytes", self.totals.files, self.totals.bytes)?;
        Ok(self.out)
    }
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As `sha256sum` has it.
fn escape(name: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'\\' => out.extend(b"\\\\"),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            byte => out.push(*byte),
        }
    }
    let escaped = out.len() != name.len();
    (out, escaped)
}

fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.iter();
    while let Some(byte) = bytes.next() {
        match (byte, *byte == b'\\') {
            (_, true) => out.push(match bytes.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(other) => *other,
                None => b'\\',
            }),
            (byte, false) => out.push(*byte),
        }
    }
    out
}

/// The entries of a complete manifest, in order.
#[derive(Debug)]
pub struct Reader<R> {
    lines: R,
    published: String,
}

impl<R: BufRead> Reader<R> {
    pub fn new(mut lines: R) -> io::Result<Self> {
        let mut head = Vec::new();
        for _ in 0..3 {
            lines.by_ref().take(4096).read_until(b'\n', &mut head)?;
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut head = head.lines();
        match (head.next(), head.next()) {
            (Some(HEAD), Some(COMPLETE)) => {}
            (Some(HEAD), Some(PENDING)) => return Err(invalid("the version is still being published")),
            _ => return Err(invalid("it is no manifest of Trainyard")),
        }
        let published = head.next().and_then(|line| line.strip_prefix("# published ")).unwrap_or_default().to_owned();
        Ok(Self { lines, published })
    }

    /// When, and by whom.
    pub fn published(&self) -> &str {
        &self.published
    }

    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        // Longer than any two paths may be.
        self.lines.by_ref().take(64 << 10).read_until(b'\n', &mut line)?;
        if line.pop().is_some_and(|end| end != b'\n') {
            return Err(invalid("it ends in the middle of a line"));
        }
        Ok(Some(line).filter(|line| !line.is_empty()))
    }

    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let Some(line) = self.line()? else { return Err(invalid("its end is missing")) };
        let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(bytes.to_owned()));
        if line.starts_with(b"# total ") {
            return Ok(None);
        }
        if let Some(name) = line.strip_prefix(b"# directory ") {
            return Ok(Some(Entry { path: path(&unescape(name)), kind: Kind::Directory }));
        }
        if let Some(name) = line.strip_prefix(b"# link ") {
            let next = self.line()?.ok_or_else(|| invalid("its end is missing"))?;
            let target = next.strip_prefix(b"# target ").ok_or_else(|| invalid("a link leads nowhere"))?;
            return Ok(Some(Entry { path: path(&unescape(name)), kind: Kind::Link { target: unescape(target) } }));
        }
        let size = line.strip_prefix(b"# size ").and_then(|size| std::str::from_utf8(size).ok()?.parse().ok());
        let size = size.ok_or_else(|| invalid(format!("{:?} is no line of it", String::from_utf8_lossy(&line))))?;
        let line = self.line()?.ok_or_else(|| invalid("its end is missing"))?;
        let (line, escaped) = line.strip_prefix(b"\\").map_or((line.as_slice(), false), |line| (line, true));
        let hash = line.get(..64).and_then(from_hex).ok_or_else(|| invalid("a hash is damaged"))?;
        let name = line.get(66..).unwrap_or_default();
        let name = if escaped { unescape(name) } else { name.to_owned() };
        Ok(Some(Entry { path: path(&name), kind: Kind::File { size, hash } }))
    }

    /// How many files and bytes are left of it.
    pub fn count(mut self) -> io::Result<Totals> {
        let mut totals = Totals::default();
        while let Some(entry) = self.next_entry()? {
            if let Kind::File { size, .. } = entry.kind {
                totals.files += 1;
                totals.bytes += size;
            }
        }
        Ok(totals)
    }
}

fn from_hex(digits: &[u8]) -> Option<Hash> {
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// What an item of a tree is, if a manifest tells of it: sockets, pipes and devices it does not. `read` is told of bytes.
pub(super) fn entry_of(item: &Item<'_>, read: &mut dyn FnMut(u64)) -> io::Result<Option<Entry>> {
    let kind = match item.kind() {
        SFlag::S_IFREG => {
            let (size, hash) = hash_of(open(item.directory, item.name, OFlag::empty())?, read)?;
            Kind::File { size, hash }
        }
        SFlag::S_IFLNK => Kind::Link { target: readlinkat(item.directory, item.name)?.into_vec() },
        SFlag::S_IFDIR if item.is_empty => Kind::Directory,
        _ => return Ok(None),
    };
    Ok(Some(Entry { path: item.path.to_owned(), kind }))
}

pub(super) fn hash_of(mut file: File, read: &mut dyn FnMut(u64)) -> io::Result<(u64, Hash)> {
    let (mut hash, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((size, hash.finalize().into()));
        }
        hash.update(buffer.get(..count).unwrap_or_default());
        size += count as u64;
        read(count as u64);
    }
}

/// What differs between a tree and its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    Changed(PathBuf),
    Missing(PathBuf),
    Extra(PathBuf),
}

/// Reads the whole tree and tells of each difference. `read` is told of bytes.
pub fn verify(
    tree: &File,
    manifest: impl BufRead,
    read: &mut dyn FnMut(u64),
    tell: &mut dyn FnMut(Difference),
) -> io::Result<Totals> {
    let mut reader = Reader::new(manifest)?;
    let mut expected = reader.next_entry()?;
    let mut totals = Totals::default();
    walk(tree, &mut |item| {
        let Some(found) = entry_of(item, read)? else { return Ok(()) };
        if let Kind::File { size, .. } = found.kind {
            totals.files += 1;
            totals.bytes += size;
        }
        while let Some(entry) = expected.take_if(|entry| entry.path.as_path() < found.path.as_path()) {
            tell(Difference::Missing(entry.path));
            expected = reader.next_entry()?;
        }
        match expected.take_if(|entry| entry.path == found.path) {
            None => tell(Difference::Extra(found.path)),
            Some(entry) => {
                if entry != found {
                    tell(Difference::Changed(found.path));
                }
                expected = reader.next_entry()?;
            }
        }
        Ok(())
    })?;
    while let Some(entry) = expected {
        tell(Difference::Missing(entry.path));
        expected = reader.next_entry()?;
    }
    Ok(totals)
}

/// The entries of the version before, as far as they are asked for in order.
pub(super) struct Before<R> {
    reader: Reader<R>,
    next: Option<Entry>,
}

impl<R: BufRead> Before<R> {
    pub(super) fn new(manifest: R) -> io::Result<Self> {
        let mut reader = Reader::new(manifest)?;
        let next = reader.next_entry()?;
        Ok(Self { reader, next })
    }

    /// Whether that version had the very same entry; asked in the order of a walk.
    pub(super) fn had(&mut self, entry: &Entry) -> io::Result<bool> {
        while self.next.take_if(|next| next.path < entry.path).is_some() {
            self.next = self.reader.next_entry()?;
        }
        Ok(self.next.as_ref() == Some(entry))
    }
}

/// For people: a name as it can be shown.
pub fn shown(path: &Path) -> String {
    crate::sys::terminal::escape(&OsStr::to_string_lossy(path.as_os_str()))
}
