//! Texts that an earlier version has accepted, as this one reads them: an upgrade ends nothing that runs.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::check::{self, Language};
use super::diagnostic::{Diagnostic, Source};
use super::{JobSpec, reader, sort};
use crate::ids::RoleName;

/// A text that was accepted once, by whichever version, as this one reads it.
#[derive(Debug)]
pub struct Accepted {
    pub spec: JobSpec,
    /// What this version refuses in it. The spec has a default in place of some of that, such as the machine for an image: what runs
    /// may go on by it, but nothing may be begun of it.
    pub refused: Vec<Diagnostic>,
}

/// Reads a text that was accepted once: bounds of numbers that have become narrower since are not held against it, and what else has
/// come to be refused is told, so that an upgrade ends nothing that runs. `begun`: the roles of which an attempt has tasks already; no
/// master is added beside them. None of what cannot be read at all: [`salvage`] is for that.
pub fn parse_accepted(text: &str, begun: Option<&BTreeSet<RoleName>>) -> Option<Accepted> {
    let (spec, mut refused) = read(text, begun);
    sort(&mut refused);
    Some(Accepted { spec: spec?, refused })
}

fn read(text: &str, begun: Option<&BTreeSet<RoleName>>) -> (Option<JobSpec>, Vec<Diagnostic>) {
    let source = Source::new("spec.toml", text);
    let mut found = check::check(&source, Language::Accepted);
    let spec = match toml::from_str(text) {
        Ok(wire) => reader::from_wire(wire, &source, begun, &mut found),
        Err(error) if found.is_empty() => {
            found.push(source.syntax(&error));
            None
        }
        Err(_) => None,
    };
    found.retain(Diagnostic::is_error);
    (spec, found)
}

/// What can be saved of a text that was accepted once and cannot be read at all any more: all but the keys that are refused, and where
/// not even that makes a job, the tasks that were begun of it (how many of each role). With why, which is never nothing: what runs goes
/// on by it, and nothing is begun of it.
pub fn salvage(text: &str, begun: &BTreeMap<RoleName, u32>) -> Option<Accepted> {
    let (_, refused) = read(text, None);
    let roles: BTreeSet<RoleName> = begun.keys().cloned().collect();
    let has_all = |spec: &JobSpec| roles.iter().all(|name| spec.roles.iter().any(|role| role.name == *name));
    let parsed = |text: &str| parse_accepted(text, (!roles.is_empty()).then_some(&roles)).map(|read| read.spec);
    let rest = text.parse::<Table>().ok().and_then(|mut table| {
        refused.iter().filter_map(|found| found.key.as_deref()).for_each(|key| drop_key(&mut table, key));
        toml::to_string(&table).ok()
    });
    let spec = rest.as_deref().and_then(parsed).filter(has_all).or_else(|| parsed(&skeleton(begun)))?;
    Some(Accepted { spec, refused })
}

/// Takes out what a dotted key names. Names may hold dots themselves; of what is in a list the list goes.
fn drop_key(table: &mut Table, key: &str) {
    let rest_of = |name: &str| key.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned);
    let inner = table.iter_mut().find_map(|(name, value)| Some((value.as_table_mut()?, rest_of(name)?)));
    if let Some((inner, rest)) = inner {
        return drop_key(inner, &rest);
    }
    table.retain(|name, _| name != key && rest_of(name).is_none());
}

/// A job of these tasks of which nothing else is known.
fn skeleton(begun: &BTreeMap<RoleName, u32>) -> String {
    let role = |count: u32| Value::Table(Table::from_iter([("count".to_owned(), Value::from(i64::from(count)))]));
    let roles: Table = begun.iter().map(|(name, count)| (name.to_string(), role(*count))).collect();
    if roles.is_empty() {
        String::new()
    } else {
        Table::from_iter([("roles".to_owned(), Value::Table(roles))]).to_string()
    }
}
