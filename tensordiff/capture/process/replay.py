"""A replay as an injected run of one layer, for engines that cannot call a layer by itself."""

from __future__ import annotations

from dataclasses import replace

from tensordiff.capture.job import Job
from tensordiff.capture.settings import Injection
from tensordiff.errors import CaptureError, printable

REPLAY = "replay"
"""The task of a job that replays a layer."""


def replay_as_injection(job: Job) -> Job:
    """The same job as an injection of the dump to be replayed; the layer is found among the model's by the engine."""
    return replace(
        job,
        settings=replace(job.settings, inject=replayed_dump(job), ops=None, optimized=False, steps=1, gradients=False),
    )


def replayed_dump(job: Job) -> Injection:
    """What a replay injects; refuses what only engines that call a layer by itself can do."""
    kind = job.source.kind
    if job.more.get("bundle") is not None:
        raise CaptureError(f"{printable(job.source)}: a layer of {kind}: sources cannot be exported; leave -o out")
    if int(job.more.get("step", 0)):
        raise CaptureError(
            f"{printable(job.source)}: of {kind}: sources only step 0 can be replayed; "
            "a later step needs what the layers kept from the steps before it"
        )
    return Injection(str(job.more["dump"]))
