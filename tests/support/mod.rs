//! What the tests share: an instance of Trainyard in a directory and a network namespace of its own, and waiting for
//! conditions with a bound.

pub(crate) mod images;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_trainyard");
/// Bound for anything that should take a moment; generous, since CI machines are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Looks until `look` finds something; panics with `what` when the patience is over.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_at_most(PATIENCE, what, look)
}

pub(crate) fn wait_at_most<T>(patience: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// True when this machine can run containers; says by name what is skipped otherwise.
pub(crate) fn can_run(test: &str) -> bool {
    let missing = if !nix::unistd::Uid::effective().is_root() {
        "root"
    } else if !Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else {
        return true;
    };
    skip(test, missing);
    false
}

/// True when this machine has the tools; says by name what is missing otherwise.
pub(crate) fn has_tools(test: &str, tools: &[&str]) -> bool {
    let found =
        |tool: &&str| ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|dir| Path::new(dir).join(tool).exists());
    let missing: Vec<_> = tools.iter().filter(|tool| !found(tool)).copied().collect();
    if !missing.is_empty() {
        skip(test, &missing.join(", "));
    }
    missing.is_empty()
}

/// Says that a test is skipped, and tells `tests/run`, which lists what was.
pub(crate) fn skip(test: &str, missing: &str) {
    use std::io::Write;
    let line = format!("SKIPPED {test}: {missing} is missing on this machine");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("TRAINYARD_SKIPPED") {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

/// A process that ends with whoever holds it, also when a test fails.
pub(crate) struct ChildGuard(pub(crate) Child);

impl ChildGuard {
    /// When it has said by its first line that it is ready.
    pub(crate) fn ready(command: &mut Command, says: &str) -> Self {
        let mut guard = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        guard.wait_until_ready(says);
        guard
    }

    /// Its output must be a pipe, of which nothing more is read.
    pub(crate) fn wait_until_ready(&mut self, says: &str) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), says);
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon with everything below one directory. Dropping it stops all of it.
pub(crate) struct Instance {
    dir: tempfile::TempDir,
    daemon: Option<Child>,
    /// Keeps the network namespace.
    network: Option<Child>,
    /// The control group (v2) in which daemons are started, as a service manager does it.
    pub(crate) group: Option<PathBuf>,
    /// A script that is run in a mount namespace of the daemon's own, for those that are started from now on; what such a daemon
    /// mounts nobody else sees.
    pub(crate) view: Option<String>,
    /// The program of daemons that are started from now on.
    pub(crate) program: PathBuf,
    log: Receiver<String>,
    seen: Vec<String>,
}

/// Where instances lie, if not where temporary files do.
static PLACE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();

/// Instances of this process lie in `directory`, which a benchmark has made for that.
#[allow(dead_code, reason = "for benchmarks")]
pub(crate) fn in_directory(directory: &Path) {
    PLACE.get_or_init(|| directory.to_owned());
}

impl Instance {
    /// Starts an instance with `config` as its trainyard.toml; `None` where the machine cannot.
    pub(crate) fn start(test: &str, config: &str) -> Option<Self> {
        let mut instance = Self::prepare(test, config)?;
        instance.start_daemon(&[]);
        instance.wait_ready();
        Some(instance)
    }

    /// The directories of an instance, without a daemon.
    pub(crate) fn prepare(test: &str, config: &str) -> Option<Self> {
        Self::prepare_in(test, config, PLACE.get().unwrap_or(&std::env::temp_dir()))
    }

    /// As [`Self::prepare`], in a directory of the test's own.
    pub(crate) fn prepare_in(test: &str, config: &str, place: &Path) -> Option<Self> {
        if !can_run(test) {
            return None;
        }
        let dir = tempfile::tempdir_in(place).unwrap();
        // Tasks of other users must be able to pass.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(dir.path().join("etc/trainyard/jobs.d")).unwrap();
        let defaults =
            "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"2s\"\n[network]\nrange = \"10.213.0.0/16\"\n";
        let config = if config.is_empty() { defaults } else { config };
        fs::write(dir.path().join("etc/trainyard/trainyard.toml"), config).unwrap();
        let (_, log) = channel();
        Some(Self {
            dir,
            daemon: None,
            network: None,
            group: None,
            view: None,
            program: BINARY.into(),
            log,
            seen: Vec::new(),
        })
    }

    /// Starts the daemon in a network namespace of its own.
    pub(crate) fn start_daemon(&mut self, environment: &[(&str, &str)]) {
        // The same namespace for each daemon of the instance: networks outlive a daemon.
        let holder = self.network.get_or_insert_with(|| {
            let mut command = Command::new("unshare");
            let child = command.args(["--net", "sleep", "infinity"]).stdin(Stdio::null()).spawn().unwrap();
            let own = fs::read_link("/proc/self/ns/net").unwrap();
            let path = format!("/proc/{}/ns/net", child.id());
            wait_for("a network namespace", || fs::read_link(&path).is_ok_and(|other| other != own).then_some(()));
            child
        });
        let mut command = match &self.group {
            None => Command::new("nsenter"),
            Some(group) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $$ > \"$0\" && exec nsenter \"$@\""]).arg(group.join("cgroup.procs"));
                command
            }
        };
        command.arg(format!("--net=/proc/{}/ns/net", holder.id()));
        if let Some(view) = &self.view {
            // What other tests have mounted would live as long as the namespace.
            let script =
                format!("set -e; umount --all --lazy --no-canonicalize --types fuse,nsfs; {view}; exec \"$@\"");
            command.args(["unshare", "--mount", "sh", "-c", &script, "sh"]);
        }
        let mut daemon = command
            .arg(&self.program)
            .arg("--root")
            .arg(self.root())
            .arg("daemon")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = daemon.stderr.take().unwrap();
        let (sender, log) = channel();
        // Ends when the last holder of the pipe does, which may be the mount process.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        self.daemon = Some(daemon);
        self.log = log;
    }

    pub(crate) fn wait_ready(&mut self) {
        self.wait_for_log("daemon: ready");
    }

    /// What the daemon has said so far; for the end of a test.
    pub(crate) fn journal(&self) -> String {
        self.seen.iter().cloned().chain(self.log.try_iter()).collect::<Vec<_>>().join("\n")
    }

    /// Reads no more of what the daemon says: its next line meets a broken pipe.
    pub(crate) fn forget_journal(&mut self) {
        (_, self.log) = channel();
    }

    /// Waits for a line of the daemon's journal.
    pub(crate) fn wait_for_log(&mut self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.log.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(part) {
                        return line;
                    }
                }
                Err(_) => panic!("the daemon never said {part:?}, but: {:#?}", self.seen),
            }
        }
    }

    /// The process that keeps the instance's network namespace.
    pub(crate) fn network_holder(&self) -> u32 {
        self.network.as_ref().unwrap().id()
    }

    pub(crate) fn daemon_pid(&self) -> i32 {
        i32::try_from(self.daemon.as_ref().unwrap().id()).unwrap()
    }

    /// Waits until the daemon has ended by itself.
    pub(crate) fn wait_daemon_end(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        wait_for("the daemon's end", || daemon.try_wait().unwrap());
    }

    pub(crate) fn daemon_has_ended(&mut self) -> bool {
        match &mut self.daemon {
            Some(daemon) => daemon.try_wait().unwrap().is_some(),
            None => true,
        }
    }

    /// SIGKILL, as the kernel would.
    pub(crate) fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    pub(crate) fn restart_daemon(&mut self) {
        self.start_daemon(&[]);
        self.wait_ready();
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A workspace of a group, whose directory of job files it is.
    pub(crate) fn make_workspace(&self, name: &str, group: u32, mode: u32) {
        let files = self.jobs_d().join(name);
        fs::create_dir(&files).unwrap();
        std::os::unix::fs::chown(&files, Some(0), Some(group)).unwrap();
        fs::set_permissions(&files, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn jobs_d(&self) -> PathBuf {
        self.root().join("etc/trainyard/jobs.d")
    }

    /// The mounted default workspace.
    pub(crate) fn mount(&self) -> PathBuf {
        let mount = self.root().join("srv/trainyard/default");
        wait_for("the mount", || mount.is_dir().then_some(()));
        mount
    }

    /// Drops a job file as people should: written aside, then renamed.
    pub(crate) fn drop_job(&self, name: &str, text: &str) {
        // A job of another workspace lies in its directory.
        let target = self.jobs_d().join(format!("{name}.toml"));
        let aside = target.with_file_name(format!(".{}.new", name.replace('/', "-")));
        fs::write(&aside, text).unwrap();
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(aside, target).unwrap();
    }

    pub(crate) fn cli(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY).arg("--root").arg(self.root()).args(arguments).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the daemon reports of a job; `None` while it does not know it.
    pub(crate) fn report(&self, job: &str) -> Option<Value> {
        let output = self.cli(&["status", job, "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    pub(crate) fn state(&self, job: &str) -> String {
        self.report(job).map_or(String::new(), |report| text(&report["state"]))
    }

    pub(crate) fn wait_state(&self, job: &str, state: &str) -> Value {
        let mut last = Value::Null;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(report) = self.report(job) {
                if report["state"] == state {
                    return report;
                }
                last = report;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("{job} does not become {state}: {last:#}\n{}", self.ok(&["events", job]));
    }

    /// Waits until run `run` of the job has ended.
    pub(crate) fn wait_end(&self, job: &str, run: u64) -> Value {
        wait_for(&format!("the end of run {run} of {job}"), || {
            let report = self.report(job)?;
            let ended = ["succeeded", "failed", "stopped"].iter().any(|state| report["state"] == *state);
            (ended && report["run"] == run).then_some(report)
        })
    }

    /// Drops a job and waits for the end of its first run.
    pub(crate) fn run_job(&self, name: &str, text: &str) -> Value {
        self.drop_job(name, text);
        self.wait_end(name, 1)
    }

    /// What a task has said so far; waits until the daemon knows the job, whose file may just have been dropped.
    pub(crate) fn log(&self, job: &str, task: &str) -> String {
        wait_for(&format!("{job} to be known"), || self.report(job));
        self.ok(&["logs", task, job])
    }

    /// Where the daemon keeps the run, behind the mount.
    pub(crate) fn run_dir(&self, job: &str, run: u32) -> PathBuf {
        self.root().join("var/lib/trainyard/workspaces/default/jobs").join(job).join("runs").join(run.to_string())
    }

    /// Stops everything; what is still there afterwards is a failure.
    pub(crate) fn shutdown(mut self) {
        self.ok(&["shutdown"]);
        self.wait_daemon_end();
        assert_eq!(processes_with(&self.root().display().to_string()), Vec::<String>::new());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&self.root().display().to_string()), "{mounts}");
    }
}

impl Instance {
    /// What an end that went wrong has left: processes of the instance, and mounts below its root.
    fn clear_away(&self) {
        let root = self.root().display().to_string();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = pids_with(&root);
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            for (pid, _) in left {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|place| place.starts_with(&root));
        // The last one lies on those before it.
        for place in places.collect::<Vec<_>>().into_iter().rev() {
            let _ = nix::mount::umount2(place, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.daemon_has_ended() {
            // A test that failed half-way: what lives on is stopped by a fresh daemon.
            self.daemon = None;
            if std::thread::panicking() || !processes_with(&self.root().display().to_string()).is_empty() {
                self.start_daemon(&[]);
                let socket = self.root().join("run/trainyard/api.sock");
                let deadline = Instant::now() + Duration::from_secs(10);
                while !socket.exists() && Instant::now() < deadline {
                    std::thread::park_timeout(Duration::from_millis(20));
                }
            }
        }
        if self.daemon.is_some() {
            let _ = self.cli(&["shutdown"]);
        }
        if let Some(mut daemon) = self.daemon.take() {
            // With many tasks that takes its time, and who is killed meanwhile leaves them and the mount.
            let deadline = Instant::now() + PATIENCE;
            while daemon.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < deadline {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.clear_away();
        if let Some(mut holder) = self.network.take() {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Command lines of processes that name `part`.
pub(crate) fn processes_with(part: &str) -> Vec<String> {
    pids_with(part).into_iter().map(|(_, line)| line).collect()
}

/// Processes whose command line names `part`, but not this one.
pub(crate) fn pids_with(part: &str) -> Vec<(i32, String)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (line.contains(part) && pid != i32::try_from(std::process::id()).unwrap()).then_some((pid, line))
    })
    .collect()
}
