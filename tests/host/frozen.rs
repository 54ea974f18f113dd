//! What is refused in a published version, whoever asks. pjdfstest's cases of `EROFS` need a file system that is mounted anew
//! read-only; these stand for them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::datasets::{draft, wait_published};
use super::support::Instance;

/// Further ways in which root might change a published version; what each came to, a line each.
pub(super) fn nobody_changes(version: &Path, file: &str) -> String {
    let script = "import ctypes, errno, fcntl, os, socket, stat, sys
os.chdir(sys.argv[1])
file = sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
def exchange(one, other):
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        raise OSError(ctypes.get_errno(), 'renameat2')
others = [name for name in sorted(os.listdir('.')) if not file.startswith(name)]
opened, here = os.open(file, os.O_RDONLY), os.open('.', os.O_RDONLY)
reopened = '/proc/self/fd/%d' % opened
flags = lambda: fcntl.ioctl(opened, 0x40086602, bytes([16, 0, 0, 0, 0, 0, 0, 0]))
for name, change in [
    ('setxattr', lambda: os.setxattr(file, 'user.x', b'y')),
    ('removexattr', lambda: os.removexattr(file, 'user.x')),
    ('setxattr of what is open', lambda: os.setxattr(opened, 'user.x', b'y')),
    ('mkfifo', lambda: os.mkfifo('new')),
    ('mknod', lambda: os.mknod('new', stat.S_IFCHR | 0o600, os.makedev(1, 3))),
    ('mknod of a file', lambda: os.mknod('new', stat.S_IFREG | 0o600)),
    ('bind', lambda: socket.socket(socket.AF_UNIX).bind('new')),
    ('symlink', lambda: os.symlink('x', 'new')),
    ('link in it', lambda: os.link(file, 'new')),
    ('link of what is open', lambda: os.link(reopened, 'new', src_dir_fd=here)),
    *([('exchange', lambda: exchange(file, others[0]))] if others else []),
    ('truncate by path', lambda: os.truncate(file, 1)),
    ('open to read, and truncate', lambda: os.open(file, os.O_RDONLY | os.O_TRUNC)),
    ('open to read and write', lambda: os.open(file, os.O_RDWR)),
    ('open anew to write', lambda: os.open(reopened, os.O_WRONLY)),
    ('open anew to append', lambda: os.open(reopened, os.O_WRONLY | os.O_APPEND)),
    ('open anew, and truncate', lambda: os.truncate(reopened, 1)),
    ('utimens', lambda: os.utime(file, ns=(1, 1))),
    ('utimens of what is open', lambda: os.utime(opened, ns=(1, 1))),
    ('utimens now', lambda: os.utime(file)),
    ('fchmod', lambda: os.fchmod(opened, 0o777)),
    ('fchown', lambda: os.fchown(opened, 1, 1)),
    ('lchown', lambda: os.lchown(file, 1, 1)),
    ('chmod of the directory', lambda: os.chmod('.', 0o777)),
    ('utimens of the directory', lambda: os.utime('.', ns=(1, 1))),
    ('flags', flags),
]:
    try:
        change()
        print(name, 'DONE')
    except OSError as error:
        print(name, errno.errorcode[error.errno])";
    let before = seen(version);
    let tried = Command::new("/usr/bin/python3").args(["-c", script]).arg(version).arg(file).output().unwrap();
    assert!(tried.status.success(), "{tried:?}");
    let told = String::from_utf8(tried.stdout).unwrap();
    assert!(told.lines().count() >= 25, "{told}");
    for line in told.lines() {
        // Where it is not shown directly yet, there are no flags.
        assert!(line.ends_with(" EROFS") || line == "flags ENOTTY", "{line}");
    }
    assert_eq!(seen(version), before);
    told
}

/// All that `find` tells of what lies there, and its content.
fn seen(version: &Path) -> String {
    let script =
        "find . ! -type d -printf '%P %y %m %U %G %s %T@\\n' | sort; find . -type f -exec sha256sum {} + | sort";
    let output = Command::new("sh").args(["-euc", script]).current_dir(version).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_a_read_only_file_system_refuses_a_version_refuses_however_it_is_shown() {
    let test = "what_a_read_only_file_system_refuses_a_version_refuses_however_it_is_shown";
    for config in ["", "[mount]\ndirect = \"none\"\n"] {
        let Some(instance) = Instance::start(test, config) else { return };
        let draft = draft(&instance, "d");
        fs::write(draft.join("x"), "content").unwrap();
        fs::write(draft.join("y"), "another").unwrap();
        rustix::fs::setxattr(draft.join("x"), "user.x", b"x", rustix::fs::XattrFlags::empty()).unwrap();
        let dataset = draft.parent().unwrap().to_owned();
        fs::rename(&draft, dataset.join("v1")).unwrap();
        let told = nobody_changes(&dataset.join("v1"), "x");
        wait_published(&dataset, "v1");
        for told in [told, nobody_changes(&dataset.join("v1"), "x")] {
            assert!(told.contains("exchange EROFS\n"), "{told}");
        }
        instance.shutdown();
    }
}
