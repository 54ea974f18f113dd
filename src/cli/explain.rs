//! `trainyard explain KEY`

use serde::Serialize;

use super::output::{self, Format};
use super::{Exit, NotFound};
use crate::spec::explain;
use crate::spec::keys::{KEYS, Key, Support, lookup};

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
    match (key, format) {
        (None, Format::People) => output::line(explain::list().trim_end())?,
        (None, Format::Json) => KEYS.iter().try_for_each(|key| output::json(&view(key)))?,
        (Some(key), Format::People) => match explain::explain(key) {
            Ok(text) => output::line(text.trim_end())?,
            Err(unknown) => return Err(NotFound(unknown).into()),
        },
        (Some(key), Format::Json) => match lookup(key) {
            Some(key) => output::json(&view(key))?,
            None => return Err(NotFound(explain::explain(key).err().unwrap_or_default()).into()),
        },
    }
    Ok(Exit::Success)
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
