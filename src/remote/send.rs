//! Copies a run's output to a prefix of a store.

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

use super::{FILES_MAX, Failure, Mark, News, Progress, Teller};
use crate::sys::rooted::open_resolved;
use crate::sys::walk::walk;

/// Files that go at once.
const AT_ONCE: usize = 4;
/// Bytes that go at once.
const PIECE: usize = 8 << 20;

struct Item {
    path: PathBuf,
    key: String,
    mark: Mark,
}

pub(super) async fn send(
    store: &Operator,
    prefix: &str,
    sent: &BTreeMap<PathBuf, Mark>,
    teller: &Teller,
) -> Result<News, Failure> {
    let top = File::open(".").map_err(|error| Failure::of_disk("open the output", &error))?;
    let (items, left) = look(&top, prefix).map_err(|error| Failure::of_disk("look through the output", &error))?;
    for (path, why) in left {
        let _ = teller.tell(&News::Left { path, why });
    }
    let is_there = |item: &Item| sent.get(&item.path) == Some(&item.mark);
    let (there, missing): (Vec<_>, Vec<_>) = items.into_iter().partition(is_there);
    let bytes = |items: &[Item]| items.iter().map(|item| item.mark.size).sum::<u64>();
    let progress = std::cell::Cell::new(Progress {
        files: there.len() as u64,
        of_files: (there.len() + missing.len()) as u64,
        bytes: bytes(&there),
        of_bytes: bytes(&there) + bytes(&missing),
    });
    let count = |files: u64, bytes: u64| {
        let mut now = progress.get();
        (now.files, now.bytes) = (now.files + files, now.bytes + bytes);
        progress.set(now);
        teller.progress(now);
    };
    // One that fails keeps no other from being sent.
    let results: Vec<Result<(), Failure>> = futures_util::stream::iter(&missing)
        .map(|item| {
            let (count, top) = (&count, &top);
            async move {
                if send_one(store, top, item, false, &|bytes| count(0, bytes)).await? {
                    let _ = teller.tell(&News::Sent { path: item.path.clone(), mark: item.mark });
                    count(1, 0);
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
        None => Ok(News::AllSent { progress: progress.get() }),
        Some(first) if more == 0 => Err(first),
        Some(first) => Err(Failure { message: format!("{} (and {more} more files)", first.message), ..first }),
    }
}

type Left = Vec<(String, String)>;

/// All files, and what can be no object in a store.
fn look(top: &File, prefix: &str) -> io::Result<(Vec<Item>, Left)> {
    let (mut items, mut left) = (Vec::new(), Vec::new());
    walk(top, &mut |item| {
        let shown = item.path.display().to_string();
        match item.kind() {
            SFlag::S_IFDIR => return Ok(()),
            SFlag::S_IFREG => {}
            kind => {
                let what = if kind == SFlag::S_IFLNK { "a link" } else { "neither a file nor a directory" };
                left.push((shown, format!("it is {what}")));
                return Ok(());
            }
        }
        match key_of(prefix, item.path) {
            Some(key) => items.push(Item { path: item.path.to_owned(), key, mark: mark(&item.status) }),
            None => left.push((shown, "stores take no such name".to_owned())),
        }
        match items.len() + left.len() > FILES_MAX {
            true => Err(io::Error::other(format!("it has more than {FILES_MAX} files"))),
            false => Ok(()),
        }
    })?;
    Ok((items, left))
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

/// Whether what is in the store now is the whole of the file as it was listed; one that was changed meanwhile goes next time.
///
/// A tag that looks like another MD5 sum has it sent once more; the second time it is taken for something else than a sum.
async fn send_one(
    store: &Operator,
    top: &File,
    item: &Item,
    is_again: bool,
    count: &impl Fn(u64),
) -> Result<bool, Failure> {
    let what = item.path.display().to_string();
    let on_disk = |error: io::Error| Failure::of_disk(&what, &error);
    let in_store = |error: opendal::Error| Failure::of_store(&what, &error);
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let mut file = match open_resolved(top, &item.path, flags, Mode::empty(), resolve) {
        // It was removed or replaced since it was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => File::from(file.map_err(on_disk)?),
    };
    let opened = file.metadata().map_err(on_disk)?;
    if !opened.is_file() || opened.ino() != item.mark.inode {
        return Ok(false);
    }
    let mut hash = Md5::new();
    let mut writer = begin(store, item).await.map_err(in_store)?;
    let mut left = item.mark.size;
    let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
    while left > 0 {
        let length = file.read(&mut piece).map_err(on_disk)?;
        let length = length.min(usize::try_from(left).unwrap_or(length));
        if length == 0 {
            // It was cut short.
            let _ = writer.abort().await;
            return Ok(false);
        }
        let read = piece.get(..length).unwrap_or_default();
        hash.update(read);
        writer.write(read.to_vec()).await.map_err(in_store)?;
        left -= length as u64;
        count(length as u64);
    }
    writer.close().await.map_err(in_store)?;
    let there = store.stat(&item.key).await.map_err(in_store)?;
    if there.content_length() != item.mark.size {
        let (has, size) = (there.content_length(), item.mark.size);
        return Err(Failure::for_now(format!("{what}: the store has {has} of its {size} bytes")));
    }
    if there.etag().is_some_and(|tag| is_other_sum(tag, &hash.finalize())) && !is_again {
        return Box::pin(send_one(store, top, item, true, count)).await;
    }
    let now = file.metadata().map_err(on_disk)?;
    Ok(now.size() == item.mark.size && modified_ns(&now) == item.mark.modified_ns)
}

/// Stores that take no file in parts take it piece after piece at its end.
async fn begin(store: &Operator, item: &Item) -> opendal::Result<Writer> {
    let can = store.info().capability();
    if can.write_can_multi || item.mark.size <= PIECE as u64 {
        return store.writer_with(&item.key).chunk(PIECE).await;
    }
    store.delete(&item.key).await?;
    store.writer_with(&item.key).append(true).await
}

fn is_other_sum(tag: &str, sum: &[u8]) -> bool {
    let tag = tag.trim_matches('"');
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    tag.len() == sum.len() && tag.bytes().all(|byte| byte.is_ascii_hexdigit()) && !tag.eq_ignore_ascii_case(&sum)
}

fn modified_ns(metadata: &std::fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}
