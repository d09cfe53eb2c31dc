"""The layers of a llama.cpp graph, from lists of nodes as llama.cpp gives them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tensordiff.capture.engines.llamacpp.architectures import architecture
from tensordiff.capture.engines.llamacpp.graph import F32, Graph, LayerCall, Tensor, layer_name


class Making:
    """Nodes and leaves by name, with addresses."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: dict[int, Tensor] = {}
        self._addresses = iter(range(1000, 9000, 8))

    def leaf(self, name: str) -> int:
        made = self._tensor(name, "NONE", ())
        self.leaves[made.address] = made
        return made.address

    def node(self, name: str, op: str, *sources: int, view_of: int | None = None) -> int:
        self.nodes.append(self._tensor(name, op, sources)._replace(view_of=view_of))
        return self.nodes[-1].address

    def _tensor(self, name: str, op: str, sources: Sequence[int]) -> Tensor:
        return Tensor(next(self._addresses), name, op, F32, (3, 4), (16, 4), 48, tuple(sources), None)

    def norm(self, name: str, weight: str, x: int) -> int:
        return self.node(name, "MUL", self.node("norm", "RMS_NORM", x), self.leaf(f"{weight}.weight"))

    def linear(self, name: str, weight: str, x: int, *, bias: bool = False) -> int:
        made = self.node(name, "MUL_MAT", self.leaf(f"{weight}.weight"), x)
        return self.node(name, "ADD", made, self.leaf(f"{weight}.bias")) if bias else made

    def block(self, n: int, x: int) -> int:
        """A block as Qwen's: q with a bias, an output projection without a name."""
        normed = self.norm(f"attn_norm-{n}", f"blk.{n}.attn_norm", x)
        q = self.linear(f"Qcur-{n}", f"blk.{n}.attn_q", normed, bias=True)
        q = self.node(f"Qcur-{n}", "ROPE", q, self.leaf("inp_pos"), self.leaf("rope_freqs.weight"))
        cache = self.leaf(f"cache_k_l{n}")
        k = self.linear(f"Kcur-{n}", f"blk.{n}.attn_k", normed)
        self.node(f"cache_k_l{n} (view)", "SET_ROWS", k, self.leaf("attn_inp_k_idxs"), cache, view_of=cache)
        out = self.node(f"kqv-{n}", "MUL_MAT", self.node("", "VIEW", cache, view_of=cache), q)
        out = self.linear(f"node_{n}", f"blk.{n}.attn_output", out)
        x = self.node(f"ffn_inp-{n}", "ADD", out, x)
        normed = self.norm(f"ffn_norm-{n}", f"blk.{n}.ffn_norm", x)
        up = self.linear(f"ffn_up-{n}", f"blk.{n}.ffn_up", normed)
        down = self.linear(f"ffn_out-{n}", f"blk.{n}.ffn_down", self.node(f"ffn_swiglu-{n}", "SWIGLU", up))
        return self.node(f"l_out-{n}", "ADD", down, x)

    def graph(self) -> Graph:
        return Graph(self.nodes, self.leaves)


@pytest.fixture
def graph() -> Graph:
    """Two blocks between embeddings, of which one is of no use, and a head with the embeddings' weights."""
    made = Making()
    weight = made.leaf("token_embd.weight")
    x = made.node("embd", "GET_ROWS", weight, made.leaf("inp_tokens"))
    made.node("node_1", "GET_ROWS", weight, made.leaf("inp_mixed_tokens"))
    for n in range(2):
        x = made.block(n, x)
    x = made.norm("result_norm", "output_norm", x)
    made.node("result_output", "MUL_MAT", weight, x)
    return made.graph()


def named(graph: Graph, layer: str) -> LayerCall:
    (call,) = [call for call in graph.calls if call.layer == layer]
    return call


def names(graph: Graph, call: LayerCall) -> tuple[str, str]:
    """The first and the last node of a call."""
    return graph.nodes[call.first].name, graph.nodes[call.last].name


def test_layers_are_named_after_weights_and_stand_in_order(graph: Graph) -> None:
    within = [
        "",
        ".attn_norm",
        ".attn",
        ".attn.q",
        ".attn.k",
        ".attn.output",
        ".ffn_norm",
        ".ffn",
        ".ffn.up",
        ".ffn.down",
    ]
    blocks = [f"model.blk.{n}{part}" for n in (0, 1) for part in within]
    expected = ["model", "model.token_embd", *blocks, "model.output_norm", "model.output"]
    assert [call.layer for call in graph.calls] == expected


@pytest.mark.parametrize(
    ("layer", "first", "last"),
    [
        ("model.blk.0.attn_norm", "norm", "attn_norm-0"),
        ("model.blk.0.attn", "Qcur-0", "node_0"),
        ("model.blk.1.ffn", "ffn_up-1", "ffn_out-1"),
        ("model.blk.0", "norm", "l_out-0"),
        ("model.output_norm", "norm", "result_norm"),
        ("model", "embd", "result_output"),
    ],
)
def test_a_layer_is_what_is_computed_between_two_nodes(graph: Graph, layer: str, first: str, last: str) -> None:
    assert names(graph, named(graph, layer)) == (first, last)


def test_a_bias_is_part_of_its_layer_and_rope_is_not(graph: Graph) -> None:
    q = named(graph, "model.blk.0.attn.q")
    assert [node.op for node in graph.nodes[q.first : q.last + 1]] == ["MUL_MAT", "ADD"]
    assert "model.rope_freqs" not in [call.layer for call in graph.calls]


def test_inputs_are_activations_and_weights_are_none(graph: Graph) -> None:
    (given,) = named(graph, "model.blk.0.attn.q").inputs
    assert (
        graph.nodes[given.node].sources[given.source] == graph.nodes[named(graph, "model.blk.0.attn_norm").last].address
    )
    (ids,) = named(graph, "model.token_embd").inputs
    assert graph.leaves[graph.nodes[ids.node].sources[ids.source]].name == "inp_tokens"
    assert [one.port for one in named(graph, "model.blk.0.attn").inputs] == ["input_hidden_states"]


@pytest.mark.parametrize(
    ("layer", "is_restored"),
    [
        ("model.blk.0.attn_norm", True),  # the residual is read again
        ("model.blk.0.attn.q", True),  # k reads the same
        ("model.blk.0.attn.k", False),
        ("model.blk.0.attn", False),
        ("model.blk.0", False),
    ],
)
def test_what_is_read_after_a_layer_is_restored(graph: Graph, layer: str, is_restored: bool) -> None:
    assert [one.is_restored for one in named(graph, layer).inputs] == [is_restored]


def test_the_nodes_within_a_layer_are_its_operations(graph: Graph) -> None:
    attn = named(graph, "model.blk.1.attn")
    operations = [call.layer.removeprefix("model.blk.1.attn/") for call in graph.operations(attn)]
    assert operations == [
        "op_00_MUL_MAT", "op_01_ADD", "op_02_ROPE", "op_03_MUL_MAT", "op_04_SET_ROWS", "op_05_MUL_MAT", "op_06_MUL_MAT",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("weight", "layer"),
    [
        ("output", "model.output"),
        ("blk.0.attn_norm", "model.blk.0.attn_norm"),
        ("blk.0.attn_q_norm", "model.blk.0.attn.q_norm"),
        ("blk.12.ffn_gate_exps", "model.blk.12.ffn.gate_exps"),
        ("blk.0.ssm_in", "model.blk.0.ssm_in"),
    ],
)
def test_names(weight: str, layer: str) -> None:
    assert layer_name(weight) == layer


def test_a_graph_without_nodes_has_no_layers() -> None:
    assert Graph([]).calls == ()


def test_gemmas_embedding_ends_where_it_is_scaled_and_its_norms_are_named_as_in_transformers() -> None:
    made = Making()
    x = made.node("node_0", "GET_ROWS", made.leaf("token_embd.weight"), made.leaf("inp_tokens"))
    x = made.node("inp_scaled", "MUL", x, made.leaf("inp_scale_rows"))
    x = made.norm("result_norm", "output_norm", made.block(0, x))
    graph = Graph(made.nodes, made.leaves, architecture("gemma3"))
    assert names(graph, named(graph, "model.token_embd")) == ("node_0", "inp_scaled")
    layers = {call.layer for call in graph.calls}
    assert "model.blk.0.pre_feedforward_layernorm" in layers and "model.blk.0.ffn_norm" not in layers
    assert "model.blk.0.ffn_norm" in {call.layer for call in made.graph().calls}


def test_a_norm_without_a_weight_is_a_layer_and_no_part_of_the_projection_after_it() -> None:
    made = Making()
    x = made.node("embd", "GET_ROWS", made.leaf("token_embd.weight"), made.leaf("inp_tokens"))
    normed = made.node("attn_norm-0", "NORM", x)
    out = made.linear("kqv_out-0", "blk.0.attn_output", made.linear("Qcur-0", "blk.0.attn_q", normed))
    made.node("result_norm", "NORM", made.node("l_out-0", "ADD", out, x))
    calls = {call.layer: call for call in made.graph().calls}
    assert {"model.blk.0.attn_norm", "model.output_norm"} <= set(calls)
    assert calls["model.blk.0"].first == calls["model.blk.0.attn_norm"].first == 1
    assert calls["model.blk.0.attn"].first == calls["model.blk.0.attn.q"].first == 2


def test_a_mixture_ends_with_what_all_tokens_share() -> None:
    made = Making()
    x = made.node("embd", "GET_ROWS", made.leaf("token_embd.weight"), made.leaf("inp_tokens"))
    experts = made.node("ffn_moe_out-0", "ADD", made.linear("ffn_moe_down-0", "blk.0.ffn_down_exps", x), x)
    shared = made.linear("ffn_shexp-0", "blk.0.ffn_down_shexp", x)
    made.node("l_out-0", "ADD", made.node("ffn_out-0", "ADD", experts, shared), x)
    calls = {call.layer: call for call in made.graph().calls}
    assert made.nodes[calls["model.blk.0.ffn"].last].name == "ffn_out-0"


def test_what_adds_its_input_in_transformers_alone_is_left_out() -> None:
    made = Making()
    made.block(0, made.node("embd", "GET_ROWS", made.leaf("token_embd.weight"), made.leaf("inp_tokens")))
    kinds = {
        name: {call.layer for call in Graph(made.nodes, made.leaves, architecture(name)).calls}
        for name in ("bloom", "llama")
    }
    assert kinds["llama"] - kinds["bloom"] == {"model.blk.0.attn", "model.blk.0.ffn"}
