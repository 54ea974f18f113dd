//! Compressed, cut, and followed by something.

use std::io::{self, Cursor, Read, Write};

use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use trainyard::images::unpack::{Compression, Hashing, ReadAhead, UnpackError, decompress};

use crate::archive::Tar;
use crate::tree::{LIMITS, Place, told};

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn all(packed: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    decompress(Cursor::new(packed))?.read_to_end(&mut content)?;
    Ok(content)
}

#[test]
fn compression_is_known_by_the_first_bytes() {
    assert_eq!(Compression::sniff(&gzip(b"")), Compression::Gzip);
    assert_eq!(Compression::sniff(&zstd(b"")), Compression::Zstd);
    assert_eq!(Compression::sniff(&[0x5e, 0x2a, 0x4d, 0x18]), Compression::Zstd);
    assert_eq!(Compression::sniff(b""), Compression::Plain);
    assert_eq!(Compression::sniff(b"etc/"), Compression::Plain);
}

#[test]
fn members_and_frames_are_one_stream() {
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 5, 0, 0, 0][..], b"ahead"].concat();
    assert_eq!(all([gzip(b"one"), gzip(b"two")].concat()).unwrap(), b"onetwo");
    assert_eq!(all([zstd(b"one"), skipped.clone(), zstd(b"two")].concat()).unwrap(), b"onetwo");
    assert_eq!(all([skipped.clone(), zstd(b"one"), skipped].concat()).unwrap(), b"one");
    assert_eq!(all(b"ab".to_vec()).unwrap(), b"ab");
    assert_eq!(all(Vec::new()).unwrap(), b"");
}

#[test]
fn broken_compression_is_told_as_damage() {
    let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let tar = Tar::new().file("numbers", &content).end();
    for packed in [gzip(&tar), zstd(&tar)] {
        let mut flipped = packed.clone();
        let middle = flipped.len() / 2;
        flipped[middle..middle + 16].fill(0x55);
        for broken in [packed[..packed.len() / 2].to_vec(), flipped] {
            let mut reader = decompress(Cursor::new(broken)).unwrap();
            match Place::new().unpack_within(&mut reader, &LIMITS) {
                // A checksum comes last: whoever does not read to the end does not see it.
                Ok(_) => assert!(Hashing::new(reader).finish().is_err()),
                Err(UnpackError::Damaged { near, .. }) => assert!(near.ends_with("numbers"), "{near:?}"),
                Err(error) => panic!("{}", told(&error)),
            }
        }
        assert!(all([&packed[..], b"garbage behind"].concat()).is_err());
        assert!(all(packed[..packed.len() - 4].to_vec()).is_err(), "a cut checksum is noticed");
    }
}

#[test]
fn a_zstd_window_beyond_the_bound_is_refused() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(b"x").unwrap();
    assert!(all(encoder.finish().unwrap()).is_err());
}

#[test]
fn every_cut_of_an_archive_is_noticed_but_between_members() {
    let tar = Tar::new()
        .dir("d")
        .file("d/a", &[1; 700])
        .pax(&[(b"mtime", b"1.5")])
        .file("b", &[2; 512])
        .member(b'L', b"L", b"", b"long\0", |_| {})
        .symlink("c", "b")
        .end();
    // After the directory, the two files and the link.
    let whole = [512, 512 + 1536, 2048 + 1024 + 1024, 4096 + 1024 + 512];
    for cut in (0..tar.len()).step_by(512) {
        let result = Place::new().unpack(&tar[..cut]);
        let is_whole = cut == 0 || whole.contains(&cut) || cut > whole[3];
        assert_eq!(result.is_ok(), is_whole, "{cut}: {result:?}");
        if let Err(error) = result {
            assert!(matches!(error, UnpackError::Damaged { .. }), "{cut}: {error}");
        }
        if cut > 0 {
            // umoci leaves the padding of the last member out: one byte of it may be missing as well.
            let is_padding = whole.contains(&cut) && tar[cut - 1] == 0;
            let result = Place::new().unpack(&tar[..cut - 1]);
            assert!(result.is_err() || cut > whole[3] + 512 || is_padding, "{cut} - 1");
        }
    }
}

#[test]
fn garbage_is_told_as_damage() {
    for garbage in [vec![7; 100], vec![7; 5000], b"not an archive".repeat(100), [&[0; 512][..], &[1; 512]].concat()] {
        let error = Place::new().unpack(&garbage).unwrap_err();
        assert!(matches!(error, UnpackError::Damaged { .. }), "{error}");
    }
}

#[test]
fn sums_are_of_the_whole_blob_and_the_whole_archive() {
    let tar = [Tar::new().file("x", &[9; 700_000]).end(), vec![0; 300_000]].concat();
    let blob = gzip(&tar);
    let compressed = Hashing::new(Cursor::new(blob.clone()));
    let digest = compressed.tally();
    let mut plain = Hashing::new(ReadAhead::new(decompress(compressed).unwrap()).unwrap());
    let place = Place::new();
    place.unpack_within(&mut plain, &LIMITS).unwrap();
    let diff_id = plain.finish().unwrap();
    assert_eq!((digest.sum().bytes, diff_id.bytes), (blob.len() as u64, tar.len() as u64));
    assert_eq!(digest.sum().sha256.as_slice(), Sha256::digest(&blob).as_slice());
    assert_eq!(diff_id.sha256.as_slice(), Sha256::digest(&tar).as_slice());
    assert!(digest.sum().to_string().starts_with("sha256:") && digest.sum().to_string().len() == 71);
    assert_eq!(Hashing::new(tar.as_slice()).finish().unwrap(), diff_id);
}

#[test]
fn what_follows_an_archive_is_bounded() {
    assert!(Hashing::new(io::repeat(0)).finish().is_err());
    assert!(Hashing::new(ReadAhead::new(io::repeat(0)).unwrap()).finish().is_err());
}

#[test]
fn reading_ahead_hands_on_errors_and_panics() {
    struct Failing(u32);
    impl Read for Failing {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0 {
                0 => Err(io::Error::from_raw_os_error(5)),
                1 => panic!("on purpose"),
                _ => {
                    self.0 -= 2;
                    Ok(into.len())
                }
            }
        }
    }
    for start in [4, 5] {
        let mut reader = ReadAhead::new(Failing(start)).unwrap();
        assert!(io::copy(&mut reader, &mut io::sink()).is_err());
    }
    let error = Place::new().unpack_within(Failing(0), &LIMITS).unwrap_err();
    assert!(matches!(error, UnpackError::Read { .. }), "{error}");
    // Nobody reads to the end: the thread ends by itself.
    drop(ReadAhead::new(io::repeat(1)).unwrap());
}
