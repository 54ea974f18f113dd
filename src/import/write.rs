//! Prints a draft as a job file: what was lost first, then the job's own keys, then one table a role.

use std::fmt::Write;

use super::draft::{Draft, DraftResources, DraftRole};
use super::quantity::written;
use crate::ids::Bytes;
use crate::spec::{Command, Main, MinSucceeded, Port};

pub(super) fn job_file(draft: &Draft) -> String {
    let mut page = Page { text: head(draft) };
    page.job(draft);
    // A framework may make more roles of a job, and services are more: they would have what is the job's as well.
    let has_more = draft.own.iter().any(|(key, _)| ["framework", "services"].contains(&key.as_str()));
    if let ([role], false) = (draft.roles.as_slice(), has_more) {
        page.only_role(draft, role);
    } else {
        page.table("env", &draft.env);
        for role in &draft.roles {
            page.role(draft, role);
        }
    }
    page.extras(&draft.extras);
    page.text
}

fn head(draft: &Draft) -> String {
    let mut text = format!("# Imported from {}.\n", draft.origin);
    for loss in &draft.losses {
        let line = loss.to_string().replace(|c: char| c.is_control(), " ");
        let _ = writeln!(text, "# not carried: {line}");
    }
    text.push('\n');
    text
}

struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, key: &str, value: impl AsRef<str>) {
        let _ = writeln!(self.text, "{} = {}", name(key), value.as_ref());
    }

    fn given(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.line(key, string(value));
        }
    }

    fn job(&mut self, draft: &Draft) {
        self.given("description", Some(draft.description.trim_end()));
        self.given("image", shared(draft, |role| role.image.as_deref()));
        self.given("user", shared_user(draft));
        self.given("contract", Some(draft.contract));
        self.given("framework", draft.framework);
        if !draft.datasets.is_empty() {
            self.line("datasets", array(&draft.datasets));
        }
        self.given("network", draft.network.as_deref());
        self.given("priority", draft.priority);
        if draft.retries > 0 {
            self.line("retries", draft.retries.to_string());
        }
        if let Some(seconds) = draft.max_duration_s {
            self.line("max_duration", format!("\"{seconds}s\""));
        }
        if draft.debug {
            self.line("debug", "true");
        }
        self.given("state", draft.state.as_deref());
        for (key, value) in &draft.own {
            self.line(key, value);
        }
    }

    /// Command, environment and resources of a single role are the job's own; the role is written where it says more.
    fn only_role(&mut self, draft: &Draft, role: &DraftRole) {
        self.command(&role.command);
        let over = |(name, _): &&(String, String)| !role.env.iter().any(|(known, _)| known == name);
        let env: Vec<_> = draft.env.iter().filter(over).chain(&role.env).cloned().collect();
        self.params("params", &role.arguments);
        self.table("env", &env);
        self.resources("resources", &role.resources);
        let mut rules = Page { text: String::new() };
        if role.user.as_deref() != shared_user(draft) {
            rules.given("user", role.user.as_deref());
        }
        for (key, value) in &role.own {
            rules.line(key, value);
        }
        rules.rules(role);
        if role.name != "main" || !rules.text.is_empty() {
            self.section(&format!("roles.{}", name(&role.name)));
            self.text.push_str(&rules.text);
        }
    }

    fn role(&mut self, draft: &Draft, role: &DraftRole) {
        let path = format!("roles.{}", name(&role.name));
        self.section(&path);
        if role.image.as_deref() != shared(draft, |role| role.image.as_deref()) {
            self.given("image", role.image.as_deref());
        }
        if role.user.as_deref() != shared_user(draft) {
            self.given("user", role.user.as_deref());
        }
        for (key, value) in &role.own {
            self.line(key, value);
        }
        self.rules(role);
        self.command(&role.command);
        self.params(&format!("{path}.params"), &role.arguments);
        self.table(&format!("{path}.env"), &role.env);
        self.resources(&format!("{path}.resources"), &role.resources);
    }

    fn rules(&mut self, role: &DraftRole) {
        if role.count != 1 {
            self.line("count", role.count.to_string());
        }
        match role.main {
            Main::No if role.says_not_main => self.line("main", "false"),
            Main::No => {}
            Main::Role => self.line("main", "true"),
            Main::FirstTask => self.line("main", "\"first\""),
        }
        if let Some(serves) = role.serves {
            self.line("serves", serves.to_string());
        }
        match role.min_failed {
            Some(1) => {}
            Some(count) => self.line("min_failed", count.to_string()),
            None => self.given("min_failed", Some("never")),
        }
        match role.min_succeeded {
            MinSucceeded::All => {}
            MinSucceeded::Never => self.given("min_succeeded", Some("never")),
            MinSucceeded::Count(count) => self.line("min_succeeded", count.to_string()),
        }
        if !role.ports.is_empty() {
            let ports = role.ports.iter().map(port).collect::<Vec<_>>().join(", ");
            self.line("ports", format!("{{ {ports} }}"));
        }
    }

    fn command(&mut self, command: &Command) {
        match command {
            Command::Default => {}
            Command::Shell(line) => self.line("command", string(line)),
            Command::Exec(words) => self.line("command", array(words)),
        }
    }

    fn section(&mut self, path: &str) {
        let _ = write!(self.text, "\n[{path}]\n");
    }

    fn table(&mut self, path: &str, entries: &[(String, String)]) {
        if entries.is_empty() {
            return;
        }
        self.section(path);
        for (key, value) in entries {
            self.line(key, string(value));
        }
    }

    /// Arguments of one key stand together, as `params` writes them.
    fn params(&mut self, path: &str, arguments: &[String]) {
        let mut params: Vec<(&str, Vec<String>)> = Vec::new();
        for argument in arguments {
            let (key, value) = match argument.split_once('=') {
                Some((key, value)) => (key, string(value)),
                None => (argument.as_str(), "true".to_owned()),
            };
            let key = key.trim_start_matches("--");
            match params.iter_mut().find(|(known, _)| *known == key) {
                Some((_, values)) => values.push(value),
                None => params.push((key, vec![value])),
            }
        }
        if !params.is_empty() {
            self.section(path);
        }
        for (key, values) in params {
            match values.as_slice() {
                [value] => self.line(key, value),
                values => self.line(key, format!("[{}]", values.join(", "))),
            }
        }
    }

    fn resources(&mut self, path: &str, wanted: &DraftResources) {
        if *wanted == DraftResources::default() {
            return;
        }
        self.section(path);
        if let Some(cpu) = wanted.cpu {
            self.line("cpu", cpu.to_string());
        }
        let mut size = |key: &str, size: Option<Bytes>| {
            if let Some(size) = size {
                self.line(key, string(&written(size)));
            }
        };
        size("memory", wanted.memory);
        size("shm", wanted.shm);
        if let Some(gpu) = wanted.gpu {
            self.line("gpu", gpu.to_string());
        }
        self.given("gpu_type", wanted.gpu_type.as_deref());
        self.given("gpu_memory", wanted.gpu_memory.map(written).as_deref());
        self.given("gpu_memory_over", wanted.gpu_memory_over.as_deref());
        self.given("mig", wanted.mig.as_deref());
        if let Some(pids) = wanted.pids {
            self.line("pids", pids.to_string());
        }
    }

    fn extras(&mut self, extras: &[(String, toml::Value)]) {
        if extras.is_empty() {
            return;
        }
        self.section("extras");
        for (key, value) in extras {
            self.line(key, value.to_string());
        }
    }
}

/// What is written for the whole job: the first role's, which the others may differ from only by having another.
fn shared(draft: &Draft, of: fn(&DraftRole) -> Option<&str>) -> Option<&str> {
    let all = draft.roles.iter().all(|role| of(role).is_some());
    draft.roles.first().filter(|_| all).and_then(of)
}

/// A service would have the job's.
fn shared_user(draft: &Draft) -> Option<&str> {
    let has_services = draft.own.iter().any(|(key, _)| key == "services");
    shared(draft, |role| role.user.as_deref()).filter(|_| !has_services)
}

fn port(port: &Port) -> String {
    let label = name(&port.label);
    match port.begin {
        Some(begin) => format!("{label} = {{ count = {}, begin = {begin} }}", port.count),
        None => format!("{label} = {}", port.count),
    }
}

/// A key, in quotes where TOML wants them.
fn name(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if bare { key.to_owned() } else { basic(key) }
}

/// A string; several lines are kept as lines.
fn string(text: &str) -> String {
    let lines = text.contains('\n') && !text.contains("'''") && !text.ends_with('\'');
    let printable = text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control());
    if lines && printable { format!("'''\n{text}'''") } else { basic(text) }
}

fn basic(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn array(words: &[String]) -> String {
    let short =
        words.iter().map(|word| word.len() + 4).sum::<usize>() <= 100 && !words.iter().any(|w| w.contains('\n'));
    let words: Vec<String> = words.iter().map(|word| string(word)).collect();
    if short { format!("[{}]", words.join(", ")) } else { format!("[\n    {},\n]", words.join(",\n    ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_reads_back_as_it_was() {
        for text in ["", "plain", "a \"b\" \\ c", "one\ntwo\n", "x '''\n y", "tail '\n'", "\u{7f}\u{1}\r\n", "训练\t1"]
        {
            let file = format!("a = {}\nb = {}\n", string(text), array(&[text.to_owned(), "x".repeat(120)]));
            let table: toml::Table = file.parse().unwrap();
            assert_eq!(table["a"].as_str(), Some(text), "{file}");
            assert_eq!(table["b"][0].as_str(), Some(text), "{file}");
        }
        assert_eq!(name("a.b"), "\"a.b\"");
    }
}
