"""``python -m torture``: attack, and say what was found."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from torture.campaign import Campaign, say
from torture.part import PARTS


def main() -> int:
    """Run the campaign; 1 where anything was found."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        prog="python -m torture",
        description="Attack tensordiff until the time is over: " + "; ".join(f"{p.name}: {p.about}" for p in PARTS),
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="for all parts together (default 20)")
    parser.add_argument("--seed", type=int, help="of the random numbers; a new one unless given, and said")
    parser.add_argument("--only", choices=names, action="append", help="a part; may be given again")
    parser.add_argument("--case", type=int, help="one case of the part")
    parser.add_argument("--jobs", type=int, default=2, help="processes that try cases at a time (default 2)")
    asked = parser.parse_args()
    if asked.case is not None and len(asked.only or ()) != 1:
        parser.error("--case is of one part; give it with --only")
    seed = secrets.randbelow(1 << 32) if asked.seed is None else asked.seed
    parts = [part for part in PARTS if not asked.only or part.name in asked.only]
    say(f"seed {seed}, {asked.minutes:g} minutes")
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        tallies = Campaign(parts, 60 * asked.minutes, seed, Path(folder), asked.jobs, asked.case).run()
    found = sum(tally.findings for tally in tallies)
    say(f"{sum(tally.cases for tally in tallies):,} cases, {found} findings, seed {seed}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
