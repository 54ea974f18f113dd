//! Why a registry did not give what was asked for: sentences for whoever asked, without secrets.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Source;
use crate::images::digest::Digest;

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum RegistryError {
    #[error("registry {registry} has no {missing}; check the name{}", log_in_hint(*.had_credentials))]
    NotFound { registry: String, missing: Missing, had_credentials: bool },
    #[error(
        "registry {registry} does not let us have {repository}: {}, or there is no such repository; put credentials for {registry} into the file of credentials, as `podman login --authfile FILE {registry}` does",
        if *.had_credentials { "it does not accept the credentials, or they do not reach so far" } else { "it wants credentials and none are known" }
    )]
    Unauthorized { registry: String, repository: String, had_credentials: bool },
    #[error(
        "registry {registry} does not speak https; if it is to be trusted without, the administrator can allow plain http: plain_http = [\"{registry}\"] under [images]"
    )]
    PlainHttpNotAllowed { registry: String },
    #[error("registry {registry} cannot be reached: {why}")]
    Unreachable { registry: String, why: WhyUnreachable },
    #[error(
        "registry {registry} cannot prove over https who it is: {why}; if its certificate is of your own authority, the administrator can add that to the ones this machine trusts"
    )]
    TlsFailed { registry: String, why: String },
    #[error(
        "registry {registry} takes no more requests for now; try again later, or with credentials that may ask more often"
    )]
    RateLimited { registry: String },
    #[error("registry {registry} failed with status {status} when asked for {what}; try again later")]
    ServerFailed { registry: String, what: String, status: u16 },
    #[error("registry {registry} refuses {what}{}: {says}", status_hint(*.status))]
    Refused { registry: String, what: String, status: Option<u16>, says: String },
    #[error("registry {registry} sent nothing of {what} for {} seconds; try again, what came is kept", .stall.as_secs_f32())]
    Stalled { registry: String, what: String, stall: Duration },
    #[error("registry {registry} broke off at {what}: {why}; try again, what came is kept")]
    BrokeOff { registry: String, what: String, why: String },
    #[error("registry {registry} leads where we do not go: {why}")]
    Untrusted { registry: String, why: String },
    #[error("registry {registry} sent something else than {what}: its digest is {got}, not {expected}")]
    WrongDigest { registry: String, what: String, expected: Digest, got: Digest },
    #[error("{image} is not made for this machine: it is there for {}, this is {wanted}", .offered.join(", "))]
    NoPlatform { image: String, wanted: String, offered: Vec<String> },
    #[error("{image} is not an image that can be run here: it is {why}")]
    NotAnImage { image: String, why: String },
    #[error("registry {registry} sends more than {limit} bytes of {what}, the most it may have")]
    TooLarge { registry: String, what: String, limit: u64 },
    #[error("registry {registry} sent {what} damaged: {why}")]
    Damaged { registry: String, what: String, why: String },
    #[error("connections to registries cannot be made: {why}")]
    Setup { why: String },
    #[error("a blob cannot be kept on disk")]
    #[serde(skip)]
    Disk(#[from] io::Error),
}

/// What a registry does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missing {
    Repository(String),
    /// A tag, or a digest that a reference is pinned to.
    Manifest {
        repository: String,
        selector: String,
    },
    /// A blob that a manifest names.
    Blob {
        repository: String,
        digest: Digest,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Repository(repository) => write!(f, "repository {repository}"),
            Missing::Manifest { repository, selector } if selector.contains(':') => {
                write!(f, "manifest {selector} in repository {repository}")
            }
            Missing::Manifest { repository, selector } => write!(f, "tag {selector} in repository {repository}"),
            Missing::Blob { repository, digest } => write!(f, "blob {digest} in repository {repository}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhyUnreachable {
    /// The name has no address.
    Name,
    /// Nothing listens there.
    Refused,
    /// No connection in time.
    Timeout,
    /// In the words of the system.
    Other(String),
}

impl fmt::Display for WhyUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyUnreachable::Name => "its name has no address; check the spelling and the machine's name servers",
            WhyUnreachable::Refused => "nothing listens there; check the port and whether it runs",
            WhyUnreachable::Timeout => "no connection in time; check the network, a firewall or a proxy",
            WhyUnreachable::Other(why) => why,
        })
    }
}

fn log_in_hint(had_credentials: bool) -> &'static str {
    match had_credentials {
        true => ", and whether the credentials reach so far: some registries say the same of what one may not see",
        false => "; some registries say the same of what one may see only with credentials",
    }
}

fn status_hint(status: Option<u16>) -> String {
    status.map(|status| format!(" with status {status}")).unwrap_or_default()
}

impl RegistryError {
    /// Whether the same may go well soon, so that a blob is tried again.
    pub fn is_passing(&self) -> bool {
        use RegistryError as E;
        matches!(
            self,
            E::Unreachable { .. }
                | E::RateLimited { .. }
                | E::ServerFailed { .. }
                | E::Stalled { .. }
                | E::BrokeOff { .. }
        )
    }
}

/// What goes wrong, with the names filled in.
impl Source<'_> {
    pub(super) fn not_found(&self, missing: Missing) -> RegistryError {
        RegistryError::NotFound { registry: self.registry(), missing, had_credentials: self.credentials.is_some() }
    }

    pub(super) fn unauthorized(&self) -> RegistryError {
        let (registry, repository) = (self.registry(), self.reference.repository().to_owned());
        RegistryError::Unauthorized { registry, repository, had_credentials: self.credentials.is_some() }
    }

    pub(super) fn unreachable(&self, why: WhyUnreachable) -> RegistryError {
        RegistryError::Unreachable { registry: self.registry(), why }
    }

    pub(super) fn broke_off(&self, what: &str, why: &str) -> RegistryError {
        RegistryError::BrokeOff { registry: self.registry(), what: what.to_owned(), why: why.to_owned() }
    }

    pub(super) fn stalled(&self, what: &str, stall: Duration) -> RegistryError {
        RegistryError::Stalled { registry: self.registry(), what: what.to_owned(), stall }
    }

    pub(super) fn untrusted(&self, why: impl Into<String>) -> RegistryError {
        RegistryError::Untrusted { registry: self.registry(), why: why.into() }
    }

    pub(super) fn wrong_digest(&self, what: &str, expected: Digest, got: Digest) -> RegistryError {
        RegistryError::WrongDigest { registry: self.registry(), what: what.to_owned(), expected, got }
    }

    pub(super) fn not_an_image(&self, why: impl Into<String>) -> RegistryError {
        RegistryError::NotAnImage { image: self.reference.to_string(), why: why.into() }
    }

    pub(super) fn too_large(&self, what: &str, limit: u64) -> RegistryError {
        RegistryError::TooLarge { registry: self.registry(), what: what.to_owned(), limit }
    }

    pub(super) fn damaged(&self, what: &str, why: impl Into<String>) -> RegistryError {
        RegistryError::Damaged { registry: self.registry(), what: what.to_owned(), why: why.into() }
    }
}
