//! TLS for connections over the network. Certificate and key are read again when their files have changed, so that who renews
//! them need not restart anything.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use tokio_rustls::TlsAcceptor;

/// Certificate and key of one listener.
#[derive(Debug)]
pub struct Credentials {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    /// Of the files that were tried last.
    signs: [Option<Sign>; 2],
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loaded")
    }
}

/// By what a file is told from the one that was there before.
type Sign = (u64, i64, i64, u64);

fn sign(path: &Path) -> Option<Sign> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

impl Credentials {
    pub fn open(certificate: &Path, key: &Path) -> io::Result<Self> {
        let signs = [sign(certificate), sign(key)];
        let config = load(certificate, key)?;
        let loaded = Mutex::new(Loaded { signs, config });
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), loaded })
    }

    /// For the next connection. What cannot be used leaves the last good pair in force.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let signs = [sign(&self.certificate), sign(&self.key)];
        if signs != loaded.signs {
            loaded.signs = signs;
            match load(&self.certificate, &self.key) {
                Ok(config) => {
                    tracing::info!(path = %self.certificate.display(), "the certificate was renewed");
                    loaded.config = config;
                }
                Err(error) => tracing::warn!(%error, "the new certificate cannot be used, the old one stays in force"),
            }
        }
        TlsAcceptor::from(loaded.config.clone())
    }
}

fn load(certificate: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let at = |path: &Path, what: String| io::Error::other(format!("{}: {what}", path.display()));
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| at(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(at(certificate, "there is no certificate in it".to_owned()));
    }
    let own = PrivateKeyDer::from_pem_file(key).map_err(|error| at(key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, own);
    // Also where they are not of one another.
    let mut config = config.map_err(|error| at(key, format!("does not go with the certificate: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
