//! What we are built from: licences, sources, doubled versions.

use std::collections::BTreeMap;

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand, PackageId};

/// Licences that go with Apache-2.0 OR MIT.
const LICENCES: [&str; 12] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "BSL-1.0",
    "0BSD",
    "CC0-1.0",
];

/// Crates that come in several versions, and why nothing can be done.
const DOUBLED: [(&str, &str); 21] = [
    ("nix", "libcontainer 0.7 and fuser 0.18 each pin one of their own"),
    ("syn", "macro crates move to 3 one by one; not in the program"),
    ("thiserror", "libcontainer's dependencies still use 1"),
    ("thiserror-impl", "as thiserror"),
    ("rustix", "libcontainer's procfs uses an older one"),
    ("linux-raw-sys", "as rustix"),
    ("memoffset", "through the older nix"),
    ("bitflags", "through older dependencies"),
    ("getrandom", "through older dependencies"),
    ("digest", "opendal's crc-fast still uses 0.10"),
    ("crypto-common", "as digest"),
    ("hashbrown", "opendal's signing for S3 uses an older one"),
    ("block-buffer", "as digest"),
    ("embedded-io", "two that postcard can be built with; it is built with neither"),
    ("itertools", "ratatui's unicode-truncate and libcontainer's pathrs, each with its own"),
    ("strum", "oci-spec of libcontainer and ratatui, each with its own"),
    ("strum_macros", "as strum"),
    ("darling", "a macro crate of libcontainer's and one of ratatui's; not in the program"),
    ("darling_core", "as darling"),
    ("darling_macro", "as darling"),
    ("base64", "oci-client and hyper-util, each with its own"),
];

/// Crates with a licence that binds their own files only, and where they come from.
const FILE_COPYLEFT: [(&str, &str); 1] = [("pathrs", "MPL-2.0, unchanged, through libcontainer")];

/// Crates that name a file instead of a licence, and what is in it.
const READ_BY_HAND: [(&str, &str); 1] = [("rust-criu", "MIT")];

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        .other_options(["--offline".to_owned(), "--filter-platform".to_owned(), "x86_64-unknown-linux-gnu".to_owned()])
        .exec()
        .unwrap()
}

/// Packages that are part of the program, not of its tests.
fn shipped(metadata: &Metadata) -> Vec<PackageId> {
    let resolve = metadata.resolve.as_ref().unwrap();
    let mut open = metadata.workspace_members.clone();
    let mut found: Vec<PackageId> = Vec::new();
    while let Some(id) = open.pop() {
        if found.contains(&id) {
            continue;
        }
        let node = resolve.nodes.iter().find(|node| node.id == id).unwrap();
        let normal = node.deps.iter().filter(|dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind != cargo_metadata::DependencyKind::Development)
        });
        open.extend(normal.map(|dependency| dependency.pkg.clone()));
        found.push(id);
    }
    found
}

/// `A OR B` needs one that is allowed, `A AND B` both.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    expression.split(" AND ").all(|part| part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim())))
}

#[test]
fn every_licence_goes_with_ours_and_every_crate_comes_from_the_registry() {
    let metadata = metadata();
    for id in shipped(&metadata) {
        let package = &metadata[&id];
        let by_hand = READ_BY_HAND.iter().find(|(name, _)| package.name.as_str() == *name);
        let licence = package.license.clone().or(by_hand.map(|(_, licence)| (*licence).to_owned())).unwrap_or_default();
        let excepted =
            FILE_COPYLEFT.iter().any(|(name, _)| package.name.as_str() == *name) && licence.contains("MPL-2.0");
        assert!(is_allowed(&licence) || excepted, "{} {}: {licence:?}", package.name, package.version);
        let ours = metadata.workspace_members.contains(&id);
        let source = package.source.as_ref().map(|source| source.repr.clone()).unwrap_or_default();
        assert!(ours || source.starts_with("registry+"), "{}: {source}", package.name);
    }
}

#[test]
fn no_crate_comes_in_two_versions_without_a_reason() {
    let metadata = metadata();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in shipped(&metadata) {
        let package = &metadata[&id];
        versions.entry(package.name.to_string()).or_default().push(package.version.to_string());
    }
    let doubled: Vec<_> = versions.into_iter().filter(|(_, versions)| versions.len() > 1).collect();
    for (name, versions) in &doubled {
        assert!(DOUBLED.iter().any(|(known, _)| known == name), "{name} comes in {versions:?}");
    }
}

#[test]
fn every_dependency_says_what_it_is_for() {
    for manifest in ["Cargo.toml", "fs/Cargo.toml"] {
        let text = std::fs::read_to_string(format!("{}/{manifest}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let mut section = "";
        let mut explained = false;
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let is_dependency = section.contains("dependencies") && line.contains(" = ");
            assert!(!is_dependency || explained, "{manifest}: {line}");
            explained = line.starts_with('#') || (explained && is_dependency);
        }
    }
}

/// Packages of a lock file: the version and, by name, what each needs.
fn locked(path: &str) -> BTreeMap<String, Vec<toml::Value>> {
    let text = std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let lock: toml::Table = text.parse().unwrap();
    let mut packages: BTreeMap<String, Vec<toml::Value>> = BTreeMap::new();
    for package in lock["package"].as_array().unwrap() {
        packages.entry(package["name"].as_str().unwrap().to_owned()).or_default().push(package.clone());
    }
    packages
}

#[test]
fn the_fuzz_targets_are_locked_to_the_project_s_crates() {
    let (ours, theirs) = (locked("Cargo.lock"), locked("tests/fuzz/Cargo.lock"));
    let versions = |packages: &[toml::Value]| {
        packages.iter().map(|package| package["version"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let both = theirs.iter().filter_map(|(name, packages)| Some((name, versions(packages), versions(ours.get(name)?))));
    let other: Vec<_> = both.filter(|(_, theirs, ours)| !theirs.iter().all(|version| ours.contains(version))).collect();
    assert!(other.is_empty(), "copy Cargo.lock to tests/fuzz and run `cargo metadata` there: {other:?}");
    let needs = |packages: &BTreeMap<String, Vec<toml::Value>>| packages["trainyard"][0]["dependencies"].clone();
    let known = needs(&theirs);
    let names: Vec<&str> = known.as_array().unwrap().iter().filter_map(|one| one.as_str()?.split(' ').next()).collect();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    for name in text.parse::<toml::Table>().unwrap()["dependencies"].as_table().unwrap().keys() {
        let is_there = names.contains(&name.as_str());
        assert!(is_there, "tests/fuzz/Cargo.lock lacks {name}: it is older than Cargo.toml");
    }
}
