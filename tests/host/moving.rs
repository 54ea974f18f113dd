//! Screens, at 80 and 120 columns, of what reaches into tasks and of what is brought in, kept and put back; on a terminal also how far it
//! is. (`INSTA_UPDATE=always` writes them anew, and a change is looked at.)

use std::fs;

use super::desk::Desk;
use super::support::images::small;
use super::support::{Instance, has_tools};
use super::terminal::on_terminal;

fn hold(desk: &Desk<'_>, screens: &[(&str, &[&str])]) {
    for columns in [80, 120] {
        for (name, arguments) in screens {
            insta::assert_snapshot!(format!("{name}_{columns}"), desk.screen(columns, arguments));
        }
    }
}

const JOB: &str = "训练-图像分类-第三次尝试";

#[test]
fn screens_of_what_reaches_into_tasks_are_as_they_were_at_80_and_120_columns() {
    let test = "screens_of_what_reaches_into_tasks_are_as_they_were_at_80_and_120_columns";
    let Some(instance) = Instance::start(test, "") else { return };
    // The mount comes a moment after the daemon.
    instance.mount();
    let work = tempfile::tempdir().unwrap();
    let desk = Desk { root: instance.root(), work: work.path() };
    let sleeps = "command = \"sleep infinity\"\nresources.cpu = 0.1\n";
    instance.drop_job(JOB, sleeps);
    instance.drop_job("pair", &format!("{sleeps}roles.ps = {{}}\nroles.worker.count = 2\n"));
    instance.drop_job("held", &format!("{sleeps}state = \"held\"\n"));
    for (job, state) in [(JOB, "running"), ("pair", "running"), ("held", "held")] {
        instance.wait_state(job, state);
    }
    fs::write(work.path().join("notes.txt"), "notes").unwrap();
    fs::write(work.path().join("data.bin"), vec![7; 3 << 20]).unwrap();
    fs::create_dir(work.path().join("results")).unwrap();
    let [out_of, into] = [format!("{JOB}:/etc/hostname"), format!("{JOB}:/tmp")];
    hold(
        &desk,
        &[
            ("exec", &["exec", JOB, "--", "sh", "-c", "echo 输出; echo error >&2; exit 3"]),
            ("exec_of_several", &["exec", "pair", "--", "true"]),
            ("exec_no_task", &["exec", "pair", "worker-7", "--", "true"]),
            ("exec_no_program", &["exec", JOB, "--", "nvidia-smi-of-another-machine"]),
            ("exec_held", &["exec", "held", "--", "true"]),
            ("exec_no_terminal", &["exec", "-it", JOB, "--", "bash"]),
            ("exec_no_command", &["exec", JOB]),
            ("exec_unknown", &["exec", "nope", "--", "true"]),
            ("cp_out", &["cp", &out_of, "results"]),
            ("cp_into", &["cp", "notes.txt", &into]),
            ("cp_of_several", &["cp", "notes.txt", "pair:/tmp"]),
            ("cp_no_file_there", &["cp", &format!("{JOB}:/output/结果/loss.png"), "."]),
            ("cp_no_place_here", &["cp", &out_of, "nowhere/there"]),
            ("cp_no_place_there", &["cp", "notes.txt", &format!("{JOB}:/nowhere/there")]),
            ("cp_no_file_here", &["cp", "笔记.txt", &into]),
            ("cp_not_allowed", &["cp", "notes.txt", &format!("{JOB}:/sys/notes")]),
            ("cp_held", &["cp", "held:/tmp/x", "."]),
            ("cp_here_alone", &["cp", "notes.txt", "copy.txt"]),
            ("cp_there_alone", &["cp", "pair/ps-0:/x", "pair/worker-0:/x"]),
        ],
    );
    for columns in [80, 120] {
        insta::assert_snapshot!(
            format!("cp_into_terminal_{columns}"),
            desk.terminal(columns, &["cp", "data.bin", &into])
        );
        let out = format!("{JOB}:/tmp/data.bin");
        insta::assert_snapshot!(format!("cp_out_terminal_{columns}"), desk.terminal(columns, &["cp", &out, "results"]));
        insta::assert_snapshot!(
            format!("exec_terminal_{columns}"),
            desk.masked(&on_terminal(&mut desk.command(&["exec", "-it", JOB, "--", "stty", "size"]), columns).0)
        );
    }
    instance.ok(&["stop", "--now", JOB, "pair"]);
    instance.shutdown();
}

#[test]
fn screens_of_what_is_brought_in_are_as_they_were_at_80_and_120_columns() {
    let test = "screens_of_what_is_brought_in_are_as_they_were_at_80_and_120_columns";
    if !has_tools(test, &["umoci", "busybox"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    // The mount comes a moment after the daemon.
    instance.mount();
    let work = tempfile::tempdir().unwrap();
    let desk = Desk { root: instance.root(), work: work.path() };
    hold(
        &desk,
        &[
            ("queue_none", &["queue"]),
            ("events_none", &["events"]),
            ("image_ls_none", &["image", "ls"]),
            ("dataset_ls_none", &["dataset", "ls"]),
            ("dataset_ls_none_like_it", &["dataset", "ls", "手写"]),
            ("template_ls_none", &["template", "ls"]),
            ("spec_ls_none", &["spec", "ls"]),
            ("stop_all_none", &["stop", "--all"]),
            ("secret_set_empty", &["secret", "set", "git"]),
            ("secret_set_no_name", &["secret", "set", "my token"]),
            ("image_import_no_file", &["image", "import", "oci-archive:模型镜像.tar"]),
            ("image_import_no_name", &["image", "import", "pytorch/pytorch:2.9"]),
        ],
    );
    let image = small(work.path(), &["--config.cmd", "true"], |_| ());
    fs::write(work.path().join("no-image.tar"), "this is no archive of an image").unwrap();
    let (login, large) = ("{\"auths\": {}}", "x".repeat(2 << 20));
    for columns in [80, 120] {
        let hold = |name: &str, shown: String| insta::assert_snapshot!(format!("{name}_{columns}"), shown);
        hold("secret_set", desk.screen_with(columns, &["secret", "set", "git-令牌"], "token"));
        hold("secret_set_large", desk.screen_with(columns, &["secret", "set", "git"], &large));
        hold("secret_set_login", desk.screen_with(columns, &["secret", "set", "registry.json"], login));
        hold("secret_set_no_login", desk.screen_with(columns, &["secret", "set", "registry.json"], "token"));
        hold("secret_set_no_workspace", desk.screen_with(columns, &["secret", "set", "-w", "vision", "git"], "token"));
        hold("secret_ls_some", desk.screen(columns, &["secret", "ls"]));
        hold("secret_rm_some", desk.screen(columns, &["secret", "rm", "git-令牌", "registry.json"]));
        hold("image_import", desk.screen(columns, &["image", "import", &image, "--name", "视觉/基础镜像:2"]));
        hold("image_import_named", desk.screen(columns, &["image", "import", &image, "--name", "vision/base:2"]));
        hold("image_import_no_image", desk.screen(columns, &["image", "import", "no-image.tar"]));
        hold("image_import_no_tag", desk.screen(columns, &["image", "import", &image.replace(":t", ":2.9")]));
        // In which nothing is there already.
        let again = format!("vision/again:{columns}");
        instance.ok(&["image", "rm", "vision/base:2"]);
        instance.ok(&["image", "prune"]);
        hold("image_import_terminal", desk.terminal(columns, &["image", "import", &image, "--name", &again]));
        instance.ok(&["image", "rm", &again]);
        let dataset = format!("手写数字-{columns}");
        let files = work.path().join("rootfs").display().to_string();
        hold("dataset_import_terminal", desk.terminal(columns, &["dataset", "import", &files, &dataset]));
        instance.ok(&["dataset", "publish", &dataset, "v1"]);
        hold("dataset_verify_terminal", desk.terminal(columns, &["dataset", "verify", &dataset]));
        let stored = instance.root().join("var/lib/trainyard/workspaces/default/datasets").join(&dataset);
        fs::write(stored.join("v1/bin/不在清单里"), "more").unwrap();
        hold("dataset_verify_damaged", desk.screen(columns, &["dataset", "verify", &dataset]));
    }
    instance.shutdown();
}

#[test]
fn screens_of_backups_are_as_they_were_at_80_and_120_columns() {
    let test = "screens_of_backups_are_as_they_were_at_80_and_120_columns";
    let Some(instance) = Instance::start(test, "") else { return };
    // The mount comes a moment after the daemon.
    instance.mount();
    instance.drop_job("held", "command = \"true\"\nstate = \"held\"\n");
    instance.wait_state("held", "held");
    instance.run_job(JOB, "command = \"true\"");
    instance.ok(&["token", "new", "ci"]);
    let work = tempfile::tempdir().unwrap();
    fs::create_dir(work.path().join("备份")).unwrap();
    fs::write(work.path().join("no.tar.zst"), "this is no backup").unwrap();
    for columns in [80, 120] {
        let hold = |name: &str, shown: String| insta::assert_snapshot!(format!("{name}_{columns}"), shown);
        let desk = Desk { root: instance.root(), work: work.path() };
        let file = format!("before-{columns}.tar.zst");
        let named = |text: String| text.replace(&file, "FILE.tar.zst");
        hold("backup", named(desk.screen(columns, &["backup", &file])));
        hold("backup_again", named(desk.screen(columns, &["backup", &file])));
        hold("backup_into", desk.screen(columns, &["backup", "备份"]));
        hold("backup_no_place", desk.screen(columns, &["backup", "nightly"]));
        hold("backup_no_place_for_file", desk.screen(columns, &["backup", "nightly/b.tar.zst"]));
        hold("backup_terminal", desk.terminal(columns, &["backup", "备份"]));
        hold("restore_over_a_daemon", named(desk.screen(columns, &["restore", "--replace", &file])));
        let nothing = tempfile::tempdir().unwrap();
        let desk = Desk { root: nothing.path(), work: work.path() };
        hold("backup_of_nothing", desk.screen(columns, &["backup", "b.tar.zst"]));
        hold("restore_no_file", desk.screen(columns, &["restore", "没有.tar.zst"]));
        hold("restore_no_backup", desk.screen(columns, &["restore", "no.tar.zst"]));
        let cut = fs::read(work.path().join(&file)).unwrap();
        fs::write(work.path().join("cut.tar.zst"), &cut[..cut.len() / 2]).unwrap();
        hold("restore_cut", desk.screen(columns, &["restore", "cut.tar.zst"]));
        hold("restore", named(desk.screen(columns, &["restore", &file])));
        hold("restore_again", named(desk.screen(columns, &["restore", &file])));
        hold("restore_replace", named(desk.screen(columns, &["restore", "--replace", "--with-tokens", &file])));
        hold("restore_terminal", named(desk.terminal(columns, &["restore", "--replace", &file])));
    }
    instance.shutdown();
}
