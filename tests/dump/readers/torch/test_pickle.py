from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordiff.dump import open_dump
from tensordiff.dump.readers.torch.pickle import unpickle
from tensordiff.dump.readers.torch.tensors import BadPickle
from tensordiff.errors import BadFile
from tests.dump.file_damage import allocating_under, ask
from tests.dump.readers.torch.torch_samples import (
    FLOATS,
    ORDERED,
    REBUILD,
    UNTYPED,
    Call,
    Global,
    Raw,
    Saved,
    opcodes,
    opened,
    saved,
    tensor,
    torch_zip,
)


def test_crafted_files_are_read_when_they_tell_the_truth(tmp_path: Path) -> None:
    """Otherwise nothing below would prove anything."""
    numbers = np.arange(4, dtype=np.float32)
    (found,) = opened(tmp_path, torch_zip({"a": tensor()}, numbers.tobytes())).entries
    assert found.read().tolist() == [0, 1, 2, 3]


# What a pickle may ask for


class Runs:
    """Pickled, this is a call."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        (os.system, ["touch {}"], "posix.system"),
        (eval, ["open('{}', 'w')"], r"\w+.eval"),
        (exec, ["open('{}', 'w')"], r"\w+.exec"),
        (open, ["{}", "w"], r"io.open|_io.open|__builtin__.open"),
        (getattr, [os, "system"], r"\w+.getattr"),
        (os.mkdir, ["{}"], "posix.mkdir"),
        (torch.load, ["{}"], "torch.serialization.load"),
    ],
    ids=["system", "eval", "exec", "open", "getattr", "mkdir", "torch.load"],
)
def test_nothing_is_run(
    tmp_path: Path, function: Callable[..., object], args: list[Any], named: str, protocol: int, new: bool
) -> None:
    target = tmp_path / "ran"
    filled = [a.format(target) if isinstance(a, str) else a for a in args if a is not os]
    data = saved(
        {"a": torch.ones(1), "x": Runs(function, *filled)},
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=new,
    )
    first, *refused = opened(tmp_path, data).entries
    assert first.read().tolist() == [1]
    for entry in refused:
        with pytest.raises(BadFile, match=f"needs ({named}) to be loaded.*will not run"):
            entry.read()
    assert len(refused) == (function is not getattr)  # by which enums are saved
    assert not target.exists()


def test_what_would_be_run_is_named_however_deep_it_lies(tmp_path: Path) -> None:
    imported = Call(Global("builtins", "__import__"), ("os",))
    chain = Call(Raw(opcodes(Call(Global("builtins", "getattr"), (imported, "system")))), ("true",))
    _, refused = opened(tmp_path, torch_zip({"a": tensor(), "x": {"y": [chain]}})).entries
    with pytest.raises(BadFile, match=r"needs builtins.__import__ to be loaded.*will not run"):
        refused.read()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch", "os.system"),
        ("torch.serialization", "os.system"),
        ("collections", "OrderedDict.__init__"),
        ("collections", "OrderedDict.__subclasses__"),
        ("torch", "hub.load"),
        ("torch._tensor", "Tensor"),
        ("builtins", "type"),
        ("numpy", "load"),
        ("", ""),
        ("torch\x1b[31m", "x" * 5000),
    ],
)
def test_names_that_are_not_ours_stand_for_nothing(tmp_path: Path, module: str, name: str) -> None:
    by_stack = Raw(opcodes(module) + opcodes(name) + b"\x93")
    for asked in (Global(module, name), by_stack):
        for value in (asked, Call(asked, ()), Call(asked, (1, "x"))):
            found, *refused = opened(tmp_path, torch_zip([tensor(), value], bytes(16))).entries
            assert found.read().tolist() == [0, 0, 0, 0]
            for entry in refused:
                with pytest.raises(BadFile, match=r"will not run|cannot read") as error:
                    entry.read()
                assert str(error.value).isprintable()
                assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    "code",
    [
        b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00",  # numbered extensions
        b"(ios\nsystem\n", b"(o",  # other ways to make an object
        b"I1\n", b"L1L\n", b"F1\n", b"S'a'\n", b"Va\n", b"g0\n", b"p0\n", b"P0\n",  # text
        b"\x8b\x01\x00\x00\x00\x01", b"\x97", b"\x98", b"0", b"1", b"2", b"\xff", b"\x00",
    ],
)  # fmt: skip
def test_only_opcodes_of_torch_are_known(tmp_path: Path, code: bytes) -> None:
    with pytest.raises(BadFile, match=f"opcode {code.lstrip(b'(')[0]:#x}"):
        opened(tmp_path, torch_zip(b"\x80\x02}" + code + b"."))


@pytest.mark.parametrize(
    "code",
    [
        opcodes(tensor()) + opcodes({"spec": 1}) + b"b",  # attributes for a stand-in
        opcodes(REBUILD) + opcodes({"stand_in": 1}) + b"b",
        opcodes(ORDERED) + opcodes({"clear": 1}) + b"b",
        opcodes(tensor()) + opcodes(1) + b"a",
        opcodes(tensor()) + opcodes("k") + opcodes(1) + b"s",
        opcodes("text") + b")R",
        opcodes(tensor()) + b")R",
        opcodes(Global("torch", "Tensor")) + b")R",
        opcodes(Global("torch", "float32")) + b")R",
        opcodes(Global("builtins", "list")) + b")R",
        opcodes(REBUILD) + b"]R",
        opcodes(REBUILD) + b")R",
        opcodes(1) + opcodes(2) + b"\x93",
        opcodes(tensor()) + opcodes("x") + b"\x93",
        opcodes("storage") + b"Q",
        opcodes(("module", FLOATS, "0", "cpu", 1)) + b"Q",
        opcodes(("storage", FLOATS, "0", "cpu")) + b"Q",
        opcodes(("storage", FLOATS, "0", "cpu", 1, ("0", 0, 1))) + b"Q",
        opcodes(("storage", REBUILD, "0", "cpu", 1)) + b"Q",
        opcodes(("storage", FLOATS, 0, "cpu", 1)) + b"Q",
        opcodes(("storage", FLOATS, "0", "cpu", -1)) + b"Q",
        opcodes(("storage", FLOATS, "0", "cpu", True)) + b"Q",
        opcodes([Saved(FLOATS, "0", 4), Saved(FLOATS, "0", 5)]),
        opcodes(Call(Global("torch._utils", "_rebuild_parameter"), (1, False, None))),
        opcodes(Call(Global("_codecs", "encode"), ("x", "rot13"))),
        opcodes(Call(Global("_codecs", "encode"), ("\u20ac", "latin1"))),
        opcodes(Call(ORDERED, ([("a", tensor())],))),
        b"h\x00", b"j\xff\xff\xff\xff", b"t", b"e", b"u", b"R", b"q\x00", b"\x94", b"\x87", b"", b"(",
        b"X\xff\xff\xff\xffabc", b"\x8d" + b"\xff" * 8 + b"abc", b"\x8e" + b"\xff" * 8,
        b"X\x01\x00\x00\x00\xff", b"cno newline", b"G\x00", b"](", b"}(K\x01u",
    ],
)  # fmt: skip
def test_pickles_that_make_no_sense(tmp_path: Path, code: bytes) -> None:
    with pytest.raises(BadFile, match=r"t\.pt: \w+"):
        opened(tmp_path, torch_zip(b"\x80\x02" + code + b"."))


def test_a_tensor_rebuilt_by_something_else_is_refused(tmp_path: Path) -> None:
    rebuild = Global("torch._tensor", "_rebuild_from_type_v2")
    args = tensor().args
    for function, kind in (
        (REBUILD, FLOATS),
        (rebuild, Global("torch", "Tensor")),
        (ORDERED, Global("torch", "Tensor")),
    ):
        with pytest.raises(BadFile, match=r"no class|way we do not know"):
            opened(tmp_path, torch_zip(Call(rebuild, (function, kind, args, {}))))


# What a pickle may cost


def deep(opening: bytes, depth: int) -> bytes:
    return b"\x80\x02" + opening * depth + b"."


def laughs(levels: int) -> bytes:
    """A list of ten references to a list of ten references to … a tensor."""
    code = opcodes(tensor()) + b"q\x00"
    for level in range(levels):
        code += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"e" + b"q" + bytes([level + 1])
    return b"\x80\x02" + code + b"."


MANY = 1 << 20


def text(length: int) -> bytes:
    return b"X" + struct.pack("<I", length) + b"x" * length


def often(before: bytes, shared: bytes, used: bytes) -> bytes:
    """A list of the same thing made a hundred thousand times of something large."""
    return b"\x80\x02" + before + shared + b"q\x00" + used * 100_000 + b"."


SELF = b"\x80\x02]q\x00h\x00h\x00a."
SELVES = b"\x80\x02]q\x00(h\x00h\x00h\x00e."
COSTLY = {
    "memo at its end": b"\x80\x02" + opcodes(tensor()) + b"r\xff\xff\xff\xff.",
    "nested lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "nested tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "nested tuple as key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "nested tuple as storage": b"\x80\x02)" + b"\x85" * 100_000 + b"Q.",
    "nested tuple as shape": b"\x80\x02" + opcodes(tensor(size=Raw(b")" + b"\x85" * 100_000))) + b".",
    "list in itself": SELF,
    "list often in itself": SELVES,
    "a billion laughs": laughs(9),
    "many laughs": laughs(30),
    "long text as a claim": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "a number of many digits": b"\x80\x02" + b"\x8a\xff" + b"\x7f" * 255 + b".",
    "long tuple as key": b"\x80\x02}(" + b"N" * 1000 + b"tNs.",
    "long arguments often": often(
        opcodes(Global("torch", "device")) + b"q\x01", b"(" + b"N" * MANY + b"t", b"h\x01h\x00R"
    ),
    "long text often": often(
        opcodes(Global("_codecs", "encode")) + b"q\x01", text(MANY), b"h\x01h\x00X\6\0\0\0latin1\x86R"
    ),
    "long shape often": often(
        opcodes(tensor(size=())) + b"q\x01", b"(" + b"K\1" * MANY + b"t", opcodes(tensor(size=Raw(b"h\x00")))
    ),
    "equal long keys often": often(b"}q\x02" + text(MANY) + b"q\x01Ns", text(MANY), b"}h\x01Nsh\x00Ns"),
    "equal long storages often": often(
        opcodes(Saved(FLOATS, Raw(text(MANY)), 1)), text(MANY), opcodes(Saved(FLOATS, Raw(b"h\x00"), 1))
    ),
    "large number as key": b"\x80\x02}" + opcodes(1 << 64) + b"Ns.",
    "marks without end": b"\x80\x02" + b"(" * 100_000 + b".",
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_small_pickle_costs_little(tmp_path: Path, name: str) -> None:
    data = torch_zip(COSTLY[name])
    with allocating_under(1 << 26):
        try:
            for entry in opened(tmp_path, data).entries:
                ask(entry)
        except BadFile as error:
            assert str(error).isprintable()


def test_names_that_grow_with_depth_are_refused(tmp_path: Path) -> None:
    value: object = tensor()
    for _ in range(40):
        value = {"k" * 400: value}
    dump = opened(tmp_path, torch_zip({"ok": tensor(), "deep": value}))
    assert [entry.name for entry in dump.entries] == ["ok"]
    [problem] = dump.problems
    assert problem.is_unread and "characters" in problem.sentence


def test_a_key_too_long_refuses_itself(tmp_path: Path) -> None:
    keys = "." * 50_000, "." * 50_000 + "a", "b" * 1_000_000
    dump = opened(tmp_path, torch_zip({keys[0]: tensor(), "ok": tensor(), keys[1]: tensor(), keys[2]: tensor()}))
    assert [entry.name for entry in dump.entries] == ["ok"]
    assert all(problem.is_unread and len(problem.sentence) < 200 for problem in dump.problems)
    assert len(dump.problems) == 3


def test_a_pickle_of_too_many_steps(tmp_path: Path) -> None:
    with pytest.raises(BadPickle, match="steps"):
        unpickle(b"\x80\x02" + b"N" * 5_000_001 + b".")


def test_a_pickle_of_too_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", bytes((1 << 26) + 1))
    with allocating_under(1 << 24), pytest.raises(BadFile, match="opcode 0x0"):
        open_dump(path)


# What a pickle may claim


@pytest.mark.parametrize(
    "claimed",
    [
        tensor(size=(5,)),
        tensor(size=(-1,)),
        tensor(size=(-4,), stride=(-1,)),
        tensor(stride=(-1,)),
        tensor(stride=(2,)),
        tensor(offset=1),
        tensor(offset=-1),
        tensor(offset=1 << 61),
        tensor(size=(1 << 60,), count=1 << 60),
        tensor(size=(1 << 63,), count=1 << 63),
        tensor(size=(1 << 2000,)),
        tensor(size=(1 << 31, 1 << 31, 1 << 31), stride=(0, 0, 0)),
        tensor(size=(1 << 60,), stride=(0,)),
        tensor(size=(1 << 40,), stride=(0,)),
        tensor(size=(0, 1 << 62), stride=(1, 1)),
        tensor(size=(0, 1 << 61), stride=(1, 1)),
        tensor(size=(2, 2)),
        tensor(size=(4,), stride=()),
        tensor(size=(1,) * 65, stride=(1,) * 65),
        tensor(size=(1,) * 10_000, stride=(1,) * 10_000),
        tensor(size=(True,)),
        tensor(size=[4]),
        tensor(size=("4",)),
        tensor(size=None),
        tensor(stride=None),
        tensor(offset=None),
        tensor(count=5),
        tensor(count=1 << 40, size=(1 << 40,)),
        tensor(count=1 << 61, size=(4,)),
        tensor(key="1"),
        tensor(key="../0"),
        tensor(key="\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace")),
        tensor(key="x" * 5000),
        tensor(kind=Global("torch", "DoubleStorage")),
        tensor(kind=Global("torch", "QInt8Storage")),
        tensor(rest=({"conj": True},)),
        tensor(rest=({"what": True},)),
        tensor(rest=(7,)),
        tensor(size=(8,), stride=(0,), rest=({"neg": True},)),
        tensor(kind=Global("torch", "BoolStorage"), rest=({"neg": True},)),
        Call(Global("torch._utils", "_rebuild_tensor_v3"), (*tensor(kind=UNTYPED).args, REBUILD)),
        Call(
            Global("torch._utils", "_rebuild_tensor_v3"),
            (*tensor(kind=UNTYPED).args, Global("torch", "float64")),
        ),
    ],
)
def test_claims_that_are_not_true(tmp_path: Path, claimed: Call) -> None:
    with allocating_under(1 << 22), pytest.raises(BadFile) as error:
        opened(tmp_path, torch_zip({"a": claimed})).entries[0].read()
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "claimed",
    [
        tensor(size=(5,)),
        tensor(size=(-1,)),
        tensor(offset=1 << 61),
        tensor(size=(1,) * 65, stride=(1,) * 65),
        tensor(size=(4,), stride=()),
        tensor(rest=({"what": True},)),
        tensor(key="1"),
    ],
)
def test_a_claim_that_is_not_true_refuses_its_own_tensor(tmp_path: Path, claimed: Call) -> None:
    dump = opened(tmp_path, torch_zip({"a": tensor(), "b": claimed, "c": [tensor()]}))
    assert [entry.name for entry in dump.entries] == ["a", "b", "c_0"]
    assert [entry.read().tolist() for entry in dump.entries if entry.name != "b"] == [[0] * 4] * 2
    with pytest.raises(BadFile, match=r"t\.pt: "):
        dump.entries[1].read()


def test_a_stride_along_one_element_may_be_anything(tmp_path: Path) -> None:
    for stride in ((1 << 61, 1), (0, 1)):
        (found,) = opened(tmp_path, torch_zip({"a": tensor(size=(1, 4), stride=stride)})).entries
        assert found.read().shape == (1, 4)


def test_an_empty_tensor_needs_no_storage(tmp_path: Path) -> None:
    claimed = tensor(size=(0, 3), stride=(3, 1), key="gone", count=0, offset=7)
    (found,) = opened(tmp_path, torch_zip({"a": claimed})).entries
    assert found.read().shape == (0, 3)


@pytest.mark.parametrize("key", ["blocks[/0]", "a\nb", "\x1b[2J", "", ".", "..", "/etc/passwd", "é\u202e", "x" * 4000])
def test_any_key_is_a_name(tmp_path: Path, key: str) -> None:
    (found,) = opened(tmp_path, torch_zip({key: tensor()})).entries
    assert found.name == (key or "t")
    assert found.read().shape == (4,)
