//! A task's output and what it uses: kept by size and count, followed, sampled.

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{BINARY, Instance, has_tools, pids_with, wait_for};

const SMALL_PARTS: &str = "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"2s\"\n\
    [network]\nrange = \"10.213.0.0/16\"\n[logs]\nmax_size = \"64KiB\"\nparts = 3\n";

#[test]
fn a_log_is_kept_by_size_and_count_and_followed_across_rotations() {
    const LINES: u32 = 60_000;
    let test = "a_log_is_kept_by_size_and_count_and_followed_across_rotations";
    let Some(instance) = Instance::start(test, SMALL_PARTS) else { return };
    let script = format!("while [ ! -e /output/go ]; do sleep 0.02; done; seq -f %07g 1 {LINES}; echo done >&2");
    instance.drop_job("much", &format!("command = \"{script}\""));
    instance.wait_state("much", "running");
    let mut follower = Command::new(BINARY)
        .arg("--root")
        .arg(instance.root())
        .args(["logs", "-f", "main-0", "much"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let followed = BufReader::new(follower.stdout.take().unwrap());
    fs::write(instance.run_dir("much", 1).join("output/go"), "").unwrap();
    // Each line once and in order; what was dropped before it was sent is told.
    let mut next = 1;
    for line in followed.lines().map(Result::unwrap).filter(|line| line != "done") {
        if let Some(rest) = line.strip_prefix("--- ") {
            let bytes: u32 = rest.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(bytes % 8, 0, "{line}");
            next += bytes / 8;
        } else {
            assert_eq!(line.parse(), Ok(next), "{line}");
            next += 1;
        }
    }
    assert_eq!(next, LINES + 1);
    assert!(follower.wait().unwrap().success());
    instance.wait_end("much", 1);

    let behind = instance.run_dir("much", 1).join("attempts/1/main-0");
    let parts: Vec<String> = ["stdout.log.2", "stdout.log.1", "stdout.log"]
        .iter()
        .map(|name| fs::read_to_string(behind.join(name)).unwrap())
        .collect();
    assert!(!behind.join("stdout.log.3").exists());
    assert!(parts.iter().all(|part| part.ends_with('\n') && part.len() <= (64 << 10) + 8));
    let kept = parts.concat();
    assert!(kept.ends_with(&format!("{LINES:07}\n")));
    assert!(fs::metadata(behind.join(".log.index")).unwrap().len() < 64 << 10);

    let dir = instance.mount().join("jobs/much/latest/attempts/1/main-0");
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert_eq!(fs::metadata(dir.join("log")).unwrap().len(), log.len() as u64);
    let dropped = LINES as usize * 8 - kept.len();
    let first = log.lines().next().unwrap();
    assert!(first.ends_with(&format!("Z log| --- {dropped} bytes of older stdout were dropped ---")), "{first}");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" out| ")).collect();
    assert_eq!(lines.len(), kept.lines().count());
    assert!(lines.iter().zip(kept.lines()).all(|(line, text)| line.len() == 37 && line.ends_with(text)));
    assert!(log.lines().any(|line| line.ends_with(" err| done")));
    let again = instance.log("much", "main-0");
    assert!(again.starts_with(&format!("--- {dropped} bytes of older stdout were dropped ---\n")), "{}", &again[..99]);
    assert_eq!(instance.ok(&["logs", "-n", "3", "main-0", "much"]).lines().count(), 3);
    assert_eq!(fs::read(dir.join("stdout.log.1")).unwrap(), parts[1].as_bytes());
    instance.shutdown();
}

#[test]
fn who_follows_a_run_is_done_with_it_when_the_next_one_has_begun() {
    let test = "who_follows_a_run_is_done_with_it_when_the_next_one_has_begun";
    let Some(instance) = Instance::start(test, "") else { return };
    let command = "echo first; while [ ! -e /output/go ]; do sleep 0.02; done; echo last";
    instance.drop_job("goes-on", &format!("command = \"{command}\""));
    instance.wait_state("goes-on", "running");
    let mut follower = Command::new(BINARY)
        .arg("--root")
        .arg(instance.root())
        .args(["logs", "-f", "goes-on"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut followed = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(followed.next().as_deref(), Some("main-0 | first"));
    // It begins as soon as the first one is over.
    instance.drop_job("goes-on", "command = \"echo other; exec sleep 1000\"");
    wait_for("the next run", || {
        instance.report("goes-on")?["reason"].as_str()?.contains("run 2 follows").then_some(())
    });
    fs::write(instance.run_dir("goes-on", 1).join("output/go"), "").unwrap();
    assert_eq!(followed.collect::<Vec<_>>(), ["main-0 | last"], "it ends, with what that run still says");
    assert!(follower.wait().unwrap().success());
    instance.shutdown();
}

#[test]
fn binary_output_and_a_line_of_ten_mebibytes_survive() {
    let test = "binary_output_and_a_line_of_ten_mebibytes_survive";
    let Some(instance) = Instance::start(test, "") else { return };
    let script =
        "head -c 3000001 /dev/urandom | tee /output/binary; echo; head -c 10485760 /dev/zero | tr '\\\\0' x; echo end";
    let report = instance.run_job("bytes", &format!("command = \"{script}\""));
    assert_eq!(report["state"], "succeeded", "{report}");
    let run = instance.run_dir("bytes", 1);
    let mut expected = fs::read(run.join("output/binary")).unwrap();
    expected.push(b'\n');
    expected.extend(vec![b'x'; 10 << 20]);
    expected.extend(b"end\n");
    assert!(fs::read(run.join("attempts/1/main-0/stdout.log")).unwrap() == expected);
    let log = fs::read(instance.mount().join("jobs/bytes/latest/attempts/1/main-0/log")).unwrap();
    let lines = expected.split_inclusive(|byte| *byte == b'\n');
    let shown: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').map(|line| &line[30..]).collect();
    assert!(shown == lines.collect::<Vec<_>>());
}

/// KiB that a shim has to itself; without optimisation frames are larger, and so is the stack.
const SHIM_MAX_KIB: u64 = if cfg!(debug_assertions) { 3 << 10 } else { 2 << 10 };

/// KiB of heap, stack and data of a process, but for what the loader has written into the program's own pages, which grows with the
/// debug build: of a release `benches/start.rs` counts that as well.
fn own_memory(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let (mut is_program, mut sum) = (false, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Anonymous:") if !is_program => {
                sum += words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
            }
            Some(word) if !word.ends_with(':') => is_program = line.contains("/memfd:trainyard"),
            _ => {}
        }
    }
    sum
}

#[test]
fn usage_is_sampled_every_five_seconds_and_once_at_the_end() {
    let test = "usage_is_sampled_every_five_seconds_and_once_at_the_end";
    let Some(instance) = Instance::start(test, "") else { return };
    let busy = "command = [\"/usr/bin/timeout\", \"6\", \"/bin/sh\", \"-c\", \"while :; do :; done\"]";
    instance.drop_job("busy", busy);
    instance.drop_job("sleeps", "command = \"sleep infinity\"\nresources.cpu = 0.1\n");
    instance.run_job("brief", "command = \"sleep 0.05\"");
    let rows = |job: &str| {
        let path = instance.mount().join(format!("jobs/{job}/latest/attempts/1/main-0/metrics.csv"));
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        let mut lines = text.lines();
        let columns =
            "time,elapsed_s,cpu_s,cpu_percent,memory_bytes,memory_peak_bytes,io_read_bytes,io_written_bytes,pids";
        assert_eq!(lines.next(), Some(columns));
        lines.map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let brief = rows("brief");
    assert_eq!(brief.len(), 1, "{brief:?}");
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{text:?}"));
    assert!((0.04..60.0).contains(&number(&brief[0][1])), "{brief:?}");
    assert!(number(&brief[0][2]) > 0.0 && number(&brief[0][5]) > 0.0, "{brief:?}");

    // The pages of its program a shim shares with all other shims.
    wait_for("the first sample", || {
        let path = instance.run_dir("busy", 1).join("attempts/1/main-0/metrics.csv");
        path.exists().then_some(())
    });
    let shims = pids_with("busy/main-0");
    let own = shims.iter().map(|(pid, _)| own_memory(*pid)).max().unwrap_or(0);
    assert!((1..SHIM_MAX_KIB).contains(&own), "{own} KiB");

    instance.wait_end("busy", 1);
    let busy = rows("busy");
    // More only where the machine was so busy that it ended late.
    assert!(busy.len() >= 2, "{busy:?}");
    let end = busy.last().unwrap();
    // The first when it was due, whatever else the machine does; the other at the end.
    let (first, last) = (number(&busy[0][1]), number(&end[1]));
    assert!(first >= 5.0 && last >= 5.5 && first < last, "{busy:?}");
    for row in &busy {
        assert!((1.0..130.0).contains(&number(&row[3])), "{row:?}");
        assert_eq!(row.len(), 9);
    }
    assert!(number(&end[2]) > number(&busy[0][2]));
    assert!(number(&busy[0][8]) >= 2.0, "{busy:?}");

    // Of one that runs the newest row is told.
    let told = |verb: &[&str]| serde_json::from_str::<serde_json::Value>(&instance.ok(verb)).unwrap();
    let usage = |job: &str| told(&["status", job, "--json"])["usage"].clone();
    let sleeps = wait_for("what it uses", || Some(usage("sleeps")).filter(|usage| usage[0].is_object()));
    assert_eq!(sleeps[0]["task"], "main-0");
    assert!(sleeps[0]["memory"].as_u64().unwrap() > 0 && sleeps[0]["cpu_percent"].as_f64().unwrap() < 50.0, "{sleeps}");
    assert_eq!(usage("busy"), serde_json::json!([]), "it has ended");
    let top = told(&["top", "--json"]);
    let of_top = top["jobs"].as_array().unwrap().iter().find(|job| job["name"] == "sleeps").unwrap();
    assert!(of_top["tasks"][0]["memory"].as_u64().unwrap() > 0, "{top}");
    let row = regex::Regex::new(r"(?m)^main-0 +running +\d+% +[\d.]+[KMG]iB").unwrap();
    let screen = instance.ok(&["status", "sleeps"]);
    assert!(row.is_match(&screen), "{screen}");
}

#[test]
fn what_is_written_faster_than_anybody_reads_ends_where_it_was_when_it_was_asked_for() {
    let test = "what_is_written_faster_than_anybody_reads_ends_where_it_was_when_it_was_asked_for";
    let Some(instance) = Instance::start(test, "[logs]\nmax_size = \"1MiB\"\nparts = 2\n") else { return };
    instance.drop_job("fast", "command = \"yes 0123456789abcdef\"");
    instance.wait_state("fast", "running");
    wait_for("a full log", || (instance.log("fast", "main-0").len() > 1 << 20).then_some(()));
    for _ in 0..3 {
        let log = instance.log("fast", "main-0");
        assert!(log.len() < 16 << 20, "{} bytes", log.len());
    }
    instance.ok(&["stop", "fast"]);
    instance.wait_end("fast", 1);
    instance.shutdown();
}

/// `less +F` on a terminal shows what is written after it has begun.
fn pager_follows(log: &Path) {
    let size = fs::metadata(log).unwrap().len();
    let line = format!("less +F {}", log.display());
    let mut pager = Command::new("script");
    pager.args(["-qfc", &line, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut pager = pager.spawn().unwrap();
    let (mut screen, mut shown, mut buffer) = (pager.stdout.take().unwrap(), String::new(), [0; 4096]);
    // Lines have their numbers, and 13 bytes each.
    let is_later =
        |number: &str| number.get(..7).and_then(|digits| digits.parse().ok()).is_some_and(|at: u64| at > size / 13 + 1);
    while !shown.split("line ").any(is_later) {
        let count = screen.read(&mut buffer).unwrap();
        assert!(count > 0, "less has ended: {shown}");
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    pager.kill().unwrap();
    pager.wait().unwrap();
}

/// Pagers, searches, copies and editors take one look after the other at a file that grows: each sees a state of it, and size
/// and time are true whenever they ask.
#[test]
fn who_looks_at_a_growing_log_by_any_program_sees_a_state_of_it() {
    let test = "who_looks_at_a_growing_log_by_any_program_sees_a_state_of_it";
    if !has_tools(test, &["less", "grep", "rsync", "ed", "wc", "script"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let began = std::time::SystemTime::now();
    let lines = "i=0; while [ ! -e /output/stop ]; do i=$((i+1)); printf 'line %07d\\n' $i; sleep 0.002; done";
    instance.drop_job("grows", &format!("command = {lines:?}"));
    instance.wait_state("grows", "running");
    let dir = instance.mount().join("jobs/grows/latest/attempts/1/main-0");
    let stdout = dir.join("stdout.log");
    wait_for("a line", || fs::read(&stdout).ok().filter(|text| text.len() > 13));
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let is_state = |text: &[u8]| {
        // Every line whole and in its place; the last one may just be written.
        text.split_inclusive(|byte| *byte == b'\n').enumerate().all(|(number, line)| {
            let whole = format!("line {:07}\n", number + 1);
            whole.as_bytes().starts_with(line) && (line.len() == whole.len() || text.ends_with(line))
        })
    };
    pager_follows(&stdout);
    let copy = tempfile::tempdir().unwrap();
    let (shown, copied) = (stdout.to_str().unwrap(), copy.path().join("copy"));
    let mut last = (0, began);
    for _ in 0..40 {
        let before = fs::metadata(&stdout).unwrap();
        let text = fs::read(&stdout).unwrap();
        let after = fs::metadata(&stdout).unwrap();
        let told = (before.len(), text.len() as u64, after.len());
        assert!(told.0 <= told.1 && told.1 <= told.2, "{told:?}");
        assert!(is_state(&text), "{}", String::from_utf8_lossy(&text));
        // The time is that of the last line, and goes with the size.
        let (size, time) = (before.len(), before.modified().unwrap());
        assert!(size >= last.0 && time >= last.1, "{size} {time:?} after {last:?}");
        assert!(time <= std::time::SystemTime::now());
        last = (size, time);
        let counted: u64 =
            String::from_utf8(said("wc", &["-c", shown])).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(counted >= after.len());
        assert!(is_state(&said("less", &[shown])) && is_state(&said("grep", &["line", shown])));
        said("rsync", &["-a", shown, copied.to_str().unwrap()]);
        assert!(is_state(&fs::read(&copied).unwrap()));
        // An editor reads it as a whole, and writes what it read elsewhere.
        let edited = copy.path().join("edited");
        let script = format!("printf 'w {}\\nq\\n' | ed -s {shown}", edited.display());
        said("sh", &["-c", &script]);
        assert!(is_state(&fs::read(&edited).unwrap()));
        // The merged view as well: what is told of it is there.
        let log = fs::File::open(dir.join("log")).unwrap();
        let size = log.metadata().unwrap().len();
        let text = std::io::read_to_string(&log).unwrap();
        assert!(text.len() as u64 >= size && text.lines().all(|line| line.len() <= 42), "{text}");
    }
    assert!(last.1 > began && last.0 > 100, "{last:?}");
    fs::write(instance.run_dir("grows", 1).join("output/stop"), "").unwrap();
    instance.wait_end("grows", 1);
    let own = fs::metadata(instance.run_dir("grows", 1).join("attempts/1/main-0/stdout.log")).unwrap();
    let shown = fs::metadata(&stdout).unwrap();
    assert_eq!((shown.len(), shown.modified().unwrap()), (own.len(), own.modified().unwrap()));
    instance.shutdown();
}

/// Who follows a log and reads none of it holds up neither the job nor others, and costs a bounded amount of memory.
#[test]
fn a_follower_that_never_reads_holds_up_nobody() {
    let test = "a_follower_that_never_reads_holds_up_nobody";
    let Some(instance) = Instance::start(test, "") else { return };
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", instance.daemon_pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let script = "while [ ! -e /output/go ]; do sleep 0.02; done; yes 'a line of output' | head -c 102000000";
    instance.drop_job("much", &format!("command = {script:?}"));
    instance.wait_state("much", "running");
    let before = resident();
    let mut followers: Vec<_> = (0..8)
        .map(|_| {
            let mut follower = Command::new(BINARY);
            follower.arg("--root").arg(instance.root()).args(["logs", "-f", "much"]);
            follower.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    fs::write(instance.run_dir("much", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("much", 1)["state"], "succeeded");
    assert!(instance.ok(&["ps"]).contains("much"));
    assert_eq!(instance.ok(&["logs", "-n", "1", "main-0", "much"]), "a line of output\n");
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for 8 followers of 100 MB");
    for follower in &mut followers {
        follower.kill().unwrap();
        follower.wait().unwrap();
    }
    instance.shutdown();
}

/// A part of a log must not be taken for the whole, by whatever it is read.
#[test]
fn a_log_that_cannot_be_read_on_does_not_end_as_if_it_were_whole() {
    let test = "a_log_that_cannot_be_read_on_does_not_end_as_if_it_were_whole";
    if !has_tools(test, &["curl"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    instance.run_job("said", "command = \"echo all of it\"");
    let address = "http://x/v1/jobs/default/said/logs";
    let curl = |query: &str| {
        let mut curl = Command::new("curl");
        curl.arg("-sS").arg("--unix-socket").arg(instance.root().join("run/trainyard/api.sock"));
        curl.arg(format!("{address}{query}")).output().unwrap()
    };
    assert!(curl("").status.success() && curl("?format=text").status.success());
    // As where its disk fails.
    let index = instance.run_dir("said", 1).join("attempts/1/main-0/.log.index");
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    for query in ["", "?format=text", "?follow=1"] {
        let broken = curl(query);
        assert_eq!(broken.status.code(), Some(18), "{query}: {broken:?}");
    }
    let told = instance.cli(&["logs", "said"]);
    assert!(
        !told.status.success() && String::from_utf8_lossy(&told.stderr).contains("what came is not whole"),
        "{told:?}"
    );
    let script = "import trainyard\ntry:\n    str(trainyard.connect().job('said').logs())\nexcept trainyard.TrainyardError as error:\n    \
        print(error.code)";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-B", "-c", script]).env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/python"));
    python.env("TRAINYARD_ROOT", instance.root());
    assert_eq!(String::from_utf8_lossy(&python.output().unwrap().stdout), "connection_lost\n");
    instance.shutdown();
}
