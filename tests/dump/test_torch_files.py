from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordiff.dump import Dump, open_dump
from tensordiff.errors import BadFile, DumpError
from tests.dump.torch_crafting import zipped

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


def bits(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def save(value: object, path: Path, **how: Any) -> Path:
    torch.save(value, path, **how)
    return path


def check(dump: Dump, expected: dict[str, torch.Tensor]) -> None:
    """The entries are these tensors, in this order, bit for bit."""
    assert [e.name for e in dump.entries] == list(expected)
    for found, tensor in zip(dump.entries, expected.values(), strict=True):
        array = found.read()
        shape, dtype = found.spec
        assert (array.shape, array.dtype) == (shape, dtype)
        assert (shape, f"torch.{dtype}") == (tuple(tensor.shape), str(tensor.dtype))
        assert array.tobytes() == bits(tensor)
        assert not array.flags.writeable


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


BASE = torch.arange(4 * 6 * 5, dtype=torch.float32).reshape(4, 6, 5)
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
    assert [p.file for p in dump.problems] == ["x.pt"]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "to_dense"),
    "sparse_csr": (lambda: torch.eye(2).to_sparse_csr(), "to_dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "dequantize"),
    "by_channel": (
        lambda: torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8),
        "dequantize",
    ),
    "meta": (lambda: torch.ones(2, device="meta"), "no values"),
    "complex32": (lambda: torch.ones(2, dtype=torch.complex32), "torch.complex32"),
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


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.ones(2), "numpy"),
        (Path("x"), "pathlib"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (torch.ones(2).as_subclass(Kept), "tests.dump.test_torch_files.Kept"),
    ],
    ids=["array", "path", "module", "subclass"],
)
def test_what_only_python_could_load_is_named(tmp_path: Path, value: object, named: str) -> None:
    path = save({"t": BASE, "x": value}, tmp_path / "x.pt")
    with pytest.raises(BadFile, match=rf"x\.pt: needs {named}.*will not run.*torch\.save\("):
        open_dump(path)


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


def hook_dump(folder: Path, names: list[str], text: str | None = None) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.full((2,), float(i)) for i, name in enumerate(names)}
    for name, tensor in tensors.items():
        save(tensor, folder / f"{name}.pt")
    (folder / "tensor_names.txt").write_text("\n".join(names) + "\n" if text is None else text)
    return tensors


def test_hooked_folder_stands_in_the_order_it_ran(tmp_path: Path) -> None:
    tensors = hook_dump(tmp_path, ["model.b-output", "model.a(2)-input_0", "model.a-output_10", "model-output"])
    dump = open_dump(tmp_path)
    check(dump, tensors)
    assert (dump.format, dump.ordered, dump.problems) == ("torch-hook", True, ())
    assert dump.entries[1][1:4] == ("model.a", "input_0", 2)


def test_hooked_folders_of_steps(tmp_path: Path) -> None:
    first = hook_dump(tmp_path / "0", ["b", "a"])
    second = hook_dump(tmp_path / "1", ["b", "a"])
    dump = open_dump(tmp_path)
    assert (dump.format, dump.ordered) == ("torch-hook", True)
    assert [(e.step, e.name) for e in dump.entries] == [(0, "b"), (0, "a"), (1, "b"), (1, "a")]
    assert [e.read().tobytes() for e in dump.entries] == [bits(t) for t in (*first.values(), *second.values())]


def test_names_and_files_that_do_not_agree(tmp_path: Path) -> None:
    tensors = hook_dump(tmp_path, ["c", "x10", "x9", "a"], "gone\nc\r\n\na\nc\n")
    dump = open_dump(tmp_path)
    check(dump, {name: tensors[name] for name in ("c", "a", "x9", "x10")})
    assert [p.file for p in dump.problems] == ["gone.pt", "c.pt"]
    assert "2 times" in dump.problems[1].sentence


def test_names_that_the_file_system_could_not_hold(tmp_path: Path) -> None:
    tensors = hook_dump(tmp_path, ["a_b_c", "blocks[_0]-output", "d_e"], "blocks[/0]-output\na/b:c\nd_e\nd e\n")
    dump = open_dump(tmp_path)
    expected = {"blocks[/0]-output": "blocks[_0]-output", "a/b:c": "a_b_c", "d_e": "d_e"}
    check(dump, {name: tensors[file] for name, file in expected.items()})
    assert [p.file for p in dump.problems] == ["d e.pt"]


def test_flat_folder_stands_in_natural_order(tmp_path: Path) -> None:
    tensors = {f"l{i}": torch.full((1,), float(i)) for i in (1, 2, 9, 10, 11)}
    for name, tensor in reversed(tensors.items()):
        save(tensor, tmp_path / f"{name}{'.pth' if name == 'l9' else '.PT'}")
    dump = open_dump(tmp_path)
    assert (dump.format, dump.ordered, dump.problems) == ("torch", False, ())
    check(dump, tensors)


def test_files_of_one_stem_are_told_apart(tmp_path: Path) -> None:
    for file in ("a.pt", "a.pth", "b.pt"):
        save(BASE, tmp_path / file)
    assert [e.name for e in open_dump(tmp_path).entries] == ["a.pt", "a.pth", "b"]


def test_bin_files_count_if_the_first_is_torchs(tmp_path: Path) -> None:
    for folder, first in (("yes", None), ("no", b"raw floats")):
        (tmp_path / folder).mkdir()
        save(BASE, tmp_path / folder / "x.pt")
        save(BASE, tmp_path / folder / "y.bin")
        if first is None:
            save(BASE, tmp_path / folder / "a.bin", _use_new_zipfile_serialization=False)
        else:
            (tmp_path / folder / "a.bin").write_bytes(first)
    check(open_dump(tmp_path / "yes"), {"a": BASE, "x": BASE, "y": BASE})
    check(open_dump(tmp_path / "no"), {"x": BASE})


def test_a_file_of_a_folder_with_several_tensors_is_to_be_opened_itself(tmp_path: Path) -> None:
    save({"a": BASE, "b": BASE}, tmp_path / "many.pt")
    save({"only": BASE}, tmp_path / "one.pt")
    save({"nothing": 1}, tmp_path / "none.pt")
    many, none, one = open_dump(tmp_path).entries
    with pytest.raises(BadFile, match=r"many\.pt: holds 2 tensors \(a, b.*on its own"):
        _ = many.spec
    with pytest.raises(BadFile, match=r"none\.pt: holds no tensor"):
        none.read()
    assert (one.name, one.read().tobytes()) == ("one", bits(BASE))


def test_a_folder_with_one_file_of_several_tensors_is_that_file(tmp_path: Path) -> None:
    save({"b": BASE, "a": BASE[0]}, tmp_path / "Pass00000.pt")
    dump = open_dump(tmp_path)
    check(dump, {"b": BASE, "a": BASE[0]})
    assert (dump.path, dump.ordered) == (tmp_path, True)


def test_sglang_files_are_one_tensor_each(tmp_path: Path) -> None:
    stem = "step=0___rank=0___dump_index={}___name=layers.0"
    for i in (2, 10):
        meta = {"step": 0, "name": "layers.0", "world": {"tp_rank": 0}, "extra": torch.ones(1)}
        save({"value": BASE[i % 4], "meta": meta}, tmp_path / f"{stem.format(i)}.pt")
    check(open_dump(tmp_path), {stem.format(2): BASE[2], stem.format(10): BASE[2]})
    check(open_dump(tmp_path / f"{stem.format(2)}.pt"), {stem.format(2): BASE[2]})


def test_files_with_the_same_pickle_keep_their_own_numbers(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(9, 256) for i in range(20)}
    for name, tensor in tensors.items():
        save(tensor, tmp_path / f"{name}.pt")
    check(open_dump(tmp_path), tensors)


def test_a_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    for name, new in (("dump", True), ("model.layers.0-output", False), ("x" * 200, True)):
        path = save(BASE, tmp_path / name, _use_new_zipfile_serialization=new)
        check(open_dump(path), {name: BASE})


def test_opening_a_folder_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(20_000):
        os.close(os.open(tmp_path / f"layers.{i}.mlp-output.pt", os.O_CREAT))
    opened: list[object] = []
    real = os.open

    def noted(path: object, *args: Any, **kwargs: Any) -> int:
        opened.append(path)
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", noted)
    started = time.perf_counter()
    dump = open_dump(tmp_path)
    took = time.perf_counter() - started
    assert len(dump) == 20_000
    assert len(opened) <= 1
    assert took < 2
    with pytest.raises(BadFile, match=r"layers\.19999\.mlp-output\.pt: is empty"):
        _ = dump.entries[-1].spec


def mapped(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts mappings as Linux lists them")
def test_a_folders_files_are_mapped_only_while_read(tmp_path: Path) -> None:
    for i in range(5):
        save(torch.randn(200, 200), tmp_path / f"{i}.pt")
    dump = open_dump(tmp_path)
    arrays = [e.read() for e in dump.entries if e.spec]
    assert mapped(tmp_path) == 5
    del arrays
    assert mapped(tmp_path) == 0


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = save({"a": BASE, "b": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "x.pt")
    code = (
        "import sys; from tensordiff.dump import open_dump\n"
        f"print(sum(float(e.read().sum()) for e in open_dump({str(path)!r}).entries))\n"
        "sys.exit('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr, float(ran.stdout)) == (0, "", float(BASE.sum()) + 3)


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
