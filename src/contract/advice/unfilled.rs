//! Places in `command` that another platform fills, or a shell that there is not.

use super::super::shell;
use super::super::{Sample, Task, view};
use super::Advice;
use crate::spec::{Command, JobSpec, Platform};

/// The first of each role; commands that are the job's are the same in all.
pub(super) fn places(spec: &JobSpec) -> Vec<Advice> {
    let is_there = |words: &[String]| words.iter().any(|word| word.contains('$') || word.contains("<%"));
    if !spec.roles.iter().any(|role| is_there(&words_of(&role.command))) {
        return Vec::new();
    }
    let sample = Sample::of("job.toml", spec);
    let firsts = sample.tasks(spec).filter(|task| task.index == 0);
    let mut found: Vec<Advice> =
        firsts.filter_map(|task| Some(Advice::of_role(task.role, &["command"], unfilled(&task)?))).collect();
    found.dedup_by(|one, before| one.text == before.text);
    found
}

fn words_of(command: &Command) -> Vec<String> {
    match command {
        Command::Shell(text) => vec![text.clone()],
        Command::Exec(words) => words.clone(),
        Command::Default => Vec::new(),
    }
}

fn unfilled(task: &Task<'_>) -> Option<String> {
    let words = words_of(&task.role.command);
    let in_shell = match &task.role.command {
        Command::Exec(words) => shell::place_of_text(words),
        Command::Shell(_) | Command::Default => Some(0),
    };
    let platform = task.spec.contract.platform;
    let of_openpai = words.iter().find_map(|word| between(word, "<%", "%>"));
    if let Some(place) = of_openpai {
        return Some(format!(
            "`command` has {place}, which OpenPAI fills and Trainyard only in `trainyard import`: write what it stands for, or \
             import the job's YAML"
        ));
    }
    let of_azure = words.iter().find_map(|word| between(word, "${{", "}}")).filter(|_| platform != Platform::AzureMl);
    if let Some(place) = of_azure {
        return Some(format!("`command` has {place}, which is filled under contract = \"azureml\" alone"));
    }
    let variables = view(task).env;
    let is_set = |name: &str| variables.iter().any(|(variable, _)| variable == name);
    let asked = |(number, word): (usize, &String)| {
        // Under some shells `$'` begins a quote; what is single-quoted is a text for somebody else.
        let is_meant = |asked: &Asked<'_>| is_set(asked.name) && (in_shell != Some(number) || asked.is_of_kubernetes());
        Asked::all(word).into_iter().find(is_meant).map(|asked| (asked.whole.to_owned(), asked.name.to_owned(), number))
    };
    let (whole, name, number) = words.iter().enumerate().find_map(asked)?;
    Some(match in_shell == Some(number) {
        true => format!("{whole} in `command` runs a program {name}, as in any shell; the variable is \"${{{name}}}\""),
        false => format!(
            "`command` is an array, so no shell reads it and {whole} stays as it is: make it a string, with \"${{{name}}}\" in it"
        ),
    })
}

/// The first such part of a text, as it stands there.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    let from = text.find(begin)?;
    let rest = text.get(from..)?;
    rest.get(..rest.find(end)? + end.len())
}

/// A place for a variable: `$NAME`, `${NAME}` of shells, `$(NAME)` of Kubernetes.
struct Asked<'t> {
    whole: &'t str,
    name: &'t str,
}

impl<'t> Asked<'t> {
    fn all(text: &'t str) -> Vec<Self> {
        let is_escaped = |at: usize| text.get(..at).is_some_and(|before| before.ends_with(['\\', '$']));
        let places = text.match_indices('$').filter(|(at, _)| !is_escaped(*at));
        places.filter_map(|(at, _)| Self::first(text.get(at..)?)).collect()
    }

    fn first(text: &'t str) -> Option<Self> {
        let rest = text.strip_prefix('$')?;
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let inner = rest.strip_prefix(['{', '(']).unwrap_or(rest);
        let name = inner.get(..inner.find(|letter| !is_of_name(letter)).unwrap_or(inner.len()))?;
        let behind = inner.get(name.len()..)?;
        let is_closed = match rest.chars().next()? {
            '{' => behind.starts_with('}'),
            '(' => behind.starts_with(')'),
            _ => true,
        };
        let length = 1 + name.len() + if inner.len() < rest.len() { 2 } else { 0 };
        (is_closed && !name.is_empty()).then_some(Self { whole: text.get(..length)?, name })
    }

    fn is_of_kubernetes(&self) -> bool {
        self.whole.starts_with("$(")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse;

    fn told(text: &str) -> Vec<String> {
        let spec = parse("job.toml", text).0.unwrap();
        places(&spec).into_iter().map(|advice| format!("{}: {}", advice.path.join("."), advice.text)).collect()
    }

    #[test]
    fn places_that_nobody_fills_are_told_with_what_does() {
        for (command, wanted) in [
            (r#"["x", "--lr=<% $parameters.lr %>"]"#, "has <% $parameters.lr %>, which OpenPAI fills"),
            (r#""x <% $secrets.key %>""#, "has <% $secrets.key %>, which OpenPAI fills"),
            (r#""x ${{ inputs.data }}""#, "has ${{ inputs.data }}, which is filled under contract = \"azureml\""),
            (r#"["x", "$TRAINYARD_ROLE"]"#, "no shell reads it and $TRAINYARD_ROLE stays as it is"),
            (r#"["x", "a${MINE}b"]"#, "${MINE} stays as it is: make it a string, with \"${MINE}\""),
            (r#"["x", "$(MINE)"]"#, "$(MINE) stays as it is"),
            (r#"["bash", "x.sh", "$MINE"]"#, "$MINE stays as it is"),
            (r#"["sh", "-c", "x $MINE", "$MINE"]"#, "$MINE stays as it is"),
            (r#""x --at=$(MINE)""#, "$(MINE) in `command` runs a program MINE"),
            (r#"["sh", "-c", "x $(MINE)"]"#, "$(MINE) in `command` runs a program MINE"),
        ] {
            let found = told(&format!("command = {command}\nenv.MINE = \"1\""));
            assert!(found.len() == 1 && found[0].contains(wanted), "{command}: {found:?}");
            assert!(found[0].starts_with("roles.main.command: "), "{found:?}");
        }
    }

    #[test]
    fn what_a_shell_or_a_program_fills_is_not_told() {
        for command in [
            r#""x $TRAINYARD_ROLE ${MINE} $(date) $(OTHER) $1 $$ ${MINE:-2}""#,
            r#"["sh", "-c", "x $MINE ${MINE}"]"#,
            r#"["env", "A=1", "bash", "-ec", "x $MINE"]"#,
            r#"["awk", "{print $1, $NF, $OTHER}"]"#,
            r#"["x", "\\$MINE", "$$MINE", "100%", "a<%b", "${MINE", "$(MINE", "$", "$MINE_TOO"]"#,
            r#"["x"]"#,
        ] {
            assert_eq!(told(&format!("command = {command}\nenv.MINE = \"1\"")), Vec::<String>::new(), "{command}");
        }
        let azure = "contract = \"azureml\"\ncommand = \"x ${{inputs.lr}}\"\nparams.lr = 1";
        assert_eq!(told(azure), Vec::<String>::new());
    }

    #[test]
    fn one_command_of_several_roles_is_told_once() {
        let text =
            "command = [\"x\", \"$TRAINYARD_ROLE\"]\n[roles.a]\n[roles.b]\ncount = 2\n[roles.c]\ncommand = \"x\"";
        assert_eq!(told(text).len(), 1);
    }
}
