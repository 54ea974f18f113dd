//! A process that the kernel does not let go of, killed or not: it waits for the answer of a file system that never comes.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::crash::left_of_attempts;
use super::support::{Instance, pids_with, text, wait_for};

/// Mounts a FUSE file system into the mount namespace of process `argv[1]`, answers that it is there, and nothing else:
/// what it has read of the questions is waited for without end.
const SILENT: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open('/dev/fuse', os.O_RDWR)
if libc.setns(os.open(f'/proc/{sys.argv[1]}/ns/mnt', os.O_RDONLY), 0x20000):
    raise OSError(ctypes.get_errno(), 'setns')
os.makedirs('/tmp/silent')
options = f'fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
if libc.mount(b'silent', b'/tmp/silent', b'fuse.silent', 0, options):
    raise OSError(ctypes.get_errno(), 'mount')
question = os.read(fuse, 1 << 17)
unique = struct.unpack_from('=Q', question, 8)[0]
body = struct.pack('=IIIIHHIIHH', 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0).ljust(64, b'\0')
os.write(fuse, struct.pack('=IiQ', 16 + len(body), 0, unique) + body)
print('mounted', flush=True)
while True:
    question = os.read(fuse, 1 << 17)
    print(struct.unpack_from('=I', question, 4)[0], flush=True)
"#;

fn silent(beside: i32) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", SILENT, &beside.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "mounted");
    (child, lines)
}

#[test]
fn a_process_that_hangs_in_the_kernel_is_told_and_goes_when_it_can() {
    let test = "a_process_that_hangs_in_the_kernel_is_told_and_goes_when_it_can";
    let Some(instance) = Instance::start(test, "") else { return };
    let script = "until grep -q silent /proc/self/mounts; do sleep 0.02; done; exec cat /tmp/silent/1000.625";
    instance.drop_job("hang", &format!("stop_grace = \"200ms\"\ncommand = {script:?}"));
    instance.wait_state("hang", "running");
    let task = wait_for("its command", || {
        pids_with("1000.625").into_iter().find(|(_, line)| line.starts_with("/bin/sh")).map(|(pid, _)| pid)
    });
    let (mut server, mut questions) = silent(task);
    assert!(questions.next().unwrap().unwrap().parse::<u32>().is_ok(), "the command asks, and waits");
    instance.ok(&["stop", "hang"]);
    let stopping = wait_for("the word on what hangs", || {
        instance.report("hang").filter(|report| text(&report["reason"]).contains("hanging in the kernel"))
    });
    assert_eq!(stopping["state"], "stopping", "over is over: not while something of it is there");
    for reason in [text(&stopping["reason"]), text(&stopping["tasks"][0]["reason"])] {
        assert!(reason.contains("stopped by") && reason.contains(&format!("pid {task} (cat)")), "{reason}");
    }
    assert!(!pids_with("1000.625").is_empty(), "it is still there");
    // Its group and its mounts stay while it does, and others are not held up.
    let after = instance.run_job("after", "command = \"echo free\"");
    assert_eq!(after["state"], "succeeded", "{after:#}");
    server.kill().unwrap();
    server.wait().unwrap();
    let report = instance.wait_end("hang", 1);
    assert_eq!(report["state"], "stopped", "{report:#}");
    assert_eq!(pids_with("1000.625"), []);
    wait_for("all of it to be taken away", || left_of_attempts(&instance).is_empty().then_some(()));
    instance.shutdown();
}
