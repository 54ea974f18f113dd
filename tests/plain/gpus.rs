//! Cards by NVIDIA's library: our own, loaded through the wrapper as the real one is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use trainyard::gpu::health::{self, Level};
use trainyard::gpu::{Card, Driver, Gpus, Held, Inventory, Link, Sample, Settings};
use trainyard::ids::{AttemptId, TaskId};

use super::nvml::{FakeNvml, card, cards, uuid};

/// Bound for anything that should take a moment; generous, since CI machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_for(what: &str, mut look: impl FnMut() -> Option<()>) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while look().is_none() {
        assert!(std::time::Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A machine, and who looks at its cards.
struct Machine {
    fake: FakeNvml,
    gpus: Gpus,
    directory: TempDir,
}

impl Machine {
    fn with(text: &str) -> Self {
        Self::watched(text, |settings| settings)
    }

    /// As is set.
    fn watched(text: &str, set: impl FnOnce(Settings) -> Settings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fake = FakeNvml::without_driver(directory.path());
        fake.shows(text);
        fake.install();
        let gpus = Gpus::start(set(settings(directory.path())), drop).unwrap();
        Self { gpus, fake, directory }
    }

    fn look(&self) -> Arc<Inventory> {
        self.gpus.look(PATIENCE)
    }
}

fn watch(directory: &Path) -> Gpus {
    Gpus::start(settings(directory), drop).unwrap()
}

/// Without nodes of devices, and with a kernel that lists no cards.
fn settings(directory: &Path) -> Settings {
    Settings {
        program: env!("CARGO_BIN_EXE_trainyard").into(),
        library: Some(directory.join("libnvidia-ml.so.1")),
        xids: Some(directory.join("xids.json")),
        keeps_xids: true,
        devices: None,
        driver: directory.join("driver"),
        anew_every: Duration::ZERO,
        ways_every: Duration::ZERO,
        ..Settings::default()
    }
}

fn rules(card: &Card) -> Vec<&str> {
    card.findings.iter().map(|finding| finding.rule.as_str()).collect()
}

fn names(found: &Inventory) -> Vec<&str> {
    found.cards.iter().map(|card| card.facts.uuid.as_str()).collect()
}

#[test]
fn a_machine_has_none_one_four_or_eight_cards() {
    for count in [0, 1, 4, 8] {
        let found = Machine::with(&cards(count)).look();
        let driver = Driver::Loaded { version: "580.95.05".to_owned(), cuda: Some("13.0".to_owned()) };
        assert_eq!((&found.driver, found.nameless.len()), (&driver, 0));
        assert_eq!(names(&found), (0..count).map(uuid).collect::<Vec<_>>());
        for (index, card) in found.cards.iter().enumerate() {
            let facts = &card.facts;
            assert_eq!(facts.name, "NVIDIA H100 80GB HBM3");
            assert_eq!(facts.minor, Some(7 - index as u32));
            assert_eq!(facts.bus, format!("00000000:{:02x}:00.0", 0x1b + index));
            assert_eq!((facts.numa_node, facts.memory), (Some(index as u32 / 4), Some(80 << 30)));
            assert_eq!(facts.cpus, [index as u32 * 2, index as u32 * 2 + 1]);
            assert_eq!((rules(card), card.slices.len()), (vec![], 0));
            assert_eq!(card.signs.temperature, Some(40));
        }
    }
}

#[test]
fn without_a_driver_there_are_no_cards_until_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let fake = FakeNvml::without_driver(directory.path());
    let gpus = watch(directory.path());
    let found = gpus.look(PATIENCE);
    let reason = format!("{} not found", fake.library().display());
    assert_eq!((&found.driver, found.cards.len()), (&Driver::Missing { reason }, 0));
    // Its library is there before its module is loaded.
    fake.shows(&format!("errors.nvmlInit_v2 = \"DRIVER_NOT_LOADED\"\n{}", cards(2)));
    fake.install();
    let found = gpus.look(PATIENCE);
    let reason = "the NVIDIA driver is not loaded (`modprobe nvidia`)".to_owned();
    assert_eq!((&found.driver, found.cards.len()), (&Driver::Missing { reason }, 0));
    fake.shows(&cards(2));
    assert_eq!(names(&gpus.look(PATIENCE)), [uuid(0), uuid(1)]);
}

#[test]
fn a_file_that_is_no_library_is_told_as_such() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("libnvidia-ml.so.1"), "no library").unwrap();
    let found = watch(directory.path()).look(PATIENCE);
    let Driver::Missing { reason } = &found.driver else { panic!("{found:?}") };
    assert!(reason.contains("libnvidia-ml.so.1 cannot be loaded: "), "{reason}");
}

#[test]
fn a_card_that_falls_off_is_missed_by_name_and_comes_back() {
    let machine = Machine::with(&cards(3));
    assert_eq!(names(&machine.look()), [uuid(0), uuid(1), uuid(2)]);
    let linked = |index, to: &str| card(index, &format!("nvlinks = [\"00000000:{to}:00.0\"]"));
    machine.fake.shows(&format!("driver = \"1\"\n{}{}", linked(0, "1D"), linked(2, "1B")));
    // At first NVML says that it is lost; initialised anew it does not know it at all.
    for round in 0..3 {
        let found = machine.look();
        // Each keeps its number, and its ways.
        assert_eq!(names(&found), [uuid(0), uuid(1), uuid(2)]);
        if round > 0 {
            let ways = [(0, 2), (0, 1)].map(|(a, b)| found.topology.link(a, b));
            assert_eq!(ways, [Link::NvLink(1), Link::Unknown]);
        }
        let missed = found.cards.iter().find(|card| card.facts.uuid.as_str() == uuid(1)).unwrap();
        assert_eq!(rules(missed), ["lost"]);
        assert_eq!(health::worst(&missed.findings), Some(Level::Failed));
        let well = found.cards.iter().filter(|card| card.findings.is_empty());
        assert_eq!(well.count(), 2);
    }
    machine.fake.shows(&cards(3));
    let found = machine.look();
    assert_eq!(names(&found), [uuid(0), uuid(1), uuid(2)]);
    assert!(found.cards.iter().all(|card| card.findings.is_empty()), "{found:?}");
}

#[test]
fn links_that_work_only_after_the_driver_does_or_fail_are_noticed() {
    let machine = Machine::with(&cards(2));
    let linked = |index, to: &str| card(index, &format!("nvlinks = [\"00000000:{to}:00.0\"]"));
    assert_eq!(machine.look().topology.link(0, 1), Link::System);
    machine.fake.shows(&format!("driver = \"1\"\n{}{}", linked(0, "1C"), linked(1, "1B")));
    assert_eq!(machine.look().topology.link(0, 1), Link::NvLink(1));
    machine.fake.shows(&cards(2));
    assert_eq!(machine.look().topology.link(0, 1), Link::System);
}

#[test]
fn a_driver_that_goes_takes_all_cards_with_it() {
    let machine = Machine::with(&cards(2));
    assert_eq!(machine.look().cards.len(), 2);
    machine
        .fake
        .shows("errors.nvmlInit_v2 = \"LIB_RM_VERSION_MISMATCH\"\nerrors.nvmlSystemGetDriverVersion = \"UNKNOWN\"");
    wait_for("the driver to be missed", || {
        let found = machine.look();
        let Driver::Missing { reason } = &found.driver else { return None };
        assert!(found.cards.iter().all(|card| rules(card) == ["lost"]));
        assert_eq!(names(&found), [uuid(0), uuid(1)]);
        reason.contains("of another version than its library").then_some(())
    });
    machine.fake.shows(&cards(2));
    assert!(machine.look().cards.iter().all(|card| card.findings.is_empty()));
}

#[test]
fn the_ways_between_cards_are_found() {
    // Two pairs by NVLink, of which one has a link that is down; a fifth and a sixth card on a switch of NVLink; a seventh.
    let link = |to: &[&str]| format!("nvlinks = {to:?}");
    let all = [
        card(0, &link(&["00000000:1C:00.0", "00000000:1C:00.0"])),
        card(1, &link(&["00000000:1B:00.0", "00000000:1B:00.0"])),
        card(2, &link(&["00000000:1E:00.0", ""])),
        card(3, &link(&["", "00000000:1D:00.0"])),
        card(4, &link(&["00000000:80:00.0"; 4])),
        card(5, &link(&["00000000:80:00.0"; 6])),
        card(6, ""),
    ];
    let ancestors = "ancestors = [[0, 2, 20], [4, 6, 30], [5, 6, 10], [1, 3, 0], [0, 3, 40]]\n";
    let found = Machine::with(&format!("driver = \"1\"\n{ancestors}{}", all.concat())).look();
    let link = |a, b| {
        assert_eq!(found.topology.link(a, b), found.topology.link(b, a));
        found.topology.link(a, b)
    };
    let wanted = [
        (0, 1, Link::NvLink(2)),
        (2, 3, Link::NvLink(1)),
        (4, 5, Link::NvLink(4)),
        (0, 2, Link::Switches),
        (4, 6, Link::HostBridge),
        (5, 6, Link::Switch),
        (1, 3, Link::Board),
        (0, 3, Link::Node),
        (0, 6, Link::System),
    ];
    for (a, b, way) in wanted {
        assert_eq!(link(a, b), way, "{a} {b}");
    }
}

#[test]
fn slices_are_listed_with_what_runs_on_them() {
    let own = std::process::id();
    let mig = format!(
        "mig = [{{ uuid = \"MIG-a\", name = \"NVIDIA H100 80GB HBM3 MIG 1g.10gb\", memory = 1, processes = [{{ pid = {own}, bytes = 7 }}] }},\
         {{ uuid = \"MIG-b\", name = \"NVIDIA H100 80GB HBM3 MIG 3g.40gb\", memory = 2 }}]\nprocesses = [{{ pid = {own}, bytes = 7 }}]"
    );
    let found = Machine::with(&format!("driver = \"1\"\n{}{}", card(0, &mig), card(1, ""))).look();
    let slices: Vec<_> =
        found.cards[0].slices.iter().map(|slice| (slice.uuid.as_str(), slice.profile.as_str(), slice.memory)).collect();
    assert_eq!(slices, [("MIG-a", "1g.10gb", Some(1)), ("MIG-b", "3g.40gb", Some(2))]);
    assert_eq!(found.cards[1].slices, []);
    let usage = found.cards[0].usage.as_ref().unwrap();
    let processes = usage.processes.as_ref().unwrap();
    let holders: Vec<_> = processes.iter().map(|one| (one.pid, one.slice.as_ref().map(|uuid| uuid.as_str()))).collect();
    assert_eq!((holders, usage.utilisation), (vec![(own, Some("MIG-a"))], None));
}

#[test]
fn a_card_in_the_mode_of_slices_is_cut_up_even_if_none_can_be_seen() {
    let slice = "mig = [{ uuid = \"MIG-a\", name = \"x MIG 1g.10gb\", memory = 1 }]";
    let cases = [
        ("mig_mode = 0".to_owned(), (false, 0, true, false)),
        ("mig_mode = 1".to_owned(), (true, 0, true, true)),
        (format!("{slice}\nerrors.nvmlDeviceGetMaxMigDeviceCount = \"UNKNOWN\""), (true, 0, false, true)),
        (format!("{slice}\nerrors.nvmlDeviceGetMigDeviceHandleByIndex = \"UNKNOWN\""), (true, 0, false, true)),
        (format!("{slice}\nerrors.nvmlDeviceGetMigDeviceHandleByIndex = \"NOT_FOUND\""), (true, 0, true, true)),
        // The mode is not told, but there they are.
        (format!("{slice}\nerrors.nvmlDeviceGetMigMode = \"UNKNOWN\""), (false, 1, true, true)),
        (slice.to_owned(), (true, 1, true, true)),
    ];
    let machine = Machine::with(&cards(1));
    for (more, wanted) in cases {
        machine.fake.shows(&format!("driver = \"1\"\n{}", card(0, &more)));
        let found = machine.look();
        let card = &found.cards[0];
        let is_told = !card.signs.slices_untold;
        assert_eq!((card.mig, card.slices.len(), is_told, card.is_cut_up()), wanted, "{more}");
    }
}

#[test]
fn what_one_of_the_questions_for_processes_leaves_open_is_not_taken_for_nobody() {
    let slice = "mig = [{ uuid = \"MIG-a\", name = \"x MIG 1g.10gb\", memory = 1 }]\n";
    let machine = Machine::with(&cards(1));
    for call in ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"] {
        for error in ["NOT_SUPPORTED", "UNKNOWN", "NO_PERMISSION", "GPU_IS_LOST"] {
            for slice in ["", slice] {
                machine.fake.shows(&format!("errors.{call} = \"{error}\"\ndriver = \"1\"\n{}", card(0, slice)));
                let found = machine.look();
                assert_eq!(found.cards[0].usage.as_ref().unwrap().processes, None, "{call} {error} {slice}");
            }
        }
        // The card answers, and one of its slices does not.
        let slices = format!(
            "mig = [{{ uuid = \"MIG-a\", name = \"x MIG 1g.10gb\", memory = 1, errors.{call} = \"UNKNOWN\" }}, \
             {{ uuid = \"MIG-b\", name = \"x MIG 1g.10gb\", memory = 1 }}]\n"
        );
        machine.fake.shows(&format!("driver = \"1\"\n{}", card(0, &slices)));
        let found = machine.look();
        assert_eq!(
            (found.cards[0].slices.len(), &found.cards[0].usage.as_ref().unwrap().processes),
            (2, &None),
            "{call}"
        );
    }
    machine.fake.shows(&cards(1));
    assert_eq!(machine.look().cards[0].usage.as_ref().unwrap().processes, Some(Vec::new()));
}

#[test]
fn who_uses_a_card_is_told_with_what_it_takes() {
    let own = std::process::id();
    let busy = format!(
        "used = 3221225472\nutilisation = 97\nprocesses = [{{ pid = {own}, bytes = 1048576 }}, {{ pid = 4194305, bytes = 5 }}, \
         {{ pid = 4194306, bytes = 6, kind = \"graphics\" }}, {{ pid = 4194307, bytes = 8, kind = \"both\" }}]"
    );
    let found = Machine::with(&format!("driver = \"1\"\n{}{}", card(0, &busy), card(1, ""))).look();
    let usage = found.cards[0].usage.as_ref().unwrap();
    assert_eq!((usage.memory, usage.utilisation), (Some(3 << 30), Some(97)));
    assert_eq!((usage.power, usage.power_limit), (Some(71_000), Some(700_000)));
    let processes = usage.processes.as_ref().unwrap();
    let of = |at: usize| (processes[at].pid, processes[at].uid, processes[at].memory);
    assert_eq!(of(0), (own, Some(nix::unistd::Uid::current().as_raw()), Some(1 << 20)));
    // No process has this number: the largest is less.
    assert_eq!((of(1), processes[1].program.as_ref()), ((4_194_305, None, Some(5)), None));
    assert!(processes[0].program.is_some());
    // What draws is told as well as what computes, and what does both once.
    let mut pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    assert_eq!(pids[pids.len() - 3..], [4_194_305, 4_194_306, 4_194_307]);
    assert_eq!(pids.len(), 4);
}

#[test]
fn signs_of_a_card_are_read_and_judged() {
    let now = trainyard::sys::now().0 * 1000;
    let month = now - 30 * 24 * 3600 * 1_000_000;
    let cases: [(String, &[&str]); 11] = [
        ("ecc = { corrected = 5, uncorrected = 0 }".to_owned(), &[]),
        ("ecc = { corrected = 0, uncorrected = 2 }".to_owned(), &["ecc-uncorrected"]),
        (format!("retired_pending = false\nretired_double = {:?}", vec![month; 17]), &[]),
        (
            format!("retired_pending = false\nretired_double = {:?}", [vec![month; 15], vec![now; 2]].concat()),
            &["pages-retire-fast"],
        ),
        // The same times in seconds.
        (format!("retired_pending = false\nretired_double = {:?}", vec![month / 1_000_000; 17]), &[]),
        ("retired_pending = true\nretired_single = 63".to_owned(), &["pages-retired", "memory-repair-pending"]),
        ("fields = { 142 = 1, 143 = 600, 144 = 0, 145 = 0 }".to_owned(), &["rows-remapped"]),
        ("fields = { 142 = 0, 143 = 1, 144 = 1, 145 = 1 }".to_owned(), &["row-remap-failed", "memory-repair-pending"]),
        ("fields = { 230 = 2 }".to_owned(), &["needs-reboot"]),
        ("throttle = 0x40".to_owned(), &["slowed"]),
        ("throttle = 0x4".to_owned(), &[]),
    ];
    let machine = Machine::with(&cards(1));
    for (more, wanted) in cases {
        machine.fake.shows(&format!("driver = \"1\"\n{}", card(0, &more)));
        let found = machine.look();
        assert_eq!(rules(&found.cards[0]), wanted, "{more}: {:?}", found.cards[0]);
    }
}

#[test]
fn a_call_that_fails_leaves_out_what_it_would_tell_and_no_more() {
    let calls = [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetCpuAffinity",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetCreate",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetName",
    ];
    for error in ["NOT_SUPPORTED", "UNKNOWN", "NO_PERMISSION"] {
        let errors: Vec<String> = calls.iter().map(|call| format!("errors.{call} = \"{error}\"\n")).collect();
        let found = Machine::with(&format!("{}{}", errors.concat(), cards(2))).look();
        assert_eq!(names(&found), [uuid(0), uuid(1)]);
        for card in &found.cards {
            let usage = card.usage.as_ref().unwrap();
            assert_eq!((usage.utilisation, usage.power, &usage.processes), (None, None, &None));
            assert_eq!((card.facts.minor, card.facts.numa_node, card.facts.cpus.len()), (None, None, 0));
            assert_eq!((rules(card), card.signs.temperature, usage.memory), (vec![], None, None));
            assert_eq!((card.facts.memory, card.facts.bus.as_str()), (None, ""));
            assert_eq!(card.facts.name, "unknown GPU");
        }
        assert_eq!(found.topology.link(0, 1), Link::Unknown);
    }
}

#[test]
fn what_a_card_has_failed_to_tell_it_is_asked_again_but_not_what_it_never_tells() {
    for (error, asked_again) in [("UNKNOWN", true), ("NOT_SUPPORTED", false)] {
        let machine = Machine::with(&format!("errors.nvmlDeviceGetMemoryInfo_v2 = \"{error}\"\n{}", cards(1)));
        assert_eq!(machine.look().cards[0].facts.memory, None);
        machine.fake.shows(&cards(1));
        assert_eq!(machine.look().cards[0].facts.memory.is_some(), asked_again, "{error}");
    }
}

#[test]
fn a_card_that_says_that_it_is_lost_or_wants_a_reset_is_failed_alone() {
    for (error, said) in
        [("GPU_IS_LOST", &["lost"][..]), ("RESET_REQUIRED", &["lost"]), ("IRQ_ISSUE", &["lost"]), ("UNKNOWN", &[])]
    {
        let dead = format!("errors.nvmlDeviceGetTemperature = \"{error}\"");
        let found = Machine::with(&format!("driver = \"1\"\n{}{}", card(0, &dead), card(1, ""))).look();
        assert_eq!((rules(&found.cards[0]), rules(&found.cards[1])), (said.to_vec(), vec![]), "{error}");
    }
}

#[test]
fn a_card_that_does_not_tell_its_name_is_counted_as_such() {
    let mute = "errors.nvmlDeviceGetUUID = \"GPU_IS_LOST\"";
    let found = Machine::with(&format!("driver = \"1\"\n{}{}", card(0, ""), card(1, mute))).look();
    assert_eq!(names(&found), [uuid(0)]);
    let [said] = found.nameless.as_slice() else { panic!("{found:?}") };
    assert!(said.starts_with("card 1 does not answer: "), "{said}");
}

#[test]
fn errors_of_the_driver_are_heard_without_asking_and_kept_until_the_card_has_been_away() {
    let mut machine = Machine::with(&cards(2));
    assert_eq!(machine.look().cards.len(), 2);
    let failed = |xids: &str| format!("driver = \"1\"\n{}{}", card(0, ""), card(1, xids));
    machine.fake.shows(&failed("xids = [13, 79]"));
    // Nobody asks: what was found last is looked at.
    wait_for("the XIDs", || (rules(machine.gpus.last().cards.get(1)?) == ["xid-79"]).then_some(()));
    // So does the next daemon.
    machine.gpus = watch(machine.directory.path());
    machine.fake.shows(&cards(2));
    let found = machine.look();
    assert_eq!((rules(&found.cards[0]), rules(&found.cards[1])), (vec![], vec!["xid-79"]));
    let numbers: Vec<u64> = found.cards[1].signs.xids.iter().map(|xid| xid.number).collect();
    assert_eq!(numbers, [13, 79]);
    machine.fake.shows(&cards(1));
    assert_eq!(rules(&machine.look().cards[1]), ["lost", "xid-79"]);
    machine.fake.shows(&cards(2));
    wait_for("the card to be back", || machine.look().cards.iter().all(|card| card.findings.is_empty()).then_some(()));
}

#[test]
fn a_library_that_fails_takes_no_errors_of_cards_with_it() {
    let machine = Machine::with(&cards(2));
    assert_eq!(machine.look().cards.len(), 2);
    machine.fake.shows(&format!("driver = \"1\"\n{}{}", card(0, ""), card(1, "xids = [79]")));
    wait_for("the XID", || (rules(machine.gpus.last().cards.get(1)?) == ["xid-79"]).then_some(()));
    let failing = [
        "errors.nvmlInit_v2 = \"UNKNOWN\"\nerrors.nvmlSystemGetDriverVersion = \"UNKNOWN\"\n",
        "errors.nvmlSystemGetDriverVersion = \"UNKNOWN\"\n",
        "errors.nvmlDeviceGetHandleByIndex_v2 = \"UNKNOWN\"\n",
    ];
    for fails in failing {
        machine.fake.shows(&format!("{fails}{}", cards(2)));
        // While NVML is open, and when it is opened anew.
        for _ in 0..3 {
            assert_eq!(rules(&machine.look().cards[1]), ["lost", "xid-79"], "{fails}");
        }
        machine.fake.shows(&cards(2));
        wait_for("the library to be back", || {
            let found = machine.look();
            found.cards.iter().all(|card| card.signs.lost.is_none()).then(|| {
                assert_eq!(rules(&found.cards[1]), ["xid-79"], "{fails}");
            })
        });
    }
    // It was away, and the library fails before it is back.
    machine.fake.shows(&cards(1));
    assert_eq!(rules(&machine.look().cards[1]), ["lost", "xid-79"]);
    machine.fake.shows(&format!("{}{}", failing[0], cards(2)));
    assert_eq!(rules(&machine.look().cards[1]), ["lost", "xid-79"]);
    machine.fake.shows(&cards(2));
    wait_for("the card to be back", || machine.look().cards.iter().all(|card| card.findings.is_empty()).then_some(()));
}

#[test]
fn who_asks_a_slow_library_gets_what_was_found_last() {
    let machine = Machine::with(&cards(1));
    let before = machine.look();
    machine.fake.shows(&format!("slow.nvmlDeviceGetTemperature = 10000\n{}", cards(1)));
    let began = std::time::Instant::now();
    let found = machine.gpus.look(Duration::from_millis(100));
    assert_eq!(found, before);
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    let at = before.at.unwrap();
    let later = |seconds: u64| trainyard::ids::Timestamp(at.0 + seconds * 1000);
    assert_eq!([29, 30, 31].map(|seconds| found.is_stale(later(seconds))), [false, false, true]);
}

#[test]
fn those_cards_are_measured_that_are_asked_for_and_one_that_does_not_answer_is_left_out() {
    let busy = |index| card(index, "used = 7\nutilisation = 42");
    let silent = card(2, "errors.nvmlDeviceGetUtilizationRates = \"NOT_SUPPORTED\"");
    let machine = Machine::with(&format!("driver = \"1\"\ncuda = 13000\n{}{}{silent}", busy(0), busy(1)));
    machine.look();
    let wanted: Vec<(TaskId, Held)> =
        [1, 2, 5].map(|index| (TaskId::first(AttemptId(1), 0), Held::Whole(uuid(index).parse().unwrap()))).into();
    let measured = machine.gpus.measure(wanted.clone(), PATIENCE);
    let told: Vec<_> = measured.cards.iter().map(|(uuid, sample)| (uuid.as_str().to_owned(), *sample)).collect();
    let sample = |utilisation, memory| Sample { utilisation, memory: Some(memory), power: Some(71_000) };
    assert_eq!(told, [(uuid(1), sample(Some(42), 7)), (uuid(2), sample(None, 0))]);
    // Nobody waits for a library that hangs.
    machine.fake.shows(&format!("slow.nvmlDeviceGetUtilizationRates = 10000\n{}", cards(3)));
    let asked = std::time::Instant::now();
    assert!(machine.gpus.measure(wanted, Duration::from_millis(100)).cards.is_empty());
    assert!(asked.elapsed() < Duration::from_secs(9));
}

#[test]
fn of_parts_of_cards_that_is_told_which_their_tasks_do_and_what_is_not_known_is_absent() {
    let own = std::process::id();
    let shared = card(0, &format!("used = 7\nutilisation = 42\nprocesses = [{{ pid = {own}, bytes = 5, busy = 40 }}]"));
    let slice = |name: char, of_card: &str, more: &str| {
        format!("{{ uuid = \"MIG-{name}\", name = \"H100 MIG {of_card}\", memory = 99, used = 12, {more} }}")
    };
    let cut_up = |index: usize, slices: [String; 2]| card(index, &format!("mig = [{}]", slices.join(", ")));
    // A task has the second slice of each.
    let told = cut_up(
        1,
        [
            slice('a', "2g.20gb", "gpu_instance = 3, busy = 30.0"),
            slice('b', "1g.10gb", "gpu_instance = 9, busy = 19.6"),
        ],
    );
    let untold = cut_up(5, ["c", "d"].map(|name| slice(name.chars().next().unwrap(), "1g.10gb", "gpu_instance = 9")));
    let one_of_two = "gpu_instance = 9, busy = 50.0, compute_instance";
    let in_one = cut_up(
        6,
        [
            slice('e', "1c.2g.20gb", &format!("{one_of_two} = 0")),
            slice('f', "1c.2g.20gb", &format!("{one_of_two} = 1")),
        ],
    );
    let unsaid = card(2, "errors.nvmlDeviceGetProcessUtilization = \"NOT_SUPPORTED\"\nutilisation = 42");
    let still = card(3, "errors.nvmlDeviceGetProcessUtilization = \"NOT_SUPPORTED\"");
    let silent = card(4, "errors.nvmlDeviceGetComputeRunningProcesses_v3 = \"UNKNOWN\"\nutilisation = 42");
    let cards = [shared, told, unsaid, still, silent, untold, in_one].concat();
    let machine = Machine::with(&format!("driver = \"1\"\ncuda = 13000\n{cards}"));
    machine.look();
    let task = TaskId::first(AttemptId(1), 0);
    let share = |index: usize| Held::Share(uuid(index).parse().unwrap());
    let slice = |card, name: &str| Held::Slice { card: uuid(card).parse().unwrap(), slice: name.parse().unwrap() };
    let slices = [slice(1, "MIG-b"), slice(5, "MIG-d"), slice(6, "MIG-f")];
    let all = [[share(0), share(2), share(3), share(4)].as_slice(), &slices].concat();
    let measured = machine.gpus.measure(all.iter().map(|held| (task, held.clone())).collect(), PATIENCE);
    let told = |held: &Held| measured.of(task, held).map(|sample| (sample.memory, sample.utilisation, sample.power));
    // The process is ours, and no task's: it is what takes the power; of a card at rest who holds it takes all.
    let nothing = |power| Some((Some(0), Some(0), Some(power)));
    let memory_alone = |bytes| Some((Some(bytes), None, None));
    let shares = [nothing(0), memory_alone(0), nothing(71_000), Some((None, None, None))];
    assert_eq!(all[..4].iter().map(told).collect::<Vec<_>>(), shares);
    // A seventh of the card at 20 % beside two at 30 %; where slices do not tell, or are parts of one, their memory alone.
    let of_slices = [
        Some((Some(12), Some(20), Some(71_000 * 142 * 20 / (142 * 20 + 285 * 30)))),
        memory_alone(12),
        memory_alone(12),
    ];
    assert_eq!(all[4..].iter().map(told).collect::<Vec<_>>(), of_slices);
    assert!(measured.cards.is_empty());
}

#[test]
fn a_card_that_comes_beside_healthy_ones_is_noticed_by_the_kernel_s_list() {
    let machine = Machine::with(&cards(1));
    machine.look();
    machine.fake.shows(&cards(2));
    // NVML has counted them.
    assert_eq!(names(&machine.look()), [uuid(0)]);
    std::fs::create_dir_all(machine.directory.path().join("driver/gpus/0000:1c:00.0")).unwrap();
    assert_eq!(names(&machine.look()), [uuid(0), uuid(1)]);
}

#[test]
fn a_library_that_is_slow_to_come_up_is_not_brought_up_at_each_look_for_a_card_that_is_lost() {
    let seldom = |settings| Settings { anew_every: Duration::from_secs(3600), ..settings };
    let machine = Machine::watched(&cards(2), seldom);
    machine.look();
    machine.fake.shows(&format!("slow.nvmlInit_v2 = 600000\n{}", cards(1)));
    for _ in 0..3 {
        let before = machine.gpus.last();
        let found = machine.look();
        assert!(!Arc::ptr_eq(&before, &found), "it was looked at anew");
        assert_eq!((rules(&found.cards[0]), rules(&found.cards[1])), (vec![], vec!["lost"]));
    }
}

#[test]
fn how_long_a_look_has_taken_is_told_with_what_was_found() {
    let machine = Machine::with(&format!("slow.nvmlDeviceGetTemperature = 700\n{}", cards(2)));
    let found = machine.look();
    assert!(found.took_ms >= 1400, "{}", found.took_ms);
    assert_eq!(found.until().unwrap().0, found.at.unwrap().0 + found.took_ms);
}

#[test]
fn a_card_without_its_device_is_unusable_and_nvidia_s_own_program_is_asked_for_it_a_few_times() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let (devices, maker, asked) = (place.path().join("dev"), place.path().join("maker"), place.path().join("asked"));
    std::fs::create_dir(&devices).unwrap();
    std::fs::write(&maker, format!("#!/bin/sh\necho \"$@\" >> {}\n", asked.display())).unwrap();
    std::fs::set_permissions(&maker, std::fs::Permissions::from_mode(0o755)).unwrap();
    let looks =
        |settings| Settings { devices: Some(devices.clone()), maker: Some(maker.display().to_string()), ..settings };
    let machine = Machine::watched(&cards(1), looks);
    for _ in 0..5 {
        let found = machine.look();
        assert_eq!(rules(&found.cards[0]), ["no-device"]);
        assert_eq!(health::worst(&found.cards[0].findings), Some(Level::Unusable));
        let says = format!(
            "{}/nvidia7 is missing, the device of {}; `nvidia-modprobe -c 7` makes it",
            devices.display(),
            uuid(0)
        );
        assert_eq!(found.cards[0].findings[0].says, says);
    }
    let asked = std::fs::read_to_string(asked).unwrap();
    let mut asked: Vec<&str> = asked.lines().collect();
    asked.sort_unstable();
    // What all cards need as well: the first of that which is not there.
    assert_eq!(asked, ["-c 255", "-c 255", "-c 255", "-c 7", "-c 7", "-c 7"]);
}

#[test]
fn a_program_that_is_to_be_ignored_is_known_by_its_file_which_nobody_but_root_can_have_made() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let program = std::fs::canonicalize("/bin/sleep").unwrap();
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    // As a user could have it under the same name, or show it under that in a place of their own.
    let shown = place.path().join("Xorg");
    std::fs::write(&shown, "").unwrap();
    let show = format!("mount --bind {} {place} && exec {place} 1000", program.display(), place = shown.display());
    let own = place.path().join(&name);
    std::fs::copy(&program, &own).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut commands = [Path::new("/bin/sleep"), &own, Path::new("unshare")].map(std::process::Command::new);
    for command in &mut commands[..2] {
        std::os::unix::process::CommandExt::arg0(command.arg("1000"), "sleep");
    }
    commands[2].args(["-rm", "sh", "-c", &show]);
    let mut children = commands.map(|mut command| command.spawn().unwrap());
    let pids = children.each_ref().map(std::process::Child::id);
    wait_for("what is shown to run", || {
        std::fs::read_link(format!("/proc/{}/exe", pids[2])).ok()?.ends_with("Xorg").then_some(())
    });
    let processes = format!("processes = [{}]", pids.map(|pid| format!("{{ pid = {pid}, bytes = 1 }}")).join(", "));
    let text = format!("driver = \"1\"\n{}", card(0, &processes));
    let ignored = |names: &[&str]| {
        let ignore: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let found = Machine::watched(&text, |settings| Settings { ignore, ..settings }).look();
        let usage = found.cards[0].usage.clone().unwrap();
        usage.processes.unwrap().iter().map(|process| process.is_ignored).collect::<Vec<_>>()
    };
    assert_eq!(ignored(&["Xorg", &name]), [true, false, false]);
    assert_eq!(ignored(&["Xorg"]), [false; 3]);
    children.iter_mut().for_each(|child| {
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn what_a_crash_of_a_program_has_left_is_no_longer_told_a_day_later() {
    let directory = tempfile::tempdir().unwrap();
    let fake = FakeNvml::without_driver(directory.path());
    let kept = format!("{{\"driver\":null,\"of\":{{\"{}\":{{\"31\":0,\"43\":0,\"79\":0}}}}}}", uuid(0));
    std::fs::write(directory.path().join("xids.json"), kept).unwrap();
    fake.shows(&cards(1));
    fake.install();
    let found = watch(directory.path()).look(PATIENCE);
    assert_eq!(rules(&found.cards[0]), ["xid-79"]);
}
