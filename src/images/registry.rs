//! Images from registries (OCI distribution, Docker's v2): which image a name stands for, and its blobs.
//!
//! Called by the image store. Nothing that a registry says is believed: manifests and configurations are bounded and
//! checked by their digests, blobs are bounded by their manifest and checked by theirs. Never unpacks, never keeps
//! credentials longer than the process, never runs a credential helper.
//!
//! `oci-client` gives the grammar of names and the shapes of refusals, `oci-spec` those of documents. The former's `Client` is not used: it reads manifests and
//! refusals of any length into memory, sends credentials to whatever token server a registry names, keeps the first
//! credentials of a registry for everybody, and drops `Retry-After`. What stands below it (reqwest) is used directly.
//!
//! ```text
//! Source ── manifest() ─▶ index? ─▶ manifest of this machine ─▶ configuration ─▶ Fetched
//! LayerBlob ── blob() ─▶ go on after what the file holds ─▶ digest of the whole ─▶ done
//!                             ▲     broke off, busy, stalled: wait  │
//!                             └─────────────────────────────────────┘
//! ```

mod blob;
mod credentials;
mod errors;
mod image;
mod reference;
mod refusal;
mod token;
mod wire;

use std::fs::File;
use std::time::Duration;

pub use credentials::{AuthFileError, Credentials, credentials_in};
pub use errors::{Missing, RegistryError, WhyUnreachable};
pub use reference::{Reference, ReferenceError};

use crate::images::digest::Digest;
use image::{Document, Image};
use wire::{Ask, Wire};

/// Largest manifest, index or configuration, bytes.
pub const DOCUMENT_MAX: u64 = 4 << 20;

/// How to speak with registries.
#[derive(Debug, Clone)]
pub struct RegistryConfig {
    /// Registries, as `HOST` or `HOST:PORT` in the spelling of references, that are spoken to without TLS.
    pub plain_http: Vec<String>,
    /// Longest time to a connection.
    pub connect: Duration,
    /// Longest time without a byte of a blob, and for the whole of a small document.
    pub stall: Duration,
    /// The first wait before a blob is tried again; each next one is twice as long.
    pub first_wait: Duration,
    /// Certificates (PEM) to trust beside the machine's.
    pub extra_ca: Option<Vec<u8>>,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            plain_http: Vec::new(),
            connect: Duration::from_secs(20),
            stall: Duration::from_secs(60),
            first_wait: Duration::from_secs(1),
            extra_ca: None,
        }
    }
}

/// An image and who asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub reference: &'a Reference,
    pub credentials: Option<&'a Credentials>,
}

/// An image as a registry describes it; all digests are checked but those of the layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The bytes of the manifest for this machine.
    pub manifest: Vec<u8>,
    pub digest: Digest,
    /// Of the index that led to the manifest, where there was one.
    pub index_digest: Option<Digest>,
    pub config: Vec<u8>,
    pub config_digest: Digest,
    /// Bottom first.
    pub layers: Vec<LayerBlob>,
    /// Of the layers' content without compression; as many as layers.
    pub diff_ids: Vec<Digest>,
}

/// A layer as the registry keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerBlob {
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    pub media_type: String,
}

/// All registries. Tokens are kept per repository and credentials, so one for the whole daemon is enough.
#[derive(Debug)]
pub struct Registry {
    wire: Wire,
    first_wait: Duration,
}

impl Registry {
    pub fn new(config: RegistryConfig) -> Result<Self, RegistryError> {
        Ok(Self { first_wait: config.first_wait, wire: Wire::new(config)? })
    }

    /// What the name stands for on this machine. Asked once; who calls decides whether to ask again.
    pub async fn manifest(&self, source: Source<'_>) -> Result<Fetched, RegistryError> {
        let (bytes, document) = match self.document(source, source.reference.selector()).await {
            Err(error) => return Err(self.what_is_missing(source, error).await),
            found => found?,
        };
        match document {
            Document::Image(image) => self.finish(source, bytes, image, None).await,
            Document::Index(index) => {
                let chosen = image::choose(source, &index)?;
                let (manifest, document) = self.document(source, &chosen.to_string()).await?;
                let Document::Image(image) = document else {
                    return Err(source.not_an_image("an index inside of an index"));
                };
                self.finish(source, manifest, image, Some(Digest::of(&bytes))).await
            }
        }
    }

    /// Fetches a blob into `into`, going on after what the file holds. On success the file is the blob, not yet synced;
    /// when what came is wrong it is empty; after any other error it holds what came. `progress` is told how many bytes
    /// of the blob are there; that number falls when a blob must start again.
    pub async fn blob(
        &self,
        source: Source<'_>,
        layer: &LayerBlob,
        into: &mut File,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), RegistryError> {
        blob::Transfer { wire: &self.wire, source, layer, progress }.run(into, self.first_wait).await
    }

    async fn document(&self, source: Source<'_>, selector: &str) -> Result<(Vec<u8>, Document), RegistryError> {
        let ask = Ask::manifest(selector);
        let response = self.wire.get(source, &ask).await?;
        let (told, media_type) = (wire::told_digest(&response), wire::media_type(&response));
        let bytes = self.wire.whole(source, &ask, response, DOCUMENT_MAX).await?;
        // The digest in the name is binding; the one in the header shows what a proxy broke.
        for expected in selector.parse().ok().into_iter().chain(told) {
            source.check(&ask.what, expected, &bytes)?;
        }
        let document = image::read(source, &bytes, media_type.as_deref())?;
        Ok((bytes, document))
    }

    async fn finish(
        &self,
        source: Source<'_>,
        manifest: Vec<u8>,
        image: Image,
        index_digest: Option<Digest>,
    ) -> Result<Fetched, RegistryError> {
        let ask = Ask::config(&image.config);
        let response = self.wire.get(source, &ask).await?;
        let config = self.wire.whole(source, &ask, response, DOCUMENT_MAX).await?;
        source.check(&ask.what, image.config.clone(), &config)?;
        let diff_ids = image::diff_ids(source, &config, image.layers.len())?;
        let (digest, config_digest, layers) = (Digest::of(&manifest), image.config, image.layers);
        Ok(Fetched { manifest, digest, index_digest, config, config_digest, layers, diff_ids })
    }

    /// A registry says the same of an absent tag and of an absent repository; one more question tells them apart.
    async fn what_is_missing(&self, source: Source<'_>, error: RegistryError) -> RegistryError {
        let is_missing = matches!(error, RegistryError::NotFound { .. });
        if is_missing && let Err(absent @ RegistryError::NotFound { .. }) = self.wire.get(source, &Ask::tags()).await {
            return absent;
        }
        error
    }
}

impl Source<'_> {
    fn registry(&self) -> String {
        self.reference.registry().to_owned()
    }

    fn check(&self, what: &str, expected: Digest, bytes: &[u8]) -> Result<(), RegistryError> {
        let got = Digest::of(bytes);
        if got == expected { Ok(()) } else { Err(self.wrong_digest(what, expected, got)) }
    }
}
