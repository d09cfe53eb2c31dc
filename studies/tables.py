"""The results as tables, and their place in ``docs/verdicts.md``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from studies.controls import Control
from studies.trial import Result

DOC = Path(__file__).parents[1] / "docs" / "verdicts.md"
HEADINGS = (
    "",
    "bugs",
    "below rounding",
    "culprit exact",
    "another named",
    "none named",
    "more than planted",
    "right hint",
    "wrong hint",
)


def planted(results: Sequence[Result], clean: Sequence[Result], controls: Sequence[Control], seeds: range) -> str:
    """All of it: what was planted, by what it was, and the controls."""
    bugs = [result for result in results if result.case.bug]
    whole = [result for result in bugs if result.dumped == "everything"]
    return "\n".join(
        [
            f"Seeds {seeds.start} to {seeds.stop - 1}, none of which was used while the rules were made.",
            "",
            *_table("dumped", bugs, lambda result: result.dumped),
            *_table("everything dumped, by type", whole, lambda result: " / ".join(result.case.dtypes)),
            *_table("everything dumped, by architecture", whole, lambda result: result.case.arch),
            *_table("everything dumped, by bug", whole, lambda result: f"`{result.case.kind}`"),
            *_clean(clean, controls),
        ]
    ).rstrip()


def _table(title: str, results: Iterable[Result], key: Callable[[Result], str]) -> list[str]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[key(result)].append(result)
    rows = [_row(name, group) for name, group in groups.items()]
    rows.append(_row("**all**", [result for group in groups.values() for result in group]))
    head = (title, *HEADINGS[1:])
    return [line(head), line(["---"] + ["---:"] * (len(head) - 1)), *map(line, rows), ""]


def _row(name: str, group: Sequence[Result]) -> list[str]:
    found = [result for result in group if result.is_findable]
    counts = (
        sum(result.is_exact for result in found),
        sum(not result.is_exact and bool(result.named) for result in found),
        sum(not result.named for result in found),
        sum(result.others > 0 for result in found),
        sum(result.has_right_hint for result in found),
        sum(result.has_wrong_hint for result in found),
    )
    return [name, str(len(group)), _below(group), *(percent(count, len(found)) for count in counts)]


def _below(group: Sequence[Result]) -> str:
    """How many do not show; how many of those are named all the same, and in how many another is."""
    below = [result for result in group if not result.is_findable]
    named, another = (sum(bool(r.named) and r.is_exact == exact for r in below) for exact in (True, False))
    return f"{len(below)}" + (f" ({named} named, {another} another)" if named or another else "")


def _clean(clean: Sequence[Result], controls: Sequence[Control]) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for result in clean:
        groups[f"{' / '.join(result.case.dtypes)}, tiny models and MiniLM"].append(result.named)
    for control in controls:
        groups[control.what].append(control.named)
    rows = [[what, str(len(named)), str(sum(map(bool, named)))] for what, named in groups.items()]
    return [line(("clean runs", "comparisons", "false culprits")), line(("---", "---:", "---:")), *map(line, rows)]


def percent(count: int, of: int) -> str:
    """A share."""
    return f"{100 * count / of:.1f} %" if of else "-"


def line(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def put(name: str, text: str, doc: Path = DOC) -> None:
    """Replace what stands between the marks of a table in the document."""
    begin, end = f"<!-- {name}: written by python -m studies -->", f"<!-- end of {name} -->"
    whole = doc.read_text()
    before, _, rest = whole.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{doc}: the marks of {name!r} are not there; put {begin} and {end} where it belongs")
    doc.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
