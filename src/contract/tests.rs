use super::*;
use crate::spec::parse;

const JOB: &str = r#"
code = "digits"
command = "python3 train.py"
[params]
name = "it's"
[roles.ps]
ports = { grad = 1 }
[roles.worker]
count = 2
ports = { http = { count = 2, begin = 8080 } }
env = { TRAINYARD_JOB = "mine" }
"#;

fn with_task<T>(ordinal: usize, look: impl Fn(&Task<'_>) -> T) -> T {
    let spec = parse("digits.toml", JOB).0.unwrap();
    let identity =
        Identity { key: "vision/digits".parse().unwrap(), run: 3, attempt: 1, user: "ada".into(), uid: 1000 };
    let place = |last, label: &str, ports: &[u16]| TaskPlace {
        address: Ipv4Addr::new(10, 213, 0, last),
        ports: vec![(label.to_owned(), ports.to_vec())],
        published: Vec::new(),
        cores: Vec::new(),
    };
    let placement = Placement {
        on_machine: false,
        tasks: vec![place(2, "grad", &[20000]), place(3, "http", &[8080, 8081]), place(4, "http", &[8080, 8081])],
    };
    let inside = Inside { home: "/tmp".into(), ..Inside::default() };
    look(&Task::all(&spec, &identity, &placement, &inside)[ordinal])
}

fn variable(ordinal: usize, name: &str) -> Option<String> {
    with_task(ordinal, |task| view(task).env.into_iter().find(|(known, _)| known == name).map(|(_, value)| value))
}

#[test]
fn each_platform_s_names_have_their_exact_values() {
    let expected = [
        ("TRAINYARD_WORKSPACE", "vision"),
        ("TRAINYARD_RUN", "3"),
        ("TRAINYARD_PS_HOSTS", "10.213.0.2"),
        ("TRAINYARD_PS_PORTS_GRAD", "20000"),
        ("TRAINYARD_WORKER_HOSTS", "10.213.0.3,10.213.0.4"),
        ("TRAINYARD_WORKER_PORTS_HTTP", "8080,8080"),
        ("TRAINYARD_ADDRESS", "10.213.0.4"),
        ("PAI_HOST_IP_worker_1", "10.213.0.4"),
        ("PAI_PORT_LIST_worker_0_http", "8080,8081"),
        ("PAI_worker_0_http_PORT", "8080,8081"),
        ("PAI_TASK_ROLE_worker_HOST_LIST", "10.213.0.3:8080,10.213.0.4:8080"),
        ("PAI_TASK_ROLE_LIST", "ps,worker"),
        ("PAI_JOB_TASK_COUNT", "3"),
        ("PAI_RESOURCE_worker", "0,1,1024,512"),
        ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "1"),
        ("PAI_CONTAINER_HOST_PORT_LIST", "http:8080,8081;"),
        ("PAI_CONTAINER_HOST_PORT", "8080"),
        ("PAI_MIN_FAILED_TASK_COUNT_ps", "1"),
        ("TASKROLE_NAME", "worker"),
        ("VC_WORKER_HOSTS", "worker-0,worker-1"),
        ("VC_TASK_INDEX", "1"),
        ("HOME", "/tmp"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        // The user's own word comes last.
        ("TRAINYARD_JOB", "mine"),
    ];
    for (name, value) in expected {
        assert_eq!(variable(2, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(variable(0, "TRAINYARD_JOB").as_deref(), Some("digits"));
}

#[test]
fn the_hosts_file_knows_every_task() {
    let hosts = with_task(1, |task| view(task).hosts);
    for line in ["10.213.0.2 ps-0", "10.213.0.3 worker-0", "10.213.0.4 worker-1"] {
        assert!(hosts.lines().any(|known| known == line), "{hosts}");
    }
    assert_eq!(with_task(1, |task| view(task).host_name), "worker-0");
}

#[test]
fn params_are_appended_so_that_a_shell_reads_them_back() {
    let args = with_task(0, |task| view(task).args);
    assert_eq!(args[..2], ["/bin/sh", "-c"]);
    assert_eq!(args[2], r"python3 train.py '--name=it'\''s'");
}

proptest::proptest! {
    #[test]
    fn sh_reads_every_quoted_word_back(word in "[^\\x00]{0,24}") {
        #[expect(clippy::disallowed_methods, reason = "the shell is the judge here")]
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", &format!("printf %s {}", command::quote(&word))])
            .output()
            .unwrap();
        proptest::prop_assert_eq!(String::from_utf8_lossy(&output.stdout), word);
    }
}
