"""What ``--inject-at`` names: a layer or a range by whole names, by those of both sides, or by how one alone ends."""

from __future__ import annotations

import pytest

from tensordiff.capture.injection.passes import Layers, plan_passes
from tensordiff.errors import CaptureError

BEGUN = {"model": 0, "model.h.0": 1, "model.h.0.norm": 2, "model.h.0.mlp": 4, "model.h.1": 7, "model.h.1.norm": 8}
ENDED = {"model.h.0.norm": 3, "model.h.0.mlp": 5, "model.h.0": 6, "model.h.1.norm": 9, "model.h.1": 10, "model": 11}


def layers() -> Layers:
    """Two blocks; a block is called otherwise on both sides, as vLLM's are, whose residuals travel apart."""
    return Layers(BEGUN, ENDED, {"blocks.1.before_residual": "model.h.1", "blocks.0.norm": "model.h.0.norm"})


@pytest.mark.parametrize(
    ("at", "layer"),
    [
        ("model.h.0.mlp", "model.h.0.mlp"),
        ("blocks.0.norm", "model.h.0.norm"),
        ("blocks.1.before_residual", "model.h.1"),
        ("h.1", "model.h.1"),
        ("h.1.norm", "model.h.1.norm"),
    ],
)
def test_one_layer_is_meant(at: str, layer: str) -> None:
    (one,) = plan_passes(at, layers())
    assert (set(one.inputs), set(one.outputs), set(one.written)) == ({layer}, set(), set(BEGUN))


def test_what_several_layers_end_with_is_an_expression() -> None:
    (one,) = plan_passes("norm", layers())
    assert one.inputs == {"model.h.0.norm", "model.h.1.norm"}


@pytest.mark.parametrize(
    ("at", "matched"),
    [(r"^blocks\.", {"model.h.0.norm", "model.h.1"}), (r"0\.norm$|mlp", {"model.h.0.norm", "model.h.0.mlp"})],
)
def test_an_expression_is_of_the_names_of_both_sides_too(at: str, matched: set[str]) -> None:
    assert set().union(*(one.inputs for one in plan_passes(at, layers()))) == matched


@pytest.mark.parametrize("at", ["..h.1", "..model.h.1", "model.h.0..h.1", "h.0..blocks.1.before_residual"])
def test_a_range_ends_where_its_end_is_named(at: str) -> None:
    (one,) = plan_passes(at, layers())
    assert (set(one.inputs), set(one.outputs)) == ({"model.h.1"}, {"model.h.0", "model.h.0.norm", "model.h.0.mlp"})


def test_what_names_nothing_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"no layer matches; give all, once, leaves, a layer's name, FROM\.\.TO"):
        plan_passes("..h.2", layers())
