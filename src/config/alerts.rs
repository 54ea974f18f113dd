//! `[alerts.NAME]`: who is told of what happens to jobs.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Url;
use serde::Deserialize;

use crate::ids::{AssetName, WorkspaceName};

/// When somebody is told, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertConfig {
    pub on: AlertOn,
    /// Only of jobs of these; of all when empty.
    pub workspaces: BTreeSet<WorkspaceName>,
    pub to: AlertTo,
}

/// The alarms of jobs, among the names of states.
pub const ALARM: &str = "alarm";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertOn {
    /// Every event, jobs' own alarms among them.
    All,
    /// When a job comes to one of these states, by name; and alarms, where [`ALARM`] is among them.
    Named(BTreeSet<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertTo {
    Webhook {
        url: Given,
        headers: BTreeMap<String, Given>,
        /// The file in `/etc/trainyard/secrets` with the key of its signature.
        secret: Option<AssetName>,
    },
    /// A program and its arguments; the event comes as JSON on its standard input.
    Command(Vec<String>),
    Mail {
        to: Vec<String>,
        sendmail: String,
    },
}

/// A text that anybody may read in the configuration, or one that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    Plain(String),
    /// A file in `/etc/trainyard/secrets`, written as `secret:NAME`.
    Secret(AssetName),
}

impl AlertConfig {
    /// The files in `/etc/trainyard/secrets` that it needs.
    pub fn secrets(&self) -> BTreeSet<&AssetName> {
        let AlertTo::Webhook { url, headers, secret } = &self.to else { return BTreeSet::new() };
        let given = headers.values().chain([url]).filter_map(|given| match given {
            Given::Secret(name) => Some(name),
            Given::Plain(_) => None,
        });
        given.chain(secret).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[alerts.NAME]` begins one")]
pub(super) struct WireAlert {
    on: Option<Vec<String>>,
    workspaces: Vec<String>,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    secret: Option<String>,
    command: Option<Vec<String>>,
    email: Option<Vec<String>>,
    sendmail: Option<String>,
}

const STATES: [&str; 9] =
    ["invalid", "held", "waiting", "starting", "running", "stopping", "succeeded", "failed", "stopped"];

pub(super) fn read(wire: BTreeMap<String, WireAlert>) -> Result<BTreeMap<AssetName, AlertConfig>, (String, String)> {
    wire.into_iter().map(|(name, alert)| read_one(&name, alert)).collect()
}

fn read_one(name: &str, wire: WireAlert) -> Result<(AssetName, AlertConfig), (String, String)> {
    let at = |key: &str| format!("alerts.{name}.{key}");
    let known: AssetName =
        name.parse().map_err(|error| (format!("alerts.{name}"), format!("{name:?} is no name: {error}")))?;
    let workspaces = wire.workspaces.iter().map(|name| name.parse()).collect::<Result<_, _>>();
    let workspaces = workspaces.map_err(|error: crate::ids::NameError| (at("workspaces"), error.to_string()))?;
    let on = on(wire.on.as_deref()).map_err(|message| (at("on"), message))?;
    let to = match (&wire.url, &wire.command, &wire.email) {
        (Some(url), None, None) => webhook(url, &wire).map_err(|(key, message)| (at(key), message))?,
        (None, Some(command), None) => match command.first() {
            Some(program) if program.starts_with('/') => AlertTo::Command(command.clone()),
            _ => {
                return Err((
                    at("command"),
                    "must be a list that begins with the absolute path of a program".to_owned(),
                ));
            }
        },
        (None, None, Some(to)) => mail(to, wire.sendmail.as_deref()).map_err(|(key, message)| (at(key), message))?,
        _ => return Err((format!("alerts.{name}"), "needs one of url, command and email".to_owned())),
    };
    if wire.secret.is_some() && wire.url.is_none() {
        return Err((at("secret"), "is the key of a webhook's signature; there is no url".to_owned()));
    }
    if wire.headers.is_some() && wire.url.is_none() {
        return Err((at("headers"), "are those of a webhook; there is no url".to_owned()));
    }
    if wire.sendmail.is_some() && wire.email.is_none() {
        return Err((at("sendmail"), "sends e-mail; there is no email".to_owned()));
    }
    Ok((known, AlertConfig { on, workspaces, to }))
}

fn on(states: Option<&[String]>) -> Result<AlertOn, String> {
    let Some(states) = states else { return Ok(AlertOn::Named(["failed".to_owned()].into())) };
    if states == ["all"] {
        return Ok(AlertOn::All);
    }
    match states.iter().find(|state| *state != ALARM && !STATES.contains(&state.as_str())) {
        Some(unknown) => {
            Err(format!("{unknown:?} is neither a state ({}) nor \"alarm\", nor [\"all\"]", STATES.join(", ")))
        }
        None if states.is_empty() => Err("is empty: nothing would be told".to_owned()),
        None => Ok(AlertOn::Named(states.iter().cloned().collect())),
    }
}

fn webhook(url: &str, wire: &WireAlert) -> Result<AlertTo, (&'static str, String)> {
    let url = given(url).map_err(|message| ("url", message))?;
    if let Given::Plain(url) = &url {
        check_address(url).map_err(|message| ("url", message.to_owned()))?;
    }
    let headers = wire.headers.iter().flatten();
    let headers = headers.map(|(name, value)| -> Result<_, String> { Ok((header(name)?, given(value)?)) });
    let headers = headers.collect::<Result<_, _>>().map_err(|message| ("headers", message))?;
    let secret = wire.secret.as_deref().map(|name| secret_named(name.strip_prefix(SECRET).unwrap_or(name)));
    let secret = secret.transpose().map_err(|message| ("secret", message))?;
    Ok(AlertTo::Webhook { url, headers, secret })
}

/// Begins what names a secret.
const SECRET: &str = "secret:";

fn given(text: &str) -> Result<Given, String> {
    match text.strip_prefix(SECRET) {
        Some(name) => secret_named(name).map(Given::Secret),
        None => Ok(Given::Plain(text.to_owned())),
    }
}

fn secret_named(name: &str) -> Result<AssetName, String> {
    name.parse().map_err(|error| format!("names a file in secrets/: {error}"))
}

/// Those that are sent anyway.
const OWN_HEADERS: [&str; 4] = ["content-type", "content-length", "host", "transfer-encoding"];

fn header(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !is_name || OWN_HEADERS.contains(&name.as_str()) || name.starts_with("trainyard-") {
        return Err(format!("{name:?} is no name of a header that may be set here"));
    }
    Ok(name)
}

/// Whether a webhook may be sent there. Says nothing of the address: it may be a secret.
pub fn check_address(url: &str) -> Result<(), &'static str> {
    let url = Url::parse(url).map_err(|_| "is none that can be read; write it as https://HOST/PATH")?;
    let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1"));
    let has_login = !url.username().is_empty() || url.password().is_some();
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_local && !has_login => Ok(()),
        _ => Err("must begin with https://; plain http only for localhost"),
    }
}

fn mail(to: &[String], sendmail: Option<&str>) -> Result<AlertTo, (&'static str, String)> {
    let is_address =
        |text: &String| text.contains('@') && !text.contains(|c: char| c.is_control() || ",;<> ".contains(c));
    match to.iter().find(|address| !is_address(address)) {
        Some(bad) => return Err(("email", format!("{bad:?} is no address, as in \"ops@lab.example\""))),
        None if to.is_empty() => return Err(("email", "is empty: nobody would be told".to_owned())),
        None => {}
    }
    let sendmail = sendmail.unwrap_or("/usr/sbin/sendmail");
    if !sendmail.starts_with('/') {
        return Err(("sendmail", format!("{sendmail} is not an absolute path")));
    }
    Ok(AlertTo::Mail { to: to.to_vec(), sendmail: sendmail.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_a_request_can_be_sent_to() {
        for good in
            ["https://chat.example/hooks/a?b=c", "https://127.0.0.1:8443", "http://localhost:9/x", "http://127.0.0.1"]
        {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for bad in
            ["https://", "https://chat example/x", "https://chat.example:port/", "https://[::1", "chat.example", ""]
        {
            assert!(check_address(bad).unwrap_err().contains("https://HOST/PATH"), "{bad}");
        }
        for bad in
            ["http://chat.example", "http://localhost@chat.example/", "http://a:b@localhost/", "file:///etc/passwd"]
        {
            assert!(check_address(bad).unwrap_err().contains("must begin with https://"), "{bad}");
        }
    }
}
