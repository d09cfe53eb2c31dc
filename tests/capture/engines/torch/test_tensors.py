from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from tensordiff.dump.dtypes import DTYPES

torch = pytest.importorskip("torch")
from tensordiff.capture.engines.torch.tensors import (  # noqa: E402
    dtype_name,
    find,
    find_arguments,
    swap,
    swap_arguments,
    to_array,
    to_tensor,
    why_not_copied,
    with_strides,
)

X, Y = torch.ones(2), torch.zeros(3)


@dataclass
class Pair:
    one: Any
    other: Any


class Named(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        (X, ["output"]),
        ((X, None, (Y, 3)), ["output_0", "output_2_0"]),
        ([X, {"k": Y}], ["output_0", "output_1_k"]),
        (OrderedDict(logits=X), ["output_logits"]),
        (Pair(X, Y), ["output_one", "output_other"]),
        (Named(X, "s"), ["output_a"]),
        (None, []),
        (object(), []),
    ],
)
def test_tensors_are_found_wherever_they_are(value: Any, ports: list[str]) -> None:
    assert list(find(value, "output").tensors) == ports


def test_arguments_are_named_by_place_and_by_keyword() -> None:
    found = find_arguments((X, 2), {"mask": None, "pair": (X, Y)})
    pair = [{"tensor": "input_pair_0", "is": "input_0"}, {"tensor": "input_pair_1"}]
    assert list(found.tensors) == ["input_0", "input_pair_0", "input_pair_1"]
    assert found.shape == {
        "args": [{"tensor": "input_0"}, 2],
        "kwargs": {"mask": None, "pair": {"tuple": pair}},
    }


def test_a_value_that_holds_itself_ends() -> None:
    inner: list[Any] = [X]
    inner.append(inner)
    assert "output_0" in find(inner, "output").tensors


@pytest.mark.parametrize("value", [(X, Y), [X, 1], {"a": X, "b": (Y,)}, Pair(X, 2), Named(X, Y)])
def test_swapping_keeps_the_kind_and_what_is_not_named(value: Any) -> None:
    first = next(iter(find(value, "p").tensors))
    put = torch.full((2,), 7.0)
    after = swap(value, "p", {first: put})
    assert type(after) is type(value)
    assert next(iter(find(after, "p").tensors.values())) is put
    assert swap(value, "p", {"elsewhere": put}) is value


def test_arguments_are_swapped_by_place_and_by_keyword() -> None:
    args, kwargs = swap_arguments((X, 1), {"h": X}, {"input_0": Y, "input_h": Y})
    assert args[0] is Y
    assert args[1] == 1
    assert kwargs["h"] is Y


def test_a_cache_is_seen_layer_by_layer_and_filled() -> None:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    assert find(cache, "c").tensors == {}
    for layer in range(2):
        cache.update(torch.full((1, 2, 3, 4), float(layer)), torch.zeros(1, 2, 3, 4), layer)
    assert list(find(cache, "c", cache_layer=1).tensors) == ["c_key", "c_value"]
    assert list(find(cache, "c", whole_caches=True).tensors) == ["c_0_key", "c_0_value", "c_1_key", "c_1_value"]
    swap(cache, "c", {"c_key": torch.full((1, 2, 3, 4), 9.0)}, cache_layer=1)
    assert cache.layers[1].keys.max() == 9
    assert cache.layers[0].keys.max() == 0


TYPES = [name for name in DTYPES if isinstance(getattr(torch, name, None), torch.dtype) and "float4" not in name]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_bits_survive_the_way_to_an_array_and_back(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    count = int(np.prod(shape))
    tensor = torch.arange(count * dtype.itemsize, dtype=torch.uint8).remainder(2).view(dtype).reshape(shape)
    array = to_array(tensor)
    assert (array.dtype, array.shape) == (DTYPES[name], shape)
    back = to_tensor(array)
    assert back.dtype == dtype
    assert to_array(back).tobytes() == array.tobytes()
    assert array.nbytes == tensor.nbytes


def test_conjugates_and_negations_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j])
    assert to_array(tensor.conj()).tolist() == [1 - 2j]
    assert to_array(tensor.conj().imag).tolist() == [-2]


def test_what_has_no_values_is_said() -> None:
    assert "meta" in str(why_not_copied(torch.empty(2, device="meta")))
    assert "sparse" in str(why_not_copied(torch.eye(2).to_sparse()))
    assert "uint1" in str(why_not_copied(torch.empty(2, dtype=torch.uint1)))
    assert why_not_copied(X) is None
    assert dtype_name(torch.bfloat16) == "bfloat16"


@dataclass(frozen=True)
class Frozen:
    one: Any
    count: int = field(init=False, default=3)


class Listed(list[Any]):
    pass


def counted() -> Any:
    made: Any = defaultdict(list, {"q": X, 3: X})
    return made


@pytest.mark.parametrize("value", [Frozen(X), counted(), Listed([X]), torch.max(torch.eye(2), 0)])
def test_swapping_keeps_what_else_a_container_is(value: Any) -> None:
    found = find(value, "p").tensors
    after = swap(value, "p", {port: torch.full_like(tensor, 7) for port, tensor in found.items()})
    assert type(after) is type(value)
    assert all(tensor.unique().item() == 7 for tensor in find(after, "p").tensors.values())
    assert all(tensor is found[port] for port, tensor in find(value, "p").tensors.items())
    if isinstance(value, Frozen):
        assert after.count == 3
    if isinstance(value, defaultdict):
        assert after["new"] == []
        assert list(after) == ["q", 3, "new"]


def test_a_call_says_what_tensors_alone_do_not() -> None:
    square = torch.eye(3)
    found = find_arguments((square.t()[:2], square.t), {"n": Named(X, 1), "d": {4: torch.float16}})
    assert found.shape == {
        "args": [{"tensor": "input_0", "strides": [1, 3]}, {"object": "builtin_function_or_method"}],
        "kwargs": {
            "n": {"tuple": [{"tensor": "input_n_a"}, 1], "class": f"{__name__}:Named"},
            "d": {"dict": {"4": {"dtype": "float16"}}, "keys": [4]},
        },
    }


@pytest.mark.parametrize(
    "like",
    [
        torch.zeros(4, 3).t(),
        torch.zeros(3, 8)[:, ::2],
        torch.zeros(3, 4, 5)[..., 1],
        torch.zeros(3, 4),
        torch.zeros(4, 0).t(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.bool])
def test_values_are_laid_out_like_another_tensor(like: Any, dtype: Any) -> None:
    values = torch.arange(like.numel()).reshape(like.shape).to(dtype)
    made = with_strides(values, like.stride())
    assert made.stride() == like.stride()
    assert to_array(made).tobytes() == to_array(values).tobytes()
    assert made.data_ptr() != values.data_ptr() or not like.numel()


def test_memory_is_shared_only_by_equal_values() -> None:
    like = torch.zeros(3, 1).expand(3, 4)
    same, other = torch.tensor([[1.0], [2.0], [float("nan")]]).expand(3, 4), torch.arange(12.0).reshape(3, 4)
    assert with_strides(same.contiguous(), like.stride()).stride() == (1, 0)
    assert with_strides(other, like.stride()).tolist() == other.tolist()
    assert with_strides(other, (1, 1)).tolist() == other.tolist()


def test_a_decoder_s_two_caches_are_told_apart_and_filled() -> None:
    transformers = pytest.importorskip("transformers")
    own, cross = transformers.DynamicCache(), transformers.DynamicCache()
    own.update(torch.full((1, 2, 3, 4), 1.0), torch.full((1, 2, 3, 4), 2.0), 0)
    cross.update(torch.full((1, 2, 5, 4), 3.0), torch.full((1, 2, 5, 4), 4.0), 0)
    cache = transformers.EncoderDecoderCache(own, cross)
    looks = {"hidden_states": torch.ones(1, 1, 4), "key_value_states": torch.ones(1, 5, 4), "cache": cache}
    ports = [f"input_cache_{name}" for name in ("key", "value", "cross_key", "cross_value")]
    found = find_arguments((), looks, cache_layer=0)
    assert [found.tensors[port].unique().item() for port in ports] == [1, 2, 3, 4]
    assert found.shape["kwargs"]["cache"] == {"object": "EncoderDecoderCache", "filled": True}
    alone = find_arguments((looks["hidden_states"],), {"cache": cache}, cache_layer=0)
    assert list(alone.tensors) == ["input_0", *ports[:2]]
    assert list(find(cache, "c", whole_caches=True).tensors) == [
        "c_0_key",
        "c_0_value",
        "c_0_cross_key",
        "c_0_cross_value",
    ]
    swap_arguments((), looks, {"input_cache_cross_key": torch.full((1, 2, 5, 4), 9.0)}, cache_layer=0)
    assert (cross.layers[0].keys.max(), own.layers[0].keys.max()) == (9, 1)
