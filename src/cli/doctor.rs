//! `trainyard doctor`

use std::path::Path;

use super::Exit;
use super::output::{self, Format};
use crate::doctor::{self, Finding, Level};

pub(super) fn run(root: &Path, checks: &[String], format: Format) -> anyhow::Result<Exit> {
    if let Some(unknown) = checks.iter().find(|check| !doctor::names().any(|name| name == *check)) {
        let all: Vec<&str> = doctor::names().collect();
        output::error(&format!("there is no check {unknown:?}; there are {}", all.join(", ")));
        return Ok(Exit::Failure);
    }
    let findings = doctor::examine(root, checks)?;
    match format {
        Format::Json => findings.iter().try_for_each(output::json)?,
        Format::People => screen(&findings).iter().try_for_each(|line| output::line(line))?,
    }
    let has_failed = findings.iter().any(|finding| finding.level == Level::Failed);
    Ok(if has_failed { Exit::Failure } else { Exit::Success })
}

/// A line for each check, with what to do below; then the sum.
fn screen(findings: &[Finding]) -> Vec<String> {
    let wide = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for Finding { check, level, found, advice } in findings {
        // Padded before it is painted: colours take no place.
        let level = output::paint(colour(*level), &format!("{:<8}", level.name()));
        lines.push(format!("{check:<wide$}  {level} {}", found.replace('\n', " ")));
        lines.extend(advice.iter().map(|advice| format!("{:wide$}           {advice}", "")));
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

    #[test]
    fn the_screen_says_what_to_do() {
        let finding = |check, level, found: &str, advice: Option<&str>| Finding {
            check,
            level,
            found: found.to_owned(),
            advice: advice.map(str::to_owned),
        };
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
        assert_eq!(screen(&findings).join("\n"), wanted);
        let json = serde_json::to_string(&findings[1]).unwrap();
        let wanted =
            r#"{"check":"user-namespaces","level":"failed","found":"none can be made","advice":"raise the sysctl"}"#;
        assert_eq!(json, wanted);
    }
}
