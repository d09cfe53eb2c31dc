"""Runs beside the two that are compared: where an injected one is found, and that it is judged as if given at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.errors import AlignError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.third_dumps import injected_beside, injected_path
from tests.making import SAMPLES, numbers, save, write

REFERENCE, CANDIDATE, INJECTED = (SAMPLES / name for name in ("reference", "candidate", "candidate_injected"))


def test_an_injected_run_is_found_beside_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert injected_beside(CANDIDATE) == INJECTED and injected_beside(REFERENCE) is None
    assert injected_path(tmp_path / "max.v2") == tmp_path / "max.v2_injected"
    file = save(tmp_path / "c.safetensors", {"a": numbers(2)})
    assert injected_path(file) == tmp_path / "c_injected.safetensors"
    (tmp_path / "port").mkdir()
    monkeypatch.chdir(tmp_path / "port")
    assert injected_path(Path()) == tmp_path / "port_injected"
    assert injected_path(Path("..")) == tmp_path.parent / f"{tmp_path.name}_injected"
    assert injected_path(Path("/")) == Path("/_injected")


def test_an_injected_run_given_later_is_as_if_given_at_once() -> None:
    request = Request(REFERENCE, CANDIDATE, only="act_fn$")
    at_once, later = Session.open(replace(request, injected=INJECTED)), Session.open(request).with_injected(INJECTED)
    assert later.request == at_once.request
    errors = [[row.injected.rel_l2 for row in one.rows() if row.injected] for one in (later, at_once)]
    assert errors[0] == errors[1] != []


def test_another_candidate_has_no_injected_run() -> None:
    session = Session.open(Request(REFERENCE, CANDIDATE, injected=INJECTED)).with_candidate(SAMPLES / "max")
    assert (session.request.injected, session.comparer.injected, session.third_dumps.injected) == (None, None, None)
    assert session.realigned(session.rules).comparer.injected is None


def test_an_injected_run_of_another_model_is_refused(tmp_path: Path) -> None:
    session = Session.open(Request(REFERENCE, CANDIDATE))
    with pytest.raises(AlignError, match="none of its entries matches one of the reference"):
        session.with_injected(write(tmp_path / "other", {"z": numbers(5)}))
