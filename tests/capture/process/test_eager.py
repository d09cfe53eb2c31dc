"""Parameters of models that are watched call by call: written where the model shows them, else refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensordiff.capture.job import Job, Source
from tensordiff.capture.process.eager import Watch, run_eagerly
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.errors import CaptureError

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


class Model:
    """One layer."""

    framework = "numpy"

    def layers(self) -> list[str]:
        return ["model"]

    def run(self, watch: Watch) -> None:
        x = watch.inputs("model", {"input_0": np.ones(3, np.float32)})["input_0"]
        watch.outputs("model", {"output": WEIGHT @ x})

    def facts(self) -> Mapping[str, Any]:
        return {"dtype": "float32"}


class Showing(Model):
    """The same, and what it holds."""

    def parameters(self) -> list[tuple[str, Array]]:
        return [("weight", WEIGHT)]


def job(folder: Path, **settings: Any) -> Job:
    return Job(Source("numpy", "model.py"), Settings(**settings), str(folder / "dump"))


def test_parameters_are_written_beside_the_run(tmp_path: Path) -> None:
    done = run_eagerly(Showing(), job(tmp_path, weights=True), lambda _: None)
    dump = open_dump(tmp_path / "dump")
    assert [(entry.layer, entry.read().tolist()) for entry in dump.parameters] == [("weight", WEIGHT.tolist())]
    assert done.entries == len(dump.entries) == 2


def test_without_being_asked_none_are_written(tmp_path: Path) -> None:
    run_eagerly(Showing(), job(tmp_path), lambda _: None)
    assert open_dump(tmp_path / "dump").parameters == ()


def test_a_model_that_shows_none_refuses(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="--weights: numpy: sources do not show what they hold; leave it out"):
        run_eagerly(Model(), job(tmp_path, weights=True), lambda _: None)
