//! Who waits is told what it lacks and who has that, and of nothing else.

use super::cards::{gpus, idle};
use super::slices::{cut_up, mig};
use super::*;

/// The jobs that are named as holders, and what is free of cards, rounded.
fn told(daemon: &Daemon, key: &str) -> (Vec<String>, f64) {
    let waiting = daemon.report(key).waiting.unwrap();
    let names = waiting.holders.iter().map(|holder| holder.job.clone().unwrap_or_default()).collect();
    (names, (waiting.free.gpu * 100.0).round() / 100.0)
}

#[test]
fn of_a_card_that_is_cut_up_only_who_has_a_slice_like_those_that_are_wanted_is_in_the_way() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(1, 1000);
    cut_up(&mut seen.cards[0], 0, &["1g.10gb", "1g.10gb", "2c.3g.40gb", "1g.10gb+me"]);
    daemon.cards(seen);
    for (job, profile) in [("a/same", "1g.10gb"), ("a/other", "2c.3g.40gb"), ("a/media", "1g.10gb+me")] {
        daemon.file(job, &mig(profile, 1));
        assert_eq!(daemon.state(job), State::Running, "{job}");
    }
    daemon.file("a/waits", &mig("1g.10gb", 2));
    let reason = daemon.report("a/waits").reason;
    assert_eq!(
        reason,
        "waits for 2 MIG slice(s) 1g.10gb, held by a/same; free: 5 cpu and 7.7GiB of memory, 1 of these"
    );
    assert_eq!(told(&daemon, "a/waits"), (vec!["same".to_owned()], 0.14));
}

#[test]
fn of_several_sorts_of_cards_those_that_there_are_too_few_of_are_told() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(4, 1000);
    cut_up(&mut seen.cards[3], 3, &["1g.10gb"]);
    daemon.cards(seen);
    daemon.file("a/slice", &mig("1g.10gb", 1));
    daemon.file("a/whole", &gpus(1));
    assert_eq!(daemon.states(["a/slice", "a/whole"]), [State::Running; 2]);
    let role =
        |name: &str, wants: &str| format!("[roles.{name}]\nresources = {{ cpu = 1, memory = \"100MB\", {wants} }}\n");
    let mut reason = |key: &str, roles: &[String]| {
        daemon.file(key, &roles.concat());
        assert_eq!(daemon.state(key), State::Waiting);
        let reason = daemon.report(key).reason;
        let (start, free) = reason.split_once("; free: ").unwrap_or_else(|| panic!("{reason}"));
        let free = free.split_once(" of memory").unwrap().1.split("; in place").next().unwrap();
        let holders = told(&daemon, key).0.join(" ");
        daemon.files(vec![removed(key)]);
        (start.to_owned(), free.to_owned(), holders)
    };
    let all = |start: &str, free: &str, holders: &str| (start.to_owned(), free.to_owned(), holders.to_owned());
    let share = role("x", "gpu_memory = \"5GiB\"");
    let mixed = [role("s", "mig = \"1g.10gb\""), role("w", "gpu = 2"), share];
    assert_eq!(
        reason("a/slices", &mixed[..2]),
        all("waits for 1 MIG slice(s) 1g.10gb, held by a/slice", ", 0 of these", "slice")
    );
    let more = [mixed[0].clone(), role("w", "gpu = 3")];
    let both = "waits for 1 MIG slice(s) 1g.10gb and 3 GPU(s), held by a/slice and a/whole";
    assert_eq!(reason("a/both", &more), all(both, ", 0 MIG slice(s) 1g.10gb and 2 GPU(s)", "slice whole"));
    // Each alone could be had.
    let together = "waits for 2 GPU(s) and a share of 5GiB of a GPU, held by a/whole";
    assert_eq!(
        reason("a/together", &mixed[1..]),
        all(together, ", 2 GPU(s) and 32 shares of 5GiB of GPUs, but not all of them together", "whole")
    );
}

#[test]
fn of_a_quota_what_there_is_too_little_of_is_told_and_who_has_that() {
    let limits = Quota { gpu: Some(2), cpu: Some(4000), memory: Some(4 << 30), ..Quota::default() };
    let mut daemon = Daemon::new(quota("vision", limits));
    daemon.cards(idle(4, 1000));
    daemon.file("vision/cards", &gpus(2));
    daemon.file("vision/cores", &cores(2, ""));
    daemon.file("vision/waits", &gpus(1));
    let reason = daemon.report("vision/waits").reason;
    assert_eq!(reason, "waits for 1 GPU(s): 0 of 2 left by workspaces.vision.gpu; the rest is held by vision/cards");
    assert_eq!(told(&daemon, "vision/waits").0, ["cards"]);
    daemon.file("vision/second", "resources = { cpu = 2, memory = \"3GiB\" }");
    let reason = daemon.report("vision/second").reason;
    let lacks = "waits for 2 cpu and 3GiB of memory: 1 of 4 left by workspaces.vision.cpu, 2.9GiB of 4GiB left by \
                 workspaces.vision.memory; the rest is held by vision/cards and vision/cores";
    assert!(reason.starts_with(lacks), "{reason}");
    assert_eq!(told(&daemon, "vision/second").0, ["cards", "cores"]);
}

#[test]
fn a_process_of_somebody_else_is_told_by_the_name_of_its_user_also_to_programs() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(1, 1000);
    let memory = Some(512 << 20);
    let process = Process { uid: Some(7), user: Some("ann".into()), memory, ..stranger() };
    seen.cards[0].usage.as_mut().unwrap().processes = Some(vec![process]);
    daemon.cards(seen);
    daemon.file("a/waits", &gpus(1));
    let report = daemon.report("a/waits");
    assert!(report.reason.ends_with("; GPU 0 is used by process 9 of ann, 512 MiB"), "{}", report.reason);
    let waiting = report.waiting.unwrap();
    let told: Vec<_> = waiting
        .strangers
        .iter()
        .map(|one| (one.gpu.as_str(), one.pid, one.uid, one.user.as_deref(), one.memory))
        .collect();
    assert_eq!(told, [("GPU 0", 9, Some(7), Some("ann"), memory)]);
    // Who waits for no card is told of none.
    daemon.file("a/cores", &cores(8, ""));
    daemon.file("a/more", &cores(8, ""));
    assert_eq!(daemon.report("a/more").waiting.unwrap().strangers, []);
}

#[test]
fn of_several_strangers_on_a_card_the_first_is_told_with_how_many_more_and_programs_are_told_all() {
    let mut daemon = Daemon::new(Quotas::new());
    let of = |number: u32| Process { pid: 9 + number, ..stranger() };
    let used = |at: u64| {
        let mut seen = idle(1, at);
        let ignored = Process { is_ignored: true, ..of(5) };
        seen.cards[0].usage.as_mut().unwrap().processes = Some(vec![of(0), ignored, of(1), of(2)]);
        seen
    };
    daemon.cards(used(1000));
    daemon.file("a/waits", &gpus(1));
    let pids = |daemon: &Daemon, job: &str| {
        daemon.report(job).waiting.unwrap().strangers.iter().map(|one| one.pid).collect::<Vec<_>>()
    };
    let reason = daemon.report("a/waits").reason;
    assert!(reason.ends_with("; GPU 0 is used by process 9 of root, and by 2 more"), "{reason}");
    assert_eq!(pids(&daemon, "a/waits"), [9, 10, 11]);
    // Beside those who have parts of it each is told.
    daemon.files(vec![removed("a/waits")]);
    daemon.now += 10;
    daemon.cards(idle(1, daemon.now));
    daemon.file("a/shares", "resources = { cpu = 1, memory = \"100MB\", gpu_memory = \"1GiB\" }");
    assert_eq!(daemon.state("a/shares"), State::Running);
    daemon.now += 10;
    daemon.cards(used(daemon.now));
    daemon.file("a/more", "resources = { cpu = 1, memory = \"100MB\", gpu_memory = \"1GiB\" }");
    let reason = daemon.report("a/more").reason;
    assert!(
        reason.contains(
            "; GPU 0, which is shared, is used by process 9 of root; GPU 0, which is shared, is used by process 10"
        ),
        "{reason}"
    );
    assert_eq!(pids(&daemon, "a/more"), [9, 10, 11]);
}

#[test]
fn who_wants_whole_cards_of_a_machine_that_cuts_them_up_is_told_what_there_is_instead() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(1, 1000);
    cut_up(&mut seen.cards[0], 0, &["1g.10gb", "1g.10gb"]);
    daemon.cards(seen);
    daemon.file("a/whole", &gpus(1));
    let reason = daemon.report("a/whole").reason;
    assert!(reason.contains("the job needs 1 GPU(s) of 0 that this machine can give"), "{reason}");
    assert!(
        reason.contains("; cards that are cut up by MIG are had in slices (`mig`): 2 × slice 1g.10gb of "),
        "{reason}"
    );
    daemon.file("a/cores", &cores(1000, ""));
    assert!(!daemon.report("a/cores").reason.contains("MIG"));
}

#[test]
fn what_slices_a_card_has_is_not_known_while_it_does_not_tell_all_and_nobody_is_refused_for_it() {
    let mut daemon = Daemon::new(Quotas::new());
    let look = |at: u64, slices: &[&str], untold: bool| {
        let mut seen = idle(1, at);
        cut_up(&mut seen.cards[0], 0, slices);
        (seen.cards[0].mig, seen.cards[0].signs.slices_untold) = (true, untold);
        seen
    };
    daemon.cards(look(1000, &[], true));
    daemon.file("a/slice", "resources = { cpu = 1, memory = \"100MB\", mig = \"1g.10gb\" }");
    assert_eq!(daemon.state("a/slice"), State::Waiting, "{}", daemon.report("a/slice").reason);
    daemon.now += 10;
    daemon.cards(look(daemon.now, &["1g.10gb"], false));
    assert_eq!(daemon.state("a/slice"), State::Running, "{}", daemon.report("a/slice").reason);
}

#[test]
fn who_wants_a_certain_kind_of_card_is_told_of_no_other() {
    let mut daemon = Daemon::new(Quotas::new());
    let of_stranger = |card: &mut Card| card.usage.as_mut().unwrap().processes = Some(vec![stranger()]);
    let mut seen = idle(6, 1000);
    for (card, name) in seen.cards.iter_mut().zip(["A100", "H100", "H100", "A100", "L4", "L4"]) {
        card.facts.name = format!("NVIDIA {name}");
    }
    // One of each is cut up, the whole ones are used by somebody.
    cut_up(&mut seen.cards[1], 1, &["1g.10gb"]);
    cut_up(&mut seen.cards[3], 3, &["1g.10gb"]);
    [0, 2, 4].into_iter().for_each(|place| of_stranger(&mut seen.cards[place]));
    seen.cards[5].findings =
        vec![health::Finding { rule: "xid-79".to_owned(), level: health::Level::Failed, says: "it fell".to_owned() }];
    daemon.cards(seen);
    let kind = |kind: &str, wants: &str| {
        format!("resources = {{ cpu = 1, memory = \"100MB\", gpu_type = \"{kind}\", {wants} }}")
    };
    let mut told = |key: &str, wants: &str| {
        daemon.file(key, wants);
        let report = daemon.report(key);
        assert_eq!(report.state, State::Waiting, "{}", report.reason);
        let strangers: Vec<String> = report.waiting.unwrap().strangers.into_iter().map(|one| one.gpu).collect();
        daemon.files(vec![removed(key)]);
        let reason = report.reason.split_once("can be used now").unwrap_or_else(|| panic!("{}", report.reason)).1;
        (reason.to_owned(), strangers.join(", "))
    };
    let both = |reason: &str, strangers: &str| (reason.to_owned(), strangers.to_owned());
    let used = "is used by process 9 of root";
    assert_eq!(
        told("a/a100", &kind("A100", "gpu = 1")),
        both(&format!("; GPU 0 {used}; GPU 3 is cut up by MIG"), "GPU 0")
    );
    assert_eq!(
        told("a/h100", &kind("H100", "gpu = 1")),
        both(&format!("; GPU 1 is cut up by MIG; GPU 2 {used}"), "GPU 2")
    );
    assert_eq!(
        told("a/share", &kind("L4", "gpu_memory = \"10GiB\"")),
        both(&format!("; GPU 4 {used}; GPU 5 xid-79: it fell"), "GPU 4")
    );
    // Each role for itself; one that wants no card changes nothing.
    let roles = format!(
        "[roles.a]\n{}\n[roles.b]\n{}\n[roles.c]\nresources = {{ cpu = 1, memory = \"100MB\" }}",
        kind("H100", "mig = \"1g.10gb\""),
        kind("L4", "gpu = 1")
    );
    assert_eq!(told("a/roles", &roles), both(&format!("; GPU 4 {used}; GPU 5 xid-79: it fell"), "GPU 4"));
    assert_eq!(
        told("a/any", &gpus(1)),
        both(
            &format!("; GPU 0, 2 and 4: {used}; GPU 1 and 3: is cut up by MIG; GPU 5 xid-79: it fell"),
            "GPU 0, GPU 2, GPU 4"
        )
    );
}

#[test]
fn in_a_list_each_is_told_of_the_cards_that_it_wants() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(2, 1000);
    (seen.cards[0].facts.name, seen.cards[1].facts.name) = ("NVIDIA A100".to_owned(), "NVIDIA H100".to_owned());
    seen.cards.iter_mut().for_each(|card| card.usage.as_mut().unwrap().processes = Some(vec![stranger()]));
    daemon.cards(seen);
    for (key, kind) in [("a/a100", "A100"), ("a/h100", "H100")] {
        let wants = format!("resources = {{ cpu = 1, memory = \"100MB\", gpu = 1, gpu_type = \"{kind}\" }}");
        daemon.file(key, &wants);
    }
    let listed = list(&mut daemon);
    for (key, place, other) in [("a/a100", 0, 1), ("a/h100", 1, 0)] {
        let report = listed.iter().find(|report| format!("{}/{}", report.workspace, report.job) == key).unwrap();
        let told = |place: usize| report.reason.contains(&format!("; GPU {place} is used"));
        assert!(told(place) && !told(other), "{key}: {}", report.reason);
    }
}
