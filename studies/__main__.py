"""``python -m studies``: plant, control, measure, show the museum, and write the tables of ``docs/verdicts.md``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from studies import controls, floors, scrambled, tables
from studies.bugs import BUGS
from studies.captures import plain_torch
from studies.models import archs
from studies.museum import run as museum
from studies.trial import DTYPES, Case, Result, run_trial

HELD_OUT = range(116, 120)
"""Seeds that nothing was tuned on; what was missed on 100 to 115 was looked at."""
UNSEEN = range(150, 154)
"""The same for the museum, whose seeds 100 to 149 were run before its rules were changed."""
TUNED_ON = range(2)
"""Seeds of a run of the museum that is not reported; 0 to 9 are for that."""


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["planted", "floors", "museum", "scrambled", "all"], default="all")
    usual = "by default 116-119, of scrambled names 524-547, in the museum 0-1"
    parser.add_argument("--seeds", type=_seeds, help=f"3, 0-3 or from:to; {usual}")
    parser.add_argument("--report", action="store_true", help="the museum on seeds 150-153, which nothing was tuned on")
    parser.add_argument("--entry", help="one exhibit or the clean ports of one architecture; one pair of dumps")
    parser.add_argument("--every", type=int, default=3, help="of the bugs, try one in so many in each model")
    parser.add_argument("--write", action="store_true", help="into docs/verdicts.md instead of the terminal")
    parser.add_argument("--misses", action="store_true", help="print every case that is not as it should be")
    asked = parser.parse_args()
    seeds = asked.seeds or HELD_OUT
    with plain_torch(), tempfile.TemporaryDirectory() as folder:
        if asked.what in ("planted", "all"):
            _say("planted", _planted(seeds, asked.every, asked.misses, Path(folder)), asked.write)
        if asked.what in ("floors", "all"):
            _say("floors", floors.text(list(floors.layers(seeds[-2:], Path(folder)))), asked.write)
    if asked.what in ("scrambled", "all"):
        chosen = asked.seeds or scrambled.HELD_OUT
        _say("scrambled", scrambled.text(chosen, asked.entry, shows_misses=asked.misses), asked.write)
    if asked.what in ("museum", "all"):
        chosen = UNSEEN if asked.report else asked.seeds or TUNED_ON
        is_report = set(chosen) <= set(UNSEEN)
        found = museum.text(chosen, asked.entry, is_report=is_report, shows_misses=asked.misses)
        _say("museum", found, asked.write)


def _seeds(text: str) -> range:
    """One seed, the first and the last, or the first and the one after the last."""
    if ":" in text:
        begin, _, end = text.partition(":")
        return range(int(begin), int(end))
    begin, _, end = text.partition("-")
    return range(int(begin), int(end or begin) + 1)


def _say(name: str, text: str, write: bool) -> None:
    if write:
        tables.put(name, text)
    else:
        sys.stdout.write(f"{text}\n")


def _planted(seeds: range, every: int, misses: bool, folder: Path) -> str:
    results = list(run(seeds, every, folder))
    clean = [result for result in results if result.case.bug is None]
    others = [*controls.engines(), *(c for arch in archs() for c in controls.other_attention(arch, seeds[0], folder))]
    if misses:
        sys.stderr.writelines(f"{line}\n" for line in _misses(results))
    return tables.planted(results, clean, others, seeds)


def _misses(results: Sequence[Result]) -> Iterator[str]:
    """What is not as it should be, a line each."""
    for result in results:
        what = (
            f"{result.case.kind} {result.case.arch} {result.case.seed} {'/'.join(result.case.dtypes)} {result.dumped}"
        )
        if (result.is_findable or not result.case.bug) and not result.is_exact:
            yield f"miss  {what}: {result.expected} not {result.named} ({result.stands_out:.1f}, {result.error:.1e})"
        if result.is_findable and result.has_wrong_hint:
            yield f"wrong {what}: {result.hint}: {result.sentence}"


def run(seeds: range, every: int, folder: Path) -> Iterator[Result]:
    """Every model in every type, clean, and with some of the bugs; all of them in turn."""
    for seed, (a, arch), (d, dtypes) in product(seeds, enumerate(archs()), enumerate(DTYPES)):
        yield from run_trial(Case(arch.name, seed, dtypes), folder)
        for k, bug in enumerate(BUGS):
            if (k + a + d + seed) % every == 0:
                yield from run_trial(Case(arch.name, seed, dtypes, bug), folder)


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main()
