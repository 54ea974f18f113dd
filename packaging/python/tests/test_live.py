"""Against a daemon that runs: that of `TRAINYARD_ROOT`, as root, with a token in `TRAINYARD_TEST_TOKEN_FILE` for the address
https://localhost:8443, whose certificate is `TRAINYARD_TEST_CA`. tests/host/python.rs starts it; what is missing is an error."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable, Dict, List

import make_types
import trainyard
from trainyard import Job, TrainyardError, jobs, types

ROOT = Path(os.environ["TRAINYARD_ROOT"])
TOKEN_FILE = os.environ["TRAINYARD_TEST_TOKEN_FILE"]
NAMED_IN_CHINESE = os.environ["TRAINYARD_TEST_CHINESE_TOKEN_FILE"]
CA = os.environ["TRAINYARD_TEST_CA"]
#: Seconds in which everything here has come to its end.
ENOUGH = 60.0
SMALL = {"resources": {"cpu": 0.1, "memory": "100MB"}}
TEMPLATE = """command = "echo lr ${lr}"
[template]
description = "a template"
[template.params.lr]
type = "number"
default = 0.1
help = "how fast it learns"
[resources]
cpu = 0.1
memory = "100MB"
"""


def code(text: str) -> List[str]:
    """Without what is said beside it, which may be put in other words."""
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


class Live(unittest.TestCase):
    yard = trainyard.connect()

    def run_job(self, name: str, command: str, **keys: Any) -> Job:
        job = self.yard.create(name, {"command": command, **SMALL, **keys})
        job.wait(ENOUGH)
        return job

    def begin(self, name: str, keys: Dict[str, Any]) -> Job:
        """A job that goes on; whatever comes of the test, it holds up no other."""
        job = self.yard.create(name, keys)

        def end() -> None:
            if job.status()["ended"] is None:
                job.stop()
                job.wait(ENOUGH)

        self.addCleanup(end)
        return job

    def refused(self, what: Callable[[], Any]) -> TrainyardError:
        with self.assertRaises(TrainyardError) as caught:
            what()
        self.assertIn(caught.exception.code, trainyard.ADVICE)
        return caught.exception

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """For what no event tells of."""
        end = time.monotonic() + ENOUGH
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        self.fail(f"waited in vain for {what}")


class Jobs(Live):
    def test_a_job_is_created_waited_for_and_read(self) -> None:
        job = self.run_job("first", "echo one; echo two >&2; echo '<three>'", description="训练")
        result = job.wait(ENOUGH)
        self.assertEqual((result.state, result.exit_code, result.succeeded), ("succeeded", 0, True))
        self.assertIs(result.check(), result)
        self.assertEqual(sorted(line["text"] for line in job.logs()), ["<three>", "one", "two"])
        self.assertEqual({line["stream"] for line in job.logs()}, {"stdout", "stderr"})
        last = [line["text"] for line in job.logs("main-0", lines=1)]
        self.assertEqual(str(job.logs(lines=1)), last[0] + "\n")
        ahead = datetime.now(timezone.utc) + timedelta(hours=1)
        self.assertEqual((str(job.logs(since=ahead)), len(str(job.logs(until=ahead)))), ("", len("one\ntwo\n<three>\n")))
        self.assertIn("&lt;three&gt;", job.logs()._repr_html_())
        target = ROOT / "first.log"
        job.logs().save(target)
        self.assertEqual(sorted(target.read_text().split()), ["<three>", "one", "two"])
        self.assertEqual((job.status()["description"], job.key), ("训练", "default/first"))
        self.assertIn('command = "echo one', job.file())
        self.assertIn("succeeded", job._repr_html_())
        self.assertIn("default/first", self.yard._repr_html_())

    def test_a_failure_has_the_command_s_code(self) -> None:
        job = self.run_job("failing", "exit 7")
        result = job.wait(ENOUGH)
        self.assertEqual((result.state, result.exit_code), ("failed", 7))
        error = self.refused(result.check)
        self.assertEqual(error.code, "job_failed")
        self.assertIn("default/failing: failed", error.message)

    def test_a_job_comes_as_keys_as_text_and_as_a_file(self) -> None:
        text = 'state = "held"\ncommand = "true"\n'
        file = ROOT / "some.toml"
        file.write_text(text)
        for name, given in (("as-keys", {"state": "held", "command": "true"}), ("as-text", text), ("as-file", file)):
            self.assertEqual(self.yard.create(name, given).file(), text, name)
        self.assertEqual(self.refused(lambda: self.yard.create("as-text", text)).code, "conflict")
        self.yard.create("as-text", text + 'description = "again"\n', replace=True)
        self.assertEqual(self.yard.job("as-text").status()["description"], "again")
        self.yard.job("as-text").replace(text)
        self.assertEqual(self.yard.job("default/as-text").status()["description"], "")

    def test_what_is_wrong_is_told_by_place(self) -> None:
        wrong = {"command": "true", "resorces": {"cpu": 1}}
        error = self.refused(lambda: self.yard.create("wrong", wrong))
        self.assertEqual((error.code, error.status), ("invalid_job", 422))
        self.assertEqual((error.diagnostics[0]["line"], error.diagnostics[0]["severity"]), (3, "error"))
        self.assertIn("resources", error.message)
        checked = self.yard.check(wrong)
        self.assertEqual((checked["valid"], self.yard.check("command = 'true'\n")["valid"]), (False, True))
        self.assertEqual(self.refused(self.yard.job("none").status).code, "no_such_job")
        self.assertEqual(self.refused(lambda: self.yard.job("none/").status()).code, "bad_argument")

    def test_a_job_is_stopped_run_again_cloned_and_deleted(self) -> None:
        job = self.yard.create("long", {"command": "echo up; sleep infinity", "max_duration": "1h", **SMALL})
        follower = iter(job.logs(follow=True))
        self.assertEqual(next(follower)["text"], "up")
        self.assertEqual(self.refused(job.delete).code, "still_running")
        self.assertIn("long", job.extend(timedelta(minutes=1)))
        self.assertEqual(self.refused(lambda: job.wait(0.2)).code, "timed_out")
        job.stop()
        result = job.wait(ENOUGH)
        self.assertEqual((result.state, result.exit_code), ("stopped", None))
        self.assertEqual(list(follower), [])
        job.rerun()
        self.until("run 2", lambda: job.status()["run"] == 2 and job.state == "running")
        job.restart()
        self.until("run 3", lambda: job.status()["run"] == 3 and job.state == "running")
        copy = job.clone("copy")
        self.assertEqual(copy.file(), job.file())
        for one in (job, copy):
            one.stop()
            one.wait(ENOUGH)
        self.assertEqual([name for name, _ in self.yard.delete(["long", "copy", "never-was"])], ["never-was"])
        self.assertEqual(self.refused(job.status).code, "no_such_job")
        self.assertEqual(self.refused(job.send_output).code, "no_such_job")
        self.assertEqual(self.refused(job.give_up_output).code, "no_such_job")

    def test_a_file_that_is_deleted_stops_its_job(self) -> None:
        job = self.yard.create("filed", {"command": "sleep infinity", **SMALL})
        job.delete_file()
        self.assertEqual(job.wait(ENOUGH).state, "stopped")
        self.assertEqual(self.refused(job.file).code, "not_found")

    def test_lists_have_filters_and_any_number_of_pages(self) -> None:
        names = [f"listed-{number}" for number in range(5)]
        for name in names:
            self.yard.create(name, {"command": "true", "state": "held", "description": "of the list"})
        found = [job.name for job in self.yard.jobs("of the list", state=["held", "failed"], page=2)]
        self.assertEqual(found, names)
        back = self.yard.jobs(name="listed", sort="-name", user="root", workspace="default", since=0, page=2, limit=3)
        self.assertEqual([job.name for job in back], names[:1:-1])
        self.assertEqual(list(self.yard.jobs("of the list", until=1000.0)), [])
        self.yard.create("listed-ran", {"command": "true", **SMALL}).wait(ENOUGH)
        for sort, sorted_so in [("-duration", ["listed-ran", *names]), ("state", [*names, "listed-ran"])]:
            self.assertEqual([job.name for job in self.yard.jobs("listed", sort=sort, page=2)], sorted_so)
            self.assertEqual([job.name for job in self.yard.jobs("listed", sort=sort, page=2, limit=3)], sorted_so[:3])
        self.assertEqual(next(self.yard.jobs("of the list")).seen["state"], "held")
        self.assertEqual(self.refused(lambda: list(self.yard.jobs(state="lost"))).code, "bad_request")

    def test_a_place_in_the_queue_and_why(self) -> None:
        whole = {"command": "sleep infinity", "resources": {"cpu": 3, "memory": "100MB"}}
        first = self.begin("queue-1", whole)
        self.until("the first one", lambda: first.state == "running")
        second = self.begin("queue-2", whole)

        def waits_for_room() -> Any:
            waiting = second.waiting()
            return waiting if waiting and waiting["cause"] == "room" and waiting["place"] else None

        waiting = self.until("a place", waits_for_room)
        self.assertEqual(waiting["needs"]["cpu"], 3.0)
        self.assertIn("queue-1", [holder["job"] for holder in waiting["holders"]])
        # What others have left waiting may be there as well.
        self.assertIn("queue-2", [job.name for job in self.yard.queue("default")])
        self.assertIsNone(first.waiting())
        for job in (second, first):
            job.stop(now=True)
            self.assertEqual(job.wait(ENOUGH).state, "stopped")

    def test_threads_share_a_yard(self) -> None:
        ended: List[str] = []
        threads = [
            threading.Thread(target=lambda name=f"thread-{number}": ended.append(self.run_job(name, "true").state))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ENOUGH)
        self.assertEqual(ended, ["succeeded"] * 4)


class Told(Live):
    def test_events_are_told_once_and_in_order(self) -> None:
        job = self.run_job("eventful", "true")
        told = []
        for event in job.follow():
            told.append(event)
            if event["state"] == "succeeded":
                break
        serials = [event["serial"] for event in told]
        self.assertEqual(serials, sorted(set(serials)))
        kept = [event["message"] for event in job.events()][: len(told)]
        self.assertEqual([event["message"] for event in told], kept)
        rest = list(self.yard.events(after=serials[0], workspace="default", job="eventful", limit=2))
        self.assertEqual([event["serial"] for event in rest], serials[1:3])

    def test_what_a_task_uses_and_tells_of_its_training(self) -> None:
        command = "for step in 1 2; do echo step $step: loss=0.$step; done"
        job = self.run_job("scalar", command, scalars={"lines": r"step (?<step>\d+): loss=(?<loss>\S+)"})
        rows = [(row["step"], row["tag"], row["value"]) for row in job.scalars()]
        self.assertEqual(rows, [(1.0, "loss", 0.1), (2.0, "loss", 0.2)])
        measured = job.metrics("main-0", run=1, attempt=1)
        self.assertTrue(measured and isinstance(measured[-1]["cpu_s"], float) and isinstance(measured[-1]["time"], str))
        self.assertEqual(self.refused(lambda: job.scalars("main-7")).code, "not_found")
        many = self.run_job("many", "true", roles={"worker": {"count": 2}})
        self.assertIn("worker-0, worker-1", self.refused(many.metrics).message)

    def test_the_address_of_a_tensorboard(self) -> None:
        # As `[tensorboard]` makes it, but for the program, which the machine need not have.
        board = {"command": "sleep infinity", "port": 6006, **SMALL}
        job = self.yard.create("boarded", {"command": "sleep infinity", "services": {"tensorboard": board}, **SMALL})
        at = self.until("a TensorBoard", job.tensorboard)
        self.assertRegex(at, r"\Ahttp://.+:\d+/\Z")
        self.assertIn(at, job.addresses().values())
        job.stop()
        job.wait(ENOUGH)
        self.assertIsNone(job.tensorboard())


class Machine(Live):
    def test_what_else_there_is(self) -> None:
        self.assertIsInstance(self.yard.gpus()["gpus"], list)
        self.assertTrue(self.yard.ready()["ready"])
        self.run_job("used", "true")
        self.assertIn("used", [used["name"] for used in self.yard.usage("job", since=0)])
        self.assertIn("used", [used["name"] for used in self.yard.usage("job", workspace="default")])
        self.assertEqual(self.yard.usage("job", workspace="elsewhere"), [])
        self.assertIn("default", [workspace["workspace"] for workspace in self.yard.workspaces()])
        self.assertEqual(self.yard.workspace("default")["workspace"], "default")
        self.assertEqual(self.yard.images(), [])

    def test_templates_and_jobs_of_them(self) -> None:
        (ROOT / "etc/trainyard/jobs.d/learn.template.toml").write_text(TEMPLATE)
        listed = {template["template"]: template for template in self.yard.templates()}
        self.assertEqual(listed["learn"]["params"][0]["help"], "how fast it learns")
        self.assertEqual(self.yard.template("learn")["text"], TEMPLATE)
        self.assertEqual(self.refused(lambda: self.yard.save_template("learn", TEMPLATE)).code, "conflict")
        error = self.refused(lambda: self.yard.save_template("bad", "command = 3"))
        self.assertEqual((error.code, len(error.diagnostics)), ("invalid_template", 1))
        self.assertEqual(self.yard.save_template("learn", TEMPLATE, replace=True)["text"], TEMPLATE)
        self.assertEqual(self.yard.save_template("again", TEMPLATE)["params"][0]["name"], "lr")
        self.assertEqual([found["template"] for found in self.yard.templates(name="agian", sort="-changed")], ["again"])
        self.yard.delete_template("again")
        self.assertNotIn("again", [template["template"] for template in self.yard.templates()])
        job = self.yard.create("learned", jobs.Template("learn", lr=0.5))
        job.wait(ENOUGH).check()
        self.assertEqual(str(job.logs()), "lr 0.5\n")

    def test_datasets_and_models(self) -> None:
        home = ROOT / "var/lib/trainyard/workspaces/default"
        (home / "datasets/digits/draft").mkdir(parents=True)
        (found,) = [dataset for dataset in self.yard.datasets() if dataset["dataset"] == "digits"]
        self.assertEqual((found["versions"], found["has_draft"]), ([], True))
        self.run_job("modelled", "echo weights > /model/w")
        (model,) = [model for model in self.yard.models() if model["job"] == "modelled"]
        self.assertEqual((model["run"], "w" in model["files"]), (1, True))
        self.yard.delete_model("modelled", 1)
        self.assertEqual([model for model in self.yard.models() if model["job"] == "modelled"], [])
        self.assertEqual(self.refused(lambda: self.yard.delete_model("modelled", 1)).code, "not_found")

    def test_secrets_are_written_and_never_read(self) -> None:
        self.yard.set_secret("git", "p4ss")
        self.assertEqual(self.yard.secrets(), ["git"])
        self.assertEqual((ROOT / "etc/trainyard/secrets/default/git").read_text(), "p4ss")
        self.yard.delete_secret("git")
        self.assertEqual(self.yard.secrets(), [])
        self.assertEqual(self.refused(lambda: self.yard.delete_secret("git")).code, "not_found")

    def test_every_maker_s_job_is_one(self) -> None:
        made: List[jobs.JobFile] = [jobs.Plain("python3 train.py", image="host", retries=1)]
        for maker in jobs.FRAMEWORKS.values():
            made += [maker("python3 train.py", workers=2), maker("python3 train.py", workers=2, gpu=1, memory="1GiB")]
        made += [cls("x", workers=2, strategy="master-worker") for cls in (jobs.PyTorch, jobs.XGBoost, jobs.JAX)]
        made += [cls("x", workers=2, strategy="ps", ps=2, cpu=0.5, memory="512MiB") for cls in (jobs.TensorFlow, jobs.Paddle, jobs.MindSpore)]
        made += [jobs.TensorFlow("x", workers=2, strategy=strategy) for strategy in ("allreduce", "master-worker")]
        made += [jobs.DeepSpeed("deepspeed x", workers=2, strategy="launcher", slots=2), jobs.MPI("mpirun x", slots=2)]
        made += [jobs.PyTorch("torchrun x", workers=2, processes=2, params={"epochs": 3}, cpu=0.5, shm="1GiB")]
        for job in made:
            with self.subTest(str(job)):
                self.assertEqual(self.yard.check(job)["diagnostics"], [])

    def test_a_framework_s_job_finds_its_cluster(self) -> None:
        job = self.yard.create("cluster", jobs.PyTorch("echo $NODE_RANK of $NNODES", workers=2, cpu=0.1, memory="100MB"))
        job.wait(ENOUGH).check()
        self.assertEqual(sorted(line["text"] for line in job.logs()), ["0 of 2", "1 of 2"])


class Description(Live):
    def test_the_types_are_those_of_the_daemon(self) -> None:
        written = Path(types.__file__).read_text(encoding="utf-8")
        made = make_types.text(self.yard.openapi())
        self.assertEqual(code(made), code(written), "`make_types.py < openapi.json` writes them anew")

    def test_every_operation_is_used_or_left_out_by_name(self) -> None:
        left_out = [name for names in make_types.LEFT_OUT for name in names.split()]
        self.assertEqual(sorted([*make_types.USED, *left_out]), sorted(make_types.operations(self.yard.openapi())))


class Documents(Live):
    def test_docs_python_md_runs_as_it_is_written(self) -> None:
        text = (Path(__file__).resolve().parents[3] / "docs/PYTHON.md").read_text(encoding="utf-8")
        blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
        printed = io.StringIO()
        names: Dict[str, Any] = {}
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                exec(compile(block, "docs/PYTHON.md", "exec"), names)
        for part in (
            "succeeded 0\nhello\n",
            "resources",
            "[roles.ps.resources]\ngpu = 0",
            "[(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)]",
            "'counting'",
            "conflict – take another name",
        ):
            self.assertIn(part, printed.getvalue())


class Network(Live):
    def test_a_token_does_over_tls_what_it_may(self) -> None:
        yard = trainyard.connect("https://localhost:8443", token_file=TOKEN_FILE, cafile=CA)
        job = yard.create("over-tls", {"command": "echo far", **SMALL})
        self.assertEqual(job.wait(ENOUGH).exit_code, 0)
        self.assertEqual(str(job.logs()), "far\n")
        self.assertEqual(self.refused(yard.secrets).code, "forbidden")
        self.assertIsNone(job.tensorboard())

    def test_a_token_may_be_called_in_any_script(self) -> None:
        yard = trainyard.connect("https://localhost:8443", token_file=NAMED_IN_CHINESE, cafile=CA)
        self.assertIsInstance(yard.gpus(), dict)
        with open(NAMED_IN_CHINESE, encoding="utf-8") as file:
            token = file.read()
        self.assertIn("\u540d", token)
        # One that there is not is the daemon's to refuse.
        other = trainyard.connect("https://localhost:8443", token=token.replace("\u540d", "\u5b57"), cafile=CA)
        self.assertEqual(self.refused(other.gpus).code, "unauthorized")

    def test_who_is_not_trusted_is_not_spoken_to(self) -> None:
        self.assertEqual(
            self.refused(trainyard.connect("https://localhost:8443", token_file=TOKEN_FILE).gpus).code, "not_trusted"
        )
        other_name = trainyard.connect("https://127.0.0.1:8443", token_file=TOKEN_FILE, cafile=CA)
        self.assertEqual(self.refused(other_name.gpus).code, "not_trusted")
        wrong = trainyard.connect("https://localhost:8443", token="wrong", cafile=CA)
        self.assertEqual(self.refused(wrong.gpus).code, "unauthorized")


if __name__ == "__main__":
    unittest.main()
