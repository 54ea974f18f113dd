//! Taking away what nobody needs any more: by who uses it, by age, by size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::failed;
use super::names::NameRecord;
use super::{ImageError, Images, layers, top_name};
use crate::ids::Timestamp;
use crate::sys::file::{remove_if_there, remove_tree};

/// What stays whatever its names.
#[derive(Debug, Default)]
pub struct InUse {
    /// Directories of layers that tasks are made of which have not been cleaned up after.
    pub layers: BTreeSet<PathBuf>,
    /// Images that runs which are not over will start from.
    pub images: BTreeSet<Digest>,
}

/// Which images of workspaces (*mine*) stay; public ones and presets always do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keep {
    /// Those that somebody has used within so long.
    pub used_within: Option<Duration>,
    /// Those used last, as far as the store has no more than so many bytes of files.
    pub bytes: Option<u64>,
}

/// What [`Images::prune`] has removed.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    pub names: Vec<String>,
    pub layers: u64,
    /// Bytes of files.
    pub bytes: u64,
}

impl Images {
    /// Removes what nobody needs: names that `keep` does not, images without a name, layers without an image, downloads
    /// that nobody has gone on with. `in_use` is asked while nothing is brought in or started.
    pub fn prune(
        &self,
        in_use: impl FnOnce() -> io::Result<InUse>,
        keep: Keep,
        now: Timestamp,
    ) -> Result<Pruned, ImageError> {
        let (mut names, mut copies) = (Vec::new(), Vec::new());
        let needed = || {
            let in_use = in_use().map_err(failed("look at the tasks"))?;
            names = self.drop_names(keep, &in_use.images, now)?;
            let mut kept: BTreeSet<Digest> = self.all_names()?.into_iter().map(|(name, _)| name.digest).collect();
            let waited_for = self.layer_names(&in_use.images)?;
            kept.extend(in_use.images);
            self.drop_downloads(now).map_err(failed("remove old downloads"))?;
            let names = self.drop_manifests(&kept)?;
            // Those of images that runs have not started from yet stay as well.
            let copied = |copy: &Path| in_use.layers.contains(&copy.join("fs")) || waited_for.contains(&layer_of(copy));
            copies = self.shifted.bury(&copied).map_err(failed("remove copies of layers"))?;
            Ok(layers::Needed { names, paths: in_use.layers })
        };
        let pruned = self.layers.prune(needed);
        copies.iter().try_for_each(|copy| remove_tree(copy)).map_err(failed("remove copies of layers"))?;
        let (layers, bytes) = pruned?;
        Ok(Pruned { names, layers, bytes })
    }

    /// Under what names the layers of these images lie.
    fn layer_names(&self, images: &BTreeSet<Digest>) -> Result<BTreeSet<String>, ImageError> {
        let mut out = BTreeSet::new();
        for record in images.iter().filter_map(|digest| self.record(digest).transpose()) {
            let record = record?;
            out.insert(top_name(&record.digest));
            out.extend(record.layers.iter().map(|layer| layer.hex().to_owned()));
        }
        Ok(out)
    }

    fn all_names(&self) -> Result<Vec<(NameRecord, Timestamp)>, ImageError> {
        self.names().all().map_err(failed("read the names of images"))
    }

    /// Removes names that are not to be kept, and tells them.
    fn drop_names(&self, keep: Keep, in_use: &BTreeSet<Digest>, now: Timestamp) -> Result<Vec<String>, ImageError> {
        let (mut dropped, mut stay) = (Vec::new(), Vec::new());
        for (name, used) in self.all_names()? {
            let idle = Duration::from_millis(now.0.saturating_sub(used.0));
            match name.kind.is_mine() && keep.used_within.is_some_and(|within| idle >= within) {
                true => dropped.push(name),
                false => stay.push((used, name)),
            }
        }
        if let Some(most) = keep.bytes {
            dropped.extend(self.too_many(stay, in_use, most)?);
        }
        dropped
            .iter()
            .try_for_each(|name| self.names().remove(name))
            .map_err(failed("remove the name of the image"))?;
        Ok(dropped.into_iter().map(|name| name.name).collect())
    }

    /// Of these names, those whose going brings the store down to `most` bytes: what was not used longest first.
    fn too_many(
        &self,
        mut names: Vec<(Timestamp, NameRecord)>,
        in_use: &BTreeSet<Digest>,
        most: u64,
    ) -> Result<Vec<NameRecord>, ImageError> {
        names.sort_by_key(|(used, _)| *used);
        let mut images: BTreeMap<Digest, usize> = in_use.iter().map(|digest| (digest.clone(), 1)).collect();
        names.iter().for_each(|(_, name)| *images.entry(name.digest.clone()).or_default() += 1);
        let mut layers: BTreeMap<Digest, usize> = BTreeMap::new();
        for digest in images.keys() {
            for layer in self.record(digest)?.map(|record| record.layers).unwrap_or_default() {
                *layers.entry(layer).or_default() += 1;
            }
        }
        let mut total = self.layers.size(layers.keys())?;
        let mut out = Vec::new();
        for (_, name) in names {
            if total <= most {
                break;
            }
            let holders = images.get_mut(&name.digest).filter(|_| name.kind.is_mine());
            // Nothing comes free while somebody else has the image.
            let Some(holders) = holders.filter(|holders| **holders == 1) else { continue };
            *holders = 0;
            for layer in self.record(&name.digest)?.map(|record| record.layers).unwrap_or_default() {
                if let Some(count) = layers.get_mut(&layer) {
                    *count -= 1;
                    total -= if *count == 0 { self.layers.size([&layer])? } else { 0 };
                }
            }
            out.push(name);
        }
        Ok(out)
    }

    /// Removes images that have no name, and tells the layers of those that stay.
    fn drop_manifests(&self, kept: &BTreeSet<Digest>) -> Result<BTreeSet<String>, ImageError> {
        let mut needed = BTreeSet::new();
        for entry in fs::read_dir(self.root.join("manifests")).map_err(failed("read the images"))? {
            let path = entry.map_err(failed("read the images"))?.path();
            let digest = path.file_stem().and_then(|name| name.to_str()).and_then(Digest::from_hex);
            let Some(digest) = digest else { continue };
            match self.record(&digest)?.filter(|_| kept.contains(&digest)) {
                Some(record) => {
                    needed.insert(top_name(&record.digest));
                    needed.extend(record.layers.iter().map(|layer| layer.hex().to_owned()));
                }
                None => remove_if_there(&path).map_err(failed("remove an image's record"))?,
            }
        }
        Ok(needed)
    }
}

/// The name of the layer that a copy is of.
fn layer_of(copy: &Path) -> String {
    copy.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
