//! `trainyard explain KEY`

use serde::Serialize;

use super::output::{self, Format};
use super::{Exit, NotFound};
use crate::spec::explain;
use crate::spec::keys::{KEYS, Key, Support, children, lookup};

#[derive(Serialize)]
struct KeyView {
    key: &'static str,
    r#type: String,
    default: &'static str,
    bounds: &'static str,
    help: &'static str,
    supported: bool,
}

pub(super) fn run(key: Option<&str>, markdown: bool, format: Format) -> anyhow::Result<Exit> {
    if markdown {
        output::line(explain::markdown().trim_end())?;
        return Ok(Exit::Success);
    }
    let found = |path: &str| lookup(path).ok_or_else(|| NotFound(explain::unknown(path)));
    match (key, format) {
        (None, Format::People) => output::line(&KEYS.iter().map(entry).collect::<Vec<_>>().join("\n"))?,
        (None, Format::Json) => KEYS.iter().try_for_each(|key| output::json(&view(key)))?,
        (Some(key), Format::People) => output::line(&screen(found(key)?))?,
        (Some(key), Format::Json) => output::json(&view(found(key)?))?,
    }
    Ok(Exit::Success)
}

/// Of the column of keys, in a list of all; what a longer key is for stands below it.
const KEY: usize = 28;

fn entry(key: &Key) -> String {
    let later = if key.support == Support::Later { " (not supported yet)" } else { "" };
    let (begin, above) = match key.path.len() <= KEY {
        true => (output::padded(key.path, KEY + 2), String::new()),
        false => (" ".repeat(KEY + 2), format!("{}\n", key.path)),
    };
    format!("{above}{}", output::folded(&begin, KEY + 2, &format!("{}{later}", key.help)))
}

fn screen(key: &Key) -> String {
    let mut lines = vec![key.path.to_owned(), output::folded("    ", 4, key.help)];
    if key.support == Support::Later {
        lines.push("    not supported by this version yet".to_owned());
        return lines.join("\n");
    }
    let below: Vec<_> = children(key.path).collect();
    let told = [
        ("type:", key.kind.describe()),
        ("default:", key.default.to_owned()),
        ("bounds:", key.bounds.to_owned()),
        ("keys:", below.join(", ")),
    ];
    let told = told.iter().filter(|(_, text)| !text.is_empty());
    lines.extend(told.map(|(label, text)| output::folded(&format!("    {label:<9}"), 13, text)));
    lines.join("\n")
}

fn view(key: &Key) -> KeyView {
    KeyView {
        key: key.path,
        r#type: key.kind.describe(),
        default: key.default,
        bounds: key.bounds,
        help: key.help,
        supported: key.support == Support::Now,
    }
}
