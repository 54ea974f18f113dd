//! GNU tar packs and unpacks; we unpack the same; both trees must be equal.

use std::fs;
use std::os::unix::fs::{FileExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use crate::tree::{Place, Tree, tree};

const FORMS: [&[&str]; 6] = [
    &["--format=pax", "--xattrs"],
    &["--format=pax", "--xattrs", "--sparse", "--sparse-version=1.0"],
    &["--format=pax", "--sparse", "--sparse-version=0.1"],
    &["--format=pax", "--sparse", "--sparse-version=0.0"],
    &["--format=gnu", "--sparse"],
    &["--format=gnu"],
];

fn fill(root: &Path) {
    let make = |path: &str, content: &[u8]| fs::write(root.join(path), content).unwrap();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    make("a/plain", b"plain");
    make("a/empty", b"");
    make("a/b/large", &(0..300_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    fs::hard_link(root.join("a/plain"), root.join("a/b/c/hard")).unwrap();
    symlink("../nowhere", root.join("a/link")).unwrap();
    symlink("/".repeat(50) + &"x".repeat(200), root.join("a/long link")).unwrap();
    fs::hard_link(root.join("a/link"), root.join("hard link to a link")).unwrap();
    make("setuid", b"#!");
    chown(root.join("setuid"), Some(1234), Some(3_000_000)).unwrap();
    std::os::unix::fs::lchown(root.join("a/link"), Some(5), Some(6)).unwrap();
    run("chmod", &["6751", root.join("setuid").to_str().unwrap()]);
    run("chmod", &["1000", root.join("a/b/c").to_str().unwrap()]);
    run("mkfifo", &["-m", "0604", root.join("fifo").to_str().unwrap()]);
    run("mknod", &["-m", "0660", root.join("device").to_str().unwrap(), "c", "5", "1"]);
    run("mknod", &["-m", "0660", root.join("block").to_str().unwrap(), "b", "259", "300000"]);
    sparse(&root.join("sparse"));
    for name in ["new\nline", " blank ", "back\\slash", "-rf", "ünïcode", &"n".repeat(255)] {
        make(name, name.as_bytes());
    }
    use std::os::unix::ffi::OsStrExt;
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"not\xffutf\xfe8")), "x").unwrap();
    let deep = ["d".repeat(100).as_str(); 12].join("/");
    fs::create_dir_all(root.join(&deep)).unwrap();
    make(&format!("{deep}/end"), b"deep");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("a"), "user.on directory", b"1\n\0\xff", flags).unwrap();
    rustix::fs::setxattr(root.join("a/plain"), "user.empty", b"", flags).unwrap();
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(root.join("setuid"), "security.capability", &capability, flags).unwrap();
    for (path, time) in
        [("a", "@1.000000001"), ("a/b", "@1700000000.999999999"), ("setuid", "@-5.5"), ("a/link", "@77.7")]
    {
        run("touch", &["--no-dereference", "--date", time, root.join(path).to_str().unwrap()]);
    }
}

/// Many parts, so that the map does not fit into a header.
fn sparse(path: &Path) {
    let file = fs::File::create(path).unwrap();
    for part in 0..60u64 {
        file.write_all_at(b"data", part * 100_000 + 17).unwrap();
    }
    file.set_len(9_000_001).unwrap();
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).env("TZ", "UTC").output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Times of the old format have whole seconds, in which GNU tar keeps none before 1970 apart; the rest must agree.
fn differences(ours: &Tree, theirs: &Tree) -> Vec<String> {
    let names = ours.keys().chain(theirs.keys()).collect::<std::collections::BTreeSet<_>>();
    let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    differ.map(|name| format!("{name:?}: ours {:?}, theirs {:?}", ours.get(name), theirs.get(name))).collect()
}

#[test]
fn we_unpack_what_gnu_tar_unpacks() {
    let source = tempfile::tempdir().unwrap();
    fill(source.path());
    for form in FORMS {
        let (place, theirs) = (Place::new(), tempfile::tempdir().unwrap());
        let tar = theirs.path().join("tar");
        let (root, archive) = (source.path().to_str().unwrap(), tar.to_str().unwrap());
        run("tar", &[form, &["--numeric-owner", "-cf", archive, "-C", root, "."][..]].concat());
        fs::create_dir(theirs.path().join("layer")).unwrap();
        let into = theirs.path().join("layer");
        let xattrs = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-p"];
        run("tar", &[&xattrs[..], &["-xf", archive, "-C", into.to_str().unwrap()]].concat());
        let unpacked = place.unpack_within(fs::File::open(&tar).unwrap(), &crate::tree::LIMITS).unwrap();
        assert_eq!((unpacked.implied_directories.len(), unpacked.skipped.len()), (0, 0), "{form:?}: {unpacked:?}");
        let differences = differences(&place.tree(), &tree(&into));
        assert!(differences.is_empty(), "{form:?}:\n{}", differences.join("\n"));
        let kept = tree(source.path());
        assert_eq!(place.tree().len(), kept.len(), "{form:?}");
        if form.contains(&"--xattrs") {
            let differences = self::differences(&place.tree(), &kept);
            assert!(differences.is_empty(), "{form:?}, from the source:\n{}", differences.join("\n"));
        }
    }
}
