use std::os::unix::fs::MetadataExt;

use crate::archive::{Attributes, PLAIN, Tar};
use crate::tree::{Place, node};

const KINDS: [&str; 7] = ["file", "empty directory", "directory", "symlink", "hard link", "fifo", "device"];

fn add(tar: Tar, kind: &str, name: &str) -> Tar {
    match kind {
        "file" => tar.file(name, kind.as_bytes()),
        "empty directory" => tar.dir_with(name, Attributes { mode: 0o1750, ..PLAIN }),
        "directory" => tar.dir(name).file(&format!("{name}/deep/below"), b"below"),
        "symlink" => tar.symlink(name, "other"),
        "hard link" => tar.link(name, "other"),
        "fifo" => tar.fifo(name),
        _ => tar.device(b'3', name, 1, 3),
    }
}

#[test]
fn the_last_of_two_entries_wins_whatever_they_are() {
    for first in KINDS {
        for second in KINDS {
            let place = Place::new();
            let tar = add(add(Tar::new().file("other", b"other"), first, "x"), second, "x");
            place.unpack(&tar.end()).unwrap();
            let x = node(&place.layer().join("x"));
            let expected = match second {
                "file" => nix::libc::S_IFREG,
                "empty directory" | "directory" => nix::libc::S_IFDIR,
                "symlink" => nix::libc::S_IFLNK,
                "hard link" => nix::libc::S_IFREG,
                "fifo" => nix::libc::S_IFIFO,
                _ => nix::libc::S_IFCHR,
            };
            assert!(x.is(expected), "{first}, then {second}: {x:?}");
            assert_eq!(place.read("other"), b"other", "{first}, then {second}");
            let others = if second == "hard link" { 2 } else { 1 };
            assert_eq!(node(&place.layer().join("other")).links, others, "{first}, then {second}");
            let has_below = place.layer().join("x/deep/below").exists();
            let keeps = second == "directory" || (first, second) == ("directory", "empty directory");
            assert_eq!(has_below, keeps, "{first}, then {second}");
            if second == "empty directory" {
                assert_eq!(x.mode & 0o7777, 0o1750, "{first}, then {second}");
                assert_eq!(x.mtime, (1_000_000_000, 0), "{first}, then {second}");
            }
        }
    }
}

#[test]
fn a_later_entry_for_an_implied_directory_makes_it_explicit() {
    let place = Place::new();
    let tar = Tar::new().file("a/b/c/x", b"").dir_with("a/b", Attributes { mode: 0o700, uid: 5, gid: 6, mtime: 7 });
    let unpacked = place.unpack(&tar.end()).unwrap();
    assert_eq!(unpacked.implied_directories, ["a", "a/b/c"].map(std::path::PathBuf::from));
    let implied = node(&place.layer().join("a"));
    assert_eq!((implied.mode & 0o7777, implied.owner), (0o755, (0, 0)));
    let explicit = node(&place.layer().join("a/b"));
    assert_eq!((explicit.mode & 0o7777, explicit.owner, explicit.mtime), (0o700, (5, 6), (7, 0)));
}

#[test]
fn an_implied_directory_that_is_replaced_is_told_no_more() {
    let place = Place::new();
    let unpacked = place.unpack(&Tar::new().file("a/b/x", b"").file("a", b"").end()).unwrap();
    assert!(unpacked.implied_directories.is_empty(), "{:?}", unpacked.implied_directories);
}

#[test]
fn a_file_keeps_its_time_where_a_directory_was() {
    let place = Place::new();
    let late = Attributes { mtime: 2_000_000_000, ..PLAIN };
    let tar = Tar::new().dir("a").dir("a/b").file_with("a/b", b"", late).dir("c").symlink("c", "d").dir_with("d", late);
    place.unpack(&tar.end()).unwrap();
    assert_eq!(node(&place.layer().join("a/b")).mtime.0, 2_000_000_000);
    assert_eq!(node(&place.layer().join("d")).mtime.0, 2_000_000_000);
}

#[test]
fn the_root_gets_the_attributes_of_its_entry() {
    for name in [".", "./", "/"] {
        let place = Place::new();
        let tar = Tar::new()
            .pax(&[(b"SCHILY.xattr.user.x", b"y")])
            .dir_with(name, Attributes { mode: 0o1711, uid: 3, gid: 4, mtime: 5 })
            .file("x", b"");
        let unpacked = place.unpack(&tar.end()).unwrap();
        let root = node(&place.layer());
        assert_eq!((root.mode & 0o7777, root.owner, root.mtime), (0o1711, (3, 4), (5, 0)));
        assert_eq!(root.xattrs.len(), 1);
        assert_eq!(unpacked.entries, 2);
        assert_eq!(std::fs::metadata(place.layer().join("x")).unwrap().uid(), 0);
    }
}
