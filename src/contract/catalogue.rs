//! What is known of each contract: whom it serves, what is certain, and what is our reading of a platform that says
//! nothing. Printed by `trainyard contract`; what a script finds is not told here but taken from [`super::view`].

use super::Sample;
use crate::spec::{Contract, JobSpec, Platform, Profile};

/// One contract for people.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// As a job file names it.
    pub name: &'static str,
    /// Platforms whose scripts it serves.
    pub serves: &'static str,
    /// Taken from the platform's own code or documents.
    pub certain: &'static str,
    /// Where these say nothing.
    pub reading: &'static str,
}

const fn about(name: &'static str, serves: &'static str, certain: &'static str, reading: &'static str) -> About {
    About { name, serves, certain, reading }
}

/// Every contract, in the order in which they are listed.
#[rustfmt::skip]
pub const ABOUT: &[About] = &[
    about("native", "scripts written for no platform", "TRAINYARD_*, PAI_* and VC_* variables, /code, /dataset, /input, /output, /model", ""),
    about("sagemaker", "Amazon SageMaker", "the tree below /opt/ml, SM_*, hyperparameters as sorted `--key value`, hosts algo-N, TF_CONFIG with a parameter server on each host, which is started beside the script, torchrun's variables, mpirun before the script; code with a setup.py is installed by pip, with its requirements.txt, and the script of sagemaker_program runs as a module of it; output/failure as the reason, 120 s after a stop", "instance types and regions are told as \"local\"; MXNet's servers are as TI-ONE's; channels have no ContentType"),
    about("tione", "Tencent TI-ONE, the present generation", "NODE_LIST, INDEX, MASTER_ADDR, one RANK a node, /opt/ml", "with framework = \"tensorflow\" TF_CONFIG is given; what its own PS-Worker mode gives is not published"),
    about("tione/1", "Tencent TI-ONE, SDK jobs of 2020", "TM_*, /opt/ml, hyperparameters as `--key value` in the order of the file, ports 5555, 5556, 6666, 7777; servers and mpirun are started as its launcher does, output/failure is the reason", ""),
    about("pai", "Alibaba PAI training jobs", "the tree below /ml, PAI_*, PAI_HPS_*, PAI_INPUT_* (a file where it is the only one); `$PAI_USER_ARGS` in the command; checkpoints of the last run are there", ""),
    about("pai/dlc", "Alibaba PAI DLC", "MASTER_ADDR, one RANK a node, NPROC_PER_NODE, TF_CONFIG; names dlcJOB-ROLE-N", "parameter servers are told as Kubeflow tells them"),
    about("pai/tf", "Alibaba PAI-TF (TensorFlow 1)", "flags --buckets, --checkpointDir, --job_name, --task_index, --ps_hosts, --worker_hosts", "buckets are local directories: what reads oss:// by a client does not run; --tables and --outputs are what params give"),
    about("google", "Google AI Platform Training", "TF_CONFIG with job and trial, CLUSTER_SPEC, CLOUD_ML_JOB_ID, --job-dir", "what would be in a bucket lies below /gcs: what reads gs:// by a client does not run"),
    about("google/vertex", "Google Vertex AI", "CLUSTER_SPEC by worker pools, AIP_*, TF_CONFIG", "AIP_* name plain paths below /gcs, which a script that puts /gcs/ in the place of gs:// opens as they are; AIP_DATA_FORMAT is csv, whatever the data is: env says otherwise; the numbers of AIP_HTTP_HANDLER_PORT and AIP_TF_PROFILER_PORT are ours; AIP_TENSORBOARD_API_URI and AIP_TENSORBOARD_RESOURCE_NAME, which name a service of Google's, and AIP_HTTP_PORT, which only its serving containers have, are not given; the first node is the chief where none is called so"),
    about("azureml", "Azure Machine Learning", "${{inputs.NAME}} and ${{outputs.NAME}} in commands, MASTER_ADDR with processes counted, ./outputs and ./logs, AZUREML_*; mpirun or a process for each card before the script", "MLflow keeps its runs in output/mlruns, without a server: MLFLOW_RUN_ID and MLFLOW_EXPERIMENT_ID, which name what is in one, are not given; nor is AZUREML_ARM_*, the list of AZUREML_* is not complete; nodes are told by address"),
    about("modelarts", "Huawei ModelArts", "MA_*, VC_*, --data_url, --train_url, directories below /home/ma-user/modelarts, the code's own directory, hosts JOB-worker-N.JOB; a channel's name is its argument's", "further inputs without a name of their own are at data_url_1 and so on, and told by no argument; with TensorFlow also TF_CONFIG; where it has parameter servers, --task_index=I beside the --task_name of its documents; tasks are root of their container, not user 1000, unless `user` says so; what its storage, packages and cards of Ascend need (S3_*, MA_PIP_*, MA_APIGW_ENDPOINT, NCCL_IB_HCA, RANK_TABLE_FILE) is not given; Predownload is resume = true: train_url begins as the newest earlier run of the job left it, and with it MA_LOG_DIR, which lies in it; what attempts of one run leave there stays in any case"),
    about("modelarts/1", "Huawei ModelArts, old jobs", "DLS_*, BATCH_*_HOSTS, /home/work/user-job-dir, /home/work/run_train.sh", "data is at /home/work/data, and DLS_*_URL are paths: what wants obs:// or s3:// before them does not run; tasks are root of their container, not user 1101"),
    about("uai", "UCloud UAI-Train", "/data, /data/data, /data/output, the arguments --work_dir, --data_dir, --output_dir, --log_dir; TF_CONFIG with a parameter server on each node, which is started beside the script; the output begins as the last run's ended", "servers of MXNet are as TI-ONE's"),
    about("paddle", "Baidu PaddlePaddle (PaddleCloud); Baidu BML as the nearest", "TRAINING_ROLE, PADDLE_*, ports from 2379 on", "no job is elastic or has heterogeneous nodes (PADDLE_ELASTIC_*, PADDLE_HETER_ENDPOINTS); of BML nothing is published"),
    about("paddle/old", "PaddlePaddle's platform of 2018", "PADDLE_INIT_*, /trainer_id, /trainer_count", "data is at /dataset, not below /pfs"),
    about("openpai", "Microsoft OpenPAI", "PAI_* of v0.x and v1.x, names of roles without hyphens", "code is at /code and where the command starts; PAI_DEFAULT_FS_URI is empty, since there is no such store: files are where they are mounted; PAI_CONTAINER_ID is container_WORKSPACE_JOB_RUN_ATTEMPT_NUMBER; PAI_APP_ID and PAI_HADOOP_USER_NAME, which name what YARN knows, are not given, nor is ~/.ssh/config: hosts are found by /etc/hosts as ROLE-I, with $PAI_PORT_LIST_ROLE_I_ssh as their port; storage plugins are not part of this, nor is /tmp/pai-termination-log, which its runtime writes for the platform when the command has ended: reason and log tell that"),
    about("volcano", "Volcano; Huawei CCI", "VC_*_HOSTS, VC_TASK_INDEX, /etc/volcano/ROLE.host, TF_CONFIG without environment, MASTER_ADDR, MPI_HOST", ""),
    about("volcano/octopus", "OpenI Octopus (Pumpkin)", "/code, /dataset, /model, TASKROLE_NAME task0, VC_TASK0_HOSTS with addresses, --key=value", "variables by the role's own name are given as well"),
    about("kubeflow", "Kubeflow training jobs; Huawei CCI, JD DAS, Didi, Inspur AIStation as the nearest", "TF_CONFIG, MASTER_ADDR and PET_*, DMLC_* and MX_CONFIG, PADDLE_MASTER, COORDINATOR_ADDRESS by framework", "without `framework`, TF_CONFIG and MASTER_ADDR; of JD, Didi and Inspur nothing is published"),
    about("kubeflow/arena", "Alibaba arena", "ports 22222 and 22223, code at /root/code, /training_logs and its older name /output/training_logs", ""),
    about("kubeflow/swarm", "Alibaba container service (Swarm), distributed training", "/input, /output, hosts ps0, worker0; ends when all workers have", "how hosts reached the script is not documented: TF_CONFIG and, where there are servers, JOB_NAME, TASK_INDEX, PS_HOSTS and WORKER_HOSTS, of which the command makes flags for a script that wants these"),
    about("kubeflow/xiaomi", "Xiaomi Cloud-ML", "TF_CONFIG with master and without environment", "host names are ours; code comes from code/ or Git, not from the address of a package; prepare_command and finish_command are parts of `command`"),
    about("kubeflow/caicloud", "Caicloud TaaS", "TF_MAX_STEPS, TF_LOGDIR, TF_SAVE_*", "its cluster side was never published: TF_CONFIG as Kubeflow's"),
    about("kubeflow/aihc", "Baidu AIHC; Baidu BML as the nearest", "one RANK a node, NPROC_PER_NODE, AIHC_JOB_NAME; AIHC_TENSORBOARD_LOG_PATH where the job has a TensorBoard, as its `log_dir`", ""),
    about("kubeflow/psflags", "TensorFlow 1 scripts; Meituan DLS, JD Lambda as the nearest", "", "flags --job_name, --task_index, --ps_hosts, --worker_hosts: of these platforms nothing is published"),
    about("mpi", "AWS Deep Learning AMI, NVIDIA NGC containers, Intel MPI, Uber Horovod", "/etc/mpi/hostfile, OMPI_MCA_*, I_MPI_*, HYDRA_*; a launcher starts ranks on the job's tasks, without ssh", "what would tell ssh its options (OMPI_MCA_plm_rsh_args) is not given"),
    about("mpi/nauta", "Intel Nauta", "/mnt/input, /mnt/output/experiment, /app, NAUTA_*", ""),
    about("mpi/bcp", "NVIDIA Base Command", "", "NGC_* names as public scripts read them; where results belong is not published"),
];

/// What is known of a contract.
pub fn of(name: &str) -> Option<&'static About> {
    ABOUT.iter().find(|about| about.name == name)
}

/// A job of two roles, as an example of what its tasks see.
pub struct Example {
    pub spec: JobSpec,
    pub sample: Sample,
    /// Of its tasks, the one to look at.
    pub shown: usize,
    /// What kind of job it is.
    pub about: &'static str,
}

/// Contracts of platforms that start ranks of MPI are shown by such a job.
pub fn example(contract: Contract) -> Example {
    let is_of_ranks = contract.platform == Platform::Mpi && contract.profile != Profile::Nauta;
    let (kind, roles, about) = match is_of_ranks {
        true => (
            "framework = \"mpi\"\ncommand = \"mpirun python3 train.py\"",
            "",
            "framework = \"mpi\", a launcher, 2 workers",
        ),
        false => (
            "framework = \"tensorflow\"\ncommand = \"python3 train.py\"",
            "[roles.ps]\n",
            "framework = \"tensorflow\", 1 ps, 2 workers",
        ),
    };
    let text = format!(
        "contract = \"{contract}\"\n{kind}\ncode = \"digits\"\ndatasets = [\"train=mnist\"]\n\
         [params]\nepochs = 3\n{roles}[roles.worker]\ncount = 2\n"
    );
    let spec = crate::spec::parse("example.toml", &text).0.expect("the example of every contract is a test");
    let sample = Sample::of("example.toml", &spec);
    // The launcher; else the last worker, whose index is not 0, so that it can be told from the count.
    let shown = if is_of_ranks { 0 } else { 2 };
    Example { spec, sample, shown, about }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::platform::CONTRACTS;

    #[test]
    fn every_contract_is_told_of_and_has_an_example() {
        for (name, ..) in CONTRACTS {
            let about = of(name).unwrap_or_else(|| panic!("{name} is not told of"));
            assert!(!about.certain.is_empty() || !about.reading.is_empty(), "{name}");
            let contract: Contract = name.parse().unwrap();
            let Example { spec, sample, shown, .. } = example(contract);
            assert!(sample.tasks(&spec).nth(shown).is_some(), "{name}");
            assert!(sample.tasks(&spec).all(|task| !super::super::view(&task).env.is_empty()), "{name}");
        }
        assert_eq!(ABOUT.len(), CONTRACTS.len());
    }
}
