//! Images from registries (OCI distribution, Docker's v2): which image a name stands for, and its blobs.
//!
//! Called by the image store. Nothing that a registry says is believed: manifests and configurations are bounded and
//! checked by their digests, blobs are bounded by their manifest and checked by theirs. Never unpacks, never keeps
//! credentials, never runs a credential helper.
//!
//! Registries are asked by `oci-client`, in a process of its own for each question (`process` says why); `oci-spec` gives the
//! shapes of documents. What is kept on disk, and checked, is the daemon's.
//!
//! ```text
//! daemon                                                       trainyard registry
//! Source ── manifest() ── Describe ─────────────────────────▶  index? ─▶ manifest of this machine ─▶ configuration
//!                                                  Fetched ◀──
//! LayerBlob ── blob() ─▶ Blob, after what the file holds ───▶  the rest of it
//!                ▲           digest of the whole ─▶ done  ◀──
//!                └── broke off, busy, stalled: wait
//! ```

mod answers;
mod asker;
mod blob;
mod credentials;
mod errors;
mod image;
mod login;
mod process;
mod proxies;
mod reference;
mod trap;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

pub use asker::run;
pub use credentials::{AuthFileError, Credentials, credentials_in};
pub use errors::{Missing, RegistryError, WhyUnreachable};
pub use proxies::Proxies;
pub use reference::{Reference, ReferenceError};

use process::{Asking, Errand, News, Order};
use serde::{Deserialize, Serialize};

use crate::images::digest::Digest;
use crate::sys::process::SealedProgram;

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
    pub proxies: Proxies,
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
            proxies: Proxies::of_environment(),
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// The bytes of the manifest for this machine.
    #[serde(with = "in_base64")]
    pub manifest: Vec<u8>,
    pub digest: Digest,
    /// Of the index that led to the manifest, where there was one.
    pub index_digest: Option<Digest>,
    #[serde(with = "in_base64")]
    pub config: Vec<u8>,
    pub config_digest: Digest,
    /// Bottom first.
    pub layers: Vec<LayerBlob>,
    /// Of the layers' content without compression; as many as layers.
    pub diff_ids: Vec<Digest>,
}

/// A layer as the registry keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerBlob {
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    pub media_type: String,
}

impl Fetched {
    /// Whether the digests are those of what is there, and of what was asked for. Who has told it reads what strangers say.
    fn is_sound(&self, source: Source<'_>) -> bool {
        let digests = [Some(&self.digest), self.index_digest.as_ref()];
        let is_asked = source.reference.digest().is_none_or(|pinned| digests.contains(&Some(pinned)));
        let is_true = Digest::of(&self.manifest) == self.digest && Digest::of(&self.config) == self.config_digest;
        is_asked && is_true && self.layers.len() == self.diff_ids.len()
    }
}

impl LayerBlob {
    /// In words, for sentences.
    fn named(&self) -> String {
        format!("layer {}", self.digest.short())
    }
}

/// All registries.
#[derive(Debug)]
pub struct Registry {
    program: Arc<SealedProgram>,
    config: RegistryConfig,
    /// To trust beside the machine's, as DER.
    certificates: Vec<Vec<u8>>,
}

impl Registry {
    /// `program` is what is started to ask: this program.
    pub fn new(program: Arc<SealedProgram>, config: RegistryConfig) -> Result<Self, RegistryError> {
        let certificates = config.extra_ca.as_deref().map(certificates).transpose()?.unwrap_or_default();
        Ok(Self { program, config, certificates })
    }

    /// What the name stands for on this machine. Asked once; who calls decides whether to ask again.
    pub async fn manifest(&self, source: Source<'_>) -> Result<Fetched, RegistryError> {
        let what = format!("manifest {}", source.reference.selector());
        let mut asking = self.ask(source, what, Errand::Describe).await?;
        match asking.next().await? {
            News::Described(fetched) if fetched.is_sound(source) => Ok(*fetched),
            _ => Err(asking.strange()),
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
        blob::Transfer { registry: self, source, layer, progress }.run(into, self.config.first_wait).await
    }

    async fn ask<'a>(&self, source: Source<'a>, what: String, errand: Errand) -> Result<Asking<'a>, RegistryError> {
        let [https_proxy, http_proxy] = self.config.proxies.for_host(source.reference.host());
        let order = Order {
            image: source.reference.to_string(),
            credentials: source.credentials.cloned(),
            is_plain: self.config.plain_http.iter().any(|registry| registry == source.reference.registry()),
            connect: self.config.connect,
            stall: self.config.stall,
            certificates: self.certificates.clone(),
            https_proxy,
            http_proxy,
            errand,
        };
        Asking::start(&self.program, source, what, &order).await
    }
}

impl Source<'_> {
    fn registry(&self) -> String {
        self.reference.registry().to_owned()
    }

    /// Whether the address is the registry's own.
    fn is_registry(&self, url: &reqwest::Url) -> bool {
        let registry = self.reference.host();
        // An address tells its port only where it is not the usual one; a reference may tell that too.
        let port = url.port_or_known_default().map(|port| format!(":{port}")).unwrap_or_default();
        let full = format!("{}{port}", url.host_str().unwrap_or_default());
        [answers::host(url), full].iter().any(|name| name.eq_ignore_ascii_case(registry))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>, RegistryError> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let setup = |what: &str| RegistryError::Setup { why: what.to_owned() };
    let all = CertificateDer::pem_slice_iter(pem).map(|found| found.map(|der| der.to_vec()));
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|_| setup("the extra certificates are not PEM"))?;
    if all.is_empty() { Err(setup("there is no certificate in the extra certificates")) } else { Ok(all) }
}

/// Bytes in JSON.
mod in_base64 {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}
