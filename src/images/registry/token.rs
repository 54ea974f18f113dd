//! Answers to `www-authenticate`: a password as it is, or a token of the registry's token server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, Url};
use serde::Deserialize;

use super::Source;
use super::credentials::{Credentials, TOKEN_USER};
use super::errors::RegistryError;
use super::wire::{Ask, Wire};
use crate::images::digest::Digest;

/// Largest answer of a token server, bytes.
const TOKEN_MAX: u64 = 1 << 20;
/// Most grants that are kept; more than that many repositories at once are not pulled from.
const GRANTS_MAX: usize = 1000;

/// What a request proves itself with; marked so that nothing prints it.
#[derive(Debug, Clone)]
pub(super) struct Grant(HeaderValue);

impl Grant {
    fn new(text: String) -> Option<Self> {
        let mut header = HeaderValue::try_from(text).ok()?;
        header.set_sensitive(true);
        Some(Self(header))
    }

    fn basic(credentials: &Credentials) -> Option<Self> {
        Self::new(format!("Basic {}", STANDARD.encode(format!("{}:{}", credentials.user, credentials.password))))
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    /// What must not come back in a sentence.
    pub(super) fn secret(&self) -> &str {
        self.0.to_str().ok().and_then(|text| text.split_once(' ')).map_or("", |(_, secret)| secret)
    }
}

/// Grants by registry, repository and the digest of the credentials: nobody gets what another one's password opened.
#[derive(Debug, Default)]
pub(super) struct Grants(Mutex<HashMap<Key, Grant>>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    registry: String,
    repository: String,
    login: Option<Digest>,
}

impl Grants {
    pub(super) fn of(&self, source: Source<'_>) -> Option<Grant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key(source)).cloned()
    }

    pub(super) fn keep(&self, source: Source<'_>, grant: Grant) {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if grants.len() >= GRANTS_MAX {
            grants.clear();
        }
        grants.insert(key(source), grant);
    }
}

fn key(source: Source<'_>) -> Key {
    let login = source.credentials.map(|login| Digest::of(format!("{}\0{}", login.user, login.password).as_bytes()));
    Key { registry: source.registry(), repository: source.reference.repository().to_owned(), login }
}

/// One way to prove oneself that a registry accepts.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// What the registry wants, the token server before the password.
fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|header| header.to_str().ok());
    let mut found: Vec<Challenge> = texts
        .flat_map(|text| http_auth::parse_challenges(text).unwrap_or_default())
        .filter_map(|challenge| {
            let of = |name: &str| {
                let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            match challenge.scheme.to_ascii_lowercase().as_str() {
                "basic" => Some(Challenge::Basic),
                "bearer" => Some(Challenge::Bearer { realm: of("realm")?, service: of("service"), scope: of("scope") }),
                _ => None,
            }
        })
        .collect();
    found.sort_by_key(|challenge| *challenge == Challenge::Basic);
    found.into_iter().next()
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Wire {
    /// Does what a refusal asks for.
    pub(super) async fn authorize(&self, source: Source<'_>, refusal: &Response) -> Result<Grant, RegistryError> {
        let refused = || source.unauthorized();
        match challenge(refusal.headers()).ok_or_else(refused)? {
            Challenge::Basic => source.credentials.and_then(Grant::basic).ok_or_else(refused),
            Challenge::Bearer { realm, service, scope } => {
                let realm = self.realm(source, &realm)?;
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", source.reference.repository()));
                self.token(source, realm, service.as_deref().unwrap_or_default(), &scope).await
            }
        }
    }

    /// A password is not sent in the clear because a registry says so.
    fn realm(&self, source: Source<'_>, realm: &str) -> Result<Url, RegistryError> {
        let url = Url::parse(realm).map_err(|_| source.untrusted("its token server has no proper address"))?;
        let is_safe = url.scheme() == "https" || (url.scheme() == "http" && self.is_plain(source));
        let has_host = url.host_str().is_some();
        if is_safe && has_host {
            return Ok(url);
        }
        Err(source
            .untrusted("its token server is not reached by https, so that credentials would be open to everybody"))
    }

    async fn token(&self, source: Source<'_>, realm: Url, service: &str, scope: &str) -> Result<Grant, RegistryError> {
        let request = match source.credentials {
            Some(login) if login.user == TOKEN_USER => {
                self.http().post(realm).header("content-type", "application/x-www-form-urlencoded").body(form(&[
                    ("grant_type", "refresh_token"),
                    ("client_id", "trainyard"),
                    ("service", service),
                    ("scope", scope),
                    ("refresh_token", &login.password),
                ]))
            }
            login => {
                let mut url = realm;
                url.query_pairs_mut().extend_pairs([("service", service), ("scope", scope)]);
                let grant = login.and_then(Grant::basic);
                let request = self.http().get(url);
                grant.into_iter().fold(request, |request, grant| request.header(AUTHORIZATION, grant.header()))
            }
        };
        let ask = Ask::token();
        let response = self.sent(source, &ask, request).await?;
        // Token servers refuse with whatever they like.
        if response.status().is_client_error() && response.status() != 429 {
            return Err(source.unauthorized());
        }
        let response = self.accepted(source, &ask, response, None).await?;
        let bytes = self.whole(source, &ask, response, TOKEN_MAX).await?;
        // The text of serde's error may show a part of the token.
        let damaged = || source.damaged(&ask.what, "it is no JSON with a token");
        let answer: TokenAnswer = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty()).ok_or_else(damaged)?;
        Grant::new(format!("Bearer {token}")).ok_or_else(damaged)
    }
}

fn form(pairs: &[(&str, &str)]) -> String {
    let mut url = Url::parse("form:").expect("a constant that is an address");
    url.query_pairs_mut().extend_pairs(pairs);
    url.query().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn challenges_are_found_in_one_header_or_many() {
        let bearer = r#"Bearer realm="https://auth.lab/token",service="r, lab",scope="repository:a/b:pull""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.lab/token".into(),
            service: Some("r, lab".into()),
            scope: Some("repository:a/b:pull".into()),
        };
        let both = format!("Basic realm=\"x\", {bearer}");
        assert_eq!(challenge(&headers(&["Basic realm=\"x\"", bearer])), Some(expected));
        assert!(matches!(challenge(&headers(&[&both])), Some(Challenge::Bearer { .. })));
        assert_eq!(challenge(&headers(&["basic realm=\"x\""])), Some(Challenge::Basic));
        for none in ["", "Negotiate", "Bearer service=\"x\"", "Bearer realm=\"unfinished"] {
            assert_eq!(challenge(&headers(&[none])), None, "{none}");
        }
    }

    #[test]
    fn a_grant_and_a_form_hold_what_they_should_and_print_nothing() {
        let grant = Grant::basic(&Credentials { user: "lab".into(), password: "secret".into() }).unwrap();
        assert_eq!(grant.header(), "Basic bGFiOnNlY3JldA==");
        assert_eq!(grant.secret(), "bGFiOnNlY3JldA==");
        assert!(!format!("{grant:?}").contains("bGFi"));
        assert_eq!(form(&[("a", "x y&z"), ("b", "ü")]), "a=x+y%26z&b=%C3%BC");
    }
}
