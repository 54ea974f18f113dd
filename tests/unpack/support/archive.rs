//! Builds archives that no sane tool would write.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

pub(crate) struct Tar(Vec<u8>);

#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: u64,
}

pub(crate) const PLAIN: Attributes = Attributes { mode: 0o644, uid: 0, gid: 0, mtime: 1_000_000_000 };

impl Tar {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A header and `content`, padded; a `size` of its own makes the header lie.
    pub(crate) fn member(
        self,
        kind: u8,
        path: &[u8],
        link: &[u8],
        content: &[u8],
        change: impl FnOnce(&mut tar::Header),
    ) -> Self {
        let mut header = tar::Header::new_gnu();
        let old = header.as_old_mut();
        old.name[..path.len().min(100)].copy_from_slice(&path[..path.len().min(100)]);
        old.linkname[..link.len().min(100)].copy_from_slice(&link[..link.len().min(100)]);
        old.linkflag = [kind];
        header.set_size(content.len() as u64);
        with(&mut header, PLAIN);
        change(&mut header);
        header.set_cksum();
        let tar = match (path.len() > 100, link.len() > 100) {
            (false, false) => self,
            (true, false) => self.pax(&[(b"path", path)]),
            (false, true) => self.pax(&[(b"linkpath", link)]),
            (true, true) => self.pax(&[(b"path", path), (b"linkpath", link)]),
        };
        tar.raw(header.as_bytes()).raw(content).padded()
    }

    fn padded(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, content: &[u8]) -> Self {
        self.member(b'0', path.as_bytes(), b"", content, |_| {})
    }

    pub(crate) fn file_with(self, path: &str, content: &[u8], attributes: Attributes) -> Self {
        self.member(b'0', path.as_bytes(), b"", content, |header| with(header, attributes))
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.dir_with(path, Attributes { mode: 0o755, ..PLAIN })
    }

    pub(crate) fn dir_with(self, path: &str, attributes: Attributes) -> Self {
        self.member(b'5', path.as_bytes(), b"", b"", |header| with(header, attributes))
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.member(b'2', path.as_bytes(), target.as_bytes(), b"", |_| {})
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        self.member(b'1', path.as_bytes(), target.as_bytes(), b"", |_| {})
    }

    pub(crate) fn fifo(self, path: &str) -> Self {
        self.member(b'6', path.as_bytes(), b"", b"", |_| {})
    }

    pub(crate) fn device(self, kind: u8, path: &str, major: u32, minor: u32) -> Self {
        self.member(kind, path.as_bytes(), b"", b"", |header| {
            header.set_device_major(major).unwrap();
            header.set_device_minor(minor).unwrap();
        })
    }

    /// An extension header for the member that comes next.
    pub(crate) fn pax(self, records: &[(&[u8], &[u8])]) -> Self {
        let content: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.member(b'x', b"pax", b"", &content, |_| {})
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).0
    }

    pub(crate) fn without_end(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) fn with(header: &mut tar::Header, attributes: Attributes) {
    header.set_mode(attributes.mode);
    header.set_uid(attributes.uid);
    header.set_gid(attributes.gid);
    header.set_mtime(attributes.mtime);
}

pub(crate) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest + 1..).find(|length| rest + length.to_string().len() == *length).unwrap();
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}
