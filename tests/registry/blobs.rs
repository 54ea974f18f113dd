//! Blobs from a registry that breaks off, lies, or sends us elsewhere.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use trainyard::images::Digest;
use trainyard::images::registry::*;

use crate::server::*;

fn content() -> Vec<u8> {
    (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn layer(bytes: &[u8]) -> LayerBlob {
    LayerBlob { digest: Digest::of(bytes), size: bytes.len() as u64, media_type: LAYER.to_owned() }
}

/// A file that holds `there`, its content after a pull, and how the pull ended.
async fn pull_into(
    there: &[u8],
    server: &Server,
    config: RegistryConfig,
    credentials: Option<&Credentials>,
    wanted: &LayerBlob,
) -> (Vec<u8>, Result<(), RegistryError>, Vec<u64>) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(there).unwrap();
    let told = Mutex::new(Vec::new());
    let progress = |bytes| told.lock().unwrap().push(bytes);
    let (reference, mut into) = (server.reference("a:1"), file.reopen().unwrap());
    // Wherever the cursor is.
    into.seek(SeekFrom::End(0)).unwrap();
    let client = registry(config);
    let ended = client.blob(source(&reference, credentials), wanted, &mut into, &progress).await;
    drop::<File>(into);
    (fs::read(file.path()).unwrap(), ended, told.into_inner().unwrap())
}

async fn pull(server: &Server, wanted: &LayerBlob) -> (Vec<u8>, Result<(), RegistryError>) {
    let (got, ended, _) = pull_into(b"", server, server.config(), None, wanted).await;
    (got, ended)
}

/// A server that answers the first request so, the second so; the last answer is for all further ones.
fn in_turn(answers: Vec<Answer>) -> Server {
    let number = AtomicUsize::new(0);
    Server::start(move |request| {
        let at = number.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        answers[at](request)
    })
}

type Answer = Box<dyn Fn(&Request) -> Reply + Send>;

fn whole() -> Answer {
    Box::new(|request| Reply::part(request, &content()))
}

fn always(status: u16, headers: &'static [(&'static str, &'static str)]) -> Answer {
    Box::new(move |_| Reply::new(status, headers, b""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_goes_on_where_it_was() {
    let cut = |at| -> Answer { Box::new(move |request| Reply::part(request, &content()).cut(at)) };
    let server = in_turn(vec![cut(1_500_000), cut(700_001), whole()]);
    let (got, ended, told) = pull_into(b"", &server, server.config(), None, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    let from: Vec<usize> = server.seen().iter().map(Request::from).collect();
    assert_eq!(from, [0, 1_500_000, 2_200_001]);
    assert_eq!((told.first(), told.last()), (Some(&0), Some(&3_000_000)));
    assert!(told.is_sorted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_pull_left_is_kept_and_a_whole_blob_is_not_asked_for() {
    let server = in_turn(vec![whole()]);
    let (got, ended, _) = pull_into(&content()[..1_234_567], &server, server.config(), None, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    let (got, ended, _) = pull_into(&content(), &server, server.config(), None, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    assert_eq!(server.seen().iter().map(Request::from).collect::<Vec<_>>(), [1_234_567]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_pull_left_wrong_is_fetched_anew() {
    let server = in_turn(vec![whole()]);
    for there in [vec![0; 1_000_000], vec![0; 3_000_000], vec![0; 3_000_001]] {
        let (got, ended, _) = pull_into(&there, &server, server.config(), None, &layer(&content())).await;
        ended.unwrap();
        assert!(got == content());
    }
    assert_eq!(server.seen().iter().map(Request::from).collect::<Vec<_>>(), [1_000_000, 0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_ranges_sends_it_again() {
    let blind: Answer = Box::new(|_| Reply::ok(&content()));
    let server = in_turn(vec![Box::new(|_| Reply::ok(&content()).cut(2_000_000)), blind]);
    let (got, ended, told) = pull_into(b"", &server, server.config(), None, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    assert!(!told.is_sorted(), "progress must tell that it starts again");
    assert_eq!(server.seen()[1].from(), 2_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_part_than_asked_for_is_found_out() {
    let wrong: Answer = Box::new(|_| Reply::new(206, &[("content-range", "bytes 5-9/10")], b"xxxxx"));
    let whole: Answer = Box::new(|_| Reply::ok(b"yabcde"));
    let server = in_turn(vec![wrong, whole]);
    let (got, ended, _) = pull_into(b"y", &server, server.config(), None, &layer(b"yabcde")).await;
    ended.unwrap();
    assert_eq!((got.as_slice(), server.seen()[1].from()), (&b"yabcde"[..], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_leave_nothing_and_are_not_asked_for_again() {
    let server = Server::start(|_| Reply::ok(&[7; 3_000_000]));
    let (got, ended) = pull(&server, &layer(&content())).await;
    let Err(RegistryError::WrongDigest { expected, got: sent, .. }) = ended else { panic!("{ended:?}") };
    assert_eq!((expected, sent), (Digest::of(&content()), Digest::of(&[7; 3_000_000])));
    assert_eq!((got.len(), server.seen().len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_or_less_than_the_manifest_says_is_refused() {
    let wanted = layer(&content());
    let mut longer = content();
    longer.push(0);
    let sent = longer.clone();
    let (got, ended) = pull(&Server::start(move |_| Reply::ok(&sent)), &wanted).await;
    assert!(matches!(ended, Err(RegistryError::TooLarge { limit: 3_000_000, .. })), "{ended:?}");
    assert!(got.is_empty());
    let (got, ended) = pull(&Server::start(move |_| Reply::chunked(&longer)), &wanted).await;
    assert!(matches!(ended, Err(RegistryError::TooLarge { .. })), "{ended:?}");
    assert!(got.is_empty());
    let (_, ended) = pull(&Server::start(|_| Reply::ok(b"short")), &wanted).await;
    assert!(matches!(ended, Err(RegistryError::Damaged { .. })), "{ended:?}");
    // Without a length, an early end looks like a broken connection, again and again.
    let server = Server::start(|_| Reply::chunked(b"short"));
    let (_, ended) = pull(&server, &wanted).await;
    assert!(matches!(ended, Err(RegistryError::BrokeOff { .. })), "{ended:?}");
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_fails_is_asked_again_five_times() {
    let server = in_turn(vec![always(500, &[]), always(503, &[]), always(502, &[]), whole()]);
    let (got, ended) = pull(&server, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    let server = in_turn(vec![always(500, &[])]);
    let (_, ended) = pull(&server, &layer(&content())).await;
    assert!(matches!(ended, Err(RegistryError::ServerFailed { status: 500, .. })), "{ended:?}");
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_left_alone_for_longer() {
    let server = in_turn(vec![always(429, &[]), whole()]);
    let start = Instant::now();
    let (got, ended) = pull(&server, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content() && start.elapsed() >= 16 * server.config().first_wait);
    let server = in_turn(vec![always(429, &[])]);
    let (_, ended) = pull(&server, &layer(&content())).await;
    assert!(matches!(ended, Err(RegistryError::RateLimited { .. })), "{ended:?}");
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_server_is_left_and_asked_again() {
    let stalls: Answer = Box::new(|request| Reply::part(request, &content()).cut(1_000_000).hang());
    let server = in_turn(vec![stalls, whole()]);
    let within = |server: &Server, stall| RegistryConfig { stall, ..server.config() };
    // What comes in before must come in time on any machine.
    let patient = within(&server, Duration::from_secs(3));
    let (got, ended, _) = pull_into(b"", &server, patient, None, &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    assert_eq!(server.seen()[1].from(), 1_000_000);
    let server = Server::start(|_| Reply::new(200, &[("content-length", "3000000")], b"").hang());
    let short = within(&server, Duration::from_millis(300));
    let (_, ended, _) = pull_into(b"", &server, short, None, &layer(&content())).await;
    assert!(matches!(ended, Err(RegistryError::Stalled { .. })), "{ended:?}");
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_never_sent_where_the_registry_leads() {
    let store = Server::start(|request| Reply::part(request, &content()));
    let place = format!("http://127.0.0.1:{}/bucket/x?signature=abc", store.port);
    let server = Server::guarded(move |request| match request.header("authorization") {
        "" => Reply::new(401, &[("www-authenticate", "Basic realm=\"x\"")], b""),
        _ => Reply::new(307, &[("location", &place)], b""),
    });
    let lab = login("lab", "secret");
    let (got, ended, _) = pull_into(b"12", &server, server.config(), Some(&lab), &layer(&content())).await;
    ended.unwrap();
    assert!(got == content());
    let asked = server.seen().into_iter().find(|request| request.path.contains("/blobs/")).unwrap();
    assert_eq!(asked.header("authorization"), "Basic bGFiOnNlY3JldA==");
    assert!(!store.seen().is_empty());
    for request in store.seen() {
        assert!(!format!("{request:?}").contains("bGFi"), "{request:?}");
    }
    assert_eq!(store.seen()[0].from(), 2, "the range must go along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_registry_itself_can_ask_for_a_password() {
    let thief = Server::start(|_| Reply::ok(br#"{"token":"x"}"#));
    let realm = format!("Bearer realm=\"http://127.0.0.1:{}/token\"", thief.port);
    let store = Server::start(move |_| Reply::new(401, &[("www-authenticate", &realm)], b""));
    let place = format!("http://127.0.0.1:{}/x?signature=abc", store.port);
    let server = Server::start(move |_| Reply::new(307, &[("location", &place)], b""));
    let lab = login("lab", "secret");
    let (_, ended, _) = pull_into(b"", &server, server.config(), Some(&lab), &layer(&content())).await;
    let Err(error @ RegistryError::BrokeOff { .. }) = ended else { panic!("{ended:?}") };
    assert!(thief.seen().is_empty());
    assert!(!shown(&error).contains("signature"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn going_around_in_a_circle_ends() {
    let server = Server::start(|request| Reply::new(302, &[("location", &request.path)], b""));
    let (_, ended) = pull(&server, &layer(&content())).await;
    assert!(matches!(ended, Err(RegistryError::Untrusted { .. })), "{ended:?}");
    assert!(server.seen().len() <= 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_that_is_not_there_is_named() {
    let server = Server::start(|_| Reply::status(404));
    let (_, ended) = pull(&server, &layer(b"x")).await;
    let Err(error @ RegistryError::NotFound { missing: Missing::Blob { .. }, .. }) = ended else { panic!("{ended:?}") };
    assert!(error.to_string().contains(&Digest::of(b"x").to_string()));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_as_such() {
    let server = Server::start(|_| Reply::ok(&content()));
    let reference = server.reference("a:1");
    let mut full = File::options().write(true).read(true).open("/dev/full").unwrap();
    let ended = server.client().blob(source(&reference, None), &layer(&content()), &mut full, &|_| ()).await;
    assert!(matches!(ended, Err(RegistryError::Disk(_))), "{ended:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_layers_come_at_once() {
    let blobs: Vec<Vec<u8>> = (0..8_u8).map(|number| vec![number; 2_000_000]).collect();
    let held = blobs.clone();
    let server = Server::start(move |request| {
        let wanted = held.iter().find(|blob| request.path.ends_with(Digest::of(blob).hex()));
        wanted.map_or(Reply::status(404), |blob| Reply::part(request, blob))
    });
    let client = std::sync::Arc::new(server.client());
    let mut tasks = Vec::new();
    for blob in blobs {
        let (client, reference) = (client.clone(), server.reference("a:1"));
        tasks.push(tokio::spawn(async move {
            let mut file = tempfile::tempfile().unwrap();
            client.blob(source(&reference, None), &layer(&blob), &mut file, &|_| ()).await
        }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

/// Our children that have not ended. Of this test alone: `cargo nextest` runs each in a process of its own.
fn children() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_asks_and_is_killed_is_followed_by_another() {
    let hangs: Answer = Box::new(|request| Reply::part(request, &content()).cut(1_500_000).hang());
    let server = std::sync::Arc::new(in_turn(vec![hangs, whole()]));
    let pulling = server.clone();
    let pulled = tokio::spawn(async move { pull(&pulling, &layer(&content())).await });
    until("it asks", || server.seen().len() == 1).await;
    let asking = children();
    assert_eq!(asking.len(), 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(asking[0]), nix::sys::signal::Signal::SIGKILL).unwrap();
    let (got, ended) = pulled.await.unwrap();
    ended.unwrap();
    assert!(got == content());
    assert_eq!((server.seen().len(), children()), (2, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_stopped_holds_nobody_up() {
    let hangs: Answer = Box::new(|request| Reply::part(request, &content()).cut(1_500_000).hang());
    let server = std::sync::Arc::new(in_turn(vec![hangs, whole()]));
    let config = RegistryConfig { connect: Duration::from_secs(3), stall: Duration::from_secs(3), ..server.config() };
    let pulling = server.clone();
    let pulled = tokio::spawn(async move { pull_into(b"", &pulling, config, None, &layer(&content())).await });
    until("it asks", || server.seen().len() == 1).await;
    let asking = nix::unistd::Pid::from_raw(children()[0]);
    nix::sys::signal::kill(asking, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let (got, ended, _) = pulled.await.unwrap();
    ended.unwrap();
    assert!(got == content() && children().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_nobody_wants_any_more_leaves_no_process() {
    let server = std::sync::Arc::new(Server::start(|request| Reply::part(request, &content()).cut(10).hang()));
    let pulling = server.clone();
    let pulled = tokio::spawn(async move { pull(&pulling, &layer(&content())).await });
    until("it asks", || server.seen().len() == 1).await;
    let status = fs::read_to_string(format!("/proc/{}/status", children()[0])).unwrap();
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    if nix::unistd::Uid::effective().is_root() {
        assert_eq!(line("Uid:"), "65534\t65534\t65534\t65534");
        assert_eq!(line("CapPrm:"), "0000000000000000");
    }
    assert_eq!(line("NoNewPrivs:"), "1");
    pulled.abort();
    assert!(pulled.await.unwrap_err().is_cancelled());
    assert!(children().is_empty());
}
