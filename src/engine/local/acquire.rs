//! Gets the image of a run: from the store, from a file of the machine, or from a registry.

use std::path::Path;
use std::sync::Arc;

use super::workdirs::{groups_of, keep_image};
use crate::config::Paths;
use crate::engine::{EngineError, Prepare};
use crate::images::{ImageError, Images, Kind, NameRecord, Progress, Rights, Wanted};
use crate::spec::Image;

/// Gets it and keeps which one it is, so that every attempt of the run has the same.
pub(super) fn image(paths: &Paths, images: &Images, run: &Prepare) -> Result<(), EngineError> {
    if run.spec.image == Image::Host {
        return Ok(());
    }
    let found = get(images, run).map_err(|error| EngineError(format!("image = \"{}\": {error}", run.spec.image)))?;
    keep_image(paths, &run.identity, &found.digest)
}

fn get(images: &Images, run: &Prepare) -> Result<NameRecord, ImageError> {
    let workspace = run.identity.key.workspace.as_str();
    let groups = groups_of(run.owner);
    let rights = Rights { uid: run.owner.uid, gid: run.owner.gid, groups: &groups };
    let progress = Arc::new(Progress::default());
    let imported = match &run.spec.image {
        Image::Named(name) => {
            if let Some(found) = images.find(workspace, &images.canonical(name)?)? {
                images.touch(&found);
                return Ok(found);
            }
            let kind = Kind::Mine { workspace: workspace.to_owned() };
            return images.pull(&Wanted { name, workspace, kind: &kind, uid: run.owner.uid }, &progress);
        }
        Image::Layout { path, tag } => images.import_layout(path, tag.as_deref(), rights, &progress)?,
        Image::OciArchive { path, tag } | Image::DockerArchive { path, tag } => {
            images.import_archive(Path::new(path), tag.as_deref(), rights, &progress)?
        }
        Image::Host => return Err(ImageError::Unknown { name: "host".to_owned() }),
    };
    let record = NameRecord {
        name: run.spec.image.to_string(),
        kind: Kind::Mine { workspace: workspace.to_owned() },
        digest: imported.record.digest,
        uid: run.owner.uid,
        at: crate::sys::now(),
    };
    images.tag(&record)?;
    Ok(record)
}
