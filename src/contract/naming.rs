//! Rules of platforms for the names of jobs, and the name that a job has there.

use sha2::{Digest, Sha256};

use super::Task;
use crate::ids::is_seen;
use crate::spec::{Contract, JobSpec, Platform, Profile};

/// How long a name may be, and of which characters.
struct Rule {
    /// In characters.
    most: usize,
    may: fn(char) -> bool,
    /// What `may` allows, for people.
    told: &'static str,
    ends: Ends,
}

#[derive(PartialEq, Eq)]
enum Ends {
    Any,
    LetterOrDigit,
}

fn rule(contract: Contract) -> Option<Rule> {
    let plain: fn(char) -> bool = |c| c.is_ascii_alphanumeric() || c == '-';
    let (most, may, told): (usize, fn(char) -> bool, _) = match (contract.platform, contract.profile) {
        (Platform::Volcano, Profile::Octopus) => {
            (30, |c| is_seen(c) || "-_".contains(c), "letters of any script with their marks, digits, '-' and '_'")
        }
        (Platform::Kubeflow, Profile::Swarm) => (64, plain, "letters A–Z and a–z, digits and '-'"),
        (Platform::SageMaker, _) => (63, plain, "letters A–Z and a–z, digits and '-'"),
        (Platform::ModelArts, _) => {
            (64, |c| c.is_ascii_alphanumeric() || "-_".contains(c), "letters A–Z and a–z, digits, '-' and '_'")
        }
        (Platform::OpenPai, _) => (
            255,
            |c| c.is_ascii_alphanumeric() || "-._~".contains(c),
            "letters A–Z and a–z, digits, '-', '.', '_' and '~'",
        ),
        (Platform::Paddle, Profile::Old) => (64, |c| c != '_', "no '_'"),
        _ => return None,
    };
    let ends = if contract.platform == Platform::SageMaker { Ends::LetterOrDigit } else { Ends::Any };
    Some(Rule { most, may, told, ends })
}

impl Rule {
    fn has_ends(&self, name: &str) -> bool {
        self.ends == Ends::Any || !(name.starts_with('-') || name.ends_with('-'))
    }

    fn allows(&self, name: &str) -> bool {
        name.chars().count() <= self.most && name.chars().all(self.may) && self.has_ends(name)
    }

    /// The name if it is allowed. Else one with `-` where it has what it may not, and without the end that would be too much: others may
    /// come to the same, so it ends with what is of this name alone.
    fn apply(&self, name: &str) -> String {
        if self.allows(name) {
            return name.to_owned();
        }
        let own = format!("-{}", hash(name));
        let fitting = name.chars().map(|c| if (self.may)(c) { c } else { '-' });
        let fitting: String = fitting.take(self.most - own.len()).collect();
        fitting.trim_matches('-').to_owned() + &own
    }
}

/// Of a name alone, so that what ends with it is of that name.
pub(crate) fn hash(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().take(3).map(|byte| format!("{byte:02x}")).collect()
}

/// What keeps a job of this name from running under its contract. Of a sweep it is the name of the file that counts: what stands
/// behind it is ours, and tasks are told [`job_name`].
pub(super) fn problem(name: &str, spec: &JobSpec) -> Option<String> {
    let (contract, rule) = (spec.contract, rule(spec.contract)?);
    let count = name.chars().count();
    if count > rule.most {
        let most = rule.most;
        return Some(format!(
            "under contract {contract} a job's name has {most} characters at most, \"{name}\" has {count}"
        ));
    }
    if !rule.has_ends(name) {
        return Some(format!(
            "under contract {contract} a job's name begins and ends with a letter or a digit, unlike \"{name}\""
        ));
    }
    (!name.chars().all(rule.may)).then(|| {
        format!("under contract {contract} a job's name may hold {}: rename the file of \"{name}\"", rule.told)
    })
}

/// The name that tasks are told: the job's own, which a job of a sweep has made to fit the platform's rule.
pub(super) fn job_name(task: &Task<'_>) -> String {
    let name = task.identity.key.job.as_str();
    rule(task.spec.contract).map_or_else(|| name.to_owned(), |rule| rule.apply(name))
}
