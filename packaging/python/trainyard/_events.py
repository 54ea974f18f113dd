"""The stream of events, over connections that may break off."""

from __future__ import annotations

import time
from typing import Iterator, Mapping, Optional, cast

from . import _arguments
from ._transport import Transport, Value, path
from .errors import TrainyardError
from .types import HappeningView

#: Seconds of silence after which it is asked anew: a machine that has gone does not say so.
SILENCE_S = 60.0
#: Codes of what passes when the daemon is back.
PASSING = ("connection_lost", "unreachable", "shutting_down", "timeout")


class _Patience:
    """How long a daemon that does not answer is waited for."""

    def __init__(self, seconds: float, until: Optional[float]) -> None:
        self._seconds = seconds
        self._until = until
        self.answered()

    def answered(self) -> None:
        self._lost: Optional[float] = None
        self._pause = 0.05

    def silence(self) -> float:
        """Seconds for which nothing need come. Raises `timed_out` when it is too late for anything."""
        if self._until is None:
            return SILENCE_S
        left = self._until - time.monotonic()
        if left <= 0:
            raise TrainyardError("timed_out", "what was waited for has not happened in time")
        return min(SILENCE_S, left)

    def lost(self, error: TrainyardError) -> None:
        """Waits until it may be tried again, or raises the error."""
        now = time.monotonic()
        self._lost = now if self._lost is None else self._lost
        if error.code not in PASSING or now - self._lost > self._seconds:
            raise error
        time.sleep(min(self._pause, self.silence()))
        self._pause = min(self._pause * 2, 2.0)


def pulses(
    transport: Transport, query: Mapping[str, Value], patience_s: float, until: Optional[float] = None
) -> Iterator[Optional[HappeningView]]:
    """Events as they come, and None where whoever waits should look for himself: at each connection, after silence.

    `until` is by the monotonic clock.
    """
    after, limit = _arguments.whole(query.get("after") or 0, "after"), query.get("limit")
    left = None if limit is None else _arguments.whole(limit, "limit")
    patience = _Patience(_arguments.seconds(patience_s, "patience"), until)
    while left is None or left > 0:
        asked = {**query, "after": after, "limit": left}
        try:
            with transport.open("GET", path("events"), asked, timeout=patience.silence()) as stream:
                patience.answered()
                yield None
                for event in stream.lines():
                    patience.answered()
                    after, left = event["serial"], None if left is None else left - 1
                    yield cast(HappeningView, event)
                    stream.silence(patience.silence())
            if not query.get("follow"):
                return
            if left is None or left > 0:
                patience.lost(TrainyardError("connection_lost", "the daemon has ended the stream of events"))
        except TimeoutError:
            continue
        except TrainyardError as error:
            patience.lost(error)
