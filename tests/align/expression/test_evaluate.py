"""Functions that compute, against plain numpy; and whole expressions, at random and on real dumps."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.align.expression import (
    HERE,
    Expression,
    ExpressionError,
    bind,
    evaluate,
    parse,
    parse_view,
    plan,
    view_of,
)
from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import DTYPES, Array, DType, is_float
from tests import processes
from tests.align.expression.evaluation import (
    all_dtypes,
    assert_same,
    fast,
    float_dtypes,
    random_array,
    real_dtypes,
    seeds,
    shapes,
    spec_of,
    widened,
    worked_out,
)
from tests.align.expression.strategies import ENTRIES, expressions

SAMPLES = Path(__file__).parents[3] / "sample_dumps"


@fast
@given(shapes(0), st.lists(float_dtypes, min_size=2, max_size=4), seeds)
def test_sum_sub_and_mul(shape: tuple[int, ...], dtypes: list[DType], seed: int) -> None:
    arrays = {f"x{k}": random_array(shape, dtype, seed + k) for k, dtype in enumerate(dtypes)}
    common = np.result_type(*map(widened, arrays.values()))
    total = np.zeros(shape, common)
    for array in arrays.values():
        total = total + widened(array)
    np.testing.assert_array_equal(worked_out(f"sum({', '.join(arrays)})", **arrays), total)
    x, y = arrays["x0"], arrays["x1"]
    np.testing.assert_array_equal(worked_out("sub(x, y)", x=x, y=y), widened(x) - widened(y))
    np.testing.assert_array_equal(worked_out("mul(x, y)", x=x, y=y), widened(x) * widened(y))


@fast
@given(shapes(2), st.data())
def test_the_smaller_is_repeated_to_the_larger(shape: tuple[int, ...], data: st.DataObject) -> None:
    kept = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    smaller = tuple(data.draw(st.sampled_from([1, size])) for size in kept)
    x, y = random_array(shape, np.dtype("f4"), 1), random_array(smaller, np.dtype("f4"), 2)
    assert_same(worked_out("mul(x, y)", x=x, y=y), x * y)
    assert_same(worked_out("sub(y, x)", x=x, y=y), y - x)


@fast
@given(shapes(0), float_dtypes, st.floats(-1e3, 1e3).filter(lambda number: abs(number) > 1e-3))
def test_scale(shape: tuple[int, ...], dtype: DType, number: float) -> None:
    x = random_array(shape, dtype)
    expected = widened(x) * widened(x).dtype.type(number)
    np.testing.assert_array_equal(worked_out(f"scale(x, {number!r})", x=x), expected)


@fast
@given(shapes(0), real_dtypes)
def test_relu(shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array(shape, dtype)
    np.testing.assert_array_equal(worked_out("relu(x)", x=x), np.where(widened(x) < 0, 0, widened(x)))


@pytest.mark.parametrize("source", DTYPES)
def test_cast(source: str) -> None:
    """To every element type: what can be held is rounded once, what cannot be is refused."""
    x = np.abs(random_array((12,), DTYPES[source]))
    number = complex if x.dtype.kind == "c" else float if is_float(x.dtype) else int
    values = [number(value) for value in x]
    for target, dtype in DTYPES.items():
        text = f"cast(x, {target})"
        if is_float(x.dtype) and (not is_float(dtype) or (x.dtype.kind == "c" and dtype.kind != "c")):
            with pytest.raises(ExpressionError, match=r"would drop fractions|imaginary part"):
                worked_out(text, x=x)
        elif target == "bool" and not set(values) <= {0, 1}:
            with pytest.raises(ExpressionError, match="does not fit bool"):
                evaluate(parse(text), {"x": x}.__getitem__)
        else:
            expected = np.array([dtype.type(value) for value in values], dtype)
            np.testing.assert_array_equal(worked_out(text, x=x).astype(complex), expected.astype(complex))


@pytest.mark.parametrize("value", [-1, 256, 2**40])
def test_cast_refuses_what_does_not_fit(value: int) -> None:
    x = np.array([0, value, 7], np.int64)
    with pytest.raises(ExpressionError, match=f"cast: {value} does not fit uint8") as caught:
        evaluate(parse("cast(x, uint8)"), {"x": x}.__getitem__)
    assert caught.value.column == 9
    assert worked_out("cast(x, uint8)", x=x[::2]).tolist() == [0, 7]
    assert worked_out("cast(x, uint8)", x=x[:0]).shape == (0,)


def test_an_entry_is_read_once() -> None:
    asked: list[str] = []

    def read(name: str) -> Array:
        asked.append(name)
        return np.ones(2, np.float32)

    assert evaluate(parse("sum(x, y, mul(x, x))"), read).tolist() == [3, 3]
    assert asked == ["x", "y"]


def test_infinities_and_nan_are_answers() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3e38], np.float32)
    np.testing.assert_array_equal(worked_out("sub(x, x)", x=x), np.array([np.nan] * 3 + [0], np.float32))
    np.testing.assert_array_equal(worked_out("sum(x, x)", x=x), np.array([np.inf, -np.inf, np.nan, np.inf]))


_SHORT_OF_MEMORY = """
import resource
import numpy as np
from tensordiff.align.expression import ExpressionError, evaluate, parse

x = np.broadcast_to(np.float32(1), (1 << 31,))
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
try:
    evaluate(parse("relu(x)"), {"x": x}.__getitem__)
except ExpressionError as error:
    print(error.sentence)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a process to such a limit")
def test_want_of_memory_is_a_sentence() -> None:
    done = processes.run([sys.executable, "-c", _SHORT_OF_MEMORY], check=True)
    assert done.stdout.startswith(f"relu: it takes 25.8 GB ({3 << 33:,} bytes), and ")
    assert done.stdout.endswith(" of memory are available\n")


any_arrays = st.builds(random_array, shapes(0, 4, 0), all_dtypes, seeds)


@settings(deadline=None, max_examples=400)
@given(expressions(st.sampled_from(ENTRIES)), st.fixed_dictionaries(dict.fromkeys(ENTRIES, any_arrays)))
def test_whatever_is_planned_is_done_so(tree: Expression, arrays: dict[str, Array]) -> None:
    try:
        planned = plan(tree, {name: spec_of(array) for name, array in arrays.items()})
    except ExpressionError:
        with pytest.raises(ExpressionError):
            evaluate(tree, arrays.__getitem__)
        return
    try:
        result = evaluate(tree, arrays.__getitem__)
    except ExpressionError as error:
        assert "does not fit" in error.sentence  # only values can tell
    else:
        assert spec_of(result) == planned


def _read_samples(folder: str) -> dict[str, Array]:
    return {entry.name: entry.read() for entry in open_dump(SAMPLES / folder).entries}


@pytest.mark.parametrize(
    ("reference", "view", "candidate"),
    [
        (
            "cat(model.model.layers.{i}.self_attn.q_proj-output, model.model.layers.{i}.self_attn.k_proj-output, "
            "model.model.layers.{i}.self_attn.v_proj-output)",
            "squeeze 0",
            "model.layers.layers.{i}.self_attn.qkv_proj-output",
        ),
        (
            "mul(silu(model.model.layers.{i}.mlp.gate_proj-output), model.model.layers.{i}.mlp.up_proj-output)",
            "flatten 0 1",
            "model.layers.layers.{i}.mlp.down_proj-input_0",
        ),
        ("model.lm_head-output", "last_token", "model.lm_head-output"),
        ("model.lm_head-output", "squeeze 0", "model.lm_head(2)-output"),
    ],
)
def test_hugging_face_and_max_agree_under_expressions(reference: str, view: str, candidate: str) -> None:
    ours, theirs = _read_samples("reference"), _read_samples("max")
    for layer in range(2):
        mapped = bind(view_of(parse_view(view), parse(reference)), {"i": layer})
        a = evaluate(mapped, ours.__getitem__)
        b = evaluate(bind(parse(candidate), {"i": layer}), theirs.__getitem__)
        assert a.shape == b.shape
        assert np.linalg.norm(a - b) < 2e-6 * np.linalg.norm(a)


def test_a_view_is_done_on_the_entry_at_hand() -> None:
    x = random_array((1, 3, 2), np.dtype(np.float32))
    assert_same(evaluate(parse_view("squeeze 0 | slice 0 1"), {HERE.text: x}.__getitem__), x[0, 1:])
