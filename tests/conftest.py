"""What tests share: watching which files are opened, instead of a clock."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files opened by the test, each as often as it was. Clear it after making some."""
    names: list[str] = []

    def noting(real: Any) -> Any:
        def noted(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int):
                names.append(Path(os.fsdecode(path)).name)
            return real(path, *args, **kwargs)

        return noted

    for module in (os, io, builtins):
        monkeypatch.setattr(module, "open", noting(module.open))
    return names
