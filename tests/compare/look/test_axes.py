"""What axes are called, and where heads are seen."""

from __future__ import annotations

import numpy as np
import pytest

from tensordiff.compare.look.axes import DumpAxes, NamedShape, name_axes, token_ids_of
from tests.making import held


def zeros(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


ENTRY = held({"layers.0.mlp-output": zeros(1)}).entries[0]


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((), ()),
        ((9,), ("token",)),
        ((5,), ("channel",)),
        ((1, 9), ("batch", "token")),
        ((1, 9, 64), ("batch", "token", "channel")),
        ((9, 64), ("token", "channel")),
        ((7, 64), ("row", "channel")),
        ((1, 64), ("batch", "channel")),
        ((9, 4, 16), ("token", "head", "channel")),
        ((1, 9, 4, 16), ("batch", "token", "head", "channel")),
        ((1, 4, 9, 16), ("batch", "head", "token", "channel")),
        ((1, 4, 9, 9), ("batch", "head", "token", "key token")),
        ((2, 3, 5, 7), ("batch", "axis 1", "axis 2", "channel")),
    ],
)
def test_axes_by_the_number_of_tokens(shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    assert name_axes(ENTRY, shape, 9).names == names


def test_where_the_number_of_tokens_is_not_known() -> None:
    assert name_axes(ENTRY, (1, 9, 64), None).names == ("batch", "axis 1", "channel")


def test_logits_are_over_words() -> None:
    entry = held({"lm_head-output": zeros(1)}).entries[0]
    assert name_axes(entry, (9, 320), 9).names == ("token", "word")


def test_tokens_are_counted_by_the_ids_that_were_given() -> None:
    ids = np.zeros((1, 9), np.int64)
    assert DumpAxes(held({"model.embed_tokens-input_0": ids})).tokens_of(0) == 9
    assert DumpAxes(held({"model-input_input_ids": ids})).tokens_of(0) == 9
    assert DumpAxes(held({"model-input_input_ids": ids})).tokens_of(1) is None
    assert DumpAxes(held({"model.embed_tokens-input_0": None, "a-output": ids})).tokens_of(0) is None


def test_or_by_what_the_dump_says_of_itself() -> None:
    dump = held({"a": zeros(1)})
    told = type(dump)(dump.path, dump.format, dump.entries, True, facts={"token_ids": [5, 6, 7]})
    assert (DumpAxes(told).tokens_of(0), token_ids_of(told, 0)) == (3, (5, 6, 7))
    assert (DumpAxes(told).tokens_of(1), token_ids_of(told, 1)) == (None, ())


NORMS = {"a.self_attn.q_proj-output": zeros(1, 9, 64), "a.self_attn.q_norm-output": zeros(1, 9, 4, 16)}
ROTARY = {"rotary_emb-output_0": zeros(1, 9, 16), "a.self_attn.k_proj-output": zeros(1, 9, 32)}
WEIGHTS = {"a.attention.self.query-output": zeros(1, 9, 64), "a.attention.self-output_1": zeros(1, 4, 9, 9)}


@pytest.mark.parametrize(
    ("tensors", "name", "heads"),
    [
        (NORMS, "a.self_attn.q_proj-output", 4),
        (ROTARY, "a.self_attn.k_proj-output", 2),
        (WEIGHTS, "a.attention.self.query-output", 4),
        ({"a.self_attn.o_proj-input_0": zeros(1, 9, 64)} | ROTARY, "a.self_attn.o_proj-input_0", 4),
        ({"a.self_attn.o_proj-output": zeros(1, 9, 64)} | ROTARY, "a.self_attn.o_proj-output", None),
        ({"a.mlp-output": zeros(1, 9, 64)} | ROTARY, "a.mlp-output", None),
        ({"a.self_attn.q_proj-output": zeros(1, 9, 50)} | ROTARY, "a.self_attn.q_proj-output", None),
        ({"a.self_attn.q_proj-output": zeros(1, 9, 64)}, "a.self_attn.q_proj-output", None),
    ],
)
def test_heads_by_what_stands_around(tensors: dict[str, np.ndarray], name: str, heads: int | None) -> None:
    dump = held(tensors)
    entry = next(entry for entry in dump.entries if entry.name == name)
    assert DumpAxes(dump).heads_of(entry, entry.spec.shape[-1]) == heads


def test_a_form_with_heads() -> None:
    form = NamedShape(("token", "channel"), (9, 64))
    split = form.with_heads(4)
    assert split == NamedShape(("token", "head", "head channel"), (9, 4, 16))
    assert split.index_in(form, (3, 2, 5)) == (3, 37)
    assert form.with_heads(5) is None and form.with_heads(1) is None and NamedShape((), ()).with_heads(2) is None


def test_a_form_with_two_axes_at_least() -> None:
    assert NamedShape((), ()).at_least_2d().shape == (1, 1)
    assert NamedShape(("token",), (9,)).at_least_2d() == NamedShape(("", "token"), (1, 9))
    assert NamedShape(("token",), (9,)).at_least_2d().index_in(NamedShape(("token",), (9,)), (0, 4)) == (4,)
