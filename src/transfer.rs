//! Files on their way into or out of a task, as a tar stream; the same code at both ends.
//!
//! ```text
//! pack(source) ─► NAME, NAME/a, NAME/a/b …   (./ and a, a/b … for `source/.`, the content of a directory)  ─► unpack(target)
//! ```
//! Called by `cp` on the machine, as its caller, and by `enter` in the task, as the task's user. What is written belongs to
//! whoever unpacks; links stay links, permissions and times are kept, the set-user-id bits are not. Which name the first
//! member gets is decided where it arrives, as `cp` and `docker cp` do.
//!
//! Never does: follow a link below the source or the target, reach above the target, read a device or pipe.

mod pack;
mod unpack;

use std::io;
use std::path::Path;

pub use pack::pack;
pub use unpack::unpack;

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
    let what = format!("{what} {}", path.display());
    move |source| TransferError { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn copy(from: &str, to: &str) -> Result<Vec<String>, String> {
        let (mut stream, mut notes) = (Vec::new(), Vec::new());
        pack(Path::new(from), &mut stream, &mut |note| notes.push(note)).map_err(|error| error.told())?;
        unpack(stream.as_slice(), Path::new(to)).map_err(|error| error.told())?;
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
            named(b"/tmp/evil-cp"),
            named(b"other"),
        ] {
            let _ = fs::remove_dir_all(&target);
            assert!(unpack(stream.as_slice(), &target).is_err());
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        }
        assert!(!Path::new("/tmp/evil-cp").exists());
        let mut cut = Vec::new();
        fs::write(dir.path().join("long"), vec![7; 10_000]).unwrap();
        pack(&dir.path().join("long"), &mut cut, &mut |_| {}).unwrap();
        cut.truncate(5_000);
        assert!(unpack(cut.as_slice(), &dir.path().join("cut")).is_err(), "a part is not the whole");
    }
}
