//! What slices of cards did: their memory by themselves, how busy they were by GPM, of cards that have it (Hopper and later).
//!
//! GPM counts from one moment to another, so it is asked twice, once for all cards, with a wait between.

use std::collections::BTreeSet;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};

use super::power::{Part, divided};
use crate::gpu::{Sample, Slice, deck, nvml};
use crate::ids::GpuUuid;

/// GPM counts nothing in less than 100 ms. As long as NVML takes for whole cards.
const WINDOW: Duration = Duration::from_millis(250);

/// A card that is cut up.
pub(super) struct CutUp<'a> {
    device: Device<'a>,
    slices: Vec<Begun<'a>>,
}

struct Begun<'a> {
    slice: Slice,
    device: Device<'a>,
    /// Absent where nothing tells how busy it is.
    before: Option<GpmSample<'a>>,
}

impl<'a> CutUp<'a> {
    pub(super) fn begin(device: Device<'a>) -> Self {
        let found = nvml::slices(&device).found;
        let known = if device.gpm_support().unwrap_or(false) { found.as_slice() } else { &[] };
        let alone = own_instances(known.iter().map(|(slice, _)| slice));
        let befores: Vec<_> = found.iter().map(|(slice, _)| sample_of(&device, &alone, slice)).collect();
        let begun = |((slice, device), before)| Begun { slice, device, before };
        Self { slices: found.into_iter().zip(befores).map(begun).collect(), device }
    }

    fn counts(&self) -> bool {
        self.slices.iter().any(|begun| begun.before.is_some())
    }

    /// What each did, with its power if it is one of `held`.
    pub(super) fn end(self, held: &BTreeSet<GpuUuid>) -> Vec<(GpuUuid, Sample)> {
        let told: Vec<(&Slice, Sample)> = self.slices.iter().map(|begun| (&begun.slice, self.sample(begun))).collect();
        let is_held = |slice: &Slice| held.contains(&slice.uuid);
        let part = |(slice, sample): &(&Slice, Sample)| {
            Some(Part { size: deck::weight_of_slice(&slice.profile), busy: sample.utilisation? })
        };
        let parts =
            |wanted: bool| told.iter().filter(|one| is_held(one.0) == wanted).map(part).collect::<Option<Vec<_>>>();
        // Where one does not tell, it may be the one that works.
        let taken = self.device.power_usage().ok().zip(parts(true)).zip(parts(false));
        let taken = taken.map(|((power, held), others)| divided(power, &held, &others)).unwrap_or_default();
        let mut taken = taken.into_iter();
        let mut with_power = |(slice, sample): (&Slice, Sample)| {
            let power = if is_held(slice) { taken.next() } else { None };
            (slice.uuid.clone(), Sample { power, ..sample })
        };
        told.into_iter().map(&mut with_power).collect()
    }

    fn sample(&self, begun: &Begun<'a>) -> Sample {
        let memory = begun.device.memory_info().ok().map(|memory| memory.used);
        Sample { memory, utilisation: self.utilisation(begun), power: None }
    }

    fn utilisation(&self, begun: &Begun<'a>) -> Option<u32> {
        let (before, instances) = (begun.before.as_ref()?, begun.slice.instances?);
        let after = self.device.gpm_mig_sample(instances.gpu).ok()?;
        let told = gpm_metrics_get(self.device.nvml(), before, &after, &[GpmMetricId::GraphicsUtil]).ok()?;
        let percent = told.into_iter().next()?.ok()?.value;
        (0.0..=100.0).contains(&percent).then_some(percent.round() as u32)
    }
}

/// Waits, if anything is counted, until there is something to tell.
#[expect(clippy::disallowed_methods, reason = "what is done while it waits is what it asks for")]
pub(super) fn count(cards: &[CutUp<'_>]) {
    if cards.iter().any(CutUp::counts) {
        std::thread::sleep(WINDOW);
    }
}

/// Numbers of the instances that one slice has for itself: what several do in one, nothing tells apart.
fn own_instances<'s>(slices: impl Iterator<Item = &'s Slice>) -> Vec<u32> {
    let all: Vec<u32> = slices.filter_map(|slice| Some(slice.instances?.gpu)).collect();
    all.iter().filter(|one| all.iter().filter(|other| other == one).count() == 1).copied().collect()
}

fn sample_of<'a>(device: &Device<'a>, alone: &[u32], slice: &Slice) -> Option<GpmSample<'a>> {
    let instance = slice.instances.map(|instances| instances.gpu).filter(|gpu| alone.contains(gpu))?;
    device.gpm_mig_sample(instance).ok()
}
