//! `trainyard generate man|completions DIR`: what packages ship beside the binary, from the arguments, the key table and the commented
//! configuration.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::{CommandFactory, ValueEnum};
use clap_complete::env::Shells;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::verbs::EXIT_CODES;
use super::{Cli, Exit};
use crate::spec::keys::{KEYS, Support};
use crate::sys::file::{Durability, write_whole};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// A page for the program and each verb, one for trainyard.toml, one for the job file
    Man,
    /// For bash, zsh and fish
    Completions,
}

pub(super) fn run(what: What, directory: &Path) -> anyhow::Result<Exit> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let files = match what {
        What::Man => man()?,
        What::Completions => completions()?,
    };
    for (name, content) in files {
        let path = directory.join(name);
        // In place of whatever is there, also of a link.
        write_whole(&path, &content, 0o644, Durability::Process)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Exit::Success)
}

type Files = Vec<(String, Vec<u8>)>;

/// They ask the program, which knows its verbs and, from the daemon, names of jobs.
fn completions() -> anyhow::Result<Files> {
    // Under the names by which the shells look for them.
    [("bash", "trainyard.bash"), ("zsh", "_trainyard"), ("fish", "trainyard.fish")]
        .map(|(shell, file)| {
            let mut content = Vec::new();
            let shells = Shells::builtins();
            let shell = shells.completer(shell).with_context(|| format!("{shell} is not known"))?;
            shell.write_registration("COMPLETE", "trainyard", "trainyard", "trainyard", &mut content)?;
            if shell.name() == "zsh" {
                content.extend(ZSH_FIRST.as_bytes());
            }
            Ok((file.to_owned(), content))
        })
        .into_iter()
        .collect()
}

/// zsh reads the file when it is asked for the first time, and wants that answered as well.
const ZSH_FIRST: &str = "[ \"$funcstack[1]\" != _trainyard ] || _clap_dynamic_completer_trainyard \"$@\"\n";

fn man() -> anyhow::Result<Files> {
    let mut command = without_help(Cli::command());
    command.build();
    let mut files = Vec::new();
    pages(&command, "trainyard", &mut files)?;
    files.push(("trainyard.toml.5".to_owned(), configuration()?));
    files.push(("trainyard-job.5".to_owned(), job_file()?));
    Ok(files)
}

/// Without verbs that tell of others: there are pages for that.
fn without_help(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// The page of a verb, and those of the verbs below it.
fn pages(command: &clap::Command, name: &str, files: &mut Files) -> anyhow::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        pages(verb, &format!("{name}-{}", verb.get_name()), files)?;
    }
    let title = command.clone().display_name(name.to_owned());
    let man = Man::new(title).manual("Trainyard").source(format!("trainyard {}", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    if name == "trainyard" {
        let mut more = Roff::new();
        more.control("SH", ["EXIT STATUS"]);
        more.text([roman(EXIT_CODES)]);
        more.control("SH", ["FILES"]);
        for (path, what) in FILES {
            entry(&mut more, vec![italic(path)], &[what]);
        }
        more.control("SH", ["SEE ALSO"]);
        more.text([bold("trainyard.toml"), roman("(5), "), bold("trainyard-job"), roman("(5)")]);
        page.extend(more.render().into_bytes());
    }
    files.push((format!("{name}.1"), page));
    Ok(())
}

const FILES: [(&str, &str); 5] = [
    ("/etc/trainyard/trainyard.toml", "How this machine is shared; absent, everything has its default."),
    ("/etc/trainyard/jobs.d/", "Job files; those of a workspace NAME in NAME/."),
    ("/etc/trainyard/secrets/", "Logins by workspace; root's."),
    ("/var/lib/trainyard/", "The state, images, and what the workspaces keep."),
    ("/srv/trainyard/", "The mounted tree."),
];

fn header(title: &str, about: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [title, "5", "", &format!("trainyard {}", env!("CARGO_PKG_VERSION")), "Trainyard"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{title} - {about}"))]);
    page
}

fn entry(page: &mut Roff, tag: Vec<Inline>, text: &[&str]) {
    page.control("TP", []);
    page.text(tag);
    for paragraph in text.iter().filter(|paragraph| !paragraph.is_empty()) {
        page.text([roman(*paragraph)]);
    }
}

fn job_file() -> anyhow::Result<Vec<u8>> {
    let mut page = header("trainyard-job", "job files of Trainyard");
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "A job file is TOML. It is dropped into /etc/trainyard/jobs.d, or into the directory of a workspace there; its name without .toml \
         is the job's. trainyard check says what is wrong with one, trainyard explain KEY tells of one key. A * stands for a name that you \
         choose.",
    )]);
    page.control("SH", ["KEYS"]);
    for key in KEYS.iter().filter(|key| key.support == Support::Now) {
        let kind = key.kind.describe();
        let default = if key.default.is_empty() { String::new() } else { format!("; default: {}", key.default) };
        let bounds = if key.bounds.is_empty() { String::new() } else { format!("; {}", key.bounds) };
        entry(&mut page, vec![bold(key.path), roman(format!(" ({kind}{default}{bounds})"))], &[key.help]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("trainyard"), roman("(1), "), bold("trainyard-explain"), roman("(1)")]);
    Ok(page.render().into_bytes())
}

/// The commented file, which packages install.
const CONFIGURATION: &str = include_str!("../../packaging/trainyard.toml");

/// A paragraph of remarks and the settings below it are one entry; a section is a heading.
fn configuration() -> anyhow::Result<Vec<u8>> {
    let mut page = header("trainyard.toml", "how a machine is shared by Trainyard");
    page.control("SH", ["DESCRIPTION"]);
    let mut remark: Vec<&str> = Vec::new();
    for line in CONFIGURATION.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            remark.push(text.trim());
        } else if line.starts_with('[') {
            page.control("SH", [line]);
            page.text([roman(remark.join(" "))]);
            remark.clear();
        } else if let Some(setting) = line.strip_prefix('#').filter(|setting| !setting.is_empty()) {
            entry(&mut page, vec![bold(setting)], &[&remark.join(" ")]);
            remark.clear();
        } else if !remark.is_empty() {
            page.text([roman(remark.join(" "))]);
            page.control("PP", []);
            remark.clear();
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("trainyard"), roman("(1), "), bold("trainyard-doctor"), roman("(1)")]);
    Ok(page.render().into_bytes())
}
