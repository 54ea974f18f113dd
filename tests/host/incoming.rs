//! What comes along with data, and what does not: attributes, names, access lists; and how a draft goes elsewhere.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use nix::libc;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::datasets::{as_user, draft, errno, wait_published};
use super::support::{BINARY, Instance, has_tools, wait_for};

fn label(path: &Path, value: &str) {
    setxattr(path, "user.label", value.as_bytes(), XattrFlags::empty()).unwrap();
}

fn labelled(path: &Path) -> Option<String> {
    let mut value = [0; 64];
    let length = getxattr(path, "user.label", &mut value).ok()?;
    Some(String::from_utf8_lossy(&value[..length]).into_owned())
}

#[test]
fn what_people_have_noted_of_a_file_comes_along_and_is_part_of_its_version() {
    let test = "what_people_have_noted_of_a_file_comes_along_and_is_part_of_its_version";
    let Some(instance) = Instance::start(test, "") else { return };
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("sub")).unwrap();
    for name in ["cat", "dog"] {
        fs::write(source.path().join("sub").join(name), name).unwrap();
        label(&source.path().join("sub").join(name), name);
    }
    label(&source.path().join("sub"), "animals");
    fs::hard_link(source.path().join("sub/cat"), source.path().join("again")).unwrap();
    let path = source.path().display().to_string();
    let dataset = instance.mount().join("datasets/d");
    let told = instance.ok(&["dataset", "import", &path, "d"]);
    assert!(
        told.contains("3 file(s)") && told.contains(", 1 name(s) of files that had several (hard links)"),
        "{told}"
    );
    let of = |place: &str| labelled(&dataset.join(place));
    assert_eq!(
        ["draft/sub/cat", "draft/sub", "draft/again"].map(of),
        ["cat", "animals", "cat"].map(|it| Some(it.to_owned()))
    );
    assert_eq!(fs::metadata(dataset.join("draft/again")).unwrap().nlink(), 1);
    instance.ok(&["dataset", "publish", "d", "v1"]);
    // The same once more, of which one is called another thing.
    instance.ok(&["dataset", "import", &path, "d"]);
    label(&dataset.join("draft/sub/cat"), "tiger");
    instance.ok(&["dataset", "publish", "d", "v2"]);
    let found = ["v1/sub/cat", "v2/sub/cat", "v1/sub/dog", "v2/sub/dog"].map(of);
    assert_eq!(found, ["cat", "tiger", "dog", "dog"].map(|it| Some(it.to_owned())));
    let stored = instance.root().join("var/lib/trainyard/workspaces/default/datasets/d");
    let inode = |place: &str| fs::metadata(stored.join(place)).unwrap().ino();
    assert_eq!(inode("v1/sub/dog"), inode("v2/sub/dog"), "stored once");
    assert_ne!(inode("v1/sub/cat"), inode("v2/sub/cat"));
    instance.shutdown();
}

/// `user::rw-,user:12001:r--,group::r--,mask::r--,other::---`, as the kernel has it.
fn access_list() -> Vec<u8> {
    let entries = [(1_u16, 6_u16, u32::MAX), (2, 4, 12_001), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn access_lists_do_not_come_into_drafts_and_what_comes_without_them_is_whole() {
    let test = "access_lists_do_not_come_into_drafts_and_what_comes_without_them_is_whole";
    if !has_tools(test, &["tar", "rsync", "diff"]) {
        return;
    }
    let Some(instance) = Instance::start(test, "") else { return };
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("file"), "content").unwrap();
    label(&source.path().join("file"), "cat");
    if setxattr(source.path().join("file"), "system.posix_acl_access", &access_list(), XattrFlags::empty()).is_err() {
        return super::support::skip(test, "a file system with access lists");
    }
    let run = |script: &str, draft: &Path| {
        let output =
            Command::new("sh").args(["-uc", script, "sh"]).arg(draft).current_dir(source.path()).output().unwrap();
        (output.status.code(), [output.stdout, output.stderr].concat())
    };
    // Those that are asked to bring them say that they cannot.
    let (code, said) = run("rsync -aA ./ \"$1\"/", &draft(&instance, "with"));
    assert_eq!(code, Some(23), "{}", String::from_utf8_lossy(&said));
    let (code, said) = run("cp -a . \"$1\"", &draft(&instance, "cp"));
    assert_eq!(code, Some(1), "{}", String::from_utf8_lossy(&said));
    for (name, script) in [
        ("rsync", "rsync -aHX ./ \"$1\"/ && test -z \"$(rsync -aHX --itemize-changes ./ \"$1\"/)\""),
        ("tar", "tar --xattrs -cf - . | tar --xattrs -xpf - -C \"$1\""),
        ("cp", "cp -dR --preserve=timestamps,links,xattr . \"$1\""),
    ] {
        let draft = draft(&instance, name);
        let (code, said) = run(script, &draft);
        assert_eq!(code, Some(0), "{name}: {}", String::from_utf8_lossy(&said));
        assert_eq!(fs::read_to_string(draft.join("file")).unwrap(), "content");
        assert_eq!(labelled(&draft.join("file")).as_deref(), Some("cat"), "{name}");
        let times = [source.path().join("file"), draft.join("file")].map(|path| fs::metadata(path).unwrap().mtime());
        assert_eq!(times[0], times[1], "{name}");
    }
    instance.shutdown();
}

#[test]
fn a_draft_goes_to_another_dataset_as_its_draft_or_not_beside_its_versions() {
    let test = "a_draft_goes_to_another_dataset_as_its_draft_or_not_beside_its_versions";
    let Some(instance) = Instance::start(test, "") else { return };
    let one = draft(&instance, "one");
    fs::write(one.join("file"), "content").unwrap();
    let other = instance.mount().join("datasets/other");
    fs::create_dir(&other).unwrap();
    for name in ["v9", "odd name"] {
        assert_eq!(errno(fs::rename(&one, other.join(name))), Some(libc::EPERM), "{name}");
    }
    fs::rename(&one, other.join("draft")).unwrap();
    fs::rename(other.join("draft"), other.join("v9")).unwrap();
    wait_published(&other, "v9");
    assert_eq!(errno(fs::write(other.join("v9/file"), "x")), Some(libc::EROFS));
    instance.shutdown();
}

/// What is left in the draft that begins with a dot.
fn hidden(draft: &Path) -> Vec<String> {
    let names = fs::read_dir(draft).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn what_an_import_has_not_brought_whole_is_not_published_as_long_as_it_runs_or_when_it_broke_off() {
    let test = "what_an_import_has_not_brought_whole_is_not_published_as_long_as_it_runs_or_when_it_broke_off";
    let Some(instance) = Instance::start(test, "") else { return };
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("sub")).unwrap();
    fs::write(source.path().join("sub/a"), "a").unwrap();
    fs::write(source.path().join("b"), "b").unwrap();
    let path = source.path().display().to_string();
    let refused = |name: &str| {
        let refused = instance.cli(&["dataset", "publish", name, "v1"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("/draft/.import-"), "{said}");
        assert!(said.contains("has not come whole: call `trainyard dataset import` again, or remove it"), "{said}");
    };
    // It ends between two files: each that has come is whole.
    let broken = draft(&instance, "broken");
    fs::write(broken.join("sub"), "in the way").unwrap();
    assert!(!instance.cli(&["dataset", "import", &path, "broken"]).status.success());
    refused("broken");
    fs::remove_file(broken.join("sub")).unwrap();
    instance.ok(&["dataset", "import", &path, "broken"]);
    assert_eq!(hidden(&broken), Vec::<String>::new());
    instance.ok(&["dataset", "publish", "broken", "v1"]);
    // What cannot be read at all leaves no mark behind.
    let kept = draft(&instance, "kept");
    fs::write(kept.join("file"), "content").unwrap();
    assert!(!instance.cli(&["dataset", "import", "/nope", "kept"]).status.success());
    assert_eq!(hidden(&kept), Vec::<String>::new());
    // As long as a server has not answered.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/data/x.bin?token=secret", listener.local_addr().unwrap());
    let arguments = ["--root", instance.root().to_str().unwrap(), "dataset", "import", &address, "kept"];
    let mut import = Command::new(BINARY).args(arguments).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    refused("kept");
    assert!(hidden(&kept).iter().all(|name| name.ends_with("-x.bin.trainyard-mark")), "{:?}", hidden(&kept));
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx").unwrap();
    assert!(import.wait().unwrap().success());
    assert_eq!(hidden(&kept), Vec::<String>::new());
    instance.ok(&["dataset", "publish", "kept", "v1"]);
    instance.shutdown();
}

#[test]
fn a_version_is_published_by_whoever_renamed_its_draft() {
    let test = "a_version_is_published_by_whoever_renamed_its_draft";
    let Some(instance) = Instance::start(test, "") else { return };
    let draft = draft(&instance, "d");
    let dataset = draft.parent().unwrap().to_owned();
    fs::write(draft.join("file"), "content").unwrap();
    fs::set_permissions(&dataset, fs::Permissions::from_mode(0o777)).unwrap();
    let moved = as_user(65_534, "/usr/bin/mv", &[draft.as_os_str(), dataset.join("v1").as_os_str()]);
    assert!(moved.status.success(), "{moved:?}");
    let manifest = wait_published(&dataset, "v1");
    let by = manifest.lines().nth(2).unwrap().rsplit(" by ").next().unwrap();
    assert!(["nobody", "user 65534"].contains(&by), "{manifest}");
    assert!(instance.ok(&["dataset", "show", "d"]).contains(&format!(" by {by}")));
    instance.shutdown();
}

#[test]
fn what_is_not_found_in_a_workspace_is_looked_for_where_jobs_do_and_refusals_say_what_is_meant() {
    let test = "what_is_not_found_in_a_workspace_is_looked_for_where_jobs_do_and_refusals_say_what_is_meant";
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    let closed = instance.jobs_d().join("vision");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    instance.start_daemon(&[]);
    instance.wait_ready();
    let shared = instance.mount().with_file_name("public").join("datasets/pp");
    fs::create_dir_all(shared.join("draft")).unwrap();
    fs::write(shared.join("draft/file"), "content").unwrap();
    instance.ok(&["dataset", "publish", "pp", "v1", "--public"]);
    let shown = instance.ok(&["dataset", "show", "pp"]);
    assert!(shown.contains("v1 (latest)"), "{shown}");
    assert!(instance.ok(&["dataset", "verify", "pp"]).contains("as it was published"));
    // Where it was said whose it is, nowhere else.
    let preset = instance.cli(&["dataset", "show", "pp", "--preset"]);
    assert_eq!(preset.status.code(), Some(4), "{preset:?}");
    for (arguments, why) in [
        (
            &["dataset", "rm", "pp@latest", "--public"][..],
            "say which version, as in pp@v1; `latest` leads to another one",
        ),
        (
            &["dataset", "rm", "pp@v1"],
            "no published version v1 of pp in workspace default; in public there is: `--public`",
        ),
        (&["model", "rm", "mod@latest"], "say of which run, as in mod@1; `latest` leads to another one"),
        (&["model", "rm", "mod@new"], "\"new\" is no number of a run, as in mod@1"),
    ] {
        let refused = instance.cli(arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{arguments:?}: {said}");
    }
    wait_for("the workspace", || instance.mount().with_file_name("vision").exists().then_some(()));
    for kind in ["dataset", "model"] {
        let arguments = ["--root", instance.root().to_str().unwrap(), kind, "ls", "-w", "vision"].map(OsStr::new);
        let refused = as_user(65_534, BINARY, &arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("you may not enter workspace vision") && !said.contains("daemon"), "{said}");
    }
    instance.shutdown();
}
