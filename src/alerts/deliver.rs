//! One delivery: by https, by a program, by the system's sendmail.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::HeaderValue;
use sha2::Sha256;

use super::queue::Notice;
use crate::config::{AlertConfig, AlertTo, Given, Paths, check_address};
use crate::ids::AssetName;
use crate::store::record::is_alarm;
use crate::sys::file::read_limited;
use crate::sys::process::run_within;

/// How long a delivery may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest secret, bytes.
pub(super) const SECRET_MAX: u64 = 4096;
/// Most bytes of an e-mail's subject.
const SUBJECT_MAX: usize = 200;

pub(super) enum Delivery {
    Webhook(Box<Webhook>),
    Program(Vec<String>),
    Mail { sendmail: String, to: Vec<String> },
}

pub(super) struct Webhook {
    client: reqwest::Client,
    url: Text,
    headers: BTreeMap<String, Text>,
    key: Option<PathBuf>,
}

/// What is sent; a secret is read each time, since it may be exchanged.
enum Text {
    Plain(String),
    Secret(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("the address does not answer: {0}")]
    Unreachable(String),
    #[error("the address answered with status {0}")]
    Refused(u16),
    #[error("the secret {0} cannot be used: {1}; put it there with `install -m 600`")]
    Secret(PathBuf, io::Error),
    #[error("the text of the header {0} cannot be one")]
    Header(String),
    #[error("{0} cannot be run: {1}")]
    Program(String, io::Error),
    #[error("{0} ended with {1}")]
    Failed(String, std::process::ExitStatus),
}

/// Statuses that speak of the notice itself: malformed, too large, of a kind or with a content that is not taken. All others
/// speak of the moment, the address or the login, which may be put right.
const REFUSALS: [u16; 4] = [400, 413, 415, 422];
/// How a program says that it will never take this one, as in `sysexits.h`: the data, the user or the host is wrong.
const FOR_EVER: [i32; 3] = [65, 67, 68];

impl DeliveryError {
    /// Whether the receiver was there, and says that it does not want this one.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(status) => REFUSALS.contains(status),
            Self::Failed(_, status) => status.code().is_some_and(|code| FOR_EVER.contains(&code)),
            _ => false,
        }
    }
}

impl Delivery {
    pub(super) fn new(name: &AssetName, config: &AlertConfig, paths: &Paths) -> io::Result<Self> {
        Ok(match &config.to {
            AlertTo::Webhook { url, headers, secret } => {
                let text = |given: &Given| match given {
                    Given::Plain(text) => Text::Plain(text.clone()),
                    Given::Secret(name) => Text::Secret(paths.secrets().join(name.as_str())),
                };
                Self::Webhook(Box::new(Webhook {
                    client: client().map_err(|error| io::Error::other(format!("alerts.{name}: {error}")))?,
                    url: text(url),
                    headers: headers.iter().map(|(name, given)| (name.clone(), text(given))).collect(),
                    key: secret.as_ref().map(|secret| paths.secrets().join(secret.as_str())),
                }))
            }
            AlertTo::Command(command) => Self::Program(command.clone()),
            AlertTo::Mail { to, sendmail } => Self::Mail { sendmail: sendmail.clone(), to: to.clone() },
        })
    }

    pub(super) async fn deliver(&self, notice: &Notice) -> Result<(), DeliveryError> {
        let body = serde_json::to_string(notice).unwrap_or_default();
        match self {
            Self::Webhook(webhook) => webhook.post(notice, body).await,
            Self::Program(command) => {
                let [program, arguments @ ..] = command.as_slice() else { return Ok(()) };
                run(program.clone(), arguments.to_vec(), body).await
            }
            Self::Mail { sendmail, to } => {
                run(sendmail.clone(), ["-i", "-t"].map(str::to_owned).to_vec(), mail(to, notice)).await
            }
        }
    }
}

fn client() -> reqwest::Result<reqwest::Client> {
    // Fails where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .user_agent(concat!("trainyard/", env!("CARGO_PKG_VERSION")))
        .timeout(PATIENCE)
        // An answer must not lead to what the administrator has not named.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
}

impl Webhook {
    async fn post(&self, notice: &Notice, body: String) -> Result<(), DeliveryError> {
        let mut request = self
            .client
            .post(self.address().await?)
            .header("content-type", "application/json")
            .header("trainyard-event", notice.serial.to_string());
        for (name, text) in &self.headers {
            let value = HeaderValue::from_str(&text.read().await?);
            let mut value = value.map_err(|_| DeliveryError::Header(name.clone()))?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        if let Some(path) = &self.key {
            let key = secret(path).await?;
            request = request.header("trainyard-signature", signature(&key, crate::sys::now().0 / 1000, &body));
        }
        let answer = request.body(body).send().await;
        match answer.map_err(|error| DeliveryError::Unreachable(reason(&error)))?.status() {
            status if status.is_success() => Ok(()),
            status => Err(DeliveryError::Refused(status.as_u16())),
        }
    }

    /// One that is a secret is looked at only now.
    async fn address(&self) -> Result<String, DeliveryError> {
        let url = self.url.read().await?;
        match (&self.url, check_address(&url)) {
            (Text::Secret(path), Err(why)) => {
                Err(DeliveryError::Secret(path.clone(), io::Error::other(format!("the address in it {why}"))))
            }
            _ => Ok(url),
        }
    }
}

impl Text {
    async fn read(&self) -> Result<String, DeliveryError> {
        match self {
            Self::Plain(text) => Ok(text.clone()),
            Self::Secret(path) => {
                let bytes = secret(path).await?;
                String::from_utf8(bytes)
                    .map_err(|_| DeliveryError::Secret(path.clone(), io::Error::other("it is not text")))
            }
        }
    }
}

/// The content of the file without the space around it.
async fn secret(path: &std::path::Path) -> Result<Vec<u8>, DeliveryError> {
    let file = path.to_owned();
    let read = tokio::task::spawn_blocking(move || read_limited(&file, SECRET_MAX)).await;
    let read = read.unwrap_or_else(|_| Err(io::Error::other("its reader panicked")));
    match read.map(|(_, bytes)| bytes.trim_ascii().to_owned()) {
        Ok(bytes) if bytes.is_empty() => Err(DeliveryError::Secret(path.to_owned(), io::Error::other("it is empty"))),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(DeliveryError::Secret(path.to_owned(), error)),
    }
}

/// Without the address: it may have a key in it.
fn reason(error: &reqwest::Error) -> String {
    match error {
        error if error.is_timeout() => "not in time".to_owned(),
        error if error.is_builder() => "no request can be made of it and the headers".to_owned(),
        error if error.is_connect() => "it cannot be connected to".to_owned(),
        _ => "the request broke off".to_owned(),
    }
}

/// `t=SECONDS,v1=HEX`: HMAC-SHA256 of `SECONDS.BODY`, so that an old delivery cannot be played again.
fn signature(key: &[u8], seconds: u64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(format!("{seconds}.{body}").as_bytes());
    let digest = mac.finalize().into_bytes();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

async fn run(program: String, arguments: Vec<String>, input: String) -> Result<(), DeliveryError> {
    let name = program.clone();
    let ended = tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run_within(&program, &arguments, &input, PATIENCE)
    });
    let ended = ended.await.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(DeliveryError::Failed(name, status)),
        Err(error) => Err(DeliveryError::Program(name, error)),
    }
}

/// A message as sendmail reads it. What jobs are called and say is text within it, and never a header of its own.
fn mail(to: &[String], notice: &Notice) -> String {
    let what = if is_alarm(&notice.message) { &notice.message } else { &notice.state };
    let subject = format!("[trainyard] {}/{}: {what}", notice.workspace, notice.job);
    let dropped = match notice.dropped {
        0 => String::new(),
        count => format!("\n{count} messages before this one were not delivered.\n"),
    };
    format!(
        "To: {}\nSubject: {}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\
         Auto-Submitted: auto-generated\n\njob {}/{}, run {}: {}\n{}\n{}\n{dropped}",
        to.join(", "),
        encoded(&subject),
        notice.workspace,
        notice.job,
        notice.run,
        notice.state,
        notice.message,
        notice.at,
    )
}

/// A header's text in any script: words of at most 75 characters, as RFC 2047 has it.
fn encoded(text: &str) -> String {
    let mut words: Vec<String> = vec![String::new()];
    for letter in text.chars().filter(|letter| !letter.is_control()).take(SUBJECT_MAX) {
        let is_full = words.last().is_some_and(|word| word.len() + letter.len_utf8() > 42);
        if is_full {
            words.push(String::new());
        }
        words.last_mut().expect("there is a first one").push(letter);
    }
    let words: Vec<String> = words.iter().map(|word| format!("=?UTF-8?B?{}?=", STANDARD.encode(word))).collect();
    words.join("\n ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice() -> Notice {
        Notice {
            serial: 7,
            workspace: "default".to_owned(),
            job: "训练".to_owned(),
            run: 2,
            state: "failed".to_owned(),
            message: "exit code 1".to_owned(),
            at: "2026-01-31T08:00:00.000Z".to_owned(),
            dropped: 0,
        }
    }

    #[test]
    fn the_signature_is_that_of_rfc_4231_over_time_and_body() {
        // As `printf '1700000000.{}' | openssl dgst -sha256 -hmac key` says.
        let signed = signature(b"key", 1_700_000_000, "{}");
        assert_eq!(signed.len(), "t=1700000000,v1=".len() + 64);
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let digest: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_ne!(signed, signature(b"key", 1_700_000_001, "{}"));
        assert_ne!(signed, signature(b"other", 1_700_000_000, "{}"));
    }

    #[test]
    fn nothing_of_a_job_becomes_a_header() {
        let text = mail(&["ops@lab".to_owned()], &Notice { state: "x\nBcc: evil@host".to_owned(), ..notice() });
        let head = text.split("\n\n").next().unwrap();
        assert!(head.lines().all(|line| !line.starts_with("Bcc")), "{text}");
        assert!(head.lines().all(|line| line.len() <= 78 && line.is_ascii()), "{text}");
        assert!(text.contains("训练"));
        let alarm = mail(&["ops@lab".to_owned()], &Notice { message: "alarm: no room".to_owned(), ..notice() });
        assert!(alarm.contains(&encoded("[trainyard] default/训练: alarm: no room")), "{alarm}");
    }
}
