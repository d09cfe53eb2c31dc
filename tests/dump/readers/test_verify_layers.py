from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tensordiff.dump import open_dump
from tensordiff.errors import BadFile, NotADump
from tests.dump.file_damage import FUZZ, keeps_promise, mutated
from tests.dump.readers.verify_layers_samples import make, ports, save_max, save_torch, write_max


@pytest.fixture
def torch_folder(tmp_path: Path) -> Path:
    (tmp_path / "torch_layers").mkdir()
    return tmp_path / "torch_layers"


@pytest.fixture
def max_folder(tmp_path: Path) -> Path:
    (tmp_path / "max_layers").mkdir()
    return tmp_path / "max_layers"


def test_a_torch_side(tmp_path: Path, torch_folder: Path) -> None:
    layers = [save_torch(torch_folder, name) for name in ("z.embed", "layers.0.q", "layers.0.k")]
    layers.append(save_torch(torch_folder, "a.head", inputs=2, outputs=2))
    make(tmp_path, "torch", layers, ["z.embed", "layers.0.q", "layers.0.k", "a.head"])
    dump = open_dump(torch_folder)
    assert (dump.format, dump.ordered, dump.problems, dump.interrupted) == ("verify-layers", True, (), False)
    assert ports(dump) == [
        ("z.embed", "input_0"), ("z.embed", "output"), ("layers.0.q", "input_0"), ("layers.0.q", "output"),
        ("layers.0.k", "input_0"), ("layers.0.k", "output"),
        ("a.head", "input_0"), ("a.head", "input_1"), ("a.head", "output_0"), ("a.head", "output_1"),
    ]  # fmt: skip
    assert [e.read().tolist() for e in dump.entries[:2]] == [[7, 7], [6, 6]]
    assert dump.entries[0].spec.dtype.name == "float32"
    assert dump.entries[0].name == "z.embed_input_0"
    assert dump.entries[0].origin is not None
    assert dump.entries[0].origin.module_class == "Linear"


def test_a_max_side_stands_where_layers_began_and_ended(tmp_path: Path, max_folder: Path) -> None:
    began = ["model", "embed", "layers.0", "norm", "mlp", "layers.1", "head"]
    ended = ["embed", "norm", "mlp", "layers.0", "layers.1", "head", "model"]
    make(tmp_path, "max", [save_max(max_folder, name) for name in ended], began)
    dump = open_dump(max_folder)
    assert dump.ordered
    assert [f"{layer} {port[:2]}" for layer, port in ports(dump)] == [
        "model in", "embed in", "embed ou", "layers.0 in", "norm in", "norm ou", "mlp in", "mlp ou",
        "layers.0 ou", "layers.1 in", "layers.1 ou", "head in", "head ou", "model ou",
    ]  # fmt: skip


def test_layers_that_ran_twice_stand_where_they_ran_last(tmp_path: Path, max_folder: Path, torch_folder: Path) -> None:
    calls = ["act", "a", "act", "b"]
    for side, folder in (("max", max_folder), ("torch", torch_folder)):
        save: Any = save_max if side == "max" else save_torch
        make(tmp_path, side, [save(folder, name) for name in ("act", "a", "b")], calls)
        assert [layer for layer, port in ports(open_dump(folder)) if port == "output"] == ["a", "act", "b"]


def test_lists_that_contradict_each_other_lose_nothing(tmp_path: Path, max_folder: Path) -> None:
    make(tmp_path, "max", [save_max(max_folder, name) for name in "cab"], ["a", "b", "missing", "c"])
    dump = open_dump(max_folder)
    assert sorted(ports(dump)) == [(layer, port) for layer in "abc" for port in ("input_0", "output")]
    first_seen = dict.fromkeys(layer for layer, _ in ports(dump))
    assert list(first_seen) == ["a", "b", "c"]


def test_a_folder_opened_from_within(tmp_path: Path, max_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "max", [save_max(max_folder, name) for name in "ab"], ["b", "a"])
    monkeypatch.chdir(max_folder)
    assert open_dump(".").entries[0].layer == "b"


def test_order_from_the_metadata(tmp_path: Path, torch_folder: Path) -> None:
    make(tmp_path, "torch", [save_torch(torch_folder, name) for name in "cab"], None)
    dump = open_dump(torch_folder)
    assert dump.ordered
    assert [layer for layer, port in ports(dump) if port == "output"] == ["c", "a", "b"]


def test_without_any_order_natural_names_must_do(tmp_path: Path, torch_folder: Path) -> None:
    for name in ("layers.10", "layers.9"):
        save_torch(torch_folder, name)
    (torch_folder / "layer_metadata.json").write_text("{")
    dump = open_dump(torch_folder)
    assert not dump.ordered
    assert ports(dump) == [(f"layers.{i}", port) for i in (9, 10) for port in ("input_0", "output")]
    assert [p.file for p in dump.problems] == ["layer_metadata.json"]


def test_layers_whose_names_look_like_ports(tmp_path: Path, max_folder: Path) -> None:
    layers = [
        save_max(max_folder, "a", ("input_0", "input_b_output", "output")),
        save_max(max_folder, "a_input_b", ("input_0", "output_1")),
        save_max(max_folder, "x_output", ("output",)),
    ]
    make(tmp_path, "max", layers, None)
    assert sorted(ports(open_dump(max_folder))) == [
        ("a", "input_0"), ("a", "input_b_output"), ("a", "output"),
        ("a_input_b", "input_0"), ("a_input_b", "output_1"), ("x_output", "output"),
    ]  # fmt: skip


def test_layers_known_only_from_the_list(tmp_path: Path, max_folder: Path) -> None:
    for label in ("a_input_b_output", "a_input_b_input_x_injected", "other_output_1", "odd"):
        write_max(max_folder, label)
    make(tmp_path, "max", [], ["a", "a_input_b"])
    dump = open_dump(max_folder)
    assert ports(dump) == [
        ("a_input_b", "input_x"), ("a_input_b", "output"), ("odd", "output"), ("other", "output_1"),
    ]  # fmt: skip
    assert [p.file for p in dump.problems] == ["odd.max", "other_output_1.max"]


def test_two_files_of_one_port_that_nothing_tells_apart_are_unread(tmp_path: Path, max_folder: Path) -> None:
    for label in ("a_input_0", "a_input_0_injected"):
        write_max(max_folder, label)
    make(tmp_path, "max", [], ["a"])
    [problem] = open_dump(max_folder).problems
    assert (problem.file, problem.is_unread) == ("a_input_0_injected.max", True)


def test_names_that_differ_in_their_case_alone(tmp_path: Path, max_folder: Path) -> None:
    make(tmp_path, "max", [save_max(max_folder, "a", ("output",))], None)
    (max_folder / "a_output.MAX").write_bytes((max_folder / "a_output.max").read_bytes())
    dump = open_dump(max_folder)
    assert ports(dump) == [("a", "output")]
    assert [problem.is_unread for problem in dump.problems] == [True]


def test_injection_is_told(tmp_path: Path, max_folder: Path) -> None:
    layers = [
        save_max(max_folder, "a"),
        save_max(max_folder, "b", ("input_0", "input_mask", "output"), injected=True),
    ]
    write_max(max_folder, "b_input_0", -1.0)  # the run before, without injection
    make(tmp_path, "max", layers, ["a", "b"])
    dump = open_dump(max_folder)
    assert ports(dump)[2:] == [("b", "input_0"), ("b", "input_mask"), ("b", "output")]
    assert dump.entries[2].name == "b_input_0_injected"
    assert dump.entries[2].read().tolist() == [7, 7]
    assert [(p.file, p.is_unread) for p in dump.problems] == [("b_input_0.max", False)]
    assert dump.facts == {"layer_classes": {"a": "RMSNorm", "b": "RMSNorm"}, "injected_layers": ["b"]}


def test_labels_that_became_other_file_names(tmp_path: Path, max_folder: Path) -> None:
    make(tmp_path, "max", [save_max(max_folder, "e"), save_max(max_folder, "a b/c:d")], ["e", "a b/c:d"])
    dump = open_dump(max_folder)
    assert ports(dump)[2:] == [("a b/c:d", "input_0"), ("a b/c:d", "output")]
    assert dump.problems == ()


def test_a_file_that_is_missing_is_a_problem(tmp_path: Path, torch_folder: Path) -> None:
    make(tmp_path, "torch", [save_torch(torch_folder, "a")], ["a"])
    (torch_folder / "a_input_0.pt").unlink()
    dump = open_dump(torch_folder)
    assert ports(dump) == [("a", "output")]
    assert [(p.file, p.is_unread) for p in dump.problems] == [("a_input_0.pt", True)]


def test_a_file_that_is_damaged_says_so_when_asked(tmp_path: Path, torch_folder: Path) -> None:
    make(tmp_path, "torch", [save_torch(torch_folder, "a")], ["a"])
    (torch_folder / "a_input_0.pt").write_bytes(b"PK\3\4")
    bad, good = open_dump(torch_folder).entries
    assert good.read().tolist() == [6, 6]
    with pytest.raises(BadFile, match=r"a_input_0\.pt"):
        bad.read()


def test_a_run_that_was_stopped(tmp_path: Path, torch_folder: Path) -> None:
    make(tmp_path, "torch", [save_torch(torch_folder, "b"), save_torch(torch_folder, "a")], ["b", "a"])
    (torch_folder / "layer_metadata.json").unlink()
    dump = open_dump(torch_folder)
    assert (dump.format, dump.interrupted, dump.ordered) == ("verify-layers", True, True)
    assert ports(dump)[0] == ("b", "input_0")


def test_a_folder_that_holds_both_asks_for_one(tmp_path: Path, torch_folder: Path, max_folder: Path) -> None:
    make(tmp_path, "torch", [save_torch(torch_folder, "a")], ["a"])
    make(tmp_path, "max", [save_max(max_folder, "a")], ["a"])
    with pytest.raises(NotADump, match="two dumps"):
        open_dump(tmp_path)
    assert len(open_dump(torch_folder)) == len(open_dump(max_folder)) == 2


def test_metadata_without_tensors_is_not_ours(torch_folder: Path) -> None:
    (torch_folder / "layer_metadata.json").write_text("{}")
    with pytest.raises(NotADump, match="no tensors"):
        open_dump(torch_folder)


def test_other_folders_of_max_files_are_not_ours(tmp_path: Path) -> None:
    write_max(tmp_path, "a-output")
    assert open_dump(tmp_path).format == "max"


ODD_METADATA: dict[str, Any] = {
    "a list": [],
    "null": None,
    "layers are lists": {"a": []},
    "rows are no list": {"a": {"inputs": {"x": 1}}},
    "rows are numbers": {"a": {"inputs": [1, None], "outputs": "text"}},
    "no fields": {"a": {"outputs": [{}]}},
    "paths": {"a": {"outputs": [{"file": "../../etc/passwd"}, {"file": "/etc/passwd"}, {"file_name": "../x"}]}},
    "types": {"a": {"layer_type": 3, "inputs": [{"index": True, "name": 4}, {"index": [], "file": {}}]}},
    "not true": {"a": {"outputs": [{"name": "a_output", "index": -1}, {"name": "nothing"}]}},
    "control characters": {"\x1b[31m": {"outputs": [{"name": "\x1b[31m_output"}]}},
    "huge": {"a": {"outputs": [{"name": "x" * 100_000}]}},
}


@pytest.mark.parametrize("metadata", ODD_METADATA.values(), ids=ODD_METADATA)
def test_metadata_that_is_odd_loses_no_tensor(max_folder: Path, metadata: object) -> None:
    write_max(max_folder, "a_output", 3.0)
    (max_folder / "layer_metadata.json").write_text(json.dumps(metadata))
    [entry] = open_dump(max_folder).entries
    assert entry.layer == "a"
    assert entry.port.startswith("output")
    assert entry.read().tolist() == [3, 3]


NO_JSON = {
    "empty": b"", "cut": b"{", "not UTF-8": b"\xff", "deep": b"[" * 100_000, "twins": b'{"a": {}, "a": {}}',
    "long number": b'{"a": ' + b"9" * 5000 + b"}",
}  # fmt: skip


@pytest.mark.parametrize("text", NO_JSON.values(), ids=NO_JSON)
def test_metadata_that_is_no_json_is_a_problem(max_folder: Path, text: bytes) -> None:
    write_max(max_folder, "a_output")
    (max_folder / "layer_metadata.json").write_bytes(text)
    dump = open_dump(max_folder)
    assert ports(dump) == [("a", "output")]
    assert [p.file for p in dump.problems] == ["layer_metadata.json"]


ODD_LISTS = {
    "empty": b"", "blank": b"\n\n", "not UTF-8": b"\xff\xfe\n", "zero": b"\0\n", "windows": b"a\r\nb\r\n",
    "long": b"x" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("text", ODD_LISTS.values(), ids=ODD_LISTS)
def test_lists_that_are_odd(tmp_path: Path, max_folder: Path, text: bytes) -> None:
    make(tmp_path, "max", [save_max(max_folder, "b"), save_max(max_folder, "a")], None)
    (tmp_path / "module_names_max.txt").write_bytes(text)
    dump = open_dump(max_folder)
    assert len(dump) == 4
    assert dump.ordered
    assert dump.entries[0].layer == ("a" if text.startswith(b"a") else "b")


def test_lists_and_tensors_that_are_no_files(tmp_path: Path, max_folder: Path) -> None:
    make(tmp_path, "max", [save_max(max_folder, "a")], None)
    os.mkfifo(tmp_path / "module_names_max.txt")
    os.mkfifo(max_folder / "fifo_output.max")
    (max_folder / "loop_output.max").symlink_to("loop_output.max")
    (max_folder / "out_output.max").symlink_to("/etc/passwd")
    dump = open_dump(max_folder)
    assert ports(dump) == [("a", "input_0"), ("a", "output")]
    assert sorted(p.file for p in dump.problems) == ["fifo_output.max", "loop_output.max", "out_output.max"]


def test_a_link_out_of_the_dump_named_by_the_metadata_is_not_followed(tmp_path: Path, max_folder: Path) -> None:
    make(tmp_path, "max", [save_max(max_folder, "a")], None)
    secret = tmp_path / "secret.max"
    (max_folder / "a_output.max").rename(secret)
    (max_folder / "a_output.max").symlink_to(secret)
    assert ports(open_dump(max_folder)) == [("a", "input_0")]


VALID = json.dumps(
    {
        "a": {
            "layer_type": "Linear",
            "inputs": [
                {"index": 0, "file": "/x/a_input_0.max"},
                {"name": "mask", "file_name": "a_input_mask"},
            ],
            "outputs": [{"index": 1, "name": "a_output_1"}],
            "input_injection_used": True,
        }
    }
).encode()


@FUZZ
@given(mutated(VALID))
def test_damaged_metadata(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "max_layers"
    if not folder.exists():
        folder.mkdir()
        for label in ("a_input_0", "a_input_mask", "a_output_1"):
            write_max(folder, label)
    (folder / "layer_metadata.json").write_bytes(data)
    dump = keeps_promise(folder)
    assert dump is not None
    assert sorted(e.name for e in dump.entries) == ["a_input_0", "a_input_mask", "a_output_1"]


@FUZZ
@given(mutated(b"a\nb\na_output\nc\n"), mutated(VALID))
def test_damaged_list(tmp_path: Path, data: bytes, metadata: bytes) -> None:
    folder = tmp_path / "max_layers"
    if not folder.exists():
        folder.mkdir()
        write_max(folder, "a_output_1")
    (tmp_path / "module_names_max.txt").write_bytes(data)
    (folder / "layer_metadata.json").write_bytes(metadata)
    dump = keeps_promise(folder)
    assert dump is not None
    assert [e.name for e in dump.entries] == ["a_output_1"]
