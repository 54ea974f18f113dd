//! The store on disk. The only user of redb.

mod opened;
mod serials;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::copy::{CopyError, Line, LineWriter};
use super::record::{Counters, EventRecord, JobRecord, RunRecord, UsageRecord, UsageSum, VERSION, Versioned};
use super::{Batch, Contents, Store, StoreError, usage};
use crate::ids::{JobKey, JobName, Timestamp, WorkspaceName};
use opened::Opened;
#[cfg(test)]
pub(super) use serials::Left;
pub use serials::Page;
use serials::SERIALS;

/// `counters` under the key "all", and how far `serials` goes.
const COUNTERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("counters");
/// (workspace, job) → [`JobRecord`].
const JOBS: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("jobs");
/// (workspace, job, run) → [`RunRecord`].
const RUNS: TableDefinition<'_, (&str, &str, u32), &[u8]> = TableDefinition::new("runs");
type EventKey<'a> = (&'a str, &'a str, u64);
/// (workspace, job, number) → [`EventRecord`].
const EVENTS: TableDefinition<'_, EventKey<'_>, &[u8]> = TableDefinition::new("events");
/// (end in ms, attempt) → [`UsageRecord`].
const USAGE: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("usage");
/// (first ms of the day, workspace, user) → [`UsageSum`].
const USAGE_SUMS: TableDefinition<'_, (u64, &str, u32), &[u8]> = TableDefinition::new("usage_sums");

#[derive(Debug)]
pub struct RedbStore(Arc<Opened>);

/// Reads the store while it is used, on any thread: what it reads is as the store was when it began.
#[derive(Debug, Clone)]
pub struct Reader(Arc<Opened>);

impl Reader {
    fn begin(&self) -> Result<ReadTransaction, StoreError> {
        self.0.begin_read()
    }

    /// Writes all of it as [`super::copy`] reads it.
    pub fn copy(&self, out: &mut dyn Write) -> Result<(), CopyError> {
        let transaction = self.begin()?;
        let mut lines = LineWriter::new(out);
        if let Some(bytes) = transaction.open_table(COUNTERS).map_err(access)?.get("all").map_err(access)? {
            lines.put(Line::Counters(decode("counters", bytes.value())?))?;
        }
        for entry in transaction.open_table(JOBS).map_err(access)?.iter().map_err(access)? {
            let (key, value) = entry.map_err(access)?;
            let name = name_of(key.value().0, key.value().1);
            lines.put(Line::Job(name.clone(), decode(&name, value.value())?))?;
        }
        for entry in transaction.open_table(RUNS).map_err(access)?.iter().map_err(access)? {
            let (key, value) = entry.map_err(access)?;
            let name = name_of(key.value().0, key.value().1);
            lines.put(Line::Run(name.clone(), decode(&name, value.value())?))?;
        }
        for entry in transaction.open_table(EVENTS).map_err(access)?.iter().map_err(access)? {
            let (key, value) = entry.map_err(access)?;
            let name = name_of(key.value().0, key.value().1);
            lines.put(Line::Event(name.clone(), decode(&name, value.value())?))?;
        }
        for entry in transaction.open_table(USAGE).map_err(access)?.iter().map_err(access)? {
            lines.put(Line::Usage(decode("usage", entry.map_err(access)?.1.value())?))?;
        }
        for entry in transaction.open_table(USAGE_SUMS).map_err(access)?.iter().map_err(access)? {
            lines.put(Line::UsageSum(decode("usage_sums", entry.map_err(access)?.1.value())?))?;
        }
        lines.end()
    }

    /// All that there are, but for those that are made from others.
    #[cfg(test)]
    pub(crate) fn tables(&self) -> Vec<String> {
        use redb::TableHandle;
        let transaction = self.0.begin_read().unwrap();
        let own = transaction.list_tables().unwrap().filter(|table| table.name() != SERIALS.name());
        own.map(|table| table.name().to_owned()).collect()
    }
}

fn name_of(workspace: &str, job: &str) -> String {
    format!("{workspace}/{job}")
}

impl RedbStore {
    /// Opens the store at `path`, making an empty one if there is none.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source: BoxError| match opened::is_no_room(&source) {
            true => StoreError::NoRoom { source },
            false => StoreError::Open { path: path.to_owned(), source },
        };
        let opened = Opened::open(path, create_tables).map_err(failed)?;
        restrict(path).map_err(|error| failed(error.into()))?;
        Ok(Self(Arc::new(opened)))
    }

    pub fn reader(&self) -> Reader {
        Reader(self.0.clone())
    }

    fn read_all(&self) -> Result<Contents, ReadError> {
        let transaction = self.0.begin_read()?;
        let counters = transaction.open_table(COUNTERS).map_err(access)?;
        let counters = match counters.get("all").map_err(access)? {
            Some(bytes) => decode::<Counters>("counters", bytes.value())?,
            None => Counters::default(),
        };
        let mut jobs = BTreeMap::new();
        let mut runs = BTreeMap::new();
        let run_table = transaction.open_table(RUNS).map_err(access)?;
        for entry in transaction.open_table(JOBS).map_err(access)?.iter().map_err(access)? {
            let (key, value) = entry.map_err(access)?;
            let (workspace, job) = key.value();
            let Some(job_key) = job_key(workspace, job) else { continue };
            let record: JobRecord = decode(&job_key.to_string(), value.value())?;
            if let Some(run) = run_table.get((workspace, job, record.last_run)).map_err(access)? {
                runs.insert(job_key.clone(), decode(&job_key.to_string(), run.value())?);
            }
            jobs.insert(job_key, record);
        }
        Ok(Contents { counters, jobs, runs })
    }

    fn read_events(&self, key: &JobKey, from: u64, most: usize) -> Result<Vec<EventRecord>, ReadError> {
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(EVENTS).map_err(access)?;
        let (workspace, job) = (key.workspace.as_str(), key.job.as_str());
        let range = table.range((workspace, job, from)..=(workspace, job, u64::MAX)).map_err(access)?;
        range.take(most).map(|entry| decode(&key.to_string(), entry.map_err(access)?.1.value())).collect()
    }

    fn read_runs(&self, key: &JobKey, numbers: RangeInclusive<u32>, most: usize) -> Result<Vec<RunRecord>, ReadError> {
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(RUNS).map_err(access)?;
        let (workspace, job) = (key.workspace.as_str(), key.job.as_str());
        let (first, last) = numbers.into_inner();
        let range = table.range((workspace, job, first)..=(workspace, job, last)).map_err(access)?;
        let newest = range.rev().take(most);
        let runs = newest.map(|entry| decode(&key.to_string(), entry.map_err(access)?.1.value()));
        let mut runs = runs.collect::<Result<Vec<RunRecord>, ReadError>>()?;
        runs.reverse();
        Ok(runs)
    }

    fn read_usage(&self, from: Timestamp) -> Result<Vec<UsageRecord>, ReadError> {
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(USAGE).map_err(access)?;
        let range = table.range((from.0, 0)..).map_err(access)?;
        range.map(|entry| decode("usage", entry.map_err(access)?.1.value())).collect()
    }

    fn read_usage_sums(&self, from: Timestamp) -> Result<Vec<UsageSum>, ReadError> {
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(USAGE_SUMS).map_err(access)?;
        let range = table.range((usage::day_of(from).0, "", 0)..).map_err(access)?;
        range.map(|entry| decode("usage_sums", entry.map_err(access)?.1.value())).collect()
    }

    /// The first records of those that ended before that time.
    fn old_usage(&self, before: Timestamp, most: usize) -> Result<Vec<UsageRecord>, ReadError> {
        let transaction = self.0.begin_read()?;
        let table = transaction.open_table(USAGE).map_err(access)?;
        let range = table.range(..(before.0, 0)).map_err(access)?.take(most);
        range.map(|entry| decode("usage", entry.map_err(access)?.1.value())).collect()
    }
}

fn create_tables(transaction: &WriteTransaction) -> Result<(), BoxError> {
    transaction.open_table(COUNTERS)?;
    transaction.open_table(JOBS)?;
    transaction.open_table(RUNS)?;
    transaction.open_table(EVENTS)?;
    transaction.open_table(USAGE)?;
    transaction.open_table(USAGE_SUMS)?;
    serials::complete(transaction)
}

fn write(transaction: &WriteTransaction, batch: &Batch) -> Result<(), BoxError> {
    let mut jobs = transaction.open_table(JOBS)?;
    let mut runs = transaction.open_table(RUNS)?;
    let mut events = transaction.open_table(EVENTS)?;
    let mut serials = transaction.open_table(SERIALS)?;
    let mut usage = transaction.open_table(USAGE)?;
    for key in &batch.forgotten {
        let (workspace, job) = (key.workspace.as_str(), key.job.as_str());
        runs.retain_in((workspace, job, 0)..=(workspace, job, u32::MAX), |_, _| false)?;
        serials::forget(&events, &mut serials, key)?;
        events.retain_in((workspace, job, 0)..=(workspace, job, u64::MAX), |_, _| false)?;
    }
    if let Some(counters) = &batch.counters {
        transaction.open_table(COUNTERS)?.insert("all", encode(counters)?.as_slice())?;
        serials::seal(transaction, counters)?;
    }
    for ((key, number), run) in &batch.runs {
        runs.insert((key.workspace.as_str(), key.job.as_str(), *number), encode(run)?.as_slice())?;
    }
    for (key, event) in &batch.events {
        let place = (key.workspace.as_str(), key.job.as_str(), event.number);
        events.insert(place, encode(event)?.as_slice())?;
        serials.insert(event.serial, place)?;
    }
    for used in &batch.usage {
        usage.insert((used.to.0, used.attempt.0), encode(used)?.as_slice())?;
    }
    let mut sums = transaction.open_table(USAGE_SUMS)?;
    for sum in &batch.usage_sums {
        sums.insert((sum.day.0, sum.workspace.as_str(), sum.owner), encode(sum)?.as_slice())?;
    }
    for (key, job) in &batch.jobs {
        jobs.insert((key.workspace.as_str(), key.job.as_str()), encode(job)?.as_slice())?;
    }
    Ok(())
}

/// In one transaction: each of these is in its record or in the sums.
fn fold(transaction: &WriteTransaction, old: &[UsageRecord]) -> Result<(), BoxError> {
    let (mut records, mut sums) = (transaction.open_table(USAGE)?, transaction.open_table(USAGE_SUMS)?);
    for used in old {
        records.remove((used.to.0, used.attempt.0))?;
        for mut sum in usage::by_day(used) {
            let (day, workspace) = (sum.day.0, sum.workspace.to_string());
            let key = (day, workspace.as_str(), sum.owner);
            let before = sums.get(key)?.map(|bytes| decode::<UsageSum>("usage_sums", bytes.value())).transpose()?;
            before.iter().for_each(|before| sum.total.add(&before.total));
            sums.insert(key, encode(&sum)?.as_slice())?;
        }
    }
    Ok(())
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type ReadError = StoreError;

fn access(error: impl Into<BoxError>) -> StoreError {
    StoreError::Access { what: "read", source: error.into() }
}

/// The store holds every job's environment: root's eyes only.
fn restrict(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(PathBuf::from(path), std::fs::Permissions::from_mode(0o600))
}

fn job_key(workspace: &str, job: &str) -> Option<JobKey> {
    let key =
        workspace.parse::<WorkspaceName>().and_then(|workspace| Ok(JobKey::new(workspace, job.parse::<JobName>()?)));
    key.inspect_err(
        |error| tracing::error!(workspace, job, %error, "a stored job has a name that none may have: it is left out"),
    )
    .ok()
}

fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, BoxError> {
    Ok(serde_json::to_vec(&Versioned { v: VERSION, r: record })?)
}

#[derive(Deserialize)]
struct VersionOnly {
    v: u32,
}

pub(super) fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, StoreError> {
    let damaged = |source| StoreError::Damaged { key: key.to_owned(), source };
    let version: VersionOnly = serde_json::from_slice(bytes).map_err(damaged)?;
    if version.v > VERSION {
        return Err(StoreError::Newer { key: key.to_owned(), found: version.v, known: VERSION });
    }
    let record: Versioned<T> = serde_json::from_slice(bytes).map_err(damaged)?;
    Ok(record.r)
}

impl Store for RedbStore {
    fn load(&self) -> Result<Contents, StoreError> {
        self.read_all()
    }

    fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        self.0.write(|transaction| write(transaction, batch))
    }

    fn events(&self, key: &JobKey, from: u64, most: usize) -> Result<Vec<EventRecord>, StoreError> {
        self.read_events(key, from, most)
    }

    fn runs(&self, key: &JobKey, numbers: RangeInclusive<u32>, most: usize) -> Result<Vec<RunRecord>, StoreError> {
        self.read_runs(key, numbers, most)
    }

    fn usage(&self, from: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        self.read_usage(from)
    }

    fn usage_sums(&self, from: Timestamp) -> Result<Vec<UsageSum>, StoreError> {
        self.read_usage_sums(from)
    }

    fn fold_usage(&self, before: Timestamp, most: usize) -> Result<usize, StoreError> {
        let old = self.old_usage(before, most)?;
        if !old.is_empty() {
            self.0.write(|transaction| fold(transaction, &old))?;
        }
        Ok(old.len())
    }
}
