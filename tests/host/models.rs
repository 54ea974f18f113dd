//! What runs leave in `/model`: published whole, described, and seen by other jobs.

use std::fs;

use super::support::{Instance, text, wait_for};

#[test]
fn a_model_tells_where_it_comes_from_and_other_jobs_see_it() {
    let test = "a_model_tells_where_it_comes_from_and_other_jobs_see_it";
    let Some(instance) = Instance::start(test, "") else { return };
    let (code, data) = (instance.mount().join("code/train"), instance.mount().join("datasets/numbers"));
    fs::create_dir_all(&code).unwrap();
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("one"), "1").unwrap();
    fs::write(code.join("train.sh"), "echo $TRAINYARD_RUN > /model/weights\n").unwrap();
    let job = "code = \"train\"\ndatasets = [\"numbers\"]\ncommand = \"sh train.sh\"\nparams.lr = 1e-4\n";
    assert_eq!(instance.run_job("train", job)["state"], "succeeded");
    let models = instance.mount().join("models/train");
    let about = |run: &str| -> toml::Table {
        fs::read_to_string(models.join(run).join("MODEL.toml")).unwrap().parse().unwrap()
    };
    let first = about("latest");
    assert_eq!((first["job"].as_str(), first["run"].as_integer()), (Some("train"), Some(1)));
    assert_eq!(first["spec"].as_str(), Some(job));
    let role = &first["effective"]["roles"]["main"];
    assert_eq!(role["command"].as_str(), Some("/bin/sh -c 'sh train.sh --lr=1e-4'"), "{first}");
    assert_eq!(
        (role["count"].as_integer(), role["memory"].as_str(), role["cpu"].as_float()),
        (Some(1), Some("1GiB"), Some(1.0))
    );
    assert_eq!(first["datasets"][0].as_str(), Some("numbers"));
    assert_eq!(first["images"]["host"].as_str(), Some(""));
    assert!(first["started"].as_str() <= first["ended"].as_str() && first["started"].as_str() > Some("2020"));
    assert!(first["metrics"]["main-0"]["elapsed_s"].as_float().unwrap() > 0.0, "{first}");
    let tree = |about: &toml::Table| about["code"]["code"]["tree"].as_str().unwrap().to_owned();
    assert!(tree(&first).starts_with("sha256:"));
    // The same code has the same hash, other code another one; `latest` follows.
    instance.ok(&["rerun", "train"]);
    instance.wait_end("train", 2);
    assert_eq!((tree(&about("2")), fs::read_link(models.join("latest")).unwrap()), (tree(&first), "2".into()));
    fs::write(code.join("more"), "").unwrap();
    instance.ok(&["rerun", "train"]);
    instance.wait_end("train", 3);
    assert_ne!(tree(&about("3")), tree(&first));
    // As inputs: one run's, the newest one's.
    let tune = "datasets = [\"model:train@1\", \"base=model:train\"]\n\
                command = \"cat /dataset/train/weights /dataset/base/weights; touch /dataset/base/x; cp /dataset/base/weights /model/\"";
    let report = instance.run_job("tune", tune);
    let log = instance.log("tune", "main-0");
    assert!(log.starts_with("1\n3\n") && log.contains("Read-only file system"), "{report:#} {log}");
    let tuned = fs::read_to_string(instance.mount().join("models/tune/1/MODEL.toml")).unwrap();
    assert!(tuned.contains("model:train@1") && tuned.contains("model:train@3"), "the version that it was: {tuned}");
    let report = instance.run_job("early", "datasets = [\"model:nobody\"]\ncommand = \"true\"");
    assert!(text(&report["reason"]).contains("job nobody of this workspace has left no model yet"), "{report:#}");
    // What a job is to leave which comes first is chosen when that is over, also where there is code to be made ready.
    instance.drop_job(
        "follows",
        "after = [\"first\"]\ncode = \"train\"\ndatasets = [\"model:first\"]\ncommand = \"cat /dataset/w\"",
    );
    wait_for("its links", || instance.mount().join("jobs/by-state/waiting/follows").exists().then_some(()));
    instance.run_job("first", "command = \"echo first > /model/w\"");
    let report = instance.wait_end("follows", 1);
    assert_eq!((text(&report["state"]), instance.log("follows", "main-0")), ("succeeded".into(), "first\n".into()));
    instance.shutdown();
}

#[test]
fn models_go_by_model_rm_unless_a_job_uses_them() {
    let test = "models_go_by_model_rm_unless_a_job_uses_them";
    let Some(instance) = Instance::start(test, "") else { return };
    instance.run_job("train", "command = \"echo $TRAINYARD_RUN > /model/w\"");
    instance.ok(&["rerun", "train"]);
    instance.wait_end("train", 2);
    let models = instance.mount().join("models/train");
    // Both are in use: the newest by a job that waits, the other one by its number.
    for (job, model) in [("tune", "model:train"), ("serve", "model:train@1")] {
        instance.drop_job(job, &format!("state = \"held\"\ndatasets = [\"{model}\"]\ncommand = \"true\""));
        wait_for("its links", || instance.mount().join("jobs/by-state/held").join(job).exists().then_some(()));
        let runs = instance.root().join("var/lib/trainyard/workspaces/default/jobs").join(job).join("runs");
        wait_for("its choice", || runs.join(".1.models").exists().then_some(()));
    }
    let refused = instance.cli(&["model", "rm", "train@1", "train@2", "train@3"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(4), "{why}");
    for part in [
        "train@1 is used, or will be, by a job that is not over (job serve)",
        "(job tune)",
        "there is no model train@3",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let error = fs::remove_dir_all(&models).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS));
    instance.ok(&["stop", "tune"]);
    wait_for("it to be over", || instance.mount().join("jobs/by-state/stopped/tune").exists().then_some(()));
    // The kernel keeps what it has seen of a model, and not by whose name that goes.
    assert!(fs::metadata(models.join("2/w")).is_ok());
    assert_eq!(instance.ok(&["model", "rm", "train@2"]), "removed model train@2\n");
    assert!(fs::metadata(models.join("2/w")).is_err(), "it is gone at once");
    assert_eq!(fs::read_link(models.join("latest")).unwrap(), std::path::Path::new("1"));
    assert_eq!(fs::read_to_string(models.join("latest/w")).unwrap(), "1\n");
    assert!(!models.join("2").exists() && !instance.run_dir("train", 2).join("model").exists());
    // Models of what is waited for are chosen when the run begins.
    instance.drop_job("gate", "state = \"held\"\ncommand = \"true\"");
    let eval = "after = [\"train\", \"gate\"]\ndatasets = [\"model:train@1\"]\ncommand = \"true\"";
    instance.drop_job("eval", eval);
    instance.wait_state("eval", "waiting");
    wait_for("what it waits for", || instance.ok(&["status", "eval"]).contains("gate").then_some(()));
    instance.ok(&["stop", "serve"]);
    wait_for("it to be over", || instance.mount().join("jobs/by-state/stopped/serve").exists().then_some(()));
    let refused = instance.cli(&["model", "rm", "train@1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("(job eval)"), "{refused:?}");
    instance.shutdown();
}

#[test]
fn what_a_run_has_written_is_input_of_other_jobs_and_of_its_next_run() {
    let test = "what_a_run_has_written_is_input_of_other_jobs_and_of_its_next_run";
    let Some(instance) = Instance::start(test, "") else { return };
    // The first run finds nothing, each next one the steps of the one before.
    let steps = "datasets = [\"last=output:steps\"]\n\
                 command = \"ls -A /dataset; cat /dataset/steps > /output/steps; echo $TRAINYARD_RUN >> /output/steps; exit 1\"";
    assert_eq!(instance.run_job("steps", steps)["state"], "failed");
    for run in 2..=3 {
        instance.ok(&["rerun", "steps"]);
        instance.wait_end("steps", run);
    }
    let output = instance.mount().join("jobs/steps/runs/3/output/steps");
    assert_eq!(fs::read_to_string(output).unwrap(), "1\n2\n3\n");
    // Of another job: the newest, whatever its end, or the one that is named.
    let look = "datasets = [\"new=output:steps\", \"old=output:steps@1\"]\n\
                command = \"cat /dataset/new/steps /dataset/old/steps; touch /dataset/new/x; touch /model/there\"";
    instance.run_job("look", look);
    let log = instance.log("look", "main-0");
    assert!(log.starts_with("1\n2\n3\n1\n") && log.contains("Read-only file system"), "{log}");
    let about = fs::read_to_string(instance.mount().join("models/look/1/MODEL.toml")).unwrap();
    assert!(about.contains("output:steps@3") && about.contains("output:steps@1"), "{about}");
    let report = instance.run_job("early", "datasets = [\"output:nobody\"]\ncommand = \"true\"");
    assert!(text(&report["reason"]).contains("job nobody of this workspace has left no output yet"), "{report:#}");
    instance.drop_job("wrong", "datasets = [\"output:steps@best\"]\ncommand = \"true\"");
    let report = instance.wait_state("wrong", "invalid");
    assert!(
        report.to_string().contains("the versions of output:steps are the numbers of its job's runs"),
        "{report:#}"
    );
    instance.shutdown();
}

#[test]
fn what_a_failed_run_leaves_is_no_model_and_stays_with_the_run() {
    let test = "what_a_failed_run_leaves_is_no_model_and_stays_with_the_run";
    let Some(instance) = Instance::start(test, "") else { return };
    // From attempt to attempt it goes on; the last one fails as well.
    let command = "command = \"echo x >> /model/weights; exit 1\"\nretries = 1\n";
    assert_eq!(instance.run_job("fails", command)["attempt"], 2);
    let run = instance.mount().join("jobs/fails/runs/1");
    assert_eq!(fs::read_to_string(run.join("model.partial/weights")).unwrap(), "x\nx\n");
    assert!(!run.join("model").exists() && !instance.mount().join("models/fails").exists());
    instance.drop_job("stopped", "command = \"echo x > /model/weights; touch /output/there; sleep 600\"");
    wait_for("its file", || instance.run_dir("stopped", 1).join("output/there").exists().then_some(()));
    instance.ok(&["stop", "stopped"]);
    instance.wait_end("stopped", 1);
    assert!(instance.mount().join("jobs/stopped/runs/1/model.partial/weights").exists());
    instance.shutdown();
}

#[test]
fn numbers_of_a_training_are_collected_from_event_files_and_lines() {
    let test = "numbers_of_a_training_are_collected_from_event_files_and_lines";
    let Some(instance) = Instance::start(test, "") else { return };
    // Event files as TensorBoard's writers make them, told by the writer's host.
    let script = r#"
import os, socket, struct
def crc(data):
    sum = 0xffffffff
    for byte in data:
        sum ^= byte
        for _ in range(8):
            sum = (sum >> 1) ^ (0x82f63b78 if sum & 1 else 0)
    sum ^= 0xffffffff
    return struct.pack('<I', (((sum >> 15) | (sum << 17)) + 0xa282ead8) & 0xffffffff)
def record(data):
    length = struct.pack('<Q', len(data))
    return length + crc(length) + data + crc(data)
def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data
def event(step, tag, value):
    scalar = field(1, tag) + b'\x15' + struct.pack('<f', value)
    return b'\x09' + struct.pack('<d', 1.5) + bytes([0x10, step]) + field(5, field(1, scalar))
os.makedirs('/output/tb/run', exist_ok=True)
index = int(os.environ['TRAINYARD_TASK_INDEX'])
with open('/output/tb/run/events.out.tfevents.1.%s.7' % socket.gethostname(), 'wb') as file:
    for step in (1, 2, 3):
        file.write(record(event(step, b'loss', 0.1 * step + index)))
        print('epoch %d: acc=%.2f' % (step, step / 4), flush=True)
open('/model/weights', 'w').write('x')
"#;
    let job = format!(
        "command = [\"/usr/bin/python3\", \"-c\", {}]\n[scalars]\nlog_dir = \"/output/tb\"\n\
         lines = 'epoch (?<step>\\d+): acc=(?<acc>\\S+)'\n[roles.worker]\ncount = 2\nresources.cpu = 0.5\n",
        toml::Value::String(script.to_owned())
    );
    let report = instance.run_job("trains", &job);
    assert_eq!(report["state"], "succeeded", "{report:#}\n{}", instance.log("trains", "worker-0"));
    let attempt = instance.mount().join("jobs/trains/latest/attempts/1");
    let rows = |task: &str| {
        let text = fs::read_to_string(attempt.join(task).join("scalars.csv")).unwrap();
        assert!(text.starts_with("step,tag,value,time\n"), "{text}");
        let row = |line: &str| line.rsplit_once(',').unwrap().0.to_owned();
        let mut rows: Vec<String> = text.lines().skip(1).map(row).collect();
        rows.sort();
        rows
    };
    assert_eq!(rows("worker-0"), ["1,acc,0.25", "1,loss,0.1", "2,acc,0.5", "2,loss,0.2", "3,acc,0.75", "3,loss,0.3"]);
    assert_eq!(rows("worker-1")[1], "1,loss,1.1", "each has its own");
    let model = instance.mount().join("models/trains/1/MODEL.toml");
    let model = wait_for("the model", || fs::read_to_string(&model).ok());
    let model: toml::Table = model.parse().unwrap();
    let last = &model["scalars"]["worker-0"]["loss"];
    assert_eq!((last["step"].as_integer(), last["value"].as_float()), (Some(3), Some(0.3)));
    // What is looked at as it is written does not keep a task from being stopped.
    let noisy = "command = \"yes 1\"\nstop_grace = \"1s\"\n[scalars]\nlines = '(?<a>\\d+)'\n";
    instance.drop_job("noisy", noisy);
    instance.wait_state("noisy", "running");
    instance.ok(&["stop", "noisy"]);
    assert_eq!(instance.wait_end("noisy", 1)["state"], "stopped");
    instance.shutdown();
}
