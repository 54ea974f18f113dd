//! Tasks that talk to each other.

use super::support::{Instance, processes_with, wait_for};

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
for _ in range(200):
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
        command = \"for i in $(seq 200); do [ -e /dev/shm/note ] && exit 0; sleep 0.02; done; exit 1\"\n";
    assert_eq!(instance.run_job("memory", shm)["state"], "succeeded");
    let own = shm.replace("network = \"job\"\n", "").replace("seq 200", "seq 10");
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
