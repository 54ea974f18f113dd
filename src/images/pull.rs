//! Getting images from registries: what is here already is not fetched again, and pulls that want one blob of one repository at the same time
//! fetch it once, whatever workspaces they are for.
//!
//! **Invariant:** what was downloaded serves only pulls of the same repository: whoever reads a manifest there may read its blobs. Anybody can
//! write a manifest of their own that names the blob of another repository.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::digest::Digest;
use super::error::{TO_FETCH, failed, is_full};
use super::registry::{
    self, Credentials, LayerBlob, Reference, Registry, RegistryConfig, RegistryError, credentials_in,
};
use super::{ImageError, Images, NameRecord, Progress, Rights, Wanted, config, source};
use crate::ids::Timestamp;
use crate::sys::file::remove_if_there;

/// Blobs that are fetched at once.
const BLOBS_AT_ONCE: usize = 3;
/// What has come of a blob is kept so long for a later pull to go on from.
const DOWNLOAD_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Largest file of credentials, bytes.
const AUTH_FILE_MAX: u64 = 1 << 20;

impl Images {
    /// Gets an image from its registry; layers that are here are not fetched again.
    pub fn pull(&self, wanted: &Wanted<'_>, progress: &Arc<Progress>) -> Result<NameRecord, ImageError> {
        let given = self.given();
        let reference = Reference::parse(wanted.name, &given.sources.default_registry)?;
        let secrets = given.sources.secrets.join(wanted.workspace).join("registry.json");
        let credentials = self.credentials(wanted.uid, &secrets, &reference)?;
        let registry = self.registry()?;
        let source = registry::Source { reference: &reference, credentials: credentials.as_ref() };
        let explain = |error| explain(error, &secrets);
        let asked = progress.while_wanted(registry.manifest(source));
        let fetched = given.sources.runtime.block_on(asked)?.map_err(explain)?;
        let (config, layers) = config::read(&fetched.config)?;
        let pin = self.layers.pin();
        let made_of = layers.iter().cloned().zip(fetched.layers.iter().map(|blob| blob.digest.clone()));
        let claims = Claims::of(self, &reference, wanted.workspace, made_of);
        self.prove_seen(wanted.workspace)?;
        let missing: Vec<_> = layers
            .iter()
            .zip(&fetched.layers)
            .filter(|(layer, _)| !self.layers.is_had(wanted.workspace, layer))
            .collect();
        // Sizes are the registry's word: together they may be more than a number holds.
        let bytes = missing.iter().fold(0u64, |sum, (_, blob)| sum.saturating_add(blob.size));
        self.need_space(bytes)?;
        progress.layers.store(missing.len() as u64, Ordering::Relaxed);
        // Each byte is fetched, then taken apart.
        progress.bytes.store(bytes.saturating_mul(2), Ordering::Relaxed);
        let fetch = Fetch { images: self, registry: &registry, source, progress, workspace: wanted.workspace };
        let blobs =
            given.sources.runtime.block_on(progress.while_wanted(fetch.all(missing)))?.map_err(
                |error| match error {
                    ImageError::Registry(error) => explain(error),
                    other => other,
                },
            )?;
        let unpacked = self.layers.unpack_all(&blobs, wanted.workspace, &given.limits, progress);
        // What makes no layer is not what a later pull goes on from; what was cut short may.
        if !matches!(unpacked, Ok(()) | Err(ImageError::Unwanted)) {
            for blob in blobs.iter().filter_map(|(_, blob)| blob.digest.as_ref()) {
                remove_if_there(&self.download(&reference, blob)).map_err(failed("remove what was downloaded"))?;
            }
        }
        unpacked?;
        // Before the image is known: who is killed in between looks at it again, and takes away what is left.
        drop(claims);
        let image = self.commit(fetched.digest, config, layers, &pin)?;
        let (name, kind, at) = (reference.to_string(), wanted.kind.clone(), crate::sys::now());
        let record = NameRecord { name, kind, digest: image.digest, uid: wanted.uid, pulled: true, at };
        match self.tag(&record) {
            Err(ImageError::NotYours { .. }) if wanted.for_run => {}
            named => named?,
        }
        Ok(record)
    }

    fn registry(&self) -> Result<Registry, ImageError> {
        let config =
            RegistryConfig { plain_http: self.given().sources.plain_http.clone(), ..RegistryConfig::default() };
        Registry::new(self.program(), config).map_err(ImageError::Registry)
    }

    /// Where a blob of the image's repository comes to lie.
    fn download(&self, of: &Reference, blob: &Digest) -> PathBuf {
        let repository = Digest::of(format!("{}/{}", of.registry(), of.repository()).as_bytes());
        self.root.join("downloads").join(format!("{}-{}", repository.hex(), blob.hex()))
    }

    /// Whose turn it is to write a download.
    fn turn_for(&self, download: &Path) -> Turn {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody waits for or holds is only a line in the list.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(download.to_owned()).or_default().clone()
    }

    fn explain_disk(&self, error: RegistryError, wanted: u64) -> ImageError {
        match error {
            RegistryError::Disk(error) if is_full(&error) => ImageError::no_space(&self.root, wanted, TO_FETCH),
            other => ImageError::Registry(other),
        }
    }

    fn need_space(&self, wanted: u64) -> Result<(), ImageError> {
        let free = crate::sys::file::free_space(&self.root).map_err(failed("look at the disk"))?;
        match wanted > free {
            true => Err(ImageError::no_space(&self.root, wanted, TO_FETCH)),
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
        let groups = crate::sys::process::groups_of(uid);
        let groups = groups.map_err(|source| ImageError::Store { what: "look for a login of the owner's", source })?;
        let gid = user.map_or(uid, |user| user.gid.as_raw());
        let rights = Rights { uid, gid, groups: &groups };
        let root = Rights { uid: 0, gid: 0, groups: &[] };
        for (path, rights) in
            std::iter::once((secrets.to_owned(), root)).chain(own.into_iter().map(|path| (path, rights)))
        {
            let read = rights.open(|| Ok(crate::sys::file::read_limited(&path, AUTH_FILE_MAX)))?;
            let content = match read {
                Ok((_, content)) => content,
                // A workspace's login that cannot be read is no pull without one.
                Err(source) if path == secrets && source.kind() != io::ErrorKind::NotFound => {
                    return Err(ImageError::Source { path, source });
                }
                Err(_) => continue,
            };
            match credentials_in(&content, of.registry(), of.repository()) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(source) => return Err(ImageError::Auth { path, source }),
            }
        }
        Ok(None)
    }

    /// Removes what no later pull has gone on with.
    pub(super) fn drop_downloads(&self, now: Timestamp) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("downloads"))? {
            let path = entry?.path();
            let modified = fs::metadata(&path)?.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            if Duration::from_millis(now.0).saturating_sub(modified) >= DOWNLOAD_KEPT {
                remove_if_there(&path)?;
            }
        }
        Ok(())
    }
}

/// Held by who writes a download.
pub(super) type Turn = Arc<tokio::sync::Mutex<()>>;

/// What a pull wants. What was downloaded of it goes with the last that wants it and has its layer: a pull for another workspace has to
/// bring the layer as well, and need not fetch it again. So does what a pull that was killed has left.
struct Claims<'a> {
    images: &'a Images,
    workspace: &'a str,
    /// Layers, and the downloads that they are made of.
    wanted: Vec<(Digest, PathBuf, Turn)>,
}

impl<'a> Claims<'a> {
    fn of(
        images: &'a Images,
        reference: &Reference,
        workspace: &'a str,
        wanted: impl Iterator<Item = (Digest, Digest)>,
    ) -> Self {
        let one = |(layer, blob): (Digest, Digest)| {
            let download = images.download(reference, &blob);
            let turn = images.turn_for(&download);
            (layer, download, turn)
        };
        Self { images, workspace, wanted: wanted.map(one).collect() }
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let mut turns = self.images.turns.lock().unwrap_or_else(PoisonError::into_inner);
        for (layer, path, turn) in self.wanted.drain(..) {
            drop(turn);
            // The list has one itself. While it is locked nobody comes to want it.
            let is_wanted = turns.get(&path).is_some_and(|turn| Arc::strong_count(turn) > 1);
            if is_wanted || !self.images.layers.is_had(self.workspace, &layer) {
                continue;
            }
            turns.remove(&path);
            if let Err(error) = remove_if_there(&path) {
                tracing::warn!(path = %path.display(), %error, "what was downloaded of an image cannot be removed");
            }
        }
    }
}

/// The blobs of one pull.
struct Fetch<'a> {
    images: &'a Images,
    registry: &'a Registry,
    source: registry::Source<'a>,
    progress: &'a Progress,
    /// For which it is.
    workspace: &'a str,
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
        let path = self.images.download(self.source.reference, &blob.digest);
        let turn = self.images.turn_for(&path);
        let _mine = turn.lock().await;
        let told = "keep what is downloaded";
        // Opened first: whoever has brought the layer removes the file once the layer is there.
        let mut file = open_download(&path).map_err(failed(told))?;
        if self.images.layers.is_had(self.workspace, layer) {
            if file.metadata().map_err(failed(told))?.len() == 0 {
                remove_if_there(&path).map_err(failed(told))?;
            }
            return Ok(None);
        }
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
