//! A command as a shell would take it apart: simple commands, each with its words, quotes taken away.

/// Programs that run a text which an option gives them.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
/// What ends a simple command, and the next one begins.
const SEPARATORS: &str = ";&|()`\n";
/// So deep a text within a text is taken apart; whoever writes a job file could nest them without end.
const DEPTH: usize = 8;
/// What ends a word beside white space.
const REDIRECTIONS: &str = "<>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Letter {
    Plain(char),
    /// It is nothing but itself.
    Quoted(char),
    /// A quote, which makes a word even of nothing.
    Mark,
}

fn letters(text: &str) -> Vec<Letter> {
    let mut out = Vec::new();
    let (mut quote, mut rest) = (None, text.chars().peekable());
    while let Some(c) = rest.next() {
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                out.push(Letter::Mark);
            }
            (Some(open), _) if c == open => {
                quote = None;
                out.push(Letter::Mark);
            }
            (None, '\\') => match rest.next() {
                // A line that goes on.
                Some('\n') => {}
                Some(next) => out.push(Letter::Quoted(next)),
                None => out.push(Letter::Quoted(c)),
            },
            (Some('"'), '\\') => match rest.next_if(|next| "$`\"\\\n".contains(*next)) {
                Some('\n') => {}
                next => out.push(Letter::Quoted(next.unwrap_or(c))),
            },
            (Some(_), _) => out.push(Letter::Quoted(c)),
            (None, _) => out.push(Letter::Plain(c)),
        }
    }
    out
}

/// The simple commands of a text in their order, without comments; of a text within it as well, where a shell is given that.
pub(super) fn commands(text: &str) -> Vec<Vec<String>> {
    within(text, DEPTH)
}

fn within(text: &str, depth: usize) -> Vec<Vec<String>> {
    simple(text).into_iter().flat_map(|words| taken_apart(words, depth)).collect()
}

/// The commands that stand in the text itself.
fn simple(text: &str) -> Vec<Vec<String>> {
    let mut out = vec![Vec::new()];
    let (mut word, mut is_comment) = (None::<String>, false);
    for letter in letters(text).into_iter().chain([Letter::Plain('\n')]) {
        match letter {
            Letter::Plain('\n') if is_comment => is_comment = false,
            _ if is_comment => continue,
            Letter::Plain('#') if word.is_none() => is_comment = true,
            _ => {}
        }
        match letter {
            _ if is_comment => {}
            Letter::Plain(c) if c.is_whitespace() || REDIRECTIONS.contains(c) || SEPARATORS.contains(c) => {
                if let (Some(word), Some(command)) = (word.take(), out.last_mut()) {
                    command.push(word);
                }
                if SEPARATORS.contains(c) {
                    out.push(Vec::new());
                }
            }
            Letter::Plain(c) | Letter::Quoted(c) => word.get_or_insert_default().push(c),
            Letter::Mark => drop(word.get_or_insert_default()),
        }
    }
    out.retain(|words| !words.is_empty());
    out
}

/// The same of a command whose words are known.
pub(super) fn of_words(words: Vec<String>) -> Vec<Vec<String>> {
    taken_apart(words, DEPTH)
}

fn taken_apart(mut words: Vec<String>, depth: usize) -> Vec<Vec<String>> {
    let Some((shell, text)) = given_text(&words).filter(|_| depth > 0) else { return vec![words] };
    // What starts the shell, such as `mpirun`.
    words.truncate(shell);
    let before = (!words.is_empty()).then_some(words);
    before.into_iter().chain(within(&text, depth - 1)).collect()
}

/// What `sh -c TEXT` or `eval TEXT` runs, and which word the shell is: others may start it (`env`, `exec`, `timeout 5`).
fn given_text(words: &[String]) -> Option<(usize, String)> {
    if let [first, text @ ..] = words
        && first == "eval"
    {
        return Some((0, text.join(" ")));
    }
    let shell = words.iter().position(|word| SHELLS.contains(&name(word)))?;
    let mut options = words.iter().skip(shell + 1);
    loop {
        let option = options.next()?.strip_prefix('-')?;
        if !option.starts_with('-') && option.contains('c') {
            return Some((shell, options.find(|word| !word.starts_with('-'))?.clone()));
        }
        if option.ends_with('o') {
            options.next();
        }
    }
}

/// Of a program, without its directories.
pub(super) fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_words_together_and_separators_in_them_are_letters() {
        let of = |text: &str| commands(text).iter().map(|words| words.join("|")).collect::<Vec<_>>();
        assert_eq!(
            of("a --note 'b; c.py' && d\\ e \"f \\\"g\\\" $h\" '' #i; j"),
            ["a|--note|b; c.py", "d e|f \"g\" $h|"]
        );
        assert_eq!(of("a \\\n b # c\nd#e>f 2>&1 | g"), ["a|b", "d#e|f|2", "1", "g"]);
        assert_eq!(of("x=$(a b) c `d`"), ["x=$", "a|b", "c", "d"]);
        assert_eq!(of("cd x; exec bash -euo pipefail -lc 'a; b \"c d\"' e"), ["cd|x", "exec", "a", "b|c d"]);
        assert_eq!(of("eval 'a; b'; bash a.sh -c d; sh -e; sh -c"), ["a", "b", "bash|a.sh|-c|d", "sh|-e", "sh|-c"]);
        assert_eq!(of("env A=1 /bin/sh -c 'sh -c \"a; b\"'"), ["env|A=1", "a", "b"]);
        assert_eq!(of("'a\\' \"b\\c\" 'open; d"), ["a\\|b\\c|open; d"]);
        assert_eq!(of(" \n;;"), [] as [&str; 0]);
        assert_eq!(of(&"eval ".repeat(60_000)).len(), 1, "the rest is taken as it is");
    }
}
