//! How long a job may and should take.

use std::time::Duration;

use toml::Spanned;

use super::Reader;
use crate::ids::parse_duration;
use crate::spec::job::OnOverrun;
use crate::spec::wire::WireJob;

/// Of an attempt.
pub(super) struct Durations {
    pub(super) max: Option<Duration>,
    pub(super) expected: Option<Duration>,
    pub(super) on_overrun: OnOverrun,
}

impl Reader<'_> {
    /// Warns of words that never act.
    pub(super) fn durations(&mut self, wire: &WireJob) -> Durations {
        let max = wire.max_duration.as_ref().and_then(|text| parse_duration(text).ok());
        let said = wire.expected_duration.as_ref();
        let expected = said.and_then(|text| parse_duration(text.get_ref()).ok());
        if let Some(word) = wire.on_overrun.as_ref().filter(|_| said.is_none()) {
            let message = "`on_overrun` is about jobs that take longer than expected, and it is not said how long that is: say it by \
                           `expected_duration`, or by `max_duration` when the job is to be stopped";
            self.found.push(self.source.warning(word.span(), "on_overrun", message));
        }
        if let Some((said, max)) = said.zip(wire.max_duration.as_ref()).filter(|_| expected > max && max.is_some()) {
            let message = format!(
                "`expected_duration` is {}, but the job is stopped after {max} (`max_duration`): it is never told that it takes \
                 longer than expected",
                said.get_ref()
            );
            self.found.push(self.source.warning(said.span(), "expected_duration", message));
        }
        let is_stopped = wire.on_overrun.as_ref().map(Spanned::get_ref).is_some_and(|word| word == "stop");
        Durations { max, expected, on_overrun: if is_stopped { OnOverrun::Stop } else { OnOverrun::Alert } }
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::parse;

    #[test]
    fn words_about_durations_that_never_act_are_warned_of() {
        let warned = |text: &str| {
            let found = parse("x.toml", &format!("command = 'x'\n{text}")).1;
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for (text, said) in [
            ("on_overrun = 'stop'", "x.toml:2:14: warning: `on_overrun` is about jobs that take longer than expected"),
            ("on_overrun = 'stop'\nmax_duration = '1h'", "x.toml:2:14: warning: `on_overrun` is about"),
            (
                "expected_duration = '2h'\nmax_duration = '90m'",
                "x.toml:2:21: warning: `expected_duration` is 2h, but the job is stopped after 90m (`max_duration`)",
            ),
            (
                "alerts.gpu_idle.for = '1h'",
                "warning: `alerts.gpu_idle` is about the job's graphics cards, and no task of it has any",
            ),
        ] {
            let found = warned(text);
            assert!(found.len() == 1 && found[0].contains(said), "{text}: {found:?}");
        }
        for right in [
            "on_overrun = 'stop'\nexpected_duration = '1h'",
            "expected_duration = '1h'\nmax_duration = '60m'",
            "alerts.gpu_idle.for = '1h'\n[roles.a]\n[roles.b]\nresources.gpu = 1",
        ] {
            assert_eq!(warned(right), [""; 0], "{right}");
        }
    }
}
