mod neighbours;
mod openpai;
mod ranks;
mod shells;
mod told;

use serde_json::{Value, json};

use super::*;
use crate::spec::parse;

/// The view of task `ordinal` of a job `digits` of workspace `vision`, whose tasks have the addresses 10.213.0.2 and on.
fn seen(text: &str, ordinal: usize) -> View {
    seen_of(text, ordinal, 1, 0)
}

/// In that attempt, started again so many times.
fn seen_of(text: &str, ordinal: usize, attempt: u32, again: u32) -> View {
    let (spec, found) = parse("digits.toml", text);
    let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
    let identity = Identity { key: "vision/digits".parse().unwrap(), run: 3, attempt, user: "ada".into(), uid: 1000 };
    let place = |(number, (role, _)): (u8, (&Role, u32))| {
        let ports = |port: &Port| {
            let first = port.begin.unwrap_or(20000);
            (port.label.clone(), (first..first + port.count).collect())
        };
        TaskPlace {
            address: Ipv4Addr::new(10, 213, 0, number),
            ports: role.ports.iter().map(ports).collect(),
            published: Vec::new(),
            cores: Vec::new(),
            near: Vec::new(),
        }
    };
    let tasks = (2..).zip(spec.tasks()).map(place).collect();
    let placement = Placement { on_machine: false, shared_address: None, tasks };
    let inside = Inside { home: "/tmp".into(), ..Inside::default() };
    let unspeakable = Unspeakable::of(&spec, &identity, &placement);
    view(&Task { again, ..Task::all(&spec, &identity, &placement, &inside, &unspeakable)[ordinal] })
}

fn variable(seen: &View, name: &str) -> Option<String> {
    seen.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

#[track_caller]
fn assert_variables(seen: &View, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(variable(seen, name).as_deref(), Some(*value), "{name}");
    }
}

fn tf_config(seen: &View) -> Value {
    serde_json::from_str(&variable(seen, "TF_CONFIG").expect("TF_CONFIG")).unwrap()
}

fn file(seen: &View, path: &str) -> String {
    let found = seen.files.iter().find(|file| file.path == path);
    found.unwrap_or_else(|| panic!("no {path} among {:?}", seen.files)).content.clone()
}

fn places(seen: &View) -> Vec<&str> {
    seen.places.iter().map(|place| place.path.as_str()).collect()
}

/// The words that a shell makes of the command, after the script's name.
fn arguments(seen: &View) -> Vec<String> {
    let own = match seen.args.as_slice() {
        [servers, own @ ..] if servers == "/run/trainyard/servers" => own,
        own => own,
    };
    match own {
        [shell, dash, text] if shell == "/bin/sh" && dash == "-c" => {
            text.split(' ').skip(2).map(str::to_owned).collect()
        }
        words => words.iter().skip(2).cloned().collect(),
    }
}

/// What comes out of a descriptor 3 that the text inherits.
fn told_by_sh(text: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the shell is the judge here")]
    let output =
        std::process::Command::new("/bin/sh").args(["-c", &format!("exec 3>&1 >/dev/null\n{text}")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

const PS: &str = "command = \"python3 train.py\"\nframework = \"tensorflow\"\n[roles.ps]\n[roles.worker]\ncount = 2\n";
const NODES: &str = "command = \"python3 train.py\"\n[roles.worker]\ncount = 2\n";

fn job(contract: &str, rest: &str) -> String {
    format!("contract = \"{contract}\"\n{rest}")
}

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

#[test]
fn native_tasks_have_our_names_and_those_of_openpai_and_volcano() {
    let worker = seen(JOB, 2);
    assert_variables(
        &worker,
        &[
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
            ("PAI_TASK_ROLE_INSTANCES", "ps:0,worker:0,worker:1"),
            ("PAI_JOB_TASK_COUNT", "3"),
            ("PAI_RESOURCE_worker", "0,1,1024,512"),
            ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "1"),
            ("PAI_CONTAINER_HOST_PORT_LIST", "http:8080,8081;"),
            ("PAI_CONTAINER_HOST_PORT", "8080"),
            ("PAI_MIN_FAILED_TASK_COUNT_ps", "1"),
            ("FC_TASKROLE_NAME", "worker"),
            ("FC_TASK_INDEX", "1"),
            ("TASKROLE_NAME", "worker"),
            ("VC_WORKER_HOSTS", "worker-0,worker-1"),
            ("VC_TASK_INDEX", "1"),
            ("HOME", "/tmp"),
            ("GLOO_SOCKET_IFNAME", "eth0"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            // The user's own word comes last.
            ("TRAINYARD_JOB", "mine"),
        ],
    );
    assert_variables(&seen(JOB, 0), &[("TRAINYARD_JOB", "digits")]);
    assert_eq!(variable(&worker, "TF_CONFIG"), None);
}

#[test]
fn the_hosts_file_knows_every_task() {
    let view = seen(JOB, 1);
    for line in ["10.213.0.2 ps-0", "10.213.0.3 worker-0", "10.213.0.4 worker-1"] {
        assert!(view.hosts.lines().any(|known| known == line), "{}", view.hosts);
    }
    assert_eq!(view.host_name, "worker-0");
}

#[test]
fn params_are_appended_so_that_a_shell_reads_them_back() {
    let args = seen(JOB, 0).args;
    assert_eq!(args[..2], ["/bin/sh", "-c"]);
    assert_eq!(args[2], r"python3 train.py '--name=it'\''s'");
    // Two backslashes are one letter, and no line that goes on.
    let escaped = seen(concat!(r"command = 'echo a\\'", "\nparams.x = 1"), 0).args;
    assert_eq!(escaped[2], r"echo a\\ --x=1");
}

#[test]
fn sagemaker_is_what_its_own_toolkit_tells() {
    let params = "[params]\nflag = \"true\"\nd = '{\"a\":1}'\nbatch-size = 32\nlr = 0.1\n";
    let text = format!(
        "contract = \"sagemaker\"\nframework = \"tensorflow\"\ncode = \"c\"\ndatasets = [\"train=mnist@v3\", \"test\"]\n\
         command = \"python3 t.py\"\n{params}[roles.main]\ncount = 2\n"
    );
    let first = seen(&text, 0);
    // The oracle: sagemaker-training 5.1.4 from the same hyperparameters.
    assert_eq!(arguments(&first), ["--batch-size", "32", "-d", "a=1", "--flag", "True", "--lr", "0.1"]);
    let null = seen(&job("sagemaker", "command = \"python3 t.py\"\nparams.none = \"null\""), 0);
    assert_eq!(arguments(&null), ["--none", "''"], "the toolkit has no word for it");
    assert_variables(
        &first,
        &[
            ("SM_USER_ARGS", r#"["--batch-size","32","-d","a=1","--flag","True","--lr","0.1"]"#),
            ("SM_HP_FLAG", "true"),
            ("SM_HP_BATCH-SIZE", "32"),
            ("SM_HPS", r#"{"batch-size":32,"d":{"a":1},"flag":true,"lr":0.1}"#),
            ("SM_HOSTS", r#"["algo-1","algo-2"]"#),
            ("SM_CURRENT_HOST", "algo-1"),
            ("SM_CHANNELS", r#"["train","test"]"#),
            ("SM_CHANNEL_TRAIN", "/opt/ml/input/data/train"),
            ("SM_MODEL_DIR", "/opt/ml/model"),
            ("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data"),
            ("SM_USER_ENTRY_POINT", "t.py"),
            ("SM_MODULE_NAME", "t"),
        ],
    );
    assert_eq!(
        tf_config(&first),
        json!({"cluster":{"master":["algo-1:2222"],"ps":["algo-1:2223","algo-2:2223"],"worker":["algo-2:2222"]},
               "environment":"cloud","task":{"index":0,"type":"master"}})
    );
    assert_eq!(tf_config(&seen(&text, 1))["task"], json!({"index":0,"type":"worker"}));
    assert_eq!(
        file(&first, "/opt/ml/input/config/hyperparameters.json"),
        r#"{"batch-size":"32","d":"{\"a\":1}","flag":"true","lr":"0.1"}"#
    );
    let resources: Value = serde_json::from_str(&file(&first, "/opt/ml/input/config/resourceconfig.json")).unwrap();
    assert_eq!((&resources["current_host"], &resources["hosts"]), (&json!("algo-1"), &json!(["algo-1", "algo-2"])));
    let whole = |seen: &View| serde_json::from_str::<Value>(&variable(seen, "SM_TRAINING_ENV").unwrap()).unwrap();
    let (leads, follows) = (whole(&first), whole(&seen(&text, 1)));
    assert_eq!((&leads["is_master"], &follows["is_master"]), (&json!(true), &json!(false)));
    assert_eq!((&follows["master_hostname"], &follows["user_entry_point"]), (&json!("algo-1"), &json!("t.py")));
    assert_eq!(first.working_directory, "/opt/ml/code");
    for path in ["/opt/ml/code", "/opt/ml/input/data/train", "/opt/ml/model", "/opt/ml/output", "/opt/ml/checkpoints"] {
        assert!(places(&first).contains(&path), "{path}");
    }
    assert!(first.hosts.contains("10.213.0.3 main-1 algo-2"), "{}", first.hosts);
    let torch = seen(&job("sagemaker", &format!("framework = \"pytorch\"\n{NODES}")), 1);
    assert_variables(&torch, &[("MASTER_ADDR", "algo-1"), ("MASTER_PORT", "7777"), ("PET_NODE_RANK", "1")]);
    assert_eq!(variable(&torch, "RANK"), None, "torchrun sets it");
}

#[test]
fn tione_has_two_generations() {
    let params = "[params]\nz = 1\nti_program = \"t.py\"\na = \"\"\n";
    let old = "contract = \"tione/1\"\nframework = \"tensorflow\"\ncommand = \"python3 train.py\"\n";
    let first = seen(&format!("{old}{params}[roles.worker]\ncount = 2\n"), 0);
    assert_eq!(arguments(&first), ["--z", "1", "--a"]);
    let words = seen(
        "contract = \"tione/1\"\ncommand = [\"python3\", \"t.py\"]\n[params]\na = true\nb = false\nlr = 1e-4\nl = [1, \"x\"]\n\
         j = '{\"x\": [null, true]}'\nn = \"null\"\ntext = \"a b\"\nblank = \" \"\n",
        0,
    );
    // The oracle: `Config.get_args` of ti-containers 1.2.22, by tests/real/tione.py.
    let told = ["--a", "True", "--b", "False", "--lr", "0.0001", "--l", "[1, 'x']", "--j", "{'x': [None, True]}"];
    let rest = ["--n", "None", "--text", "a b", "--blank"];
    assert_eq!(arguments(&words), told.into_iter().chain(rest).collect::<Vec<_>>());
    assert_variables(
        &first,
        &[
            ("TI_TRAINING_FRAMEWORK", "tensorflow"),
            ("TM_HOSTS", r#"["worker-0", "worker-1"]"#),
            ("TM_USER_ENTRY_POINT", "t.py"),
        ],
    );
    assert_eq!(
        tf_config(&first)["cluster"],
        json!({"master":["worker-0:5555"],"ps":["worker-0:5556"],"worker":["worker-1:5555"]})
    );
    let second = seen(&job("tione", NODES), 1);
    assert_variables(
        &second,
        &[
            ("NODE_LIST", "worker-0:0,worker-1:0"),
            ("INDEX", "1"),
            ("MASTER_ADDR", "worker-0"),
            ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "2"),
            ("RANK", "1"),
        ],
    );
}

#[test]
fn pai_tells_by_variables_and_leaves_the_command_alone() {
    let text = "contract = \"pai\"\ndatasets = [\"my-data\"]\ncommand = \"python3 train.py $PAI_USER_ARGS\"\n[params]\nlr = 0.1\nname = \"a b\"\n";
    let one = seen(text, 0);
    assert_eq!(one.args[2], "python3 train.py $PAI_USER_ARGS");
    assert_variables(
        &one,
        &[
            ("PAI_INPUT_MY_DATA", "/ml/input/data/my-data"),
            ("PAI_HPS_LR", "0.1"),
            ("PAI_HPS", r#"{"lr":"0.1","name":"a b"}"#),
            ("PAI_USER_ARGS", r"--lr 0.1 --name ''\''a b'\'''"),
            ("PAI_OUTPUT_MODEL", "/ml/output/model"),
        ],
    );
    let typed = seen(
        "contract = \"pai\"\ncommand = \"x\"\n[params]\na = true\nb = false\nl = [1, \"x\"]\nlr = 1e-4\nv = \"1.10\"\n",
        0,
    );
    // The oracle: `str` of alipai 0.4.13.
    let texts = r#"{"a":"True","b":"False","l":"[1, 'x']","lr":"0.0001","v":"1.10"}"#;
    assert_variables(&typed, &[("PAI_HPS", texts), ("PAI_HPS_A", "True"), ("PAI_HPS_LR", "0.0001")]);
    assert_eq!(file(&typed, "/ml/input/config/hyperparameters.json"), texts);
    let words = variable(&typed, "PAI_USER_ARGS").unwrap();
    assert!(words.starts_with("--a True --b False "), "{words}");
    let dlc =
        "contract = \"pai/dlc\"\nframework = \"pytorch\"\ncommand = \"x\"\n[roles.worker]\ncount = 2\n[roles.master]\n";
    let worker = seen(dlc, 0);
    assert_variables(
        &worker,
        &[
            ("MASTER_ADDR", "dlcdigits-master-0.vision.svc"),
            ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "3"),
            ("RANK", "1"),
        ],
    );
    let tf = seen(&job("pai/tf", PS), 2);
    assert_eq!(
        arguments(&tf)[2..],
        [
            "--job_name=worker",
            "--task_index=1",
            "--ps_hosts=digits-ps-0:2222",
            "--worker_hosts=digits-worker-0:2222,digits-worker-1:2222"
        ]
    );
}

#[test]
fn google_counts_pools_and_keeps_the_evaluator_apart() {
    let text = job(
        "google",
        "framework = \"tensorflow\"\ncommand = \"python3 -m trainer.task\"\n[roles.chief]\n[roles.ps]\n[roles.worker]\ncount = 2\n[roles.evaluator]\n",
    );
    let worker = seen(&text, 2);
    let config = tf_config(&worker);
    assert_eq!(
        config["cluster"],
        json!({"chief":["cmle-training-chief-digits-0:2222"],"ps":["cmle-training-ps-digits-0:2222"],
               "worker":["cmle-training-worker-digits-0:2222","cmle-training-worker-digits-1:2222"]})
    );
    assert_eq!(config["task"], json!({"cloud":"digits","index":0,"trial":"1","type":"worker"}));
    assert_eq!(arguments(&worker), ["trainer.task", "--job-dir", "/gcs/job"]);
    let vertex = seen(&job("google/vertex", "command = \"x\"\n[roles.chief]\n[roles.worker]\ncount = 2\n"), 2);
    let spec: Value = serde_json::from_str(&variable(&vertex, "CLUSTER_SPEC").unwrap()).unwrap();
    assert_eq!(
        spec["cluster"],
        json!({"workerpool0":["cmle-training-workerpool0-digits-0:2222"],
               "workerpool1":["cmle-training-workerpool1-digits-0:2222","cmle-training-workerpool1-digits-1:2222"]})
    );
    assert_eq!(spec["task"], json!({"type":"workerpool1","index":1,"trial":"1"}));
    let alike = seen(&job("google/vertex", "command = \"x\"\n[roles.worker]\ncount = 3\n"), 2);
    let spec: Value = serde_json::from_str(&variable(&alike, "CLUSTER_SPEC").unwrap()).unwrap();
    assert_eq!((spec["cluster"]["workerpool0"].as_array().unwrap().len(), &spec["task"]["index"]), (1, &json!(1)));
    // Where none is called so, the first leads.
    let config = tf_config(&alike);
    assert_eq!(config["cluster"]["chief"], json!(["cmle-training-workerpool0-digits-0:2222"]));
    assert_eq!(config["task"], json!({"cloud":"digits","index":1,"trial":"1","type":"worker"}));
    let alone = seen(&job("google/vertex", "command = \"x\"\nframework = \"tensorflow\"\n"), 0);
    let spec: Value = serde_json::from_str(&variable(&alone, "CLUSTER_SPEC").unwrap()).unwrap();
    assert_eq!(spec["task"]["type"], tf_config(&alone)["task"]["type"]);
    assert_eq!(spec["task"]["type"], "chief");
    let own = seen(&job("google", "command = \"x\"\nparams.job-dir = \"/gcs/mine\"\n"), 0);
    assert!(own.args.join(" ").ends_with("--job-dir=/gcs/mine"), "{:?}", own.args);
    assert_variables(&vertex, &[("AIP_MODEL_DIR", "/gcs/job/model/")]);
    assert_variables(&vertex, &[("AIP_HTTP_HANDLER_PORT", "4444"), ("AIP_TF_PROFILER_PORT", "5555")]);
    let shared = "network = \"job\"\ncommand = \"x\"\n[roles.worker]\ncount = 3\n";
    assert_variables(&seen(&job("google/vertex", shared), 2), &[("AIP_HTTP_HANDLER_PORT", "4484")]);
    assert_eq!(variable(&vertex, "AIP_HTTP_PORT"), None, "training has none");
    // All of the job's directory is kept, and tasks see each other's part of it; the model is the model.
    for (path, kept) in [
        ("/gcs/job/checkpoints/1", "output/checkpoints/1"),
        ("/gcs/job/logs/events", "output/logs/events"),
        ("/gcs/job/export/x", "output/export/x"),
        ("/gcs/job/model/saved.pb", "model/saved.pb"),
    ] {
        assert_eq!(layout::in_run(&worker.places, path).as_deref(), Some(std::path::Path::new(kept)), "{path}");
        assert_eq!(layout::in_run(&vertex.places, path).as_deref(), Some(std::path::Path::new(kept)), "{path}");
    }
}

#[test]
fn azureml_fills_its_commands_and_counts_processes() {
    let text = "contract = \"azureml\"\ncode = \"c\"\nframework = \"pytorch\"\ndatasets = [\"iris=flowers\"]\n\
        command = \"python3 t.py --data ${{inputs.iris}} --lr ${{inputs.lr}} --out ${{outputs.model}}\"\n[params]\nlr = 0.1\n[roles.worker]\ncount = 2\n";
    let second = seen(text, 1);
    assert_eq!(second.args[2], "python3 t.py --data /dataset --lr 0.1 --out /output/model");
    assert_variables(
        &second,
        &[
            ("MASTER_ADDR", "10.213.0.2"),
            ("MASTER_PORT", "6105"),
            ("WORLD_SIZE", "2"),
            ("RANK", "1"),
            ("LOCAL_RANK", "0"),
            ("NODE_RANK", "1"),
            ("AZ_BATCH_MASTER_NODE", "10.213.0.2:6105"),
            ("AZUREML_PARAMETER_lr", "0.1"),
        ],
    );
    assert!(places(&second).contains(&"/code/outputs"));
    let named =
        seen(&job("azureml", "command = \"python3 t.py\"\n[params]\na = \"\"\nb = true\nc = [1, \"d\"]\ne = 2\n"), 0);
    assert_eq!(
        arguments(&named),
        ["--a", "--b", "--c", "1", "--c", "d", "--e", "2"],
        "what has no value is a flag alone"
    );
}

#[test]
fn modelarts_adds_task_names_for_parameter_servers_alone() {
    let text = "contract = \"modelarts\"\ncode = \"c\"\ndatasets = [\"mnist\"]\n".to_owned() + NODES;
    let second = seen(&text, 1);
    assert_eq!(
        arguments(&second),
        [
            "--data_url=/home/ma-user/modelarts/inputs/data_url_0",
            "--train_url=/home/ma-user/modelarts/outputs/train_url_0"
        ]
    );
    assert_variables(
        &second,
        &[
            ("MA_NUM_HOSTS", "2"),
            ("VC_TASK_INDEX", "1"),
            ("VC_WORKER_HOSTS", "digits-worker-0.digits,digits-worker-1.digits"),
            ("MA_VJ_NAME", "digits"),
            ("MA_CURRENT_INSTANCE_NAME", "digits-worker-1"),
        ],
    );
    assert!(second.hosts.contains("digits-worker-0.digits"), "{}", second.hosts);
    assert_eq!(second.working_directory, "/home/ma-user/modelarts/user-job-dir/c", "as the code is called");
    let named =
        "contract = \"modelarts\"\ndatasets = [\"data_path=mnist\", \"val=mnist\"]\nframework = \"tensorflow\"\n"
            .to_owned();
    let two = seen(&(named + NODES), 1);
    assert_eq!(
        arguments(&two),
        [
            "--data_path=/home/ma-user/modelarts/inputs/data_path_0",
            "--val=/home/ma-user/modelarts/inputs/val_0",
            "--train_url=/home/ma-user/modelarts/outputs/train_url_0"
        ],
        "no --task_name where nobody serves"
    );
    assert_variables(&two, &[("val", "/home/ma-user/modelarts/inputs/val_0")]);
    assert!(places(&two).contains(&"/home/ma-user/modelarts/inputs/val_0"));
    // Who has taken the platform's own word is told by it.
    let inputs = |datasets: &str| {
        let text = format!("contract = \"modelarts\"\ndatasets = {datasets}\n{NODES}");
        arguments(&seen(&text, 0)).iter().filter(|word| !word.contains("train_url")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(inputs("[\"a\", \"data_url=b\"]"), ["--data_url=/home/ma-user/modelarts/inputs/data_url_1"]);
    assert_eq!(inputs("[\"a\", \"b\"]"), ["--data_url=/home/ma-user/modelarts/inputs/data_url_0"]);
    let git = "contract = \"modelarts/1\"\ncode = { git = \"https://h/x/demo-code.git\" }\n".to_owned() + NODES;
    assert_eq!(seen(&git, 0).working_directory, "/home/work/user-job-dir/demo-code");
    let ps = seen(&job("modelarts", PS), 0);
    assert_eq!(arguments(&ps)[1..], ["--task_name=ps", "--task_index=0"]);
    let plain = seen(&job("modelarts", "command = 'x'\n[roles.trainer]\ncount = 2\n"), 1);
    assert!(plain.hosts.contains("digits-worker-0.digits"), "whatever the role is called: {}", plain.hosts);
    let old = seen(&job("modelarts/1", NODES), 1);
    assert_variables(
        &old,
        &[("DLS_TASK_INDEX", "1"), ("DLS_TASK_NUMBER", "2"), ("BATCH_CUSTOM0_HOSTS", "digits-worker-0.digits:6666")],
    );
    let begins = old.files.iter().find(|file| file.path == "/home/work/run_train.sh");
    assert_eq!(begins.map(|file| file.kind), Some(FileKind::Program));
}

#[test]
fn uai_puts_a_parameter_server_beside_each_node() {
    let text = job("uai", &format!("framework = \"tensorflow\"\ndatasets = [\"mnist\"]\n{NODES}"));
    let first = seen(&text, 0);
    assert_eq!(
        arguments(&first),
        ["--work_dir=/data", "--data_dir=/data/data", "--output_dir=/data/output", "--log_dir=/data/output"]
    );
    assert_eq!(
        tf_config(&first),
        json!({"cluster":{"master":["10.213.0.2:2222"],"ps":["10.213.0.2:2223","10.213.0.3:2223"],"worker":["10.213.0.3:2222"]},
               "task":{"type":"master","index":0},"environment":"cloud"})
    );
    assert!(places(&first).contains(&"/data/data") && places(&first).contains(&"/data/output"));
    assert_eq!(first.working_directory, "/data");
}

#[test]
fn paddle_names_trainers_and_servers() {
    let text = job("paddle", "command = \"x\"\nframework = \"paddle\"\n[roles.ps]\n[roles.worker]\ncount = 2\n");
    assert_variables(&seen(&text, 0), &[("TRAINING_ROLE", "PSERVER"), ("PADDLE_TRAINER_ID", "0")]);
    assert_variables(
        &seen(&text, 2),
        &[
            ("TRAINING_ROLE", "TRAINER"),
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_PSERVERS_IP_PORT_LIST", "10.213.0.2:2379"),
            ("PADDLE_TRAINER_ENDPOINTS", "10.213.0.3:2379,10.213.0.4:2379"),
            ("PADDLE_TRAINERS", "10.213.0.3,10.213.0.4"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_GLOO_HTTP_ENDPOINT", "10.213.0.2:2397"),
            ("PADDLE_CURRENT_ENDPOINT", "10.213.0.4:2379"),
        ],
    );
    let ends = seen(&text.replace("[roles.ps]", "[roles.ps]\nserves = false"), 2);
    assert_variables(
        &ends,
        &[
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_NNODES", "2"),
            ("PADDLE_MASTER", "10.213.0.3:2396"),
        ],
    );
    // Beside an address a name is another host's to Paddle.
    for contract in ["native", "openpai", "volcano/octopus"] {
        let same = seen(&text.replace("paddle\"\ncommand", &format!("{contract}\"\ncommand")), 2);
        let of_paddle = |view: &View| -> Vec<(String, String)> {
            view.env.iter().filter(|(name, _)| name.contains("PADDLE") || name == "POD_IP").cloned().collect()
        };
        let is_job = |name: &str| name == "PADDLE_JOB_ID" || (contract, name) == ("native", "PADDLE_LOG_DIR");
        let differing: Vec<_> =
            of_paddle(&same).into_iter().filter(|pair| !of_paddle(&seen(&text, 2)).contains(pair)).collect();
        assert!(
            of_paddle(&same).len() > 8 && differing.iter().all(|(name, _)| is_job(name)),
            "{contract}: {differing:?}"
        );
    }
    for server in ["", "serves = false\n"] {
        let text = format!("command = \"x\"\n[roles.pserver]\n{server}[roles.trainer]\ncount = 2\n");
        let old = seen(&job("paddle/old", &text), 2);
        assert_variables(
            &old,
            &[
                ("PADDLE_INIT_PSERVERS", "10.213.0.2"),
                ("PADDLE_INIT_TRAINER_ID", "1"),
                ("PADDLE_INIT_NUM_GRADIENT_SERVERS", "2"),
            ],
        );
        assert_eq!([file(&old, "/trainer_count"), file(&old, "/trainer_id")], ["2", "1"]);
    }
}

#[test]
fn volcano_has_host_files_and_octopus_numbers_its_tasks() {
    let worker = seen(&job("volcano", PS), 2);
    assert_variables(
        &worker,
        &[
            ("VC_PS_HOSTS", "digits-ps-0.digits"),
            ("VC_WORKER_HOSTS", "digits-worker-0.digits,digits-worker-1.digits"),
            ("VC_WORKER_NUM", "2"),
            ("VC_TASK_INDEX", "1"),
        ],
    );
    assert_eq!(file(&worker, "/etc/volcano/worker.host"), "digits-worker-0.digits\ndigits-worker-1.digits");
    assert_eq!(
        tf_config(&worker),
        json!({"cluster":{"ps":["digits-ps-0.digits:2222"],"worker":["digits-worker-0.digits:2222","digits-worker-1.digits:2222"]},
               "task":{"type":"worker","index":1}})
    );
    let octopus = seen(
        "contract = \"volcano/octopus\"\ncommand = \"python3 t.py\"\n[params]\nepochs = 3\n[roles.trainer]\ncount = 2\n",
        1,
    );
    assert_variables(
        &octopus,
        &[("TASKROLE_NAME", "task0"), ("VC_TASK0_HOSTS", "10.213.0.2,10.213.0.3"), ("VC_TASK_INDEX", "1")],
    );
    assert_eq!(arguments(&octopus), ["--epochs=3"]);
    assert!(octopus.hosts.contains("10.213.0.3 trainer-1 task0-1 "), "{}", octopus.hosts);
    let torch = seen(&job("volcano", "framework = \"pytorch\"\ncommand = \"x\"\n[roles.master]\n[roles.worker]\n"), 1);
    assert_variables(&torch, &[("MASTER_ADDR", "digits-master-0.digits"), ("WORLD_SIZE", "2"), ("RANK", "1")]);
}

#[test]
fn kubeflow_has_each_kind_of_its_jobs() {
    let worker = seen(&job("kubeflow", PS), 2);
    assert_eq!(
        tf_config(&worker),
        json!({"cluster":{"ps":["digits-ps-0.vision.svc:2222"],
                          "worker":["digits-worker-0.vision.svc:2222","digits-worker-1.vision.svc:2222"]},
               "task":{"type":"worker","index":1},"environment":"cloud"})
    );
    let alone = seen(&job("kubeflow", "command = \"x\"\nframework = \"tensorflow\"\n[roles.worker]\n"), 0);
    assert_eq!(variable(&alone, "TF_CONFIG"), None, "a single replica is told of no cluster");
    let torch = "framework = \"pytorch\"\ncommand = \"x\"\n[roles.worker]\ncount = 2\n[roles.master]\n";
    assert_variables(
        &seen(&job("kubeflow", torch), 1),
        &[
            ("MASTER_ADDR", "digits-master-0"),
            ("MASTER_PORT", "23456"),
            ("WORLD_SIZE", "3"),
            ("RANK", "2"),
            ("PET_NNODES", "3"),
            ("PET_NODE_RANK", "2"),
        ],
    );
    assert_variables(
        &seen(&job("kubeflow", &torch.replace("pytorch", "xgboost")), 0),
        &[("MASTER_PORT", "9999"), ("RANK", "1"), ("WORKER_ADDRS", "digits-worker-0,digits-worker-1")],
    );
    let mxnet = "framework = \"mxnet\"\ncommand = \"x\"\n[roles.server]\n[roles.worker]\ncount = 2\n";
    let mxnet = seen(&job("kubeflow", mxnet), 3);
    assert_variables(
        &mxnet,
        &[
            ("DMLC_ROLE", "worker"),
            ("DMLC_PS_ROOT_URI", "10.213.0.2"),
            ("DMLC_NUM_WORKER", "2"),
            ("DMLC_WORKER_ID", "1"),
        ],
    );
    let jax = seen(&job("kubeflow", &format!("framework = \"jax\"\n{NODES}")), 1);
    assert_variables(
        &jax,
        &[("COORDINATOR_ADDRESS", "digits-worker-0"), ("COORDINATOR_PORT", "6666"), ("PROCESS_ID", "1")],
    );
    let paddle = seen(&job("kubeflow", &format!("framework = \"paddle\"\n{NODES}")), 1);
    assert_variables(&paddle, &[("PADDLE_MASTER", "10.213.0.2:36543"), ("PADDLE_NNODES", "2")]);
}

#[test]
fn mpi_has_a_host_file_of_those_that_wait_for_ranks() {
    let text = "framework = \"mpi\"\ncommand = \"mpirun ./pi\"\n[roles.worker]\ncount = 2\nresources.cpu = 2\n";
    let launcher = seen(&job("mpi", text), 0);
    assert_eq!(
        file(&launcher, "/etc/mpi/hostfile"),
        "digits-worker-0.digits.vision.svc slots=2\ndigits-worker-1.digits.vision.svc slots=2\n"
    );
    assert_variables(
        &launcher,
        &[
            ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
            ("OMPI_MCA_plm_rsh_agent", "/run/trainyard/rsh"),
            ("I_MPI_PERHOST", "2"),
            ("K_MPI_JOB_ROLE", "launcher"),
        ],
    );
    let waiting = seen(&job("mpi", text), 2);
    assert_eq!(waiting.args, ["/run/trainyard/agent"]);
    assert!(file(&waiting, "/run/trainyard/agent").starts_with("#!/bin/sh"));
    assert!(launcher.files.iter().any(|file| file.path == "/run/trainyard/rsh" && file.kind == FileKind::Program));
}

#[test]
fn frameworks_have_their_cluster_without_any_contract() {
    let framework = |name: &str, rest: &str| format!("framework = \"{name}\"\ncommand = \"x\"\n{rest}");
    let two = "[roles.worker]\ncount = 2\n";
    let torch = seen(&framework("pytorch", two), 1);
    assert_variables(
        &torch,
        &[
            ("MASTER_ADDR", "worker-0"),
            ("MASTER_PORT", "29500"),
            ("WORLD_SIZE", "2"),
            ("RANK", "1"),
            ("NNODES", "2"),
            ("NODE_RANK", "1"),
            ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", "1"),
        ],
    );
    let tf = seen(&framework("tensorflow", "strategy = \"allreduce\"\n[roles.worker]\ncount = 2\n"), 1);
    assert_eq!(
        tf_config(&tf),
        json!({"cluster":{"worker":["worker-0:2222","worker-1:2222"]},"task":{"type":"worker","index":1},"environment":"cloud"})
    );
    let mindspore = seen(&framework("mindspore", two), 1);
    assert_variables(
        &mindspore,
        &[("MS_ROLE", "MS_WORKER"), ("MS_SCHED_HOST", "10.213.0.2"), ("MS_WORKER_NUM", "2"), ("MS_NODE_ID", "0")],
    );
    assert_variables(&seen(&framework("mindspore", two), 0), &[("MS_ROLE", "MS_SCHED")]);
    let jax = seen(&framework("jax", two), 1);
    assert_variables(
        &jax,
        &[("JAX_COORDINATOR_ADDRESS", "worker-0:29500"), ("JAX_NUM_PROCESSES", "2"), ("JAX_PROCESS_ID", "1")],
    );
    let xgboost = seen(&framework("xgboost", two), 1);
    assert_variables(&xgboost, &[("DMLC_TRACKER_URI", "10.213.0.2"), ("DMLC_TASK_ID", "1"), ("DMLC_NUM_WORKER", "2")]);
    let shared = seen(&format!("network = \"job\"\n{}", framework("tensorflow", two)), 1);
    assert_eq!(
        tf_config(&shared)["cluster"]["worker"],
        json!(["worker-0:2222", "worker-1:2242"]),
        "ports differ where tasks share a network"
    );
}

#[test]
fn two_versions_of_a_dataset_are_two_places() {
    let view = seen("command = 'x'\ndatasets = [\"train=flowers@v1\", \"val=flowers@v2\"]", 0);
    let content = |path: &str| view.places.iter().find(|place| place.path == path).map(|place| place.content.clone());
    assert_ne!(content("/dataset/train"), content("/dataset/val"));
}

#[test]
fn servers_that_the_file_has_are_those_that_workers_are_told_of() {
    let text = job("sagemaker", PS);
    let (server, worker) = (seen(&text, 0), seen(&text, 2));
    assert_eq!(tf_config(&server)["task"], json!({"type":"ps","index":0}));
    assert_eq!(tf_config(&server)["cluster"]["ps"], json!(["algo-3:2223"]));
    assert_eq!(tf_config(&worker)["cluster"]["ps"], json!(["algo-3:2223"]));
}

#[test]
fn ranks_are_started_under_any_contract_that_has_a_launcher() {
    let text = "framework = \"mpi\"\ncommand = \"mpirun x\"\nresources.gpu = 2\n[roles.worker]\ncount = 2\n";
    let launcher = seen(&job("azureml", text), 0);
    assert_variables(&launcher, &[("OMPI_MCA_plm_rsh_agent", "/run/trainyard/rsh"), ("K_MPI_JOB_ROLE", "launcher")]);
    assert_eq!(file(&launcher, "/etc/mpi/hostfile.hydra").lines().next(), Some("10.213.0.3:2"));
    assert_variables(&launcher, &[("HYDRA_HOST_FILE", "/etc/mpi/hostfile.hydra")]);
    // The nodes are those that run ranks.
    assert_variables(&launcher, &[("AZ_BATCH_HOST_LIST", "10.213.0.3,10.213.0.4")]);
    assert_variables(&seen(&job("azureml", text), 1), &[("AZUREML_CR_NODE_RANK", "0")]);
    let list = |contract: &str, name: &str| variable(&seen(&job(contract, text), 0), name).unwrap().to_owned();
    assert_eq!(list("tione", "NODE_LIST"), "worker-0:2,worker-1:2");
    assert_eq!(list("modelarts", "MA_NUM_HOSTS"), "2");
    assert_eq!(list("sagemaker", "SM_HOSTS"), r#"["algo-1","algo-2"]"#);
    assert_eq!(list("uai", "UAI_HOSTS"), "10.213.0.3,10.213.0.4");
    let spec = parse("a.toml", text).0.unwrap();
    assert_eq!(
        spec.roles.iter().map(|role| role.resources.gpu).collect::<Vec<_>>(),
        [0, 2],
        "a launcher computes nothing"
    );
}

#[test]
fn what_a_launcher_needs_is_said_only_where_there_is_one() {
    // Roles that are no ranks' are told of one another as their framework does.
    let nauta =
        job("mpi/nauta", "framework = \"tensorflow\"\ncommand = \"x\"\n[roles.ps]\n[roles.worker]\ncount = 2\n");
    let worker = seen(&nauta, 1);
    assert_eq!(tf_config(&worker)["task"], json!({"type":"worker","index":0}));
    assert_eq!(variable(&worker, "OMPI_MCA_plm_rsh_agent"), None);
    let ps = job("mpi", "framework = \"tensorflow\"\ncommand = \"x\"\n[roles.ps]\n[roles.worker]\ncount = 2\n");
    let worker = seen(&ps, 1);
    assert_eq!(variable(&worker, "K_MPI_JOB_ROLE"), None, "it is neither");
    let hosts = file(&worker, "/etc/mpi/hostfile");
    assert!(hosts.lines().count() == 2 && hosts.lines().all(|line| line.contains("worker")), "{hosts}");
    // A worker with a command of its own, as sshd, is reached by what the image brings.
    let sshd = "framework = \"mpi\"\n[roles.launcher]\ncommand = \"mpirun x\"\n[roles.worker]\ncommand = \"sshd -D\"\n";
    assert_eq!(variable(&seen(&job("mpi", sshd), 0), "OMPI_MCA_plm_rsh_agent"), None);
    assert_variables(&seen(&job("mpi", sshd), 0), &[("K_MPI_JOB_ROLE", "launcher")]);
    assert_variables(&seen(&job("mpi", sshd), 1), &[("K_MPI_JOB_ROLE", "worker")]);
}

#[test]
fn paddle_under_kubeflow_tells_servers_from_trainers() {
    let text = "framework = \"paddle\"\ncommand = \"x\"\n[roles.master]\n[roles.worker]\ncount = 2\n";
    let (master, worker) = (seen(&job("kubeflow", text), 0), seen(&job("kubeflow", text), 2));
    assert_variables(&master, &[("PADDLE_SERVER_NUM", "1"), ("PADDLE_NNODES", "3")]);
    assert_variables(&worker, &[("PADDLE_TRAINER_NUM", "1"), ("PADDLE_MASTER", "10.213.0.2:36543")]);
    let alike = seen(&job("kubeflow", "framework = \"paddle\"\ncommand = \"x\"\n[roles.worker]\ncount = 2\n"), 0);
    assert_eq!((variable(&alike, "PADDLE_SERVER_NUM"), variable(&alike, "PADDLE_TRAINER_NUM")), (None, None));
}

#[test]
fn kubeflow_counts_the_processes_of_all_nodes() {
    let text = "framework = \"pytorch\"\ncommand = \"x\"\nenv = { PET_NPROC_PER_NODE = \"4\" }\n[roles.master]\n[roles.worker]\n";
    assert_variables(&seen(&job("kubeflow", text), 1), &[("WORLD_SIZE", "8"), ("RANK", "1"), ("PET_NNODES", "2")]);
}

#[test]
fn a_sample_knows_the_workspace_of_a_file_and_of_a_job() {
    let text = job("kubeflow/psflags", "framework = \"tensorflow\"\ncommand = \"x\"\n[roles.ps]\n[roles.worker]\n");
    let spec = parse("x.toml", &text).0.unwrap();
    for (name, workspace) in [
        ("/etc/trainyard/jobs.d/vision/j.toml", "vision"),
        ("vision/j", "vision"),
        ("/etc/trainyard/jobs.d/j.toml", "default"),
        ("here/j.toml", "default"),
        ("j", "default"),
    ] {
        let sample = Sample::of(name, &spec);
        let task = sample.tasks(&spec).next().unwrap();
        assert_eq!((task.identity.key.workspace.as_str(), task.identity.key.job.as_str()), (workspace, "j"), "{name}");
    }
}
