"""The code that runs on a worker: it reads and measures pairs, and returns numbers or the reason why it cannot.

A worker runs only these functions, from its own tensordiff, and no code of the client. Its numbers must equal the
client's bit for bit, so a worker with another version, or with a processor that rounds sums differently, refuses.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import NamedTuple

from tensordiff import __version__
from tensordiff.align.views import Views
from tensordiff.compare.cluster.packing import unpack
from tensordiff.compare.judge.evidence import Measurement
from tensordiff.compare.judge.verdict import GoldenErrors
from tensordiff.compare.measure import kernel
from tensordiff.compare.measure.diff import Cells, Diff
from tensordiff.compare.measure.dispatch import Stretch, cells_of_stretch, measure_many
from tensordiff.compare.pair_task import PairWork, inputs_of, lost_rows, measurements_of, pair_task
from tensordiff.compare.row import Row, read_pair
from tensordiff.errors import TensordiffError
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.mappings import count_losses, install_handler


class Installation(NamedTuple):
    """What must be the same on client and worker for their numbers to be equal."""

    version: str
    measuring_pass: str
    """The compiled pass, identified by its sources and rounding, or ``numpy``."""


def installation() -> Installation:
    """The installation of this process."""
    if kernel.why_missing():
        return Installation(__version__, "numpy")
    fused = "fused" if kernel.library().td_best_level() >= 3 else "plain"
    return Installation(__version__, f"compiled {kernel.digest()[:12]} {fused} {platform.machine()}")


class Measured(NamedTuple):
    """A worker's measurements of a pair; the client knows the rest."""

    dtypes: tuple[str, str]
    views: Views
    diff: Diff
    injected: Diff | None
    golden: GoldenErrors | None
    kl_div: float | None

    def measurement(self, work: PairWork) -> Measurement:
        """The measurement, as if it had been made by the client."""
        return Measurement(
            pair=work.pair, dtypes=self.dtypes, views=self.views, diff=self.diff, injected=self.injected,
            golden=self.golden, limits=work.limits, kl_div=self.kl_div,
        )  # fmt: skip


class Refusal(NamedTuple):
    """Why a worker measures nothing, as the end of a sentence that begins with its name."""

    why: str


class Unmeasured(NamedTuple):
    """Why one pair could not be measured. The client tries it and reports its own reason."""

    why: str


Answer = list[Measured | Unmeasured] | Refusal


def measure_packed(data: bytes, asked_by: Installation) -> Answer:
    """Measure the pairs that a client packed."""
    if (refusal := refuse(asked_by)) is not None:
        return refusal
    try:
        return measure_works(unpack(data))
    except TensordiffError as error:
        return Refusal(f"could not go on: {error}")


def refuse(asked_by: Installation) -> Refusal | None:
    """The reason why this worker must not measure for a client with that installation; None if it may."""
    own = installation()
    if own.version != asked_by.version:
        return Refusal(f"has tensordiff {own.version}, and this is {asked_by.version}; install the same one there")
    if own.measuring_pass != asked_by.measuring_pass:
        ours, theirs = asked_by.measuring_pass, own.measuring_pass
        return Refusal(f"measures by another pass ({theirs}, here {ours}), whose last digits differ; install the same")
    return None


def measure_works(works: Sequence[PairWork]) -> list[Measured | Unmeasured]:
    """Read and measure pairs."""
    install_handler()
    losses = count_losses()
    with gc_paused():
        read = [read_pair(work.pair) for work in works]
        tasks = [
            values if isinstance(values, Row) else pair_task(work, values)
            for work, values in zip(works, read, strict=True)
        ]
        measured = measurements_of(tasks, measure_many(inputs_of(tasks)))
        lost = lost_rows(tasks, losses)
    return [_answer(lost.get(k) or one) for k, one in enumerate(measured)]


def _answer(one: Measurement | Row) -> Measured | Unmeasured:
    if isinstance(one, Row):
        return Unmeasured(one.verdict.why)
    return Measured(one.dtypes, one.views, one.diff, one.injected, one.golden, one.kl_div)


def scan_packed(data: bytes, asked_by: Installation) -> Cells | Refusal | Unmeasured:
    """Measure a stretch of a huge pair: the cells of its pieces, which the client joins."""
    if (refusal := refuse(asked_by)) is not None:
        return refusal
    install_handler()
    try:
        stretch: Stretch = unpack(data)
        return cells_of_stretch(stretch)
    except TensordiffError as error:
        return Unmeasured(str(error))
