//! Tasks that talk to each other.

use std::process::{Command, Stdio};

use super::support::{ChildGuard, Instance, has_tools, processes_with, text, wait_for};

const ECHO: &str = r#"
[roles.server]
command = ["/usr/bin/python3", "-c", """
import os, socket
port = int(os.environ['TRAINYARD_PORT_CHAT'])
with socket.create_server(('', port)) as listener:
    for _ in range(2):
        connection, peer = listener.accept()
        connection.sendall(b'hello ' + peer[0].encode())
        connection.close()
print('served')
"""]
ports = { chat = 1 }
serves = false
[roles.client]
count = 2
command = ["/usr/bin/python3", "-c", """
import os, socket, time
port = int(os.environ['TRAINYARD_SERVER_PORTS_CHAT'])
host = os.environ.get('BY_NAME') and 'server-0' or os.environ['TRAINYARD_SERVER_HOSTS']
for _ in range(3000):
    try:
        connection = socket.create_connection((host, port), timeout=5)
        break
    except OSError:
        time.sleep(0.02)
print(connection.recv(100).decode(), socket.gethostbyname(socket.gethostname()))
"""]
"#;

#[test]
fn tasks_reach_each_other_by_address_and_by_name() {
    let Some(instance) = Instance::start("tasks_reach_each_other_by_address_and_by_name", "") else { return };
    let report = instance.run_job("chat", ECHO);
    assert_eq!(report["state"], "succeeded", "{report} {}", instance.ok(&["logs", "chat"]));
    let log = instance.log("chat", "client-1");
    assert_eq!(log.trim(), "hello 10.213.0.4 10.213.0.4", "its own address, and its host name leads to it");
    let report = instance.run_job("named", &format!("env = {{ BY_NAME = \"1\" }}\n{ECHO}"));
    assert_eq!(report["state"], "succeeded", "{report}");
    instance.shutdown();
}

#[test]
fn a_shared_network_shares_ports_and_memory() {
    let Some(instance) = Instance::start("a_shared_network_shares_ports_and_memory", "") else { return };
    let report = instance.run_job("shared", &format!("network = \"job\"\n{ECHO}"));
    assert_eq!(report["state"], "succeeded", "{report} {}", instance.ok(&["logs", "shared"]));
    assert!(instance.log("shared", "client-0").starts_with("hello 127.0.0.1"));
    let shm = "network = \"job\"\n[roles.a]\ncommand = \"echo x > /dev/shm/note\"\n[roles.b]\n\
        command = \"for i in $(seq 3000); do [ -e /dev/shm/note ] && exit 0; sleep 0.02; done; exit 1\"\n";
    assert_eq!(instance.run_job("memory", shm)["state"], "succeeded");
    let own = shm.replace("network = \"job\"\n", "").replace("seq 3000", "seq 10");
    assert_eq!(instance.run_job("own", &own)["state"], "failed", "without it memory is not shared");
    instance.shutdown();
}

#[test]
fn the_host_s_network_is_used_where_asked() {
    let Some(instance) = Instance::start("the_host_s_network_is_used_where_asked", "") else { return };
    // The instance's own network namespace is its host.
    let here = std::fs::read_link(format!("/proc/{}/ns/net", instance.daemon_pid())).unwrap();
    instance.run_job("host", "network = \"host\"\ncommand = \"readlink /proc/self/ns/net\"");
    assert_eq!(instance.log("host", "main-0").trim(), here.display().to_string());
    instance.run_job(
        "task",
        "command = \"readlink /proc/self/ns/net; cat /sys/class/net/lo/operstate; cat /sys/class/net/lo/flags\"",
    );
    let log = instance.log("task", "main-0");
    assert!(!log.contains(&here.display().to_string()) && log.contains("0x9"), "lo is up: {log}");
}

#[test]
fn nothing_of_a_network_is_left_at_the_end() {
    let Some(instance) = Instance::start("nothing_of_a_network_is_left_at_the_end", "") else { return };
    let links = || {
        let text = std::fs::read_to_string(format!("/proc/{}/net/dev", instance.daemon_pid())).unwrap();
        text.lines().filter(|line| line.contains("ty") || line.contains("tv")).count()
    };
    for (job, count, expected) in [("pair", 2, 3), ("single", 1, 1)] {
        instance.drop_job(job, &format!("command = \"sleep 1000\"\n[roles.a]\ncount = {count}\n"));
        instance.wait_state(job, "running");
        assert_eq!(links(), expected, "a bridge with its ports; alone, a port alone");
        instance.ok(&["stop", job]);
        instance.wait_end(job, 1);
        // The kernel takes a moment for the last of it.
        wait_for("the links to go", || (links() == 0).then_some(()));
    }
    let root = instance.root().display().to_string();
    assert!(processes_with(&format!("{root}/var")).is_empty(), "no shim");
    instance.shutdown();
}

/// A world outside: a namespace of its own at 192.0.2.2, reached through a veth pair.
fn outside(instance: &Instance) -> ChildGuard {
    let server = "import socket\ns = socket.create_server(('192.0.2.2', 8080))\nprint('up', flush=True)\n\
        while True:\n    c, peer = s.accept()\n    c.sendall(('from ' + peer[0]).encode())\n    c.close()\n";
    let script = format!(
        "ip link set lo up; until ip addr add 192.0.2.2/24 dev out0 2>/dev/null; do sleep 0.05; done; ip link set out0 up; exec python3 -c \"{server}\""
    );
    let mut command = Command::new("unshare");
    let mut guard = ChildGuard(command.args(["--net", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap());
    let (inside, outside) = (instance.network_holder(), guard.0.id());
    wait_for("the outside", || {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        std::fs::read_link(format!("/proc/{outside}/ns/net")).is_ok_and(|other| other != own).then_some(())
    });
    let connect = format!(
        "ip link add up0 type veth peer name out0 netns {outside} && ip link set lo up && ip addr add 192.0.2.1/24 dev up0 && ip link set up0 up"
    );
    let target = format!("--net=/proc/{inside}/ns/net");
    assert!(Command::new("nsenter").args([&target, "sh", "-c", &connect]).status().unwrap().success());
    guard.wait_until_ready("up");
    guard
}

#[test]
fn tasks_reach_out_but_not_into_other_jobs() {
    let test = "tasks_reach_out_but_not_into_other_jobs";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let connect = |address: &str, port: u16, seconds: f32| {
        format!(
            "command = [\"/usr/bin/python3\", \"-c\", \"import socket; print(socket.create_connection(('{address}', {port}), timeout={seconds}).recv(99).decode())\"]"
        )
    };
    let report = instance.run_job("out", &connect("192.0.2.2", 8080, 60.0));
    assert_eq!(instance.log("out", "main-0").trim(), "from 192.0.2.1", "through the machine's address: {report}");
    let listen = "command = [\"/usr/bin/python3\", \"-c\", \"import os, socket; s = socket.create_server(('', 9000)); print(os.environ['TRAINYARD_ADDRESS'], flush=True); s.accept()\"]";
    instance.drop_job("listener", listen);
    instance.wait_state("listener", "running");
    let address = wait_for("its address", || {
        Some(instance.log("listener", "main-0").trim().to_owned()).filter(|line| !line.is_empty())
    });
    let report = instance.run_job("intruder", &connect(&address, 9000, 1.5));
    assert_eq!(report["state"], "failed", "{report}");
    assert!(instance.log("intruder", "main-0").contains("timed out"), "{}", instance.log("intruder", "main-0"));
    assert_eq!(instance.state("listener"), "running", "nobody has come");
    instance.shutdown();
}

const HTTP: &str = r#"
command = ["/usr/bin/python3", "-c", """
import os, socket
port = int(os.environ['TRAINYARD_PORT_HTTP'])
with socket.create_server(('', port)) as listener:
    print(port, os.environ['TRAINYARD_PUBLISHED_PORT_HTTP'], flush=True)
    while True:
        connection, peer = listener.accept()
        connection.sendall(os.environ['TRAINYARD_JOB'].encode())
        connection.close()
"""]
"#;

/// What a port of the machine says to somebody in the instance's network.
fn ask(instance: &Instance, port: &str) -> String {
    ask_at(instance, "192.0.2.1", port)
}

/// From the machine itself, at one of its addresses.
fn ask_at(instance: &Instance, address: &str, port: &str) -> String {
    let script = format!(
        "import socket; c = socket.create_connection(('{address}', {port}), timeout=10); print(c.recv(99).decode())"
    );
    let target = format!("--net=/proc/{}/ns/net", instance.network_holder());
    let output = Command::new("nsenter").args([&target, "/usr/bin/python3", "-c", &script]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn declared_ports_lead_from_the_machine_to_the_task_until_it_is_over() {
    let test = "declared_ports_lead_from_the_machine_to_the_task_until_it_is_over";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let started = |job: &str| {
        let two = |log: String| {
            let mut ports = log.split_whitespace().map(str::to_owned);
            ports.next().zip(ports.next())
        };
        wait_for("the server", || two(instance.log(job, "main-0")))
    };
    for job in ["one", "two"] {
        instance.drop_job(job, &format!("{HTTP}[roles.main]\nports = {{ http = 1 }}\n"));
    }
    let ((_, one), (_, two)) = (started("one"), started("two"));
    assert_ne!(one, two, "no two tasks have the same port of the machine");
    assert_eq!((ask(&instance, &one), ask(&instance, &two)), ("one".to_owned(), "two".to_owned()));
    // As who sits at the machine, or comes through a tunnel of ssh, types it.
    assert_eq!(
        (ask_at(&instance, "127.0.0.1", &one), ask_at(&instance, "localhost", &two)),
        ("one".into(), "two".into())
    );
    // The rules are made anew with the daemon, the ports of running tasks with them.
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(ask(&instance, &one), "one");
    instance.ok(&["stop", "one"]);
    instance.wait_end("one", 1);
    wait_for("the port to be taken back", || ask(&instance, &one).is_empty().then_some(()));
    assert_eq!(ask(&instance, &two), "two", "the other one stays");
    instance.shutdown();
}

#[test]
fn a_named_port_is_waited_for_and_told_by_name() {
    let test = "a_named_port_is_waited_for_and_told_by_name";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let job = format!("{HTTP}[roles.main]\nports = {{ http = {{ begin = 8088 }} }}\n");
    instance.drop_job("first", &job);
    instance.wait_state("first", "running");
    instance.drop_job("second", &job);
    let report = instance.wait_state("second", "waiting");
    let reason = wait_for("the reason", || {
        let reason = text(&instance.report("second").unwrap()["reason"]);
        Some(reason).filter(|reason| reason.contains("port"))
    });
    assert!(reason.contains("8088") && reason.contains("first"), "{reason} {report:#}");
    wait_for("the first server", || (ask(&instance, "8088") == "first").then_some(()));
    instance.ok(&["stop", "first"]);
    instance.wait_state("second", "running");
    wait_for("the second server", || (ask(&instance, "8088") == "second").then_some(()));
    instance.shutdown();
}

#[test]
fn ipv6_and_names_work_inside_as_on_the_machine() {
    let test = "ipv6_and_names_work_inside_as_on_the_machine";
    if std::fs::read_to_string("/proc/net/if_inet6").map_or(true, |text| text.is_empty()) {
        super::support::skip(test, "IPv6");
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    let names = "search lab\nnameserver 192.0.2.53\nnameserver 127.0.0.1\n";
    start_with_names(&mut instance, names);
    let talk = r#"
[roles.server]
command = ["/usr/bin/python3", "-c", """
import socket
with socket.create_server(('::', 9000), family=socket.AF_INET6) as listener:
    connection, peer = listener.accept()
    connection.sendall(peer[0].encode())
"""]
serves = false
[roles.client]
command = ["/usr/bin/python3", "-c", """
import ipaddress, os, socket, time
mine = [line.split()[0] for line in open('/proc/net/if_inet6') if line.startswith('fd7a')][0]
v4 = int(ipaddress.ip_address(os.environ['TRAINYARD_SERVER_HOSTS']))
address = str(ipaddress.ip_address(int(mine, 16) >> 32 << 32 | v4))
for _ in range(3000):
    try:
        connection = socket.create_connection((address, 9000), timeout=5)
        break
    except OSError:
        time.sleep(0.02)
print(connection.recv(99).decode() == str(ipaddress.ip_address(int(mine, 16))))
with socket.create_server(('::1', 0), family=socket.AF_INET6) as own:
    socket.create_connection(own.getsockname()[:2], timeout=5).close()
print(open('/etc/resolv.conf').read(), end='')
"""]
"#;
    let report = instance.run_job("talk", talk);
    assert_eq!(report["state"], "succeeded", "{report:#} {}", instance.log("talk", "client-0"));
    assert_eq!(instance.log("talk", "client-0"), format!("True\n{names}"));
    instance.shutdown();
}

/// Starts the daemon on a machine that resolves names as `resolv_conf` says.
fn start_with_names(instance: &mut Instance, resolv_conf: &str) {
    let file = instance.root().join("resolv.conf");
    std::fs::write(&file, resolv_conf).unwrap();
    let config = instance.root().join("etc/trainyard/trainyard.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}resolv_conf = {file:?}\n")).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
}

/// Answers every question for an IPv4 address with 192.0.2.7, and tells who asks for what.
const NAME_SERVER: &str = r#"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 53))
print('up', flush=True)
while True:
    question, who = s.recvfrom(512)
    end = question.index(0, 12) + 5
    is_a = question[end - 4:end] == bytes([0, 1, 0, 1])
    answer = bytes.fromhex('c00c 0001 0001 00000001 0004 c0000207') if is_a else b''
    head = question[:2] + bytes([0x81, 0x80, 0, 1, 0, int(is_a), 0, 0, 0, 0])
    s.sendto(head + question[12:end] + answer, who)
    print(who[0], flush=True)
"#;

#[test]
fn a_resolver_on_the_machine_s_loopback_is_reached_and_nothing_else_there() {
    let test = "a_resolver_on_the_machine_s_loopback_is_reached_and_nothing_else_there";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    if std::path::Path::new("/run/systemd/resolve/resolv.conf").exists() {
        super::support::skip(test, "a machine without systemd-resolved");
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    start_with_names(&mut instance, "search lab\nnameserver 127.0.0.1\n");
    let target = format!("--net=/proc/{}/ns/net", instance.network_holder());
    super::support::images::in_network(instance.network_holder(), "ip", &["link", "set", "lo", "up"]);
    let mut server = Command::new("nsenter")
        .args([&target, "/usr/bin/python3", "-c", NAME_SERVER])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = std::io::BufRead::lines(std::io::BufReader::new(server.stdout.take().unwrap()));
    assert_eq!(told.next().unwrap().unwrap(), "up");
    let ask = "/usr/bin/python3 -c \"import socket; print(socket.gethostbyname('known'))\"; cat /etc/resolv.conf";
    // Alone on its gateway, behind a bridge, and where all share one network.
    let two = "[roles.main]\n[roles.other]\ncommand = \"true\"\n";
    for (job, network, roles) in [("alone", "task", ""), ("two", "task", two), ("shared", "job", two)] {
        let report = instance.run_job(job, &format!("network = {network:?}\ncommand = {ask:?}\n{roles}"));
        assert_eq!(report["state"], "succeeded", "{report:#}");
        let log = instance.log(job, "main-0");
        let (address, names) = log.split_once('\n').unwrap();
        assert_eq!(address, "192.0.2.7", "{log}");
        assert!(names.starts_with("nameserver 10.213.") && names.ends_with("\nsearch lab\n"), "{log}");
        assert_eq!(told.next().unwrap().unwrap(), "127.0.0.1", "it is asked by the machine, as it sees it");
    }
    // From a task's place, with the rights to go wherever it likes.
    instance.drop_job("stay", "command = \"sleep 1000\"");
    instance.wait_state("stay", "running");
    let mut names = std::fs::read_dir(instance.root().join("run/trainyard/attempts")).unwrap();
    let place = names.next().unwrap().unwrap().path().join("net-0");
    let place = format!("--net={}", place.display());
    let sent = "import socket, subprocess\n\
        gate = open('/proc/net/route').read().split('\\n')[1].split()[2]\n\
        gate = '.'.join(str(b) for b in reversed(bytes.fromhex(gate)))\n\
        for own in ['127.0.0.0/8', '127.0.0.1']:\n    \
        subprocess.run(['ip', 'route', 'del', 'local', own, 'table', 'local'], check=True)\n\
        subprocess.run(['ip', 'route', 'add', '127.0.0.0/8', 'via', gate], check=True)\n\
        open('/proc/sys/net/ipv4/conf/all/route_localnet', 'w').write('1')\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.bind((open('/proc/net/fib_trie').read().split('/32 host LOCAL')[0].split('-- ')[-1].strip(), 0))\n\
        s.sendto(bytes([0, 7, 1, 0, 0, 1] + [0] * 6 + [1, 97, 0, 0, 1, 0, 1]), ('127.0.0.1', 53))\n";
    let forced = Command::new("nsenter").args([&place, "/usr/bin/python3", "-c", sent]).output().unwrap();
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    // It has come and gone before a question that is answered.
    instance.run_job("last", &format!("command = {ask:?}\n"));
    assert_eq!(instance.log("last", "main-0").lines().next(), Some("192.0.2.7"));
    assert_eq!(told.next().unwrap().unwrap(), "127.0.0.1");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(told.next().map(Result::unwrap), None, "what was sent to the loopback itself is dropped");
    instance.shutdown();
}

#[test]
fn a_named_port_that_a_stranger_has_is_waited_for_and_never_taken_over() {
    let test = "a_named_port_that_a_stranger_has_is_waited_for_and_never_taken_over";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let target = format!("--net=/proc/{}/ns/net", instance.network_holder());
    let serve = "import socket\ns = socket.create_server(('', 8090))\nprint('up', flush=True)\n\
        while True:\n    c, _ = s.accept()\n    c.sendall(b'stranger')\n    c.close()\n";
    let mut stranger = Command::new("nsenter")
        .args([&target, "/usr/bin/python3", "-c", serve])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stranger.stdout.take().unwrap()), &mut line).unwrap();
    instance.drop_job("job", &format!("{HTTP}[roles.main]\nports = {{ http = {{ begin = 8090 }} }}\n"));
    let reason = wait_for("the reason", || {
        let report = instance.report("job")?;
        let reason = text(&report["reason"]);
        (report["state"] == "waiting" && reason.contains("another program")).then_some(reason)
    });
    assert!(reason.contains("port 8090"), "{reason}");
    assert_eq!(ask(&instance, "8090"), "stranger");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let report = instance.wait_state("job", "running");
    assert_eq!(report["attempt"], 1, "waiting was no attempt");
    wait_for("the server", || (ask(&instance, "8090") == "job").then_some(()));
    instance.shutdown();
}

#[test]
fn equal_named_ports_of_two_roles_differ_outside_also_after_a_restart() {
    let test = "equal_named_ports_of_two_roles_differ_outside_also_after_a_restart";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let serve = HTTP.replace("['TRAINYARD_JOB']", "['TRAINYARD_ROLE']");
    let port = "ports = { http = { begin = 8087 } }";
    instance.drop_job("pair", &format!("{serve}[roles.a]\n{port}\n[roles.b]\n{port}\n"));
    let ports_of = |instance: &Instance, task: &str| {
        let log = || instance.log("pair", task);
        let log = wait_for("the server", || Some(log()).filter(|log| log.split_whitespace().count() > 1));
        assert!(log.starts_with("8087 "), "inside it is as the file says: {log}");
        log.split_whitespace().nth(1).unwrap().to_owned()
    };
    let (a, b) = (ports_of(&instance, "a-0"), ports_of(&instance, "b-0"));
    assert!(a == "8087" && a != b, "{a} {b}");
    let answers = |instance: &Instance| (ask(instance, &a), ask(instance, &b));
    assert_eq!(answers(&instance), ("a".to_owned(), "b".to_owned()));
    instance.kill_daemon();
    instance.restart_daemon();
    assert_eq!(answers(&instance), ("a".to_owned(), "b".to_owned()));
    instance.ok(&["stop", "pair"]);
    instance.wait_end("pair", 1);
    wait_for("the attempt to be cleaned up", || no_attempts(&instance).then_some(()));
    instance.shutdown();
}

fn no_attempts(instance: &Instance) -> bool {
    std::fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().count() == 0
}

/// Carries out a command of nft's in the instance's own network, which is not the machine's.
fn nft(instance: &Instance, command: &[&str]) -> std::process::Output {
    let target = format!("--net=/proc/{}/ns/net", instance.network_holder());
    Command::new("nsenter").arg(target).arg("nft").args(command).output().unwrap()
}

#[test]
fn flushed_rules_and_damaged_records_hold_up_nobody() {
    let test = "flushed_rules_and_damaged_records_hold_up_nobody";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let job = format!("{HTTP}[roles.main]\nports = {{ http = 1 }}\n");
    let port_of = |instance: &Instance, job: &str| {
        wait_for("the server", || instance.log(job, "main-0").split_whitespace().nth(1).map(str::to_owned))
    };
    for name in ["one", "two", "three"] {
        instance.drop_job(name, &job);
    }
    let [_, two, _] = ["one", "two", "three"].map(|name| port_of(&instance, name));
    assert!(nft(&instance, &["flush", "ruleset"]).status.success());
    assert_eq!(ask(&instance, &two), "", "nothing leads there any more");
    instance.ok(&["stop", "one"]);
    instance.wait_end("one", 1);
    let attempts = || std::fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().count();
    wait_for("the attempt to be cleaned up", || (attempts() == 2).then_some(()));
    instance.drop_job("four", &job);
    let four = port_of(&instance, "four");
    assert_eq!((ask(&instance, &four), ask(&instance, &two)), ("four".to_owned(), "two".to_owned()), "all of it again");
    let records = std::fs::read_dir(instance.root().join("var/lib/trainyard/attempts")).unwrap().flatten();
    for attempt in records {
        std::fs::write(attempt.path().join("placement.json"), "{\"tasks\": [nonsense").unwrap();
    }
    instance.kill_daemon();
    instance.restart_daemon();
    for name in ["two", "three", "four"] {
        assert_eq!(instance.state(name), "running");
        instance.ok(&["stop", name]);
        instance.wait_end(name, 1);
    }
    wait_for("the attempts to be cleaned up", || no_attempts(&instance).then_some(()));
    instance.shutdown();
}

#[test]
fn services_are_reached_while_their_job_runs_and_hold_nothing_open() {
    let test = "services_are_reached_while_their_job_runs_and_hold_nothing_open";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let _outside = outside(&instance);
    let serve = HTTP.replace("int(os.environ['TRAINYARD_PORT_HTTP'])", "8888");
    let work = "command = \"echo $TRAINYARD_ROLES; while ! [ -e /output/end ]; do sleep 0.1; done\"\n\
                resources = { cpu = 0.5, memory = \"128MiB\" }\n";
    // Also where all tasks share one network.
    for (job, network) in [("one", "task"), ("two", "job")] {
        let work = format!("network = \"{network}\"\n{work}");
        instance.drop_job(job, &format!("{work}[services.notebook]{serve}port = 8888\nresources.cpu = 0.1\n"));
    }
    let mut seen = Vec::new();
    for job in ["one", "two"] {
        let port = wait_for("its port", || {
            let report = instance.report(job)?;
            let port = report["ports"].as_array()?.first()?.clone();
            assert_eq!((text(&port["task"]), port["port"].as_u64()), ("notebook-0".into(), Some(8888)));
            Some(port["published"].as_u64().unwrap().to_string())
        });
        wait_for("the page", || (ask(&instance, &port) == job).then_some(()));
        let shown = instance.ok(&["status", job]);
        assert!(shown.contains("http://") && shown.contains(&format!(":{port}/")), "{shown}");
        // The tasks are told of no peer that it is.
        wait_for("the task", || (instance.log(job, "main-0").trim() == "main").then_some(()));
        seen.push(port);
    }
    assert_ne!(seen[0], seen[1], "the same inside, another one of the machine for each");
    for job in ["one", "two"] {
        std::fs::write(instance.run_dir(job, 1).join("output/end"), "").unwrap();
        let report = instance.wait_end(job, 1);
        assert_eq!(report["state"], "succeeded", "{report:#}");
        assert!(report["ports"].as_array().unwrap().is_empty());
    }
    // One that cannot come up is told, and ends nothing.
    instance.drop_job("broken", &format!("{work}[tensorboard]\nimage = \"host\"\nlog_dir = \"/output/logs\"\n"));
    let reason = wait_for("its end", || {
        let report = instance.report("broken")?;
        let task = report["tasks"].as_array()?.iter().find(|task| task["task"] == "tensorboard-0")?.clone();
        Some(text(&task["reason"])).filter(|reason| !reason.is_empty())
    });
    assert!(reason.contains("there is no program \"tensorboard\""), "{reason}");
    assert_eq!(instance.state("broken"), "running");
    std::fs::write(instance.run_dir("broken", 1).join("output/end"), "").unwrap();
    let ended = instance.wait_end("broken", 1);
    assert_eq!(
        (ended["state"].as_str(), text(&ended["reason"])),
        (Some("succeeded"), "every task that counts has succeeded".into())
    );
    instance.shutdown();
}

#[test]
fn without_masquerading_nothing_is_published_and_jobs_are_kept_apart_all_the_same() {
    let test = "without_masquerading_nothing_is_published_and_jobs_are_kept_apart_all_the_same";
    if !has_tools(test, &["ip", "nft"]) {
        return;
    }
    let Some(mut instance) = Instance::start(test, "") else { return };
    let rules = |instance: &Instance| String::from_utf8(nft(instance, &["list", "ruleset"]).stdout).unwrap();
    assert!(rules(&instance).contains("masquerade") && rules(&instance).contains("drop"), "{}", rules(&instance));
    let config = "[limits]\ncpu = 16\nmemory = \"16GiB\"\n[network]\nrange = \"10.213.0.0/16\"\nmasquerade = false\n";
    std::fs::write(instance.root().join("etc/trainyard/trainyard.toml"), config).unwrap();
    instance.kill_daemon();
    instance.restart_daemon();
    assert!(!rules(&instance).contains("masquerade") && rules(&instance).contains("drop"), "{}", rules(&instance));
    // The port is the task's own, and no business of the machine's.
    let job = "command = \"env | grep -c TRAINYARD_PUBLISHED; echo $TRAINYARD_PORT_SSH\"\n[roles.main]\nports = { ssh = { begin = 22 } }";
    let aside = instance.jobs_d().join(".low.new");
    std::fs::write(&aside, job).unwrap();
    std::os::unix::fs::chown(&aside, Some(65534), Some(65534)).unwrap();
    std::fs::rename(&aside, instance.jobs_d().join("low.toml")).unwrap();
    assert_eq!(instance.wait_end("low", 1)["state"], "succeeded");
    assert_eq!(instance.log("low", "main-0"), "0\n22\n");
    instance.ok(&["shutdown"]);
    instance.wait_daemon_end();
    assert!(!rules(&instance).contains("trainyard_"), "{}", rules(&instance));
}

/// microsoft/pai#5566: many ports in several roles failed at the start.
#[test]
fn pai_5566_three_roles_with_twenty_ports_each_listen_on_all_of_them() {
    let test = "pai_5566_three_roles_with_twenty_ports_each_listen_on_all_of_them";
    let Some(instance) = Instance::start(test, "") else { return };
    // Each listens on all that it was given, and says which.
    let script = r#"import os, socket
ports = os.environ["TRAINYARD_PORT_X"].split(",")
held = [socket.create_server(("", int(port))) for port in ports]
print(len(held), *ports)
"#;
    let roles = ["a", "b", "c"].map(|role| format!("[roles.{role}]\nports = {{ x = 20 }}\n")).concat();
    for network in ["task", "job", "host"] {
        let command = ["/usr/bin/python3", "-c", script];
        let report = instance.run_job(network, &format!("network = {network:?}\ncommand = {command:?}\n{roles}"));
        assert_eq!(report["state"], "succeeded", "{report:#}");
        let mut all = std::collections::BTreeSet::<u16>::new();
        for role in ["a", "b", "c"] {
            let log = instance.log(network, &format!("{role}-0"));
            let numbers: Vec<u16> = log.split_whitespace().map(|word| word.parse().unwrap()).collect();
            assert_eq!(numbers[0], 20, "{log}");
            all.extend(&numbers[1..]);
        }
        assert_eq!(all.len(), 60, "no two tasks alike: {all:?}");
    }
    instance.shutdown();
}
