"""What callers give, by its kind: whatever is none is told by the one exception there is, and before anything is sent."""

from __future__ import annotations

import math
import numbers
import operator
import os
from typing import Any, Iterable, List, Mapping, cast

from .errors import TrainyardError

#: Longer than anybody waits, and as much as the system takes.
SECONDS_MAX = 1e9


def refused(what: str, value: object, wanted: str) -> TrainyardError:
    """`what` is the argument, `wanted` what it should be."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    return TrainyardError("bad_argument", f"{what}={shown} is a {type(value).__name__}; it is to be {wanted}")


def text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise refused(what, value, "a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TrainyardError("bad_argument", f"{what}={value!r}: half a surrogate pair is no text") from None
    return value


def names(value: object, what: str) -> List[str]:
    """Several texts; one alone is one, not its letters."""
    if isinstance(value, str):
        return [text(value, what)]
    try:
        several = list(cast(Iterable[object], value))
    except TypeError:
        raise refused(what, value, "a text or several") from None
    return [text(one, what) for one in several]


def whole(value: object, what: str) -> int:
    """A number of things."""
    try:
        number = operator.index(cast(Any, value))
    except TypeError:
        raise refused(what, value, "a whole number") from None
    if isinstance(value, bool) or number < 0:
        raise refused(what, value, "a whole number from 0")
    return number


def number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refused(what, value, "a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise refused(what, value, "a number that has an end")
    return found


def seconds(value: object, what: str) -> float:
    """How long something may take."""
    found = number(value, what)
    if not 0 <= found <= SECONDS_MAX:
        raise refused(what, value, f"seconds from 0 to {SECONDS_MAX:.0f}")
    return found


def table(value: object, what: str) -> Mapping[str, Any]:
    """Keys with their values."""
    if not isinstance(value, Mapping):
        raise refused(what, value, "a dictionary")
    keys = cast(Mapping[Any, Any], value)
    for key in keys:
        text(key, f"a key of {what}")
    return keys


def file(value: object, what: str) -> str:
    """Where a file lies."""
    try:
        path = os.fspath(cast(Any, value))
    except TypeError:
        raise refused(what, value, "the path of a file") from None
    return os.fsdecode(path)
