//! What an image says of how its containers run, and what it is made of; read from its own JSON, which is not trusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::{Digest, NotADigest};
use super::{ImageError, document};

/// Most layers: overlayfs takes its list of layers in one page.
pub const LAYERS_MAX: usize = 200;

/// Most variables, and bytes of them: the kernel gives a command no more than 2 MiB by default.
const ENV_MAX: usize = 10_000;
const ENV_BYTES_MAX: usize = 1 << 20;

/// The part of an image's configuration that Trainyard acts on or shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// In the image's order.
    pub env: Vec<(String, String)>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub working_directory: Option<String>,
    /// As written: `NAME`, `UID`, `NAME:GROUP`.
    pub user: String,
    /// As written: `SIGINT`, `INT` or a number.
    pub stop_signal: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub volumes: Vec<String>,
    pub architecture: String,
    pub created: Option<String>,
}

/// Reads a configuration: what to act on, and the layers by the digest of their content, bottom first.
pub(super) fn read(bytes: &[u8]) -> Result<(ImageConfig, Vec<Digest>), ImageError> {
    let damaged = |why: String| ImageError::Damaged { what: "its configuration".to_owned(), why };
    let wire = document::configuration(bytes).map_err(|error| damaged(error.to_string()))?;
    let (os, architecture) = (wire.os().to_string(), wire.architecture().to_string());
    if os != "linux" {
        return Err(damaged(format!("it is made for {os}, not for linux")));
    }
    if architecture != machine() {
        return Err(damaged(format!("it is made for {architecture} machines, this is {}", machine())));
    }
    let layers = wire.rootfs().diff_ids();
    if layers.len() > LAYERS_MAX {
        return Err(damaged(format!("it has {} layers, {LAYERS_MAX} are possible; squash it", layers.len())));
    }
    let layers: Result<Vec<Digest>, NotADigest> = layers.iter().map(|text| text.parse()).collect();
    let layers = layers.map_err(|error| damaged(error.to_string()))?;
    let config = acted_on(wire.config().clone().unwrap_or_default(), architecture, wire.created().clone());
    let env_bytes = config.env.iter().fold(0, |sum, (name, value)| sum + name.len() + value.len());
    if config.env.len() > ENV_MAX || env_bytes > ENV_BYTES_MAX {
        let count = config.env.len();
        return Err(damaged(format!("its {count} variables ({env_bytes} bytes) are more than a command can be given")));
    }
    if has_nul(&config) {
        return Err(damaged("a value holds a NUL".to_owned()));
    }
    Ok((config, layers))
}

fn acted_on(run: document::Config, architecture: String, created: Option<String>) -> ImageConfig {
    let pair = |entry: &String| match entry.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (entry.clone(), String::new()),
    };
    let texts = |texts: &Option<Vec<String>>| texts.clone().unwrap_or_default();
    let mut volumes = texts(run.volumes());
    volumes.sort();
    ImageConfig {
        env: run.env().iter().flatten().map(pair).filter(|(name, _)| !name.is_empty()).collect(),
        entrypoint: texts(run.entrypoint()),
        command: texts(run.cmd()),
        working_directory: run.working_dir().clone().filter(|path| path.starts_with('/')),
        user: run.user().clone().unwrap_or_default(),
        stop_signal: run.stop_signal().clone().filter(|name| !name.is_empty()),
        labels: run.labels().clone().unwrap_or_default().into_iter().collect(),
        volumes,
        architecture,
        created,
    }
}

fn has_nul(config: &ImageConfig) -> bool {
    let words = config.entrypoint.iter().chain(&config.command).chain(&config.working_directory).chain([&config.user]);
    let env = config.env.iter().flat_map(|(name, value)| [name, value]);
    words.chain(env).chain(&config.volumes).any(|text| text.contains('\0'))
}

/// This machine's architecture in the words of images.
pub(super) fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl ImageConfig {
    /// What the image runs by itself.
    pub fn full_command(&self) -> Vec<String> {
        self.entrypoint.iter().chain(&self.command).cloned().collect()
    }

    /// The number of the signal that ends a container of the image.
    pub fn stop_signal_number(&self) -> i32 {
        let written = self.stop_signal.as_deref().unwrap_or("SIGTERM").to_ascii_uppercase();
        let name = written.strip_prefix("SIG").unwrap_or(&written);
        if let Some(offset) = name.strip_prefix("RTMIN") {
            let offset = offset.strip_prefix('+').unwrap_or("0").parse().unwrap_or(0);
            let number = nix::libc::SIGRTMIN().checked_add(offset);
            return number.filter(|number| (1..=nix::libc::SIGRTMAX()).contains(number)).unwrap_or(nix::libc::SIGTERM);
        }
        let number = name.parse().ok().filter(|number| (1..=nix::libc::SIGRTMAX()).contains(number));
        let named = || format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32);
        number.or_else(named).unwrap_or(nix::libc::SIGTERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_s_and_oci_s_configurations_are_read_and_nulls_are_absent() {
        let text = format!(
            r#"{{"architecture":"{}","os":"linux","config":{{"Env":["PATH=/x","A=b=c","=bad"],"Cmd":null,
            "Entrypoint":["/init"],"WorkingDir":"","User":"ada:staff","StopSignal":"SIGINT","Volumes":{{"/data":{{}}}},
            "Labels":{{"a":"b"}}}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
            machine(),
            "0".repeat(64)
        );
        let (config, layers) = read(text.as_bytes()).unwrap();
        assert_eq!(layers.len(), 1);
        assert_eq!(config.env, [("PATH".into(), "/x".into()), ("A".into(), "b=c".into())]);
        assert_eq!((config.full_command(), config.working_directory), (vec!["/init".to_owned()], None));
        assert_eq!((config.user.as_str(), config.volumes.as_slice()), ("ada:staff", ["/data".to_owned()].as_slice()));
    }

    #[test]
    fn what_cannot_run_here_is_refused_by_its_reason() {
        let many = format!(
            r#"{{"rootfs":{{"diff_ids":[{}]}}}}"#,
            vec![format!("\"sha256:{}\"", "0".repeat(64)); 201].join(",")
        );
        for (text, word) in [
            (r#"{"os":"windows"}"#, "windows"),
            (r#"{"architecture":"s390x","os":"linux"}"#, "s390x"),
            (many.as_str(), "201 layers"),
            (r#"{"rootfs":{"diff_ids":["sha256:../../x"]}}"#, "no digest"),
            ("7", "configuration"),
            (r#"{"config":{"Cmd":["a\u0000b"]}}"#, "NUL"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn stop_signals_have_many_spellings() {
        let number = |text: &str| {
            ImageConfig { stop_signal: Some(text.to_owned()), ..ImageConfig::default() }.stop_signal_number()
        };
        assert_eq!(["SIGINT", "int", "2", "SIGRTMIN+3", "nonsense", "99"].map(number), [2, 2, 2, 37, 15, 15]);
        assert_eq!(["SIGRTMIN+2147483647", "SIGRTMIN+99", "RTMIN"].map(number), [15, 15, 34]);
        assert_eq!(ImageConfig::default().stop_signal_number(), 15);
    }
}
