use super::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::ids::JobKey;
use crate::status::{TaskEnd, Verdict};
use crate::store::Batch;
use crate::store::record::{
    AttemptRecord, Counters, EventRecord, JobRecord, Owner, RunEnd, RunRecord, SourceRecord, TaskPhase, TaskRecord,
    UsageRecord, UsageSum, UsageTotal,
};

const TAKEN: Timestamp = Timestamp(1_000_000);
const NOW: Timestamp = Timestamp(2_000_000);

fn source() -> SourceRecord {
    SourceRecord::new("command = \"true\"".to_owned(), "m".to_owned(), Owner { uid: 0, gid: 0 })
}

fn job(last_run: u32) -> JobRecord {
    JobRecord { source: Some(source()), last_run, next_event: 1, ..JobRecord::new(Timestamp(1)) }
}

fn attempt(number: u32, phase: TaskPhase) -> AttemptRecord {
    let task =
        TaskRecord { role: "main".parse().unwrap(), index: 0, phase, again: 0, over_share: None, gpus: Vec::new() };
    let attempt = AttemptRecord::new(crate::ids::AttemptId(u64::from(number)), number, Timestamp(2), vec![task]);
    AttemptRecord { running_since: Some(Timestamp(3)), ..attempt }
}

fn run(number: u32, attempts: Vec<AttemptRecord>, ended: Option<Verdict>) -> RunRecord {
    RunRecord {
        prepared: true,
        attempts,
        ended: ended.map(|verdict| RunEnd { verdict, at: Timestamp(4) }),
        ..RunRecord::new(number, Timestamp(2), 1, source())
    }
}

fn event() -> EventRecord {
    EventRecord {
        number: 0,
        serial: 5,
        at: Timestamp(2),
        run: 1,
        state: crate::status::State::Waiting,
        message: "训练".to_owned(),
    }
}

/// One that runs, one that waits, one that is over, one that was removed.
fn state() -> Batch {
    let running = TaskPhase::Running { since: Timestamp(3) };
    let mut batch =
        Batch { counters: Some(Counters { attempt: 7, order: 9, event: 5, clock: None }), ..Batch::default() };
    let succeeded = Verdict::Succeeded { tolerated: 0 };
    for (name, run) in [
        ("runs", run(2, vec![attempt(1, running)], None)),
        ("waits", run(1, Vec::new(), None)),
        ("over", run(3, Vec::new(), Some(succeeded))),
    ] {
        let key: JobKey = format!("lab/{name}").parse().unwrap();
        batch.jobs.insert(key.clone(), job(run.number));
        batch.events.push((key.clone(), event()));
        batch.runs.insert((key, run.number), run);
    }
    batch.usage_sums.push(UsageSum {
        day: Timestamp(0),
        workspace: "lab".parse().unwrap(),
        owner: 5,
        total: UsageTotal {
            attempts: 2,
            gpu_hours: 1.5,
            cpu_hours: 3.0,
            memory_gib_hours: 4.0,
            price: None,
            unpriced: 2,
        },
    });
    // As they are read.
    batch.events.sort_by(|(one, _), (other, _)| one.cmp(other));
    batch.jobs.insert("gone".parse().unwrap(), JobRecord { removed: true, source: None, ..job(4) });
    batch.usage.push(UsageRecord {
        attempt: crate::ids::AttemptId(3),
        workspace: "lab".parse().unwrap(),
        job: "over".parse().unwrap(),
        run: 3,
        owner: 5,
        from: Timestamp(1),
        to: Timestamp(4),
        cpu: 1,
        memory: 2,
        gpu: 0,
        gpu_part: 0,
        price: None,
        price_is_part: false,
    });
    batch
}

/// An installation with that state.
fn installed(root: &Path, state: &Batch) -> Paths {
    let paths = Paths::new(root).unwrap();
    create_dir(&paths.state_dir(), 0o700).unwrap();
    RedbStore::open(&paths.store_file()).unwrap().commit(state).unwrap();
    fs::create_dir_all(paths.jobs_d().join("lab")).unwrap();
    fs::set_permissions(paths.jobs_d().join("lab"), fs::Permissions::from_mode(0o2770)).unwrap();
    fs::write(paths.config_file(), "[limits]\n").unwrap();
    fs::write(paths.jobs_d().join("lab/over.toml"), "command = \"true\"").unwrap();
    symlink("/etc/shadow", paths.jobs_d().join("lab/link.toml")).unwrap();
    fs::create_dir_all(paths.secrets().join("lab")).unwrap();
    fs::write(paths.secrets().join("lab/registry.json"), "{}").unwrap();
    fs::set_permissions(paths.secrets().join("lab/registry.json"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(paths.subordinate_ids(), "1000:70:5\n").unwrap();
    paths
}

fn back_up(paths: &Paths, to: &Path) {
    let mut state = tempfile::tempfile().unwrap();
    let offline = offline(paths).unwrap();
    copy_state(paths, &offline, &mut state).unwrap();
    let out = File::create_new(to).unwrap();
    assert_eq!(write(paths, &mut state, &out, TAKEN, &mut |_| {}).unwrap(), Vec::<String>::new());
}

/// As `trainyard restore`, without tokens.
fn restore(paths: &Paths, from: &Path, replace: Replace, now: Timestamp) -> Result<Restored, BackupError> {
    super::restore(paths, from, Wanted { replace, tokens: Tokens::Here }, now, &mut |_| {})
}

fn stored(paths: &Paths) -> Batch {
    let mut lines = Vec::new();
    RedbStore::open(&paths.store_file()).unwrap().reader().copy(&mut lines).unwrap();
    copy::read(&*lines).unwrap()
}

#[test]
fn what_is_backed_up_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = state();
    // Nothing is open: then nothing is changed on the way.
    state.runs.retain(|_, run| run.ended.is_some());
    state.jobs.retain(|key, _| !["lab/runs", "lab/waits"].contains(&key.to_string().as_str()));
    state.events.retain(|(key, _)| key.job.as_str() == "over");
    let paths = installed(&dir.path().join("here"), &state);
    let file = dir.path().join("b.tar.zst");
    back_up(&paths, &file);
    let elsewhere = Paths::new(&dir.path().join("there")).unwrap();
    let restored = restore(&elsewhere, &file, Replace::Nothing, NOW).unwrap();
    assert_eq!((restored.jobs, restored.open, restored.newer.len(), restored.aside.len()), (1, 0, 0, 0));
    // But for numbers of events and of the queue that may have been given since.
    let counters = state.counters.as_mut().unwrap();
    counters.event = restored::serial_behind(counters.event, NOW);
    counters.order = restored::serial_behind(counters.order, NOW);
    assert_eq!(stored(&elsewhere), state);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(elsewhere.jobs_d().join("lab")), 0o2770);
    assert_eq!(mode(elsewhere.secrets().join("lab/registry.json")), 0o600);
    assert_eq!(fs::read_link(elsewhere.jobs_d().join("lab/link.toml")).unwrap(), Path::new("/etc/shadow"));
    assert_eq!(fs::read_to_string(elsewhere.config_file()).unwrap(), "[limits]\n");
    assert_eq!(fs::read_to_string(elsewhere.subordinate_ids()).unwrap(), "1000:70:5\n");
}

#[test]
fn what_was_not_over_is_lost_or_made_ready_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = state();
    // Of a second run that waits nothing is there yet, but what the first has left.
    let again: JobKey = "lab/again".parse().unwrap();
    let failed = Verdict::Failed { reason: "exit code 1".to_owned() };
    state.jobs.insert(again.clone(), job(2));
    state.runs.insert((again.clone(), 1), run(1, Vec::new(), Some(failed)));
    state.runs.insert((again, 2), run(2, Vec::new(), None));
    let paths = installed(&dir.path().join("here"), &state);
    let file = dir.path().join("b.tar.zst");
    back_up(&paths, &file);
    let elsewhere = Paths::new(&dir.path().join("there")).unwrap();
    fs::create_dir_all(elsewhere.workspaces().join("lab/jobs/again/runs/1/attempts/3")).unwrap();
    let restored = restore(&elsewhere, &file, Replace::Nothing, NOW).unwrap();
    assert_eq!((restored.open, &restored.newer[..]), (3, &[][..]));
    let state = stored(&elsewhere);
    let run = |name: &str, number| &state.runs[&(format!("lab/{name}").parse().unwrap(), number)];
    let task = &run("runs", 2).attempts[0].tasks[0];
    assert!(matches!(task.phase.end().unwrap().end, TaskEnd::Lost { .. }), "{task:?}");
    assert!(!run("runs", 2).prepared && run("runs", 2).unprepared.is_some() && run("runs", 2).ended.is_none());
    for (name, number) in [("waits", 1), ("again", 2)] {
        let run = run(name, number);
        assert!(!run.prepared && run.unprepared.is_none() && run.ended.is_none(), "{name}");
    }
    let mut serials: Vec<u64> =
        state.events.iter().map(|(_, event)| event.serial).filter(|serial| *serial != 5).collect();
    serials.sort_unstable();
    // Of those that had not begun nothing has happened that there would be to tell.
    let first = restored::serial_behind(5, NOW) + 1;
    assert_eq!((serials, state.counters.unwrap().event), (vec![first], first));
}

#[test]
fn no_serial_number_is_given_twice_however_often_the_same_backup_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let paths = installed(&dir.path().join("here"), &state());
    let (mut given, mut in_backup, mut order) = (5, vec![5], 9);
    let mut file = dir.path().join("0.tar.zst");
    back_up(&paths, &file);
    for minute in 0..6 {
        restore(&paths, &file, Replace::Everything, Timestamp(NOW.0 + minute * 60_000)).unwrap();
        let state = stored(&paths);
        let all: Vec<u64> = state.events.iter().map(|(_, event)| event.serial).collect();
        let serials: Vec<u64> = all.iter().filter(|serial| !in_backup.contains(*serial)).copied().collect();
        assert!(
            !serials.is_empty() && serials.iter().all(|serial| *serial > given),
            "{minute}: {serials:?}, {given} before"
        );
        let counters = state.counters.unwrap();
        given = counters.event;
        // By these what is set aside for runs is called, which stays where it is.
        assert!(counters.order > order + 1000, "{minute}: {} after {order}", counters.order);
        order = counters.order;
        if minute == 2 {
            file = dir.path().join("2.tar.zst");
            in_backup = all;
            back_up(&paths, &file);
        }
    }
    assert!(restored::serial_behind(u64::MAX / 2, NOW) > u64::MAX / 2, "nor by a clock that was set back");
}

#[test]
fn numbers_that_the_disk_has_are_not_given_again() {
    let dir = tempfile::tempdir().unwrap();
    let paths = installed(&dir.path().join("here"), &state());
    let file = dir.path().join("b.tar.zst");
    back_up(&paths, &file);
    for left in [
        "lab/jobs/over/runs/5",
        "lab/models/waits/2",
        "lab/jobs/runs/runs/2/attempts/2",
        "lab/jobs/new/runs/1",
        "default/jobs/gone/runs/4",
        "lab/jobs/idle",
    ] {
        fs::create_dir_all(paths.workspaces().join(left)).unwrap();
    }
    fs::create_dir_all(paths.attempts().join("a12")).unwrap();
    fs::write(paths.workspaces().join("lab/jobs/idle/events"), "one\ntwo\n").unwrap();
    assert!(matches!(restore(&paths, &file, Replace::Nothing, NOW), Err(BackupError::Exists { .. })));
    let restored = restore(&paths, &file, Replace::Everything, NOW).unwrap();
    assert_eq!((restored.newer.len(), restored.aside.len()), (5, 3), "{:?}", restored.newer);
    let state = stored(&paths);
    assert_eq!(state.counters.unwrap().attempt, 12);
    let last = |name: &str| state.jobs[&name.parse().unwrap()].last_run;
    assert_eq!(["lab/over", "lab/waits", "lab/runs", "lab/new", "gone"].map(last), [5, 2, 2, 1, 4]);
    let ended = |name: &str, number| state.runs[&(name.parse().unwrap(), number)].ended.is_some();
    assert!(ended("lab/over", 5) && ended("lab/waits", 1) && ended("lab/waits", 2) && ended("lab/runs", 2));
    assert!(state.jobs[&"lab/new".parse().unwrap()].source.is_none());
    // Of one that had been made ready alone no more is said than that; one that has not run goes on counting its events.
    let later = state.runs[&("lab/over".parse().unwrap(), 5)].ended.clone().unwrap().verdict.to_string();
    assert!(later.contains("it had not begun, as far as is known"), "{later}");
    let idle = &state.jobs[&"lab/idle".parse().unwrap()];
    assert_eq!((idle.last_run, idle.next_event), (0, 2));
    assert!(restored.newer.iter().any(|newer| newer.contains("lab/idle") && newer.contains("has not run")));
    assert!(!state.events.iter().any(|(key, _)| key.to_string() == "lab/idle"));
    for aside in restored.aside {
        assert!(aside.exists(), "{aside:?}");
    }
}

#[test]
fn a_run_whose_model_was_published_after_the_backup_has_succeeded() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = state();
    for name in ["told", "on"] {
        let key: JobKey = format!("lab/{name}").parse().unwrap();
        state.jobs.insert(key.clone(), job(1));
        let running = TaskPhase::Running { since: Timestamp(3) };
        state.runs.insert((key, 1), run(1, vec![attempt(1, running)], None));
    }
    let paths = installed(&dir.path().join("here"), &state);
    let file = dir.path().join("b.tar.zst");
    back_up(&paths, &file);
    let left = |path: &str| fs::create_dir_all(paths.workspaces().join("lab").join(path)).unwrap();
    let status = |run: &str, text: &str| {
        left(&format!("jobs/{run}/attempts/1"));
        fs::write(paths.workspaces().join("lab/jobs").join(run).join("status"), text).unwrap();
    };
    // Published, and killed before that was told.
    left("models/runs/2");
    status("runs/runs/2", "state = \"running\"\nreason = \"main-0 runs\"\n");
    status("told/runs/1", "state = \"failed\"\nreason = \"exit code 3\"\n");
    status("on/runs/1", "state = \"running\"\nreason = \"main-0 runs\"\n");
    // And a later one of a run that had not begun.
    left("models/waits/2");
    let restored = restore(&paths, &file, Replace::Everything, NOW).unwrap();
    assert_eq!((restored.open, restored.newer.len()), (1, 3), "{:?}", restored.newer);
    let stored = stored(&paths);
    let verdict = |name: &str, number| {
        let key: JobKey = format!("lab/{name}").parse().unwrap();
        stored.runs[&(key, number)].ended.as_ref().map(|end| end.verdict.clone())
    };
    let succeeded = Some(Verdict::Succeeded { tolerated: 0 });
    assert_eq!((verdict("runs", 2), verdict("waits", 2)), (succeeded.clone(), succeeded));
    assert_eq!(verdict("told", 1), Some(Verdict::Failed { reason: "exit code 3".to_owned() }));
    assert_eq!(verdict("on", 1), None, "it goes on");
    let last_state = |name: &str| {
        let key: JobKey = format!("lab/{name}").parse().unwrap();
        stored.events.iter().rfind(|(of, _)| *of == key).unwrap().1.state
    };
    use crate::status::State;
    let states = ["runs", "waits", "told", "on"].map(last_state);
    assert_eq!(states, [State::Succeeded, State::Succeeded, State::Failed, State::Waiting]);
}

#[test]
fn tokens_that_were_revoked_after_the_backup_come_back_only_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let paths = installed(&dir.path().join("here"), &state());
    fs::create_dir(paths.tokens()).unwrap();
    let token = |name: &str| paths.tokens().join(format!("{name}.toml"));
    fs::write(token("0.kept"), "kept then").unwrap();
    fs::write(token("0.revoked"), "revoked").unwrap();
    let file = dir.path().join("b.tar.zst");
    back_up(&paths, &file);
    fs::remove_file(token("0.revoked")).unwrap();
    fs::write(token("0.kept"), "kept now").unwrap();
    fs::write(token("new"), "new").unwrap();
    fs::set_permissions(token("new"), fs::Permissions::from_mode(0o600)).unwrap();
    let told = restore(&paths, &file, Replace::Everything, NOW).unwrap().tokens;
    assert_eq!(told, TokensTold { restored: Vec::new(), left_out: vec!["0.revoked".to_owned()] });
    assert_eq!(fs::read_to_string(token("0.kept")).unwrap(), "kept now");
    assert!(!token("0.revoked").exists());
    assert_eq!(fs::metadata(token("new")).unwrap().permissions().mode() & 0o777, 0o600);
    let wanted = Wanted { replace: Replace::Everything, tokens: Tokens::Backup };
    let told = super::restore(&paths, &file, wanted, Timestamp(NOW.0 + 1), &mut |_| {}).unwrap().tokens;
    assert_eq!((told.restored, told.left_out), (vec!["0.kept".to_owned(), "0.revoked".to_owned()], Vec::new()));
    assert!(token("0.revoked").exists() && !token("new").exists());
    // A machine that has none is given none.
    let elsewhere = Paths::new(&dir.path().join("there")).unwrap();
    let told = restore(&elsewhere, &file, Replace::Nothing, NOW).unwrap().tokens;
    assert_eq!(told.left_out.len(), 2);
    assert!(!elsewhere.tokens().exists());
}

#[test]
fn a_job_file_that_is_longer_than_all_disks_is_left_out_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let paths = installed(&dir.path().join("here"), &state());
    File::create(paths.jobs_d().join("lab/huge.toml")).unwrap().set_len(1 << 40).unwrap();
    let mut state = tempfile::tempfile().unwrap();
    copy_state(&paths, &offline(&paths).unwrap(), &mut state).unwrap();
    let file = dir.path().join("b.tar.zst");
    let left_out = write(&paths, &mut state, &File::create_new(&file).unwrap(), TAKEN, &mut |_| {}).unwrap();
    assert!(left_out.len() == 1 && left_out[0].contains("lab/huge.toml is left out"), "{left_out:?}");
    let elsewhere = Paths::new(&dir.path().join("there")).unwrap();
    restore(&elsewhere, &file, Replace::Nothing, NOW).unwrap();
    assert!(elsewhere.jobs_d().join("lab/over.toml").exists() && !elsewhere.jobs_d().join("lab/huge.toml").exists());
    assert!(elsewhere.secrets().join("lab/registry.json").exists());
}

#[test]
fn what_is_cut_short_or_changed_is_no_backup_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let paths = installed(&dir.path().join("here"), &state());
    let file = dir.path().join("b.tar.zst");
    back_up(&paths, &file);
    let mut whole = Vec::new();
    File::open(&file).unwrap().read_to_end(&mut whole).unwrap();
    let content = zstd::decode_all(&*whole).unwrap();
    let before = stored(&paths);
    let bad = dir.path().join("bad");
    let refuse = |bytes: &[u8], what: &str| {
        fs::write(&bad, bytes).unwrap();
        assert!(restore(&paths, &bad, Replace::Everything, NOW).is_err(), "{what}");
        assert_eq!(stored(&paths), before, "{what}");
        assert!(paths.config_file().exists() && !swap::is_unfinished(&paths), "{what}");
        // They would have the secrets in them.
        let drafts = [paths.state_dir().join(".restore"), paths.config_dir().with_file_name(".trainyard-restore")];
        assert!(drafts.iter().all(|draft| !draft.exists()), "{what}");
    };
    for length in (0..whole.len()).step_by(97) {
        refuse(&whole[..length], &format!("its first {length} bytes"));
    }
    for place in (0..whole.len()).step_by(61) {
        let mut changed = whole.clone();
        changed[place] ^= 0x40;
        // Zstandard can say the same in several ways, as zeros that are copied from here or from there.
        if zstd::decode_all(&*changed).is_ok_and(|same| same == content) {
            continue;
        }
        refuse(&changed, &format!("a changed byte at {place}"));
    }
}

#[test]
fn a_copy_of_the_state_that_lacks_a_line_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(&dir.path().join("s")).unwrap();
    store.commit(&state()).unwrap();
    let mut lines = Vec::new();
    store.reader().copy(&mut lines).unwrap();
    assert_eq!(copy::read(&*lines).unwrap(), state());
    // No table is forgotten that comes later.
    let kinds = |text: &str| -> std::collections::BTreeSet<String> {
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        text.lines().flat_map(|text| line(text)["r"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()).collect()
    };
    assert_eq!(kinds(&String::from_utf8(lines.clone()).unwrap()).len(), store.reader().tables().len() + 1);
    let text = String::from_utf8(lines).unwrap();
    let all: Vec<&str> = text.lines().collect();
    for skipped in 0..all.len() {
        let rest: Vec<&str> = (0..all.len()).filter(|line| *line != skipped).map(|line| all[line]).collect();
        assert!(copy::read(rest.join("\n").as_bytes()).is_err(), "without line {skipped}");
    }
}

#[test]
fn a_copy_is_of_one_instant_whatever_is_committed_meanwhile() {
    /// Commits between any two lines.
    struct Meanwhile<'a>(Vec<u8>, &'a RedbStore, u64);
    impl Write for Meanwhile<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.2 += 1;
            let counters = Some(Counters { attempt: 1000 + self.2, ..Counters::default() });
            let key: JobKey = format!("lab/z{}", self.2).parse().unwrap();
            let jobs = [(key, job(0))].into();
            self.1.commit(&Batch { counters, jobs, ..Batch::default() }).unwrap();
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(&dir.path().join("s")).unwrap();
    store.commit(&state()).unwrap();
    let mut out = Meanwhile(Vec::new(), &store, 0);
    store.reader().copy(&mut out).unwrap();
    assert!(out.2 > 5);
    assert_eq!(copy::read(&*out.0).unwrap(), state());
}

#[test]
fn a_state_that_begins_anew_gives_no_number_that_may_have_been_given() {
    let counters = restored::anew(&restored::Left::default(), NOW).counters.unwrap();
    assert!(counters.order >= NOW.0 * 1000 && counters.event >= NOW.0 * 1000, "{counters:?}");
}
