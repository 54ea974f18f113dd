//! The key reference of `docs/JOBS.md`, printed from the key table, and which key is meant by a path that is none.

use std::fmt::Write;

use super::keys::{KEYS, Key, Support, TEMPLATE_KEYS, lookup};
use super::near::{Nearness, nearness};

/// What is said where there is no key of that path: the nearest.
pub fn unknown(path: &str) -> String {
    match nearest(path) {
        Some(key) => {
            let near = as_named_in(path, key.path);
            format!("there is no key {path:?}; the nearest is {near:?}, and `trainyard explain` lists all")
        }
        None => format!("there is no key {path:?}; `trainyard explain` lists all"),
    }
}

/// The key whose last part is the same or, at the same place, below it and then elsewhere, the nearest; of several the one
/// that lies highest.
fn nearest(path: &str) -> Option<&'static Key> {
    let (above, name) = path.rsplit_once('.').unwrap_or(("", path));
    let place = known_place(above);
    let near = |key: &'static Key| {
        let (above, last) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        let (nearness, distance) = (nearness(name, last)?, distance(place, above));
        let rank = (distance > 0 && nearness != Nearness::Same, nearness, distance, above.split('.').count());
        Some((rank, key))
    };
    let all = KEYS.iter().chain(TEMPLATE_KEYS).filter_map(near);
    all.min_by_key(|(rank, _)| *rank).map(|(_, key)| key)
}

/// The longest beginning of a path that is a key, as the table has it.
fn known_place(path: &str) -> &'static str {
    let ends = path.rmatch_indices('.').map(|(at, _)| at);
    let mut beginnings = std::iter::once(path.len()).chain(ends).filter_map(|end| lookup(&path[..end]));
    beginnings.next().map_or("", |key| key.path)
}

/// 0 at the place, 1 below it, 2 elsewhere.
fn distance(place: &str, other: &str) -> u8 {
    match other.strip_prefix(place) {
        Some("") => 0,
        Some(rest) if place.is_empty() || rest.starts_with('.') => 1,
        _ => 2,
    }
}

/// A key of the table with the names that the user has written for `*`, as far as the two go the same way.
fn as_named_in(path: &str, key: &str) -> String {
    let mut written = path.split('.');
    let mut goes_along = true;
    let parts = key.split('.').map(|part| match written.next() {
        Some(name) if goes_along && part == "*" => name,
        given => {
            goes_along &= given == Some(part);
            part
        }
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The reference as a Markdown table.
pub fn markdown() -> String {
    let mut out = String::from("| key | type | default | bounds | |\n|---|---|---|---|---|\n");
    for key in KEYS.iter().filter(|key| key.support == Support::Now) {
        let kind = key.kind.describe();
        let _ = writeln!(out, "| `{}` | {kind} | {} | {} | {} |", key.path, key.default, key.bounds, key.help);
    }
    let later = KEYS.iter().filter(|key| key.support == Support::Later).map(|key| format!("`{}`", key.path));
    let later: Vec<String> = later.collect();
    if !later.is_empty() {
        let _ = writeln!(out, "\nKnown, but refused by this version: {}.", later.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_told_the_nearest_wherever_that_is() {
        for (path, near) in [
            ("shm", "resources.shm"),
            ("gpu_type", "resources.gpu_type"),
            ("mem", "resources.memory"),
            ("resources.mem", "resources.memory"),
            ("role.count", "roles.*.count"),
            ("roles.worker.cont", "roles.*.count"),
            ("count", "roles.*.count"),
            ("comand", "command"),
            ("services.x.cpu", "services.*.resources.cpu"),
            ("services.x.mem", "services.*.resources.memory"),
            ("roles.w.resources.mem", "roles.*.resources.memory"),
            ("roles.w.resorces.gpu", "roles.*.resources.gpu"),
            ("roles.w.shm", "roles.*.resources.shm"),
            ("services.x.resources.cpus", "services.*.resources.cpu"),
            ("template.params.x.defalt", "template.params.*.default"),
        ] {
            assert_eq!(nearest(path).map(|key| key.path), Some(near), "{path}");
        }
        for (path, told) in [
            ("roles.w.resources.mem", "\"roles.w.resources.memory\""),
            ("roles.w.cpu", "\"roles.w.resources.cpu\""),
            ("services.nb.prot", "\"services.nb.port\""),
            ("count", "\"roles.*.count\""),
        ] {
            assert!(unknown(path).contains(told), "{path}: {:?}", unknown(path));
        }
        for path in ["", "xyz", "zzzz", "lr", "a.b.c", "."] {
            assert_eq!(unknown(path), format!("there is no key {path:?}; `trainyard explain` lists all"));
        }
    }
}
