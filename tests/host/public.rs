//! Public programs, as others have written them for other platforms, unchanged. They are not part of this project: they are
//! looked for in `TRAINYARD_PROGRAMS`, and wheels of what they need in `TRAINYARD_WHEELS/NAME`. `tests/run --real` says how to
//! come by them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::support::images::{horovod, run as run_tool, torch};
use super::support::{Instance, has_tools, skip, wait_at_most};

mod services;

/// They install hundreds of megabytes, and train.
const PATIENCE: Duration = Duration::from_secs(900);
const CONFIG: &str = "[limits]\ncpu = 16\nmemory = \"32GiB\"\n";

/// The programs of these names, or the test is skipped.
fn programs(test: &str, names: &[&str]) -> Option<Vec<PathBuf>> {
    let place = std::env::var_os("TRAINYARD_PROGRAMS").map(PathBuf::from).unwrap_or_default();
    let found: Vec<PathBuf> = names.iter().map(|name| place.join(name)).collect();
    let missing: Vec<&str> =
        names.iter().zip(&found).filter(|(_, path)| !path.is_file()).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Some(found);
    }
    skip(test, &format!("{} in TRAINYARD_PROGRAMS", missing.join(", ")));
    None
}

fn wheels(test: &str, name: &str) -> Option<PathBuf> {
    let place = std::env::var_os("TRAINYARD_WHEELS").map(|place| PathBuf::from(place).join(name));
    let found = place.filter(|place| place.is_dir());
    if found.is_none() {
        skip(test, &format!("wheels of {name} in TRAINYARD_WHEELS"));
    }
    found
}

fn workspace(instance: &Instance) -> PathBuf {
    instance.root().join("var/lib/trainyard/workspaces/default")
}

fn lay(instance: &Instance, code: &str, files: &[PathBuf]) -> PathBuf {
    let code = workspace(instance).join("code").join(code);
    fs::create_dir_all(&code).unwrap();
    for file in files {
        fs::copy(file, code.join(file.file_name().unwrap())).unwrap();
    }
    code
}

/// Shows them to jobs as a dataset.
fn offer(instance: &Instance, wheels: &Path) {
    let datasets = workspace(instance).join("datasets/wheels");
    fs::create_dir_all(&datasets).unwrap();
    for wheel in fs::read_dir(wheels).unwrap() {
        let wheel = wheel.unwrap();
        fs::copy(wheel.path(), datasets.join(wheel.file_name())).unwrap();
    }
}

const OFFLINE: &str =
    "requirements = true\ndatasets = [\"wheels\"]\nenv = { PIP_NO_INDEX = \"1\", PIP_FIND_LINKS = \"/dataset\" }\n";

fn run(instance: &Instance, name: &str, text: &str) -> Value {
    instance.drop_job(name, text);
    wait_at_most(PATIENCE, &format!("the end of {name}"), || {
        let report = instance.report(name)?;
        ["succeeded", "failed", "stopped"].iter().any(|state| report["state"] == *state).then_some(report)
    })
}

#[test]
fn kubeflow_s_dist_mnist_trains_with_a_chief_a_server_and_two_workers() {
    const TEST: &str = "kubeflow_s_dist_mnist_trains_with_a_chief_a_server_and_two_workers";
    let Some(files) = programs(TEST, &["dist_mnist.py", "mnist_utils.py"]) else { return };
    let Some(wheels) = wheels(TEST, "tensorflow") else { return };
    let Some(instance) = Instance::start(TEST, CONFIG) else { return };
    let code = lay(&instance, "mnist", &files);
    fs::write(code.join("requirements.txt"), "tensorflow-cpu==2.15.*\n").unwrap();
    offer(&instance, &wheels);
    let text = format!(
        "contract = \"kubeflow\"\nframework = \"tensorflow\"\ncode = \"mnist\"\n{OFFLINE}command = \"python3 dist_mnist.py --fake_data\"\n\
         resources = {{ cpu = 1, memory = \"3GiB\" }}\n[roles.chief]\n[roles.ps]\n[roles.worker]\ncount = 2\n"
    );
    let text = text.replace(OFFLINE, &OFFLINE.replace("env = {", "env = { CUDA_VISIBLE_DEVICES = \"\","));
    let report = run(&instance, "mnist", &text);
    let log = instance.log("mnist", "chief-0");
    assert_eq!(report["state"], "succeeded", "{report:#}\n{log}");
    assert!(log.contains("Number of PS replicas: 1") && log.contains("Evaluation accuracy: "), "{log}");
    println!(
        "{}",
        log.lines().filter(|line| line.contains("accuracy") || line.contains("elapsed")).collect::<Vec<_>>().join("\n")
    );
    instance.shutdown();
}

#[test]
fn kubeflow_s_dist_sendrecv_passes_tensors_between_a_master_and_two_workers() {
    const TEST: &str = "kubeflow_s_dist_sendrecv_passes_tensors_between_a_master_and_two_workers";
    let Some(files) = programs(TEST, &["dist_sendrecv.py"]) else { return };
    if !has_tools(TEST, &["mmdebstrap", "umoci"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, CONFIG) else { return };
    lay(&instance, "sendrecv", &files);
    let text = format!(
        "contract = \"kubeflow\"\nframework = \"pytorch\"\nimage = \"oci:{}:torch\"\ncode = \"sendrecv\"\ncommand = \"python3 dist_sendrecv.py\"\n\
         resources = {{ cpu = 1, memory = \"2GiB\" }}\n[roles.master]\n[roles.worker]\ncount = 2\n",
        torch().display()
    );
    let report = run(&instance, "sendrecv", &text);
    let log = instance.log("sendrecv", "master-0");
    assert_eq!(report["state"], "succeeded", "{report:#}\n{log}");
    assert!(log.contains("Result from worker 1") && log.contains("Result from worker 2"), "{log}");
    instance.shutdown();
}

#[test]
fn mpi_operator_s_pi_is_started_on_the_tasks_by_open_mpi() {
    const TEST: &str = "mpi_operator_s_pi_is_started_on_the_tasks_by_open_mpi";
    let Some(files) = programs(TEST, &["pi.cc"]) else { return };
    if !has_tools(TEST, &["mpirun", "mpicxx", "ip"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, CONFIG) else { return };
    let code = lay(&instance, "pi", &files);
    let made = Command::new("mpicxx").arg("-o").arg(code.join("pi")).arg(code.join("pi.cc")).status().unwrap();
    assert!(made.success());
    // As its own example has it: a launcher and two workers.
    let text = "contract = \"mpi\"\nframework = \"mpi\"\ncode = \"pi\"\nresources = { cpu = 1, memory = \"256MiB\" }\n\
                [roles.launcher]\ncommand = \"mpirun -n 2 /code/pi\"\n[roles.worker]\ncount = 2\n";
    let report = run(&instance, "pi", text);
    let log = instance.log("pi", "launcher-0");
    assert_eq!(report["state"], "succeeded", "{report:#}\n{log}");
    assert!(log.contains("Workers: 2") && log.contains("Rank 1 on host worker-1"), "{log}");
    assert!(log.contains("pi is approximately 3.14"), "{log}");
    instance.shutdown();
}

/// As its documentation has it: a function that is sent to all ranks, whose answers come back.
const FUNCTION: &str = r#"import socket, sys
import horovod

def train(factor):
    import torch
    import horovod.torch as hvd
    hvd.init()
    value = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
    return f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: {factor * value.item()}"

if __name__ == "__main__":
    how = {sys.argv[1]: True}
    print("\n".join(horovod.run(train, args=(1,), num_proc=2, hostfile="/etc/mpi/hostfile", **how)), flush=True)
"#;

/// The ring of all ranks adds up what each brings.
const RING: &str = r#"import socket, torch
import horovod.torch as hvd
hvd.init()
value = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: {value.item()}", flush=True)
"#;

#[test]
fn horovod_itself_reduces_over_the_tasks_by_its_own_launcher_by_mpirun_and_from_python() {
    const TEST: &str = "horovod_itself_reduces_over_the_tasks_by_its_own_launcher_by_mpirun_and_from_python";
    let Some(wheels) = wheels(TEST, "horovod") else { return };
    if !has_tools(TEST, &["mmdebstrap", "umoci", "ip"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, CONFIG) else { return };
    let code = lay(&instance, "ring", &[]);
    fs::write(code.join("ring.py"), RING).unwrap();
    fs::write(code.join("function.py"), FUNCTION).unwrap();
    let wheel = fs::read_dir(&wheels).unwrap().flatten().next().unwrap().path();
    run_tool("/usr/bin/python3", &["-m", "zipfile", "-e", wheel.to_str().unwrap(), code.to_str().unwrap()]);
    for (name, command) in [
        (
            "launcher",
            "python3 -m horovod.runner.launch --gloo -np 2 --hostfile /etc/mpi/hostfile python3 /code/ring.py",
        ),
        ("mpirun", "mpirun -x HOROVOD_CPU_OPERATIONS=MPI python3 /code/ring.py"),
        ("gloo-from-python", "python3 /code/function.py use_gloo"),
        ("mpi-from-python", "python3 /code/function.py use_mpi"),
    ] {
        let text = format!(
            "framework = \"horovod\"\nimage = \"oci:{}:horovod\"\ncode = \"ring\"\ncommand = {command:?}\n\
             env = {{ PYTHONPATH = \"/code\" }}\nresources = {{ cpu = 1, memory = \"2GiB\" }}\n\
             [roles.worker]\ncount = 2\nslots = 1\n",
            horovod().display()
        );
        let report = run(&instance, name, &text);
        let log = instance.log(name, "launcher-0");
        assert_eq!(report["state"], "succeeded", "{report:#}\n{log}");
        for rank in 0..2 {
            assert!(log.contains(&format!("rank {rank} of 2 on worker-{rank}: 3.0")), "{log}");
        }
    }
    instance.shutdown();
}

/// One process a task, without a launcher.
const PADDLE_COLLECTIVE: &str = r#"import paddle, paddle.distributed as dist
dist.init_parallel_env()
x = paddle.to_tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.numpy().tolist()}", flush=True)
"#;

/// The same with servers.
const PADDLE_PS: &str = r#"from paddle.distributed.fleet import PaddleCloudRoleMaker
role = PaddleCloudRoleMaker(is_collective=False)
if role._is_server():
    print(f"server {role._server_index()} of {role._server_num()}", flush=True)
else:
    print(f"trainer {role._worker_index()} of {role._worker_num()}", flush=True)
"#;

#[test]
fn paddle_s_own_check_finds_two_nodes() {
    const TEST: &str = "paddle_s_own_check_finds_two_nodes";
    let Some(wheels) = wheels(TEST, "paddle") else { return };
    let Some(instance) = Instance::start(TEST, CONFIG) else { return };
    let code = lay(&instance, "check", &[]);
    fs::write(code.join("requirements.txt"), "paddlepaddle\nsetuptools\n").unwrap();
    offer(&instance, &wheels);
    fs::write(code.join("ps.py"), PADDLE_PS).unwrap();
    let checked = ["Prepare distributed training with 2 nodes 1 cards", "Distributed training completed"];
    let launched = "python3 -m paddle.distributed.launch run_check";
    for name in ["kubeflow", "native"] {
        let text = format!(
            "contract = \"{name}\"\nframework = \"paddle\"\ncode = \"check\"\n{OFFLINE}command = {launched:?}\n\
             resources = {{ cpu = 1, memory = \"4GiB\" }}\n[roles.worker]\ncount = 2\n"
        );
        let report = run(&instance, name, &text);
        let logs = [0, 1].map(|worker| instance.log(name, &format!("worker-{worker}")));
        assert_eq!(report["state"], "succeeded", "{name}: {report:#}\n{logs:#?}");
        assert!(logs.iter().all(|log| checked.iter().all(|told| log.contains(told))), "{name}: {logs:#?}");
    }
    fs::write(code.join("collective.py"), PADDLE_COLLECTIVE).unwrap();
    let text = format!(
        "framework = \"paddle\"\ncode = \"check\"\n{OFFLINE}command = \"python3 collective.py\"\n\
         resources = {{ cpu = 1, memory = \"4GiB\" }}\n[roles.worker]\ncount = 2\n"
    );
    let report = run(&instance, "plain", &text);
    let logs = [0, 1].map(|worker| instance.log("plain", &format!("worker-{worker}")));
    assert_eq!(report["state"], "succeeded", "{report:#}\n{logs:#?}");
    for (worker, log) in logs.iter().enumerate() {
        assert!(log.contains(&format!("rank {worker} of 2: [3.0]")), "{logs:#?}");
    }
    // Servers and trainers as Paddle itself finds them among the endpoints.
    let text = format!(
        "framework = \"paddle\"\ncode = \"check\"\n{OFFLINE}command = \"python3 ps.py\"\n\
         resources = {{ cpu = 1, memory = \"4GiB\" }}\n[roles.ps]\nmin_succeeded = \"all\"\nserves = false\n[roles.worker]\ncount = 2\n"
    );
    let report = run(&instance, "ps", &text);
    let logs = ["ps-0", "worker-0", "worker-1"].map(|task| instance.log("ps", task));
    assert_eq!(report["state"], "succeeded", "{report:#}\n{logs:#?}");
    for (log, told) in logs.iter().zip(["server 0 of 1", "trainer 0 of 2", "trainer 1 of 2"]) {
        assert!(log.contains(told), "{logs:#?}");
    }
    instance.shutdown();
}
