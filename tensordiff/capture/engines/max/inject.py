"""Runs a compiled MAX model on the reference's inputs: decides which input gets which value, pass by pass.

A pass costs one run of the compiled graph and no compilation. Inputs of layers can be replaced, outputs cannot. Nothing
here imports MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensordiff.capture.engines.max.shards import merged_site, slots_by_input, split_by_shard
from tensordiff.capture.engines.max.sites import GraphSite, InputSlot, ModelInputs, SiteValues, StepTensors
from tensordiff.capture.events import Phase, Tell
from tensordiff.capture.injection.injector import InjectionPort, Injector, plan_injection
from tensordiff.capture.injection.passes import Pass
from tensordiff.capture.injection.report import InjectionReport
from tensordiff.capture.settings import Injection
from tensordiff.dump import Entry
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import CallKey, EntryKey, MemoryTensor, Spec

RunSteps = Callable[[Mapping[int, SiteValues]], Iterable[StepTensors]]
"""Runs all steps with values by step; returns what was recorded in each."""


@dataclass(frozen=True)
class InjectedSteps:
    """What was recorded in an injected run, step by step, and its report."""

    steps: Sequence[StepTensors]
    report: InjectionReport


def run_injected(
    injection: Injection, plain: Sequence[StepTensors], inputs: ModelInputs, run: RunSteps, tell: Tell
) -> InjectedSteps:
    """Run a model again on the reference's inputs. ``plain`` is what it recorded without injection."""
    entries = [entry for step, tensors in enumerate(plain) for entry in _entries(step, tensors)]
    aliases = _aliases(inputs.slots, range(len(plain)))
    injector = Injector(plan_injection(injection, entries, aliases, replaces_outputs=False))
    steps, ports = list(plain), _ports(plain, inputs)
    for injection_pass in injector.passes():
        tell(Phase(injection_pass.title))
        values = _values(injector, injection_pass, ports, inputs.slots)
        for step, tensors in enumerate(run(values)):
            steps[step] = _merged(steps[step], tensors, injection_pass.written)
    return InjectedSteps(steps, injector.report)


def _ports(plain: Sequence[StepTensors], inputs: ModelInputs) -> dict[CallKey, dict[str, InjectionPort]]:
    """The inputs of every call: those that were recorded, and those that are not tensors or cannot be replaced."""
    fixed = {merged_site(each.site): each for each in inputs.fixed}
    slots = {merged_site(slot.site) for slot in inputs.slots if slot.site.port.startswith("input")}
    calls: dict[CallKey, dict[str, InjectionPort]] = {}
    for step, tensors in enumerate(plain):
        arrays = {site: array for site, array in tensors if site in slots or site in fixed}
        for site in dict.fromkeys([*arrays, *fixed]):
            spec = Spec(arrays[site].shape, arrays[site].dtype) if site in arrays else None
            why, is_constant = (fixed[site].why, fixed[site].is_constant) if site in fixed else (None, False)
            calls.setdefault(site.call_key(step), {})[site.port] = InjectionPort(spec, why, is_constant)
    return calls


def _values(
    injector: Injector,
    injection_pass: Pass,
    ports: Mapping[CallKey, Mapping[str, InjectionPort]],
    slots: Iterable[InputSlot],
) -> dict[int, dict[GraphSite, Array]]:
    """The values to inject in a pass, by step."""
    wholes = slots_by_input(slots)
    values: dict[int, dict[GraphSite, Array]] = {}
    for call, there in ports.items():
        for port, value in injector.inputs(injection_pass, call, there).items():
            values.setdefault(call.step, {}).update(split_by_shard(wholes[call.layer, call.call, port], value))
    return values


def _merged(before: StepTensors, now: StepTensors, layers: frozenset[str]) -> StepTensors:
    """Take the layers that a pass covers from the new run. The execution order is the same in all passes."""
    pairs = zip(before, now, strict=True)
    return [new if new[0].layer in layers else old for old, new in pairs]


def _entries(step: int, tensors: StepTensors) -> Iterator[Entry]:
    for site, array in tensors:
        yield Entry(site.key(step).name, site.layer, site.port, site.call, step, MemoryTensor(array), site.origin)


def _aliases(slots: Iterable[InputSlot], steps: Iterable[int]) -> dict[EntryKey, EntryKey]:
    """Inputs that are the same tensor as an earlier one."""
    numbers = list(steps)
    return {
        merged_site(slot.site).key(step): merged_site(slot.alias).key(step)
        for slot in slots
        if slot.alias is not None
        for step in numbers
    }
