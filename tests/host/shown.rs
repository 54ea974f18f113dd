//! Places of the machine that jobs ask to see.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::support::{Instance, text};

#[test]
fn a_job_sees_of_the_machine_what_its_owner_may_and_where_it_asks_to() {
    let test = "a_job_sees_of_the_machine_what_its_owner_may_and_where_it_asks_to";
    let Some(instance) = Instance::start(test, "") else { return };
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, owner, mode) in
        [("own", 4321, 0o700), ("open", 0, 0o755), ("closed", 0, 0o700), ("closed/inner", 0, 0o777)]
    {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("file"), format!("{name}\n")).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(at(name), Some(owner), Some(owner)).unwrap();
    }
    std::os::unix::fs::symlink("open", at("link")).unwrap();
    // Where one is to lie in another, its place is there already.
    fs::create_dir(at("open/own")).unwrap();
    let run = |job: &str, mounts: &str, command: &str| {
        let file = instance.jobs_d().join(".new");
        let mounts = mounts.replace("AT", &place.path().display().to_string());
        fs::write(&file, format!("mounts = [{mounts}]\ncommand = {command:?}")).unwrap();
        std::os::unix::fs::chown(&file, Some(4321), Some(4322)).unwrap();
        fs::rename(file, instance.jobs_d().join(format!("{job}.toml"))).unwrap();
        instance.wait_end(job, 1)
    };
    let all = "{ source = \"AT/own\", target = \"/data/own\" }, { source = \"AT/link\", target = \"/data\" }, \
               { source = \"AT/open/file\", target = \"/a.txt\", read_only = true }, \
               { source = \"AT/own\", target = \"/safe\", read_only = true }";
    let command =
        "cat /data/own/file /data/file /a.txt; echo x > /data/own/made; echo x > /data/made; echo x > /safe/made; true";
    let report = run("sees", all, command);
    let log = instance.log("sees", "main-0");
    assert!(log.starts_with("own\nopen\nopen\n"), "{report:#} {log}");
    assert!(
        log.contains("/data/made: Permission denied") && log.contains("/safe/made: Read-only file system"),
        "{log}"
    );
    let made = fs::metadata(at("own/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (4321, 4322), "it belongs to the owner");
    assert!(!at("open/made").exists());
    for (job, mounts, word) in [
        ("closed", "{ source = \"AT/closed/inner\", target = \"/x\" }", "the job's owner may not go there"),
        ("absent", "{ source = \"AT/absent\", target = \"/x\" }", "there is no such place"),
    ] {
        let report = run(job, mounts, "true");
        assert!(report["state"] == "failed" && text(&report["reason"]).contains(word), "{report:#}");
    }
    std::os::unix::fs::symlink("/proc", at("kernel")).unwrap();
    let report = run("kernel", "{ source = \"AT/kernel\", target = \"/x\" }", "true");
    assert!(text(&report["reason"]).contains("leads to /proc"), "{report:#}");
    // Trainyard's own is shown to nobody, nor is what holds it.
    let ours = [
        "",
        "run",
        "etc/trainyard/jobs.d",
        "etc/trainyard",
        "run/trainyard",
        "run/trainyard/mount.lock",
        "var/lib/trainyard",
        "var/lib/trainyard/workspaces",
        "srv",
        "srv/trainyard",
        "srv/trainyard/default",
        "srv/trainyard/default/datasets/mnist",
    ];
    for (number, below) in ours.into_iter().enumerate() {
        let own = instance.root().join(below).display().to_string();
        let report = instance.run_job(
            &format!("own{number}"),
            &format!("mounts = [{{ source = {own:?}, target = \"/x\" }}]\ncommand = \"true\""),
        );
        assert!(text(&report["reason"]).contains("is Trainyard's own"), "{report:#}");
    }
    // Not by another name of the directory either.
    let alias = at("alias");
    fs::create_dir(&alias).unwrap();
    for (number, (ours, below)) in [
        ("run", ""),
        ("run", "trainyard"),
        ("run/trainyard", "mount.lock"),
        ("srv/trainyard", "default"),
        ("srv/trainyard/default", "code"),
    ]
    .into_iter()
    .enumerate()
    {
        let bound = BindMount::of(&instance.root().join(ours), &alias);
        let asked = bound.0.join(below).display().to_string();
        let report = instance.run_job(
            &format!("alias{number}"),
            &format!("mounts = [{{ source = {asked:?}, target = \"/x\" }}]\ncommand = \"true\""),
        );
        assert!(text(&report["reason"]).contains("is Trainyard's own"), "{report:#}");
    }
    fs::remove_dir(&alias).unwrap();
    std::os::unix::fs::symlink(instance.mount(), at("led")).unwrap();
    let report = run("led", "{ source = \"AT/led\", target = \"/x\" }", "true");
    assert!(text(&report["reason"]).contains("is Trainyard's own"), "{report:#}");
    // Nor is anything made in a place of the machine for what is to lie in it, by whoever's rights.
    for (number, mounts) in [
        "{ source = \"AT/open\", target = \"/x\" }, { source = \"AT/own\", target = \"/x/made\" }",
        "{ source = \"AT/open\", target = \"/x\" }, { source = \"AT/open/file\", target = \"/x/made/too\" }",
        "{ source = \"AT/open\", target = \"/etc\" }",
    ]
    .into_iter()
    .enumerate()
    {
        let report = run(&format!("within{number}"), mounts, "true");
        assert_eq!(report["state"], "failed", "{report:#}");
        assert!(report.to_string().contains("nothing is made in what is shown of the machine"), "{report:#}");
    }
    let left = fs::read_dir(at("open")).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert!(left.iter().all(|name| ["file", "own"].contains(&name.to_str().unwrap())), "{left:?}");
    instance.shutdown();
}

/// A second name of a directory, until dropped.
struct BindMount<'a>(&'a Path);

impl<'a> BindMount<'a> {
    fn of(source: &Path, at: &'a Path) -> Self {
        nix::mount::mount(Some(source), at, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
        Self(at)
    }
}

impl Drop for BindMount<'_> {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn an_administrator_says_of_what_jobs_may_see_something() {
    let test = "an_administrator_says_of_what_jobs_may_see_something";
    let place = tempfile::tempdir().unwrap();
    fs::create_dir_all(place.path().join("data/x")).unwrap();
    let config = format!("[mounts]\nbelow = [{:?}]\n", place.path().join("data").display().to_string());
    let Some(instance) = Instance::start(test, &config) else { return };
    let job = |source: &str| {
        let source = place.path().join(source).display().to_string();
        format!("mounts = [{{ source = {source:?}, target = \"/x\" }}]\ncommand = \"true\"")
    };
    assert_eq!(instance.run_job("within", &job("data/x"))["state"], "succeeded");
    let beyond = instance.run_job("beyond", &job(""));
    assert!(text(&beyond["reason"]).contains("shows only what lies below"), "{beyond:#}");
    instance.shutdown();
}
