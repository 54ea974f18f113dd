//! The time and the memory of unpacking an image, beside `umoci unpack` and `skopeo copy` of the same: into a storage,
//! where it unpacks as well, and into a layout, where it only copies.
//!
//!     cargo bench --bench unpack [-- large | OCI-LAYOUT:TAG]
//!
//! Without an image, the one of the tests; `large` is that with 1 GiB of this machine's own files on top. Each runs in a
//! process of its own; the best of three.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark drives processes"
)]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;
#[path = "../tests/support/workspaces.rs"]
mod workspaces;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trainyard::images::{Format, Images, Limits, Local, Progress, Rights, Sources};
use trainyard::sys::process::SealedProgram;

use workspaces::AnybodyMay;

const ROUNDS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, image, target] = arguments.as_slice()
        && verb == "import"
    {
        return import(image, Path::new(target));
    }
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let named = arguments.iter().skip(1).find(|argument| argument.contains(':'));
    let image = match named {
        Some(image) => image.clone(),
        None if arguments.iter().any(|argument| argument == "large") => large(scratch.path()),
        None => format!("{}:py", support::images::debian().display()),
    };
    println!("{:<28}{:>10}{:>12}", "unpack", "best, s", "memory, MiB");
    let me = std::env::current_exe().unwrap().display().to_string();
    let source = format!("oci:{image}");
    let mut best = COMPETITORS.map(|_| (Duration::MAX, 0));
    for _ in 0..ROUNDS {
        for (name, best) in COMPETITORS.iter().zip(&mut best) {
            let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let target = scratch.path().join("target").display().to_string();
            let (layout, storage) = (format!("oci:{target}:t"), storage(&target));
            let command: Vec<&str> = match *name {
                "trainyard" => vec![&me, "import", &image, &target],
                "umoci unpack" => vec!["umoci", "unpack", "--image", &image, &target],
                "skopeo copy into a storage" => vec!["skopeo", "copy", "--quiet", &source, &storage],
                _ => vec!["skopeo", "copy", "--quiet", &source, &layout],
            };
            let (time, memory) = measure(&command);
            *best = if time < best.0 { (time, memory) } else { *best };
        }
    }
    for (name, (time, memory)) in COMPETITORS.iter().zip(best) {
        println!("{name:<28}{:>10.2}{:>12.1}", time.as_secs_f64(), memory as f64 / 1024.0);
    }
}

/// The image of the tests with another layer, of files of this machine until they are 1 GiB.
fn large(scratch: &Path) -> String {
    let (files, layout) = (scratch.join("files"), scratch.join("layout"));
    let script = "import os, shutil, sys
left, target = 1 << 30, sys.argv[1]
for directory, _, names in os.walk('/usr'):
    for name in names:
        path = os.path.join(directory, name)
        if os.path.islink(path) or not os.path.isfile(path) or left <= 0:
            continue
        left -= os.path.getsize(path)
        os.makedirs(target + directory, exist_ok=True)
        shutil.copyfile(path, target + path)";
    let image = format!("{}:py", layout.display());
    let [files, layout] = [&files, &layout].map(|path| path.display().to_string());
    let original = support::images::debian().display().to_string();
    for words in [
        &["/usr/bin/python3", "-c", script, &files][..],
        &["cp", "-r", &original, &layout],
        &["umoci", "insert", "--image", &image, &files, "/machine"],
    ] {
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    std::fs::remove_dir_all(&files).unwrap();
    image
}

const COMPETITORS: [&str; 4] = ["trainyard", "umoci unpack", "skopeo copy into a storage", "skopeo copy into a layout"];

/// A storage of containers, of directories alone: nothing of it stays mounted.
fn storage(target: &str) -> String {
    format!("containers-storage:[vfs@{target}/graph+{target}/run]bench:latest")
}

/// Wall time, and the most memory in KiB as the kernel has it for the ended child.
fn measure(words: &[&str]) -> (Duration, u64) {
    let script = "import resource,subprocess,sys\nsubprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let from = Instant::now();
    let output = Command::new("/usr/bin/python3").args(["-c", script]).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    (from.elapsed(), String::from_utf8_lossy(&output.stdout).trim().parse().unwrap())
}

fn import(image: &str, target: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let limits =
        Limits { layer_bytes: 1 << 40, layer_entries: 1 << 40, unused_after: Duration::MAX, store_bytes: None };
    let sources = Sources {
        default_registry: "docker.io".into(),
        plain_http: Vec::new(),
        secrets: target.join("none"),
        program: Arc::new(SealedProgram::of_this_program().unwrap()),
        runtime: runtime.handle().clone(),
    };
    let images = Images::open(target, limits, sources, Arc::new(AnybodyMay)).unwrap();
    let (layout, tag) = image.rsplit_once(':').unwrap();
    let rights = Rights { uid: 0, gid: 0, groups: &[] };
    let local = Local { path: Path::new(layout), format: Format::Layout, tag: Some(tag), workspace: "default" };
    images.import(&local, rights, &Arc::new(Progress::default())).unwrap();
}
