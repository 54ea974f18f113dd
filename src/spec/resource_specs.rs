//! Specs: sizes of tasks that the administrator offers by name. A job that names one is put together with its numbers, so
//! that a run keeps those that it was made of.

use std::collections::BTreeMap;

use super::diagnostic::Diagnostic;
use super::job::JobSpec;
use super::layers::Layer;
use super::near::nearest;
use super::template::error;
use super::tree::{Entry, Origin, Scalar, Value, get, overlay, take};
use crate::ids::{AssetName, Bytes, Cpu, WorkspaceName};

/// One size.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceSpec {
    pub cpu: Cpu,
    pub memory: Bytes,
    pub gpu: u32,
    /// As without a spec when absent.
    pub shm: Option<Bytes>,
    /// Of an hour of one task, in whatever the administrator reckons in; for `trainyard usage`.
    pub price: Option<f64>,
    pub description: String,
}

/// The specs of a workspace.
pub type Offer = BTreeMap<AssetName, ResourceSpec>;

/// All that the administrator offers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResourceSpecs {
    pub everybody: Offer,
    pub of: BTreeMap<WorkspaceName, Offer>,
}

impl ResourceSpecs {
    /// Those that jobs of a workspace may name; its own lie over those for everybody.
    pub fn of(&self, workspace: &WorkspaceName) -> Offer {
        let own = self.of.get(workspace).into_iter().flatten();
        self.everybody.iter().chain(own).map(|(name, spec)| (name.clone(), spec.clone())).collect()
    }

    /// Those that a template which lies with a workspace's may name: templates of the default one are for jobs of all.
    pub fn of_template(&self, workspace: &WorkspaceName) -> Offer {
        let mut offer = self.of(workspace);
        if *workspace == WorkspaceName::default_workspace() {
            let others = self.of.values().flatten().map(|(name, spec)| (name.clone(), spec.clone()));
            others.for_each(|(name, spec)| _ = offer.entry(name).or_insert(spec));
        }
        offer
    }
}

/// Whether a spec has been put in.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filled {
    Yes(Prices),
    No,
}

/// Of an hour of the tasks of a job that have one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    pub hourly: f64,
    /// Other tasks have none.
    pub is_part: bool,
}

/// Of an hour of one task, by the key of the job (""), role or service that says its size; none where it is the size of no spec,
/// or of one without a price.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Prices(BTreeMap<String, Option<f64>>);

impl Prices {
    /// Of an hour of all tasks together; none where no task has a price.
    pub(super) fn hourly(&self, spec: &JobSpec) -> Option<Price> {
        let of_job = self.0.get("").copied().flatten();
        let (mut hourly, mut is_part) = (None, false);
        for role in &spec.roles {
            let key = match (role.is_service, role.name.as_str()) {
                (false, name) => format!("roles.{name}."),
                (true, "tensorboard") => "tensorboard.".to_owned(),
                (true, name) => format!("services.{name}."),
            };
            let own = self.0.get(&key).copied();
            match own.unwrap_or(of_job.filter(|_| !role.is_service)) {
                Some(price) => hourly = Some(hourly.unwrap_or(0.0) + price * f64::from(role.count)),
                // What is only looked at has nothing of the job's.
                None => is_part |= own.is_some() || !role.is_service,
            }
        }
        hourly.map(|hourly| Price { hourly, is_part })
    }
}

/// What of `resources` makes a task larger or smaller than its spec, beside which it stands.
const SIZES: [&str; 5] = ["cpu", "memory", "gpu", "gpu_memory", "mig"];

const SPEC: &str = "spec";

/// Puts the numbers of each spec that `resources` name in its place, below what stands beside it.
pub(super) fn fill(entries: &mut [Entry], offer: &Offer, layers: &[&Layer]) -> Result<Filled, Vec<Diagnostic>> {
    let mut filling =
        Filling { offer, layers, shm_above: false, is_filled: false, prices: Prices::default(), found: Vec::new() };
    filling.owner(entries, "");
    let of_job = get(entries, "resources").map_or(&[][..], |entry| entry.node.entries());
    filling.shm_above = get(of_job, "shm").is_some();
    for part in entries.iter_mut() {
        let name = part.name.clone();
        let Value::Table(inner) = &mut part.node.value else { continue };
        match name.as_str() {
            "tensorboard" => filling.owner(inner, "tensorboard."),
            "roles" | "services" => inner.iter_mut().for_each(|one| {
                let key = format!("{name}.{}.", one.name);
                if let Value::Table(inner) = &mut one.node.value {
                    filling.owner(inner, &key);
                }
            }),
            _ => {}
        }
    }
    match filling.found.is_empty() {
        true if filling.is_filled => Ok(Filled::Yes(filling.prices)),
        true => Ok(Filled::No),
        false => Err(filling.found),
    }
}

struct Filling<'a> {
    offer: &'a Offer,
    layers: &'a [&'a Layer],
    /// The job says a size of /dev/shm that roles have as well.
    shm_above: bool,
    is_filled: bool,
    prices: Prices,
    found: Vec<Diagnostic>,
}

impl Filling<'_> {
    /// A job, role or service that may have `resources`.
    fn owner(&mut self, entries: &mut [Entry], key: &str) {
        let Some(resources) = entries.iter_mut().find(|entry| entry.name == "resources") else { return };
        let Value::Table(own) = &mut resources.node.value else { return };
        let is_resized = SIZES.iter().any(|size| get(own, size).is_some());
        if is_resized {
            self.prices.0.insert(key.to_owned(), None);
        }
        let Some(named) = take(own, SPEC) else { return };
        let owner = key;
        let key = format!("{key}resources.{SPEC}");
        let name = named.node.as_text().unwrap_or_default();
        let Some((_, spec)) = self.offer.iter().find(|(known, _)| known.as_str() == name) else {
            let message = format!("`{key}`: there is no spec {name:?}{}", advice(name, self.offer));
            return self.found.push(error(self.layers, named.node.at, &key, message));
        };
        let shm = spec.shm.or_else(|| self.shm_above.then_some(Bytes(spec.memory.0 / 2)));
        let mut filled = spec.entries(named.node.at, shm);
        // A share or a slice is asked for beside a size that may have no card at all.
        if ["gpu_memory", "mig"].iter().any(|part| get(own, part).is_some()) {
            filled.retain(|entry| entry.name != "gpu");
        }
        overlay(&mut filled, std::mem::take(own));
        *own = filled;
        self.prices.0.entry(owner.to_owned()).or_insert(spec.price);
        self.is_filled = true;
    }
}

fn advice(name: &str, offer: &Offer) -> String {
    if offer.is_empty() {
        return ", nor any other that this workspace may name; the administrator writes [specs.NAME] into trainyard.toml"
            .to_owned();
    }
    let names: Vec<&str> = offer.keys().map(AssetName::as_str).collect();
    let near = nearest(name, names.iter().copied()).map(|near| format!("; did you mean {near:?}?"));
    format!(
        " in this workspace{} `trainyard spec ls` lists {}",
        near.unwrap_or_else(|| ";".to_owned()),
        names.join(", ")
    )
}

impl ResourceSpec {
    /// As `resources` has it. Also what it has none of: a role's spec is not mixed with the job's resources.
    fn entries(&self, at: Origin, shm: Option<Bytes>) -> Vec<Entry> {
        let mut out = vec![
            Entry::scalar("cpu", at, Scalar::number(self.cpu.to_string())),
            Entry::scalar("memory", at, Scalar::text(self.memory.to_string())),
            Entry::scalar("gpu", at, Scalar::number(self.gpu.to_string())),
        ];
        out.extend(shm.map(|shm| Entry::scalar("shm", at, Scalar::text(shm.to_string()))));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_of_the_default_workspace_may_name_the_specs_of_all() {
        let spec = |cpu: u64| ResourceSpec {
            cpu: Cpu(cpu),
            memory: Bytes(1),
            gpu: 0,
            shm: None,
            price: None,
            description: String::new(),
        };
        let offer = |cpu: u64| -> Offer { [("small".parse().unwrap(), spec(cpu))].into() };
        let [vision, other] = ["vision", "other"].map(|name| name.parse::<WorkspaceName>().unwrap());
        let specs = ResourceSpecs { everybody: Offer::new(), of: [(vision.clone(), offer(2))].into() };
        assert_eq!(specs.of_template(&WorkspaceName::default_workspace()), offer(2));
        assert_eq!((specs.of_template(&vision), specs.of_template(&other)), (offer(2), Offer::new()));
        let specs = ResourceSpecs { everybody: offer(1), ..specs };
        assert_eq!(
            specs.of_template(&WorkspaceName::default_workspace()),
            offer(1),
            "what is for everybody is not another's"
        );
    }
}
