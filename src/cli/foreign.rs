//! Verbs that other systems have: who types one is told ours.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What is typed elsewhere (docker, kubectl, Slurm, systemctl, OpenPAI), and what to do here.
const VERBS: [(&[&str], &str); 14] = [
    (&["list", "ls", "get", "squeue", "jobs"], "`trainyard ps` lists jobs, `trainyard queue` those that wait"),
    (
        &["inspect", "describe", "info", "scontrol"],
        "`trainyard status JOB` tells of a job, `trainyard show JOB` what its file says",
    ),
    (
        &["run", "submit", "create", "apply", "start", "sbatch", "srun", "launch"],
        "a job file in jobs.d is a job: `trainyard new JOB` writes one",
    ),
    (&["kill", "cancel", "scancel", "terminate", "abort"], "`trainyard stop JOB` ends its run"),
    (
        &["delete", "remove", "del", "destroy"],
        "`trainyard rm JOB` removes what a job has left, with `--file` its file too",
    ),
    (&["retry", "resubmit"], "`trainyard rerun JOB` begins a new run"),
    (&["attach", "ssh", "shell", "sh"], "`trainyard exec -it JOB -- sh` opens a shell in a task"),
    (&["log", "tail"], "`trainyard logs JOB` prints its output, with `-f` as it comes"),
    (
        &["pull", "push", "images", "rmi", "load"],
        "`trainyard image pull NAME` gets an image, `trainyard image ls` lists them",
    ),
    (&["nodes", "sinfo", "gpus", "nvidia-smi"], "`trainyard gpu` shows the cards and who has them"),
    (&["sacct", "billing", "quota"], "`trainyard usage` tells who has used what, `trainyard workspace` what is kept"),
    (&["stats", "monitor", "htop"], "`trainyard top` shows what jobs and cards do"),
    (&["pause", "suspend", "resume", "unpause"], "`state = \"held\"` in the job file keeps it from starting"),
    (&["validate", "lint", "verify"], "`trainyard check FILE` tells what is wrong with a job file"),
];

/// Says what is meant where a verb is another system's, and `--` where `exec` lacks it. Verbs that are for nobody are not proposed.
pub(super) fn advise(error: &mut clap::Error) {
    let advice = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(typed))) if is_of(error, "trainyard [OPTIONS]") => {
            ours(typed)
        }
        (ErrorKind::MissingRequiredArgument, _) if is_of(error, "trainyard exec") => {
            Some("the command stands behind `--`: `trainyard exec JOB -- COMMAND`")
        }
        _ => None,
    };
    match advice {
        Some(advice) => {
            error.remove(ContextKind::SuggestedSubcommand);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(advice)]));
        }
        None => without_hidden(error),
    }
}

fn ours(typed: &str) -> Option<&'static str> {
    VERBS.iter().find(|(words, _)| words.contains(&typed)).map(|(_, advice)| *advice)
}

/// Whether its usage begins so.
fn is_of(error: &clap::Error, verb: &str) -> bool {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    usage.is_some_and(|usage| usage.contains(verb))
}

fn without_hidden(error: &mut clap::Error) {
    let Some(ContextValue::Strings(similar)) = error.remove(ContextKind::SuggestedSubcommand) else { return };
    let shown: Vec<String> = similar.into_iter().filter(|verb| !super::is_hidden(verb)).collect();
    if !shown.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(shown));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, Verb};
    use super::*;

    fn told(line: &str) -> String {
        let mut error = Cli::try_parse_from(line.split(' ')).map(|_| ()).unwrap_err();
        advise(&mut error);
        error.to_string()
    }

    #[test]
    fn a_verb_of_another_system_is_answered_with_ours_and_none_of_the_daemon_s_own_is_proposed() {
        for (typed, ours) in [("list", "trainyard ps"), ("delete", "trainyard rm"), ("squeue", "trainyard queue")] {
            let told = told(&format!("trainyard {typed}"));
            assert!(told.contains(ours) && !told.contains("similar"), "{told}");
        }
        assert!(!told("trainyard image list").contains("trainyard ps"), "{}", told("trainyard image list"));
        assert!(told("trainyard statsu").contains("'status'"), "{}", told("trainyard statsu"));
        assert!(!told("trainyard registri").contains("registry"), "{}", told("trainyard registri"));
        assert!(told("trainyard exec job bash").contains("behind `--`"), "{}", told("trainyard exec job bash"));
    }

    #[test]
    fn no_word_of_others_is_a_verb_of_ours() {
        let ours = <Verb as clap::Subcommand>::augment_subcommands(clap::Command::new("trainyard"));
        for word in VERBS.iter().flat_map(|(words, _)| *words) {
            assert!(ours.find_subcommand(word).is_none(), "{word}");
        }
    }
}
