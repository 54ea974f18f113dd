//! The members of a tar stream, each with what the extension headers before it say, in bounded memory.
//!
//! Not the `tar` crate's iterator: it reads extension headers of any size into memory, splits PAX records at newlines
//! (so that a binary attribute hides the `size` after it), and does not know sparse files in PAX form.

use nix::sys::time::TimeSpec;

use super::Limits;
use super::error::{UnpackError, shown};
use super::header::{BLOCK, Header, text};
use super::input::Input;
use super::pax::Pax;
use super::sparse::{Segment, SparseMap, lines_of_map, numbers_of_map, segments};

/// The most an extension header or a sparse map may hold, as in Go's `archive/tar`.
const LONGEST_EXTENSION: u64 = 1 << 20;
/// Headers an entry may need on average, with room for the extensions of some.
const OVERHEAD_OF_ENTRY: u64 = 8 << 10;
const OVERHEAD_OF_ARCHIVE: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    Character,
    Block,
}

pub(super) struct Member {
    /// As it is in the archive, not checked.
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    /// The permission bits alone, at most `0o7777`.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: TimeSpec,
    /// Major and minor.
    pub(super) device: (u64, u64),
    /// Apparent, in bytes.
    pub(super) size: u64,
    /// The parts of the file that the archive holds, in order.
    pub(super) segments: Vec<Segment>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Default)]
struct Extensions {
    pax: Pax,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

pub(super) struct Archive<'a> {
    input: Input<'a>,
    limits: &'a Limits,
    entries: u64,
    /// Apparent bytes of all members so far.
    bytes: u64,
    /// Bytes that may still be spent on anything but content.
    overhead: u64,
    /// Bytes of the current member's content that were not read yet, and its padding.
    rest: u64,
    padding: u64,
    /// The name of the last member, for errors.
    near: Vec<u8>,
}

impl<'a> Archive<'a> {
    pub(super) fn new(input: Input<'a>, limits: &'a Limits) -> Self {
        let overhead = limits.entries.saturating_mul(OVERHEAD_OF_ENTRY).saturating_add(OVERHEAD_OF_ARCHIVE);
        Self { input, limits, entries: 0, bytes: 0, overhead, rest: 0, padding: 0, near: Vec::new() }
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next member, whatever was left of the content of the last.
    pub(super) fn next(&mut self) -> Result<Option<Member>, UnpackError> {
        self.skip_content()?;
        let mut extensions: Option<Extensions> = None;
        loop {
            let Some(header) = self.header()? else {
                return match extensions {
                    None => Ok(None),
                    Some(_) => Err(self.damaged("it ends after an extension header")),
                };
            };
            match header.kind() {
                b'x' => {
                    let records = self.extension(&header)?;
                    let pax = Pax::parse(&records).ok_or_else(|| self.damaged("a pax header is malformed"))?;
                    extensions.get_or_insert_default().pax = pax;
                }
                b'L' => extensions.get_or_insert_default().name = Some(text(&self.extension(&header)?).to_vec()),
                b'K' => extensions.get_or_insert_default().link = Some(text(&self.extension(&header)?).to_vec()),
                // Defaults for all that follow; other tools for images ignore them, and so must we to see the same.
                b'g' => drop(self.extension(&header)?),
                _ => return self.member(&header, extensions.unwrap_or_default()).map(Some),
            }
        }
    }

    /// Content of the current member that is at hand: at least `wanted` bytes or what is left of it.
    pub(super) fn content(&mut self, wanted: usize) -> Result<&[u8], UnpackError> {
        let most = usize::try_from(self.rest).unwrap_or(usize::MAX);
        let wanted = wanted.min(most);
        let near = &self.near;
        let buffered = self.input.fill(wanted).map_err(|error| UnpackError::reading(near, error))?;
        if buffered.len() < wanted {
            return Err(UnpackError::damaged(near, "it ends within the content"));
        }
        Ok(&buffered[..buffered.len().min(most)])
    }

    /// Drops `count` bytes, which the last `content` has shown.
    pub(super) fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.rest = self.rest.saturating_sub(count as u64);
    }

    fn skip_content(&mut self) -> Result<(), UnpackError> {
        while self.rest > 0 {
            let count = self.content(1)?.len();
            self.consume(count);
        }
        self.skip_padding()
    }

    /// Some tools (umoci 0.4) leave it out behind the last member, as they do the end of the archive.
    fn skip_padding(&mut self) -> Result<(), UnpackError> {
        let padding = usize::try_from(std::mem::take(&mut self.padding)).unwrap_or(BLOCK);
        let near = &self.near;
        let there = self.input.fill(padding).map_err(|error| UnpackError::reading(near, error))?.len();
        self.input.consume(padding.min(there));
        Ok(())
    }

    /// Two blocks of zeros end an archive; many a tool writes fewer.
    fn header(&mut self) -> Result<Option<Header>, UnpackError> {
        let Some(header) = self.block()?.map(Header::new) else { return Ok(None) };
        if header.is_zero() {
            return match self.block()?.map(Header::new) {
                Some(second) if !second.is_zero() => Err(self.damaged("it goes on after its end")),
                _ => Ok(None),
            };
        }
        if header.checksum_holds() { Ok(Some(header)) } else { Err(self.damaged("a header's checksum is wrong")) }
    }

    /// `None` at the end of the stream.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, UnpackError> {
        let near = &self.near;
        let buffered = self.input.fill(BLOCK).map_err(|error| UnpackError::reading(near, error))?;
        match buffered.first_chunk() {
            Some(block) => {
                let block = *block;
                self.input.consume(BLOCK);
                self.spend(BLOCK as u64)?;
                Ok(Some(block))
            }
            None if buffered.is_empty() => Ok(None),
            None => Err(self.damaged("it ends within a header")),
        }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), UnpackError> {
        let left = self.overhead.checked_sub(bytes);
        self.overhead = left.ok_or_else(|| self.damaged("its headers take more than they can need"))?;
        Ok(())
    }

    /// The content of an extension header.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, UnpackError> {
        let size = header.size().ok_or_else(|| self.damaged("a header's size is no number"))?;
        if size > LONGEST_EXTENSION {
            return Err(self.damaged("an extension header is larger than 1 MiB"));
        }
        self.expect_content(size);
        self.spend(size)?;
        let mut content = Vec::new();
        while self.rest > 0 {
            let part = self.content(1)?;
            content.extend_from_slice(part);
            let count = part.len();
            self.consume(count);
        }
        self.skip_content()?;
        Ok(content)
    }

    fn expect_content(&mut self, size: u64) {
        self.rest = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    fn member(&mut self, header: &Header, extensions: Extensions) -> Result<Member, UnpackError> {
        let Extensions { mut pax, name, link } = extensions;
        let path = pax.sparse.name.take().or(name).or(pax.path.take()).unwrap_or_else(|| header.path());
        self.near.clone_from(&path);
        let kind = self.kind(header, &path)?;
        self.count()?;
        let stored = self.stored_size(header, &pax, kind)?;
        let real_size = self.real_size(header, &pax, stored)?;
        self.count_bytes(real_size.max(stored))?;
        self.expect_content(stored);
        let mtime = match pax.mtime {
            Some(mtime) => mtime,
            None => TimeSpec::new(self.number(header.mtime(), "a header's time is no number")?, 0),
        };
        Ok(Member {
            link: link.or(pax.link.take()).unwrap_or_else(|| header.link().to_vec()),
            kind,
            mode: (self.number(header.mode(), "a header's mode is no number")? & 0o7777) as u32,
            uid: self.owner(pax.uid.or(header.uid()))?,
            gid: self.owner(pax.gid.or(header.gid()))?,
            mtime,
            device: match kind {
                Kind::Character | Kind::Block => self.number(header.device(), "a device's number is none")?,
                _ => (0, 0),
            },
            size: real_size,
            segments: self.segments(header, &mut pax, kind, real_size)?,
            xattrs: pax.xattrs,
            path,
        })
    }

    fn kind(&self, header: &Header, path: &[u8]) -> Result<Kind, UnpackError> {
        match header.kind() {
            // Archivers older than the type of directories.
            0 if path.ends_with(b"/") => Ok(Kind::Directory),
            0 | b'0' | b'7' | b'S' => Ok(Kind::File),
            b'1' => Ok(Kind::HardLink),
            b'2' => Ok(Kind::Symlink),
            b'3' => Ok(Kind::Character),
            b'4' => Ok(Kind::Block),
            b'5' => Ok(Kind::Directory),
            b'6' => Ok(Kind::Fifo),
            _ => Err(UnpackError::Unsupported { path: shown(path), what: "its type is unknown" }),
        }
    }

    fn count(&mut self) -> Result<(), UnpackError> {
        self.entries += 1;
        let limit = self.limits.entries;
        if self.entries > limit { Err(UnpackError::TooMany { path: shown(&self.near), limit }) } else { Ok(()) }
    }

    fn count_bytes(&mut self, bytes: u64) -> Result<(), UnpackError> {
        let limit = self.limits.bytes;
        let sum = self.bytes.checked_add(bytes).filter(|sum| *sum <= limit);
        self.bytes = sum.ok_or_else(|| UnpackError::TooLarge { path: shown(&self.near), limit })?;
        Ok(())
    }

    /// Only files have content, whatever the header of something else claims: so reads Go, and nobody may see other
    /// entries than the tools that looked at the layer before us.
    fn stored_size(&self, header: &Header, pax: &Pax, kind: Kind) -> Result<u64, UnpackError> {
        let size = self.number(pax.size.or(header.size()), "a header's size is no number")?;
        Ok(if kind == Kind::File { size } else { 0 })
    }

    fn real_size(&self, header: &Header, pax: &Pax, stored: u64) -> Result<u64, UnpackError> {
        match header.kind() {
            b'S' => self.number(header.gnu_real_size(), "a sparse file's size is no number"),
            _ => Ok(pax.sparse.real_size.unwrap_or(stored)),
        }
    }

    fn segments(
        &mut self,
        header: &Header,
        pax: &mut Pax,
        kind: Kind,
        real_size: u64,
    ) -> Result<Vec<Segment>, UnpackError> {
        let map = pax.sparse.map().map_err(|what| self.damaged(what))?;
        let numbers = match map {
            None if header.kind() == b'S' => self.gnu_map(header)?,
            None => return Ok(vec![Segment { offset: 0, length: real_size }]),
            Some(_) if kind != Kind::File || header.kind() == b'S' => {
                return Err(self.damaged("something is sparse that is no file"));
            }
            Some(SparseMap::Listed(numbers)) => numbers,
            Some(SparseMap::BeforeContent) => self.map_before_content()?,
        };
        segments(&numbers, real_size, self.rest).map_err(|what| self.damaged(what))
    }

    /// The map in a GNU header and the blocks that follow it.
    fn gnu_map(&mut self, header: &Header) -> Result<Vec<u64>, UnpackError> {
        const FAULT: &str = "a sparse file's map holds something else than numbers";
        let (mut numbers, mut goes_on) = header.gnu_sparse().ok_or_else(|| self.damaged(FAULT))?;
        let mut blocks = 0;
        while goes_on {
            blocks += BLOCK as u64;
            if blocks > LONGEST_EXTENSION {
                return Err(self.damaged("a sparse file's map is larger than 1 MiB"));
            }
            let block = self.block()?.ok_or_else(|| self.damaged("it ends within a sparse file's map"))?;
            let more = Header::new(block).gnu_more_sparse().ok_or_else(|| self.damaged(FAULT))?;
            numbers.extend(more.0);
            goes_on = more.1;
        }
        Ok(numbers)
    }

    /// The map at the start of the content, padded to whole blocks.
    fn map_before_content(&mut self) -> Result<Vec<u64>, UnpackError> {
        let (mut text, mut lines, mut wanted) = (Vec::new(), 0, None);
        while wanted.is_none_or(|wanted| lines < wanted) {
            if self.rest < BLOCK as u64 || text.len() as u64 >= LONGEST_EXTENSION {
                return Err(self.damaged("a sparse file's map does not end"));
            }
            let block = self.content(BLOCK)?;
            text.extend_from_slice(&block[..BLOCK]);
            lines += block[..BLOCK].iter().filter(|byte| **byte == b'\n').count() as u64;
            self.consume(BLOCK);
            if wanted.is_none() {
                wanted = lines_of_map(&text).map_err(|what| self.damaged(what))?;
            }
        }
        numbers_of_map(&text, wanted.unwrap_or_default()).map_err(|what| self.damaged(what))
    }

    fn owner(&self, id: Option<i64>) -> Result<u32, UnpackError> {
        // The largest means "leave it" to `chown`.
        let id = id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX);
        id.ok_or_else(|| self.damaged("an owner is out of range"))
    }

    fn number<T>(&self, value: Option<T>, what: &'static str) -> Result<T, UnpackError> {
        value.ok_or_else(|| self.damaged(what))
    }

    fn damaged(&self, what: &'static str) -> UnpackError {
        UnpackError::damaged(&self.near, what)
    }
}
