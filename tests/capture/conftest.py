"""Tiny checkpoints, made once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.models import SMALL, Make, script, tiny_models


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A user's file with a net in three versions; add a function's name to it."""
    return f"py:{script(tmp_path, SMALL)}:"
