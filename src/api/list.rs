//! What of a list is as was asked for, in which order, and which page of it is shown: the same for all lists. Pure.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::listed::Listed;
use super::params::PAGE;
use super::query::Values;
use super::wire::{Page, escape, unescape};
use crate::ids::Timestamp;

/// Those of which all of it is true.
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
struct Order {
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

    fn has(&self, one: &impl Listed) -> bool {
        let time = |is_of: &dyn Fn(&str) -> bool| one.time().is_none_or(is_of);
        one.state().is_none_or(|state| self.states.is_empty() || self.states.contains(state.name()))
            && self.owner.is_none_or(|wanted| one.owner().is_none_or(|owner| owner == wanted))
            && self.workspace.as_ref().is_none_or(|wanted| one.workspace().is_none_or(|workspace| workspace == wanted))
            && self.since.as_ref().is_none_or(|since| time(&|time| time >= since.as_str()))
            && self.until.as_ref().is_none_or(|until| time(&|time| time <= until.as_str()))
            && self.text.as_ref().is_none_or(|text| mentions(one, text))
            && self.name.as_ref().is_none_or(|name| distance(one.name(), name).is_some())
    }
}

fn mentions(one: &impl Listed, text: &str) -> bool {
    one.texts().iter().any(|field| field.to_lowercase().contains(text))
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
    fn read<T: Listed>(values: &Values) -> Self {
        let default = if values.text("name").is_some() { "nearest" } else { T::ORDER };
        Self::named(values.text("sort").unwrap_or(default))
    }

    fn named(by: &str) -> Self {
        Self { by: by.trim_start_matches('-').to_owned(), is_reverse: by.starts_with('-') }
    }

    /// What they are compared by; of the same what names them decides, so that no two are the same.
    fn key(&self, one: &impl Listed, wanted: Option<&String>, at: Timestamp) -> (String, String) {
        let first = match self.by.as_str() {
            "nearest" => format!("{:010}", wanted.and_then(|wanted| distance(one.name(), wanted)).unwrap_or(0)),
            by => one.sorted_by(by, at),
        };
        (first, one.id())
    }

    /// Names of the same are from a to z also where the order is the other way round, but for that of names itself.
    fn compare(&self, (first, name): &(String, String), (other, its_name): &(String, String)) -> Ordering {
        let order = first.cmp(other);
        let (order, names) = (if self.is_reverse { order.reverse() } else { order }, name.cmp(its_name));
        order.then(if self.is_reverse && self.by == "name" { names.reverse() } else { names })
    }
}

/// As they are where nobody says how, for who has them all.
pub(super) fn sorted<T: Listed>(all: Vec<T>) -> Vec<T> {
    sorted_by(all, T::ORDER, Timestamp(0))
}

/// In this order, as it was at this time, for who has them all.
pub(super) fn sorted_by<T: Listed>(mut all: Vec<T>, by: &str, at: Timestamp) -> Vec<T> {
    let order = Order::named(by);
    let key = |one: &T| order.key(one, None, at);
    all.sort_by(|a, b| order.compare(&key(a), &key(b)));
    all
}

/// The page that was asked for, of `all` that the caller may see. All pages of a list are in the order of when its first was made.
pub(super) fn page<T: Listed>(
    all: Vec<T>,
    values: &Values,
    filter: &Filter,
    now: Timestamp,
) -> Result<Page<T>, String> {
    let order = Order::read::<T>(values);
    let after = values.text("after").map(Cursor::read).transpose()?;
    let at = after.as_ref().and_then(|after| after.at).unwrap_or(now);
    let key = |one: &T| order.key(one, filter.name.as_ref(), at);
    let mut found: Vec<((String, String), T)> =
        all.into_iter().filter(|one| filter.has(one)).map(|one| (key(&one), one)).collect();
    let total = found.len();
    found.sort_by(|(a, _), (b, _)| order.compare(a, b));
    found.retain(|(key, _)| after.as_ref().is_none_or(|after| order.compare(key, &after.key).is_gt()));
    let limit = usize::try_from(values.number("limit").unwrap_or(PAGE)).unwrap_or(usize::MAX);
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more).map(|(key, _)| Cursor::write(key, at));
    Ok(Page { items: found.into_iter().map(|(_, one)| one).collect(), total, next })
}

/// Where a page ends.
struct Cursor {
    key: (String, String),
    /// When the first page was made, by which what grows by itself is sorted.
    at: Option<Timestamp>,
}

impl Cursor {
    /// `SORTED-BY:NAME:MS`, each percent-encoded.
    fn write((first, second): &(String, String), at: Timestamp) -> String {
        format!("{}:{}:{}", escape(first), escape(second), at.0)
    }

    fn read(text: &str) -> Result<Self, String> {
        // What is no escape stands for nothing in the list, and is behind or before it as it is.
        let plain = |text: &str| unescape(text).unwrap_or_else(|| text.to_owned());
        let mut parts = text.split(':');
        let key = parts.next().zip(parts.next()).map(|(first, second)| (plain(first), plain(second)));
        let key = key.ok_or_else(|| format!("after={text}: not the `next` of an answer"))?;
        Ok(Self { key, at: parts.next().and_then(|ms| ms.parse().ok()).map(Timestamp) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::params::{Kind, SORTS};
    use crate::api::routes::{Action, ROUTES};
    use crate::api::templates::TemplateView;
    use crate::api::usage::UsageView;
    use crate::api::wire::ImageView;
    use crate::report::{JobLine, JobReport};
    use crate::status::State;
    use crate::store::record::UsageTotal;

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
            started: Some(Timestamp(created).to_string()),
            ended: Some(Timestamp(created * 2).to_string()),
            duration_ms: Some(created),
            tasks: Vec::new(),
            limit: None,
            waiting: None,
            sending: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    fn list() -> Vec<JobReport> {
        vec![
            job("resnet", 1000, 5000, State::Running),
            job("vision/resnet-long", 1001, 3000, State::Failed),
            job("bert", 1000, 4000, State::Waiting),
            job("训练", 1002, 1000, State::Failed),
        ]
    }

    fn page_of<T: Listed>(action: Action, all: Vec<T>, query: &str) -> Page<T> {
        let route = ROUTES.iter().find(|route| route.action == action).unwrap();
        let values = Values::read(query, route.query).unwrap();
        page(all, &values, &Filter::read(&values), Timestamp(9000)).unwrap()
    }

    fn asked(query: &str) -> Page<JobReport> {
        page_of(Action::Jobs, list(), query)
    }

    /// As people name it.
    fn shown(job: &JobReport) -> String {
        job.texts().swap_remove(0)
    }

    fn names(query: &str) -> Vec<String> {
        asked(query).items.iter().map(shown).collect()
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

    /// Its `sort`s, each page by page; what comes in each order.
    fn in_each_order<T: Listed>(action: Action, make: impl Fn() -> Vec<T>) -> Vec<(&'static str, Vec<String>)> {
        let route = ROUTES.iter().find(|route| route.action == action).unwrap();
        let Kind::OneOf(sorts) = route.query.iter().find(|param| param.name == "sort").unwrap().kind else { panic!() };
        let ids = |page: &Page<T>| page.items.iter().map(Listed::id).collect::<Vec<_>>();
        let pages = |sort: &&'static str| {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let part = page_of(action, make(), &format!("sort={sort}&limit=1{after}"));
                assert_eq!((part.items.len(), part.total), (1, make().len()), "{sort}");
                seen.extend(ids(&part));
                let Some(next) = part.next else { break };
                after = format!("&after={}", escape(&next));
            }
            assert_eq!(seen, ids(&page_of(action, make(), &format!("sort={sort}"))), "{sort}");
            assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), make().len(), "{sort}");
            (*sort, seen)
        };
        sorts.iter().map(pages).collect()
    }

    #[test]
    fn pages_hold_everything_once_in_each_order() {
        in_each_order(Action::Jobs, list);
        assert_eq!(names("sort=-created")[0], "resnet");
        assert_eq!(names("sort=duration")[0], "训练");
        let orders = in_each_order(Action::Images, images);
        let first = |sort: &str| orders.iter().find(|(name, _)| *name == sort).unwrap().1[0].clone();
        let wanted = ["bert mine nlp", "训练:1 public ", "bert mine vision", "bert mine nlp"];
        assert_eq!(["name", "-brought", "-used", "size"].map(first), wanted);
        in_each_order(Action::Templates, || vec![template("train", 7), template("vision/train", 3)]);
        let used = || vec![used("d", 1.5, 9.0), used("b", 20.0, 0.0), used("a", 1.5, 9.0), used("c", 1.5, 9.0001)];
        in_each_order(Action::Usage, used);
        let names = |items: Vec<UsageView>| items.into_iter().map(|view| view.name).collect::<Vec<_>>();
        assert_eq!(
            names(page_of(Action::Usage, used(), "").items),
            ["b", "c", "a", "d"],
            "the most first, then by name"
        );
        assert_eq!(names(page_of(Action::Usage, used(), "sort=-name").items), ["d", "c", "b", "a"]);
        let by_name = page_of(Action::Usage, used(), "sort=name").items;
        assert_eq!(names(sorted(by_name)), ["b", "c", "a", "d"], "as who reads all of them has them");
    }

    #[test]
    fn what_goes_on_while_pages_are_read_is_told_once_however_long_it_takes_by_then() {
        let running = |name: &str, started: u64| JobReport { ended: None, ..job(name, 1000, started, State::Running) };
        // `over` has taken 2 s. At 5 s the others have taken 3 s, 2.5 s and 1 s.
        let all =
            || vec![running("a", 2000), running("b", 2500), running("c", 4000), job("over", 1000, 2000, State::Failed)];
        let route = ROUTES.iter().find(|route| route.action == Action::Jobs).unwrap();
        for (sort, wanted) in [("-duration", ["a", "b", "over", "c"]), ("duration", ["c", "over", "b", "a"])] {
            let (mut seen, mut after, mut now) = (Vec::new(), String::new(), 5000);
            loop {
                let values = Values::read(&format!("sort={sort}&limit=1{after}"), route.query).unwrap();
                // One that ends meanwhile had not by then.
                let with_an_end = all().into_iter().map(|mut job| {
                    job.ended = job.ended.or((now > 6000 && job.job == "b").then(|| Timestamp(6500).to_string()));
                    job
                });
                let part = page(with_an_end.collect(), &values, &Filter::read(&values), Timestamp(now)).unwrap();
                seen.extend(part.items.into_iter().map(|job| job.job));
                let Some(next) = part.next else { break };
                (after, now) = (format!("&after={}", escape(&next)), now + 1000);
            }
            assert_eq!(seen, wanted, "{sort}");
        }
    }

    /// What a line tells of the same.
    fn line(report: JobReport) -> JobLine {
        let read =
            |time: &String| Some(Timestamp(time.parse::<jiff::Timestamp>().ok()?.as_millisecond().try_into().ok()?));
        JobLine {
            state: report.state,
            reason: report.reason,
            owner: report.owner,
            run: report.run,
            duration_ms: report.duration_ms,
            error: None,
            started: report.started.as_ref().and_then(read),
            ended: report.ended.as_ref().and_then(read),
            workspace: report.workspace,
            job: report.job,
            created: report.created,
            description: report.description,
        }
    }

    #[test]
    fn lines_are_chosen_and_sorted_as_reports_are() {
        let running = JobReport { ended: None, ..job("runs", 1003, 6000, State::Running) };
        let waiting = JobReport { started: None, ended: None, duration_ms: None, ..job("w", 0, 7000, State::Waiting) };
        let all = || [list(), vec![running.clone(), waiting.clone()]].concat();
        let lines = || all().into_iter().map(line).collect::<Vec<_>>();
        let sorts = SORTS.iter().map(|sort| format!("sort={sort}&name=r"));
        let filters =
            ["state=failed", "text=ABOUT+b", "text=vision", "workspace=default", "since=3000&until=4000", "name=rsl"];
        let mut empty = 0;
        for query in sorts.chain(filters.map(str::to_owned)) {
            let ids = page_of(Action::Jobs, all(), &query).items.iter().map(Listed::id).collect::<Vec<_>>();
            assert_eq!(
                page_of(Action::JobLines, lines(), &query).items.iter().map(Listed::id).collect::<Vec<_>>(),
                ids
            );
            empty += usize::from(ids.is_empty());
        }
        assert_eq!(empty, 0, "each query finds some");
        let sent: Vec<JobLine> = serde_json::from_slice(&serde_json::to_vec(&lines()).unwrap()).unwrap();
        assert!(sent.iter().all(|line| line.description.is_empty() && line.started.is_none()));
        let by_duration =
            |lines| sorted_by(lines, "duration", Timestamp(9000)).iter().map(Listed::id).collect::<Vec<_>>();
        assert_eq!(by_duration(sent)[..2], ["default/w", "default/训练"], "who has been sent lines sorts them as well");
    }

    fn images() -> Vec<ImageView> {
        let image = |name: &str, workspace: Option<&str>, size, brought: &str, used: &str| ImageView {
            name: name.to_owned(),
            kind: workspace.map_or("public", |_| "mine").to_owned(),
            workspace: workspace.map(str::to_owned),
            digest: String::new(),
            size,
            layers: 1,
            brought: brought.to_owned(),
            used: used.to_owned(),
        };
        vec![
            image("训练:1", None, 1000, "2026-03", "2026-04"),
            image("bert", Some("vision"), 900, "2026-02", "2026-06"),
            image("bert", Some("nlp"), 20, "2026-01", "2026-05"),
        ]
    }

    fn template(name: &str, owner: u32) -> TemplateView {
        let (template, description) = (name.to_owned(), format!("made of {name}"));
        let changed = Timestamp(u64::from(owner) * 1000).to_string();
        TemplateView { template, description, params: Vec::new(), owner, changed, error: None }
    }

    fn used(name: &str, gpu_hours: f64, cpu_hours: f64) -> UsageView {
        UsageView { name: name.to_owned(), total: UsageTotal { gpu_hours, cpu_hours, ..UsageTotal::default() } }
    }

    #[test]
    fn other_lists_are_filtered_in_the_same_way() {
        let templates = |query: &str| {
            let all = vec![template("train", 7), template("vision/train", 3), template("serve", 9)];
            page_of(Action::Templates, all, query).items.iter().map(Listed::id).collect::<Vec<_>>()
        };
        for near in ["trian", "trn"] {
            assert_eq!(templates(&format!("name={near}")), ["train", "vision/train"]);
        }
        assert_eq!(templates("text=OF+vision"), ["vision/train"]);
        assert_eq!(templates("since=4000&until=8000"), ["train"]);
        // Which are looked at is said by the workspace; those of all are among them.
        assert_eq!(page_of(Action::Images, images(), "workspace=nlp&text=bert").total, 2);
    }

    #[test]
    fn a_cursor_of_somebody_s_own_making_is_refused() {
        let route = ROUTES.iter().find(|route| route.action == Action::Jobs).unwrap();
        assert!(Values::read("after=nonsense", route.query).unwrap_err().contains("nonsense"));
        // Of the longest names that there are, in a script that takes most.
        let longest = format!("after=:{}", escape(&"训".repeat(1024 / 3)));
        Values::read(&longest.replace('%', "%25"), route.query).unwrap();
    }
}
