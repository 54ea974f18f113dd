//! JSON, read strictly. serde_json tells of no places and not how a number was written, so what it has read is gone through once more
//! for them.

use std::collections::HashSet;
use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor};

use super::ImportError;
use super::node::{Node, Place, Value};

pub(super) fn read(text: &str) -> Result<Node, ImportError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut node: Node = serde_json::from_str(text).map_err(|error| refusal(text, &error))?;
    let at = Place { line: 1, column: 1 };
    Tokens { letters: text.chars().peekable(), at, word: String::new() }.give_places(&mut node);
    Ok(node)
}

fn refusal(text: &str, error: &serde_json::Error) -> ImportError {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    let (line, bytes) = (error.line(), error.column());
    let is_comment = comment(text).is_some_and(|place| place <= (line, bytes));
    let advice = if is_comment { "; JSON has no comments: remove them" } else { "" };
    let letters = |line: &str| line.char_indices().take_while(|(at, _)| *at < bytes).count();
    let column = text.split('\n').nth(line.saturating_sub(1)).map_or(bytes, letters);
    ImportError::syntax(Place { line, column }, format!("not JSON: {message}{advice}"))
}

/// Line and column, in bytes as serde_json counts, of the first comment: nothing is read beyond it.
fn comment(text: &str) -> Option<(usize, usize)> {
    let (mut in_string, mut is_escaped) = (false, false);
    let (mut line, mut begin) = (1, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => (line, begin) = (line + 1, at + 1),
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'/' if !in_string && text[at + 1..].starts_with(['/', '*']) => return Some((line, at + 1 - begin)),
            _ => {}
        }
    }
    None
}

/// The tokens of a text that is JSON.
struct Tokens<'t> {
    letters: Peekable<Chars<'t>>,
    at: Place,
    /// The last one, where it is a word or a number.
    word: String,
}

impl Tokens<'_> {
    /// A field stands where its name does.
    fn give_places(&mut self, node: &mut Node) {
        node.place = self.pass();
        match &mut node.value {
            Value::List(items) => {
                items.iter_mut().for_each(|item| self.give_places(item));
                self.pass();
            }
            Value::Map(entries) => {
                for (_, entry) in entries {
                    let place = self.pass();
                    self.give_places(entry);
                    entry.place = place;
                }
                self.pass();
            }
            Value::Number(number) => number.clone_from(&self.word),
            _ => {}
        }
    }

    /// Goes behind the next bracket, string or word, and says where it began. What stands between them says nothing.
    fn pass(&mut self) -> Place {
        while self.letters.peek().is_some_and(|letter| letter.is_ascii_whitespace() || ",:".contains(*letter)) {
            self.letter();
        }
        let place = self.at;
        match self.letter() {
            Some('"') => self.string(),
            Some(letter) if letter.is_ascii_alphanumeric() || letter == '-' => {
                self.word = letter.into();
                let is_of_word = |letter: &char| letter.is_ascii_alphanumeric() || "+-.".contains(*letter);
                while let Some(letter) = self.letters.peek().copied().filter(is_of_word) {
                    self.word.push(letter);
                    self.letter();
                }
            }
            _ => {}
        }
        place
    }

    /// The rest of a string.
    fn string(&mut self) {
        loop {
            match self.letter() {
                Some('\\') => drop(self.letter()),
                Some('"') | None => return,
                Some(_) => {}
            }
        }
    }

    fn letter(&mut self) -> Option<char> {
        let letter = self.letters.next()?;
        match letter {
            '\r' if self.letters.peek() == Some(&'\n') => {}
            '\n' | '\r' => self.at = Place { line: self.at.line + 1, column: 1 },
            _ => self.at.column += 1,
        }
        Some(letter)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

fn node<E>(value: Value) -> Result<Node, E> {
    Ok(Node { value, place: Place::default() })
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        node(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        node(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        node(Value::Number(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        node(Value::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        node(Value::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        node(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        node(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut names = HashSet::new();
        while let Some((name, value)) = map.next_entry::<String, Node>()? {
            if !names.insert(name.clone()) {
                return Err(de::Error::custom(format!("the field {name:?} stands here twice")));
            }
            entries.push((name, value));
        }
        node(Value::Map(entries))
    }
}
