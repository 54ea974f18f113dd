"""Requests to one daemon: by its socket, or over TLS with a token. Nothing here knows what they mean."""

from __future__ import annotations

import http.client
import json
import numbers
import os
import socket
import ssl
import time
import unicodedata
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import quote, urlencode, urlsplit

from . import _arguments
from .errors import TrainyardError

#: Longest that the daemon takes for an answer that is no stream, and some.
ANSWER_S = 130.0
#: How often at most a request that came too fast is sent again.
TRIES = 5
#: The largest answer that is no stream, bytes.
ANSWER_MAX = 256 << 20

Value = Union[str, int, float, bool, None]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("trainyard", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Stream:
    """An answer that goes on; used in a `with`, it ends with it."""

    def __init__(
        self, connection: http.client.HTTPConnection, sock: socket.socket, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._sock = sock
        self._response = response
        #: Bytes that are still to come, where that was said.
        self._left = None if response.chunked else response.length

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def silence(self, seconds: Optional[float]) -> None:
        """For how long nothing need come; for ever where None."""
        self._sock.settimeout(seconds)

    def parts(self) -> Iterator[bytes]:
        """Bytes as they come. Raises `TimeoutError` after silence, `connection_lost` where it breaks off."""
        while True:
            try:
                part = self._response.read1(1 << 16)
            except socket.timeout as error:
                raise TimeoutError(str(error)) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise TrainyardError("connection_lost", f"the daemon's answer broke off: {error}") from error
            if self._left is not None:
                self._left -= len(part)
                if not part and self._left:
                    raise TrainyardError("connection_lost", f"the daemon's answer broke off {self._left} bytes before its end")
            if not part:
                return
            yield part

    def lines(self) -> Iterator[Any]:
        """Each line, which is JSON."""
        begun = b""
        for part in self.parts():
            *whole, begun = (begun + part).split(b"\n")
            yield from (_told(json.loads(line)) for line in whole if line)


class Transport:
    """Sends requests, each on a connection of its own: threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        token: Optional[str] = None,
        cafile: Optional[str] = None,
        timeout: float = ANSWER_S,
    ) -> None:
        self.address = address
        self.timeout = _arguments.seconds(timeout, "timeout")
        if not self.timeout:
            raise _argument("timeout=0 leaves the daemon no time to answer")
        self._token = _checked_token(token)
        self._context: Optional[ssl.SSLContext] = None
        self._path = ""
        self._host = ""
        self._port = 0
        if "://" not in address:
            self._path = address
            return
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError as error:
            raise _argument(f"{address!r} is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise _argument(f"{address!r} is neither a socket's path nor https://HOST:PORT")
        if parts.username or parts.password:
            raise _argument("an address holds no login: give a token")
        self._host, self._port = parts.hostname, port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https":
            self._context = ssl.create_default_context(cafile=cafile)
        elif self._host not in ("localhost", "127.0.0.1", "::1"):
            raise _argument(f"{address}: over the network a token goes by https alone")
        if self._token is None:
            raise _argument(
                f"{address} wants a token: give one by `token`, `token_file`, TRAINYARD_TOKEN or TRAINYARD_TOKEN_FILE"
            )

    def __repr__(self) -> str:
        return f"Transport({self.address!r})"

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._path:
            return _UnixConnection(self._path, timeout)
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def open(
        self,
        method: str,
        path: str,
        query: Optional[Mapping[str, Value]] = None,
        body: Optional[bytes] = None,
        timeout: Optional[float] = None,
        also: Tuple[int, ...] = (),
    ) -> Stream:
        """Asks, and returns what is answered with success, or a status of `also`. What came too fast is asked again when it may be."""
        for left in reversed(range(TRIES)):
            try:
                return self._open(method, path + encoded(query or {}), body, timeout or self.timeout, also)
            except TrainyardError as error:
                if error.code != "too_many_requests" or not error.retry_after or not left:
                    raise
                # It was not done.
                time.sleep(min(error.retry_after, 10.0))
        raise AssertionError("unreachable")

    def _open(
        self, method: str, target: str, body: Optional[bytes], timeout: float, also: Tuple[int, ...]
    ) -> Stream:
        headers: Dict[str, Union[str, bytes]] = {"Connection": "close"}
        if self._token is not None:
            # A token's name may have letters of any script, which by itself the library writes in Latin-1, or not at all.
            headers["Authorization"] = f"Bearer {self._token}".encode()
        connection = self._connect(timeout)
        try:
            connection.connect()
            # The connection forgets it when the answer begins.
            sock = connection.sock
            _keep_alive(sock)
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from error
        except ValueError as error:  # A name that cannot be one of a machine, or of a file.
            connection.close()
            raise _argument(f"{self.address!r} is no address: {error}") from error
        try:
            response = _answer(connection, method, target, body, headers)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise TrainyardError("connection_lost", f"{self.address} gave no answer: {error}") from error
        stream = Stream(connection, sock, response)
        if 200 <= response.status < 300 or response.status in also:
            return stream
        with stream:
            raise _refused(response)

    def _unreachable(self, error: OSError) -> TrainyardError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return TrainyardError("not_trusted", f"the certificate of {self.address} is not trusted: {error}")
        return TrainyardError("unreachable", f"the daemon does not answer at {self.address}: {error}")

    def read(self, method: str, path: str, query: Optional[Mapping[str, Value]] = None) -> bytes:
        with self.open(method, path, query) as stream:
            return _whole(stream)

    def json(
        self,
        method: str,
        path: str,
        query: Optional[Mapping[str, Value]] = None,
        body: Optional[bytes] = None,
        also: Tuple[int, ...] = (),
    ) -> Any:
        with self.open(method, path, query, body, also=also) as stream:
            text = _whole(stream)
        try:
            return json.loads(text)
        except ValueError as error:
            raise TrainyardError("not_understood", f"{self.address} did not answer with JSON: {error}") from error


def _keep_alive(sock: socket.socket) -> None:
    """A machine that has gone does not say so; within two minutes this does."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _answer(
    connection: http.client.HTTPConnection, method: str, target: str, body: Optional[bytes], headers: Dict[str, str]
) -> http.client.HTTPResponse:
    try:
        connection.request(method, target, body=body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        pass  # Refused before all was sent: the answer says why.
    return connection.getresponse()


def _whole(stream: Stream) -> bytes:
    parts: List[bytes] = []
    size = 0
    try:
        for part in stream.parts():
            parts.append(part)
            size += len(part)
            if size > ANSWER_MAX:
                raise TrainyardError("not_understood", f"an answer of more than {ANSWER_MAX} bytes")
    except TimeoutError as error:
        raise TrainyardError("connection_lost", f"the daemon's answer broke off: {error}") from None
    return b"".join(parts)


def _told(line: Any) -> Any:
    """The line; raises what a last one says that tells why no more come."""
    if isinstance(line, dict) and "code" in line and "error" in line:
        raise TrainyardError(str(line["code"]), str(line["error"]), status=403)
    return line


def _refused(response: http.client.HTTPResponse) -> TrainyardError:
    try:
        text = response.read(1 << 20)
        answer = json.loads(text)
        code, message = str(answer["code"]), str(answer["error"])
        diagnostics = answer.get("diagnostics", [])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return TrainyardError(
            "not_understood", f"HTTP status {response.status} {response.reason}", status=response.status
        )
    after = response.getheader("Retry-After") or ""
    return TrainyardError(
        code,
        message,
        status=response.status,
        diagnostics=diagnostics,
        retry_after=float(after) if after.isdigit() else 0.0,
    )


def encoded(query: Mapping[str, Value]) -> str:
    """`?…` of the parameters that have a value."""
    pairs: Dict[str, str] = {}
    for name, value in query.items():
        if value is None or value is False:
            continue
        pairs[name] = "1" if value is True else _parameter(name, value)
    return "?" + urlencode(pairs, quote_via=quote) if pairs else ""


def _parameter(name: str, value: object) -> str:
    if isinstance(value, numbers.Real):
        return str(value)
    return _arguments.text(value, name)


def path(*parts: str) -> str:
    """`/v1/…` of parts that may hold anything."""
    return "/v1/" + "/".join(quote(_arguments.text(part, "name"), safe="") for part in parts)


def _checked_token(token: Optional[str]) -> Optional[str]:
    if token is None:
        return None
    given: object = token
    if not isinstance(given, str):
        raise _argument(f"the token is a {type(given).__name__}; it is to be a text")
    token = token.strip()
    # Its text is not told: it is a secret. Which letters there are is the daemon's to know: it may be newer than this Python.
    if token.split() != [token] or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in token):
        raise _argument("the token is empty, or has characters that no token has")
    return token


def _argument(message: str) -> TrainyardError:
    return TrainyardError("bad_argument", message)


def find_token(token: Optional[str], token_file: "Union[str, os.PathLike[str], None]") -> Optional[str]:
    """As given, else of the environment."""
    if token is not None:
        return token
    if token_file is None:
        token = os.environ.get("TRAINYARD_TOKEN")
        if token is not None:
            return token
        token_file = os.environ.get("TRAINYARD_TOKEN_FILE")
    if token_file is None:
        return None
    place = os.path.expanduser(_arguments.file(token_file, "token_file"))
    try:
        with open(place, encoding="utf-8") as file:
            return file.read(64 << 10)
    except (OSError, ValueError) as error:  # The second of what is no UTF-8, and of a path with a NUL.
        raise _argument(f"cannot read the token in {place}: {error}") from error
