"""Dumps of other people's tools, where they lie beside the checkout: read or not, never a false ``agrees``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.dump.readers import SUFFIXES
from tensordiff.errors import DumpError
from tensordiff.session.request import Request
from tensordiff.session.session import Session

FOREIGN = Path(__file__).parents[2] / "shared" / "foreign"
FORMATS = sorted(path.name for path in FOREIGN.iterdir() if (path / "buggy").is_dir()) if FOREIGN.is_dir() else []

pytestmark = pytest.mark.skipif(not FORMATS, reason="the dumps are not beside this checkout")


def exit_status(reference: Path, candidate: Path) -> int:
    try:
        session = Session.open(Request(reference, candidate))
    except DumpError:
        return 2
    return session.outcome(session.rows()).exit_status


def tensor_files(folder: Path) -> int:
    return sum(path.name.lower().endswith(SUFFIXES) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_planted_bug_is_never_said_to_agree(name: str) -> None:
    assert exit_status(FOREIGN / name / "clean", FOREIGN / name / "buggy") != 0


@pytest.mark.parametrize("name", FORMATS)
def test_a_dump_agrees_with_itself_only_where_all_of_it_was_read(name: str) -> None:
    folder = FOREIGN / name / "clean"
    if exit_status(folder, folder) == 0:
        dump = Session.open(Request(folder, folder)).reference
        assert len(dump) >= tensor_files(folder)
