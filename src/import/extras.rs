//! Notes of a document as `extras` of a job file, and other values as TOML has them.

use super::Loss;
use super::node::{Node, Value};

/// A value, as for `extras`; nulls, which TOML has not, are told by their path.
pub(super) fn to_toml(node: &Node, path: &str, losses: &mut Vec<Loss>) -> Option<toml::Value> {
    Some(match &node.value {
        Value::Null => {
            let why = "is null, which a job file cannot say".to_owned();
            losses.push(Loss { field: path.to_owned(), line: node.place.line, why });
            return None;
        }
        Value::Bool(flag) => toml::Value::Boolean(*flag),
        Value::Number(text) => number(text).unwrap_or_else(|| {
            let why = "is a larger number than a job file can hold: it became a text".to_owned();
            losses.push(Loss { field: path.to_owned(), line: node.place.line, why });
            toml::Value::String(text.clone())
        }),
        Value::Text(text) => toml::Value::String(text.clone()),
        Value::List(items) => {
            let items = items.iter().enumerate();
            toml::Value::Array(items.filter_map(|(i, item)| to_toml(item, &format!("{path}[{i}]"), losses)).collect())
        }
        Value::Map(entries) => {
            let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let field = |(name, node): &(String, Node)| Some((name.clone(), to_toml(node, &at(name), losses)?));
            toml::Value::Table(entries.iter().filter_map(field).collect())
        }
    })
}

/// As long as TOML has numbers that large: nearly the same is not the same.
fn number(text: &str) -> Option<toml::Value> {
    let is_whole = !text.contains(['.', 'e', 'E']);
    match is_whole {
        true => text.parse().ok().map(toml::Value::Integer),
        false => text.parse().ok().filter(|number: &f64| number.is_finite()).map(toml::Value::Float),
    }
}
