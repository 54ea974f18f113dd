//! `trainyard backup FILE | DIR`, `trainyard restore FILE`: of root, about this machine's installation.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::output::{self, Format};
use super::progress::Progress;
use super::{Exit, unreadable};
use crate::api::client::{Client, ClientError};
use crate::api::tokens::TokenId;
use crate::backup::{self, LACKS, Restored, TokensTold, Told, Wanted};
use crate::config::Paths;
use crate::ids::Timestamp;
use crate::sys::file::UnnamedFile;
use crate::transfer::Counted;

/// Takes a backup; from the daemon where one runs.
pub(super) async fn backup(client: &Client, paths: &Paths, target: &Path, format: Format) -> anyhow::Result<Exit> {
    let target = file_for(target)?;
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |error| unwritable(directory, error);
    // Both are gone when this process is, however it ends; the backup gets its name when it is whole.
    let mut state = UnnamedFile::in_directory(directory).map_err(failed)?;
    let out = UnnamedFile::in_directory(directory).map_err(failed)?;
    let mut progress = Progress::new(format);
    copy_state(client, paths, state.file(), &mut |done| progress.bytes("state", done, None)).await?;
    let mut told = |done| progress.bytes("backup", done, None);
    let left_out = backup::write(paths, state.file_mut(), out.file(), crate::sys::now(), &mut told)?;
    progress.end();
    let size = out.file().metadata()?.len();
    out.name(&target).with_context(|| format!("cannot give the backup its name {}", target.display()))?;
    left_out.iter().for_each(|note| output::aside(note));
    match format {
        Format::Json => {
            output::json(&serde_json::json!({ "file": target, "bytes": size, "lacks": LACKS, "left_out": left_out }))?
        }
        Format::People => {
            output::line(&format!("{}: {}", target.display(), crate::ids::Bytes(size)))?;
            output::aside("it holds the state, job files, configuration and secrets; keep it where only root reads");
            output::aside(&format!("not in it: {LACKS}"));
        }
    }
    Ok(Exit::Success)
}

fn unwritable(directory: &Path, error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            anyhow::anyhow!("there is no directory {}; make it, or name another one", directory.display())
        }
        _ => anyhow::Error::new(error).context(format!("cannot write in {}", directory.display())),
    }
}

/// What files of backups are called by.
const ENDING: &str = ".tar.zst";

/// A name of its own in a directory, or the file that was named.
fn file_for(target: &Path) -> anyhow::Result<PathBuf> {
    if target.is_dir() {
        let time = crate::sys::now().to_string().replace([':', '.'], "-");
        return Ok(target.join(format!("trainyard-{time}{ENDING}")));
    }
    if target.symlink_metadata().is_ok() {
        bail!(
            "{} is there already; name a new file, or a directory, in which backups get names of their own",
            target.display()
        );
    }
    // A directory that is not there yet would become a file that is in the way of each later backup.
    if !target.as_os_str().as_bytes().ends_with(ENDING.as_bytes()) {
        bail!("there is no directory {}; make it, or name a new file FILE{ENDING}", target.display());
    }
    Ok(target.to_owned())
}

async fn copy_state(client: &Client, paths: &Paths, state: &File, told: Told<'_>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(Counted::new(state, told));
    match client.copy_state(&mut out).await {
        Err(ClientError::NotRunning { .. }) if paths.store_file().exists() || paths.config_dir().exists() => {
            let offline = backup::offline(paths)?;
            Ok(backup::copy_state(paths, &offline, &mut out)?)
        }
        Err(ClientError::NotRunning { .. }) => {
            bail!("there is no installation at {}; name its directory with --root", paths.root().display())
        }
        copied => {
            copied?;
            Ok(io::Write::flush(&mut out)?)
        }
    }
}

pub(super) fn restore(paths: &Paths, from: &Path, wanted: Wanted, format: Format) -> anyhow::Result<Exit> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("only root may restore: use sudo");
    }
    let mut progress = Progress::new(format);
    let of = from.metadata().map_err(|error| unreadable(from, error))?.len();
    let mut told = |done| progress.bytes("restore", done, Some(of));
    let restored = backup::restore(paths, from, wanted, crate::sys::now(), &mut told)?;
    progress.end();
    match format {
        Format::Json => output::json(&serde_json::json!({
            "taken": restored.manifest.taken.to_string(),
            "host": restored.manifest.host,
            "jobs": restored.jobs,
            "open_runs": restored.open,
            "newer": restored.newer,
            "aside": restored.aside,
            "tokens": Named::among(&restored.tokens.restored).tokens(),
            "tokens_left_out": Named::among(&restored.tokens.left_out).tokens(),
            "tokens_of_earlier_version": Named::among(&[&restored.tokens.restored[..], &restored.tokens.left_out].concat()).strays,
            "ids_gone": restored.ids_gone,
            "without_access_lists": restored.without_lists,
        }))?,
        Format::People => tell(&restored)?,
    }
    Ok(Exit::Success)
}

fn tell(restored: &Restored) -> anyhow::Result<()> {
    let (taken, host) = (restored.manifest.taken, &restored.manifest.host);
    let open = match restored.open {
        0 => "all of them were over".to_owned(),
        1 => "1 was not over, and goes on when the daemon starts".to_owned(),
        open => format!("{open} were not over, and go on when the daemon starts"),
    };
    output::line(&format!("restored {} job(s) as of {taken} ({host}); {open}", restored.jobs))?;
    let notes = restored.newer.iter().chain(&restored.ids_gone).chain(&restored.without_lists);
    notes.for_each(|what| output::aside(&crate::sys::terminal::escape(what)));
    restored.aside.iter().for_each(|path| output::aside(&format!("set aside: {}", path.display())));
    output::aside(&format!("not in a backup: {LACKS}"));
    told_of_tokens(&restored.tokens, taken).iter().for_each(|line| output::aside(&crate::sys::terminal::escape(line)));
    Ok(())
}

/// Files of tokens: by their names some are of an earlier version, and open nothing.
#[derive(Debug, Default)]
struct Named {
    ids: Vec<TokenId>,
    strays: Vec<String>,
}

impl Named {
    fn among(names: &[String]) -> Self {
        let mut named = Self::default();
        for name in names {
            match name.parse() {
                Ok(id) => named.ids.push(id),
                Err(_) => named.strays.push(name.clone()),
            }
        }
        named
    }

    fn tokens(&self) -> Vec<String> {
        self.ids.iter().map(ToString::to_string).collect()
    }
}

/// What became of them, one line each.
fn told_of_tokens(told: &TokensTold, taken: Timestamp) -> Vec<String> {
    let (good, left_out) = (Named::among(&told.restored), Named::among(&told.left_out));
    let mut lines = Vec::new();
    if !good.ids.is_empty() {
        lines.push(format!(
            "tokens of the API are good again, also if they were revoked since {taken}; when the daemon runs, these revoke them:"
        ));
        lines.extend(good.ids.iter().map(|id| format!("  trainyard token rm {} --user {}", id.name, id.uid)));
    }
    if !left_out.ids.is_empty() {
        lines.push(format!(
            "not restored, since they may have been revoked since {taken}: the tokens {}. Make new ones, or restore again with --with-tokens",
            left_out.tokens().join(" ")
        ));
    }
    let strays = [good.strays, left_out.strays].concat();
    if !strays.is_empty() {
        lines.push(format!("of an earlier version, they open nothing: the tokens {}. Make new ones", strays.join(" ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_taken_for_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("backups");
        let refused = file_for(&place).unwrap_err().to_string();
        assert!(refused.starts_with("there is no directory ") && refused.contains("FILE.tar.zst"), "{refused}");
        assert_eq!(file_for(&dir.path().join("b.tar.zst")).unwrap(), dir.path().join("b.tar.zst"));
        std::fs::create_dir(&place).unwrap();
        let named = file_for(&place).unwrap();
        assert_eq!(named.parent(), Some(&*place));
        assert!(named.to_string_lossy().ends_with(ENDING), "{named:?}");
    }

    #[test]
    fn tokens_of_an_earlier_version_are_not_called_good() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let told = TokensTold { restored: names(&["0.kept", "old"]), left_out: Vec::new() };
        let lines = told_of_tokens(&told, Timestamp(0));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].contains("good again") && lines[1].ends_with("token rm kept --user 0"), "{lines:?}");
        assert!(lines[2].contains("open nothing: the tokens old."), "{lines:?}");
        let told = TokensTold { restored: Vec::new(), left_out: names(&["old", "7.ci"]) };
        let lines = told_of_tokens(&told, Timestamp(0));
        assert!(lines[0].contains("the tokens 7.ci.") && lines[1].contains("the tokens old."), "{lines:?}");
        assert_eq!(told_of_tokens(&TokensTold::default(), Timestamp(0)), Vec::<String>::new());
    }
}
