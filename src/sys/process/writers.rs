//! Who has files open to be written, by `/proc`, as far as the caller may look into others.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::SFlag;

use crate::sys::walk::{Item, walk_what_can_be};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    pub pid: i32,
    /// What the kernel calls it.
    pub program: String,
    /// The file.
    pub path: PathBuf,
}

/// Whoever has a file below `directory` open to be written; each of a process's files once.
pub fn writers_below(directory: &Path) -> Vec<Writer> {
    let by_path = writers(&|fd, fdinfo| {
        let path = fs::read_link(fd).ok().filter(|path| path.starts_with(directory))?;
        is_written(&fdinfo()?).then_some(path)
    });
    if by_path.is_empty() { writers_elsewhere(directory) } else { by_path }
}

/// As [`writers_below`], of those to whom the files are at another place: a container's.
fn writers_elsewhere(directory: &Path) -> Vec<Writer> {
    let files = files_below(directory);
    if files.is_empty() {
        return Vec::new();
    }
    let inodes: HashSet<u64> = files.keys().map(|(_, ino)| *ino).collect();
    writers(&|fd, fdinfo| {
        let fdinfo = fdinfo()?;
        // What lies elsewhere is not looked at: its disk may hang.
        let is_sought = number(&fdinfo, "ino:", 10).is_some_and(|ino| inodes.contains(&ino));
        let found = (is_sought && is_written(&fdinfo)).then(|| fs::metadata(fd).ok()).flatten()?;
        files.get(&(found.dev(), found.ino())).map(|path| directory.join(path))
    })
}

/// By their devices and inodes, as far as they can be looked at.
fn files_below(directory: &Path) -> HashMap<(u64, u64), PathBuf> {
    let mut files = HashMap::new();
    let Ok(top) = File::open(directory) else { return files };
    let mut add = |item: &Item<'_>| {
        if item.kind() == SFlag::S_IFREG {
            files.insert((item.status.st_dev, item.status.st_ino), item.path.to_owned());
        }
        Ok(())
    };
    // What ends it leaves those that were found.
    let _ = walk_what_can_be(&top, &mut add, &mut |_, _| Ok(()));
    files
}

/// Which file is meant by an entry of `/proc/PID/fd`, of which more can be asked.
type Sought<'a> = &'a dyn Fn(&Path, &dyn Fn() -> Option<String>) -> Option<PathBuf>;

fn writers(sought: Sought<'_>) -> Vec<Writer> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.flat_map(|pid| writers_of(pid, sought)).collect()
}

fn writers_of(pid: i32, sought: Sought<'_>) -> Vec<Writer> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    // It is another user's, or has ended meanwhile.
    let Ok(open) = fs::read_dir(process.join("fd")) else { return Vec::new() };
    let written = open.flatten().filter_map(|entry| {
        let fdinfo = || fs::read_to_string(process.join("fdinfo").join(entry.file_name())).ok();
        sought(&entry.path(), &fdinfo)
    });
    let mut paths: Vec<PathBuf> = written.collect();
    paths.sort_unstable();
    paths.dedup();
    let program = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
    paths.into_iter().map(|path| Writer { pid, program: program.clone(), path }).collect()
}

/// By the flags in `/proc/PID/fdinfo/N`, which are octal.
fn is_written(fdinfo: &str) -> bool {
    let flags = number(fdinfo, "flags:", 8).and_then(|flags| i32::try_from(flags).ok());
    flags.is_some_and(|flags| flags & OFlag::O_ACCMODE.bits() != OFlag::O_RDONLY.bits())
}

fn number(fdinfo: &str, key: &str, radix: u32) -> Option<u64> {
    fdinfo.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(key)?.trim(), radix).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_file_open_to_be_written_is_told_and_no_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::write(path.join("read"), "").unwrap();
        let _open = [File::create(path.join("written")), File::open(path.join("read"))].map(Result::unwrap);
        let told: Vec<_> = writers_below(&path).into_iter().map(|writer| (writer.pid, writer.path)).collect();
        assert_eq!(told, [(nix::unistd::getpid().as_raw(), path.join("written"))]);
        assert_eq!(writers_below(&path.join("none")), []);
    }

    #[test]
    fn whoever_has_the_file_at_another_place_is_told_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (draft, elsewhere) = (path.join("draft"), path.join("elsewhere"));
        fs::create_dir_all(draft.join("sub")).unwrap();
        fs::write(draft.join("sub/read"), "").unwrap();
        let _written = File::create(&elsewhere).unwrap();
        fs::hard_link(&elsewhere, draft.join("sub/written")).unwrap();
        let _read = File::open(draft.join("sub/read")).unwrap();
        let told: Vec<_> = writers_below(&draft).into_iter().map(|writer| (writer.pid, writer.path)).collect();
        assert_eq!(told, [(nix::unistd::getpid().as_raw(), draft.join("sub/written"))]);
    }
}
