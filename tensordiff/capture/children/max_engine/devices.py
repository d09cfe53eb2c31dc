"""Which devices MAX runs on: the one place that decides."""

from __future__ import annotations

from max.driver import DeviceSpec, accelerator_count

from tensordiff.errors import CaptureError, printable


def devices(asked: str) -> tuple[DeviceSpec, ...]:
    """What ``--device`` means: ``auto``, ``cpu``, ``gpu``, ``gpu:0,1``."""
    there = accelerator_count()
    if asked == "cpu" or (asked == "auto" and not there):
        return (DeviceSpec.cpu(),)
    kind, _, numbers = asked.partition(":")
    if kind not in ("gpu", "cuda", "auto") or not all(each.isdigit() for each in numbers.split(",") if numbers):
        raise CaptureError(f"--device {printable(asked)}: MAX runs on cpu, gpu or gpu:0,1")
    wanted = [int(each) for each in numbers.split(",")] if numbers else [0]
    if missing := [each for each in wanted if each >= there]:
        raise CaptureError(f"--device {printable(asked)}: there is no gpu {missing[0]} here ({there} found); try cpu")
    return tuple(DeviceSpec.accelerator(each) for each in wanted)
