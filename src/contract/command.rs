//! The command line of a task: what is shown is what runs.

use super::azureml::ReadBy;
use super::{
    Task, azureml, kubeflow, modelarts, mpi, paddle, pai, parameters, sagemaker, shell, shells, tione, topology, uai,
    volcano,
};
use crate::spec::{Command, Contract, Framework, Main, Platform, Profile, Role};

/// The arguments that are executed.
pub fn line(task: &Task<'_>) -> Vec<String> {
    super::servers::beside(task, started(task, own_line(task)))
}

/// What the role's own program and its arguments are.
fn own_line(task: &Task<'_>) -> Vec<String> {
    match &task.role.command {
        Command::Default => {
            let words = entry(task).unwrap_or_else(|| task.inside.command.clone());
            if words.is_empty() {
                return vec!["sleep".to_owned(), "infinity".to_owned()];
            }
            words.into_iter().chain(arguments(task, "")).collect()
        }
        Command::Exec(words) => {
            let whole = words.join(" ");
            let filled = words.iter().map(|word| filled(task, word, ReadBy::Program));
            filled.chain(arguments(task, &whole)).collect()
        }
        Command::Shell(text) => {
            let mut out = filled(task, unfinished(text), ReadBy::Shell);
            for argument in arguments(task, text) {
                out.push(' ');
                out.push_str(&quote(&argument));
            }
            vec![shells::of_task(task).to_owned(), "-c".to_owned(), out]
        }
    }
}

/// The text without the end of its last line, of which a backslash that would go on to the next is a part.
fn unfinished(mut text: &str) -> &str {
    loop {
        let trimmed = text.trim_end();
        let backslashes = trimmed.len() - trimmed.trim_end_matches('\\').len();
        let behind = &text[trimmed.len()..];
        match trimmed.strip_suffix('\\').filter(|_| backslashes % 2 == 1) {
            Some(rest) if behind.is_empty() || behind.starts_with(['\n', '\r']) => text = rest,
            // It is a space's.
            Some(_) => return &text[..trimmed.len() + behind.chars().next().map_or(0, char::len_utf8)],
            None => return trimmed,
        }
    }
}

/// What runs the script that a parameter names, where a platform does that.
pub(super) fn entry(task: &Task<'_>) -> Option<Vec<String>> {
    let program = match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker, _) => return Some(sagemaker::started(task, sagemaker::program(task)?)),
        (Platform::Tione, Profile::Old) => tione::program(task)?,
        _ => return None,
    };
    Some(match program.ends_with(".py") {
        true => vec!["python3".to_owned(), program],
        false => executed(task, &program),
    })
}

/// Whether a shell of ours starts the program: an array that begins with one is the user's own.
pub(super) fn needs_shell(task: &Task<'_>) -> bool {
    let is_shell = || entry(task).is_some_and(|words| words.first().is_some_and(|word| word == shells::of_task(task)));
    let by_command = match &task.role.command {
        Command::Shell(_) => true,
        Command::Exec(_) => false,
        Command::Default => is_shell(),
    };
    by_command || super::servers::program(task).is_some()
}

/// A program beside which the command starts, by its shell.
pub(super) fn executed(task: &Task<'_>, program: &str) -> Vec<String> {
    by_shell(task, format!("./{} \"$@\"", quote(program)), program)
}

/// A text of ours for the task's shell, to which the arguments behind it are `$@`.
pub(super) fn by_shell(task: &Task<'_>, text: String, program: &str) -> Vec<String> {
    vec![shells::of_task(task).to_owned(), "-c".to_owned(), text, program.to_owned()]
}

/// What a role's own command runs, one after the other.
fn commands(task: &Task<'_>, role: &Role) -> Vec<Vec<String>> {
    match &role.command {
        Command::Default => shell::commands(&Command::Exec(task.inside.command.clone())),
        own => shell::commands(own),
    }
}

/// The role whose command is the job's script: of a task that waits for ranks, the one that starts them on it.
fn of_script<'t>(task: &Task<'t>) -> &'t Role {
    let starts = |role: &&Role| !role.is_service && role.main != Main::No;
    let other = if task.is_idle() { task.spec.roles.iter().find(starts) } else { None };
    other.unwrap_or(task.role)
}

/// Programs that only print their arguments.
const PRINTERS: [&str; 3] = ["echo", "printf", ":"];

/// The script that the role's own command, or that of the role that starts its ranks, runs in the end: what comes before it prepares.
pub(super) fn script(task: &Task<'_>) -> Option<String> {
    let role = of_script(task);
    if role.command == Command::Default {
        return None;
    }
    let is_script = |word: &&str| word.ends_with(".py") && !word.starts_with('-') && shell::name(word) != "setup.py";
    // `CMD="python train.py"; $CMD`
    let in_value = |word: &str| Some(assigned(word)?.split_whitespace().find(is_script)?.to_owned());
    let of_command = |words: &Vec<String>| {
        let plain = words.iter().map(String::as_str).filter(|word| assigned(word).is_none()).find(is_script);
        plain.map(str::to_owned).or_else(|| words.iter().find_map(|word| in_value(word)))
    };
    let prints = |words: &[String]| words.first().is_some_and(|first| PRINTERS.contains(&first.as_str()));
    let commands = commands(task, role);
    commands.iter().rev().filter(|words| !prints(words)).find_map(of_command)
}

/// What a variable is set to by this word.
fn assigned(word: &str) -> Option<&str> {
    let (name, value) = word.split_once('=')?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some(value)
}

/// Programs that start processes themselves.
const STARTERS: &[&str] =
    &["mpirun", "mpiexec", "horovodrun", "torchrun", "torch.distributed", "accelerate", "deepspeed", "pdsh"];

/// Whether the role's own command runs one of them, also by a variable (`LAUNCH="torchrun --nnodes 1"; $LAUNCH t.py`) or within
/// quotes (`su ada -c "mpirun …"`); what follows an option of two strokes is no program.
pub(super) fn starts_itself(task: &Task<'_>) -> bool {
    let is_starter = |word: &str| {
        let name = shell::name(word);
        STARTERS.contains(&name) || name.starts_with("torch.distributed.")
    };
    let has_starter = |word: &str| {
        !word.starts_with("--") && word.split(|c: char| c.is_whitespace() || "\"'()=".contains(c)).any(is_starter)
    };
    commands(task, task.role).iter().any(|words| {
        let before = std::iter::once("").chain(words.iter().map(String::as_str));
        before.zip(words).any(|(before, word)| !before.starts_with("--") && has_starter(word))
    })
}

/// What a platform puts before the command, so that a process runs for each rank.
fn started(task: &Task<'_>, words: Vec<String>) -> Vec<String> {
    let Contract { platform, profile } = task.spec.contract;
    let starts_none = task.is_idle()
        || task.role.is_service
        || task.role.serves
        || words.first().is_some_and(|word| word == "sleep")
        || starts_itself(task);
    if starts_none {
        return words;
    }
    let is_python = words.first().is_some_and(|word| word.starts_with("python"));
    match platform {
        Platform::AzureMl if task.spec.framework == Some(Framework::PyTorch) && task.role.resources.gpu > 1 => {
            // It counts nodes and processes by its variables.
            let torchrun = ["python3", "-m", "torch.distributed.run", "--no-python"].map(str::to_owned);
            torchrun.into_iter().chain(words).collect()
        }
        Platform::Tione if profile == Profile::Old && is_python && !ranks(task).is_empty() => {
            // The platform's way to end all ranks where one fails.
            let by_mpi = ["python3", "-m", "mpi4py"].map(str::to_owned);
            ranks(task).into_iter().chain(by_mpi).chain(words.into_iter().skip(1)).collect()
        }
        Platform::Tione if profile != Profile::Old => words,
        Platform::SageMaker | Platform::AzureMl | Platform::Tione => ranks(task).into_iter().chain(words).collect(),
        _ => words,
    }
}

/// `mpirun` for all ranks, before the command of the role that leads.
fn ranks(task: &Task<'_>) -> Vec<String> {
    let sum: u64 = topology::mpi_hosts(task).iter().map(topology::slots).sum();
    match task.spec.is_launched() && task.role.main != Main::No {
        true => vec!["mpirun".to_owned(), "-np".to_owned(), sum.to_string()],
        false => Vec::new(),
    }
}

/// What the platform puts after the command.
pub(super) fn arguments(task: &Task<'_>, command: &str) -> Vec<String> {
    // Tasks that only wait run nothing of the user's, and services none of the platform's.
    if task.is_idle() || task.role.is_service {
        return Vec::new();
    }
    match (task.spec.contract.platform, task.spec.contract.profile) {
        (Platform::SageMaker, _) => sagemaker::arguments(task),
        (Platform::Tione, Profile::Old) => tione::arguments(task),
        (Platform::Pai, Profile::Dlc) => parameters::with_equals(&task.role.params),
        (Platform::Pai, _) => pai::arguments(task),
        (Platform::Google, _) => super::google::arguments(task),
        (Platform::AzureMl, _) => azureml::arguments(task, command),
        (Platform::ModelArts, _) => modelarts::arguments(task),
        (Platform::Uai, _) => uai::arguments(task),
        (Platform::Paddle, _) => paddle::arguments(task),
        (Platform::Volcano, _) => volcano::arguments(task),
        (Platform::Kubeflow, _) => kubeflow::arguments(task),
        (Platform::Mpi, _) => mpi::arguments(task),
        (Platform::Native | Platform::OpenPai | Platform::Tione, _) => parameters::with_equals(&task.role.params),
    }
}

fn filled(task: &Task<'_>, text: &str, read_by: ReadBy) -> String {
    match task.spec.contract.platform {
        Platform::AzureMl => azureml::substitute(task, text, read_by),
        _ => text.to_owned(),
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
    parameters::line(args)
}
