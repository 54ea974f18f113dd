//! `trainyard top`: what the machine does, again and again, until somebody presses q.
//!
//! What is shown is gathered first ([`gather`]) and then drawn ([`screen`], which knows no clock and asks nobody). Where standard
//! output is no terminal it is printed once.

mod gather;
mod screen;

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::Context;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::output::{self, Format};
use super::{Exit, WrongArgument};
use crate::api::client::Client;
use crate::config::Paths;
use gather::Gatherer;
use screen::{Colours, View};

/// More often would be work for nothing.
const LEAST: Duration = Duration::from_millis(200);
/// How long a key waits at most.
const KEYS: Duration = Duration::from_millis(100);
/// Of what is printed once where nobody says how wide.
const WIDTH: u16 = 120;

pub(super) async fn run(
    client: &Client,
    paths: &Paths,
    every: Duration,
    workspace: Option<&str>,
    format: Format,
) -> anyhow::Result<Exit> {
    if every < LEAST {
        return Err(WrongArgument(format!("--every must be at least {}ms", LEAST.as_millis())).into());
    }
    let mut gatherer = Gatherer::new(client.clone(), paths, workspace.map(str::to_owned));
    let first = gatherer.look().await?;
    if format == Format::Json {
        output::json(&first)?;
        return Ok(Exit::Success);
    }
    if !io::stdout().is_terminal() {
        printed(&View::new(first, Colours::None))?.iter().try_for_each(|line| output::line(line))?;
        return Ok(Exit::Success);
    }
    let colours = if output::wants_colours() { Colours::Terminal } else { Colours::None };
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let watched = watch(&mut terminal, View::new(first, colours), gatherer, every).await;
    ratatui::restore();
    watched.map(|()| Exit::Success)
}

/// Cards, the machine and what tasks use are looked at every so often, jobs as something happens to them.
async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    mut view: View,
    mut gatherer: Gatherer,
    every: Duration,
) -> anyhow::Result<()> {
    let heard = |kind| signal(kind).context("cannot take signals");
    // Whatever ends it leaves the terminal as it was.
    let [mut terminate, mut hang_up, mut interrupt] =
        [heard(SignalKind::terminate())?, heard(SignalKind::hangup())?, heard(SignalKind::interrupt())?];
    let mut machine = interval_at(Instant::now() + every, every);
    machine.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut jobs, mut read) = (Box::pin(gatherer.next()), next_key());
    let mut is_new = true;
    loop {
        if is_new {
            terminal.draw(|frame| view.draw(frame)).context("cannot write to the terminal")?;
        }
        is_new = tokio::select! {
            happened = &mut read => {
                read = next_key();
                match happened.context("cannot read the terminal")?.context("cannot read the terminal")? {
                    Some(Event::Key(key)) if ends(&key) => return Ok(()),
                    Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                        view.press(key.code);
                        true
                    }
                    happened => matches!(happened, Some(Event::Resize(..))),
                }
            }
            _ = terminate.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = &mut jobs => {
                view.heard_of_jobs(gatherer.look_at_jobs().await);
                jobs = Box::pin(gatherer.next());
                true
            }
            _ = machine.tick() => {
                view.heard_of_machine(gatherer.look_at_machine().await);
                view.jobs_go_on(gatherer.jobs_now());
                true
            }
        };
    }
}

/// What was typed; nothing where nobody has typed for a while.
fn next_key() -> JoinHandle<io::Result<Option<Event>>> {
    tokio::task::spawn_blocking(|| event::poll(KEYS).and_then(|any| any.then(event::read).transpose()))
}

fn ends(key: &KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

/// The screen as lines, as high as it must be to show everything.
fn printed(view: &View) -> anyhow::Result<Vec<String>> {
    let width = output::columns().and_then(|columns| u16::try_from(columns).ok()).unwrap_or(WIDTH);
    let mut terminal = Terminal::new(TestBackend::new(width, view.height()))?;
    terminal.draw(|frame| view.draw(frame))?;
    Ok(lines(terminal.backend().buffer()))
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let line = |y: u16| {
        let (mut text, mut covered) = (String::new(), 0);
        for x in 0..buffer.area.width {
            // A letter of two columns covers the cell behind it.
            if covered == 0 {
                let symbol = buffer[(x, y)].symbol();
                text.push_str(symbol);
                covered = unicode_width::UnicodeWidthStr::width(symbol).max(1);
            }
            covered -= 1;
        }
        text.trim_end().to_owned()
    };
    (0..buffer.area.height).map(line).collect()
}
