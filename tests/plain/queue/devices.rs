//! Cards and slices whose devices are not there, and who has which slice.

use std::path::Path;

use trainyard::gpu::nodes::{self, Missing, Places};

use super::cards::{gpus, idle};
use super::*;

#[test]
fn cards_of_which_each_lacks_its_own_device_are_told_in_one_sentence() {
    let mut daemon = Daemon::new(Quotas::new());
    let without = |minors: &[u32], at: u64| {
        let mut seen = idle(4, at);
        for minor in minors {
            let card = &mut seen.cards[*minor as usize];
            let places = Places { devices: Path::new("/dev"), driver: Path::new("/nowhere") };
            let node = nodes::of_card(places, &card.facts.uuid, *minor);
            card.signs.no_device = node.check(|_| Err(std::io::ErrorKind::NotFound.into())).err();
            card.findings = health::judge(&card.signs, None);
        }
        // Of another it is something else that lacks.
        seen.cards[0].signs.no_device = Some(Missing { says: "x".to_owned(), maker: None });
        seen.cards[0].findings = health::judge(&seen.cards[0].signs, None);
        seen
    };
    let mut told = |minors: &[u32]| {
        daemon.now += 10;
        daemon.cards(without(minors, daemon.now));
        daemon.file("a/all", &gpus(4));
        let reason = daemon.report("a/all").reason;
        reason.split_once("; GPU 0 no-device: x").unwrap().1.to_owned()
    };
    let one = "; GPU 2 no-device: /dev/nvidia2 is missing, the device of GPU-2; `nvidia-modprobe -c 2` makes it";
    assert_eq!(told(&[2]), one);
    let two =
        "; GPU 2 and 3: no-device: /dev/nvidia2 and /dev/nvidia3 are missing; `nvidia-modprobe -c 2 -c 3` makes them";
    assert_eq!(told(&[2, 3]), two);
    let three = "; GPU 1 to 3: no-device: /dev/nvidia1, /dev/nvidia2 and /dev/nvidia3 are missing; \
                 `nvidia-modprobe -c 1 -c 2 -c 3` makes them";
    assert_eq!(told(&[1, 2, 3]), three);
    // Of one that has failed as well that is said.
    daemon.now += 10;
    let mut seen = without(&[1, 2, 3], daemon.now);
    seen.cards[1].signs.lost = Some("fell off".to_owned());
    seen.cards[1].findings = health::judge(&seen.cards[1].signs, None);
    daemon.cards(seen);
    let reason = daemon.report("a/all").reason;
    assert!(reason.contains("; GPU 1 lost: does not answer (fell off); ") && reason.ends_with(two), "{reason}");
}

#[test]
fn a_card_without_its_device_is_waited_for_and_who_has_it_is_told_of_no_failure() {
    let mut daemon = Daemon::new(Quotas::new());
    let without = |at: u64| {
        let mut seen = idle(1, at);
        seen.cards[0].signs.no_device = Some(Missing { says: "/dev/nvidia0 is missing".to_owned(), maker: None });
        seen.cards[0].findings = health::judge(&seen.cards[0].signs, None);
        seen
    };
    daemon.cards(without(1000));
    daemon.file("a/job", &format!("on_gpu_failure = 'stop'\n{}", gpus(1)));
    let report = daemon.report("a/job");
    assert_eq!(report.state, State::Waiting);
    assert!(report.reason.ends_with("; GPU 0 no-device: /dev/nvidia0 is missing"), "{}", report.reason);
    daemon.now += 10;
    daemon.cards(idle(1, daemon.now));
    assert_eq!(daemon.state("a/job"), State::Running);
    daemon.now += 10;
    daemon.cards(without(daemon.now));
    assert_eq!((daemon.state("a/job"), daemon.told("a/job", "has failed")), (State::Running, 0));
}

/// A card that is cut up in two, of which one slice cannot be reached.
fn cut_up(at: u64) -> Inventory {
    let mut seen = idle(1, at);
    let slice = |number: u32| Slice {
        uuid: format!("MIG-{number}").parse().unwrap(),
        profile: "1g.10gb".to_owned(),
        memory: Some(10 << 30),
        instances: Some(Instances { gpu: number, compute: 0 }),
        unreachable: (number == 1).then(|| "its device is missing".to_owned()),
    };
    (seen.cards[0].mig, seen.cards[0].slices) = (true, (0..2).map(slice).collect());
    seen
}

#[test]
fn a_slice_that_cannot_be_reached_is_nobody_s_and_counts_for_nothing() {
    let quota = Quota { running: Some(1), ..Quota::default() };
    let mut daemon = Daemon::new([("b".parse().unwrap(), quota)].into());
    daemon.cards(cut_up(1000));
    daemon.file("b/cores", "resources.cpu = 1");
    let wants = "resources = { cpu = 1, memory = \"100MB\", mig = \"1g.10gb\" }";
    daemon.file("b/one", wants);
    let free = daemon.report("b/one").waiting.unwrap().free.gpu;
    assert!(free > 0.1 && free < 0.2, "a seventh of a card: {free}");
    ["a/one", "a/two"].iter().for_each(|job| daemon.file(job, wants));
    assert_eq!(daemon.states(["a/one", "a/two"]), [State::Running, State::Waiting]);
    // The plan does not reckon with it either: who waits knows for whom.
    let reason = daemon.report("a/two").reason;
    assert!(reason.starts_with("waits for 1 MIG slice(s) 1g.10gb, held by a/one; free: "), "{reason}");
}

#[test]
fn who_waits_is_told_of_such_cards_alone_as_it_could_have() {
    let mut daemon = Daemon::new(Quotas::new());
    let mut seen = idle(3, 1000);
    seen.cards[0] = cut_up(1000).cards.remove(0);
    let fell = health::Finding { rule: "xid-79".to_owned(), level: health::Level::Failed, says: "it fell".to_owned() };
    seen.cards[1..].iter_mut().for_each(|card| card.findings = vec![fell.clone()]);
    seen.cards[2].mig = true;
    daemon.cards(seen);
    ["a/has", "a/slice"]
        .iter()
        .for_each(|job| daemon.file(job, "resources = { cpu = 1, memory = \"100MB\", mig = \"1g.10gb\" }"));
    daemon.file("a/whole", &gpus(1));
    let small = "cpu = 1, memory = \"100MB\"";
    daemon.file(
        "a/both",
        &format!("roles.w.resources = {{ {small}, gpu = 1 }}\nroles.s.resources = {{ {small}, mig = \"1g.10gb\" }}"),
    );
    let [slice, whole, both] = ["a/slice", "a/whole", "a/both"].map(|job| {
        let reason = daemon.report(job).reason;
        let is_of_cards = |part: &&str| part.starts_with("GPU ") || part.starts_with("a slice ");
        reason.split("; ").filter(is_of_cards).collect::<Vec<_>>().join("; ")
    });
    assert_eq!(
        slice,
        "a slice 1g.10gb of GPU 0 cannot be reached: its device is missing; GPU 2, cut up, xid-79: it fell"
    );
    assert_eq!(whole, "GPU 1 and 2: xid-79: it fell");
    assert_eq!(both, format!("GPU 1 xid-79: it fell; {slice}"));
}

#[test]
fn of_a_card_that_is_cut_up_a_stranger_has_its_slice_and_one_that_is_to_be_ignored_none() {
    let mut daemon = Daemon::new(Quotas::new());
    let used = |ignored_is_stranger: bool, at: u64| {
        let mut seen = cut_up(at);
        seen.cards[0].slices.iter_mut().for_each(|slice| slice.unreachable = None);
        let process = |number: u32, is_ignored: bool| Process {
            pid: 9 + number,
            slice: Some(format!("MIG-{number}").parse().unwrap()),
            is_ignored,
            ..stranger()
        };
        let processes = vec![process(0, false), process(1, !ignored_is_stranger)];
        seen.cards[0].usage.as_mut().unwrap().processes = Some(processes);
        seen
    };
    daemon.cards(used(true, 1000));
    daemon.file("a/one", "resources = { cpu = 1, memory = \"100MB\", mig = \"1g.10gb\" }");
    assert_eq!(daemon.state("a/one"), State::Waiting);
    daemon.now += 10;
    daemon.cards(used(false, daemon.now));
    assert_eq!(daemon.state("a/one"), State::Running);
}
