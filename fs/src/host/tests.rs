use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::*;
use crate::attr::Kind;

fn host() -> (tempfile::TempDir, Host) {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::open(dir.path()).unwrap();
    (dir, host)
}

fn at(path: &str) -> RelPath {
    RelPath::new(path).unwrap()
}

#[test]
fn a_symlink_is_pinned_itself_and_never_walked_through() {
    let (dir, host) = host();
    symlink("/etc", dir.path().join("out")).unwrap();
    let link = host.pin(&at("out")).unwrap();
    assert_eq!(link.attr().kind, Kind::Symlink);
    assert_eq!(link.read_link().unwrap(), "/etc");
    assert_eq!(link.open(OFlag::O_RDONLY).unwrap_err().errno(), Errno::ENXIO);
    let through = host.pin(&at("out/passwd")).unwrap_err();
    assert_eq!(through.errno(), Errno::ELOOP);
    assert!(link.child(OsStr::new("passwd")).is_err());
}

#[test]
fn changing_a_pinned_symlink_leaves_its_target_alone() {
    let (dir, host) = host();
    fs::write(dir.path().join("target"), b"12345").unwrap();
    symlink("target", dir.path().join("link")).unwrap();
    let before = fs::metadata(dir.path().join("target")).unwrap();
    let link = host.pin(&at("link")).unwrap();
    let epoch = nix::sys::time::TimeSpec::new(1, 0);
    link.set_times(Times { atime: epoch, mtime: epoch }).unwrap();
    assert!(link.set_mode(0o777).is_err());
    assert!(link.set_size(0).is_err());
    let after = fs::metadata(dir.path().join("target")).unwrap();
    assert_eq!(before.mode(), after.mode());
    assert_eq!(before.mtime(), after.mtime());
    assert_eq!(after.len(), 5);
    assert_eq!(fs::symlink_metadata(dir.path().join("link")).unwrap().mtime(), 1);
}

#[test]
fn a_pin_stays_with_its_object_when_the_name_is_given_to_another() {
    let (dir, host) = host();
    fs::write(dir.path().join("f"), b"old").unwrap();
    let pin = host.pin(&at("f")).unwrap();
    fs::write(dir.path().join("g"), b"new").unwrap();
    fs::rename(dir.path().join("g"), dir.path().join("f")).unwrap();
    pin.set_size(1).unwrap();
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"new");
}
