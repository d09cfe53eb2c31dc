"""One injected run, for any engine: the plan, the value for each port, and the report of what was injected.

An engine lists its entries, asks for the plan, runs the passes, and asks before each call which values to inject::

    plan = plan_injection(injection, entries, aliases)
    injector = Injector(plan)
    for injection_pass in injector.passes():
        ...                                           # run the model, and before each call:
        values = injector.inputs(injection_pass, call, ports)  # by port; other ports keep the run's own values
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensordiff.capture.injection.passes import Layers, Pass, plan_passes
from tensordiff.capture.injection.report import InjectionReport
from tensordiff.capture.injection.sources import InjectionSources, find_sources
from tensordiff.capture.process.layers import entry_key
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import CallKey, EntryKey, Spec
from tensordiff.errors import CaptureError, printable


class InjectionPort(NamedTuple):
    """An argument or a result of a call, as far as injection needs to know it."""

    spec: Spec | None
    """Its shape and type; None if it is not a tensor, or its type is not one that dumps have."""
    refusal: str | None = None
    """Why the engine cannot replace it."""
    is_constant: bool = False
    """Whether it is the same in every run, so that no error enters through it."""


@dataclass(frozen=True)
class InjectionPlan:
    """Which tensors of the reference go where, and in which pass."""

    injection: Injection
    sources: InjectionSources
    passes: tuple[Pass, ...]


def plan_injection(
    injection: Injection,
    entries: Sequence[Entry],
    aliases: Mapping[EntryKey, EntryKey],
    *,
    layer: str | None = None,
    replaces_outputs: bool = True,
) -> InjectionPlan:
    """Plan the injection into a run that has these entries, in execution order.

    ``aliases`` maps an input to the earlier entry of the same tensor. ``layer`` is the only layer to inject into,
    whatever the settings say. ``replaces_outputs`` is whether the engine can replace a layer's outputs.
    """
    sources = find_sources(injection, entries, aliases)
    if layer is not None:
        only = frozenset([layer])
        return InjectionPlan(injection, sources, (Pass(only, written=only),))
    layers = Layers.from_entries(entries, sources.canonical)
    return InjectionPlan(injection, sources, plan_passes(injection.at, layers, replaces_outputs=replaces_outputs))


@dataclass
class Injector:
    """Supplies the reference's values to the calls of a run, and keeps account of them in ``report``."""

    plan: InjectionPlan

    def __post_init__(self) -> None:
        self.report = InjectionReport(passes=len(self.plan.passes), steps=self.plan.sources.steps)

    def passes(self) -> Iterator[Pass]:
        """The passes to run. Raises after the last one if no value of the reference was injected."""
        yield from self.plan.passes
        if not self.report.has_injected:
            injection = self.plan.injection
            raise CaptureError(
                f"{printable(injection.dump)}: nothing of it goes into this model at {printable(injection.at)}; "
                "see what is paired with: tensordiff align"
            )

    def inputs(self, injection_pass: Pass, call: CallKey, ports: Mapping[str, InjectionPort]) -> dict[str, Array]:
        """The values to call a layer with, by port, in the ports' own types; none if the pass does not inject its
        inputs.
        """
        if call.layer not in injection_pass.inputs:
            return {}
        values, injected = self._values(call, ports)
        if isolates(_float_inputs(ports), injected):
            self.report.record(call).is_isolated = True
        return values

    def outputs(self, injection_pass: Pass, call: CallKey, ports: Mapping[str, InjectionPort]) -> dict[str, Array]:
        """The values that a layer is to return, by port; none if the pass does not replace its outputs."""
        if call.layer not in injection_pass.outputs:
            return {}
        values, injected = self._values(call, ports)
        if injected:  # the outputs are the reference's own
            self.report.record(call).is_isolated = True
        return values

    def _values(self, call: CallKey, ports: Mapping[str, InjectionPort]) -> tuple[dict[str, Array], dict[str, str]]:
        values: dict[str, Array] = {}
        injected: dict[str, str] = {}
        kept: dict[str, str] = {}
        for port, injection_port in ports.items():
            found = self._value(call, port, injection_port)
            if isinstance(found, str):
                kept[port] = found
            else:
                injected[port], values[port] = found
        record = self.report.record(call)
        record.injected |= injected
        record.kept |= kept
        return values, injected

    def _value(self, call: CallKey, port: str, injection_port: InjectionPort) -> tuple[str, Array] | str:
        """The reference's entry and its values; or why the run's own value is kept."""
        if injection_port.refusal is not None:
            return injection_port.refusal
        if injection_port.spec is None:
            return "it is no tensor that dumps hold"
        return self.plan.sources.value(entry_key(call, port), injection_port.spec)


def _float_inputs(ports: Mapping[str, InjectionPort]) -> dict[str, int]:
    """The sizes of the inputs that an error may enter through."""
    return {
        port: injection_port.spec.size
        for port, injection_port in ports.items()
        if injection_port.spec is not None and is_float(injection_port.spec.dtype) and not injection_port.is_constant
    }


def isolates(float_inputs: Mapping[str, int], injected: Collection[str]) -> bool:
    """Whether a call's output depends only on injected values: its largest floating point input was injected.

    ``float_inputs`` has the number of elements of each floating point input of the call, ``injected`` the ports that
    were given the reference's values. Masks, angles and scales are smaller than the activations: a call that was given
    only those still carries the error of earlier layers, and tells nothing about itself.
    """
    if not float_inputs:
        return bool(injected)
    return max(float_inputs, key=lambda port: float_inputs[port]) in injected
