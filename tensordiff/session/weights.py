"""Parameters in a comparison of runs: two checkpoints are no runs, and two captures may hold their weights."""

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

if TYPE_CHECKING:  # to import what compares them takes long, and few comparisons hold parameters
    from tensordiff.weights.comparison import ParameterRow, WeightsComparison, WeightsOutcome

IN_MEMORY = "arrays"
"""The format of a dump that was never on disk."""
_SHOWN = 4
_MOST_FILES = 2000
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".npy", ".msgpack", ".distcp")


def open_checkpoints(request: Request) -> tuple[Dump, Dump] | None:
    """Both sides, where both are checkpoints and nothing was asked that only runs have; else None."""
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
    """Whether something was asked that only runs have."""
    return bool(request.golden or request.injected or request.session or request.step)


def are_checkpoints(reference: Dump, candidate: Dump) -> bool:
    """Whether both sides are checkpoints. Arrays in memory are compared as what they are given as."""
    return all(dump.format != IN_MEMORY and is_checkpoint(dump) for dump in (reference, candidate))


def refuse_checkpoints(reference: Dump, candidate: Dump) -> None:
    """Two checkpoints have no execution order, and so no first tensor that differs: they are judged as parameters."""
    if are_checkpoints(reference, candidate):
        line = shell_line(["tensordiff", "weights"], [reference.path, candidate.path])
        raise AlignError(f"both sides are checkpoints, not runs; compare their parameters with {line}")


def compare_checkpoints(request: Request, reference: Dump, candidate: Dump) -> WeightsComparison:
    """Two checkpoints as a request asks for them: by its rules, limits and choice of names."""
    from tensordiff.weights.comparison import WeightsComparison

    rules = read_rules_file(request.rules) if request.rules else RulesFile()
    limits = request.limits_with(rules)
    return WeightsComparison(reference, candidate, rules, limits, request.only, request.min_coverage)


def _is_source(side: str) -> bool:
    """Whether a side is to be captured. Of a mere path nothing is asked: to find others' engines takes long."""
    kind, colon, _ = side.partition(":")
    return bool(colon) and kind in ENGINES


def _may_be_checkpoint(path: Path) -> bool:
    """By the names in a folder: no run is opened twice to find out that it is none."""
    try:
        if not path.is_dir():
            return True
        names = [entry.name.lower() for entry in islice(path.iterdir(), _MOST_FILES + 1)]
    except OSError:
        return True  # who opens it says why not
    return len(names) <= _MOST_FILES and "manifest.json" not in names and any(n.endswith(_SUFFIXES) for n in names)


def compare_captured(reference: Dump, candidate: Dump, rules: RulesFile) -> WeightsOutcome | None:
    """The parameters that two captures wrote; None where one wrote none. Maps are about runs, and left aside."""
    if not reference.parameters or not candidate.parameters:
        return None
    from tensordiff.weights.comparison import WeightsComparison

    comparison = WeightsComparison(reference, candidate, RulesFile(rules=rules.rules, presets=rules.presets))
    return comparison.outcome(comparison.rows())


class LayerWeights(NamedTuple):
    """Whether the parameters of a layer are the same on both sides."""

    sentence: str
    hint: Hint | None
    """Where they are not."""


def weights_of_layer(outcome: WeightsOutcome, layer: str) -> LayerWeights | None:
    """What is known of a layer's own parameters; None where it has none, or one could not be compared."""
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
    """The weights before any activation: what differs, or that nothing does."""
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
