//! Systems whose scripts are written for Kubeflow's shapes, or for those of a neighbour: what each has of its own, or that its
//! idioms, as far as anybody has published them, are met.

use super::*;

#[test]
fn xiaomi_calls_the_one_that_leads_master() {
    let chief = seen(&job("kubeflow/xiaomi", &PS.replace("[roles.ps]", "[roles.chief]\n[roles.ps]")), 0);
    assert_eq!(tf_config(&chief)["task"], json!({"type":"master","index":0}));
    assert_eq!(tf_config(&chief).get("environment"), None);
}

#[test]
fn caicloud_tells_steps_and_a_log_directory() {
    assert_variables(&seen(&job("kubeflow/caicloud", PS), 1), &[("TF_MAX_STEPS", "1"), ("TF_LOGDIR", "/output")]);
}

#[test]
fn swarm_tells_hosts_by_variables_and_arena_hides_cards_from_servers() {
    let swarm = seen(&job("kubeflow/swarm", PS), 1);
    assert!(arguments(&swarm).is_empty(), "a script that parses strictly runs");
    let hosts = [("JOB_NAME", "worker"), ("TASK_INDEX", "0"), ("PS_HOSTS", "ps0:2222")];
    assert_variables(&swarm, &hosts);
    assert_variables(&swarm, &[("WORKER_HOSTS", "worker0:2222,worker1:2222")]);
    assert_eq!(variable(&seen(&job("kubeflow/swarm", NODES), 0), "PS_HOSTS"), None);
    assert!(swarm.hosts.contains("10.213.0.2 ps-0 ps0"), "{}", swarm.hosts);
    let arena = seen(&job("kubeflow/arena", PS), 1);
    assert_eq!(tf_config(&arena)["cluster"]["ps"], json!(["digits-ps-0.vision.svc:22223"]));
    assert_variables(&arena, &[("NVIDIA_VISIBLE_DEVICES", "void")]);
}

/// Its sister platform documents its variables; its older jobs are Paddle's.
#[test]
fn bml_is_its_sister_s_or_paddle_s() {
    assert_variables(
        &seen(&job("kubeflow/aihc", NODES), 1),
        &[("AIHC_JOB_NAME", "digits"), ("WORLD_SIZE", "2"), ("RANK", "1"), ("NPROC_PER_NODE", "1")],
    );
    let boards = |more: &str| {
        let text = job("kubeflow/aihc", &format!("{NODES}{more}"));
        variable(&seen(&text, 1), "AIHC_TENSORBOARD_LOG_PATH")
    };
    assert_eq!(boards(""), None);
    assert_eq!(boards("[tensorboard]\nlog_dir = \"/output/logs\"\n").as_deref(), Some("/output/logs"));
    let each = "[tensorboard]\nlog_dir = \"/output/logs\"\neach_task = true\n";
    assert_eq!(boards(each).as_deref(), Some("/output/logs/worker-1"));
    let paddle = seen(&job("paddle", &format!("framework = \"paddle\"\n{NODES}")), 1);
    assert_variables(&paddle, &[("PADDLE_TRAINER_ID", "1"), ("PADDLE_TRAINERS_NUM", "2")]);
}

/// The flags of TensorFlow 1's own examples: all four, for servers and workers alike.
#[test]
fn meituan_s_scripts_find_flags() {
    let flags = |task| arguments(&seen(&job("kubeflow/psflags", PS), task)).join(" ");
    let hosts = "--ps_hosts=digits-ps-0.vision.svc:2222 --worker_hosts=digits-worker-0.vision.svc:2222,digits-worker-1.vision.svc:2222";
    assert_eq!(flags(0), format!("--job_name=ps --task_index=0 {hosts}"));
    assert_eq!(flags(2), format!("--job_name=worker --task_index=1 {hosts}"));
}

/// A script, its epochs, and counts of servers and workers, which see one output.
#[test]
fn lambda_s_script_finds_flags_and_epochs_and_its_tasks_one_output() {
    let text = PS.replace("[roles.ps]", "[params]\nepochs = 3\n[roles.ps]");
    let worker = seen(&job("kubeflow/psflags", &text), 1);
    let told = arguments(&worker);
    assert!(told.contains(&"--epochs=3".to_owned()) && told.contains(&"--job_name=worker".to_owned()), "{told:?}");
    assert!(places(&worker).contains(&"/output"), "{:?}", places(&worker));
}

/// The architecture is picked, nodes are counted by kind, and so many cards are the most.
#[test]
fn das_has_its_architectures_and_a_bound_of_cards() {
    let das = |framework: &str, strategy: &str, roles: &str, task: usize| {
        let text = format!("command = \"x\"\nframework = \"{framework}\"\nstrategy = \"{strategy}\"\n{roles}");
        seen(&job("kubeflow", &text), task)
    };
    let servers = "[roles.ps]\n[roles.worker]\ncount = 2\n";
    assert_eq!(tf_config(&das("tensorflow", "ps", servers, 0))["task"], json!({"type":"ps","index":0}));
    let alike = tf_config(&das("tensorflow", "allreduce", "[roles.worker]\ncount = 2\n", 1));
    assert!(alike["cluster"].get("ps").is_none() && alike["cluster"]["worker"].as_array().unwrap().len() == 2);
    let led = "[roles.master]\n[roles.worker]\ncount = 2\n";
    assert_variables(&das("pytorch", "master-worker", led, 0), &[("RANK", "0"), ("WORLD_SIZE", "3")]);
    assert_variables(&das("xgboost", "master-worker", led, 1), &[("RANK", "1"), ("WORLD_SIZE", "3")]);
    // The master need not be named, and its end is the job's.
    let workers = "[roles.worker]\ncount = 2\n";
    assert_variables(&das("pytorch", "master-worker", workers, 2), &[("RANK", "2"), ("WORLD_SIZE", "3")]);
    assert_variables(&das("pytorch", "allreduce", workers, 1), &[("RANK", "1"), ("WORLD_SIZE", "2")]);
    let cards = "framework = \"pytorch\"\ncommand = \"x\"\nmax_gpu = 4\n[roles.worker]\ncount = 2\nresources.gpu = 4\n";
    let spec = parse("x.toml", &job("kubeflow", cards)).0.unwrap();
    let used: u32 = spec.roles.iter().map(|role| role.count * role.resources.gpu).sum();
    assert_eq!(used, 4);
    // Without a count it is a cluster of processors.
    let spec = parse("x.toml", &job("kubeflow", led)).0.unwrap();
    assert!(spec.roles.iter().all(|role| role.resources.gpu == 0));
}

/// Nothing of what their containers hold is published: scripts of Kubeflow's kind, and of MPI's, run.
#[test]
fn inspur_s_scripts_are_kubeflow_s_or_mpi_s() {
    assert_eq!(tf_config(&seen(&job("kubeflow", PS), 1))["task"], json!({"type":"worker","index":0}));
    let ranks = "framework = \"mpi\"\ncommand = \"mpirun ./train\"\n[roles.worker]\ncount = 2\nresources.cpu = 2\n";
    let hosts = file(&seen(&job("mpi", ranks), 0), "/etc/mpi/hostfile");
    assert_eq!(hosts.lines().count(), 2, "{hosts}");
}

#[test]
fn didi_s_scripts_are_kubeflow_s() {
    assert_eq!(tf_config(&seen(&job("kubeflow", PS), 0))["cluster"]["ps"].as_array().unwrap().len(), 1);
    let led = "framework = \"pytorch\"\ncommand = \"x\"\n[roles.master]\n[roles.worker]\n";
    assert_variables(&seen(&job("kubeflow", led), 1), &[("RANK", "1"), ("WORLD_SIZE", "2")]);
}

/// Its jobs were Kubeflow's and are Volcano's.
#[test]
fn cci_s_scripts_are_volcano_s_or_kubeflow_s() {
    assert_variables(&seen(&job("volcano", NODES), 1), &[("VC_TASK_INDEX", "1"), ("VC_WORKER_NUM", "2")]);
    assert_eq!(tf_config(&seen(&job("kubeflow", PS), 2))["task"], json!({"type":"worker","index":1}));
}

const RANKS: &str = "framework = \"mpi\"\ncommand = \"mpirun ./pi\"\n[roles.worker]\ncount = 2\nresources.cpu = 2\n";

#[test]
fn base_command_numbers_its_array() {
    assert_variables(&seen(&job("mpi/bcp", RANKS), 2), &[("NGC_ARRAY_SIZE", "2"), ("NGC_ARRAY_INDEX", "1")]);
}

#[test]
fn nauta_has_places_of_its_own() {
    let nauta = seen(&job("mpi/nauta", &format!("code = \"c\"\n{RANKS}")), 0);
    assert!(places(&nauta).contains(&"/app") && places(&nauta).contains(&"/mnt/output/experiment"));
    let public = layout::in_run(&nauta.places, "/mnt/output/root/public/x");
    assert_eq!(public.as_deref(), Some(std::path::Path::new("output/public/x")), "it outlives the task");
}

/// `horovodrun` is told of its hosts, and starts its processes by what is called `ssh`.
#[test]
fn horovod_finds_its_hosts_and_an_ssh() {
    let text =
        "framework = \"horovod\"\ncommand = \"horovodrun -np 4 python3 t.py\"\n[roles.worker]\ncount = 2\nslots = 2\n";
    let launcher = seen(&job("mpi", text), 0);
    assert_eq!(launcher.args[2], "horovodrun -np 4 python3 t.py");
    assert!(launcher.files.iter().any(|file| file.path == "/run/trainyard/bin/ssh"), "{:?}", launcher.files);
    let hosts = file(&launcher, "/etc/mpi/hostfile");
    assert!(hosts.lines().count() == 2 && hosts.lines().all(|line| line.ends_with("slots=2")), "{hosts}");
}
