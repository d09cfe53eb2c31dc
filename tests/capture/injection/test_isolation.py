"""Which calls of an injected run were isolated: one rule for every engine, and a MAX run without MAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.engines.max.inject import InjectedSteps, run_injected
from tensordiff.capture.engines.max.sites import (
    FixedInput,
    GraphSite,
    InputSlot,
    ModelInputs,
    SiteValues,
    StepTensors,
)
from tensordiff.capture.events import Event
from tensordiff.capture.injection.injector import isolates
from tensordiff.capture.settings import Injection
from tensordiff.dump.dtypes import Array
from tensordiff.dump.native.writer import DumpWriter

X, GATE, TABLE = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 3.0]), np.ones((16, 3))
IDS = np.arange(40)
FIRST, BLOCK = "model.first", "model.block"
INPUT, SCALE, ANGLES, INDICES = (GraphSite(BLOCK, f"input_{number}", 1) for number in range(4))
OUTPUT = GraphSite(BLOCK, "output", 1)
INPUTS = ModelInputs(
    [InputSlot(site, None, (), None) for site in (INPUT, SCALE)],
    [FixedInput(ANGLES, "it is a constant of the model", is_constant=True), FixedInput(INDICES, "it holds int64")],
)


@pytest.mark.parametrize(
    ("float_inputs", "injected", "is_isolated"),
    [
        ({"input_x": 64, "input_mask": 16}, ["input_x"], True),
        ({"input_x": 64, "input_mask": 16}, ["input_mask"], False),
        ({"input_x": 64, "input_mask": 16}, ["input_ids"], False),
        ({"input_x": 64}, [], False),
        ({}, ["input_ids"], True),
        ({}, [], False),
    ],
)
def test_the_largest_float_input_isolates_a_call(
    float_inputs: dict[str, int], injected: Sequence[str], is_isolated: bool
) -> None:
    assert isolates(float_inputs, injected) is is_isolated


def noted(gain: float, given: dict[GraphSite, Array]) -> StepTensors:
    """Two layers: the first multiplies by ``gain``, the second by a gate; a table and indices are beside."""
    first = X * gain
    x, gate = given.get(INPUT, first), given.get(SCALE, GATE)
    return [
        (GraphSite(FIRST, "output", 1), first),
        (INPUT, x), (SCALE, gate), (ANGLES, TABLE), (INDICES, IDS),
        (GraphSite(BLOCK, "output", 1), x * gate),
    ]  # fmt: skip


def run(steps: Mapping[int, SiteValues]) -> Iterator[StepTensors]:
    for step in range(2):
        yield noted(2.0, dict(steps.get(step, {})))


@pytest.fixture
def injected(tmp_path: Path) -> Callable[..., InjectedSteps]:
    """The candidate run on a reference that recorded some of its tensors only."""

    events: list[Event] = []

    def inject(*recorded: GraphSite) -> InjectedSteps:
        with DumpWriter(tmp_path / "reference", {"source": "test"}) as writer:
            for step in range(2):
                for site, array in noted(1.0, {}):
                    if site in recorded or site.layer == FIRST:
                        writer.add(site.key(step).name, array, step=step)
        return run_injected(Injection(str(tmp_path / "reference"), at=BLOCK), list(run({})), INPUTS, run, events.append)

    return inject


@pytest.mark.parametrize(("recorded", "is_isolated"), [((INPUT, SCALE), True), ((INPUT,), True), ((SCALE,), False)])
def test_a_max_layer_is_isolated_by_its_largest_input(
    injected: Callable[..., InjectedSteps], recorded: tuple[GraphSite, ...], is_isolated: bool
) -> None:
    found = injected(*recorded)
    layers = found.report.as_json(Injection("reference"))["layers"]
    assert [layers[name]["isolated"] for name in (BLOCK, f"{BLOCK} step 1")] == [is_isolated] * 2
    names = tuple(site.key(0).name for site in recorded) if is_isolated else None
    assert [found.report.names(OUTPUT.call_key(step), "output") for step in range(2)] == [names] * 2
    assert all(found.report.names(site.call_key(0), site.port) == (site.key(0).name,) for site in recorded)
    assert set(layers[BLOCK]["injected"]) == {site.port for site in recorded}


def test_a_max_layer_that_is_isolated_shows_no_error_of_those_before_it(injected: Callable[..., InjectedSteps]) -> None:
    outputs = {site: array for site, array in injected(INPUT).steps[0] if site.port == "output"}
    assert np.array_equal(outputs[OUTPUT], X * GATE)
    assert np.array_equal(outputs[GraphSite(FIRST, "output", 1)], X * 2)
