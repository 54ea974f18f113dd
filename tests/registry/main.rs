//! The registry client beside servers that break off, lie, or send us elsewhere, and beside a real registry.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "tests drive processes and may panic; their server is all public"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod support;

mod blobs;
mod manifests;
mod pulls;
mod real;
mod server;
#[path = "../support/workspaces.rs"]
mod workspaces;
