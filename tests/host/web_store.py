"""Serves the directory argv[2] at 127.0.0.1:argv[1] as WebHDFS does, and as plain files.

What lies in `gateway/` is served as HttpFS does, which does not know how to put a file in the place of another. A file
`cut` in the directory has the next piece lose its last byte, once.
"""
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOP = sys.argv[2]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def tell(self, value):
        self.answer(200, json.dumps(value).encode())

    def begin(self):
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path = unquote(url.path)
        is_hdfs = path.startswith("/webhdfs/v1")
        self.at = TOP + (path[len("/webhdfs/v1"):] if is_hdfs else path)
        if is_hdfs and self.query.get("user.name") != "ada":
            self.answer(403, b"{}")
            return False
        if self.command != "GET" and "noredirect" not in self.query:
            with open(os.path.join(TOP, "requests"), "a") as log:
                log.write("%s %s\n" % (self.query.get("op"), self.at[len(TOP) :]))
        return True

    def rename(self):
        to = TOP + self.query["destination"]
        overwrites = self.query.get("renameoptions") == "OVERWRITE" and not self.at.startswith(TOP + "/gateway/")
        if os.path.exists(to) and not overwrites:
            return self.tell({"boolean": False})
        os.rename(self.at, to)
        return self.answer(200) if overwrites else self.tell({"boolean": True})

    def status(self, path, name):
        is_directory = os.path.isdir(path)
        return {
            "length": 0 if is_directory else os.path.getsize(path),
            "modificationTime": int(os.path.getmtime(path) * 1000),
            "pathSuffix": name,
            "type": "DIRECTORY" if is_directory else "FILE",
        }

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if not self.begin():
            return
        if not os.path.exists(self.at):
            return self.answer(404, b"{}")
        op = self.query.get("op")
        if op == "GETFILESTATUS":
            return self.tell({"FileStatus": self.status(self.at, "")})
        if op in ("LISTSTATUS", "LISTSTATUS_BATCH"):
            names = sorted(os.listdir(self.at))
            found = {"FileStatus": [self.status(os.path.join(self.at, name), name) for name in names]}
            if op == "LISTSTATUS":
                return self.tell({"FileStatuses": found})
            return self.tell({"DirectoryListing": {"partialListing": {"FileStatuses": found}, "remainingEntries": 0}})
        with open(self.at, "rb") as file:
            body = file.read()
        offset = int(self.query.get("offset", 0))
        self.answer(200, body[offset : offset + int(self.query.get("length", len(body)))])

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def where(self):
        """The second step goes to the same place."""
        self.tell({"Location": "http://127.0.0.1:%s%s" % (sys.argv[1], self.path.replace("&noredirect=true", ""))})

    def do_PUT(self):
        body = self.body()
        if not self.begin():
            return
        if self.query.get("op") == "MKDIRS":
            os.makedirs(self.at, exist_ok=True)
            return self.tell({"boolean": True})
        if self.query.get("op") == "RENAME":
            return self.rename()
        if "noredirect" in self.query:
            return self.where()
        os.makedirs(os.path.dirname(self.at), exist_ok=True)
        with open(self.at, "wb") as file:
            file.write(body)
        self.answer(201)

    def do_POST(self):
        body = self.body()
        if not self.begin():
            return
        if "noredirect" in self.query:
            return self.where()
        cut = os.path.join(TOP, "cut")
        if os.path.exists(cut):
            os.remove(cut)
            body = body[:-1]
        with open(self.at, "ab") as file:
            file.write(body)
        self.answer(200)

    def do_DELETE(self):
        if not self.begin():
            return
        there = os.path.exists(self.at)
        if there:
            os.remove(self.at)
        self.tell({"boolean": there})


print("ready", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
