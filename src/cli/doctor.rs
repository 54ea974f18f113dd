//! `trainyard doctor`

use std::path::Path;

use super::Exit;
use super::output::{self, Format};
use crate::doctor::{self, Finding, Level};

pub(super) fn run(root: &Path, checks: &[String], format: Format) -> anyhow::Result<Exit> {
    if let Some(unknown) = checks.iter().find(|check| !doctor::names().any(|name| name == *check)) {
        let all: Vec<&str> = doctor::names().collect();
        output::error(&format!("there is no check {unknown:?}; there are {}", all.join(", ")));
        return Ok(Exit::WrongArgument);
    }
    let findings = doctor::examine(root, checks, doctor::BOUND)?;
    match format {
        Format::Json => findings.iter().try_for_each(output::json)?,
        Format::People => screen(&findings, output::columns()).iter().try_for_each(|line| output::line(line))?,
    }
    let has_failed = findings.iter().any(|finding| finding.level == Level::Failed);
    Ok(if has_failed { Exit::Failure } else { Exit::Success })
}

/// A line for each check, with what to do below; then the sum.
fn screen(findings: &[Finding], columns: Option<usize>) -> Vec<String> {
    let wide = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for Finding { check, level, found, advice } in findings {
        // Padded before it is painted: colours take no place.
        let level = output::paint(colour(*level), &format!("{:<8}", level.name()));
        let (begin, indent) = (format!("{check:<wide$}  {level} "), wide + 11);
        lines.push(output::fold(&begin, indent, &found.replace('\n', " "), columns));
        lines.extend(advice.iter().map(|advice| output::fold(&" ".repeat(indent), indent, advice, columns)));
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (ok, warnings, failed) = (count(Level::Ok), count(Level::Warning), count(Level::Failed));
    lines.push(format!("{ok} ok, {warnings} warning(s), {failed} failed"));
    lines
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::Ok => "32",
        Level::Warning => "33",
        Level::Failed => "31",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(check: &'static str, level: Level, found: &str, advice: Option<&str>) -> Finding {
        Finding { check, level, found: found.to_owned(), advice: advice.map(str::to_owned) }
    }

    #[test]
    fn the_screen_says_what_to_do() {
        let findings = [
            finding("kernel", Level::Ok, "Linux 6.12", None),
            finding("user-namespaces", Level::Failed, "none can be made", Some("raise the sysctl")),
            finding("time", Level::Warning, "the clock is not\nsynchronized", Some("turn on chrony")),
        ];
        let wanted = "\
kernel           ok       Linux 6.12
user-namespaces  failed   none can be made
                          raise the sysctl
time             warning  the clock is not synchronized
                          turn on chrony
1 ok, 1 warning(s), 1 failed";
        assert_eq!(screen(&findings, None).join("\n"), wanted);
        let json = serde_json::to_string(&findings[1]).unwrap();
        let wanted =
            r#"{"check":"user-namespaces","level":"failed","found":"none can be made","advice":"raise the sysctl"}"#;
        assert_eq!(json, wanted);
    }

    #[test]
    fn the_screen_is_as_it_was_at_80_and_120_columns() {
        let findings = [
            finding("kernel", Level::Ok, "Linux 6.12.43+deb13-amd64", None),
            finding(
                "delegation",
                Level::Failed,
                "the daemon would run in /user.slice/user-0.slice/session-4.scope, whose control groups are not its own: cpu memory pids",
                Some(
                    "start it by systemd (`systemctl start trainyard`), whose unit says Delegate=yes, or in a control group of its own",
                ),
            ),
            finding(
                "disk",
                Level::Warning,
                "12 GiB of 1.8 TiB are free below /var/lib/trainyard/workspaces, and new runs wait below 20 GiB",
                Some("`trainyard workspace` tells what takes the room, `trainyard image prune` frees what no job uses"),
            ),
        ];
        for columns in [80, 120] {
            insta::assert_snapshot!(format!("doctor_{columns}"), screen(&findings, Some(columns)).join("\n"));
        }
    }
}
