//! `/bin/sh` is the judge of what is said of its language.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;

use super::*;
use crate::spec::Command;

/// The commands that a shell runs of `p` and `q`. `p` prints what stands in our words for what runs within them.
fn run_by_sh(text: &str) -> Vec<Vec<String>> {
    let programs = r#"set -f; X='${X}'
        told() { printf '%s\1' "$@" >&3; printf '\2' >&3; }
        q() { told q "$@"; }
        p() { told p "$@"; printf '$'; }"#;
    let told = told_by_sh(&format!("{programs}\n{text}"));
    let words = |command: &str| command.split_terminator('\u{1}').map(str::to_owned).collect();
    told.split_terminator('\u{2}').map(words).collect()
}

/// A word that may run something, so much deeper at most.
fn word(depth: u32) -> BoxedStrategy<String> {
    let plain = "[a-z0-9=./#%+]{0,2}|'[^'\\$\\x00-\\x08]{0,5}'|\"([ -!#%-\\[\\]-_a-~\n]|\\\\[\\$`\"\\\\\nb]){0,5}\"|\\\\[ -~\n]|\\$\\{X\\}";
    let parts = if depth == 0 {
        plain.boxed()
    } else {
        let run = text(depth - 1).prop_map(|text| format!("{text}p"));
        prop_oneof![
            6 => plain,
            1 => run.clone().prop_map(|text| format!("$( {text})")),
            1 => run.prop_map(|text| format!("\"$( {text}) \"")),
            1 => "`p( '[a-z;\"(]*')?`",
        ]
        .boxed()
    };
    // No comment begins, no number of a redirection stands alone.
    vec(parts, 0..4).prop_map(|parts| format!("w{}", parts.concat())).boxed()
}

fn command(depth: u32) -> BoxedStrategy<String> {
    let more = vec(("[ \t]|  | \\\\\n", prop_oneof![4 => word(depth), 1 => "2>&1|2> ?/dev/null|</dev/null|23"]), 0..4);
    more.prop_map(|more| more.into_iter().fold("q".to_owned(), |line, (blank, word)| line + &blank + &word)).boxed()
}

/// Commands, each with what ends it; some read documents, some stand in brackets.
fn text(depth: u32) -> BoxedStrategy<String> {
    let end = "\n|; |;\n\n# a'b\n| # \\$\\(\n| && q\n| &&\nq c;";
    let documents = ("<<E|<<-E|<<'E'|<<-\\\\E", "| && q a|;q #", vec("\t?[a-z ;()'#\"\\\\]{0,6}\n", 0..3));
    let reader = (command(depth), documents)
        .prop_map(|(command, (sign, behind, lines))| format!("{command} {sign}{behind}\n{}\nE\n", lines.concat()));
    let plain = (command(depth), end).prop_map(|(command, end)| command + &end);
    let one = prop_oneof![3 => plain, 1 => reader];
    let group = vec(one.clone(), 1..3).prop_map(|texts| format!("({})\n", texts.concat()));
    vec(prop_oneof![4 => one, 1 => group], 0..3).prop_map(|texts| texts.concat()).boxed()
}

proptest! {
    #[test]
    fn sh_reads_every_quoted_word_back(word in "[^\\x00]{0,24}") {
        prop_assert_eq!(told_by_sh(&format!("printf %s {} >&3", command::quote(&word))), word);
    }

    #[test]
    fn sh_runs_the_commands_that_are_found_and_what_is_put_behind_is_heard_unless_told(text in text(2)) {
        let text = format!("q\n{text}");
        prop_assert_eq!(shell::commands(&Command::Shell(text.clone())), run_by_sh(&text), "{}", text);
        let job = format!("command = {}\nparams.z = 1\n", toml::Value::from(text));
        let spec = parse("digits.toml", &job).0.unwrap();
        let line = seen(&job, 0).args.pop().unwrap();
        let is_heard = run_by_sh(&line).iter().any(|words| words.last().is_some_and(|word| word == "--z=1"));
        let told: Vec<_> = advice::warnings(&spec).into_iter().map(|advice| advice.text).collect();
        prop_assert_eq!(is_heard, told.is_empty(), "{}: {:?}", line, told);
    }
}

#[test]
fn a_variable_is_as_the_file_has_it_and_a_command_s_shell_puts_it_in() {
    for contract in ["native", "openpai"] {
        let text = "command = 'printf %s \"$A:$PAI_JOB_NAME\" >&3'\nenv.A = \"$HOME ${B} `id`\"";
        let view = seen(&job(contract, text), 0);
        assert_eq!(variable(&view, "A").as_deref(), Some("$HOME ${B} `id`"), "{contract}");
        let set = |name: &str| format!("{name}={}", command::quote(&variable(&view, name).unwrap()));
        let line = format!("export {} {}\n{}", set("A"), set("PAI_JOB_NAME"), command::display(&view.args));
        let name = variable(&view, "PAI_JOB_NAME").unwrap();
        assert_eq!(told_by_sh(&line), format!("$HOME ${{B}} `id`:{name}"), "{contract}");
    }
}
