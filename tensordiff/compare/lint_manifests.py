"""Checks on two manifests: whether they describe the same model, and whether runs on GPUs had the same setup.

The model is compared by its config, its number of parameters and its weights. Different cards, drivers and settings
explain different last digits and are no fault.

Only facts that both manifests record are compared. A hash of weights covers the names and types of parameters, so
hashes are compared only if the same framework ran modules of the same names and classes in the same type. Then a
different hash means different values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Dump
from tensordiff.errors import printable
from tensordiff.util.text_width import cut_end

_SHOWN = 4
_WHERE = "the manifests"
_LONGEST = 400
_WITHOUT_EFFECT = re.compile(
    r"(?:^|\.)(?:architectures|model_type|dtype|torch_dtype|transformers_version|use_cache|return_dict|output_\w+"
    r"|\w+_token_id|initializer_\w+|\w*dropout\w*|id2label\..*|label2id\..*|quantization_config\..*)$"
)
"""Settings that do not change what one forward in evaluation mode computes, or that are reported elsewhere."""
_OTHER_MODEL = "the two sides are not the same model"


def lint_manifests(reference: Dump, candidate: Dump) -> Iterator[Finding]:
    """Findings from what two dumps record about their runs, one line each."""
    yield from _config(reference.facts, candidate.facts)
    yield from _parameter_counts(reference.facts, candidate.facts)
    yield from _weights(reference, candidate)
    yield from _gpus(reference.facts, candidate.facts)


def _config(reference: Mapping[str, object], candidate: Mapping[str, object]) -> Iterator[Finding]:
    sides = [facts.get("config_overrides") for facts in (reference, candidate)]
    if not all(isinstance(one, Mapping) for one in sides):
        sides = [{}, {}]
    ours, theirs = (dict(one) for one in sides if isinstance(one, Mapping))
    other = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
    if other:
        told = ", ".join(
            f"{key} {_override_text(ours, key)} and {_override_text(theirs, key)}" for key in other[:_SHOWN]
        )
        more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
        yield Finding(
            "warning", _WHERE, printable(f"the configs were overridden differently: {told}{more}"), _OTHER_MODEL,
            "give both sides the same --config",
        )  # fmt: skip
    else:
        yield from _whole_config(reference.get("config"), candidate.get("config"))


def _whole_config(reference: object, candidate: object) -> Iterator[Finding]:
    ours, theirs = dict(_flat(reference)), dict(_flat(candidate))
    other = [key for key in ours if key in theirs and ours[key] != theirs[key] and not _WITHOUT_EFFECT.search(key)]
    if other:
        told = ", ".join(f"{key} {ours[key]!r} and {theirs[key]!r}" for key in other[:_SHOWN])
        more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
        yield Finding(
            "warning", _WHERE, cut_end(printable(f"the configs differ: {told}{more}"), _LONGEST, len), _OTHER_MODEL,
            "run the same checkpoint on both sides, or give what differs with --config",
        )  # fmt: skip


def _flat(config: object, before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in config.items() if isinstance(config, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _override_text(overrides: Mapping[Any, Any], key: Any) -> str:
    return repr(overrides[key]) if key in overrides else "(as the model has it)"


def _parameter_counts(reference: Mapping[str, object], candidate: Mapping[str, object]) -> Iterator[Finding]:
    counts = [_model_fact(facts, "parameters") for facts in (reference, candidate)]
    if all(type(count) is int for count in counts) and counts[0] != counts[1]:
        told = " and ".join(f"{count:,}" for count in counts)
        yield Finding(
            "note", _WHERE, f"the models have {told} parameters", "one side may have tied, fused or left out weights",
            "compare what was loaded: tensordiff weights REF CAND, of captures with --weights",
        )  # fmt: skip


def _weights(reference: Dump, candidate: Dump) -> Iterator[Finding]:
    hashes = reference.facts.get("weights_hash"), candidate.facts.get("weights_hash")
    if not all(isinstance(one, str) for one in hashes) or hashes[0] == hashes[1]:
        return
    same = all(reference.facts.get(name) == candidate.facts.get(name) is not None for name in ("framework", "dtype"))
    if same and (modules := _modules(reference)) and modules == _modules(candidate):
        yield Finding(
            "warning", _WHERE, "the weights differ, by their hashes, though the modules are the same",
            "other weights give other numbers", "compare them: tensordiff weights A B",
        )  # fmt: skip


def _gpus(reference: Mapping[str, object], candidate: Mapping[str, object]) -> Iterator[Finding]:
    ours, theirs = dict(_about_gpus(reference)), dict(_about_gpus(candidate))
    if reference.get("framework") != candidate.get("framework"):
        ours.pop("cards", None)  # each framework spells the cards' names differently
    other = [what for what in ours if what in theirs and ours[what] != theirs[what]]
    if other:
        told = "; ".join(f"{what} {ours[what]} and {theirs[what]}" for what in other)
        said = printable(f"the GPUs were not the same, or not set the same: {told}")
        yield Finding(
            "note", _WHERE, cut_end(said, _LONGEST, len),
            "other kernels add up in another order, so last digits may differ",
            "run both sides on the same GPU to rule it out",
        )  # fmt: skip


def _about_gpus(facts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Facts that change the last digits of a run on GPUs, by description; none for a run on the CPU."""
    cards = [card for card in _as_list(facts.get("accelerators")) if isinstance(card, Mapping)]
    if not cards:
        return
    for what, key in (("cards", "name"), ("architecture", "architecture")):
        if said := dict.fromkeys(str(card[key]) for card in cards if key in card):
            yield what, ", ".join(said)
    for where, names in (("accelerator_software", _SOFTWARE), ("flags", _FLAGS)):
        if isinstance(there := facts.get(where), Mapping):
            yield from ((what, _value(there[name])) for name, what in names.items() if there.get(name) is not None)


_SOFTWARE = {"driver": "driver", "cuda": "CUDA", "rocm": "ROCm", "cudnn": "cuDNN"}
_FLAGS = {
    "sdpa_backends": "attention by",
    "fp16_reduced_precision_reduction": "float16 sums in fewer bits",
    "bf16_reduced_precision_reduction": "bfloat16 sums in fewer bits",
    "fp16_accumulation": "float16 sums in float16",
    "cublas_workspace_config": "CUBLAS_WORKSPACE_CONFIG",
}
"""TF32 is not listed, since it has a finding of its own."""


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _modules(dump: Dump) -> set[tuple[str, str | None]]:
    """Names and classes of the modules that ran; empty if a dump has no classes."""
    found = {(entry.layer, entry.origin.module_class) for entry in dump.entries if entry.origin is not None}
    return {one for one in found if one[1] is not None}


def _model_fact(facts: Mapping[str, object], key: str) -> object:
    model = facts.get("model")
    return model.get(key) if isinstance(model, Mapping) else None
