//! The files of a stream's parts, and which part each of them is.
//!
//! While nothing is rotated, `stdout.log.K` is the K-th part before the newest. The index is renamed first, so that in
//! a rotation the files come after it: as long as `stdout.log` has bytes and is not `stdout.log.1` as well, it is still
//! the part that has ended, and the files count down from it by their order, whatever gap the renames have left. No byte
//! goes into the new `stdout.log` before the index says that the rotation is over.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Stream;
use super::index::{Header, Index, PartList};
use crate::ids::LogLimits;

/// How often an index and its files are opened again when they change meanwhile.
const TRIES: usize = 100;

/// A step of the writer that a crash may come before.
#[cfg(not(test))]
pub(super) fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(super) use super::tests::step;

/// Files of both streams by where their part begins.
pub(super) type Parts = [Vec<(u64, File)>; 2];

pub(super) fn part_file(dir: &Path, stream: Stream, number: usize) -> PathBuf {
    match number {
        0 => dir.join(stream.file_name()),
        _ => dir.join(format!("{}.{number}", stream.file_name())),
    }
}

fn next_file(dir: &Path, stream: Stream) -> PathBuf {
    dir.join(format!(".{}.next", stream.file_name()))
}

#[derive(Debug)]
struct Found {
    number: usize,
    file: File,
    inode: (u64, u64),
    size: u64,
}

/// The files that are there, the newest first.
fn find(dir: &Path, stream: Stream, most: usize) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for number in 0..=most {
        if let Some(file) = open_to_read(&part_file(dir, stream, number))? {
            let about = file.metadata()?;
            found.push(Found { number, file, inode: (about.dev(), about.ino()), size: about.len() });
        }
    }
    Ok(found)
}

/// The files' numbers and inodes.
type Names = BTreeMap<usize, (u64, u64)>;

/// Whether the same files still have the same names.
fn unchanged(dir: &Path, stream: Stream, most: usize, names: &Names) -> bool {
    (0..=most).all(|number| {
        let known = names.get(&number).copied();
        let now = fs::symlink_metadata(part_file(dir, stream, number)).ok().map(|about| (about.dev(), about.ino()));
        known == now
    })
}

/// How far the files of a stream have come in its rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// `stdout.log` is still the part that has ended.
    Not,
    /// It is `stdout.log.1` as well.
    Linked,
    /// `stdout.log` is new, or not there.
    Done,
}

fn moved(found: &[Found]) -> Moved {
    let [current, others @ ..] = found else { return Moved::Done };
    let linked = others.iter().any(|part| part.number == 1 && part.inode == current.inode);
    match current {
        Found { number: 0, .. } if linked => Moved::Linked,
        Found { number: 0, size: 1.., .. } => Moved::Not,
        _ => Moved::Done,
    }
}

/// Gives each file the beginning of its part.
fn assign(found: Vec<Found>, list: &PartList, rotating: bool) -> Vec<(u64, File)> {
    let moved = if rotating { moved(&found) } else { Moved::Done };
    let newest = list.bases.iter().rev();
    match moved {
        Moved::Not => newest.skip(1).copied().zip(found.into_iter().map(|part| part.file)).collect(),
        Moved::Linked | Moved::Done => {
            let bases: Vec<u64> = newest.copied().collect();
            let named = found.into_iter().filter(|part| moved != Moved::Linked || part.number > 0);
            named.filter_map(|part| Some((*bases.get(part.number)?, part.file))).collect()
        }
    }
}

/// In the midst of a rotation the newest part has another name, under which it is the same file: opened by it, it can be read
/// later whatever it is called then.
fn newest_to_be(dir: &Path, stream: Stream, list: &PartList, known: &[(u64, File)]) -> io::Result<Option<(u64, File)>> {
    if known.iter().any(|(base, _)| *base == list.newest()) {
        return Ok(None);
    }
    Ok(open_to_read(&next_file(dir, stream))?.map(|file| (list.newest(), file)))
}

fn open_to_read(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The current index with the files of its parts, as they were at one moment.
pub(super) fn open(dir: &Path) -> io::Result<(Index, Header, Parts)> {
    for _ in 0..TRIES {
        let index = Index::open(dir)?;
        let header = index.header()?;
        let mut parts = Parts::default();
        let mut stable = true;
        for stream in Stream::BOTH {
            let list = header.of(stream);
            let found = find(dir, stream, list.bases.len())?;
            let names: Names = found.iter().map(|part| (part.number, part.inode)).collect();
            parts[stream.slot()] = assign(found, list, header.rotating == Some(stream));
            if header.rotating == Some(stream) {
                parts[stream.slot()].extend(newest_to_be(dir, stream, list, &parts[stream.slot()])?);
            }
            stable &= unchanged(dir, stream, list.bases.len(), &names);
        }
        if stable && index.header()? == header && !index.is_replaced(dir)? {
            return Ok((index, header, parts));
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the log is rotated faster than it can be opened"))
}

/// Makes the file that will be the stream's newest part.
pub(super) fn make_next(dir: &Path, stream: Stream, owner: (u32, u32)) -> io::Result<()> {
    step()?;
    create(&next_file(dir, stream), owner).map(drop)
}

/// An empty file for output that belongs to `owner`.
pub(super) fn create(path: &Path, owner: (u32, u32)) -> io::Result<File> {
    let file = open_to_write(path, owner)?;
    file.set_len(0)?;
    Ok(file)
}

/// Not in append mode: a write that failed half-way is repeated at the same place.
pub fn open_to_write(path: &Path, owner: (u32, u32)) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .mode(0o640)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)?;
    // Logs belong to whom their directory belongs to: the job's owner.
    std::os::unix::fs::fchown(&file, Some(owner.0), Some(owner.1))?;
    Ok(file)
}

/// Opens another file beside the logs; with its size.
pub fn open_beside(dir: &Path, name: &str) -> io::Result<(File, u64)> {
    let owner = fs::metadata(dir)?;
    let file = open_to_write(&dir.join(name), (owner.uid(), owner.gid()))?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Moves the files to where `list` has them after a rotation; goes on where an earlier call was cut off.
pub(super) fn finish(dir: &Path, stream: Stream, list: &PartList, owner: (u32, u32)) -> io::Result<File> {
    let found = find(dir, stream, LogLimits::PARTS_MAX as usize + 1)?;
    let moved = moved(&found);
    if moved == Moved::Not {
        move_up(dir, stream, list, &found)?;
    }
    let (next, current) = (next_file(dir, stream), part_file(dir, stream, 0));
    if next.exists() {
        step()?;
        fs::rename(&next, &current)?;
    } else if moved != Moved::Done {
        // Somebody has removed it.
        create(&next, owner)?;
        fs::rename(&next, &current)?;
    }
    open_to_write(&current, owner)
}

/// Removes the files that are beyond `list` and gives the others the next number, the oldest first.
fn move_up(dir: &Path, stream: Stream, list: &PartList, found: &[Found]) -> io::Result<()> {
    let kept = list.bases.len() - 1;
    for part in found.iter().skip(kept).rev() {
        step()?;
        fs::remove_file(part_file(dir, stream, part.number))?;
    }
    for (order, part) in found.iter().enumerate().take(kept).skip(1).rev() {
        if part.number != order + 1 {
            step()?;
            fs::rename(part_file(dir, stream, part.number), part_file(dir, stream, order + 1))?;
        }
    }
    step()?;
    let (from, to) = (part_file(dir, stream, 0), part_file(dir, stream, 1));
    // A second name at first, so that there is a `stdout.log` at every moment.
    fs::hard_link(&from, &to).or_else(|_| fs::rename(&from, &to))
}
