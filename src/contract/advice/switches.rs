//! Switches of a platform's own launcher, which come to it as parameters: what they ask for is said by other keys here, and which
//! that are is told where the file does not say it.

use super::super::command::starts_itself;
use super::super::{Sample, Task, parameters, servers, topology};
use super::Advice;
use crate::spec::{Framework, JobSpec, Platform, Profile, Strategy};

/// Each switch once, of the first role that has it.
pub(super) fn switches(spec: &JobSpec) -> Vec<Advice> {
    let prefix = match (spec.contract.platform, spec.contract.profile) {
        (Platform::SageMaker, _) => "sagemaker_",
        (Platform::Tione, Profile::Old) => "ti_",
        _ => return Vec::new(),
    };
    let sample = Sample::of("job.toml", spec);
    let mut out: Vec<(String, Advice)> = Vec::new();
    for task in sample.tasks(spec).filter(|task| task.index == 0 && !task.role.is_service && !task.is_idle()) {
        for (name, param) in &task.role.params {
            let Some(switch) = name.strip_prefix(prefix).filter(|_| out.iter().all(|(known, _)| known != name)) else {
                continue;
            };
            let Some(helps) = unheard(&task, switch, &parameters::text(param)) else { continue };
            let text =
                format!("`{name}` is for the launcher of the platform itself, and changes nothing here: {helps}");
            out.push((name.clone(), Advice::of_role(task.role, &["params", name.as_str()], text)));
        }
    }
    out.into_iter().map(|(_, advice)| advice).collect()
}

/// What to write, where the file does not come to the same by itself.
fn unheard(task: &Task<'_>, switch: &str, value: &str) -> Option<String> {
    let is_on = !["", "0", "false", "null", "none"].contains(&value.to_lowercase().as_str());
    let (framework, strategy) = (task.spec.framework, task.spec.strategy);
    let has_ranks = strategy == Some(Strategy::Launcher);
    match switch {
        "parameter_server_enabled" => of_servers(task, is_on),
        "mpi_enabled" if is_on != has_ranks => Some(match is_on {
            true => "write framework = \"mpi\" or \"horovod\", by which mpirun starts ranks on all tasks".to_owned(),
            false => format!(
                "framework = \"{}\" starts ranks by mpirun all the same; take it out",
                framework.map(|framework| framework.to_string()).unwrap_or_default()
            ),
        }),
        "mpi_num_of_processes_per_host" => of_slots(task, value),
        "mpi_num_processes" if is_on => Some(
            "write slots = N in the role, how many ranks each of its tasks takes, and framework = \"mpi\"".to_owned(),
        ),
        "mpi_custom_mpi_options" | "distributed_dataparallel_custom_mpi_options" if !value.is_empty() => {
            Some("write a `command` that begins with mpirun and these options; it runs as it is".to_owned())
        }
        "multi_worker_mirrored_strategy_enabled" if is_on => {
            let is_so = (framework, strategy) == (Some(Framework::TensorFlow), Some(Strategy::AllReduce));
            (!is_so).then(|| "write framework = \"tensorflow\" and strategy = \"allreduce\"".to_owned())
        }
        "torch_distributed_enabled" if is_on => {
            let is_so = framework == Some(Framework::PyTorch) && starts_itself(task);
            (!is_so).then(|| {
                "write framework = \"pytorch\" and command = \"torchrun SCRIPT\", which finds the other tasks by its variables"
                    .to_owned()
            })
        }
        "pytorch_ddp_enabled" | "distributed_dataparallel_enabled" | "pytorch_xla_multi_worker_enabled" if is_on => {
            Some(
                "that library is of Amazon's own images; write framework = \"pytorch\" and command = \"torchrun SCRIPT\" for PyTorch's"
                    .to_owned(),
            )
        }
        _ => None,
    }
}

fn of_servers(task: &Task<'_>, is_on: bool) -> Option<String> {
    let are_started = !servers::nodes(task).is_empty();
    let has_own = !topology::called(task, topology::SERVERS).is_empty();
    match is_on {
        // One node asks nobody.
        true if !are_started && !has_own && topology::nodes(task).len() > 1 => Some(
            "write framework = \"tensorflow\" and strategy = \"ps\", or framework = \"mxnet\", by which servers are started".to_owned(),
        ),
        false if are_started => Some(match task.spec.framework {
            Some(Framework::TensorFlow) => "write strategy = \"allreduce\", or servers are started".to_owned(),
            _ => "take `framework` out, or servers are started".to_owned(),
        }),
        _ => None,
    }
}

fn of_slots(task: &Task<'_>, value: &str) -> Option<String> {
    let is_so = |host: &Task<'_>| topology::slots(host).to_string() == value;
    let has_ranks = task.spec.strategy == Some(Strategy::Launcher);
    if has_ranks && topology::mpi_hosts(task).iter().all(is_so) {
        return None;
    }
    let role = topology::mpi_hosts(task).first().map_or(task.role, |host| host.role);
    let framework = if has_ranks { "" } else { " and framework = \"mpi\" or \"horovod\"" };
    Some(format!("write slots = {value} in [roles.{}]{framework}", role.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        let (spec, found) = crate::spec::parse("a.toml", text);
        let spec = spec.unwrap_or_else(|| panic!("{found:?}"));
        switches(&spec).into_iter().map(|advice| advice.text + "\n").collect()
    }

    #[test]
    fn switches_of_a_platform_s_launcher_are_told_with_the_keys_that_do_it() {
        for (contract, prefix) in [("sagemaker", "sagemaker"), ("tione/1", "ti")] {
            let of = |switch: &str, keys: &str| {
                told(&format!(
                    "contract = \"{contract}\"\ncommand = \"python3 t.py\"\n{keys}\n[params]\nlr = 1\n{prefix}_{switch}\n[roles.worker]\ncount = 2\n"
                ))
            };
            let (tensorflow, mpi) = ("framework = \"tensorflow\"", "framework = \"horovod\"");
            let own = format!("`{prefix}_mpi_enabled` is for the launcher of the platform itself");
            assert!(of("mpi_enabled = true", "").starts_with(&own), "{}", of("mpi_enabled = true", ""));
            assert!(of("mpi_enabled = \"true\"", "").contains("write framework = \"mpi\""));
            assert!(of("mpi_enabled = false", mpi).contains("take it out"));
            assert!(of("parameter_server_enabled = true", "").contains("strategy = \"ps\""));
            assert!(of("parameter_server_enabled = false", tensorflow).contains("write strategy = \"allreduce\""));
            assert!(of("parameter_server_enabled = false", "framework = \"mxnet\"").contains("take `framework` out"));
            let slots = of("mpi_num_of_processes_per_host = 2", mpi);
            assert!(slots.ends_with("write slots = 2 in [roles.worker]\n"), "{slots}");
            assert!(of("mpi_num_of_processes_per_host = 2", "").contains("and framework = \"mpi\""));
            assert!(of("mpi_custom_mpi_options = \"-x A\"", mpi).contains("begins with mpirun"));
            for (switch, keys) in [
                ("mpi_enabled = true", mpi),
                ("mpi_enabled = false", ""),
                ("parameter_server_enabled = true", tensorflow),
                ("parameter_server_enabled = false", ""),
                ("mpi_num_of_processes_per_host = 1", mpi),
                ("mpi_custom_mpi_options = \"\"", mpi),
                ("program = \"t.py\"", ""),
            ] {
                assert_eq!(of(switch, keys), "", "{contract}: {switch}");
            }
        }
        let of = |switch: &str, keys: &str| {
            told(&format!("contract = \"sagemaker\"\n{keys}\nparams.sagemaker_{switch} = true\nroles.w.count = 2\n"))
        };
        assert!(of("torch_distributed_enabled", "command = \"python3 t.py\"").contains("torchrun SCRIPT"));
        assert_eq!(of("torch_distributed_enabled", "framework = \"pytorch\"\ncommand = \"torchrun t.py\""), "");
        assert!(of("distributed_dataparallel_enabled", "command = \"x\"").contains("Amazon's own images"));
        assert!(of("multi_worker_mirrored_strategy_enabled", "command = \"x\"").contains("strategy = \"allreduce\""));
        assert_eq!(told("command = \"x\"\nparams.sagemaker_mpi_enabled = true"), "", "another contract");
    }
}
