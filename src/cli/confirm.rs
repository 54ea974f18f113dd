//! Verbs that touch many jobs at once: what they would do is said, and asked for where somebody sits there.

use std::io::{self, BufRead, IsTerminal, Write};

/// Whether what is asked for is done at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bulk {
    /// Whoever sits there is asked; a script is not.
    Ask,
    Do,
    /// It is said what would be done.
    Say,
}

impl Bulk {
    pub(super) fn of(yes: bool, dry_run: bool) -> Self {
        match (dry_run, yes) {
            (true, _) => Self::Say,
            (false, true) => Self::Do,
            (false, false) => Self::Ask,
        }
    }

    /// Whether somebody is asked, who can answer.
    pub(super) fn asks(self) -> bool {
        self == Self::Ask && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Asks where somebody can answer: anything but `y` or `yes` is no.
    pub(super) fn agreed(self, question: &str) -> io::Result<bool> {
        if !self.asks() {
            return Ok(true);
        }
        write!(io::stderr(), "{question} [y/N] ")?;
        io::stderr().flush()?;
        answered(io::stdin().lock())
    }
}

fn answered(mut from: impl BufRead) -> io::Result<bool> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// The first of many names, and how many more there are.
pub(super) fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 5;
    match names.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        Some(more) => format!("{} and {more} more", names.get(..SHOWN).unwrap_or_default().join(", ")),
        None => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (line, is_yes) in
            [("y\n", true), ("Yes\n", true), ("\n", false), ("", false), ("no\n", false), ("yep\n", false)]
        {
            assert_eq!(answered(line.as_bytes()).unwrap(), is_yes, "{line:?}");
        }
        assert_eq!(
            [(true, true), (true, false), (false, false)].map(|(yes, dry)| Bulk::of(yes, dry)),
            [Bulk::Say, Bulk::Do, Bulk::Ask]
        );
    }

    #[test]
    fn of_many_names_a_few_are_said() {
        let names = |count: u32| (1..=count).map(|number| number.to_string()).collect::<Vec<_>>();
        assert_eq!(some_of(&names(5)), "1, 2, 3, 4, 5");
        assert_eq!(some_of(&names(8)), "1, 2, 3, 4, 5 and 3 more");
    }
}
