"""`Job`: one job, whatever becomes of it; `Result` is how it has ended, `Logs` what it has printed."""

from __future__ import annotations

import csv
import html
import io
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from typing import Dict, Iterator, List, Mapping, Optional, Union, cast
from urllib.parse import urlsplit

from . import _arguments
from ._events import PASSING, pulses
from ._transport import Transport, Value, path
from ._values import JobLike, Time, job_file, moment
from .errors import TrainyardError
from .types import Done, EventView, HappeningView, JobReport, JobView, LogLine, WaitReport

#: States in which nothing more happens by itself.
TERMINAL = ("succeeded", "failed", "stopped")
#: A row of a table: numbers where they are numbers, None where there is nothing.
Row = Dict[str, Union[float, str, None]]


@dataclass(frozen=True)
class Result:
    """How a job has ended."""

    #: `WORKSPACE/NAME`.
    key: str
    #: `succeeded`, `failed` or `stopped`.
    state: str
    #: Why, one line.
    reason: str
    #: Of the command: 0 of a success, of a failure that of the task that failed first; None where there is none.
    exit_code: Optional[int]
    report: JobReport

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    def check(self) -> "Result":
        """Itself; raises `job_failed` unless it has succeeded."""
        if not self.succeeded:
            raise TrainyardError("job_failed", f"{self.key}: {self.state}: {self.reason}")
        return self


class Logs:
    """What tasks have printed: lines one by one, or as text by `str`. It is asked for each time."""

    def __init__(self, transport: Transport, place: str, query: Mapping[str, Value]) -> None:
        self._transport = transport
        self._place = place
        self._query = query

    def __iter__(self) -> Iterator[LogLine]:
        with self._transport.open("GET", self._place, self._query) as stream:
            # A training may be silent for long.
            stream.silence(None)
            for line in stream.lines():
                yield cast(LogLine, line)

    def parts(self) -> Iterator[bytes]:
        """The tasks' lines, byte by byte, without saying which wrote them."""
        with self._transport.open("GET", self._place, {**self._query, "format": "text"}) as stream:
            stream.silence(None)
            yield from stream.parts()

    def save(self, file: "Union[str, PathLike[str]]") -> None:
        """Into a file, which is written over."""
        place = _arguments.file(file, "file")
        try:
            with open(place, "wb") as out:
                for part in self.parts():
                    out.write(part)
        except (OSError, ValueError) as error:
            raise TrainyardError("bad_argument", f"cannot write {place}: {error}") from error

    def __str__(self) -> str:
        return b"".join(self.parts()).decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"Logs({self._place!r})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Job:
    """A job by its name. What it is, is asked for when it is wanted; `seen` is as it was when it was asked last."""

    def __init__(self, transport: Transport, workspace: str, name: str, seen: Optional[JobReport] = None) -> None:
        if not _arguments.text(workspace, "workspace") or not _arguments.text(name, "name"):
            raise TrainyardError("bad_argument", "a job has a name, as NAME or WORKSPACE/NAME")
        self._transport = transport
        self._seen = seen
        self.workspace = workspace
        self.name = name

    def __repr__(self) -> str:
        return f"Job({self.key!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Job):
            return NotImplemented
        return (self._transport.address, self.key) == (other._transport.address, other.key)

    def __hash__(self) -> int:
        return hash((self._transport.address, self.key))

    @property
    def key(self) -> str:
        """`WORKSPACE/NAME`."""
        return f"{self.workspace}/{self.name}"

    def _path(self, *rest: str) -> str:
        return path("jobs", self.workspace, self.name, *rest)

    # What it is

    def view(self, *, run: Optional[int] = None, events_from: Optional[int] = None) -> JobView:
        """All of it: report, runs with their attempts and tasks, events, ports, cards, job file.

        Of many runs and events the newest 100 and 1,000; `run` asks for one run alone, `events_from` for the 1,000 events from a number on.
        """
        query: Dict[str, Value] = {"run": run, "events_from": events_from}
        view = cast(JobView, self._transport.json("GET", self._path(), query))
        self._seen = view["report"]
        return view

    def status(self) -> JobReport:
        """Its state and its newest run, as they are now."""
        return self.view()["report"]

    @property
    def seen(self) -> JobReport:
        """As it was when it was asked last."""
        return self._seen if self._seen is not None else self.status()

    @property
    def state(self) -> str:
        """Its state as it is now."""
        return self.status()["state"]

    def waiting(self) -> Optional[WaitReport]:
        """Its place in the queue, and what it waits for; None where it does not wait in the queue."""
        return self.status().get("waiting")

    def place(self) -> Optional[int]:
        """Its place in the queue when it was seen last, from 1."""
        waiting = self.seen.get("waiting")
        return None if waiting is None else waiting["place"]

    def file(self) -> str:
        """Its job file."""
        return self._transport.read("GET", self._path("file")).decode()

    def addresses(self) -> Dict[str, str]:
        """Where what its tasks serve is reached while they run, by `TASK/LABEL`: TensorBoard, notebooks, ports."""
        found: Dict[str, str] = {}
        host = urlsplit(self._transport.address).hostname or socket.gethostname()
        for port in self.view()["ports"]:
            if port["published"] is not None:
                at = f"{_bracketed(host)}:{port['published']}"
            else:
                at = f"{_bracketed(port['address'])}:{port['port']}"
            found[f"{port['task']}/{port['label']}"] = f"http://{at}/" if port["label"] == "http" else at
        return found

    def tensorboard(self) -> Optional[str]:
        """The address of its TensorBoard (of the first, where each task has one); None while there is none."""
        boards = {name: at for name, at in self.addresses().items() if name.startswith("tensorboard")}
        return boards[min(boards)] if boards else None

    # What it has told

    def logs(
        self,
        task: Optional[str] = None,
        *,
        lines: Optional[int] = None,
        since: Optional[Time] = None,
        until: Optional[Time] = None,
        follow: bool = False,
        run: Optional[int] = None,
        attempt: Optional[int] = None,
    ) -> Logs:
        """What its tasks have printed, merged by time; with `follow` until the run has ended.

        `task` is ROLE-I, `lines` only so many of the last of each task.
        """
        query: Dict[str, Value] = {"task": task, "lines": lines, "since": moment(since, "since"), "until": moment(until, "until")}
        query.update(follow=follow, run=run, attempt=attempt)
        return Logs(self._transport, self._path("logs"), query)

    def events(self) -> List[EventView]:
        """What has happened to it; `follow` tells what happens."""
        events: List[EventView] = []
        while True:
            part = self.view(events_from=events[-1]["number"] + 1 if events else 0)["events"]
            if not part:
                return events
            events.extend(part)

    def follow(self, after: int = 0, *, patience: float = 60.0) -> Iterator[HappeningView]:
        """What has happened to it behind the event `after`, and what happens, for ever; as `Yard.events`."""
        query: Dict[str, Value] = {"workspace": self.workspace, "job": self.name, "after": after, "follow": True}
        return (event for event in pulses(self._transport, query, patience) if event is not None)

    def metrics(
        self, task: Optional[str] = None, *, run: Optional[int] = None, attempt: Optional[int] = None
    ) -> List[Row]:
        """What a task has used of the machine, a row for every 5 s."""
        return self._table("metrics", task, run, attempt)

    def scalars(
        self, task: Optional[str] = None, *, run: Optional[int] = None, attempt: Optional[int] = None
    ) -> List[Row]:
        """Numbers that a task has told of its training: step, tag, value, time."""
        return self._table("scalars", task, run, attempt)

    def _table(self, table: str, task: Optional[str], run: Optional[int], attempt: Optional[int]) -> List[Row]:
        query: Dict[str, Value] = {"task": task or self._only_task(), "run": run, "attempt": attempt}
        text = self._transport.read("GET", self._path(table), query).decode()
        # Of a row that is being written the end is missing.
        whole = text[: text.rfind("\n") + 1]
        return [_row(row) for row in csv.DictReader(io.StringIO(whole))]

    def _only_task(self) -> str:
        tasks = [task["task"] for task in self.status()["tasks"]]
        if len(tasks) != 1:
            told = ", ".join(tasks) or "none yet"
            raise TrainyardError("bad_argument", f"say which task of {self.key} is meant; it has {told}")
        return tasks[0]

    # What is done to it

    def wait(self, timeout: Optional[float] = None, *, patience: float = 60.0) -> Result:
        """Waits until it is over, as the daemon tells; raises `timed_out` after `timeout` seconds.

        A daemon that does not answer, as in a restart, is waited for `patience` seconds.
        """
        until = None if timeout is None else time.monotonic() + _arguments.seconds(timeout, "timeout")
        query: Dict[str, Value] = {"workspace": self.workspace, "job": self.name, "follow": True}
        try:
            return self._until_over(pulses(self._transport, query, patience, until))
        except TrainyardError as error:
            if error.code != "timed_out":
                raise
            raise TrainyardError("timed_out", f"{self.key} is not over after {timeout} s") from None

    def _until_over(self, pulses: Iterator[Optional[HappeningView]]) -> Result:
        run = 0
        for event in pulses:
            if event is not None and (event["state"] not in (*TERMINAL, "invalid") or event["run"] < run):
                continue
            try:
                report = self.status()
            except TrainyardError as error:
                if error.code in PASSING:
                    continue  # The stream ends as well, and goes on when the daemon is back.
                raise
            run = report["run"]
            if report["state"] in TERMINAL:
                return Result(self.key, report["state"], report["reason"], _exit_code(report), report)
            if report["state"] == "invalid":
                raise TrainyardError("never_valid", f"{self.key}: {report['reason']}", diagnostics=report["diagnostics"])
        raise AssertionError("what is followed has no end")

    def stop(self, *, now: bool = False) -> str:
        """Stops what runs of it, or takes it from the queue; `now` kills it, also in the middle of its grace."""
        return self._do("POST", "stop", query={"now": now})

    def rerun(self) -> str:
        """Runs it once more, after what runs of it."""
        return self._do("POST", "rerun")

    def restart(self) -> str:
        """Stops what runs of it, then runs it once more."""
        return self._do("POST", "restart")

    def extend(self, by: Union[timedelta, float]) -> str:
        """Lets its newest run take longer, by a `timedelta` or seconds."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else _arguments.number(by, "by")
        return self._do("POST", "extend", query={"by_ms": round(seconds * 1000)})

    def send_output(self) -> str:
        """Copies what there is of its output to its store now."""
        return self._do("POST", "send")

    def give_up_output(self) -> str:
        """Gives up the copy of its output to its store."""
        return self._do("DELETE", "send")

    def replace(self, job: JobLike) -> None:
        """Writes its job file anew: what comes of that, `on_edit` in the file says."""
        self._transport.json("PUT", self._path("file"), body=job_file(job))

    def clone(self, name: str, *, workspace: Optional[str] = None) -> "Job":
        """A new job that is like this one."""
        made = Job(self._transport, self.workspace if workspace is None else workspace, name)
        self._transport.json("POST", self._path("clone"), {"as": name, "to": workspace})
        return made

    def delete(self) -> str:
        """Removes its file and its record, once it is over; `still_running` before."""
        return self._do("DELETE", query={"file": True})

    def delete_file(self) -> None:
        """Removes its file, which stops it; the record stays."""
        self._do("DELETE", "file")

    def _do(self, method: str, *rest: str, query: Optional[Mapping[str, Value]] = None) -> str:
        return cast(Done, self._transport.json(method, self._path(*rest), query))["message"]

    def _repr_html_(self) -> str:
        report = self.status()
        cells = (self.key, report["state"], report["reason"])
        return "<p><b>{}</b> {}: {}</p>".format(*(html.escape(cell) for cell in cells))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _exit_code(report: JobReport) -> Optional[int]:
    if report["state"] != "failed":
        return 0 if report["state"] == "succeeded" else None
    failed = [task for task in report["tasks"] if task["exit_code"]]
    return min(failed, key=lambda task: task["ended"] or "~")["exit_code"] if failed else None


def _row(row: Mapping[str, Optional[str]]) -> Row:
    return {name: _number(value) for name, value in row.items()}


def _number(text: Optional[str]) -> Union[float, str, None]:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
