//! What a job file says and nobody hears: a strategy without its roles, arguments behind a command that does not take them.

use super::super::command::{arguments, entry};
use super::super::shell::{self, Last, Word};
use super::super::{Sample, Task};
use super::Advice;
use crate::spec::strategy::starts_servers;
use crate::spec::{Command, Framework, Image, JobSpec, Main, Platform, Role, Strategy};

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
        // It may be what the framework means where the file names none.
        Some(server) if strategy == Strategy::AllReduce => {
            let helps = match framework.strategies().contains(&Strategy::Ps) {
                true => "write strategy = \"ps\" where it keeps parameters, else take it out",
                false => "take it out",
            };
            format!(
                "{framework} trains by strategy \"{strategy}\" here, which asks no servers, yet role {} is started: {helps}",
                server.name
            )
        }
        _ => return None,
    };
    Some(Advice::of_job("strategy", text))
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
    Some(Advice::of_role(role, &[], text))
}

/// Arguments that no program gets.
pub(super) fn params(spec: &JobSpec) -> Option<Advice> {
    let sample = Sample::of("job.toml", spec);
    let of_programs = || sample.tasks(spec).filter(|task| task.index == 0 && !task.role.is_service);
    of_programs().find_map(|task| lost(&task)).or_else(|| of_ranks(spec, &of_programs().collect::<Vec<_>>()))
}

/// Platforms that tell parameters by variables or files as well, so that ranks find those of the task where they run.
const TOLD: [Platform; 4] = [Platform::SageMaker, Platform::Tione, Platform::Pai, Platform::AzureMl];

/// What a role that waits for ranks says of its own, and the one that starts them does not.
fn of_ranks(spec: &JobSpec, firsts: &[Task<'_>]) -> Option<Advice> {
    let starts = firsts.iter().find(|task| !task.is_idle() && task.role.main != Main::No)?.role;
    let is_own = |role: &Role| role.params.iter().any(|param| !starts.params.contains(param));
    let lost = firsts.iter().find(|task| task.is_idle() && is_own(task.role)).map(|task| task.role);
    let role = lost.filter(|_| !TOLD.contains(&spec.contract.platform))?;
    let text = format!(
        "role {} runs no command of its own, so nobody gets its `params`: role {} starts ranks on its tasks, with arguments of its \
         own `params` and of the job's",
        role.name, starts.name
    );
    Some(Advice::of_role(role, &["params"], text))
}

fn lost(task: &Task<'_>) -> Option<Advice> {
    let has_params = !task.role.params.is_empty();
    let text = match &task.role.command {
        Command::Shell(text) if !arguments(task, text).is_empty() => lost_behind(has_params, &deaf(text)?),
        Command::Exec(words) if !arguments(task, &words.join(" ")).is_empty() => {
            lost_behind(has_params, &deaf_text(shell::text_at_end(words)?)?)
        }
        // An image has a command of its own, mostly.
        Command::Default if has_params && task.role.image == Image::Host && entry(task).is_none() => {
            format!("role {} has `params` and no `command` that takes them", task.role.name)
        }
        _ => return None,
    };
    Some(Advice::of_role(task.role, &["params"], text))
}

fn lost_behind(has_params: bool, why: &str) -> String {
    let what = if has_params { "`params` are" } else { "what the platform gives a script is" };
    format!("{what} put behind `command`, where {why}: give the whole line to a script, which takes them as \"$@\"")
}

/// A line that no shell reads.
pub(super) fn quotes(spec: &JobSpec) -> Option<Advice> {
    let open = |role: &Role| match &role.command {
        // To some shells `$'` begins a quote in which a backslash takes the next one's meaning.
        Command::Shell(text) if !text.contains("$'") => match shell::last(text)?.1 {
            Last::Quote(quote) => Some(quote),
            _ => None,
        },
        _ => None,
    };
    let (role, quote) = spec.roles.iter().find_map(|role| Some((role, open(role)?)))?;
    let text = format!(
        "a {quote} of `command` is not closed, so no shell runs it: close it, or write \\{quote} for the letter itself"
    );
    Some(Advice::of_role(role, &["command"], text))
}

/// Programs that end or wait, and take no arguments of others.
const ENDING: [&str; 8] = ["exit", "return", "true", "false", ":", "wait", "break", "continue"];

/// What becomes of what is put behind a text that a shell is given, where it is `$0`, `$1` and so on.
fn deaf_text(text: &str) -> Option<String> {
    let asked: Vec<char> =
        text.split('$').skip(1).filter_map(|rest| rest.trim_start_matches(['{', '!']).chars().next()).collect();
    let takes = |letter: &char| letter.is_ascii_digit() || "@*#".contains(*letter);
    let takes_unnamed = ["getopts", "shift"].iter().any(|word| text.contains(word));
    if !takes_unnamed && !asked.iter().any(takes) {
        return Some("`-c` gives them to a text that asks for none".to_owned());
    }
    let why = "the first of them is $0 to the text behind `-c`, as no word such as sh stands between";
    (!asked.contains(&'0')).then(|| why.to_owned())
}

/// Words of the shell's own behind which it takes none.
const CLOSING: [&str; 4] = ["}", "done", "fi", "esac"];

/// What becomes of what is put behind the text, if it reaches no program there, or not the one that is meant.
fn deaf(text: &str) -> Option<String> {
    let (command, last) = shell::last(text.trim_end())?;
    let closes = |word: &Word| !word.is_quoted && CLOSING.contains(&word.text.as_str());
    let closed = |word: &str| Some(format!("behind `{word}` nothing can stand"));
    let words: Vec<String> = command.words.iter().map(|word| word.text.clone()).collect();
    match (last, command.behind, command.words.as_slice()) {
        (Last::Document(mark), ..) => Some(format!("the text of <<{mark} would not end")),
        (Last::Comment, ..) => Some("a comment hides them".to_owned()),
        // It is told by itself.
        (Last::Quote(_), ..) => None,
        (_, '\n', []) => None,
        (_, ')', []) => closed(")"),
        (_, _, []) => Some("they would be a command of their own".to_owned()),
        // `fi fi` closes two.
        (_, _, [.., last]) if command.words.iter().all(closes) => closed(&last.text),
        (_, '|', _) => Some("only the last program of the pipe gets them".to_owned()),
        (_, _, [first, ..]) if ENDING.contains(&first.text.as_str()) => Some(format!("`{}` gets them", first.text)),
        _ => deaf_text(shell::text_at_end(&words)?),
    }
}

/// Packages that PyPI has under the names of platforms' own, which are not there.
const NAMESAKES: [(&str, &str); 2] = [("moxing", "Huawei's MoXing"), ("uai-sdk", "UCloud's SDK")];

/// What somebody else's package would be installed for.
pub(super) fn namesake(spec: &JobSpec) -> Option<Advice> {
    let installed = |words: &Vec<String>| {
        let pip = words.windows(2).position(|pair| shell::name(&pair[0]).starts_with("pip") && pair[1] == "install")?;
        let packages = words.iter().skip(pip + 2).filter_map(|word| word.split(|c| "=<>~![ ".contains(c)).next());
        packages.into_iter().find_map(|package| NAMESAKES.into_iter().find(|(name, _)| *name == package))
    };
    let named = |role: &Role| shell::commands(&role.command).iter().find_map(installed);
    let (role, (name, meant)) = spec.members().find_map(|role| Some((role, named(role)?)))?;
    let text = format!(
        "`pip install {name}` gets a package that has nothing to do with {meant}, which is not on PyPI: scripts that need it do not \
         run here as they are"
    );
    Some(Advice::of_role(role, &["command"], text))
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
        // Which of both is meant, a file that names no strategy does not say.
        for framework in ["paddle", "mindspore"] {
            let told = of(framework, "", &format!("{workers}[roles.ps]"));
            assert!(told.contains("write strategy = \"ps\" where it keeps parameters, else take it out"), "{told}");
            assert_eq!(of(framework, ps, &format!("{workers}[roles.ps]")), "");
        }
        assert!(of("jax", "", &format!("{workers}[roles.ps]")).ends_with("is started: take it out"));
    }

    #[test]
    fn what_a_role_that_waits_for_ranks_says_of_its_own_and_nobody_gets_is_told() {
        let of = |contract: &str, params: &str| {
            let job = "framework = \"mpi\"\ncommand = \"mpirun t\"\n[params]\nlr = 1\n[roles.worker]\ncount = 2\n";
            told(&format!("contract = \"{contract}\"\n{job}{params}"))
        };
        for contract in ["native", "mpi", "kubeflow", "uai"] {
            assert!(of(contract, "params.own = 1").contains("nobody gets its `params`: role launcher"), "{contract}");
            assert_eq!(of(contract, ""), "", "{contract}");
            assert_eq!(of(contract, "params.lr = 1"), "", "{contract}: it is the job's");
        }
        for contract in ["sagemaker", "tione", "tione/1", "pai", "azureml"] {
            assert_eq!(of(contract, "params.own = 1"), "", "{contract} tells them by variables or files");
        }
    }

    #[test]
    fn a_role_that_tensorflow_has_not_is_told() {
        let of = |roles: &str| told(&format!("framework = \"tensorflow\"\ncommand = \"x\"\n{roles}"));
        assert!(of("[roles.worker]\n[roles.foo]\n").contains("no role foo: its tasks are told as workers"));
        assert_eq!(of("[roles.Chief]\n[roles.worker]\n[roles.ps]\n[roles.evaluator]\n"), "");
        assert_eq!(of("[roles.train]\ncount = 2\n"), "", "one role is what it is");
    }

    #[test]
    fn a_quote_that_is_not_closed_is_told() {
        let of = |command: &str| {
            let text = format!("command = {}\nparams.a = 1", toml::Value::from(command));
            let spec = crate::spec::parse("a.toml", &text).0.unwrap();
            [quotes(&spec), params(&spec)].into_iter().flatten().map(|advice| advice.text).collect::<String>()
        };
        for (open, quote) in [
            ("python t.py 'a", '\''),
            ("echo it's; python t.py", '\''),
            ("python t.py \"a\nb", '"'),
            ("python t.py \"a'", '"'),
            ("python t.py \"$(ls 'a)\"", '"'),
            ("python t.py $(ls 'a)", '\''),
            ("python t.py 'a' '", '\''),
            ("python t.py \"a\\\"", '"'),
        ] {
            let told = of(open);
            assert!(told.starts_with(&format!("a {quote} of `command` is not closed")), "{open}: {told}");
        }
        for closed in [
            "echo it\\'s",
            "echo \"it's\"",
            "echo 'a\"'",
            "# don't\npython t.py",
            "cat <<E\ndon't\nE\npython t.py",
            "echo \"$(echo \"a 'b'\")\" `echo 'a'`",
            "echo $'it\\'s'",
            "echo \"\\\"\" '\\'",
        ] {
            assert_eq!(of(closed), "", "{closed}");
        }
    }

    #[test]
    fn a_command_of_nothing_but_ends_is_read_all_the_same() {
        for word in ["\\\n", "> a ", "fi ", "<<a\n", "<<a ", "( ", ") ", "$(", "`", "\"$((", "a <(", "x='", "#"] {
            let text = format!("command = {}\nparams.a = 1", toml::Value::from(word.repeat(30_000)));
            let (spec, found) = crate::spec::parse("a.toml", &text);
            let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
            let _ = params(&spec);
            let sample = Sample::of("j", &spec);
            let words: Vec<_> = sample.tasks(&spec).map(|task| super::super::super::command::line(&task)).collect();
            assert_eq!(words.len(), 1, "{word}");
        }
    }

    #[test]
    fn arguments_that_no_program_gets_are_told() {
        let of = |command: &str| told(&format!("{command}params.a = 1"));
        assert!(of("command = 'python t.py # as ever'\n").contains("a comment hides them"));
        assert!(of("command = 'python t.py | tee log'\n").contains("last program of the pipe"));
        for (deaf, why) in [
            ("python t.py;", "a command of their own"),
            ("python t.py &", "a command of their own"),
            ("cd x && (python t.py)", "behind `)` nothing can stand"),
            ("f() { python t.py; }", "behind `}` nothing can stand"),
            ("for x in 1 2; do python t.py $x; done", "behind `done` nothing can stand"),
            ("if true\nthen python t.py\nfi\n", "behind `fi` nothing can stand"),
            ("case $x in (a) python t.py;; esac", "behind `esac` nothing can stand"),
            ("{ python a.py; python t.py; } > log 2>&1", "behind `}` nothing can stand"),
            ("python - <<EOF\nprint(\"don't\")\nEOF\n", "the text of <<EOF would not end"),
            ("python - <<-'END'\n\tprint(1)\n\tEND", "the text of <<END would not end"),
            ("python t.py <<A <<B\na\nA\nb", "the text of <<B would not end"),
            ("ls |\npython t.py", "last program of the pipe"),
            ("python t.py &&", "a command of their own"),
            ("python t.py $(ls # all\n) && (a) > \"$(b; c)\"", "behind `)` nothing can stand"),
            ("python t.py || exit 3", "`exit` gets them"),
            ("python t.py & wait", "`wait` gets them"),
            ("bash -c 'python t.py'", "a text that asks for none"),
            ("cd x && exec env A=1 /bin/bash -euo pipefail -c \"python t.py \\$X\"", "a text that asks for none"),
            ("bash -c 'python t.py \"$@\"'", "the first of them is $0"),
            ("bash -c 'shift; exec python t.py'", "the first of them is $0"),
            ("bash -c 'while getopts a: x; do :; done'", "the first of them is $0"),
        ] {
            let told = of(&format!("command = {}\n", toml::Value::from(deaf)));
            assert!(told.contains(why), "{deaf}: {told}");
        }
        for (deaf, why) in [
            (r#"["/bin/bash", "-c", "echo got"]"#, "a text that asks for none"),
            (r#"["env", "A=1", "sh", "-ec", "python t.py ${X}"]"#, "a text that asks for none"),
            (r#"["bash", "-c", "python t.py $*"]"#, "the first of them is $0"),
        ] {
            let told = of(&format!("command = {deaf}\n"));
            assert!(told.contains(why) && told.contains("`params` are put behind `command`"), "{deaf}: {told}");
            assert_eq!(params(&crate::spec::parse("a.toml", &format!("command = {deaf}")).0.unwrap()), None);
        }
        for heard in [
            r#"["/bin/bash", "-c", "echo got: $@ [$0]"]"#,
            r#"["sh", "-c", "python t.py \"$@\"", "sh"]"#,
            r#"["sh", "-c", "exec \"${0}\" ${1:+x}"]"#,
            r#"["sh", "-c", "while getopts a: x; do :; done; echo $0"]"#,
            r#"["bash", "t.sh", "-c", "x"]"#,
            r#"["python", "-c", "print(1)"]"#,
        ] {
            assert_eq!(of(&format!("command = {heard}\n")), "", "{heard}");
        }
        let flags = "framework = \"tensorflow\"\n[roles.worker]\ncommand = \"python t.py;\"\n";
        assert!(
            told(&format!("contract = \"kubeflow/psflags\"\n{flags}"))
                .contains("what the platform gives a script is put")
        );
        assert_eq!(told(&format!("contract = \"kubeflow\"\n{flags}")), "", "nothing is put there");
        let own = "contract = \"pai\"\ncommand = 'python t.py $PAI_USER_ARGS | tee log'\n";
        assert_eq!(of(own), "", "the command names them itself");
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
            "python t.py --x=${X}",
            "(cd x; python a.py) > log; python t.py 2>&1 > log",
            "find . -name x -exec python t.py {} \\;",
            "xargs -I{} python t.py {}",
            "echo done",
            "echo \"a;\"",
            "python t.py \\\n",
            "python t.py $((1 + 2))",
            "python - <<EOF\nprint(1)\nEOF\npython t.py",
            "cat <<<EOF",
            "python - <<EOF",
            "python t.py <<'A B' --x\ndone\nA B\necho 'done'; \\done",
            "python t.py $(ls | wc -l; :) \"`a | b;`\" $((1 << 2)) ${X:-$(a;)} $(ls # all\n)",
            "paste <(a | b;) >(c)",
            "sh -c 'python t.py \"$@\"' sh",
            "python t.py || exit 3; python u.py",
            "echo exit",
        ] {
            assert_eq!(of(&format!("command = {heard:?}\n")), "", "{heard}");
        }
    }
}
