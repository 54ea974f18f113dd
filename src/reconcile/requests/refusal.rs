//! What people are told whose request is not carried out.

use crate::ids::JobKey;
use crate::status::State;

/// Why a request is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no job {0}; `trainyard ps` lists the jobs")]
    Unknown(JobKey),
    #[error("{key} is a sweep of {} jobs; name one of them: {}", jobs.len(), jobs.join(", "))]
    Sweep { key: JobKey, jobs: Vec<String> },
    #[error(
        "job {key} belongs to another user, and is for its owner and root alone; what it tells its workspace is in the mount, in jobs/"
    )]
    NotYours { key: JobKey },
    #[error("job {key} is {state} already; `trainyard rerun {key}` starts it again")]
    NotRunning { key: JobKey, state: State },
    #[error("job {key} is {state}; `trainyard stop {key}` first")]
    StillRunning { key: JobKey, state: State },
    #[error("the file of job {key} is still in jobs.d; remove it (`trainyard rm --file` does), then the record goes")]
    FileStillThere { key: JobKey },
    #[error("job {key}: {state}; wait for it, or give up the copy with `trainyard send --drop {key}`")]
    Unsent { key: JobKey, state: String },
    #[error("job {key} copies no output to a store, or all of it is there")]
    NothingToSend { key: JobKey },
    #[error(
        "job {key} may take as long as it takes: its file has neither max_duration nor on_overrun = \"stop\", so there is \
         nothing to extend"
    )]
    NoLimit { key: JobKey },
    #[error("job {key} is ending already, it cannot be extended; `trainyard rerun {key}` runs it again")]
    Ending { key: JobKey },
    #[error("job {key} may be extended by more than nothing, and by 3650d in all")]
    NoSuchExtension { key: JobKey },
    #[error("job {key} has no job file any more; put it back into jobs.d")]
    NoFile { key: JobKey },
    #[error("job {key} has state = \"stopped\" in its file; change that instead")]
    StoppedByFile { key: JobKey },
    #[error("job {key} has never had a valid file: {problem}")]
    NeverValid { key: JobKey, problem: String },
    #[error("job {key}: {problem}")]
    RefusedNow { key: JobKey, problem: String },
    /// Of several jobs, each.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Each(Vec<Refusal>),
    /// The change is made when there is room, or was not taken at all.
    #[error(
        "the disk of the daemon's state is full, so that nothing can be recorded: {}; `trainyard doctor disk` tells where",
        if *is_kept { "this is done as soon as there is room, unless the daemon ends before" } else { "ask again when there is room" }
    )]
    NoRoom { is_kept: bool },
    #[error("the store cannot be read: {0}")]
    Store(String),
}
