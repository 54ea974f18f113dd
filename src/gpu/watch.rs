//! Looks at the cards, every now and then and when it is asked to, on a thread of its own; a second one hears XIDs. They are those of
//! the [role](super::role).
//!
//! ```text
//! missing ──library comes up──► opened ──driver is gone, a card is lost or back──► opened anew, or missing
//! ```
//!
//! NVML counts the cards when it is initialised, and not again. So it is initialised anew when the kernel lists other cards than
//! before, and every now and then as long as a card that there was is missing: that may take seconds, and holds up all others.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use serde::{Deserialize, Serialize};

use super::names::Names;
use super::nodes::{Keeper, PLACES, Places};
use super::nvml::{self, Heard, Placed, Users};
use super::xids::Xids;
use super::{Card, Driver, Held, Inventory, Link, Measured, Signs, Topology, health, library, measuring};
use crate::ids::{GpuUuid, TaskId, Timestamp};
use crate::sys::now;

/// How often cards are looked at if nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often who waits for XIDs looks whether it is to end.
const LISTEN_MS: u32 = 1000;
/// How long its end is waited for; it may hang with the driver.
const LISTENER_ENDS: Duration = Duration::from_secs(5);
/// What has been found so long ago no longer counts: NVML does not answer.
const STALE: Duration = Duration::from_secs(30);
/// The kernel's part of the driver, while it is loaded.
const MODULE: &str = "/sys/module/nvidia";

/// Also when its file has been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The program whose role `cards` looks at them.
    pub program: PathBuf,
    /// The driver's library; it is looked for when absent.
    pub library: Option<PathBuf>,
    /// Where XIDs are kept.
    pub xids: Option<PathBuf>,
    /// By whom looks at the cards; else by another one.
    pub keeps_xids: bool,
    /// The control group below which tasks have theirs.
    pub tasks_group: Option<String>,
    /// Programs that keep nobody from a card, by the names of their files.
    pub ignore: Vec<String>,
    /// Where nodes of devices lie; nobody looks for them when absent.
    pub devices: Option<PathBuf>,
    /// The program that makes those that are missing; nobody does when absent.
    pub maker: Option<String>,
    /// Where the kernel's part of the driver tells of itself.
    pub driver: PathBuf,
    /// How soon NVML is initialised anew for what it misses.
    pub anew_every: Duration,
    /// How soon the ways between cards are looked at again: NVLinks work only some time after the driver does, and may fail.
    pub ways_every: Duration,
}

impl Default for Settings {
    /// Of this machine, on which nothing is changed and nothing kept.
    fn default() -> Self {
        Self {
            program: THIS_PROGRAM.into(),
            library: None,
            xids: None,
            keeps_xids: false,
            tasks_group: None,
            ignore: Vec::new(),
            devices: Some(PLACES.0.into()),
            maker: None,
            driver: PLACES.1.into(),
            anew_every: Duration::from_secs(20),
            ways_every: Duration::from_secs(300),
        }
    }
}

/// Ends its threads when it is dropped.
#[derive(Debug)]
pub(super) struct Watch(Sender<Word>);

/// Hears what was asked for.
pub(super) type Answer<T> = Box<dyn FnOnce(T) + Send>;

enum Word {
    /// Look now, with usage.
    Look(Answer<()>),
    Measure(Question),
    Xid {
        uuid: Option<GpuUuid>,
        number: u64,
    },
    /// No more XIDs will be heard from this initialisation.
    Deaf,
    End,
}

/// What tasks do with what they have of cards; nobody waits for an answer after `until`.
struct Question {
    wanted: Vec<(TaskId, Held)>,
    until: Instant,
    answer: Answer<Measured>,
}

/// What is told of each look, and whether there is something else to see than before, use apart.
type Tell = Box<dyn Fn(&Inventory, bool) + Send>;

impl Watch {
    /// Begins to look, after `before` was found. Waits for nothing.
    pub(super) fn start(settings: Settings, before: Inventory, seen: Tell) -> io::Result<Self> {
        let (words, inbox) = channel();
        let file = settings.xids.as_deref();
        let xids = if settings.keeps_xids { Xids::open(file) } else { Xids::of_another(file) };
        let nodes = Keeper::new(settings.maker.clone());
        let watcher = Watcher {
            nodes,
            names: Names::default(),
            settings,
            inbox,
            words: words.clone(),
            found: before,
            seen,
            xids,
            opened: None,
            listing: BTreeSet::new(),
            away: BTreeSet::new(),
        };
        Builder::new().name("gpus".to_owned()).spawn(move || watcher.run())?;
        Ok(Self(words))
    }

    /// Has the cards be looked at, with what uses them; what was found is told before the answer comes.
    pub(super) fn look(&self, answer: Answer<()>) {
        // It has ended if nobody hears.
        let _ = self.0.send(Word::Look(answer));
    }

    /// What tasks do now with what they have, and nothing else, so that it costs little.
    pub(super) fn measure(&self, wanted: Vec<(TaskId, Held)>, patience: Duration, answer: Answer<Measured>) {
        let question = Question { wanted, until: Instant::now() + patience, answer };
        let _ = self.0.send(Word::Measure(question));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.send(Word::End);
    }
}

impl Inventory {
    /// NVML has not answered for so long that it counts no more.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.until().is_none_or(|until| u128::from(now.0.saturating_sub(until.0)) > STALE.as_millis())
    }

    /// When all of this was found.
    pub fn until(&self) -> Option<Timestamp> {
        Some(Timestamp(self.at?.0.saturating_add(self.took_ms)))
    }
}

struct Watcher {
    settings: Settings,
    inbox: Receiver<Word>,
    /// For those who hear XIDs.
    words: Sender<Word>,
    found: Inventory,
    seen: Tell,
    xids: Xids,
    nodes: Keeper,
    names: Names,
    opened: Option<Opened>,
    /// As the kernel had it when NVML was initialised last.
    listing: BTreeSet<OsString>,
    /// Cards that were gone while NVML answered, and are not back: only a reset, or more, brings them back.
    away: BTreeSet<GpuUuid>,
}

/// NVML, initialised.
struct Opened {
    nvml: Arc<Nvml>,
    driver: Driver,
    cards: Vec<Placed>,
    nameless: Vec<String>,
    topology: Topology,
    /// When that was looked at.
    topology_at: Instant,
    /// A card has failed to tell something of itself, and may when it is asked again.
    is_vague: bool,
    listener: Listener,
    is_deaf: bool,
    since: Instant,
}

struct Listener {
    over: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl Watcher {
    fn run(mut self) {
        let mut asked: Vec<Answer<()>> = Vec::new();
        loop {
            self.look(!asked.is_empty());
            asked.drain(..).for_each(|answer| answer(()));
            match self.hear() {
                Some(next) => asked = next,
                None => return self.close(),
            }
        }
    }

    /// Until it is time to look again: who asks for that. `None` at the end.
    fn hear(&mut self) -> Option<Vec<Answer<()>>> {
        let mut asked = Vec::new();
        let due = Instant::now() + LOOK_EVERY;
        let mut next = loop {
            match self.inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                // That is no reason to look at everything.
                Ok(Word::Measure(question)) => self.measure(question),
                Ok(word) => break Some(word),
                Err(RecvTimeoutError::Timeout) => break None,
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        };
        while let Some(word) = next {
            match word {
                Word::Look(answer) => asked.push(answer),
                Word::Measure(question) => self.measure(question),
                Word::Xid { uuid, number } => self.heard(uuid, number),
                Word::Deaf => self.opened.iter_mut().for_each(|opened| opened.is_deaf = true),
                Word::End => return None,
            }
            next = self.inbox.try_recv().ok();
        }
        Some(asked)
    }

    fn measure(&self, question: Question) {
        let (at, tasks_group) = (now(), self.settings.tasks_group.as_deref());
        let is_wanted = Instant::now() < question.until;
        let measured = match self.opened.as_ref().filter(|_| is_wanted) {
            Some(opened) => measuring::measure(&opened.nvml, &opened.cards, &question.wanted, tasks_group, at),
            None => Measured::nothing(at),
        };
        (question.answer)(measured);
    }

    fn heard(&mut self, uuid: Option<GpuUuid>, number: u64) {
        let Some(uuid) = uuid else {
            tracing::warn!(xid = number, "the driver reports an error of a card that does not say which it is");
            return;
        };
        tracing::warn!(gpu = %uuid, xid = number, "the driver reports an error of a card");
        self.xids.heard(&uuid, number, now());
    }

    fn look(&mut self, with_usage: bool) {
        // What changes while it is looked at counts as seen after it.
        let (begun, began) = (now(), Instant::now());
        let before = std::mem::take(&mut self.found);
        if self.is_to_be_opened(&before) {
            self.close();
            self.listing = self.listed();
        }
        let mut found = match self.open() {
            Err(reason) => Inventory { driver: Driver::Missing { reason }, ..Inventory::default() },
            Ok(()) => self.read(with_usage, begun),
        };
        // Devices may have to be made for long, and who uses the cards was asked before.
        found.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.add_lost(&before, &mut found);
        in_order(&mut found);
        if let Some(devices) = &self.settings.devices {
            self.nodes.look(Places { devices, driver: &self.settings.driver }, &mut found.cards);
        }
        for card in &mut found.cards {
            if card.signs.lost.is_none() && self.away.remove(&card.facts.uuid) {
                self.xids.forget(&card.facts.uuid);
            }
            card.signs.xids = self.xids.of(&card.facts.uuid);
            card.signs.xids.retain(|xid| !health::has_passed(xid, begun));
            let kept = self.xids.file().map(|file| health::Kept { file, uuid: &card.facts.uuid });
            card.findings = health::judge(&card.signs, kept);
        }
        found.at = Some(begun);
        tell(&before, &found);
        (self.seen)(&found, differs(&before, &found));
        self.found = found;
    }

    fn is_to_be_opened(&self, before: &Inventory) -> bool {
        let Some(opened) = &self.opened else { return true };
        let misses = before.cards.iter().any(|card| card.signs.lost.is_some()) || !opened.nameless.is_empty();
        let may_help = misses || opened.cards.is_empty() || opened.is_vague || opened.is_deaf;
        (may_help && opened.since.elapsed() >= self.settings.anew_every) || self.listed() != self.listing
    }

    /// The cards that the kernel's part of the driver has.
    fn listed(&self) -> BTreeSet<OsString> {
        let listed = std::fs::read_dir(self.settings.driver.join("gpus"));
        listed.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
    }

    /// Initialises NVML if it is not; else why it cannot be.
    fn open(&mut self) -> Result<(), String> {
        if self.opened.is_none() {
            let candidates = library::candidates(self.settings.library.as_deref(), Path::new("/"));
            let nvml = Arc::new(nvml::open(&candidates)?);
            self.opened = Some(Opened::of(nvml, self.words.clone()).map_err(|error| error.to_string())?);
            self.xids.driver_is(load_of_driver(Path::new(MODULE)));
        }
        Ok(())
    }

    /// Lets NVML go. It is let go in truth when who hears XIDs has let it go as well.
    fn close(&mut self) {
        if let Some(Opened { listener, .. }) = self.opened.take() {
            listener.over.store(true, Ordering::SeqCst);
            // An error says that it has ended, or hangs with the driver.
            let _ = listener.ended.recv_timeout(LISTENER_ENDS);
        }
    }

    fn read(&mut self, with_usage: bool, now: Timestamp) -> Inventory {
        let Some(opened) = &mut self.opened else { return Inventory::default() };
        // Whether the driver is there at all.
        if let Err(error) = nvml::driver(&opened.nvml) {
            let driver = Driver::Missing { reason: format!("the NVIDIA driver has gone: {error}") };
            self.close();
            return Inventory { driver, ..Inventory::default() };
        }
        if opened.topology_at.elapsed() >= self.settings.ways_every {
            (opened.topology, opened.topology_at) = (nvml::topology(&opened.nvml, &opened.cards), Instant::now());
        }
        let away = &mut self.away;
        let settings = &self.settings;
        let users =
            Users { tasks_group: settings.tasks_group.as_deref(), ignored: &settings.ignore, names: &self.names };
        let usage = with_usage.then_some(users);
        let read = |card: &Placed| read_card(&opened.nvml, card, usage, now, away);
        Inventory {
            driver: opened.driver.clone(),
            cards: opened.cards.iter().map(read).collect(),
            nameless: opened.nameless.clone(),
            topology: opened.topology.clone(),
            at: None,
            took_ms: 0,
        }
    }

    /// Cards that there were and are not: they are missed until they are back or the daemon starts anew.
    fn add_lost(&mut self, before: &Inventory, found: &mut Inventory) {
        let how = match &found.driver {
            Driver::Missing { reason } => reason.clone(),
            Driver::Loaded { .. } => "the driver no longer has it".to_owned(),
        };
        let is_there = |card: &Card| found.cards.iter().any(|other| other.facts.uuid == card.facts.uuid);
        let gone = before.cards.iter().filter(|card| !is_there(card));
        let gone = gone.map(|card| Card {
            facts: card.facts.clone(),
            signs: Signs { lost: Some(how.clone()), ..Signs::default() },
            mig: card.mig,
            slices: Vec::new(),
            findings: Vec::new(),
            usage: None,
        });
        let gone: Vec<Card> = gone.collect();
        // A nameless one may be one of them, and merely fail to tell its name.
        if matches!(found.driver, Driver::Loaded { .. }) && found.nameless.is_empty() {
            self.away.extend(gone.iter().map(|card| card.facts.uuid.clone()));
        }
        found.cards.extend(gone);
    }
}

/// In the order of their places on the bus, those that are gone as well.
fn in_order(found: &mut Inventory) {
    let mut cards: Vec<(usize, Card)> = std::mem::take(&mut found.cards).into_iter().enumerate().collect();
    cards.sort_by(|(_, a), (_, b)| a.facts.bus.cmp(&b.facts.bus));
    let (places, cards): (Vec<usize>, Vec<Card>) = cards.into_iter().unzip();
    let place = |at: usize| places.get(at).copied();
    let link = |a, b| place(a).zip(place(b)).map_or(Link::Unknown, |(a, b)| found.topology.link(a, b));
    found.topology = Topology::of(cards.len(), link);
    found.cards = cards;
}

/// Those that are gone, and not merely not to be asked, come to those that are `away`.
fn read_card(
    nvml: &Nvml,
    (index, facts): &Placed,
    usage: Option<Users<'_>>,
    now: Timestamp,
    away: &mut BTreeSet<GpuUuid>,
) -> Card {
    let mut card = Card {
        facts: facts.clone(),
        mig: false,
        slices: Vec::new(),
        signs: Signs::default(),
        findings: Vec::new(),
        usage: None,
    };
    match nvml.device_by_index(*index) {
        Err(error) => {
            if nvml::is_gone(&error) {
                away.insert(facts.uuid.clone());
            }
            card.signs.lost = Some(error.to_string());
        }
        Ok(device) => {
            card.signs = nvml::signs(&device, now);
            if card.signs.lost.is_some() {
                away.insert(facts.uuid.clone());
            }
            card.mig = nvml::is_mig(&device);
            let nvml::Slices { found: slices, are_untold } = nvml::slices(&device);
            card.signs.slices_untold = are_untold;
            card.usage = usage.map(|users| nvml::usage(&device, &slices, users));
            card.slices = slices.into_iter().map(|(slice, _)| slice).collect();
        }
    }
    card
}

impl Opened {
    fn of(nvml: Arc<Nvml>, words: Sender<Word>) -> Result<Self, nvml_wrapper::error::NvmlError> {
        let count = nvml.device_count()?;
        let (mut cards, mut nameless, mut is_vague) = (Vec::new(), Vec::new(), false);
        for index in 0..count {
            match nvml.device_by_index(index).and_then(|device| nvml::facts(&device)) {
                Ok((facts, failed)) => {
                    cards.push((index, facts));
                    is_vague |= failed;
                }
                Err(error) => nameless.push(format!("card {index} does not answer: {error}")),
            }
        }
        let (driver, topology, now) = (nvml::driver(&nvml)?, nvml::topology(&nvml, &cards), Instant::now());
        let listener = Listener::start(nvml.clone(), count, words);
        Ok(Self {
            nvml,
            driver,
            cards,
            nameless,
            topology,
            topology_at: now,
            is_vague,
            listener,
            is_deaf: false,
            since: now,
        })
    }
}

impl Listener {
    fn start(nvml: Arc<Nvml>, count: u32, words: Sender<Word>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (sender, ended) = channel();
        let heeds = over.clone();
        let listen = move || {
            listen(&nvml, count, &words, &heeds);
            // NVML is let go before that is told.
            drop(nvml);
            drop(sender);
        };
        if let Err(error) = Builder::new().name("xids".to_owned()).spawn(listen) {
            tracing::warn!(%error, "errors of cards will not be heard");
        }
        Self { over, ended }
    }
}

fn listen(nvml: &Nvml, count: u32, words: &Sender<Word>, over: &AtomicBool) {
    let Some(set) = nvml::xid_events(nvml, count) else { return };
    while !over.load(Ordering::SeqCst) {
        let word = match nvml::wait_for_xid(&set, LISTEN_MS) {
            Heard::Nothing => continue,
            Heard::Xid { uuid, number } => Word::Xid { uuid, number },
            Heard::Broken => Word::Deaf,
        };
        let is_last = matches!(word, Word::Deaf);
        if words.send(word).is_err() || is_last {
            return;
        }
    }
}

/// Whether there is something else to see than before, use apart.
fn differs(before: &Inventory, found: &Inventory) -> bool {
    let cards = |found: &Inventory| {
        let card = |card: &Card| (card.facts.clone(), card.mig, card.slices.clone(), card.findings.clone());
        found.cards.iter().map(card).collect::<Vec<_>>()
    };
    let is_same = (&before.driver, &before.topology) == (&found.driver, &found.topology);
    before.at.is_none() || !is_same || cards(before) != cards(found)
}

/// Which load of the driver this is: the kernel gives each folder of sysfs a number of its own when it is made. Its times are
/// no such sign, they are those of whoever looked first.
fn load_of_driver(module: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(module).ok().map(|found| found.ino())
}

/// What has changed, in the journal.
fn tell(before: &Inventory, found: &Inventory) {
    if before.driver != found.driver {
        match &found.driver {
            Driver::Missing { reason } => tracing::info!(%reason, "no GPUs"),
            Driver::Loaded { version, .. } => tracing::info!(driver = %version, cards = found.cards.len(), "GPUs"),
        }
    }
    for card in &found.cards {
        let old = before.cards.iter().find(|old| old.facts.uuid == card.facts.uuid);
        let findings = old.map_or(&[][..], |old| &old.findings);
        let is_new = |finding: &&health::Finding| findings.iter().all(|old| old.rule != finding.rule);
        for finding in card.findings.iter().filter(is_new) {
            tracing::warn!(gpu = %card.facts.uuid, rule = %finding.rule, reason = %finding.says, "a card is not well");
        }
        if !findings.is_empty() && card.findings.is_empty() {
            tracing::info!(gpu = %card.facts.uuid, "a card is well again");
        }
    }
}
