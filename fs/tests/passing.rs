//! What the kernel reads, writes and maps by itself: that all who have a file open see one content, and that what somebody may still
//! change is not frozen. Needs root and /dev/fuse; without them each test says `SKIPPED`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests drive processes and may panic")]

#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::Bench;

/// More than the least that is passed.
const LARGE: usize = 2 << 20;

/// Maps by the system call: Python's own maps keep the file open.
const MAPS: &str = r"
import ctypes, itertools, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
READ, WRITE, SHARED = 1, 2, 1
def mapped(fd, protection):
    at = libc.mmap(None, 4096, protection, SHARED, fd, 0)
    assert at != 2**64 - 1, os.strerror(ctypes.get_errno())
    return (ctypes.c_ubyte * 4096).from_address(at)
def unmap(view):
    assert libc.munmap(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(4096)) == 0
";

/// Opens a file in every order for reading, for writing and for both, maps it, writes by each way and looks by each, also by maps
/// of before whose files are closed.
const ALL_WAYS: &str = r"
path, size = sys.argv[1], int(sys.argv[2])
def work(order, old):
    fds = {flags: os.open(path, flags) for flags in order}
    reads, both = fds[os.O_RDONLY], fds[os.O_RDWR]
    maps = [mapped(reads, READ), mapped(both, READ | WRITE)]
    ways = [lambda b: os.pwrite(fds[os.O_WRONLY], b, 7), lambda b: os.pwrite(both, b, 7), lambda b: maps[1].__setitem__(7, b[0])]
    for way in ways:
        byte = (os.pread(reads, 1, 7)[0] + 1) % 256
        way(bytes([byte]))
        seen = [view[7] for view in maps + old] + [os.pread(fd, 1, 7)[0] for fd in (reads, both)]
        assert seen == [byte] * len(seen), (size, order, ways.index(way), byte, seen)
    for fd in fds.values(): os.close(fd)
    return maps
orders = list(itertools.permutations([os.O_RDONLY, os.O_WRONLY, os.O_RDWR]))
for first, second in itertools.product(orders, orders):
    with open(path, 'wb') as file: file.write(bytes(size))
    maps = work(first, [])
    # Nobody has it open any more, but mapped; and it is no longer as large as it was.
    os.truncate(path, 4096)
    maps += work(second, maps)
    for view in maps: unmap(view)
    os.remove(path)
";

fn python(script: &str, arguments: &[&Path]) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", &format!("{MAPS}{script}")]).args(arguments);
    python
}

#[test]
fn whoever_reads_writes_or_maps_a_file_in_whatever_order_sees_one_content() {
    let Some(bench) = Bench::new("whoever_reads_writes_or_maps_a_file_in_whatever_order_sees_one_content") else {
        return;
    };
    fs::create_dir(bench.at("rw/passed")).unwrap();
    for directory in ["rw", "rw/passed"] {
        for size in [4096, LARGE] {
            let path = bench.at(directory).join("f");
            let done = python(ALL_WAYS, &[&path, Path::new(&size.to_string())]).output().unwrap();
            assert!(done.status.success(), "{directory}, {size}: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
}

/// Who has mapped a file, and closed it.
struct Mapping(Child);

impl Mapping {
    fn of(path: &Path, flags: &str, protection: &str) -> Self {
        let script = format!(
            "fd = os.open(sys.argv[1], {flags})\nview = mapped(fd, {protection})\nos.close(fd)\nprint('mapped', flush=True)\nsys.stdin.readline()"
        );
        let mut child = python(&script, &[path]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mapped\n");
        Self(child)
    }

    fn end(mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn what_is_mapped_to_be_written_is_not_frozen_whoever_else_has_it_open_and_what_is_read_is() {
    let name = "what_is_mapped_to_be_written_is_not_frozen_whoever_else_has_it_open_and_what_is_read_is";
    let Some(bench) = Bench::new(name) else { return };
    let draft = bench.at("rw/passed/draft");
    fs::create_dir_all(&draft).unwrap();
    for size in [4096, LARGE] {
        let path = draft.join(size.to_string());
        fs::write(&path, vec![1; size]).unwrap();
        for beside in
            [None, Some(fs::File::options().read(true).clone()), Some(fs::File::options().write(true).clone())]
        {
            let beside = beside.map(|options| options.open(&path).unwrap());
            let mapping = Mapping::of(&path, "os.O_RDWR", "READ | WRITE");
            drop(beside);
            let refused = fs::rename(&draft, bench.at("rw/passed/frozen")).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy, "{size}");
            mapping.end();
        }
    }
    let readers = [4096, LARGE].map(|size| Mapping::of(&draft.join(size.to_string()), "os.O_RDONLY", "READ"));
    fs::rename(&draft, bench.at("rw/passed/frozen")).unwrap();
    readers.into_iter().for_each(Mapping::end);
}
