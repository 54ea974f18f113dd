//! Which tokens of the API are good after a restore. A backup knows nothing of those that were revoked since: they would come back.

use std::io;
use std::path::Path;

use super::left::entries;
use super::swap::Drafts;
use super::{BackupError, failed};
use crate::config::Paths;
use crate::sys::file::{copy_tree, remove_tree};
use crate::sys::given_up::GivenUp;

/// Whose tokens are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Those that are on this machine, as they are now.
    Here,
    /// Those of the backup.
    Backup,
}

/// What became of the tokens of a backup, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokensTold {
    /// Good again, perhaps since before they were revoked.
    pub restored: Vec<String>,
    /// Not good.
    pub left_out: Vec<String>,
}

impl Tokens {
    /// Puts those into the drafts that are to be good.
    pub(super) fn choose(self, paths: &Paths, drafts: &Drafts) -> Result<TokensTold, BackupError> {
        let (draft, here) = (drafts.tokens(), paths.tokens());
        let of_backup = names_in(&draft).map_err(failed("read", &draft))?;
        if self == Self::Backup {
            return Ok(TokensTold { restored: of_backup, left_out: Vec::new() });
        }
        let own = names_in(&here).map_err(failed("read", &here))?;
        remove_tree(&draft).map_err(failed("remove", &draft))?;
        if here.is_dir() {
            copy_tree(&here, &draft, &GivenUp::default()).map_err(failed("copy", &here))?;
        }
        let left_out = of_backup.into_iter().filter(|name| !own.contains(name)).collect();
        Ok(TokensTold { restored: Vec::new(), left_out })
    }
}

/// Each is a file of its name.
fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let name = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".toml").map(str::to_owned);
    let mut names: Vec<String> = entries(directory)?.iter().filter_map(|path| name(path)).collect();
    names.sort_unstable();
    Ok(names)
}
