//! How much code the platform of a job's contract would take: a snapshot beyond that is taken back.

use std::fs;
use std::io;
use std::path::Path;

use super::failed;
use crate::contract::layout::{CodeLimit, code_limit};
use crate::engine::EngineError;
use crate::spec::Contract;
use crate::sys::file::remove_tree;

/// What a tree has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Size {
    bytes: u64,
    entries: u64,
    depth: u32,
}

/// Removes the snapshot `code` of what the job calls `name`, and says why, if its platform would not take it.
pub(super) fn refuse_large(code: &Path, name: &str, contract: Contract) -> Result<(), EngineError> {
    let Some(limit) = code_limit(contract) else { return Ok(()) };
    let mut size = Size::default();
    measure(code, 1, &mut size).map_err(failed("measure the code"))?;
    let Some(why) = too_much(size, limit) else { return Ok(()) };
    remove_tree(code).map_err(failed("take back the snapshot of the code"))?;
    Err(EngineError(format!(
        "code = {name:?}: it has {why} at most under contract {contract}; data belongs into datasets/"
    )))
}

fn too_much(size: Size, limit: CodeLimit) -> Option<String> {
    let CodeLimit { bytes, entries, depth } = limit;
    match size {
        _ if size.bytes > bytes => Some(format!("{} bytes, and may have {bytes}", size.bytes)),
        _ if size.entries > entries => Some(format!("{} files and directories, and may have {entries}", size.entries)),
        _ if size.depth > depth => Some(format!("{} directories in each other, and may have {depth}", size.depth)),
        _ => None,
    }
}

/// Adds up a snapshot, in which nobody else writes.
fn measure(directory: &Path, depth: u32, sum: &mut Size) -> io::Result<()> {
    sum.depth = sum.depth.max(depth);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum.entries += 1;
        if metadata.is_dir() {
            measure(&entry.path(), depth.saturating_add(1), sum)?;
        } else {
            sum.bytes = sum.bytes.saturating_add(metadata.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(fill: impl FnOnce(&Path), contract: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let code = dir.path().join("code");
        fs::create_dir(&code).unwrap();
        fill(&code);
        let refused = refuse_large(&code, "c", contract.parse().unwrap());
        assert_eq!(refused.is_err(), !code.exists(), "what is refused is taken back");
        refused.err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn of_bytes(bytes: u64) -> impl FnOnce(&Path) {
        // Without a block on the disk.
        move |code| fs::File::create(code.join("data")).unwrap().set_len(bytes).unwrap()
    }

    fn of_files(count: usize) -> impl FnOnce(&Path) {
        move |code| (0..count).for_each(|number| fs::write(code.join(number.to_string()), "").unwrap())
    }

    fn of_depth(depth: usize) -> impl FnOnce(&Path) {
        move |code| fs::create_dir_all(code.join(vec!["d"; depth - 1].join("/"))).unwrap()
    }

    #[test]
    fn code_that_its_platform_would_refuse_is_refused() {
        let limit = 200_000_000;
        assert_eq!(told(of_bytes(limit), "openpai"), "");
        let refused = told(of_bytes(limit + 1), "openpai");
        assert!(refused.contains("\"c\": it has 200000001 bytes, and may have 200000000 at most"), "{refused}");
        for contract in ["modelarts", "modelarts/1"] {
            assert_eq!(told(of_bytes(5 << 30), contract), "");
            assert!(told(of_bytes((5 << 30) + 1), contract).contains("5368709121 bytes"));
            assert_eq!(told(of_files(1000), contract), "");
            assert!(told(of_files(1001), contract).contains("1001 files and directories, and may have 1000"));
            assert_eq!(told(of_depth(32), contract), "");
            assert!(told(of_depth(33), contract).contains("33 directories in each other"));
        }
        for contract in ["openpai", "sagemaker", "native"] {
            assert_eq!(told(of_files(1001), contract), "", "{contract} has no such rule");
        }
    }
}
