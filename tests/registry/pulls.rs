//! What the store makes of several pulls at once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use trainyard::images::{Digest, ImageError, Images, Kind, Limits, NameRecord, Progress, Sources, Wanted};
use trainyard::sys::given_up::GivenUp;
use trainyard::sys::process::SealedProgram;

use crate::server::*;
use crate::support;
use crate::workspaces::AnybodyMay;

/// A layer of one file.
fn layer(name: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, &b""[..]).unwrap();
    builder.into_inner().unwrap()
}

/// An image of these layers under a tag.
fn put(site: &mut Site, tag: &str, layers: &[&[u8]]) {
    let blobs: Vec<(Digest, usize)> = layers.iter().map(|layer| (site.blob(layer), layer.len())).collect();
    let list = |one: &dyn Fn(&(Digest, usize)) -> String| blobs.iter().map(one).collect::<Vec<_>>().join(",");
    let config = format!(
        r#"{{"os":"linux","architecture":"{}","rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        architecture(),
        list(&|(digest, _)| format!("\"{digest}\""))
    );
    let digest = site.blob(config.as_bytes());
    let layers = list(&|(digest, size)| format!(r#"{{"mediaType":"{LAYER}","digest":"{digest}","size":{size}}}"#));
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{"mediaType":"{CONFIG}","digest":"{digest}","size":{}}},"layers":[{layers}]}}"#,
        config.len()
    );
    site.manifest(tag, MANIFEST, &manifest);
}

/// By what it asks, its place, and a store that pulls from the server.
fn store(server: &Server) -> (tokio::runtime::Runtime, tempfile::TempDir, Images) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        layer_bytes: 1 << 20,
        layer_entries: 1000,
        unused_after: Duration::from_secs(3600),
        store_bytes: None,
    };
    let sources = Sources {
        default_registry: "docker.io".to_owned(),
        plain_http: vec![server.host()],
        secrets: dir.path().join("secrets"),
        program: Arc::new(SealedProgram::of(Path::new(support::BINARY)).unwrap()),
        runtime: runtime.handle().clone(),
    };
    let images = Images::open(&dir.path().join("images"), limits, sources, Arc::new(AnybodyMay)).unwrap();
    (runtime, dir, images)
}

/// The end of the address of a layer.
fn end_of(layer: &[u8]) -> String {
    format!("blobs/{}", Digest::of(layer))
}

/// Gets an image for a workspace.
fn pull(images: &Images, server: &Server, name: &str, workspace: &str) -> Result<NameRecord, ImageError> {
    let (name, kind) = (format!("{}/{name}", server.host()), Kind::Mine { workspace: workspace.to_owned() });
    images.pull(&Wanted { name: &name, workspace, kind: &kind, uid: 0, for_run: false }, &Arc::default())
}

/// What has come to pass, and who waits for it.
#[derive(Default)]
struct Signs {
    seen: Mutex<BTreeSet<&'static str>>,
    grown: Condvar,
}

impl Signs {
    fn give(&self, sign: &'static str) {
        self.seen.lock().unwrap().insert(sign);
        self.grown.notify_all();
    }

    fn wait_for(&self, sign: &str) {
        let seen = self.seen.lock().unwrap();
        drop(self.grown.wait_timeout_while(seen, support::PATIENCE, |seen| !seen.contains(sign)));
    }
}

#[test]
fn a_layer_that_two_images_want_at_once_is_fetched_once_whatever_workspaces_they_are_for() {
    let test = "a_layer_that_two_images_want_at_once_is_fetched_once_whatever_workspaces_they_are_for";
    if !support::can_run(test) {
        return;
    }
    let (common, own) = (layer("common"), ["1", "2", "3"].map(layer));
    let mut site = Site::default();
    put(&mut site, "first", &[&common]);
    // As many as are fetched at once come before the one in common.
    put(&mut site, "second", &[&own[0], &own[1], &own[2], &common]);
    let (end, of_second) = (end_of(&common), own.each_ref().map(|layer| end_of(layer)));
    let signs = Arc::new(Signs::default());
    let told = signs.clone();
    // The first image is whole when the second one is wanted, and the second one gets to that layer when the first one is done.
    let server = Server::start(move |request| {
        let (reply, signs) = (site.reply(request), told.clone());
        if of_second.iter().any(|end| request.path.ends_with(end)) {
            signs.give("the second is wanted");
            return reply.after(move || signs.wait_for("the first is done"));
        }
        match request.path.ends_with(&end) {
            true => reply.after(move || signs.wait_for("the second is wanted")),
            false => reply,
        }
    });
    let (_runtime, dir, images) = store(&server);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pull(&images, &server, "team:first", "lab").unwrap();
            signs.give("the first is done");
        });
        scope.spawn(|| pull(&images, &server, "team:second", "vision").unwrap());
    });
    let times = server.seen().iter().filter(|request| request.path.ends_with(&end_of(&common))).count();
    assert_eq!(times, 1, "{:#?}", server.seen());
    assert_eq!(std::fs::read_dir(dir.path().join("images/layers")).unwrap().count(), 4);
    assert_eq!(std::fs::read_dir(dir.path().join("images/downloads")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn what_was_downloaded_from_one_repository_serves_no_other() {
    let test = "what_was_downloaded_from_one_repository_serves_no_other";
    if !support::can_run(test) {
        return;
    }
    let (secret, own) = (layer("secret"), ["1", "2", "3"].map(layer));
    let mut site = Site::default();
    put(&mut site, "private", &[&secret]);
    // Names a layer that its repository does not have, behind as many others as are fetched at once.
    put(&mut site, "forged", &[&own[0], &own[1], &own[2], &secret]);
    let (slow, lacking) = (own.each_ref().map(|layer| end_of(layer)), format!("/v2/thief/{}", end_of(&secret)));
    let (signs, refused) = (Arc::new(Signs::default()), lacking.clone());
    let told = signs.clone();
    // The private image comes and is there while the forged one has begun and not yet got to that layer.
    let server = Server::start(move |request| {
        let (reply, signs) = (site.reply(request), told.clone());
        if slow.iter().any(|end| request.path.ends_with(end)) {
            signs.give("the forged one has begun");
            return reply.after(move || signs.wait_for("the private one is there"));
        }
        if request.path == refused { Reply::status(404) } else { reply }
    });
    let (_runtime, _dir, images) = store(&server);
    let stolen = std::thread::scope(|scope| {
        let thief = scope.spawn(|| pull(&images, &server, "thief:forged", "vision"));
        signs.wait_for("the forged one has begun");
        let private = pull(&images, &server, "team:private", "lab");
        signs.give("the private one is there");
        private.unwrap();
        thief.join().unwrap()
    });
    let error = stolen.expect_err("nobody gets a layer by naming it").to_string();
    assert!(error.contains(Digest::of(&secret).short()), "{error}");
    assert!(
        server.seen().iter().any(|request| request.path == lacking),
        "the bytes are asked for: {:#?}",
        server.seen()
    );
    pull(&images, &server, "team:private", "vision").expect("whoever may read it there has it");
}

#[test]
fn a_pull_that_is_given_up_ends_at_once_whatever_it_waits_for() {
    if !support::can_run("a_pull_that_is_given_up_ends_at_once_whatever_it_waits_for") {
        return;
    }
    let wanted = layer("large");
    for (hangs, told) in [("manifests".to_owned(), "the manifest"), (end_of(&wanted), "a layer")] {
        let mut site = Site::default();
        put(&mut site, "one", &[&wanted]);
        let signs = Arc::new(Signs::default());
        let asked = signs.clone();
        let server = Server::start(move |request| {
            let reply = site.reply(request);
            match request.path.contains(&hangs) {
                true => {
                    asked.give("asked");
                    reply.cut(5).hang()
                }
                false => reply,
            }
        });
        let (_runtime, _dir, images) = store(&server);
        let given_up = GivenUp::default();
        let progress = Arc::new(Progress::until(given_up.clone()));
        let begun = Instant::now();
        let pulled = std::thread::scope(|scope| {
            let pulling = scope.spawn(|| {
                let (name, kind) = (format!("{}/a:one", server.host()), Kind::Mine { workspace: "w".to_owned() });
                images.pull(&Wanted { name: &name, workspace: "w", kind: &kind, uid: 0, for_run: false }, &progress)
            });
            signs.wait_for("asked");
            given_up.set();
            pulling.join().unwrap()
        });
        assert!(matches!(pulled, Err(ImageError::Unwanted)), "{told}: {pulled:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{told}: a registry may be silent for longer");
    }
}
