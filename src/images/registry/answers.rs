//! What a failed request means, in the terms of [`RegistryError`].

use std::error::Error;
use std::io;
use std::time::Duration;

use oci_client::errors::{DigestError, OciDistributionError, OciEnvelope, OciErrorCode};
use reqwest::Url;

use super::Source;
use super::errors::{Missing, RegistryError, WhyUnreachable};
use super::image::short;
use super::trap::Trap;

/// One question to a registry, and what must not come back in a sentence.
pub(super) struct Question<'a> {
    pub(super) source: Source<'a>,
    /// Who stands where plain http would lead, for a registry of https.
    pub(super) trap: Option<&'a Trap>,
    /// Longest time without a byte.
    pub(super) stall: Duration,
    /// In words, for sentences.
    pub(super) what: String,
    /// What is not there when it is not found.
    pub(super) missing: Option<Missing>,
    pub(super) secrets: &'a [String],
}

impl Question<'_> {
    /// The text of `error` is never shown whole: an address in it may hold a signature, an answer of a token server a token.
    pub(super) fn meaning(&self, error: OciDistributionError) -> RegistryError {
        use OciDistributionError as E;
        match error {
            E::RequestError(error) => self.without_answer(&error),
            E::IoError(error) => self.without_end(&error),
            E::DigestError(DigestError::VerificationError { expected, actual }) => {
                match (expected.parse(), actual.parse()) {
                    (Ok(expected), Ok(got)) => self.source.wrong_digest(&self.what, expected, got),
                    _ => self.source.damaged(&self.what, "its digest is not the one that was promised"),
                }
            }
            E::DigestError(error) => self.source.damaged(&self.what, short(&error.to_string())),
            E::AuthenticationFailure(_) => self.source.unauthorized(),
            E::RegistryTokenDecodeError(_) => self.source.damaged("a token", "it is no JSON with a token"),
            E::UnauthorizedError { url } => self.refused(&url, Some(401), ""),
            E::ServerError { code, url, message } => self.refused(&url, Some(code), &message),
            E::RegistryError { envelope, url } => self.refused(&url, status(&envelope), &words(&envelope)),
            E::SpecViolationError(why) => self.source.damaged(&self.what, short(&why)),
            _ => self.source.damaged(&self.what, "it is nothing that a registry says"),
        }
    }

    /// An answer that is not what was asked for, from `url`.
    fn refused(&self, url: &str, status: Option<u16>, says: &str) -> RegistryError {
        let url = Url::parse(url).ok();
        if let Some(elsewhere) = url.filter(|url| !self.source.is_registry(url)) {
            // Where a registry sends us to lets us in for a short time only; asked again, it sends us anew.
            let status = status.map(|status| format!(" with status {status}")).unwrap_or_default();
            let why = format!("where it sends us to for that ({}) refuses it{status}", host(&elsewhere));
            return self.source.broke_off(&self.what, &why);
        }
        let (registry, what, says) = (self.source.registry(), self.what.clone(), self.words(says));
        match (status, &self.missing) {
            (Some(401 | 403), _) => self.source.unauthorized(),
            (Some(404), Some(missing)) => self.source.not_found(missing.clone()),
            (Some(429), _) => RegistryError::RateLimited { registry },
            (Some(status @ (408 | 500..)), _) => RegistryError::ServerFailed { registry, what, status },
            _ => RegistryError::Refused { registry, what, status, says },
        }
    }

    /// The registry's own words, unless they repeat a secret of ours.
    fn words(&self, says: &str) -> String {
        match says.trim() {
            "" => "it does not say why".to_owned(),
            words if self.secrets.iter().any(|secret| !secret.is_empty() && words.contains(secret)) => {
                "it repeats our credentials".to_owned()
            }
            words => short(words),
        }
    }

    /// A request that got no answer.
    pub(super) fn without_answer(&self, error: &reqwest::Error) -> RegistryError {
        if let Some(tls) = found_in(error) {
            return without_tls(self.source, tls);
        }
        if self.trap.is_some_and(Trap::has_caught) {
            return self.source.untrusted("it sends us from https to plain http");
        }
        if error.is_redirect() {
            return self.source.untrusted(innermost(error));
        }

        if !error.is_connect() {
            return self.without_end(error);
        }
        let kind = found_in::<io::Error>(error).map(io::Error::kind);
        self.source.unreachable(match kind {
            _ if chain(error).any(|error| error.to_string().starts_with("dns error")) => WhyUnreachable::Name,
            _ if error.is_timeout() => WhyUnreachable::Timeout,
            Some(io::ErrorKind::ConnectionRefused) => WhyUnreachable::Refused,
            Some(io::ErrorKind::TimedOut) => WhyUnreachable::Timeout,
            _ => WhyUnreachable::Other(innermost(error)),
        })
    }

    /// An answer that broke off, or did not go on.
    pub(super) fn without_end(&self, error: &(dyn Error + 'static)) -> RegistryError {
        match found_in::<reqwest::Error>(error).is_some_and(reqwest::Error::is_timeout) {
            true => self.source.stalled(&self.what, self.stall),
            false => self.source.broke_off(&self.what, &innermost(error)),
        }
    }
}

fn without_tls(source: Source<'_>, error: &rustls::Error) -> RegistryError {
    let registry = source.registry();
    match error {
        // What a server without TLS answers is no record of TLS.
        rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            RegistryError::PlainHttpNotAllowed { registry }
        }
        other => RegistryError::TlsFailed { registry, why: short(&other.to_string()) },
    }
}

/// The crate does not tell the status of a refusal that has words.
fn status(envelope: &OciEnvelope) -> Option<u16> {
    use OciErrorCode as C;
    envelope.errors.iter().find_map(|error| match &error.code {
        C::BlobUnknown | C::ManifestBlobUnknown | C::ManifestUnknown | C::NameUnknown | C::NotFound => Some(404),
        C::Unauthorized | C::Denied => Some(403),
        C::Toomanyrequests => Some(429),
        C::Other(code) if code.contains("NOT_FOUND") || code.contains("UNKNOWN") => Some(404),
        C::Other(code) if code.contains("TOO_MANY") || code.contains("LIMIT") => Some(429),
        _ => None,
    })
}

fn words(envelope: &OciEnvelope) -> String {
    envelope.errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>().join("; ")
}

pub(super) fn host(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", url.host_str().unwrap_or_default())
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    })
}

fn found_in<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(error).find_map(itself_or_held)
}

/// An `io::Error` hides what it holds from `source`; one may hold another.
fn itself_or_held<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    let held = error.downcast_ref::<io::Error>()?.get_ref()?;
    found_in(held)
}

/// reqwest's own words say nothing; the reason lies innermost.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let last = chain(error).last().map(ToString::to_string);
    short(&last.unwrap_or_default())
}
