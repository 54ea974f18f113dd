//! `trainyard new` at a terminal: the parameters of a template or the keys of a job, one question after another, each with the sentence
//! and the default that `explain` has; then what is to become of them. Nothing is written before that is said.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Context, bail};

use super::super::Exit;
use super::super::output::{self, Format};
use super::super::shelf::{Shelf, put, tell};
use super::{check, is_good, written};
use crate::api::client::Client;
use crate::ids::JobKey;
use crate::spec::keys::{KEYS, Key, Kind, lookup};
use crate::spec::template::{Param, Template};
use crate::spec::{Diagnostic, Layer, Stack};
use crate::sys::terminal::escape;

/// How much is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Depth {
    Basic,
    /// Every key of a job that is one value.
    Advanced,
}

/// What every job is asked for, in this order.
const BASIC: &[&str] = &[
    "description",
    "image",
    "command",
    "params.*",
    "framework",
    "strategy",
    "roles.*.count",
    "code",
    "datasets",
    "resources.cpu",
    "resources.memory",
    "resources.gpu",
];
/// Of several, one a line.
const SEVERAL: &[&str] = &["env.*"];
/// What only an editor is for.
const UNASKED: &[&str] = &["state", "rerun", "template"];

/// What is asked.
struct Question {
    /// As it is shown, and as it is written.
    name: String,
    key: String,
    help: String,
    /// Type, bounds.
    takes: String,
    /// What stands where nothing is said; it must be said when absent.
    default: Option<String>,
}

impl Question {
    fn of_key(key: &Key) -> Self {
        let takes = if key.bounds.is_empty() {
            key.kind.describe()
        } else {
            format!("{}; {}", key.kind.describe(), key.bounds)
        };
        let (path, help) = (key.path.to_owned(), key.help.to_owned());
        Self { name: path.clone(), key: path, help, takes, default: Some(key.default.to_owned()) }
    }

    fn of_param(param: &Param) -> Self {
        let bounds = param.bounds();
        let takes =
            if bounds.is_empty() { param.kind.name().to_owned() } else { format!("{}; {bounds}", param.kind.name()) };
        let (name, key) = (param.name.clone(), format!("with.{}", part(&param.name)));
        Self { name, key, help: param.help.clone(), takes, default: param.default().map(str::to_owned) }
    }
}

/// Below what is asked for stands what it takes.
const BELOW: usize = 2;

/// What an answer is typed behind.
fn prompt(takes: &str) -> String {
    output::folded("  ", BELOW, &escape(&format!("{takes}:"))) + " "
}

/// The job as far as it has been told, and where answers come from.
pub(super) struct Questions<'a, R> {
    pub(super) client: &'a Client,
    pub(super) shelf: &'a Shelf,
    pub(super) job: &'a JobKey,
    pub(super) path: &'a Path,
    pub(super) input: R,
    pub(super) text: String,
    pub(super) template: Option<Layer>,
}

impl<R: BufRead> Questions<'_, R> {
    /// Asks for all of it, and does what is wanted with it.
    pub(super) async fn run(
        mut self,
        template: Option<&str>,
        depth: Depth,
        over: bool,
        format: Format,
    ) -> anyhow::Result<Exit> {
        if self.path.exists() && !over {
            bail!("{} is there already; --replace writes over it", self.path.display());
        }
        output::line("Enter takes what stands in brackets; what cannot be is told and asked again.\n")?;
        self.choose_template(template)?;
        if let Some(layer) = &self.template {
            let read = match Template::read(layer) {
                Ok(read) => read,
                Err(found) => {
                    tell(&found);
                    return Ok(Exit::Failure);
                }
            };
            for param in &read.params {
                self.ask(&Question::of_param(param), |text| param.kind.literal(text))?;
            }
        }
        self.keys(depth)?;
        self.finish(over, format).await
    }

    fn choose_template(&mut self, given: Option<&str>) -> anyhow::Result<()> {
        let known: Vec<String> = self.shelf.list_templates()?.iter().map(|key| key.job.to_string()).collect();
        if let Some(name) = given {
            return self.lie_on(name);
        }
        if known.is_empty() {
            return Ok(());
        }
        let help = lookup("template").map_or("", |key| key.help);
        output::line(&output::folded("", BELOW, &format!("template – {help}")))?;
        loop {
            let answer = self.answer(&prompt(&format!("{} [none]", known.join(", "))))?;
            match answer.is_empty() {
                true => return Ok(()),
                false => match self.lie_on(&answer) {
                    Ok(()) => return Ok(()),
                    Err(error) => output::error(&format!("{error:#}")),
                },
            }
        }
    }

    fn lie_on(&mut self, name: &str) -> anyhow::Result<()> {
        self.template = Some(self.shelf.find_template(&self.job.workspace, name)?);
        self.text = format!("template = {}\n", quoted(name));
        Ok(())
    }

    /// A template has said what is basic.
    fn keys(&mut self, depth: Depth) -> anyhow::Result<()> {
        let basic = BASIC.iter().filter_map(|path| lookup(path)).filter(|_| self.template.is_none());
        let advanced =
            KEYS.iter().filter(|key| depth == Depth::Advanced && (is_one_value(key) || SEVERAL.contains(&key.path)));
        let is_new = |key: &&Key| self.template.is_some() || !BASIC.contains(&key.path);
        let asked: Vec<&Key> = basic.chain(advanced.filter(is_new)).collect();
        for key in asked {
            if key.path == "strategy" && !self.names_a_framework() {
                continue;
            }
            match key.path.contains('*') {
                true => self.ask_several(key)?,
                false => self.ask(&Question::of_key(key), |text| literal(key.kind, text))?,
            }
        }
        Ok(())
    }

    /// Without one there is no strategy.
    fn names_a_framework(&self) -> bool {
        self.text.parse::<toml::Table>().is_ok_and(|told| told.contains_key("framework"))
    }

    fn ask(&mut self, question: &Question, literal: impl Fn(&str) -> String) -> anyhow::Result<()> {
        let help = if question.help.is_empty() { String::new() } else { format!(" – {}", question.help) };
        output::line(&output::folded("", BELOW, &escape(&format!("{}{help}", question.name))))?;
        let default = question
            .default
            .as_deref()
            .map_or("must be given", |default| if default.is_empty() { "none" } else { default });
        let prompt = prompt(&format!("{} [{default}]", question.takes));
        loop {
            let answer = self.answer(&prompt)?;
            if answer.is_empty() && question.default.is_some() {
                return Ok(());
            }
            if !answer.is_empty() && self.add(&format!("{} = {}\n", question.key, literal(&answer)))? {
                return Ok(());
            }
        }
    }

    /// `NAME=VALUE` again and again, for the `*` of a key.
    fn ask_several(&mut self, key: &Key) -> anyhow::Result<()> {
        output::line(&output::folded("", BELOW, &format!("{} – {}", key.path, key.help)))?;
        loop {
            let answer = self.answer("  NAME=VALUE, one after another [no more]: ")?;
            let Some((name, value)) = answer.split_once('=') else {
                if answer.is_empty() {
                    return Ok(());
                }
                output::error(&format!("{answer:?} is not written as NAME=VALUE"));
                continue;
            };
            let written = key.path.replace('*', &part(name.trim()));
            self.add(&format!("{written} = {}\n", literal(key.kind, value.trim())))?;
        }
    }

    /// Takes a line in, unless it makes something wrong that was not wrong before, which is told.
    fn add(&mut self, line: &str) -> anyhow::Result<bool> {
        let before = self.errors(&self.text)?;
        let text = format!("{}{line}", self.text);
        let mut found = self.errors(&text)?;
        found.retain(|error| !before.iter().any(|old| (&old.key, &old.message) == (&error.key, &error.message)));
        // Lines are those of a file that nobody has seen yet.
        found.iter_mut().for_each(|error| (error.line, error.column) = (0, 0));
        if !found.is_empty() {
            tell(&found);
            return Ok(false);
        }
        self.text = text;
        Ok(true)
    }

    fn stack(&self, text: &str) -> anyhow::Result<Stack> {
        let mut stack = Stack::of(Layer::new(&self.path.display().to_string(), text));
        stack.template.clone_from(&self.template);
        self.shelf.offer(&mut stack, self.path)?;
        Ok(stack)
    }

    fn errors(&self, text: &str) -> anyhow::Result<Vec<Diagnostic>> {
        let mut found = self.stack(text)?.expand().diagnostics;
        found.retain(Diagnostic::is_error);
        Ok(found)
    }

    /// A line that was typed; the end of the input is the end of it all.
    fn answer(&mut self, prompt: &str) -> anyhow::Result<String> {
        let mut out = std::io::stdout();
        out.write_all(prompt.as_bytes()).and_then(|()| out.flush())?;
        let mut line = String::new();
        match self.input.read_line(&mut line).context("cannot read what was typed")? {
            0 => bail!("nothing was written"),
            _ => Ok(line.trim().to_owned()),
        }
    }

    async fn finish(mut self, over: bool, format: Format) -> anyhow::Result<Exit> {
        let stack = self.stack(&self.text)?;
        if !is_good(&check::judge(self.client, self.shelf, self.path, &stack, &self.job.job).await) {
            return Ok(Exit::Failure);
        }
        output::line(&format!("\n{}:\n\n{}", self.job, escape_lines(&self.text)))?;
        loop {
            let answer = self.answer("s: start it, t: save it as a template, f: write the file only, q: nothing: ")?;
            // What was answered until now is worth another way.
            match answer.as_str() {
                "s" => match self.start(over) {
                    Ok(()) => return written(self.job, self.path, format),
                    Err(error) => output::error(&format!("{error:#}")),
                },
                "t" => return self.save_template(),
                "f" => match self.write_here() {
                    Ok(()) => return Ok(Exit::Success),
                    Err(error) => output::error(&format!("{error:#}")),
                },
                "q" => bail!("nothing was written"),
                _ => {}
            }
        }
    }

    fn start(&self, over: bool) -> anyhow::Result<()> {
        match over && self.path.exists() {
            true => self.shelf.replace(self.path, &self.text),
            false => self.shelf.put(self.path, &self.text),
        }
    }

    fn save_template(&mut self) -> anyhow::Result<Exit> {
        let stack = self.stack(&self.text)?;
        let said = stack.expand().spec.map(|spec| spec.description).unwrap_or_default();
        let description = if said.is_empty() { format!("as job {}", self.job) } else { said };
        let text = match stack.as_template(&description) {
            Ok(text) => text,
            Err(found) => {
                tell(&found);
                return Ok(Exit::Failure);
            }
        };
        loop {
            let answer = self.answer(&format!("name of the template [{}]: ", self.job))?;
            let key = if answer.is_empty() { Ok(self.job.clone()) } else { answer.parse::<JobKey>() };
            let saved = key.map_err(anyhow::Error::from).and_then(|key| {
                self.shelf.put(&self.shelf.template(&key), &text)?;
                Ok(key)
            });
            match saved {
                Ok(key) => {
                    output::line(&format!(
                        "{key}: saved; `trainyard new JOB --template {}` makes jobs of it",
                        key.job
                    ))?;
                    return Ok(Exit::Success);
                }
                Err(error) => output::error(&format!("{error:#}")),
            }
        }
    }

    /// In the working directory, where nothing runs it.
    fn write_here(&self) -> anyhow::Result<()> {
        let file = format!("{}.toml", self.job.job);
        put(Path::new(&file), &self.text)?;
        output::line(&format!("{file}: written; `trainyard new {} --from {file}` starts it", self.job))
    }
}

/// What a line of text can say, of a job as a whole.
fn is_one_value(key: &Key) -> bool {
    let is_whole = !matches!(key.kind, Kind::Table | Kind::Tables | Kind::Any);
    let is_below = ["code.", "tensorboard.resources."].iter().any(|above| key.path.starts_with(above));
    is_whole && !key.path.contains('*') && !is_below && !UNASKED.contains(&key.path)
}

/// An answer as TOML has it. What is no such value is told when it is taken in.
fn literal(kind: Kind, text: &str) -> String {
    let is_written = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    let may_be_plain = match kind {
        Kind::Bool | Kind::BoolOr(_) | Kind::Integer { .. } | Kind::Number { .. } => true,
        Kind::CountOr(_) | Kind::PercentOr(_) | Kind::Param | Kind::Scalar | Kind::Port => true,
        Kind::Command | Kind::Texts | Kind::Scalars | Kind::Tables => text.starts_with('['),
        Kind::TextOrTable => text.starts_with('{'),
        _ => false,
    };
    let is_value = || format!("x = {text}").parse::<toml::Table>().is_ok_and(|table| table.len() == 1);
    if (is_written || may_be_plain) && is_value() {
        return text.to_owned();
    }
    match kind {
        Kind::Texts | Kind::Scalars => {
            let all: Vec<String> = text.split(',').map(|one| quoted(one.trim())).collect();
            format!("[{}]", all.join(", "))
        }
        _ => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A part of a key.
fn part(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_bare { name.to_owned() } else { quoted(name) }
}

fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_values_of_their_key_s_kind_and_never_other_keys() {
        for (path, typed, wanted) in [
            ("image", "lab/torch:1", "\"lab/torch:1\""),
            ("image", "\"host\"", "\"host\""),
            ("command", "echo \"a\" b", "'echo \"a\" b'"),
            ("command", "[\"echo\", \"a b\"]", "[\"echo\", \"a b\"]"),
            ("datasets", "mnist, train=flowers@v2", "[\"mnist\", \"train=flowers@v2\"]"),
            ("resources.gpu", "2", "2"),
            ("resources.gpu", "two", "\"two\""),
            ("priority", "high", "\"high\""),
            ("params.x", "true", "true"),
            ("params.x", "1\ny = 2", "\"\"\"\n1\ny = 2\"\"\""),
            ("code", "{ git = \"https://lab/x\" }", "{ git = \"https://lab/x\" }"),
        ] {
            assert_eq!(literal(lookup(path).unwrap().kind, typed), wanted, "{path}");
        }
        assert_eq!((part("a-b"), part("训 练")), ("a-b".to_owned(), "\"训 练\"".to_owned()));
    }

    #[tokio::test]
    async fn a_strategy_is_asked_for_after_a_framework_and_what_cannot_be_written_ends_nothing() {
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(root.path()).unwrap();
        let job = "j".parse().unwrap();
        let path = shelf.job(&job).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        // The framework is the first that is told; then all defaults.
        let typed = format!("\n\n\n\npytorch\nmaster-worker\n{}s\nq\n", "\n".repeat(6));
        let (input, text) = (typed.as_bytes(), String::new());
        let client = &Client::new(&root.path().join("no.sock"));
        let mut questions = Questions { client, shelf: &shelf, job: &job, path: &path, input, text, template: None };
        questions.keys(Depth::Basic).unwrap();
        assert_eq!(questions.text, "framework = \"pytorch\"\nstrategy = \"master-worker\"\n");
        let ended = questions.finish(false, Format::People).await.unwrap_err();
        assert_eq!(ended.to_string(), "nothing was written", "asked again, and answered");
    }

    #[test]
    fn every_key_that_is_asked_for_is_in_the_table_and_only_values_are() {
        assert!(BASIC.iter().chain(SEVERAL).chain(UNASKED).all(|path| lookup(path).is_some()));
        let advanced: Vec<&str> = KEYS.iter().filter(|key| is_one_value(key)).map(|key| key.path).collect();
        for path in
            ["user", "retries", "max_duration", "retry.on", "resources.shm", "alerts.gpu_idle.for", "scalars.lines"]
        {
            assert!(advanced.contains(&path), "{path}");
        }
        assert!(!advanced.iter().any(|path| ["env", "roles", "state", "mounts"].contains(path)));
    }
}
