//! Whose images, code and data a job finds by a bare name, and who reads what its file says.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::datasets::as_user;
use super::support::images::small;
use super::support::{BINARY, Instance, has_tools, text, wait_for};

const ANN: u32 = 12_345;
const EVE: u32 = 12_346;

/// A directory of a workspace, or of what all share, with one file.
fn lay(instance: &Instance, place: &str, owner: u32, content: &str) -> PathBuf {
    let directory = instance.root().join("var/lib/trainyard/workspaces").join(place);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("x"), content).unwrap();
    chown(&directory, Some(owner), Some(owner)).unwrap();
    directory
}

/// Drops a job file of a user.
fn drop_as(instance: &Instance, owner: u32, name: &str, text: &str, mode: u32) {
    let target = instance.jobs_d().join(format!("{name}.toml"));
    let aside = target.with_file_name(format!(".{}.new", name.replace('/', "-")));
    fs::write(&aside, text).unwrap();
    chown(&aside, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(aside, target).unwrap();
}

/// A job of a user, and what came of its first run.
fn run_as(instance: &Instance, owner: u32, name: &str, text: &str) -> Value {
    drop_as(instance, owner, name, text, 0o644);
    instance.wait_end(name, 1)
}

/// An instance in whose default workspace everybody may drop files, each their own.
fn sticky(test: &str) -> Option<Instance> {
    // A registry that is nowhere.
    let mut instance = Instance::prepare(test, "[images]\ndefault_registry = \"registry.invalid\"\n")?;
    fs::set_permissions(instance.jobs_d(), fs::Permissions::from_mode(0o1777)).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    Some(instance)
}

#[test]
fn what_another_member_puts_in_the_place_of_what_root_gives_is_passed_over_for_who_has_not_said_so() {
    let test = "what_another_member_puts_in_the_place_of_what_root_gives_is_passed_over_for_who_has_not_said_so";
    let Some(instance) = sticky(test) else { return };
    instance.mount();
    for part in ["code", "datasets"] {
        lay(&instance, &format!("preset/{part}/mnist"), 0, "root's");
        lay(&instance, &format!("public/{part}/given"), 0, "root's");
        lay(&instance, &format!("public/{part}/anybody"), EVE, "eve's");
    }
    let job = |part: &str, name: &str| match part {
        "code" => format!("code = \"{name}\"\ncommand = \"cat /code/x\""),
        _ => format!("datasets = [\"{name}\"]\ncommand = \"cat /dataset/x\""),
    };
    let says = |owner: u32, job_name: &str, text_of_job: &str| {
        let report = run_as(&instance, owner, job_name, text_of_job);
        match report["state"] == "succeeded" {
            true => instance.log(job_name, "main-0").trim_end().to_owned(),
            false => text(&report["reason"]),
        }
    };
    for part in ["code", "datasets"] {
        assert_eq!(says(ANN, &format!("{part}-before"), &job(part, "mnist")), "root's");
        for name in ["mnist", "given", "anybody", "own"] {
            lay(&instance, &format!("default/{part}/{name}"), EVE, "eve's");
        }
        for (name, shared) in [("mnist", "preset"), ("given", "public")] {
            assert_eq!(says(ANN, &format!("{part}-{name}"), &job(part, name)), "root's");
            let told = instance.ok(&["events", &format!("{part}-{name}")]);
            let whose = format!("{part}: {part}/{name} of workspace default is user {EVE}'s and is passed over");
            let choice = format!("write \"mine:{name}\" or \"{shared}:{name}\" to say which is meant");
            assert!(told.contains(&whose) && told.contains(&choice), "{told}");
            assert!(told.contains(&format!("for {shared}/{part}/{name}, which is the administrator's")), "{told}");
            // Whoever says which is meant has that, and so has whose own it is.
            let said = says(ANN, &format!("{part}-{name}-shared"), &job(part, &format!("{shared}:{name}")));
            assert_eq!(said, "root's");
            assert_eq!(says(ANN, &format!("{part}-{name}-mine"), &job(part, &format!("mine:{name}"))), "eve's");
            assert_eq!(says(EVE, &format!("{part}-{name}-eve"), &job(part, name)), "eve's");
        }
        // Where root has given nothing of that name, members share what is theirs.
        for name in ["anybody", "own"] {
            assert_eq!(says(ANN, &format!("{part}-{name}"), &job(part, name)), "eve's");
        }
        let told = says(ANN, &format!("{part}-none"), &job(part, "preset:own"));
        assert!(told.contains(&format!("there is no directory {part}/own in preset")), "{told}");
        // What was chosen for a run before it could begin is told when it begins.
        let late = format!("{part}-late");
        let waits =
            job(part, "mnist").replace("command = \"", "command = \"until [ -e /output/go ]; do sleep 0.05; done; ");
        drop_as(&instance, ANN, &late, &waits, 0o644);
        instance.wait_state(&late, "running");
        instance.ok(&["rerun", &late]);
        let runs = instance.root().join(format!("var/lib/trainyard/workspaces/default/jobs/{late}/runs"));
        let is_aside = || {
            let names = fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.into_iter().any(|name| name.starts_with(".2.aside-") && !name.ends_with(".new")).then_some(())
        };
        wait_for("what is set aside for the second run", is_aside);
        fs::remove_dir_all(instance.root().join(format!("var/lib/trainyard/workspaces/default/{part}/mnist"))).unwrap();
        for run in ["1", "2"] {
            wait_for("the run", || fs::write(runs.join(run).join("output/go"), "").ok());
        }
        assert_eq!(instance.wait_end(&late, 2)["state"], "succeeded");
        assert_eq!(instance.log(&late, "main-0").trim_end(), "root's");
        assert_eq!(instance.ok(&["events", &late]).matches("is passed over").count(), 2);
        // What is root's in the workspace is trusted as well.
        chown(lay(&instance, &format!("default/{part}/mnist"), 0, "of lab"), Some(0), Some(0)).unwrap();
        assert_eq!(says(ANN, &format!("{part}-lab"), &job(part, "mnist")), "of lab");
    }
    // A version that only the other one has.
    lay(&instance, "default/datasets/given/draft", EVE, "eve's");
    let told = says(ANN, "no-version", &job("datasets", "given@v9"));
    assert!(told.contains("dataset given has no version v9") && told.contains("is passed over for public/"), "{told}");
    instance.shutdown();
}

fn as_member(instance: &Instance, uid: u32, arguments: &[&str]) -> (bool, String) {
    let mut all: Vec<&OsStr> = vec!["--root".as_ref(), instance.root().as_os_str()];
    all.extend(arguments.iter().map(OsStr::new));
    let output = as_user(uid, BINARY, &all);
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Two images that say different things.
fn images(dir: &Path) -> [String; 2] {
    ["one", "two"].map(|says| {
        let place = dir.join(says);
        fs::create_dir(&place).unwrap();
        let word = format!("--config.cmd={says}");
        let image = small(&place, &["--config.cmd=/bin/busybox", "--config.cmd=echo", &word], |_| {});
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        image
    })
}

#[test]
fn nobody_but_root_gives_all_workspaces_an_image_by_a_name_that_means_another() {
    let test = "nobody_but_root_gives_all_workspaces_an_image_by_a_name_that_means_another";
    if !has_tools(test, &["umoci", "busybox"]) {
        return;
    }
    let Some(instance) = sticky(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = images(dir.path());
    instance.make_workspace("vision", ANN, 0o2770);
    let import = |uid: u32, name: &str, source: &str, more: &[&str]| {
        as_member(&instance, uid, &[&["image", "import", "--name", name, source], more].concat())
    };
    for name in ["python:3.11", "vision/torch:1", "ghcr.io/default/torch:1"] {
        let (done, told) = import(EVE, name, &one, &["--public"]);
        let way = "public names that root has not given begin with a workspace in which their giver may submit jobs";
        assert!(!done && told.contains(way) && told.contains("default/"), "{told}");
    }
    let (done, told) = as_member(&instance, EVE, &["image", "pull", "--public", "python:3.11"]);
    assert!(!done && told.contains("begin with a workspace"), "{told}");
    assert!(import(EVE, "team/torch:1", &one, &[]).0 && import(EVE, "default/torch:1", &one, &["--public"]).0);
    let (done, told) = as_member(&instance, EVE, &["image", "tag", "default/torch:1", "python:3.11", "--public"]);
    assert!(!done && told.contains("begin with a workspace"), "{told}");
    // Whoever gets a public one is told so.
    let report = run_as(&instance, ANN, "vision/gets", "image = \"default/torch:1\"");
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let events = instance.ok(&["events", "vision/gets"]);
    assert!(events.contains(&format!("image default/torch:1: the public one that user {EVE} has given")), "{events}");
    // What an earlier version let somebody give is passed over, and told.
    let public = instance.root().join("var/lib/trainyard/images/names/public");
    let record = fs::read_to_string(public.join("registry%2einvalid%2fdefault%2ftorch%3a1.json")).unwrap();
    let old = record.replace("registry.invalid/default/torch:1", "registry.invalid/python:3.11");
    fs::write(public.join("registry%2einvalid%2fpython%3a3%2e11.json"), old).unwrap();
    let report = run_as(&instance, ANN, "vision/closed", "image = \"python:3.11\"");
    let reason = report["reason"].as_str().unwrap_or_default();
    assert!(report["state"] == "failed" && reason.contains("registr"), "{report:#}");
    let events = instance.ok(&["events", "vision/closed"]);
    let told = format!("the public image registry.invalid/python:3.11 of user {EVE} is passed over");
    assert!(events.contains(&told), "{events}");
    let shown = instance.cli(&["image", "show", "python:3.11"]);
    let shown = (shown.status.code(), String::from_utf8_lossy(&shown.stderr).into_owned());
    assert!(shown.0 == Some(4) && shown.1.contains("passed over") && shown.1.contains("--public"), "{shown:?}");
    // The giver has it, and root may bless it.
    assert_eq!(run_as(&instance, EVE, "eves", "image = \"python:3.11\"")["state"], "succeeded");
    instance.ok(&["image", "import", "--name", "python:3.11", &two, "--public"]);
    assert_eq!(run_as(&instance, ANN, "vision/open", "image = \"python:3.11\"")["state"], "succeeded");
    assert_eq!(instance.log("vision/open", "main-0"), "two\n");
    // In a sticky workspace a name is its giver's; the same image again is nothing new.
    for arguments in [
        &["image", "import", "--name", "team/torch:1", &two][..],
        &["image", "tag", "python:3.11", "team/torch:1"],
        &["image", "rm", "team/torch:1"],
    ] {
        let (done, told) = as_member(&instance, ANN, arguments);
        let whose = format!("team/torch:1 of workspace default was given by user {EVE}");
        assert!(!done && told.contains(&whose), "{arguments:?}: {told}");
    }
    assert!(import(ANN, "team/torch:1", &one, &[]).0);
    // To the jobs of others it means what the registry has, and a name of a workspace what that has alone.
    let report = run_as(&instance, ANN, "others", "image = \"team/torch:1\"");
    assert!(report["state"] == "failed" && report["reason"].as_str().unwrap().contains("registr"), "{report:#}");
    assert!(instance.ok(&["events", "others"]).contains("team/torch:1 of user"), "told");
    assert!(import(EVE, "vision/torch:2", &one, &[]).0);
    let report = run_as(&instance, ANN, "of-vision", "image = \"vision/torch:2\"");
    let reason = report["reason"].as_str().unwrap_or_default();
    assert!(
        report["state"] == "failed" && reason.contains("is passed over") && !reason.contains("cannot"),
        "{report:#}"
    );
    // Files that jobs name are nobody's names.
    for (uid, job, image) in [(EVE, "a", &one), (ANN, "b", &one)] {
        assert_eq!(run_as(&instance, uid, job, &format!("image = {image:?}"))["state"], "succeeded");
    }
    assert!(as_member(&instance, EVE, &["image", "rm", "team/torch:1"]).0);
    instance.shutdown();
}

#[test]
fn a_model_s_record_is_read_by_whom_the_files_of_its_job_let_read() {
    let Some(instance) = sticky("a_model_s_record_is_read_by_whom_the_files_of_its_job_let_read") else { return };
    let job = "command = \"echo w > /model/w\"";
    let record = |name: &str| {
        let record = instance.mount().join("models").join(name).join("1/MODEL.toml");
        let found = fs::metadata(&record).unwrap();
        (found.mode() & 0o7777, found.uid(), found.gid())
    };
    for (name, mode, read) in
        [("all", 0o644, 0o644), ("group", 0o640, 0o640), ("own", 0o600, 0o600), ("x", 0o755, 0o644)]
    {
        drop_as(&instance, ANN, name, job, mode);
        assert_eq!(instance.wait_end(name, 1)["state"], "succeeded");
        assert_eq!(record(name), (read, ANN, ANN), "{name}");
    }
    // What it was put together from counts as well: overrides, a template. A sweep's file is that of all its jobs.
    let put = |name: &str, text: &str, mode: u32| {
        let path = instance.jobs_d().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        chown(&path, Some(ANN), Some(ANN)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    put("over.toml.d/10.toml", "env = { TOK = \"secret\" }", 0o600);
    put("t.template.toml", job, 0o640);
    for (name, text_of_job, read) in [
        ("over", job, 0o600),
        ("made", "template = \"t\"", 0o640),
        ("sw", "command = \"echo w > /model/w\"\n[sweep]\nlr = [1]", 0o644),
    ] {
        drop_as(&instance, ANN, name, text_of_job, 0o644);
        let name = if name == "sw" { "sw~1" } else { name };
        assert_eq!(instance.wait_end(name, 1)["state"], "succeeded");
        assert_eq!(record(name), (read, ANN, ANN), "{name}");
    }
    instance.shutdown();
}

#[test]
fn a_model_s_record_has_the_mode_that_the_files_had_when_its_run_was_accepted() {
    let test = "a_model_s_record_has_the_mode_that_the_files_had_when_its_run_was_accepted";
    let Some(instance) = sticky(test) else { return };
    let waits = "command = \"until [ -e /output/go ]; do sleep 0.05; done; echo w > /model/w\"";
    let file = |name: &str| instance.jobs_d().join(format!("{name}.toml"));
    let runs_on = |name: &str, run: u64| {
        let place = format!("var/lib/trainyard/workspaces/default/jobs/{name}/runs/{run}/output/go");
        fs::write(instance.root().join(place), "").unwrap();
        wait_for("the model", || {
            let record = instance.mount().join(format!("models/{name}/{run}/MODEL.toml"));
            fs::metadata(record).ok().map(|found| found.mode() & 0o7777)
        })
    };
    let begin = |name: &str, mode: u32| {
        drop_as(&instance, ANN, name, waits, mode);
        instance.wait_state(name, "running");
    };
    let noted = |name: &str, what: &str| {
        wait_for(what, || instance.ok(&["events", name]).contains(what).then_some(()));
    };
    let chmod = |name: &str, mode: u32| fs::set_permissions(file(name), fs::Permissions::from_mode(mode)).unwrap();
    // Opened since: it is as it was. Closed since: it is closed.
    begin("opened", 0o600);
    chmod("opened", 0o644);
    assert_eq!(runs_on("opened", 1), 0o600);
    begin("closed", 0o644);
    chmod("closed", 0o600);
    // A link is read as late after it came as a file after its change: what is seen of this one is seen of that.
    let hidden = instance.jobs_d().join(".next");
    fs::write(&hidden, waits).unwrap();
    chown(&hidden, Some(ANN), Some(ANN)).unwrap();
    fs::hard_link(hidden, file("next")).unwrap();
    instance.wait_state("next", "running");
    assert_eq!(runs_on("closed", 1), 0o600);
    assert_eq!(runs_on("next", 1), 0o644);
    // An open file that is no job takes the place of a closed one, before and after a restart of the daemon.
    begin("replaced", 0o600);
    drop_as(&instance, ANN, "replaced", "no-such-key = 1", 0o644);
    noted("replaced", "its last good version stays in force");
    assert_eq!(runs_on("replaced", 1), 0o600);
    instance.wait_end("replaced", 1);
    instance.ok(&["rerun", "replaced"]);
    wait_for("the second run", || (instance.report("replaced")?["run"] == 2).then_some(()));
    instance.wait_state("replaced", "running");
    assert_eq!(runs_on("replaced", 2), 0o600);
    // Overrides that nobody else could read, or reach, and that have gone.
    for (name, directory, inside) in [("over", 0o755, 0o600), ("reach", 0o700, 0o644)] {
        let overrides = instance.jobs_d().join(format!("{name}.toml.d"));
        fs::create_dir(&overrides).unwrap();
        fs::write(overrides.join("1.toml"), "env.TOK = \"secret\"").unwrap();
        fs::set_permissions(overrides.join("1.toml"), fs::Permissions::from_mode(inside)).unwrap();
        fs::set_permissions(&overrides, fs::Permissions::from_mode(directory)).unwrap();
        [overrides.join("1.toml"), overrides.clone()].iter().for_each(|it| chown(it, Some(ANN), Some(ANN)).unwrap());
        begin(name, 0o644);
        fs::remove_dir_all(overrides).unwrap();
        noted(name, "the job file was edited");
        assert_eq!(runs_on(name, 1), 0o600, "{name}");
    }
    instance.shutdown();
}

#[test]
fn where_the_state_was_lost_no_file_gives_anybody_the_runs_of_another() {
    let test = "where_the_state_was_lost_no_file_gives_anybody_the_runs_of_another";
    let Some(mut instance) = sticky(test) else { return };
    let job = "command = \"echo o > /output/o\"";
    for name in ["taken", "broken"] {
        assert_eq!(run_as(&instance, ANN, name, job)["state"], "succeeded");
    }
    instance.kill_daemon();
    for name in ["taken", "broken"] {
        fs::remove_file(instance.jobs_d().join(format!("{name}.toml"))).unwrap();
    }
    fs::remove_file(instance.root().join("var/lib/trainyard/state.redb")).unwrap();
    instance.restart_daemon();
    let jobs = instance.root().join("var/lib/trainyard/workspaces/default/jobs");
    let output = |name: &str, run: u32| jobs.join(format!("{name}/runs/{run}/output/o"));
    // By a file of that name one has the job, and not what was there before.
    drop_as(&instance, EVE, "taken", job, 0o644);
    assert_eq!(instance.wait_end("taken", 2)["state"], "succeeded");
    let refused = |arguments: &[&str]| {
        let (done, told) = as_member(&instance, EVE, arguments);
        let whose = format!("runs on the disk that are files of user {ANN} and of which no record is left");
        assert!(!done && told.contains(&whose) && told.contains("ask root"), "{told}");
    };
    refused(&["rm", "--file", "taken"]);
    assert!(instance.jobs_d().join("taken.toml").exists());
    fs::remove_file(instance.jobs_d().join("taken.toml")).unwrap();
    wait_for("the file to be gone", || {
        instance.ok(&["events", "taken"]).contains("the job file was removed").then_some(())
    });
    refused(&["rm", "taken"]);
    assert!(output("taken", 1).exists() && output("taken", 2).exists());
    // Nor does one that is no job take them along when it goes.
    drop_as(&instance, EVE, "broken", "command = 7", 0o644);
    wait_for("the file", || (instance.report("broken")?["owner"] == EVE).then_some(()));
    fs::remove_file(instance.jobs_d().join("broken.toml")).unwrap();
    let status = jobs.join("broken/status");
    wait_for("what was shown of it to be gone", || (!status.exists()).then_some(()));
    assert!(output("broken", 1).exists());
    instance.kill_daemon();
    instance.restart_daemon();
    // What is published comes one by one.
    assert_eq!(run_as(&instance, ANN, "other", job)["state"], "succeeded");
    wait_for("what is published", || instance.run_dir("other", 1).join("status").exists().then_some(()));
    assert!(output("broken", 1).exists());
    // Root says that it may go.
    instance.ok(&["rm", "taken"]);
    wait_for("the runs to be gone", || (!instance.run_dir("taken", 1).exists()).then_some(()));
    instance.shutdown();
}
