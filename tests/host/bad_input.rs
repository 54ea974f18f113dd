//! Bad files: each is told in its place, and nobody else notices.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::support::{Instance, text, wait_for};

#[test]
fn every_bad_file_is_told_in_its_place_and_other_jobs_go_on() {
    let Some(instance) = Instance::start("every_bad_file_is_told_in_its_place_and_other_jobs_go_on", "") else {
        return;
    };
    instance.drop_job("steady", "command = \"sleep 1000\"");
    instance.wait_state("steady", "running");
    let garbage = "\u{1}garbage ".repeat(120_000);
    let cases = [
        ("unknown", "comand = \"x\"", "did you mean `command`?"),
        ("syntax", "command = \"x", "syntax.toml:1:"),
        ("garbage", garbage.as_str(), "too large"),
        ("tworoles", "[roles.a]\n[roles.a]\n", "tworoles.toml:2:"),
        ("counts", "[roles.a]\ncount = 2\nmin_succeeded = 3\n", "has only 2 task(s)"),
    ];
    for (name, content, _) in &cases {
        instance.drop_job(name, content);
    }
    for (name, _, expected) in &cases {
        let report = instance.wait_state(name, "invalid");
        assert!(text(&report["reason"]).contains(expected), "{name}: {report}");
        let error = wait_for("the error file", || {
            fs::read_to_string(instance.mount().join("jobs").join(name).join("error")).ok()
        });
        assert!(error.contains(expected), "{error}");
    }
    let long = "x".repeat(65);
    for name in [long.as_str(), "a b", "..x", "-x"] {
        fs::write(instance.jobs_d().join(format!("{name}.toml")), "command = \"true\"").unwrap();
    }
    fs::create_dir(instance.jobs_d().join("dir.toml")).unwrap();
    let open = instance.jobs_d().join(".open.new");
    fs::write(&open, "command = \"true\"").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    fs::rename(&open, instance.jobs_d().join("open.toml")).unwrap();
    assert!(text(&instance.wait_state("dir", "invalid")["reason"]).contains("is a directory"));
    assert!(text(&instance.wait_state("open", "invalid")["reason"]).contains("everybody may write"));
    let strays = wait_for("the strays", || {
        let stderr = instance.cli(&["ps"]).stderr;
        let told = String::from_utf8(stderr).unwrap();
        (told.lines().count() >= 3).then_some(told)
    });
    for word in ["at most 64 characters", "not ' '", "this one with '-'"] {
        assert!(strays.contains(word), "{word}: {strays}");
    }
    assert_eq!(instance.state("steady"), "running");
    // Nothing will come of it until its file is another one: that is told, and not waited for.
    for (words, code, told) in [
        (&["logs", "-f", "counts"][..], 1, "counts is invalid, so there is nothing to follow"),
        (&["stop", "counts"], 1, "has no valid file"),
        (&["extend", "counts", "1h"], 1, "has no valid file"),
        (&["extend", "counts", "0s"], 2, "by more than nothing"),
    ] {
        let refused = instance.cli(words);
        let why = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(code) && why.contains(told), "{words:?}: {why}");
    }
    assert_eq!(instance.cli(&["logs", "-f", "--exit-code", "counts"]).status.code(), Some(5));
    assert!(instance.ok(&["rm", "--file", "counts"]).starts_with("counts: "));
    assert!(!instance.jobs_d().join("counts.toml").exists() && instance.report("counts").is_none());
    // Mending a file clears it.
    instance.drop_job("unknown", "command = \"true\"");
    assert_eq!(instance.wait_end("unknown", 1)["state"], "succeeded");
    wait_for("the error to go", || (!instance.mount().join("jobs/unknown/error").exists()).then_some(()));
}

#[test]
fn the_last_good_version_stays_in_force() {
    let Some(instance) = Instance::start("the_last_good_version_stays_in_force", "") else { return };
    instance.drop_job("good", "command = \"sleep 1000\"");
    instance.wait_state("good", "running");
    instance.drop_job("good", "command = ");
    let error = wait_for("the error", || fs::read_to_string(instance.mount().join("jobs/good/error")).ok());
    assert!(error.starts_with("good.toml:1:"), "{error}");
    let report = instance.report("good").unwrap();
    assert_eq!((text(&report["state"]), report["run"].as_u64()), ("running".into(), Some(1)));
    assert!(instance.ok(&["ps"]).contains("its file is invalid now"));
    assert!(instance.ok(&["show", "good"]).contains("sleep 1000"));
    let waited = instance.cli(&["wait", "--timeout", "100ms", "good"]);
    let why = String::from_utf8(waited.stderr).unwrap();
    assert!(waited.status.code() == Some(1) && why.contains("and going on: good"), "{why}");
    assert_eq!(instance.ok(&["events", "good", "-n", "1"]).lines().count(), 1);
}

#[test]
fn a_half_written_file_never_runs() {
    use std::io::Write;
    let Some(instance) = Instance::start("a_half_written_file_never_runs", "") else { return };
    let path = instance.jobs_d().join("slow.toml");
    let mut file = fs::File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap();
    // A valid file as it stands, but its writer is not done, however long it takes.
    for number in 0..6 {
        writeln!(file, "env.V{number} = \"{number}\"").unwrap();
        file.flush().unwrap();
        std::thread::park_timeout(std::time::Duration::from_millis(300));
    }
    writeln!(file, "command = \"env | grep -c ^V[0-9]\"").unwrap();
    drop(file);
    let report = instance.wait_end("slow", 1);
    assert_eq!(report["state"], "succeeded");
    assert_eq!(instance.log("slow", "main-0").trim(), "6");
    assert_eq!(instance.report("slow").unwrap()["run"], 1);
    for ignored in [".hidden.toml", "x.toml.swp", "x.toml~", "#x.toml#", "x.toml.dpkg-new"] {
        fs::write(instance.jobs_d().join(ignored), "command = \"true\"").unwrap();
    }
    instance.run_job("after", "command = \"true\"");
    assert_eq!(instance.ok(&["ps"]).lines().count(), 3, "a header and two jobs");
}
