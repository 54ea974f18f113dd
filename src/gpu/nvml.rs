//! What NVML tells, by the wrapper `nvml-wrapper`.
//!
//! Cards differ in what they tell, so an answer that a card does not give is absent, and only what says that the card
//! itself is gone counts as that. Nothing here waits for anything but the driver.

use std::path::PathBuf;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, RetirementCause, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::library::NAME;
use super::measuring;
use super::names::Names;
use super::{
    Driver, Ecc, Facts, Link, Process, Recovery, Remapped, Retired, Sample, Signs, Slice, Slowed, Topology, Usage,
};
use crate::ids::{GpuUuid, Timestamp};
use crate::sys::{cgroup, mig};

/// The first of the libraries that there is and that comes up; else why there are no cards.
pub(super) fn open(candidates: &[PathBuf]) -> Result<Nvml, String> {
    let mut reasons = Vec::new();
    for path in candidates {
        match Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => return Ok(nvml),
            Err(error) => reasons.push(why_not(path, &error)),
        }
    }
    // What was tried last is the most special: a file that there is, and not merely a name.
    Err(reasons.pop().unwrap_or_else(|| format!("{NAME} not found")))
}

fn why_not(path: &std::path::Path, error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) if error.to_string().contains("cannot open shared object file") => {
            format!("{} not found", path.display())
        }
        NvmlError::LibloadingError(error) => format!("{} cannot be loaded: {error}", path.display()),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded (`modprobe nvidia`)".to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "the NVIDIA driver in the kernel is of another version than its library; reboot, or load it anew".to_owned()
        }
        error => format!("{} does not come up: {error}", path.display()),
    }
}

pub(super) fn driver(nvml: &Nvml) -> Result<Driver, NvmlError> {
    let cuda = nvml.sys_cuda_driver_version().ok();
    let cuda = cuda.map(|version| {
        let (major, minor) =
            (nvml_wrapper::cuda_driver_version_major(version), nvml_wrapper::cuda_driver_version_minor(version));
        format!("{major}.{minor}")
    });
    Ok(Driver::Loaded { version: nvml.sys_driver_version()?, cuda })
}

/// Words of the sets of processors and nodes that are asked for: for 1,024 of them.
const SET_WORDS: usize = 16;

/// All but which card it is may be missing: then a card is had as any other, but nobody can ask for it by what it does not tell.
/// Beside it whether it may tell more when it is asked again.
pub(super) fn facts(device: &Device<'_>) -> Result<(Facts, bool), NvmlError> {
    let mut failed = false;
    let uuid = device.uuid()?;
    let uuid = uuid.parse().map_err(|_| NvmlError::Unknown)?;
    // By the node's memory: what NVML calls a card's node is that of its own memory, which few have.
    let nodes = device.memory_affinity(SET_WORDS, 0).map(|set| numbers(&set)).unwrap_or_default();
    let facts = Facts {
        uuid,
        name: told(device.name(), &mut failed)?.unwrap_or_else(|| NAMELESS.to_owned()),
        minor: device.minor_number().ok(),
        bus: told(device.pci_info(), &mut failed)?.map(|place| place.bus_id.to_lowercase()).unwrap_or_default(),
        numa_node: nodes.first().copied().filter(|_| nodes.len() == 1),
        cpus: device.cpu_affinity(SET_WORDS).map(|set| numbers(&set)).unwrap_or_default(),
        memory: told(device.memory_info(), &mut failed)?.map(|memory| memory.total),
    };
    Ok((facts, failed))
}

/// Of a card that does not tell what it is called.
const NAMELESS: &str = "unknown GPU";

/// `None` where it does not tell; whether that is by a failure, and not since it never does, is kept in `failed`.
fn told<T>(answer: Result<T, NvmlError>, failed: &mut bool) -> Result<Option<T>, NvmlError> {
    match answer {
        Err(error) if is_gone(&error) => Err(error),
        Err(error) => {
            let never = [NvmlError::NotSupported, NvmlError::NoPermission, NvmlError::FunctionNotFound];
            *failed |= !never.iter().any(|known| std::mem::discriminant(known) == std::mem::discriminant(&error));
            Ok(None)
        }
        Ok(value) => Ok(Some(value)),
    }
}

/// The numbers of a set that is told as bits.
fn numbers(words: &[std::os::raw::c_ulong]) -> Vec<u32> {
    let bits = std::os::raw::c_ulong::BITS;
    let of_word = |(at, word): (u32, &std::os::raw::c_ulong)| {
        let word = *word;
        (0..bits).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * bits + bit)
    };
    (0..).zip(words).flat_map(of_word).collect()
}

/// Whether the card is in the mode in which cards are cut up. Those that cannot be do not know it.
pub(super) fn is_mig(device: &Device<'_>) -> bool {
    // 1 is on.
    device.mig_mode().is_ok_and(|mode| mode.current == 1)
}

/// What a card that is cut up tells of its slices.
pub(super) struct Slices<'a> {
    pub(super) found: Vec<(Slice, Device<'a>)>,
    /// There may be more.
    pub(super) are_untold: bool,
}

/// Of a card that is cut up; those of all others are none.
pub(super) fn slices<'a>(device: &Device<'a>) -> Slices<'a> {
    if device.mig_mode().is_ok_and(|mode| mode.current != 1) {
        return Slices { found: Vec::new(), are_untold: false };
    }
    let places = device.mig_device_count();
    let mut are_untold = places.is_err();
    let mut found = Vec::new();
    for place in 0..places.unwrap_or(0) {
        match device.mig_device_by_index(place).map(slice) {
            Ok(Some(one)) => found.push(one),
            // Not all places are taken.
            Err(NvmlError::NotFound) => {}
            Ok(None) | Err(_) => are_untold = true,
        }
    }
    Slices { found, are_untold }
}

fn slice(device: Device<'_>) -> Option<(Slice, Device<'_>)> {
    let name = device.name().ok()?;
    let profile = name.rsplit_once("MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned();
    let memory = device.memory_info().ok().map(|memory| memory.total);
    let uuid = device.uuid().ok()?.parse().ok()?;
    let instances = mig::instances(device.nvml().lib(), &uuid);
    Some((Slice { uuid, profile, memory, instances, unreachable: None }, device))
}

/// The card itself is gone, or is to be reset; anything else may be the library's.
pub(super) fn is_gone(error: &NvmlError) -> bool {
    matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::IrqIssue)
}

/// What keeps whether the card itself is gone, while it is asked one thing after the other.
struct Asked {
    lost: Option<String>,
}

impl Asked {
    fn tell<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) if is_gone(&error) => {
                self.lost.get_or_insert_with(|| error.to_string());
                None
            }
            Err(_) => None,
        }
    }
}

/// Without the XIDs, which are told and not asked for.
pub(super) fn signs(device: &Device<'_>, now: Timestamp) -> Signs {
    let mut asked = Asked { lost: None };
    // The first question goes to the card itself.
    let temperature = asked.tell(device.temperature(TemperatureSensor::Gpu));
    let slowed = asked.tell(device.current_throttle_reasons());
    let ecc = asked.tell(device.is_ecc_enabled()).filter(|mode| mode.currently_enabled);
    let ecc = ecc.and_then(|_| errors_of_memory(device, &mut asked));
    let retired = retired(device, &mut asked, now);
    let (remapped, recovery) = by_fields(device, &mut asked);
    Signs {
        ecc,
        retired,
        remapped,
        recovery,
        slowed: slowed.map(slowed_by).unwrap_or_default(),
        temperature,
        xids: Vec::new(),
        lost: asked.lost,
        no_device: None,
        slices_untold: false,
    }
}

fn slowed_by(reasons: ThrottleReasons) -> Slowed {
    let heat = ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::SW_THERMAL_SLOWDOWN;
    Slowed {
        by_heat: reasons.intersects(heat),
        by_power_brake: reasons.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
    }
}

fn errors_of_memory(device: &Device<'_>, asked: &mut Asked) -> Option<Ecc> {
    let mut count = |kind| asked.tell(device.total_ecc_errors(kind, EccCounter::Volatile));
    Some(Ecc { corrected: count(MemoryError::Corrected)?, uncorrected: count(MemoryError::Uncorrected)? })
}

const WEEK_S: u64 = 7 * 24 * 3600;

fn retired(device: &Device<'_>, asked: &mut Asked, now: Timestamp) -> Option<Retired> {
    let mut pages = |cause| asked.tell(device.retired_pages(cause));
    let single = pages(RetirementCause::MultipleSingleBitEccErrors)?;
    let double = pages(RetirementCause::DoubleBitEccError)?;
    let pending = asked.tell(device.are_pages_pending_retired()).unwrap_or(false);
    let since = (now.0 / 1000).saturating_sub(WEEK_S);
    let lately = double.iter().filter(|page| seconds(page.timestamp) >= since).count();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Some(Retired {
        single_bit: count(single.len()),
        double_bit: count(double.len()),
        double_bit_lately: count(lately),
        pending,
    })
}

/// NVML does not say in which unit it tells times; its drivers have told seconds and microseconds.
fn seconds(time: u64) -> u64 {
    if time >= 100_000_000_000_000 { time / 1_000_000 } else { time }
}

/// What the wrapper has no call for.
fn by_fields(device: &Device<'_>, asked: &mut Asked) -> (Option<Remapped>, Option<Recovery>) {
    let wanted = [
        field_id::NVML_FI_DEV_REMAPPED_COR,
        field_id::NVML_FI_DEV_REMAPPED_UNC,
        field_id::NVML_FI_DEV_REMAPPED_PENDING,
        field_id::NVML_FI_DEV_REMAPPED_FAILURE,
        field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    ];
    let samples = asked.tell(device.field_values_for(&wanted.map(FieldId))).unwrap_or_default();
    let values = samples.into_iter().map(|sample| sample.ok()?.value.ok().and_then(whole));
    let [correctable, uncorrectable, pending, failed, recovery] =
        <[Option<u64>; 5]>::try_from(values.collect::<Vec<_>>()).unwrap_or_default();
    let remapped = correctable.zip(uncorrectable).map(|(correctable, uncorrectable)| Remapped {
        correctable,
        uncorrectable,
        pending: pending.is_some_and(|count| count > 0),
        failed: failed.is_some_and(|count| count > 0),
    });
    (remapped, recovery.map(recovery_of))
}

fn whole(value: SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(value) => Some(u64::from(value)),
        SampleValue::U64(value) => Some(value),
        SampleValue::I64(value) => u64::try_from(value).ok(),
        SampleValue::F64(_) => None,
    }
}

fn recovery_of(number: u64) -> Recovery {
    match number {
        0 => Recovery::Nothing,
        1 => Recovery::Reset,
        2 => Recovery::Reboot,
        3 => Recovery::DrainPeers,
        4 => Recovery::DrainAndReset,
        other => Recovery::Other(other),
    }
}

/// What is asked for beside what cards are: who uses them.
#[derive(Clone, Copy)]
pub(super) struct Users<'a> {
    /// The control group below which tasks have theirs.
    pub(super) tasks_group: Option<&'a str>,
    /// Programs that keep nobody from a card.
    pub(super) ignored: &'a [String],
    pub(super) names: &'a Names,
}

pub(super) fn usage(device: &Device<'_>, slices: &[(Slice, Device<'_>)], users: Users<'_>) -> Usage {
    let Sample { memory, utilisation, power } = measuring::of_card(device);
    Usage {
        memory,
        utilisation,
        power,
        power_limit: device.enforced_power_limit().ok(),
        processes: processes_of_all(device, slices).map(|found| {
            let mut found = with_tasks(found, users.tasks_group);
            for one in found.iter_mut().filter(|one| one.task.is_none()) {
                one.is_ignored = runs_one_of(one.pid, users.ignored);
                one.user = one.uid.filter(|_| !one.is_ignored).and_then(|uid| users.names.of(uid));
            }
            found
        }),
    }
}

/// Whether it runs a program of this name, by the file that is executed: what a process calls itself anybody may choose, and so they
/// may for files of their own, and for any file in a mount namespace of their own.
fn runs_one_of(pid: u32, names: &[String]) -> bool {
    use std::os::unix::fs::MetadataExt;
    let file = format!("/proc/{pid}/exe");
    let (Ok(path), Ok(found)) = (std::fs::read_link(&file), std::fs::metadata(&file)) else { return false };
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    // As the kernel has it once the file was replaced by a newer one; then it has no name left.
    let replaced = name.strip_suffix(" (deleted)").filter(|_| found.nlink() == 0);
    let here = std::fs::metadata(&path).is_ok_and(|here| (here.dev(), here.ino()) == (found.dev(), found.ino()));
    let is_roots = found.uid() == 0 && found.mode() & 0o022 == 0;
    is_roots && (here || replaced.is_some()) && names.iter().any(|known| known == replaced.unwrap_or(&name))
}

/// Tasks have their control groups below `tasks`.
pub(super) fn with_tasks(mut found: Vec<Process>, tasks: Option<&str>) -> Vec<Process> {
    for process in &mut found {
        let group = tasks.and_then(|tasks| cgroup::group_of_process(process.pid, tasks));
        process.task = group.and_then(|group| group.parse().ok());
    }
    found
}

fn processes_of_all(device: &Device<'_>, slices: &[(Slice, Device<'_>)]) -> Option<Vec<Process>> {
    let mut found = processes(device, None)?;
    for (slice, device) in slices {
        // The card may tell of them as well.
        let more = processes(device, Some(&slice.uuid))?;
        found.retain(|one| more.iter().all(|other| other.pid != one.pid));
        found.extend(more);
    }
    Some(found)
}

/// None where one of the questions is not answered: who is not told of may be there.
pub(super) fn processes(device: &Device<'_>, slice: Option<&GpuUuid>) -> Option<Vec<Process>> {
    let compute = device.running_compute_processes().ok()?;
    let graphics = device.running_graphics_processes().ok()?;
    let mut found: Vec<Process> = Vec::new();
    for info in compute.into_iter().chain(graphics) {
        // One that does both is told twice.
        if found.iter().any(|process| process.pid == info.pid) {
            continue;
        }
        let memory = match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let (uid, program) = whose(info.pid);
        found.push(Process {
            pid: info.pid,
            uid,
            user: None,
            program,
            memory,
            slice: slice.cloned(),
            task: None,
            is_ignored: false,
        });
    }
    Some(found)
}

fn whose(pid: u32) -> (Option<u32>, Option<String>) {
    use std::os::unix::fs::MetadataExt;
    let directory = format!("/proc/{pid}");
    let uid = std::fs::metadata(&directory).ok().map(|found| found.uid());
    let program = std::fs::read_to_string(format!("{directory}/comm")).ok();
    (uid, program.map(|name| name.trim_end().to_owned()))
}

/// A card by its place in NVML's order.
pub(super) type Placed = (u32, Facts);

/// The ways between cards, in their order here; those that do not answer are connected by nothing that is known.
pub(super) fn topology(nvml: &Nvml, cards: &[Placed]) -> Topology {
    let ends: Vec<Option<End<'_>>> = cards.iter().map(|card| End::of(nvml, card)).collect();
    let end = |place: usize| ends.get(place)?.as_ref();
    Topology::of(cards.len(), |a, b| end(a).zip(end(b)).map_or(Link::Unknown, |(a, b)| a.link_to(b)))
}

/// One end of ways.
struct End<'a> {
    device: Device<'a>,
    bus: &'a str,
    /// What its NVLinks lead to.
    links: Vec<String>,
}

impl<'a> End<'a> {
    fn of(nvml: &'a Nvml, (index, facts): &'a Placed) -> Option<Self> {
        let device = nvml.device_by_index(*index).ok()?;
        let links = nvlinks(&device);
        Some(Self { device, bus: &facts.bus, links })
    }

    fn link_to(&self, other: &Self) -> Link {
        let is_direct = |remote: &&String| **remote == other.bus && !other.bus.is_empty();
        let direct = self.links.iter().filter(is_direct).count();
        let joined = if direct > 0 { direct } else { self.by_switch(other) };
        match u32::try_from(joined) {
            Ok(0) | Err(_) => {
                let nvml = self.device.nvml();
                nvml.topology_common_ancestor(&self.device, &other.device).map_or(Link::Unknown, link_of)
            }
            Ok(count) => Link::NvLink(count),
        }
    }

    /// Where links lead to switches these may not be told, but whether memory is reached by way of them is.
    fn by_switch(&self, other: &Self) -> usize {
        let links = self.links.len().min(other.links.len());
        let reached = || self.device.p2p_status(&other.device, P2pCapabilitiesIndex::NvLink);
        if links > 0 && matches!(reached(), Ok(P2pStatus::Ok)) { links } else { 0 }
    }
}

/// What the active NVLinks of a card lead to, by the place on the bus; empty where that is not told.
fn nvlinks(device: &Device<'_>) -> Vec<String> {
    /// More than any card has.
    const LINKS_MAX: u32 = 64;
    let mut found = Vec::new();
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => found.push(link.remote_pci_info().map_or(String::new(), |remote| remote.bus_id.to_lowercase())),
            Ok(false) => {}
            // There is no link of this number, and none of higher ones.
            Err(_) => break,
        }
    }
    found
}

fn link_of(level: TopologyLevel) -> Link {
    match level {
        TopologyLevel::Internal => Link::Board,
        TopologyLevel::Single => Link::Switch,
        TopologyLevel::Multiple => Link::Switches,
        TopologyLevel::HostBridge => Link::HostBridge,
        TopologyLevel::Node => Link::Node,
        TopologyLevel::System => Link::System,
    }
}

/// A set of events that tells the XIDs of all cards that tell them; none where there are no such.
pub(super) fn xid_events(nvml: &Nvml, count: u32) -> Option<EventSet<'_>> {
    let device = |index: &u32| nvml.device_by_index(*index).ok();
    let tells = |device: &Device<'_>| {
        device.supported_event_types().is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
    };
    let mut telling: Vec<u32> = (0..count).filter(|index| device(index).is_some_and(|device| tells(&device))).collect();
    // A card that refuses takes the whole set with it: the next one is made without it.
    while !telling.is_empty() {
        let set = nvml.create_event_set().ok()?;
        let registered = telling.iter().try_fold(set, |set, index| {
            let device = device(index).ok_or(*index)?;
            device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|_| *index)
        });
        match registered {
            Ok(set) => return Some(set),
            Err(refused) => telling.retain(|index| *index != refused),
        }
    }
    None
}

/// What came of waiting for an XID.
pub(super) enum Heard {
    /// The card may be gone so far that it no longer says which it is.
    Xid {
        uuid: Option<GpuUuid>,
        number: u64,
    },
    Nothing,
    /// No more will be heard.
    Broken,
}

pub(super) fn wait_for_xid(set: &EventSet<'_>, timeout_ms: u32) -> Heard {
    match set.wait(timeout_ms) {
        Ok(event) => match event.event_data {
            Some(XidError::Value(number)) => {
                Heard::Xid { uuid: event.device.uuid().ok().and_then(|uuid| uuid.parse().ok()), number }
            }
            _ => Heard::Nothing,
        },
        Err(NvmlError::Timeout) => Heard::Nothing,
        Err(_) => Heard::Broken,
    }
}
