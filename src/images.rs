//! Images: where they come from, how they lie on disk, which layers a container is made of.
//!
//! ```text
//! images/names/KIND/NAME.json    which image a name stands for; its modification time is the last use
//!        manifests/HEX.json      an image: its configuration and its layers, by digest
//!        layers/HEX/             one layer, by the digest of its content: fs/ as overlayfs takes it, layer.json
//!        downloads/HEX           blobs on the way; a pull goes on where an earlier one broke off
//!        shifted/KEY/HEX/        copies of layers with other owners, where they cannot be shown so
//!        drafts/                 layers that are being unpacked; emptied at start
//! ```
//! Everything in `names`, `manifests` and `layers` appears whole, by rename. A layer is unpacked once, whoever needs it.
//!
//! **Invariant:** what lies in `layers` has the digest of its name; nothing is ever written there again.

pub mod config;
pub mod digest;
mod layers;
pub mod names;
pub mod registry;
mod shifted;
mod source;
pub mod unpack;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use config::ImageConfig;
pub use digest::Digest;
pub use names::{Kind, NameRecord};
pub use registry::RegistryError;

use crate::ids::{Bytes, Timestamp};
use crate::sys::file::{Durability, create_dir, remove_if_there, remove_tree, write_whole};
use crate::sys::idmap::IdMap;
use layers::{Layers, Pin};
use registry::{
    AuthFileError, Credentials, LayerBlob, Reference, ReferenceError, Registry, RegistryConfig, credentials_in,
};
use shifted::Shifted;
use source::Source;
use unpack::UnpackError;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("there is no image {name}; see `trainyard image ls`")]
    Unknown { name: String },
    #[error("cannot read {path}: {source}")]
    Source {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{what} is not as an image must be: {why}")]
    Damaged { what: String, why: String },
    #[error("the content is not what its digest says: it should be {expected}, it is {got}")]
    WrongDigest { expected: Digest, got: Digest },
    #[error("there are several images in it ({}), or none with a name; say which one, as PATH:TAG", .tags.join(", "))]
    WhichTag { tags: Vec<String> },
    #[error("there is no image {tag} in it, only: {}", .tags.join(", "))]
    NoTag { tag: String, tags: Vec<String> },
    #[error("a layer cannot be unpacked: {0}")]
    Unpack(#[from] UnpackError),
    #[error(
        "there is no space for the image: {} {need}, {} are free on the disk of {path}; remove what is not needed with `trainyard image prune`",
        Bytes(*.wanted),
        Bytes(*.free)
    )]
    NoSpace { wanted: u64, need: &'static str, free: u64, path: PathBuf },
    #[error("cannot {what}: {source}")]
    Store {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the image store is busy: images are being brought in or started; try again when that is done")]
    Busy,
    #[error(transparent)]
    Registry(RegistryError),
    #[error("{source}; the workspace's file is {file}, your own is ~/.config/containers/auth.json")]
    Login {
        #[source]
        source: RegistryError,
        file: PathBuf,
    },
    #[error(transparent)]
    Name(#[from] ReferenceError),
    #[error("the credentials in {path} cannot be used: {source}")]
    Auth {
        path: PathBuf,
        #[source]
        source: AuthFileError,
    },
    #[error("the archive gives no name to the image; give one with --name")]
    NoName,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> ImageError {
    move |source| ImageError::Store { what, source }
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageRecord {
    pub digest: Digest,
    pub config: ImageConfig,
    /// By the digest of their content, bottom first.
    pub layers: Vec<Digest>,
    /// Bytes of its files.
    pub size: u64,
    /// Directories whose own attributes no upper layer tells have a layer of their own, on top.
    pub has_top: bool,
}

/// An image whose layers stay while this lives.
#[derive(Debug)]
pub struct Image {
    pub record: ImageRecord,
    /// Directories for overlayfs, top first.
    pub layers: Vec<PathBuf>,
    _pin: Pin,
}

/// How far a pull or an import has come; read while it goes on.
#[derive(Debug, Default)]
pub struct Progress {
    pub layers: AtomicU64,
    pub layers_done: AtomicU64,
    /// Bytes to fetch or read in all.
    pub bytes: AtomicU64,
    pub bytes_done: AtomicU64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        match read(&self.layers) {
            0 => f.write_str("looking for it"),
            layers => {
                let (done, bytes) = (Bytes(read(&self.bytes_done)), Bytes(read(&self.bytes)));
                write!(f, "{} of {layers} layer(s), {done} of {bytes} fetched and unpacked", read(&self.layers_done))
            }
        }
    }
}

impl Progress {
    fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

/// What may be unpacked and kept.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of the files of one layer.
    pub layer_bytes: u64,
    /// Files and directories of one layer.
    pub layer_entries: u64,
    /// Images that a job has brought and nobody has used for so long are removed.
    pub unused_after: Duration,
}

/// Where images that have a name come from.
#[derive(Debug, Clone)]
pub struct Sources {
    pub default_registry: String,
    /// Registries that may be spoken to without encryption.
    pub plain_http: Vec<String>,
    /// Below it lies `WORKSPACE/registry.json`, with credentials.
    pub secrets: PathBuf,
    /// Carries what is asynchronous.
    pub runtime: tokio::runtime::Handle,
}

/// A name that somebody wants.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub name: &'a str,
    pub workspace: &'a str,
    /// What the name is to be.
    pub kind: &'a Kind,
    pub uid: u32,
}

pub struct Images {
    root: PathBuf,
    limits: Limits,
    sources: Sources,
    layers: Layers,
    shifted: Shifted,
    registry: Mutex<Option<Arc<Registry>>>,
    turns: Mutex<BTreeMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

/// Blobs that are fetched at once.
const BLOBS_AT_ONCE: usize = 3;
/// What has come of a blob is kept so long for a later pull to go on from.
const DOWNLOAD_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Largest file of credentials, bytes.
const AUTH_FILE_MAX: u64 = 1 << 20;

impl Images {
    /// Opens the store below `root`, removing what an interrupted unpack has left.
    pub fn open(root: &Path, limits: Limits, sources: Sources) -> io::Result<Self> {
        for name in ["names", "manifests", "layers", "downloads"] {
            create_dir(&root.join(name), 0o700)?;
        }
        remove_tree(&root.join("drafts"))?;
        create_dir(&root.join("drafts"), 0o700)?;
        let (registry, turns) = (Mutex::default(), Mutex::default());
        let (layers, shifted) = (Layers::new(root), Shifted::new(root));
        Ok(Self { layers, shifted, root: root.to_owned(), limits, sources, registry, turns })
    }

    /// A place for files on their way into the store.
    pub fn drafts(&self) -> PathBuf {
        self.root.join("drafts")
    }

    fn manifest_file(&self, digest: &Digest) -> PathBuf {
        self.root.join("manifests").join(format!("{}.json", digest.hex()))
    }

    fn names(&self) -> names::Names {
        names::Names::new(self.root.join("names"))
    }

    /// The image with this digest.
    pub fn get(&self, digest: &Digest) -> Result<Image, ImageError> {
        let pin = self.layers.pin();
        let unknown = || ImageError::Unknown { name: digest.to_string() };
        let record = self.record(digest)?.ok_or_else(unknown)?;
        let seen = self.layers.seen(&record.layers)?;
        let mut layers: Vec<PathBuf> = seen.iter().rev().map(|layer| self.layers.files(layer.hex())).collect();
        if record.has_top {
            layers.insert(0, self.layers.files(&top_name(&record.digest)));
        }
        match layers.iter().find(|layer| !layer.exists()) {
            Some(_) => Err(unknown()),
            None => Ok(Image { record, layers, _pin: pin }),
        }
    }

    /// The image's layers as copies with the owners that `ids` gives them; top first.
    pub fn shifted(&self, image: &Image, ids: &IdMap) -> Result<Vec<PathBuf>, ImageError> {
        let one = |files: &PathBuf| {
            let layer = files.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
            self.shifted.copy(files, &layer, ids)
        };
        image.layers.iter().map(one).collect::<io::Result<_>>().map_err(failed("copy the image's layers for the user"))
    }

    fn record(&self, digest: &Digest) -> Result<Option<ImageRecord>, ImageError> {
        match fs::read(self.manifest_file(digest)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ImageError::Store { what: "read the image's record", source }),
        }
    }

    /// What a name stands for in a workspace: its own image, a public one, or one of the administrator's.
    pub fn find(&self, workspace: &str, name: &str) -> Result<Option<NameRecord>, ImageError> {
        let found = self.names().find(workspace, name).map_err(failed("read the names of images"))?;
        Ok(found.filter(|found| self.manifest_file(&found.digest).exists()))
    }

    /// Marks that a name was used now.
    pub fn touch(&self, record: &NameRecord) {
        if let Err(error) = self.names().touch(record) {
            tracing::warn!(%error, name = record.name, "cannot note the use of an image");
        }
    }

    /// Every name that a workspace sees; all of them without one.
    pub fn list(&self, workspace: Option<&str>) -> Result<Vec<(NameRecord, ImageRecord, Timestamp)>, ImageError> {
        let names = self.names().all().map_err(failed("read the names of images"))?;
        let seen =
            names.into_iter().filter(|(name, _)| workspace.is_none_or(|workspace| name.kind.is_seen_in(workspace)));
        let with_record = seen.map(|(name, used)| Ok(self.record(&name.digest)?.map(|record| (name, record, used))));
        with_record.filter_map(Result::transpose).collect()
    }

    /// Gives a name to an image.
    pub fn tag(&self, record: &NameRecord) -> Result<(), ImageError> {
        self.names().write(record).map_err(failed("write the name of the image"))
    }

    /// Takes a name away; its layers go with the next [`Self::prune`].
    pub fn untag(&self, record: &NameRecord) -> Result<(), ImageError> {
        self.names().remove(record).map_err(failed("remove the name of the image"))
    }

    /// Brings the OCI layout in the directory `path` into the store.
    pub fn import_layout(
        &self,
        path: &Path,
        tag: Option<&str>,
        rights: Rights<'_>,
        progress: &Arc<Progress>,
    ) -> Result<Imported, ImageError> {
        let source = rights.open(|| source::layout(path, tag))?;
        self.import(source, progress)
    }

    /// Brings an archive (OCI's or Docker's, perhaps compressed) into the store.
    pub fn import_archive(
        &self,
        path: &Path,
        tag: Option<&str>,
        rights: Rights<'_>,
        progress: &Arc<Progress>,
    ) -> Result<Imported, ImageError> {
        let opened =
            rights.open(|| open_plain(path).map_err(|source| ImageError::Source { path: path.to_owned(), source }));
        self.import_file(opened?, path, tag, progress)
    }

    /// As [`Self::import_archive`], from a file that is open; `path` is for messages.
    pub fn import_file(
        &self,
        file: File,
        path: &Path,
        tag: Option<&str>,
        progress: &Arc<Progress>,
    ) -> Result<Imported, ImageError> {
        let source = source::archive(file, path, &self.drafts(), tag)?;
        self.import(source, progress)
    }

    /// A file without a name for an archive that is being received.
    pub fn spool(&self) -> Result<File, ImageError> {
        source::tempfile_in(&self.drafts()).map_err(failed("make room for the archive"))
    }

    /// A name in full, as the store keeps it.
    pub fn canonical(&self, name: &str) -> Result<String, ImageError> {
        Ok(Reference::parse(name, &self.sources.default_registry)?.to_string())
    }

    /// Gets an image from its registry; layers that are here are not fetched again.
    pub fn pull(&self, wanted: &Wanted<'_>, progress: &Arc<Progress>) -> Result<NameRecord, ImageError> {
        let reference = Reference::parse(wanted.name, &self.sources.default_registry)?;
        let secrets = self.sources.secrets.join(wanted.workspace).join("registry.json");
        let credentials = self.credentials(wanted.uid, &secrets, &reference)?;
        let registry = self.registry()?;
        let source = registry::Source { reference: &reference, credentials: credentials.as_ref() };
        let explain = |error| explain(error, &secrets);
        let fetched = self.sources.runtime.block_on(registry.manifest(source)).map_err(explain)?;
        let (config, layers) = config::read(&fetched.config)?;
        let pin = self.layers.pin();
        let missing: Vec<_> =
            layers.iter().zip(&fetched.layers).filter(|(layer, _)| !self.layers.is_there(layer)).collect();
        let bytes = missing.iter().map(|(_, blob)| blob.size).sum();
        self.need_space(bytes)?;
        progress.layers.store(missing.len() as u64, Ordering::Relaxed);
        // Each byte is fetched, then taken apart.
        progress.bytes.store(2 * bytes, Ordering::Relaxed);
        let fetch = Fetch { images: self, registry: &registry, source, progress };
        let blobs = self.sources.runtime.block_on(fetch.all(missing)).map_err(|error| match error {
            ImageError::Registry(error) => explain(error),
            other => other,
        })?;
        let unpacked = self.layers.unpack_all(&blobs, &self.limits, progress);
        for blob in blobs.iter().filter_map(|(_, blob)| blob.digest.as_ref()) {
            remove_if_there(&self.download(blob)).map_err(failed("remove what was downloaded"))?;
        }
        unpacked?;
        let image = self.commit(fetched.digest, config, layers, &pin)?;
        let (name, kind, at) = (reference.to_string(), wanted.kind.clone(), crate::sys::now());
        let record = NameRecord { name, kind, digest: image.digest, uid: wanted.uid, at };
        self.tag(&record)?;
        Ok(record)
    }

    /// One for all pulls: it keeps connections and tokens. Made when it is needed, since a machine whose certificates
    /// cannot be read still runs jobs.
    fn registry(&self) -> Result<Arc<Registry>, ImageError> {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registry) = registry.as_ref() {
            return Ok(registry.clone());
        }
        let config = RegistryConfig { plain_http: self.sources.plain_http.clone(), ..RegistryConfig::default() };
        let made = Arc::new(Registry::new(config).map_err(ImageError::Registry)?);
        *registry = Some(made.clone());
        Ok(made)
    }

    fn download(&self, digest: &Digest) -> PathBuf {
        self.root.join("downloads").join(digest.hex())
    }

    /// Whose turn it is to fetch a blob.
    fn turn_for(&self, blob: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody waits for or holds is only a line in the list.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(blob.clone()).or_default().clone()
    }

    fn explain_disk(&self, error: RegistryError, wanted: u64) -> ImageError {
        match error {
            RegistryError::Disk(error) if error.kind() == io::ErrorKind::StorageFull => {
                let free = crate::sys::file::free_space(&self.root).unwrap_or(0);
                ImageError::NoSpace { wanted, need: "are to be fetched", free, path: self.root.clone() }
            }
            other => ImageError::Registry(other),
        }
    }

    fn need_space(&self, wanted: u64) -> Result<(), ImageError> {
        let free = crate::sys::file::free_space(&self.root).map_err(failed("look at the disk"))?;
        match wanted > free {
            true => Err(ImageError::NoSpace { wanted, need: "are to be fetched", free, path: self.root.clone() }),
            false => Ok(()),
        }
    }

    /// The workspace's credentials or, if it has none, the user's own.
    fn credentials(&self, uid: u32, secrets: &Path, of: &Reference) -> Result<Option<Credentials>, ImageError> {
        let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
        let own = user.iter().flat_map(|user| {
            let home = &user.dir;
            [home.join(".config/containers/auth.json"), home.join(".docker/config.json")]
        });
        let own: Vec<_> =
            [PathBuf::from(format!("/run/user/{uid}/containers/auth.json"))].into_iter().chain(own).collect();
        let (gid, groups) = (user.map_or(uid, |user| user.gid.as_raw()), crate::sys::process::groups_of(uid));
        let rights = Rights { uid, gid, groups: &groups };
        let root = Rights { uid: 0, gid: 0, groups: &[] };
        for (path, rights) in
            std::iter::once((secrets.to_owned(), root)).chain(own.into_iter().map(|path| (path, rights)))
        {
            let read = rights.open(|| Ok(crate::sys::file::read_limited(&path, AUTH_FILE_MAX).ok()))?;
            let Some((_, content)) = read else { continue };
            match credentials_in(&content, of.registry(), of.repository()) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(source) => return Err(ImageError::Auth { path, source }),
            }
        }
        Ok(None)
    }

    fn import(&self, source: Source, progress: &Arc<Progress>) -> Result<Imported, ImageError> {
        let (config, layers) = config::read(&source.config)?;
        if layers.len() != source.layers.len() {
            let why = format!("it has {} layers, its configuration names {}", source.layers.len(), layers.len());
            return Err(ImageError::Damaged { what: "the image".to_owned(), why });
        }
        progress.layers.store(layers.len() as u64, Ordering::Relaxed);
        progress.bytes.store(source.layers.iter().map(|blob| blob.size).sum(), Ordering::Relaxed);
        let pin = self.layers.pin();
        let wanted: Vec<_> = layers.iter().cloned().zip(source.layers).collect();
        self.layers.unpack_all(&wanted, &self.limits, progress)?;
        let record = self.commit(source.digest, config, layers, &pin)?;
        Ok(Imported { record, names: source.names, _pin: pin })
    }

    /// Records an image whose layers are there.
    fn commit(
        &self,
        digest: Digest,
        config: ImageConfig,
        layers: Vec<Digest>,
        _pin: &Pin,
    ) -> Result<ImageRecord, ImageError> {
        let size = self.layers.size(&layers)?;
        let has_top = self.layers.make_top(&top_name(&digest), self.layers.seen(&layers)?)?;
        let record = ImageRecord { digest, config, layers, size, has_top };
        let bytes = serde_json::to_vec_pretty(&record)
            .map_err(|error| ImageError::Damaged { what: "the image".to_owned(), why: error.to_string() })?;
        let written = write_whole(&self.manifest_file(&record.digest), &bytes, 0o600, Durability::Machine);
        written.map_err(failed("write the image's record"))?;
        Ok(record)
    }

    /// Removes what nobody needs: images without a name, layers without an image, downloads that nobody has gone on with;
    /// with `unused`, also names that jobs have brought and nobody has used for so long. `in_use` tells the layers of tasks
    /// that have not been cleaned up after. All of it is asked while nothing is brought in or started.
    pub fn prune(
        &self,
        in_use: impl FnOnce() -> io::Result<BTreeSet<PathBuf>>,
        unused: Option<Duration>,
        now: Timestamp,
    ) -> Result<Pruned, ImageError> {
        let mut names = Vec::new();
        let needed = || {
            let in_use = in_use().map_err(failed("look at the tasks"))?;
            let kept = self.drop_names(unused, now, &mut names)?;
            self.drop_downloads(now).map_err(failed("remove old downloads"))?;
            self.shifted.prune(&in_use).map_err(failed("remove copies of layers"))?;
            Ok(layers::Needed { names: self.drop_manifests(&kept)?, paths: in_use })
        };
        let (layers, bytes) = self.layers.prune(needed)?;
        Ok(Pruned { names, layers, bytes })
    }

    /// Removes names that are not used any more; the images that the others stand for.
    fn drop_names(
        &self,
        unused: Option<Duration>,
        now: Timestamp,
        dropped: &mut Vec<String>,
    ) -> Result<BTreeSet<Digest>, ImageError> {
        let mut kept = BTreeSet::new();
        for (name, used) in self.names().all().map_err(failed("read the names of images"))? {
            let idle = Duration::from_millis(now.0.saturating_sub(used.0));
            if name.kind.is_mine() && unused.is_some_and(|unused| idle >= unused) {
                self.untag(&name)?;
                dropped.push(name.name);
            } else {
                kept.insert(name.digest);
            }
        }
        Ok(kept)
    }

    fn drop_downloads(&self, now: Timestamp) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("downloads"))? {
            let path = entry?.path();
            let modified = fs::metadata(&path)?.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            if Duration::from_millis(now.0).saturating_sub(modified) >= DOWNLOAD_KEPT {
                remove_if_there(&path)?;
            }
        }
        Ok(())
    }

    /// Removes images that have no name, and tells the layers of those that stay.
    fn drop_manifests(&self, kept: &BTreeSet<Digest>) -> Result<BTreeSet<String>, ImageError> {
        let mut needed = BTreeSet::new();
        for entry in fs::read_dir(self.root.join("manifests")).map_err(failed("read the images"))? {
            let path = entry.map_err(failed("read the images"))?.path();
            let digest = path.file_stem().and_then(|name| name.to_str()).and_then(Digest::from_hex);
            let Some(digest) = digest else { continue };
            match self.record(&digest)?.filter(|_| kept.contains(&digest)) {
                Some(record) => {
                    needed.insert(top_name(&record.digest));
                    needed.extend(record.layers.iter().map(|layer| layer.hex().to_owned()));
                }
                None => remove_if_there(&path).map_err(failed("remove an image's record"))?,
            }
        }
        Ok(needed)
    }

    /// How long images that jobs have brought stay without being used.
    pub fn unused_after(&self) -> Duration {
        self.limits.unused_after
    }
}

/// An image that has come into the store, and what it was called where it came from. It stays while this lives: until
/// it has a name.
#[derive(Debug)]
pub struct Imported {
    pub record: ImageRecord,
    pub names: Vec<String>,
    _pin: Pin,
}

/// What [`Images::prune`] has removed.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    pub names: Vec<String>,
    pub layers: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// With whose rights files of the machine are opened.
#[derive(Debug, Clone, Copy)]
pub struct Rights<'a> {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
}

impl Rights<'_> {
    fn open<T: Send>(&self, work: impl FnOnce() -> Result<T, ImageError> + Send) -> Result<T, ImageError> {
        let taken = crate::sys::process::with_file_rights(self.uid, self.gid, self.groups, work);
        taken.map_err(failed("take the rights of the job's owner"))?
    }
}

/// Opens a regular file, without waiting on a fifo or a device.
fn open_plain(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// The blobs of one pull.
struct Fetch<'a> {
    images: &'a Images,
    registry: &'a Registry,
    source: registry::Source<'a>,
    progress: &'a Progress,
}

impl Fetch<'_> {
    async fn all(&self, missing: Vec<(&Digest, &LayerBlob)>) -> Result<Vec<(Digest, source::Blob)>, ImageError> {
        use futures_util::{StreamExt, TryStreamExt};
        let each = missing.into_iter().map(|(layer, blob)| self.one(layer, blob));
        let fetched: Vec<_> = futures_util::stream::iter(each).buffered(BLOBS_AT_ONCE).try_collect().await?;
        Ok(fetched.into_iter().flatten().collect())
    }

    /// `None` when another pull has brought the layer meanwhile.
    async fn one(&self, layer: &Digest, blob: &LayerBlob) -> Result<Option<(Digest, source::Blob)>, ImageError> {
        // Two pulls of one blob must not write one file.
        let turn = self.images.turn_for(&blob.digest);
        let _mine = turn.lock().await;
        if self.images.layers.is_there(layer) {
            return Ok(None);
        }
        let told = "keep what is downloaded";
        let mut file = open_download(&self.images.download(&blob.digest)).map_err(failed(told))?;
        let before = AtomicU64::new(0);
        let come = |now: u64| {
            let before = before.swap(now, Ordering::Relaxed);
            Progress::add(&self.progress.bytes_done, now.wrapping_sub(before));
        };
        let fetched = self.registry.blob(self.source, blob, &mut file, &come).await;
        fetched.map_err(|error| self.images.explain_disk(error, blob.size))?;
        let blob = source::Blob::new(file, blob.digest.clone()).map_err(failed(told))?;
        Ok(Some((layer.clone(), blob)))
    }
}

/// Whoever is not let in is told where a login belongs.
fn explain(error: RegistryError, secrets: &Path) -> ImageError {
    match error {
        source @ RegistryError::Unauthorized { .. } => ImageError::Login { source, file: secrets.to_owned() },
        other => ImageError::Registry(other),
    }
}

/// What an interrupted pull has left, to go on from.
fn open_download(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn top_name(image: &Digest) -> String {
    format!("top-{}", image.hex())
}
