//! A TOML document as a tree whose parts know where they were written: laid over each other, and written out again.

use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::layers::Layer;

/// Where something was written: a byte of one of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) layer: usize,
    pub(super) start: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) at: Origin,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Scalar(Scalar),
    Array(Vec<Node>),
    Table(Vec<Entry>),
}

/// A value as it was written, such as `1e-4`, and what it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scalar {
    pub(super) written: String,
    pub(super) plain: Plain,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    Text(String),
    Integer(i64),
    Number(f64),
    Bool(bool),
    Date,
}

/// A key and its value. Entries stand in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The name as TOML has it, in quotes where it needs them.
    written: String,
    pub(super) at: Origin,
    pub(super) node: Node,
}

impl Scalar {
    pub(super) fn text(text: String) -> Self {
        Self { written: toml::Value::String(text.clone()).to_string(), plain: Plain::Text(text) }
    }

    /// A number as TOML has it.
    pub(super) fn number(written: String) -> Self {
        let plain = written.parse().map_or(Plain::Date, Plain::Number);
        Self { written, plain }
    }

    /// As it stands within a string.
    pub(super) fn within_text(&self) -> String {
        match &self.plain {
            Plain::Text(text) => text.clone(),
            _ => self.written.replace('_', ""),
        }
    }
}

impl Entry {
    /// A key that needs no quotes, which stands for what was written at `at`.
    pub(super) fn scalar(name: &str, at: Origin, scalar: Scalar) -> Self {
        Self { name: name.to_owned(), written: name.to_owned(), at, node: Node { at, value: Value::Scalar(scalar) } }
    }

    /// The value `node` at the key `path`, within tables; all of it stands for what was written at `at`.
    pub(super) fn at_path(path: &[String], at: Origin, node: Node) -> Option<Self> {
        let entry = |node: Node, name: &String| Node { at, value: Value::Table(vec![Self::new(name, at, node)]) };
        let (first, rest) = path.split_first()?;
        Some(Self::new(first, at, rest.iter().rev().fold(node, entry)))
    }

    fn new(name: &str, at: Origin, node: Node) -> Self {
        let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let written = if is_bare { name.to_owned() } else { toml::Value::String(name.to_owned()).to_string() };
        Self { name: name.to_owned(), written, at, node }
    }
}

impl Node {
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Table(entries) => entries,
            _ => &[],
        }
    }

    pub(super) fn scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match &self.scalar()?.plain {
            Plain::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The entry of this name.
pub(super) fn get<'e>(entries: &'e [Entry], name: &str) -> Option<&'e Entry> {
    entries.iter().find(|entry| entry.name == name)
}

/// Takes the entry of this name out.
pub(super) fn take(entries: &mut Vec<Entry>, name: &str) -> Option<Entry> {
    let place = entries.iter().position(|entry| entry.name == name)?;
    Some(entries.remove(place))
}

/// The document `text`, which is file `layer`; `None` if it is not TOML.
pub(super) fn read(text: &str, layer: usize) -> Option<Vec<Entry>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    errors.is_empty().then(|| entries_of(table.get_ref(), layer, text))
}

fn entries_of(table: &DeTable<'_>, layer: usize, text: &str) -> Vec<Entry> {
    let entry = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let name: &Spanned<std::borrow::Cow<'_, str>> = name;
        Entry {
            name: name.get_ref().to_string(),
            written: text.get(name.span()).unwrap_or_default().to_owned(),
            at: Origin { layer, start: name.span().start },
            node: node_of(value, layer, text),
        }
    };
    let mut entries: Vec<Entry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at.start);
    entries
}

fn node_of(value: &Spanned<DeValue<'_>>, layer: usize, text: &str) -> Node {
    let at = Origin { layer, start: value.span().start };
    let value = match value.get_ref() {
        DeValue::Array(items) => Value::Array(items.iter().map(|item| node_of(item, layer, text)).collect()),
        DeValue::Table(table) => Value::Table(entries_of(table, layer, text)),
        scalar => {
            let written = text.get(value.span()).unwrap_or_default().to_owned();
            Value::Scalar(Scalar { written, plain: plain(scalar) })
        }
    };
    Node { at, value }
}

fn plain(value: &DeValue<'_>) -> Plain {
    match value {
        DeValue::String(text) => Plain::Text(text.to_string()),
        DeValue::Boolean(value) => Plain::Bool(*value),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            // What is too large was told by the check.
            Plain::Integer(i64::from_str_radix(&digits, number.radix()).unwrap_or(i64::MAX))
        }
        DeValue::Float(number) => Plain::Number(number.as_str().replace('_', "").parse().unwrap_or(f64::NAN)),
        _ => Plain::Date,
    }
}

/// Lays `top` over `base`: tables merge, all else is replaced; what is new comes at the end.
pub(super) fn overlay(base: &mut Vec<Entry>, top: Vec<Entry>) {
    let places: HashMap<String, usize> = (0..).zip(&*base).map(|(place, entry)| (entry.name.clone(), place)).collect();
    for entry in top {
        match places.get(&entry.name).and_then(|place| base.get_mut(*place)) {
            Some(below) => lay(below, entry),
            None => base.push(entry),
        }
    }
}

fn lay(below: &mut Entry, entry: Entry) {
    below.at = entry.at;
    match (&mut below.node.value, entry.node) {
        (Value::Table(base), Node { at, value: Value::Table(top) }) => {
            overlay(base, top);
            below.node.at = at;
        }
        (_, node) => below.node = node,
    }
}

/// Tables in which the order of keys means something.
const ORDERED: [&str; 4] = ["params", "env", "roles", "ports"];

/// What the entries say, without comments, spacing and the order of tables.
pub(super) fn canonical(entries: &[Entry]) -> String {
    let mut out = String::new();
    write_canonical(entries, "", &mut out);
    out
}

fn write_canonical(entries: &[Entry], table: &str, out: &mut String) {
    let mut entries: Vec<&Entry> = entries.iter().collect();
    if !ORDERED.contains(&table) {
        entries.sort_by_key(|entry| &entry.name);
    }
    for entry in entries {
        out.push_str(&format!("{:?}=", entry.name));
        write_canonical_value(&entry.node, &entry.name, out);
    }
}

fn write_canonical_value(node: &Node, name: &str, out: &mut String) {
    match &node.value {
        Value::Scalar(Scalar { plain: Plain::Text(text), .. }) => out.push_str(&format!("{text:?}")),
        Value::Scalar(scalar) => out.push_str(&scalar.within_text()),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical_value(item, "", out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Table(entries) => {
            out.push('{');
            write_canonical(entries, name, out);
            out.push('}');
        }
    }
    out.push('\n');
}

/// Where the parts of a written document have come from.
#[derive(Debug)]
pub(super) struct Origins<'a> {
    layers: Vec<&'a Layer>,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    start: usize,
    end: usize,
    origin: Origin,
    /// Letter by letter as it was written there.
    is_verbatim: bool,
}

impl Origins<'_> {
    /// The file, its text and the place in it that a place of the written document has come from.
    pub(super) fn find(&self, offset: usize) -> Option<(&str, &str, usize)> {
        let after = self.pieces.partition_point(|piece| piece.end <= offset);
        let piece = self.pieces.get(after).or(self.pieces.last())?;
        let layer = self.layers.get(piece.origin.layer)?;
        let into = if piece.is_verbatim && piece.end > offset { offset.saturating_sub(piece.start) } else { 0 };
        Some((&layer.file, &layer.text, piece.origin.start + into))
    }
}

/// How the items of the array `text` are written, without `_` in numbers; nothing where it is none.
pub(super) fn forms_of_list(text: &str) -> Vec<String> {
    let entries = read(&format!("list = {text}"), 0).unwrap_or_default();
    let items = entries.first().map(|entry| &entry.node.value);
    let Some(Value::Array(items)) = items else { return Vec::new() };
    items.iter().map(|item| item.scalar().map(Scalar::within_text).unwrap_or_default()).collect()
}

/// A value as a document has it.
pub(super) fn written(node: &Node) -> String {
    let mut writer = Writer { layers: Vec::new(), text: String::new(), pieces: Vec::new() };
    writer.value(node);
    writer.text
}

/// Writes a document: first what is no table, then each table under its name.
pub(super) fn write<'a>(head: &str, entries: &[Entry], layers: Vec<&'a Layer>) -> (String, Origins<'a>) {
    let mut writer = Writer { layers, text: head.to_owned(), pieces: Vec::new() };
    let (tables, plain): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| matches!(entry.node.value, Value::Table(_)));
    plain.into_iter().for_each(|entry| writer.lines(&mut Vec::new(), entry));
    tables.into_iter().for_each(|entry| writer.section(&mut Vec::new(), entry));
    (writer.text, Origins { layers: writer.layers, pieces: writer.pieces })
}

struct Writer<'a> {
    layers: Vec<&'a Layer>,
    text: String,
    pieces: Vec<Piece>,
}

impl Writer<'_> {
    fn piece(&mut self, text: &str, origin: Origin) {
        let start = self.text.len();
        self.text.push_str(text);
        let written = self.layers.get(origin.layer).and_then(|layer| layer.text.get(origin.start..));
        let is_verbatim = written.is_some_and(|written| written.starts_with(text));
        self.pieces.push(Piece { start, end: self.text.len(), origin, is_verbatim });
    }

    fn key(&mut self, path: &[&Entry]) {
        for (place, entry) in path.iter().enumerate() {
            if place > 0 {
                self.text.push('.');
            }
            self.piece(&entry.written, entry.at);
        }
    }

    /// `[a.b]` and what is in it; a table of nothing but tables, such as `roles`, needs no header of its own.
    fn section<'e>(&mut self, path: &mut Vec<&'e Entry>, entry: &'e Entry) {
        let inner = entry.node.entries();
        path.push(entry);
        if !inner.is_empty() && inner.iter().all(|entry| matches!(entry.node.value, Value::Table(_))) {
            inner.iter().for_each(|entry| self.section(path, entry));
        } else {
            self.text.push_str("\n[");
            self.key(path);
            self.text.push_str("]\n");
            inner.iter().for_each(|entry| self.lines(&mut Vec::new(), entry));
        }
        path.pop();
    }

    /// `a.b = VALUE`, a line for each value of a table.
    fn lines<'e>(&mut self, path: &mut Vec<&'e Entry>, entry: &'e Entry) {
        path.push(entry);
        match &entry.node.value {
            Value::Table(entries) if !entries.is_empty() => entries.iter().for_each(|entry| self.lines(path, entry)),
            _ => {
                self.key(path);
                self.text.push_str(" = ");
                self.value(&entry.node);
                self.text.push('\n');
            }
        }
        path.pop();
    }

    fn value(&mut self, node: &Node) {
        match &node.value {
            Value::Scalar(scalar) => self.piece(&scalar.written, node.at),
            Value::Array(items) => {
                self.text.push('[');
                for (place, item) in items.iter().enumerate() {
                    self.text.push_str(if place > 0 { ", " } else { "" });
                    self.value(item);
                }
                self.text.push(']');
            }
            Value::Table(entries) => {
                self.text.push('{');
                for (place, entry) in entries.iter().enumerate() {
                    self.text.push_str(if place > 0 { ", " } else { " " });
                    self.key(&[entry]);
                    self.text.push_str(" = ");
                    self.value(&entry.node);
                }
                self.text.push_str(if entries.is_empty() { "}" } else { " }" });
            }
        }
    }
}
