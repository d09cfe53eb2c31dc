"""Every kind of bug, how it is planted, and which hints are right for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from studies.bugs import attention, parts, streams
from studies.bugs.spot import Planting, Spot

_QUERY_OR_KEY = re.compile(r"(q_proj|k_proj|q_norm|k_norm|query|key|c_attn)$")
_SEES_BACK = ("all_but_first", "grows_with_position", "from_token", "later_tokens")
_SEES_AHEAD = ("all_but_last", "falls_with_position", "up_to_token")
_TOKENS = ("one_token", "first_token", "last_token", "from_token")


Plant = Callable[[Spot], Planting | None]


class Bug(NamedTuple):
    """One kind of bug."""

    plant: Plant
    """None where the model has no place for it."""
    hints: frozenset[str]
    """What may be said of it. Where there is nothing, any hint is a wrong one."""

    def hints_at(self, site: str) -> frozenset[str]:
        """The same, by where it was planted: what makes queries or keys wrong shows in what attends, too."""
        return self.hints | frozenset(_SEES_BACK if _QUERY_OR_KEY.search(site) else ())

    @property
    def kind(self) -> str:
        """What it is called."""
        return self.plant.__name__


_CATALOGUE: Sequence[tuple[Plant, tuple[str, ...]]] = (
    (parts.norm_eps, ("scale_per_token", "scale",)),
    (parts.norm_kind, ("norm_kind",)),
    (parts.norm_plus_one, ("scale_per_channel",)),
    (parts.norm_weight, ("scale_per_channel",)),
    (parts.activation, ("activation",)),
    (parts.transposed_weight, ("weight_transposed",)),
    (parts.missing_bias, ("bias_per_channel",)),
    (parts.other_weights, ("other_weights",)),
    (parts.wrong_scale, ("scale", "sign",)),
    (parts.bf16_inside, ("rounded",)),
    (parts.odd_values, ("nan", "inf",)),
    (parts.truncated_head, ("one_head", "channel_block", "one_slice",)),
    (parts.interleaved_weight, ("rope_order",)),
    (parts.swapped_halves, ("blocks_swapped", "heads_permuted",)),
    (parts.embedding_scale, ("scale",)),
    (parts.wrong_token, (*_TOKENS, "rows_shuffled",)),
    (attention.rope_theta, (*_SEES_BACK, "rope_theta")),
    (attention.rope_scale, (*_SEES_BACK, "rope_scaling")),
    (attention.rope_order, (*_SEES_BACK, "rope_order")),
    (attention.rope_missing, (*_SEES_BACK, "rope_missing")),
    (attention.dropped_position, (*_TOKENS,)),
    (attention.kv_repeat, ("kv_repeat",)),
    (attention.attention_scale, (*_SEES_BACK, "score_scale")),
    (attention.swapped_q_k, (*_SEES_BACK,)),
    (attention.mask_missing, (*_SEES_AHEAD, "mask")),
    (attention.mask_off_by_one, (*_SEES_AHEAD, "mask")),
    (attention.short_window, ("from_token", "grows_with_position", "later_tokens", "mask")),
    (attention.lost_head, ("one_head", "one_slice",)),
    (attention.heads_out_of_order, ("lost_transpose",)),
    (streams.residual_lost, ("residual_lost", "passed_through",)),
    (streams.residual_twice, ("residual_twice",)),
    (streams.residual_scale, ("residual_scaled", "residual_twice", "scale",)),
    (streams.gate_after_up, ("gate_swapped",)),
    (streams.router_scale, ("scale", "expert_weights")),
    (streams.router_not_normed, ("scale_per_token", "expert_weights")),
    (streams.router_top_k, ("routes",)),
    (streams.one_expert, ("one_expert", "scattered_tokens")),
    (streams.expert_scale, ("scale",)),
)  # fmt: skip
BUGS = tuple(Bug(plant, frozenset(hints)) for plant, hints in _CATALOGUE)
