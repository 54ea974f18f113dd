//! Who sees which job, and may do what to it: each route about a job, for each kind of caller.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use trainyard::api::routes::ROUTES;

use super::super::support::{Instance, skip, wait_for};
use super::{Answer, NOBODY, ask_as, ask_with};

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
        let wanted = if *about == About::File { "forbidden" } else { "no_such_job" };
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
fn members_are_told_of_all_jobs_of_a_workspace_and_strangers_of_none_from_the_moment_on() {
    let test = "members_are_told_of_all_jobs_of_a_workspace_and_strangers_of_none_from_the_moment_on";
    if !has_users(test) {
        return;
    }
    let Some(instance) = Instance::start(test, "[limits]\nstop_grace = \"1s\"\n") else { return };
    instance.make_workspace("lab", GROUP, 0o2770);
    job(&instance, "lab/job", GROUP, 0o600);
    let ask = |uid: u32, path: &str| ask_as(&instance, uid, "GET", path, b"");
    let named = |uid: u32| ask(uid, "/v1/jobs").text().contains("\"job\":\"job\"");
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
