"""Ways to compute the same otherwise, as another engine would, and what such ports are asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from studies.models import reorder_sums
from studies.museum.architectures import Architecture
from studies.museum.exhibit import Change
from studies.museum.questions import Asking, decoding_at_length, decoding_left, padded_left, padded_right, prompt


class Port(NamedTuple):
    """A way to compute the same otherwise, and what is asked."""

    name: str
    question: Asking
    change: Change


def fuse_attention(model: Any) -> None:
    """Let attention be computed by torch's own."""
    model.set_attn_implementation("sdpa")


def _fuse_and_reorder(model: Any) -> None:
    fuse_attention(model)
    reorder_sums(model)


def ports_of(architecture: Architecture) -> Iterator[Port]:
    """The ways in which an architecture can be ported: with padding on either side, too, and decoding after it."""
    is_fused = architecture.has_fused_attention
    other, told = (_fuse_and_reorder, "fused attention") if is_fused else (reorder_sums, "other sums")
    yield Port("other sums", prompt, reorder_sums)
    if is_fused:
        yield Port("fused attention", prompt, fuse_attention)
    if architecture.input in ("text", "text pair", "wave"):
        yield Port(f"padded right, {told}", padded_right, other)
    if architecture.input == "text" and architecture.has_cache:
        yield Port(f"padded left, decoding, {told}", decoding_left, other)
        yield Port(f"decoding, {told}", decoding_at_length, other)
    elif architecture.input == "text":
        yield Port(f"padded left, {told}", padded_left, other)
