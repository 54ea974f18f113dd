//! Images: where they come from, how they lie on disk, which layers a container is made of.
//!
//! ```text
//! images/names/KIND/NAME.json    which image a name stands for; its modification time is the last use
//!        manifests/HEX.json      an image: its configuration and its layers, by digest
//!        layers/HEX/             one layer, by the digest of its content: fs/ as overlayfs takes it, layer.json
//!        downloads/HEX-HEX       blobs on the way, by the hash of their repository's name and by digest; a pull goes on where an earlier one broke off
//!        shifted/KEY/HEX/        copies of layers with other owners, where they cannot be shown so
//!        drafts/                 layers that are being unpacked; emptied at start
//! ```
//! Everything in `names`, `manifests` and `layers` appears whole, by rename. A layer is unpacked once, whoever needs it.
//!
//! **Invariant:** what lies in `layers` has the digest of its name; nothing is ever written there again.

pub mod config;
pub mod digest;
mod document;
mod error;
mod layers;
pub mod names;
mod prune;
mod pull;
pub mod registry;
mod shifted;
mod source;
pub mod unpack;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokio::sync::Notify;

pub use config::ImageConfig;
pub use digest::Digest;
pub use error::ImageError;
pub use names::{Kind, NameRecord};
pub use prune::{InUse, Keep, Pruned};
pub use registry::RegistryError;
pub use source::Format;

use crate::ids::{Bytes, Timestamp, WorkspaceName};
use crate::sys::file::{Durability, create_dir, remove_temporaries, remove_tree, write_whole};
use crate::sys::given_up::GivenUp;
use crate::sys::idmap::IdMap;
use crate::sys::process::SealedProgram;
use error::{failed, stored};
use layers::{Layers, Pin};
use registry::Reference;
use shifted::Shifted;
use source::Source;

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ImageRecord {
    #[schemars(with = "String")]
    pub digest: Digest,
    /// As OCI's specification of images has it.
    #[schemars(with = "serde_json::Value")]
    pub config: ImageConfig,
    /// By the digest of their content, bottom first.
    #[schemars(with = "Vec<String>")]
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
    given_up: GivenUp,
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
    /// Of what ends, wherever it is, once it is given up.
    pub fn until(given_up: GivenUp) -> Self {
        Self { given_up, ..Self::default() }
    }

    fn check(&self) -> Result<(), ImageError> {
        if self.given_up.is_set() { Err(ImageError::Unwanted) } else { Ok(()) }
    }

    /// What was cut short failed for no other reason.
    fn told(&self, error: ImageError) -> ImageError {
        if self.given_up.is_set() { ImageError::Unwanted } else { error }
    }

    /// Does `work`, as long as it is wanted.
    async fn while_wanted<T>(&self, work: impl Future<Output = T>) -> Result<T, ImageError> {
        let unwanted = Arc::new(Notify::new());
        let told = unwanted.clone();
        let _ending = self.given_up.ending(move || told.notify_one());
        tokio::select! {
            biased;
            () = unwanted.notified() => Err(ImageError::Unwanted),
            done = work => Ok(done),
        }
    }

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
    /// Images of a workspace that nobody has used for so long are removed.
    pub unused_after: Duration,
    /// Beyond so many bytes of files in the store, images of workspaces are removed, those used last go last.
    pub store_bytes: Option<u64>,
}

/// Where images that have a name come from.
#[derive(Debug, Clone)]
pub struct Sources {
    pub default_registry: String,
    /// Registries that may be spoken to without encryption.
    pub plain_http: Vec<String>,
    /// Below it lies `WORKSPACE/registry.json`, with credentials.
    pub secrets: PathBuf,
    /// This program, which is started to ask registries.
    pub program: Arc<SealedProgram>,
    /// Carries what is asynchronous.
    pub runtime: tokio::runtime::Handle,
}

/// What the rights to job files say of images.
pub trait Workspaces: fmt::Debug + Send + Sync {
    /// Whether a user may drop job files there.
    fn may_submit(&self, workspace: &WorkspaceName, uid: u32) -> io::Result<bool>;
    /// Whether there is such a one.
    fn is_there(&self, workspace: &WorkspaceName) -> bool;
    /// Whether nobody replaces there what is another one's.
    fn is_sticky(&self, workspace: &str) -> bool;
}

/// What a name stands for.
#[derive(Debug)]
pub enum Found {
    Nothing,
    Here(NameRecord),
    /// One that its giver may not give to others: their jobs do not get it.
    PassedOver(NameRecord),
}

/// A name that somebody wants.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub name: &'a str,
    pub workspace: &'a str,
    /// What the name is to be.
    pub kind: &'a Kind,
    pub uid: u32,
    /// For a run, which has its image also where the name is another one's.
    pub for_run: bool,
}

struct Given {
    limits: Limits,
    sources: Sources,
}

pub struct Images {
    root: PathBuf,
    /// As the configuration has it now.
    given: RwLock<Arc<Given>>,
    workspaces: Arc<dyn Workspaces>,
    layers: Layers,
    shifted: Shifted,

    /// Whose turn it is to write a download.
    turns: Mutex<BTreeMap<PathBuf, pull::Turn>>,
    /// Held while a name is looked at and given to another image.
    naming: Mutex<()>,
    /// Told when an image has come in.
    grown: Arc<Notify>,
}

/// One part in so many of the free disk is left by archives on their way.
const ROOM_LEFT: u64 = 20;

impl Images {
    /// Opens the store below `root`, removing what an interrupted unpack has left.
    pub fn open(root: &Path, limits: Limits, sources: Sources, workspaces: Arc<dyn Workspaces>) -> io::Result<Self> {
        for name in ["names", "manifests", "layers", "downloads"] {
            create_dir(&root.join(name), 0o700)?;
        }
        remove_tree(&root.join("drafts"))?;
        create_dir(&root.join("drafts"), 0o700)?;
        remove_temporaries(&root.join("manifests"))?;
        names::Names::new(root.join("names")).tidy()?;
        Ok(Self {
            layers: Layers::new(root),
            shifted: Shifted::new(root),
            root: root.to_owned(),
            given: RwLock::new(Arc::new(Given { limits, sources })),
            workspaces,

            turns: Mutex::default(),
            naming: Mutex::default(),
            grown: Arc::default(),
        })
    }

    fn given(&self) -> Arc<Given> {
        self.given.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What begins from now on goes by these.
    pub fn configure(&self, limits: Limits, default_registry: &str, plain_http: &[String]) {
        let mut given = self.given.write().unwrap_or_else(PoisonError::into_inner);
        let sources = Sources {
            default_registry: default_registry.to_owned(),
            plain_http: plain_http.to_vec(),
            ..given.sources.clone()
        };
        *given = Arc::new(Given { limits, sources });
    }

    /// One copy serves the whole daemon.
    pub fn program(&self) -> Arc<SealedProgram> {
        self.given().sources.program.clone()
    }

    fn drafts(&self) -> PathBuf {
        self.root.join("drafts")
    }

    /// Nothing is removed from the store while this lives.
    pub fn hold(&self) -> Hold {
        Hold { _pin: self.layers.pin() }
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
        let copied = image.layers.iter().map(one).collect::<io::Result<_>>();
        copied.map_err(stored(&self.root, "copy the image's layers for the user", image.record.size))
    }

    fn record(&self, digest: &Digest) -> Result<Option<ImageRecord>, ImageError> {
        match fs::read(self.manifest_file(digest)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ImageError::Store { what: "read the image's record", source }),
        }
    }

    /// What a name stands for in a workspace, for user `uid`: the workspace's image, one of the administrator's, or a public one.
    /// What they themselves, root or a registry have given by it goes before what others have.
    pub fn find(&self, workspace: &str, name: &str, uid: u32) -> Result<Found, ImageError> {
        let kinds = [Kind::Mine { workspace: workspace.to_owned() }, Kind::Preset, Kind::Public];
        let mut others = Vec::new();
        for kind in kinds {
            match self.find_of_kind(&kind, name)? {
                Some(found) if found.is_vouched_for(uid) => return Ok(Found::Here(found)),
                found => others.extend(found),
            }
        }
        for found in &others {
            if self.counts_for_others(&found.kind, &found.name, found.uid)? {
                return Ok(Found::Here(found.clone()));
            }
        }
        Ok(others.into_iter().next().map_or(Found::Nothing, Found::PassedOver))
    }

    /// Whether jobs of others find what user `uid` has given by this name: it would run with their rights, so nobody but root gives
    /// one that a job may mean otherwise. In a workspace where anybody replaces anything, that is so of all that is there.
    fn counts_for_others(&self, kind: &Kind, name: &str, uid: u32) -> Result<bool, ImageError> {
        let is_shared = matches!(kind, Kind::Mine { workspace } if !self.workspaces.is_sticky(workspace));
        if uid == 0 || is_shared {
            return Ok(true);
        }
        let Some(workspace) = self.workspace_of(name) else { return Ok(false) };
        self.workspaces.may_submit(&workspace, uid).map_err(failed("look at the rights of who has given the image"))
    }

    /// The workspace with which a name begins; of other names a registry alone has something.
    pub fn workspace_of(&self, name: &str) -> Option<WorkspaceName> {
        let named = names::workspace_of(name, &self.given().sources.default_registry);
        named.filter(|workspace| self.workspaces.is_there(workspace))
    }

    /// Refuses a name before what it is to stand for is brought.
    pub fn check_name(&self, kind: &Kind, name: &str, uid: u32) -> Result<(), ImageError> {
        self.check_public(kind, &self.canonical(name)?, uid)
    }

    fn check_public(&self, kind: &Kind, name: &str, uid: u32) -> Result<(), ImageError> {
        match *kind == Kind::Public && !self.counts_for_others(kind, name, uid)? {
            true => Err(ImageError::NotForAll { name: name.to_owned() }),
            false => Ok(()),
        }
    }

    /// What a name of this kind stands for.
    pub fn find_of_kind(&self, kind: &Kind, name: &str) -> Result<Option<NameRecord>, ImageError> {
        let found = self.names().get(kind, name).map_err(failed("read the names of images"))?;
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

    /// Gives a name to an image. What somebody else has given stays so where it is theirs alone to change.
    pub fn tag(&self, record: &NameRecord) -> Result<(), ImageError> {
        let _mine = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_public(&record.kind, &record.name, record.uid)?;
        self.check_giver(record, record.uid)?;
        self.write_name(record)
    }

    /// Keeps what a job has brought from a file of the machine under the file's name, which says where it came from and by
    /// which no job finds it.
    pub fn note(&self, record: &NameRecord) -> Result<(), ImageError> {
        let _mine = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_name(record)
    }

    fn write_name(&self, record: &NameRecord) -> Result<(), ImageError> {
        self.names().write(record).map_err(stored(&self.root, "write the name of the image", 4096))
    }

    /// As [`Self::tag`], for a name that somebody has thought of: one with a digest must tell the truth.
    pub fn name(&self, record: &NameRecord) -> Result<(), ImageError> {
        match record.name.rsplit_once('@') {
            Some((_, digest)) if digest != record.digest.to_string() => {
                Err(ImageError::PinnedName { name: record.name.clone(), digest: record.digest.clone() })
            }
            _ => self.tag(record),
        }
    }

    /// Takes a name away for user `uid`; its layers go with the next [`Self::prune`].
    pub fn untag(&self, record: &NameRecord, uid: u32) -> Result<(), ImageError> {
        let _mine = self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_giver(&NameRecord { digest: Digest::of(b""), pulled: false, ..record.clone() }, uid)?;
        self.names().remove(record).map_err(failed("remove the name of the image"))
    }

    /// A public name is its giver's, and so is one of a workspace in whose directory of job files nobody replaces what is
    /// another one's. To give it to the image that it has is no change, and what a registry has given it gives anew.
    fn check_giver(&self, record: &NameRecord, uid: u32) -> Result<(), ImageError> {
        let is_giver_s = match &record.kind {
            Kind::Mine { workspace } => self.workspaces.is_sticky(workspace),
            Kind::Public | Kind::Preset => true,
        };
        if uid == 0 || !is_giver_s {
            return Ok(());
        }
        match self.find_of_kind(&record.kind, &record.name)? {
            Some(found) if found.uid != uid && found.digest != record.digest && !(found.pulled && record.pulled) => {
                Err(ImageError::NotYours { name: found.name, kind: found.kind, owner: found.uid })
            }
            _ => Ok(()),
        }
    }

    /// Brings what lies on this machine into the store, opened with the rights of whoever asked.
    pub fn import(
        &self,
        wanted: &Local<'_>,
        rights: Rights<'_>,
        progress: &Arc<Progress>,
    ) -> Result<Imported, ImageError> {
        let Local { path, format, .. } = *wanted;
        if format == Format::Layout {
            let source = rights.open(|| source::layout(path, wanted.tag))?;
            return self.bring(source, wanted.workspace, progress);
        }
        let opened =
            rights.open(|| open_plain(path).map_err(|source| ImageError::Source { path: path.to_owned(), source }));
        self.import_file(opened?, wanted, progress)
    }

    /// As [`Self::import`], of an archive that is open; its path is for messages.
    pub fn import_file(
        &self,
        file: File,
        wanted: &Local<'_>,
        progress: &Arc<Progress>,
    ) -> Result<Imported, ImageError> {
        let spool = source::Spool { directory: &self.drafts(), most: self.room()?, given_up: &progress.given_up };
        let source = source::archive(file, wanted, &spool).map_err(|error| progress.told(error))?;
        self.bring(source, wanted.workspace, progress)
    }

    /// Bytes that an archive may take on its way, so that something is left for everybody else.
    fn room(&self) -> Result<u64, ImageError> {
        let free = crate::sys::file::free_space(&self.root).map_err(failed("look at the disk"))?;
        Ok(free - free / ROOM_LEFT)
    }

    /// A file without a name for an archive that is being received, and how many bytes of it there may be.
    pub fn spool(&self) -> Result<(File, u64), ImageError> {
        let file = source::tempfile_in(&self.drafts()).map_err(failed("make room for the archive"))?;
        Ok((file, self.room()?))
    }

    /// What to say when that is not enough.
    pub fn no_room(&self, wanted: u64) -> ImageError {
        ImageError::no_space(&self.root, wanted, error::AND_MORE)
    }

    /// A name in full, as the store keeps it.
    pub fn canonical(&self, name: &str) -> Result<String, ImageError> {
        Ok(Reference::parse(name, &self.given().sources.default_registry)?.to_string())
    }

    fn bring(&self, source: Source, workspace: &str, progress: &Arc<Progress>) -> Result<Imported, ImageError> {
        let (config, layers) = config::read(&source.config)?;
        if layers.len() != source.layers.len() {
            let why = format!("it has {} layers, its configuration names {}", source.layers.len(), layers.len());
            return Err(ImageError::Damaged { what: "the image".to_owned(), why });
        }
        progress.layers.store(layers.len() as u64, Ordering::Relaxed);
        let bytes = source.layers.iter().fold(0u64, |sum, blob| sum.saturating_add(blob.size));
        progress.bytes.store(bytes, Ordering::Relaxed);
        let pin = self.layers.pin();
        self.prove_seen(workspace)?;
        let wanted: Vec<_> = layers.iter().cloned().zip(source.layers).collect();
        self.layers.unpack_all(&wanted, workspace, &self.given().limits, progress)?;
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
        let path = self.manifest_file(&record.digest);
        // Most starts bring an image that is here.
        if !fs::read(&path).is_ok_and(|there| there == bytes) {
            let written = write_whole(&path, &bytes, 0o600, Durability::Machine);
            written.map_err(stored(&self.root, "write the image's record", bytes.len() as u64))?;
        }
        self.grown.notify_one();
        Ok(record)
    }

    /// What the workspace sees by name it need not bring again to have it.
    fn prove_seen(&self, workspace: &str) -> Result<(), ImageError> {
        let seen = self.list(Some(workspace))?;
        seen.into_iter().for_each(|(_, record, _)| self.layers.prove(workspace, record.layers));
        Ok(())
    }

    /// Which images of workspaces stay by themselves.
    pub fn keep(&self) -> Keep {
        let given = self.given();
        Keep { used_within: Some(given.limits.unused_after), bytes: given.limits.store_bytes }
    }

    /// Waits until an image has come in since it was last waited for.
    pub async fn grown(&self) {
        self.grown.notified().await;
    }
}

/// Keeps everything in the store.
#[derive(Debug)]
pub struct Hold {
    _pin: Pin,
}

/// An image that lies on this machine, for a workspace.
#[derive(Debug, Clone, Copy)]
pub struct Local<'a> {
    pub path: &'a Path,
    pub format: Format,
    pub tag: Option<&'a str>,
    pub workspace: &'a str,
}

/// An image that has come into the store, and what it was called where it came from. It stays while this lives: until
/// it has a name.
#[derive(Debug)]
pub struct Imported {
    pub record: ImageRecord,
    pub names: Vec<String>,
    _pin: Pin,
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

fn top_name(image: &Digest) -> String {
    format!("top-{}", image.hex())
}

#[cfg(test)]
mod tests;
