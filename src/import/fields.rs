//! The fields of one object: what is taken is carried; what is left over is named, or known to mean nothing here.

use super::node::{Node, Place, Value};
use super::{ImportError, Loss};

/// What becomes of a field that is not carried.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// It means nothing here; the text says why, for who reads the table.
    Nothing(#[expect(dead_code, reason = "the reason is for the reader of the table")] &'static str),
    /// It is lost; the text says what to do.
    Lost(&'static str),
}

pub(super) type Fates = [(&'static str, Fate)];

/// A login for a registry, whose password has no place in a job file.
pub(super) const LOGIN: Fate = Fate::Lost(
    "images are brought in with the logins of secrets/WORKSPACE/registry.json or of your own auth.json or config.json, as `podman login` and `docker login` write them",
);

/// A field of the source that became a key of a role here, as in `count`; no key for the role itself.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) key: &'static str,
    pub(super) field: String,
    pub(super) place: Place,
}

const UNKNOWN: &str = "not a field that is known here";

#[derive(Debug)]
pub(super) struct Fields {
    path: String,
    place: Place,
    entries: Vec<(String, Node)>,
    /// Where that stood which is carried.
    taken: Vec<(String, Place)>,
}

impl Fields {
    pub(super) fn of(node: Node, path: &str) -> Result<Self, ImportError> {
        let entries = match node.value {
            Value::Map(entries) => entries,
            Value::Null => Vec::new(),
            _ => return Err(ImportError::field(path, node.place, "must be an object of fields")),
        };
        Ok(Self { path: path.to_owned(), place: node.place, entries, taken: Vec::new() })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn at(&self, name: &str) -> String {
        let name = if name.is_empty() { "\"\"" } else { name };
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Where a field stands, or else the object.
    pub(super) fn place_of(&self, name: &str) -> Place {
        let there = self.entries.iter().map(|(known, node)| (known, node.place));
        let taken = self.taken.iter().map(|(known, place)| (known, *place));
        there.chain(taken).find(|(known, _)| *known == name).map_or(self.place, |(_, place)| place)
    }

    /// The object had the field, be it carried by now.
    pub(super) fn is_known(&self, name: &str) -> bool {
        self.is_written(name) || self.taken.iter().any(|(known, _)| known == name)
    }

    /// What a key of ours was made of: of these fields the first that is there, or else the object.
    pub(super) fn source(&self, key: &'static str, names: &[&str]) -> Source {
        match names.iter().find(|name| self.is_known(name)) {
            Some(name) => Source { key, field: self.at(name), place: self.place_of(name) },
            None => Source { key, field: self.path.clone(), place: self.place },
        }
    }

    pub(super) fn refuse(&self, name: &str, message: impl Into<String>) -> ImportError {
        let path = if name.is_empty() { self.path.clone() } else { self.at(name) };
        ImportError::field(&path, self.place_of(name), message)
    }

    pub(super) fn loss(&self, name: &str, why: impl Into<String>) -> Loss {
        Loss { field: self.at(name), line: self.place_of(name).line, why: why.into() }
    }

    /// The field, unless it is absent or null.
    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let at = self.entries.iter().position(|(known, _)| known == name)?;
        let (name, node) = self.entries.remove(at);
        self.taken.push((name, node.place));
        (!node.is_null()).then_some(node)
    }

    /// Puts a field back.
    pub(super) fn keep(&mut self, name: &str, node: Node) {
        self.entries.push((name.to_owned(), node));
    }

    /// It stands there, be it as null.
    pub(super) fn is_written(&self, name: &str) -> bool {
        self.entries.iter().any(|(known, _)| known == name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(known, node)| known == name && !node.is_null())
    }

    /// The field is this text; it is not taken.
    pub(super) fn says(&self, name: &str, text: &str) -> bool {
        self.entries.iter().any(|(known, node)| known == name && node.scalar().as_deref() == Some(text))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ImportError> {
        let Some(node) = self.take(name) else { return Ok(None) };
        let text = node.scalar();
        text.map(Some).ok_or_else(|| ImportError::field(&self.at(name), node.place, "must be a text"))
    }

    pub(super) fn needed(&mut self, name: &str) -> Result<String, ImportError> {
        match self.text(name)? {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(self.refuse(name, "is missing")),
        }
    }

    pub(super) fn whole(&mut self, name: &str) -> Result<Option<i64>, ImportError> {
        let Some(node) = self.take(name) else { return Ok(None) };
        let number = node.scalar().and_then(|text| whole_number(&text));
        number.map(Some).ok_or_else(|| ImportError::field(&self.at(name), node.place, "must be a whole number"))
    }

    /// A whole number from `min` on.
    pub(super) fn number(&mut self, name: &str, min: i64) -> Result<Option<i64>, ImportError> {
        let number = self.whole(name)?;
        match number {
            Some(number) if number < min => Err(self.refuse(name, format!("is {number}, must be at least {min}"))),
            number => Ok(number),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, ImportError> {
        match self.take(name).map(|node| (node.place, node.value)) {
            None => Ok(None),
            Some((_, Value::Bool(flag))) => Ok(Some(flag)),
            Some((place, _)) => Err(ImportError::field(&self.at(name), place, "must be true or false")),
        }
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Vec<Node>, ImportError> {
        match self.take(name).map(|node| (node.place, node.value)) {
            None => Ok(Vec::new()),
            Some((_, Value::List(items))) => Ok(items),
            Some((place, _)) => Err(ImportError::field(&self.at(name), place, "must be a list")),
        }
    }

    /// The objects of a list, each with its place as path.
    pub(super) fn objects(&mut self, name: &str) -> Result<Vec<Fields>, ImportError> {
        let path = self.at(name);
        let items = self.list(name)?.into_iter().enumerate();
        items.map(|(index, node)| Fields::of(node, &format!("{path}[{index}]"))).collect()
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>, ImportError> {
        let path = self.at(name);
        let text = |node: Node| node.scalar().ok_or_else(|| ImportError::field(&path, node.place, "must be texts"));
        self.list(name)?.into_iter().map(text).collect()
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Fields, ImportError> {
        let path = self.at(name);
        let empty = Node { value: Value::Null, place: self.place };
        Fields::of(self.take(name).unwrap_or(empty), &path)
    }

    /// What is still there, in order.
    pub(super) fn rest(self) -> Vec<(String, Node)> {
        self.entries
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.entries.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Names what is left over. Empty values say nothing and are passed over.
    pub(super) fn leave(self, fates: &Fates, losses: &mut Vec<Loss>) {
        for (name, node) in &self.entries {
            let fate = fates.iter().find(|(known, _)| known == name).map(|(_, fate)| *fate);
            let why = match fate {
                Some(Fate::Nothing(_)) => continue,
                _ if says_nothing(&node.value) => continue,
                Some(Fate::Lost(why)) => why,
                None => UNKNOWN,
            };
            losses.push(Loss { field: self.at(name), line: node.place.line, why: why.to_owned() });
        }
    }
}

/// Most programs write a whole number without a point, some with one.
fn whole_number(text: &str) -> Option<i64> {
    // Up to there every whole number is one of its own.
    let exact = |number: &f64| number.fract() == 0.0 && number.abs() < 2f64.powi(53);
    text.parse().ok().or_else(|| text.parse().ok().filter(exact).map(|number| number as i64))
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Text(text) => text.is_empty(),
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
