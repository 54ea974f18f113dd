//! Job files → [`JobSpec`] or diagnostics. Pure: text in, values out; no disk, no clock.
//!
//! The text is checked against the key table ([`keys`]), which also feeds `trainyard explain` and `docs/JOBS.md`;
//! what passes is read into wire types ([`wire`]) and turned into the inner types ([`job`]), which are always valid.
//! A broken file yields all of its errors at once, each with line, column and key.
//!
//! A job may be made of several files: [`layers`] puts a template, the job file and its overrides together ([`tree`]) and
//! tells what is wrong where it was written; [`template`] reads templates and their parameters, [`sweep`] makes one file
//! many jobs; [`resource_specs`] are the sizes that the administrator offers.

mod accepted;
mod check;
pub mod diagnostic;
pub mod explain;
mod foreign;
pub mod image;
pub mod job;
pub mod keys;
pub mod layers;
pub(crate) mod near;
pub mod platform;
mod reader;
pub mod resource_specs;
pub mod stores;
pub mod strategy;
pub mod sweep;
pub mod template;
mod tree;
mod wire;

use std::collections::BTreeSet;

use crate::ids::RoleName;

pub use accepted::{Accepted, parse_accepted, salvage};
pub use diagnostic::{Diagnostic, Severity};
pub use image::Image;
pub use job::{
    Code, Command, DataSource, Dataset, DesiredState, GitCode, GpuIdle, GpuPart, HostMount, JobSpec, ListItem, Main,
    MinSucceeded, Network, OnEdit, OnGpuFailure, OnIdle, OnOverrun, OutsidePort, Param, Port, Priority, RemoteMount,
    Resources, Retry, RetryOn, Role, Scalars, ShareOver, Submodules, SyncAt,
};
pub use layers::{Expanded, Layer, OWNER_ALONE, Stack, TemplateUse};
pub use platform::{Contract, Framework, Platform, Profile, Strategy};
pub use resource_specs::{Offer, Price, ResourceSpec, ResourceSpecs};

/// Largest job file, in bytes. Real ones have a few hundred; 1 MiB of garbage must not reach the parser.
pub const JOB_FILE_MAX_BYTES: u64 = 256 << 10;

/// Reads the job file `file` (a name for messages) with the content `text`.
///
/// Returns the job, if it may run, and everything there is to say: errors only without a job, warnings also with one.
pub fn parse(file: &str, text: &str) -> (Option<JobSpec>, Vec<Diagnostic>) {
    parse_source(&diagnostic::Source::new(file, text), None)
}

fn parse_source(
    source: &diagnostic::Source<'_>,
    begun: Option<&BTreeSet<RoleName>>,
) -> (Option<JobSpec>, Vec<Diagnostic>) {
    let mut found = check::check(source, check::Language::Job);
    sort(&mut found);
    if found.iter().any(Diagnostic::is_error) {
        return (None, found);
    }
    let wire = match toml::from_str::<wire::WireJob>(source.text()) {
        Ok(wire) => wire,
        Err(error) => {
            found.push(source.syntax(&error));
            return (None, found);
        }
    };
    let spec = reader::from_wire(wire, source, begun, &mut found);
    let spec = spec.filter(|_| !found.iter().any(Diagnostic::is_error));
    sort(&mut found);
    (spec, found)
}

fn sort(found: &mut [Diagnostic]) {
    found.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
}

/// Reads the bytes of a job file; text that is not UTF-8 is a diagnostic like any other.
pub fn parse_bytes(file: &str, bytes: &[u8]) -> (Option<JobSpec>, Vec<Diagnostic>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(file, text),
        Err(error) => (None, vec![diagnostic::not_text(file, bytes, error.valid_up_to())]),
    }
}

#[cfg(test)]
mod tests;
