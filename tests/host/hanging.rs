//! What the kernel waits for and nobody answers: a process that it does not let go of, killed or not, and a disk.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use trainyard::doctor::{self, Level};

use super::api::{get, get_at_once};
use super::crash::left_of_attempts;
use super::support::{Instance, has_tools, pids_with, text, wait_for};

/// A file system that never answers. Ends it also when a test fails: nobody else lets go of who waits for it.
struct Silent {
    server: Child,
    place: PathBuf,
    questions: Lines<BufReader<ChildStdout>>,
}

impl Silent {
    /// Over a directory; in the mount namespace of the process `beside`, where there is one.
    fn over(place: &Path, beside: Option<i32>) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", include_str!("silent.py")]).arg(place).args(beside.map(|pid| pid.to_string()));
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut questions = BufReader::new(server.stdout.take().unwrap()).lines();
        assert_eq!(questions.next().unwrap().unwrap(), "mounted");
        Self { server, place: place.to_owned(), questions }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        // That of another namespace goes with it.
        let _ = umount2(&self.place, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_process_that_hangs_in_the_kernel_is_told_and_goes_when_it_can() {
    let test = "a_process_that_hangs_in_the_kernel_is_told_and_goes_when_it_can";
    let Some(instance) = Instance::start(test, "") else { return };
    let script = "until grep -q silent /proc/self/mounts; do sleep 0.02; done; exec cat /tmp/silent/1000.625";
    instance.drop_job("hang", &format!("stop_grace = \"200ms\"\ncommand = {script:?}"));
    instance.wait_state("hang", "running");
    let task = wait_for("its command", || {
        pids_with("1000.625").into_iter().find(|(_, line)| line.starts_with("/bin/sh")).map(|(pid, _)| pid)
    });
    let mut silent = Silent::over(Path::new("/tmp/silent"), Some(task));
    assert!(silent.questions.next().unwrap().unwrap().parse::<u32>().is_ok(), "the command asks, and waits");
    instance.ok(&["stop", "hang"]);
    let stopping = wait_for("the word on what hangs", || {
        instance.report("hang").filter(|report| text(&report["reason"]).contains("hanging in the kernel"))
    });
    assert_eq!(stopping["state"], "stopping", "over is over: not while something of it is there");
    for reason in [text(&stopping["reason"]), text(&stopping["tasks"][0]["reason"])] {
        assert!(reason.contains("stopped by") && reason.contains(&format!("pid {task} (cat)")), "{reason}");
    }
    assert!(!pids_with("1000.625").is_empty(), "it is still there");
    // Its group and its mounts stay while it does, and others are not held up.
    let after = instance.run_job("after", "command = \"echo free\"");
    assert_eq!(after["state"], "succeeded", "{after:#}");
    drop(silent);
    let report = instance.wait_end("hang", 1);
    assert_eq!(report["state"], "stopped", "{report:#}");
    assert_eq!(pids_with("1000.625"), []);
    wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
    instance.shutdown();
}

/// All that there is of the daemon and of the machine is asked and told meanwhile, in the time that is promised.
#[test]
fn a_disk_that_hangs_holds_up_neither_doctor_nor_readyz() {
    let test = "a_disk_that_hangs_holds_up_neither_doctor_nor_readyz";
    if !has_tools(test, &["python3"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    wait_for("readiness", || (get(&instance, "/readyz").status == 200).then_some(()));
    let mut silent = Silent::over(&instance.root().join("var/lib/trainyard/images"), None);
    let (sender, looked) = channel();
    let root = instance.root().to_owned();
    let checks = ["config", "disk", "driver"].map(str::to_owned);
    std::thread::spawn(move || drop(sender.send(doctor::examine(&root, &checks, Duration::from_secs(1)))));
    // Of three checks one takes its second; the machine may be slow.
    let found = looked.recv_timeout(Duration::from_secs(30)).expect("a check that hangs is given up").unwrap();
    let given_up = |finding: &&doctor::Finding| finding.found.starts_with("not known: no answer for 1 s");
    assert_eq!(found.iter().filter(given_up).map(|finding| finding.check).collect::<Vec<_>>(), ["disk"], "{found:?}");
    assert_eq!((found.len(), found[1].level), (3, Level::Failed));
    // This test is not the program that looks at cards, and ends when it is asked to.
    assert_eq!(found[2].level, Level::Warning);
    assert!(found[2].found.starts_with("nothing is known of the machine's cards: "), "{found:?}");
    assert!(found[1].advice.as_ref().unwrap().contains("dmesg"), "{found:?}");
    assert!(silent.questions.next().unwrap().unwrap().parse::<u32>().is_ok(), "it was asked, and waits");
    let began = Instant::now();
    for ready in get_at_once(&instance, "/readyz", 8) {
        let checks = ready.json()["checks"].as_array().unwrap().clone();
        let well: Vec<_> =
            checks.iter().filter(|check| check["ok"] == true).map(|check| text(&check["check"])).collect();
        assert_eq!((ready.status, well.as_slice()), (503, &["loop", "drain", "mount"].map(str::to_owned)[..]));
        let says = text(&checks[2]["says"]);
        assert!(says.starts_with("has not answered for 5 s: a disk hangs"), "{says}");
    }
    // One after another they would take 5 s each.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(silent);
    wait_for("readiness", || (get(&instance, "/readyz").status == 200).then_some(()));
    instance.shutdown();
}
