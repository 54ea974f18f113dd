"""`connect` and `Yard`: everything of a daemon that is not of one job alone."""

from __future__ import annotations

import html
import os
from os import PathLike
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union, cast

from . import _arguments
from ._events import pulses
from ._transport import ANSWER_S, Transport, Value, find_token, path
from ._values import JobLike, Time, job_file, moment
from .errors import TrainyardError
from .job import Job
from .types import (
    Checked,
    DatasetView,
    GpuList,
    HappeningView,
    ImageView,
    JobReport,
    JobReportList,
    ModelView,
    Readiness,
    SecretView,
    TemplateDetail,
    TemplateView,
    UsageView,
    WorkspaceDetail,
    WorkspaceView,
)

#: Of a list at once.
PAGE = 1000
#: What changes while pages are asked for, so that a job could be on none of them: then all are asked for by name, and sorted here.
_CHANGING: Dict[str, Callable[[JobReport], Union[str, int]]] = {
    "state": lambda job: job["state"],
    "duration": lambda job: job["duration_ms"] or 0,
}
#: Below the directory of the installation.
SOCKET = "run/trainyard/api.sock"


def connect(
    address: "Union[str, PathLike[str], None]" = None,
    *,
    token: Optional[str] = None,
    token_file: "Union[str, PathLike[str], None]" = None,
    cafile: "Union[str, PathLike[str], None]" = None,
    timeout: float = ANSWER_S,
) -> "Yard":
    """A daemon: by default that of this machine, as for the command line (`TRAINYARD_ROOT` says where it is installed).

    `address` is the path of its socket, or `https://HOST:PORT` with a token: as given, in a file, in `TRAINYARD_TOKEN` or
    in the file of `TRAINYARD_TOKEN_FILE`. `cafile` is what its certificate is checked by, if not what the machine trusts.
    `TRAINYARD_ADDRESS` is `address` where none is given. Nothing is asked yet.
    """
    where = _arguments.file(address, "address") if address is not None else os.environ.get("TRAINYARD_ADDRESS")
    if not where:
        where = str(Path(os.environ.get("TRAINYARD_ROOT") or "/") / SOCKET)
    secret = find_token(token, token_file) if "://" in where else None
    ca = _arguments.file(cafile, "cafile") if cafile is not None else None
    try:
        return Yard(Transport(where, token=secret, cafile=ca, timeout=timeout))
    except (OSError, ValueError) as error:  # Of the certificate's file.
        raise TrainyardError("bad_argument", f"cannot read {ca}: {error}") from error


class Yard:
    """A machine with its jobs. `connect` makes it; threads may share it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"Yard({self._transport.address!r})"

    # Jobs

    def create(self, name: str, job: JobLike, *, workspace: str = "default", replace: bool = False) -> Job:
        """Writes a job file, which starts the job; `conflict` where there is one of the name, unless `replace`."""
        made = self.job(name, workspace=workspace)
        query: Mapping[str, Value] = {"new": not replace}
        self._transport.json("PUT", path("jobs", made.workspace, made.name, "file"), query, job_file(job))
        return made

    def check(self, job: JobLike, *, name: str = "job", workspace: str = "default") -> Checked:
        """What would be said of a job file, which is not written."""
        query: Mapping[str, Value] = {"workspace": workspace, "job": name}
        return cast(Checked, self._transport.json("POST", path("check"), query, job_file(job)))

    def job(self, name: str, *, workspace: str = "default") -> Job:
        """A job by its name, which may be `WORKSPACE/NAME`. Nothing is asked yet."""
        first, slash, rest = _arguments.text(name, "name").partition("/")
        return Job(self._transport, first, rest) if slash else Job(self._transport, workspace, name)

    def jobs(
        self,
        text: Optional[str] = None,
        *,
        state: Union[str, Iterable[str], None] = None,
        name: Optional[str] = None,
        user: Union[str, int, None] = None,
        workspace: Optional[str] = None,
        since: Optional[Time] = None,
        until: Optional[Time] = None,
        sort: Optional[str] = None,
        limit: Optional[int] = None,
        page: int = PAGE,
    ) -> Iterator[Job]:
        """Jobs of which all of it is true, page by page: each has been seen as it was then (`job.seen`).

        `text` is part of name or description, `name` is near the name. `sort` is `name`, `created`, `state`, `user` or
        `duration`, with `-` the other way round, or `nearest`. `limit` is the most of all.
        """
        states = None if state is None else ",".join(_arguments.names(state, "state"))
        limit = None if limit is None else _arguments.whole(limit, "limit")
        sort = None if sort is None else _arguments.text(sort, "sort")
        query: Dict[str, Value] = {"text": text, "state": states, "name": name, "user": user, "workspace": workspace}
        query.update(since=moment(since, "since"), until=moment(until, "until"), sort=sort)
        for report in self._reports(query, limit, _arguments.whole(page, "page")):
            yield Job(self._transport, report["workspace"], report["job"], report)

    def _reports(self, query: Dict[str, Value], limit: Optional[int], page: int) -> Iterator[JobReport]:
        sort = cast(str, query["sort"] or "")
        key = _CHANGING.get(sort[1:] if sort.startswith("-") else sort)
        if key is not None and (limit is None or limit > page):
            by_name = self._reports({**query, "sort": "name"}, None, page)
            yield from sorted(by_name, key=key, reverse=sort.startswith("-"))[:limit]
            return
        left = limit
        while left is None or left > 0:
            query["limit"] = page if left is None else min(page, left)
            found = cast(JobReportList, self._transport.json("GET", path("jobs"), query))
            yield from found["jobs"]
            left = None if left is None else left - len(found["jobs"])
            query["after"] = found.get("next")
            if query["after"] is None:
                return

    def queue(self, workspace: Optional[str] = None) -> List[Job]:
        """Jobs that wait, in the order in which they start; `job.seen["waiting"]` says why.

        Last come those without a place: they wait for something else than their turn, or behind so many others that their
        place is told by `job.waiting()` alone.
        """
        found = self.jobs(state="waiting", workspace=workspace)
        return sorted(found, key=lambda job: (job.place() is None, job.place() or 0))

    def delete(self, names: Union[str, Iterable[str]]) -> List[Tuple[str, TrainyardError]]:
        """Removes jobs that are over, with their files; each is judged by itself. Those that were refused, and why.

        A text is the name of one job.
        """
        refused: List[Tuple[str, TrainyardError]] = []
        for name in _arguments.names(names, "names"):
            try:
                self.job(name).delete()
            except TrainyardError as error:
                refused.append((name, error))
        return refused

    # Events

    def events(
        self,
        *,
        after: int = 0,
        follow: bool = False,
        workspace: Optional[str] = None,
        job: Optional[str] = None,
        limit: Optional[int] = None,
        patience: float = 60.0,
    ) -> Iterator[HappeningView]:
        """What happened to jobs behind the event of the serial number `after`, and with `follow` what happens.

        A connection that breaks off, as when the daemon is restarted, is made anew for `patience` seconds; nothing is told
        twice or left out.
        """
        query: Dict[str, Value] = {"after": after, "follow": follow, "workspace": workspace, "job": job, "limit": limit}
        return (event for event in pulses(self._transport, query, patience) if event is not None)

    # What else there is

    def gpus(self) -> GpuList:
        """The graphics cards: health, use, holders."""
        return cast(GpuList, self._transport.json("GET", path("gpus")))

    def usage(
        self, by: str = "workspace", since: Optional[Time] = None, workspace: Optional[str] = None
    ) -> List[UsageView]:
        """What was used of the machine, or in one workspace, by `user`, `workspace` or `job`; who has used most is first."""
        # By name, as what runs uses more from page to page.
        found = self._all(path("usage"), by=by, since=moment(since, "since"), workspace=workspace, sort="name")
        used = cast(List[UsageView], found)
        return sorted(used, key=lambda one: (-one["gpu_hours"], -one["cpu_hours"], one["name"]))

    def workspaces(self) -> List[WorkspaceView]:
        """Workspaces that you may enter, with their storage."""
        return cast(List[WorkspaceView], self._all(path("workspaces")))

    def workspace(self, name: str) -> WorkspaceDetail:
        """A workspace, with what takes the room."""
        return cast(WorkspaceDetail, self._transport.json("GET", path("workspaces", name)))

    def templates(
        self,
        workspace: Optional[str] = None,
        *,
        text: Optional[str] = None,
        name: Optional[str] = None,
        sort: Optional[str] = None,
    ) -> List[TemplateView]:
        """Templates that you may read. `text` is part of name or description, `name` is near the name, as for `jobs`; sorted by
        `name`, `changed` or `user`, or `nearest`."""
        found = self._all(path("templates"), workspace=workspace, text=text, name=name, sort=sort)
        return cast(List[TemplateView], found)

    def template(self, name: str, *, workspace: str = "default") -> TemplateDetail:
        """A template with its parameters and its file."""
        return cast(TemplateDetail, self._transport.json("GET", path("templates", workspace, name)))

    def save_template(
        self, name: str, template: JobLike, *, workspace: str = "default", replace: bool = False
    ) -> TemplateDetail:
        """Writes a template as yours: a job file with a `[template]`. What is there is refused, unless it is to be replaced."""
        query = {} if replace else {"new": True}
        self._transport.json("PUT", path("templates", workspace, name), query, body=job_file(template))
        return self.template(name, workspace=workspace)

    def delete_template(self, name: str, *, workspace: str = "default") -> None:
        """Removes a template; jobs that were made of it go on."""
        self._transport.json("DELETE", path("templates", workspace, name))

    def datasets(
        self, workspace: str = "default", *, text: Optional[str] = None, name: Optional[str] = None
    ) -> List[DatasetView]:
        """Datasets that jobs of a workspace may name. `text` is part of the name, `name` is near it."""
        return cast(List[DatasetView], self._all(path("datasets"), workspace=workspace, text=text, name=name))

    def models(
        self, workspace: str = "default", *, text: Optional[str] = None, name: Optional[str] = None
    ) -> List[ModelView]:
        """Models that runs have left. `text` is part of the job's name, `name` is near it."""
        return cast(List[ModelView], self._all(path("models"), workspace=workspace, text=text, name=name))

    def delete_model(self, job: str, run: int, *, workspace: str = "default") -> None:
        """Removes the model that a run has left, if no job that is not over uses it."""
        self._transport.json("DELETE", path("models", workspace, job, str(_arguments.whole(run, "run"))))

    def images(
        self,
        workspace: str = "default",
        *,
        text: Optional[str] = None,
        name: Optional[str] = None,
        sort: Optional[str] = None,
    ) -> List[ImageView]:
        """Images that jobs of a workspace find. `text` is part of the name, `name` is near it; sorted by `name`, `brought`,
        `used` or `size`, or `nearest`."""
        changes = sort in ("used", "-used")
        asked = "name" if changes else sort
        found = cast(List[ImageView], self._all(path("images"), workspace=workspace, text=text, name=name, sort=asked))
        return sorted(found, key=lambda image: image["used"], reverse=sort == "-used") if changes else found

    def secrets(self, workspace: str = "default") -> List[str]:
        """Names of a workspace's secrets, to root; what is in them is never told."""
        found = cast(List[SecretView], self._all(path("secrets", workspace)))
        return [secret["secret"] for secret in found]

    def set_secret(self, name: str, content: Union[str, bytes], *, workspace: str = "default") -> None:
        """Writes a secret of a workspace, as root."""
        self._transport.json("PUT", path("secrets", workspace, name), body=_secret(content))

    def delete_secret(self, name: str, *, workspace: str = "default") -> None:
        """Removes a secret of a workspace, as root."""
        self._transport.json("DELETE", path("secrets", workspace, name))

    def ready(self) -> Readiness:
        """What keeps the daemon from taking and running jobs, if anything does."""
        return cast(Readiness, self._transport.json("GET", "/readyz", also=(503,)))

    def openapi(self) -> Dict[str, Any]:
        """The description of all that the daemon takes."""
        return cast(Dict[str, Any], self._transport.json("GET", "/openapi.json"))

    def _all(self, where: str, **query: Value) -> List[Any]:
        """All of a list that is not of jobs, page by page."""
        found: List[Any] = []
        asked: Dict[str, Value] = {**query, "limit": PAGE}
        while True:
            page = self._transport.json("GET", where, asked)
            found += page["items"]
            asked["after"] = page.get("next")
            if asked["after"] is None:
                return found

    def _repr_html_(self) -> str:
        rows = "".join(_row(job) for job in self.jobs(sort="-created", limit=20))
        return f"<table><tr><th>job</th><th>state</th><th>why</th></tr>{rows}</table>"


def _secret(content: object) -> bytes:
    """What is wrong is told without what is in it."""
    if isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        wrong = f"content is a {type(content).__name__}; it is to be a text or bytes"
        raise TrainyardError("bad_argument", wrong)
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise TrainyardError("bad_argument", "content: half a surrogate pair is no text") from None


def _row(job: Job) -> str:
    cells = (job.key, job.seen["state"], job.seen["reason"])
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
