//! A document of another platform as a tree that keeps the order of its fields and knows where each stands.
//!
//! YAML is built from the parser's events, so that aliases can be bounded; JSON is read strictly ([`json`]).

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use super::ImportError;
use super::indent::Indented;
use super::json;

/// Line and column from 1; both 0 where it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// Deepest nesting, and most nodes with all aliases expanded, of a file.
const DEPTH_MAX: usize = 64;
const NODES_MAX: usize = 200_000;
/// So many bytes of a text take as much as a node.
const TEXT_AS_NODE: usize = 64;

impl Node {
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, node)| node),
            _ => None,
        }
    }

    /// A scalar as text; `None` for lists, maps and null.
    pub(super) fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) | Value::Number(text) => Some(text.clone()),
            Value::Bool(flag) => Some(flag.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        self.value == Value::Null
    }

    /// In nodes, of which a long text counts as many.
    fn size(&self) -> usize {
        1 + match &self.value {
            Value::Text(text) | Value::Number(text) => text.len() / TEXT_AS_NODE,
            Value::List(items) => items.iter().map(Node::size).sum(),
            Value::Map(entries) => entries.iter().map(|(_, node)| node.size()).sum(),
            _ => 0,
        }
    }
}

/// The documents of a file. What begins like JSON must be JSON.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, ImportError> {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.starts_with(['{', '[']) || start.starts_with("//") || start.starts_with("/*") {
        return json::read(text).map(|node| vec![node]);
    }
    let mut source = Indented::new(text);
    loop {
        let mut builder = Builder::new(&source);
        let read = builder.documents();
        let minded = builder.minded.take();
        match minded {
            Some((what, line, column)) if read.is_err() && source.moves(&what, line, column) => {}
            _ => return read,
        }
    }
}

struct Builder<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    source: &'t Indented,
    /// The parser tells of an end that comes too soon as behind the text.
    last_line: usize,
    /// What was wrong by the parser's own words, with line and column.
    minded: Option<(String, usize, usize)>,
}

impl<'t> Builder<'t> {
    fn new(source: &'t Indented) -> Self {
        let text = source.text();
        // YAML ends a line at a carriage return as well.
        let last_line = text.replace("\r\n", "\n").split(['\n', '\r']).count();
        let parser = Parser::new_from_str(text);
        Self { parser, anchors: HashMap::new(), nodes: 0, source, last_line, minded: None }
    }

    fn documents(&mut self) -> Result<Vec<Node>, ImportError> {
        let mut documents = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(documents),
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => documents.push(self.node(event, span, 0)?),
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), ImportError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let (line, column) = (error.marker().line(), error.marker().col() + 1);
                self.minded = Some((error.info().to_owned(), line, column));
                let place = self.source.place(line.min(self.last_line), column);
                Err(ImportError::syntax(place, format!("not YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, ImportError> {
        let place = self.source.place(span.start.line(), span.start.col() + 1);
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            return Err(ImportError::syntax(place, "more than a job file can need: nested too deeply, or too large"));
        }
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.alias(anchor, place),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none_or(|tag| tag.suffix != "str");
                (anchor, if plain { plain_scalar(&text) } else { Value::Text(text.into_owned()) })
            }
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.map(depth)?),
            _ => return Err(ImportError::syntax(place, "not YAML: a value is missing")),
        };
        let node = Node { value, place };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// A copy of what the anchor stands for, counted in full: this is what bounds a bomb of aliases.
    fn alias(&mut self, anchor: usize, place: Place) -> Result<Node, ImportError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(ImportError::syntax(place, "an alias of what contains it"));
        };
        self.nodes += node.size();
        if self.nodes > NODES_MAX {
            return Err(ImportError::syntax(place, "its aliases come to more than a job file can need"));
        }
        Ok(node.clone())
    }

    fn list(&mut self, depth: usize) -> Result<Value, ImportError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, ImportError> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut merged: Vec<(String, Node)> = Vec::new();
        let mut names = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                entries.extend(merged.into_iter().filter(|(name, _)| names.insert(name.clone())));
                return Ok(Value::Map(entries));
            }
            let key = self.node(event, span, depth + 1)?;
            let place = key.place;
            let name = key.scalar().ok_or_else(|| ImportError::syntax(place, "the name of a field is no text"))?;
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1)?;
            match (name.as_str(), node.value) {
                ("<<", Value::Map(inherited)) => merged.extend(inherited),
                _ if !names.insert(name.clone()) => {
                    return Err(ImportError::syntax(place, format!("the field {name:?} stands here twice")));
                }
                (_, value) => entries.push((name, Node { value, place })),
            }
        }
    }
}

/// YAML 1.2's core schema.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
            && text.contains(|c: char| c.is_ascii_digit())
            && text.parse::<f64>().is_ok() =>
        {
            Value::Number(text.to_owned())
        }
        _ => Value::Text(text.to_owned()),
    }
}
