//! What a command shows, as it is typed in a directory about an installation, with what differs from run to run named.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::BINARY;
use super::terminal::{drawn_and_left, on_terminal};

/// A time in words of ours.
const EXAMPLE: &str = "2026-03-01T12:00:00Z";

/// Where a command is typed, and which installation it means.
pub(super) struct Desk<'a> {
    pub(super) root: &'a Path,
    pub(super) work: &'a Path,
}

impl Desk<'_> {
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("--root").arg(self.root).args(arguments).current_dir(self.work).env_remove("TRAINYARD_ROOT");
        command
    }

    pub(super) fn screen(&self, columns: u16, arguments: &[&str]) -> String {
        self.screen_with(columns, arguments, "")
    }

    pub(super) fn screen_with(&self, columns: u16, arguments: &[&str], input: &str) -> String {
        let file = self.work.join(".input");
        fs::write(&file, input).unwrap();
        let mut command = self.command(arguments);
        command.env("COLUMNS", columns.to_string()).stdin(Stdio::from(fs::File::open(file).unwrap()));
        let output = command.output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        let told = if err.is_empty() { String::new() } else { format!("--- standard error\n{err}") };
        self.masked(&format!("{out}{told}--- {}\n", output.status))
    }

    /// How far it is first, and what is left in the end.
    pub(super) fn terminal(&self, columns: u16, arguments: &[&str]) -> String {
        let (shown, status) = on_terminal(&mut self.command(arguments), columns);
        let size = regex::Regex::new(r"\d+(\.\d)?([KMGT]i|[kMGT])?B\b").unwrap();
        self.masked(&size.replace_all(&format!("{}--- {status}\n", drawn_and_left(&shown)), "SIZE"))
    }

    /// Times, sizes and numbers of this machine and this run.
    pub(super) fn masked(&self, text: &str) -> String {
        let mut text = text.replace(&self.root.display().to_string(), "ROOT");
        text = text.replace(&self.work.display().to_string(), "WORK");
        // As examples have it.
        text = text.replace(EXAMPLE, "EXAMPLE");
        for (pattern, name) in [
            (r"\d{4}-\d\d-\d\dT\d\d[:-]\d\d[:-]\d\d([.-]\d+)?Z", "TIME"),
            (r"process \d+", "process PID"),
            (r"as of TIME \([^)]*\)", "as of TIME (HOST)"),
            (r"(?m)(\.tar\.zst): [\d.]+[A-Za-z]+$", "$1: SIZE"),
            (r"sha256:[0-9a-f]{64}", "sha256:DIGEST"),
            // How far it is when it is told first.
            (r"\b\d+ of (\d+) layer", "SOME of $1 layer"),
        ] {
            text = regex::Regex::new(pattern).unwrap().replace_all(&text, name).into_owned();
        }
        text.replace("EXAMPLE", EXAMPLE)
    }
}
