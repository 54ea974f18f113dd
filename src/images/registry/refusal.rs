//! What a failed request means, in the terms of [`RegistryError`].

use std::error::Error;
use std::io;
use std::time::Duration;

use oci_client::errors::OciEnvelope;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::Source;
use super::errors::{RegistryError, WhyUnreachable};
use super::image::short;
use super::wire::Ask;

/// A request that got no answer, or whose answer ended early. The text of `error` is never shown whole: the address
/// in it may hold a signature.
pub(super) fn without_answer(source: Source<'_>, ask: &Ask, error: &reqwest::Error) -> RegistryError {
    if let Some(tls) = chain(error).find_map(tls_error) {
        return without_tls(source, tls);
    }
    if error.is_redirect() {
        return source.untrusted(innermost(error));
    }
    if !error.is_connect() {
        return source.broke_off(&ask.what, &innermost(error));
    }
    let kind = chain(error).find_map(|error| error.downcast_ref::<io::Error>()).map(io::Error::kind);
    source.unreachable(match kind {
        _ if chain(error).any(|error| error.to_string().starts_with("dns error")) => WhyUnreachable::Name,
        _ if error.is_timeout() => WhyUnreachable::Timeout,
        Some(io::ErrorKind::ConnectionRefused) => WhyUnreachable::Refused,
        Some(io::ErrorKind::TimedOut) => WhyUnreachable::Timeout,
        _ => WhyUnreachable::Other(innermost(error)),
    })
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

/// An answer that is not what was asked for. `body` is the start of what came with it.
pub(super) fn refused(
    source: Source<'_>,
    ask: &Ask,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    secrets: &[&str],
) -> RegistryError {
    let (registry, what) = (source.registry(), ask.what.clone());
    match status.as_u16() {
        401 | 403 => source.unauthorized(),
        404 => match ask.missing(source) {
            Some(missing) => source.not_found(missing),
            None => RegistryError::Refused { registry, what, status: 404, says: says(body, secrets) },
        },
        429 => RegistryError::RateLimited { registry, after: retry_after(headers) },
        status @ (408 | 500..) => RegistryError::ServerFailed { registry, what, status },
        status => RegistryError::Refused { registry, what, status, says: says(body, secrets) },
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The registry's own words, unless they repeat a secret of ours.
fn says(body: &[u8], secrets: &[&str]) -> String {
    let words = match serde_json::from_slice::<OciEnvelope>(body) {
        Ok(envelope) => envelope.errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>().join("; "),
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    match words.as_str() {
        "" => "it does not say why".to_owned(),
        words if secrets.iter().any(|secret| !secret.is_empty() && words.contains(secret)) => {
            "it repeats our credentials".to_owned()
        }
        words => short(words),
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    })
}

/// An `io::Error` hides what it holds from `source`; one may hold another.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    let held = error.downcast_ref::<io::Error>()?.get_ref()?;
    tls_error(held)
}

/// reqwest's own words say nothing; the reason lies innermost.
fn innermost(error: &reqwest::Error) -> String {
    let last = chain(error).last().map(ToString::to_string);
    short(&last.unwrap_or_default())
}
