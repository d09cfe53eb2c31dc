"""Which device is chosen: told by what is there, tried with the CPU and with devices that hold nothing."""

from __future__ import annotations

import pytest
import torch

from tensordiff.capture.engines.torch.program import Placement, first_device, placement
from tensordiff.errors import CaptureError


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_the_quickest_there_is(cuda: bool, mps: bool, chosen: str) -> None:
    assert placement("auto", has_cuda=cuda, has_mps=mps) == Placement(torch.device(chosen))


def test_a_device_by_name() -> None:
    assert placement("cuda:1", has_cuda=True).device == torch.device("cuda", 1)
    assert placement("cpu").device == torch.device("cpu")
    assert placement("meta").device == torch.device("meta")


def test_accelerate_places_layers_itself() -> None:
    found = placement("device_map=auto")
    assert found.device is None and found.device_map == "auto" and str(found) == "device_map=auto"


@pytest.mark.parametrize("asked", ["cuda", "cuda:3", "mps"])
def test_what_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(CaptureError, match=r"sees no (cuda|mps) device here; try --device auto"):
        placement(asked, has_cuda=False, has_mps=False)


def test_what_torch_does_not_know_is_refused() -> None:
    with pytest.raises(CaptureError, match="torch knows no such device"):
        placement("toaster")


def test_inputs_go_where_the_first_weight_lies() -> None:
    assert first_device(torch.nn.Linear(2, 2)) == torch.device("cpu")
    assert first_device(torch.nn.Linear(2, 2, device="meta")) == torch.device("cpu")  # offloaded: loaded when it runs
    assert first_device(torch.nn.Identity()) == torch.device("cpu")
