"""The folder that ``verify`` writes: the reports of each scenario, and ``summary.md`` with both side by side.

A scenario consists of the names of the modules that ran, the plot, and the report as text, HTML and JSON. The summary
names culprits and victims, explains what that means, and says what to try next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tensordiff.compare.row import Row
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.report.formats import PICTURE, draws_pictures, write_model
from tensordiff.report.labels import counted, label, number, verdict_text
from tensordiff.report.markdown import code, prose, sentence_markdown, table
from tensordiff.report.model import ReportModel
from tensordiff.report.row_detail import RowDetail
from tensordiff.session.streaming.options import Keep
from tensordiff.util.atomic_write import write_file
from tensordiff.util.shell_line import shell_line

WITHOUT, WITH = "without_injection", "with_injection"
REFERENCE_LAYERS, CANDIDATE_LAYERS = "reference_layers", "candidate_layers"
_MOST = 30  # rows that a list shows
Lines = Iterator[str]
REPORTS = ("mse_plot.png", "layer_verification_report.txt", "report.html", "report.json")


def write_scenario(model: ReportModel, folder: Path) -> None:
    """Write the reports of a scenario and the names of the modules that ran."""
    for side, dump in (("reference", model.session.reference), ("candidate", model.session.candidate)):
        write_file(folder / f"module_names_{side}.txt", module_names(dump), make_folders=True)
    for name in REPORTS:
        if draws_pictures() or not name.endswith(PICTURE):
            write_model(model, folder / name)


def module_names(dump: Dump) -> str:
    """The modules of a dump in execution order, one per line."""
    layers = dict.fromkeys(printable(entry.layer) for entry in dump.entries if not entry.is_input)
    return "".join(f"{layer}\n" for layer in layers)


class Verification(NamedTuple):
    """The result of ``verify``."""

    whole: ReportModel
    """Judged by both scenarios, or by the first alone if there is no other."""
    without: ReportModel
    injected: ReportModel | None
    left_out: str
    """Why there is no scenario with injection; empty if there is one."""
    has_layers: bool = True
    """Whether the dumps are kept."""
    inject_with: tuple[str, ...] = ()
    """Shell lines that make a run with injection."""
    keep: Keep | None = None
    """Which of the streamed tensors are kept in ``sides``; None if dumps were compared."""
    sides: tuple[str, str] | None = None
    """The dumps to use in suggested commands, if they are not the ones that were compared."""

    @property
    def left_out_sentence(self) -> str:
        """Why there is no scenario with injection, and how to make one."""
        lines = ", then ".join(self.inject_with)
        return f"{self.left_out}; inject with: {lines}" if lines else self.left_out


def verify_summary(found: Verification) -> str:
    """The text of ``summary.md``."""
    sections = (
        _head(found), _scenarios(found), _blame(found),
        _bullets("What it means", _meaning(found)), _bullets("What to try next", _next_steps(found)),
    )  # fmt: skip
    return "\n".join(chain.from_iterable(sections)) + "\n"


def _head(found: Verification) -> Lines:
    whole = found.whole
    yield f"# {verdict_text(whole.verdict)}: {prose(whole.title)}"
    yield ""
    yield sentence_markdown(whole)


def _scenarios(found: Verification) -> Lines:
    models = [found.without, *([found.injected] if found.injected else [])]
    names = [WITHOUT, WITH][: len(models)]
    asked: tuple[tuple[str, Callable[[ReportModel], str]], ...] = (
        ("verdict", lambda model: verdict_text(model.verdict)),
        ("pairs", lambda model: str(len(model.rows))),
        ("agree, drift, diverge, unknown", lambda model: ", ".join(str(count) for count in model.counts.values())),
        ("first culprit", lambda model: code(label(model.culprit_rows[0].pair)) if model.culprit_rows else "none"),
        ("largest MSE", lambda model: number(model.statistics["mse"]["max"])),
        ("median MSE", lambda model: number(model.statistics["mse"]["median"])),
        ("not paired", lambda model: str(len(model.orphans))),
    )
    yield ""
    yield from table(
        ("", *(name.replace("_", " ") for name in names)),
        ((title, *(told(model) for model in models)) for title, told in asked),
    )
    yield ""
    plot = ", [plot]({0}/mse_plot.png)" if draws_pictures() else ""
    links = (f"[{name}/report.html]({name}/report.html){plot.format(name)}" for name in names)
    yield f"Reports: {'; '.join(links)}."
    if found.left_out:
        yield ""
        yield f"**The scenario with injection was left out**: {prose(found.left_out)}."
    if found.inject_with:
        yield ""
        yield f"Inject with: {', then '.join(map(code, found.inject_with))}"


def _blame(found: Verification) -> Lines:
    for title, rows in found.whole.fault_groups:
        yield from _listed(title, rows, found.whole)


def _listed(title: str, rows: tuple[Row, ...], model: ReportModel) -> Lines:
    yield ""
    yield f"## {title} ({len(rows)})"
    yield ""
    yield from table(("layer", "rel_l2", "with injection", "why"), (_row(row) for row in rows[:_MOST]))
    if len(rows) > _MOST:
        yield ""
        yield f"and {len(rows) - _MOST} more of {counted(len(model.rows), 'pair')}"


def _row(row: Row) -> tuple[str, ...]:
    diff, injected = (number(found.rel_l2) if found else "-" for found in (row.diff, row.injected))
    return code(label(row.pair)), diff, injected, prose(row.verdict.why)


def _bullets(title: str, sentences: Lines) -> Lines:
    yield ""
    yield f"## {title}"
    yield ""
    yield from (f"- {sentence}" for sentence in sentences)


def _meaning(found: Verification) -> Lines:
    whole = found.whole
    if whole.verdict == "unknown":
        yield "Whether the two agree is unknown: look first at what could not be compared."
    elif not whole.culprit_rows:
        yield "No layer is wrong by itself; the differences are rounding, or rounding that grew along the way."
    elif found.injected is None:
        yield "A layer is called a culprit here because its inputs agree, or agree far better than its output."
        yield "Only a run with the reference's inputs injected tells culprits from victims for certain."
    else:
        yield from _injection_meaning(whole)
    if found.injected is not None and found.without.culprit_rows and not found.injected.culprit_rows:
        yield "With right inputs every layer is right: the error is inherited, or arises between these layers."
    detail = next(iter(whole.details), None)
    if detail is not None and detail.hint is not None:
        yield f"The culprit looks like: {prose(detail.hint.sentence)}."
    if detail is not None and detail.weights:
        yield f"Of the culprit: {prose(detail.weights)}."


def _injection_meaning(whole: ReportModel) -> Lines:
    yield f"Wrong even with the reference's inputs: {counted(len(whole.culprit_rows), 'layer')}. The bug is there."
    if whole.victims:
        yield f"Right when given right inputs: {counted(len(whole.victims), 'layer')}. Fix what runs before them."
    yield "Weights, caches, masks and positions that were not injected count as part of a layer here."


def _next_steps(found: Verification) -> Lines:
    whole = found.whole
    both = found.sides or (whole.reference.path, whole.candidate.path)
    if not found.has_layers:
        yield f"The layers were not kept: verify again with {code('--save-layers')} for what follows."
    if found.keep == "none":
        yield f"Nothing was kept: verify again with {code('--keep all')} for what follows."
    elif found.keep is not None and whole.culprit_rows:
        yield f"Open what was kept: {_command(sides=both)}"
    if whole.culprit_rows:
        yield f"Look at the culprit's elements: {_command('report', *_culprit_selection(whole), sides=both)}"
        yield from _code_places(next(iter(whole.details), None))
    if whole.culprit_rows and found.inject_with:
        lines, compare = (
            ", then ".join(map(code, found.inject_with)),
            _command("compare", "--injected", "DIR", sides=both),
        )
        yield f"Give the candidate's layer the reference's inputs: {lines}, then {compare}"
    elif whole.culprit_rows and found.injected is None:
        yield f"Capture the candidate with {code('--inject REF')}, and give that dump with {code('--injected')}."
    if found.keep == "diverging" and (whole.orphans or whole.findings or not whole.culprit_rows):
        yield f"Only what diverges was kept: verify again with {code('--keep all')} for what follows."
    if whole.orphans:
        yield f"See why {counted(len(whole.orphans), 'tensor')} found no partner: {_command('align', sides=both)}"
    if whole.findings:
        yield f"Check whether the comparison is fair: {_command('lint', sides=both)}"
    if not whole.has_golden and whole.verdict != "agrees":
        yield f"Give a run in higher precision with {code('--golden')}: it tells a bug from a noisy layer."
    if whole.verdict in ("agrees", "drifts"):
        command = _command("tolerances", "-o", "tolerances.toml", sides=both)
        yield f"To keep it that way: {command}, then give that file in CI."


def _command(*words: str, sides: tuple[str, str]) -> str:
    return code(shell_line(["tensordiff", *words], sides))


def _culprit_selection(whole: ReportModel) -> tuple[str, str]:
    return "--select", f"^{re.escape(label(whole.culprit_rows[0].pair))}$"


def _code_places(detail: RowDetail | None) -> Lines:
    if detail is None:
        return
    for side, origin in zip(("reference", "candidate"), detail.origins, strict=True):
        if origin:
            yield f"Read the {side}'s code: {code(origin)}"
    if detail.repro:
        yield f"Make a repro of the layer alone: {code(detail.repro)}"
