//! Who asks, and what of jobs is theirs to see and to change: the one place where that is decided.
//!
//! | | their own | of a workspace that they may enter | any other |
//! |---|---|---|---|
//! | states, events | yes | yes | there is no such job |
//! | logs, figures | yes | with the group of the run, as the mount has it | no |
//! | the text of its file | yes | no | no |
//! | commands in its tasks | of runs of their own file | no | no |
//! | stop, rerun, remove, … | yes | where they may remove its file | no |
//!
//! Root has all of it, a token what its user has in the workspaces that it reaches. What the file system lets somebody do is looked
//! at by whoever asks in their place: here no disk is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::refusal::{Kept, Whose};
use super::{Job, Refusal};
use crate::ids::{JobKey, WorkspaceName};
use crate::store::record::Owner;
use crate::sys::process::name_of;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub name: String,
    /// Only what is of these workspaces; everything when absent.
    pub within: Option<Arc<BTreeSet<WorkspaceName>>>,
    /// What of other people's jobs is theirs; nothing where nobody has looked.
    pub beside: Option<Arc<Beside>>,
}

/// What the file system leaves to somebody of jobs that are not theirs; as it was when it was looked at, so for one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beside {
    /// Workspaces that they may enter.
    pub enters: BTreeSet<WorkspaceName>,
    /// Groups that they are in.
    pub groups: BTreeSet<u32>,
    /// Job files that they may remove.
    pub removes: BTreeMap<JobKey, Removes>,
    /// By their numbers, whose the runs are that jobs have on the disk, user ids; where that matters.
    pub runs: BTreeMap<JobKey, BTreeMap<u32, u32>>,
}

/// Why somebody may remove a job file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removes {
    /// Whosever it is: by the directory.
    Any,
    /// It is theirs, in a directory that keeps each file to its owner: another's job is not theirs by a file that they put there.
    Own,
}

/// How much of a job somebody sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// What all in its workspace are told: how it is, and what has happened.
    Told,
    /// And what is for the group of the run: logs, figures.
    Shared,
    /// All of it.
    Own,
}

impl Caller {
    /// A user of this machine. Asks the machine for the name, which may take a moment.
    pub fn of(uid: u32) -> Self {
        Self::named(uid, name_of(uid))
    }

    /// One whose name is known.
    pub fn named(uid: u32, name: String) -> Self {
        Self { uid, name, within: None, beside: None }
    }

    /// The daemon itself.
    pub fn root() -> Self {
        Self::named(0, "root".to_owned())
    }

    /// Who asks over the network for what is for everybody, and need not say who they are.
    pub fn nobody() -> Self {
        Self::named(u32::MAX, "nobody".to_owned())
    }

    pub fn is_nobody(&self) -> bool {
        self.uid == u32::MAX
    }

    /// Whether what is of this workspace is there for them at all.
    pub fn reaches(&self, workspace: &str) -> bool {
        self.within.as_ref().is_none_or(|within| within.iter().any(|name| name.as_str() == workspace))
    }

    fn is(&self, owner: Option<Owner>) -> bool {
        self.uid == 0 || owner.is_some_and(|owner| owner.uid == self.uid)
    }

    /// How much they see of a job; `None` where it is not there for them.
    pub(in crate::reconcile) fn sight(&self, key: &JobKey, job: &Job) -> Option<Sight> {
        let owner = owner_of(job);
        match self.reaches(key.workspace.as_str()) {
            true if self.is(owner) => Some(Sight::Own),
            true if self.beside.as_ref().is_some_and(|beside| beside.enters.contains(&key.workspace)) => {
                Some(self.of_group(owner))
            }
            _ => None,
        }
    }

    /// Of one of its runs, of a job that they see: whose file it was then, it goes on to belong to, whoever has put another one in
    /// its place.
    pub(super) fn sight_of_run(&self, owner: Owner) -> Sight {
        if self.is(Some(owner)) { Sight::Own } else { self.of_group(Some(owner)) }
    }

    fn of_group(&self, owner: Option<Owner>) -> Sight {
        let is_in = |owner: Owner| self.beside.as_ref().is_some_and(|beside| beside.groups.contains(&owner.gid));
        if owner.is_some_and(is_in) { Sight::Shared } else { Sight::Told }
    }

    /// Whether a job is there for them.
    pub(in crate::reconcile) fn sees(&self, key: &JobKey, job: &Job) -> bool {
        self.sight(key, job).is_some()
    }

    /// Refuses who may not change a job that they see.
    pub(super) fn check_change(&self, key: &JobKey, job: &Job) -> Result<(), Refusal> {
        match self.is(owner_of(job)) || self.may_remove(key, job) {
            true => Ok(()),
            false => {
                let whose = Whose::of(owner_of(job).map(|owner| owner.uid));
                Err(Refusal::NotYours { key: key.clone(), whose, kept: Kept::Change })
            }
        }
    }

    /// Whether what others have made under the name of the job is theirs to take away as well: root's, and who may remove files of others.
    pub(super) fn may_remove_others(&self, key: &JobKey, job: &Job) -> bool {
        self.uid == 0 || self.removes(key, job) == Some(Removes::Any)
    }

    /// Runs that the disk has of a job, each with the user id of its owner.
    pub(super) fn runs_on_disk(&self, key: &JobKey) -> impl Iterator<Item = (u32, u32)> {
        let runs = self.beside.as_ref().and_then(|beside| beside.runs.get(key));
        runs.into_iter().flatten().map(|(run, uid)| (*run, *uid))
    }

    /// Whether the file that makes the job is theirs to remove.
    fn may_remove(&self, key: &JobKey, job: &Job) -> bool {
        match self.removes(key, job) {
            Some(Removes::Any) => true,
            Some(Removes::Own) => owner_of(job).is_none(),
            None => false,
        }
    }

    fn removes(&self, key: &JobKey, job: &Job) -> Option<Removes> {
        let file = job.sweep(key).unwrap_or_else(|| key.clone());
        self.beside.as_ref().and_then(|beside| beside.removes.get(&file)).copied()
    }
}

/// Of the last good version of its file, or of the file where there was none; nobody's where that is not known.
fn owner_of(job: &Job) -> Option<Owner> {
    job.record.owner()
}
