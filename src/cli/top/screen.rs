//! How `top` looks. It draws what was seen, and asks nobody.

use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};

use super::super::output::cut;
use super::gather::{JobSeen, Machine, Seen, TaskSeen};
use crate::api::client::ClientError;
use crate::api::gpus::{GpuList, GpuView};
use crate::ids::{Bytes, format_duration};
use crate::status::State;
use crate::sys::terminal::escape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colours {
    Terminal,
    /// `NO_COLOR`, or no terminal.
    None,
}

pub(super) struct View {
    seen: Seen,
    colours: Colours,
    /// Why what is shown of jobs is old.
    old_jobs: Option<String>,
    /// And of the machine.
    old_machine: Option<String>,
    /// Also jobs that are over.
    all: bool,
    /// Whose tasks are shown, by its place among those that are.
    selected: usize,
}

/// Cells of a bar.
const BAR: usize = 20;
/// Most lines for tasks of the job that is selected.
const TASKS_MAX: u16 = 10;
/// Most lines for what is said of it while it has none, of which the table has room for the beginning.
const WHY_MAX: u16 = 3;
/// Widest column of jobs, and that of their tasks.
const JOB_MAX: usize = 32;
const TASK: usize = 20;
const KEYS: &str = "q quit  ↑↓ choose a job  a all or only those that are not over";

impl View {
    pub(super) fn new(seen: Seen, colours: Colours) -> Self {
        Self { seen, colours, old_jobs: None, old_machine: None, all: false, selected: 0 }
    }

    /// Where nothing was seen what was seen last stays, and that it is old is said.
    pub(super) fn heard_of_jobs(&mut self, looked: Result<Vec<JobSeen>, ClientError>) {
        self.old_jobs = looked.map(|jobs| self.show_jobs(jobs)).err().map(why_old);
    }

    /// The same.
    pub(super) fn heard_of_machine(&mut self, looked: Result<(Machine, GpuList), ClientError>) {
        self.old_machine = looked.map(|seen| (self.seen.machine, self.seen.gpus) = seen).err().map(why_old);
    }

    /// As they should be by now, which nobody knows while what is shown is old.
    pub(super) fn jobs_go_on(&mut self, jobs: Vec<JobSeen>) {
        if self.old_jobs.is_none() {
            self.show_jobs(jobs);
        }
    }

    fn show_jobs(&mut self, jobs: Vec<JobSeen>) {
        self.seen.jobs = jobs;
        self.selected = self.selected.min(self.jobs().count().saturating_sub(1));
    }

    pub(super) fn press(&mut self, key: KeyCode) {
        let last = self.jobs().count().saturating_sub(1);
        match key {
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Char('a') => (self.all, self.selected) = (!self.all, 0),
            _ => {}
        }
    }

    fn jobs(&self) -> impl Iterator<Item = &JobSeen> {
        self.seen.jobs.iter().filter(|job| self.all || !job.state.is_terminal())
    }

    /// Lines that show everything.
    pub(super) fn height(&self) -> u16 {
        let lines = self.head().len() + self.jobs().count() + usize::from(self.task_lines()) + 3;
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    fn task_lines(&self) -> u16 {
        match self.jobs().nth(self.selected).map(|job| job.tasks.len()) {
            None => 0,
            Some(0) => 1 + WHY_MAX,
            Some(tasks) => u16::try_from(tasks).unwrap_or(u16::MAX).min(TASKS_MAX).saturating_add(2),
        }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let head = self.head();
        let heights = [
            Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
            Constraint::Min(2),
            Constraint::Length(self.task_lines()),
            Constraint::Length(1),
        ];
        let [top, middle, below, last] = Layout::vertical(heights).areas(frame.area());
        let head: Vec<Line<'_>> = head.into_iter().map(|line| fitted(line, top)).collect();
        frame.render_widget(Paragraph::new(head), top);
        self.draw_jobs(frame, middle);
        self.draw_tasks(frame, below);
        let old = self.old_jobs.as_ref().or(self.old_machine.as_ref());
        let said = old.map_or_else(|| Line::from(KEYS), |why| Line::styled(why.as_str(), self.colour(Color::Red)));
        frame.render_widget(Paragraph::new(fitted(said, last)), last);
    }

    fn head(&self) -> Vec<Line<'static>> {
        let machine = &self.seen.machine;
        let part = machine.memory_used as f64 / machine.memory.max(1) as f64;
        let cpu = machine.cpu_percent.map(|percent| percent / 100.0);
        let mut lines = vec![
            self.gauge("CPU", cpu, &format!("of {} cores", machine.cores)),
            self.gauge(
                "MEM",
                Some(part),
                &format!("{} of {}", Bytes(machine.memory_used).roughly(), Bytes(machine.memory).roughly()),
            ),
        ];
        lines.extend(self.seen.gpus.gpus.iter().map(|gpu| self.card(gpu)));
        lines.extend(self.seen.gpus.missing.as_ref().map(|why| Line::from(escape(&format!("no GPUs: {why}")))));
        let counts = State::ALL.iter().filter_map(|state| {
            let count = self.seen.jobs.iter().filter(|job| job.state == *state).count();
            (count > 0).then(|| format!("{count} {}", state.name()))
        });
        let counts: Vec<_> = counts.collect();
        lines.push(Line::from(if counts.is_empty() { "no jobs".to_owned() } else { counts.join(", ") }));
        lines
    }

    fn card(&self, gpu: &GpuView) -> Line<'static> {
        let gib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 30));
        let memory = gpu.memory_used.map_or_else(|| "-".to_owned(), gib);
        let all = gpu.memory.map_or_else(|| "-".to_owned(), |bytes| format!("{}GiB", gib(bytes)));
        let of_parts = gpu.slices.iter().filter_map(|slice| slice.leased_by.clone());
        let holders: Vec<String> = gpu
            .leased_by
            .iter()
            .cloned()
            .chain(gpu.shares.iter().map(|share| share.holder.clone()))
            .chain(of_parts)
            .collect();
        let holder = if holders.is_empty() { "free".to_owned() } else { holders.join(", ") };
        let health = if gpu.health == "ok" { String::new() } else { format!("{}  ", gpu.health) };
        let rest = escape(&format!("{health}{memory}/{all}  {holder}"));
        self.gauge(&format!("GPU{}", gpu.index), gpu.utilisation.map(|percent| f64::from(percent) / 100.0), &rest)
    }

    /// Of what has not been seen for long enough nothing is said: it is not nothing.
    fn gauge(&self, label: &str, part: Option<f64>, rest: &str) -> Line<'static> {
        let told = part.map_or_else(|| "-".to_owned(), |part| format!("{:.0}%", part.clamp(0.0, 1.0) * 100.0));
        let part = part.unwrap_or(0.0).clamp(0.0, 1.0);
        let full = (part * BAR as f64).round() as usize;
        let colour = if part > 0.9 { Color::Red } else { Color::Green };
        Line::from(vec![
            Span::raw(format!("{label:<5}")),
            Span::styled("█".repeat(full), self.colour(colour)),
            Span::raw("░".repeat(BAR - full)),
            Span::raw(format!(" {told:>4}  {rest}")),
        ])
    }

    fn draw_jobs(&self, frame: &mut Frame<'_>, area: Rect) {
        let longest = self.jobs().map(|job| Span::raw(escape(&job.name)).width()).max().unwrap_or(0).clamp(3, JOB_MAX);
        let (widths, why) = columns([longest, 9, 4, 9, 6, 8], area);
        let rows = self.jobs().map(|job| {
            let (cpu, memory) = sums(&job.tasks);
            Row::new(vec![
                Span::raw(within(&job.name, longest)),
                Span::styled(job.state.name(), self.colour(colour_of(job.state))),
                Span::raw(job.run.to_string()),
                Span::raw(job.duration_ms.map_or_else(String::new, |ms| format_duration(Duration::from_millis(ms)))),
                Span::raw(cpu),
                Span::raw(memory),
                Span::raw(within(&job.reason, why)),
            ])
        });
        let table = Table::new(rows, widths)
            .header(Row::new(["JOB", "STATE", "RUN", "TIME", "CPU", "MEMORY", "WHY"]))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(Some(self.selected));
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn draw_tasks(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(job) = self.jobs().nth(self.selected) else { return };
        let (widths, how) = columns([TASK, 9, 6, 8], area);
        let rows = job.tasks.iter().take(TASKS_MAX.into()).map(|task| {
            let (cpu, memory) = sums(std::slice::from_ref(task));
            Row::new(vec![within(&task.task, TASK), task.phase.clone(), cpu, memory, within(&task.reason, how)])
        });
        let title = match job.tasks.is_empty() {
            true => format!("why {} is {}", job.name, job.state),
            false => format!("tasks of {}", job.name),
        };
        let title = Line::styled(escape(&title), Modifier::BOLD);
        let [above, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        frame.render_widget(Paragraph::new(fitted(title, above)), above);
        if job.tasks.is_empty() {
            return frame.render_widget(Paragraph::new(escape(&job.reason)).wrap(Wrap { trim: true }), rest);
        }
        frame.render_widget(
            Table::new(rows, widths).header(Row::new(["TASK", "PHASE", "CPU", "MEMORY", "HOW IT ENDED"])),
            rest,
        );
    }

    fn colour(&self, colour: Color) -> Style {
        if self.colours == Colours::Terminal { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Columns of a table, of which the last has what the others leave, and how much that is.
fn columns<const N: usize>(fixed: [usize; N], area: Rect) -> (Vec<Constraint>, usize) {
    // One is between two.
    let left = usize::from(area.width).saturating_sub(fixed.iter().sum::<usize>() + N);
    let fixed = fixed.iter().map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
    (fixed.chain([Constraint::Fill(1)]).collect(), left)
}

/// Words of others, no wider than that.
fn within(text: &str, most: usize) -> String {
    cut(&escape(text), most).into_owned()
}

/// No wider than where it is drawn: its end is cut.
fn fitted(mut line: Line<'_>, area: Rect) -> Line<'_> {
    let over = line.width().saturating_sub(area.width.into());
    if let Some(last) = line.spans.last_mut().filter(|_| over > 0) {
        last.content = cut(&last.content, last.width().saturating_sub(over)).into_owned().into();
    }
    line
}

fn why_old(error: ClientError) -> String {
    escape(&error.to_string())
}

fn colour_of(state: State) -> Color {
    match state {
        State::Running | State::Starting => Color::Blue,
        State::Succeeded => Color::Green,
        State::Failed | State::Invalid => Color::Red,
        State::Waiting | State::Held | State::Stopping => Color::Yellow,
        State::Stopped => Color::DarkGray,
    }
}

/// What tasks use together, where anything is known of it.
fn sums(tasks: &[TaskSeen]) -> (String, String) {
    let cpu: Vec<f64> = tasks.iter().filter_map(|task| task.cpu_percent).collect();
    let memory: Vec<u64> = tasks.iter().filter_map(|task| task.memory).collect();
    let cpu_text = if cpu.is_empty() { "-".to_owned() } else { format!("{:.0}%", cpu.iter().sum::<f64>()) };
    let memory_text = if memory.is_empty() { "-".to_owned() } else { Bytes(memory.iter().sum()).roughly() };
    (cpu_text, memory_text)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn seen() -> Seen {
        let task = |task: &str, phase: &str, cpu, memory| TaskSeen {
            task: task.to_owned(),
            phase: phase.to_owned(),
            reason: String::new(),
            cpu_percent: cpu,
            memory,
        };
        let job = |name: &str, state, reason: &str, tasks| JobSeen {
            name: name.to_owned(),
            state,
            reason: reason.to_owned(),
            run: 3,
            duration_ms: Some(3_725_000),
            tasks,
        };
        let gpu = serde_json::json!({
            "index": 0, "uuid": "GPU-00000000-0000-0000-0000-000000000000", "name": "NVIDIA H200", "minor": 0, "bus": "0",
            "numa_node": 0, "cpus": "0-15", "memory": 150_u64 << 30, "memory_used": 40_u64 << 30, "utilisation": 87,
            "temperature": 60, "power": 1000, "power_limit": 2000, "slowed_by": [], "health": "ok", "findings": [],
            "leased_by": "vision/训练 worker-0", "shares": [], "links": [], "slices": [], "processes": []
        });
        let gpus = serde_json::json!({
            "driver": "570", "cuda": "12.8", "missing": null, "at": null, "stale": false, "gpus": [gpu], "nameless": []
        });
        Seen {
            machine: Machine { cpu_percent: Some(95.0), cores: 16, memory_used: 12 << 30, memory: 64 << 30 },
            gpus: serde_json::from_value(gpus).unwrap(),
            jobs: vec![
                job("digits", State::Succeeded, "all tasks succeeded", Vec::new()),
                job(
                    "vision/训练",
                    State::Running,
                    "2 of 2 tasks run",
                    vec![
                        task("worker-0", "running", Some(160.0), Some(3 << 30)),
                        task("worker-1", "running", None, None),
                    ],
                ),
                job(
                    "vision/waits\u{1b}[2J",
                    State::Waiting,
                    "place 1 of 1: 4 cores, 2 are free, and a long word on it",
                    Vec::new(),
                ),
            ],
        }
    }

    fn drawn(view: &View, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 18)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        super::super::lines(terminal.backend().buffer()).join("\n")
    }

    #[test]
    fn it_looks_so() {
        let mut view = View::new(seen(), Colours::None);
        insta::assert_snapshot!("top_80", drawn(&view, 80));
        insta::assert_snapshot!("top_120", drawn(&view, 120));
        view.press(KeyCode::Char('a'));
        view.press(KeyCode::Down);
        let refused = ClientError::Refused { status: 503, message: "the daemon does not answer".to_owned() };
        view.heard_of_jobs(Err(refused));
        insta::assert_snapshot!("top_all_80", drawn(&view, 80));
        insta::assert_snapshot!("top_all_120", drawn(&view, 120));
        let once = Seen { machine: Machine { cpu_percent: None, ..seen().machine }, ..seen() };
        assert!(
            drawn(&View::new(once, Colours::None), 80).contains("    -  of 16 cores"),
            "one look says nothing of it"
        );
    }

    #[test]
    fn what_is_old_is_said_and_stays_as_it_was_until_it_is_seen_again() {
        let mut view = View::new(seen(), Colours::None);
        let refused = |message: &str| ClientError::Refused { status: 503, message: message.to_owned() };
        view.heard_of_jobs(Err(refused("no jobs now")));
        view.heard_of_machine(Ok((seen().machine, seen().gpus)));
        view.jobs_go_on(Vec::new());
        let said = drawn(&view, 80);
        assert!(said.contains("no jobs now") && said.contains("vision/训练"), "{said}");
        view.heard_of_machine(Err(refused("no cards now")));
        view.heard_of_jobs(Ok(seen().jobs));
        assert!(drawn(&view, 80).contains("no cards now"));
        view.jobs_go_on(Vec::new());
        view.heard_of_machine(Ok((seen().machine, seen().gpus)));
        let said = drawn(&view, 80);
        assert!(!said.contains("no cards now") && said.contains("no jobs"), "{said}");
    }

    #[test]
    fn keys_lead_nowhere_but_to_jobs() {
        let mut view = View::new(seen(), Colours::Terminal);
        (0..9).for_each(|_| view.press(KeyCode::Down));
        assert_eq!(view.selected, 1);
        view.heard_of_jobs(Ok(Vec::new()));
        assert_eq!(view.selected, 0);
        view.press(KeyCode::End);
        view.press(KeyCode::Up);
        assert!(drawn(&view, 80).contains("no jobs"));
    }
}
