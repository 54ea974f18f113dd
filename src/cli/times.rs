//! Times as people read and write them: UTC, which `Z` says wherever one is shown, so that the same job has the same times on every
//! screen and in every file. What is shown is read back.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::WrongArgument;
use crate::ids::parse_duration;

/// Of `--since` and `--until`: a time, a day as it begins, or a time so long ago; ms since 1970. Without a zone it is UTC.
pub(super) fn when(text: &str) -> Result<u64, WrongArgument> {
    if let Some(time) = text.parse::<jiff::Timestamp>().ok().or_else(|| without_zone(text)) {
        return Ok(u64::try_from(time.as_millisecond()).unwrap_or(0));
    }
    let Ok(age) = parse_duration(text) else {
        return Err(WrongArgument(format!(
            "{text:?} is no time; write one as in 10m (so long ago), 2026-03-01 or \"2026-03-01 12:00:00\" (UTC), or \
             2026-03-01T12:00:00+08:00"
        )));
    };
    Ok(crate::sys::now().0.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
}

/// How long something is to take.
pub(super) fn duration(text: &str) -> Result<Duration, WrongArgument> {
    parse_duration(text).map_err(|error| WrongArgument(error.to_string()))
}

/// jiff passes over what follows such a time, as the name of a zone in brackets: it may be nothing but the time itself.
fn without_zone(text: &str) -> Option<jiff::Timestamp> {
    let is_of_time = |letter: char| letter.is_ascii_digit() || "-:. T".contains(letter);
    let time = text.chars().all(is_of_time).then(|| text.parse::<DateTime>().ok())??;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// A time as it is stored, without what is smaller than a second.
pub(super) fn seconds(time: &str) -> String {
    let whole = time.split('.').next().unwrap_or(time);
    match whole.trim_end_matches('Z').split_once('T') {
        Some((day, time)) => format!("{day} {time}Z"),
        None => whole.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_shown_and_never_in_part() {
        let noon = 1_772_366_400_000;
        for text in [
            "2026-03-01T12:00:00Z",
            "2026-03-01 12:00:00Z",
            "2026-03-01T12:00:00",
            "2026-03-01 12:00:00",
            "2026-03-01 12:00",
            "2026-03-01T12:00:00.000Z",
            "2026-03-01T20:00:00+08:00",
            "2026-03-01 07:00:00-05:00",
        ] {
            assert_eq!(when(text).unwrap(), noon, "{text}");
        }
        assert_eq!(when("2026-03-01").unwrap(), noon - 12 * 3_600_000);
        assert_eq!(when("2026-03-01 12:00:00.5").unwrap(), noon + 500);
        assert_eq!(when(&seconds("2026-03-01T12:00:00.123Z")).unwrap(), noon);
        for text in [
            "2026-03-01 noon",
            "2026-03-01 25:00:00",
            "2026-03-01T12:00:00 ",
            "2026-03-01T12:00:00[Asia/Shanghai]",
            "2026-03-01[UTC]",
            "2026-03-01+08:00",
            "2026-03-01 12:00:00 CST",
            "2026-02-30",
            "12:00",
            "yesterday",
            "",
        ] {
            assert!(when(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_that_is_shown_says_its_zone() {
        assert_eq!(seconds("2026-03-01T12:00:00.123Z"), "2026-03-01 12:00:00Z");
        assert_eq!(seconds("2026-03-01T12:00:00Z"), "2026-03-01 12:00:00Z");
        assert_eq!(seconds(""), "");
    }
}
