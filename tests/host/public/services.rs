//! What people look at while a job runs, by the recipes of docs/JOBS.md and by the shipped template, with the programs that they
//! name: logins, terminals, desktops, notebooks, TensorBoard.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::support::images::run as run_tool;
use super::super::support::{BINARY, ChildGuard, Instance, has_tools};
use super::{CONFIG, OFFLINE, PATIENCE, lay, offer, wheels};

/// Between two questions to a program that is on its way.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(250);

/// Somebody at the machine who goes to what jobs offer.
struct Visitor {
    instance: Instance,
    /// The network of the daemon, for `nsenter`.
    inside: String,
}

impl Visitor {
    fn of(instance: Instance) -> Self {
        let inside = format!("--net=/proc/{}/ns/net", instance.network_holder());
        run_tool("nsenter", &[&inside, "ip", "link", "set", "lo", "up"]);
        Self { instance, inside }
    }

    /// Asks until there is an answer, with pauses that leave the cores to who is asked; in vain, or when the job is over before, it
    /// tells what the task has said.
    fn wait<T>(&self, what: &str, (job, task): (&str, &str), mut ask: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let is_over = || ["succeeded", "failed", "stopped"].contains(&self.instance.state(job).as_str());
        loop {
            match ask() {
                Some(answer) => return answer,
                None if Instant::now() < deadline && !is_over() => std::thread::park_timeout(BETWEEN_QUESTIONS),
                None => panic!("waited in vain for {what}\n{}", self.said_by(job, task)),
            }
        }
    }

    /// All that is known of why a task is not as it should be.
    fn said_by(&self, job: &str, task: &str) -> String {
        let told = |words: &[&str]| {
            let output = self.instance.cli(words);
            format!(
                "trainyard {}:\n{}{}",
                words.join(" "),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        };
        [told(&["status", job]), told(&["events", job]), told(&["logs", task, job])].concat()
    }

    /// What a task says behind `before`, up to a blank, as soon as it does.
    fn hears(&self, job: &str, task: &str, before: &str) -> String {
        let mut follower = Command::new(BINARY);
        follower.arg("--root").arg(self.instance.root()).args(["logs", "-f", task, job]);
        let mut follower = ChildGuard(follower.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
        let (sender, heard) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let why = match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.split_once(before) {
                    Some((_, said)) => return said.split_whitespace().next().unwrap_or_default().to_owned(),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => "in time",
                Err(RecvTimeoutError::Disconnected) => "before it ended",
            };
            panic!("{task} of {job} never said {before:?} {why}\n{}", self.said_by(job, task));
        }
    }

    /// As `trainyard status` tells it.
    fn port_of(&self, job: &str, service: &str) -> String {
        self.wait("its port", (job, &format!("{service}-0")), || {
            let report = self.instance.report(job)?;
            let ports = report["ports"].as_array()?.clone();
            let found = ports.into_iter().find(|port| port["task"] == format!("{service}-0"))?;
            found["published"].as_u64().map(|port| port.to_string())
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(&self.inside).args(words).stdin(Stdio::null());
        command
    }

    fn said(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The words of an `ssh` that goes there, but for what it is to do.
    fn ssh<'a>(port: &'a str, key: &'a str) -> Vec<&'a str> {
        let trusting = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"];
        // Who does not answer is asked again, not waited for.
        let bounded = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=10"];
        [&trusting[..], &bounded, &["-i", key, "-p", port]].concat()
    }

    fn by_ssh(&self, job: &str, key: &str, command: &str) -> String {
        let port = self.port_of(job, "ssh");
        self.said(&[&Self::ssh(&port, key)[..], &["root@localhost", command]].concat())
    }

    fn log_in(&self, job: &str, key: &str, command: &str, told: &str) {
        self.wait("a login", (job, "ssh-0"), || (self.by_ssh(job, key, command) == told).then_some(()));
    }

    /// The key that the template makes for the job, which only its owner can read.
    fn own_key(&self, job: &str) -> String {
        let made = self.instance.mount().join(format!("jobs/{job}/latest/output/ssh/key"));
        self.wait("the job's own key", (job, "ssh-0"), || made.with_extension("pub").exists().then_some(()));
        let metadata = fs::metadata(&made).unwrap();
        let owner = fs::metadata(self.instance.jobs_d().join(format!("{job}.toml"))).unwrap().uid();
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o600, owner));
        let own = self.instance.root().join("own-key");
        fs::copy(&made, &own).unwrap();
        own.display().to_string()
    }

    /// What a TensorBoard of the job shows of `loss`: steps and values.
    fn loss(&self, job: &str, board: &str) -> Vec<(u64, f64)> {
        let port = self.port_of(job, board);
        let address = format!("http://localhost:{port}/data/plugin/scalars/scalars?tag=loss&run=.");
        self.wait("what TensorBoard shows", (job, &format!("{board}-0")), || {
            let shown: Value = serde_json::from_str(&self.said(&["curl", "-s", "-m", "5", &address])).ok()?;
            let points = shown.as_array().filter(|points| points.len() == 3)?;
            points.iter().map(|point| Some((point[1].as_u64()?, point[2].as_f64()?))).collect()
        })
    }

    /// Opens a notebook's page as a browser does, and has a cell run.
    fn run_cell(&self, client: &Path, (job, task): (&str, &str), address: &str, token: &str, code: &str) -> String {
        let patience = PATIENCE.as_secs().to_string();
        let words = ["/usr/bin/python3", "-c", BROWSER, address, token, code, &patience];
        let output = self.command(&words).env("PYTHONPATH", client).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "no cell was run at {address}: {told}\n{}", self.said_by(job, task));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The first of the examples in docs/JOBS.md that has this.
fn example(with: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/JOBS.md")).unwrap();
    let block = text.split("```toml\n").find(|block| block.contains(with)).unwrap();
    block.split("```").next().unwrap().to_owned()
}

fn ship_workbench(instance: &Instance) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs.d/workbench.template.toml");
    fs::copy(shipped, instance.jobs_d().join("workbench.template.toml")).unwrap();
}

#[test]
fn a_login_by_ssh_a_terminal_and_a_desktop_come_with_a_job() {
    let test = "a_login_by_ssh_a_terminal_and_a_desktop_come_with_a_job";
    let tools = ["ip", "nft", "ssh", "ssh-keygen", "curl", "dropbear", "shellinaboxd", "Xtigervnc", "websockify"];
    if !has_tools(test, &tools) {
        return;
    }
    let Some(instance) = Instance::start(test, CONFIG) else { return };
    let key = instance.root().join("key").display().to_string();
    run_tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &key]);
    fs::copy(format!("{key}.pub"), lay(&instance, "work", &[]).join("authorized_keys")).unwrap();
    let example = example("[services.ssh]");
    let train = "python3 train.py --log_dir=/output/logs/worker-$TRAINYARD_TASK_INDEX";
    assert!(example.contains(train));
    let visitor = Visitor::of(instance);
    let instance = &visitor.instance;
    instance.drop_job("work", &example.replace(train, "echo file > /output/of-$TRAINYARD_TASK_INDEX; sleep infinity"));
    let login = "cd /output && cat of-0 of-1 && id -u";
    let pages = |job: &str, key: &str| {
        for page in ["7681/", "6080/vnc.html"] {
            let asked = format!("curl -s -m 5 http://localhost:{page}");
            visitor.wait("a page", (job, "ssh-0"), || visitor.by_ssh(job, key, &asked).contains("<html").then_some(()));
        }
        // Nobody gets there without the key.
        let listening = visitor.by_ssh(job, key, "cat /proc/net/tcp /proc/net/tcp6");
        let open = |port: u16| listening.contains(&format!(" 00000000:{port:04X} "));
        assert!(open(2222) && !open(7681) && !open(6080) && !open(5901), "{listening}");
        // There is one for each worker; that they cannot come up (there is no TensorBoard here) ends nothing.
        let status = instance.ok(&["status", job]);
        assert!(["tensorboard0-0", "tensorboard1-0"].iter().all(|board| status.contains(board)), "{status}");
        assert_eq!(instance.state(job), "running");
    };
    visitor.log_in("work", &key, login, "file\nfile\n0\n");
    pages("work", &key);
    instance.ok(&["stop", "work"]);
    instance.wait_end("work", 1);

    ship_workbench(instance);
    let command = "command=echo file > /output/of-$TRAINYARD_TASK_INDEX; sleep infinity";
    instance.ok(&["new", "bench", "--template", "workbench", "-p", command, "-p", "workers=2"]);
    let own = visitor.own_key("bench");
    visitor.log_in("bench", &own, login, "file\nfile\n0\n");
    pages("bench", &own);
    visitor.instance.shutdown();
}

/// Tells TensorBoard of three steps of a training, below the directory that is named; then goes on for ever.
const TRAIN: &str = r#"import os, signal, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
scale = int(os.environ["TRAINYARD_TASK_INDEX"]) + 1
writer = EventFileWriter(sys.argv[1] if sys.argv[1:] else "/output/logs")
for step in range(3):
    value = Summary.Value(tag="loss", simple_value=scale / 2 ** step)
    writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=[value])))
writer.close()
signal.pause()
"#;

/// The page with its cookies, a kernel, a cell, as JupyterLab does it; prints what the cell prints. However much is said meanwhile
/// that is nothing of the cell (the server greets every 30 s), it ends in time, and tells what it was at.
const BROWSER: &str = r#"import http.cookiejar, json, signal, sys, urllib.request, uuid, websocket
address, token, code, patience = sys.argv[1:]
heard = ["nothing yet"]
def in_vain(*_):
    sys.exit(f"the cell has not ended within {patience} s; of the kernel was heard: {heard[-20:]}")
signal.signal(signal.SIGALRM, in_vain)
signal.alarm(int(patience))
cookies = http.cookiejar.CookieJar()
browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(cookies))
page = browser.open(f"http://{address}/lab?token={token}").read().decode()
assert "JupyterLab" in page, page
has = {cookie.name: cookie.value for cookie in cookies}
asked = urllib.request.Request(f"http://{address}/api/kernels", b"{}", {"X-XSRFToken": has["_xsrf"]})
kernel = json.load(browser.open(asked))["id"]
said = "; ".join(f"{name}={value}" for name, value in has.items())
channels = websocket.create_connection(f"ws://{address}/api/kernels/{kernel}/channels", cookie=said, timeout=300)
session, number = uuid.uuid4().hex, uuid.uuid4().hex
header = {"msg_id": number, "msg_type": "execute_request", "session": session, "username": "", "version": "5.3"}
content = {"code": code, "silent": False}
channels.send(json.dumps({"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}))
while True:
    message = json.loads(channels.recv())
    kind, content = message["header"]["msg_type"], message["content"]
    heard.append((kind, message["parent_header"].get("msg_type"), content.get("execution_state")))
    if message["parent_header"].get("msg_id") != number:
        continue
    if kind == "stream":
        print(content["text"], end="")
    if kind == "error":
        sys.exit("\n".join(content["traceback"]))
    if kind == "status" and content["execution_state"] == "idle":
        break
"#;

/// Where `websocket` is, which a browser would bring.
fn client(instance: &Instance, wheels: &Path) -> PathBuf {
    let place = instance.root().join("client");
    let wheel = fs::read_dir(wheels).unwrap().flatten().map(|wheel| wheel.path());
    let wheel = wheel.into_iter().find(|wheel| wheel.display().to_string().contains("/websocket_client-")).unwrap();
    run_tool("/usr/bin/python3", &["-m", "zipfile", "-e", wheel.to_str().unwrap(), place.to_str().unwrap()]);
    place
}

#[test]
fn a_notebook_runs_code_on_the_job_s_files_and_tensorboard_shows_what_workers_train() {
    const TEST: &str = "a_notebook_runs_code_on_the_job_s_files_and_tensorboard_shows_what_workers_train";
    let Some(wheels) = wheels(TEST, "lab") else { return };
    if !has_tools(TEST, &["ip", "nft", "ssh", "curl", "dropbear", "shellinaboxd", "Xtigervnc", "websockify"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, CONFIG) else { return };
    let code = lay(&instance, "lab", &[]);
    fs::write(code.join("train.py"), TRAIN).unwrap();
    fs::write(code.join("requirements.txt"), "jupyterlab\ntensorboard\nsetuptools\n").unwrap();
    offer(&instance, &wheels);
    let client = client(&instance, &wheels);
    let visitor = Visitor::of(instance);
    let losses = |scale: f64| vec![(0, scale), (1, scale / 2.0), (2, scale / 4.0)];

    // The example: the token that the notebook prints, the port that status tells.
    let (example, image) = (example("[services.notebook]"), "image = \"lab/torch:2\"\n");
    assert!(example.contains(image));
    visitor.instance.drop_job("work", &example.replace(image, &format!("code = \"lab\"\n{OFFLINE}")));
    let token = visitor.hears("work", "notebook-0", "/lab?token=");
    let address = format!("localhost:{}", visitor.port_of("work", "notebook"));
    let cell =
        "open('/output/by-a-cell', 'w').write('kept'); import os, tensorboard; print(sorted(os.listdir('/code')))";
    let printed = visitor.run_cell(&client, ("work", "notebook-0"), &address, &token, cell);
    assert_eq!(printed, "['requirements.txt', 'train.py']\n", "the job's code, and its packages");
    let kept = visitor.instance.mount().join("jobs/work/latest/output/by-a-cell");
    assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
    let refused = format!("http://{address}/api/kernels");
    assert_eq!(visitor.said(&["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", &refused]), "403", "without it");
    assert_eq!(visitor.loss("work", "tensorboard"), losses(1.0));
    visitor.instance.ok(&["stop", "work"]);
    visitor.instance.wait_end("work", 1);

    // The shipped template: a TensorBoard for each worker, and the notebook behind the login.
    ship_workbench(&visitor.instance);
    let command = "python3 train.py /output/logs/$TRAINYARD_ROLE-$TRAINYARD_TASK_INDEX";
    let bench =
        format!("template = \"workbench\"\ncode = \"lab\"\n{OFFLINE}[with]\ncommand = \"{command}\"\nworkers = 2\n");
    visitor.instance.drop_job("bench", &bench);
    for (index, scale) in [(0, 1.0), (1, 2.0)] {
        assert_eq!(visitor.loss("bench", &format!("tensorboard{index}")), losses(scale));
    }
    let (key, port) = (visitor.own_key("bench"), visitor.port_of("bench", "ssh"));
    let led = ["-N", "-L", "8888:localhost:8888", "root@localhost"];
    visitor.log_in("bench", &key, "true && echo in", "in\n");
    let tunnel = ChildGuard(visitor.command(&[&Visitor::ssh(&port, &key)[..], &led].concat()).spawn().unwrap());
    visitor.wait("the notebook", ("bench", "ssh-0"), || {
        let version = visitor.said(&["curl", "-s", "-m", "5", "http://localhost:8888/api"]);
        version.contains("\"version\"").then_some(())
    });
    let printed = visitor.run_cell(&client, ("bench", "ssh-0"), "localhost:8888", "", "import os; print(os.getcwd())");
    assert_eq!(printed, "/output\n");
    drop(tunnel);
    visitor.instance.shutdown();
}
