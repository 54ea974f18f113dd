//! What the file says there is, and what this library has handed out of it.
//!
//! As the real library, it counts cards when it is initialised: one that goes later is lost, one that comes is not there
//! before the next initialisation.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;

/// The file `nvml.toml` in the directory of this library.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Machine {
    pub(crate) driver: String,
    /// As the real one has it: 13000 for 13.0.
    pub(crate) cuda: i32,
    /// What calls answer instead, by symbol and for all cards: `"NOT_SUPPORTED"`.
    pub(crate) errors: BTreeMap<String, String>,
    /// Milliseconds that calls take, by symbol.
    pub(crate) slow: BTreeMap<String, u64>,
    pub(crate) card: Vec<Card>,
    /// Pairs of indices and their common ancestor, from 0 (one board) by tens to 50 (another socket), which is that of all others.
    pub(crate) ancestors: Vec<(usize, usize, u32)>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Card {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) minor: u32,
    pub(crate) bus: String,
    pub(crate) numa: Option<u32>,
    pub(crate) cpus: Vec<u32>,
    pub(crate) memory: u64,
    pub(crate) used: u64,
    /// Percent.
    pub(crate) utilisation: u32,
    /// Thousandths of a watt.
    pub(crate) power: u32,
    pub(crate) power_limit: u32,
    pub(crate) temperature: u32,
    /// Bits.
    pub(crate) throttle: u64,
    pub(crate) processes: Vec<Process>,
    /// Where each link leads: the bus of a card, or of a switch; empty for one that is down.
    pub(crate) nvlinks: Vec<String>,
    pub(crate) ecc: Option<Ecc>,
    /// Times of pages that were retired for double-bit errors, in microseconds.
    pub(crate) retired_double: Vec<u64>,
    pub(crate) retired_single: u32,
    pub(crate) retired_pending: Option<bool>,
    /// Values of fields, by number.
    pub(crate) fields: BTreeMap<String, u64>,
    /// Told once each, in this order.
    pub(crate) xids: Vec<u64>,
    pub(crate) mig: Vec<Slice>,
    /// 1 is on; as there are slices when absent.
    pub(crate) mig_mode: Option<u32>,
    /// As those of the machine, for this card alone.
    pub(crate) errors: BTreeMap<String, String>,
}

impl Card {
    pub(crate) fn mig_mode(&self) -> u32 {
        self.mig_mode.unwrap_or(u32::from(!self.mig.is_empty()))
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// That is not told where it is absent.
    pub(crate) bytes: Option<u64>,
    /// Percent of the card that it keeps busy; there is no sample of one that does not say.
    pub(crate) busy: Option<u32>,
    pub(crate) kind: Kind,
}

/// What a process does on a card, each of which is asked for by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    #[default]
    Compute,
    Graphics,
    Both,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ecc {
    pub(crate) corrected: u64,
    pub(crate) uncorrected: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Slice {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) memory: u64,
    pub(crate) used: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
    /// Percent that GPM tells of its instance; it tells nothing of one that does not say.
    pub(crate) busy: Option<f64>,
    pub(crate) processes: Vec<Process>,
    /// As those of a card, for this slice alone.
    pub(crate) errors: BTreeMap<String, String>,
}

/// A card or a slice of one.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    Card(Box<Card>),
    Slice(Slice),
}

#[derive(Default)]
pub(crate) struct World {
    machine: Machine,
    /// Of the file that `machine` was read from.
    stamp: Option<(u64, i64, i64)>,
    initialised: u32,
    /// UUIDs of the cards that there were then.
    counted: Vec<String>,
    /// UUIDs by handle, which is the place and one.
    handles: Vec<String>,
    /// XIDs that were told, by card.
    told: BTreeMap<String, usize>,
    /// Cards whose events are asked for.
    pub(crate) registered: Vec<String>,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
static FILE: LazyLock<PathBuf> = LazyLock::new(|| own_directory().join("nvml.toml"));

/// Where this library was loaded from: the mapping that holds one of its functions.
fn own_directory() -> PathBuf {
    let here = own_directory as *const () as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let holds = |line: &&str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
        range.contains(&here).then_some(())
    };
    let path = maps.lines().find(|line| holds(line).is_some()).and_then(|line| line.split_once('/'));
    path.map(|(_, path)| PathBuf::from(format!("/{path}")))
        .and_then(|path| Some(path.parent()?.to_owned()))
        .unwrap_or_default()
}

/// The world as the file has it now; waits as long as it says that `symbol` takes.
pub(crate) fn enter(symbol: &str) -> MutexGuard<'static, World> {
    let mut world = lock();
    world.look();
    let slow = world.machine.slow.get(symbol).copied();
    if let Some(ms) = slow {
        drop(world);
        pause(ms);
        world = lock();
    }
    world
}

pub(crate) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn pause(ms: u64) {
    let until = std::time::Instant::now() + Duration::from_millis(ms);
    while let Some(left) = until.checked_duration_since(std::time::Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

impl World {
    /// Reads the file if it is another one than before: none is a machine without cards, one that is not understood ends the test.
    pub(crate) fn look(&mut self) {
        let stamp = std::fs::metadata(&*FILE).ok().map(|found| (found.ino(), found.mtime(), found.mtime_nsec()));
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        self.machine = match std::fs::read_to_string(&*FILE).map(|text| toml::from_str(&text)) {
            Ok(Ok(machine)) => machine,
            Ok(Err(error)) => panic!("{}: {error}", FILE.display()),
            Err(_) => Machine::default(),
        };
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised > 0
    }

    pub(crate) fn initialise(&mut self) {
        if self.initialised == 0 {
            self.counted = self.machine.card.iter().map(|card| card.uuid.clone()).collect();
        }
        self.initialised += 1;
    }

    pub(crate) fn shut_down(&mut self) {
        self.initialised = self.initialised.saturating_sub(1);
        if self.initialised == 0 {
            self.registered.clear();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.counted.len()
    }

    /// The handle of a card by its index, as it was counted.
    pub(crate) fn handle_of_index(&mut self, index: usize) -> Option<usize> {
        let uuid = self.counted.get(index)?.clone();
        Some(self.handle_of(uuid))
    }

    pub(crate) fn handle_of(&mut self, uuid: String) -> usize {
        if let Some(at) = self.handles.iter().position(|known| *known == uuid) {
            return at + 1;
        }
        self.handles.push(uuid);
        self.handles.len()
    }

    /// What a handle stands for; none when it is lost.
    pub(crate) fn found(&self, handle: usize) -> Option<Found> {
        let uuid = self.handles.get(handle.checked_sub(1)?)?;
        if let Some(card) = self.machine.card.iter().find(|card| card.uuid == *uuid) {
            return Some(Found::Card(Box::new(card.clone())));
        }
        let mut slices = self.machine.card.iter().flat_map(|card| &card.mig);
        slices.find(|slice| slice.uuid == *uuid).cloned().map(Found::Slice)
    }

    pub(crate) fn index_of(&self, uuid: &str) -> Option<usize> {
        self.counted.iter().position(|known| known == uuid)
    }

    /// The next XID that was not told yet, and the handle of its card.
    pub(crate) fn next_xid(&mut self) -> Option<(usize, u64)> {
        for uuid in self.registered.clone() {
            let Some(card) = self.machine.card.iter().find(|card| card.uuid == uuid) else { continue };
            let told = self.told.entry(uuid.clone()).or_default();
            if let Some(xid) = card.xids.get(*told).copied() {
                *told += 1;
                return Some((self.handle_of(uuid), xid));
            }
        }
        None
    }
}
