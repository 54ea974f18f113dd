//! Gets the image of a run: from the store, from a file of the machine, or from a registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::workdirs::{groups_of, image_of, keep_image};
use crate::config::Paths;
use crate::engine::{EngineError, Prepare};
use crate::images::{Format, ImageError, Images, Kind, Local, NameRecord, Progress, Rights, Wanted};
use crate::spec::Image;

const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Gets it and keeps which one it is, so that every attempt of the run has the same.
pub(super) fn image(
    paths: &Paths,
    images: &Images,
    run: &Prepare,
    tell: &(dyn Fn(String) + Sync),
) -> Result<(), EngineError> {
    if run.spec.image == Image::Host || image_of(paths, &run.identity).is_ok() {
        return Ok(());
    }
    // From the moment it is found until the run has it, it stays.
    let _held = images.hold();
    let progress = Arc::new(Progress::default());
    let found = telling(run, &progress, tell, || get(images, run, &progress));
    let found = found.map_err(|error| EngineError(format!("image = \"{}\": {error}", run.spec.image)))?;
    keep_image(paths, &run.identity, &found.digest)
}

/// Tells once a second how far `work` has come.
fn telling<T>(run: &Prepare, progress: &Progress, tell: &(dyn Fn(String) + Sync), work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            loop {
                std::thread::park_timeout(TOLD_EVERY);
                if done.load(Ordering::Acquire) {
                    return;
                }
                tell(format!("gets its image {}: {progress}", run.spec.image));
            }
        });
        let _ends = Ends { done: &done, teller: teller.thread() };
        work()
    })
}

/// Ends the teller, also when the work has panicked.
struct Ends<'a> {
    done: &'a AtomicBool,
    teller: &'a std::thread::Thread,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        self.teller.unpark();
    }
}

fn get(images: &Images, run: &Prepare, progress: &Arc<Progress>) -> Result<NameRecord, ImageError> {
    let workspace = run.identity.key.workspace.as_str();
    let groups = groups_of(run.owner);
    let rights = Rights { uid: run.owner.uid, gid: run.owner.gid, groups: &groups };
    let local = match &run.spec.image {
        Image::Named(name) => {
            if let Some(found) = images.find(workspace, &images.canonical(name)?)? {
                images.touch(&found);
                return Ok(found);
            }
            let kind = Kind::Mine { workspace: workspace.to_owned() };
            return images.pull(&Wanted { name, workspace, kind: &kind, uid: run.owner.uid }, progress);
        }
        Image::Layout { path, tag } => Local { path, tag: tag.as_deref(), format: Format::Layout, workspace },
        Image::OciArchive { path, tag } => Local { path, tag: tag.as_deref(), format: Format::Oci, workspace },
        Image::DockerArchive { path, tag } => Local { path, tag: tag.as_deref(), format: Format::Docker, workspace },
        Image::Host => return Err(ImageError::Unknown { name: "host".to_owned() }),
    };
    let imported = images.import(&local, rights, progress)?;
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
