//! Upper bounds, of the file and of platforms: where a template, a sweep or a script asks for more, the job runs with less,
//! and says so.

use std::ops::{Range, RangeInclusive};

use toml::Spanned;

use super::{Reader, strategy};
use crate::spec::job::{MinSucceeded, Role};
use crate::spec::platform::Platform;
use crate::spec::wire::{WireJob, WireResources};

/// What UAI-Train's console lets a distributed job have.
const UAI_NODES: RangeInclusive<u32> = 2..=4;

/// What a file says that a job has at most.
pub(super) struct Bounds {
    nodes: Option<Spanned<u32>>,
    gpu: Option<Spanned<u32>>,
    /// Cards of its services, which are not cut.
    by_services: u32,
    /// The same of a TensorBoard that each task has.
    by_each_board: u32,
}

impl Bounds {
    pub(super) fn of(wire: &WireJob) -> Self {
        let of_services = wire.services.values().map(|service| cards_of(&service.get_ref().resources));
        let board = wire.tensorboard.as_ref().map(Spanned::get_ref);
        let of_boards =
            |each: bool| board.filter(|board| board.each_task == each).map(|board| cards_of(&board.resources));
        let by_services = of_services.chain(of_boards(false)).fold(0, u32::saturating_add);
        let by_each_board = of_boards(true).unwrap_or(0);
        Self { nodes: wire.max_nodes.clone(), gpu: wire.max_gpu.clone(), by_services, by_each_board }
    }

    pub(super) fn nodes(&self) -> Option<u32> {
        self.nodes.as_ref().map(|most| *most.get_ref())
    }

    pub(super) fn gpu(&self) -> Option<u32> {
        self.gpu.as_ref().map(|most| *most.get_ref())
    }
}

impl Reader<'_> {
    /// Holds roles, without services, to what the file and the contract allow.
    pub(super) fn bound(&mut self, roles: &mut [(Role, Range<usize>)], bounds: &Bounds) {
        if let Some(most) = &bounds.nodes {
            self.bound_nodes(roles, most);
        }
        if let Some(most) = &bounds.gpu {
            let boards = u32::try_from(computing_tasks(roles).len()).unwrap_or(u32::MAX);
            let by_services = bounds.by_services.saturating_add(bounds.by_each_board.saturating_mul(boards));
            self.bound_gpu(roles, most, by_services);
        }
        if self.kinds.contract.platform == Platform::Uai {
            self.nodes_of_uai(roles, bounds.nodes());
        }
    }

    /// The last ones are left out; of each role one stays.
    fn bound_nodes(&mut self, roles: &mut [(Role, Range<usize>)], most: &Spanned<u32>) {
        let (computing, max) = (computing(roles), *most.get_ref());
        if u32::try_from(computing.len()).is_ok_and(|count| count > max) {
            let message =
                format!("`max_nodes` is {max}, but {} roles compute, each in one task at least", computing.len());
            return self.error(most.span(), "max_nodes", message);
        }
        let mut excess = nodes(roles, &computing).saturating_sub(max);
        for &place in computing.iter().rev() {
            let Some((role, span)) = roles.get_mut(place) else { continue };
            let (asked, left) = (role.count, role.count - excess.min(role.count.saturating_sub(1)));
            if left < asked {
                excess -= asked - left;
                cut(role, left);
                let message = format!(
                    "role {} has {left} of the {asked} tasks that it asks for: `max_nodes` is {max}",
                    role.name
                );
                let (span, key) = (span.clone(), format!("roles.{}.count", role.name));
                self.found.push(self.source.warning(span, &key, message));
            }
        }
    }

    /// All tasks that have more than so many are left with so many.
    fn bound_gpu(&mut self, roles: &mut [(Role, Range<usize>)], most: &Spanned<u32>, by_services: u32) {
        let cards = |roles: &[(Role, Range<usize>)], each: u32| -> u64 {
            roles.iter().map(|(role, _)| u64::from(role.count) * u64::from(role.resources.gpu.min(each))).sum()
        };
        let max = *most.get_ref();
        let Some(left) = max.checked_sub(by_services) else {
            let message = format!("`max_gpu` is {max}, but the services alone have {by_services}");
            return self.error(most.span(), "max_gpu", message);
        };
        let asked = roles.iter().map(|(role, _)| role.resources.gpu).max().unwrap_or(0);
        let each = (0..=asked).rev().find(|each| cards(roles, *each) <= u64::from(left)).unwrap_or(0);
        // Without a card, a job that wants some would train for days on cores: unless that is what the file says.
        if each == 0 && asked > 0 && max > 0 {
            let tasks = cards(roles, 1);
            let message = format!(
                "`max_gpu` is {max}, of which tasks may have {left}: too few for {tasks} tasks that want one each"
            );
            return self.error(most.span(), "max_gpu", message);
        }
        for (role, span) in roles.iter_mut().filter(|(role, _)| role.resources.gpu > each) {
            let message = format!(
                "each task of role {} has {each} of the {} cards that it asks for: `max_gpu` is {max}",
                role.name, role.resources.gpu
            );
            role.resources.gpu = each;
            let (span, key) = (span.clone(), format!("roles.{}.resources.gpu", role.name));
            self.found.push(self.source.warning(span, &key, message));
        }
    }

    fn nodes_of_uai(&mut self, roles: &[(Role, Range<usize>)], most: Option<u32>) {
        let tasks: u32 = roles.iter().map(|(role, _)| role.count).fold(0, u32::saturating_add);
        let (count, least, max) =
            (nodes(roles, &computing(roles)), *UAI_NODES.start(), most.unwrap_or(*UAI_NODES.end()));
        if tasks < 2 || (least..=max).contains(&count) {
            return;
        }
        let of = match most {
            Some(max) if max < least => {
                let message = format!(
                    "under contract uai a distributed job has {least} nodes at least (by UAI-Train's console), and `max_nodes` is {max}"
                );
                let span = roles.first().map_or(0..0, |(_, span)| span.clone());
                return self.error(span, "max_nodes", message);
            }
            None => {
                "by UAI-Train's console; `max_nodes` sets another upper bound, to which what is more is cut".to_owned()
            }
            Some(max) => format!("2 by UAI-Train's console, {max} by `max_nodes`"),
        };
        let message =
            format!("under contract uai a distributed job has {least} to {max} nodes ({of}), and this one {count}");
        let span = roles.first().map_or(0..0, |(_, span)| span.clone());
        self.error(span, "roles", message);
    }
}

/// A share of a card and a slice are one, as they are where tasks have them.
fn cards_of(resources: &WireResources) -> u32 {
    let has_part = resources.gpu_memory.is_some() || resources.mig.is_some();
    resources.gpu.as_ref().map_or(u32::from(has_part), |said| *said.get_ref())
}

/// Tasks that compute, by their names.
pub(super) fn computing_tasks(roles: &[(Role, Range<usize>)]) -> Vec<String> {
    let of_roles = computing(roles).into_iter().filter_map(|place| roles.get(place));
    of_roles.flat_map(|(role, _)| (0..role.count).map(|index| format!("{}-{index}", role.name))).collect()
}

/// Places of the roles whose tasks are nodes: not of those that only serve them, where there are others.
fn computing(roles: &[(Role, Range<usize>)]) -> Vec<usize> {
    let of = |is: fn(&Role) -> bool| -> Vec<usize> {
        roles.iter().enumerate().filter(|(_, (role, _))| is(role)).map(|(place, _)| place).collect()
    };
    let waits_for_ranks = of(|role| role.command == strategy::idle());
    let computes = of(|role| !role.serves);
    [waits_for_ranks, computes].into_iter().find(|found| !found.is_empty()).unwrap_or_else(|| of(|_| true))
}

fn nodes(roles: &[(Role, Range<usize>)], computing: &[usize]) -> u32 {
    computing.iter().filter_map(|place| roles.get(*place)).map(|(role, _)| role.count).fold(0, u32::saturating_add)
}

/// Its bounds on how tasks end count those that are left.
fn cut(role: &mut Role, count: u32) {
    role.count = count;
    role.min_failed = role.min_failed.map(|failed| failed.min(count));
    if let MinSucceeded::Count(succeeded) = role.min_succeeded {
        role.min_succeeded = MinSucceeded::Count(succeeded.min(count));
    }
}
