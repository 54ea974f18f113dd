//! A command line for people: one that a shell reads back as these words, and that gives no orders to a terminal.

use super::command::quote;

/// The words as one line, which `/bin/sh` reads back as exactly these. Tabs and ends of lines are as they are; other control characters
/// are named to `printf`, so that none of them reaches the terminal of whoever reads somebody else's job file.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| shown(word)).collect::<Vec<_>>().join(" ")
}

fn is_order(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\t' | '\n')
}

fn shown(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(begin) = rest.find(is_order) {
        let (before, orders) = rest.split_at(begin);
        let end = orders.find(|letter| !is_order(letter)).unwrap_or(orders.len());
        let (orders, after) = orders.split_at(end);
        if !before.is_empty() {
            out.push_str(&quote(before));
        }
        out.push_str(&printed(orders));
        rest = after;
    }
    if !rest.is_empty() || word.is_empty() {
        out.push_str(&quote(rest));
    }
    out
}

/// By bytes in octal, which every `printf` knows. No end of a line is among them, which a shell would take from the end of what is printed.
fn printed(orders: &str) -> String {
    let bytes: String = orders.bytes().map(|byte| format!("\\{byte:03o}")).collect();
    format!("\"$(printf '{bytes}')\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_to_a_terminal_are_named_and_tabs_are_not() {
        let of = |word: &str| line(&[word.to_owned()]);
        assert_eq!(of("\techo a\nb"), "'\techo a\nb'");
        assert_eq!(of("a\x1b[2J"), "a\"$(printf '\\033')\"'[2J'");
        assert_eq!(of("\r\u{9b}"), "\"$(printf '\\015\\302\\233')\"");
        assert_eq!(line(&["".to_owned(), "it's".to_owned()]), r"'' 'it'\''s'");
    }
}
