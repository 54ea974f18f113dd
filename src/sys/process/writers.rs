//! Who has files open to be written, by `/proc`, as far as the caller may look into others.

use std::fs;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

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
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.flat_map(|pid| writers_of(pid, directory)).collect()
}

fn writers_of(pid: i32, directory: &Path) -> Vec<Writer> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    // It is another user's, or has ended meanwhile.
    let Ok(open) = fs::read_dir(process.join("fd")) else { return Vec::new() };
    let written = open.flatten().filter_map(|entry| {
        let path = fs::read_link(entry.path()).ok().filter(|path| path.starts_with(directory))?;
        is_written(&fs::read_to_string(process.join("fdinfo").join(entry.file_name())).ok()?).then_some(path)
    });
    let mut paths: Vec<PathBuf> = written.collect();
    paths.sort_unstable();
    paths.dedup();
    let program = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
    paths.into_iter().map(|path| Writer { pid, program: program.clone(), path }).collect()
}

/// By the line `flags:` of `/proc/PID/fdinfo/N`, octal.
fn is_written(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlag::O_ACCMODE.bits() != OFlag::O_RDONLY.bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

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
}
