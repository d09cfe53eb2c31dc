"""Tests on GPUs, real or fake: ``make test-gpu`` runs them, in an environment where torch finds some."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensordiff.dump import Dump, open_dump
from tests.capture.models import Make, run_here, tiny_models
from tests.gpu.gpu_machine import why_no_fake

_HERE = Path(__file__).parent
Captures = Callable[..., Dump]


def _why_not() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed here"
    import torch

    if torch.cuda.is_available():
        return None
    return why_no_fake() or "these run where torch finds a GPU, real or fake: make test-gpu"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in ours:
        item.add_marker(pytest.mark.gpu)
    if ours and "not gpu" not in str(config.option.markexpr) and (why := _why_not()) is not None:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def captures(tmp_path: Path) -> Captures:
    """Capture a source in this process, into a folder of a name."""

    def capture(source: str, name: str, **settings: Any) -> Dump:
        return open_dump(run_here(source, tmp_path / name, **settings).path)

    return capture


@pytest.fixture
def two_gpus() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed, and there is one")


@pytest.fixture
def fake() -> Any:
    """What the fake devices counted; a real one does not tell."""
    if not os.environ.get("FAKE_CUDA"):
        pytest.skip("only the fake devices count this, or can be told to fail so")
    return import_module("fake_cuda_devices")


@pytest.fixture
def room(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Leave so many bytes free on each GPU and, as accelerate counts them, on the host."""

    def leave(*, gpu: int, host: int | None = None) -> None:
        gc.collect()
        fake.set_memory(gpu)
        if host is not None:
            monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=host, total=host))

    yield leave
    fake.set_memory()
