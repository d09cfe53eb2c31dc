"""What pairs say of one another before they are measured, and parts that have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tensordiff.align.expression import parse
from tensordiff.align.index import computed
from tensordiff.align.match import Pair, align
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.judge.pairing import Pairing
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry
from tests.making import held, nudged, numbers

A, B, C = (numbers(16, 16, seed=k) for k in range(3))
BLOCK: dict[str, Array | None] = {
    "m.q-output": C, "m.a-input_0": A, "m.a-output": B, "m.o-input_0": B, "m.o-output": A, "m.drop-output": C,
    "m-input_0": A, "m-output": A,
}  # fmt: skip
WRONG: dict[str, Array | None] = {name: nudged(A, 0.2) for name in ("m.o-input_0", "m.o-output", "m-output")}


def why(*missing: str, ordered: bool = True) -> str:
    """What is said of a module that is wrong between its parts, some of which the candidate does not have."""
    both = BLOCK | WRONG
    reference = held(BLOCK, ordered=ordered)
    candidate = held({name: array for name, array in both.items() if not name.startswith(missing)}, ordered=ordered)
    made = align(reference, candidate)
    rows = Comparer().rows(made.pairs, Pairing(made.pairs, reference, made.reference_orphans))
    return next(row.verdict.why for row in rows if row.pair.name == "m" and not row.is_input)


def test_a_part_that_was_not_compared_may_be_wrong() -> None:
    assert "; its parts are right by themselves, so what it does between them is wrong" in why("none")
    said = why("m.q")
    assert "its parts are right by themselves" not in said
    assert (
        "; those of its parts that were compared are right by themselves; q was not compared, so the fault is" in said
    )
    assert said.endswith("in it or between the parts (residual, scale, reshape), first seen in what o was given")


def test_a_part_that_ran_after_the_first_wrong_input_explains_nothing() -> None:
    assert "its parts are right by themselves, so" in why("m.drop")
    assert "drop was not compared" in why("m.drop", ordered=False)  # nobody knows when it ran
    assert "its parts are right by themselves, so" in why("m.o-output")  # what it was given is wrong


def test_a_part_that_was_not_compared_and_holds_what_is_wrong_explains_its_module() -> None:
    block: dict[str, Array | None] = {
        "m.inner.q-input_0": A, "m.inner.q-output": B, "m.inner-output": B, "m.head-input_0": A, "m.head-output": C,
        "m-input_0": A, "m-output": C,
    }  # fmt: skip
    wrong = block | {"m.inner.q-output": nudged(B, 0.2), "m-output": nudged(C, 0.2)}
    reference, candidate = held(block), held({name: array for name, array in wrong.items() if name != "m.inner-output"})
    made = align(reference, candidate)
    assert [orphan.name for orphan in made.reference_orphans] == ["m.inner-output"]
    rows = list(Comparer().rows(made.pairs, Pairing(made.pairs, reference, made.reference_orphans)))
    said = {row.pair.name: row.verdict for row in rows if not row.is_input}
    assert {name for name, verdict in said.items() if verdict.name == "diverges"} == {"m.inner.q", "m"}
    assert "its parts" not in said["m"].why


class Walked(tuple[Entry, ...]):
    """Entries that count how often somebody goes through all of them."""

    walks = 0

    def __iter__(self) -> Iterator[Entry]:
        type(self).walks += 1
        return super().__iter__()


def test_a_reference_is_not_walked_through_for_every_wrong_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walked, "walks", 0)
    blocks: dict[str, Array | None] = {f"{k}.{name}": array for k in range(9) for name, array in BLOCK.items()}
    reference = replace(held(blocks, ordered=True), entries=Walked(held(blocks, ordered=True).entries))
    entries = {entry.name: entry for entry in tuple.__iter__(reference.entries)}
    pairing = Pairing((), reference, [entries[f"{k}.m.{part}-output"] for k in range(9) for part in ("q", "drop")])
    for k in range(9):
        left = pairing.parts_left_before(entries[f"{k}.m-output"], entries[f"{k}.m.o-input_0"])
        assert [entry.layer for entry in left] == [f"{k}.m.q"]
    assert Walked.walks == 2


@pytest.mark.parametrize("is_sum_first", [True, False])
def test_what_a_norm_computes_itself_is_not_what_it_was_given(is_sum_first: bool) -> None:
    """The candidate's norm adds the residual and gives the sum on, which is what the reference's norm is given."""
    ours = {entry.name: entry for entry in held({"n-input_0": A + B, "n-output": C}).entries}
    wrong: dict[str, Array | None] = {"n-output_0": nudged(C, 0.2), "n-output_1": nudged(A + B, 0.2)}
    theirs = {entry.name: entry for entry in held({"n-input_0": A, "n-input_1": B, **wrong}).entries}
    given = {name: theirs[name] for name in ("n-input_0", "n-input_1")}
    partners = [computed(parse('sum("n-input_0", "n-input_1")'), given), theirs["n-output_1"]]
    order = [*(partners if is_sum_first else partners[::-1]), theirs["n-output_0"]]
    names = ("n-input_0", "n-input_0", "n-output")
    pairs = [
        Pair(k, "n", ours[name], other, "learned") for k, (name, other) in enumerate(zip(names, order, strict=True))
    ]
    rows: list[Row] = list(Comparer().rows(pairs))
    assert rows[-1].verdict.name == "diverges"
    assert "though its input agrees" in rows[-1].verdict.why


def test_a_fused_projection_is_given_what_one_of_its_parts_is_given() -> None:
    """It is named after the last of the projections that it answers, and its input was compared with the first's."""
    split: dict[str, Array | None] = {
        "m.q-input_0": A, "m.q-output": B, "m.q_norm-input_0": B, "m.v-input_0": A, "m.v-output": C,
    }  # fmt: skip
    fused = nudged(np.concatenate([B, C], axis=-1), 0.2)
    ours = {entry.name: entry for entry in held(split).entries}
    theirs = {
        entry.name: entry for entry in held({"m.qv-input_0": A, "m.n-input_0": nudged(B, 0.2), "m.qv": fused}).entries
    }
    parts = {name: ours[name] for name in ("m.q-output", "m.v-output")}
    partners = [
        (ours["m.q-input_0"], theirs["m.qv-input_0"]),
        (ours["m.q_norm-input_0"], theirs["m.n-input_0"]),
        (computed(parse('cat("m.q-output", "m.v-output")'), parts), theirs["m.qv"]),
    ]
    pairs = [Pair(k, one.layer, one, other, "fused") for k, (one, other) in enumerate(partners)]
    rows = list(Comparer().rows(pairs, Pairing(pairs)))
    assert rows[-1].verdict.name == "diverges"
    assert "though its input agrees" in rows[-1].verdict.why
