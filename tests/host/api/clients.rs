//! The API over the network, plain and with TLS, as rude and as patient clients meet it; those that come by the socket are in
//! `hostile`.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::hostile::{hear, resident, threads};
use super::network::certify;
use super::{get, open_workspace, parse};
use crate::support::images::in_network;
use crate::support::{Instance, PATIENCE, has_tools, wait_for};

const PLAIN: u16 = 8080;
const TLS: u16 = 8443;

/// A daemon that listens in its own network, with and without TLS.
struct Listening {
    instance: Instance,
    trust: Arc<ClientConfig>,
}

/// One end of a connection.
enum Client {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Client::Plain(stream) => stream.read(buffer),
            Client::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Client::Plain(stream) => stream.write(bytes),
            Client::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Client::Plain(stream) => stream.flush(),
            Client::Tls(stream) => stream.flush(),
        }
    }
}

impl Client {
    /// Nothing more will be sent; what is answered is still read.
    fn close_half(&mut self) {
        match self {
            Client::Plain(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            Client::Tls(stream) => {
                stream.conn.send_close_notify();
                stream.flush().unwrap();
                stream.sock.shutdown(Shutdown::Write).unwrap();
            }
        }
    }

    /// All that comes until the connection ends, however it does.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.read_to_end(&mut bytes);
        bytes
    }
}

impl Listening {
    fn start(test: &str) -> Option<Self> {
        if !has_tools(test, &["openssl"]) {
            return None;
        }
        let mut instance = Instance::prepare(test, "")?;
        let home = instance.root().join("etc/trainyard");
        certify(&home, "1", "FALSE");
        let config = format!(
            "[limits]\ncpu = 4\nmemory = \"4GiB\"\nstop_grace = \"1s\"\n[[listen]]\naddress = \"127.0.0.1:{TLS}\"\n\
             certificate = \"{0}/cert.pem\"\nkey = \"{0}/key.pem\"\n[[listen]]\naddress = \"127.0.0.1:{PLAIN}\"\n",
            home.display()
        );
        fs::write(home.join("trainyard.toml"), config).unwrap();
        instance.start_daemon(&[]);
        in_network(instance.network_holder(), "ip", &["link", "set", "lo", "up"]);
        instance.wait_ready();
        Some(Self { trust: trusting(&home.join("cert.pem")), instance })
    }

    /// A connection to `port` from an address of the loopback.
    fn connect(&self, port: u16, from: Ipv4Addr) -> Client {
        let stream = self.reach(port, from);
        if port == PLAIN {
            return Client::Plain(stream);
        }
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(self.trust.clone(), name).unwrap();
        Client::Tls(Box::new(StreamOwned::new(connection, stream)))
    }

    fn reach(&self, port: u16, from: Ipv4Addr) -> TcpStream {
        let holder = self.instance.network_holder();
        // A thread of its own: it stays in that network.
        let reached = std::thread::spawn(move || {
            let network = fs::File::open(format!("/proc/{holder}/ns/net")).unwrap();
            setns(network, CloneFlags::CLONE_NEWNET).unwrap();
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
            connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
            TcpStream::from(socket)
        });
        let stream = reached.join().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn here(&self, port: u16) -> Client {
        self.connect(port, Ipv4Addr::LOCALHOST)
    }

    fn token(&self) -> String {
        self.instance.ok(&["token", "new", "clients", "--scope", "jobs"]).trim().to_owned()
    }
}

fn trusting(certificate: &Path) -> Arc<ClientConfig> {
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_root_certificates(trusted).with_no_client_auth())
}

#[test]
fn rude_clients_over_the_network_are_answered_or_cut_off_and_hold_up_nobody() {
    let test = "rude_clients_over_the_network_are_answered_or_cut_off_and_hold_up_nobody";
    let Some(listening) = Listening::start(test) else { return };
    let token = listening.token();
    let head = |line: &str| format!("{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n");
    // Heads that never end; and, where there is TLS, a client that never greets, and one that does not speak it.
    let begun = format!("{}x-slow: ", head("GET /v1/jobs"));
    let begin = |port: u16| {
        let mut client = listening.here(port);
        // At once: a handshake has its time from when it is accepted, and many of them come one by one here.
        client.write_all(begun.as_bytes()).unwrap();
        client
    };
    let mut slow: Vec<Client> = [PLAIN, TLS].iter().flat_map(|port| (0..100).map(|_| begin(*port))).collect();
    let mut silent = listening.reach(TLS, Ipv4Addr::LOCALHOST);
    let mut foreign = listening.reach(TLS, Ipv4Addr::LOCALHOST);
    foreign.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    for port in [PLAIN, TLS] {
        let ask = |text: &str| {
            let mut client = listening.here(port);
            // It may be refused before all of it is taken.
            let _ = client.write_all(text.as_bytes());
            client.rest()
        };
        let close = "connection: close\r\n";
        assert_eq!(parse(&ask(&format!("{}{close}\r\n", head("GET /v1/jobs")))).status, 200);
        let long = format!("x-long: {}\r\n", "x".repeat(200 << 10));
        let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
        for headers in [long, many] {
            let said = ask(&format!("{}{headers}\r\n", head("GET /v1/jobs")));
            // What is still on the way when it closes may make the kernel throw its answer away.
            assert!(said.is_empty() || parse(&said).status == 431, "{}", String::from_utf8_lossy(&said));
        }
        // A request, and then what is none.
        let said = ask(&format!("{}\r\n\0\u{1}junk\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n", head("GET /healthz")));
        assert_eq!(String::from_utf8_lossy(&said).matches("HTTP/1.1 200").count(), 1);
        // A body that does not come is no file.
        let mut half = listening.here(port);
        let put = format!("{}content-length: 1000\r\n\r\ncommand", head("PUT /v1/jobs/default/x/file"));
        half.write_all(put.as_bytes()).unwrap();
        half.close_half();
        half.rest();
        assert!(!listening.instance.jobs_d().join("x.toml").exists());
        // Whoever closes one half of the connection of a stream has gone.
        let mut gone = listening.here(port);
        gone.write_all(format!("{}\r\n", head("GET /v1/events?follow=1")).as_bytes()).unwrap();
        gone.read_exact(&mut [0; 12]).unwrap();
        gone.close_half();
        gone.rest();
        // A token belongs to one user: over the network nobody is asked for.
        let other = ask(&format!("{}trainyard-for-user: 0\r\n{close}\r\n", head("GET /v1/jobs")));
        assert_eq!(parse(&other).code(), "forbidden");
    }
    let begun = Instant::now();
    assert_eq!(get(&listening.instance, "/v1/jobs").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // All of them are cut off.
    for stream in [&mut silent, &mut foreign] {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    for client in &mut slow {
        let said = client.rest();
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&said));
    }
    listening.instance.shutdown();
}

#[test]
fn a_thousand_idle_followers_over_the_network_take_little_memory_and_all_hear_of_a_line() {
    let test = "a_thousand_idle_followers_over_the_network_take_little_memory_and_all_hear_of_a_line";
    let Some(listening) = Listening::start(test) else { return };
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 4096, 4096).unwrap();
    let instance = &listening.instance;
    let talk = "image = \"host\"\ncommand = \"echo first; while [ ! -e /output/go ]; do sleep 0.1; done; echo second; sleep 1000\"\n";
    instance.drop_job("talk", talk);
    instance.wait_state("talk", "running");
    wait_for("the first line", || instance.log("talk", "main-0").contains("first").then_some(()));
    let token = listening.token();
    let request =
        format!("GET /v1/jobs/default/talk/logs?follow=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    let pid = instance.daemon_pid();
    let before = (resident(pid), threads(pid));
    let mut followers = Vec::new();
    // As many as one user may ask for at once, from as few addresses as may have so many connections.
    for (place, port) in [PLAIN, TLS].into_iter().cycle().take(1000).enumerate() {
        let from = Ipv4Addr::new(127, 0, 0, 2 + u8::try_from(place / 250).unwrap());
        let mut client = listening.connect(port, from);
        client.write_all(request.as_bytes()).unwrap();
        followers.push(BufReader::new(client));
    }
    followers.iter_mut().for_each(|follower| hear(follower, "first"));
    let after = (resident(pid), threads(pid));
    let each = after.0.saturating_sub(before.0) / 1000;
    eprintln!(
        "1,000 followers over the network: {} KiB each, {} threads before, {} after",
        each / 1024,
        before.1,
        after.1
    );
    assert!(each < 128 << 10, "{each} bytes each");
    assert!(after.1 < before.1 + 40, "{before:?} {after:?}");
    fs::write(instance.run_dir("talk", 1).join("output/go"), "").unwrap();
    followers.iter_mut().for_each(|follower| hear(follower, "second"));
    drop(followers);
    listening.instance.shutdown();
}

#[test]
fn a_log_can_be_had_in_parts_over_the_network() {
    let Some(listening) = Listening::start("a_log_can_be_had_in_parts_over_the_network") else { return };
    let instance = &listening.instance;
    open_workspace(instance, "open");
    instance.run_job("talk", "image = \"host\"\ncommand = \"seq 1 2000\"\n");
    let token = listening.token();
    let ask = |port: u16, method: &str, headers: &str| {
        let mut client = listening.here(port);
        let head = format!(
            "{method} /v1/jobs/default/talk/logs?format=text HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             connection: close\r\n{headers}\r\n"
        );
        client.write_all(head.as_bytes()).unwrap();
        parse(&client.rest())
    };
    let whole: String = (1..=2000).map(|number| format!("{number}\n")).collect();
    for port in [PLAIN, TLS] {
        let first = ask(port, "GET", "");
        assert_eq!((first.status, first.text()), (200, whole.clone()));
        let tag = first.header("etag").unwrap().to_owned();
        // As somebody goes on who was cut off.
        let rest = ask(port, "GET", &format!("range: bytes=5000-\r\nif-range: {tag}\r\n"));
        assert_eq!((rest.status, rest.text()), (206, whole[5000..].to_owned()));
        assert_eq!(rest.header("content-range").unwrap(), format!("bytes 5000-{}/{}", whole.len() - 1, whole.len()));
    }
    listening.instance.shutdown();
}
