"""What ``docs/rules.md`` shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tensordiff.align import AlignmentPlan, align
from tensordiff.align.expression import FUNCTIONS
from tensordiff.align.presets import PRESETS, preset
from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.errors import AlignError
from tests.making import held, numbers

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def read(tmp_path: Path, text: str) -> RulesFile:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return read_rules_file(path)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_read(tmp_path: Path, example: str) -> None:
    assert read(tmp_path, example) != RulesFile()


def test_every_preset_and_every_function_is_in_a_table() -> None:
    rows = [(name, preset(name).about) for name in PRESETS]
    rows += [(name, function.help) for name, function in FUNCTIONS.items()]
    for name, about in rows:
        assert f"| `{name}` | {about} |\n" in PAGE


def test_the_mistake_is_told_as_shown(tmp_path: Path) -> None:
    with pytest.raises(AlignError) as caught:
        read(tmp_path, "[[map]]\nreference = 'a'\ncandidate = 'cut(a)'\n")
    assert str(caught.value).removeprefix(f"{tmp_path}/") in PAGE


def test_the_maps_of_the_page_pair_what_they_say(tmp_path: Path) -> None:
    maps = "".join(example for example in EXAMPLES if "every = false" in example)
    q, gate, up, dense = (numbers(5, 8, seed=k) for k in range(4))
    product = gate / (1 + np.exp(-gate)) * up
    layers = range(2)
    ours = {f"layers.{i}.mlp.down_proj-input_0": product for i in layers}
    ours |= {f"layers.{i}.self_attn.{name}_proj": q for i in layers for name in "qkv"}
    ours |= {f"layers.{i}.mlp": dense for i in layers}
    theirs = {f"layers.{i}.ffn.{name}": array for i in layers for name, array in (("gate", gate), ("up", up))}
    theirs |= {f"layers.{i}.self_attn.qkv_proj": np.concatenate([q, q, q], axis=-1) for i in layers}
    theirs |= {f"layers.{i}.dense": dense for i in layers}
    reference, candidate = held(dict(ours)), held(dict(theirs))
    found = align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate, read(tmp_path, maps))).pairs
    assert {pair.by for pair in found} == {"map"}
    assert len(found) == 2 + 2 + 1
    for pair in found:
        np.testing.assert_allclose(pair.reference.read(), pair.candidate.read(), rtol=1e-5)


def test_rope_s_pairs_side_by_side_become_two_halves(tmp_path: Path) -> None:
    [text] = [example for example in EXAMPLES if "deinterleave" in example]
    q = numbers(5, 32 * 4)
    wq = q.reshape(5, 32, 2, 2).swapaxes(-1, -2).reshape(5, -1)
    reference, candidate = held({"layers.1.self_attn.q_proj": q}), held({"layers.1.attention.wq": wq})
    [pair] = align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate, read(tmp_path, text))).pairs
    np.testing.assert_array_equal(pair.reference.read(), pair.candidate.read())
