//! A file from an http(s) address, over as many calls as it takes: what came stays, and the next call asks for the rest.

use std::ffi::OsStr;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE};
use reqwest::{Client, StatusCode, Url};

use super::draft::Directory;
use super::import::Brought;

const CONNECT: Duration = Duration::from_secs(30);
/// Without a byte for so long, the server is given up.
const STALL: Duration = Duration::from_secs(60);

/// Fetches into the directory `draft`, under the last part of the address.
pub(super) async fn fetch(
    address: &str,
    draft: &Directory,
    brought: &mut Brought,
    told: &mut impl FnMut(&Brought),
) -> anyhow::Result<()> {
    // An address may hold a password or a token: nothing of it is told but its host and path.
    let url = Url::parse(address).context("what is to be fetched is no http(s) address that can be read")?;
    let name = url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default().to_owned();
    let name = crate::api::wire::unescape(&name).unwrap_or(name);
    if matches!(name.as_str(), "" | "." | "..") || name.contains('/') {
        bail!("{}{} names no file: its path ends without one", url.host_str().unwrap_or_default(), url.path());
    }
    // Its state is what the server calls it.
    let mut coming = draft.coming(OsStr::new(&name));
    let has = coming.length();
    let host = url.host_str().unwrap_or_default().to_owned();
    let mut request = client()?.get(url);
    let asks_for_rest = has > 0 && !coming.state.is_empty();
    if asks_for_rest {
        request = request.header(RANGE, format!("bytes={has}-")).header(IF_RANGE, &coming.state);
    }
    let failed = |error: reqwest::Error| anyhow::Error::new(error.without_url());
    let mut response =
        request.send().await.map_err(failed).with_context(|| format!("cannot fetch {name} from {host}"))?;
    let begins = match response.status() {
        StatusCode::PARTIAL_CONTENT => begin_of(response.headers()).filter(|begin| *begin == has),
        StatusCode::OK => Some(0),
        // All of it was there, or the file has become shorter: which of the two, the whole of it tells. That is asked for once.
        StatusCode::RANGE_NOT_SATISFIABLE if asks_for_rest => {
            coming.forget()?;
            return Box::pin(fetch(address, draft, brought, told)).await;
        }
        status => bail!("cannot fetch {name}: the server answers {status}"),
    };
    let begins =
        begins.with_context(|| format!("cannot fetch {name}: the server sends another part than was asked for"))?;
    let expected = response.content_length().map(|rest| begins + rest);
    let state = state(response.headers());
    let unwritable = || format!("cannot write {}", draft.shown(&name).display());
    let mut file = coming.begin(begins, &state, 0o666).with_context(unwritable)?;
    let mut length = begins;
    brought.bytes += begins;
    loop {
        let piece = tokio::time::timeout(STALL, response.chunk()).await;
        let piece = piece.with_context(|| broken_off(&name, length, "nothing came for a minute"))?;
        let piece = piece.map_err(failed).with_context(|| broken_off(&name, length, "the connection ended"))?;
        let Some(piece) = piece else { break };
        file.write_all(&piece).with_context(unwritable)?;
        length += piece.len() as u64;
        brought.bytes += piece.len() as u64;
        told(brought);
    }
    if expected.is_some_and(|expected| expected != length) {
        bail!(broken_off(&name, length, "the server sent less than it had announced"));
    }
    drop(file);
    coming.finish().with_context(unwritable)?;
    brought.files += 1;
    Ok(())
}

/// An address without what may be a password or a token, and may be another one the next time.
pub(super) fn plain(address: &str) -> String {
    let Ok(mut url) = Url::parse(address) else { return String::new() };
    // An http(s) address has a place for them.
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

fn broken_off(name: &str, length: u64, why: &str) -> String {
    format!("{name} broke off after {length} bytes ({why}); the same command again goes on from there")
}

fn begin_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// By what the server tells one state of the file from another; a weak tag does not tell bytes.
fn state(headers: &HeaderMap) -> String {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    text(ETAG).filter(|tag| !tag.starts_with("W/")).or_else(|| text(LAST_MODIFIED)).unwrap_or_default()
}

fn client() -> anyhow::Result<Client> {
    // Whoever comes first in the process; all bring the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder =
        || Client::builder().user_agent(concat!("trainyard/", env!("CARGO_PKG_VERSION"))).connect_timeout(CONNECT);
    // A machine without any certificates can still speak plain http.
    builder().build().or_else(|_| builder().tls_certs_only([]).build()).context("the TLS library does not start")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    #[tokio::test]
    async fn a_server_that_never_has_the_part_is_asked_for_the_whole_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/file", listener.local_addr().unwrap());
        // Two of the first call, one of the second; nobody answers more.
        let server = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                asked.push(lines.take_while(|line| !line.is_empty()).any(|line| line.starts_with("range:")));
                let answer = "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        let dir = tempfile::tempdir().unwrap();
        let draft = Directory::open(dir.path()).unwrap();
        draft.coming(OsStr::new("file")).begin(0, "\"tag\"", 0o600).unwrap().write_all(b"part").unwrap();
        for _ in 0..2 {
            let failed = fetch(&address, &draft, &mut Brought::default(), &mut |_| ()).await.unwrap_err();
            assert!(failed.to_string().contains("the server answers 416"), "{failed:#}");
        }
        assert_eq!(server.join().unwrap(), [true, false, false], "which asked for a part");
    }
}
