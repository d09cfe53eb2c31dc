"""A small fixed part of the study: every kind of bug once, somewhere, and clean runs of every architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.bugs import BUGS, Bug
from studies.captures import plain_torch
from studies.controls import engines
from studies.models import ARCHS, Arch
from studies.tables import planted, put
from studies.trial import DTYPES, Case, Result, run_trial

SEED = 200


@pytest.fixture(autouse=True)
def torch_as_everywhere() -> Iterator[None]:
    with plain_torch():
        yield


def first_that_has_a_place(bug: Bug, tmp_path: Path) -> list[Result]:
    """The bug in float32, in the first architecture, from another one on for each bug, that has a place for it."""
    at = BUGS.index(bug)
    tries = (ARCHS[(at + k) % len(ARCHS)] for k in range(len(ARCHS)))
    runs = (list(run_trial(Case(arch.name, SEED, ("float32", "float32"), bug), tmp_path)) for arch in tries)
    return next(filter(None, runs))


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.kind)
def test_a_planted_bug_is_named_and_not_mistaken(bug: Bug, tmp_path: Path) -> None:
    found = first_that_has_a_place(bug, tmp_path)
    assert [result.dumped for result in found] == ["everything", "outputs", "blocks"]
    for result in found:
        if result.is_findable:
            assert (result.named, result.others) == (result.expected, 0), result
        assert not result.has_wrong_hint, result
    if found[0].is_findable and bug.hints:
        assert found[0].has_right_hint, found[0]


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_a_clean_run_has_no_culprit(arch: Arch, tmp_path: Path) -> None:
    """In one type each, and all of them between them."""
    dtypes = DTYPES[ARCHS.index(arch) % len(DTYPES)]
    assert [result.named for result in run_trial(Case(arch.name, SEED, dtypes), tmp_path)] == ["", "", ""]


def test_no_engine_s_healthy_run_has_a_culprit() -> None:
    assert {control.named for control in engines()} == {""}


def result(**changed: object) -> Result:
    bug = next(bug for bug in BUGS if bug.kind == "wrong_scale")
    case = Case("llama", 1, ("float32", "float32"), bug)
    made = Result(case, "everything", "a", "a", 0, "scale", 1e5, 1e-1, "a")
    return made._replace(**changed)  # type: ignore[arg-type]


def test_what_is_below_rounding_is_counted_apart() -> None:
    assert result().is_findable
    assert not result(error=1e-6).is_findable
    assert not result(stands_out=2.0).is_findable
    text = planted([result(), result(error=1e-6, named=""), result(named="b", hint="bias")], [], [], range(3))
    assert "| everything | 3 | 1 | 50.0 % | 50.0 % | 0.0 % | 0.0 % | 50.0 % | 50.0 % |" in text


def test_tables_go_where_their_marks_are(tmp_path: Path) -> None:
    doc = tmp_path / "verdicts.md"
    doc.write_text("a\n<!-- x: written by python -m studies -->\nold\n<!-- end of x -->\nb\n")
    put("x", "new", doc)
    put("x", "newer", doc)
    assert doc.read_text() == "a\n<!-- x: written by python -m studies -->\n\nnewer\n\n<!-- end of x -->\nb\n"
    with pytest.raises(SystemExit, match="marks of 'y' are not there"):
        put("y", "new", doc)
