//! Nodes of devices, by which programs reach cards and slices: which have to be there, what is said of one that is not, and what
//! makes it.
//!
//! Drivers make few of them by themselves: after a start of the machine there is often no `/dev/nvidia-uvm`, and without X no
//! `/dev/nvidia0`, until NVIDIA's libraries, as root, have run `nvidia-modprobe`. A container never does. So they are looked for
//! whenever the cards are, and made as these libraries would; what is still missing keeps jobs waiting, and not failing.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Card, Instances};
use crate::ids::GpuUuid;
use crate::sys::devices::Device;
use crate::sys::process::run_within;

/// NVIDIA's program that makes them.
pub const MAKER: &str = "nvidia-modprobe";
/// The device of the module that manages memory.
const UVM: &str = "nvidia-uvm";
/// How long it may take for one: it may load a module.
const MAKER_PATIENCE: Duration = Duration::from_secs(10);
/// So often it is asked for one that is still not there after it; until that one has been there again.
const TRIES_MAX: u32 = 3;

/// Where nodes lie, and where the kernel's part of the driver tells of itself.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    pub devices: &'a Path,
    pub driver: &'a Path,
}

/// Of this machine.
pub const PLACES: (&str, &str) = ("/dev", "/proc/driver/nvidia");

impl Default for Places<'_> {
    fn default() -> Self {
        Self { devices: Path::new(PLACES.0), driver: Path::new(PLACES.1) }
    }
}

/// One that has to be there.
#[derive(Debug, Clone)]
pub struct Node {
    pub path: PathBuf,
    /// As in "…, the device of GPU-1".
    what: String,
    /// With another number it would be that of another card or slice.
    minor: Option<u32>,
    /// For the program that makes it.
    arguments: Vec<String>,
}

/// That something is not there as it has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// With what there is to do.
    pub says: String,
    /// What is not there, or leads nowhere, and may be made so: the node, and the arguments of the program that makes it.
    pub maker: Option<(PathBuf, Vec<String>)>,
}

impl Missing {
    /// That nodes of which each is another card's are not there, in one sentence; `None` for less than two of them.
    pub fn together(all: &[&Self]) -> Option<String> {
        let makers: Vec<_> = all.iter().filter_map(|missing| missing.maker.as_ref()).collect();
        let paths: Vec<String> = makers.iter().map(|(path, _)| path.display().to_string()).collect();
        let (last, rest) = paths.split_last().filter(|(_, rest)| !rest.is_empty())?;
        let arguments: Vec<&str> = makers.iter().flat_map(|(_, words)| words).map(String::as_str).collect();
        let command = format!("{MAKER} {}", arguments.join(" "));
        Some(format!("{} and {last} are missing; `{command}` makes them", rest.join(", ")))
    }

    /// It is the node of the card with this number that is not there, and none that all need.
    pub fn is_of_card(&self, minor: u32) -> bool {
        self.maker.as_ref().is_some_and(|(path, _)| path.ends_with(name_of_card(minor)))
    }
}

impl Node {
    /// Whether it is there, as `look` finds it.
    pub fn check(&self, look: impl Fn(&Path) -> io::Result<Device>) -> Result<(), Missing> {
        let (path, what) = (self.path.display(), &self.what);
        let command = format!("{MAKER} {}", self.arguments.join(" "));
        let other = |says| Err(Missing { says, maker: None });
        match look(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Missing {
                says: format!("{path} is missing, {what}; `{command}` makes it"),
                maker: Some((self.path.clone(), self.arguments.clone())),
            }),
            Err(error) if is_unloaded(&error) => Err(Missing {
                says: format!("{path} is there, {what}, but its kernel module is not loaded; `{command}` loads it"),
                maker: Some((self.path.clone(), self.arguments.clone())),
            }),
            Err(error) => {
                other(format!("{path}, {what}, cannot be used: {error}; remove it, `{command}` makes it anew"))
            }
            Ok(device) if self.minor.is_some() && device.minor != self.minor => {
                let found = device.minor.map_or("no".to_owned(), |found| found.to_string());
                other(format!(
                    "{path} has minor number {found}, and is not {what}; remove it, `{command}` makes it anew"
                ))
            }
            Ok(_) => Ok(()),
        }
    }
}

/// Nothing answers behind the node.
fn is_unloaded(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::ENXIO | nix::libc::ENODEV))
}

/// What is there. The node of a module that goes and comes by itself stays when it goes: it is opened, which changes nothing.
pub fn look(path: &Path) -> io::Result<Device> {
    let device = Device::of(path)?;
    if path.ends_with(UVM) {
        let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
        // Whoever may not open it cannot tell.
        opened.err().filter(is_unloaded).map_or(Ok(()), Err)?;
    }
    Ok(device)
}

/// Those that belong to no card and without which none is of use.
pub fn of_all(places: Places<'_>) -> [Node; 2] {
    let node = |name: &str, arguments: &[&str]| Node {
        path: places.devices.join(name),
        what: "which every card needs".to_owned(),
        minor: None,
        arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
    };
    [node("nvidiactl", &["-c", "255"]), node(UVM, &["-c", "0", "-u"])]
}

fn name_of_card(minor: u32) -> String {
    format!("nvidia{minor}")
}

pub fn of_card(places: Places<'_>, uuid: &GpuUuid, minor: u32) -> Node {
    Node {
        path: places.devices.join(name_of_card(minor)),
        what: format!("the device of {uuid}"),
        minor: Some(minor),
        arguments: vec!["-c".to_owned(), minor.to_string()],
    }
}

/// Beside that of its card, whose minor number is `card`: by the files in which the driver says which they are.
pub fn of_slice(places: Places<'_>, slice: &GpuUuid, card: u32, instances: Instances) -> Result<Vec<Node>, Missing> {
    let of_gpu = places.driver.join(format!("capabilities/gpu{card}/mig/gi{}", instances.gpu));
    let accesses = [of_gpu.join("access"), of_gpu.join(format!("ci{}/access", instances.compute))];
    accesses.iter().map(|access| of_capability(places, slice, access)).collect()
}

fn of_capability(places: Places<'_>, slice: &GpuUuid, access: &Path) -> Result<Node, Missing> {
    let minor = std::fs::read_to_string(access).and_then(|text| {
        let minor = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse::<u32>().ok());
        minor.ok_or_else(|| io::Error::other("it does not say a DeviceFileMinor"))
    });
    let unread = |error: io::Error| {
        let says = format!(
            "{}, by which slice {slice} is reached, cannot be read: {error}; `nvidia-smi -L` shows whether the slice is still there",
            access.display()
        );
        Missing { says, maker: None }
    };
    let minor = minor.map_err(unread)?;
    Ok(Node {
        path: places.devices.join(format!("nvidia-caps/nvidia-cap{minor}")),
        what: format!("by which slice {slice} is reached"),
        minor: Some(minor),
        arguments: vec!["-f".to_owned(), access.display().to_string()],
    })
}

/// Looks for the nodes of cards each time that these are looked at, and has those made that are missing.
#[derive(Debug)]
pub(super) struct Keeper {
    /// The program that makes them; nobody does when absent.
    maker: Option<String>,
    look: fn(&Path) -> io::Result<Device>,
    /// How often it was asked for those that are not there.
    tries: BTreeMap<PathBuf, u32>,
}

impl Keeper {
    pub(super) fn new(maker: Option<String>) -> Self {
        Self { maker, look, tries: BTreeMap::new() }
    }

    /// Tells cards and slices what they lack.
    pub(super) fn look(&mut self, places: Places<'_>, cards: &mut [Card]) {
        // Who has unloaded the driver does not want it back, and to make a node loads it.
        if cards.iter().all(|card| card.signs.lost.is_some()) {
            return;
        }
        let common = self.lacks(&of_all(places));
        for card in cards {
            let Some(minor) = card.facts.minor.filter(|_| card.signs.lost.is_none()) else { continue };
            let own = self.lacks(&[of_card(places, &card.facts.uuid, minor)]);
            card.signs.no_device = own.or_else(|| common.clone());
            for slice in &mut card.slices {
                let Some(instances) = slice.instances else { continue };
                slice.unreachable = match of_slice(places, &slice.uuid, minor, instances) {
                    Ok(nodes) => self.lacks(&nodes).map(|missing| missing.says),
                    Err(missing) => Some(missing.says),
                };
            }
        }
    }

    /// What is said of the first that is missing, once they were made as far as may be.
    fn lacks(&mut self, nodes: &[Node]) -> Option<Missing> {
        nodes.iter().find_map(|node| {
            let missing = node.check(self.look);
            let left =
                missing.or_else(|missing| if self.make(&missing) { node.check(self.look) } else { Err(missing) });
            if left.is_ok() {
                self.tries.remove(&node.path);
            }
            left.err()
        })
    }

    /// Whether it was tried to make it.
    fn make(&mut self, missing: &Missing) -> bool {
        let (Some(program), Some((path, arguments))) = (&self.maker, &missing.maker) else { return false };
        let tries = self.tries.entry(path.clone()).or_default();
        if *tries >= TRIES_MAX {
            return false;
        }
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = run_within(program, &words, "", MAKER_PATIENCE);
        if ended.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            // It may come yet.
            return false;
        }
        *tries += 1;
        match ended {
            Ok(status) => {
                tracing::info!(path = %path.display(), %status, "nvidia-modprobe was run for a device that is missing")
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "nvidia-modprobe cannot make a device that is missing")
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Facts, Signs};
    use super::*;

    fn card(minor: u32) -> Card {
        Card {
            facts: Facts {
                uuid: format!("GPU-{minor}").parse().unwrap(),
                name: "card".to_owned(),
                minor: Some(minor),
                bus: String::new(),
                numa_node: None,
                cpus: Vec::new(),
                memory: None,
            },
            slices: Vec::new(),
            mig: false,
            signs: Signs::default(),
            findings: Vec::new(),
            usage: None,
        }
    }

    /// What cards 3 and 5 lack where these are not there.
    fn lacked(look: fn(&Path) -> io::Result<Device>) -> [Option<String>; 2] {
        let mut cards = [card(3), card(5)];
        Keeper { maker: None, look, tries: BTreeMap::new() }.look(Places::default(), &mut cards);
        cards.map(|card| card.signs.no_device.map(|missing| missing.says))
    }

    fn there_but(path: &Path, gone: &[&str]) -> io::Result<Device> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_gone = gone.contains(&name);
        let minor = name.strip_prefix("nvidia").and_then(|number| number.parse().ok());
        if is_gone { Err(io::ErrorKind::NotFound.into()) } else { Ok(Device { major: 195, minor }) }
    }

    #[test]
    fn a_card_lacks_its_own_node_or_else_what_all_need() {
        let own = "/dev/nvidia5 is missing, the device of GPU-5; `nvidia-modprobe -c 5` makes it";
        let common = "/dev/nvidia-uvm is missing, which every card needs; `nvidia-modprobe -c 0 -u` makes it";
        let [own, common] = [own, common].map(|said| Some(said.to_owned()));
        assert_eq!(lacked(|path| there_but(path, &[])), [None, None]);
        assert_eq!(lacked(|path| there_but(path, &["nvidia5"])), [None, own.clone()]);
        assert_eq!(lacked(|path| there_but(path, &["nvidia-uvm"])), [common.clone(), common.clone()]);
        assert_eq!(lacked(|path| there_but(path, &["nvidia5", "nvidia-uvm"])), [common, own]);
    }
}
