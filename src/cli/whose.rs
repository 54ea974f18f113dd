//! Whose an image or a dataset is.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use super::complete::Named;
use super::{NotFound, WrongArgument};
use crate::api::wire::NameQuery;
use crate::assets::SHARED;
use crate::config::{JobFiles, Paths};
use crate::ids::WorkspaceName;

#[derive(Debug, Args)]
pub struct Whose {
    /// The workspace that it belongs to
    #[arg(short, long, default_value = "default", add = Named::Workspaces.completer())]
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

    /// Unless it is of all.
    pub(super) fn workspace(&self) -> Option<&str> {
        self.shared().is_none().then_some(self.workspace.as_str())
    }

    /// The name of its place in the mounted tree.
    pub(super) fn home(&self) -> &str {
        self.shared().unwrap_or(self.workspace.as_str())
    }

    /// Where jobs look for what has that name, in their order; one place alone where that was said.
    pub(super) fn homes(&self) -> impl Iterator<Item = &str> {
        let others = if self.shared().is_none() { &SHARED[..] } else { &[] };
        [self.home()].into_iter().chain(others.iter().copied())
    }

    pub(super) fn of(&self, name: &str) -> NameQuery {
        let kind = self.shared().map(str::to_owned);
        NameQuery { name: name.to_owned(), workspace: Some(self.workspace.to_string()), kind }
    }
}

/// Refuses a workspace that there is not, before anything is asked or written; what all share is none.
pub(super) fn known(root: &Path, home: &str) -> anyhow::Result<()> {
    if SHARED.contains(&home) {
        return Ok(());
    }
    let paths = Paths::new(root)?;
    let name: WorkspaceName =
        home.parse().map_err(|error| WrongArgument(format!("{home:?} cannot be a workspace: {error}")))?;
    match paths.has_workspace(&name) {
        true => Ok(()),
        false => {
            let why = JobFiles::why_none(&paths.jobs_d(), &name).map(|why| format!(" (its directory in jobs.d {why})"));
            let why = why.unwrap_or_default();
            Err(NotFound(format!("there is no workspace {name}{why}; `trainyard workspace` lists them")).into())
        }
    }
}

/// The same of one that need not be named.
pub(super) fn known_if_named(root: &Path, workspace: Option<&str>) -> anyhow::Result<()> {
    workspace.map_or(Ok(()), |workspace| known(root, workspace))
}

/// A part of a workspace, or of what all share, in the mounted tree.
pub(super) fn place(root: &Path, home: &str, part: &str) -> anyhow::Result<PathBuf> {
    known(root, home)?;
    let place = Paths::new(root)?.mount_point().join(home).join(part);
    match place.metadata() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
            "you may not enter workspace {home}: it is open to whom the owner, group and mode of its directory in jobs.d say; \
             `trainyard workspace` lists those that you may enter"
        ),
        looked => looked.with_context(|| format!("cannot look into {}: is the daemon running?", place.display()))?,
    };
    Ok(place)
}
