//! Whose an image or a dataset is.

use clap::Args;

use crate::api::wire::NameQuery;
use crate::ids::WorkspaceName;

#[derive(Debug, Args)]
pub struct Whose {
    /// The workspace that it belongs to
    #[arg(short, long, default_value = "default")]
    workspace: WorkspaceName,
    /// Anybody's, seen by every workspace
    #[arg(long)]
    public: bool,
    /// The administrator's, seen by every workspace
    #[arg(long, conflicts_with = "public")]
    preset: bool,
}

impl Whose {
    fn shared(&self) -> Option<&'static str> {
        if self.preset { Some("preset") } else { self.public.then_some("public") }
    }

    /// The name of its place in the mounted tree.
    pub(super) fn home(&self) -> &str {
        self.shared().unwrap_or(self.workspace.as_str())
    }

    pub(super) fn of(&self, name: &str) -> NameQuery {
        let kind = self.shared().map(str::to_owned);
        NameQuery { name: name.to_owned(), workspace: Some(self.workspace.to_string()), kind }
    }
}
