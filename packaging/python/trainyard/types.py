"""What the daemon answers. Made by tests/make_types.py out of its own description: do not edit."""

from __future__ import annotations

from typing import List, Literal, Optional, TypedDict


class CheckView(TypedDict):
    #: `loop`: decides; `drain`: jobs may start; `disk`: has room for what the daemon keeps and for new runs;
    #: `mount`: the workspaces are shown, and answer.
    check: str
    ok: bool
    #: What it found, one line.
    says: str


class Readiness(TypedDict):
    checks: List[CheckView]
    ready: bool

Severity = Literal["error", "warning"]


# One finding, printed as `FILE:LINE:COLUMN: MESSAGE`.
class Diagnostic(TypedDict):
    #: In characters, from 1.
    column: int
    file: str
    #: The key it is about, dotted (`roles.worker.count`).
    key: Optional[str]
    #: From 1; 0 when the finding concerns the whole file.
    line: int
    #: What is wrong and what to do, lower case, without a full stop.
    message: str
    severity: Severity


# How long an attempt of a run that is not over may take; then it is stopped.
class LimitReport(TypedDict):
    #: What of it was added by `trainyard extend`.
    extended_ms: int
    limit_ms: int
    #: When the one that runs is stopped.
    until: Optional[str]

#: What a job or a run is doing.
State = Literal["starting", "running", "succeeded", "failed", "stopped", "invalid", "held", "waiting", "stopping"]


class TaskReport(TypedDict):
    ended: Optional[str]
    exit_code: Optional[int]
    memory_peak: Optional[int]
    #: launching, running or ended.
    phase: str
    #: How it ended, one line; empty before.
    reason: str
    started: Optional[str]
    #: `ROLE-I`.
    task: str


class AmountReport(TypedDict):
    #: Cores.
    cpu: float
    #: Cards; a share or a slice is part of one.
    gpu: float
    #: Bytes.
    memory: int


class HolderReport(TypedDict):
    holds: AmountReport
    #: Of the own workspace.
    job: Optional[str]
    jobs: int
    #: When it should end.
    until: Optional[str]
    workspace: str


# A process that keeps a card from jobs.
class StrangerReport(TypedDict):
    #: As `trainyard gpu` calls it.
    gpu: str
    #: Bytes on the card; not known to every driver.
    memory: Optional[int]
    pid: int
    #: The profile of the slice that it uses.
    slice: Optional[str]
    #: Absent if it has ended since.
    uid: Optional[int]
    user: Optional[str]
    uuid: str


class _WaitReport(TypedDict, total=False):
    #: Of one far behind, instead: when it should start if none of those before it goes first in a gap, which as a rule is later
    #: than it will be.
    starts_about: Optional[str]
    #: Who uses cards of the machine and is no job of Trainyard: whole ones or slices, as it waits for.
    strangers: List[StrangerReport]


# What is known of a run that waits in the queue.
class WaitReport(_WaitReport):
    #: When this was so.
    as_of: str
    #: What keeps it: `turn` (others come before it), `room` on the machine, the `quota` of its workspace, a named `port`,
    #: `addresses`, or `gpu` where the machine has too few that can be used.
    cause: str
    #: On the machine, or of the quota where that is what keeps it.
    free: AmountReport
    #: Who holds what it needs and is not free: jobs of the own workspace by name, those of others together.
    holders: List[HolderReport]
    needs: AmountReport
    of: int
    #: Its place, from 1, of so many.
    place: int
    #: When it should start, by what jobs say of how long they take; absent where they do not.
    starts_by: Optional[str]


class _JobReport(TypedDict, total=False):
    #: Of a run that is not over, where it has one.
    limit: Optional[LimitReport]
    #: What becomes of output that is copied to a store, one line a run.
    sending: List[str]
    #: Of a job of a sweep: the keys that are swept, and their values here.
    sweep: List[List[str]]
    #: While it waits in the queue.
    waiting: Optional[WaitReport]


# A job and its newest run.
class JobReport(_JobReport):
    #: 0 before the first attempt.
    attempt: int
    created: str
    description: str
    #: What is wrong with the job file, or worth knowing.
    diagnostics: List[Diagnostic]
    #: Milliseconds from the start of the newest run to its end, or to when this was asked.
    duration_ms: Optional[int]
    ended: Optional[str]
    job: str
    #: User id of the owner.
    owner: int
    #: Why it is in this state, one line.
    reason: str
    #: 0 before the first run.
    run: int
    started: Optional[str]
    state: State
    tasks: List[TaskReport]
    workspace: str


class _JobReportList(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


class JobReportList(_JobReportList):
    jobs: List[JobReport]
    #: What came up to this serial number of events is in it: `/v1/events?after=` it tells what comes.
    serial: int
    #: Files in `jobs.d` that cannot be anybody's job; root alone is told.
    strays: List[Diagnostic]
    #: So many jobs are as was asked for, on this page and others.
    total: int


class EventView(TypedDict):
    at: str
    message: str
    number: int
    run: int
    state: str


# What a card of a task did when it was measured last.
class GpuReport(TypedDict):
    #: When that was; absent where it was not measured lately.
    at: Optional[str]
    #: As `trainyard gpu` calls it.
    gpu: str
    #: Bytes in use.
    memory: Optional[int]
    #: Thousandths of a watt.
    power: Optional[int]
    #: `ROLE-I`.
    task: str
    #: Percent.
    utilisation: Optional[int]
    uuid: str


class PortView(TypedDict):
    #: Where the task itself listens.
    address: str
    label: str
    port: int
    #: The port of the machine that leads there, if one does.
    published: Optional[int]
    #: `ROLE-I`.
    task: str


class AttemptView(TypedDict):
    attempt: int
    ended: Optional[str]
    started: str
    tasks: List[TaskReport]
    #: How it ended.
    verdict: Optional[str]


class RunView(TypedDict):
    attempts: List[AttemptView]
    created: str
    ended: Optional[str]
    run: int
    #: How it ended.
    verdict: Optional[str]

#: How much of a job the caller sees.
Seen = Literal["told", "shared", "own"]


class TaskUsage(TypedDict):
    at: str
    #: Of one core, in the 5 s before; absent where the kernel does not tell, as all that follows.
    cpu_percent: Optional[float]
    #: Bytes, page cache included.
    memory: Optional[int]
    #: `ROLE-I`.
    task: str


class JobView(TypedDict):
    events: List[EventView]
    #: What the cards of its tasks do while they run.
    gpus: List[GpuReport]
    #: Ports that its tasks listen on while they run.
    ports: List[PortView]
    report: JobReport
    runs: List[RunView]
    seen: Seen
    #: The last good version of the job file, where all of the job is the caller's to see.
    spec: Optional[str]
    #: What its tasks use of processors and memory while they run.
    usage: List[TaskUsage]


# One line of a task's output.
class LogLine(TypedDict):
    attempt: int
    #: stdout or stderr; log for what Trainyard says of output that was dropped.
    stream: str
    task: str
    #: Without its newline; bytes that are not UTF-8 are replaced.
    text: str
    time: str


class Done(TypedDict):
    message: str


# One name of an image.
class ImageView(TypedDict):
    brought: str
    digest: str
    #: mine, public or preset.
    kind: str
    layers: int
    name: str
    #: Bytes of its files.
    size: int
    used: str
    workspace: Optional[str]


class _ImageViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class ImageViewPage(_ImageViewPage):
    items: List[ImageView]
    #: So many are as was asked for, on this page and others.
    total: int


# Errors of memory since the driver was loaded.
class EccView(TypedDict):
    corrected: int
    uncorrected: int


class FindingView(TypedDict):
    level: str
    rule: str
    says: str


class ProcessView(TypedDict):
    #: Bytes on the card.
    memory: Optional[int]
    #: Of a process of a job that is not the caller's to see only the memory is told.
    pid: Optional[int]
    #: Told to its user and to root.
    program: Optional[str]
    #: The slice on which it runs.
    slice: Optional[str]
    uid: Optional[int]
    user: Optional[str]


# Rows of memory in whose place spare ones are used.
class RemappedView(TypedDict):
    correctable: int
    #: There was no spare row.
    failed: bool
    #: More will be when the card is next reset.
    pending: bool
    uncorrectable: int


# Pages of memory that are no longer used, by the errors for which they are not.
class RetiredView(TypedDict):
    double_bit: int
    #: More will be when the card is next reset.
    pending: bool
    single_bit: int


class ShareView(TypedDict):
    #: As `leased_by` of a card.
    holder: str
    #: Bytes that it may use.
    memory: int


class SliceView(TypedDict):
    #: As `leased_by` of a card.
    leased_by: Optional[str]
    #: Bytes; absent where it does not tell.
    memory: Optional[int]
    profile: str
    #: Why nobody is given it: its devices are not there, or it is itself no longer there and somebody still has it.
    unreachable: Optional[str]
    uuid: str


class GpuView(TypedDict):
    bus: str
    #: Processors that are near, as `0-15,32-47`.
    cpus: str
    #: Errors of memory; absent where that is not told or not counted.
    ecc: Optional[EccView]
    findings: List[FindingView]
    #: `ok`, `warning`, `unusable` (nothing is started on it, who has it goes on) or `failed`.
    health: str
    #: Its place in the list.
    index: int
    #: The job and task that hold it, or, of a job that is not the caller's to see, its workspace.
    leased_by: Optional[str]
    #: The way to each card of the list, as `nvidia-smi topo -m` has it.
    links: List[str]
    #: Bytes; absent of a card that does not tell.
    memory: Optional[int]
    memory_used: Optional[int]
    #: Of `/dev/nvidiaN`.
    minor: Optional[int]
    name: str
    numa_node: Optional[int]
    #: Thousandths of a watt.
    power: Optional[int]
    power_limit: Optional[int]
    processes: List[ProcessView]
    #: Of newer cards.
    remapped: Optional[RemappedView]
    #: Of older cards.
    retired: Optional[RetiredView]
    #: Who has shares of it.
    shares: List[ShareView]
    slices: List[SliceView]
    #: Why its clocks are lowered: `heat`, `power-brake`.
    slowed_by: List[str]
    #: Degrees Celsius.
    temperature: Optional[int]
    #: Percent.
    utilisation: Optional[int]
    uuid: str


class GpuList(TypedDict):
    #: When this was found.
    at: Optional[str]
    cuda: Optional[str]
    #: The driver's version, and the newest one of CUDA that it serves.
    driver: Optional[str]
    gpus: List[GpuView]
    #: Why there are no cards for us.
    missing: Optional[str]
    #: What is said of cards that do not even tell which they are.
    nameless: List[str]
    #: NVML has not answered since.
    stale: bool


# What one of them has used.
class UsageView(TypedDict):
    #: That ended in the time that it is of, or run.
    attempts: int
    cpu_hours: float
    gpu_hours: float
    #: GiB times hours.
    memory_gib_hours: float
    #: Of a workspace or a job; of a user the number.
    name: str
    #: By the specs of the jobs, in whatever the administrator reckons in; none where no attempt has a price.
    price: Optional[float]
    #: Attempts that have none, or tasks without one.
    unpriced: int


class _UsageViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class UsageViewPage(_UsageViewPage):
    items: List[UsageView]
    #: So many are as was asked for, on this page and others.
    total: int


class WorkspaceView(TypedDict):
    #: `counted` by Trainyard, or by the kernel: by `btrfs`, or as a `project` of ext4 or XFS.
    held: Optional[str]
    #: What is to be known of it.
    note: Optional[str]
    #: Bytes that it may keep.
    quota: Optional[int]
    #: Jobs that have something running, and that wait for their turn.
    running: int
    #: Bytes that it keeps; not counted for a workspace without a quota.
    used: Optional[int]
    waiting: int
    #: Or `preset` or `public`, which all see, where these have a quota.
    workspace: str


class _WorkspaceViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class WorkspaceViewPage(_WorkspaceViewPage):
    items: List[WorkspaceView]
    #: So many are as was asked for, on this page and others.
    total: int


class EntryView(TypedDict):
    bytes: int
    name: str


class PartView(TypedDict):
    bytes: int
    #: The largest first; none for who may not list them.
    entries: List[EntryView]
    part: str


# With what takes the room.
class WorkspaceDetail(TypedDict):
    #: `counted` by Trainyard, or by the kernel: by `btrfs`, or as a `project` of ext4 or XFS.
    held: Optional[str]
    #: What is to be known of it.
    note: Optional[str]
    parts: List[PartView]
    #: Bytes that it may keep.
    quota: Optional[int]
    #: Jobs that have something running, and that wait for their turn.
    running: int
    #: Bytes that it keeps; not counted for a workspace without a quota.
    used: Optional[int]
    waiting: int
    #: Or `preset` or `public`, which all see, where these have a quota.
    workspace: str


# What was found in a job file.
class Checked(TypedDict):
    diagnostics: List[Diagnostic]
    #: The daemon would take it.
    valid: bool


# An event among those of all jobs.
class HappeningView(TypedDict):
    at: str
    job: str
    message: str
    number: int
    run: int
    #: Its place among the events of all jobs: go on with `after`.
    serial: int
    state: str
    workspace: str


class DatasetView(TypedDict):
    dataset: str
    #: A version is being made.
    has_draft: bool
    #: The workspace whose it is, or `preset` or `public`.
    home: str
    latest: Optional[str]
    #: Published ones, in order of their names.
    versions: List[str]


class _DatasetViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class DatasetViewPage(_DatasetViewPage):
    items: List[DatasetView]
    #: So many are as was asked for, on this page and others.
    total: int


# What a run has left in its model directory.
class ModelView(TypedDict):
    #: Names of its files and directories.
    files: List[str]
    job: str
    run: int
    workspace: str


class _ModelViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class ModelViewPage(_ModelViewPage):
    items: List[ModelView]
    #: So many are as was asked for, on this page and others.
    total: int


class ParamView(TypedDict):
    bounds: str
    #: It must be given when absent.
    default: Optional[str]
    help: str
    name: str
    type: str


# A template: it may be broken.
class TemplateView(TypedDict):
    changed: str
    description: str
    #: What is wrong with it.
    error: Optional[str]
    #: User id.
    owner: int
    params: List[ParamView]
    #: `NAME`, or `WORKSPACE/NAME`.
    template: str


class _TemplateViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class TemplateViewPage(_TemplateViewPage):
    items: List[TemplateView]
    #: So many are as was asked for, on this page and others.
    total: int


# With its file.
class TemplateDetail(TypedDict):
    changed: str
    description: str
    #: What is wrong with it.
    error: Optional[str]
    #: User id.
    owner: int
    params: List[ParamView]
    #: `NAME`, or `WORKSPACE/NAME`.
    template: str
    text: str


class SecretView(TypedDict):
    secret: str
    workspace: str


class _SecretViewPage(TypedDict, total=False):
    #: There is more: ask again with it as `after`.
    next: Optional[str]


# A page of a list.
class SecretViewPage(_SecretViewPage):
    items: List[SecretView]
    #: So many are as was asked for, on this page and others.
    total: int
