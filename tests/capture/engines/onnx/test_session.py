"""Which execution providers a device means, wherever it is asked: the providers there are come as an argument."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tensordiff.capture.engines.onnx import facts
from tensordiff.capture.engines.onnx.session import CPU, CUDA, Placement, active_placement, placement
from tensordiff.errors import CaptureError

GPU = ["TensorrtExecutionProvider", CUDA, CPU]


def test_auto_is_cuda_where_there_is_one() -> None:
    assert placement("auto", [CPU]) == Placement("cpu", ((CPU, {}),))
    assert placement("auto", GPU) == Placement("cuda:0", ((CUDA, {"device_id": "0"}), (CPU, {})), is_optional=True)


def test_the_manifest_says_what_is_known_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "card_model", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(facts, "driver_version", lambda: "570.86.15")
    monkeypatch.setattr("onnxruntime.cuda_version", "12.8")
    runner: Any = SimpleNamespace(placed=placement("gpu:1", GPU))
    assert facts.about_gpu(runner) == {
        "accelerators": [{"device": "cuda:1", "vendor": "NVIDIA", "name": "NVIDIA H100 80GB HBM3"}],
        "accelerator_software": {"cuda": "12.8", "driver": "570.86.15"},
    }
    assert facts.about_gpu(SimpleNamespace(placed=placement("cpu", GPU))) == {}  # type: ignore[arg-type]


def test_a_device_is_taken_at_its_word() -> None:
    assert placement("cpu", GPU).providers == ((CPU, {}),)
    assert placement("cuda", GPU) == placement("gpu", GPU) and placement("gpu:1", GPU).device == "cuda:1"
    assert placement("cuda", GPU).device == "cuda:0"
    assert placement("cuda:3", GPU, exact=True).providers[0] == (CUDA, {"device_id": "3", "use_tf32": "0"})


@pytest.mark.parametrize("asked", ["cuda", "cuda:1", "gpu", "gpu:1"])
def test_cuda_where_there_is_none_is_refused(asked: str) -> None:
    with pytest.raises(CaptureError, match=rf"--device {asked}: this onnxruntime has no CUDA \(it has Azure, CPU\)"):
        placement(asked, ["AzureExecutionProvider", CPU])


@pytest.mark.parametrize("asked", ["mps", "cuda:", "cuda:x", "device_map=auto", "gpu:0,1", "\x1b[31m"])
def test_other_devices_are_refused(asked: str) -> None:
    said = "onnxruntime is run on the cpu or one GPU with CUDA|is not a device; give auto, cpu"
    with pytest.raises(CaptureError, match=said) as raised:
        placement(asked, GPU)
    assert str(raised.value).isprintable()


def test_a_provider_that_does_not_start_is_no_matter_unless_it_was_asked_for() -> None:
    assert active_placement(placement("auto", GPU), [CPU]) == Placement("cpu", ((CPU, {}),))
    assert active_placement(placement("cuda", GPU), [CUDA, CPU]) == placement("cuda", GPU)
    with pytest.raises(CaptureError, match="--device cuda:0: onnxruntime could not start CUDAExecutionProvider"):
        active_placement(placement("cuda", GPU), [CPU])
