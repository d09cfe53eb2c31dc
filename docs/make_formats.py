"""Make the tables of docs/formats.md: the formats, from the registry; what other tools' dumps come to, from the real ones.

The second needs the dumps that lie beside the checkout in shared/foreign: of each format one run of a small Llama as it
should be and one with a planted bug, and our own captures of the same model.
"""

from __future__ import annotations

import re
from pathlib import Path

from tensordiff.dump import open_dump
from tensordiff.dump.readers import formats
from tensordiff.errors import DumpError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.weights.comparison import compare_weights

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "formats.md"
FOREIGN = ROOT.parent / "shared" / "foreign"
OURS = FOREIGN / "tensordiff" / "clean"


def foreign_names() -> list[str]:
    """The folders that hold a clean and a buggy side."""
    if not FOREIGN.is_dir():
        return []
    return sorted(
        path.name for path in FOREIGN.iterdir() if (path / "buggy").is_dir() and path.name != OURS.parent.name
    )


def format_rows() -> str:
    """The table of formats."""
    lines = ["| format | is | known by | execution order |", "|---|---|---|---|"]
    lines += (f"| `{row.name}` | {row.what} | {row.known_by} | {row.order} |" for row in formats())
    return "\n".join(lines)


def culprit(reference: Path, candidate: Path) -> str:
    """The culprit of a comparison, with its port where it is an input; what it came to where there is none."""
    try:
        session = Session.open(Request(reference, candidate))
    except DumpError as error:
        return type(error).__name__
    if session.are_checkpoints:
        return first_parameter(session)
    outcome = session.outcome(session.rows())
    if outcome.culprit is None:
        return f"{outcome.verdict}, {len(session.alignment.pairs)} pairs"
    pair = outcome.culprit.pair
    port = f" {pair.reference.port}" if pair.reference.is_input else ""
    return f"`{pair.name}{port}`"


def first_parameter(session: Session) -> str:
    """The first parameter that differs, of two checkpoints; what they came to where none does."""
    outcome = compare_weights(session.reference, session.candidate)
    return f"`{outcome.findings[0].name}`" if outcome.findings else f"{outcome.verdict}, {outcome.compared} pairs"


def foreign_row(name: str) -> str:
    """What the dumps of one format come to."""
    folder = FOREIGN / name
    clean = open_dump(folder / "clean")
    kind = "statistics" if clean.statistics else "values"
    own, ours = culprit(folder / "clean", folder / "buggy"), culprit(OURS, folder / "buggy")
    return f"| {name} | `{clean.format}` | {len(clean)} | {kind} | {own} | {ours} |"


def foreign_rows() -> str:
    """The table of real dumps."""
    head = "| folder | read as | tensors | of | culprit against its clean side | against our capture |"
    return "\n".join([head, "|---|---|---|---|---|---|", *map(foreign_row, foreign_names())])


def replaced(text: str, name: str, table: str) -> str:
    """The page with a table between its marks."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{table}\n{match[2]}", text, flags=re.DOTALL)


def main() -> None:
    text = replaced(PAGE.read_text("utf-8"), "formats", format_rows())
    if foreign_names():
        text = replaced(text, "foreign", foreign_rows())
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
