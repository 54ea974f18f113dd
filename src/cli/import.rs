//! `trainyard import FILE… [-o DIR]` and `trainyard export JOB --openpai`: jobs of other platforms, there and back.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;

use super::output::{self, Format};
use super::shelf::{self, Shelf};
use super::{Exit, unreadable};
use crate::import::openpai_export::export;
use crate::import::openpai_lacks::lacks;
use crate::import::{Imported, import};
use crate::spec::{Diagnostic, parse};
use crate::sys::file::read_limited;

/// Largest file that is read.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Whether files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Files,
    /// It is said which would be.
    Nothing,
}

/// Reads every file; one that is refused does not stop the others.
pub(super) fn run(files: &[PathBuf], directory: Option<&Path>, writes: Writes, format: Format) -> anyhow::Result<Exit> {
    let mut exit = Exit::Success;
    let mut jobs = Vec::new();
    for path in files {
        match read(path) {
            Ok(found) => jobs.extend(found),
            Err(error) => {
                output::error(&format!("{}: {error:#}", shown(path)));
                exit = Exit::Failure;
            }
        }
    }
    let several = jobs.len() > 1;
    for job in &jobs {
        let shown = match directory {
            Some(directory) if writes == Writes::Nothing => would_write(directory, job, format),
            Some(directory) => write_new(directory, job, format),
            None if several && format == Format::People => {
                output::line(&format!("# ---- {}.toml", job.name)).and_then(|()| print(job, format))
            }
            None => print(job, format),
        };
        if let Err(error) = shown {
            output::error(&format!("{error:#}"));
            exit = Exit::Failure;
        }
    }
    Ok(exit)
}

fn is_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file's name for messages.
fn shown(path: &Path) -> String {
    if is_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// The jobs of a file; what they lack is told on standard error.
fn read(path: &Path) -> anyhow::Result<Vec<Imported>> {
    let bytes = match is_input(path) {
        true => read_all(io::stdin().lock())?,
        false => read_limited(path, FILE_MAX_BYTES).map_err(|error| unreadable(path, error))?.1,
    };
    let text = String::from_utf8(bytes).context("not text in UTF-8")?;
    let contents = import(&text)?;
    let file = shown(path);
    for skipped in &contents.skipped {
        output::error(&format!("{file}: {skipped} is no job and was skipped"));
    }
    for job in &contents.jobs {
        for loss in &job.losses {
            output::error(&format!("{file}: {}: not carried: {loss}", job.name));
        }
    }
    Ok(contents.jobs)
}

/// All of it, unless it is too much.
fn read_all(input: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        bail!("larger than {FILE_MAX_BYTES} bytes");
    }
    Ok(bytes)
}

/// Says of each file whether it would be written.
fn would_write(directory: &Path, job: &Imported, format: Format) -> anyhow::Result<()> {
    let path = directory.join(format!("{}.toml", job.name));
    if !directory.is_dir() {
        bail!("there is no directory {}: make it first, or name that of a workspace", directory.display());
    }
    if path.symlink_metadata().is_ok() {
        bail!("{} is there already and would not be overwritten", path.display());
    }
    match format {
        Format::Json => output::json(&json!({ "job": job.name, "would_write": path })),
        Format::People => output::line(&format!("would write {}", path.display())),
    }
}

fn write_new(directory: &Path, job: &Imported, format: Format) -> anyhow::Result<()> {
    let path = directory.join(format!("{}.toml", job.name));
    let file = fs::OpenOptions::new().write(true).create_new(true).open(&path);
    let mut file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("there is no directory {}: make it first, or name that of a workspace", directory.display())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            bail!("{} is there already and was not overwritten", path.display())
        }
        other => other.with_context(|| format!("cannot write {}", path.display()))?,
    };
    file.write_all(job.toml.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    match format {
        Format::Json => output::json(&as_json(job)),
        Format::People => output::line(&path.display().to_string()),
    }
}

fn print(job: &Imported, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::json(&as_json(job));
    }
    output::line(job.toml.trim_end())
}

fn as_json(job: &Imported) -> serde_json::Value {
    let losses: Vec<_> =
        job.losses.iter().map(|loss| json!({ "field": loss.field, "line": loss.line, "why": loss.why })).collect();
    json!({ "job": job.name, "toml": job.toml, "not_carried": losses })
}

/// Prints the job of a file, put together with its template, in the form of another platform.
pub(super) fn run_export_file(path: &Path, shelf: &Shelf, format: Format) -> anyhow::Result<Exit> {
    let expanded = shelf.stack(path)?.expand();
    // What it comes to without its template would be another job.
    if expanded.diagnostics.iter().any(Diagnostic::is_error) {
        shelf::tell(&expanded.diagnostics);
        return Ok(Exit::Failure);
    }
    run_export(&path.display().to_string(), &expanded.text, format)
}

/// Prints the job `name`, whose file is `text`, in the form of another platform.
pub(super) fn run_export(name: &str, text: &str, format: Format) -> anyhow::Result<Exit> {
    let (spec, found) = parse(name, text);
    let Some(spec) = spec else {
        found.iter().for_each(|diagnostic| output::error(&diagnostic.to_string()));
        return Ok(Exit::Failure);
    };
    for lack in lacks(&spec) {
        output::error(&format!("{name}: OpenPAI does not run it so: {lack}"));
    }
    let job = Path::new(name).file_name().and_then(|file| file.to_str()).unwrap_or(name);
    let document = export(job.trim_end_matches(".toml"), &spec);
    match format {
        Format::Json => output::json(&document)?,
        Format::People => output::line(&serde_json::to_string_pretty(&document)?)?,
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_that_is_there_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let job = Imported { name: "digits".to_owned(), toml: "image = \"i\"\n".to_owned(), losses: Vec::new() };
        write_new(directory.path(), &job, Format::People).unwrap();
        let other = Imported { toml: "image = \"other\"\n".to_owned(), ..job.clone() };
        let refused = write_new(directory.path(), &other, Format::People).unwrap_err().to_string();
        assert!(refused.contains("digits.toml is there already"), "{refused}");
        assert_eq!(fs::read_to_string(directory.path().join("digits.toml")).unwrap(), job.toml);
    }

    #[test]
    fn a_dash_is_standard_input_of_bounded_length() {
        use clap::Parser;
        assert!(super::super::Cli::try_parse_from(["trainyard", "import", "-"]).is_ok());
        assert_eq!((shown(Path::new("-")), shown(Path::new("a-"))), ("standard input".to_owned(), "a-".to_owned()));
        assert_eq!(read_all(&b"jobName: j"[..]).unwrap(), b"jobName: j");
        assert!(read_all(io::repeat(b' ')).unwrap_err().to_string().contains("larger than"));
    }

    #[test]
    fn a_file_that_is_no_job_is_not_exported() {
        let root = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(root.path()).unwrap();
        let path = root.path().join("digits.toml");
        for (text, exit) in [
            ("command = \"x\"", Exit::Success),
            ("template = \"nowhere\"", Exit::Failure),
            ("command = \"x\"\nresources.spec = \"nowhere\"", Exit::Failure),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(run_export_file(&path, &shelf, Format::People).unwrap_or(Exit::Failure), exit, "{text}");
        }
    }

    #[test]
    fn an_export_names_its_form() {
        use clap::{CommandFactory, Parser};
        super::super::Cli::command().debug_assert();
        let parse = |words: &str| super::super::Cli::try_parse_from(words.split(' '));
        assert!(parse("trainyard export digits --openpai").is_ok());
        assert!(parse("trainyard export digits").unwrap_err().to_string().contains("--openpai"));
        assert!(parse("trainyard import a.json b.yaml -o jobs.d").is_ok());
    }

    #[test]
    fn one_refused_file_does_not_keep_the_others_from_being_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let good = r#"{"jobName": "good", "image": "i", "taskRoles": [{"name": "w", "command": "c"}]}"#;
        let files = [file("bad.json", "{,}"), file("good.json", good)];
        let exit = run(&files, Some(directory.path()), Writes::Nothing, Format::People).unwrap();
        assert!(exit == Exit::Failure && !directory.path().join("good.toml").exists());
        let exit = run(&files, Some(directory.path()), Writes::Files, Format::People).unwrap();
        assert_eq!(exit, Exit::Failure);
        assert!(directory.path().join("good.toml").exists());
    }
}
