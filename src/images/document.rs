//! The documents of images (`oci-spec`), read from JSON that is not trusted.
//!
//! Go's tools write `null` for what is empty, and old ones leave out what Docker takes for granted. Both is made good
//! here, before the structures of the specification judge the rest.

pub(super) use oci_spec::image::{Config, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, Platform};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::config::machine;

pub(super) fn index(bytes: &[u8]) -> serde_json::Result<ImageIndex> {
    read(bytes, json!({ "schemaVersion": 2, "manifests": [] }))
}

pub(super) fn manifest(bytes: &[u8]) -> serde_json::Result<ImageManifest> {
    read(bytes, json!({ "schemaVersion": 2, "layers": [] }))
}

/// One that does not say for which machine it is made is taken at its word elsewhere: as made for this one.
pub(super) fn configuration(bytes: &[u8]) -> serde_json::Result<ImageConfiguration> {
    let rootfs = json!({ "type": "layers", "diff_ids": [] });
    read(bytes, json!({ "os": "linux", "architecture": machine(), "rootfs": rootfs }))
}

fn read<T: DeserializeOwned>(bytes: &[u8], defaults: Value) -> serde_json::Result<T> {
    let mut document = serde_json::from_slice(bytes)?;
    drop_nulls(&mut document);
    fill(&mut document, defaults);
    serde_json::from_value(document)
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// What stands in `defaults` and not in `document`; empty words count as absent.
fn fill(document: &mut Value, defaults: Value) {
    let (Value::Object(fields), Value::Object(defaults)) = (document, defaults) else { return };
    for (name, default) in defaults {
        let is_absent = fields.get(&name).is_none_or(|value| value == "");
        if is_absent {
            fields.insert(name, default);
        } else if let Some(inner @ Value::Object(_)) = fields.get_mut(&name) {
            fill(inner, default);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_s_tools_write_for_nothing_is_nothing() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let config = json!({ "mediaType": "x", "digest": digest, "size": 2 });
        let text = json!({ "config": config, "layers": null, "annotations": null }).to_string();
        assert!(manifest(text.as_bytes()).unwrap().layers().is_empty());
        assert!(index(br#"{"schemaVersion":2,"manifests":null}"#).unwrap().manifests().is_empty());
        let text = br#"{"os":"","rootfs":{"diff_ids":null},"config":{"Cmd":null,"Labels":{"a":null}}}"#;
        let read = configuration(text).unwrap();
        assert_eq!((read.os().to_string(), read.architecture().to_string()), ("linux".into(), machine().into()));
        assert!(read.rootfs().diff_ids().is_empty());
        let config = read.config().as_ref().unwrap();
        assert_eq!((config.cmd(), config.labels().as_ref().unwrap().len()), (&None, 0));
    }

    #[test]
    fn what_the_specification_requires_beyond_that_is_required() {
        for text in ["7", "[]", "{}", r#"{"config":{"digest":"sha256:../../x","mediaType":"x","size":1}}"#] {
            assert!(manifest(text.as_bytes()).is_err(), "{text}");
        }
        for text in ["7", "\"\"", r#"{"rootfs":{"diff_ids":[7]}}"#] {
            assert!(configuration(text.as_bytes()).is_err(), "{text}");
        }
    }
}
