from __future__ import annotations

import io
import pickle
import tarfile
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from tensordiff.dump import open_dump
from tensordiff.errors import BadFile, DumpError
from tests.dump.readers.torch.torch_samples import BASE, bits, check, save, zipped

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Every bit pattern may occur; a bool has only two."""
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    raw = np.random.default_rng(7).integers(0, 256, count, np.uint8)
    if dtype is torch.bool:
        raw &= 1
    return torch.frombuffer(bytearray(raw.tobytes()), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_as_torch_loads_it(tmp_path: Path, dtype: torch.dtype, new: bool) -> None:
    tensor = random_tensor(dtype, 3, 5)
    path = save(tensor, tmp_path / "x.pt", _use_new_zipfile_serialization=new)
    dump = open_dump(path)
    assert (dump.format, dump.ordered) == ("torch", True)
    check(dump, {"x": tensor})
    if new:  # torch cannot load the newest dtypes from its oldest layout
        check(dump, {"x": torch.load(path)})


VIEWS = {
    "whole": BASE,
    "transposed": BASE.transpose(0, 2),
    "permuted": BASE.permute(1, 2, 0),
    "sliced": BASE[1:3, ::2, 1:],
    "row": BASE[2],
    "scalar": BASE[1, 2, 3],
    "new_axis": BASE[:, None],
    "expanded": BASE[0, 0].expand(3, 7, 5),
    "expanded_scalar": torch.tensor(2.5).expand(3, 4),
    "overlapping": BASE.flatten().unfold(0, 8, 3),
    "odd_stride_along_one": torch.as_strided(BASE, (1, 6, 1), (7, 5, 99)),
    "empty": torch.zeros(0),
    "empty_axis": torch.zeros(3, 0, 5),
    "empty_slice": BASE[:, 3:3],
    "zero_dim": torch.tensor(7.0),
    "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "large": torch.randn(300, 300),
    "large_view": torch.randn(300, 300)[5:200, ::3].T,
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "needs_grad": torch.randn(3, requires_grad=True),
    "computed": torch.randn(3, requires_grad=True).detach(),
    "nan": torch.tensor([float("nan"), float("inf"), -0.0, -float("inf")]),
    "conjugated": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "conjugated_view": torch.randn(3, 4, dtype=torch.complex128).T.conj()[1:],
    "negated": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "adjoint": torch.randn(3, 4, dtype=torch.complex64).adjoint(),
}


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_as_torch_loads_it(tmp_path: Path, name: str, new: bool) -> None:
    path = save(VIEWS[name], tmp_path / f"{name}.pt", _use_new_zipfile_serialization=new)
    check(open_dump(path), {name: torch.load(path)})


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_tensors_that_share_a_storage(tmp_path: Path, new: bool) -> None:
    shared = {"a": BASE, "b": BASE[1], "c": BASE.mT[2:], "d": torch.randn(3), "e": BASE[3, 5, 4]}
    check(open_dump(save(shared, tmp_path / "x.pt", _use_new_zipfile_serialization=new)), shared)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_every_pickle_protocol(tmp_path: Path, protocol: int, new: bool) -> None:
    value = {"a": BASE, "b": [BASE[0], {"c": torch.zeros(2, dtype=torch.uint16)}], "n": b"x", "s": {1, 2}}
    path = save(value, tmp_path / "x.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    check(open_dump(path), {"a": BASE, "b_0": BASE[0], "b_1.c": value["b"][1]["c"]})


def test_names_are_paths_of_keys(tmp_path: Path) -> None:
    t = [torch.tensor(float(i)) for i in range(9)]
    value = OrderedDict(
        z=t[0],
        a={"b": t[1], "c": {"d": t[2]}},
        s=[t[3], (t[4], t[5])],
        n=defaultdict(list, {0: [t[6]]}),
        e=[],
    )
    value["layer.0-output"] = (t[7], None, t[8])
    names = ["z", "a.b", "a.c.d", "s_0", "s_1_0", "s_1_1", "n.0_0", "layer.0-output_0", "layer.0-output_2"]
    dump = open_dump(save(value, tmp_path / "x.pt"))
    check(dump, dict(zip(names, t, strict=True)))
    assert (dump.entries[-1].layer, dump.entries[-1].port) == ("layer.0", "output_2")
    check(open_dump(save([t[0], t[1]], tmp_path / "acts.pth")), {"acts_0": t[0], "acts_1": t[1]})


def test_a_list_saved_under_many_keys_is_listed_under_each(tmp_path: Path) -> None:
    shared = [torch.tensor(float(i)) for i in range(100)]
    dump = open_dump(save({f"k{n}": shared for n in range(12)}, tmp_path / "x.pt"))
    check(dump, {f"k{n}_{i}": tensor for n in range(12) for i, tensor in enumerate(shared)})


def test_what_is_no_tensor_is_passed_over(tmp_path: Path) -> None:
    value = {
        "n": 1, "f": 2.5, "big": 10**30, "s": "text", "y": b"bytes\xff", "none": None, "yes": True,
        "set": {1},
        "complex": 1j, "array": bytearray(b"x"), "size": torch.Size([1, 2]), "device": torch.device("cpu"),
        "dtype": torch.bfloat16, "layout": torch.strided, "count": Counter("aab"), ("a", 1): 3, "t": BASE,
    }  # fmt: skip
    check(open_dump(save(value, tmp_path / "x.pt")), {"t": BASE})


def test_a_state_dict(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    check(open_dump(save(model.state_dict(), tmp_path / "x.bin")), dict(model.state_dict()))


def test_a_tensor_with_attributes(tmp_path: Path) -> None:
    tensor, parameter = BASE.clone(), torch.nn.Parameter(torch.ones(2))
    tensor.note = parameter.note = "x"
    check(open_dump(save({"t": tensor, "p": parameter}, tmp_path / "x.pt")), {"t": tensor, "p": parameter})


def test_two_tensors_of_one_name_are_told(tmp_path: Path) -> None:
    dump = open_dump(save({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}, tmp_path / "x.pt"))
    check(dump, {"a.b": torch.ones(1)})
    assert [(p.file, p.is_unread) for p in dump.problems] == [("x.pt", True)]
    assert dump.unread == [f"{tmp_path}/x.pt: has two tensors named 'a.b'; the first is kept"]


def test_keys_that_become_one_name_are_told(tmp_path: Path) -> None:
    dump = open_dump(save({1: torch.ones(1), "1": torch.zeros(1)}, tmp_path / "x.pt"))
    assert [entry.name for entry in dump.entries] == ["1"]
    assert [p.is_unread for p in dump.problems] == [True]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "to_dense"),
    "sparse_csr": (lambda: torch.eye(2).to_sparse_csr(), "to_dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "dequantize"),
    "by_channel": (
        lambda: torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8),
        "dequantize",
    ),
    "meta": (lambda: torch.ones(2, device="meta"), "no values"),
    "complex32": (
        lambda: torch.ones(2, dtype=torch.complex32),
        "torch.complex32.* save it .to.torch.complex64",
    ),
    "bits": (
        lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
        "torch.bits8.* save its .view.torch.uint8",
    ),
    "packed": (lambda: torch.ones(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "float4_e2m1fn_x2"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "unbind"),
    "storage": (lambda: torch.ones(2).untyped_storage(), "bare storage"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_numbers_is_refused_alone(tmp_path: Path, kind: str) -> None:
    make, hint = REFUSED[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dump = open_dump(save({"odd": make(), "fine": BASE}, tmp_path / "x.pt"))
    odd, fine = dump.entries
    with pytest.raises(BadFile, match=f"x.pt.*'odd'.*{hint}"):
        _ = odd.spec
    with pytest.raises(BadFile, match=hint):
        odd.read()
    assert fine.read().tobytes() == bits(BASE)


class Kept(torch.Tensor):  # type: ignore[misc]
    pass


class Odd:
    def __init__(self, **state: object) -> None:
        self.__dict__.update(state)


class OddArray(Odd):
    pass


def test_objects_of_other_classes_are_data(tmp_path: Path) -> None:
    circle = Odd(inner=Odd(t=BASE), path=Path("x"))
    circle.__dict__["inner"].outer = circle
    value = {"t": BASE, "o": circle, "linear": torch.nn.Linear(1, 1, bias=False), "s": torch.ones(2).as_subclass(Kept)}
    dump = open_dump(save(value, tmp_path / "x.pt"))
    weight = value["linear"].weight
    check(dump, {"t": BASE, "o.inner.t": BASE, "linear.weight": weight, "s": torch.ones(2)})


class GenerateDecoderOnlyOutput(Odd):
    """As transformers' own, which takes seconds to import."""


def test_what_generate_returns_is_of_steps(tmp_path: Path) -> None:
    """Each field holds a tuple of all steps; the cache is as the last of them left it."""
    hidden = tuple(tuple(torch.full((1, 1, 2), 10.0 * step + i) for i in range(3)) for step in range(2))
    logits = tuple(torch.full((1, 4), 10.0 * step) for step in range(2))
    cache = Odd(layers=[Odd(keys=torch.ones(3))])
    made = GenerateDecoderOnlyOutput(scores=logits, logits=logits, hidden_states=hidden, past_key_values=cache)
    found = [(entry.layer, entry.port, entry.step) for entry in open_dump(save(made, tmp_path / "x.pt")).entries]
    layers = [("layers.0", "input_0"), ("layers.0", "output"), ("norm", "output")]
    last = ("model", "output_next_token_logits")
    assert [at for at in found if "past" not in at[1]] == [(*at, step) for step in range(2) for at in (*layers, last)]
    assert [at for at in found if "past" in at[1]] == [("model", "output_past_key_values_layers_0_keys", 1)]


def test_what_looks_like_values_and_cannot_be_read_is_named(tmp_path: Path) -> None:
    dump = open_dump(save({"t": BASE, "x": OddArray(a=1), "y": Odd(raw=b"x" * 100)}, tmp_path / "x.pt"))
    fine, *refused = dump.entries
    assert fine.read().tobytes() == bits(BASE)
    for entry in refused:
        with pytest.raises(BadFile, match=r"is an object of .*Odd.*plain tensor"):
            entry.read()
    assert [entry.name for entry in refused] == ["x", "y"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "i8", "b1", "c8"])
def test_numpy_values(tmp_path: Path, protocol: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(3, 4)).astype(dtype),
        "f": np.asfortranarray(rng.normal(size=(3, 4)).astype(dtype)),
        "zero": np.zeros((0, 3), dtype),
        "large": rng.integers(0, 255, (300, 300)).astype(dtype),
        "scalar": np.dtype(dtype).type(3),
    }
    path = save({**arrays, "t": BASE}, tmp_path / "x.pt", pickle_protocol=protocol)
    entries = {entry.name: entry for entry in open_dump(path).entries}
    assert entries.pop("t").read().tobytes() == bits(BASE)
    for name, array in arrays.items():
        values = entries.pop(name).read()
        assert values.dtype == array.dtype.newbyteorder("=") and not values.flags.writeable
        np.testing.assert_array_equal(values, array)
    assert not entries


def test_numpy_bfloat16(tmp_path: Path) -> None:
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    (found,) = open_dump(save({"a": array}, tmp_path / "x.pt")).entries
    assert found.read().dtype == array.dtype and found.read().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["text"]), np.zeros(2, [("x", "f4")])], ids=str)
def test_numpy_values_that_are_no_numbers_refuse_themselves(tmp_path: Path, array: object) -> None:
    odd, fine = open_dump(save({"odd": array, "fine": BASE}, tmp_path / "x.pt")).entries
    with pytest.raises(BadFile, match="'odd'"):
        odd.read()
    assert fine.read().tobytes() == bits(BASE)


def other_way_round(path: Path, order: bytes | None) -> None:
    """Rewrite a torch file as a machine of another byte order would have written it."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    folder = next(iter(members)).partition("/")[0]
    del members[f"{folder}/byteorder"]
    if order is not None:
        members[f"{folder}/byteorder"] = order
    path.write_bytes(zipped(members))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_big_endian(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 6, 5)
    width = tensor.element_size() // (2 if dtype.is_complex else 1)
    swapped = np.frombuffer(bits(tensor), f"u{width}").byteswap().tobytes()
    turned = torch.frombuffer(bytearray(swapped), dtype=dtype).reshape(6, 5)
    path = save({"a": turned[1:4].T, "b": turned[0, 0]}, tmp_path / "x.pt")
    other_way_round(path, b"big")
    check(open_dump(path), {"a": tensor[1:4].T, "b": tensor[0, 0]})


def test_a_file_that_names_no_byte_order_is_little_endian(tmp_path: Path) -> None:
    path = save(BASE, tmp_path / "x.pt")
    other_way_round(path, None)
    check(open_dump(path), {"x": BASE})


def test_an_unknown_byte_order_is_refused(tmp_path: Path) -> None:
    path = save(BASE, tmp_path / "x.pt")
    other_way_round(path, b"middle")
    with pytest.raises(BadFile, match="byte order"):
        open_dump(path).entries[0].read()


def script(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)), path)


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())


OTHERS: dict[str, Callable[[Path], object]] = {
    "TorchScript": script,
    "tar file": tarred,
    "is empty": lambda path: path.write_bytes(b""),
    "did not write": lambda path: path.write_bytes(pickle.dumps({"a": 1}, protocol=2)),
    "git lfs pull": lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "not a file of torch.save": lambda path: path.write_bytes(b"hello"),
    "without a data.pkl": lambda path: path.write_bytes(zipped({"a/b": b""})),
}


@pytest.mark.parametrize("says", OTHERS)
def test_other_files_get_a_sentence(tmp_path: Path, says: str) -> None:
    OTHERS[says](tmp_path / "x.pt")
    with pytest.raises(DumpError, match=rf"x\.pt: .*{says}"):
        open_dump(tmp_path / "x.pt")
