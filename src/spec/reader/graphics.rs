//! What tasks want of graphics cards, and what a job says of cards that fail or are idle.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;

use super::Reader;
use crate::ids::{Bytes, parse_duration};
use crate::spec::job::{GpuIdle, GpuPart, OnGpuFailure, OnIdle, Resources, Role, ShareOver};
use crate::spec::wire::{WireAlerts, WireResources};

/// Longer than the name of any card.
const KIND_MAX: usize = 64;
/// Of a number in a profile of MIG.
const DIGITS_MAX: usize = 4;

/// What counts as idle where the file does not say, in percent, and from how long on.
const IDLE_BELOW: u32 = 5;
const IDLE_LASTING: Duration = Duration::from_secs(30 * 60);

const OVER_NOTHING: &str =
    "`gpu_memory_over` is about shares of a card, of which there is none here: say how much by `gpu_memory`";

pub(super) fn gpu_idle(wire: &WireAlerts) -> Option<GpuIdle> {
    let wire = wire.gpu_idle.as_ref()?.get_ref();
    let lasting = wire.lasting.as_ref().and_then(|text| parse_duration(text.get_ref()).ok());
    Some(GpuIdle {
        below: wire.below.unwrap_or(IDLE_BELOW),
        lasting: lasting.unwrap_or(IDLE_LASTING),
        then: if wire.then.as_deref() == Some("stop") { OnIdle::Stop } else { OnIdle::Alert },
    })
}

impl Reader<'_> {
    pub(super) fn on_gpu_failure(&mut self, word: Option<&Spanned<String>>, retries: u32) -> OnGpuFailure {
        match word.map(|word| (word.get_ref().as_str(), word.span())) {
            Some(("stop", _)) => OnGpuFailure::Stop,
            Some(("retry", span)) => {
                if retries == 0 {
                    let message = "`on_gpu_failure` = \"retry\" makes another attempt only of those that `retries` allows, \
                                   which is 0";
                    self.found.push(self.source.warning(span, "on_gpu_failure", message));
                }
                OnGpuFailure::Retry
            }
            _ => OnGpuFailure::Alert,
        }
    }

    pub(super) fn warn_of_idle_nothing(&mut self, wire: &WireAlerts, roles: &[(Role, Range<usize>)]) {
        let Some(idle) = wire.gpu_idle.as_ref().filter(|_| roles.iter().all(|(role, _)| role.resources.gpu == 0))
        else {
            return;
        };
        let message = "`alerts.gpu_idle` is about the job's graphics cards, and no task of it has any: `resources.gpu` asks for \
                       some";
        self.found.push(self.source.warning(idle.span(), "alerts.gpu_idle", message));
    }

    /// How many, what part of a card each is, and of which kind.
    pub(super) fn graphics(
        &mut self,
        job: &WireResources,
        role: &WireResources,
        key: &str,
    ) -> (u32, GpuPart, Option<String>) {
        let kind = self.kind_of_card(role.gpu_type.as_ref().or(job.gpu_type.as_ref()), key);
        let (share, slice) = part_of_card(job, role);
        let part = match (share, slice) {
            (Some(_), Some(slice)) => {
                let message = "`mig` are slices of cards that were cut up, and `gpu_memory` is a share of one that was not: say one of them";
                self.error(slice.span(), &within(key, "mig"), message);
                GpuPart::Whole
            }
            (Some(share), None) => {
                let memory = share.get_ref().parse().unwrap_or(Bytes(0));
                let over = role.gpu_memory_over.as_ref().or(job.gpu_memory_over.as_ref());
                let over = over.map(|word| word.get_ref().as_str());
                GpuPart::Share { memory, over: if over == Some("alert") { ShareOver::Alert } else { ShareOver::Stop } }
            }
            (None, Some(slice)) => GpuPart::Slice(self.profile(slice, key)),
            (None, None) => GpuPart::Whole,
        };
        let said = role.gpu.as_ref().or(job.gpu.as_ref());
        let gpu = said.map_or(u32::from(part != GpuPart::Whole), |said| *said.get_ref());
        if let (GpuPart::Share { .. }, Some(said)) = (&part, said.filter(|_| gpu > 1)) {
            let message = format!(
                "`gpu` is {gpu}, but `gpu_memory` is a share of one card: leave it out, or ask for whole cards"
            );
            self.error(said.span(), &within(key, "gpu"), message);
        }
        if let Some(kind) = role.gpu_type.as_ref().filter(|_| gpu == 0) {
            let message = "`gpu_type` is the kind of cards that nobody asks for here: say how many by `gpu`";
            self.warn_of(kind, &within(key, "gpu_type"), message);
        }
        for (name, part) in [("gpu_memory", &role.gpu_memory), ("mig", &role.mig)] {
            if let Some(part) = part.as_ref().filter(|_| gpu == 0) {
                self.warn_of(part, &within(key, name), &of_no_card(name));
            }
        }
        if let Some(over) = role.gpu_memory_over.as_ref().filter(|_| !matches!(part, GpuPart::Share { .. })) {
            self.warn_of(over, &within(key, "gpu_memory_over"), OVER_NOTHING);
        }
        (gpu, part, kind)
    }

    fn warn_of(&mut self, said: &Spanned<String>, key: &str, message: &str) {
        self.found.push(self.source.warning(said.span(), key, message));
    }

    fn kind_of_card(&mut self, kind: Option<&Spanned<String>>, key: &str) -> Option<String> {
        let text = kind?.get_ref().trim();
        if text.is_empty() || text.len() > KIND_MAX || text.chars().any(char::is_control) {
            let message = format!("`gpu_type` is part of the name of a card, {KIND_MAX} letters at most, as \"H100\"");
            self.error(kind?.span(), &within(key, "gpu_type"), message);
            return None;
        }
        Some(text.to_owned())
    }

    fn profile(&mut self, profile: &Spanned<String>, key: &str) -> String {
        let text = profile.get_ref().trim().to_lowercase();
        if !is_profile(&text) {
            let message = format!(
                "`mig`: {:?} is no profile of MIG, such as \"1g.10gb\"; `trainyard gpu` lists those that there are",
                profile.get_ref()
            );
            self.error(profile.span(), &within(key, "mig"), message);
        }
        text
    }

    /// A kind or a part is said, and nobody asks for a card; or what is done about shares, and nobody asks for one.
    pub(super) fn graphics_of_nobody(&mut self, job: &WireResources, roles: &[(Role, Range<usize>)]) {
        let tasks = || roles.iter().filter(|(role, _)| !role.is_service).map(|(role, _)| &role.resources);
        if let Some(kind) = job.gpu_type.as_ref().filter(|_| tasks().all(|wanted| wanted.gpu == 0)) {
            let message = "`resources.gpu_type` is the kind of cards that no task asks for: say how many by `gpu`";
            self.warn_of(kind, "resources.gpu_type", message);
        }
        for (name, part) in [("gpu_memory", &job.gpu_memory), ("mig", &job.mig)] {
            let is_nobody_s = |wanted: &Resources| wanted.gpu == 0;
            if let Some(part) = part.as_ref().filter(|_| tasks().all(is_nobody_s)) {
                self.warn_of(part, &within("", name), &of_no_card(name));
            }
        }
        let is_share = |wanted: &Resources| matches!(wanted.gpu_part, GpuPart::Share { .. });
        if let Some(over) = job.gpu_memory_over.as_ref().filter(|_| !tasks().any(is_share)) {
            self.warn_of(over, "resources.gpu_memory_over", OVER_NOTHING);
        }
    }
}

/// A role that says either has that, whatever the job says.
fn part_of_card<'a>(
    job: &'a WireResources,
    role: &'a WireResources,
) -> (Option<&'a Spanned<String>>, Option<&'a Spanned<String>>) {
    let of = |wire: &'a WireResources| (wire.gpu_memory.as_ref(), wire.mig.as_ref());
    match of(role) {
        (None, None) => of(job),
        said => said,
    }
}

fn of_no_card(name: &str) -> String {
    format!("`{name}` is a part of a card, and nobody here has one: `gpu` is 0; leave that out")
}

fn within(role: &str, name: &str) -> String {
    format!("{role}.resources.{name}").trim_start_matches('.').to_owned()
}

/// As `1g.10gb`, `2g.20gb+me` or `1c.3g.40gb`.
fn is_profile(text: &str) -> bool {
    let counted = |part: &str, unit: &str| {
        let count = part.strip_suffix(unit).unwrap_or_default();
        (1..=DIGITS_MAX).contains(&count.len()) && count.bytes().all(|byte| byte.is_ascii_digit())
    };
    let (size, attributes) = text.split_once('+').map_or((text, None), |(size, more)| (size, Some(more)));
    let plain = attributes.is_none_or(|more| {
        !more.is_empty() && more.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+".contains(&byte))
    });
    let parts: Vec<&str> = size.split('.').collect();
    plain
        && match parts.as_slice() {
            [compute, memory] => counted(compute, "g") && counted(memory, "gb"),
            [instance, compute, memory] => counted(instance, "c") && counted(compute, "g") && counted(memory, "gb"),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_told_from_other_words() {
        for good in ["1g.10gb", "7g.80gb", "1g.10gb+me", "2g.20gb+me.all", "1c.3g.40gb"] {
            assert!(is_profile(good), "{good}");
        }
        for bad in ["", "1g", "g.gb", "1g.10", "10gb.1g", "1g.10gb+", "1g.10gb+/x", "x.1g.10gb", "99999g.10gb"] {
            assert!(!is_profile(bad), "{bad}");
        }
    }
}
