"""What ``mlx:`` has by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tensordiff.session.rerun.reruns import Rerunner
from tests.capture_engines.checkpoints import IDS
from tests.capture_engines.running import (
    STEPS,
    Shelf,
    compared,
    culprit,
    injected_layers,
)

KIND = "mlx"


@pytest.mark.parametrize(
    ("at", "isolated"), [("once", 29 * STEPS), ("layers.1.self_attn", STEPS), ("..layers.1.mlp", 21 * STEPS)]
)
def test_injection_reaches_what_it_is_asked_for(shelf: Shelf, at: str, isolated: int) -> None:
    dump = open_dump(shelf.injected(shelf.source(KIND, "llama"), shelf.reference("llama"), at))
    assert sum(layer["isolated"] for layer in injected_layers(dump).values()) == isolated


def test_fewer_layers(shelf: Shelf) -> None:
    reference = shelf.reference("llama", num_hidden_layers=1)
    candidate = shelf.capture(shelf.source(KIND, "llama"), num_hidden_layers=1)
    assert culprit(compared(reference, candidate)) is None
    assert not any(".layers.1" in entry.layer for entry in open_dump(candidate).entries)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ops": "model.lm_head"}, "--ops is not for mlx: sources; what MLX computes within a module cannot be seen"),
        ({"config": {"rope_parameters.rope_theta": 1.0}}, "mlx-lm does not read rope_parameters for this model"),
        (
            {"config": {"num_attention_heads": 3}},
            "the weights may not fit --config num_attention_heads=3: leave",
        ),
        ({"device": "cuda:0"}, "--device cuda:0: this MLX has no such GPU"),
        ({"dtype": "float3"}, "--dtype float3: MLX knows no such type"),
        ({"num_hidden_layers": 5}, "--num-hidden-layers 5: the model has 2"),
        ({"input_ids": (5, 1000), "force": True}, "the token 1000 is none of the model's 320"),
        ({"input_ids": (5, -3), "force": True}, "the token -3 is none of the model's 320"),
        ({"decode_ids": (4000,), "force": True}, "the token 4000 is none of the model's 320"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(shelf: Shelf, settings: dict[str, object], said: str) -> None:
    with pytest.raises(CaptureError, match=r"\S") as raised:
        shelf.capture(shelf.source(KIND, "llama"), **settings)
    assert said in str(raised.value)


def test_more_tokens_than_a_model_has_positions_are_refused(shelf: Shelf) -> None:
    with pytest.raises(CaptureError, match=r"the position 256 is none of the model's 256"):
        shelf.capture(shelf.source(KIND, "gpt2-hub"), input_ids=IDS * 52, force=True)


def test_a_key_that_a_config_lacks_is_named_with_the_option_that_gives_it(shelf: Shelf) -> None:
    with pytest.raises(CaptureError, match=r"'n_ctx'\); give what its config.json lacks, with --config n_ctx=VALUE"):
        shelf.capture(shelf.source(KIND, "gpt2"))


def test_a_model_for_which_mlx_lm_ends_the_process_is_refused_with_what_it_said(shelf: Shelf, tmp_path: Path) -> None:
    shutil.copy(shelf.checkpoint("llama") / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "olmo"}', "utf-8")
    with pytest.raises(CaptureError, match=r"mlx-lm does not run it: To run olmo install ai2-olmo"):
        shelf.capture(f"{KIND}:{tmp_path}")


def test_that_it_has_no_operations_is_known_before_the_reference_runs(shelf: Shelf) -> None:
    session = compared(shelf.reference("llama"), shelf.capture(shelf.source(KIND, "llama")))
    said = Rerunner(session).why_not("ops", "candidate")
    assert said is not None and "what MLX computes within a module cannot be seen" in said
    assert Rerunner(session).why_not("ops", "reference") is Rerunner(session).why_not("capture") is None


def test_a_model_that_mlx_lm_has_no_class_for_is_refused(shelf: Shelf) -> None:
    with pytest.raises(CaptureError, match=r"Model type bert not supported.*mlx-lm has no class for it"):
        shelf.capture(f"{KIND}:{shelf.checkpoint('minilm')}", steps=1)
