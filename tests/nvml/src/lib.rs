//! A `libnvidia-ml.so.1` of our own, so that what reads cards is tested as it is: by the symbols that the wrapper calls.
//!
//! What it shows and what fails stands in `nvml.toml` beside it, and is read again when that changes. Copies in several
//! directories are libraries of their own.
#![expect(unsafe_code, reason = "it is a library for C")]
#![expect(non_snake_case, reason = "the names are NVIDIA's")]

mod world;

use std::os::raw::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml::{nvmlDevice_t, nvmlEventSet_t, nvmlReturn_t};
use nvml_wrapper_sys::bindings as nvml;
use world::{Card, Found, Kind, Process, World, enter, lock, pause};

const OK: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_SUCCESS;
const NOT_SUPPORTED: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
const INVALID: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const TOO_SMALL: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
const LOST: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
const TIMEOUT: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT;
const NOT_FOUND: nvmlReturn_t = nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;

/// Errors by the names that the file gives them.
const ERRORS: [(&str, nvmlReturn_t); 10] = [
    ("NOT_SUPPORTED", NOT_SUPPORTED),
    ("UNKNOWN", nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN),
    ("GPU_IS_LOST", LOST),
    ("RESET_REQUIRED", nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED),
    ("IRQ_ISSUE", nvml::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE),
    ("NOT_FOUND", NOT_FOUND),
    ("DRIVER_NOT_LOADED", nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED),
    ("NO_PERMISSION", nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION),
    ("LIB_RM_VERSION_MISMATCH", nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH),
    ("UNINITIALIZED", nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED),
];

fn error_named(name: &str) -> nvmlReturn_t {
    let known = ERRORS.iter().find(|(known, _)| *known == name);
    known.unwrap_or_else(|| panic!("nvml.toml: there is no error {name}")).1
}

/// What a call answers: a value for where the caller wants it, or an error.
type Answer<T> = Result<T, nvmlReturn_t>;

fn at_machine<T>(symbol: &str, answer: impl FnOnce(&mut World) -> Answer<T>) -> Answer<T> {
    let mut world = enter(symbol);
    if let Some(name) = world.machine().errors.get(symbol) {
        return Err(error_named(name));
    }
    if !world.is_initialised() {
        return Err(nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    }
    answer(&mut world)
}

fn at_device<T>(symbol: &str, device: nvmlDevice_t, answer: impl FnOnce(&mut World, Found) -> Answer<T>) -> Answer<T> {
    at_machine(symbol, |world| {
        let found = world.found(device as usize).ok_or(LOST)?;
        let errors = match &found {
            Found::Card(card) => &card.errors,
            Found::Slice(slice) => &slice.errors,
        };
        if let Some(name) = errors.get(symbol) {
            return Err(error_named(name));
        }
        answer(world, found)
    })
}

fn at_card<T>(symbol: &str, device: nvmlDevice_t, answer: impl FnOnce(&mut World, Card) -> Answer<T>) -> Answer<T> {
    at_device(symbol, device, |world, found| match found {
        Found::Card(card) => answer(world, *card),
        Found::Slice(_) => Err(NOT_SUPPORTED),
    })
}

/// Hands a value to the caller.
fn give<T>(to: *mut T, answer: Answer<T>) -> nvmlReturn_t {
    match answer {
        Ok(value) => {
            // SAFETY: the caller has given a place for a T, as NVML demands of it.
            unsafe { to.write(value) };
            OK
        }
        Err(code) => code,
    }
}

fn give_text(to: *mut c_char, length: c_uint, answer: Answer<String>) -> nvmlReturn_t {
    match answer {
        Ok(text) if text.len() >= length as usize => TOO_SMALL,
        Ok(text) => give_all(to, text.bytes().chain([0]).map(|byte| byte as c_char)),
        Err(code) => code,
    }
}

fn give_all<T>(to: *mut T, values: impl Iterator<Item = T>) -> nvmlReturn_t {
    for (at, value) in values.enumerate() {
        // SAFETY: the caller has said how many there is room for, and no more are given.
        let place = unsafe { to.add(at) };
        // SAFETY: as above.
        unsafe { place.write(value) };
    }
    OK
}

/// Symbols that give one value of a card, or of whatever a handle stands for.
macro_rules! values {
    ($($symbol:ident($($argument:ident: $kind:ty),*) -> $type:ty, $at:ident, $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $symbol(device: nvmlDevice_t, $($argument: $kind,)* to: *mut $type) -> nvmlReturn_t {
            $(let $argument = $argument;)*
            give(to, $at(stringify!($symbol), device, $answer))
        }
    )*};
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    let mut world = enter("nvmlInit_v2");
    if let Some(name) = world.machine().errors.get("nvmlInit_v2") {
        return error_named(name);
    }
    world.initialise();
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    lock().shut_down();
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> nvmlReturn_t {
    give_text(to, length, at_machine("nvmlSystemGetDriverVersion", |world| Ok(world.machine().driver.clone())))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) -> nvmlReturn_t {
    give(to, at_machine("nvmlSystemGetCudaDriverVersion_v2", |world| Ok(world.machine().cuda)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> nvmlReturn_t {
    give(to, at_machine("nvmlDeviceGetCount_v2", |world| Ok(world.count() as c_uint)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut nvmlDevice_t) -> nvmlReturn_t {
    let answer = at_machine("nvmlDeviceGetHandleByIndex_v2", |world| {
        let handle = world.handle_of_index(index as usize).ok_or(INVALID)?;
        world.found(handle).ok_or(LOST)?;
        Ok(handle as nvmlDevice_t)
    });
    give(to, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, to: *mut c_char, length: c_uint) -> nvmlReturn_t {
    let answer = at_device("nvmlDeviceGetUUID", device, |_, found| match found {
        Found::Card(card) => Ok(card.uuid),
        Found::Slice(slice) => Ok(slice.uuid),
    });
    give_text(to, length, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, to: *mut c_char, length: c_uint) -> nvmlReturn_t {
    let answer = at_device("nvmlDeviceGetName", device, |_, found| match found {
        Found::Card(card) => Ok(card.name),
        Found::Slice(slice) => Ok(slice.name),
    });
    give_text(to, length, answer)
}

/// A set of numbers as words of bits, of which the caller says how many there are.
fn give_set(to: *mut c_ulong, words: c_uint, answer: Answer<Vec<u32>>) -> nvmlReturn_t {
    let set = match answer {
        Ok(set) => set,
        Err(code) => return code,
    };
    let word = |at: u32| set.iter().filter(|bit| *bit / 64 == at).fold(0, |word, bit| word | 1 << (bit % 64));
    give_all(to, (0..words).map(word))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, to: *mut c_ulong) -> nvmlReturn_t {
    give_set(to, words, at_card("nvmlDeviceGetCpuAffinity", device, |_, card| Ok(card.cpus)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: nvmlDevice_t,
    words: c_uint,
    to: *mut c_ulong,
    _scope: c_uint,
) -> nvmlReturn_t {
    let node = |_: &mut World, card: Card| card.numa.map(|node| vec![node]).ok_or(NOT_SUPPORTED);
    give_set(to, words, at_card("nvmlDeviceGetMemoryAffinity", device, node))
}

/// Says how many there are, and gives them if the caller has said that there is room.
fn give_many<T>(
    count: *mut c_uint,
    answer: Answer<Vec<T>>,
    give_them: impl FnOnce(Vec<T>) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let values = match answer {
        Ok(values) => values,
        Err(code) => return code,
    };
    // SAFETY: the caller has put there how many it has room for.
    let room = unsafe { count.read() };
    give(count, Ok(values.len() as c_uint));
    if (room as usize) < values.len() { TOO_SMALL } else { give_them(values) }
}

fn give_processes(count: *mut c_uint, to: *mut nvml::nvmlProcessInfo_t, answer: Answer<Vec<Process>>) -> nvmlReturn_t {
    let info = |process: Process| nvml::nvmlProcessInfo_t {
        pid: process.pid,
        // As the real one has it for what it does not know.
        usedGpuMemory: process.bytes.unwrap_or(c_ulonglong::MAX),
        gpuInstanceId: u32::MAX,
        computeInstanceId: u32::MAX,
    };
    give_many(count, answer, |processes| give_all(to, processes.into_iter().map(info)))
}

fn processes_but(symbol: &str, device: nvmlDevice_t, other: Kind) -> Answer<Vec<Process>> {
    let all = at_device(symbol, device, |_, found| match found {
        Found::Card(card) => Ok(card.processes),
        Found::Slice(slice) => Ok(slice.processes),
    });
    Ok(all?.into_iter().filter(|process| process.kind != other).collect())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvml::nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetComputeRunningProcesses_v3";
    give_processes(count, to, processes_but(symbol, device, Kind::Graphics))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvml::nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetGraphicsRunningProcesses_v3";
    give_processes(count, to, processes_but(symbol, device, Kind::Compute))
}

/// Of now; and, as the real one, with room for more, which is left empty.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    to: *mut nvml::nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    _since: c_ulonglong,
) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceGetProcessUtilization", device, |_, card| {
        if card.mig_mode() != 0 {
            return Err(NOT_SUPPORTED);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let sample = |pid, smUtil| nvml::nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: now.as_micros() as c_ulonglong,
            smUtil,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let mut samples: Vec<_> =
            card.processes.iter().filter_map(|process| Some(sample(process.pid, process.busy?))).collect();
        if samples.is_empty() {
            return Err(NOT_FOUND);
        }
        samples.extend([sample(0, 0), sample(u32::MAX, u32::MAX)]);
        Ok(samples)
    });
    give_many(count, answer, |samples| give_all(to, samples.into_iter()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: *mut nvml::nvmlMemory_v2_t) -> nvmlReturn_t {
    let info =
        |total: u64, used: u64| nvml::nvmlMemory_v2_t { version: 2, total, reserved: 0, free: total - used, used };
    let answer = at_device("nvmlDeviceGetMemoryInfo_v2", device, |_, found| match found {
        Found::Card(card) => Ok(info(card.memory, card.used)),
        Found::Slice(slice) => Ok(info(slice.memory, slice.used)),
    });
    give(to, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(device: nvmlDevice_t, now: *mut c_uint, pending: *mut c_uint) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceGetMigMode", device, |_, card| Ok(card.mig_mode()));
    give(pending, answer);
    give(now, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceGetMigDeviceHandleByIndex", device, |world, card| {
        let slice = card.mig.get(index as usize).ok_or(NOT_FOUND)?;
        Ok(world.handle_of(slice.uuid.clone()) as nvmlDevice_t)
    });
    give(to, answer)
}

fn at_slice(symbol: &str, device: nvmlDevice_t, number: impl FnOnce(&world::Slice) -> u32) -> Answer<c_uint> {
    at_device(symbol, device, |_, found| match found {
        Found::Card(_) => Err(NOT_SUPPORTED),
        Found::Slice(slice) => Ok(number(&slice)),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, to: *mut c_uint) -> nvmlReturn_t {
    give(to, at_slice("nvmlDeviceGetGpuInstanceId", device, |slice| slice.gpu_instance))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, to: *mut c_uint) -> nvmlReturn_t {
    give(to, at_slice("nvmlDeviceGetComputeInstanceId", device, |slice| slice.compute_instance))
}

fn text(text: *const c_char) -> String {
    // SAFETY: the caller has given a text that ends with NUL, as NVML demands of it.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Of cards and slices.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut nvmlDevice_t) -> nvmlReturn_t {
    let answer = at_machine("nvmlDeviceGetHandleByUUID", |world| {
        let handle = world.handle_of(text(uuid));
        world.found(handle).map(|_| handle as nvmlDevice_t).ok_or(NOT_FOUND)
    });
    give(to, answer)
}

/// What a sample of GPM stands for: an instance of a card, once it was taken.
type Gpm = Option<(nvmlDevice_t, c_uint)>;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, to: *mut nvml::nvmlGpmSupport_t) -> nvmlReturn_t {
    let answer = at_card("nvmlGpmQueryDeviceSupport", device, |_, card| {
        let tells = card.mig.iter().any(|slice| slice.busy.is_some());
        Ok(nvml::nvmlGpmSupport_t { version: 1, isSupportedDevice: c_uint::from(tells) })
    });
    give(to, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleAlloc(to: *mut nvml::nvmlGpmSample_t) -> nvmlReturn_t {
    let answer = at_machine("nvmlGpmSampleAlloc", |_| Ok(Box::into_raw(Box::<Gpm>::default()).cast()));
    give(to, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleFree(sample: nvml::nvmlGpmSample_t) -> nvmlReturn_t {
    // SAFETY: it comes from `nvmlGpmSampleAlloc`, and is freed once, as NVML demands of the caller.
    drop(unsafe { Box::from_raw(sample.cast::<Gpm>()) });
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMigSampleGet(
    device: nvmlDevice_t,
    instance: c_uint,
    sample: nvml::nvmlGpmSample_t,
) -> nvmlReturn_t {
    let answer = at_card("nvmlGpmMigSampleGet", device, |_, card| {
        busy_of(&card, instance)?;
        Ok(Some((device, instance)))
    });
    give(sample.cast::<Gpm>(), answer)
}

fn busy_of(card: &Card, instance: c_uint) -> Answer<f64> {
    let slice = card.mig.iter().find(|slice| slice.gpu_instance == instance).ok_or(INVALID)?;
    slice.busy.ok_or(NOT_SUPPORTED)
}

/// Of one instance, by two samples of it; it tells how busy it was, and nothing else.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMetricsGet(request: *mut nvml::nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    tell_metrics(request)
}

fn tell_metrics(request: *mut nvml::nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    // SAFETY: the caller has given one, and nobody else has it meanwhile.
    let request = unsafe { &mut *request };
    // SAFETY: both come from `nvmlGpmSampleAlloc`, and are freed after this call.
    let samples = [request.sample1, request.sample2].map(|sample| unsafe { *sample.cast::<Gpm>() });
    let [Some((device, instance)), second] = samples else { return INVALID };
    if second != Some((device, instance)) {
        return INVALID;
    }
    match at_card("nvmlGpmMetricsGet", device, |_, card| busy_of(&card, instance)) {
        Ok(percent) => {
            for metric in request.metrics.iter_mut().take(request.numMetrics as usize) {
                let is_known = metric.metricId == nvml::nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL;
                (metric.nvmlReturn, metric.value) = (if is_known { OK } else { NOT_SUPPORTED }, percent);
            }
            OK
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEccMode(device: nvmlDevice_t, now: *mut c_uint, pending: *mut c_uint) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceGetEccMode", device, |_, card| Ok(c_uint::from(card.ecc.is_some())));
    give(pending, answer);
    give(now, answer)
}

/// By cause: 0 are single-bit errors.
fn retired_pages(symbol: &str, device: nvmlDevice_t, cause: c_uint) -> Answer<Vec<u64>> {
    at_card(symbol, device, |_, card| match cause {
        _ if card.retired_pending.is_none() => Err(NOT_SUPPORTED),
        0 => Ok(vec![0; card.retired_single as usize]),
        _ => Ok(card.retired_double),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
) -> nvmlReturn_t {
    give_many(count, retired_pages("nvmlDeviceGetRetiredPages", device, cause), |pages| {
        give_all(addresses, (0..pages.len()).map(|page| page as c_ulonglong))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
    times: *mut c_ulonglong,
) -> nvmlReturn_t {
    give_many(count, retired_pages("nvmlDeviceGetRetiredPages_v2", device, cause), |pages| {
        give_all(addresses, (0..pages.len()).map(|page| page as c_ulonglong));
        give_all(times, pages.into_iter())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvml::nvmlFieldValue_t,
) -> nvmlReturn_t {
    match at_card("nvmlDeviceGetFieldValues", device, |_, card| Ok(card)) {
        Ok(card) => usize::try_from(count).map_or(INVALID, |count| fill_in(&card, count, values)),
        Err(code) => code,
    }
}

fn fill_in(card: &Card, count: usize, values: *mut nvml::nvmlFieldValue_t) -> nvmlReturn_t {
    for at in 0..count {
        // SAFETY: the caller has given so many.
        let place = unsafe { values.add(at) };
        // SAFETY: as above, and all are filled in by the caller.
        let mut value = unsafe { place.read() };
        let found = card.fields.get(&value.fieldId.to_string());
        value.nvmlReturn = if found.is_some() { OK } else { NOT_SUPPORTED };
        value.valueType = nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        value.value = nvml::nvmlValue_t { ullVal: found.copied().unwrap_or(0) };
        // SAFETY: as above.
        unsafe { place.write(value) };
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    device: nvmlDevice_t,
    other: nvmlDevice_t,
    to: *mut c_uint,
) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceGetTopologyCommonAncestor", device, |world, card| {
        let Some(Found::Card(other)) = world.found(other as usize) else { return Err(LOST) };
        let pair = world.index_of(&card.uuid).zip(world.index_of(&other.uuid)).ok_or(LOST)?;
        let known = world.machine().ancestors.iter().find(|(a, b, _)| (*a, *b) == pair || (*b, *a) == pair);
        Ok(known.map_or(nvml::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM, |(_, _, level)| *level))
    });
    give(to, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetP2PStatus(
    device: nvmlDevice_t,
    other: nvmlDevice_t,
    _index: c_uint,
    to: *mut c_uint,
) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceGetP2PStatus", device, |world, card| {
        let Some(Found::Card(other)) = world.found(other as usize) else { return Err(LOST) };
        // Both hang on one switch.
        let shared = card.nvlinks.iter().any(|link| !link.is_empty() && other.nvlinks.contains(link));
        let direct = card.nvlinks.contains(&other.bus);
        let no = nvml::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED;
        Ok(if shared || direct { nvml::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK } else { no })
    });
    give(to, answer)
}

/// Where a link leads, if there is one of this number.
fn link_of(card: &Card, link: c_uint) -> Answer<String> {
    match card.nvlinks.is_empty() {
        true => Err(NOT_SUPPORTED),
        false => card.nvlinks.get(link as usize).cloned().ok_or(INVALID),
    }
}

fn pci(bus: &str) -> nvml::nvmlPciInfo_t {
    let mut text = [0 as c_char; 32];
    text.iter_mut().take(31).zip(bus.bytes()).for_each(|(place, byte)| *place = byte as c_char);
    let (busIdLegacy, busId) = ([0; 16], text);
    nvml::nvmlPciInfo_t { busIdLegacy, domain: 0, bus: 0, device: 0, pciDeviceId: 0, pciSubSystemId: 0, busId }
}

values! {
    nvmlDeviceGetMinorNumber() -> c_uint, at_card, |_, card| Ok(card.minor);
    nvmlDeviceGetPciInfo_v3() -> nvml::nvmlPciInfo_t, at_card, |_, card| Ok(pci(&card.bus));
    nvmlDeviceGetUtilizationRates() -> nvml::nvmlUtilization_t, at_card, |_, card| {
        // As the real one has it for cards that are cut up.
        if card.mig_mode() == 0 { Ok(nvml::nvmlUtilization_t { gpu: card.utilisation, memory: 0 }) } else { Err(NOT_SUPPORTED) }
    };
    nvmlDeviceGetPowerUsage() -> c_uint, at_card, |_, card| Ok(card.power);
    nvmlDeviceGetEnforcedPowerLimit() -> c_uint, at_card, |_, card| Ok(card.power_limit);
    nvmlDeviceGetTemperature(_sensor: c_uint) -> c_uint, at_card, |_, card| Ok(card.temperature);
    nvmlDeviceGetCurrentClocksThrottleReasons() -> c_ulonglong, at_card, |_, card| Ok(card.throttle);
    nvmlDeviceGetMaxMigDeviceCount() -> c_uint, at_card, |_, card| Ok(if card.mig_mode() == 0 { 0 } else { 7 });
    nvmlDeviceGetTotalEccErrors(kind: c_uint, _counter: c_uint) -> c_ulonglong, at_card, |_, card| {
        let ecc = card.ecc.ok_or(NOT_SUPPORTED)?;
        Ok(if kind == 0 { ecc.corrected } else { ecc.uncorrected })
    };
    nvmlDeviceGetRetiredPagesPendingStatus() -> c_uint, at_card, |_, card| {
        card.retired_pending.map(c_uint::from).ok_or(NOT_SUPPORTED)
    };
    nvmlDeviceGetNvLinkState(link: c_uint) -> c_uint, at_card, |_, card| Ok(c_uint::from(!link_of(&card, link)?.is_empty()));
    nvmlDeviceGetNvLinkRemotePciInfo_v2(link: c_uint) -> nvml::nvmlPciInfo_t, at_card, |_, card| Ok(pci(&link_of(&card, link)?));
    nvmlDeviceGetSupportedEventTypes() -> c_ulonglong, at_card, |_, _| Ok(c_ulonglong::from(nvml::nvmlEventTypeXidCriticalError));
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(to: *mut nvmlEventSet_t) -> nvmlReturn_t {
    let answer = at_machine("nvmlEventSetCreate", |world| {
        world.registered.clear();
        Ok(std::ptr::without_provenance_mut(1))
    });
    give(to, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: nvmlEventSet_t) -> nvmlReturn_t {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    _types: c_ulonglong,
    _set: nvmlEventSet_t,
) -> nvmlReturn_t {
    let answer = at_card("nvmlDeviceRegisterEvents", device, |world, card| {
        world.registered.push(card.uuid);
        Ok(())
    });
    answer.err().unwrap_or(OK)
}

/// How often the file is looked at for XIDs that have come.
const TICK_MS: u64 = 5;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(
    _set: nvmlEventSet_t,
    to: *mut nvml::nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    for _ in 0..=u64::from(timeout_ms) / TICK_MS {
        let found = at_machine("nvmlEventSetWait_v2", |world| Ok(world.next_xid()));
        match found {
            Ok(None) => pause(TICK_MS),
            Ok(Some((handle, xid))) => {
                let data = nvml::nvmlEventData_t {
                    device: handle as nvmlDevice_t,
                    eventType: c_ulonglong::from(nvml::nvmlEventTypeXidCriticalError),
                    eventData: xid,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                };
                return give(to, Ok(data));
            }
            Err(code) => return code,
        }
    }
    TIMEOUT
}
