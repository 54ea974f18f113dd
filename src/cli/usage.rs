//! `trainyard usage`: who has used how much of the machine.

use super::Exit;
use super::listing::{self, Form};
use super::output;
use super::ps::user_name;
use super::times::when;
use crate::api::client::Client;
use crate::api::usage::{By, UsageView};

const HEADS: [&str; 6] = ["ATTEMPTS", "GPU-HOURS", "CPU-HOURS", "GIB-HOURS", "PRICE", "UNPRICED"];
const COLUMNS: &str = "attempts,gpu_hours,cpu_hours,memory_gib_hours,price,unpriced";

pub(super) async fn run(
    client: &Client,
    by: By,
    workspace: Option<&str>,
    since: Option<&str>,
    form: Form,
) -> anyhow::Result<Exit> {
    let since = since.map(when).transpose()?.unwrap_or(0);
    let mut rows = client.usage(by, workspace, since).await?;
    if by == By::User {
        rows.iter_mut().for_each(|row| row.name = row.name.parse().map_or_else(|_| row.name.clone(), user_name));
    }
    match form {
        Form::Json => output::json(&rows)?,
        Form::Csv => print_csv(by, &rows)?,
        Form::Names => listing::names(rows.into_iter().map(|row| row.name))?,
        Form::Table | Form::Wide if rows.is_empty() => output::line("nothing was used that you may see")?,
        Form::Table | Form::Wide => {
            let name = by.name().to_uppercase();
            let heads: Vec<&str> = std::iter::once(name.as_str()).chain(HEADS).collect();
            output::table(&heads, &rows.iter().map(row).collect::<Vec<_>>())?;
        }
    }
    Ok(Exit::Success)
}

fn row(UsageView { name, total }: &UsageView) -> Vec<String> {
    vec![
        name.clone(),
        total.attempts.to_string(),
        format!("{:.2}", total.gpu_hours),
        format!("{:.2}", total.cpu_hours),
        format!("{:.2}", total.memory_gib_hours),
        total.price.map_or("-".to_owned(), |price| format!("{price:.2}")),
        total.unpriced.to_string(),
    ]
}

/// Names of jobs, workspaces and users hold no comma, quotation mark or line break.
fn print_csv(by: By, rows: &[UsageView]) -> anyhow::Result<()> {
    output::line(&format!("{},{COLUMNS}", by.name()))?;
    rows.iter().try_for_each(|UsageView { name, total }| {
        let price = total.price.map(|price| price.to_string()).unwrap_or_default();
        let hours = format!("{},{},{}", total.gpu_hours, total.cpu_hours, total.memory_gib_hours);
        output::line(&format!("{name},{},{hours},{price},{}", total.attempts, total.unpriced))
    })
}
