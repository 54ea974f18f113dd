"""What schemathesis is told beside its configuration."""

import os
import socket
import unicodedata
import urllib.parse

import schemathesis
import urllib3

TEXTS = ("application/toml", "application/octet-stream", "application/x-tar")

for kind in TEXTS:
    schemathesis.serializer.alias(kind, "text/plain")


#: What a query calls by its name.
NAMES = ("as", "job", "to", "workspace")


def names_in(values):
    """As they are without the escapes of an address."""
    return [urllib.parse.unquote(str(value)) for value in values]


def path_names(case):
    return names_in((case.path_parameters or {}).values())


def query_names(case):
    return names_in(value for key, value in (case.query or {}).items() if key in NAMES)


def can_be_name(text):
    """In Unicode's composed form, which the document can ask for in words alone. And marks are, for schemathesis, whole blocks of
    characters, with those that Unicode has not given out."""
    return unicodedata.is_normalized("NFC", text) and not any(unicodedata.category(letter) == "Cn" for letter in text)


@schemathesis.hook
def filter_case(context, case):
    """A body that is a text is one whatever it holds: there is no other type that could be refused."""
    return all(map(can_be_name, path_names(case) + query_names(case))) and (case.media_type not in TEXTS or not isinstance(case.body, (bool, int, float, list, dict, type(None))))


def is_name(text):
    """As the document has it, of any script."""
    fits = all(letter.isalnum() or letter in "._~-" or unicodedata.category(letter)[0] == "M" for letter in text)
    return len(text) <= 64 and text[:1].isalnum() and fits


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Letters are Latin ones alone for schemathesis: what it sends in the place of a name may be one."""
    of_pattern = "in path - violates `pattern`" in failure.message
    return not (of_pattern and all(map(is_name, path_names(case))))


def by_socket(connection):
    """Where the daemon is asked by its socket, which an address cannot say."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(os.environ["TRAINYARD_SOCKET"])
    return made


if "TRAINYARD_SOCKET" in os.environ:
    urllib3.connection.HTTPConnection._new_conn = by_socket
