use super::fault::{Fault, FaultStore};
use super::memory::MemoryStore;
use super::record::{EventRecord, Owner, RunRecord, SourceRecord, UsageTotal};
use super::redb::RedbStore;
use super::*;
use crate::ids::Timestamp;
use crate::status::State;
use proptest::prelude::*;

fn job(last_run: u32) -> JobRecord {
    JobRecord { last_run, ..JobRecord::new(Timestamp(1)) }
}

fn run(number: u32) -> RunRecord {
    let owner = Owner { uid: 0, gid: 0 };
    let source = SourceRecord::new("command = 'x'".into(), "m".into(), owner);
    RunRecord::new(number, Timestamp(2), 1, source)
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let key = prop::sample::select(vec!["a", "b", "w/a"]).prop_map(|text| text.parse::<JobKey>().unwrap());
    let one =
        (key, prop::option::of(1u32..4), 0u64..5, prop::option::of(0u64..9)).prop_map(|(key, last, event, order)| {
            let counters = order.map(|order| Counters { attempt: 1, order, ..Counters::default() });
            let mut batch = Batch { counters, ..Batch::default() };
            if let Some(number) = last {
                batch.runs.insert((key.clone(), number), run(number));
                let event = EventRecord {
                    number: event,
                    serial: event + 1,
                    at: Timestamp(3),
                    run: 1,
                    state: State::Waiting,
                    message: "m".into(),
                };
                batch.events.push((key.clone(), event));
            }
            match last {
                Some(last) => drop(batch.jobs.insert(key, job(last))),
                None => drop(batch.forgotten.insert(key)),
            }
            batch
        });
    prop::collection::vec(one, 0..10)
}

/// Events of all jobs as they are found by their serial numbers, in pages.
fn by_serial(disk: &RedbStore, mut after: u64, limit: usize) -> Vec<(JobKey, EventRecord)> {
    let mut found = Vec::new();
    loop {
        let redb::Page { events, next } = disk.reader().events_behind(after, limit).unwrap();
        assert!(events.len() <= limit && next.is_none_or(|next| next > after));
        found.extend(events);
        let Some(next) = next else { return found };
        after = next;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_store_on_disk_answers_as_the_one_in_memory_also_after_opening_again(
        mut batches in batches(),
        after in 0..6u64,
        limit in 1..4usize,
    ) {
        // No two events have the same serial number.
        let events = batches.iter_mut().flat_map(|batch| &mut batch.events);
        (1..).zip(events).for_each(|(serial, (_, event))| event.serial = serial);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let model = MemoryStore::default();
        for batch in &batches {
            let disk = RedbStore::open(&path).unwrap();
            disk.commit(batch).unwrap();
            model.commit(batch).unwrap();
        }
        let disk = RedbStore::open(&path).unwrap();
        prop_assert_eq!(disk.load().unwrap(), model.load().unwrap());
        for key in ["a", "b", "w/a"].map(|text| text.parse::<JobKey>().unwrap()) {
            for most in [2, usize::MAX] {
                prop_assert_eq!(disk.events(&key, 1, most).unwrap(), model.events(&key, 1, most).unwrap());
            }
            for (numbers, most) in [(0..=u32::MAX, usize::MAX), (2..=2, 1), (0..=u32::MAX, 2)] {
                let found = disk.runs(&key, numbers.clone(), most).unwrap();
                prop_assert_eq!(found, model.runs(&key, numbers, most).unwrap());
            }
        }
        let of_job = |key: &JobKey| {
            let events = model.events(key, 0, usize::MAX).unwrap();
            events.into_iter().map(|event| (key.clone(), event)).collect::<Vec<_>>()
        };
        let mut wanted: Vec<_> =
            ["a", "b", "w/a"].iter().flat_map(|text| of_job(&text.parse().unwrap())).collect();
        wanted.retain(|(_, event)| event.serial > after);
        wanted.sort_by_key(|(_, event)| event.serial);
        prop_assert_eq!(by_serial(&disk, after, limit), wanted);
    }
}

#[test]
fn events_are_found_by_their_serial_numbers_also_in_the_store_of_a_program_that_kept_none_of_that() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    let batch = |jobs: &[(&str, u64, u64)], last: u64| {
        let event = |(key, number, serial): &(&str, u64, u64)| {
            let (at, message) = (Timestamp(3), format!("{key} {number}"));
            let event = EventRecord { number: *number, serial: *serial, at, run: 1, state: State::Waiting, message };
            (key.parse::<JobKey>().unwrap(), event)
        };
        let counters = Some(Counters { event: last, ..Counters::default() });
        Batch { counters, events: jobs.iter().map(event).collect(), ..Batch::default() }
    };
    let serials = |disk: &RedbStore| by_serial(disk, 0, 2).iter().map(|(_, event)| event.serial).collect::<Vec<_>>();
    // Of before there were serial numbers at all, and from when there were.
    RedbStore::open(&path).unwrap().commit(&batch(&[("a", 0, 0), ("b", 0, 2), ("a", 1, 1), ("w/a", 0, 3)], 3)).unwrap();
    redb::Left::default().write(&path);
    assert_eq!(serials(&RedbStore::open(&path).unwrap()), [1, 2, 3]);
    // A program that does not know the table adds events and removes a job.
    let before = redb::Left::read(&path);
    RedbStore::open(&path)
        .unwrap()
        .commit(&Batch { forgotten: ["b".parse().unwrap()].into(), ..batch(&[("a", 2, 4)], 4) })
        .unwrap();
    before.write(&path);
    let disk = RedbStore::open(&path).unwrap();
    assert_eq!(serials(&disk), [1, 3, 4]);
    disk.commit(&Batch { forgotten: ["a".parse().unwrap()].into(), ..Batch::default() }).unwrap();
    assert_eq!(serials(&disk), [3]);
}

fn used(attempt: u64, workspace: &str, owner: u32, times: std::ops::Range<u64>, price: Option<f64>) -> UsageRecord {
    UsageRecord {
        attempt: crate::ids::AttemptId(attempt),
        workspace: workspace.parse().unwrap(),
        job: format!("j{attempt}").parse().unwrap(),
        run: 1,
        owner,
        from: Timestamp(times.start),
        to: Timestamp(times.end),
        cpu: 500,
        memory: 1 << 29,
        gpu: 2,
        gpu_part: 0,
        price,
        price_is_part: false,
    }
}

fn usages() -> impl Strategy<Value = Vec<UsageRecord>> {
    // Times in quarters of an hour, of five days.
    let one = (prop::sample::select(vec!["v", "w"]), 0..2u32, 0..480u64, 0..200u64, prop::option::of(0..3u8));
    prop::collection::vec(one, 0..20).prop_map(|all| {
        let record = |(attempt, (workspace, owner, from, lasts, price)): (u64, (&str, u32, u64, u64, Option<u8>))| {
            used(attempt, workspace, owner, from * 900_000..(from + lasts) * 900_000, price.map(f64::from))
        };
        (1..).zip(all).map(record).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn of_old_usage_sums_are_left_by_which_each_day_is_as_it_was(
        all in usages(),
        before in 0..700u64,
        most in 1..8usize,
        since in 0..7u64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (disk, model) = (RedbStore::open(&dir.path().join("state.redb")).unwrap(), MemoryStore::default());
        let (before, since) = (Timestamp(before * 900_000), Timestamp(since * usage::DAY_MS));
        let sums = |store: &dyn Store| {
            let mut sums: BTreeMap<(String, u32), UsageTotal> = BTreeMap::new();
            let mut add = |sum: &UsageSum| {
                sums.entry((sum.workspace.to_string(), sum.owner)).or_default().add(&sum.total);
            };
            store.usage_sums(since).unwrap().iter().for_each(&mut add);
            let later = store.usage(since).unwrap();
            later.iter().flat_map(usage::by_day).filter(|sum| sum.day >= since).for_each(|sum| add(&sum));
            // Quarters of hours and whole prices: sums of these are the same in any order.
            sums
        };
        for store in [&disk as &dyn Store, &model] {
            store.commit(&Batch { usage: all.clone(), ..Batch::default() }).unwrap();
            let (whole, old) = (sums(store), all.iter().filter(|used| used.to < before).count());
            let mut folded = 0;
            loop {
                match store.fold_usage(before, most).unwrap() {
                    0 => break,
                    count => folded += count,
                }
                prop_assert_eq!(sums(store), whole.clone());
            }
            prop_assert_eq!(folded, old);
            prop_assert!(store.usage(Timestamp(0)).unwrap().iter().all(|used| used.to >= before));
        }
        prop_assert_eq!(disk.usage_sums(since).unwrap(), model.usage_sums(since).unwrap());
    }
}

/// Does `work` on a disk of so many bytes that this thread alone sees; not without root.
fn on_a_small_disk(test: &str, size: u64, work: impl FnOnce(&std::path::Path) + Send) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: {test} needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let there = || {
        crate::sys::mounts::enter_private_namespace().unwrap();
        let (flags, options) = (nix::mount::MsFlags::empty(), format!("size={size}"));
        nix::mount::mount(Some("small"), dir.path(), Some("tmpfs"), flags, Some(options.as_str())).unwrap();
        work(dir.path());
    };
    std::thread::scope(|scope| scope.spawn(there).join().unwrap());
}

/// Takes what is free but for so many bytes, to be given back by removing the file.
fn fill(disk: &std::path::Path, but: u64) -> std::path::PathBuf {
    let filler = disk.join("filler");
    let free = crate::sys::file::free_space(disk).unwrap();
    std::fs::write(&filler, vec![0; usize::try_from(free.saturating_sub(but)).unwrap()]).unwrap();
    filler
}

fn large(key: &str, first: u64, events: u64) -> Batch {
    let key: JobKey = key.parse().unwrap();
    let event = |number| EventRecord {
        number,
        serial: number + 1,
        at: Timestamp(3),
        run: 1,
        state: State::Waiting,
        message: "m".repeat(2000),
    };
    let told = (first..first + events).map(|number| (key.clone(), event(number))).collect();
    let counters = Counters { event: first + events, ..Counters::default() };
    Batch { counters: Some(counters), jobs: [(key, job(1))].into(), events: told, ..Batch::default() }
}

#[test]
fn a_commit_that_finds_the_disk_full_at_any_page_leaves_nothing_and_is_made_when_there_is_room() {
    let test = "a_commit_that_finds_the_disk_full_at_any_page_leaves_nothing_and_is_made_when_there_is_room";
    on_a_small_disk(test, 2 << 20, |disk| {
        let mut failures = 0;
        for free in (0..).map(|pages| pages * 8192) {
            let path = disk.join(format!("{free}.redb"));
            let (store, model) = (RedbStore::open(&path).unwrap(), MemoryStore::default());
            let (small, large) = (large("a", 0, 1), large("a", 1, 60));
            store.commit(&small).unwrap();
            model.commit(&small).unwrap();
            let filler = fill(disk, free);
            let result = store.commit(&large);
            let is_done = result.is_ok();
            if let Err(error) = result {
                assert!(error.is_no_room(), "{free}: {error:?}");
                failures += 1;
            }
            std::fs::remove_file(filler).unwrap();
            store.commit(&large).unwrap();
            model.commit(&large).unwrap();
            let key = "a".parse().unwrap();
            assert_eq!(store.load().unwrap(), model.load().unwrap());
            assert_eq!(store.events(&key, 0, usize::MAX).unwrap(), model.events(&key, 0, usize::MAX).unwrap());
            drop(store);
            let again = RedbStore::open(&path).unwrap();
            assert_eq!((again.load().unwrap(), by_serial(&again, 0, 7).len()), (model.load().unwrap(), 61));
            drop(again);
            std::fs::remove_file(&path).unwrap();
            if is_done {
                break;
            }
        }
        assert!(failures > 4, "it was never full: {failures}");
    });
}

#[test]
fn the_store_s_reserve_lasts_for_many_commits_on_a_disk_that_others_have_filled() {
    let test = "the_store_s_reserve_lasts_for_many_commits_on_a_disk_that_others_have_filled";
    on_a_small_disk(test, 24 << 20, |disk| {
        let store = RedbStore::open(&disk.join("state.redb")).unwrap();
        fill(disk, 0);
        for number in 0..500 {
            store.commit(&large("a", number, 1)).unwrap_or_else(|error| panic!("{number}: {error:?}"));
        }
        assert_eq!(store.events(&"a".parse().unwrap(), 0, usize::MAX).unwrap().len(), 500);
    });
}

#[test]
fn a_failed_commit_leaves_nothing() {
    let model = MemoryStore::default();
    let store = FaultStore::new(model.clone(), Fault::Fail(2));
    let key: JobKey = "a".parse().unwrap();
    let batch = |record| Batch { jobs: [(key.clone(), record)].into(), ..Batch::default() };
    store.commit(&batch(job(1))).unwrap();
    assert!(matches!(store.commit(&batch(job(2))), Err(StoreError::Injected)));
    assert_eq!(model.load().unwrap().jobs[&key].last_run, 1);
}

#[test]
fn a_record_of_a_newer_version_is_refused_by_name() {
    let error = redb::decode::<Counters>("counters", br#"{"v": 99, "r": {}}"#).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");
}

/// Files written by earlier versions must always load: this text is what version 1 wrote.
#[test]
fn records_of_version_1_are_read() {
    let text = br#"{"v":1,"r":{"number":3,"created":5,"order":7,"source":{"text":"","meaning":"m","owner":{"uid":1,"gid":2},"warnings":[]},
        "prepared":true,"stop":{"by":"user","name":"ada"},"attempts":[{"id":9,"number":1,"created":5,"block":{"base":"10.213.0.0","prefix":29},
        "running_since":null,"stopping":null,"verdict":{"kind":"failed","reason":"r"},"ended":6,"released":true,
        "tasks":[{"role":"main","index":0,"phase":{"phase":"ended","end":{"kind":"exited","code":1},"at":6,"memory_peak":null}}]}],
        "ended":{"verdict":{"kind":"failed","reason":"r"},"at":6}}}"#;
    let record: RunRecord = redb::decode("x", text).unwrap();
    assert_eq!(record.attempts[0].tasks[0].phase.end().unwrap().end, crate::status::TaskEnd::Exited { code: 1 });
}

#[test]
fn who_might_read_a_job_s_files_is_kept_with_its_text_and_closed_with_the_file() {
    let source = |text: &str, read_by| SourceRecord { text: text.into(), read_by, ..run(1).source };
    let then = source("x", Some(0o644));
    assert_eq!(then.shown_with(None), 0o644);
    for (now, shown) in [
        (source("x", Some(0o644)), 0o644),
        (source("x", Some(0o640)), 0o640),
        (source("x", None), 0o644),
        // Another text, another user's: they say nothing of it.
        (source("y", Some(0o600)), 0o644),
        (SourceRecord { owner: Owner { uid: 1, gid: 1 }, ..source("x", Some(0o600)) }, 0o644),
    ] {
        assert_eq!(then.shown_with(Some(&now)), shown, "{now:?}");
    }
    let closed = source("x", Some(0o600));
    assert_eq!(closed.shown_with(Some(&then)), 0o600);
    // Of an earlier version: by a file that says the same now, else nobody else.
    let old = serde_json::to_string(&source("x", None)).unwrap();
    assert!(!old.contains("read_by"));
    let old: SourceRecord = serde_json::from_str(&old).unwrap();
    assert_eq!([old.shown_with(Some(&then)), old.shown_with(None)], [0o644, 0o600]);
}
