"""The user's tolerances, and which of them applies to a pair.

The expression of a ``[[tolerance]]`` table is matched against a pair's layer (``layers.0.mlp``) and against its layer
and port (``layers.0.mlp-output``). The first table that matches replaces everything else. Other pairs are judged by the
limits given for all pairs (``--threshold``, ``--atol``, ``--rtol``) or, without those, by the floors of
``judge.verdict``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tensordiff.align.index import port_of
from tensordiff.align.rules.tables import ToleranceRule, check_limit
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.errors import printable
from tensordiff.util.sizes import format_percent_of


@dataclass(frozen=True)
class Limits:
    """The user's tolerances; None for each that was not given."""

    tolerance: Tolerance | None = None
    threshold: float | None = None
    """The limit for ``rel_l2``."""
    max_abs: float | None = None
    cos_dist: float | None = None
    kl_div: float | None = None
    rules: tuple[ToleranceRule, ...] = ()
    """Tables for some pairs each; the first that matches a pair applies."""
    match: str | None = None
    """The expression of the table that these limits come from, if any."""

    def __post_init__(self) -> None:
        for name in ("threshold", "max_abs", "cos_dist", "kl_div"):
            check_limit(name, getattr(self, name))
        if self.tolerance is not None:
            check_limit("atol", self.tolerance.atol)
            check_limit("rtol", self.tolerance.rtol)

    @cached_property
    def are_set(self) -> bool:
        """Whether any limit was given; then it decides instead of the floors."""
        given = (self.tolerance, self.threshold, self.max_abs, self.cos_dist, self.kl_div)
        return any(limit is not None for limit in given)

    @property
    def label(self) -> str:
        """Names this tolerance in a sentence."""
        return "given" if self.match is None else f"'{printable(self.match)}'"

    def for_pair(self, name: str, port: str) -> Limits:
        """The limits of one pair, by its layer's name and its port in the reference."""
        return self._find(name, port) if self.rules else self

    @cached_property
    def _find(self) -> Callable[[str, str], Limits]:
        tables = [(rule.regex.matches, _limits_of(rule)) for rule in self.rules]
        for_all = replace(self, rules=())

        @lru_cache(maxsize=1 << 17)
        def find(name: str, port: str) -> Limits:
            entry = f"{name}-{port_of(port)}"
            for matches, table in tables:
                if (matches(name) or matches(entry)) and not (table.is_only_kl_div and port.startswith("input")):
                    return table
            return for_all

        return find

    @property
    def is_only_kl_div(self) -> bool:
        """Whether the KL divergence, which inputs do not have, is the only limit."""
        return self.kl_div is not None and not replace(self, kl_div=None).are_set

    def broken_by(self, diff: Diff, kl_div: float | None) -> str | None:
        """The first limit that is exceeded, as a sentence; None if all hold. NaN exceeds every limit."""
        for metric, value, limit in self._metrics(diff, kl_div):
            if not value <= limit:
                the = "the threshold " if self.match is None else ""
                return f"{metric} {value:.4g} is above {the}{limit:g}{self._of_table}"
        if self.tolerance is not None and diff.outside:
            share = format_percent_of(diff.outside, diff.elements)
            outside = f"{diff.outside} {'element' if diff.outside == 1 else 'elements'} ({share}) outside"
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
        return "" if self.match is None else f" (tolerance {self.label})"


def _limits_of(rule: ToleranceRule) -> Limits:
    """A table as limits."""
    tolerance = Tolerance.of(rule.atol, rule.rtol)
    return Limits(
        tolerance=tolerance, threshold=rule.rel_l2, max_abs=rule.max_abs, cos_dist=rule.cos_dist, kl_div=rule.kl_div,
        match=rule.match,
    )  # fmt: skip
