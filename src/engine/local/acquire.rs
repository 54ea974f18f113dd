//! Gets the images of a run: from the store, from a file of the machine, or from a registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::workdirs::{groups_of, image_of, keep_image};
use crate::config::Paths;
use crate::engine::{EngineError, Prepare, Told};
use crate::images::{Format, Found, ImageError, Images, Kind, Local, NameRecord, Progress, Rights, Wanted};
use crate::spec::Image;
use crate::sys::process::name_of;

const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Gets them and keeps which ones they are, so that every attempt of the run has the same.
pub(super) fn images(
    paths: &Paths,
    images: &Images,
    run: &Prepare,
    tell: &(dyn Fn(Told) + Sync),
) -> Result<(), EngineError> {
    run.spec.images().into_iter().try_for_each(|image| one(paths, images, &Errand { run, image, tell }))
}

/// What is to be got.
#[derive(Clone, Copy)]
struct Errand<'a> {
    run: &'a Prepare,
    image: &'a Image,
    tell: &'a (dyn Fn(Told) + Sync),
}

fn one(paths: &Paths, images: &Images, errand: &Errand<'_>) -> Result<(), EngineError> {
    let Errand { run, image, .. } = *errand;
    if *image == Image::Host || image_of(paths, &run.identity, image).is_ok() {
        return Ok(());
    }
    // From the moment it is found until the run has it, it stays.
    let _held = images.hold();
    let progress = Arc::new(Progress::until(run.given_up.clone()));
    let found = telling(errand, &progress, || get(images, errand, &progress));
    let found = found.map_err(|error| EngineError(format!("image = \"{image}\": {error}")))?;
    keep_image(paths, &run.identity, image, &found.digest)
}

/// Tells once a second how far `work` has come.
fn telling<T>(errand: &Errand<'_>, progress: &Progress, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            loop {
                std::thread::park_timeout(TOLD_EVERY);
                if done.load(Ordering::Acquire) {
                    return;
                }
                (errand.tell)(Told::State(format!("gets its image {}: {progress}", errand.image)));
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

fn get(images: &Images, errand: &Errand<'_>, progress: &Arc<Progress>) -> Result<NameRecord, ImageError> {
    let Errand { run, image, tell } = *errand;
    let workspace = run.identity.key.workspace.as_str();
    let groups = groups_of(run.owner);
    let groups = groups.map_err(|source| ImageError::Store { what: "take the owner's rights", source })?;
    let rights = Rights { uid: run.owner.uid, gid: run.owner.gid, groups: &groups };
    let local = match image {
        Image::Named(name) => {
            match images.find(workspace, &images.canonical(name)?, run.owner.uid)? {
                Found::Here(found) => {
                    images.touch(&found);
                    if found.uid != 0 && found.uid != run.owner.uid && !found.pulled {
                        let whose = if found.kind == Kind::Public { "public one" } else { "workspace's" };
                        tell(Told::Noted(format!("image {image}: the {whose} that {} has given", name_of(found.uid))));
                    }
                    return Ok(found);
                }
                // No registry is asked for what is a workspace's by its name: it may have something else by the same.
                Found::PassedOver(found) if images.workspace_of(&found.name).is_some() => {
                    return Err(ImageError::PassedOver { why: found.passed_over() });
                }
                Found::PassedOver(found) => tell(Told::Noted(found.passed_over())),
                Found::Nothing => {}
            }
            let kind = Kind::Mine { workspace: workspace.to_owned() };
            return images.pull(&Wanted { name, workspace, kind: &kind, uid: run.owner.uid, for_run: true }, progress);
        }
        Image::Layout { path, tag } => Local { path, tag: tag.as_deref(), format: Format::Layout, workspace },
        Image::OciArchive { path, tag } => Local { path, tag: tag.as_deref(), format: Format::Oci, workspace },
        Image::DockerArchive { path, tag } => Local { path, tag: tag.as_deref(), format: Format::Docker, workspace },
        Image::Host => return Err(ImageError::Unknown { name: "host".to_owned() }),
    };
    let imported = images.import(&local, rights, progress)?;
    let record = NameRecord {
        name: image.to_string(),
        kind: Kind::Mine { workspace: workspace.to_owned() },
        digest: imported.record.digest,
        uid: run.owner.uid,
        pulled: false,
        at: crate::sys::now(),
    };
    images.note(&record)?;
    Ok(record)
}
