//! What stands costs little: the daemon's start with many stored jobs, its memory with many runs, tasks that it takes over after
//! a restart, `ps` of many jobs. Each beside what is promised; ends with 1 where a promise is missed.
//!
//!     cargo bench --bench standing [-- JOBS TASKS]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::exit,
    reason = "a benchmark drives processes"
)]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Instance, wait_at_most};
use trainyard::config::Paths;
use trainyard::ids::{AttemptId, JobKey, Timestamp};
use trainyard::spec::parse;
use trainyard::status::{EndRecord, State, TaskEnd, Verdict};
use trainyard::store::record::{
    AttemptRecord, Counters, EventRecord, JobRecord, Owner, RunEnd, RunRecord, SourceRecord, TaskPhase, TaskRecord,
    UsageRecord,
};
use trainyard::store::redb::RedbStore;
use trainyard::store::{Batch, Store};

const PATIENCE: Duration = Duration::from_secs(600);
/// What has happened to each job.
const EVENTS: [&str; 5] = ["queued", "attempt 1 starts", "running", "main-0 exited with 0", "succeeded"];
/// Times of which the median counts.
const ROUNDS: usize = 5;

fn text(number: usize) -> String {
    format!(
        "description = \"run {number} of a search\"\ncommand = \"python3 train.py --seed={number}\"\n\
         resources = {{ cpu = 1, memory = \"1GiB\" }}\nenv = {{ SEED = \"{number}\", NAME = \"{}\" }}\n",
        "x".repeat(200)
    )
}

/// Jobs with their files, one run each that is over, and what is kept of it.
fn store(paths: &Paths, jobs: usize) {
    fs::create_dir_all(paths.state_dir()).unwrap();
    let counters = Counters { attempt: jobs as u64, order: jobs as u64, event: jobs as u64 * 5, clock: None };
    let mut batch = Batch { counters: Some(counters), ..Batch::default() };
    let begun = trainyard::sys::now().0 - 3_600_000;
    for number in 0..jobs {
        let key: JobKey = format!("job-{number:05}").parse().unwrap();
        let text = text(number);
        fs::write(paths.jobs_d().join(format!("{}.toml", key.job)), &text).unwrap();
        let meaning = parse("job.toml", &text).0.unwrap().meaning();
        let owner = Owner { uid: 0, gid: 0 };
        let source = SourceRecord::new(text, meaning, owner);
        let at = |ms: u64| Timestamp(begun + ms);
        let end = EndRecord { end: TaskEnd::Exited { code: 0 }, at: at(90), memory_peak: Some(1 << 28), note: None };
        let verdict = Verdict::Succeeded { tolerated: 0 };
        let role = "main".parse().unwrap();
        let task =
            TaskRecord { role, index: 0, phase: TaskPhase::Ended(end), again: 0, over_share: None, gpus: Vec::new() };
        let attempt = AttemptRecord {
            running_since: Some(at(20)),
            verdict: Some(verdict.clone()),
            ended: Some(at(95)),
            released: true,
            ..AttemptRecord::new(AttemptId(number as u64 + 1), 1, at(10), vec![task])
        };
        for (event, message) in EVENTS.iter().enumerate() {
            let event = EventRecord {
                number: event as u64,
                serial: number as u64 * 5 + event as u64 + 1,
                at: at(event as u64 * 20),
                run: 1,
                state: if event == 4 { State::Succeeded } else { State::Running },
                message: (*message).to_owned(),
            };
            batch.events.push((key.clone(), event));
        }
        batch.usage.push(UsageRecord {
            attempt: attempt.id,
            workspace: key.workspace.clone(),
            job: key.job.clone(),
            run: 1,
            owner: 0,
            from: at(10),
            to: at(95),
            cpu: 1000,
            memory: 1 << 30,
            gpu: 0,
            gpu_part: 0,
            price: None,
            price_is_part: false,
        });
        batch.runs.insert(
            (key.clone(), 1),
            RunRecord {
                prepared: true,
                attempts: vec![attempt],
                ended: Some(RunEnd { verdict, at: at(95) }),
                ..RunRecord::new(1, at(0), number as u64, source.clone())
            },
        );
        batch.jobs.insert(key, JobRecord { source: Some(source), last_run: 1, next_event: 5, ..JobRecord::new(at(0)) });
    }
    RedbStore::open(&paths.store_file()).unwrap().commit(&batch).unwrap();
}

/// Memory that a process has now, MiB.
struct Memory {
    /// With the pages of the program that are in memory, which all processes of Trainyard share.
    resident: f64,
    /// Its own.
    own: f64,
}

fn memory(pid: i32) -> Memory {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = |key: &str| {
        let kib = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        kib.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    };
    Memory { resident: value("VmRSS:"), own: value("RssAnon:") }
}

/// Whether what is resident is as little as promised; of it what is its own.
fn tell_memory(what: &str, pid: i32) -> bool {
    let Memory { resident, own } = memory(pid);
    let held = tell(what, resident, 50.0, "MiB");
    println!("{:<66}{own:>9.1} MiB", "  of that its own, not the program's");
    held
}

/// Processes that the daemon watches.
fn watched(pid: i32) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("anon_inode:[pidfd]"))).count()
}

/// What the daemon and all commands so far have taken.
fn processor_time(daemon: i32) -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    let of_commands = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let micros =
        [of_commands.user_time(), of_commands.system_time()].map(|time| time.tv_sec() * 1_000_000 + time.tv_usec());
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    // Hundredths of a second.
    let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_micros(u64::try_from(micros.iter().sum::<i64>()).unwrap()) + Duration::from_millis(10 * ticks)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints a figure beside what is promised of it; whether it holds.
fn tell(what: &str, measured: f64, promised: f64, unit: &str) -> bool {
    let word = if measured < promised { "" } else { "  MISSED" };
    println!("{what:<66}{measured:>9.1} {unit:<4} < {promised:>5.0} {unit}{word}");
    measured < promised
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn many_jobs(jobs: usize) -> Option<bool> {
    let mut instance = Instance::prepare("bench standing", "")?;
    store(&Paths::new(instance.root()).unwrap(), jobs);
    let mut starts = Vec::new();
    for _ in 0..ROUNDS {
        let from = Instant::now();
        instance.start_daemon(&[]);
        instance.wait_ready();
        // And it answers.
        instance.ok(&["status", "job-00000"]);
        starts.push(from.elapsed());
        if starts.len() < ROUNDS {
            instance.kill_daemon();
        }
    }
    let mut held = tell(&format!("start to ready and an answer, {jobs} stored jobs"), ms(median(starts)), 1000.0, "ms");
    // What the start has still to do is not what `ps` takes.
    let shown = instance.mount().join("jobs/by-state/succeeded");
    wait_at_most(PATIENCE, "all jobs to be shown", || (fs::read_dir(&shown).ok()?.count() == jobs).then_some(()));
    let before = processor_time(instance.daemon_pid());
    let listed = (0..ROUNDS).map(|_| {
        let from = Instant::now();
        assert_eq!(instance.ok(&["ps"]).lines().count(), jobs + 1);
        from.elapsed()
    });
    held &= tell(&format!("`trainyard ps` of {jobs} jobs"), ms(median(listed.collect())), 100.0, "ms");
    // What it takes on a machine that does other things as well.
    let spent = (processor_time(instance.daemon_pid()) - before) / u32::try_from(ROUNDS).unwrap();
    println!("{:<66}{:>9.1} ms", "processor time of that, of the daemon and the command", ms(spent));
    let (events, page) = (jobs * EVENTS.len(), 500.min(jobs * EVENTS.len()));
    let after = (events - page).to_string();
    let told = (0..ROUNDS).map(|_| {
        let from = Instant::now();
        assert!(instance.ok(&["events", "--after", &after]).lines().count() >= page);
        from.elapsed()
    });
    println!(
        "{:<66}{:>9.1} ms",
        format!("`trainyard events` of the last {page} of {events}"),
        ms(median(told.collect()))
    );
    let Memory { resident, own } = memory(instance.daemon_pid());
    println!("{:<66}{resident:>9.1} MiB, {own:.1} of its own", format!("the daemon's memory, {jobs} stored jobs"));
    instance.shutdown();
    Some(held)
}

/// So many tasks run, and as many runs wait behind them.
fn many_runs(tasks: usize) -> Option<bool> {
    let config = format!("[limits]\ncpu = {}\nmemory = \"{}GiB\"\nstop_grace = \"1s\"\n", tasks / 10, tasks);
    let mut instance = Instance::start("bench standing", &config)?;
    let job = "command = [\"/bin/sleep\", \"infinity\"]\nnetwork = \"host\"\nresources = { cpu = 0.1, memory = \"128MiB\" }\n";
    (0..tasks).for_each(|number| instance.drop_job(&format!("j{number}"), job));
    let running = instance.mount().join("jobs/by-state/running");
    let all_run = |_: &Instance| (fs::read_dir(&running).map_or(0, Iterator::count) == tasks).then_some(());
    wait_at_most(PATIENCE, "all tasks to run", || all_run(&instance));
    (0..tasks).for_each(|number| instance.drop_job(&format!("w{number}"), job));
    let waiting = instance.mount().join("jobs/by-state/waiting");
    wait_at_most(PATIENCE, "the others to wait", || {
        (fs::read_dir(&waiting).map_or(0, Iterator::count) == tasks).then_some(())
    });
    let pid = instance.daemon_pid();
    let mut held = tell_memory(&format!("the daemon's memory as {tasks} runs run and {tasks} wait"), pid);
    instance.ok(&["exec", "j0", "--", "/bin/true"]);
    ask_for_all(&instance);
    held &= tell_memory("when everything that can be asked for was, once", pid);
    (0..ROUNDS).for_each(|_| drop(instance.ok(&["ps", "--json"])));
    held &= tell_memory("when they were listed", pid);
    let mut adopted = Vec::new();
    for _ in 0..ROUNDS {
        instance.kill_daemon();
        let from = Instant::now();
        instance.start_daemon(&[]);
        instance.wait_ready();
        let pid = instance.daemon_pid();
        wait_at_most(PATIENCE, "all tasks to be watched", || (watched(pid) >= tasks).then_some(()));
        adopted.push(from.elapsed());
    }
    all_run(&instance).unwrap();
    held &= tell(
        &format!("{tasks} running tasks adopted, from the start of the daemon"),
        ms(median(adopted)),
        1000.0,
        "ms",
    );
    held &= tell_memory("its memory then", instance.daemon_pid());
    held &= used_a_lot(&instance, "when much was asked of it");
    instance.ok(&["stop", "--all", "--now"]);
    let stopped = instance.mount().join("jobs/by-state/stopped");
    wait_at_most(PATIENCE, "all to end", || {
        (fs::read_dir(&stopped).map_or(0, Iterator::count) == 2 * tasks).then_some(())
    });
    held &= tell_memory("as all have ended", instance.daemon_pid());
    held &= used_a_lot(&instance, "when much was asked of it again");
    // What is free is handed back every 30 s.
    let own = memory(instance.daemon_pid()).own;
    let fell = || (memory(instance.daemon_pid()).own < own).then_some(());
    wait_at_most(PATIENCE, "free memory to be handed back", fell);
    held &= tell_memory("when free memory was handed back", instance.daemon_pid());
    instance.shutdown();
    Some(held)
}

/// Each route of the API and what the command line alone does, so that all parts of the program have been at work: what is asked is
/// read, and changes are of a job that there is not.
fn ask_for_all(instance: &Instance) {
    let ask = |method: &str, path: &str| {
        let socket = instance.root().join("run/trainyard/api.sock");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "20", "--request", method, "--unix-socket"]).arg(socket);
        if method != "GET" {
            curl.args(["--header", "Content-Type: application/json", "--data", "{}"]);
        }
        let answer =
            curl.args(["--write-out", "%{http_code}"]).arg(format!("http://trainyard{path}")).output().unwrap();
        assert!(answer.status.success(), "{method} {path}: {answer:?}");
        let mut body = String::from_utf8_lossy(&answer.stdout).into_owned();
        let code = body.split_off(body.len().saturating_sub(3));
        assert!(code.as_str() < "500", "{method} {path}: {code} {body}");
        body
    };
    let routes: Value = serde_json::from_str(&ask("GET", "/openapi.json")).unwrap();
    let mut asked = 0;
    for (path, methods) in routes["paths"].as_object().unwrap() {
        for method in ["get", "put", "post", "delete"].into_iter().filter(|method| methods.get(*method).is_some()) {
            // They are of all jobs at once.
            if method != "get" && ["/v1/shutdown", "/v1/drain", "/v1/images/prune"].contains(&path.as_str()) {
                continue;
            }
            let job = if method == "get" { "j0" } else { "nobody" };
            let path = path.replace("{workspace}", "default").replace("{job}", job);
            let path = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
            ask(&method.to_uppercase(), &path.collect::<Vec<_>>().join("/"));
            asked += 1;
        }
    }
    assert!(asked > 40, "{asked} routes");
    assert!(!instance.cli(&["image", "pull", "registry.invalid/team/torch:2"]).status.success());
}

/// As people and programs use it in a day: lists, single jobs, their events and files, pages of the API, the mounted tree.
fn used_a_lot(instance: &Instance, when: &str) -> bool {
    ask_for_all(instance);
    for round in 0..20 {
        let job = format!("j{round}");
        for verb in
            [&["ps", "--json"][..], &["ps"], &["queue"], &["usage", "--by", "job"], &["events", "--since", "1h"]]
        {
            instance.ok(verb);
        }
        for verb in [&["status", &job][..], &["show", &job], &["show", "--effective", &job], &["events", &job]] {
            instance.ok(verb);
        }
    }
    let walk = "find \"$0\" -type f -exec cat {} + | wc -c";
    let walked = Command::new("sh").args(["-c", walk]).arg(instance.mount().join("jobs")).output().unwrap();
    assert!(walked.status.success(), "{walked:?}");
    tell_memory(when, instance.daemon_pid())
}

fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let (jobs, tasks) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(500));
    let held = [many_jobs(jobs), many_runs(tasks)];
    if held.contains(&Some(false)) {
        std::process::exit(1);
    }
}
