//! Jobs from several files: overrides, templates, and the verbs that write them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use super::support::{BINARY, Instance, has_tools, text, wait_for};

const DDP: &str = "command = \"echo ${word} $HOME_IS; sleep ${seconds}\"\nenv.HOME_IS = \"${HOME}\"\n\
                   [template]\ndescription = \"says a word\"\n[template.params.word]\nhelp = \"what to say\"\n\
                   [template.params.seconds]\ndefault = 0\nmax = 1000\n";

fn put(instance: &Instance, name: &str, content: &str) {
    let path = instance.jobs_d().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let stem = name.strip_suffix(".toml").unwrap();
    instance.drop_job(stem, content);
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_edited_template_acts_on_later_runs_only() {
    let Some(mut instance) = Instance::start("an_edited_template_acts_on_later_runs_only", "") else { return };
    put(&instance, "say.template.toml", DDP);
    instance.drop_job("job", "template = \"say\"\nwith = { word = \"one\" }");
    assert_eq!(instance.wait_end("job", 1)["state"], "succeeded");
    assert_eq!(instance.log("job", "main-0").trim(), "one ${HOME}");
    let spec = fs::read_to_string(instance.run_dir("job", 1).join("spec.toml")).unwrap();
    assert!(
        spec.starts_with("# Put together from say.template.toml, job.toml\n") && spec.contains("echo one"),
        "{spec}"
    );
    put(&instance, "say.template.toml", &DDP.replace("echo", "echo again"));
    wait_for("the new template", || instance.ok(&["show", "job"]).contains("echo again one").then_some(()));
    // Neither the edit nor a restart, at which all files are read anew, runs the job again.
    instance.kill_daemon();
    instance.restart_daemon();
    instance.run_job("other", "command = \"true\"");
    assert_eq!(instance.report("job").unwrap()["run"], 1);
    instance.ok(&["rerun", "job"]);
    assert_eq!(instance.wait_end("job", 2)["state"], "succeeded");
    assert_eq!(instance.log("job", "main-0").trim(), "again one ${HOME}");
    let old = fs::read_to_string(instance.run_dir("job", 1).join("spec.toml")).unwrap();
    assert_eq!(old, spec, "earlier runs stay as they were");
    instance.drop_job("job", "template = \"say\"\nwith = { word = \"two\" }");
    assert_eq!(instance.wait_end("job", 3)["state"], "succeeded");
}

#[test]
fn an_edited_spec_acts_on_later_runs_only() {
    let size = |memory: &str| {
        format!(
            "[workspaces.default.specs.small]\ncpu = 0.1\nmemory = \"{memory}\"\nprice = 0.25\ndescription = \"for a look\"\n"
        )
    };
    let Some(mut instance) = Instance::start("an_edited_spec_acts_on_later_runs_only", &size("128MiB")) else { return };
    let listed = instance.ok(&["spec", "ls"]);
    for part in ["small", "128MiB", "0.25", "for a look"] {
        assert!(listed.contains(part), "{listed}");
    }
    fs::create_dir(instance.jobs_d().join("vision")).unwrap();
    assert!(instance.ok(&["spec", "ls", "-w", "vision"]).starts_with("no specs;"));
    let tell =
        "command = \"cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || true\"";
    instance.drop_job("job", &format!("{tell}\nresources.spec = \"small\""));
    assert_eq!(instance.wait_end("job", 1)["state"], "succeeded");
    assert!(instance.ok(&["show", "job", "--effective"]).contains("memory = \"128MiB\""));
    let check = instance.jobs_d().join("job.toml").display().to_string();
    assert!(instance.ok(&["check", "--effective", &check]).contains("cpu = 0.1, memory = \"128MiB\""));
    // It acts when the daemon is started again, at which all files are read anew.
    instance.kill_daemon();
    fs::write(instance.root().join("etc/trainyard/trainyard.toml"), size("192MiB")).unwrap();
    instance.restart_daemon();
    instance.run_job("other", "command = \"true\"");
    assert_eq!(instance.report("job").unwrap()["run"], 1, "what only the configuration has changed runs nothing again");
    let run = |number| fs::read_to_string(instance.run_dir("job", number).join("spec.toml")).unwrap();
    assert!(run(1).contains("\"128MiB\"") && !run(1).contains("spec ="), "{}", run(1));
    instance.ok(&["rerun", "job"]);
    assert_eq!(instance.wait_end("job", 2)["state"], "succeeded");
    assert!(run(2).contains("\"192MiB\"") && run(1).contains("\"128MiB\""), "{}", run(2));
    instance.drop_job("wrong", "command = \"true\"\nresources.spec = \"smal\"");
    wait_for("the error", || {
        let told = instance.report("wrong")?["diagnostics"].to_string();
        told.contains("did you mean \\\\\\\"small")
            .then_some(())
            .or_else(|| told.contains("did you mean").then_some(()))
    });
}

#[test]
fn a_template_s_error_shows_and_clears_and_its_jobs_stay_as_they_were() {
    let Some(instance) = Instance::start("a_template_s_error_shows_and_clears_and_its_jobs_stay_as_they_were", "")
    else {
        return;
    };
    put(&instance, "say.template.toml", DDP);
    instance.drop_job("job", "template = \"say\"\n[with]\nword = \"x\"\nseconds = 1000");
    instance.wait_state("job", "running");
    put(&instance, "say.template.toml", "comand = 1\n[template]");
    let error = || fs::read_to_string(instance.mount().join("jobs/job/error")).unwrap_or_default();
    wait_for("the error", || error().contains("say.template.toml:1:1: unknown key `comand`").then_some(()));
    assert!(stderr(&instance.cli(&["ps"])).contains("ignored: say.template.toml:1:1"));
    assert_eq!(instance.state("job"), "running");
    fs::remove_file(instance.jobs_d().join("say.template.toml")).unwrap();
    wait_for("the template to be missed", || {
        error().contains("job.toml:1:12: there is no template \"say\"").then_some(())
    });
    assert!(instance.ok(&["events", "job"]).contains("its last good version stays in force"));
    put(&instance, "say.template.toml", DDP);
    wait_for("the error to go", || error().is_empty().then_some(()));
    let report = instance.report("job").unwrap();
    assert_eq!((text(&report["state"]), report["run"].as_u64()), ("running".into(), Some(1)));
    // What the template says of running jobs is for later runs, what the job says itself acts at once.
    put(&instance, "say.template.toml", &format!("max_duration = \"1s\"\n{DDP}"));
    wait_for("the new limit", || instance.ok(&["show", "job"]).contains("max_duration").then_some(()));
    instance.run_job("other", "command = \"true\"");
    assert_eq!(instance.state("job"), "running");
    instance.drop_job("job", "template = \"say\"\nmax_duration = \"1s\"\n[with]\nword = \"x\"\nseconds = 1000");
    assert_eq!(instance.wait_end("job", 1)["state"], "failed", "timed out");
    instance.drop_job("wrong", "template = \"say\"\n[with]\nseconds = \"long\"");
    let reason = text(&instance.wait_state("wrong", "invalid")["reason"]);
    assert!(reason.contains("wrong.toml:1:12: template \"say\" needs `with.word` (what to say)"), "{reason}");
}

#[test]
fn overrides_act_as_edits_of_the_job_file() {
    let Some(instance) = Instance::start("overrides_act_as_edits_of_the_job_file", "") else { return };
    fs::create_dir(instance.jobs_d().join("v")).unwrap();
    put(&instance, "v/job.toml", "command = \"echo $A $B\"\n[env]\nA = \"1\"\nB = \"1\"\n");
    instance.wait_end("v/job", 1);
    put(&instance, "v/job.toml.d/20-b.toml", "env.A = \"2\"\nenv.B = \"2\"");
    instance.wait_end("v/job", 2);
    put(&instance, "v/job.toml.d/10-a.toml", "env.A = \"3\"\nenv.B = \"3\"");
    put(&instance, "v/job.toml.d/20-b.toml", "env.B = \"2\"");
    wait_for("both", || (instance.log("v/job", "main-0").trim() == "3 2").then_some(()));
    let run = instance.report("v/job").unwrap()["run"].as_u64().unwrap();
    put(&instance, "v/job.toml.d/10-a.toml", "\n\nretrys = 1");
    let error = wait_for("the error", || {
        let diagnostics = instance.report("v/job")?["diagnostics"].to_string();
        diagnostics.contains("retrys").then_some(diagnostics)
    });
    assert!(error.contains("v/job.toml.d/10-a.toml") && error.contains("\"line\":3"), "{error}");
    assert_eq!(instance.report("v/job").unwrap()["run"].as_u64(), Some(run), "the last good version stays in force");
    fs::remove_dir_all(instance.jobs_d().join("v/job.toml.d")).unwrap();
    assert_eq!(instance.wait_end("v/job", run + 1)["state"], "succeeded");
    assert_eq!(instance.log("v/job", "main-0").trim(), "1 1");
}

#[test]
fn templates_are_listed_shown_saved_copied_and_removed() {
    let Some(instance) = Instance::start("templates_are_listed_shown_saved_copied_and_removed", "") else { return };
    put(&instance, "say.template.toml", DDP);
    instance.drop_job("plain", "command = \"echo plain\"\nstate = \"stopped\"\n");
    instance.ok(&["template", "save", "plain", "saved"]);
    instance.ok(&["template", "copy", "say", "speak"]);
    let names = |arguments: &[&str]| -> Vec<String> {
        let listed = instance.ok(arguments);
        listed.lines().map(|line| text(&serde_json::from_str::<serde_json::Value>(line).unwrap()["template"])).collect()
    };
    assert_eq!(names(&["--json", "template", "ls"]), ["saved", "say", "speak"]);
    assert_eq!(names(&["--json", "template", "ls", "WORD"]), ["say", "speak"]);
    assert_eq!(names(&["--json", "template", "ls", "spk"]), ["speak"]);
    // Whose they are, and when they were changed; an hour ago is set, not waited for.
    let speak = fs::File::options().write(true).open(instance.jobs_d().join("speak.template.toml")).unwrap();
    speak.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    let saved = instance.jobs_d().join("saved.template.toml");
    chown(&saved, Some(12_345), None).unwrap();
    let ls = |filter: &[&str]| names(&[&["--json", "template", "ls"], filter].concat());
    assert_eq!(ls(&["--since", "30m"]), ["saved", "say"]);
    assert_eq!(ls(&["--until", "30m"]), ["speak"]);
    assert_eq!(ls(&["--user", "12345"]), ["saved"]);
    assert_eq!(ls(&["--user", "12345", "say"]), <Vec<String>>::new(), "all of it is true of what is listed");
    assert!(stderr(&instance.cli(&["template", "ls", "--user", "nobody-here"])).contains("no user \"nobody-here\""));
    let long = instance.ok(&["template", "ls", "--long", "saved"]);
    assert!(long.contains("CHANGED") && long.contains("12345"), "{long}");
    chown(&saved, Some(0), None).unwrap();
    let shown = instance.ok(&["template", "show", "say"]);
    for part in ["say: says a word", "(must be given)", "what to say", "at most 1000", "[template.params.word]"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    instance.ok(&["new", "fresh", "--template", "saved"]);
    assert_eq!(instance.wait_end("fresh", 1)["state"], "succeeded", "state is not saved");
    let refused = instance.cli(&["template", "rm", "saved", "none", "speak"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(stderr(&refused).contains("there is no template none"));
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "saved: removed\nspeak: removed\n");
    assert_eq!(instance.log("fresh", "main-0").trim(), "plain", "what ran stays");
}

#[test]
fn jobs_are_made_of_templates_and_of_other_jobs() {
    let Some(instance) = Instance::start("jobs_are_made_of_templates_and_of_other_jobs", "") else { return };
    put(&instance, "say.template.toml", DDP);
    let file = |name: &str| instance.jobs_d().join(name);
    for (arguments, code, expected) in [
        (&["seconds=1"][..], 1, "needs `with.word`"),
        (&["word=x", "seconds=2000"], 1, "must be at most 1000"),
        (&["word=x", "seconds=soon"], 1, "takes an integer"),
        (&["wrod=x"], 2, "no parameter \"wrod\"; it has word, seconds"),
    ] {
        let values = arguments.iter().flat_map(|value| ["-p", value]);
        let all: Vec<&str> = ["new", "job", "--template", "say"].into_iter().chain(values).collect();
        let refused = instance.cli(&all);
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}");
        assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
        assert!(!file("job.toml").exists());
    }
    instance.ok(&["new", "job", "--template", "say", "-p", "word=a \"b\"", "-p", "seconds=0"]);
    assert_eq!(instance.wait_end("job", 1)["state"], "succeeded");
    let written = fs::read_to_string(file("job.toml")).unwrap();
    assert_eq!(written, "# says a word\ntemplate = \"say\"\n\n[with]\nword = 'a \"b\"'\nseconds = 0\n");
    let again = instance.cli(&["new", "job", "--template", "say", "-p", "word=c"]);
    assert!(stderr(&again).contains("is there already"));
    put(&instance, "job.toml.d/1.toml", "with.word = \"over\"");
    instance.wait_end("job", 2);
    instance.ok(&["clone", "job", "twin"]);
    assert_eq!(instance.wait_end("twin", 1)["state"], "succeeded");
    assert_eq!(instance.log("twin", "main-0").trim(), "over ${HOME}");
    assert_eq!(fs::read_to_string(file("twin.toml")).unwrap(), written);
    assert!(stderr(&instance.cli(&["clone", "job", "twin"])).contains("is there already"));
    instance.ok(&["clone", "job", "later", "--held"]);
    instance.wait_state("later", "held");
    // What is over goes with its file and its overrides, as their owner.
    instance.ok(&["rm", "--file", "twin"]);
    assert!(!file("twin.toml").exists() && !file("twin.toml.d").exists() && instance.report("twin").is_none());
    assert!(stderr(&instance.cli(&["rm", "--file", "later"])).contains("`trainyard stop later` first"));
    assert!(file("later.toml").exists(), "a job that is not over keeps it");
    assert!(instance.ok(&["show", "job", "--effective"]).contains("runs: /bin/sh -c 'echo over"));
    let path = |path: &Path| path.display().to_string();
    assert!(instance.ok(&["show", "--file", "--effective", &path(&file("job.toml"))]).contains("echo over"));
    instance.ok(&["check", &path(&file("job.toml")), &path(&file("say.template.toml"))]);
    fs::write(file("job.toml.d/1.toml"), "with.seconds = -1\nwith.word = 1").unwrap();
    let found = instance.cli(&["check", &path(&file("job.toml"))]);
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.contains("job.toml.d/1.toml:2:13: `with.word`: is 1, but takes a string"), "{found}");
}

#[test]
fn a_job_goes_out_as_json_and_comes_back_the_same() {
    let Some(instance) = Instance::start("a_job_goes_out_as_json_and_comes_back_the_same", "") else { return };
    // `z` before `a`: arguments are in the order of the file, also by way of JSON.
    let text = "command = \"echo\"\nextras = { ticket = \"ML-12\", list = [1, 2.5] }\n[params]\nz = 0.5\na = [\"x y\", true]\n\
                [roles.worker]\ncount = 2\nresources.memory = \"128MiB\"\n";
    instance.run_job("one", text);
    let shown: serde_json::Value = serde_json::from_str(&instance.ok(&["show", "one", "--json"])).unwrap();
    assert_eq!((shown["spec"].as_str(), &shown["keys"]["roles"]["worker"]["count"]), (Some(text), &2.into()));
    // As it was printed: a value would forget the order.
    let printed = instance.ok(&["show", "one", "--json"]);
    let keys = printed.split_once("\"keys\":").unwrap().1.trim_end().strip_suffix('}').unwrap();
    let file = instance.root().join("two.json");
    fs::write(&file, keys).unwrap();
    let from = file.display().to_string();
    instance.ok(&["new", "two", "--from", &from]);
    assert_eq!(instance.wait_end("two", 1)["state"], "succeeded");
    let effective = |job: &str| instance.ok(&["show", job, "--effective"]);
    assert_eq!(effective("one"), effective("two"));
    // Pasted over it, as JSON or TOML; what is wrong is told with its place, and changes nothing.
    let before = fs::read_to_string(instance.jobs_d().join("two.toml")).unwrap();
    for (wrong, expected) in [
        ("{\"command\": \"true\",\n \"retries\": }", "line 2, column 13: not JSON: expected value"),
        ("{\"command\": \"true\", \"env\": null}", "line 1, column 21: `env` is null"),
        ("{\"comand\": \"true\"}", "two.json:1:2: unknown key `comand`; did you mean `command`?"),
        ("{\"roles\":\n {\"w\": {\"count\": 0}}}", "two.json:2:9: `roles.w.count`: is 0"),
        ("command = 1\nretries = x", "two.json:2:"),
    ] {
        fs::write(&file, wrong).unwrap();
        let refused = instance.cli(&["new", "two", "--from", &from, "--replace"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains(expected), "{wrong}: {}", stderr(&refused));
    }
    assert_eq!(fs::read_to_string(instance.jobs_d().join("two.toml")).unwrap(), before);
    // What TOML has no number for is a text, and told.
    fs::write(&file, "{\"command\": \"true\",\n \"params\": {\"seed\": 123456789012345678901234567890}}").unwrap();
    let large = instance.cli(&["new", "large", "--from", &from, "--dry-run"]);
    assert!(String::from_utf8_lossy(&large.stdout).contains("seed = \"123456789012345678901234567890\""), "{large:?}");
    assert!(stderr(&large).contains("two.json:2: params.seed: is a larger number"), "{}", stderr(&large));
    fs::write(&file, "{\"command\": \"echo over\"}").unwrap();
    assert!(stderr(&instance.cli(&["new", "two", "--from", &from])).contains("is there already"));
    instance.ok(&["new", "two", "--from", &from, "--replace"]);
    instance.wait_end("two", 2);
    assert_eq!(instance.log("two", "main-0"), "over\n");
    // Whose job it is does not change by the way.
    chown(instance.jobs_d().join("two.toml"), Some(65534), None).unwrap();
    let refused = instance.cli(&["new", "two", "--from", &from, "--replace"]);
    assert!(stderr(&refused).contains("belongs to user 65534"), "{}", stderr(&refused));
}

/// What a terminal shows of `trainyard` with these arguments while these lines are typed, in a directory.
fn at_terminal(instance: &Instance, directory: &Path, arguments: &str, typed: &[&str]) -> String {
    let line = format!("{BINARY} --root {} {arguments}", instance.root().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(directory);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // Open until it has ended: who asks has not come to its end because nothing more is typed.
    input.write_all(format!("{}\n", typed.join("\n")).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

#[test]
fn new_asks_at_a_terminal_for_what_a_template_or_a_job_takes() {
    let test = "new_asks_at_a_terminal_for_what_a_template_or_a_job_takes";
    if !has_tools(test, &["script"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let here = instance.root();
    put(&instance, "say.template.toml", DDP);
    // Parameters, each with its sentence; what cannot be is told and asked again.
    let shown = at_terminal(&instance, here, "new said --template say", &["", "hello", "1001", "0", "s"]);
    for part in ["word – what to say", "[must be given]", "integer; at most 1000 [0]", "must be at most 1000"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(instance.wait_end("said", 1)["state"], "succeeded");
    assert!(instance.log("said", "main-0").starts_with("hello "));
    // Keys of a job, with the table's own sentences.
    let basic = [
        "",
        "nothing much",
        "",
        "echo $LR $0",
        "lr=0.5",
        "",
        "",
        "work=2",
        "",
        "",
        "",
        "0.1",
        "50MB",
        "100MB",
        "",
        "t",
        "say",
        "kept",
    ];
    let shown = at_terminal(&instance, here, "new mine", &basic);
    let explained = instance.ok(&["explain", "resources.memory", "--json"]);
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    for part in [
        "say [none]",
        "command – What each task runs",
        explained["help"].as_str().unwrap(),
        "[\"1GiB\"]",
        "100MB to 1024TiB",
        "say.template.toml is there already",
        "kept: saved",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("strategy") && !shown.contains("stop_grace"), "{shown}");
    assert_eq!(instance.report("mine"), None);
    let kept = instance.ok(&["template", "show", "kept"]);
    for part in ["nothing much", "memory = \"100MB\"", "lr = 0.5", "count = 2"] {
        assert!(kept.contains(part), "{part}: {kept}");
    }
    // All keys, and a file that nothing runs: Enter alone starts nothing. And nothing at all.
    let mut advanced = vec![""; 100];
    advanced[0] = "kept";
    advanced.push("f");
    let shown = at_terminal(&instance, here, "new off --advanced", &advanced);
    assert!(shown.contains("stop_grace – ") && shown.contains("env.* – "), "{shown}");
    assert_eq!(fs::read_to_string(here.join("off.toml")).unwrap(), "template = \"kept\"\n");
    assert_eq!(instance.report("off"), None);
    let shown = at_terminal(&instance, here, "new none --template say", &["hello", "", "q"]);
    assert!(shown.contains("nothing was written") && instance.report("none").is_none(), "{shown}");
    // Without a terminal nobody is asked.
    let output = instance.cli(&["new", "none"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--template"), "{}", stderr(&output));
    instance.shutdown();
}

#[test]
fn who_makes_a_job_is_told_what_check_tells_and_what_cannot_run_is_not_written() {
    let test = "who_makes_a_job_is_told_what_check_tells_and_what_cannot_run_is_not_written";
    let Some(instance) = Instance::start(test, "[limits]\ncpu = 16\nmemory = \"16GiB\"\n") else { return };
    instance.make_workspace("vision", 0, 0o755);
    let directory = tempfile::tempdir().unwrap();
    let from = |text: &str| {
        let file = directory.path().join("from.toml");
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let job = |name: &str| instance.jobs_d().join(format!("{name}.toml"));
    let open = from("state = \"held\"\ncommand = \"echo 'a\"\n");
    let warned = instance.cli(&["new", "open", "--from", &open]);
    assert_eq!(warned.status.code(), Some(0), "{}", stderr(&warned));
    assert!(stderr(&warned).contains("of `command` is not closed") && job("open").exists(), "{}", stderr(&warned));
    let warned = instance.cli(&["clone", "open", "twin"]);
    assert!(warned.status.success() && stderr(&warned).contains("of `command` is not closed"), "{}", stderr(&warned));
    let large = from("state = \"held\"\ncommand = \"true\"\nresources.cpu = 1000\n");
    let refused = instance.cli(&["new", "large", "--from", &large]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("1000 cpu of 16") && !job("large").exists(), "{}", stderr(&refused));
    // What it is made of is looked for where it comes to lie.
    put(&instance, "vision/own.template.toml", "command = \"echo ${word}\"\n[template.params.word]\n");
    put(&instance, "vision/mine.toml", "state = \"held\"\ntemplate = \"own\"\nwith.word = \"a\"\n");
    put(&instance, "vision/mine.toml.d/1.toml", "with.word = \"b\"\n");
    let refused = instance.cli(&["clone", "vision/mine", "mine"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("template") && !job("mine").exists(), "{}", stderr(&refused));
    assert!(!instance.jobs_d().join("mine.toml.d").exists());
    instance.ok(&["clone", "vision/mine", "vision/other"]);
    assert!(job("vision/other").exists());
    // At a terminal as well.
    if !has_tools(test, &["script"]) {
        return;
    }
    let typed = [&["", "", "", "echo 'b"][..], &[""; 8], &["s"]].concat();
    let shown = at_terminal(&instance, directory.path(), "new asked", &typed);
    assert!(shown.contains("of `command` is not closed") && job("asked").exists(), "{shown}");
    instance.shutdown();
}
