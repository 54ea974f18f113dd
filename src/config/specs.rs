//! Sizes of tasks that jobs name: `[specs.NAME]` and `[workspaces.NAME.specs.NAME]`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::WireWorkspace;
use crate::ids::{Bytes, Cpu, WorkspaceName};
use crate::spec::keys::MEMORY_MIN;
use crate::spec::{Offer, ResourceSpec, ResourceSpecs};

/// What `resources.gpu` takes.
const GPU_MAX: u32 = 64;
/// What `resources.cpu` takes.
const CPU: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;
/// Of an hour; beyond it sums would lose their cents.
const PRICE_MAX: f64 = 1e12;
/// What `resources.shm` takes.
const SHM_MIN: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, as `[specs.NAME]` begins one")]
pub(super) struct WireSpec {
    cpu: f64,
    memory: String,
    #[serde(default)]
    gpu: u32,
    shm: Option<String>,
    price: Option<f64>,
    #[serde(default)]
    description: String,
}

type BadValue = (String, String);

pub(super) fn read(
    everybody: &BTreeMap<String, WireSpec>,
    workspaces: &BTreeMap<String, WireWorkspace>,
) -> Result<ResourceSpecs, BadValue> {
    let of = workspaces.iter().filter(|(_, keys)| !keys.specs.is_empty()).map(|(name, keys)| {
        let workspace: WorkspaceName =
            name.parse().map_err(|error: crate::ids::NameError| (format!("workspaces.{name}"), error.to_string()))?;
        Ok((workspace, offer(&keys.specs, &format!("workspaces.{name}.specs"))?))
    });
    Ok(ResourceSpecs { everybody: offer(everybody, "specs")?, of: of.collect::<Result<_, BadValue>>()? })
}

fn offer(specs: &BTreeMap<String, WireSpec>, key: &str) -> Result<Offer, BadValue> {
    let one = |(name, wire): (&String, &WireSpec)| {
        let key = format!("{key}.{name}");
        let known = name.parse().map_err(|error: crate::ids::NameError| (key.clone(), error.to_string()))?;
        Ok((known, spec(wire).map_err(|(part, message)| (format!("{key}.{part}"), message))?))
    };
    specs.iter().map(one).collect()
}

fn spec(wire: &WireSpec) -> Result<ResourceSpec, (&'static str, String)> {
    if !CPU.contains(&wire.cpu) {
        return Err(("cpu", format!("must be from {} to {}", CPU.start(), CPU.end())));
    }
    if wire.gpu > GPU_MAX {
        return Err(("gpu", format!("must be {GPU_MAX} at most")));
    }
    let memory = size(&wire.memory, MEMORY_MIN).map_err(|message| ("memory", message))?;
    let shm = wire.shm.as_ref().map(|text| size(text, SHM_MIN)).transpose().map_err(|message| ("shm", message))?;
    if let Some(shm) = shm.filter(|shm| *shm > memory) {
        return Err(("shm", format!("is {shm}, more than the memory of {memory}, of which it is a part")));
    }
    if wire.price.is_some_and(|price| !(0.0..=PRICE_MAX).contains(&price)) {
        return Err(("price", format!("must be a number from 0 to {PRICE_MAX}")));
    }
    Ok(ResourceSpec {
        cpu: Cpu((wire.cpu * 1000.0).round() as u64),
        memory,
        gpu: wire.gpu,
        shm,
        price: wire.price,
        description: wire.description.clone(),
    })
}

fn size(text: &str, least: u64) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error: crate::ids::QuantityError| error.to_string())?;
    if size.0 < least { Err(format!("must be at least {}", Bytes(least))) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;

    #[test]
    fn a_workspace_s_specs_lie_over_those_for_everybody() {
        let text = "[specs.small]\ncpu = 1\nmemory = \"2GiB\"\nprice = 0.5\n[specs.big]\ncpu = 8\nmemory = \"64GiB\"\ngpu = 2\nshm = \"8GiB\"\n\
                    [workspaces.vision.specs.small]\ncpu = 2.5\nmemory = \"4GiB\"\ndescription = \"of ours\"\n";
        let specs = load(text).unwrap().specs;
        let told = |workspace: &str| {
            let offer = specs.of(&workspace.parse().unwrap());
            let one = offer.iter().map(|(name, spec)| (name.to_string(), spec.cpu.0, spec.memory.0 >> 30, spec.gpu));
            one.collect::<Vec<_>>()
        };
        assert_eq!(told("default"), [("big".into(), 8000, 64, 2), ("small".into(), 1000, 2, 0)]);
        assert_eq!(told("vision"), [("big".into(), 8000, 64, 2), ("small".into(), 2500, 4, 0)]);
    }

    #[test]
    fn what_is_wrong_with_a_spec_is_told_by_its_key() {
        let whole = "cpu = 1\nmemory = \"1GiB\"\n";
        for (spec, wanted) in [
            ("cpu = 0\nmemory = \"1GiB\"".to_owned(), "specs.a.cpu: must be from 0.1"),
            ("cpu = 1\nmemory = \"1KiB\"".to_owned(), "specs.a.memory: must be at least 100MB"),
            (format!("{whole}shm = \"2GiB\""), "specs.a.shm: is 2GiB, more than"),
            (format!("{whole}gpu = 65"), "specs.a.gpu: must be 64 at most"),
            (format!("{whole}price = -1"), "specs.a.price: must be a number from 0 to 1000000000000"),
            (format!("{whole}disk = 1"), "unknown field `disk`"),
            ("cpu = 1".to_owned(), "missing field `memory`"),
        ] {
            let error = load(&format!("[specs.a]\n{spec}")).unwrap_err().to_string();
            assert!(error.contains(wanted), "{spec}: {error}");
            let own = load(&format!("[workspaces.v.specs.a]\n{spec}")).unwrap_err().to_string();
            assert!(own.contains(wanted.trim_start_matches("specs.a")), "{own}");
        }
        let named = load("[specs.\"a/b\"]\ncpu = 1\nmemory = \"1GiB\"").unwrap_err().to_string();
        assert!(named.contains("specs.a/b: "), "{named}");
    }
}
