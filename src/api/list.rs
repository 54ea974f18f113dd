//! Which jobs a list has, in which order, and which page of it is shown. Pure.

use std::collections::BTreeSet;

use super::query::Values;
use super::routes::PAGE;
use super::wire::{JobList, escape, unescape};
use crate::ids::Timestamp;
use crate::report::JobReport;

/// Jobs of which all of it is true.
#[derive(Debug, Default)]
pub(super) struct Filter {
    states: BTreeSet<String>,
    pub(super) owner: Option<u32>,
    workspace: Option<String>,
    since: Option<String>,
    until: Option<String>,
    text: Option<String>,
    name: Option<String>,
}

/// By what they are sorted; what comes first has the least text.
#[derive(Debug)]
pub(super) struct Order {
    by: String,
    is_reverse: bool,
}

impl Filter {
    pub(super) fn read(values: &Values) -> Self {
        // Times are written so that they sort as text does.
        let written = |time: Option<Timestamp>| time.map(|time| time.to_string());
        Self {
            states: values.each("state").map(str::to_owned).collect(),
            owner: None,
            workspace: values.owned("workspace"),
            since: written(values.time("since")),
            until: written(values.time("until")),
            text: values.text("text").map(str::to_lowercase),
            name: values.text("name").map(str::to_lowercase),
        }
    }

    fn has(&self, job: &JobReport) -> bool {
        (self.states.is_empty() || self.states.contains(job.state.name()))
            && self.owner.is_none_or(|owner| owner == job.owner)
            && self.workspace.as_ref().is_none_or(|workspace| *workspace == job.workspace)
            && self.since.as_ref().is_none_or(|since| job.created >= *since)
            && self.until.as_ref().is_none_or(|until| job.created <= *until)
            && self.text.as_ref().is_none_or(|text| mentions(job, text))
            && self.name.as_ref().is_none_or(|name| distance(&job.job, name).is_some())
    }
}

/// As people write it: without the default workspace.
fn shown(job: &JobReport) -> String {
    if job.workspace == "default" { job.job.clone() } else { format!("{}/{}", job.workspace, job.job) }
}

fn mentions(job: &JobReport, text: &str) -> bool {
    [shown(job), job.description.clone()].iter().any(|field| field.to_lowercase().contains(text))
}

/// How far a name is from what was typed, in lower case: 0 the same, then beginning, part, a slip of the keys, letters in
/// their order; `None` for others.
fn distance(name: &str, wanted: &str) -> Option<u32> {
    let name = name.to_lowercase();
    if name == wanted {
        return Some(0);
    }
    if name.starts_with(wanted) {
        return Some(1);
    }
    if name.contains(wanted) {
        return Some(2);
    }
    let slips = strsim::osa_distance(&name, wanted);
    // One slip in four letters, so that short names are not all alike.
    if slips <= wanted.chars().count() / 4 {
        return Some(10 + u32::try_from(slips).unwrap_or(u32::MAX - 10));
    }
    let mut letters = name.chars();
    wanted.chars().all(|wanted| letters.any(|letter| letter == wanted)).then_some(1000)
}

impl Order {
    pub(super) fn read(values: &Values) -> Self {
        let default = if values.text("name").is_some() { "nearest" } else { "name" };
        let by = values.text("sort").unwrap_or(default);
        Self { by: by.trim_start_matches('-').to_owned(), is_reverse: by.starts_with('-') }
    }

    /// What jobs are compared by; of the same the name decides, so that no two are the same.
    fn key(&self, job: &JobReport, wanted: Option<&String>) -> (String, String) {
        let first = match self.by.as_str() {
            "created" => job.created.clone(),
            "state" => job.state.name().to_owned(),
            "user" => format!("{:010}", job.owner),
            "duration" => format!("{:020}", job.duration_ms.unwrap_or(0)),
            "nearest" => format!("{:010}", wanted.and_then(|wanted| distance(&job.job, wanted)).unwrap_or(0)),
            _ => String::new(),
        };
        (first, format!("{}/{}", job.workspace, job.job))
    }
}

/// The page that was asked for, of `list`, which has all that the caller may see.
pub(super) fn page(mut list: JobList, values: &Values, filter: &Filter) -> Result<JobList, String> {
    let order = Order::read(values);
    let after = values.text("after").map(read_cursor).transpose()?;
    list.jobs.retain(|job| filter.has(job));
    list.total = list.jobs.len();
    let mut jobs: Vec<((String, String), JobReport)> = Vec::new();
    jobs.extend(list.jobs.drain(..).map(|job| (order.key(&job, filter.name.as_ref()), job)));
    jobs.sort_by(|(a, _), (b, _)| if order.is_reverse { b.cmp(a) } else { a.cmp(b) });
    let is_behind = |key: &(String, String)| match &after {
        None => true,
        Some(after) if order.is_reverse => key < after,
        Some(after) => key > after,
    };
    jobs.retain(|(key, _)| is_behind(key));
    let limit = usize::try_from(values.number("limit").unwrap_or(PAGE)).unwrap_or(usize::MAX);
    let is_more = jobs.len() > limit;
    jobs.truncate(limit);
    list.next = jobs.last().filter(|_| is_more).map(|(key, _)| write_cursor(key));
    list.jobs = jobs.into_iter().map(|(_, job)| job).collect();
    Ok(list)
}

/// `SORTED-BY:NAME`, each percent-encoded.
fn write_cursor((first, second): &(String, String)) -> String {
    format!("{}:{}", escape(first), escape(second))
}

fn read_cursor(text: &str) -> Result<(String, String), String> {
    // What is no escape stands for nothing in the list, and is behind or before it as it is.
    let plain = |text: &str| unescape(text).unwrap_or_else(|| text.to_owned());
    let found = text.split_once(':').map(|(first, second)| (plain(first), plain(second)));
    found.ok_or_else(|| format!("after={text}: not the `next` of an answer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::routes::{Action, ROUTES};
    use crate::status::State;

    fn job(name: &str, owner: u32, created: u64, state: State) -> JobReport {
        let (workspace, job) = name.split_once('/').unwrap_or(("default", name));
        JobReport {
            workspace: workspace.to_owned(),
            job: job.to_owned(),
            state,
            reason: String::new(),
            description: format!("about {job}"),
            sweep: Vec::new(),
            owner,
            run: 1,
            attempt: 1,
            created: Timestamp(created).to_string(),
            started: None,
            ended: None,
            duration_ms: Some(created),
            tasks: Vec::new(),
            limit: None,
            waiting: None,
            sending: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    fn list() -> JobList {
        let jobs = vec![
            job("resnet", 1000, 5000, State::Running),
            job("vision/resnet-long", 1001, 3000, State::Failed),
            job("bert", 1000, 4000, State::Waiting),
            job("训练", 1002, 1000, State::Failed),
        ];
        JobList { jobs, strays: Vec::new(), total: 0, next: None }
    }

    fn asked(query: &str) -> JobList {
        let route = ROUTES.iter().find(|route| route.action == Action::Jobs).unwrap();
        let values = Values::read(query, route.query).unwrap();
        page(list(), &values, &Filter::read(&values)).unwrap()
    }

    fn names(query: &str) -> Vec<String> {
        asked(query).jobs.iter().map(shown).collect()
    }

    #[test]
    fn lists_are_filtered_by_everything_that_is_named() {
        assert_eq!(names("state=failed"), ["训练", "vision/resnet-long"]);
        assert_eq!(names("state=failed,waiting&workspace=default"), ["bert", "训练"]);
        assert_eq!(names("since=3000&until=4000"), ["bert", "vision/resnet-long"]);
        assert_eq!(names("text=ABOUT+b"), ["bert"]);
        assert_eq!(names("text=vision"), ["vision/resnet-long"]);
        assert_eq!(names("workspace=nowhere"), Vec::<String>::new());
    }

    #[test]
    fn a_name_may_be_near() {
        assert_eq!(names("name=resnet"), ["resnet", "vision/resnet-long"]);
        assert_eq!(names("name=resent"), ["resnet"], "a slip of the keys");
        assert_eq!(names("name=rsl"), ["vision/resnet-long"], "letters in their order");
        assert_eq!(names("name=%E7%BB%83"), ["训练"]);
        assert_eq!(names("name=q"), Vec::<String>::new());
    }

    #[test]
    fn pages_hold_every_job_once_in_each_order() {
        for sort in crate::api::routes::SORTS {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let part = asked(&format!("sort={sort}&limit=1{after}"));
                assert_eq!((part.jobs.len(), part.total), (1, 4));
                seen.extend(part.jobs.iter().map(shown));
                let Some(next) = part.next else { break };
                after = format!("&after={}", escape(&next));
            }
            assert_eq!(seen, names(&format!("sort={sort}")), "{sort}");
            assert_eq!(seen.len(), 4);
        }
        assert_eq!(names("sort=-created")[0], "resnet");
        assert_eq!(names("sort=duration")[0], "训练");
    }

    #[test]
    fn a_cursor_of_somebody_s_own_making_is_refused() {
        let route = ROUTES.iter().find(|route| route.action == Action::Jobs).unwrap();
        assert!(Values::read("after=nonsense", route.query).unwrap_err().contains("nonsense"));
    }
}
