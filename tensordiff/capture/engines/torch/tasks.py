"""What can be done with a program: capture it, inject into it, look into a layer, replay one."""

from __future__ import annotations

from tensordiff.capture.engines.torch.capture import Tell, capture
from tensordiff.capture.engines.torch.program import Program
from tensordiff.capture.events import Done
from tensordiff.capture.job import Job


def perform(program: Program, job: Job, tell: Tell) -> Done:
    """Do what a job asks for."""
    if job.task == "replay":
        from tensordiff.capture.engines.torch.replay.replay import replay

        return replay(program, job, tell)
    if job.settings.ops is not None:
        from tensordiff.capture.engines.torch.ops import capture_ops

        return capture_ops(program, job, tell)
    if job.settings.inject is not None:
        from tensordiff.capture.engines.torch.inject import capture_injected

        return capture_injected(program, job, tell)
    return capture(program, job, tell)
