"""One trial: a model, a copy of it with a bug or without, two dumps, and what tensordiff says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies.bugs import BUGS, Bug, Planting, Spot
from studies.captures import DUMPED, Captures, Dumped, capture, is_dumped, write
from studies.models import BY_NAME, Tiny, build, reorder
from tensordiff.compare.judge.verdict import floor_for
from tensordiff.dump.dtypes import Array
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session

FINDABLE = 4.0
"""How many times the clean run's error at its place a bug must show to count as findable."""
DTYPES = (("float32", "float32"), ("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "bfloat16"))


class Case(NamedTuple):
    """What is tried."""

    arch: str
    seed: int
    dtypes: tuple[str, str]
    bug: Bug | None = None

    @property
    def kind(self) -> str:
        """The bug's, or clean."""
        return self.bug.kind if self.bug else "clean"


class Result(NamedTuple):
    """What came of it."""

    case: Case
    dumped: Dumped
    expected: str
    """The layer that should be named; empty where none should."""
    named: str
    """The layer that is named; empty where none is."""
    others: int
    """How many more culprits are named in which no bug was planted."""
    hint: str
    """Its kind; empty where there is none."""
    stands_out: float
    """The bug's error at its place over the clean run's there."""
    error: float
    site: str
    """The module that the bug was planted in."""
    sentence: str = ""

    @property
    def is_findable(self) -> bool:
        """Whether the bug is clear of what rounding does at its place, and in healthy layers of its type."""
        return not self.stands_out < FINDABLE and not self.error <= floor_for(*self.case.dtypes)[1].agrees

    @property
    def is_exact(self) -> bool:
        """Whether just the right layer is named, or none where there is none."""
        return self.named == self.expected

    @property
    def has_right_hint(self) -> bool:
        """Whether the kind that is said is one that is right."""
        bug = self.case.bug
        return bug is not None and self.hint in bug.hints_at(self.site)

    @property
    def has_wrong_hint(self) -> bool:
        """Whether a kind is said that is not right."""
        return bool(self.hint) and not self.has_right_hint


def run_trial(case: Case, folder: Path) -> Iterator[Result]:
    """Run one case and compare it in every way of dumping; nothing where the model has no place for the bug."""
    reference, clean = (
        _run(case.arch, case.seed, case.dtypes[0], False),
        _run(case.arch, case.seed, case.dtypes[1], True),
    )
    tiny = _tiny(case.arch, case.seed, case.dtypes[1], True)
    if case.bug is None:
        for dumped in DUMPED:
            yield _compared(case, dumped, reference, clean, tiny, folder, "", (math.nan, math.nan), ())
        return
    plantings = _plantings(case, tiny)
    if not plantings:
        return
    wrong = capture(tiny, plantings)
    for dumped in DUMPED:
        first = _first_reached(clean, wrong, dumped, tiny.arch.blocks)
        if first is None:
            continue
        expected = plantings[0].site if dumped == "everything" else first
        shown = _shown(reference, clean, wrong, expected)
        yield _compared(
            case, dumped, reference, wrong, tiny, folder, expected, shown, [planting.site for planting in plantings]
        )


def healthy_runs(arch: str, seed: int, dtypes: tuple[str, str]) -> tuple[Tiny, Captures, Captures]:
    """A model, and what its reference and its clean candidate give."""
    tiny = _tiny(arch, seed, dtypes[1], True)
    return tiny, _run(arch, seed, dtypes[0], False), _run(arch, seed, dtypes[1], True)


@lru_cache(maxsize=8)
def _run(arch: str, seed: int, dtype: str, is_candidate: bool) -> Captures:
    return capture(_tiny(arch, seed, dtype, is_candidate))


def _tiny(arch: str, seed: int, dtype: str, is_candidate: bool) -> Tiny:
    tiny = build(BY_NAME[arch], seed, dtype, depth=4 + seed % 5)
    if is_candidate:
        reorder(tiny)
    return tiny


def _plantings(case: Case, tiny: Tiny) -> list[Planting]:
    """In one block, or, one time in three, in every block from there on: the same bug, drawn alike."""
    bug = case.bug
    assert bug is not None  # noqa: S101
    seed = [case.seed, BUGS.index(bug), list(BY_NAME).index(case.arch)]
    rng = np.random.default_rng(seed)
    at = int(rng.integers(tiny.depth))
    last = tiny.depth if rng.integers(3) == 0 else at + 1
    draws = (Spot(tiny, tiny.block(k), np.random.default_rng(seed)) for k in range(at, last))
    found = [planting for spot in draws if (planting := bug.plant(spot))]
    return found if len({planting.site for planting in found}) == len(found) else found[:1]


def _first_reached(clean: Captures, wrong: Captures, dumped: Dumped, blocks: str) -> str | None:
    """The first layer whose dumped output is another than without the bug, bit for bit."""
    outputs = (n for n in wrong if n.rpartition("-")[2].startswith("output") and is_dumped(n, dumped, blocks))
    return next((n.rpartition("-")[0] for n in outputs if not _is_same(clean[n], wrong[n])), None)


def _is_same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _shown(ref: Captures, clean: Captures, wrong: Captures, layer: str) -> tuple[float, float]:
    """How far the bug stands out of the clean run's error at a layer, and its error there."""
    ports = [n for n in wrong if n.rpartition("-")[0] == layer and n.rpartition("-")[2].startswith("output")]
    before = [rel_l2(ref[n], clean[n]) for n in ports]
    after = [rel_l2(ref[n], wrong[n]) for n in ports]
    step = {2: 2.0**-9, 4: 2.0**-24}[min(wrong[ports[0]].dtype.itemsize, 4)]
    ratios = [b / max(a, step) for a, b in zip(before, after, strict=True)]
    best = max(range(len(ports)), key=lambda k: (not math.isfinite(ratios[k]), ratios[k]))
    return ratios[best], after[best]


def rel_l2(ref: Array, other: Array) -> float:
    """The error of one against the other; infinite where it is not finite."""
    if ref.shape != other.shape:
        return math.inf
    a, b = ref.astype(np.float64), other.astype(np.float64)
    if not np.isfinite(b).all():
        return math.inf
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) / size if size else math.inf * bool(b.any()) if b.any() else 0.0


def _compared(
    case: Case, dumped: Dumped, ref: Captures, cand: Captures, tiny: Tiny, folder: Path, expected: str,
    shown: tuple[float, float], sites: Sequence[str],
) -> Result:  # fmt: skip
    sides = [write(folder / name, found, tiny, dumped) for name, found in (("reference", ref), ("candidate", cand))]
    session, outcome = compare(*sides)
    culprit = outcome.culprit
    hint = session.hint(culprit) if culprit else None
    return Result(
        case, dumped, expected, culprit.pair.reference.layer if culprit else "",
        sum(row.pair.reference.layer not in sites for row in outcome.culprits[1:]),
        hint.kind if hint else "", *shown, sites[0] if sites else "", hint.sentence if hint else "",
    )  # fmt: skip


def compare(reference: Path, candidate: Path) -> tuple[Session, Outcome]:
    """What tensordiff says of two dumps."""
    session = Session.open(Request(reference, candidate))
    return session, session.outcome(session.rows())
