//! `trainyard explain` and the key reference of `docs/JOBS.md`, both printed from the key table.

use std::fmt::Write;

use super::keys::{KEYS, Key, Support, children, lookup};

/// The explanation of one key, or the nearest keys when there is none of that path.
pub fn explain(path: &str) -> Result<String, String> {
    match lookup(path) {
        Some(key) => Ok(explain_key(key)),
        None => Err(unknown(path)),
    }
}

fn explain_key(key: &Key) -> String {
    let mut out = format!("{}\n    {}\n", key.path, key.help);
    if key.support == Support::Later {
        out.push_str("    not supported by this version yet\n");
        return out;
    }
    let mut line = |label: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(out, "    {label:<9}{text}");
        }
    };
    line("type:", &key.kind.describe());
    line("default:", key.default);
    line("bounds:", key.bounds);
    let below: Vec<_> = children(key.path).collect();
    line("keys:", &below.join(", "));
    out
}

fn unknown(path: &str) -> String {
    let nearest =
        KEYS.iter().max_by(|a, b| strsim::jaro_winkler(a.path, path).total_cmp(&strsim::jaro_winkler(b.path, path)));
    let nearest = nearest.map_or("", |key| key.path);
    format!("there is no key {path:?}; the nearest is {nearest:?}, and `trainyard explain` lists all")
}

/// One line for every key.
pub fn list() -> String {
    KEYS.iter().fold(String::new(), |mut out, key| {
        let later = if key.support == Support::Later { " (not supported yet)" } else { "" };
        let _ = writeln!(out, "{:<32}{}{later}", key.path, key.help);
        out
    })
}

/// The reference as a Markdown table.
pub fn markdown() -> String {
    let mut out = String::from("| key | type | default | bounds | |\n|---|---|---|---|---|\n");
    for key in KEYS.iter().filter(|key| key.support == Support::Now) {
        let kind = key.kind.describe();
        let _ = writeln!(out, "| `{}` | {kind} | {} | {} | {} |", key.path, key.default, key.bounds, key.help);
    }
    out.push_str("\nKnown, but refused by this version: ");
    let later = KEYS.iter().filter(|key| key.support == Support::Later).map(|key| format!("`{}`", key.path));
    out.push_str(&later.collect::<Vec<_>>().join(", "));
    out.push_str(".\n");
    out
}
