//! How a token is written: `trainyard_UID.NAME_SECRET`, and in the header of a request.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::ids::AssetName;

/// Begins the text of a token, so that scanners for secrets know it.
const PREFIX: &str = "trainyard_";
/// Bytes of a secret.
const SECRET: usize = 32;

/// Which token it is: names are each user's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenId {
    pub uid: u32,
    pub name: AssetName,
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.uid, self.name)
    }
}

impl FromStr for TokenId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not UID.NAME");
        let (number, name) = text.split_once('.').ok_or_else(wrong)?;
        let uid: u32 = number.parse().map_err(|_| wrong())?;
        // One way alone to write each of them.
        if uid.to_string() != number {
            return Err(wrong());
        }
        Ok(Self { uid, name: name.parse().map_err(|error| format!("{name:?}: {error}"))? })
    }
}

/// What its user keeps.
pub(super) fn write(id: &TokenId, secret: &str) -> String {
    format!("{PREFIX}{id}_{secret}")
}

/// Takes it apart again.
pub fn parse(text: &str) -> Option<(TokenId, &str)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.rsplit_once('_')?;
    let is_secret = secret.len() == 2 * SECRET && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_secret.then_some((id.parse().ok()?, secret))
}

/// The token of an `Authorization` header.
pub fn of_header(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(super) fn random_secret() -> io::Result<String> {
    let mut bytes = [0; SECRET];
    let mut filled = 0;
    while filled < SECRET {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(hex(&bytes))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    let pairs = text.as_bytes().chunks(2);
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read_as_http_has_it() {
        assert_eq!(of_header(b"Bearer abc"), Some("abc"));
        assert_eq!(of_header(b"bearer   abc "), Some("abc"));
        for bad in [&b"Basic abc"[..], b"Bearer", b"\xff\xff x", b""] {
            assert_eq!(of_header(bad), None);
        }
    }

    #[test]
    fn a_token_is_written_in_one_way_alone() {
        let secret = "0f".repeat(SECRET);
        let id = TokenId { uid: 1000, name: "ci_1.x".parse().unwrap() };
        let text = write(&id, &secret);
        assert_eq!(parse(&text), Some((id, secret.as_str())));
        for bad in ["ci", "1000", "01.ci", "+1.ci", "1.", "1./x", "1...", "4294967296.ci", ".ci"] {
            assert!(bad.parse::<TokenId>().is_err(), "{bad}");
            assert_eq!(parse(&format!("{PREFIX}{bad}_{secret}")), None, "{bad}");
        }
    }
}
