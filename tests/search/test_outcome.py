"""Which row is named as the culprit, and what a whole comparison comes to."""

from __future__ import annotations

import pytest

from tensordiff.align import Pair
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.judge.verdict import Verdict, VerdictName
from tensordiff.compare.row import Row
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import entry
from tensordiff.search.outcome import Outcome, culprits
from tests.making import MemoryTensor, nudged, numbers, pairs

Tensors = dict[str, Array | None]
A = numbers(16, 16)


def row(name: str, verdict: VerdictName = "diverges", step: int = 0) -> Row:
    made = entry(name, MemoryTensor(A), step)
    return Row(
        Pair(0, made.layer, made, made, "name"), ("float32",) * 2, A.shape, (), None, None, None, Verdict(verdict, "")
    )


def named(*names: str) -> list[str]:
    return [found.pair.reference.name for found in culprits([row(name) for name in names])]


def test_nothing_diverges() -> None:
    assert Outcome(()).culprit is None
    assert Outcome((row("a", "agrees"), row("b", "drifts"), row("c", "unknown"))).culprit is None


def test_the_first_in_order() -> None:
    found = Outcome((row("a", "agrees"), row("b", "drifts"), row("c"), row("d"))).culprit
    assert found is not None
    assert found.pair.reference.name == "c"


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (["layers.1.mlp.act", "layers.1.mlp", "layers.1", "model"], ["layers.1.mlp.act", "model"]),
        (["layers.1", "layers.1.mlp", "layers.1.mlp.act"], ["layers.1.mlp.act"]),  # a dump without order
        (["layers.1.mlp", "layers.1.attn", "layers.1"], ["layers.1.mlp", "layers.1.attn"]),
        (["layers.1", "layers.10.mlp"], ["layers.1", "layers.10.mlp"]),  # no part of it
        (["layers.1-output", "layers.1-output_1"], ["layers.1-output", "layers.1-output_1"]),
        (["layers.1.mlp", "layers.2.mlp", "layers.3.mlp"], ["layers.1.mlp", "layers.2.mlp", "layers.3.mlp"]),
        (["a.b.c", "a.b-x", "a.b"], ["a.b.c", "a.b-x"]),
    ],
)
def test_the_innermost_is_named(wrong: list[str], found: list[str]) -> None:
    assert named(*wrong) == found


def test_a_module_around_another_step_s_culprit_is_its_own() -> None:
    rows = [row("a.b", step=0), row("a", step=1)]
    assert culprits(rows) == rows


def test_an_input_is_named_only_where_no_output_diverges() -> None:
    assert named("b-input_0", "c-output") == ["c-output"]
    assert named("b-input_0", "c-input_0") == ["b-input_0", "c-input_0"]


def test_a_module_is_not_excused_by_an_input_inside_it() -> None:
    """What runs between the parts is the module's own doing."""
    assert named("mlp.down-input_0", "mlp-output", "later-output") == ["mlp-output", "later-output"]


def test_many_culprits_are_sorted_out_without_comparing_each_with_each() -> None:
    names = [f"layers.{i}.{'deep.' * 20}mlp" for i in range(20_000)]
    assert len(named(*names)) == 20_000


def test_names_of_many_parts_take_no_more_room_than_they_have() -> None:
    assert len(named("a." * 100_000 + "b", "a")) == 1


def rows(reference: Tensors, candidate: Tensors) -> list[Row]:
    return list(Comparer().rows(pairs(reference, candidate)))


BLOCK: Tensors = {
    "mlp.act-input_0": A, "mlp.act-output": A, "mlp.down-input_0": A, "mlp.down-output": A, "mlp-input_0": A,
    "mlp-output": A,
}  # fmt: skip
WRONG = nudged(A, 0.1)


@pytest.mark.parametrize(
    ("wrong", "culprit"),
    [
        (["mlp.act-output", "mlp.down-input_0", "mlp.down-output", "mlp-output"], "mlp.act-output"),
        (["mlp.down-input_0", "mlp.down-output", "mlp-output"], "mlp-output"),  # the glue between act and down
        (["mlp.down-output", "mlp-output"], "mlp.down-output"),
        (["mlp-output"], "mlp-output"),
        (
            ["mlp.act-input_0", "mlp.act-output", "mlp.down-input_0", "mlp.down-output", "mlp-input_0"],
            "mlp.act-input_0",
        ),
    ],
)
def test_in_a_measured_block(wrong: list[str], culprit: str) -> None:
    found = Outcome(tuple(rows(BLOCK, BLOCK | dict.fromkeys(wrong, WRONG)))).culprit
    assert found is not None
    assert found.pair.reference.name == culprit


@pytest.mark.parametrize(
    ("verdicts", "verdict", "status"),
    [
        ([], "unknown", 2),
        (["agrees"], "agrees", 0),
        (["agrees", "drifts"], "drifts", 0),
        (["agrees", "unknown"], "unknown", 2),
        (["drifts", "unknown"], "unknown", 2),
        (["agrees", "diverges", "drifts", "unknown"], "diverges", 1),
    ],
)
def test_verdict_and_status(verdicts: list[VerdictName], verdict: str, status: int) -> None:
    outcome = Outcome(tuple(row(f"layer{i}", name) for i, name in enumerate(verdicts)))
    assert (outcome.verdict, outcome.exit_status) == (verdict, status)
    assert (outcome.culprit is None) == (verdict != "diverges")


def test_a_file_that_could_not_be_read_leaves_it_unsure() -> None:
    lost = ("b.safetensors: is truncated",)
    assert Outcome((row("a", "agrees"),), lost).exit_status == 2
    assert Outcome((row("a", "diverges"),), lost).exit_status == 1


def test_all_that_is_wrong_by_itself_is_listed_once_a_layer_the_first_first() -> None:
    names = ("b", "a.x-output_0", "a.x-output_1", "a", "c(2)", "c")
    outcome = Outcome(tuple(row(name, "diverges") for name in names))
    assert [found.pair.reference.name for found in outcome.culprits] == ["b", "a.x-output_0", "c(2)", "c"]
    assert outcome.culprit is outcome.culprits[0]
    assert Outcome((row("a", "agrees"),)).culprits == ()


# --- the user's own tolerances ------------------------------------------------------------------------


def judged(name: str, by_limits: VerdictName, automatic: VerdictName) -> Row:
    return row(name, by_limits)._replace(without_limits=Verdict(automatic, "automatic"))


def test_of_what_fails_only_what_is_wrong_with_right_inputs_is_blamed() -> None:
    rows = [judged("a", "agrees", "agrees"), judged("b", "diverges", "drifts"), judged("c", "diverges", "diverges"),
            judged("d", "diverges", "drifts"), judged("e", "diverges", "diverges")]  # fmt: skip
    assert [one.pair.reference.name for one in culprits(rows)] == ["c", "e"]
    assert Outcome(tuple(rows)).verdict == "diverges"


def test_a_culprit_within_its_own_tolerance_is_named_where_all_that_fails_are_victims() -> None:
    rows = [judged("a", "agrees", "diverges"), judged("b", "agrees", "diverges"), judged("c", "diverges", "drifts")]
    (found,) = culprits(rows)
    assert found.pair.reference.name == "b"
    assert found.verdict.why == "automatic; it is within its own tolerance, and what follows is not within theirs"


def test_what_fails_without_any_culprit_is_named_itself() -> None:
    rows = [judged("a", "agrees", "agrees"), judged("b", "diverges", "agrees"), judged("c", "diverges", "drifts")]
    assert [one.pair.reference.name for one in culprits(rows)] == ["b", "c"]


def test_what_passes_is_no_culprit_whatever_else_would_say_so() -> None:
    rows = (judged("a", "agrees", "diverges"), judged("b", "agrees", "drifts"))
    assert Outcome(rows).verdict == "agrees"
