//! The store's file as it is opened: once more after whatever could not be written, since redb refuses everything then, and
//! with room of its own for the time when the disk is full.
//!
//! The reserve lies in the file itself, behind what redb uses: what is allocated there nobody else can take, and it needs not be
//! given up first. Where a file system writes nothing in place (btrfs, ZFS), or allocates nothing ahead, there is none.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use nix::fcntl::{FallocateFlags, fallocate};
use redb::{
    CommitError, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageError, TableError,
    TransactionError, WriteTransaction,
};

use super::{BoxError, access};
use crate::store::StoreError;
use crate::sys::file::{has_no_room, has_room_for_root};

/// Memory that redb may use for pages, in bytes; its default of 1 GiB is for databases.
const CACHE: usize = 2 << 20;
/// Bytes of the disk that the file has beyond those that redb uses: some thousand commits.
const RESERVE: u64 = 8 << 20;
/// With less than so many bytes free on a disk that was full it is not tried again.
const TRY_MIN: u64 = 128 << 10;

#[derive(Debug)]
pub(super) struct Opened {
    path: PathBuf,
    /// None where it could not be opened again, until the next write.
    database: RwLock<Option<Database>>,
    /// The same file, to allocate the reserve. Closed after the database, which holds a lock on it.
    file: File,
    /// The last write found no room.
    is_full: AtomicBool,
}

impl Opened {
    /// Opens the file, making an empty one if there is none, and does the first transaction.
    pub(super) fn open(
        path: &Path,
        first: impl Fn(&WriteTransaction) -> Result<(), BoxError>,
    ) -> Result<Self, BoxError> {
        let database = open(path)?;
        let file = File::options().write(true).open(path)?;
        let this = Self {
            path: path.to_owned(),
            database: RwLock::new(Some(database)),
            file,
            is_full: AtomicBool::new(false),
        };
        this.try_write(&first)?;
        this.reserve();
        Ok(this)
    }

    pub(super) fn begin_read(&self) -> Result<ReadTransaction, StoreError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database =
            database.as_ref().ok_or_else(|| access("it cannot be opened again, which is tried from time to time"))?;
        database.begin_read().map_err(access)
    }

    /// Does `work` in one transaction. After an error nothing of it is there, or, if the disk has failed at the very end, all of it.
    pub(super) fn write(&self, work: impl Fn(&WriteTransaction) -> Result<(), BoxError>) -> Result<(), StoreError> {
        if self.is_full.load(Ordering::Relaxed) && !has_room_for_root(&self.path, TRY_MIN) {
            return Err(StoreError::NoRoom { source: "nothing has become free since".into() });
        }
        self.reopen_if_closed().and_then(|()| self.try_write(&work)).map_err(|error| self.failed(error))?;
        self.is_full.store(false, Ordering::Relaxed);
        self.reserve();
        Ok(())
    }

    fn try_write(&self, work: &impl Fn(&WriteTransaction) -> Result<(), BoxError>) -> Result<(), BoxError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let transaction = database.as_ref().ok_or("the store is not open")?.begin_write()?;
        work(&transaction)?;
        Ok(transaction.commit()?)
    }

    fn failed(&self, source: BoxError) -> StoreError {
        let (is_io, is_full) = (is_of_the_disk(&source), is_no_room(&source));
        if is_io {
            // The next write tries it again.
            drop(self.database.write().unwrap_or_else(PoisonError::into_inner).take());
            if let Err(error) = self.reopen_if_closed() {
                tracing::debug!(%error, "the store cannot be opened again for now");
            }
        }
        self.is_full.store(is_full, Ordering::Relaxed);
        if is_full { StoreError::NoRoom { source } } else { StoreError::Access { what: "write", source } }
    }

    fn reopen_if_closed(&self) -> Result<(), BoxError> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if database.is_none() {
            *database = Some(open(&self.path)?);
        }
        Ok(())
    }

    /// Has the disk keep room for what comes, where it is not full already.
    fn reserve(&self) {
        let Ok(file) = self.file.metadata() else { return };
        let wanted = file.len() + RESERVE;
        if file.blocks() * 512 >= wanted {
            return;
        }
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        if let Err(errno) = fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, wanted) {
            tracing::debug!(%errno, "the store has no reserve, or not all of it");
        }
    }
}

fn open(path: &Path) -> Result<Database, BoxError> {
    Ok(Database::builder().set_cache_size(CACHE).create(path)?)
}

/// That it was an error of the disk's, or redb refuses everything because of one.
fn is_of_the_disk(error: &BoxError) -> bool {
    matches!(storage_error(error), Some(StorageError::Io(_) | StorageError::PreviousIo | StorageError::DatabaseClosed))
}

pub(super) fn is_no_room(error: &BoxError) -> bool {
    match storage_error(error) {
        Some(StorageError::Io(error)) => has_no_room(error),
        _ => error.downcast_ref().is_some_and(has_no_room),
    }
}

/// redb's errors name no source.
fn storage_error(error: &BoxError) -> Option<&StorageError> {
    if let Some(error) = error.downcast_ref::<StorageError>() {
        return Some(error);
    }
    match error.downcast_ref::<TransactionError>() {
        Some(TransactionError::Storage(error)) => return Some(error),
        Some(_) => return None,
        None => {}
    }
    match (error.downcast_ref(), error.downcast_ref(), error.downcast_ref()) {
        (Some(TableError::Storage(error)), _, _)
        | (_, Some(CommitError::Storage(error)), _)
        | (_, _, Some(DatabaseError::Storage(error))) => Some(error),
        _ => None,
    }
}
