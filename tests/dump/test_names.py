"""Names taken apart, and put in natural order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.dump.names import natural_key, parse_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("model.layers.0.mlp-output", ("model.layers.0.mlp", "output", 1)),
        ("model.layers.0.mlp-output_1", ("model.layers.0.mlp", "output_1", 1)),
        ("model.layers.0.mlp-input", ("model.layers.0.mlp", "input", 1)),
        ("model.layers.0.mlp-input_0", ("model.layers.0.mlp", "input_0", 1)),
        ("model.layers.0-input_hidden_states", ("model.layers.0", "input_hidden_states", 1)),
        ("model-output_logits", ("model", "output_logits", 1)),
        ("norm(2)-output", ("norm", "output", 2)),
        ("norm(12)-input_0", ("norm", "input_0", 12)),
        ("norm(2)", ("norm", "output", 2)),
        ("model.layers.0.mlp_output", ("model.layers.0.mlp", "output", 1)),
        ("model.layers.0.mlp_output_1", ("model.layers.0.mlp", "output_1", 1)),
        ("model.layers.0.mlp_input_0", ("model.layers.0.mlp", "input_0", 1)),
        ("model.layers.0.mlp_input_0_injected", ("model.layers.0.mlp", "input_0", 1)),
        ("model.layers.0_input_hidden_states", ("model.layers.0", "input_hidden_states", 1)),
        ("model.layers.0_input_hidden_states_injected", ("model.layers.0", "input_hidden_states", 1)),
        ("model.layers.0.input_layernorm", ("model.layers.0.input_layernorm", "output", 1)),
        ("model.layers.0.input_layernorm-output", ("model.layers.0.input_layernorm", "output", 1)),
        ("layer-1", ("layer-1", "output", 1)),
        ("layer-norm-output", ("layer-norm", "output", 1)),
        ("w", ("w", "output", 1)),
        ("", ("", "output", 1)),
        ("-output", ("-output", "output", 1)),
        ("_output", ("_output", "output", 1)),
        ("output", ("output", "output", 1)),
        ("(2)-output", ("(2)", "output", 1)),
        ("f(x)-output", ("f(x)", "output", 1)),
        ("f()-output", ("f()", "output", 1)),
        ("f(9999999999)-output", ("f(9999999999)", "output", 1)),
        ("a\nb(2)-output", ("a\nb", "output", 2)),
        ("blocks[/0]-output", ("blocks[/0]", "output", 1)),
    ],
)
def test_parts(name: str, parts: tuple[str, str, int]) -> None:
    assert parse_name(name) == parts


def made_of(*pieces: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), max_size=8).map("".join)


@given(made_of(*"ab.0_-()", "_input", "-output", "(2)", "_injected", "語", "\n"))
def test_any_text_has_parts(name: str) -> None:
    layer, port, call = parse_name(name)
    assert port.startswith(("input", "output"))
    assert call >= 0
    assert bool(layer) == bool(name)
    assert layer in name


@given(
    st.from_regex(r"[a-z][a-z0-9.]{0,20}", fullmatch=True),
    st.integers(1, 99),
    st.sampled_from(["output", "output_3", "input_0", "input_hidden_states"]),
)
def test_what_a_hook_writes_is_what_is_read(layer: str, call: int, port: str) -> None:
    written = f"{layer}({call})-{port}" if call > 1 else f"{layer}-{port}"
    assert parse_name(written) == (layer, port, call)


@pytest.mark.parametrize("unit", ["_input_a", "_input", "_output_", "(1", "-input_", "a_injected"])
def test_long_names_cost_no_more_than_their_length(unit: str) -> None:
    # A square of this length would take hours.
    assert parse_name(unit * 1_000_000 + ".")[1].startswith(("input", "output"))


@pytest.mark.parametrize(
    "names",
    [
        ["layers.0", "layers.1", "layers.2", "layers.10", "layers.100"],
        ["1", "2", "a", "a1", "a2", "a10", "b"],
        ["layer9.x", "layer10.a"],
        ["a", "a.b", "a.b.c"],
    ],
)
def test_natural_order(names: list[str]) -> None:
    mixed = names[::-1]
    assert sorted(mixed, key=natural_key) == names


@given(st.lists(made_of(*"a1٣²9.", "9" * 2000), max_size=8))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key)) == sorted(names)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("model.layers.0.mlp.inputs.0", ("model.layers.0.mlp", "input_0", 1)),
        ("model.layers.0.mlp.inputs.hidden_states", ("model.layers.0.mlp", "input_hidden_states", 1)),
        ("model.layers.0.mlp.outputs", ("model.layers.0.mlp", "output", 1)),
        ("model.layers.0.mlp.outputs.1", ("model.layers.0.mlp", "output_1", 1)),
        ("model.layers.0.mlp.in_0", ("model.layers.0.mlp", "input_0", 1)),
        ("model.layers.0.mlp.out_1", ("model.layers.0.mlp", "output_1", 1)),
        ("decoder/layers.0/output0", ("decoder/layers.0", "output_0", 1)),
        ("encoder.layer.0.attention.output", ("encoder.layer.0.attention.output", "output", 1)),
        ("layer/op_03_aten.mm", ("layer/op_03_aten.mm", "output", 1)),
        ("mlp.fc_out", ("mlp.fc_out", "output", 1)),
        ("inputs.0", ("inputs.0", "output", 1)),
    ],
)
def test_spellings_of_other_tools(name: str, parts: tuple[str, str, int]) -> None:
    assert parse_name(name) == parts
