"""What the user said about tolerance, and which of it is a pair's own.

A table of a file (``[[tolerance]]``) speaks of the pairs whose layer (``layers.0.mlp``), or layer and port
(``layers.0.mlp-output``), its expression matches; the first that matches a pair is that pair's whole law. What
no table matches is judged by what was said for all (``--threshold``, ``--atol``, ``--rtol``), or by nothing but
the verdict's own floors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tensordiff.align.index import port_of
from tensordiff.align.rules.tables import ToleranceRule, check_amount
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.errors import printable

_ONE_FOR_ALL = "given"


@dataclass(frozen=True)
class Limits:
    """What the user said about tolerance; None where nothing was said."""

    tolerance: Tolerance | None = None
    threshold: float | None = None
    """Of ``rel_l2``."""
    max_abs: float | None = None
    cos_dist: float | None = None
    kl_div: float | None = None
    rules: tuple[ToleranceRule, ...] = ()
    """Tables that speak of some pairs each; the first that matches counts."""
    match: str | None = None
    """The expression of the table that these limits come from."""

    def __post_init__(self) -> None:
        for name in ("threshold", "max_abs", "cos_dist", "kl_div"):
            check_amount(name, getattr(self, name))

    @cached_property
    def are_set(self) -> bool:
        """Whether the user's word decides."""
        said = (self.tolerance, self.threshold, self.max_abs, self.cos_dist, self.kl_div)
        return any(limit is not None for limit in said)

    @property
    def said(self) -> str:
        """Which tolerance this is, for a sentence."""
        return _ONE_FOR_ALL if self.match is None else f"'{printable(self.match)}'"

    def for_pair(self, name: str, port: str) -> Limits:
        """What counts for one pair, by its layer's name and its port on the reference."""
        return self._find(name, port) if self.rules else self

    @cached_property
    def _find(self) -> Callable[[str, str], Limits]:
        laws = [(re.compile(rule.match).search, _law(rule)) for rule in self.rules]
        for_all = replace(self, rules=())

        @lru_cache(maxsize=1 << 17)
        def find(name: str, port: str) -> Limits:
            entry = f"{name}-{port_of(port)}"
            for search, law in laws:
                if (search(name) or search(entry)) and not (law.is_only_kl_div and port.startswith("input")):
                    return law
            return for_all

        return find

    @property
    def is_only_kl_div(self) -> bool:
        """Whether this speaks of what a model gives and so of no input."""
        return self.kl_div is not None and not replace(self, kl_div=None).are_set

    def broken_by(self, diff: Diff, kl_div: float | None) -> str | None:
        """The first limit that is broken, as a sentence; None where all hold. A NaN breaks any."""
        for metric, value, limit in self._metrics(diff, kl_div):
            if not value <= limit:
                the = "the threshold " if self.match is None else ""
                return f"{metric} {value:.4g} is above {the}{limit:g}{self._of_table}"
        if self.tolerance is not None and diff.outside:
            share = 100 * diff.outside / diff.elements
            outside = f"{diff.outside} elements ({share:.3g} %) outside"
            return f"{outside} atol {self.tolerance.atol:g} + rtol {self.tolerance.rtol:g}{self._of_table}"
        return None

    def _metrics(self, diff: Diff, kl_div: float | None) -> Iterator[tuple[str, float, float]]:
        measured: Sequence[tuple[str, float | None, float | None]] = (
            ("rel_l2", diff.rel_l2, self.threshold),
            ("max_abs", diff.max_abs, self.max_abs),
            ("cos_dist", diff.cosine_distance, self.cos_dist),
            ("kl_div", kl_div, self.kl_div),
        )
        for metric, value, limit in measured:
            if limit is not None and value is not None:
                yield metric, value, limit

    @property
    def _of_table(self) -> str:
        return "" if self.match is None else f" (tolerance {self.said})"


def _law(rule: ToleranceRule) -> Limits:
    """A table as limits."""
    tolerance = Tolerance.of(rule.atol, rule.rtol)
    return Limits(tolerance, rule.rel_l2, rule.max_abs, rule.cos_dist, rule.kl_div, match=rule.match)
