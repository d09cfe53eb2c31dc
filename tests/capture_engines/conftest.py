"""Tests that run engines in environments of their own: ``make test-engines`` makes those and runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensordiff.capture.child import ReusableChild
from tensordiff.capture.interpreter import interpreter
from tests.capture_engines.models import ModelCase
from tests.capture_engines.running import Shelf
from tests.cli.command import Call, caller

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.engines)
            kind = _kind(item)
            if kind is not None and f".venv-{kind}" not in interpreter(kind):
                item.add_marker(pytest.mark.skip(reason=f"there is no .venv-{kind}; make engine-{kind}"))


def _kind(item: pytest.Item) -> str | None:
    """The engine that a test runs: of its parameter, of its file, or none beside hf."""
    parameters = getattr(item, "callspec", None)
    for value in parameters.params.values() if parameters is not None else ():
        if isinstance(value, ModelCase):
            return value.engine.kind
    kind = item.path.stem.removeprefix("test_")
    return kind if kind in ("llamacpp", "mlx", "vllm") else None


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """Checkpoints and captures of the whole session, each made once."""
    with ReusableChild() as child:
        yield Shelf(tmp_path_factory.mktemp("engines"), child)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command in this process; gives its status, stdout and stderr."""
    return caller(capsys, monkeypatch)
