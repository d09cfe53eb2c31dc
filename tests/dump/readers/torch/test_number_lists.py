"""Tensors that were saved as lists of Python's numbers."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordiff.dump import Dump, open_dump
from tensordiff.errors import BadFile
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.dump.readers.torch.torch_samples import save

WIDE = torch.linspace(-2, 3, 7 * 24).reshape(1, 7, 24).sin()


def model(last: object) -> dict[str, object]:
    layers = {f"layers.{i}.mlp": WIDE * (i + 1) for i in range(4)}
    return {**layers, "layers.4.mlp": last}


def test_a_nested_list_is_the_tensor_that_it_was(tmp_path: Path) -> None:
    whole = {"lm_head": WIDE.tolist(), "layers.0.norm": WIDE[0, 0].tolist(), "block.bias": tuple(WIDE[0, 1].tolist())}
    whole |= {"block": {"output": WIDE.double().mul(1 / 3).tolist()}, "embed": WIDE}
    dump = open_dump(save(whole, tmp_path / "x.pt"))
    read = {entry.name: entry.read() for entry in dump.entries}
    assert not dump.unread
    assert read["lm_head"].dtype == np.float32 and np.array_equal(read["lm_head"], WIDE.numpy())
    assert np.array_equal(read["layers.0.norm"], WIDE[0, 0].numpy())
    assert np.array_equal(read["block.bias"], WIDE[0, 1].numpy())
    assert read["block.output"].dtype == np.float64 and read["block.output"].shape == (1, 7, 24)


def test_configurations_histories_and_ids_are_no_tensors(tmp_path: Path) -> None:
    beside = {
        "config": {"rope": {"long_factor": [1.25] * 48}, "sizes": [[1, 2], [3, 4]], "betas": [[0.9, 0.99]]},
        "losses": [0.5] * 100, "ids": [list(range(40))], "names": [["a"] * 20], "none": [None] * 20, "empty": [[], []],
    }  # fmt: skip
    dump = open_dump(save({"embed": WIDE, **beside}, tmp_path / "x.pt"))
    assert [entry.name for entry in dump.entries] == ["embed"] and not dump.unread
    [told] = dump.problems
    assert "settings or histories" in told.sentence and "(config.rope.long_factor, losses)" in told.sentence
    assert Session.open(Request(dump.path, dump.path)).unread == ()


class TrainingArguments:
    """Stands for a class of a library, of which a file may hold an object."""

    def __init__(self) -> None:
        self.weights = [0.5] * 20


def test_an_object_of_settings_holds_no_tensors(tmp_path: Path) -> None:
    dump = open_dump(save({"embed": WIDE, "how": TrainingArguments()}, tmp_path / "x.pt"))
    assert [entry.name for entry in dump.entries] == ["embed"] and "how.weights" in dump.problems[0].sentence


@pytest.mark.parametrize("name", ["logits", "lm_head", "norm", "pooler", "time_proj"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_wrong_flat_list_never_agrees_whatever_its_name(name: str, is_nested: bool, tmp_path: Path) -> None:
    right, wrong = WIDE[0, -1].tolist(), WIDE[0, -1].mul(1.5).tolist()
    both = [{"model": model(WIDE), name: last} if is_nested else {**model(WIDE), name: last} for last in (right, wrong)]
    paths = [save(content, tmp_path / f"{k}.pt") for k, content in enumerate(both)]
    session = Session.open(Request(*paths))
    assert session.outcome(session.rows()).exit_status == 1
    session = Session.open(Request(paths[0], paths[0]))
    assert session.outcome(session.rows()).exit_status == 0


def unreadable(dump: Dump) -> list[str]:
    """The entries that refuse to be read, each with the sentence that says why."""
    refused = []
    for entry in dump.entries:
        try:
            entry.read()
        except BadFile as error:
            assert "a list of numbers that has no shape" in str(error)
            refused.append(entry.name)
    return refused


def test_what_has_no_shape_is_named_and_not_read(tmp_path: Path) -> None:
    uneven = WIDE[0].tolist()
    uneven[3] = uneven[3][:5]
    holes = WIDE[0].tolist()
    holes[2][2] = None
    row = [0.5] * 20
    dump = open_dump(save({"embed": WIDE, "a": uneven, "b": holes, "c": [row, row]}, tmp_path / "x.pt"))
    assert unreadable(dump) == ["a", "b", "c"]
    for paths in permutations((save({"embed": WIDE}, tmp_path / "y.pt"), tmp_path / "x.pt")):
        session = Session.open(Request(*paths))
        assert session.outcome(session.rows()).exit_status == 2


def test_few_bytes_cannot_claim_many_numbers(tmp_path: Path) -> None:
    shared: object = [0.5] * 100
    for _ in range(7):
        shared = [shared] * 100
    itself: list[object] = [[0.25] * 20]
    itself.append(itself)
    dump = open_dump(save({"embed": WIDE, "layers.0.x": shared, "layers.1.x": itself}, tmp_path / "x.pt"))
    assert unreadable(dump) == ["layers.0.x", "layers.1.x"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_wrong_list_never_agrees(tmp_path: Path, side: int) -> None:
    paths = [save(model(WIDE), tmp_path / "a.pt"), save(model(WIDE.mul(1.5).tolist()), tmp_path / "b.pt")]
    session = Session.open(Request(paths[side], paths[1 - side]))
    outcome = session.outcome(session.rows())
    assert outcome.exit_status == 1 and outcome.culprit is not None
    assert outcome.culprit.pair.reference.layer == "layers.4.mlp"
    right = save(model(WIDE.tolist()), tmp_path / "c.pt")
    both = (paths[0], right) if side == 0 else (right, paths[0])
    session = Session.open(Request(*both))
    assert session.outcome(session.rows()).verdict == "agrees"
