"""Functions that only change the layout, against plain numpy, on random shapes and every element type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.dump.dtypes import DType
from tests.align.expression.evaluation import all_dtypes, assert_same, fast, random_array, shapes, worked_out


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
