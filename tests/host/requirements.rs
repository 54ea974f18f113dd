//! Python packages that code lists, installed before the command.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::Value;

use super::support::{Instance, skip, text, wait_for};

/// A package of one module and one program, as pip takes it.
const WHEEL: &str = r#"
import sys, zipfile
info = 'tiny-1.0.dist-info/'
with zipfile.ZipFile(sys.argv[1] + '/tiny-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('tiny.py', 'WORD = "it is there"\ndef say():\n    print("said")\n')
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + 'entry_points.txt', '[console_scripts]\ntiny-says = tiny:say\n')
    wheel.writestr(info + 'RECORD', '')
"#;
/// Code that is a package, by a backend of its own: what it installs is not in the code itself.
const PACKAGE: [(&str, &str); 4] = [
    ("setup.py", "from setuptools import setup\nsetup()\n"),
    ("pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"),
    (
        "backend.py",
        "import zipfile\n\
         def build_wheel(directory, config_settings=None, metadata_directory=None):\n    \
             open('built', 'w').close()\n    \
             info, name = 'own-1.0.dist-info/', 'own-1.0-py3-none-any.whl'\n    \
             with zipfile.ZipFile(f'{directory}/{name}', 'w') as wheel:\n        \
                 wheel.writestr('own.py', 'WORD = \"installed\"')\n        \
                 wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n')\n        \
                 wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n        \
                 wheel.writestr(info + 'RECORD', '')\n    \
             return name\n",
    ),
    ("train.py", "import own, sys, tiny\nprint(own.WORD, tiny.WORD, __spec__.name, sys.argv[1:])\n"),
];
const OFFLINE: &str = "env = { PIP_NO_INDEX = \"1\", PIP_FIND_LINKS = \"/dataset\" }\n";

fn has_pip(test: &str) -> bool {
    let asked = Command::new("/usr/bin/python3").args(["-m", "pip", "--version"]).output();
    let found = asked.is_ok_and(|out| out.status.success());
    if !found {
        skip(test, "python3-pip");
    }
    found
}

/// Drops the job as somebody else's and waits for its end.
fn run_for_ada(instance: &Instance, name: &str, more: &str) -> Value {
    let file = instance.jobs_d().join(".new");
    fs::write(&file, format!("code = \"tiny\"\ndatasets = [\"wheels\"]\n{OFFLINE}{more}")).unwrap();
    std::os::unix::fs::chown(&file, Some(4321), Some(4322)).unwrap();
    fs::rename(file, instance.jobs_d().join(format!("{name}.toml"))).unwrap();
    instance.wait_end(name, 1)
}

#[test]
fn listed_packages_are_installed_once_and_seen_by_every_task() {
    const TEST: &str = "listed_packages_are_installed_once_and_seen_by_every_task";
    if !has_pip(TEST) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "[limits]\ncpu = 16\nmemory = \"16GiB\"\n") else { return };
    let (code, wheels) = (instance.mount().join("code/tiny"), instance.mount().join("datasets/wheels"));
    fs::create_dir_all(&code).unwrap();
    fs::create_dir_all(&wheels).unwrap();
    fs::write(wheels.join("README"), "packages come here").unwrap();
    let imports = "command = \"python3 -c 'import tiny; print(tiny.WORD)' && /usr/bin/python3 -c 'import tiny' && \
                   tiny-says; touch /run/trainyard/requirements/x\"\n";
    let three = "[roles.worker]\ncount = 3\n";
    // Without a list there is nothing to install, unless it was asked for.
    let wanted = format!("requirements = true\n{imports}");
    let none = run_for_ada(&instance, "none", &wanted);
    assert!(text(&none["reason"]).contains("there is no requirements.txt in the code's root"), "{none:#}");
    fs::write(code.join("requirements.txt"), "tiny==1.0\n").unwrap();
    let unasked = run_for_ada(&instance, "unasked", "command = \"python3 -c 'import tiny'\"\n");
    assert_eq!(unasked["state"], "failed", "nobody has asked for them: {unasked:#}");
    // What is not to be had is told by its name.
    let missing = run_for_ada(&instance, "missing", &wanted);
    let told = "requirements.txt cannot be installed: No matching distribution found for tiny==1.0";
    assert!(text(&missing["reason"]).contains(told), "{missing:#}");
    assert!(instance.log("missing", "main-0").contains("Could not find a version that satisfies"));
    // Half of it is no harm; three tasks that want the same install it once.
    assert!(Command::new("python3").args(["-c", WHEEL]).arg(&wheels).status().unwrap().success());
    let installed = run_for_ada(&instance, "installed", &format!("{wanted}{three}"));
    assert_eq!(installed["state"], "succeeded", "{installed:#}");
    let logs = [0, 1, 2].map(|index| instance.log("installed", &format!("worker-{index}")));
    let did = logs.iter().filter(|log| log.contains("trainyard: installing /code/requirements.txt")).count();
    assert!(did == 1 && logs.iter().all(|log| log.contains("it is there\nsaid\n")), "{logs:#?}");
    // Whoever comes later finds it, and leaves it as it is: also under the contract of a platform that does so by itself.
    for (name, how) in [("again", "requirements = true\n"), ("pai", "contract = \"pai\"\n")] {
        let again = run_for_ada(&instance, name, &format!("{how}{imports}"));
        let log = instance.log(name, &text(&again["tasks"][0]["task"]));
        assert!(log.starts_with("it is there\nsaid\n") && log.contains("Read-only file system"), "{again:#} {log}");
    }
    let off = run_for_ada(&instance, "off", "requirements = false\ncontract = \"pai\"\ncommand = \"tiny-says\"\n");
    assert_eq!(off["state"], "failed", "{off:#}");
    let own = instance.root().join("var/lib/trainyard/requirements/default/4321");
    let kept: Vec<_> = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 2, "one environment and the wheels: {kept:?}");
    assert!(kept.iter().all(|path| fs::metadata(path).unwrap().uid() == 4321));
    // Amazon's toolkit installs code that is a package, and runs it as a module.
    PACKAGE.iter().for_each(|(name, content)| fs::write(code.join(name), content).unwrap());
    let amazon = "contract = \"sagemaker\"\n[params]\nsagemaker_program = \"train.py\"\nepochs = 3\n";
    let package = run_for_ada(&instance, "package", amazon);
    let log = instance.log("package", &text(&package["tasks"][0]["task"]));
    let asked = "trainyard: installing /code/requirements.txt\ntrainyard: installing /opt/ml/code\n";
    assert!(log.starts_with(asked), "{package:#} {log}");
    assert!(log.ends_with("installed it is there train ['--epochs', '3']\n"), "{package:#} {log}");
    instance.shutdown();
}

#[test]
fn a_task_that_installs_is_stopped_as_any_other_and_the_next_one_goes_on() {
    const TEST: &str = "a_task_that_installs_is_stopped_as_any_other_and_the_next_one_goes_on";
    if !has_pip(TEST) {
        return;
    }
    let Some(mut instance) = Instance::start(TEST, "") else { return };
    let code = instance.mount().join("code/slow");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("requirements.txt"), "tiny @ file:///run/trainyard/wheels/pipe-1.0.tar.gz\n").unwrap();
    let job =
        "code = \"slow\"\nrequirements = true\nresources.cpu = 0.3\ncommand = \"echo ran\"\nenv.PIP_NO_INDEX = \"1\"\n";
    let wheels = instance.root().join("var/lib/trainyard/requirements/default/0/wheels");
    fs::create_dir_all(&wheels).unwrap();
    // A pipe that nobody writes to: whoever reads it waits.
    nix::unistd::mkfifo(&wheels.join("pipe-1.0.tar.gz"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    instance.drop_job("slow", &format!("{job}[roles.worker]\ncount = 2\n"));
    let log = |instance: &Instance| instance.log("slow", "worker-0") + &instance.log("slow", "worker-1");
    wait_for("one to install", || log(&instance).contains("Processing /run/trainyard/wheels").then_some(()));
    // Also while nobody looks on.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(instance.state("slow"), "running");
    instance.ok(&["stop", "slow"]);
    let report = instance.wait_end("slow", 1);
    assert_eq!(report["state"], "stopped", "{report:#}");
    assert!(!log(&instance).contains("ran"));
    fs::remove_file(wheels.join("pipe-1.0.tar.gz")).unwrap();
    instance.ok(&["rerun", "slow"]);
    let report = instance.wait_end("slow", 2);
    let told = "requirements.txt cannot be installed";
    assert!(text(&report["reason"]).contains(told), "it tries anew, and nothing holds it up: {report:#}");
    instance.shutdown();
}
