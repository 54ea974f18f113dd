//! A small web server whose every answer a test decides, and images for it to hold.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use trainyard::images::Digest;
use trainyard::images::registry::*;
use trainyard::sys::process::SealedProgram;

#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn from(&self) -> usize {
        let range = self.header("range").strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
        range.map_or(0, |range| range.parse().expect("a range that we wrote"))
    }
}

pub struct Reply {
    bytes: Vec<u8>,
    hangs: bool,
    /// It comes when this has returned; others are answered meanwhile.
    after: Option<Box<dyn FnOnce() + Send>>,
}

impl Reply {
    pub fn new(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut bytes = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n").into_bytes();
        let is_framed = |(name, _): &(&str, &str)| ["content-length", "transfer-encoding"].contains(name);
        if !headers.iter().any(is_framed) {
            bytes.extend(format!("content-length: {}\r\n", body.len()).into_bytes());
        }
        for (name, value) in headers {
            bytes.extend(format!("{name}: {value}\r\n").into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(body);
        Self { bytes, hangs: false, after: None }
    }

    pub fn ok(body: &[u8]) -> Self {
        Self::new(200, &[], body)
    }

    pub fn status(status: u16) -> Self {
        Self::new(status, &[], b"")
    }

    pub fn chunked(body: &[u8]) -> Self {
        let mut framed = format!("{:x}\r\n", body.len()).into_bytes();
        framed.extend(body);
        framed.extend(b"\r\n0\r\n\r\n");
        Self::new(200, &[("transfer-encoding", "chunked")], &framed)
    }

    /// What a server that knows ranges says.
    pub fn part(request: &Request, whole: &[u8]) -> Self {
        match request.from() {
            0 => Self::ok(whole),
            from => {
                let range = format!("bytes {from}-{}/{}", whole.len() - 1, whole.len());
                Self::new(206, &[("content-range", &range)], &whole[from..])
            }
        }
    }

    /// Only the head and so many bytes of the body, then nothing more: the connection ends.
    pub fn cut(mut self, body: usize) -> Self {
        let head = self.bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        self.bytes.truncate(head + body);
        self
    }

    pub fn after(mut self, wait: impl FnOnce() + Send + 'static) -> Self {
        self.after = Some(Box::new(wait));
        self
    }

    /// The connection stays as it is until the server ends.
    pub fn hang(mut self) -> Self {
        self.hangs = true;
        self
    }
}

pub struct Server {
    pub port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// One that wants to know nobody: what greets it is neither told nor counted.
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + 'static) -> Self {
        Self::listen(true, answer)
    }

    /// One that decides also what it says to a greeting, by which it may ask for a proof.
    pub fn guarded(answer: impl Fn(&Request) -> Reply + Send + 'static) -> Self {
        Self::listen(false, answer)
    }

    fn listen(is_open: bool, answer: impl Fn(&Request) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (seen, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (their_seen, their_over) = (seen.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let mut hanging = Vec::new();
            for connection in listener.incoming() {
                if their_over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut connection) = connection else { continue };
                let Some(request) = read(&connection) else { continue };
                let is_greeting = is_open && (request.path == "/v2/" || request.method == "HEAD");
                if !is_greeting {
                    their_seen.lock().expect("no panic").push(request.clone());
                }
                let reply = if is_greeting { Reply::ok(b"") } else { answer(&request) };
                if let Some(wait) = reply.after {
                    std::thread::spawn(move || {
                        wait();
                        let _ = connection.write_all(&reply.bytes);
                    });
                    continue;
                }
                // Who is cut off does not read to the end.
                let _ = connection.write_all(&reply.bytes);
                if reply.hangs {
                    hanging.push(connection);
                }
            }
        });
        Self { port, seen, over, thread: Some(thread) }
    }

    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().expect("no panic").clone()
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn reference(&self, rest: &str) -> Reference {
        Reference::parse(&format!("{}/{rest}", self.host()), "docker.io").expect("a name")
    }

    pub fn client(&self) -> Registry {
        registry(self.config())
    }

    pub fn config(&self) -> RegistryConfig {
        quick(&[self.host()])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// One that asks by the real program.
pub fn registry(config: RegistryConfig) -> Registry {
    try_registry(config).expect("a client")
}

pub fn try_registry(config: RegistryConfig) -> Result<Registry, RegistryError> {
    static PROGRAM: LazyLock<Arc<SealedProgram>> =
        LazyLock::new(|| Arc::new(SealedProgram::of(Path::new(env!("CARGO_BIN_EXE_trainyard"))).expect("the program")));
    Registry::new(PROGRAM.clone(), config)
}

/// Short waits, long patience for a busy machine.
pub fn quick(plain_http: &[String]) -> RegistryConfig {
    let (stall, first_wait) = (Duration::from_secs(20), Duration::from_millis(1));
    RegistryConfig { plain_http: plain_http.to_vec(), stall, first_wait, ..RegistryConfig::default() }
}

fn read(connection: &TcpStream) -> Option<Request> {
    connection.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    connection.set_write_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, headers, body: String::from_utf8(body).ok()? })
}

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// Documents by their path below `/v2/REPOSITORY/`.
#[derive(Default, Clone)]
pub struct Site(BTreeMap<String, (String, Vec<u8>)>);

impl Site {
    pub fn put(&mut self, path: &str, media_type: &str, bytes: &[u8]) -> Digest {
        self.0.insert(path.to_owned(), (media_type.to_owned(), bytes.to_vec()));
        Digest::of(bytes)
    }

    /// A manifest under a tag and its digest.
    pub fn manifest(&mut self, tag: &str, media_type: &str, text: &str) -> Digest {
        let digest = Digest::of(text.as_bytes());
        self.put(&format!("manifests/{digest}"), media_type, text.as_bytes());
        self.put(&format!("manifests/{tag}"), media_type, text.as_bytes())
    }

    pub fn blob(&mut self, bytes: &[u8]) -> Digest {
        self.put(&format!("blobs/{}", Digest::of(bytes)), "application/octet-stream", bytes)
    }

    /// An image of one layer.
    pub fn image(&mut self, tag: &str, architecture: &str) -> Digest {
        let layer = self.blob(b"a layer");
        let config = format!(
            r#"{{"os":"linux","architecture":"{architecture}","rootfs":{{"type":"layers","diff_ids":["{layer}"]}}}}"#
        );
        let digest = self.blob(config.as_bytes());
        let text = manifest(CONFIG, &digest, config.len(), LAYER, &layer, 7);
        self.manifest(tag, MANIFEST, &text)
    }

    pub fn reply(&self, request: &Request) -> Reply {
        let path = request.path.splitn(4, '/').nth(3).unwrap_or_default();
        match self.0.get(path) {
            Some((media_type, bytes)) => Reply::new(200, &[("content-type", media_type)], bytes),
            None => Reply::new(404, &[], br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#),
        }
    }
}

pub fn manifest(
    config_type: &str,
    config: &Digest,
    config_size: usize,
    layer_type: &str,
    layer: &Digest,
    layer_size: i64,
) -> String {
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{"mediaType":"{config_type}","digest":"{config}","size":{config_size}}},
        "layers":[{{"mediaType":"{layer_type}","digest":"{layer}","size":{layer_size}}}]}}"#
    )
}

pub fn source<'a>(reference: &'a Reference, credentials: Option<&'a Credentials>) -> Source<'a> {
    Source { reference, credentials }
}

pub fn login(user: &str, password: &str) -> Credentials {
    Credentials { user: user.to_owned(), password: password.to_owned() }
}

/// Everything that an error can show.
pub fn shown(error: &RegistryError) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error} {error:?} {source}")
}
