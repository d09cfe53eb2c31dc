"""The words of ``--device``, which every engine understands alike."""

from __future__ import annotations

import pytest

from tensordiff.capture.devices import DeviceChoice, check_gpu_numbers, parse_device
from tensordiff.errors import CaptureError


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "toaster",
        "gpu:",
        "gpu:x",
        "gpu:1,",
        "cuda:-1",
        "mps:0:1",
        "GPU",
        "device_map=",
        "device_map=everywhere",
        "cpu:0",
    ],
)
def test_what_is_no_device_is_refused_with_what_is_one(asked: str) -> None:
    with pytest.raises(
        CaptureError, match=r"auto, cpu, gpu, gpu:1, cuda:1, mps or device_map=auto|one of auto, balanced"
    ):
        parse_device(asked)


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        ("auto", DeviceChoice("auto")),
        ("cpu", DeviceChoice("cpu")),
        ("gpu", DeviceChoice("gpu")),
        ("gpu:1", DeviceChoice("gpu", (1,))),
        ("gpu:0,1,0", DeviceChoice("gpu", (0, 1))),
        ("cuda:1", DeviceChoice("cuda", (1,))),
        ("mps", DeviceChoice("mps")),
        ("device_map=auto", DeviceChoice("map", device_map="auto")),
    ],
)
def test_words(asked: str, choice: DeviceChoice) -> None:
    assert parse_device(asked) == choice


def test_numbers_are_counted_from_nought() -> None:
    check_gpu_numbers("gpu:1", parse_device("gpu:1"), 2)
    with pytest.raises(CaptureError, match=r"there is no GPU 2 here \(2 GPUs found"):
        check_gpu_numbers("gpu:0,2", parse_device("gpu:0,2"), 2)
    with pytest.raises(CaptureError, match=r"there is no GPU 0 here \(none found"):
        check_gpu_numbers("gpu", parse_device("gpu"), 0)
