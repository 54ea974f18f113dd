//! A training framework as it comes: nothing is set by the user, and its workers find each other.

use std::fs;
use std::path::Path;

use crate::support::images::{torch, torch_is_here};
use crate::support::{Instance, has_tools, skip};

/// What a user would write: the platform tells how many there are, which one this is, and where the first one listens.
const TRAIN: &str = r#"import os
import torch
import torch.distributed as dist

rank, world = int(os.environ["TRAINYARD_TASK_INDEX"]), int(os.environ["TRAINYARD_TASK_COUNT"])
first = os.environ["TRAINYARD_WORKER_HOSTS"].split(",")[0]
port = os.environ["TRAINYARD_WORKER_PORTS_RENDEZVOUS"].split(",")[0]
dist.init_process_group("gloo", init_method=f"tcp://{first}:{port}", rank=rank, world_size=world)
dist.barrier()
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
print(f"rank {rank} of {world}: sum {value.item()}", flush=True)
dist.destroy_process_group()
"#;

#[test]
fn two_workers_of_torch_reach_a_barrier_and_the_right_sum() {
    const TEST: &str = "two_workers_of_torch_reach_a_barrier_and_the_right_sum";
    if !has_tools(TEST, &["mmdebstrap", "umoci"]) {
        return;
    }
    // The image takes some 100 MiB of packages: made when it is asked for, and kept below `target`.
    if std::env::var_os("TRAINYARD_TORCH").is_none() && !torch_is_here() {
        return skip(TEST, "an image of PyTorch (`TRAINYARD_TORCH=1 tests/run -E 'test(torch)'` makes it)");
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let code = instance.root().join("var/lib/trainyard/workspaces/default/code/reduce");
    fs::create_dir_all(&code).unwrap();
    fs::write(Path::new(&code).join("train.py"), TRAIN).unwrap();
    for network in ["task", "job"] {
        let text = format!(
            "image = \"oci:{}:torch\"\ncode = \"reduce\"\nnetwork = {network:?}\ncommand = \"python3 train.py\"\n\
             resources = {{ cpu = 1, memory = \"2GiB\" }}\n[roles.worker]\ncount = 2\nports = {{ rendezvous = 1 }}\n",
            torch().display()
        );
        let report = instance.run_job(network, &text);
        let logs: Vec<_> = (0..2).map(|worker| instance.log(network, &format!("worker-{worker}"))).collect();
        assert_eq!(report["state"], "succeeded", "{logs:#?} {report:#}");
        for (rank, log) in logs.iter().enumerate() {
            assert!(log.contains(&format!("rank {rank} of 2: sum 3.0")), "{log}");
        }
    }
    instance.shutdown();
}

/// As kubeflow's script has it: everything by `env://`, which the framework's variables fill.
const MEET: &str = r#"import os
import torch.distributed as dist
dist.init_process_group("gloo")
out = [None] * dist.get_world_size()
dist.all_gather_object(out, (dist.get_rank(), int(os.environ["LOCAL_RANK"])))
print("met", dist.get_rank(), dist.get_world_size(), sorted(out), flush=True)
"#;

/// kubeflow/trainer#1790: nodes and processes were one number.
#[test]
fn trainer_1790_torchrun_makes_processes_of_nodes_and_without_it_a_task_is_one() {
    const TEST: &str = "trainer_1790_torchrun_makes_processes_of_nodes_and_without_it_a_task_is_one";
    if !has_tools(TEST, &["mmdebstrap", "umoci"]) {
        return;
    }
    if std::env::var_os("TRAINYARD_TORCH").is_none() && !torch_is_here() {
        return skip(TEST, "an image of PyTorch (`TRAINYARD_TORCH=1 tests/run -E 'test(torch)'` makes it)");
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let code = instance.root().join("var/lib/trainyard/workspaces/default/code/meet");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("train.py"), MEET).unwrap();
    for (job, command, world) in [
        ("nodes", "python3 train.py", 2),
        // Debian's torch of Python 3.11 knows no more "nothing is redirected", its default: what is told goes through a file.
        ("processes", "python3 -m torch.distributed.run --nproc_per_node=2 --redirects=1 --tee=1 train.py", 4),
    ] {
        let text = format!(
            "framework = \"pytorch\"\nimage = \"oci:{}:torch\"\ncode = \"meet\"\ncommand = {command:?}\n\
             resources = {{ cpu = 1, memory = \"2GiB\" }}\n[roles.worker]\ncount = 2\n",
            torch().display()
        );
        let report = instance.run_job(job, &text);
        let logs: String = (0..2).map(|worker| instance.log(job, &format!("worker-{worker}"))).collect();
        assert_eq!(report["state"], "succeeded", "{logs} {report:#}");
        let met: Vec<&str> = logs.lines().filter_map(|line| line.find("met ").map(|at| &line[at..])).collect();
        assert_eq!(met.len(), world, "{logs}");
        let ranks: std::collections::BTreeSet<_> = met.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(ranks.len(), world, "{logs}");
        assert!(met.iter().all(|line| line.split(' ').nth(2) == Some(world.to_string().as_str())), "{logs}");
    }
    instance.shutdown();
}
