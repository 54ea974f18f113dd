use super::*;

thread_local! {
    /// Names whose coming or going this thread has made last.
    static SYNCED: std::cell::RefCell<Vec<PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

pub(super) fn told_to_tests(made_to_last: &Path) {
    SYNCED.with_borrow_mut(|synced| synced.push(made_to_last.to_owned()));
}

/// Whether it was made to last, since this was asked before, that `path` is there, or is gone.
pub(crate) fn was_synced(path: &Path) -> bool {
    SYNCED.take().iter().any(|synced| synced == path)
}

#[test]
fn the_rights_of_a_group_are_its_own_and_not_the_most_of_who_is_named_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mode = || class_mode(dir.path(), &dir.path().metadata().unwrap()).unwrap() & 0o7777;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2750)).unwrap();
    assert_eq!(mode(), 0o2750);
    // A version; the owner, a named user, the group, the mask, all others.
    let entries = [(1u16, 7u16, u32::MAX), (2, 7, 1234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let entry = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let list = [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    let (name, flags) = (c"system.posix_acl_access", rustix::fs::XattrFlags::empty());
    rustix::fs::setxattr(dir.path(), name, &list, flags).unwrap();
    assert_eq!(dir.path().metadata().unwrap().mode() & 0o7777, 0o2770, "as the kernel shows it");
    assert_eq!(mode(), 0o2750);
}

#[test]
fn what_is_removed_for_good_does_not_come_back_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "x").unwrap();
    assert!(!was_synced(&path));
    remove_for_good(&path).unwrap();
    assert!(was_synced(&path) && !path.exists());
    assert_eq!(remove_for_good(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_copy_has_the_holes_the_time_and_the_attributes_of_users() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = File::create(from.join("sparse")).unwrap();
    // A start, a middle that is a hole, and an end that is one.
    file.write_all_at(b"start", 0).unwrap();
    file.write_all_at(b"late", 5 << 40).unwrap();
    file.set_len(10 << 40).unwrap();
    let labelled = rustix::fs::fsetxattr(&file, "user.label", b"seven", rustix::fs::XattrFlags::empty()).is_ok();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_007);
    file.set_modified(long_ago).unwrap();
    fs::write(from.join("empty"), "").unwrap();
    copy_tree(&from, &dir.path().join("to"), &GivenUp::default()).unwrap();
    let copy = File::open(dir.path().join("to/sparse")).unwrap();
    let metadata = copy.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.modified().unwrap()), (10 << 40, long_ago));
    assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
    let mut end = [0; 6];
    copy.read_exact_at(&mut end, (5 << 40) - 1).unwrap();
    assert_eq!(&end, b"\0late\0");
    let mut value = [0; 16];
    let count = rustix::fs::fgetxattr(&copy, "user.label", &mut value);
    assert_eq!(count.ok(), labelled.then_some(5));
    assert_eq!(fs::read(dir.path().join("to/empty")).unwrap(), b"");
}

#[test]
fn a_whole_write_replaces_and_leaves_no_temporary() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("status");
    for content in ["one", "two"] {
        write_whole(&path, content.as_bytes(), 0o640, Durability::Machine).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_new_file_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("job.toml");
    assert_eq!(write_new(&path, b"one", 0o644, Durability::Machine).unwrap(), Existing::None);
    assert!(was_synced(&path));
    assert_eq!(write_new(&path, b"two", 0o644, Durability::Process).unwrap(), Existing::Kept);
    assert_eq!(fs::read_to_string(&path).unwrap(), "one");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Makes `depth` directories within each other, which no path leads to the end of.
fn nested(top: &Path, depth: usize) {
    let mut at = open_directory(CWD, top).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "deep", Mode::RWXU).unwrap();
        at = open_directory(&at, "deep").unwrap();
        let file = openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        drop(file);
    }
}

#[test]
fn a_tree_deeper_than_stack_and_paths_is_removed_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, kept) = (dir.path().join("tree"), dir.path().join("kept"));
    fs::create_dir_all(tree.join("wide/empty")).unwrap();
    fs::create_dir_all(tree.join(".removing-1")).unwrap();
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "x").unwrap();
    std::os::unix::fs::symlink(&kept, tree.join("wide/link")).unwrap();
    nested(&tree.join("wide"), 10_000);
    let small_stack = std::thread::Builder::new().stack_size(256 << 10);
    let removed = small_stack.spawn({
        let tree = tree.clone();
        move || remove_tree(&tree)
    });
    removed.unwrap().join().unwrap().unwrap();
    assert!(!tree.exists() && kept.join("file").exists());
    std::os::unix::fs::symlink(&kept, &tree).unwrap();
    remove_tree(&tree).unwrap();
    assert!(!tree.is_symlink() && kept.join("file").exists(), "a link goes, not what it leads to");
    remove_tree(&tree).unwrap();
}

#[test]
fn a_snapshot_of_endless_directories_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("from")).unwrap();
    nested(&dir.path().join("from"), COPY_DEPTH + 1);
    let error = copy_tree(&dir.path().join("from"), &dir.path().join("to"), &GivenUp::default()).unwrap_err();
    assert!(error.to_string().contains("within each other"), "{error}");
}

#[test]
fn nobody_is_given_what_a_link_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("target")).unwrap();
    std::os::unix::fs::symlink("target", dir.path().join("link")).unwrap();
    let own = fs::metadata(dir.path()).unwrap();
    create_dir_for(&dir.path().join("target"), 0o700, own.uid(), own.gid()).unwrap();
    assert!(create_dir_for(&dir.path().join("link"), 0o700, own.uid(), own.gid()).is_err());
}

#[test]
fn limited_reads_refuse_links_directories_and_large_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("large"), vec![b'x'; 11]).unwrap();
    std::os::unix::fs::symlink("large", dir.path().join("link")).unwrap();
    assert!(read_limited(&dir.path().join("large"), 10).is_err());
    assert!(read_limited(&dir.path().join("link"), 100).is_err());
    assert!(read_limited(dir.path(), 100).is_err());
    assert_eq!(read_limited(&dir.path().join("large"), 11).unwrap().1.len(), 11);
}

#[test]
fn a_snapshot_keeps_links_as_links_and_modes() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/run.sh"), "x").unwrap();
    fs::set_permissions(from.join("sub/run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", from.join("link")).unwrap();
    nix::unistd::mkfifo(&from.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let to = dir.path().join("to");
    copy_tree(&from, &to, &GivenUp::default()).unwrap();
    assert_eq!(fs::metadata(to.join("sub/run.sh")).unwrap().permissions().mode() & 0o777, 0o751);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/shadow"));
    assert!(!to.join("fifo").exists());
    std::os::unix::fs::symlink(&from, dir.path().join("from-link")).unwrap();
    assert!(copy_tree(&dir.path().join("from-link"), &dir.path().join("other"), &GivenUp::default()).is_err());
}
