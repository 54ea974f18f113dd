//! Addresses and names of tasks: `[network]`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::Deserialize;

use super::{BadValue, Paths};

#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Addresses for tasks; cut into one block an attempt.
    pub range: AddressRange,
    /// Let tasks reach out through the machine's address (needs nft).
    pub masquerade: bool,
    /// Workspaces whose jobs may use the machine's own network.
    pub host_workspaces: Vec<String>,
    /// How tasks resolve names, as resolv.conf(5) has it.
    pub resolv_conf: PathBuf,
}

/// A private IPv4 range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    pub base: u32,
    /// Length of the prefix, 8 to 24.
    pub prefix: u8,
}

impl AddressRange {
    pub fn size(self) -> u32 {
        1 << (32 - u32::from(self.prefix))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').ok_or("write it as ADDRESS/PREFIX")?;
        let address: Ipv4Addr = address.parse().map_err(|_| format!("{address:?} is not an IPv4 address"))?;
        let prefix: u8 = prefix.parse().map_err(|_| format!("{prefix:?} is not a prefix length"))?;
        if !address.is_private() || !(8..=24).contains(&prefix) {
            return Err("must be a private range with a prefix from 8 to 24".to_owned());
        }
        let mask = u32::MAX << (32 - u32::from(prefix));
        Ok(Self { base: u32::from(address) & mask, prefix })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table, as `[network]` begins one")]
pub(super) struct WireNetwork {
    range: Option<String>,
    masquerade: Option<bool>,
    host_workspaces: Vec<String>,
    resolv_conf: Option<PathBuf>,
}

pub(super) fn read(wire: &WireNetwork, paths: &Paths) -> Result<NetworkConfig, BadValue> {
    let default = paths.default_range();
    let resolv_conf = wire.resolv_conf.clone().unwrap_or_else(|| PathBuf::from("/etc/resolv.conf"));
    if !resolv_conf.is_absolute() {
        return Err(("network.resolv_conf", "must be an absolute path".to_owned()));
    }
    let range = AddressRange::parse(wire.range.as_ref().unwrap_or(&default));
    Ok(NetworkConfig {
        range: range.map_err(|message| ("network.range", message))?,
        masquerade: wire.masquerade.unwrap_or(true),
        host_workspaces: wire.host_workspaces.clone(),
        resolv_conf,
    })
}
