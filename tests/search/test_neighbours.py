"""What stands around a row."""

from __future__ import annotations

from tensordiff.compare.comparer import Comparer
from tensordiff.compare.row import Row
from tensordiff.search.neighbours import neighbours_of
from tests.making import nudged, numbers, pairs

REF = {
    f"{name}-{port}": numbers(3, 4, seed=k)
    for k, (name, port) in enumerate(
        [
            ("m.embed", "output"),
            ("m.layers.0.attn.q", "input_0"),
            ("m.layers.0.attn.q", "output"),
            ("m.layers.0.attn", "input_0"),
            ("m.layers.0.attn", "output"),
            ("m.layers.0.attn", "output_1"),
            ("m.layers.0", "output"),
            ("m", "output"),
        ]
    )
}


def rows(error: float = 1e-6) -> list[Row]:
    cand = {name: nudged(value, error) for name, value in REF.items()}
    return list(Comparer().rows(pairs(REF, cand)))


def place(found: list[Row], name: str, port: str = "output") -> int:
    return next(k for k, row in enumerate(found) if (row.pair.reference.layer, row.pair.reference.port) == (name, port))


def test_inputs_and_other_outputs() -> None:
    found = rows()
    at = place(found, "m.layers.0.attn")
    seen = neighbours_of(found, at)
    assert seen.inputs == (place(found, "m.layers.0.attn", "input_0"),)
    assert seen.outputs == (place(found, "m.layers.0.attn", "output_1"),)


def test_parents_and_children_skip_what_was_not_dumped() -> None:
    found = rows()
    seen = neighbours_of(found, place(found, "m.layers.0"))
    assert seen.parent == place(found, "m")
    assert seen.children == (place(found, "m.layers.0.attn"),)
    whole = neighbours_of(found, place(found, "m"))
    assert whole.parent is None
    assert set(whole.children) == {place(found, "m.embed"), place(found, "m.layers.0")}


def test_before_and_after_are_outputs_of_other_layers() -> None:
    found = rows()
    seen = neighbours_of(found, place(found, "m.layers.0.attn"))
    assert seen.previous == place(found, "m.layers.0.attn.q")
    assert seen.following == place(found, "m.layers.0")
    assert neighbours_of(found, place(found, "m.embed")).previous is None
    assert neighbours_of(found, place(found, "m")).following is None
