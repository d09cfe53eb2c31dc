"""``docs/architecture.md`` is true: its tree is the tree, and its ways are gone when the real thing runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.capture.models import SMALL, script
from tests.making import SAMPLES

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGE = ROOT / "tensordiff"
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_HOP = re.compile(r"^\d+\. `([^`]+:[^`]+)`(.*)$", re.MULTILINE)
_ELSEWHERE = ("in a thread", "called by Textual")
"""Words of a hop that nothing listed before it calls."""


def sections() -> dict[str, str]:
    return dict(_SECTION.findall(PAGE))


def hops(title: str) -> list[tuple[str, str]]:
    """The functions of a way, in order, each with what is said of it."""
    found = _HOP.findall(sections()[title])
    assert found, f"no hops under {title!r}"
    return found


def calls(*args: str | Path) -> set[tuple[str | None, str]]:
    ran = processes.run([sys.executable, "-m", "tests.call_trace", *map(str, args)], cwd=ROOT, check=True)
    return {(caller, callee) for caller, callee in json.loads(ran.stdout.splitlines()[-1])}


def refuse_gaps(way: list[tuple[str, str]], seen: set[tuple[str | None, str]]) -> None:
    """Each hop is called by one before it, unless its line says who else does."""
    before: list[str] = []
    for hop, text in way:
        callers = {caller for caller, callee in seen if callee == hop}
        assert callers, f"{hop} was not called"
        assert not before or callers & {*before} or any(word in text for word in _ELSEWHERE), (hop, callers)
        before.append(hop)


def test_a_row_through_compare() -> None:
    way = hops("A row through `compare`")
    assert len(way) <= 20
    refuse_gaps(way, calls("command", "compare", SAMPLES / "reference", SAMPLES / "candidate"))


def test_a_row_through_the_app() -> None:
    refuse_gaps(hops("A row through the app"), calls("app", SAMPLES / "reference", SAMPLES / "candidate"))


def test_a_tensor_through_capture_with_injection(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = script(tmp_path, SMALL)
    title = "A tensor through `capture --inject`"
    parents = [hop for hop in hops(title) if "in the child" not in hop[1]]
    children = [hop for hop in hops(title) if "in the child" in hop[1]]
    plain, candidate = f"py:{file}:good", f"py:{file}:bad"
    calls("command", "capture", plain, "-o", tmp_path / "reference")
    with_inputs = ("--inject", tmp_path / "reference")
    refuse_gaps(parents, calls("command", "capture", candidate, "-o", tmp_path / "injected", *with_inputs))
    refuse_gaps(children, calls("child", candidate, tmp_path / "reference", tmp_path / "again"))


def test_the_tree_has_every_folder_and_no_other() -> None:
    real = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} - {"."}
    told: list[str] = []
    for line in sections()["The tree"].splitlines():
        if (match := re.match(r"^( *)([a-z_]+)/ ", line)) is not None:
            depth = len(match[1]) // 2
            told[depth - 1 :] = [match[2]] if depth else []
            real.discard("/".join(told)) if depth else None
            assert not depth or (PACKAGE / "/".join(told)).is_dir(), told
    assert real == set()
