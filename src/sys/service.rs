//! What the service manager (systemd) is told, and what it tells. Without one every word goes nowhere.
//!
//! Who runs us is read from the environment, which is as it was at our start: nothing of it is ever removed.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;

/// Words to the service manager that may wait.
const WAITING_MAX: usize = 16;

/// Everything is open, `status` says what there is to do.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What is going on, one line of `systemctl status`.
pub fn status(status: &str) {
    tell_later(NotifyState::Status(status));
}

/// It takes longer until [`ready`], at most so long from now on.
pub fn starts_within(time: Duration) {
    tell(&[NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))]);
}

/// The configuration is being read again; [`reloaded`] comes next.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot read the monotonic clock"),
    }
}

/// It was read.
pub fn reloaded() {
    tell(&[NotifyState::Ready]);
}

pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// To be called more often than [`watchdog`] says.
pub fn alive() {
    tell_later(NotifyState::Watchdog);
}

/// After so much silence the service manager takes us for dead; `None` where it does not listen.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|silence| !silence.is_zero())
}

/// Whether a service manager has started us.
pub fn is_ours() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// For processes of ours that go on with our standard error: where it leads to, and how much is said there.
pub fn journal() -> Vec<(OsString, OsString)> {
    let given = |name: &str| std::env::var_os(name).map(|value| (name.into(), value));
    ["JOURNAL_STREAM", "TRAINYARD_LOG"].into_iter().filter_map(given).collect()
}

/// By a thread of its own: a service manager that does not read holds nobody up. What it is told again soon may be left out.
fn tell_later(word: NotifyState<'_>) {
    static WORDS: OnceLock<SyncSender<String>> = OnceLock::new();
    if !is_ours() {
        return;
    }
    let words = WORDS.get_or_init(|| {
        let (words, told) = sync_channel::<String>(WAITING_MAX);
        let tell_all = move || told.iter().for_each(|word| tell(&[NotifyState::Custom(&word)]));
        if let Err(error) = std::thread::Builder::new().name("service".to_owned()).spawn(tell_all) {
            tracing::warn!(%error, "cannot start the thread that speaks with the service manager");
        }
        words
    });
    drop(words.try_send(word.to_string()));
}

fn tell(words: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(words) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
