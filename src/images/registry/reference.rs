//! Names of images in registries.

use std::fmt;

use crate::images::digest::{Digest, NotADigest};

/// Longest name that is looked at, bytes.
const NAME_MAX: usize = 1024;
/// Longest repository, bytes, and tag, characters, that registries take.
const REPOSITORY_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// Where names lead that have no registry, where its own images lie, and the name that it had before.
const DOCKER: &str = "docker.io";
const DOCKER_S_OWN: &str = "library";
const DOCKER_BEFORE: &str = "index.docker.io";

/// `registry.lab:5000/team/pytorch:2.3`, `…@sha256:…`; with a digest, the tag is only for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
    /// The tag or the digest, as it stands in addresses.
    selector: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error(
        "{name:?} is no name of an image: {why}; write NAME:TAG or REGISTRY/NAME:TAG, in small letters and digits with '.', '_', '-' and '/' between"
    )]
    Grammar { name: String, why: &'static str },
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
        Parts::of(name).map_err(grammar)?;
        let full = completed(name, default_registry);
        let parts = Parts::of(&full).map_err(grammar)?;
        let pinned = |why| ReferenceError::Digest { name: name.to_owned(), why };
        let digest: Option<Digest> = parts.digest.map(|text| text.parse().map_err(pinned)).transpose()?;
        let (registry, repository) = parts.places();
        if repository.len() > REPOSITORY_MAX {
            return Err(grammar("it is too long before its tag"));
        }
        let tag = parts.tag.map(str::to_owned).or_else(|| digest.is_none().then(|| "latest".to_owned()));
        let selector = digest.as_ref().map(Digest::to_string).or_else(|| tag.clone()).unwrap_or_default();
        Ok(Self { registry, repository, tag, digest, selector })
    }

    /// `HOST` or `HOST:PORT` as people write it.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Where the registry answers.
    pub(super) fn host(&self) -> &str {
        if self.registry == DOCKER { DOCKER_BEFORE } else { &self.registry }
    }

    /// For the library that speaks with registries. It would read the text itself by an expression that takes 17 MB to compile, and
    /// 10 MB from then on.
    pub(super) fn oci(&self) -> oci_client::Reference {
        let (registry, repository) = (self.registry.clone(), self.repository.clone());
        match (&self.tag, &self.digest) {
            (Some(tag), Some(digest)) => {
                oci_client::Reference::with_tag_and_digest(registry, repository, tag.clone(), digest.to_string())
            }
            (None, Some(digest)) => oci_client::Reference::with_digest(registry, repository, digest.to_string()),
            (_, None) => oci_client::Reference::with_tag(registry, repository, self.selector.clone()),
        }
    }

    pub(super) fn selector(&self) -> &str {
        &self.selector
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
    }
}

/// What a name is made of, by the grammar of the distribution specification.
struct Parts<'a> {
    /// With the registry, where it has one.
    name: &'a str,
    tag: Option<&'a str>,
    /// With its algorithm.
    digest: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Result<Self, &'static str> {
        let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
        // A ':' before the last part is a port's.
        let last = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest.get(last..).and_then(|part| part.find(':')) {
            Some(colon) => (rest.get(..last + colon).unwrap_or_default(), rest.get(last + colon + 1..)),
            None => (rest, None),
        };
        let (first, others) = name.split_once('/').map_or((name, None), |(first, others)| (first, Some(others)));
        let is_name = is_component(first) || others.is_some() && is_host(first);
        match (is_name && others.is_none_or(|others| others.split('/').all(is_component)), tag.is_none_or(is_tag)) {
            _ if text.is_empty() => Err("it is empty"),
            (false, _) => Err("invalid reference format"),
            (true, false) => Err("invalid tag format"),
            (true, true) => Ok(Self { name, tag, digest }),
        }
    }

    /// Its registry and its repository.
    fn places(&self) -> (String, String) {
        let (registry, repository) = match self.name.split_once('/') {
            Some((first, rest)) if is_registry(first) => (first, rest),
            _ => (DOCKER, self.name),
        };
        let registry = if registry == DOCKER_BEFORE { DOCKER } else { registry };
        let is_docker_s_own = registry == DOCKER && !repository.contains('/');
        let repository = if is_docker_s_own { format!("{DOCKER_S_OWN}/{repository}") } else { repository.to_owned() };
        (registry.to_owned(), repository)
    }
}

/// Small letters and digits, and between them one of `.`, `_`, `__`, or any number of `-`.
fn is_component(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut rest = text.as_bytes();
    loop {
        let word = rest.iter().take_while(|byte| is_plain(**byte)).count();
        rest = rest.get(word..).unwrap_or_default();
        if word == 0 || rest.is_empty() {
            return word > 0;
        }
        let between = rest.iter().take_while(|byte| !is_plain(**byte)).count();
        let (separator, behind) = rest.split_at(between);
        if !matches!(separator, b"." | b"_" | b"__") && !separator.iter().all(|byte| *byte == b'-') {
            return false;
        }
        rest = behind;
    }
}

/// `HOST` or `HOST:PORT`.
fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_label = |label: &str| {
        let is_made_of = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_made_of && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut characters = text.chars();
    characters.next().is_some_and(is_word)
        && characters.all(|c| is_word(c) || ['.', '-'].contains(&c))
        && text.chars().count() <= TAG_MAX
}

/// Whether the first part of a name is a registry.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn completed(name: &str, default_registry: &str) -> String {
    if name.split_once('/').is_some_and(|(first, _)| is_registry(first)) {
        name.to_owned()
    } else {
        format!("{default_registry}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the library makes of it.
    fn by_library(name: &str) -> Option<oci_client::Reference> {
        name.parse::<oci_client::Reference>().ok()?;
        let full: oci_client::Reference = completed(name, "docker.io").parse().ok()?;
        full.digest().is_none_or(|digest| digest.parse::<Digest>().is_ok()).then_some(full)
    }

    fn is_as_the_library_has_it(name: &str) {
        let (ours, theirs) = (Reference::parse(name, "docker.io").ok(), by_library(name));
        assert_eq!(ours.as_ref().map(Reference::oci), theirs, "{name:?}");
        let text = theirs.as_ref().map(ToString::to_string);
        assert_eq!(ours.as_ref().map(ToString::to_string), text, "{name:?}");
        let host = theirs.as_ref().map(|theirs| theirs.resolve_registry().to_owned());
        assert_eq!(ours.map(|ours| ours.host().to_owned()), host, "{name:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn names_are_read_as_the_library_reads_them(
            name in "([aB.:_-]|[a-zA-Z0-9._-]{1,3}|localhost|index\\.docker\\.io|r\\.lab:50){0,3}(/([a9B_.-]|[a-z0-9]{1,3}(__|-{1,3}|[._])[a-z]){0,3}){0,3}(:[A-Za-z0-9_.版 -]{0,3})?(@(sha256:[0-9a-fA-F]{63,65}|sha256:0{64}|sha512:f{128}|x:0{33}|[a-z:]{0,3}))?",
        ) {
            is_as_the_library_has_it(&name);
        }
    }

    #[test]
    fn names_at_the_edges_are_read_as_the_library_reads_them() {
        let (tag, path) = ("t".repeat(128), "p".repeat(247));
        for name in [
            "",
            "/",
            ":",
            "@",
            "a:",
            "a@",
            "a/",
            "/a",
            "a//b",
            "a:b/c",
            "a:1/c",
            "A/b",
            "A.b/c",
            "-a.b/c",
            "a-.b/c",
            "a..b/c",
            "a.b:/c",
            "a.b:1x/c",
            "a__b",
            "a___b",
            "a._b",
            "a--b",
            "a-_b",
            "a.",
            "_a",
            "localhost/x",
            "x@sha256:0@sha256:0",
            "a:b:c",
            "a/b:c:d",
            "a b",
            "视觉/x",
            "x:第一版",
            "x:-a",
            "x:.a",
            "test.com:5000",
            "foo_bar.com:8080/x",
        ] {
            is_as_the_library_has_it(name);
        }
        for length in [127, 128, 129] {
            is_as_the_library_has_it(&format!("x:{}", &format!("{tag}t")[..length]));
        }
        for more in ["", "p", "pp", "ppp"] {
            is_as_the_library_has_it(&format!("{path}{more}"));
            is_as_the_library_has_it(&format!("r.lab/{path}{more}pppppp"));
        }
    }

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
