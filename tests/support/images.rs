//! Images made on the spot from packages of the distribution, and a registry on loopback.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ChildGuard, wait_for};

/// Runs a tool; it must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A Debian root file system with Python, as an OCI layout with the tag `py`: four layers, made once for all tests.
pub(crate) fn debian() -> PathBuf {
    made_once("debian-image", make_debian)
}

/// A Debian root file system with PyTorch, as an OCI layout with the tag `torch`; large.
pub(crate) fn torch() -> PathBuf {
    made_once("torch-image", |draft| _ = base(draft, "python3-torch,python3-numpy", "torch"))
}

/// As [`torch`], with what Horovod needs beside it; tag `horovod`.
pub(crate) fn horovod() -> PathBuf {
    // Its launcher imports `distutils`, which Python 3.12 and Debian's Python have no more without setuptools.
    let packages = "python3-torch,python3-numpy,python3-setuptools,python3-cloudpickle,python3-psutil,python3-yaml,python3-packaging,python3-cffi,openmpi-bin";
    made_once("horovod-with-setuptools-image", |draft| _ = base(draft, packages, "horovod"))
}

pub(crate) fn torch_is_here() -> bool {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("torch-image/layout").exists()
}

/// What `make` leaves in `oci` below an empty directory, kept below `target`.
fn made_once(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let layout = store.join("layout");
    fs::create_dir_all(&store).unwrap();
    let lock = fs::File::create(store.join("lock")).unwrap();
    lock.lock().unwrap();
    if !layout.exists() {
        let draft = store.join("draft");
        let _ = fs::remove_dir_all(&draft);
        fs::create_dir_all(&draft).unwrap();
        make(&draft);
        run("chmod", &["-R", "a+rX", &draft.join("oci").display().to_string()]);
        fs::rename(draft.join("oci"), &layout).unwrap();
        fs::remove_dir_all(draft).unwrap();
    }
    layout
}

/// An image of one layer of the distribution's packages.
fn base(draft: &Path, packages: &str, tag: &str) -> String {
    let path = |name: &str| draft.join(name).display().to_string();
    let exclude = ["doc", "locale", "man"].map(|name| format!("--dpkgopt=path-exclude=/usr/share/{name}/*"));
    let (tar, suite, include) = (path("base.tar"), codename(), format!("--include={packages}"));
    let mut arguments = vec!["--quiet", "--mode=root", "--variant=minbase", include.as_str()];
    arguments.extend(exclude.iter().map(String::as_str));
    arguments.extend([suite.as_str(), tar.as_str()]);
    run("mmdebstrap", &arguments);
    let (oci, image) = (path("oci"), format!("{}:{tag}", path("oci")));
    run("umoci", &["init", "--layout", &oci]);
    run("umoci", &["new", "--image", &image]);
    run("umoci", &["raw", "add-layer", "--image", &image, &tar]);
    image
}

fn make_debian(draft: &Path) {
    let image = base(draft, "python3-minimal", "py");
    let path = |name: &str| draft.join(name).display().to_string();
    fs::create_dir_all(draft.join("app")).unwrap();
    fs::write(draft.join("app/main.py"), "print('hello from the image')\n").unwrap();
    run(
        "/usr/bin/python3",
        &["-c", &format!("import os; os.setxattr({:?}, 'user.note', b'kept')", path("app/main.py"))],
    );
    fs::write(draft.join("motd"), "changed by an upper layer\n").unwrap();
    run("umoci", &["insert", "--image", &image, &path("app"), "/opt/app"]);
    run("umoci", &["insert", "--image", &image, &path("motd"), "/root/motd"]);
    run("umoci", &["insert", "--image", &image, "--whiteout", "/etc/issue"]);
    let config = [
        "--config.entrypoint=python3",
        "--config.cmd=/opt/app/main.py",
        "--config.workingdir=/opt/app",
        "--config.env=FROM_IMAGE=yes",
        "--config.stopsignal=SIGINT",
        "--config.label=kind=test",
        "--config.volume=/scratch",
    ];
    let mut arguments = vec!["config", "--image", &image];
    arguments.extend(config);
    run("umoci", &arguments);
}

/// The distribution's own release.
fn codename() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    found.unwrap_or("bookworm").trim_matches('"').to_owned()
}

/// An OCI layout of one layer with busybox and whatever `fill` puts beside it; tag `t`.
pub(crate) fn small(dir: &Path, config: &[&str], fill: impl Fn(&Path)) -> String {
    let (oci, root) = (dir.join("oci"), dir.join("rootfs"));
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    fill(&root);
    let tar = dir.join("layer.tar").display().to_string();
    run(
        "tar",
        &["-C", &root.display().to_string(), "--numeric-owner", "--xattrs", "--xattrs-include=*", "-cf", &tar, "."],
    );
    let image = format!("{}:t", oci.display());
    run("umoci", &["init", "--layout", &oci.display().to_string()]);
    run("umoci", &["new", "--image", &image]);
    run("umoci", &["raw", "add-layer", "--image", &image, &tar]);
    if !config.is_empty() {
        let mut arguments = vec!["config", "--image", &image];
        arguments.extend(config);
        run("umoci", &arguments);
    }
    run("chmod", &["-R", "a+rX", &dir.display().to_string()]);
    format!("oci:{image}")
}

/// A registry of the distribution's package in a network namespace; ends when dropped.
pub(crate) struct Registry {
    _child: ChildGuard,
    pub(crate) address: String,
    /// What it was asked for.
    requests: PathBuf,
}

impl Registry {
    /// Serves `dir` at 127.0.0.1:5000 in the network namespace of process `holder`, with `USER:PASSWORD` if given.
    pub(crate) fn start(dir: &Path, holder: u32, login: Option<(&str, &str)>, port: u16) -> Self {
        let address = format!("127.0.0.1:{port}");
        let auth = login.map_or(String::new(), |(user, password)| {
            let line = run("htpasswd", &["-Bbn", user, password]);
            fs::write(dir.join("htpasswd"), line).unwrap();
            format!("auth:\n  htpasswd:\n    realm: lab\n    path: {}\n", dir.join("htpasswd").display())
        });
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n{auth}",
            dir.join("registry").display()
        );
        fs::write(dir.join("registry.yml"), config).unwrap();
        in_network(holder, "ip", &["link", "set", "lo", "up"]);
        let child = Command::new("nsenter")
            .arg(format!("--net=/proc/{holder}/ns/net"))
            .args(["docker-registry", "serve"])
            .arg(dir.join("registry.yml"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(dir.join("requests")).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let registry = Self { _child: ChildGuard(child), address, requests: dir.join("requests") };
        wait_for("the registry", || {
            let url = format!("http://{}/v2/", registry.address);
            let script = format!(
                "import urllib.request,urllib.error\ntry: urllib.request.urlopen('{url}')\nexcept urllib.error.HTTPError: pass"
            );
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{holder}/ns/net")).args(["/usr/bin/python3", "-c", &script]);
            command.stderr(Stdio::null()).status().unwrap().success().then_some(())
        });
        registry
    }
}

impl Registry {
    /// Blobs that were fetched, each as often as it was.
    pub(crate) fn fetched_blobs(&self) -> Vec<String> {
        let requests = fs::read_to_string(&self.requests).unwrap();
        let of = |line: &str| {
            let path = line.split("\"GET ").nth(1)?.split(' ').next()?;
            Some(path.split("/blobs/").nth(1)?.to_owned())
        };
        requests.lines().filter_map(of).collect()
    }
}

/// Runs a tool in the network namespace of process `holder`.
pub(crate) fn in_network(holder: u32, program: &str, arguments: &[&str]) -> String {
    let net = format!("--net=/proc/{holder}/ns/net");
    let mut all = vec![net.as_str(), program];
    all.extend(arguments);
    run("nsenter", &all)
}

/// Every file below `root` with type, mode, owner, size, link, extended attributes and content, one line each.
pub(crate) fn describe_tree(root: &Path) -> Vec<String> {
    let script = r#"
import os, sys, stat, hashlib
root = os.fsencode(sys.argv[1])
for directory, names, files in os.walk(root):
    names.sort()
    for name in sorted(names + files):
        path = os.path.join(directory, name)
        s = os.lstat(path)
        xattrs = {k: os.getxattr(path, k, follow_symlinks=False) for k in os.listxattr(path, follow_symlinks=False)
                  if not k.startswith(("trusted.overlay", "user.rootlesscontainers"))}
        what = ""
        if stat.S_ISREG(s.st_mode):
            what = hashlib.sha256(open(path, "rb").read()).hexdigest()
        elif stat.S_ISLNK(s.st_mode):
            what = os.readlink(path)
        elif stat.S_ISCHR(s.st_mode) or stat.S_ISBLK(s.st_mode):
            what = str(s.st_rdev)
        size = s.st_size if stat.S_ISREG(s.st_mode) else 0
        print(os.path.relpath(path, root), oct(s.st_mode), s.st_uid, s.st_gid, size, sorted(xattrs.items()), what)
"#;
    let output = run("/usr/bin/python3", &["-c", script, &root.display().to_string()]);
    output.lines().map(str::to_owned).collect()
}

/// Writes a file of credentials as `podman login` does.
pub(crate) fn write_login(path: &Path, registry: &str, login: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder =
        Command::new("base64").args(["-w0"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    encoder.stdin.take().unwrap().write_all(login.as_bytes()).unwrap();
    let encoded = String::from_utf8(encoder.wait_with_output().unwrap().stdout).unwrap();
    fs::write(path, format!(r#"{{"auths": {{"{registry}": {{"auth": "{encoded}"}}}}}}"#)).unwrap();
}
