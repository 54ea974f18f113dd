//! How much workspaces may keep on the disk.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use serde_json::Value;

use crate::support::{BINARY, Instance, has_tools, pids_with, text, wait_for};

const MIB: u64 = 1 << 20;

/// The appliance's file with `storage` for workspaces.
fn config(storage: &str) -> String {
    let rest = "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"2s\"\n[network]\nrange = \"10.213.0.0/16\"\n";
    format!("{rest}{storage}\n")
}

fn edit(instance: &Instance, storage: &str) {
    fs::write(instance.root().join("etc/trainyard/trainyard.toml"), config(storage)).unwrap();
}

/// What `trainyard workspace` tells of the default workspace.
fn told(instance: &Instance) -> Value {
    let all: Vec<Value> = serde_json::from_str(&instance.ok(&["workspace", "--json"])).unwrap();
    all.into_iter().find(|view| view["workspace"] == "default").unwrap()
}

/// Bytes of size, used and available as `df` has them.
fn df(path: &Path) -> (u64, u64, u64) {
    try_df(path).unwrap()
}

/// `None` while no mount is there.
fn try_df(path: &Path) -> Option<(u64, u64, u64)> {
    let output = Command::new("df").args(["--block-size=1", "--output=size,used,avail"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u64> = text.lines().nth(1)?.split_whitespace().map(|word| word.parse().unwrap()).collect();
    Some((numbers[0], numbers[1], numbers[2]))
}

fn is_near(a: u64, b: u64, of: u64) -> bool {
    a.abs_diff(b) <= of / 100
}

/// Waits until `df` and `trainyard workspace` agree that so many bytes are kept.
fn wait_used(instance: &Instance, used: u64) {
    let mount = instance.mount();
    let mut last = (0, Value::Null);
    let agree = || {
        last = (try_df(&mount)?.1, told(instance));
        let quota = last.1["quota"].as_u64()?;
        let both = [last.0, last.1["used"].as_u64()?];
        both.iter().all(|seen| is_near(*seen, used, quota)).then_some(())
    };
    wait_for(&format!("{used} bytes to be kept"), agree);
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

const FULL: Option<i32> = Some(Errno::EDQUOT as i32);

#[test]
fn a_workspace_keeps_no_more_than_its_quota_which_grows_while_it_is_used() {
    let test = "a_workspace_keeps_no_more_than_its_quota_which_grows_while_it_is_used";
    let storage = "[workspaces.default]\nstorage = \"16MiB\"";
    let Some(mut instance) = Instance::start(test, &config(storage)) else { return };
    let mount = instance.mount();
    let shown = wait_for("the quota", || Some(df(&mount)).filter(|(size, ..)| *size == 16 * MIB));
    assert!(shown.2 <= 16 * MIB, "{shown:?}");
    assert!(statvfs(&instance.root().join("srv/trainyard")).unwrap().blocks() > 16 * MIB / 512, "the disk's own");
    assert!(df(&mount.join("code")).0 == 16 * MIB && df(&mount.join("jobs")).0 == 16 * MIB);
    let path = mount.join("code/data");
    let file = fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.write_all_at(&vec![1; 10 << 20], 0).unwrap();
    wait_used(&instance, 10 * MIB);
    assert_eq!(errno(file.write_all_at(&vec![1; 8 << 20], 10 << 20)), FULL);
    let written = file.metadata().unwrap().len();
    assert!((10 * MIB..=16 * MIB).contains(&written), "{written}");
    file.set_len(10 * MIB).unwrap();
    assert_eq!(errno(file.set_len(20 * MIB)), FULL);
    let space = |length| fallocate(&file, FallocateFlags::empty(), 10 << 20, length).map_err(Into::into);
    assert_eq!(errno(space(8 << 20)), FULL);
    space(1 << 20).unwrap();
    wait_used(&instance, 11 * MIB);
    let copied = Command::new("cp").arg(&path).arg(mount.join("code/again")).output().unwrap();
    assert!(String::from_utf8_lossy(&copied.stderr).contains("quota exceeded"), "{copied:?}");
    fs::remove_file(mount.join("code/again")).unwrap();
    fs::hard_link(&path, mount.join("code/other")).unwrap();
    fs::remove_file(&path).unwrap();
    wait_used(&instance, 11 * MIB);
    fs::remove_file(mount.join("code/other")).unwrap();
    wait_used(&instance, 11 * MIB);
    drop(file);
    wait_used(&instance, 0);
    fs::write(&path, vec![1; 15 << 20]).unwrap();
    assert_eq!(errno(fs::write(mount.join("code/more"), vec![1; 2 << 20])), FULL);
    edit(&instance, "[workspaces.default]\nstorage = \"64MiB\"");
    wait_for("the larger quota", || (df(&mount).0 == 64 * MIB).then_some(()));
    fs::write(mount.join("code/more"), vec![1; 2 << 20]).unwrap();
    wait_used(&instance, 17 * MIB);
    // What a mapping fills a hole with is refused when it is written.
    fs::File::create(mount.join("code/hole")).unwrap().set_len(30 << 20).unwrap();
    fs::write(mount.join("code/fill"), vec![1; 25 << 20]).unwrap();
    let script = "import mmap, sys\nfile = open(sys.argv[1], 'r+b')\nmap = mmap.mmap(file.fileno(), 0)\n\
                  map[:] = b'x' * len(map)\nmap.flush()";
    let mapped = Command::new("/usr/bin/python3").args(["-c", script]).arg(mount.join("code/hole")).output().unwrap();
    let said = String::from_utf8_lossy(&mapped.stderr);
    assert!(said.contains("line 5, in") && said.contains("quota exceeded"), "{mapped:?}");
    assert!(told(&instance)["used"].as_u64().unwrap() <= 64 * MIB);
    fs::remove_file(mount.join("code/hole")).unwrap();
    fs::remove_file(mount.join("code/fill")).unwrap();
    wait_used(&instance, 17 * MIB);
    // What is wrong changes nothing.
    edit(&instance, "[workspaces.default]\nstorage = \"plenty\"");
    let line = instance.wait_for_log("what was in force stays");
    assert!(line.contains("workspaces.default.storage"), "{line}");
    assert_eq!(df(&mount).0, 64 * MIB);
    edit(&instance, "[workspaces.default]\nstorage = \"12MiB\"\n[gpu]\ncdi = [\"/etc/cdi\"]");
    instance.wait_for_log("these keys act when the daemon is restarted");
    wait_for("the smaller quota", || (df(&mount).2 == 0).then_some(()));
    assert_eq!(errno(fs::write(mount.join("code/third"), "x")), FULL);
    fs::remove_file(mount.join("code/data")).unwrap();
    wait_used(&instance, 2 * MIB);
    // Who begins anew counts anew, and with it what others have changed behind the mount.
    fs::write(instance.root().join("var/lib/trainyard/workspaces/default/code/behind"), vec![1; 1 << 20]).unwrap();
    instance.kill_daemon();
    let lock = fs::read_to_string(instance.root().join("run/trainyard/mount.lock")).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(lock.trim().parse().unwrap()), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    // As when the machine is started: what was known last is in force at once, and counted anew.
    fs::remove_dir_all(instance.root().join("run/trainyard/storage")).unwrap();
    let kept = instance.root().join("var/lib/trainyard/storage");
    assert!(fs::read_to_string(kept.join("quotas.json")).unwrap().contains("\"limit\":12582912"));
    fs::write(kept.join("counted.json"), "{\"default\": 12582912}").unwrap();
    instance.start_daemon(&[]);
    let line = instance.wait_for_log("nothing is started in this workspace");
    assert!(line.contains("keeps 12MiB of the 12MiB"), "{line}");
    instance.wait_ready();
    wait_used(&instance, 3 * MIB);
    edit(&instance, "");
    wait_for("the disk's own size", || (df(&mount).0 > 64 * MIB).then_some(()));
    assert_eq!(told(&instance)["quota"], Value::Null);
    instance.shutdown();
}

/// A change of `name` in `top`, or of it and `other`; what cannot be done is no matter.
fn change(top: &Path, kind: u64, name: u64, other: u64, size: u64) -> std::io::Result<()> {
    let path = |number: u64| top.join(format!("f{number}"));
    let open = || fs::File::options().create(true).truncate(false).read(true).write(true).open(path(name));
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let length = i64::try_from(size).unwrap();
    match kind {
        0 | 1 => open()?.write_all_at(&vec![7; usize::try_from(size).unwrap()], size / 2),
        2 => open()?.set_len(size),
        3 => Ok(fallocate(open()?, FallocateFlags::empty(), length / 2, length + 1)?),
        4 => Ok(fallocate(open()?, punch, 0, length + 1)?),
        5 => fs::rename(path(name), path(other)),
        6 => fs::hard_link(path(name), path(other)),
        7 => fs::remove_file(path(name)),
        8 => fs::create_dir(top.join(format!("d{name}"))),
        9 => fs::remove_dir(top.join(format!("d{name}"))),
        10 => fs::copy(path(name), path(other)).map(drop),
        _ => std::os::unix::fs::symlink("x".repeat(100), path(name)),
    }
}

#[test]
fn after_any_changes_by_several_writers_what_is_counted_is_what_du_finds() {
    let test = "after_any_changes_by_several_writers_what_is_counted_is_what_du_finds";
    let Some(instance) = Instance::start(test, &config("[workspaces.default]\nstorage = \"8MiB\"")) else { return };
    let top = instance.mount().join("code");
    wait_for("the quota", || (df(&top).0 == 8 * MIB).then_some(()));
    let writer = |seed: u64| {
        let top = top.clone();
        std::thread::spawn(move || {
            let mut state = seed;
            let mut next = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let of = |result: std::io::Result<()>| u32::from(errno(result) == FULL);
            (0..2000).map(|_| of(change(&top, next(12), next(12), next(12), next(1 << 20)))).sum::<u32>()
        })
    };
    let writers: Vec<_> = (1..=3).map(writer).collect();
    let refused: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    assert!(refused > 0, "they never came to the quota");
    let home = instance.root().join("var/lib/trainyard/workspaces/default");
    let du = || {
        let output = Command::new("du")
            .args(["-sc", "--block-size=1"])
            .args([home.join("code"), home.join("datasets")])
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        text.lines().last().unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    // Until all is written, the disk itself does not know exactly.
    let agree = || is_near(du(), told(&instance)["used"].as_u64()?, 8 * MIB).then_some(());
    wait_for("du to find what is counted", agree);
    instance.shutdown();
}

#[test]
fn who_is_in_code_when_a_quota_comes_is_counted_though_not_held_up() {
    let test = "who_is_in_code_when_a_quota_comes_is_counted_though_not_held_up";
    let Some(instance) = Instance::start(test, &config("")) else { return };
    let code = instance.mount().join("code");
    let table = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    wait_for("code/ to be shown directly", || table().contains(code.to_str().unwrap()).then_some(()));
    let file = fs::File::options().create_new(true).write(true).open(code.join("old")).unwrap();
    edit(&instance, "[workspaces.default]\nstorage = \"64MiB\"");
    wait_for("code/ to be the mount's", || (!table().contains(code.to_str().unwrap())).then_some(()));
    wait_used(&instance, 0);
    file.write_all_at(&vec![1; 20 << 20], 0).unwrap();
    wait_used(&instance, 20 * MIB);
    // Again and again, as long as they are there.
    file.write_all_at(&vec![1; 50 << 20], 20 << 20).unwrap();
    wait_used(&instance, 70 * MIB);
    assert_eq!(errno(fs::write(code.join("new"), "x")), FULL);
    drop(file);
    instance.shutdown();
}

#[test]
fn versions_that_share_files_are_counted_once_and_a_removed_one_no_more() {
    let test = "versions_that_share_files_are_counted_once_and_a_removed_one_no_more";
    let Some(instance) = Instance::start(test, &config("[workspaces.default]\nstorage = \"64MiB\"")) else {
        return;
    };
    let dataset = instance.mount().join("datasets/set");
    for version in ["v1", "v2"] {
        fs::create_dir_all(dataset.join("draft")).unwrap();
        fs::write(dataset.join("draft/large"), vec![7; 20 << 20]).unwrap();
        fs::rename(dataset.join("draft"), dataset.join(version)).unwrap();
        let manifest = dataset.join(format!("{version}.MANIFEST"));
        wait_for("the manifest", || {
            fs::read_to_string(&manifest).ok().filter(|text| text.contains("state complete")).map(drop)
        });
        wait_used(&instance, 20 * MIB);
    }
    instance.ok(&["dataset", "rm", "set@v1"]);
    wait_used(&instance, 20 * MIB);
    instance.ok(&["dataset", "rm", "set@v2"]);
    wait_used(&instance, 0);
    instance.shutdown();
}

#[test]
fn versions_do_not_begin_to_go_where_a_quota_is_and_other_directories_are_copied() {
    let test = "versions_do_not_begin_to_go_where_a_quota_is_and_other_directories_are_copied";
    let Some(mut instance) = Instance::prepare(test, &config("[workspaces.lab]\nstorage = \"64MiB\"")) else { return };
    for name in ["lab", "free"] {
        fs::create_dir(instance.jobs_d().join(name)).unwrap();
    }
    instance.start_daemon(&[]);
    instance.wait_ready();
    let datasets = |home: &str| instance.mount().with_file_name(home).join("datasets");
    wait_for("the quota", || (try_df(&datasets("lab"))?.0 == 64 * MIB).then_some(()));
    wait_for("the other workspace", || datasets("free").is_dir().then_some(()));
    let set = datasets("default").join("set");
    fs::create_dir_all(set.join("draft")).unwrap();
    fs::write(set.join("draft/file"), "content").unwrap();
    instance.ok(&["dataset", "publish", "set", "v1"]);
    let moved = Command::new("mv").arg("-T").arg(&set).arg(datasets("lab").join("set")).output().unwrap();
    let said = String::from_utf8_lossy(&moved.stderr).into_owned();
    assert!(!moved.status.success() && said.contains("Operation not permitted"), "{said}");
    assert!(!datasets("lab").join("set").exists() && set.join("v1/file").exists());
    // Where none is, they go.
    for (from, to) in [("default", "free"), ("free", "preset"), ("preset", "default")] {
        fs::rename(datasets(from).join("set"), datasets(to).join("set")).unwrap();
        assert_eq!(errno(fs::write(datasets(to).join("set/v1/file"), "x")), Some(Errno::EROFS as i32), "{to}");
    }
    fs::create_dir(datasets("default").join("plain")).unwrap();
    let plain = fs::rename(datasets("default").join("plain"), datasets("lab").join("plain"));
    assert_eq!(errno(plain), Some(Errno::EXDEV as i32));
    instance.shutdown();
}

#[test]
fn what_jobs_write_counts_and_the_next_run_waits_for_room() {
    let test = "what_jobs_write_counts_and_the_next_run_waits_for_room";
    let storage = "[workspaces.default]\nstorage = \"32MiB\"\n[workspaces.other]\nstorage = \"1GiB\"";
    let Some(mut instance) = Instance::prepare(test, &config(storage)) else { return };
    fs::create_dir(instance.jobs_d().join("other")).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    let writes = "command = \"head -c 40M /dev/zero > /output/large; while [ ! -e /output/go ]; do sleep 0.02; done\"";
    instance.drop_job("writes", writes);
    instance.wait_state("writes", "running");
    // While it runs it is measured every now and then.
    let line = instance.wait_for_log("nothing is started in this workspace");
    assert!(line.contains("keeps 40.") && line.contains("of the 32MiB"), "{line}");
    let report = wait_for("the alarm", || {
        instance.report("writes").filter(|report| text(&report["reason"]).contains("no room: workspace default keeps"))
    });
    assert_eq!(report["state"], "running");
    assert!(instance.ok(&["events", "writes"]).contains("alarm: no room: workspace default keeps"));
    wait_used(&instance, 40 * MIB);
    assert_eq!(errno(fs::write(instance.mount().join("code/x"), "x")), FULL);
    instance.drop_job("next", "command = \"true\"");
    let next = instance.wait_state("next", "waiting");
    let reason = text(&next["reason"]);
    for part in ["waits for room", "of the 32MiB", "workspaces.default.storage", "trainyard workspace default"] {
        assert!(reason.contains(part), "{reason}");
    }
    // Others have their own.
    instance.drop_job("other/free", "command = \"true\"");
    assert_eq!(instance.wait_end("other/free", 1)["state"], "succeeded");
    fs::write(instance.run_dir("writes", 1).join("output/go"), "").unwrap();
    assert_eq!(instance.wait_end("writes", 1)["state"], "succeeded");
    // Also after a restart, before anything is measured anew.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(instance.wait_state("next", "waiting")["attempt"], 0);
    let shown = instance.ok(&["workspace", "default"]);
    assert!(shown.contains("no room: workspace default keeps") && shown.contains("writes 40"), "{shown}");
    edit(&instance, "[workspaces.default]\nstorage = \"1GiB\"");
    assert_eq!(instance.wait_end("next", 1)["state"], "succeeded");
    edit(&instance, storage);
    wait_for("the smaller quota", || text(&told(&instance)["note"]).contains("of the 32MiB").then_some(()));
    instance.drop_job("last", "command = \"true\"");
    instance.wait_state("last", "waiting");
    // Room that is made by a removal is noticed as well.
    fs::remove_file(instance.jobs_d().join("writes.toml")).unwrap();
    wait_for("the removal", || instance.cli(&["rm", "writes"]).status.success().then_some(()));
    assert_eq!(instance.wait_end("last", 1)["state"], "succeeded");
    instance.shutdown();
}

/// The appliance's file with a quota for `public/`.
fn public_storage(bytes: &str) -> String {
    config("").replacen("[limits]", &format!("[limits]\npublic_storage = \"{bytes}\""), 1)
}

#[test]
fn what_all_workspaces_see_has_a_quota_of_its_own() {
    let test = "what_all_workspaces_see_has_a_quota_of_its_own";
    let Some(instance) = Instance::start(test, &public_storage("8MiB")) else { return };
    let public = instance.mount().with_file_name("public");
    wait_for("the quota", || Some(df(&public)).filter(|(size, ..)| *size == 8 * MIB));
    assert!(df(&instance.mount()).0 > 8 * MIB && df(&public.with_file_name("preset")).0 > 8 * MIB);
    let draft = public.join("datasets/d/draft");
    fs::create_dir_all(&draft).unwrap();
    fs::write(draft.join("half"), vec![1; 4 << 20]).unwrap();
    for place in [draft.join("more"), public.join("code/more")] {
        assert_eq!(errno(fs::write(&place, vec![1; 6 << 20])), FULL, "{}", place.display());
        fs::remove_file(place).unwrap();
    }
    let listed = || -> Option<(u64, u64)> {
        let all: Vec<Value> = serde_json::from_str(&instance.ok(&["workspace", "--json"])).unwrap();
        let public = all.into_iter().find(|view| view["workspace"] == "public")?;
        Some((public["used"].as_u64()?, public["quota"].as_u64()?))
    };
    wait_for("it to be told", || listed().filter(|told| is_near(told.0, 4 * MIB, 8 * MIB) && told.1 == 8 * MIB));
    let detail = instance.ok(&["workspace", "public"]);
    assert!(detail.contains("datasets") && !detail.contains("models"), "{detail}");
    assert!(instance.ok(&["workspace", "preset"]).contains("datasets"), "without a quota as well");
    // By anybody, into another one's as well; and no workspace is held up.
    assert_eq!(instance.run_job("runs", "command = \"true\"")["state"], "succeeded");
    fs::write(instance.root().join("etc/trainyard/trainyard.toml"), public_storage("16MiB")).unwrap();
    wait_for("more room", || Some(df(&public)).filter(|(size, ..)| *size == 16 * MIB));
    fs::write(draft.join("more"), vec![1; 6 << 20]).unwrap();
    instance.shutdown();
}

#[test]
fn workspaces_are_shown_to_those_who_may_enter_them() {
    let test = "workspaces_are_shown_to_those_who_may_enter_them";
    let storage = "[limits]\ncpu = 16\nworkspace_storage = \"1GiB\"\n[workspaces.free]\nstorage = \"unlimited\"";
    let Some(mut instance) = Instance::prepare(test, storage) else { return };
    for (workspace, mode) in [("free", 0o755), ("closed", 0o700)] {
        let directory = instance.jobs_d().join(workspace);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    }
    instance.start_daemon(&[]);
    instance.wait_ready();
    let seen = |text: &str| -> Vec<(String, Option<u64>)> {
        let all: Vec<Value> = serde_json::from_str(text).unwrap();
        all.iter().map(|view| (crate::support::text(&view["workspace"]), view["quota"].as_u64())).collect()
    };
    let gib = Some(1 << 30);
    let wanted: Vec<_> =
        [("closed", gib), ("default", gib), ("free", None)].map(|(name, quota)| (name.to_owned(), quota)).into();
    assert_eq!(seen(&instance.ok(&["workspace", "--json"])), wanted);
    let by_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "4321", "--regid", "4321", "--clear-groups", BINARY, "--root"]);
        command.arg(instance.root()).arg("workspace").args(arguments).output().unwrap()
    };
    let output = by_nobody(&["--json"]);
    assert_eq!(seen(&String::from_utf8_lossy(&output.stdout)), wanted[1..].to_vec(), "{output:?}");
    let refused = by_nobody(&["closed"]);
    assert_eq!(refused.status.code(), Some(4));
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told(&refused), told(&by_nobody(&["nothing"])).replace("nothing", "closed"), "as if it were not there");
    // Nor what it keeps and may keep: that of the disk is told of it.
    let closed = instance.mount().with_file_name("closed");
    let by = |uid: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", uid, "--regid", uid, "--clear-groups", "stat", "--file-system", "--format=%b"]);
        let output = command.arg(&closed).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().unwrap()
    };
    let disk = Command::new("stat").args(["--file-system", "--format=%b"]).arg(closed.parent().unwrap()).output();
    let disk: u64 = String::from_utf8_lossy(&disk.unwrap().stdout).trim().parse().unwrap();
    assert_eq!((by("0") << 12, by("4321")), (1 << 30, disk), "blocks of 4 KiB");
    fs::write(instance.mount().with_file_name("free").join("code/large"), vec![1; 3 << 20]).unwrap();
    let shown = instance.ok(&["workspace", "free"]);
    assert!(shown.contains("large 3MiB"), "{shown}");
    // Who may not list a part of it is told no names, but how much it is.
    assert!(String::from_utf8_lossy(&by_nobody(&["free"]).stdout).contains("large 3MiB"));
    let code = instance.root().join("var/lib/trainyard/workspaces/free/code");
    fs::set_permissions(code, fs::Permissions::from_mode(0o711)).unwrap();
    let hidden = by_nobody(&["free"]);
    let hidden = String::from_utf8_lossy(&hidden.stdout);
    assert!(!hidden.contains("large") && hidden.contains("3.0MiB"), "{hidden}");
    instance.shutdown();
}

/// A file system of its own on a loop device; gone when dropped.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn btrfs(test: &str) -> Option<Self> {
        Self::make(test, &["mkfs.btrfs", "--quiet"], "loop")
    }

    fn make(test: &str, format: &[&str], options: &str) -> Option<Self> {
        if !has_tools(test, &format[..1]) || !crate::support::can_run(test) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (image, top) = (dir.path().join("image"), dir.path().join("top"));
        fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        fs::create_dir(&top).unwrap();
        let formatted = Command::new(format[0]).args(&format[1..]).arg(&image).output().unwrap();
        assert!(formatted.status.success(), "{formatted:?}");
        let mounted = Command::new("mount").args(["-o", options]).arg(&image).arg(&top).output().unwrap();
        if !mounted.status.success() {
            crate::support::skip(test, "a kernel that mounts such a disk");
            return None;
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(Self { dir })
    }

    fn top(&self) -> std::path::PathBuf {
        self.dir.path().join("top")
    }

    /// Has everything written, as happens by itself every 30 s: then btrfs has counted it.
    fn commit(&self) {
        assert!(Command::new("sync").arg("--file-system").arg(self.top()).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The loop device goes with it.
        let _ = Command::new("umount").arg(self.top()).status();
    }
}

#[test]
fn the_mount_has_given_up_the_right_to_go_beyond_quotas() {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let Some(instance) = Instance::start("the_mount_has_given_up_the_right_to_go_beyond_quotas", "") else { return };
    instance.mount();
    let words = format!("--root {} mount", instance.root().display());
    // A child of its own has its words until it begins another program.
    let found = wait_for("the mount process", || Some(pids_with(&words)).filter(|found| found.len() == 1));
    for task in fs::read_dir(format!("/proc/{}/task", found[0].0)).unwrap().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let all = status.lines().filter_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
        let effective = all.map(|mask| u64::from_str_radix(mask, 16).unwrap()).next().unwrap();
        assert_eq!(effective & CAP_SYS_RESOURCE, 0, "{status}");
    }
    instance.shutdown();
}

#[test]
fn btrfs_holds_a_workspace_to_its_quota_against_the_mount_and_jobs() {
    let test = "btrfs_holds_a_workspace_to_its_quota_against_the_mount_and_jobs";
    let Some(disk) = Disk::btrfs(test) else { return };
    let storage = "[workspaces.default]\nstorage = \"100MiB\"";
    let Some(mut instance) = Instance::prepare_in(test, &config(storage), &disk.top()) else { return };
    instance.start_daemon(&[]);
    instance.wait_ready();
    let mount = instance.mount();
    wait_for("the quota", || (try_df(&mount)?.0 == 100 * MIB).then_some(()));
    assert_eq!(told(&instance)["held"], "btrfs");
    fs::write(mount.join("code/data"), vec![1; 60 << 20]).unwrap();
    disk.commit();
    wait_used(&instance, 60 * MIB);
    let size = || fs::metadata(mount.join("code/more")).map_or(0, |more| more.len());
    assert_eq!(errno(fs::write(mount.join("code/more"), vec![1; 60 << 20])), FULL);
    assert!((20 * MIB..40 * MIB).contains(&size()), "{}", size());
    fs::remove_file(mount.join("code/more")).unwrap();
    disk.commit();
    wait_used(&instance, 60 * MIB);
    let writes = "command = \"head -c 60M /dev/zero > /output/large\"";
    assert_eq!(instance.run_job("writes", writes)["state"], "failed");
    let said = instance.log("writes", "main-0");
    assert!(said.contains("Disk quota exceeded"), "{said}");
    let shown = fs::read_to_string(mount.join("jobs/writes/status")).unwrap();
    assert!(shown.contains("failed"), "{shown}");
    edit(&instance, "[workspaces.default]\nstorage = \"400MiB\"");
    wait_for("the larger quota", || (df(&mount).0 == 400 * MIB).then_some(()));
    assert_eq!(told(&instance)["held"], "btrfs", "{}", told(&instance));
    instance.ok(&["rerun", "writes"]);
    let again = instance.wait_end("writes", 2);
    assert_eq!(again["state"], "succeeded", "{again:#} {}", instance.ok(&["logs", "writes"]));
    disk.commit();
    let used = told(&instance)["used"].as_u64().unwrap();
    assert!((120 * MIB..170 * MIB).contains(&used), "{used}");
    wait_used(&instance, used);
    // Less than there is: nothing starts until there is room.
    edit(&instance, "[workspaces.default]\nstorage = \"80MiB\"");
    wait_for("the smaller quota", || text(&told(&instance)["note"]).contains("of the 80MiB").then_some(()));
    instance.drop_job("next", "command = \"true\"");
    instance.wait_state("next", "waiting");
    fs::remove_file(instance.jobs_d().join("writes.toml")).unwrap();
    wait_for("the removal", || instance.cli(&["rm", "writes"]).status.success().then_some(()));
    assert_eq!(instance.wait_end("next", 1)["state"], "succeeded");
    // As publishing and code of runs share blocks.
    let both =
        ["data", "copy"].map(|name| instance.root().join("var/lib/trainyard/workspaces/default/code").join(name));
    let copied = Command::new("cp").arg("--reflink=always").args(both).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    disk.commit();
    wait_for("what is shared to be told", || {
        instance.ok(&["workspace", "default"]).contains("The parts come to more than USED").then_some(())
    });
    edit(&instance, "");
    wait_for("the disk's own size", || (df(&mount).0 > 400 * MIB).then_some(()));
    fs::write(mount.join("code/more"), vec![1; 100 << 20]).unwrap();
    instance.shutdown();
}

#[test]
fn btrfs_holds_what_all_workspaces_see_to_its_quota() {
    let test = "btrfs_holds_what_all_workspaces_see_to_its_quota";
    let Some(disk) = Disk::btrfs(test) else { return };
    let Some(mut instance) = Instance::prepare_in(test, &public_storage("8MiB"), &disk.top()) else { return };
    instance.start_daemon(&[]);
    instance.wait_ready();
    let public = instance.mount().with_file_name("public");
    wait_for("the quota", || (try_df(&public)?.0 == 8 * MIB).then_some(()));
    let all: Vec<Value> = serde_json::from_str(&instance.ok(&["workspace", "--json"])).unwrap();
    assert!(all.iter().any(|view| view["workspace"] == "public" && view["held"] == "btrfs"), "{all:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&public), mode(&public.join("code"))), (0o755, 0o1777));
    assert_eq!(errno(fs::write(public.join("code/more"), vec![1; 12 << 20])), FULL);
    instance.shutdown();
}

#[test]
fn btrfs_counts_an_output_that_begins_as_the_last_run_s_ended() {
    let test = "btrfs_counts_an_output_that_begins_as_the_last_run_s_ended";
    let Some(disk) = Disk::btrfs(test) else { return };
    let storage = "[workspaces.default]\nstorage = \"100MiB\"";
    let Some(mut instance) = Instance::prepare_in(test, &config(storage), &disk.top()) else { return };
    instance.start_daemon(&[]);
    instance.wait_ready();
    let mount = instance.mount();
    wait_for("the quota", || (try_df(&mount)?.0 == 100 * MIB).then_some(()));
    let job = "contract = \"uai\"\n\
               command = \"cd /data/output; if [ -e first ]; then head -c 150M /dev/zero > large; else echo > first; fi || exit 1; true\"";
    let first = instance.run_job("goes-on", job);
    assert_eq!(first["state"], "succeeded", "{first:#}");
    instance.ok(&["rerun", "goes-on"]);
    let second = instance.wait_end("goes-on", 2);
    assert_eq!(second["state"], "failed", "{second:#}");
    let said = instance.ok(&["logs", "goes-on"]);
    assert!(said.contains("quota exceeded"), "{said}");
    instance.shutdown();
}

#[test]
fn on_btrfs_a_workspace_that_had_no_quota_when_it_was_made_is_counted() {
    let test = "on_btrfs_a_workspace_that_had_no_quota_when_it_was_made_is_counted";
    let Some(disk) = Disk::btrfs(test) else { return };
    let Some(mut instance) = Instance::prepare_in(test, &config(""), &disk.top()) else { return };
    instance.start_daemon(&[]);
    instance.wait_ready();
    let mount = instance.mount();
    edit(&instance, "[workspaces.default]\nstorage = \"16MiB\"");
    // From when it is no longer shown directly.
    wait_for("the quota", || (try_df(&mount.join("code"))?.0 == 16 * MIB).then_some(()));
    let told = told(&instance);
    assert_eq!(told["held"], "counted");
    assert!(text(&told["note"]).contains("has no subvolumes"), "{told}");
    assert_eq!(errno(fs::write(mount.join("code/more"), vec![1; 20 << 20])), FULL);
    instance.shutdown();
}

#[test]
fn a_project_of_ext4_or_xfs_holds_a_workspace_to_its_quota_against_the_mount_and_jobs() {
    let test = "a_project_of_ext4_or_xfs_holds_a_workspace_to_its_quota_against_the_mount_and_jobs";
    let ext4 = ["mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota"];
    // What each of them says of a project that is full.
    for (format, options, full, words) in [
        (&ext4[..], "loop,prjquota", nix::libc::EDQUOT, "Disk quota exceeded"),
        (&["mkfs.xfs", "-q"][..], "loop,prjquota", nix::libc::ENOSPC, "No space left on device"),
    ] {
        let Some(disk) = Disk::make(test, format, options) else { continue };
        let other = "[workspaces.other]\nstorage = \"50MiB\"\n";
        let both = |storage: &str| format!("{other}[workspaces.default]\nstorage = {storage:?}");
        let Some(mut instance) = Instance::prepare_in(test, &config(&both("100MiB")), &disk.top()) else { return };
        fs::create_dir(instance.jobs_d().join("other")).unwrap();
        instance.start_daemon(&[]);
        instance.wait_ready();
        let mount = instance.mount();
        wait_for("the quota", || (try_df(&mount)?.0 == 100 * MIB).then_some(()));
        assert_eq!(told(&instance)["held"], "project", "{}", told(&instance));
        fs::write(mount.join("code/data"), vec![1; 60 << 20]).unwrap();
        wait_used(&instance, 60 * MIB);
        assert_eq!(fs::write(mount.join("code/more"), vec![1; 60 << 20]).unwrap_err().raw_os_error(), Some(full));
        fs::remove_file(mount.join("code/more")).unwrap();
        wait_used(&instance, 60 * MIB);
        let writes = "command = \"head -c 60M /dev/zero > /output/large\"";
        assert_eq!(instance.run_job("writes", writes)["state"], "failed");
        let said = instance.log("writes", "main-0");
        assert!(said.contains(words), "{said}");
        edit(&instance, &both("400MiB"));
        wait_for("the larger quota", || (df(&mount).0 == 400 * MIB).then_some(()));
        instance.ok(&["rerun", "writes"]);
        let again = instance.wait_end("writes", 2);
        assert_eq!(again["state"], "succeeded", "{again:#} {}", instance.ok(&["logs", "writes"]));
        // The kernel's number, and no other: the first run's part, the second's whole.
        let used = told(&instance)["used"].as_u64().unwrap();
        assert!((140 * MIB..170 * MIB).contains(&used), "{used}");
        wait_used(&instance, used);
        // Another workspace has a project of its own.
        let other = mount.with_file_name("other");
        assert_eq!(df(&other).0, 50 * MIB);
        // What is moved would go on to count where it was.
        for (from, to) in [("default/code/data", "other/code/data"), ("default/code/data", "public/code/data")] {
            let top = mount.parent().unwrap();
            assert_eq!(errno(fs::rename(top.join(from), top.join(to))), Some(nix::libc::EXDEV), "{to}");
        }
        assert_eq!(fs::write(other.join("code/data"), vec![1; 60 << 20]).unwrap_err().raw_os_error(), Some(full));
        edit(&instance, "");
        wait_for("the disk's own size", || (df(&mount).0 > 400 * MIB).then_some(()));
        fs::write(mount.join("code/more"), vec![1; 100 << 20]).unwrap();
        instance.shutdown();
    }
}
