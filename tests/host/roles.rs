//! Roles that are made of other things than the rest of their job.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::support::images::small;
use super::support::{Instance, has_tools, text, wait_for};

#[test]
fn each_role_may_have_an_image_a_user_and_code_of_its_own() {
    const TEST: &str = "each_role_may_have_an_image_a_user_and_code_of_its_own";
    if !has_tools(TEST, &["umoci", "busybox"]) {
        return;
    }
    let Some(mut instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (
        small(&dir.path().join("a"), &[], |_| {}),
        small(&dir.path().join("b"), &[], |root| {
            fs::write(root.join("second"), "").unwrap();
        }),
    );
    for name in ["first", "first@v2", "other"] {
        let code = instance.mount().join("code").join(name);
        fs::create_dir_all(&code).unwrap();
        fs::write(code.join("name"), format!("{name}\n")).unwrap();
    }
    let script = "cd /; cat code/name; id -u; ls -d second bin/busybox; touch output/$TRAINYARD_ROLE; sleep 600";
    let command = |shell: &str| format!("command = [{shell}\"sh\", \"-c\", {script:?}]\nenv.PATH = \"/bin\"");
    let inside = command("\"/bin/busybox\", ");
    let script_of_host = script.replace("bin/busybox", "etc/passwd");
    let file = instance.jobs_d().join(".mixed.new");
    let job = format!(
        "code = \"first\"\n[roles.host]\ncommand = {script_of_host:?}\n[roles.one]\nimage = {one:?}\n{inside}\n\
         [roles.two]\nimage = {two:?}\nuser = \"7:8\"\ncode = \"first@v2\"\n{inside}\n"
    );
    fs::write(&file, job).unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4322)).unwrap();
    fs::rename(file, instance.jobs_d().join("mixed.toml")).unwrap();
    instance.wait_state("mixed", "running");
    for (task, seen) in [
        ("host-0", "first\n0\netc/passwd\n"),
        ("one-0", "first\n0\nbin/busybox\n"),
        ("two-0", "first@v2\n7\nbin/busybox\nsecond\n"),
    ] {
        wait_for(&format!("what {task} sees"), || {
            let lines: String = instance
                .log("mixed", task)
                .lines()
                .filter(|line| !line.starts_with("ls:"))
                .fold(String::new(), |text, line| text + line + "\n");
            (lines == seen).then_some(())
        });
    }
    for name in ["host", "one", "two"] {
        let made =
            wait_for("what it leaves", || fs::metadata(instance.run_dir("mixed", 1).join("output").join(name)).ok());
        assert_eq!((made.uid(), made.gid()), (4321, 4322), "{name}");
    }
    // Its tasks go on, and the images that they are made of are kept, also over a restart.
    instance.kill_daemon();
    instance.restart_daemon();
    instance.ok(&["image", "prune", "--unused", "1s"]);
    assert_eq!(instance.ok(&["exec", "mixed", "two-0", "--", "/bin/busybox", "id", "-u"]).trim(), "7");
    let shown = instance.ok(&["show", "mixed", "--effective"]);
    assert!(shown.contains("code = \"first@v2\"") && shown.contains(&format!("image = {two:?}")), "{shown}");
    instance.ok(&["stop", "mixed"]);
    instance.wait_end("mixed", 1);
    // What only one role lacks is told as that.
    let bad = instance.run_job(
        "bad",
        &format!("command = \"true\"\n[roles.a]\n[roles.b]\nimage = \"oci:{}/no:t\"", dir.path().display()),
    );
    assert!(text(&bad["reason"]).contains("/no:t"), "{bad:#}");
    let user =
        instance.run_job("user", &format!("[roles.a]\ncommand = \"true\"\n[roles.b]\nimage = {one:?}\nuser = \"bob\""));
    assert!(text(&user["reason"]).contains("bob"), "{user:#}");
    instance.shutdown();
}
