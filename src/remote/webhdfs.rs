//! What the driver for WebHDFS lacks: to put a file in the place of another one.
//!
//! HDFS does so in one step (`RENAME` with `renameoptions=OVERWRITE`). Gateways before it (HttpFS) do not know the option and
//! refuse: there the old file is removed right before.

use std::collections::BTreeMap;
use std::time::Duration;

use opendal::Operator;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::Failure;
use crate::ids::escape_in_address;

/// How long one renaming may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct WebHdfs {
    client: reqwest::Client,
    endpoint: String,
    root: String,
    /// Who asks, as part of an address.
    login: String,
}

/// What the store answers; it answers nothing where an option was given.
#[derive(Deserialize)]
struct Answer {
    boolean: bool,
}

impl WebHdfs {
    /// `options` are the driver's.
    pub(super) fn new(client: reqwest::Client, options: &BTreeMap<String, String>) -> Self {
        let option = |name: &str| options.get(name).map(String::as_str).unwrap_or_default();
        // As the driver does: a token says who it is.
        let login = match (options.get("delegation"), options.get("user_name")) {
            (Some(token), _) => format!("&delegation={token}"),
            (None, Some(user)) => format!("&user.name={user}"),
            (None, None) => String::new(),
        };
        let (endpoint, root) = (option("endpoint").trim_end_matches('/'), option("root").trim_matches('/'));
        Self { client, endpoint: endpoint.to_owned(), root: root.to_owned(), login }
    }

    /// Where a file is written that is to have the place `key`: beside it, under a name that is the same the next time.
    pub(super) fn aside(key: &str) -> String {
        let digest = Sha256::digest(key.as_bytes());
        let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let (directory, _) = key.rsplit_once('/').map_or(("", key), |(directory, name)| (directory, name));
        let separator = if directory.is_empty() { "" } else { "/" };
        format!("{directory}{separator}.trainyard-{name}")
    }

    /// Puts what is at `from` in the place of what is at `to`, if anything is.
    pub(super) async fn replace(&self, store: &Operator, from: &str, to: &str) -> Result<(), Failure> {
        match self.rename(from, to, "&renameoptions=OVERWRITE").await {
            Ok(true) => return Ok(()),
            // Gateways know no such option: theirs is a plain rename, and something is there.
            Ok(false) => {}
            // It may have been done, and only the answer be lost.
            Err(why) => return Err(Failure::for_now(format!("{to}: {why}"))),
        }
        store.delete(to).await.map_err(|error| Failure::of_store(to, &error))?;
        match self.rename(from, to, "").await {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Failure::for_now(format!("{to}: the store does not rename {from}, which has its content")))
            }
            Err(why) => Err(Failure::for_now(format!("{to}: {why}"))),
        }
    }

    async fn rename(&self, from: &str, to: &str, option: &str) -> Result<bool, String> {
        let address = format!(
            "{}/webhdfs/v1{}?op=RENAME&destination={}{option}{}",
            self.endpoint,
            self.address_of(from),
            self.address_of(to),
            self.login
        );
        // Addresses may hold tokens.
        let told = |error: reqwest::Error| error.without_url().to_string();
        let answer = self.client.put(address).timeout(PATIENCE).send().await.map_err(told)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("the store answers a renaming with status {}", status.as_u16()));
        }
        let body = answer.bytes().await.map_err(told)?;
        Ok(body.is_empty() || serde_json::from_slice::<Answer>(&body).is_ok_and(|answer| answer.boolean))
    }

    fn address_of(&self, key: &str) -> String {
        let parts = self.root.split('/').chain(key.split('/')).filter(|part| !part.is_empty());
        parts.map(|part| format!("/{}", escape_in_address(part))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_beside_its_place_under_a_short_name() {
        let long = "x".repeat(255);
        let aside = WebHdfs::aside(&format!("out/{long}"));
        assert!(aside.starts_with("out/.trainyard-") && aside.len() < 64, "{aside}");
        assert_eq!(aside, WebHdfs::aside(&format!("out/{long}")));
        assert!(WebHdfs::aside("top").starts_with(".trainyard-"));
    }
}
