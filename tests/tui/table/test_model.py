"""Sorting, filtering and folding, without a screen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.compare.comparer import Comparer
from tensordiff.errors import AlignError
from tensordiff.report.comparison_json import row_json
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.table import model
from tensordiff.tui.table.model import ABSENT, Batch, Listing, Order, Pattern, RowNumbers, Selection, Suspects, ranked
from tensordiff.tui.table.tree import NOWHERE, Lines, Tree
from tests.making import SAMPLES, nudged, numbers, pairs

ERRORS = st.lists(st.one_of(st.floats(min_value=0), st.just(math.nan), st.just(ABSENT)), max_size=30)


@given(ERRORS, st.booleans())
def test_nan_is_worst_and_absent_is_last_either_way(values: list[float], descending: bool) -> None:
    found = [values[at] for at in ranked(np.array(values, np.float64), descending)]
    there = [value for value in found if value != ABSENT]
    assert found[len(there) :] == [ABSENT] * (len(found) - len(there))
    worst_first = there if descending else there[::-1]
    ranks = [(math.isnan(value), 0.0 if math.isnan(value) else value) for value in worst_first]
    assert ranks == sorted(ranks, reverse=True)


def test_equal_values_keep_execution_order() -> None:
    assert ranked(np.array([2.0, 1.0, 2.0, 1.0]), True).tolist() == [0, 2, 1, 3]
    assert ranked(np.array([2.0, 1.0, 2.0, 1.0]), False).tolist() == [1, 3, 0, 2]


def listing() -> Listing:
    """Four layers: an input, one that agrees, one that is NaN, one that diverges, one that cannot be read."""
    a = numbers(4, 4)
    nan = a.copy()
    nan[0, 0] = np.nan
    reference = {"a-input_0": a, "a": a, "c": a, "b": a, "d": a}
    candidate = {"a-input_0": a, "a": a, "c": nudged(a, 0.5), "b": nan, "d": None}
    found = pairs(reference, candidate)
    made = Listing.of(found)
    made.put(Batch.of(0, list(Comparer().rows(found))))
    return made


def names(made: Listing, how: Order) -> list[str]:
    return [made.labels[at] for at in made.order(how)]


def test_orders() -> None:
    made = listing()
    assert names(made, Order()) == ["a", "c", "b", "d"]
    assert names(made, Order(inputs=True)) == ["a input_0", "a", "c", "b", "d"]
    assert names(made, Order("rel_l2")) == ["b", "c", "a", "d"]
    assert names(made, Order("rel_l2", descending=False)) == ["a", "c", "b", "d"]
    assert names(made, Order("verdict"))[-1] == "a"
    assert names(made, Order(faults=True)) == ["c", "b", "d"]
    assert names(made, Order(only=Selection(np.arange(5) == 2))) == ["c"]


def test_verdicts_are_counted_as_rows_come_in() -> None:
    made = listing()
    assert made.counts.tolist() == np.bincount(made.verdicts, minlength=5).tolist() == [0, 2, 0, 1, 2]
    again = Listing.of(made.pairs)
    assert again.counts.tolist() == [5, 0, 0, 0, 0]
    again.carry(made)
    assert again.counts.tolist() == made.counts.tolist()
    rows = list(Comparer().rows(made.pairs))
    again.put(Batch.of(0, rows[:2]))
    again.put(Batch.of(2, rows[2:]))
    assert again.counts.tolist() == made.counts.tolist()


def test_a_dump_of_inputs_alone_is_shown() -> None:
    made = Listing.of(pairs({"a-input_0": numbers(2)}, {"a-input_0": numbers(2)}))
    assert names(made, Order()) == ["a input_0"]


def test_names_sort_naturally() -> None:
    tensors = {f"layers.{k}": numbers(2) for k in (10, 9, 100, 1)}
    made = Listing.of(pairs(tensors, tensors))
    assert names(made, Order("layer", descending=False)) == [f"layers.{k}" for k in (1, 9, 10, 100)]


@given(st.lists(st.text(max_size=8), unique=True, max_size=12))
def test_any_names_can_be_sorted(some: list[str]) -> None:
    tensors = {f"x{name}x": numbers(1) for name in some}
    made = Listing.of(pairs(tensors, tensors))
    assert len(made.order(Order("layer"))) == len(made)


def test_patterns() -> None:
    assert Pattern.parse("") is None
    assert Pattern.parse("!") is None
    kept, left = Pattern.parse("mlp"), Pattern.parse("!mlp")
    assert kept and left
    assert (kept.matches("a.mlp"), left.matches("a.mlp")) == (True, False)
    with pytest.raises(AlignError, match="unterminated character set"):
        Pattern.parse("[")


def test_names_are_matched_only_while_somebody_waits_for_them() -> None:
    many = Listing.of(listing().pairs * model._ASKED_AFTER)
    pattern, answers = Pattern.parse("[ab]"), iter([True, False])
    assert pattern is not None
    found = many.matching(pattern)
    assert found is not None and found.mask.tolist() == [pattern.matches(name) for name in many.labels]
    assert many.matching(pattern, lambda: next(answers)) is None
    assert list(answers) == []


def test_the_numbers_of_rows_are_looked_up_when_asked_for() -> None:
    some = listing().pairs
    assert list(RowNumbers(some)) == [pair.index for pair in some]
    assert list(RowNumbers(some)[1:]) == [pair.index for pair in some[1:]]


def test_the_column_shows_the_amplification_that_json_and_reports_give() -> None:
    """Also where a layer's inputs were not dumped, and what ran before it counts as what came in."""
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / "candidate"))
    rows, shown = list(session.rows()), Listing.of(session.pairs)
    shown.put(Batch.of(0, rows))
    said = [row_json(row)["amplification"] for row in rows]
    assert any(one is not None for one in said)
    assert [None if one == ABSENT else one for one in shown.column("amplification")] == pytest.approx(said, nan_ok=True)


def test_numbers_are_carried_over_to_another_alignment() -> None:
    before = listing()
    after = Listing.of(before.pairs[1:])
    after.carry(before)
    assert after.rows == before.rows[1:]
    assert after.measured == 0


# --- the tree ------------------------------------------------------------------------------------


def lines(tree: Tree, folded: set[str], count: int, kept: list[int] | None = None) -> list[tuple[int, str, int]]:
    mask = np.ones(count, np.bool_) if kept is None else np.isin(np.arange(count), kept)
    shown = tree.lines(np.array([path in folded for path in tree.paths], np.bool_), mask)
    return [(row, tree.path(node) if node != NOWHERE else "", depth) for row, node, depth in shown]


def unfolded(tree: Tree) -> Lines:
    """The lines when nothing is folded."""
    return tree.lines(np.zeros(len(tree.paths), np.bool_), np.ones(int(tree.rows.max(initial=-1)) + 1, np.bool_))


def test_a_module_s_own_output_stands_on_its_line() -> None:
    tree = Tree.of(["l.0.a", "l.0.b", "l.0", "norm"], np.zeros(4, np.bool_))
    assert lines(tree, set(), 4) == [
        (NOWHERE, "l", 0), (2, "l.0", 1), (0, "", 2), (1, "", 2), (3, "", 0),
    ]  # fmt: skip
    assert lines(tree, {"l.0"}, 4) == [(NOWHERE, "l", 0), (2, "l.0", 1), (3, "", 0)]
    assert lines(tree, set(), 4, [1]) == [(NOWHERE, "l", 0), (NOWHERE, "l.0", 1), (1, "", 2)]
    assert [path for path, folds in zip(tree.paths, tree.usual_folds, strict=True) if folds] == ["l.0"]
    assert [[tree.path(node) for node in tree.around(row)] for row in (1, 2)] == [["l", "l.0", "l.0.b"], ["l", "l.0"]]


def test_around_a_line_is_the_module_that_holds_it() -> None:
    names = "l.0.a", "l.0.b", "l.0", "l.1.a.x", "l.1.a", "l.1", "norm"
    shown = unfolded(Tree.of(names, np.zeros(len(names), np.bool_)))
    assert [line.depth for line in shown] == [0, 1, 2, 2, 1, 2, 3, 0]
    assert [shown.around(at) for at in range(len(shown))] == [None, 0, 1, 1, 0, 4, 5, None]


@given(st.sets(st.integers(0, 30)))
def test_what_is_suspected_is_a_collection_of_positions(some: set[int]) -> None:
    suspects = Suspects(sorted(some))
    assert (list(suspects), len(suspects), bool(suspects)) == (sorted(some), len(some), bool(some))
    assert {at for at in range(-1, 32) if at in suspects} == some
    assert suspects.span == ((min(some), max(some)) if some else None)


def test_inputs_stand_below_their_layer() -> None:
    tree = Tree.of(["a", "a"], np.array([True, False]))
    assert lines(tree, set(), 2) == [(1, "a", 0), (0, "", 1)]
    assert lines(tree, {"a"}, 2) == [(1, "a", 0)]


@given(st.lists(st.text(alphabet="ab.", max_size=6), max_size=12))
def test_no_row_vanishes_from_the_tree(some: list[str]) -> None:
    tree = Tree.of(some, np.zeros(len(some), np.bool_))
    shown = [line.row for line in unfolded(tree) if line.row != NOWHERE]
    assert sorted(shown) == list(range(len(some)))


def test_a_name_of_very_many_parts() -> None:
    tree = Tree.of([".".join("x" * 5000)], np.zeros(1, np.bool_))
    assert unfolded(tree)[-1].row == 0
