"""What a torch run says of itself: its config, and the hash of weights that wrap others, as those of torchao do."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")


class Codes(torch.Tensor):  # type: ignore[misc]
    """A weight as codes and scales. Like torchao's it refuses most operations."""

    codes: Any
    scales: Any

    @staticmethod
    def __new__(cls, codes: Any, scales: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes, made.scales = codes, scales
        return made

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scales)
        raise NotImplementedError(f"{func} of a tensor that is quantized")


def quantized(scale: float) -> Any:
    module = torch.nn.Linear(4, 4, bias=False)
    codes = torch.arange(16, dtype=torch.int8).reshape(4, 4)
    module.weight = torch.nn.Parameter(Codes(codes, torch.full((4, 1), scale)), requires_grad=False)
    return module


def test_weights_that_are_wrappers_are_hashed_by_what_they_hold() -> None:
    from tensordiff.capture.engines.torch.facts import weights_hash

    assert weights_hash(quantized(0.5)) == weights_hash(quantized(0.5)) != weights_hash(quantized(0.25))


def test_the_config_of_a_model_is_plain_values_and_that_of_strangers_is_not_asked() -> None:
    from tensordiff.capture.engines.torch.facts import about_config

    transformers = pytest.importorskip("transformers")
    module = torch.nn.Linear(2, 2)
    assert about_config(module) is None
    module.config = {"rms_norm_eps": 1e-6}
    assert about_config(module) is None
    module.config = transformers.LlamaConfig(rms_norm_eps=1e-3, logit_scale=float("inf"), torch_dtype=torch.float16)
    found = about_config(module)
    assert found is not None
    assert (found["rms_norm_eps"], found["logit_scale"]) == (1e-3, "inf")
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("LlamaConfig", False), ("GPT2Config", False), ("MixtralConfig", True), ("DeepseekV3Config", True),
        ("Qwen3MoeConfig", True), ("GptOssConfig", True), ("SwitchTransformersConfig", True), ("JambaConfig", True),
    ],
)  # fmt: skip
def test_whether_a_model_may_have_experts(config: str, expected: bool) -> None:
    from tensordiff.capture.engines.torch.facts import about_model

    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(getattr(transformers, config)(num_hidden_layers=1))
    assert about_model(model)["experts"] is expected


def test_of_other_code_it_is_not_known_that_there_are_no_experts() -> None:
    from tensordiff.capture.engines.torch.facts import about_model

    class Several(torch.nn.Module):  # type: ignore[misc]
        """Its experts have another name."""

        def __init__(self) -> None:
            super().__init__()
            self.gate, self.ffns = torch.nn.Linear(2, 2), torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    model = Several()
    assert about_model(model)["experts"] is None
    model.ffns.register_parameter("expert_w", torch.nn.Parameter(torch.zeros(1)))
    assert about_model(model)["experts"] is True
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        changed = transformers.AutoModel.from_config(transformers.LlamaConfig(num_hidden_layers=1))
    changed.layers[0].mlp = Several()
    assert about_model(changed)["experts"] is None
