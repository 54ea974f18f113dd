//! What a task is told of its cards, by the variables that NVIDIA's programs read.

use super::advice::Advice;
use crate::gpu::driver_files::{CAPABILITIES, Capabilities};
use crate::ids::GpuUuid;
use crate::spec::{Image, JobSpec, Role};

/// What a job wants to be seen of its cards: what it says of `NVIDIA_VISIBLE_DEVICES`, as NVIDIA's container tools take it. Which
/// cards it has is not for it to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible {
    Cards,
    /// `none`: the driver's files, and no card.
    DriverAlone,
    /// `void`, or nothing.
    Nothing,
}

/// By the variables that the job file sets; what an image says is meant for others.
pub fn visible(env: &[(String, String)]) -> Visible {
    match value(env, VISIBLE) {
        Some("none") => Visible::DriverAlone,
        Some("void" | "") => Visible::Nothing,
        Some(_) | None => Visible::Cards,
    }
}

/// What of the driver is asked for; what is set last counts.
pub fn capabilities(env: &[(String, String)]) -> Result<Capabilities, String> {
    Capabilities::parse(value(env, CAPABILITIES))
}

fn value<'e>(env: &'e [(String, String)], name: &str) -> Option<&'e str> {
    env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// As CUDA itself reads it: numbers or UUIDs.
const OF_CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// The cards that it names by their numbers, if it begins so: CUDA reads no further than the first that is none. `-1` is none.
fn numbers(text: &str) -> Option<Vec<i64>> {
    let numbers: Vec<i64> = text.split(',').map_while(|number| number.trim().parse().ok()).collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// The numbers count a task's own cards, also where it can open those of others: CUDA sees those before the first that it has not.
fn by_name(text: &str, own: &[&GpuUuid]) -> Option<String> {
    let card = |number: i64| own.get(usize::try_from(number).ok()?).map(|uuid| uuid.as_str());
    Some(numbers(text)?.into_iter().map_while(card).collect::<Vec<_>>().join(","))
}

/// What is wrong with what a job's tasks say of their cards.
pub(super) fn refusals(spec: &JobSpec) -> Vec<Advice> {
    let of_images = spec.roles.iter().filter(|role| role.resources.gpu > 0 && role.image != Image::Host);
    let wrong = of_images.filter_map(|role| {
        let text = format!("role {}: {}", role.name, capabilities(&role.env).err()?);
        Some(Advice::of_role(role, &["env", CAPABILITIES], text))
    });
    wrong.collect()
}

pub(super) fn warnings(spec: &JobSpec) -> Vec<Advice> {
    let with_cards: Vec<&Role> = spec.roles.iter().filter(|role| role.resources.gpu > 0).collect();
    let tasks: u32 = with_cards.iter().map(|role| role.count).sum();
    let says = with_cards.iter().filter(|role| value(&role.env, VISIBLE).is_some());
    let told = |role: &&Role| {
        let what = match visible(&role.env) {
            Visible::Cards => "which cards a task has Trainyard tells it: what the job says is not heard; leave it out",
            Visible::DriverAlone => "its tasks see the driver and none of the cards that they hold",
            Visible::Nothing => "its tasks see neither the cards that they hold nor the driver",
        };
        Advice::of_role(role, &["env", VISIBLE], format!("role {} sets {VISIBLE}: {what}", role.name))
    };
    says.map(told).chain(with_cards.iter().filter_map(|role| numbered(role, tasks))).collect()
}

/// A role whose `CUDA_VISIBLE_DEVICES` means something else here than where a script has the machine to itself.
fn numbered(role: &Role, tasks: u32) -> Option<Advice> {
    let (text, own) = (value(&role.env, OF_CUDA)?, role.resources.gpu);
    let hides_all = ["", "-1"].contains(&text.trim());
    let what = match numbers(text) {
        _ if hides_all => return None,
        Some(numbers)
            if tasks < 2
                && numbers.len() == text.split(',').count()
                && numbers.iter().all(|number| (0..i64::from(own)).contains(number)) =>
        {
            return None;
        }
        Some(_) => format!("the numbers count a task's own cards, of which each has {own}, from 0 on"),
        None => "which cards a task has is known when it starts".to_owned(),
    };
    let text =
        format!("role {} sets {OF_CUDA} to {text:?}: {what}; leave it out, and it sees all of its own", role.name);
    Some(Advice::of_role(role, &["env", OF_CUDA], text))
}

/// The cards of a task among those of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told<'a> {
    pub own: Vec<&'a GpuUuid>,
    /// Of a card that it has with others: its share, bytes.
    pub share: Option<u64>,
    /// They are slices of cards, which CUDA is to be told by name.
    pub are_slices: bool,
    /// It can open those of other tasks as well, by which NCCL reaches their memory.
    pub shared: Option<Shared>,
}

/// What tasks that reach each other's cards have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// The name that all of them have.
    pub host: String,
    pub common: Common,
}

/// By what they reach each other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Common {
    /// NCCL passes handles of memory over sockets without a path, which belong to a network namespace.
    Network,
    /// CUDA opens memory of processes in the same process namespace.
    Processes,
}

/// The memory of its card that a task may use, bytes.
pub const SHARE: &str = "TRAINYARD_GPU_MEMORY";

/// A task without cards is told nothing: it can open none.
pub fn tell(env: &mut Vec<(String, String)>, told: &Told<'_>) {
    if told.own.is_empty() {
        return;
    }
    let own = told.own.iter().map(|uuid| uuid.as_str()).collect::<Vec<_>>().join(",");
    // What an image says of cards is meant for others.
    env.retain(|(name, _)| name != VISIBLE);
    env.push((VISIBLE.to_owned(), own.clone()));
    let is_named = told.shared.is_some() || told.are_slices;
    for (_, value) in env.iter_mut().filter(|(name, _)| is_named && name == OF_CUDA) {
        *value = by_name(value, &told.own).unwrap_or_else(|| value.clone());
    }
    let mut unless_said = |name: &str, value: String| {
        if env.iter().all(|(known, _)| known != name) {
            env.push((name.to_owned(), value));
        }
    };
    // So that CUDA counts them as `nvidia-smi` does.
    unless_said("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    if is_named {
        unless_said(OF_CUDA, own);
    }
    if let Some(bytes) = told.share {
        unless_said(SHARE, bytes.to_string());
    }
    if let Some(shared) = &told.shared {
        // Tasks have host names of their own, by which NCCL would take them for different machines.
        unless_said("NCCL_HOSTID", shared.host.clone());
        if shared.common == Common::Processes {
            // Its newer way fails without a common network, and is not given up for the other by itself.
            unless_said("NCCL_CUMEM_ENABLE", "0".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(own: &[&GpuUuid], shared: Option<(&str, Common)>, before: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut env: Vec<_> = before.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let shared = shared.map(|(host, common)| Shared { host: host.to_owned(), common });
        tell(&mut env, &Told { own: own.to_vec(), share: None, are_slices: false, shared });
        env
    }

    #[test]
    fn a_job_may_do_without_its_cards_but_not_choose_them() {
        let said = |value: &str| visible(&[("NVIDIA_VISIBLE_DEVICES".to_owned(), value.to_owned())]);
        assert_eq!(["none", "void", ""].map(said), [Visible::DriverAlone, Visible::Nothing, Visible::Nothing]);
        assert_eq!(["all", "0", "GPU-b"].map(said), [Visible::Cards; 3]);
        assert_eq!(visible(&[]), Visible::Cards);
        let image = ("NVIDIA_DRIVER_CAPABILITIES".to_owned(), "utility".to_owned());
        let job = ("NVIDIA_DRIVER_CAPABILITIES".to_owned(), "all".to_owned());
        assert_eq!(capabilities(&[image, job]), Capabilities::parse(Some("all")), "the job's goes before the image's");
    }

    #[test]
    fn numbers_of_cards_that_a_job_says_itself_are_told_of() {
        let told = |value: &str, gpu: u32, count: u32| -> String {
            let text = format!(
                "command = \"x\"\nenv.CUDA_VISIBLE_DEVICES = {value:?}\nresources.gpu = {gpu}\n[roles.w]\ncount = {count}\n"
            );
            warnings(&crate::spec::parse("x.toml", &text).0.unwrap()).into_iter().map(|advice| advice.text).collect()
        };
        assert!(
            told("0", 1, 2)
                .contains("CUDA_VISIBLE_DEVICES to \"0\": the numbers count a task's own cards, of which each has 1")
        );
        assert!(told("2,3", 2, 1).contains("of which each has 2"));
        assert!(told("0,x", 2, 1).contains("of which each has 2"), "the second is not seen");
        assert!(told("GPU-a", 1, 1).contains("known when it starts"));
        assert_eq!([told("0,1", 2, 1), told("-1", 1, 2), told("", 1, 2), told("0", 0, 2)].concat(), "");
    }

    #[test]
    fn a_task_is_told_of_its_own_cards_alone() {
        let (a, b): (GpuUuid, GpuUuid) = ("GPU-a".parse().unwrap(), "GPU-b".parse().unwrap());
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(told(&[], Some(("a7", Common::Network)), &[("X", "1")]), pairs(&[("X", "1")]));
        let alone = [("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
        assert_eq!(told(&[&a, &b], None, &[("NVIDIA_VISIBLE_DEVICES", "all")]), pairs(&alone));
        let order = ("CUDA_DEVICE_ORDER", "FASTEST_FIRST");
        let shared = [
            order,
            ("NVIDIA_VISIBLE_DEVICES", "GPU-b"),
            ("CUDA_VISIBLE_DEVICES", "GPU-b"),
            ("NCCL_HOSTID", "trainyard-a7"),
        ];
        assert_eq!(told(&[&b], Some(("trainyard-a7", Common::Network)), &[order]), pairs(&shared));
        let apart = [shared.as_slice(), &[("NCCL_CUMEM_ENABLE", "0")]].concat();
        assert_eq!(told(&[&b], Some(("trainyard-a7", Common::Processes)), &[order]), pairs(&apart));
        // A number counts a task's own cards: CUDA would count those of the others as well.
        for (said, heard) in [
            ("0", "GPU-b"),
            ("1,0", "GPU-a,GPU-b"),
            (" 0, 1", "GPU-b,GPU-a"),
            ("0,2,1", "GPU-b"),
            ("0,", "GPU-b"),
            ("1,x,0", "GPU-a"),
            ("2", ""),
            ("-1", ""),
            ("", ""),
            ("GPU-a", "GPU-a"),
        ] {
            let before = [("CUDA_VISIBLE_DEVICES", said)];
            let env = told(&[&b, &a], Some(("trainyard-a7", Common::Network)), &before);
            assert_eq!(value(&env, OF_CUDA), Some(heard), "{said}");
            assert_eq!(value(&told(&[&b, &a], None, &before), OF_CUDA), Some(said), "where it can open no others");
        }
        let said = told(&[&b], Some(("trainyard-a7", Common::Processes)), &[("NCCL_CUMEM_ENABLE", "1")]);
        assert_eq!(said.iter().filter(|(name, _)| name == "NCCL_CUMEM_ENABLE").count(), 1);
    }

    #[test]
    fn a_task_with_a_share_is_told_how_much_and_one_with_a_slice_which() {
        let (card, slice): (GpuUuid, GpuUuid) = ("GPU-a".parse().unwrap(), "MIG-b".parse().unwrap());
        let told = |own: &GpuUuid, share, are_slices| {
            let mut env = Vec::new();
            tell(&mut env, &Told { own: vec![own], share, are_slices, shared: None });
            env.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let order = "CUDA_DEVICE_ORDER=PCI_BUS_ID";
        let share = ["NVIDIA_VISIBLE_DEVICES=GPU-a", order, "TRAINYARD_GPU_MEMORY=21474836480"];
        assert_eq!(told(&card, Some(20 << 30), false), share);
        let of_slice = ["NVIDIA_VISIBLE_DEVICES=MIG-b", order, "CUDA_VISIBLE_DEVICES=MIG-b"];
        assert_eq!(told(&slice, None, true), of_slice);
    }
}
