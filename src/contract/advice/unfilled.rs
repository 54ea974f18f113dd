//! Places in `command` that another platform fills, or a shell that there is not.

use std::collections::BTreeSet;

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
    let told = firsts.filter_map(|task| Some((unfilled(&task)?, task.role)));
    let mut known = BTreeSet::new();
    let new = told.filter(|(text, _)| known.insert(text.clone()));
    new.map(|(text, role)| Advice::of_role(role, &["command"], text)).collect()
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
    let of_openpai = words.iter().find_map(|word| between(word, "<%", "%>", &["$"]));
    if let Some(place) = of_openpai {
        return Some(format!(
            "`command` has {place}, which OpenPAI fills and Trainyard only in `trainyard import`: write what it stands for, or \
             import the job's YAML"
        ));
    }
    let of_azure = words.iter().find_map(|word| between(word, "${{", "}}", OF_AZURE));
    let of_azure = of_azure.filter(|_| platform != Platform::AzureMl);
    if let Some(place) = of_azure {
        return Some(format!("`command` has {place}, which is filled under contract = \"azureml\" alone"));
    }
    let variables = view(task).env;
    let is_set = |name: &str| variables.iter().any(|(variable, _)| variable == name);
    let reads_by_itself = words.first().is_some_and(|program| READERS.contains(&shell::name(program)));
    let asked = |(number, word): (usize, &String)| {
        let is_meant = |asked: &Asked<'_>| {
            is_set(asked.name)
                && match in_shell == Some(number) {
                    true => asked.is_of_kubernetes() && !is_as_it_stands(asked.before),
                    false => !reads_by_itself,
                }
        };
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

/// What stands in a place of Azure's.
const OF_AZURE: &[&str] = &["inputs.", "outputs.", "parameters.", "search_space."];
/// Programs that replace such places themselves, or hand them to a shell.
const READERS: [&str; 15] = [
    "make", "gmake", "ninja", "envsubst", "awk", "gawk", "mawk", "sed", "perl", "ruby", "su", "runuser", "ssh", "fish",
    "xargs",
];

/// In single quotes, in a comment or in a document that a shell gives as it is.
fn is_as_it_stands(before: &str) -> bool {
    matches!(shell::open_at_end(before), shell::Open::Single | shell::Open::Comment)
}

/// The first part of a text between these that begins with one of the words, as it stands there.
fn between<'t>(text: &'t str, begin: &str, end: &str, words: &[&str]) -> Option<&'t str> {
    let part = |(from, _): (usize, &str)| {
        let rest = text.get(from..)?;
        let inner = rest.get(begin.len()..)?.trim_start();
        words.iter().any(|word| inner.starts_with(word)).then_some(())?;
        rest.get(..rest.find(end)? + end.len())
    };
    text.match_indices(begin).find_map(part)
}

/// A place for a variable: `$NAME`, `${NAME}` of shells, `$(NAME)` of Kubernetes.
struct Asked<'t> {
    whole: &'t str,
    name: &'t str,
    /// What of the text stands before it.
    before: &'t str,
}

impl<'t> Asked<'t> {
    fn all(text: &'t str) -> Vec<Self> {
        let is_escaped = |at: usize| text.get(..at).is_some_and(|before| before.ends_with(['\\', '$']));
        let places = text.match_indices('$').filter(|(at, _)| !is_escaped(*at));
        places.filter_map(|(at, _)| Self::first(text.get(..at)?, text.get(at..)?)).collect()
    }

    fn first(before: &'t str, text: &'t str) -> Option<Self> {
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
        (is_closed && !name.is_empty()).then_some(Self { whole: text.get(..length)?, name, before })
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
            r#""printf '<%s %d%%>' \"$MINE\" 3""#,
            r#"["python3", "-c", "x = 1; print(f'${{x}}')"]"#,
            r#""make CFLAGS='$(MINE) -O2' # $(MINE)""#,
            "\"cat <<'E' > Makefile\\n$(MINE)\\nE\\nmake\"",
            r#"["make", "CFLAGS=$(MINE)"]"#,
            r#"["su", "-", "u", "-c", "echo $MINE"]"#,
            r#"["bash", "+x", "-c", "echo $MINE"]"#,
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
