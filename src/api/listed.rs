//! What there are lists of, and what of each its list is filtered and sorted by.

use super::assets::{DatasetView, ModelView};
use super::secrets::SecretView;
use super::storage::WorkspaceView;
use super::templates::TemplateView;
use super::tokens::TokenView;
use super::usage::UsageView;
use super::wire::ImageView;
use crate::ids::Timestamp;
use crate::report::{JobLine, JobReport};
use crate::status::State;

/// Something that is told with others like it, page by page. What it does not have it is not filtered by: then its route has no such
/// parameter either, or a workspace says which are looked at.
pub(super) trait Listed {
    /// How they are sorted where nobody says.
    const ORDER: &'static str = "name";

    /// No two of a list have the same.
    fn id(&self) -> String;

    /// What a name that was typed may be near to.
    fn name(&self) -> &str;

    /// Where a text is looked for.
    fn texts(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    /// What they are sorted by, as it was at this time where that is known, as text that sorts as it does; empty for the name alone.
    fn sorted_by(&self, by: &str, at: Timestamp) -> String {
        match by {
            "user" => self.owner().map(number).unwrap_or_default(),
            "brought" | "changed" | "created" => self.time().unwrap_or_default().to_owned(),
            _ => self.measured_by(by, at),
        }
    }

    /// The same of what is this list's own.
    fn measured_by(&self, _by: &str, _at: Timestamp) -> String {
        String::new()
    }

    fn state(&self) -> Option<State> {
        None
    }

    fn owner(&self) -> Option<u32> {
        None
    }

    fn workspace(&self) -> Option<&str> {
        None
    }

    /// When it came or was changed, as times are written.
    fn time(&self) -> Option<&str> {
        None
    }
}

/// A job is told whole or in a line, and listed in the same way. `$span` is when its newest run began, when it ended, and how long it
/// took where neither is known.
macro_rules! listed_as_a_job {
    ($job:ty, $span:expr) => {
        impl Listed for $job {
            fn id(&self) -> String {
                format!("{}/{}", self.workspace, self.job)
            }

            fn name(&self) -> &str {
                &self.job
            }

            fn texts(&self) -> Vec<String> {
                texts(&self.workspace, &self.job, &self.description)
            }

            fn measured_by(&self, by: &str, at: Timestamp) -> String {
                let span: fn(&Self) -> (Option<Timestamp>, Option<Timestamp>, Option<u64>) = $span;
                match by {
                    "state" => self.state.name().to_owned(),
                    "duration" => {
                        let (started, ended, took) = span(self);
                        number(lasted(started, ended, at).or(took).unwrap_or(0))
                    }
                    _ => String::new(),
                }
            }

            fn state(&self) -> Option<State> {
                Some(self.state)
            }

            fn owner(&self) -> Option<u32> {
                Some(self.owner)
            }

            fn workspace(&self) -> Option<&str> {
                Some(&self.workspace)
            }

            fn time(&self) -> Option<&str> {
                Some(&self.created)
            }
        }
    };
}

listed_as_a_job!(JobReport, |job| (read(job.started.as_deref()), read(job.ended.as_deref()), None));
// Who has been sent a line has the last alone.
listed_as_a_job!(JobLine, |job| (job.started, job.ended, job.duration_ms));

fn read(time: Option<&str>) -> Option<Timestamp> {
    let ms = time?.parse::<jiff::Timestamp>().ok()?.as_millisecond();
    u64::try_from(ms).ok().map(Timestamp)
}

/// Where a text is looked for in a job: as people write its name, without the default workspace.
fn texts(workspace: &str, job: &str, description: &str) -> Vec<String> {
    let shown = if workspace == "default" { job.to_owned() } else { format!("{workspace}/{job}") };
    vec![shown, description.to_owned()]
}

/// How long a run had taken at this time, ms; one that began later had not.
fn lasted(started: Option<Timestamp>, ended: Option<Timestamp>, at: Timestamp) -> Option<u64> {
    let until = ended.map_or(at, |ended| ended.min(at));
    Some(until.0.saturating_sub(started?.0))
}

impl Listed for ImageView {
    fn id(&self) -> String {
        format!("{} {} {}", self.name, self.kind, self.workspace.as_deref().unwrap_or_default())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn measured_by(&self, by: &str, _at: Timestamp) -> String {
        match by {
            "used" => self.used.clone(),
            "size" => number(self.size),
            _ => String::new(),
        }
    }

    fn time(&self) -> Option<&str> {
        Some(&self.brought)
    }
}

impl Listed for DatasetView {
    fn id(&self) -> String {
        format!("{}/{}", self.home, self.dataset)
    }

    fn name(&self) -> &str {
        &self.dataset
    }

    fn texts(&self) -> Vec<String> {
        vec![self.id()]
    }
}

impl Listed for ModelView {
    fn id(&self) -> String {
        format!("{}/{}/{}", self.workspace, self.job, number(self.run))
    }

    fn name(&self) -> &str {
        &self.job
    }
}

impl Listed for TemplateView {
    fn id(&self) -> String {
        self.template.clone()
    }

    fn name(&self) -> &str {
        self.template.rsplit('/').next().unwrap_or_default()
    }

    fn texts(&self) -> Vec<String> {
        vec![self.template.clone(), self.description.clone()]
    }

    fn owner(&self) -> Option<u32> {
        Some(self.owner)
    }

    fn time(&self) -> Option<&str> {
        Some(&self.changed)
    }
}

impl Listed for WorkspaceView {
    fn id(&self) -> String {
        self.storage.workspace.to_string()
    }

    fn name(&self) -> &str {
        self.storage.workspace.as_str()
    }

    fn measured_by(&self, by: &str, _at: Timestamp) -> String {
        if by == "used" { number(self.storage.used.unwrap_or(0)) } else { String::new() }
    }
}

impl Listed for SecretView {
    fn id(&self) -> String {
        self.secret.clone()
    }

    fn name(&self) -> &str {
        &self.secret
    }
}

impl Listed for TokenView {
    fn id(&self) -> String {
        format!("{}/{}", self.name, number(self.uid))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn owner(&self) -> Option<u32> {
        Some(self.uid)
    }

    fn time(&self) -> Option<&str> {
        Some(&self.created)
    }
}

impl Listed for UsageView {
    /// Who has used most is first.
    const ORDER: &'static str = "-hours";

    fn id(&self) -> String {
        self.name.clone()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn measured_by(&self, by: &str, _at: Timestamp) -> String {
        // Hours of cards come first, then of cores; the bits of what is not negative sort as it does.
        let hours = |hours: f64| number(hours.to_bits());
        match by {
            "hours" => format!("{} {}", hours(self.total.gpu_hours), hours(self.total.cpu_hours)),
            _ => String::new(),
        }
    }
}

/// As wide as the largest, so that it sorts as text.
fn number(number: impl Into<u64>) -> String {
    format!("{:020}", number.into())
}
