//! Manifests and indexes, read from JSON that is not trusted.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::errors::RegistryError;
use super::{LayerBlob, Source};
use crate::images::digest::Digest;
use crate::images::document::{self, Descriptor, ImageIndex, Platform};

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYERS: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];

/// What a registry is asked for.
pub(super) const ACCEPTED: [&str; 4] = [INDEXES[0], INDEXES[1], MANIFESTS[0], MANIFESTS[1]];

#[expect(clippy::large_enum_variant, reason = "there is one at a time, for a moment")]
pub(super) enum Document {
    Image(Image),
    Index(ImageIndex),
}

/// A manifest of a container image.
pub(super) struct Image {
    pub(super) config: Digest,
    pub(super) layers: Vec<LayerBlob>,
}

/// What tells the kinds of documents apart.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    manifests: Option<IgnoredAny>,
}

/// By what the document says of itself or, if it does not, by its shape.
pub(super) fn read(source: Source<'_>, bytes: &[u8]) -> Result<Document, RegistryError> {
    let outline: Outline = json(source, "the manifest", serde_json::from_slice(bytes))?;
    // One text that is an index for some and a manifest for others can show to each what it should not run.
    if outline.manifests.is_some() && (outline.config.is_some() || outline.layers.is_some()) {
        return Err(source.damaged("the manifest", "it is an index and a manifest at once"));
    }
    match outline.media_type.as_deref() {
        _ if outline.schema_version == 1 => Err(source.not_an_image(
            "a manifest of Docker's schema 1, which is given up everywhere; push it anew with a current tool",
        )),
        Some(kind) if INDEXES.contains(&kind) => index(source, bytes),
        Some(kind) if MANIFESTS.contains(&kind) => manifest(source, bytes),
        Some(kind) => Err(source.not_an_image(format!("a document of type {}", short(kind)))),
        None if outline.manifests.is_some() => index(source, bytes),
        None => manifest(source, bytes),
    }
}

fn index(source: Source<'_>, bytes: &[u8]) -> Result<Document, RegistryError> {
    json(source, "the index", document::index(bytes)).map(Document::Index)
}

fn manifest(source: Source<'_>, bytes: &[u8]) -> Result<Document, RegistryError> {
    let manifest = json(source, "the manifest", document::manifest(bytes))?;
    let kind = manifest.config().media_type();
    if !CONFIGS.contains(&kind.as_ref()) {
        let kind = manifest.artifact_type().as_ref().unwrap_or(kind).as_ref();
        return Err(source.not_an_image(format!("an artifact of type {}", short(kind))));
    }
    let layers = manifest.layers().iter().map(|layer| blob(source, layer)).collect::<Result<_, _>>()?;
    Ok(Document::Image(Image { config: digest(source, manifest.config().digest().as_ref())?, layers }))
}

fn blob(source: Source<'_>, layer: &Descriptor) -> Result<LayerBlob, RegistryError> {
    let kind = layer.media_type().as_ref();
    if kind.contains("nondistributable") || kind.contains("foreign") {
        let why =
            format!("made with a layer that its registry does not hold ({}); build it with all layers", short(kind));
        return Err(source.not_an_image(why));
    }
    if !LAYERS.contains(&kind) {
        return Err(source.not_an_image(format!("made with a layer of type {}", short(kind))));
    }
    let digest = digest(source, layer.digest().as_ref())?;
    Ok(LayerBlob { digest, size: layer.size(), media_type: kind.to_owned() })
}

/// The manifest of an index that is made for this machine.
pub(super) fn choose(source: Source<'_>, index: &ImageIndex) -> Result<Digest, RegistryError> {
    let (architecture, variants) = machine();
    let platforms = || index.manifests().iter().filter_map(|entry| entry.platform().as_ref());
    let fits = |entry: &&Descriptor, variant: &str| {
        entry.platform().as_ref().is_some_and(|platform| {
            let is_variant = platform.variant().as_deref().unwrap_or_default() == variant;
            let made_for = (platform.os().to_string(), platform.architecture().to_string());
            is_variant && made_for == ("linux".into(), architecture.into())
        })
    };
    let exact = variants.iter().find_map(|variant| index.manifests().iter().find(|entry| fits(entry, variant)));
    // Of one that does not say, the configuration will.
    let silent = || match index.manifests().as_slice() {
        [only] if only.platform().is_none() => Some(only),
        _ => None,
    };
    match exact.or_else(silent) {
        Some(entry) => digest(source, entry.digest().as_ref()),
        None => Err(no_platform(source, platforms().map(spelled))),
    }
}

/// This machine's architecture in the words of images, and the variants of it that any such machine runs.
fn machine() -> (&'static str, &'static [&'static str]) {
    match std::env::consts::ARCH {
        "x86_64" => ("amd64", &["", "v1"]),
        "aarch64" => ("arm64", &["v8", ""]),
        other => (other, &[""]),
    }
}

fn no_platform(source: Source<'_>, offered: impl Iterator<Item = String>) -> RegistryError {
    // Builders hang their attestations into indexes as images for nothing.
    let mut offered: Vec<String> = offered.filter(|platform| !platform.starts_with("unknown/")).take(20).collect();
    if offered.is_empty() {
        offered.push("no platform at all".to_owned());
    }
    RegistryError::NoPlatform { image: source.reference.to_string(), wanted: format!("linux/{}", machine().0), offered }
}

fn spelled(platform: &Platform) -> String {
    let variant = platform.variant().as_deref().map(|variant| format!("/{variant}")).unwrap_or_default();
    short(&format!("{}/{}{variant}", platform.os(), platform.architecture()))
}

/// Reads a configuration: the digests of the content of its `layers` layers. One for another machine is refused, since
/// a manifest without an index says nothing of it.
pub(super) fn diff_ids(source: Source<'_>, bytes: &[u8], layers: usize) -> Result<Vec<Digest>, RegistryError> {
    let config = json(source, "the configuration", document::configuration(bytes))?;
    let (os, architecture) = (config.os().to_string(), config.architecture().to_string());
    if (os.as_str(), architecture.as_str()) != ("linux", machine().0) {
        return Err(no_platform(source, std::iter::once(short(&format!("{os}/{architecture}")))));
    }
    let ids = config.rootfs().diff_ids().iter().map(|text| digest(source, text));
    let ids: Vec<Digest> = ids.collect::<Result<_, _>>()?;
    if ids.len() != layers {
        let why = format!("it speaks of {} layers, the manifest of {layers}", ids.len());
        return Err(source.damaged("the configuration", why));
    }
    Ok(ids)
}

fn json<T>(source: Source<'_>, what: &str, read: serde_json::Result<T>) -> Result<T, RegistryError> {
    read.map_err(|error| source.damaged(what, error.to_string()))
}

fn digest(source: Source<'_>, text: &str) -> Result<Digest, RegistryError> {
    text.parse().map_err(|error: crate::images::digest::NotADigest| source.damaged("the manifest", error.to_string()))
}

/// What a stranger wrote, fit for a sentence.
pub(super) fn short(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}
