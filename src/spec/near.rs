//! "Did you mean": which of some names somebody may have meant by one that there is not. Nothing far-fetched: a wrong
//! suggestion is worse than none.

/// Shortest beginning that stands for a name.
const BEGINNING_MIN: usize = 3;

/// How near a name is; the smallest is the nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nearness {
    /// The same, but for the case.
    Same,
    /// One begins as the whole other does: `mem` and `memory`, `gpus` and `gpu`. So many letters apart.
    Beginning(usize),
    /// A slip of the pen or more, one for each three letters at most.
    Typo(usize),
}

/// How near `name` is to what somebody wrote, if it is near at all.
pub(super) fn nearness(written: &str, name: &str) -> Option<Nearness> {
    let (written, name) = (written.to_lowercase(), name.to_lowercase());
    if written == name {
        return Some(Nearness::Same);
    }
    let (shorter, longer) = if written.len() < name.len() { (&written, &name) } else { (&name, &written) };
    if shorter.len() >= BEGINNING_MIN && longer.starts_with(shorter.as_str()) {
        return Some(Nearness::Beginning(longer.len() - shorter.len()));
    }
    let letters = shorter.chars().count();
    let slips = strsim::damerau_levenshtein(&written, &name);
    (letters > 1 && slips <= (letters / 3).max(1)).then_some(Nearness::Typo(slips))
}

/// The nearest of some names.
pub(crate) fn nearest<'n>(written: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = names.filter_map(|name| Some((nearness(written, name)?, name)));
    near.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_come_before_typos_and_nothing_is_far_fetched() {
        let names = ["memory", "shm", "gpu", "gpu_type", "command", "code", "retry", "retries"];
        for (written, wanted) in [
            ("mem", Some("memory")),
            ("gpus", Some("gpu")),
            ("Memory", Some("memory")),
            ("comand", Some("command")),
            ("cdoe", Some("code")),
            ("retr", Some("retry")),
            ("shn", Some("shm")),
            ("ram", None),
            ("cmd", None),
            ("nodes", None),
            ("m", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, names.into_iter()), wanted, "{written}");
        }
    }
}
