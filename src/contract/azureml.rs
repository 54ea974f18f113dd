//! Azure Machine Learning: a command with `${{inputs.NAME}}`, processes counted, `./outputs` and `./logs` kept.

use super::command::quote;
use super::shell::{self, Open};
use super::topology::{self, Alone, Pairs, TfConfig, pair};
use super::{Task, host, join, parameters};
use crate::spec::{Command, Framework, Platform, Role};

const PLACE: &str = "${{";
/// Most places of a command that a shell reads: for each it is read again as far as there.
pub(super) const PLACES_MAX: usize = 256;
const INPUT: &str = "${{inputs.";
const OUTPUT: &str = "${{outputs.";

/// A command that names its inputs gets its parameters by them.
pub(super) fn arguments(task: &Task<'_>, command: &str) -> Vec<String> {
    if command.contains(INPUT) { Vec::new() } else { parameters::with_spaces(&task.role.params) }
}

/// What a value that is put into a text is read by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadBy {
    Shell,
    /// The program itself, as a word.
    Program,
}

/// Puts parameters and paths in the place of their names. Each is the word that it would be by itself, or a part of the one that it
/// stands in.
pub(super) fn substitute(task: &Task<'_>, command: &str, read_by: ReadBy) -> String {
    let (mut out, mut rest, mut places) = (String::with_capacity(command.len()), command, 0);
    while let Some((before, behind)) = rest.split_once(PLACE) {
        out.push_str(before);
        let place = behind.split_once("}}").and_then(|(name, after)| Some((value(task, name)?, after)));
        rest = match place {
            Some((value, after)) => {
                places += 1;
                let text = match read_by {
                    ReadBy::Shell if places <= PLACES_MAX => within(&out, &value),
                    // The job is refused.
                    ReadBy::Shell => quote(&value),
                    ReadBy::Program => value,
                };
                out.push_str(&text);
                after
            }
            None => {
                out.push_str(PLACE);
                behind
            }
        };
    }
    out + rest
}

/// What stands in the place of `inputs.NAME` or `outputs.NAME`; each output is a directory of the run's.
fn value(task: &Task<'_>, name: &str) -> Option<String> {
    let input = || given(task, name.strip_prefix("inputs.")?);
    input().or_else(|| Some(format!("/output/{}", name.strip_prefix("outputs.")?)))
}

fn given(task: &Task<'_>, input: &str) -> Option<String> {
    let param = task.role.params.iter().find(|(key, _)| key == input).map(|(_, param)| parameters::text(param));
    let dataset = || {
        let dataset = task.spec.datasets.iter().find(|dataset| dataset.seen_as().as_str() == input)?;
        let several = task.spec.datasets.len() > 1;
        Some(if several { format!("/dataset/{}", dataset.seen_as()) } else { "/dataset".to_owned() })
    };
    param.or_else(dataset)
}

/// The value as a shell is to read it behind `before`.
fn within(before: &str, value: &str) -> String {
    let quoted = quote(value);
    // It means the same everywhere.
    if quoted == value {
        return quoted;
    }
    match shell::open_at_end(before) {
        Open::Nothing => quoted,
        Open::Single => value.replace('\'', r"'\''"),
        Open::Double => escaped(value, r#""\$`"#),
        Open::Document => escaped(value, r"\$`"),
        // Its next line would be none.
        Open::Comment => value.replace(['\n', '\r'], " "),
    }
}

fn escaped(value: &str, letters: &str) -> String {
    let one = |letter| [Some('\\').filter(|_| letters.contains(letter)), Some(letter)];
    value.chars().flat_map(one).flatten().collect()
}

/// Directories of the outputs that a command names.
pub(super) fn outputs(role: &Role, platform: Platform) -> Vec<String> {
    let text = match &role.command {
        Command::Shell(text) => text.clone(),
        Command::Exec(words) => words.join(" "),
        Command::Default => return Vec::new(),
    };
    let names = text.split(OUTPUT).skip(1).filter_map(|rest| rest.split("}}").next());
    let plain = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    names.filter(|_| platform == Platform::AzureMl).filter(plain).map(|name| format!("/output/{name}")).collect()
}

/// How many places a command has that a shell reads.
pub(super) fn places(command: &Command) -> usize {
    if let Command::Shell(text) = command { text.matches(PLACE).count() } else { 0 }
}

/// The parameters and datasets that a command asks for and nobody gives.
pub(super) fn unknown_inputs(task: &Task<'_>, command: &str) -> Vec<String> {
    let asked = command.split(INPUT).skip(1).filter_map(|rest| rest.split("}}").next());
    asked.filter(|name| given(task, name).is_none()).map(str::to_owned).collect()
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let job = &task.identity.key.job;
    let id = format!("{job}-{}", task.identity.run);
    let nodes = topology::nodes(task);
    let mut out = vec![
        pair("AZUREML_RUN_ID", &id),
        pair("AZUREML_ROOT_RUN_ID", &id),
        pair("AZUREML_EXPERIMENT_ID", job),
        // A run of MLflow's that nobody has begun could not be written to: scripts begin their own, in files of the run's.
        pair("MLFLOW_TRACKING_URI", "file:///output/mlruns"),
        pair("MLFLOW_ALLOW_FILE_STORE", true),
        pair("MLFLOW_EXPERIMENT_NAME", job),
        pair("AZUREML_CR_EXECUTION_WORKING_DIR_PATH", "/code"),
        pair("AZ_BATCH_HOST_LIST", join(nodes.iter().map(host::primary), ",")),
    ];
    // Tasks that only serve have no rank.
    out.extend(topology::rank(task).into_iter().flat_map(|rank| {
        [
            pair("AZUREML_CR_NODE_RANK", rank),
            pair("AZUREML_PROCESS_NAME", format!("rank_{rank}")),
            pair("NODE_RANK", rank),
        ]
    }));
    out.extend(nodes.first().into_iter().flat_map(|master| {
        [
            pair("AZ_BATCH_MASTER_NODE", topology::endpoint(master, 6105)),
            pair("AZ_BATCHAI_MPI_MASTER_NODE", host::primary(master)),
        ]
    }));
    for (key, param) in &task.role.params {
        out.push(pair(format!("AZUREML_PARAMETER_{key}"), parameters::text(param)));
    }
    match task.spec.framework {
        Some(Framework::TensorFlow) => {
            let style = TfConfig { alone: Alone::Told, ..topology::TF_PLAIN };
            out.extend(topology::tf_config(task, style).map(|config| pair("TF_CONFIG", config)));
        }
        Some(Framework::PyTorch | Framework::DeepSpeed) => {
            out.extend(topology::torch(task, 6105));
            // One process a node: its rank on the node is 0. `torchrun` makes more of them, with their own numbers.
            out.push(pair("LOCAL_RANK", 0));
            out.extend(topology::torchrun(task, 6105));
        }
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Sample;

    fn filled(command: &str, value: &str) -> String {
        let command = toml::Value::from(command);
        let value = toml::Value::from(value);
        let text = format!(
            "contract = \"azureml\"\ndatasets = [\"d\"]\nparams = {{ u = {value}, n = 0.1 }}\ncommand = {command}\n"
        );
        let spec = crate::spec::parse("j.toml", &text).0.unwrap();
        let sample = Sample::of("j.toml", &spec);
        let task = sample.tasks(&spec).next().unwrap();
        let Command::Shell(text) = &task.role.command else { panic!() };
        substitute(&task, text, ReadBy::Shell)
    }

    #[test]
    fn a_value_is_read_by_the_shell_as_the_word_or_the_part_of_one_that_it_stands_in() {
        const VALUES: [&str; 5] = ["two words", "it's \"so\"", "a$HOME`id`\\b", "*", "plain"];
        #[expect(clippy::disallowed_methods, reason = "the shell is the judge here")]
        let printed = |text: &str| {
            let output = std::process::Command::new("/bin/sh").args(["-c", text]).output().unwrap();
            assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        for value in VALUES {
            for (command, seen) in [
                ("printf '<%s>' ${{inputs.u}}", format!("<{value}>")),
                ("printf '<%s>' --x=${{inputs.u}}", format!("<--x={value}>")),
                ("printf '<%s>' \"a ${{inputs.u}} ${{inputs.n}}\" b", format!("<a {value} 0.1><b>")),
                ("printf '<%s>' 'a ${{inputs.u}}' ${{inputs.u}}", format!("<a {value}><{value}>")),
                ("printf '<%s>' \"$(printf '%s' ${{inputs.u}})\"", format!("<{value}>")),
                ("printf '<%s>' \"$(printf '%s' \"${{inputs.u}}\")\"", format!("<{value}>")),
                ("# don't\nprintf '<%s>' ${{inputs.u}} # it's ${{inputs.u}}", format!("<{value}>")),
                ("cat <<E\ndon't ${{inputs.u}}\nE\nprintf '<%s>' ${{inputs.u}}", format!("don't {value}\n<{value}>")),
                ("cat <<'E'\n${{inputs.u}}\nE", format!("{value}\n")),
                ("printf '<%s>' ${{inputs.d}} ${{outputs.m}}", "</dataset></output/m>".to_owned()),
            ] {
                let text = filled(command, value);
                assert_eq!(printed(&text), seen, "{command} with {value}: {text}");
            }
        }
        // What a value holds is no name of another.
        assert_eq!(filled("t '${{inputs.u}}'", "${{inputs.n}}"), "t '${{inputs.n}}'");
        assert_eq!(filled("t ${{inputs.n}", "x"), "t ${{inputs.n}");
    }

    #[test]
    fn words_of_an_array_are_the_values_as_they_are() {
        let text = "contract = \"azureml\"\nparams.u = \"two \\\"words\"\ncommand = [\"echo\", \"${{inputs.u}}\", \"--x=${{inputs.u}}\"]\n";
        let spec = crate::spec::parse("j.toml", text).0.unwrap();
        let sample = Sample::of("j.toml", &spec);
        let task = sample.tasks(&spec).next().unwrap();
        assert_eq!(crate::contract::command::line(&task), ["echo", "two \"words", "--x=two \"words"]);
    }
}
