//! Stored jobs as this version of the program reads them: an upgrade begins nothing anew, and ends nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Spec;
use super::aside::Asides;
use super::world::{Job, Run};
use crate::ids::RoleName;
use crate::plan::address;
use crate::spec::{Accepted, JobSpec, Network};
use crate::store::record::{AttemptRecord, JobRecord, RunRecord, SourceRecord};

impl Job {
    pub(super) fn load(mut record: JobRecord, run: Option<RunRecord>) -> Self {
        let read = record.source.as_ref().and_then(|source| parse(source, None));
        // What a text means is this program's word, not that of the one that stored it: an upgrade reruns nothing.
        if let (Some(source), Some((spec, _))) = (&mut record.source, &read) {
            let before = std::mem::replace(&mut source.meaning, spec.meaning());
            if let Some(aside) = record.aside.as_mut().filter(|aside| aside.meaning == before) {
                aside.meaning.clone_from(&source.meaning);
            }
        }
        if let Some(not_begun) = &mut record.not_begun
            && let Some((spec, _)) = parse(not_begun, None)
        {
            not_begun.meaning = spec.meaning();
        }
        let run = run.and_then(|mut run| {
            let read = match (&read, &record.source) {
                (Some(read), Some(source)) if source.text == run.source.text => Some(read.clone()),
                _ => parse(&run.source, None),
            };
            let Some(read) = read else { return salvaged(run) };
            run.source.meaning = read.0.meaning();
            let (spec, refused) = as_placed(&run, as_begun(&run, read)?);
            Some(Run { refused, ..Run::new(run, spec) })
        });
        let (spec, refused) = match (read, &record.source) {
            (Some((spec, refused)), _) => (Some(spec), refused),
            (None, None) => (None, None),
            (None, Some(source)) => {
                let found = crate::spec::salvage(&source.text, &BTreeMap::new()).map(|unread| unread.refused);
                let found = found.unwrap_or_default();
                let told = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                if record.file_present && record.invalid.is_empty() {
                    record.invalid = found;
                }
                (None, Some(told))
            }
        };
        Self { record, spec, refused, run, delivering: BTreeMap::new(), asides: Asides::default() }
    }
}

/// What a stored text means now, and what this version refuses in it.
type Read = (Spec, Option<String>);

fn parse(source: &SourceRecord, begun: Option<&BTreeSet<RoleName>>) -> Option<Read> {
    crate::spec::parse_accepted(&source.text, begun).map(read)
}

fn read(Accepted { spec, refused }: Accepted) -> Read {
    let told: Vec<String> = refused.iter().map(ToString::to_string).collect();
    (Arc::new(spec), (!told.is_empty()).then(|| told.join("; ")))
}

/// A stored run whose file this version cannot read at all: the tasks of its newest attempt go on.
fn salvaged(run: RunRecord) -> Option<Run> {
    let mut begun = BTreeMap::new();
    for task in run.attempts.last().iter().flat_map(|attempt| &attempt.tasks) {
        let count: &mut u32 = begun.entry(task.role.clone()).or_default();
        *count = (*count).max(task.index.saturating_add(1));
    }
    // What its text means is not known: it stays what it was.
    let (spec, refused) = read(crate::spec::salvage(&run.source.text, &begun)?);
    Some(Run { refused: Some(refused.unwrap_or_else(|| "it cannot be read".to_owned())), ..Run::new(run, spec) })
}

/// What a stored run is of, which `read` says by now: with the roles with which it was begun.
fn as_begun(run: &RunRecord, read: Read) -> Option<Read> {
    let Some(attempt) = run.attempts.last() else { return Some(read) };
    let begun: BTreeSet<RoleName> = attempt.tasks.iter().map(|task| task.role.clone()).collect();
    if read.0.roles.iter().all(|role| begun.contains(&role.name)) {
        return Some(read);
    }
    parse(&run.source, Some(&begun))
}

/// With the one network that the tasks of its newest attempt were given: what a file says nothing of may have meant something else then.
fn as_placed(run: &RunRecord, (spec, refused): Read) -> Read {
    let shares = |attempt: &AttemptRecord| {
        let tasks = u32::try_from(attempt.tasks.len()).unwrap_or(u32::MAX);
        attempt.block.is_some_and(|block| !address::has_room(block, tasks))
    };
    if spec.network != Network::Task || !run.attempts.last().is_some_and(shares) {
        return (spec, refused);
    }
    (Arc::new(JobSpec { network: Network::Job, ..(*spec).clone() }), refused)
}

#[cfg(test)]
mod tests {
    use super::super::world::tallies;
    use super::*;
    use crate::ids::{AttemptId, Timestamp};
    use crate::store::record::{AddressBlock, Owner, TaskPhase, TaskRecord};

    #[test]
    fn a_run_of_an_earlier_version_ends_as_it_was_begun() {
        let text = "command = \"x\"\nframework = \"pytorch\"\nstrategy = \"master-worker\"\n[roles.worker]\ncount = 2";
        let owner = Owner { uid: 0, gid: 0 };
        let source = SourceRecord::new(text.to_owned(), "of another version".to_owned(), owner);
        let task = |index| TaskRecord {
            role: "worker".parse().unwrap(),
            index,
            phase: TaskPhase::Running { since: Timestamp(2) },
            again: 0,
            over_share: None,
            gpus: Vec::new(),
        };
        let attempt = AttemptRecord::new(AttemptId(1), 1, Timestamp(1), vec![task(0), task(1)]);
        let run = RunRecord {
            prepared: true,
            attempts: vec![attempt.clone()],
            ..RunRecord::new(1, Timestamp(1), 1, source.clone())
        };
        let record = JobRecord { source: Some(source), last_run: 1, ..JobRecord::new(Timestamp(1)) };
        let job = Job::load(record.clone(), Some(run.clone()));
        let (newest, begun) = (job.spec.as_ref().unwrap(), &job.run.as_ref().unwrap().spec);
        let names = |spec: &JobSpec| spec.roles.iter().map(|role| role.name.to_string()).collect::<Vec<_>>();
        assert_eq!((names(newest), names(begun)), (vec!["master".into(), "worker".into()], vec!["worker".into()]));
        assert!(!job.is_outdated(), "the file says what it said");
        assert_eq!(tallies(newest, &attempt), tallies(begun, &attempt), "what was not begun is not waited for");
        // Two tasks have no room in a network of one address each: they were given one together.
        for (prefix, network) in [(29, Network::Task), (30, Network::Job)] {
            let mut run = run.clone();
            run.attempts[0].block = Some(AddressBlock { base: "10.0.0.0".parse().unwrap(), prefix });
            let job = Job::load(record.clone(), Some(run));
            assert_eq!(
                (job.run.as_ref().unwrap().spec.network, job.spec.as_ref().unwrap().network),
                (network, Network::Task)
            );
            assert!(!job.is_outdated(), "the file says what it said");
        }
    }
}
