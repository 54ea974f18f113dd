//! The store as a whole: who has what, and what goes when.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::images::error::ImageError;

/// Users 1 and 2 may submit in `lab`, as long as nobody is taken out.
#[derive(Debug, Default)]
struct Lab {
    is_sticky: AtomicBool,
    is_unseen: AtomicBool,
    has_lost_user_1: AtomicBool,
}

impl Workspaces for Lab {
    fn may_submit(&self, workspace: &WorkspaceName, uid: u32) -> io::Result<bool> {
        if self.is_unseen.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let is_member = uid == 2 || uid == 1 && !self.has_lost_user_1.load(Ordering::Relaxed);
        Ok(workspace.as_str() == "lab" && is_member)
    }

    fn is_there(&self, workspace: &WorkspaceName) -> bool {
        workspace.as_str() == "lab"
    }

    fn is_sticky(&self, workspace: &str) -> bool {
        workspace == "lab" && self.is_sticky.load(Ordering::Relaxed)
    }
}

struct Fixture {
    dir: tempfile::TempDir,
    lab: Arc<Lab>,
    images: Images,
    _runtime: tokio::runtime::Runtime,
}

/// `None` where layers cannot be unpacked.
fn store() -> Option<Fixture> {
    if !nix::unistd::Uid::effective().is_root() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let limits = Limits {
        layer_bytes: 1 << 20,
        layer_entries: 1000,
        unused_after: Duration::from_secs(3600),
        store_bytes: None,
    };
    let sources = Sources {
        default_registry: "docker.io".to_owned(),
        plain_http: Vec::new(),
        secrets: dir.path().join("secrets"),
        program: Arc::new(SealedProgram::of_this_program().unwrap()),
        runtime: runtime.handle().clone(),
    };
    let lab = Arc::new(Lab::default());
    let images = Images::open(&dir.path().join("images"), limits, sources, lab.clone()).unwrap();
    Some(Fixture { dir, lab, images, _runtime: runtime })
}

fn layer(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

impl Fixture {
    /// A layout of one layer, which the configuration calls `diff_id`.
    fn layout(&self, name: &str, content: &[u8], diff_id: &Digest) -> PathBuf {
        let root = self.dir.path().join(name);
        let blobs = root.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let blob = |bytes: &[u8]| {
            let digest = Digest::of(bytes);
            fs::write(blobs.join(digest.hex()), bytes).unwrap();
            digest
        };
        let layer = blob(content);
        // The label tells images of one layer apart.
        let config = format!(
            r#"{{"os":"linux","config":{{"Labels":{{"is":"{name}"}}}},"rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#
        );
        let config = blob(config.as_bytes());
        let manifest = blob(
            format!(
                r#"{{"schemaVersion":2,"config":{{"mediaType":"c","digest":"{config}","size":1}},
                    "layers":[{{"mediaType":"l","digest":"{layer}","size":1}}]}}"#
            )
            .as_bytes(),
        );
        fs::write(
            root.join("index.json"),
            format!(r#"{{"manifests":[{{"mediaType":"m","digest":"{manifest}","size":1}}]}}"#),
        )
        .unwrap();
        root
    }

    fn import(&self, layout: &Path, workspace: &str) -> Result<Imported, ImageError> {
        self.import_until(&GivenUp::default(), layout, Format::Layout, workspace)
    }

    fn import_until(
        &self,
        given_up: &GivenUp,
        path: &Path,
        format: Format,
        workspace: &str,
    ) -> Result<Imported, ImageError> {
        let rights = Rights { uid: 0, gid: 0, groups: &[] };
        let local = Local { path, format, tag: None, workspace };
        self.images.import(&local, rights, &Arc::new(Progress::until(given_up.clone())))
    }

    /// An image of `workspace` with a file of `size` bytes, last used at second `used`.
    fn image(&self, name: &str, size: usize, used: u64) -> Digest {
        let content = layer(&[(name, &vec![7; size])]);
        let imported = self.import(&self.layout(name, &content, &Digest::of(&content)), "lab").unwrap();
        let kind = Kind::Mine { workspace: "lab".to_owned() };
        self.images.tag(&record(name, kind.clone(), &imported.record.digest, 1)).unwrap();
        let path = self.dir.path().join(format!("images/names/workspace-lab/{name}.json"));
        let time = std::time::UNIX_EPOCH + Duration::from_secs(used);
        File::open(path).unwrap().set_modified(time).unwrap();
        imported.record.digest
    }

    /// Which kind a job of user `uid` in a workspace finds.
    fn finds(&self, workspace: &str, name: &str, uid: u32) -> Option<Kind> {
        match self.images.find(workspace, name, uid).unwrap() {
            Found::Here(found) => Some(found.kind),
            Found::Nothing | Found::PassedOver(_) => None,
        }
    }

    fn names(&self) -> Vec<String> {
        self.images.list(None).unwrap().into_iter().map(|(name, ..)| name.name).collect()
    }
}

fn record(name: &str, kind: Kind, digest: &Digest, uid: u32) -> NameRecord {
    NameRecord { name: name.to_owned(), kind, digest: digest.clone(), uid, pulled: false, at: Timestamp(1) }
}

#[test]
fn layers_come_plain_by_gzip_and_by_zstandard_whatever_their_media_type_says() {
    let Some(fixture) = store() else { return };
    let one = |name: &'static str, pack: &dyn Fn(&[u8]) -> Vec<u8>| {
        let plain = layer(&[("file", name.as_bytes())]);
        let layout = fixture.layout(name, &pack(&plain), &Digest::of(&plain));
        let imported = fixture.import(&layout, "lab").unwrap();
        let image = fixture.images.get(&imported.record.digest).unwrap();
        assert_eq!(fs::read_to_string(image.layers[0].join("file")).unwrap(), name);
    };
    one("plain", &|bytes| bytes.to_vec());
    one("gzip", &|bytes| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    });
    one("zstd", &|bytes| zstd::encode_all(bytes, 3).unwrap());
}

#[test]
fn to_name_a_layer_is_not_to_have_it() {
    let Some(fixture) = store() else { return };
    let secret = layer(&[("secret", b"only theirs")]);
    let id = Digest::of(&secret);
    let theirs = fixture.import(&fixture.layout("theirs", &secret, &id), "theirs").unwrap();
    fixture
        .images
        .tag(&record("theirs", Kind::Mine { workspace: "theirs".to_owned() }, &theirs.record.digest, 1))
        .unwrap();
    let guess = layer(&[("guess", b"nothing")]);
    let error = fixture.import(&fixture.layout("thief", &guess, &id), "thief").unwrap_err();
    assert!(matches!(&error, ImageError::WrongDigest { expected, .. } if *expected == id), "{error}");
    // Whoever has it all may share what is there, and whoever sees an image of it need not bring it again.
    let honest = fixture.import(&fixture.layout("honest", &secret, &id), "honest").unwrap();
    assert_eq!(honest.record.layers, std::slice::from_ref(&id));
    fixture.import(&fixture.layout("again", &guess, &id), "theirs").unwrap();
    assert_eq!(fs::read_dir(fixture.dir.path().join("images/layers")).unwrap().count(), 1);
}

#[test]
fn one_s_own_name_goes_first_then_the_administrator_s_then_anybody_s() {
    let Some(fixture) = store() else { return };
    let (a, b) = (fixture.image("a", 1, 1), fixture.image("b", 2, 1));
    let kinds = [Kind::Public, Kind::Preset, Kind::Mine { workspace: "lab".to_owned() }];
    let name = "docker.io/lab/torch:2";
    for kind in kinds.clone() {
        fixture.images.tag(&record(name, kind.clone(), &a, 1)).unwrap();
        assert_eq!(fixture.finds("lab", name, 1), Some(kind));
    }
    assert_eq!(fixture.finds("other", name, 3), Some(Kind::Preset));
    // A name whose image is gone hides nobody else's.
    let gone = record(name, kinds[2].clone(), &Digest::of(b"gone"), 1);
    fixture.images.tag(&gone).unwrap();
    assert_eq!(fixture.finds("lab", name, 1), Some(Kind::Preset));
    // A public name is its giver's; root may do what it must.
    let stolen = fixture.images.tag(&record(name, Kind::Public, &b, 2)).unwrap_err().to_string();
    assert!(stolen.contains("user 1") && stolen.contains("torch:2"), "{stolen}");
    let public = fixture.images.find_of_kind(&Kind::Public, name).unwrap().unwrap();
    assert!(matches!(fixture.images.untag(&public, 2), Err(ImageError::NotYours { .. })));
    fixture.images.tag(&record(name, Kind::Public, &b, 0)).unwrap();
    fixture.images.untag(&public, 0).unwrap();
    // A name that tells a digest tells the truth.
    let pinned = |digest: &Digest| fixture.images.name(&record(&format!("x@{a}"), Kind::Preset, digest, 0));
    pinned(&a).unwrap();
    assert!(matches!(pinned(&b), Err(ImageError::PinnedName { .. })));
}

#[test]
fn public_names_that_root_has_not_given_begin_with_a_workspace_of_their_giver() {
    let Some(fixture) = store() else { return };
    let image = fixture.image("a", 1, 1);
    let give = |name: &str, uid| fixture.images.tag(&record(name, Kind::Public, &image, uid));
    // What jobs of others may mean otherwise, a workspace where the giver may not submit, another registry.
    for (name, uid) in [
        ("docker.io/library/python:3.11", 1),
        ("docker.io/lab/torch:2", 3),
        ("docker.io/other/torch:2", 1),
        ("ghcr.io/lab/torch:2", 1),
    ] {
        let refused = give(name, uid).unwrap_err().to_string();
        assert!(refused.contains("begin with a workspace") && refused.contains("default/"), "{refused}");
        assert!(fixture.images.check_name(&Kind::Public, name, uid).is_err(), "{name}");
    }
    let name = "docker.io/lab/torch:2";
    give(name, 1).unwrap();
    assert_eq!(fixture.finds("other", name, 3), Some(Kind::Public));
    // What has come to break the rule, as names of earlier versions do, is the giver's own and root's to bless.
    fixture.lab.has_lost_user_1.store(true, Ordering::Relaxed);
    let passed_over = fixture.images.find("other", name, 3).unwrap();
    assert!(matches!(&passed_over, Found::PassedOver(record) if record.uid == 1), "{passed_over:?}");
    assert_eq!(fixture.finds("other", name, 1), Some(Kind::Public));
    give(name, 0).unwrap();
    assert_eq!(fixture.finds("other", name, 3), Some(Kind::Public));
    give("docker.io/library/python:3.11", 0).unwrap();
}

#[test]
fn what_another_member_has_given_does_not_go_before_what_the_administrator_has() {
    for kind in [Kind::Preset, Kind::Public] {
        let Some(fixture) = store() else { return };
        let image = fixture.image("a", 1, 1);
        let mine = Kind::Mine { workspace: "lab".to_owned() };
        fixture.images.tag(&record("torch:2", mine.clone(), &image, 1)).unwrap();
        assert_eq!(fixture.finds("lab", "torch:2", 2), Some(mine.clone()));
        fixture.images.tag(&record("torch:2", kind.clone(), &image, 0)).unwrap();
        let found = [1, 2, 0].map(|uid| fixture.finds("lab", "torch:2", uid));
        assert_eq!(found, [Some(mine), Some(kind.clone()), Some(kind)]);
    }
}

#[test]
fn in_a_sticky_workspace_a_name_that_a_registry_has_counts_for_its_giver_alone_unless_it_was_brought_from_there() {
    let Some(fixture) = store() else { return };
    fixture.lab.is_sticky.store(true, Ordering::Relaxed);
    let (a, b) = (fixture.image("a", 1, 1), fixture.image("b", 2, 1));
    let mine = Kind::Mine { workspace: "lab".to_owned() };
    let [python, torch] = ["docker.io/library/python:3.11", "docker.io/lab/torch:2"];
    for name in [python, torch] {
        fixture.images.tag(&record(name, mine.clone(), &a, 1)).unwrap();
        assert_eq!(fixture.finds("lab", name, 1), Some(mine.clone()));
    }
    let passed_over = fixture.images.find("lab", python, 2).unwrap();
    assert!(matches!(&passed_over, Found::PassedOver(found) if found.passed_over().contains("root can give")));
    assert_eq!(fixture.finds("lab", torch, 2), Some(mine.clone()), "it says whose it is");
    // What came from the registry is what the name says, and who brings it anew takes nothing from anybody.
    let pulled = |digest: &Digest, uid| NameRecord {
        pulled: true,
        ..record("docker.io/library/alpine:3", mine.clone(), digest, uid)
    };
    fixture.images.tag(&pulled(&a, 1)).unwrap();
    assert_eq!(fixture.finds("lab", "docker.io/library/alpine:3", 2), Some(mine.clone()));
    fixture.images.tag(&pulled(&b, 2)).unwrap();
    // As records of earlier versions are, which do not say so.
    let old = record("docker.io/library/old:1", mine.clone(), &a, 1);
    fixture.images.tag(&old).unwrap();
    assert_eq!(fixture.finds("lab", &old.name, 2), None);
    fixture.images.tag(&NameRecord { pulled: true, uid: 2, ..old.clone() }).unwrap();
    assert_eq!(fixture.finds("lab", &old.name, 2), Some(mine.clone()));
    assert_eq!(fixture.images.find_of_kind(&mine, &old.name).unwrap().unwrap().uid, 1, "its giver's all the same");
    let taken = fixture.images.tag(&NameRecord { pulled: true, ..record(python, mine.clone(), &b, 2) });
    assert!(matches!(taken, Err(ImageError::NotYours { .. })), "what somebody has given themselves stays");
    let given = fixture.images.tag(&record("docker.io/library/alpine:3", mine, &a, 1));
    assert!(matches!(given, Err(ImageError::NotYours { .. })));
}

#[test]
fn rights_that_cannot_be_looked_at_are_an_error_and_no_other_image() {
    let Some(fixture) = store() else { return };
    let image = fixture.image("a", 1, 1);
    fixture.images.tag(&record("docker.io/lab/torch:2", Kind::Public, &image, 1)).unwrap();
    fixture.lab.is_unseen.store(true, Ordering::Relaxed);
    assert!(matches!(fixture.images.find("other", "docker.io/lab/torch:2", 3), Err(ImageError::Store { .. })));
    assert_eq!(fixture.finds("other", "docker.io/lab/torch:2", 1), Some(Kind::Public), "one's own needs no look");
}

#[test]
fn in_a_sticky_workspace_a_name_is_its_giver_s_and_to_bring_the_same_image_is_no_change() {
    let Some(fixture) = store() else { return };
    let (a, b) = (fixture.image("a", 1, 1), fixture.image("b", 2, 1));
    let mine = Kind::Mine { workspace: "lab".to_owned() };
    let give = |digest: &Digest, uid| fixture.images.tag(&record("torch:2", mine.clone(), digest, uid));
    let there = || fixture.images.find_of_kind(&mine, "torch:2").unwrap().unwrap();
    // Where anybody replaces anything, names go the same way.
    give(&a, 1).unwrap();
    give(&b, 2).unwrap();
    assert_eq!((there().digest, there().uid), (b.clone(), 2));
    fixture.lab.is_sticky.store(true, Ordering::Relaxed);
    for refused in [give(&a, 1).unwrap_err(), fixture.images.untag(&there(), 1).unwrap_err()] {
        assert!(refused.to_string().contains("of workspace lab was given by user 2"), "{refused}");
    }
    // The same again leaves it the giver's; what root gives root vouches for.
    give(&b, 1).unwrap();
    assert_eq!(there().uid, 2);
    assert_eq!(fixture.finds("lab", "torch:2", 1), None);
    give(&b, 0).unwrap();
    assert_eq!((there().uid, fixture.finds("lab", "torch:2", 1)), (0, Some(mine.clone())));
    give(&a, 0).unwrap();
    assert_eq!((there().digest, there().uid), (a.clone(), 0));
    fixture.images.untag(&there(), 0).unwrap();
    // What jobs bring from files is called as the file, whoever brought it last.
    for (digest, uid) in [(&a, 1), (&b, 2)] {
        fixture.images.note(&record("oci:/x", mine.clone(), digest, uid)).unwrap();
    }
}

#[test]
fn pruning_goes_by_age_and_size_and_spares_what_runs_will_need() {
    let Some(fixture) = store() else { return };
    let digests: Vec<_> = [("old", 100_000, 10), ("middle", 100_000, 20), ("new", 100_000, 30)]
        .map(|(n, s, u)| fixture.image(n, s, u))
        .into();
    let now = Timestamp(40_000);
    let prune = |keep: Keep, runs: &[&Digest]| {
        let images = runs.iter().map(|digest| (*digest).clone()).collect();
        fixture.images.prune(|| Ok(InUse { images, ..InUse::default() }), keep, now).unwrap()
    };
    assert_eq!(prune(Keep::default(), &[]), Pruned::default());
    // By size: the one used longest ago, unless a run needs it.
    let size = |bytes| Keep { used_within: None, bytes: Some(bytes) };
    assert_eq!(prune(size(300_000), &[]), Pruned::default());
    assert_eq!(prune(size(250_000), &[&digests[0]]).names, ["middle"]);
    assert_eq!(fixture.names(), ["new", "old"]);
    // By age: the name goes, but the image stays for the run, and goes after it.
    let age = Keep { used_within: Some(Duration::from_secs(20)), bytes: None };
    let pruned = prune(age, &[&digests[0]]);
    assert_eq!((pruned.names.as_slice(), pruned.layers), (["old".to_owned()].as_slice(), 0));
    assert!(fixture.images.get(&digests[0]).is_ok());
    assert_eq!(prune(age, &[]), Pruned { names: Vec::new(), layers: 1, bytes: 100_000 });
    assert!(matches!(fixture.images.get(&digests[0]), Err(ImageError::Unknown { .. })));
    // While something is brought in nothing goes.
    let held = fixture.images.hold();
    let busy = fixture.images.prune(|| Ok(InUse::default()), size(0), now);
    assert!(matches!(busy, Err(ImageError::Busy)));
    drop(held);
    assert_eq!(prune(size(0), &[]).names, ["new"]);
    assert_eq!(fs::read_dir(fixture.dir.path().join("images/drafts")).unwrap().count(), 0);
}

#[test]
fn the_same_image_may_come_in_many_times_at_once() {
    let Some(fixture) = store() else { return };
    let (lower, upper) = (layer(&[("etc/x", b"1")]), layer(&[("etc/y", b"2")]));
    let layout = fixture.layout("same", &upper, &Digest::of(&upper));
    let other = fixture.layout("other", &lower, &Digest::of(&lower));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (fixture, layout) = (&fixture, if number % 2 == 0 { &layout } else { &other });
            scope.spawn(move || fixture.import(layout, "lab").unwrap());
        }
    });
    assert_eq!(fs::read_dir(fixture.dir.path().join("images/drafts")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(fixture.dir.path().join("images/layers")).unwrap().count(), 2);
}

#[test]
fn who_waits_for_a_layer_that_comes_in_does_not_read_it_again() {
    let Some(fixture) = store() else { return };
    let drafts = || fs::read_dir(fixture.dir.path().join("images/drafts")).unwrap().count();
    for number in 0..4 {
        let content = layer(&[(&format!("file-{number}"), &vec![7; 1 << 19])]);
        let id = Digest::of(&content);
        let whole = fixture.layout(&format!("whole-{number}"), &content, &id);
        // It would not be what it is called, if somebody looked.
        let unread = fixture.layout(&format!("unread-{number}"), &layer(&[("x", b"x")]), &id);
        let there = fixture.dir.path().join("images/layers").join(id.hex());
        std::thread::scope(|scope| {
            scope.spawn(|| fixture.import(&whole, "lab").unwrap());
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while drafts() == 0 && !there.exists() {
                assert!(std::time::Instant::now() < deadline, "nobody has begun with layer {number}");
                std::thread::yield_now();
            }
            (0..4).for_each(|_| drop(scope.spawn(|| fixture.import(&unread, "lab").unwrap())));
        });
    }
}

#[test]
fn what_nobody_wants_any_more_is_neither_unpacked_nor_read_to_its_end() {
    let Some(fixture) = store() else { return };
    let given_up = GivenUp::default();
    given_up.set();
    let content = layer(&[("file", &[7; 1000])]);
    let layout = fixture.layout("wanted", &content, &Digest::of(&content));
    let is_unwanted = |path: &Path, format: Format, workspace: &str| {
        let imported = fixture.import_until(&given_up, path, format, workspace);
        let is_left = fs::read_dir(fixture.dir.path().join("images/drafts")).unwrap().count();
        (matches!(imported, Err(ImageError::Unwanted)), is_left)
    };
    assert_eq!(is_unwanted(&layout, Format::Layout, "lab"), (true, 0));
    fixture.import(&layout, "lab").unwrap();
    // It is there, and would be looked through for the other workspace.
    assert_eq!(is_unwanted(&layout, Format::Layout, "other"), (true, 0));
    let packed = fixture.dir.path().join("packed.tar.gz");
    let mut builder =
        tar::Builder::new(flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast()));
    builder.append_dir_all(".", &layout).unwrap();
    builder.into_inner().unwrap().finish().unwrap();
    assert_eq!(is_unwanted(&packed, Format::Oci, "lab"), (true, 0));
    fixture.import_until(&GivenUp::default(), &packed, Format::Oci, "lab").unwrap();
}
