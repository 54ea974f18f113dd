mod export;
mod framework;
mod kubeflow;
mod policies;
mod refusals;
mod tasks;
mod trainjob;
mod volcano;

use super::*;
use crate::spec::Main;
use crate::spec::{self, Command, DesiredState, JobSpec, MinSucceeded};

/// Of all that is imported here: no file says in one key what another one takes back.
fn jobs(text: &str) -> Vec<Imported> {
    let jobs = import(text).unwrap_or_else(|error| panic!("{error}")).jobs;
    // What we have exported comes back as it was, be it so.
    for job in jobs.iter().filter(|_| !text.contains("\"trainyard\":")) {
        let (_, found) = spec::parse(&format!("{}.toml", job.name), &job.toml);
        let against = found.iter().find(|found| found.message.contains("contradict each other"));
        assert_eq!(against, None, "{}", job.toml);
    }
    jobs
}

fn only(text: &str) -> Imported {
    let mut jobs = jobs(text);
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

fn refusal(text: &str) -> String {
    import(text).map(|contents| format!("{contents:?}")).unwrap_err().to_string()
}

fn fields(job: &Imported) -> Vec<&str> {
    job.losses.iter().map(|loss| loss.field.as_str()).collect()
}

/// What the job file says: only keys of the language, if need be without those that this version does not act on yet.
fn spec_of(job: &Imported) -> JobSpec {
    let file = format!("{}.toml", job.name);
    let (spec, found) = spec::parse(&file, &job.toml);
    if let Some(spec) = spec {
        return spec;
    }
    let later = |found: &&spec::Diagnostic| !found.message.contains("is known, but not supported by this version yet");
    let wrong: Vec<_> = found.iter().filter(later).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{}", job.toml);
    let mut table: toml::Table = job.toml.parse().unwrap();
    for key in found.iter().filter_map(|found| found.key.clone()) {
        remove(&mut table, &key);
    }
    let (spec, found) = spec::parse(&file, &table.to_string());
    spec.unwrap_or_else(|| panic!("{found:?}\n{}", job.toml))
}

fn remove(table: &mut toml::Table, key: &str) {
    match key.split_once('.') {
        None => drop(table.remove(key)),
        Some((first, rest)) => remove(table[first].as_table_mut().unwrap(), rest),
    }
}

fn role<'s>(spec: &'s JobSpec, name: &str) -> &'s spec::Role {
    spec.roles.iter().find(|role| role.name.as_str() == name).unwrap()
}

const PS_JSON: &str = r#"{
  "jobName": "tf-ps",
  "image": "lab/tf:1",
  "dataDir": "$PAI_DEFAULT_FS_URI/data",
  "virtualCluster": "default",
  "taskRoles": [
    {"name": "ps_server", "taskNumber": 2, "cpuNumber": 2, "memoryMB": 8192, "gpuNumber": 0, "command": "python tf.py --ps"},
    {"name": "worker", "taskNumber": 2, "cpuNumber": 2, "memoryMB": 16384, "gpuNumber": 4,
     "command": "python tf.py", "minSucceededTaskCount": 2,
     "portList": [{"label": "http2", "beginAt": 0, "portNumber": 1}, {"label": "fixed", "beginAt": 9000, "portNumber": 2}]}
  ],
  "jobEnvs": {"A": "x y", "isDebug": true},
  "retryCount": 3,
  "extras": {"ticket": "ML-1"}
}"#;

#[test]
fn a_parameter_server_job_of_openpai_v1_is_written_like_this() {
    let job = only(PS_JSON);
    assert_eq!(
        job.toml,
        r#"# Imported from a job of OpenPAI (protocol v1).
# not carried: dataDir: an address of the cluster; put the files into the workspace's datasets/NAME and write datasets = ["NAME"], seen at /dataset

image = "lab/tf:1"
contract = "openpai"
retries = 3
debug = true

[env]
A = "x y"

[roles.ps_server]
count = 2
command = "python tf.py --ps"

[roles.ps_server.resources]
cpu = 2
memory = "8GiB"
shm = "64MiB"

[roles.worker]
count = 2
main = true
ports = { http2 = 1, fixed = { count = 2, begin = 9000 } }
command = "python tf.py"

[roles.worker.resources]
cpu = 2
memory = "16GiB"
shm = "64MiB"
gpu = 4

[extras]
ticket = "ML-1"
"#
    );
    let spec = spec_of(&job);
    assert_eq!((role(&spec, "worker").count, role(&spec, "worker").main == Main::Role, spec.retries), (2, true, 3));
    assert!(!role(&spec, "ps_server").serves, "OpenPAI waits for every role");
}

#[test]
fn the_smallest_job_of_openpai_v1_needs_no_table_of_roles() {
    let job =
        only(r#"{"jobName": "m", "image": "i", "taskRoles": [{"name": "main", "taskNumber": 1, "command": "true"}]}"#);
    assert_eq!(
        job.toml,
        "# Imported from a job of OpenPAI (protocol v1).\n\nimage = \"i\"\ncontract = \"openpai\"\ncommand = \"true\"\n\n\
         [resources]\ncpu = 1\nmemory = \"100MiB\"\nshm = \"64MiB\"\n"
    );
    assert!(job.losses.is_empty());
}

fn v1(role: &str, job: &str) -> String {
    format!(
        r#"{{"jobName": "j", "image": "i", {job} "taskRoles": [{{"name": "w", "taskNumber": 4, "command": "c"{role}}}]}}"#
    )
}

#[test]
fn policies_of_openpai_v1_keep_their_meaning() {
    let policy = |text: &str| {
        let spec = spec_of(&only(&v1(text, "")));
        let role = &spec.roles[0];
        (role.min_failed, role.min_succeeded)
    };
    assert_eq!(policy(""), (Some(1), MinSucceeded::All));
    assert_eq!(policy(r#", "minFailedTaskCount": null"#), (None, MinSucceeded::All));
    assert_eq!(policy(r#", "minSucceededTaskCount": 2"#), (Some(1), MinSucceeded::Count(2)));
    let tolerant = only(&v1(r#", "minFailedTaskCount": 2"#, ""));
    assert_eq!(fields(&tolerant), ["taskRoles[0].minFailedTaskCount"]);
}

#[test]
fn retries_without_end_and_unknown_fields_are_named() {
    let job = only(&v1(r#", "colour": "red""#, r#""retryCount": -2, "authFile": "hdfs://x", "#));
    assert_eq!(fields(&job), ["retryCount", "taskRoles[0].colour", "authFile"]);
    assert!(job.losses[2].why.contains("secrets/WORKSPACE/registry.json"), "{}", job.losses[2]);
    assert!(job.losses[0].why.contains("even after success"), "{}", job.losses[0]);
    assert!(job.toml.starts_with("# Imported from a job of OpenPAI (protocol v1).\n# not carried: retryCount: -2 "));
    assert_eq!(spec_of(&job).retries, 0);
}

#[test]
fn nearly_json_is_refused_with_line_and_column() {
    assert_eq!(
        refusal("{\n  // the name\n  \"jobName\": \"j\"\n}"),
        "line 2, column 3: not JSON: key must be a string; JSON has no comments: remove them"
    );
    assert_eq!(refusal("{\"jobName\": \"j\",\n}"), "line 2, column 1: not JSON: trailing comma");
    assert_eq!(
        refusal("{\"jobName\": \"\\\"//\" /* the name */}"),
        "line 1, column 20: not JSON: expected `,` or `}`; JSON has no comments: remove them"
    );
    let early = refusal(r#"[{"command": "curl http://x",} // so]"#);
    assert!(early.starts_with("line 1, column 30: not JSON: trailing comma; docs/IMPORT.md"), "{early}");
    let of_letters = "line 2, column 18: not JSON: trailing comma";
    assert_eq!(refusal("{\n\"jobName\": \"训练\", }"), of_letters, "not of bytes");
}

const V2: &str = r#"
protocolVersion: 2
name: cifar
type: job
version: 1.0
description: two lines
parameters:
  lr: 1e-4
  idle: 1
prerequisites:
  - name: torch
    type: dockerimage
    uri: lab/torch:2
    auth: {username: u, password: <% $secrets.pw %>}
  - name: cifar10
    type: data
    uri: [https://example.org/c.tgz]
taskRoles:
  master:
    instances: 1
    dockerImage: torch
    data: cifar10
    completion: {minSucceededInstances: 1}
    resourcePerInstance: {cpu: 2, memoryMB: 6500, gpu: 0, ports: {SynPort: 1}}
    commands:
      - printf '%s\n' one
      - curl <% $data.uri[0] %> && train --lr <% $parameters.lr %> --key <% $secrets.key %>
  worker:
    instances: 2
    dockerImage: torch
    completion: {minFailedInstances: -1, minSucceededInstances: -1}
    taskRetryCount: 2
    extraContainerOptions: {shmMB: 4096}
    resourcePerInstance: {cpu: 4, memoryMB: 8192, gpu: 0}
    commands: [sleep infinity]
deployments:
  - name: prod
    taskRoles: {master: {preCommands: [echo before], postCommands: [echo after]}}
  - name: other
    taskRoles: {master: {preCommands: [echo never]}}
defaults: {deployment: prod}
secrets: {key: s3cret, pw: hunter2}
extras:
  submitFrom: web
  hivedScheduler: {jobPriorityClass: oppo}
  com.microsoft.pai.runtimeplugin: [{plugin: ssh, parameters: {jobssh: false}}, {plugin: ssh, parameters: {jobssh: true}}]
"#;

#[test]
fn a_job_of_openpai_v2_runs_its_commands_line_by_line_with_tags_replaced() {
    let job = only(V2);
    let spec = spec_of(&job);
    let commands = "echo before\nprintf '%s\\n' one\ncurl https://example.org/c.tgz && train --lr 1e-4 --key <% $secrets.key %>\necho after";
    assert_eq!(role(&spec, "master").command, Command::Shell(commands.to_owned()));
    assert!(role(&spec, "master").main == Main::Role && role(&spec, "worker").main == Main::No);
    assert_eq!((role(&spec, "worker").min_failed, role(&spec, "worker").retries), (None, 0));
    assert_eq!(role(&spec, "worker").resources.shm, crate::ids::Bytes::mib(4096));
    assert_eq!(role(&spec, "master").ports[0].label, "SynPort");
    assert!(job.toml.contains("priority = \"low\""), "{}", job.toml);
    assert_eq!(
        fields(&job),
        [
            "deployments[1].taskRoles",
            "taskRoles.master.commands",
            "taskRoles.worker.taskRetryCount",
            "parameters.idle",
            "extras.com.microsoft.pai.runtimeplugin[1].parameters",
            "extras.hivedScheduler",
            "prerequisites.torch.auth",
            "prerequisites.cifar10.uri",
            "secrets",
        ]
    );
    let apart = only(&V2.replace("  submitFrom: web\n", "  gangAllocation: false\n"));
    assert_eq!(role(&spec_of(&apart), "worker").retries, 2, "OpenPAI heeds it only so");
    assert!(fields(&apart).contains(&"extras.gangAllocation"), "{:?}", fields(&apart));
    assert!(!fields(&apart).contains(&"taskRoles.worker.taskRetryCount"), "{:?}", fields(&apart));
}

#[test]
fn secrets_never_reach_the_job_file() {
    let job = only(V2);
    let said = job.losses.iter().map(Loss::to_string).collect::<String>();
    assert!(["s3cret", "hunter2"].iter().all(|secret| !job.toml.contains(secret) && !said.contains(secret)));
}

#[test]
fn a_role_of_openpai_v2_without_a_policy_ends_the_job_by_itself() {
    let text = V2.replace("    completion: {minFailedInstances: -1, minSucceededInstances: -1}\n", "");
    assert_ne!(role(&spec_of(&only(&text)), "worker").main, Main::No);
    let missing = V2.replace("dockerImage: torch", "dockerImage: tensor");
    assert!(refusal(&missing).contains("`taskRoles.master.dockerImage` names \"tensor\""), "{}", refusal(&missing));
}

const VCJOB: &str = r#"apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: mpi, labels: {team: vision}}
spec:
  minAvailable: 3
  schedulerName: volcano
  queue: gold
  plugins: {ssh: [], svc: [], env: [], mpi: []}
  policies:
    - {event: PodEvicted, action: RestartJob}
    - {event: PodFailed, action: RestartJob}
  tasks:
    - replicas: 1
      name: mpimaster
      policies: [{event: TaskCompleted, action: CompleteJob}]
      template:
        spec:
          containers:
            - name: m
              image: lab/mpi:1
              command: [/bin/sh, -c, "mpiexec hello\n"]
              workingDir: /home
              resources: {limits: {cpu: 500m, memory: 100M}}
              ports: [{containerPort: 22, name: mpijob-port}]
    - replicas: 2
      name: mpiworker
      dependsOn: {name: [mpimaster]}
      template:
        spec:
          volumes:
            - {name: seq, hostPath: {path: /home/work}}
            - {name: dshm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
          containers:
            - image: lab/mpi:1
              command: [sshd]
              args: [-D]
              volumeMounts: [{name: seq, mountPath: /mnt/seq}, {name: dshm, mountPath: /dev/shm}]
              env:
                - {name: A, value: "1"}
                - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
              resources: {limits: {cpu: 1, memory: 2Gi, nvidia.com/gpu: 1}}
"#;

#[test]
fn several_documents_are_several_jobs_and_other_objects_are_skipped() {
    let second = VCJOB.replace("name: mpi,", "name: mpi2,");
    let text = format!("{VCJOB}---\n{second}---\nkind: Queue\nmetadata: {{name: gold}}\n---\n");
    let contents = import(&text).unwrap();
    assert_eq!(contents.jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["mpi", "mpi2"]);
    assert_eq!(contents.skipped, ["Queue \"gold\""]);
    let list = |items: &str| format!("apiVersion: v1\nkind: List\nitems:\n{items}");
    let item = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Worker", 1)]).replace('\n', "\n  ");
    let listed = import(&list(&format!("- {item}\n- kind: Service\n"))).unwrap();
    assert_eq!((listed.jobs[0].name.as_str(), listed.skipped), ("k", vec!["Service".to_owned()]), "of kubectl");
    let applied = "metadata: {name: k, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'OWN}}";
    let of_kubectl = |own: &str| {
        let text = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Worker", 1)]);
        let applied = applied.replace("OWN", own);
        only(&text.replace("metadata: {name: k}", &applied)).toml
    };
    assert!(!of_kubectl("").contains("[extras]"), "{}", of_kubectl(""));
    assert!(of_kubectl(", a: b").contains("annotations = { a = \"b\" }"), "{}", of_kubectl(", a: b"));
    assert!(refusal(&list("  []\n")).starts_with("no job of OpenPAI"));
    let only = "no job of OpenPAI, FrameworkController, Volcano or Kubeflow is in it, only Queue; docs/IMPORT.md lists what is read";
    assert!(refusal("kind: Queue\n").starts_with(only));
    for of_others in [
        "#!/bin/sh\n#SBATCH --ntasks=4\nsrun python x.py\n",
        "#!/bin/sh\n#SBATCH --ntasks=4\necho \"start: $(date)\"\nsrun python x.py kind: a\n",
        "#SBATCH --ntasks=4\necho \"start: $(date)\"\nsrun python x.py\n",
        "{\"TrainingJobName\": \"j\"}",
    ] {
        assert!(refusal(of_others).contains("docs/from/ (slurm, docker, octopus)"), "{}", refusal(of_others));
    }
}

#[test]
fn what_stands_in_brackets_and_quotes_may_stand_at_any_column() {
    let job = |command: &str| {
        let text = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Worker", 1)]);
        let container = "            - {name: c, image: lab/TFJob, command: [python, x.py], resources: {limits: {cpu: 1, memory: 1Gi}}}";
        let block = format!(
            "            - name: c\n              image: lab/x\n              command: {command}\n              resources: {{limits: {{cpu: 1, memory: 1Gi}}}}"
        );
        assert!(text.contains(container));
        text.replace(container, &block)
    };
    let words = |command: &str| match spec_of(&only(&job(command))).roles[0].command.clone() {
        Command::Exec(words) => words,
        other => panic!("{other:?}"),
    };
    // The bracket at the column of its field, as most write it; and everything at the left.
    assert_eq!(words("[\n                python,\n                x.py\n              ]"), ["python", "x.py"]);
    assert_eq!(words("[\npython,\n  [x, y],\n'z'\n]".replace("  [x, y],\n", "").as_str()), ["python", "z"]);
    assert_eq!(words("[\npython, \"a \\\" b\n c \\\n d\"\n]"), ["python", "a \" b c d"]);
    assert_eq!(words("[python,\n'it''s\nit']"), ["python", "it's it"]);
    assert_eq!(words("[python # why\n, x,\n# why not\ny]"), ["python", "x", "y"]);
    let folded = only(&job("[\"sh\", \"-c\",\n              \"sleep 1 &&\n              exit 3\"]"));
    assert!(folded.toml.contains("command = \"sleep 1 && exit 3\""), "{}", folded.toml);
    // What comes after is told where it stands in the file, and what is wrong otherwise stays so.
    let wrong = job("[\npython,\n x\n]").replace("cpu: 1,", "cpu: one,");
    let line = wrong.lines().position(|line| line.contains("cpu: one")).unwrap() + 1;
    assert!(refusal(&wrong).starts_with(&format!("line {line}, ")), "{}", refusal(&wrong));
    let list = job("[\n python,\n {a: b}\n]");
    assert!(
        refusal(&list).starts_with("line 15, column 2: ") || refusal(&list).contains("command"),
        "{}",
        refusal(&list)
    );
    for broken in ["[\npython", "[\npython}", "[\n\"python", "- a\n- b"] {
        assert!(import(&job(broken)).is_err(), "{broken}");
    }
    // Each line costs a reading: a file of nothing but such lines is refused soon.
    let many = format!("a: [\n{}", "x,\n".repeat(100_000));
    let began = std::time::Instant::now();
    assert!(import(&many).is_err() && began.elapsed() < std::time::Duration::from_secs(60));
}

fn kubeflow(kind: &str, specs: &str, more: &str, roles: &[(&str, u32)]) -> String {
    let mut text =
        format!("apiVersion: kubeflow.org/v1\nkind: {kind}\nmetadata: {{name: k}}\nspec:\n{more}  {specs}:\n");
    for (role, count) in roles {
        text += &format!(
            "    {role}:\n      replicas: {count}\n      restartPolicy: Never\n      template:\n        spec:\n          containers:\n            \
             - {{name: c, image: lab/{kind}, command: [python, x.py], resources: {{limits: {{cpu: 1, memory: 1Gi}}}}}}\n"
        );
    }
    text
}

#[test]
fn kubeflow_kinds_end_as_their_operator_ends_them() {
    type Case<'c> = (&'c str, &'c str, &'c [(&'c str, u32)], &'c str, Option<&'c str>, &'c [&'c str]);
    let cases: [Case<'_>; 7] = [
        ("TFJob", "tfReplicaSpecs", &[("Chief", 1), ("PS", 1), ("Worker", 2)], "tensorflow", Some("chief"), &["ps"]),
        ("PyTorchJob", "pytorchReplicaSpecs", &[("Master", 1), ("Worker", 3)], "pytorch", Some("master"), &[]),
        (
            "MXJob",
            "mxReplicaSpecs",
            &[("Scheduler", 1), ("Server", 2), ("Worker", 2)],
            "mxnet",
            None,
            &["scheduler", "server"],
        ),
        ("XGBoostJob", "xgbReplicaSpecs", &[("Master", 1), ("Worker", 2)], "xgboost", Some("master"), &[]),
        ("PaddleJob", "paddleReplicaSpecs", &[("Worker", 2)], "paddle", None, &[]),
        ("JAXJob", "jaxReplicaSpecs", &[("Worker", 2)], "jax", None, &[]),
        ("MPIJob", "mpiReplicaSpecs", &[("Launcher", 1), ("Worker", 2)], "mpi", Some("launcher"), &["worker"]),
    ];
    for (kind, specs, roles, framework, main, serving) in cases {
        let job = only(&kubeflow(kind, specs, "", roles));
        assert!(job.losses.is_empty(), "{kind}: {:?}", job.losses);
        assert!(job.toml.contains(&format!("contract = \"kubeflow\"\nframework = \"{framework}\"")), "{}", job.toml);
        let spec = spec_of(&job);
        let names = |is: fn(&spec::Role) -> bool| {
            spec.roles.iter().filter(|role| is(role)).map(|role| role.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names(|role| role.main != Main::No), main.into_iter().collect::<Vec<_>>(), "{kind}");
        assert_eq!(names(|role| role.serves), serving, "{kind}");
        assert_eq!(
            spec.roles.iter().map(|role| role.count).sum::<u32>(),
            roles.iter().map(|(_, count)| count).sum::<u32>()
        );
    }
}

#[test]
fn run_policies_processes_and_elasticity_of_kubeflow() {
    let more = "  nprocPerNode: \"2\"\n  elasticPolicy: {minReplicas: 1}\n  runPolicy: {suspend: true, backoffLimit: 2, activeDeadlineSeconds: 90, cleanPodPolicy: None, ttlSecondsAfterFinished: 5}\n";
    let job = only(&kubeflow("PyTorchJob", "pytorchReplicaSpecs", more, &[("Worker", 2)]));
    assert_eq!(
        job.toml.split_once("\n\n").unwrap().1,
        "image = \"lab/PyTorchJob\"\ncontract = \"kubeflow\"\nframework = \"pytorch\"\nretries = 2\nmax_duration = \"90s\"\nstate = \"held\"\n\
         command = [\"python\", \"x.py\"]\n\n[env]\nPET_NPROC_PER_NODE = \"2\"\n\n[resources]\ncpu = 1\nmemory = \"1GiB\"\n\n[roles.worker]\ncount = 2\n"
    );
    assert_eq!(fields(&job), ["spec.runPolicy.ttlSecondsAfterFinished", "spec.elasticPolicy"]);
    let slots =
        only(&kubeflow("MPIJob", "mpiReplicaSpecs", "  slotsPerWorker: 2\n", &[("Launcher", 1), ("Worker", 2)]));
    assert_eq!(fields(&slots), [""; 0]);
    assert_eq!(role(&spec_of(&slots), "worker").slots, Some(2));
    let idle = kubeflow("MPIJob", "mpiReplicaSpecs", "", &[("Launcher", 1), ("Worker", 2)]).replacen(
        "command: [python, x.py], ",
        "",
        2,
    );
    assert_eq!(fields(&only(&idle)), [""; 0]);
    let sshd = kubeflow("MPIJob", "mpiReplicaSpecs", "", &[("Launcher", 1), ("Worker", 2)]);
    for command in ["[/usr/sbin/sshd, -De, -f, /home/x]", "[/bin/sh, -c, 'mkdir -p /run/sshd; /usr/sbin/sshd -D;']"] {
        let at = sshd.rfind("[python, x.py]").unwrap();
        let text = format!("{}{command}{}", &sshd[..at], &sshd[at + "[python, x.py]".len()..]);
        let spec = spec_of(&only(&text));
        assert!(spec.is_launched(), "{command}");
        assert_eq!(role(&spec, "worker").slots, Some(1), "as the operator has it");
    }
}

#[test]
fn a_container_without_limits_and_with_restarts_says_so() {
    let text = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Worker", 2)])
        .replace("restartPolicy: Never", "restartPolicy: OnFailure")
        .replace("limits: {cpu: 1, memory: 1Gi}", "requests: {cpu: 1}");
    assert_eq!(
        fields(&only(&text)),
        [
            "spec.tfReplicaSpecs.Worker.restartPolicy",
            "spec.tfReplicaSpecs.Worker.template.spec.containers[0].resources.limits.memory",
        ]
    );
}

#[test]
fn containers_that_kubeflow_starts_again_are_tasks_that_are() {
    let again = |policy: &str| {
        let more = "  runPolicy: {backoffLimit: 2}\n";
        let text = kubeflow("PyTorchJob", "pytorchReplicaSpecs", more, &[("Worker", 2)])
            .replace("restartPolicy: Never", &format!("restartPolicy: {policy}"))
            .replace("        spec:\n", "        spec:\n          restartPolicy: OnFailure\n");
        let job = only(&text);
        let spec = spec_of(&job);
        (spec.retries, spec.roles[0].retries, job.losses.iter().map(|loss| loss.why.clone()).collect::<String>())
    };
    assert_eq!(again("Never"), (2, 0, String::new()), "the operator's own word counts");
    assert_eq!(again("OnFailure"), (0, 2, String::new()));
    for (policy, word) in [("ExitCode", "codes from 128 on"), ("Always", "that succeeded")] {
        let (job, role, told) = again(policy);
        assert!((job, role) == (0, 2) && told.contains(word), "{policy}: {told}");
    }
}

#[test]
fn what_starts_containers_again_is_filled_in_as_the_operators_do() {
    let job = |kind: &str, specs: &str, more: &str, roles: &[(&str, u32)]| {
        only(&kubeflow(kind, specs, more, roles).replace("      restartPolicy: Never\n", ""))
    };
    let bound = "  runPolicy: {backoffLimit: 2}\n";
    for (kind, specs, again) in [
        ("TFJob", "tfReplicaSpecs", 0),
        ("PyTorchJob", "pytorchReplicaSpecs", 2),
        ("MXJob", "mxReplicaSpecs", 0),
        ("XGBoostJob", "xgbReplicaSpecs", 0),
        ("PaddleJob", "paddleReplicaSpecs", 2),
        ("JAXJob", "jaxReplicaSpecs", 0),
    ] {
        let spec = spec_of(&job(kind, specs, bound, &[("Worker", 2)]));
        assert_eq!((spec.roles[0].retries, spec.retries), (again, 2 - again), "{kind}");
        let never = job(kind, specs, "  runPolicy: {backoffLimit: 0}\n", &[("Worker", 2)]);
        assert_eq!((fields(&never), spec_of(&never).roles[0].retries), (Vec::<&str>::new(), 0), "{kind}");
    }
    // Nothing bounds it: what the operator would do for ever is named.
    let endless = job("PyTorchJob", "pytorchReplicaSpecs", "", &[("Worker", 2)]);
    assert_eq!(fields(&endless), ["spec.pytorchReplicaSpecs.Worker.restartPolicy"]);
    assert!(
        endless.losses[0].why.starts_with("OnFailure, which the operator fills in, starts"),
        "{:?}",
        endless.losses
    );
    // Of MPI's two operators one has a Job of Kubernetes launch, which tries six times more.
    let launcher = |text: String| {
        let spec = spec_of(&only(&text.replace("      restartPolicy: Never\n", "")));
        (role(&spec, "launcher").retries, role(&spec, "worker").retries, spec.retries)
    };
    let mpi = |more: &str| kubeflow("MPIJob", "mpiReplicaSpecs", more, &[("Launcher", 1), ("Worker", 2)]);
    let newer = |more: &str| mpi(more).replace("kubeflow.org/v1", "kubeflow.org/v2beta1");
    assert_eq!(launcher(mpi("")), (0, 0, 0));
    assert_eq!(launcher(newer("")), (6, 0, 0));
    assert_eq!(launcher(newer(bound)), (2, 0, 0));
    let unsaid = only(&mpi("").replace("      replicas: 2\n", ""));
    assert_eq!(fields(&unsaid), ["spec.mpiReplicaSpecs.Worker.replicas"], "no worker, as the operators fill in");
}

#[test]
fn who_decides_how_a_job_of_tensorflow_ends_is_carried_over() {
    let main = |more: &str| {
        let job = only(&kubeflow("TFJob", "tfReplicaSpecs", more, &[("Worker", 2)]));
        assert_eq!(fields(&job), Vec::<&str>::new());
        spec::parse("k.toml", &job.toml).0.unwrap().roles[0].main
    };
    assert_eq!(main(""), Main::FirstTask, "worker 0, by default");
    assert_eq!(main("  successPolicy: AllWorkers\n"), Main::No);
    let chiefs = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Chief", 2)]);
    assert!(
        refusal(&chiefs).starts_with("line 7, column 7: `spec.tfReplicaSpecs.Chief.replicas` cannot be: "),
        "{}",
        refusal(&chiefs)
    );
    let cores = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Worker", 1)]).replace("cpu: 1", "cpu: 20000");
    let field = "`spec.tfReplicaSpecs.Worker.template.spec.containers[0].resources.limits.cpu` cannot be: ";
    assert!(refusal(&cores).starts_with("line 12, column ") && refusal(&cores).contains(field), "{}", refusal(&cores));
}

#[test]
fn a_mount_of_no_volume_and_arguments_of_an_unknown_program_are_named() {
    let text = VCJOB
        .replace("            - {name: seq, hostPath: {path: /home/work}}\n", "")
        .replace("              command: [sshd]\n", "");
    let job = only(&text);
    for wanted in ["volumeMounts", "args"] {
        let field = format!("spec.tasks[1].template.spec.containers[0].{wanted}");
        assert!(fields(&job).contains(&field.as_str()), "{:?}", fields(&job));
    }
}

#[test]
fn a_volume_that_the_container_does_not_mount_is_no_loss() {
    let named = |text: &str| fields(&only(text)).iter().any(|field| field.ends_with("volumes[0].hostPath"));
    assert!(named(VCJOB));
    assert!(
        !named(&VCJOB.replace("{name: seq, mountPath: /mnt/seq}, ", "")),
        "an init container's, which is named itself"
    );
    let linked = only(&VCJOB.replace("metadata: {name: mpi,", "metadata: {name: mpi, selfLink: /a, generation: 1,"));
    assert!(!fields(&linked).iter().any(|field| field.starts_with("metadata.")), "{:?}", fields(&linked));
}

#[test]
fn aliases_are_expanded_but_not_for_ever() {
    let text = VCJOB
        .replace("cpu: 500m, memory: 100M", "<<: &r {cpu: 1, memory: 2Gi}")
        .replace("limits: {cpu: 1, memory: 2Gi, nvidia.com/gpu: 1}", "limits: *r");
    assert_eq!(role(&spec_of(&only(&text)), "mpiworker").resources.memory, crate::ids::Bytes(2 << 30));
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..10 {
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(","));
    }
    assert!(refusal(&bomb).contains("aliases"), "{}", refusal(&bomb));
    assert!(refusal(&format!("a: {}{}", "[".repeat(100), "]".repeat(100))).contains("nested"));
    assert!(refusal(&format!("a: {}", "[".repeat(5000))).contains("not YAML"));
    assert!(refusal("a: 1\na: 2\n").starts_with("line 2, column 1: the field \"a\" stands here twice"));
}

#[test]
fn names_that_do_not_fit_are_fitted_and_told() {
    let long = PS_JSON.replace("tf-ps", &"x".repeat(70));
    let job = only(&long);
    assert_eq!((job.name.len(), fields(&job).last().copied()), (64, Some("name")));
}

/// Everything that an export has to bring back.
const OURS: &str = r#"
description = "digits"
image = "lab/torch:2"
user = "1000:100"
code = "digits"
datasets = ["mnist@v3", "labels"]
network = "job"
requirements = false
resume = true
retry = { on = ["oom", "lost"], backoff = "3s" }
mounts = [{ source = "/data/a b", target = "/data" }, { source = "/x", target = "/x", read_only = true }]
retries = 2
max_duration = "1h30m"
stop_grace = "5s"
state = "held"
rerun = 4
[params]
lr = 1e-4
tags = ["a", "b c"]
fast = true
[env]
SHARED = "x y"
[roles.ps]
command = ["python", "ps.py", "it's"]
resources = { cpu = 0.5, memory = "100MB", shm = "16MiB" }
[roles.worker]
count = 3
retries = 4
main = true
min_failed = "never"
min_succeeded = 2
command = "python train.py --rank $RANK\n"
env = { OWN = "1" }
ports = { grpc = 2, http = { count = 1, begin = 8080 } }
[roles.watch]
serves = true
image = "lab/watch:1"
user = "7"
code = { git = "https://git.lab/x/y", ref = "v1", user = "u", password = "secret:git", submodules = true }
min_succeeded = "never"
"#;

#[test]
fn an_exported_job_comes_back_as_it_was() {
    let services = "command = \"true\"\n[env]\nA = \"b c\"\n[tensorboard]\nlog_dir = \"/output/x\"\n\
                    [services.notebook]\ncommand = \"jupyter lab\"\nport = 8888\nimage = \"lab/nb\"\nuser = \"7\"";
    let git = "command = \"true\"\ncode = { git = \"https://git.lab/x\" }\n[roles.a]\n[roles.b]";
    for text in [OURS, git, services, "command = \"true\"", "debug = true\ncommand = [\"x\"]\nimage = \"oci:/i:t\"", ""]
    {
        let before = spec::parse("x.toml", text).0.unwrap();
        let document = openpai_export::export("digits", &before).to_string();
        let job = only(&document);
        assert_eq!(job.losses, [], "{document}");
        let (after, found) = spec::parse("digits.toml", &job.toml);
        assert_eq!(after, Some(before), "{found:?}\n{}", job.toml);
    }
}

#[test]
fn what_somebody_changed_in_an_exported_document_counts() {
    let before = spec::parse("x.toml", "command = \"true\"\n[resources]\nmemory = \"100MB\"").0.unwrap();
    let mut document = openpai_export::export("j", &before);
    document["taskRoles"][0]["command"] = "false".into();
    document["taskRoles"][0]["memoryMB"] = 200.into();
    let spec = spec_of(&only(&document.to_string()));
    assert_eq!(spec.roles[0].command, Command::Shell("false".to_owned()));
    assert_eq!(spec.roles[0].resources.memory, crate::ids::Bytes::mib(200));
}

// What fuzzing has found.

#[test]
fn what_the_job_language_refuses_is_refused_by_the_import() {
    let v1 = |role: &str, job: &str| {
        format!(r#"{{"jobName": "j", {job} "taskRoles": [{{"name": "w", "command": "c"{role}}}]}}"#)
    };
    let image = r#""image": "i","#;
    for role in [
        r#", "portList": [{"label": "p", "portNumber": 0}]"#,
        r#", "portList": [{"label": "p", "portNumber": 101}]"#,
        r#", "portList": [{"label": "p", "portNumber": 2, "beginAt": 65535}]"#,
        r#", "portList": [{"label": "a", "portNumber": 2, "beginAt": 80}, {"label": "b", "beginAt": 81}]"#,
        r#", "portList": [{"label": "a.b"}, {"label": "a_b"}]"#,
        r#", "portList": [{"label": "x y"}]"#,
        r#", "cpuNumber": 20000"#,
        r#", "gpuNumber": 65"#,
        r#", "memoryMB": 17592186044416"#,
        r#", "memoryMB": 99"#,
    ] {
        let text = v1(role, image);
        assert!(import(&text).is_err(), "{text}");
    }
    for job in [
        r#""image": "i", "jobEnvs": {"a=b": "1"},"#,
        r#""image": "i", "jobEnvs": {"a": "1\u0000"},"#,
        r#""image": "UP x","#,
        r#""image": "i", "extras": {"trainyard": {"lines": {"foo": "1"}}},"#,
        r#""image": "i", "extras": {"trainyard": {"lines": {"after": "["}}},"#,
        r#""image": "i", "extras": {"trainyard": {"network": "moon"}},"#,
        r#""image": "i", "extras": {"trainyard": {"roles": {"w": {"pids": 1}}}},"#,
    ] {
        let text = v1("", job);
        assert!(import(&text).is_err(), "{text}");
    }
    assert!(import(r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "a-b", "command": "c"}]}"#).is_err());
    assert!(import(r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "w", "command": " "}]}"#).is_err());
    // Also where a key that this version does not act on is told first.
    let hidden = v1(r#", "gpuNumber": 1, "portList": [{"label": "x=y"}]"#, r#""image": "i", "gpuType": "K80","#);
    assert!(import(&hidden).is_err(), "{hidden}");
    let nameless = only(&v1("", r#""image": "i", "": "x","#));
    assert_eq!(fields(&nameless), ["\"\""]);
    let dotted = v1(r#", "portList": [{"label": "a.b"}]"#, image);
    assert_eq!(spec_of(&only(&dotted)).roles[0].ports[0].label, "a.b");
    let twice = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: m}\nspec:\n  tasks:\n    - {replicas: 1, \
                 name: w, template: {spec: {containers: [{image: i, env: [{name: A, value: x}, {name: A, value: y}]}]}}}\n";
    assert!(spec_of(&only(twice)).roles[0].env.contains(&("A".into(), "y".into())));
}

#[test]
fn large_documents_are_bounded_and_read_soon() {
    let begun = std::time::Instant::now();
    let text = format!("jobName: a\nx: &a {}\ny: [{}]\n", "x".repeat(500_000), vec!["*a"; 1000].join(","));
    assert!(import(&text).unwrap_err().to_string().contains("aliases"));
    let fields: Vec<String> = (0..80_000).map(|number| format!("\"{number}\":1")).collect();
    assert!(import(&format!("{{{}}}", fields.join(","))).is_err());
    assert!(import(&format!("{{{}}}", fields.join(",").replace(':', ": "))).is_err());
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    let Err(ImportError::Syntax { line, .. }) = import("a: {b") else { panic!() };
    assert_eq!(line, 1, "a place lies in the text");
    let Err(ImportError::Syntax { line, .. }) = import("\r\r\r\r\r?") else { panic!() };
    assert_eq!(line, 6, "a carriage return ends a line");
}

#[test]
fn what_pods_say_of_cards_is_carried() {
    let pod = |selector: &str, limits: &str| {
        format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: m}}\nspec:\n  tasks:\n    - {{replicas: 1, name: w, \
             template: {{spec: {{{selector}containers: [{{image: i, resources: {{limits: {{cpu: 1, memory: 1Gi, {limits}}}}}}}]}}}}}}\n"
        )
    };
    let wanted = |selector: &str, limits: &str| {
        let job = only(&pod(selector, limits));
        let resources = spec_of(&job).roles[0].resources.clone();
        (resources.gpu, resources.gpu_part, resources.gpu_type, fields(&job).len())
    };
    let product = "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}, ";
    let kind = Some("NVIDIA-H100-80GB-HBM3".to_owned());
    let without = wanted("", "nvidia.com/gpu: 2").3;
    assert_eq!(wanted(product, "nvidia.com/gpu: 2"), (2, spec::GpuPart::Whole, kind, without));
    assert_eq!(wanted(product, "x: 1").2, None);
    let slice = spec::GpuPart::Slice("1g.10gb+me".to_owned());
    assert_eq!(wanted("", "nvidia.com/mig-1g.10gb.me: 2"), (2, slice, None, without));
    let share = spec::GpuPart::Share { memory: crate::ids::Bytes::mib(20_000), over: spec::ShareOver::Stop };
    assert_eq!(wanted("", "nvidia.com/gpu: 1, nvidia.com/gpumem: 20000"), (1, share, None, without));
    // Parts of what is counted are refused, as Kubernetes itself does.
    for (limits, field) in [
        ("nvidia.com/gpu: 500m", "nvidia.com/gpu"),
        ("nvidia.com/gpu: 1500m", "nvidia.com/gpu"),
        ("nvidia.com/mig-1g.10gb: 1.5", "nvidia.com/mig-1g.10gb"),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 20000.5", "nvidia.com/gpumem"),
    ] {
        let refused = refusal(&pod("", limits));
        assert!(refused.contains(field) && refused.contains("only whole numbers"), "{limits}: {refused}");
    }
    assert_eq!(wanted("", "nvidia.com/gpu: 2000m").0, 2, "no part of one");
}
