//! White-outs and opaque directories, as bytes on disk and as overlayfs sees them.

use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use trainyard::images::unpack::UnpackError;

use crate::archive::Tar;
use crate::tree::{Place, node};

#[test]
fn a_white_out_is_a_device_that_hides() {
    let place = Place::new();
    let unpacked = place.unpack(&Tar::new().dir("d").file("d/.wh.gone", b"").file(".wh.top", b"").end()).unwrap();
    assert_eq!(unpacked.entries, 3);
    for path in ["d/gone", "top"] {
        assert!(node(&place.layer().join(path)).is_white_out(), "{path}");
    }
    assert_eq!(place.tree().len(), 4);
    assert_eq!(node(&place.layer().join("d")).mtime, (1_000_000_000, 0), "marks must not change times");
}

#[test]
fn what_the_layer_itself_has_is_kept_in_either_order() {
    for white_out_first in [true, false] {
        let place = Place::new();
        let marks =
            |tar: Tar| tar.file(".wh.file", b"").file(".wh.dir", b"").file(".wh.link", b"").file(".wh.implied", b"");
        let own = |tar: Tar| tar.file("file", b"mine").dir("dir").symlink("link", "x").file("implied/x", b"mine");
        let tar = if white_out_first { own(marks(Tar::new())) } else { marks(own(Tar::new())) };
        place.unpack(&tar.end()).unwrap();
        assert_eq!((place.read("file"), place.read("implied/x")), (b"mine".to_vec(), b"mine".to_vec()));
        assert!(node(&place.layer().join("link")).is(nix::libc::S_IFLNK));
        for directory in ["dir", "implied"] {
            assert!(node(&place.layer().join(directory)).is_opaque(), "{directory}, first: {white_out_first}");
        }
    }
}

#[test]
fn an_opaque_mark_is_an_attribute_of_its_directory() {
    let place = Place::new();
    let tar = Tar::new().file("a/.wh..wh..opq", b"").dir("b").file("b/x", b"").file("b/.wh..wh..opq", b"");
    let unpacked = place.unpack(&tar.end()).unwrap();
    assert!(node(&place.layer().join("a")).is_opaque() && node(&place.layer().join("b")).is_opaque());
    assert_eq!(place.tree().len(), 4);
    assert!(!unpacked.opaque_root);
    let place = Place::new();
    assert!(place.unpack(&Tar::new().file(".wh..wh..opq", b"").end()).unwrap().opaque_root);
    assert!(node(&place.layer()).is_opaque());
}

#[test]
fn marks_below_what_is_replaced_go_with_it() {
    let place = Place::new();
    let tar = Tar::new()
        .dir("a")
        .file("a/.wh.x", b"")
        .file("a", b"flat")
        .dir("b")
        .file("b/.wh.x", b"")
        .symlink("b", "c")
        .dir("c");
    place.unpack(&tar.end()).unwrap();
    assert_eq!(place.tree().len(), 4);
}

#[test]
fn the_books_of_aufs_are_ignored() {
    let place = Place::new();
    let tar =
        Tar::new().dir(".wh..wh.plnk").file(".wh..wh.plnk/1.2", b"").file(".wh..wh.aufs", b"").dir("d/.wh..wh.orph");
    let unpacked = place.unpack(&tar.end()).unwrap();
    assert_eq!((place.tree().len(), unpacked.entries), (1, 4));
}

#[test]
fn white_outs_of_no_name_are_refused() {
    for name in [".wh.", ".wh..", ".wh...", "a/.wh..."] {
        let error = Place::new().unpack(&Tar::new().file(name, b"").end()).unwrap_err();
        assert!(matches!(error, UnpackError::Name { .. }) && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn white_outs_are_not_made_through_links_that_lead_out() {
    let place = Place::new();
    let tar = Tar::new().symlink("out", "../outside").file("out/.wh.secret", b"").file("out/sub/.wh..wh..opq", b"");
    place.unpack(&tar.end()).unwrap();
    assert!(node(&place.layer().join("outside/secret")).is_white_out());
}

#[test]
fn overlayfs_sees_what_the_layer_means() {
    let (lower, upper) = (Place::new(), Place::new());
    let below = Tar::new()
        .file("gone", b"")
        .file("kept", b"")
        .file("replaced", b"old")
        .file("tree/gone/x", b"")
        .file("opaque/old", b"")
        .file("renewed/old", b"")
        .file("merged/old", b"");
    lower.unpack(&below.end()).unwrap();
    let layer = Tar::new()
        .file(".wh.gone", b"")
        .file(".wh.replaced", b"")
        .file("replaced", b"new")
        .file("tree/.wh.gone", b"")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/new", b"")
        .file("renewed/new", b"")
        .file(".wh.renewed", b"")
        .file("merged/new", b"");
    upper.unpack(&layer.end()).unwrap();
    let merged = tempfile::tempdir().unwrap();
    let options = format!("lowerdir={}:{}", upper.layer().display(), lower.layer().display());
    mount(Some("overlay"), merged.path(), Some("overlay"), MsFlags::MS_RDONLY, Some(options.as_str())).unwrap();
    let names = |path: &str| names(&merged.path().join(path));
    let seen = [names(""), names("tree"), names("opaque"), names("renewed"), names("merged")];
    let replaced = fs::read(merged.path().join("replaced")).unwrap();
    umount2(merged.path(), MntFlags::MNT_DETACH).unwrap();
    assert_eq!(seen[0], ["kept", "merged", "opaque", "renewed", "replaced", "tree"]);
    assert_eq!(seen[1], [""; 0]);
    assert_eq!((&seen[2][..], &seen[3][..]), (&["new".to_owned()][..], &["new".to_owned()][..]));
    assert_eq!(seen[4], ["new", "old"]);
    assert_eq!(replaced, b"new");
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
