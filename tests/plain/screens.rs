//! What the command line shows of what differs from machine to machine, at 80 and 120 columns, as files: a daemon stands in that always
//! answers the same. (`INSTA_UPDATE=always` writes them anew, and a change is looked at. The other screens: `tests/host/screens.rs`, and
//! of the live view `src/cli/top/screen.rs`.)

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::CommandFactory;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_trainyard");

const GIB: u64 = 1 << 30;

/// Answers at the socket of `root` with what there is for a path, until the test is over: with the first of several once, with a text as
/// it is, with a failure as a daemon that ends, and never where it is null. Tells what was asked.
fn stand_in<S: AsRef<str> + Send + 'static>(root: &Path, mut answers: Vec<(S, Value)>) -> Receiver<String> {
    let socket = root.join("run/trainyard/api.sock");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    let (sender, asked) = channel();
    // Most have no interest in it.
    let mut held = Vec::new();
    let serve = move |mut client: UnixStream| {
        let asked = asked_by(&client);
        match found(&mut answers, &asked) {
            Some(Value::Null) => held.push(client),
            found => answer(&mut client, &asked, found),
        }
        drop(sender.send(asked));
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    asked
}

fn asked_by(client: &UnixStream) -> String {
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let asked = first.split(' ').nth(1).unwrap_or_default().to_owned();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    asked
}

fn found<S: AsRef<str>>(answers: &mut Vec<(S, Value)>, asked: &str) -> Option<Value> {
    let mut places = answers.iter().enumerate().filter(|(_, (path, _))| path.as_ref() == asked).map(|(place, _)| place);
    let (first, is_last) = (places.next()?, places.next().is_none());
    Some(if is_last { answers[first].1.clone() } else { answers.remove(first).1 })
}

fn answer(client: &mut UnixStream, asked: &str, found: Option<Value>) {
    let missing = || json!({ "code": "not_found", "error": format!("the stand-in has no answer to {asked}") });
    let (status, body) = match found {
        // All that is written has room there.
        None if asked.starts_with("/v1/check?") => ("200 OK", json!({ "valid": true, "diagnostics": [] })),
        None => ("404 Not Found", missing()),
        Some(failure) if failure["code"] == "shutting_down" => ("503 Service Unavailable", failure),
        Some(answer) => ("200 OK", answer),
    };
    let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    client.write_all(format!("{head}{body}").as_bytes()).unwrap();
}

fn screen(root: &Path, columns: u16, arguments: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.arg("--root").arg(root).args(arguments);
    command.env("COLUMNS", columns.to_string()).env("TZ", "UTC").env_remove("TRAINYARD_ROOT");
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let told = if err.is_empty() { String::new() } else { format!("--- standard error\n{err}") };
    format!("{out}{told}--- {}\n", output.status).replace(&root.display().to_string(), "ROOT")
}

fn uuid(kind: &str, number: usize) -> String {
    format!("{kind}-{number:08x}-0000-0000-0000-000000000000")
}

/// A card that nobody has and that is well.
fn card(index: usize) -> Value {
    json!({
        "index": index, "uuid": uuid("GPU", index), "name": "NVIDIA H100 80GB HBM3", "minor": index,
        "bus": format!("00000000:{:02X}:00.0", 0x1b + index), "numa_node": index / 2, "cpus": format!("{}-{}", index * 8, index * 8 + 7),
        "memory": 80 * GIB, "memory_used": 0, "utilisation": 0, "temperature": 31, "power": 71_000, "power_limit": 700_000,
        "slowed_by": [],
        "health": "ok", "findings": [], "leased_by": null, "shares": [], "slices": [], "processes": [], "links": []
    })
}

/// `card` with further values.
fn with(mut card: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        card[key] = value.clone();
    }
    card
}

fn gpus() -> Value {
    let busy = json!({
        "memory_used": 61 * GIB, "utilisation": 97, "temperature": 84, "power": 688_400, "health": "warning",
        "findings": [{ "rule": "slowed", "level": "warning", "says": "its clocks are lowered for heat (84 °C)" }],
        "leased_by": "视觉/训练-图像分类 worker-0", "links": ["X", "NV18", "SYS", "SYS"],
        "processes": [{ "pid": 4711, "uid": 1000, "user": "ada", "program": "python3", "memory": 61 * GIB, "slice": null }]
    });
    let shared = json!({
        "memory_used": 9 * GIB, "links": ["NV18", "X", "SYS", "SYS"],
        "shares": [{ "holder": "default/笔记本 main-0", "memory": 20 * GIB }, { "holder": "small", "memory": 10 * GIB }],
        // Of a job that is not the caller's.
        "processes": [{ "pid": null, "uid": null, "user": null, "program": null, "memory": 9 * GIB, "slice": null }]
    });
    let slices = [("1g.10gb", Some("default/调参-3 main-0")), ("2g.20gb", None)];
    let slices = slices.iter().enumerate().map(|(at, (profile, holder))| {
        json!({ "uuid": uuid("MIG", at), "profile": profile, "memory": 10 * GIB * (at as u64 + 1), "leased_by": holder })
    });
    let sliced = json!({ "slices": slices.collect::<Vec<_>>(), "links": ["SYS", "SYS", "X", "NV18"] });
    let lost = json!({
        "memory_used": null, "utilisation": null, "temperature": null, "power": null, "health": "failed",
        "findings": [{ "rule": "lost", "level": "failed", "says": "it was there before, and is no more; a reboot may bring it back" }],
        "links": ["SYS", "SYS", "NV18", "X"]
    });
    let cards = [busy, shared, sliced, lost].into_iter().enumerate().map(|(index, more)| with(card(index), more));
    json!({
        "driver": "580.95.05", "cuda": "13.0", "missing": null, "at": "2026-11-30T02:00:00.000Z", "stale": false,
        "gpus": cards.collect::<Vec<_>>(), "nameless": []
    })
}

/// A list of which there is one page.
fn page(items: Value) -> Value {
    let total = items.as_array().unwrap().len();
    json!({ "items": items, "total": total })
}

fn used(name: &str, hours: f64, price: Option<f64>) -> Value {
    json!({
        "name": name, "attempts": 12, "gpu_hours": hours, "cpu_hours": hours * 8.0, "memory_gib_hours": hours * 64.0,
        "price": price, "unpriced": if price.is_some() { 0 } else { 12 }
    })
}

fn workspaces() -> Value {
    json!([
        { "workspace": "default", "used": null, "quota": null, "held": null, "note": null, "running": 0, "waiting": 2 },
        { "workspace": "vision", "used": 700 * GIB, "quota": 1024 * GIB, "held": "btrfs", "note": null, "running": 3, "waiting": 0 },
        { "workspace": "自然语言处理", "used": 99 * GIB, "quota": 100 * GIB, "held": "counted",
          "note": "is being counted anew: what it keeps may be more or less", "running": 12, "waiting": 250 },
    ])
}

fn workspace() -> Value {
    let entry = |name: &str, bytes: u64| json!({ "name": name, "bytes": bytes });
    json!({
        "workspace": "自然语言处理", "used": 99 * GIB, "quota": 100 * GIB, "held": "counted", "note": null, "running": 12, "waiting": 250,
        "parts": [
            { "part": "datasets", "bytes": 90 * GIB, "entries": [entry("维基百科-2026-11", 60 * GIB), entry("新闻语料", 29 * GIB), entry("c4-subset", GIB)] },
            { "part": "code", "bytes": 4096, "entries": [entry("预训练", 4096)] },
            { "part": "models", "bytes": 9 * GIB, "entries": [entry("基线-7b", 8 * GIB), entry("tokenizer", GIB), entry("empty", 0)] },
            { "part": "jobs", "bytes": 0, "entries": [] },
        ]
    })
}

fn tokens() -> Value {
    json!([
        { "name": "ci", "uid": 1000, "user": "ada", "scopes": ["read", "jobs"], "workspaces": ["vision", "自然语言处理"],
          "created": "2026-11-01T08:00:00.000Z", "expires": "2027-11-01T08:00:00.000Z" },
        { "name": "监控", "uid": 0, "user": "root", "scopes": ["read"], "workspaces": null, "created": "2026-11-02T09:30:00.000Z", "expires": null },
    ])
}

fn images() -> Value {
    let image = |name: &str, kind: &str, size: u64| {
        json!({
            "name": name, "kind": kind, "workspace": null, "digest": format!("sha256:{}", "0123456789abcdef".repeat(4)), "size": size,
            "layers": 7, "brought": "2026-11-01T08:00:00.000Z", "used": "2026-11-29T18:45:00.000Z"
        })
    };
    json!([
        image("docker.io/pytorch/pytorch:2.9.0-cuda13.0-cudnn9-runtime", "public", 7 * GIB),
        image("视觉基础镜像", "mine", 300 << 20),
    ])
}

#[test]
fn screens_of_cards_use_and_room_are_as_they_were_at_80_and_120_columns() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let drained = json!({ "order": { "by": "ada", "since": "2026-11-30T02:00:00Z" }, "running": ["视觉/训练-图像分类", "digits"], "waiting": 7 });
    stand_in(
        root,
        vec![
            ("/v1/gpus", gpus()),
            (
                "/v1/usage?by=workspace&since=0&sort=name&limit=10000",
                page(json!([used("自然语言处理", 0.25, None), used("vision", 1234.5, Some(987.654))])),
            ),
            (
                "/v1/usage?by=user&since=0&sort=name&limit=10000",
                page(json!([used("0", 3.5, Some(1.0)), used("4294967000", 0.0, None)])),
            ),
            (
                "/v1/usage?by=job&since=0&sort=name&limit=10000",
                page(json!([used("default/训练-图像分类", 96.0, None), used("vision/digits", 0.01, Some(0.005))])),
            ),
            ("/v1/workspaces?limit=10000", page(workspaces())),
            ("/v1/workspaces/%E8%87%AA%E7%84%B6%E8%AF%AD%E8%A8%80%E5%A4%84%E7%90%86", workspace()),
            ("/v1/tokens?limit=10000", page(tokens())),
            ("/v1/images?limit=10000", page(images())),
            ("/v1/drain", drained),
        ],
    );
    let screens: &[(&str, &[&str])] = &[
        ("gpu", &["gpu"]),
        ("usage", &["usage"]),
        ("usage_user", &["usage", "--by", "user"]),
        ("usage_job", &["usage", "--by", "job"]),
        ("usage_csv", &["usage", "--by", "job", "--csv"]),
        ("workspace", &["workspace"]),
        ("workspace_one", &["workspace", "自然语言处理"]),
        ("workspace_unknown", &["workspace", "unknown"]),
        ("token_ls", &["token", "ls"]),
        ("image_ls_some", &["image", "ls"]),
        ("drain", &["drain"]),
        ("contract_ls", &["contract", "ls"]),
        ("contract_show", &["contract", "show", "sagemaker"]),
    ];
    for columns in [80, 120] {
        for (name, arguments) in screens {
            insta::assert_snapshot!(format!("{name}_{columns}"), screen(root, columns, arguments));
        }
    }
}

/// Files of jobs as people have them; the models that jobs have left lie in the mounted tree.
fn put_files(root: &Path) {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("etc/trainyard/jobs.d/plain.toml", "command = \"true\"\n");
    put(
        "etc/trainyard/jobs.d/ddp.template.toml",
        "command = \"train --lr ${lr} --data ${data}\"\nroles.worker.count = 2\n[template]\ndescription = \"数据并行训练\"\n\
         [template.params.lr]\ndefault = 0.1\nmin = 0.0\nhelp = \"the learning rate\"\n[template.params.data]\nhelp = \"哪个数据集\"\n",
    );
    put("srv/trainyard/default/models/数字/3/MODEL.toml", "job = \"数字\"\nrun = 3\nimage = \"host\"\n");
}

#[test]
fn screens_of_jobs_in_all_states_and_of_what_is_done_to_them_are_as_they_were_at_80_and_120_columns() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    put_files(root);
    let answers: serde_json::Map<String, Value> =
        serde_json::from_str(include_str!("../data/screens/jobs.json")).unwrap();
    stand_in(root, answers.into_iter().collect());
    let volcano = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/screens/volcano.yaml");
    let running = "视觉/训练-图像分类";
    let screens: &[(&str, &[&str])] = &[
        ("status_running", &["status", running]),
        ("status_waiting", &["status", "视觉/等待"]),
        ("status_failed", &["status", "视觉/失败"]),
        ("status_run", &["status", "视觉/失败", "--run", "2"]),
        ("logs", &["logs", running]),
        ("show", &["show", running]),
        ("show_effective", &["show", "--effective", running]),
        ("export", &["export", "--openpai", running]),
        ("stop", &["stop", running, "视觉/没有"]),
        ("stop_now", &["stop", "--now", running]),
        ("rerun", &["rerun", running]),
        ("restart", &["restart", running]),
        ("rm", &["rm", "--file", "视觉/失败"]),
        ("wait", &["wait", "视觉/失败"]),
        ("image_show", &["image", "show", "视觉基础镜像"]),
        ("model_show", &["model", "show", "数字"]),
        ("template_show", &["template", "show", "ddp"]),
        ("import", &["import", volcano]),
        ("explain_all", &["explain"]),
    ];
    for columns in [80, 120] {
        for (name, arguments) in screens {
            let shown = screen(root, columns, arguments).replace(volcano, "FILE");
            insta::assert_snapshot!(format!("{name}_{columns}"), shown);
        }
        let made = [format!("made-{columns}"), format!("copy-{columns}")];
        insta::assert_snapshot!(
            format!("new_{columns}"),
            screen(root, columns, &["new", &made[0], "--template", "ddp"])
        );
        let new = ["new", &made[0], "--template", "ddp", "-p", "data=手写数字"];
        insta::assert_snapshot!(format!("new_made_{columns}"), screen(root, columns, &new));
        insta::assert_snapshot!(format!("clone_{columns}"), screen(root, columns, &["clone", "plain", &made[1]]));
        insta::assert_snapshot!(format!("clone_again_{columns}"), screen(root, columns, &["clone", "plain", &made[1]]));
    }
}

#[test]
fn screens_of_what_is_done_are_as_they_were_at_80_and_120_columns() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    put_files(root);
    let pulled = [
        json!({ "layers": 2, "layers_done": 1, "bytes": 2 * GIB, "bytes_done": GIB }),
        json!({ "layers": 2, "layers_done": 2, "bytes": 2 * GIB, "bytes_done": 2 * GIB, "name": "视觉基础镜像:2", "digest": "sha256:1234567890abcdef" }),
    ];
    let made = json!({ "token": tokens()[0], "secret": "trainyard_1000.ci_0123456789abcdef" });
    stand_in(
        root,
        vec![
            ("/v1/tokens", made),
            (
                "/v1/images/pull?name=%E8%A7%86%E8%A7%89%E5%9F%BA%E7%A1%80%E9%95%9C%E5%83%8F%3A2&workspace=default",
                json!(pulled.map(|step| format!("{step}\n")).concat()),
            ),
        ],
    );
    let screens: &[(&str, &[&str])] = &[
        ("token_new", &["token", "new", "ci"]),
        ("image_pull", &["image", "pull", "视觉基础镜像:2"]),
        ("secret_rm", &["secret", "rm", "无"]),
    ];
    for columns in [80, 120] {
        for (name, arguments) in screens {
            insta::assert_snapshot!(format!("{name}_{columns}"), screen(root, columns, arguments));
        }
    }
}

#[test]
fn screens_of_a_machine_with_nothing_are_as_they_were_at_80_and_120_columns() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let no_cards = json!({
        "driver": null, "cuda": null, "missing": "libnvidia-ml.so.1 not found", "at": "2026-11-30T02:00:00.000Z", "stale": false, "gpus": [],
        "nameless": []
    });
    stand_in(
        root,
        vec![
            ("/v1/gpus", no_cards),
            ("/v1/usage?by=workspace&since=0&sort=name&limit=10000", page(json!([]))),
            ("/v1/workspaces?limit=10000", page(json!([]))),
            ("/v1/tokens?limit=10000", page(json!([]))),
            ("/v1/drain", json!({ "order": null, "running": [], "waiting": 0 })),
        ],
    );
    let elsewhere = tempfile::tempdir().unwrap();
    for columns in [80, 120] {
        for (name, verb) in [("gpu", "gpu"), ("usage", "usage"), ("workspace", "workspace"), ("drain", "drain")] {
            insta::assert_snapshot!(format!("{name}_none_{columns}"), screen(root, columns, &[verb]));
        }
        insta::assert_snapshot!(format!("token_none_{columns}"), screen(root, columns, &["token", "ls"]));
        insta::assert_snapshot!(format!("no_daemon_{columns}"), screen(elsewhere.path(), columns, &["ps"]));
    }
}

const ALL: &str = "/v1/jobs/lines?limit=10000";
const WAITING: &str = "/v1/jobs?state=waiting&limit=10000";
const EVENTS: &str = "/v1/events?after=7&follow=1";

fn no_jobs() -> Value {
    json!({ "jobs": [], "strays": [], "total": 0, "serial": 7 })
}

/// What a verb that watches asks a daemon that answers so, at first.
fn asked_while_watching(verb: &str, answers: Vec<(&'static str, Value)>, count: usize) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let asked = stand_in(directory.path(), answers);
    let mut command = Command::new(BINARY);
    command.arg("--root").arg(directory.path()).args([verb, "--watch"]).env_remove("TRAINYARD_ROOT");
    let mut watching = command.stdout(Stdio::null()).spawn().unwrap();
    let seen = (0..count).map_while(|_| asked.recv_timeout(Duration::from_secs(60)).ok()).collect();
    watching.kill().unwrap();
    watching.wait().unwrap();
    seen
}

/// Nothing is asked again and again, and a daemon that ends, to be started again, ends nobody who watches.
#[test]
fn what_is_watched_is_looked_at_anew_when_something_has_happened() {
    let event = json!({
        "serial": 8, "workspace": "default", "job": "j", "number": 0, "at": "2026-11-30T02:00:00.000Z", "run": 1, "state": "running",
        "message": "m"
    });
    let ending = json!({ "code": "shutting_down", "error": "the daemon is ending" });
    for (verb, list) in [("ps", ALL), ("queue", WAITING)] {
        let events = Value::String(format!("{event}\n"));
        let answers = vec![(list, no_jobs()), (list, ending.clone()), (list, no_jobs()), (EVENTS, events)];
        let seen = asked_while_watching(verb, answers, 7);
        assert_eq!(seen, [list, EVENTS, list, EVENTS, list, EVENTS, list], "{verb}");
    }
}

/// Of a job that was removed no event tells.
#[test]
fn what_is_watched_is_looked_at_anew_also_without_a_word() {
    let answers = vec![(ALL, no_jobs()), (EVENTS, Value::Null)];
    assert_eq!(asked_while_watching("ps", answers, 3), [ALL, EVENTS, ALL]);
}

/// What daemons answer to who changes something, and what has happened on a machine.
fn answers_to_changes() -> Vec<(String, Value)> {
    let job = "/v1/jobs/%E8%A7%86%E8%A7%89/%E8%AE%AD%E7%BB%83-%E5%9B%BE%E5%83%8F%E5%88%86%E7%B1%BB";
    let done = |message: &str| json!({ "message": message });
    let happened = [
        ("视觉", "训练-图像分类", 3, "running", "3 of 3 task(s) running"),
        (
            "default",
            "digits",
            12,
            "failed",
            "failed: main-0 out of memory: it needed more than resources.memory = \"4GiB\" (peak 4GiB)",
        ),
        (
            "自然语言处理",
            "预训练-语料清洗-第三次尝试",
            1,
            "waiting",
            "waits for 4 GPUs of which 1 is free; place 2 of 12",
        ),
    ];
    let happened = happened.iter().enumerate().map(|(number, (workspace, job, run, state, message))| {
        let event = json!({
            "serial": number + 1, "workspace": workspace, "job": job, "number": number, "at": "2026-11-30T02:00:04.123Z", "run": run,
            "state": state, "message": message
        });
        format!("{event}\n")
    });
    let image = "name=%E8%A7%86%E8%A7%89%E5%9F%BA%E7%A1%80%E9%95%9C%E5%83%8F&workspace=default";
    let pruned = json!({ "names": ["docker.io/library/debian:12", "视觉基础镜像"], "layers": 9, "bytes": 3 * GIB });
    vec![
        ("/v1/events?after=0".to_owned(), Value::String(happened.collect())),
        (format!("{job}/extend?by_ms=7200000"), done("视觉/训练-图像分类: run 3 may take 12h0m in all")),
        (format!("{job}/send"), done("视觉/训练-图像分类: what is not sent is sent again")),
        (format!("/v1/images/tag?{image}&new=base"), done("base is 视觉基础镜像")),
        (format!("/v1/images?{image}"), done("removed 视觉基础镜像")),
        ("/v1/images/prune".to_owned(), pruned),
        ("/v1/models/default/%E6%95%B0%E5%AD%97/3".to_owned(), done("removed model 数字@3")),
        ("/v1/datasets/default/%E6%89%8B%E5%86%99%E6%95%B0%E5%AD%97/v1".to_owned(), done("removed 手写数字@v1")),
        ("/v1/tokens/%E7%9B%91%E6%8E%A7".to_owned(), done("token 监控 of root is revoked")),
        (ALL.to_owned(), json!({ "total": 0, "jobs": [], "strays": [], "serial": 7 })),
    ]
}

#[test]
fn screens_of_changes_events_and_help_are_as_they_were_at_80_and_120_columns() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    put_files(root);
    std::fs::create_dir_all(root.join("srv/trainyard/default/datasets")).unwrap();
    stand_in(root, answers_to_changes());
    let job = "视觉/训练-图像分类";
    let screens: &[(&str, &[&str])] = &[
        ("events_all", &["events"]),
        ("extend", &["extend", job, "2h"]),
        ("send", &["send", job]),
        ("shutdown_dry", &["shutdown", "--dry-run"]),
        ("image_tag", &["image", "tag", "视觉基础镜像", "base"]),
        ("image_rm", &["image", "rm", "视觉基础镜像"]),
        ("image_prune", &["image", "prune"]),
        ("model_rm", &["model", "rm", "数字@3"]),
        ("dataset_rm", &["dataset", "rm", "手写数字@v1"]),
        ("token_rm", &["token", "rm", "监控"]),
        ("help", &["--help"]),
        ("help_ps", &["ps", "--help"]),
        ("help_logs", &["logs", "--help"]),
        ("help_image", &["image", "--help"]),
        ("help_dataset_import", &["dataset", "import", "--help"]),
    ];
    for columns in [80, 120] {
        for (name, arguments) in screens {
            insta::assert_snapshot!(format!("{name}_{columns}"), screen(root, columns, arguments));
        }
        let [saved, copied] = ["saved", "copied"].map(|name| format!("{name}-{columns}"));
        let templates: [(&str, &[&str]); 3] = [
            ("template_save", &["template", "save", "plain", &saved]),
            ("template_copy", &["template", "copy", "ddp", &copied]),
            ("template_rm", &["template", "rm", &saved, &copied]),
        ];
        for (name, arguments) in templates {
            insta::assert_snapshot!(format!("{name}_{columns}"), screen(root, columns, arguments));
        }
    }
}

/// Of each verb that is for people, and of those below it.
fn verbs(command: &clap::Command, above: &[String]) -> Vec<Vec<String>> {
    let seen = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let with_theirs = seen.flat_map(|verb| {
        let words = [above, &[verb.get_name().to_owned()]].concat();
        let below = verbs(verb, &words);
        std::iter::once(words).chain(below)
    });
    with_theirs.collect()
}

#[test]
fn help_of_every_verb_is_as_it_was_at_80_and_120_columns() {
    let directory = tempfile::tempdir().unwrap();
    let all = verbs(&trainyard::cli::Cli::command(), &[]);
    assert!(all.len() > 60, "{}", all.len());
    for columns in [80, 120] {
        let helps = all.iter().map(|words| {
            let typed: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
            let shown = screen(directory.path(), columns, &typed);
            format!("$ trainyard {}\n{}\n", typed.join(" "), shown.trim_end_matches("--- exit status: 0\n"))
        });
        insta::assert_snapshot!(format!("help_of_all_{columns}"), helps.collect::<String>());
    }
}

#[test]
fn no_table_or_help_is_wider_than_the_terminal() {
    let mut count = 0;
    for place in ["tests/plain/snapshots", "tests/host/snapshots", "src/cli/snapshots", "src/cli/top/snapshots"] {
        let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(place)).unwrap().flatten();
        for file in files.filter(|file| file.file_name().to_string_lossy().ends_with("_80.snap")) {
            let (name, text) = (file.file_name().into_string().unwrap(), std::fs::read_to_string(file.path()).unwrap());
            let screen = text.splitn(3, "---\n").nth(2).unwrap().split("--- ").next().unwrap();
            let is_table = screen.lines().next().is_some_and(|head| head.contains("  ") && head == head.to_uppercase());
            let is_folded =
                ["help", "doctor", "top_", "explain_all", "events_all"].iter().any(|kind| name.contains(kind));
            let widest = screen.lines().map(unicode_width::UnicodeWidthStr::width).max().unwrap_or(0);
            if is_table || is_folded {
                assert!(widest <= 80, "{name} has a line of {widest}:\n{screen}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}

fn listed(job: &str, state: &str, reason: &str) -> Value {
    json!({
        "workspace": "视觉", "job": job, "state": state, "reason": reason, "description": "", "owner": 0, "run": 12, "attempt": 1,
        "created": "2026-11-30T02:00:00.000Z", "started": null, "ended": null, "duration_ms": 3_725_000, "tasks": [], "diagnostics": [],
        "waiting": null
    })
}

/// An environment that names an installation is no option that was said.
#[test]
fn a_verb_without_its_verb_tells_of_its_own_also_where_the_environment_names_an_installation() {
    let told = |verb: &[&str], root: Option<&str>| {
        let mut command = Command::new(BINARY);
        command.args(verb).env_remove("TRAINYARD_ROOT").envs(root.map(|root| ("TRAINYARD_ROOT", root)));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{verb:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        told.trim_end()
            .lines()
            .filter(|line| !line.contains("TRAINYARD_ROOT"))
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n")
    };
    for verb in ["dataset", "image", "model", "template", "token", "secret", "spec", "contract"] {
        let plain = told(&[verb], None);
        assert!(plain.contains(&format!("Usage: trainyard {verb}")), "{plain}");
        assert_eq!(told(&[verb], Some("/nowhere")), plain);
    }
    assert_eq!(told(&[], Some("/nowhere")), told(&[], None));
}

/// And takes no room from what others say.
#[test]
fn a_long_name_leaves_the_state_and_the_reason_of_every_job_on_the_screen() {
    let directory = tempfile::tempdir().unwrap();
    let states = ["running", "succeeded", "failed"];
    let reasons = ["2 of 2 tasks run", "all tasks succeeded", "worker-3 ended with 137: out of memory"];
    let names = ["训练".repeat(32), "digits".to_owned(), "数字".to_owned()];
    let jobs: Vec<Value> = (0..3).map(|at| listed(&names[at], states[at], reasons[at])).collect();
    stand_in(directory.path(), vec![(ALL, json!({ "total": 3, "jobs": jobs, "strays": [], "serial": 7 }))]);
    for columns in [80, 120] {
        let shown = screen(directory.path(), columns, &["ps"]);
        insta::assert_snapshot!(format!("ps_long_names_{columns}"), shown);
        for (row, at) in shown.lines().skip(1).zip(0..3) {
            let cells: Vec<&str> = row.split_whitespace().collect();
            assert_eq!((cells[1], cells[2]), (states[at], "12"), "{shown}");
            assert!(row.contains(reasons[at].split(':').next().unwrap().get(..16).unwrap()), "{shown}");
        }
        let wide = screen(directory.path(), columns, &["ps", "-o", "wide"]);
        assert!(states.iter().all(|state| wide.contains(&format!("  {state} "))), "{wide}");
    }
}

/// Whoever else has a place.
#[test]
fn a_queue_lists_all_who_wait_with_those_who_have_a_place_first() {
    let none = json!({ "cpu": 0.0, "memory": 0, "gpu": 0.0 });
    let waits = |job: &str, place: Option<usize>| {
        let waiting = place.map(|place| {
            json!({
                "cause": "turn", "place": place, "of": 7, "needs": none, "free": none, "holders": [], "starts_by": null,
                "as_of": "2026-11-30T02:00:00.000Z"
            })
        });
        json!({
            "workspace": "default", "job": job, "state": "waiting", "reason": "waits", "description": "", "owner": 0, "run": 1,
            "attempt": 0, "created": "2026-11-30T02:00:00.000Z", "started": null, "ended": null, "duration_ms": null, "tasks": [],
            "diagnostics": [], "waiting": waiting
        })
    };
    let (after, second, first) = (waits("after", None), waits("a", Some(2)), waits("b", Some(1)));
    for (jobs, names, is_told) in [
        (vec![after.clone(), second.clone(), first.clone()], "b\na\nafter\n", true),
        (vec![second, first], "b\na\n", false),
        (vec![after], "after\n", false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let list = json!({ "total": jobs.len(), "jobs": jobs, "strays": [], "serial": 7 });
        stand_in(directory.path(), vec![(WAITING, list)]);
        let names_shown = screen(directory.path(), 120, &["queue", "-q"]);
        assert!(names_shown.starts_with(&format!("{names}---")), "{names_shown}");
        let table = screen(directory.path(), 120, &["queue"]);
        assert_eq!(table.contains("7 wait for their turn"), is_told, "{table}");
    }
}

#[test]
fn verbs_of_trainyard_s_own_processes_say_what_to_do_instead_where_they_are_typed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display().to_string();
    for (verb, instead) in [
        ("mount", "systemctl start trainyard"),
        ("direct", "[mount] direct"),
        ("registry", "trainyard image pull"),
        ("enter", "trainyard exec"),
        ("hold", "state = \"held\""),
        ("carry", "trainyard send"),
        ("shim", "trainyard new"),
    ] {
        let mut command = Command::new(BINARY);
        let output = command.args(["--root", &root, verb]).stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{verb}: {told}");
        assert!(told.contains(&format!("`trainyard {verb}` is not for people")) && told.contains(instead), "{told}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "and have done nothing");
}
