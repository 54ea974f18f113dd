//! Code from Git repositories, served by git itself over http.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::support::images::in_network;
use super::support::{ChildGuard, Instance, has_tools, pids_with, processes_with, text, wait_for};

/// Serves the repositories of a directory by `git http-backend`; what lies in `private/` wants a login.
const SERVER: &str = r#"
import base64, http.server, os, subprocess, sys
LOGIN = 'Basic ' + base64.b64encode(b'ada:s3cr@t').decode()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.0'
    def log_message(self, *args):
        pass
    def answer(self):
        path, _, query = self.path.partition('?')
        if path.startswith('/private/') and self.headers.get('Authorization') != LOGIN:
            self.send_response(401)
            self.send_header('WWW-Authenticate', 'Basic realm="lab"')
            self.end_headers()
            return
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        env = dict(os.environ, GIT_PROJECT_ROOT=sys.argv[1], GIT_HTTP_EXPORT_ALL='1', PATH_INFO=path, QUERY_STRING=query,
            REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get('Content-Type') or '',
            HTTP_CONTENT_ENCODING=self.headers.get('Content-Encoding') or '', GIT_PROTOCOL=self.headers.get('Git-Protocol') or '',
            GIT_CONFIG_COUNT='1', GIT_CONFIG_KEY_0='safe.directory', GIT_CONFIG_VALUE_0='*')
        out = subprocess.run(['git', 'http-backend'], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, rest = out.partition(b'\r\n\r\n')
        status = 200
        lines = [line.split(': ', 1) for line in head.decode().split('\r\n')]
        for name, value in lines:
            if name == 'Status':
                status = int(value.split()[0])
        self.send_response(status)
        for name, value in lines:
            if name != 'Status':
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(rest)
    do_GET = do_POST = answer
http.server.ThreadingHTTPServer.allow_reuse_address = True
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8418), Handler)
print('up', flush=True)
server.serve_forever()
"#;

fn serve(instance: &Instance, repositories: &Path) -> ChildGuard {
    in_network(instance.network_holder(), "ip", &["link", "set", "lo", "up"]);
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", instance.network_holder()));
    ChildGuard::ready(command.args(["/usr/bin/python3", "-c", SERVER]).arg(repositories), "up")
}

fn git(directory: &Path, words: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main", "-C"])
        .arg(directory)
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with two versions and a tag on the first; the commits.
fn make(path: &Path) -> (String, String) {
    fs::create_dir_all(path).unwrap();
    git(path, &["init", "--quiet"]);
    let commit = |content: &str| {
        fs::write(path.join("train.py"), content).unwrap();
        // What a repository brings to run by itself must not run.
        fs::write(path.join(".gitattributes"), "* filter=lfs\n").unwrap();
        git(path, &["add", "."]);
        git(path, &["commit", "--quiet", "-m", content]);
        git(path, &["rev-parse", "HEAD"])
    };
    let first = commit("print('first')\n");
    git(path, &["tag", "v1"]);
    (first, commit("print('second')\n"))
}

/// A commit of a few objects that stand for a hundred million files.
fn make_bomb(path: &Path) {
    fs::create_dir_all(path).unwrap();
    git(path, &["init", "--quiet"]);
    let script = "object=$(echo x | git hash-object -w --stdin); kind='100644 blob'; for level in 1 2 3 4; do \
        object=$(for n in $(seq 100); do printf '%s %s\\t%s\\n' \"$kind\" $object f$n; done | git mktree); kind='040000 tree'; \
        done; git update-ref refs/heads/main $(git -c user.name=t -c user.email=t@t commit-tree -m x $object)";
    let made = Command::new("sh").args(["-ec", script]).current_dir(path).status().unwrap();
    assert!(made.success());
}

/// A repository whose submodules are `(path, url, commit)`.
fn make_whole(path: &Path, parts: &[(&str, &str, &str)]) -> String {
    fs::create_dir_all(path).unwrap();
    git(path, &["init", "--quiet"]);
    let part =
        |(path, url, _): &(&str, &str, &str)| format!("[submodule \"the {path}\"]\npath = {path}\nurl = {url}\n");
    fs::write(path.join(".gitmodules"), parts.iter().map(part).collect::<String>()).unwrap();
    // A name that is no UTF-8 hides none of them.
    fs::write(path.join(OsStr::from_bytes(b"caf\xe9")), "").unwrap();
    git(path, &["add", "."]);
    for (part, _, commit) in parts {
        git(path, &["update-index", "--add", "--cacheinfo", &format!("160000,{commit},{part}")]);
    }
    git(path, &["commit", "--quiet", "-m", "whole"]);
    git(path, &["rev-parse", "HEAD"])
}

#[test]
fn code_comes_from_repositories_by_branch_tag_and_commit_and_is_noted() {
    const TEST: &str = "code_comes_from_repositories_by_branch_tag_and_commit_and_is_noted";
    if !has_tools(TEST, &["git", "ip", "setpriv", "prlimit"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = make(&dir.path().join("open/x"));
    make(&dir.path().join("private/x"));
    let _server = serve(&instance, dir.path());
    let open = "http://127.0.0.1:8418/open/x/.git";
    for (job, reference, says, commit) in [
        ("default", String::new(), "second", &second),
        ("branch", "ref = \"main\"".to_owned(), "second", &second),
        ("tag", "ref = \"v1\"".to_owned(), "first", &first),
        ("commit", format!("ref = \"{first}\""), "first", &first),
    ] {
        let comma = if reference.is_empty() { "" } else { ", " };
        let file =
            format!("command = 'python3 train.py; echo w > /model/w'\ncode = {{ git = \"{open}\"{comma}{reference} }}");
        let report = instance.run_job(job, &file);
        assert_eq!(report["state"], "succeeded", "{job}: {report:#}");
        assert_eq!(instance.log(job, "main-0"), format!("{says}\n"), "{job}");
        let about = fs::read_to_string(instance.mount().join("models").join(job).join("1/MODEL.toml")).unwrap();
        assert!(about.contains(&format!("commit = \"{commit}\"")), "{about}");
        assert!(!instance.run_dir(job, 1).join("code/.git").exists());
    }
    let private = "http://127.0.0.1:8418/private/x/.git";
    let refused = instance.run_job("refused", &format!("command = 'true'\ncode = {{ git = \"{private}\" }}"));
    let reason = text(&refused["reason"]);
    assert!(reason.contains("secret:NAME") && reason.contains(private), "{reason}");
    let secrets = instance.root().join("etc/trainyard/secrets/default");
    fs::create_dir_all(&secrets).unwrap();
    fs::write(secrets.join("git"), "s3cr@t\n").unwrap();
    fs::set_permissions(secrets.join("git"), fs::Permissions::from_mode(0o600)).unwrap();
    let login = format!("code = {{ git = \"{private}\", user = \"ada\", password = \"secret:git\" }}");
    let report = instance.run_job("let-in", &format!("command = 'python3 train.py'\n{login}"));
    assert_eq!(report["state"], "succeeded", "{report:#}");
    // As people who are not root do, to whom the daemon's directories are closed.
    let theirs = instance.jobs_d().join("theirs.toml");
    fs::write(theirs.with_extension("new"), format!("command = 'python3 train.py; id -u > /output/id'\n{login}"))
        .unwrap();
    std::os::unix::fs::chown(theirs.with_extension("new"), Some(65534), Some(65534)).unwrap();
    fs::rename(theirs.with_extension("new"), &theirs).unwrap();
    let report = instance.wait_end("theirs", 1);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    assert_eq!(instance.log("theirs", "main-0"), "second\n");
    let wrong = format!("command = 'true'\n{}", login.replace("private/x", "private/y"));
    let missing = text(&instance.run_job("missing", &wrong)["reason"]);
    assert!(missing.contains("private/y") && !missing.contains("s3cr"), "{missing}");
    let unknown = format!("command = 'true'\ncode = {{ git = \"{open}\", ref = \"no-such\" }}");
    let unknown = text(&instance.run_job("unknown", &unknown)["reason"]);
    assert!(unknown.contains("no-such") && unknown.contains("a branch, a tag or a whole commit"), "{unknown}");
    make_bomb(&dir.path().join("open/bomb"));
    let bomb = open.replace("open/x", "open/bomb");
    let large = instance.run_job("large", &format!("command = 'true'\ncode = {{ git = \"{bomb}\", ref = \"main\" }}"));
    assert!(text(&large["reason"]).contains("has more than 1000000 files"), "{large:#}");
    // Submodules are left out unless the job wants them, at whatever depth, and each is measured before it has files.
    let inner = make_whole(&dir.path().join("open/inner"), &[("x", "../../x/.git", &second)]);
    let inner_url = open.replace("open/x", "open/inner");
    make_whole(&dir.path().join("open/outer"), &[("a/inner", &inner_url, &inner), ("old x", "../../x/.git", &first)]);
    let heavy = git(&dir.path().join("open/bomb"), &["rev-parse", "main"]);
    make_whole(&dir.path().join("open/heavy"), &[("deep", "../../bomb/.git", &heavy)]);
    let with = |job: &str, repository: &str, more: &str| {
        let url = open.replace("open/x", &format!("open/{repository}"));
        let command = "find /code -name .git -o -name train.py | sort; cat '/code/old x/train.py' || true";
        instance.run_job(job, &format!("command = \"{command}\"\ncode = {{ git = \"{url}\"{more} }}"))
    };
    assert_eq!(with("bare", "outer", "")["state"], "succeeded");
    assert!(!instance.log("bare", "main-0").contains("/train.py\n"), "{}", instance.log("bare", "main-0"));
    let report = with("whole", "outer", ", submodules = true");
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let found = "/code/a/inner/x/train.py\n/code/old x/train.py\nprint('first')\n";
    assert_eq!(instance.log("whole", "main-0"), found);
    assert_eq!(with("light", "heavy", "")["state"], "succeeded");
    let heavy = with("heavy", "heavy", ", submodules = true");
    let reason = text(&heavy["reason"]);
    assert!(
        reason.contains("has more than 1000000 files") && reason.contains("with its submodule deep at "),
        "{reason}"
    );
    let long = dir.path().join("open/long");
    make_whole(&long, &[("x", "../x/.git", &second)]);
    let names = fs::read_to_string(long.join(".gitmodules")).unwrap() + &"# no end of it\n".repeat(70_000);
    fs::write(long.join(".gitmodules"), names).unwrap();
    git(&long, &["add", ".gitmodules"]);
    git(&long, &["commit", "--quiet", "-m", "long"]);
    let reason = text(&with("long", "long", ", submodules = true")["reason"]).to_owned();
    assert!(reason.contains("has a .gitmodules of ") && reason.contains("leave out `submodules`"), "{reason}");
    // Nothing of the login is left anywhere that people look.
    let names = |run: &Path| fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let left = names(instance.run_dir("let-in", 1).parent().unwrap());
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("fetch")), "{left:?}");
    let kept = Command::new("grep").args(["-rIl", "s3cr"]).arg(instance.root().join("var")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");
    assert!(!instance.journal().contains("s3cr"));
    instance.shutdown();
}

/// Takes connections and says nothing.
const SILENT: &str = r#"
import socket
server = socket.create_server(('127.0.0.1', 8419), backlog=100)
print('up', flush=True)
kept = []
while True:
    kept.append(server.accept())
"#;

#[test]
fn git_ends_with_the_job_that_wants_it_and_who_waits_for_a_turn_is_told_so() {
    const TEST: &str = "git_ends_with_the_job_that_wants_it_and_who_waits_for_a_turn_is_told_so";
    if !has_tools(TEST, &["git", "ip", "setpriv", "prlimit"]) {
        return;
    }
    let Some(instance) = Instance::start(TEST, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("open/x"));
    let _server = serve(&instance, dir.path());
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", instance.network_holder()));
    let _silent = ChildGuard::ready(command.args(["/usr/bin/python3", "-c", SILENT]), "up");
    let silent = format!("http://127.0.0.1:8419/silent-{}", std::process::id());
    let gits = || processes_with(&silent);
    let job = |url: &str| format!("command = 'cat train.py'\ncode = {{ git = \"{url}\" }}\n");
    // As many as are made ready at once.
    let values: Vec<usize> = (1..=32).collect();
    instance.drop_job("many", &format!("{}sweep.env.X = {values:?}\n", job(&silent)));
    let reason = |job: &str| instance.report(job).map(|report| text(&report["reason"])).unwrap_or_default();
    wait_for("all of them to be fetched", || {
        let fetches = |number: &usize| reason(&format!("many~{number}")) == format!("fetches its code from {silent}");
        (values.iter().all(fetches) && gits().iter().any(|git| git.contains("git-remote-http"))).then_some(())
    });
    let (pid, _) = pids_with(&silent).into_iter().find(|(_, git)| git.contains("git-remote-http")).unwrap();
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(
        environment.contains("GIT_HTTP_LOW_SPEED_TIME=60\0") && environment.contains("GIT_HTTP_LOW_SPEED_LIMIT=1\0")
    );
    let good = job("http://127.0.0.1:8418/open/x/.git");
    instance.drop_job("good", &good);
    instance.drop_job("unwanted", &good);
    for job in ["good", "unwanted"] {
        wait_for("the word on its turn", || reason(job).starts_with("waits for its turn: ").then_some(()));
    }
    instance.ok(&["stop", "unwanted"]);
    instance.wait_state("unwanted", "stopped");
    // By itself a silent one ends after 60 s.
    let end_soon = |whose: &str| {
        let begun = Instant::now();
        wait_for(whose, || gits().is_empty().then_some(()));
        assert!(begun.elapsed() < Duration::from_secs(30), "{whose}: {:?}", begun.elapsed());
    };
    instance.ok(&["stop", "many"]);
    end_soon("their gits to end");
    assert_eq!(instance.wait_end("good", 1)["state"], "succeeded");
    assert_eq!(instance.state("many~1"), "stopped");
    // What is set aside for a run that is to follow ends with the wish for it.
    instance.drop_job("next", "command = 'sleep 1000'");
    instance.wait_state("next", "running");
    instance.drop_job("next", &job(&silent));
    wait_for("what is set aside", || (!gits().is_empty()).then_some(()));
    instance.drop_job("next", "command = 'sleep 1000'");
    end_soon("its git to end");
    instance.shutdown();
}
