//! Who sees which job, and may do what to it: each route about a job, and each that names a workspace, for each kind of caller; and
//! what they are told whose right is taken away while they look.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Child, Command, Stdio};

use trainyard::api::routes::{ROUTES, Route};

use super::super::support::{BINARY, Instance, has_tools, skip, wait_for};
use super::{Answer, NOBODY, ask_as, ask_with, connect};

/// Users of every Debian: two whose group is nogroup, and one of another.
const OWNER: u32 = 4;
const MEMBER: u32 = NOBODY;
const STRANGER: u32 = 5;
const GROUP: u32 = 65534;

/// What a route is about, which says who may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum About {
    /// How it is.
    State,
    /// What is for the group of its file.
    Logs,
    /// What runs with its owner's rights.
    Inside,
    Change,
    /// What the file system alone says, with the caller's rights.
    File,
}

const JOB: &str = "command = \"echo hello; sleep infinity\"\nresources = { cpu = 0.1, memory = \"100MB\" }\n[env]\nTOKEN = \"hidden-1234\"\n";
const EXEC: &str = r#"{"command": ["true"]}"#;

/// Method, what follows the job, what it is about, the body. What stops it comes last.
const TABLE: [(&str, &str, &str, About, &str); 16] = [
    ("GET", "", "", About::State, ""),
    ("GET", "/logs", "", About::Logs, ""),
    ("GET", "/metrics", "?task=main-0", About::Logs, ""),
    ("GET", "/scalars", "?task=main-0", About::Logs, ""),
    ("POST", "/exec", "", About::Inside, EXEC),
    ("GET", "/file", "", About::File, ""),
    ("PUT", "/file", "", About::File, JOB),
    ("POST", "/clone", "?as=copy-UID", About::State, ""),
    ("POST", "/rerun", "", About::Change, ""),
    ("POST", "/extend", "?by_ms=1", About::Change, ""),
    ("POST", "/send", "", About::Change, ""),
    ("DELETE", "/send", "", About::Change, ""),
    ("DELETE", "", "?dry_run=true", About::Change, ""),
    ("POST", "/restart", "", About::Change, ""),
    ("POST", "/stop", "", About::Change, ""),
    ("DELETE", "/file", "", About::File, ""),
];

fn asked(instance: &Instance, uid: u32, job: &str, row: usize) -> Answer {
    let (method, part, query, _, body) = TABLE[row];
    let path = format!("/v1/jobs/lab/{job}{part}{}", query.replace("UID", &uid.to_string()));
    let headers = format!("trainyard-for-user: {uid}\r\nupgrade: trainyard-exec/1\r\n");
    ask_with(instance, method, &path, &headers, body.as_bytes())
}

/// A job of the owner's, with such a group and mode of its file.
fn job(instance: &Instance, name: &str, group: u32, mode: u32) {
    let file = instance.jobs_d().join(format!("{name}.toml"));
    let draft = instance.root().join("draft");
    fs::write(&draft, JOB).unwrap();
    chown(&draft, Some(OWNER), Some(group)).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(draft, file).unwrap();
    instance.wait_state(name, "running");
}

fn has_users(test: &str) -> bool {
    let group = |uid: u32| nix::unistd::User::from_uid(uid.into()).ok().flatten().map(|user| user.gid.as_raw());
    let has =
        group(OWNER) == Some(GROUP) && group(MEMBER) == Some(GROUP) && group(STRANGER).is_some_and(|own| own != GROUP);
    if !has {
        skip(test, "Debian's users sync, games and nobody");
    }
    has
}

#[test]
fn each_route_of_a_job_is_for_who_may_enter_its_workspace_and_changes_for_who_may_remove_its_file() {
    let test = "each_route_of_a_job_is_for_who_may_enter_its_workspace_and_changes_for_who_may_remove_its_file";
    let of_job = |path: &&str| path.starts_with("/v1/jobs/{workspace}/{job}");
    for route in ROUTES.iter().filter(|route| of_job(&route.path)) {
        let rest = route.path.trim_start_matches("/v1/jobs/{workspace}/{job}");
        let known = TABLE.iter().any(|(method, part, ..)| (*method, *part) == (route.verb.name(), rest));
        assert!(known, "the table has not {} {}", route.verb.name(), route.path);
    }
    if !has_users(test) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    instance.make_workspace("lab", GROUP, 0o3770);
    job(&instance, "lab/job", GROUP, 0o644);
    job(&instance, "lab/closed", 0, 0o600);
    wait_for("its output", || instance.log("lab/job", "main-0").contains("hello").then_some(()));

    for (row, (method, part, _, about, _)) in TABLE.iter().enumerate() {
        let what = format!("{method} {part}");
        // To who may not enter, a job that there is looks like one that there is not.
        let (there, not) = (asked(&instance, STRANGER, "job", row), asked(&instance, STRANGER, "ghost", row));
        let as_none = |answer: &Answer, name: &str| answer.text().replace(&format!("lab/{name}"), "lab/NAME");
        assert_eq!((there.status, as_none(&there, "job")), (not.status, as_none(&not, "ghost")), "{what}");
        let wanted = if *about == About::File { "not_found" } else { "no_such_job" };
        assert_eq!(there.code(), wanted, "{what}: {there:?}");

        let member = asked(&instance, MEMBER, "job", row);
        match about {
            About::State | About::Logs => {
                assert!(member.status < 300 || member.code() == "not_found", "{what}: {member:?}")
            }
            About::Change | About::Inside => {
                assert_eq!(member.code(), "not_yours", "{what}: {member:?}");
                let text = member.text();
                assert!(text.contains("belongs to sync") && text.contains("ask sync or root"), "{what}: {text}");
            }
            About::File if *method == "GET" => assert_eq!(member.status, 200, "{what}: {member:?}"),
            About::File => {
                assert_eq!(member.code(), "forbidden", "{what}: {member:?}");
                assert!(member.text().contains("belongs to sync"), "{what}: {member:?}");
            }
        }
        // Of one whose file is of another group, and closed, they are told how it is alone.
        let closed = asked(&instance, MEMBER, "closed", row);
        let wanted = match (about, *part) {
            (About::State, "") => None,
            (About::State | About::File, _) => Some("forbidden"),
            _ => Some("not_yours"),
        };
        match wanted {
            None => assert_eq!(closed.status, 200, "{what}: {closed:?}"),
            Some(code) => assert_eq!(closed.code(), code, "{what}: {closed:?}"),
        }
        assert!(!closed.text().contains("hidden-1234"), "{what}: {closed:?}");
    }
    for (row, entry) in TABLE.iter().enumerate() {
        for (uid, job) in [(OWNER, "job"), (0, "closed")] {
            let done = asked(&instance, uid, job, row);
            assert!(![401, 403].contains(&done.status) && (done.status < 500), "{entry:?}: {done:?}");
            assert!(done.status != 404 || done.code() == "not_found", "{entry:?}: {done:?}");
        }
    }
    instance.shutdown();
}

#[test]
fn a_file_of_one_s_own_gives_nobody_the_job_of_another() {
    let test = "a_file_of_one_s_own_gives_nobody_the_job_of_another";
    if !has_users(test) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    // Each file is its owner's to remove.
    instance.make_workspace("lab", GROUP, 0o3770);
    let put = |name: &str, uid: u32, text: &str| {
        let draft = instance.root().join("draft");
        fs::write(&draft, text).unwrap();
        chown(&draft, Some(uid), Some(GROUP)).unwrap();
        fs::rename(draft, instance.jobs_d().join(format!("lab/{name}.toml"))).unwrap();
    };
    let sweep =
        "command = ['sh', '-c', 'sleep infinity']\nresources = { cpu = 0.1, memory = \"100MB\" }\nsweep.lr = [1]\n";
    put("sweep", OWNER, sweep);
    put("kept", OWNER, JOB);
    for name in ["lab/sweep~1", "lab/kept"] {
        instance.wait_state(name, "running");
    }
    let asked =
        |uid: u32, method: &str, rest: &str| ask_as(&instance, uid, method, &format!("/v1/jobs/lab/{rest}"), b"");
    // Its file is gone, and what it has done is there.
    fs::remove_file(instance.jobs_d().join("lab/kept.toml")).unwrap();
    instance.wait_end("lab/kept", 1);
    put("sweep~1", MEMBER, JOB);
    put("kept", MEMBER, "command = 7\n");
    wait_for("a file to be told of", || {
        let told = String::from_utf8_lossy(&instance.cli(&["ps"]).stderr).into_owned();
        told.contains("sweep~1.toml: its name is that of a job of").then_some(())
    });
    wait_for("the other to be refused", || {
        instance.report("lab/kept")?["diagnostics"].as_array().is_some_and(|found| !found.is_empty()).then_some(())
    });
    for change in ["sweep~1/stop", "sweep~1/rerun", "kept/rerun"] {
        let member = asked(MEMBER, "POST", change);
        assert_eq!((member.status, member.code()), (403, "not_yours".into()), "{change}: {member:?}");
    }
    let removed = asked(MEMBER, "DELETE", "kept");
    assert_eq!(removed.code(), "not_yours", "{removed:?}");
    assert_eq!(instance.state("lab/sweep~1"), "running");
    instance.shutdown();
}

#[test]
fn members_are_told_of_all_jobs_of_a_workspace_and_strangers_of_none_from_the_moment_on() {
    let test = "members_are_told_of_all_jobs_of_a_workspace_and_strangers_of_none_from_the_moment_on";
    if !has_users(test) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    instance.make_workspace("lab", GROUP, 0o2770);
    job(&instance, "lab/job", GROUP, 0o600);
    let ask = |uid: u32, path: &str| ask_as(&instance, uid, "GET", path, b"");
    let named = |uid: u32| {
        let [whole, line] =
            ["/v1/jobs", "/v1/jobs/lines"].map(|list| ask(uid, list).text().contains("\"job\":\"job\""));
        assert_eq!(line, whole);
        whole
    };
    assert_eq!([named(STRANGER), named(MEMBER), named(OWNER), named(0)], [false, true, true, true]);
    let told = |uid: u32| ask(uid, "/v1/events?after=0").text().contains("\"job\":\"job\"");
    assert_eq!([told(STRANGER), told(MEMBER), told(OWNER), told(0)], [false, true, true, true]);
    let shown = |uid: u32| {
        let view = ask(uid, "/v1/jobs/lab/job").json();
        (view["seen"].as_str().unwrap().to_owned(), view["spec"].is_string())
    };
    assert_eq!(shown(MEMBER), ("shared".to_owned(), false));
    assert_eq!([shown(OWNER), shown(0)], [("own".to_owned(), true), ("own".to_owned(), true)]);
    assert_eq!(ask_as(&instance, MEMBER, "GET", "/v1/jobs/lab/job/file", b"").code(), "forbidden");
    // Its directory lets any member remove it, so that they may stop it; not so what runs with its owner's rights.
    let exec = format!("trainyard-for-user: {MEMBER}\r\nupgrade: trainyard-exec/1\r\n");
    assert_eq!(ask_with(&instance, "POST", "/v1/jobs/lab/job/exec", &exec, EXEC.as_bytes()).code(), "not_yours");
    assert_eq!(ask_as(&instance, MEMBER, "POST", "/v1/jobs/lab/job/stop", b"").status, 200);
    instance.wait_end("lab/job", 1);
    assert_eq!(ask_as(&instance, MEMBER, "DELETE", "/v1/jobs/lab/job?file=true", b"").status, 200);
    // Its record has gone; the next one is closed to them.
    job(&instance, "lab/next", GROUP, 0o644);
    assert_eq!(ask(MEMBER, "/v1/jobs/lab/next").status, 200);
    fs::set_permissions(instance.jobs_d().join("lab"), fs::Permissions::from_mode(0o2700)).unwrap();
    assert_eq!(ask(MEMBER, "/v1/jobs/lab/next").code(), "no_such_job");
    assert_eq!(ask(OWNER, "/v1/jobs/lab/next").status, 200, "their own they have wherever it is");
    instance.shutdown();
}

/// What a route does with the name that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// Tells of it, or takes it away: there must be one.
    Needs,
    /// Makes it, or lists what there is beside it.
    Makes,
    /// For root alone, whatever it names.
    Administers,
}

const TEMPLATE: &str = "command = \"true\"\n";

/// Each route that names a workspace, `W`, but for those of a job that are in [`TABLE`]; `N` is what it is about in there.
const WORKSPACE_ROUTES: [(&str, &str, Does, &str); 29] = [
    ("GET", "/v1/jobs?workspace=W", Does::Makes, ""),
    ("GET", "/v1/jobs/lines?workspace=W", Does::Makes, ""),
    ("GET", "/v1/events?workspace=W&job=N", Does::Makes, ""),
    ("GET", "/v1/usage?by=job&workspace=W", Does::Makes, ""),
    ("GET", "/v1/workspaces/W", Does::Makes, ""),
    ("GET", "/v1/datasets?workspace=W", Does::Makes, ""),
    ("GET", "/v1/models?workspace=W", Does::Makes, ""),
    ("GET", "/v1/templates?workspace=W", Does::Makes, ""),
    ("GET", "/v1/images?workspace=W", Does::Makes, ""),
    ("POST", "/v1/check?workspace=W&job=N", Does::Makes, JOB),
    ("POST", "/v1/tokens", Does::Makes, r#"{"name": "N-UID", "scopes": ["read"], "workspaces": ["W"]}"#),
    ("POST", "/v1/jobs/mine/own/clone?as=N&to=W", Does::Makes, ""),
    ("PUT", "/v1/jobs/W/N/file", Does::Makes, JOB),
    ("GET", "/v1/jobs/W/N/file", Does::Needs, ""),
    ("DELETE", "/v1/jobs/W/N/file", Does::Needs, ""),
    ("DELETE", "/v1/jobs/W/N?file=true", Does::Needs, ""),
    ("PUT", "/v1/templates/W/N", Does::Makes, TEMPLATE),
    ("GET", "/v1/templates/W/N", Does::Needs, ""),
    ("DELETE", "/v1/templates/W/N", Does::Needs, ""),
    ("DELETE", "/v1/datasets/W/N/v1", Does::Needs, ""),
    ("DELETE", "/v1/models/W/N/1", Does::Needs, ""),
    ("GET", "/v1/images/show?workspace=W&name=N", Does::Needs, ""),
    ("DELETE", "/v1/images?workspace=W&name=N", Does::Needs, ""),
    ("POST", "/v1/images/tag?workspace=W&name=N&new=N2", Does::Needs, ""),
    ("POST", "/v1/images/pull?workspace=W&name=localhost/N", Does::Makes, ""),
    ("POST", "/v1/images/import?workspace=W&name=N", Does::Makes, "no archive"),
    ("GET", "/v1/secrets/W", Does::Administers, ""),
    ("PUT", "/v1/secrets/W/N", Does::Administers, "hidden"),
    ("DELETE", "/v1/secrets/W/N", Does::Administers, ""),
];

/// Those of a job but for its file are in the other table.
fn names_a_workspace(route: &Route) -> bool {
    let in_path = route.places().any(|place| ["workspace", "home"].contains(&place));
    let of_job = route.path.starts_with("/v1/jobs/{workspace}/{job}") && !route.path.ends_with("/file");
    !of_job && (in_path || route.query.iter().any(|param| ["workspace", "to"].contains(&param.name)))
}

/// What the route answers of that name in that workspace, with neither of both in its words.
fn answered(instance: &Instance, uid: u32, row: usize, (workspace, name): (&str, &str)) -> (u16, String) {
    let (method, path, _, body) = WORKSPACE_ROUTES[row];
    let named = |text: &str| {
        let text = text.replace("=W", &format!("={workspace}")).replace("/W", &format!("/{workspace}"));
        let text = text.replace("\"W\"", &format!("\"{workspace}\"")).replace("UID", &uid.to_string());
        text.replace("=N", &format!("={name}")).replace("/N", &format!("/{name}")).replace("\"N", &format!("\"{name}"))
    };
    let body = if body == JOB { JOB.to_owned() } else { named(body) };
    let answer = ask_as(instance, uid, method, &named(path), body.as_bytes());
    assert!(answer.status < 500, "{method} {path}: {answer:?}");
    (answer.status, answer.text().replace(workspace, "WORKSPACE").replace(name, "NAME"))
}

#[test]
fn who_may_not_enter_a_workspace_learns_of_nothing_in_it_and_what_never_was_is_not_found() {
    let test = "who_may_not_enter_a_workspace_learns_of_nothing_in_it_and_what_never_was_is_not_found";
    for route in ROUTES.iter().filter(|route| names_a_workspace(route)) {
        let (verb, known) = (route.verb.name(), route.path.split('/').collect::<Vec<_>>());
        let is_same = |(method, path, ..): &(&str, &str, Does, &str)| {
            let given: Vec<&str> = path.split('?').next().unwrap_or_default().split('/').collect();
            let fits = |(known, given): (&&str, &&str)| known.starts_with('{') || known == given;
            *method == verb && given.len() == known.len() && known.iter().zip(&given).all(fits)
        };
        assert!(WORKSPACE_ROUTES.iter().any(is_same), "the table has not {verb} {}", route.path);
    }
    if !has_users(test) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    instance.make_workspace("lab", GROUP, 0o3770);
    instance.make_workspace("mine", GROUP, 0o1777);
    job(&instance, "lab/thing", GROUP, 0o644);
    fs::create_dir(instance.jobs_d().join("lab/thing.toml.d")).unwrap();
    fs::write(instance.jobs_d().join("lab/thing.template.toml"), TEMPLATE).unwrap();
    let held = format!("state = \"held\"\n{JOB}");
    assert_eq!(ask_as(&instance, STRANGER, "PUT", "/v1/jobs/mine/own/file", held.as_bytes()).status, 201);
    let lab = instance.root().join("var/lib/trainyard/workspaces/lab");
    for directory in ["datasets/thing/v1", "models/thing/1"] {
        fs::create_dir_all(lab.join(directory)).unwrap();
    }
    fs::write(lab.join("datasets/thing/v1.MANIFEST"), "").unwrap();
    for (row, (method, path, does, _)) in WORKSPACE_ROUTES.iter().enumerate() {
        let what = format!("{method} {path}");
        let ask = |uid, place| answered(&instance, uid, row, place);
        // Of what there is a stranger learns no more than of what never was, and of a workspace as little.
        let nowhere = ask(STRANGER, ("nowhere", "thing"));
        let told = [("lab", "thing"), ("lab", "ghost")].map(|place| ask(STRANGER, place));
        assert_eq!(told, [nowhere.clone(), nowhere.clone()], "{what}");
        if *does == Does::Administers {
            assert_eq!(nowhere.0, 403, "{what}");
            continue;
        }
        // A workspace that never was is told to everybody in the same words.
        if nowhere.0 == 404 {
            let others = [MEMBER, 0].map(|uid| ask(uid, ("nowhere", "thing")));
            assert_eq!(others, [nowhere.clone(), nowhere.clone()], "{what}");
        }
        // And what never was in one that they may enter is not there, nor can it be taken away.
        if *does == Does::Needs {
            for uid in [MEMBER, OWNER, 0] {
                let ghost = ask(uid, ("lab", "ghost"));
                assert!(ghost.0 == 404 && ghost.1.contains("NAME"), "{what}: {ghost:?}");
            }
        }
    }
    instance.shutdown();
}

const TICKS: &str =
    "command = \"while true; do echo tick; sleep 0.1; done\"\nresources = { cpu = 0.1, memory = \"100MB\" }\n";

/// A stream that somebody follows, of which the first line has come.
fn followed(instance: &Instance, uid: u32, path: &str) -> BufReader<std::os::unix::net::UnixStream> {
    let mut stream = connect(instance);
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntrainyard-for-user: {uid}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !(line.contains("tick") || line.contains("\"running\"")) {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "{path} has ended");
    }
    reader
}

/// The command line as the member, of which the first line has come.
fn member_says(instance: &Instance, arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new("timeout");
    command.args([
        "60".to_owned(),
        "setpriv".to_owned(),
        format!("--reuid={MEMBER}"),
        format!("--regid={GROUP}"),
        "--clear-groups".to_owned(),
    ]);
    command.arg(BINARY).arg("--root").arg(instance.root()).args(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    assert!(reader.read_line(&mut String::new()).unwrap() > 0, "{arguments:?}");
    (child, reader)
}

#[test]
fn who_follows_what_is_closed_meanwhile_is_told_and_does_not_take_it_for_the_end() {
    let test = "who_follows_what_is_closed_meanwhile_is_told_and_does_not_take_it_for_the_end";
    if !has_users(test) || !has_tools(test, &["setpriv", "timeout"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    instance.make_workspace("lab", GROUP, 0o2770);
    let draft = instance.root().join("draft");
    fs::write(&draft, TICKS).unwrap();
    chown(&draft, Some(OWNER), Some(GROUP)).unwrap();
    fs::rename(draft, instance.jobs_d().join("lab/ticks.toml")).unwrap();
    instance.wait_state("lab/ticks", "running");

    let logs = "/v1/jobs/lab/ticks/logs?follow=1";
    let of_job = "/v1/events?workspace=lab&job=ticks&follow=1";
    let mut closed = [
        (followed(&instance, MEMBER, logs), "the logs of job lab/ticks"),
        (followed(&instance, MEMBER, of_job), "job lab/ticks"),
        (followed(&instance, MEMBER, "/v1/events?workspace=lab&follow=1"), "workspace lab"),
    ];
    let mut as_text = followed(&instance, MEMBER, &format!("{logs}&format=text"));
    let mut own = followed(&instance, OWNER, of_job);
    let said = [&["logs", "-f", "lab/ticks"][..], &["events", "-f", "lab/ticks"][..]];
    let said = said.map(|arguments| member_says(&instance, arguments));
    fs::set_permissions(instance.jobs_d().join("lab"), fs::Permissions::from_mode(0o2700)).unwrap();
    assert_eq!(ask_as(&instance, OWNER, "POST", "/v1/jobs/lab/ticks/stop", b"").status, 200);

    for (stream, what) in &mut closed {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        let last = rest.lines().rfind(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{what}: {rest}"));
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["code"], "revoked", "{what}: {rest}");
        let why = format!("you may not see {what} any more");
        assert!(last["error"].as_str().unwrap().starts_with(&why), "{what}: {last}");
        assert!(!rest.contains("\"stopped\""), "nothing is told that came later: {rest}");
    }
    let mut rest = String::new();
    as_text.read_to_string(&mut rest).unwrap();
    assert!(!rest.ends_with("\r\n0\r\n\r\n"), "as the tasks' own lines it breaks off: {rest:?}");
    for (child, mut out) in said {
        out.read_to_end(&mut Vec::new()).unwrap();
        let ended = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{told}");
        assert!(told.contains("lab/ticks any more: the right to it was taken away while it was followed"), "{told}");
    }
    // Their own they see wherever it is.
    let mut line = String::new();
    while !line.contains("\"stopped\"") {
        line.clear();
        assert!(own.read_line(&mut line).unwrap() > 0, "the owner's stream has ended");
    }
    drop(own);
    instance.shutdown();
}
