//! Many tiny entries, in a process of their own: what they take of memory is measured.

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use trainyard::images::unpack::{Limits, unpack};

use crate::archive::Tar;

const ENTRIES: u64 = 1_000_000;

struct Tiny {
    next: u64,
    count: u64,
    part: Vec<u8>,
}

impl Read for Tiny {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.part.is_empty() && self.next < self.count {
            self.part = (0..100).fold(Tar::new(), |tar, offset| self.add(tar, self.next + offset)).without_end();
            self.next += 100;
        }
        let count = into.len().min(self.part.len());
        into[..count].copy_from_slice(&self.part[..count]);
        self.part.drain(..count);
        Ok(count)
    }
}

impl Tiny {
    /// Of a hundred a directory, a white-out, and files.
    fn add(&self, tar: Tar, index: u64) -> Tar {
        let directory = index / 100;
        match index % 100 {
            0 => tar.dir(&format!("some/way/down/directory-{directory}/")),
            1 => tar.file(&format!("some/way/down/directory-{directory}/.wh.gone"), b""),
            _ => tar.file(&format!("some/way/down/directory-{directory}/file-{index}"), b"x"),
        }
    }
}

#[test]
fn a_million_tiny_entries_take_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let count = ENTRIES;
    let (before, start) = (peak(), Instant::now());
    let tar = Tiny { next: 0, count, part: Vec::new() };
    let unpacked = unpack(tar, directory.path(), &Limits { bytes: 1 << 30, entries: count }).unwrap();
    let (wall, grown) = (start.elapsed(), peak() - before);
    println!("{count} entries in {wall:?}, {grown} KiB more, {} KiB at most", peak());
    assert_eq!(unpacked.entries, count);
    assert!(Path::new(&directory.path().join("some/way/down/directory-1/file-199")).exists());
    assert!(peak() < 100 << 10, "{} KiB", peak());
}

/// In KiB, of the whole process.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
