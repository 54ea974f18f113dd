//! Files on their way into or out of a task, as a tar stream; the same code at both ends.
//!
//! ```text
//! pack(source) ─► NAME, NAME/a, NAME/a/b …   (./ and a, a/b … for `source/.`, the content of a directory)  ─► unpack(target)
//! ```
//! Called by `cp` on the machine, as its caller, and by `enter` in the task, as the task's user. What is written belongs to
//! whoever unpacks; links stay links, permissions and times are kept, the set-user-id bits are not. Which name the first
//! member gets is decided where it arrives, as `cp` and `docker cp` do. Backups take trees in the same way, by [`append`] and
//! [`Tree`], with their owners, all bits of their modes and their access lists.
//!
//! Never does: follow a link below the source or the target, or one of `/proc` to what a process holds; reach above the
//! target; read a device or pipe, or replace one.

mod access_lists;
mod counted;
mod pack;
mod unpack;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use counted::Counted;
pub use pack::{append, pack};
pub use unpack::{Asked, Tree, unpack};

use crate::sys::terminal;

/// What could not be copied, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct TransferError {
    what: String,
    #[source]
    source: io::Error,
}

impl TransferError {
    /// With its cause, in one line.
    pub fn told(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> TransferError {
    let what = format!("{what} {}", shown(path));
    move |source| TransferError { what, source: explained(source) }
}

/// What the kernel says of a link of `/proc` means something else to people, and that there is nothing says not what to do.
fn explained(error: io::Error) -> io::Error {
    let says = match error.raw_os_error() {
        Some(nix::libc::ENOENT) => "there is no such file or directory; `ls` shows what lies where",
        Some(nix::libc::ELOOP) => {
            "too many links, or one of those in /proc that lead to what a process holds; they are not followed"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), says)
}

/// A path for people; it may have been named by others.
fn shown(path: &Path) -> String {
    terminal::escape(&path.display().to_string())
}

/// The name that what lies at `source` has in the stream; none when that is the content of a directory.
fn name_of(source: &Path) -> Option<&OsStr> {
    let bytes = source.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/')? + 1;
    let is_content = bytes[..end].ends_with(b"/.") || &bytes[..end] == b".";
    source.file_name().filter(|_| !is_content)
}

/// Where what is called `path` lies.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn copy(from: &str, to: &str) -> Result<Vec<String>, String> {
        let (mut stream, mut notes) = (Vec::new(), Vec::new());
        pack(Path::new(from), &mut stream, &mut |note| notes.push(note)).map_err(|error| error.told())?;
        unpack(stream.as_slice(), Path::new(to), Asked::Source(Path::new(from))).map_err(|error| error.told())?;
        Ok(notes)
    }

    fn tree(root: &Path) {
        fs::create_dir_all(root.join("sub/empty")).unwrap();
        fs::write(root.join("sub/file"), "content").unwrap();
        fs::set_permissions(root.join("sub/file"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::write(root.join(format!("sub/{}", "long".repeat(60))), "long").unwrap();
        symlink("/etc/shadow", root.join("link")).unwrap();
        symlink("sub", root.join("dir-link")).unwrap();
        nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
        for path in ["sub/file", "sub/empty", "sub"] {
            fs::File::open(root.join(path)).unwrap().set_modified(old).unwrap();
        }
        fs::set_permissions(root.join("sub"), fs::Permissions::from_mode(0o555)).unwrap();
    }

    fn assert_tree(root: &Path) {
        assert_eq!(fs::read_to_string(root.join("sub/file")).unwrap(), "content");
        assert_eq!(fs::metadata(root.join("sub/file")).unwrap().mode() & 0o7777, 0o751);
        assert_eq!(fs::metadata(root.join("sub")).unwrap().mode() & 0o7777, 0o555);
        for path in ["sub/file", "sub/empty", "sub"] {
            let status = fs::metadata(root.join(path)).unwrap();
            assert_eq!((status.mtime(), status.mtime_nsec()), (1_000_000_000, 5), "{path}");
        }
        assert_eq!(fs::read_to_string(root.join(format!("sub/{}", "long".repeat(60)))).unwrap(), "long");
        assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("/etc/shadow"));
        assert_eq!(fs::read_link(root.join("dir-link")).unwrap(), Path::new("sub"));
        assert!(!root.join("fifo").exists());
    }

    #[test]
    fn names_go_where_cp_would_put_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        tree(&dir.path().join("from"));
        fs::create_dir(at("into")).unwrap();
        fs::write(at("plain"), "old").unwrap();
        let notes = copy(&at("from"), &at("new")).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("fifo"), "{notes:?}");
        copy(&at("from"), &at("into")).unwrap();
        copy(&at("from/"), &at("into2/")).unwrap();
        copy(&at("from/."), &at("into3")).unwrap();
        fs::create_dir(at("into4")).unwrap();
        copy(&at("from/."), &at("into4")).unwrap();
        for place in ["new", "into/from", "into2", "into3", "into4"] {
            assert_tree(&dir.path().join(place));
        }
        copy(&at("from/sub/file"), &at("plain")).unwrap();
        copy(&at("from/sub/file"), &at("into/")).unwrap();
        copy(&at("from/link"), &at("into/other")).unwrap();
        for place in ["plain", "into/file"] {
            assert_eq!(fs::read_to_string(at(place)).unwrap(), "content");
        }
        assert_eq!(fs::read_link(at("into/other")).unwrap(), Path::new("/etc/shadow"));
        for (from, to, word) in [
            ("absent", "x", "absent"),
            ("from/sub/file", "nowhere/", "nowhere"),
            ("from/sub/file", "no/where", "where"),
            ("from/sub/file", "plain/", "plain"),
            ("from", "plain", "plain"),
            ("from/sub/file/.", "x", "file"),
            ("fro\u{1b}[2Jm", "x", "fro\\u{1b}[2Jm"),
        ] {
            let error = copy(&at(from), &at(to)).unwrap_err();
            assert!(error.contains(word), "{from} {to}: {error}");
        }
    }

    #[test]
    fn what_comes_cannot_lead_out_of_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let target = dir.path().join("target");
        let header = |kind, size| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_mode(0o777);
            header
        };
        let through_a_link = {
            let mut builder = tar::Builder::new(Vec::new());
            builder.append_data(&mut header(tar::EntryType::Directory, 0), "d", io::empty()).unwrap();
            builder.append_link(&mut header(tar::EntryType::Symlink, 0), "d/l", &outside).unwrap();
            builder.append_data(&mut header(tar::EntryType::Regular, 1), "d/l/evil", &b"x"[..]).unwrap();
            builder.into_inner().unwrap()
        };
        let named = |name: &[u8]| {
            let mut builder = tar::Builder::new(Vec::new());
            builder.append_data(&mut header(tar::EntryType::Directory, 0), "d", io::empty()).unwrap();
            let mut header = header(tar::EntryType::Regular, 1);
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.set_cksum();
            builder.append(&header, &b"x"[..]).unwrap();
            builder.into_inner().unwrap()
        };
        for stream in [
            through_a_link,
            named(b"../outside/evil"),
            named(b"d/../../outside/evil"),
            named(outside.join("evil").as_os_str().as_bytes()),
            named(b"other"),
        ] {
            let _ = fs::remove_dir_all(&target);
            assert!(unpack(stream.as_slice(), &target, Asked::Anything).is_err());
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        }
        let mut cut = Vec::new();
        fs::write(dir.path().join("long"), vec![7; 10_000]).unwrap();
        pack(&dir.path().join("long"), &mut cut, &mut |_| {}).unwrap();
        cut.truncate(5_000);
        fs::write(dir.path().join("there"), "as it was").unwrap();
        for name in ["cut", "there"] {
            let unpacked = unpack(cut.as_slice(), &dir.path().join(name), Asked::Anything);
            assert!(unpacked.is_err(), "a part is not the whole");
        }
        assert_eq!(fs::read_to_string(dir.path().join("there")).unwrap(), "as it was");
        assert!(!dir.path().join("cut").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "nothing is left of what did not come whole");
    }

    #[test]
    fn nothing_comes_under_a_name_that_was_not_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("from/sub")).unwrap();
        fs::create_dir(at("into")).unwrap();
        fs::write(at("from/.bashrc"), "evil").unwrap();
        let packed = |source: &str| {
            let mut stream = Vec::new();
            pack(&at(source), &mut stream, &mut |_| {}).unwrap();
            stream
        };
        for (came, asked) in [("from/.bashrc", "/x/model"), ("from/.", "/x/from"), ("from", "/x/from/."), ("from", "/")]
        {
            let unpacked = unpack(packed(came).as_slice(), &at("into"), Asked::Source(Path::new(asked)));
            let error = unpacked.unwrap_err().told();
            assert!(error.contains("was asked for"), "{error}");
        }
        assert_eq!(fs::read_dir(at("into")).unwrap().count(), 0);
        for (came, asked) in [("from/.bashrc", ".bashrc"), ("from/.", "/"), ("from/..", "/x/y/.."), ("from/", "from//")]
        {
            unpack(packed(came).as_slice(), &at("into"), Asked::Source(Path::new(asked))).unwrap();
        }
    }

    #[test]
    fn devices_pipes_and_sockets_are_not_replaced() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir_all(at("from/sub")).unwrap();
        fs::write(at("from/sub/pipe"), "content").unwrap();
        fs::create_dir_all(at("into/sub")).unwrap();
        nix::unistd::mkfifo(Path::new(&at("into/sub/pipe")), Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        symlink("into/sub/pipe", at("link")).unwrap();
        for (from, to) in [
            ("from/sub/pipe", "into/sub/pipe"),
            ("from/sub/pipe", "into/sub"),
            ("from/.", "into"),
            ("from/sub/pipe", "socket"),
            ("from/sub/pipe", "link"),
        ] {
            let error = copy(&at(from), &at(to)).unwrap_err();
            assert!(error.contains("neither file nor directory") && error.contains("trainyard exec"), "{error}");
        }
        // What root alone can make.
        let device = at("device");
        if mknod(Path::new(&device), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).is_ok() {
            let error = copy(&at("from/sub/pipe"), &device).unwrap_err();
            assert!(error.contains("neither file nor directory"), "{error}");
            assert!(!fs::symlink_metadata(&device).unwrap().is_file());
        }
        for path in [at("into/sub/pipe"), at("socket"), at("link")] {
            assert!(!fs::symlink_metadata(&path).unwrap().is_file(), "{path}");
        }
    }

    #[test]
    fn no_link_of_proc_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir(at("held")).unwrap();
        fs::write(at("held/secret"), "secret").unwrap();
        let held = fs::File::open(at("held")).unwrap();
        let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        assert_eq!(fs::read_to_string(format!("{magic}/secret")).unwrap(), "secret");
        symlink(&magic, at("planted")).unwrap();
        for from in
            [format!("{magic}/secret"), format!("{magic}/."), format!("{magic}/../held/secret"), at("planted/secret")]
        {
            let error = copy(&from, &at("out")).unwrap_err();
            assert!(error.contains("not followed"), "{from}: {error}");
        }
        for to in [format!("{magic}/new"), magic.clone(), at("planted/new"), at("planted")] {
            let error = copy(&at("held/secret"), &to).unwrap_err();
            assert!(error.contains("not followed"), "{to}: {error}");
        }
        assert_eq!(fs::read_dir(at("held")).unwrap().count(), 1);
        assert!(!Path::new(&at("out")).exists());
    }

    #[test]
    fn what_the_kernel_makes_up_comes_as_long_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for file in ["/proc/self/status", "/proc/version"] {
            assert_eq!(fs::metadata(file).unwrap().len(), 0);
            copy(file, &at("copy")).unwrap();
            assert!(!fs::read(at("copy")).unwrap().is_empty(), "{file}");
        }
        assert_eq!(fs::read(at("copy")).unwrap(), fs::read("/proc/version").unwrap());
    }

    /// The content of directories is what is open, whatever their names come to mean.
    #[test]
    fn a_tree_that_is_changed_while_it_is_read_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("from/a")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        fs::write(at("outside/b"), "outside").unwrap();
        for name in ["b", "c"] {
            fs::write(at("from/a").join(name), "inside").unwrap();
        }
        /// Swaps the directory when it goes by.
        struct Swapping<'a>(Vec<u8>, &'a dyn Fn());
        impl io::Write for Swapping<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.extend_from_slice(bytes);
                if bytes.starts_with(b"from/a/\0") || bytes.starts_with(b"from/a\0") {
                    (self.1)();
                }
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let swap = || {
            fs::rename(at("from/a"), at("aside")).unwrap();
            symlink(at("outside"), at("from/a")).unwrap();
        };
        let mut stream = Swapping(Vec::new(), &swap);
        pack(&at("from"), &mut stream, &mut |_| {}).unwrap();
        unpack(stream.0.as_slice(), &at("into"), Asked::Anything).unwrap();
        assert!(at("aside").exists(), "it was swapped");
        for name in ["b", "c"] {
            assert_eq!(fs::read_to_string(at("into/a").join(name)).unwrap(), "inside");
        }
    }
}
