//! Copies a run's output to a prefix of a store.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use md5::{Digest as _, Md5};
use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::{FileStat, Mode, SFlag};
use opendal::{Operator, Writer};

use super::webhdfs::WebHdfs;
use super::{FILES_MAX, Failure, Left, Mark, News, Progress, Teller};
use crate::sys::rooted::open_resolved;
use crate::sys::walk;

/// Files that go at once.
const AT_ONCE: usize = 4;
/// Bytes that go at once.
const PIECE: usize = 8 << 20;

/// Where it goes.
pub(super) struct Target {
    pub operator: Operator,
    /// Where files are put in the place of others by hand.
    pub webhdfs: Option<WebHdfs>,
}

struct Item {
    path: PathBuf,
    key: String,
    mark: Mark,
}

pub(super) async fn send(
    target: &Target,
    prefix: &str,
    sent: &BTreeMap<PathBuf, Mark>,
    teller: &Teller,
) -> Result<News, Failure> {
    let top = File::open(".").map_err(|error| Failure::of_disk("open the output", &error))?;
    let (items, left) = look(&top, prefix).map_err(|error| Failure::of_disk("look through the output", &error))?;
    let is_there = |item: &Item| sent.get(&item.path) == Some(&item.mark);
    let (there, missing): (Vec<_>, Vec<_>) = items.into_iter().partition(is_there);
    let bytes = |items: &[Item]| items.iter().map(|item| item.mark.size).sum::<u64>();
    let progress = Cell::new(Progress {
        files: there.len() as u64,
        of_files: (there.len() + missing.len()) as u64,
        bytes: bytes(&there),
        of_bytes: bytes(&there) + bytes(&missing),
    });
    let count = |files: u64, bytes: u64| {
        let mut now = progress.get();
        (now.files, now.bytes) = (now.files + files, (now.bytes + bytes).min(now.of_bytes));
        progress.set(now);
        teller.progress(now);
    };
    let (left, changed) = (RefCell::new(left), Cell::new(0));
    // One that fails keeps no other from being sent.
    let results: Vec<Result<(), Failure>> = futures_util::stream::iter(&missing)
        .map(|item| {
            let (count, top, left, changed) = (&count, &top, &left, &changed);
            async move {
                match send_one(target, top, item, false, &|bytes| count(0, bytes)).await? {
                    Came::Whole => {
                        let _ = teller.tell(&News::Sent { path: item.path.clone(), mark: item.mark });
                        count(1, 0);
                    }
                    Came::Changed => changed.set(changed.get() + 1),
                    Came::Gone => {}
                    Came::Left(why) => left.borrow_mut().add(&item.path, &why),
                }
                Ok(())
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let failures: Vec<Failure> = results.into_iter().filter_map(Result::err).collect();
    let more = failures.len().saturating_sub(1);
    match failures.into_iter().next() {
        None => Ok(News::AllSent { progress: progress.get(), left: left.into_inner(), changed: changed.get() }),
        Some(first) if more == 0 => Err(first),
        Some(first) => Err(Failure { message: format!("{} (and {more} more files)", first.message), ..first }),
    }
}

/// All files, and what can be no object in a store or cannot be read.
fn look(top: &File, prefix: &str) -> io::Result<(Vec<Item>, Left)> {
    let (mut items, left) = (Vec::new(), RefCell::new(Left::default()));
    let mut visit = |item: &walk::Item<'_>| {
        match item.kind() {
            SFlag::S_IFDIR => {}
            SFlag::S_IFREG => match key_of(prefix, item.path) {
                Some(key) => items.push(Item { path: item.path.to_owned(), key, mark: mark(&item.status) }),
                None => left.borrow_mut().add(item.path, "stores take no such name"),
            },
            SFlag::S_IFLNK => left.borrow_mut().add(item.path, "it is a link"),
            _ => left.borrow_mut().add(item.path, "it is neither a file nor a directory"),
        }
        Ok(())
    };
    let mut refused = |path: &Path, error: io::Error| {
        // What goes while it is looked at was not to stay.
        if error.kind() != io::ErrorKind::NotFound {
            left.borrow_mut().add(path, &error.to_string());
        }
        Ok(())
    };
    walk::walk_what_can_be(top, &mut visit, &mut refused)?;
    match items.len() > FILES_MAX {
        true => Err(io::Error::other(format!("it has more than {FILES_MAX} files"))),
        false => Ok((items, left.into_inner())),
    }
}

/// Names of objects are text, and the driver takes spaces at both ends off.
fn key_of(prefix: &str, path: &Path) -> Option<String> {
    let path = path.to_str()?;
    let key = if prefix.is_empty() { path.to_owned() } else { format!("{prefix}/{path}") };
    (key.trim() == key && !key.contains(['\n', '\r'])).then_some(key)
}

fn mark(status: &FileStat) -> Mark {
    Mark {
        size: u64::try_from(status.st_size).unwrap_or(0),
        modified_ns: status.st_mtime.saturating_mul(1_000_000_000).saturating_add(status.st_mtime_nsec),
        inode: status.st_ino,
    }
}

/// What has come of a file.
enum Came {
    /// What is in the store is the whole of it, as it was listed.
    Whole,
    /// It was changed or replaced meanwhile: it goes next time.
    Changed,
    Gone,
    /// It cannot be read.
    Left(String),
}

/// A tag that looks like another MD5 sum has it sent once more; the second time it is taken for something else than a sum.
async fn send_one(
    target: &Target,
    top: &File,
    item: &Item,
    is_again: bool,
    count: &impl Fn(u64),
) -> Result<Came, Failure> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let file = match open_resolved(top, &item.path, flags, Mode::empty(), resolve).map(File::from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Came::Gone),
        Err(error) => return Ok(Came::Left(error.to_string())),
        Ok(file) => file,
    };
    let what = item.path.display().to_string();
    let in_store = |error: opendal::Error| Failure::of_store(&what, &error);
    let is_listed = |file: &File| file.metadata().is_ok_and(|now| now.is_file() && mark_of(&now) == item.mark);
    if !is_listed(&file) {
        return Ok(Came::Changed);
    }
    let store = &target.operator;
    // Until it is whole, what was there before stays.
    let aside = target.webhdfs.as_ref().map(|webhdfs| (webhdfs, WebHdfs::aside(&item.key)));
    let key = aside.as_ref().map_or(&item.key, |(_, aside)| aside);
    let mut writer = begin(store, key, item.mark.size).await.map_err(in_store)?;
    let sum = match write_all(&mut writer, &file, item, count).await {
        Ok(Some(sum)) => sum,
        stopped => {
            // Else what was sent of it would stay in the store, and be paid for.
            let _ = writer.abort().await;
            if aside.is_some() {
                let _ = store.delete(key).await;
            }
            return stopped.map(|_| Came::Changed);
        }
    };
    if let Err(error) = writer.close().await {
        let _ = writer.abort().await;
        return Err(in_store(error));
    }
    // Before it is put in the place of another: what is there is not to go for a part of it.
    let there = store.stat(key).await.map_err(in_store)?;
    if there.content_length() != item.mark.size {
        if aside.is_some() {
            let _ = store.delete(key).await;
        }
        let (has, size) = (there.content_length(), item.mark.size);
        return Err(Failure::for_now(format!("{what}: the store has {has} of its {size} bytes")));
    }
    if let Some((webhdfs, aside)) = &aside {
        webhdfs.replace(store, aside, &item.key).await?;
    }
    if there.etag().is_some_and(|tag| is_other_sum(tag, &sum)) && !is_again {
        return Box::pin(send_one(target, top, item, true, count)).await;
    }
    Ok(if is_listed(&file) { Came::Whole } else { Came::Changed })
}

/// The sum of what was written; nothing where the file has become shorter.
async fn write_all(
    writer: &mut Writer,
    mut file: &File,
    item: &Item,
    count: &impl Fn(u64),
) -> Result<Option<Vec<u8>>, Failure> {
    let what = item.path.display().to_string();
    let mut hash = Md5::new();
    let mut left = item.mark.size;
    let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
    while left > 0 {
        let length = file.read(&mut piece).map_err(|error| Failure::of_disk(&what, &error))?;
        let length = length.min(usize::try_from(left).unwrap_or(length));
        if length == 0 {
            return Ok(None);
        }
        let read = piece.get(..length).unwrap_or_default();
        hash.update(read);
        writer.write(read.to_vec()).await.map_err(|error| Failure::of_store(&what, &error))?;
        left -= length as u64;
        count(length as u64);
    }
    Ok(Some(hash.finalize().to_vec()))
}

/// Stores that take no file in parts take it piece after piece at its end.
async fn begin(store: &Operator, key: &str, size: u64) -> opendal::Result<Writer> {
    let can = store.info().capability();
    if can.write_can_multi || size <= PIECE as u64 {
        return store.writer_with(key).chunk(piece_of(size)).await;
    }
    store.delete(key).await?;
    store.writer_with(key).append(true).await
}

/// Stores take 10,000 pieces of a file at most.
fn piece_of(size: u64) -> usize {
    PIECE.max(usize::try_from(size.div_ceil(9_000)).unwrap_or(usize::MAX))
}

fn is_other_sum(tag: &str, sum: &[u8]) -> bool {
    let tag = tag.trim_matches('"');
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    tag.len() == sum.len() && tag.bytes().all(|byte| byte.is_ascii_hexdigit()) && !tag.eq_ignore_ascii_case(&sum)
}

fn mark_of(metadata: &std::fs::Metadata) -> Mark {
    let modified_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    Mark { size: metadata.size(), modified_ns, inode: metadata.ino() }
}
