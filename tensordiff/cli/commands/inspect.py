"""``tensordiff inspect``: lists the entries of a dump, one a line, or as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.align.index import ranks_of
from tensordiff.cli.options import PATH, json_option, keep_option
from tensordiff.cli.progress import Progress
from tensordiff.cli.sources import dump_or_capture
from tensordiff.cli.streams import Page, echo
from tensordiff.compare.look.statistics import statistics
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.lint import lint_headers
from tensordiff.errors import AlignError, DumpError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.report.labels import LEVELS, number
from tensordiff.util.nearest_name import nearest_name
from tensordiff.util.regex import UserRegex
from tensordiff.util.sizes import format_bytes
from tensordiff.util.text_width import columns, cut_middle, pad, wrap


@click.command("inspect")
@click.argument("dump", type=PATH)
@json_option
@click.option("--stats", is_flag=True, help="Read every tensor: minimum, maximum, mean, RMS, NaN and infinities.")
@click.option("--only", metavar="REGEX", help="Only entries whose name matches.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Only this step of the run.")
@keep_option
def command(dump: Path, keep: Path | None, as_json: bool, stats: bool, only: str | None, step: int | None) -> int:
    """List a dump's entries in order, with shape, dtype and size. Reads headers only, unless --stats is given."""
    return inspect(dump_or_capture(dump, keep), as_json=as_json, stats=stats, only=only, step=step)


SCHEMA = "tensordiff.inspect/1"
_STEP, _ABOUT = 4, 37  # columns of the step, and of dtype, shape and size


def inspect(path: Path, *, as_json: bool, stats: bool, only: str | None, step: int | None) -> int:
    """Show a dump; returns status 2 if any entry or other file in it cannot be read."""
    dump = open_dump(path)
    entries = _chosen(dump, only, step)
    with Progress("reading", len(entries)) as progress:
        records = (_record(entry, stats) for entry in progress.over(entries))
        if as_json:
            return _print_json(dump, list(records))
        return _print_text(dump, entries, records, progress)


def _chosen(dump: Dump, only: str | None, step: int | None) -> list[Entry]:
    is_named = UserRegex("--only", only or "").matches
    everything = (*dump.entries, *dump.parameters)
    entries = [entry for entry in everything if is_named(entry.name) and (step is None or entry.step == step)]
    if dump.entries and not entries:
        wanted = "" if only is None else f" named like {only!r}"
        wanted += "" if step is None else f" of step {step}"
        count = f"none of the {len(dump)} entries is{printable(wanted)}"
        near = nearest_name(only or "", (entry.name for entry in everything))
        others = "without --only and --step all are listed" if near is None else f"the nearest is {printable(near)}"
        raise AlignError(f"{printable(dump.path)}: {count}; {others}")
    return entries


def _record(entry: Entry, stats: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": entry.name, "layer": entry.layer, "port": entry.port, "call": entry.call, "step": entry.step,
        "ranks": ranks_of(entry) or None,
    }  # fmt: skip
    try:
        spec = entry.spec
        record |= {"shape": list(spec.shape), "dtype": spec.dtype.name, "bytes": spec.nbytes, "problem": None}
        if stats:
            record["stats"] = statistics(entry.read()).as_json()
    except DumpError as error:
        record |= {"shape": None, "dtype": None, "bytes": None, "problem": str(error)}
    return record


def _print_json(dump: Dump, records: list[dict[str, Any]]) -> int:
    whole = {
        "schema": SCHEMA, "path": str(dump.path), "format": dump.format, "ordered": dump.ordered,
        "interrupted": dump.interrupted, "facts": dict(dump.facts), "entries": records,
        "problems": [problem._asdict() for problem in dump.problems],
    }  # fmt: skip
    echo(dumps(whole))
    return _status(records) or _unread_status(dump)


def _status(records: list[dict[str, Any]]) -> int:
    return 2 if any(record["problem"] for record in records) else 0


def _unread_status(dump: Dump) -> int:
    return 2 if any(problem.is_unread for problem in dump.problems) else 0


def _print_text(dump: Dump, entries: list[Entry], records: Iterator[dict[str, Any]], progress: Progress) -> int:
    page = Page.here()
    order = "in execution order" if dump.ordered else "order unknown"
    held = f", {len(dump.parameters)} parameters" if dump.parameters else ""
    page.print(f"{printable(dump.path)}  {dump.format}, {len(dump)} entries{held}, {order}")
    for finding in lint_headers(dump):
        where = f"{printable(finding.where)} " if finding.where else ""
        page.print(f"{finding.level}: {where}{printable(finding.what)}", f"  {LEVELS[finding.level][0]} ", "    ")
    layout = _Layout.of(entries, page)
    total, status = 0, _unread_status(dump)
    for record in records:
        progress.clear()
        for line in layout.lines(record):
            echo(line)
        total += record["bytes"] or 0
        status = status or _status([record])
    echo(f"{len(entries)} entries, {format_bytes(total)}")
    return status


class _Layout(NamedTuple):
    """The width of names, and whether steps are shown."""

    name_width: int
    has_steps: bool
    page: Page

    @classmethod
    def of(cls, entries: list[Entry], page: Page) -> _Layout:
        longest = max((columns(printable(entry.name)) for entry in entries), default=0)
        room = 72 if page.width is None else max(16, page.width - _ABOUT - _STEP)
        return cls(min(longest, room), any(entry.step for entry in entries), page)

    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        """An entry on one line; on a terminal, its statistics or its problem go on further lines."""
        name = printable(record["name"])
        name = name if self.page.width is None else cut_middle(name, self.name_width)
        step = f"{record['step']:>3} " if self.has_steps else ""
        more = f"? {printable(record['problem'])}" if record["problem"] else _stats_cells(record.get("stats"))
        line = f"{step}{pad(name, self.name_width)} {_about(record)}".rstrip()
        if self.page.width is None or not more:
            yield f"{line} {more}".rstrip()
        else:
            yield line
            yield from wrap(more, self.page.width, " " * _STEP, " " * _STEP)


def _about(record: dict[str, Any]) -> str:
    if record["shape"] is None:
        return ""
    shape = "×".join(map(str, record["shape"])) or "scalar"
    ranks = f"  {record['ranks']}" if record["ranks"] else ""
    return f"{record['dtype']:<10} {shape:>14} {format_bytes(record['bytes']):>9}{ranks}"


def _stats_cells(stats: dict[str, Any] | None) -> str:
    if stats is None:
        return ""
    headings = {"min": "minimum", "max": "maximum", "mean": "mean", "rms": "rms"}
    values = (f"{name} {'-' if stats[key] is None else number(stats[key]):>9}" for name, key in headings.items())
    odd = f"  nan {stats['nan']} inf {stats['inf']}" if stats["nan"] or stats["inf"] else ""
    return " ".join(values) + odd
