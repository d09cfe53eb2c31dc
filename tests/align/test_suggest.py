"""Partners found by value: on real dumps with their names taken away, and on small ones with a known answer."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tensordiff.align.index import Index, parts_of
from tensordiff.align.match import Alignment, AlignmentPlan, align
from tensordiff.align.rules.tables import MapRule
from tensordiff.align.suggest import Suggester, Suggestion, accept, accept_chosen
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.model import Spec, entry
from tensordiff.session.samples import sample
from tests.making import MemoryTensor, numbers

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
REAL = ["llama", "llama_bf16", "qwen3", "phi3", "bert"]


def dump(**tensors: np.ndarray) -> Dump:
    entries = tuple(entry(name.replace("__", "."), MemoryTensor(array)) for name, array in tensors.items())
    return Dump(Path("held"), "held", entries, ordered=True)


def suggest(reference: Dump, candidate: Dump) -> tuple[list[Suggestion], Suggester]:
    plan = AlignmentPlan.for_dumps(reference, candidate)
    sides = Index(reference, plan.rules, "reference"), Index(candidate, plan.rules, "candidate")
    suggester = Suggester(*sides, align(reference, candidate, plan))
    return list(suggester.suggestions()), suggester


def by_value_alone(reference: Dump, candidate: Dump) -> Alignment:
    suggestions, suggester = suggest(reference, candidate)
    proven = accept(suggestions, suggester.reference, suggester.candidate)
    return align(reference, candidate, replace(AlignmentPlan.for_dumps(reference, candidate), proven_maps=proven))


def scrambled(whole: Dump, seed: int) -> tuple[Dump, dict[str, str]]:
    """The dump with ``layer_017`` for every layer, and what each entry was called."""
    layers = sorted({item.layer for item in whole.entries})
    numbers = random.Random(seed).sample(range(len(layers)), len(layers))
    new = {layer: f"layer_{number:03d}" for layer, number in zip(layers, numbers, strict=True)}
    renamed = [
        item._replace(layer=new[item.layer], name=f"{new[item.layer]}({item.call})-{item.port}")
        for item in whole.entries
    ]
    old = {after.name: before.name for before, after in zip(whole.entries, renamed, strict=True)}
    if not whole.ordered:
        renamed.sort(key=lambda item: item.name)
    return replace(whole, entries=tuple(renamed)), old


def output_pairs(alignment: Alignment, *old: dict[str, str]) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    names = {name: before for mapping in old for name, before in mapping.items()}
    return {
        (
            tuple(names.get(part.name, part.name) for part in parts_of(pair.reference)),
            tuple(names.get(part.name, part.name) for part in parts_of(pair.candidate)),
        )
        for pair in alignment.pairs
        if not pair.reference.is_input
    }


@pytest.mark.skipif(not CASES.exists(), reason="the real dumps do not lie beside the checkout")
@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("case", REAL)
def test_values_recover_scrambled_names(case: str, side: str) -> None:
    reference, candidate = open_dump(CASES / case / "torch"), open_dump(CASES / case / "max")
    expected = output_pairs(align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate)))
    for seed in range(3):
        if side == "reference":
            other, old = scrambled(reference, seed)
            found = output_pairs(by_value_alone(other, candidate), old)
        else:
            other, old = scrambled(candidate, seed)
            found = output_pairs(by_value_alone(reference, other), old)
        assert found <= expected  # not one wrong
        assert len(found) >= 0.9 * len(expected)


def test_values_recover_the_samples() -> None:
    reference, candidate = open_dump(sample("reference")), open_dump(sample("max"))
    expected = output_pairs(align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate)))
    other, old = scrambled(reference, 5)
    found = output_pairs(by_value_alone(other, candidate), old)
    assert found <= expected and len(found) >= 0.9 * len(expected)


def test_a_wrong_layer_is_not_matched_to_something_else() -> None:
    """The culprit's values are wrong, so by value it has no partner; what follows from it has none either."""
    reference, candidate = open_dump(sample("reference")), open_dump(sample("candidate"))
    other, old = scrambled(candidate, 1)
    found = output_pairs(by_value_alone(reference, other), old)
    assert all(ours == theirs for ours, theirs in found)
    assert not any("layers.1.mlp.act_fn" in ours[0] for ours, _ in found)


RNG = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def texts(suggestions: list[Suggestion]) -> set[tuple[str, str]]:
    return {(item.reference, item.candidate) for item in suggestions}


def test_transposed() -> None:
    x = values(5, 7)
    found, _ = suggest(dump(a=x), dump(b=np.ascontiguousarray(x.T)))
    assert texts(found) == {("permute(a, 1, 0)", "b")}


def test_heads_permuted() -> None:
    x = values(1, 4, 9, 16)
    found, _ = suggest(dump(a=x), dump(b=np.ascontiguousarray(x[0].transpose(1, 0, 2))))
    assert texts(found) == {("permute(a, 0, 2, 1, 3)", "b")}


def test_rope_halves_against_interleaved() -> None:
    x = values(6, 32)
    interleaved = np.stack((x[:, :16], x[:, 16:]), axis=-1).reshape(6, 32)
    found, _ = suggest(dump(a=x), dump(b=interleaved))
    assert texts(found) == {("interleave(a)", "b")}


def test_fused_and_split_either_way() -> None:
    q, k, v = values(9, 64), values(9, 32), values(9, 32)
    apart, together = dump(q=q, k=k, v=v), dump(qkv=np.concatenate((q, k, v), axis=1))
    assert texts(suggest(apart, together)[0]) == {("cat(q, k, v)", "qkv")}
    assert texts(suggest(together, apart)[0]) == {("qkv", "cat(q, k, v)")}


def test_gated_product_and_residual_sum() -> None:
    gate, up, x = values(9, 40), values(9, 40), values(9, 24)
    y = values(9, 24)
    product = gate / (1 + np.exp(-gate)) * up
    found, _ = suggest(dump(gate=gate, up=up, x=x, y=y), dump(h=product, s=x + y))
    assert texts(found) == {("mul(silu(gate), up)", "h"), ("sum(x, y)", "s")}


def test_one_token_of_all() -> None:
    x = values(1, 9, 40)
    found, _ = suggest(dump(logits=x), dump(last=x[:, -1]))
    assert texts(found) == {("last_token(logits)", "last")}


def test_nothing_is_suggested_for_what_is_not_there() -> None:
    assert suggest(dump(a=values(9, 40)), dump(b=values(9, 40), c=np.zeros((9, 40), np.float32)))[0] == []


def test_a_map_is_accepted_only_if_every_layer_proves_it() -> None:
    layers = {f"layers__{k}__x": values(9, 40) for k in range(3)}
    theirs = {name.replace("__x", "__y"): array for name, array in layers.items()}
    reference = dump(**layers)
    suggestions, suggester = suggest(reference, dump(**theirs))
    assert [(m.reference, m.candidate) for m in accept(suggestions, suggester.reference, suggester.candidate)] == [
        ("layers.{i}.x", "layers.{i}.y")
    ]
    broken = theirs | {"layers__1__y": values(9, 40)}
    suggestions, suggester = suggest(reference, dump(**broken))
    accepted = accept(suggestions, suggester.reference, suggester.candidate)
    assert all("{i}" not in rule.reference for rule in accepted)


def test_a_match_that_is_chosen_holds_for_every_layer_that_no_value_speaks_against() -> None:
    layers = {f"layers__{k}__x": values(9, 40) for k in range(3)}
    theirs = {name.replace("__x", "__y"): array for name, array in layers.items()} | {"layers__2__y": values(9, 40)}
    suggestions, suggester = suggest(dump(**layers), dump(**theirs))
    sides = suggester.reference, suggester.candidate
    assert accept_chosen(suggestions[:1], suggestions, *sides) == (MapRule("layers.{i}.x", "layers.{i}.y"),)
    crossed = theirs | {"layers__2__y": values(9, 40), "other": layers["layers__2__x"]}
    suggestions, suggester = suggest(dump(**layers), dump(**crossed))
    chosen = next(one for one in suggestions if one.candidate == "layers.0.y")
    sides = suggester.reference, suggester.candidate
    assert accept_chosen([chosen], suggestions, *sides) == (MapRule("layers.0.x", "layers.0.y", every=False),)


def test_an_error_that_swaps_two_tensors_does_not_outweigh_the_layers_before_it() -> None:
    ours = {f"layers__{k}__{name}": values(9, 40) for k in range(4) for name in ("gate", "up")}
    new = {"gate": "w1", "up": "w3"}
    theirs = {f"{name.rpartition('__')[0]}__{new[name.rpartition('__')[2]]}": array for name, array in ours.items()}
    theirs["layers__2__w1"], theirs["layers__2__w3"] = theirs["layers__2__w3"], theirs["layers__2__w1"]
    theirs |= {"layers__3__w1": values(9, 40), "layers__3__w3": values(9, 40)}
    suggestions, suggester = suggest(dump(**ours), dump(**theirs))
    sides = suggester.reference, suggester.candidate
    assert ("layers.2.gate", "layers.2.w3") in texts(suggestions)
    every = MapRule("layers.{i}.gate", "layers.{i}.w1"), MapRule("layers.{i}.up", "layers.{i}.w3")
    assert set(accept_chosen(suggestions, suggestions, *sides)) == set(every)
    swapped = next(one for one in suggestions if one.candidate == "layers.2.w3")
    alone = MapRule("layers.2.gate", "layers.2.w3", every=False)
    assert accept_chosen([swapped], suggestions, *sides) == (alone,)  # a user may know better
    first = {name: array for name, array in theirs.items() if "__0__" not in name}
    suggestions, suggester = suggest(dump(**ours), dump(**first))  # one layer against one proves nothing
    accepted = accept_chosen(suggestions, suggestions, suggester.reference, suggester.candidate)
    assert len(accepted) == 4 and not any(rule.every for rule in accepted)


def test_layers_that_are_counted_otherwise_get_one_map_if_several_prove_it() -> None:
    values = {k: numbers(9, 16, seed=k) for k in range(3)}
    reference = dump(**{f"layers__{k}__mlp": values[k] for k in values})
    candidate = dump(**{f"net__blk{k + 1:02}__ff__w2": values[k] for k in values})
    suggestions, suggester = suggest(reference, candidate)
    sides = suggester.reference, suggester.candidate
    general = MapRule("layers.{i}.mlp", "net.blk{i+1:02}.ff.w2")
    assert accept(suggestions, *sides) == (general,)
    assert accept_chosen(suggestions, suggestions, *sides) == (general,)
    [alone] = accept_chosen(suggestions[:1], suggestions[:1], *sides)
    assert (alone.reference, alone.candidate) == ("layers.0.mlp", "net.blk01.ff.w2")


def test_one_match_alone_is_not_enough() -> None:
    x = values(9, 40)
    suggestions, suggester = suggest(dump(a=x), dump(b=x))
    assert texts(suggestions) == {("a", "b")}
    assert accept(suggestions, suggester.reference, suggester.candidate) == ()


def test_equal_tensors_that_nothing_tells_apart_are_not_accepted() -> None:
    x = values(9, 40)
    others = {f"o{k}": values(9, 40 + k) for k in range(4)}
    theirs = {f"p{k}": others[f"o{k}"] for k in range(4)}
    reference, candidate = dump(a=x, b=x, **others), dump(c=x, d=x, **theirs)
    suggestions, suggester = suggest(reference, candidate)
    accepted = {rule.candidate for rule in accept(suggestions, suggester.reference, suggester.candidate)}
    assert accepted == {"p0", "p1", "p2", "p3"}


def test_held_tensors_have_the_spec_of_their_array() -> None:
    assert MemoryTensor(values(2, 3)).spec == Spec((2, 3), np.dtype(np.float32))


def test_part_of_a_wider_tensor() -> None:
    wide = values(9, 96)
    found, _ = suggest(dump(qkv=wide), dump(k=wide[:, 64:80].copy()))
    assert texts(found) == {("slice(qkv, -1, 64, 80)", "k")}
