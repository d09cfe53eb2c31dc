from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.align.expression import names, parse
from tensordiff.align.index import ComputedTensor, computed
from tensordiff.dump.model import entry
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError
from tests.making import MemoryTensor, held

pytest.importorskip("torch")
from tensordiff.capture.injection.injector import Injector, plan_injection
from tensordiff.capture.injection.sources import split_computed
from tensordiff.capture.settings import Injection

R = 100 * np.arange(6.0).reshape(1, 3, 2)
Q, K = np.arange(6.0).reshape(1, 3, 2), 10 + np.arange(3.0).reshape(1, 3, 1)


def stored(text: str) -> ComputedTensor:
    expression = parse(text)
    entries = {name: entry(name, MemoryTensor({"q": Q, "k": K, "r": R}[name])) for name in names(expression)}
    found = computed(expression, entries).stored
    assert isinstance(found, ComputedTensor)
    return found


@pytest.mark.parametrize(
    "text", ["cat(q, k)", "permute(q, 2, 0, 1)", "squeeze(q, 0)", "reshape(transpose(q, 1, 2), 6)", "unsqueeze(k, 0)"]
)
def test_a_view_is_gone_backwards(text: str) -> None:
    found = stored(text)
    back = split_computed(found, found.read())
    for name, one in found.entries.items():
        assert np.array_equal(back[one.key], {"q": Q, "k": K}[name])


@pytest.mark.parametrize("text", ["scale(q, 2)", "last_token(q)", "sum(q, q)", "slice(q, 1, 0, 2)"])
def test_what_loses_something_cannot_be(text: str) -> None:
    found = stored(text)
    with pytest.raises(CaptureError, match="cannot be inverted"):
        split_computed(found, found.read())


def test_a_sum_is_given_whole_to_its_first_part() -> None:
    found = stored("sum(q, r)")
    back = split_computed(found, found.read())
    assert np.array_equal(back[found.entries["q"].key], Q + R)
    assert np.array_equal(back[found.entries["r"].key], np.zeros_like(R))


@pytest.mark.parametrize(("steps", "told"), [(3, ""), (1, "; the reference has 3 steps, and 1 was run")])
def test_steps_of_the_reference_that_are_not_run_are_told(tmp_path: Path, steps: int, told: str) -> None:
    names = ("model-input_0", "model-output")
    with DumpWriter(tmp_path / "reference", {}) as writer:
        for step, name in ((step, name) for step in range(3) for name in names):
            writer.add(name, R, step=step)
    entries = [one for step in range(steps) for one in held(dict.fromkeys(names, R), step=step).entries]
    injector = Injector(plan_injection(Injection(str(tmp_path / "reference")), entries, {}))
    assert injector.report.sentence() == f"0 of 0 layers were given the reference's inputs{told}"
