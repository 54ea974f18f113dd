//! Whose files count, and where.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use super::{Arrival, Look, Scan, read_path, why_unread};
use crate::spec::ResourceSpecs;
use crate::store::record::Owner;

const ANN: u32 = 4_000_001;
const BOB: u32 = 4_000_002;
const GROUP: u32 = 4_000_009;

/// A `jobs.d` of root's, with the workspace `v`.
struct Shelf(tempfile::TempDir);

impl Shelf {
    /// None where nobody can be given files.
    fn new() -> Option<Self> {
        if !nix::unistd::Uid::effective().is_root() {
            return None;
        }
        let shelf = Self(tempfile::tempdir().unwrap());
        shelf.directory("v", 0, 0o755);
        Some(shelf)
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn own(&self, name: &str, uid: u32, mode: u32) {
        let path = self.root().join(name);
        chown(&path, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn directory(&self, name: &str, uid: u32, mode: u32) {
        fs::create_dir_all(self.root().join(name)).unwrap();
        self.own(name, uid, mode);
    }

    fn put(&self, name: &str, uid: u32, text: &str) {
        fs::write(self.root().join(name), text).unwrap();
        self.own(name, uid, 0o644);
    }

    fn look(&self, name: &str) -> Look {
        read_path(self.root(), &self.root().join(name), &ResourceSpecs::default())
    }

    /// What is told of it first: a warning where it is taken, else why it is not.
    fn told(&self, name: &str) -> String {
        let found = match self.look(name) {
            Look::Arrived(Arrival::Accepted { source, .. }) => source.warnings,
            Look::Arrived(Arrival::Refused { diagnostics, .. } | Arrival::Stray { diagnostics, .. }) => diagnostics,
            other => panic!("{name}: {other:?}"),
        };
        found.first().map(ToString::to_string).unwrap_or_default()
    }

    fn is_taken(&self, name: &str) -> bool {
        matches!(self.look(name), Look::Arrived(Arrival::Accepted { .. }))
    }
}

#[test]
fn a_directory_called_default_holds_no_files_of_default() {
    let Some(shelf) = Shelf::new() else { return };
    shelf.put("a.toml", ANN, "command = 'ann'");
    shelf.directory("default", 0, 0o755);
    shelf.directory("default/a.toml.d", BOB, 0o755);
    for name in ["a.toml", "t.template.toml", "a.toml.d/x.toml"] {
        shelf.put(&format!("default/{name}"), BOB, "command = 'bob'");
    }
    assert!(shelf.is_taken("a.toml"));
    for name in ["default/a.toml", "default/t.template.toml"] {
        let told = shelf.told(name);
        assert!(told.contains("the files of default lie in jobs.d itself"), "{name}: {told}");
        let why = why_unread(shelf.root(), &shelf.root().join(name)).unwrap_or_default();
        assert!(told.ends_with(&why) && !why.is_empty(), "{why}");
    }
    assert_eq!(shelf.look("default/a.toml.d/x.toml"), Look::Nothing);
    let scan = Scan::of(shelf.root()).unwrap();
    assert_eq!(scan.keys.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a"]);
    fs::remove_file(shelf.root().join("default/a.toml")).unwrap();
    assert_eq!(shelf.told("default/a.toml"), "", "one that has gone is no stray");
}

#[test]
fn of_a_directory_that_a_stranger_has_made_nothing_is_read_and_it_is_told_of() {
    let Some(shelf) = Shelf::new() else { return };
    shelf.directory("nlp", 0, 0o755);
    shelf.put("nlp/a.toml", BOB, "command = 'x'");
    for name in ["nlp/t.template.toml", "nlp/a b.toml", "nlp/c.toml"] {
        shelf.put(name, BOB, "comand = 'x'");
    }
    let names = || Scan::of(shelf.root()).unwrap().keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(shelf.is_taken("nlp/a.toml") && shelf.told("nlp").is_empty() && names() == ["nlp/a", "nlp/c"]);
    // While the daemon runs.
    shelf.own("nlp", BOB, 0o755);
    for name in ["nlp/a.toml", "nlp/c.toml"] {
        assert!(matches!(shelf.look(name), Look::Arrived(Arrival::Removed { .. })), "{name}: as if it had gone");
        assert!(why_unread(shelf.root(), &shelf.root().join(name)).unwrap().contains("`chown root "));
    }
    for name in ["nlp/t.template.toml", "nlp/a b.toml"] {
        assert_eq!(shelf.told(name), "", "{name}");
    }
    let scan = Scan::of(shelf.root()).unwrap();
    assert!(names().is_empty() && scan.paths == [shelf.root().join("nlp")], "{scan:?}");
    let told = shelf.told("nlp");
    assert!(told.starts_with("nlp: belongs to user 4000002, ") && told.contains("`chown root "), "{told}");
    // Its templates are no longer those of anybody.
    fs::remove_dir_all(shelf.root().join("nlp")).unwrap();
    assert_eq!(shelf.told("nlp"), "");
}

#[test]
fn a_file_that_its_group_may_write_is_taken_where_that_is_the_workspace_s_or_its_owner_s_alone() {
    let Some(shelf) = Shelf::new() else { return };
    let put = |name: &str, gid: u32| {
        shelf.put(name, ANN, "command = 'x'");
        chown(shelf.root().join(name), None, Some(gid)).unwrap();
        fs::set_permissions(shelf.root().join(name), fs::Permissions::from_mode(0o664)).unwrap();
    };
    for (directory, file) in [("", "a.toml"), ("v", "v/a.toml")] {
        chown(shelf.root().join(directory), None, Some(GROUP)).unwrap();
        put(file, GROUP);
        assert!(shelf.is_taken(file), "{file}: {}", shelf.told(file));
        // That a group has the number of a user says nothing of who is in it.
        for gid in [ANN, BOB] {
            put(file, gid);
            let told = shelf.told(file);
            assert!(told.contains("everybody in that could run jobs as its owner; `chmod g-w` it"), "{told}");
        }
        chown(shelf.root().join(directory), None, Some(0)).unwrap();
    }
    // A template for all is no more than a member's of the job's own workspace.
    chown(shelf.root(), None, Some(GROUP)).unwrap();
    shelf.put("t.template.toml", 0, "command = 'x'");
    chown(shelf.root().join("t.template.toml"), None, Some(GROUP)).unwrap();
    fs::set_permissions(shelf.root().join("t.template.toml"), fs::Permissions::from_mode(0o664)).unwrap();
    for file in ["b.toml", "v/b.toml"] {
        shelf.put(file, ANN, "template = 't'");
    }
    assert!(shelf.is_taken("b.toml") && !shelf.is_taken("v/b.toml"));
}

#[test]
fn where_each_file_is_its_owner_s_a_group_that_may_write_one_is_refused() {
    let Some(shelf) = Shelf::new() else { return };
    for (directory, file) in [("", "a.toml"), ("v", "v/a.toml")] {
        let path = shelf.root().join(directory);
        chown(&path, None, Some(GROUP)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o3775)).unwrap();
        shelf.put(file, ANN, "command = 'x'");
        chown(shelf.root().join(file), None, Some(GROUP)).unwrap();
        assert!(shelf.is_taken(file), "{}", shelf.told(file));
        fs::set_permissions(shelf.root().join(file), fs::Permissions::from_mode(0o664)).unwrap();
        let told = shelf.told(file);
        assert!(told.contains("everybody in that could run jobs as its owner; `chmod g-w` it"), "{told}");
    }
}

#[test]
fn through_a_link_in_the_place_of_a_workspace_nothing_is_read() {
    let Some(shelf) = Shelf::new() else { return };
    shelf.put("v/a.toml", ANN, "command = 'x'");
    assert!(shelf.is_taken("v/a.toml"));
    fs::rename(shelf.root().join("v"), shelf.root().join(".aside")).unwrap();
    symlink(".aside", shelf.root().join("v")).unwrap();
    assert!(matches!(shelf.look("v/a.toml"), Look::Arrived(Arrival::Removed { .. })));
}

#[test]
fn a_file_that_was_never_good_is_its_owner_s() {
    let Some(shelf) = Shelf::new() else { return };
    shelf.put("v/b.toml", BOB, "comand = 'x'");
    symlink("b.toml", shelf.root().join("v/link.toml")).unwrap();
    for (name, uid) in [("v/b.toml", BOB), ("v/link.toml", 0)] {
        let Look::Arrived(Arrival::Refused { owner, .. }) = shelf.look(name) else { panic!("{name}") };
        assert_eq!(owner, Some(Owner { uid, gid: uid }), "{name}");
    }
}

#[test]
fn what_strangers_put_beside_a_job_file_is_passed_over_where_its_owner_cannot_take_it_away() {
    let Some(shelf) = Shelf::new() else { return };
    for file in ["a.toml", "v/a.toml"] {
        shelf.put(file, BOB, "command = 'x'");
    }
    shelf.put("t.template.toml", 0, "command = 'x'");
    shelf.put("v/b.toml", BOB, "template = 't'");
    shelf.put("v/t.template.toml", ANN, "command = 'of ann'");
    // A directory, an ordinary file, a link.
    let ways: [&dyn Fn(&str); 3] = [
        &|name| {
            shelf.directory(name, ANN, 0o755);
            shelf.put(&format!("{name}/x.toml"), ANN, "command = 'of ann'");
        },
        &|name| shelf.put(name, ANN, ""),
        &|name| {
            symlink("/dev/null", shelf.root().join(name)).unwrap();
            std::os::unix::fs::lchown(shelf.root().join(name), Some(ANN), None).unwrap();
        },
    ];
    let sticky = |is: bool| {
        let mode = if is { 0o1777 } else { 0o777 };
        shelf.own("v", 0, mode);
        fs::set_permissions(shelf.root(), fs::Permissions::from_mode(mode)).unwrap();
    };
    for way in ways {
        for file in ["a.toml", "v/a.toml"] {
            let overrides = format!("{file}.d");
            way(&overrides);
            sticky(true);
            let told = shelf.told(file);
            assert!(shelf.is_taken(file), "{told}");
            assert!(told.starts_with(&format!("{overrides}: warning: belongs to user 4000001, ")), "{told}");
            assert!(told.contains("it is passed over; they or root can remove it"), "{told}");
            sticky(false);
            assert!(!shelf.is_taken(file), "its owner can take it away");
            let path = shelf.root().join(overrides);
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir_all(path);
        }
    }
    let text = || match shelf.look("v/b.toml") {
        Look::Arrived(Arrival::Accepted { source, .. }) => source.text,
        _ => shelf.told("v/b.toml"),
    };
    assert!(text().contains("belongs neither to the owner of the job file nor to root"), "{}", text());
    sticky(true);
    let told = shelf.told("v/b.toml");
    assert!(told.starts_with("v/t.template.toml: warning: belongs to user 4000001, "), "{told}");
    assert!(text().contains("command = 'x'"), "{}", text());
    fs::remove_file(shelf.root().join("t.template.toml")).unwrap();
    let Look::Arrived(Arrival::Refused { diagnostics, .. }) = shelf.look("v/b.toml") else { panic!() };
    let told: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
    assert!(
        told.len() == 2 && told[0].contains("there is no template \"t\"") && !told[0].contains("did you mean"),
        "{told:?}"
    );
    assert!(told[1].contains("it is passed over"), "{told:?}");
    shelf.put("t.template.toml", 0, "command = 'x'");
    // One that its owner holds open for writing for ever.
    let held = fs::OpenOptions::new().append(true).open(shelf.root().join("v/t.template.toml")).unwrap();
    assert!(shelf.is_taken("v/b.toml"));
    drop(held);
    // Of those of the job's own the others count.
    shelf.directory("v/a.toml.d", BOB, 0o755);
    shelf.put("v/a.toml.d/1.toml", ANN, "command = 'of ann'");
    shelf.put("v/a.toml.d/2.toml", BOB, "env.A = 'b'");
    let Look::Arrived(Arrival::Accepted { source, .. }) = shelf.look("v/a.toml") else { panic!() };
    assert!(source.text.contains("'b'") && !source.text.contains("of ann"), "{}", source.text);
    assert!(source.warnings[0].file == "v/a.toml.d/1.toml", "{:?}", source.warnings);
}
