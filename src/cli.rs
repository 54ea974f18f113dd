//! The command line: arguments as typed → one verb a file → an exit code.

mod backup;
mod change;
mod check;
mod complete;
mod confirm;
mod contract;
mod cp;
mod dataset;
mod dispatch;
mod doctor;
mod drain;
mod events;
mod exec;
mod explain;
mod foreign;
mod generate;
mod gpu;
mod image;
mod import;
mod listing;
mod logs;
mod model;
mod new;
mod output;
mod progress;
mod ps;
mod pulse;
mod queue;
mod secret;
mod session;
mod shelf;
mod show;
mod shutdown;
mod spec;
mod status;
mod template;
mod times;
mod token;
mod top;
mod usage;
mod verbs;
mod wait;
mod whose;
mod workspace;

use std::io;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{ColorChoice, CommandFactory, FromArgMatches};

use crate::api::client::{Client, ClientError};
use crate::config::Paths;
use crate::ids::JobKey;
pub use verbs::{Cli, ContractVerb, Verb};

/// Exit codes of the command line; documented in the README.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// Something could not be done; the reason is on standard error.
    Failure,
    /// An argument is none of what may be typed, as clap says it of most.
    WrongArgument,
    /// The daemon does not answer.
    Unreachable,
    /// There is no such job.
    NotFound,
    /// `wait`: the job failed.
    JobFailed,
    /// `wait`: the job was stopped.
    JobStopped,
    /// `exec`: the command's own, 128 and the signal's number if it was killed by one.
    Command(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failure => 1,
            Exit::WrongArgument => 2,
            Exit::Unreachable => 3,
            Exit::NotFound => 4,
            Exit::JobFailed => 5,
            Exit::JobStopped => 6,
            Exit::Command(code) => code,
        }
    }
}

/// Of a file that somebody has named.
fn no_file(path: &Path) -> String {
    let from = std::env::current_dir().ok().filter(|_| path.is_relative());
    let from = from.map(|from| format!(", looked for in {}", from.display())).unwrap_or_default();
    format!("there is no file {}{from}; `ls` shows what lies where", path.display())
}

/// Why a file that somebody has named cannot be read, and what to do.
fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!(no_file(path)),
        io::ErrorKind::PermissionDenied => anyhow::Error::new(error).context(format!(
            "cannot read {}; its permissions and those of its directories say who may",
            path.display()
        )),
        _ => anyhow::Error::new(error).context(format!("cannot read {}", path.display())),
    }
}

/// What was typed. A line without a verb is answered with the verbs that are for people: clap's own error lists all.
pub fn arguments() -> Cli {
    // Help and what is wrong with a line come before anything is parsed.
    let is_plain = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--no-color");
    let color = if is_plain { ColorChoice::Never } else { ColorChoice::Auto };
    let mut command = Cli::command().color(color);
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = parsed
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command)));
    parsed.unwrap_or_else(|mut error| {
        let typed = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        if error.kind() == ErrorKind::MissingSubcommand {
            output::aside(&help_of(first_word(typed)));
            crate::sys::process::exit_now(2);
        }
        if error.use_stderr()
            && let Some(verb) = first_word(typed).and_then(|verb| inner(&verb))
        {
            refuse_by_hand(verb);
        }
        foreign::advise(&mut error);
        error.exit()
    })
}

/// Of a verb that has verbs of its own, or of all. The parser gives this by itself only where no option is said, and `TRAINYARD_ROOT` is one.
fn help_of(verb: Option<String>) -> String {
    let mut command = Cli::command();
    command.build();
    match verb.and_then(|verb| command.find_subcommand_mut(verb)) {
        Some(verb) => verb.render_help().to_string(),
        None => command.render_help().to_string(),
    }
}

/// Verbs that the daemon or the mount give to processes of their own, with what people may have wanted.
const INNER: [(&str, &str); 8] = [
    (
        "mount",
        "the daemon mounts when it starts: `systemctl start trainyard`, or `trainyard daemon`; `trainyard doctor` tells what keeps it from that",
    ),
    ("direct", "`[mount] direct` in trainyard.toml says what is shown directly"),
    ("enter", "`trainyard exec JOB -- COMMAND` runs a command in a task"),
    ("hold", "`state = \"held\"` in a job file keeps its job from starting"),
    ("carry", "`trainyard send JOB` copies output to its store"),
    ("cards", "`trainyard gpu` shows the cards"),
    ("registry", "`trainyard image pull NAME` gets an image"),
    ("shim", "a job file in jobs.d runs tasks; `trainyard new JOB` writes one"),
];

/// The verb of a line that cannot be parsed.
fn first_word(mut words: impl Iterator<Item = String>) -> Option<String> {
    loop {
        match words.next()?.as_str() {
            "--root" => drop(words.next()),
            word if word.starts_with('-') => {}
            word => return Some(word.to_owned()),
        }
    }
}

fn inner(name: &str) -> Option<(&'static str, &'static str)> {
    INNER.into_iter().find(|(verb, _)| *verb == name)
}

/// A verb that is listed nowhere.
fn is_hidden(verb: &str) -> bool {
    Cli::command().find_subcommand(verb).is_some_and(clap::Command::is_hide_set)
}

/// Says whose such a verb is, and what to do instead.
fn refuse_by_hand((verb, instead): (&str, &str)) -> ! {
    output::error(&format!("`trainyard {verb}` is not for people: Trainyard starts it for itself; {instead}"));
    crate::sys::process::exit_now(2)
}

/// Ends here where somebody has typed a verb that is not for people: what a process of ours is given is missing.
pub fn refuse_inner(verb: &Verb) {
    let of_ours = || crate::sys::file::is_pipe(io::stdin());
    let name = match verb {
        Verb::Mount { lock_fd: None, kept_fd: None, state_versions: false, answers: false, .. } => "mount",
        Verb::Direct { .. } if !of_ours() => "direct",
        Verb::Registry if !of_ours() => "registry",
        Verb::Cards if !of_ours() => "cards",
        _ => return,
    };
    if let Some(verb) = inner(name) {
        refuse_by_hand(verb);
    }
}

/// Runs a verb that talks to the daemon or reads files.
pub fn run(cli: Cli) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(dispatch::dispatch(cli));
    runtime.shutdown_background();
    match result {
        Err(error) => explain_failure(error),
        done => done,
    }
}

fn client(root: &Path) -> anyhow::Result<Client> {
    // A mistake in trainyard.toml is no reason not to talk to a daemon that goes on with what it had.
    Ok(Client::new(&Paths::new(root)?.api_socket()))
}

/// There is no such thing; says how to see what there is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotFound(String);

/// What was typed is none of what may be typed there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongArgument(String);

/// What was typed as a job: `JOB`, or `WORKSPACE/JOB`.
fn job_key(text: &str) -> Result<JobKey, WrongArgument> {
    text.parse().map_err(|error| WrongArgument(format!("{text:?} cannot be a job: {error}")))
}

/// What the daemon refuses is told in its words; the code says which kind it was.
fn explain_failure(error: anyhow::Error) -> anyhow::Result<Exit> {
    if error.downcast_ref::<NotFound>().is_some() {
        output::error(&format!("{error:#}"));
        return Ok(Exit::NotFound);
    }
    if error.downcast_ref::<WrongArgument>().is_some() {
        output::error(&format!("{error:#}"));
        return Ok(Exit::WrongArgument);
    }
    let code = match error.downcast_ref::<ClientError>() {
        Some(ClientError::NotRunning { .. }) => Exit::Unreachable,
        Some(ClientError::Refused { status: 404, .. }) => Exit::NotFound,
        Some(ClientError::Refused { status: 400, .. }) => Exit::WrongArgument,
        Some(ClientError::Refused { .. } | ClientError::Revoked(_)) => Exit::Failure,
        _ => return Err(error),
    };
    output::error(&error.to_string());
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_a_word(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
            let path = format!("{path} {}", verb.get_name());
            if verb.get_about().is_none() {
                found.push(path.clone());
            }
            let silent =
                verb.get_arguments().filter(|argument| argument.get_help().is_none() && !argument.is_hide_set());
            found.extend(silent.map(|argument| format!("{path} {}", argument.get_id())));
            without_a_word(verb, &path, found);
        }
    }

    #[test]
    fn every_hidden_verb_has_a_word_for_who_types_it() {
        let command = Cli::command();
        let hidden = command.get_subcommands().filter(|verb| verb.is_hide_set()).map(clap::Command::get_name);
        let without: Vec<&str> = hidden.filter(|name| inner(name).is_none() && *name != "generate").collect();
        assert_eq!(without, Vec::<&str>::new());
        let first = |line: &str| first_word(line.split(' ').map(str::to_owned));
        assert_eq!(first("--root / --json shim x").as_deref(), Some("shim"));
        assert_eq!(first("--root=/ hold"), Some("hold".to_owned()));
        assert_eq!(first("--json"), None);
    }

    #[test]
    fn what_every_verb_takes_stands_behind_its_own_options() {
        let mut command = Cli::command();
        command.build();
        let all = command.get_subcommands_mut().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
        for verb in all {
            let help = verb.render_long_help().to_string();
            let of_all = help.find("--root <ROOT>").expect("every verb takes it");
            let shown = |option: &&clap::Arg| !option.is_hide_set() && !option.is_global_set();
            let own = verb.get_opts().chain(verb.get_arguments().filter(|flag| !flag.is_positional())).filter(shown);
            for name in own.filter_map(clap::Arg::get_long).filter(|name| *name != "help") {
                let before = help.get(..of_all).is_some_and(|before| before.contains(&format!("--{name}")));
                assert!(before, "{} --{name}:\n{help}", verb.get_name());
            }
        }
    }

    #[test]
    fn a_task_is_shown_as_what_may_be_left_out() {
        let mut command = Cli::command();
        command.build();
        for (verb, usage) in [
            ("logs", "Usage: trainyard logs [OPTIONS] <JOB> [TASK]"),
            ("exec", "Usage: trainyard exec [OPTIONS] <JOB> [TASK] -- <COMMAND>..."),
        ] {
            let verb = command.find_subcommand_mut(verb).expect("it is a verb");
            assert_eq!(verb.render_usage().to_string(), usage);
        }
    }

    #[test]
    fn help_has_a_word_on_every_verb_and_argument() {
        let mut found = Vec::new();
        without_a_word(&Cli::command(), "trainyard", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}
