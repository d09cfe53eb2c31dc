from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from tensordiff.dump.dtypes import DTYPES

torch = pytest.importorskip("torch")
from tensordiff.capture.children.tensors import (  # noqa: E402
    copy,
    dtype_name,
    find,
    find_arguments,
    swap,
    swap_arguments,
    to_array,
    to_tensor,
    why_not_copied,
)  # fmt: skip

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
    assert list(found.tensors) == ["input_0", "input_pair_0", "input_pair_1"]
    assert found.shape == {
        "args": [{"tensor": "input_0"}, 2],
        "kwargs": {"mask": None, "pair": {"tuple": [{"tensor": "input_pair_0"}, {"tensor": "input_pair_1"}]}},
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


def test_a_copy_does_not_change_with_what_it_was_copied_from() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    copied = copy(tensor.t())
    tensor.zero_()
    assert copied.array().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_conjugates_and_negations_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j])
    assert copy(tensor.conj()).array().tolist() == [1 - 2j]
    assert copy(tensor.conj().imag).array().tolist() == [-2]


def test_what_has_no_values_is_said() -> None:
    assert "meta" in str(why_not_copied(torch.empty(2, device="meta")))
    assert "sparse" in str(why_not_copied(torch.eye(2).to_sparse()))
    assert "uint1" in str(why_not_copied(torch.empty(2, dtype=torch.uint1)))
    assert why_not_copied(X) is None
    assert dtype_name(torch.bfloat16) == "bfloat16"
