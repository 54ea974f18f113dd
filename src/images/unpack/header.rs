//! One 512-byte header: where its fields lie and how numbers are written in them.
//!
//! Read as Go's `archive/tar` reads it, since that is what layers are made with and checked against.

use std::ops::Range;

pub(super) const BLOCK: usize = 512;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..263;
const MAJOR: Range<usize> = 329..337;
const MINOR: Range<usize> = 337..345;
const PREFIX: Range<usize> = 345..500;
/// `star` keeps times in the last 24 bytes of the prefix, and says so at the end of the block.
const STAR_PREFIX: Range<usize> = 345..476;
const STAR_TRAILER: Range<usize> = 508..512;
const GNU_SPARSE: Range<usize> = 386..482;
const GNU_SPARSE_GOES_ON: usize = 482;
const GNU_REAL_SIZE: Range<usize> = 483..495;
const GNU_MORE_SPARSE: Range<usize> = 0..504;
const GNU_MORE_GOES_ON: usize = 504;

pub(super) struct Header([u8; BLOCK]);

impl Header {
    pub(super) fn new(block: [u8; BLOCK]) -> Self {
        Self(block)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0 == [0; BLOCK]
    }

    /// Some old archivers summed signed bytes.
    pub(super) fn checksum_holds(&self) -> bool {
        let told = number(&self.0[CHECKSUM]);
        let bytes = || self.0.iter().enumerate().map(|(at, byte)| if CHECKSUM.contains(&at) { b' ' } else { *byte });
        let unsigned: i64 = bytes().map(i64::from).sum();
        told == Some(unsigned) || told == Some(bytes().map(|byte| i64::from(byte.cast_signed())).sum())
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[KIND]
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.0[NAME]);
        let prefix = match &self.0[MAGIC] == b"ustar\0" {
            true if &self.0[STAR_TRAILER] == b"tar\0" => text(&self.0[STAR_PREFIX]),
            true => text(&self.0[PREFIX]),
            false => b"",
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> &[u8] {
        text(&self.0[LINK])
    }

    pub(super) fn mode(&self) -> Option<i64> {
        number(&self.0[MODE])
    }

    pub(super) fn uid(&self) -> Option<i64> {
        number(&self.0[UID])
    }

    pub(super) fn gid(&self) -> Option<i64> {
        number(&self.0[GID])
    }

    pub(super) fn size(&self) -> Option<u64> {
        unsigned(&self.0[SIZE])
    }

    pub(super) fn mtime(&self) -> Option<i64> {
        number(&self.0[MTIME])
    }

    pub(super) fn device(&self) -> Option<(u64, u64)> {
        Some((unsigned(&self.0[MAJOR])?, unsigned(&self.0[MINOR])?))
    }

    pub(super) fn gnu_real_size(&self) -> Option<u64> {
        unsigned(&self.0[GNU_REAL_SIZE])
    }

    /// The offsets and lengths of a GNU sparse file in its header, and whether a block of more of them follows.
    pub(super) fn gnu_sparse(&self) -> Option<(Vec<u64>, bool)> {
        Some((sparse_numbers(&self.0[GNU_SPARSE])?, self.0[GNU_SPARSE_GOES_ON] != 0))
    }

    /// The same of a block that follows.
    pub(super) fn gnu_more_sparse(&self) -> Option<(Vec<u64>, bool)> {
        Some((sparse_numbers(&self.0[GNU_MORE_SPARSE])?, self.0[GNU_MORE_GOES_ON] != 0))
    }
}

/// Pairs of 12-byte fields up to the first pair that is not used.
fn sparse_numbers(fields: &[u8]) -> Option<Vec<u64>> {
    let used = fields.chunks_exact(24).take_while(|pair| pair[0] != 0);
    used.flat_map(|pair| [unsigned(&pair[..12]), unsigned(&pair[12..])]).collect()
}

/// A field of text up to its first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn unsigned(field: &[u8]) -> Option<u64> {
    number(field)?.try_into().ok()
}

/// A field of octal digits, or of big-endian bytes if its first bit is set; an empty one is 0.
fn number(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => binary(field),
        _ => octal(field),
    }
}

fn binary(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    let first = if first & 0x40 != 0 { i128::from(first.cast_signed()) } else { i128::from(first & 0x7f) };
    // Fields have at most 12 bytes, so this does not overflow.
    let value = rest.iter().fold(first, |value, byte| (value << 8) | i128::from(*byte));
    value.try_into().ok()
}

fn octal(field: &[u8]) -> Option<i64> {
    let is_padding = |byte: &u8| matches!(byte, b' ' | 0);
    let Some(start) = field.iter().position(|byte| !is_padding(byte)) else { return Some(0) };
    let digits = text(&field[start..]).trim_ascii_end();
    digits.iter().try_fold(0i64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary_and_negative_where_marked() {
        assert_eq!(number(b"0000755\0"), Some(0o755));
        assert_eq!(number(b"   755 \0"), Some(0o755));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777777\0"), Some(0o77777777777));
        assert_eq!(number(b"0000798\0"), None);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]), Some(-256));
        assert_eq!(number(&[0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(unsigned(&[0xff; 12]), None);
    }
}
