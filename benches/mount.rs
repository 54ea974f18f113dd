//! The mount beside the directory that it shows, beside `bindfs` of that directory, and beside `overlayfs` of it, which shows what the
//! kernel itself takes to go through two file systems: all on ext4 on a loop device on a tmpfs, so that no disk's noise hides the
//! difference. Each figure is the best of many rounds, which take turns.
//!
//!     cargo bench --bench mount
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark drives processes"
)]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use support::{Instance, wait_for};

const ROUNDS: usize = 5;
/// What takes a moment is done so long, however many rounds that is: other work on the machine comes between.
const LONG_ENOUGH: Duration = Duration::from_secs(8);
const LARGE: usize = 512 << 20;
/// Less than a part of a log may have.
const LOGGED: usize = 128 << 20;
const SMALL_FILES: usize = 5000;
const SMALL: usize = 16 << 10;
const CREATED: usize = 2000;
/// Directories of a thousand files for `find`, and for the memory of a million inodes.
const WALKED: usize = 100;
const KNOWN: usize = 1000;

fn main() {
    let Some(disk) = Disk::new() else {
        println!("mount: SKIPPED: it takes root, losetup and mkfs.ext4");
        return;
    };
    let instance = disk.instance();
    let places = Places::new(&instance, &disk);
    println!("{:<52}{:>12}{:>12}{:>8}{:>12}{:>12}", "", "directory", "mount", "of it", "bindfs", "overlayfs");
    row(&places, "read 512 MiB of a version, MB/s", |place| {
        LARGE as f64 / 1e6 / read_through(&place.version.join("large"))
    });
    random_reads(&places, "a version", |place| place.version.join("large"));
    row(&places, "5000 files of 16 KiB of a version, 1000/s", |place| {
        SMALL_FILES as f64 / 1e3 / read_all(&place.version)
    });
    // What is shown directly, and what the mount process serves.
    for (name, part) in [("code", (|place| &place.code) as fn(&Place) -> &PathBuf), ("draft", |place| &place.draft)] {
        row(&places, &format!("{name}: read 512 MiB, MB/s"), |place| {
            LARGE as f64 / 1e6 / read_through(&part(place).join("large"))
        });
        random_reads(&places, name, |place| part(place).join("large"));
        row(&places, &format!("{name}: write 256 MiB and fsync, MB/s"), |place| {
            268.4 / write_and_sync(&part(place).join(place.own("w")))
        });
        row(&places, &format!("{name}: create, write 4 KiB, close, 1000/s"), |place| {
            CREATED as f64 / 1e3 / create(&part(place).join(place.own("c")))
        });
        row(&places, &format!("{name}: find over 100,000 entries, 1000/s"), |place| {
            101.0 / find(&part(place).join("tree"))
        });
    }
    // What the kernel reads past the mount process.
    row(&places, "model: read 512 MiB, MB/s", |place| LARGE as f64 / 1e6 / read_through(&place.model));
    random_reads(&places, "model", |place| place.model.clone());
    row(&places, "log: read 128 MiB, MB/s", |place| LOGGED as f64 / 1e6 / read_through(&place.log));
    random_reads(&places, "log", |place| place.log.clone());
    memory(&instance, &places);
    drop(places);
    instance.shutdown();
}

/// Where the same things are seen from.
struct Place {
    name: &'static str,
    version: PathBuf,
    code: PathBuf,
    draft: PathBuf,
    model: PathBuf,
    log: PathBuf,
}

impl Place {
    fn own(&self, what: &str) -> String {
        format!("{what}-{}", self.name)
    }
}

/// The directory and the mount, and of the others those that are there.
struct Places {
    all: Vec<Place>,
    others: Vec<PathBuf>,
}

impl Places {
    fn new(instance: &Instance, disk: &Disk) -> Self {
        let backing = instance.root().join("var/lib/trainyard/workspaces/default");
        let shown = instance.mount();
        wait_for("the mount", || shown.join("code").is_dir().then_some(()));
        fill(&shown);
        let leaves = format!("head -c {LARGE} /dev/zero > /model/large; yes | head -c {LOGGED}");
        let report = instance.run_job("leaves", &format!("command = {leaves:?}"));
        assert_eq!(report["state"], "succeeded", "{report:#}");
        let others: Vec<(&str, PathBuf)> = ["bindfs", "overlayfs"]
            .map(|name| (name, disk.path.join(name)))
            .into_iter()
            .filter(|(name, at)| disk.mount(name, &backing, at))
            .collect();
        let place = |name, top: &Path| Place {
            name,
            version: top.join("datasets/d/v1"),
            code: top.join("code"),
            draft: top.join("datasets/e/draft"),
            model: top.join("models/leaves/1/large"),
            log: top.join("jobs/leaves/runs/1/attempts/1/main-0/stdout.log"),
        };
        let mut all = vec![place("directory", &backing), place("mount", &shown)];
        all.extend(others.iter().map(|(name, at)| place(name, at)));
        Self { all, others: others.into_iter().map(|(_, at)| at).collect() }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for other in &self.others {
            let _ = Command::new("umount").arg(other).status();
        }
    }
}

fn fill(shown: &Path) {
    let (draft, other) = (shown.join("datasets/d/draft"), shown.join("datasets/e/draft"));
    fs::create_dir_all(&draft).unwrap();
    fs::create_dir_all(&other).unwrap();
    for number in 0..SMALL_FILES {
        fs::write(draft.join(format!("{number:05}")), vec![number as u8; SMALL]).unwrap();
    }
    for place in [draft.join("large"), other.join("large"), shown.join("code/large")] {
        let mut file = File::create(place).unwrap();
        (0..LARGE >> 20).for_each(|number| file.write_all(&vec![number as u8; 1 << 20]).unwrap());
    }
    fs::rename(&draft, shown.join("datasets/d/v1")).unwrap();
    tree(&shown.join("code/tree"), WALKED);
    tree(&other.join("tree"), WALKED);
    for place in ["datasets/d/v1", "code"].map(|place| shown.join(place)) {
        wait_for("it to be shown directly", || {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            mounts.contains(&format!(" {} ", place.display())).then_some(())
        });
    }
}

fn tree(top: &Path, directories: usize) {
    for directory in 0..directories {
        let directory = top.join(format!("{directory:04}"));
        fs::create_dir_all(&directory).unwrap();
        (0..1000).for_each(|number| drop(File::create(directory.join(format!("{number:04}"))).unwrap()));
    }
}

/// One line: the best of each place, and how much of the directory's the mount has.
fn row(places: &Places, title: &str, measure: impl Fn(&Place) -> f64) {
    let mut best = vec![0.0f64; places.all.len()];
    let (began, mut rounds) = (Instant::now(), 0);
    while rounds < ROUNDS || began.elapsed() < LONG_ENOUGH {
        for (place, best) in places.all.iter().zip(&mut best) {
            *best = best.max(measure(place));
        }
        rounds += 1;
    }
    let of = |name: &str| {
        let at = places.all.iter().position(|place| place.name == name);
        at.map_or("absent".to_owned(), |at| format!("{:.1}", best[at]))
    };
    let share = best[1] / best[0] * 100.0;
    println!("{title:<52}{:>12.1}{:>12.1}{share:>7.0}%{:>12}{:>12}", best[0], best[1], of("bindfs"), of("overlayfs"));
}

/// Of what lies in the kernel's memory, and of what it has to get from the disk.
fn random_reads(places: &Places, what: &str, file: impl Fn(&Place) -> PathBuf) {
    row(places, &format!("{what}: random reads of 4 KiB, 1000/s"), |place| 20.0 / read_at_random(&file(place)));
    let stored = File::open(file(&places.all[0])).unwrap();
    row(places, &format!("{what}: random reads of 4 KiB from the disk, 1000/s"), |place| {
        stored.sync_all().unwrap();
        posix_fadvise(&stored, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        20.0 / read_at_random(&file(place))
    });
}

/// Seconds.
fn timed(work: impl FnOnce()) -> f64 {
    let from = Instant::now();
    work();
    from.elapsed().as_secs_f64()
}

fn read_through(path: &Path) -> f64 {
    let (mut file, mut buffer) = (File::open(path).unwrap(), vec![0; 1 << 20]);
    timed(|| {
        while file.read(&mut buffer).unwrap() > 0 {
            black_box(&buffer);
        }
    })
}

/// 20,000 of them.
fn read_at_random(path: &Path) -> f64 {
    let (file, mut buffer, mut at) = (File::open(path).unwrap(), [0; 4096], 1u64);
    let blocks = file.metadata().unwrap().len() / 4096;
    timed(|| {
        for _ in 0..20_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            file.read_exact_at(&mut buffer, (at >> 33) % blocks * 4096).unwrap();
        }
    })
}

fn read_all(version: &Path) -> f64 {
    timed(|| {
        (0..SMALL_FILES).for_each(|number| drop(black_box(fs::read(version.join(format!("{number:05}"))).unwrap())))
    })
}

fn write_and_sync(path: &Path) -> f64 {
    let _ = fs::remove_file(path);
    let block = vec![7; 1 << 20];
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
    timed(|| {
        (0..256).for_each(|_| file.write_all(&block).unwrap());
        file.sync_all().unwrap();
    })
}

fn create(directory: &Path) -> f64 {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir(directory).unwrap();
    let block = [7; 4096];
    timed(|| (0..CREATED).for_each(|number| fs::write(directory.join(number.to_string()), block).unwrap()))
}

fn find(top: &Path) -> f64 {
    timed(|| {
        let found = Command::new("find").arg(top).args(["-newermt", "2001-01-01", "-printf", "."]).output().unwrap();
        assert_eq!(found.stdout.len(), WALKED * 1001 + 1);
    })
}

/// Of the mount process with a million inodes that the kernel knows, and after it has forgotten them.
fn memory(instance: &Instance, places: &Places) {
    let [native, mount, ..] = places.all.as_slice() else { return };
    tree(&native.draft.join("million"), KNOWN);
    let pid = mount_process(instance);
    let before = resident_mib(pid);
    let found =
        Command::new("find").arg(mount.draft.join("million")).args(["-newermt", "2001-01-01", "-printf", "."]).output();
    assert_eq!(found.unwrap().stdout.len(), KNOWN * 1001 + 1);
    let (known, descriptors) = (resident_mib(pid), fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count());
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    // The kernel forgets by and by.
    let mut least = known;
    for _ in 0..50 {
        std::thread::park_timeout(Duration::from_millis(100));
        least = least.min(resident_mib(pid));
    }
    println!(
        "memory of the mount: {before:.0} MiB; {known:.0} with 1,001,001 inodes known, {descriptors} descriptors; {least:.0} after they were forgotten"
    );
}

fn mount_process(instance: &Instance) -> i32 {
    let root = instance.root().display().to_string();
    let found = support::pids_with(&root);
    found.into_iter().find(|(_, words)| words.contains(" mount")).map(|(pid, _)| pid).unwrap()
}

fn resident_mib(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}

/// ext4 on a loop device on a tmpfs.
struct Disk {
    path: PathBuf,
}

impl Disk {
    fn new() -> Option<Self> {
        let path = PathBuf::from(format!("/tmp/trainyard-bench-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let disk = Self { path: path.join("ext4") };
        let sh = format!(
            "set -e; mount -t tmpfs -o size=8G bench {p}; truncate -s 7500M {p}/image; mkfs.ext4 -q -N 1500000 {p}/image; mkdir {p}/ext4; mount -o loop {p}/image {p}/ext4",
            p = path.display()
        );
        let made = Command::new("sh").args(["-c", &sh]).status().ok()?;
        made.success().then_some(disk)
    }

    /// Shows `backing` at `at` by another file system; `false` where this machine has none of that name.
    fn mount(&self, name: &str, backing: &Path, at: &Path) -> bool {
        fs::create_dir(at).unwrap();
        let mounted = if name == "bindfs" {
            Command::new("bindfs").arg(backing).arg(at).status()
        } else {
            let (upper, work) = (self.path.join("upper"), self.path.join("work"));
            for directory in [&upper, &work] {
                fs::create_dir(directory).unwrap();
            }
            let parts = [("lowerdir", backing), ("upperdir", &upper), ("workdir", &work)];
            let options = parts.map(|(key, path)| format!("{key}={}", path.display())).join(",");
            Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay"]).arg(at).status()
        };
        mounted.is_ok_and(|status| status.success())
    }

    fn instance(&self) -> Instance {
        support::in_directory(&self.path);
        Instance::start("bench mount", "").unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let Some(top) = self.path.parent() else { return };
        for mounted in [self.path.as_path(), top] {
            let _ = Command::new("umount").arg(mounted).status();
        }
        let _ = fs::remove_dir(top);
    }
}
