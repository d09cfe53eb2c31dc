"""What a trial of a map looks like: shapes before and after, how far apart, what it takes from others."""

from __future__ import annotations

from rich.text import Text

from tensordiff.align.index import parts_of
from tensordiff.compare.engine import Row
from tensordiff.errors import printable
from tensordiff.report.words import GLYPHS
from tensordiff.session import Session
from tensordiff.tui.trial import Trial, shown_parts, shown_spec

_STYLES = {"agrees": "green", "drifts": "yellow", "diverges": "bold red", "unknown": "magenta"}


def shown(session: Session, trial: Trial, is_done: bool) -> Text:
    """A trial as lines; what is not measured yet is told by dots."""
    text = Text().append(_first(trial.rows[0]) if trial.rows else "" if is_done else "…\n")
    text.append(_all(trial, is_done))
    if taken := _taken(session, trial):
        text.append(f"! already paired, and paired so from then on: {taken}\n", "yellow")
    for side, entry in (("reference", trial.first.reference), ("candidate", trial.first.candidate)):
        text.append(f"\n{side}\n", "bold")
        for line in shown_parts(entry):
            text.append(f"{line}\n")
    return text


def _first(row: Row) -> Text:
    """The layer that was named."""
    glyph, style = GLYPHS[row.verdict.name], _STYLES[row.verdict.name]
    if row.diff is None:
        return Text(f"{glyph} {printable(row.verdict.why)}\n", style)
    views = f" after {', '.join(row.views)}" if row.views else ""
    seen = f"{shown_spec(row.pair.reference)} against {shown_spec(row.pair.candidate)}"
    text = Text().append(f"{glyph} rel L2 {row.diff.rel_l2:.1e}, largest difference {row.diff.max_abs:.1e}\n", style)
    return text.append(f"{seen}, compared as {list(row.shape or ())}{printable(views)}\n", "dim")


def _all(trial: Trial, is_done: bool) -> Text:
    """Every layer, as far as it is measured."""
    if trial.wanted.every is None:
        return Text("The names share no layer's number, so it is for this layer alone.\n", "dim")
    worst, measured, total = trial.worst, len(trial.rows), len(trial.pairs)
    rule = trial.wanted.every
    text = Text().append("every layer: " + printable(f"{rule.reference} = {rule.candidate}") + "\n", "bold")
    text.append(f"{total} {'pair' if total == 1 else 'pairs'}")
    if worst is not None:
        far = f"rel L2 {worst.diff.rel_l2:.1e}" if worst.diff is not None else "not comparable"
        text.append(
            f"; of {measured} measured the worst is {GLYPHS[worst.verdict.name]} {far}", _STYLES[worst.verdict.name]
        )
        text.append(printable(f" at {worst.pair.name}"), "dim")
    return text.append("\n" if is_done or measured == total else " …\n")


def _taken(session: Session, trial: Trial) -> str:
    """Entries that are in another pair by now, the first few by name."""
    mine = {id(part) for pair in trial.pairs for side in (pair.reference, pair.candidate) for part in parts_of(side)}
    pairs = [p for p in session.alignment.pairs if {id(e) for e in (p.reference, p.candidate)} & mine]
    names = ", ".join(printable(pair.name) for pair in pairs[:3])
    return names + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "")
