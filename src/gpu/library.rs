//! Where the driver's library lies.
//!
//! The dynamic loader looks in its cache and in `LD_LIBRARY_PATH`. A driver that was put on the machine without `ldconfig`
//! being run, as on many GPU clouds, lies in a folder that `ld.so.conf` names (`/usr/local/nvidia/lib64`), so these are
//! looked in as well.

use std::fs;
use std::path::{Path, PathBuf};

/// As the loader knows it.
pub(super) const NAME: &str = "libnvidia-ml.so.1";

/// What to try in turn, for the loader: names without a folder are its own to find.
pub(super) fn candidates(configured: Option<&Path>, root: &Path) -> Vec<PathBuf> {
    if let Some(path) = configured {
        return vec![path.to_owned()];
    }
    let folders = folders_of_loader(root);
    let there = folders.into_iter().map(|folder| folder.join(NAME)).filter(|path| path.exists());
    std::iter::once(PathBuf::from(NAME)).chain(there).collect()
}

/// Folders of the loader's configuration, other than the system's own, in which the driver's libraries lie: the loader's cache may
/// have been made before they came.
pub fn driver_folders() -> Vec<PathBuf> {
    let root = Path::new("/");
    let own = |folder: &PathBuf| {
        !["/lib", "/lib64", "/usr/lib", "/usr/lib64"].iter().any(|system| folder.starts_with(system))
            && folder.join("libcuda.so.1").exists()
    };
    let mut folders: Vec<PathBuf> = folders_of_loader(root).into_iter().filter(own).collect();
    folders.dedup();
    folders
}

/// All folders of the loader's configuration.
pub(super) fn folders_of_loader(root: &Path) -> Vec<PathBuf> {
    folders_of(root, &root.join("etc/ld.so.conf"), 0)
}

/// How deep files may include others; one that includes itself comes to an end.
const INCLUDES_MAX: u32 = 8;

/// Folders that a file in the form of `ld.so.conf` names, with those of the files that it includes.
fn folders_of(root: &Path, file: &Path, depth: u32) -> Vec<PathBuf> {
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut folders = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            Some(pattern) if depth < INCLUDES_MAX => {
                let beside = file.parent().unwrap_or(root);
                let files = files_of(&below(root, beside, pattern.trim()));
                folders.extend(files.iter().flat_map(|included| folders_of(root, included, depth + 1)));
            }
            Some(_) => {}
            None => folders.push(below(root, root, line)),
        }
    }
    folders
}

fn below(root: &Path, beside: &Path, path: &str) -> PathBuf {
    match path.strip_prefix('/') {
        Some(rest) => root.join(rest),
        None => beside.join(path),
    }
}

/// The files that a pattern means, whose last part may have one `*`, as it always has; by name.
fn files_of(pattern: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((start, end)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_meant = |name: &str| name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end);
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_meant));
    let mut files: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_loader_s_configuration_are_looked_in() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n/opt/first # not there\n");
        write(
            "etc/ld.so.conf.d/nvidia.conf",
            "# driver\n/usr/local/nvidia/lib64\n/usr/local/nvidia/lib\ninclude *.conf\n",
        );
        write("etc/ld.so.conf.d/other.list", "/usr/local/other\n");
        write("usr/local/nvidia/lib64/libnvidia-ml.so.1", "");
        write("usr/local/other/libnvidia-ml.so.1", "");
        let mut found = candidates(None, root.path());
        found.dedup();
        assert_eq!(found.first(), Some(&PathBuf::from(NAME)));
        assert!(found[1..].iter().all(|path| path.ends_with("usr/local/nvidia/lib64/libnvidia-ml.so.1")), "{found:?}");
        assert!(found.len() > 1);
        let own = Path::new("/x/libnvidia-ml.so.1");
        assert_eq!(candidates(Some(own), root.path()), [own]);
    }
}
