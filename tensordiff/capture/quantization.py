"""The facts in a dump about its model's quantization: which parameters, how coarsely, and whether activations are
rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordiff.weights.quantization import Quantization

_KEY, _ACTIVATIONS = "quantization", "rounds_activations"


def quantization_facts(parameters: Mapping[str, Quantization], *, rounds_activations: bool) -> dict[str, Any]:
    """The fact for the manifest, which ``weights.parameters`` reads; none if nothing is quantized."""
    if not parameters:
        return {}
    kinds = list(dict.fromkeys(parameters.values()))
    return {
        _KEY: {
            _ACTIVATIONS: rounds_activations,
            "kinds": [kind._asdict() for kind in kinds],
            "parameters": {name: kinds.index(kind) for name, kind in parameters.items()},
        }
    }


def said_kinds(facts: Mapping[str, object]) -> list[str]:
    """The names of the quantizations in a dump's facts."""
    found = facts.get(_KEY)
    kinds = found.get("kinds") if isinstance(found, dict) else None
    names = [kind.get("name") for kind in kinds if isinstance(kind, dict)] if isinstance(kinds, list) else []
    return list(dict.fromkeys(f"{name:.60}" for name in names if isinstance(name, str)))


def said_to_round_activations(facts: Mapping[str, object]) -> bool:
    """Whether a dump says that activations were rounded to 8 bits."""
    found = facts.get(_KEY)
    return isinstance(found, dict) and found.get(_ACTIVATIONS) is True
