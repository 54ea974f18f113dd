use super::*;

#[test]
fn a_volcano_job_is_written_like_this() {
    let job = only(VCJOB);
    assert_eq!(
        job.toml,
        r#"# Imported from a job of Volcano.
# not carried: spec.tasks[1].template.spec.volumes[0].hostPath: "seq", mounted at /mnt/seq: put the files into the workspace's datasets/NAME and write datasets = ["NAME"], or results into /output
# not carried: spec.tasks[1].template.spec.containers[0].env[1].valueFrom: POD_IP is filled in by Kubernetes; set it in [env] or in the command
# not carried: spec.tasks[1].dependsOn: all tasks of a job start together here; let the command wait for the others
# not carried: spec.queue: one machine has one queue; the job file's directory says which workspace, priority which place

image = "lab/mpi:1"
contract = "volcano"
framework = "mpi"
retries = 3

[roles.mpimaster]
main = true
command = '''
cd '/home' || exit
mpiexec hello
'''

[roles.mpimaster.resources]
cpu = 0.5
memory = "100MB"

[roles.mpiworker]
count = 2

[roles.mpiworker.env]
A = "1"

[roles.mpiworker.resources]
cpu = 1
memory = "2GiB"
shm = "1GiB"
gpu = 1

[extras]
labels = { team = "vision" }
"#
    );
    assert_eq!(role(&spec_of(&job), "mpimaster").main, Main::Role);
}

#[test]
fn volcano_jobs_that_its_admission_refuses_are_refused() {
    let cases = [
        (
            VCJOB.replace("name: mpiworker", "name: mpimaster"),
            "`spec.tasks[1].name` \"mpimaster\" is the name of another task of this job",
        ),
        (
            VCJOB.replace("minAvailable: 3", "minAvailable: 4"),
            "`spec.minAvailable` is 4, more than the 3 replicas of all tasks",
        ),
        (VCJOB.replace("PodEvicted", "PodFailed"), "`spec.policies[1].event` PodFailed has an action already"),
    ];
    for (text, wanted) in cases {
        assert!(refusal(&text).ends_with(wanted), "{}", refusal(&text));
    }
}

#[test]
fn policies_without_a_counterpart_and_partial_gangs_are_named() {
    let text = VCJOB
        .replace("PodEvicted, action: RestartJob", "PodPending, action: RestartTask")
        .replace("minAvailable: 3", "minAvailable: 1");
    let job = only(&text);
    for wanted in ["spec.policies[0]", "spec.minAvailable"] {
        assert!(fields(&job).contains(&wanted), "{:?}", fields(&job));
    }
}

#[test]
fn how_often_a_failed_task_starts_the_job_anew_is_carried() {
    let of_job = "    - {event: PodFailed, action: RestartJob}\n";
    let retries = |max: &str, of_job_now: &str, of_tasks: [&str; 2]| {
        let [first, second] = of_tasks.map(|rule| format!("      policies: [{rule}]\n"));
        let text = VCJOB
            .replace("  queue: gold\n", max)
            .replace(of_job, of_job_now)
            .replace("      policies: [{event: TaskCompleted, action: CompleteJob}]\n", &first)
            .replace("      name: mpiworker\n", &format!("      name: mpiworker\n{second}"));
        let job = only(&text);
        let told = job.losses.iter().filter(|loss| loss.why.contains("anew") || loss.why.contains("→"));
        (spec_of(&job).retries, told.map(|loss| loss.field.clone()).collect::<Vec<_>>())
    };
    let (seven, failed) = ("  maxRetry: 7\n", "{event: PodFailed, action: RestartJob}");
    let any = "    - {event: \"*\", action: RestartJob}\n";
    for (max, of_job, of_tasks, wanted, told) in [
        (seven, of_job, ["", ""], 7, vec![]),
        ("  maxRetry: 0\n", of_job, ["", ""], 3, vec![]),
        (seven, "", [failed, failed], 7, vec![]),
        ("", "", [failed, failed], 3, vec![]),
        (seven, "", [failed, ""], 7, vec!["spec.tasks"]),
        (seven, of_job, ["{event: PodFailed, action: AbortJob}", ""], 7, vec!["spec.tasks"]),
        (seven, any, ["", ""], 7, vec!["spec.policies[1]"]),
        (seven, "", ["", ""], 0, vec!["spec.maxRetry"]),
    ] {
        let told: Vec<_> = told.into_iter().map(str::to_owned).collect();
        assert_eq!(retries(max, of_job, of_tasks), (wanted, told), "{max}{of_job}{of_tasks:?}");
    }
}

#[test]
fn what_kubernetes_puts_into_commands_a_shell_puts_in_here() {
    let job = |command: &str| {
        only(
            &VCJOB
                .replace("plugins: {ssh: [], svc: [], env: [], mpi: []}", "plugins: {svc: [], env: []}")
                .replace("command: [sshd]\n              args: [-D]", command)
                .replace(
                    "{name: A, value: \"1\"}",
                    "{name: A, value: \"it's\"}\n                - {name: B, value: $(A) $$ $(B)}
                - {name: LOG-DIR, value: /l $$(x)}
                - {name: POD.IP, value: before}
                - {name: POD.IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
                - {name: C, value: $(POD.IP)}",
                ),
        )
    };
    let told = |job: &Imported| {
        let of_worker = |field: &&str| {
            field.contains("tasks[1]")
                && !field.contains("hostPath")
                && !field.contains("valueFrom")
                && !field.contains("dependsOn")
        };
        fields(job)
            .into_iter()
            .filter(of_worker)
            .map(|field| field.rsplit_once("containers[0].").unwrap().1.to_owned())
            .collect::<Vec<_>>()
    };
    let shell = |line: &str| Command::Shell(line.to_owned());
    let exec = |words: &[&str]| Command::Exec(words.iter().map(|word| (*word).to_owned()).collect());
    for (written, wanted, lost) in [
        // What the contract and the file give; the rest is text, also for a shell.
        (
            "command: [python, \"--hosts=$(VC_MPIWORKER_HOSTS)\"]\n              args: [\"a b $(A)\", \"$HOME\"]",
            shell("exec python --hosts=\"${VC_MPIWORKER_HOSTS}\" 'a b '\"${A}\" '$HOME'"),
            0,
        ),
        (
            "command: [sh, -c, \"run --rank $(VC_TASK_INDEX) at $(date) $$(date)\"]",
            shell("exec /bin/sh -c 'run --rank '\"${VC_TASK_INDEX}\"' at $(date) $(date)'"),
            0,
        ),
        ("command: [sh, -c, \"run at $(date) $$HOME\"]", shell("run at $(date) $HOME"), 0),
        // What nothing gives.
        ("command: [sh, -c, \"run --rank $(RANK) $(POD_IP)\"]", shell("run --rank $(RANK) $(POD_IP)"), 2),
        ("command: [run, $(Rank), \"$(Rank)\", \"$(open\"]", exec(&["run", "$(Rank)", "$(Rank)", "$(open"]), 1),
        ("workingDir: /d\n              command: [run, $(A)]", shell("cd '/d' || exit\nexec run \"${A}\""), 0),
        // What a shell has no name for.
        ("command: [run, \"--to=$(LOG-DIR)\"]", exec(&["run", "--to=/l $(x)"]), 0),
        ("command: [sh, -c, \"run > $(LOG-DIR)\"]", shell("run > /l $(x)"), 0),
        ("command: [run, $(LOG-DIR), $(A)]", shell("exec run '/l $(x)' \"${A}\""), 0),
        ("command: [sh, -c, \"run $(POD.IP)\"]", shell("run $(POD.IP)"), 1),
    ] {
        let job = job(written);
        let spec = spec_of(&job);
        assert_eq!(role(&spec, "mpiworker").command, wanted, "{}", job.toml);
        let mut losses = vec!["env[1].value", "env[5].value"];
        losses.extend(["command"].repeat(lost));
        assert_eq!(told(&job), losses, "{:?}", job.losses);
        assert!(job.losses.iter().any(|loss| loss.why.contains("POD.IP comes from elsewhere")), "{:?}", job.losses);
        assert!(role(&spec, "mpiworker").env.contains(&("B".to_owned(), "it's $ $(B)".to_owned())), "{}", job.toml);
    }
}

#[test]
fn tasks_that_volcano_starts_again_are_started_again_by_themselves() {
    let retries = |max_retry: &str, restart: &str| {
        let text = VCJOB
            .replace("      name: mpiworker\n", &format!("      name: mpiworker\n{max_retry}"))
            .replace("          volumes:\n", &format!("{restart}          volumes:\n"));
        let job = only(&text);
        let told: Vec<_> = job.losses.iter().filter(|loss| loss.why.contains("roles.mpiworker")).collect();
        (role(&spec_of(&job), "mpiworker").retries, told.iter().map(|loss| loss.field.clone()).collect::<Vec<_>>())
    };
    let (on_failure, never) = ("          restartPolicy: OnFailure\n", "          restartPolicy: Never\n");
    let (of_task, of_pod) = ("spec.tasks[1].maxRetry", "spec.tasks[1].template.spec.restartPolicy");
    for (max_retry, restart, wanted, told) in [
        ("      maxRetry: 2\n", "", 2, None),
        ("      maxRetry: 2\n", on_failure, 2, None),
        ("      maxRetry: 0\n", on_failure, 3, None),
        ("      maxRetry: 2\n", never, 0, Some(of_task)),
        ("      maxRetry: 5000\n", on_failure, 1000, Some(of_task)),
        ("      maxRetry: -1\n", "", 0, Some(of_task)),
        ("      maxRetry: -1\n", on_failure, 0, Some(of_pod)),
        ("", on_failure, 0, Some(of_pod)),
        ("      maxRetry: 2\n", "          restartPolicy: Always\n", 2, Some(of_pod)),
    ] {
        let told = told.map(str::to_owned).into_iter().collect();
        assert_eq!(retries(max_retry, restart), (wanted, told), "{max_retry}{restart}");
    }
}

#[test]
fn the_master_of_volcanos_pytorch_stands_first() {
    let task = |name: &str| {
        format!(
            "    - {{replicas: 1, name: {name}, template: {{spec: {{containers: [{{image: i, command: [x], resources: {{limits: {{cpu: 1, memory: 1Gi}}}}}}]}}}}}}\n"
        )
    };
    let head = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: t}\nspec:\n  plugins:\n    svc: []\n    pytorch: ";
    let job = |arguments: &str| only(&format!("{head}{arguments}\n  tasks:\n{}{}{}", task("v"), task("w"), task("m")));
    let order = |job: &Imported| spec_of(job).roles.iter().map(|role| role.name.to_string()).collect::<Vec<_>>();
    for arguments in ["[--master=m, --worker=w, --port=23456]", "[-master, m]"] {
        let job = job(arguments);
        assert_eq!((order(&job), fields(&job)), (["m", "v", "w"].map(str::to_owned).to_vec(), vec![]), "{arguments}");
    }
    assert_eq!(spec_of(&job("[--port, 1234]")).roles[0].env, [("MASTER_PORT".to_owned(), "1234".to_owned())]);
    for arguments in ["[--master=x]", "[--worker=x]", "[--elastic]"] {
        let job = job(arguments);
        assert_eq!((order(&job)[0].as_str(), fields(&job)), ("v", vec!["spec.plugins.pytorch"]), "{arguments}");
    }
    let doubled: String = (1..40).map(|n| format!(", {{name: V{n}, value: $(V{})$(V{})}}", n - 1, n - 1)).collect();
    let task = format!(
        "{{name: w, template: {{spec: {{containers: [{{image: i, command: [x], env: [{{name: V0, value: xxxxxxxx}}{doubled}]}}]}}}}}}"
    );
    let text =
        format!("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: m}}\nspec: {{tasks: [{task}]}}\n");
    let job = only(&text);
    assert!(job.toml.len() < 1 << 20 && job.losses[0].why.contains("too long"), "{}", job.toml.len());
}
