//! Names of images in registries.

use std::fmt;

use crate::images::digest::{Digest, NotADigest};

/// Longest name that is looked at, bytes.
const NAME_MAX: usize = 1024;

/// `registry.lab:5000/team/pytorch:2.3`, `…@sha256:…`; with a digest, the tag is only for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    name: oci_client::Reference,
    digest: Option<Digest>,
    /// The tag or the digest, as it stands in addresses.
    selector: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error(
        "{name:?} is no name of an image: {why}; write NAME:TAG or REGISTRY/NAME:TAG, in small letters and digits with '.', '_', '-' and '/' between"
    )]
    Grammar { name: String, why: oci_client::ParseError },
    #[error("{name:?} is pinned by a digest that is not supported: {why}")]
    Digest { name: String, why: NotADigest },
    #[error("the name of the image is longer than {NAME_MAX} bytes")]
    Long,
}

impl Reference {
    /// A name without a registry is one of `default_registry`; without a tag and digest, it is `latest`.
    pub fn parse(name: &str, default_registry: &str) -> Result<Self, ReferenceError> {
        if name.len() + default_registry.len() > NAME_MAX {
            return Err(ReferenceError::Long);
        }
        let grammar = |why| ReferenceError::Grammar { name: name.to_owned(), why };
        // Before it is completed: an empty name is none, also of a default registry.
        name.parse::<oci_client::Reference>().map_err(grammar)?;
        let full: oci_client::Reference = completed(name, default_registry).parse().map_err(grammar)?;
        let pinned = |why| ReferenceError::Digest { name: name.to_owned(), why };
        let digest = full.digest().map(|text| text.parse().map_err(pinned)).transpose()?;
        let selector = full.digest().or(full.tag()).unwrap_or("latest").to_owned();
        Ok(Self { name: full, digest, selector })
    }

    /// `HOST` or `HOST:PORT` as people write it.
    pub fn registry(&self) -> &str {
        self.name.registry()
    }

    pub fn repository(&self) -> &str {
        self.name.repository()
    }

    pub fn tag(&self) -> Option<&str> {
        self.name.tag()
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Where the registry answers.
    pub(super) fn host(&self) -> &str {
        self.name.resolve_registry()
    }

    pub(super) fn oci(&self) -> &oci_client::Reference {
        &self.name
    }

    pub(super) fn selector(&self) -> &str {
        &self.selector
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

fn completed(name: &str, default_registry: &str) -> String {
    let has_registry =
        name.split_once('/').is_some_and(|(first, _)| first.contains(['.', ':']) || first == "localhost");
    if has_registry { name.to_owned() } else { format!("{default_registry}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_people_expect() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (name, default, full) in [
            ("ubuntu:22.04", "docker.io", "docker.io/library/ubuntu:22.04".to_owned()),
            ("pytorch/pytorch:2.3", "docker.io", "docker.io/pytorch/pytorch:2.3".to_owned()),
            ("index.docker.io/ubuntu", "r.lab", "docker.io/library/ubuntu:latest".to_owned()),
            ("torch:2.3", "registry.lab:5000", "registry.lab:5000/torch:2.3".to_owned()),
            ("team/torch", "registry.lab:5000", "registry.lab:5000/team/torch:latest".to_owned()),
            ("localhost/x:1", "docker.io", "localhost/x:1".to_owned()),
            ("r.lab:5000/a/b:1", "docker.io", "r.lab:5000/a/b:1".to_owned()),
            (&format!("r.lab/x@{digest}"), "docker.io", format!("r.lab/x@{digest}")),
            (&format!("r.lab/x:1@{digest}"), "docker.io", format!("r.lab/x:1@{digest}")),
        ] {
            assert_eq!(Reference::parse(name, default).map(|found| found.to_string()), Ok(full));
        }
    }

    #[test]
    fn a_digest_goes_before_a_tag_and_docker_answers_elsewhere() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = Reference::parse(&format!("x:1@{digest}"), "docker.io").unwrap();
        assert_eq!(
            (pinned.selector(), pinned.tag(), pinned.digest()),
            (&*digest, Some("1"), digest.parse().ok().as_ref())
        );
        assert_eq!(
            (pinned.registry(), pinned.host(), pinned.repository()),
            ("docker.io", "index.docker.io", "library/x")
        );
    }

    #[test]
    fn what_is_no_name_is_refused_by_its_reason() {
        let sha512 = format!("r.lab/x@sha512:{}", "a".repeat(128));
        let long = "a".repeat(1025);
        for name in
            ["", "UPPER", "a b", "../x", "r.lab/../x", "http://r.lab/x", "r.lab/x:a/b", "r.lab/x?y", &sha512, &long]
        {
            let error = Reference::parse(name, "r.lab").unwrap_err().to_string();
            assert!(error.contains("name") || error.contains("digest"), "{name}: {error}");
        }
    }
}
