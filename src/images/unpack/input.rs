//! The tar stream behind one buffer, handed out as slices so that content goes from here to the file without a copy.

use std::io::{self, Read};

const CAPACITY: usize = 256 << 10;

pub(super) struct Input<'a> {
    source: &'a mut dyn Read,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    ended: bool,
}

impl<'a> Input<'a> {
    pub(super) fn new(source: &'a mut dyn Read) -> Self {
        Self { source, buffer: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0, ended: false }
    }

    /// What is buffered: at least `wanted` bytes (at most 256 KiB can be asked for), fewer only where the stream ends.
    pub(super) fn fill(&mut self, wanted: usize) -> io::Result<&[u8]> {
        if self.end - self.start < wanted {
            self.read_more(wanted.min(CAPACITY))?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn read_more(&mut self, wanted: usize) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted && !self.ended {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                // A reader that claims more than it was given room for must not make us panic later.
                Ok(count) => self.end = (self.end + count).min(CAPACITY),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Drops `count` bytes, which the last `fill` has shown.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }
}
