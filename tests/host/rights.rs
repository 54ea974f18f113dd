//! Who sees which workspace, and whose a task's files are.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::api::ask_as;
use super::support::{Instance, has_tools, wait_for};

const MEMBERS: u32 = 5000;

/// What a shell of user 65534, with further groups, says.
fn said(instance: &Instance, groups: &str, script: &str) -> String {
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", &groups, "sh", "-c", script])
        .current_dir(instance.root().join("srv/trainyard"))
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn a_workspace_is_listed_and_open_for_its_members_alone_and_a_revoked_right_is_gone_at_once() {
    let test = "a_workspace_is_listed_and_open_for_its_members_alone_and_a_revoked_right_is_gone_at_once";
    if !has_tools(test, &["setpriv"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let files = instance.jobs_d().join("vision");
    let make = |mode, gid| {
        chown(&files, Some(0), Some(gid)).unwrap();
        fs::set_permissions(&files, fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(&files).unwrap();
    make(0o2770, MEMBERS);
    // Without a job, too.
    let home = instance.root().join("srv/trainyard/vision");
    let rights = || fs::metadata(&home).ok().map(|home| (home.mode() & 0o7777, home.uid(), home.gid()));
    wait_for("the workspace", || (rights() == Some((0o750, 0, MEMBERS))).then_some(()));
    fs::write(files.join("secret-plan.toml"), "command = \"echo hello\"").unwrap();
    wait_for("its job", || home.join("jobs/secret-plan/status").exists().then_some(()));
    let list = "ls -1; for i in 1 2; do ls -1 . | grep -c vision; done; cat vision/jobs/secret-plan/status";
    let stranger = said(&instance, "", list);
    assert!(
        stranger.starts_with("default\npreset\npublic\n0\n0\n") && stranger.contains("Permission denied"),
        "{stranger}"
    );
    let member = said(&instance, &format!("7,{MEMBERS}"), list);
    assert!(member.contains("vision\n1\n1\nstate "), "further groups count: {member}");
    let drop =
        "mkdir vision/code/x && echo 1 > vision/code/x/f && cat vision/code/x/f; mkdir vision/y; chmod 777 vision";
    let dropped = said(&instance, &MEMBERS.to_string(), drop);
    assert!(dropped.starts_with("1\nmkdir: ") && dropped.contains("chmod: "), "{dropped}");
    assert!(!home.join("y").exists() && rights() == Some((0o750, 0, MEMBERS)));
    // Open to everybody, and to nobody again.
    make(0o2775, MEMBERS);
    wait_for("everybody", || said(&instance, "", list).contains("state ").then_some(()));
    make(0o700, 0);
    wait_for("nobody", || said(&instance, &MEMBERS.to_string(), list).contains("Permission denied").then_some(()));
    assert!(!said(&instance, &MEMBERS.to_string(), "ls -1").contains("vision"));
    // Its directory in jobs.d is gone: its jobs are records now, no more open than they were.
    fs::remove_dir_all(&files).unwrap();
    wait_for("the file to be missed", || {
        let refused = instance.cli(&["rerun", "vision/secret-plan"]);
        String::from_utf8_lossy(&refused.stderr).contains("has no job file any more").then_some(())
    });
    assert_eq!(rights(), Some((0o700, 0, 0)));
    instance.shutdown();
}

/// In which the test below runs once more, by itself.
const INSIDE: &str = "TRAINYARD_TEST_WITHOUT_USER_NAMESPACES";

#[test]
fn where_user_namespaces_are_not_allowed_that_is_told_at_once() {
    use trainyard::sys::idmap::{IdMap, IdRange};
    let test = "where_user_namespaces_are_not_allowed_that_is_told_at_once";
    let one = |inside, outside| IdRange { inside, outside, count: 1 };
    let map = IdMap { users: vec![one(0, 0)], groups: vec![one(0, 0)] };
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(map.namespace().unwrap_err().to_string(), "this machine allows no user namespaces");
        println!("it is told");
        return;
    }
    if !has_tools(test, &["unshare", "timeout"]) {
        return;
    }
    // The number of a namespace of our own: the machine's stays as it is.
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", script]).env(INSIDE, "1");
        let run = command.arg(std::env::current_exe().unwrap()).arg(format!("rights::{test}"));
        run.output().unwrap()
    };
    const FORBID: &str = "echo 0 > /proc/sys/user/max_user_namespaces";
    if !unshared(FORBID).status.success() {
        return super::support::skip(test, "a user namespace of its own");
    }
    // `timeout` ends what waits for ever, which is a failure as well.
    let output = unshared(&format!("{FORBID} && exec timeout 30 \"$0\" --exact \"$1\" --nocapture"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("it is told"), "{output:?}");
}

#[test]
fn what_root_inside_gives_away_is_a_subordinate_number_s_until_it_is_taken_back() {
    let test = "what_root_inside_gives_away_is_a_subordinate_number_s_until_it_is_taken_back";
    let Some(instance) = Instance::start(test, "") else { return };
    let command =
        "cd /output && touch given back && chmod 600 given back && chown 33:33 given back && chown -R 0:0 back";
    let aside = instance.jobs_d().join(".gives.new");
    fs::write(&aside, format!("command = \"{command}\"\n")).unwrap();
    chown(&aside, Some(4321), Some(4321)).unwrap();
    fs::rename(aside, instance.jobs_d().join("gives.toml")).unwrap();
    let report = instance.wait_end("gives", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let owner = |name: &str| fs::metadata(instance.run_dir("gives", 1).join("output").join(name)).unwrap().uid();
    assert!(owner("given") > 60_000, "{}", owner("given"));
    assert_eq!(owner("back"), 4321);
    instance.shutdown();
}

#[test]
fn who_may_drop_jobs_into_default_gets_no_workspace_by_making_a_directory() {
    let test = "who_may_drop_jobs_into_default_gets_no_workspace_by_making_a_directory";
    if !has_tools(test, &["setpriv"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    fs::set_permissions(instance.jobs_d(), fs::Permissions::from_mode(0o1777)).unwrap();
    // One that has left something.
    instance.make_workspace("nlp", MEMBERS, 0o2770);
    let home = instance.root().join("var/lib/trainyard/workspaces/nlp");
    let rights = |path: &Path| fs::metadata(path).ok().map(|home| (home.mode() & 0o7777, home.uid(), home.gid()));
    wait_for("the workspace", || (rights(&home) == Some((0o750, 0, MEMBERS))).then_some(()));
    fs::write(home.join("code/secret.py"), "").unwrap();
    fs::remove_dir(instance.jobs_d().join("nlp")).unwrap();
    let make = "cd ../../etc/trainyard/jobs.d && mkdir nlp lab && for i in nlp lab; do echo 'command = \"sleep infinity\"' > $i/job.toml; done; ls nlp";
    assert_eq!(said(&instance, "", make), "job.toml\n");
    let strays = || String::from_utf8(instance.cli(&["ps"]).stderr).unwrap();
    let told = |what: &str| wait_for("the stray", || Some(strays()).filter(|said| said.contains(what)));
    for name in ["nlp", "lab"] {
        let said = told(&format!("{name}: belongs to "));
        assert!(said.contains("`chown root ") && instance.report(&format!("{name}/job")).is_none(), "{said}");
    }
    assert_eq!(rights(&home), Some((0o750, 0, MEMBERS)), "it is no more open than it was");
    assert!(!instance.root().join("var/lib/trainyard/workspaces/lab").exists());
    let looked = said(&instance, "", "ls nlp/code; ls nlp lab");
    let is_closed = |line: &str| line.contains("denied") || line.contains("No such file");
    assert!(looked.lines().filter(|line| is_closed(line)).count() == 3 && !looked.contains("secret.py"), "{looked}");
    let asked = |path: &str| ask_as(&instance, 65534, "GET", path, b"");
    assert_eq!(asked("/v1/workspaces/nlp").status, 404);
    for path in ["/v1/workspaces", "/v1/jobs", "/v1/jobs/lines", "/v1/templates"] {
        let listed = asked(path);
        assert!(listed.status == 200 && !listed.text().contains("\"nlp"), "{path}: {listed:?}");
    }
    let file = b"command = \"true\"";
    assert_eq!(ask_as(&instance, 65534, "PUT", "/v1/jobs/nlp/new/file", file).status, 404);
    let roots = ask_as(&instance, 0, "PUT", "/v1/jobs/nlp/new/file", file);
    assert!(roots.status == 403 && roots.text().contains("`chown root "), "{roots:?}");
    // The administrator makes it one, and takes it back while its job runs.
    let lab = instance.jobs_d().join("lab");
    chown(&lab, Some(0), None).unwrap();
    instance.wait_state("lab/job", "running");
    let stray = |name: &str| strays().contains(&format!("{name}: belongs to "));
    wait_for("no stray", || (!stray("lab") && stray("nlp")).then_some(()));
    chown(&lab, Some(65534), None).unwrap();
    instance.wait_state("lab/job", "stopped");
    wait_for("the stray", || stray("lab").then_some(()));
    instance.shutdown();
}
