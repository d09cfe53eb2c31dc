"""Pairing: which entries become pairs, which stay orphans, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.align import Alignment, AlignmentPlan, align
from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.tables import MapRule, ViewRule
from tensordiff.dump import Dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor, entry
from tests.making import aligned, held, numbers

ONE = numbers(9, 4)


def dump(names: Sequence[str], *, ordered: bool = True) -> Dump:
    return held(dict.fromkeys(names, ONE), ordered=ordered)


def paired(alignment: Alignment) -> list[tuple[str, str]]:
    return [(pair.reference.name, pair.candidate.name) for pair in alignment.pairs]


def orphans(alignment: Alignment) -> tuple[list[str], list[str]]:
    return [e.name for e in alignment.reference_orphans], [e.name for e in alignment.candidate_orphans]


def test_equal_names_are_pairs_by_name() -> None:
    found = align(dump(["a", "b"]), dump(["a", "b"]))
    assert paired(found) == [("a", "a"), ("b", "b")]
    assert [(pair.index, pair.name, pair.by) for pair in found.pairs] == [(0, "a", "name"), (1, "b", "name")]


def test_names_that_rules_make_alike_are_pairs_by_rule() -> None:
    [pair] = align(dump(["model.model.layers.0-output"]), dump(["model.layers.layers.0-output"])).pairs
    assert (pair.name, pair.by) == ("layers.0", "rule")


def test_what_has_no_partner_is_an_orphan() -> None:
    found = align(dump(["a", "x", "b"]), dump(["y", "a", "b", "z"]))
    assert paired(found) == [("a", "a"), ("b", "b")]
    assert orphans(found) == (["x"], ["y", "z"])


def test_the_only_output_is_the_first_of_several() -> None:
    found = align(dump(["a-output", "b-output_0"]), dump(["a-output_0", "a-output_1", "b-output"]))
    assert paired(found) == [("a-output", "a-output_0"), ("b-output_0", "b-output")]
    assert orphans(found) == ([], ["a-output_1"])


def test_two_named_ports_of_other_names_are_no_pair_wherever_they_stand() -> None:
    """As transformers' token ids and vLLM's positions, both the only inputs of the model and of equal shape."""
    found = align(dump(["model-input_input_ids", "model-output"]), dump(["model-input_positions", "model-output"]))
    assert paired(found) == [("model-output", "model-output")]
    assert orphans(found) == (["model-input_input_ids"], ["model-input_positions"])
    numbered = align(dump(["model-input_input_ids", "model-output"]), dump(["model-input_0", "model-output"]))
    assert ("model-input_input_ids", "model-input_0") in paired(numbered), "a number may stand for any name"


def test_an_input_is_not_an_output() -> None:
    assert align(dump(["a-input"]), dump(["a-output"])).pairs == ()


def test_calls_are_paired_in_order() -> None:
    found = align(dump(["a-output", "a(2)-output"]), dump(["a-output", "a(2)-output"]))
    assert paired(found) == [("a-output", "a-output"), ("a(2)-output", "a(2)-output")]


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_are_paired_by_number_where_a_file_has_the_second_first(ordered: bool) -> None:
    names = ["a-output", "a(2)-output", "a(10)-output"]
    found = align(dump(names), dump(sorted(names), ordered=ordered))
    assert paired(found) == [(name, name) for name in names]
    assert paired(align(dump(sorted(names), ordered=False), dump(names))) == [(name, name) for name in names]


def test_calls_that_are_numbered_otherwise_are_paired_in_order() -> None:
    found = align(dump(["a(2)-output", "a(3)-output"]), dump(["a(2)-output", "a-output"], ordered=False))
    assert paired(found) == [("a(2)-output", "a-output"), ("a(3)-output", "a(2)-output")]


LAST_TOKEN, ALL = numbers(1, 4), numbers(1, 9, 4)


def test_one_call_goes_to_the_last_of_many_that_fits() -> None:
    found = aligned({"a-output": ALL}, {"a-output": LAST_TOKEN, "a(2)-output": ALL[0]})
    assert paired(found) == [("a-output", "a(2)-output")]
    assert orphans(found) == ([], ["a-output"])


def test_a_head_that_ran_for_the_last_token_too_is_paired_through_a_view() -> None:
    found = aligned({"lm_head-output": ALL}, {"lm_head-output": LAST_TOKEN, "lm_head(2)-output": ALL[0]})
    assert paired(found) == [("lm_head-output", "lm_head-output"), ("lm_head-output", "lm_head(2)-output")]
    assert [pair.views for pair in found.pairs] == [["last_token"], []]
    assert found.pairs[0].reference.spec.shape == LAST_TOKEN.shape


def test_the_same_from_the_other_side() -> None:
    found = aligned({"a-output": LAST_TOKEN, "a(2)-output": ALL[0]}, {"a-output": ALL})
    assert paired(found) == [("a(2)-output", "a-output")]
    assert orphans(found) == (["a-output"], [])


def test_where_no_call_fits_the_first_is_kept_for_measuring_to_say_so() -> None:
    found = aligned({"a-output": numbers(3)}, {"a-output": numbers(4), "a(2)-output": numbers(5)})
    assert paired(found) == [("a-output", "a-output")]


def test_a_call_that_is_missing_does_not_shift_the_others() -> None:
    found = align(dump(["a-output", "a(2)-output", "a(3)-output"]), dump(["a-output", "a(3)-output"]))
    assert paired(found) == [("a-output", "a-output"), ("a(3)-output", "a(3)-output")]
    assert orphans(found) == (["a(2)-output"], [])


def test_steps_are_kept_apart() -> None:
    reference, candidate = (
        Dump(one.path, one.format, one.entries + two.entries, True)
        for one, two in (
            (held({"a": ONE}), held({"a": ONE}, step=1)),
            (held({"a": ONE}), held({"a": ONE}, step=2)),
        )
    )
    found = align(reference, candidate)
    assert [(p.reference.step, p.candidate.step) for p in found.pairs] == [(0, 0)]
    assert [e.step for e in found.reference_orphans + found.candidate_orphans] == [1, 2]


def test_inputs_at_one_position_may_be_other_arguments() -> None:
    found = aligned({"a-input_1": numbers(9, 4)}, {"a-input_1": numbers(7)})
    assert found.pairs == ()
    assert orphans(found) == (["a-input_1"], ["a-input_1"])


def test_an_input_of_ids_is_not_an_input_of_numbers() -> None:
    assert aligned({"a-input_0": numbers(9)}, {"a-input_0": np.arange(9)}).pairs == ()


def test_outputs_of_other_shapes_stay_pairs_so_that_someone_is_told() -> None:
    assert len(aligned({"a-output": numbers(2, 3)}, {"a-output": numbers(3, 2)}).pairs) == 1


@pytest.mark.parametrize("name", ["a-output", "a-input_0"])
def test_what_cannot_be_read_stays_a_pair(name: str) -> None:
    assert len(aligned({name: ONE}, {name: None}).pairs) == 1


def test_a_layer_that_two_names_mean_loses_neither() -> None:
    found = align(dump(["model.a", "a"]), dump(["a"]))
    assert len(found.pairs) == 1
    assert len(found.reference_orphans) == 1


SPELLINGS = ["b.attn", "b.attn_output", "b.attn-output", "b.attn(1)-output"]


@pytest.mark.parametrize("reference", [SPELLINGS, SPELLINGS[:2], SPELLINGS[1:2]])
def test_of_names_that_mean_one_call_those_spelled_alike_are_pairs(reference: list[str]) -> None:
    found = align(dump([*reference, "x"]), dump(["x", *reversed(SPELLINGS)]))
    assert paired(found) == [(name, name) for name in (*reference, "x")]
    assert orphans(found) == ([], [name for name in reversed(SPELLINGS) if name not in reference])


def test_the_others_that_mean_one_call_are_paired_as_they_stand() -> None:
    found = align(dump(["a_output", "a", "a-output"]), dump(["a(1)-output", "a", "a-output_0"]))
    assert paired(found) == [("a_output", "a(1)-output"), ("a", "a"), ("a-output", "a-output_0")]


def test_names_that_mean_one_call_are_told_apart() -> None:
    assert [pair.name for pair in align(dump([*SPELLINGS, "x"]), dump([*SPELLINGS, "x"])).pairs] == [*SPELLINGS, "x"]
    doubled = dump(["model.layers.0.a-output", "layers.0.a-output", "model.layers.1.a-output"])
    names = [pair.name for pair in align(doubled, doubled).pairs]
    assert names == ["model.layers.0.a", "layers.0.a", "layers.1.a"]


@pytest.mark.parametrize(
    ("reference", "candidate", "order"),
    [
        (dump(["a", "b"]), dump(["a", "b"]), "same"),
        (dump(["a", "x", "b"]), dump(["y", "a", "b"]), "same"),
        (dump(["a", "b"]), dump(["b", "a"]), "differs"),
        (dump(["a", "b"], ordered=False), dump(["a", "b"]), "unknown"),
        (dump(["a", "b"]), dump(["a", "b"], ordered=False), "unknown"),
        (dump([]), dump([]), "same"),
    ],
)
def test_order(reference: Dump, candidate: Dump, order: str) -> None:
    assert align(reference, candidate).order == order


def test_pairs_stand_as_the_reference_ran() -> None:
    assert paired(align(dump(["b", "a"]), dump(["a", "b"]))) == [("b", "b"), ("a", "a")]
    assert paired(align(dump(["b", "a"]), dump(["a", "b"], ordered=False))) == [("b", "b"), ("a", "a")]


def test_where_only_the_candidate_has_an_order_it_counts() -> None:
    found = align(dump(["a", "b", "c"], ordered=False), dump(["c", "a", "b"]))
    assert paired(found) == [("c", "c"), ("a", "a"), ("b", "b")]
    assert [pair.index for pair in found.pairs] == [0, 1, 2]


@pytest.mark.parametrize(
    ("reference", "candidate", "coverage"),
    [
        ("ab", "ab", 1.0),
        ("abcd", "ab", 0.5),
        ("ab", "abcd", 0.5),
        ("abcd", "abxy", 0.5),
        ("ab", "xy", 0.0),
        ("", "", 0.0),
        ("", "ab", 0.0),
    ],
)
def test_coverage_is_of_both_sides(reference: str, candidate: str, coverage: float) -> None:
    assert align(dump(reference), dump(candidate)).coverage.share == coverage


NAMES = st.lists(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["a", "model.a", "b", "layers.0", "model.layers.layers.0"]),
        st.sampled_from(["", "(2)", "(3)"]),
        st.sampled_from(["-output", "-output_0", "-output_1", "-input_0"]),
    ),
    unique=True,
    max_size=12,
)


@given(NAMES, NAMES, st.data())
def test_every_entry_is_in_one_pair_or_an_orphan(
    reference: list[str], candidate: list[str], data: st.DataObject
) -> None:
    shapes = st.sampled_from([(2,), (1, 2), (3,)])
    sides: list[dict[str, Array | None]] = [
        {name: numbers(*data.draw(shapes)) for name in names} for names in (reference, candidate)
    ]
    found = aligned(*sides)
    left, right = orphans(found)
    assert sorted([a for a, _ in paired(found)] + left) == sorted(reference)
    assert sorted([b for _, b in paired(found)] + right) == sorted(candidate)


def test_a_persons_view_holds_even_where_shapes_agree_without_it() -> None:
    square = numbers(4, 4)
    reference, candidate = held({"a.q": square}), held({"a.q": square.T.copy()})
    plan = replace(AlignmentPlan.for_dumps(reference, candidate), views=(ViewRule(r"\.q$", candidate="transpose 0 1"),))
    (pair,) = align(reference, candidate, plan).pairs
    assert pair.views == ["candidate transpose 0 1"]
    assert (pair.candidate.read() == square).all()


def test_a_map_may_pass_over_what_does_not_fit() -> None:
    """A cache's keys are the new keys in the first step only."""
    shapes = {"keys": [(2, 9, 4), (2, 10, 4)], "new": [(2, 9, 4), (2, 1, 4)]}
    sides = [
        Dump(Path(layer), "arrays", tuple(entry(layer, MemoryTensor(numbers(*shape)), step)
                                          for step, shape in enumerate(some)), ordered=True)
        for layer, some in shapes.items()
    ]  # fmt: skip
    for if_fits, steps in ((False, [0, 1]), (True, [0])):
        rules = RulesFile(maps=(MapRule("keys", "new", if_fits=if_fits),))
        plan = AlignmentPlan.for_dumps(sides[0], sides[1], rules)
        assert [pair.reference.step for pair in align(sides[0], sides[1], plan).pairs] == steps
