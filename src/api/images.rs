//! Images over HTTP: list, show, pull and import with progress, name, remove, prune.
//!
//! What takes long answers with one line of JSON for each step, and a last one that says how it ended. It goes on when
//! whoever asked goes away: others may wait for the same layers.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body as _, Bytes, Incoming};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::flow::Flow;
use super::rights::{may_submit, submits};
use super::server::{Body, blocking, is_asked_first};
use super::wire::{ImageStep, ImageView, ImportQuery, NameQuery};
use crate::config::{JobFiles, Paths};
use crate::ids::{Timestamp, WorkspaceName};
use crate::images::{
    Format, Found, ImageError, ImageRecord, Images, InUse, Keep, Kind, Local, NameRecord, Progress, Pruned, Wanted,
    Workspaces,
};
use crate::reconcile::Caller;
use crate::spec::Image;

/// How often the progress of a pull is told.
const TOLD_EVERY: Duration = Duration::from_millis(200);
/// How soon removing unused images is tried again when the store was in use.
const AGAIN_WHEN_BUSY: Duration = Duration::from_secs(60);

/// Pulls and imports that go on at once; more wait for their turn.
const BROUGHT_AT_ONCE: usize = 8;

/// Tells what of the store is in use; blocks.
pub type AskInUse = Arc<dyn Fn() -> io::Result<InUse> + Send + Sync>;
/// Removes what has not been used for so long.
pub type PruneMore = Arc<dyn Fn(Duration) -> io::Result<()> + Send + Sync>;

/// Where it comes to lie, and how many bytes of it.
struct Space {
    becomes: Received,
    most: u64,
}

/// The store, and what of it is in use.
#[derive(Clone)]
pub struct ImageService {
    images: Arc<Images>,
    in_use: AskInUse,
    /// Removes what else was made for jobs and has not been used for so long.
    prune_more: PruneMore,
    jobs_d: PathBuf,
    turns: Arc<Semaphore>,
}

impl std::fmt::Debug for ImageService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImageService")
    }
}

impl From<ImageError> for ApiError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Unknown { .. } => ApiError::NotFound(error.to_string()),
            ImageError::NotForAll { .. } => ApiError::Forbidden(error.to_string()),
            other => ApiError::Conflict(other.to_string()),
        }
    }
}

/// The rights to job files, as the store of images asks for them.
#[derive(Debug)]
pub struct ByJobFiles(pub Paths);

impl Workspaces for ByJobFiles {
    fn may_submit(&self, workspace: &WorkspaceName, uid: u32) -> io::Result<bool> {
        submits(&self.0.jobs_d(), workspace, uid)
    }

    fn is_there(&self, workspace: &WorkspaceName) -> bool {
        self.0.has_workspace(workspace)
    }

    fn is_sticky(&self, workspace: &str) -> bool {
        const STICKY: u32 = 0o1000;
        let found = workspace.parse().map(|workspace| JobFiles::of(&self.0.jobs_d(), &workspace));
        // Where it has gone, nobody has a say but root.
        match found {
            Ok(Ok(JobFiles::Open(found))) => found.mode() & STICKY != 0,
            _ => true,
        }
    }
}

/// An archive that has come, and what it is to become.
struct Received {
    kind: Kind,
    workspace: WorkspaceName,
    format: Format,
    file: std::fs::File,
}

impl ImageService {
    pub fn new(images: Arc<Images>, in_use: AskInUse, prune_more: PruneMore, jobs_d: PathBuf) -> Self {
        Self { images, in_use, prune_more, jobs_d, turns: Arc::new(Semaphore::new(BROUGHT_AT_ONCE)) }
    }

    /// Who may bring images into a workspace is who may drop job files there; presets are the administrator's.
    fn check(&self, caller: &Caller, kind: &Kind) -> Result<(), ApiError> {
        let reaches = match kind {
            Kind::Mine { workspace } => caller.reaches(workspace),
            // What all workspaces see is beyond who may use some of them.
            Kind::Public | Kind::Preset => caller.within.is_none(),
        };
        let may = reaches
            && (caller.uid == 0
                || match kind {
                    Kind::Mine { workspace } => may_submit(&self.jobs_d, workspace, caller.uid),
                    Kind::Public => may_submit(&self.jobs_d, WorkspaceName::default_workspace().as_str(), caller.uid),
                    Kind::Preset => false,
                });
        let whose = match kind {
            Kind::Mine { workspace } => {
                format!("the images of workspace {workspace}: you may not write job files there")
            }
            Kind::Public => "public images: you may not write job files in workspace default".to_owned(),
            Kind::Preset => "preset images: they are the administrator's".to_owned(),
        };
        if may { Ok(()) } else { Err(ApiError::Forbidden(format!("you may not change {whose}"))) }
    }

    fn workspace(query: &NameQuery) -> Result<WorkspaceName, ApiError> {
        let Some(workspace) = &query.workspace else { return Ok(WorkspaceName::default_workspace()) };
        workspace.parse().map_err(|error| ApiError::Bad(format!("{workspace}: {error}")))
    }

    fn kind(query: &NameQuery) -> Result<Kind, ApiError> {
        let workspace = Self::workspace(query)?;
        match query.kind.as_deref() {
            None | Some("mine") => Ok(Kind::Mine { workspace: workspace.to_string() }),
            Some("public") => Ok(Kind::Public),
            Some("preset") => Ok(Kind::Preset),
            Some(other) => Err(ApiError::Bad(format!("there are no {other:?} images, only mine, public and preset"))),
        }
    }

    /// Other workspaces' images are not there for somebody who may not submit to them.
    fn sees(&self, caller: &Caller, kind: &Kind) -> bool {
        !kind.is_mine() || self.check(caller, kind).is_ok()
    }

    fn find(&self, caller: &Caller, query: &NameQuery) -> Result<NameRecord, ApiError> {
        // As it was given, which is how files of images are called, or in full.
        let found = match self.find_exactly(caller, query, &query.name)? {
            Found::Nothing => self.find_exactly(caller, query, &self.images.canonical(&query.name)?)?,
            found => found,
        };
        match found {
            Found::Here(found) if self.sees(caller, &found.kind) => Ok(found),
            // Named by who sees it: what is done to it is judged by who has given it.
            Found::PassedOver(found) if found.kind.is_mine() => match self.sees(caller, &found.kind) {
                true => Ok(found),
                false => Err(unknown(&query.name).into()),
            },
            Found::PassedOver(found) => {
                Err(ApiError::NotFound(format!("{}; kind=public (`--public`) names it", found.passed_over())))
            }
            Found::Here(_) | Found::Nothing => Err(unknown(&query.name).into()),
        }
    }

    fn find_exactly(&self, caller: &Caller, query: &NameQuery, name: &str) -> Result<Found, ApiError> {
        Ok(match query.kind {
            Some(_) => self.images.find_of_kind(&Self::kind(query)?, name)?.map_or(Found::Nothing, Found::Here),
            None => self.images.find(Self::workspace(query)?.as_str(), name, caller.uid)?,
        })
    }

    pub(super) async fn list(&self, caller: Caller, query: NameQuery) -> Result<Vec<ImageView>, ApiError> {
        let service = self.clone();
        blocking(move || {
            let list = service.images.list(query.workspace.as_deref())?;
            let seen = list.iter().filter(|(name, ..)| service.sees(&caller, &name.kind));
            Ok(seen.map(|(name, image, used)| ImageView::of(name, image, *used)).collect())
        })
        .await
    }

    pub(super) async fn show(&self, caller: Caller, query: NameQuery) -> Result<(ImageView, ImageRecord), ApiError> {
        let service = self.clone();
        blocking(move || {
            let found = service.find(&caller, &query)?;
            let listed = service.images.list(None)?.into_iter().find(|(name, ..)| *name == found);
            let (name, image, used) = listed.ok_or_else(|| unknown(&found.name))?;
            Ok((ImageView::of(&name, &image, used), image))
        })
        .await
    }

    pub(super) async fn tag(&self, caller: Caller, query: NameQuery, new: String) -> Result<String, ApiError> {
        let kind = Self::kind(&query)?;
        self.check(&caller, &kind)?;
        let service = self.clone();
        blocking(move || {
            service.images.check_name(&kind, &new, caller.uid)?;
            // Between the look and the name nothing is pruned.
            let _held = service.images.hold();
            // The kind is that of the new name.
            let near = service.find(&caller, &NameQuery { kind: None, ..query.clone() });
            // Or of one that is given again.
            let found = near.or_else(|refused| service.find(&caller, &query).map_err(|_| refused))?;
            let name = service.images.canonical(&new)?;
            service.images.name(&NameRecord {
                name: name.clone(),
                kind,
                digest: found.digest,
                uid: caller.uid,
                pulled: false,
                at: crate::sys::now(),
            })?;
            Ok(format!("{} is now also {name}", found.name))
        })
        .await
    }

    pub(super) async fn remove(&self, caller: Caller, query: NameQuery) -> Result<String, ApiError> {
        let service = self.clone();
        blocking(move || {
            let found = service.find(&caller, &query)?;
            service.check(&caller, &found.kind)?;
            service.images.untag(&found, caller.uid)?;
            Ok(format!("removed the name {}; `trainyard image prune` frees what nobody needs any more", found.name))
        })
        .await
    }

    pub(super) async fn prune(&self, caller: Caller, unused: Option<Duration>) -> Result<Pruned, ApiError> {
        if caller.uid != 0 {
            return Err(ApiError::NotRoot);
        }
        let service = self.clone();
        blocking(move || Ok(service.prune_now(Keep { used_within: unused, bytes: None })?)).await
    }

    fn prune_now(&self, keep: Keep) -> Result<Pruned, ImageError> {
        if let Some(Err(error)) = keep.used_within.map(|unused| (self.prune_more)(unused)) {
            tracing::warn!(%error, "unused requirements cannot be removed");
        }
        self.images.prune(|| (self.in_use)(), keep, crate::sys::now())
    }

    /// Removes, now and then and when the store has grown too large, what jobs have brought and nobody uses any more.
    pub async fn prune_for_ever(self, every: Duration) {
        let keep = self.images.keep();
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.images.grown(), if keep.bytes.is_some() => {}
            }
            let service = self.clone();
            let pruned = blocking(move || Ok(service.prune_now(keep))).await;
            wait = match pruned {
                Ok(Err(ImageError::Busy)) => every.min(AGAIN_WHEN_BUSY),
                _ => every,
            };
            match pruned {
                Ok(Ok(pruned)) if pruned != Pruned::default() => {
                    tracing::info!(names = ?pruned.names, layers = pruned.layers, bytes = pruned.bytes, "removed unused images");
                }
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(error @ ImageError::Busy)) => tracing::debug!(%error, "images are not pruned now"),
                Ok(Err(error)) => tracing::warn!(%error, "unused images cannot be removed"),
            }
        }
    }

    /// Gets a named image from its registry, also if it is there already.
    pub(super) fn pull(&self, caller: &Caller, query: NameQuery) -> Result<Body, ApiError> {
        let (kind, workspace) = (Self::kind(&query)?, Self::workspace(&query)?);
        self.check(caller, &kind)?;
        // It is pulled with the workspace's login.
        self.check(caller, &Kind::Mine { workspace: workspace.to_string() })?;
        let image = Image::parse(&query.name).map_err(ApiError::Bad)?;
        let Image::Named(name) = image else {
            return Err(ApiError::Bad(format!(
                "{image} is not in a registry; bring it in with `trainyard image import`"
            )));
        };
        let (images, uid) = (self.images.clone(), caller.uid);
        images.check_name(&kind, &name, uid)?;
        Ok(self.follow(move |progress| {
            images.pull(
                &Wanted { name: &name, kind: &kind, uid, workspace: workspace.as_str(), for_run: false },
                progress,
            )
        }))
    }

    /// Receives an archive and takes it apart.
    pub(super) async fn import(
        &self,
        caller: Caller,
        query: ImportQuery,
        request: Request<Incoming>,
    ) -> Result<Body, ApiError> {
        let is_asked_first = is_asked_first(&request);
        let mut body = request.into_body();
        let received = match self.space_for(&caller, &query, body.size_hint().lower()) {
            Err(error) if is_asked_first => return Err(error),
            Err(error) => Err(error),
            Ok(space) => self.receive(space, &mut body).await,
        };
        if received.is_err() {
            // Whoever still sends when the connection is closed hears that it is broken, and not why.
            while let Some(Ok(_)) = body.frame().await {}
        }
        let Received { kind, workspace, format, file } = received?;
        let images = self.images.clone();
        Ok(self.follow(move |progress| {
            let (path, tag) = (Path::new("the archive"), query.tag.as_deref());
            let imported =
                images.import_file(file, &Local { path, tag, format, workspace: workspace.as_str() }, progress)?;
            let named = [query.name.name].into_iter().filter(|name| !name.is_empty()).chain(imported.names).next();
            let name = named.ok_or(ImageError::NoName)?;
            let record = NameRecord {
                name: images.canonical(&name)?,
                kind,
                digest: imported.record.digest,
                uid: caller.uid,
                pulled: false,
                at: crate::sys::now(),
            };
            images.name(&record)?;
            Ok(record)
        }))
    }

    /// For an archive that the caller may bring, and which is said to have so many bytes.
    fn space_for(&self, caller: &Caller, query: &ImportQuery, bytes: u64) -> Result<Space, ApiError> {
        let (kind, workspace) = (Self::kind(&query.name)?, Self::workspace(&query.name)?);
        self.check(caller, &kind)?;
        self.check(caller, &Kind::Mine { workspace: workspace.to_string() })?;
        if !query.name.name.is_empty() {
            self.images.check_name(&kind, &query.name.name, caller.uid)?;
        }
        let format = match query.format.as_deref() {
            None => Format::Archive,
            Some("oci-archive") => Format::Oci,
            Some("docker-archive") => Format::Docker,
            Some(other) => return Err(ApiError::Bad(format!("format = {other}: there is no such format"))),
        };
        let (file, most) = self.images.spool()?;
        match bytes > most {
            true => Err(self.images.no_room(bytes).into()),
            false => Ok(Space { becomes: Received { kind, workspace, format, file }, most }),
        }
    }

    async fn receive(&self, space: Space, body: &mut Incoming) -> Result<Received, ApiError> {
        let Space { mut becomes, most } = space;
        let mut received = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::Bad(format!("the archive did not arrive whole: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            received += data.len() as u64;
            let written = match received > most {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => tokio::task::block_in_place(|| becomes.file.write_all(&data)),
            };
            written.map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull => self.images.no_room(received).into(),
                _ => ApiError::Conflict(format!("cannot keep the archive: {error}")),
            })?;
        }
        match received {
            0 => Err(ApiError::Bad("there is no archive in the request: send the file as its body".to_owned())),
            _ => Ok(becomes),
        }
    }

    /// Runs `work` on a thread of its own and tells its progress, line by line.
    fn follow(&self, work: impl FnOnce(&Arc<Progress>) -> Result<NameRecord, ImageError> + Send + 'static) -> Body {
        let (flow, body) = Flow::new(4);
        let (progress, turns) = (Arc::new(Progress::default()), self.turns.clone());
        let seen = progress.clone();
        let done = async move {
            let _turn = turns.acquire_owned().await.map_err(|_| "the daemon is ending".to_owned())?;
            let (sender, receiver) = tokio::sync::oneshot::channel();
            // Not one of the threads that stops and looks are waiting for: it may take hours.
            std::thread::Builder::new()
                .name("bring-image".to_owned())
                .spawn(move || drop(sender.send(work(&progress))))
                .map_err(|error| format!("cannot start a thread: {error}"))?;
            let ended = receiver.await.map_err(|_| "it broke off by an error of Trainyard's own; see the journal")?;
            ended.map_err(|error| error.to_string())
        };
        tokio::spawn(tell(flow, seen, tokio::spawn(done)));
        body
    }
}

type Ended = Result<NameRecord, String>;

/// One line for each step, and one for the end.
async fn tell(mut flow: Flow, seen: Arc<Progress>, mut done: tokio::task::JoinHandle<Ended>) {
    let mut clock = tokio::time::interval(TOLD_EVERY);
    let ended = loop {
        tokio::select! {
            ended = &mut done => break ended,
            _ = clock.tick() => {
                if flow.send(line(&step(&seen))).await.is_err() {
                    return;
                }
            }
        }
    };
    let last = match ended.unwrap_or_else(|_| Err("the daemon is ending".to_owned())) {
        Ok(record) => ImageStep { name: Some(record.name), digest: Some(record.digest.to_string()), ..step(&seen) },
        Err(error) => ImageStep { error: Some(error), ..step(&seen) },
    };
    // Whoever asked may have gone.
    if flow.send(line(&last)).await.is_ok() {
        flow.end();
    }
}

fn unknown(name: &str) -> ImageError {
    ImageError::Unknown { name: name.to_owned() }
}

fn step(progress: &Progress) -> ImageStep {
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    ImageStep {
        layers: read(&progress.layers),
        layers_done: read(&progress.layers_done),
        bytes: read(&progress.bytes),
        bytes_done: read(&progress.bytes_done),
        ..ImageStep::default()
    }
}

fn line<T: Serialize>(value: &T) -> Bytes {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    Bytes::from(bytes)
}

impl ImageView {
    fn of(name: &NameRecord, image: &ImageRecord, used: Timestamp) -> Self {
        Self {
            name: name.name.clone(),
            kind: match &name.kind {
                Kind::Mine { .. } => "mine".to_owned(),
                Kind::Public => "public".to_owned(),
                Kind::Preset => "preset".to_owned(),
            },
            workspace: match &name.kind {
                Kind::Mine { workspace } => Some(workspace.clone()),
                Kind::Public | Kind::Preset => None,
            },
            digest: image.digest.to_string(),
            size: image.size,
            layers: image.layers.len(),
            brought: name.at.to_string(),
            used: used.to_string(),
        }
    }
}
