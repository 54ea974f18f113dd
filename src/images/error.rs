//! What can go wrong with images, in words for whoever asked.

use std::io;
use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::names::Kind;
use super::registry::{AuthFileError, ReferenceError, RegistryError};
use super::unpack::UnpackError;
use crate::ids::Bytes;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("there is no image {name}; see `trainyard image ls`")]
    Unknown { name: String },
    #[error("cannot read {path}: {source}")]
    Source {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{what} is not as an image must be: {why}")]
    Damaged { what: String, why: String },
    #[error("the content is not what its digest says: it should be {expected}, it is {got}")]
    WrongDigest { expected: Digest, got: Digest },
    #[error("there are several images in it ({}), or none with a name; say which one, as PATH:TAG", .tags.join(", "))]
    WhichTag { tags: Vec<String> },
    #[error("there is no image {tag} in it, only: {}", .tags.join(", "))]
    NoTag { tag: String, tags: Vec<String> },
    #[error("a layer cannot be unpacked: {0}")]
    Unpack(#[from] UnpackError),
    #[error(
        "there is no space for the image: {} {need}, {} are free on the disk of {path}; remove what is not needed with `trainyard image prune`",
        Bytes(*.wanted),
        Bytes(*.free)
    )]
    NoSpace { wanted: u64, need: &'static str, free: u64, path: PathBuf },
    #[error("cannot {what}: {source}")]
    Store {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("nobody wants it any more")]
    Unwanted,
    #[error("the image store is busy: images are being brought in or started; try again when that is done")]
    Busy,
    #[error(transparent)]
    Registry(RegistryError),
    #[error("{source}; the workspace's file is {file}, your own is ~/.config/containers/auth.json")]
    Login {
        #[source]
        source: RegistryError,
        file: PathBuf,
    },
    #[error(transparent)]
    Name(#[from] ReferenceError),
    #[error("the credentials in {path} cannot be used: {source}")]
    Auth {
        path: PathBuf,
        #[source]
        source: AuthFileError,
    },
    #[error("the archive gives no name to the image; give one with --name")]
    NoName,
    #[error(
        "the name {name} {of} was given by user {owner}: only they and root may change it (`trainyard image rm`); use another name",
        of = of_kind(.kind)
    )]
    NotYours { name: String, kind: Kind, owner: u32 },
    #[error(
        "{name} would be found by every workspace: public names that root has not given begin with a workspace in which their giver may submit jobs; name it so, as in \"default/{rest}\" (`trainyard image tag NAME NEW --public` names an image that is there)",
        rest = .name.rsplit('/').next().unwrap_or_default()
    )]
    NotForAll { name: String },
    #[error("{why}")]
    PassedOver { why: String },
    #[error(
        "{name} names the content of an image, and this one has other content ({digest}); give it a name with a tag"
    )]
    PinnedName { name: String, digest: Digest },
}

fn of_kind(kind: &Kind) -> String {
    match kind {
        Kind::Mine { workspace } => format!("of workspace {workspace}"),
        Kind::Public => "of all workspaces (public)".to_owned(),
        Kind::Preset => "of all workspaces (preset)".to_owned(),
    }
}

/// What is wanted of the disk: to fetch it, or room beyond what there was.
pub(super) const TO_FETCH: &str = "are to be fetched";
pub(super) const AND_MORE: &str = "and more are needed";

impl ImageError {
    /// The disk of `path` has too little for `wanted` bytes; what is free is looked at now.
    pub(super) fn no_space(path: &Path, wanted: u64, need: &'static str) -> Self {
        let free = crate::sys::file::free_space(path).unwrap_or(0);
        Self::NoSpace { wanted, need, free, path: path.to_owned() }
    }
}

/// The disk has no more to give, or its owner no more of it.
pub(super) fn is_full(error: &io::Error) -> bool {
    crate::sys::file::has_no_room(error)
}

/// What could not be put on the disk of `path`, which took `wanted` bytes.
pub(super) fn stored(path: &Path, what: &'static str, wanted: u64) -> impl Fn(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| match is_full(&source) {
        true => ImageError::no_space(&path, wanted, AND_MORE),
        false => ImageError::Store { what, source },
    }
}

pub(super) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> ImageError {
    move |source| ImageError::Store { what, source }
}
