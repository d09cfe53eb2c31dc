"""Scrambled names: real pairs of dumps, one side renamed at random, one bug planted, and who is still found.

A scheme renames consistently, as another author would: other prefixes, other words for parts, another way to count
and to part words. The bug is noise in one output of a random block, and in all that is computed from it. What the
true names pair, and whom they lead to, is the truth.
"""

from __future__ import annotations

import random
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.align import Pair
from tensordiff.align.by_value import rel_l2
from tensordiff.align.expression import evaluate
from tensordiff.align.index import ComputedTensor, parts_of
from tensordiff.align.order import infer_order
from tensordiff.align.views import reconcile
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor
from tensordiff.session.request import Request
from tensordiff.session.session import Session

SHARED = Path(__file__).resolve().parents[2] / "shared"
_WORDS = [
    "unit",
    "core",
    "cell",
    "stage",
    "part",
    "node",
    "gate2",
    "mix",
    "blend",
    "fold",
    "route",
    "lane",
    "track",
    "span",
    "scan",
    "sweep",
    "map2",
    "proj2",
    "lin",
    "dense2",
    "fc",
    "inner",
    "outer",
    "upper",
    "lower",
    "left",
    "right",
    "first",
    "second",
    "front",
    "back",
    "main",
    "side",
    "base",
    "top",
    "head2",
    "tail",
    "step2",
    "pass2",
    "move",
    "shift",
    "turn",
    "spin",
    "flow",
    "stream",
    "wave",
    "pulse",
    "beat",
    "tone",
    "note",
    "chord",
    "scale2",
    "mode",
    "state",
    "frame",
    "scene",
    "view2",
    "look",
    "glance",
]
_NUMBER = re.compile(r"[0-9]+")
HELD_OUT = range(524, 548)
"""Seeds that are reported: nothing was tuned on them."""
SPENT = (
    "0 to 60, 236 to 259, 300 to 323 and 400 to 423 were tuned on, "
    "100 to 103, 108 to 111, 120 to 235, 340 to 387 and 500 to 523 were looked at before"
)


class Pairing(NamedTuple):
    """Two dumps of one model."""

    name: str
    reference: Path
    candidate: Path


def pairings() -> Iterator[Pairing]:
    """All pairs of dumps there are."""
    for case in sorted((SHARED / "cases").glob("*/torch")):
        yield Pairing(case.parent.name, case, case.parent / "max")
    for case in sorted((SHARED / "engines" / "dumps").glob("*/hf")):
        yield Pairing(case.parent.name, case, case.parent / "cand")


# --- renaming ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scheme:
    """One way to rename all layers."""

    prefix: str | None
    """What the first part becomes; None drops it."""
    words: dict[str, str]
    offset: int
    width: int
    separator: str
    camel: bool

    def __call__(self, layer: str) -> str:
        """The new name of a layer."""
        parts = layer.split(".")
        renamed = [self._part(part) for part in parts]
        if len(parts) > 1:
            renamed = renamed[1:] if self.prefix is None else [self.prefix, *renamed[1:]]
        elif self.prefix is None:
            renamed = [f"whole_{renamed[0]}"]  # else it would have the name of what is in it
        return self.separator.join(renamed)

    def _part(self, part: str) -> str:
        if part.isdigit():
            return f"{int(part) + self.offset:0{self.width}d}"
        word = self.words.get(part, part)
        if not self.camel:
            return word
        first, *rest = word.split("_")
        return first + "".join(piece.capitalize() for piece in rest)


def scheme(dump: Dump, rng: random.Random) -> Scheme:
    """A random scheme for a dump's layers."""
    parts = sorted({part for entry in dump.entries for part in entry.layer.split(".") if not part.isdigit()})
    words = rng.sample(_WORDS, len(_WORDS))
    kept = rng.random() * 0.4
    named = {part: f"{words[k % len(words)]}{'' if k < len(words) else '_b'}" for k, part in enumerate(parts)}
    return Scheme(
        prefix=rng.choice([None, "net", "gpt", "engine_core"]),
        words={part: word for part, word in named.items() if rng.random() > kept},
        offset=rng.choice([0, 0, 1]),
        width=rng.choice([0, 0, 0, 2]),
        separator=rng.choice([".", ".", "/", "_"]),
        camel=rng.random() < 0.3,
    )


def renamed(dump: Dump, spell: Callable[[str], str]) -> Dump:
    """A dump with other names."""
    entries = []
    for entry in dump.entries:
        layer = spell(entry.layer)
        call = f"({entry.call})" if entry.call > 1 else ""
        entries.append(entry._replace(name=f"{layer}{call}-{entry.port}", layer=layer, origin=None))
    return replace(dump, entries=tuple(entries))


# --- a bug ---------------------------------------------------------------------------------------------


def with_bug(dump: Dump, culprit: Entry, rng: random.Random) -> Dump:
    """A dump with noise in one output and in all that depends on it, in every step."""
    size = 10 ** rng.uniform(-1.5, 0)
    entries = list(dump.entries) if dump.ordered else infer_order(dump)[0]
    dirty: set[int] = set()
    clean: set[int] = set()
    wrong: dict[int, set[str]] = {}
    started = False
    values: dict[int, Entry] = {}
    for entry in entries:
        digest = _digest(entry)
        is_culprit = (entry.layer, entry.port, entry.call) == (culprit.layer, culprit.port, culprit.call)
        started = started or is_culprit
        layers = wrong.setdefault(entry.step, set())
        if is_culprit or (started and _is_wrong(entry, digest, dirty, clean, layers, has_inputs=_has_inputs(dump))):
            dirty.add(digest)
            layers.add(entry.layer)
            values[id(entry)] = entry._replace(stored=MemoryTensor(_noisy(entry.read(), size, digest)))
        else:
            clean.add(digest)
    return replace(dump, entries=tuple(values.get(id(entry), entry) for entry in dump.entries))


def _has_inputs(dump: Dump) -> bool:
    return any(entry.is_input for entry in dump.entries)


def _is_wrong(
    entry: Entry, digest: int, dirty: set[int], clean: set[int], layers: set[str], *, has_inputs: bool
) -> bool:
    """Whether a tensor depends on a wrong one: it is one, comes out of a layer that got one, or is new since."""
    if digest in dirty:
        return True
    if entry.read().dtype.kind != "f" and str(entry.read().dtype) != "bfloat16":
        return False
    if digest in clean:
        return False
    if entry.is_input or not has_inputs:
        return True
    return entry.layer in layers or any(layer.startswith(f"{entry.layer}.") for layer in layers)


def _digest(entry: Entry) -> int:
    """The same for every copy of a tensor, in a wider type too: an error is in all of them."""
    array = np.ascontiguousarray(entry.read())
    values = array if array.dtype.kind in "iub" else array.astype(np.float64)
    return hash((entry.step, array.size, zlib.crc32(values.tobytes())))


def _noisy(array: Array, size: float, seed: int) -> Array:
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    rms = float(np.sqrt((finite**2).mean())) if finite.size else 0.0
    noise = np.random.default_rng(abs(seed)).standard_normal(values.shape)
    return np.asarray((values + size * rms * noise).astype(array.dtype))


# --- a trial -------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """What came of one scrambled pair."""

    pairing: str
    seed: int
    counterparts: int
    paired: int
    wrong: tuple[str, ...]
    culprit: str
    named: str
    missed: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the culprit is that of the true names."""
        return self.culprit == self.named


def run_trial(pairing: Pairing, seed: int) -> Trial:
    """Rename, plant, compare."""
    return run_trial_of(pairing.name, open_dump(pairing.reference), open_dump(pairing.candidate), seed)


class Planted(NamedTuple):
    """A candidate with a bug, and the pairs that are right without it."""

    truth: list[Pair]
    buggy: Dump
    rng: random.Random


def planted(name: str, reference: Dump, candidate: Dump, seed: int) -> Planted:
    """Plant a bug in a random block."""
    rng = random.Random(f"{name}/{seed}")  # noqa: S311
    truth = [
        pair for pair in _session(reference, candidate).alignment.pairs if _is_true(pair.reference, pair.candidate)
    ]
    outputs = [
        pair for pair in truth
        if not pair.reference.is_input and not pair.candidate.is_input and _NUMBER.search(pair.reference.layer)
        and len(list(parts_of(pair.candidate))) == 1
    ]  # fmt: skip
    culprit = rng.choice([pair for pair in outputs if pair.reference.step == outputs[0].reference.step])
    return Planted(truth, with_bug(candidate, next(iter(parts_of(culprit.candidate))), rng), rng)


def run_trial_of(name: str, reference: Dump, candidate: Dump, seed: int) -> Trial:
    """Rename, plant, compare two dumps."""
    truth, buggy, rng = planted(name, reference, candidate, seed)
    expected = _culprit(_session(reference, buggy))
    spelled = renamed(buggy, scheme(candidate, rng))
    session = _session(reference, spelled)
    original = {id(new): old for new, old in zip(spelled.entries, candidate.entries, strict=True)}
    paired = {id(original[id(part)]) for pair in session.alignment.pairs for part in parts_of(pair.candidate)}
    wanted = {id(part): part for pair in truth for part in parts_of(pair.candidate)}
    missed = tuple(part.name for key, part in wanted.items() if key not in paired)
    named = _culprit(session, original)
    wrong = wrong_pairs(session, original)
    return Trial(name, seed, len(wanted), len(wanted) - len(missed), wrong, expected, named, missed)


def wrong_pairs(session: Session, original: dict[int, Entry]) -> tuple[str, ...]:
    """The pairs of different tensors; ``original`` are the candidate's entries without a bug, by ids."""
    return tuple(
        f"{pair.reference.name} = {pair.candidate.name}"
        for pair in session.alignment.pairs
        if not _is_true(pair.reference, _original(pair.candidate, original))
    )


def _session(reference: Dump, candidate: Dump) -> Session:
    return Session.of_dumps(Request(reference.path, candidate.path), reference, candidate)


def _culprit(session: Session, original: dict[int, Entry] | None = None) -> str:
    """The candidate's entry that is the culprit, by its true name."""
    culprit = session.outcome(session.rows()).culprit
    parts = [] if culprit is None else parts_of(culprit.pair.candidate)
    return ", ".join((original[id(part)] if original else part).name for part in parts) or "none"


def _original(entry: Entry, original: dict[int, Entry]) -> Entry:
    if not isinstance(entry.stored, ComputedTensor):
        return original[id(entry)]
    entries = {name: original[id(part)] for name, part in entry.stored.entries.items()}
    return entry._replace(stored=replace(entry.stored, entries=entries))


def _is_true(reference: Entry, candidate: Entry) -> bool:
    """Whether two entries of the runs without a bug are the same tensor."""
    ours, theirs = _read(reference), _read(candidate)
    if ours.size != theirs.size or reconcile(ours.shape, theirs.shape) is None:
        return False
    if ours.dtype.kind in "iub":
        return bool((ours.reshape(-1) == theirs.reshape(-1)).all())
    limit = 5e-2 if "bfloat16" in (str(ours.dtype), str(theirs.dtype)) else 1e-3
    return rel_l2(ours, theirs) <= limit or bool((np.asarray(ours) == np.asarray(theirs).reshape(ours.shape)).all())


def _read(entry: Entry) -> Array:
    stored = entry.stored
    if isinstance(stored, ComputedTensor):
        return evaluate(stored.expression, lambda name: stored.entries[name].read())
    return entry.read()


# --- the table -----------------------------------------------------------------------------------------


def text(seeds: range, entry: str | None = None, *, shows_misses: bool = False) -> str:
    """The table of all pairs of dumps, or of the one of a name, each renamed once for every seed."""
    lines = [
        f"Seeds {seeds[0]} to {seeds[-1]}; {SPENT}.",
        "",
        "| pair of dumps | trials | counterparts paired | wrong pairs | culprit as with the true names |",
        "|---|---|---|---|---|",
    ]
    trials: list[Trial] = []
    for pairing in (one for one in pairings() if entry in (None, one.name)):
        own = [run_trial(pairing, seed) for seed in seeds]
        trials += own
        lines.append(_line(pairing.name, own))
        if shows_misses:
            sys.stderr.writelines(f"{trial}\n" for trial in own if trial.wrong or not trial.is_same or trial.missed)
    return "\n".join([*lines, _line("all", trials)])


def _line(name: str, trials: Sequence[Trial]) -> str:
    paired, of = sum(trial.paired for trial in trials), sum(trial.counterparts for trial in trials)
    wrong, same = sum(len(trial.wrong) for trial in trials), sum(trial.is_same for trial in trials)
    return (
        f"| {name} | {len(trials)} | {paired} of {of} ({paired / max(of, 1):.1%}) | {wrong} | {same} of {len(trials)} |"
    )
