"""Trainyard's client: jobs of one machine, or of several, each behind a `Yard`.

>>> import trainyard
>>> yard = trainyard.connect()
>>> job = yard.create("digits", trainyard.jobs.PyTorch("python3 train.py", workers=2, image="lab/torch", code="digits"))
>>> job.wait().check()
>>> print(job.logs(lines=10))
"""

from . import jobs, types
from .client import Yard, connect
from .errors import ADVICE, TrainyardError
from .job import Job, Logs, Result

__all__ = ["ADVICE", "Job", "Logs", "Result", "TrainyardError", "Yard", "connect", "jobs", "types"]
__version__ = "0.1.0"
