//! Job files → [`JobSpec`] or diagnostics. Pure: text in, values out; no disk, no clock.
//!
//! The text is checked against the key table ([`keys`]), which also feeds `trainyard explain` and `docs/JOBS.md`;
//! what passes is read into wire types ([`wire`]) and turned into the inner types ([`job`]), which are always valid.
//! A broken file yields all of its errors at once, each with line, column and key.

mod check;
pub mod diagnostic;
pub mod explain;
pub mod image;
pub mod job;
pub mod keys;
pub mod platform;
pub mod strategy;
mod wire;

pub use diagnostic::{Diagnostic, Severity};
pub use image::Image;
pub use job::{
    Code, Command, Dataset, DesiredState, GitCode, JobSpec, Main, MinSucceeded, Network, OnEdit, Param, Port,
    Resources, Retry, RetryOn, Role, Submodules,
};
pub use platform::{Contract, Framework, Platform, Profile, Strategy};

/// Largest job file, in bytes. Real ones have a few hundred; 1 MiB of garbage must not reach the parser.
pub const JOB_FILE_MAX_BYTES: u64 = 256 << 10;

/// Reads the job file `file` (a name for messages) with the content `text`.
///
/// Returns the job, if it may run, and everything there is to say: errors only without a job, warnings also with one.
pub fn parse(file: &str, text: &str) -> (Option<JobSpec>, Vec<Diagnostic>) {
    let source = diagnostic::Source::new(file, text);
    let mut found = check::check(&source);
    found.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
    if found.iter().any(Diagnostic::is_error) {
        return (None, found);
    }
    let wire = match toml::from_str::<wire::WireJob>(text) {
        Ok(wire) => wire,
        Err(error) => {
            found.push(source.syntax(&error));
            return (None, found);
        }
    };
    let spec = job::from_wire(wire, &source, &mut found);
    let spec = spec.filter(|_| !found.iter().any(Diagnostic::is_error));
    found.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
    (spec, found)
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
