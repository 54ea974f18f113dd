//! `sha256:…`: the name of content.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest; the only algorithm that images use in practice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_bytes(&Sha256::digest(bytes))
    }

    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The reverse of [`Self::hex`].
    pub fn from_hex(hex: &str) -> Option<Self> {
        let valid = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        valid.then(|| Self(hex.to_owned()))
    }

    /// The 64 digits without the algorithm: a safe file name.
    pub fn hex(&self) -> &str {
        &self.0
    }

    /// Enough of it for people.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no digest; it must be sha256: and 64 hexadecimal digits")]
pub struct NotADigest(String);

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let not_one = || NotADigest(text.chars().take(80).collect());
        text.strip_prefix("sha256:").and_then(Self::from_hex).ok_or_else(not_one)
    }
}

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_and_never_holds_a_path() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string().parse(), Ok(digest.clone()));
        assert_eq!(Digest::from_hex(digest.hex()), Some(digest));
        for text in ["sha256:../../x", "sha512:00", "", &format!("sha256:{}", "A".repeat(64)), &"a".repeat(64)] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
