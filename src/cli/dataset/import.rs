//! What is brought into a draft: from a directory, a file, or an address.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, anyhow};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;

use super::super::output::Format;
use super::super::progress::Progress;
use super::super::{Exit, WrongArgument, unreadable};
use super::draft::{Directory, plain_mode};
use super::{fetch, tell};
use crate::assets::DRAFT;
use crate::ids::{AssetName, Bytes};
use crate::sys::file::{copy_data, copy_user_attributes};

/// What has come.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// There already, of the same size and time.
    kept: u64,
    skipped: u64,
    /// Further names of files that have come by another name.
    parted: u64,
}

fn cannot_make(draft: &Path, error: io::Error) -> anyhow::Error {
    let place = draft.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => anyhow!(
            "you may not write to {place}: who may write job files of a workspace makes datasets in it, and whose a draft is writes to \
             it; with --public anybody makes one, for all workspaces"
        ),
        _ => anyhow::Error::new(error).context(format!("cannot make {place}")),
    }
}

pub(super) async fn import(datasets: &Path, name: &AssetName, source: &str, format: Format) -> anyhow::Result<Exit> {
    refuse_stores(source)?;
    let place = datasets.join(name.as_str()).join(DRAFT);
    let unmade = |error| cannot_make(&place, error);
    let datasets = Directory::open(datasets).map_err(unmade)?;
    let dataset = datasets.made(name.as_str()).map_err(unmade)?;
    let draft = dataset.made(DRAFT).map_err(unmade)?;
    let mut line = Progress::new(format);
    let mut brought = Brought::default();
    let is_address = ["http://", "https://"].iter().any(|scheme| source.starts_with(scheme));
    let came = match is_address {
        true => fetch::plain(source),
        false => fs::canonicalize(source).map_or_else(|_| source.to_owned(), |path| path.display().to_string()),
    };
    // Of several files some are missing until the last one has come; of one its own mark tells that.
    let is_tree = !is_address && fs::read_dir(source).is_ok();
    let unfinished = draft.unfinished(&came).map_err(unmade)?;
    let mut told = |brought: &Brought| {
        line.set(name.as_str(), || format!("{} file(s), {}", brought.files, Bytes(brought.bytes).roughly()));
    };
    let done = match is_address {
        true => fetch::fetch(source, &draft, &mut brought, &mut told).await,
        false => bring(Path::new(source), &draft, &mut brought, &mut told),
    };
    line.end();
    let whole = if done.is_err() && is_tree { unfinished.forget_if_alone() } else { unfinished.forget() };
    if done.is_err() {
        // Nothing has come: no dataset is left behind. What is not empty stays.
        let _ = dataset.remove_empty(DRAFT).and_then(|()| datasets.remove_empty(name.as_str()));
    }
    done?;
    whole
        .with_context(|| format!("cannot take the mark of what has come out of {}", dataset.shown(DRAFT).display()))?;
    let left = if brought.kept > 0 { format!(", {} were there already", brought.kept) } else { String::new() };
    let skipped = if brought.skipped > 0 {
        format!(", {} left out that are neither files, links nor directories", brought.skipped)
    } else {
        String::new()
    };
    let parted = match brought.parted {
        0 => String::new(),
        count => format!(", {count} name(s) of files that had several (hard links) are files of their own now"),
    };
    let (files, bytes, place) = (brought.files, Bytes(brought.bytes), dataset.shown(DRAFT));
    tell(&format!("{files} file(s), {bytes} brought into {}{left}{skipped}{parted}", place.display()), format)?;
    Ok(Exit::Success)
}

/// What is neither a path nor an address that is read here.
fn refuse_stores(source: &str) -> anyhow::Result<()> {
    let Some((kind, _)) = source.split_once(':') else { return Ok(()) };
    let is_kind = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_kind || ["http", "https"].contains(&kind) || fs::symlink_metadata(source).is_ok() {
        return Ok(());
    }
    let why = format!(
        "cannot import from {source}: a path, or an http:// or https:// address is what can be; what lies in a store \
         (s3:POOL/PREFIX and the like) is copied in for a job by `mounts` in its file"
    );
    Err(WrongArgument(why).into())
}

fn bring(
    source: &Path,
    draft: &Directory,
    brought: &mut Brought,
    told: &mut dyn FnMut(&Brought),
) -> anyhow::Result<()> {
    // As it was named, links and all; what lies below is not ours to trust.
    let opened = File::open(source).map_err(|error| unreadable(source, error))?;
    if opened.metadata().with_context(|| format!("cannot read {}", source.display()))?.is_dir() {
        return Bringing::new(brought, told).below(&Source { held: opened.into(), shown: source }, draft);
    }
    let name = source.file_name().with_context(|| format!("{} has no name", source.display()))?;
    let at = || format!("cannot bring {} to {}", source.display(), draft.shown(name).display());
    Bringing::new(brought, told).file(opened, draft, name).with_context(at)
}

/// A directory that is brought.
struct Source<'a> {
    held: OwnedFd,
    shown: &'a Path,
}

impl Source<'_> {
    fn names(&self) -> io::Result<Vec<std::ffi::CString>> {
        let names = Dir::read_from(&self.held)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
        let mut names = names.collect::<Result<Vec<_>, Errno>>()?;
        names.retain(|name| !matches!(name.to_bytes(), b"." | b".."));
        Ok(names)
    }

    /// What has the name, itself: whoever may write there does not lead us elsewhere by a link.
    fn open(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(&self.held, name, flags, Mode::empty())?.into())
    }
}

struct Bringing<'a> {
    brought: &'a mut Brought,
    told: &'a mut dyn FnMut(&Brought),
    /// Files with several names that were met.
    met: HashSet<(u64, u64)>,
}

impl<'a> Bringing<'a> {
    fn new(brought: &'a mut Brought, told: &'a mut dyn FnMut(&Brought)) -> Self {
        Self { brought, told, met: HashSet::new() }
    }

    fn below(&mut self, source: &Source<'_>, target: &Directory) -> anyhow::Result<()> {
        for name in source.names().with_context(|| format!("cannot bring {}", source.shown.display()))? {
            let name = OsStr::from_bytes(name.to_bytes());
            let from = source.shown.join(name);
            let at = || format!("cannot bring {} to {}", from.display(), target.shown(name).display());
            let status = statat(&source.held, name, AtFlags::SYMLINK_NOFOLLOW).with_context(at)?;
            match FileType::from_raw_mode(status.st_mode) {
                FileType::Directory => {
                    let below = source.open(name).with_context(at)?;
                    let permissions = below.metadata().with_context(at)?.permissions();
                    // Nobody but the caller looks into it until all of it has come.
                    let into = target.made_private(name).with_context(at)?;
                    let below = Source { held: below.into(), shown: &from };
                    self.below(&below, &into)?;
                    into.take_attributes(&below.held).with_context(at)?;
                    into.set_mode(plain_mode(&permissions)).with_context(at)?;
                }
                FileType::Symlink => {
                    let leads = readlinkat(&source.held, name, Vec::new()).with_context(at)?;
                    target.link(name, OsStr::from_bytes(leads.as_bytes())).with_context(at)?;
                }
                FileType::RegularFile => {
                    source.open(name).and_then(|opened| self.file(opened, target, name)).with_context(at)?;
                }
                _ => self.brought.skipped += 1,
            }
        }
        Ok(())
    }

    /// A file of the same size and time is there already; of one that broke off, what is there is kept.
    fn file(&mut self, from: File, target: &Directory, name: &OsStr) -> io::Result<()> {
        let metadata = from.metadata()?;
        let time = metadata.modified()?;
        let mut coming = target.coming(name);
        if metadata.nlink() > 1 && !self.met.insert((metadata.dev(), metadata.ino())) {
            self.brought.parted += 1;
        }
        if target.has(name, metadata.len(), time) {
            self.brought.kept += 1;
            // A call may have been killed at its very end.
            return coming.forget();
        }
        // A part of another file, or of another state of it, is begun anew.
        let state = format!("{} {} {} {:?}", metadata.dev(), metadata.ino(), metadata.len(), time);
        let has = if coming.state == state { coming.length().min(metadata.len()) } else { 0 };
        // Nobody but the caller reads in it until it is whole.
        let to = coming.begin(has, &state, 0o600)?;
        self.brought.bytes += has;
        copy_data(&from, &to, has, &mut |count| {
            self.came(count);
            Ok(())
        })?;
        copy_user_attributes(&from, &to)?;
        to.set_permissions(PermissionsExt::from_mode(plain_mode(&metadata.permissions())))?;
        to.set_modified(time)?;
        coming.finish()?;
        self.brought.files += 1;
        Ok(())
    }

    fn came(&mut self, count: u64) {
        self.brought.bytes += count;
        (self.told)(self.brought);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    #[test]
    fn directories_get_their_rights_without_set_id_bits_and_are_private_until_all_has_come() {
        let dir = tempfile::tempdir().unwrap();
        let (source, draft) = (dir.path().join("source"), dir.path().join("draft"));
        fs::create_dir_all(source.join("private")).unwrap();
        fs::create_dir(&draft).unwrap();
        fs::write(source.join("private/file"), "text").unwrap();
        fs::set_permissions(source.join("private"), PermissionsExt::from_mode(0o7750)).unwrap();
        let mode = || fs::metadata(draft.join("private")).unwrap().permissions().mode() & 0o7777;
        let directory = Directory::open(&draft).unwrap();
        let mut seen = Vec::new();
        bring(&source, &directory, &mut Brought::default(), &mut |_| seen.push(mode())).unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == 0o700), "{seen:?}");
        assert_eq!(mode(), 0o750);
    }

    #[test]
    fn holes_are_not_filled_and_what_came_of_them_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let (source, draft) = (dir.path().join("source"), dir.path().join("draft"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&draft).unwrap();
        let file = File::create(source.join("sparse")).unwrap();
        file.write_all_at(b"start", 0).unwrap();
        file.write_all_at(b"late", 5 << 40).unwrap();
        file.set_len(10 << 40).unwrap();
        fs::write(source.join("empty"), "").unwrap();
        let directory = Directory::open(&draft).unwrap();
        // As a call that was killed in the first hole has left it.
        let is = file.metadata().unwrap();
        let state = format!("{} {} {} {:?}", is.dev(), is.ino(), is.len(), is.modified().unwrap());
        let mut part = directory.coming(OsStr::new("sparse")).begin(0, &state, 0o600).unwrap();
        part.write_all(b"START").unwrap();
        let mut brought = Brought::default();
        bring(&source, &directory, &mut brought, &mut |_| ()).unwrap();
        assert_eq!((brought.files, brought.bytes, brought.kept), (2, 10 << 40, 0));
        let copy = File::open(draft.join("sparse")).unwrap();
        let metadata = copy.metadata().unwrap();
        assert_eq!(metadata.len(), 10 << 40);
        assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
        let mut bytes = [0; 6];
        copy.read_exact_at(&mut bytes, (5 << 40) - 1).unwrap();
        assert_eq!(&bytes, b"\0late\0");
        copy.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"START\0", "what was there is not read again");
    }
}
