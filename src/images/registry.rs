//! Images from registries (OCI distribution, Docker's v2), through `oci-client`.
//!
//! A manifest and a configuration are checked by their digests before they are believed; blobs go to files that a later
//! pull goes on from, and are checked when they are taken apart.

use std::fs::File;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use oci_client::client::{BlobResponse, ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciImageManifest;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};

use super::auth::Credentials;
use super::digest::Digest;

/// Largest configuration, bytes.
const CONFIG_MAX: usize = 4 << 20;
/// How often a blob is tried again when it broke off, and how long the first wait is.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// A registry that says nothing for so long is given up.
const STALL: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(20);

/// Why a registry did not give what was asked for; a sentence for whoever asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{0:?} is no name of an image: {1}")]
    Name(String, String),
    #[error("registry {registry} has no image {image}")]
    NotFound { registry: String, image: String },
    #[error(
        "registry {registry} does not let us have {image}: {}, or there is no such image; log in with `podman login --authfile FILE {registry}`, where FILE is the workspace's {file} or your own ~/.config/containers/auth.json",
        if *.had_credentials { "the credentials are not accepted" } else { "it wants a login" }
    )]
    Unauthorized { registry: String, image: String, had_credentials: bool, file: String },
    #[error(
        "registry {registry} cannot be reached over https: {why}; if it speaks plain http, the administrator can allow that: plain_http = [\"{registry}\"] under [images] in trainyard.toml"
    )]
    Unreachable { registry: String, why: String },
    #[error("registry {registry} is too busy: it refuses for now (429); try again later")]
    Busy { registry: String },
    #[error("registry {registry} answers something that is not an image: {why}")]
    NotAnImage { registry: String, why: String },
    #[error("registry {registry} broke off while it sent {what}: {why}")]
    BrokeOff { registry: String, what: String, why: String },
    #[error("cannot keep {what}: {source}")]
    Disk {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// What a registry says of an image.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) digest: Digest,
    pub(super) config: Vec<u8>,
    /// Bottom first: the digest of the blob, and its size in bytes.
    pub(super) blobs: Vec<(Digest, u64)>,
}

/// One repository that is being pulled from.
pub(super) struct Registry {
    client: Client,
    reference: Reference,
    auth: RegistryAuth,
    had_credentials: bool,
    secrets_file: String,
}

/// The full name: registry, repository, and tag or digest.
pub(super) fn parse(name: &str, default_registry: &str) -> Result<Reference, RegistryError> {
    let first = name.split('/').next().unwrap_or_default();
    let has_registry = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let full = match has_registry {
        true => name.to_owned(),
        // Docker's own registry keeps plain names below library/; others do not.
        false if default_registry == "docker.io" && !name.contains('/') => format!("docker.io/library/{name}"),
        false => format!("{default_registry}/{name}"),
    };
    full.parse().map_err(|error: oci_client::ParseError| RegistryError::Name(name.to_owned(), error.to_string()))
}

impl Registry {
    pub(super) fn new(
        reference: Reference,
        plain_http: &[String],
        credentials: Option<Credentials>,
        secrets_file: String,
    ) -> Self {
        // Whoever comes first; the same one each time.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = ClientConfig {
            protocol: ClientProtocol::HttpsExcept(plain_http.to_vec()),
            read_timeout: Some(STALL),
            connect_timeout: Some(CONNECT),
            user_agent: concat!("trainyard/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let had_credentials = credentials.is_some();
        let auth = match credentials {
            None => RegistryAuth::Anonymous,
            Some(Credentials { user, password }) => RegistryAuth::Basic(user, password),
        };
        Self { client: Client::new(config), reference, auth, had_credentials, secrets_file }
    }

    /// The image's manifest (of an index: the one for this machine) and configuration.
    pub(super) async fn manifest(&self) -> Result<Fetched, RegistryError> {
        let pulled = self.client.pull_image_manifest_and_list_digest(&self.reference, &self.auth).await;
        let (manifest, digest, _) = pulled.map_err(|error| self.explain(error))?;
        let config = self.config(&manifest).await?;
        let blobs = manifest.layers.iter().map(|layer| {
            let size = u64::try_from(layer.size).map_err(|_| self.not_an_image("a layer with a negative size"))?;
            Ok((self.digest(&layer.digest)?, size))
        });
        Ok(Fetched { digest: self.digest(&digest)?, config, blobs: blobs.collect::<Result<_, _>>()? })
    }

    async fn config(&self, manifest: &OciImageManifest) -> Result<Vec<u8>, RegistryError> {
        let mut config = Bounded::default();
        let pulled = self.client.pull_blob(&self.reference, &manifest.config, &mut config).await;
        pulled.map_err(|error| self.explain(error))?;
        let expected = self.digest(&manifest.config.digest)?;
        match Digest::of(&config.0) == expected {
            true => Ok(config.0),
            false => Err(self.not_an_image("its configuration is not what its digest says")),
        }
    }

    /// Fetches a blob into `into`, going on after what is there. `got` is told of each part.
    pub(super) async fn blob(
        &self,
        digest: &Digest,
        size: u64,
        into: &mut File,
        got: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), RegistryError> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            match self.go_on(digest, size, into, got).await {
                Err(error) if attempt < TRIES && error.is_passing() => {
                    tracing::warn!(%error, attempt, "a blob broke off, going on");
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
                ended => return ended,
            }
        }
        Ok(())
    }

    async fn go_on(
        &self,
        digest: &Digest,
        size: u64,
        into: &mut File,
        got: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), RegistryError> {
        let what = format!("layer {}", digest.short());
        let disk = |source| RegistryError::Disk { what: what.clone(), source };
        let mut at = into.metadata().map_err(disk)?.len().min(size);
        if at == size {
            return Ok(());
        }
        let name = digest.to_string();
        let response = self.client.pull_blob_stream_partial(&self.reference, name.as_str(), at, None).await;
        let mut stream = match response.map_err(|error| self.explain(error))? {
            BlobResponse::Partial(stream) => stream.stream,
            // It knows no ranges: once more from the start.
            BlobResponse::Full(stream) => {
                at = 0;
                stream.stream
            }
        };
        into.set_len(at).map_err(disk)?;
        io::Seek::seek(into, io::SeekFrom::Start(at)).map_err(disk)?;
        let broke = |why: String| RegistryError::BrokeOff { registry: self.name(), what: what.clone(), why };
        while let Some(part) = stream.next().await {
            let part = part.map_err(|error| broke(error.to_string()))?;
            at += part.len() as u64;
            if at > size {
                return Err(self.not_an_image("a layer that is longer than its manifest says"));
            }
            into.write_all(&part).map_err(disk)?;
            got(part.len() as u64);
        }
        if at == size { Ok(()) } else { Err(broke(format!("{at} of {size} bytes came"))) }
    }

    fn name(&self) -> String {
        self.reference.registry().to_owned()
    }

    fn digest(&self, text: &str) -> Result<Digest, RegistryError> {
        text.parse().map_err(|error: super::digest::NotADigest| self.not_an_image(&error.to_string()))
    }

    fn not_an_image(&self, why: &str) -> RegistryError {
        RegistryError::NotAnImage { registry: self.name(), why: why.to_owned() }
    }

    fn explain(&self, error: OciDistributionError) -> RegistryError {
        use OciDistributionError as E;
        let (registry, image) = (self.name(), self.reference.to_string());
        match &error {
            E::ImageManifestNotFoundError(_) => RegistryError::NotFound { registry, image },
            E::ServerError { code: 404, .. } => RegistryError::NotFound { registry, image },
            E::RegistryError { envelope, .. } if is_missing(envelope) => RegistryError::NotFound { registry, image },
            E::UnauthorizedError { .. } | E::AuthenticationFailure(_) | E::ServerError { code: 401 | 403, .. } => {
                let (had_credentials, file) = (self.had_credentials, self.secrets_file.clone());
                RegistryError::Unauthorized { registry, image, had_credentials, file }
            }
            E::RegistryError { envelope, .. } if is_denied(envelope) => {
                let (had_credentials, file) = (self.had_credentials, self.secrets_file.clone());
                RegistryError::Unauthorized { registry, image, had_credentials, file }
            }
            E::ServerError { code: 429, .. } => RegistryError::Busy { registry },
            E::ServerError { code, .. } if *code >= 500 => {
                RegistryError::BrokeOff { registry, what: image, why: format!("it answered {code}") }
            }
            E::RequestError(request) => RegistryError::Unreachable { registry, why: innermost(request) },
            E::IoError(io) => RegistryError::BrokeOff { registry, what: image, why: io.to_string() },
            other => RegistryError::NotAnImage { registry, why: other.to_string() },
        }
    }
}

impl RegistryError {
    /// It may go well the next time.
    fn is_passing(&self) -> bool {
        matches!(self, RegistryError::BrokeOff { .. } | RegistryError::Busy { .. } | RegistryError::Unreachable { .. })
    }
}

fn is_missing(envelope: &oci_client::errors::OciEnvelope) -> bool {
    use oci_client::errors::OciErrorCode as Code;
    let missing =
        |code: &Code| matches!(code, Code::ManifestUnknown | Code::NameUnknown | Code::NotFound | Code::BlobUnknown);
    envelope.errors.iter().any(|error| missing(&error.code))
}

fn is_denied(envelope: &oci_client::errors::OciEnvelope) -> bool {
    use oci_client::errors::OciErrorCode as Code;
    envelope.errors.iter().any(|error| matches!(error.code, Code::Unauthorized | Code::Denied))
}

/// reqwest's own words say nothing; the reason lies innermost.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Memory that grows to a bound.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl tokio::io::AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.0.len() + bytes.len() > CONFIG_MAX {
            return Poll::Ready(Err(io::Error::other(format!("larger than {CONFIG_MAX} bytes"))));
        }
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_people_expect() {
        let full = |name, default| parse(name, default).map(|reference| reference.whole()).unwrap_or_default();
        for (name, default, expected) in [
            ("ubuntu", "docker.io", "docker.io/library/ubuntu:latest"),
            ("pytorch/pytorch:2.3", "docker.io", "docker.io/pytorch/pytorch:2.3"),
            ("torch:2.3", "registry.lab:5000", "registry.lab:5000/torch:2.3"),
            ("localhost/x:1", "docker.io", "localhost/x:1"),
            ("127.0.0.1:5000/x", "docker.io", "127.0.0.1:5000/x:latest"),
        ] {
            assert_eq!(full(name, default), expected);
        }
        assert!(parse("UPPER", "docker.io").is_err());
    }
}
