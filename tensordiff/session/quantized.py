"""A quantized candidate and its reference: what quantization explains, and how to find out.

Compared with the original reference, every layer of a quantized model is off. Compared with a reference that runs with
the candidate's weights (``capture --quantized-as``), a layer is off only by errors other than the quantization of
weights: see docs/decisions/0026-quantized-candidates.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from tensordiff.capture.engines import ENGINES
from tensordiff.capture.job import Source
from tensordiff.capture.process.layers import ROOT
from tensordiff.capture.quantization import said_kinds
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.lint import Finding
from tensordiff.errors import TensordiffError, printable

_KEY = "quantized_as"


def quantized_target(source: Source) -> str | None:
    """The file or folder of a source, if it is a readable checkpoint with quantized weights."""
    from tensordiff.weights.rounding import quantizations  # slow to import, and only needed for sources

    path = Path(source.target).expanduser()
    if not ENGINES[source.kind].takes_tokens or not path.exists():
        return None
    try:
        return str(path.absolute()) if quantizations(open_dump(path)) else None
    except TensordiffError:
        return None  # running the source reports what is wrong with it


def taken_weights(reference: Dump) -> str | None:
    """Description of the candidate's quantized weights that the reference was run with; None if it ran with its own."""
    said = _quantization_facts(reference)
    weights = said.get("weights")
    return weights if isinstance(weights, str) else None


def layers_in_eight_bits(reference: Dump) -> Collection[str]:
    """Layers of the reference with weights of a candidate that rounds activations to 8 bits before multiplying."""
    said = _quantization_facts(reference)
    names = said.get("layers") if said.get("rounds_activations") is True else None
    return {f"{ROOT}.{name}" for name in names} if isinstance(names, list) else frozenset()


def _quantization_facts(reference: Dump) -> dict[str, object]:
    found = reference.facts.get(_KEY)
    return found if isinstance(found, dict) else {}


def quantization_findings(reference: Dump, candidate: Dump) -> Iterator[Finding]:
    """Findings: that the reference ran with the candidate's weights, or that only the candidate is quantized."""
    if (weights := taken_weights(reference)) is not None:
        left = _quantization_facts(reference).get("left")
        more = (
            f"; {len(left)} of them are not, and were left as the reference has them"
            if isinstance(left, list) and left
            else ""
        )
        yield Finding(
            "note", "", f"the reference was run with the candidate's {printable(weights)}{more}",
            "what differs now is more than these weights explain", "look at the layers as in any comparison",
        )  # fmt: skip
    elif kinds := said_kinds(candidate.facts):
        told = f"the candidate's weights are quantized ({printable(', '.join(kinds))}), and the reference's are not"
        yield Finding(
            "warning", "", told,
            "every layer is off by that, whatever else is wrong",
            "run the reference with the candidate's weights, and compare with that: tensordiff capture hf:MODEL "
            "--quantized-as CAND",
        )  # fmt: skip
