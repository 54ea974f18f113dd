"""What needs no daemon: job files as text, job files by framework, requests against a server that plays a script."""

from __future__ import annotations

import doctest
import enum
import importlib
import os
import pickle
import re
import socket
import sys
import tempfile
import threading
import unittest
import unittest.mock
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple, cast

import trainyard
from trainyard import TrainyardError, _toml, jobs
from trainyard._values import job_file, moment

REPOSITORY = Path(__file__).resolve().parents[3]


class Script:
    """A server on a socket that gives these answers, one a connection; with `hold` it leaves them open."""

    def __init__(self, answers: List[bytes], hold: bool = False) -> None:
        self._hold = hold
        self._held: List[socket.socket] = []
        self._directory = tempfile.TemporaryDirectory()
        self.path = self._directory.name + "/api.sock"
        self.asked: List[str] = []
        self._answers = answers
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Script":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for connection in self._held:
            connection.close()
        self._directory.cleanup()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._socket.accept()
            with connection.makefile("rb") as lines:
                self.asked.append(lines.readline().decode().strip())
                while lines.readline().strip():
                    pass
            connection.sendall(answer)
            self._held.append(connection)
            if not self._hold:
                connection.close()

    def yard(self) -> trainyard.Yard:
        return trainyard.connect(self.path, timeout=20)


def answer(status: str, body: bytes, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunked(lines: List[bytes], whole: bool) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines) + (b"0\r\n\r\n" if whole else b"")


def event(serial: int, state: str = "running") -> bytes:
    text = '{"serial":%d,"workspace":"default","job":"j","number":1,"at":"","run":1,"state":"%s","message":""}\n'
    return (text % (serial, state)).encode()


class OfRefusals(unittest.TestCase):
    def refused(self, what: Callable[[], Any]) -> TrainyardError:
        with self.assertRaises(TrainyardError) as caught:
            what()
        return caught.exception


class Files(OfRefusals):
    def test_keys_become_toml(self) -> None:
        job: Dict[str, Any] = {
            "command": ["sh", "-c", 'echo "a\\b"\n\x01'],
            "priority": 5,
            "params": {"lr": 1e-3, "whole": 2.0, "big": 1e22, "flag": True, "several": [1, 2]},
            "env": {"A B": "训练", "EMPTY": ""},
            "mounts": [{"source": Path("/data"), "target": "/data", "read_only": True}],
            "roles": {"worker": {"count": 2, "resources": {"gpu": 1}}, "empty": {}},
            "max_duration": timedelta(hours=1, milliseconds=5),
        }
        text = _toml.write(job)
        self.assertEqual(
            text,
            'command = ["sh", "-c", "echo \\"a\\\\b\\"\\n\\u0001"]\n'
            "priority = 5\n"
            'mounts = [{ source = "/data", target = "/data", read_only = true }]\n'
            'max_duration = "3600005ms"\n\n'
            "[params]\nlr = 0.001\nwhole = 2.0\nbig = 1e+22\nflag = true\nseveral = [1, 2]\n\n"
            '[env]\n"A B" = "训练"\nEMPTY = ""\n\n'
            "[roles.worker]\ncount = 2\n\n[roles.worker.resources]\ngpu = 1\n\n[roles.empty]\n",
        )
        if sys.version_info < (3, 11):
            return  # Nothing to read it by: the text above is what there is.
        read = importlib.import_module("tomllib").loads(text)
        self.assertEqual(read["command"], job["command"])
        self.assertEqual((read["params"], read["env"]), (job["params"], job["env"]))

    def test_numbers_that_call_themselves_otherwise_are_numbers(self) -> None:
        class Float(float):
            def __repr__(self) -> str:
                return f"np.float64({float(self)})"

            __str__ = __repr__

        class Size(enum.IntEnum):
            LARGE = 3

        text = _toml.write({"lr": Float(0.5), "whole": Float(2), "size": Size.LARGE})
        self.assertEqual(text, "lr = 0.5\nwhole = 2.0\nsize = 3\n")

    def test_what_a_job_file_cannot_hold_is_refused_by_its_key(self) -> None:
        wrong: List[Tuple[Dict[Any, Any], str]] = [
            ({"params": {"when": datetime(2026, 1, 1)}}, "params.when: a datetime"),
            ({"command": None}, "command: a NoneType"),
            ({"params": {"x": 1 << 63}}, "beyond 64 bits"),
            ({"params": {3: 1}}, "the key 3"),
            ({"env": {"x": "\ud800"}}, "env.x: half a surrogate pair"),
            ({"datasets": [object()]}, "datasets: a object"),
            ({"max_duration": timedelta(seconds=-1)}, "less than no time"),
        ]
        for job, told in wrong:
            with self.subTest(told):
                error = self.refused(lambda job=job: _toml.write(job))  # type: ignore[misc]
                self.assertEqual(error.code, "bad_argument")
                self.assertIn(told, error.message)
        self.assertIn("Path('a.toml')", self.refused(lambda: job_file("a.toml")).message)
        self.assertIn("cannot read", self.refused(lambda: job_file(Path("/nowhere/a.toml"))).message)

    def test_times_are_milliseconds_since_1970(self) -> None:
        self.assertEqual(moment(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc), "since"), 1000)
        self.assertEqual(moment(1.5, "since"), 1500)
        self.assertEqual(moment("2026-01-31T08:00:00Z", "since"), "2026-01-31T08:00:00Z")
        self.assertIsNone(moment(None, "since"))


class Makers(OfRefusals):
    def test_the_examples_of_the_module_are_what_it_does(self) -> None:
        done = doctest.testmod(jobs)
        self.assertEqual((done.failed, done.attempted > 0), (0, True))

    def test_a_strategy_says_which_roles_there_are(self) -> None:
        made: List[Tuple[jobs.JobFile, Dict[str, int]]] = [
            (jobs.PyTorch(workers=2), {"worker": 2}),
            (jobs.PyTorch(workers=2, strategy="master-worker"), {"master": 1, "worker": 2}),
            (jobs.TensorFlow(workers=2, ps=3), {"ps": 3, "worker": 2}),
            (jobs.TensorFlow(workers=2, strategy="allreduce"), {"worker": 2}),
            (jobs.TensorFlow(workers=2, strategy="master-worker", evaluator=1), {"chief": 1, "worker": 2, "evaluator": 1}),
            (jobs.MXNet(workers=2), {"server": 1, "worker": 2}),
            (jobs.XGBoost(workers=2, strategy="master-worker"), {"master": 1, "worker": 2}),
            (jobs.Paddle(workers=2, strategy="ps", ps=2), {"ps": 2, "worker": 2}),
            (jobs.MindSpore(workers=2), {"worker": 2}),
            (jobs.JAX(workers=2), {"worker": 2}),
            (jobs.Horovod(workers=2), {"worker": 2}),
        ]
        for job, counts in made:
            with self.subTest(str(job)):
                self.assertEqual({name: role["count"] for name, role in job["roles"].items()}, counts)

    def test_what_is_said_of_resources_slots_and_processes_is_kept(self) -> None:
        job = jobs.MPI("mpirun x", workers={"count": 2, "ports": {"a": 1}}, slots=4, gpu=4, resources={"cpu": 1})
        self.assertEqual(job["roles"]["worker"], {"count": 2, "ports": {"a": 1}, "slots": 4})
        self.assertEqual(job["resources"], {"cpu": 1, "gpu": 4})
        self.assertEqual(jobs.PyTorch(processes=2, env={"A": "b"})["env"], {"PET_NPROC_PER_NODE": "2", "A": "b"})
        self.assertEqual(jobs.TensorFlow(ps={"resources": {"gpu": 1}}, gpu=1)["roles"]["ps"]["resources"], {"gpu": 1})
        self.assertEqual(jobs.Template("ddp", lr=0.1), {"template": "ddp", "with": {"lr": 0.1}})
        self.assertIn("allreduce, master-worker", self.refused(lambda: jobs.PyTorch(strategy="ps")).message)
        self.assertIn("-1", self.refused(lambda: jobs.PyTorch(workers=-1)).message)
        self.assertEqual(jobs.Plain("echo '<b>'")._repr_html_(), "<pre>command = &quot;echo &#x27;&lt;b&gt;&#x27;&quot;</pre>")


class Arguments(OfRefusals):
    def test_a_text_is_one_name_and_not_its_letters(self) -> None:
        done = answer("200 OK", b'{"message":"done"}')
        with Script([done, done, done]) as script:
            self.assertEqual(script.yard().delete("pz"), [])
            self.assertEqual(script.yard().delete(name for name in ("a", "lab/b")), [])
            asked = [request.split("?")[0] for request in script.asked]
        self.assertEqual(asked, ["DELETE /v1/jobs/default/pz", "DELETE /v1/jobs/default/a", "DELETE /v1/jobs/lab/b"])
        with Script([answer("200 OK", b'{"jobs":[],"total":0}')] * 2) as script:
            self.assertEqual(list(script.yard().jobs(state="failed")), [])
            self.assertEqual(list(script.yard().jobs(state=("failed", "stopped"))), [])
            self.assertEqual([re.findall("state=([^&]*)", asked)[0] for asked in script.asked], ["failed", "failed%2Cstopped"])

    def test_an_argument_of_a_wrong_type_is_told_before_anything_is_asked(self) -> None:
        # What asked would be `unreachable`.
        yard = cast(Any, trainyard.connect("/nowhere/api.sock"))
        job = yard.job("j")
        wrong: Dict[str, Callable[[], Any]] = {
            "job=5": lambda: yard.create("x", 5),
            "job=None": lambda: yard.check(None),
            "job=b'x = 1": lambda: yard.create("x", b"x = 1"),
            "job=[": lambda: job.replace([1]),
            "job='\\ud800'": lambda: yard.create("x", "\ud800"),
            "the job: the key 1": lambda: yard.create("x", {1: 2}),
            "name=5": lambda: yard.create(5, {}),
            "name=None": lambda: yard.job(None),
            "name=b'j'": lambda: yard.job(b"j"),
            "workspace=5": lambda: yard.job("j", workspace=5),
            "workspace=6": lambda: job.clone("k", workspace=6),
            "name=7": lambda: job.clone(7),
            "names=5": lambda: yard.delete(5),
            "names=6": lambda: yard.delete(["a", 6]),
            "names=7": lambda: yard.delete({7}),
            "state=5": lambda: list(yard.jobs(state=5)),
            "state=102": lambda: list(yard.jobs(state=b"failed")),
            "limit='5'": lambda: list(yard.jobs(limit="5")),
            "limit=-1": lambda: list(yard.jobs(limit=-1)),
            "limit=1.5": lambda: list(yard.events(limit=1.5)),
            "page='5'": lambda: list(yard.jobs(page="5")),
            "sort=['name']": lambda: list(yard.jobs(sort=["name"])),
            "user=[1]": lambda: list(yard.jobs(user=[1])),
            "text={": lambda: yard.templates(text={}),
            "since=[": lambda: list(yard.jobs(since=[])),
            "until=nan": lambda: list(yard.jobs(until=float("nan"))),
            "since=Decimal": lambda: yard.usage(since=Decimal(1)),
            "since=inf": lambda: str(job.logs(since=float("inf"))),
            "by=['user']": lambda: yard.usage(["user"]),
            "patience='1'": lambda: list(yard.events(patience="1")),
            "after='x'": lambda: list(yard.events(after="x")),
            "timeout='5'": lambda: job.wait("5"),
            "timeout=-1": lambda: job.wait(-1),
            "timeout=inf": lambda: job.wait(float("inf")),
            "timeout=2000000000.0": lambda: job.wait(2e9),
            "by='1h'": lambda: job.extend("1h"),
            "by=nan": lambda: job.extend(float("nan")),
            "run='1'": lambda: yard.delete_model("j", "1"),
            "name=8": lambda: yard.template(8),
            "name=9": lambda: yard.delete_secret(9),
            "content is a int": lambda: yard.set_secret("s", 5),
            "file=[": lambda: job.logs().save([]),
            "cannot write /nowhere/log": lambda: job.logs().save("/nowhere/log"),
            "address=5": lambda: trainyard.connect(cast(Any, 5)),
            "no address": trainyard.connect("https://" + "a" * 64, token="t").gpus,
            "the token is a int": lambda: trainyard.connect("https://h", token=cast(Any, 5)),
            "token_file=[": lambda: trainyard.connect("https://h", token_file=cast(Any, [])),
            "cafile=1": lambda: trainyard.connect(cafile=cast(Any, 1)),
            "timeout=0": lambda: trainyard.connect(timeout=0),
            "timeout='x'": lambda: trainyard.connect(timeout=cast(Any, "x")),
            "resources=5": lambda: jobs.Plain("true", resources=5),
            "a key of resources=1": lambda: jobs.PyTorch("true", resources={1: 2}),
            "env=5": lambda: jobs.PyTorch("true", processes=2, env=5),
            "roles=5": lambda: jobs.PyTorch("true", roles=5),
            "roles.worker='2'": lambda: jobs.PyTorch("true", workers=cast(Any, "2")),
            "workers='2'": lambda: jobs.MPI("true", workers=cast(Any, "2"), slots=1),
        }
        for told, what in wrong.items():
            with self.subTest(told):
                error = self.refused(what)
                self.assertEqual(error.code, "bad_argument")
                self.assertIn(told, error.message)
        # Whatever somebody gives, the message is one that can be read.
        self.assertLess(len(self.refused(lambda: yard.job(cast(Any, [5] * 1000))).message), 200)

    def test_what_is_wrong_with_a_secret_is_told_without_it(self) -> None:
        yard = trainyard.connect("/nowhere/api.sock")
        for secret in ("hush\ud800", ["hush"]):
            self.assertNotIn("hush", str(self.refused(lambda: yard.set_secret("s", cast(Any, secret)))))


class Connections(OfRefusals):
    def test_a_token_is_in_nothing_that_is_shown(self) -> None:
        yard = trainyard.connect("https://localhost:1", token="secret-word")
        error = self.refused(yard.gpus)
        self.assertEqual(error.code, "unreachable")
        wrong = self.refused(lambda: trainyard.connect("https://localhost:1", token="secret word"))
        for shown in (repr(yard), repr(yard._transport), str(error), repr(error), repr(error.__cause__), repr(wrong)):
            self.assertNotIn("secret", shown)
        for token in ("", " ", "a\tb", "a\nb", "a\x00b", "a\u3000b", "a\udc80b"):
            self.assertEqual(self.refused(lambda: trainyard.connect("https://h", token=token)).code, "bad_argument")

    def test_a_token_comes_from_a_file_or_the_environment_and_never_goes_in_the_clear(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "token")
            file.write_text("of-a-file\n")
            of_environment = {"TRAINYARD_TOKEN_FILE": str(file)}
            self.assertEqual(trainyard.connect("https://h:1", token_file=file)._transport._token, "of-a-file")
            with unittest.mock.patch.dict(os.environ, of_environment):
                self.assertEqual(trainyard.connect("https://h:1")._transport._token, "of-a-file")
                self.assertIsNone(trainyard.connect("/run/x.sock")._transport._token)
        self.assertIn("wants a token", self.refused(lambda: trainyard.connect("https://h:1")).message)
        self.assertIn("https alone", self.refused(lambda: trainyard.connect("http://h:1", token="t")).message)
        self.assertIn("holds no login", self.refused(lambda: trainyard.connect("https://u:p@h", token="t")).message)
        for wrong in ("ftp://h", "https://h/path", "https://", "https://h:99999", "https://[::1"):
            self.assertEqual(self.refused(lambda: trainyard.connect(wrong, token="t")).code, "bad_argument")

    def test_the_default_is_the_command_line_s(self) -> None:
        with unittest.mock.patch.dict(os.environ, {"TRAINYARD_ROOT": "/r"}):
            os.environ.pop("TRAINYARD_ADDRESS", None)
            self.assertEqual(repr(trainyard.connect()), "Yard('/r/run/trainyard/api.sock')")

    def test_who_does_not_answer_is_told(self) -> None:
        error = self.refused(trainyard.connect("/nowhere/api.sock").gpus)
        self.assertEqual((error.code, error.status), ("unreachable", 0))
        self.assertIn("systemctl status trainyard", str(error))
        with Script([b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>"]) as script:
            error = self.refused(script.yard().gpus)
        self.assertEqual((error.code, error.status), ("not_understood", 502))

    def test_a_refusal_has_code_sentence_and_advice(self) -> None:
        body = b'{"code":"invalid_job","error":"no such key","diagnostics":[{"line":3}]}'
        with Script([answer("422 X", body)]) as script:
            error = self.refused(lambda: script.yard().create("训 练", {"x": 1}))
            self.assertEqual(script.asked, ["PUT /v1/jobs/default/%E8%AE%AD%20%E7%BB%83/file?new=1 HTTP/1.1"])
        self.assertEqual((error.code, error.message, error.status), ("invalid_job", "no such key", 422))
        self.assertEqual(error.diagnostics[0]["line"], 3)
        self.assertIn("trainyard explain KEY", error.advice)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), again.diagnostics), (str(error), error.diagnostics))

    def test_what_came_too_fast_is_asked_again_when_it_may_be(self) -> None:
        slow = answer("429 X", b'{"code":"too_many_requests","error":"come back"}', "Retry-After: 1\r\n")
        waits: List[float] = []
        with Script([slow, slow, answer("200 OK", b'{"items":[],"total":0}')]) as script, unittest.mock.patch("time.sleep", waits.append):
            self.assertEqual(script.yard().models(), [])
        self.assertEqual(waits, [1.0, 1.0])

    def test_lists_are_asked_for_to_their_end(self) -> None:
        first = answer("200 OK", b'{"items":[{"job":"a"}],"total":2,"next":":default%2Fa"}')
        with Script([first, answer("200 OK", b'{"items":[{"job":"b"}],"total":2}')]) as script:
            self.assertEqual([model["job"] for model in script.yard().models(text="x")], ["a", "b"])
            asked = [request.split(" ")[1] for request in script.asked]
        query = "/v1/models?workspace=default&text=x&limit=1000"
        self.assertEqual(asked, [query, query + "&after=%3Adefault%252Fa"])

    def test_the_version_is_the_daemon_s(self) -> None:
        cargo = (REPOSITORY / "Cargo.toml").read_text(encoding="utf-8")
        project = (REPOSITORY / "packaging/python/pyproject.toml").read_text(encoding="utf-8")
        found = [re.search(r'^version = "(.+)"$', text, re.MULTILINE) for text in (cargo, project)]
        versions = [match.group(1) for match in found if match]
        self.assertEqual(versions, [trainyard.__version__] * 2)

    def test_the_codes_are_those_of_the_documentation(self) -> None:
        text = (REPOSITORY / "docs/API.md").read_text(encoding="utf-8").split("<!-- codes -->")[1]
        codes = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
        own = {"unreachable", "connection_lost", "not_trusted", "not_understood", "bad_argument", "timed_out", "job_failed"}
        self.assertEqual(set(trainyard.ADVICE), codes | own)
        self.assertTrue(all(trainyard.ADVICE.values()))


class Streams(OfRefusals):
    def test_events_go_on_where_they_were_when_a_connection_breaks_off(self) -> None:
        answers = [
            chunked([event(3), event(4)[:20]], whole=False),
            answer("503 X", b'{"code":"shutting_down","error":"the daemon is ending"}'),
            chunked([event(4), event(9)], whole=True),
            chunked([event(12)], whole=True),
        ]
        with Script(answers) as script:
            events = script.yard().events(follow=True, limit=4)
            self.assertEqual([event["serial"] for event in events], [3, 4, 9, 12])
        asked = [request.split("?")[1].split(" ")[0] for request in script.asked]
        self.assertEqual(
            asked,
            ["after=0&follow=1&limit=4", "after=3&follow=1&limit=3", "after=3&follow=1&limit=3", "after=9&follow=1&limit=1"],
        )

    def test_what_does_not_come_back_is_told_when_patience_is_over(self) -> None:
        with Script([chunked([event(3)], whole=False)]) as script:
            events = script.yard().events(follow=True, patience=0)
            self.assertEqual(next(events)["serial"], 3)
            script._thread.join()
            script._socket.close()
            self.assertIn(self.refused(lambda: next(events)).code, ("connection_lost", "unreachable"))

    def test_what_will_not_pass_is_told_at_once(self) -> None:
        with Script([answer("403 X", b'{"code":"forbidden","error":"not you"}')]) as script:
            self.assertEqual(self.refused(lambda: list(script.yard().events(follow=True))).code, "forbidden")

    def test_logs_that_break_off_do_not_look_whole(self) -> None:
        line = b'{"task":"main-0","attempt":1,"stream":"stdout","time":"","text":"one"}\n'
        broken = chunked([line], whole=False)
        with Script([broken, broken]) as script:
            logs = script.yard().job("j").logs()
            self.assertEqual(self.refused(lambda: list(logs)).code, "connection_lost")
            self.assertEqual(self.refused(lambda: str(logs)).code, "connection_lost")

    def test_who_may_not_follow_any_more_is_told_why(self) -> None:
        line = b'{"task":"main-0","attempt":1,"stream":"stdout","time":"","text":"one"}\n'
        last = b'{"code":"revoked","error":"you may not see it any more"}\n'
        with Script([chunked([line, last], whole=True), chunked([last], whole=True)]) as script:
            told: List[str] = []
            logs = script.yard().job("j").logs(follow=True)
            error = self.refused(lambda: told.extend(line["text"] for line in logs))
            self.assertEqual((error.code, error.status, told), ("revoked", 403, ["one"]))
            self.assertIn("any more", str(error))
            # Nor is the stream made anew.
            self.assertEqual(self.refused(lambda: list(script.yard().events(follow=True))).code, "revoked")

    def test_an_answer_of_a_known_length_that_breaks_off_does_not_look_whole(self) -> None:
        whole = answer("200 OK", b'{"items":[{"job":"j"}]}')
        with Script([whole[:-5], whole]) as script:
            error = self.refused(script.yard().models)
            self.assertEqual(error.code, "connection_lost")
            self.assertIn("5 bytes before its end", error.message)
            self.assertEqual(script.yard().models(), [{"job": "j"}])

    def test_waiting_ends_in_time_though_nothing_comes(self) -> None:
        silent = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        report = answer("200 OK", b'{"report":{"state":"running","run":1,"reason":""}}')
        with Script([silent, report], hold=True) as script:
            error = self.refused(lambda: script.yard().job("j").wait(timeout=0.2))
        self.assertEqual(error.code, "timed_out")
        self.assertIn("default/j", error.message)


if __name__ == "__main__":
    unittest.main()
