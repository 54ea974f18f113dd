//! How a store is reached.

use std::collections::BTreeMap;
use std::time::Duration;

use opendal::layers::{RetryEvent, RetryLayer, TimeoutLayer};
use opendal::services::{Http, Oss, S3, Sftp, Webhdfs};
use opendal::{HttpTransporter, OperationContext, Operator};
use opendal_http_transport_reqwest::ReqwestTransport;
use serde::{Deserialize, Serialize};

use super::webhdfs::WebHdfs;
use super::{Failure, Teller};
use crate::config::Pool;
use crate::ids::{StoreKind, escape_in_address};

/// A store and the keys to it.
#[derive(Clone, Serialize, Deserialize)]
#[expect(missing_debug_implementations, reason = "it holds keys")]
pub struct Access {
    kind: StoreKind,
    /// As the driver of this kind calls them.
    options: BTreeMap<String, String>,
    proxy: Option<String>,
    host_key: Option<String>,
}

/// What a secret's file may hold, by kind; with how the driver calls it.
fn keys_of(kind: StoreKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        StoreKind::S3 => {
            &[("access_key", "access_key_id"), ("secret_key", "secret_access_key"), ("session_token", "session_token")]
        }
        StoreKind::Oss => {
            &[("access_key", "access_key_id"), ("secret_key", "access_key_secret"), ("session_token", "security_token")]
        }
        StoreKind::WebHdfs => &[("user", "user_name"), ("token", "delegation")],
        StoreKind::Sftp => &[("user", "user"), ("key_file", "key")],
        StoreKind::Http => &[("user", "username"), ("password", "password"), ("token", "token")],
    }
}

impl Access {
    /// `secret` is the text of the pool's file of keys. The error is a sentence for the administrator, without what is in it.
    pub fn of(pool: &Pool, secret: Option<&str>) -> Result<Self, String> {
        let mut options = BTreeMap::new();
        let mut set = |key: &str, value: &str| drop(options.insert(key.to_owned(), value.to_owned()));
        set("endpoint", &pool.endpoint);
        set("root", &format!("/{}", pool.root.trim_matches('/')));
        if let Some(bucket) = &pool.bucket {
            set("bucket", bucket);
        }
        match pool.kind {
            StoreKind::S3 => {
                set("region", pool.region.as_deref().unwrap_or("us-east-1"));
                // What the machine has of its own is not the jobs' to use.
                set("disable_config_load", "true");
                set("disable_ec2_metadata", "true");
            }
            StoreKind::Sftp => set("known_hosts_strategy", "strict"),
            StoreKind::Oss | StoreKind::WebHdfs | StoreKind::Http => {}
        }
        if pool.virtual_host {
            set("enable_virtual_host_style", "true");
        }
        match secret {
            Some(text) => read_keys(text, pool.kind, &mut set)?,
            None if matches!(pool.kind, StoreKind::S3 | StoreKind::Oss) => set("skip_signature", "true"),
            None => {}
        }
        if pool.kind == StoreKind::Sftp && !(options.contains_key("user") && options.contains_key("key")) {
            return Err("must have user and key_file: nobody else's are taken".to_owned());
        }
        Ok(Self { kind: pool.kind, options, proxy: pool.proxy.clone(), host_key: pool.host_key.clone() })
    }

    /// What nobody is to read, as it is and as it stands in an address.
    pub(super) fn secrets(&self) -> Vec<String> {
        const SHORTEST: usize = 4;
        let hidden = keys_of(self.kind).iter().filter(|(name, _)| !["user", "access_key", "key_file"].contains(name));
        let values = hidden.filter_map(|(_, option)| self.options.get(*option));
        let values = values.filter(|value| value.len() >= SHORTEST);
        values.flat_map(|value| [value.clone(), escape_in_address(value)]).collect()
    }

    /// A line of `known_hosts` for the host, where the store is reached by `ssh`.
    pub(super) fn known_host(&self) -> Option<String> {
        let address = self.options.get("endpoint")?.strip_prefix("ssh://")?;
        let address = address.split('/').next()?;
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "22"));
        let host = if port == "22" { host.to_owned() } else { format!("[{host}]:{port}") };
        Some(format!("{host} {}\n", self.host_key.as_ref()?))
    }
}

fn read_keys(text: &str, kind: StoreKind, set: &mut impl FnMut(&str, &str)) -> Result<(), String> {
    let known = keys_of(kind);
    let names = || known.iter().map(|(name, _)| format!("{name} = \"…\"")).collect::<Vec<_>>().join(", ");
    let table: BTreeMap<String, String> =
        toml::from_str(text).map_err(|_| format!("is no TOML of texts; it may have {}", names()))?;
    for (key, value) in &table {
        let (_, option) = known
            .iter()
            .find(|(name, _)| name == key)
            .ok_or_else(|| format!("has {key:?}, which is not for {}; it may have {}", kind.name(), names()))?;
        set(option, value);
    }
    Ok(())
}

/// Without a byte for so long, a request is given up and made again.
const STALL: Duration = Duration::from_secs(60);
/// A piece may take so long on its way to a store: 8 MiB at 10 kB a second.
const PIECE_SENT: Duration = Duration::from_secs(900);
const CONNECT: Duration = Duration::from_secs(20);
/// Requests are made again so often, with pauses that double from the first to the last.
const TRIES: usize = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(10);

pub(super) fn open(access: &Access, sends: bool) -> Result<Operator, Failure> {
    let options = || access.options.clone().into_iter();
    let opened = match access.kind {
        StoreKind::S3 => Operator::from_iter::<S3>(options()),
        StoreKind::Oss => Operator::from_iter::<Oss>(options()),
        StoreKind::WebHdfs => Operator::from_iter::<Webhdfs>(options()),
        StoreKind::Sftp => Operator::from_iter::<Sftp>(options()),
        StoreKind::Http => Operator::from_iter::<Http>(options()),
    };
    let operator = opened.map_err(|error| Failure::of_store("the pool", &error))?;
    let transport = HttpTransporter::new(ReqwestTransport::new(client(access)?));
    let retry =
        RetryLayer::new().with_max_times(TRIES).with_min_delay(FIRST_PAUSE).with_max_delay(LAST_PAUSE).with_jitter();
    let (teller, secrets) = (Teller::default(), access.secrets());
    let tell = move |event: RetryEvent<'_>| teller.now_and_then(|| Failure::again(event.err, &secrets));
    let patience = TimeoutLayer::new().with_timeout(STALL).with_io_timeout(if sends { PIECE_SENT } else { STALL });
    Ok(operator
        .with_context(OperationContext::new().with_http_transport(transport))
        .layer(patience)
        .layer(retry.with_notify(tell)))
}

/// What its driver lacks, where the store speaks WebHDFS.
pub(super) fn webhdfs(access: &Access) -> Result<Option<WebHdfs>, Failure> {
    let made = (access.kind == StoreKind::WebHdfs).then(|| Ok(WebHdfs::new(client(access)?, &access.options)));
    made.transpose()
}

fn client(access: &Access) -> Result<reqwest::Client, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || -> Result<reqwest::ClientBuilder, Failure> {
        // Proxies of the daemon's own environment are not the pool's.
        let builder = reqwest::Client::builder()
            .user_agent(concat!("trainyard/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .no_proxy();
        let Some(proxy) = &access.proxy else { return Ok(builder) };
        let proxy = reqwest::Proxy::all(proxy).map_err(|_| Failure::for_good("the pool's `proxy` is no address"))?;
        Ok(builder.proxy(proxy))
    };
    // A machine without any certificates can still speak plain http.
    let built = builder()?.build().or_else(|error| match builder() {
        Ok(builder) => builder.tls_certs_only([]).build(),
        Err(_) => Err(error),
    });
    built.map_err(|_| Failure::for_good("the TLS library does not start"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(kind: StoreKind) -> Pool {
        Pool {
            kind,
            endpoint: "http://lab".to_owned(),
            bucket: Some("train".to_owned()),
            region: None,
            host_key: None,
            root: "a/".to_owned(),
            virtual_host: false,
            secret: None,
            workspaces: None,
            proxy: None,
            read_only: false,
        }
    }

    #[test]
    fn keys_are_read_from_the_secret_and_never_told() {
        let access = Access::of(&pool(StoreKind::S3), Some("access_key = \"a\"\nsecret_key = \"hush\"")).ok().unwrap();
        assert_eq!(access.options["secret_access_key"], "hush");
        assert_eq!(access.options["root"], "/a");
        assert!(!access.options.contains_key("skip_signature"));
        let open = Access::of(&pool(StoreKind::Oss), None).ok().unwrap();
        assert_eq!(open.options["skip_signature"], "true");
        for text in ["hush", "secret_key = 5 # hush", "password = \"hush\"", "[x]\ny = \"hush\""] {
            let told = Access::of(&pool(StoreKind::S3), Some(text)).err().unwrap();
            assert!(!told.contains("hush") && told.contains("access_key"), "{told}");
        }
    }
}
