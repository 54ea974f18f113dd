//! What OpenPAI's scripts find: every variable of its tutorial, and what it counts.

use super::*;

/// Under OpenPAI's own contract, with all that a variable may tell of.
const WHOLE: &str = r#"
contract = "openpai"
command = "x"
[roles.ps]
resources = { cpu = 1.5, memory = "2GiB" }
min_failed = "never"
[roles.worker]
count = 2
min_failed = 2
min_succeeded = 1
resources = { cpu = 4, memory = "16GiB", shm = "1GiB", gpu = 2 }
ports = { sync = { count = 2, begin = 9000 } }
"#;

/// Without `PAI_`; of all roles, as every task of the job is told.
const OF_ALL: &[(&str, &str)] = &[
    ("CODE_DIR", "/code"),
    ("DATA_DIR", "/dataset"),
    ("DEFAULT_FS_URI", ""),
    ("FRAMEWORK_NAME", "digits"),
    ("HOST_IP_ps_0", "10.213.0.2"),
    ("HOST_IP_worker_0", "10.213.0.3"),
    ("HOST_IP_worker_1", "10.213.0.4"),
    ("JOB_NAME", "digits"),
    ("JOB_TASK_COUNT", "3"),
    ("JOB_TASK_ROLE_COUNT", "2"),
    ("JOB_TASK_ROLE_LIST", "ps,worker"),
    ("JOB_VC_NAME", "vision"),
    ("MIN_FAILED_TASK_COUNT_ps", ""),
    ("MIN_FAILED_TASK_COUNT_worker", "2"),
    ("MIN_SUCCEEDED_TASK_COUNT_ps", "1"),
    ("MIN_SUCCEEDED_TASK_COUNT_worker", "1"),
    ("OUTPUT_DIR", "/output"),
    ("PORT_LIST_ps_0_http", "20000"),
    ("PORT_LIST_ps_0_ssh", "20000"),
    ("PORT_LIST_worker_0_http", "20000"),
    ("PORT_LIST_worker_0_ssh", "20000"),
    ("PORT_LIST_worker_0_sync", "9000,9001"),
    ("PORT_LIST_worker_1_http", "20000"),
    ("PORT_LIST_worker_1_ssh", "20000"),
    ("PORT_LIST_worker_1_sync", "9000,9001"),
    ("RESOURCE_ps", "0,2,2048,64"),
    ("RESOURCE_worker", "2,4,16384,1024"),
    ("TASKS_NUM", "3"),
    ("TASK_ROLES_NUM", "2"),
    ("TASK_ROLE_COUNT", "2"),
    ("TASK_ROLE_INSTANCES", "ps:0,worker:0,worker:1"),
    ("TASK_ROLE_LIST", "ps,worker"),
    ("TASK_ROLE_TASK_COUNT_ps", "1"),
    ("TASK_ROLE_TASK_COUNT_worker", "2"),
    ("TASK_ROLE_ps_HOST_LIST", "10.213.0.2:20000"),
    ("TASK_ROLE_worker_HOST_LIST", "10.213.0.3:20000,10.213.0.4:20000"),
    ("USERNAME", "ada"),
    ("USER_NAME", "ada"),
    ("VIRTUAL_CLUSTER", "vision"),
    ("ps_0_http_PORT", "20000"),
    ("ps_0_ssh_PORT", "20000"),
    ("worker_0_http_PORT", "20000"),
    ("worker_0_ssh_PORT", "20000"),
    ("worker_0_sync_PORT", "9000,9001"),
    ("worker_1_http_PORT", "20000"),
    ("worker_1_ssh_PORT", "20000"),
    ("worker_1_sync_PORT", "9000,9001"),
];

/// Of the second worker alone.
const OF_WORKER_1: &[(&str, &str)] = &[
    ("CONTAINER_HOST_IP", "10.213.0.4"),
    ("CONTAINER_HOST_PORT", "20000"),
    ("CONTAINER_HOST_PORT_LIST", "sync:9000,9001;http:20000;ssh:20000;"),
    ("CONTAINER_HOST_http_PORT_LIST", "20000"),
    ("CONTAINER_HOST_ssh_PORT_LIST", "20000"),
    ("CONTAINER_HOST_sync_PORT_LIST", "9000,9001"),
    ("CONTAINER_ID", "container_vision_digits_3_1_2"),
    ("CONTAINER_SSH_PORT", "20000"),
    ("CURRENT_CONTAINER_IP", "10.213.0.4"),
    ("CURRENT_CONTAINER_PORT", "20000"),
    ("CURRENT_TASK_ROLE_CPU_COUNT", "4"),
    ("CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "1"),
    ("CURRENT_TASK_ROLE_GPU_COUNT", "2"),
    ("CURRENT_TASK_ROLE_MEM_MB", "16384"),
    ("CURRENT_TASK_ROLE_MIN_FAILED_TASK_COUNT", "2"),
    ("CURRENT_TASK_ROLE_MIN_SUCCEEDED_TASK_COUNT", "1"),
    ("CURRENT_TASK_ROLE_NAME", "worker"),
    ("CURRENT_TASK_ROLE_SHM_MB", "1024"),
    ("CURRENT_TASK_ROLE_TASK_COUNT", "2"),
    ("TASK_CPU_NUM", "4"),
    ("TASK_GPU_NUM", "2"),
    ("TASK_INDEX", "1"),
    ("TASK_MEM_MB", "16384"),
    ("TASK_ROLE_INDEX", "1"),
    ("TASK_ROLE_NAME", "worker"),
    ("TASK_ROLE_NUM", "2"),
    ("WORK_DIR", "/output"),
];

#[test]
fn openpai_tells_every_variable_of_its_tutorial_and_no_other() {
    let told = |seen: &View| -> Vec<(String, String)> {
        let of_openpai =
            |(name, value): &(String, String)| Some((name.strip_prefix("PAI_")?.to_owned(), value.clone()));
        let mut told: Vec<_> = seen.env.iter().filter_map(of_openpai).collect();
        told.sort();
        told
    };
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let mut whole = owned(&[OF_ALL, OF_WORKER_1].concat());
    whole.sort();
    assert_eq!(told(&seen(WHOLE, 2)), whole);
    // Of all roles every task is told the same; never is empty, as v0.x has it.
    let ps = seen(WHOLE, 0);
    let of_ps = told(&ps);
    assert!(OF_ALL.iter().all(|(name, value)| of_ps.contains(&((*name).to_owned(), (*value).to_owned()))), "{of_ps:?}");
    assert_variables(
        &ps,
        &[
            ("PAI_CURRENT_TASK_ROLE_NAME", "ps"),
            ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "0"),
            ("PAI_CURRENT_TASK_ROLE_MIN_FAILED_TASK_COUNT", ""),
            ("PAI_CURRENT_TASK_ROLE_CPU_COUNT", "2"),
            ("PAI_CURRENT_TASK_ROLE_SHM_MB", "64"),
        ],
    );
}

#[test]
fn attempts_are_counted_from_0_as_the_controller_below_openpai_does() {
    for contract in ["native", "openpai"] {
        let text = format!("contract = \"{contract}\"\ncommand = \"x\"\nroles.w.count = 2");
        let told = |attempt, again| {
            let seen = seen_of(&text, 1, attempt, again);
            ["FC_FRAMEWORK_ATTEMPT_ID", "FC_TASK_ATTEMPT_ID"].map(|name| variable(&seen, name).unwrap())
        };
        assert_eq!([told(1, 0), told(1, 2), told(3, 0), told(3, 1)], [["0", "0"], ["0", "2"], ["2", "0"], ["2", "1"]]);
    }
}

#[test]
fn openpai_takes_whole_cores() {
    let told = |resources: &str| {
        let text = format!("contract = \"openpai\"\ncommand = \"x\"\nresources = {{ {resources} }}");
        let spec = parse("x.toml", &text).0.unwrap();
        advice::refusals(&"x".parse().unwrap(), &spec).into_iter().map(|advice| advice.text).collect::<String>()
    };
    assert_eq!(told("cpu = 1, memory = \"100MB\""), "");
    assert!(told("cpu = 0.5, memory = \"1GiB\"").contains("has cpu = 0.5"));
}

#[test]
fn openpai_gives_every_task_its_ports_and_a_small_shm() {
    let text =
        "contract = \"openpai\"\ncommand = \"x\"\n[roles.ps]\n[roles.worker]\ncount = 2\nresources.shm = \"1MiB\"\n";
    let spec = parse("x.toml", text).0.unwrap();
    let labels = |role: usize| spec.roles[role].ports.iter().map(|port| port.label.as_str()).collect::<Vec<_>>();
    assert_eq!((labels(0), labels(1)), (vec!["http", "ssh"], vec!["http", "ssh"]));
    let shm = |role: usize| spec.roles[role].resources.shm.0;
    assert_eq!((shm(0), shm(1)), (64 << 20, 1 << 20));
    let own = parse("x.toml", &text.replace("[roles.ps]", "[roles.ps]\nports.http = 3")).0.unwrap();
    assert_eq!(own.roles[0].ports[0].count, 3, "what the file says itself is left alone");
    let small = parse("x.toml", "contract = \"openpai\"\ncommand = \"x\"\nresources.memory = \"100MB\"").0.unwrap();
    assert_eq!(small.roles[0].resources.shm.0, 64 << 20);
}
