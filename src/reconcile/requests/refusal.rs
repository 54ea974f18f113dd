//! What people are told whose request is not carried out.

use std::fmt;

use crate::ids::JobKey;
use crate::status::State;

/// Whose a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whose {
    /// None has one whose file was never valid.
    pub uid: Option<u32>,
    /// Where somebody has looked.
    pub name: Option<String>,
}

impl Whose {
    pub fn of(uid: Option<u32>) -> Self {
        Self { uid, name: None }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.uid) {
            (Some(name), _) => f.write_str(name),
            (None, Some(uid)) => write!(f, "user {uid}"),
            (None, None) => f.write_str("whoever has written its file"),
        }
    }
}

impl Whose {
    /// Who can be asked for what is theirs.
    pub(crate) fn ask(&self) -> String {
        if self.uid == Some(0) { "ask root".to_owned() } else { format!("ask {self} or root") }
    }
}

/// What of a job is kept from somebody who sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// To change it.
    Change,
    /// What it prints, and what it uses.
    Logs,
    /// Commands in its tasks.
    Inside,
}

impl Kept {
    fn why(self) -> &'static str {
        match self {
            Self::Change => "its owner, root, and who may remove its file from jobs.d may do that",
            Self::Logs => "its logs and figures are for its owner, for root, and for the group of its file",
            Self::Inside => {
                "what runs in its tasks has its owner's rights, so that only its owner and root may do that"
            }
        }
    }

    fn instead(self, key: &JobKey, whose: &Whose) -> String {
        match self {
            Self::Change => whose.ask(),
            Self::Logs => format!("`trainyard events {key}` tells what has happened; for more {}", whose.ask()),
            Self::Inside => {
                format!(
                    "what it has written is in the mount, in jobs/, as far as you may read it; for more {}",
                    whose.ask()
                )
            }
        }
    }
}

/// Why a request is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no job {0}; `trainyard ps` lists the jobs")]
    Unknown(JobKey),
    #[error("{key} is a sweep of {} jobs; name one of them: {}", jobs.len(), jobs.join(", "))]
    Sweep { key: JobKey, jobs: Vec<String> },
    #[error("job {key} belongs to {whose}: {}; {}", kept.why(), kept.instead(key, whose))]
    NotYours { key: JobKey, whose: Whose, kept: Kept },
    /// Runs of another's file, which had this name before, are among those that the change is about.
    #[error(
        "job {key} has runs of {}, whose file had this name before: what they have left is not yours to give up; root may do that, and who \
         may remove any file from the directory of its job file, where that is not sticky and the file is still there (`trainyard rm --file`)",
        whose.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    NotYourRuns { key: JobKey, whose: Vec<Whose> },
    /// On the disk there are runs of others of which there is no record.
    #[error(
        "job {key} has runs on the disk that are files of {} and of which no record is left, so that nobody can tell whether they may go: ask \
         root to look at them in jobs/{}/runs and to do it",
        whose.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        key.job
    )]
    UnknownRuns { key: JobKey, whose: Vec<Whose> },
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
        "job {key} may take as long as it takes: its file has neither max_duration, nor expected_duration with \
         on_overrun = \"stop\", so there is nothing to extend"
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
    #[error("job {key} has no valid file: {problem}")]
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
