//! The cache of glibc's loader, `/etc/ld.so.cache`: which name of a library lies where.
//!
//! Only `ldconfig` writes it, and an image may have none; run by root it would read whatever the image holds. So what is to be
//! found in a container is added to its own cache here: bytes in, bytes out.
//!
//! ```text
//! header (48 bytes): "glibc-ld.so.cache1.1", entries, bytes of texts, byte order, offset of the extensions
//! entries (24 bytes each): flags, name, path, 0, processors; by name, the greatest first
//! texts, ended by NUL; extensions: a table, and the names of the processors that entries are for
//! ```
//! Offsets count from the header, before which an older form may lie (glibc before 2.32).

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// Byte order, in the header: little. What older versions have written says nothing.
const LITTLE: u8 = 2;
const EXTENSIONS_MAGIC: u32 = 0xeaa4_2174;
const EXTENSIONS_ALIGNMENT: usize = 4;
/// There are two kinds of them so far.
const EXTENSIONS_MAX: usize = 16;
/// The kind of an extension: names of directories for some processors only, which entries count.
const PROCESSORS: u32 = 1;
/// Entries can name 32 of them at most.
const PROCESSORS_MAX: usize = 32;
/// A library of glibc for this machine's programs of 64 bits.
#[cfg(target_arch = "x86_64")]
const FLAGS: u32 = 0x0303;
#[cfg(target_arch = "aarch64")]
const FLAGS: u32 = 0x0a03;
/// Longest cache that is read, bytes: a distribution with all of its libraries has less than a million.
pub const SIZE_MAX: u64 = 4 << 20;
/// Longest name or path, and most bytes of all of them: many entries may name one text.
const TEXT_MAX: usize = 4096;
const TEXTS_MAX: usize = 16 << 20;

/// It is not of a form that is known, or says what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no cache of glibc's loader in a form that is known (version 1.1)")]
pub struct Unknown;

/// A name, as programs give it to the loader, and a path.
pub type Library = (Vec<u8>, Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    flags: u32,
    name: Vec<u8>,
    path: Vec<u8>,
    processors: u64,
}

#[derive(Debug, Default)]
struct Cache {
    entries: Vec<Entry>,
    processors: Vec<Vec<u8>>,
}

/// Where libraries of this machine's kind lie, by name, as a cache says.
pub fn libraries(cache: &[u8]) -> Result<Vec<Library>, Unknown> {
    let cache = Cache::read(cache)?;
    let own = cache.entries.into_iter().filter(|entry| entry.flags == FLAGS);
    Ok(own.map(|entry| (entry.name, entry.path)).collect())
}

/// The cache of an image, if it has one, in which these names lead to these paths, and nowhere else.
pub fn with(cache: Option<&[u8]>, libraries: &[Library]) -> Result<Vec<u8>, Unknown> {
    let mut cache = cache.map_or(Ok(Cache::default()), Cache::read)?;
    let names: BTreeSet<&[u8]> = libraries.iter().map(|(name, _)| name.as_slice()).collect();
    cache.entries.retain(|entry| entry.flags != FLAGS || !names.contains(entry.name.as_slice()));
    let entry = |(name, path): &Library| Entry { flags: FLAGS, name: name.clone(), path: path.clone(), processors: 0 };
    let mut entries: Vec<Entry> = libraries.iter().map(entry).collect();
    entries.append(&mut cache.entries);
    // The loader halves the list at each step; of those of one name the first counts.
    entries.sort_by(|one, other| order(&other.name, &one.name));
    cache.entries = entries;
    cache.write()
}

impl Cache {
    fn read(bytes: &[u8]) -> Result<Self, Unknown> {
        let cache = current(bytes).ok_or(Unknown)?;
        let count = word(cache, 20).ok_or(Unknown)? as usize;
        let end = count.checked_mul(ENTRY).and_then(|size| size.checked_add(HEADER)).ok_or(Unknown)?;
        let entries = cache.get(HEADER..end).ok_or(Unknown)?;
        let read = |entry: &[u8]| {
            let text = |at| text(cache, word(entry, at)? as usize).map(<[u8]>::to_vec);
            let processors = u64::from(word(entry, 16)?) | u64::from(word(entry, 20)?) << 32;
            Some(Entry { flags: word(entry, 0)?, name: text(4)?, path: text(8)?, processors })
        };
        let mut room = TEXTS_MAX;
        let fits = |entry: Option<Entry>| {
            let entry = entry?;
            room = room.checked_sub(entry.name.len() + entry.path.len())?;
            Some(entry)
        };
        let entries: Option<Vec<Entry>> = entries.chunks_exact(ENTRY).map(read).map(fits).collect();
        Ok(Self { entries: entries.ok_or(Unknown)?, processors: processors(cache).ok_or(Unknown)? })
    }

    fn write(&self) -> Result<Vec<u8>, Unknown> {
        let mut texts = Texts { at: HEADER + self.entries.len() * ENTRY, bytes: Vec::new() };
        let mut entries = Vec::new();
        for entry in &self.entries {
            let (name, path) = (texts.add(&entry.name)?, texts.add(&entry.path)?);
            for word in [entry.flags, name, path, 0] {
                entries.extend(word.to_le_bytes());
            }
            entries.extend(entry.processors.to_le_bytes());
        }
        let processors: Vec<u32> = self.processors.iter().map(|name| texts.add(name)).collect::<Result<_, _>>()?;
        let extensions = (texts.at + texts.bytes.len()).next_multiple_of(EXTENSIONS_ALIGNMENT);
        let mut out = MAGIC.to_vec();
        out.extend(small(self.entries.len())?.to_le_bytes());
        out.extend(small(texts.bytes.len())?.to_le_bytes());
        out.extend([LITTLE, 0, 0, 0]);
        out.extend(if processors.is_empty() { 0 } else { small(extensions)? }.to_le_bytes());
        out.resize(HEADER, 0);
        out.extend(entries);
        out.extend(texts.bytes);
        if !processors.is_empty() {
            out.resize(extensions, 0);
            // One entry in the table of extensions, and what it tells of right behind it.
            let table = [EXTENSIONS_MAGIC, 1, PROCESSORS, 0, small(extensions + 24)?, small(processors.len() * 4)?];
            out.extend(table.into_iter().chain(processors).flat_map(u32::to_le_bytes));
        }
        Ok(out)
    }
}

/// The part that is of the current form.
fn current(bytes: &[u8]) -> Option<&[u8]> {
    let cache = match bytes.starts_with(OLD_MAGIC) {
        false => bytes,
        true => {
            let size = (word(bytes, 12)? as usize).checked_mul(OLD_ENTRY)?;
            bytes.get(size.checked_add(OLD_HEADER)?.checked_next_multiple_of(8)?..)?
        }
    };
    cache.starts_with(MAGIC).then_some(cache)
}

fn processors(cache: &[u8]) -> Option<Vec<Vec<u8>>> {
    let table = word(cache, 32)? as usize;
    if table == 0 {
        return Some(Vec::new());
    }
    if word(cache, table)? != EXTENSIONS_MAGIC {
        return None;
    }
    let mut found = Vec::new();
    for number in 0..(word(cache, table.checked_add(4)?)? as usize).min(EXTENSIONS_MAX) {
        let at = number.checked_mul(16).and_then(|at| at.checked_add(table)?.checked_add(8))?;
        let (kind, start, size) = (word(cache, at)?, word(cache, at + 8)? as usize, word(cache, at + 12)? as usize);
        if kind == PROCESSORS {
            let offsets = cache.get(range(start, size.min(PROCESSORS_MAX * 4))?)?.chunks_exact(4);
            let name = |offset: &[u8]| text(cache, word(offset, 0)? as usize).map(<[u8]>::to_vec);
            found = offsets.map(name).collect::<Option<_>>()?;
        }
    }
    Some(found)
}

fn range(start: usize, size: usize) -> Option<Range<usize>> {
    Some(start..start.checked_add(size)?)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word: [u8; 4] = bytes.get(range(at, 4)?)?.try_into().ok()?;
    Some(u32::from_le_bytes(word))
}

fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let rest = rest.get(..TEXT_MAX).unwrap_or(rest);
    rest.iter().position(|byte| *byte == 0).and_then(|end| rest.get(..end))
}

fn small(number: usize) -> Result<u32, Unknown> {
    u32::try_from(number).map_err(|_| Unknown)
}

/// Texts that are written one after the other; where each lies.
struct Texts {
    at: usize,
    bytes: Vec<u8>,
}

impl Texts {
    fn add(&mut self, text: &[u8]) -> Result<u32, Unknown> {
        let at = small(self.at + self.bytes.len())?;
        self.bytes.extend(text);
        self.bytes.push(0);
        Ok(at)
    }
}

/// As the loader compares names: numbers in them by their values, and after everything else.
fn order(one: &[u8], other: &[u8]) -> Ordering {
    let (mut one, mut other) = (one, other);
    loop {
        let (first, second) = (one.first(), other.first());
        match (first, second) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => match (a.is_ascii_digit(), b.is_ascii_digit()) {
                (true, true) => match number(&mut one).cmp(&number(&mut other)) {
                    Ordering::Equal => {}
                    different => return different,
                },
                (true, false) => return Ordering::Greater,
                (false, true) => return Ordering::Less,
                (false, false) if a == b => (one, other) = (rest(one), rest(other)),
                // The loader's characters are signed on some machines; names of libraries are of plain ones.
                (false, false) => return a.cmp(b),
            },
        }
    }
}

/// The number at the start, which is taken off.
fn number(text: &mut &[u8]) -> u64 {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, left) = text.split_at(end);
    *text = left;
    digits.iter().fold(0, |number, digit| u64::wrapping_add(u64::wrapping_mul(number, 10), u64::from(digit - b'0')))
}

fn rest(text: &[u8]) -> &[u8] {
    text.get(1..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<Library> {
        pairs.iter().map(|(name, path)| (name.as_bytes().to_vec(), path.as_bytes().to_vec())).collect()
    }

    #[expect(clippy::disallowed_methods, reason = "a program of the tests")]
    fn lines(program: &str, cache: &std::path::Path) -> Vec<String> {
        let listed = std::process::Command::new(program).args(["-p", "-C"]).arg(cache).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let text = String::from_utf8(listed.stdout).unwrap();
        text.lines().filter(|line| line.contains("=>")).map(|line| line.trim().to_owned()).collect()
    }

    const LDCONFIG: &str = "/sbin/ldconfig";

    #[test]
    fn ldconfig_reads_what_was_written_and_all_that_was_there_before() {
        let own = std::fs::read("/etc/ld.so.cache").expect("a machine with glibc has a cache");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let added = pairs(&[
            ("libcuda.so.1", "/usr/lib/libcuda.so.1"),
            ("libcuda.so", "/usr/lib/libcuda.so"),
            ("libaaa.so.1", "/x/libaaa.so.1"),
            ("libzzz10.so.2", "/x/libzzz10.so.2"),
            ("libc.so.6", "/x/libc.so.6"),
        ]);
        std::fs::write(&path, with(Some(&own), &added).unwrap()).unwrap();
        let mut wanted: Vec<String> = lines(LDCONFIG, std::path::Path::new("/etc/ld.so.cache"));
        let is_replaced = |line: &String| line.starts_with("libc.so.6 ") && line.contains("64");
        wanted.retain(|line| !is_replaced(line));
        let mut found = lines(LDCONFIG, &path);
        for (name, path) in &added {
            let (name, path) = (String::from_utf8_lossy(name), String::from_utf8_lossy(path));
            let at =
                found.iter().position(|line| line.starts_with(&format!("{name} (libc6,")) && line.ends_with(&*path));
            found.remove(at.unwrap_or_else(|| panic!("{name} is missing: {found:#?}")));
        }
        wanted.sort();
        found.sort();
        assert_eq!(found, wanted);
        assert_eq!(libraries(&own).unwrap().len(), libraries(&with(Some(&own), &[]).unwrap()).unwrap().len());
    }

    #[test]
    fn names_are_in_the_order_in_which_the_loader_looks() {
        let names =
            ["libz.so.1", "libnvidia-ml.so.1", "libm10.so.1", "libm9.so.1", "libm.so.6", "libm-2.so", "libcuda.so.1"];
        let entries: Vec<_> = names.iter().rev().map(|name| (name.as_bytes().to_vec(), b"/x".to_vec())).collect();
        let written = with(None, &entries).unwrap();
        let found: Vec<_> =
            libraries(&written).unwrap().into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect();
        assert!(found.windows(2).all(|two| order(two[0].as_bytes(), two[1].as_bytes()).is_gt()), "{found:?}");
        assert_eq!(order(b"libm10.so", b"libm9.so"), Ordering::Greater);
        assert_eq!(order(b"libm9.so", b"libm.so"), Ordering::Greater);
        assert_eq!(found.len(), names.len());
    }

    /// A cache in both forms, as glibc before 2.32 has written it.
    #[test]
    fn the_older_form_is_skipped_and_names_of_processors_are_kept() {
        let new = Cache {
            entries: vec![Entry {
                flags: FLAGS,
                name: b"liba.so.1".to_vec(),
                path: b"/a".to_vec(),
                processors: 1 << 62,
            }],
            processors: vec![b"x86-64-v3".to_vec()],
        };
        let new = new.write().unwrap();
        let mut both = OLD_MAGIC.to_vec();
        both.extend(3u32.to_le_bytes());
        both.resize(OLD_HEADER + 3 * OLD_ENTRY, 7);
        both.resize(both.len().next_multiple_of(8), 0);
        both.extend(&new);
        let read = Cache::read(&both).unwrap();
        assert_eq!(read.processors, [b"x86-64-v3".to_vec()]);
        assert_eq!(read.entries[0].processors, 1 << 62);
        assert_eq!(read.write().unwrap(), new);
    }

    proptest! {
        #[test]
        fn no_cache_of_an_image_does_harm(
            changes in proptest::collection::vec((0..4096usize, any::<u8>()), 0..8),
            cut in 0..4096usize,
        ) {
            let mut cache = with(None, &pairs(&[("liba.so.1", "/a"), ("libb.so.2", "/b")])).unwrap();
            for (at, byte) in changes {
                let at = at % cache.len();
                cache[at] = byte;
            }
            cache.truncate(cut.max(1));
            if let Ok(written) = with(Some(&cache), &pairs(&[("libcuda.so.1", "/c")])) {
                let found = libraries(&written).unwrap();
                prop_assert!(found.contains(&(b"libcuda.so.1".to_vec(), b"/c".to_vec())));
            }
        }
    }
}
