//! The command line of a task: what is shown is what runs.

use super::{Task, azureml, kubeflow, modelarts, mpi, paddle, pai, parameters, sagemaker, tione, uai, volcano};
use crate::spec::{Command, Platform, Profile};

/// The arguments that are executed.
pub fn line(task: &Task<'_>) -> Vec<String> {
    let (role, platform) = (task.role, task.spec.contract.platform);
    match &role.command {
        Command::Default => {
            let own = if platform == Platform::SageMaker { sagemaker::entry(task) } else { None };
            let words = own.unwrap_or_else(|| task.inside.command.clone());
            if words.is_empty() {
                return vec!["sleep".to_owned(), "infinity".to_owned()];
            }
            words.into_iter().chain(arguments(task, "")).collect()
        }
        Command::Exec(words) => {
            let whole = words.join(" ");
            let filled = words.iter().map(|word| filled(task, word));
            filled.chain(arguments(task, &whole)).collect()
        }
        Command::Shell(text) => {
            let mut out = filled(task, text.trim_end());
            for argument in arguments(task, text) {
                out.push(' ');
                out.push_str(&quote(&argument));
            }
            vec!["/bin/sh".to_owned(), "-c".to_owned(), out]
        }
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

fn filled(task: &Task<'_>, text: &str) -> String {
    match task.spec.contract.platform {
        Platform::AzureMl => azureml::substitute(task, text),
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
