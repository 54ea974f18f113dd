//! Reading the list of system calls; its head says how it is written.

use std::collections::BTreeMap;

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, TargetArch};

use super::SeccompError;

pub(super) const DEFAULT: &str = include_str!("default.list");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    /// EPERM.
    Deny,
    /// ENOSYS.
    Absent,
}

/// One line, on one architecture.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) number: i64,
    pub(super) verdict: Verdict,
    /// Any of them must match; none means always. Only [`Verdict::Deny`] has some.
    pub(super) rules: Vec<SeccompRule>,
}

/// The lines that concern `arch`, in the order of the text.
pub(super) fn parse(text: &str, arch: TargetArch) -> Result<Vec<Entry>, SeccompError> {
    let mut entries = Vec::new();
    let mut verdict = None;
    for (index, line) in text.lines().enumerate() {
        let malformed = || SeccompError::Malformed { line: index + 1, text: line.to_owned() };
        match line.trim() {
            "" => {}
            comment if comment.starts_with('#') => {}
            "[allow]" => verdict = Some(Verdict::Allow),
            "[deny]" => verdict = Some(Verdict::Deny),
            "[absent]" => verdict = Some(Verdict::Absent),
            call => {
                let verdict = verdict.ok_or_else(malformed)?;
                entries.extend(parse_call(call, verdict, arch).ok_or_else(malformed)?);
            }
        }
    }
    check_repeats(&entries)?;
    Ok(entries)
}

/// The outer `None` is a malformed line, the inner one a call that `arch` lacks.
fn parse_call(line: &str, verdict: Verdict, arch: TargetArch) -> Option<Option<Entry>> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let numbers = [parse_number(words.next()?)?, parse_number(words.next()?)?];
    let rules = match words.next() {
        None => Vec::new(),
        Some("if") if verdict == Verdict::Deny => parse_condition(words)?,
        Some(_) => return None,
    };
    let number = match arch {
        TargetArch::x86_64 => numbers[0],
        TargetArch::aarch64 => numbers[1],
        TargetArch::riscv64 => return None,
    };
    Some(number.map(|number| Entry { name, number, verdict, rules }))
}

fn parse_number(word: &str) -> Option<Option<i64>> {
    if word == "-" { Some(None) } else { word.parse::<u16>().ok().map(|number| Some(number.into())) }
}

fn parse_condition<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Vec<SeccompRule>> {
    let argument = words.next()?.strip_prefix("arg")?.parse().ok()?;
    let operator = words.next()?;
    let values = words.map(parse_value).collect::<Option<Vec<_>>>()?;
    let compare = |operator, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).ok();
    let any = |conditions: Vec<SeccompCondition>| {
        conditions.into_iter().map(|one| SeccompRule::new(vec![one]).ok()).collect()
    };
    match (operator, values.as_slice()) {
        (_, []) => None,
        ("in", values) => any(values.iter().map(|value| compare(SeccompCmpOp::Eq, *value)).collect::<Option<_>>()?),
        ("not-in", values) => {
            let all = values.iter().map(|value| compare(SeccompCmpOp::Ne, *value)).collect::<Option<_>>()?;
            Some(vec![SeccompRule::new(all).ok()?])
        }
        ("has", [mask]) => {
            any(bits(*mask).map(|bit| compare(SeccompCmpOp::MaskedEq(bit), bit)).collect::<Option<_>>()?)
        }
        _ => None,
    }
}

fn bits(mask: u64) -> impl Iterator<Item = u64> {
    (0..32).map(|place| 1 << place).filter(move |bit| mask & bit != 0)
}

fn parse_value(word: &str) -> Option<u64> {
    let value = match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => word.parse(),
    };
    value.ok().map(u64::from)
}

/// A call stands once, or in `[allow]` and then with a condition in `[deny]`. Else it would be unclear which line
/// counts, or a call would be denied on a condition and else be absent.
fn check_repeats(entries: &[Entry]) -> Result<(), SeccompError> {
    let mut seen = BTreeMap::new();
    for entry in entries {
        let fits = match seen.insert(entry.number, entry.verdict) {
            None => entry.rules.is_empty(),
            Some(earlier) => earlier == Verdict::Allow && !entry.rules.is_empty(),
        };
        if !fits {
            return Err(SeccompError::Repeated { name: entry.name.clone() });
        }
    }
    Ok(())
}
