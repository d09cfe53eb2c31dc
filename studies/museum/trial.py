"""One exhibit, in every mix of types and every kind of dump: what is shown, and what tensordiff says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from studies.captures import DUMPED, Dumped
from studies.models import reorder_sums
from studies.museum.exhibit import Change, Exhibit
from studies.museum.fairness import Runs, Shown, changed_tokens, has_right_inputs, shown_in
from studies.museum.ports import fuse_attention
from studies.museum.questions import Question
from studies.museum.recording import is_cached, layer_of, part_of, record
from tensordiff.compare.hint import Hint
from tensordiff.compare.row import Row
from tensordiff.dump.model import Dump
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session

MIXES = (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"))
"""The type of the reference and that of the candidate."""
Found = Literal["exact", "same block", "wrong", "missed", "undecided"]
_NUMBERED = re.compile(r"^(.*?\.\d+)(?:\.|$)")


class Result(NamedTuple):
    """What came of an exhibit in one mix and one kind of dump."""

    exhibit: str
    seed: int
    dtypes: tuple[str, str]
    dumped: Dumped
    is_fair: bool
    """Whether the culprit is wrong on right inputs."""
    is_shown: bool
    """Whether a dump of this kind shows it clear of rounding."""
    ratio: float
    """The culprit's error over a clean port's."""
    error: float
    expected: tuple[str, ...]
    """The layers that are right to name."""
    named: str
    """The layer that is named; empty where none is."""
    step: int
    status: int
    """The exit status."""
    verdict: str
    others: int
    """How many more culprits are listed."""
    hint: str
    """Its kind; empty where there is none."""
    is_hint_right: bool
    sentence: str
    why: str

    @property
    def found(self) -> Found:
        """How near the named layer is to the culprit; undecided is exit status 2 with nothing named."""
        if not self.named:
            return "missed" if self.status == 0 else "undecided"
        if self.named in self.expected:
            return "exact"
        return "same block" if any(_are_near(self.named, layer) for layer in self.expected) else "wrong"

    @property
    def is_hint_wrong(self) -> bool:
        """Whether something is said that is not so."""
        return bool(self.hint) and not self.is_hint_right


def _are_near(one: str, other: str) -> bool:
    """Whether two layers are of one block, or, outside of blocks, one is within the other."""
    blocks = [found.group(1) if (found := _NUMBERED.match(layer)) else "" for layer in (one, other)]
    if any(blocks):
        return blocks[0] == blocks[1]
    return _is_within(one, other) or _is_within(other, one)


def try_exhibit(exhibit: Exhibit, seed: int) -> Iterator[Result]:
    """An exhibit in every mix of types and every kind of dump."""
    question = exhibit.question(exhibit.architecture, seed)
    made = partial(_run, exhibit, seed, question)
    references = {dtype: made(dtype, (exhibit.right,)) for dtype in {mix[0] for mix in MIXES}}
    candidates = {dtype: _candidates(exhibit, question, made, dtype) for dtype in {mix[1] for mix in MIXES}}
    for dtypes in MIXES:
        clean, wrong = candidates[dtypes[1]]
        runs = Runs(references[dtypes[0]], clean, wrong)
        for dumped in DUMPED:
            yield _result(exhibit, seed, dtypes, dumped, runs)


def _candidates(exhibit: Exhibit, question: Question, made: Any, dtype: str) -> tuple[tuple[Dump, ...], Dump]:
    clean = [made(dtype, (exhibit.right, reorder_sums))]
    if exhibit.architecture.has_fused_attention and not question.is_padded:  # fused, padding gives other numbers
        clean.append(made(dtype, (exhibit.right, fuse_attention)))
    return tuple(clean), made(dtype, (reorder_sums, exhibit.plant))


def _run(exhibit: Exhibit, seed: int, question: Question, dtype: str, changes: Sequence[Change | None]) -> Dump:
    model = exhibit.architecture.build(seed, dtype, exhibit.prepare)

    def change(model: Any) -> None:
        for one in changes:
            if one is not None:
                one(model)

    return record(dtype, model, question, change)


def _result(exhibit: Exhibit, seed: int, dtypes: tuple[str, str], dumped: Dumped, runs: Runs) -> Result:
    own = _own(exhibit, runs)
    expected, first = _expected(exhibit, runs, dumped)
    session, outcome = compare(*(part_of(dump, dumped, exhibit.architecture) for dump in (runs.reference, runs.wrong)))
    culprit = outcome.culprit
    if exhibit.has_wrong_state and culprit is not None and is_cached(culprit.pair.reference):
        expected = (*expected, culprit.pair.reference.layer)  # the wrong state itself, where it is handed out
    hint = session.hint(culprit) if culprit else None
    return Result(
        exhibit=exhibit.name, seed=seed, dtypes=dtypes, dumped=dumped,
        is_fair=own is not None and (exhibit.has_wrong_state or has_right_inputs(runs, own.call)),
        is_shown=own is not None and own.is_clear and first is not None,
        ratio=own.ratio if own else 0.0, error=own.error if own else 0.0, expected=expected,
        named=culprit.pair.reference.layer if culprit else "", step=culprit.pair.reference.step if culprit else -1,
        status=outcome.exit_status, verdict=outcome.verdict, others=max(0, len(outcome.culprits) - 1),
        hint=hint.kind if hint else "", is_hint_right=bool(hint and culprit and _is_true(exhibit, runs, culprit, hint)),
        sentence=hint.sentence if hint else "", why=culprit.verdict.why if culprit else "",
    )  # fmt: skip


def _own(exhibit: Exhibit, runs: Runs) -> Shown | None:
    """How the culprit's own output stands out in its step, in whichever of its calls it does most."""
    layers = {layer_of(path) for path in exhibit.culprits}
    shown = shown_in(runs, "everything", exhibit.architecture)
    calls = [one for one in shown if one.call.layer in layers and one.call.step == exhibit.step]
    return max(calls, key=lambda one: one.ratio, default=None)


def _expected(exhibit: Exhibit, runs: Runs, dumped: Dumped) -> tuple[tuple[str, ...], Shown | None]:
    """The layers that are right to name, and the first output that a dump of this kind shows to be wrong.

    Where inputs were dumped, only the culprit is right. From outputs alone the first wrong output is, too, and what
    contains it within the culprit: nothing tells them apart.
    """
    shown = shown_in(runs, dumped, exhibit.architecture)
    first = next((one for one in shown if one.is_clear), None)
    held = dict.fromkeys(one.call.layer for one in shown)
    own = tuple(layer for path in exhibit.culprits if (layer := layer_of(path)) in held)
    if dumped == "everything" or first is None:
        return own, first
    around = (layer for layer in held if _is_within(first.call.layer, layer) and any(_is_within(layer, o) for o in own))
    return tuple(dict.fromkeys((first.call.layer, *around, *own))), first


def _is_within(layer: str, other: str) -> bool:
    return layer == other or layer.startswith(f"{other}.")


def _is_true(exhibit: Exhibit, runs: Runs, culprit: Row, hint: Hint) -> bool:
    """Whether a hint is one of the exhibit's; tokens named wrong must be those that the bug changes, and none right."""
    if hint.kind not in exhibit.hints:
        return False
    tokens, right, axis = (hint.evidence.get(key) for key in ("tokens", "right", "axis"))
    changed = changed_tokens(runs, culprit.pair.candidate, axis) if isinstance(axis, int) else None
    if changed is None:
        return True
    is_wrong_there = not isinstance(tokens, list) or changed == set(tokens)
    return is_wrong_there and not (isinstance(right, list) and changed & set(right))


def compare(reference: Dump, candidate: Dump) -> tuple[Session, Outcome]:
    """What tensordiff says of two dumps in memory."""
    session = Session.of_dumps(Request(Path("reference"), Path("candidate")), reference, candidate)
    return session, session.outcome(session.rows())
