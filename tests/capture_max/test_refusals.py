"""What MAX or we will not do is said in a sentence, before anything is compiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.capture_max.running import refusal

Model = Callable[[str], Path]


def test_no_such_folder(tmp_path: Path) -> None:
    assert "check the name" in refusal(f"max:{tmp_path}/nothing here", tmp_path / "dump")


def test_a_device_is_looked_at_before_anything_is_loaded(tmp_path: Path) -> None:
    assert "is not a device" in refusal(f"max:{tmp_path}/nothing here", tmp_path / "dump", device="toaster")


def test_no_config(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert "has no config.json" in refusal(f"max:{tmp_path}/model", tmp_path / "dump")


def test_architecture_that_max_lacks(tmp_path: Path, model: Model) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model("llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    assert "has no GPT2LMHeadModel" in refusal(f"max:{folder}", tmp_path / "dump")


def test_too_many_tokens(tmp_path: Path, model: Model) -> None:
    assert "the model takes 128" in refusal(f"max:{model('bert')}", tmp_path / "dump", input_ids=(3,) * 129)


def test_dtype_that_max_lacks(tmp_path: Path, model: Model) -> None:
    assert "float32, bfloat16" in refusal(f"max:{model('llama')}", tmp_path / "dump", dtype="float64")


def test_option_of_another_source(tmp_path: Path, model: Model) -> None:
    sentence = refusal(f"max:{model('llama')}", tmp_path / "dump", inputs="x.safetensors")
    assert "--inputs is not for max: sources" in sentence


def test_key_that_the_config_lacks(tmp_path: Path, model: Model) -> None:
    assert "the config has no rms_eps" in refusal(f"max:{model('llama')}", tmp_path / "dump", config={"rms_eps": 1})


def test_layer_that_is_not_there(tmp_path: Path, model: Model) -> None:
    sentence = refusal(f"max:{model('llama')}", tmp_path / "dump", ops="layers.7.mlp")
    assert "there is no such layer" in sentence
    assert "layers.0.mlp" in sentence


def test_version_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensordiff.capture.engines.max import patches
    from tensordiff.errors import CaptureError

    monkeypatch.setattr(patches, "version", lambda: "31.1.0")
    with pytest.raises(CaptureError, match=r"MAX 31\.1\.0 .* 26\.7\.\*"):
        patches.check_version()
