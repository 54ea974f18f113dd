//! HTTP: the daemon's door to people and programs, by its unix socket and, if configured, over the network.
//!
//! [`routes`] is what there is. Everything below `/v1` keeps what it means: fields, parameters and routes are added, never
//! changed. Errors are `{"code": "…", "error": "…"}` with a fitting status ([`error`]). Who asks is who the kernel says is at the
//! other end of the socket, or whose token is shown ([`tokens`]); root may ask in the place of somebody else by the header
//! `trainyard-for-user: UID`. What they may see and do of jobs is the reconciler's to say, by one function for both.

pub mod assets;
mod awaited;
pub mod client;
mod datasets;
pub mod drain;
pub mod error;
mod exec;
mod files;
mod flow;
pub mod frames;
pub mod gpus;
mod happenings;
pub mod health;
pub mod images;
mod jobs;
mod list;
mod listed;
pub mod logs;
pub mod looks;
pub mod measures;
pub mod openapi;
pub mod params;
mod patience;
mod peers;
pub mod query;
pub mod rates;
mod rights;
mod router;
pub mod routes;
pub mod secrets;
pub mod server;
pub mod sessions;
pub mod sight;
mod state;
pub mod storage;
pub mod tasks;
pub mod templates;
pub mod tls;
pub mod tokens;
pub mod usage;
pub mod wire;
