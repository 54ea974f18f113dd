//! One blob into a file, over as many connections as it takes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use super::errors::RegistryError;
use super::process::{Asking, Errand, News, PIECE_MAX};
use super::{LayerBlob, Registry, Source};
use crate::images::digest::Digest;

/// How often a blob is tried again.
const TRIES: u32 = 5;
/// A registry that takes no more requests is left alone for so many times as long as one that failed.
const BUSY: u32 = 16;

pub(super) struct Transfer<'a> {
    pub(super) registry: &'a Registry,
    pub(super) source: Source<'a>,
    pub(super) layer: &'a LayerBlob,
    pub(super) progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl Transfer<'_> {
    pub(super) async fn run(&self, into: &File, first_wait: Duration) -> Result<(), RegistryError> {
        let mut partial = Partial::open(into, self.layer.size).await?;
        let mut tries = Tries { left: TRIES, wait: first_wait };
        loop {
            if let Err(error) = self.go_on(&mut partial).await {
                tries.again(error).await?;
                continue;
            }
            let got = partial.digest();
            if got == self.layer.digest {
                return Ok(());
            }
            let was_inherited = partial.is_inherited;
            self.restart(&mut partial)?;
            // What an earlier call left may have been hurt by a crash; what came in this one is the registry's.
            if !was_inherited {
                return Err(self.source.wrong_digest(&self.layer.named(), self.layer.digest.clone(), got));
            }
        }
    }

    /// One connection's worth; keeps what came also when it breaks off.
    async fn go_on(&self, partial: &mut Partial) -> Result<(), RegistryError> {
        (self.progress)(partial.length);
        if partial.length == self.layer.size {
            return Ok(());
        }
        let errand = Errand::Blob { layer: self.layer.clone(), from: partial.length };
        let mut asking = self.registry.ask(self.source, self.layer.named(), errand).await?;
        let News::Begins { is_part, length } = asking.next().await? else { return Err(asking.strange()) };
        if !is_part && partial.length > 0 {
            // It knows no ranges.
            self.restart(partial)?;
        }
        self.expect(is_part, length, partial.length)?;
        let ended = self.receive(&mut asking, partial).await;
        partial.write().await?;
        (self.progress)(partial.length);
        ended
    }

    /// The length that is promised must fit to what is missing.
    fn expect(&self, is_part: bool, length: Option<u64>, from: u64) -> Result<(), RegistryError> {
        let missing = self.layer.size.saturating_sub(from);
        match length {
            Some(length) if length > missing => Err(self.source.too_large(&self.layer.named(), self.layer.size)),
            // A part may be a small one; the whole is not.
            Some(length) if length < missing && !is_part => {
                let why = format!("it has {length} bytes, the manifest says {missing}");
                Err(self.source.damaged(&self.layer.named(), why))
            }
            _ => Ok(()),
        }
    }

    async fn receive(&self, asking: &mut Asking<'_>, partial: &mut Partial) -> Result<(), RegistryError> {
        loop {
            let count = match asking.next().await? {
                News::Bytes(count) => count,
                News::End => break,
                _ => return Err(asking.strange()),
            };
            if partial.length + partial.pending.len() as u64 + count as u64 > self.layer.size {
                self.restart(partial)?;
                return Err(self.source.too_large(&self.layer.named(), self.layer.size));
            }
            asking.bytes(count, &mut partial.pending).await?;
            if partial.pending.len() >= PIECE_MAX {
                partial.write().await?;
                (self.progress)(partial.length);
            }
        }
        let came = partial.length + partial.pending.len() as u64;
        let why = || format!("{came} of {} bytes came", self.layer.size);
        if came == self.layer.size { Ok(()) } else { Err(self.source.broke_off(&self.layer.named(), &why())) }
    }

    fn restart(&self, partial: &mut Partial) -> Result<(), RegistryError> {
        partial.restart()?;
        (self.progress)(0);
        Ok(())
    }
}

/// The waits between tries.
struct Tries {
    left: u32,
    wait: Duration,
}

impl Tries {
    /// Waits before the next one, or gives the error back when there should be none.
    async fn again(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if !error.is_passing() || self.left == 0 {
            return Err(error);
        }
        let is_busy = matches!(error, RegistryError::RateLimited { .. });
        sleep(if is_busy { self.wait * BUSY } else { self.wait }).await;
        self.left -= 1;
        self.wait *= 2;
        Ok(())
    }
}

/// The file as far as it came, and the digest of that. The disk and the digest have threads of their own, a piece at a
/// time: other transfers go on meanwhile, and a transfer that is dropped stops after a piece. Pieces are written at
/// their place, so that the last one of a dropped transfer does no harm to the next one.
struct Partial {
    file: Arc<File>,
    hasher: Sha256,
    /// Bytes that are in the file and in the digest.
    length: u64,
    /// Bytes that came and are not.
    pending: Vec<u8>,
    /// Some of it was there before.
    is_inherited: bool,
}

impl Partial {
    async fn open(into: &File, size: u64) -> io::Result<Self> {
        let file = Arc::new(into.try_clone()?);
        let there = file.metadata()?.len();
        let mut partial = Self { file, hasher: Sha256::new(), length: 0, pending: Vec::new(), is_inherited: there > 0 };
        if there > size {
            partial.restart()?;
            return Ok(partial);
        }
        while partial.length < there {
            partial.read(there).await?;
        }
        Ok(partial)
    }

    /// Takes the next piece of what is there into the digest.
    async fn read(&mut self, until: u64) -> io::Result<()> {
        let (file, mut hasher, from) = (self.file.clone(), self.hasher.clone(), self.length);
        let length = (until - from).min(PIECE_MAX as u64);
        self.hasher = on_a_thread(move || {
            let mut piece = vec![0; usize::try_from(length).unwrap_or(PIECE_MAX)];
            file.read_exact_at(&mut piece, from)?;
            hasher.update(&piece);
            Ok(hasher)
        })
        .await?;
        self.length += length;
        Ok(())
    }

    /// Takes what is pending into the file and the digest.
    async fn write(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.pending);
        let (file, mut hasher, from) = (self.file.clone(), self.hasher.clone(), self.length);
        let (hasher, mut piece) = on_a_thread(move || {
            file.write_all_at(&piece, from)?;
            hasher.update(&piece);
            Ok((hasher, piece))
        })
        .await?;
        self.hasher = hasher;
        self.length += piece.len() as u64;
        piece.clear();
        self.pending = piece;
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.hasher = Sha256::new();
        self.length = 0;
        self.pending.clear();
        self.is_inherited = false;
        Ok(())
    }

    fn digest(&self) -> Digest {
        Digest::from_bytes(&self.hasher.clone().finalize())
    }
}

async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
