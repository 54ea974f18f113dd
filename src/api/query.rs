//! The parameters of an address, checked against what its route takes.

use std::collections::BTreeMap;

use super::error::ApiError;
use super::params::{Kind, Param};
use super::wire::unescape;
use crate::ids::{AssetName, Timestamp};

/// Longest value, characters.
pub(super) const VALUE_MAX: usize = 1024;
/// Longest cursor: of a name of that length, each of whose bytes may be an escape of three letters.
pub(super) const CURSOR_MAX: usize = 4 * VALUE_MAX;
/// The largest whole number that every reader of JSON knows for certain.
pub(super) const NUMBER_MAX: u64 = 1 << 53;
/// The end of the year 9999, which is as far as times are written.
pub(super) const TIME_MAX: u64 = 253_402_300_799_999;

/// Parameters that were given, each of them of its kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Values(BTreeMap<&'static str, String>);

impl Values {
    /// Refuses what the route does not take, what is there twice, what is missing and what is not of its kind.
    pub fn read(query: &str, params: &'static [Param]) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            let param = params.iter().find(|param| param.name == name);
            let param = param.ok_or_else(|| unknown(&name, params))?;
            check(param, &value)?;
            if values.insert(param.name, value).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        match params.iter().find(|param| param.required && !values.contains_key(param.name)) {
            Some(param) => Err(format!("{} is missing. {}", param.name, param.does)),
            None => Ok(Self(values)),
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn owned(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    pub fn time(&self, name: &str) -> Option<Timestamp> {
        time(self.text(name)?)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| flag(value) == Some(true))
    }

    /// Those of a list.
    pub fn each(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).unwrap_or_default().split(',').filter(|one| !one.is_empty())
    }

    /// One that the table says is needed.
    pub(super) fn needed(&self, name: &str) -> Result<&str, ApiError> {
        self.text(name).ok_or_else(|| ApiError::Bad(format!("{name} is missing")))
    }
}

/// As forms are encoded: a plus is a space.
fn decoded(text: &str) -> Result<String, String> {
    let found = unescape(&text.replace('+', "%20"));
    found
        .filter(|text| text.chars().count() <= CURSOR_MAX && !text.contains('\0'))
        .ok_or_else(|| format!("the query has a part that is not text, or longer than {CURSOR_MAX} characters"))
}

fn unknown(name: &str, params: &[Param]) -> String {
    let known: Vec<&str> = params.iter().map(|param| param.name).collect();
    match known.is_empty() {
        true => format!("unknown parameter {name:?}: there are none here"),
        false => format!("unknown parameter {name:?}; there are {}", known.join(", ")),
    }
}

fn check(param: &Param, value: &str) -> Result<(), String> {
    let name = param.name;
    let is_one = |list: &[&str]| list.contains(&value);
    let is_long = param.kind != Kind::Cursor && value.chars().count() > VALUE_MAX;
    match param.kind {
        _ if is_long => Err(format!("{name} is longer than {VALUE_MAX} characters")),
        Kind::Text if value.is_empty() => Err(format!("{name} is empty")),
        Kind::Text => Ok(()),
        Kind::Name => value.parse::<AssetName>().map(drop).map_err(|error| format!("{name}={value}: {error}")),
        Kind::Cursor if is_cursor(value) => Ok(()),
        Kind::Cursor => Err(format!("{name}={value}: not the `next` of an answer")),
        Kind::Number(least, most) => {
            let most = most.min(NUMBER_MAX);
            let plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse::<u64>().ok().filter(|number| plain && (least..=most).contains(number));
            number.map(drop).ok_or_else(|| format!("{name}={value}: not a number from {least} to {most}"))
        }
        Kind::Time => time(value).map(drop).ok_or_else(|| {
            format!("{name}={value}: not a time, in milliseconds since 1970 or as 2026-01-31T08:00:00Z")
        }),
        Kind::Flag => flag(value).map(drop).ok_or_else(|| format!("{name}={value}: neither 1 nor 0")),
        Kind::OneOf(list) if is_one(list) => Ok(()),
        Kind::AnyOf(list) if !value.is_empty() && value.split(',').all(|one| list.contains(&one)) => Ok(()),
        Kind::OneOf(list) | Kind::AnyOf(list) => Err(format!("{name}={value}: not of {}", list.join(", "))),
    }
}

/// Two texts, percent-encoded, and a time in milliseconds, with colons between them.
fn is_cursor(value: &str) -> bool {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~%".contains(&byte));
    let is_time = |text: &str| text.parse::<u64>().is_ok();
    match value.split(':').collect::<Vec<_>>()[..] {
        [first, second] => is_plain(first) && is_plain(second) && !second.is_empty(),
        [first, second, at] => is_plain(first) && is_plain(second) && !second.is_empty() && is_time(at),
        _ => false,
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn time(value: &str) -> Option<Timestamp> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return value.parse().ok().filter(|ms| *ms <= TIME_MAX).map(Timestamp);
    }
    let time: jiff::Timestamp = value.parse().ok()?;
    Some(Timestamp(u64::try_from(time.as_millisecond()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: &[Param] = &[
        Param { name: "task", kind: Kind::Text, required: true, does: "Which." },
        Param { name: "lines", kind: Kind::Number(1, 9), required: false, does: "How many." },
        Param { name: "since", kind: Kind::Time, required: false, does: "When." },
        Param { name: "follow", kind: Kind::Flag, required: false, does: "Stay." },
        Param { name: "state", kind: Kind::AnyOf(&["a", "b"]), required: false, does: "In which." },
    ];

    #[test]
    fn what_a_route_takes_is_read_in_any_script() {
        let values =
            Values::read("task=%E8%AE%AD+x&lines=3&since=1970-01-01T00:00:01Z&follow=1&state=a,b", PARAMS).unwrap();
        assert_eq!(values.text("task"), Some("训 x"));
        assert_eq!((values.number("lines"), values.time("since")), (Some(3), Some(Timestamp(1000))));
        assert!(values.flag("follow"));
        assert_eq!(values.each("state").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Values::read("task=x&since=77", PARAMS).unwrap().time("since"), Some(Timestamp(77)));
    }

    #[test]
    fn what_it_does_not_take_is_refused_by_name() {
        for (query, word) in [
            ("", "task is missing"),
            ("task=", "task is empty"),
            ("task=a&task=b", "twice"),
            ("task=a&colour=red", "colour"),
            ("task=a&lines=0", "lines"),
            ("task=a&lines=10", "lines"),
            ("task=a&lines=%2B3", "lines"),
            ("task=a&since=yesterday", "since"),
            ("task=a&since=253402300800000", "since"),
            ("task=a&follow=maybe", "follow"),
            ("task=a&state=a,c", "state"),
            ("task=%ff", "not text"),
            ("task=a%00", "not text"),
        ] {
            let error = Values::read(query, PARAMS).unwrap_err();
            assert!(error.contains(word), "{query}: {error}");
        }
        assert!(Values::read(&format!("task={}", "x".repeat(VALUE_MAX + 1)), PARAMS).is_err());
    }
}
