"""Statistics of both sides and of their difference; of each side alone if they have no common shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar, NamedTuple

from tensordiff.compare.look.statistics import QUANTILES, Distribution, distribution
from tensordiff.compare.measure.diff import Diff
from tensordiff.dump.model import Entry
from tensordiff.errors import AlignError, DumpError, printable
from tensordiff.report.labels import number
from tensordiff.tui.layer.pane import Line, ListPane, Piece
from tensordiff.tui.layer.subject import Subject

_NAME, _VALUE, _BESIDE = 12, 15, 108

Side = Distribution | str | None
"""Numbers, or why there are none, or None while unknown."""


class Statistics(NamedTuple):
    """Numbers of both sides, and of their difference."""

    reference: Side
    candidate: Side
    diff: Diff | None
    injected: Diff | None


class StatisticsPane(ListPane[Statistics]):
    """Two columns of numbers, and beside or below them those of the difference."""

    can: ClassVar[frozenset[str]] = frozenset({"move", "page"})

    def answers(self, subject: Subject, _question: None) -> Iterator[Statistics]:
        """Read both sides, one after the other."""
        row, pair = subject.row, subject.row.pair
        found = Statistics(None, None, row.diff, row.injected)
        sides = subject.session.sides(row)
        for k, entry in enumerate((pair.reference, pair.candidate)):
            for side in distribution(sides[k]) if sides else _alone(entry):
                found = found._replace(candidate=side) if k else found._replace(reference=side)
                yield found

    @property
    def _is_wide(self) -> bool:
        """Whether the difference fits beside the sides."""
        return self.content_size.width >= _BESIDE

    def heading(self, answer: Statistics) -> Sequence[Line]:
        """The headings of the columns."""
        title = f"{'':{_NAME}}{'reference':>{_VALUE}}{'candidate':>{_VALUE}}{'Δ':>{_VALUE}}"
        beside = f"   {'the difference':<{_NAME}}" if self._is_wide and answer.diff else ""
        return [[(title + beside, "title")]]

    def body(self, answer: Statistics) -> Sequence[Line]:
        """One number a line."""
        sides, apart = list(_sides(answer)), list(_difference(answer))
        if not self._is_wide:
            return [*sides, [], [("the difference", "title")], *([(" ", ""), *line] for line in apart)]
        empty: Line = [(" " * (_NAME + 3 * _VALUE), "")]
        return [[*(left or empty), ("   ", ""), *(right or ())] for left, right in zip_longest(sides, apart)]

    def stops(self, _answer: Statistics) -> Sequence[int]:
        """No line can be pointed at: lines only scroll."""
        return ()

    def move(self, _x: int, y: int) -> None:
        """Scroll."""
        self.top, self.at = max(0, self.top + y), 1
        self.repaint()


def _alone(entry: Entry) -> Iterator[Side]:
    """The distribution of one side alone."""
    try:
        yield from distribution(entry.read())
    except (DumpError, AlignError) as error:
        yield printable(error)


_ROWS: tuple[tuple[str, Callable[[Distribution], float | int | None]], ...] = (
    ("elements", lambda side: side.elements),
    ("min", lambda side: side.statistics.minimum),
    ("max", lambda side: side.statistics.maximum),
    ("mean", lambda side: side.statistics.mean),
    ("std", lambda side: side.std),
    ("rms", lambda side: side.statistics.rms),
    ("zeros", lambda side: side.zeros),
    ("NaN", lambda side: side.statistics.nan),
    ("infinite", lambda side: side.statistics.inf),
)


def _quantile(k: int) -> Callable[[Distribution], float | None]:
    return lambda side: side.quantiles[k] if side.quantiles else None


def _sides(answer: Statistics) -> Iterator[Line]:
    pair = answer.reference, answer.candidate
    for name, side in zip(("reference", "candidate"), pair, strict=True):
        if isinstance(side, str):
            yield [(f"{name}: {side}", "unknown")]
    for name, value in _ROWS:
        yield _line(name, *pair, value)
    sampled = any(isinstance(side, Distribution) and side.sampled for side in pair)
    for k, share in enumerate(QUANTILES):
        name = "median" if share == 0.5 else f"{100 * share:g} %"
        yield _line(f"{'≈ ' if sampled else ''}{name}", *pair, _quantile(k))
    if sampled:
        yield [("≈ of a sample, taken evenly", "muted")]


def _line(name: str, ref: Side, cand: Side, value: Callable[[Distribution], float | int | None]) -> Line:
    found = [value(side) if isinstance(side, Distribution) else None for side in (ref, cand)]
    pieces: list[Piece] = [(f"{name:<{_NAME}}", "muted")]
    odd = name in ("NaN", "infinite")
    pieces += [(f"{_shown(one):>{_VALUE}}", "diverges" if odd and one else "") for one in found]
    a, b = found
    apart = "" if a is None or b is None else "0" if a == b else _shown(b - a)
    return [*pieces, (f"{apart:>{_VALUE}}", "muted" if a == b else "")]


def _shown(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.7g}"


def _difference(answer: Statistics) -> Iterator[Line]:
    diff, injected = answer.diff, answer.injected
    if diff is None:
        yield [("none: the two have no shape in common, or one cannot be read", "muted")]
        return
    if injected is not None:
        yield [(f"{'':{_NAME}}{'propagated':>{_VALUE - 3}}{'injected':>{_VALUE - 3}}", "muted")]
    for name, value in _DIFF:
        both = [number(value(one)) for one in (diff, injected) if one is not None]
        yield [(f"{name:<{_NAME}}", "muted"), ("".join(f"{text:>{_VALUE - 3}}" for text in both), "")]
    yield [
        (f"{'outside':<{_NAME}}", "muted"),
        (f"{diff.outside:>{_VALUE - 3},}", ""),
        (f" of {diff.elements:,}", "muted"),
    ]


_DIFF: tuple[tuple[str, Callable[[Diff], float]], ...] = (
    ("rel_l2", lambda diff: diff.rel_l2),
    ("max |Δ|", lambda diff: diff.max_abs),
    ("max rel", lambda diff: diff.max_rel),
    ("mean |Δ|", lambda diff: diff.mean_abs),
    ("mse", lambda diff: diff.mse),
    ("rms", lambda diff: diff.rms),
    ("cosine", lambda diff: diff.cosine_distance),
    ("best scale", lambda diff: diff.scale),
)
