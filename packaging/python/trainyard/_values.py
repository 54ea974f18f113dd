"""What callers give, as the daemon takes it."""

from __future__ import annotations

import numbers
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any, Mapping, Optional, Union

from . import _arguments, _toml
from ._transport import Value
from .errors import TrainyardError

#: A point in time: `datetime` (local where it has no zone), seconds since 1970, or text as `2026-01-31T08:00:00Z`.
Time = Union[datetime, float, str]
#: A job file: its keys, its text, or where it lies.
JobLike = Union[Mapping[str, Any], str, "PathLike[str]"]


def job_file(job: JobLike) -> bytes:
    """Its text."""
    if isinstance(job, PathLike):
        try:
            return Path(_arguments.file(job, "job")).read_bytes()
        except (OSError, ValueError) as error:
            raise TrainyardError("bad_argument", f"cannot read {job}: {error}") from error
    if isinstance(job, str):
        if "\n" not in job and job.strip().endswith(".toml"):
            raise TrainyardError("bad_argument", f"{job!r} is taken for the text of a job file: Path({job!r}) is a file")
        return _arguments.text(job, "job").encode()
    given: object = job
    if not isinstance(given, Mapping):
        raise _arguments.refused("job", given, "a dictionary of a job file's keys, its text, or a pathlib.Path of it")
    return _toml.write(job).encode()


def moment(time: Optional[Time], what: str) -> Value:
    """Milliseconds since 1970, or the text. `what` is the argument."""
    if time is None or isinstance(time, str):
        return time
    if isinstance(time, datetime):
        try:
            return max(0, round(time.astimezone(timezone.utc).timestamp() * 1000))
        except (OverflowError, ValueError, OSError) as error:
            raise TrainyardError("bad_argument", f"{what}={time!r} is no time of this calendar: {error}") from None
    given: object = time
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise _arguments.refused(what, given, "a datetime, seconds since 1970, or text as 2026-01-31T08:00:00Z")
    return max(0, round(_arguments.number(given, what) * 1000))
