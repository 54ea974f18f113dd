//! The keys of a job of ours as one object of JSON, as `trainyard show --json` has them and programs write them.

use super::extras::to_toml;
use super::node::{Node, Place, Value};
use super::{ImportError, Loss, json};

/// Such an object as a job file, and where its keys stood.
#[derive(Debug)]
pub struct Keys {
    pub toml: String,
    /// Numbers that TOML does not have, which became texts.
    pub losses: Vec<Loss>,
    places: Vec<(String, Place)>,
}

impl Keys {
    /// In the order of the document. What TOML cannot say is refused, but for numbers, which become texts.
    pub fn read(text: &str) -> Result<Self, ImportError> {
        let document = json::read(text)?;
        let mut places = Vec::new();
        find_places(&document, "", &mut places)?;
        let mut losses = Vec::new();
        let value = to_toml(&document, "", &mut losses);
        let table = value.and_then(|value| value.as_table().cloned());
        let table = table.ok_or_else(|| ImportError::syntax(document.place, "no object of keys"))?;
        let refuse = |error: toml::ser::Error| ImportError::syntax(document.place, format!("cannot be TOML: {error}"));
        Ok(Self { toml: toml::to_string(&table).map_err(refuse)?, losses, places })
    }

    /// Line and column of the key, or of the innermost one around it that stands there.
    pub fn place(&self, key: &str) -> Option<(usize, usize)> {
        let mut wanted = key;
        loop {
            if let Some((_, at)) = self.places.iter().find(|(known, _)| known == wanted) {
                return Some((at.line, at.column));
            }
            wanted = wanted.get(..wanted.rfind(['.', '['])?)?;
        }
    }
}

/// By their paths, as errors of a job file have them; an item of a list by its number.
fn find_places(node: &Node, path: &str, places: &mut Vec<(String, Place)>) -> Result<(), ImportError> {
    if !path.is_empty() {
        places.push((path.to_owned(), node.place));
    }
    match &node.value {
        Value::Null => {
            Err(ImportError::field(path, node.place, "is null, which a job file cannot say: leave the key out"))
        }
        Value::List(items) => {
            items.iter().enumerate().try_for_each(|(at, item)| find_places(item, &format!("{path}[{at}]"), places))
        }
        Value::Map(entries) => entries.iter().try_for_each(|(name, node)| {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            find_places(node, &below, places)
        }),
        Value::Bool(_) | Value::Number(_) | Value::Text(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_of_json_become_texts_and_are_told_and_keys_have_their_places() {
        let text = "{\n \"command\": \"x\",\n \"params\": {\"seed\": 123456789012345678901234567890, \"lr\": 1e-4},\n \
                    \"extras\": {\"a\": [18446744073709551615, 9223372036854775807]}\n}";
        let keys = Keys::read(text).unwrap();
        let table: toml::Table = keys.toml.parse().unwrap();
        assert_eq!(table["params"]["seed"].as_str(), Some("123456789012345678901234567890"));
        assert_eq!(table["params"]["lr"].as_float(), Some(1e-4));
        assert_eq!(table["extras"]["a"][0].as_str(), Some("18446744073709551615"));
        assert_eq!(table["extras"]["a"][1].as_integer(), Some(i64::MAX));
        let told: Vec<_> = keys.losses.iter().map(|loss| (loss.field.as_str(), loss.line)).collect();
        assert_eq!(told, [("params.seed", 3), ("extras.a[0]", 4)]);
        assert!(keys.losses[0].why.contains("it became a text"), "{}", keys.losses[0]);
        for (key, place) in [
            ("params.lr", Some((3, 53))),
            ("params.more.x", Some((3, 2))),
            ("extras.a[1]", Some((4, 41))),
            ("extras.a[7].b", Some((4, 13))),
        ] {
            assert_eq!(keys.place(key), place, "{key}");
        }
        assert_eq!(keys.place("nothing"), None);
        let null = Keys::read("{\"env\":\n {\"A\": null}}").unwrap_err().to_string();
        assert_eq!(null, "line 2, column 3: `env.A` is null, which a job file cannot say: leave the key out");
    }
}
