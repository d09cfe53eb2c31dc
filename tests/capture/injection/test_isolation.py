"""Which calls of an injected run were isolated: one rule for every engine, and a MAX run without MAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensordiff.capture.engines.max.inject import Injected, Noted, Steps, injected_run
from tensordiff.capture.engines.max.places import Inlets, Place, Refused, Slot
from tensordiff.capture.injection.sources import isolates
from tensordiff.capture.settings import Injection
from tensordiff.dump.dtypes import Array
from tensordiff.dump.writer import DumpWriter

X, GATE, TABLE = np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 3.0]), np.ones((16, 3))
IDS = np.arange(40)
FIRST, BLOCK = "model.first", "model.block"
INPUT, SCALE, ANGLES, INDICES = (Place(BLOCK, f"input_{number}", 1) for number in range(4))
INLETS = Inlets(
    [Slot(place, None, (), None) for place in (INPUT, SCALE)],
    [Refused(ANGLES, "it is a constant of the model", is_constant=True), Refused(INDICES, "it holds int64")],
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


def noted(gain: float, given: dict[Place, Array]) -> Noted:
    """Two layers: the first multiplies by ``gain``, the second by a gate; a table and indices are beside."""
    first = X * gain
    x, gate = given.get(INPUT, first), given.get(SCALE, GATE)
    return [
        (Place(FIRST, "output", 1), first),
        (INPUT, x), (SCALE, gate), (ANGLES, TABLE), (INDICES, IDS),
        (Place(BLOCK, "output", 1), x * gate),
    ]  # fmt: skip


def run(steps: Steps) -> Iterator[Noted]:
    for step in range(2):
        yield noted(2.0, dict(steps.get(step, {})))


@pytest.fixture
def injected(tmp_path: Path) -> Callable[..., Injected]:
    """The candidate run on a reference that recorded some of its tensors only."""

    def inject(*recorded: Place) -> Injected:
        with DumpWriter(tmp_path / "reference", {"source": "test"}) as writer:
            for step in range(2):
                for place, array in noted(1.0, {}):
                    if place in recorded or place.layer == FIRST:
                        writer.add(place.name, array, step=step)
        return injected_run(Injection(str(tmp_path / "reference"), at=BLOCK), list(run({})), INLETS, run)

    return inject


@pytest.mark.parametrize(("recorded", "is_isolated"), [((INPUT, SCALE), True), ((INPUT,), True), ((SCALE,), False)])
def test_a_max_layer_is_isolated_by_its_largest_input(
    injected: Callable[..., Injected], recorded: tuple[Place, ...], is_isolated: bool
) -> None:
    found = injected(*recorded)
    layers = found.as_json(Injection("reference"))["layers"]
    assert [layers[name]["isolated"] for name in (BLOCK, f"{BLOCK} step 1")] == [is_isolated] * 2
    names = tuple(place.name for place in recorded) if is_isolated else None
    assert [found.names(step, Place(BLOCK, "output", 1)) for step in range(2)] == [names] * 2
    assert all(found.names(0, place) == (place.name,) for place in recorded)
    assert set(layers[BLOCK]["injected"]) == {place.port for place in recorded}


def test_a_max_layer_that_is_isolated_shows_no_error_of_those_before_it(injected: Callable[..., Injected]) -> None:
    outputs = {place: array for place, array in injected(INPUT).steps[0] if place.port == "output"}
    assert np.array_equal(outputs[Place(BLOCK, "output", 1)], X * GATE)
    assert np.array_equal(outputs[Place(FIRST, "output", 1)], X * 2)
