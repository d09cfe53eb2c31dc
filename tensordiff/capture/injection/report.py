"""The report of an injected run: what each call was given, what it kept and why, and which calls were isolated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensordiff.capture.process.layers import call_label
from tensordiff.capture.settings import Injection
from tensordiff.dump.model import CallKey
from tensordiff.dump.names import parse_name

_WEIGHTS = "the candidate's own"


@dataclass
class CallRecord:
    """What one call was given and kept."""

    injected: dict[str, str] = field(default_factory=dict)
    """The reference's entries that were injected, by port."""
    kept: dict[str, str] = field(default_factory=dict)
    """Why the other ports kept the run's own values."""
    is_isolated: bool = False
    """Whether the call's output depends on nothing that the run computed before it."""

    def as_json(self) -> dict[str, Any]:
        """The record for the manifest."""
        return {"injected": self.injected, "kept": self.kept, "isolated": self.is_isolated}


@dataclass
class InjectionReport:
    """The account of an injected run."""

    calls: dict[CallKey, CallRecord] = field(default_factory=dict)
    passes: int = 0
    steps: tuple[int, int] = (1, 1)
    """How many steps the reference has, and the run."""

    def record(self, call: CallKey) -> CallRecord:
        """The record of a call, created if needed."""
        return self.calls.setdefault(call, CallRecord())

    @property
    def has_injected(self) -> bool:
        """Whether any value of the reference was injected."""
        return any(record.injected for record in self.calls.values())

    def names(self, call: CallKey, port: str) -> tuple[str, ...] | None:
        """The reference's entries behind an entry: the one injected into it, or the inputs of its isolated call."""
        record = self.calls.get(call)
        if record is None:
            return None
        if port in record.injected:
            return (record.injected[port],)
        if port.startswith("input") or not record.is_isolated:
            return None
        return tuple(name for given, name in record.injected.items() if given.startswith("input"))

    def reference_layer(self, layer: str) -> str:
        """The reference's name for a layer, from an entry that was injected into it."""
        names = (
            name for call, record in self.calls.items() if call.layer == layer for name in record.injected.values()
        )
        return parse_name(next(names, layer)).layer

    def sentence(self) -> str:
        """The report in one sentence."""
        isolated = sum(record.is_isolated for record in self.calls.values())
        theirs, ours = self.steps
        run = f"{ours} {'was' if ours == 1 else 'were'} run"
        more = f"; the reference has {theirs} steps, and {run}" if theirs > ours else ""
        return f"{isolated} of {len(self.calls)} layers were given the reference's inputs{more}"

    def as_json(self, injection: Injection, beside: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The report for the manifest. ``beside`` names other sources of numbers, such as random ones."""
        return {
            "reference": injection.dump,
            "at": injection.at,
            "rules": injection.rules,
            "passes": self.passes,
            "beside": {"weights": _WEIGHTS, **(beside or {})},
            "layers": {call_label(call): record.as_json() for call, record in self.calls.items()},
        }
