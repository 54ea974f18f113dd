"""Job files as text: what Python has no writer for."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from os import PathLike, fspath
from typing import Any, List, Mapping, Tuple, cast

from .errors import TrainyardError

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


Table = Mapping[str, Any]


def write(table: Table) -> str:
    """The table as TOML, keys in their order, values before tables."""
    lines: List[str] = []
    _table(table, (), lines)
    return "\n".join(lines).strip("\n") + "\n"


def _table(table: Table, path: Tuple[str, ...], lines: List[str]) -> None:
    values = [(key, value) for key, value in table.items() if not isinstance(value, Mapping)]
    tables = [(key, cast(Table, value)) for key, value in table.items() if isinstance(value, Mapping)]
    if path and (values or not tables):
        lines += ["", "[" + ".".join(_key(key) for key in path) + "]"]
    for key, value in values:
        lines.append(f"{_key(key)} = {_value(value, (*path, key))}")
    for key, value in tables:
        _table(value, (*path, _text(key, path)), lines)


def _key(key: object) -> str:
    text = _text(key, ())
    return text if _PLAIN_KEY.match(text) else _string(text, ())


def _text(key: object, path: Tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise _wrong(path, f"the key {key!r} is no string")
    return key


def _value(value: Any, path: Tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value, path)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise _wrong(path, f"{value} is beyond 64 bits")
        return int.__repr__(value)  # Of an IntEnum the number.
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, PathLike):
        return _value(fspath(cast("PathLike[str]", value)), path)
    if isinstance(value, timedelta):
        return _string(duration(value), path)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item, path) for item in cast(List[Any], value)) + "]"
    if isinstance(value, Mapping):
        pairs = cast(Table, value).items()
        items = (f"{_key(key)} = {_value(item, (*path, _text(key, path)))}" for key, item in pairs)
        return "{ " + ", ".join(items) + " }"
    item = getattr(value, "item", None)  # A number of NumPy's.
    if callable(item) and not hasattr(value, "__len__"):
        return _value(item(), path)
    raise _wrong(path, f"a {type(value).__name__} is nothing that a job file can hold")


def duration(value: timedelta) -> str:
    """As job files have durations."""
    milliseconds = round(value.total_seconds() * 1000)
    if milliseconds < 0:
        raise TrainyardError("bad_argument", f"{value} is less than no time")
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = float.__repr__(value)  # NumPy's own floats call themselves `np.float64(…)`.
    # An exponent alone needs no point, but what has neither would be a whole number.
    return text if any(letter in text for letter in ".e") else text + ".0"


def _string(text: str, path: Tuple[str, ...]) -> str:
    out: List[str] = []
    for letter in text:
        code = ord(letter)
        if 0xD800 <= code < 0xE000:
            raise _wrong(path, "half a surrogate pair is no text")
        if letter in _ESCAPES:
            out.append(_ESCAPES[letter])
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\u{code:04x}")
        else:
            out.append(letter)
    return '"' + "".join(out) + '"'


def _wrong(path: Tuple[str, ...], why: str) -> TrainyardError:
    place = ".".join(path) or "the job"
    return TrainyardError("bad_argument", f"{place}: {why}")
