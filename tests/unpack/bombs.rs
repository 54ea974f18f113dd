//! Archives that are larger than they look.

use std::io::{Read, Write, repeat};

use trainyard::images::unpack::{Limits, UnpackError, decompress};

use crate::archive::Tar;
use crate::tree::{LIMITS, Place, told};

fn with_size(size: u64) -> Vec<u8> {
    Tar::new().member(b'0', b"large", b"", b"", |header| header.set_size(size)).without_end()
}

#[test]
fn sizes_are_checked_before_the_content_is_read() {
    for size in [LIMITS.bytes + 1, 1 << 62, u64::MAX >> 1] {
        let error = Place::new().unpack_within(with_size(size).chain(Broken), &LIMITS).unwrap_err();
        assert!(matches!(&error, UnpackError::TooLarge { path, .. } if path.ends_with("large")), "{}", told(&error));
    }
    let error = Place::new().unpack(&with_size(u64::MAX)).unwrap_err();
    assert!(matches!(error, UnpackError::Damaged { .. }), "{error}");
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        panic!("the content was asked for");
    }
}

#[test]
fn the_sum_of_all_counts_and_holes_count_too() {
    let limits = Limits { bytes: 10, entries: 10 };
    let six = |tar: Tar, name: &str| tar.file(name, b"sixsix");
    let error = Place::new().unpack_within(six(six(Tar::new(), "a"), "b").end().as_slice(), &limits).unwrap_err();
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
    let sparse = Tar::new().pax(&[(b"GNU.sparse.size", b"11"), (b"GNU.sparse.map", b"")]).file("x", b"");
    let error = Place::new().unpack_within(sparse.end().as_slice(), &limits).unwrap_err();
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
    let huge =
        Tar::new().pax(&[(b"GNU.sparse.size", b"18446744073709551615"), (b"GNU.sparse.map", b"")]).file("x", b"");
    let error = Place::new().unpack_within(huge.end().as_slice(), &Limits { bytes: u64::MAX, entries: 9 }).unwrap_err();
    assert!(matches!(error, UnpackError::Write { .. }), "{}", told(&error));
}

#[test]
fn entries_are_counted() {
    let tar = (0..12).fold(Tar::new(), |tar, index| tar.dir(&index.to_string()));
    let error = Place::new().unpack_within(tar.end().as_slice(), &Limits { bytes: 0, entries: 10 }).unwrap_err();
    assert!(matches!(&error, UnpackError::TooMany { path, limit: 10 } if path.ends_with("10")), "{error}");
}

#[test]
fn extension_headers_are_bounded_each_and_together() {
    let error = Place::new().unpack(&Tar::new().member(b'x', b"x", b"", b"", |header| header.set_size(2 << 20)).end());
    assert!(error.unwrap_err().to_string().contains("1 MiB"));
    let one = Tar::new().member(b'g', b"g", b"", &[b'x'; 1 << 20], |_| {}).without_end();
    let endless = std::iter::repeat_n(&one[..], 10_000)
        .fold(Box::new(std::io::empty()) as Box<dyn Read>, |_, _| Box::new(Cycle { of: one.clone(), at: 0 }));
    let error = Place::new().unpack_within(endless, &LIMITS).unwrap_err();
    assert!(error.to_string().contains("more than they can need"), "{error}");
}

struct Cycle {
    of: Vec<u8>,
    at: usize,
}

impl Read for Cycle {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = into.len().min(self.of.len() - self.at);
        into[..count].copy_from_slice(&self.of[self.at..self.at + count]);
        self.at = (self.at + count) % self.of.len();
        Ok(count)
    }
}

#[test]
fn names_that_are_remembered_are_bounded() {
    let path = vec!["x".repeat(255); 15].join("/");
    let tar = |index: usize| Tar::new().dir(&format!("{path}/{index}/")).without_end();
    let mut index = 0;
    let endless = Generated {
        next: move || {
            index += 1;
            tar(index)
        },
        part: Vec::new(),
        at: 0,
    };
    let error = Place::new().unpack_within(endless, &Limits { bytes: 0, entries: u64::MAX }).unwrap_err();
    assert!(matches!(error, UnpackError::TooManyNames { .. }), "{}", told(&error));
}

struct Generated<F> {
    next: F,
    part: Vec<u8>,
    at: usize,
}

impl<F: FnMut() -> Vec<u8>> Read for Generated<F> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.part.len() {
            (self.part, self.at) = ((self.next)(), 0);
        }
        let count = into.len().min(self.part.len() - self.at);
        into[..count].copy_from_slice(&self.part[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
fn decompression_bombs_end_at_the_limit() {
    const BOMB: u64 = 4 << 30;
    let header = with_size(32 << 20);
    for zstd in [false, true] {
        let mut packed = Vec::new();
        let content = header.chain(repeat(0).take(32 << 20)).chain(header.as_slice()).chain(repeat(0).take(32 << 20));
        let content = content.chain(header.as_slice()).chain(repeat(0).take(BOMB / 16));
        pack(content, &mut packed, zstd);
        assert!(packed.len() < 4 << 20);
        let place = Place::new();
        let tar = decompress(std::io::Cursor::new(packed)).unwrap();
        let error = place.unpack_within(tar, &LIMITS).unwrap_err();
        assert!(matches!(error, UnpackError::TooLarge { .. }), "{}", told(&error));
    }
}

fn pack(mut from: impl Read, into: &mut Vec<u8>, zstd: bool) {
    if zstd {
        zstd::stream::copy_encode(from, into, 1).unwrap();
    } else {
        let mut encoder = flate2::write::GzEncoder::new(into, flate2::Compression::fast());
        std::io::copy(&mut from, &mut encoder).unwrap();
        encoder.finish().unwrap().flush().unwrap();
    }
}
