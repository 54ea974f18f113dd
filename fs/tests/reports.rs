#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]
//! What people have reported of other file systems in user space (`facts/fuse.md` 8), each held against ours on a real
//! kernel mount. Needs root and /dev/fuse; without them each test says `SKIPPED`.

#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::Bench;

/// Runs a program of Python in a directory of the mount; what it asserts must hold.
fn python(directory: &Path, program: &str) -> String {
    let output = Command::new("/usr/bin/python3").args(["-c", program]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_mapped_is_what_was_written() {
    let Some(bench) = Bench::new("what_is_mapped_is_what_was_written") else { return };
    let weights: Vec<u8> = (0..4_000_000u32).flat_map(|number| (number % 65_521).to_le_bytes()).collect();
    fs::write(bench.stored("ro/weights"), weights).unwrap();
    // Shared: seen by others and on disk. Private: by nobody. As safetensors does it: slices of a map of a shared descriptor.
    python(
        &bench.at("rw"),
        r#"
import mmap, os, random, struct
with open("shared", "w+b") as file:
    file.truncate(1 << 20)
    shared = mmap.mmap(file.fileno(), 1 << 20)
    shared[5000:5005] = b"hello"
    assert os.pread(os.open("shared", os.O_RDONLY), 5, 5000) == b"hello"
    shared.flush()
    private = mmap.mmap(file.fileno(), 1 << 20, access=mmap.ACCESS_COPY)
    private[5000:5005] = b"other"
    assert os.pread(file.fileno(), 5, 5000) == b"hello"
    os.pwrite(file.fileno(), b"write", 9000)
    assert shared[9000:9005] == b"write"
with open("../ro/weights", "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for _ in range(2000):
        at = random.randrange(4_000_000)
        assert struct.unpack_from("<I", weights, 4 * at)[0] == at % 65521
"#,
    );
    assert_eq!(&fs::read(bench.stored("rw/shared")).unwrap()[5000..5005], b"hello");
}

/// Maps that are read ahead of while all threads of the server are asked, from more processes than it has threads.
#[test]
fn maps_that_many_read_at_once_get_all_their_pages() {
    let Some(bench) = Bench::new("maps_that_many_read_at_once_get_all_their_pages") else { return };
    for place in ["ro", "rw"] {
        let weights: Vec<u8> = (0..4_000_000u32).flat_map(|number| (number % 65_521).to_le_bytes()).collect();
        fs::write(bench.stored(place).join("weights"), weights).unwrap();
    }
    python(
        &bench.at(""),
        r#"
import mmap, os, random, struct
def read(place, seed):
    random.seed(seed)
    file = os.open(place + "/weights", os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    weights = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    weights.madvise(mmap.MADV_WILLNEED)
    for _ in range(3000):
        at = random.randrange(4_000_000)
        assert struct.unpack_from("<I", weights, 4 * at)[0] == at % 65521
    os._exit(0)
children = []
for number in range(32):
    child = os.fork()
    if child == 0:
        read(["ro", "rw"][number % 2], number)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"#,
    );
}

#[test]
fn appends_of_many_writers_lose_nothing() {
    let Some(bench) = Bench::new("appends_of_many_writers_lose_nothing") else { return };
    let log = bench.at("rw/log");
    let writers: Vec<_> = (0..8u8)
        .map(|writer| {
            let log = log.clone();
            std::thread::spawn(move || {
                let mut file = OpenOptions::new().create(true).append(true).open(log).unwrap();
                for number in 0..500 {
                    file.write_all(format!("writer {writer} line {number:04}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let text = fs::read_to_string(&log).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    assert_eq!((text.lines().count(), lines.len()), (4000, 4000));
    assert!(lines.iter().all(|line| line.len() == "writer 0 line 0000".len()));
}

#[test]
fn of_many_that_make_a_name_exclusively_one_wins_and_truncation_empties() {
    let test = "of_many_that_make_a_name_exclusively_one_wins_and_truncation_empties";
    let Some(bench) = Bench::new(test) else { return };
    for round in 0..50 {
        let name = bench.at("rw").join(round.to_string());
        let wins: usize = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..4)
                .map(|maker| {
                    let name = &name;
                    scope.spawn(move || match OpenOptions::new().write(true).create_new(true).open(name) {
                        Ok(mut file) => {
                            write!(file, "maker {maker}").unwrap();
                            1
                        }
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(nix::libc::EEXIST));
                            0
                        }
                    })
                })
                .collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).sum()
        });
        assert_eq!((wins, fs::metadata(&name).unwrap().len()), (1, 7));
    }
    let kept = File::open(bench.at("rw/0")).unwrap();
    let mut emptied = OpenOptions::new().write(true).truncate(true).open(bench.at("rw/0")).unwrap();
    assert_eq!((kept.metadata().unwrap().len(), fs::read(bench.stored("rw/0")).unwrap().len()), (0, 0));
    emptied.write_all(b"new").unwrap();
    assert_eq!(std::io::read_to_string(kept).unwrap(), "new", "who has it open sees what it is now");
}

#[test]
fn locks_hold_between_processes_and_go_with_them() {
    let Some(bench) = Bench::new("locks_hold_between_processes_and_go_with_them") else { return };
    python(
        &bench.at("rw"),
        r#"
import errno, fcntl, os, struct, subprocess, sys
file = open("lock", "w+b")
OFD_SETLK = 37
def ofd(file):
    fcntl.fcntl(file, OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 10, 0))
ways = {"flock": lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "fcntl": lambda file: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10), "ofd": ofd}
for way, take in ways.items():
    take(file)
    ready, done = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            take(open("lock", "r+b"))
            os._exit(1)
        except OSError as error:
            os._exit(0 if error.errno in (errno.EAGAIN, errno.EACCES) else 2)
    assert os.wait()[1] == 0, way
    file.close()
    file = open("lock", "r+b")
    # What a process held is free when it is killed.
    child = os.fork()
    if child == 0:
        mine = open("lock", "r+b")
        take(mine)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    os.kill(child, 9)
    os.wait()
    take(file)
    file.close()
    file = open("lock", "r+b")
"#,
    );
}

#[test]
fn direct_reads_and_writes_pass_the_cache() {
    let Some(bench) = Bench::new("direct_reads_and_writes_pass_the_cache") else { return };
    fs::write(bench.stored("ro/data"), vec![7; 1 << 20]).unwrap();
    python(
        &bench.at("rw"),
        r#"
import mmap, os
page = mmap.mmap(-1, 65536)
page.write(b"d" * 65536)
file = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
assert os.pwrite(file, page, 65536) == 65536
assert os.preadv(file, [page], 0) == 65536 and page[0] == 0
assert open("direct", "rb").read() == bytes(65536) + b"d" * 65536
os.pwrite(os.open("direct", os.O_RDWR), b"cached", 0)
assert os.preadv(file, [page], 0) == 65536 and page[:6] == b"cached"
file = os.open("../ro/data", os.O_RDONLY | os.O_DIRECT)
assert os.preadv(file, [page], 65536) == 65536 and page[:] == bytes([7]) * 65536
"#,
    );
}

#[test]
fn holes_stay_holes_and_sizes_may_be_huge() {
    let Some(bench) = Bench::new("holes_stay_holes_and_sizes_may_be_huge") else { return };
    let sh = |script: &str| {
        let output = Command::new("sh").args(["-ec", script]).current_dir(bench.at("rw")).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    sh(
        "truncate -s 1G sparse && printf end >> sparse && cp sparse copy && cp --sparse=always sparse always && cmp sparse copy",
    );
    for name in ["sparse", "copy", "always"] {
        let found = fs::metadata(bench.at("rw").join(name)).unwrap();
        assert_eq!(found.len(), (1 << 30) + 3);
        assert!(found.blocks() < 2048, "{name} takes {} blocks", found.blocks());
    }
    // Asked for, punched, zeroed.
    sh(
        "fallocate -l 8M full && test $(stat -c %b full) -ge 16384 && fallocate -p -o 1M -l 4M full && test $(stat -c %b full) -le 8300",
    );
    sh("fallocate -n -o 8M -l 1M full && test $(stat -c %s full) = 8388608 && fallocate -z -o 0 -l 64K full");
    sh(
        "truncate -s 10T huge && test $(stat -c %s huge) = 10995116277760 && printf x | dd of=huge bs=1 seek=9999999999999 conv=notrunc status=none",
    );
    assert!(fs::metadata(bench.stored("rw/huge")).unwrap().blocks() < 64);
    python(
        &bench.at("rw"),
        "import os\nfile = os.open('huge', os.O_RDONLY)\nassert os.lseek(file, 0, os.SEEK_DATA) > 9999999990000 and os.pread(file, 1, 9999999999999) == b'x'",
    );
}

#[test]
fn names_are_bytes() {
    let Some(bench) = Bench::new("names_are_bytes") else { return };
    let long = OsString::from_vec(vec![0xe9; 255]);
    let names = [
        OsStr::from_bytes(b"caf\xe9"),
        OsStr::new("two\nlines"),
        OsStr::new(" "),
        OsStr::from_bytes(b"\xff\xfe"),
        &long,
    ];
    let rw = bench.at("rw");
    for name in names {
        fs::write(rw.join(name), name.as_bytes()).unwrap();
        assert_eq!(fs::read(bench.stored("rw").join(name)).unwrap(), name.as_bytes());
    }
    let listed: BTreeSet<OsString> = fs::read_dir(&rw).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed, names.iter().map(|name| (*name).to_owned()).collect());
    let moved = OsStr::from_bytes(b"\xc3");
    fs::rename(rw.join(names[0]), rw.join(moved)).unwrap();
    assert_eq!(fs::read(rw.join(moved)).unwrap(), b"caf\xe9");
    let longer = rw.join(OsString::from_vec(vec![b'x'; 256]));
    assert_eq!(fs::write(longer, "").unwrap_err().raw_os_error(), Some(nix::libc::ENAMETOOLONG));
}

#[test]
fn a_path_is_as_long_as_the_system_takes_and_what_would_be_longer_is_refused_by_name() {
    let test = "a_path_is_as_long_as_the_system_takes_and_what_would_be_longer_is_refused_by_name";
    let Some(bench) = Bench::new(test) else { return };
    // Step by step: no path that is named is long.
    let said = python(
        &bench.at("rw"),
        r#"
import errno, os
length, here = len("rw"), os.getcwd()
while length + 201 <= 4090:
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
    length += 201
room = 4095 - length - 1
with open("f" * room, "w") as file:
    file.write("whole")
assert os.listdir() == ["f" * room] and open("f" * room).read() == "whole"
for make in (os.mkdir, lambda name: open(name, "w"), lambda name: os.symlink("x", name), lambda name: os.rename("f" * room, name)):
    try:
        make("f" * (room + 1))
    except OSError as error:
        assert error.errno == errno.ENAMETOOLONG, error
    else:
        raise AssertionError("longer than any path")
assert os.listdir() == ["f" * room]
# What a rename takes beyond that is not lost.
os.chdir(here)
os.rename("d" * 200, "e" * 210)
deep = os.open("e" * 210, os.O_RDONLY)
for step in range(length // 201 - 1):
    deep = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
try:
    os.stat("f" * room, dir_fd=deep)
except OSError as error:
    assert error.errno == errno.ENAMETOOLONG, error
else:
    raise AssertionError("longer than any path")
os.rename("e" * 210, "d" * 200)
print(os.stat("f" * room, dir_fd=deep).st_size)
"#,
    );
    assert_eq!(said, "5\n");
}

#[test]
fn supplementary_groups_count_and_access_tells_the_truth() {
    let Some(bench) = Bench::new("supplementary_groups_count_and_access_tells_the_truth") else { return };
    let team = bench.stored("rw/team");
    fs::create_dir(&team).unwrap();
    std::os::unix::fs::chown(&team, Some(0), Some(4400)).unwrap();
    fs::set_permissions(&team, fs::Permissions::from_mode(0o2770)).unwrap();
    let run = |groups: &[&str], script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4321", "--regid=4321"]).args(groups).args(["sh", "-ec", script]);
        command.current_dir(bench.at("rw")).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(run(&["--groups=4399,4400"], "test -w team && test -x team && mkdir team/d && echo x > team/d/f"));
    assert_eq!(fs::metadata(team.join("d/f")).unwrap().gid(), 4400, "the set-gid bit hands the group on");
    assert!(!run(&["--clear-groups"], "ls team") && run(&["--clear-groups"], "! test -w team && ! test -r team"));
}

#[test]
fn many_opens_at_once_of_a_file_that_is_replaced_all_read_one_of_its_states() {
    let test = "many_opens_at_once_of_a_file_that_is_replaced_all_read_one_of_its_states";
    let Some(bench) = Bench::new(test) else { return };
    for place in ["rw", "ro"] {
        let (shown, stored) = (bench.at(place), bench.stored(place));
        fs::write(stored.join("f"), [b'0'; 5000]).unwrap();
        let reads: [AtomicUsize; 6] = Default::default();
        std::thread::scope(|scope| {
            let readers: Vec<_> = reads
                .iter()
                .map(|reads| {
                    let shown = &shown;
                    scope.spawn(move || {
                        for _ in 0..400 {
                            let mut text = Vec::new();
                            let told = |what: &str| format!("{place}: {what}");
                            let mut file =
                                File::open(shown.join("f")).unwrap_or_else(|error| panic!("{}: {error}", told("open")));
                            file.metadata().unwrap_or_else(|error| panic!("{}: {error}", told("stat")));
                            std::io::Read::read_to_end(&mut file, &mut text)
                                .unwrap_or_else(|error| panic!("{}: {error}", told("read")));
                            reads.fetch_add(1, Ordering::Relaxed);
                            assert!(text.len() == 5000 && text.iter().all(|byte| *byte == text[0]), "a mixture");
                        }
                    })
                })
                .collect();
            // Through the mount where it may be changed, behind it where not.
            let changed = if place == "rw" { &shown } else { &stored };
            for round in 0..200u8 {
                fs::write(changed.join("next"), [b'a' + round % 26; 5000]).unwrap();
                fs::rename(changed.join("next"), changed.join("f")).unwrap();
                // The kernel asks once more for a file that was replaced between its name and its opening, not for ever: no
                // reader meets two of them in one read.
                for (reads, reader) in reads.iter().zip(&readers) {
                    let seen = reads.load(Ordering::Relaxed);
                    while reads.load(Ordering::Relaxed) == seen && !reader.is_finished() {
                        std::thread::yield_now();
                    }
                }
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}

#[test]
fn a_directory_of_200_000_entries_is_listed_whole_while_it_changes() {
    let test = "a_directory_of_200_000_entries_is_listed_whole_while_it_changes";
    let Some(bench) = Bench::new(test) else { return };
    let many = bench.stored("rw/many");
    fs::create_dir(&many).unwrap();
    // Names of one file are made sooner than files; a file can have 65,000.
    for number in 0..200_000u32 {
        match number % 50_000 {
            0 => drop(File::create(many.join(format!("{number:06}"))).unwrap()),
            _ => {
                fs::hard_link(many.join(format!("{:06}", number / 50_000 * 50_000)), many.join(format!("{number:06}")))
                    .unwrap()
            }
        }
    }
    let shown = bench.at("rw/many");
    let mut seen = Vec::new();
    for (count, entry) in fs::read_dir(&shown).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // Some go once they were seen, and new ones come.
        if count % 20 == 0 {
            fs::remove_file(shown.join(&name)).unwrap();
        }
        if count % 100 == 0 {
            File::create(shown.join(format!("new-{count}"))).unwrap();
        }
        seen.push(name);
    }
    let old: Vec<&String> = seen.iter().filter(|name| !name.starts_with("new-")).collect();
    assert_eq!(old.len(), 200_000, "each once");
    assert_eq!(old.iter().collect::<BTreeSet<_>>().len(), 200_000);
}

#[test]
fn ten_thousand_files_are_open_at_once() {
    let Some(bench) = Bench::new("ten_thousand_files_are_open_at_once") else { return };
    python(
        &bench.at("rw"),
        r#"
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (12000, max(12000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
files = [os.open("f%d" % number, os.O_RDWR | os.O_CREAT) for number in range(10000)]
for number, file in enumerate(files):
    os.write(file, b"%d" % number)
for number, file in enumerate(files):
    assert os.pread(file, 10, 0) == b"%d" % number
"#,
    );
}

#[test]
fn signals_in_the_midst_of_calls_lose_and_double_nothing() {
    let Some(bench) = Bench::new("signals_in_the_midst_of_calls_lose_and_double_nothing") else { return };
    python(
        &bench.at("rw"),
        r#"
import os, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
piece = os.urandom(1 << 20)
with open("f", "wb") as file:
    for _ in range(40):
        file.write(piece)
with open("f", "rb") as file:
    for _ in range(40):
        assert file.read(1 << 20) == piece
for number in range(500):
    os.rename(*(["f", "g"] if number % 2 == 0 else ["g", "f"]))
signal.setitimer(signal.ITIMER_REAL, 0)
assert os.listdir(".") == ["f"]
"#,
    );
}

#[test]
fn changes_in_the_mount_are_told_by_inotify() {
    let Some(bench) = Bench::new("changes_in_the_mount_are_told_by_inotify") else { return };
    let told = python(
        &bench.at("rw"),
        r#"
import ctypes, os, struct
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, b".", 0x00000fff) > 0
open("f", "w").write("x")
os.rename("f", "g")
os.remove("g")
events, at = os.read(watch, 65536), 0
while at < len(events):
    _, mask, _, length = struct.unpack_from("iIII", events, at)
    print(hex(mask), events[at + 16 : at + 16 + length].rstrip(b"\0").decode())
    at += 16 + length
# What is made behind the mount is told by nobody: the next event is that of what is made in it after that.
open("../../store/rw/behind", "w").write("x")
os.mkdir("inside")
_, mask, _, length = struct.unpack_from("iIII", os.read(watch, 4096))
print("then", hex(mask))
"#,
    );
    // Made, written, closed, moved from and to, removed.
    for event in ["0x100 f", "0x2 f", "0x8 f", "0x40 f", "0x80 g", "0x200 g", "then 0x40000100"] {
        assert!(told.lines().any(|line| line == event), "{event}: {told}");
    }
}

#[test]
fn a_full_disk_is_told_and_corrupts_nothing() {
    if !support::can_mount("a_full_disk_is_told_and_corrupts_nothing") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("store")).unwrap();
    fs::create_dir_all(dir.path().join("mnt")).unwrap();
    let store = dir.path().join("store");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&store).status().unwrap();
    assert!(mounted.success());
    fs::create_dir(store.join("rw")).unwrap();
    let mounted = support::mount_in(dir.path(), support::TestTree::default());
    let rw = dir.path().join("mnt/rw");
    fs::write(rw.join("kept"), vec![b'k'; 1 << 20]).unwrap();
    let mut file = File::create(rw.join("big")).unwrap();
    let mut written = 0;
    let full = loop {
        match file.write(&[b'b'; 4096]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(full.raw_os_error(), Some(nix::libc::ENOSPC));
    assert_eq!(file.metadata().unwrap().len(), written as u64, "what was taken is there");
    assert!(fs::read(rw.join("big")).unwrap().iter().all(|byte| *byte == b'b'));
    assert_eq!(fs::read(rw.join("kept")).unwrap(), vec![b'k'; 1 << 20]);
    drop(file);
    fs::remove_file(rw.join("big")).unwrap();
    // The kernel tells of a last close when it has been answered already: the room comes back with it.
    let due = Instant::now() + Duration::from_secs(30);
    while fs::write(rw.join("again"), vec![b'a'; 2 << 20]).is_err() {
        assert!(Instant::now() < due, "no room came back");
        std::thread::yield_now();
    }
    assert_eq!(fs::read(rw.join("again")).unwrap(), vec![b'a'; 2 << 20]);
    mounted.unmount().unwrap();
    assert!(Command::new("umount").arg(&store).status().unwrap().success());
}
