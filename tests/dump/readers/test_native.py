"""Opening tensordiff's own dumps: whole, stopped, damaged, and made up to do harm."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.dump import Dump, open_dump
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Origin
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.dump.readers.native import try_open
from tensordiff.errors import BadFile, NotADump
from tests.dump.file_damage import FUZZ, keeps_promise, mutated
from tests.making import numbers, save

MANIFEST, JOURNAL, SHARD = "manifest.json", "entries.jsonl", "tensors-00000.safetensors"


def write(folder: Path, count: int = 3) -> Path:
    with DumpWriter(folder, facts={"source": "test", "token_ids": [1, 2]}, header_bytes=1024) as writer:
        for index in range(count):
            writer.add(f"layer.{index}-output", np.full((2, 3), index, np.float32), source_line=index)
    return folder


def write_interrupted(folder: Path, count: int = 3) -> Path:
    """A capture that was stopped by an exception."""
    with (
        pytest.raises(RuntimeError),
        DumpWriter(folder, facts={"source": "test"}, header_bytes=1024) as writer,
    ):
        for index in range(count):
            writer.add(f"layer.{index}-output", np.full((2, 3), index, np.float32), injected=["r"])
        raise RuntimeError
    return folder


def opened(folder: Path) -> Dump:
    dump = try_open(DumpPath(folder))
    assert dump is not None
    return dump


def values(dump: Dump) -> list[float]:
    return [float(entry.read()[0, 0]) for entry in dump.entries]


def edit(folder: Path, change: Callable[[Any], object]) -> None:
    path = folder / MANIFEST
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def test_a_whole_dump(tmp_path: Path) -> None:
    dump = open_dump(write(tmp_path))
    assert (dump.format, dump.ordered, dump.interrupted, dump.problems) == ("tensordiff", True, False, ())
    assert dump.facts == {"source": "test", "token_ids": [1, 2]}
    first = dump.entries[0]
    assert (first.name, first.layer, first.port, first.call, first.step) == (
        "layer.0-output",
        "layer.0",
        "output",
        1,
        0,
    )
    assert first.origin == Origin(source_line=0)
    assert values(dump) == [0, 1, 2]
    assert not first.read().flags.writeable


def test_an_empty_dump(tmp_path: Path) -> None:
    assert opened(write(tmp_path, 0)).entries == ()


def test_no_origin_where_none_was_given(tmp_path: Path) -> None:
    with DumpWriter(tmp_path) as writer:
        writer.add("a-output", np.ones(1))
        writer.add("b-output", np.ones(1), injected=["x", "y"])
    assert [entry.origin for entry in opened(tmp_path).entries] == [None, Origin(injected=("x", "y"))]


def test_an_interrupted_dump(tmp_path: Path) -> None:
    dump = open_dump(write_interrupted(tmp_path))
    assert (dump.format, dump.interrupted, dump.problems) == ("tensordiff", True, ())
    assert dump.facts == {"source": "test"}
    assert values(dump) == [0, 1, 2]
    assert dump.entries[0].origin == Origin(injected=("r",))


def test_shards_alone_are_no_whole_dump(tmp_path: Path) -> None:
    """Nothing says how many there were, or what else the run wrote."""
    (write(tmp_path) / MANIFEST).unlink()
    dump = open_dump(tmp_path)
    assert (dump.format, len(dump), dump.interrupted) == ("safetensors", 3, True)
    assert not open_dump(save(tmp_path / "another" / "tensors-00000.safetensors", {"a": numbers(4)}).parent).interrupted


def test_a_journal_cut_anywhere_gives_what_was_complete(tmp_path: Path) -> None:
    text = (write_interrupted(tmp_path) / JOURNAL).read_bytes()
    first = text.index(b"\n") + 1
    for cut in range(first, len(text)):
        (tmp_path / JOURNAL).write_bytes(text[:cut])
        dump = opened(tmp_path)
        assert values(dump) == list(range(text[:cut].count(b"\n") - 1))
        assert (dump.interrupted, dump.problems) == (True, ())
    (tmp_path / JOURNAL).write_bytes(text[: first - 1])
    with pytest.raises(BadFile, match="line 1"):
        try_open(DumpPath(tmp_path))


def test_a_journal_damaged_in_the_middle_says_where_it_stops(tmp_path: Path) -> None:
    lines = (write_interrupted(tmp_path) / JOURNAL).read_bytes().split(b"\n")
    lines[2] = bytes(len(lines[2]))
    (tmp_path / JOURNAL).write_bytes(b"\n".join(lines))
    dump = opened(tmp_path)
    assert values(dump) == [0]
    assert [(problem.file, problem.sentence[:6]) for problem in dump.problems] == [(JOURNAL, "line 3")]


def test_a_journal_ahead_of_its_shard_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    shard = write_interrupted(tmp_path) / SHARD
    shard.write_bytes(shard.read_bytes()[:-1])
    dump = opened(tmp_path)
    assert values(dump) == [0, 1]
    assert [problem.file for problem in dump.problems] == [SHARD]


def test_a_manifest_beside_a_journal_counts(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / JOURNAL).write_bytes(b"left by a kill between two system calls")
    assert not opened(tmp_path).interrupted


@pytest.mark.parametrize("kept", [0, 1])
def test_a_shard_cut_off_is_a_problem_and_its_tensor_a_sentence(tmp_path: Path, kept: int) -> None:
    shard = write(tmp_path) / SHARD
    data = shard.read_bytes()
    shard.write_bytes(data[:-1]) if kept else shard.unlink()
    dump = opened(tmp_path)
    assert [problem.file for problem in dump.problems] == [SHARD]
    assert len(dump) == 3
    with pytest.raises(BadFile, match=SHARD):
        dump.entries[2].read()


def test_a_manifest_cut_anywhere_is_a_sentence(tmp_path: Path) -> None:
    text = (write(tmp_path) / MANIFEST).read_bytes().rstrip()
    for cut in range(len(text)):
        (tmp_path / MANIFEST).write_bytes(text[:cut])
        with pytest.raises(BadFile, match=r"manifest\.json"):
            try_open(DumpPath(tmp_path))


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"[]", b"{}", b"null", b"7", b"[" * 100_000, b'{"schema":' + b"1" * 9999 + b"}"],
)
def test_garbage_for_a_manifest_points_at_the_shards(tmp_path: Path, text: bytes) -> None:
    (write(tmp_path) / MANIFEST).write_bytes(text)
    with pytest.raises(BadFile, match=r"open the \.safetensors files beside it"):
        try_open(DumpPath(tmp_path))


def test_a_newer_schema_is_a_sentence(tmp_path: Path) -> None:
    edit(write(tmp_path), lambda said: said.update(schema="tensordiff.dump/2"))
    with pytest.raises(BadFile, match=r"'tensordiff\.dump/2', and we read 'tensordiff\.dump/1'; try a newer"):
        try_open(DumpPath(tmp_path))


def test_what_later_versions_add_is_let_be(tmp_path: Path) -> None:
    edit(write(tmp_path), lambda said: (said.update(weather="fine"), said["entries"][0].update(mood=1)))
    assert opened(tmp_path).facts["weather"] == "fine"


def test_files_of_others_are_not_ours(tmp_path: Path) -> None:
    assert try_open(DumpPath(tmp_path)) is None
    (tmp_path / MANIFEST).write_text('{"name": "a web app", "icons": []}')
    (tmp_path / JOURNAL).write_text('{"a": 1}\n')
    assert try_open(DumpPath(tmp_path)) is None
    assert try_open(DumpPath(tmp_path / MANIFEST)) is None
    with pytest.raises(NotADump):
        open_dump(tmp_path)


HUGE = 1 << 62
LIES: dict[str, dict[str, object]] = {
    "shard above": {"shard": "../tensors-00000.safetensors"},
    "shard absolute": {"shard": "/etc/passwd"},
    "shard not a shard": {"shard": "manifest.json"},
    "shard endless": {"shard": "tensors-" + "0" * 5000 + ".safetensors"},
    "shard no text": {"shard": 1},
    "bytes negative": {"bytes": [-24, 0]},
    "bytes in the length": {"bytes": [0, 24]},
    "bytes reversed": {"bytes": [2000, 1976]},
    "bytes too few": {"bytes": [1088, 1111]},
    "bytes overlap": {"bytes": [1064, 1088]},
    "bytes huge": {"bytes": [1088, 1088 + (HUGE << 9)], "shape": [HUGE << 9], "dtype": "uint8"},
    "bytes fractions": {"bytes": [1088.0, 1112.0]},
    "bytes three": {"bytes": [1, 2, 3]},
    "bytes text": {"bytes": "ab"},
    "shape negative": {"shape": [-2, -3]},
    "shape true": {"shape": [True, 6]},
    "shape text": {"shape": "23"},
    "shape none": {"shape": None},
    "shape deep": {"shape": [1] * 65, "bytes": [1088, 1092]},
    "shape empty and huge": {"shape": [0, HUGE, HUGE], "bytes": [1088, 1088]},
    "dtype unknown": {"dtype": "float31"},
    "dtype list": {"dtype": ["float32"]},
    "name twice": {"name": "layer.0-output"},
    "name number": {"name": 5},
    "layer none": {"layer": None},
    "port list": {"port": []},
    "call zero": {"call": 0},
    "call huge": {"call": HUGE},
    "call true": {"call": True},
    "step negative": {"step": -1},
    "line text": {"source_line": "7"},
    "line huge": {"source_line": HUGE},
    "file number": {"source_file": 7},
    "class list": {"module_class": ["Linear"]},
    "injected text": {"injected": "layer"},
    "injected numbers": {"injected": [1]},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lying_record_is_a_sentence_that_names_it(tmp_path: Path, lie: dict[str, object]) -> None:
    edit(write(tmp_path), lambda said: said["entries"][1].update(lie))
    with pytest.raises(BadFile, match=r"manifest\.json: entry 1 .*capture it again"):
        try_open(DumpPath(tmp_path))
    assert keeps_promise(tmp_path) is None


@pytest.mark.parametrize(
    "key",
    ["name", "layer", "port", "call", "step", "shape", "dtype", "shard", "bytes", "source_line", "injected"],
)
def test_a_record_that_lacks_something_is_a_sentence(tmp_path: Path, key: str) -> None:
    edit(write(tmp_path), lambda said: said["entries"][2].pop(key))
    with pytest.raises(BadFile, match=rf"entry 2 .*'{key}'"):
        try_open(DumpPath(tmp_path))


@pytest.mark.parametrize("record", [None, 7, "layer", [], {}])
def test_a_record_that_is_none_is_a_sentence(tmp_path: Path, record: object) -> None:
    edit(write(tmp_path), lambda said: said["entries"].insert(0, record))
    with pytest.raises(BadFile, match="entry 0"):
        try_open(DumpPath(tmp_path))


def test_a_claim_past_the_end_of_the_shard_allocates_nothing(tmp_path: Path) -> None:
    claim = {"shape": [HUGE], "dtype": "uint8", "bytes": [1136, 1136 + HUGE]}
    edit(write(tmp_path), lambda said: said["entries"][2].update(claim))
    dump = keeps_promise(tmp_path)
    assert dump is not None
    with pytest.raises(BadFile, match="does not fit"):
        dump.entries[2].read()


def test_a_shard_that_links_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    shard = write(tmp_path / "dump") / SHARD
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadFile, match="not a file of this folder"):
        try_open(DumpPath(tmp_path / "dump"))


def test_twenty_thousand_entries_are_listed_from_the_manifest_alone(tmp_path: Path, opens: list[str]) -> None:
    write(tmp_path, 20_000)
    opens.clear()
    assert len(opened(tmp_path)) == 20_000
    assert opens == [MANIFEST]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_interrupted(tmp_path_factory.mktemp("stopped"))


@pytest.mark.parametrize("name", [MANIFEST, SHARD])
@FUZZ
@given(data=st.data())
def test_damage_to_a_whole_dump(whole: Path, name: str, data: st.DataObject) -> None:
    check_damage(whole / name, data)


@pytest.mark.parametrize("name", [JOURNAL, SHARD])
@FUZZ
@given(data=st.data())
def test_damage_to_an_interrupted_dump(stopped: Path, name: str, data: st.DataObject) -> None:
    check_damage(stopped / name, data)


def check_damage(path: Path, data: st.DataObject) -> None:
    valid = path.read_bytes()
    try:
        path.write_bytes(data.draw(mutated(valid)))
        keeps_promise(path.parent)
    finally:
        path.write_bytes(valid)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_manifest_that_was_laid_out_anew_says_the_same(tmp_path: Path, indent: int | None) -> None:
    """Ours has a line a record and is read by lines; whoever edits one may write it otherwise."""
    dump = opened(write(tmp_path / "ours"))
    path = tmp_path / "ours" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
    again = opened(tmp_path / "ours")
    assert [(*entry[:5], entry.origin) for entry in again.entries] == [(*e[:5], e.origin) for e in dump.entries]
    assert (again.facts, values(again)) == (dump.facts, values(dump))


@pytest.mark.parametrize("end", [b"]}\n]}\n", b',"device":"x"}\n', b"]}", b",\n]}\n"])
def test_what_follows_the_entries_is_read_as_strictly_as_all_else(tmp_path: Path, end: bytes) -> None:
    path = write(tmp_path / "ours") / MANIFEST
    path.write_bytes(path.read_bytes().removesuffix(b"\n]}\n") + b"\n" + end)
    try:
        json.loads(path.read_text())
    except ValueError:
        with pytest.raises(BadFile, match="not valid JSON"):
            opened(tmp_path / "ours")
    else:
        assert values(opened(tmp_path / "ours")) == [0, 1, 2]


def test_opening_holds_no_more_than_the_entries(tmp_path: Path) -> None:
    """A million entries must fit: their records are let go one by one, and steps share the names of layers."""
    count = 2_000
    with DumpWriter(tmp_path / "many", {}) as writer:
        for k in range(count):
            writer.add(f"model.layers.{k % 20}.self_attn.q_proj-output", np.zeros(4, np.float32), step=k // 20)
    opened(tmp_path / "many")  # what is made once
    tracemalloc.start()
    try:
        dump = opened(tmp_path / "many")
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len({id(entry.name) for entry in dump.entries}) == 20
    text = (tmp_path / "many" / MANIFEST).stat().st_size
    assert held < 400 * count
    assert most - held < text + 400 * count
