"""A closer look: what a layer was given, which tensor of it to look at, and who its experts were."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.align.expression.activations import gelu, gelu_tanh, silu
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.hint import Hint
from tensordiff.compare.hint.catalogue import find_hint
from tensordiff.compare.hint.context import HintContext
from tensordiff.compare.hint.row_hint import hint_for_row
from tensordiff.dump.dtypes import Array
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import Tensors, held, numbers, pairs, save

X = numbers(24, 64)


def told(reference: Array, candidate: Array, given: Array) -> Hint | None:
    return find_hint(reference, candidate, HintContext(given={"x": given}))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_another_activation_is_named(dtype: type) -> None:
    x = X.astype(dtype).astype(np.float32)
    found = told(silu(x).astype(dtype), gelu(x).astype(dtype), x)
    assert found is not None
    assert (found.kind, found.evidence["reference"], found.evidence["candidate"]) == ("activation", "silu", "gelu")


def test_two_forms_of_gelu_are_told_apart() -> None:
    found = told(gelu(X), gelu_tanh(X), X)
    assert found is not None
    assert found.evidence["candidate"] == "gelu (tanh)"


def test_what_is_no_activation_of_what_came_in_gets_no_such_name() -> None:
    assert told(silu(X), numbers(24, 64, seed=1), X) is None
    assert told(silu(X) * 1.5, gelu(X) * 1.5, X) is None


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_transposed_weight_is_told_without_the_weight(biased: bool, dtype: type) -> None:
    weight, bias = numbers(64, 64, seed=1), biased * numbers(64, seed=2)
    found = told((X @ weight.T + bias).astype(dtype), (X @ weight + bias).astype(dtype), X)
    assert found is not None
    assert found.kind == "weight_transposed"


def test_another_weight_is_not_called_transposed() -> None:
    weights = numbers(64, 64, seed=1), numbers(64, 64, seed=2)
    assert told(X @ weights[0], X @ weights[1], X) is None


def normed(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True)) * weight)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_mean_that_one_side_takes_off_is_told(swapped: bool) -> None:
    x, weight = X + np.float32(0.5), 1 + 0.3 * numbers(64, seed=1)
    whole, around = normed(x, weight), normed(x - x.mean(-1, keepdims=True), weight)
    found = told(around, whole, x) if swapped else told(whole, around, x)
    assert found is not None
    assert (found.kind, found.evidence["kind"]) == ("norm_kind", "mean_left" if swapped else "mean_taken_off")


def test_one_expert_is_known_by_its_tokens() -> None:
    routes = np.random.default_rng(0).integers(0, 6, (24, 2))
    wrong = X.copy()
    sent = (routes == 3).any(1)
    wrong[sent] = numbers(int(sent.sum()), 64, seed=5)
    found = find_hint(X, wrong, HintContext(routes=((routes, routes),)))
    assert found is not None
    assert (found.kind, found.evidence["expert"]) == ("one_expert", 3)
    wrong[~sent] = numbers(int((~sent).sum()), 64, seed=6)
    assert find_hint(X, wrong, HintContext(routes=((routes, routes),))) is None


def test_other_routes_are_a_router_s_kind() -> None:
    routes = np.tile([0, 1], (24, 1))
    other = routes.copy()
    other[:, 1] = 2
    sides = numbers(24, 2), numbers(24, 2, seed=1)
    found = find_hint(*sides, HintContext(routes=((routes, other),), is_router=True))
    assert found is not None
    assert (found.kind, found.evidence["choices"]) == ("routes", [1])
    assert find_hint(*sides, HintContext(routes=((routes, other),))) is None


@pytest.mark.parametrize(("name", "kind"), [("input_ids", None), ("layers.0.mlp.router", "routes")])
def test_integers_are_another_choice_of_experts_only_of_a_router(name: str, kind: str | None) -> None:
    ids = np.array([[5, 7, 9, 2]])
    sides = {name: ids}, {name: np.array([[5, 7, 9, 3]])}
    found = list(pairs(*sides))
    (row,) = Comparer().rows(found)
    looks_like = hint_for_row(row, found, held(sides[0]))
    assert (looks_like and looks_like.kind) == kind


def test_floats_beside_integers_are_no_routes() -> None:
    routes = np.tile([0, 1], (24, 1))
    sides = numbers(24, 2), numbers(24, 2, seed=1)
    assert find_hint(*sides, HintContext(routes=((routes, routes + 0.9),), is_router=True)) is None


def test_a_term_that_was_added_with_another_scale() -> None:
    term = numbers(24, 64, seed=1)
    found = find_hint(X + term, X + 0.7 * term, HintContext({"mlp": term}))
    assert found is not None
    assert found.kind == "residual_scaled"
    assert found.evidence["factor"] == pytest.approx(-0.3, rel=1e-4)


def heads(values: Array, order: list[int]) -> Array:
    """What attention over one key head each gives: the first token sees only itself."""
    scores = np.tril(np.exp(numbers(24, 24, seed=9)))
    mixed = scores / scores.sum(1, keepdims=True)
    return np.concatenate([mixed @ values[:, at] for at in order], axis=1).astype(np.float32)


def test_key_heads_repeated_in_turn() -> None:
    values = numbers(24, 2, 16, seed=4)
    found = find_hint(heads(values, [0, 0, 1, 1]), heads(values, [0, 1, 0, 1]) * np.float32(1))
    assert found is not None
    assert found.kind == "kv_repeat"


def test_a_head_that_is_lost_is_named_in_any_type() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        wrong = X + 0.02 * numbers(24, 64, seed=1)
        wrong[:, 16:32] = 0
        found = find_hint(X.astype(dtype), wrong.astype(dtype))
        assert found is not None
        assert (found.kind, found.evidence["head"]) == ("one_head", 1)


# --- in a dump --------------------------------------------------------------------------------------


def session(tmp_path: Path, reference: Tensors, candidate: Tensors) -> Session:
    sides = save(tmp_path / "r.safetensors", reference), save(tmp_path / "c.safetensors", candidate)
    return Session.open(Request(*sides))


def test_glue_shows_best_in_what_a_part_was_first_given(tmp_path: Path) -> None:
    """Heads stand in another order before a projection mixes them."""
    weight, mixed = numbers(64, 64, seed=1), X.reshape(24, 4, 16)[:, [2, 0, 3, 1]].reshape(24, 64)
    reference = {"m.v-output": X, "m.o-input_0": X, "m.o-output": X @ weight, "m-input_0": X, "m-output": X @ weight}
    wrong = {"m.o-input_0": mixed, "m.o-output": mixed @ weight, "m-output": mixed @ weight}
    opened = session(tmp_path, reference, reference | wrong)
    outcome = opened.outcome(opened.rows())
    assert outcome.culprit is not None
    assert outcome.culprit.pair.name == "m"
    found = opened.hint(outcome.culprit)
    assert found is not None
    assert (found.kind, found.evidence["part"]) == ("heads_permuted", "o")
    assert found.sentence.startswith("in what o is given: ")


def test_a_part_that_is_wrong_itself_is_not_looked_past(tmp_path: Path) -> None:
    reference = {"m.v-output": X, "m.o-input_0": X, "m-input_0": X, "m-output": numbers(24, 64, seed=1)}
    wrong = {"m.v-output": numbers(24, 64, seed=2), "m.o-input_0": X * 2, "m-output": numbers(24, 64, seed=3)}
    opened = session(tmp_path, reference, reference | wrong)
    whole = next(row for row in opened.rows() if row.pair.reference.name == "m-output")
    assert opened.hint(whole) is None


def test_an_activation_is_named_from_the_dump(tmp_path: Path) -> None:
    reference = {"act-input_0": X, "act-output": silu(X)}
    opened = session(tmp_path, reference, reference | {"act-output": gelu_tanh(X)})
    found = opened.hint(list(opened.rows())[1])
    assert found is not None
    assert found.kind == "activation"


@pytest.mark.parametrize("by_value", [True, False])
def test_two_parts_that_were_swapped_are_named_however_they_were_paired(tmp_path: Path, by_value: bool) -> None:
    weights = numbers(64, 64, seed=1), numbers(64, 64, seed=2)

    def run(key: Array, value: Array) -> Tensors:
        k, v = X @ key, X @ value
        parts = {"m.k_proj-input_0": X, "m.k_proj-output": k, "m.v_proj-input_0": X, "m.v_proj-output": v}
        return {"m-input_0": X, **parts, "m-output": np.tanh(k) * v}

    sides = save(tmp_path / "r.safetensors", run(*weights)), save(tmp_path / "c.safetensors", run(*weights[::-1]))
    crossed = '[[map]]\nreference = "m.{}"\ncandidate = "m.{}"\n'
    rules = tmp_path / "rules.toml"
    rules.write_text(crossed.format("k_proj", "v_proj") + crossed.format("v_proj", "k_proj") if by_value else "")
    opened = Session.open(Request(*sides, rules=rules, learn=False))
    culprit = opened.outcome(opened.rows()).culprit
    assert culprit is not None
    assert culprit.pair.name == ("m" if by_value else "m.k_proj")
    found = opened.hint(culprit)
    assert found is not None
    assert found.kind == "swapped_with"
    assert "equals the reference's" in found.sentence


def test_parts_that_are_swapped_are_told_without_their_inputs(tmp_path: Path) -> None:
    gate, up = numbers(1, 8, 32, seed=1), numbers(1, 8, 32, seed=2)
    sides = [
        save(tmp_path / f"{name}.safetensors", {"m.gate_proj": one, "m.up_proj": other})
        for name, one, other in (("r", gate, up), ("c", up, gate))
    ]
    opened = Session.open(Request(*sides, learn=False))
    culprit = opened.outcome(opened.rows()).culprit
    assert culprit is not None
    found = opened.hint(culprit)
    assert found is not None
    assert found.kind == "swapped_with" and "equals the reference's m.up_proj" in found.sentence


def test_a_hint_that_leaves_nothing_says_so() -> None:
    found = find_hint(X, -X)
    assert found is not None
    assert found.sentence == "the sign is flipped; this explains all of the error"
