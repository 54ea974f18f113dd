//! What of the driver a container is to see: libraries, programs, sockets, and the names by which they are found.
//!
//! The libraries must be of the version that the kernel has, so an image cannot bring them. What there is says the machine's
//! description for containers ([`super::cdi`]) or, where there is none, its folders: those of the loader's configuration and
//! cache, of `LD_LIBRARY_PATH`, and those that distributions put drivers into. Which of it, the capabilities say that
//! NVIDIA's images ask for (`NVIDIA_DRIVER_CAPABILITIES`).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::{cdi, elf, library};
use crate::sys::ld_cache;

/// Something that a container is to see, read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFile {
    /// Of the machine; no link leads there.
    pub source: PathBuf,
    pub target: PathBuf,
}

/// A symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverLink {
    pub path: PathBuf,
    pub leads_to: PathBuf,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverFiles {
    pub files: Vec<DriverFile>,
    pub links: Vec<DriverLink>,
    /// By which names the loader is to find what.
    pub libraries: Vec<(String, PathBuf)>,
    pub env: Vec<(String, String)>,
    /// Nodes beside those that every card needs.
    pub devices: Vec<PathBuf>,
    /// What was not done as the machine's administrator may expect it.
    pub remarks: Vec<String>,
}

impl DriverFiles {
    /// Where a file of this name lies on the machine.
    pub fn source_of(&self, name: &str) -> Option<&Path> {
        let is_meant = |file: &&DriverFile| library_name(&file.source).is_some_and(|stem| stem == name);
        self.files.iter().find(is_meant).map(|file| file.source.as_path())
    }

    /// Where its libraries lie in the container, which a description says otherwise than we would: those that it names for the loader,
    /// else all that it shows.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut libraries: Vec<&Path> = self.libraries.iter().map(|(_, path)| path.as_path()).collect();
        if libraries.is_empty() {
            let targets = self.files.iter().map(|file| file.target.as_path());
            libraries.extend(targets.filter(|target| library_name(target).is_some()));
        }
        let mut found: Vec<PathBuf> = Vec::new();
        for folder in libraries.into_iter().filter_map(Path::parent) {
            if !found.iter().any(|known| known == folder) {
                found.push(folder.to_owned());
            }
        }
        found
    }

    /// Names for a library by which the loader finds it: its own, and the links beside it.
    pub(super) fn add_names(&mut self, file: &DriverFile, known: &str) {
        let Some(folder) = file.target.parent() else { return };
        let Some(own) = file.target.file_name().and_then(OsStr::to_str) else { return };
        if own != known && !self.links.iter().any(|link| link.path == folder.join(known)) {
            self.links.push(DriverLink { path: folder.join(known), leads_to: own.into() });
        }
        self.add_name(known, folder.join(known));
    }

    pub(super) fn add_name(&mut self, name: &str, path: PathBuf) {
        if self.libraries.iter().all(|(other, _)| other != name) {
            self.libraries.push((name.to_owned(), path));
        }
    }
}

/// What of the driver is asked for, by NVIDIA's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    Compute,
    Utility,
    Graphics,
    Video,
    Display,
    Ngx,
    /// For programs of 32 bits, which are not let run.
    Compat32,
}

use Capability::{Compat32, Compute, Display, Graphics, Ngx, Utility, Video};

const NAMES: [(&str, Capability); 7] = [
    ("compute", Compute),
    ("utility", Utility),
    ("graphics", Graphics),
    ("video", Video),
    ("display", Display),
    ("ngx", Ngx),
    ("compat32", Compat32),
];

/// The variable that says what is asked for.
pub const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<Capability>);

impl Capabilities {
    /// `wanted` is the value of the variable; NVIDIA's default where it says nothing.
    pub fn parse(wanted: Option<&str>) -> Result<Self, String> {
        let words = wanted.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut all = BTreeSet::new();
        for word in words {
            match NAMES.iter().find(|(name, _)| *name == word) {
                Some((_, capability)) => _ = all.insert(*capability),
                None if word == "all" => all.extend(NAMES.map(|(_, capability)| capability)),
                None => {
                    let known = NAMES.map(|(name, _)| name).join(", ");
                    return Err(format!("{CAPABILITIES} has {word:?}: it takes all, or some of {known}"));
                }
            }
        }
        if all.is_empty() {
            all.extend([Compute, Utility]);
        }
        Ok(Self(all))
    }

    fn has(&self, capability: Capability) -> bool {
        // Who shows something on a display draws it.
        self.0.contains(&capability) || (capability == Graphics && self.0.contains(&Display))
    }

    /// Whether a file of the driver is asked for; one of which nobody knows what it is for is.
    pub(super) fn want(&self, target: &Path) -> bool {
        let stem = library_name(target).or_else(|| target.file_name().and_then(OsStr::to_str)).unwrap_or_default();
        let of_name = LIBRARIES.iter().chain(&PROGRAMS).chain(&OWN_VERSIONS).find(|(_, names)| names.contains(&stem));
        let of_place = || {
            let is_below = |part: &str| target.components().any(|component| component.as_os_str() == part);
            let place = GRAPHICS_PLACES.iter().any(|part| is_below(part)) || stem == "nvoptix.bin";
            place.then_some(Graphics)
        };
        of_name.map(|(capability, _)| *capability).or_else(of_place).is_none_or(|capability| self.has(capability))
    }
}

/// `libcuda` of `/usr/lib/libcuda.so.580.95.05`.
pub(super) fn library_name(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let (stem, rest) = name.split_once(".so")?;
    (stem.starts_with("lib") && (rest.is_empty() || rest.starts_with('.'))).then_some(stem)
}

type Names = [(Capability, &'static [&'static str])];

/// Libraries of the driver's version, without `.so.VERSION`: those that NVIDIA's own tools show containers.
const LIBRARIES: [(Capability, &[&str]); 5] = [
    (Utility, &["libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"]),
    (
        Compute,
        &[
            "libcuda",
            "libcudadebugger",
            "libnvidia-opencl",
            "libnvidia-gpucomp",
            "libnvidia-ptxjitcompiler",
            "libnvidia-fatbinaryloader",
            "libnvidia-allocator",
            "libnvidia-compiler",
            "libnvidia-pkcs11",
            "libnvidia-pkcs11-openssl3",
            "libnvidia-nvvm",
            "libnvidia-nvvm70",
            "libnvidia-tileiras",
            "libnvidia-sandboxutils",
        ],
    ),
    (Video, &["libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"]),
    (
        Graphics,
        &[
            "libnvidia-eglcore",
            "libnvidia-glcore",
            "libnvidia-tls",
            "libnvidia-glsi",
            "libnvidia-fbc",
            "libnvidia-ifr",
            "libnvidia-rtcore",
            "libnvoptix",
            "libGLX_nvidia",
            "libEGL_nvidia",
            "libGLESv2_nvidia",
            "libGLESv1_CM_nvidia",
            "libnvidia-glvkspirv",
            "libnvidia-cbl",
        ],
    ),
    (Ngx, &["libnvidia-ngx"]),
];
/// Libraries that have versions of their own.
const OWN_VERSIONS: [(Capability, &[&str]); 1] = [(
    Graphics,
    &[
        "libnvidia-egl-gbm",
        "libnvidia-egl-wayland",
        "libnvidia-egl-wayland2",
        "libnvidia-egl-xcb",
        "libnvidia-egl-xlib",
    ],
)];
const PROGRAMS: [(Capability, &[&str]); 2] = [
    (Utility, &["nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager"]),
    (Compute, &["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"]),
];
/// Where a container finds them.
const PROGRAMS_PLACE: &str = "/usr/bin";
/// Sockets of the driver's services.
const SOCKETS: [&str; 2] = ["/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"];
/// Where the service that shares cards listens, unless it is told otherwise; everybody can make something of that name.
const MPS: &str = "/tmp/nvidia-mps";
/// What tells the loaders of graphics where the driver is; a file below `share` may lie beside a driver's own folder.
const GRAPHICS_FILES: [&str; 10] = [
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
    "/usr/share/nvidia/nvoptix.bin",
];
/// Parts of paths that files for graphics alone have.
const GRAPHICS_PLACES: [&str; 6] = ["vulkan", "glvnd", "egl", "egl_external_platform.d", "gbm", "xorg"];
/// Interfaces of the driver's libraries have numbers below this.
const LINKS_MAX: u32 = 10;
/// Programs of the card's own processor, by the driver's version.
const FIRMWARE: [&str; 2] = ["/lib/firmware/nvidia", "/usr/lib/firmware/nvidia"];

/// How distributions call the folder of this machine's kind.
#[cfg(target_arch = "x86_64")]
pub const TRIPLET: &str = "x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
pub const TRIPLET: &str = "aarch64-linux-gnu";

/// Where the driver may lie on this machine.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `/`, but in tests.
    pub root: PathBuf,
    /// NVIDIA's library, if the configuration names it: the others lie beside it.
    pub library: Option<PathBuf>,
    /// Folders of libraries and programs that come first.
    pub libraries: Vec<PathBuf>,
    pub programs: Vec<PathBuf>,
    /// Of descriptions for containers; what a later one has goes before.
    pub cdi: Vec<PathBuf>,
}

impl Sources {
    /// Those of this process' environment.
    pub fn of_environment(library: Option<PathBuf>, cdi: Vec<PathBuf>) -> Self {
        let folders = |name: &str| {
            let value = std::env::var_os(name).unwrap_or_default();
            std::env::split_paths(&value).filter(|path| path.is_absolute()).collect()
        };
        Self {
            root: PathBuf::from("/"),
            library,
            libraries: folders("LD_LIBRARY_PATH"),
            programs: folders("PATH"),
            cdi,
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Where the driver's libraries may be, the likeliest first, each once.
    fn folders(&self) -> Vec<PathBuf> {
        let configured = self.library.iter().filter_map(|path| path.parent().map(Path::to_owned));
        let cache = fs::read(self.at("/etc/ld.so.cache")).ok();
        let known = cache.and_then(|cache| ld_cache::libraries(&cache).ok()).unwrap_or_default();
        let known = known.into_iter().filter(|(name, _)| name == b"libcuda.so.1" || name == library::NAME.as_bytes());
        let cached = known.filter_map(|(_, path)| {
            let path = String::from_utf8(path).ok()?;
            self.at(&path).parent().map(Path::to_owned)
        });
        let listed = library::folders_of_loader(&self.root);
        let triplet = TRIPLET;
        let usual = [
            format!("/usr/lib/{triplet}"),
            format!("/usr/lib/{triplet}/nvidia/current"),
            format!("/lib/{triplet}"),
            "/usr/lib64".to_owned(),
            "/usr/lib64/nvidia".to_owned(),
            "/usr/lib".to_owned(),
            "/lib64".to_owned(),
            "/usr/local/nvidia/lib64".to_owned(),
            "/usr/local/lib".to_owned(),
        ];
        let usual = usual.iter().map(|path| self.at(path));
        let all = configured.chain(self.libraries.clone()).chain(cached).chain(listed).chain(usual);
        let mut seen = BTreeSet::new();
        let real = all.filter_map(|folder| folder.canonicalize().ok());
        real.filter(|folder| folder.is_dir() && seen.insert(folder.clone())).collect()
    }
}

/// What a task with these cards, by their UUIDs and minor numbers, sees of a driver of `version`; its libraries are shown in the
/// folder `place` of the container, unless the machine's description says where.
pub fn find(
    sources: &Sources,
    version: &str,
    capabilities: &Capabilities,
    cards: &[cdi::Wanted<'_>],
    place: &Path,
) -> Result<DriverFiles, String> {
    let why = match cdi::find(sources, capabilities, cards) {
        Ok(Some(files)) => return Ok(files),
        Ok(None) => return discover(sources, version, capabilities, place),
        Err(why) => why,
    };
    match discover(sources, version, capabilities, place) {
        Ok(mut files) => {
            files.remarks.push(format!("{why}; the driver's files are looked for without it"));
            Ok(files)
        }
        Err(missing) => Err(format!("{why}; and without it {missing}")),
    }
}

fn discover(
    sources: &Sources,
    version: &str,
    capabilities: &Capabilities,
    place: &Path,
) -> Result<DriverFiles, String> {
    let folders = sources.folders();
    let mut found = DriverFiles::default();
    for (capability, names) in LIBRARIES.iter().filter(|(capability, _)| capabilities.has(*capability)) {
        for name in *names {
            match library_file(&folders, name, version) {
                Some(source) => add_library(&mut found, source, place),
                None if *name == needed(*capability) => return Err(missing(name, version, &folders)),
                None => {}
            }
        }
    }
    for name in asked(&OWN_VERSIONS, capabilities) {
        let linked = folders.iter().map(|folder| folder.join(format!("{name}.so.1")));
        if let Some(source) = linked.filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file()) {
            add_library(&mut found, source, place);
        }
    }
    let beside: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.parent().map(Path::to_owned)).collect();
    for name in asked(&PROGRAMS, capabilities) {
        let own = beside.iter().map(|folder| folder.join("bin"));
        let usual = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(|path| sources.at(path));
        let places = sources.programs.iter().cloned().chain(own).chain(usual).map(|folder| folder.join(name));
        let source = places.filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file());
        let target = Path::new(PROGRAMS_PLACE).join(name);
        found.files.extend(source.map(|source| DriverFile { source, target }));
    }
    if capabilities.has(Graphics) {
        for path in GRAPHICS_FILES {
            let own = path.strip_prefix("/usr/").map(|rest| beside.iter().map(|folder| folder.join(rest)).collect());
            let places = std::iter::once(sources.at(path)).chain(own.unwrap_or_else(Vec::new));
            let source = places.filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file());
            found.files.extend(source.map(|source| DriverFile { source, target: path.into() }));
        }
    }
    found.files.extend(services(sources, capabilities));
    found.files.extend(firmware(sources, version));
    Ok(found)
}

/// The one without which a capability is of no use.
fn needed(capability: Capability) -> &'static str {
    match capability {
        Compute => "libcuda",
        Utility => "libnvidia-ml",
        Graphics | Video | Display | Ngx | Compat32 => "",
    }
}

fn asked<'n>(names: &'n Names, capabilities: &Capabilities) -> impl Iterator<Item = &'static str> + use<'n> {
    let wanted: Vec<_> = names.iter().filter(|(capability, _)| capabilities.has(*capability)).collect();
    wanted.into_iter().flat_map(|(_, names)| names.iter().copied())
}

fn missing(name: &str, version: &str, folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    format!(
        "the driver's {name}.so.{version} is in none of {}: install the libraries of driver {version} and run `ldconfig`, or name \
         their folder by [gpu] library in trainyard.toml",
        folders.join(", ")
    )
}

/// A library of this version, wherever it lies; or one whose file has no version in its name.
fn library_file(folders: &[PathBuf], name: &str, version: &str) -> Option<PathBuf> {
    let named = |folder: &PathBuf, name: String| {
        let places = [folder.join(&name), folder.join("vdpau").join(&name)];
        places.into_iter().find(|path| path.is_file()).and_then(|path| path.canonicalize().ok())
    };
    let versioned = folders.iter().find_map(|folder| named(folder, format!("{name}.so.{version}")));
    let plain = || {
        let plain = folders.iter().filter_map(|folder| named(folder, format!("{name}.so.1")));
        // A link to a file of another version is an old driver's.
        plain.into_iter().find(|path| path.file_name() == Some(OsStr::new(&format!("{name}.so.1"))))
    };
    versioned.or_else(plain)
}

fn add_library(found: &mut DriverFiles, source: PathBuf, place: &Path) {
    let (Some(folder), Some(own)) = (source.parent(), source.file_name().and_then(OsStr::to_str)) else { return };
    // It is looked for there by its users.
    let place = if folder.ends_with("vdpau") { place.join("vdpau") } else { place.to_owned() };
    let file = DriverFile { source: source.clone(), target: place.join(own) };
    let links = links_to(folder, &source);
    for name in &links {
        found.links.push(DriverLink { path: place.join(name), leads_to: own.into() });
    }
    let known = elf::name(&source).unwrap_or_else(|| own.to_owned());
    found.add_names(&file, &known);
    for name in links {
        found.add_name(&name, place.join(&name));
    }
    found.files.push(file);
}

/// Names of links beside a library that lead to it. Its folder may hold thousands of others, so they are asked for by name.
fn links_to(folder: &Path, source: &Path) -> Vec<String> {
    let stem = library_name(source).unwrap_or_default();
    let numbered = (0..LINKS_MAX).map(|number| format!("{stem}.so.{number}"));
    let further = (stem == "libGLX_nvidia").then(|| "libGLX_indirect.so.0".to_owned());
    let names = std::iter::once(format!("{stem}.so")).chain(numbered).chain(further);
    let leads_there = |name: &String| {
        let path = folder.join(name);
        path.is_symlink() && path.canonicalize().is_ok_and(|real| real == source)
    };
    names.filter(leads_there).collect()
}

fn services(sources: &Sources, capabilities: &Capabilities) -> Vec<DriverFile> {
    let mut found = Vec::new();
    let shown = |path: &str| {
        let source = sources.at(path).canonicalize().ok()?;
        Some(DriverFile { source, target: path.into() })
    };
    if capabilities.has(Utility) {
        let is_socket = |file: &DriverFile| fs::metadata(&file.source).is_ok_and(|file| file.file_type().is_socket());
        found.extend(SOCKETS.iter().filter_map(|path| shown(path)).filter(is_socket));
    }
    if capabilities.has(Compute) {
        // Not by a link, and root's: else whoever comes first would choose what tasks see of the machine.
        let place = fs::symlink_metadata(sources.at(MPS));
        let is_service_s = place.is_ok_and(|place| place.is_dir() && place.uid() == 0);
        found.extend(shown(MPS).filter(|_| is_service_s));
    }
    found
}

fn firmware(sources: &Sources, version: &str) -> Vec<DriverFile> {
    let folder = FIRMWARE.iter().map(|place| Path::new(place).join(version));
    let folder = folder.into_iter().find(|folder| sources.at(&folder.display().to_string()).is_dir());
    let Some(folder) = folder else { return Vec::new() };
    let entries = fs::read_dir(sources.at(&folder.display().to_string())).into_iter().flatten().flatten();
    let mut files: Vec<DriverFile> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let is_meant = name.to_str().is_some_and(|name| name.starts_with("gsp") && name.ends_with(".bin"));
            let source = entry.path().canonicalize().ok().filter(|_| is_meant)?;
            Some(DriverFile { source, target: folder.join(name) })
        })
        .collect();
    files.sort_by(|a, b| a.target.cmp(&b.target));
    files
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const VERSION: &str = "999.88.77";

    /// A machine's root with these files; `NAME -> TARGET` is a link.
    pub(in super::super) fn machine(entries: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for entry in entries {
            let (path, target) = entry.split_once(" -> ").map_or((*entry, None), |(path, target)| (path, Some(target)));
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match target {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, "not really").unwrap(),
            }
        }
        root
    }

    pub(in super::super) fn sources(root: &tempfile::TempDir) -> Sources {
        Sources { root: root.path().canonicalize().unwrap(), ..Sources::default() }
    }

    fn found(root: &tempfile::TempDir, wanted: Option<&str>) -> Result<DriverFiles, String> {
        let capabilities = Capabilities::parse(wanted).unwrap();
        find(&sources(root), VERSION, &capabilities, &[], Path::new("/lib64"))
    }

    fn targets(files: &DriverFiles) -> Vec<String> {
        let mut targets: Vec<String> = files.files.iter().map(|file| file.target.display().to_string()).collect();
        targets.sort();
        targets
    }

    fn links(files: &DriverFiles) -> Vec<String> {
        let one = |link: &DriverLink| format!("{} -> {}", link.path.display(), link.leads_to.display());
        files.links.iter().map(one).collect()
    }

    const DEBIAN: [&str; 14] = [
        "/usr/lib/x86_64-linux-gnu/libcuda.so -> libcuda.so.1",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.111.22.33",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 -> libnvidia-ml.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.1 -> libnvidia-encode.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/libnvidia-encode.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.999.88.77",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/bin/nvidia-smi -> /etc/alternatives/nvidia-smi",
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/lib/firmware/nvidia/999.88.77/gsp_ga10x.bin",
        "/tmp/nvidia-mps -> /etc",
    ];

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn what_the_capabilities_ask_for_is_found_in_its_version_with_the_names_that_lead_to_it() {
        let root = machine(&DEBIAN);
        // By default, and no link of the machine's /tmp is followed.
        let files = found(&root, None).unwrap();
        let firmware = "/lib/firmware/nvidia/999.88.77/gsp_ga10x.bin";
        let default = [firmware, "/lib64/libcuda.so.999.88.77", "/lib64/libnvidia-ml.so.999.88.77"];
        assert_eq!(targets(&files), default);
        let names = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"];
        let wanted: Vec<String> = names
            .iter()
            .map(|name| format!("/lib64/{name} -> {}.so.{VERSION}", name.split(".so").next().unwrap()))
            .collect();
        let mut led = links(&files);
        led.sort();
        assert_eq!(led, wanted);
        for name in names {
            assert!(files.libraries.contains(&(name.to_owned(), Path::new("/lib64").join(name))), "{name}");
        }
        let video = targets(&found(&root, Some("video")).unwrap());
        assert_eq!(
            video,
            [firmware, "/lib64/libnvidia-encode.so.999.88.77", "/lib64/vdpau/libvdpau_nvidia.so.999.88.77"]
        );
        let all = targets(&found(&root, Some("all")).unwrap());
        assert!(all.contains(&"/usr/share/vulkan/icd.d/nvidia_icd.json".to_owned()) && all.len() == 6, "{all:?}");
    }

    #[test]
    fn a_driver_with_a_folder_of_its_own_is_found_by_the_loader_s_configuration() {
        let root = machine(&[
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.999.88.77",
            "/usr/local/nvidia/bin/nvidia-smi",
            "/usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json",
        ]);
        fs::create_dir_all(root.path().join("etc/ld.so.conf.d")).unwrap();
        fs::write(root.path().join("etc/ld.so.conf"), "include ld.so.conf.d/*.conf\n").unwrap();
        fs::write(root.path().join("etc/ld.so.conf.d/nvidia.conf"), "/usr/local/nvidia/lib64\n").unwrap();
        let files = found(&root, Some("compute,utility,graphics")).unwrap();
        let wanted = [
            "/lib64/libcuda.so.1",
            "/lib64/libnvidia-ml.so.999.88.77",
            "/usr/bin/nvidia-smi",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        ];
        assert_eq!(targets(&files), wanted);
        assert_eq!(files.source_of("libcuda").unwrap().file_name().unwrap(), "libcuda.so.1");
    }

    #[test]
    fn libraries_of_another_version_are_not_taken_and_what_is_missing_is_named() {
        let root = machine(&[
            "/usr/lib64/libcuda.so.1 -> libcuda.so.111.22.33",
            "/usr/lib64/libcuda.so.111.22.33",
            "/usr/lib64/libnvidia-ml.so.999.88.77",
        ]);
        let why = found(&root, None).unwrap_err();
        assert!(why.starts_with("the driver's libcuda.so.999.88.77 is in none of /"), "{why}");
        assert!(why.contains("/usr/lib64") && why.contains("[gpu] library"), "{why}");
        assert_eq!(targets(&found(&root, Some("utility")).unwrap()), ["/lib64/libnvidia-ml.so.999.88.77"]);
    }

    #[test]
    fn where_neither_the_description_nor_the_folders_help_both_are_told() {
        let root = machine(&["/usr/lib64/libc.so.6"]);
        let cdi = root.path().join("etc/cdi");
        fs::create_dir_all(&cdi).unwrap();
        fs::write(cdi.join("nvidia.yaml"), "cdiVersion: [").unwrap();
        let sources = Sources { cdi: vec![cdi], ..sources(&root) };
        let all = Capabilities::parse(None).unwrap();
        let why = find(&sources, VERSION, &all, &[], Path::new("/lib64")).unwrap_err();
        assert!(why.contains("nvidia.yaml"), "{why}");
        assert!(why.contains("; and without it the driver's libnvidia-ml.so.999.88.77 is in none of "), "{why}");
    }

    #[test]
    fn capabilities_are_read_as_nvidia_s_tools_read_them() {
        let default = Capabilities::parse(None).unwrap();
        assert_eq!(Capabilities::parse(Some("")).unwrap(), default);
        assert_eq!(Capabilities::parse(Some(" utility , compute,")).unwrap(), default);
        let why = Capabilities::parse(Some("compute,vidio")).unwrap_err();
        assert!(
            why.starts_with("NVIDIA_DRIVER_CAPABILITIES has \"vidio\": it takes all, or some of compute, "),
            "{why}"
        );
        for (path, wanted, without) in [
            ("/usr/lib/libcuda.so.1", true, false),
            ("/usr/bin/nvidia-smi", true, true),
            ("/usr/lib/libnvidia-glcore.so.580", false, false),
            ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", false, false),
            ("/usr/share/something/else", true, true),
        ] {
            assert_eq!(default.want(Path::new(path)), wanted, "{path}");
            assert_eq!(Capabilities::parse(Some("utility")).unwrap().want(Path::new(path)), without, "{path}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_folder_of_shared_cards_is_shown_if_it_is_root_s() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let root = machine(&DEBIAN[..13]);
        fs::create_dir_all(root.path().join("tmp/nvidia-mps")).unwrap();
        assert!(targets(&found(&root, None).unwrap()).contains(&MPS.to_owned()));
        std::os::unix::fs::chown(root.path().join("tmp/nvidia-mps"), Some(1234), None).unwrap();
        assert!(!targets(&found(&root, None).unwrap()).contains(&MPS.to_owned()));
    }
}
