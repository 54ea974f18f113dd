//! Shipped job files, and the verbs that need no daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn trainyard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainyard")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn job_files(below: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    let entries = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

#[test]
fn every_shipped_job_file_is_accepted() {
    let files = job_files("jobs.d");
    assert!(!files.is_empty());
    for path in files {
        let output = trainyard(&["check", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stdout(&output));
    }
}

/// Each file says with `# expect: …` lines what is to be found in it, in order; none means that it is good.
#[test]
fn the_fixtures_get_the_diagnostics_that_they_expect() {
    let files = job_files("tests/data/jobs");
    assert!(files.len() >= 8);
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let expected: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# expect: ")).collect();
        let output = trainyard(&["check", path.to_str().unwrap()]);
        let found = stdout(&output);
        // A good one is told with what its tasks will run.
        let is_told = |line: &&str| !line.ends_with(": ok") && !line.ends_with(": runs") && !line.starts_with("  ");
        let found: Vec<&str> = found.lines().filter(is_told).collect();
        assert_eq!(found.len(), expected.len(), "{}: {found:#?}", path.display());
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.contains(expected), "{}: {found} instead of {expected}", path.display());
        }
        let errors = expected.iter().any(|line| !line.contains("warning"));
        assert_eq!(output.status.success(), !errors, "{}", path.display());
    }
}

#[test]
fn check_says_everything_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    fs::write(&path, "comand = 1\nretries = -1\n").unwrap();
    let output = trainyard(&["check", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output).lines().count(), 2);
    let output = trainyard(&["check", "--json", path.to_str().unwrap()]);
    let first: serde_json::Value = serde_json::from_str(stdout(&output).lines().next().unwrap()).unwrap();
    assert_eq!((first["line"].as_u64(), first["key"].as_str()), (Some(1), Some("comand")));
}

#[test]
fn check_tells_programs_of_good_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("good.toml");
    fs::write(&path, "command = \"train\"\nparams.lr = 0.1\nroles.w.count = 2\n").unwrap();
    let json = |words: &[&str]| -> serde_json::Value {
        let words: Vec<&str> = words.iter().copied().chain([path.to_str().unwrap()]).collect();
        serde_json::from_str(&stdout(&trainyard(&words))).unwrap()
    };
    let good = json(&["check", "--json"]);
    assert_eq!(good["file"], path.to_str().unwrap());
    assert_eq!(good["jobs"][0]["runs"]["w-1"], "/bin/sh -c 'train --lr=0.1'");
    let all = json(&["check", "--json", "--effective"]);
    assert_eq!(all["jobs"][0]["job"], "good");
    assert_eq!(all["jobs"][0]["spec"]["roles"][0]["count"], 2);
}

#[test]
fn contract_show_shows_what_the_platform_starts() {
    let shown = |name: &str| stdout(&trainyard(&["contract", "show", name]));
    let mpi = shown("mpi");
    for word in
        ["Task launcher-0", "OMPI_MCA_plm_rsh_agent=", "I_MPI_HYDRA_HOST_FILE=", "K_MPI_JOB_ROLE=launcher", "worker-1"]
    {
        assert!(mpi.contains(word), "{word}: {mpi}");
    }
    assert!(shown("mpi/bcp").contains("NGC_ARRAY_SIZE=2") && shown("kubeflow").contains("Task worker-1"));
}

#[test]
fn what_there_is_not_has_a_code_of_its_own_and_the_nearest_name() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let jobs = dir.path().join("etc/trainyard/jobs.d");
    fs::create_dir_all(&jobs).unwrap();
    fs::write(jobs.join("train.template.toml"), "command = \"x\"\n[template]\n").unwrap();
    for (words, told) in [
        (&["template", "show", "trian"][..], "did you mean train? `trainyard template ls`"),
        (&["template", "rm", "nope"], "there is no template nope"),
        (&["template", "save", "nope", "t"], "there is no job file of nope; `trainyard ps`"),
        (&["new", "x", "--template", "nope"], "there is no template nope"),
        (&["clone", "nope", "x"], "there is no job file of nope; `trainyard ps`"),
        (&["contract", "show", "nope"], "is no contract"),
        (&["explain", "nope"], "there is no key"),
        (&["model", "ls", "-w", "nope"], "there is no workspace nope"),
        (&["dataset", "ls", "-w", "nope"], "there is no workspace nope"),
        (&["dataset", "import", "/tmp", "d", "-w", "nope"], "there is no workspace nope"),
        (&["spec", "ls", "-w", "nope"], "there is no workspace nope"),
        (&["ps", "-w", "nope"], "there is no workspace nope"),
        (&["queue", "-w", "nope"], "there is no workspace nope"),
        (&["image", "ls", "-w", "nope"], "there is no workspace nope"),
        (&["image", "pull", "a:1", "-w", "nope"], "there is no workspace nope"),
        (&["secret", "ls", "-w", "nope"], "there is no workspace nope"),
        (&["secret", "set", "k", "-w", "nope"], "there is no workspace nope"),
        (&["token", "new", "ci", "-w", "default,nope"], "there is no workspace nope"),
    ] {
        let output = trainyard(&[&["--root", root], words].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(4) && error.contains(told), "{words:?}: {error}");
    }
    assert!(!dir.path().join("etc/trainyard/secrets").exists(), "nothing is written first");
}

#[test]
fn a_line_without_a_verb_is_told_of_those_that_are_for_people() {
    let output = trainyard(&["--root", "/nowhere"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && told.contains("  status ") && !told.contains("  shim "), "{told}");
}

#[test]
fn a_file_that_is_empty_makes_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    fs::create_dir_all(dir.path().join("etc/trainyard/jobs.d")).unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, "\n").unwrap();
    let output = trainyard(&["--root", root, "new", "x", "--from", empty.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is empty; nothing was written"), "{output:?}");
    assert_eq!(fs::read_dir(dir.path().join("etc/trainyard/jobs.d")).unwrap().count(), 0);
    // Nor one of comments, as is left where the rest did not fit on the disk.
    let half = dir.path().join("half.toml");
    for text in ["", "\n\n", "# train\n#command = 'x'\n"] {
        fs::write(&half, text).unwrap();
        let output = trainyard(&["check", half.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{text:?}");
        assert!(
            stdout(&output).contains("half.toml: has no key") && stdout(&output).contains("written half?"),
            "{output:?}"
        );
    }
    fs::create_dir(dir.path().join("half.toml.d")).unwrap();
    fs::write(dir.path().join("half.toml.d/1.toml"), "command = 'true'").unwrap();
    assert!(trainyard(&["check", half.to_str().unwrap()]).status.success(), "its overrides say something");
}

#[test]
fn a_masked_job_is_said_to_be_masked() {
    let dir = tempfile::tempdir().unwrap();
    let link = |name: &str, target: &str| {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(target, &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (masked, linked) = (link("masked.toml", "/dev/null"), link("linked.toml", "/dev/zero"));
    let output = trainyard(&["check", &masked]);
    assert!(output.status.success() && stdout(&output).contains("masked.toml: masked by its link to /dev/null"));
    let output = trainyard(&["check", &linked]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("is a symbolic link; put the file itself here"), "{}", stdout(&output));
}

#[test]
fn explain_knows_keys_and_names_the_nearest() {
    let text = stdout(&trainyard(&["explain", "resources.shm"]));
    assert!(text.contains("half of memory") && text.contains("Size of /dev/shm"), "{text}");
    assert!(stdout(&trainyard(&["explain", "roles.worker.count"])).contains("1 to 1000"));
    assert!(stdout(&trainyard(&["explain", "template.params.lr.help"])).contains("in a sentence"));
    let output = trainyard(&["explain", "resources.cpus"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the nearest is \"resources.cpu\""));
}

#[test]
fn what_is_shown_is_what_runs() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs.d/digits.toml");
    let text = stdout(&trainyard(&["show", "--effective", "--file", file]));
    assert!(
        text.contains("# worker-0 to worker-1 run: /bin/sh -c 'python3 train.py --epochs=12 --lr=0.5 --seed=7'"),
        "{text}"
    );
    for word in [
        "[roles.ps]",
        "serves = true",
        "code = \"digits\"",
        "datasets = [\"digits\"]",
        "max_duration = \"600s\"",
        "ports.grad",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&trainyard(&["show", "--effective", "--json", "--file", file]))).unwrap();
    assert_eq!(json["roles"][1]["args"][2], "python3 train.py --epochs=12 --lr=0.5 --seed=7");
}

#[test]
fn without_a_daemon_the_next_step_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let output = trainyard(&["--root", dir.path().to_str().unwrap(), "ps"]);
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("the daemon does not answer at") && told.contains("trainyard --root DIR daemon"), "{told}");
    assert_eq!(trainyard(&["nonsense"]).status.code(), Some(2));
}

#[test]
fn check_prints_all_that_a_job_comes_to_and_knows_its_workspace_by_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let lab = dir.path().join("jobs.d/vision");
    fs::create_dir_all(&lab).unwrap();
    let file = lab.join("j.toml");
    let text = "contract = \"kubeflow/psflags\"\nframework = \"tensorflow\"\ncommand = \"train\"\n[roles.ps]\n[roles.worker]\nresources.cpu = 2\n";
    fs::write(&file, text).unwrap();
    let output = trainyard(&["check", "--effective", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}");
    for expected in ["network = \"task\"", "cpu = 2", "j-ps-0.vision.svc"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
}

#[test]
fn check_refuses_in_jobs_d_what_the_daemon_refuses_for_whose_it_is_and_who_may_write_it() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let root = tempfile::tempdir().unwrap();
    let jobs_d = root.path().join("etc/trainyard/jobs.d");
    fs::create_dir_all(&jobs_d).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let put = |name: &str, text: &str| {
        let path = jobs_d.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        mode(&path, 0o644);
        path
    };
    let check_in = |directory: &Path, path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainyard"));
        let output =
            command.arg("--root").arg(root.path()).args(["check", path]).current_dir(directory).output().unwrap();
        (output.status.code(), format!("{}{}", stdout(&output), String::from_utf8_lossy(&output.stderr)))
    };
    let check = |path: &Path| check_in(root.path(), path.to_str().unwrap());
    let refused = |path: &Path, why: &str| {
        let (code, told) = check(path);
        assert!(code == Some(1) && told.contains(why) && !told.contains(": ok"), "{}: {code:?} {told}", path.display());
    };
    let job = put("vision/job.toml", "command = \"x\"\n");
    assert_eq!(check(&job).0, Some(0));
    mode(&job, 0o666);
    refused(&job, "everybody may write it (mode 666)");
    // However it is named.
    symlink(&jobs_d, root.path().join("link")).unwrap();
    refused(&root.path().join("link/vision/job.toml"), "everybody may write it");
    let beside = check_in(&jobs_d.join("vision"), "job.toml");
    assert!(beside.0 == Some(1) && beside.1.starts_with("job.toml: everybody may write it"), "{beside:?}");
    let elsewhere = root.path().join("job.toml");
    fs::copy(&job, &elsewhere).unwrap();
    assert_eq!(check(&elsewhere).0, Some(0), "it is for who puts it there to say whose it is");
    mode(&job, 0o644);
    for (name, why) in [
        ("default/a.toml", "the files of default lie in jobs.d itself"),
        ("public/a.toml", "its directory's name cannot name a workspace"),
        ("vision/deep/a.toml", "lies too deep in jobs.d"),
        ("vision/.a.toml", "is skipped"),
        ("a.rpmsave.toml", ""),
    ] {
        let path = put(name, "command = \"x\"\n");
        if why.is_empty() { assert_eq!(check(&path).0, Some(0)) } else { refused(&path, why) }
    }
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let stranger = |path: &Path| chown(path, Some(4_000_001), None).unwrap();
    let over = put("vision/job.toml.d/1.toml", "command = \"theirs\"\n");
    stranger(over.parent().unwrap());
    refused(&job, "belongs neither to the owner of the job file nor to root");
    fs::remove_dir_all(over.parent().unwrap()).unwrap();
    stranger(&put("vision/t.template.toml", "command = \"theirs\"\n"));
    let made = put("vision/made.toml", "template = \"t\"\n");
    refused(&made, "belongs neither to the owner of the job file nor to root");
    // Where its owner cannot take them away they are passed over, also by `show`.
    put("t.template.toml", "command = \"the-one-of-root\"\n");
    mode(&jobs_d.join("vision"), 0o1777);
    let (code, told) = check(&made);
    assert!(code == Some(0) && told.contains("it is passed over") && told.contains("the-one-of-root"), "{told}");
    mode(&jobs_d.join("vision"), 0o755);
    stranger(&jobs_d.join("vision"));
    refused(&job, "its directory belongs to user 4000001, ");
    refused(&jobs_d.join("vision"), "`chown root ");
    let new = ["--root", root.path().to_str().unwrap(), "new", "vision/new", "--template", "t"];
    let new = trainyard(&new);
    let told = String::from_utf8_lossy(&new.stderr).into_owned();
    assert!(!new.status.success() && told.contains("`chown root "), "{told}");
    assert!(!jobs_d.join("vision/new.toml").exists());
}

#[test]
fn dates_of_notes_are_texts_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dated.toml");
    fs::write(&file, "command = 'x'\n[extras]\ndue = 2026-11-30\nz = [{ at = 2026-11-30T08:00:00Z }, inf]\na = 1\n")
        .unwrap();
    let output = trainyard(&["show", "--file", file.to_str().unwrap(), "--json"]);
    let told = stdout(&output);
    let keys = r#""extras":{"due":"2026-11-30","z":[{"at":"2026-11-30T08:00:00Z"},"inf"],"a":1}"#;
    assert!(output.status.success() && told.contains(keys) && !told.contains("private"), "{output:?}");
}
