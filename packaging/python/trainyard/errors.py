"""Why something was not done: one class, a code for programs, a sentence for people, and what to do."""

from __future__ import annotations

from typing import Dict, Sequence

from .types import Diagnostic

#: What to do, by code: those of the daemon as docs/API.md lists them (a test compares), and those of this client.
ADVICE: Dict[str, str] = {
    "bad_request": "correct what the sentence names",
    "unauthorized": "give a token that is in force: `trainyard token new NAME --scope jobs` makes one on the machine",
    "forbidden": "ask whoever may, or use a token with the scope and workspaces that it takes",
    "not_yours": "ask the job's owner or root",
    "revoked": "ask the job's owner or root: what was followed is closed to you now",
    "root_only": "do it as root, or by a token of root's with the scope admin",
    "not_found": "look up the name; the lists of `Yard` tell what there is",
    "no_such_job": "look up the name: `yard.jobs()` lists all jobs that you may see",
    "no_such_path": "use a client and a daemon of versions that fit: `yard.openapi()` lists what the daemon has",
    "method_not_allowed": "use a client and a daemon of versions that fit: `yard.openapi()` lists what the daemon has",
    "body_timeout": "try again",
    "conflict": "take another name, or `replace` what is there",
    "several": "look at the jobs one by one",
    "sweep": "name one of its jobs, as NAME~VALUES",
    "not_running": "look at its state: `job.status()`",
    "still_running": "`job.stop()` and `job.wait()` first",
    "file_still_there": "`job.delete()` removes the file as well",
    "unsent_output": "`job.send_output()` sends it now, `job.give_up_output()` gives it up",
    "nothing_to_send": "nothing has to be sent",
    "no_time_limit": "it may take as long as it likes",
    "ending_already": "wait: `job.wait()`",
    "no_such_extension": "extend it by a shorter time",
    "no_job_file": "`job.replace()` writes it again",
    "stopped_by_file": "take `state` out of its file: `job.replace()`",
    "never_valid": "correct its file: `job.status()` tells what is wrong",
    "body_too_large": "send less",
    "range_not_satisfiable": "ask for a part that there is",
    "invalid_job": "correct the job file; `diagnostics` tells the places, `trainyard explain KEY` the keys",
    "invalid_template": "correct the template; `diagnostics` tells the places, `trainyard check FILE` tells them as well",
    "refused_now": "correct the job file: a new run begins of it",
    "too_many_requests": "ask more slowly, or for many jobs at once",
    "internal": "look at the daemon's journal: `journalctl -u trainyard`",
    "shutting_down": "try again when the daemon is back",
    "timeout": "try again; look at the daemon's journal if that goes on",
    "no_room": "have room made on the disk: `trainyard doctor disk` tells where; then look whether it was done",
    # This client's own.
    "unreachable": "look whether the daemon runs (`systemctl status trainyard`), and at the address",
    "connection_lost": "try again; what was asked for may have been done",
    "not_trusted": "name the certificate that signed the daemon's by `cafile`",
    "not_understood": "look whether something else listens at that address",
    "bad_argument": "correct what the sentence names",
    "timed_out": "wait longer: the job goes on",
    "job_failed": "look at `job.logs()` and `job.events()`",
}


class TrainyardError(Exception):
    """Something was refused or could not be done."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        diagnostics: Sequence[Diagnostic] = (),
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(code, message)
        #: Which kind it is, for programs; it stays the same.
        self.code = code
        #: What is wrong, for people.
        self.message = message
        #: The status of HTTP; 0 where the daemon has not answered.
        self.status = status
        #: What is wrong with a job file.
        self.diagnostics = tuple(diagnostics)
        #: Seconds after which it may be asked again, of `too_many_requests`.
        self.retry_after = retry_after

    @property
    def advice(self) -> str:
        """What to do."""
        return ADVICE.get(self.code, "")

    def __str__(self) -> str:
        advice = f" ({self.advice})" if self.advice else ""
        return f"{self.message}{advice} [{self.code}]"

    def __reduce__(self) -> "tuple[object, ...]":
        return (_again, (self.code, self.message, self.status, self.diagnostics, self.retry_after))


def _again(
    code: str, message: str, status: int, diagnostics: Sequence[Diagnostic], retry_after: float
) -> TrainyardError:
    return TrainyardError(code, message, status=status, diagnostics=diagnostics, retry_after=retry_after)
