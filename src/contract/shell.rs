//! A text for a shell, taken apart as a shell does it: commands, their words without quotes, and what runs within a word; apart from
//! comments, the files of redirections and the lines of documents (`<<MARK`). A letter is read once, and once more where a
//! command gives it to another shell. Not known are `$'…'`, what stands within `${…}`, and patterns of `case` within `$(…)`.

use std::collections::VecDeque;

use crate::spec::Command;

/// Programs that run a text which an option gives them, or which they read.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
/// So deep a text within a text is taken apart; whoever writes a job file could nest them without end.
const DEPTH: usize = 8;
const BLANKS: &[char] = &[' ', '\t', '\r'];
const OPERATORS: &[char] = &['\n', ';', '&', '|', '(', ')'];
/// What is the begin of another stands behind it.
const REDIRECTIONS: [&str; 12] = ["&>>", "&>", "<<<", "<<-", "<<", "<>", "<&", ">>", ">&", ">|", "<", ">"];

/// A command between two operators; without words where two stand side by side.
#[derive(Debug)]
pub(super) struct Simple {
    /// The last letter of the operator before it; `\n` at the begin, `|` for pipes alone.
    pub(super) behind: char,
    pub(super) words: Vec<Word>,
    /// Which document it reads.
    document: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Word {
    /// Quotes taken away, and `$` for what runs within it.
    pub(super) text: String,
    /// At least in part: then it is no word of the shell's own.
    pub(super) is_quoted: bool,
}

/// What a text ends with.
pub(super) enum Last {
    Command,
    Comment,
    /// A line of a document, or the mark behind it.
    Document(String),
    /// A word within such a quote, which is not closed.
    Quote(char),
}

/// What is open where a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    Nothing,
    /// Quotes.
    Single,
    Double,
    /// A document in which a shell replaces what stands behind `$`, or one as it is, or a comment.
    Document,
    Comment,
}

/// The innermost of what is open: in `"$(echo ` it is nothing any more.
pub(super) fn open_at_end(text: &str) -> Open {
    let reader = Reader::read(text);
    match (&reader.last, reader.open) {
        (Last::Comment, Open::Nothing) => Open::Comment,
        (Last::Document(_), Open::Nothing) if reader.is_literal => Open::Comment,
        (Last::Document(_), Open::Nothing) => Open::Document,
        (_, open) => open,
    }
}

/// What a command runs, in the order in which each ends, so that what runs within a word comes before; of a text within as well, where a
/// shell is given that.
pub(super) fn commands(command: &Command) -> Vec<Vec<String>> {
    match command {
        Command::Shell(text) => within(text, DEPTH),
        Command::Exec(words) => taken_apart(words.clone(), None, DEPTH),
        Command::Default => Vec::new(),
    }
}

/// The command that a text ends with.
pub(super) fn last(text: &str) -> Option<(Simple, Last)> {
    let mut reader = Reader::read(text);
    Some((reader.found.pop()?, reader.last))
}

fn within(text: &str, depth: usize) -> Vec<Vec<String>> {
    let Reader { found, documents, .. } = Reader::read(text);
    let each = |command: Simple| {
        let document = command.document.and_then(|number| documents.get(number));
        taken_apart(command.words.into_iter().map(|word| word.text).collect(), document, depth)
    };
    found.into_iter().filter(|command| !command.words.is_empty()).flat_map(each).collect()
}

fn taken_apart(mut words: Vec<String>, document: Option<&String>, depth: usize) -> Vec<Vec<String>> {
    let Some((shell, text)) = given_text(&words, document).filter(|_| depth > 0) else { return vec![words] };
    // What starts the shell, such as `mpirun`.
    words.truncate(shell);
    let before = (!words.is_empty()).then_some(words);
    before.into_iter().chain(within(&text, depth - 1)).collect()
}

/// What `sh -c TEXT`, `eval TEXT` or `sh <<MARK` runs, and which word the shell is: others may start it (`env`, `exec`, `timeout 5`).
fn given_text(words: &[String], document: Option<&String>) -> Option<(usize, String)> {
    if words.first()? == "eval" {
        return Some((0, words.get(1..)?.join(" ")));
    }
    let (shell, text) = shell_and_text(words)?;
    let text = match text {
        Some(place) => words.get(place),
        None => document,
    };
    Some((shell, text?.clone()))
}

/// Which word is a shell, and which the text that an option gives it; none where it reads one.
fn shell_and_text(words: &[String]) -> Option<(usize, Option<usize>)> {
    let shell = words.iter().position(|word| SHELLS.contains(&name(word)))?;
    let mut options = words.iter().enumerate().skip(shell + 1);
    while let Some((_, option)) = options.next() {
        let option = option.strip_prefix(['-', '+'])?;
        match option.starts_with('-') {
            false if option.contains('c') => {
                return Some((shell, Some(options.find(|(_, word)| !word.starts_with('-'))?.0)));
            }
            false if option.contains('s') => break,
            _ if option.ends_with('o') => drop(options.next()),
            _ => {}
        }
    }
    Some((shell, None))
}

/// The text that a shell is given by the last of the words; what is put behind that is the text's own, from `$0` on.
pub(super) fn text_at_end(words: &[String]) -> Option<&String> {
    let (_, place) = shell_and_text(words)?;
    words.last().filter(|_| place == words.len().checked_sub(1))
}

/// Which of the words a shell that is among them reads as its text.
pub(super) fn place_of_text(words: &[String]) -> Option<usize> {
    shell_and_text(words)?.1
}

/// Of a program, without its directories.
pub(super) fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

struct Reader<'t> {
    rest: &'t str,
    depth: usize,
    found: Vec<Simple>,
    /// Marks of documents whose lines come behind this one, and whether tabs before those are taken away.
    due: VecDeque<(Word, bool)>,
    documents: Vec<String>,
    last: Last,
    /// What of the innermost was open where the text ended, once it has.
    open: Open,
    has_ended: bool,
    /// The last document was given as it is.
    is_literal: bool,
}

impl<'t> Reader<'t> {
    fn read(rest: &'t str) -> Self {
        let (found, due, documents) = (Vec::new(), VecDeque::new(), Vec::new());
        let (last, open) = (Last::Command, Open::Nothing);
        let mut reader =
            Self { rest, depth: DEPTH, found, due, documents, last, open, has_ended: false, is_literal: false };
        reader.list('\0');
        reader
    }

    /// Finds commands up to the bracket that closes them, or to the end.
    fn list(&mut self, close: char) {
        let new = |behind| Simple { behind, words: Vec::new(), document: None };
        let (mut now, mut file, mut open) = (new('\n'), None, 0_usize);
        loop {
            self.rest = self.rest.trim_start_matches(BLANKS);
            if self.rest.is_empty() {
                self.ends_in(Open::Nothing);
                break;
            }
            self.last = Last::Command;
            let sign = file.take();
            if self.rest.starts_with('#') {
                self.rest = self.rest.trim_start_matches(|c| c != '\n');
                self.last = Last::Comment;
            } else if let Some(sign) = REDIRECTIONS.into_iter().find(|sign| self.take(sign)) {
                file = Some(sign);
            } else if sign.is_some() && self.depth > 0 && self.take("(") {
                self.nested(')');
            } else if self.rest.starts_with(OPERATORS) {
                let operator = if self.take("||") { '&' } else { self.letter().unwrap_or_default() };
                match operator {
                    ')' if open == 0 && close == operator => break,
                    ')' => open = open.saturating_sub(1),
                    '(' => open += 1,
                    '\n' => self.documents(),
                    _ => {}
                }
                // A line may end behind `&&`.
                if operator != '\n' || !now.words.is_empty() {
                    self.found.push(std::mem::replace(&mut now, new(operator)));
                }
            } else {
                let word = self.word();
                let is_number = !word.is_quoted && word.text.chars().all(|c| c.is_ascii_digit());
                match sign {
                    // Nothing but a line that goes on, or the number of a redirection.
                    _ if is_number && (word.text.is_empty() || self.rest.starts_with(['<', '>'])) => file = sign,
                    Some("<<" | "<<-") => {
                        now.document = Some(self.documents.len() + self.due.len());
                        self.due.push_back((word, sign == Some("<<-")));
                    }
                    Some(_) => {}
                    None => now.words.push(word),
                }
            }
        }
        self.found.push(now);
    }

    fn nested(&mut self, close: char) {
        self.depth -= 1;
        self.list(close);
        self.depth += 1;
        // What is open within is open.
        if !matches!(self.last, Last::Quote(_)) {
            self.last = Last::Command;
        }
    }

    /// Whatever is around it is left only because nothing comes any more.
    fn ends_in(&mut self, open: Open) {
        if !self.has_ended {
            (self.open, self.has_ended) = (open, true);
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn letter(&mut self) -> Option<char> {
        let mut rest = self.rest.chars();
        let letter = rest.next();
        self.rest = rest.as_str();
        letter
    }

    /// What stands before the next of a letter, which is taken as well.
    fn before(&mut self, letter: char) -> &'t str {
        let (before, behind) = self.rest.split_once(letter).unwrap_or((self.rest, ""));
        self.rest = behind;
        before
    }

    fn word(&mut self) -> Word {
        let mut word = Word::default();
        let is_end = |c: char| BLANKS.contains(&c) || OPERATORS.contains(&c) || "<>".contains(c);
        while !self.rest.is_empty() && !self.rest.starts_with(is_end) {
            word.is_quoted |= self.rest.starts_with(['\'', '"', '\\']) && !self.rest.starts_with("\\\n");
            if self.take("'") {
                self.open('\'', !self.rest.contains('\''));
                if !self.rest.contains('\'') {
                    self.ends_in(Open::Single);
                }
                word.text.push_str(self.before('\''));
            } else if self.take("\"") {
                let mut is_open = true;
                while !self.rest.is_empty() && is_open {
                    is_open = !self.take("\"");
                    if is_open {
                        self.piece(&mut word.text, |c| "$`\"\\".contains(c));
                    }
                }
                self.open('"', is_open);
                if is_open {
                    self.ends_in(Open::Double);
                }
            } else {
                self.piece(&mut word.text, |_| true);
            }
        }
        word
    }

    fn open(&mut self, quote: char, is_open: bool) {
        if is_open {
            self.last = Last::Quote(quote);
        }
    }

    /// A letter, what a backslash makes of one that it may stand before, or `$` for what the shell replaces.
    fn piece(&mut self, text: &mut String, may_follow: impl Fn(char) -> bool) {
        if self.take("\\\n") {
            return;
        }
        if self.rest.strip_prefix('\\').is_some_and(|rest| rest.starts_with(may_follow)) {
            self.take("\\");
        } else if self.depth > 0 && self.take("$((") {
            let mut open = 2;
            while open > 0
                && let Some(c) = self.letter()
            {
                open += i32::from(c == '(') - i32::from(c == ')');
            }
            return text.push('$');
        } else if self.depth > 0 && self.take("$(") {
            self.nested(')');
            return text.push('$');
        } else if self.depth > 0 && self.take("`") {
            let is_closed = self.rest.contains('`');
            let inside = self.before('`');
            let behind = std::mem::replace(&mut self.rest, inside);
            self.nested('\0');
            self.rest = behind;
            // Its end is not that of the text.
            self.has_ended &= !is_closed;
            return text.push('$');
        }
        text.extend(self.letter());
    }

    /// The lines of documents that are due.
    fn documents(&mut self) {
        while let Some((mark, has_tabs)) = self.due.pop_front() {
            let lines = std::iter::from_fn(|| self.line(&mark, has_tabs)).map(|line| line + "\n").collect();
            self.documents.push(lines);
            self.is_literal = mark.is_quoted;
            self.last = Last::Document(mark.text);
        }
    }

    /// The next line of a document, with those that a backslash makes part of it; none at the mark.
    fn line(&mut self, mark: &Word, has_tabs: bool) -> Option<String> {
        self.rest = self.rest.trim_start_matches(|c| has_tabs && c == '\t');
        let mut line = String::new();
        while !self.rest.is_empty() {
            let next = self.before('\n');
            line.push_str(next);
            let backslashes = next.len() - next.trim_end_matches('\\').len();
            if mark.is_quoted || backslashes.is_multiple_of(2) {
                return (line.trim_end_matches('\r') != mark.text).then_some(line);
            }
            line.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_its_commands_and_their_words() {
        let of = |text: &str| within(text, DEPTH).iter().map(|words| words.join("|")).collect::<Vec<_>>();
        for (text, found) in [
            (
                "a --note 'b; c.py' && d\\ e \"f \\\"g\\\" $h\" '' #i; j",
                &["a|--note|b; c.py", "d e|f \"g\" $h|"] as &[_],
            ),
            ("a \\\n b # c\nd#e>f 2>&1 | g 2", &["a|b", "d#e", "g|2"]),
            ("a>b <c 2>>d &>e '2'>f <<<g >&- h; >i; j>\\\nk", &["a|2|h", "j"]),
            // What runs within a word comes first.
            ("x=$(a b) c `d #e` \"f $(g \"h)\" | i; (j))\" k", &["a|b", "d", "g|h)", "i", "j", "x=$|c|$|f $|k"]),
            ("a $((1 + (2 << 3))) ${b:-\"c; }\"} $d <(e; f) >(g) h", &["e", "f", "g", "a|$|${b:-c; }}|$d|h"]),
            ("cd x; exec bash -euo pipefail -lc 'a; b \"c d\"' e", &["cd|x", "exec", "a", "b|c d"]),
            ("eval 'a; b'; bash a.sh -c d; sh -e; sh -c", &["a", "b", "bash|a.sh|-c|d", "sh|-e", "sh|-c"]),
            ("env A=1 /bin/sh -c 'sh -c \"a; b\"'", &["env|A=1", "a", "b"]),
            ("'a\\' \"b\\c\" 'open; d", &["a\\|b\\c|open; d"]),
            // Lines of a document are no commands, unless a shell reads them.
            ("cat > x.py <<E; a\nb.py\n E\n\nE\nc", &["cat", "a", "c"]),
            ("cat <<A 3<<-\"B C\" | d\ne\nA\nf\n\tB C\ng", &["cat", "d", "g"]),
            ("x=$(cat <<E\n')'\nE\n); a <<E\nb", &["cat", "x=$", "a"]),
            ("cat <<E\na\\\nE\nE\nb <<'E'\n\\\nE\nc", &["cat", "b", "c"]),
            // In quotes the mark keeps a backslash at the end of a line from going on.
            ("cat <<'E'\na\\\nE\nb", &["cat", "b"]),
            ("cat <<E\r\na\r\nE\r\nb", &["cat", "b"]),
            (
                "ssh h bash -e <<E && c\na; sh -s b <<'F'\nd\nF\nE\nsh a.sh <<E\nb\nE",
                &["ssh|h", "a", "d", "c", "sh|a.sh"],
            ),
            (" \n;;", &[]),
        ] {
            assert_eq!(of(text), found, "{text}");
        }
        assert_eq!(of(&"eval ".repeat(60_000)).len(), 1, "the rest is taken as it is");
    }
}
