//! A store that speaks S3 (crate `s3s-fs`) in the network namespace of an instance, with faults.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::host::{S3Host, VirtualHost};
use s3s::service::{S3Service, S3ServiceBuilder};

use super::support::images::in_network;

pub(crate) const ACCESS_KEY: &str = "AKIDLAB";
pub(crate) const SECRET_KEY: &str = "wJalrXUtnFEMI-hush";

/// What goes wrong with an answer whose request has this method and whose path ends so.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) what: Wrong,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Wrong {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    Status(u16),
    /// As long as it should be, but with other bytes.
    Garbled,
    /// Fewer bytes than the list says, and no word of that.
    Short(usize),
    /// Nothing is answered until the test ends.
    Never,
    /// Pieces of 64 KiB, with so long a pause between them.
    Slow(std::time::Duration),
    /// The connection ends when so many bytes of what is sent there have come.
    CutUpload(usize),
}

#[derive(Default)]
struct Shared {
    faults: VecDeque<Fault>,
    /// METHOD PATH of each request.
    requests: Vec<String>,
    is_down: bool,
}

pub(crate) struct Store {
    pub(crate) address: String,
    root: PathBuf,
    shared: Arc<Mutex<Shared>>,
}

impl Store {
    /// Serves `dir` with the bucket `train` to who has the keys.
    pub(crate) fn start(dir: &Path, holder: u32) -> Self {
        fs::create_dir_all(dir.join("train")).unwrap();
        in_network(holder, "ip", &["link", "set", "lo", "up"]);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (root, state) = (dir.to_owned(), shared.clone());
        let (sender, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let network = File::open(format!("/proc/{holder}/ns/net")).unwrap();
            nix::sched::setns(network, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            sender.send(listener.local_addr().unwrap().to_string()).unwrap();
            listener.set_nonblocking(true).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(listener, root, state));
        });
        Self { address: address.recv().unwrap(), root: dir.join("train"), shared }
    }

    /// `[pools.lab]` of an instance, and its file of keys; `[pools.named]` has the bucket in the host's name.
    pub(crate) fn pool(&self, root: &Path, more: &str) -> String {
        let secrets = root.join("etc/trainyard/secrets");
        let keys = format!("access_key = \"{ACCESS_KEY}\"\nsecret_key = \"{SECRET_KEY}\"\n");
        write_secret(&secrets.join("lab-keys"), &keys);
        format!(
            "[pools.lab]\nkind = \"s3\"\nendpoint = \"http://{}\"\nbucket = \"train\"\nsecret = \"lab-keys\"\n{more}\n\
             [pools.named]\nkind = \"s3\"\nendpoint = \"http://{DOMAIN}\"\nbucket = \"train\"\nvirtual_host = true\n\
             proxy = \"http://{}\"\nsecret = \"lab-keys\"\n",
            self.address, self.address
        )
    }

    pub(crate) fn put(&self, key: &str, content: impl AsRef<[u8]>) {
        let path = self.root.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        fs::read(self.root.join(key)).ok()
    }

    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.lock().unwrap().faults.extend(faults);
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.shared.lock().unwrap().is_down = is_down;
    }

    /// Requests since the last time, METHOD PATH.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().unwrap().requests)
    }

    pub(crate) fn faults_left(&self) -> usize {
        self.shared.lock().unwrap().faults.len()
    }
}

/// Hosts below this one are buckets; whoever asks by an address says the bucket in the path.
const DOMAIN: &str = "lab.test";

struct Named;

impl S3Host for Named {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> s3s::S3Result<VirtualHost<'a>> {
        let bucket = host.strip_suffix(DOMAIN).and_then(|host| host.strip_suffix('.'));
        Ok(bucket.map_or_else(|| VirtualHost::new(host), |bucket| VirtualHost::new(DOMAIN).with_bucket(bucket)))
    }
}

async fn serve(listener: TcpListener, root: PathBuf, shared: Arc<Mutex<Shared>>) {
    let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).unwrap());
    builder.set_host(Named);
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let service = builder.build();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((socket, _)) = listener.accept().await {
        let (service, shared) = (service.clone(), shared.clone());
        let answer = service_fn(move |request| answer(service.clone(), shared.clone(), request));
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer);
        tokio::spawn(async move { drop(connection.await) });
    }
}

type Answer = Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>>;

async fn answer(service: S3Service, shared: Arc<Mutex<Shared>>, request: Request<Incoming>) -> Answer {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let (wrong, is_down) = {
        let mut shared = shared.lock().unwrap();
        shared.requests.push(format!("{method} {path}"));
        let is_first = shared.faults.front().is_some_and(|fault| fault.method == method && path.ends_with(fault.path));
        (if is_first { shared.faults.pop_front().map(|fault| fault.what) } else { None }, shared.is_down)
    };
    let status = |code| Ok(Response::builder().status(StatusCode::from_u16(code)?).body(Body::empty())?);
    match wrong {
        _ if is_down => return status(503),
        Some(Wrong::Status(code)) => return status(code),
        Some(Wrong::Never) => return std::future::pending().await,
        Some(Wrong::CutUpload(length)) => return cut_upload(request.into_body(), length).await,
        _ => {}
    }
    let (mut head, body) = service.call(request.map(Body::from)).await?.into_parts();
    let Some(wrong) = wrong else { return Ok(Response::from_parts(head, body)) };
    let mut bytes = BodyExt::collect(body).await?.to_bytes().to_vec();
    match wrong {
        Wrong::Garbled => bytes.iter_mut().for_each(|byte| *byte ^= 0x55),
        Wrong::Short(length) => {
            bytes.truncate(length);
            head.headers.insert("content-length", length.into());
            head.headers.remove("content-range");
        }
        Wrong::Cut(length) => {
            let pieces = [Ok(Frame::data(Bytes::from(bytes).slice(..length))), Err(std::io::Error::other("cut"))];
            let body = http_body_util::StreamBody::new(futures_util::stream::iter(pieces));
            return Ok(Response::from_parts(head, Body::http_body_unsync(body)));
        }
        Wrong::Slow(pause) => {
            let pieces: Vec<Bytes> = bytes.chunks(64 << 10).map(Bytes::copy_from_slice).collect();
            let pieces = futures_util::stream::iter(pieces).then(move |piece| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, std::io::Error>(Frame::data(piece))
            });
            let body = http_body_util::StreamBody::new(pieces);
            return Ok(Response::from_parts(head, Body::http_body_unsync(body)));
        }
        Wrong::Status(_) | Wrong::Never | Wrong::CutUpload(_) => {}
    }
    Ok(Response::from_parts(head, Body::from(bytes)))
}

async fn cut_upload(mut body: Incoming, length: usize) -> Answer {
    let mut come = 0;
    while come < length {
        match body.frame().await {
            Some(frame) => come += frame?.data_ref().map_or(0, Bytes::len),
            None => break,
        }
    }
    Err("the upload is cut".into())
}

/// As an administrator does: for root alone.
pub(crate) fn write_secret(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}
