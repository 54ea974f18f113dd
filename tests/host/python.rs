//! The client for Python, by its own tests against a daemon that runs, and over a daemon that is killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::api::certify;
use super::support::images::in_network;
use super::support::{Instance, has_tools};

fn client() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python")
}

/// Which Python: that of the machine, or another version, as `tests/run --real` has it.
fn interpreter() -> String {
    std::env::var("TRAINYARD_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned())
}

/// Python where the daemon is, with the client and without leaving anything beside its files.
fn python(instance: &Instance, arguments: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", instance.network_holder()));
    command.args([&interpreter(), "-B"]).args(arguments);
    command.env("PYTHONPATH", client()).env("TRAINYARD_ROOT", instance.root()).stdin(Stdio::null());
    for name in ["TRAINYARD_ADDRESS", "TRAINYARD_TOKEN", "TRAINYARD_TOKEN_FILE"] {
        command.env_remove(name);
    }
    command
}

/// None is left out, none fails.
fn passes(mut tests: Command, least: usize) {
    let output = tests.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.trim_end().ends_with("OK"), "{told}");
    let ran = told.split("\nRan ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(ran.parse::<usize>().unwrap() >= least, "{told}");
}

#[test]
fn the_python_client_writes_job_files_and_asks_as_it_says() {
    let mut tests = Command::new(interpreter());
    tests.args(["-B", "-m", "unittest", "-v", "test_offline"]);
    tests.env("PYTHONPATH", client()).current_dir(client().join("tests"));
    passes(tests, 25);
}

#[test]
fn the_python_client_does_with_a_daemon_what_it_says() {
    let test = "the_python_client_does_with_a_daemon_what_it_says";
    if !has_tools(test, &["openssl", "ip"]) {
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    let place = instance.root().join("etc/trainyard");
    certify(&place, "1", "TRUE");
    let config = format!(
        "[limits]\ncpu = 4\nmemory = \"4GiB\"\nstop_grace = \"1s\"\n[network]\nrange = \"10.213.0.0/16\"\n\
         [[listen]]\naddress = \"127.0.0.1:8443\"\ncertificate = \"{0}/cert.pem\"\nkey = \"{0}/key.pem\"\n",
        place.display()
    );
    fs::write(place.join("trainyard.toml"), config).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    in_network(instance.network_holder(), "ip", &["link", "set", "lo", "up"]);
    let token = instance.ok(&["token", "new", "client", "--scope", "jobs"]);
    let file = instance.root().join("token");
    fs::write(&file, token.trim()).unwrap();
    let mut tests = python(&instance, &["-m", "unittest", "-v", "test_live"]);
    tests.current_dir(client().join("tests"));
    let token = instance.ok(&["token", "new", "名.é", "--scope", "read"]);
    let chinese = instance.root().join("token-in-chinese");
    fs::write(&chinese, token.trim()).unwrap();
    tests
        .env("TRAINYARD_TEST_TOKEN_FILE", &file)
        .env("TRAINYARD_TEST_CHINESE_TOKEN_FILE", &chinese)
        .env("TRAINYARD_TEST_CA", place.join("cert.pem"));
    passes(tests, 24);
    instance.shutdown();
}

/// Says when it has begun to wait, and how the job has ended.
const WAIT: &str = r#"
import threading, trainyard
job = trainyard.connect().job("long")
following = job.follow()
print(next(following)["state"], flush=True)
told = []
threading.Thread(target=lambda: told.extend(following), daemon=True).start()
ended = job.wait()
print(ended.state, ended.exit_code, ended.report["run"])
serials = [event["serial"] for event in told]
print(len(serials) == len(set(serials)))
"#;

#[test]
fn who_waits_in_python_notices_no_restart_of_the_daemon() {
    let Some(mut instance) = Instance::start("who_waits_in_python_notices_no_restart_of_the_daemon", "") else {
        return;
    };
    let job = "command = \"until [ -e /output/go ]; do sleep 0.1; done; exit 3\"\n";
    instance.drop_job("long", job);
    instance.wait_state("long", "running");
    let mut waiting = python(&instance, &["-c", WAIT]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().is_some());
    instance.kill_daemon();
    instance.restart_daemon();
    let output = instance.run_dir("long", 1).join("output");
    fs::write(output.join("go"), "").unwrap();
    assert_eq!(lines.next().as_deref(), Some("failed 3 1"));
    assert_eq!(lines.next().as_deref(), Some("True"));
    assert!(waiting.wait().unwrap().success());
    instance.shutdown();
}
