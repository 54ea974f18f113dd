//! Clients that are slow, rude, in a hurry, or many.

use super::*;

#[test]
fn slow_broken_and_rude_clients_are_answered_or_cut_off_and_hold_up_nobody() {
    let test = "slow_broken_and_rude_clients_are_answered_or_cut_off_and_hold_up_nobody";
    let Some(instance) = Instance::start(test, "") else { return };
    // Heads that never end.
    let mut slow: Vec<UnixStream> = (0..300).map(|_| connect(&instance)).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\nx-slow: ").unwrap();
    }
    let begun = Instant::now();
    assert_eq!(get(&instance, "/v1/jobs").status, 200);
    // They are waited for longer than that.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // Headers that are too long, and too many of them.
    let long = format!("x-long: {}\r\n", "x".repeat(200 << 10));
    assert_eq!(ask_with(&instance, "GET", "/v1/jobs", &long, b"").status, 431);
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert_eq!(ask_with(&instance, "GET", "/v1/jobs", &many, b"").status, 431);
    // A request, and then what is none.
    let mut stream = connect(&instance);
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n\x00\x01junk\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n")
        .unwrap();
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    assert!(said.starts_with("HTTP/1.1 200 OK") && said.matches("HTTP/1.1 ").count() <= 2, "{said}");
    assert_eq!(said.matches("HTTP/1.1 200").count(), 1, "{said}");
    // What claims two lengths is refused, not guessed at.
    let twice = "content-length: 5\r\n";
    assert_eq!(ask_with(&instance, "POST", "/v1/check", twice, b"").status, 400);
    let smuggled = "transfer-encoding: chunked\r\n";
    assert_ne!(ask_with(&instance, "POST", "/v1/check", smuggled, b"GET /x HTTP/1.1\r\n\r\n").status, 200);
    // A body that does not come does not hold an answer to another.
    let mut half = connect(&instance);
    half.write_all(b"PUT /v1/jobs/default/x/file HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\ncommand").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    half.read_to_end(&mut said).unwrap();
    assert!(!instance.jobs_d().join("x.toml").exists(), "a torn body is no file");
    assert_eq!(get(&instance, "/v1/jobs").status, 200);
    // Whoever closes one half of the connection of a stream has gone.
    let mut gone = connect(&instance);
    gone.write_all(b"GET /v1/events?follow=1 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    gone.read_exact(&mut [0; 12]).unwrap();
    gone.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    gone.read_to_end(&mut rest).unwrap();
    // The slow ones are cut off.
    let mut rest = Vec::new();
    let _ = slow[0].read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
    drop(slow);
    instance.shutdown();
}

/// What is said first to whoever asks whether to send a body that is so long.
fn said_first(instance: &Instance, request: &str, length: u64) -> String {
    let mut stream = connect(instance);
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn an_array_is_no_object_and_what_is_too_long_is_refused_before_it_is_sent() {
    let test = "an_array_is_no_object_and_what_is_too_long_is_refused_before_it_is_sent";
    let Some(instance) = Instance::start(test, "") else { return };
    // The values of the object in their order, as serde reads a sequence.
    let upgrade = "connection: upgrade\r\nupgrade: trainyard-exec/1\r\n";
    for (method, path, headers, body) in [
        ("POST", "/v1/tokens", "", r#"["arr", null, ["read"], null, null]"#),
        ("POST", "/v1/jobs/default/x/exec", upgrade, r#" [null, ["true"], false, 0, 0, null, null, null]"#),
    ] {
        let answer = ask_with(&instance, method, path, headers, body.as_bytes());
        let told = answer.text();
        assert!(answer.status == 400 && told.contains("is to be one object of JSON"), "{path}: {answer:?}");
    }
    assert_eq!(get(&instance, "/v1/tokens").json()["total"], 0);
    assert_eq!(ask_with(&instance, "POST", "/v1/tokens", "", b"\n {\"name\": \"obj\"}").status, 201);
    for request in [
        "PUT /v1/jobs/default/x/file",
        "PUT /v1/templates/default/x",
        "PUT /v1/secrets/default/x",
        "POST /v1/check?workspace=default&job=x",
        "POST /v1/tokens",
    ] {
        assert!(said_first(&instance, request, 1 << 30).starts_with("HTTP/1.1 413 "), "{request}");
        assert_eq!(said_first(&instance, request, 10), "HTTP/1.1 100 Continue", "{request}");
    }
    // An archive is bounded by the disk alone.
    let import = "POST /v1/images/import?name=x";
    assert!(said_first(&instance, import, u64::MAX >> 1).starts_with("HTTP/1.1 409 "));
    assert!(said_first(&instance, "POST /v1/images/import?name=x&format=none", 10).starts_with("HTTP/1.1 400 "));
    assert_eq!(said_first(&instance, import, 10), "HTTP/1.1 100 Continue");
    instance.shutdown();
}

fn as_nobody(script: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", script]);
    command.args(arguments).output().unwrap()
}

/// Argument: a socket. Asks on one connection without waiting for answers, so that it is fast enough on any machine.
const HURRY: &str = r#"
import json, re, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
said, asked = b"", 0
while asked < 3000:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
    asked += 100
    while said.count(b"\r\n\r\n") < asked:
        more = connection.recv(65536)
        if not more:
            raise SystemExit(f"cut off after {said[-500:]}")
        said += more
statuses = re.findall(rb"HTTP/1\.1 (\d+) ", said)
after = re.search(rb"(?i)retry-after: (\d+)", said)
print(json.dumps([{status.decode(): statuses.count(status) for status in set(statuses)}, after and after[1].decode()]))
"#;

#[test]
fn a_caller_that_asks_too_fast_is_told_when_to_come_back_and_others_are_not() {
    let test = "a_caller_that_asks_too_fast_is_told_when_to_come_back_and_others_are_not";
    if !has_tools(test, &["setpriv"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let socket = instance.root().join("run/trainyard/api.sock").display().to_string();
    let output = as_nobody(HURRY, &[&socket]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let (good, refused) = (said[0]["200"].as_u64().unwrap(), said[0]["429"].as_u64().unwrap_or(0));
    assert!(good >= 1000 && refused > 0, "{said}");
    assert_eq!(said[1], "1");
    assert_eq!(get(&instance, "/healthz").status, 200, "root is the machine itself");
    instance.shutdown();
}

/// Of a process, in bytes.
pub(super) fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

pub(super) fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// Reads on to a line with `word` in it.
pub(super) fn hear(follower: &mut impl BufRead, word: &str) {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(follower.read_line(&mut line).unwrap() > 0, "the stream has ended before {word:?}");
    }
}

#[test]
fn a_thousand_idle_followers_take_little_memory_and_all_hear_of_a_line() {
    let test = "a_thousand_idle_followers_take_little_memory_and_all_hear_of_a_line";
    let Some(instance) = Instance::start(test, "") else { return };
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 4096, 4096).unwrap();
    let talk = "image = \"host\"\ncommand = \"echo first; while [ ! -e /output/go ]; do sleep 0.1; done; echo second; sleep 1000\"\n";
    instance.drop_job("talk", talk);
    instance.wait_state("talk", "running");
    wait_for("the first line", || instance.log("talk", "main-0").contains("first").then_some(()));
    let pid = instance.daemon_pid();
    let before = (resident(pid), threads(pid));
    let request = b"GET /v1/jobs/default/talk/logs?follow=1 HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut followers: Vec<BufReader<UnixStream>> = Vec::new();
    for _ in 0..1000 {
        let mut stream = connect(&instance);
        stream.write_all(request).unwrap();
        followers.push(BufReader::new(stream));
    }
    followers.iter_mut().for_each(|follower| hear(follower, "first"));
    let after = (resident(pid), threads(pid));
    let each = after.0.saturating_sub(before.0) / 1000;
    eprintln!("1,000 followers: {} KiB each, {} threads before, {} after", each / 1024, before.1, after.1);
    assert!(each < 64 << 10, "{each} bytes each");
    assert!(after.1 < before.1 + 40, "{before:?} {after:?}");
    fs::write(instance.run_dir("talk", 1).join("output/go"), "").unwrap();
    followers.iter_mut().for_each(|follower| hear(follower, "second"));
    drop(followers);
    wait_for("their connections to end", || {
        let text = get(&instance, "/metrics").text();
        let line = text.lines().find(|line| line.starts_with("trainyard_api_connections ")).unwrap().to_owned();
        (line.rsplit(' ').next().unwrap().parse::<u32>().unwrap() < 5).then_some(())
    });
    instance.shutdown();
}
