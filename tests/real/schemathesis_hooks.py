"""What schemathesis is told beside its configuration."""

import os
import socket
import unicodedata

import schemathesis
import urllib3

TEXTS = ("application/toml", "application/octet-stream", "application/x-tar")

for kind in TEXTS:
    schemathesis.serializer.alias(kind, "text/plain")


def is_composed(case):
    """Whether names are in Unicode's composed form, which the document can ask for in words alone."""
    return all(unicodedata.is_normalized("NFC", str(value)) for value in (case.path_parameters or {}).values())


@schemathesis.hook
def filter_case(context, case):
    """A body that is a text is one whatever it holds: there is no other type that could be refused."""
    return is_composed(case) and (case.media_type not in TEXTS or not isinstance(case.body, (bool, int, float, list, dict, type(None))))


def is_name(text):
    """As the document has it, of any script."""
    fits = all(letter.isalnum() or letter in "._~-" or unicodedata.category(letter)[0] == "M" for letter in text)
    return len(text) <= 64 and text[:1].isalnum() and fits


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Letters are Latin ones alone for schemathesis: what it sends in the place of a name may be one."""
    of_pattern = "in path - violates `pattern`" in failure.message
    return not (of_pattern and all(is_name(str(value)) for value in case.path_parameters.values()))


def by_socket(connection):
    """Where the daemon is asked by its socket, which an address cannot say."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(os.environ["TRAINYARD_SOCKET"])
    return made


if "TRAINYARD_SOCKET" in os.environ:
    urllib3.connection.HTTPConnection._new_conn = by_socket
