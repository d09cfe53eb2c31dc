"""What a known layout gives is what reading the file in full gives, whatever its bytes."""

from __future__ import annotations

import struct
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.dump.readers.torch import layouts
from tensordiff.dump.readers.torch.archive import open_archive_bytes
from tensordiff.dump.readers.torch.layouts import Layouts
from tensordiff.dump.readers.torch.reader import TorchFile, tensor_of
from tensordiff.dump.readers.torch.tensors import Tensor
from tensordiff.errors import BadFile
from tests.dump.file_damage import FUZZ, mutated
from tests.dump.readers.torch.torch_samples import bits, save, tensor, torch_zip

Values = tuple[object, object, bytes]


@pytest.fixture(autouse=True)
def learns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_WORTH_KEEPING", 1)


def file_of(folder: Path, value: object, name: str = "model.layer-output.pt") -> bytes:
    return save(value, folder / name).read_bytes()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return file_of(tmp_path_factory.mktemp("sample"), torch.arange(6.0).reshape(2, 3))


def in_full(data: bytes) -> Values:
    array = tensor_of(open_archive_bytes("a.pt", data), "a")
    return array.shape, array.dtype, array.tobytes()


def by_layout(known: Layouts, data: bytes) -> Values | None:
    layout = known.find(data)
    if layout is None:
        return None
    array = layout.values(data, "a.pt")
    return array.shape, array.dtype, array.tobytes()


def learned(data: bytes) -> Layouts:
    known = Layouts()
    open_archive_bytes("a.pt", data).teach(known)
    return known


def assert_same(known: Layouts, data: bytes) -> bool:
    """Whether the layout is known; then the file must be readable in full, and give the same."""
    found = by_layout(known, data)
    assert found is None or found == in_full(data)
    return found is not None


ALIKE = [
    (torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)),
    (torch.tensor(3, dtype=torch.int64), torch.tensor(-1, dtype=torch.int64)),
    (torch.ones(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)),
    (torch.linspace(0, 1, 7).to(torch.bfloat16), torch.ones(7).to(torch.bfloat16)),
    (torch.linspace(0, 1, 7).to(torch.float8_e5m2), torch.ones(7).to(torch.float8_e5m2)),
    (torch.arange(12.0)[3:9], torch.ones(12)[3:9]),
    (torch.nn.Parameter(torch.rand(3, 1, 2)), torch.nn.Parameter(torch.rand(3, 1, 2))),
    (torch.rand(200, 200), torch.rand(200, 200)),
]


@pytest.mark.parametrize("one, other", ALIKE, ids=[f"{one.dtype}-{list(one.shape)}" for one, _ in ALIKE])
def test_another_file_of_the_same_shape_is_recognised(one: torch.Tensor, other: torch.Tensor, tmp_path: Path) -> None:
    known = learned(file_of(tmp_path, one, "layers.10-output.pt"))
    data = file_of(tmp_path, other, "layers.11-output.pt")
    found = by_layout(known, data)
    assert found is not None
    assert found == in_full(data)
    assert found[2] == bits(other)


UNKNOWN = {
    "a view with strides": torch.arange(6.0).reshape(2, 3).T,
    "an empty tensor": torch.ones(0, 3),
    "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
    "two tensors": [torch.ones(2), torch.ones(2)],
    "a dict": {"a": torch.ones(2)},
}


@pytest.mark.parametrize("value", UNKNOWN.values(), ids=list(UNKNOWN))
def test_anything_but_a_plain_tensor_is_read_in_full(value: object, tmp_path: Path) -> None:
    data = file_of(tmp_path, value)
    assert learned(data).find(data) is None


def test_files_that_differ_only_in_their_pickle_are_told_apart(tmp_path: Path) -> None:
    flat, square = (file_of(tmp_path, torch.arange(4.0).reshape(shape)) for shape in ((1, 4), (2, 2)))
    known = learned(flat)
    assert len(flat) == len(square)
    assert by_layout(known, square) is None
    open_archive_bytes("b.pt", square).teach(known)
    assert by_layout(known, square) == in_full(square)
    assert by_layout(known, flat) == in_full(flat)


def test_every_byte_of_a_file(sample: bytes) -> None:
    """Any byte may differ: either the layout is unknown then, or all is as if the file were read in full."""
    known = learned(sample)
    assert assert_same(known, sample)
    recognised = 0
    for at in range(len(sample)):
        for other in (sample[at] ^ 1, sample[at] ^ 0xFF):
            recognised += assert_same(known, sample[:at] + bytes([other]) + sample[at + 1 :])
    assert 0 < recognised < len(sample)
    assert not any(assert_same(known, sample[:end]) for end in range(len(sample)))


@FUZZ
@given(st.data())
def test_damaged_files(sample: bytes, data: st.DataObject) -> None:
    assert_same(learned(sample), data.draw(mutated(sample)))


@FUZZ
@given(st.data())
def test_what_is_learned_of_a_damaged_file(sample: bytes, data: st.DataObject) -> None:
    """A file that is just readable teaches nothing wrong, whatever a second one has in the place of its folder."""
    first = data.draw(mutated(sample))
    try:
        known = learned(first)
    except BadFile:
        return
    folder = first[30:].partition(b"/")[0]
    name = data.draw(st.binary(min_size=len(folder), max_size=len(folder)))
    second = first.replace(folder, name)
    assert_same(known, first)
    assert_same(known, second)
    assert_same(known, data.draw(mutated(second)))


def test_a_folder_within_the_folder_is_another_name(sample: bytes) -> None:
    """The reader takes what stands before the first slash, and finds no pickle there."""
    folder = b"model.layer-output"
    other = sample.replace(folder, b"model/layer-output")
    assert len(other) == len(sample)
    assert learned(sample).find(sample.replace(folder, b"model.layer-outpux")) is not None
    assert learned(sample).find(other) is None
    with pytest.raises(BadFile, match=r"data\.pkl"):
        in_full(other)


def plain_zip(**more: bytes) -> bytes:
    return torch_zip(tensor(), **more)


def test_a_zip_of_another_program_is_recognised_too() -> None:
    assert assert_same(learned(plain_zip(version=b"3")), plain_zip(version=b"3"))


def test_what_is_laid_out_as_no_torch_file_teaches_nothing() -> None:
    data = plain_zip(byteorder=b"little")  # behind the values, where it is not looked for
    assert learned(data).find(data) is None
    end, row = len(data) - 22, data.rindex(b"a/data/0") - 46
    moved = {
        "a table in 64 bits": (end + 10, "<H", 0xFFFF),
        "a comment": (end + 20, "<H", 1),
        "values before the pickle": (row + 42, "<I", 0),
    }
    for what, (at, form, value) in moved.items():
        changed = bytearray(data)
        struct.pack_into(form, changed, at, value)
        try:
            known = learned(bytes(changed))
        except BadFile:
            continue
        assert known.find(bytes(changed)) is None, what


def test_a_storage_that_is_cut_short_teaches_nothing(sample: bytes) -> None:
    count = sample.index(b"cpuq") + 6  # behind it, K and the number of elements
    data = sample[:count] + bytes([sample[count] + 1]) + sample[count + 1 :]
    with pytest.raises(BadFile, match="holds 24 of 28 bytes"):
        in_full(data)
    assert learned(data).find(data) is None


def test_values_in_another_byte_order_are_read_in_full() -> None:
    little, big = (zip_of(order) for order in (b"little", b"big"))
    assert in_full(big)[2] == np.frombuffer(in_full(little)[2], np.float32).byteswap().tobytes()
    assert learned(little).find(little) is not None
    assert learned(big).find(big) is None


def zip_of(byteorder: bytes) -> bytes:
    """A file of torch as it is written today: the byte order comes before the values."""
    made = BytesIO()
    with zipfile.ZipFile(BytesIO(plain_zip())) as plain, zipfile.ZipFile(made, "w") as target:
        names = plain.namelist()
        for name in names:
            if "/data/" in name:
                target.writestr(f"{names[0].partition('/')[0]}/byteorder", byteorder)
            target.writestr(name, plain.read(name))
    return made.getvalue()


def test_only_so_many_layouts_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(layouts, "_MOST_KEYS", 3)
    known = Layouts()
    files = [file_of(tmp_path, torch.ones(64 * size)) for size in range(1, 6)]
    for data in files:
        open_archive_bytes("a.pt", data).teach(known)
    assert [known.find(data) is not None for data in files] == [False, False, False, True, True]
    monkeypatch.setattr(layouts, "_MOST_ALIKE", 1)
    square = file_of(tmp_path, torch.ones(32, 10))
    open_archive_bytes("a.pt", square).teach(known)
    assert known.find(files[-1]) is not None


def test_a_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_WORTH_KEEPING", 4)
    values = [torch.full((3, 2), float(k)) for k in range(10)]
    for k, value in enumerate(values):
        save(value, tmp_path / f"l{k}.pt")
    for k, value in enumerate(values):
        file = TorchFile(str(tmp_path), f"l{k}.pt")
        array = file.read()
        assert array.tobytes() == bits(value)
        assert not array.flags.writeable
        assert file.spec == (array.shape, array.dtype)
    (tmp_path / "l9.pt").write_bytes((tmp_path / "l9.pt").read_bytes()[:-1])
    with pytest.raises(BadFile, match="truncated or damaged"):
        TorchFile(str(tmp_path), "l9.pt").read()


def test_what_is_learned_says_where_the_values_lie(sample: bytes) -> None:
    archive, layout = open_archive_bytes("a.pt", sample), learned(sample).find(sample)
    assert isinstance(archive.value, Tensor)
    assert layout is not None
    assert layout.spec == archive.value.spec
    assert sample[layout.start : layout.start + 4] == struct.pack("<f", 0)
