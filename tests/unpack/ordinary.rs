//! What honest archives hold: attributes, names, sparse files.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use trainyard::images::unpack::UnpackError;

use crate::archive::{Attributes, PLAIN, Tar};
use crate::tree::{Place, node, told};

/// `cap_net_raw+ep`, with a newline among its bytes as a number may have.
const CAPABILITY: &[u8] = &[1, 0, 0, 2, 0, 0x20, 0, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn setuid_and_capabilities_survive_the_change_of_owner() {
    let place = Place::new();
    let attributes = Attributes { mode: 0o106755, uid: 1000, gid: 70_000, mtime: 1 };
    let tar = Tar::new()
        .file_with("setuid", b"", attributes)
        .pax(&[(b"SCHILY.xattr.security.capability", CAPABILITY), (b"mtime", b"-1.25")])
        .file_with("capable", b"x", attributes);
    place.unpack(&tar.end()).unwrap();
    let (setuid, capable) = (node(&place.layer().join("setuid")), node(&place.layer().join("capable")));
    assert_eq!((setuid.mode & 0o7777, setuid.owner, setuid.mtime), (0o6755, (1000, 70_000), (1, 0)));
    assert_eq!(capable.xattrs[OsStr::new("security.capability")], CAPABILITY);
    assert_eq!(capable.mtime, (-2, 750_000_000));
}

#[test]
fn pax_records_take_precedence_and_a_newline_hides_none() {
    let place = Place::new();
    let records: &[(&[u8], &[u8])] = &[
        (b"SCHILY.xattr.user.a", b"1\n2\n10 path=x\n"),
        (b"path", b"first"),
        (b"path", b"dir/second"),
        (b"size", b"5"),
        (b"uid", b"3000000000"),
        (b"mtime", b"1700000000.123456789"),
    ];
    let tar = Tar::new()
        .pax(records)
        .member(b'0', b"header", b"", b"", |_| {})
        .raw(b"five!")
        .raw(&[0; 507])
        .file("after", b"");
    place.unpack(&tar.end()).unwrap();
    assert_eq!(place.read("dir/second"), b"five!");
    let second = node(&place.layer().join("dir/second"));
    assert_eq!((second.owner.0, second.mtime), (3_000_000_000, (1_700_000_000, 123_456_789)));
    assert_eq!(place.tree().len(), 4);
}

#[test]
fn global_pax_headers_are_ignored() {
    let place = Place::new();
    let global = crate::archive::record(b"path", b"bad");
    place.unpack(&Tar::new().member(b'g', b"g", b"", &global, |_| {}).file("good", b"").end()).unwrap();
    assert!(place.layer().join("good").exists() && !place.layer().join("bad").exists());
}

#[test]
fn gnu_long_names_and_old_headers_are_read() {
    let place = Place::new();
    let (name, target) = ("n".repeat(150), "t".repeat(150));
    let tar = Tar::new()
        .member(b'L', b"././@LongLink", b"", format!("{name}\0").as_bytes(), |_| {})
        .member(b'K', b"././@LongLink", b"", format!("{target}\0").as_bytes(), |_| {})
        .member(b'2', b"short", b"short", b"", |_| {})
        .member(0, b"old/", b"", b"", |_| {})
        .member(0, b"old/file", b"", b"x", |header| header.as_old_mut().pad.fill(0));
    let unpacked = place.unpack(&tar.end()).unwrap();
    assert_eq!(fs::read_link(place.layer().join(name)).unwrap(), Path::new(&target));
    assert_eq!(place.read("old/file"), b"x");
    assert!(unpacked.implied_directories.is_empty());
}

#[test]
fn the_prefix_of_a_ustar_header_counts() {
    let place = Place::new();
    let tar = Tar::new().member(b'0', b"x", b"", b"x", |header| {
        let name = *b"x";
        *header = tar::Header::new_ustar();
        header.as_old_mut().name[..1].copy_from_slice(&name);
        header.as_ustar_mut().unwrap().prefix[..3].copy_from_slice(b"a/b");
        header.set_size(1);
        header.set_entry_type(tar::EntryType::Regular);
    });
    place.unpack(&tar.end()).unwrap();
    assert_eq!(place.read("a/b/x"), b"x");
}

#[test]
fn names_of_255_bytes_and_of_any_bytes_work_and_longer_ones_are_refused() {
    let place = Place::new();
    let longest = "x".repeat(255);
    let deep = vec![longest.as_str(); 15].join("/");
    let tar = Tar::new()
        .file(&longest.replace('x', "y"), b"1")
        .member(b'0', b"\xff\xfe\n\x1b[", b"", b"2", |_| {})
        .file(&format!("{deep}/end"), b"3")
        .file(&format!(".wh.{}", "z".repeat(251)), b"");
    place.unpack(&tar.end()).unwrap();
    assert_eq!(fs::read(place.layer().join(OsStr::from_bytes(b"\xff\xfe\n\x1b["))).unwrap(), b"2");
    assert_eq!(place.read(&format!("{deep}/end")), b"3");
    for name in ["x".repeat(256), "x/".repeat(3000), format!("{longest}/").repeat(17)] {
        let error = place.unpack(&Tar::new().file(&name, b"").end()).unwrap_err();
        assert!(matches!(error, UnpackError::Name { .. }), "{error}");
        assert!(error.to_string().len() < 20_000);
    }
}

#[test]
fn zeros_become_holes() {
    let place = Place::new();
    let mut content = vec![0u8; 1 << 20];
    content[5000] = 1;
    // More than a buffer, so that blocks must be found across its refills.
    let zeros = vec![0; (4 << 20) + 1];
    content[600_000..700_000].fill(2);
    place.unpack(&Tar::new().file("odd", b"x").file("holes", &content).file("zeros", &zeros).end()).unwrap();
    assert_eq!(place.read("holes"), content);
    assert_eq!(place.read("zeros"), zeros);
    let blocks = |name: &str| fs::metadata(place.layer().join(name)).unwrap().blocks() * 512;
    assert!(blocks("holes") <= 120 << 10 && blocks("zeros") <= 4 << 10, "{} {}", blocks("holes"), blocks("zeros"));
}

#[test]
fn sparse_files_are_read_in_every_form() {
    let mut content = vec![0u8; 20_000];
    content[4096..4106].fill(b'a');
    content[10_000..10_003].fill(b'b');
    let stored = [&content[4096..4106], &content[10_000..10_003]].concat();
    let old = Tar::new().member(b'S', b"x", b"", &stored, |header| {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.sparse[0].set_offset(4096);
        gnu.sparse[0].set_length(10);
        gnu.sparse[1].set_offset(10_000);
        gnu.sparse[1].set_length(3);
        gnu.set_real_size(20_000);
    });
    let zero = Tar::new().pax(&[
        (b"GNU.sparse.size", b"20000"),
        (b"GNU.sparse.numblocks", b"2"),
        (b"GNU.sparse.offset", b"4096"),
        (b"GNU.sparse.numbytes", b"10"),
        (b"GNU.sparse.offset", b"10000"),
        (b"GNU.sparse.numbytes", b"3"),
    ]);
    let one = Tar::new().pax(&[
        (b"GNU.sparse.name", b"x"),
        (b"GNU.sparse.size", b"20000"),
        (b"GNU.sparse.numblocks", b"2"),
        (b"GNU.sparse.map", b"4096,10,10000,3"),
    ]);
    let mut before = b"2\n4096\n10\n10000\n3\n".to_vec();
    before.resize(512, 0);
    let newest = Tar::new().pax(&[
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", b"x"),
        (b"GNU.sparse.realsize", b"20000"),
    ]);
    let archives = [
        old,
        zero.file("x", &stored),
        one.file("GNUSparseFile.0/x", &stored),
        newest.file("GNUSparseFile.0/x", &[&before[..], &stored].concat()),
    ];
    for (index, tar) in archives.into_iter().enumerate() {
        let place = Place::new();
        let unpacked = place
            .unpack(&tar.file("after", b"after").end())
            .unwrap_or_else(|error| panic!("{index}: {}", told(&error)));
        assert!(place.read("x") == content, "{index}");
        assert_eq!((place.read("after"), unpacked.bytes), (b"after".to_vec(), 20_005), "{index}");
    }
}

#[test]
fn sparse_files_that_make_no_sense_are_refused() {
    let keys: [&[(&[u8], &[u8])]; 5] = [
        &[(b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0")],
        &[(b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"0,1,0,1")],
        &[(b"GNU.sparse.size", b"10"), (b"GNU.sparse.map", b"9,3")],
        &[(b"GNU.sparse.size", b"10"), (b"GNU.sparse.numbytes", b"3")],
        &[(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9")],
    ];
    for records in keys {
        let error = Place::new().unpack(&Tar::new().pax(records).file("x", b"abc").end()).unwrap_err();
        assert!(matches!(error, UnpackError::Damaged { .. }), "{error}");
    }
}

#[test]
fn content_of_what_is_no_file_is_no_content() {
    let place = Place::new();
    // As Go: the size of such a header is not skipped, so the next header follows at once.
    let tar = Tar::new().file("a", b"").member(b'1', b"b", b"a", b"", |header| header.set_size(512)).file("c", b"c");
    place.unpack(&tar.end()).unwrap();
    assert_eq!(place.read("c"), b"c");
}

#[test]
fn a_full_file_system_is_told_with_the_entry() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let place = Place::new();
    mount(Some("tmpfs"), &place.layer(), Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
    let tar = Tar::new().file_with("small", b"", PLAIN).file("dir/large", &[7; 2 << 20]).end();
    let full = place.unpack(&tar).unwrap_err();
    mount(None::<&str>, &place.layer(), None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>).unwrap();
    let read_only = place.unpack(&tar).unwrap_err();
    umount2(&place.layer(), MntFlags::MNT_DETACH).unwrap();
    assert!(matches!(&full, UnpackError::NoSpace { path, .. } if path == Path::new("dir/large")), "{full}");
    assert!(matches!(&read_only, UnpackError::ReadOnly { .. }), "{}", told(&read_only));
}
