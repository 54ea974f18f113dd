//! Cards, limits of the kernel, the clock.

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::{Machine, Verdict, daemons, failure, ok, warning};
use crate::gpu::cdi::Wanted;
use crate::gpu::driver_files::{self, Capabilities, Sources};
use crate::gpu::health::{self, worst};
use crate::gpu::{Card, Driver, Gpus, Inventory, Settings};

/// NVML may hang with a card.
const PATIENCE: Duration = Duration::from_secs(15);
const NVIDIA: &str = "0x10de";

pub(super) fn driver(machine: &Machine) -> Verdict {
    look_at_cards(machine, |seen| of_cards(seen, has_nvidia_device()))
}

/// Whether images can be shown what their programs need of the driver.
pub(super) fn driver_files(machine: &Machine) -> Verdict {
    let gpu = &machine.config.gpu;
    let sources = Sources::of_environment(gpu.library.clone(), gpu.cdi.clone());
    look_at_cards(machine, |seen| of_files(seen, &sources))
}

fn look_at_cards(machine: &Machine, tell: impl FnOnce(&Inventory) -> Verdict) -> Verdict {
    // The daemon keeps what it has heard; here nothing is written.
    let (library, xids) = (machine.config.gpu.library.clone(), Some(machine.paths.xids()));
    let settings = || Settings { library, xids, ..Settings::default() };
    let look = || {
        let (tell, told) = channel();
        match Gpus::start(settings(), move |seen| tell.send(seen).unwrap_or_default()) {
            // What is found first, or why nothing can be.
            Ok(gpus) => Ok(Inventory::clone(&told.recv_timeout(PATIENCE).unwrap_or_else(|_| gpus.last()))),
            Err(error) => Err(error.to_string()),
        }
    };
    match machine.cards.get_or_init(look) {
        Ok(Inventory { at: None, driver: Driver::Missing { reason }, .. }) => warning(
            format!("nothing is known of the machine's cards: {reason}"),
            "see whether `nvidia-smi` answers, and what the journal says of `trainyard cards`, which asks NVIDIA's library",
        ),
        Ok(seen) => tell(seen),
        Err(error) => warning(format!("the cards cannot be looked at: {error}"), "see whether threads can be started"),
    }
}

fn of_files(seen: &Inventory, sources: &Sources) -> Verdict {
    let Driver::Loaded { version, .. } = &seen.driver else { return ok("no driver that images could be shown") };
    let found = Capabilities::parse(None)
        .and_then(|usual| driver_files::find(sources, version, &usual, &all_of(&seen.cards), Path::new("/")));
    match found {
        Ok(files) if files.remarks.is_empty() => {
            ok(format!("driver {version}: images are shown {} files of it", files.files.len()))
        }
        Ok(files) => warning(
            format!("not all of the driver's description for containers is followed: {}", files.remarks.join("; ")),
            "make it anew (`nvidia-ctk cdi generate`), or take its folder out of [gpu] cdi: the files are found without it too",
        ),
        Err(why) => failure(
            format!("tasks with cards cannot start in images: {why}"),
            "put that right; tasks without an image have the machine's own files",
        ),
    }
}

/// The cards, or their slices, as tasks could have them.
fn all_of(cards: &[Card]) -> Vec<Wanted<'_>> {
    cards
        .iter()
        .filter_map(|card| Some((card, card.facts.minor?)))
        .flat_map(|(card, minor)| of_card(card, minor))
        .collect()
}

fn of_card(card: &Card, minor: u32) -> Vec<Wanted<'_>> {
    let wanted = |slice| Wanted { uuid: &card.facts.uuid, minor, slice };
    match card.is_cut_up() {
        false => vec![wanted(None)],
        true => card.slices.iter().map(|slice| wanted(Some(&slice.uuid))).collect(),
    }
}

/// Whether the machine has a card, driver or not.
fn has_nvidia_device() -> bool {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    // Also what is no card, such as its sound: the class says.
    let is_card = |device: std::path::PathBuf| {
        let read = |file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
        read("vendor").trim() == NVIDIA && read("class").starts_with("0x03")
    };
    devices.map(|device| device.path()).any(is_card)
}

fn of_cards(inventory: &Inventory, has_device: bool) -> Verdict {
    let version = match &inventory.driver {
        Driver::Missing { reason } if has_device => {
            return warning(
                format!("there is an NVIDIA card, and nothing to ask it by: {reason}"),
                "install NVIDIA's driver, or name its library by [gpu] library",
            );
        }
        Driver::Missing { .. } => return ok("no NVIDIA card"),
        Driver::Loaded { version, .. } => version,
    };
    let said: Vec<String> = inventory.cards.iter().filter_map(ill).chain(inventory.nameless.iter().cloned()).collect();
    let is_failed = |card: &Card| worst(&card.findings).is_some_and(|level| level >= health::Level::Unusable);
    let (found, advice) = (format!("driver {version}; {}", said.join("; ")), "`trainyard gpu` tells of all cards");
    match (said.is_empty(), inventory.cards.iter().any(is_failed)) {
        (true, _) => ok(format!("driver {version}, {} card(s)", inventory.cards.len())),
        (false, false) => warning(found, advice),
        (false, true) => failure(found, advice),
    }
}

/// What is wrong with a card, or a slice of it, first.
fn ill(card: &Card) -> Option<String> {
    let of_slice = || card.slices.iter().find_map(|slice| Some((&slice.uuid, slice.unreachable.as_ref()?)));
    let found = card.findings.first().map(|finding| (&card.facts.uuid, &finding.says)).or_else(of_slice);
    found.map(|(uuid, says)| format!("card {uuid}: {says}"))
}

/// A job takes some watches for its code and logs, each workspace a few.
const WATCHES: u64 = 65_536;
const INSTANCES: u64 = 128;

pub(super) fn inotify(_: &Machine) -> Verdict {
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    of_watches(limit("max_user_watches"), limit("max_user_instances"))
}

fn of_watches(watches: u64, instances: u64) -> Verdict {
    let found = format!("{watches} watches, {instances} instances");
    match watches < WATCHES || instances < INSTANCES {
        true => warning(
            format!("{found}: job files and logs may be noticed late"),
            format!("sysctl fs.inotify.max_user_watches={WATCHES} fs.inotify.max_user_instances={INSTANCES}, or more"),
        ),
        false => ok(found),
    }
}

/// Each task and each open file of the mount takes some.
const OPEN_FILES: u64 = 65_536;

pub(super) fn open_files(machine: &Machine) -> Verdict {
    let limits = match daemons(machine, "limits") {
        Ok(limits) => limits,
        Err(verdict) => return verdict,
    };
    match limits.as_deref().map(hard_limit) {
        None => ok("no daemon runs"),
        Some(Some(hard)) if hard < OPEN_FILES => warning(
            format!("the daemon may have {hard} files open"),
            format!("start it with {OPEN_FILES} or more: LimitNOFILE= in a unit, `ulimit -Hn` by hand"),
        ),
        Some(Some(hard)) => ok(format!("the daemon may have {hard} files open")),
        Some(None) => ok("the daemon may have any number of files open"),
    }
}

/// By `/proc/PID/limits`; `None` where there is none.
fn hard_limit(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    row.split_whitespace().nth(1)?.parse().ok()
}

pub(super) fn time(_: &Machine) -> Verdict {
    match crate::sys::clock_is_synchronized() {
        Ok(true) => ok("the clock is synchronized"),
        Ok(false) => warning(
            "the clock is not synchronized: time limits and certificates of registries go by it",
            "turn on systemd-timesyncd or chrony",
        ),
        Err(error) => warning(format!("the clock cannot be asked: {error}"), "turn on systemd-timesyncd or chrony"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use crate::gpu::{Facts, Signs};

    #[test]
    fn a_machine_without_cards_is_well_and_a_card_without_a_driver_is_not() {
        let none = Inventory { driver: Driver::Missing { reason: "no library".to_owned() }, ..Inventory::default() };
        assert_eq!(of_cards(&none, false).level, Level::Ok);
        assert_eq!(of_cards(&none, true).level, Level::Warning);
    }

    #[test]
    fn all_cards_that_are_not_well_are_told_and_a_failed_one_is_a_failure() {
        let card = |number: u32, level: Option<health::Level>| {
            let finding = |level| health::Finding { rule: "r".to_owned(), level, says: format!("said of {number}") };
            Card {
                facts: Facts {
                    uuid: format!("GPU-{number}").parse().unwrap(),
                    name: String::new(),
                    minor: Some(number),
                    bus: String::new(),
                    numa_node: None,
                    cpus: Vec::new(),
                    memory: None,
                },
                mig: false,
                slices: Vec::new(),
                signs: Signs::default(),
                findings: level.map(finding).into_iter().collect(),
                usage: None,
            }
        };
        let of = |levels: [Option<health::Level>; 3]| {
            let driver = Driver::Loaded { version: "580".to_owned(), cuda: None };
            let cards = (0..).zip(levels).map(|(number, level)| card(number, level)).collect();
            of_cards(&Inventory { driver, cards, ..Inventory::default() }, true)
        };
        assert_eq!(of([None, None, None]).level, Level::Ok);
        let slowed = of([Some(health::Level::Warning), None, None]);
        assert_eq!((slowed.level, slowed.found.as_str()), (Level::Warning, "driver 580; card GPU-0: said of 0"));
        let failed = of([Some(health::Level::Warning), None, Some(health::Level::Failed)]);
        assert_eq!(failed.level, Level::Failed);
        assert!(failed.found.contains("said of 0; card GPU-2: said of 2"), "{}", failed.found);
        assert_eq!(of([None, None, Some(health::Level::Unusable)]).level, Level::Failed);
    }

    #[test]
    fn the_limit_is_the_hard_one() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!(hard_limit(limits), Some(524_288));
        assert_eq!(hard_limit("Max open files  unlimited  unlimited  files\n"), None);
    }

    #[test]
    fn small_limits_are_told_with_what_to_set() {
        let few = of_watches(8192, 128);
        assert_eq!(few.level, Level::Warning);
        assert!(few.advice.unwrap().contains("max_user_watches=65536"));
        assert_eq!(of_watches(65_536, 128).level, Level::Ok);
    }
}
