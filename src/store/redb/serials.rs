//! Where the events of all jobs are found in one order: by their serial numbers.
//!
//! Nothing is in it that the events themselves do not say, so a copy of the store leaves it out, and it is made anew where it
//! does not go as far as the events do: in the store of a program that did not have it, also one that came in between.

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{BoxError, COUNTERS, EVENTS, EventKey, Reader, access, decode, encode, job_key};
use crate::ids::JobKey;
use crate::store::StoreError;
use crate::store::record::{Counters, EventRecord};

/// serial number → (workspace, job, number) of an event, whose record may have gone.
pub(super) const SERIALS: TableDefinition<'_, u64, EventKey<'_>> = TableDefinition::new("serials");
/// In the table of counters: the last serial number that was given out when the table was written.
const UPTO: &str = "serials";

/// Events of all jobs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// By serial number.
    pub events: Vec<(JobKey, EventRecord)>,
    /// The serial number up to which that is all, where there may be more behind it.
    pub next: Option<u64>,
}

/// Those of a job that is forgotten.
pub(super) fn forget(
    events: &Table<'_, EventKey<'static>, &'static [u8]>,
    serials: &mut Table<'_, u64, EventKey<'static>>,
    key: &JobKey,
) -> Result<(), BoxError> {
    let (workspace, job) = (key.workspace.as_str(), key.job.as_str());
    for entry in events.range((workspace, job, 0)..=(workspace, job, u64::MAX))? {
        let event: EventRecord = decode(&key.to_string(), entry?.1.value())?;
        serials.remove(event.serial)?;
    }
    Ok(())
}

/// That it goes as far as the events do.
pub(super) fn seal(transaction: &WriteTransaction, counters: &Counters) -> Result<(), BoxError> {
    transaction.open_table(COUNTERS)?.insert(UPTO, encode(&counters.event)?.as_slice())?;
    Ok(())
}

/// Makes the table if it is not there, or lacks what another program has written.
pub(super) fn complete(transaction: &WriteTransaction) -> Result<(), BoxError> {
    let mut serials = transaction.open_table(SERIALS)?;
    let counters = transaction.open_table(COUNTERS)?;
    let all = counters.get("all")?.map(|bytes| decode::<Counters>("counters", bytes.value())).transpose()?;
    let upto = counters.get(UPTO)?.map(|bytes| decode::<u64>(UPTO, bytes.value())).transpose()?;
    let all = all.unwrap_or_default();
    drop(counters);
    if all.event == upto.unwrap_or(0) {
        return Ok(());
    }
    serials.retain(|_, _| false)?;
    for entry in transaction.open_table(EVENTS)?.iter()? {
        let (key, value) = entry?;
        let (workspace, job, number) = key.value();
        let event: EventRecord = decode(&format!("{workspace}/{job}"), value.value())?;
        serials.insert(event.serial, (workspace, job, number))?;
    }
    seal(transaction, &all)
}

impl Reader {
    /// So many events of all jobs at most, behind that serial number. Costs those events, not what else there is.
    pub fn events_behind(&self, serial: u64, limit: usize) -> Result<Page, StoreError> {
        let transaction = self.begin()?;
        let serials = transaction.open_table(SERIALS).map_err(access)?;
        let events = transaction.open_table(EVENTS).map_err(access)?;
        let mut page = Page::default();
        let behind = serials.range(serial.saturating_add(1)..).map_err(access)?;
        for (count, entry) in (1..).zip(behind.take(limit)) {
            let (serial, place) = entry.map_err(access)?;
            let (serial, (workspace, job, _)) = (serial.value(), place.value());
            let record = events.get(place.value()).map_err(access)?;
            let record = record.map(|bytes| decode::<EventRecord>(&format!("{workspace}/{job}"), bytes.value()));
            // What another program has removed, or has written in its place, is no event of this number.
            let record = record.transpose()?.filter(|record| record.serial == serial);
            page.events.extend(job_key(workspace, job).zip(record));
            page.next = (count == limit).then_some(serial);
        }
        Ok(page)
    }
}

/// The table as a program leaves it that does not know it; for tests.
#[cfg(test)]
#[derive(Default)]
pub(in crate::store) struct Left {
    serials: Vec<(u64, (String, String, u64))>,
    upto: Option<Vec<u8>>,
}

#[cfg(test)]
impl Left {
    pub(in crate::store) fn read(path: &std::path::Path) -> Self {
        use redb::ReadableDatabase;
        let database = redb::Database::create(path).unwrap();
        let transaction = database.begin_read().unwrap();
        let entry = |entry: Result<(redb::AccessGuard<'_, u64>, redb::AccessGuard<'_, EventKey<'static>>), _>| {
            let (serial, place) = entry.unwrap();
            let (workspace, job, number) = place.value();
            (serial.value(), (workspace.to_owned(), job.to_owned(), number))
        };
        let serials = transaction.open_table(SERIALS).unwrap().iter().unwrap().map(entry).collect();
        let upto = transaction.open_table(COUNTERS).unwrap().get(UPTO).unwrap();
        Self { serials, upto: upto.map(|bytes| bytes.value().to_vec()) }
    }

    pub(in crate::store) fn write(&self, path: &std::path::Path) {
        let database = redb::Database::create(path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.delete_table(SERIALS).unwrap();
        if !self.serials.is_empty() {
            let mut table = transaction.open_table(SERIALS).unwrap();
            for (serial, (workspace, job, number)) in &self.serials {
                table.insert(*serial, (workspace.as_str(), job.as_str(), *number)).unwrap();
            }
        }
        let mut counters = transaction.open_table(COUNTERS).unwrap();
        match &self.upto {
            Some(upto) => drop(counters.insert(UPTO, upto.as_slice()).unwrap()),
            None => drop(counters.remove(UPTO).unwrap()),
        }
        drop(counters);
        transaction.commit().unwrap();
    }
}
