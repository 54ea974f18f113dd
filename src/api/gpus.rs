//! Graphics cards over the API: what there is, how it is, who uses it.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::server::{Context, ask};
use super::sight;
use crate::gpu::{Card, Driver, Ecc, Inventory, Process, Retired, Slice, Slowed, health};
use crate::ids::GpuUuid;
use crate::reconcile::{Caller, Lease, Request};
use crate::store::record::GpuPartLease;

/// How long who asks waits for NVML; after that they get what was found last.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuList {
    /// The driver's version, and the newest one of CUDA that it serves.
    pub driver: Option<String>,
    pub cuda: Option<String>,
    /// Why there are no cards for us.
    pub missing: Option<String>,
    /// When this was found.
    pub at: Option<String>,
    /// NVML has not answered since.
    pub stale: bool,
    pub gpus: Vec<GpuView>,
    /// What is said of cards that do not even tell which they are.
    pub nameless: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuView {
    /// Its place in the list.
    pub index: usize,
    #[schemars(with = "String")]
    pub uuid: GpuUuid,
    pub name: String,
    /// Of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    pub bus: String,
    pub numa_node: Option<u32>,
    /// Processors that are near, as `0-15,32-47`.
    pub cpus: String,
    /// Bytes; absent of a card that does not tell.
    pub memory: Option<u64>,
    pub memory_used: Option<u64>,
    /// Percent.
    pub utilisation: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Thousandths of a watt.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// Why its clocks are lowered: `heat`, `power-brake`.
    pub slowed_by: Vec<String>,
    /// Errors of memory; absent where that is not told or not counted.
    pub ecc: Option<EccView>,
    /// Of older cards.
    pub retired: Option<RetiredView>,
    /// Of newer cards.
    pub remapped: Option<RemappedView>,
    /// `ok`, `warning`, `unusable` (nothing is started on it, who has it goes on) or `failed`.
    pub health: String,
    pub findings: Vec<FindingView>,
    /// The job and task that hold it, or, of a job that is not the caller's to see, its workspace.
    pub leased_by: Option<String>,
    /// Who has shares of it.
    pub shares: Vec<ShareView>,
    pub slices: Vec<SliceView>,
    pub processes: Vec<ProcessView>,
    /// The way to each card of the list, as `nvidia-smi topo -m` has it.
    pub links: Vec<String>,
}

/// Errors of memory since the driver was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EccView {
    pub corrected: u64,
    pub uncorrected: u64,
}

/// Pages of memory that are no longer used, by the errors for which they are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RetiredView {
    pub single_bit: u32,
    pub double_bit: u32,
    /// More will be when the card is next reset.
    pub pending: bool,
}

/// Rows of memory in whose place spare ones are used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemappedView {
    pub correctable: u64,
    pub uncorrectable: u64,
    /// More will be when the card is next reset.
    pub pending: bool,
    /// There was no spare row.
    pub failed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FindingView {
    pub rule: String,
    pub level: String,
    pub says: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceView {
    #[schemars(with = "String")]
    pub uuid: GpuUuid,
    pub profile: String,
    /// Bytes; absent where it does not tell.
    pub memory: Option<u64>,
    /// As `leased_by` of a card.
    pub leased_by: Option<String>,
    /// Why nobody is given it: its devices are not there, or it is itself no longer there and somebody still has it.
    pub unreachable: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShareView {
    /// As `leased_by` of a card.
    pub holder: String,
    /// Bytes that it may use.
    pub memory: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessView {
    /// Of a process of a job that is not the caller's to see only the memory is told.
    pub pid: Option<u32>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    /// Told to its user and to root.
    pub program: Option<String>,
    /// Bytes on the card.
    pub memory: Option<u64>,
    /// The slice on which it runs.
    #[schemars(with = "Option<String>")]
    pub slice: Option<GpuUuid>,
}

pub(super) async fn list(context: &Context, caller: Caller) -> Result<GpuList, ApiError> {
    let gpus = context.gpus.clone();
    let looked = tokio::task::spawn_blocking(move || gpus.look(PATIENCE));
    let found = looked.await.map_err(|_| ApiError::Ending)?;
    let uid = caller.uid;
    let caller = sight::everywhere(context, caller).await?;
    let leases = ask(context, |answer| Request::Leases { caller, answer }).await?;
    // To find the names of users may take long.
    let viewed = tokio::task::spawn_blocking(move || view(&found, &leases, uid));
    viewed.await.map_err(|_| ApiError::Ending)
}

/// As they were seen last, for the daemon itself.
pub(super) async fn last(context: &Context) -> Result<GpuList, ApiError> {
    let leases = ask(context, |answer| Request::Leases { caller: Caller::root(), answer }).await?;
    Ok(view(&context.gpus.last(), &leases, 0))
}

/// As the user `caller` may see it.
fn view(found: &Arc<Inventory>, leases: &[Lease], caller: u32) -> GpuList {
    let (driver, cuda, missing) = match &found.driver {
        Driver::Loaded { version, cuda } => (Some(version.clone()), cuda.clone(), None),
        Driver::Missing { reason } => (None, None, Some(reason.clone())),
    };
    let one = |(index, card): (usize, &Card)| {
        let own: Vec<&Lease> = leases.iter().filter(|lease| lease.gpu == card.facts.uuid).collect();
        card_view(index, card, found, &own, caller)
    };
    GpuList {
        driver,
        cuda,
        missing,
        at: found.at.map(|at| at.to_string()),
        stale: found.is_stale(crate::sys::now()),
        gpus: found.cards.iter().enumerate().map(one).collect(),
        nameless: found.nameless.clone(),
    }
}

fn card_view(index: usize, card: &Card, found: &Inventory, leases: &[&Lease], caller: u32) -> GpuView {
    let usage = card.usage.clone().unwrap_or_default();
    let slices = card.slices.iter();
    let findings = card.findings.iter();
    let link =
        |other: usize| if other == index { "X".to_owned() } else { found.topology.link(index, other).to_string() };
    let told = |process: Process| {
        let lease = lease_of(&process, leases);
        told(process, lease, caller)
    };
    let shares = leases.iter().filter_map(|lease| match &lease.part {
        Some(GpuPartLease::Share { bytes, .. }) => Some(ShareView { holder: lease.holder.clone(), memory: *bytes }),
        _ => None,
    });
    let slice_holder = |slice: &Slice| {
        let is_of =
            |lease: &&&Lease| matches!(&lease.part, Some(GpuPartLease::Slice { uuid, .. }) if *uuid == slice.uuid);
        leases.iter().find(is_of).map(|lease| lease.holder.clone())
    };
    // Who has one that is gone still holds it until the attempt is over.
    let gone = leases.iter().filter_map(|lease| match &lease.part {
        Some(GpuPartLease::Slice { uuid, profile, .. }) if card.slices.iter().all(|slice| slice.uuid != *uuid) => {
            Some(SliceView {
                uuid: uuid.clone(),
                profile: profile.clone(),
                memory: None,
                leased_by: Some(lease.holder.clone()),
                unreachable: Some("the driver no longer has it".to_owned()),
            })
        }
        _ => None,
    });
    GpuView {
        index,
        uuid: card.facts.uuid.clone(),
        name: card.facts.name.clone(),
        minor: card.facts.minor,
        bus: card.facts.bus.clone(),
        numa_node: card.facts.numa_node,
        cpus: ranges(&card.facts.cpus),
        memory: card.facts.memory,
        memory_used: usage.memory,
        utilisation: usage.utilisation,
        temperature: card.signs.temperature,
        power: usage.power,
        power_limit: usage.power_limit,
        slowed_by: slowed_by(card.signs.slowed),
        ecc: card.signs.ecc.map(|Ecc { corrected, uncorrected }| EccView { corrected, uncorrected }),
        retired: card.signs.retired.map(|Retired { single_bit, double_bit, pending, .. }| RetiredView {
            single_bit,
            double_bit,
            pending,
        }),
        remapped: card.signs.remapped.map(|rows| RemappedView {
            correctable: rows.correctable,
            uncorrectable: rows.uncorrectable,
            pending: rows.pending,
            failed: rows.failed,
        }),
        health: health::worst(&card.findings).map_or("ok", level_name).to_owned(),
        findings: findings
            .map(|one| FindingView {
                rule: one.rule.clone(),
                level: level_name(one.level).to_owned(),
                says: one.says.clone(),
            })
            .collect(),
        leased_by: leases.iter().find(|lease| lease.part.is_none()).map(|lease| lease.holder.clone()),
        shares: shares.collect(),
        slices: slices
            .map(|slice| SliceView {
                uuid: slice.uuid.clone(),
                profile: slice.profile.clone(),
                memory: slice.memory,
                leased_by: slice_holder(slice),
                unreachable: slice.unreachable.clone(),
            })
            .chain(gone)
            .collect(),
        processes: usage.processes.into_iter().flatten().map(told).collect(),
        links: (0..found.cards.len()).map(link).collect(),
    }
}

fn slowed_by(slowed: Slowed) -> Vec<String> {
    let all = [(slowed.by_heat, "heat"), (slowed.by_power_brake, "power-brake")];
    all.iter().filter(|(is_so, _)| *is_so).map(|(_, name)| (*name).to_owned()).collect()
}

/// Whose process it is, among those who hold the card or parts of it. One that is known to be of no task is nobody's.
fn lease_of<'a>(process: &Process, leases: &[&'a Lease]) -> Option<&'a Lease> {
    let whole = leases.iter().find(|lease| lease.part.is_none());
    let own = || leases.iter().find(|lease| process.task.is_some_and(|task| task.attempt == lease.attempt));
    whole.or_else(own).copied()
}

fn level_name(level: health::Level) -> &'static str {
    match level {
        health::Level::Warning => "warning",
        health::Level::Unusable => "unusable",
        health::Level::Failed => "failed",
    }
}

/// Everybody sees that a card is used, by how much and by whom: the process only of jobs that they may see, and what it runs if
/// it is their own.
fn told(process: Process, lease: Option<&Lease>, caller: u32) -> ProcessView {
    let is_own = caller == 0 || process.uid == Some(caller);
    if !is_own && lease.is_some_and(|lease| !lease.visible) {
        let Process { memory, slice, .. } = process;
        return ProcessView { pid: None, uid: None, user: None, program: None, memory, slice };
    }
    let view = process_view(process);
    ProcessView { program: view.program.filter(|_| is_own), ..view }
}

fn process_view(process: Process) -> ProcessView {
    ProcessView {
        pid: Some(process.pid),
        uid: process.uid,
        user: process.uid.map(|uid| Caller::of(uid).name),
        program: process.program,
        memory: process.memory,
        slice: process.slice,
    }
}

/// Ascending numbers, as the kernel writes sets of processors.
fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == *number => *end = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let text = |(start, end): &(u32, u32)| if start == end { start.to_string() } else { format!("{start}-{end}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Facts, Signs};

    #[test]
    fn who_has_a_slice_that_is_gone_is_told_with_it() {
        let slice = |name: &str| Slice {
            uuid: name.parse().unwrap(),
            profile: "1g.10gb".to_owned(),
            memory: Some(1),
            instances: None,
            unreachable: None,
        };
        let facts = Facts {
            uuid: "GPU-0".parse().unwrap(),
            name: "x".to_owned(),
            minor: Some(0),
            bus: String::new(),
            numa_node: None,
            cpus: Vec::new(),
            memory: None,
        };
        let (signs, findings) = (Signs::default(), Vec::new());
        let card = Card { facts, slices: vec![slice("MIG-a")], mig: true, signs, findings, usage: None };
        let lease = |name: &str| Lease {
            gpu: "GPU-0".parse().unwrap(),
            part: Some(GpuPartLease::Slice {
                uuid: name.parse().unwrap(),
                profile: "1g.10gb".to_owned(),
                gpu_instance: 1,
                compute_instance: 0,
            }),
            attempt: crate::ids::AttemptId(1),
            holder: format!("{name} main-0"),
            visible: true,
        };
        let leases = [lease("MIG-a"), lease("MIG-b")];
        let view = card_view(0, &card, &Inventory::default(), &leases.iter().collect::<Vec<_>>(), 0);
        let told: Vec<_> =
            view.slices.iter().map(|one| (one.leased_by.as_deref(), one.unreachable.as_deref())).collect();
        assert_eq!(told, [(Some("MIG-a main-0"), None), (Some("MIG-b main-0"), Some("the driver no longer has it"))]);
    }

    #[test]
    fn what_a_process_runs_is_told_to_its_user_and_to_root_alone_and_of_hidden_jobs_only_the_memory() {
        let lease = |visible| Lease {
            gpu: "GPU-0".parse().unwrap(),
            part: None,
            attempt: crate::ids::AttemptId(1),
            holder: String::new(),
            visible,
        };
        let seen = |caller, lease: Option<Lease>| {
            let program = Some("train".to_owned());
            let process = Process {
                pid: 7,
                uid: Some(4_000_001),
                user: None,
                program,
                memory: Some(5),
                slice: None,
                task: None,
                is_ignored: false,
            };
            let view = told(process, lease.as_ref(), caller);
            assert_eq!(view.memory, Some(5));
            (view.pid.is_some(), view.user.is_some() && view.uid.is_some(), view.program.is_some())
        };
        for lease in [None, Some(lease(true))] {
            assert_eq!(seen(4_000_002, lease), (true, true, false));
        }
        assert_eq!(seen(4_000_002, Some(lease(false))), (false, false, false));
        for caller in [0, 4_000_001] {
            assert_eq!([seen(caller, None), seen(caller, Some(lease(false)))], [(true, true, true); 2]);
        }
    }

    #[test]
    fn processors_are_told_as_the_kernel_does() {
        let cases: [(&[u32], &str); 4] = [(&[], ""), (&[3], "3"), (&[0, 1, 2, 5, 7, 8], "0-2,5,7-8"), (&[1, 3], "1,3")];
        for (numbers, text) in cases {
            assert_eq!(ranges(numbers), text);
        }
    }
}
