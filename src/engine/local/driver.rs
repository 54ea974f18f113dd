//! The driver of a task's cards, for images: they lack its libraries, which must be of the version that the kernel has.
//!
//! What there is of it on the machine finds `gpu::driver_files`; here it is fitted to an image. Its libraries are shown where
//! the image's glibc lies, so that its loader finds them whatever a program makes of `LD_LIBRARY_PATH`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::gpus::{Cards, put_before};
use super::owners::topmost_file;
use super::root::{Base, Kind};
use super::{failed, lock};
use crate::config::GpuConfig;
use crate::contract::gpus::{Visible, capabilities, visible};
use crate::engine::EngineError;
use crate::gpu::cdi::Wanted;
use crate::gpu::driver_files::{self, Capabilities, DriverFiles, Sources, TRIPLET};
use crate::gpu::elf::{Glibc, needed_glibc, version_of_glibc};
use crate::gpu::{Driver as Loaded, Gpus, Inventory};
use crate::images::Image;
use crate::rundir::{Driver, DriverFile, DriverLink};
use crate::spec::Role;
use crate::store::record::GpuLease;

/// The libraries that no program with cards does without: what they need, the image must have.
const NEEDED: [&str; 2] = ["libcuda", "libnvidia-ml"];
/// Largest library of an image that is read, bytes; glibc has two million.
const LIBRARY_MAX: u64 = 32 << 20;
/// How long a daemon that has just started waits to know the cards; after that they are unknown.
const FIRST_LOOK: Duration = Duration::from_secs(30);
/// The variables of a description that say what Trainyard says.
const OURS: &str = "NVIDIA_VISIBLE_DEVICES";

/// Finds the driver on this machine.
pub(super) struct DriverFinder {
    sources: Sources,
    gpus: Arc<Gpus>,
    /// What was said of it: each once.
    told: Mutex<BTreeSet<String>>,
}

impl DriverFinder {
    pub(super) fn new(config: &GpuConfig, gpus: Arc<Gpus>) -> Self {
        let sources = Sources::of_environment(config.library.clone(), config.cdi.clone());
        Self { sources, gpus, told: Mutex::default() }
    }

    /// Whether tasks of the role can use cards in their image, as far as that can be known before there are any.
    pub(super) fn check(&self, role: &Role, base: &Base) -> Result<(), EngineError> {
        let Kind::Image(image) = &base.kind else { return Ok(()) };
        if role.resources.gpu == 0 || visible(&role.env) == Visible::Nothing {
            return Ok(());
        }
        let told = |why: String| EngineError(format!("role {}: {why}", role.name));
        let env: Vec<_> = base.inside.env.iter().chain(&role.env).cloned().collect();
        let capabilities = capabilities(&env).map_err(told)?;
        let name = &role.image;
        match Loader::of(&image.layers).map_err(failed("look for the image's loader"))? {
            Loader::Musl(path) => Err(told(format!(
                "image {name} is built upon musl (/{}), for which there are no libraries of NVIDIA's driver: use an image with \
                 glibc, such as one of Debian, Ubuntu or Rocky Linux, or set {OURS} = \"void\" in `env` to do without them",
                path.display()
            ))),
            Loader::Glibc { version: Some(version), .. } => {
                self.check_version(version, &capabilities).map_err(|why| told(format!("image {name} has {why}")))
            }
            Loader::Glibc { version: None, .. } | Loader::Unknown => Ok(()),
        }
    }

    fn check_version(&self, version: Glibc, capabilities: &Capabilities) -> Result<(), String> {
        // A driver that is not there yet is waited for, and one that lacks files is told of when it is needed.
        let Ok(files) = self.find(capabilities, &[], Path::new("/")) else { return Ok(()) };
        let needs = |name: &&str| {
            let source = files.source_of(name)?;
            let needed = needed_glibc(source).ok().flatten().filter(|needed| *needed > version)?;
            Some(format!(
                "glibc {version}, and {} of this machine's driver needs {needed}: use a newer image",
                source.display()
            ))
        };
        NEEDED.iter().find_map(needs).map_or(Ok(()), Err)
    }

    fn find(&self, capabilities: &Capabilities, cards: &[Wanted<'_>], place: &Path) -> Result<DriverFiles, String> {
        let version = self.version()?;
        let files = driver_files::find(&self.sources, &version, capabilities, cards, place)?;
        for remark in &files.remarks {
            if lock(&self.told).insert(remark.clone()) {
                tracing::warn!(reason = %remark, "not all of the driver's description for containers is followed");
            }
        }
        Ok(files)
    }

    fn version(&self) -> Result<String, String> {
        match &self.gpus.last().driver {
            Loaded::Loaded { version, .. } => Ok(version.clone()),
            Loaded::Missing { reason } => Err(format!("the driver is not there: {reason}")),
        }
    }

    /// The devices of a task's cards, and what of their driver its image is shown; variables are added to `env`.
    pub(super) fn reach(
        &self,
        cards: &Cards<'_>,
        base: &Base,
        env: &mut Vec<(String, String)>,
    ) -> Result<(Vec<PathBuf>, Option<Driver>), EngineError> {
        self.check_devices(&cards.openable())?;
        let mut devices = cards.devices()?;
        match &base.kind {
            Kind::Image(image) if cards.have_driver() => {
                let openable = cards.openable();
                let (driver, further) = self.show(&openable, image, env)?;
                // The common ones are of no use without any.
                devices.extend(further.into_iter().filter(|_| !openable.is_empty()));
                devices.sort();
                devices.dedup();
                Ok((devices, Some(driver)))
            }
            Kind::Host if !devices.is_empty() => {
                super::gpus::reach(env);
                Ok((devices, None))
            }
            Kind::Host | Kind::Image(_) => Ok((devices, None)),
        }
    }

    /// The number of a card that is gone, or has come back as another, would open whichever has it now.
    fn check_devices(&self, leases: &[GpuLease]) -> Result<(), EngineError> {
        let mut seen = self.gpus.last();
        if !leases.is_empty() && seen.at.is_none() {
            seen = self.gpus.first(FIRST_LOOK);
        }
        leases.iter().try_for_each(|lease| has_device(&seen, lease)).map_err(EngineError)
    }

    /// What a task with these cards is shown in its image, and further nodes of devices; variables are added to `env`.
    fn show(
        &self,
        cards: &[GpuLease],
        image: &Image,
        env: &mut Vec<(String, String)>,
    ) -> Result<(Driver, Vec<PathBuf>), EngineError> {
        let loader = Loader::of(&image.layers).map_err(failed("look for the image's loader"))?;
        let place = match &loader {
            Loader::Glibc { folder, .. } => Path::new("/").join(folder),
            Loader::Musl(_) | Loader::Unknown => Path::new("/usr/lib").join(TRIPLET),
        };
        let wanted: Vec<Wanted<'_>> = cards.iter().map(wanted).collect();
        let capabilities = capabilities(env).map_err(EngineError)?;
        let files = self.find(&capabilities, &wanted, &place).map_err(EngineError)?;
        for (name, value) in files.env.iter().filter(|(name, _)| name != OURS) {
            if env.iter().all(|(known, _)| known != name) {
                env.push((name.clone(), value.clone()));
            }
        }
        if !matches!(loader, Loader::Glibc { .. }) {
            // Whatever loader there is may read that.
            files.folders().iter().rev().for_each(|folder| put_before(env, "LD_LIBRARY_PATH", folder));
        }
        let version = self.version().map_err(EngineError)?;
        let further = files.devices.clone();
        Ok((shown(version, files), further))
    }
}

fn wanted(lease: &GpuLease) -> Wanted<'_> {
    Wanted { uuid: &lease.uuid, minor: lease.minor, slice: Some(lease.device()).filter(|own| **own != lease.uuid) }
}

fn has_device(seen: &Inventory, lease: &GpuLease) -> Result<(), String> {
    let GpuLease { uuid, minor, .. } = lease;
    let Some(card) = seen.cards.iter().find(|card| card.facts.uuid == *uuid) else {
        return Err(match &seen.driver {
            Loaded::Missing { reason } => format!("{uuid} cannot be reached: {reason}"),
            Loaded::Loaded { .. } => format!("the driver no longer has {uuid}"),
        });
    };
    match (&card.signs.lost, card.facts.minor) {
        (Some(how), _) => Err(format!("{uuid} is lost: {how}")),
        (None, Some(now)) if now == *minor => Ok(()),
        (None, _) => Err(format!("/dev/nvidia{minor} is no longer the device of {uuid}: the driver was loaded anew")),
    }
}

fn shown(version: String, files: DriverFiles) -> Driver {
    let is_file = |path: &Path| files.files.iter().any(|file| file.target == path);
    let links = files.links.iter().filter(|link| !is_file(&link.path));
    let link =
        |link: &driver_files::DriverLink| DriverLink { path: link.path.clone(), leads_to: link.leads_to.clone() };
    let file =
        |file: &driver_files::DriverFile| DriverFile { source: file.source.clone(), target: file.target.clone() };
    Driver {
        version,
        links: links.map(link).collect(),
        files: files.files.iter().map(file).collect(),
        libraries: files.libraries,
    }
}

/// By what an image's programs find their libraries.
#[derive(Debug, PartialEq, Eq)]
enum Loader {
    /// Its libraries lie in this folder, below the root.
    Glibc {
        folder: PathBuf,
        version: Option<Glibc>,
    },
    Musl(PathBuf),
    /// None: an image of programs that need no libraries, or whose libraries lie at a place of their own.
    Unknown,
}

impl Loader {
    fn of(layers: &[PathBuf]) -> io::Result<Self> {
        let folders = [
            format!("usr/lib/{TRIPLET}"),
            format!("lib/{TRIPLET}"),
            "usr/lib64".to_owned(),
            "lib64".to_owned(),
            "usr/lib".to_owned(),
            "lib".to_owned(),
        ];
        for folder in folders.iter().map(PathBuf::from) {
            if let Some(content) = topmost_file(layers, &folder.join("libc.so.6"), LIBRARY_MAX)? {
                return Ok(Self::Glibc { folder, version: version_of_glibc(&content) });
            }
        }
        let musl = ["lib", "usr/lib"].map(|folder| format!("{folder}/ld-musl-{}.so.1", std::env::consts::ARCH));
        for path in musl.map(PathBuf::from) {
            if topmost_file(layers, &path, 0)?.is_some() {
                return Ok(Self::Musl(path));
            }
        }
        Ok(Self::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        dir
    }

    #[test]
    fn an_image_s_loader_is_known_by_its_layers() {
        let of = |layers: &[&tempfile::TempDir]| {
            Loader::of(&layers.iter().map(|layer| layer.path().to_owned()).collect::<Vec<_>>()).unwrap()
        };
        let glibc = |folder: &str| Loader::Glibc { folder: folder.into(), version: None };
        let debian = layer(&[&format!("usr/lib/{TRIPLET}/libc.so.6")]);
        // Debian makes /lib a link.
        std::os::unix::fs::symlink("usr/lib", debian.path().join("lib")).unwrap();
        let (rocky, other) = (layer(&["usr/lib64/libc.so.6"]), layer(&["opt/x"]));
        let alpine = layer(&[&format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH)]);
        assert_eq!(of(&[&other, &debian]), glibc(&format!("usr/lib/{TRIPLET}")));
        assert_eq!(of(&[&rocky, &other]), glibc("usr/lib64"));
        assert!(matches!(of(&[&alpine]), Loader::Musl(_)));
        // glibc beside it is what programs of the driver use.
        assert_eq!(of(&[&alpine, &rocky]), glibc("usr/lib64"));
        assert_eq!(of(&[&other]), Loader::Unknown);
        assert_eq!(of(&[]), Loader::Unknown);
    }

    #[test]
    fn a_card_that_is_gone_or_has_another_device_now_is_not_opened_by_the_number_that_it_had() {
        use crate::gpu::{Card, Facts, Signs};
        let lease = GpuLease { uuid: "GPU-a".parse().unwrap(), minor: 3, part: None };
        let card = |name: &str, minor: u32, lost: Option<&str>| Card {
            facts: Facts {
                uuid: name.parse().unwrap(),
                name: "H100".to_owned(),
                minor: Some(minor),
                bus: String::new(),
                numa_node: None,
                cpus: Vec::new(),
                memory: Some(1),
            },
            mig: false,
            slices: Vec::new(),
            signs: Signs { lost: lost.map(str::to_owned), ..Signs::default() },
            findings: Vec::new(),
            usage: None,
        };
        let on = |cards: Vec<Card>| {
            let driver = Loaded::Loaded { version: "580".to_owned(), cuda: None };
            has_device(&Inventory { driver, cards, ..Inventory::default() }, &lease)
        };
        assert_eq!(on(vec![card("GPU-b", 2, None), card("GPU-a", 3, None)]), Ok(()));
        // The driver was loaded anew, and its number is another's.
        let swapped = on(vec![card("GPU-b", 3, None), card("GPU-a", 2, None)]).unwrap_err();
        assert!(swapped.starts_with("/dev/nvidia3 is no longer the device of GPU-a"), "{swapped}");
        assert_eq!(on(vec![card("GPU-a", 3, Some("it fell off"))]), Err("GPU-a is lost: it fell off".to_owned()));
        assert_eq!(on(vec![card("GPU-b", 3, None)]), Err("the driver no longer has GPU-a".to_owned()));
        let missing = has_device(&Inventory::default(), &lease).unwrap_err();
        assert!(missing.starts_with("GPU-a cannot be reached: "), "{missing}");
    }

    #[test]
    fn a_loader_of_which_nothing_is_known_is_told_the_folders_that_the_description_has() {
        let library = |name: &str, path: &str| (name.to_owned(), PathBuf::from(path));
        let libraries = vec![
            library("libcuda.so.1", "/opt/driver/libcuda.so.1"),
            library("libcuda.so", "/opt/driver/libcuda.so"),
            library("libvdpau_nvidia.so", "/opt/driver/vdpau/libvdpau_nvidia.so"),
        ];
        let files = DriverFiles { libraries, ..DriverFiles::default() };
        assert_eq!(files.folders(), [Path::new("/opt/driver"), Path::new("/opt/driver/vdpau")]);
        // Where none is named for the loader, those of what is shown.
        let shown = |target: &str| driver_files::DriverFile { source: "/x".into(), target: target.into() };
        let files =
            ["/usr/bin/nvidia-smi", "/opt/a/libcuda.so.580.1", "/opt/a/libcuda.so.1", "/opt/b/libnvidia-ml.so.1"];
        let files = DriverFiles { files: files.map(shown).to_vec(), ..DriverFiles::default() };
        assert_eq!(files.folders(), [Path::new("/opt/a"), Path::new("/opt/b")]);
    }
}
