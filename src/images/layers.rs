//! Layers on disk: unpacked once, several at a time, whole or not at all, removed when nobody needs them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::{AND_MORE, failed, stored};
use super::source::Blob;
use super::unpack::{Hashing, ReadAhead, UnpackError, Unpacked, decompress, unpack};
use super::{ImageError, Limits, Progress};
use crate::sys::file::{Durability, create_dir, free_space, remove_tree, write_whole};

/// Layers that are unpacked at once, at most.
const AT_ONCE: usize = 4;
/// Bytes that an archive may need for an entry beside its content.
const HEADERS_OF_ENTRY: u64 = 8 << 10;

/// What is known of a layer without looking through it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LayerRecord {
    entries: u64,
    bytes: u64,
    /// Directories that the archive did not tell of itself, but needed.
    implied: Vec<OsString>,
    /// Nothing of lower layers is seen.
    #[serde(default)]
    opaque: bool,
}

impl LayerRecord {
    fn of(unpacked: &Unpacked) -> Self {
        Self {
            entries: unpacked.entries,
            bytes: unpacked.bytes,
            implied: unpacked.implied_directories.iter().map(|path| path.clone().into_os_string()).collect(),
            opaque: unpacked.opaque_root,
        }
    }
}

/// Who is at which layer.
#[derive(Debug, Default)]
struct Turns {
    /// Being unpacked, or looked at whether they are what they are called, now.
    busy: Mutex<BTreeSet<Digest>>,
    /// One of them no longer is, or somebody who waits no longer wants to.
    changed: Condvar,
}

impl Turns {
    /// Whoever looks at `busy` waits or has not looked yet.
    fn wake(&self) {
        let _looks = lock(&self.busy);
        self.changed.notify_all();
    }
}

#[derive(Debug)]
pub(super) struct Layers {
    layers: PathBuf,
    drafts: PathBuf,
    turns: Arc<Turns>,
    /// Which layers a workspace has brought itself or sees by name. Naming a layer is not having it: its digest is no
    /// secret, and its files may be.
    proven: Mutex<BTreeSet<(String, Digest)>>,
    /// While somebody holds a pin, no layer is removed.
    pins: Arc<Mutex<usize>>,
    number: AtomicUsize,
}

/// Keeps every layer.
#[derive(Debug)]
pub(super) struct Pin(Arc<Mutex<usize>>);

impl Drop for Pin {
    fn drop(&mut self) {
        *lock(&self.0) -= 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Layers {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            layers: root.join("layers"),
            drafts: root.join("drafts"),
            turns: Arc::default(),
            proven: Mutex::default(),
            pins: Arc::default(),
            number: AtomicUsize::new(0),
        }
    }

    pub(super) fn pin(&self) -> Pin {
        *lock(&self.pins) += 1;
        Pin(self.pins.clone())
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.layers.join(name)
    }

    /// The files of a layer.
    pub(super) fn files(&self, name: &str) -> PathBuf {
        self.directory(name).join("fs")
    }

    /// The layers of these that are seen, bottom first: none below one that hides all of them.
    pub(super) fn seen<'a>(&self, layers: &'a [Digest]) -> Result<&'a [Digest], ImageError> {
        for (at, layer) in layers.iter().enumerate().rev() {
            if self.record(layer)?.opaque {
                return Ok(layers.get(at..).unwrap_or(layers));
            }
        }
        Ok(layers)
    }

    pub(super) fn is_there(&self, layer: &Digest) -> bool {
        self.directory(layer.hex()).exists()
    }

    /// Whether it is there and the workspace may have it unseen.
    pub(super) fn is_had(&self, workspace: &str, layer: &Digest) -> bool {
        self.is_there(layer) && lock(&self.proven).contains(&(workspace.to_owned(), layer.clone()))
    }

    /// Notes that the workspace has had the content of these layers.
    pub(super) fn prove(&self, workspace: &str, layers: impl IntoIterator<Item = Digest>) {
        lock(&self.proven).extend(layers.into_iter().map(|layer| (workspace.to_owned(), layer)));
    }

    /// Bytes of the files of these layers.
    pub(super) fn size<'a>(&self, layers: impl IntoIterator<Item = &'a Digest>) -> Result<u64, ImageError> {
        layers.into_iter().try_fold(0u64, |sum, layer| Ok(sum.saturating_add(self.record(layer)?.bytes)))
    }

    fn record(&self, layer: &Digest) -> Result<LayerRecord, ImageError> {
        let bytes =
            fs::read(self.directory(layer.hex()).join("layer.json")).map_err(failed("read a layer's record"))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| ImageError::Damaged { what: "a layer's record".to_owned(), why: error.to_string() })
    }

    /// Unpacks those of `wanted` (by the digest of their content) that are not there; of the others, sees whether they are
    /// what they are called, unless the workspace has had them before.
    pub(super) fn unpack_all(
        &self,
        wanted: &[(Digest, Blob)],
        workspace: &str,
        limits: &Limits,
        progress: &Arc<Progress>,
    ) -> Result<(), ImageError> {
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let work = || {
            while lock(&failure).is_none() {
                let Some((layer, blob)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                if let Err(error) = self.unpack_one(layer, blob, workspace, limits, progress) {
                    lock(&failure).get_or_insert(error);
                }
                Progress::add(&progress.layers_done, 1);
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(AT_ONCE).min(wanted.len());
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Unpacks a layer, unless it is there; whoever wants one that somebody is just at has what comes of that.
    fn unpack_one(
        &self,
        layer: &Digest,
        blob: &Blob,
        workspace: &str,
        limits: &Limits,
        progress: &Arc<Progress>,
    ) -> Result<(), ImageError> {
        let _busy = self.turn(layer, progress)?;
        if self.is_had(workspace, layer) {
            Progress::add(&progress.bytes_done, blob.size);
            return Ok(());
        }
        if self.is_there(layer) {
            verify(layer, blob, limits, progress).map_err(|error| progress.told(error))?;
        } else {
            let draft = self.drafts.join(format!("{}-{}", layer.short(), self.number.fetch_add(1, Ordering::Relaxed)));
            let unpacked = self.unpack_into(&draft, layer, blob, limits, progress);
            unpacked.map_err(|error| self.give_up(&draft, progress.told(error)))?;
        }
        // While it is busy still: who waits for it would read all of it again.
        self.prove(workspace, [layer.clone()]);
        Ok(())
    }

    /// Waits until nobody else is at this layer.
    fn turn<'a>(&'a self, layer: &'a Digest, progress: &Progress) -> Result<Busy<'a>, ImageError> {
        let turns = self.turns.clone();
        let _ending = progress.given_up.ending(move || turns.wake());
        let mut busy = lock(&self.turns.busy);
        while busy.contains(layer) {
            progress.check()?;
            busy = self.turns.changed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        busy.insert(layer.clone());
        Ok(Busy { turns: &self.turns, layer })
    }

    /// Removes what has come of a draft. A full disk is told with what is free then, and what the draft had taken.
    fn give_up(&self, draft: &Path, error: ImageError) -> ImageError {
        let before = free_space(&self.layers).unwrap_or(0);
        // The reason counts, not that its remains stay until the next start.
        let _ = remove_tree(draft);
        match error {
            ImageError::NoSpace { wanted, need, path, .. } => {
                let taken = free_space(&self.layers).unwrap_or(0).saturating_sub(before);
                ImageError::no_space(&path, wanted.max(taken), need)
            }
            other => other,
        }
    }

    fn unpack_into(
        &self,
        draft: &Path,
        layer: &Digest,
        blob: &Blob,
        limits: &Limits,
        progress: &Arc<Progress>,
    ) -> Result<(), ImageError> {
        let files = draft.join("fs");
        create_dir(draft, 0o700)
            .and_then(|()| create_dir(&files, 0o755))
            .map_err(self.stored("make a layer's directory", blob.size))?;
        let counted = Counted { inner: blob.reader(), counter: progress.clone() };
        let compressed = Hashing::new(counted);
        let blob_sum = compressed.tally();
        let damaged = unreadable(layer);
        // Inflating takes longest: the sum of what comes out is made on this side of the threads.
        let ahead = decompress(compressed).and_then(ReadAhead::new).map_err(&damaged)?;
        let mut content = Hashing::new(progress.given_up.reader(ahead));
        let limits = super::unpack::Limits { bytes: limits.layer_bytes, entries: limits.layer_entries };
        let unpacked = unpack(&mut content, &files, &limits).map_err(|error| self.explain(error, blob.size))?;
        let content_sum = content.finish().map_err(damaged)?;
        check(blob.digest.as_ref(), &blob_sum.sum().sha256)?;
        check(Some(layer), &content_sum.sha256)?;
        for skipped in &unpacked.skipped {
            tracing::info!(layer = layer.short(), skipped, "left out of an image");
        }
        self.commit(draft, layer.hex(), &LayerRecord::of(&unpacked))
    }

    /// Puts a finished draft where layers are; after a crash it is there whole or not at all.
    fn commit(&self, draft: &Path, name: &str, record: &LayerRecord) -> Result<(), ImageError> {
        let bytes = serde_json::to_vec(record)
            .map_err(|error| ImageError::Damaged { what: "a layer".to_owned(), why: error.to_string() })?;
        write_whole(&draft.join("layer.json"), &bytes, 0o600, Durability::Process)
            .and_then(|()| crate::sys::file::sync_file_system(draft))
            .and_then(|()| self.put(draft, name))
            .and_then(|()| File::open(&self.layers)?.sync_all())
            .map_err(self.stored("put a layer in its place", record.bytes))
    }

    fn stored(&self, what: &'static str, wanted: u64) -> impl Fn(io::Error) -> ImageError {
        stored(&self.layers, what, wanted)
    }

    fn put(&self, draft: &Path, name: &str) -> io::Result<()> {
        match fs::rename(draft, self.directory(name)) {
            // Two images, or one that comes in twice, may have the same.
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                remove_tree(draft)
            }
            other => other,
        }
    }

    fn explain(&self, error: UnpackError, wanted: u64) -> ImageError {
        match error {
            UnpackError::NoSpace { .. } => ImageError::no_space(&self.layers, wanted, AND_MORE),
            other => other.into(),
        }
    }

    /// Overlayfs shows the attributes of the topmost directory of a name. Where that one was only implied by an archive,
    /// those of the directory below are the true ones: a layer of such directories is put on top. Whether there is one.
    pub(super) fn make_top(&self, name: &str, layers: &[Digest]) -> Result<bool, ImageError> {
        let told = "look through the layers";
        let mut stack = Vec::new();
        for layer in layers.iter().rev() {
            let implied: BTreeSet<PathBuf> = self.record(layer)?.implied.iter().map(PathBuf::from).collect();
            stack.push((self.files(layer.hex()), implied));
        }
        let implied: BTreeSet<PathBuf> = stack.iter().flat_map(|(_, implied)| implied.iter().cloned()).collect();
        let mut wanted = BTreeSet::new();
        for path in implied {
            if attributes(&stack, &path).map_err(failed(told))?.is_some_and(|found| found.hidden) {
                wanted.extend(path.ancestors().filter(|part| !part.as_os_str().is_empty()).map(Path::to_owned));
            }
        }
        if wanted.is_empty() || self.directory(name).exists() {
            return Ok(!wanted.is_empty());
        }
        let draft = self.drafts.join(format!("top-{}", self.number.fetch_add(1, Ordering::Relaxed)));
        let files = draft.join("fs");
        let made = create_dir(&draft, 0o700)
            .and_then(|()| copy_top(&stack, &files, &wanted))
            .map_err(self.stored("make a layer of directories", 0))
            .and_then(|()| self.commit(&draft, name, &LayerRecord::default()));
        made.map(|()| true).map_err(|error| self.give_up(&draft, error))
    }

    /// Removes layers that are not `needed`, which is asked while nobody holds a pin and nobody gets one; how many, and
    /// the bytes of their files.
    pub(super) fn prune(&self, needed: impl FnOnce() -> Result<Needed, ImageError>) -> Result<(u64, u64), ImageError> {
        let told = "remove layers";
        let mut dead = Vec::new();
        {
            let pins = lock(&self.pins);
            if *pins > 0 {
                return Err(ImageError::Busy);
            }
            let needed = needed()?;
            for entry in fs::read_dir(&self.layers).map_err(failed(told))? {
                let entry = entry.map_err(failed(told))?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if needed.names.contains(&name) || needed.paths.contains(&self.files(&name)) {
                    continue;
                }
                // Out of sight first: a crash leaves nothing half removed where layers are.
                let grave = self.drafts.join(format!("dead-{}", self.number.fetch_add(1, Ordering::Relaxed)));
                fs::rename(entry.path(), &grave).map_err(failed(told))?;
                dead.push(grave);
            }
        }
        let mut bytes = 0;
        for grave in &dead {
            let record = fs::read(grave.join("layer.json")).ok();
            let record: Option<LayerRecord> = record.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            bytes += record.unwrap_or_default().bytes;
            remove_tree(grave).map_err(failed(told))?;
        }
        Ok((dead.len() as u64, bytes))
    }
}

fn unreadable(layer: &Digest) -> impl Fn(io::Error) -> ImageError {
    let path = PathBuf::from(format!("the layer {}", layer.short()));
    move |source| ImageError::Source { path: path.clone(), source }
}

/// Reads a layer that is there already: whoever brings it must have all of it.
fn verify(layer: &Digest, blob: &Blob, limits: &Limits, progress: &Arc<Progress>) -> Result<(), ImageError> {
    let compressed = Hashing::new(Counted { inner: blob.reader(), counter: progress.clone() });
    let blob_sum = compressed.tally();
    let plain = decompress(compressed).map_err(unreadable(layer))?;
    let content = Hashing::new(progress.given_up.reader(plain));
    let content_sum = content.tally();
    // A layer that is there has passed these bounds: what goes on beyond them is another one.
    let most = limits.layer_bytes.saturating_add(limits.layer_entries.saturating_mul(HEADERS_OF_ENTRY));
    io::copy(&mut content.take(most), &mut io::sink()).map_err(unreadable(layer))?;
    check(Some(layer), &content_sum.sum().sha256)?;
    check(blob.digest.as_ref(), &blob_sum.sum().sha256)
}

/// That somebody is at a layer, until it is dropped.
struct Busy<'a> {
    turns: &'a Turns,
    layer: &'a Digest,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(&self.turns.busy).remove(self.layer);
        self.turns.changed.notify_all();
    }
}

/// Layers that stay.
#[derive(Debug)]
pub(super) struct Needed {
    /// Of images.
    pub(super) names: BTreeSet<String>,
    /// Of tasks.
    pub(super) paths: BTreeSet<PathBuf>,
}

fn check(expected: Option<&Digest>, got: &[u8]) -> Result<(), ImageError> {
    let got = Digest::from_bytes(got);
    match expected {
        Some(expected) if *expected != got => Err(ImageError::WrongDigest { expected: expected.clone(), got }),
        _ => Ok(()),
    }
}

/// Tells how many bytes have been read.
struct Counted<R> {
    inner: R,
    counter: Arc<Progress>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        Progress::add(&self.counter.bytes_done, count as u64);
        Ok(count)
    }
}

/// Layers, top first, each with its implied directories.
type Stack = [(PathBuf, BTreeSet<PathBuf>)];

struct Found {
    layer: PathBuf,
    /// An implied directory lies over it.
    hidden: bool,
}

/// The topmost layer that tells of the directory `path` itself; `None` where it is not seen, or no layer tells.
fn attributes(stack: &Stack, path: &Path) -> io::Result<Option<Found>> {
    let mut hidden = false;
    for (layer, implied) in stack {
        match at(layer, path)? {
            Place::Directory if implied.contains(path) => hidden = true,
            Place::Directory => return Ok(Some(Found { layer: layer.clone(), hidden })),
            Place::Covered => return Ok(None),
            Place::Absent => {}
        }
        if is_opaque_above(layer, path)? {
            return Ok(None);
        }
    }
    Ok(None)
}

/// What a layer has at a path.
enum Place {
    Directory,
    /// It, or what it lies in, is a file, a link or a white-out: lower layers are not seen there.
    Covered,
    Absent,
}

/// Looks step by step: a link in a layer must not lead us out of it.
fn at(layer: &Path, path: &Path) -> io::Result<Place> {
    let mut parts: Vec<&Path> = path.ancestors().collect();
    parts.reverse();
    for part in parts {
        match fs::symlink_metadata(layer.join(part)) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Ok(Place::Covered),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Place::Absent),
            Err(error) => return Err(error),
        }
    }
    Ok(Place::Directory)
}

/// Whether `layer`, which has nothing or directories on the way to `path`, hides what lower layers have there.
fn is_opaque_above(layer: &Path, path: &Path) -> io::Result<bool> {
    let parts = path.ancestors().filter(|part| !part.as_os_str().is_empty());
    for part in parts.map(|part| layer.join(part)).filter(|part| part.is_dir()) {
        if crate::sys::file::is_opaque(&part)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the directories `wanted` (parents first) in `files` as the stack tells of them.
fn copy_top(stack: &Stack, files: &Path, wanted: &BTreeSet<PathBuf>) -> io::Result<()> {
    let all: Vec<&Path> = std::iter::once(Path::new("")).chain(wanted.iter().map(PathBuf::as_path)).collect();
    for path in &all {
        create_dir(&files.join(path), 0o755)?;
    }
    // Deepest first: making a directory changes the time of its parent.
    for path in all.iter().rev() {
        if let Some(found) = attributes(stack, path)? {
            let metadata = fs::symlink_metadata(found.layer.join(path))?;
            let target = files.join(path);
            std::os::unix::fs::chown(&target, Some(metadata.uid()), Some(metadata.gid()))?;
            fs::set_permissions(&target, metadata.permissions())?;
            File::open(&target)?.set_modified(metadata.modified()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::given_up::GivenUp;

    #[test]
    fn attributes_are_taken_from_layers_and_never_through_a_link_of_one() {
        let dir = tempfile::tempdir().unwrap();
        let layer = |name: &str| dir.path().join(name);
        fs::create_dir_all(layer("upper/a/b")).unwrap();
        fs::create_dir_all(layer("machine/b")).unwrap();
        fs::create_dir_all(layer("link")).unwrap();
        std::os::unix::fs::symlink(layer("machine"), layer("link/a")).unwrap();
        fs::create_dir_all(layer("below/a/b")).unwrap();
        let implied = BTreeSet::from([PathBuf::from("a"), PathBuf::from("a/b")]);
        let stack = |lower: &str| vec![(layer("upper"), implied.clone()), (layer(lower), BTreeSet::new())];
        let found =
            |lower| attributes(&stack(lower), Path::new("a/b")).unwrap().map(|found| (found.layer, found.hidden));
        assert_eq!(found("below"), Some((layer("below"), true)));
        assert_eq!(found("link"), None);
        // What a white-out or a file covers is not looked for further down.
        let mut covered = stack("below");
        fs::create_dir_all(layer("file")).unwrap();
        fs::write(layer("file/a"), "").unwrap();
        covered.insert(1, (layer("file"), BTreeSet::new()));
        assert!(attributes(&covered, Path::new("a/b")).unwrap().is_none());
    }

    #[test]
    fn a_layer_that_another_one_has_put_there_meanwhile_is_as_good() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["layers", "drafts"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let layers = Layers::new(dir.path());
        for number in 0..2 {
            let draft = dir.path().join(format!("drafts/{number}"));
            fs::create_dir_all(draft.join("fs/x")).unwrap();
            layers.commit(&draft, "top-x", &LayerRecord::default()).unwrap();
            assert!(!draft.exists());
        }
        assert!(layers.files("top-x").join("x").is_dir());
    }

    #[test]
    fn whoever_waits_for_a_layer_waits_no_longer_than_it_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let (layers, layer) = (Layers::new(dir.path()), Digest::of(b"layer"));
        let (given_up, wanted) = (GivenUp::default(), Progress::default());
        let unwanted = Progress::until(given_up.clone());
        let busy = layers.turn(&layer, &wanted).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| layers.turn(&layer, &unwanted).map(drop));
            let goes_on = scope.spawn(|| layers.turn(&layer, &wanted).map(drop));
            given_up.set();
            assert!(matches!(waits.join().unwrap(), Err(ImageError::Unwanted)));
            assert!(!goes_on.is_finished());
            drop(busy);
            goes_on.join().unwrap().unwrap();
        });
    }
}
