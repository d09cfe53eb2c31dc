"""``tensordiff lint``: checks a dump, or the comparison of two, before any number is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tensordiff.align import AlignmentPlan, align
from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.cli.options import PATH, json_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.streams import Page, echo
from tensordiff.compare.lint import lint_pair
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.lint import EntryFacts, Finding, lint_headers, lint_values, read_facts
from tensordiff.errors import printable
from tensordiff.report.comparison_json import dumps
from tensordiff.report.labels import LEVELS


@click.command("lint")
@click.argument("dump", type=PATH)
@click.argument("candidate", type=PATH, required=False)
@click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make names alike.")
@json_option
def command(dump: Path, candidate: Path | None, rules: Path | None, as_json: bool) -> int:
    """Read a whole dump and list what is wrong with it; for two dumps, also what makes comparing them unfair.

    Looks for files that cannot be read, an interrupted capture, a missing order, NaN, +inf, outputs and
    inputs that are all zero, blocks that are byte for byte the same, a block's output that is not the next one's input;
    for two dumps also different token ids, an embedding that differs, names that do not pair. compare
    checks the same while it measures.

    Exit status: 0 nothing worse than a note, 1 warnings, 2 errors.
    """
    return lint(dump, candidate, rules, as_json=as_json)


SCHEMA = "tensordiff.lint/1"
_STATUS = {"note": 0, "warning": 1, "error": 2}


def lint(first: Path, second: Path | None, rules: Path | None, *, as_json: bool) -> int:
    """Check one dump or a pair; returns the exit status."""
    dumps_open = [open_dump(path) for path in (first, second) if path is not None]
    findings = list(_findings(dumps_open, read_rules_file(rules) if rules else RulesFile()))
    if as_json:
        paths = [str(dump.path) for dump in dumps_open]
        echo(dumps({"schema": SCHEMA, "dumps": paths, "findings": [finding._asdict() for finding in findings]}))
    else:
        _print(findings)
    return max((_STATUS[finding.level] for finding in findings), default=0)


def _findings(opened: list[Dump], said: RulesFile) -> Iterator[Finding]:
    if len(opened) == 2:
        reference, candidate = opened
        alignment = align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate, said))
        yield from lint_pair(reference, candidate, alignment)
    else:
        yield from lint_headers(opened[0])
    sides = ("reference: ", "candidate: ") if len(opened) == 2 else ("",)
    for side, dump in zip(sides, opened, strict=True):
        for finding in _value_findings(dump):
            yield finding._replace(where=side + finding.where)


def _value_findings(dump: Dump) -> Iterator[Finding]:
    facts: list[EntryFacts] = []
    with Progress("reading", len(dump)) as progress:
        for item in progress.over(read_facts(dump)):
            if isinstance(item, Finding):
                yield item
            else:
                facts.append(item)
    yield from lint_values(facts)


def _print(findings: list[Finding]) -> None:
    page = Page.here()
    for finding in findings:
        where = f"{printable(finding.where)}: " if finding.where else ""
        page.print(f"{LEVELS[finding.level][0]} {finding.level}: {where}{printable(finding.what)}")
        page.print(finding.why, "    why it matters: ", " " * 20)
        page.print(finding.do, "    what to do:     ", " " * 20)
    echo("sanity checks: passed" if not findings else f"{len(findings)} found")
