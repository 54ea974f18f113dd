//! Prints what the crate `container-device-interface` makes of descriptions of cards, as JSON: for each file and each device what is
//! injected. Of what it prints, kept as `tests/data/cdi/injected.json`, ours has to make the same (`gpu::cdi`):
//!
//! ```text
//! cd tests/cdi && cargo run -- ../data/cdi/*.yaml > ../data/cdi/injected.json
//! ```
//!
//! A package of its own, since the crate brings a second cryptography (aws-lc, which is C) and features of common crates
//! that the daemon under test must not have.

use std::collections::BTreeMap;
use std::path::Path;

use container_device_interface::cache::{Cache, with_auto_refresh};
use container_device_interface::spec_dirs::with_spec_dirs;
use oci_spec::runtime::{Process, Spec, SpecBuilder};
use serde_json::{Value, json};
use serde_yaml::Value as Yaml;

fn main() {
    let files = std::env::args().skip(1).map(|path| {
        let name = Path::new(&path).file_name().unwrap().to_string_lossy().into_owned();
        (name, injected(&path))
    });
    println!("{:#}", json!(files.collect::<BTreeMap<_, _>>()));
}

/// By device.
fn injected(path: &str) -> BTreeMap<String, Value> {
    let mut description: Yaml = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    number(&mut description);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cards.yaml"), serde_yaml::to_string(&description).unwrap()).unwrap();
    let mut cache = Cache::default();
    cache.configure(vec![with_auto_refresh(false), with_spec_dirs(&[folder.path().to_str().unwrap()])]);
    cache.refresh().unwrap();
    let devices = cache.list_devices();
    devices
        .into_iter()
        .map(|device| {
            let found = inject(&mut cache, &device);
            (device, found)
        })
        .collect()
}

fn inject(cache: &mut Cache, device: &str) -> Value {
    let mut process = Process::default();
    process.set_env(Some(Vec::new()));
    let mut spec: Spec = SpecBuilder::default().process(process).mounts(Vec::new()).build().unwrap();
    cache.inject_devices(Some(&mut spec), vec![device.to_owned()]).unwrap();
    let devices = spec.linux().as_ref().and_then(|linux| linux.devices().clone()).unwrap_or_default();
    let mounts = spec.mounts().clone().unwrap_or_default();
    let env = spec.process().as_ref().and_then(|process| process.env().clone()).unwrap_or_default();
    let mut nodes: Vec<_> = devices.iter().map(|device| device.path().clone()).collect();
    nodes.sort();
    let mut places: Vec<_> =
        mounts.iter().map(|mount| [mount.source().clone().unwrap(), mount.destination().clone()]).collect();
    places.sort();
    json!({ "devices": nodes, "mounts": places, "env": env })
}

/// It looks nodes up that have no numbers: they are given some.
fn number(value: &mut Yaml) {
    match value {
        Yaml::Sequence(all) => all.iter_mut().for_each(number),
        Yaml::Mapping(map) => {
            if let Some(Yaml::Sequence(nodes)) = map.get_mut("deviceNodes") {
                for node in nodes.iter_mut().filter_map(Yaml::as_mapping_mut) {
                    node.insert("type".into(), "c".into());
                    node.insert("major".into(), 195.into());
                    node.insert("minor".into(), 1.into());
                }
            }
            map.values_mut().for_each(number);
        }
        _ => {}
    }
}
