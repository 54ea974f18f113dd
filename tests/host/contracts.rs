//! Every shipped example runs: each is a script in the idiom of its platform that looks for what that platform promises.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::support::images::small;
use super::support::{Instance, has_tools, text, wait_for};

fn examples() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs.d/examples");
    let mut out: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    out.sort();
    out
}

#[test]
fn every_platform_s_script_finds_what_its_platform_promises() {
    let test = "every_platform_s_script_finds_what_its_platform_promises";
    let config = "[limits]\ncpu = 64\nmemory = \"64GiB\"\n[network]\nrange = \"10.213.0.0/16\"\n";
    let Some(instance) = Instance::start(test, config) else { return };
    let space = instance.root().join("var/lib/trainyard/workspaces/default");
    fs::create_dir_all(space.join("datasets/numbers")).unwrap();
    fs::write(space.join("datasets/numbers/part-0.csv"), "1,2,3\n").unwrap();
    let examples = examples();
    assert!(examples.len() >= 30, "{}", examples.len());
    for chunk in examples.chunks(4) {
        for (name, text) in chunk {
            assert!(text.contains("state = \"held\""), "{name} would start by itself");
            instance.drop_job(name, &text.replace("state = \"held\"\n", ""));
        }
        for (name, _) in chunk {
            let report = instance.wait_end(name, 1);
            let logs = || instance.cli(&["logs", name]);
            assert_eq!(report["state"], "succeeded", "{name}: {report:#}\n{:?}", logs());
        }
    }
    for (name, text) in &examples {
        // What each leaves is kept, wherever its platform lets it write.
        let kept = if text.contains("/model") || text.contains("MODEL") {
            instance.mount().join("models").join(name).join("1")
        } else {
            instance.run_dir(name, 1).join("output")
        };
        wait_for(&format!("what {name} has left in {}", kept.display()), || {
            fs::read_dir(&kept).is_ok_and(|mut entries| entries.next().is_some()).then_some(())
        });
    }
    for (name, tasks) in [("google", 2), ("google-vertex", 3)] {
        let checkpoints = instance.run_dir(name, 1).join("output/checkpoints");
        assert_eq!(fs::read_dir(&checkpoints).unwrap().count(), tasks, "{name}: each task's is kept");
    }
    instance.shutdown();
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::Ipv4Addr>().is_ok()
}

#[test]
fn platforms_do_around_a_script_what_they_promise() {
    let test = "platforms_do_around_a_script_what_they_promise";
    let config = "[limits]\ncpu = 64\nmemory = \"64GiB\"\n";
    let Some(instance) = Instance::start(test, config) else { return };
    let space = instance.root().join("var/lib/trainyard/workspaces/default");
    // The script's own word on its failure, of this attempt and not of an earlier one.
    let job = |command: &str| format!("contract = \"sagemaker\"\ncommand = '{command}'\n");
    let why = |name: &str, command: &str| instance.run_job(name, &job(command))["tasks"][0]["reason"].to_string();
    let told = why("told", "printf %2000s x | tr \" \" y > /opt/ml/output/failure; exit 3");
    assert!(told.contains("exited with code 3") && told.contains("it says in output/failure: yyy"), "{told}");
    assert!(told.matches('y').count() < 1200, "1024 characters at most: {told}");
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret").unwrap();
    fs::File::options()
        .write(true)
        .open(secret.path())
        .unwrap()
        .set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(3600))
        .unwrap();
    let elsewhere = why("elsewhere", &format!("ln -s {} /opt/ml/output/failure; exit 3", secret.path().display()));
    assert!(!elsewhere.contains("secret"), "{elsewhere}");
    let escapes = why("escapes", "printf \"a\\033[31mb\\nc\" > /opt/ml/output/failure; exit 3");
    assert!(escapes.contains("a [31mb c"), "{escapes}");
    let older = why("older", "echo old > /opt/ml/output/failure; touch -d 2020-01-01 /opt/ml/output/failure; exit 3");
    assert!(!older.contains("old"), "{older}");
    assert_eq!(instance.run_job("good", &job("true"))["state"], "succeeded");
    assert!(instance.run_dir("good", 1).join("output/success").exists());
    assert!(!instance.run_dir("told", 1).join("output/success").exists());

    // What the last run has left is where the next one goes on.
    let go_on = "contract = \"uai\"\ncommand = 'cat /data/output/epoch; echo x >> /data/output/epoch; true'\n";
    instance.run_job("resumes", go_on);
    instance.ok(&["rerun", "resumes"]);
    assert_eq!(instance.wait_end("resumes", 2)["state"], "succeeded");
    assert_eq!(fs::read_to_string(instance.run_dir("resumes", 2).join("output/epoch")).unwrap(), "x\nx\n");
    assert_eq!(fs::read_to_string(instance.run_dir("resumes", 1).join("output/epoch")).unwrap(), "x\n", "its own");
    let predownload =
        "contract = \"modelarts\"\nresume = true\ncommand = 'cat $train_url/epoch; echo x >> $train_url/epoch #'\n";
    instance.run_job("predownload", predownload);
    instance.ok(&["rerun", "predownload"]);
    let report = instance.wait_end("predownload", 2);
    assert!(report["state"] == "succeeded" && instance.log("predownload", "main-0") == "x\n", "{report:#}");
    let parts = "contract = \"pai\"\ncommand = 'ls /ml/output /ml/output/checkpoints; touch /ml/output/x /ml/output/checkpoints/c'\n";
    instance.run_job("parts", parts);
    instance.ok(&["rerun", "parts"]);
    instance.wait_end("parts", 2);
    let output = instance.run_dir("parts", 2).join("output");
    let log = instance.log("parts", "main-0");
    assert!(log.contains("\nc\n") && output.join("checkpoints/c").exists(), "{log}");
    assert!(!log.contains("x\n"), "checkpoints alone: {log}");

    // A channel of one file is told by that file.
    for (name, files) in [("one", &["a.csv"][..]), ("two", &["a.csv", "b.csv"])] {
        fs::create_dir_all(space.join("datasets").join(name)).unwrap();
        files.iter().for_each(|file| fs::write(space.join("datasets").join(name).join(file), "1\n").unwrap());
    }
    let inputs = "contract = \"pai\"\ndatasets = [\"one\", \"two\"]\ncommand = 'echo $PAI_INPUT_ONE $PAI_INPUT_TWO'\n";
    instance.run_job("inputs", inputs);
    assert_eq!(instance.log("inputs", "main-0"), "/ml/input/data/one/a.csv /ml/input/data/two\n");

    // A script that asks for more nodes than there may be runs with those, sees how many, and its owner reads why.
    let asks = "contract = \"uai\"\nmax_nodes = 2\ncommand = 'echo $UAI_HOSTS $TRAINYARD_WORKER_COUNT #'\n\
                [roles.worker]\ncount = 8\nresources = { cpu = 0.1, memory = \"128MiB\" }\n";
    let report = instance.run_job("asks", asks);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(report["tasks"].as_array().unwrap().len(), 2);
    let told = instance.log("asks", "worker-1");
    let hosts = told.strip_suffix(" 2\n").unwrap_or_else(|| panic!("{told}"));
    assert!(hosts.split(',').count() == 2 && hosts.split(',').all(is_address), "{hosts}");
    let cut = "role worker has 2 of the 8 tasks that it asks for: `max_nodes` is 2";
    assert!(instance.ok(&["events", "asks"]).contains(cut) && instance.ok(&["status", "asks"]).contains(cut));

    // Parameter servers beside each node, of a TensorFlow that tells what it was asked for.
    fs::create_dir_all(space.join("code/ps")).unwrap();
    let tensorflow = "class distribute:\n    class Server:\n        def __init__(self, cluster, kind, index):\n            \
                      open(f'/data/output/{kind}-{index}', 'w').write(cluster['ps'][index])\n        def join(self):\n            \
                      import time; time.sleep(1000)\n";
    fs::write(space.join("code/ps/tensorflow.py"), tensorflow).unwrap();
    let wait = "contract = \"uai\"\nframework = \"tensorflow\"\ncode = \"ps\"\nmax_duration = \"50s\"\n\
                command = 'until [ -s /data/output/ps-0 ] && [ -s /data/output/ps-1 ]; do sleep 0.05; done #'\n\
                [roles.worker]\ncount = 2\n";
    let report = instance.run_job("servers", wait);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let output = instance.run_dir("servers", 1).join("output");
    let server = fs::read_to_string(output.join("ps-1")).unwrap();
    assert!(server.strip_suffix(":2223").is_some_and(is_address), "{server}");
    instance.shutdown();
}

/// Names that no shell can set, among the variables of the program that a job's command starts.
const SEEN: &str = "import os; print(*sorted(name for name in os.environ if not name.isidentifier()), sep=chr(10))";

#[test]
fn a_program_sees_variables_that_no_shell_can_name_whatever_starts_it() {
    let test = "a_program_sees_variables_that_no_shell_can_name_whatever_starts_it";
    if !has_tools(test, &["umoci", "busybox"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\ncpu = 64\nmemory = \"64GiB\"\n") else { return };
    let space = instance.root().join("var/lib/trainyard/workspaces/default");
    fs::create_dir_all(space.join("datasets/numbers")).unwrap();
    fs::write(space.join("datasets/numbers/part-0.csv"), "1,2,3\n").unwrap();
    fs::create_dir_all(space.join("code/c")).unwrap();
    fs::write(space.join("code/c/t.py"), SEEN).unwrap();
    fs::write(space.join("code/c/t.sh"), format!("#!/bin/bash\npython3 -c '{SEEN}'\n")).unwrap();
    let by_command = format!("command = 'python3 -c \"{SEEN}\" #'\n");
    let [by_python, by_program] =
        ["t.py", "t.sh"].map(|name| format!("code = \"c\"\nparams.sagemaker_program = \"{name}\"\n"));
    let sagemaker = "contract = \"sagemaker\"\ndatasets = [\"train-data=numbers\"]\nparams.batch-size = 1\n";
    let of_sagemaker = ["SM_CHANNEL_TRAIN-DATA", "SM_HP_BATCH-SIZE"];
    let openpai = "contract = \"openpai\"\nroles.\"a.b\".count = 1\n";
    for (name, contract, command, task, wanted) in [
        ("command", sagemaker, &by_command, "main-0", &of_sagemaker[..]),
        ("script", sagemaker, &by_python, "main-0", &of_sagemaker),
        ("program", sagemaker, &by_program, "main-0", &of_sagemaker),
        ("openpai", openpai, &by_command, "a.b-0", &["PAI_HOST_IP_a.b_0", "PAI_TASK_ROLE_TASK_COUNT_a.b"]),
        ("own", "env.\"A-B\" = \"1\"\n", &by_command, "main-0", &["A-B"]),
    ] {
        let report = instance.run_job(name, &format!("{command}{contract}"));
        let log = instance.log(name, task);
        assert_eq!(report["state"], "succeeded", "{name}: {report:#}\n{log}");
        assert!(wanted.iter().all(|wanted| log.lines().any(|line| line == *wanted)), "{name}: {log}");
    }
    assert!(!instance.ok(&["events", "command"]).contains("no bash"));
    // What is shown is what runs.
    assert!(instance.ok(&["show", "own", "--effective"]).contains("runs: /bin/bash -c "));
    // Without bash: told, and by an array they are all there.
    let dir = tempfile::tempdir().unwrap();
    let image = small(dir.path(), &[], |root| std::os::unix::fs::symlink("/bin/busybox", root.join("bin/sh")).unwrap());
    let poor = format!("image = {image:?}\n{openpai}");
    let report = instance.run_job("poor", &format!("command = \"/bin/busybox env\"\n{poor}"));
    let log = instance.log("poor", "a.b-0");
    assert_eq!(report["state"], "succeeded", "{report:#}\n{log}");
    assert!(log.contains("PAI_TASK_ROLE_LIST=a.b\n") && !log.contains("PAI_HOST_IP_a.b_0="), "{log}");
    let told = "role a.b: its image has no bash, so /bin/sh runs the command, and may drop variables";
    assert!(instance.ok(&["events", "poor"]).contains(told), "{}", instance.ok(&["events", "poor"]));
    let report = instance.run_job("array", &format!("command = [\"/bin/busybox\", \"env\"]\n{poor}"));
    let log = instance.log("array", "a.b-0");
    assert!(report["state"] == "succeeded" && log.contains("\nPAI_HOST_IP_a.b_0="), "{report:#}\n{log}");
    assert!(!instance.ok(&["events", "array"]).contains("no bash"));
    instance.shutdown();
}

/// Writes into each directory that a variable names, beside the code, and where a platform lets scripts write without a variable;
/// tells where that cannot be done.
const WRITES: &str = r#"
/bin/busybox env > /tmp/told
while IFS="=" read -r name value; do
    case "$value" in /?*) ;; *) continue ;; esac
    [ -d "$value" ] || continue
    (: > "$value/of-$name") 2> /dev/null || echo "cannot write into $name, $value"
done < /tmp/told
# Arena starts above the code.
code=.; [ -d sub ] || code=code
for place in "$code" "$code/sub"; do (: > "$place/beside") 2> /dev/null || echo "cannot write beside the code, $place"; done
if [ -d /cache ]; then /bin/busybox mkdir /cache/data && (: > /cache/data/x) || echo "cannot write into /cache"; fi
"#;

#[test]
fn whoever_a_script_runs_as_it_writes_where_its_platform_lets_it() {
    let test = "whoever_a_script_runs_as_it_writes_where_its_platform_lets_it";
    if !has_tools(test, &["umoci", "busybox"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\ncpu = 64\nmemory = \"64GiB\"\n") else { return };
    let space = instance.root().join("var/lib/trainyard/workspaces/default");
    fs::create_dir_all(space.join("datasets/numbers")).unwrap();
    fs::write(space.join("datasets/numbers/part-0.csv"), "1,2,3\n").unwrap();
    fs::create_dir_all(space.join("code/c/sub")).unwrap();
    // The owner's own, as code mostly is: a snapshot keeps whose it is.
    chown(space.join("code/c/sub"), Some(4321), Some(4322)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = small(dir.path(), &["--config.user=1000:100"], |root| {
        std::os::unix::fs::symlink("/bin/busybox", root.join("bin/sh")).unwrap();
        fs::create_dir(root.join("tmp")).unwrap();
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    });
    let listed = instance.ok(&["contract", "ls", "--json"]);
    let contracts: Vec<String> = listed
        .lines()
        .map(|line| text(&serde_json::from_str::<serde_json::Value>(line).unwrap()["contract"]))
        .filter(|contract| contract != "native")
        .collect();
    assert!(contracts.len() > 20, "{listed}");
    for by_file in [false, true] {
        for contract in &contracts {
            let name = format!("{}-{by_file}", contract.replace('/', "-"));
            // An output of Azure's is there as well.
            let output =
                if contract == "azureml" { "(: > ${{outputs.model}}/x) || echo cannot write an output" } else { "" };
            let (image, user) = match by_file {
                false => (image.as_str(), ""),
                true => ("host", "user = \"1000:1000\"\n"),
            };
            let job = format!(
                "contract = \"{contract}\"\nimage = {image:?}\n{user}code = \"c\"\ndatasets = [\"numbers\"]\n\
                 command = [\"/bin/sh\", \"-c\", {:?}]\n",
                format!("{WRITES}{output}")
            );
            let file = instance.jobs_d().join(format!(".{name}.new"));
            fs::write(&file, job).unwrap();
            chown(&file, Some(4321), Some(4322)).unwrap();
            fs::rename(file, instance.jobs_d().join(format!("{name}.toml"))).unwrap();
        }
    }
    // What is given to a script to be read, and what is of its image.
    let is_to_be_read = |line: &str| {
        let places = [
            "/dataset",
            "/input",
            "/opt/ml/input",
            "/ml/input",
            "/gcs/numbers",
            "/data/data",
            "/home/work/data",
            "/mnt/input",
            "/home/ma-user/modelarts/inputs",
        ];
        let at = line.rsplit(", ").next().unwrap_or_default();
        places.iter().any(|place| at.starts_with(place)) || ["/root", "/", "/pai/code"].contains(&at)
    };
    for by_file in [false, true] {
        for contract in &contracts {
            let name = format!("{}-{by_file}", contract.replace('/', "-"));
            let report = instance.wait_end(&name, 1);
            let log = instance.log(&name, "main-0");
            assert_eq!(report["state"], "succeeded", "{name}: {report:#} {log}");
            // Arena's code lies in root's home, which this machine's image keeps closed to others.
            let is_closed = |line: &str| by_file && contract == "kubeflow/arena" && line.contains("beside the code");
            let lines: Vec<&str> = log.lines().filter(|line| !is_to_be_read(line) && !is_closed(line)).collect();
            assert_eq!(lines, [""; 0], "{name}: {log}");
            let mut open = vec![instance.run_dir(&name, 1).join("output")];
            while let Some(path) = open.pop() {
                let found = fs::symlink_metadata(&path).unwrap();
                assert_eq!((found.uid(), found.gid()), (4321, 4322), "{}", path.display());
                if found.is_dir() {
                    open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                }
            }
        }
    }
    instance.shutdown();
}
