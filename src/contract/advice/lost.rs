//! What a job file says and nobody hears: a strategy without its roles, arguments behind a command that does not take them.

use super::super::Sample;
use super::super::command::entry;
use super::super::shell::unquoted;
use super::Advice;
use crate::spec::strategy::starts_servers;
use crate::spec::{Command, Framework, Image, JobSpec, Role, Strategy};

/// Roles that hold parameters for others.
const SERVERS: [&str; 4] = ["ps", "pserver", "pservers", "server"];

/// A strategy whose servers nobody plays, or servers that nobody asks.
pub(super) fn roles(spec: &JobSpec) -> Option<Advice> {
    let is_server = |name: &str| SERVERS.contains(&name.to_lowercase().as_str());
    let server = spec.members().find(|role| is_server(role.name.as_str()));
    let workers: u32 = spec.members().filter(|role| !role.serves).map(|role| role.count).sum();
    let (framework, strategy) = (spec.framework?, spec.strategy?);
    let name = match framework {
        Framework::Paddle => "pserver",
        Framework::MxNet | Framework::MindSpore => "server",
        // Its workers can do without.
        _ => "",
    };
    let text = match server {
        None if strategy == Strategy::Ps && !name.is_empty() && workers > 1 && !starts_servers(spec.contract) => {
            format!("strategy \"{strategy}\" keeps parameters on servers, and no role is one: add [roles.{name}]")
        }
        Some(server) if strategy == Strategy::AllReduce => {
            format!("strategy \"{strategy}\" asks no servers, yet role {} is started: take it out", server.name)
        }
        _ => return None,
    };
    Some(Advice { key: "strategy", text })
}

/// Roles whose names say what a task of TensorFlow's cluster is.
const OF_TENSORFLOW: [&str; 9] =
    ["chief", "master", "worker", "ps", "server", "pserver", "evaluator", "tensorboard", "scheduler"];

/// A role of a name that TensorFlow has nothing of, among others.
pub(super) fn unknown_role(spec: &JobSpec) -> Option<Advice> {
    if spec.framework != Some(Framework::TensorFlow) || spec.members().count() < 2 {
        return None;
    }
    let is_known = |role: &Role| OF_TENSORFLOW.contains(&role.name.as_str().to_lowercase().as_str());
    let role = spec.members().find(|role| !is_known(role))?;
    let text = format!(
        "TensorFlow has no role {}: its tasks are told as workers; it knows chief, worker, ps and evaluator",
        role.name
    );
    Some(Advice { key: "roles", text })
}

/// Arguments that no program gets.
pub(super) fn params(spec: &JobSpec) -> Option<Advice> {
    let sample = Sample::of("job.toml", spec);
    let has_entry = |role: &Role| sample.tasks(spec).any(|task| task.role.name == role.name && entry(&task).is_some());
    let is_lost = |role: &&Role| !role.params.is_empty() && is_deaf(&role.command, &role.image);
    let role = spec.members().filter(is_lost).find(|role| role.command != Command::Default || !has_entry(role))?;
    let text = match &role.command {
        Command::Shell(text) => format!(
            "`params` are put behind `command`, where {}: give the whole line to a script, which takes them as \"$@\"",
            if ends_in_comment(text) { "a comment hides them" } else { "only the last program of the pipe gets them" }
        ),
        _ => format!("role {} has `params` and no `command` that takes them", role.name),
    };
    Some(Advice { key: "params", text })
}

/// Packages that PyPI has under the names of platforms' own, which are not there.
const NAMESAKES: [(&str, &str); 2] = [("moxing", "Huawei's MoXing"), ("uai-sdk", "UCloud's SDK")];

/// What somebody else's package would be installed for.
pub(super) fn namesake(spec: &JobSpec) -> Option<Advice> {
    let named = |role: &Role| {
        let Command::Shell(text) = &role.command else { return None };
        let behind = ["pip install", "pip3 install"].into_iter().flat_map(|pip| text.split(pip).skip(1));
        let packages = behind.filter_map(|behind| behind.split([';', '&', '|', '\n']).next());
        let mut words = packages.flat_map(|line| line.split(|c: char| c.is_whitespace() || "=<>~\"'".contains(c)));
        words.find_map(|word| NAMESAKES.into_iter().find(|(name, _)| *name == word))
    };
    let (name, meant) = spec.members().find_map(named)?;
    let text = format!(
        "`pip install {name}` gets a package that has nothing to do with {meant}, which is not on PyPI: scripts that need it do not \
         run here as they are"
    );
    Some(Advice { key: "command", text })
}

fn is_deaf(command: &Command, image: &Image) -> bool {
    match command {
        Command::Shell(text) => ends_in_comment(text) || ends_in_pipe(text),
        Command::Exec(_) => false,
        // An image has a command of its own, mostly.
        Command::Default => *image == Image::Host,
    }
}

fn ends_in_comment(text: &str) -> bool {
    // A comment ends with its line, and what stands behind it is heard.
    let mut comment = false;
    for (begins_word, c) in unquoted(text.trim_end()) {
        match c {
            '\n' => comment = false,
            '#' if begins_word => comment = true,
            _ => {}
        }
    }
    comment
}

fn ends_in_pipe(text: &str) -> bool {
    let plain: String = unquoted(text).map(|(_, c)| c).collect();
    if plain.contains(['(', '`']) {
        // What runs within a line is no part of its pipe; who writes so knows what they do.
        return false;
    }
    // What stands behind another command is no part of its pipe.
    let commands = plain.replace(">|", ">").replace("||", ";").replace("&&", ";");
    commands.trim_end().rsplit([';', '&', '\n']).next().is_some_and(|last| last.contains('|'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        let (spec, found) = crate::spec::parse("a.toml", text);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        [roles(&spec), unknown_role(&spec), params(&spec)].into_iter().flatten().map(|advice| advice.text).collect()
    }

    #[test]
    fn a_strategy_without_its_roles_is_told() {
        let of = |framework: &str, strategy: &str, roles: &str| {
            told(&format!("framework = \"{framework}\"\n{strategy}command = \"x\"\n{roles}"))
        };
        let (workers, ps) = ("[roles.worker]\ncount = 2\n", "strategy = \"ps\"\n");
        assert!(of("mindspore", ps, workers).contains("add [roles.server]"));
        assert!(of("paddle", ps, workers).contains("add [roles.pserver]"));
        assert!(of("mxnet", "", workers).contains("add [roles.server]"));
        assert_eq!(of("paddle", ps, &format!("{workers}[roles.pserver]")), "");
        assert_eq!(of("tensorflow", "", workers), "", "workers alone are a cluster as well");
        assert_eq!(of("paddle", ps, "[roles.worker]"), "", "one task keeps them itself");
        assert!(
            of("tensorflow", "strategy = \"allreduce\"\n", &format!("{workers}[roles.ps]"))
                .contains("role ps is started")
        );
    }

    #[test]
    fn a_role_that_tensorflow_has_not_is_told() {
        let of = |roles: &str| told(&format!("framework = \"tensorflow\"\ncommand = \"x\"\n{roles}"));
        assert!(of("[roles.worker]\n[roles.foo]\n").contains("no role foo: its tasks are told as workers"));
        assert_eq!(of("[roles.Chief]\n[roles.worker]\n[roles.ps]\n[roles.evaluator]\n"), "");
        assert_eq!(of("[roles.train]\ncount = 2\n"), "", "one role is what it is");
    }

    #[test]
    fn arguments_that_no_program_gets_are_told() {
        let of = |command: &str| told(&format!("{command}params.a = 1"));
        assert!(of("command = 'python t.py # as ever'\n").contains("a comment hides them"));
        assert!(of("command = 'python t.py | tee log'\n").contains("last program of the pipe"));
        assert!(of("").contains("no `command` that takes them"));
        for named in [
            "sagemaker\"\nparams.sagemaker_program = \"x.py",
            "sagemaker\"\nenv.SAGEMAKER_PROGRAM = \"x.py",
            "tione/1\"\nparams.ti_program = \"x.sh",
        ] {
            assert_eq!(of(&format!("contract = \"{named}\"\n")), "", "it runs with --a 1");
        }
        assert!(of("contract = \"tione\"\nparams.ti_program = \"x.py\"\n").contains("no `command` that takes them"));
        for heard in [
            "cd x && python t.py",
            "python t.py '#1'",
            "a | b; python t.py",
            "a | b && python t.py",
            "echo a#b",
            "x || y",
            "echo \\| z",
            "a >| log",
            "a | b & python t.py",
            "python t.py $(ls | wc -l)",
            "# first\npython t.py",
        ] {
            assert_eq!(of(&format!("command = {heard:?}\n")), "", "{heard}");
        }
    }
}
