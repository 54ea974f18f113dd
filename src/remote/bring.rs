//! Copies in what lies at a prefix of a store.
//!
//! ```text
//! HASH/tree/…, HASH/index      a snapshot: what the store had, by the hash of its listing; never changed
//! HASH.draft/                  the same while it is made; `index` has what is whole so far
//! parts/HASH                   a file of which some has come
//! ```
//!
//! A file that another snapshot has, by the same name, size and tag, is linked and not copied again. Whoever calls holds a
//! lock on the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use futures_util::TryStreamExt;
use md5::{Digest as _, Md5};
use opendal::{EntryMode, ErrorKind, Metadata, Operator};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::{FILES_MAX, Failure, News, Progress, TREE, Teller};
use crate::ids::Bytes;

/// Files that come at once.
const AT_ONCE: usize = 8;
/// Begins what stands for a tag where a store tells none.
const MODIFIED: &str = "modified ";
/// How often a file is begun again that breaks off without any byte more.
const FRUITLESS_MAX: u32 = 3;
/// How often the list is made again, where files have changed meanwhile.
const LISTINGS_MAX: u32 = 3;
/// What copies leave free of the disk, bytes: the daemon's own records lie there as well.
const RESERVE: u64 = 256 << 20;
const INDEX: &str = "index";
const BOOT: &str = "boot";
const PARTS: &str = "parts";
const DRAFT: &str = "draft";

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Object {
    /// Where it lies in the tree.
    path: PathBuf,
    /// What the store calls it.
    key: String,
    size: u64,
    /// By which the store tells its states apart; empty where it does not.
    tag: String,
}

impl Object {
    /// A name for what has come of it.
    fn part(&self) -> PathBuf {
        let digest = Sha256::digest(format!("{}\n{}\n{}", self.key, self.size, self.tag).as_bytes());
        Path::new(PARTS).join(hex(&digest))
    }

    /// Lists may tell less than a file's own status does: then the time counts, in whole seconds, as http has it.
    fn is_state(&self, metadata: &Metadata) -> bool {
        fn seconds(time: &str) -> &str {
            time.split(['.', 'Z']).next().unwrap_or(time)
        }
        let is_tag = etag_of(metadata).is_some_and(|tag| tag == self.tag);
        let is_time = modified_of(metadata).is_some_and(|time| seconds(&time) == seconds(&self.tag));
        metadata.content_length() == self.size && (is_tag || is_time || self.tag.is_empty())
    }

    /// Whether the store gives another state of it than it has listed, by its tag, where it tells both.
    fn is_other(&self, given: &str) -> bool {
        let plain = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').to_ascii_lowercase();
        let is_tag = !self.tag.is_empty() && !self.tag.starts_with(MODIFIED);
        is_tag && plain(given) != plain(&self.tag)
    }

    fn is_same(&self, other: &Self) -> bool {
        !self.tag.is_empty() && (self.size, &self.tag, &self.key) == (other.size, &other.tag, &other.key)
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

pub(super) async fn bring(store: &Operator, prefix: &str, teller: &Teller) -> Result<News, Failure> {
    for _ in 1..LISTINGS_MAX {
        match bring_as_listed(store, prefix, teller).await {
            Err(Stopped::Changed) => {}
            Err(Stopped::Failed(failure)) => return Err(failure),
            Ok(news) => return Ok(news),
        }
    }
    match bring_as_listed(store, prefix, teller).await {
        Err(Stopped::Changed) => Err(Failure::for_now("the store's files change faster than they are copied")),
        Err(Stopped::Failed(failure)) => Err(failure),
        Ok(news) => Ok(news),
    }
}

enum Stopped {
    /// A file is not the one that was listed.
    Changed,
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn on_disk(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    let what = what.into();
    move |error| Failure::of_disk(&what, &error)
}

async fn bring_as_listed(store: &Operator, prefix: &str, teller: &Teller) -> Result<News, Stopped> {
    let objects = list(store, prefix).await?;
    let snapshot = name_of(&objects)?;
    let mut progress = Progress {
        of_files: objects.len() as u64,
        of_bytes: objects.values().fold(0, |sum, object| sum.saturating_add(object.size)),
        ..Progress::default()
    };
    if Path::new(&snapshot).join(INDEX).exists() {
        // When it was used last.
        File::open(&snapshot).and_then(|file| file.set_modified(SystemTime::now())).map_err(on_disk("the snapshot"))?;
        (progress.files, progress.bytes) = (progress.of_files, progress.of_bytes);
        return Ok(News::Brought { snapshot, progress });
    }
    check_boot().map_err(on_disk("look at what was begun before"))?;
    if objects.values().any(|object| object.tag.is_empty()) {
        // Nobody can tell whether what has come is of the same state.
        remove_drafts().map_err(on_disk("remove what was begun before"))?;
    }
    let draft = Draft::open(&snapshot)?;
    let mut missing = Vec::new();
    let known = Known::read(&snapshot).map_err(on_disk("look for what was copied before"))?;
    for object in objects.values() {
        match draft.has(object) || draft.link(object, &known).map_err(on_disk("take over what was copied before"))? {
            true => {
                progress.files += 1;
                progress.bytes += object.size;
            }
            false => missing.push(object),
        }
    }
    check_room(&missing)?;
    let progress = std::cell::Cell::new(progress);
    let count = |files: u64, bytes: u64| {
        let mut now = progress.get();
        (now.files, now.bytes) = (now.files + files, (now.bytes + bytes).min(now.of_bytes));
        progress.set(now);
        teller.progress(now);
    };
    futures_util::stream::iter(missing.into_iter().map(Ok))
        .try_for_each_concurrent(AT_ONCE, |object| {
            let (draft, count) = (&draft, &count);
            async move {
                fetch(store, object, &|bytes| count(0, bytes)).await?;
                draft.take(object).map_err(on_disk(format!("put {} in its place", object.path.display())))?;
                count(1, 0);
                Ok::<(), Stopped>(())
            }
        })
        .await?;
    draft.finish(&snapshot, &objects).map_err(on_disk("finish the copy"))?;
    Ok(News::Brought { snapshot, progress: progress.get() })
}

/// What lies at the prefix: the tree below it, or, where it is a file's own name, that file.
async fn list(store: &Operator, prefix: &str) -> Result<BTreeMap<PathBuf, Object>, Failure> {
    let can = store.info().capability();
    let mut objects = BTreeMap::new();
    // Stores with directories know a file by its name, others by that nothing lies below it.
    if !can.list_with_recursive {
        objects.extend(file_of(store, prefix).await?);
    }
    if can.list && objects.is_empty() {
        let top = if prefix.is_empty() { "/".to_owned() } else { format!("{prefix}/") };
        list_tree(store, &top, &mut objects).await?;
    }
    if can.list_with_recursive && objects.is_empty() {
        objects.extend(file_of(store, prefix).await?);
    }
    if objects.is_empty() {
        return Err(Failure::for_good(format!("the store has nothing at {prefix:?}")));
    }
    check_tree(&objects)?;
    Ok(objects)
}

async fn file_of(store: &Operator, prefix: &str) -> Result<Option<(PathBuf, Object)>, Failure> {
    if prefix.is_empty() {
        return Ok(None);
    }
    match store.stat(prefix).await {
        Ok(metadata) if metadata.mode() == EntryMode::FILE => {
            let object = object(prefix.rsplit('/').next().unwrap_or(prefix), prefix, &metadata)?;
            Ok(Some((object.path.clone(), object)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::of_store(&format!("look at {prefix:?}"), &error)),
    }
}

/// Directories within each other.
const DEPTH_MAX: usize = 256;

/// Stores that have directories are asked for one after the other: what of them cannot be read is told, not left out.
async fn list_tree(store: &Operator, top: &str, objects: &mut BTreeMap<PathBuf, Object>) -> Result<(), Failure> {
    let is_flat = store.info().capability().list_with_recursive;
    let mut open = vec![top.to_owned()];
    let mut entries = 0usize;
    while let Some(directory) = open.pop() {
        let told = |error: opendal::Error| Failure::of_store(&format!("list {directory:?}"), &error);
        let lister = store.lister_with(&directory).recursive(is_flat).await;
        let mut lister = match lister {
            Err(error) if error.kind() == ErrorKind::NotFound && directory == top => return Ok(()),
            lister => lister.map_err(told)?,
        };
        loop {
            let entry = match lister.try_next().await {
                Err(error) if error.kind() == ErrorKind::NotFound && directory == top => return Ok(()),
                entry => entry.map_err(told)?,
            };
            let Some(entry) = entry else { break };
            entries += 1;
            if entries > FILES_MAX || directory.split('/').count() > DEPTH_MAX {
                let why =
                    format!("{top:?} has more than {FILES_MAX} files, or {DEPTH_MAX} directories within each other");
                return Err(Failure::for_good(why));
            }
            let (key, metadata) = entry.into_parts();
            if key == directory || (metadata.mode() != EntryMode::DIR && key.ends_with('/')) {
                continue;
            }
            if metadata.mode() == EntryMode::DIR {
                if !is_flat {
                    open.push(key);
                }
                continue;
            }
            let below = if top == "/" { key.as_str() } else { key.strip_prefix(top).unwrap_or(&key) };
            let object = object(below, &key, &metadata)?;
            objects.insert(object.path.clone(), object);
        }
    }
    Ok(())
}

fn object(below: &str, key: &str, metadata: &Metadata) -> Result<Object, Failure> {
    let path = Path::new(below);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)))
        && below.split('/').all(|part| !part.is_empty() && part != "." && part.len() <= 255)
        && key.trim() == key
        && !below.contains('\0');
    if !is_plain {
        return Err(Failure::for_good(format!(
            "{key:?} in the store is no path that a file can have here; rename it there"
        )));
    }
    let (path, key) = (path.to_owned(), key.to_owned());
    Ok(Object { path, key, size: metadata.content_length(), tag: tag_of(metadata) })
}

fn tag_of(metadata: &Metadata) -> String {
    etag_of(metadata).or_else(|| modified_of(metadata)).unwrap_or_default()
}

fn etag_of(metadata: &Metadata) -> Option<String> {
    metadata.etag().map(|tag| tag.trim_matches('"').to_owned())
}

fn modified_of(metadata: &Metadata) -> Option<String> {
    metadata.last_modified().map(|time| format!("{MODIFIED}{time}"))
}

/// No file lies where another one needs a directory.
fn check_tree(objects: &BTreeMap<PathBuf, Object>) -> Result<(), Failure> {
    let in_the_way =
        |path: &PathBuf| path.ancestors().skip(1).find(|above| objects.contains_key(*above)).map(Path::to_owned);
    match objects.keys().find_map(|path| Some((path, in_the_way(path)?))) {
        Some((path, above)) => Err(Failure::for_good(format!(
            "the store has both {} and {}, of which the first would have to be a file and a directory here; rename one there",
            above.display(),
            path.display()
        ))),
        None => Ok(()),
    }
}

/// What a store does not tag may have changed each time.
fn name_of(objects: &BTreeMap<PathBuf, Object>) -> Result<String, Failure> {
    let mut hash = Sha256::new();
    for object in objects.values() {
        let line = serde_json::to_vec(object).map_err(|error| Failure::for_good(error.to_string()))?;
        hash.update(&line);
    }
    if objects.values().any(|object| object.tag.is_empty()) {
        hash.update(format!("{:?}", SystemTime::now()).as_bytes());
    }
    Ok(hex(&hash.finalize()))
}

fn check_room(missing: &[&Object]) -> Result<(), Failure> {
    let come = |object: &&Object| fs::metadata(object.part()).map_or(0, |part| part.len());
    let wanted = missing.iter().fold(0u64, |sum, object| sum.saturating_add(object.size.saturating_sub(come(object))));
    let free = crate::sys::file::free_space(Path::new(".")).map_err(on_disk("look at the free space"))?;
    match wanted.saturating_add(RESERVE) <= free {
        true => Ok(()),
        false => Err(Failure::for_now(format!(
            "{} are to be copied in, and the disk has {} free, of which {} stay free",
            Bytes(wanted),
            Bytes(free),
            Bytes(RESERVE)
        ))),
    }
}

/// What earlier copies have: for each place in the tree the files there.
struct Known(BTreeMap<PathBuf, Vec<(PathBuf, Object)>>);

impl Known {
    /// Earlier ones than this many are not looked at.
    const SNAPSHOTS: usize = 3;

    fn read(but: &str) -> io::Result<Self> {
        let mut directories = Vec::new();
        for entry in fs::read_dir(".")? {
            let entry = entry?;
            let name = entry.file_name();
            let is_own = Path::new(&name) == Path::new(but).with_extension(DRAFT);
            if !is_own && entry.file_type()?.is_dir() && name != PARTS {
                directories.push((entry.metadata()?.modified()?, PathBuf::from(name)));
            }
        }
        directories.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
        let mut known: BTreeMap<PathBuf, Vec<_>> = BTreeMap::new();
        for (_, directory) in directories.into_iter().take(Self::SNAPSHOTS) {
            for object in read_index(&directory.join(INDEX))? {
                known.entry(object.path.clone()).or_default().push((directory.join(TREE).join(&object.path), object));
            }
        }
        Ok(Self(known))
    }

    fn find(&self, object: &Object) -> Option<&Path> {
        let there = self.0.get(&object.path)?;
        there.iter().find(|(_, other)| object.is_same(other)).map(|(place, _)| place.as_path())
    }
}

/// Lines that a crash cut short are none.
fn read_index(path: &Path) -> io::Result<Vec<Object>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let lines = io::BufReader::new(file).lines().map_while(Result::ok);
    Ok(lines.filter_map(|line| serde_json::from_str(&line).ok()).collect())
}

/// A snapshot that is being made.
struct Draft {
    directory: PathBuf,
    whole: BTreeSet<PathBuf>,
    index: std::cell::RefCell<File>,
}

impl Draft {
    fn open(snapshot: &str) -> Result<Self, Failure> {
        let directory = Path::new(snapshot).with_extension(DRAFT);
        let opened = || -> io::Result<Self> {
            fs::create_dir_all(directory.join(TREE))?;
            fs::create_dir_all(PARTS)?;
            let path = directory.join(INDEX);
            let whole = read_index(&path)?.into_iter().map(|object| object.path).collect();
            let mut index = OpenOptions::new().create(true).append(true).open(path)?;
            // After one that was cut short.
            index.write_all(b"\n")?;
            Ok(Self { directory: directory.clone(), whole, index: index.into() })
        };
        opened().map_err(on_disk("begin the copy"))
    }

    /// By the draft's name the object is the same as when it came.
    fn has(&self, object: &Object) -> bool {
        self.whole.contains(&object.path)
    }

    fn place(&self, object: &Object) -> io::Result<PathBuf> {
        let place = self.directory.join(TREE).join(&object.path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(place)
    }

    fn link(&self, object: &Object, known: &Known) -> io::Result<bool> {
        let Some(source) = known.find(object) else { return Ok(false) };
        let place = self.place(object)?;
        match fs::hard_link(source, &place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // A file can have so many names only; then it is copied.
            Err(_) => return Ok(false),
            Ok(()) => {}
        }
        self.note(object).map(|()| true)
    }

    fn take(&self, object: &Object) -> io::Result<()> {
        fs::rename(object.part(), self.place(object)?)?;
        self.note(object)
    }

    fn note(&self, object: &Object) -> io::Result<()> {
        let mut line = serde_json::to_vec(object)?;
        line.push(b'\n');
        self.index.borrow_mut().write_all(&line)
    }

    fn finish(self, snapshot: &str, objects: &BTreeMap<PathBuf, Object>) -> io::Result<()> {
        let mut index = Vec::new();
        for object in objects.values() {
            serde_json::to_writer(&mut index, object)?;
            index.push(b'\n');
        }
        // An index is whole where the snapshot has its own name.
        let path = self.directory.join(INDEX);
        let whole = self.directory.join("index.whole");
        fs::write(&whole, index)?;
        fs::rename(&whole, &path)?;
        crate::sys::file::sync_file_system(&self.directory)?;
        fs::rename(&self.directory, snapshot)?;
        File::open(".")?.sync_all()?;
        remove_drafts()
    }
}

/// What was begun before the machine was started may not be on the disk as it seems: only what is finished is synced.
fn check_boot() -> io::Result<()> {
    let boot = crate::sys::boot_id()?;
    if fs::read_to_string(BOOT).is_ok_and(|begun| begun == boot) {
        return Ok(());
    }
    remove_drafts()?;
    fs::write(BOOT, boot)
}

/// What other states of the store have left half.
fn remove_drafts() -> io::Result<()> {
    for entry in fs::read_dir(".")? {
        let path = PathBuf::from(entry?.file_name());
        if path.extension().is_some_and(|end| end == DRAFT) || path == Path::new(PARTS) {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

/// Fetches what is missing of a file, however often it breaks off, as long as each time some more comes.
async fn fetch(store: &Operator, object: &Object, count: &impl Fn(u64)) -> Result<(), Stopped> {
    let part = object.part();
    let come = |part: &Path| fs::metadata(part).map_or(0, |metadata| metadata.len());
    count(come(&part).min(object.size));
    let mut fruitless = 0;
    loop {
        let before = come(&part);
        let fetched = match fetch_rest(store, object, &part, count).await {
            Ok(tag) => check_sum(object, tag.as_deref(), &part),
            Err(stopped) => Err(stopped),
        };
        let has_more = come(&part) > before;
        match fetched {
            Err(Stopped::Failed(failure)) if failure.is_temporary && (has_more || fruitless < FRUITLESS_MAX) => {
                fruitless = if has_more { 0 } else { fruitless + 1 };
            }
            other => return other,
        }
    }
}

/// Ends with the tag under which it came, where the store tells one.
async fn fetch_rest(
    store: &Operator,
    object: &Object,
    part: &Path,
    count: &impl Fn(u64),
) -> Result<Option<String>, Stopped> {
    let what = object.path.display().to_string();
    let less = |has: u64| {
        let size = object.size;
        Failure::for_now(format!("{what}: the store has sent {has} of the {size} bytes that it has listed"))
    };
    let come = fs::metadata(part).map_or(0, |metadata| metadata.len());
    let told = |error: opendal::Error| match error.kind() {
        ErrorKind::ConditionNotMatch | ErrorKind::NotFound => Stopped::Changed,
        // It has nothing from there on (416, which not every driver tells by its kind).
        _ if super::status_of(&error) == Some(416) => less(come).into(),
        _ => Stopped::Failed(Failure::of_store(&what, &error)),
    };
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(part).map_err(on_disk(&what))?;
    let mut has = file.seek(SeekFrom::End(0)).map_err(on_disk(&what))?;
    if has > object.size {
        file.set_len(0).and_then(|()| file.rewind()).map_err(on_disk(&what))?;
        has = 0;
    }
    if has == object.size {
        return Ok(None);
    }
    let mut reader = store.reader_with(&object.key);
    if store.info().capability().read_with_if_match && is_strong(&object.tag) {
        reader = reader.if_match(&format!("\"{}\"", object.tag));
    }
    let reader = reader.await.map_err(told)?;
    let mut stream = reader.clone().into_stream(has..object.size).await.map_err(told)?;
    while let Some(pieces) = stream.try_next().await.map_err(told)? {
        for piece in pieces {
            has += piece.len() as u64;
            if has > object.size {
                file.set_len(0).map_err(on_disk(&what))?;
                return Err(Failure::for_now(format!("{what}: the store sends more than it has listed")).into());
            }
            file.write_all(&piece).map_err(on_disk(&what))?;
            count(piece.len() as u64);
        }
    }
    let can = store.info().capability();
    if !can.read_with_if_match || !is_strong(&object.tag) {
        // Nobody has kept it from being changed meanwhile.
        let now = store.stat(&object.key).await.map_err(told)?;
        if !object.is_state(&now) {
            file.set_len(0).map_err(on_disk(&what))?;
            return Err(Stopped::Changed);
        }
    }
    let tag = reader.metadata().and_then(Metadata::etag);
    if tag.is_some_and(|tag| object.is_other(tag)) {
        // It has not held to what was asked of it.
        file.set_len(0).map_err(on_disk(&what))?;
        return Err(Stopped::Changed);
    }
    match has == object.size {
        true => Ok(tag.map(|tag| tag.trim_matches('"').to_owned())),
        false => Err(less(has).into()),
    }
}

/// A tag that stands for the very bytes.
fn is_strong(tag: &str) -> bool {
    !tag.is_empty() && !tag.starts_with("W/") && tag.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A tag that looks like an MD5 sum is compared with that of what came. Where a file comes twice with the same other sum, the
/// tag is something else (encrypted buckets).
fn check_sum(object: &Object, tag: Option<&str>, part: &Path) -> Result<(), Stopped> {
    let what = object.path.display().to_string();
    let is_sum = |tag: &&str| tag.len() == 32 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some(tag) = Some(object.tag.as_str()).filter(is_sum).or(tag.filter(is_sum)) else { return Ok(()) };
    let sum = sum_of(part).map_err(on_disk(&what))?;
    let seen = part.with_extension("sum");
    let before = fs::read_to_string(&seen).unwrap_or_default();
    if sum.eq_ignore_ascii_case(tag) || sum == before {
        return crate::sys::file::remove_if_there(&seen).map_err(on_disk(&what)).map_err(Stopped::from);
    }
    fs::write(&seen, &sum).and_then(|()| fs::remove_file(part)).map_err(on_disk(&what))?;
    Err(Failure::for_now(format!("{what}: what came is not what the store has, by its sum ({tag})")).into())
}

fn sum_of(path: &Path) -> io::Result<String> {
    let mut hash = Md5::new();
    let mut file = File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut piece)? {
            0 => return Ok(hex(&hash.finalize())),
            length => hash.update(piece.get(..length).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pool;
    use crate::ids::StoreKind;
    use crate::remote::access::{self, Access};

    /// A server that gives this answer to whatever it is asked.
    fn answering(answer: &'static str) -> Operator {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = io::BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let pool = Pool {
            kind: StoreKind::Http,
            endpoint,
            bucket: None,
            region: None,
            host_key: None,
            root: String::new(),
            virtual_host: false,
            secret: None,
            workspaces: None,
            proxy: None,
            read_only: false,
        };
        access::open(&Access::of(&pool, None).ok().unwrap(), false).ok().unwrap()
    }

    #[tokio::test]
    async fn what_comes_under_another_tag_has_changed_and_less_than_was_listed_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("part");
        let tag = "d41d8cd98f00b204e9800998ecf8427e".to_owned();
        let object = Object { path: "f".into(), key: "f".to_owned(), size: 10, tag };
        // It does not hold to `If-Match`.
        let other = answering(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 10\r\ncontent-range: bytes 0-9/10\r\n\
             etag: \"781e5e245d69b566979b86e28d23f2c7\"\r\nconnection: close\r\n\r\n0123456789",
        );
        assert!(matches!(fetch_rest(&other, &object, &part, &|_| ()).await, Err(Stopped::Changed)));
        assert_eq!(fs::metadata(&part).unwrap().len(), 0, "nothing of it is gone on with");
        let same = answering(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 10\r\ncontent-range: bytes 0-9/10\r\n\
             etag: \"D41D8CD98F00B204E9800998ECF8427E\"\r\nconnection: close\r\n\r\n0123456789",
        );
        assert!(fetch_rest(&same, &object, &part, &|_| ()).await.is_ok());
        fs::write(&part, "0123").unwrap();
        let short = answering("HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let Err(Stopped::Failed(failure)) = fetch_rest(&short, &object, &part, &|_| ()).await else { panic!() };
        assert_eq!(failure.message, "f: the store has sent 4 of the 10 bytes that it has listed");
    }
}
