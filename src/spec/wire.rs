//! A job file as it is written: the shape that serde reads, with the spans that errors of meaning need.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

pub(super) type WireMap<T> = BTreeMap<Spanned<String>, Spanned<T>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireJob {
    pub(super) description: String,
    pub(super) image: Option<Spanned<String>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) init: Option<bool>,
    pub(super) debug: Option<Spanned<bool>>,
    pub(super) stop_grace: Option<String>,
    pub(super) command: Option<WireCommand>,
    pub(super) contract: Option<Spanned<String>>,
    pub(super) framework: Option<Spanned<String>>,
    pub(super) strategy: Option<Spanned<String>>,
    pub(super) code: Option<Spanned<WireCode>>,
    pub(super) requirements: Option<Spanned<bool>>,
    pub(super) resume: Option<bool>,
    pub(super) datasets: Vec<Spanned<String>>,
    pub(super) mounts: Vec<Spanned<WireMount>>,
    pub(super) network: Option<String>,
    pub(super) max_nodes: Option<Spanned<u32>>,
    pub(super) max_gpu: Option<Spanned<u32>>,
    pub(super) retries: u32,
    pub(super) retry: WireRetry,
    pub(super) after: Vec<Spanned<String>>,
    pub(super) on_edit: Option<String>,
    pub(super) priority: Option<WirePriority>,
    pub(super) extras: toml::Table,
    pub(super) max_duration: Option<String>,
    pub(super) expected_duration: Option<Spanned<String>>,
    pub(super) on_overrun: Option<Spanned<String>>,
    pub(super) on_gpu_failure: Option<Spanned<String>>,
    pub(super) alerts: WireAlerts,
    pub(super) state: Option<String>,
    pub(super) rerun: u64,
    pub(super) params: WireMap<toml::Value>,
    pub(super) env: WireMap<toml::Value>,
    pub(super) resources: WireResources,
    pub(super) roles: Option<Spanned<WireMap<WireRole>>>,
    /// Put in by `layers`, which takes these out.
    pub(super) template: Option<Spanned<String>>,
    pub(super) with: Option<Spanned<toml::Table>>,
    pub(super) sweep: Option<Spanned<toml::Table>>,
    pub(super) services: WireMap<WireService>,
    pub(super) tensorboard: Option<Spanned<WireTensorboard>>,
    pub(super) scalars: Option<WireScalars>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireAlerts {
    pub(super) gpu_idle: Option<Spanned<WireGpuIdle>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireGpuIdle {
    pub(super) below: Option<u32>,
    #[serde(rename = "for")]
    pub(super) lasting: Option<Spanned<String>>,
    pub(super) then: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireScalars {
    pub(super) log_dir: Option<Spanned<String>>,
    pub(super) lines: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireMount {
    pub(super) source: Option<String>,
    pub(super) target: Option<String>,
    pub(super) read_only: bool,
    pub(super) sync: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireService {
    pub(super) command: Option<WireCommand>,
    pub(super) port: Option<u16>,
    pub(super) image: Option<Spanned<String>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) env: WireMap<toml::Value>,
    pub(super) resources: WireResources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireTensorboard {
    pub(super) each_task: bool,
    pub(super) log_dir: Option<Spanned<String>>,
    pub(super) image: Option<Spanned<String>>,
    pub(super) resources: WireResources,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum WireCommand {
    Shell(String),
    Exec(Vec<String>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum WireCode {
    Name(String),
    Git(WireGit),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireGit {
    pub(super) git: Option<String>,
    #[serde(rename = "ref")]
    pub(super) reference: Option<String>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    #[serde(default)]
    pub(super) submodules: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireRetry {
    pub(super) on: Option<Vec<Spanned<String>>>,
    pub(super) backoff: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireResources {
    /// Put in by `layers`, which takes it out.
    pub(super) spec: Option<Spanned<String>>,
    pub(super) gpu: Option<Spanned<u32>>,
    pub(super) gpu_type: Option<Spanned<String>>,
    pub(super) gpu_memory: Option<Spanned<String>>,
    pub(super) gpu_memory_over: Option<Spanned<String>>,
    pub(super) mig: Option<Spanned<String>>,
    pub(super) cpu: Option<f64>,
    pub(super) memory: Option<String>,
    pub(super) shm: Option<Spanned<String>>,
    pub(super) pids: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WireRole {
    pub(super) count: Option<u32>,
    pub(super) main: Option<WireMain>,
    pub(super) serves: Option<bool>,
    pub(super) min_failed: Option<Spanned<WireCount>>,
    pub(super) min_succeeded: Option<Spanned<WireCount>>,
    pub(super) retries: Option<u32>,
    pub(super) slots: Option<u32>,
    pub(super) image: Option<Spanned<String>>,
    pub(super) user: Option<Spanned<String>>,
    pub(super) code: Option<Spanned<WireCode>>,
    pub(super) command: Option<WireCommand>,
    pub(super) params: WireMap<toml::Value>,
    pub(super) env: WireMap<toml::Value>,
    pub(super) resources: WireResources,
    pub(super) ports: WireMap<WirePort>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum WireMain {
    Flag(bool),
    /// The key table knows only one.
    Word(serde::de::IgnoredAny),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum WireCount {
    Number(u32),
    Word(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum WirePriority {
    Number(u8),
    Word(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum WirePort {
    Count(u16),
    Table { count: Option<u16>, begin: Option<u16> },
}
