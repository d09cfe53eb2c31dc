"""What is known of a run up to the pair that is judged: errors so far, types on the way, padding, routes."""

from __future__ import annotations

import re

from tensordiff.align.match import Pair
from tensordiff.compare.judge.padding import Padding
from tensordiff.compare.judge.precision import Precision
from tensordiff.compare.judge.routes import RouteFlips
from tensordiff.compare.judge.upstream_error import UpstreamError, mixture_of

_MIXTURE = re.compile(r"(?:^|\.)(?:experts|router|gate|moe|block_sparse_moe)(?:\.|$)")


class History:
    """All that earlier pairs say about the next one."""

    def __init__(self, run_dtypes: tuple[str, str] | None = None) -> None:
        self.upstream = UpstreamError()
        self.precision = Precision(run_dtypes)
        self.padding = Padding()
        self.flips: RouteFlips | None = None
        self.has_flipped_before = False
        self.are_flips_proven = True
        """Whether logits show of all routes that differed so far that they were near-ties."""
        self.mixtures: set[str] = set()
        """Modules that hold a router and experts."""

    def see(self, pair: Pair) -> None:
        """Note the mixture of experts that a pair belongs to, by its name: a router of it, or its experts."""
        if any(_MIXTURE.search(name) for name in (pair.name, pair.reference.layer)):
            self.mixtures.add(mixture_of(pair.reference.layer))

    def note_flips(self, flips: RouteFlips | None) -> None:
        """Remember routes that differ, and that others did before."""
        if flips is None:
            return
        self.are_flips_proven = self.are_flips_proven and flips.is_proven
        if self.flips is not None and self.flips.flipped.any() and self.flips.router != flips.router:
            self.has_flipped_before = True
        self.flips = flips
