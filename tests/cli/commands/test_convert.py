"""``tensordiff convert``: what was understood stays, what was left out is named, half a file is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import Dump, open_dump
from tensordiff.dump.native.convert import convert
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import BadFile, WriteError
from tests.cli.command import Call
from tests.dump.readers.tools.stand_ins import STAND_INS, A, pt, sglang, tensor

VALUES = [name for name in STAND_INS if name not in ("debugger_summary", "msprobe_statistics", "llamacpp_log")]


@pytest.mark.parametrize("target", ["folder", "file.safetensors"])
@pytest.mark.parametrize("name", VALUES)
def test_a_converted_dump_is_the_same(tmp_path: Path, name: str, target: str) -> None:
    before = open_dump(STAND_INS[name][0](tmp_path / "source"))
    assert all(not hasattr(step, "sentence") for step in convert(before, tmp_path / target))
    after = open_dump(tmp_path / target)
    assert after.ordered == before.ordered and after.problems == ()

    def content(dump: Dump) -> list[tuple[str, str, str, bytes]]:
        return sorted((e.layer, e.port, e.read().dtype.name, e.read().tobytes()) for e in dump.entries)

    assert content(after) == content(before)
    assert sorted((e.step, e.call) for e in after.entries) == sorted((e.step, e.call) for e in before.entries)


def test_the_command(call: Call, tmp_path: Path) -> None:
    said = call("convert", sglang(tmp_path / "d", ranks=2), "-o", tmp_path / "out")
    assert (said.status, said.err) == (0, "") and "2 tensors" in said.out
    assert call("convert", tmp_path / "d", "-o", tmp_path / "out").status == 2  # holds a dump already
    assert call("convert", tmp_path / "d", "-o", tmp_path / "out", "--force").status == 0


def test_what_is_left_out_is_named(call: Call, tmp_path: Path) -> None:
    folder = sglang(tmp_path / "d", ranks=2)
    (path,) = folder.glob("*rank=1*name=embed*")
    pt(path, {"value": tensor(A + 1), "meta": {"name": "embed", "dims": "t h"}})
    said = call("convert", folder, "-o", tmp_path / "out.safetensors")
    assert said.status == 2 and "left out" in said.err and "different values" in said.err


@pytest.mark.parametrize("name", ["msprobe_statistics", "llamacpp_log"])
def test_statistics_are_no_tensors(call: Call, tmp_path: Path, name: str) -> None:
    said = call("convert", STAND_INS[name][0](tmp_path / "d"), "-o", tmp_path / "out")
    assert said.status == 2 and "statistics and no values" in said.err and not (tmp_path / "out").exists()


def test_half_a_file_is_none(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    dump = open_dump(tmp_path / "a.npy")
    assert dump.entries[0].spec.shape == A.shape  # what a header says is kept
    (tmp_path / "a.npy").write_bytes(b"x")
    with pytest.raises(BadFile, match=r"a\.npy"):
        list(convert(dump, tmp_path / "out.safetensors"))
    assert not (tmp_path / "out.safetensors").exists()


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    (tmp_path / "out.safetensors").write_text("mine")
    with pytest.raises(WriteError, match="is there already"):
        list(convert(open_dump(tmp_path / "a.npy"), tmp_path / "out.safetensors"))
    assert (tmp_path / "out.safetensors").read_text() == "mine"


@pytest.mark.parametrize("target", ["folder", "file.safetensors"])
def test_a_run_of_several_steps_agrees_with_itself(call: Call, tmp_path: Path, target: str) -> None:
    with DumpWriter(tmp_path / "own", {"source": "hf:x"}) as writer:
        for step in range(3):
            writer.add("model.a#b-output", A + step, step=step)
            writer.add("model.c(2)-output", A * (2 + step), step=step)
    assert call("convert", tmp_path / "own", "-o", tmp_path / target).status == 0
    said = call("compare", tmp_path / "own", tmp_path / target)
    assert said.status == 0, said.out + said.err


@pytest.mark.parametrize("target", ["folder", "file.safetensors"])
def test_facts_of_our_own_dumps_stay_but_not_who_vouched_for_them(tmp_path: Path, target: str) -> None:
    facts = {
        "framework": "torch", "weights_hash": "abc", "flags": {"tf32": True}, "config": {"n": 2}, "token_ids": [1, 2],
        "settings": {"prompt": "x"}, "model": "Llama", "config_overrides": {"a": 1}, "calls": {"model": 1},
    }  # fmt: skip
    with DumpWriter(tmp_path / "own", facts | {"signature": "valid"}) as writer:
        writer.add("model-output", A)
    list(convert(open_dump(tmp_path / "own"), tmp_path / target))
    assert open_dump(tmp_path / target).facts == facts


def test_facts_that_are_no_object_are_a_problem(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": A}, tmp_path / "a.safetensors", metadata={"tensordiff.facts": "[1"})
    dump = open_dump(tmp_path / "a.safetensors")
    assert len(dump) == 1 and "facts in its __metadata__" in dump.problems[0].sentence
