//! The command line: arguments as typed → one verb a file → an exit code.

mod backup;
mod change;
mod check;
pub mod complete;
mod contract;
mod cp;
mod dataset;
mod dispatch;
mod doctor;
mod drain;
mod events;
mod exec;
mod explain;
mod fetch;
mod generate;
mod gpu;
mod image;
mod import;
mod logs;
mod model;
mod new;
mod output;
mod ps;
mod queue;
mod secret;
mod session;
mod shelf;
mod show;
mod shutdown;
mod spec;
mod status;
mod template;
mod token;
mod top;
mod usage;
mod verbs;
mod wait;
mod whose;
mod workspace;

use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::api::client::{Client, ClientError};
use crate::config::Paths;
pub use verbs::{Cli, ContractVerb, Verb};

/// Exit codes of the command line; documented in the README.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// Something could not be done; the reason is on standard error.
    Failure,
    /// The daemon does not answer. (2 is clap's, for arguments.)
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
            Exit::Unreachable => 3,
            Exit::NotFound => 4,
            Exit::JobFailed => 5,
            Exit::JobStopped => 6,
            Exit::Command(code) => code,
        }
    }
}

/// What was typed. A line without a verb is answered with the verbs that are for people: clap's own error lists all.
pub fn arguments() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        if error.kind() == ErrorKind::MissingSubcommand {
            output::aside(&Cli::command().render_help().to_string());
            crate::sys::process::exit_now(2);
        }
        error.exit()
    })
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

/// What the daemon refuses is told in its words; the code says which kind it was.
fn explain_failure(error: anyhow::Error) -> anyhow::Result<Exit> {
    if error.downcast_ref::<NotFound>().is_some() {
        output::error(&format!("{error:#}"));
        return Ok(Exit::NotFound);
    }
    let code = match error.downcast_ref::<ClientError>() {
        Some(ClientError::NotRunning { .. }) => Exit::Unreachable,
        Some(ClientError::Refused { status: 404, .. }) => Exit::NotFound,
        Some(ClientError::Refused { .. }) => Exit::Failure,
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
    fn help_has_a_word_on_every_verb_and_argument() {
        let mut found = Vec::new();
        without_a_word(&Cli::command(), "trainyard", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}
