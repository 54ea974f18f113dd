//! What the command line shows, at 80 and 120 columns, as files: `INSTA_UPDATE=always` writes them anew, and a change is looked at.

use std::fs;
use std::process::Command;

use super::support::{BINARY, Instance, has_tools, wait_for};

const CONFIG: &str = "[limits]\ncpu = 1\nmemory = \"1GiB\"\nstop_grace = \"1s\"\n[specs.small]\ncpu = 0.5\nmemory = \"512MiB\"\nprice = 0.25\n\
                      description = \"for a look\"\n[workspaces.default]\nstorage = \"unlimited\"\n";

/// Times are as wide as they were; what else differs from run to run is named.
fn masked(instance: &Instance, text: &str) -> String {
    let time = regex::Regex::new(r"\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]*Z?").unwrap();
    let text = text.replace(&instance.root().display().to_string(), "ROOT");
    time.replace_all(&text, |found: &regex::Captures<'_>| {
        found[0].chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect::<String>()
    })
    .into_owned()
}

fn screen(instance: &Instance, columns: u16, arguments: &[&str]) -> String {
    let output = Command::new(BINARY)
        .arg("--root")
        .arg(instance.root())
        .args(arguments)
        .env("COLUMNS", columns.to_string())
        .env_remove("TRAINYARD_ROOT")
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let told = if err.is_empty() { String::new() } else { format!("--- standard error\n{err}") };
    masked(instance, &format!("{out}{told}--- {}\n", output.status))
}

/// What the doctor looks at, and how it tells of it; what it finds is the machine's.
fn of_any_machine(screen: &str) -> String {
    let finding = regex::Regex::new(r"(?m)^([a-z-]+ +)(ok|warning|failed) +\S.*\n(?:  +\S.*\n)*").unwrap();
    let text = finding.replace_all(screen, "${1}LEVEL    FOUND, AND ADVICE\n");
    let sum = regex::Regex::new(r"(?s)\d+ ok, \d+ warning\(s\), \d+ failed\n.*exit status: [01]\n$").unwrap();
    sum.replace(&text, "COUNT ok, COUNT warning(s), COUNT failed\n").into_owned()
}

#[test]
fn screens_are_as_they_were_at_80_and_120_columns() {
    let test = "screens_are_as_they_were_at_80_and_120_columns";
    let Some(instance) = Instance::start(test, CONFIG) else { return };
    let all = "command = \"sleep infinity\"\nresources = { cpu = 1, memory = \"128MiB\" }\n";
    instance.drop_job("holds", &format!("{all}max_duration = \"10h\"\n"));
    instance.wait_state("holds", "running");
    instance.drop_job("waits", &format!("description = \"等待一个核\"\n{all}"));
    instance.wait_state("waits", "waiting");
    instance
        .drop_job("训练-图像分类", "description = \"图像分类，两个 worker\"\ncommand = \"true\"\nstate = \"held\"\n");
    instance.wait_state("训练-图像分类", "held");
    instance.drop_job("wrong", "comand = \"true\"\n[roles.w]\ncuont = 2\n");
    instance.wait_state("wrong", "invalid");
    let template = "command = \"train --lr ${lr}\"\n[template]\ndescription = \"数据并行训练\"\n[template.params.lr]\ndefault = 0.1\n";
    fs::write(instance.jobs_d().join("ddp.template.toml"), template).unwrap();
    let draft = instance.mount().join("datasets/手写数字/draft");
    fs::create_dir_all(&draft).unwrap();
    fs::write(draft.join("a"), "a").unwrap();
    instance.ok(&["dataset", "publish", "手写数字", "v1"]);
    let manifest = instance.mount().join("datasets/手写数字/v1.MANIFEST");
    wait_for("the version", || fs::read_to_string(&manifest).ok()?.contains("# state complete").then_some(()));
    let file = instance.root().join("file.toml");
    fs::write(&file, "comand = \"true\"\n[roles.worker]\ncount = 0\n").unwrap();
    let file = file.display().to_string();
    let screens: [(&str, &[&str]); 23] = [
        ("ps", &["ps", "--state", "waiting,held,invalid"]),
        ("ps_wide", &["ps", "-o", "wide", "--state", "waiting,held,invalid"]),
        ("ps_names", &["ps", "-q"]),
        ("ps_none", &["ps", "nothing-like-this"]),
        ("status_held", &["status", "训练-图像分类"]),
        ("status_invalid", &["status", "wrong"]),
        ("status_unknown", &["status", "unknown"]),
        ("events", &["events", "训练-图像分类"]),
        ("queue", &["queue"]),
        ("model_ls", &["model", "ls"]),
        ("model_show", &["model", "show", "nothing@3"]),
        ("secret_ls", &["secret", "ls"]),
        ("dataset_ls", &["dataset", "ls"]),
        ("dataset_show", &["dataset", "show", "手写数字"]),
        ("dataset_verify", &["dataset", "verify", "手写数字"]),
        ("dataset_verify_unknown", &["dataset", "verify", "手写数字@v2"]),
        ("doctor_some", &["doctor", "config", "root", "alerts"]),
        ("doctor_unknown", &["doctor", "quota", "nonsense"]),
        ("template_ls", &["template", "ls"]),
        ("spec_ls", &["spec", "ls"]),
        ("image_ls", &["image", "ls"]),
        ("check", &["check", &file]),
        ("explain", &["explain", "roles.*.count"]),
    ];
    for columns in [80, 120] {
        for (name, arguments) in &screens {
            insta::assert_snapshot!(format!("{name}_{columns}"), screen(&instance, columns, arguments));
        }
        insta::assert_snapshot!(format!("doctor_{columns}"), of_any_machine(&screen(&instance, columns, &["doctor"])));
    }
    lists_take_the_same_forms(&instance);
    what_there_is_not_is_told_with_what_to_do_next(&instance);
    changes_are_told_as_they_were(&instance);
    what_would_be_done_is_said_and_not_done(&instance);
    instance.ok(&["stop", "holds", "waits"]);
    instance.shutdown();
}

/// `-o` and `-q`, whatever is listed.
fn lists_take_the_same_forms(instance: &Instance) {
    let with = |verb: &[&str], more: &[&str]| instance.ok(&[verb, more].concat());
    let lists: [(&[&str], &str, &str); 9] = [
        (&["ps"], "job,state,run,submitted,user,time,why", "holds\nwaits\nwrong\n训练-图像分类\n"),
        (&["queue"], "place,job,starts by,since,user,needs,for what", "waits\n"),
        (&["dataset", "ls"], "name,kind,latest,versions", "手写数字\n"),
        (&["template", "ls"], "template,changed,user,parameters,description", "ddp\n"),
        (&["spec", "ls"], "spec,cpu,memory,gpu,shm,price/h,description", "small\n"),
        (&["model", "ls"], "model,appeared,path", ""),
        (&["secret", "ls"], "workspace,name", ""),
        (&["token", "ls"], "token,user,scopes,workspaces,created,expires", ""),
        (&["workspace"], "workspace,used,quota,use%,held by,running,waiting", "default\n"),
    ];
    for (verb, head, names) in lists {
        assert_eq!(
            (with(verb, &["-q"]), with(verb, &["-o", "names"])),
            (names.to_owned(), names.to_owned()),
            "{verb:?}"
        );
        let csv = with(verb, &["-o", "csv"]);
        assert_eq!((csv.lines().next(), csv.lines().count()), (Some(head), names.lines().count() + 1), "{verb:?}");
        assert!(csv.lines().all(|line| line.split(',').count() >= head.split(',').count()), "{csv}");
        assert!(with(verb, &["-o", "wide"]).lines().count() > 0);
        // What runs or waits differs from call to call.
        if verb.last() == Some(&"ls") {
            assert_eq!(with(verb, &["-o", "json"]), with(verb, &["--json"]), "{verb:?}");
        }
    }
    for verb in [&["image", "ls"][..], &["gpu"], &["usage"], &["contract", "ls"], &["events"]] {
        assert!(with(verb, &["-o", "csv"]).lines().next().unwrap().contains(','), "{verb:?}");
        with(verb, &["-q"]);
    }
    let events = |more: &[&str]| with(&["events"], more).lines().count();
    assert!(events(&["holds", "--since", "1h"]) > 1 && events(&["--since", "1h"]) > events(&["holds"]));
    assert_eq!((events(&["holds", "--until", "1h"]), events(&["--until", "1h"])), (0, 0));
    let of_all = with(&["events"], &["--after", "1", "-q"]);
    assert_eq!(events(&["holds", "--after", "1", "-q"]), of_all.matches("default/holds\n").count());
}

fn changes_are_told_as_they_were(instance: &Instance) {
    let brought = instance.root().join("手写");
    fs::create_dir(&brought).unwrap();
    fs::write(brought.join("train.csv"), "1,2\n").unwrap();
    let brought = brought.display().to_string();
    let secret = regex::Regex::new(r"(?m)^[!-~]{30,}$").unwrap();
    for columns in [80, 120] {
        let dataset = format!("图像-{columns}");
        let version = format!("{dataset}@v1");
        let screens: [(&str, &[&str]); 5] = [
            ("dataset_import", &["dataset", "import", &brought, &dataset]),
            ("dataset_publish", &["dataset", "publish", &dataset, "v1"]),
            ("dataset_rm", &["dataset", "rm", &version]),
            ("token_new", &["token", "new", "ci", "--scope", "read"]),
            ("token_rm", &["token", "rm", "ci"]),
        ];
        for (name, arguments) in screens {
            let shown = screen(instance, columns, arguments);
            insta::assert_snapshot!(format!("{name}_{columns}"), secret.replace_all(&shown, "SECRET"));
        }
    }
}

/// By every verb that takes a name.
fn what_there_is_not_is_told_with_what_to_do_next(instance: &Instance) {
    let verbs: [&[&str]; 47] = [
        &["status", "nope"],
        &["logs", "nope"],
        &["logs", "nope-0", "holds"],
        &["events", "nope"],
        &["exec", "nope", "--", "true"],
        &["exec", "holds", "nope-0", "--", "true"],
        &["exec", "训练-图像分类", "--", "true"],
        &["cp", "nope:/x", "x"],
        &["cp", "waits:/x", "x"],
        &["cp", "/nofile", "holds:/x"],
        &["stop", "nope"],
        &["restart", "nope"],
        &["rerun", "nope"],
        &["extend", "nope", "2h"],
        &["send", "nope"],
        &["rm", "nope"],
        &["wait", "nope"],
        &["show", "nope"],
        &["show", "--file", "/nofile"],
        &["new", "x", "--template", "nope"],
        &["new", "x", "--from", "/nofile"],
        &["clone", "nope", "x"],
        &["template", "show", "nope"],
        &["template", "save", "nope", "x"],
        &["template", "copy", "nope", "x"],
        &["template", "rm", "nope"],
        &["image", "show", "nope"],
        &["image", "tag", "nope", "x"],
        &["image", "rm", "nope"],
        &["image", "import", "/nofile"],
        &["dataset", "show", "nope"],
        &["dataset", "import", "/nofile", "x"],
        &["dataset", "publish", "nope", "v1"],
        &["dataset", "verify", "nope"],
        &["dataset", "rm", "nope@v1"],
        &["dataset", "rm", "手写数字@v9"],
        &["model", "show", "nope"],
        &["model", "rm", "nope@1"],
        &["secret", "rm", "nope"],
        &["token", "rm", "nope"],
        &["workspace", "nope"],
        &["check", "/nofile.toml"],
        &["contract", "show", "nope"],
        &["import", "/nofile"],
        &["export", "--openpai", "nope"],
        &["explain", "nope"],
        &["restore", "/nofile"],
    ];
    let without_a_next_step = verbs.iter().filter_map(|verb| {
        let output = instance.cli(verb);
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let steps = ["`trainyard ", "`ls`", "; there are ", "; its tasks are "];
        let has = steps.iter().any(|step| told.contains(step));
        (output.status.success() || !has || told.contains("os error")).then(|| format!("{verb:?}: {told}"))
    });
    assert_eq!(without_a_next_step.collect::<String>(), "");
    // What there is not is told by its exit code as well, but by `exec`, whose codes are its command's.
    let of_nothing = verbs.iter().filter(|verb| verb[0] != "exec" && verb.iter().any(|word| word.starts_with("nope")));
    let others = of_nothing.filter(|verb| instance.cli(verb).status.code() != Some(4)).collect::<Vec<_>>();
    assert_eq!(others, Vec::<&&[&str]>::new());
}

#[test]
fn lists_are_narrowed_to_a_workspace_and_what_is_not_there_is_told_with_where_to_look() {
    let test = "lists_are_narrowed_to_a_workspace_and_what_is_not_there_is_told_with_where_to_look";
    let Some(instance) = Instance::start(test, CONFIG) else { return };
    instance.make_workspace("lab", 0, 0o755);
    for job in ["here", "lab/there"] {
        assert_eq!(instance.run_job(job, "command = \"true\"\n")["state"], "succeeded");
        instance.ok(&["template", "save", job, job]);
    }
    let events = instance.ok(&["events", "-w", "lab"]);
    assert!(!events.is_empty() && events.lines().all(|line| line.contains("lab/there")), "{events}");
    assert_eq!(instance.ok(&["usage", "--by", "job", "-w", "lab", "-q"]), "lab/there\n");
    assert_eq!(instance.ok(&["template", "ls", "-w", "lab", "-q"]), "lab/there\n");
    assert_eq!(instance.ok(&["template", "ls", "-w", "default", "-q"]), "here\n");
    for list in [&["events"][..], &["usage"], &["template", "ls"], &["ps"], &["queue"], &["image", "ls"]] {
        let nowhere = instance.cli(&[list, &["-w", "nowhere"]].concat());
        assert_eq!(nowhere.status.code(), Some(4), "{list:?}: {nowhere:?}");
    }
    assert_eq!(instance.cli(&["events", "lab/there", "-w", "lab"]).status.code(), Some(2));
    fs::create_dir_all(instance.mount().with_file_name("lab").join("datasets/d")).unwrap();
    for (verb, advice) in [
        (&["dataset", "show", "nope", "-w", "lab"][..], "`trainyard dataset ls -w lab`"),
        (&["dataset", "verify", "nope@v1", "-w", "lab"], "`trainyard dataset ls -w lab`"),
        (&["dataset", "publish", "nope", "v1", "-w", "lab"], "`trainyard dataset ls -w lab`"),
        (&["dataset", "publish", "nope", "v1", "--public"], "`trainyard dataset ls`"),
        (&["dataset", "verify", "d@v9", "-w", "lab"], "`trainyard dataset show d -w lab`"),
        (&["dataset", "verify", "d", "-w", "lab"], "`trainyard dataset publish d VERSION -w lab`"),
        (&["dataset", "rm", "d@v9", "-w", "lab"], "`trainyard dataset show d -w lab`"),
        (&["dataset", "rm", "d@v9", "--preset"], "`trainyard dataset show d --preset`"),
        (&["model", "show", "nope", "-w", "lab"], "`trainyard model ls -w lab`"),
        (&["model", "rm", "nope@1", "-w", "lab"], "`trainyard model ls -w lab`"),
    ] {
        let output = instance.cli(verb);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(4) && told.contains(advice), "{verb:?}: {told}");
    }
    // One value is one line, and a token that is dead from the first is none.
    let exported = instance.ok(&["export", "--openpai", "here", "--json"]);
    assert!(exported.lines().count() == 1 && exported.contains("\"jobName\":\"here\""), "{exported}");
    for time in ["0s", "500ms"] {
        let refused = instance.cli(&["token", "new", "dead", "--expires", time]);
        assert_eq!(refused.status.code(), Some(2), "{time}: {refused:?}");
    }
    assert_eq!(instance.ok(&["token", "ls", "-q"]), "");
    instance.shutdown();
}

/// Arguments: program, root. Has `top` draw, ends it by each signal, and tells what it left of the terminal.
const END_TOP: &str = r#"
import fcntl, os, pty, signal, struct, sys, termios
for name in ["SIGTERM", "SIGHUP", "SIGINT"]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.execv(sys.argv[1], [sys.argv[1], "--root", sys.argv[2], "top"])
    shown = b""
    while b"JOB" not in shown:
        shown += os.read(terminal, 65536)
    during = termios.tcgetattr(terminal)[3] & (termios.ECHO | termios.ICANON)
    os.kill(pid, getattr(signal, name))
    end = os.waitpid(pid, 0)[1]
    after = termios.tcgetattr(terminal)[3] & (termios.ECHO | termios.ICANON)
    while b"\x1b[?1049l" not in shown:
        shown += os.read(terminal, 65536)
    print(name, end, during, after == termios.ECHO | termios.ICANON)
    os.close(terminal)
"#;

#[test]
fn whatever_ends_top_leaves_the_terminal_as_it_was() {
    let Some(instance) = Instance::start("whatever_ends_top_leaves_the_terminal_as_it_was", "") else { return };
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", END_TOP, BINARY]).arg(instance.root()).env_remove("TRAINYARD_ROOT");
    let output = python.stdin(std::process::Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(told, "SIGTERM 0 0 True\nSIGHUP 0 0 True\nSIGINT 0 0 True\n", "{output:?}");
    instance.shutdown();
}

#[test]
fn help_is_as_plain_as_it_is_asked_to_be() {
    let test = "help_is_as_plain_as_it_is_asked_to_be";
    if !has_tools(test, &["script"]) {
        return;
    }
    let shown = |words: &str| {
        let line = format!("{BINARY} {words}");
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
        String::from_utf8(terminal.stdin(std::process::Stdio::null()).output().unwrap().stdout).unwrap()
    };
    for words in ["ps --help", "ps --nothing"] {
        let (plain, coloured) = (shown(&format!("--no-color {words}")), shown(words));
        assert!(!plain.contains('\u{1b}') && coloured.contains('\u{1b}'), "{words}: {plain:?} {coloured:?}");
    }
    // What stands behind it is another command's.
    assert!(shown("exec --help -- x --no-color").contains('\u{1b}'));
    assert!(!shown("ps --help --no-color").contains('\u{1b}'));
}

fn what_would_be_done_is_said_and_not_done(instance: &Instance) {
    let said = |arguments: &[&str]| instance.ok(arguments);
    for verb in [&["stop", "--all", "--dry-run"][..], &["shutdown", "--dry-run"]] {
        let would = ["holds", "waits", "训练-图像分类"].map(|job| format!("{job}: would be stopped\n"));
        assert_eq!(said(verb), would.concat());
    }
    let drained = said(&["drain", "--dry-run"]);
    assert!(
        drained.starts_with("would start nothing any more: 1 would run on:") && drained.contains("holds"),
        "{drained}"
    );
    let made = said(&["new", "made", "--template", "ddp", "-p", "lr=0.5", "--dry-run"]);
    assert!(made.contains("template = \"ddp\"") && made.contains("lr = 0.5"), "{made}");
    assert!(!instance.jobs_d().join("made.toml").exists());
    let refused = instance.cli(&["rm", "--dry-run", "wrong", "holds"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && told.contains("the file of job wrong") && told.contains("job holds is running"),
        "{told}"
    );
    assert!(said(&["rm", "--dry-run", "--file", "wrong"]).contains("wrong: its file, and its record"));
    assert_eq!(["holds", "wrong", "waits"].map(|job| instance.state(job)), ["running", "invalid", "waiting"]);
}

#[test]
fn shells_complete_names_of_what_there_is() {
    let test = "shells_complete_names_of_what_there_is";
    let Some(instance) = Instance::start(test, "") else { return };
    for job in ["alpha", "alps", "beta"] {
        instance.drop_job(job, "command = \"true\"\nstate = \"held\"\n");
        instance.wait_state(job, "held");
    }
    let root = instance.root().display().to_string();
    let completed = |words: &[&str]| {
        let output = Command::new(BINARY)
            .args(["--", "trainyard", "--root", &root])
            .args(words)
            .env("COMPLETE", "fish")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().filter_map(|line| line.split('\t').next().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["stop", "al"]), ["alpha", "alps"]);
    // As the package has it, in a shell that cuts words at `=`.
    let made = instance.root().join("completions");
    instance.ok(&["generate", "completions", &made.display().to_string()]);
    let script = ". \"$0\"; COMP_WORDS=(trainyard --root = \"$1\" stop al); COMP_CWORD=5; _clap_complete_trainyard trainyard al; \
                  printf '%s ' \"${COMPREPLY[@]}\"";
    let place = std::path::Path::new(BINARY).parent().unwrap().display();
    let output = Command::new("bash")
        .args(["-c", script])
        .args([&made.join("trainyard.bash"), instance.root()])
        .env("PATH", format!("{place}:{}", std::env::var("PATH").unwrap()))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alpha alps ", "{output:?}");
    // As the other shells call them, with what they say of each.
    let zsh = "compdef() { }; _describe() { print -l -- ${(P)@[-1]} }; source $1; words=(trainyard --root=$2 stop al); CURRENT=4; \
               _clap_dynamic_completer_trainyard";
    let fish = "source $argv[1]; complete -C \"trainyard --root=$argv[2] stop al\"";
    let shells: [(&str, &[&str], &str, &str); 2] = [
        ("zsh", &["-f", "-c", zsh, "zsh"], "_trainyard", "alpha:held\nalps:held\n"),
        ("fish", &["--no-config", "-c", fish], "trainyard.fish", "alpha\theld\nalps\theld\n"),
    ];
    for (shell, arguments, file, wanted) in shells {
        if !has_tools(&format!("{test}, in {shell}"), &[shell]) {
            continue;
        }
        let output = Command::new(shell)
            .args(arguments)
            .args([&made.join(file), instance.root()])
            .env("PATH", format!("{place}:{}", std::env::var("PATH").unwrap()))
            .env("HOME", instance.root())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted, "{shell}: {output:?}");
    }
    assert_eq!(completed(&["logs", "-f", "be"]), ["beta"]);
    fs::write(instance.jobs_d().join("mine.template.toml"), "command = \"true\"\n[template]\n").unwrap();
    assert_eq!(completed(&["template", "show", "m"]), ["mine"]);
    assert_eq!(completed(&["new", "other", "--template", "m"]), ["mine"]);
    assert_eq!(completed(&["ps", "-w", "def"]), ["default"]);
    instance
        .drop_job("runs", "command = \"sleep 86400\"\nresources.cpu = 0.1\nroles.ps = {}\nroles.worker.count = 2\n");
    instance.wait_state("runs", "running");
    assert_eq!(completed(&["exec", "runs", "w"]), ["worker-0", "worker-1"]);
    assert_eq!(completed(&["cp", "runs/p"]), ["runs/ps-0:"]);
    assert!(completed(&["q"]).contains(&"queue".to_owned()));
    let script = Command::new(BINARY).env("COMPLETE", "bash").output().unwrap();
    assert!(script.status.success() && String::from_utf8_lossy(&script.stdout).contains("complete"), "{script:?}");
    instance.shutdown();
}

#[test]
fn waiting_for_a_job_whose_file_was_just_dropped_ends_as_its_command_did() {
    let test = "waiting_for_a_job_whose_file_was_just_dropped_ends_as_its_command_did";
    let Some(instance) = Instance::start(test, "") else { return };
    let code = |arguments: &[&str]| instance.cli(arguments).status.code().unwrap();
    instance.drop_job("nine", "command = \"exit 9\"");
    assert_eq!(code(&["wait", "--exit-code", "nine"]), 9);
    assert_eq!(code(&["wait", "nine"]), 5);
    instance.drop_job("killed", "command = \"kill -9 $$\"");
    assert_eq!(code(&["logs", "-f", "--exit-code", "killed"]), 5);
    instance.drop_job("good", "command = \"true\"");
    assert_eq!(code(&["logs", "-f", "--exit-code", "good"]), 0);
    instance.drop_job("stopped", "command = \"sleep infinity\"");
    instance.wait_state("stopped", "running");
    instance.ok(&["stop", "stopped"]);
    assert_eq!(code(&["wait", "--exit-code", "stopped"]), 6);
    assert_eq!(code(&["wait", "nothing"]), 4);
    instance.shutdown();
}
