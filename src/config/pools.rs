//! Stores of other machines: `[pools.NAME]`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::ids::{AssetName, StoreKind, WorkspaceName};

/// A place in a store of another machine, by which jobs read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    pub kind: StoreKind,
    /// `https://HOST[:PORT]`; of SFTP `ssh://HOST[:PORT]`.
    pub endpoint: String,
    /// S3 and OSS.
    pub bucket: Option<String>,
    /// S3.
    pub region: Option<String>,
    /// All that jobs name lies below it.
    pub root: String,
    /// S3: the bucket is part of the host's name, `BUCKET.HOST`.
    pub virtual_host: bool,
    /// SFTP: by which its host is known, `ssh-ed25519 AAAA…`.
    pub host_key: Option<String>,
    /// The file in `/etc/trainyard/secrets` with keys or passwords.
    pub secret: Option<AssetName>,
    /// Who may use it; everybody when absent.
    pub workspaces: Option<Vec<WorkspaceName>>,
    /// `http://HOST:PORT`, by which it is reached.
    pub proxy: Option<String>,
    /// Nothing is copied there.
    pub read_only: bool,
}

fn schemes(kind: StoreKind) -> &'static [&'static str] {
    match kind {
        StoreKind::Sftp => &["ssh://"],
        _ => &["https://", "http://"],
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, as `[pools.NAME]` begins one")]
pub(super) struct WirePool {
    kind: StoreKind,
    endpoint: String,
    bucket: Option<String>,
    region: Option<String>,
    host_key: Option<String>,
    #[serde(default)]
    virtual_host: bool,
    #[serde(default)]
    root: String,
    secret: Option<String>,
    workspaces: Option<Vec<String>>,
    proxy: Option<String>,
    #[serde(default)]
    read_only: bool,
}

type BadValue = (String, String);

pub(super) fn read(wire: BTreeMap<String, WirePool>) -> Result<BTreeMap<AssetName, Pool>, BadValue> {
    wire.into_iter().map(|(name, pool)| read_one(&name, pool)).collect()
}

fn read_one(name: &str, wire: WirePool) -> Result<(AssetName, Pool), BadValue> {
    let at = |key: &str| format!("pools.{name}.{key}");
    let known: AssetName =
        name.parse().map_err(|error| (format!("pools.{name}"), format!("{name:?} is no name: {error}")))?;
    if !is_address(&wire.endpoint, schemes(wire.kind)) {
        let how = schemes(wire.kind).join("HOST or ");
        return Err((at("endpoint"), format!("write it as {how}HOST, without a login (`secret` names that)")));
    }
    let has_buckets = matches!(wire.kind, StoreKind::S3 | StoreKind::Oss);
    if has_buckets != wire.bucket.as_ref().is_some_and(|bucket| !bucket.is_empty()) {
        let what = if has_buckets { "must be given" } else { "is for s3 and oss" };
        return Err((at("bucket"), what.to_owned()));
    }
    for (key, is_said) in [("region", wire.region.is_some()), ("virtual_host", wire.virtual_host)] {
        if wire.kind != StoreKind::S3 && is_said {
            return Err((at(key), "is for s3".to_owned()));
        }
    }
    if wire.kind == StoreKind::Sftp && wire.secret.is_none() {
        return Err((at("secret"), "must be given: user and key_file".to_owned()));
    }
    let is_key = |key: &String| key.split(' ').count() == 2 && !key.contains(['\n', '\r', '#', '@', '*']);
    if (wire.kind == StoreKind::Sftp) != wire.host_key.as_ref().is_some_and(is_key) {
        let what = match wire.kind {
            StoreKind::Sftp => "must be given as `ssh-keyscan HOST` prints it, without the host: \"ssh-ed25519 AAAA…\"",
            _ => "is for sftp",
        };
        return Err((at("host_key"), what.to_owned()));
    }
    if wire.kind == StoreKind::Sftp && wire.proxy.is_some() {
        return Err((at("proxy"), "is not for sftp".to_owned()));
    }
    if let Some(proxy) = wire.proxy.as_ref().filter(|proxy| !is_address(proxy, &["http://", "https://"])) {
        return Err((at("proxy"), format!("{proxy:?} is not http://HOST:PORT")));
    }
    let secret = wire.secret.map(|secret| secret.parse::<AssetName>()).transpose();
    let workspaces =
        wire.workspaces.map(|all| all.iter().map(|one| one.parse::<WorkspaceName>()).collect::<Result<Vec<_>, _>>());
    Ok((
        known,
        Pool {
            kind: wire.kind,
            endpoint: wire.endpoint.trim_end_matches('/').to_owned(),
            bucket: wire.bucket,
            region: wire.region,
            host_key: wire.host_key,
            virtual_host: wire.virtual_host,
            root: wire.root,
            secret: secret.map_err(|error| (at("secret"), format!("names a file in secrets/: {error}")))?,
            workspaces: workspaces.transpose().map_err(|error| (at("workspaces"), error.to_string()))?,
            proxy: wire.proxy,
            read_only: wire.read_only || wire.kind == StoreKind::Http,
        },
    ))
}

/// A login in it would be shown with it.
fn is_address(text: &str, schemes: &[&str]) -> bool {
    let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#']) && !rest.contains(char::is_whitespace))
}
