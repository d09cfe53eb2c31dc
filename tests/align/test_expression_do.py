"""Every function against plain numpy, on random shapes and every element type."""

from __future__ import annotations

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
from tensordiff.dump.model import Spec
from tests.align.expression_crafting import ENTRIES, expressions

SAMPLES = Path(__file__).parents[2] / "sample_dumps"

all_dtypes = st.sampled_from([*DTYPES.values(), np.dtype(">f4")])
float_dtypes = st.sampled_from([dtype for dtype in DTYPES.values() if is_float(dtype)])
real_dtypes = float_dtypes.filter(lambda dtype: dtype.kind != "c")
seeds = st.integers(0, 2**32 - 1)
fast = settings(deadline=None, max_examples=60)


def shapes(least: int = 1, most: int = 4, smallest: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(smallest, 4), min_size=least, max_size=most).map(tuple)


def random_array(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    with np.errstate(all="ignore"):
        array = np.asarray(np.abs(values) if dtype.kind in "ub" else values).astype(dtype)
    array.flags.writeable = False  # as a dump gives it
    return array


def spec_of(array: Array) -> Spec:
    return Spec(array.shape, array.dtype)


def worked_out(text: str, **entries: Array) -> Array:
    """What an expression gives, having checked that it was planned so."""
    expression = parse(text)
    result = evaluate(expression, entries.__getitem__)
    assert spec_of(result) == plan(expression, {name: spec_of(array) for name, array in entries.items()})
    return result


def widened(x: Array) -> Array:
    """In the type that arithmetic on it is done in."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def assert_same(result: Array, expected: Array) -> None:
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.tobytes() == expected.tobytes()


@fast
@given(st.data(), shapes(), all_dtypes, st.integers(2, 4))
def test_cat(data: st.DataObject, shape: tuple[int, ...], dtype: DType, count: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = [data.draw(st.integers(0, 3)) for _ in range(count)]
    arrays = {
        f"x{k}": random_array((*shape[: axis % len(shape)], size, *shape[axis % len(shape) + 1 :]), dtype, k)
        for k, size in enumerate(sizes)
    }
    expected = np.concatenate(list(arrays.values()), axis=axis).astype(dtype)
    assert_same(worked_out(f"cat({', '.join(arrays)}, axis={axis})", **arrays), expected)


@fast
@given(st.data(), shapes(smallest=0), all_dtypes)
def test_squeeze_and_unsqueeze(data: st.DataObject, shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array(shape, dtype)
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    expected = np.expand_dims(x, axis)
    assert_same(worked_out(f"unsqueeze(x, {axis})", x=x), expected)
    assert_same(worked_out(f"squeeze(x, {axis})", x=expected), x)
    assert_same(worked_out(f"squeeze(unsqueeze(x, {axis}), {axis})", x=x), x)


@fast
@given(st.data(), shapes(), all_dtypes)
def test_reshape_and_flatten(data: st.DataObject, shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array(shape, dtype)
    target = list(data.draw(st.permutations(shape)))
    target[data.draw(st.integers(0, len(shape) - 1))] = -1
    assert_same(worked_out(f"reshape(x, {', '.join(map(str, target))})", x=x), x.reshape(target))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(shape) - 1)] * 2)))
    expected = x.reshape(*shape[:first], -1, *shape[last + 1 :])
    assert_same(worked_out(f"flatten(x, {first}, {last - len(shape)})", x=x), expected)


@fast
@given(st.data(), shapes(smallest=0), all_dtypes)
def test_transpose_and_permute(data: st.DataObject, shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array(shape, dtype)
    a, b = data.draw(st.tuples(*[st.integers(-len(shape), len(shape) - 1)] * 2))
    assert_same(worked_out(f"transpose(x, {a}, {b})", x=x), np.swapaxes(x, a, b))
    axes = data.draw(st.permutations(range(len(shape))))
    assert_same(worked_out(f"permute(x, {', '.join(map(str, axes))})", x=x), np.transpose(x, axes))


@fast
@given(st.data(), shapes(), all_dtypes)
def test_slice(data: st.DataObject, shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array(shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    start = data.draw(st.none() | st.integers(-size, size - 1))
    first = 0 if start is None else start % size
    last = data.draw(st.integers(first, size - 1))
    stop = data.draw(st.sampled_from([last + 1, last + 1 - size if last + 1 < size else None]))
    expected = np.take(x, range(size)[start:stop], axis=axis)
    text = f"slice(x, {axis}, {start}, {stop})".replace("None", "none")
    assert_same(worked_out(text, x=x), expected)


@fast
@given(st.data(), shapes(), all_dtypes, st.integers(1, 3))
def test_split(data: st.DataObject, shape: tuple[int, ...], dtype: DType, parts: int) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = random_array((*shape[:axis], shape[axis] * parts, *shape[axis + 1 :]), dtype)
    pieces = [f"split(x, {part}, {parts}, axis={axis})" for part in range(parts)]
    for piece, expected in zip(pieces, np.split(x, parts, axis), strict=True):
        assert_same(worked_out(piece, x=x), expected)
    if parts > 1:
        assert_same(worked_out(f"cat({', '.join(pieces)}, axis={axis})", x=x), x)


@fast
@given(st.data(), shapes(3), all_dtypes)
def test_tokens(data: st.DataObject, shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array(shape, dtype)
    position = data.draw(st.integers(-shape[-2], shape[-2] - 1))
    assert_same(worked_out("last_token(x)", x=x), np.take(x, -1, axis=-2))
    assert_same(worked_out(f"token(x, {position})", x=x), np.take(x, position, axis=-2))
    lone = x.reshape(-1, shape[-1])
    assert_same(worked_out("last_token(x)", x=lone), lone[-1:])
    assert_same(worked_out("token(x, 0)", x=lone), lone[:1])


@fast
@given(shapes(2), all_dtypes, st.integers(1, 4))
def test_heads(shape: tuple[int, ...], dtype: DType, count: int) -> None:
    x = random_array((*shape[:-1], shape[-1] * count), dtype)
    cut = np.stack(np.split(x, count, axis=-1), axis=-2).astype(dtype)
    assert_same(worked_out(f"heads(x, {count})", x=x), cut)
    assert_same(worked_out("swap_heads(x)", x=cut), np.moveaxis(cut, -3, -2))
    assert_same(worked_out("swap_heads(swap_heads(x))", x=cut), cut)


@fast
@given(shapes(), all_dtypes)
def test_rope_order(shape: tuple[int, ...], dtype: DType) -> None:
    x = random_array((*shape[:-1], 2 * shape[-1]), dtype)
    interleaved = np.empty_like(x)
    interleaved[..., 0::2], interleaved[..., 1::2] = np.split(x, 2, axis=-1)
    assert_same(worked_out("interleave(x)", x=x), interleaved)
    assert_same(worked_out("deinterleave(x)", x=interleaved), x)


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


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "squeeze(x, 0)",
        "unsqueeze(x, 1)",
        "reshape(x, 12, 4)",
        "flatten(x, 1, 2)",
        "transpose(x, 1, 3)",
        "permute(x, 3, 1, 2, 0)",
        "slice(x, 1, 1, 3)",
        "split(x, 1, 2)",
        "last_token(x)",
        "token(x, 1)",
        "heads(x, 2)",
        "heads(transpose(x, 1, 2), 2)",
        "swap_heads(x)",
        "cast(x, float32)",
    ],
)
def test_layout_is_a_view(text: str) -> None:
    x = random_array((1, 3, 4, 4), np.dtype(np.float32))
    assert np.shares_memory(worked_out(text, x=x), x)


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
