//! The machine's own description of its cards for containers: the Container Device Interface, as `nvidia-ctk cdi generate`
//! writes it.
//!
//! Of its hooks, which are programs that root would run with a container's file system before it, none is run: what NVIDIA's
//! do is done by the shim, and others are told as not done. What belongs to a card is taken for leased cards alone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::driver_files::{Capabilities, DriverFile, DriverFiles, DriverLink, Sources, library_name};
use super::elf;
use crate::ids::GpuUuid;

/// Other kinds describe the machine's cards for other purposes, such as its own management.
const KIND: &str = "nvidia.com/gpu";
/// All cards at once, whoever has them.
const ALL: &str = "all";
/// Largest description, bytes.
const SIZE_MAX: u64 = 4 << 20;
/// Of nodes of cards, and of `nvidia-modeset` and `nvidiactl`, which belong to all of them.
const CARDS_MAJOR: u64 = 195;
const COMMON_MINORS: [u64; 2] = [254, 255];

/// Nodes of what cards are cut up into.
const SLICES: &str = "/dev/nvidia-caps";

/// A card that a task may open.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub uuid: &'a GpuUuid,
    pub minor: u32,
    /// Of which it has this slice alone.
    pub slice: Option<&'a GpuUuid>,
}

/// Keys that are not known are of later versions, and add nothing to what is asked for here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Description {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<Node>,
    mounts: Vec<Mount>,
    hooks: Vec<Hook>,
    additional_gids: Vec<u32>,
    net_devices: Vec<serde::de::IgnoredAny>,
    intel_rdt: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    path: PathBuf,
    host_path: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
    container_path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: String,
    path: PathBuf,
    #[serde(default)]
    args: Vec<String>,
}

/// What the machine's description gives a task with these cards; `None` if there is none, and a sentence if it is of no use.
pub(super) fn find(
    sources: &Sources,
    capabilities: &Capabilities,
    cards: &[Wanted<'_>],
) -> Result<Option<DriverFiles>, String> {
    let Some(described) = Described::read(sources)? else { return Ok(None) };
    let mut taken = Taken { sources, capabilities, cards, files: DriverFiles::default(), folders: Vec::new() };
    taken.files.remarks.extend(described.remarks);
    for (path, description) in &described.descriptions {
        taken.edits(path, &description.container_edits)?;
    }
    for card in cards {
        // The node is the card's own; a number may be that of another order, as `0:1` of the second slice of the first card may.
        // What slices have of their own are nodes, which are known by the lease.
        let name = card.slice.unwrap_or(card.uuid);
        let by_name = |device: &&Device| device.name == name.as_str();
        let by_node = |device: &&Device| {
            let is_own = |node: &Node| node.path == Path::new(&format!("/dev/nvidia{}", card.minor));
            device.name != ALL && device.container_edits.device_nodes.iter().any(is_own)
        };
        let all = || described.descriptions.iter().flat_map(|(path, one)| one.devices.iter().map(move |d| (path, d)));
        let found = all().find(|(_, device)| by_name(device)).or_else(|| all().find(|(_, device)| by_node(device)));
        match found {
            Some((path, device)) => taken.edits(path, &device.container_edits)?,
            None => {
                let paths: Vec<String> = described.descriptions.keys().map(|path| path.display().to_string()).collect();
                return Err(format!("{} tells nothing of {}; {AGAIN}", paths.join(", "), card.uuid));
            }
        }
    }
    taken.name_libraries();
    Ok(Some(taken.files))
}

const AGAIN: &str = "`nvidia-ctk cdi generate` makes it anew";

struct Described {
    /// By the files that they stand in.
    descriptions: BTreeMap<PathBuf, Description>,
    remarks: Vec<String>,
}

impl Described {
    fn read(sources: &Sources) -> Result<Option<Self>, String> {
        let mut by_name: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
        for folder in &sources.cdi {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let is_one = |path: &PathBuf| {
                path.extension().and_then(OsStr::to_str).is_some_and(|kind| ["json", "yaml", "yml"].contains(&kind))
            };
            for path in entries.filter(is_one) {
                by_name.insert(path.file_name().unwrap_or_default().to_owned(), path);
            }
        }
        let mut found = Self { descriptions: BTreeMap::new(), remarks: Vec::new() };
        for path in by_name.into_values() {
            match read(&path) {
                Ok(description) if description.kind == KIND => _ = found.descriptions.insert(path, description),
                Ok(_) => {}
                // It may be that of another kind.
                Err(why) => found.remarks.push(format!("{} is of no use: {why}", path.display())),
            }
        }
        match found.descriptions.is_empty() {
            false => Ok(Some(found)),
            true if found.remarks.is_empty() => Ok(None),
            true => Err(found.remarks.join("; ")),
        }
    }
}

fn read(path: &Path) -> Result<Description, String> {
    use std::io::Read;
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(SIZE_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    // JSON is YAML as well.
    let description: Description = serde_saphyr::from_str(&text).map_err(|error| first_line(&error.to_string()))?;
    match description.cdi_version.trim_start_matches('v').split('.').next() {
        Some("0" | "1") => Ok(description),
        _ => Err(format!("its cdiVersion {:?} is later than 1, the last that is known", description.cdi_version)),
    }
}

fn first_line(text: &str) -> String {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it cannot be read").trim().to_owned()
}

/// What has been taken of descriptions so far.
struct Taken<'a> {
    sources: &'a Sources,
    capabilities: &'a Capabilities,
    cards: &'a [Wanted<'a>],
    files: DriverFiles,
    /// Of the container, whose libraries the loader is to know.
    folders: Vec<PathBuf>,
}

impl Taken<'_> {
    fn edits(&mut self, described_in: &Path, edits: &Edits) -> Result<(), String> {
        for mount in &edits.mounts {
            self.mount(described_in, mount)?;
        }
        for node in &edits.device_nodes {
            self.node(described_in, node);
        }
        for hook in &edits.hooks {
            self.hook(described_in, hook);
        }
        let pairs = edits.env.iter().filter_map(|pair| pair.split_once('='));
        self.files.env.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let others = [
            ("additionalGids", !edits.additional_gids.is_empty()),
            ("netDevices", !edits.net_devices.is_empty()),
            ("intelRdt", edits.intel_rdt.is_some()),
        ];
        for (key, _) in others.iter().filter(|(_, is_there)| *is_there) {
            self.remark(described_in, &format!("`{key}` is not done: this version does not know how"));
        }
        Ok(())
    }

    fn remark(&mut self, described_in: &Path, what: &str) {
        let remark = format!("{}: {what}", described_in.display());
        if !self.files.remarks.contains(&remark) {
            self.files.remarks.push(remark);
        }
    }

    fn mount(&mut self, described_in: &Path, mount: &Mount) -> Result<(), String> {
        let Mount { host_path, container_path } = mount;
        if !self.capabilities.want(container_path) {
            return Ok(());
        }
        if !is_plain(container_path) {
            self.remark(described_in, &format!("{} is no plain path in a container", container_path.display()));
            return Ok(());
        }
        match self.at(host_path).canonicalize() {
            Ok(source) => {
                let file = DriverFile { source, target: container_path.clone() };
                if self.files.files.iter().all(|other| other.target != file.target) {
                    self.files.files.push(file);
                }
                Ok(())
            }
            // It was written for another driver: what of it is there goes with nothing.
            Err(error) if library_name(host_path).is_some() => {
                Err(format!("{} names {}, {error}; {AGAIN}", described_in.display(), host_path.display()))
            }
            Err(error) => {
                self.remark(described_in, &format!("{} is not shown: {error}", host_path.display()));
                Ok(())
            }
        }
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.sources.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Nodes of cards that are not leased are left out, also where the description has them for all containers.
    fn node(&mut self, described_in: &Path, node: &Node) {
        // A slice is found by its lease: its card's name may be that of several.
        if node.path.starts_with(SLICES) {
            return;
        }
        let real = self.at(node.host_path.as_ref().unwrap_or(&node.path));
        let own = self.at(&node.path);
        let number = |path: &Path| {
            let found = fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_char_device())?;
            Some((nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev())))
        };
        let (Some(number), true) = (number(&real).filter(|found| number(&own) == Some(*found)), is_device(&node.path))
        else {
            let what = format!("{} is not given: this machine has no such node there", node.path.display());
            return self.remark(described_in, &what);
        };
        let is_of_card = number.0 == CARDS_MAJOR && !COMMON_MINORS.contains(&number.1);
        let is_leased = self.cards.iter().any(|card| u64::from(card.minor) == number.1);
        if (!is_of_card || is_leased) && !self.files.devices.contains(&node.path) {
            self.files.devices.push(node.path.clone());
        }
    }

    /// What the programs of NVIDIA's toolkit do, is done by the shim.
    fn hook(&mut self, described_in: &Path, hook: &Hook) {
        let program = hook.path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let words: Vec<&str> = hook.args.iter().skip(1).map(String::as_str).collect();
        let words = match (program, words.as_slice()) {
            ("nvidia-ctk", ["hook", words @ ..]) | ("nvidia-cdi-hook", words) => words,
            _ => &[],
        };
        match words {
            ["create-symlinks", options @ ..] => {
                values(options, "--link").for_each(|link| self.link(described_in, link))
            }
            ["update-ldcache" | "create-soname-symlinks", options @ ..] => {
                self.folders.extend(values(options, "--folder").map(PathBuf::from));
            }
            // Directories in /dev are made for all to pass.
            ["chmod", options @ ..] if values(options, "--path").all(|path| Path::new(path).starts_with("/dev")) => {}
            // An image's newer libraries go before the machine's, as they do without a description.
            ["enable-cuda-compat" | "cuda-compat", ..] => {}
            // No task can make a node of a device, nor open one that is not given to it.
            ["disable-device-node-modification", ..] => {}
            _ => {
                let what = std::iter::once(program).chain(words.iter().copied().take(1)).collect::<Vec<_>>().join(" ");
                self.remark(described_in, &format!("the hook {what} ({}) is not run: no hooks are", hook.hook_name));
            }
        }
    }

    /// `TARGET::PATH`.
    fn link(&mut self, described_in: &Path, text: &str) {
        match text.split_once("::").map(|(leads_to, path)| (PathBuf::from(leads_to), PathBuf::from(path))) {
            Some((leads_to, path)) if is_plain(&path) => {
                // What it leads to is not there if that was not asked for.
                let is_asked = self.capabilities.want(&path) && self.capabilities.want(&leads_to);
                if is_asked && self.files.links.iter().all(|other| other.path != path) {
                    self.files.links.push(DriverLink { path, leads_to });
                }
            }
            _ => self.remark(described_in, &format!("the link {text:?} is not made: it is no TARGET::PATH")),
        }
    }

    fn name_libraries(&mut self) {
        let is_known =
            |path: &Path| path.parent().is_some_and(|parent| self.folders.iter().any(|known| known == parent));
        let own = self.files.files.iter().filter(|file| library_name(&file.target).is_some() && is_known(&file.target));
        for file in own.cloned().collect::<Vec<_>>() {
            let known = elf::name(&file.source);
            let own = file.target.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
            self.files.add_names(&file, &known.unwrap_or(own));
        }
        let links: Vec<PathBuf> = self.files.links.iter().map(|link| link.path.clone()).collect();
        for path in links.into_iter().filter(|path| library_name(path).is_some() && is_known(path)) {
            if let Some(name) = path.file_name().and_then(OsStr::to_str).map(str::to_owned) {
                self.files.add_name(&name, path);
            }
        }
    }
}

/// Values of an option that may be given several times, as `--link X` or `--link=X`.
fn values<'a>(words: &'a [&'a str], option: &'a str) -> impl Iterator<Item = &'a str> {
    words.iter().enumerate().filter_map(move |(at, word)| match word.strip_prefix(option) {
        Some("") => words.get(at + 1).copied(),
        Some(rest) => rest.strip_prefix('='),
        None => None,
    })
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn is_device(path: &Path) -> bool {
    is_plain(path) && path.starts_with("/dev")
}

#[cfg(test)]
mod tests {
    use super::super::driver_files::tests::{machine, sources};
    use super::*;

    /// As `nvidia-ctk cdi generate` of NVIDIA's container toolkit 1.18 writes it for a driver 999.88.77 (its own test's machine).
    const GOLDEN: &str = include_str!("../../tests/data/cdi/nvidia.yaml");
    /// The same of a card that is cut up.
    const MIG: &str = include_str!("../../tests/data/cdi/nvidia-mig.yaml");

    struct Machine {
        root: tempfile::TempDir,
        sources: Sources,
    }

    impl Machine {
        /// With a description of this text, and nodes as far as whoever runs the tests can make them.
        fn with(text: &str) -> Self {
            let root = machine(&[
                "/lib/x86_64-linux-gnu/libcuda.so.999.88.77",
                "/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.999.88.77",
                "/usr/bin/nvidia-smi",
            ]);
            let cdi = root.path().join("etc/cdi");
            fs::create_dir_all(&cdi).unwrap();
            fs::write(cdi.join("nvidia.yaml"), text).unwrap();
            let sources = Sources { cdi: vec![cdi, root.path().join("run/cdi")], ..sources(&root) };
            Self { root, sources }
        }

        fn nodes(&self, test: &str, minors: &[(&str, u64)]) -> bool {
            use nix::sys::stat::{Mode, SFlag, makedev, mknod};
            fs::create_dir_all(self.root.path().join("dev")).unwrap();
            let are_made = minors.iter().all(|(name, minor)| {
                let path = self.root.path().join("dev").join(name);
                mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(195, *minor)).is_ok()
            });
            if !are_made {
                crate::sys::skip(test, "the right to make nodes of devices");
            }
            are_made
        }

        fn find(&self, wanted: Option<&str>, minors: &[u32]) -> Result<DriverFiles, String> {
            let uuids: Vec<GpuUuid> = minors.iter().map(|minor| format!("GPU-{minor}").parse().unwrap()).collect();
            let cards: Vec<Wanted<'_>> =
                uuids.iter().zip(minors).map(|(uuid, minor)| Wanted { uuid, minor: *minor, slice: None }).collect();
            let capabilities = Capabilities::parse(wanted).unwrap();
            find(&self.sources, &capabilities, &cards).map(|found| found.expect("there is a description"))
        }
    }

    fn shown(paths: impl IntoIterator<Item = PathBuf>) -> Vec<String> {
        paths.into_iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn nvidia_s_own_description_gives_files_links_names_and_variables() {
        let machine = Machine::with(GOLDEN);
        let has_nodes = machine.nodes(
            "nvidia_s_own_description_gives_files_links_names_and_variables",
            &[("nvidia0", 0), ("nvidiactl", 255), ("nvidia1", 1)],
        );
        let found = machine.find(Some("compute,utility,video"), &[0]).unwrap();
        let folder = Path::new("/lib/x86_64-linux-gnu");
        let targets = shown(found.files.iter().map(|file| file.target.clone()));
        assert_eq!(
            targets,
            ["/lib/x86_64-linux-gnu/libcuda.so.999.88.77", "/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.999.88.77"]
        );
        assert!(found.files.iter().all(|file| file.source.starts_with(&machine.sources.root)));
        let link = DriverLink { path: folder.join("libcuda.so"), leads_to: "libcuda.so.1".into() };
        assert!(found.links.contains(&link), "{:?}", found.links);
        assert!(found.libraries.contains(&("libcuda.so".to_owned(), folder.join("libcuda.so"))));
        let dir = ("NVIDIA_CTK_LIBCUDA_DIR".to_owned(), "/lib/x86_64-linux-gnu".to_owned());
        assert!(found.env.contains(&dir), "{:?}", found.env);
        if has_nodes {
            assert_eq!(shown(found.devices), ["/dev/nvidiactl", "/dev/nvidia0"]);
            assert_eq!(found.remarks, Vec::<String>::new());
        }
        let without = machine.find(None, &[0]).unwrap();
        assert_eq!(without.files.len(), 1, "video was not asked for");
    }

    /// As the toolkit writes it for a card that is cut up: by numbers, or by the names of the slices.
    #[test]
    fn of_a_card_that_is_cut_up_a_slice_has_the_node_and_what_its_own_entry_says() {
        let (card, slice): (GpuUuid, GpuUuid) = ("GPU-0".parse().unwrap(), "MIG-b".parse().unwrap());
        let wanted = [Wanted { uuid: &card, minor: 0, slice: Some(&slice) }];
        for (names, says) in [(["0:0", "0:1"], None), (["MIG-a", "MIG-b"], Some("OWN=MIG-b"))] {
            let text =
                MIG.replace("\"0:0\"", &format!("{:?}", names[0])).replace("\"0:1\"", &format!("{:?}", names[1]));
            let machine = Machine::with(&text);
            let has_nodes = machine.nodes(
                "of_a_card_that_is_cut_up_a_slice_has_the_node_and_what_its_own_entry_says",
                &[("nvidia0", 0), ("nvidiactl", 255)],
            );
            let found = find(&machine.sources, &Capabilities::parse(None).unwrap(), &wanted).unwrap().unwrap();
            let own: Vec<String> = found.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert!(says.is_none_or(|says| own.contains(&says.to_owned())), "{own:?}");
            if has_nodes {
                assert_eq!(shown(found.devices), ["/dev/nvidiactl", "/dev/nvidia0"], "those of slices are the lease's");
                assert_eq!(found.remarks, Vec::<String>::new());
            }
        }
    }

    /// `tests/cdi` asks the crate `container-device-interface`, and prints what this is compared with.
    #[test]
    fn what_a_description_gives_is_what_the_interface_s_own_reader_makes_of_it() {
        let injected: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/cdi/injected.json")).unwrap();
        for (file, text, slice) in [("nvidia.yaml", GOLDEN, None), ("nvidia-mig.yaml", MIG, Some("MIG-0"))] {
            let machine = Machine::with(text);
            let has_nodes = machine.nodes(
                "what_a_description_gives_is_what_the_interface_s_own_reader_makes_of_it",
                &[("nvidia0", 0), ("nvidiactl", 255)],
            );
            let (card, slice): (GpuUuid, Option<GpuUuid>) =
                ("GPU-0".parse().unwrap(), slice.map(|slice| slice.parse().unwrap()));
            let wanted = [Wanted { uuid: &card, minor: 0, slice: slice.as_ref() }];
            let all = Capabilities::parse(Some("all")).unwrap();
            let found = find(&machine.sources, &all, &wanted).unwrap().unwrap();
            let device = if slice.is_some() { "nvidia.com/gpu=0:0" } else { "nvidia.com/gpu=0" };
            let theirs = &injected[file][device];
            let strings = |value: &serde_json::Value| -> Vec<String> {
                value.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
            };
            let outside = |path: &Path| Path::new("/").join(path.strip_prefix(&machine.sources.root).unwrap());
            let mut mounts: Vec<Vec<String>> =
                found.files.iter().map(|file| shown([outside(&file.source), file.target.clone()])).collect();
            mounts.sort();
            let their_mounts: Vec<Vec<String>> = theirs["mounts"].as_array().unwrap().iter().map(strings).collect();
            assert_eq!(mounts, their_mounts, "{file}");
            let env: Vec<String> = found.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(env, strings(&theirs["env"]), "{file}");
            let mut devices = shown(found.devices);
            devices.sort();
            // Those of slices are the lease's to give.
            let their_devices: Vec<String> =
                strings(&theirs["devices"]).into_iter().filter(|path| !path.starts_with(SLICES)).collect();
            assert!(!has_nodes || devices == their_devices, "{file}: {devices:?}, {their_devices:?}");
        }
    }

    #[test]
    fn a_card_that_is_not_leased_is_never_given() {
        let machine = Machine::with(&GOLDEN.replace("path: /dev/nvidiactl\n", "path: /dev/nvidia1\n"));
        if !machine.nodes("a_card_that_is_not_leased_is_never_given", &[("nvidia0", 0), ("nvidia1", 1)]) {
            return;
        }
        let found = machine.find(None, &[0]).unwrap();
        assert_eq!(shown(found.devices), ["/dev/nvidia0"], "also if all containers are to have it");
        let why = machine.find(None, &[7]).unwrap_err();
        assert!(why.contains("tells nothing of GPU-7"), "{why}");
    }

    #[test]
    fn hooks_of_others_are_not_run_but_told() {
        let hook = "nvidia-cdi-hook\n            - update-ldcache";
        assert!(GOLDEN.contains(hook));
        let machine = Machine::with(&GOLDEN.replace(hook, "nvidia-cdi-hook\n            - apply-magic"));
        let found = machine.find(None, &[0]).unwrap();
        let told = |found: &DriverFiles, what: &str| found.remarks.iter().any(|remark| remark.contains(what));
        assert!(
            told(&found, "the hook nvidia-cdi-hook apply-magic (createContainer) is not run"),
            "{:?}",
            found.remarks
        );
        let machine = Machine::with(&GOLDEN.replace("path: /usr/bin/nvidia-cdi-hook", "path: /opt/evil"));
        let found = machine.find(None, &[0]).unwrap();
        assert!(told(&found, "the hook evil (createContainer) is not run"), "{:?}", found.remarks);
        assert!(found.links.iter().all(|link| !link.path.ends_with("libcuda.so")), "{:?}", found.links);
    }

    #[test]
    fn a_description_of_another_driver_or_that_cannot_be_read_is_of_no_use_and_why_is_told() {
        let machine = Machine::with(&GOLDEN.replace("999.88.77", "111.22.33"));
        let why = machine.find(None, &[0]).unwrap_err();
        assert!(why.contains("libcuda.so.111.22.33") && why.contains("`nvidia-ctk cdi generate`"), "{why}");
        for (text, said) in [
            ("cdiVersion: [", "is of no use"),
            ("cdiVersion: 2.0.0\nkind: nvidia.com/gpu\n", "its cdiVersion \"2.0.0\" is later than 1"),
        ] {
            let machine = Machine::with(text);
            let why = find(&machine.sources, &Capabilities::parse(None).unwrap(), &[]).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn descriptions_of_other_kinds_are_none_and_a_later_folder_goes_before() {
        let machine = Machine::with(&GOLDEN.replace("nvidia.com/gpu", "example.com/device"));
        let capabilities = Capabilities::parse(None).unwrap();
        assert_eq!(find(&machine.sources, &capabilities, &[]), Ok(None));
        let later = machine.root.path().join("run/cdi");
        fs::create_dir_all(&later).unwrap();
        let json = r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "newKey": 1, "devices": [],
            "containerEdits": {"mounts": [{"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"},
                                          {"hostPath": "/etc/passwd", "containerPath": "/usr/../etc/passwd"}]}}"#;
        fs::write(later.join("nvidia.yaml"), json).unwrap();
        let found = find(&machine.sources, &capabilities, &[]).unwrap().unwrap();
        assert_eq!(shown(found.files.iter().map(|file| file.target.clone())), ["/usr/bin/nvidia-smi"]);
        assert!(found.remarks.iter().any(|remark| remark.contains("no plain path")), "{:?}", found.remarks);
    }

    #[test]
    fn options_are_read_in_both_spellings() {
        let words = ["--folder", "/a", "--folder=/b", "--link", "/c"];
        assert_eq!(values(&words, "--folder").collect::<Vec<_>>(), ["/a", "/b"]);
    }
}
