"""The graph that a capture would run on GPUs, built by MAX for GPUs that are not there; printed as JSON.

``python -m tests.capture_max.virtual_graph cuda sm_90 2 gpu:0,1 MODEL``: what every tap and switch of the graph is
called, its type, its shape and its device. Nothing is compiled and nothing runs. The virtual devices are of the whole
process, so each graph is built in one of its own.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

import max.driver as driver

from tensordiff.capture.engines.max.shards import merged_site


def main(api: str, architecture: str, count: str, device: str, folder: str) -> None:
    """Build the graph, and print what was noted of it."""
    driver.set_virtual_device_api(api)
    driver.set_virtual_device_target_arch(architecture)
    driver.set_virtual_device_count(int(count))
    from tensordiff.capture.engines.max.checkpoint import open_checkpoint
    from tensordiff.capture.engines.max.model import CompiledModel, encoding, task
    from tensordiff.capture.engines.max.pipeline import ModelOptions, devices
    from tensordiff.capture.engines.max.single_layer import TracingDone, TypeListener
    from tensordiff.capture.settings import Settings

    settings, listener = Settings(device=device, dtype="float32"), TypeListener()
    with ExitStack() as held:
        found = open_checkpoint(folder, settings, held)
        options = ModelOptions(found.folder, encoding("float32", found), devices(device), 16, task(found))
        try:
            with CompiledModel(options, lambda _: None, listener):
                raise SystemExit("MAX compiled the graph, which was to be stopped")
        except TracingDone:
            pass
    print(json.dumps([_record(record) for record in listener.records.values()]))


def _record(record: Any) -> dict[str, Any]:
    wholes = [(*record.merged_tap(tap), tap) for tap in record.taps if not tap.is_number]
    taps = [_site(site) | _value(record.values[output]) for site, output, _ in wholes]
    slots = [_site(slot.site) | {"device": str(slot.device)} for slot in record.slots]
    return {"graph": record.graph.name, "taps": taps, "slots": slots}


def _site(site: Any) -> dict[str, Any]:
    whole, shard = merged_site(site), site.shard
    role = {} if shard is None else {"role": shard.role, "number": shard.number, "count": shard.count}
    return {"name": whole.key(0).name, "class": site.origin.module_class, "call": whole.call, **role}


def _value(value: Any) -> dict[str, Any]:
    return {"dtype": value.dtype.name, "shape": [str(size) for size in value.shape], "device": str(value.device)}


main(*sys.argv[1:])
