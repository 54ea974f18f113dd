//! Requests to registries: by which scheme, with which proof, within which bounds.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RANGE};
use reqwest::redirect::{Attempt, Policy};
use reqwest::tls::Certificate;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use tokio::time::timeout;

use super::errors::{Missing, RegistryError};
use super::image;
use super::refusal::{refused, without_answer};
use super::token::{Grant, Grants};
use super::{RegistryConfig, Source};
use crate::images::digest::Digest;

/// So much of a refusal is read, bytes.
const REFUSAL_MAX: u64 = 16 << 10;
const REDIRECTS_MAX: usize = 5;

#[derive(Debug)]
pub(super) struct Wire {
    http: Client,
    plain_http: Vec<String>,
    pub(super) stall: Duration,
    grants: Grants,
}

/// One question to a registry.
#[derive(Debug)]
pub(super) struct Ask {
    /// Below `/v2/REPOSITORY/`.
    path: String,
    /// In words, for sentences.
    pub(super) what: String,
    kind: Kind,
    /// The first byte that is wanted.
    pub(super) from: u64,
}

#[derive(Debug)]
enum Kind {
    Manifest(String),
    Blob(Digest),
    Tags,
    Token,
}

impl Ask {
    pub(super) fn manifest(selector: &str) -> Self {
        let (path, what) = (format!("manifests/{selector}"), format!("manifest {selector}"));
        Self { path, what, kind: Kind::Manifest(selector.to_owned()), from: 0 }
    }

    pub(super) fn config(digest: &Digest) -> Self {
        Self { what: format!("configuration {}", digest.short()), ..Self::blob(digest, 0) }
    }

    pub(super) fn blob(digest: &Digest, from: u64) -> Self {
        let (path, what) = (format!("blobs/{digest}"), format!("layer {}", digest.short()));
        Self { path, what, kind: Kind::Blob(digest.clone()), from }
    }

    pub(super) fn tags() -> Self {
        Self { path: "tags/list?n=1".to_owned(), what: "the list of tags".to_owned(), kind: Kind::Tags, from: 0 }
    }

    pub(super) fn token() -> Self {
        Self { path: String::new(), what: "a token".to_owned(), kind: Kind::Token, from: 0 }
    }

    /// What is not there when it is not found.
    pub(super) fn missing(&self, source: Source<'_>) -> Option<Missing> {
        let repository = source.reference.repository().to_owned();
        match &self.kind {
            Kind::Manifest(selector) => Some(Missing::Manifest { repository, selector: selector.clone() }),
            Kind::Blob(digest) => Some(Missing::Blob { repository, digest: digest.clone() }),
            Kind::Tags => Some(Missing::Repository(repository)),
            Kind::Token => None,
        }
    }
}

impl Wire {
    pub(super) fn new(config: RegistryConfig) -> Result<Self, RegistryError> {
        // Whoever comes first in the process; all bring the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let setup = |what: &str| RegistryError::Setup { why: what.to_owned() };
        let pem = config.extra_ca.as_deref().unwrap_or_default();
        let extra = Certificate::from_pem_bundle(pem).map_err(|_| setup("the extra certificates are not PEM"))?;
        if config.extra_ca.is_some() && extra.is_empty() {
            return Err(setup("there is no certificate in the extra certificates"));
        }
        let builder = || {
            let name = concat!("trainyard/", env!("CARGO_PKG_VERSION"));
            Client::builder().user_agent(name).connect_timeout(config.connect).redirect(Policy::custom(follow))
        };
        // A machine without any certificates can still speak plain http; https will say that nobody is trusted.
        let http =
            builder().tls_certs_merge(extra.clone()).build().or_else(|_| builder().tls_certs_only(extra).build());
        let http = http.map_err(|_| setup("the TLS library does not start with the certificates of this machine"))?;
        Ok(Self { http, plain_http: config.plain_http, stall: config.stall, grants: Grants::default() })
    }

    pub(super) fn http(&self) -> &Client {
        &self.http
    }

    pub(super) fn is_plain(&self, source: Source<'_>) -> bool {
        self.plain_http.iter().any(|registry| registry == source.reference.registry())
    }

    /// Asks, proving ourselves where that is wanted; a token that is too old by now is replaced.
    pub(super) async fn get(&self, source: Source<'_>, ask: &Ask) -> Result<Response, RegistryError> {
        let kept = self.grants.of(source);
        let response = self.send(source, ask, kept.as_ref()).await?;
        // Only the registry itself may ask for a proof, not where it sends us.
        if response.status() != StatusCode::UNAUTHORIZED || !is_of_registry(source, &response) {
            return self.accepted(source, ask, response, kept.as_ref()).await;
        }
        let grant = self.authorize(source, &response).await?;
        let response = self.send(source, ask, Some(&grant)).await?;
        let response = self.accepted(source, ask, response, Some(&grant)).await?;
        self.grants.keep(source, grant);
        Ok(response)
    }

    async fn send(&self, source: Source<'_>, ask: &Ask, grant: Option<&Grant>) -> Result<Response, RegistryError> {
        let mut request = self.http.get(self.address(source, ask)?).header(ACCEPT, accept(ask));
        if ask.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", ask.from));
        }
        if let Some(grant) = grant {
            request = request.header(AUTHORIZATION, grant.header());
        }
        self.sent(source, ask, request).await
    }

    fn address(&self, source: Source<'_>, ask: &Ask) -> Result<Url, RegistryError> {
        let scheme = if self.is_plain(source) { "http" } else { "https" };
        let (host, repository) = (source.reference.host(), source.reference.repository());
        let address = format!("{scheme}://{host}/v2/{repository}/{}", ask.path);
        Url::parse(&address).map_err(|error| source.untrusted(format!("{host} is no address: {error}")))
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn sent(
        &self,
        source: Source<'_>,
        ask: &Ask,
        request: RequestBuilder,
    ) -> Result<Response, RegistryError> {
        match timeout(self.stall, request.send()).await {
            Err(_) => Err(source.stalled(&ask.what, self.stall)),
            Ok(sent) => sent.map_err(|error| without_answer(source, ask, &error)),
        }
    }

    /// Turns an answer that is not 200, or 206 where a part was asked for, into what it means.
    pub(super) async fn accepted(
        &self,
        source: Source<'_>,
        ask: &Ask,
        response: Response,
        grant: Option<&Grant>,
    ) -> Result<Response, RegistryError> {
        let status = response.status();
        let is_part = status == StatusCode::PARTIAL_CONTENT && ask.from > 0;
        if status == StatusCode::OK || is_part {
            return Ok(response);
        }
        let is_of_registry = matches!(ask.kind, Kind::Token) || is_of_registry(source, &response);
        if status.is_client_error() && !is_of_registry {
            // Where a registry sends us to lets us in for a short time only; asked again, it sends us anew.
            let why = format!("where it sends us to for that ({}) answers {status}", host(response.url()));
            return Err(source.broke_off(&ask.what, &why));
        }
        let headers = response.headers().clone();
        // Its words are a help; that they do not come is no other error.
        let body = self.whole(source, ask, response, REFUSAL_MAX).await.unwrap_or_default();
        let password = source.credentials.map_or("", |credentials| &credentials.password);
        let secrets = [password, grant.map_or("", Grant::secret)];
        Err(refused(source, ask, status, &headers, &body, &secrets))
    }

    /// A small document, within the time that a blob may stall.
    pub(super) async fn whole(
        &self,
        source: Source<'_>,
        ask: &Ask,
        mut response: Response,
        limit: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let collect = async {
            let mut bytes = Vec::new();
            while let Some(part) = response.chunk().await.map_err(|error| without_answer(source, ask, &error))? {
                if (bytes.len() + part.len()) as u64 > limit {
                    return Err(source.too_large(&ask.what, limit));
                }
                bytes.extend_from_slice(&part);
            }
            Ok(bytes)
        };
        timeout(self.stall, collect).await.unwrap_or_else(|_| Err(source.stalled(&ask.what, self.stall)))
    }
}

fn accept(ask: &Ask) -> String {
    if let Kind::Manifest(_) = ask.kind { image::accepted() } else { "*/*".to_owned() }
}

/// reqwest takes our proof off whatever leaves the host, the port or the scheme.
fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let leaves_https = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    if leaves_https && attempt.url().scheme() != "https" {
        return attempt.error("it sends us from https to plain http");
    }
    if attempt.previous().len() > REDIRECTS_MAX {
        return attempt.error("it sends us around without an end");
    }
    attempt.follow()
}

fn is_of_registry(source: Source<'_>, response: &Response) -> bool {
    let (url, registry) = (response.url(), source.reference.host());
    // An address tells its port only where it is not the usual one; a reference may tell that too.
    let port = url.port_or_known_default().map(|port| format!(":{port}")).unwrap_or_default();
    let full = format!("{}{port}", url.host_str().unwrap_or_default());
    [host(url), full].iter().any(|name| name.eq_ignore_ascii_case(registry))
}

fn host(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", url.host_str().unwrap_or_default())
}

pub(super) fn media_type(response: &Response) -> Option<String> {
    let text = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(text.split(';').next()?.trim().to_owned())
}

pub(super) fn told_digest(response: &Response) -> Option<Digest> {
    response.headers().get("docker-content-digest")?.to_str().ok()?.parse().ok()
}
