//! The command line of a task: what is shown is what runs.

use crate::spec::{Command, Role};

/// The arguments that are executed; `image_command` is what the image runs by itself.
pub fn line(role: &Role, image_command: &[String]) -> Vec<String> {
    match &role.command {
        Command::Default if image_command.is_empty() => vec!["sleep".to_owned(), "infinity".to_owned()],
        Command::Default => image_command.iter().chain(&role.arguments).cloned().collect(),
        Command::Exec(words) => words.iter().chain(&role.arguments).cloned().collect(),
        Command::Shell(text) => {
            let mut text = text.trim_end().to_owned();
            for argument in &role.arguments {
                text.push(' ');
                text.push_str(&quote(argument));
            }
            vec!["/bin/sh".to_owned(), "-c".to_owned(), text]
        }
    }
}

/// Quotes a word so that `/bin/sh` reads exactly it.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The arguments as one line for people, which a shell would read back.
pub fn display(args: &[String]) -> String {
    args.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}
