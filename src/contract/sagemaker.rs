//! Amazon SageMaker (aws/sagemaker-training-toolkit 5.1): the tree below `/opt/ml`, `SM_*`, hyperparameters as sorted
//! `--key value`.

use serde_json::{Map, Value, json};

use super::parameters::compact;
use super::topology::{self, Pairs, pair};
use super::{SeenFile, Task, command, host, naming, parameters, requirements, servers};
use crate::spec::{Framework, Strategy};

/// Keys that the platform keeps for itself.
const RESERVED: &str = "sagemaker_";
const TUNING: &str = "_tuning_objective_metric";

pub(super) fn arguments(task: &Task<'_>) -> Vec<String> {
    let mut out = Vec::new();
    for (key, value) in hyperparameters(task) {
        // A key of one letter is a short option.
        out.push(if key.chars().count() == 1 { format!("-{key}") } else { format!("--{key}") });
        out.push(parameters::of_toolkit(&value));
    }
    out
}

/// Those of the user, by key.
fn hyperparameters(task: &Task<'_>) -> Map<String, Value> {
    let own = task.role.params.iter().filter(|(key, _)| !key.starts_with(RESERVED) && key != TUNING);
    own.map(|(key, param)| (key.clone(), parameters::decoded(param))).collect()
}

/// The script that `sagemaker_program` names or, without it, the variable.
pub(super) fn program(task: &Task<'_>) -> Option<String> {
    let param = task.role.params.iter().find(|(key, _)| key == "sagemaker_program");
    let mut env = task.inside.env.iter().chain(&task.role.env).rev();
    let variable = || env.find(|(name, _)| name == "SAGEMAKER_PROGRAM").map(|(_, value)| value.clone());
    param.map(|(_, param)| parameters::text(param)).or_else(variable).filter(|program| !program.is_empty())
}

/// Becomes the script, or the module where the code is a package: no shell stands between, which might drop what it cannot name.
const SCRIPT_OR_MODULE: &str = "import os, sys; script, *rest = sys.argv[1:]; \
    own = [\"-m\", script.replace(\".py\", \"\")] if os.path.exists(\"setup.py\") else [script]; \
    os.execvp(\"python3\", [\"python3\", *own, *rest])";

/// How the toolkit runs it: as a module where the code has a `setup.py`, which is seen where it runs, as a script, or as a
/// program, which it makes one.
pub(super) fn started(task: &Task<'_>, program: String) -> Vec<String> {
    let is_script = program.ends_with(".py");
    if task.role.code.is_none() {
        return match is_script {
            true => vec!["python3".to_owned(), program],
            false => command::executed(task, &program),
        };
    }
    if is_script {
        return ["python3", "-c", SCRIPT_OR_MODULE, &program].map(str::to_owned).to_vec();
    }
    let path = command::quote(&format!("./{program}"));
    let alone = format!("chmod +x {path}; exec {path} \"$@\"");
    let module = command::quote(&program.replace(".py", ""));
    let text = match is_program(&program) {
        true => alone,
        false => format!("[ -e {} ] && exec python3 -m {module} \"$@\"; {alone}", requirements::SETUP),
    };
    command::by_shell(task, text, &program)
}

/// By its name it is one of a shell's, for which the toolkit installs nothing.
pub(super) fn is_program(program: &str) -> bool {
    program.ends_with(".sh")
}

/// Those that the platform keeps for itself.
fn reserved(task: &Task<'_>) -> Value {
    let own = task.role.params.iter().filter(|(key, _)| key.starts_with(RESERVED));
    own.map(|(key, param)| (key.clone(), parameters::decoded(param))).collect::<Map<_, _>>().into()
}

fn hosts(task: &Task<'_>) -> Vec<String> {
    // By their numbers: to ask each for its own looks at all the others again.
    let mut hosts: Vec<String> = (0..topology::nodes(task).len()).map(host::algo).collect();
    hosts.sort();
    hosts
}

fn resource_config(task: &Task<'_>) -> Value {
    json!({
        "current_host": host::primary(task),
        "current_instance_type": "local",
        "current_group_name": "homogeneousCluster",
        "hosts": hosts(task),
        "instance_groups": [{
            "instance_group_name": "homogeneousCluster", "instance_type": "local", "hosts": hosts(task),
        }],
        "network_interface_name": interface(task),
    })
}

fn interface(task: &Task<'_>) -> &'static str {
    super::native::interface(task).unwrap_or("eth0")
}

pub(super) fn input_config(task: &Task<'_>) -> Value {
    let channel =
        json!({ "TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None" });
    task.spec.datasets.iter().map(|dataset| (dataset.seen_as().to_string(), channel.clone())).collect()
}

pub(super) fn files(task: &Task<'_>) -> Vec<SeenFile> {
    let file = |name: &str, value: Value| SeenFile::new(format!("/opt/ml/input/config/{name}"), compact(&value));
    vec![
        file("hyperparameters.json", parameters::texts(&task.role.params)),
        file("resourceconfig.json", resource_config(task)),
        file("inputdataconfig.json", input_config(task)),
    ]
}

/// Texts as they are, everything else as JSON.
fn encoded(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => compact(other),
    }
}

pub(super) fn variables(task: &Task<'_>) -> Pairs {
    let (hosts, hps) = (hosts(task), hyperparameters(task));
    let channels: Vec<String> = task.spec.datasets.iter().map(|dataset| dataset.seen_as().to_string()).collect();
    let program = entry(task);
    let resources = &task.role.resources;
    let plain = [
        ("SM_INPUT_DIR", "/opt/ml/input"),
        ("SM_INPUT_CONFIG_DIR", "/opt/ml/input/config"),
        ("SM_OUTPUT_DIR", "/opt/ml/output"),
        ("SM_MODEL_DIR", "/opt/ml/model"),
        ("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data"),
        ("SM_OUTPUT_INTERMEDIATE_DIR", "/opt/ml/output/intermediate"),
        ("SM_MODULE_DIR", "/opt/ml/code"),
        ("PYTHONPATH", "/opt/ml/code"),
        ("SM_LOG_LEVEL", "20"),
        ("SM_NUM_NEURONS", "0"),
        ("SM_CURRENT_INSTANCE_TYPE", "local"),
        ("SM_CURRENT_INSTANCE_GROUP", "homogeneousCluster"),
        ("SM_IS_HETERO", "false"),
        ("SM_DISTRIBUTION_INSTANCE_GROUPS", "[]"),
        ("SAGEMAKER_REGION", "local"),
        ("SM_FRAMEWORK_MODULE", ""),
    ];
    let mut out: Pairs = plain.iter().map(|(name, value)| pair(*name, value)).collect();
    out.extend([
        pair("SM_HOSTS", compact(&json!(hosts))),
        pair("SM_CURRENT_HOST", host::primary(task)),
        pair("CURRENT_HOST", host::primary(task)),
        pair("SM_NETWORK_INTERFACE_NAME", interface(task)),
        pair("SM_NUM_CPUS", resources.cpu.0.div_ceil(1000)),
        pair("SM_NUM_GPUS", resources.gpu),
        pair("SM_HPS", compact(&Value::Object(hps.clone()))),
        pair("SM_USER_ARGS", compact(&json!(arguments(task)))),
        pair("SM_USER_ENTRY_POINT", &program),
        pair("SM_MODULE_NAME", module(&program)),
        pair("SM_CHANNELS", compact(&json!(channels))),
        pair("SM_CURRENT_INSTANCE_GROUP_HOSTS", compact(&json!(hosts))),
        pair("SM_INSTANCE_GROUPS", compact(&json!(["homogeneousCluster"]))),
        pair("SM_INSTANCE_GROUPS_DICT", compact(&groups(&hosts))),
        pair("SM_RESOURCE_CONFIG", compact(&resource_config(task))),
        pair("SM_INPUT_DATA_CONFIG", compact(&input_config(task))),
        pair("SM_FRAMEWORK_PARAMS", compact(&reserved(task))),
        pair("TRAINING_JOB_NAME", naming::job_name(task)),
        pair("SAGEMAKER_JOB_NAME", naming::job_name(task)),
    ]);
    for channel in &channels {
        out.push(pair(format!("SM_CHANNEL_{}", channel.to_uppercase()), format!("/opt/ml/input/data/{channel}")));
    }
    // Hyphens stay, as the toolkit keeps them: no shell could set such a variable, a container's environment can.
    out.extend(hps.iter().map(|(key, value)| pair(format!("SM_HP_{}", key.to_uppercase()), encoded(value))));
    out.push(pair("SM_TRAINING_ENV", compact(&training_env(task, &channels, &hps))));
    out.extend(of_framework(task));
    out
}

/// What the variables call the job's script.
fn entry(task: &Task<'_>) -> String {
    program(task).or_else(|| command::script(task)).unwrap_or_default()
}

fn module(program: &str) -> &str {
    program.strip_suffix(".py").unwrap_or(program)
}

fn groups(hosts: &[String]) -> Value {
    json!({ "homogeneousCluster": {
        "instance_group_name": "homogeneousCluster", "instance_type": "local", "hosts": hosts,
    } })
}

/// All of it that the toolkit tells in other variables too, and some that it tells here alone.
fn training_env(task: &Task<'_>, channels: &[String], hps: &Map<String, Value>) -> Value {
    let paths: Value =
        channels.iter().map(|name| (name.clone(), json!(format!("/opt/ml/input/data/{name}")))).collect();
    let (hosts, program) = (hosts(task), entry(task));
    let leader = hosts.first();
    json!({
        "additional_framework_parameters": reserved(task), "framework_module": null, "user_entry_point": program,
        "module_name": module(&program), "log_level": 20, "num_neurons": 0, "topology": [],
        "current_instance_type": "local", "current_instance_group": "homogeneousCluster",
        "current_instance_group_hosts": hosts, "instance_groups": ["homogeneousCluster"],
        "instance_groups_dict": groups(&hosts), "is_hetero": false,
        "distribution_hosts": [], "distribution_instance_groups": [],
        "is_master": leader == Some(&host::primary(task)), "master_hostname": leader,
        "is_modelparallel_enabled": null, "is_smddprun_installed": false, "is_smddpmprun_installed": false,
        "channel_input_dirs": paths, "current_host": host::primary(task), "hosts": hosts, "hyperparameters": hps,
        "input_config_dir": "/opt/ml/input/config", "input_data_config": input_config(task), "input_dir": "/opt/ml/input",
        "job_name": naming::job_name(task), "model_dir": "/opt/ml/model", "module_dir": "/opt/ml/code",
        "network_interface_name": interface(task), "num_cpus": task.role.resources.cpu.0.div_ceil(1000),
        "num_gpus": task.role.resources.gpu, "output_data_dir": "/opt/ml/output/data", "output_dir": "/opt/ml/output",
        "output_intermediate_dir": "/opt/ml/output/intermediate", "resource_config": resource_config(task),
    })
}

fn of_framework(task: &Task<'_>) -> Pairs {
    match task.spec.framework {
        Some(Framework::TensorFlow) => {
            let config = match task.spec.strategy {
                Some(Strategy::AllReduce) => topology::tf_workers(task, 8890),
                _ => topology::tf_config_by_nodes(task, 2222, 2223, &servers::nodes(task)),
            };
            config.map(|config| pair("TF_CONFIG", config)).into_iter().collect()
        }
        Some(Framework::PyTorch | Framework::DeepSpeed) => {
            let mut out = topology::torch(task, 7777);
            // The toolkit leaves these to torchrun.
            out.retain(|(name, _)| name.starts_with("MASTER_"));
            out.extend([pair("NCCL_IB_DISABLE", 1), pair("NCCL_DEBUG", "WARN")]);
            out.extend(topology::torchrun(task, 7777));
            out
        }
        Some(Framework::MxNet) => {
            let mut out = topology::dmlc(task, 8000);
            out.push(pair("PS_VERBOSE", 0));
            out
        }
        _ => Vec::new(),
    }
}
