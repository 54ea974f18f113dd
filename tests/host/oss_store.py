"""Serves objects as Alibaba's OSS does, to who signs as its documentation says (signature version 1, HMAC-SHA1).

It is a proxy for http at 127.0.0.1:argv[1], so that it has any host's name, and keeps its buckets in the directory argv[2].
"""
import base64, email.utils, hashlib, hmac, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

TOP = sys.argv[2]
KEYS = {"AKIDLAB": "OtxrzxIsfpFjA7SwPzILwy8Bw21TLhquhboDYROV"}
HOST = ".oss-cn-test.example"
# Of those that a signature counts, what may be asked for here.
SUBRESOURCES = {"acl", "append", "continuation-token", "delete", "partNumber", "response-content-type", "tagging", "uploadId", "uploads"}
# Small, so that listings come in several.
PAGE = 3
parts = {}


def signature(secret, verb, headers, resource):
    """By https://help.aliyun.com/zh/oss/developer-reference/include-signatures-in-the-authorization-header"""
    own = sorted((name.lower(), " ".join(value.split())) for name, value in headers if name.lower().startswith("x-oss-"))
    plain = {name.lower(): value for name, value in headers}
    lines = [verb, plain.get("content-md5", ""), plain.get("content-type", ""), plain.get("date", "")]
    lines += ["%s:%s" % pair for pair in own] + [resource]
    return base64.b64encode(hmac.new(secret.encode(), "\n".join(lines).encode(), hashlib.sha1).digest()).decode()


# The example of that page: what is checked by here is what it says.
example = [
    ("Content-Md5", "ODBGOERFMDMzQTczRUY3NUE3NzA5QzdFNUYzMDQxNEM="), ("Content-Type", "text/html"),
    ("Date", "Thu, 17 Nov 2005 18:49:58 GMT"), ("X-OSS-Meta-Author", "foo@bar.com"), ("X-OSS-Magic", "abracadabra"),
]
assert signature(KEYS["AKIDLAB"], "PUT", example, "/oss-example/nelson") == "26NBxoKdsyly4EDv6inkoDft/yA="


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, b"<Error><Code>%s</Code><Message>refused</Message></Error>" % code.encode())

    def begin(self):
        """Whose bucket, which object and what of it; `False` where the signature is not the caller's."""
        url = urlsplit(self.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        self.bucket, self.key = url.hostname[: -len(HOST)], unquote(url.path)[1:]
        asked = sorted((name, value) for name, value in self.query.items() if name in SUBRESOURCES)
        words = [name if value == "" else "%s=%s" % (name, value) for name, value in asked]
        resource = "/%s/%s" % (self.bucket, self.key) + ("?" + "&".join(words) if words else "")
        scheme, _, rest = (self.headers.get("Authorization") or "").partition(" ")
        who, _, signed = rest.partition(":")
        date = email.utils.parsedate_to_datetime(self.headers["Date"]).timestamp() if self.headers.get("Date") else 0
        wanted = signature(KEYS.get(who, ""), self.command, self.headers.items(), resource)
        if not url.hostname.endswith(HOST) or scheme != "OSS" or who not in KEYS or signed != wanted or abs(time.time() - date) > 900:
            self.refuse(403, "SignatureDoesNotMatch")
            return False
        with open(os.path.join(TOP, "requests"), "a") as log:
            log.write("%s /%s %s\n" % (self.command, self.key, json.dumps(self.query, sort_keys=True)))
        self.at = os.path.join(TOP, self.bucket, self.key)
        return True

    def attributes(self):
        with open(self.at, "rb") as file:
            tag = '"%s"' % hashlib.md5(file.read()).hexdigest().upper()
        when = email.utils.formatdate(os.path.getmtime(self.at), usegmt=True)
        return [("ETag", tag), ("Last-Modified", when), ("x-oss-object-type", "Normal")]

    def do_HEAD(self):
        if self.begin():
            if not os.path.isfile(self.at):
                return self.refuse(404, "NoSuchKey")
            self.answer(200, b"", self.attributes() + [("Content-Length", os.path.getsize(self.at))])

    def do_GET(self):
        if not self.begin():
            return
        if self.key == "":
            return self.list()
        if not os.path.isfile(self.at):
            return self.refuse(404, "NoSuchKey")
        with open(self.at, "rb") as file:
            body = file.read()
        span = self.headers.get("Range")
        if span is None:
            return self.answer(200, body, self.attributes())
        first, _, last = span[len("bytes=") :].partition("-")
        last = min(int(last), len(body) - 1) if last else len(body) - 1
        told = ("Content-Range", "bytes %d-%d/%d" % (int(first), last, len(body)))
        self.answer(206, body[int(first) : last + 1], self.attributes() + [told])

    def list(self):
        bucket, prefix = os.path.join(TOP, self.bucket), self.query.get("prefix", "")
        found = (os.path.relpath(os.path.join(top, name), bucket) for top, _, names in os.walk(bucket) for name in names)
        keys = sorted(key for key in found if key.startswith(prefix))
        token = self.query.get("continuation-token")
        if token:
            after = base64.b64decode(token).decode()
            keys = [key for key in keys if key > after]
        page, rest = keys[:PAGE], keys[PAGE:]
        rows = ""
        for key in page:
            self.at = os.path.join(bucket, key)
            tag = escape(dict(self.attributes())["ETag"])
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(os.path.getmtime(self.at)))
            rows += "<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>%s</ETag><Type>Normal</Type><Size>%d</Size><StorageClass>Standard</StorageClass></Contents>" % (
                escape(key), when, tag, os.path.getsize(self.at))
        more = base64.b64encode(page[-1].encode()).decode() if rest else ""
        more = "<NextContinuationToken>%s</NextContinuationToken>" % more if rest else ""
        text = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult><Name>%s</Name><Prefix>%s</Prefix><MaxKeys>%d</MaxKeys><Delimiter></Delimiter><IsTruncated>%s</IsTruncated>%s<KeyCount>%d</KeyCount>%s</ListBucketResult>' % (
            self.bucket, escape(prefix), PAGE, "true" if rest else "false", rows, len(page), more)
        self.answer(200, text.encode(), [("Content-Type", "application/xml")])

    def keep(self, body):
        os.makedirs(os.path.dirname(self.at), exist_ok=True)
        with open(self.at, "wb") as file:
            file.write(body)

    def do_PUT(self):
        if not self.begin():
            return
        tag = ("ETag", '"%s"' % hashlib.md5(self.body).hexdigest().upper())
        if "uploadId" in self.query:
            parts[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
        else:
            self.keep(self.body)
        self.answer(200, b"", [tag])

    def do_POST(self):
        if not self.begin():
            return
        if "uploads" in self.query:
            upload = "UPLOAD%d" % (len(parts) + 1)
            parts[upload] = {}
            text = "<InitiateMultipartUploadResult><Bucket>%s</Bucket><Key>%s</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>"
            return self.answer(200, (text % (self.bucket, escape(self.key), upload)).encode())
        whole = parts.pop(self.query["uploadId"])
        self.keep(b"".join(whole[number] for number in sorted(whole)))
        text = "<CompleteMultipartUploadResult><Bucket>%s</Bucket><Key>%s</Key><ETag>&quot;X-%d&quot;</ETag></CompleteMultipartUploadResult>"
        self.answer(200, (text % (self.bucket, escape(self.key), len(whole))).encode())

    def do_DELETE(self):
        if self.begin():
            parts.pop(self.query.get("uploadId"), None)
            self.answer(204)


print("ready", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
