//! Which version of a dataset a job sees.

use std::io::{self, BufReader};
use std::path::Path;
use std::time::SystemTime;

use super::manifest::{State, state};
use super::{Chosen, DRAFT, LATEST, MANIFEST, MissingError, Named, OWN, Part, Place, Shelf, is_absent, manifest_of};
use crate::ids::AssetName;

impl Shelf {
    /// Which directory a job of user `owner` sees that names this dataset now: without a version the newest one.
    pub fn dataset(&self, named: Named<'_>, version: Option<&AssetName>, owner: u32) -> Result<Chosen, MissingError> {
        let part = Part::Datasets;
        let chosen = self.found(part, named, None)?.of(part, owner).ok_or_else(|| named.nothing(part))?;
        match (self.version_in(chosen.place, named, version), chosen.passed_over) {
            (Ok(place), passed_over) => Ok(Chosen { place, passed_over }),
            // It may be the one that has it.
            (Err(why), Some(passed_over)) => Err(MissingError::WherePassedOver { why: Box::new(why), passed_over }),
            (Err(why), None) => Err(why),
        }
    }

    /// Which version of the dataset at `place` it is.
    fn version_in(
        &self,
        mut place: Place,
        named: Named<'_>,
        version: Option<&AssetName>,
    ) -> Result<Place, MissingError> {
        let name = named.name;
        let io = |source| named.unseen(Part::Datasets, source);
        let dataset = place.path(Part::Datasets);
        // Asked first: a draft that has become a version meanwhile is found as that.
        let has_draft = self.is_directory(&dataset.join(DRAFT)).map_err(io)?;
        let asked = version.map(AssetName::as_str).filter(|version| *version != LATEST);
        place.version = match asked {
            Some(asked) => Some(asked.to_owned()),
            None => self.newest(&dataset).map_err(io)?,
        };
        let is_there = self.is_directory(&place.path(Part::Datasets)).map_err(io)?;
        match (version, &place.version) {
            (Some(version), chosen) if chosen.is_none() || !is_there => {
                let has = self.versions(&dataset).map_err(io)?;
                Err(MissingError::Version { part: Part::Datasets, name: name.clone(), version: version.clone(), has })
            }
            (Some(version), Some(chosen)) if chosen != DRAFT && !self.is_published(&dataset, chosen.as_ref()) => {
                Err(MissingError::Unpublished { name: name.clone(), version: version.clone() })
            }
            (None, None) if has_draft => Err(MissingError::OnlyDraft { name: name.clone() }),
            (None, None) if !self.is_plain(&dataset).map_err(io)? => Err(MissingError::Empty { name: name.clone() }),
            _ => Ok(place),
        }
    }

    /// The version that was frozen last: that may be one whose manifest is being made, when `latest` does not lead to it yet.
    pub fn newest(&self, dataset: &Path) -> io::Result<Option<String>> {
        let latest = match self.latest(dataset) {
            // Without its directory it is being removed.
            Some(latest) if !self.is_directory(&dataset.join(&latest))? => None,
            latest => latest,
        };
        let mut newest = None;
        for version in self.versions(dataset)? {
            // Those that are complete were there when `latest` was made to lead to the newest of them.
            let is_left =
                latest.as_ref().is_some_and(|latest| *latest != version) && self.is_complete(dataset, &version);
            // Without its directory it is about to get that name, or to be removed.
            if is_left || !self.is_directory(&dataset.join(&version))? {
                continue;
            }
            match self.frozen_at(dataset, &version) {
                Ok(at) => newest = newest.max(Some((at, version))),
                // It has been removed meanwhile.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(newest.map(|(_, version)| version).or(latest))
    }

    /// When a version was frozen: the time of its manifest, which keeps it through all that is written there.
    pub(super) fn frozen_at(&self, dataset: &Path, version: &str) -> io::Result<SystemTime> {
        self.file(&dataset.join(manifest_of(version.as_ref())))?.metadata()?.modified()
    }

    pub(super) fn is_complete(&self, dataset: &Path, version: &str) -> bool {
        let manifest = self.file(&dataset.join(manifest_of(version.as_ref())));
        matches!(manifest.and_then(|file| state(BufReader::new(file))), Ok(State::Complete))
    }

    /// Whether a directory without drafts and versions holds something of people's.
    fn is_plain(&self, dataset: &Path) -> io::Result<bool> {
        let mut directory = nix::dir::Dir::from_fd(self.directory(dataset)?.into())?;
        for entry in directory.iter() {
            let name = entry?.file_name().to_bytes().to_vec();
            let is_ours = name.starts_with(OWN.as_bytes()) || name.ends_with(MANIFEST.as_bytes());
            if !is_ours && ![&b"."[..], b"..", LATEST.as_bytes()].contains(&name.as_slice()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::manifest::pending;
    use crate::ids::Whose;
    use std::fs;

    fn seen(shelf: &Shelf, version: Option<&str>) -> Result<Option<String>, String> {
        let version = version.map(|version| version.parse().unwrap());
        let (workspace, name) = ("default".parse().unwrap(), "d".parse().unwrap());
        let named = Named { workspace: &workspace, whose: Whose::Nearest, name: &name };
        let chosen = shelf.dataset(named, version.as_ref(), 0);
        chosen.map(|chosen| chosen.place.version).map_err(|error| error.to_string())
    }

    fn frozen(dataset: &Path, version: &str, second: u64) {
        let manifest = fs::File::options().write(true).open(dataset.join(manifest_of(version.as_ref()))).unwrap();
        manifest.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second)).unwrap();
    }

    #[test]
    fn what_was_frozen_before_latest_and_is_not_complete_yet_is_not_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let dataset = dir.path().join("default/datasets/d");
        let shelf = Shelf::open(dir.path()).unwrap();
        let complete = pending(0, 0).replace("pending", "complete");
        for (version, second, manifest) in
            [("v1", 1, crate::assets::manifest::failing("a disk")), ("v2", 3, complete.clone()), ("w", 9, complete)]
        {
            fs::create_dir_all(dataset.join(version)).unwrap();
            fs::write(dataset.join(manifest_of(version.as_ref())), manifest).unwrap();
            frozen(&dataset, version, second);
        }
        std::os::unix::fs::symlink("v2", dataset.join("latest")).unwrap();
        // Files of it are replaced.
        fs::write(dataset.join("v1/x"), "").unwrap();
        assert_eq!(seen(&shelf, None), Ok(Some("v2".to_owned())));
        // One that came later, however its directory's times lie.
        fs::create_dir(dataset.join("v10")).unwrap();
        fs::write(dataset.join("v10.MANIFEST"), pending(0, 0)).unwrap();
        frozen(&dataset, "v10", 4);
        fs::write(dataset.join("v2/x"), "").unwrap();
        assert_eq!(seen(&shelf, None), Ok(Some("v10".to_owned())));
    }

    #[test]
    fn a_version_is_seen_from_its_first_moment_and_never_what_it_lies_in() {
        let dir = tempfile::tempdir().unwrap();
        let dataset = dir.path().join("default/datasets/d");
        fs::create_dir_all(&dataset).unwrap();
        let shelf = Shelf::open(dir.path()).unwrap();
        let some = |version: &str| Ok(Some(version.to_owned()));
        assert!(seen(&shelf, None).unwrap_err().contains("holds nothing"));
        fs::create_dir(dataset.join("draft")).unwrap();
        assert!(seen(&shelf, None).unwrap_err().contains("a draft and no version"));
        assert_eq!(seen(&shelf, Some("draft")), some("draft"));
        // What only looks like a version can be changed by anybody who may write there.
        fs::create_dir(dataset.join("v0")).unwrap();
        assert!(seen(&shelf, Some("v0")).unwrap_err().contains("`mv -T v0 draft` and then `mv -T draft v0` in d/"));
        fs::remove_dir(dataset.join("v0")).unwrap();
        // As `mv draft v1` goes on: first what freezes it, then the name; `latest` comes when all has been read.
        fs::write(dataset.join("v1.MANIFEST"), pending(0, 0)).unwrap();
        frozen(&dataset, "v1", 1);
        assert!(seen(&shelf, None).unwrap_err().contains("a draft and no version"));
        fs::rename(dataset.join("draft"), dataset.join("v1")).unwrap();
        assert_eq!((seen(&shelf, None), seen(&shelf, Some("latest"))), (some("v1"), some("v1")));
        let complete = fs::read_to_string(dataset.join("v1.MANIFEST")).unwrap().replace("pending", "complete");
        fs::write(dataset.join("v1.MANIFEST"), complete).unwrap();
        frozen(&dataset, "v1", 1);
        assert!(shelf.is_complete(Path::new("default/datasets/d"), "v1"));
        assert_eq!(seen(&shelf, None), some("v1"));
        std::os::unix::fs::symlink("v1", dataset.join("latest")).unwrap();
        assert_eq!(seen(&shelf, None), some("v1"));
        // The next one, by whichever name.
        fs::create_dir(dataset.join("draft")).unwrap();
        fs::write(dataset.join("a.MANIFEST"), pending(0, 0)).unwrap();
        frozen(&dataset, "a", 2);
        assert_eq!(seen(&shelf, None), some("v1"));
        fs::rename(dataset.join("draft"), dataset.join("a")).unwrap();
        assert_eq!((seen(&shelf, None), seen(&shelf, Some("v1"))), (some("a"), some("v1")));
        // When all are gone, or going, there is nothing.
        for name in ["v1", "a"] {
            fs::remove_dir(dataset.join(name)).unwrap();
        }
        assert!(seen(&shelf, None).unwrap_err().contains("holds nothing"));
        for name in ["v1.MANIFEST", "a.MANIFEST", "latest"] {
            fs::remove_file(dataset.join(name)).unwrap();
        }
        assert!(seen(&shelf, None).unwrap_err().contains("holds nothing"));
        assert!(seen(&shelf, Some("v1")).unwrap_err().contains("no version v1; it has none"));
        fs::write(dataset.join("x"), "").unwrap();
        assert_eq!(seen(&shelf, None), Ok(None));
    }
}
