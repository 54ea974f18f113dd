//! A disk that is full: nothing that was decided is lost, nothing is done twice, nothing starts that could not write, and all goes
//! on by itself once there is room.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::api::get;
use super::support::{Instance, can_run, pids_with, text, wait_for};

/// A small disk for a whole instance; it goes when this is dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = ["-t", "tmpfs", "-o", "size=96m,mode=755", "small"];
        assert!(Command::new("mount").args(options).arg(dir.path()).status().unwrap().success());
        Self(dir)
    }

    /// Takes every byte that is left.
    fn fill(&self) -> PathBuf {
        let filler = self.0.path().join("filler");
        fs::write(&filler, vec![0; 128 << 20]).unwrap_err();
        filler
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

const CONFIG: &str = "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"1s\"\nmin_free = \"8MiB\"\n";
/// Ends as it is told, with a code that must arrive.
const ENDS: &str = "command = \"while [ ! -e /output/go ]; do sleep 0.05; done; exit 3\"";

#[test]
fn a_full_disk_ends_no_daemon_loses_no_stop_and_no_exit_status_and_starts_nothing_until_there_is_room() {
    let test = "a_full_disk_ends_no_daemon_loses_no_stop_and_no_exit_status_and_starts_nothing_until_there_is_room";
    if !can_run(test) {
        return;
    }
    let disk = Disk::mount();
    let Some(mut instance) = Instance::prepare_in(test, CONFIG, disk.0.path()) else { return };
    instance.restart_daemon();
    instance.drop_job("ends", ENDS);
    instance.drop_job("stops", "command = [\"sleep\", \"1000.625\"]");
    let went = instance.run_job("old", "command = \"true\"");
    assert_eq!(went["state"], "succeeded", "{went:#}");
    for job in ["ends", "stops"] {
        instance.wait_state(job, "running");
    }
    let go = instance.run_dir("ends", 1).join("output/go");
    let filler = disk.fill();
    // A stop is taken and carried out.
    assert!(instance.ok(&["stop", "stops"]).contains("stopping"));
    wait_for("the command's end", || pids_with("sleep 1000.625").is_empty().then_some(()));
    // A new run waits, and says for what; what runs is told what holds it up.
    instance.ok(&["rerun", "old"]);
    let waits = instance.wait_state("old", "waiting");
    let reason = text(&waits["reason"]);
    assert!(
        reason.starts_with("waits for room: ") && reason.contains("8MiB") && reason.contains("min_free"),
        "{reason}"
    );
    let held_up = text(&instance.report("ends").unwrap()["reason"]);
    assert!(held_up.contains("; no room: ") && held_up.contains("output waits"), "{held_up}");
    let ready = get(&instance, "/readyz");
    assert_eq!((ready.status, &ready.json()["checks"][2]["check"]), (503, &"disk".into()), "{:#}", ready.json());
    let looked = instance.cli(&["doctor", "disk"]);
    assert!(!looked.status.success(), "{looked:?}");
    // An end is kept, also over a daemon that is killed and one that starts while the disk is full.
    fs::write(&go, "").unwrap();
    instance.kill_daemon();
    instance.start_daemon(&[]);
    instance.wait_ready();
    assert_eq!(instance.state("old"), "waiting");
    let ends = instance.report("ends").unwrap();
    let is_over = ["stopping", "failed"].contains(&text(&ends["state"]).as_str()) && ends["tasks"][0]["exit_code"] == 3;
    assert!(is_over || ends["state"] == "running", "{ends:#}");
    fs::remove_file(filler).unwrap();
    assert_eq!(instance.wait_end("ends", 1)["tasks"][0]["exit_code"], 3);
    let stopped = instance.wait_end("stops", 1);
    assert_eq!(stopped["state"], "stopped", "{stopped:#}");
    let again = instance.wait_end("old", 2);
    assert_eq!((again["state"].as_str(), again["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{again:#}");
    assert_published(&instance, "old", 2);
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
}

/// Every event is in the file once.
fn assert_published(instance: &Instance, job: &str, run: u32) {
    let stored = instance.ok(&["events", job]);
    let file = instance.run_dir(job, run).ancestors().nth(2).unwrap().join("events");
    wait_for("the events file", || {
        let told = fs::read_to_string(&file).ok()?;
        (told.lines().count() == stored.lines().count()).then_some(())
    });
    assert_eq!(stored.matches("attempt 1 starts").count(), 2, "{stored}");
}

#[test]
fn where_every_commit_finds_no_room_at_first_all_is_done_once_all_the_same() {
    let test = "where_every_commit_finds_no_room_at_first_all_is_done_once_all_the_same";
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    instance.start_daemon(&[("TRAINYARD_TEST_FAULT", "no-room:1")]);
    instance.wait_ready();
    instance.drop_job("ends", ENDS);
    instance.wait_state("ends", "running");
    // Who asks is told that it is not recorded yet, unless another commit was just being tried again; it is done all the same.
    let asked = instance.cli(&["stop", "ends"]);
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(asked.status.success() || said.contains("the disk of the daemon's state is full"), "{said}");
    let report = instance.wait_end("ends", 1);
    assert_eq!((report["state"].as_str(), report["attempt"].as_u64()), (Some("stopped"), Some(1)), "{report:#}");
    assert_eq!(instance.ok(&["events", "ends"]).matches("attempt 1 starts").count(), 1);
    assert!(Path::new(&instance.run_dir("ends", 1)).exists());
    instance.shutdown();
}
