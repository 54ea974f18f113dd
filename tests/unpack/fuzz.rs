//! Random damage to archives: any result is fine, but it is one, and nothing outside changes.

use proptest::prelude::*;

use crate::archive::{Attributes, PLAIN, Tar};
use crate::tree::{LIMITS, Place};
use trainyard::images::unpack::{Limits, decompress};

fn valid() -> Vec<u8> {
    Tar::new()
        .dir("d")
        .file("d/a", &[1; 700])
        .symlink("out", "../outside")
        .file("out/secret", b"x")
        .link("hard", "d/a")
        .pax(&[(b"path", b"long"), (b"SCHILY.xattr.user.x", b"a\nb"), (b"mtime", b"1.5"), (b"size", b"3")])
        .file("x", b"abc")
        .pax(&[(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"5000")])
        .file("s", &{
            let mut content = b"1\n4096\n5\n".to_vec();
            content.resize(512, 0);
            content.extend_from_slice(b"hello");
            content
        })
        .fifo("fifo")
        .device(b'3', "null", 1, 3)
        .file("d/.wh.gone", b"")
        .file("d/.wh..wh..opq", b"")
        .dir_with(".", Attributes { mode: 0o755, ..PLAIN })
        .end()
}

/// Sets the checksum of every block that looks like a header, so that damage reaches what lies behind that check.
fn with_checksums(mut tar: Vec<u8>) -> Vec<u8> {
    for block in tar.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    tar
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_archives_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4),
        mended in prop::bool::weighted(0.9),
    ) {
        let mut tar = valid();
        for (at, value) in changes {
            let at = at.index(tar.len());
            tar[at] = value;
        }
        for (one, other) in swaps {
            let (one, other) = (one.index(tar.len() / 512) * 512, other.index(tar.len() / 512) * 512);
            for offset in 0..512 {
                tar.swap(one + offset, other + offset);
            }
        }
        let tar = if mended { with_checksums(tar) } else { tar };
        let _ = Place::new().unpack(&tar);
    }

    #[test]
    fn damaged_fields_do_no_harm(
        block in any::<prop::sample::Index>(),
        field in prop::sample::select(vec![0..100usize, 100..108, 108..116, 124..136, 136..148, 156..157, 157..257, 257..265, 329..345, 345..512]),
        bytes in prop::collection::vec(prop::sample::select(b"\0\0 017/.\x80\xff.wh".to_vec()), 1..100),
    ) {
        let mut tar = valid();
        let start = block.index(tar.len() / 512) * 512 + field.start;
        let length = bytes.len().min(field.len());
        tar[start..start + length].copy_from_slice(&bytes[..length]);
        let _ = Place::new().unpack(&with_checksums(tar));
    }

    #[test]
    fn made_up_archives_do_no_harm(entries in prop::collection::vec(entry(), 0..25)) {
        let place = Place::new();
        let outside = place.outside().display().to_string();
        let tar = entries.into_iter().fold(Tar::new(), |tar, (kind, path, link)| {
            let link = link.replace('@', &outside);
            tar.member(kind, path.as_bytes(), link.as_bytes(), b"", |header| {
                if matches!(kind, b'3' | b'4') {
                    header.set_device_major(1).unwrap();
                    header.set_device_minor(3).unwrap();
                }
            })
        });
        let _ = place.unpack(&tar.end());
    }

    #[test]
    fn garbage_is_no_archive(garbage in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = decompress(std::io::Cursor::new(garbage)).map(|tar| Place::new().unpack_within(tar, &LIMITS));
    }

    #[test]
    fn limits_hold_whatever_they_are(bytes in 0..2000u64, entries in 0..20u64) {
        let limits = Limits { bytes, entries };
        if let Ok(unpacked) = Place::new().unpack_within(valid().as_slice(), &limits) {
            prop_assert!(unpacked.bytes <= bytes && unpacked.entries <= entries);
        }
    }
}

/// `@` is the directory outside. Few names, so that entries replace, link and lie below each other.
fn entry() -> impl Strategy<Value = (u8, String, String)> {
    let part = prop::sample::select(vec!["a", "b", "c", ".wh.a", ".wh.b", ".wh..wh..opq", "."]);
    let path = prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"));
    let target = prop::sample::select(vec![
        "a",
        "b",
        "a/b",
        "../outside",
        "../../..",
        "@",
        "@/a",
        ".",
        "..",
        "b/c",
        "../outside/secret",
    ]);
    let kind = prop::sample::select(b"001255556344".to_vec());
    (kind, path, target.prop_map(str::to_owned))
}
