//! Who has used how much of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::rights::may_enter;
use super::server::{Context, ask, blocking};
use crate::ids::{JobKey, Timestamp, WorkspaceName};
use crate::reconcile::{Caller, Request, Used};
use crate::store::record::UsageTotal;

/// What is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    User,
    Workspace,
    Job,
}

impl By {
    pub const ALL: [Self; 3] = [Self::User, Self::Workspace, Self::Job];

    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Workspace => "workspace",
            Self::Job => "job",
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|by| by.name() == text);
        found.ok_or_else(|| format!("{text:?} is not one of user, workspace and job"))
    }
}

/// What one of them has used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageView {
    /// Of a workspace or a job; of a user the number.
    pub name: String,
    #[serde(flatten)]
    pub total: UsageTotal,
}

/// What is asked for.
pub(super) struct Asked<'a> {
    pub(super) by: By,
    pub(super) since: Timestamp,
    /// All when absent.
    pub(super) workspace: Option<&'a str>,
}

/// What the caller may see: root everything, others what their own jobs have used, and the sums of workspaces that they may enter.
pub(super) async fn list(
    context: &Context,
    caller: &Caller,
    Asked { by, since, workspace }: Asked<'_>,
) -> Result<Vec<UsageView>, ApiError> {
    let mut used = ask(context, |answer| Request::Usage { since, answer }).await?;
    let is_asked = |of: &WorkspaceName| workspace.is_none_or(|name| name == of.as_str());
    used.attempts.retain(|used| is_asked(&used.workspace));
    used.days.retain(|day| is_asked(&day.workspace));
    let entered = if by == By::Workspace { entered(context, caller, &used).await? } else { BTreeSet::new() };
    let is_told = |workspace: &WorkspaceName, owner: u32| match by {
        By::User | By::Job => caller.reaches(workspace.as_str()) && (caller.uid == 0 || owner == caller.uid),
        By::Workspace => entered.contains(workspace),
    };
    used.attempts.retain(|used| is_told(&used.workspace, used.owner));
    used.days.retain(|day| is_told(&day.workspace, day.owner));
    Ok(sums(&used, by, since))
}

/// Those of the workspaces in it that the caller may enter.
async fn entered(context: &Context, caller: &Caller, used: &Used) -> Result<BTreeSet<WorkspaceName>, ApiError> {
    let attempts = used.attempts.iter().map(|used| &used.workspace);
    let all: BTreeSet<WorkspaceName> = attempts.chain(used.days.iter().map(|day| &day.workspace)).cloned().collect();
    let (paths, caller) = (context.paths.clone(), caller.clone());
    let enter = move |workspace: WorkspaceName| Ok(may_enter(&paths, &workspace, &caller)?.then_some(workspace));
    blocking(move || all.into_iter().map(enter).filter_map(Result::transpose).collect()).await
}

const MS_PER_H: f64 = 3_600_000.0;

/// By name. Of jobs whose records are too old the names are no longer known.
fn sums(used: &Used, by: By, since: Timestamp) -> Vec<UsageView> {
    let mut sums: BTreeMap<String, UsageTotal> = BTreeMap::new();
    for used in &used.attempts {
        let name = match by {
            By::User => used.owner.to_string(),
            By::Workspace => used.workspace.to_string(),
            By::Job => JobKey::new(used.workspace.clone(), used.job.clone()).to_string(),
        };
        // What of it lies in the time that is asked for.
        let hours = used.to.0.saturating_sub(used.from.max(since).0) as f64 / MS_PER_H;
        sums.entry(name).or_default().take(used, hours);
    }
    for day in &used.days {
        let name = match by {
            By::User => day.owner.to_string(),
            By::Workspace => day.workspace.to_string(),
            By::Job => format!("{}/*", day.workspace),
        };
        sums.entry(name).or_default().add(&day.total);
    }
    sums.into_iter().map(|(name, total)| UsageView { name, total }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AttemptId;
    use crate::store::record::UsageRecord;
    use crate::store::usage::by_day;

    fn used(job: &str, owner: u32, hours: std::ops::Range<u64>, gpu: u64, price: Option<f64>) -> UsageRecord {
        let key: JobKey = job.parse().unwrap();
        let at = |hours: u64| Timestamp(hours * 3_600_000);
        UsageRecord {
            attempt: AttemptId(1),
            workspace: key.workspace,
            job: key.job,
            run: 1,
            owner,
            from: at(hours.start),
            to: at(hours.end),
            cpu: 2000,
            memory: 3 << 30,
            gpu,
            gpu_part: 0,
            price,
            price_is_part: false,
        }
    }

    #[test]
    fn what_is_used_is_added_up_by_job_user_and_workspace_from_the_time_that_is_asked_for() {
        let attempts = vec![
            used("v/a", 1000, 0..4, 2, Some(0.5)),
            used("v/a", 1000, 4..5, 2, None),
            used("v/b", 1001, 0..3, 1, Some(0.25)),
            used("c", 1000, 0..10, 0, None),
        ];
        let all = Used { attempts, days: Vec::new() };
        let told = |by, since: u64| {
            let sums = sums(&all, by, Timestamp(since * 3_600_000));
            sums.into_iter()
                .map(|sum| (sum.name, sum.total.gpu_hours, sum.total.cpu_hours, sum.total.price))
                .collect::<Vec<_>>()
        };
        let row = |name: &str, gpu, cpu, price| (name.to_owned(), gpu, cpu, price);
        assert_eq!(
            told(By::Job, 0),
            [row("c", 0.0, 20.0, None), row("v/a", 10.0, 10.0, Some(2.0)), row("v/b", 3.0, 6.0, Some(0.75))]
        );
        assert_eq!(told(By::User, 0), [row("1000", 10.0, 30.0, Some(2.0)), row("1001", 3.0, 6.0, Some(0.75))]);
        assert_eq!(told(By::Workspace, 2), [row("default", 0.0, 16.0, None), row("v", 7.0, 8.0, Some(1.25))]);
        let whole = sums(&all, By::Workspace, Timestamp(0));
        let of_v = &whole[1].total;
        assert_eq!((of_v.attempts, of_v.unpriced, of_v.memory_gib_hours), (3, 1, 24.0));
        // Who has a price for some tasks alone counts with it, and as one without.
        let part = UsageRecord { price_is_part: true, ..used("v/a", 1000, 0..4, 2, Some(0.5)) };
        let sums_of = sums(&Used { attempts: vec![part.clone()], days: by_day(&part) }, By::User, Timestamp(0));
        assert_eq!((sums_of[0].total.price, sums_of[0].total.unpriced), (Some(4.0), 2));
        // What is left of old ones counts as before, but for the names of jobs.
        let (old, new) = all.attempts.split_at(2);
        let later = Used { attempts: new.to_vec(), days: old.iter().flat_map(by_day).collect() };
        for by in [By::User, By::Workspace] {
            assert_eq!(sums(&later, by, Timestamp(0)), sums(&all, by, Timestamp(0)));
        }
        let names = sums(&later, By::Job, Timestamp(0)).into_iter().map(|sum| (sum.name, sum.total.gpu_hours));
        let wanted = [("c", 0.0), ("v/*", 10.0), ("v/b", 3.0)].map(|(name, hours)| (name.to_owned(), hours));
        assert_eq!(names.collect::<Vec<_>>(), wanted);
    }
}
