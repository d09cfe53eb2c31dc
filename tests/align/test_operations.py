"""Operations are paired by their sequence, within the one layer that both dumps are of."""

from __future__ import annotations

import pytest

import tensordiff
from tensordiff.dump.dtypes import Array
from tensordiff.report.labels import label
from tensordiff.tui.table.model import layer_name
from tests.making import numbers

A, B = numbers(4, 8, seed=1), numbers(4, 8, seed=2)


def paired(ours: list[str], theirs: list[str]) -> list[tuple[str, str]]:
    arrays = dict(zip(("mm", "add", "silu", "gelu", "mul"), (numbers(4, 8, seed=k) for k in range(5)), strict=True))
    sides = [{f"{name}-output": arrays[name.rpartition("_")[2]] for name in side} for side in (ours, theirs)]
    found = tensordiff.align(*sides, learn=False)
    return [(pair.reference, pair.candidate) for pair in found.pairs]


def test_one_layer_each_is_the_same_layer_whatever_it_is_called() -> None:
    ours = ["model.layers.2.attn/op_01_mm", "model.layers.2.attn/op_02_silu"]
    theirs = ["blocks.2.att/op_01_mm", "blocks.2.att/op_02_add", "blocks.2.att/op_03_silu"]
    assert paired(ours, theirs) == [
        ("model.layers.2.attn/op_01_mm-output", "blocks.2.att/op_01_mm-output"),
        ("model.layers.2.attn/op_02_silu-output", "blocks.2.att/op_03_silu-output"),
    ]


def test_of_several_layers_names_decide() -> None:
    ours = ["layers.0.attn/op_01_mm", "layers.1.attn/op_01_mm"]
    assert paired(ours, ["blocks.0.att/op_01_mm"]) == []
    assert [pair[1] for pair in paired(ours, ["layers.1.attn/op_04_mm"])] == ["layers.1.attn/op_04_mm-output"]


def test_another_operation_in_the_place_of_one_is_named() -> None:
    x = numbers(4, 8)
    ours = {"a/op_01_silu-input_0": x, "a/op_01_silu-output": A}
    theirs = {"a/op_01_gelu-input_0": x, "a/op_01_gelu-output": B}
    given, row = tensordiff.compare(ours, theirs, learn=False).rows
    assert row.name == label(row.measured.pair) == "a/op_01_silu ↔ gelu"
    assert given.verdict == "agrees" and "its input agrees" in row.why
    assert layer_name(row.measured.pair) == row.name, "where the table has a column for ports, too"


def test_inputs_of_another_operation_are_paired_only_where_they_are_alike() -> None:
    ours = {"a/op_01_mm-input_0": numbers(4, 8), "a/op_01_mm-output": A}
    theirs = {"a/op_01_addmm-input_0": 9 + numbers(4, 8), "a/op_01_addmm-output": A}
    rows = tensordiff.compare(ours, theirs, learn=False).rows
    assert [row.name for row in rows] == ["a/op_01_mm ↔ addmm"]


def test_heads_that_are_transposed_are_proven_by_value_and_taken_behind_an_error() -> None:
    q, s, v = numbers(1, 6, 4, 16, seed=1), numbers(1, 6, 4, 16, seed=2), numbers(1, 6, 4, 16, seed=3)
    ours = {"a/op_01_mul-output": q, "a/op_02_add-output": s, "a/op_03_softmax-output": v}
    swapped = {name: array.transpose(0, 2, 1, 3).copy() for name, array in ours.items()}
    theirs = swapped | {"a/op_03_softmax-output": swapped["a/op_03_softmax-output"] * 2}
    rows = tensordiff.compare(ours, theirs, learn=False).rows
    assert [(list(row.measured.views), row.verdict) for row in rows] == [
        (["permute 0 2 1 3"], "agrees"), (["permute 0 2 1 3"], "agrees"), (["permute 0 2 1 3"], "diverges"),
    ]  # fmt: skip


def test_as_many_heads_as_tokens_are_transposed_all_the_same() -> None:
    x = numbers(1, 4, 4, 16)
    (row,) = tensordiff.compare({"a/op_01_mul-output": x}, {"a/op_01_mul-output": x.transpose(0, 2, 1, 3).copy()}).rows
    assert (list(row.measured.views), row.verdict) == (["permute 0 2 1 3"], "agrees")


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_of_as_many_heads_as_tokens_each_operation_has_the_order_that_its_values_have(factor: float) -> None:
    """llama.cpp's rope has tokens first, its attention heads first, and only the lengths of axes told these apart."""
    rope, attention = numbers(1, 4, 4, 16, seed=1), numbers(1, 4, 4, 16, seed=2)
    ours = {"a/op_01_add-output": rope, "a/op_02_attention-output": attention}
    theirs = {
        "a/op_01_add-output": rope[0].transpose(1, 0, 2).copy(),
        "a/op_02_attention-output": attention[0] * factor,
    }
    rows = tensordiff.compare(ours, theirs, learn=False).rows
    assert [row.measured.pair.views for row in rows] == [["permute 0 2 1 3"], []]
    assert rows[0].verdict == "agrees" and rows[1].rel_l2 == pytest.approx(factor - 1)


FINE = ("mul", "slice", "neg", "cat", "mul", "add", "view", "transpose")


def test_operations_that_one_engine_has_and_the_other_has_not_are_no_lack_of_coverage() -> None:
    ours = {f"a/op_{k:02}_aten.{name}-output": numbers(4, 8, seed=10 + k) for k, name in enumerate(FINE)}
    ours |= {"a/op_08_aten.mm-output": A, "a/op_09_aten.view-output": A}
    theirs = {"b/op_00_ROPE-output": numbers(4, 8, seed=15), "b/op_01_SET_ROWS-output": B, "b/op_02_MUL_MAT-output": A}
    with_layer = theirs | {"b-output": A}  # llama.cpp's dump has what the layer gives, too
    for sides in ((ours, theirs), (theirs, ours), (ours, with_layer)):
        found = tensordiff.compare(*sides, learn=False)
        assert (found.verdict, found.coverage, len(found.rows)) == ("agrees", 1.0, 2)
    unfinished = {name: array for name, array in theirs.items() if "MUL_MAT" not in name}
    assert tensordiff.compare(ours, unfinished, learn=False).verdict == "unknown", "what it computes last is not there"
    same_engine = {name: array for name, array in ours.items() if "add" in name or "mm" in name}
    assert tensordiff.compare(ours, same_engine, learn=False).verdict == "unknown"
    modules = [{f"layers.{k}.{name}-output": numbers(4, 8, seed=40 + k) for k in range(9)} for name in ("up", "wi")]
    found = tensordiff.compare(ours | modules[0], theirs | modules[1], learn=False, min_coverage=20)
    assert found.verdict == "unknown" and found.coverage == 0, "modules of which none is paired count, too"


def test_the_last_operation_of_every_layer_must_be_compared_with_that_of_the_other_side() -> None:
    first, last = numbers(4, 8, seed=1), numbers(4, 8, seed=2)
    ours = {
        f"{layer}/op_{k:02}_aten.{name}-output": array * scale
        for layer, scale in (("a", 1), ("b", 2))
        for k, (name, array) in enumerate((("mul", first), ("mm", last)))
    }
    theirs = {name.replace("aten.mul", "MUL").replace("aten.mm", "MUL_MAT"): array for name, array in ours.items()}
    assert tensordiff.compare(ours, theirs, learn=False).verdict == "agrees"
    for layer in "ab":
        wrong = theirs | {f"{layer}/op_01_MUL_MAT-output": numbers(4, 8, seed=3)}
        assert tensordiff.compare(ours, wrong, learn=False).exit_status != 0
        crosswise = {name: array for name, array in theirs.items() if not name.startswith(layer)}
        crosswise[f"{layer}/op_00_MUL_MAT-output"] = theirs[f"{layer}/op_01_MUL_MAT-output"]
        crosswise[f"{layer}/op_01_MUL-output"] = theirs[f"{layer}/op_00_MUL-output"]
        assert tensordiff.compare(ours, crosswise, learn=False).exit_status == 2


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_an_operation_that_one_side_forgets_at_the_end_is_not_passed(is_forgotten: bool) -> None:
    whole = {
        f"a/op_{k:02}_aten.{name}-output": numbers(4, 8, seed=k) for k, name in enumerate(("mm", "silu", "mul", "add"))
    }
    cut = {name: array for name, array in whole.items() if "add" not in name}
    found = tensordiff.compare(*((whole, cut) if is_forgotten else (cut, whole)), learn=False)
    last = "a/op_03_aten.add" if is_forgotten else "a/op_02_aten.mul"
    assert found.exit_status == 2
    assert found.doubts[0].startswith(f"{last} computes what its layer gives, and was not compared")


def test_heads_that_one_side_has_not_split_yet_and_another_name() -> None:
    x = numbers(6, 64)
    split = x.reshape(6, 4, 16).transpose(1, 0, 2).copy()
    for ours, theirs in ((x, split), (split, x)):
        (row,) = tensordiff.compare({"a/op_01_mm-output": ours}, {"a/op_01_transpose-output": theirs}).rows
        assert row.verdict == "agrees" and "transpose 0 1" in row.measured.views[0]


def test_other_values_of_transposed_shapes_prove_no_layout() -> None:
    ours, theirs = numbers(6, 4, 16, seed=1), numbers(4, 6, 16, seed=2)
    rows = tensordiff.compare({"a/op_01_mm-output": ours}, {"a/op_01_mm-output": theirs}).rows
    assert [row.verdict for row in rows] == ["unknown"]


def attention(engine: str, **wrong: Array) -> dict[str, Array]:
    """Projections, rope and the last product of an attention, as torch or llama.cpp runs it: keys or values first."""
    x = numbers(6, 64, seed=9)
    q, k, v, out = (wrong.get(name, numbers(6, 64, seed=at)) for at, name in enumerate("qkvo"))
    rope, core = numbers(6, 64, seed=5), wrong.get("core", numbers(6, 64, seed=6))
    if engine == "torch":
        run = [("aten.mm", x, q), ("aten.mm", x, k), ("aten.mm", x, v), ("aten.add.Tensor", k, rope)]
        run += [("aten.view", core, core), ("aten.mm", core, out), ("aten._unsafe_view", out, out)]
    else:
        run = [("MUL_MAT", x, q), ("MUL_MAT", x, v), ("MUL_MAT", x, k), ("ROPE", k, rope), ("MUL_MAT", core, out)]
    made: dict[str, Array] = {}
    for at, (name, given, gave) in enumerate(run):
        made |= {f"a/op_{at:02d}_{name}-input_0": given, f"a/op_{at:02d}_{name}-output": gave}
    return made


def names(row: tensordiff.ResultRow) -> tuple[str, str]:
    pair = row.measured.pair
    return pair.reference.name, pair.candidate.name


def test_values_decide_where_the_engines_run_in_another_order() -> None:
    rows = tensordiff.compare(attention("torch"), attention("llama.cpp"), learn=False).rows
    assert [names(row) for row in rows if row.port == "output"] == [
        ("a/op_00_aten.mm-output", "a/op_00_MUL_MAT-output"),
        ("a/op_01_aten.mm-output", "a/op_02_MUL_MAT-output"),
        ("a/op_02_aten.mm-output", "a/op_01_MUL_MAT-output"),
        ("a/op_03_aten.add.Tensor-output", "a/op_03_ROPE-output"),
        ("a/op_05_aten.mm-output", "a/op_04_MUL_MAT-output"),
    ]
    assert {row.verdict for row in rows} == {"agrees"}


@pytest.mark.parametrize(
    ("wrong", "ours", "theirs"), [("k", "01_aten.mm", "02_MUL_MAT"), ("v", "02_aten.mm", "01_MUL_MAT")]
)
def test_what_is_wrong_is_paired_with_what_is_left(wrong: str, ours: str, theirs: str) -> None:
    found = tensordiff.compare(
        attention("torch"), attention("llama.cpp", **{wrong: numbers(6, 64, seed=30)}), learn=False
    )
    assert found.culprit is not None
    assert names(found.culprit) == (f"a/op_{ours}-output", f"a/op_{theirs}-output")
    assert [row.verdict for row in found.rows].count("diverges") == 1


def test_the_same_output_of_other_inputs_does_not_blame_these() -> None:
    x, weighted = numbers(6, 64), numbers(6, 64) * 1.02
    ours = {"a/op_01_transpose-input_0": weighted, "a/op_01_transpose-output": weighted}
    theirs = {"a/op_01_MUL-input_0": x * numbers(6, 64, seed=4), "a/op_01_MUL-output": weighted}
    rows = tensordiff.compare(ours, theirs, learn=False).rows
    assert [(row.port, row.verdict) for row in rows] == [("output", "agrees")]


def test_the_last_operations_are_the_same_whatever_they_give() -> None:
    wrong = {"core": numbers(6, 64, seed=31), "o": numbers(6, 64, seed=32)}
    found = tensordiff.compare(attention("torch"), attention("llama.cpp", **wrong), learn=False)
    assert found.culprit is not None and names(found.culprit)[0] == "a/op_05_aten.mm-input_0"


def test_the_last_operations_are_the_same_though_one_has_a_batch_of_one() -> None:
    x, normed, scaled = (numbers(1, 6, 64, seed=at) for at in range(3))
    ours = {
        "a/op_00_aten.rms-input_0": x, "a/op_00_aten.rms-output": normed,
        "a/op_01_aten.mul.Tensor-input_0": normed, "a/op_01_aten.mul.Tensor-output": scaled,
    }  # fmt: skip
    for factor, verdict in ((1.0, "agrees"), (1.25, "diverges")):
        theirs = {
            "b/op_00_RMS_NORM-input_0": x[0], "b/op_00_RMS_NORM-output": normed[0],
            "b/op_01_MUL-input_0": normed[0], "b/op_01_MUL-output": scaled[0] * factor,
        }  # fmt: skip
        found = tensordiff.compare(ours, theirs, learn=False)
        assert found.verdict == verdict, found.doubts
    assert found.culprit is not None
    assert names(found.culprit) == ("a/op_01_aten.mul.Tensor-output", "b/op_01_MUL-output")


def test_operations_of_another_size_are_no_pair() -> None:
    q, k = numbers(1, 12, 16), numbers(1, 2, 12, 16, seed=1)
    ours = {"a/op_01_unsqueeze-input_0": q, "a/op_01_unsqueeze-output": q[None], "a/op_02_mm-output": A}
    theirs = {"b/op_01_unsqueeze-input_0": k, "b/op_01_unsqueeze-output": k[:, :, None], "b/op_02_mm-output": A}
    found = tensordiff.compare(ours, theirs, learn=False)
    assert [(row.name, row.verdict) for row in found.rows] == [("a/op_02_mm", "agrees")]


def test_an_input_of_another_size_is_no_pair() -> None:
    ours = {"a/op_01_mm-input_0": A, "a/op_01_mm-input_1": numbers(3, 8), "a/op_01_mm-output": B}
    theirs = ours | {"a/op_01_mm-input_1": numbers(7, 8)}
    rows = tensordiff.compare(ours, theirs, learn=False).rows
    assert [(row.port, row.verdict) for row in rows] == [("input_0", "agrees"), ("output", "agrees")]


def test_a_layer_that_gives_another_size_is_not_said_to_agree() -> None:
    ours, theirs = ({"a/op_01_add-output": A, "a/op_02_mm-output": numbers(4, size)} for size in (8, 6))
    found = tensordiff.compare(ours, theirs, learn=False)
    assert [row.verdict for row in found.rows] == ["agrees", "unknown"] and found.verdict == "unknown"


def test_the_first_of_several_outputs_is_the_only_one_of_another_operation() -> None:
    x, sums = numbers(6, 64), numbers(6)
    several = {"a/op_01_sdpa-output_0": x, "a/op_01_sdpa-output_1": sums}
    alone = {"a/op_01_MUL_MAT-output": x}
    for ours, theirs in ((several, alone), (alone, several)):
        (row,) = tensordiff.compare(ours, theirs, learn=False).rows
        assert row.verdict == "agrees"
