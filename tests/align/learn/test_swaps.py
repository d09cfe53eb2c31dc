"""Layers that give each other's tensors, beside one that is renamed, so that learning runs: an error, not a name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump
from tests.align.learn.names.test_namesakes import compared
from tests.align.learn.test_learner import arrays, noise

X = noise(1, 1, 9, 16)
HEADS = ("start", "end", "rank")
LOGITS = dict(zip(HEADS, (X @ noise(2 + k, 16, 12) for k in range(3)), strict=True))


def heads(
    trunk: str,
    given: dict[str, str],
    *,
    inputs: bool = False,
    after: str = "",
    spell: dict[str, str] | None = None,
    error: float = 0.0,
) -> Dump:
    """Heads of a model, each of which gives what ``given`` says it does; ``after`` each, another layer."""
    values: dict[str, Array] = {"embed-output": X, f"{trunk}-output": np.tanh(X)}
    spelled = {name: name for name in HEADS} | (spell or {})
    for k, name in enumerate(given):
        made = LOGITS[given[name]] * (1 + error * noise(20 + k, 1, 9, 12))
        values |= {f"{spelled[name]}-input_0": np.tanh(X)} if inputs else {}
        values |= {f"{spelled[name]}-output": made}
        if after:
            values |= {f"{spelled[name]}.{after}-input_0": made, f"{spelled[name]}.{after}-output": np.exp(made)}
    return arrays(**values)


RIGHT = {name: name for name in HEADS}
SWAPPED = {**RIGHT, "start": "end", "end": "start"}
TURNED = {"start": "end", "end": "rank", "rank": "start"}


@pytest.mark.parametrize("given", [SWAPPED, TURNED], ids=["two", "three"])
@pytest.mark.parametrize("inputs", [False, True], ids=["outputs", "inputs too"])
@pytest.mark.parametrize("after", ["", "exp"], ids=["last", "each has a layer after it"])
@pytest.mark.parametrize("is_ordered", [True, False], ids=["ordered", "without order"])
def test_heads_that_give_each_others_logits_diverge(
    given: dict[str, str], inputs: bool, after: str, is_ordered: bool
) -> None:
    reference = heads("trunk", RIGHT, inputs=inputs, after=after)
    candidate = heads("stem", given, inputs=inputs, after=after)
    session = compared(replace(reference, ordered=is_ordered), replace(candidate, ordered=is_ordered))
    assert ("trunk", "stem") in {(p.reference.layer, p.candidate.layer) for p in session.alignment.pairs}
    outcome = session.outcome(session.rows())
    assert outcome.verdict == "diverges" and not list(session.dumps.learned.overruled())


def test_heads_swapped_before_layers_with_other_names_diverge() -> None:
    session = compared(heads("trunk", RIGHT, after="exp"), heads("stem", SWAPPED, after="softmax"))
    assert session.outcome(session.rows()).verdict == "diverges"


def test_a_swap_of_which_one_head_is_renamed_diverges() -> None:
    session = compared(heads("trunk", RIGHT), heads("stem", SWAPPED, spell={"end": "stop"}))
    assert session.outcome(session.rows()).verdict == "diverges"


@pytest.mark.parametrize("spell", [{}, {"end": "stop"}], ids=["same names", "one renamed"])
def test_swapped_heads_that_are_not_quite_equal_diverge(spell: dict[str, str]) -> None:
    """Far enough apart to be no proof, and near enough to pass for rounding."""
    session = compared(heads("trunk", RIGHT), heads("stem", SWAPPED, spell=spell, error=1e-5))
    outcome = session.outcome(session.rows())
    assert outcome.culprit is not None and outcome.culprit.pair.candidate.name == "start-output"


def test_swapped_caches_diverge_though_the_attention_beside_them_agrees() -> None:
    dumps = []
    for names, head in ((("key", "value"), "head"), (("value", "key"), "roof")):
        x = X
        values: dict[str, Array] = {}
        for i in range(3):
            made = x @ noise(10 + i, 16, 16), x @ noise(20 + i, 16, 16)
            values |= {f"layers.{i}.attn-input_0": x}
            values |= {f"layers.{i}.cache.{name}-output": value for name, value in zip(names, made, strict=True)}
            x = x + np.tanh(made[0]) + made[1]
            values |= {f"layers.{i}.attn-output": x}
        dumps.append(arrays(**values, **{f"{head}-output": x @ noise(30, 16, 24)}))
    session = compared(*dumps)
    outcome = session.outcome(session.rows())
    assert outcome.culprit is not None and outcome.culprit.pair.reference.layer.startswith("layers.0.cache.")


def experts(names: tuple[int, int], last: str) -> Dump:
    """Two experts side by side, each of several layers, and their sum."""
    values: dict[str, Array] = {}
    made = []
    for k, name in enumerate(names):
        up = X @ noise(40 + k, 16, 24)
        made.append(np.tanh(up) @ noise(50 + k, 24, 16))
        for part, given, result in (("up", X, up), ("act", up, np.tanh(up)), ("down", np.tanh(up), made[-1])):
            values |= {f"experts.{name}.{part}-input_0": given, f"experts.{name}.{part}-output": result}
    values = {name: values[name] for name in sorted(values)}
    return arrays(**values, **{"moe-output": made[0] + made[1], f"{last}-output": np.tanh(made[0])})


def test_whole_experts_that_are_swapped_diverge() -> None:
    session = compared(experts((0, 1), "head"), experts((1, 0), "roof"))
    assert session.outcome(session.rows()).verdict == "diverges"


def attention(swapped_in: int | None, out: str = "o") -> Dump:
    """Attention of four blocks; what q and k give is swapped in one of them, and their weights are not."""
    x = X
    values: dict[str, Array] = {}
    for i in range(4):
        given, at = x, f"layers.{i}.self_attn"
        q, k, v = (given @ noise(60 + 3 * i + n, 16, 16) / 4 for n in range(3))
        q, k = (k, q) if i == swapped_in else (q, k)
        mixed = np.tanh(q) * k + v
        x = given + mixed @ noise(80 + i, 16, 16) / 4
        values |= {f"{at}-input_0": given}
        for name, value in zip("qkv", (q, k, v), strict=True):
            values |= {f"{at}.{name}_proj-input_0": given, f"{at}.{name}_proj-output": value}
        values |= {f"{at}.{out}_proj-input_0": mixed, f"{at}.{out}_proj-output": x - given, f"{at}-output": x - given}
        values |= {f"layers.{i}-output": x}
    return arrays(**values)


@pytest.mark.parametrize("swapped_in", [0, 2])
def test_positions_in_a_dump_without_order_prove_nothing(swapped_in: int) -> None:
    """By the alphabet v comes after the attention, and is right."""
    whole = attention(None)
    reference = replace(whole, entries=tuple(sorted(whole.entries, key=lambda one: one.name)), ordered=False)
    session = compared(reference, attention(swapped_in, out="back"))
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None
    assert culprit.pair.reference.layer in {f"layers.{swapped_in}.self_attn.{part}_proj" for part in "qk"}
    assert all(p.reference.layer == p.candidate.layer for p in session.alignment.pairs if "o_" not in p.reference.layer)


def gated(names: tuple[str, str], down: str) -> Dump:
    x = X
    values: dict[str, Array] = {}
    for i in range(3):
        gate, up = x @ noise(90 + i, 16, 24), x @ noise(95 + i, 16, 24)
        for name, made in zip(names, (gate, up), strict=True):
            values |= {f"layers.{i}.{name}-input_0": x, f"layers.{i}.{name}-output": made}
        values |= {f"layers.{i}.act-input_0": gate, f"layers.{i}.act-output": np.tanh(gate)}
        x = np.tanh(gate) * up @ noise(99 + i, 24, 16) / 8
        values |= {f"layers.{i}.{down}-output": x}
    return arrays(**values)


def test_names_that_mean_each_other_lose_where_the_layer_after_them_is_given_the_right_one() -> None:
    session = compared(gated(("gate", "up"), "down"), gated(("up", "gate"), "fall"))
    outcome = session.outcome(session.rows())
    assert outcome.verdict == "agrees" and outcome.culprit is None
    assert any("layers.{i}.up equals the reference's layers.{i}.gate" in s for s in session.dumps.learned.overruled())
