//! How much has gone by: for whoever waits for it.

use std::io::{self, Read, Write};

/// Reads or writes as what is in it does, and tells after each part how many bytes that were so far.
pub struct Counted<T, F: FnMut(u64)> {
    pub inner: T,
    done: u64,
    told: F,
}

impl<T, F: FnMut(u64)> Counted<T, F> {
    pub fn new(inner: T, told: F) -> Self {
        Self { inner, done: 0, told }
    }

    fn count(&mut self, bytes: usize) -> usize {
        self.done += bytes as u64;
        (self.told)(self.done);
        bytes
    }
}

impl<T: Read, F: FnMut(u64)> Read for Counted<T, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        Ok(self.count(bytes))
    }
}

impl<T: Write, F: FnMut(u64)> Write for Counted<T, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = self.inner.write(bytes)?;
        Ok(self.count(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_by_is_told_as_it_does() {
        let (mut read, mut written) = (Vec::new(), 0);
        let mut from = Counted::new(&b"abcde"[..], |done| read.push(done));
        let mut to = Counted::new(Vec::new(), |done| written = done);
        let mut part = [0; 2];
        while let Ok(count @ 1..) = from.read(&mut part) {
            to.write_all(&part[..count]).unwrap();
        }
        assert_eq!(to.inner, b"abcde");
        assert_eq!((written, read), (5, vec![2, 4, 5, 5]));
    }
}
