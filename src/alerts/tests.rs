//! Receivers that refuse, are away, or come back: with waits of a moment, so that nothing depends on how fast the machine is.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as std_mpsc;

use super::receivers::Receivers;
use crate::config::{AlertTo, Given};
use crate::ids::Timestamp;
use crate::store::redb::RedbStore;

const QUICK: Pace = Pace { first_wait: Duration::from_millis(1), last_wait: Duration::from_millis(2), refusals: 3 };

#[test]
fn the_waits_double_up_to_ten_minutes() {
    let waits: Vec<u64> = (0..12).map(|tries| PACE.wait_after(tries).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
    assert_eq!(PACE.wait_after(u32::MAX), PACE.last_wait);
    let until_set_aside: u64 = waits[..PACE.refusals as usize - 1].iter().sum();
    assert!((25 * 60..30 * 60).contains(&until_set_aside), "half an hour: {until_set_aside} s");
}

#[test]
fn a_state_is_told_when_it_is_come_to_and_not_again_with_each_remark() {
    let config = |on, workspaces: &[&str]| AlertConfig {
        on,
        workspaces: workspaces.iter().map(|name| name.parse().unwrap()).collect(),
        to: AlertTo::Command(vec!["/bin/true".to_owned()]),
    };
    let failed = config(AlertOn::Named(["failed".to_owned()].into()), &[]);
    let key: JobKey = "vision/a".parse().unwrap();
    let event = |state| EventRecord { number: 1, serial: 2, at: Timestamp(3), run: 1, state, message: String::new() };
    assert!(failed.wants(&key, &event(State::Failed), Some(State::Running)));
    assert!(failed.wants(&key, &event(State::Failed), None));
    assert!(!failed.wants(&key, &event(State::Failed), Some(State::Failed)));
    assert!(!failed.wants(&key, &event(State::Running), Some(State::Starting)));
    let stopped = config(AlertOn::Named(["stopped".to_owned()].into()), &[]);
    assert!(stopped.wants(&key, &event(State::Stopped), Some(State::Held)));
    for nothing in [None, Some(State::Invalid)] {
        assert!(!stopped.wants(&key, &event(State::Stopped), nothing), "a new file, or one put right, stops nothing");
    }
    let alarm = EventRecord { message: EventRecord::alarm("no room"), ..event(State::Running) };
    let hears = |names: &[&str]| {
        let config = config(AlertOn::Named(names.iter().map(|name| (*name).to_owned()).collect()), &[]);
        [&alarm, &event(State::Failed)].map(|event| config.wants(&key, event, Some(State::Running)))
    };
    assert_eq!(hears(&["alarm"]), [true, false], "alarms alone");
    assert_eq!(hears(&["alarm", "failed"]), [true, true]);
    assert_eq!(hears(&["failed", "running"]), [false, true], "and no alarms");
    assert!(config(AlertOn::All, &["vision"]).wants(&key, &event(State::Running), Some(State::Running)));
    assert!(!config(AlertOn::All, &["other"]).wants(&key, &event(State::Running), None));
}

fn notice(serial: u64) -> Notice {
    let key: JobKey = "vision/a".parse().unwrap();
    let event =
        EventRecord { number: 1, serial, at: Timestamp(3), run: 1, state: State::Failed, message: "m".to_owned() };
    Notice::of(&key, &event)
}

/// What a receiver has got.
#[derive(Debug)]
struct Got {
    path: String,
    /// As they came, in small letters.
    headers: String,
    serial: u64,
    dropped: u64,
}

/// A webhook on an address of its own, which answers each request with the status that `answer` gives.
fn receiver(answer: impl Fn(u64) -> u16 + Send + 'static) -> (String, std_mpsc::Receiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, got) = std_mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
            let headers = head.to_ascii_lowercase();
            let length = headers.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let serial = body["serial"].as_u64().unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let got = Got { path, headers, serial, dropped: body["dropped"].as_u64().unwrap() };
            let status = answer(serial);
            write!(stream.get_mut(), "HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            if sender.send(got).is_err() {
                return;
            }
        }
    });
    (url, got)
}

fn to(to: AlertTo) -> AlertConfig {
    AlertConfig { on: AlertOn::All, workspaces: Default::default(), to }
}

fn webhook(url: Given) -> AlertConfig {
    to(AlertTo::Webhook { url, headers: BTreeMap::new(), secret: None })
}

/// A queue whose notices are on their way.
async fn sending(root: &Path, name: &str, config: &AlertConfig, serials: &[u64]) -> Queue {
    let (paths, name): (_, AssetName) = (Paths::new(root).unwrap(), name.parse().unwrap());
    let queue = Queue::open(&paths.alerts(), &name).unwrap();
    queue.begin(0).await.unwrap();
    queue.take_in(serials.iter().map(|serial| notice(*serial)).collect(), 100).await.unwrap();
    let delivery = Delivery::new(&name, config, &paths).unwrap();
    let courier = Courier { name, queue: queue.clone(), delivery, pace: QUICK };
    tokio::spawn(async move {
        let (_goes_on, end) = watch::channel(());
        courier.deliver(Arc::new(Notify::new()), end).await;
    });
    queue
}

/// The next so many that it gets; as long as that may take.
async fn next(got: std_mpsc::Receiver<Got>, count: usize) -> (Vec<Got>, std_mpsc::Receiver<Got>) {
    let wait = move || {
        let all: Vec<Got> = (0..count).map(|_| got.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        (all, got)
    };
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_for_ever_is_set_aside_and_what_is_away_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    // Number 2 is never taken; 4 not yet, for whatever is not about it.
    let asked = AtomicUsize::new(0);
    let (url, got) = receiver(move |serial| match serial {
        2 => 422,
        4 => *[401, 403, 404, 407, 410, 429].get(asked.fetch_add(1, Ordering::Relaxed)).unwrap_or(&204),
        _ => 204,
    });
    // Nobody is there: it waits, and nobody waits for it.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = webhook(Given::Plain(format!("http://{closed}/")));
    let away = sending(dir.path(), "away", &away, &[1]).await;
    sending(dir.path(), "ops", &webhook(Given::Plain(url)), &[1, 2, 3, 4, 5]).await;
    let (all, _got) = next(got, 1 + 3 + 1 + 7 + 1).await;
    let serials: Vec<u64> = all.iter().map(|got| got.serial).collect();
    assert_eq!(
        serials,
        [1, 2, 2, 2, 3, 4, 4, 4, 4, 4, 4, 4, 5],
        "in order; what is said of the address or the login is no refusal"
    );
    assert_eq!((all[4].dropped, all[12].dropped), (1, 0), "it is told that one is missing");
    let kept = std::fs::read_to_string(Paths::new(dir.path()).unwrap().alerts().join("set-aside/ops.json")).unwrap();
    assert!(kept.contains("the address answered with status 422"), "{kept}");
    assert_eq!(away.first().map(|notice| notice.serial), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_headers_may_be_secrets_that_come_later_and_are_never_told() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path()).unwrap();
    let (url, got) = receiver(|_| 200);
    let secret = |name: &str| Given::Secret(name.parse().unwrap());
    let headers = [("authorization".to_owned(), secret("login")), ("x-room".to_owned(), Given::Plain("7".to_owned()))];
    let config = to(AlertTo::Webhook { url: secret("hook"), headers: headers.into(), secret: None });
    assert_eq!(config.secrets().iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["hook", "login"]);
    let delivery = Delivery::new(&"ops".parse().unwrap(), &config, &paths).unwrap();
    let fail = async |why: &str| {
        let error = delivery.deliver(&notice(1)).await.unwrap_err();
        let told = format!("{error} {error:?}");
        assert!(told.contains(why), "{told}");
        assert!(!told.contains("tok3n") && !told.contains("p4ss") && !error.is_refusal(), "{told}");
    };
    fail("secrets/hook").await;
    std::fs::create_dir_all(paths.secrets()).unwrap();
    let put = |name: &str, text: &str| std::fs::write(paths.secrets().join(name), text).unwrap();
    put("hook", "http://elsewhere.example/tok3n");
    fail("must begin with https://").await;
    put("hook", "http://127.0.0.1:1/tok3n\n");
    fail("secrets/login").await;
    put("login", "Bearer p4ss\u{7}\n");
    fail("authorization").await;
    put("login", "Bearer p4ss\n");
    fail("does not answer").await;
    put("hook", &format!("{url}/tok3n\n"));
    delivery.deliver(&notice(1)).await.unwrap();
    let (all, _got) = next(got, 1).await;
    assert_eq!(all[0].path, "/hook/tok3n");
    assert!(all[0].headers.contains("authorization: bearer p4ss\r\n"), "{}", all[0].headers);
    assert!(all[0].headers.contains("x-room: 7\r\n"), "{}", all[0].headers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_is_run_again_and_one_that_will_never_take_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let program = |script: &str| {
        let script = format!("read -r text; echo \"$text\" >> {}; {script}", log.display());
        to(AlertTo::Command(vec!["/bin/sh".to_owned(), "-c".to_owned(), script]))
    };
    // Fails twice, with what says nothing of the notice.
    let queue = sending(dir.path(), "again", &program(&format!("[ $(wc -l < {}) -gt 2 ]", log.display())), &[7]).await;
    empty(&queue).await;
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("\"serial\":7").count(), 3, "{text}");
    std::fs::write(&log, "").unwrap();
    // EX_DATAERR of the first, for ever.
    let queue = sending(dir.path(), "never", &program("case $text in *:8,*) exit 65;; esac"), &[8, 9]).await;
    empty(&queue).await;
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!((text.matches("\"serial\":8").count(), text.matches("\"serial\":9").count()), (3, 1), "{text}");
    let absent = Delivery::Program(vec!["/nowhere/page".to_owned()]);
    let error = absent.deliver(&notice(1)).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/page cannot be run") && !error.is_refusal(), "{error}");
}

/// On one thread: its courier waits for more when the notice comes.
#[tokio::test]
async fn what_came_as_the_sorting_was_stopped_for_a_reload_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(&dir.path().join("state.redb")).unwrap();
    // Nobody answers what is asked of the loop: nothing is sorted.
    let (events, _heard) = tokio::sync::mpsc::unbounded_channel();
    let (_rounds, rounds) = watch::channel(0);
    let mut receivers = Receivers::new(Paths::new(dir.path()).unwrap(), Past::new(events, store.reader()), rounds);
    let name: AssetName = "ops".parse().unwrap();
    let wanted = [(name.clone(), to(AlertTo::Command(vec!["/bin/true".to_owned()])))].into();
    receivers.become_those(&wanted).await.unwrap();
    let queue = receivers.queues[&name].clone();
    queue.begin(0).await.unwrap();
    // And nobody is told of it, as where the sorting is stopped while that is written.
    queue.take_in(vec![notice(1)], 1).await.unwrap();
    receivers.become_those(&wanted).await.unwrap();
    empty(&queue).await;
}

/// Until it is; a minute at most. What has left it is out of its file after that.
async fn empty(queue: &Queue) {
    let changed = Arc::new(Notify::new());
    let told = changed.clone();
    let _watch = crate::sys::watch::watch(queue.path(), move |_| told.notify_one()).unwrap();
    let is_empty = async {
        while queue.first().is_some() {
            changed.notified().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_empty).await.unwrap();
}
