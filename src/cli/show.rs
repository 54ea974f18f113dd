//! `trainyard show JOB [--effective]`: the file, or all that it comes to. What is shown is what runs.

use std::fmt::Write;
use std::path::Path;

use anyhow::bail;
use serde::Serialize;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::ps::user_name;
use super::shelf::{Shelf, tell};
use super::{Exit, job_key};
use crate::api::client::Client;
use crate::api::wire::Seen;
use crate::contract::{Sample, Task, command, shells, shown};
use crate::import::openpai_export::without_dates;
use crate::spec::{
    Command, DesiredState, GpuPart, Image, JobSpec, Main, MinSucceeded, Network, OnEdit, OnIdle, OnOverrun, Resources,
    Role, Stack, SyncAt, parse,
};
use crate::sys::terminal;

/// A file that need not be in `jobs.d`, with its overrides and its template.
pub(super) fn run_file(path: &Path, shelf: &Shelf, effective: bool, format: Format) -> anyhow::Result<Exit> {
    let stack = shelf.stack(path)?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let combinations = match stem.parse().map(|name| stack.combinations(&name)) {
        Ok(Ok(Some(combinations))) if effective => combinations,
        Ok(Err(found)) => {
            tell(&found);
            return Ok(Exit::Failure);
        }
        _ => return one(&stack, effective, format),
    };
    for combination in &combinations {
        if format == Format::People {
            output::line(&format!("# {}", combination.name))?;
        }
        let expanded = stack.with(combination).expand();
        if expanded.spec.is_none() {
            tell(&expanded.diagnostics);
            return Ok(Exit::Failure);
        }
        run(combination.name.as_str(), &expanded.text, effective, format)?;
    }
    Ok(Exit::Success)
}

fn one(stack: &Stack, effective: bool, format: Format) -> anyhow::Result<Exit> {
    let expanded = stack.expand();
    match (effective, &expanded.spec) {
        (true, None) => {
            tell(&expanded.diagnostics);
            Ok(Exit::Failure)
        }
        (true, Some(_)) => run(&stack.job.file, &expanded.text, effective, format),
        (false, _) => run(&stack.job.file, &stack.job.text, effective, format),
    }
}

pub(super) async fn ask(client: &Client, job: &str) -> anyhow::Result<String> {
    let key = job_key(job)?;
    let view = client.job(&key).await?;
    match view.spec {
        Some(text) => Ok(text),
        None if view.seen != Seen::Own => {
            let owner = user_name(view.report.owner);
            bail!(
                "job {key} belongs to {owner}: its file may hold secrets, and is for its owner and root alone; \
                 `trainyard status {key}` tells how it is"
            )
        }
        None => bail!("job {key} has no valid file: {}", view.report.reason),
    }
}

/// A job's file, and its keys in the order of the file: what `trainyard new --from` takes.
#[derive(Serialize)]
struct Shown<'a> {
    spec: &'a str,
    keys: toml::Table,
}

/// Dates are texts, as they are written: JSON has none.
fn keys_of(text: &str) -> toml::Table {
    let table = text.parse::<toml::Table>().unwrap_or_default();
    table.into_iter().map(|(key, value)| (key, without_dates(&value))).collect()
}

pub(super) fn run(name: &str, text: &str, effective: bool, format: Format) -> anyhow::Result<Exit> {
    if !effective {
        match format {
            Format::Json => output::json(&Shown { spec: text, keys: keys_of(text) })?,
            Format::People => output::line(text.trim_end())?,
        }
        return Ok(Exit::Success);
    }
    let (spec, found) = parse(name, text);
    let Some(spec) = spec else {
        found.iter().for_each(|diagnostic| output::error(&diagnostic.to_string()));
        return Ok(Exit::Failure);
    };
    let sample = Sample::of(name, &spec);
    match format {
        Format::Json => output::json(&as_json(&spec, &sample))?,
        Format::People => output::line(as_text(&spec, &sample).trim_end())?,
    }
    Ok(Exit::Success)
}

fn network(spec: &JobSpec) -> &'static str {
    match spec.network {
        Network::Task => "task",
        Network::Job => "job",
        Network::Host => "host",
    }
}

fn state(spec: &JobSpec) -> &'static str {
    match spec.state {
        DesiredState::Run => "run",
        DesiredState::Held => "held",
        DesiredState::Stopped => "stopped",
    }
}

/// As they are written.
fn datasets(spec: &JobSpec) -> Vec<String> {
    spec.datasets.iter().map(ToString::to_string).collect()
}

fn min_succeeded(role: &Role) -> String {
    match role.min_succeeded {
        MinSucceeded::All => "\"all\"".to_owned(),
        MinSucceeded::Never => "\"never\"".to_owned(),
        MinSucceeded::Count(count) => count.to_string(),
    }
}

fn main(role: &Role) -> &'static str {
    match role.main {
        Main::No => "false",
        Main::Role => "true",
        Main::FirstTask => "\"first\"",
    }
}

/// What the file says of retries, edits, other jobs and durations.
fn policies(spec: &JobSpec) -> String {
    let names = |items: Vec<String>| format!("{items:?}");
    let mut out = format!(
        "retry = {{ on = {}, backoff = \"{}s\" }}\nafter = {}\npriority = {}\non_edit = \"{}\"\non_overrun = \"{}\"\n",
        names(spec.retry.on.iter().map(ToString::to_string).collect()),
        spec.retry.backoff.as_secs_f64(),
        names(spec.after.iter().map(ToString::to_string).collect()),
        spec.priority,
        if spec.on_edit == OnEdit::Restart { "restart" } else { "after" },
        if spec.on_overrun == OnOverrun::Stop { "stop" } else { "alert" },
    );
    let _ = writeln!(out, "on_gpu_failure = \"{}\"", spec.on_gpu_failure);
    if let Some(idle) = spec.gpu_idle {
        let _ = writeln!(out, "alerts.gpu_idle = {idle}");
    }
    if let Some(expected) = spec.expected_duration {
        let _ = writeln!(out, "expected_duration = \"{}s\"", expected.as_secs_f64());
    }
    for (name, value) in &spec.extras {
        let _ = writeln!(out, "extras.{} = {}", key(name), orderless(&value.to_string()));
    }
    out
}

/// As a job file has a string.
fn quoted(text: &str) -> String {
    if !text.contains(is_upper_control) {
        return toml::Value::String(text.to_owned()).to_string();
    }
    // Only between such quotes can letters be named.
    let escaped = text.chars().map(|letter| match letter {
        '"' | '\\' => format!("\\{letter}"),
        letter => named(letter),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Those to which terminals listen as well, and which TOML lets stand as they are.
fn is_upper_control(letter: char) -> bool {
    matches!(letter, '\u{80}'..='\u{9f}')
}

fn named(letter: char) -> String {
    if letter.is_control() { format!("\\u{:04X}", u32::from(letter)) } else { letter.to_string() }
}

/// What is written as TOML already, without orders to a terminal.
fn orderless(written: &str) -> String {
    written.chars().map(|letter| if is_upper_control(letter) { named(letter) } else { letter.to_string() }).collect()
}

/// A name as a job file has it, in quotes where it needs them.
fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if bare { name.to_owned() } else { quoted(name) }
}

/// As a job file; what it cannot say stands in comments.
fn as_text(spec: &JobSpec, sample: &Sample) -> String {
    let mut out = format!(
        "description = {}\ninit = {}\ndebug = {}\nnetwork = \"{}\"\nretries = {}\nstate = {:?}\nrerun = {}\ndatasets = {}\ncontract = \"{}\"\n",
        quoted(&spec.description),
        spec.init,
        spec.debug,
        network(spec),
        spec.retries,
        state(spec),
        spec.rerun,
        toml::Value::from(datasets(spec)),
        spec.contract
    );
    if let (Some(framework), Some(strategy)) = (spec.framework, spec.strategy) {
        let _ = writeln!(out, "framework = \"{framework}\"\nstrategy = \"{strategy}\"");
    }
    for mount in &spec.mounts {
        let access = if mount.read_only { ", read-only" } else { "" };
        let told = format!("{} of this machine is {}{access}", mount.source.display(), mount.target.display());
        let _ = writeln!(out, "# {}", terminal::escape(&told));
    }
    for remote in &spec.remotes {
        let told = match remote.sync {
            None => format!("{remote} is copied to {} before the start", remote.target.display()),
            Some(SyncAt::End) => format!("/output is copied to {remote} at the end"),
            Some(at) => format!("/output is copied to {remote} every {at} and at the end"),
        };
        let _ = writeln!(out, "# {}", terminal::escape(&told));
    }
    if let Some(scalars) = &spec.scalars {
        for (key, text) in [("log_dir", &scalars.log_dir), ("lines", &scalars.lines)] {
            if let Some(text) = text {
                let _ = writeln!(out, "scalars.{key} = {}", quoted(text));
            }
        }
    }
    if let Some(wanted) = spec.requirements {
        let _ = writeln!(out, "requirements = {wanted}");
    }
    if let Some(wanted) = spec.resume {
        let _ = writeln!(out, "resume = {wanted}");
    }
    for (key, most) in [("max_nodes", spec.max_nodes), ("max_gpu", spec.max_gpu)] {
        if let Some(most) = most {
            let _ = writeln!(out, "{key} = {most}");
        }
    }
    if let Some(limit) = spec.max_duration {
        let _ = writeln!(out, "max_duration = \"{}s\"", limit.as_secs_f64());
    }
    out.push_str(&policies(spec));
    if let Some(grace) = spec.stop_grace {
        let _ = writeln!(out, "stop_grace = \"{}s\"", grace.as_secs_f64());
    }
    for role in &spec.roles {
        out.push_str(&role_as_text(role));
        for line in told_once(sample.tasks(spec).filter(|task| task.role.name == role.name)) {
            let _ = writeln!(out, "# {}", line.replace('\n', "\n# "));
        }
    }
    out
}

/// Which cards, and how much of each.
fn cards_as_text(resources: &Resources) -> String {
    let kind = resources.gpu_type.as_ref().map(|kind| format!(", gpu_type = {}", quoted(kind)));
    let part = match &resources.gpu_part {
        GpuPart::Whole => String::new(),
        GpuPart::Share { memory, over } => {
            format!(", gpu_memory = \"{memory}\", gpu_memory_over = \"{}\"", over.word())
        }
        GpuPart::Slice(profile) => format!(", mig = {}", quoted(profile)),
    };
    format!("{}{part}", kind.unwrap_or_default())
}

fn cards_as_json(resources: &Resources) -> Value {
    let (memory, over, mig) = match &resources.gpu_part {
        GpuPart::Whole => (None, None, None),
        GpuPart::Share { memory, over } => (Some(memory.0), Some(over.word()), None),
        GpuPart::Slice(profile) => (None, None, Some(profile)),
    };
    json!({ "type": resources.gpu_type, "memory": memory, "memory_over": over, "mig": mig })
}

fn role_as_text(role: &Role) -> String {
    let min_failed = role.min_failed.map_or_else(|| "\"never\"".to_owned(), |count| count.to_string());
    let resources = &role.resources;
    let mut out = format!(
        "\n[roles.{}]\nimage = {}\n{}\ncount = {}\nmain = {}\nserves = {}\nmin_failed = {min_failed}\nmin_succeeded = {}\nretries = {}\n\
         resources = {{ cpu = {}, memory = \"{}\", shm = \"{}\", pids = {}, gpu = {}{} }}\n",
        key(role.name.as_str()),
        quoted(&role.image.to_string()),
        role.user.as_ref().map_or("# user: the image's".to_owned(), |user| format!("user = {}", quoted(user))),
        role.count,
        main(role),
        role.serves,
        min_succeeded(role),
        role.retries,
        resources.cpu,
        resources.memory,
        resources.shm,
        resources.pids,
        resources.gpu,
        cards_as_text(resources)
    );
    if let Some(code) = &role.code {
        let _ = writeln!(out, "code = {}", orderless(&code.written()));
    }
    for port in &role.ports {
        let begin = port.begin.map(|begin| format!(", begin = {begin}"));
        let allotted = if begin.is_none() { "  # allotted" } else { "" };
        let begin = begin.unwrap_or_default();
        let _ = writeln!(out, "ports.{} = {{ count = {}{begin} }}{allotted}", key(&port.label), port.count);
    }
    for (name, value) in &role.env {
        let _ = writeln!(out, "env.{} = {}", key(name), quoted(value));
    }
    out
}

/// What tasks will run; of those in a row that run the same it is told once.
fn told_once<'t>(tasks: impl Iterator<Item = Task<'t>>) -> Vec<String> {
    let mut told: Vec<(Task<'t>, Task<'t>, String)> = Vec::new();
    for task in tasks {
        let line = runs(&task);
        match told.last_mut() {
            Some((first, last, same)) if first.role.name == task.role.name && *same == line => *last = task,
            _ => told.push((task, task, line)),
        }
    }
    let name = |task: &Task<'_>| format!("{}-{}", task.role.name, task.index);
    let line = |(first, last, line): (Task<'_>, Task<'_>, String)| match first.index == last.index {
        true => format!("{} runs: {line}", name(&first)),
        false => format!("{} to {} run: {line}", name(&first), name(&last)),
    };
    told.into_iter().map(line).collect()
}

/// All that the job comes to.
pub(super) fn effective(file: &str, spec: &JobSpec) -> String {
    as_text(spec, &Sample::of(file, spec))
}

/// The same for programs.
pub(super) fn effective_as_json(file: &str, spec: &JobSpec) -> Value {
    as_json(spec, &Sample::of(file, spec))
}

/// What each task will run, by its name.
pub(super) fn command_lines_as_json(file: &str, spec: &JobSpec) -> Value {
    let sample = Sample::of(file, spec);
    let line = |task: Task<'_>| (format!("{}-{}", task.role.name, task.index), Value::String(runs(&task)));
    Value::Object(sample.tasks(spec).map(line).collect())
}

/// What each task will run.
pub(super) fn command_lines(file: &str, spec: &JobSpec) -> String {
    told_once(Sample::of(file, spec).tasks(spec)).iter().map(|line| format!("  {line}\n")).collect()
}

/// The final command line, as far as it is known without the image.
fn runs(task: &Task<'_>) -> String {
    let line = command::line(task);
    if let Some(names) = shells::dropped(task) {
        return format!("{}  # by /bin/sh where the image has no bash, which may drop {names}", shown::line(&line));
    }
    match (&task.role.image, &task.role.command) {
        (Image::Host, _) | (_, Command::Shell(_) | Command::Exec(_)) => shown::line(&line),
        (_, Command::Default) if line == ["sleep", "infinity"] => "what the image runs by itself".to_owned(),
        (_, Command::Default) => format!("what the image runs by itself, then {}", shown::line(&line)),
    }
}

fn as_json(spec: &JobSpec, sample: &Sample) -> Value {
    let role = |role: &Role| {
        let tasks: Vec<Task<'_>> = sample.tasks(spec).filter(|task| task.role.name == role.name).collect();
        json!({
            "role": role.name.as_str(), "image": role.image.to_string(), "user": role.user,
            "code": role.code.as_ref().map(ToString::to_string), "count": role.count, "main": role.main != Main::No, "serves": role.serves,
            "min_failed": role.min_failed, "min_succeeded": min_succeeded(role).trim_matches('"'), "retries": role.retries,
            "resources": {
                "cpu": role.resources.cpu.0 as f64 / 1000.0, "memory": role.resources.memory.0,
                "shm": role.resources.shm.0, "pids": role.resources.pids, "gpu": role.resources.gpu,
                "gpu_part": cards_as_json(&role.resources),
            },
            "env": role.env.iter().map(|(name, value)| json!([name, value])).collect::<Vec<_>>(),
            "ports": role.ports.iter().map(|port| json!([port.label, port.count, port.begin])).collect::<Vec<_>>(),
            "args": tasks.first().map(command::line), "runs": tasks.iter().map(runs).collect::<Vec<_>>(),
        })
    };
    json!({
        "description": spec.description, "init": spec.init, "debug": spec.debug,
        "contract": spec.contract.to_string(), "framework": spec.framework.map(|framework| framework.to_string()),
        "strategy": spec.strategy.map(|strategy| strategy.to_string()),
        "stop_grace_s": spec.stop_grace.map(|d| d.as_secs_f64()), "network": network(spec), "retries": spec.retries,
        "retry": {
            "on": spec.retry.on.iter().map(ToString::to_string).collect::<Vec<_>>(), "backoff_s": spec.retry.backoff.as_secs_f64(),
        },
        "after": spec.after.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "on_edit": if spec.on_edit == OnEdit::Restart { "restart" } else { "after" },
        "expected_duration_s": spec.expected_duration.map(|d| d.as_secs_f64()),
        "on_overrun": if spec.on_overrun == OnOverrun::Stop { "stop" } else { "alert" },
        "on_gpu_failure": spec.on_gpu_failure.to_string(),
        "alerts": spec.gpu_idle.map(|idle| json!({ "gpu_idle": {
            "below": idle.below, "for_s": idle.lasting.as_secs_f64(), "then": if idle.then == OnIdle::Stop { "stop" } else { "alert" },
        } })),
        "state": state(spec), "rerun": spec.rerun, "datasets": datasets(spec), "extras": spec.extras_as_json(),
        "requirements": spec.requirements, "resume": spec.resume,
        "scalars": spec.scalars.as_ref().map(|scalars| json!({ "log_dir": scalars.log_dir, "lines": scalars.lines })),
        "remotes": spec.remotes.iter().map(|remote| json!([remote.to_string(), remote.target, remote.sync.map(|at| at.to_string())])).collect::<Vec<_>>(),
        "mounts": spec.mounts.iter().map(|mount| json!([mount.source, mount.target, mount.read_only])).collect::<Vec<_>>(),
        "max_nodes": spec.max_nodes, "max_gpu": spec.max_gpu,
        "max_duration_s": spec.max_duration.map(|d| d.as_secs_f64()),
        "roles": spec.roles.iter().map(role).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let (spec, found) = parse("j.toml", text);
        effective("j.toml", &spec.unwrap_or_else(|| panic!("{found:?}")))
    }

    #[test]
    fn what_is_shown_is_a_job_file() {
        for text in [
            "",
            "command = \"a\\nb\"\ncode = { git = \"https://lab/x\", ref = \"v1\", submodules = true }",
            "contract = \"openpai\"\nuser = \"1000\"\nextras.\"a b\" = [1]\ndescription = \"x\\u007f\\n\"",
            "alerts.gpu_idle.below = 7\nalerts.gpu_idle.then = \"stop\"\non_gpu_failure = \"stop\"",
            "command = \"x\"\nenv.\"a.b\" = \"\\u0001 'y'\"\nroles.\"a.b\".ports = { \"x.y\" = 2, z.begin = 80 }",
        ] {
            let (before, after) = (parse("j.toml", text).0.unwrap(), parse("j.toml", &shown(text)));
            let (after, found) = (after.0, after.1);
            let after = after.unwrap_or_else(|| panic!("{found:?}\n{}", shown(text)));
            assert_eq!((after.contract, &after.extras), (before.contract, &before.extras), "{}", shown(text));
            let of_cards = |spec: &JobSpec| (spec.gpu_idle, spec.on_gpu_failure);
            assert_eq!(of_cards(&after), of_cards(&before), "{}", shown(text));
            let said = |spec: &JobSpec| {
                let role = &spec.roles[0];
                (role.user.clone(), role.code.clone(), role.env.clone(), role.ports.clone(), role.resources.clone())
            };
            assert_eq!(said(&after), said(&before), "{}", shown(text));
        }
        assert!(shown("resources.gpu = 1\nroles.w.count = 2").contains("\nnetwork = \"job\"\n"));
        let plain = shown("");
        assert!(plain.contains("contract = \"native\"") && plain.contains("# user: the image's"), "{plain}");
    }

    /// What the program that a line of words runs was given; in the place of what starts ranks is what runs one.
    fn given(words: &[String]) -> Vec<Vec<u8>> {
        use std::os::unix::fs::PermissionsExt;
        let starters = tempfile::tempdir().unwrap();
        let starts = |(name, _): &(&str, u32)| words.iter().any(|word| word.contains(name));
        for (name, own) in [("mpirun", 2), ("python3", 3)].into_iter().filter(starts) {
            let path = starters.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\nshift {own}\nexec \"$@\"\n")).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("PATH={}:/usr/bin:/bin", starters.path().display());
        #[expect(clippy::disallowed_methods, reason = "the program itself and the shell are the judges here")]
        let output = std::process::Command::new("env").arg(path).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        let words = output.stdout.strip_suffix(b"\0").unwrap_or(&output.stdout);
        words.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    }

    /// The command line of the first task, out of all that is shown of a job.
    fn line_in(effective: &str) -> String {
        let told = effective.split_once("-0 runs: ").unwrap().1;
        let lines = told.split('\n').enumerate().map_while(|(number, line)| match number {
            0 => Some(line),
            _ => line.strip_prefix("# "),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Those that put arguments behind a command, something before it, or fill it in, each in its own way.
    const CONTRACTS: &[&str] = &[
        "contract = 'native'",
        "contract = 'openpai'",
        "contract = 'volcano'",
        "contract = 'uai'",
        "contract = 'google'",
        "contract = 'modelarts'",
        "contract = 'paddle'",
        "contract = 'sagemaker'",
        "contract = 'sagemaker'\nframework = 'mpi'\nroles.worker.count = 1",
        "contract = 'tione/1'",
        "contract = 'tione/1'\nframework = 'horovod'\nroles.worker.count = 1",
        "contract = 'pai'",
        "contract = 'pai/tf'",
        "contract = 'azureml'",
        "contract = 'azureml'\nframework = 'horovod'\nroles.worker.count = 1",
        "contract = 'azureml'\nframework = 'pytorch'\nresources.gpu = 2",
        "contract = 'kubeflow/psflags'",
        "contract = 'mpi'\nframework = 'mpi'\nroles.worker.count = 1",
    ];

    /// All letters, those more often that a shell or a terminal takes for something.
    const LETTERS: &str = "([\\t\\n\\r\\x07\\x1b\\x7f\\u{9b} a0'\"$\\\\]|[^\\x00]){0,16}";

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]
        /// Whole lines, with arguments, in every way in which a contract writes them.
        #[test]
        fn sh_makes_of_the_line_that_is_shown_what_runs(
            words in proptest::collection::vec(LETTERS, 0..4),
            params in proptest::collection::vec(("[a-zA-Z][a-zA-Z0-9_. '$-]{0,8}", LETTERS), 0..4),
            contract in proptest::sample::select(CONTRACTS),
            is_shell in proptest::bool::ANY,
            end in proptest::sample::select(vec!["", "\n", " \\\n", " \\", "  \n\n", " \\\n \\\n"]),
        ) {
            // What is printed tells where each argument ends.
            let program = ["/usr/bin/env", "printf", "%s\\0"].map(str::to_owned);
            let mut table: toml::Table = contract.parse().unwrap();
            let own: Vec<String> = program.into_iter().chain(words.clone()).collect();
            let command = if is_shell { (command::display(&own) + end).into() } else { toml::Value::from(own) };
            table.insert("command".to_owned(), command);
            let params: toml::Table = params.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            table.insert("params".to_owned(), params.clone().into());
            let set = words.concat().replace('#', "x");
            let env = toml::Table::from_iter([("SET".to_owned(), toml::Value::from(set.clone()))]);
            table.insert("env".to_owned(), env.clone().into());
            table.insert("extras".to_owned(), env.into());
            let text = table.to_string();
            let (spec, found) = parse("j.toml", &text);
            let spec = spec.unwrap_or_else(|| panic!("{text}\n{found:?}"));
            let task = Sample::of("j.toml", &spec);
            // What runs without a shell around it is the judge of what the shown line gives.
            let given_itself = given(&command::line(&task.tasks(&spec).next().unwrap()));
            let told = effective("j.toml", &spec) + &command_lines("j.toml", &spec);
            let gives_orders = told.contains(|letter: char| letter.is_control() && !"\t\n".contains(letter));
            proptest::prop_assert!(!gives_orders, "{told:?}");
            // What is set is shown as a job file would set it.
            let shown = told.split_once("\nenv.SET = ").unwrap().1.split("\n# ").next().unwrap();
            let shown: toml::Table = format!("SET = {shown}").parse().unwrap_or_else(|error| panic!("{told}\n{error}"));
            proptest::prop_assert_eq!(shown["SET"].as_str(), Some(set.as_str()), "{}", told);
            let line = line_in(&effective("j.toml", &spec));
            let shown = given(&["/bin/sh".to_owned(), "-c".to_owned(), line]);
            proptest::prop_assert_eq!(&shown, &given_itself, "{}", text);
            // And it begins with the words of the file, as they are.
            let wanted: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            let begin = shown.iter().take(wanted.len()).cloned().collect::<Vec<_>>();
            proptest::prop_assert_eq!(&begin, &wanted, "{}", text);
            // Behind them is each parameter, unless the command is to name them itself.
            let shown: Vec<_> = shown[wanted.len()..].iter().map(|word| String::from_utf8_lossy(word)).collect();
            for name in params.keys().filter(|name| contract != "contract = 'pai'" && !name.starts_with("ti_")) {
                let is_it = |word: &str| word == format!("-{name}") || word == format!("--{name}") || word.starts_with(&format!("--{name}="));
                proptest::prop_assert!(shown.iter().any(|word| is_it(word)), "{name} in {shown:?} of {text}");
            }
        }
    }

    #[test]
    fn tasks_that_run_the_same_are_told_once() {
        let text = "command = \"x\"\n[roles.ps]\n[roles.worker]\ncount = 900\n[roles.eval]\ncount = 2\ncommand = \"y\"";
        let spec = parse("j.toml", text).0.unwrap();
        let lines = "  ps-0 runs: /bin/sh -c x\n  worker-0 to worker-899 run: /bin/sh -c x\n  eval-0 to eval-1 run: /bin/sh -c y\n";
        assert_eq!(command_lines("j.toml", &spec), lines);
        assert_eq!(shown(text).matches("worker-").count(), 2, "{}", shown(text));
        // A platform may give each task arguments of its own.
        let text = "contract = \"kubeflow/psflags\"\nframework = \"tensorflow\"\ncommand = \"x\"\nroles.ps = {}\nroles.worker.count = 2";
        assert_eq!(command_lines("j.toml", &parse("j.toml", text).0.unwrap()).lines().count(), 3);
    }
}
