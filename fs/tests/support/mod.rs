//! A mounted tree for the tests: `ro` is read-only, `hidden` is hidden, `now.txt` in the root is generated; what lies in `passed` the
//! kernel may read and write by itself, and a directory that is renamed to `frozen` is frozen.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use trainyard_fs::{Content, ContentMetadata, MountOptions, Mounted, RelPath, Rule, Tree, mount};

#[derive(Clone, Default)]
pub(crate) struct TestTree {
    text: Arc<Mutex<Vec<u8>>>,
    sealed: Arc<AtomicBool>,
}

struct Text(Arc<Mutex<Vec<u8>>>);

impl Content for Text {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        let size = self.0.lock().unwrap().len() as u64;
        let mtime = SystemTime::UNIX_EPOCH;
        Ok(ContentMetadata { size, mtime, uid: 0, gid: 0, mode: 0o640 })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let text = self.0.lock().unwrap();
        let rest = text.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

impl Tree for TestTree {
    fn rule(&self, path: &RelPath) -> Rule {
        match path.components().next().and_then(|name| name.to_str()) {
            Some("ro") => Rule::ReadOnly,
            Some("hidden") => Rule::Hidden,
            _ if path.components().skip(2).any(|name| name == "frozen") && path.name() != Some("frozen".as_ref()) => {
                Rule::ReadOnly
            }
            _ if path.name() == Some("sealed".as_ref()) && self.sealed.load(Ordering::SeqCst) => Rule::ReadOnly,
            _ => Rule::ReadWrite,
        }
    }

    fn freezes(&self, _from: &RelPath, to: &RelPath) -> bool {
        to.name() == Some("frozen".as_ref())
    }

    fn passes_writes(&self, path: &RelPath) -> bool {
        path.components().any(|name| name == "passed")
    }

    fn generated(&self, dir: &RelPath) -> Vec<OsString> {
        if dir.is_root() { vec!["now.txt".into()] } else { Vec::new() }
    }

    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        let text = || Box::new(Text(Arc::clone(&self.text))) as Box<dyn Content>;
        Ok((path.as_path() == Path::new("now.txt")).then(text))
    }

    fn attr_ttl(&self, path: &RelPath) -> Duration {
        let is_kept = path.components().any(|name| name == "kept");
        if is_kept { Duration::from_secs(60) } else { Duration::ZERO }
    }
}

/// A directory with `store` mounted at `mnt`; unmounted when dropped.
pub(crate) struct Bench {
    // First, so that it is dropped first: removing `dir` must not reach through the mount.
    mounted: Mounted<TestTree>,
    tree: TestTree,
    dir: TempDir,
}

impl Bench {
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !can_mount(test) {
            return None;
        }
        let (dir, tree) = (prepared(), TestTree::default());
        let mounted = mount_in(dir.path(), tree.clone());
        Some(Self { dir, tree, mounted })
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("mnt").join(path)
    }

    pub(crate) fn stored(&self, path: &str) -> PathBuf {
        self.dir.path().join("store").join(path)
    }

    /// Appends to the generated file.
    pub(crate) fn say(&self, text: &[u8]) {
        self.tree.text.lock().unwrap().extend_from_slice(text);
    }

    /// Replaces every byte of the generated file.
    pub(crate) fn rewrite(&self, byte: u8) {
        self.tree.text.lock().unwrap().fill(byte);
    }

    /// Makes every file called `sealed` read-only, or writable again.
    pub(crate) fn seal(&self, sealed: bool) {
        self.tree.sealed.store(sealed, Ordering::SeqCst);
    }

    pub(crate) fn into_parts(self) -> (TempDir, Mounted<TestTree>) {
        (self.dir, self.mounted)
    }

    pub(crate) fn unmount(self) -> TempDir {
        let (dir, mounted) = self.into_parts();
        mounted.unmount().unwrap();
        dir
    }
}

pub(crate) fn can_mount(test: &str) -> bool {
    let missing = if !nix::unistd::geteuid().is_root() {
        "root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else {
        return true;
    };
    eprintln!("SKIPPED {test}: {missing}");
    false
}

/// A directory that other users may enter, with an empty `mnt` and a `store`.
pub(crate) fn prepared() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["mnt", "store/ro", "store/rw", "store/hidden"] {
        fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    dir
}

pub(crate) fn mount_in(dir: &Path, tree: TestTree) -> Mounted<TestTree> {
    let options = MountOptions { fs_name: "trainyard-test".into(), threads: 2 };
    mount(&dir.join("store"), &dir.join("mnt"), tree, &options).unwrap()
}

/// This test binary again, as a process of its own that serves `dir` until it is killed.
pub(crate) fn spawn_server(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve_until_killed", "--nocapture"])
        .env("TRAINYARD_FS_SERVE", dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Passthrough came with Linux 6.9.
pub(crate) fn kernel_passes_through(test: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|text| text.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) >= (Some(6), Some(9)) {
        return true;
    }
    eprintln!("SKIPPED {test}: Linux 6.9");
    false
}

pub(crate) fn is_mounted(mountpoint: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().any(|line| line.split(' ').nth(4) == mountpoint.to_str())
}

/// Waits for `condition`, at most for `bound`.
pub(crate) fn until(bound: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + bound;
    while !condition() {
        assert!(Instant::now() < end, "not within {bound:?}");
        std::thread::yield_now();
    }
}
