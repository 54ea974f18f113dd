//! What an entry's name says: a place beneath the layer's root, or one of the marks of a layer.

const LONGEST_PART: usize = 255;
/// The kernel's `PATH_MAX` without its NUL.
const LONGEST_PATH: usize = 4095;
const MARK: &[u8] = b".wh.";
const AUFS_MARK: &[u8] = b".wh..wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";

/// Paths are relative, clean (`a/b/c`), and empty for the layer's root.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    Place(Vec<u8>),
    /// What lower layers have here is gone.
    WhiteOut(Vec<u8>),
    /// What lower layers have below this directory is gone.
    Opaque(Vec<u8>),
    /// The book-keeping of aufs.
    Ignored,
}

pub(super) fn read(raw: &[u8]) -> Result<Name, &'static str> {
    let path = clean(raw)?;
    let (parent, name) = split(&path);
    if name == OPAQUE_MARK {
        return Ok(Name::Opaque(parent.to_vec()));
    }
    if path.split(|byte| *byte == b'/').any(|part| part.starts_with(AUFS_MARK)) {
        return Ok(Name::Ignored);
    }
    match name.strip_prefix(MARK) {
        None => Ok(Name::Place(path)),
        Some(b"" | b"." | b"..") => Err("it is a white-out of no name"),
        Some(hidden) if parent.is_empty() => Ok(Name::WhiteOut(hidden.to_vec())),
        Some(hidden) => Ok(Name::WhiteOut([parent, b"/", hidden].concat())),
    }
}

pub(super) fn clean(raw: &[u8]) -> Result<Vec<u8>, &'static str> {
    if raw.is_empty() {
        return Err("its name is empty");
    }
    if raw.contains(&0) {
        return Err("its name holds a NUL");
    }
    let mut path = Vec::with_capacity(raw.len());
    for part in raw.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err("its name leads upwards"),
            _ if part.len() > LONGEST_PART => return Err("a part of its name is longer than 255 bytes"),
            _ if path.is_empty() => {}
            _ => path.push(b'/'),
        }
        path.extend_from_slice(part);
    }
    if path.len() > LONGEST_PATH { Err("its name is longer than 4095 bytes") } else { Ok(path) }
}

/// The directory and the name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    path.iter().rposition(|byte| *byte == b'/').map_or((b"", path), |at| (&path[..at], &path[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned_or_refused() {
        assert_eq!(clean(b"./a//b/./c/").unwrap(), b"a/b/c");
        assert_eq!(clean(b"/etc/passwd").unwrap(), b"etc/passwd");
        assert_eq!(clean(b"./").unwrap(), b"");
        for refused in [&b""[..], b"..", b"a/../b", b"a\0b", &[b'x'; 256]] {
            assert!(clean(refused).is_err(), "{}", refused.escape_ascii());
        }
        assert!(clean(&b"x/".repeat(2048)).is_ok_and(|path| path.len() == 4095));
        assert!(clean(&b"x/".repeat(2049)).is_err());
    }

    #[test]
    fn marks_are_known() {
        assert_eq!(read(b"a/.wh.b"), Ok(Name::WhiteOut(b"a/b".to_vec())));
        assert_eq!(read(b".wh.b"), Ok(Name::WhiteOut(b"b".to_vec())));
        assert_eq!(read(b"a/.wh..wh..opq"), Ok(Name::Opaque(b"a".to_vec())));
        assert_eq!(read(b"./.wh..wh..opq"), Ok(Name::Opaque(b"".to_vec())));
        assert_eq!(read(b".wh..wh.plnk/1"), Ok(Name::Ignored));
        assert_eq!(read(b".wh.a/b"), Ok(Name::Place(b".wh.a/b".to_vec())));
        for refused in [&b".wh."[..], b"a/.wh..", b".wh..."] {
            assert!(read(refused).is_err(), "{}", refused.escape_ascii());
        }
    }
}
