use std::fs;
use std::os::unix::fs::MetadataExt;

use trainyard::images::unpack::UnpackError;

use crate::archive::Tar;
use crate::tree::{Place, node, told};

/// The archive is refused, and the error names `word`.
#[track_caller]
fn refused(tar: Tar, word: &str) -> UnpackError {
    let place = Place::new();
    let error = place.unpack(&tar.end()).expect_err("it is to be refused");
    assert!(told(&error).contains(word), "{}", told(&error));
    error
}

#[test]
fn names_that_lead_upwards_are_refused() {
    for name in ["../outside/secret", "a/../../outside/x", "..", "a/..", "/../outside/x", "./.."] {
        assert!(matches!(refused(Tar::new().file(name, b"bad"), name), UnpackError::Name { .. }));
        assert!(matches!(refused(Tar::new().dir(name), name), UnpackError::Name { .. }));
        assert!(matches!(refused(Tar::new().symlink(name, "x"), name), UnpackError::Name { .. }));
    }
}

#[test]
fn names_of_nothing_are_refused() {
    refused(Tar::new().file("", b""), "empty");
    refused(Tar::new().pax(&[(b"path", b"a\0b")]).file("x", b""), "NUL");
    refused(Tar::new().file("./", b""), "root directory");
    refused(Tar::new().symlink("/", "x"), "root directory");
}

#[test]
fn absolute_names_are_inside() {
    let place = Place::new();
    let absolute = place.outside().join("secret");
    place.unpack(&Tar::new().file(absolute.to_str().unwrap(), b"inside").file("//etc//x", b"x").end()).unwrap();
    let inside = place.layer().join(absolute.strip_prefix("/").unwrap());
    assert_eq!(fs::read(inside).unwrap(), b"inside");
    assert_eq!(place.read("etc/x"), b"x");
}

#[test]
fn links_that_lead_out_are_followed_inside() {
    let place = Place::new();
    let outside = place.outside();
    let up = "../".repeat(20) + outside.to_str().unwrap();
    // Never a directory of the machine: these tests run as root, also when what they test is broken.
    let root = outside.join("sub").display().to_string();
    let tar = Tar::new()
        .symlink("absolute", outside.to_str().unwrap())
        .symlink("relative", "../outside")
        .symlink("up", &up)
        .symlink("root", &root)
        .file("absolute/secret", b"one")
        .file("relative/secret", b"two")
        .file("up/third", b"three")
        .file("root/etc/made", b"four")
        .dir("relative/sub")
        .device(b'3', "relative/null", 1, 3)
        .link("relative/hard", "absolute/secret");
    let unpacked = place.unpack(&tar.end()).unwrap();
    assert_eq!(place.read("outside/secret"), b"two");
    assert_eq!(fs::read(place.layer().join(root.trim_start_matches('/')).join("etc/made")).unwrap(), b"four");
    assert_eq!(place.read("outside/hard"), b"one");
    assert_eq!(fs::read(place.layer().join(outside.strip_prefix("/").unwrap()).join("third")).unwrap(), b"three");
    assert!(unpacked.implied_directories.iter().any(|path| path.to_str() == Some("outside")));
}

#[test]
fn a_directory_that_becomes_a_link_is_not_written_through() {
    let place = Place::new();
    let outside = place.outside();
    let tar = Tar::new()
        .dir("a")
        .file("a/x", b"1")
        .symlink("a", outside.to_str().unwrap())
        .file("a/secret", b"bad")
        .file("a/x", b"bad");
    place.unpack(&tar.end()).unwrap();
    assert!(node(&place.layer().join("a")).is(nix::libc::S_IFLNK));
}

#[test]
fn an_entry_replaces_a_link_and_is_not_written_through_it() {
    let place = Place::new();
    let secret = place.outside().join("secret");
    let tar = Tar::new()
        .symlink("a", secret.to_str().unwrap())
        .file("a", b"new")
        .symlink("b", place.outside().to_str().unwrap())
        .dir("b")
        .file("b/secret", b"inside")
        .symlink("c", secret.to_str().unwrap())
        .link("d", "c")
        .file("d", b"");
    place.unpack(&tar.end()).unwrap();
    assert_eq!(place.read("a"), b"new");
    assert_eq!(place.read("b/secret"), b"inside");
    assert!(node(&place.layer().join("c")).is(nix::libc::S_IFLNK));
    assert!(node(&place.layer().join("d")).is(nix::libc::S_IFREG));
}

#[test]
fn hard_links_reach_nothing_outside() {
    let secret = Place::new();
    let secret = secret.outside().join("secret");
    for target in ["../outside/secret", "a/../../outside/secret"] {
        refused(Tar::new().link("x", target), target);
    }
    for target in ["/etc/passwd", secret.to_str().unwrap(), "absent", ""] {
        let error = refused(Tar::new().link("x", target), target);
        assert!(target.is_empty() || matches!(error, UnpackError::HardLink { .. }), "{error}");
    }
    refused(Tar::new().symlink("out", "/etc").link("x", "out/passwd"), "out/passwd");
    refused(Tar::new().symlink("out", "../outside").link("x", "out/secret"), "out/secret");
    assert!(matches!(refused(Tar::new().dir("d").link("x", "d"), "\"d\""), UnpackError::HardLink { .. }));
    assert!(matches!(refused(Tar::new().link("x", "/"), "\"/\""), UnpackError::HardLink { .. }));
    refused(Tar::new().file("a/b", b"").link("a", "a/b"), "a/b");
}

#[test]
fn a_hard_link_to_a_link_links_the_link() {
    let place = Place::new();
    place.unpack(&Tar::new().symlink("a", "/etc/passwd").link("b", "a").link("b", "b").end()).unwrap();
    let (a, b) = (place.layer().join("a"), place.layer().join("b"));
    assert_eq!(fs::symlink_metadata(a).unwrap().ino(), fs::symlink_metadata(&b).unwrap().ino());
    assert_eq!(node(&b).links, 2);
}

#[test]
fn devices_are_replaced_and_not_written_to() {
    let place = Place::new();
    // Were it written to, the write would fail: nothing is behind 240:0.
    let tar = Tar::new().device(b'4', "disk", 240, 0).file("disk", b"content").fifo("fifo").file("fifo", b"content");
    place.unpack(&tar.end()).unwrap();
    assert_eq!((place.read("disk"), place.read("fifo")), (b"content".to_vec(), b"content".to_vec()));
}

#[test]
fn devices_cannot_become_white_outs_by_overflow() {
    let place = Place::new();
    let unpacked = place.unpack(&Tar::new().device(b'3', "a", 0, 0).device(b'3', "b", 1, 3).end()).unwrap();
    assert!(unpacked.skipped[0].contains("\"a\""), "{:?}", unpacked.skipped);
    assert!(!place.layer().join("a").exists());
    assert_eq!(node(&place.layer().join("b")).device, nix::libc::makedev(1, 3));
    refused(Tar::new().device(b'3', "a", 4096, 0), "device");
    refused(Tar::new().device(b'3', "a", 0, 1 << 20), "device");
}

#[test]
fn entries_below_a_file_are_refused() {
    for tar in [Tar::new().file("a", b""), Tar::new().fifo("a"), Tar::new().file("b", b"").symlink("a", "b")] {
        let error = refused(tar.file("a/b", b""), "a/b");
        assert!(matches!(error, UnpackError::BelowFile { .. }), "{error:?}");
    }
}

#[test]
fn links_in_a_circle_are_refused() {
    refused(Tar::new().symlink("a", "b").symlink("b", "a").file("a/x", b""), "a/x");
    refused(Tar::new().symlink("a", "a").file("a/x", b""), "a/x");
    refused(Tar::new().symlink("a", "a/b").file("a/x/y", b""), "a/x/y");
}

#[test]
fn overlay_attributes_are_not_for_layers_to_set() {
    let place = Place::new();
    let records: &[(&[u8], &[u8])] = &[
        (b"SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        (b"SCHILY.xattr.trusted.overlay.opaque", b"y"),
        (b"SCHILY.xattr.user.overlay.whiteout", b""),
        (b"SCHILY.xattr.trusted.mine", b"x"),
        (b"SCHILY.xattr.security.selinux", b"x"),
        (b"SCHILY.xattr.user.kept", b"a\nb\0c=\xff"),
    ];
    let unpacked = place.unpack(&Tar::new().pax(records).dir("d").pax(records).file("f", b"").end()).unwrap();
    for name in ["d", "f"] {
        let xattrs = node(&place.layer().join(name)).xattrs;
        assert_eq!(xattrs.into_iter().collect::<Vec<_>>(), [("user.kept".into(), b"a\nb\0c=\xff".to_vec())]);
    }
    assert_eq!(unpacked.skipped.len(), 8, "{:?}", unpacked.skipped);
    assert!(!unpacked.skipped.iter().any(|line| line.contains("selinux")));
}

#[test]
fn what_is_skipped_is_told_in_bounds() {
    let place = Place::new();
    let tar = (0..1000).fold(Tar::new(), |tar, index| tar.device(b'3', &format!("{index}"), 0, 0));
    let unpacked = place.unpack(&tar.end()).unwrap();
    assert_eq!(unpacked.skipped.len(), 65);
    assert_eq!(unpacked.skipped[64], "and 936 more");
}

#[test]
fn unknown_types_and_owners_are_refused() {
    assert!(matches!(
        refused(Tar::new().member(b'V', b"volume", b"", b"", |_| {}), "volume"),
        UnpackError::Unsupported { .. }
    ));
    refused(Tar::new().member(b'0', b"x", b"", b"", |header| header.set_uid(u64::from(u32::MAX))), "owner");
    refused(Tar::new().member(b'0', b"x", b"", b"", |header| header.set_gid(1 << 32)), "owner");
    refused(Tar::new().pax(&[(b"uid", b"-1")]).file("x", b""), "owner");
}

#[test]
fn trees_of_any_depth_are_replaced() {
    let place = Place::new();
    // Each link starts where the last part of the tree ended, so that the whole is deeper than any path can be long.
    let part = ["d"; 1000].join("/");
    let mut tar = Tar::new().file(&format!("a/{part}/x"), b"");
    let mut end = format!("a/{part}");
    for index in 0..4 {
        let link = format!("l{index}");
        tar = tar.symlink(&link, &end).dir(&format!("{link}/{part}"));
        end = format!("{link}/{part}");
    }
    place.unpack(&tar.file("a", b"flat").end()).unwrap();
    assert_eq!(place.read("a"), b"flat");
}
