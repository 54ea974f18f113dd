//! The API as programs meet it: what it answers, how it refuses, and what clients that mean it badly can do to it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trainyard::api::client::Client;
use trainyard::api::error::CODES;
use trainyard::api::measures::METRICS;
use trainyard::api::wire::JobQuery;

use super::support::images::in_network;
use super::support::{BINARY, Instance, PATIENCE, has_tools, wait_for};

mod clients;
mod hostile;
mod network;
mod sight;

pub(crate) use network::certify;

/// Somebody who is not root; in no group of anybody's.
const NOBODY: u32 = 65534;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Of its head, in small letters.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Its code, which must be one of the table, with that status.
    pub(crate) fn code(&self) -> String {
        let code = self.json()["code"].as_str().unwrap().to_owned();
        assert!(CODES.contains(&(code.as_str(), self.status)), "{self:?}");
        assert!(!self.json()["error"].as_str().unwrap().is_empty());
        code
    }
}

fn connect(instance: &Instance) -> UnixStream {
    let stream = UnixStream::connect(instance.root().join("run/trainyard/api.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// One request on a connection of its own, as `headers` say.
fn ask_with(instance: &Instance, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let mut stream = connect(instance);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // It may be refused before all of it is read.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no answer: {:?}", String::from_utf8_lossy(bytes));
    });
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = &bytes[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_vec() };
    Answer { status, head, body }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        out.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 4 + length..];
        if length == 0 {
            break;
        }
    }
    out
}

pub(crate) fn get(instance: &Instance, path: &str) -> Answer {
    ask_with(instance, "GET", path, "", b"")
}

/// So many times at once.
pub(crate) fn get_at_once(instance: &Instance, path: &str, count: usize) -> Vec<Answer> {
    let ask = |mut stream: UnixStream| {
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        stream
    };
    let asked: Vec<_> = (0..count).map(|_| ask(connect(instance))).collect();
    let answer = |mut stream: UnixStream| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        parse(&bytes)
    };
    asked.into_iter().map(answer).collect()
}

/// As somebody else, for whom root asks.
pub(crate) fn ask_as(instance: &Instance, uid: u32, method: &str, path: &str, body: &[u8]) -> Answer {
    ask_with(instance, method, path, &format!("trainyard-for-user: {uid}\r\n"), body)
}

const HELD: &str = "state = \"held\"\ncommand = \"true\"\n";

/// A workspace where everybody may drop job files.
pub(crate) fn open_workspace(instance: &Instance, name: &str) {
    let directory = instance.jobs_d().join(name);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).unwrap();
    let home = instance.root().join("var/lib/trainyard/workspaces").join(name);
    wait_for("the workspace", || home.join("jobs").is_dir().then_some(()));
}

#[test]
fn lists_come_in_pages_and_every_refusal_has_a_code() {
    let Some(instance) = Instance::start("lists_come_in_pages_and_every_refusal_has_a_code", "") else { return };
    for name in ["alpha", "beta", "gamma"] {
        instance.drop_job(name, HELD);
        instance.wait_state(name, "held");
    }
    let names = |answer: &Answer| {
        let list = answer.json();
        list["jobs"].as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = get(&instance, "/v1/jobs?sort=-name&limit=2");
    assert_eq!((names(&first), first.json()["total"].as_u64()), (vec!["gamma".into(), "beta".into()], Some(3)));
    assert!(first.head.contains("cache-control: no-store"), "{}", first.head);
    // It is escaped itself already.
    let next = first.json()["next"].as_str().unwrap().replace('%', "%25");
    let second = get(&instance, &format!("/v1/jobs?sort=-name&limit=2&after={next}"));
    assert_eq!((names(&second), second.json().get("next").cloned()), (vec!["alpha".to_owned()], None));
    assert_eq!(names(&get(&instance, "/v1/jobs?name=gmama&state=held,running&user=root")), ["gamma"]);
    assert_eq!(names(&get(&instance, "/v1/jobs?until=1000")), Vec::<String>::new());
    // Who reads all pages sorts by what may change between them when all are there.
    let pages = |sort: &str| {
        let query = JobQuery { sort: Some(sort.to_owned()), limit: Some(1), ..JobQuery::default() };
        let client = Client::new(&instance.root().join("run/trainyard/api.sock"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let list = runtime.block_on(client.jobs(&query)).unwrap();
        assert_eq!((list.total, list.next), (4, None));
        let lines = runtime.block_on(client.job_lines(&query)).unwrap();
        assert_eq!((lines.total, lines.next, lines.serial), (4, None, list.serial));
        let told: Vec<_> = list.jobs.iter().map(|job| (&job.job, job.state, &job.reason, job.owner, job.run)).collect();
        let lines: Vec<_> =
            lines.jobs.iter().map(|job| (&job.job, job.state, &job.reason, job.owner, job.run)).collect();
        assert_eq!(lines, told);
        list.jobs.into_iter().map(|job| job.job).collect::<Vec<_>>()
    };
    instance.drop_job("broken", "command = 3");
    instance.wait_state("broken", "invalid");
    assert_eq!(pages("state"), ["alpha", "beta", "gamma", "broken"]);
    assert_eq!(pages("-state"), ["broken", "alpha", "beta", "gamma"]);
    assert_eq!(pages("-duration"), ["alpha", "beta", "broken", "gamma"], "none has begun");
    // The command line asks in the same way.
    assert!(instance.ok(&["ps", "--name", "alpah"]).contains("alpha"));
    assert!(!instance.ok(&["ps", "--sort", "-created", "bet"]).contains("gamma"));

    let code = |method: &str, path: &str, body: &[u8]| ask_with(&instance, method, path, "", body).code();
    assert_eq!(code("GET", "/v1/nothing", b""), "no_such_path");
    assert_eq!(code("GET", "/v1/jobs?colour=red", b""), "bad_request");
    assert_eq!(code("GET", "/v1/jobs?limit=0", b""), "bad_request");
    assert_eq!(code("GET", "/v1/jobs?after=nonsense", b""), "bad_request");
    assert_eq!(code("GET", "/v1/jobs/default/none", b""), "no_such_job");
    assert_eq!(code("GET", "/v1/jobs/default/%ff", b""), "bad_request");
    assert_eq!(code("POST", "/v1/jobs/default/alpha/extend?by_ms=1", b""), "no_time_limit");
    assert_eq!(code("DELETE", "/v1/jobs/default/alpha", b""), "still_running");
    assert_eq!(code("PUT", "/v1/jobs/default/x/file", b"command = 3"), "invalid_job");
    assert_eq!(code("PUT", "/v1/jobs/default/x/file", &vec![b'#'; 300 << 10]), "body_too_large");
    assert_eq!(code("PUT", "/v1/jobs/default/x/file", b""), "bad_request");
    assert_eq!(code("POST", "/v1/tokens", b"{}"), "bad_request");
    let wrong = ask_with(&instance, "PATCH", "/v1/jobs/default/alpha", "", b"");
    assert_eq!((wrong.code().as_str(), wrong.head.contains("allow: get, head, delete")), ("method_not_allowed", true));
    let other = |path: &str| ask_as(&instance, NOBODY, "GET", path, b"").code();
    assert_eq!(other("/v1/jobs/default/alpha/logs"), "not_yours");
    assert_eq!(other("/metrics"), "root_only");
    assert_eq!(other("/v1/secrets/default"), "root_only");
    instance.shutdown();
}

#[test]
fn health_readiness_and_numbers_are_told_under_their_documented_names() {
    let test = "health_readiness_and_numbers_are_told_under_their_documented_names";
    let quota = "[limits]\ncpu = 4\nmemory = \"4GiB\"\nstop_grace = \"1s\"\n[workspaces.default]\nstorage = \"1GiB\"\n";
    let Some(instance) = Instance::start(test, quota) else { return };
    assert_eq!(get(&instance, "/healthz").json()["status"], "ok");
    // The mount takes a moment.
    let ready = wait_for("readiness", || Some(get(&instance, "/readyz")).filter(|ready| ready.status == 200));
    assert_eq!(ready.json()["ready"], true);
    // Where nothing may start for want of room, that is no machine that is ready, however much there is.
    let file = instance.root().join("etc/trainyard/trainyard.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config.replace("[limits]\n", "[limits]\nmin_free = \"4000000GiB\"\n")).unwrap();
    let full = wait_for("no room", || Some(get(&instance, "/readyz")).filter(|ready| ready.status == 503)).json();
    assert!(full["checks"][2]["says"].as_str().unwrap().contains("limits.min_free"), "{full:#}");
    let looked = instance.cli(&["doctor", "disk"]);
    assert!(
        !looked.status.success() && String::from_utf8_lossy(&looked.stdout).contains("limits.min_free"),
        "{looked:?}"
    );
    fs::write(&file, config).unwrap();
    wait_for("room", || (get(&instance, "/readyz").status == 200).then_some(()));
    instance.drop_job("kept", HELD);
    instance.wait_state("kept", "held");
    instance.drop_job("big", "command = \"true\"\n[resources]\ncpu = 4\nmemory = \"1GiB\"\n");
    instance.wait_end("big", 1);
    let page = get(&instance, "/metrics");
    let text = page.text();
    assert!(page.head.contains("text/plain; version=0.0.4"), "{}", page.head);
    for line in [
        "trainyard_jobs{workspace=\"default\",state=\"held\"} 1",
        "trainyard_jobs{workspace=\"default\",state=\"succeeded\"} 1",
        "trainyard_queue_jobs 0",
        "trainyard_storage_quota_bytes{workspace=\"default\"} 1073741824",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let names: Vec<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(names.contains(&plain) || names.contains(&name), "{line}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 1e6 && value("process_open_fds") > 5.0);
    assert!(value("trainyard_round_seconds_count") > 2.0 && value("trainyard_api_connections") >= 1.0);
    let document = get(&instance, "/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    instance.shutdown();
}

/// In the workspace `open`, as job files are.
fn templates_are_written_and_removed(instance: &Instance) {
    let ask = |uid, verb: &str, path: &str, text: &str| ask_as(instance, uid, verb, path, text.as_bytes());
    let text = "command = \"echo ${lr}\"\n[template.params]\nlr = { type = \"number\", default = 1 }\n";
    let (path, file) = ("/v1/templates/open/learn", instance.jobs_d().join("open/learn.template.toml"));
    assert_eq!(ask(NOBODY, "PUT", "/v1/templates/default/learn", text).code(), "forbidden", "jobs.d is root's");
    assert_eq!(ask(NOBODY, "PUT", path, text).status, 201);
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (NOBODY, 0o644));
    assert_eq!(ask(NOBODY, "GET", path, "").json()["params"][0]["name"], "lr");
    assert_eq!(ask(NOBODY, "PUT", &format!("{path}?new=1"), text).code(), "conflict");
    assert_eq!(ask(1234, "PUT", path, text).code(), "forbidden", "it is somebody else's");
    let invalid = ask(NOBODY, "PUT", path, "command = 3");
    assert_eq!((invalid.code().as_str(), &invalid.json()["diagnostics"][0]["line"]), ("invalid_template", &json!(1)));
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "a bad template changes nothing");
    assert_eq!(ask(NOBODY, "PUT", path, &format!("description = \"new\"\n{text}")).status, 200);
    let job = "state = \"held\"\ntemplate = \"learn\"\nwith.lr = 0.5\n";
    assert_eq!(ask(NOBODY, "PUT", "/v1/jobs/open/learned/file", job).status, 201);
    assert_eq!(ask(0, "PUT", "/v1/templates/mine.toml.d/x", text).code(), "bad_request", "that would be an override");
    let no_job = "contract = \"${c}\"\ncommand = \"x\"\n[params]\nc = { type = \"string\", default = \"nope\" }\n";
    let refused = ask(NOBODY, "PUT", "/v1/templates/open/broken", no_job);
    assert_eq!(refused.code(), "invalid_template", "of its defaults no job can be made");
    assert_eq!(ask(1234, "DELETE", path, "").code(), "forbidden");
    assert_eq!((ask(NOBODY, "DELETE", path, "").status, file.exists()), (200, false));
    assert_eq!(ask(NOBODY, "DELETE", path, "").code(), "not_found");
}

#[test]
fn job_files_are_written_whole_as_their_callers_own_and_taken_in_before_the_answer() {
    let test = "job_files_are_written_whole_as_their_callers_own_and_taken_in_before_the_answer";
    let Some(instance) = Instance::start(test, "") else { return };
    open_workspace(&instance, "open");
    let put = |uid, path: &str, text: &str| ask_as(&instance, uid, "PUT", path, text.as_bytes());
    assert_eq!(put(NOBODY, "/v1/jobs/default/mine/file", HELD).code(), "forbidden", "jobs.d is root's");
    let written = put(NOBODY, "/v1/jobs/open/mine/file", HELD);
    assert_eq!(written.status, 201, "{written:?}");
    // Known at once: nothing is waited for.
    let shown = ask_as(&instance, NOBODY, "GET", "/v1/jobs/open/mine", b"").json();
    assert_eq!((&shown["report"]["state"], &shown["report"]["owner"]), (&json!("held"), &json!(NOBODY)));
    let file = instance.jobs_d().join("open/mine.toml");
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (NOBODY, 0o644));
    assert_eq!(ask_as(&instance, NOBODY, "GET", "/v1/jobs/open/mine/file", b"").text(), HELD);
    let changed = format!("description = \"new\"\n{HELD}");
    assert_eq!(put(NOBODY, "/v1/jobs/open/mine/file?new=1", &changed).code(), "conflict");
    assert_eq!(put(NOBODY, "/v1/jobs/open/mine/file", &changed).status, 200);
    let shown = ask_as(&instance, NOBODY, "GET", "/v1/jobs/open/mine", b"").json();
    assert_eq!(shown["report"]["description"], "new");
    assert_eq!(put(1234, "/v1/jobs/open/mine/file", HELD).code(), "forbidden", "it is somebody else's");
    let invalid = put(NOBODY, "/v1/jobs/open/mine/file", "commmand = \"true\"");
    assert_eq!(invalid.code(), "invalid_job");
    assert!(invalid.json()["diagnostics"][0]["line"].as_u64() == Some(1), "{invalid:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), changed, "a bad file changes nothing");
    assert_eq!(put(0, "/v1/jobs/mine.toml.d/x/file", HELD).code(), "bad_request", "that would be an override");
    assert_eq!(put(0, "/v1/jobs/open/x.template/file", HELD).code(), "bad_request", "that would be a template");
    let checked = ask_as(&instance, NOBODY, "POST", "/v1/check?workspace=open", b"commmand = 1").json();
    assert_eq!(checked["valid"], false);
    // One that makes several, and a copy.
    let sweep = "state = \"held\"\ncommand = \"echo {{ lr }}\"\n[sweep]\nlr = [1, 2]\n";
    let swept = put(NOBODY, "/v1/jobs/open/many/file", sweep);
    assert!(swept.status == 201 || swept.code() == "invalid_job", "{swept:?}");
    let copied = ask_as(&instance, NOBODY, "POST", "/v1/jobs/open/mine/clone?as=copy", b"");
    assert_eq!(copied.status, 201, "{copied:?}");
    assert_eq!(ask_as(&instance, NOBODY, "GET", "/v1/jobs/open/copy", b"").json()["report"]["description"], "new");
    assert_eq!(ask_as(&instance, NOBODY, "POST", "/v1/jobs/open/mine/clone?as=copy", b"").code(), "conflict");
    assert_eq!(ask_as(&instance, 1234, "DELETE", "/v1/jobs/open/mine/file", b"").code(), "forbidden");
    assert_eq!(ask_as(&instance, NOBODY, "DELETE", "/v1/jobs/open/mine/file", b"").status, 200);
    assert!(!file.exists());
    let leftover: Vec<_> = fs::read_dir(instance.jobs_d().join("open")).unwrap().flatten().collect();
    assert!(leftover.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with('.')), "{leftover:?}");
    templates_are_written_and_removed(&instance);
    // A link that somebody has put there is replaced, not followed.
    std::os::unix::fs::symlink("/etc/passwd", instance.jobs_d().join("open/trap.toml")).unwrap();
    chown(instance.jobs_d().join("open"), Some(0), Some(0)).unwrap();
    assert_eq!(put(NOBODY, "/v1/jobs/open/trap/file", HELD).code(), "forbidden", "it is root's");
    assert!(fs::read_to_string("/etc/passwd").unwrap().contains("root"));
    instance.shutdown();
}

/// More than the machine of these tests has, and more than its workspace may have.
const TOO_MUCH: &str = "state = \"held\"\ncommand = \"true\"\nresources.cpu = 2000\n";
const SMALL: &str = "state = \"held\"\ncommand = \"true\"\nresources.cpu = 0.1\n";
const BEYOND_QUOTA: &str = "state = \"held\"\ncommand = \"true\"\nresources.cpu = 1\n";

#[test]
fn what_the_machine_or_the_workspace_cannot_have_is_refused_before_it_is_written() {
    let test = "what_the_machine_or_the_workspace_cannot_have_is_refused_before_it_is_written";
    let Some(instance) = Instance::start(test, "[workspaces.open]\ncpu = 0.5\n") else { return };
    open_workspace(&instance, "open");
    let put = |path: &str, text: &str| ask_with(&instance, "PUT", path, "", text.as_bytes());
    let check = |of: &str, text: &str| {
        let checked = ask_with(&instance, "POST", &format!("/v1/check?{of}"), "", text.as_bytes()).json();
        (checked["valid"].clone(), checked["diagnostics"][0]["message"].as_str().unwrap_or_default().to_owned())
    };
    let sweep = format!("{BEYOND_QUOTA}[sweep]\nresources.cpu = [0.1, 1]\n");
    for (key, text, told) in [
        ("default/big", TOO_MUCH, "2000 cpu of "),
        ("open/big", BEYOND_QUOTA, "1 cpu of 0.5 that workspace open may have"),
        ("open/big", "after = [\"big\"]\ncommand = \"true\"\nresources.cpu = 0.1\n", "`after` names the job itself"),
        ("open/many", sweep.as_str(), "1 cpu of 0.5"),
    ] {
        let begun = Instant::now();
        let refused = put(&format!("/v1/jobs/{key}/file"), text);
        assert_eq!(refused.code(), "invalid_job", "{refused:?}");
        assert!(refused.text().contains(told) && begun.elapsed() < Duration::from_secs(8), "{refused:?}");
        assert_eq!(get(&instance, &format!("/v1/jobs/{key}/file")).code(), "not_found", "nothing is written");
        let (workspace, job) = key.split_once('/').unwrap();
        let (valid, said) = check(&format!("workspace={workspace}&job={job}"), text);
        assert!(valid == false && said.contains(told), "{said}");
    }
    // An edit leaves the job as it was.
    assert_eq!(put("/v1/jobs/open/good/file", SMALL).status, 201);
    assert_eq!(put("/v1/jobs/open/good/file", BEYOND_QUOTA).code(), "invalid_job");
    assert_eq!(get(&instance, "/v1/jobs/open/good/file").text(), SMALL);
    assert_eq!(check("workspace=open", SMALL).0, true);
    assert_eq!(check("workspace=default", BEYOND_QUOTA).0, true);
    // Of a workspace that somebody may not write to, nothing is told.
    chown(instance.jobs_d().join("open"), Some(0), Some(0)).unwrap();
    fs::set_permissions(instance.jobs_d().join("open"), fs::Permissions::from_mode(0o755)).unwrap();
    let strange = ask_as(&instance, NOBODY, "POST", "/v1/check?workspace=open", BEYOND_QUOTA.as_bytes()).json();
    assert_eq!(strange["valid"], true);
    // The command line asks a daemon that answers, and needs none.
    let file = instance.jobs_d().join("open/check.toml");
    fs::write(&file, BEYOND_QUOTA).unwrap();
    let file = file.display().to_string();
    let said = instance.cli(&["check", &file]);
    let told = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.status.code() == Some(1) && told.contains(&format!("{file}: the job needs ")) && told.contains("of 0.5"),
        "{told}"
    );
    // What would run is shown all the same.
    assert!(
        told.contains(&format!("{file}: is right by itself, but cannot run here as it is\n"))
            && told.ends_with("true\n"),
        "{told}"
    );
    let effective = instance.cli(&["check", "--effective", &file]);
    let told = String::from_utf8_lossy(&effective.stdout).into_owned();
    assert!(effective.status.code() == Some(1) && told.contains("cpu = "), "{told}");
    instance.shutdown();
}

#[test]
fn a_file_that_was_removed_is_gone_when_that_is_answered() {
    let test = "a_file_that_was_removed_is_gone_when_that_is_answered";
    let Some(instance) = Instance::start(test, "") else { return };
    let ask = |method: &str, path: &str, body: &str| ask_with(&instance, method, path, "", body.as_bytes());
    let sweep = format!("{HELD}[sweep]\nresources.cpu = [0.1, 0.2]\n");
    for text in [HELD, sweep.as_str()] {
        let put = ask("PUT", "/v1/jobs/default/gone/file", text);
        assert_eq!(put.status, 201, "{put:?}");
        let removed = ask("DELETE", "/v1/jobs/default/gone/file", "");
        assert_eq!(removed.json()["message"], "gone: its file is removed", "{removed:?}");
        // It is not in the way of anything any more.
        let removed = ask("DELETE", "/v1/jobs/default/gone", "");
        assert!(removed.status == 200 || removed.code() != "file_still_there", "{removed:?}");
        let never = ask("DELETE", "/v1/jobs/default/gone/file", "");
        assert_eq!(never.code(), "not_found");
        assert!(never.text().contains("job gone has no file of its own"), "{never:?}");
    }
    // Also where it has much else to read first, and cannot know at once.
    assert_eq!(ask("PUT", "/v1/jobs/default/gone/file", HELD).status, 201);
    (0..500).for_each(|number| instance.drop_job(&format!("other-{number}"), HELD));
    assert_eq!(ask("DELETE", "/v1/jobs/default/gone/file", "").status, 200);
    let removed = ask("DELETE", "/v1/jobs/default/gone", "");
    assert_eq!(removed.status, 200, "{removed:?}");
    instance.shutdown();
}

#[test]
fn logs_come_as_lines_or_as_one_file_and_from_and_to_a_time() {
    let test = "logs_come_as_lines_or_as_one_file_and_from_and_to_a_time";
    let Some(instance) = Instance::start(test, "") else { return };
    instance.run_job("talk", "command = \"echo one; sleep 1.2; echo two >&2\"\nimage = \"host\"\n");
    let lines = get(&instance, "/v1/jobs/default/talk/logs");
    let lines: Vec<Value> = lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let file = get(&instance, "/v1/jobs/default/talk/logs?format=text");
    assert_eq!(file.text(), "one\ntwo\n");
    assert!(file.head.contains("attachment; filename*=utf-8''talk-1.log"), "{}", file.head);
    let second = lines[1]["time"].as_str().unwrap();
    assert_eq!(get(&instance, &format!("/v1/jobs/default/talk/logs?format=text&since={second}")).text(), "two\n");
    let first = lines[0]["time"].as_str().unwrap();
    assert_eq!(get(&instance, &format!("/v1/jobs/default/talk/logs?format=text&until={first}")).text(), "one\n");
    assert_eq!(get(&instance, "/v1/jobs/default/talk/logs?format=text&lines=1").text(), "two\n");
    let task = lines[0]["task"].as_str().unwrap();
    let measured = get(&instance, &format!("/v1/jobs/default/talk/metrics?task={task}"));
    assert!(measured.text().starts_with("time,") && measured.text().lines().count() > 1, "{measured:?}");
    assert_eq!(get(&instance, "/v1/jobs/default/talk/metrics?task=none-0").code(), "not_found");
    assert_eq!(
        get(&instance, "/v1/jobs/default/talk/metrics?task=0").code(),
        "not_found",
        "no task can have that name"
    );
    assert_eq!(get(&instance, &format!("/v1/jobs/default/talk/scalars?task={task}")).code(), "not_found");
    instance.shutdown();
}

#[test]
fn a_log_comes_by_task_as_it_is_written_and_by_ranges_of_its_bytes() {
    let test = "a_log_comes_by_task_as_it_is_written_and_by_ranges_of_its_bytes";
    let Some(instance) = Instance::start(test, "") else { return };
    let talk = "image = \"host\"\n[roles.main]\ncount = 2\ncommand = 'echo \"begun $TASK_NAME\"; printf \"\\377\\n\"; \
                while [ ! -e /output/go ]; do sleep 0.1; done; echo over'\n";
    let talk = talk.replace("$TASK_NAME", "here");
    instance.drop_job("talk", &talk);
    instance.wait_state("talk", "running");
    let of = |task: &str, more: &str| get(&instance, &format!("/v1/jobs/default/talk/logs?task={task}{more}"));
    wait_for("both tasks to begin", || {
        (get(&instance, "/v1/jobs/default/talk/logs").text().lines().count() == 4).then_some(())
    });
    let tasks = ["main-0", "main-1"].map(|task| of(task, "").text());
    for (task, text) in ["main-0", "main-1"].iter().zip(&tasks) {
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line["task"] == *task), "{text}");
    }
    assert_eq!(of("none-0", "").code(), "not_found");
    // As one file, byte by byte, while it grows.
    let path = "/v1/jobs/default/talk/logs?task=main-0&format=text";
    let ask = |method: &str, headers: &str| ask_with(&instance, method, path, headers, b"");
    let early = ask("GET", "");
    assert_eq!((early.status, early.body.as_slice()), (200, &b"begun here\n\xff\n"[..]));
    let tag = early.header("etag").unwrap().to_owned();
    assert_eq!(early.header("accept-ranges"), Some("bytes"));
    let part = ask("GET", &format!("range: bytes=6-9\r\nif-range: {tag}\r\n"));
    assert_eq!((part.status, part.text()), (206, "here".to_owned()), "{part:?}");
    assert_eq!((part.header("content-range"), part.header("content-length")), (Some("bytes 6-9/13"), Some("4")));
    // Who follows hears of it, and the stream ends with the run.
    let mut stream = connect(&instance);
    stream
        .write_all(format!("GET {path}&follow=1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
        .unwrap();
    fs::write(instance.run_dir("talk", 1).join("output/go"), "").unwrap();
    let mut followed = Vec::new();
    stream.read_to_end(&mut followed).unwrap();
    assert!(parse(&followed).body.ends_with(b"\xff\nover\n"));
    instance.wait_end("talk", 1);
    // Another file now: who had a part of the one before gets the whole.
    let whole = b"begun here\n\xff\nover\n";
    let late = ask("GET", &format!("range: bytes=6-9\r\nif-range: {tag}\r\n"));
    assert_eq!((late.status, late.body.as_slice()), (200, &whole[..]));
    assert_ne!(late.header("etag"), Some(tag.as_str()));
    let head = ask("HEAD", "range: bytes=0-1\r\n");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("18"), 0), "{head:?}");
    assert_eq!(head.header("etag"), late.header("etag"));
    for (range, wanted) in [("0-0", &whole[..1]), ("11-", &whole[11..]), ("-5", &whole[13..]), ("0-999", &whole[..])] {
        let part = ask("GET", &format!("range: bytes={range}\r\n"));
        assert_eq!((part.status, part.body.as_slice()), (206, wanted), "{range}");
    }
    let outside = ask("GET", "range: bytes=18-\r\n");
    assert_eq!(
        (outside.code().as_str(), outside.header("content-range")),
        ("range_not_satisfiable", Some("bytes */18"))
    );
    for ignored in ["bytes=0-1,3-4", "lines=0-1", "bytes=9-1"] {
        assert_eq!(ask("GET", &format!("range: {ignored}\r\n")).status, 200, "{ignored}");
    }
    // Whatever can be read can be asked about.
    let health = ask_with(&instance, "HEAD", "/healthz", "", b"");
    assert_eq!((health.status, health.body.len()), (200, 0));
    instance.shutdown();
}

#[test]
fn events_of_all_jobs_have_one_order_that_outlives_the_daemon() {
    let Some(mut instance) = Instance::start("events_of_all_jobs_have_one_order_that_outlives_the_daemon", "") else {
        return;
    };
    instance.drop_job("a", HELD);
    instance.wait_state("a", "held");
    instance.drop_job("b", HELD);
    instance.wait_state("b", "held");
    let all = |instance: &Instance, path: &str| {
        let text = get(instance, path).text();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    let before = all(&instance, "/v1/events");
    let serials: Vec<u64> = before.iter().map(|event| event["serial"].as_u64().unwrap()).collect();
    assert!(serials.len() >= 2 && serials.windows(2).all(|two| two[0] < two[1]), "{before:?}");
    let last = *serials.last().unwrap();
    assert_eq!(all(&instance, &format!("/v1/events?after={last}")), Vec::<Value>::new());
    assert_eq!(all(&instance, "/v1/events?limit=1").len(), 1);
    assert!(all(&instance, "/v1/events?job=a").iter().all(|event| event["job"] == "a"));
    // They are told to who may enter the workspace.
    let open_to = |mode| fs::set_permissions(instance.jobs_d(), fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(ask_as(&instance, NOBODY, "GET", "/v1/events", b"").text().lines().count(), before.len());
    open_to(0o750);
    assert_eq!(ask_as(&instance, NOBODY, "GET", "/v1/events", b"").text(), "");
    open_to(0o755);
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(all(&instance, "/v1/events")[..before.len()], before[..], "from the store as from memory");
    // Who stays is told of what happens.
    let mut stream = connect(&instance);
    stream.write_all(format!("GET /v1/events?after={last}&follow=1 HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    instance.drop_job("c", HELD);
    let mut line = String::new();
    while !line.contains("\"job\":\"c\"") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
    }
    let event: Value = serde_json::from_str(line.trim()).unwrap();
    assert!(event["serial"].as_u64().unwrap() > last, "{event}");
    let told = instance.ok(&["events"]);
    assert!(told.lines().any(|line| line.split_whitespace().nth(2) == Some("c")), "{told}");
    drop(reader);
    instance.shutdown();
}

#[test]
fn secrets_are_written_and_never_told() {
    let Some(mut instance) = Instance::start("secrets_are_written_and_never_told", "") else { return };
    let put = ask_with(&instance, "PUT", "/v1/secrets/default/git", "", b"hunter2");
    assert_eq!(put.status, 200, "{put:?}");
    let file = instance.root().join("etc/trainyard/secrets/default/git");
    assert_eq!(fs::read(&file).unwrap(), b"hunter2");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let listed = get(&instance, "/v1/secrets/default");
    assert_eq!(listed.json()["items"], json!([{ "workspace": "default", "secret": "git" }]));
    assert_eq!(get(&instance, "/v1/secrets/default/git").code(), "method_not_allowed");
    assert_eq!(ask_with(&instance, "PUT", "/v1/secrets/default/..%2Fx", "", b"x").code(), "bad_request");
    assert_eq!(ask_with(&instance, "PUT", "/v1/secrets/nows/git", "", b"x").code(), "not_found");
    // Logins that are none are found out now, not when an image is wanted.
    let logins = ask_with(&instance, "PUT", "/v1/secrets/default/registry.json", "", b"user:password");
    assert_eq!(logins.code(), "bad_request");
    assert!(logins.text().contains("podman login") && !logins.text().contains("user:pass"), "{logins:?}");
    // What all see may be looked at, with a quota or without.
    let public = get(&instance, "/v1/workspaces/public");
    assert_eq!((public.status, public.json()["parts"][0]["part"].as_str()), (200, Some("datasets")), "{public:?}");
    assert_eq!(get(&instance, "/v1/workspaces/nows").code(), "not_found");
    assert_eq!(get(&instance, "/v1/secrets/nows").code(), "not_found");
    assert!(!instance.root().join("etc/trainyard/secrets/nows").exists());
    let token = br#"{"name": "ci", "scopes": ["read"], "workspaces": ["default", "nows"]}"#;
    assert_eq!(ask_with(&instance, "POST", "/v1/tokens", "", token).code(), "not_found");
    assert_eq!(get(&instance, "/v1/tokens").json()["total"], 0);
    assert_eq!(ask_with(&instance, "DELETE", "/v1/secrets/default/git", "", b"").status, 200);
    assert!(!file.exists());
    instance.wait_for_log("a secret was removed");
    assert!(!instance.journal().contains("hunter2"));
    instance.shutdown();
}

#[test]
fn what_there_is_beside_jobs_is_listed_for_who_may_look() {
    let Some(instance) = Instance::start("what_there_is_beside_jobs_is_listed_for_who_may_look", "") else { return };
    fs::write(
        instance.jobs_d().join("train.template.toml"),
        "[template]\ndescription = \"trains\"\n[template.params.lr]\ntype = \"number\"\ndefault = 0.1\n[job]\ncommand = \"true\"\n",
    )
    .unwrap();
    let backing = instance.root().join("var/lib/trainyard/workspaces/default");
    fs::create_dir_all(backing.join("datasets/mnist/draft")).unwrap();
    fs::create_dir_all(backing.join("models/old/3/weights")).unwrap();
    fs::create_dir_all(backing.join("models/old/20/w")).unwrap();
    let templates = get(&instance, "/v1/templates").json()["items"].clone();
    assert_eq!(templates[0]["template"], "train", "{templates}");
    let shown = get(&instance, "/v1/templates/default/train").json();
    assert!(shown["text"].as_str().unwrap().contains("trains"), "{shown}");
    assert_eq!(get(&instance, "/v1/templates/default/none").code(), "not_found");
    let datasets = get(&instance, "/v1/datasets").json();
    let mnist = datasets["items"].as_array().unwrap().iter().find(|one| one["dataset"] == "mnist").unwrap();
    assert_eq!((&mnist["home"], &mnist["has_draft"]), (&json!("default"), &json!(true)));
    let models = get(&instance, "/v1/models").json();
    let model = |run: u32, file: &str| json!({ "workspace": "default", "job": "old", "run": run, "files": [file] });
    assert_eq!(models, json!({ "items": [model(3, "weights"), model(20, "w")], "total": 2 }));
    let first = get(&instance, "/v1/models?limit=1&text=ol&name=old").json();
    assert_eq!((&first["items"], &first["total"]), (&json!([model(3, "weights")]), &json!(2)));
    let next = first["next"].as_str().unwrap().replace('%', "%25");
    let rest = get(&instance, &format!("/v1/models?limit=1&text=ol&name=old&after={next}")).json();
    assert_eq!(rest, json!({ "items": [model(20, "w")], "total": 2 }), "one after the other, and no more");
    for list in ["templates", "images", "workspaces", "secrets/default", "tokens", "usage"] {
        let none = get(&instance, &format!("/v1/{list}?text=nothing-like-this&sort=name&limit=3")).json();
        assert_eq!(none, json!({ "items": [], "total": 0 }), "{list}");
        assert_eq!(get(&instance, &format!("/v1/{list}?after=nonsense")).code(), "bad_request", "{list}");
    }
    assert_eq!(get(&instance, "/v1/models?workspace=nowhere").code(), "not_found");
    let output = Command::new(BINARY).args(["--root"]).arg(instance.root()).args(["template", "ls", "--json"]).output();
    let listed: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(listed, templates[0], "the command line tells the same");
    instance.shutdown();
}

#[test]
fn every_example_of_the_document_does_what_it_says() {
    let test = "every_example_of_the_document_does_what_it_says";
    if !has_tools(test, &["curl"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/API.md")).unwrap();
    let root = instance.root().display().to_string();
    let mut count = 0;
    for block in text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        for line in block.lines() {
            let own = line
                .replace("/tmp/", "/ROOT/")
                .replace("/run/trainyard/", "/ROOT/run/trainyard/")
                .replace("/ROOT/", &format!("{root}/"));
            let own = own
                .replace("trainyard token", &format!("{BINARY} --root {root} token"))
                .replace("curl -s", "curl -sS --fail-with-body");
            let output = Command::new("sh").args(["-c", &own]).output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{line}\n{said}");
            count += 1;
        }
    }
    assert!(count >= 12, "{count}");
    assert!(!instance.jobs_d().join("hello.toml").exists() && instance.jobs_d().join("hello-again.toml").exists());
    instance.shutdown();
}

/// Arguments: port, file. Refuses the first two requests, keeps all as lines of JSON.
const RECEIVER: &str = r#"
import http.server, json, sys
class Receiver(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_POST(self):
        Receiver.count += 1
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        with open(sys.argv[2], "a") as kept:
            kept.write(json.dumps([self.headers["trainyard-signature"], self.headers["trainyard-event"], body]) + "\n")
        self.send_response(503 if Receiver.count <= 2 else 204)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
"#;

#[test]
fn alerts_are_signed_tried_again_and_outlive_the_daemon() {
    let test = "alerts_are_signed_tried_again_and_outlive_the_daemon";
    if !has_tools(test, &["openssl"]) {
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    let root = instance.root().to_owned();
    let (told, mail, hooked) = (root.join("told"), root.join("mail"), root.join("hooked"));
    let script = |name: &str, target: &std::path::Path| {
        let path = root.join(name);
        fs::write(&path, format!("#!/bin/sh\nexec cat >> {}\n", target.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let (page, sendmail) = (script("page", &told), script("sendmail", &mail));
    let stops = root.join("stops");
    let stop = script("stop", &stops);
    fs::create_dir_all(root.join("etc/trainyard/secrets")).unwrap();
    fs::write(root.join("etc/trainyard/secrets/hook"), "the key\n").unwrap();
    fs::write(root.join("etc/trainyard/secrets/address"), "http://127.0.0.1:9999/hook/tok3n\n").unwrap();
    let config = format!(
        "[limits]\ncpu = 4\nmemory = \"4GiB\"\n\
         [alerts.web]\nurl = \"secret:address\"\nsecret = \"hook\"\non = [\"succeeded\", \"failed\"]\n\
         [alerts.page]\ncommand = [\"{page}\"]\non = [\"all\"]\n\
         [alerts.stop]\ncommand = [\"{stop}\"]\non = [\"stopped\"]\n\
         [alerts.mail]\nemail = [\"ops@lab.example\"]\nsendmail = \"{sendmail}\"\n"
    );
    let file = root.join("etc/trainyard/trainyard.toml");
    fs::write(&file, &config).unwrap();
    instance.start_daemon(&[]);
    in_network(instance.network_holder(), "ip", &["link", "set", "lo", "up"]);
    instance.wait_ready();
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default();
    let fail = "image = \"host\"\ncommand = \"exit 3\"\n";
    // Once the queues have begun: what was before is nobody's.
    let queues = root.join("var/lib/trainyard/alerts");
    let have_begun = || ["web", "page", "mail", "stop"].iter().all(|name| queues.join(format!("{name}.json")).exists());
    wait_for("the queues", || have_begun().then_some(()));
    // A slip of the pen that is put right is no stop; the stop behind it is, and the first that is told as one.
    instance.drop_job("typo", "comand = 'true'");
    instance.wait_state("typo", "invalid");
    instance.drop_job("typo", "image = \"host\"\ncommand = \"exec sleep 1000\"\nenv.DATA = \"gs://bucket/data\"\n");
    instance.wait_state("typo", "running");
    instance.ok(&["stop", "--now", "typo"]);
    let first = wait_for("the alert of the stop", || read(&stops).lines().next().map(str::to_owned));
    assert!(first.contains("\"job\":\"typo\"") && first.contains("\"run\":1,"), "{first}");
    instance.run_job("bad", fail);
    wait_for("the program", || read(&told).contains("\"state\":\"failed\"").then_some(()));
    wait_for("the e-mail", || read(&mail).contains("job default/bad, run 1: failed").then_some(()));
    assert_eq!(read(&mail).matches("Subject: ").count(), 1, "once: {}", read(&mail));
    // Nobody takes the webhook yet: it waits, also for another daemon.
    instance.wait_for_log("an alert was not delivered");
    instance.kill_daemon();
    let waiting: Value = serde_json::from_slice(&fs::read(queues.join("web.json")).unwrap()).unwrap();
    assert_eq!(waiting["waiting"][0]["job"], "bad", "{waiting}");
    let mut receiver = Command::new("nsenter")
        .arg(format!("--net=/proc/{}/ns/net", instance.network_holder()))
        .args(["/usr/bin/python3", "-c", RECEIVER, "9999"])
        .arg(&hooked)
        .spawn()
        .unwrap();
    instance.restart_daemon();
    let received = wait_for("the webhook", || {
        let lines: Vec<Value> = read(&hooked).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (lines.len() >= 3).then_some(lines)
    });
    let _ = receiver.kill();
    receiver.wait().unwrap();
    let [signature, event, body] = [0, 1, 2].map(|part| received[2][part].as_str().unwrap().to_owned());
    assert!(received.iter().all(|one| one[1] == event.as_str()), "a delivery that is made again has the same number");
    let notice: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&notice["job"], &notice["state"], notice["serial"].to_string()),
        (&json!("bad"), &json!("failed"), event)
    );
    let (time, digest) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let input = root.join("signed");
    fs::write(&input, format!("{time}.{body}")).unwrap();
    let output = Command::new("openssl").args(["dgst", "-sha256", "-hmac", "the key"]).arg(&input).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.trim().ends_with(digest), "{said} {digest}");
    wait_for("an empty queue", || {
        let kept: Value = serde_json::from_slice(&fs::read(queues.join("web.json")).ok()?).ok()?;
        (kept["waiting"] == json!([])).then_some(())
    });
    assert!(!instance.journal().contains("the key") && !instance.journal().contains("tok3n"));
    // Others are told from when the file names them on, and who is gone from it no more; no daemon is restarted for that.
    let anew = root.join("anew");
    let kept = config.split("[alerts.mail]").next().unwrap().replace(&page, &script("other", &anew));
    fs::write(&file, kept).unwrap();
    instance.wait_for_log("the alerts of trainyard.toml act as they are now");
    instance.run_job("worse", fail);
    wait_for("the other program", || read(&anew).contains("\"state\":\"failed\"").then_some(()));
    assert!(!read(&told).contains("worse") && !read(&mail).contains("worse"));
    instance.shutdown();
}
