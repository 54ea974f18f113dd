//! Shows the driver of the task's cards in its image: files of the machine, links, and the loader's cache.
//!
//! Nothing of the image is run for that. What it has at these places is not trusted: paths are resolved inside of it, and what
//! lies at the end of one, a link as well, is replaced.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::rootfs::{MountError, failed};
use crate::rundir::{Driver, DriverFile};
use crate::sys::file::optional;
use crate::sys::ld_cache;
use crate::sys::mounts::{self, Access, Depth, Detached};
use crate::sys::rooted::{Ids, Rooted};

const CACHE: &str = "/etc/ld.so.cache";
/// What `ldconfig` reads first of the folders to look in.
const FOLDERS: &str = "/etc/ld.so.conf.d/00-trainyard.conf";
/// Where NVIDIA's images have libraries by which older drivers serve newer versions of CUDA.
const COMPATIBLE: &str = "/usr/local/cuda/compat";
/// Most entries of that which are looked at.
const COMPATIBLE_MAX: usize = 64;

/// Takes hold of the files, before what they lie in is covered.
pub(super) fn take(driver: &Driver) -> Result<Vec<Detached>, MountError> {
    let one = |file: &DriverFile| {
        let detached = Detached::copy_without_links(&file.source, Depth::One)?;
        detached.restrict(Access::ReadOnly).map(|()| detached)
    };
    let told = |file: &DriverFile| format!("the driver's {}", file.source.display());
    driver.files.iter().map(|file| one(file).map_err(failed(told(file)))).collect()
}

pub(super) fn show(inside: &Rooted, driver: &Driver, taken: Vec<Detached>, ids: Ids) -> Result<(), MountError> {
    for (file, detached) in driver.files.iter().zip(taken) {
        place(inside, &file.target, &detached, ids).map_err(failed(file.target.display().to_string()))?;
    }
    for link in &driver.links {
        inside.link(&link.path, &link.leads_to, ids).map_err(failed(link.path.display().to_string()))?;
    }
    if driver.libraries.is_empty() {
        return Ok(());
    }
    tell_loader(inside, driver, ids).map_err(failed(CACHE))
}

fn place(inside: &Rooted, target: &Path, detached: &Detached, ids: Ids) -> io::Result<()> {
    if detached.is_directory()? {
        return detached.attach(inside.directory(target, ids)?);
    }
    inside.write(target, b"", 0o644, ids)?;
    detached.attach(inside.handle(target)?)
}

/// An image may have no `ldconfig`, or an old cache, and programs look into it as well.
fn tell_loader(inside: &Rooted, driver: &Driver, ids: Ids) -> io::Result<()> {
    let mut libraries = compatible(inside, &driver.version)?;
    let is_new = |(name, _): &&(String, PathBuf)| libraries.iter().all(|(other, _)| other != name);
    let own: Vec<_> = driver.libraries.iter().filter(is_new).cloned().collect();
    libraries.extend(own);
    tell_ldconfig(inside, &libraries, ids)?;
    let entry = |(name, path): (String, PathBuf)| (name.into_bytes(), path.into_os_string().into_encoded_bytes());
    let entries: Vec<_> = libraries.into_iter().map(entry).collect();
    let cache = inside.read(Path::new(CACHE), ld_cache::SIZE_MAX)?;
    match ld_cache::with(cache.as_deref(), &entries) {
        Ok(cache) => inside.write(Path::new(CACHE), &cache, 0o644, ids),
        // Without it the loader finds them where glibc's own libraries lie.
        Err(error) => {
            tracing::warn!(path = CACHE, %error, "the image's cache of libraries stays as it is");
            Ok(())
        }
    }
}

/// So that a task that makes the cache anew, as packages do when they are installed, finds them again.
fn tell_ldconfig(inside: &Rooted, libraries: &[(String, PathBuf)], ids: Ids) -> io::Result<()> {
    // Also those that many distributions search anyway: others do not, and one that is said twice is searched once.
    let mut folders: Vec<&Path> = Vec::new();
    for folder in libraries.iter().filter_map(|(_, path)| path.parent()) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    let has_place = Path::new(FOLDERS).parent().is_some_and(|place| inside.handle(place).is_ok());
    if folders.is_empty() || !has_place {
        return Ok(());
    }
    let lines: String = folders.iter().map(|folder| format!("{}\n", folder.display())).collect();
    inside.write(Path::new(FOLDERS), lines.as_bytes(), 0o644, ids)
}

/// Libraries that the image has for newer versions of CUDA than this driver, if they are newer than it.
fn compatible(inside: &Rooted, version: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let folder = Path::new(COMPATIBLE);
    let opened = inside.directory_for_reading(folder);
    let Ok(Some(opened)) = optional(opened) else { return Ok(Vec::new()) };
    let entries = fs::read_dir(mounts::path_of(&opened))?.take(COMPATIBLE_MAX).flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let is_newer = |name: &String| {
        let theirs = name.strip_prefix("libcuda.so.").filter(|version| version.contains('.')).and_then(major);
        theirs > major(version) && theirs.is_some()
    };
    if !names.iter().any(is_newer) {
        return Ok(Vec::new());
    }
    let is_known = |name: &String| {
        let number = name.strip_prefix("lib").and_then(|name| name.split_once(".so.")).map(|(_, number)| number);
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    Ok(names.into_iter().filter(is_known).map(|name| (name.clone(), folder.join(name))).collect())
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    fn ids() -> Ids {
        Ids { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() }
    }

    fn told(root: &tempfile::TempDir) -> Vec<(String, String)> {
        let libraries = vec![
            ("libcuda.so.1".to_owned(), PathBuf::from("/lib64/libcuda.so.1")),
            ("libnvidia-ml.so.1".to_owned(), PathBuf::from("/lib64/libnvidia-ml.so.1")),
        ];
        let driver = Driver { version: "580.95.05".to_owned(), libraries, ..Driver::default() };
        tell_loader(&Rooted::open(root.path()).unwrap(), &driver, ids()).unwrap();
        let cache = ld_cache::libraries(&fs::read(root.path().join("etc/ld.so.cache")).unwrap()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        cache.into_iter().map(|(name, path)| (text(name), text(path))).collect()
    }

    #[test]
    fn an_image_s_newer_libraries_of_cuda_go_before_the_machine_s() {
        let of = |version: &str| {
            let compat = ["usr/local/cuda/compat/libcuda.so.1", "usr/local/cuda/compat/libnvidia-nvvm.so.4"];
            let real = format!("usr/local/cuda/compat/libcuda.so.{version}");
            told(&root(&[compat[0], compat[1], &real]))
        };
        let path = |found: &[(String, String)], name: &str| {
            found.iter().find(|(known, _)| known == name).map(|(_, path)| path.clone()).unwrap_or_default()
        };
        let newer = of("590.10.01");
        assert_eq!(path(&newer, "libcuda.so.1"), "/usr/local/cuda/compat/libcuda.so.1");
        assert_eq!(path(&newer, "libnvidia-nvvm.so.4"), "/usr/local/cuda/compat/libnvidia-nvvm.so.4");
        assert_eq!(path(&newer, "libnvidia-ml.so.1"), "/lib64/libnvidia-ml.so.1");
        for older in ["580.10.01", "99.1"] {
            assert_eq!(path(&of(older), "libcuda.so.1"), "/lib64/libcuda.so.1", "{older}");
        }
    }

    #[test]
    fn folders_that_no_loader_knows_are_told_to_ldconfig_before_others() {
        let image = root(&[
            "etc/ld.so.conf.d/libc.conf",
            "usr/local/cuda/compat/libcuda.so.1",
            "usr/local/cuda/compat/libcuda.so.590.1",
        ]);
        told(&image);
        let own = image.path().join("etc/ld.so.conf.d/00-trainyard.conf");
        assert_eq!(fs::read_to_string(own).unwrap(), "/usr/local/cuda/compat\n/lib64\n");
        let plain = root(&["etc/ld.so.conf.d/libc.conf"]);
        told(&plain);
        let own = plain.path().join("etc/ld.so.conf.d/00-trainyard.conf");
        assert_eq!(fs::read_to_string(own).unwrap(), "/lib64\n", "not every distribution searches it");
    }

    #[test]
    fn a_cache_that_is_not_understood_stays_and_a_link_in_its_place_leads_nowhere() {
        let damaged = root(&["etc/ld.so.cache"]);
        fs::write(damaged.path().join("etc/ld.so.cache"), "of another kind").unwrap();
        let driver = Driver {
            version: "580".to_owned(),
            libraries: vec![("libcuda.so.1".to_owned(), "/lib64/libcuda.so.1".into())],
            ..Driver::default()
        };
        tell_loader(&Rooted::open(damaged.path()).unwrap(), &driver, ids()).unwrap();
        assert_eq!(fs::read(damaged.path().join("etc/ld.so.cache")).unwrap(), b"of another kind");
        let outside = tempfile::tempdir().unwrap();
        let kept = outside.path().join("kept");
        fs::write(&kept, "kept").unwrap();
        let linked = root(&["etc/x"]);
        std::os::unix::fs::symlink(&kept, linked.path().join("etc/ld.so.cache")).unwrap();
        assert_eq!(told(&linked).len(), 2);
        assert_eq!(fs::read(&kept).unwrap(), b"kept");
    }
}
