"""A side is called what the user typed, also where a run in a temporary folder stands for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.side_names import file_name, operations_inside, report_title, side_name
from tests.making import numbers, write

A = {"a": numbers(2)}


def opened(reference: Path, candidate: Path, keep: Path | None = None) -> Session:
    return Session.open(Request(reference, candidate, keep=keep))


def test_dumps_are_called_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(write(tmp_path / "run one", A), write(tmp_path / "mine", A, source="py:port.py:load"))
    assert side_name(session.candidate, session.request) == "mine"
    assert (file_name(session), report_title(session)) == ("mine-vs-run-one", "mine against run one")
    monkeypatch.chdir(tmp_path / "mine")
    assert file_name(opened(tmp_path / "run one", Path())) == "mine-vs-run-one"


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_side_that_was_run_again_is_called_by_its_source(tmp_path: Path, is_kept: bool) -> None:
    reference = write(tmp_path / "reference", A)
    folder = tmp_path / "tensordiff-rerun-candidate-captured-x"
    again = write(folder / "dump", A, source="py:/home/me/port.py:load")
    session = opened(reference, again, tmp_path if is_kept else None)
    assert file_name(session) == "py-port.py-load-vs-reference"
    assert report_title(session) == "py:port.py:load against reference"


def test_operations_are_called_by_both_sides_and_their_layer(tmp_path: Path) -> None:
    ours, theirs = (tmp_path / f"tensordiff-rerun-{side}-ops-x" / "dump" for side in ("reference", "candidate"))
    write(ours, A, source="hf:/models/llama", settings={"ops": "layers.2.attn"})
    write(theirs, A, source="py:/home/me/port.py:load", settings={"ops": "blk.2.att"})
    session = opened(ours, theirs)
    assert operations_inside(session) == "layers.2.attn ↔ blk.2.att"
    assert file_name(session) == "py-port.py-load-vs-hf-llama-in-layers.2.attn"
    title = "py:port.py:load against hf:llama, operations inside layers.2.attn ↔ blk.2.att"
    assert report_title(session) == title
