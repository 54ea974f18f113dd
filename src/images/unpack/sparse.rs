//! Which parts of a sparse file an archive holds: GNU's own header, and the three ways to say it in PAX records.

use super::pax::decimal;

const NO_NUMBER: &str = "a sparse file's map holds something else than numbers";

/// A part of a file that is in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Where the numbers of a PAX sparse file are.
pub(super) enum SparseMap {
    /// Versions 0.0 and 0.1: among the records.
    Listed(Vec<u64>),
    /// Version 1.0: before the content.
    BeforeContent,
}

/// The `GNU.sparse.*` records of one entry.
#[derive(Default)]
pub(super) struct SparseKeys {
    used: bool,
    major: Option<u64>,
    minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) real_size: Option<u64>,
    blocks: Option<u64>,
    numbers: Vec<u64>,
}

impl SparseKeys {
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        self.used = true;
        match key {
            b"major" => self.major = Some(decimal(value)?),
            b"minor" => self.minor = Some(decimal(value)?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.real_size = Some(decimal(value)?),
            b"numblocks" => self.blocks = Some(decimal(value)?),
            b"map" => self.numbers = numbers(value, b',')?,
            b"offset" if self.numbers.len().is_multiple_of(2) => self.numbers.push(decimal(value)?),
            b"numbytes" if !self.numbers.len().is_multiple_of(2) => self.numbers.push(decimal(value)?),
            _ => return None,
        }
        Some(())
    }

    /// `Ok(None)` of an entry that is not sparse; `Err` says what makes it impossible to read.
    pub(super) fn map(&mut self) -> Result<Option<SparseMap>, &'static str> {
        if !self.used {
            return Ok(None);
        }
        match (self.major, self.minor) {
            (None, None) | (Some(0), Some(0 | 1)) => {
                let numbers = std::mem::take(&mut self.numbers);
                if self.blocks.is_some_and(|blocks| blocks != numbers.len() as u64 / 2) {
                    return Err("a sparse file's map is not as long as told");
                }
                Ok(Some(SparseMap::Listed(numbers)))
            }
            (Some(1), Some(0)) => Ok(Some(SparseMap::BeforeContent)),
            _ => Err("a sparse file is of an unknown version"),
        }
    }
}

/// How many lines a map before the content has, once its first line is there: a count of pairs, then the pairs' numbers.
pub(super) fn lines_of_map(text: &[u8]) -> Result<Option<u64>, &'static str> {
    let Some(end) = text.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let lines = decimal(&text[..end]).and_then(|pairs| pairs.checked_mul(2)?.checked_add(1));
    lines.map(Some).ok_or(NO_NUMBER)
}

/// The numbers of a map of `lines` lines.
pub(super) fn numbers_of_map(text: &[u8], lines: u64) -> Result<Vec<u64>, &'static str> {
    let lines = usize::try_from(lines).map_err(|_| NO_NUMBER)?;
    let numbers = text.split(|byte| *byte == b'\n').take(lines).skip(1);
    numbers.map(|line| decimal(line).ok_or(NO_NUMBER)).collect()
}

fn numbers(text: &[u8], separator: u8) -> Option<Vec<u64>> {
    if text.is_empty() { Some(Vec::new()) } else { text.split(|byte| *byte == separator).map(decimal).collect() }
}

/// Pairs as segments: in order, apart, within the file, and together exactly the `stored` bytes of the archive.
pub(super) fn segments(numbers: &[u64], real_size: u64, stored: u64) -> Result<Vec<Segment>, &'static str> {
    if !numbers.len().is_multiple_of(2) {
        return Err("a sparse file's map ends within a pair");
    }
    let (mut end, mut sum) = (0u64, 0u64);
    let mut segments = Vec::with_capacity(numbers.len() / 2);
    for pair in numbers.chunks_exact(2) {
        let segment = Segment { offset: pair[0], length: pair[1] };
        let next = segment.offset.checked_add(segment.length).filter(|next| *next <= real_size);
        if segment.offset < end {
            return Err("a sparse file's parts overlap");
        }
        end = next.ok_or("a sparse file's part lies beyond its end")?;
        // Parts are apart and within a u64, so their sum is too.
        sum += segment.length;
        segments.push(segment);
    }
    if sum == stored { Ok(segments) } else { Err("a sparse file's map does not match its content") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_checked() {
        let ok = segments(&[0, 10, 20, 5, 100, 0], 100, 15).unwrap();
        assert_eq!(ok.len(), 3);
        assert!(segments(&[0, 10, 5, 5], 100, 15).is_err());
        assert!(segments(&[0, 10, 99, 2], 100, 12).is_err());
        assert!(segments(&[0, 10], 100, 11).is_err());
        assert!(segments(&[0], 100, 0).is_err());
        assert!(segments(&[u64::MAX, u64::MAX], u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn a_map_before_the_content_is_read_by_its_lines() {
        assert_eq!(lines_of_map(b"1\n0"), Ok(Some(3)));
        assert_eq!(lines_of_map(b"12"), Ok(None));
        assert!(lines_of_map(b"18446744073709551615\n").is_err());
        assert_eq!(numbers_of_map(b"1\n0\n5\n\0\0", 3), Ok(vec![0, 5]));
        assert!(numbers_of_map(b"1\nx\n5\n", 3).is_err());
    }
}
