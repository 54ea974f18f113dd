"""Stands in for the shim of an older program, in the directory of a task: writes what the shim of 28 November 2026 (4fb4601) wrote, byte for
byte, and reads what that read. Its command is `cat`, which ends well when our standard input does."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time

SIGNALS = [signal.SIGTERM, signal.SIGCHLD]


def write_whole(name, text):
    with open(name + ".aside", "w") as aside:
        aside.write(text)
        os.fsync(aside.fileno())
    os.rename(name + ".aside", name)


def tell_news(launch):
    task = launch["task"]
    again = ".%d" % task["again"] if task["again"] else ""
    name = "%d-%d%s" % (task["attempt"], task["ordinal"], again)
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(name.encode(), launch["news_socket"])
    except OSError:
        # No daemon listens: the next one sees it by itself.
        pass


def end_of(command):
    while True:
        if signal.sigwait(SIGNALS) == signal.SIGTERM:
            command.kill()
            command.wait()
            with open("stop") as stop:
                return '{"kind":"stopped","cause":%s}' % stop.read()
        if command.poll() is not None:
            return '{"kind":"exited","code":%d}' % command.returncode


os.chdir(sys.argv[1])
lock = open("lock", "r+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.truncate(0)
lock.write(str(os.getpid()))
lock.flush()
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
with open("task.json") as record:
    launch = json.load(record)
command = subprocess.Popen(["cat"], stdout=subprocess.DEVNULL)
write_whole("init.pid", str(command.pid))
write_whole("started", "null")
print("stands in", flush=True)
end = end_of(command)
write_whole("exit.json", '{"end":%s,"at":%d,"memory_peak":1048576,"note":null}' % (end, time.time() * 1000))
tell_news(launch)
