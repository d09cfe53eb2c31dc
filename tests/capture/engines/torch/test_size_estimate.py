"""What flows through models that see and hear, told without running them, beside what a run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.capture.models import run_here, script

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tensordiff.capture.engines.torch.program import Step  # noqa: E402
from tensordiff.capture.engines.torch.size_estimate import (  # noqa: E402
    Flow,
    estimate,
    flow_of,
    layer_flows,
)
from tensordiff.capture.process.layers import Selection  # noqa: E402

_VISION = {"image_size": 64, "num_channels": 3}
_SOUND = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet": ("ForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 2, 1]}),
    "ConvNext": ("ForImageClassification", {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 2, 1]} | _VISION),
    "MobileNetV2": ("ForImageClassification", _VISION),
    "Segformer": ("ForSemanticSegmentation", {"hidden_sizes": [16, 32, 64, 64], "decoder_hidden_size": 32} | _VISION),
    "Swin": ("Model", {"embed_dim": 24, "depths": [1, 2, 1], "num_heads": [1, 2, 2], "window_size": 4} | _VISION),
    "Wav2Vec2": ("ForCTC", _SOUND),
    "Mamba": ("ForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 160, "state_size": 4}),
}


def foreseen(model: Any, *args: Any, **kwargs: Any) -> int | None:
    return estimate(Step(model.eval(), args, kwargs), 1, Selection())


def written(model: Any, folder: Path, *args: Any, **kwargs: Any) -> int:
    """Bytes that a run really leaves."""
    import tensordiff
    from tensordiff.dump import open_dump

    with torch.no_grad(), tensordiff.capture(model, folder):
        model(*args, **kwargs)
    return sum(entry.stored.spec.nbytes for entry in open_dump(folder).entries)


@pytest.mark.slow
@pytest.mark.parametrize("name", _MODELS)
def test_the_size_of_a_convolutional_model_is_foreseen(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    kind, options = _MODELS[name]
    model = getattr(transformers, name + kind)(getattr(transformers, name + "Config")(**options))
    given = {"pixel_values": (1, 3, 64, 64), "input_values": (1, 4000)}.get(model.main_input_name)
    value = torch.randn(given) if given else torch.arange(3, 12)[None]
    guess = foreseen(model, **{model.main_input_name: value})
    assert guess is not None
    assert 1 / 3 < guess / written(model, tmp_path / "d", **{model.main_input_name: value}) < 3


class Hourglass(nn.Module):  # type: ignore[misc]
    """Down and up again, with what was there before beside it, and flat in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 16, 3, padding="same"), nn.MaxPool2d(2), nn.Upsample(scale_factor=2))
        self.beside = nn.Conv2d(8, 16, 1)
        self.up = nn.ConvTranspose2d(32, 4, 2, stride=2)
        self.pool, self.flat, self.head = nn.AdaptiveAvgPool2d((4, 4)), nn.Flatten(), nn.Linear(64, 5)

    def forward(self, x: Any) -> Any:
        x = self.down(x)
        x = torch.cat([self.deep(x), self.beside(x)], 1)
        return self.head(self.flat(self.pool(self.up(x))))


def test_every_layer_of_an_hourglass_gives_what_is_foreseen() -> None:
    model, x = Hourglass(), torch.randn(2, 3, 32, 32)
    sizes: dict[str, int] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: sizes.update({name: output.numel()}))
    model(x)
    assert {one.name: one.gives.size for one in layer_flows(model, [x])} == sizes


@pytest.mark.parametrize(
    ("shape", "conv"),
    [
        ((3, 20, 20), nn.Conv2d(3, 5, 3)),
        ((2, 3, 4, 20, 20), nn.Conv3d(3, 5, 3)),
        ((1, 3, 512), nn.Conv1d(3, 5, 7, dilation=2)),
        ((1, 8, 3, 20, 20), nn.Conv2d(3, 5, 3, padding="valid")),
    ],
)
def test_a_convolution_is_given_its_channels_wherever_they_are(shape: tuple[int, ...], conv: Any) -> None:
    x = torch.randn(shape)
    (one,) = layer_flows(conv, [x])
    output = conv(x if x.dim() <= len(conv.kernel_size) + 2 else x.flatten(0, 1))
    assert (one.takes.size, one.gives.size) == (x.numel(), output.numel())


def test_patches_that_were_cut_out_before_are_counted() -> None:
    (one,) = layer_flows(nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4)), [torch.randn(10, 96)])
    assert one.gives == Flow(10, 8, (1, 1, 1))


@pytest.mark.parametrize("tensor", [torch.ones(()), torch.ones(0, 3), torch.ones(2, 3, 4), torch.ones(2, 3).long()])
def test_what_flows_at_first_is_the_input(tensor: Any) -> None:
    assert flow_of(tensor).size == tensor.numel()


def test_a_size_that_cannot_be_told_is_said_to_be_unknown(tmp_path: Path) -> None:
    file = script(
        tmp_path,
        "import torch\nfrom torch import nn\nclass Reshaping(nn.Module):\n def __init__(self):\n"
        "  super().__init__(); self.conv = nn.Conv2d(4, 8, 3)\n"
        " def forward(self, x):\n  return self.conv(x.reshape(1, 4, 10, 10))\n"
        "def net():\n return Reshaping(), (torch.ones(400),)\n",
    )
    ran = run_here(f"py:{file}:net", tmp_path / "d")
    assert any("how much will be written is not known, " in getattr(event, "text", "") for event in ran.events)
    assert ran.done.entries == 4


def test_more_steps_are_more_by_a_token_each() -> None:
    model, ids = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)), torch.arange(6)[None]
    once, often = (estimate(Step(model, (ids,), {}), steps, Selection(inputs=False)) for steps in (1, 7))
    assert once == 4 * 6 * 4 * 3
    assert often == 2 * once
