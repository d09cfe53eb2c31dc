"""The head of the layer screen: names on both sides, types, shapes and views, verdict and reason, the input's error, a
hint.

What the row contains is shown at once; what must be read (each side's own shape, the hint) follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.geometry import Size

from tensordiff.compare.hint import Hint
from tensordiff.compare.row import Row
from tensordiff.errors import printable
from tensordiff.report.labels import GLYPHS, format_shape, number, pair_name
from tensordiff.tui.layer.pane import Line, Pane, Piece
from tensordiff.tui.layer.subject import Subject
from tensordiff.tui.text import fit, wrapped

_LABEL = 11
_WRAPPED = 2
"""Lines that a sentence may take: on 80 columns, one line would cut most verdicts and hints."""
_SHORT = 20
"""Lines of a terminal that has none to spare."""


class Facts(NamedTuple):
    """What was read of a layer; None while it is unknown."""

    shapes: tuple[str, str] | None = None
    hint: Hint | None = None
    weights: str = ""
    """Whether its weights are the same, if both dumps have them."""
    is_hinted: bool = False
    """Whether a hint was looked for."""


class FactsPane(Pane[Facts]):
    """The head of the layer screen."""

    can_focus = False
    DEFAULT_CSS = """
    FactsPane { height: auto; background: $boost; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.role = ""
        """``culprit``, if it is one."""

    def answers(self, subject: Subject, question: None) -> Iterator[Facts]:
        """First what is quick to read, then the rest."""
        found = Facts(subject.shapes)
        self.post_message(self.Answered(subject, question, found, "", False))
        yield found._replace(hint=subject.hint, is_hinted=subject.diverges, weights=subject.weights)

    def begin(self) -> None:
        """Show what is known already."""
        self.role = ""

    def show_role(self, role: str) -> None:
        """Show that this is a culprit."""
        self.role = role
        self.repaint()

    def repaint(self) -> None:
        """Draw again, with the height of the text.

        The height is set explicitly: Textual caches a computed height until the next layout that it knows of, and of
        two answers in a row the second may not get one.
        """
        if self.content_size.width:
            self.styles.height = len(self._told(self.content_size.width))
        super().repaint()

    def get_content_height(self, _container: Size, _viewport: Size, width: int) -> int:
        """The number of lines; used until the width is known."""
        return len(self._told(width))

    def _draw(self, width: int) -> Sequence[Line]:
        return self._told(width)

    def _told(self, width: int) -> Sequence[Line]:
        if self.subject is None or width < 1:
            return ()
        return list(self._lines(self.subject, self.answer or Facts(), width))

    def _lines(self, subject: Subject, facts: Facts, width: int) -> Iterator[Line]:
        row = subject.row
        yield self._title(subject, width)
        sides = (("reference", row.pair.reference), ("candidate", row.pair.candidate))
        for k, (side, entry) in enumerate(sides):
            own = facts.shapes[k] if facts.shapes else ""
            yield _two_ends((f"{side:<{_LABEL}}", "muted"), printable(entry.name), own, width)
        if row.shape is not None and row.views:
            seen = f"{format_shape(row.shape)}, by {', '.join(row.views)}"
            yield [(f"{'seen as':<{_LABEL}}", "muted"), (fit(printable(seen), max(8, width - _LABEL)), "")]
        why = f"{self.role}: {row.verdict.why}" if self.role else row.verdict.why
        yield from self._said("because", printable(why), width)
        yield _numbers(row)
        if facts.hint:
            yield from self._said("looks like", printable(_evident(facts.hint)), width)
        elif facts.is_hinted:
            yield from self._said("looks like", "no known error pattern matches", width)
        if facts.weights:
            yield from self._said("weights", printable(facts.weights), width)

    def _title(self, subject: Subject, width: int) -> Line:
        row, entry = subject.row, subject.row.pair.reference
        name = row.verdict.name
        verdict = f"{GLYPHS[name]} {name}"
        place = f"{printable(entry.port)}, call {entry.call}, step {entry.step}  #{subject.row.pair.index}"
        room = max(8, width - cell_len(verdict) - cell_len(place) - 4)
        title = fit(pair_name(row.pair), room)
        return [(verdict, name), ("  ", ""), (title, "title"), ("  ", ""), (place, "muted")]

    def _said(self, label: str, text: str, width: int) -> Iterator[Line]:
        """A sentence on as many lines as the terminal can spare."""
        most = _WRAPPED if self.app.size.height >= _SHORT else 1
        lines = list(wrapped(text, max(8, width - _LABEL)))
        for k, line in enumerate(lines[:most]):
            more = "…" if k == most - 1 and len(lines) > most else ""
            yield [(f"{label if k == 0 else '':<{_LABEL}}", "muted"), (line[: width - _LABEL - len(more)] + more, "")]


def _two_ends(label: Piece, name: str, own: str, width: int) -> Line:
    """A name on the left, a shape on the right."""
    room = max(8, width - _LABEL - cell_len(own) - 1)
    return [label, (fit(name, room), ""), (" ", ""), (own, "muted")]


def _evident(hint: Hint) -> str:
    """The kind of error, and the evidence that its sentence does not contain already."""
    evidence = "; ".join(
        f"{name} {_short(value)}" for name, value in hint.evidence.items() if not _is_told(value, hint.sentence)
    )
    return f"{hint.sentence} ({evidence})" if evidence else hint.sentence


def _is_told(value: object, sentence: str) -> bool:
    """Whether a sentence contains a value, with these digits or with one."""
    return _short(value) in sentence or (isinstance(value, float) and f"{value:.0e}" in sentence)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        some = ", ".join(map(_short, value[:6]))
        return f"[{some}, …]" if len(value) > 6 else f"[{some}]"
    return str(value)


def _numbers(row: Row) -> Line:
    """Sizes of the error: of the output, the input, their ratio, injected, and relative to a golden run."""
    pieces: list[Piece] = [(f"{'rel_l2':<{_LABEL}}", "muted")]
    pieces.append((number(row.diff.rel_l2 if row.diff else None), row.verdict.name if row.diff else "muted"))
    if row.amplification and row.diff is not None:
        pieces += [("  in ", "muted"), (number(row.diff.rel_l2 / row.amplification), "")]
        pieces.append((f"  ×{row.amplification:.2g}", ""))
    if row.injected is not None:
        pieces += [("  injected ", "muted"), (number(row.injected.rel_l2), "")]
    if row.golden_ratio is not None:
        pieces += [("  golden ", "muted"), (f"×{row.golden_ratio:.2g}", "")]
    if row.downcast is not None:
        pieces += [("  downcast ", "muted"), (number(row.downcast), "")]
    return pieces
