//! The process that looks at the cards: it may hang and fall, and the daemon goes on.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::gpus::{Nodes, cards_at, instance, list};
use super::nvml::cards;
use super::support::{Instance, wait_for};

/// The one of an instance's daemon.
fn process(instance: &Instance) -> i32 {
    wait_for("the process that looks at the cards", || {
        let children = format!("/proc/{0}/task", instance.daemon_pid());
        let of_thread = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("children")).ok();
        let children: String = std::fs::read_dir(children).ok()?.flatten().filter_map(of_thread).collect();
        let is_it = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(b"cards")
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it)
    })
}

fn has_ended(pid: i32) -> Option<()> {
    (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
}

/// What a process has open that is the daemon's.
fn held(pid: i32) -> Vec<String> {
    let opened = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let opened = opened.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.display().to_string()));
    let kinds = ["socket:", "eventfd", "eventpoll", "state.redb", ".lock"];
    opened.filter(|path| kinds.iter().any(|kind| path.contains(kind))).collect()
}

#[test]
fn what_hangs_with_a_card_would_keep_no_lock_of_a_killed_daemon() {
    let Some((mut instance, fake)) = instance("what_hangs_with_a_card_would_keep_no_lock") else { return };
    fake.shows(&cards(1));
    fake.install();
    instance.wait_for_log("cards=1");
    let before = process(&instance);
    assert_eq!(held(before), Vec::<String>::new());
    assert!(held(instance.daemon_pid()).len() > 3);
    fake.shows(&format!("slow.nvmlDeviceGetTemperature = 600000\n{}", cards(1)));
    wait_for("what was found to be old", || (list(&instance)["stale"] == true).then_some(()));
    instance.kill_daemon();
    wait_for("nobody to be left who looks at cards", || has_ended(before));
    instance.start_daemon(&[]);
    instance.wait_ready();
    let hanging = process(&instance);
    instance.shutdown();
    wait_for("nobody to be left who looks at cards", || has_ended(hanging));
}

#[test]
fn a_library_that_hangs_holds_up_nobody() {
    let Some((instance, fake)) = instance("a_library_that_hangs_holds_up_nobody") else { return };
    fake.shows(&format!("slow.nvmlDeviceGetTemperature = 600000\n{}", cards(1)));
    fake.install();
    // Who asks has the daemon look, waits as long as its patience lasts, and gets what was found before.
    assert!(instance.ok(&["gpu"]).starts_with("no GPUs: "));
    instance.drop_job("meanwhile", "image = \"host\"\ncommand = \"true\"\n");
    assert_eq!(instance.wait_end("meanwhile", 1)["state"], "succeeded");
    // It has hung for so long now that what was found before it did counts no more.
    wait_for("what was found to be old", || (list(&instance)["stale"] == true).then_some(()));
    assert!(instance.ok(&["gpu"]).contains("NVML has not answered since "));
    instance.shutdown();
}

#[test]
fn what_looks_at_the_cards_may_fall_or_be_stopped_and_nothing_is_lost_by_it() {
    let Some((mut instance, fake)) = instance("what_looks_at_the_cards_may_fall") else { return };
    let minors = [361, 362, 363];
    let _nodes = Nodes::make(&minors);
    fake.shows(&cards_at(&minors, |_| String::new()));
    fake.install();
    instance.wait_for_log("cards=3");
    instance.drop_job("holds", "image = \"host\"\ncommand = \"sleep 1000\"\nresources.gpu = 1\n");
    instance.wait_state("holds", "running");
    // One is lost, and stays so for who begins to look after that.
    fake.shows(&cards_at(&minors[..2], |_| String::new()));
    instance.wait_for_log("a card is not well");
    let states = |instance: &Instance| {
        let told = list(instance);
        let cards = told["gpus"].as_array().unwrap().iter();
        cards.map(|gpu| (gpu["health"].clone(), gpu["leased_by"].clone())).collect::<Vec<_>>()
    };
    let before = states(&instance);
    assert_eq!(before.iter().filter(|(health, _)| health == "failed").count(), 1, "{before:?}");
    assert_eq!(before.iter().filter(|(_, holder)| !holder.is_null()).count(), 1, "{before:?}");
    // Who looks by themselves is told that alone.
    let looked = instance.cli(&["doctor", "driver"]);
    let (told, said) = (String::from_utf8_lossy(&looked.stdout), String::from_utf8_lossy(&looked.stderr));
    assert!(told.contains("ok       driver 580.95.05, 2 card(s)") && said.is_empty(), "{told}{said}");
    for signal in [Signal::SIGKILL, Signal::SIGABRT] {
        let fallen = process(&instance);
        kill(Pid::from_raw(fallen), signal).unwrap();
        wait_for("another one", || (process(&instance) != fallen).then_some(()));
        let at = list(&instance)["at"].clone();
        wait_for("a look of its own", || (list(&instance)["at"] != at).then_some(()));
        assert_eq!(states(&instance), before);
    }
    instance.wait_for_log("will start it again");
    // Who asks one that is stopped hears what was found last.
    let stopped = Pid::from_raw(process(&instance));
    kill(stopped, Signal::SIGSTOP).unwrap();
    assert_eq!(states(&instance), before);
    instance.drop_job("meanwhile", "image = \"host\"\ncommand = \"true\"\n");
    assert_eq!(instance.wait_end("meanwhile", 1)["state"], "succeeded");
    kill(stopped, Signal::SIGCONT).unwrap();
    instance.drop_job("more", "image = \"host\"\ncommand = \"true\"\nresources.gpu = 1\n");
    assert_eq!(instance.wait_end("more", 1)["state"], "succeeded");
    assert_eq!(instance.report("holds").unwrap()["state"], "running");
    instance.shutdown();
}
