"""The devices that a torch run used, for its manifest: cards, drivers, libraries, the device map of a model.

The device explains many differences in the last digits of a number, and some larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tensordiff.capture.devices import driver_version
from tensordiff.capture.engines.torch.devices.offload import execution_device


def devices_of(model: nn.Module) -> list[torch.device]:
    """The devices that a model computes on, in the order of its modules; devices where weights are only stored do not
    count.
    """
    found: dict[torch.device, None] = {}
    for module in model.modules():
        if (hooked := execution_device(module)) is not None:
            found[hooked] = None
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.device.type != "meta":
                found[tensor.device] = None
    return list(found)


def about_devices(model: nn.Module) -> dict[str, Any]:
    """The accelerators that a model computes on, their software, and the device map; empty on the CPU."""
    found: dict[str, Any] = {}
    cards = [_card(device) for device in devices_of(model) if device.type != "cpu"]
    if cards:
        found["accelerators"] = cards
    if any(device.type == "cuda" for device in devices_of(model)):
        found["accelerator_software"] = dict(_software())
    if (where := getattr(model, "hf_device_map", None)) is not None:
        found["device_map"] = {str(name): str(device) for name, device in where.items()}
    return found


def _card(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"device": str(device), "name": device.type}
    properties = torch.cuda.get_device_properties(device)
    card = {"device": str(device), "name": properties.name, "memory": int(properties.total_memory)}
    if torch.version.hip:
        return card | {"vendor": "AMD", "architecture": str(properties.gcnArchName)}
    return card | {"vendor": "NVIDIA", "architecture": f"sm_{properties.major}{properties.minor}"}


def _software() -> Iterator[tuple[str, str]]:
    if torch.version.cuda:
        yield "cuda", str(torch.version.cuda)
    if torch.version.hip:
        yield "rocm", str(torch.version.hip)
    if torch.backends.cudnn.is_available() and (version := torch.backends.cudnn.version()):
        yield "cudnn", str(version)  # in ROCm builds, the version of MIOpen
    if driver := driver_version():  # torch does not report it
        yield "driver", driver
