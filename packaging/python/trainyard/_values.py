"""What callers give, as the daemon takes it."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any, Mapping, Optional, Union

from . import _toml
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
            return Path(job).read_bytes()
        except OSError as error:
            raise TrainyardError("bad_argument", f"cannot read {os.fspath(job)}: {error}") from error
    if isinstance(job, str):
        if "\n" not in job and job.strip().endswith(".toml"):
            raise TrainyardError("bad_argument", f"{job!r} is taken for the text of a job file: Path({job!r}) is a file")
        return job.encode()
    return _toml.write(job).encode()


def moment(time: Optional[Time]) -> Value:
    """Milliseconds since 1970, or the text."""
    if time is None or isinstance(time, str):
        return time
    seconds = time.astimezone(timezone.utc).timestamp() if isinstance(time, datetime) else time
    return max(0, round(seconds * 1000))
