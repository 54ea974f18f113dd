//! `trainyard gpu`: the cards of this machine, how they are and are connected, and who uses them.

use super::Exit;
use super::listing::{self, Form};
use super::output;
use crate::api::client::Client;
use crate::api::gpus::{GpuList, GpuView};
use crate::ids::Bytes;
use crate::report::{listed, same_together};
use crate::sys::terminal::escape;

pub(super) async fn run(client: &Client, form: Form) -> anyhow::Result<Exit> {
    let list = client.gpus().await?;
    match form {
        Form::Json => output::json(&list)?,
        Form::Names => listing::names(list.gpus.iter().map(|gpu| gpu.uuid.to_string()))?,
        Form::Csv => {
            let heads = HEADS.iter().chain(&MORE).chain(&HELD).map(|head| head.to_lowercase());
            output::line(&listing::csv(&heads.collect::<Vec<_>>()))?;
            list.gpus.iter().try_for_each(|gpu| output::line(&listing::csv(&[wide(gpu), held(gpu)].concat())))?;
        }
        Form::Table => screen(&list, &HEADS, state)?,
        Form::Wide => screen(&list, &[&HEADS[..], &MORE].concat(), wide)?,
    }
    Ok(Exit::Success)
}

const HEADS: [&str; 7] = ["GPU", "HEALTH", "USE", "MEMORY", "TEMP", "POWER", "NAME"];

/// What `wide` has beside these, and what of who has a card fits in a row.
const MORE: [&str; 2] = ["UUID", "BUS"];
const HELD: [&str; 3] = ["LEASED_BY", "SHARES", "SLICES"];

fn screen(list: &GpuList, heads: &[&str], of: impl Fn(&GpuView) -> Vec<String>) -> anyhow::Result<()> {
    head(list).iter().try_for_each(|line| output::line(line))?;
    if list.gpus.is_empty() {
        return Ok(());
    }
    output::table(heads, &rows(list, |gpu| vec![of(gpu)]))?;
    part(&["GPU", "LEASED BY"], &rows(list, lease))?;
    part(&["GPU", "SHARE", "HELD BY"], &rows(list, shares))?;
    part(&["GPU", "SLICE", "MEMORY", "UUID", "LEASED BY"], &rows(list, slices))?;
    part(&["GPU", "PID", "USER", "MEMORY", "PROGRAM"], &rows(list, processes))?;
    findings(list)?;
    let numbers: Vec<String> = list.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let matrix: Vec<&str> =
        ["GPU"].into_iter().chain(numbers.iter().map(String::as_str)).chain(["NUMA", "CPUS"]).collect();
    part(&matrix, &rows(list, |gpu| vec![ways(gpu)]))?;
    part(&["GPU", "DEVICE", "BUS", "UUID"], &rows(list, |gpu| vec![place(gpu)]))
}

fn head(list: &GpuList) -> Vec<String> {
    let driver = list.driver.as_ref().map(|version| {
        let cuda = list.cuda.as_ref().map_or(String::new(), |cuda| format!(", CUDA {cuda}"));
        format!("driver {version}{cuda}, GPUs: {}", list.gpus.len())
    });
    let missing = list.missing.as_ref().map(|reason| format!("no GPUs: {reason}"));
    let since = list.at.as_deref().unwrap_or("the daemon was started");
    let stale = list.stale.then(|| format!("NVML has not answered since {since}; what follows may be old"));
    driver.into_iter().chain(missing).chain(stale).chain(list.nameless.clone()).map(|line| escape(&line)).collect()
}

fn part(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    output::line("")?;
    output::table(header, rows)
}

fn rows(list: &GpuList, of: impl Fn(&GpuView) -> Vec<Vec<String>>) -> Vec<Vec<String>> {
    list.gpus.iter().flat_map(of).collect()
}

fn or_none<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 30))
}

fn state(gpu: &GpuView) -> Vec<String> {
    let watts = |milliwatts: u32| (milliwatts / 1000).to_string();
    vec![
        gpu.index.to_string(),
        painted(&gpu.health),
        or_none(gpu.utilisation, |percent| format!("{percent}%")),
        memory(gpu),
        or_none(gpu.temperature, |degrees| format!("{degrees}°C")),
        or_none(gpu.power, |power| format!("{}/{}W", watts(power), or_none(gpu.power_limit, watts))),
        escape(gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name)),
    ]
}

fn wide(gpu: &GpuView) -> Vec<String> {
    [state(gpu), vec![gpu.uuid.to_string(), escape(&gpu.bus)]].concat()
}

/// Who has the card, shares of it, and its slices, of which those that nobody has are named as well.
fn held(gpu: &GpuView) -> Vec<String> {
    let share = |share: &crate::api::gpus::ShareView| format!("{} {}", Bytes(share.memory), escape(&share.holder));
    let slice = |slice: &crate::api::gpus::SliceView| {
        let holder = slice.leased_by.as_deref().map_or(String::new(), |holder| format!(" {}", escape(holder)));
        format!("{} {}{holder}", escape(&slice.profile), slice.uuid)
    };
    vec![
        gpu.leased_by.as_deref().map(escape).unwrap_or_default(),
        gpu.shares.iter().map(share).collect::<Vec<_>>().join("; "),
        gpu.slices.iter().map(slice).collect::<Vec<_>>().join("; "),
    ]
}

/// Some cards tell of none, since they have none of their own.
fn memory(gpu: &GpuView) -> String {
    let used = or_none(gpu.memory_used, gib);
    gpu.memory.map_or_else(|| used.clone(), |all| format!("{used}/{}GiB", gib(all)))
}

fn painted(health: &str) -> String {
    let colour = match health {
        "ok" => "32",
        "warning" => "33",
        _ => "31",
    };
    output::paint(colour, health)
}

fn lease(gpu: &GpuView) -> Vec<Vec<String>> {
    gpu.leased_by.iter().map(|holder| vec![gpu.index.to_string(), escape(holder)]).collect()
}

fn shares(gpu: &GpuView) -> Vec<Vec<String>> {
    let row = |share: &crate::api::gpus::ShareView| {
        vec![gpu.index.to_string(), Bytes(share.memory).to_string(), escape(&share.holder)]
    };
    gpu.shares.iter().map(row).collect()
}

fn slices(gpu: &GpuView) -> Vec<Vec<String>> {
    let row = |slice: &crate::api::gpus::SliceView| {
        let memory = or_none(slice.memory, |bytes| Bytes(bytes).roughly());
        vec![
            gpu.index.to_string(),
            escape(&slice.profile),
            memory,
            slice.uuid.to_string(),
            or_none(slice.leased_by.as_deref(), escape),
        ]
    };
    gpu.slices.iter().map(row).collect()
}

fn processes(gpu: &GpuView) -> Vec<Vec<String>> {
    let row = |process: &crate::api::gpus::ProcessView| {
        vec![
            gpu.index.to_string(),
            or_none(process.pid, |pid| pid.to_string()),
            or_none(process.user.as_deref(), escape),
            or_none(process.memory, |bytes| format!("{}MiB", bytes >> 20)),
            or_none(process.program.as_deref(), escape),
        ]
    };
    gpu.processes.iter().map(row).collect()
}

/// Of cards of which the same is said in one line.
fn findings(list: &GpuList) -> anyhow::Result<()> {
    let said = list.gpus.iter().flat_map(|gpu| said_of(gpu).into_iter().map(|said| (gpu.index, said)));
    for (at, (cards, said)) in same_together(said).into_iter().enumerate() {
        if at == 0 {
            output::line("")?;
        }
        output::line(&escape(&format!("GPU {} {said}", listed(&cards))))?;
    }
    Ok(())
}

/// What is wrong with a card and its slices.
fn said_of(gpu: &GpuView) -> Vec<String> {
    let of_card = gpu.findings.iter().map(|one| format!("{}: {}: {}", one.level, one.rule, one.says));
    let of_slice = |slice: &crate::api::gpus::SliceView| {
        let said = slice.unreachable.as_ref()?;
        Some(format!("slice {} unusable: no-device: {said}", slice.profile))
    };
    of_card.chain(gpu.slices.iter().filter_map(of_slice)).collect()
}

fn ways(gpu: &GpuView) -> Vec<String> {
    let links = gpu.links.iter().cloned();
    let near = [or_none(gpu.numa_node, |node| node.to_string()), gpu.cpus.clone()];
    [gpu.index.to_string()].into_iter().chain(links).chain(near).collect()
}

fn place(gpu: &GpuView) -> Vec<String> {
    let device = or_none(gpu.minor, |minor| format!("/dev/nvidia{minor}"));
    vec![gpu.index.to_string(), device, escape(&gpu.bus), gpu.uuid.to_string()]
}
