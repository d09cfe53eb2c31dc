"""Tests that run Modular MAX. They compile models, which takes minutes the first time: ``make test-max`` runs them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.capture_max.making import make_model
from tests.capture_max.running import Sides

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("max", "torch", "transformers") if importlib.util.find_spec(name) is None]
    why = f"{' and '.join(missing)} not installed here; pip install 'tensordiff[max]' for these tests"
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.max)
            if missing:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def plain_instructions() -> Iterator[None]:
    """Some virtual machines promise torch instructions for bfloat16 and then refuse them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEDNN_MAX_CPU_ISA", os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"))
        yield


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and dumps of the whole session lie."""
    return tmp_path_factory.mktemp("max")


@pytest.fixture(scope="session")
def model(shelf: Path) -> Callable[[str], Path]:
    """A tiny checkpoint by the name of its architecture, made once."""

    def made(name: str) -> Path:
        folder = shelf / "models" / name
        return folder if folder.exists() else make_model(name, folder)

    return made


@pytest.fixture(scope="session")
def sides(shelf: Path, model: Callable[[str], Path]) -> Callable[[str, str], Sides]:
    """Both captures of a model, and the candidate's injected one, each made once."""
    kept: dict[tuple[str, str], Sides] = {}

    def both(name: str, dtype: str = "float32") -> Sides:
        if (name, dtype) not in kept:
            kept[name, dtype] = Sides(model(name), dtype, shelf / "dumps" / f"{name}-{dtype}")
        return kept[name, dtype]

    return both
