"""Dumps of other people's tools, where they lie beside the checkout: opened, counted, and the planted bug found.

docs/formats.md has a table of them, which is held here: what is read as what, how many tensors, and the culprit
against the clean side. Against our own capture a culprit may only become better.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tensordiff.dump import open_dump
from tests.verdicts import verdict_of

ROOT = Path(__file__).parents[1]
FORMATS_MD = (ROOT / "docs" / "formats.md").read_text("utf-8")


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_formats", ROOT / "docs" / "make_formats.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
FOREIGN: Path = SCRIPT.FOREIGN
NAMES: list[str] = SCRIPT.foreign_names()
SKIP = pytest.mark.skipif(not NAMES, reason="the dumps are not beside this checkout")
PLANTED = ("layers.1.mlp", "norm", "lm_head", "blk.1.ffn_gate", "blocks.1.mlp", "hidden_states.1", "silu_1", "layer1")
"""The layer, or the nearest after it that a tool dumped; ``silu_1`` is its node in the exported graph."""


def test_the_table_of_formats_is_the_registrys() -> None:
    assert SCRIPT.format_rows() in FORMATS_MD


@SKIP
@pytest.mark.parametrize("name", NAMES)
def test_the_planted_bug_is_found(name: str) -> None:
    *cells, _ours = SCRIPT.foreign_row(name).rstrip(" |").split(" | ")
    assert " | ".join(cells) in FORMATS_MD
    assert cells[-1].strip("`").startswith(PLANTED)


@SKIP
@pytest.mark.parametrize("name", NAMES)
def test_nothing_wrong_is_said_of_a_clean_side(name: str) -> None:
    """Neither against itself, nor, wherever something pairs, against our own capture."""
    clean = FOREIGN / name / "clean"
    expected = ("unknown", 2) if open_dump(clean).statistics else ("agrees", 0)
    assert verdict_of(clean, clean) == expected
    assert verdict_of(SCRIPT.OURS, clean) in (expected, ("unknown", 2))


@SKIP
@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_read_or_named(name: str) -> None:
    """Entries may be fewer than files only where ranks hold the same tensor."""
    dump = open_dump(FOREIGN / name / "clean")
    suffixes = (".pt", ".pth", ".npy", ".safetensors")
    files = sum(path.name.endswith(suffixes) for path in (FOREIGN / name / "clean").rglob("*"))
    ranks = 2 if name == "sglang_tp2" else 1
    assert len(dump) * ranks >= files and not [problem for problem in dump.problems if problem.is_unread and files]
