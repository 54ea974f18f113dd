//! Whether nobody wants something any more that is under way, known to who asks for it and to all who do parts of it.
//!
//! What goes step by step, such as a copy, asks before each ([`GivenUp::check`]); what waits, or is done by another process, is ended
//! ([`GivenUp::ending`]).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Default)]
pub struct GivenUp(Arc<Mutex<Wanted>>);

/// What is under way for it, each with what ends it.
#[derive(Default)]
struct Wanted {
    no_longer: bool,
    ends: BTreeMap<u64, End>,
    /// Numbers that were given to ends.
    numbered: u64,
}

type End = Box<dyn FnOnce() + Send>;

/// While it is there, something is ended when it is given up.
#[must_use]
pub struct Ending<'a> {
    given_up: &'a GivenUp,
    number: u64,
}

pub struct Reader<R> {
    inner: R,
    given_up: GivenUp,
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.given_up.check()?;
        self.inner.read(buffer)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let end = self.given_up.wanted().ends.remove(&self.number);
        drop(end);
    }
}

impl std::fmt::Debug for GivenUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GivenUp").field(&self.is_set()).finish()
    }
}

impl GivenUp {
    pub fn set(&self) {
        let ends = {
            let mut wanted = self.wanted();
            wanted.no_longer = true;
            std::mem::take(&mut wanted.ends)
        };
        ends.into_values().for_each(|end| end());
    }

    pub fn is_set(&self) -> bool {
        self.wanted().no_longer
    }

    /// An error once it is given up.
    pub fn check(&self) -> io::Result<()> {
        if self.is_set() { Err(io::Error::other("nobody wants it any more")) } else { Ok(()) }
    }

    /// What is read from there, until it is given up.
    pub fn reader<R>(&self, inner: R) -> Reader<R> {
        Reader { inner, given_up: self.clone() }
    }

    /// `end` is called once if it is given up, or was.
    pub fn ending(&self, end: impl FnOnce() + Send + 'static) -> Ending<'_> {
        let mut wanted = self.wanted();
        wanted.numbered += 1;
        let number = wanted.numbered;
        match wanted.no_longer {
            false => drop(wanted.ends.insert(number, Box::new(end))),
            true => {
                drop(wanted);
                end();
            }
        }
        Ending { given_up: self, number }
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are of the same.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_under_way_is_ended_once_when_it_is_given_up_or_was() {
        let (given_up, ended) = (GivenUp::default(), Arc::new(AtomicU32::new(0)));
        let count = || {
            let ended = ended.clone();
            move || {
                ended.fetch_add(1, Ordering::SeqCst);
            }
        };
        drop(given_up.ending(count()));
        let kept = given_up.ending(count());
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        given_up.check().unwrap();
        given_up.clone().set();
        given_up.set();
        given_up.check().unwrap_err();
        assert_eq!(ended.load(Ordering::SeqCst), 1, "what was over is not ended");
        drop(kept);
        drop(given_up.ending(count()));
        assert_eq!(ended.load(Ordering::SeqCst), 2, "it begins too late");
    }

    #[test]
    fn what_is_read_ends_where_it_is_given_up() {
        let given_up = GivenUp::default();
        let mut reader = given_up.reader(io::repeat(1));
        let mut bytes = [0; 8];
        reader.read_exact(&mut bytes).unwrap();
        given_up.set();
        let error = io::copy(&mut reader, &mut io::sink()).unwrap_err();
        assert_eq!(error.to_string(), "nobody wants it any more");
    }
}
