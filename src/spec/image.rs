//! What `image =` names.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a task's root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Image {
    /// This machine's own system directories.
    Host,
    /// A name in the store or, if it is not there, in a registry: `registry.lab/team/pytorch:2.3`, `…@sha256:…`.
    Named(String),
    /// An OCI layout, a directory: `oci:/images/torch:2.3`.
    Layout { path: PathBuf, tag: Option<String> },
    /// An OCI layout in a tar archive.
    OciArchive { path: PathBuf, tag: Option<String> },
    /// What `docker save` writes.
    DockerArchive { path: PathBuf, tag: Option<String> },
}

/// Longest name; registries take 255 for the repository and 128 for the tag.
const NAME_MAX: usize = 512;

impl Image {
    /// Reads what a job file says; the error is a sentence for its writer.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "host" {
            return Ok(Image::Host);
        }
        for (scheme, make) in SCHEMES {
            if let Some(rest) = text.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(':')) {
                let (path, tag) = split_tag(rest);
                return match path.is_absolute() {
                    true => Ok(make(path, tag)),
                    false => Err(format!("{text:?}: write the path from the root, as in \"{scheme}:/images/torch\"")),
                };
            }
        }
        if text.is_empty() || text.len() > NAME_MAX {
            return Err(format!("{text:?} is no name of an image"));
        }
        match text.chars().find(|c| !c.is_ascii_alphanumeric() && !"-._/:@".contains(*c)) {
            Some(c) => Err(format!(
                "{text:?} is no name of an image: {c:?} is not allowed; write NAME:TAG, REGISTRY/NAME:TAG, \
                 \"oci:PATH:TAG\", \"oci-archive:PATH\", \"docker-archive:PATH\" or \"host\""
            )),
            None => Ok(Image::Named(text.to_owned())),
        }
    }
}

type Make = fn(PathBuf, Option<String>) -> Image;

const SCHEMES: [(&str, Make); 3] = [
    ("oci", |path, tag| Image::Layout { path, tag }),
    ("oci-archive", |path, tag| Image::OciArchive { path, tag }),
    ("docker-archive", |path, tag| Image::DockerArchive { path, tag }),
];

/// `PATH` or `PATH:TAG`; a tag may be a whole name.
fn split_tag(text: &str) -> (PathBuf, Option<String>) {
    match text.split_once(':') {
        Some((path, tag)) if !tag.is_empty() => (PathBuf::from(path), Some(tag.to_owned())),
        _ => (PathBuf::from(text), None),
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut with = |scheme: &str, path: &Path, tag: &Option<String>| {
            write!(f, "{scheme}:{}", path.display())?;
            tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))
        };
        match self {
            Image::Host => f.write_str("host"),
            Image::Named(name) => f.write_str(name),
            Image::Layout { path, tag } => with("oci", path, tag),
            Image::OciArchive { path, tag } => with("oci-archive", path, tag),
            Image::DockerArchive { path, tag } => with("docker-archive", path, tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_alike() {
        for text in [
            "host",
            "pytorch",
            "registry.lab:5000/train/pytorch:2.3",
            "ubuntu@sha256:0123",
            "oci:/images/torch:2.3",
            "oci-archive:/images/torch.tar",
            "docker-archive:/images/torch.tar:team/torch:2.3",
        ] {
            assert_eq!(Image::parse(text).unwrap().to_string(), text);
        }
        let archive = Image::DockerArchive { path: "/images/torch.tar".into(), tag: Some("team/torch:2.3".into()) };
        assert_eq!(Image::parse("docker-archive:/images/torch.tar:team/torch:2.3"), Ok(archive));
        let layout = Image::Layout { path: "/images/torch".into(), tag: Some("2.3".into()) };
        assert_eq!(Image::parse("oci:/images/torch:2.3"), Ok(layout));
    }

    #[test]
    fn relative_paths_and_strange_names_are_refused_with_a_word_of_help() {
        for text in ["oci:torch", "a b", "", "https://x\"y", "oci:../x:1"] {
            let error = Image::parse(text).unwrap_err();
            assert!(error.contains("image") || error.contains("root"), "{error}");
        }
    }
}
