//! HTTP over a unix socket: the daemon's door to people and programs.
//!
//! `GET /v1/jobs` · `GET /v1/jobs/WS/JOB` · `GET /v1/jobs/WS/JOB/logs` (a line of JSON for each line of output, going
//! on with `follow`) · `POST /v1/jobs/WS/JOB/exec` ([`frames`] after an upgrade) · `POST /v1/jobs/WS/JOB/stop`,
//! `…/rerun` · `DELETE /v1/jobs/WS/JOB` · `GET`, `DELETE /v1/images` · `GET /v1/images/show` ·
//! `POST /v1/images/pull`, `…/import`, `…/tag`, `…/prune` · `POST /v1/shutdown`.
//! Errors are `{"error": "…"}` with a fitting status. Who asks is who the kernel says is at the other end.

pub mod client;
mod exec;
pub mod frames;
pub mod images;
mod logs;
pub mod server;
pub mod sessions;
pub mod wire;
