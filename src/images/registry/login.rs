//! How requests prove who asks. `oci-client` would do it, but asks for a token only where the registry's root is closed, looks at one
//! header, knows no identity tokens, and sends a login wherever it is told to, also in the clear.

use oci_client::secrets::RegistryAuth;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::tls::Certificate;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use super::answers::Question;
use super::asker::USER_AGENT;
use super::credentials::TOKEN_USER;
use super::errors::RegistryError;
use super::image;
use super::process::Order;

/// Largest answer of a token server, bytes.
const TOKEN_MAX: usize = 1 << 20;

/// One way to prove oneself that a registry accepts.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Does what the registry asks for before it tells of the image.
pub(super) async fn proof(question: &Question<'_>, order: &Order) -> Result<RegistryAuth, RegistryError> {
    let reference = question.source.reference;
    let http = client(order).map_err(|error| question.without_answer(&error))?;
    let scheme = if order.is_plain { "http" } else { "https" };
    let (host, repository, selector) = (reference.host(), reference.repository(), reference.selector());
    let address = format!("{scheme}://{host}/v2/{repository}/manifests/{selector}");
    let response = sent(question, http.head(address).header(ACCEPT, image::ACCEPTED.join(", "))).await?;
    if response.status() != StatusCode::UNAUTHORIZED {
        return Ok(RegistryAuth::Anonymous);
    }
    match (challenge(response.headers()), &order.credentials) {
        (Some(Challenge::Bearer { realm, service, scope }), _) => {
            let realm = safe(question, order, &realm)?;
            let scope = scope.unwrap_or_else(|| format!("repository:{repository}:pull"));
            let request = asking_for_token(&http, order, realm, service.as_deref().unwrap_or_default(), &scope);
            token(question, sent(question, request).await?).await
        }
        (Some(Challenge::Basic), Some(login)) => Ok(RegistryAuth::Basic(login.user.clone(), login.password.clone())),
        _ => Err(question.source.unauthorized()),
    }
}

/// A password is not sent in the clear because a registry says so.
fn safe(question: &Question<'_>, order: &Order, realm: &str) -> Result<Url, RegistryError> {
    let url = Url::parse(realm).map_err(|_| question.source.untrusted("its token server has no proper address"))?;
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && order.is_plain);
    match is_safe && url.host_str().is_some() {
        true => Ok(url),
        false => Err(question
            .source
            .untrusted("its token server is not reached by https, so that credentials would be open to everybody")),
    }
}

fn asking_for_token(http: &Client, order: &Order, realm: Url, service: &str, scope: &str) -> RequestBuilder {
    match &order.credentials {
        Some(login) if login.user == TOKEN_USER => {
            let form = form(&[
                ("grant_type", "refresh_token"),
                ("client_id", "trainyard"),
                ("service", service),
                ("scope", scope),
                ("refresh_token", &login.password),
            ]);
            http.post(realm).header("content-type", "application/x-www-form-urlencoded").body(form)
        }
        login => {
            let mut url = realm;
            url.query_pairs_mut().extend_pairs([("service", service), ("scope", scope)]);
            let request = http.get(url);
            let with_login = |login: &super::Credentials| (login.user.clone(), Some(login.password.clone()));
            match login.as_ref().map(with_login) {
                Some((user, password)) => request.basic_auth(user, password),
                None => request,
            }
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

async fn token(question: &Question<'_>, response: Response) -> Result<RegistryAuth, RegistryError> {
    let (registry, what) = (question.source.registry(), question.what.clone());
    match response.status().as_u16() {
        200 => {}
        429 => return Err(RegistryError::RateLimited { registry }),
        // Token servers refuse with whatever they like.
        status @ 400..500 if status != 408 => return Err(question.source.unauthorized()),
        status => return Err(RegistryError::ServerFailed { registry, what, status }),
    }
    let bytes = bounded(question, response).await?;
    // The text of serde's error may show a part of the token.
    let damaged = || question.source.damaged(&what, "it is no JSON with a token");
    let answer: Answer = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty()).ok_or_else(damaged)?;
    // It is put into a header as it is.
    HeaderValue::from_str(&token).map_err(|_| damaged())?;
    Ok(RegistryAuth::Bearer(token))
}

async fn bounded(question: &Question<'_>, mut response: Response) -> Result<Vec<u8>, RegistryError> {
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|error| question.without_end(&error))? {
        if bytes.len() + part.len() > TOKEN_MAX {
            return Err(question.source.too_large(&question.what, TOKEN_MAX as u64));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

async fn sent(question: &Question<'_>, request: RequestBuilder) -> Result<Response, RegistryError> {
    request.send().await.map_err(|error| question.without_answer(&error))
}

/// As `oci-client` makes its own.
fn client(order: &Order) -> reqwest::Result<Client> {
    let certificates = order.certificates.iter().map(|der| Certificate::from_der(der));
    let certificates: Vec<Certificate> = certificates.collect::<reqwest::Result<_>>()?;
    let http = order.http_proxy.as_deref().map(reqwest::Proxy::http).transpose()?;
    let https = order.https_proxy.as_deref().map(reqwest::Proxy::https).transpose()?;
    let builder = || {
        let client = Client::builder().user_agent(USER_AGENT).connect_timeout(order.connect).read_timeout(order.stall);
        // A login goes where the registry names its token server, and no further.
        let client = client.redirect(reqwest::redirect::Policy::none()).https_only(!order.is_plain);
        http.iter().chain(&https).cloned().fold(client, reqwest::ClientBuilder::proxy)
    };
    // A machine without any certificates can still speak plain http; https will say that nobody is trusted.
    builder().tls_certs_merge(certificates.clone()).build().or_else(|_| builder().tls_certs_only(certificates).build())
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
    fn a_form_says_what_it_should() {
        assert_eq!(form(&[("a", "x y&z"), ("b", "ü")]), "a=x+y%26z&b=%C3%BC");
    }
}
