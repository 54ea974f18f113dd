//! Images as people use them: from files and registries, what they run, whose files they leave.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::support::images::{Registry, debian, describe_tree, in_network, run, small, write_login};
use crate::support::{Instance, has_tools, text, wait_for};

const MAKERS: [&str; 3] = ["mmdebstrap", "umoci", "busybox"];

#[test]
fn an_image_runs_what_it_says_where_and_with_what_it_says() {
    const TEST: &str = "an_image_runs_what_it_says_where_and_with_what_it_says";
    if !has_tools(TEST, &MAKERS) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let image = format!("oci:{}:py", debian().display());
    let report = instance.run_job("default", &format!("image = {image:?}"));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("default", "main-0"), "hello from the image\n");
    let script = "pwd; echo $FROM_IMAGE; cat /root/motd; test ! -e /etc/issue && echo gone; ls -A /scratch && touch /scratch/x && echo scratch";
    let report = instance.run_job("own", &format!("image = {image:?}\ncommand = {script:?}"));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let log = instance.log("own", "main-0");
    assert_eq!(log, "/opt/app\nyes\nchanged by an upper layer\ngone\nscratch\n");
    // A model names the image by the digest that it had.
    let report = instance.run_job("leaves", &format!("image = {image:?}\ncommand = \"touch /model/weights\""));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let model = fs::read_to_string(instance.mount().join("models/leaves/1/MODEL.toml")).unwrap();
    let model: toml::Table = model.parse().unwrap();
    let detail: serde_json::Value = serde_json::from_str(&instance.ok(&["image", "show", &image, "--json"])).unwrap();
    let digest = detail["record"]["digest"].as_str().unwrap();
    assert!(digest.starts_with("sha256:"), "{detail}");
    assert_eq!(model["images"][image.as_str()].as_str(), Some(digest), "{model}");
    // The image's stop signal reaches the command.
    let waits = "import signal,sys,time\nsignal.signal(signal.SIGINT, lambda *_: (print('interrupted', flush=True), sys.exit(5)))\nprint('ready', flush=True)\ntime.sleep(600)";
    instance.drop_job("stops", &format!("image = {image:?}\ncommand = [\"python3\", \"-c\", {waits:?}]"));
    wait_for("the command", || instance.log("stops", "main-0").contains("ready").then_some(()));
    instance.ok(&["stop", "stops"]);
    instance.wait_end("stops", 1);
    assert!(instance.log("stops", "main-0").contains("interrupted"));
    let listed = instance.ok(&["image", "ls"]);
    assert!(listed.contains(&image) && listed.contains("mine (default)"), "{listed}");
    let shown = instance.ok(&["image", "show", &image]);
    for part in ["python3 /opt/app/main.py", "SIGINT", "/scratch", "FROM_IMAGE=yes", "kind=test"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    instance.shutdown();
}

#[test]
fn the_layers_add_up_to_the_tree_that_umoci_unpacks() {
    const TEST: &str = "the_layers_add_up_to_the_tree_that_umoci_unpacks";
    if !has_tools(TEST, &MAKERS) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let image = format!("{}:py", debian().display());
    instance.ok(&["image", "import", "--name", "tree:1", &format!("oci:{image}")]);
    assert_same_tree(&instance, "tree:1", &image);
    instance.shutdown();
}

/// What lies in the store is what umoci makes of the layout `image`: the same names, modes, owners, content, attributes.
fn assert_same_tree(instance: &Instance, name: &str, image: &str) {
    let detail: serde_json::Value = serde_json::from_str(&instance.ok(&["image", "show", name, "--json"])).unwrap();
    let store = instance.root().join("var/lib/trainyard/images/layers");
    let digests = detail["record"]["layers"].as_array().unwrap().iter().rev();
    let mut layers: Vec<String> = digests.map(|layer| layer.as_str().unwrap().replace("sha256:", "")).collect();
    assert!(detail["record"]["has_top"].as_bool().unwrap(), "umoci leaves out parents: they need a layer of their own");
    layers.insert(0, format!("top-{}", detail["record"]["digest"].as_str().unwrap().replace("sha256:", "")));
    let lower =
        layers.iter().map(|layer| store.join(layer).join("fs").display().to_string()).collect::<Vec<_>>().join(":");
    let scratch = tempfile::tempdir().unwrap();
    let bundle = scratch.path().join("bundle").display().to_string();
    run("umoci", &["unpack", "--image", image, &bundle]);
    let merged = scratch.path().join("merged");
    fs::create_dir(&merged).unwrap();
    run("mount", &["-t", "overlay", "overlay", "-o", &format!("lowerdir={lower}"), &merged.display().to_string()]);
    let ours = std::panic::catch_unwind(|| describe_tree(&merged));
    run("umount", &[&merged.display().to_string()]);
    let (ours, theirs) = (ours.unwrap(), describe_tree(&Path::new(&bundle).join("rootfs")));
    let differences: Vec<_> = ours
        .iter()
        .filter(|line| !theirs.contains(line))
        .chain(theirs.iter().filter(|line| !ours.contains(line)))
        .collect();
    assert!(
        ours.iter().any(|line| line.contains("user.note") && line.contains("kept")),
        "attributes are compared as well"
    );
    assert!(differences.is_empty() && ours.len() > 3000, "{} entries, {differences:#?}", ours.len());
}

/// The login of a user of the machine, where `podman login` puts it; taken away at the end.
struct OwnLogin {
    uid: u32,
}

impl OwnLogin {
    fn write(uid: u32, registry: &str, login: &str) -> Self {
        let own = Path::new("/run/user").join(uid.to_string());
        assert!(!own.exists(), "no user of this machine");
        let file = own.join("containers/auth.json");
        write_login(&file, registry, login);
        for path in [own.as_path(), file.parent().unwrap(), &file] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
        Self { uid }
    }
}

impl Drop for OwnLogin {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new("/run/user").join(self.uid.to_string()));
    }
}

#[test]
fn images_come_from_registries_with_and_without_a_password() {
    const TEST: &str = "images_come_from_registries_with_and_without_a_password";
    if !has_tools(TEST, &["mmdebstrap", "umoci", "busybox", "skopeo", "docker-registry", "htpasswd", "ip"]) {
        return;
    }
    let config =
        "[limits]\ncpu = 16\nmemory = \"16GiB\"\n[images]\nplain_http = [\"127.0.0.1:5000\", \"127.0.0.1:5001\"]\n";
    let Some(instance) = Instance::start(TEST, config) else { return };
    let (open, closed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let holder = instance.network_holder();
    let free = Registry::start(open.path(), holder, None, 5000);
    let locked = Registry::start(closed.path(), holder, Some(("ada", "s3cret")), 5001);
    let layout = format!("oci:{}:py", debian().display());
    for (registry, login) in [(&free, None), (&locked, Some("--dest-creds=ada:s3cret"))] {
        let target = format!("docker://{}/team/torch:2", registry.address);
        let mut arguments = vec!["copy", "--dest-tls-verify=false", &layout, &target];
        arguments.extend(login);
        in_network(holder, "skopeo", &arguments);
    }
    let raw = in_network(
        holder,
        "skopeo",
        &["inspect", "--tls-verify=false", "--format={{.Digest}}", "docker://127.0.0.1:5000/team/torch:2"],
    );
    let digest = raw.trim().to_owned();
    // By tag and by digest, by the command line and by a job.
    let pulled = on_a_terminal(&instance, "image pull 127.0.0.1:5000/team/torch:2");
    let (steps, last) = pulled.trim_end().rsplit_once("\r\x1b[K").unwrap();
    assert_eq!(last, format!("127.0.0.1:5000/team/torch:2 {digest}"));
    let step = steps.rsplit("\r\x1b[K").find(|line| line.contains("layer(s)")).unwrap_or_default().to_owned();
    let words: Vec<_> = step.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    assert!(
        matches!(words[..], ["127.0.0.1:5000/team/torch:2:", _, "of", "4", "layer(s)", done, "of", all, rate]
            if done.ends_with('B') && all.ends_with("MiB") && rate.ends_with("B/s")),
        "{pulled:?}"
    );
    assert_same_tree(&instance, "127.0.0.1:5000/team/torch:2", layout.trim_start_matches("oci:"));
    let report = instance.run_job("pinned", &format!("image = \"127.0.0.1:5000/team/torch@{digest}\""));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("pinned", "main-0"), "hello from the image\n");
    // What cannot be had is told by its reason.
    let reason = |image: &str| {
        let output = instance.cli(&["image", "pull", image]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = reason("127.0.0.1:5000/team/torch:3");
    assert!(missing.contains("has no tag 3") && missing.contains("team/torch"), "{missing}");
    let absent = reason("127.0.0.1:5002/team/torch:2");
    assert!(absent.contains("cannot be reached") && absent.contains("nothing listens"), "{absent}");
    // The same one under a name that is not allowed to go without encryption.
    let encrypted = reason("localhost:5000/team/torch:2");
    assert!(encrypted.contains("does not speak https") && encrypted.contains("plain_http"), "{encrypted}");
    let unauthorized = reason("127.0.0.1:5001/team/torch:2");
    assert!(
        unauthorized.contains("wants credentials and none are known") && unauthorized.contains("registry.json"),
        "{unauthorized}"
    );
    let secrets = instance.root().join("etc/trainyard/secrets/default/registry.json");
    write_login(&secrets, "127.0.0.1:5001", "ada:wrong");
    let wrong = reason("127.0.0.1:5001/team/torch:2");
    assert!(wrong.contains("does not accept the credentials") && !wrong.contains("wrong"), "{wrong}");
    write_login(&secrets, "127.0.0.1:5001", "ada:s3cret");
    let report = instance.run_job("locked", "image = \"127.0.0.1:5001/team/torch:2\"");
    assert_eq!(report["state"], "succeeded", "{report:#}");
    // Without one of the workspace, the owner's own login counts.
    fs::remove_file(&secrets).unwrap();
    instance.ok(&["image", "rm", "127.0.0.1:5001/team/torch:2"]);
    let own = OwnLogin::write(4321, "127.0.0.1:5001", "ada:s3cret");
    let file = instance.jobs_d().join(".own.new");
    fs::write(&file, "image = \"127.0.0.1:5001/team/torch:2\"").unwrap();
    std::os::unix::fs::chown(&file, Some(own.uid), Some(own.uid)).unwrap();
    fs::rename(file, instance.jobs_d().join("own.toml")).unwrap();
    let report = instance.wait_end("own", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    drop(own);
    // Nothing of a password anywhere that people look.
    let everything =
        instance.ok(&["image", "ls", "--json"]) + &instance.ok(&["events", "locked"]) + &instance.journal();
    assert!(!everything.contains("s3cret"));
    instance.shutdown();
}

#[test]
fn what_a_task_leaves_belongs_to_the_owner_whatever_user_it_ran_as() {
    const TEST: &str = "what_a_task_leaves_belongs_to_the_owner_whatever_user_it_ran_as";
    if !has_tools(TEST, &MAKERS) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let image = format!("oci:{}:py", debian().display());
    let command = "id -u; id -g; touch /output/made /model/weights; cat /proc/self/uid_map | wc -l; stat -c %U /etc/shadow; cat /etc/shadow >/dev/null 2>&1 && echo may";
    for (job, user, seen) in [
        ("root", "", "0\n0\n2\nroot\nmay\n"),
        ("number", "user = \"1000:7\"\n", "1000\n7\n3\nroot\n"),
        ("name", "user = \"www-data\"\n", "33\n33\n3\nroot\n"),
    ] {
        let text =
            format!("image = {image:?}\n{user}command = {command:?}\nresources = {{ cpu = 0.5, memory = \"128MiB\" }}");
        let file = instance.jobs_d().join(format!(".{job}.new"));
        fs::write(&file, text).unwrap();
        std::os::unix::fs::chown(&file, Some(4321), Some(4322)).unwrap();
        fs::rename(file, instance.jobs_d().join(format!("{job}.toml"))).unwrap();
        let report = instance.wait_end(job, 1);
        assert_eq!(instance.log(job, "main-0"), seen, "{job}: {report:#}");
        let made = fs::metadata(instance.run_dir(job, 1).join("output/made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (4321, 4322), "{job}");
    }
    // The image's own user counts as well.
    let dir = tempfile::tempdir().unwrap();
    let own = small(dir.path(), &["--config.user=1000:7"], |_| {});
    let script = "/bin/busybox id -u; /bin/busybox id -g; /bin/busybox touch /output/made /model/weights";
    let words = ["/bin/busybox", "sh", "-c", script];
    let file = instance.jobs_d().join(".own.new");
    fs::write(&file, format!("image = {own:?}\ncommand = {words:?}")).unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4322)).unwrap();
    fs::rename(file, instance.jobs_d().join("own.toml")).unwrap();
    let report = instance.wait_end("own", 1);
    assert_eq!(instance.log("own", "main-0"), "1000\n7\n", "{report:#}");
    for path in [instance.run_dir("own", 1).join("output/made"), instance.mount().join("models/own/1/weights")] {
        let made = fs::metadata(&path).unwrap();
        assert_eq!((made.uid(), made.gid()), (4321, 4322), "{}", path.display());
    }
    let unknown = instance.run_job("unknown", &format!("image = {image:?}\nuser = \"bob\""));
    let why = unknown["reason"].as_str().unwrap();
    assert!(why.contains("/etc/passwd") && why.contains("bob"), "{why}");
    instance.shutdown();
}

#[test]
fn poor_images_work_or_say_what_they_lack() {
    const TEST: &str = "poor_images_work_or_say_what_they_lack";
    if !has_tools(TEST, &["umoci", "busybox"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let bare = small(&dir.path().join("bare"), &[], |_| {});
    let exec = instance.run_job("exec", &format!("image = {bare:?}\ncommand = [\"/bin/busybox\", \"id\", \"-u\"]"));
    assert_eq!(exec["state"], "succeeded", "{exec:#}");
    assert_eq!(instance.log("exec", "main-0"), "0\n");
    let why = |report: serde_json::Value| report["reason"].as_str().unwrap().to_owned();
    let shell = why(instance.run_job("shell", &format!("image = {bare:?}\ncommand = \"echo x\"")));
    assert!(shell.contains("no /bin/sh") && shell.contains("array"), "{shell}");
    let absent = why(instance.run_job("absent", &format!("image = {bare:?}\ncommand = [\"train\"]")));
    assert!(absent.contains("\"train\"") && absent.contains("PATH (/usr/local/sbin"), "{absent}");
    let number = instance
        .run_job("number", &format!("image = {bare:?}\nuser = \"12\"\ncommand = [\"/bin/busybox\", \"id\", \"-u\"]"));
    assert_eq!(number["state"], "succeeded", "{number:#}");
    // What the runtime cannot do is told as step and cause, to whoever reads the status and not to whoever reads the log.
    let covered = small(&dir.path().join("covered"), &[], |root| fs::write(root.join("proc"), "").unwrap());
    let proc = why(instance.run_job("proc", &format!("image = {covered:?}\ncommand = [\"/bin/busybox\", \"true\"]")));
    assert!(proc.contains("failed to prepare rootfs: filesystem proc must be mounted on"), "{proc}");
    assert!(!proc.contains("err=") && !proc.contains("libcontainer"), "{proc}");
    assert_eq!(instance.log("proc", "main-0"), "");
    // A root that nobody may write, hostile links where we mount, and a script whose interpreter is not there.
    let odd = small(&dir.path().join("odd"), &[], |root| {
        fs::create_dir_all(root.join("etc")).unwrap();
        symlink("/bin/busybox", root.join("bin/sh")).unwrap();
        symlink("/etc/passwd", root.join("etc/hosts")).unwrap();
        symlink("../../../../../../tmp", root.join("output")).unwrap();
        fs::write(root.join("script"), "#!/opt/none/python\n").unwrap();
        fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(root.join("tmp")).unwrap();
        fs::set_permissions(root, fs::Permissions::from_mode(0o555)).unwrap();
    });
    let script = why(instance.run_job("script", &format!("image = {odd:?}\ncommand = [\"/script\"]")));
    assert!(script.contains("/script is there") && script.contains("/opt/none/python"), "{script}");
    let on_the_machine = Path::new("/tmp/y-of-a-task");
    assert!(!on_the_machine.exists());
    let linked = instance.run_job("linked", &format!("image = {odd:?}\ncommand = [\"/bin/busybox\", \"sh\", \"-c\", \"echo x >/output/y-of-a-task; busybox cat /etc/hosts | busybox head -1\"]\nenv.PATH = \"/bin\""));
    assert_eq!(linked["state"], "succeeded", "{linked:#} {}", instance.log("linked", "main-0"));
    assert!(instance.log("linked", "main-0").starts_with("127.0.0.1"));
    assert_eq!(fs::read_to_string(instance.run_dir("linked", 1).join("output/y-of-a-task")).unwrap(), "x\n");
    assert!(!on_the_machine.exists());
    instance.shutdown();
}

#[test]
fn damaged_and_wrong_images_are_refused_by_their_reason_and_leave_nothing() {
    const TEST: &str = "damaged_and_wrong_images_are_refused_by_their_reason_and_leave_nothing";
    if !has_tools(TEST, &["umoci", "busybox"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let image = small(&dir.path().join("a"), &[], |_| {});
    let layout = dir.path().join("a/oci");
    // The largest blob is the layer: one byte in it is changed.
    let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path());
    let layer = blobs.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&layer).unwrap();
    let whole = bytes.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&layer, &bytes).unwrap();
    let why = |job: &str, image: &str| {
        let report = instance.run_job(job, &format!("image = {image:?}\ncommand = [\"/bin/busybox\", \"true\"]"));
        assert_eq!(report["state"], "failed");
        report["reason"].as_str().unwrap().to_owned()
    };
    let changed = why("changed", &image);
    assert!(changed.contains("digest") || changed.contains("damaged") || changed.contains("unpacked"), "{changed}");
    fs::write(&layer, &whole[..middle]).unwrap();
    why("cut", &image);
    let store = instance.root().join("var/lib/trainyard/images");
    let names = |part: &str| fs::read_dir(store.join(part)).unwrap().count();
    assert_eq!((names("layers"), names("drafts"), names("manifests")), (0, 0, 0));
    assert!(why("tag", &format!("oci:{}:other", layout.display())).contains("no image other"));
    assert!(why("none", "oci:/nowhere/at/all:t").contains("/nowhere/at/all"));
    // The file is whole again: nothing remembers that it was not.
    fs::write(&layer, &whole).unwrap();
    let report = instance.run_job("whole", &format!("image = {image:?}\ncommand = [\"/bin/busybox\", \"true\"]"));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    // A secret that only root may read is not read for somebody else's job.
    let secret = dir.path().join("secret");
    fs::rename(dir.path().join("a"), &secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    let file = instance.jobs_d().join(".theirs.new");
    fs::write(
        &file,
        format!("image = \"oci:{}:t\"\ncommand = [\"/bin/busybox\", \"true\"]", secret.join("oci").display()),
    )
    .unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4321)).unwrap();
    fs::rename(file, instance.jobs_d().join("theirs.toml")).unwrap();
    let report = instance.wait_end("theirs", 1);
    assert!(report["reason"].as_str().unwrap().contains("ermission denied"), "{report:#}");
    instance.shutdown();
}

#[test]
fn archives_are_imported_tagged_removed_and_pruned_but_not_from_under_a_task() {
    const TEST: &str = "archives_are_imported_tagged_removed_and_pruned_but_not_from_under_a_task";
    if !has_tools(TEST, &["umoci", "busybox", "skopeo"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "[limits]\ncpu = 16\nmemory = \"16GiB\"\n") else { return };
    let dir = tempfile::tempdir().unwrap();
    let layout = small(dir.path(), &["--config.cmd=/bin/busybox", "--config.cmd=echo", "--config.cmd=ran"], |_| {});
    let archive = |kind: &str, name: &str| {
        let path = dir.path().join(name).display().to_string();
        let target =
            if kind == "docker-archive" { format!("{kind}:{path}:team/small:1") } else { format!("{kind}:{path}:t") };
        run("skopeo", &["copy", &layout, &target]);
        path
    };
    let (docker, oci) = (archive("docker-archive", "d.tar"), archive("oci-archive", "o.tar"));
    run("gzip", &["-k", &docker]);
    assert!(instance.ok(&["image", "import", &docker]).starts_with("docker.io/team/small:1 sha256:"));
    for (name, source) in
        [("a:1", format!("oci-archive:{oci}")), ("b:1", format!("{docker}.gz")), ("c:1", layout.clone())]
    {
        instance.ok(&["image", "import", "--name", name, &source]);
        let report = instance.run_job(&name[..1], &format!("image = {name:?}"));
        assert_eq!(report["state"], "succeeded", "{report:#}");
        assert_eq!(instance.log(&name[..1], "main-0"), "ran\n");
    }
    for (job, image) in [
        ("g", format!("docker-archive:{docker}")),
        ("h", format!("docker-archive:{docker}.gz")),
        ("i", format!("oci-archive:{oci}:t")),
        ("j", layout.strip_suffix(":t").unwrap().to_owned()),
    ] {
        let report = instance.run_job(job, &format!("image = {image:?}"));
        assert_eq!(report["state"], "succeeded", "{image}: {report:#}");
    }
    let store = instance.root().join("var/lib/trainyard/images");
    let layers = || fs::read_dir(store.join("layers")).unwrap().count();
    assert_eq!(layers(), 1, "the same layer is there once");
    instance.drop_job("holds", "image = \"a:1\"\ncommand = [\"/bin/busybox\", \"sleep\", \"600\"]");
    instance.wait_state("holds", "running");
    instance.ok(&["image", "tag", "a:1", "again:2"]);
    instance.ok(&["image", "rm", "a:1", "b:1", "c:1", "team/small:1", "again:2"]);
    assert_eq!(instance.cli(&["image", "show", "a:1"]).status.code(), Some(4));
    // What jobs have brought goes when nobody has used it for long enough.
    assert!(instance.ok(&["image", "prune", "--unused", "1h"]).contains(" in 0 layer(s)"));
    assert!(instance.ok(&["image", "prune", "--unused", "0s"]).contains("removed docker-archive:"));
    assert!(instance.ok(&["image", "prune"]).contains(" in 0 layer(s)"));
    assert_eq!(layers(), 1, "a task still runs from it");
    instance.ok(&["stop", "holds"]);
    instance.wait_end("holds", 1);
    wait_for("the clean-up", || {
        fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().next().is_none().then_some(())
    });
    assert!(instance.ok(&["image", "prune"]).contains(" in 1 layer(s)"));
    assert_eq!(layers(), 0);
    // A run that waits has its image, whatever becomes of the name.
    instance.ok(&["image", "import", "--name", "waits:1", &docker]);
    instance.drop_job("first", "command = \"sleep 600\"\nresources = { cpu = 1, memory = \"15GiB\" }");
    instance.wait_state("first", "running");
    instance.drop_job("second", "image = \"waits:1\"\nresources = { cpu = 1, memory = \"15GiB\" }");
    wait_for("its turn", || instance.report("second")?["reason"].as_str()?.contains("memory").then_some(()));
    instance.ok(&["image", "rm", "waits:1"]);
    assert!(instance.ok(&["image", "prune", "--unused", "0s"]).contains(" in 0 layer(s)"));
    instance.ok(&["stop", "first"]);
    assert_eq!(instance.wait_end("second", 1)["state"], "succeeded");
    // Public images and presets are seen by every workspace, one's own by oneself alone.
    for (name, kind) in [("p:1", "--public"), ("q:1", "--preset"), ("r:1", "--workspace=default")] {
        instance.ok(&["image", "import", "--name", name, kind, &docker]);
    }
    fs::create_dir_all(instance.jobs_d().join("vision")).unwrap();
    for (name, state) in [("p:1", "succeeded"), ("q:1", "succeeded")] {
        let job = format!("vision/{}", &name[..1]);
        let report = instance.run_job(&job, &format!("image = {name:?}"));
        assert_eq!(report["state"], state, "{report:#}");
    }
    let as_nobody = |arguments: &[&str]| {
        let output = std::process::Command::new("setpriv")
            .args(["--reuid=4321", "--regid=4321", "--clear-groups", crate::support::BINARY, "--root"])
            .arg(instance.root())
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let listed = as_nobody(&["image", "ls"]);
    assert!(listed.contains("p:1") && listed.contains("q:1") && !listed.contains("r:1"), "{listed}");
    assert!(as_nobody(&["image", "show", "r:1"]).contains("there is no image"));
    assert!(as_nobody(&["image", "import", "--name", "s:1", "--preset", &docker]).contains("administrator"));
    // Who may not write job files may not bring images.
    let refused = std::process::Command::new("setpriv")
        .args(["--reuid=4321", "--regid=4321", "--clear-groups", crate::support::BINARY, "--root"])
        .arg(instance.root())
        .args(["image", "import", "--name", "x:1", &docker])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("you may not"), "{refused:?}");
    instance.shutdown();
}

/// What a verb shows on a terminal.
fn on_a_terminal(instance: &Instance, words: &str) -> String {
    let line = format!("{} --root {} {words}", super::support::BINARY, instance.root().display());
    let output = std::process::Command::new("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Layers that lie in the store, all of them whole.
pub(crate) fn whole_layers(store: &Path) -> usize {
    let layers: Vec<_> = fs::read_dir(store.join("layers")).unwrap().map(|entry| entry.unwrap().path()).collect();
    for layer in &layers {
        assert!(layer.join("layer.json").exists() && layer.join("fs").is_dir(), "half a layer: {}", layer.display());
    }
    layers.len()
}

#[test]
fn a_daemon_killed_while_an_image_comes_in_leaves_no_half_of_it_and_goes_on() {
    const TEST: &str = "a_daemon_killed_while_an_image_comes_in_leaves_no_half_of_it_and_goes_on";
    if !has_tools(TEST, &["mmdebstrap", "umoci", "busybox", "skopeo", "docker-registry", "htpasswd", "ip"]) {
        return;
    }
    let config = "[limits]\ncpu = 16\nmemory = \"16GiB\"\n[images]\nplain_http = [\"127.0.0.1:5000\"]\n";
    let layout = format!("oci:{}:py", debian().display());
    for image in ["127.0.0.1:5000/team/torch:2", &layout] {
        let Some(mut instance) = Instance::start(TEST, config) else { return };
        let store = instance.root().join("var/lib/trainyard/images");
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::start(dir.path(), instance.network_holder(), None, 5000);
        let target = format!("docker://{}/team/torch:2", registry.address);
        in_network(
            instance.network_holder(),
            "skopeo",
            &["copy", "--quiet", "--dest-tls-verify=false", &layout, &target],
        );
        instance.drop_job("job", &format!("image = {image:?}"));
        let count = |part: &str| fs::read_dir(store.join(part)).map_or(0, Iterator::count);
        // At the first byte of a download, at the first draft, at the first finished layer, at the record of the image.
        let moments: [&dyn Fn() -> bool; 4] = [
            &|| count("downloads") > 0 || count("drafts") > 0,
            &|| count("drafts") > 0,
            &|| count("layers") > 0,
            &|| count("manifests") > 0,
        ];
        for moment in moments {
            wait_for("the moment to kill", || (moment() || instance.state("job") == "succeeded").then_some(()));
            instance.kill_daemon();
            whole_layers(&store);
            instance.restart_daemon();
            whole_layers(&store);
        }
        let report = instance.wait_end("job", 1);
        assert_eq!(report["state"], "succeeded", "{image}: {report:#}");
        assert_eq!(instance.log("job", "main-0"), "hello from the image\n");
        // What no image needs is taken away beside the job, by way of the drafts.
        wait_for("nothing half to be left", || ((count("drafts"), count("downloads")) == (0, 0)).then_some(()));
        instance.shutdown();
    }
}

#[test]
fn many_jobs_that_want_one_image_at_once_get_it_and_it_is_fetched_once() {
    const TEST: &str = "many_jobs_that_want_one_image_at_once_get_it_and_it_is_fetched_once";
    if !has_tools(TEST, &["mmdebstrap", "umoci", "busybox", "skopeo", "docker-registry", "htpasswd", "ip"]) {
        return;
    }
    let config = "[limits]\ncpu = 16\nmemory = \"16GiB\"\n[images]\nplain_http = [\"127.0.0.1:5000\"]\n";
    let Some(instance) = Instance::start(TEST, config) else { return };
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(dir.path(), instance.network_holder(), None, 5000);
    let target = format!("docker://{}/team/torch:2", registry.address);
    let layout = format!("oci:{}:py", debian().display());
    in_network(instance.network_holder(), "skopeo", &["copy", "--quiet", "--dest-tls-verify=false", &layout, &target]);
    for number in 0..6 {
        instance
            .drop_job(&format!("j{number}"), "image = \"127.0.0.1:5000/team/torch:2\"\nresources.memory = \"128MiB\"");
    }
    for number in 0..6 {
        let report = instance.wait_end(&format!("j{number}"), 1);
        assert_eq!(report["state"], "succeeded", "{report:#}");
    }
    let store = instance.root().join("var/lib/trainyard/images");
    let shown = instance.ok(&["image", "show", "127.0.0.1:5000/team/torch:2", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let layers = shown["record"]["layers"].as_array().unwrap().len();
    assert_eq!(whole_layers(&store), layers + 1, "those of the image, and its top");
    let raw = ["inspect", "--tls-verify=false", "--raw", &target];
    let manifest: serde_json::Value =
        serde_json::from_str(&in_network(instance.network_holder(), "skopeo", &raw)).unwrap();
    let fetched = registry.fetched_blobs();
    for layer in manifest["layers"].as_array().unwrap() {
        let times = fetched.iter().filter(|blob| layer["digest"] == blob.as_str()).count();
        assert_eq!(times, 1, "{layer}: {fetched:#?}");
    }
    instance.shutdown();
}

#[test]
fn an_image_that_does_not_fit_is_told_with_what_is_free_and_leaves_nothing() {
    const TEST: &str = "an_image_that_does_not_fit_is_told_with_what_is_free_and_leaves_nothing";
    if !has_tools(TEST, &["mmdebstrap", "umoci", "busybox", "skopeo", "docker-registry", "htpasswd", "ip"]) {
        return;
    }
    let config =
        "[limits]\ncpu = 16\nmemory = \"16GiB\"\nmin_free = \"0\"\n[images]\nplain_http = [\"127.0.0.1:5000\"]\n";
    let Some(mut instance) = Instance::prepare(TEST, config) else { return };
    let store = instance.root().join("var/lib/trainyard/images");
    fs::create_dir_all(&store).unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=40m", "small", &store.display().to_string()]);
    instance.restart_daemon();
    let layout = format!("oci:{}:py", debian().display());
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(dir.path(), instance.network_holder(), None, 5000);
    let pulled = format!("{}/team/torch:2", registry.address);
    let copy = ["copy", "--quiet", "--dest-tls-verify=false", &layout, &format!("docker://{pulled}")];
    in_network(instance.network_holder(), "skopeo", &copy);
    // Before it comes, while it comes, in its first layers and in its last.
    for (number, mib) in [40, 55, 75, 100, 130].into_iter().enumerate() {
        run("mount", &["-o", &format!("remount,size={mib}m"), &store.display().to_string()]);
        for (way, image) in [("l", &layout), ("p", &pulled)] {
            let report = instance.run_job(&format!("{way}{number}"), &format!("image = {image:?}"));
            assert_no_space(&store, &text(&report["reason"]), mib << 20);
        }
    }
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
    run("umount", &[&store.display().to_string()]);
}

/// It is told, and nothing half of it is left.
fn assert_no_space(store: &Path, reason: &str, size: u64) {
    // Bytes wanted, and bytes free.
    let told: Vec<&str> = reason.split("there is no space for the image: ").nth(1).unwrap().split(", ").collect();
    let amount = |text: &str| text.split(' ').next().unwrap().parse::<trainyard::ids::Bytes>().unwrap().0;
    let (wanted, free) = (amount(told[0]), amount(told[1]));
    let is_more = told[0].contains(" and more ");
    assert!((wanted > free || (is_more && wanted == free)) && free < size, "{reason}");
    assert!(told[1].contains("are free on the disk of") && reason.contains("prune"), "{reason}");
    assert_eq!(whole_layers(store), fs::read_dir(store.join("layers")).unwrap().count());
    assert_eq!(fs::read_dir(store.join("drafts")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(store.join("manifests")).unwrap().count(), 0);
}

#[test]
fn layers_are_copied_where_they_cannot_be_shown_with_other_owners() {
    const TEST: &str = "layers_are_copied_where_they_cannot_be_shown_with_other_owners";
    if !has_tools(TEST, &["umoci", "busybox"]) {
        return;
    }
    let Some(mut instance) = Instance::prepare(TEST, "") else { return };
    let store = instance.root().join("var/lib/trainyard/images");
    fs::create_dir_all(&store).unwrap();
    // ramfs knows no id-mapped mounts.
    run("mount", &["-t", "ramfs", "plain", &store.display().to_string()]);
    instance.restart_daemon();
    let dir = tempfile::tempdir().unwrap();
    let image = small(dir.path(), &[], |root| {
        fs::write(root.join("roots"), "x").unwrap();
        fs::write(root.join("theirs"), "x").unwrap();
        std::os::unix::fs::chown(root.join("theirs"), Some(33), Some(34)).unwrap();
    });
    let text = format!(
        "image = {image:?}\ncommand = [\"/bin/busybox\", \"stat\", \"-c\", \"%n %u %g\", \"/roots\", \"/theirs\"]"
    );
    let file = instance.jobs_d().join(".job.new");
    fs::write(&file, text).unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4321)).unwrap();
    fs::rename(file, instance.jobs_d().join("job.toml")).unwrap();
    let report = instance.wait_end("job", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("job", "main-0"), "/roots 0 0\n/theirs 33 34\n");
    assert!(store.join("shifted").exists(), "by a copy, and not by a mount");
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
    run("umount", &[&store.display().to_string()]);
}
