"""Parameters in a comparison: two checkpoints are not runs, and two captures may also hold their weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.capture.engines import ENGINES
from tensordiff.compare.hint import Hint
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.lint import Finding
from tensordiff.errors import AlignError, printable
from tensordiff.session.request import Request
from tensordiff.util.shell_line import shell_line
from tensordiff.weights.parameters import is_checkpoint

if TYPE_CHECKING:  # importing it is slow, and few comparisons hold parameters
    from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome

IN_MEMORY = "arrays"
"""The format of a dump that exists only in memory."""
_SHOWN = 4
_MOST_FILES = 2000
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".npy", ".msgpack", ".distcp")


def open_checkpoints(request: Request) -> tuple[Dump, Dump] | None:
    """Open both sides if both are checkpoints and the request asks for nothing that only runs have; else None."""
    if asks_about_runs(request):
        return None
    if any(_is_source(str(side)) for side in (request.reference, request.candidate)):
        return None
    if not (_may_be_checkpoint(request.reference) and _may_be_checkpoint(request.candidate)):
        return None
    reference = open_dump(request.reference)
    if not is_checkpoint(reference):
        return None
    candidate = open_dump(request.candidate)
    return (reference, candidate) if is_checkpoint(candidate) else None


def asks_about_runs(request: Request) -> bool:
    """Whether the request asks for something that only runs have."""
    return bool(request.golden or request.injected or request.session or request.step)


def are_checkpoints(reference: Dump, candidate: Dump) -> bool:
    """Whether both sides are checkpoints. Arrays in memory never count as checkpoints."""
    return all(dump.format != IN_MEMORY and is_checkpoint(dump) for dump in (reference, candidate))


def refuse_checkpoints(reference: Dump, candidate: Dump) -> None:
    """Refuse two checkpoints: without an execution order there is no first tensor that differs."""
    if are_checkpoints(reference, candidate):
        line = shell_line(["tensordiff", "weights"], [reference.path, candidate.path])
        raise AlignError(f"both sides are checkpoints, not runs; compare their parameters with {line}")


def compare_checkpoints(request: Request, reference: Dump, candidate: Dump) -> WeightsComparison:
    """Compare two checkpoints by the request's rules, limits and choice of names."""
    from tensordiff.weights.comparison import WeightsComparison

    rules = read_rules_file(request.rules) if request.rules else RulesFile()
    limits = request.limits_with(rules)
    return WeightsComparison(reference, candidate, rules, limits, request.only, request.min_coverage)


def _is_source(side: str) -> bool:
    """Whether a side is a source. Only prefixes are checked for engines, since finding other packages' engines is
    slow."""
    kind, colon, _ = side.partition(":")
    return bool(colon) and kind in ENGINES


def _may_be_checkpoint(path: Path) -> bool:
    """Whether a path may be a checkpoint, by the file names in its folder, so that a run is not opened twice to find
    out."""
    try:
        if not path.is_dir():
            return True
        names = [entry.name.lower() for entry in islice(path.iterdir(), _MOST_FILES + 1)]
    except OSError:
        return True  # opening it reports the reason
    return len(names) <= _MOST_FILES and "manifest.json" not in names and any(n.endswith(_SUFFIXES) for n in names)


def compare_captured(reference: Dump, candidate: Dump, rules: RulesFile) -> WeightsOutcome | None:
    """Compare the parameters of two captures; None if one holds none. Maps concern runs and are ignored."""
    if not reference.parameters or not candidate.parameters:
        return None
    from tensordiff.weights.comparison import WeightsComparison

    comparison = WeightsComparison(reference, candidate, RulesFile(rules=rules.rules, presets=rules.presets))
    return comparison.outcome(comparison.rows())


class LayerWeights(NamedTuple):
    """Whether both sides have the same parameters for a layer."""

    sentence: str
    hint: Hint | None
    """Set if they differ."""


def weights_of_layer(outcome: WeightsOutcome, layer: str) -> LayerWeights | None:
    """The result for a layer's own parameters; None if it has none or one could not be compared."""
    rows = [row for row in outcome.rows if row.name.startswith(f"{layer}.") or row.name == layer]
    if wrong := [row for row in rows if row.verdict == "diverges"]:
        told = "; ".join(_parameter_sentence(row, layer) for row in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        is_itself = [row.name for row in rows] == [layer]
        sentence = told if is_itself else f"its weights differ: {told}{more}"
        kind = wrong[0].hint.kind if wrong[0].hint is not None else "unknown"
        return LayerWeights(sentence, Hint("weights", sentence, {"kind": kind, "parameters": len(wrong)}))
    if not rows or any(row.verdict != "agrees" for row in rows):
        return None
    return LayerWeights("its weights are the same on both sides", None)


def _parameter_sentence(row: ParameterRow, layer: str) -> str:
    name = row.name.removeprefix(f"{layer}.")
    return f"{printable(name)}: {row.sentence}" if name not in ("weight", row.name) else row.sentence


def weights_findings(outcome: WeightsOutcome) -> Iterator[Finding]:
    """Findings on the weights, which precede any activation: what differs, or that nothing does."""
    groups = [group for group in outcome.groups() if group.rows[0].verdict == "diverges"]
    for name, rows, sentence in groups[:_SHOWN]:
        count = f" ({len(rows)} parameters)" if len(rows) > 1 else ""
        yield Finding(
            "warning", name, f"weights differ{count}: {sentence}",
            "a layer with other weights gives other values, whatever its code does",
            "fix the loading of this parameter first, and capture again",
        )  # fmt: skip
    if len(groups) > _SHOWN:
        yield Finding(
            "warning", "", f"weights differ in {sum(len(group.rows) for group in groups)} parameters",
            "only the first kinds are listed", "tensordiff weights REF CAND lists all of them",
        )  # fmt: skip
    alone = [row for row in outcome.findings if row.verdict != "diverges"]
    if alone:
        names = ", ".join(printable(row.name) for row in alone[:_SHOWN])
        more = f" and {len(alone) - _SHOWN} more" if len(alone) > _SHOWN else ""
        yield Finding(
            "note", "", f"weights that only one side has: {names}{more}",
            "they were not loaded, have other names, or are split or fused",
            "look whether the model needs them: tensordiff weights REF CAND",
        )  # fmt: skip
    if not groups and outcome.verdict == "agrees":
        yield Finding(
            "note", "", f"the weights are the same on both sides ({outcome.compared} parameters compared)",
            "an error is then in the computation, not in what was loaded", "look at the layers",
        )  # fmt: skip
