"""Finding a layer by the name that a user gives, and selecting the layers that are written."""

from __future__ import annotations

import pytest

from tensordiff.capture.process.layers import Selection, call_label, find_layer, leaves
from tensordiff.dump.model import CallKey
from tensordiff.errors import CaptureError

LAYERS = ["model", "model.net.layers.0", "model.net.layers.0.mlp", "model.net.layers.1.mlp"]


@pytest.mark.parametrize(
    ("asked", "layer"),
    [
        ("model", "model"),
        ("net.layers.0", "model.net.layers.0"),
        ("layers.1.mlp", "model.net.layers.1.mlp"),
        ("model.layers.0", "model.net.layers.0"),
    ],
)
def test_a_layer_is_found_by_its_name_or_its_end(asked: str, layer: str) -> None:
    assert find_layer(asked, LAYERS) == layer


def test_a_whole_name_wins_over_the_same_name_without_the_root() -> None:
    assert find_layer("model.norm", ["model", "model.model.norm", "model.norm"]) == "model.norm"


def test_a_layer_is_found_by_the_name_that_both_sides_use() -> None:
    names = ["model", "model.language_model.layers.layers.0.mlp", "model.language_model.layers.layers.1.mlp"]
    assert find_layer(
        "model.model.layers.1.mlp", names, lambda name: name.replace("layers.layers", "layers")[-14:]
    ) == ("model.language_model.layers.layers.1.mlp")
    assert find_layer(
        "model.model.layers.1.mlp", ["model", "model.layers.layers.0.mlp", "model.layers.layers.1.mlp"]
    ) == ("model.layers.layers.1.mlp")


def test_a_name_of_several_layers_or_of_none_is_refused() -> None:
    with pytest.raises(
        CaptureError, match=r"mlp: there are 2 of that name; give one whole: model\.net\.layers\.0\.mlp, "
    ):
        find_layer("mlp", LAYERS)
    with pytest.raises(CaptureError, match=r"layers\.2\.mlp: there is no such layer; near it: model\.net\.layers"):
        find_layer("layers.2.mlp", LAYERS)


def test_leaves_contain_no_other_layer() -> None:
    assert leaves(LAYERS) == {"model.net.layers.0.mlp", "model.net.layers.1.mlp"}


def test_a_selection_takes_layers_and_ports() -> None:
    assert not Selection(leaves=True).takes("model", "output", is_leaf=False)
    assert not Selection(inputs=False).takes("model", "input_0", is_leaf=True)
    assert Selection(inputs=False).takes("model", "output", is_leaf=True)
    assert Selection("mlp$").takes_layer("model.mlp", is_leaf=False)
    assert not Selection.only("model.a").takes_layer("modelxa", is_leaf=True)
    assert Selection.only("model.a", within="(/.*)?").takes_layer("model.a/op_00_mul", is_leaf=True)
    assert not Selection.only("model.a", within="(/.*)?").takes_layer("model.a.b", is_leaf=True)


def test_a_call_is_labelled_by_number_and_step_where_they_are_not_the_first() -> None:
    assert [call_label(CallKey("a", *key)) for key in ((0, 1), (0, 2), (3, 1))] == ["a", "a(2)", "a step 3"]
