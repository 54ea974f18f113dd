//! `[[listen]]`: where the API is reached over the network.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// An address that the API is served at, beside its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub address: SocketAddr,
    /// Certificate and key; without them only on the loopback.
    pub tls: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, as `[[listen]]` begins one")]
pub(super) struct WireListen {
    address: String,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

pub(super) fn read(wire: Vec<WireListen>) -> Result<Vec<Listen>, (String, String)> {
    wire.into_iter().enumerate().map(|(index, one)| one_of(&format!("listen[{index}]"), one)).collect()
}

fn one_of(place: &str, wire: WireListen) -> Result<Listen, (String, String)> {
    let at = |key: &str, message: String| (format!("{place}.{key}"), message);
    let address: SocketAddr = wire.address.parse().map_err(|_| {
        at(
            "address",
            format!("{:?} is not an address with a port, as in \"0.0.0.0:8443\" or \"[::]:8443\"", wire.address),
        )
    })?;
    let tls = match (wire.certificate, wire.key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) if address.ip().is_loopback() => None,
        (None, None) => {
            let message = "needs `certificate` and `key`: without encryption only addresses of the loopback are served";
            return Err(at("address", message.to_owned()));
        }
        (Some(_), None) => return Err(at("key", "is missing; a certificate needs its key".to_owned())),
        (None, Some(_)) => return Err(at("certificate", "is missing; a key needs its certificate".to_owned())),
    };
    let relative = tls.iter().flat_map(|(certificate, key)| [("certificate", certificate), ("key", key)]);
    if let Some((key, path)) = relative.into_iter().find(|(_, path)| !path.is_absolute()) {
        return Err(at(key, format!("{} is not an absolute path", path.display())));
    }
    Ok(Listen { address, tls })
}
