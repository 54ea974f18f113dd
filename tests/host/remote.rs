//! Stores of other machines: what is copied in, what is copied out, who may, and what happens when they fail.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::store::{Fault, SECRET_KEY, Store, Wrong, write_secret};
use super::support::{ChildGuard, Instance, has_tools, pids_with, text, wait_at_most, wait_for};

/// An instance whose pool `lab` is a store in `dir`.
fn start(test: &str, dir: &std::path::Path, more: &str) -> Option<(Instance, Store)> {
    if !has_tools(test, &["ip"]) {
        return None;
    }
    let mut instance = Instance::prepare(test, "")?;
    // The namespace comes with the first daemon; the pool's address after it.
    instance.start_daemon(&[]);
    instance.wait_ready();
    let store = Store::start(dir, instance.network_holder());
    instance.kill_daemon();
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}\n{}", store.pool(instance.root(), more))).unwrap();
    instance.restart_daemon();
    Some((instance, store))
}

/// Fetched objects of the store.
fn fetched(store: &Store) -> Vec<String> {
    store.requests().into_iter().filter(|request| request.starts_with("GET /train/")).collect()
}

/// The job's output has got where it is to go.
fn wait_sent(instance: &Instance, job: &str) -> String {
    wait_told(instance, job, |report| report["sending"].is_null());
    let events = instance.ok(&["events", job]);
    events.lines().rfind(|line| line.contains(" is in s3:lab")).unwrap_or_else(|| panic!("{events}")).to_owned()
}

/// Waits until the job's report is as it should be.
fn wait_told(instance: &Instance, job: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
    let deadline = std::time::Instant::now() + super::support::PATIENCE;
    while !instance.report(job).is_some_and(|report| is_so(&report)) {
        let why = || format!("{:#}\n{}", instance.report(job).unwrap_or_default(), instance.ok(&["events", job]));
        assert!(std::time::Instant::now() < deadline, "{}", why());
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

/// Drops a job of somebody who is not root.
fn drop_job_as(instance: &Instance, uid: u32, job: &str, text: &str) {
    let target = instance.jobs_d().join(format!("{job}.toml"));
    let aside = target.with_file_name(format!(".{job}.new"));
    fs::write(&aside, text).unwrap();
    std::os::unix::fs::chown(&aside, Some(uid), Some(uid)).unwrap();
    fs::rename(aside, target).unwrap();
}

#[test]
fn what_lies_in_a_store_is_copied_in_and_the_output_copied_back() {
    let test = "what_lies_in_a_store_is_copied_in_and_the_output_copied_back";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "workspaces = [\"default\"]") else { return };
    let large: Vec<u8> = (0..20_000_000u32).map(|at| (at % 251) as u8).collect();
    for (key, content) in
        [("sets/a/1.txt", &b"one\n"[..]), ("sets/a/b c/2.txt", b"two\n"), ("sets/empty", b""), ("sets/large", &large)]
    {
        store.put(key, content);
    }
    store.put("other", "not this");
    let job = "mounts = [{ source = \"s3:lab/sets\", target = \"/input\" }, { source = \"s3:lab/out/{job}/{run}\", target = \"/output\" }]\n\
               command = \"cd /input && find . -type f | sort > /output/list && sha256sum large > /output/sum && cat a/1.txt 'a/b c/2.txt'; \
               mkdir -p /output/d; head -c 17000000 large > '/output/d/a b'; ln -s list /output/link; : > /output/none; mkdir -m 0 /output/closed; touch /input/x; id -u\"";
    drop_job_as(&instance, 4321, "train", job);
    let report = instance.wait_end("train", 1);
    assert_eq!(report["state"], "succeeded", "{report:#} {}", instance.ok(&["events", "train"]));
    let log = instance.log("train", "main-0");
    // What the two streams say at almost the same time comes in either order.
    let is_root = log.lines().any(|line| line == "0");
    assert!(log.starts_with("one\ntwo\n") && log.contains("Read-only file system") && is_root, "{log}");
    let said = wait_sent(&instance, "train");
    assert!(
        said.contains("4 of 4 files")
            && said.contains("closed (Permission denied")
            && said.contains("link (it is a link)"),
        "{said}"
    );
    assert_eq!(store.get("out/train/1/list").unwrap(), b"./a/1.txt\n./a/b c/2.txt\n./empty\n./large\n");
    assert_eq!(store.get("out/train/1/d/a b").unwrap(), large[..17_000_000]);
    assert_eq!(store.get("out/train/1/none").unwrap(), b"");
    let own = instance.run_dir("train", 1).join("output");
    assert_eq!(fs::metadata(own.join("list")).unwrap().uid(), 4321, "the output itself stays");
    // The keys are where they were and nowhere else.
    let found = std::process::Command::new("grep").args(["-rlF", SECRET_KEY]).arg(instance.root()).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.lines().map(|line| line.rsplit('/').next().unwrap()).collect::<Vec<_>>(), ["lab-keys"]);
    assert!(!instance.journal().contains(SECRET_KEY));
    // What has not changed is neither fetched nor sent again, whoever asks.
    store.requests();
    instance.ok(&["rerun", "train"]);
    assert_eq!(instance.wait_end("train", 2)["state"], "succeeded");
    let asked = fetched(&store);
    assert!(!asked.iter().any(|request| request.contains("/train/sets/")), "{asked:?}");
    store.put("sets/a/1.txt", "one more\n");
    instance.ok(&["rerun", "train"]);
    assert_eq!(instance.wait_end("train", 3)["state"], "succeeded");
    let asked: Vec<String> = fetched(&store).into_iter().filter(|request| request.contains("/train/sets/")).collect();
    assert_eq!(asked, ["GET /train/sets/a/1.txt"]);
    assert!(instance.ok(&["logs", "--run", "3", "train"]).contains("one more"));
    wait_for("the last output", || store.get("out/train/3/sum"));
    // A bucket in the host's name.
    store.requests();
    let named = "mounts = [{ source = \"s3:named/sets/a\", target = \"/input\" }, { source = \"s3:named/named\", target = \"/output\" }]\n\
                 command = \"cat /input/1.txt | tee /output/copy\"";
    let report = instance.run_job("named", named);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(wait_for("the output", || store.get("named/copy")), b"one more\n");
    // Of what has no bucket in its path.
    let asked = store.requests();
    for request in ["GET /sets/a/1.txt", "PUT /named/copy"] {
        assert!(asked.iter().any(|one| one == request), "{request}: {asked:?}");
    }
    // A place that is one object, and one that is nothing.
    let one = "mounts = [{ source = \"s3:lab/sets/a/1.txt\", target = \"/one\" }]\ncommand = \"cat /one/1.txt\"";
    assert_eq!(instance.run_job("one", one)["state"], "succeeded");
    let none =
        instance.run_job("none", "mounts = [{ source = \"s3:lab/nothing\", target = \"/x\" }]\ncommand = \"true\"");
    assert!(text(&none["reason"]).contains("s3:lab/nothing"), "{none:#}");
    instance.shutdown();
}

#[test]
fn a_store_that_fails_is_asked_again_and_what_has_come_is_kept() {
    let test = "a_store_that_fails_is_asked_again_and_what_has_come_is_kept";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "") else { return };
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
    store.put("sets/large", &large);
    let get = |what| Fault { method: "GET", path: "/sets/large", what };
    // The list is refused, then the file breaks off, is refused, comes short, and is not what it should be.
    let list = Fault { method: "GET", path: "/train", what: Wrong::Status(500) };
    let cuts = [get(Wrong::Cut(1_000_000)), get(Wrong::Status(500)), get(Wrong::Short(500_000)), get(Wrong::Garbled)];
    store.fail([list].into_iter().chain(cuts));
    let job = "mounts = [{ source = \"s3:lab/sets\", target = \"/input\" }]\ncommand = \"sha256sum /input/large\"";
    let report = instance.run_job("train", job);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(store.faults_left(), 0);
    let sum = {
        use sha2::Digest;
        sha2::Sha256::digest(&large).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert!(instance.log("train", "main-0").starts_with(&sum));
    // A daemon that is killed in the midst of a copy goes on where it was.
    let huge: Vec<u8> = (0..40_000_000u32).map(|at| (at % 239) as u8).collect();
    store.put("more/first", "first");
    store.put("more/huge", &huge);
    let hang = Fault { method: "GET", path: "/more/huge", what: Wrong::Cut(9_000_000) };
    store.fail([hang, Fault { method: "GET", path: "/more/huge", what: Wrong::Never }]);
    let job =
        "mounts = [{ source = \"s3:lab/more\", target = \"/input\" }]\ncommand = \"sha256sum /input/huge; ls /input\"";
    drop_job_as(&instance, 4321, "resumed", job);
    let mut instance = instance;
    wait_for("the copy to hang", || (store.faults_left() == 0).then_some(()));
    let told = wait_for("its progress", || {
        let report = instance.report("resumed")?;
        text(&report["reason"]).contains("of 2 files").then_some(report)
    });
    assert!(text(&told["reason"]).contains("copies in s3:lab/more"), "{told:#}");
    // It runs as the owner, who cannot look into it.
    let carriers = pids_with("carry --directory-fd");
    let own: Vec<_> = carriers.iter().filter(|(pid, _)| uid_of(*pid) == Some(4321)).collect();
    assert!(!own.is_empty(), "{carriers:?}");
    instance.kill_daemon();
    let gone = || own.iter().all(|(pid, _)| !std::path::Path::new(&format!("/proc/{pid}")).exists());
    wait_for("the process that copies to end with its daemon", || gone().then_some(()));
    store.requests();
    instance.restart_daemon();
    assert_eq!(instance.wait_end("resumed", 1)["state"], "succeeded");
    let asked: Vec<String> = fetched(&store).into_iter().filter(|request| request.contains("/more/")).collect();
    assert!(!asked.contains(&"GET /train/more/first".to_owned()), "{asked:?}");
    // What the store has answered is told as long as it is asked again.
    let list = |what| Fault { method: "GET", path: "/train", what };
    store.fail([list(Wrong::Status(500)), list(Wrong::Never)]);
    instance.drop_job("asked", job);
    let told = wait_for("the store's refusal", || {
        let reason = text(&instance.report("asked")?["reason"]);
        reason.contains("the store is asked again").then_some(reason)
    });
    assert!(told.contains("copies in s3:lab/more") && told.contains("status 500"), "{told}");
    instance.ok(&["stop", "--now", "asked"]);
    assert_eq!(instance.wait_end("asked", 1)["state"], "stopped");
    instance.shutdown();
}

/// Real user of a process.
fn uid_of(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Threads of the daemon with this name.
fn threads(instance: &Instance, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", instance.daemon_pid())).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|other| other.trim_end() == name).count()
}

#[test]
fn a_stopped_run_ends_the_copy_that_comes_in_for_it() {
    let test = "a_stopped_run_ends_the_copy_that_comes_in_for_it";
    // Far shorter than what a store may be silent for.
    const AT_ONCE: std::time::Duration = std::time::Duration::from_secs(15);
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "") else { return };
    store.put("sets/huge", vec![7; 5_000_000]);
    let cut = Fault { method: "GET", path: "/sets/huge", what: Wrong::Cut(1_000_000) };
    store.fail([cut, Fault { method: "GET", path: "/sets/huge", what: Wrong::Never }]);
    let job = "mounts = [{ source = \"s3:lab/sets\", target = \"/input\" }]\ncommand = \"wc -c /input/huge\"";
    drop_job_as(&instance, 4322, "first", job);
    wait_for("the copy to hang", || (store.faults_left() == 0).then_some(()));
    let copies = || pids_with("carry --directory-fd").into_iter().filter(|(pid, _)| uid_of(*pid) == Some(4322)).count();
    assert_eq!(copies(), 1);
    // Who waits for the same copy is let go at once as well.
    drop_job_as(&instance, 4322, "second", job);
    wait_told(&instance, "second", |report| text(&report["reason"]).contains("waits for another copy"));
    instance.ok(&["stop", "second"]);
    assert_eq!(instance.wait_end("second", 1)["state"], "stopped");
    wait_at_most(AT_ONCE, "the wait to end", || (threads(&instance, "prepare") == 1).then_some(()));
    assert_eq!(copies(), 1, "it is the other run's");
    instance.ok(&["stop", "first"]);
    assert_eq!(instance.wait_end("first", 1)["state"], "stopped");
    wait_at_most(AT_ONCE, "the copy to end", || (copies() + threads(&instance, "prepare") == 0).then_some(()));
    assert!(!instance.run_dir("first", 1).with_file_name(".1.remote").exists(), "a run has a whole copy or none");
    // The next run gets a whole one.
    instance.ok(&["rerun", "first"]);
    assert_eq!(instance.wait_end("first", 2)["state"], "succeeded");
    assert_eq!(instance.log("first", "main-0"), "5000000 /input/huge\n");
    instance.shutdown();
}

#[test]
fn output_that_cannot_be_sent_stays_is_told_and_goes_later() {
    let test = "output_that_cannot_be_sent_stays_is_told_and_goes_later";
    let dir = tempfile::tempdir().unwrap();
    let Some((mut instance, store)) = start(test, dir.path(), "") else { return };
    store.set_down(true);
    let job =
        "mounts = [{ source = \"s3:lab/out\", target = \"/output\" }]\ncommand = \"echo result > /output/result\"";
    assert_eq!(instance.run_job("train", job)["state"], "succeeded", "a store that is down fails no run");
    let report = wait_for("the failure to be told", || {
        let report = instance.report("train")?;
        text(&report["sending"][0]).contains("could not be copied").then_some(report)
    });
    assert!(text(&report["sending"][0]).contains("trainyard send"), "{report:#}");
    let status = instance.ok(&["status", "train"]);
    assert!(status.contains("sending") && status.contains("s3:lab/out"), "{status}");
    assert!(instance.ok(&["events", "train"]).contains("it stays in output/"));
    // Its record does not go while it is on its way.
    fs::remove_file(instance.jobs_d().join("train.toml")).unwrap();
    let refused = wait_for("the file's end to be seen", || {
        let output = instance.cli(&["rm", "train"]);
        let told = String::from_utf8(output.stderr).unwrap();
        (!told.contains("still in jobs.d")).then_some(told)
    });
    assert!(refused.contains("trainyard send --drop train"), "{refused}");
    instance.kill_daemon();
    store.set_down(false);
    instance.restart_daemon();
    wait_sent(&instance, "train");
    assert_eq!(store.get("out/result").unwrap(), b"result\n");
    let done = instance.cli(&["send", "train"]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("or all of it is there"));
    instance.ok(&["rm", "train"]);
    // Or it is given up.
    store.set_down(true);
    instance.drop_job("lost", &job.replace("s3:lab/out", "s3:lab/lost"));
    instance.wait_end("lost", 1);
    wait_told(&instance, "lost", |report| text(&report["sending"][0]).contains("could not"));
    instance.ok(&["send", "--drop", "lost"]);
    wait_told(&instance, "lost", |report| report["sending"].is_null());
    assert!(instance.ok(&["events", "lost"]).contains("is no longer copied"));
    assert!(instance.run_dir("lost", 1).join("output/result").exists() && store.get("lost/result").is_none());
    assert_eq!(fs::read_dir(instance.root().join("var/lib/trainyard/outbox")).unwrap().count(), 0);
    instance.shutdown();
}

#[test]
fn runs_go_to_one_place_in_their_order_and_all_that_wait_have_one_thread() {
    let test = "runs_go_to_one_place_in_their_order_and_all_that_wait_have_one_thread";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "") else { return };
    store.set_down(true);
    let job = |place: &str| {
        format!(
            "mounts = [{{ source = \"s3:lab/{place}\", target = \"/output\" }}]\n\
             command = \"echo $TRAINYARD_RUN | tee /output/result > /output/of-$TRAINYARD_RUN\""
        )
    };
    let names = ["train", "a", "b", "c"];
    names.iter().for_each(|name| instance.drop_job(name, &job(&format!("{name}/out"))));
    for name in names {
        instance.wait_end(name, 1);
        wait_told(&instance, name, |report| text(&report["sending"][0]).contains("could not be copied"));
    }
    wait_for("all copies to have ended", || (threads(&instance, "send") == 0).then_some(()));
    assert_eq!(threads(&instance, "outbox"), 1);
    // The next run's would go at once, and the first one's after its pause.
    store.set_down(false);
    instance.drop_job("train", &job("train"));
    instance.wait_end("train", 2);
    wait_told(&instance, "train", |report| report["sending"].is_null());
    let put: Vec<String> = store.requests().into_iter().filter(|request| request.starts_with("PUT")).collect();
    let at = |path: &str| put.iter().rposition(|request| request == &format!("PUT /train/train/{path}"));
    assert!(at("out/of-1").is_some() && at("out/of-1") < at("of-2"), "{put:?}");
    instance.ok(&["rerun", "train"]);
    instance.wait_end("train", 3);
    wait_told(&instance, "train", |report| report["sending"].is_null());
    assert_eq!(store.get("train/result").unwrap(), b"3\n");
    instance.shutdown();
}

#[test]
fn output_is_copied_while_a_job_runs_and_a_stopped_one_loses_nothing() {
    let test = "output_is_copied_while_a_job_runs_and_a_stopped_one_loses_nothing";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "") else { return };
    let job = "mounts = [{ source = \"s3:lab/out\", target = \"/output\", sync = \"10s\" }]\n\
               command = \"echo 1 > /output/step; trap 'echo last > /output/last; exit 1' TERM; while :; do sleep 0.1; done\"";
    instance.drop_job("train", job);
    instance.wait_state("train", "running");
    wait_for("the first step", || store.get("out/step"));
    wait_for("the sign of it", || {
        text(&instance.report("train")?["sending"][0]).contains("is copied to").then_some(())
    });
    store.requests();
    // Before its time when somebody asks; what is there already is not sent again.
    fs::write(instance.run_dir("train", 1).join("output/more"), "more").unwrap();
    instance.ok(&["send", "train"]);
    wait_for("what was added", || store.get("out/more"));
    let put: Vec<String> = store.requests().into_iter().filter(|request| request.starts_with("PUT")).collect();
    assert_eq!(put, ["PUT /train/out/more"]);
    instance.ok(&["stop", "train"]);
    wait_sent(&instance, "train");
    assert_eq!(store.get("out/last").unwrap(), b"last\n");
    instance.shutdown();
}

#[test]
fn a_run_that_is_stopped_between_its_attempts_has_its_output_sent_all_the_same() {
    let test = "a_run_that_is_stopped_between_its_attempts_has_its_output_sent_all_the_same";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "") else { return };
    let job = "mounts = [{ source = \"s3:lab/out\", target = \"/output\" }]\nretries = 1\nretry.backoff = \"1h\"\n\
               command = \"echo half > /output/half; exit 1\"";
    instance.drop_job("train", job);
    wait_told(&instance, "train", |report| report["state"] == "waiting" && report["attempt"] == 1);
    instance.ok(&["stop", "train"]);
    instance.wait_end("train", 1);
    wait_sent(&instance, "train");
    assert_eq!(store.get("out/half").unwrap(), b"half\n");
    instance.shutdown();
}

#[test]
fn what_is_given_up_while_a_run_goes_on_stays_so_for_all_its_attempts() {
    let test = "what_is_given_up_while_a_run_goes_on_stays_so_for_all_its_attempts";
    let dir = tempfile::tempdir().unwrap();
    let Some((mut instance, store)) = start(test, dir.path(), "") else { return };
    let script = "if [ -e /output/half ]; then echo rest > /output/rest; exit 0; fi; echo half > /output/half; \
                  until [ -e /output/go ]; do sleep 0.02; done; exit 1";
    let job = |place: &str| {
        format!(
            "mounts = [{{ source = \"s3:lab/{place}\", target = \"/output\" }}]\nretries = 1\nretry.backoff = \"1s\"\n\
             command = \"{script}\""
        )
    };
    for name in ["dropped", "restarted", "wanted"] {
        instance.drop_job(name, &job(name));
        let half = instance.run_dir(name, 1).join("output/half");
        wait_for("the first attempt", || half.exists().then_some(()));
        instance.ok(&["send", "--drop", name]);
        wait_for("the word on it", || instance.ok(&["events", name]).contains("is no longer copied").then_some(()));
        if name == "restarted" {
            instance.kill_daemon();
            instance.restart_daemon();
        }
        if name == "wanted" {
            instance.ok(&["send", name]);
        }
        fs::write(half.with_file_name("go"), "").unwrap();
        assert_eq!(instance.wait_end(name, 1)["state"], "succeeded");
        wait_told(&instance, name, |report| report["sending"].is_null());
        assert!(half.with_file_name("rest").exists(), "there were two attempts");
        let events = instance.ok(&["events", name]);
        assert_eq!(events.matches("is no longer copied").count(), 1, "{events}");
        assert_eq!(store.get(&format!("{name}/rest")).is_some(), name == "wanted", "{events}");
    }
    assert_eq!(fs::read_dir(instance.root().join("var/lib/trainyard/outbox")).unwrap().count(), 0);
    instance.shutdown();
}

#[test]
fn who_may_not_use_a_store_is_refused_before_the_start() {
    let test = "who_may_not_use_a_store_is_refused_before_the_start";
    let dir = tempfile::tempdir().unwrap();
    let more = "workspaces = [\"vision\"]\n[pools.open]\nkind = \"http\"\nendpoint = \"http://127.0.0.1:1\"\n";
    let Some((instance, store)) = start(test, dir.path(), more) else { return };
    store.put("sets/x", "x");
    let mount = |source: &str, target: &str| {
        format!("mounts = [{{ source = \"{source}\", target = \"{target}\" }}]\ncommand = \"true\"")
    };
    for (name, job, word) in [
        ("private", mount("s3:lab/sets", "/x"), "workspace default may not use it"),
        (
            "unknown",
            mount("s3:nowhere/sets", "/x"),
            "knows no pool nowhere (workspace default may use: s3:named, http:open)",
        ),
        ("kind", mount("s3:open/sets", "/x"), "is of kind http; write http:open/"),
        ("out", mount("http:open/sets", "/output"), "nothing may be copied to the pool open"),
    ] {
        let report = instance.run_job(name, &job);
        assert_eq!(report["state"], "failed");
        assert!(text(&report["reason"]).contains(word), "{report:#}");
    }
    assert_eq!(store.requests(), Vec::<String>::new());
    fs::create_dir(instance.jobs_d().join("vision")).unwrap();
    assert_eq!(instance.run_job("vision/may", &mount("s3:lab/sets", "/x"))["state"], "succeeded");
    // Keys that do not open, and none that can be read: told to the owner, without what they are.
    let keys = instance.root().join("etc/trainyard/secrets/lab-keys");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
    let open = instance.run_job("vision/open", &mount("s3:lab/sets", "/y"));
    assert!(text(&open["reason"]).contains("others than root may read it"), "{open:#}");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&keys, "access_key = \"AKIDLAB\"\nsecret_key = \"wrong-hush\"\n").unwrap();
    let refused = instance.run_job("vision/wrong", &mount("s3:lab/sets", "/y"));
    assert!(text(&refused["reason"]).contains("the store does not let us"), "{refused:#}");
    fs::write(&keys, "wrong-hush").unwrap();
    let broken = instance.run_job("vision/broken", &mount("s3:lab/sets", "/y"));
    let reason = text(&broken["reason"]);
    assert!(reason.contains("access_key") && !reason.contains("hush"), "{reason}");
    instance.shutdown();
}

const SSHD_PORT: u16 = 2222;

/// A server of SFTP with root's rights in the network namespace of `holder`, whose files it has by their own paths; with its host's key.
fn sshd(dir: &std::path::Path, holder: u32) -> (ChildGuard, String) {
    let key = |name: &str| {
        let path = dir.join(name).display().to_string();
        let mut made = std::process::Command::new("ssh-keygen");
        made.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", &path]);
        assert!(made.status().unwrap().success());
        path
    };
    let (host, client) = (key("host"), key("client"));
    let config = format!(
        "ListenAddress 127.0.0.1:{}\nHostKey {host}\nAuthorizedKeysFile {client}.pub\nPermitRootLogin yes\n\
         StrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n",
        SSHD_PORT
    );
    fs::write(dir.join("sshd"), config).unwrap();
    fs::create_dir_all("/run/sshd").unwrap();
    super::support::images::in_network(holder, "ip", &["link", "set", "lo", "up"]);
    let child = std::process::Command::new("nsenter")
        .arg(format!("--net=/proc/{holder}/ns/net"))
        .args(["/usr/sbin/sshd", "-D", "-e", "-f"])
        .arg(dir.join("sshd"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let public = fs::read_to_string(dir.join("host.pub")).unwrap();
    (ChildGuard(child), public.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

#[test]
fn sftp_is_spoken_with_the_host_that_the_pool_names_and_leaves_no_process() {
    let test = "sftp_is_spoken_with_the_host_that_the_pool_names_and_leaves_no_process";
    if !has_tools(test, &["sshd", "ssh", "ssh-keygen", "ip"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(mut instance) = Instance::start(test, "") else { return };
    let (_server, key) = sshd(dir.path(), instance.network_holder());
    let place = dir.path().join("files");
    fs::create_dir_all(place.join("sets/a")).unwrap();
    fs::write(place.join("sets/a/one"), "one\n").unwrap();
    instance.kill_daemon();
    let secrets = instance.root().join("etc/trainyard/secrets");
    fs::create_dir_all(&secrets).unwrap();
    write_secret(&secrets.join("keys"), &format!("user = \"root\"\nkey_file = \"{}/client\"\n", dir.path().display()));
    let other = key.replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAJ");
    let pool = |name: &str, key: &str| {
        let (port, root) = (SSHD_PORT, place.display());
        format!(
            "[pools.{name}]\nkind = \"sftp\"\nendpoint = \"ssh://127.0.0.1:{port}\"\nhost_key = \"{key}\"\nsecret = \"keys\"\nroot = \"{root}\"\n"
        )
    };
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}\n{}{}", pool("lab", &key), pool("imposter", &other))).unwrap();
    instance.restart_daemon();
    let job = "mounts = [{ source = \"sftp:lab/sets\", target = \"/input\" }, { source = \"sftp:lab/out/{run}\", target = \"/output\" }]\n\
               command = \"cat /input/a/one; umask 077; mkdir /output/d; echo result > /output/d/result; : > /output/none\"";
    drop_job_as(&instance, 4321, "train", job);
    let report = instance.wait_end("train", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("train", "main-0"), "one\n");
    wait_told(&instance, "train", |report| report["sending"].is_null());
    assert_eq!(
        fs::read_to_string(place.join("out/1/d/result")).unwrap(),
        "result\n",
        "{}",
        instance.ok(&["events", "train"])
    );
    assert_eq!(fs::read(place.join("out/1/none")).unwrap(), b"");
    let refused = instance
        .run_job("imposter", "mounts = [{ source = \"sftp:imposter/sets\", target = \"/input\" }]\ncommand = \"true\"");
    assert_eq!(refused["state"], "failed");
    wait_for("the end of every ssh", || {
        let left = pids_with("ssh://").into_iter().chain(pids_with("/.ssh-connection"));
        (left.count() == 0).then_some(())
    });
    instance.shutdown();
}

const WEB_STORE_PORT: u16 = 8020;

/// A server in Python in the network namespace of `holder`.
fn web_store(script: &str, place: &std::path::Path, holder: u32) -> ChildGuard {
    super::support::images::in_network(holder, "ip", &["link", "set", "lo", "up"]);
    let mut command = std::process::Command::new("nsenter");
    command.arg(format!("--net=/proc/{holder}/ns/net"));
    command.args(["/usr/bin/python3", "-c", script, &WEB_STORE_PORT.to_string()]).arg(place);
    ChildGuard::ready(&mut command, "ready")
}

#[test]
fn hdfs_and_plain_servers_of_files_are_stores_as_well() {
    let test = "hdfs_and_plain_servers_of_files_are_stores_as_well";
    if !has_tools(test, &["ip", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(mut instance) = Instance::start(test, "") else { return };
    let _server = web_store(include_str!("web_store.py"), dir.path(), instance.network_holder());
    instance.kill_daemon();
    let large: Vec<u8> = (0..20_000_000u32).map(|at| (at % 249) as u8).collect();
    fs::create_dir_all(dir.path().join("lab/sets/a b")).unwrap();
    fs::write(dir.path().join("lab/sets/a b/one"), "one\n").unwrap();
    fs::write(dir.path().join("lab/sets/large"), &large).unwrap();
    let secrets = instance.root().join("etc/trainyard/secrets");
    fs::create_dir_all(&secrets).unwrap();
    write_secret(&secrets.join("keys"), "user = \"ada\"\n");
    let endpoint = format!("endpoint = \"http://127.0.0.1:{}\"\nroot = \"lab\"\n", WEB_STORE_PORT);
    let hdfs = format!("[pools.lab]\nkind = \"webhdfs\"\nsecret = \"keys\"\n{endpoint}");
    let gateway = hdfs.replace("pools.lab", "pools.gate").replace("root = \"lab\"", "root = \"gateway\"");
    let web = format!("[pools.web]\nkind = \"http\"\n{endpoint}");
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}\n{hdfs}{gateway}{web}")).unwrap();
    instance.restart_daemon();
    let job = "mounts = [{ source = \"webhdfs:lab/sets\", target = \"/input\" }, { source = \"http:web/sets/large\", target = \"/web\" }, \
               { source = \"webhdfs:lab/out\", target = \"/output\" }]\n\
               command = \"cat '/input/a b/one'; cmp /input/large /web/large && cp /web/large /output/; : > /output/none\"";
    drop_job_as(&instance, 4321, "train", job);
    let report = instance.wait_end("train", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("train", "main-0"), "one\n");
    wait_told(&instance, "train", |report| report["sending"].is_null());
    let sent = fs::read(dir.path().join("lab/out/large"));
    assert!(sent.is_ok_and(|sent| sent == large), "{}", instance.ok(&["events", "train"]));
    assert_eq!(fs::read(dir.path().join("lab/out/none")).unwrap(), b"");
    // What is replaced is there until the new one is whole: in one step, or, by a gateway, removed right before.
    let job = |pool: &str, content: &str| {
        format!(
            "mounts = [{{ source = \"webhdfs:{pool}/again\", target = \"/output\" }}]\n\
             command = \"head -c 9000000 /dev/zero | tr '\\\\0' {content} > '/output/a b'\""
        )
    };
    for (pool, root, wanted) in
        [("lab", "lab", &["CREATE", "RENAME"][..]), ("gate", "gateway", &["CREATE", "RENAME", "DELETE", "RENAME"])]
    {
        for (run, content) in [(1, "x"), (2, "y")] {
            fs::write(dir.path().join("requests"), "").unwrap();
            instance.drop_job(pool, &job(pool, content));
            assert_eq!(instance.wait_end(pool, run)["state"], "succeeded");
            wait_told(&instance, pool, |report| report["sending"].is_null());
        }
        let place = dir.path().join(root).join("again");
        let (sent, events) = (fs::read(place.join("a b")).unwrap(), instance.ok(&["events", pool]));
        assert!(sent.len() == 9_000_000 && sent.iter().all(|byte| *byte == b'y'), "{events}");
        assert_eq!(fs::read_dir(place).unwrap().count(), 1, "nothing of it stays beside");
        let requests = fs::read_to_string(dir.path().join("requests")).unwrap();
        let of_place = requests.lines().filter(|line| !line.ends_with("/a b") || line.starts_with("DELETE"));
        let mut operations: Vec<&str> = of_place.filter_map(|line| line.split(' ').next()).collect();
        operations.retain(|operation| !["APPEND", "MKDIRS"].contains(operation));
        // What an earlier try may have left beside it goes first.
        assert_eq!(operations.first(), Some(&"DELETE"), "{requests}");
        assert_eq!(operations[1..], *wanted, "{requests}");
        assert!(
            !requests.contains("APPEND /lab/again/a b") && !requests.contains("CREATE /lab/again/a b"),
            "{requests}"
        );
    }
    // What has not come whole takes no place.
    fs::write(dir.path().join("cut"), "").unwrap();
    instance.drop_job("lab", &job("lab", "z"));
    assert_eq!(instance.wait_end("lab", 3)["state"], "succeeded");
    wait_told(&instance, "lab", |report| text(&report["sending"][0]).contains("has 8999999 of its 9000000 bytes"));
    let there = || fs::read(dir.path().join("lab/again/a b")).unwrap();
    assert!(there().iter().all(|byte| *byte == b'y'), "what was there stays");
    wait_told(&instance, "lab", |report| report["sending"].is_null());
    assert!(there().len() == 9_000_000 && there().iter().all(|byte| *byte == b'z'));
    instance.shutdown();
}

#[test]
fn oss_is_signed_as_its_documentation_says_listed_by_pages_and_sent_in_parts() {
    let test = "oss_is_signed_as_its_documentation_says_listed_by_pages_and_sent_in_parts";
    if !has_tools(test, &["ip", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(mut instance) = Instance::start(test, "") else { return };
    let _server = web_store(include_str!("oss_store.py"), dir.path(), instance.network_holder());
    instance.kill_daemon();
    let large: Vec<u8> = (0..20_000_000u32).map(|at| (at % 247) as u8).collect();
    let bucket = dir.path().join("train");
    fs::create_dir_all(bucket.join("lab/sets/a b")).unwrap();
    for number in 0..10 {
        fs::write(bucket.join(format!("lab/sets/a b/{number}+ü")), format!("{number}\n")).unwrap();
    }
    fs::write(bucket.join("lab/sets/large"), &large).unwrap();
    let secrets = instance.root().join("etc/trainyard/secrets");
    let secret = "OtxrzxIsfpFjA7SwPzILwy8Bw21TLhquhboDYROV";
    write_secret(&secrets.join("keys"), &format!("access_key = \"AKIDLAB\"\nsecret_key = \"{secret}\"\n"));
    write_secret(&secrets.join("wrong"), "access_key = \"AKIDLAB\"\nsecret_key = \"another\"\n");
    let pool = |name: &str| {
        let port = WEB_STORE_PORT;
        format!(
            "[pools.{name}]\nkind = \"oss\"\nendpoint = \"http://oss-cn-test.example\"\nbucket = \"train\"\nroot = \"lab\"\n\
             proxy = \"http://127.0.0.1:{port}\"\nsecret = \"{name}\"\n"
        )
    };
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}\n{}{}", pool("keys"), pool("wrong"))).unwrap();
    instance.restart_daemon();
    let job = "mounts = [{ source = \"oss:keys/sets\", target = \"/input\" }, { source = \"oss:keys/out\", target = \"/output\" }]\n\
               command = \"cat /input/a*b/*; cp /input/large '/output/l +ü'; echo small > /output/small; : > /output/none\"";
    drop_job_as(&instance, 4321, "train", job);
    let report = instance.wait_end("train", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("train", "main-0"), (0..10).map(|number| format!("{number}\n")).collect::<String>());
    wait_told(&instance, "train", |report| report["sending"].is_null());
    let sent = |name: &str| fs::read(bucket.join("lab/out").join(name)).ok();
    let events = instance.ok(&["events", "train"]);
    assert!(sent("l +ü").is_some_and(|sent| sent == large), "{events}");
    assert_eq!((sent("small"), sent("none")), (Some(b"small\n".to_vec()), Some(Vec::new())), "{events}");
    let requests = fs::read_to_string(dir.path().join("requests")).unwrap();
    let of = |part: &str| requests.lines().filter(|line| line.contains(part)).count();
    // Eleven files are four pages of three; 20 MB are three parts of 8 MiB.
    assert_eq!((of("continuation-token"), of("partNumber")), (3, 3), "{requests}");
    // Keys that are not right open nothing.
    let wrong = instance
        .run_job("wrong", "mounts = [{ source = \"oss:wrong/sets\", target = \"/input\" }]\ncommand = \"true\"");
    assert!(text(&wrong["reason"]).contains("the store does not let us"), "{wrong:#}");
    instance.shutdown();
}

#[test]
fn jobs_of_a_sweep_do_not_write_over_each_other_in_a_store() {
    let test = "jobs_of_a_sweep_do_not_write_over_each_other_in_a_store";
    let Some(instance) = Instance::start(test, "") else { return };
    let grid = |prefix: &str| {
        format!(
            "command = \"true\"\nmounts = [{{ source = \"s3:lab/{prefix}\", target = \"/output\" }}]\nstate = \"held\"\n\
             [sweep]\nlr = [1, 2]\n"
        )
    };
    let file = instance.root().join("grid.toml");
    fs::write(&file, grid("out")).unwrap();
    let refused = instance.cli(&["check", file.to_str().unwrap()]);
    let told = String::from_utf8(refused.stdout).unwrap() + &String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("put {job} into it"), "{told}");
    instance.drop_job("grid", &grid("out"));
    wait_for("its refusal", || instance.ok(&["ps"]).contains("put {job} into it").then_some(()));
    instance.drop_job("grid", &grid("{job}"));
    wait_for("its jobs", || instance.report("grid~1"));
    instance.shutdown();
}

#[test]
fn code_that_lies_in_a_store_is_the_run_s_snapshot_at_code() {
    let test = "code_that_lies_in_a_store_is_the_run_s_snapshot_at_code";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "workspaces = [\"default\"]") else { return };
    store.put("code/v1/train.sh", "cat lib/words > /model/w; cat lib/words; touch /code/x; pwd\n");
    store.put("code/v1/lib/words", "first\n");
    let job = "code = \"s3:lab/code/v1\"\nretries = 1\ncommand = \"sh train.sh; [ $TRAINYARD_ATTEMPT = 2 ]\"";
    drop_job_as(&instance, 4321, "stored", job);
    // The second attempt has what the first one had, whatever the store has by then.
    let report = instance.wait_end("stored", 1);
    assert_eq!(report["state"], "succeeded", "{report:#} {}", instance.ok(&["events", "stored"]));
    let log = instance.log("stored", "main-0");
    assert!(log.starts_with("first\n") && log.contains("Read-only file system") && log.contains("/code\n"), "{log}");
    let code = instance.run_dir("stored", 1).join("code");
    assert_eq!(fs::read_to_string(code.join("lib/words")).unwrap(), "first\n");
    assert_eq!(fs::metadata(code.join("train.sh")).unwrap().uid(), 4321);
    let state = |run: u32| fs::read_to_string(instance.run_dir("stored", run).join("code.state")).unwrap();
    let model = instance.mount().join("models/stored/1/MODEL.toml");
    let model: toml::Table = fs::read_to_string(model).unwrap().parse().unwrap();
    let told = &model["code"]["code"];
    assert_eq!((told["source"].as_str(), told["state"].as_str()), (Some("s3:lab/code/v1"), Some(state(1).trim())));
    assert!(told["tree"].as_str().unwrap().starts_with("sha256:"), "{told}");
    // The next run has the next state; the first one's snapshot stays as it was.
    store.requests();
    store.put("code/v1/lib/words", "second\n");
    instance.ok(&["rerun", "stored"]);
    assert_eq!(instance.wait_end("stored", 2)["state"], "succeeded");
    assert!(instance.ok(&["logs", "--run", "2", "stored"]).contains("second"));
    let asked = fetched(&store);
    assert!(asked.contains(&"GET /train/code/v1/lib/words".to_owned()), "{asked:?}");
    assert!(!asked.iter().any(|request| request.ends_with("train.sh")), "what has not changed stays: {asked:?}");
    assert_ne!(state(1), state(2));
    assert_eq!(fs::read_to_string(code.join("lib/words")).unwrap(), "first\n");

    // Each role may have code of its own; who may not use the pool, and what is not there, is told by that key.
    store.put("code/eval/run.sh", "echo evaluates\n");
    let roles = "[roles.train]\ncode = \"s3:lab/code/v1\"\ncommand = \"cat lib/words\"\n\
                 [roles.eval]\ncode = \"s3:lab/code/eval\"\ncommand = \"sh run.sh\"";
    let report = instance.run_job("roles", roles);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(
        (instance.log("roles", "train-0"), instance.log("roles", "eval-0")),
        ("second\n".into(), "evaluates\n".into())
    );
    let none = instance.run_job("none", "code = \"s3:lab/nothing\"\ncommand = \"true\"");
    assert!(text(&none["reason"]).contains("code: s3:lab/nothing: the store has nothing"), "{none:#}");
    fs::create_dir_all(instance.jobs_d().join("other")).unwrap();
    let foreign = instance.run_job("other/foreign", "code = \"s3:lab/code/v1\"\ncommand = \"true\"");
    assert!(text(&foreign["reason"]).contains("code: s3:lab/code/v1: workspace other may not use it"), "{foreign:#}");
    instance.shutdown();
}

#[test]
fn a_slow_store_holds_up_no_other_job_and_uploads_that_break_off_come_whole() {
    let test = "a_slow_store_holds_up_no_other_job_and_uploads_that_break_off_come_whole";
    let dir = tempfile::tempdir().unwrap();
    let Some((instance, store)) = start(test, dir.path(), "") else { return };
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 247) as u8).collect();
    store.put("sets/data", &data);
    let slow = Wrong::Slow(std::time::Duration::from_millis(100));
    store.fail([Fault { method: "GET", path: "/sets/data", what: slow }]);
    let job = "mounts = [{ source = \"s3:lab/sets\", target = \"/input\" }, { source = \"s3:lab/out\", target = \"/output\" }]\n\
               command = \"cat /input/data > /output/result\"";
    instance.drop_job("slow", job);
    wait_told(&instance, "slow", |report| text(&report["reason"]).contains("copies in s3:lab/sets"));
    assert_eq!(instance.run_job("other", "command = \"true\"")["state"], "succeeded");
    assert_eq!(instance.state("slow"), "waiting", "its data is still on the way");
    // What it leaves is cut off on its way there, early and late, and refused: each time it is begun again.
    let put = |what| Fault { method: "PUT", path: "/out/result", what };
    store.fail([put(Wrong::CutUpload(1)), put(Wrong::CutUpload(2_500_000)), put(Wrong::Status(500))]);
    assert_eq!(instance.wait_end("slow", 1)["state"], "succeeded");
    wait_sent(&instance, "slow");
    assert_eq!(store.faults_left(), 0);
    assert!(store.get("out/result").unwrap() == data);
    instance.shutdown();
}
