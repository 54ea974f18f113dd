//! How lists are printed, the same for every verb that has one: `-o table|wide|names|json|csv`, `-q`, `--json`.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::output::{self, Format};
use super::{Exit, pulse};
use crate::api::client::{Client, ClientError};

/// What is told of each thing that is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// What people look for
    Table,
    /// And more
    Wide,
    /// Its name alone
    Names,
    /// All of it, as `--json`
    Json,
    /// The columns of `wide`, as comma-separated values
    Csv,
}

/// Flags of every verb that lists.
#[derive(Debug, Clone, Copy, Args)]
pub struct Listed {
    /// What to print of each
    #[arg(short, long, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
    /// Print names alone
    #[arg(short, long)]
    quiet: bool,
}

impl Listed {
    pub(super) fn form(self, format: Format) -> Form {
        match (self.quiet, format) {
            (true, _) => Form::Names,
            (false, Format::Json) => Form::Json,
            (false, Format::People) => self.output,
        }
    }

    /// The same where an earlier flag asks for more columns.
    pub(super) fn or_wide(self, is_wide: bool, format: Format) -> Form {
        match self.form(format) {
            Form::Table if is_wide => Form::Wide,
            form => form,
        }
    }
}

/// Of what changes while one looks: printed again and again.
#[derive(Debug, Clone, Copy, Args)]
pub struct Watch {
    /// Print it anew as it changes, until Ctrl-C; `trainyard top` shows more
    #[arg(long)]
    watch: bool,
}

/// Between two looks at cards: of what they do nothing tells.
const CARDS_EVERY: Duration = Duration::from_secs(2);
/// So often a daemon that was there is looked for again, a second apart: it may be restarted.
pub(super) const LOOKED_FOR: u32 = 30;

impl Watch {
    /// Of jobs, where `print` tells up to which event it has looked.
    pub(super) async fn jobs(
        self,
        client: &Client,
        mut print: impl AsyncFnMut() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Exit> {
        if !self.watch {
            return print().await.map(|_| Exit::Success);
        }
        let mut begun = Instant::now();
        let (mut serial, mut missed) = (drawn(&mut print).await?, 0);
        loop {
            pulse::next(client, serial, begun.elapsed()).await;
            begun = Instant::now();
            match drawn(&mut print).await {
                Ok(seen) => (serial, missed) = (seen, 0),
                Err(error) if missed < LOOKED_FOR && is_away(&error) => missed += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Of cards.
    pub(super) async fn cards(self, mut print: impl AsyncFnMut() -> anyhow::Result<Exit>) -> anyhow::Result<Exit> {
        loop {
            if !self.watch {
                return print().await;
            }
            drawn(&mut print).await?;
            tokio::time::sleep(CARDS_EVERY).await;
        }
    }
}

/// On a terminal in the place of what was printed before, elsewhere below it.
async fn drawn<T>(print: &mut impl AsyncFnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    output::clear_with_next();
    let seen = print().await?;
    output::clear_if_nothing_came()?;
    Ok(seen)
}

fn is_away(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(ClientError::is_away)
}

/// A list of things that are told in the same way.
pub(super) struct Listing<'a, T> {
    /// Of all columns.
    pub(super) heads: &'a [&'a str],
    /// Those that are in wide tables alone.
    pub(super) wide: &'a [&'a str],
    /// Of all columns.
    pub(super) cells: fn(&T) -> Vec<String>,
    /// As other verbs take it.
    pub(super) name: fn(&T) -> String,
    pub(super) json: fn(&T) -> anyhow::Result<Value>,
    /// What is said to people where there is none.
    pub(super) nothing: &'a str,
}

/// For what is told to programs as it is.
pub(super) fn whole<T: Serialize>(of: &T) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(of)?)
}

impl<T> Listing<'_, T> {
    pub(super) fn print(&self, rows: &[T], form: Form) -> anyhow::Result<()> {
        match form {
            Form::Json => rows.iter().try_for_each(|row| output::json(&(self.json)(row)?)),
            Form::Names => names(rows.iter().map(self.name)),
            Form::Csv => {
                output::line(&csv(&self.heads.iter().map(|head| head.to_lowercase()).collect::<Vec<_>>()))?;
                rows.iter().try_for_each(|row| output::line(&csv(&(self.cells)(row))))
            }
            Form::Table | Form::Wide if rows.is_empty() => output::line(self.nothing),
            Form::Wide => output::table(self.heads, &rows.iter().map(self.cells).collect::<Vec<_>>()),
            Form::Table => {
                let heads: Vec<&str> = self.narrow(self.heads.iter().copied()).collect();
                let rows = rows.iter().map(|row| self.narrow((self.cells)(row).into_iter()).collect());
                output::table(&heads, &rows.collect::<Vec<_>>())
            }
        }
    }

    /// Without what is in wide tables alone.
    fn narrow<C>(&self, cells: impl Iterator<Item = C>) -> impl Iterator<Item = C> {
        cells.zip(self.heads).filter(|(_, head)| !self.wide.contains(head)).map(|(cell, _)| cell)
    }
}

/// One a line, without what gives a terminal orders; nothing where there is none, so that `trainyard stop $(trainyard ps -q …)` says so.
pub(super) fn names(names: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let names: Vec<String> = names.map(|name| output::plain(&name)).collect();
    if names.is_empty() { Ok(()) } else { output::line(&names.join("\n")) }
}

/// A line of comma-separated values (RFC 4180), without colours and whatever else gives a terminal orders.
pub(super) fn csv(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        let cell = output::plain(&output::unpainted(cell));
        match cell.contains([',', '"']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell,
        }
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_hold_commas_quotes_or_colours_stay_one_value() {
        let cells = ["plain", "a, b", "said \"no\"", "\x1b[31mfailed\x1b[0m", ""].map(str::to_owned);
        assert_eq!(csv(&cells), "plain,\"a, b\",\"said \"\"no\"\"\",failed,");
    }

    #[test]
    fn names_come_before_all_else_and_json_before_a_form() {
        let listed = |output, quiet| Listed { output, quiet };
        assert_eq!(listed(Form::Csv, true).form(Format::Json), Form::Names);
        assert_eq!(listed(Form::Csv, false).form(Format::Json), Form::Json);
        assert_eq!(listed(Form::Csv, false).or_wide(true, Format::People), Form::Csv);
        assert_eq!(listed(Form::Table, false).or_wide(true, Format::People), Form::Wide);
    }
}
