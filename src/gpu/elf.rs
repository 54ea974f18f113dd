//! What a library says of itself: its name for the loader, and the versions of glibc that it needs or is.

use std::fs::File;
use std::io;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::FileHeader;
use object::{Endianness, ReadCache, ReadRef};

/// A version of glibc, as 2.17.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc(pub u32, pub u32);

impl std::fmt::Display for Glibc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Glibc {
    /// Of a name such as `GLIBC_2.17`; `GLIBC_PRIVATE` is none.
    fn parse(name: &[u8]) -> Option<Self> {
        let numbers = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
        let mut numbers = numbers.split('.').map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

type Header = FileHeader64<Endianness>;

/// The name by which the loader knows a library (`DT_SONAME`).
pub(super) fn name(path: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(path).ok()?);
    name_in(&cache).ok().flatten()
}

fn name_in<'d>(data: impl ReadRef<'d>) -> object::Result<Option<String>> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let table = sections.dynamic_table(endian, data)?;
    let name = table.iter().find(|entry| entry.tag == object::elf::DT_SONAME);
    let name = name.map(|entry| table.string(entry)).transpose()?;
    Ok(name.map(|name| String::from_utf8_lossy(name).into_owned()))
}

/// The newest version of glibc that a library of the driver needs.
pub fn needed_glibc(path: &Path) -> io::Result<Option<Glibc>> {
    let cache = ReadCache::new(File::open(path)?);
    needed_in(&cache).map_err(io::Error::other)
}

fn needed_in<'d>(data: impl ReadRef<'d>) -> object::Result<Option<Glibc>> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let Some((mut needs, strings)) = sections.gnu_verneed(endian, data)? else { return Ok(None) };
    let strings = sections.strings(endian, data, strings)?;
    let mut newest = None;
    while let Some((_, mut versions)) = needs.next()? {
        while let Some(version) = versions.next()? {
            newest = newest.max(Glibc::parse(version.name(endian, strings)?));
        }
    }
    Ok(newest)
}

/// Which version of glibc this `libc.so.6` is; of an image, so that it may be anything.
pub fn version_of_glibc(content: &[u8]) -> Option<Glibc> {
    version_in(content).ok().flatten()
}

fn version_in(data: &[u8]) -> object::Result<Option<Glibc>> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let Some((mut defined, strings)) = sections.gnu_verdef(endian, data)? else { return Ok(None) };
    let strings = sections.strings(endian, data, strings)?;
    let mut newest = None;
    while let Some((_, mut names)) = defined.next()? {
        if let Some(name) = names.next()? {
            newest = newest.max(Glibc::parse(name.name(endian, strings)?));
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_libc() -> std::path::PathBuf {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path =
            maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so.6"));
        path.expect("tests run with glibc").into()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a program of the tests")]
    fn this_machine_s_own_library_tells_its_name_and_version() {
        let path = own_libc();
        assert_eq!(name(&path).as_deref(), Some("libc.so.6"));
        let version = version_of_glibc(&std::fs::read(&path).unwrap()).unwrap();
        let told = std::process::Command::new("getconf").arg("GNU_LIBC_VERSION").output().unwrap();
        assert_eq!(String::from_utf8(told.stdout).unwrap().trim(), format!("glibc {version}"));
        // The tests themselves need no newer one than there is.
        let needed = needed_glibc(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert!(Glibc(2, 0) < needed && needed <= version, "{needed} {version}");
    }

    #[test]
    fn what_is_no_library_tells_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so.1");
        let whole = std::fs::read(own_libc()).unwrap();
        for content in [b"".as_slice(), b"#!/bin/sh\n", &whole[..4096]] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(name(&path), None);
            assert_eq!(version_of_glibc(content), None);
        }
        assert_eq!(Glibc::parse(b"GLIBC_2.2.5"), Some(Glibc(2, 2)));
        assert_eq!(Glibc::parse(b"GLIBC_PRIVATE"), None);
        assert!(Glibc(2, 9) < Glibc(2, 17));
    }
}
