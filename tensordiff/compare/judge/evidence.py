"""The evidence for judging a pair: its own measurements, and what earlier pairs of the run showed."""

from __future__ import annotations

from typing import NamedTuple

from tensordiff.align.match import Pair
from tensordiff.align.views import Views
from tensordiff.compare.judge.masks import diff_of_visible
from tensordiff.compare.judge.padding import Padding
from tensordiff.compare.judge.pairing import Pairing
from tensordiff.compare.judge.precision import Precision
from tensordiff.compare.judge.routes import FEW_DECODED, RouteFlips
from tensordiff.compare.judge.upstream_error import UpstreamError, mixture_of
from tensordiff.compare.judge.verdict import GoldenErrors
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.diff import Diff

_OF_MIXTURES = frozenset(("experts", "router", "gate", "moe", "block_sparse_moe"))


class Measurement(NamedTuple):
    """The measurements of a pair, before it is judged."""

    pair: Pair
    dtypes: tuple[str, str]
    views: Views
    diff: Diff
    injected: Diff | None
    golden: GoldenErrors | None
    limits: Limits
    """The limits of this pair."""
    kl_div: float | None
    """Measured only if it has a limit."""


def is_golden_judged(measured: Measurement) -> bool:
    """Whether a golden run decides the verdict on a pair."""
    return measured.golden is not None and measured.golden.is_trusted(measured.dtypes)


def of_visible(measured: Measurement) -> Measurement:
    """The measurement of masked scores without the places that both sides hide."""
    visible = None if measured.limits.are_set else diff_of_visible(measured.pair, measured.diff)
    return measured if visible is None else measured._replace(diff=visible)


class History:
    """What earlier pairs of a run say about the next one."""

    def __init__(
        self, precision: Precision, pairing: Pairing | None = None, *, has_experts: bool | None = None
    ) -> None:
        self.has_experts = has_experts
        """Whether the model has experts; None if that is unknown."""
        self.upstream = UpstreamError(pairing)
        self.precision = precision
        self.padding = Padding()
        self.flips: RouteFlips | None = None
        self.has_flipped_before = False
        self.are_flips_proven = True
        """Whether the logits prove that all routes that differed so far were near-ties."""
        self.right_routers: set[tuple[str, int]] = set()
        """Mixtures and steps in which many tokens were routed as in the reference, except where rounding explains
        otherwise."""
        self.mixtures: set[str] = set()
        """Modules that hold a router and experts."""

    def release(self) -> None:
        """Forget all pairs, in slices."""
        self.upstream.release()
        self.precision.release()

    def note_mixture(self, pair: Pair) -> None:
        """Note the mixture of experts that a pair belongs to, if its name is that of a router or of experts."""
        name, layer = pair.name, pair.reference.layer
        names = layer if name == layer else f"{name}.{layer}"
        if not ("gate" in names or "moe" in names or "experts" in names or "router" in names):
            return  # as nearly all, which this tells in a third of the time
        if not _OF_MIXTURES.isdisjoint(names.split(".")):
            self.mixtures.add(mixture_of(layer))

    def routed_rightly_before(self, pair: Pair) -> bool:
        """Whether the router of a pair's mixture was right in an earlier step with many tokens."""
        mixture, step = mixture_of(pair.reference.layer), pair.reference.step
        if step and self.upstream.same_routes.get((mixture, 0)):
            return True
        return any(before < step and one == mixture for one, before in self.right_routers)

    def note_flips(self, flips: RouteFlips | None) -> None:
        """Remember routes that differ, and whether other routers' routes differed before."""
        if flips is None:
            return
        if flips.tokens > FEW_DECODED:
            self.right_routers.add((mixture_of(flips.router), flips.step))
        self.are_flips_proven = self.are_flips_proven and flips.is_proven
        if self.flips is not None and self.flips.flipped.any() and self.flips.router != flips.router:
            self.has_flipped_before = True
        self.flips = flips
