//! What a token is good for.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::routes::Right;

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To see what its user may see.
    Read,
    /// To change jobs, images and datasets as its user may, and to run commands in tasks.
    Jobs,
    /// What root alone may do; for tokens of root.
    Admin,
    /// To read `/metrics`.
    Metrics,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Jobs, Self::Admin, Self::Metrics];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Jobs => "jobs",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    /// Who may change may see, and an administrator may do all.
    pub(super) fn allows(self, right: Right) -> bool {
        match right {
            Right::Anyone => true,
            Right::Local => false,
            Right::Read => self != Self::Metrics,
            Right::Jobs => matches!(self, Self::Jobs | Self::Admin),
            Right::Admin => self == Self::Admin,
            Right::Metrics => matches!(self, Self::Metrics | Self::Admin),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| format!("{text:?} is not one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
