//! What a container runs. In `$(NAME)` Kubernetes puts the value of a variable before anything starts, in commands and in
//! values of other variables; here a shell does as the task starts, since only then it is known what the contract gives. A
//! variable that a shell has no name for is put in by the import.

use std::collections::BTreeSet;

use super::ImportError;
use super::draft::{Draft, DraftRole};
use super::fields::Fields;
use super::{Loss, write};
use crate::contract::command::quote;
use crate::contract::{Sample, view};
use crate::spec::{Command, JobSpec, parse};

/// What a container says of its command beside the words.
#[derive(Debug, Clone, Default)]
pub(super) struct Container {
    directory: Option<String>,
    /// Variables that Kubernetes fills in from elsewhere.
    pub(super) elsewhere: Vec<String>,
    field: String,
    line: usize,
}

enum Piece {
    Text(String),
    /// Of `$(NAME)`.
    Name(String),
}

/// `command`, `args` and `workingDir`, as they are written: what they refer to is known once the job is whole.
pub(super) fn read(
    container: &mut Fields,
    elsewhere: Vec<String>,
    role: &mut DraftRole,
    losses: &mut Vec<Loss>,
) -> Result<(), ImportError> {
    let field = if container.has("command") { "command" } else { "args" };
    let words = container.texts("command")?;
    let arguments = container.texts("args")?;
    let directory = container.text("workingDir")?;
    role.came_from(container, &[("command", &[field]), ("image", &["image"]), ("env", &["env"])]);
    if words.is_empty() {
        if !arguments.is_empty() {
            losses.push(container.loss("args", format!("arguments for the image's own program, which is not known here; write command with it and {arguments:?}")));
        }
        if directory.is_some() {
            losses.push(container.loss("workingDir", "write command, beginning with cd"));
        }
        return Ok(());
    }
    role.command = match words.iter().chain(&arguments).collect::<Vec<_>>().as_slice() {
        [shell, flag, line] if ["sh", "/bin/sh"].contains(&shell.as_str()) && *flag == "-c" => {
            Command::Shell((*line).clone())
        }
        words => Command::Exec(words.iter().map(|word| (*word).clone()).collect()),
    };
    let (field, line) = (container.at(field), container.place_of(field).line);
    role.container = Some(Container { directory, elsewhere, field, line });
    Ok(())
}

/// Most bytes that variables bring into the values of a container's others: each may double what the last one has.
pub(super) const ROOM: usize = 128 << 10;

/// Puts earlier variables into the value of one, as long as there is room; returns the names of which that is not so.
pub(super) fn value(text: &str, known: &[(String, String)], room: &mut usize) -> (String, Vec<String>) {
    let (mut out, mut missing) = (String::new(), Vec::new());
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => out.push_str(&text),
            Piece::Name(name) => match known.iter().find(|(known, value)| *known == name && value.len() <= *room) {
                Some((_, value)) => {
                    *room -= value.len();
                    out.push_str(value);
                }
                None => {
                    out.push_str(&format!("$({name})"));
                    missing.push(name);
                }
            },
        }
    }
    (out, missing)
}

/// Makes the commands of containers what they are here, and tells what they refer to in vain.
pub(super) fn finish(draft: &mut Draft) {
    let is_read = draft.roles.iter().any(|role| role.container.is_some());
    let spec = is_read.then(|| parse(&format!("{}.toml", draft.name), &write::job_file(draft)).0).flatten();
    let sample = spec.as_ref().map(|spec| Sample::of(&draft.name, spec));
    for role in &mut draft.roles {
        let Some(container) = role.container.take() else { continue };
        let mut given = match (&spec, &sample) {
            (Some(spec), Some(sample)) => variables(spec, sample, &role.name),
            _ => role.env.iter().map(|(name, _)| name.clone()).collect(),
        };
        given.retain(|name| has_shell_name(name));
        let command = std::mem::replace(&mut role.command, Command::Default);
        let (command, missing) = filled_in(command, &given, &role.env, &container.elsewhere);
        for (name, meaning) in missing {
            let why = format!("Kubernetes puts the value of {name} for $({name}), which nothing gives here; {meaning}");
            draft.losses.push(Loss { field: container.field.clone(), line: container.line, why });
        }
        role.command = match container.directory {
            Some(directory) => in_directory(&directory, command),
            None => command,
        };
    }
}

/// What the tasks of a role find in their environment.
fn variables(spec: &JobSpec, sample: &Sample, role: &str) -> Vec<String> {
    let tasks = sample.tasks(spec).filter(|task| task.role.name.as_str() == role);
    tasks.take(1).flat_map(|task| view(&task).env).map(|(name, _)| name).collect()
}

const OF_SHELL: &str = "a shell runs a program of that name: write what it stands for";
const LITERAL: &str = "it stays as it is: write what it stands for";

/// A command with what it refers to, and the names that nothing gives, with what becomes of them.
fn filled_in(
    command: Command,
    given: &[String],
    env: &[(String, String)],
    elsewhere: &[String],
) -> (Command, Vec<(String, &'static str)>) {
    let words = match &command {
        Command::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
        Command::Exec(words) => words.clone(),
        Command::Default => return (command, Vec::new()),
    };
    let is_of_shell = matches!(words.as_slice(), [shell, flag, ..] if shell.ends_with("sh") && flag.starts_with('-'));
    let mut room = ROOM;
    let mut whole = |word: &String| pieces(word).into_iter().map(|piece| by_value(piece, env, &mut room)).collect();
    let words: Vec<Vec<Piece>> = words.iter().map(&mut whole).collect();
    let names: BTreeSet<&String> = words
        .iter()
        .flatten()
        .filter_map(|piece| match piece {
            Piece::Name(name) => Some(name),
            Piece::Text(_) => None,
        })
        .collect();
    let (known, missing): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| given.contains(name));
    // To a shell `$(date)` is a program, as Kubernetes leaves it.
    let is_set = |name: &String| elsewhere.contains(name) || env.iter().any(|(known, _)| known == name);
    let is_meant = |name: &&String| !is_of_shell || is_set(name) || is_variable(name);
    let meaning = if is_of_shell { OF_SHELL } else { LITERAL };
    let missing = missing.into_iter().filter(is_meant).map(|name| (name.clone(), meaning)).collect();
    let mut plain = words.iter().map(|word| word.iter().map(Piece::written).collect::<String>());
    let command = match command {
        _ if !known.is_empty() => {
            let words: Vec<String> = words.iter().map(|word| in_shell(word, given)).collect();
            Command::Shell(format!("exec {}", words.join(" ")))
        }
        Command::Shell(_) => Command::Shell(plain.next_back().unwrap_or_default()),
        _ => Command::Exec(plain.collect()),
    };
    (command, missing)
}

/// Kubernetes allows `-` and `.` in names as well; to a shell `${LOG-DIR}` is something else.
fn has_shell_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A variable that no shell can put in as its value, as long as there is room.
fn by_value(piece: Piece, env: &[(String, String)], room: &mut usize) -> Piece {
    let Piece::Name(name) = &piece else { return piece };
    let is_it = |(known, value): &&(String, String)| known == name && !has_shell_name(name) && value.len() <= *room;
    let Some((_, value)) = env.iter().find(is_it) else { return piece };
    *room -= value.len();
    Piece::Text(value.clone())
}

/// As variables of an environment are mostly written.
fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// A word for a shell, which puts in the variables that are there and nothing else.
fn in_shell(word: &[Piece], given: &[String]) -> String {
    let (mut out, mut plain) = (String::new(), String::new());
    for piece in word {
        match piece {
            Piece::Name(name) if given.contains(name) => {
                if !plain.is_empty() {
                    out.push_str(&quote(&std::mem::take(&mut plain)));
                }
                out.push_str(&format!("\"${{{name}}}\""));
            }
            piece => plain.push_str(&piece.written()),
        }
    }
    if !plain.is_empty() || out.is_empty() {
        out.push_str(&quote(&plain));
    }
    out
}

impl Piece {
    fn written(&self) -> String {
        match self {
            Piece::Text(text) => text.clone(),
            Piece::Name(name) => format!("$({name})"),
        }
    }
}

/// As Kubernetes reads a text: `$$` is a `$`, and what is never closed refers to nothing.
fn pieces(text: &str) -> Vec<Piece> {
    let (mut out, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some((before, tail)) = rest.split_once('$') {
        plain.push_str(before);
        if let Some(after) = tail.strip_prefix('$') {
            plain.push('$');
            rest = after;
        } else if let Some((name, after)) = tail.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            out.push(Piece::Text(std::mem::take(&mut plain)));
            out.push(Piece::Name(name.to_owned()));
            rest = after;
        } else {
            plain.push('$');
            rest = tail;
        }
    }
    plain.push_str(rest);
    out.push(Piece::Text(plain));
    out
}

/// There is no key for the working directory: the command goes there first.
fn in_directory(directory: &str, command: Command) -> Command {
    match command {
        Command::Shell(line) => Command::Shell(format!("cd '{}' || exit\n{line}", directory.replace('\'', r"'\''"))),
        Command::Exec(words) => {
            let go = ["/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", directory].map(str::to_owned);
            Command::Exec(go.into_iter().chain(words).collect())
        }
        Command::Default => Command::Default,
    }
}
