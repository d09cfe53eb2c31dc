"""The tensors an attention is computed from: queries, keys and values, rotary tables, and the mask."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tensordiff.compare.hint.sample import Floats
from tensordiff.compare.hint.surroundings import Surroundings, floats_of

_MOST_TOKENS = 512
_PARTS = {
    "q": re.compile(r"q_norm|q_layernorm|query_layernorm|q_proj|query|q|to_q|wq|q_lin"),
    "k": re.compile(r"k_norm|k_layernorm|key_layernorm|k_proj|key|k|to_k|wk|k_lin"),
    "v": re.compile(r"v_proj|value|v|to_v|wv|v_lin"),
}
_FUSED = re.compile(r"c_attn|qkv|qkv_proj|query_key_value|Wqkv|in_proj|wqkv")
_AFTER = re.compile(r"o_proj|out_proj|dense|c_proj|o|to_out|to_out\.0|wo|out_lin|proj")
_TABLES = re.compile(r"position_embeddings_([01])$|^input_(cos|sin)$")
_MASK = re.compile(r"mask$|position_bias$")


class AttentionTensors(NamedTuple):
    """The tensors to recompute an attention from, both sides' outputs, and the mask."""

    q: Floats
    k: Floats
    v: Floats
    fused: Floats | None
    """The output of a fused part that computes queries, keys and values together, if there is one."""
    tables: tuple[Floats, Floats] | None
    mask: Floats | None
    ref: Floats
    cand: Floats


def attention_tensors(around: Surroundings) -> AttentionTensors | None:
    """Find the tensors of an attention by the names of its parts; None if one is missing or too large."""
    parts = {name: floats_of(around.part_output(regex)) for name, regex in _PARTS.items()}
    after = floats_of(around.part_input(_AFTER) or (around.row.pair if not around.row.is_input else None))
    fused = floats_of(around.part_output(_FUSED))
    if after is None:
        return None
    whole = None
    if fused is not None and not all(parts.values()) and fused[0].shape[-1] == 3 * after[0].shape[-1]:
        whole = fused[0]
        q, k, v = np.split(whole, 3, axis=-1)
    else:
        three = [parts[name] for name in "qkv"]
        if any(one is None for one in three):
            return None
        q, k, v = (one[0] for one in three if one is not None)
    tokens = after[0].shape[-2] if after[0].ndim > 1 else 0
    if (
        after[0].ndim != 3
        or not 2 <= tokens <= _MOST_TOKENS
        or max(side.shape[0] for side in (q, k, v)) != len(after[0])
    ):
        return None
    tables = [found for pair in around.inputs(_TABLES) if (found := floats_of(pair)) is not None]
    masks = [found[0] for pair in around.inputs(_MASK) if (found := floats_of(pair)) is not None]
    if len({mask.shape[-2:] for mask in masks}) > 1:
        return None
    # A position bias that is passed in already includes the mask.
    mask = max(masks, key=lambda one: one.shape[1]) if masks and all(one.ndim == 4 for one in masks) else None
    pair = (tables[0][0], tables[1][0]) if len(tables) == 2 else None
    known = AttentionTensors(_flat(q), _flat(k), _flat(v), whole, pair, mask, *after)
    return known if after[0].any() and _fit_together(known) else None


def _fit_together(known: AttentionTensors) -> bool:
    """Whether the shapes allow recomputing; not if the keys include those of a cache, or the tables have other rows."""
    if any(side.ndim != 3 or side.shape[0] not in (1, len(known.ref)) for side in (known.q, known.k, known.v)):
        return False
    (_, tokens, width), keys = known.q.shape, known.k.shape[1]
    if (tokens, width) != known.ref.shape[1:] or width % known.k.shape[-1] or known.v.shape[1] != keys:
        return False
    mask, rows = known.mask, (1, len(known.ref))
    if mask is not None and (mask.shape[0] not in rows or mask.shape[-2] not in (1, tokens) or mask.shape[-1] != keys):
        return False
    if known.tables is None:
        return True
    cos, sin = known.tables
    return keys == tokens and cos.shape == sin.shape and _is_table(cos, tokens, rows)


def _is_table(table: Floats, tokens: int, rows: tuple[int, int]) -> bool:
    """Whether a table has an angle for each token, the same for all rows or one per row."""
    return table.ndim > 1 and table.shape[-2] == tokens and table.size // (tokens * table.shape[-1]) in rows


def _flat(side: Floats) -> Floats:
    """Reshape to [rows, tokens, heads times channels]; a norm per head returns heads on an axis of their own."""
    return side.reshape(*side.shape[:2], -1) if side.ndim == 4 else side
