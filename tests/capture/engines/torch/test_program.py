"""Which device is chosen: told by what is there, tried with the CPU and with devices that hold nothing."""

from __future__ import annotations

import pytest
import torch

from tensordiff.capture.engines.torch.program import Placement, first_device, placement
from tensordiff.errors import CaptureError


@pytest.mark.parametrize(
    ("gpus", "mps", "chosen"), [(2, True, "cuda:0"), (1, False, "cuda:0"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_takes_the_quickest_there_is(gpus: int, mps: bool, chosen: str) -> None:
    assert placement("auto", gpus=gpus, has_mps=mps) == Placement(torch.device(chosen))


@pytest.mark.parametrize("word", ["gpu", "cuda"])
def test_a_device_by_name(word: str) -> None:
    assert placement(word, gpus=2).device == torch.device("cuda", 0)
    assert placement(f"{word}:1", gpus=2).device == torch.device("cuda", 1)
    assert placement("cpu").device == torch.device("cpu")


@pytest.mark.parametrize("asked", ["gpu", "gpu:0"])
def test_the_gpu_of_a_mac_is_called_gpu_too(asked: str) -> None:
    assert placement(asked, gpus=0, has_mps=True).device == torch.device("mps")


@pytest.mark.parametrize("asked", ["gpu:1", "gpu:0,1"])
def test_a_mac_has_one_gpu(asked: str) -> None:
    with pytest.raises(CaptureError, match=r"there is no GPU 1 here \(1 GPU found, counted from 0\)"):
        placement(asked, gpus=0, has_mps=True)


def test_a_model_is_spread_over_several_gpus_by_accelerate() -> None:
    assert placement("gpu:0,1", gpus=2) == Placement(None, "auto", (0, 1))


def test_accelerate_places_layers_itself() -> None:
    found = placement("device_map=auto")
    assert found.device is None and found.device_map == "auto" and str(found) == "device_map=auto"


@pytest.mark.parametrize("asked", ["cuda", "cuda:3", "mps", "gpu", "gpu:0,1"])
def test_what_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(CaptureError, match=r"torch sees no (cuda device|GPU) here; try --device auto"):
        placement(asked, gpus=0, has_mps=False)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"gpu:2: there is no GPU 2 here \(2 GPUs found, counted from 0\)"):
        placement("gpu:2", gpus=2)


def test_inputs_go_where_the_first_weight_lies() -> None:
    assert first_device(torch.nn.Linear(2, 2)) == torch.device("cpu")
    assert first_device(torch.nn.Linear(2, 2, device="meta")) == torch.device("cpu")  # offloaded: loaded when it runs
    assert first_device(torch.nn.Identity()) == torch.device("cpu")
