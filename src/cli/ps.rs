//! `trainyard ps`

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use clap::Args;

use super::complete::Named;
use super::listing::{Form, Listing};
use super::times::{seconds, when};
use super::{NotFound, WrongArgument, output};
use crate::api::client::Client;
use crate::api::params::SORTS;
use crate::api::wire::JobQuery;
use crate::ids::{Timestamp, format_duration};
use crate::report::{JobLine, JobReport};
use crate::status::State;

/// Which jobs are listed: those that all of it is true of.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only jobs with this in their name, workspace or description, whatever the case
    text: Option<String>,
    /// Only jobs in one of these states, as in running,failed
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,
    /// Only jobs of this workspace
    #[arg(short, long, add = Named::Workspaces.completer())]
    workspace: Option<String>,
    /// Only jobs whose name is near this: part of it, its letters in their order, or a slip of the keys away
    #[arg(long)]
    name: Option<String>,
    /// In this order, as in -created; the nearest first with --name
    #[arg(long, allow_hyphen_values = true, value_parser = clap::builder::PossibleValuesParser::new(SORTS))]
    sort: Option<String>,
    #[command(flatten)]
    origin: Origin,
}

/// Whose, and of when.
#[derive(Debug, Args)]
pub(super) struct Origin {
    /// Only those of this user, by name or number, or `me`
    #[arg(short, long)]
    user: Option<String>,
    /// Only your own
    #[arg(long, conflicts_with = "user")]
    mine: bool,
    /// Only those submitted or changed within this time, as in 2h or 7d, or since a day or time, as in 2026-03-01 or "2026-03-01 12:00:00" (UTC, as times are shown)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those submitted or changed longer ago than this, or before this day or time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl Origin {
    /// Whose they are to be.
    fn owner(&self) -> anyhow::Result<Option<u32>> {
        match self.user.as_deref() {
            None => Ok(self.mine.then(own_uid)),
            Some("me") => Ok(Some(own_uid())),
            Some(user) => uid(user).map(Some),
        }
    }

    /// Keeps those of `all` of which it is true, by their owners and times, which are written so that they sort as text does.
    pub(super) fn retain<T>(&self, all: &mut Vec<T>, of: impl Fn(&T) -> (u32, String)) -> anyhow::Result<()> {
        let written = |time: &str| when(time).map(|time| Timestamp(time).to_string());
        let owner = self.owner()?;
        let since = self.since.as_deref().map(written).transpose()?;
        let until = self.until.as_deref().map(written).transpose()?;
        all.retain(|one| {
            let (whose, when) = of(one);
            owner.is_none_or(|owner| whose == owner)
                && since.as_ref().is_none_or(|since| when >= *since)
                && until.as_ref().is_none_or(|until| when <= *until)
        });
        Ok(())
    }
}

impl Filter {
    pub(super) fn workspace(&self) -> Option<&str> {
        self.workspace.as_deref()
    }

    fn query(&self) -> anyhow::Result<JobQuery> {
        let known = |wanted: &&String| State::ALL.iter().any(|state| state.name() == wanted.as_str());
        if let Some(wanted) = self.state.iter().find(|wanted| !known(wanted)) {
            let all = State::ALL.map(State::name).join(", ");
            return Err(WrongArgument(format!("there is no state {wanted:?}; the states are {all}")).into());
        }
        let written = |time: &String| when(time);
        let user = self.origin.owner()?.map(|uid| uid.to_string());
        Ok(JobQuery {
            states: self.state.clone(),
            user,
            workspace: self.workspace.clone(),
            since: self.origin.since.as_ref().map(written).transpose()?,
            until: self.origin.until.as_ref().map(written).transpose()?,
            text: self.text.clone().filter(|text| !text.is_empty()),
            name: self.name.clone(),
            sort: self.sort.clone(),
            ..JobQuery::default()
        })
    }

    /// Everything is asked for.
    fn is_open(&self) -> bool {
        self.query().is_ok_and(|query| query == JobQuery { sort: query.sort.clone(), ..JobQuery::default() })
    }
}

/// A user by name or number.
fn uid(user: &str) -> anyhow::Result<u32> {
    let named = nix::unistd::User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    let found = named.or_else(|| user.parse().ok());
    Ok(found
        .ok_or_else(|| NotFound(format!("there is no user {user:?} on this machine; a number is taken as it is")))?)
}

fn own_uid() -> u32 {
    nix::unistd::Uid::effective().as_raw()
}

/// Whether a job is the caller's to change, whoever else may let them; root's are all.
pub(super) fn is_own(owner: u32) -> bool {
    [0, owner].contains(&own_uid())
}

/// The columns of wide tables alone: whose jobs they are is nothing new where all are the caller's own.
pub(super) fn wide_of(own: &'static [&'static str], owners: impl IntoIterator<Item = u32>) -> Vec<&'static str> {
    let others = owners.into_iter().any(|owner| owner != own_uid());
    own.iter().copied().filter(|head| !others || *head != USER).collect()
}

/// A user by name, or by number where it has none here. Looked up once: in a list of thousands the same few come again and again,
/// and each look opens and reads the machine's list of users.
pub(super) fn user_name(uid: u32) -> String {
    static KNOWN: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let look =
        || nix::unistd::User::from_uid(uid.into()).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_insert_with(look).clone()
}

const USER: &str = "USER";
const HEADS: [&str; 7] = ["JOB", "STATE", "RUN", "SUBMITTED", USER, "TIME", "WHY"];

/// Tells up to which event it has looked.
pub(super) async fn run(client: &Client, filter: &Filter, form: Form) -> anyhow::Result<u64> {
    if form == Form::Json {
        let list = client.jobs(&filter.query()?).await?;
        output::json(&list)?;
        return Ok(list.serial);
    }
    let list = client.job_lines(&filter.query()?).await?;
    let listing = Listing {
        heads: &HEADS,
        wide: &wide_of(&["SUBMITTED", USER], list.jobs.iter().map(|job| job.owner)),
        cells: row,
        name: |job| shown(&job.workspace, &job.job),
        // Asked for above, with all that there is of them.
        json: |job| Ok(serde_json::json!({ "workspace": job.workspace, "job": job.job })),
        nothing: match (list.strays.is_empty(), filter.is_open()) {
            (false, _) => "no jobs",
            (true, true) => "no jobs; drop a job file into jobs.d to begin",
            (true, false) => "no such jobs; `trainyard ps` lists all",
        },
    };
    listing.print(&list.jobs, form)?;
    if matches!(form, Form::Table | Form::Wide) {
        list.strays.iter().for_each(|stray| output::error(&format!("ignored: {stray}")));
    }
    Ok(list.serial)
}

/// As people name it.
pub(super) fn name(job: &JobReport) -> String {
    shown(&job.workspace, &job.job)
}

/// The same.
pub(super) fn shown(workspace: &str, job: &str) -> String {
    if workspace == "default" { job.to_owned() } else { format!("{workspace}/{job}") }
}

fn row(job: &JobLine) -> Vec<String> {
    let time = job.duration_ms.map(|ms| format_duration(std::time::Duration::from_millis(ms))).unwrap_or_default();
    let why = match job.error.as_ref().filter(|_| job.state != State::Invalid) {
        Some(error) => format!("{} (its file is invalid now: {error})", job.reason),
        None => job.reason.clone(),
    };
    vec![
        shown(&job.workspace, &job.job),
        output::state(job.state),
        job.run.to_string(),
        seconds(&job.created),
        user_name(job.owner),
        time,
        why,
    ]
}
