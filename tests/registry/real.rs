//! A real registry (Debian's docker-registry) on the loopback, filled by skopeo.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trainyard::images::Digest;
use trainyard::images::registry::*;

use crate::server::*;
use crate::support::{ChildGuard, has_tools};

const TOOLS: [&str; 5] = ["docker-registry", "skopeo", "umoci", "htpasswd", "openssl"];

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

struct Real {
    port: u16,
    dir: tempfile::TempDir,
    _child: ChildGuard,
}

#[derive(Clone, Copy, PartialEq)]
enum Guard {
    Open,
    Password,
    Tls,
}

impl Real {
    async fn start(guard: Guard) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let at = |name: &str| dir.path().join(name);
        let (mut tls, mut auth) = (String::new(), String::new());
        if guard == Guard::Tls {
            certificate(dir.path());
            tls = format!("  tls:\n    certificate: {}\n    key: {}\n", at("crt").display(), at("key").display());
        }
        if guard == Guard::Password {
            fs::write(at("htpasswd"), run(Command::new("htpasswd").args(["-Bbn", "lab", "secret"]))).unwrap();
            auth = format!("auth:\n  htpasswd:\n    realm: lab\n    path: {}\n", at("htpasswd").display());
        }
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n{tls}{auth}",
            at("storage").display()
        );
        fs::write(at("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(at("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        let real = Self { port, _child: ChildGuard(command.spawn().unwrap()), dir };
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "docker-registry does not listen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        real
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn reference(&self, rest: &str) -> Reference {
        Reference::parse(&format!("{}/{rest}", self.host()), "docker.io").unwrap()
    }

    fn client(&self) -> Registry {
        registry(quick(&[self.host()]))
    }

    /// Puts an image of two layers there.
    fn fill(&self, name: &str, format: &str) {
        let layout = layout(self.dir.path());
        let to = format!("docker://{}/{name}", self.host());
        let mut copy = Command::new("skopeo");
        copy.args([
            "--insecure-policy",
            "copy",
            "--dest-tls-verify=false",
            "--dest-creds=lab:secret",
            "--format",
            format,
        ]);
        run(copy.arg(format!("oci:{}:1", layout.display())).arg(to));
    }

    fn inspect(&self, name: &str, flags: &[&str]) -> Vec<u8> {
        let mut inspect = Command::new("skopeo");
        inspect.args(["inspect", "--tls-verify=false", "--creds=lab:secret", "--raw"]).args(flags);
        run(inspect.arg(format!("docker://{}/{name}", self.host())))
    }
}

fn certificate(dir: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    openssl.args([
        "-subj",
        "/CN=lab",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    run(openssl.arg("-keyout").arg(dir.join("key")).arg("-out").arg(dir.join("crt")));
}

fn layout(dir: &Path) -> PathBuf {
    let layout = dir.join("layout");
    if layout.exists() {
        return layout;
    }
    let umoci = |words: &[&str]| drop(run(Command::new("umoci").args(words)));
    let path = layout.to_str().unwrap();
    let image = format!("{path}:1");
    umoci(&["init", "--layout", path]);
    umoci(&["new", "--image", &image]);
    for (number, size) in [(1_u8, 3_000_000), (2, 10)] {
        let file = dir.join(format!("content-{number}"));
        // Nothing that gzip could make small.
        let noise = (0..size).map(|at: u32| (at.wrapping_mul(2_654_435_761 ^ u32::from(number)) >> 13) as u8);
        fs::write(&file, noise.collect::<Vec<u8>>()).unwrap();
        umoci(&["insert", "--image", &image, file.to_str().unwrap(), &format!("/content-{number}")]);
    }
    layout
}

async fn manifest(real: &Real, name: &str, login: Option<&Credentials>) -> Result<Fetched, RegistryError> {
    real.client().manifest(source(&real.reference(name), login)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_what_skopeo_says_of_them_and_their_layers_come() {
    if !has_tools("images_are_what_skopeo_says_of_them_and_their_layers_come", &TOOLS) {
        return;
    }
    let real = Real::start(Guard::Open).await;
    for (name, format) in [("team/oci:1", "oci"), ("team/docker:1", "v2s2")] {
        real.fill(name, format);
        let fetched = manifest(&real, name, None).await.unwrap();
        let raw = real.inspect(name, &[]);
        assert_eq!((&fetched.manifest, &fetched.digest), (&raw, &Digest::of(&raw)));
        assert_eq!(fetched.config, real.inspect(name, &["--config"]));
        assert_eq!((fetched.layers.len(), fetched.diff_ids.len()), (2, 2));
        let pinned = format!("{}@{}", name.trim_end_matches(":1"), fetched.digest);
        assert_eq!(manifest(&real, &pinned, None).await.unwrap(), fetched);
        for layer in &fetched.layers {
            pull(&real, name, layer, None).await;
        }
    }
}

/// From nothing, and from the half.
async fn pull(real: &Real, name: &str, layer: &LayerBlob, login: Option<&Credentials>) {
    let (reference, client) = (real.reference(name), real.client());
    let file = tempfile::NamedTempFile::new().unwrap();
    client.blob(source(&reference, login), layer, &mut file.reopen().unwrap(), &|_| ()).await.unwrap();
    let whole = fs::read(file.path()).unwrap();
    assert_eq!((Digest::of(&whole), whole.len() as u64), (layer.digest.clone(), layer.size));
    let (mut half, told) = (tempfile::tempfile().unwrap(), std::sync::Mutex::new(Vec::new()));
    half.write_all(&whole[..whole.len() / 2]).unwrap();
    let tell = |bytes| told.lock().unwrap().push(bytes);
    client.blob(source(&reference, login), layer, &mut half, &tell).await.unwrap();
    assert!(told.lock().unwrap().first() == Some(&(whole.len() as u64 / 2)) && told.lock().unwrap().is_sorted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_told() {
    if !has_tools("what_is_not_there_is_told", &TOOLS) {
        return;
    }
    let real = Real::start(Guard::Open).await;
    real.fill("team/a:1", "oci");
    let said = |name: &'static str| async { manifest(&real, name, None).await.unwrap_err() };
    let error = said("team/a:2").await;
    assert!(matches!(&error, RegistryError::NotFound { missing: Missing::Manifest { .. }, .. }), "{error:?}");
    let error = said("team/b:1").await;
    assert!(matches!(&error, RegistryError::NotFound { missing: Missing::Repository(_), .. }), "{error:?}");
    let pinned = format!("team/a@sha256:{}", "0".repeat(64));
    let error = manifest(&real, &pinned, None).await.unwrap_err();
    assert!(matches!(&error, RegistryError::NotFound { missing: Missing::Manifest { .. }, .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_needed_where_it_is() {
    if !has_tools("a_password_is_needed_where_it_is", &TOOLS) {
        return;
    }
    let real = Real::start(Guard::Password).await;
    real.fill("team/a:1", "oci");
    let error = manifest(&real, "team/a:1", None).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unauthorized { had_credentials: false, .. }), "{error:?}");
    let error = manifest(&real, "team/a:1", Some(&login("lab", "wrong"))).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unauthorized { had_credentials: true, .. }), "{error:?}");
    assert!(error.to_string().contains("put credentials") && !shown(&error).contains("wrong"), "{error}");
    let lab = login("lab", "secret");
    let fetched = manifest(&real, "team/a:1", Some(&lab)).await.unwrap();
    assert_eq!(fetched.manifest, real.inspect("team/a:1", &[]));
    pull(&real, "team/a:1", &fetched.layers[0], Some(&lab)).await;
    let error = manifest(&real, "team/a:2", Some(&lab)).await.unwrap_err();
    assert!(matches!(error, RegistryError::NotFound { had_credentials: true, .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_is_spoken_only_where_it_is_allowed() {
    if !has_tools("plain_http_is_spoken_only_where_it_is_allowed", &TOOLS) {
        return;
    }
    let real = Real::start(Guard::Open).await;
    let reference = real.reference("team/a:1");
    let strict = registry(quick(&["127.0.0.1".to_owned()]));
    let error = strict.manifest(source(&reference, None)).await.unwrap_err();
    assert!(matches!(&error, RegistryError::PlainHttpNotAllowed { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("plain_http = [\"{}\"] under [images]", real.host())), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_must_be_trusted() {
    if !has_tools("a_certificate_must_be_trusted", &TOOLS) {
        return;
    }
    let real = Real::start(Guard::Tls).await;
    real.fill("team/a:1", "oci");
    let reference = real.reference("team/a:1");
    let ask = |config| async { registry(config).manifest(source(&reference, None)).await };
    let error = ask(quick(&[])).await.unwrap_err();
    assert!(matches!(&error, RegistryError::TlsFailed { .. }), "{error:?}");
    let pem = fs::read(real.dir.path().join("crt")).unwrap();
    let fetched = ask(RegistryConfig { extra_ca: Some(pem), ..quick(&[]) }).await.unwrap();
    assert_eq!(fetched.manifest, real.inspect("team/a:1", &[]));
    // The other way around: allowed to speak http, it speaks https.
    let error = ask(quick(&[real.host()])).await.unwrap_err();
    assert!(matches!(&error, RegistryError::Refused { status: Some(400), .. }), "{error:?}");
    assert!(error.to_string().contains("HTTPS"), "{error}");
}

/// A registry over TLS that sends whoever comes to plain http: for a token, or for what was asked.
const SENDS_AWAY: &str = r#"
import http.server, ssl, sys
thief, leads = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.do_GET()
    def do_GET(self):
        greets = self.path == "/v2/" or self.command == "HEAD"
        self.send_response(401 if greets and leads == "token" else 200 if greets else 307)
        if greets and leads == "token":
            self.send_header("www-authenticate", f'Bearer realm="http://{thief}/token"')
        if not greets:
            self.send_header("location", f"http://{thief}/x")
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("crt", "key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

struct SendsAway {
    _child: ChildGuard,
    port: u16,
}

impl SendsAway {
    fn start(dir: &Path, thief: &str, leads: &str) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", SENDS_AWAY, thief, leads]).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        Self { _child: ChildGuard(child), port: line.trim().parse().unwrap() }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_never_leads_to_plain_http() {
    if !has_tools("https_never_leads_to_plain_http", &["openssl"]) {
        return;
    }
    let thief = Server::guarded(|_| Reply::ok(b"{\"token\":\"x\"}"));
    let dir = tempfile::tempdir().unwrap();
    certificate(dir.path());
    let pem = fs::read(dir.path().join("crt")).unwrap();
    // Also where the thief's own host may speak plain http.
    let proxies = Proxies { none_for: Some("127.0.0.1".to_owned()), ..Proxies::default() };
    let config = RegistryConfig { extra_ca: Some(pem), proxies, ..quick(&[thief.host()]) };
    let (client, lab) = (registry(config), login("lab", "secret"));
    for (leads, login) in [("token", Some(&lab)), ("token", None), ("elsewhere", Some(&lab)), ("elsewhere", None)] {
        let server = SendsAway::start(dir.path(), &thief.host(), leads);
        let reference = Reference::parse(&format!("127.0.0.1:{}/a:1", server.port), "docker.io").unwrap();
        let error = client.manifest(source(&reference, login)).await.unwrap_err();
        assert!(matches!(&error, RegistryError::Untrusted { .. }), "{leads}: {error:?}");
    }
    assert!(thief.seen().is_empty(), "{:?}", thief.seen());
}
