"""``tensordiff tolerances``: learns tolerances from runs that agree, for ``compare --tolerances`` to enforce."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.align.rules.file import RulesFile, read_rules_file, write_rules_file
from tensordiff.align.rules.tables import ToleranceRule
from tensordiff.cli.commands.compare import measure
from tensordiff.cli.options import PATH, json_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.streams import Page, echo, say_if_slow
from tensordiff.cli.summary import inconclusive_error
from tensordiff.compare.row import Row
from tensordiff.compare.tolerances import Need, match_for, need_of, pareto_front, tolerance_for
from tensordiff.dump.lint import Finding, read_facts
from tensordiff.errors import TensordiffError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.report.labels import label
from tensordiff.session.request import Request
from tensordiff.session.session import Session

SCHEMA = "tensordiff.tolerances/1"
_METRICS = ("rel_l2", "cos_dist", "max_abs", "kl_div")
Needs = dict[str, Need]


class Size(click.FloatRange):
    """A number within bounds, and not NaN, which click's own range check lets through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the number."""
        size = super().convert(value, param, ctx)
        return self.fail("nan is not a size", param, ctx) if math.isnan(size) else size


class TolerancesOptions(NamedTuple):
    """How to learn, and where to write."""

    margin: float
    per_layer: bool
    output: Path | None
    as_json: bool


@click.command("tolerances")
@click.argument("paths", type=PATH, nargs=-1, required=True, metavar="REFERENCE CANDIDATE [REFERENCE CANDIDATE]...")
@click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make names alike.")
@click.option(
    "--margin", type=Size(0, 100), default=0.25, show_default=True, metavar="X", help="How much worse may still pass."
)
@click.option("--per-layer", is_flag=True, help="One tolerance per layer, instead of one for all layers of a kind.")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write them to a file.")
@json_option
def command(
    paths: tuple[Path, ...], rules: Path | None, margin: float, per_layer: bool, output: Path | None, as_json: bool
) -> int:
    """Measure runs that agree, and print the tolerances that they pass with a margin, rounded up to two digits.

    From several pairs of dumps of one model (other prompts, other machines) come tolerances that all of them pass. An
    existing file keeps its text and comments; tables with the same match get new numbers. Enforce the file with
    compare --tolerances FILE: exit status 1 if a run is worse.

    Refused are runs without pairs, with NaN, with a layer that diverges, or with an error that lint finds.

    Exit status: 0 tolerances were found, 2 they were not.
    """
    if len(paths) % 2:
        raise click.UsageError(
            f"dumps come in pairs, a reference and its candidate; there are {len(paths)}", click.get_current_context()
        )
    dump_pairs = tuple(zip(paths[::2], paths[1::2], strict=True))
    return learn_tolerances(dump_pairs, rules, TolerancesOptions(margin, per_layer, output, as_json))


def learn_tolerances(dump_pairs: Sequence[tuple[Path, Path]], rules: Path | None, options: TolerancesOptions) -> int:
    """Learn, print and write; returns the exit status. Raises if there is nothing to learn from."""
    say_if_slow()
    needs: Needs = {}
    for reference, candidate in dump_pairs:
        session = Session.open(Request(reference, candidate, rules=rules))
        _refuse_bad(session)
        for match, need in _learn(session, options):
            needs[match] = needs[match] | need if match in needs else need
    if not needs:
        raise TensordiffError(
            f"{_paths(*dump_pairs[0])}: no floats are paired, so there is nothing to measure; pair more with --rules"
        )
    found = {match: tolerance_for(match, need, options.margin) for match, need in needs.items()}
    kept = 0 if options.output is None else _write(options.output, tuple(found.values()), _header(dump_pairs, options))
    if options.as_json:
        echo(dumps(_as_json(dump_pairs, needs, found, options)))
    else:
        page = Page.here()
        _print_table(needs, found)
        page.print(_front_line(needs), rest="  ")
        page.print(f"margin {options.margin:.4g}, rounded up to two digits")
        if options.output is not None:
            page.print(_written(options.output, len(found), kept))
    return 0


def _paths(reference: Path, candidate: Path) -> str:
    return f"{printable(reference)} and {printable(candidate)}"


def _refuse_bad(session: Session) -> None:
    """Refuse dumps in which lint finds an error."""
    for finding in _errors(session):
        where = f"{printable(finding.where)}: " if finding.where else ""
        paths = _paths(session.reference.path, session.candidate.path)
        raise TensordiffError(f"{paths}: {where}{printable(finding.what)}; that gives no tolerance; {finding.do}")


def _errors(session: Session) -> Iterator[Finding]:
    found: list[Iterator[Finding]] = [session.header_findings()]
    sides = session.reference, session.candidate
    found.extend((item for item in read_facts(dump) if isinstance(item, Finding)) for dump in sides)
    return (finding for findings in found for finding in findings if finding.level == "error")


def _learn(session: Session, options: TolerancesOptions) -> list[tuple[str, Need]]:
    outcome = measure(session)
    if outcome.culprit is not None:
        raise _divergence_error(session, outcome.culprit)
    if outcome.verdict == "unknown":
        raise inconclusive_error(session, outcome)
    with Progress("learning", len(outcome.rows)) as progress:
        needs = [(row, need_of(row, options.margin)) for row in progress.over(outcome.rows)]
    return [(match_for(row, per_layer=options.per_layer), need) for row, need in needs if need is not None]


def _divergence_error(session: Session, row: Row) -> TensordiffError:
    paths = _paths(session.reference.path, session.candidate.path)
    return TensordiffError(
        f"{paths}: {label(row.pair)} diverges ({printable(row.verdict.why)}), and a tolerance taken from it would let "
        "that pass; fix it, or allow it by a [[tolerance]] of your own in --rules"
    )


def _header(dump_pairs: Sequence[tuple[Path, Path]], options: TolerancesOptions) -> str:
    """The comment at the top of a new file."""
    made = "\n".join(f"#   {printable(cand)} against {printable(ref)}" for ref, cand in dump_pairs)
    return (
        f"# Tolerances that these runs pass with a margin of {options.margin:.4g}, by tensordiff tolerances:\n{made}\n"
        "# Enforce them with: tensordiff compare REF CAND --tolerances FILE. The first that matches counts.\n"
    )


def _write(path: Path, found: tuple[ToleranceRule, ...], header: str) -> int:
    """Write tables to a file, replacing those with the same match; returns the number of other tables in it."""
    old = read_rules_file(path) if path.exists() else RulesFile()
    new = {tolerance.match: tolerance for tolerance in found}
    others = [tolerance for tolerance in old.tolerances if tolerance.match not in new]
    there = tuple(new.pop(tolerance.match, tolerance) for tolerance in old.tolerances)
    write_rules_file(path, replace(old, tolerances=(*there, *new.values())), header)
    return len(others)


def _print_table(needs: Needs, found: Mapping[str, ToleranceRule]) -> None:
    width = max(len(printable(match)) for match in found)
    echo(f"{'match':{width}} {'pairs':>5} " + " ".join(f"{metric:>8}" for metric in _METRICS))
    for match, tolerance in found.items():
        numbers = " ".join(f"{_number(getattr(tolerance, metric)):>8}" for metric in _METRICS)
        echo(f"{printable(match):{width}} {needs[match].pairs:>5} {numbers}".rstrip())
    echo()


def _front_line(needs: Needs) -> str:
    ends = ", ".join(f"{point.atol:g} {point.rtol:g}" for point in pareto_front(reduce(or_, needs.values()).atols))
    return f"every element passes with --atol and --rtol of: {ends}"


def _written(path: Path, count: int, kept: int) -> str:
    own = f"; other tables in the file ({kept}) stay; of several that match a pair the first counts" if kept else ""
    return f"{count} tolerances written to {printable(path)}{own}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _as_json(
    dump_pairs: Sequence[tuple[Path, Path]],
    needs: Needs,
    found: Mapping[str, ToleranceRule],
    options: TolerancesOptions,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dumps": [{"reference": str(reference), "candidate": str(candidate)} for reference, candidate in dump_pairs],
        "margin": options.margin,
        "per_layer": options.per_layer,
        "output": options.output and str(options.output),
        "front": _front(reduce(or_, needs.values())),
        "tolerances": [
            {key: asdict(tolerance)[key] for key in ("match", *_METRICS)}
            | {"pairs": needs[match].pairs, "measured": _measured(needs[match]), "front": _front(needs[match])}
            for match, tolerance in found.items()
        ],
    }


def _front(need: Need) -> list[dict[str, float]]:
    return [asdict(point) for point in pareto_front(need.atols)]


def _measured(need: Need) -> dict[str, float | None]:
    return {metric: getattr(need, metric) for metric in _METRICS}
