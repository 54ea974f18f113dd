"""Job files by framework and strategy: say what is trained by what and by how many, the rest follows.

Each is a dictionary of the job's keys, for `Yard.create`; `str` of it is the file. Whatever the job language has is a further
argument (`image=`, `code=`, `datasets=`, `env=`, `params=`, `retries=` …; `trainyard explain` lists them), and `cpu`,
`memory`, `gpu`, `gpu_type`, `gpu_memory`, `shm` and `spec` are the resources of each task. A role is a number of tasks, or a
dictionary of its keys: `workers={"count": 4, "resources": {"cpu": 8}}`.

>>> print(TensorFlow("python3 train.py", ps=1, workers=2, gpu=1))
command = "python3 train.py"
framework = "tensorflow"
strategy = "ps"
<BLANKLINE>
[resources]
gpu = 1
<BLANKLINE>
[roles.ps]
count = 1
<BLANKLINE>
[roles.ps.resources]
gpu = 0
<BLANKLINE>
[roles.worker]
count = 2
"""

from __future__ import annotations

import html
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from . import _arguments, _toml
from .errors import TrainyardError

#: How many tasks, or the keys of the role.
Role = Union[int, Mapping[str, Any]]
#: A shell's command line, or a program with its arguments.
Command = Union[str, List[str], None]

_RESOURCES = ("cpu", "memory", "gpu", "gpu_type", "gpu_memory", "shm", "spec")
#: Roles that hand out parameters, and compute nothing on cards.
_SERVING = ("ps", "server", "pserver")


class JobFile(Dict[str, Any]):
    """The keys of a job."""

    def __init__(self, command: Command = None, **keys: Any) -> None:
        super().__init__()
        if command is not None:
            self["command"] = command
        resources = {name: keys.pop(name) for name in _RESOURCES if name in keys}
        given = keys.pop("resources", None)
        given = {} if given is None else _arguments.table(given, "resources")
        self.update((name, value) for name, value in keys.items() if value is not None)
        if resources or given:
            self["resources"] = {**given, **resources}

    def __str__(self) -> str:
        return _toml.write(self).rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _cluster(self, framework: str, strategy: str, roles: Mapping[str, Optional[Role]]) -> None:
        self["framework"], self["strategy"] = framework, strategy
        made = {name: self._role(name, role) for name, role in roles.items() if role is not None and role != 0}
        self["roles"] = {**made, **_arguments.table(self.get("roles", {}), "roles")}
        # Tables come last in a file, the roles after what holds for all.
        self["roles"] = self.pop("roles")

    def _role(self, name: str, role: Role) -> Dict[str, Any]:
        if isinstance(role, bool) or (isinstance(role, int) and role < 0):
            raise TrainyardError("bad_argument", f"roles.{name}: {role!r} is no number of tasks")
        keys: Dict[str, Any] = _keys(role, f"roles.{name}")
        asks_cards = any(key.startswith("gpu") for key in self.get("resources", {}))
        if name in _SERVING and asks_cards and "resources" not in keys:
            keys["resources"] = {"gpu": 0}
        return keys


class Plain(JobFile):
    """One task, without a framework."""


class Template(JobFile):
    """A job from a template, with values for its parameters: `Template("ddp", lr=0.1)`."""

    def __init__(self, template: str, **values: Any) -> None:
        super().__init__(template=template)
        if values:
            self["with"] = values


class PyTorch(JobFile):
    """`allreduce`: all workers are alike; `master-worker`: a master beside them, whose rank is 0.

    `processes` is how many `torchrun` starts in each task.
    """

    framework = "pytorch"
    strategies: Tuple[str, ...] = ("allreduce", "master-worker")

    def __init__(
        self,
        command: Command = None,
        *,
        workers: Role = 1,
        strategy: str = "allreduce",
        master: Role = 1,
        processes: Optional[int] = None,
        **keys: Any,
    ) -> None:
        super().__init__(command, **keys)
        if processes is not None:
            self["env"] = {"PET_NPROC_PER_NODE": str(processes), **_arguments.table(self.get("env", {}), "env")}
        leads = _one_of(strategy, self.strategies) == "master-worker"
        self._cluster(self.framework, strategy, {"master": master if leads else None, "worker": workers})


class DeepSpeed(PyTorch):
    """As PyTorch; with `launcher` the command, `deepspeed …`, starts `slots` ranks on each worker itself."""

    framework = "deepspeed"
    strategies = ("allreduce", "master-worker", "launcher")

    def __init__(
        self,
        command: Command = None,
        *,
        workers: Role = 1,
        strategy: str = "allreduce",
        slots: Optional[int] = None,
        **keys: Any,
    ) -> None:
        super().__init__(command, workers=_with_slots(workers, slots), strategy=strategy, **keys)


class TensorFlow(JobFile):
    """`ps`: workers and servers of parameters; `allreduce`: workers alone; `master-worker`: a chief beside them."""

    def __init__(
        self,
        command: Command = None,
        *,
        workers: Role = 1,
        strategy: str = "ps",
        ps: Role = 1,
        chief: Role = 0,
        evaluator: Role = 0,
        **keys: Any,
    ) -> None:
        super().__init__(command, **keys)
        _one_of(strategy, ("ps", "allreduce", "master-worker"))
        leader = chief or (1 if strategy == "master-worker" else 0)
        servers = ps if strategy == "ps" else None
        self._cluster(
            "tensorflow", strategy, {"chief": leader, "ps": servers, "worker": workers, "evaluator": evaluator}
        )


class MXNet(JobFile):
    """Workers and servers of parameters; a scheduler is added."""

    def __init__(self, command: Command = None, *, workers: Role = 1, servers: Role = 1, **keys: Any) -> None:
        super().__init__(command, **keys)
        self._cluster("mxnet", "ps", {"server": servers, "worker": workers})


class XGBoost(JobFile):
    """`allreduce`: all workers are alike; `master-worker`: a master beside them."""

    framework = "xgboost"

    def __init__(
        self, command: Command = None, *, workers: Role = 1, strategy: str = "allreduce", master: Role = 1, **keys: Any
    ) -> None:
        super().__init__(command, **keys)
        leads = _one_of(strategy, ("allreduce", "master-worker")) == "master-worker"
        self._cluster(self.framework, strategy, {"master": master if leads else None, "worker": workers})


class JAX(XGBoost):
    """`allreduce`: all workers are alike; `master-worker`: a master beside them, process 0."""

    framework = "jax"


class Paddle(JobFile):
    """`collective`: all workers are alike; `ps`: servers of parameters beside them."""

    framework = "paddle"

    def __init__(
        self, command: Command = None, *, workers: Role = 1, strategy: str = "collective", ps: Role = 1, **keys: Any
    ) -> None:
        super().__init__(command, **keys)
        serves = _one_of(strategy, ("collective", "ps")) == "ps"
        self._cluster(self.framework, strategy, {"ps": ps if serves else None, "worker": workers})


class MindSpore(Paddle):
    """`collective`: all workers are alike; `ps`: servers of parameters beside them. A scheduler is added."""

    framework = "mindspore"


class MPI(JobFile):
    """The command, `mpirun …`, runs on a launcher that is added, and starts `slots` ranks on each worker."""

    framework = "mpi"

    def __init__(
        self, command: Command = None, *, workers: Role = 1, slots: Optional[int] = None, **keys: Any
    ) -> None:
        super().__init__(command, **keys)
        self._cluster(self.framework, "launcher", {"worker": _with_slots(workers, slots)})


class Horovod(MPI):
    """The command, `horovodrun …` or `mpirun …`, runs on a launcher that is added, and starts `slots` ranks on each worker."""

    framework = "horovod"


#: Each framework of the job language with its class.
FRAMEWORKS = {
    "pytorch": PyTorch,
    "tensorflow": TensorFlow,
    "mxnet": MXNet,
    "xgboost": XGBoost,
    "paddle": Paddle,
    "mindspore": MindSpore,
    "jax": JAX,
    "mpi": MPI,
    "horovod": Horovod,
    "deepspeed": DeepSpeed,
}


def _with_slots(workers: Role, slots: Optional[int]) -> Role:
    if slots is None:
        return workers
    return {**_keys(workers, "workers"), "slots": slots}


def _keys(role: Role, what: str) -> Dict[str, Any]:
    """A role's keys, of which there is one task unless they say how many."""
    given: object = role
    if isinstance(given, int):
        return {"count": given}
    if not isinstance(given, Mapping):
        raise _arguments.refused(what, given, "a number of tasks, or a dictionary of the role's keys")
    return {"count": 1, **_arguments.table(given, what)}


def _one_of(strategy: str, strategies: Tuple[str, ...]) -> str:
    if strategy not in strategies:
        told = ", ".join(strategies)
        raise TrainyardError("bad_argument", f"strategy={strategy!r}: there are {told}")
    return strategy
