"""The summary, two lines at the top: what is compared, the result so far, and findings that put it in doubt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from tensordiff.compare.limits import Limits
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.labels import GLYPHS, counted, pair_name
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.dialogs import Choose
from tensordiff.tui.side_names import operations_inside, side_name
from tensordiff.tui.table.frames import SummaryFrame
from tensordiff.tui.table.model import VERDICTS, Listing
from tensordiff.tui.text import bar, plain
from tensordiff.tui.verdict_styles import VERDICT_STYLES
from tensordiff.util.sizes import format_percent

_BAR = 20
_FACTS = ("framework", "dtype", "device")


@dataclass(frozen=True)
class Facts:
    """What the summary shows."""

    session: Session
    listing: Listing
    outcome: Outcome | None = None
    findings: Sequence[Finding] = ()
    mode: str = ""


class Summary(SummaryFrame):
    """The sides, and the result."""

    _facts: Facts | None = None

    def tell(self, facts: Facts) -> None:
        """Show these facts."""
        self._facts = facts
        lines = [_who(facts.session, self.content_size.width), _what(facts)]
        self.update(plain(Text("\n").join(lines), self.app.no_color), layout=False)

    def on_resize(self) -> None:
        """Fit the line to another width."""
        if self._facts is not None:
            self.tell(self._facts)


def _who(session: Session, width: int) -> Text:
    """The first line. If it is too long, the facts of the dumps are left out."""
    whole, short = (_line(session, with_facts=with_facts) for with_facts in (True, False))
    return whole if whole.cell_len <= width else short


def _line(session: Session, *, with_facts: bool) -> Text:
    dumps = session.reference, session.candidate
    sides = [_side(dump, session.request, with_facts=with_facts) for dump in dumps]
    inside = operations_inside(session)
    told = f"operations inside {inside}: " if inside else ""
    line = Text.assemble(told, (sides[0], "bold"), " ↔ ", (sides[1], "bold"))
    line.append(f" · {counted(len(session.pairs), 'pair')}")
    orphans = len(session.alignment.reference_orphans), len(session.alignment.candidate_orphans)
    line.append(f" · {orphans[0]}+{orphans[1]} orphans", "yellow" if any(orphans) else "")
    share = session.alignment.coverage.share
    line.append(f" · coverage {format_percent(share)}", "yellow" if 100 * share < session.request.min_coverage else "")
    line.append(f" · {_limits(session.comparer.limits)}")
    return line


def _side(dump: Dump, request: Request, *, with_facts: bool) -> str:
    said = [printable(dump.facts[key]) for key in _FACTS if isinstance(dump.facts.get(key), str)] or [dump.format]
    told = [*said * with_facts, *[f"still being written, {len(dump)} so far"] * dump.interrupted]
    return side_name(dump, request) + (f" ({', '.join(told)})" if told else "")


def _limits(limits: Limits) -> str:
    said = [] if limits.threshold is None else [f"rel_l2 ≤ {limits.threshold:g}"]
    if limits.tolerance is not None:
        said.append(f"atol {limits.tolerance.atol:g} rtol {limits.tolerance.rtol:g}")
    if limits.rules:
        said.append(f"{len(limits.rules)} tolerances")
    return ", ".join(said) or "tolerance: automatic, by dtype"


def _what(facts: Facts) -> Text:
    parts = [_verdict(facts), *_counts(facts.listing)]
    if facts.mode:
        parts.append(Text(facts.mode, "bold cyan"))
    if facts.findings:
        parts.append(_findings(facts.findings))
    return Text(" · ").join(parts)


def _verdict(facts: Facts) -> Text:
    outcome = facts.outcome
    if outcome is None:
        done, total = facts.listing.measured, len(facts.listing)
        return Text(f"measured {done} of {total} ").append(bar(done, max(1, total), _BAR))
    said = outcome.reasons[0] if outcome.verdict == "unknown" and outcome.reasons else outcome.unanswered
    why = f": {said}" if said else ""
    where = f" first at {pair_name(outcome.culprit.pair)}" if outcome.culprit else why
    return Text(f"{GLYPHS[outcome.verdict]} {outcome.verdict}{where}", VERDICT_STYLES[outcome.verdict])


def _counts(listing: Listing) -> Iterable[Text]:
    for name, glyph in GLYPHS.items():
        if count := int(listing.counts[VERDICTS.index(name)]):
            yield Text(f"{glyph} {count} {name}", VERDICT_STYLES[name])


def _findings(findings: Sequence[Finding]) -> Text:
    worst = min(findings, key=lambda finding: ("error", "warning", "note").index(finding.level))
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    glyph, style = {"error": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "")}[worst.level]
    where = f"{printable(worst.where)}: " if worst.where else ""
    return Text(f"{glyph} {where}{printable(worst.what)}{more}", style)


def findings_dialog(findings: Sequence[Finding]) -> Choose:
    """A dialog with all findings about a comparison."""
    glyphs = {"error": "✗", "warning": "!", "note": "·"}
    lines = [
        (str(at), f"{glyphs[one.level]} {one.where and one.where + ': '}{one.what}; {one.why}; {one.do}")
        for at, one in enumerate(findings)
    ]
    return Choose("Is the comparison fair?", lines or [("", "✓ no warnings")])
