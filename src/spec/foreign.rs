//! Words of other systems for what a job file has by another name: what is no slip of the pen, but another language.

/// Where what somebody means by a word stands here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    /// At a key, by its path in the table of keys.
    Key(&'static str),
    /// At no key: what to do instead.
    Said(&'static str),
    /// The same, wherever the word stands.
    SaidAnywhere(&'static str),
}

/// Elsewhere one word has a number or a sort of cards.
const CARDS: &str = "how many cards is `resources.gpu`, of which sort `resources.gpu_type`";

/// Without `_` and `-`, in small letters. Of Docker, Compose, Kubernetes, Slurm and the training platforms.
const WORDS: &[(&str, Meant)] = &[
    ("cmd", Meant::Key("command")),
    ("entrypoint", Meant::Key("command")),
    ("run", Meant::Key("command")),
    ("script", Meant::Key("command")),
    ("args", Meant::Key("params")),
    ("arguments", Meant::Key("params")),
    ("hyperparameters", Meant::Key("params")),
    ("hparams", Meant::Key("params")),
    ("environment", Meant::Key("env")),
    ("cpus", Meant::Key("resources.cpu")),
    ("cpucount", Meant::Key("resources.cpu")),
    ("cpunumber", Meant::Key("resources.cpu")),
    ("gpus", Meant::Key("resources.gpu")),
    ("nvidia.com/gpu", Meant::Key("resources.gpu")),
    ("accelerator", Meant::SaidAnywhere(CARDS)),
    ("accelerators", Meant::SaidAnywhere(CARDS)),
    ("acceleratorcount", Meant::Key("resources.gpu")),
    ("acceleratortype", Meant::Key("resources.gpu_type")),
    ("gpucount", Meant::Key("resources.gpu")),
    ("gpunumber", Meant::Key("resources.gpu")),
    ("numgpus", Meant::Key("resources.gpu")),
    ("mem", Meant::Key("resources.memory")),
    ("memorymb", Meant::Key("resources.memory")),
    ("ram", Meant::Key("resources.memory")),
    ("shmsize", Meant::Key("resources.shm")),
    ("shmmb", Meant::Key("resources.shm")),
    ("replicas", Meant::Key("roles.*.count")),
    ("instances", Meant::Key("roles.*.count")),
    ("instancecount", Meant::Key("roles.*.count")),
    ("nodes", Meant::Key("roles.*.count")),
    ("nodecount", Meant::Key("roles.*.count")),
    ("numnodes", Meant::Key("roles.*.count")),
    ("numworkers", Meant::Key("roles.*.count")),
    ("workers", Meant::Key("roles.*.count")),
    ("tasknumber", Meant::Key("roles.*.count")),
    ("taskroles", Meant::Key("roles")),
    ("minsucceeded", Meant::Key("roles.*.min_succeeded")),
    ("minsuccess", Meant::Key("roles.*.min_succeeded")),
    ("minsucceededtaskcount", Meant::Key("roles.*.min_succeeded")),
    ("minfailed", Meant::Key("roles.*.min_failed")),
    ("minfailedtaskcount", Meant::Key("roles.*.min_failed")),
    ("volumes", Meant::Key("mounts")),
    ("dependson", Meant::Key("after")),
    ("dependencies", Meant::Key("after")),
    ("timeout", Meant::Key("max_duration")),
    ("time", Meant::Key("max_duration")),
    ("timelimit", Meant::Key("max_duration")),
    ("walltime", Meant::Key("max_duration")),
    ("maxretries", Meant::Key("retries")),
    ("retrycount", Meant::Key("retries")),
    ("backofflimit", Meant::Key("retries")),
    ("name", Meant::Said("a job is called as its file is, without .toml")),
    ("jobname", Meant::Said("a job is called as its file is, without .toml")),
    ("workdir", Meant::Said("a command starts in /code; begin it with `cd DIR &&` for another place")),
    ("workingdir", Meant::Said("a command starts in /code; begin it with `cd DIR &&` for another place")),
    ("cwd", Meant::Said("a command starts in /code; begin it with `cd DIR &&` for another place")),
];

/// What a word of another system means here.
pub(super) fn meant(word: &str) -> Option<Meant> {
    let plain: String = word.chars().filter(|letter| !"_-".contains(*letter)).collect::<String>().to_lowercase();
    WORDS.iter().find(|(known, _)| *known == plain).map(|(_, meant)| *meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::keys;

    #[test]
    fn words_for_cards_and_times_lead_to_ours_and_a_part_of_a_card_to_shares() {
        for (text, said) in [
            ("resources.\"nvidia.com/gpu\" = 1", "unknown key `resources.nvidia.com/gpu`; did you mean `gpu`?"),
            (
                "accelerator = 'A100'",
                "unknown key `accelerator`; how many cards is `resources.gpu`, of which sort `resources.gpu_type`",
            ),
            ("resources.accelerator = 1", "unknown key `resources.accelerator`; how many cards is `resources.gpu`"),
            ("resources.accelerator_type = 'A100'", "did you mean `gpu_type`?"),
            ("walltime = '1h'", "unknown key `walltime`; did you mean `max_duration`?"),
            ("time = '1h'", "unknown key `time`; did you mean `max_duration`?"),
            (
                "resources.gpu = 0.5",
                "`resources.gpu` takes an integer, not a float; a part of a card is a share of its memory, as `gpu_memory = \"20GiB\"`",
            ),
            ("[roles.w]\nresources.gpu = 0.5", "not a float; a part of a card is a share of its memory"),
        ] {
            let found = crate::spec::parse("x.toml", text).1;
            assert!(found.len() == 1 && found[0].to_string().contains(said), "{text}: {found:?}");
        }
        let found = crate::spec::parse("x.toml", "resources.gpu = 'one'").1;
        assert!(!found[0].to_string().contains("gpu_memory"), "{found:?}");
    }

    #[test]
    fn every_word_leads_to_a_key_that_there_is_and_none_is_a_key_itself() {
        for (word, meant) in WORDS {
            if let Meant::Key(path) = meant {
                assert!(keys::lookup(path).is_some(), "{word}: {path}");
            }
            assert!(keys::lookup(word).is_none(), "{word} is a key");
        }
    }
}
