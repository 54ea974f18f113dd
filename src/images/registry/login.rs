//! What `oci-client` does not do for a login: where a registry wants it sent is looked at before it is sent, and an identity
//! token is exchanged for one that opens the repository.

use oci_client::secrets::RegistryAuth;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use reqwest::tls::Certificate;
use reqwest::{Client, RequestBuilder, Response, Url};
use serde::Deserialize;

use super::answers::Question;
use super::asker::USER_AGENT;
use super::credentials::{Credentials, TOKEN_USER};
use super::errors::RegistryError;
use super::process::Order;

/// Where a token is had.
#[derive(Debug, PartialEq, Eq)]
struct TokenServer {
    realm: String,
    service: Option<String>,
}

/// How requests prove who asks.
pub(super) async fn proof(question: &Question<'_>, order: &Order) -> Result<RegistryAuth, RegistryError> {
    let Some(login) = &order.credentials else { return Ok(RegistryAuth::Anonymous) };
    let http = client(order).map_err(|error| question.without_answer(&error))?;
    let scheme = if order.is_plain { "http" } else { "https" };
    let address = format!("{scheme}://{}/v2/", question.source.reference.host());
    let response = sent(question, http.get(address)).await?;
    let Some(server) = token_server(response.headers()) else {
        return Ok(RegistryAuth::Basic(login.user.clone(), login.password.clone()));
    };
    let realm = safe(question, order, &server.realm)?;
    match login.user == TOKEN_USER {
        true => exchanged(question, &http, realm, server.service.as_deref().unwrap_or_default(), login).await,
        false => Ok(RegistryAuth::Basic(login.user.clone(), login.password.clone())),
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

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

async fn exchanged(
    question: &Question<'_>,
    http: &Client,
    realm: Url,
    service: &str,
    login: &Credentials,
) -> Result<RegistryAuth, RegistryError> {
    let scope = format!("repository:{}:pull", question.source.reference.repository());
    let form = form(&[
        ("grant_type", "refresh_token"),
        ("client_id", "trainyard"),
        ("service", service),
        ("scope", &scope),
        ("refresh_token", &login.password),
    ]);
    let request = http.post(realm).header("content-type", "application/x-www-form-urlencoded").body(form);
    let response = sent(question, request).await?;
    let status = response.status();
    let bytes = response.bytes().await.map_err(|error| question.without_end(&error))?;
    if !status.is_success() {
        return Err(question.token_refused(status.as_u16(), &String::from_utf8_lossy(&bytes)));
    }
    // The text of serde's error may show a part of the token.
    let damaged = || question.source.damaged("a token", "it is no JSON with a token");
    let answer: Answer = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty()).ok_or_else(damaged)?;
    Ok(RegistryAuth::Bearer(token))
}

async fn sent(question: &Question<'_>, request: RequestBuilder) -> Result<Response, RegistryError> {
    request.send().await.map_err(|error| question.without_answer(&error))
}

/// As `oci-client` makes its own.
fn client(order: &Order) -> reqwest::Result<Client> {
    let certificates = order.certificates.iter().map(|der| Certificate::from_der(der));
    let certificates: Vec<Certificate> = certificates.collect::<reqwest::Result<_>>()?;
    let builder = || {
        let proxies = &order.proxies;
        let none_for = proxies.none_for.as_deref().and_then(reqwest::NoProxy::from_string);
        let http = proxies.http.as_deref().and_then(|proxy| reqwest::Proxy::http(proxy).ok());
        let https = proxies.https.as_deref().and_then(|proxy| reqwest::Proxy::https(proxy).ok());
        let client = Client::builder().user_agent(USER_AGENT).connect_timeout(order.connect).read_timeout(order.stall);
        let all = http.into_iter().chain(https).map(|proxy| proxy.no_proxy(none_for.clone()));
        // What a registry answers is its own; where it would send us to is no token server.
        all.fold(client.redirect(reqwest::redirect::Policy::none()), reqwest::ClientBuilder::proxy)
    };
    // A machine without any certificates can still speak plain http; https will say that nobody is trusted.
    builder().tls_certs_merge(certificates.clone()).build().or_else(|_| builder().tls_certs_only(certificates).build())
}

/// The token server that a registry names, if it wants a token.
fn token_server(headers: &HeaderMap) -> Option<TokenServer> {
    let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|header| header.to_str().ok());
    let mut challenges = texts.flat_map(|text| http_auth::parse_challenges(text).unwrap_or_default());
    challenges.find_map(|challenge| {
        let of = |name: &str| {
            let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let is_bearer = challenge.scheme.eq_ignore_ascii_case("bearer");
        is_bearer.then(|| Some(TokenServer { realm: of("realm")?, service: of("service") })).flatten()
    })
}

fn form(pairs: &[(&str, &str)]) -> String {
    let mut url = Url::parse("form:").expect("a constant that is an address");
    url.query_pairs_mut().extend_pairs(pairs);
    url.query().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_token_server_is_found_in_one_header_or_many() {
        let bearer = r#"Bearer realm="https://auth.lab/token",service="r, lab",scope="repository:a/b:pull""#;
        let expected = TokenServer { realm: "https://auth.lab/token".into(), service: Some("r, lab".into()) };
        let both = format!("Basic realm=\"x\", {bearer}");
        assert_eq!(token_server(&headers(&["Basic realm=\"x\"", bearer])), Some(expected));
        assert!(token_server(&headers(&[&both])).is_some());
        for none in ["", "Negotiate", "basic realm=\"x\"", "Bearer service=\"x\"", "Bearer realm=\"unfinished"] {
            assert_eq!(token_server(&headers(&[none])), None, "{none}");
        }
    }

    #[test]
    fn a_form_says_what_it_should() {
        assert_eq!(form(&[("a", "x y&z"), ("b", "ü")]), "a=x+y%26z&b=%C3%BC");
    }
}
