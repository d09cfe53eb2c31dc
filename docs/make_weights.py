"""Make the tables of docs/weights.md: the kinds of hints, and the planted bugs with what is said of them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tensordiff.dump import open_dump  # noqa: E402
from tensordiff.weights.comparison import compare_weights  # noqa: E402
from tensordiff.weights.hint.catalogue import KINDS  # noqa: E402
from tests.weights.making import llama, write_sharded  # noqa: E402
from tests.weights.plants import PLANTS, Plant, planted_row  # noqa: E402

PAGE = ROOT / "docs" / "weights.md"
SEED = 1001


def kind_rows() -> str:
    """The kinds, as the catalogue has them."""
    return "\n".join(["| kind | means |", "|---|---|", *(f"| {kind} | {means} |" for kind, means in KINDS.items())])


def planted(plant: Plant, folder: Path) -> str:
    """A row of the table of planted bugs."""
    weights = llama(SEED)
    plant.apply(weights)
    reference = write_sharded(llama(SEED), folder / "ref")
    outcome = compare_weights(open_dump(reference), open_dump(write_sharded(weights, folder / "cand")))
    return planted_row(plant, next(row for row in outcome.findings if row.name == plant.where))


def between(text: str, mark: str, new: str) -> str:
    """The page with what stands between two marks replaced."""
    before, _, rest = text.partition(f"<!-- {mark} -->\n")
    after = rest.partition(f"<!-- end of {mark} -->")[2]
    return f"{before}<!-- {mark} -->\n{new}\n<!-- end of {mark} -->{after}"


def main() -> None:
    rows = ["| planted | in | kind | said |", "|---|---|---|---|"]
    for plant in PLANTS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(planted(plant, Path(folder)))
    text = between(PAGE.read_text("utf-8"), "kinds", kind_rows())
    PAGE.write_text(between(text, "planted", "\n".join(rows)), "utf-8")


if __name__ == "__main__":
    main()
