//! Watches `jobs.d` and reads what arrives there. Decides nothing: it hands over versions of files and their absence.
//!
//! A file is read when its writer has closed it or renamed it into place; what is only being written is left alone
//! until it has been quiet for a moment. With a job file its overrides and its template are read ([`sources`]). A file that vanishes is given up only when it stays away, since editors
//! replace a file by removing it first. Everything is looked at again at start, every 20 s, and when the kernel lost
//! track of changes.

mod read;
pub mod sources;
mod watch;

#[cfg(test)]
mod tests;

use crate::ids::JobKey;
use crate::spec::{Diagnostic, JobSpec};
use crate::store::record::{Owner, SourceRecord};

pub use read::{Look, Scan, is_ignored, read_path, read_text, read_whole, why_unread};
pub use watch::{AskSpecs, Intake, IntakeError};

/// One job of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Swept {
    pub key: JobKey,
    pub source: SourceRecord,
    pub spec: JobSpec,
}

/// What a good job file makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// By the file's name.
    pub key: JobKey,
    /// The one of that name, or all of a sweep.
    pub jobs: Vec<Swept>,
}

impl Made {
    pub fn is_sweep(&self) -> bool {
        !matches!(self.jobs.as_slice(), [one] if one.source.sweep.is_none())
    }
}

impl From<Made> for Arrival {
    fn from(Made { key, mut jobs }: Made) -> Self {
        match jobs.pop_if(|last| last.source.sweep.is_none()) {
            Some(Swept { source, spec, .. }) => Self::Accepted { key, source, spec: Box::new(spec) },
            None => Self::Swept { key, jobs },
        }
    }
}

/// What came of a job file.
#[expect(clippy::large_enum_variant, reason = "there are few at a time, for a moment")]
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    Accepted {
        key: JobKey,
        source: SourceRecord,
        spec: Box<JobSpec>,
    },
    /// A file that makes several jobs.
    Swept {
        key: JobKey,
        jobs: Vec<Swept>,
    },
    Refused {
        key: JobKey,
        /// Whose the file is; unknown where it has gone meanwhile.
        owner: Option<Owner>,
        diagnostics: Vec<Diagnostic>,
    },
    Removed {
        key: JobKey,
    },
    /// A file whose name cannot be a job's, a template, or a directory that is no workspace; no diagnostics when it is gone or good.
    Stray {
        file: String,
        diagnostics: Vec<Diagnostic>,
    },
}
