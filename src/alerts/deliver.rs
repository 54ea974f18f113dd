//! One delivery: by https, by a program, by the system's sendmail.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::queue::Notice;
use crate::config::{AlertConfig, AlertTo, Paths};
use crate::ids::AssetName;
use crate::sys::file::read_limited;
use crate::sys::process::run_within;

/// How long a delivery may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest key of a signature, bytes.
const KEY_MAX: u64 = 4096;
/// Most bytes of an e-mail's subject.
const SUBJECT_MAX: usize = 200;

pub(super) enum Delivery {
    Webhook { client: reqwest::Client, url: String, key: Option<PathBuf> },
    Program(Vec<String>),
    Mail { sendmail: String, to: Vec<String> },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    #[error("the address does not answer: {0}")]
    Unreachable(String),
    #[error("the address answered with status {0}")]
    Refused(u16),
    #[error("the key {0} of its signature cannot be read")]
    Key(PathBuf, #[source] io::Error),
    #[error("{0} cannot be run: {1}")]
    Program(String, io::Error),
    #[error("{0} ended with {1}")]
    Failed(String, String),
}

impl Delivery {
    pub(super) fn new(name: &AssetName, config: &AlertConfig, paths: &Paths) -> io::Result<Self> {
        Ok(match &config.to {
            AlertTo::Webhook { url, secret } => {
                // Fails where there is one already.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client = reqwest::Client::builder()
                    .user_agent(concat!("trainyard/", env!("CARGO_PKG_VERSION")))
                    .timeout(PATIENCE)
                    // An answer must not lead to what the administrator has not named.
                    .redirect(reqwest::redirect::Policy::none())
                    .no_proxy()
                    .build()
                    .map_err(|error| io::Error::other(format!("alerts.{name}: {error}")))?;
                let key = secret.as_ref().map(|secret| paths.secrets().join(secret.as_str()));
                Self::Webhook { client, url: url.clone(), key }
            }
            AlertTo::Command(command) => Self::Program(command.clone()),
            AlertTo::Mail { to, sendmail } => Self::Mail { sendmail: sendmail.clone(), to: to.clone() },
        })
    }

    pub(super) async fn deliver(&self, notice: &Notice) -> Result<(), DeliveryError> {
        let body = serde_json::to_string(notice).unwrap_or_default();
        match self {
            Self::Webhook { client, url, key } => post(client, url, key.clone(), notice, body).await,
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

async fn post(
    client: &reqwest::Client,
    url: &str,
    key: Option<PathBuf>,
    notice: &Notice,
    body: String,
) -> Result<(), DeliveryError> {
    let mut request = client
        .post(url)
        .header("content-type", "application/json")
        .header("trainyard-event", notice.serial.to_string());
    if let Some(path) = key {
        // Read each time: it may be exchanged.
        let read = path.clone();
        let read = tokio::task::spawn_blocking(move || read_limited(&read, KEY_MAX)).await;
        let read = read.unwrap_or_else(|_| Err(io::Error::other("its reader panicked")));
        let (_, key) = read.map_err(|error| DeliveryError::Key(path, error))?;
        request = request.header("trainyard-signature", signature(key.trim_ascii(), crate::sys::now().0 / 1000, &body));
    }
    let answer = request.body(body).send().await.map_err(|error| DeliveryError::Unreachable(reason(&error)))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(DeliveryError::Refused(status.as_u16())),
    }
}

/// Without the address: it may have a key in it.
fn reason(error: &reqwest::Error) -> String {
    match error {
        error if error.is_timeout() => "not in time".to_owned(),
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
        Ok(status) => Err(DeliveryError::Failed(name, status.to_string())),
        Err(error) => Err(DeliveryError::Program(name, error)),
    }
}

/// A message as sendmail reads it. What jobs are called and say is text within it, and never a header of its own.
fn mail(to: &[String], notice: &Notice) -> String {
    let subject = format!("[trainyard] {}/{}: {}", notice.workspace, notice.job, notice.state);
    let dropped = match notice.dropped {
        0 => String::new(),
        count => format!("\n{count} messages before this one were dropped.\n"),
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
    }
}
