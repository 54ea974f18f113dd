//! Slices that go while jobs have them.

use super::cards::{idle, lost};
use super::*;

/// A card that is cut up into these slices.
pub(super) fn cut_up(card: &mut Card, place: usize, profiles: &[&str]) {
    let slice = |(number, profile): (usize, &&str)| Slice {
        uuid: format!("MIG-{place}-{number}").parse().unwrap(),
        profile: (*profile).to_owned(),
        memory: Some(10 << 30),
        instances: Some(Instances { gpu: number as u32, compute: 0 }),
        unreachable: None,
    };
    (card.mig, card.slices) = (true, profiles.iter().enumerate().map(slice).collect());
}

pub(super) fn mig(profile: &str, count: usize) -> String {
    format!("resources = {{ cpu = 1, memory = \"100MB\", mig = \"{profile}\", gpu = {count} }}")
}

/// Two cards of two slices each.
fn seen(at: u64) -> Inventory {
    let mut seen = idle(2, at);
    (0..).zip(&mut seen.cards).for_each(|(place, card)| cut_up(card, place, &["1g.10gb"; 2]));
    seen
}

#[test]
fn a_slice_that_goes_while_a_job_has_it_is_a_card_that_has_failed() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(seen(1000));
    for policy in ["alert", "retry"] {
        let text = format!("retries = 1\non_gpu_failure = '{policy}'\n{}", mig("1g.10gb", 1));
        daemon.file(&format!("a/{policy}"), &text);
    }
    let all = ["a/alert", "a/retry"];
    assert_eq!(daemon.states(all), [State::Running; 2]);
    let held: Vec<GpuUuid> = all.iter().map(|key| daemon.slice_of(key)).collect();
    let card = held[0].as_str()[4..5].parse::<usize>().unwrap();
    assert!(held[1].as_str().starts_with(&format!("MIG-{card}-")), "{held:?}: on the card that is cut up already");
    // What a card does not tell says nothing of what it has.
    let gone = |at: u64, untold: bool| {
        let mut seen = seen(at);
        (seen.cards[card].slices, seen.cards[card].signs.slices_untold) = (Vec::new(), untold);
        seen
    };
    let alarm = format!("alarm: slice 1g.10gb of GPU {card} has failed: the driver no longer has it");
    daemon.now += 10;
    daemon.cards(gone(daemon.now, true));
    assert_eq!((daemon.states(all), daemon.told("a/alert", "has failed")), ([State::Running; 2], 0));
    daemon.now += 10;
    daemon.cards(gone(daemon.now, false));
    assert_eq!(daemon.states(all), [State::Running, State::Stopping]);
    all.iter().for_each(|key| assert_eq!(daemon.told(key, &alarm), 1, "{key}"));
    let reason = daemon.report("a/alert").reason;
    assert!(reason.ends_with(&format!(", slice 1g.10gb of GPU {card} has failed")), "{reason}");
    daemon.end("a/retry");
    daemon.now += 10;
    daemon.cards(gone(daemon.now, false));
    assert_eq!((daemon.state("a/retry"), daemon.report("a/retry").attempt), (State::Running, 2));
    assert!(daemon.slice_of("a/retry").as_str().starts_with(&format!("MIG-{}-", 1 - card)), "on the other card");
    // It comes back, and the card is no longer cut up.
    daemon.now += 10;
    daemon.cards(seen(daemon.now));
    assert_eq!(daemon.told("a/alert", &format!("slice 1g.10gb of GPU {card} is well again")), 1);
    let mut whole = seen(daemon.now + 10);
    (whole.cards[card].slices, whole.cards[card].mig) = (Vec::new(), false);
    daemon.now += 10;
    daemon.cards(whole);
    assert_eq!(daemon.told("a/alert", "has failed: the card is no longer cut up by MIG"), 1);
}

impl Daemon {
    /// The slice of a job with one task.
    fn slice_of(&self, key: &str) -> GpuUuid {
        let runs = self.store.runs(&key.parse().unwrap(), 0..=u32::MAX, usize::MAX).unwrap();
        runs.last().unwrap().attempts.last().unwrap().tasks[0].gpus[0].device().clone()
    }
}

#[test]
fn who_waits_for_slices_is_told_of_a_card_that_does_not_answer() {
    let mut daemon = Daemon::new(Quotas::new());
    daemon.cards(seen(1000));
    daemon.file("a/cores", &cores(8, ""));
    daemon.file("a/waits", &mig("1g.10gb", 4));
    daemon.now += 10;
    // Of such a card the driver tells neither whether it is cut up nor what of.
    let mut gone = seen(daemon.now);
    let silent = lost(1, &[0], daemon.now).cards.remove(0);
    let uuid = std::mem::replace(&mut gone.cards[0], silent).facts.uuid;
    gone.cards[0].facts.uuid = uuid;
    daemon.cards(gone);
    let reason = daemon.report("a/waits").reason;
    assert!(reason.contains("GPU 0 lost: does not answer (fell off)"), "{reason}");
}
