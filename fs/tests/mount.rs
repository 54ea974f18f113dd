#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]
//! The file system on a real kernel mount. Needs root and /dev/fuse; without them each test says `SKIPPED`.

#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use support::{Bench, is_mounted, until};
use trainyard_fs::{MountError, MountOptions, mount};

fn append(path: &Path, text: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text).unwrap();
}

fn errno<V>(result: io::Result<V>) -> Errno {
    Errno::from_raw(result.err().expect("must be refused").raw_os_error().unwrap())
}

#[test]
fn files_are_written_read_renamed_and_removed() {
    let Some(bench) = Bench::new("files_are_written_read_renamed_and_removed") else {
        return;
    };
    let dir = bench.at("rw/deep/er");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("f"), vec![b'x'; 3_000_000]).unwrap();
    assert_eq!(fs::read(bench.stored("rw/deep/er/f")).unwrap().len(), 3_000_000);
    fs::rename(dir.join("f"), bench.at("rw/g")).unwrap();
    assert_eq!(fs::read(bench.at("rw/g")).unwrap(), vec![b'x'; 3_000_000]);
    assert_eq!(errno(fs::read(dir.join("f"))), Errno::ENOENT);
    fs::remove_dir_all(bench.at("rw/deep")).unwrap();
    assert!(!bench.stored("rw/deep").exists());
}

#[test]
fn an_unlinked_open_file_lives_on() {
    let Some(bench) = Bench::new("an_unlinked_open_file_lives_on") else {
        return;
    };
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(bench.at("rw/f")).unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(bench.at("rw/f")).unwrap();
    file.write_all(b" after").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.set_len(9).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before af");
}

#[test]
fn a_rename_over_an_open_file_leaves_the_reader_with_the_old_one() {
    let Some(bench) = Bench::new("a_rename_over_an_open_file_leaves_the_reader_with_the_old_one") else {
        return;
    };
    fs::write(bench.at("rw/f"), b"old").unwrap();
    let mut old = File::open(bench.at("rw/f")).unwrap();
    fs::write(bench.at("rw/f.tmp"), b"newer").unwrap();
    fs::rename(bench.at("rw/f.tmp"), bench.at("rw/f")).unwrap();
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    assert_eq!(old.metadata().unwrap().len(), 3);
    assert_eq!(fs::read(bench.at("rw/f")).unwrap(), b"newer");
}

#[test]
fn a_file_replaced_behind_the_mount_is_seen_at_once_where_the_ttl_is_zero() {
    let Some(bench) = Bench::new("a_file_replaced_behind_the_mount_is_seen_at_once_where_the_ttl_is_zero") else {
        return;
    };
    fs::write(bench.stored("rw/status"), b"state = 1").unwrap();
    let before = fs::metadata(bench.at("rw/status")).unwrap().ino();
    for round in 0..20 {
        let text = format!("state = {round}");
        fs::write(bench.stored("rw/tmp"), &text).unwrap();
        fs::rename(bench.stored("rw/tmp"), bench.stored("rw/status")).unwrap();
        assert_eq!(fs::read_to_string(bench.at("rw/status")).unwrap(), text);
    }
    assert_ne!(fs::metadata(bench.at("rw/status")).unwrap().ino(), before);
}

#[test]
fn removing_while_listing_misses_nothing() {
    let Some(bench) = Bench::new("removing_while_listing_misses_nothing") else {
        return;
    };
    for number in 0..3000 {
        fs::write(bench.stored(&format!("rw/file-with-a-long-name-{number:05}")), b"").unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(bench.at("rw")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, 3000);
    assert_eq!(fs::read_dir(bench.stored("rw")).unwrap().count(), 0);
}

#[test]
fn who_lists_with_attributes_misses_nothing_of_what_stays_while_other_names_go() {
    let test = "who_lists_with_attributes_misses_nothing_of_what_stays_while_other_names_go";
    let Some(bench) = Bench::new(test) else { return };
    let name = |number: u32| format!("file-with-a-long-name-{number:05}");
    for number in 0..3000 {
        fs::write(bench.stored(&format!("rw/{}", name(number))), b"").unwrap();
    }
    let mut entries = fs::read_dir(bench.at("rw")).unwrap();
    let first = entries.next().unwrap().unwrap();
    // Behind the mount, so that its rows are not taken anew.
    for number in (0..3000).filter(|number| number % 2 == 1) {
        fs::remove_file(bench.stored(&format!("rw/{}", name(number)))).unwrap();
    }
    // Who asks for attributes gets them with the names from then on.
    let seen = std::iter::once(Ok(first)).chain(entries).filter_map(|entry: io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        entry.metadata().is_ok().then(|| entry.file_name().into_string().unwrap())
    });
    let seen: std::collections::BTreeSet<String> = seen.collect();
    let left = (0..3000).filter(|number| number % 2 == 0).map(name);
    assert_eq!(left.filter(|name| !seen.contains(name)).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn appends_and_truncations_reach_the_backing_file() {
    let Some(bench) = Bench::new("appends_and_truncations_reach_the_backing_file") else {
        return;
    };
    fs::write(bench.at("rw/f"), b"one").unwrap();
    let mut first = OpenOptions::new().append(true).open(bench.at("rw/f")).unwrap();
    let mut behind = OpenOptions::new().append(true).open(bench.stored("rw/f")).unwrap();
    first.write_all(b"two").unwrap();
    behind.write_all(b"three").unwrap();
    first.write_all(b"four").unwrap();
    assert_eq!(fs::read(bench.stored("rw/f")).unwrap(), b"onetwothreefour");
    assert_eq!(fs::read(bench.at("rw/f")).unwrap(), b"onetwothreefour");
    first.set_len(3).unwrap();
    assert_eq!(fs::read(bench.at("rw/f")).unwrap(), b"one");
    File::create(bench.at("rw/f")).unwrap();
    assert_eq!(fs::metadata(bench.stored("rw/f")).unwrap().len(), 0);
}

#[test]
fn a_read_only_place_refuses_root_with_erofs() {
    let Some(bench) = Bench::new("a_read_only_place_refuses_root_with_erofs") else {
        return;
    };
    fs::write(bench.stored("ro/f"), b"text").unwrap();
    fs::write(bench.at("rw/g"), b"text").unwrap();
    assert_eq!(fs::read(bench.at("ro/f")).unwrap(), b"text");
    assert_eq!(errno(fs::write(bench.at("ro/f"), b"x")), Errno::EROFS);
    assert_eq!(errno(File::create_new(bench.at("ro/new"))), Errno::EROFS);
    assert_eq!(errno(fs::create_dir(bench.at("ro/d"))), Errno::EROFS);
    assert_eq!(errno(fs::remove_file(bench.at("ro/f"))), Errno::EROFS);
    assert_eq!(errno(fs::rename(bench.at("ro/f"), bench.at("rw/f"))), Errno::EROFS);
    assert_eq!(errno(fs::rename(bench.at("rw/g"), bench.at("ro/f"))), Errno::EROFS);
    assert_eq!(errno(symlink("x", bench.at("ro/s"))), Errno::EROFS);
    let mode = fs::Permissions::from_mode(0o777);
    assert_eq!(errno(fs::set_permissions(bench.at("ro/f"), mode)), Errno::EROFS);
}

#[test]
fn what_is_hidden_is_not_there() {
    let Some(bench) = Bench::new("what_is_hidden_is_not_there") else {
        return;
    };
    assert_eq!(errno(fs::metadata(bench.at("hidden"))), Errno::ENOENT);
    assert_eq!(errno(fs::metadata(bench.at("hidden/f"))), Errno::ENOENT);
    let names = fs::read_dir(bench.at("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["now.txt", "ro", "rw"]);
}

#[test]
fn a_generated_file_grows_under_a_polling_reader() {
    let Some(bench) = Bench::new("a_generated_file_grows_under_a_polling_reader") else {
        return;
    };
    bench.say(b"one\n");
    let mut file = File::open(bench.at("now.txt")).unwrap();
    let mut text = Vec::new();
    file.read_to_end(&mut text).unwrap();
    for round in 0..50_u64 {
        bench.say(format!("line {round}\n").as_bytes());
        let size = file.metadata().unwrap().len();
        assert!(size > text.len() as u64, "fstat shows the growth at once");
        file.read_to_end(&mut text).unwrap();
        assert_eq!(text.len() as u64, size);
    }
    assert!(text.ends_with(b"line 49\n"));
    bench.rewrite(b'x');
    let mut first = [0; 1];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(&first, b"x", "neither size nor time tells of this change");
    assert_eq!(fs::metadata(bench.at("now.txt")).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn tail_follows_a_backing_file_and_a_generated_one() {
    let Some(bench) = Bench::new("tail_follows_a_backing_file_and_a_generated_one") else {
        return;
    };
    fs::write(bench.stored("rw/log"), b"first\n").unwrap();
    fs::write(bench.stored("ro/log"), b"first\n").unwrap();
    bench.say(b"first\n");
    for name in ["rw/log", "ro/log", "now.txt"] {
        let mut command = Command::new("tail");
        command.args(["-f", "-n", "+1"]).arg(bench.at(name)).stdout(Stdio::piped());
        let mut tail = command.spawn().unwrap();
        let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "first");
        let began = std::time::Instant::now();
        match name {
            "now.txt" => bench.say(b"second\n"),
            _ => append(&bench.stored(name), b"second\n"),
        }
        assert_eq!(lines.next().unwrap().unwrap(), "second");
        // In a second, where the machine has nothing else to do.
        assert!(began.elapsed() < Duration::from_secs(30), "{name}: {:?}", began.elapsed());
        tail.kill().unwrap();
        tail.wait().unwrap();
    }
}

#[test]
fn a_reader_sees_bytes_added_behind_the_mount_within_the_bound() {
    let Some(bench) = Bench::new("a_reader_sees_bytes_added_behind_the_mount_within_the_bound") else {
        return;
    };
    fs::write(bench.stored("rw/log"), b"").unwrap();
    let mut reader = File::open(bench.at("rw/log")).unwrap();
    let mut log = OpenOptions::new().append(true).open(bench.stored("rw/log")).unwrap();
    let mut text = Vec::new();
    let mut soonest = Duration::MAX;
    for round in 0..20 {
        log.write_all(b"0123456789\n").unwrap();
        let written = std::time::Instant::now();
        until(Duration::from_secs(60), || {
            reader.read_to_end(&mut text).unwrap();
            text.len() == (round + 1) * 11
        });
        soonest = soonest.min(written.elapsed());
    }
    // On a machine that is busy with other things some take longer.
    assert!(soonest < Duration::from_millis(1500), "{soonest:?}");
    assert_eq!(text, b"0123456789\n".repeat(20));
}

#[test]
fn another_user_has_the_rights_of_the_mode_bits_and_owns_what_he_makes() {
    let name = "another_user_has_the_rights_of_the_mode_bits_and_owns_what_he_makes";
    let Some(bench) = Bench::new(name) else {
        return;
    };
    fs::create_dir(bench.stored("rw/open")).unwrap();
    fs::set_permissions(bench.stored("rw/open"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(bench.stored("rw/secret"), b"secret").unwrap();
    fs::set_permissions(bench.stored("rw/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let nobody = |script: &str| {
        let user = ["--reuid", "65534", "--regid", "65533", "--clear-groups", "sh", "-c", script];
        let run = Command::new("setpriv").args(user).current_dir(bench.at("")).output().unwrap();
        (run.status.success(), String::from_utf8_lossy(&run.stderr).into_owned())
    };
    let (read, message) = nobody("cat rw/secret");
    assert!(!read && message.contains("Permission denied"), "{message}");
    assert!(!nobody("touch rw/new").0);
    assert!(!nobody("chmod 666 rw/secret").0);
    let (made, message) = nobody("umask 027; echo x > rw/open/f && mkdir rw/open/d && ln -s t rw/open/s");
    assert!(made, "{message}");
    let stat = |name: &str| fs::symlink_metadata(bench.stored(name)).unwrap();
    let owner = |name: &str| (stat(name).uid(), stat(name).gid());
    for name in ["rw/open/f", "rw/open/d", "rw/open/s"] {
        assert_eq!(owner(name), (65534, 65533), "{name}");
    }
    assert_eq!(stat("rw/open/f").mode() & 0o7777, 0o640);
    assert_eq!(stat("rw/open/d").mode() & 0o7777, 0o750);
}

#[test]
fn everyday_programs_work() {
    let Some(bench) = Bench::new("everyday_programs_work") else {
        return;
    };
    let script = "set -eu
        mkdir a && echo one > a/f && cp -a a b && mv b/f b/g && ln a/f a/hard && ln -s f a/soft
        cmp a/f b/g && test \"$(cat a/soft)\" = one && ls -la a b > /dev/null
        tar cf t.tar a && mkdir x && tar xf t.tar -C x && cmp x/a/f a/f
        truncate -s 1M sparse && cp --sparse=always sparse sparse2 && cmp sparse sparse2
        echo two >> a/f && sed -i s/one/1/ a/f && grep -q 1 a/f
        dd if=/dev/zero of=big bs=1M count=4 conv=fsync status=none && fallocate -l 8M big
        mkfifo p && rm p && touch -d 2001-01-01 a/f && find . -newer t.tar > /dev/null
        mv --no-clobber a/f a/soft && chmod 700 a && rm -r a b x";
    let run = Command::new("sh").args(["-c", script]).current_dir(bench.at("rw")).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(!bench.stored("rw/a").exists(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn many_readers_share_one_file_of_a_read_only_place() {
    let Some(bench) = Bench::new("many_readers_share_one_file_of_a_read_only_place") else {
        return;
    };
    let text = vec![b'x'; 2_000_000];
    fs::write(bench.stored("ro/f"), &text).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(fs::read(bench.at("ro/f")).unwrap(), text);
                }
            });
        }
    });
    let reader = File::open(bench.at("ro/f")).unwrap();
    let mut log = OpenOptions::new().append(true).open(bench.stored("ro/f")).unwrap();
    log.write_all(b"more").unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 2_000_004);
    let mut tail = [0; 4];
    reader.read_exact_at(&mut tail, 2_000_000).unwrap();
    assert_eq!(&tail, b"more");
}

#[test]
fn a_file_may_change_its_place_between_two_opens_of_it() {
    let Some(bench) = Bench::new("a_file_may_change_its_place_between_two_opens_of_it") else {
        return;
    };
    let mut options = OpenOptions::new();
    let made = options.read(true).write(true).create_new(true);
    let mut cached = made.open(bench.at("rw/sealed")).unwrap();
    cached.write_all(b"text").unwrap();
    bench.seal(true);
    let later = File::open(bench.at("rw/sealed")).unwrap();
    let read = |file: &File| {
        let mut buf = [0; 4];
        file.read_exact_at(&mut buf, 0).unwrap();
        buf
    };
    assert_eq!((read(&cached), read(&later)), (*b"text", *b"text"));
    drop((cached, later));
    let passed = File::open(bench.at("rw/sealed")).unwrap();
    assert_eq!(read(&passed), *b"text");
    bench.seal(false);
    let mut options = OpenOptions::new();
    let writer = options.read(true).write(true);
    let writer = writer.open(bench.at("rw/sealed")).unwrap();
    writer.write_all_at(b"T", 0).unwrap();
    assert_eq!((read(&passed), read(&writer)), (*b"Text", *b"Text"));
    assert_eq!(fs::read(bench.stored("rw/sealed")).unwrap(), b"Text");
}

#[test]
fn a_hostile_symlink_is_shown_as_one() {
    let Some(bench) = Bench::new("a_hostile_symlink_is_shown_as_one") else {
        return;
    };
    symlink("/", bench.stored("rw/root")).unwrap();
    assert_eq!(fs::read_link(bench.at("rw/root")).unwrap(), Path::new("/"));
    assert!(fs::symlink_metadata(bench.at("rw/root")).unwrap().is_symlink());
    fs::remove_file(bench.at("rw/root")).unwrap();
    assert!(Path::new("/etc").is_dir());
}

#[test]
fn parallel_renames_never_make_a_reader_miss_the_file() {
    let Some(bench) = Bench::new("parallel_renames_never_make_a_reader_miss_the_file") else {
        return;
    };
    fs::write(bench.at("rw/f"), b"0").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..500 {
                fs::write(bench.at("rw/tmp"), format!("{round}")).unwrap();
                fs::rename(bench.at("rw/tmp"), bench.at("rw/f")).unwrap();
            }
        });
        while !writer.is_finished() {
            assert!(!fs::read(bench.at("rw/f")).unwrap().is_empty());
        }
    });
}

#[test]
fn positioned_writes_land_where_they_should() {
    let Some(bench) = Bench::new("positioned_writes_land_where_they_should") else {
        return;
    };
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(bench.at("rw/f")).unwrap();
    file.write_all_at(b"end", 100_000).unwrap();
    file.write_all_at(b"start", 0).unwrap();
    file.sync_all().unwrap();
    let stored = fs::read(bench.stored("rw/f")).unwrap();
    assert_eq!((&stored[..5], &stored[100_000..]), (&b"start"[..], &b"end"[..]));
}

#[test]
fn unmounting_leaves_nothing() {
    let Some(bench) = Bench::new("unmounting_leaves_nothing") else {
        return;
    };
    let dir = bench.unmount();
    assert!(!is_mounted(&dir.path().join("mnt")));
    assert_eq!(fs::read_dir(dir.path().join("mnt")).unwrap().count(), 0);
}

#[test]
fn unmounting_while_a_file_is_open_takes_the_mount_out_of_sight() {
    let name = "unmounting_while_a_file_is_open_takes_the_mount_out_of_sight";
    let Some(bench) = Bench::new(name) else {
        return;
    };
    fs::write(bench.at("rw/f"), b"text").unwrap();
    let file = File::open(bench.at("rw/f")).unwrap();
    let dir = bench.unmount();
    assert!(!is_mounted(&dir.path().join("mnt")));
    let mut buf = [0; 4];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"text");
}

#[test]
fn waiting_ends_when_the_mount_is_removed_from_outside() {
    let Some(bench) = Bench::new("waiting_ends_when_the_mount_is_removed_from_outside") else {
        return;
    };
    let (dir, mounted) = bench.into_parts();
    let mountpoint = dir.path().join("mnt");
    let waiting = std::thread::spawn(move || mounted.wait());
    assert!(Command::new("umount").arg(&mountpoint).status().unwrap().success());
    until(Duration::from_secs(60), || waiting.is_finished());
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_mountpoint_beneath_the_backing_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("inside")).unwrap();
    let options = MountOptions { fs_name: "nested".into(), threads: 1 };
    let tree = support::TestTree::default();
    let refused = mount(dir.path(), &dir.path().join("inside"), tree, &options);
    assert!(matches!(refused, Err(MountError::Nested { .. })), "{refused:?}");
}

#[test]
fn people_s_own_attributes_are_kept_and_others_are_not_shown() {
    use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
    use rustix::io::Errno;
    let Some(bench) = Bench::new("people_s_own_attributes_are_kept_and_others_are_not_shown") else {
        return;
    };
    let file = bench.at("rw/f");
    fs::write(&file, "").unwrap();
    // One that the file system has and does not show.
    setxattr(bench.stored("rw/f"), "trusted.ours", b"x", XattrFlags::empty()).unwrap();
    for path in [&file, &bench.at("rw")] {
        let long = vec![b'v'; 3000];
        setxattr(path, "user.a", &long, XattrFlags::CREATE).unwrap();
        setxattr(path, "user.b", b"", XattrFlags::empty()).unwrap();
        assert_eq!(setxattr(path, "user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(setxattr(path, "user.c", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
        let mut value = vec![0; 4096];
        assert_eq!(getxattr(path, "user.a", &mut value), Ok(3000));
        assert_eq!(value[..3000], long);
        assert_eq!(getxattr_query(path, "user.a"), Ok(3000), "how much room it takes");
        assert_eq!(getxattr(path, "user.a", &mut [0_u8; 10]), Err(Errno::RANGE));
        assert_eq!(getxattr(path, "user.b", &mut value), Ok(0));
        let length = listxattr(path, &mut value).unwrap();
        let mut names: Vec<_> = value[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort();
        assert_eq!(names, [b"user.a", b"user.b"]);
        removexattr(path, "user.a").unwrap();
        assert_eq!(getxattr(path, "user.a", &mut value), Err(Errno::NODATA));
        assert_eq!(getxattr(path, "trusted.ours", &mut value), Err(Errno::NODATA));
        assert_eq!(setxattr(path, "trusted.theirs", b"x", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    }
    // Which stored file it is: told to whoever knows the name, and is root.
    let stored = fs::metadata(bench.stored("rw/f")).unwrap();
    let mut value = [0; 64];
    let length = getxattr(&file, trainyard_fs::BACKING, &mut value).unwrap();
    assert_eq!(String::from_utf8_lossy(&value[..length]), format!("{}:{}", stored.dev(), stored.ino()));
    use std::os::unix::process::CommandExt;
    let script = "import os, sys; os.getxattr(sys.argv[1], sys.argv[2])";
    let mut other = Command::new("/usr/bin/python3");
    other.args(["-c", script]).arg(&file).arg(trainyard_fs::BACKING).uid(12_001).gid(12_001);
    let said = String::from_utf8_lossy(&other.output().unwrap().stderr).into_owned();
    assert!(said.contains("No data available"), "{said}");
    assert_eq!(setxattr(&file, trainyard_fs::BACKING, b"1:1", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(getxattr(bench.at("now.txt"), trainyard_fs::BACKING, &mut value), Err(Errno::NODATA));
    fs::create_dir_all(bench.stored("ro")).unwrap();
    fs::write(bench.stored("ro/f"), "").unwrap();
    setxattr(bench.stored("ro/f"), "user.a", b"x", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(bench.at("ro/f"), "user.a", &mut [0_u8; 9]), Ok(1));
    assert_eq!(setxattr(bench.at("ro/f"), "user.a", b"y", XattrFlags::empty()), Err(Errno::ROFS));
    assert_eq!(removexattr(bench.at("ro/f"), "user.a"), Err(Errno::ROFS));
    assert_eq!(listxattr(bench.at("now.txt"), &mut [0_u8; 9]), Ok(0));
}

#[test]
fn writing_and_truncating_clear_the_bits_by_which_a_program_runs_as_another() {
    let Some(bench) = Bench::new("writing_and_truncating_clear_the_bits_by_which_a_program_runs_as_another") else {
        return;
    };
    let file = bench.at("rw/program");
    let script = [
        "printf x >> \"$0\"",
        "truncate -s 3 \"$0\"",
        "python3 -c 'import os,sys; os.truncate(sys.argv[1], 1)' \"$0\"",
        ALLOCATES,
        COPIES,
    ];
    for script in script {
        fs::write(&file, "body").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o6777);
        let done = Command::new("setpriv")
            .args(["--reuid=12001", "--regid=12001", "--clear-groups", "sh", "-c", script])
            .arg(&file)
            .output()
            .unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o777, "{script}");
    }
    // Root may have them stay, but where it truncates.
    for script in ["printf x >> \"$0\"", ALLOCATES, COPIES] {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        assert!(Command::new("sh").args(["-c", script]).arg(&file).status().unwrap().success());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o6777, "{script}");
    }
    File::options().write(true).open(&file).unwrap().set_len(1).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o777);
}

const ALLOCATES: &str =
    "python3 -c 'import os,sys; os.posix_fallocate(os.open(sys.argv[1], os.O_WRONLY), 0, 8)' \"$0\"";
const COPIES: &str = "python3 -c 'import os,sys; file = lambda how: os.open(sys.argv[1], how); \
                      assert os.copy_file_range(file(os.O_RDONLY), file(os.O_WRONLY), 1, 0, 2) == 1' \"$0\"";

#[test]
fn files_are_copied_by_the_backing_file_system() {
    let Some(bench) = Bench::new("files_are_copied_by_the_backing_file_system") else {
        return;
    };
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(bench.at("rw/from"), &content).unwrap();
    let (from, to) = (File::open(bench.at("rw/from")).unwrap(), File::create(bench.at("rw/to")).unwrap());
    let (mut read, mut written) = (10, 20);
    let count = rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut written), 2_000_000).unwrap();
    assert_eq!((count, read, written), (2_000_000, 2_000_010, 2_000_020));
    let copied = fs::read(bench.at("rw/to")).unwrap();
    assert!(copied[..20] == [0; 20] && copied[20..] == content[10..2_000_010]);
    // `cp` and the standard library do it so.
    assert_eq!(fs::copy(bench.at("rw/from"), bench.at("rw/again")).unwrap(), content.len() as u64);
    assert_eq!(fs::read(bench.at("rw/again")).unwrap(), content);
    fs::write(bench.at("rw/sealed"), "old").unwrap();
    let sealed = OpenOptions::new().write(true).open(bench.at("rw/sealed")).unwrap();
    bench.seal(true);
    let refused = rustix::fs::copy_file_range(&from, None, &sealed, None, 10);
    assert_eq!(refused, Err(rustix::io::Errno::ROFS));
}

#[test]
fn names_of_one_file_are_one_inode_whichever_is_changed_or_removed() {
    let Some(bench) = Bench::new("names_of_one_file_are_one_inode_whichever_is_changed_or_removed") else {
        return;
    };
    let (a, b) = (bench.at("rw/a"), bench.at("rw/b"));
    fs::write(&a, "one").unwrap();
    let mut open = OpenOptions::new().write(true).open(&a).unwrap();
    fs::hard_link(&a, &b).unwrap();
    let seen = |path: &Path| fs::metadata(path).map(|file| (file.ino(), file.nlink())).unwrap();
    assert_eq!(seen(&a), seen(&b));
    assert_eq!(seen(&a).1, 2);
    fs::write(&b, "two, longer").unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap(), "two, longer");
    // By the other name, and by what was open before.
    fs::remove_file(&a).unwrap();
    assert_eq!(seen(&b).1, 1);
    open.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    open.write_all(b"TWO").unwrap();
    assert_eq!(fs::read_to_string(&b).unwrap(), "TWO, longer");
    assert_eq!(fs::metadata(&b).unwrap().mode() & 0o777, 0o600);
    // A name that was given to another file behind the mount is no name of this one any more, however soon.
    fs::hard_link(&b, bench.at("rw/c")).unwrap();
    fs::write(bench.stored("rw/new"), "another").unwrap();
    fs::rename(bench.stored("rw/new"), bench.stored("rw/c")).unwrap();
    fs::write(&b, "three").unwrap();
    wait_for_text(&bench.at("rw/c"), "another");
    assert_eq!(fs::read_to_string(&b).unwrap(), "three");
    // Root makes device nodes, as on any file system; they open for nobody here.
    let made = Command::new("mknod").arg(bench.at("rw/null")).args(["c", "1", "3"]).status().unwrap();
    assert!(made.success());
    assert_eq!(fs::metadata(bench.at("rw/null")).unwrap().rdev(), fs::metadata("/dev/null").unwrap().rdev());
    assert!(File::open(bench.at("rw/null")).is_err());
}

/// Within the second that the kernel may keep a name.
fn wait_for_text(path: &Path, text: &str) {
    let from = std::time::Instant::now();
    while fs::read_to_string(path).unwrap() != text {
        assert!(from.elapsed() < Duration::from_secs(60), "{}", path.display());
        std::thread::yield_now();
    }
}
