#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests may panic")]
#![allow(dead_code, reason = "the support is shared")]
//! A mount that is paused and served again, as at an upgrade. Needs root, /dev/fuse and Linux 6.9.

mod support;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use support::{Bench, can_mount, kernel_passes_through, prepared};
use trainyard_fs::{Content, ContentMetadata, MountOptions, Mounted, Reason, RelPath, Rule, Tree, mount};

const PATIENCE: Duration = Duration::from_secs(60);
const WRITERS: usize = 8;

fn pause_and_resume<T: Tree>(mounted: Mounted<T>) -> Mounted<T> {
    mounted.pause(PATIENCE).unwrap().resume().unwrap()
}

/// Each request twice, or not at all, would be seen: by `EEXIST`, `ENOENT`, or a file of another length.
fn work(dir: &Path, round: usize) -> io::Result<()> {
    let (name, other) = (dir.join(format!("{round}")), dir.join(format!("{round}.renamed")));
    let mut file = OpenOptions::new().append(true).create_new(true).open(&name)?;
    for part in 0..4 {
        file.write_all(format!("{round} {part}\n").as_bytes())?;
    }
    fs::rename(&name, &other)?;
    let mut text = String::new();
    File::open(&other)?.read_to_string(&mut text)?;
    assert_eq!(text, (0..4).map(|part| format!("{round} {part}\n")).collect::<String>());
    fs::create_dir(&name)?;
    fs::hard_link(&other, name.join("link"))?;
    fs::remove_file(name.join("link"))?;
    fs::remove_dir(&name)?;
    if round.is_multiple_of(2) { fs::remove_file(&other) } else { Ok(()) }
}

#[test]
fn who_works_while_the_mount_is_paused_notices_nothing_and_each_request_is_done_once() {
    let test = "who_works_while_the_mount_is_paused_notices_nothing_and_each_request_is_done_once";
    if !kernel_passes_through(test) {
        return;
    }
    let Some(bench) = Bench::new(test) else { return };
    let (dir, mut mounted) = bench.into_parts();
    let (at, stored) = (dir.path().join("mnt/rw"), dir.path().join("store/rw"));
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let served = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let dir = at.join(format!("{writer}"));
                let (over, rounds) = (&over, &rounds);
                scope.spawn(move || {
                    fs::create_dir(&dir).unwrap();
                    let mut done = 0;
                    while !over.load(Ordering::Relaxed) {
                        work(&dir, done).unwrap_or_else(|error| panic!("round {done} of {writer}: {error}"));
                        done += 1;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    (dir, done)
                })
            })
            .collect();
        for _ in 0..40 {
            let before = rounds.load(Ordering::Relaxed);
            mounted = pause_and_resume(mounted);
            support::until(PATIENCE, || {
                rounds.load(Ordering::Relaxed) > before || writers.iter().any(|writer| writer.is_finished())
            });
        }
        over.store(true, Ordering::Relaxed);
        for writer in writers {
            let (dir, done) = writer.join().unwrap();
            assert_eq!(fs::read_dir(stored.join(dir.file_name().unwrap())).unwrap().count(), done / 2);
        }
        mounted
    });
    served.unmount().unwrap();
}

#[test]
fn what_is_open_goes_on_by_the_same_numbers() {
    let test = "what_is_open_goes_on_by_the_same_numbers";
    if !kernel_passes_through(test) {
        return;
    }
    let Some(bench) = Bench::new(test) else { return };
    fs::write(bench.stored("ro/frozen"), b"frozen").unwrap();
    bench.say(b"one\n");
    let frozen = File::open(bench.at("ro/frozen")).unwrap();
    let mut generated = File::open(bench.at("now.txt")).unwrap();
    let removed = File::create_new(bench.at("rw/removed")).unwrap();
    fs::remove_file(bench.at("rw/removed")).unwrap();
    let (frozen_at, before) = (bench.at("ro/frozen"), fs::read_dir("/proc/self/fd").unwrap().count());
    let (_dir, mut mounted) = bench.into_parts();
    for round in 0..3 {
        mounted = pause_and_resume(mounted);
        removed.write_all_at(b"more", round * 4).unwrap();
        let mut byte = [0; 6];
        frozen.read_exact_at(&mut byte, 0).unwrap();
        // Open by passthrough, so any other backing number would be an error.
        assert_eq!(fs::read(&frozen_at).unwrap(), b"frozen");
    }
    assert_eq!(removed.metadata().unwrap().len(), 12);
    let mut text = String::new();
    generated.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\n");
    // What was read last is closed a moment later; nothing else is left over.
    support::until(PATIENCE, || fs::read_dir("/proc/self/fd").unwrap().count() == before);
    drop((frozen, generated, removed));
    mounted.unmount().unwrap();
}

/// A generated file whose reader waits until it may go on.
#[derive(Clone, Default)]
struct Hanging(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    begun: bool,
    go_on: bool,
}

impl Content for Hanging {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        Ok(ContentMetadata { size: 2, mtime: SystemTime::UNIX_EPOCH, uid: 0, gid: 0, mode: 0o644 })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.0.lock().unwrap();
        state.begun = true;
        self.0.1.notify_all();
        drop(self.0.1.wait_while(state, |state| !state.go_on).unwrap());
        let text = b"ok".get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        buffer[..text.len()].copy_from_slice(text);
        Ok(text.len())
    }
}

impl Tree for Hanging {
    fn rule(&self, _: &RelPath) -> Rule {
        Rule::ReadWrite
    }

    fn generated(&self, _: &RelPath) -> Vec<OsString> {
        Vec::new()
    }

    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        Ok((path.as_path() == Path::new("hangs")).then(|| Box::new(self.clone()) as Box<dyn Content>))
    }

    fn attr_ttl(&self, _: &RelPath) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_mount_that_cannot_answer_in_time_is_served_on() {
    let test = "a_mount_that_cannot_answer_in_time_is_served_on";
    if !can_mount(test) || !kernel_passes_through(test) {
        return;
    }
    let (dir, tree) = (prepared(), Hanging::default());
    let options = MountOptions { fs_name: "trainyard-test".into(), threads: 2 };
    let mounted = mount(&dir.path().join("store"), &dir.path().join("mnt"), tree.clone(), &options).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read_to_string(dir.path().join("mnt/hangs")).unwrap());
        drop(tree.0.1.wait_while(tree.0.0.lock().unwrap(), |state| !state.begun).unwrap());
        let not_paused = mounted.pause(Duration::from_millis(50)).unwrap_err();
        assert!(matches!(not_paused.reason, Reason::Busy), "{:?}", not_paused.reason);
        fs::write(dir.path().join("mnt/rw/f"), b"served on").unwrap();
        tree.0.0.lock().unwrap().go_on = true;
        tree.0.1.notify_all();
        assert_eq!(reader.join().unwrap(), "ok");
        pause_and_resume(not_paused.mounted).unmount().unwrap();
    });
}

/// Grows as the stored file `text` does.
struct Grows(std::path::PathBuf);

impl Content for Grows {
    fn metadata(&self) -> io::Result<ContentMetadata> {
        let size = fs::metadata(&self.0)?.len();
        Ok(ContentMetadata { size, mtime: SystemTime::UNIX_EPOCH, uid: 0, gid: 0, mode: 0o644 })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        File::open(&self.0)?.read_at(buffer, offset)
    }

    fn grows_with(&self) -> Option<std::path::PathBuf> {
        Some(self.0.clone())
    }
}

struct Growing(std::path::PathBuf);

impl Tree for Growing {
    fn rule(&self, _: &RelPath) -> Rule {
        Rule::ReadWrite
    }

    fn generated(&self, _: &RelPath) -> Vec<OsString> {
        Vec::new()
    }

    fn open_generated(&self, path: &RelPath) -> io::Result<Option<Box<dyn Content>>> {
        Ok((path.as_path() == Path::new("grows")).then(|| Box::new(Grows(self.0.clone())) as Box<dyn Content>))
    }

    fn attr_ttl(&self, _: &RelPath) -> Duration {
        Duration::ZERO
    }
}

/// Whether there is something to read within so many milliseconds.
fn is_readable(file: &File, longest: u16) -> bool {
    use nix::poll::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], longest).unwrap() == 1
}

#[test]
fn who_polls_what_grows_is_woken_also_by_whoever_serves_next() {
    let test = "who_polls_what_grows_is_woken_also_by_whoever_serves_next";
    if !can_mount(test) || !kernel_passes_through(test) {
        return;
    }
    let dir = prepared();
    let text = dir.path().join("store/text");
    let mut writer = File::create(&text).unwrap();
    writer.write_all(b"one").unwrap();
    let options = MountOptions { fs_name: "trainyard-test".into(), threads: 2 };
    let (store, at) = (dir.path().join("store"), dir.path().join("mnt"));
    let mut mounted = mount(&store, &at, Growing(text), &options).unwrap();
    let stored = File::open(at.join("text")).unwrap();
    let mut file = File::open(at.join("grows")).unwrap();
    for round in 0..10 {
        assert!(is_readable(&file, 10_000), "there is something, round {round}");
        file.read_to_end(&mut Vec::new()).unwrap();
        assert!(!is_readable(&file, 0), "all of it was read, round {round}");
        assert!(is_readable(&stored, 0), "a stored file is always readable");
        mounted = std::thread::scope(|scope| {
            let waits = scope.spawn(|| is_readable(&file, 20_000));
            let mounted = if round % 2 == 0 { pause_and_resume(mounted) } else { mounted };
            writer.write_all(b"more").unwrap();
            assert!(waits.join().unwrap(), "it is woken, round {round}");
            mounted
        });
    }
    drop((file, stored));
    mounted.unmount().unwrap();
}
