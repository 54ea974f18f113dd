//! Where a command's text ends so that what is put behind it reaches no program, or not the one that is meant. A shell's grammar is
//! read only as far as that takes.

use std::collections::HashMap;

/// Words behind which a shell takes none, where they stand as commands do.
const CLOSING: [&str; 4] = ["}", "done", "fi", "esac"];

/// What becomes of what is put behind the text, if it is lost there.
pub(super) fn deaf(text: &str) -> Option<String> {
    let (text, document) = without_documents(text);
    if let Some(mark) = document {
        return Some(format!("the text of <<{mark} would not end"));
    }
    let Plain { text, is_comment } = plain(&text);
    let text = text.trim_end();
    if is_comment {
        return Some("a comment hides them".to_owned());
    }
    if text.ends_with([';', '&']) {
        return Some("they would be a command of their own".to_owned());
    }
    if let Some(word) = closing(without_redirections(text)) {
        return Some(format!("behind `{word}` nothing can stand"));
    }
    ends_in_pipe(text).then(|| "only the last program of the pipe gets them".to_owned())
}

/// The text without the lines of its documents (`<<MARK`), and the mark that its last line is.
fn without_documents(text: &str) -> (String, Option<&str>) {
    let lines: Vec<&str> = text.trim_end().split('\n').collect();
    let mut ends: HashMap<&str, Vec<usize>> = HashMap::new();
    lines.iter().enumerate().for_each(|(at, line)| ends.entry(line.trim_start_matches('\t')).or_default().push(at));
    let end_of = |mark: &str, from: usize| {
        let all = ends.get(mark)?;
        all.get(all.partition_point(|at| *at < from)).copied()
    };
    let (mut out, mut last, mut at) = (Vec::new(), None, 0);
    while let Some(line) = lines.get(at) {
        out.push(*line);
        at += 1;
        last = None;
        for mark in marks(line) {
            if let Some(end) = end_of(mark, at) {
                (at, last) = (end + 1, Some(mark));
            }
        }
    }
    (out.join("\n"), last)
}

/// Of the documents that a line begins.
fn marks(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("<<").filter_map(move |(at, _)| {
        let rest = line.get(at + 2..)?.trim_start_matches('-').trim_start().trim_start_matches(['"', '\'', '\\']);
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let mark = rest.get(..end).filter(|mark| mark.starts_with(|c: char| c.is_alphabetic() || c == '_'))?;
        (!line.get(..at)?.ends_with('<')).then_some(mark)
    })
}

struct Plain {
    /// Without comments, and with a letter for each that stands in quotes.
    text: String,
    /// It ends within a comment.
    is_comment: bool,
}

fn plain(text: &str) -> Plain {
    let (mut out, mut quote, mut is_comment, mut is_escaped) = (String::new(), None, false, false);
    for c in text.trim_end().chars() {
        if is_comment {
            is_comment = c != '\n';
            out.extend((c == '\n').then_some(c));
            continue;
        }
        let stands = match quote {
            _ if std::mem::take(&mut is_escaped) => false,
            Some(open) => {
                is_escaped = open == '"' && c == '\\';
                quote = Some(open).filter(|open| *open != c);
                false
            }
            None => {
                is_escaped = c == '\\';
                quote = Some(c).filter(|c| "'\"".contains(*c));
                quote.is_none() && !is_escaped
            }
        };
        is_comment = stands
            && c == '#'
            && out.chars().last().is_none_or(|before| before.is_whitespace() || ";&|()".contains(before));
        out.extend((!is_comment).then_some(if stands { c } else { 'q' }));
    }
    Plain { text: out, is_comment }
}

/// The text without what it says last of files, such as `> log 2>&1`.
fn without_redirections(mut text: &str) -> &str {
    while let Some(before) = without_redirection(text) {
        text = before;
    }
    text
}

fn without_redirection(text: &str) -> Option<&str> {
    let at = text.rfind(['<', '>'])?;
    let file = text.get(at + 1..)?.trim_start_matches('&').trim_start();
    let is_word = !file.is_empty() && !file.contains(|c: char| c.is_whitespace() || ";&|()".contains(c));
    let before = text.get(..at).filter(|_| is_word)?.trim_end_matches(['<', '>']);
    Some(before.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end())
}

/// The word that closes what stands before it.
fn closing(text: &str) -> Option<&str> {
    if text.ends_with(')') {
        let opened = opening(text)?;
        return (!text.get(..opened)?.ends_with(['$', '<', '>'])).then_some(")");
    }
    let (last, mut before) = closing_word(text)?;
    // Elsewhere it is an argument. `fi fi` closes two.
    loop {
        match closing_word(before) {
            _ if before.is_empty() || before.ends_with([';', '&', '|', '\n']) => return Some(last),
            Some((_, more)) => before = more,
            None => return None,
        }
    }
}

/// The last word, if it is such a one, and the line before it.
fn closing_word(text: &str) -> Option<(&str, &str)> {
    let word = text.rsplit(|c: char| c.is_whitespace() || ";&|()".contains(c)).next()?;
    let before = text.strip_suffix(word)?.trim_end_matches([' ', '\t']);
    CLOSING.contains(&word).then_some((word, before))
}

/// Where the bracket opens that the text closes with.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn ends_in_pipe(text: &str) -> bool {
    if text.contains(['(', '`']) {
        // What runs within a line is no part of its pipe; who writes so knows what they do.
        return false;
    }
    // What stands behind another command is no part of its pipe.
    let commands = text.replace(">|", ">").replace("||", ";").replace("&&", ";");
    commands.rsplit([';', '&', '\n']).next().is_some_and(|last| last.contains('|'))
}
