//! Judges a file by the key table: syntax, unknown keys, types and bounds; all findings at once.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{self, Diagnostic, Source};
use super::foreign::{self, Meant};
use super::keys::{self, Key, Kind, Support};
use super::near::nearest;
use super::reader::EXEC_STRING_MAX;
use super::template::{self, Param};
use crate::ids::{Bytes, QuantityError, parse_duration};

mod fitting;

type Value<'i> = Spanned<DeValue<'i>>;

/// So many findings are told of a file: who has more has not meant to write a job.
pub(super) const FINDINGS_MAX: usize = 100;
/// So many errors of syntax are looked at: each takes a look at its line, which may be the whole file.
const ERRORS_MAX: usize = 10 * FINDINGS_MAX;
/// Longest name, in bytes, that may be a slip of the pen.
const SUGGESTED_MAX: usize = 64;

/// What a file is to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Language<'a> {
    Job,
    /// A job that was accepted once: bounds of its numbers may have been wider then.
    Accepted,
    /// A string that holds one of these parameters is judged when its value is known.
    Template {
        params: &'a [String],
    },
    /// A template without other errors: whether its parameters fit the keys whose values they are.
    Fitting {
        params: &'a [Param],
    },
}

impl Language<'_> {
    /// What is named in an earlier table is not looked up in a later one.
    fn tables(self) -> &'static [&'static [Key]] {
        match self {
            Language::Job | Language::Accepted => &[keys::KEYS],
            Language::Template { .. } | Language::Fitting { .. } => &[keys::TEMPLATE_KEYS, keys::KEYS],
        }
    }

    fn find(self, path: &str) -> Option<&'static Key> {
        self.tables().iter().find_map(|keys| keys.iter().find(|key| key.path == path))
    }

    fn children(self, prefix: &str) -> impl Iterator<Item = &'static str> {
        self.tables().iter().flat_map(move |keys| keys::children_in(keys, prefix).collect::<Vec<_>>())
    }

    fn is_open(self, value: &DeValue<'_>) -> bool {
        match (self, value.as_str()) {
            (Language::Template { params }, Some(text)) => template::names_any(text, params),
            (Language::Fitting { params }, Some(text)) => params.iter().any(|param| param.is_named_in(text)),
            _ => false,
        }
    }
}

/// Everything in `source` that the key table does not allow.
pub(super) fn check(source: &Source<'_>, language: Language<'_>) -> Vec<Diagnostic> {
    let (table, errors) = DeTable::parse_recoverable(source.text());
    if !errors.is_empty() {
        return told_once(&errors, source.text()).take(FINDINGS_MAX).map(|error| source.syntax(error)).collect();
    }
    let mut checker = Checker { source, language, found: Vec::new() };
    checker.table(table.get_ref(), &Place::root());
    checker.found
}

/// Without what follows from another error: the keys of a table that is there twice are there twice as well.
fn told_once<'e>(errors: &'e [toml::de::Error], text: &'e str) -> impl Iterator<Item = &'e toml::de::Error> {
    let mut doubled = None;
    errors.iter().take(ERRORS_MAX).filter(move |error| {
        let Some((span, name)) = diagnostic::doubled(error, text) else { return true };
        let since = doubled.and_then(|end| text.get(end..span.start));
        if name.is_table {
            doubled = Some(span.end);
            return true;
        }
        since.is_none_or(|since: &str| since.lines().skip(1).any(|line| line.trim_start().starts_with('[')))
    })
}

/// Where in the file we are: as the user wrote it, and as the table names it.
struct Place {
    written: String,
    pattern: String,
}

impl Place {
    fn root() -> Self {
        Self { written: String::new(), pattern: String::new() }
    }

    fn child(&self, name: &str, pattern: &str) -> Self {
        let join = |base: &str, part: &str| if base.is_empty() { part.to_owned() } else { format!("{base}.{part}") };
        Self { written: join(&self.written, name), pattern: join(&self.pattern, pattern) }
    }
}

struct Checker<'a> {
    source: &'a Source<'a>,
    language: Language<'a>,
    found: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn error(&mut self, span: Range<usize>, place: &Place, message: String) {
        self.found.push(self.source.error(span, &place.written, message));
    }

    fn table(&mut self, table: &DeTable<'_>, place: &Place) {
        for (name, value) in table.iter() {
            if self.found.len() >= FINDINGS_MAX {
                return;
            }
            self.entry(name, value, place);
        }
    }

    fn entry(&mut self, name: &Spanned<Cow<'_, str>>, value: &Value<'_>, parent: &Place) {
        let exact = parent.child(name.get_ref(), name.get_ref());
        let free = parent.child(name.get_ref(), "*");
        // A name in quotes that holds a dot is one name, and none of the table's.
        let known = self.language.find(&exact.pattern).filter(|_| !name.get_ref().contains('.'));
        if let Some(key) = known {
            self.value(key.kind, key.support, name.span(), value, &exact);
        } else if let Some(key) = self.language.find(&free.pattern) {
            self.value(key.kind, key.support, name.span(), value, &free);
        } else {
            self.unknown(name, parent);
        }
    }

    fn unknown(&mut self, name: &Spanned<Cow<'_, str>>, parent: &Place) {
        let place = parent.child(name.get_ref(), name.get_ref());
        let message = format!("unknown key `{}`{}", place.written, suggestion(name.get_ref(), parent, self.language));
        self.error(name.span(), &place, message);
    }

    fn value(&mut self, kind: Kind, support: Support, name: Range<usize>, value: &Value<'_>, place: &Place) {
        if support == Support::Later {
            let message = format!("`{}` is known, but not supported by this version yet; remove it", place.written);
            return self.error(name, place, message);
        }
        if let Language::Fitting { params } = self.language
            && !place.pattern.starts_with("template.")
        {
            self.fit(params, kind, value, place);
        }
        if self.language.is_open(value.get_ref()) {
            return;
        }
        let may_be_table = matches!(kind, Kind::Port | Kind::TextOrTable);
        if kind == Kind::Table || (may_be_table && value.get_ref().is_table()) {
            return match value.get_ref().as_table() {
                Some(table) => self.table(table, place),
                None => self.wrong_type(kind, value, place),
            };
        }
        if kind == Kind::Tables {
            return self.tables(value, place);
        }
        if let Err(problem) = judge(kind, value.get_ref()) {
            match problem {
                Problem::Type => self.wrong_type(kind, value, place),
                Problem::Bound(_) if matches!(self.language, Language::Accepted) => {}
                Problem::Value(message) | Problem::Bound(message) => {
                    self.error(value.span(), place, format!("`{}`: {message}", place.written));
                }
            }
        }
    }

    fn tables(&mut self, value: &Value<'_>, place: &Place) {
        let Some(items) = value.get_ref().as_array() else { return self.wrong_type(Kind::Tables, value, place) };
        for item in items.iter() {
            let inner = Place { written: place.written.clone(), pattern: format!("{}.*", place.pattern) };
            match item.get_ref().as_table() {
                Some(table) => self.table(table, &inner),
                None => self.wrong_type(Kind::Tables, item, place),
            }
        }
    }

    /// What a table is made of, as it may be written.
    fn table_of(&self, kind: Kind, place: &Place) -> String {
        let (brackets, what) = match kind {
            Kind::Tables => (["[[", "]]"], "an array of tables"),
            _ => (["[", "]"], "a table"),
        };
        let named = format!("{}.*", place.pattern);
        let named_tables = self.language.find(&named).is_some_and(|key| key.kind == Kind::Table);
        let (open, close) = (brackets[0], brackets[1]);
        if named_tables && kind == Kind::Table {
            return format!("a table for each name, as in `[{}.NAME]` with keys below it", place.written);
        }
        let inner = if kind == Kind::Tables { named.as_str() } else { place.pattern.as_str() };
        let first = supported_children(inner, self.language).into_iter().next().unwrap_or("NAME");
        format!("{what}, as in `{open}{}{close}` with `{first} = …` below it", place.written)
    }

    fn wrong_type(&mut self, kind: Kind, value: &Value<'_>, place: &Place) {
        let found = value.get_ref().type_str();
        let takes = match kind {
            Kind::Table | Kind::Tables => self.table_of(kind, place),
            _ => article(&kind.describe()),
        };
        let instead = match value.get_ref() {
            DeValue::Float(_) if place.pattern.ends_with("resources.gpu") => PART_OF_CARD,
            _ => "",
        };
        let message = format!("`{}` takes {takes}, not {} {found}{instead}", place.written, a_or_an(found));
        self.error(value.span(), place, message);
    }
}

/// For who wants less than a card.
const PART_OF_CARD: &str =
    "; a part of a card is a share of its memory, as `gpu_memory = \"20GiB\"`, or a slice, as `mig = \"1g.10gb\"`";

fn article(description: &str) -> String {
    match description.starts_with('"') || description.starts_with("true") {
        true => description.to_owned(),
        false => format!("{} {description}", a_or_an(description)),
    }
}

fn a_or_an(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// The nearest key at the same place, or where the key belongs if it is known elsewhere.
fn suggestion(name: &str, parent: &Place, language: Language<'_>) -> String {
    if name.len() > SUGGESTED_MAX {
        return "; `trainyard explain` lists all keys".to_owned();
    }
    if let Some(told) = foreign::meant(name).and_then(|meant| in_our_words(meant, parent, language)) {
        return told;
    }
    if let Some(key) = nearest(name, language.children(&parent.pattern)) {
        return format!("; did you mean `{key}`?");
    }
    match belongs_at(name, parent) {
        Some(path) => format!("; it belongs at `{path}`"),
        None => match supported_children(&parent.pattern, language) {
            all if all.is_empty() => String::new(),
            all if all.len() <= 16 => format!("; the keys here are {}", all.join(", ")),
            _ => "; `trainyard explain` lists all keys".to_owned(),
        },
    }
}

/// What a word of another system means at this place: below it or in it, or else at the root.
fn in_our_words(meant: Meant, parent: &Place, language: Language<'_>) -> Option<String> {
    let path = match meant {
        Meant::Key(path) => path,
        Meant::SaidAnywhere(what) => return Some(format!("; {what}")),
        Meant::Said(what) => return parent.pattern.is_empty().then(|| format!("; {what}")),
    };
    let last = path.rsplit('.').next().unwrap_or(path);
    let is_here = |path: &&str| language.find(&parent.child("", path).pattern).is_some();
    Some(match [last, path].into_iter().find(is_here) {
        Some(key) if key == last => format!("; did you mean `{key}`?"),
        Some(key) => format!("; it belongs at `{}`", parent.child(key, key).written.replace('*', "NAME")),
        None => format!("; it belongs at `{}`", path.replace('*', "NAME")),
    })
}

/// Where there is a key of this name: below the same place or else anywhere.
fn belongs_at(name: &str, parent: &Place) -> Option<String> {
    let mut named = keys::KEYS.iter().map(|key| key.path).filter(|path| path.rsplit('.').next() == Some(name));
    let rest = |path: &'static str| path.strip_prefix(parent.pattern.as_str()).filter(|rest| rest.starts_with('.'));
    let path = match named.clone().find_map(rest) {
        Some(rest) => format!("{}{rest}", parent.written),
        None => named.next()?.to_owned(),
    };
    Some(path.replace('*', "NAME"))
}

fn supported_children(pattern: &str, language: Language<'_>) -> Vec<&'static str> {
    let supported = |name: &&str| {
        let path = if pattern.is_empty() { (*name).to_owned() } else { format!("{pattern}.{name}") };
        language.find(&path).is_some_and(|key| key.support == Support::Now)
    };
    language.children(pattern).filter(supported).collect()
}

enum Problem {
    Type,
    Value(String),
    /// It is a number, which is read as it is, but too small or too large.
    Bound(String),
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Problem::Value(message)
    }
}

fn judge(kind: Kind, value: &DeValue<'_>) -> Result<(), Problem> {
    match kind {
        Kind::Text | Kind::TextOrTable => text(value).map(drop),
        Kind::Bool => value.as_bool().map(drop).ok_or(Problem::Type),
        Kind::BoolOr(words) => match value.as_str() {
            Some(word) => choice_or(word, words, ", or true or false"),
            None => value.as_bool().map(drop).ok_or(Problem::Type),
        },
        Kind::Integer { min, max } => integer(value, min, max),
        Kind::Number { min, max } => number(value, min, max),
        Kind::Size { min, max } => size(value, min, max),
        Kind::Duration { min, max } => duration(value, min, max),
        Kind::Command => command(value),
        Kind::Texts => value.as_array().ok_or(Problem::Type)?.iter().try_for_each(|v| text(v.get_ref()).map(drop)),
        Kind::Choice(words) => choice(text(value)?, words),
        Kind::CountOr(words) => match value.as_str() {
            Some(word) => choice_or(word, words, ", or an integer from 1 on"),
            None => integer(value, 1, keys::COUNT_MAX),
        },
        Kind::PercentOr(words) => match value.as_str() {
            Some(word) => choice_or(word, words, ", or an integer from 0 to 100"),
            None => integer(value, 0, 100),
        },
        Kind::Param => param(value),
        Kind::Scalar => scalar(value),
        Kind::Scalars => value.as_array().ok_or(Problem::Type)?.iter().try_for_each(|item| scalar(item.get_ref())),
        Kind::Port => integer(value, 1, 100),
        Kind::Any => readable(value),
        Kind::Table | Kind::Tables => Ok(()),
    }
}

fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, Problem> {
    let text = value.as_str().ok_or(Problem::Type)?;
    if text.contains('\0') {
        return Err(Problem::Value("holds a NUL character".to_owned()));
    }
    Ok(text)
}

fn whole(value: &DeValue<'_>) -> Result<i64, Problem> {
    let integer = value.as_integer().ok_or(Problem::Type)?;
    let digits = integer.as_str().replace('_', "");
    i64::from_str_radix(&digits, integer.radix()).map_err(|_| Problem::Value("the number is too large".to_owned()))
}

fn integer(value: &DeValue<'_>, min: i64, max: i64) -> Result<(), Problem> {
    let number = whole(value)?;
    if (min..=max).contains(&number) {
        return Ok(());
    }
    let most = if max == i64::MAX { String::new() } else { format!(" and at most {max}") };
    Err(Problem::Bound(format!("is {number}, must be at least {min}{most}")))
}

fn number(value: &DeValue<'_>, min: f64, max: f64) -> Result<(), Problem> {
    let number = match value.as_float() {
        Some(float) => float.as_str().replace('_', "").parse().map_err(|_| Problem::Type)?,
        None => whole(value)? as f64,
    };
    if (min..=max).contains(&number) {
        return Ok(());
    }
    Err(Problem::Bound(format!("is {number}, must be at least {min} and at most {max}")))
}

fn size(value: &DeValue<'_>, min: u64, max: u64) -> Result<(), Problem> {
    let size: Bytes = text(value)?.parse().map_err(|error: QuantityError| error.to_string())?;
    if (min..=max).contains(&size.0) {
        return Ok(());
    }
    Err(Problem::Bound(format!("is {size}, must be at least {} and at most {}", Bytes(min), Bytes(max))))
}

fn duration(value: &DeValue<'_>, min: u64, max: u64) -> Result<(), Problem> {
    let written = text(value)?;
    let lasting = parse_duration(written).map_err(|error| error.to_string())?;
    if u64::try_from(lasting.as_millis()).is_ok_and(|lasting| (min..=max).contains(&lasting)) {
        return Ok(());
    }
    let [min, max] = [min, max].map(whole_duration);
    Err(Problem::Bound(format!("is {}, must be at least {min} and at most {max}", written.trim())))
}

/// As job files have it, in the largest unit that leaves no rest.
fn whole_duration(millis: u64) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let unit = units.into_iter().find(|(_, factor)| millis >= *factor && millis.is_multiple_of(*factor));
    let (unit, factor) = unit.unwrap_or(if millis == 0 { ("s", 1) } else { ("ms", 1) });
    format!("{}{unit}", millis / factor)
}

fn command(value: &DeValue<'_>) -> Result<(), Problem> {
    if let Some(items) = value.as_array() {
        let words = items.iter().map(|item| text(item.get_ref())).collect::<Result<Vec<_>, _>>()?;
        words.iter().try_for_each(|word| fits_exec(word))?;
        return match words.first() {
            Some(program) if !program.is_empty() => Ok(()),
            _ => Err(Problem::Value("the array names no program".to_owned())),
        };
    }
    let line = text(value)?;
    match line.trim().is_empty() {
        true => Err(Problem::Value("is empty; leave the key out for a task that only sleeps".to_owned())),
        false => fits_exec(line),
    }
}

/// The kernel starts no program with a longer string, its end included.
fn fits_exec(string: &str) -> Result<(), Problem> {
    if string.len() < EXEC_STRING_MAX {
        return Ok(());
    }
    let (has, most) = (Bytes(string.len() as u64).told(), Bytes(EXEC_STRING_MAX as u64));
    Err(Problem::Bound(format!(
        "has a string of {has}, but the kernel starts no program with one of {most} or more; put it into a script"
    )))
}

fn choice(word: &str, words: &'static [&'static str]) -> Result<(), Problem> {
    choice_or(word, words, "")
}

/// One of the words; `else_be` says what else the value may be.
fn choice_or(word: &str, words: &'static [&'static str], else_be: &str) -> Result<(), Problem> {
    if words.contains(&word) {
        return Ok(());
    }
    Err(Problem::Value(format!("is {word:?}, must be {}{else_be}", Kind::Choice(words).describe())))
}

fn scalar(value: &DeValue<'_>) -> Result<(), Problem> {
    if value.is_array() || value.is_table() {
        return Err(Problem::Type);
    }
    if value.is_str() { text(value).map(drop) } else { readable(value) }
}

/// TOML bounds no number; the reader does.
fn readable(value: &DeValue<'_>) -> Result<(), Problem> {
    match value {
        DeValue::Integer(_) => match whole(value) {
            Ok(_) => Ok(()),
            Err(_) => Err(Problem::Value("the number is too large; in quotes it is a string of any length".to_owned())),
        },
        DeValue::Array(items) => items.iter().try_for_each(|item| readable(item.get_ref())),
        DeValue::Table(table) => table.iter().try_for_each(|(_, value)| readable(value.get_ref())),
        _ => Ok(()),
    }
}

/// A script is given a text for each: what holds more than one value is for it to take apart.
fn param(value: &DeValue<'_>) -> Result<(), Problem> {
    match value {
        DeValue::Array(items) => items.iter().try_for_each(|item| match item.get_ref() {
            DeValue::Array(_) => Err(Problem::Value(within("an array", r#""[[1.0, 2e3], [3]]""#))),
            DeValue::Table(_) => Err(Problem::Value(within("a table", r#"'[{"a": 1.0}]'"#))),
            item => scalar(item),
        }),
        DeValue::Table(_) => Err(Problem::Value(
            "is a table; a name with dots stands in quotes, as in \"optimizer.lr\" = 0.1, and a value of more than one as a text, \
             which the script gets as it stands"
                .to_owned(),
        )),
        value => scalar(value),
    }
}

fn within(what: &str, example: &str) -> String {
    format!(
        "holds {what}, and an argument is a single value; write all of it as a text, such as {example}, which the script gets as it stands"
    )
}
