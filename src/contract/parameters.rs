//! Parameters as arguments, as JSON, and as Python would print them.

use serde_json::Value;

use super::command::quote;
use super::join;
use crate::spec::{ListItem, Param};

/// `--key=value`; a flag alone, a list repeated.
pub fn with_equals(params: &[(String, Param)]) -> Vec<String> {
    let one = |(key, param): &(String, Param)| match param {
        Param::Flag => vec![format!("--{key}")],
        Param::Value(value) | Param::Plain(value) => vec![format!("--{key}={value}")],
        Param::List(values) => values.iter().map(|value| format!("--{key}={}", value.as_str())).collect(),
    };
    params.iter().flat_map(one).collect()
}

/// `--key value`; what has no value is a flag alone.
pub(super) fn with_spaces(params: &[(String, Param)]) -> Vec<String> {
    let one = |(key, param): &(String, Param)| {
        let name = format!("--{key}");
        match param {
            Param::Flag => vec![name],
            Param::Value(value) if value.is_empty() => vec![name],
            Param::Value(value) | Param::Plain(value) => vec![name, value.clone()],
            Param::List(values) => values.iter().flat_map(|value| [name.clone(), value.as_str().to_owned()]).collect(),
        }
    };
    params.iter().flat_map(one).collect()
}

/// A value as text, as the file has it; a list as JSON.
pub(super) fn text(param: &Param) -> String {
    match param {
        Param::Flag => "true".to_owned(),
        Param::Value(value) | Param::Plain(value) => value.clone(),
        Param::List(items) => compact(&items.iter().map(item).collect()),
    }
}

fn item(item: &ListItem) -> Value {
    match item {
        ListItem::Text(text) => Value::String(text.clone()),
        ListItem::Plain(text) => plain(text),
    }
}

/// A number, or whether something is so; what JSON has no word for, such as `nan`, as a text.
fn plain(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// What the file says, by its type.
fn value(param: &Param) -> Value {
    match param {
        Param::Flag => Value::Bool(true),
        Param::Value(text) => Value::String(text.clone()),
        Param::Plain(text) => plain(text),
        Param::List(items) => items.iter().map(item).collect(),
    }
}

/// A value as Python's `str` has it: `True`, `0.0001`, `[1, 'a']`.
pub(super) fn python_text(param: &Param) -> String {
    python_str(&value(param))
}

/// A value as JSON, texts as they are.
fn json_text(param: &Param) -> String {
    match value(param) {
        Value::String(text) => text,
        other => compact(&other),
    }
}

/// What stands between entries, and between a key and its value.
pub(super) type Separators = (&'static str, &'static str);
const COMPACT: Separators = (",", ":");
/// Those of Python's `json.dumps` by itself.
pub(super) const SPACED: Separators = (", ", ": ");

/// As Python's `json.dumps` writes it.
pub(super) fn json(value: &Value, separators: Separators) -> String {
    let (comma, colon) = separators;
    match value {
        Value::Array(items) => format!("[{}]", join(items.iter().map(|item| json(item, separators)), comma)),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}{colon}{}", json(&Value::from(key.as_str()), separators), json(value, separators))
            };
            format!("{{{}}}", join(entries.iter().map(entry), comma))
        }
        Value::Number(number) => python_number(number),
        other => in_ascii(&other.to_string()),
    }
}

/// The same without spaces.
pub(super) fn compact(value: &Value) -> String {
    json(value, COMPACT)
}

/// JSON in the characters from space to `~` alone.
fn in_ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            ' '..='~' => out.push(letter),
            _ => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

/// A text is what it is as JSON, if it is JSON at all.
pub(super) fn decoded(param: &Param) -> Value {
    let text = text(param);
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// All of them as texts, of which `json.loads` makes the values.
pub(super) fn texts(params: &[(String, Param)]) -> Value {
    params.iter().map(|(key, param)| (key.clone(), Value::String(json_text(param)))).collect()
}

/// All of them as `str()` of Python has them.
pub(super) fn python_texts(params: &[(String, Param)]) -> Value {
    params.iter().map(|(key, param)| (key.clone(), Value::String(python_text(param)))).collect()
}

/// As Amazon's toolkit makes an argument of it: nothing of `null`, and `key=value` of the entries of an object.
pub(super) fn of_toolkit(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(entries) => join(entries.iter().map(|(key, value)| format!("{key}={}", python_str(value))), ","),
        other => python_str(other),
    }
}

/// `str()` of Python.
pub(super) fn python_str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => python_repr(other),
    }
}

/// `repr()` of Python.
fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => python_number(number),
        Value::Array(items) => format!("[{}]", join(items.iter().map(python_repr), ", ")),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}: {}", python_repr(&Value::from(key.as_str())), python_repr(value))
            };
            format!("{{{}}}", join(entries.iter().map(entry), ", "))
        }
        Value::String(text) => {
            let plain: String = text.chars().map(repr_of_letter).collect();
            match text.contains('\'') && !text.contains('"') {
                true => format!("\"{plain}\""),
                false => format!("'{}'", plain.replace('\'', r"\'")),
            }
        }
    }
}

fn repr_of_letter(letter: char) -> String {
    match letter {
        '\\' => r"\\".to_owned(),
        '\n' => r"\n".to_owned(),
        '\t' => r"\t".to_owned(),
        '\r' => r"\r".to_owned(),
        _ if letter.is_control() => format!("\\x{:02x}", u32::from(letter)),
        _ => letter.to_string(),
    }
}

/// Python pads an exponent to two digits and always gives its sign.
fn python_number(number: &serde_json::Number) -> String {
    let text = match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) => format!("{float:?}"),
        None => number.to_string(),
    };
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// One line that a shell reads back as these words.
pub(super) fn line(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// A name as a part of a variable: what cannot be in one becomes `_`.
pub(super) fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}
