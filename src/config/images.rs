//! Images of containers: `[images]`.

use std::time::Duration;

use serde::Deserialize;

use super::BadValue;
use crate::ids::{Bytes, parse_duration};

#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// Where names without a registry are pulled from.
    pub default_registry: String,
    /// Registries that may be spoken to without encryption, HOST:PORT.
    pub plain_http: Vec<String>,
    /// Bytes of the files of one layer.
    pub layer_bytes: u64,
    /// Files and directories of one layer.
    pub layer_entries: u64,
    /// Images of a workspace that nobody has used for so long are removed.
    pub unused_after: Duration,
    /// And, beyond so many bytes of files in the store, those that were used longest ago.
    pub store_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[images]` begins one")]
pub(super) struct WireImages {
    default_registry: Option<String>,
    plain_http: Vec<String>,
    max_layer_size: Option<String>,
    max_layer_files: Option<u64>,
    unused_after: Option<String>,
    max_store_size: Option<String>,
}

/// A layer's files may take so much, unless the configuration says otherwise; the largest in public use have some 20 GiB.
const DEFAULT_LAYER_BYTES: u64 = 128 << 30;
const DEFAULT_LAYER_ENTRIES: u64 = 10_000_000;
const DEFAULT_UNUSED_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn read(wire: &WireImages) -> Result<ImagesConfig, BadValue> {
    let size = wire.max_layer_size.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let unused = wire.unused_after.as_ref().map(|text| parse_duration(text)).transpose();
    if let Some(bad) = wire.plain_http.iter().find(|registry| registry.contains('/') || registry.is_empty()) {
        return Err(("images.plain_http", format!("{bad:?} must be written as HOST:PORT")));
    }
    let default_registry = wire.default_registry.clone().unwrap_or_else(|| "docker.io".to_owned());
    if default_registry.contains('/') || default_registry.is_empty() {
        return Err(("images.default_registry", format!("{default_registry:?} must be written as HOST or HOST:PORT")));
    }
    let size = size.map_err(|error| ("images.max_layer_size", error.to_string()))?;
    let store = wire.max_store_size.as_ref().map(|text| text.parse::<Bytes>()).transpose();
    let store = store.map_err(|error| ("images.max_store_size", error.to_string()))?;
    Ok(ImagesConfig {
        default_registry,
        plain_http: wire.plain_http.clone(),
        layer_bytes: size.map_or(DEFAULT_LAYER_BYTES, |bytes| bytes.0),
        layer_entries: wire.max_layer_files.unwrap_or(DEFAULT_LAYER_ENTRIES),
        store_bytes: store.map(|bytes| bytes.0),
        unused_after: unused
            .map_err(|error| ("images.unused_after", error.to_string()))?
            .unwrap_or(DEFAULT_UNUSED_AFTER),
    })
}
